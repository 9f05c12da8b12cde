/* push_sum.c - gifts: a model that is given with a weight
 *
 *      giver: w = w / 2; keeps the buffer; offer { word, w }     -- notify -->   receiver
 *      giver  <--- reads the offer, then the buffer ---          receiver
 *      giver  <--- adds to the word ---                          receiver: x = (w_r x_r + w_s x_s) / (w_r + w_s)
 *
 * A weight is in one place at each moment: with its giver until the receiver has added to the word, then the
 * receiver's. The giver withdraws an offer by one atomic of its own. A giver that needs the buffer gives a gift that
 * its receiver has left alone to another rank. A gift whose receiver is gone or refuses comes back, and is mixed like
 * one that came. A rank whose offer was withdrawn gets no other one before it has answered, so it adds once to each
 * offer, and never to one that it has not read.
 *
 * `lost` is the weight that this rank gave to ranks that have gone or closed since, less the weight that came from
 * them. Summed over the ranks that are left, `lost` is the weight of the gone ranks beyond the weight they began
 * with. */
#include "average/gossip.h"
#include <math.h>
#include <stdlib.h>

static bool is_sum(const struct tutti_gossip *g) { return g->config.way == TUTTI_GOSSIP_PUSH_SUM; }

uint64_t tt_offer_seal(const struct tutti_gossip *g, const struct tt_offer *o)
{
	struct tt_offer open = { o->word & ~(uint64_t)TT_OFFER_STATE, o->weight, o->born, g->model.hash };

	return tt_hash64(TT_HASH64, &open, sizeof open);
}

/* ---- giving ---- */

static bool has_room(const struct tutti_gossip *g)
{
	int n = 0;

	for (int i = 0; i < g->config.buffers; i++)
		n += g->gift[i].kept;
	return n < g->config.buffers - (g->holds ? 3 : 2);
}

