/* sponsor.c - what a rank does for a newcomer that has come to it: it asks the others, and lets the newcomer in once
 * most of them consent
 *
 *      newcomer -- HELLO, joining --> rank 3           rank 3 -- CLAIM rank, epoch --> the ranks of its group
 *      newcomer <-- WELCOME --------- rank 3           rank 3 <-- CONSENT ------------ each of them
 *
 * The group is the newest that takes newcomers in, and what counts as most of it is what may shrink it (agreement.c).
 * So a minority lets nobody in. A rank consents to a number once, and all numbers from job->size on are free as far as
 * it knows: two newcomers at two ranks get two numbers, since any two majorities share a rank. A number for which no
 * majority was found, because a rank knows it to be given away, is lost. Where ranks only do not vote now, the claim
 * keeps its number and what it was granted, as long as the group is the same: these ranks give the number to nobody
 * else. The next view of the group begins with the highest job->size that its ranks report, and a rank that has
 * reported consents no more: what the old group gave away, the new one does not give again.
 *
 * A rank that has come again under its old number votes in its old place. It has learnt from its sponsor which numbers
 * are taken: as many as a majority, which consented to it, had heard of.
 */
#include "engine/engine.h"
#include "member/member_private.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { AGAIN_MS = 20 };

struct tt_claim {
	struct tt_link *link;       /* to the newcomer: a claim ends with its connection */
	uint32_t rank, epoch;       /* as in its HELLO: TT_NEW_RANK asks for a number */
	uint32_t wanted, number;    /* the rank that is claimed in this round; the round's number */
	uint32_t uid;               /* of the group that is asked */
	bool failed;                /* not enough have consented: there will be another round ... */
	bool taken;                 /* ... for another number, since a rank knows that one to be given away */
	struct tt_timer timer;
	uint8_t *asked, *answered, *granted, *there; /* a bit for each seat */
};

/* The group that takes newcomers in; NULL: this rank is not in it, or not any more. */
static struct tutti *voters(const struct tt_job *job)
{
	tt_each_group(g, job)
		if (g->lineage && g->uid && !g->retired && !tt_agree_is_over(g))
			return g;
	return NULL;
}

uint32_t tt_sponsor_voters(const struct tt_job *job)
{
	const struct tutti *g = voters(job);

	return g ? g->uid : tt_members(job)->voters;
}

bool tt_sponsor_has_most(const struct tt_job *job)
{
	const struct tutti *g = voters(job);

	return g && tt_agree_is_enough(g, NULL);
}

/* ---- consenting ---- */

static bool may_vote(const struct tt_job *job, uint32_t uid)
{
	const struct tutti *g = voters(job);

	return uid && uid == tt_sponsor_voters(job) && !(g && tt_agree_has_reported(g));
}

static bool consents(struct tt_job *job, uint32_t uid, uint32_t rank, uint32_t epoch, bool is_new)
{
	bool known = rank < (uint32_t)job->size;

	if (!may_vote(job, uid) || (is_new && known) || rank == (uint32_t)job->rank)
		return false;
	tt_late_join_grow(job, (int)rank + 1);
	const struct tt_member *m = tt_member(job, rank);
	return !m->epoch || !tt_before(epoch, m->epoch);
}

void tt_sponsor_take_claim(struct tt_member *from, struct tt_pack *p)
{
	struct tt_job *job = from->job;
	uint32_t uid = tt_get32(p), number = tt_get32(p), rank = tt_get32(p), epoch = tt_get32(p), is_new = tt_get32(p);

	p->bad |= rank >= (uint32_t)tt_members(job)->capacity || !epoch || is_new > 1;
	if (p->bad || !job->joined)
		return;
	bool yes = consents(job, uid, rank, epoch, is_new);
	const uint32_t words[] = { uid, number, yes, (uint32_t)job->size };
	tt_send_words(from, TT_CONSENT, words, 4, NULL, 0);
}

/* ---- asking ---- */

void tt_sponsor_end(struct tt_link *l)
{
	if (!l->claim)
		return;
	tt_timer_stop(&l->claim->timer);
	free(l->claim->asked);
	free(l->claim);
	l->claim = NULL;
}

static void turn_away(struct tt_link *l, const char *why)
{
	tt_sponsor_end(l);
	tt_greeting_refuse(l, why);
}

static bool is_there(const struct tutti *g, int i)
{
	const struct tt_member *m = tt_member(g->job, g->seats[i].rank); /* any life of it */

	return i == g->me || (m->state < TT_LEFT && (m->link || *m->addr));
}

static void ask(struct tt_claim *c, const struct tutti *g, bool connected)
{
	const uint32_t words[] = { g->uid, c->number, c->wanted, c->epoch, c->rank == TT_NEW_RANK };

	for (int i = 0; i < g->n; i++) {
		struct tt_member *m = tt_member(g->job, g->seats[i].rank);
		if (!is_there(g, i) || tt_bits_has(c->asked, i) || (connected && m->state != TT_UP))
			continue;
		tt_bits_set(c->asked, i);
		tt_send_words(m, TT_CLAIM, words, 5, NULL, 0);
	}
}

static void look_again(struct tt_timer *);

static void look_in(struct tt_claim *c, uint64_t ns)
{
	tt_timer_start(c->link->job, &c->timer, tt_now() + ns, look_again);
}

static bool refuse_in_minority(struct tt_claim *c, const struct tutti *g)
{
	char text[60];
	int there = 0;

	memset(c->there, 0, tt_bits_size(g->n));
	for (int i = 0; i < g->n; i++)
		if (is_there(g, i)) {
			tt_bits_set(c->there, i);
			there++;
		}
	if (tt_agree_is_enough(g, c->there))
		return false;
	snprintf(text, sizeof text, "rank %d reaches %d of %d ranks, no majority", g->job->rank, there, g->n);
	turn_away(c->link, text);
	return true;
}

