/* agreement.c - tutti_group_shrink and tutti_group_grow: the next membership view of a group
 *
 * All ranks that are left must agree on one view although some die on the way, and no other ranks may agree on
 * another. This is one instance of Paxos (Lamport 1998) for each group. The lowest rank that is left coordinates; a
 * ballot is higher than all before and names its maker. The value is a view: which of the old seats stay, and which
 * ranks are new.
 *
 *      member -- CALL --> coordinator                 I am in the call; if you know the answer, tell me
 *      coordinator -- COLLECT b --> all that are left
 *      member -- REPORT b {accepted at, view} --> coordinator       once it is in the call; it joins no ballot below b
 *      coordinator -- PROPOSE b view --> the view     the highest accepted one reported, else all that reported
 *      member -- ACCEPT b --> coordinator
 *      coordinator -- DECIDE view --> all that are left   when all ranks of the view that are left have accepted
 *
 * A member that has promised a higher ballot answers REFUSE. Reports and acceptances must come from more than half of
 * the group, or from half of it with its first rank; ranks that have left in order do not count. So two halves of a
 * cut network cannot both go on; TUTTI_MINORITY=yes gives that up. A rank that lives and does not call in time is left
 * out: each rank skips such a rank for itself, which only changes whom it waits for and who coordinates. If a rank of
 * a decided view has died meanwhile, the next collective fails on all ranks of the view.
 */
#include "engine/engine.h"
#include "member/member_private.h"
#include <stdlib.h>
#include <string.h>

enum kind { CALL = 1, COLLECT, REPORT, REFUSE, PROPOSE, ACCEPT, DECIDE, ARRIVE, WELCOME };

enum {
	HEAD = 12,             /* type, kind, slot, uid, ballot */
	NEWCOMERS_MAX = 256,   /* in one view */
	SEAT = 10,             /* bytes of one on the wire: rank 4, epoch 4, slot 2 */
	PIECE = 1024,          /* bytes of a WELCOME: every transport takes so many as one message */
	RETRY_MS = 20,
	LONGEST_MS = 600000,   /* that the call waits where operations wait for ever */
	TOLD = 8,              /* ranks that a newcomer tells at a time that it waits */
	BALLOT_MAX = INT32_MAX, /* no honest rank gets so far: each ballot takes RETRY_MS at least */
};

struct tt_membership {
	uint8_t *stays;             /* a bit for each old seat */
	uint32_t size;              /* ranks of the job: numbers below this are given away */
	int count;                  /* newcomers */
	struct tt_newcomer of[];
};

struct tt_agreement {
	struct tutti *group;
	bool calling, grow;         /* this rank is in the call; and wants newcomers */
	uint32_t promised, accepted; /* ballots */
	struct tt_membership *view; /* accepted */
	bool decided;
	struct tutti *heir;         /* the group that came of it, if this rank is in it; */
	int err;                    /* else the error */
	int asker;                  /* the seat whose COLLECT waits until this rank is in the call, or -1 */
	uint64_t asked;             /* when it came */
	int told;                   /* the coordinator that has my CALL, or -1 */
	uint8_t *skipped;           /* a bit for each seat: lives, and has not called in time, as this rank sees it */

	uint32_t ballot;            /* mine, as coordinator; 0: none */
	bool proposing;
	uint8_t *heard;             /* a bit for each seat: has reported, or accepted */
	bool any_grow, impatient;   /* impatient: newcomers that do not call no longer block the ballot */
	uint32_t best;              /* the highest ballot at which some reporter has accepted ... */
	struct tt_membership *best_view; /* ... this; NULL: what this rank has */
	struct tt_timer retry;      /* after a refusal */
};

/* ---- membership views ---- */

static struct tt_membership *new_view(int seats, int newcomers)
{
	struct tt_membership *r = calloc(1, sizeof *r + (size_t)newcomers * sizeof *r->of + tt_bits_size(seats));

	if (r)
		r->stays = (uint8_t *)(r->of + newcomers);
	return r;
}

static void put_view(struct tt_pack *p, const struct tt_membership *r, int seats)
{
	tt_put_bytes(p, r->stays, tt_bits_size(seats));
	tt_put32(p, r->size);
	tt_put16(p, (uint16_t)r->count);
	for (int i = 0; i < r->count; i++) {
		tt_put32(p, r->of[i].rank);
		tt_put32(p, r->of[i].epoch);
		tt_put16(p, r->of[i].slot);
	}
}

static bool has_place(const struct tt_membership *r, const struct tutti *g, uint32_t rank)
{
	int seat = g->seat_of[rank];

	for (int i = 0; i < r->count; i++)
		if (r->of[i].rank == rank)
			return true;
	return seat >= 0 && tt_bits_has(r->stays, seat);
}

