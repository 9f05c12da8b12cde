/* hub.c - short all-reduces and reduces of many ranks on one host, through one segment, which rank 0 makes and hands
 * out
 *
 * A segment of a slot for each rank (segment.c) connects all ranks to all. Here every rank connects to rank 0 alone,
 * which combines:
 *
 *      rank i    its vector -> slot i of the hub                        the result <- hub
 *      rank 0                              0 + 1 + 2 ... -> the result
 *
 * Each rank writes its own slot, and rank 0 the result. A slot's flag names the call, and is set last, as is the number
 * of the result's call. One slot and one result are enough: a rank that begins call k + 1 has taken the result of k or
 * has given k up, and rank 0 replaces the result when all ranks have begun a later call. Rank 0 looks at the flags a
 * second time before it publishes a result: so no slot has changed while it was read.
 *
 * Before rank 0 sleeps, it says for which rank it waits. That rank alone wakes it. The others say in their slots that
 * they sleep, and the result wakes them.
 *
 * The hub is made by the first call that needs it:
 *
 *      each rank to 0    HUB {}              I am here
 *      0 to each rank    HUB {able, key}     the rank maps the hub
 *      each rank to 0    HUB_VOTE {could it?}
 *      0 to each rank    HUB_VOTE {could all?}       else calls go on without a hub
 *
 * Rank 0 answers a rank that comes later, because an earlier call has failed there.
 *
 * Order of additions: ((0 + 1) + 2) + ..., as in direct.c.
 */
#include "collective/collective_private.h"
#include "engine/engine.h"
#include "kernel/kernel.h"
#include "member/member.h"
#include <stdlib.h>
#include <string.h>

/* Two builds may share a hub, so the layout is part of docs/wire.md. */
_Static_assert(offsetof(struct tt_hub_memory, awaits) == 8 && offsetof(struct tt_hub_memory, result) == 128 &&
               offsetof(struct tt_hub_memory, slot) == 4224, "docs/wire.md");
_Static_assert(offsetof(struct tt_hub_slot, asleep) == 8 && offsetof(struct tt_hub_slot, call) == 16 &&
               offsetof(struct tt_hub_slot, vector) == 128 && sizeof(struct tt_hub_slot) == 4224, "docs/wire.md");

enum { ROOT, HERE = 1, TAKEN = 2 };

static struct tt_hub *hub_of(const struct tutti *g) { return tt_coll_group(g)->hub; }
static struct tt_member *root_of(const struct tt_hub *h) { return tt_group_member(h->group, ROOT); }
static size_t size_of(int n) { return sizeof(struct tt_hub_memory) + (size_t)n * sizeof(struct tt_hub_slot); }
static uint64_t flag_of(uint32_t call, uint32_t step) { return (uint64_t)call << 32 | step; }

static bool may_have_hub(const struct tutti *g)
{
	return tt_coll_group(g)->layout.hosts == 1 && g->n > TT_SEGMENT_FEW && g->n <= TT_SEGMENT_RANKS;
}

bool tt_hub_takes(const struct tutti *g, size_t bytes)
{
	const struct tt_hub *h = hub_of(g);

	return may_have_hub(g) && bytes <= TT_HUB_BYTES && !(h && h->known && !h->open);
}

bool tt_hub_open(const struct tutti *g, size_t bytes) { return hub_of(g) && hub_of(g)->open && tt_hub_takes(g, bytes); }

/* ---- making a hub ---- */

static struct tt_hub *new_hub(struct tutti *g)
{
	struct tt_hub *h = calloc(1, sizeof *h + (size_t)g->n * sizeof h->from[0]);

	if (!h)
		return NULL;
	h->n = g->n;
	h->me = g->me;
	h->group = g;
	tt_list_init(&h->queue);
	tt_list_append(&tt_collectives(g->job)->hubs, &h->link);
	return h;
}

static void send_offer(struct tt_coll *c, struct tt_hub *h, int to)
{
	struct tt_net *net = tt_member_net(tt_group_member(h->group, to));
	uint8_t bytes[TT_OFFER_LEN];

	h->able &= !tt_offer_make(&h->own, c->job, net, size_of(h->n));
	h->memory = h->own.memory;
	tt_offer_write(&h->own, h->able, bytes);
	tt_coll_send(c, to, TT_TAG_HUB, bytes, sizeof bytes);
}

