/* gossip_choice.c - which peer, and how much of it */
#include "average/gossip.h"
#include <math.h>

/* ---- functions of their arguments ---- */

double tt_gossip_factor(const tutti_gossip_config *c, double clock, double peer_clock, double loss, double peer_loss)
{
	double mine = c->method == TUTTI_GOSSIP_CLOCK ? clock : peer_loss;
	double theirs = c->method == TUTTI_GOSSIP_CLOCK ? peer_clock : loss;
	double f = c->method == TUTTI_GOSSIP_CONSTANT ? c->value : theirs / (mine + theirs);

	if (!isfinite(loss) || !isfinite(peer_loss)) /* that model is no good any more */
		return isfinite(peer_loss);
	if (f != f)
		f = 0.5;
	if (c->divergence_threshold > 0 && loss < c->divergence_threshold)
		f *= loss / c->divergence_threshold;
	return f > 1 ? 1 : f > 0 ? f : 0;
}

int tt_gossip_pick(const int *scores, int n, uint64_t (*below)(void *, uint64_t), void *arg)
{
	int best = 0, at = -1, ties = 0;

	for (int i = 0; i < n; i++) {
		int sum = scores[i] + TT_GOSSIP_NOISE_MIN +
		          (int)below(arg, TT_GOSSIP_NOISE_MAX - TT_GOSSIP_NOISE_MIN + 1);
		if (sum < best)
			continue;
		ties = sum == best ? ties + 1 : 1;
		if (ties == 1 || !below(arg, (uint64_t)ties))
			at = i;
		best = sum;
	}
	return at;
}

static bool is_absent(int err) /* upstream: refused */
{
	return err == -ESTALE || err == -EHOSTUNREACH || err == -ENOTCONN || err == -ECONNRESET || err == -EMFILE;
}

int tt_gossip_score(int score, int err)
{
	if (!err || err == -ENODATA)
		return (int)tt_min((size_t)score + 10, 1000);
	if (err == -EAGAIN)
		return score;
	return err != -ETIMEDOUT && !is_absent(err) ? 0 : score > 110 ? score - 100 : 10;
}

/* ---- the choice ---- */

void tt_gossip_judge(struct tutti_gossip *g, int rank, int err)
{
	struct tt_gossip_peer *p = &g->peers[rank];
	int score = tt_gossip_score(p->score, err);

	p->asked = g->config.choice != TUTTI_CHOICE_DPWA && (err == -ETIMEDOUT || err == -EHOSTUNREACH);
	if (score)
		p->score = score;
	else if (g->config.choice == TUTTI_CHOICE_DPWA)
		p->erred = tt_member(g->job, rank)->epoch;
}

static bool is_busy(const struct tutti_gossip *g, int rank)
{
	for (int i = 0; i < TT_GOSSIP_FETCHES; i++)
		if (g->fetch[i].rank == rank && g->fetch[i].state != TT_FETCH_IDLE)
			return true;
	for (int i = 0; i < g->config.buffers; i++)
		if (g->gift[i].kept && g->gift[i].rank == rank)
			return true;
	return false;
}

void tt_gossip_meet(struct tutti_gossip *g, int rank)
{
	const struct tt_member *m = tt_member(g->job, rank);
	struct tt_gossip_peer *p = &g->peers[rank];
	bool anew = p->epoch && p->epoch != m->epoch;

	if (m->state >= TT_LEFT || anew) {
		if (g->config.way == TUTTI_GOSSIP_PUSH_SUM)
			g->info.lost += p->given - p->taken;
		p->given = p->taken = 0;
	}
	if (anew) {
		p->gifts = p->last = 0;
		p->asked = false;
	}
	p->epoch = m->epoch;
}

/* One that did not come in time is asked for in the background, and waited for no more. */
static bool is_eligible(struct tutti_gossip *g, int rank)
{
	struct tt_gossip_peer *p = &g->peers[rank];
	const struct tt_member *m = tt_member(g->job, rank);

	if (p->out || m->guest || !tt_member_is_there(g->job, rank) || is_busy(g, rank) ||
	    (p->erred && p->erred == m->epoch))
		return false;
	tt_gossip_meet(g, rank);
	if (p->asked)
		p->asked = tt_window_ask(g->window, rank) != 0;
	return !p->asked;
}

/* The first that is eligible, from `rank` on. */
static int first_from(struct tutti_gossip *g, int rank, int step)
{
	int n = g->job->size;

	for (int i = 0; i < n; i++, rank += step)
		if (is_eligible(g, (rank % n + n) % n))
			return (rank % n + n) % n;
	return -1;
}

static int choose_exponential(struct tutti_gossip *g)
{
	int n = g->job->size, steps = 1;

	while (1 << steps < n)
		steps++;
	return first_from(g, g->job->rank + (1 << g->rounds % (unsigned)steps), 1);
}

static bool is_on_my_host(const struct tutti_gossip *g, int rank)
{
	uint64_t host = tt_member(g->job, rank)->host;

	return host && host == tt_member(g->job, g->job->rank)->host;
}

static int list_eligible(struct tutti_gossip *g, bool (*is)(const struct tutti_gossip *, int), bool wanted)
{
	int n = 0;

	for (int i = 0; i < g->job->size; i++)
		if ((!is || is(g, i) == wanted) && is_eligible(g, i))
			g->list[n++] = i;
	return n;
}

static uint64_t below(void *random, uint64_t n) { return tt_random_below(random, n); }

static int choose_by_score(struct tutti_gossip *g)
{
	int n = list_eligible(g, NULL, true), *scores = g->list + g->capacity;

	for (int i = 0; i < n; i++)
		scores[i] = g->peers[g->list[i]].score;
	return n ? g->list[tt_gossip_pick(scores, n, below, &g->random)] : -1;
}

static int choose_one_of(struct tutti_gossip *g, int n) { return n ? g->list[below(&g->random, (uint64_t)n)] : -1; }

static int choose_by_host(struct tutti_gossip *g)
{
	bool near = g->rounds % 4 != 3;
	int n = list_eligible(g, is_on_my_host, near);

	return choose_one_of(g, n ? n : list_eligible(g, is_on_my_host, !near));
}

int tt_gossip_choose(struct tutti_gossip *g, int own)
{
	int me = g->job->rank;

	switch (g->config.choice) {
	case TUTTI_CHOICE_EXPONENTIAL: return choose_exponential(g);
	case TUTTI_CHOICE_RING: return g->rounds % 2 ? first_from(g, me - 1, -1) : first_from(g, me + 1, 1);
	case TUTTI_CHOICE_HOSTS: return choose_by_host(g);
	case TUTTI_CHOICE_DPWA: return choose_by_score(g);
	case TUTTI_CHOICE_OWN: return own >= 0 && own < g->job->size && is_eligible(g, own) ? own : -1;
	default: return choose_one_of(g, list_eligible(g, NULL, true));
	}
}
