/* segment.c - memory that the ranks of a group on one host share: a slot for each rank, which the others map and read
 *
 * A rank writes only to its own slot. For each call it takes one of two headers there, in turn. The header's flag,
 * which is set last, names the call and the rank's step in it. Two headers are enough: a rank that writes the header
 * of call k + 2 has seen all headers of k + 1, and the ranks that wrote those were done with k. The same holds for
 * the two halves. But a rank that gave k + 1 up may not have seen these headers. Slower ranks may still need its header
 * and half of k, which it has completed. So it begins k + 2 when all ranks say `done` of k.
 *
 *      slot      [header: flag, call, where its vector is | header] [asleep] [done] [half of the buffer | half]
 *      flag      call << 32 | step: 0 nothing yet, 1 begun, 2 and up: the algorithm's steps, QUIT: given up
 *
 * Flags wake no rank. So a rank that is about to sleep says so in its slot and looks once more, and a rank that sets
 * its flag checks which others sleep and sends them a WAKE. Each has a full fence between writing its own word and
 * reading the other's, so at least one of the two sees the other.
 *
 * A group's first call that may use segments makes them, one on each host:
 *
 *      each to all   OFFER {able, key of its slot}         each maps all slots
 *      each to all   VOTE {could it?}                      the segment is open if all could
 *
 * A rank that knows the result answers OFFERs in later calls, from ranks where an earlier call had failed. It also
 * does so when that call is over here, since a call without a segment may not need all ranks at once.
 */
#include "collective/collective_private.h"
#include "engine/engine.h"
#include "member/member.h"
#include <stdlib.h>
#include <string.h>

/* ---- rank slots ---- */

/* Two builds may share a segment, so the layout is part of docs/wire.md. */
_Static_assert(offsetof(struct tt_rank_slot, asleep) == 256 && offsetof(struct tt_rank_slot, done) == 384 &&
               offsetof(struct tt_rank_slot, half) == 4096, "docs/wire.md");
_Static_assert(offsetof(struct tt_call_header, call) == 8 && offsetof(struct tt_call_header, half) == 32 &&
               offsetof(struct tt_call_header, agreed) == 36 && offsetof(struct tt_call_header, key) == 40 &&
               offsetof(struct tt_call_header, bytes) == 40 && offsetof(struct tt_call_header, at) == 104,
               "docs/wire.md");

static uint64_t flag_of(uint32_t call, uint32_t step) { return (uint64_t)call << 32 | step; }

/* Mostly all ranks have had as many turns as this one. */
static const struct tt_call_header *find_header(const struct tt_segment *b, int i, uint32_t call)
{
	const struct tt_rank_slot *p = b->peers[i].slot;

	for (unsigned k = 0; k < 2; k++) {
		const struct tt_call_header *h = &p->header[(b->turn + 1 + k) % 2];
		uint64_t flag = atomic_load_explicit(&h->flag, memory_order_acquire);
		if (flag >> 32 == call && (uint32_t)flag)
			return h;
	}
	return NULL;
}

/* A poll of the other header as well would take its line from a rank that is about to begin its next call. */
bool tt_segment_seems_at(const struct tt_segment *b, int i, uint32_t call, uint32_t step)
{
	const struct tt_call_header *h = &b->peers[i].slot->header[(b->turn + 1) % 2];

	return atomic_load_explicit(&h->flag, memory_order_relaxed) >= flag_of(call, step);
}

/* Has rank i begun a later call but not this one? Then this call failed there before it used the segment. */
static bool has_skipped(const struct tt_segment *b, int i, uint32_t call)
{
	const struct tt_rank_slot *p = b->peers[i].slot;

	for (int k = 0; k < 2; k++) {
		uint64_t flag = atomic_load_explicit(&p->header[k].flag, memory_order_acquire);
		if ((uint32_t)flag && tt_before(call, (uint32_t)(flag >> 32)))
			return !find_header(b, i, call); /* it may have appeared since, before the later one */
	}
	return false;
}