static void send_vote(struct tt_coll *c, const struct tt_hub *h, int to)
{
	uint8_t yes = h->able;

	tt_coll_send(c, to, TT_TAG_HUB_VOTE, &yes, 1);
}

static void conclude(struct tt_hub *h, bool open)
{
	h->known = true;
	h->open = open;
	tt_coll_wake_soon(h->group->job);
	tt_log(TT_INFO, "collectives: %d ranks on one host %s", h->n,
	       open ? "share memory of their first one for what is short"
	            : "cannot share memory of their first one: not all could map it");
}

/* Who has come? Bit 0 of from[i]: rank i has got the offer, bit 1: it has voted. */
static void greet(struct tt_coll *c, struct tt_hub *h, int i)
{
	const uint8_t *yes;

	if (!(h->from[i] & 1) && tt_coll_take(c, i, TT_TAG_HUB, 0)) {
		send_offer(c, h, i);
		h->from[i] |= 1;
	}
	if (h->from[i] == 1 && (yes = tt_coll_take(c, i, TT_TAG_HUB_VOTE, 1))) {
		h->able &= *yes;
		h->from[i] |= 2;
	}
}

static int hand_out(struct tt_coll *c, struct tt_hub *h)
{
	bool all = true;

	for (int i = 0; i < h->n; i++) {
		if (i != h->me)
			greet(c, h, i);
		all &= i == h->me || h->from[i] == 3;
	}
	if (!all)
		return 0;
	conclude(h, h->able);
	for (int i = 0; i < h->n; i++)
		if (i != h->me)
			send_vote(c, h, i);
	return 1;
}

static void map_hub(struct tt_hub *h, const void *bytes)
{
	h->peer = root_of(h)->link->peer;
	h->memory = tt_offer_map(h->peer, bytes, size_of(h->n), &h->key);
	h->able = h->memory != NULL;
}

static int ask_for(struct tt_coll *c, struct tt_hub *h)
{
	const uint8_t *all;
	const void *bytes;
	int k = tt_member_reach(root_of(h));

	if (k)
		return k < 0 ? k : 0;
	if (!h->asked)
		tt_coll_send(c, ROOT, TT_TAG_HUB, NULL, 0);
	h->asked = true;
	if (!h->peer && (bytes = tt_coll_take(c, ROOT, TT_TAG_HUB, TT_OFFER_LEN))) {
		map_hub(h, bytes);
		send_vote(c, h, ROOT);
	}
	if (!h->peer || !(all = tt_coll_take(c, ROOT, TT_TAG_HUB_VOTE, 1)))
		return 0;
	if (*all && !h->memory)
		return tt_fail(-ENOMEM, "cannot map the memory of %s, which %d ranks share",
		               tt_member_label(root_of(h)).text, h->n);
	conclude(h, *all);
	return 1;
}

/* Forgets what came in an earlier call, which failed. */
static void begin_making(struct tt_hub *h, uint32_t call)
{
	h->made_in = call;
	h->making = h->able = true;
	h->asked = false;
	h->peer = NULL;
	memset(h->from, 0, (size_t)h->n * sizeof h->from[0]);
}

int tt_hub_make(struct tt_coll *c, size_t bytes)
{
	struct tutti *g = c->group;
	int err = tt_layout_find(g);

	if (err)
		return err;
	c->may_leave_messages |= may_have_hub(g); /* a rank that does not know the result asks in any call */
	if (!tt_hub_takes(g, bytes))
		return 1;
	if (!hub_of(g) && !(tt_coll_group(g)->hub = new_hub(g)))
		return tt_fail(-ENOMEM, "no memory for what %d ranks share", c->n);
	struct tt_hub *h = hub_of(g);
	if (h->known)
		return 1;
	if (!h->making || h->made_in != c->seq)
		begin_making(h, c->seq);
	return h->me == ROOT ? hand_out(c, h) : ask_for(c, h);
}

