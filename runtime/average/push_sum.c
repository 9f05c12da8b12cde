/* push_sum.c - gifts: a model that is given with a weight
 *
 *      giver: w = w / 2; keeps the buffer     -- mail {number, buffer, w}, notify -->   receiver
 *      giver  <--- reads the buffer, taken[buffer] = number ---   receiver: x = (w_r x_r + w_s x_s) / (w_r + w_s)
 *
 * A weight is in one place at each moment: with its giver until the mail has landed, or on its way, or the receiver's.
 * A mail that certainly has not landed comes back, with its buffer, and is mixed like one that came. What was given to
 * a rank that has gone since, less what came from it, is lost with that rank: summed over all that are left this is
 * what it had, beyond what it began with, wherever its last gifts were. */
#include "average/gossip.h"
#include <math.h>
#include <stdlib.h>

/* ---- giving ---- */

static int count_kept(const struct tutti_gossip *g)
{
	int n = 0;

	for (int i = 0; i < g->config.buffers; i++)
		n += g->gift[i].kept;
	return n;
}

void tt_gift_give(struct tutti_gossip *g, int rank)
{
	struct tt_gift *gift = &g->gift[g->published];
	double weight = g->config.way == TUTTI_GOSSIP_PUSH_SUM ? g->info.weight / 2 : 1;

	if (count_kept(g) >= g->config.buffers - (g->holds ? 3 : 2)) {
		g->none = "the last gifts were not taken yet";
		return;
	}
	gift->kept = true;
	gift->rank = rank;
	gift->epoch = g->peers[rank].epoch; /* as it was chosen */
	gift->mail = (struct tt_mail){ .number = g->number, .buffer = (uint64_t)g->published, .hash = g->model.hash,
		.weight = weight };
	if (tutti_put_notify(g->window, rank, (size_t)((char *)&g->mail[g->job->rank] - g->memory), &gift->mail,
	                     sizeof gift->mail, 0, &gift->op)) {
		gift->kept = false;
		g->none = "it went away";
		return;
	}
	g->peers[rank].given += weight;
	if (g->config.way == TUTTI_GOSSIP_PUSH_SUM)
		g->info.weight -= weight;
}

/* ---- what becomes of gifts ---- */

static bool is_over(const struct tutti_gossip *g, const struct tt_gift *gift)
{
	const struct tt_member *m = tt_member(g->job, gift->rank);

	tt_lock(g->job);
	bool over = m->state >= TT_LEFT || (gift->epoch && gift->epoch != m->epoch) ||
	            tt_window_is_closed(g->window, gift->rank);
	tt_unlock(g->job);
	return over;
}

static uint64_t answer_to(const struct tutti_gossip *g, const struct tt_gift *gift)
{
	return __atomic_load_n(&g->head->taken[gift->mail.buffer], __ATOMIC_ACQUIRE);
}

/* It has another model. */
static bool is_refused(struct tutti_gossip *g, const struct tt_gift *gift)
{
	bool refused = answer_to(g, gift) == (gift->mail.number | TT_GOSSIP_REFUSED);

	if (refused)
		g->peers[gift->rank].erred = gift->epoch;
	return refused;
}

static bool is_back(struct tutti_gossip *g, struct tt_gift *gift)
{
	int err = tutti_test(&gift->op);

	return err != -EINPROGRESS && !is_over(g, gift) && (err || is_refused(g, gift));
}

static void settle_gift(struct tutti_gossip *g, struct tt_gift *gift)
{
	bool taken = answer_to(g, gift) == gift->mail.number;

	if ((!taken && !is_over(g, gift)) || tutti_test(&gift->op) == -EINPROGRESS)
		return;
	gift->kept = false;
}

void tt_gifts_settle(struct tutti_gossip *g)
{
	for (int i = 0; i < g->config.buffers; i++)
		if (g->gift[i].kept)
			settle_gift(g, &g->gift[i]);
	tt_lock(g->job);
	for (int i = 0; i < g->job->size; i++)
		tt_gossip_meet(g, i);
	tt_unlock(g->job);
}

/* ---- taking ---- */

/* A mail is whole when its notify has come. */
static bool has_mail(struct tutti_gossip *g, int rank)
{
	struct tt_gossip_peer *p = &g->peers[rank];
	uint64_t number = __atomic_load_n(&g->mail[rank].number, __ATOMIC_ACQUIRE);

	return rank != g->job->rank && number && number != p->last &&
	       !tutti_wait_notify(g->window, rank, 0, p->gifts + 1, 0);
}

static bool is_fetched(struct tutti_gossip *g, int rank)
{
	for (int i = 0; i < TT_GOSSIP_FETCHES; i++)
		if (tt_fetch_is_wanted(&g->fetch[i]) && g->fetch[i].rank == rank)
			return true;
	return false;
}

void tt_gifts_fetch(struct tutti_gossip *g)
{
	g->info.offers = 0;
	for (int i = 0; i < g->job->size; i++) {
		if (!has_mail(g, i))
			continue;
		g->info.offers++;
		if (!is_fetched(g, i) && g->mail[i].buffer < TT_GOSSIP_BUFFERS)
			tt_fetch_begin(g, i, &g->mail[i]);
	}
}

struct answer {
	struct tt_post post;
	struct tutti_gossip *g;
	uint64_t number;
};