static struct tt_membership *get_view(struct tt_pack *p, const struct tutti *g)
{
	const uint8_t *stays = tt_pack_take(p, tt_bits_size(g->n));
	uint32_t size = tt_get32(p);
	int count = tt_get16(p);
	struct tt_membership *r;

	p->bad |= size > (uint32_t)tt_members(g->job)->capacity;
	p->bad |= count > NEWCOMERS_MAX || tt_pack_left(p) < (size_t)count * SEAT;
	r = p->bad ? NULL : new_view(g->n, count);
	if (!r)
		return NULL;
	memcpy(r->stays, stays, tt_bits_size(g->n));
	r->size = size;
	for (r->count = 0; r->count < count; r->count++) {
		struct tt_newcomer *c = &r->of[r->count];
		c->rank = tt_get32(p);
		c->epoch = tt_get32(p);
		c->slot = tt_get16(p);
		p->bad |= c->rank >= (uint32_t)tt_members(g->job)->capacity || c->slot >= TT_GROUPS ||
		          has_place(r, g, c->rank);
	}
	if (!p->bad)
		return r;
	free(r);
	return NULL;
}

/* ---- messages ---- */

static struct tt_agreement *agreement_of(struct tutti *g)
{
	struct tt_agreement *a = g->agreement;

	if (a)
		return a;
	a = calloc(1, sizeof *a + 2 * tt_bits_size(g->n));
	if (!a)
		return NULL;
	a->group = g;
	a->asker = a->told = -1;
	a->heard = (uint8_t *)(a + 1);
	a->skipped = a->heard + tt_bits_size(g->n);
	return g->agreement = a;
}

void tt_agree_free(struct tutti *g)
{
	struct tt_agreement *a = g->agreement;

	if (!a)
		return;
	tt_timer_stop(&a->retry);
	free(a->view);
	free(a->best_view);
	free(a);
	g->agreement = NULL;
}

static struct tt_pack begin(uint8_t *bytes, size_t room, enum kind kind, unsigned slot, uint32_t uid, uint32_t ballot)
{
	struct tt_pack p = tt_pack(bytes, room);

	tt_put8(&p, TT_AGREE);
	tt_put8(&p, (uint8_t)kind);
	tt_put16(&p, (uint16_t)slot);
	tt_put32(&p, uid);
	tt_put32(&p, ballot);
	return p;
}

static void say(struct tt_agreement *a, int to, enum kind kind, uint32_t ballot, const struct tt_membership *r)
{
	const struct tutti *g = a->group;
	size_t room = HEAD + 9 + (r ? tt_bits_size(g->n) + 6 + (size_t)r->count * SEAT : 0);
	uint8_t *bytes = malloc(room);

	if (!bytes)
		return; /* as if the message were lost: the call runs out of time */
	struct tt_pack p = begin(bytes, room, kind, g->seats[to].slot, g->uid, ballot);
	if (kind == REPORT) {
		tt_put8(&p, a->grow);
		tt_put32(&p, (uint32_t)g->job->size);
		tt_put32(&p, a->accepted);
	}
	if (r)
		put_view(&p, r, g->n);
	tt_send(tt_group_member(g, to), bytes, (size_t)(p.at - bytes), NULL, 0);
	free(bytes);
}

/* To one that is in the call and does not know that it is over. It may have no seat in the heir: no slot is named. */
static void say_decided(const struct tutti *heir, struct tt_member *to)
{
	size_t room = HEAD + tt_bits_size(heir->origin.n) + 6 + (size_t)heir->origin.view->count * SEAT;
	uint8_t *bytes = malloc(room);

	if (!bytes)
		return;
	struct tt_pack p = begin(bytes, room, DECIDE, 0, heir->origin.uid, 0);
	put_view(&p, heir->origin.view, heir->origin.n);
	tt_send(to, bytes, (size_t)(p.at - bytes), NULL, 0);
	free(bytes);
}

/* Sends a newcomer the new group, in pieces: it does not know the old one. */
static void welcome(const struct tutti *heir, struct tt_member *to)
{
	const struct tt_seat *seat = tt_group_find(heir, to);
	uint8_t bytes[PIECE];

	for (int first = 0, n; seat && first < heir->n; first += n) {
		struct tt_pack p = begin(bytes, sizeof bytes, WELCOME, seat->slot, heir->uid, (uint32_t)heir->n);
		n = (int)tt_min((size_t)(heir->n - first), (PIECE - HEAD - 12) / SEAT);
		tt_put32(&p, (uint32_t)heir->job->size);
		tt_put32(&p, (uint32_t)first);
		tt_put32(&p, (uint32_t)n);
		for (int i = first; i < first + n; i++) {
			tt_put32(&p, (uint32_t)heir->seats[i].rank);
			tt_put32(&p, heir->seats[i].epoch);
			tt_put16(&p, heir->seats[i].slot);
		}
		tt_send(to, bytes, (size_t)(p.at - bytes), NULL, 0);
	}
}