void tt_hub_tell(struct tt_coll *c)
{
	struct tt_hub *h = hub_of(c->group);

	if (!h || !h->known || h->me != ROOT || tt_list_empty(&tt_collectives(c->job)->unexpected))
		return;
	for (int i = 1; i < h->n; i++) {
		if (!tt_coll_take(c, i, TT_TAG_HUB, 0) || tt_group_member(h->group, i)->state != TT_UP)
			continue;
		send_offer(c, h, i);
		send_vote(c, h, i);
	}
}

void tt_hub_answer(struct tutti *group, int seat, uint32_t number, const struct tt_coll_call *call)
{
	const struct tt_hub *h = hub_of(group);
	uint8_t bytes[TT_OFFER_LEN], yes;

	if (!h || !h->known || h->me != ROOT)
		return;
	yes = h->able;
	tt_offer_write(&h->own, h->able, bytes);
	tt_coll_answer(group, seat, number, call, TT_TAG_HUB, bytes, sizeof bytes);
	tt_coll_answer(group, seat, number, call, TT_TAG_HUB_VOTE, &yes, 1);
}

/* ---- a call ---- */

static struct tt_hub_call *call_of(struct tt_coll *c) { return &((struct tt_allreduce *)c)->hub; }

/* Rank 0 may take its memory back while a rank stores there: it waits for end_store(). */
static bool begin_store(const struct tt_hub *h)
{
	return h->me == ROOT || (!h->lost && h->peer->net->transport->store_begin(h->peer, &h->key));
}

static void end_store(const struct tt_hub *h)
{
	if (h->me != ROOT)
		h->peer->net->transport->store_end(h->peer);
}

static void wake(const struct tt_hub *h, int i)
{
	const uint8_t message = TT_WAKE;

	tt_send(tt_group_member(h->group, i), &message, 1, NULL, 0);
}

/* Has rank i begun the call? 1: yes, 0: no, -ECONNABORTED: it has given it up. */
static int reached(const struct tt_hub *h, int i, uint32_t call)
{
	uint64_t flag = atomic_load_explicit(&h->memory->slot[i].flag, memory_order_acquire);

	if (!(uint32_t)flag || tt_before((uint32_t)(flag >> 32), call))
		return 0;
	return flag >> 32 == call && (uint32_t)flag != TT_STEP_QUIT ? 1 : -ECONNABORTED;
}

/* Rank 0: goes on to the first rank that has not begun the call. */
static int look_at_all(const struct tt_hub *h, struct tt_hub_call *v, uint32_t call)
{
	int k = 1;

	for (; v->seen < h->n; v->seen++)
		if ((k = reached(h, v->seen, call)) <= 0)
			break;
	return k;
}

/* Rank 0 publishes the result before it begins a later call: so the flag is read first. */
static int look_at_result(const struct tt_hub *h, uint32_t call)
{
	int k = reached(h, ROOT, call);
	bool is_there = atomic_load_explicit(&h->memory->result_of, memory_order_acquire) == flag_of(call, HERE);

	return is_there ? 1 : tt_min(k, 0);
}

static int look(struct tt_coll *c)
{
	const struct tt_hub *h = hub_of(c->group);

	return h->me == ROOT ? look_at_all(h, call_of(c), c->seq) : look_at_result(h, c->seq);
}

static bool is_next(const struct tt_hub *h, const struct tt_hub_call *v) { return h->queue.next == &v->turn; }

/* The vector is read before the hub is stored to: reading may have to wait for a page. */
static int give(struct tt_exchange *x, struct tt_hub *h, struct tt_hub_call *v)
{
	struct tt_hub_slot *mine = &h->memory->slot[h->me];
	char bytes[TT_HUB_BYTES];

	tt_vector_read(&x->vector, 0, bytes, x->count * x->width);
	if (!begin_store(h)) {
		tt_coll_gave_up(x->coll, root_of(h)->rank);
		return 0;
	}
	mine->call = x->coll->call;
	memcpy(mine->vector, bytes, x->count * x->width);
	atomic_store(&mine->flag, flag_of(x->coll->seq, HERE)); /* a full fence */
	end_store(h);
	v->here = true;
	if (h->me != ROOT && atomic_load(&h->memory->awaits) == (uint32_t)h->me) /* after the store */
		wake(h, ROOT);
	return 1;
}

