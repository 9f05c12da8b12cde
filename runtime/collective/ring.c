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
 * Order of additions: rank b+1 adds its own block b to rank b's, then rank b+2 adds its own, and so on up to rank
 * b+n-1.
 */
#include "collective/collective_private.h"

enum { AHEAD = 8 };

static int begin(struct tt_exchange *x)
{
	int n = x->n, me = x->me, steps = 2 * (n - 1), err = tt_exchange_begin(x, steps, AHEAD);
	int right = (me + 1) % n, left = (me - 1 + n) % n;

	for (int t = 0; !err && t < steps; t++) {
		struct tt_transfer out = tt_exchange_blocks(x, right, (uint32_t)t, n, (me - t + 2 * n) % n, 1);
		struct tt_transfer in = tt_exchange_blocks(x, left, (uint32_t)t, n, (left - t + 2 * n) % n, 1);
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
	return err;
}

static size_t chunk_of(size_t bytes, int n, size_t piece)
{
	(void)piece;
	return tt_min(bytes, tt_transfers_chunk(bytes / (size_t)n));
}

const struct tt_algorithm tt_ring = { "ring", begin, tt_exchange_advance, tt_exchange_release, chunk_of };
