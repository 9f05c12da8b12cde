/* rabenseifner.c - all-reduce by recursive halving, then doubling (Rabenseifner 2004; Thakur, Rabenseifner, Gropp
 * 2005)
 *
 *      4 ranks, a vector of 4 blocks      0: a b c d     1: a b c d     2: a b c d     3: a b c d
 *      I swap halves with me ^ 2             a b            a b                c d            c d    of 2 ranks
 *      ... a half of that with me ^ 1        a                b                c                d    of all 4
 *      and the way back, copying             a b            a b                c d            c d
 *                                            a b c d        a b c d        a b c d        a b c d
 *
 * If the number of ranks n is not a power of two, the odd ones among the first few give their vectors to their left
 * neighbour and get the result back.
 *
 * A long vector is cut into segments of p blocks, which go the same way one behind another, as in ring.c.
 *
 * Order of additions: with p the largest power of two <= n, ranks 2i and 2i+1 make one value for i < n - p, and the
 * others one each: p values. They are added across the highest bit of their numbers first, ((0+2)+(1+3)), the same
 * for each element.
 */
#include "collective/collective_private.h"

enum {
	ROUNDS_MAX = 32,
	HALVING = 0, DOUBLING = ROUNDS_MAX, FOLD = 2 * ROUNDS_MAX, UNFOLD, IDS, /* ids; the first two add the round */
	AHEAD = 3,
};

struct halving { /* of a segment */
	struct tt_exchange *x;
	int segment;
	int power, extra;           /* power: of two, <= n; extra: ranks beyond it */
	int id;                     /* my number among these `power`; -1: my left neighbour acts for me */
	int low, high;              /* blocks that are mine to complete, or complete */
	bool begun;                 /* what the caller gave has been combined */
};

static struct tt_transfer transfer_of(const struct halving *h, int other, uint32_t id, int low, int high)
{
	int first = h->segment * h->power;

	return tt_exchange_blocks(h->x, other, (uint32_t)(h->segment * IDS) + id,
	                          h->power * tt_exchange_segments(h->x, h->power), first + low, high - low);
}

static int rank_of(const struct halving *h, int id) { return id < h->extra ? 2 * id : id + h->extra; }

static void halve(struct halving *h, uint32_t round, int mask)
{
	int other = rank_of(h, h->id ^ mask), low = h->low, high = h->high, middle = (low + high) / 2;
	bool upper = h->id & mask;
	uint32_t id = HALVING + round;
	struct tt_transfer in = transfer_of(h, other, id, upper ? middle : low, upper ? high : middle);
	struct tt_transfer out = transfer_of(h, other, id, upper ? low : middle, upper ? middle : high);

	tt_exchange_combine(h->x, &in, !round && (h->id ^ mask) >= h->extra);
	tt_exchange_combine(h->x, &out, !h->begun);
	in.given = out.given = !h->begun;
	h->begun = true;
	in.last = mask == 1;
	tt_exchange_send(h->x, out);
	tt_exchange_receive(h->x, in);
	h->low = upper ? middle : h->low;
	h->high = upper ? h->high : middle;
}

static void copy_back(struct halving *h, uint32_t round, int mask)
{
	int other = rank_of(h, h->id ^ mask), size = h->high - h->low;
	int low = h->id & mask ? h->low - size : h->low, theirs = h->id & mask ? low : h->high;

	tt_exchange_send(h->x, transfer_of(h, other, DOUBLING + round, h->low, h->high));
	tt_exchange_receive(h->x, transfer_of(h, other, DOUBLING + round, theirs, theirs + size));
	h->low = low;
	h->high = low + 2 * size;
}

static struct halving halving_of(struct tt_exchange *x, int segment)
{
	int power = tt_power_below(x->n), extra = x->n - power, me = x->me;

	return (struct halving){ .x = x, .segment = segment, .power = power, .extra = extra, .high = power,
		                 .id = me >= 2 * extra ? me - extra : me % 2 ? -1 : me / 2 };
}

static bool is_folded(const struct halving *h) { return h->x->me < 2 * h->extra; }

/* The whole segment, to or from the other one of two folded ranks. */
static struct tt_transfer whole_of(const struct halving *h, uint32_t id)
{
	return transfer_of(h, is_folded(h) ? h->x->me ^ 1 : h->x->me, id, 0, h->power);
}

static void reduce(struct tt_exchange *x, int segment)
{
	struct halving h = halving_of(x, segment);
	struct tt_transfer all = whole_of(&h, FOLD);
	uint32_t round = 0;

	tt_exchange_combine(x, &all, true);
	all.given = true;
	h.begun = is_folded(&h);
	if (h.id < 0)
		tt_exchange_send(x, all);
	else if (is_folded(&h))
		tt_exchange_receive(x, all);
	for (int mask = h.power / 2; h.id >= 0 && mask; mask /= 2)
		halve(&h, round++, mask);
}

static void gather(struct tt_exchange *x, int segment)
{
	struct halving h = halving_of(x, segment);
	struct tt_transfer result = whole_of(&h, UNFOLD);
	uint32_t round = (uint32_t)__builtin_ctz((unsigned)h.power);

	h.low = h.id;
	h.high = h.id + 1;
	for (int mask = 1; h.id >= 0 && mask < h.power; mask *= 2)
		copy_back(&h, --round, mask);
	if (h.id < 0)
		tt_exchange_receive(x, result);
	else if (is_folded(&h))
		tt_exchange_send(x, result);
}

static int begin(struct tt_exchange *x)
{
	int power = tt_power_below(x->n);

	return tt_exchange_begin_segments(x, power, 2 * __builtin_ctz((unsigned)power) + 1, AHEAD, reduce, gather);
}

static size_t chunk(size_t bytes, int n, size_t piece)
{
	(void)n;
	(void)piece;
	return tt_min(bytes, tt_transfers_chunk(bytes / 2));
}

const struct tt_algorithm tt_rabenseifner = { "rabenseifner", begin, tt_exchange_advance, tt_exchange_release, chunk };