/* ---- the members' side ---- */

static void report(struct tt_agreement *a, int to)
{
	say(a, to, REPORT, a->promised, a->accepted ? a->view : NULL);
}

static void keep_view(struct tt_membership **at, struct tt_membership *r)
{
	if (*at != r)
		free(*at);
	*at = r;
}

static void take_collect(struct tt_agreement *a, int from, uint32_t ballot)
{
	if (ballot < a->promised) {
		say(a, from, REFUSE, a->promised, NULL);
		return;
	}
	a->promised = ballot;
	a->ballot = 0; /* any ballot of this rank is beaten */
	a->asker = from;
	a->asked = tt_now();
	if (a->calling)
		report(a, from);
}

/* A view says which numbers are given away. After its report this rank may have consented to more. It refuses, and the
 * next ballot hears of them. A rank that has accepted a view consents no more. */
static bool lacks_numbers(const struct tt_agreement *a, const struct tt_membership *r)
{
	return r->size < (uint32_t)a->group->job->size && a->group->lineage;
}

static void take_propose(struct tt_agreement *a, int from, uint32_t ballot, struct tt_membership *r)
{
	if (ballot >= a->promised && lacks_numbers(a, r))
		a->promised = ballot + 1;
	if (ballot < a->promised) {
		say(a, from, REFUSE, a->promised, NULL);
		free(r);
		return;
	}
	a->promised = a->accepted = ballot;
	a->ballot = 0;
	keep_view(&a->view, r);
	say(a, from, ACCEPT, ballot, NULL);
}

static uint32_t name_heir(const struct tutti *old, const struct tt_membership *r)
{
	uint8_t bytes[HEAD];
	struct tt_pack p = tt_pack(bytes, sizeof bytes);
	uint32_t h;

	tt_put32(&p, old->uid);
	h = tt_hash(tt_hash(TT_HASH, bytes, 4), r->stays, tt_bits_size(old->n));
	for (int i = 0; i < r->count; i++) {
		p = tt_pack(bytes, sizeof bytes);
		tt_put32(&p, r->of[i].rank);
		tt_put32(&p, r->of[i].epoch);
		h = tt_hash(h, bytes, 8);
	}
	return h ? h : 1;
}

/* The news of it may not have come yet. */
static void know_newcomer(struct tt_job *job, uint32_t rank, uint32_t epoch)
{
	struct tt_member *m = tt_member(job, rank);

	tt_late_join_grow(job, (int)rank + 1);
	if (rank == (uint32_t)job->rank)
		return;
	if (tt_is_new_life(m, epoch))
		tt_member_reborn(m, epoch);
	else
		tt_member_epoch(m, epoch);
}

static void seat_all(struct tutti *heir, const struct tutti *old, const struct tt_membership *r)
{
	int n = 0;

	for (int i = 0; i < old->n; i++)
		if (tt_bits_has(r->stays, i)) {
			tt_group_seat(heir, n, old->seats[i].rank, old->seats[i].epoch, old->seats[i].slot);
			if (old->seats[i].resigned && !heir->seats[n].out)
				tt_group_resign(heir, n);
			n++;
		}
	for (int i = 0; i < r->count; i++) {
		know_newcomer(heir->job, r->of[i].rank, r->of[i].epoch);
		tt_group_seat(heir, n++, (int)r->of[i].rank, r->of[i].epoch, r->of[i].slot);
		tt_member(heir->job, r->of[i].rank)->outside = false;
	}
}

static int count_view(const struct tt_membership *r, int seats)
{
	int n = r->count;

	for (int i = 0; i < seats; i++)
		n += tt_bits_has(r->stays, i);
	return n;
}

/* The new group takes the old one's slots over, so that no rank has to tell its own again. It exists at once, since
 * others may already send in it; it carries the view for members that have not heard of it. */
static void found_heir(struct tt_agreement *a, struct tt_membership *r)
{
	struct tutti *old = a->group, *heir;

	a->err = tt_group_heir(old, count_view(r, old->n), &heir);
	if (a->err) {
		tt_group_revoke(old, 0);
		free(r);
		return;
	}
	heir->lineage = old->lineage;
	heir->parent = old->uid;
	heir->origin.uid = old->uid;
	heir->origin.n = old->n;
	heir->origin.view = r;
	seat_all(heir, old, r);
	heir->uid = name_heir(old, r);
	tt_group_begun(heir);
	for (int i = 0; heir->me == 0 && i < r->count; i++) /* the other ranks do so when a newcomer asks */
		welcome(heir, tt_member(heir->job, r->of[i].rank));
	a->heir = heir;
}