/* All that were asked, and are there, have answered. */
static bool is_answered(const struct tt_claim *c, const struct tutti *g)
{
	for (int i = 0; i < g->n; i++)
		if (is_there(g, i) && tt_bits_has(c->asked, i) && !tt_bits_has(c->answered, i))
			return false;
	return true;
}

static bool is_asked(const struct tt_claim *c, const struct tutti *g)
{
	for (int i = 0; i < g->n; i++)
		if (is_there(g, i) && !tt_bits_has(c->asked, i))
			return false;
	return true;
}

static void judge(struct tt_claim *c, const struct tutti *g)
{
	uint8_t random;

	if (tt_bits_has(c->granted, g->me) && tt_agree_is_enough(g, c->granted)) {
		struct tt_link *l = c->link;
		uint32_t rank = c->wanted, epoch = c->epoch;
		tt_sponsor_end(l);
		tt_greeting_let_in(l, rank, epoch);
		return;
	}
	if (!is_answered(c, g))
		return;
	if (!is_asked(c, g)) {
		ask(c, g, false);
		return;
	}
	c->failed = true;
	tt_entropy(&random, 1); /* two ranks that claim one number are not to meet for ever */
	look_in(c, AGAIN_MS * TT_MS * (64 + random) / 128);
}

static bool keeps_number(const struct tt_claim *c, const struct tutti *g)
{
	return c->rank == TT_NEW_RANK && c->asked && c->uid == g->uid && !c->taken && tt_bits_has(c->granted, g->me);
}

static void begin_round(struct tt_claim *c)
{
	struct tt_job *job = c->link->job;
	struct tt_members *all = tt_members(job);
	const struct tutti *g = voters(job);
	char text[60];

	if (!g) {
		snprintf(text, sizeof text, "rank %d is in no group of the job: ask another", job->rank);
		turn_away(c->link, text);
		return;
	}
	size_t bytes = tt_bits_size(g->n);
	bool keep = keeps_number(c, g);
	if (!keep) {
		free(c->asked);
		c->asked = calloc(4, bytes);
		if (!c->asked) {
			turn_away(c->link, "no memory to ask the other ranks");
			return;
		}
		c->answered = c->asked + bytes;
		c->granted = c->answered + bytes;
		c->there = c->granted + bytes;
		c->wanted = c->rank == TT_NEW_RANK ? (uint32_t)job->size : c->rank;
	}
	c->failed = c->taken = false;
	c->uid = g->uid;
	c->number = ++all->claims;
	if (refuse_in_minority(c, g))
		return;
	if (c->wanted >= (uint32_t)all->capacity) {
		turn_away(c->link, "there is no room for more ranks");
		return;
	}
	memcpy(c->asked, c->granted, bytes);
	memcpy(c->answered, c->granted, bytes);
	tt_bits_set(c->asked, g->me);
	tt_bits_set(c->answered, g->me);
	if (!may_vote(job, g->uid)) { /* the group is being shrunk or grown: no number is used up meanwhile */
		c->failed = true;
		look_in(c, AGAIN_MS * TT_MS);
		return;
	}
	if (!keep && consents(job, g->uid, c->wanted, c->epoch, c->rank == TT_NEW_RANK))
		tt_bits_set(c->granted, g->me);
	ask(c, g, true);
	look_in(c, tt_time(job, TT_TIME_NET)); /* then the ranks that are not connected are asked, too */
	judge(c, g);
}

static void look_again(struct tt_timer *t)
{
	struct tt_claim *c = tt_container_of(t, struct tt_claim, timer);
	const struct tutti *g = voters(c->link->job);

	if (c->failed || !g || g->uid != c->uid) {
		begin_round(c);
		return;
	}
	if (refuse_in_minority(c, g))
		return;
	ask(c, g, false);
	judge(c, g);
}

void tt_sponsor_ask(struct tt_link *l, uint32_t rank, uint32_t epoch)
{
	if (l->claim || !(l->claim = calloc(1, sizeof *l->claim)))
		return; /* no memory: the newcomer asks again */
	l->claim->link = l;
	l->claim->rank = rank;
	l->claim->epoch = epoch;
	begin_round(l->claim);
}

void tt_sponsor_take_consent(struct tt_member *from, struct tt_pack *p)
{
	struct tt_job *job = from->job;
	uint32_t uid = tt_get32(p), number = tt_get32(p), yes = tt_get32(p), size = tt_get32(p);
	const struct tutti *g = voters(job);

	p->bad |= yes > 1 || size > (uint32_t)tt_members(job)->capacity;
	if (p->bad)
		return;
	tt_late_join_grow(job, (int)size);
	if (!g || g->uid != uid || g->seat_of[from->rank] < 0)
		return;
	tt_each_link(l, job) {
		struct tt_claim *c = l->claim;
		if (!c || c->failed || c->number != number || c->uid != uid)
			continue;
		tt_bits_set(c->answered, g->seat_of[from->rank]);
		if (yes)
			tt_bits_set(c->granted, g->seat_of[from->rank]);
		c->taken |= !yes && size > c->wanted;
		judge(c, g);
		return;
	}
}

/* What its life has granted is void: a later one may not know it. Judged later: a claim may call this. */
void tt_sponsor_member_down(const struct tt_member *m)
{
	struct tt_job *job = m->job;
	const struct tutti *g = voters(job);

	tt_each_link(l, job) {
		struct tt_claim *c = l->claim;
		if (!c)
			continue;
		if (g && g->uid == c->uid && g->seat_of[m->rank] >= 0)
			tt_bits_clear(c->granted, g->seat_of[m->rank]);
		look_in(c, 0);
	}
}