static int answer(struct tt_coll *c, int rank, int k)
{
	if (k >= 0)
		return k;
	tt_coll_gave_up(c, c->group->seats[rank].rank);
	return 0;
}

/* A slot with another call may be that of a later call: a rank that gave this one up goes on with the next. */
static int compare(struct tt_coll *c, const struct tt_hub *h)
{
	for (int i = 1; i < h->n; i++) {
		struct tt_coll_call theirs = h->memory->slot[i].call;
		if (tt_coll_same(&theirs, &c->call))
			continue;
		atomic_thread_fence(memory_order_acquire);
		int k = answer(c, i, reached(h, i, c->seq));
		return k <= 0 ? k : tt_coll_differs(c, i, &theirs);
	}
	return 1;
}

static void publish(const struct tt_hub *h, uint32_t call)
{
	atomic_store(&h->memory->result_of, flag_of(call, HERE)); /* a full fence */
	for (int i = 1; i < h->n; i++)
		if (atomic_load(&h->memory->slot[i].asleep)) /* after the store */
			wake(h, i);
}

static int combine(const struct tt_exchange *x, const struct tt_hub *h, struct tt_hub_call *v)
{
	const void *from[TT_SEGMENT_RANKS];
	void *to = h->memory->result;
	struct tt_many many = { .from = from, .to = &to, .inputs = h->n, .outputs = 1 };
	int k;

	for (int i = 0; i < h->n; i++)
		from[i] = h->memory->slot[i].vector;
	tt_reduce_many(&many, x->count, x->type, x->rule);
	atomic_thread_fence(memory_order_acquire);
	v->seen = 0;
	if ((k = look_at_all(h, v, x->coll->seq)) <= 0)
		return answer(x->coll, v->seen, k);
	publish(h, x->coll->seq);
	return 1;
}

static int advance(struct tt_exchange *x)
{
	struct tt_hub *h = hub_of(x->coll->group);
	struct tt_hub_call *v = call_of(x->coll);
	int k;

	if (h->lost) {
		x->coll->culprit = h->lost - 1;
		return -ECONNRESET;
	}
	if (x->coll->culprit >= 0 || (!v->here && (!is_next(h, v) || !give(x, h, v))))
		return 0;
	if ((k = look(x->coll)) <= 0)
		return answer(x->coll, h->me == ROOT ? v->seen : ROOT, k);
	if (h->me == ROOT && ((k = compare(x->coll, h)) <= 0 || (k = combine(x, h, v)) <= 0))
		return k;
	tt_vector_write(&x->vector, 0, h->memory->result, x->count * x->width);
	v->done = true;
	return 1;
}

/* ---- sleeping ---- */

static void announce(struct tt_timer *t)
{
	struct tt_hub_call *v = tt_container_of(t, struct tt_hub_call, announce);
	struct tt_coll *c = &tt_container_of(v, struct tt_allreduce, hub)->coll;
	const struct tt_hub *h = hub_of(c->group);

	for (int i = 0; !h->lost && i < (h->me == ROOT ? h->n : 1); i++)
		if (!reached(h, i, c->seq))
			tt_coll_send(c, i, TT_TAG_HERE, NULL, 0);
}

/* Ranks that call something else never look here. A message tells them what this rank calls. */
static void arm(struct tt_coll *c, struct tt_hub_call *v)
{
	if (v->here && !v->announce.expire)
		tt_timer_start(c->job, &v->announce, tt_now() + tt_time(c->job, TT_TIME_HEARTBEAT), announce);
}

static void set_asleep(struct tt_hub *h, bool asleep)
{
	if (h->asleep == asleep || !begin_store(h))
		return;
	h->asleep = asleep;
	atomic_store_explicit(&h->memory->slot[h->me].asleep, asleep, memory_order_relaxed);
	atomic_thread_fence(memory_order_seq_cst); /* the result is read after it, by loads that only acquire */
	end_store(h);
}