static void decide(struct tt_agreement *a, struct tt_membership *r)
{
	if (a->view != r)
		free(a->view);
	a->view = NULL;
	a->decided = true;
	a->ballot = 0;
	tt_late_join_grow(a->group->job, (int)r->size);
	tt_timer_stop(&a->retry);
	a->group->job->engine.news = true;
	if (tt_bits_has(r->stays, a->group->me)) {
		found_heir(a, r);
		return;
	}
	a->err = -ECONNRESET;
	free(r);
}

/* ---- the coordinator's side ---- */

static bool is_out(const struct tt_agreement *a, int i)
{
	return a->group->seats[i].out || tt_bits_has(a->skipped, i);
}

static int first_left(const struct tutti *g)
{
	const struct tt_agreement *a = g->agreement;
	int i = 0;

	while (g->seats[i].out || (a && tt_bits_has(a->skipped, i))) /* this rank's own seat never is */
		i++;
	return i;
}

/* A rank that has left in order does not count, unless others may count on its vote. */
static bool has_left(const struct tt_seat *s) { return s->out && s->err == -ENOTCONN && !s->voted; }

/* More than half of the group, or half of it with its first rank. */
static bool is_enough(const struct tutti *g, const uint8_t *heard) /* NULL: all that are not out */
{
	int all = 0, here = 0, first = -1;

	for (int i = 0; i < g->n; i++) {
		if (has_left(&g->seats[i]))
			continue;
		bool is_here = heard ? tt_bits_has(heard, i) : !g->seats[i].out;
		first = first < 0 ? is_here : first;
		here += is_here;
		all++;
	}
	return tt_members(g->job)->minority || 2 * here > all || (2 * here == all && first > 0);
}

static bool all_heard(const struct tt_agreement *a)
{
	for (int i = 0; i < a->group->n; i++)
		if (!is_out(a, i) && !tt_bits_has(a->heard, i) && (!a->proposing || tt_bits_has(a->view->stays, i)))
			return false;
	return is_enough(a->group, a->heard);
}

static bool is_noted(const struct tt_job *job, const struct tt_member *m)
{
	const struct tt_members *all = tt_members(job);

	for (int i = 0; i < all->newcomers; i++)
		if (all->newcomer[i].rank == (uint32_t)m->rank && all->newcomer[i].epoch == m->epoch)
			return true;
	return false;
}

static bool is_waiting(const struct tutti *g, const struct tt_newcomer *c)
{
	const struct tt_member *m = tt_member(g->job, c->rank);

	return m->state < TT_LEFT && m->epoch == c->epoch && !tt_group_find(g, m);
}

/* Some rank has joined the job and has not called yet. */
static bool somebody_is_due(const struct tt_agreement *a)
{
	const struct tt_job *job = a->group->job;

	if (!a->any_grow || !a->group->lineage || a->impatient)
		return false;
	for (int i = 0; i < job->size; i++) {
		const struct tt_member *m = tt_member(job, i);
		if (m->outside && m->state < TT_LEFT && !tt_group_find(a->group, m) && !is_noted(job, m))
			return true;
	}
	return false;
}

/* The ranks that have reported, and the newcomers that wait if some rank wants them. */
static struct tt_membership *make_view(const struct tt_agreement *a)
{
	const struct tutti *g = a->group;
	const struct tt_newcomer *waiting = tt_members(g->job)->newcomer;
	int all = a->any_grow && g->lineage ? tt_members(g->job)->newcomers : 0, most = (int)tt_min(all, NEWCOMERS_MAX);
	struct tt_membership *r = new_view(g->n, most);

	if (r)
		r->size = (uint32_t)g->job->size;
	for (int i = 0; r && i < g->n; i++)
		if (tt_bits_has(a->heard, i) && !is_out(a, i))
			tt_bits_set(r->stays, i);
	for (int i = 0; r && i < all && r->count < most; i++)
		if (is_waiting(g, &waiting[i]))
			r->of[r->count++] = waiting[i];
	return r;
}

/* whom: a bit for each seat; NULL: all that are left. */
static void tell(struct tt_agreement *a, enum kind kind, const uint8_t *whom, const struct tt_membership *r)
{
	for (int i = 0; i < a->group->n; i++)
		if (i != a->group->me && !is_out(a, i) && (!whom || tt_bits_has(whom, i)))
			say(a, i, kind, a->ballot, r);
}