int tt_segment_reached(struct tt_segment *b, int i, uint32_t call, uint32_t step)
{
	struct tt_segment_peer *f = &b->peers[i];
	uint64_t flag;

	if (!f->header)
		f->header = find_header(b, i, call);
	if (!f->header)
		return has_skipped(b, i, call) ? -ECONNABORTED : 0;
	flag = atomic_load_explicit(&f->header->flag, memory_order_acquire);
	if (flag >> 32 != call || (uint32_t)flag == TT_STEP_QUIT)
		return -ECONNABORTED;
	return (uint32_t)flag >= step;
}

bool tt_segment_may_begin(const struct tt_segment *b)
{
	if (!b->complete_turn || b->turn + 1 - b->complete_turn != 2) /* the next header is not that call's */
		return true;
	for (int i = 0; i < b->n; i++) {
		const struct tt_rank_slot *s = b->peers[i].slot;
		if (i != b->me && s && !tt_before(b->complete, atomic_load_explicit(&s->done, memory_order_acquire)))
			return false;
	}
	return true;
}

struct tt_call_header *tt_segment_begin(struct tt_segment *b)
{
	struct tt_call_header *header = &b->peers[b->me].slot->header[b->turn++ % 2];

	/* Only ranks that have given up still look for the header's last call, and none has if the call since was
	 * completed. A store here would take the line twice from ranks that poll. */
	if (b->complete_turn + 1 != b->turn) {
		atomic_store_explicit(&header->flag, 0, memory_order_relaxed);
		atomic_thread_fence(memory_order_release);
	}
	for (int i = 0; i < b->n; i++)
		b->peers[i].header = NULL;
	b->peers[b->me].header = header;
	return header;
}

static void wake(struct tt_member *m)
{
	const uint8_t message = TT_WAKE;

	tt_send(m, &message, 1, NULL, 0);
}

void tt_segment_step(struct tt_segment *b, struct tt_call_header *header, uint32_t call, uint32_t step)
{
	atomic_store(&header->flag, flag_of(call, step)); /* a full fence */
	for (int i = 0; i < b->n; i++)
		if (i != b->me && b->peers[i].slot && atomic_load(&b->peers[i].slot->asleep)) /* after the store */
			wake(tt_segment_member(b, i));
}

void tt_segment_set_asleep(struct tt_segment *b, bool asleep)
{
	if (b->asleep == asleep)
		return;
	b->asleep = asleep;
	atomic_store_explicit(&b->peers[b->me].slot->asleep, asleep, memory_order_relaxed);
	if (asleep)
		atomic_thread_fence(memory_order_seq_cst); /* the flags are read after it, by loads that only acquire */
}

void tt_segment_done(struct tt_segment *b, uint32_t call)
{
	atomic_store_explicit(&b->peers[b->me].slot->done, call + 1, memory_order_release);
	b->last = call + 1;
}

void tt_segment_complete(struct tt_segment *b, uint32_t call)
{
	b->complete = call;
	b->complete_turn = b->turn;
	tt_segment_done(b, call);
}

/* ---- mapped vectors ---- */

static void end_stores(const struct tt_segment *b, int upto)
{
	for (int i = 0; i < upto; i++)
		if (i != b->me)
			b->peers[i].peer->net->transport->store_end(b->peers[i].peer);
}

int tt_segment_store_begin(const struct tt_segment *b)
{
	for (int i = 0; i < b->n; i++) {
		const struct tt_segment_peer *f = &b->peers[i];
		if (i == b->me || f->peer->net->transport->store_begin(f->peer, &f->key))
			continue;
		end_stores(b, i);
		return i;
	}
	return -1;
}

void tt_segment_store_end(const struct tt_segment *b) { end_stores(b, b->n); }

/* ---- memory ---- */

static void free_memory(struct tt_segment *b)
{
	tt_standing_drop_all(b);
	tt_offer_end(&b->own);
}

/* ---- making a segment ---- */

struct tt_member *tt_segment_member(const struct tt_segment *b, int i)
{
	return tt_group_member(b->group, b->seats[i]);
}

static struct tt_segment *new_segment(struct tutti *group)
{
	const struct tt_layout *l = &tt_coll_group(group)->layout;
	int n = tt_layout_ranks(l, l->here);
	struct tt_segment *b = calloc(1, sizeof *b + (size_t)n * sizeof b->peers[0]);

