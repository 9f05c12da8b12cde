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

/* NULL: the vector is to be copied. */
static struct tt_standing *standing_of(struct tt_segment *b, const struct tt_exchange *x)
{
	return x && tt_direct_maps(x, b->n) ? tt_standing_of(b, x->vector.in, bytes_of(x)) : NULL;
}

static struct tt_call_header *begin(struct tt_segment *b, const struct tt_exchange *x, const struct tt_coll_call *call,
                                    const struct tt_standing *standing, uint32_t seq)
{
	struct tt_call_header *h = tt_segment_begin(b);
	size_t bytes = bytes_of(x);

	h->call = *call;
	h->half = (uint8_t)b->half;
	h->mapped = false;
	if (standing)
		tt_standing_offer(standing, x->vector.in, h);
	else if (bytes)
		memcpy(bytes <= TT_HEADER_BYTES ? h->bytes : b->peers[b->me].slot->half[b->half], x->vector.in, bytes);
	tt_segment_step(b, h, seq, 1);
	return h;
}

/* Has rank i reached that step of this very call, and not given up? */
static bool has_come(struct tt_segment *b, int i, uint32_t seq, uint32_t step, const struct tt_coll_call *call)
{
	int looks = tt_world || !tt_may_spin(b->group->job) ? 0 : LOOKS;

	while (looks && !tt_segment_seems_at(b, i, seq, step))
		looks--;
	int k = tt_segment_reached(b, i, seq, step);
	struct tt_coll_call theirs = k > 0 ? b->peers[i].header->call : (struct tt_coll_call){ 0 };
	return tt_coll_same(&theirs, call);
}

static bool have_all_come(struct tt_segment *b, uint32_t seq, uint32_t step, const struct tt_coll_call *call)
{
	for (int i = 0; i < b->n; i++)
		if (i != b->me && !has_come(b, i, seq, step, call))
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

static bool is_any_mapped(const struct tt_segment *b)
{
	for (int i = 0; i < b->n; i++)
		if (b->peers[i].header->mapped)
			return true;
	return false;
}

/* Step 1 is the last one of an all-reduce through the slots. What this rank has read is valid if no rank has given up
 * since. */
static bool end_copied(struct tt_segment *b, const struct tt_exchange *x, uint32_t seq, const struct tt_coll_call *call)
{
	if (is_any_mapped(b))
		return false;
	if (x)
		combine(b, x);
	b->half ^= 1;
	atomic_thread_fence(memory_order_acquire);
	return have_all_come(b, seq, 1, call);
}

/* Through the vectors: each rank stores its slice into all, which is step 2. */
static bool end_mapped(struct tt_segment *b, const struct tt_exchange *x, const struct tt_standing *mine, uint32_t seq,
                       const struct tt_coll_call *call, struct tt_begun *begun)
{
	struct tt_span s = tt_span_of(bytes_of(x), b->n, b->me);

	if (tt_standing_use(b, mine, bytes_of(x)) <= 0 || tt_segment_store_begin(b) >= 0)
		return false;
	tt_direct_store(b, x, -1, s.at, s.len);
	tt_segment_store_end(b);
	tt_segment_step(b, begun->header, seq, 2);
	begun->stored = true;
	return have_all_come(b, seq, 2, call);
}

static bool can_run(const struct tutti *g)
{
	const struct tt_segment *b = tt_coll_group(g)->segment;

	return !tt_hook.running && tt_segment_open(g) && !b->lost && tt_coll_is_quiet(g) && tt_segment_may_begin(b);
}

/* True: all of it is done. */
static bool run(struct tutti *g, const struct tt_exchange *x, const struct tt_coll_call *call, struct tt_begun *begun)
{
	struct tt_segment *b = tt_coll_group(g)->segment;
	uint32_t seq = g->started;

	if (!can_run(g) || (x && tt_hub_takes(g, bytes_of(x))))
		return false;
	const struct tt_standing *standing = standing_of(b, x);
	if (!standing && bytes_of(x) > TT_AT_ONCE / (size_t)(b->n - 1))
		return false;
	begun->header = begin(b, x, call, standing, seq);
	if (!have_all_come(b, seq, 1, call) ||
	    !(standing ? end_mapped(b, x, standing, seq, call, begun) : end_copied(b, x, seq, call)))
		return false;
	tt_segment_complete(b, seq);
	return true;
}

int tt_at_once(struct tutti *g, tutti_stat_kind kind, const struct tt_exchange *x, const struct tt_coll_call *call,
               struct tt_begun *begun)
{
	int err = tt_begin(g->job);

	*begun = (struct tt_begun){ 0 };
	if (err)
		return err;
	uint64_t since = tt_stats_start(g->job);
	if (run(g, x, call, begun))
		tt_coll_count_at_once(g, kind, call, bytes_of(x), since);
	else if (begun->header)
		return 1;
	else
		err = 1;
	tt_unlock(g->job);
	return err;
}

int tt_at_once_go_on(struct tutti *g, struct tt_coll *c, const struct tt_begun *begun)
{
	if (c)
		return tt_coll_go_on(c);
	/* The other ranks have seen that this one has come: they must see that it goes. */
	tt_segment_step(tt_coll_group(g)->segment, begun->header, g->started, TT_STEP_QUIT);
	tt_standing_drop_all(tt_coll_group(g)->segment);
	tt_segment_done(tt_coll_group(g)->segment, g->started++);
	tt_unlock(g->job);
	return -ENOMEM;
}