static void hear_only_me(struct tt_agreement *a)
{
	memset(a->heard, 0, tt_bits_size(a->group->n));
	tt_bits_set(a->heard, a->group->me);
}

static void advance(struct tt_agreement *a)
{
	struct tt_membership *r;

	if (!a->ballot || !all_heard(a) || (!a->proposing && somebody_is_due(a)))
		return;
	if (a->proposing) {
		tell(a, DECIDE, NULL, a->view); /* also to whom the view leaves out, and has called since */
		decide(a, a->view);
		return;
	}
	r = a->best_view ? a->best_view : a->best ? a->view : make_view(a);
	a->best_view = NULL;
	if (!r)
		return; /* no memory: the call runs out of time */
	r->size = tt_max(r->size, (uint32_t)a->group->job->size); /* no part of what is agreed on: it may grow */
	keep_view(&a->view, r);
	a->accepted = a->ballot;
	a->proposing = true;
	hear_only_me(a);
	tell(a, PROPOSE, r->stays, r);
	advance(a);
}

static void begin_ballot(struct tt_agreement *a)
{
	uint32_t n = (uint32_t)a->group->n;

	if (a->promised > BALLOT_MAX - 2 * n)
		return; /* the call runs out of time */
	a->ballot = a->promised = (a->promised / n + 1) * n + (uint32_t)a->group->me;
	a->proposing = false;
	a->any_grow = a->grow;
	a->best = a->accepted;
	keep_view(&a->best_view, NULL);
	hear_only_me(a);
	tell(a, COLLECT, NULL, NULL);
	advance(a);
}

/* Goes on as coordinator if this rank is the first that is left; else tells that rank that this one is in the call. */
static void steer(struct tt_agreement *a)
{
	int first = first_left(a->group);

	if (!a->calling || a->decided)
		return;
	if (first == a->group->me && !a->ballot)
		begin_ballot(a);
	else if (first == a->group->me)
		advance(a);
	else if (a->told != first)
		say(a, a->told = first, CALL, 0, NULL);
}

static void try_again(struct tt_timer *t) { steer(tt_container_of(t, struct tt_agreement, retry)); }

static void give_up_ballot(struct tt_agreement *a)
{
	a->ballot = 0;
	tt_timer_start(a->group->job, &a->retry, tt_now() + RETRY_MS * TT_MS, try_again);
}

static void take_refusal(struct tt_agreement *a, uint32_t promised)
{
	if (promised <= a->promised)
		return;
	a->promised = promised;
	give_up_ballot(a);
}

/* A COLLECT may have reached it before it was in the call. */
static void take_call(struct tt_agreement *a, int from)
{
	if (a->ballot && !a->proposing && !tt_bits_has(a->heard, from))
		say(a, from, COLLECT, a->ballot, NULL);
}

static void take_report(struct tt_agreement *a, int from, uint32_t ballot, struct tt_pack *p)
{
	bool grow = tt_get8(p);
	uint32_t size = tt_get32(p), accepted = tt_get32(p);
	struct tt_membership *r = accepted ? get_view(p, a->group) : NULL;

	p->bad |= accepted > ballot || size > (uint32_t)tt_members(a->group->job)->capacity;
	if (p->bad || !a->ballot || ballot != a->ballot || a->proposing) {
		free(r);
		return;
	}
	if (accepted > a->best && !r) { /* no memory for a view that may be decided: no other may be proposed */
		give_up_ballot(a);
		return;
	}
	tt_bits_set(a->heard, from);
	tt_late_join_grow(a->group->job, (int)size);
	a->any_grow |= grow;
	if (accepted > a->best) {
		a->best = accepted;
		keep_view(&a->best_view, r);
	} else {
		free(r);
	}
	advance(a);
}

static void take_accept(struct tt_agreement *a, int from, uint32_t ballot)
{
	if (!a->ballot || ballot != a->ballot || !a->proposing)
		return;
	tt_bits_set(a->heard, from);
	advance(a);
}

/* ---- newcomers ---- */

static void note_newcomer(struct tt_job *job, const struct tt_newcomer *c)
{
	struct tt_members *all = tt_members(job);
	struct tt_newcomer *more;

	for (int i = 0; i < all->newcomers; i++)
		if (all->newcomer[i].rank == c->rank) { /* an earlier life of it, or the same again */
			all->newcomer[i] = *c;
			return;
		}
	more = realloc(all->newcomer, (size_t)(all->newcomers + 1) * sizeof *more);
	if (!more)
		return; /* it asks again */
	more[all->newcomers++] = *c;
	all->newcomer = more;
}

