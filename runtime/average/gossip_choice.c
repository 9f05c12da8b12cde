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
	return err == -ESTALE || err == -EHOSTUNREACH || err == -ENOTCONN || err == -ECONNRESET;
}

static bool is_my_own(int err) { return err == -ENOMEM || err == -EMFILE; } /* this process lacks something */

int tt_gossip_score(int score, int err)
{
	if (!err || err == -ENODATA)
		return (int)tt_min((size_t)score + 10, 1000);
	if (err == -EAGAIN || is_my_own(err))
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

/* Something is under way with that rank, and a second one would need its place. */
static bool is_busy(const struct tutti_gossip *g, int rank)
{
	bool busy = g->config.way == TUTTI_GOSSIP_PULL ? g->peers[rank].probing : g->peers[rank].telling;

	for (int i = 0; i < TT_GOSSIP_FETCHES && g->config.way == TUTTI_GOSSIP_PULL; i++)
		busy |= g->fetch[i].rank == rank && g->fetch[i].state != TT_FETCH_IDLE;
	for (int i = 0; i < g->config.buffers; i++)
		busy |= g->gift[i].kept && !g->gift[i].back && g->gift[i].rank == rank;
	return busy;
}

void tt_gossip_meet(struct tutti_gossip *g, int rank)
{
	const struct tt_member *m = tt_member(g->job, rank);
	struct tt_gossip_peer *p = &g->peers[rank];
	bool gives = g->config.way != TUTTI_GOSSIP_PULL, anew = p->epoch && p->epoch != m->epoch;
	bool closed = gives && tt_window_is_closed(g->window, rank);

	if (gives && (m->state >= TT_LEFT || anew || closed))
		tt_gifts_end(g, rank);
	if (anew)
		p->heard = 0;
	if (anew || closed) {
		p->asked = p->untold = closed; /* until it has opened its gossip again */
		p->late = false;
	}
	if (closed) {
		p->erred = 0;
		tt_window_again(g->window, rank);
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
	if (p->asked && g->config.way == TUTTI_GOSSIP_PULL)
		p->asked = tt_window_ask(g->window, rank) != 0;
	else if (p->asked)
		p->asked = !tt_gift_is_answered(g, rank);
	return !p->asked;
}

/* The job's rank that takes part as number i. */
static int rank_at(const struct tutti_gossip *g, int i) { return g->seats ? g->seats[i] : i; }
static int seats_of(const struct tutti_gossip *g) { return g->seats ? g->members : g->job->size; }
static int my_seat(const struct tutti_gossip *g) { return g->seats ? g->seat : g->job->rank; }

/* The first that is eligible, from that seat on. */
static int first_from(struct tutti_gossip *g, int seat, int step)
{
	int n = seats_of(g);

	for (int i = 0; i < n; i++, seat += step)
		if (is_eligible(g, rank_at(g, (seat % n + n) % n)))
			return rank_at(g, (seat % n + n) % n);
	return -1;
}

static int choose_exponential(struct tutti_gossip *g)
{
	int n = seats_of(g), steps = 1;

	while (1 << steps < n)
		steps++;
	return first_from(g, my_seat(g) + (1 << g->rounds % (unsigned)steps), 1);
}

static bool is_on_my_host(const struct tutti_gossip *g, int rank)
{
	uint64_t host = tt_member(g->job, rank)->host;

	return host && host == tt_member(g->job, g->job->rank)->host;
}

static int list_eligible(struct tutti_gossip *g, bool (*is)(const struct tutti_gossip *, int), bool wanted)
{
	int n = 0;

	for (int i = 0; i < seats_of(g); i++) {
		int rank = rank_at(g, i);
		if ((!is || is(g, rank) == wanted) && is_eligible(g, rank))
			g->list[n++] = rank;
	}
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
	int me = my_seat(g);

	switch (g->config.choice) {
	case TUTTI_CHOICE_EXPONENTIAL: return choose_exponential(g);
	case TUTTI_CHOICE_RING: return g->rounds % 2 ? first_from(g, me - 1, -1) : first_from(g, me + 1, 1);
	case TUTTI_CHOICE_HOSTS: return choose_by_host(g);
	case TUTTI_CHOICE_DPWA: return choose_by_score(g);
	case TUTTI_CHOICE_OWN: return own >= 0 && own < g->job->size && is_eligible(g, own) ? own : -1;
	default: return choose_one_of(g, list_eligible(g, NULL, true));
	}
}
