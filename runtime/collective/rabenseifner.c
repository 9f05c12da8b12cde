/* rabenseifner.c - all-reduce by recursive halving, then doubling (Rabenseifner 2004; Thakur, Rabenseifner, Gropp 2005)
 *
 *      4 ranks, a vector of 4 blocks      0: a b c d     1: a b c d     2: a b c d     3: a b c d
 *      I swap halves with me ^ 2             a b            a b                c d            c d    of 2 ranks
 *      ... a half of that with me ^ 1        a                b                c                d    of all 4
 *      and the way back, copying             a b            a b                c d            c d
 *                                            a b c d        a b c d        a b c d        a b c d
 *
 * Where the number of ranks is no power of two, odd ones of the first few hand theirs to their left neighbour and get the
 * result back.
 *
 * Order of additions: with p the largest power of two <= n, ranks 2i and 2i+1 make one for i < n - p, the others stand alone:
 * p values. They are added across the highest bit of their numbers first, ((0+2)+(1+3)), the same for each element.
 */
#include "collective/collective_private.h"
#include <stdlib.h>

enum {
	ROUNDS_MAX = 32,
	HALVING = 0, DOUBLING = ROUNDS_MAX, FOLD = 2 * ROUNDS_MAX, UNFOLD, /* ids of legs: the round, and from where */
	AHEAD = 3,
};

struct halving {
	struct tt_transfers legs;
	int power, extra;           /* power: of two, <= n; extra: ranks beyond it */
	int low, high;              /* blocks that are mine to complete, or complete */
};

static char *block_at(const struct tt_exchange *x, int block)
{
	const struct halving *h = x->state;

	return x->buf + (size_t)((unsigned __int128)x->count * (unsigned)block / (unsigned)h->power) * x->width;
}

static struct tt_transfer leg_of(const struct tt_exchange *x, int other, uint32_t id, int low, int high)
{
	char *from = block_at(x, low);

	return (struct tt_transfer){ .other = tt_exchange_seat(x, other), .id = id, .at = from, .len = (size_t)(block_at(x, high) - from) };
}

static void add_in(struct halving *h, struct tt_transfer leg) { h->legs.in[h->legs.ins++] = leg; }

static void add_out(struct halving *h, struct tt_transfer leg)
{
	leg.after = h->legs.ins;
	h->legs.out[h->legs.outs++] = leg;
}

static int rank_of(const struct halving *h, int id) { return id < h->extra ? 2 * id : id + h->extra; }

static void halve(const struct tt_exchange *x, int id, uint32_t round, int mask)
{
	struct halving *h = x->state;
	int other = rank_of(h, id ^ mask), middle = (h->low + h->high) / 2;
	bool upper = id & mask;
	struct tt_transfer in = leg_of(x, other, HALVING + round, upper ? middle : h->low, upper ? h->high : middle);
	struct tt_transfer out = leg_of(x, other, HALVING + round, upper ? h->low : middle, upper ? middle : h->high);

	in.combine = out.combine = true;
	in.scale = mask == 1 && x->rule == TUTTI_AVERAGE;
	add_out(h, out);
	add_in(h, in);
	h->low = upper ? middle : h->low;
	h->high = upper ? h->high : middle;
}

static void copy_back(const struct tt_exchange *x, int id, uint32_t round, int mask)
{
	struct halving *h = x->state;
	int other = rank_of(h, id ^ mask), size = h->high - h->low;
	int low = id & mask ? h->low - size : h->low, theirs = id & mask ? low : h->high;

	add_out(h, leg_of(x, other, DOUBLING + round, h->low, h->high));
	add_in(h, leg_of(x, other, DOUBLING + round, theirs, theirs + size));
	h->low = low;
	h->high = low + 2 * size;
}

static void plan(struct tt_exchange *x)
{
	struct halving *h = x->state;
	int me = x->me, id = me < 2 * h->extra ? me / 2 : me - h->extra, mask;
	bool folded = me < 2 * h->extra;
	struct tt_transfer all = leg_of(x, folded ? me ^ 1 : me, FOLD, 0, h->power), result = all;
	uint32_t round = 0;

	all.combine = true;
	result.id = UNFOLD;
	h->high = h->power;
	if (folded && me % 2) {
		add_out(h, all);
		add_in(h, result);
		return;
	}
	if (folded)
		add_in(h, all);
	for (mask = h->power / 2; mask; mask /= 2)
		halve(x, id, round++, mask);
	for (mask = 1; mask < h->power; mask *= 2)
		copy_back(x, id, --round, mask);
	if (folded)
		add_out(h, result);
}

static int begin(struct tt_exchange *x)
{
	struct halving *h = calloc(1, sizeof *h);

	if (!h)
		return tt_fail(-ENOMEM, "no memory for an all-reduce");
	x->state = h;
	h->power = tt_power_below(x->n);
	h->extra = x->n - h->power;
	h->legs.width = x->width;
	h->legs.type = x->type;
	h->legs.rule = x->rule;
	int err = tt_transfers_new(&h->legs, x->coll, 2 * ROUNDS_MAX + 1, AHEAD);
	if (!err)
		plan(x);
	return err;
}

static int advance(struct tt_exchange *x) { return tt_transfers_advance(&((struct halving *)x->state)->legs); }

static void release(struct tt_exchange *x)
{
	struct halving *h = x->state;

	if (h)
		tt_transfers_free(&h->legs);
	free(h);
}

static size_t chunk_of(size_t bytes, size_t width, int n, size_t piece)
{
	(void)width;
	(void)n;
	(void)piece;
	return tt_min(bytes, tt_transfers_chunk(bytes / 2));
}

const struct tt_algorithm tt_rabenseifner = { "rabenseifner", begin, advance, release, chunk_of };