static void steer_all(struct tt_job *job)
{
	tt_each_group(g, job)
		if (g->agreement)
			steer(g->agreement);
}

static void say_arrival(struct tt_member *to, const struct tt_newcomer *c)
{
	uint8_t bytes[HEAD + 6];
	struct tt_pack p = begin(bytes, sizeof bytes, ARRIVE, 0, 0, c->epoch);

	tt_put16(&p, c->slot);
	tt_put32(&p, c->rank);
	tt_send(to, bytes, sizeof bytes, NULL, 0);
}

/* To the coordinators. If one dies, the newcomer itself tells another rank. */
static void pass_arrival(struct tt_job *job, const struct tt_newcomer *c)
{
	tt_each_group(g, job)
		if (g->lineage && !g->retired && first_left(g) != g->me)
			say_arrival(tt_group_member(g, first_left(g)), c);
}

/* A newcomer wants to be taken in. It may be in a group already, and not have heard of it. */
static void take_arrival(struct tt_member *from, uint32_t epoch, struct tt_pack *p)
{
	struct tt_job *job = from->job;
	struct tt_newcomer c = { .epoch = epoch };

	c.slot = tt_get16(p);
	c.rank = tt_get32(p);
	p->bad |= c.slot >= TT_GROUPS || c.rank >= (uint32_t)tt_members(job)->capacity || !epoch;
	if (p->bad || c.rank == (uint32_t)job->rank)
		return;
	struct tt_member *m = tt_member(job, c.rank);
	if (m != from)
		know_newcomer(job, c.rank, epoch);
	if (m->state >= TT_LEFT || m->epoch != epoch)
		return;
	tt_each_group(g, job) {
		if (g->lineage && g->origin.view && tt_group_find(g, m) && !tt_group_find(g, m)->out) {
			welcome(g, m);
			return;
		}
	}
	note_newcomer(job, &c);
	m->outside = true;
	if (m == from)
		pass_arrival(job, &c);
	steer_all(job);
}

/* The seat is free, the rank has no other, and if it is this rank the epoch is that of this life. */
static bool may_sit(const struct tutti *g, int i, uint32_t rank, uint32_t epoch)
{
	bool taken = g->seat_of[g->seats[i].rank] == i && g->seats[i].rank != (int)rank;

	return !taken && (g->seat_of[rank] < 0 || g->seat_of[rank] == i) &&
	       (rank != (uint32_t)g->job->rank || epoch == g->job->epoch);
}

/* A piece of the group that this rank is in from now on. It may come twice, from different ranks. */
static void take_welcome(struct tt_job *job, uint32_t uid, uint32_t n, struct tt_pack *p)
{
	struct tt_members *all = tt_members(job);
	struct tutti *g = all->arriving;
	uint32_t size = tt_get32(p), first = tt_get32(p), count = tt_get32(p);

	p->bad |= size > (uint32_t)all->capacity;
	p->bad |= n < 1 || n > (uint32_t)all->capacity || !uid || first > n || count > n - first;
	p->bad |= tt_pack_left(p) < (size_t)count * SEAT;
	if (p->bad || !g || all->arrived)
		return;
	tt_late_join_grow(job, (int)size);
	if (g->seats && all->welcome_uid != uid) { /* the earlier group ended before this rank was in it */
		tt_group_clear_seats(g);
		all->welcomed = 0;
	}
	all->welcome_uid = uid;
	if (!g->seats && tt_group_make_seats(g, (int)n))
		return;
	if (g->n != (int)n)
		return;
	for (uint32_t i = first; i < first + count; i++) {
		uint32_t rank = tt_get32(p), epoch = tt_get32(p), slot = tt_get16(p);
		p->bad |= rank >= (uint32_t)all->capacity || slot >= TT_GROUPS || !may_sit(g, (int)i, rank, epoch);
		if (p->bad)
			return;
		if (g->seat_of[rank] >= 0)
			continue;
		know_newcomer(job, rank, epoch);
		all->welcomed++;
		tt_member(job, rank)->outside = false;
		tt_group_seat(g, (int)i, (int)rank, epoch, (uint16_t)slot);
	}
	if (all->welcomed < (int)n || g->seat_of[job->rank] < 0)
		return;
	g->uid = uid;
	g->lineage = true;
	tt_group_begun(g);
	all->arrived = true;
	job->engine.news = true;
}

/* ---- messages ---- */

static bool is_ballot_of(const struct tt_agreement *a, uint32_t ballot, int maker)
{
	uint32_t n = (uint32_t)a->group->n;

	return ballot >= n && ballot <= BALLOT_MAX && ballot % n == (uint32_t)maker;
}

