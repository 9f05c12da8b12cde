/* sponsor.c - what a rank does for a newcomer that has come to it: it asks the others, and lets the newcomer in once
 * most of them consent
 *
 *      newcomer -- HELLO, joining --> rank 3           rank 3 -- CLAIM rank, epoch --> the ranks of its group
 *      newcomer <-- WELCOME --------- rank 3           rank 3 <-- CONSENT ------------ each of them
 *
 * The group is the newest that takes newcomers in, and what counts as most of it is what may shrink it (agreement.c).
 * So a minority lets nobody in. Two newcomers at two ranks get two numbers, since any two majorities share a rank, and
 * a rank promises a number to one sponsor at a time. The promise ends when that life of the number comes, when the
 * sponsor withdraws the claim, or when the sponsor's own life ends. Where ranks only do not vote now, the claim keeps
 * its number and what it was granted, as long as the group is the same.
 *
 * A number whose life has ended is claimed again, under three conditions. Its sponsor gives numbers in turn, so a
 * number rests as long as possible. All ranks that the sponsor knows to be there must say that they know of the end,
 * and not only most: so no rank hears of the new life before it has taken what the old one sent, and all say the same
 * of the old one, gone or left. A goodbye travels in the claim, as only ranks that were connected have heard it. And
 * the new life has a later epoch than the old one: so what is still on its way about the old one is ignored. A rank
 * that has died meanwhile with what it knew does no harm: what it had promised had no life, or one that others have
 * heard of.
 *
 * A rank that has come again under its old number votes in its old place.
 */
#include "engine/engine.h"
#include "member/member_private.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { AGAIN_MS = 20 };

enum purpose { OLD, NEW, WITHDRAWN };       /* of a CLAIM: a rank that comes again; a newcomer; the claim is over */
enum answer { NOT_NOW, YES, TAKEN, FREE }; /* FREE: as YES, from a rank that has no vote */

struct tt_claim {
	struct tt_link *link;       /* to the newcomer: a claim ends with its connection */
	uint32_t rank, epoch;       /* as in its HELLO: TT_NEW_RANK asks for a number */
	uint32_t wanted, number;    /* the rank that is claimed in this round; the round's number */
	uint32_t uid;               /* of the group that is asked */
	bool failed;                /* not enough have consented: there will be another round ... */
	bool taken;                 /* ... for another number, since a rank knows that one to be given away */
	bool again;                 /* that number has had a life: all ranks are asked, and must know of its end */
	struct tt_timer timer;
	uint8_t *asked, *answered, *granted, *freed; /* a bit for each rank */
	uint8_t *there;             /* a bit for each seat */
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

	return uid && uid == tt_sponsor_voters(job) && !(g && tt_agree_voted(g));
}

/* No process has the number, or may get it from another sponsor than that one. */
static bool is_free(const struct tt_job *job, uint32_t rank, uint32_t epoch, int sponsor)
{
	const struct tt_member *m = tt_member(job, rank);

	if (rank >= (uint32_t)job->size)
		return true;
	if (m->rank == job->rank || (m->state < TT_LEFT && (m->epoch || *m->addr || m->link)) ||
	    (m->epoch && !tt_before(m->epoch, epoch)))
		return false;
	bool promised = m->promised && (!m->epoch || tt_before(m->epoch, m->promised));
	return !promised || m->promised_to == sponsor;
}

static enum answer consents(struct tt_job *job, uint32_t uid, uint32_t rank, uint32_t epoch, int sponsor, bool is_new)
{
	if (rank == (uint32_t)job->rank || (is_new && !is_free(job, rank, epoch, sponsor)))
		return is_new ? TAKEN : NOT_NOW;
	bool votes = may_vote(job, uid);
	if (!votes && (!is_new || rank >= (uint32_t)job->size))
		return NOT_NOW;
	tt_late_join_grow(job, (int)rank + 1);
	struct tt_member *m = tt_member(job, rank);
	if (!is_new && m->epoch && tt_before(epoch, m->epoch))
		return NOT_NOW;
	if (is_new) {
		m->promised = epoch;
		m->promised_to = sponsor;
	}
	return votes ? YES : FREE;
}

