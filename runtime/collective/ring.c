/* ring.c - all-reduce in a ring (Patarasuk and Yuan 2009): reduce-scatter, then all-gather
 *
 * The vector is cut into as many blocks as there are ranks. Each block travels once around the ring and collects
 * every rank's part, then once more to bring the result. Blocks travel in chunks, so that sending and adding overlap.
 *
 *      step t of 2(n-1):   I send block (me - t) to the right, and block (me - t - 1) comes from the left
 *      t <  n-1  reduce:   I add what comes to my own
 *      t >= n-1  gather:   what comes replaces my own. Its place is free: my part of that block has been around
 *
 * A chunk of step t+1 goes out as soon as the same chunk of step t has come in.
 *
 * The blocks of a long vector are cut into segments. All segments number s take their 2(n-1) steps together, and the
 * gather of segments s-1 comes behind the reduce of segments s: a sum leaves while the processor's cache still has it.
 *
 *      reduce 0   reduce 1   gather 0   reduce 2   gather 1   ...   gather of the last segments
 *
 * Order of additions: rank b+1 adds its own block b to rank b's, then rank b+2 adds its own, and so on up to rank
 * b+n-1.
 */
#include "collective/collective_private.h"

enum { AHEAD = 8 };

static struct tt_transfer transfer_of(const struct tt_exchange *x, int other, int segment, int t, int block)
{
	int n = x->n, segments = tt_exchange_segments(x, n);
	uint32_t id = (uint32_t)(segment * 2 * (n - 1) + t);

	return tt_exchange_blocks(x, other, id, n * segments, (block + 2 * n) % n * segments + segment, 1);
}

/* Steps `from` to `end` - 1 of the segments of that number. */
static void add_steps(struct tt_exchange *x, int segment, int from, int end)
{
	int n = x->n, me = x->me, right = (me + 1) % n, left = (me - 1 + n) % n;

	for (int t = from; t < end; t++) {
		struct tt_transfer out = transfer_of(x, right, segment, t, me - t);
		struct tt_transfer in = transfer_of(x, left, segment, t, left - t);
		if (t < n - 1) {
			tt_exchange_combine(x, &out, t == 0);
			tt_exchange_combine(x, &in, t == 0);
		}
		in.given = t < n - 1;
		out.given = t == 0;
		in.last = t == n - 2;
		tt_exchange_send(x, out);
		tt_exchange_receive(x, in);
	}
}

static void reduce(struct tt_exchange *x, int segment) { add_steps(x, segment, 0, x->n - 1); }
static void gather(struct tt_exchange *x, int segment) { add_steps(x, segment, x->n - 1, 2 * (x->n - 1)); }

static int begin(struct tt_exchange *x)
{
	return tt_exchange_begin_segments(x, x->n, 2 * (x->n - 1), AHEAD, reduce, gather);
}

static size_t chunk_of(size_t bytes, int n, size_t piece)
{
	(void)piece;
	return tt_min(bytes, tt_transfers_chunk(bytes / (size_t)n));
}

const struct tt_algorithm tt_ring = { "ring", begin, tt_exchange_advance, tt_exchange_release, chunk_of };