static void dispatch(struct tt_agreement *a, enum kind kind, int from, uint32_t ballot, struct tt_pack *p)
{
	struct tt_membership *r;

	a->skipped[from / 8] &= (uint8_t)~(1 << from % 8); /* it calls after all */
	p->bad |= (kind == COLLECT || kind == PROPOSE) && !is_ballot_of(a, ballot, from);
	p->bad |= kind == REFUSE && ballot > BALLOT_MAX;
	if (p->bad)
		return;
	r = kind == PROPOSE || kind == DECIDE ? get_view(p, a->group) : NULL;
	if ((kind == PROPOSE || kind == DECIDE) && !r)
		return;
	switch (kind) {
	case CALL: take_call(a, from); break;
	case COLLECT: take_collect(a, from, ballot); break;
	case REPORT: take_report(a, from, ballot, p); break;
	case REFUSE: take_refusal(a, ballot); break;
	case PROPOSE: take_propose(a, from, ballot, r); break;
	case ACCEPT: take_accept(a, from, ballot); break;
	case DECIDE: decide(a, r); break;
	default: p->bad = true;
	}
}

void tt_agree_message(struct tt_member *from, struct tt_pack *p)
{
	struct tt_job *job = from->job;
	enum kind kind = tt_get8(p);
	unsigned slot = tt_get16(p);
	uint32_t uid = tt_get32(p), ballot = tt_get32(p);
	struct tutti *g = slot < TT_GROUPS ? tt_members(job)->group_at[slot] : NULL;

	if (p->bad || tt_members(job)->returned) /* what its earlier life has promised, this one does not know */
		return;
	if (kind == DECIDE)
		g = tt_group_named(job, uid);
	if (kind == ARRIVE) {
		take_arrival(from, ballot, p);
	} else if (kind == WELCOME) {
		take_welcome(job, uid, ballot, p);
	} else if (g && g->origin.view && g->origin.uid == uid) {
		if (kind != DECIDE) /* the sender does not know */
			say_decided(g, from);
	} else if (g && g->uid && g->uid == uid) {
		const struct tt_seat *s = tt_group_find(g, from);
		struct tt_agreement *a = s && !s->out ? agreement_of(g) : NULL;
		if (a && !a->decided)
			dispatch(a, kind, (int)(s - g->seats), ballot, p);
	}
}

bool tt_agree_voted(const struct tutti *g) { return g->retired || (g->agreement && g->agreement->accepted); }

bool tt_agree_is_over(const struct tutti *g) { return g->agreement && g->agreement->decided; }
bool tt_agree_is_enough(const struct tutti *g, const uint8_t *seats) { return is_enough(g, seats); }

void tt_agree_member_down(struct tt_member *m)
{
	steer_all(m->job);
	tt_sponsor_member_down(m);
	m->job->engine.news = true;
}

/* ---- the call ---- */

static bool is_settled(void *arg)
{
	const struct tt_agreement *a = arg;

	return a->decided || !is_enough(a->group, NULL);
}

/* Goes on without the ranks that the call waits for. They live: who calls later hears that the others have gone on. */
static void skip_late(struct tt_agreement *a)
{
	struct tutti *g = a->group;
	int first = first_left(g);

	a->impatient = true;
	for (int i = 0; i < g->n; i++) {
		bool asked = !a->proposing || tt_bits_has(a->view->stays, i);
		bool late = first == g->me ? asked && !tt_bits_has(a->heard, i) : i == first;
		if (!late || i == g->me || is_out(a, i))
			continue;
		tt_log(TT_WARN, "%s is left out of the group that comes: it lives, and has not called "
		       "tutti_group_shrink in time", tt_member_label(tt_group_member(g, i)).text);
		tt_bits_set(a->skipped, i);
	}
	steer(a);
}

static bool lacks_files(const struct tt_agreement *a, uint64_t since)
{
	for (int i = 0; i < a->group->n; i++)
		if (!is_out(a, i) && tt_group_member(a->group, i)->unreached >= since)
			return true;
	return false;
}

/* Also where operations wait for ever. */
static uint64_t patience_of(const struct tutti *g)
{
	uint64_t patience = tt_group_timeout(g);

	return patience < TT_FOREVER ? patience : LONGEST_MS * TT_MS;
}