/* The claim says how the number's earlier life has left. A rank that is connected with it hears that itself. */
static void take_farewell(struct tt_job *job, uint32_t rank, struct tt_pack *p)
{
	uint32_t epoch = tt_get32(p);
	struct tt_pack bye;

	p->bad |= !epoch;
	if (!tt_member_take_bye(p, &bye) || rank >= (uint32_t)job->size || rank == (uint32_t)job->rank)
		return;
	struct tt_member *m = tt_member(job, rank);
	bool unheard = !m->epoch && m->state < TT_LEFT; /* its news have not come */
	if (m->state == TT_UP || m->state == TT_PARTING || m->state >= TT_LEFT || !tt_member_epoch(m, epoch))
		return;
	if (unheard)
		tt_watch_tell(job, m, TUTTI_JOINED);
	tt_member_left(m, &bye);
}

static void take_withdrawal(struct tt_member *from, uint32_t rank, uint32_t epoch)
{
	struct tt_member *m = rank < (uint32_t)from->job->size ? tt_member(from->job, rank) : NULL;

	if (m && m->promised == epoch && m->promised_to == from->rank)
		m->promised = 0;
}

void tt_sponsor_take_claim(struct tt_member *from, struct tt_pack *p)
{
	struct tt_job *job = from->job;
	uint32_t uid = tt_get32(p), number = tt_get32(p), rank = tt_get32(p), epoch = tt_get32(p);
	uint32_t purpose = tt_get32(p);

	p->bad |= rank >= (uint32_t)tt_members(job)->capacity || !epoch || purpose > WITHDRAWN;
	p->bad |= purpose != OLD && rank < (uint32_t)tt_members(job)->launched;
	if (p->bad || tt_is_joining(job))
		return;
	if (purpose == WITHDRAWN) {
		take_withdrawal(from, rank, epoch);
		return;
	}
	if (tt_pack_left(p))
		take_farewell(job, rank, p);
	uint32_t answer = consents(job, uid, rank, epoch, from->rank, purpose == NEW);
	uint32_t known = rank < (uint32_t)job->size ? tt_member(job, rank)->epoch : 0;
	const uint32_t words[] = { uid, number, answer, (uint32_t)job->size, known };
	tt_send_words(from, TT_CONSENT, words, 5, NULL, 0);
}

/* ---- asking ---- */

/* The others need not keep the number. */
static void withdraw(struct tt_claim *c)
{
	struct tt_job *job = c->link->job;
	const uint32_t words[] = { c->uid, c->number, c->wanted, c->epoch, WITHDRAWN };

	for (int i = 0; c->rank == TT_NEW_RANK && c->asked && i < job->size && !job->leaving; i++) {
		struct tt_member *m = tt_member(job, i);
		if (i == job->rank)
			take_withdrawal(m, c->wanted, c->epoch);
		else if (tt_bits_has(c->asked, i) && m->state == TT_UP)
			tt_send_words(m, TT_CLAIM, words, 5, NULL, 0);
	}
}

static void free_claim(struct tt_link *l)
{
	tt_timer_stop(&l->claim->timer);
	free(l->claim->asked);
	free(l->claim);
	l->claim = NULL;
}

void tt_sponsor_end(struct tt_link *l)
{
	if (!l->claim)
		return;
	withdraw(l->claim);
	free_claim(l);
}

static void turn_away(struct tt_link *l, const char *why)
{
	tt_sponsor_end(l);
	tt_greeting_refuse(l, why);
}

static bool is_reached(const struct tt_member *m)
{
	return m->state < TT_LEFT && (m->link || *m->addr);
}

static bool is_there(const struct tutti *g, int i)
{
	return i == g->me || is_reached(tt_member(g->job, g->seats[i].rank)); /* any life of it */
}

/* Is that rank asked in this claim? All that have a seat are, and if the number is used again all ranks. */
static bool is_due(const struct tt_claim *c, const struct tutti *g, int rank)
{
	const struct tt_member *m = tt_member(g->job, rank);

	return rank != g->job->rank && rank != (int)c->wanted && is_reached(m) &&
	       (g->seat_of[rank] >= 0 || (c->again && *m->addr)); /* without an address it is about to join */
}