	if (!b)
		return NULL;
	b->n = n;
	b->group = group;
	b->seats = l->seats + l->start[l->here];
	while (b->seats[b->me] != group->me)
		b->me++;
	tt_list_init(&b->queue);
	tt_list_append(&tt_collectives(group->job)->segments, &b->link);
	return b;
}

/* Every rank needs every other's slot. */
static int connect_all(const struct tt_segment *b)
{
	int up = 1;

	for (int i = 0; i < b->n; i++) {
		int err = i == b->me ? 0 : tt_member_reach(tt_segment_member(b, i));
		if (err < 0)
			return err;
		up &= !err;
	}
	return up;
}

static bool offer(struct tt_coll *c, struct tt_segment *b, int to)
{
	struct tt_net *net = tt_member_net(tt_segment_member(b, to));
	uint8_t bytes[TT_OFFER_LEN];

	b->able &= !tt_offer_make(&b->own, c->job, net, sizeof(struct tt_rank_slot));
	tt_offer_write(&b->own, b->able, bytes);
	tt_coll_send(c, b->seats[to], TT_TAG_OFFER, bytes, sizeof bytes);
	return true;
}

static bool vote(struct tt_coll *c, struct tt_segment *b, int to)
{
	uint8_t yes = b->able;

	tt_coll_send(c, b->seats[to], TT_TAG_VOTE, &yes, 1);
	return true;
}

static bool take_offer(struct tt_coll *c, struct tt_segment *b, int i)
{
	struct tt_segment_peer *v = &b->peers[i];
	const void *bytes = v->offered ? NULL : tt_coll_take(c, b->seats[i], TT_TAG_OFFER, TT_OFFER_LEN);

	if (!bytes)
		return v->offered;
	struct tt_key key;

	v->peer = tt_segment_member(b, i)->link->peer;
	v->slot = tt_offer_map(v->peer, bytes, sizeof *v->slot, &key);
	b->able &= v->slot != NULL;
	return v->offered = true;
}

static bool take_vote(struct tt_coll *c, struct tt_segment *b, int i)
{
	struct tt_segment_peer *v = &b->peers[i];
	const uint8_t *yes = v->voted ? NULL : tt_coll_take(c, b->seats[i], TT_TAG_VOTE, 1);

	if (!yes)
		return v->voted;
	b->able &= *yes;
	return v->voted = true;
}

static bool with_all(struct tt_coll *c, struct tt_segment *b, bool (*do_it)(struct tt_coll *, struct tt_segment *, int))
{
	bool all = true;

	for (int i = 0; i < b->n; i++)
		all &= i == b->me || do_it(c, b, i);
	return all;
}

/* Forgets what came in an earlier call, which failed. */
static void begin_making(struct tt_segment *b, uint32_t call)
{
	b->made_in = call;
	b->making = true;
	b->offered = b->voted = false;
	b->able = true;
	for (int i = 0; i < b->n; i++)
		b->peers[i] = (struct tt_segment_peer){ 0 };
}

static void conclude(struct tt_segment *b)
{
	tt_coll_wake_soon(b->group->job);
	b->open = b->able;
	b->known = true;
	b->peers[b->me].slot = b->own.memory;
	tt_log(TT_INFO, "collectives: %d ranks on one host %s", b->n,
	       b->open ? "share memory" : "cannot share memory: not all could map what the others offered");
}

static int meet(struct tt_coll *c)
{
	struct tt_segment *b = tt_coll_group(c->group)->segment;
	int k = connect_all(b);

	if (k <= 0)
		return k;
	b->offered = b->offered || with_all(c, b, offer);
	if (!with_all(c, b, take_offer))
		return 0;
	b->voted = b->voted || with_all(c, b, vote);
	if (!with_all(c, b, take_vote))
		return 0;
	conclude(b);
	return 1;
}

void tt_segment_tell(struct tt_coll *c)
{
	struct tt_segment *b = tt_coll_group(c->group)->segment;

	if (!b || !b->known || tt_list_empty(&tt_collectives(c->job)->unexpected))
		return;
	for (int i = 0; i < b->n; i++) {
		if (!tt_coll_take(c, b->seats[i], TT_TAG_OFFER, TT_OFFER_LEN) ||
		    tt_segment_member(b, i)->state != TT_UP)
			continue;
		offer(c, b, i);
		vote(c, b, i);
	}
}