/* Rank 0 says for whom it waits, and looks once more: with as few wakes as there are ranks later than all before. */
static int await(const struct tt_hub *h, struct tt_hub_call *v, uint32_t call)
{
	int k, at;

	do {
		at = v->seen;
		atomic_store_explicit(&h->memory->awaits, (uint32_t)at, memory_order_relaxed);
		atomic_thread_fence(memory_order_seq_cst); /* the flags are read after it, by loads that only acquire */
		k = look_at_all(h, v, call);
	} while (!k && v->seen != at);
	return k;
}

static int look_and_sleep(struct tt_coll *c, struct tt_hub *h, struct tt_hub_call *v)
{
	int k = look(c);

	arm(c, v);
	if (k)
		return k;
	if (h->me == ROOT)
		return await(h, v, c->seq);
	set_asleep(h, true);
	return look(c);
}

static void stay_awake(struct tt_hub *h)
{
	if (h->me == ROOT)
		atomic_store_explicit(&h->memory->awaits, ROOT, memory_order_relaxed);
	else
		set_asleep(h, false);
}

static bool poll(struct tt_coll *c, bool asleep)
{
	struct tt_hub *h = hub_of(c->group);
	struct tt_hub_call *v = call_of(c);

	if (h->lost)
		return true;
	if (c->culprit >= 0)
		return false;
	if (!v->here)
		return is_next(h, v);
	if (asleep)
		return look_and_sleep(c, h, v) != 0;
	stay_awake(h);
	return look(c) != 0;
}

/* ---- the beginning and the end of a call ---- */

static int begin(struct tt_exchange *x)
{
	struct tt_hub *h = hub_of(x->coll->group);

	tt_list_append(&h->queue, &call_of(x->coll)->turn);
	if (h->me != ROOT)
		tt_member_hold(root_of(h));
	tt_coll_poll(x->coll, poll);
	x->coll->may_leave_messages = true;
	return 0;
}

static void set_flag(const struct tt_hub *h, uint64_t flag)
{
	if (!begin_store(h))
		return;
	atomic_store(&h->memory->slot[h->me].flag, flag);
	atomic_thread_fence(memory_order_seq_cst); /* a later call's vector comes behind it */
	end_store(h);
}

static void release(struct tt_exchange *x)
{
	struct tt_hub *h = hub_of(x->coll->group);
	struct tt_hub_call *v = call_of(x->coll);

	tt_timer_stop(&v->announce);
	tt_list_remove(&v->turn);
	if (v->here && !h->lost) {
		stay_awake(h);
		set_flag(h, flag_of(x->coll->seq, v->done ? TAKEN : TT_STEP_QUIT));
		h->last = x->coll->seq;
		h->used = true;
	}
	tt_coll_poll(x->coll, NULL);
	if (h->me != ROOT)
		tt_member_let_go(root_of(h));
}

const struct tt_algorithm tt_through_hub = { "hub", begin, advance, release, NULL };

/* ---- ends of a hub ---- */

/* The hub is about to be unmapped. */
void tt_hub_lost(struct tt_job *job, const struct tt_peer *peer)
{
	tt_each_of(struct tt_hub, link, h, &tt_collectives(job)->hubs) {
		if (h->peer != peer)
			continue;
		h->lost = h->group && h->open ? root_of(h)->rank + 1 : h->lost;
		h->memory = NULL;
		h->peer = NULL;
		h->making = false;
	}
}

/* May a rank still take the result of the last call? */
static bool is_read(const struct tt_hub *h)
{
	for (int i = 1; h->me == ROOT && h->open && h->used && i < h->n; i++)
		if (atomic_load_explicit(&h->memory->slot[i].flag, memory_order_acquire) == flag_of(h->last, HERE))
			return true;
	return false;
}

static void free_hub(struct tt_hub *h)
{
	tt_list_remove(&h->link);
	tt_offer_end(&h->own);
	free(h);
}

void tt_hub_close(struct tutti *g)
{
	if (!hub_of(g))
		return;
	hub_of(g)->group = NULL;
	tt_coll_group(g)->hub = NULL;
	tt_hub_sweep(g->job, false);
}

void tt_hub_sweep(struct tt_job *job, bool all)
{
	tt_each_of(struct tt_hub, link, h, &tt_collectives(job)->hubs)
		if (!h->group && (all || !is_read(h)))
			free_hub(h);
}