static void ask_rank(const struct tt_claim *c, struct tt_member *m, uint32_t uid)
{
	const struct tt_member *old = tt_member(m->job, c->wanted);
	const bool is_new = c->rank == TT_NEW_RANK, tells = is_new && c->again && old->state == TT_LEFT && old->bye;
	const uint32_t words[] = { uid, c->number, c->wanted, c->epoch, is_new ? NEW : OLD, old->epoch };

	tt_send_words(m, TT_CLAIM, words, tells ? 6 : 5, tells ? old->bye : NULL, tells ? old->bye_len : 0);
}

static void ask(struct tt_claim *c, const struct tutti *g, bool connected)
{
	for (int i = 0; i < g->job->size; i++) {
		struct tt_member *m = tt_member(g->job, i);
		if (!is_due(c, g, i) || tt_bits_has(c->asked, i) || (connected && m->state != TT_UP))
			continue;
		tt_bits_set(c->asked, i);
		ask_rank(c, m, g->uid);
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

/* Have all that must be asked this bit? */
static bool have_all(const struct tt_claim *c, const struct tutti *g, const uint8_t *bits)
{
	for (int i = 0; i < g->job->size; i++)
		if (is_due(c, g, i) && !tt_bits_has(bits, i))
			return false;
	return true;
}

/* All that were asked, and are there, have answered. */
static bool is_answered(const struct tt_claim *c, const struct tutti *g)
{
	for (int i = 0; i < g->job->size; i++)
		if (is_due(c, g, i) && tt_bits_has(c->asked, i) && !tt_bits_has(c->answered, i))
			return false;
	return true;
}

static bool is_granted(struct tt_claim *c, const struct tutti *g)
{
	memset(c->there, 0, tt_bits_size(g->n));
	for (int i = 0; i < g->n; i++)
		if (tt_bits_has(c->granted, g->seats[i].rank))
			tt_bits_set(c->there, i);
	return tt_bits_has(c->granted, g->job->rank) && tt_agree_is_enough(g, c->there) &&
	       (!c->again || have_all(c, g, c->freed));
}

static void judge(struct tt_claim *c, const struct tutti *g)
{
	uint8_t random;

	if (!c->taken && is_granted(c, g)) {
		struct tt_link *l = c->link;
		uint32_t rank = c->wanted, epoch = c->epoch;
		free_claim(l);
		tt_greeting_let_in(l, rank, epoch);
		return;
	}
	if (!c->taken && !is_answered(c, g))
		return;
	if (!c->taken && !have_all(c, g, c->asked)) {
		ask(c, g, false);
		return;
	}
	c->failed = true;
	tt_entropy(&random, 1); /* two ranks that claim one number are not to meet for ever */
	look_in(c, AGAIN_MS * TT_MS * (64 + random) / 128);
}

/* Another claim of this rank is about that number. */
static bool is_claimed(const struct tt_claim *but, uint32_t number)
{
	tt_each_link(l, but->link->job)
		if (l->claim && l->claim != but && l->claim->asked && l->claim->wanted == number)
			return true;
	return false;
}

/* In turn. False: no number is free now. */
static bool choose_number(struct tt_claim *c)
{
	struct tt_job *job = c->link->job;
	struct tt_members *all = tt_members(job);
	int room = all->capacity - all->launched;

	for (int i = 0; i < room; i++) {
		int at = (all->next_number + i) % room;
		uint32_t number = (uint32_t)(all->launched + at);
		if (!is_free(job, number, c->epoch, job->rank) || is_claimed(c, number) ||
		    (number < (uint32_t)job->size && tt_member(job, (int)number)->untold))
			continue;
		all->next_number = (at + 1) % room;
		c->wanted = number;
		return true;
	}
	return false;
}

static bool keeps_number(const struct tt_claim *c, const struct tutti *g)
{
	return c->rank == TT_NEW_RANK && c->asked && c->uid == g->uid && !c->taken &&
	       tt_bits_has(c->granted, g->job->rank);
}

/* A newcomer that finds no room asks again: some rank may be about to go. A job that takes no newcomers refuses. */
static void turn_away_for_now(struct tt_link *l)
{
	char text[60];

	if (tt_members(l->job)->capacity == tt_members(l->job)->launched) {
		turn_away(l, "the job takes no newcomers: TUTTI_NEWCOMERS is 0 on rank 0");
		return;
	}
	snprintf(text, sizeof text, "%d newcomers are there (TUTTI_NEWCOMERS)",
	         tt_members(l->job)->capacity - tt_members(l->job)->launched);
	tt_sponsor_end(l);
	tt_greeting_put_off(l, 0, text);
}

static bool begin_anew(struct tt_claim *c, const struct tutti *g)
{
	size_t bytes = tt_bits_size(tt_members(g->job)->capacity);

	withdraw(c);
	free(c->asked);
	c->asked = calloc(1, 4 * bytes + tt_bits_size(g->n));
	if (!c->asked)
		return false;
	c->answered = c->asked + bytes;
	c->granted = c->answered + bytes;
	c->freed = c->granted + bytes;
	c->there = c->freed + bytes;
	return true;
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
	size_t bytes = tt_bits_size(all->capacity);
	bool keep = keeps_number(c, g);
	if (!keep && !begin_anew(c, g)) {
		turn_away(c->link, "no memory to ask the other ranks");
		return;
	}
	c->failed = c->taken = false;
	c->uid = g->uid;
	c->number = ++all->claims;
	if (refuse_in_minority(c, g))
		return;
	if (!keep && c->rank != TT_NEW_RANK) {
		c->wanted = c->rank;
	} else if (!keep && !choose_number(c)) {
		turn_away_for_now(c->link);
		return;
	}
	c->again = c->rank == TT_NEW_RANK && c->wanted < (uint32_t)job->size &&
	           tt_member(job, (int)c->wanted)->state >= TT_LEFT;
	memcpy(c->asked, c->granted, bytes);
	memcpy(c->answered, c->granted, bytes);
	memcpy(c->freed, c->granted, bytes);
	if (!may_vote(job, g->uid)) { /* the group is being shrunk or grown: no number is used up meanwhile */
		c->failed = true;
		look_in(c, AGAIN_MS * TT_MS);
		return;
	}
	if (!keep && consents(job, g->uid, c->wanted, c->epoch, job->rank, c->rank == TT_NEW_RANK) == YES)
		tt_bits_set(c->granted, job->rank);
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

static void note_answer(struct tt_claim *c, int rank, enum answer answer)
{
	tt_bits_set(c->answered, rank);
	if (answer == YES)
		tt_bits_set(c->granted, rank);
	if (answer == YES || answer == FREE)
		tt_bits_set(c->freed, rank);
	c->taken |= answer == TAKEN;
}

/* A sponsor that joined late does not know which lives have ended before. */
static bool has_come_behind(struct tt_claim *c, uint32_t known)
{
	struct tt_link *l = c->link;

	if (c->rank == TT_NEW_RANK || !known || !tt_before(c->epoch, known))
		return false;
	tt_sponsor_end(l);
	tt_greeting_put_off(l, known, "the rank has had a later life");
	return true;
}

void tt_sponsor_take_consent(struct tt_member *from, struct tt_pack *p)
{
	struct tt_job *job = from->job;
	uint32_t uid = tt_get32(p), number = tt_get32(p), answer = tt_get32(p), size = tt_get32(p);
	uint32_t known = tt_get32(p);
	const struct tutti *g = voters(job);

	p->bad |= answer > FREE || size > (uint32_t)tt_members(job)->capacity;
	if (p->bad)
		return;
	tt_late_join_grow(job, (int)size);
	if (!g || g->uid != uid)
		return;
	tt_each_link(l, job) {
		struct tt_claim *c = l->claim;
		if (!c || c->failed || c->number != number || c->uid != uid)
			continue;
		if (!has_come_behind(c, known)) {
			note_answer(c, from->rank, answer);
			judge(c, g);
		}
		return;
	}
}

/* What its life has granted is void: a later one may not know it. Judged later: a claim may call this. */
static void forget_grants(struct tt_job *job, int rank)
{
	tt_each_link(l, job) {
		struct tt_claim *c = l->claim;
		if (!c)
			continue;
		if (c->asked) {
			tt_bits_clear(c->granted, rank);
			tt_bits_clear(c->freed, rank);
		}
		look_in(c, 0);
	}
}

void tt_sponsor_member_down(const struct tt_member *m)
{
	struct tt_job *job = m->job;

	forget_grants(job, m->rank);
	for (int i = tt_members(job)->launched; i < job->size; i++)
		if (tt_member(job, i)->promised_to == m->rank)
			tt_member(job, i)->promised = 0; /* what it has not let in, it lets in no more */
}