/* False: its receiver has just taken or refused it. */
static bool withdraw(struct tutti_gossip *g, const struct tt_gift *gift)
{
	uint64_t word = gift->word;

	if (!__atomic_compare_exchange_n(&g->offer[gift->rank].word, &word, word | TT_OFFER_WITHDRAWN, false,
	                                 __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
		return false;
	g->peers[gift->rank].asked = true;
	g->peers[gift->rank].given -= gift->weight;
	return true;
}

static uint64_t age_of(const struct tutti_gossip *g, const struct tt_gift *gift)
{
	return tt_now() - g->peers[gift->rank].offered;
}

/* The one that was offered first, where its receiver has had enough time. Nobody has it afterwards. NULL: none. */
static struct tt_gift *withdraw_late(struct tutti_gossip *g)
{
	struct tt_gift *late = NULL;

	for (int i = 0; i < g->config.buffers; i++) {
		struct tt_gift *gift = &g->gift[i];
		if (gift->kept && !gift->back && (!late || age_of(g, gift) > age_of(g, late)))
			late = gift;
	}
	if (!late || age_of(g, late) < tt_pace_limit(&g->takes) || !withdraw(g, late))
		return NULL;
	return late;
}

static struct tt_gift *new_gift(struct tutti_gossip *g)
{
	struct tt_gift *gift = &g->gift[g->shown.newest];

	*gift = (struct tt_gift){ .kept = true, .weight = is_sum(g) ? g->info.weight / 2 : 1,
		.word = (g->shown.number * TT_GOSSIP_BUFFERS + (uint64_t)g->shown.newest) * (TT_OFFER_STATE + 1) };
	if (is_sum(g))
		g->info.weight -= gift->weight;
	return gift;
}

static void write_offer(struct tt_offer *to, const struct tutti_gossip *g, const struct tt_gift *gift)
{
	to->weight = gift->weight;
	to->born = g->head->stamp[gift - g->gift].born;
	to->seal = tt_offer_seal(g, &(struct tt_offer){ .word = gift->word, .weight = to->weight, .born = to->born });
	__atomic_store_n(&to->word, gift->word, __ATOMIC_RELEASE);
}

void tt_gift_give(struct tutti_gossip *g, int rank)
{
	struct tt_gossip_peer *p = &g->peers[rank];
	struct tt_gift *gift = has_room(g) ? new_gift(g) : withdraw_late(g);

	if (!gift) {
		g->none = "the last gifts were not taken yet";
		return;
	}
	gift->rank = rank;
	p->offered = tt_now();
	write_offer(&g->offer[rank], g, gift);
	p->given += gift->weight;
	p->untold = tutti_put_notify(g->window, rank, 0, NULL, 0, 0, &p->told) != 0; /* settled as any other */
	p->telling = !p->untold;
}

/* ---- what becomes of gifts ---- */

static void come_back(struct tutti_gossip *g, struct tt_gift *gift)
{
	gift->kept = gift->back = is_sum(g); /* else it has no weight */
}

static void settle_gift(struct tutti_gossip *g, struct tt_gift *gift)
{
	struct tt_gossip_peer *p = &g->peers[gift->rank];
	uint64_t word = __atomic_load_n(&g->offer[gift->rank].word, __ATOMIC_ACQUIRE), state = word & TT_OFFER_STATE;

	if (state & TT_OFFER_REFUSED) {
		p->erred = p->epoch;
		p->given -= gift->weight;
		come_back(g, gift);
	} else if (state) {
		gift->kept = false;
		tt_pace_note(&g->takes, tt_now() - p->offered, false);
	} else if (p->untold && withdraw(g, gift)) {
		come_back(g, gift);
	}
}

bool tt_gift_is_answered(struct tutti_gossip *g, int rank)
{
	struct tt_gossip_peer *p = &g->peers[rank];

	if (p->untold)
		return tt_window_ask(g->window, rank) == 0;
	if (!(__atomic_load_n(&g->offer[rank].word, __ATOMIC_ACQUIRE) & TT_OFFER_ANSWERED))
		return false;
	tt_pace_note(&g->takes, tt_now() - p->offered, true);
	return true;
}

/* What that rank has not answered comes back. With the lock. */
static void take_offers_back(struct tutti_gossip *g, int rank)
{
	for (int i = 0; i < g->config.buffers; i++) {
		struct tt_gift *gift = &g->gift[i];
		if (!gift->kept || gift->back || gift->rank != rank)
			continue;
		settle_gift(g, gift);
		if (gift->kept && !gift->back && withdraw(g, gift))
			come_back(g, gift);
	}
}

void tt_gifts_part(struct tutti_gossip *g, int rank)
{
	tt_lock(g->job);
	take_offers_back(g, rank);
	tt_unlock(g->job);
	for (int i = 0; i < TT_GOSSIP_FETCHES; i++)
		if (g->fetch[i].rank == rank && tt_fetch_is_wanted(&g->fetch[i]))
			tt_fetch_forgo(&g->fetch[i]);
}

void tt_gifts_end(struct tutti_gossip *g, int rank)
{
	struct tt_gossip_peer *p = &g->peers[rank];

	take_offers_back(g, rank);
	if (is_sum(g))
		g->info.lost += p->given - p->taken;
	p->given = p->taken = 0;
}

static void settle_notify(struct tt_gossip_peer *p)
{
	int err = tutti_test(&p->told);

	p->telling = err == -EINPROGRESS;
	p->untold |= !p->telling && err;
}

void tt_gifts_settle(struct tutti_gossip *g)
{
	for (int i = 0; i < g->job->size; i++)
		if (g->peers[i].telling)
			settle_notify(&g->peers[i]);
	tt_lock(g->job);
	for (int i = 0; i < g->config.buffers; i++)
		if (g->gift[i].kept && !g->gift[i].back)
			settle_gift(g, &g->gift[i]);
	for (int i = 0; i < g->job->size; i++)
		tt_gossip_meet(g, i);
	tt_unlock(g->job);
}

double tt_gifts_in_flight(const struct tutti_gossip *g)
{
	double sum = 0;

	for (int i = 0; i < g->config.buffers; i++)
		sum += g->gift[i].kept ? g->gift[i].weight : 0;
	for (int i = 0; i < TT_GOSSIP_FETCHES; i++)
		sum += g->fetch[i].claimed ? g->fetch[i].weight : 0;
	return sum;
}

/* ---- taking ---- */

static bool is_fetched(const struct tutti_gossip *g, int rank)
{
	for (int i = 0; i < TT_GOSSIP_FETCHES; i++)
		if (g->fetch[i].state != TT_FETCH_IDLE && g->fetch[i].rank == rank)
			return true;
	return false;
}

/* A rank that was waited for in vain is asked in the background, and not waited for. tt_gossip_meet() is to see first
 * that a rank has closed. */
static bool has_offer(struct tutti_gossip *g, int rank)
{
	struct tt_gossip_peer *p = &g->peers[rank];

	if (rank == g->job->rank || p->out || !tt_member_is_there(g->job, rank) ||
	    tt_window_is_closed(g->window, rank) || tt_window_notified(g->window, rank, 0) <= p->heard)
		return false;
	p->late = p->late && (p->probing || tt_window_ask(g->window, rank));
	return !p->late;
}

void tt_gifts_fetch(struct tutti_gossip *g)
{
	int n = 0, offers = 0;

	tt_lock(g->job);
	for (int i = 0; i < g->job->size; i++) {
		if (!has_offer(g, i))
			continue;
		offers++;
		if (!is_fetched(g, i) && !g->peers[i].probing)
			g->list[n++] = i;
	}
	tt_unlock(g->job);
	g->info.offers = offers;
	for (int i = 0; i < n && tt_fetch_begin(g, g->list[i], true); i++)
		continue;
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
	if (is_sum(g))
		g->info.weight = x->total;
}

/* Its bytes did not come in time. What has not begun to come makes room. */
static void let_wait(struct tutti_gossip *g, struct tt_fetch *f)
{
	bool forgone = tt_fetch_forgo(f);

	tt_lock(g->job);
	g->peers[f->rank].late = forgone;
	f->late = true;
	tt_unlock(g->job);
}

/* 0; -ETIMEDOUT, or as of tt_gossip_ends(): its bytes have not all come yet; -EINVAL: refused; else it was withdrawn,
 * or its giver is gone, or has closed. */
static int take(struct tutti_gossip *g, struct mixing *x, struct tt_fetch *f)
{
	struct tt_gossip_peer *p = &g->peers[f->rank];
	struct tt_blend b = { .own = tt_gossip_own(g), .total = x->total };
	int spare = tt_gossip_spare(g), err;

	if (spare < 0)
		return -ETIMEDOUT;
	b.to = tt_gossip_buffer(g, spare);
	err = tt_fetch_mix(f, &b, 0, f->late ? 0 : x->deadline);
	if (tt_gossip_ends(g, err))
		return err;
	if (err == -ETIMEDOUT) {
		let_wait(g, f);
		return err;
	}
	if (!err) {
		adopt(g, x, b.to, f->weight);
		x->result->peer = f->rank;
		x->result->age_ms = tt_fetch_age(f);
		x->result->gifts++;
	}
	if (!err || err == -ECANCELED || err == -ENODATA || err == -EINVAL || err == -ERANGE)
		p->heard = f->heard;
	else
		err = -ETIMEDOUT; /* again next time, if its giver is there then */
	tt_fetch_drop(f);
	return err;
}

static void take_back(struct tutti_gossip *g, struct mixing *x, struct tt_gift *gift)
{
	int spare = tt_gossip_spare(g);

	if (spare < 0)
		return;
	const struct tt_blend b = { .to = tt_gossip_buffer(g, spare), .own = tt_gossip_own(g),
		                    .factor = gift->weight / (x->total + gift->weight) };
	tt_gossip_blend(g, &b, tt_gossip_buffer(g, (int)(gift - g->gift)), 0, g->model.bytes);
	adopt(g, x, tt_gossip_buffer(g, spare), gift->weight);
	gift->kept = gift->back = false;
}

int tt_gifts_mix(struct tutti_gossip *g, tutti_gossip_result *result, uint64_t deadline)
{
	struct mixing x = { is_sum(g) ? g->info.weight : 1, deadline, result };
	bool some = true;
	int err = 0;

	for (int i = 0; i < g->config.buffers; i++)
		if (g->gift[i].back)
			take_back(g, &x, &g->gift[i]);
	for (int left = g->job->size; some && left && !tt_gossip_ends(g, err); left--) { /* givers may be faster */
		some = false;
		tt_gifts_fetch(g);
		for (int i = 0; !tt_gossip_ends(g, err) && i < TT_GOSSIP_FETCHES; i++)
			if (tt_fetch_is_wanted(&g->fetch[i]))
				some |= (err = take(g, &x, &g->fetch[i])) != -ETIMEDOUT;
	}
	return tt_gossip_ends(g, err) ? err : 0;
}