void tt_segment_answer(struct tutti *group, int seat, uint32_t number, const struct tt_coll_call *call)
{
	const struct tt_segment *b = tt_coll_group(group)->segment;
	uint8_t bytes[TT_OFFER_LEN], yes;

	if (!b || !b->known)
		return;
	yes = b->able;
	tt_offer_write(&b->own, b->able, bytes);
	tt_coll_answer(group, seat, number, call, TT_TAG_OFFER, bytes, sizeof bytes);
	tt_coll_answer(group, seat, number, call, TT_TAG_VOTE, &yes, 1);
}

static int needs_segment(struct tutti *group) /* -ENOMEM */
{
	const struct tt_layout *l = &tt_coll_group(group)->layout;
	int err = tt_layout_find(group);

	return err ? err : l->most <= TT_SEGMENT_RANKS && tt_layout_ranks(l, l->here) > 1;
}

/* A rank that left without failing this call has finished it without me, so there is no segment. */
static bool has_lost_peer(const struct tt_segment *b)
{
	for (int i = 0; b->group->outs && i < b->n; i++)
		if (b->group->seats[b->seats[i]].out)
			return true;
	return false;
}

int tt_segment_make(struct tt_coll *c)
{
	struct tt_segment *b = tt_coll_group(c->group)->segment;
	int k = b ? 1 : needs_segment(c->group);

	if (k <= 0)
		return k < 0 ? k : 1;
	if (!b && !(b = tt_coll_group(c->group)->segment = new_segment(c->group)))
		return tt_fail(-ENOMEM, "no memory for what %d ranks share", c->n);
	c->may_leave_messages = true;
	if (b->known)
		return 1;
	if (!b->making || b->made_in != c->seq)
		begin_making(b, c->seq);
	if (!has_lost_peer(b))
		return meet(c);
	b->able = false;
	conclude(b);
	return 1;
}

int tt_segment_decide(struct tt_coll *c, bool *uses_segment)
{
	struct tutti *g = c->group;
	int k;

	*uses_segment = false;
	if (c->undecided) {
		if ((k = tt_layout_find(g)) || !tt_coll_is_next(c))
			return k;
		if (tt_coll_group(g)->layout.hosts == 1 && (k = tt_segment_make(c)) <= 0)
			return k;
		*uses_segment = tt_segment_open(g);
	}
	c->undecided = false;
	return 1;
}

bool tt_segment_open(const struct tutti *group)
{
	const struct tt_coll_group *own = tt_coll_group(group);

	return own->layout.hosts == 1 && own->segment && own->segment->open;
}

/* ---- ends ---- */

/* The peer's slot is about to be unmapped. */
void tt_segment_lost(struct tt_job *job, const struct tt_peer *peer)
{
	tt_each_of(struct tt_segment, link, b, &tt_collectives(job)->segments) {
		for (int i = 0; i < b->n; i++) {
			if (b->peers[i].peer != peer)
				continue;
			b->peers[i] = (struct tt_segment_peer){ 0 };
			b->lost = b->group && b->open ? b->group->seats[b->seats[i]].rank + 1 : b->lost;
			b->making = false;
		}
	}
}

static void free_segment(struct tt_segment *b)
{
	tt_list_remove(&b->link);
	free_memory(b);
	free(b);
}

/* May others still read what this rank has put there in its last call? */
static bool is_read(const struct tt_segment *b)
{
	for (int i = 0; b->known && b->open && i < b->n; i++) {
		const struct tt_rank_slot *s = b->peers[i].slot;
		if (i != b->me && (!s || tt_before(atomic_load_explicit(&s->done, memory_order_acquire), b->last)))
			return true;
	}
	return false;
}

void tt_segment_close(struct tutti *group)
{
	if (!tt_coll_group(group)->segment)
		return;
	tt_coll_group(group)->segment->group = NULL;
	tt_coll_group(group)->segment = NULL;
	tt_segment_sweep(group->job, false);
}

void tt_segment_sweep(struct tt_job *job, bool all)
{
	tt_each_of(struct tt_segment, link, b, &tt_collectives(job)->segments)
		if (!b->group && (all || !is_read(b)))
			free_segment(b);
}