static int wait_for_answer(struct tt_agreement *a)
{
	struct tt_job *job = a->group->job;
	struct tt_users *users = &a->group->handle.users;
	uint64_t begun = tt_now(), usual = patience_of(a->group), longer = usual + usual / 2;
	uint64_t patience = first_left(a->group) == a->group->me ? usual : longer;

	for (int round = 0, err; (err = tt_wait_for(job, users, is_settled, a, tt_now() + patience)); round++) {
		if (err != -ETIMEDOUT)
			return err;
		uint64_t due = a->asked + longer, now = tt_now();
		if (first_left(a->group) != a->group->me && now < due) { /* the coordinator called later */
			patience = due - now;
			round--;
			continue;
		}
		if (round == 4)
			return tt_fail(-ETIMEDOUT,
			               "the ranks that are left have not agreed on a group in time: call again");
		if (lacks_files(a, begun))
			return tt_fail(-EMFILE, "this process has no file left for a connection to the others: "
			               "raise its limit with ulimit -n");
		skip_late(a);
		patience = usual / 4;
	}
	if (a->decided && a->err == -ECONNRESET)
		return tt_fail(a->err, "the other ranks have gone on without this one");
	if (a->decided)
		return a->err ? tt_fail(a->err, "no memory for the group that is left") : 0;
	return tt_fail(-EHOSTDOWN, "%d of the group's %d ranks can be reached, which is no majority: the others may go "
	               "on without them. TUTTI_MINORITY=yes lets these go on",
	               a->group->n - a->group->outs, a->group->n);
}

static int take_part(struct tutti *g, bool grow, tutti **out)
{
	struct tt_agreement *a;
	int err;

	if (g->retired && !(g->agreement && g->agreement->heir))
		return tt_fail(-ESTALE, "this group has been shrunk or grown already: "
		               "go on with the group that came of it");
	if (!(a = agreement_of(g)))
		return tt_fail(-ENOMEM, "no memory to agree on a group of %d ranks", g->n);
	a->calling = true;
	a->grow = grow;
	memset(a->skipped, 0, tt_bits_size(g->n));
	if (a->asker >= 0 && !a->ballot)
		report(a, a->asker);
	steer(a);
	err = wait_for_answer(a);
	a->calling = false;
	if (err)
		return err;
	tt_group_hold(*out = a->heir);
	a->heir = NULL;
	return 0;
}

static bool has_arrived(void *arg) { return tt_members(arg)->arrived; }

/* Tells some ranks that this one waits, the lowest first: the coordinator is one of them, or hears it from them. */
static void tell_some(struct tt_job *job)
{
	struct tt_members *all = tt_members(job);
	struct tt_newcomer me = { .rank = (uint32_t)job->rank, .epoch = job->epoch, .slot = all->arriving->slot };

	for (int i = 0, told = 0; i < job->size && told < TOLD; i++) {
		struct tt_member *m = tt_member(job, all->call_from++ % (unsigned)job->size);
		if (m->rank == job->rank || !*m->addr || m->state >= TT_LEFT)
			continue;
		say_arrival(m, &me);
		told++;
	}
}

static int arrive(struct tt_job *job, tutti **out)
{
	struct tt_members *all = tt_members(job);
	uint64_t patience = patience_of(all->all), end = tt_now() + patience;
	int err;

	if (all->arrived && !all->arriving)
		return tt_fail(-ESTALE, "this rank has been taken into a group: go on with that one");
	err = all->arriving ? 0 : tt_group_new(job, 0, &all->arriving);
	while (!err && !all->arrived && tt_now() < end) { /* again, since the ranks that knew it may have died */
		tell_some(job);
		err = tt_wait_for(job, &all->all->handle.users, has_arrived, job,
		                  tt_min(end, tt_now() + tt_time(job, TT_TIME_HEARTBEAT)));
		err = err == -ETIMEDOUT ? 0 : err;
	}
	if (err)
		return err;
	if (!all->arrived)
		return tt_fail(-ETIMEDOUT, "the job's ranks did not call tutti_group_grow within %llu ms: "
		               "this rank stays outside, and may call again", (unsigned long long)(patience / TT_MS));
	tt_group_hold(*out = all->arriving);
	all->arriving = NULL;
	return 0;
}

static int agree(struct tutti *g, bool grow, tutti **out)
{
	struct tt_job *job = tt_job_of(g);
	int err = tt_group_is_mine(g);

	if (err || (err = tt_given(out, grow ? "tutti_group_grow: grown" : "tutti_group_shrink: left")))
		return err;
	struct tt_members *all = tt_members(job);
	if ((err = tt_begin(job)))
		return err;
	err = grow && all->late && g == all->all ? arrive(job, out) : take_part(g, grow, out);
	tt_unlock(job);
	return err;
}

int tutti_group_shrink(tutti *g, tutti **left) { return agree(g, false, left); }
int tutti_group_grow(tutti *g, tutti **grown) { return agree(g, true, grown); }