static void free_answer(struct tt_post *p, int err)
{
	struct answer *a = tt_container_of(p, struct answer, post);

	(void)err; /* the giver is gone */
	a->g->answers--;
	a->g->job->engine.news = true;
	free(a);
}

/* Tells the giver that its buffer is free again. */
static void answer(struct tutti_gossip *g, int rank, const struct tt_mail *mail, bool refused)
{
	struct answer *a = malloc(sizeof *a);

	if (!a)
		return; /* its buffer stays kept */
	a->g = g;
	a->number = mail->number | (refused ? TT_GOSSIP_REFUSED : 0);
	a->post = (struct tt_post){ .done = free_answer, .op = { .kind = TT_PUT, .local = &a->number, .len = 8,
		.offset = offsetof(struct tt_gossip_head, taken) + 8 * mail->buffer } };
	tt_lock(g->job);
	g->answers++;
	if (tt_window_post(g->window, rank, &a->post))
		free_answer(&a->post, 0);
	tt_unlock(g->job);
}

struct mixing { /* one call of mix */
	double total;               /* the weight of what this rank has */
	uint64_t deadline;
	tutti_gossip_result *result;
};

static void adopt(struct tutti_gossip *g, struct mixing *x, char *to, double weight)
{
	tt_gossip_adopt(g, to);
	x->result->factor = 1 - (1 - x->result->factor) * x->total / (x->total + weight);
	x->total += weight;
	if (g->config.way == TUTTI_GOSSIP_PUSH_SUM)
		g->info.weight = x->total;
}

/* The giver has another model, or its mail makes no sense. It is told so in its window. */
static int refuse(const struct tt_fetch *f)
{
	tt_lock(f->g->job);
	int err = tt_window_ask(f->g->window, f->rank);
	tt_unlock(f->g->job);
	return err == -EINPROGRESS ? -ETIMEDOUT : -EINVAL;
}

static bool is_there(const struct tutti_gossip *g, int rank)
{
	tt_lock(g->job);
	bool there = tt_member_is_there(g->job, rank);
	tt_unlock(g->job);
	return there;
}

/* 0; -ETIMEDOUT, or as of tt_gossip_ends(): its bytes have not all come yet; -EINVAL: refused; else it is gone: its
 * giver has, or has closed. */
static int take(struct tutti_gossip *g, struct mixing *x, struct tt_fetch *f)
{
	struct tt_gossip_peer *p = &g->peers[f->rank];
	struct tt_mail mail = { .number = f->number, .buffer = (uint64_t)f->buffer };
	uint64_t deadline = f->late ? 0 : x->deadline;
	struct tt_blend b = { .own = tt_gossip_own(g), .factor = f->weight / (x->total + f->weight) };
	int spare = tt_gossip_spare(g), err;

	if (spare < 0)
		return -ETIMEDOUT;
	b.to = tt_gossip_buffer(g, spare);
	if (g->mail[f->rank].hash == g->model.hash && f->weight > 0 && isfinite(f->weight))
		err = tt_fetch_mix(f, &b, 0, deadline);
	else
		err = refuse(f);
	if (tt_gossip_ends(g, err))
		return err;
	f->late = err == -ETIMEDOUT;
	if (f->late)
		return err;
	if (err && err != -EINVAL && err != -ESTALE && is_there(g, f->rank)) { /* again next time */
		tt_fetch_drop(f);
		return -ETIMEDOUT;
	}
	p->last = f->number;
	p->gifts++;
	if (!err) {
		adopt(g, x, tt_gossip_buffer(g, spare), f->weight);
		p->taken += f->weight;
		x->result->peer = f->rank;
		x->result->age_ms = tt_fetch_age(f);
		x->result->gifts++;
	}
	answer(g, f->rank, &mail, err == -EINVAL);
	tt_fetch_drop(f);
	return err;
}

static void take_back(struct tutti_gossip *g, struct mixing *x, struct tt_gift *gift)
{
	int spare = tt_gossip_spare(g);
	double weight = gift->mail.weight;

	if (spare < 0)
		return;
	if (g->config.way == TUTTI_GOSSIP_PUSH_SUM) {
		const struct tt_blend b = { .to = tt_gossip_buffer(g, spare), .own = tt_gossip_own(g),
			                    .factor = weight / (x->total + weight) };
		tt_gossip_blend(g, &b, tt_gossip_buffer(g, (int)gift->mail.buffer), 0, g->model.bytes);
		adopt(g, x, tt_gossip_buffer(g, spare), weight);
	}
	g->peers[gift->rank].given -= weight;
	gift->kept = false;
}

int tt_gifts_mix(struct tutti_gossip *g, tutti_gossip_result *result, uint64_t deadline)
{
	struct mixing x = { g->config.way == TUTTI_GOSSIP_PUSH_SUM ? g->info.weight : 1, deadline, result };
	bool some;
	int err = 0;

	for (int i = 0; i < g->config.buffers; i++)
		if (g->gift[i].kept && is_back(g, &g->gift[i]))
			take_back(g, &x, &g->gift[i]);
	do {
		some = false;
		tt_gifts_fetch(g);
		for (int i = 0; !tt_gossip_ends(g, err) && i < TT_GOSSIP_FETCHES; i++)
			if (tt_fetch_is_wanted(&g->fetch[i]))
				some |= (err = take(g, &x, &g->fetch[i])) != -ETIMEDOUT;
	} while (some && !tt_gossip_ends(g, err));
	return tt_gossip_ends(g, err) ? err : 0;
}
