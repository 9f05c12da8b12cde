/* at_once.c - a short all-reduce or a barrier that blocks, on one host, without an allocation and an operation
 *
 * The call keeps the lock, and looks for the other ranks for a moment. If a rank is late, or calls something else, the
 * state machine goes on with the call from its header.
 */
#include "collective/collective_private.h"
#include "engine/engine.h"
#include "kernel/kernel.h"
#include "member/member.h"
#include <string.h>

enum { LOOKS = 400 }; /* at the flags of other ranks, before the state machine goes on: some 2 us */

static size_t bytes_of(const struct tt_exchange *x) { return x ? x->count * x->width : 0; }

static struct tt_call_header *begin(struct tt_segment *b, const struct tt_exchange *x, const struct tt_coll_call *call,
                                    uint32_t seq)
{
	struct tt_call_header *h = tt_segment_begin(b);
	size_t bytes = bytes_of(x);

	h->call = *call;
	h->half = (uint8_t)b->half;
	h->mapped = false;
	if (bytes)
		memcpy(bytes <= TT_HEADER_BYTES ? h->bytes : b->peers[b->me].slot->half[b->half], x->vector.in, bytes);
	tt_segment_step(b, h, seq, 1);
	return h;
}

/* Has that rank called the same, and has it not given up? */
static bool has_come(struct tt_segment *b, int i, uint32_t seq, const struct tt_coll_call *call)
{
	int looks = tt_world || !tt_may_spin(b->group->job) ? 0 : LOOKS;

	while (looks && !tt_segment_seems_here(b, i, seq))
		looks--;
	int k = tt_segment_reached(b, i, seq, 1);
	struct tt_coll_call theirs = k > 0 ? b->peers[i].header->call : (struct tt_coll_call){ 0 };
	return tt_coll_same(&theirs, call);
}

static bool have_all_come(struct tt_segment *b, uint32_t seq, const struct tt_coll_call *call)
{
	for (int i = 0; i < b->n; i++)
		if (i != b->me && !has_come(b, i, seq, call))
			return false;
	return true;
}

static void combine(const struct tt_segment *b, const struct tt_exchange *x)
{
	const void *from[TT_SEGMENT_RANKS];
	void *to = x->vector.out;
	struct tt_many many = { .from = from, .to = &to, .inputs = b->n, .outputs = 1 };
	bool in_header = bytes_of(x) <= TT_HEADER_BYTES;

	for (int i = 0; i < b->n; i++) {
		const struct tt_segment_peer *f = &b->peers[i];
		from[i] = i == b->me ? x->vector.in : in_header ? f->header->bytes : f->slot->half[f->header->half % 2];
	}
	tt_reduce_many(&many, x->count, x->type, x->rule);
}

/* True: all of it is done. False, with *begun NULL: this way cannot be taken. */
static bool run(struct tutti *g, const struct tt_exchange *x, const struct tt_coll_call *call,
                struct tt_call_header **begun)
{
	struct tt_segment *b = tt_coll_group(g)->segment;

	if (tt_hook.running || !tt_segment_open(g) || b->lost || !tt_coll_is_quiet(g) || !tt_segment_may_begin(b))
		return false;
	*begun = begin(b, x, call, g->started);
	if (!have_all_come(b, g->started, call))
		return false;
	if (x)
		combine(b, x);
	b->half ^= 1;
	atomic_thread_fence(memory_order_acquire);
	if (!have_all_come(b, g->started, call)) /* what was read was valid if none has given up since */
		return false;
	tt_segment_complete(b, g->started);
	return true;
}

int tt_at_once(struct tutti *g, tutti_stat_kind kind, const struct tt_exchange *x, const struct tt_coll_call *call,
               struct tt_call_header **begun)
{
	int err = tt_begin(g->job);

	*begun = NULL;
	if (err)
		return err;
	uint64_t since = tt_stats_start(g->job);
	if (run(g, x, call, begun))
		tt_coll_count_at_once(g, kind, call, bytes_of(x), since);
	else if (*begun)
		return 1;
	else
		err = 1;
	tt_unlock(g->job);
	return err;
}

int tt_at_once_go_on(struct tutti *g, struct tt_coll *c, struct tt_call_header *begun)
{
	if (c)
		return tt_coll_go_on(c);
	/* The other ranks have seen that this one has come: they must see that it goes. */
	tt_segment_step(tt_coll_group(g)->segment, begun, g->started, TT_STEP_QUIT);
	tt_segment_done(tt_coll_group(g)->segment, g->started++);
	tt_unlock(g->job);
	return -ENOMEM;
}
