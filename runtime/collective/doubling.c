/* doubling.c - all-reduce by recursive doubling, for small vectors (Thakur, Rabenseifner, Gropp 2005)
 *
 * In round k I swap vectors with the rank whose number differs from mine in bit k. If the number of ranks n is not a
 * power of two, the odd ones among the first few give theirs to their left neighbour and get the result back. A
 * vector longer than a message travels in segments, one after another.
 *
 * Order of additions: with p the largest power of two <= n, ranks 2i and 2i+1 make one value for i < n - p, and the
 * others one each: p values. Round k adds those whose numbers differ in bit k, the nearest first: (0+1)+(2+3), and so
 * on.
 */
#include "collective/collective_private.h"
#include "kernel/kernel.h"
#include <stdlib.h>
#include <string.h>

enum stage { FOLD, SWAP, UNFOLD };

struct doubling {
	struct tt_exchange *x;
	enum stage stage;
	int round, extra, power;    /* power: of two, <= n; extra: ranks beyond it */
	bool sent;
	uint32_t segment;
	size_t width;               /* of an element in buf, ... */
	tutti_type type;            /* ... and its type */
	char *buf;                  /* all elements: the vector's memory, or behind this struct those that lie apart; or
	                             * memory for partial sums */
	char apart[];
};

static uint32_t tag_of(const struct doubling *d)
{
	return d->segment * 64 + (uint32_t)(d->stage == SWAP ? 2 + d->round : d->stage == UNFOLD);
}

/* Sends the segment to rank `to`, once, and takes it from rank `from`; -1: none. 1: both are done. */
static int exchange(struct doubling *d, int to, int from, bool combine)
{
	struct tt_exchange *x = d->x;
	size_t piece = TT_COLL_PIECE, at = d->segment * piece;
	size_t len = tt_min(piece, x->count * d->width - at);
	const void *in;

	if (to >= 0 && !d->sent)
		tt_coll_send(x->coll, tt_exchange_seat(x, to), tag_of(d), d->buf + at, len);
	d->sent = true;
	if (from >= 0) {
		if (!(in = tt_coll_take(x->coll, tt_exchange_seat(x, from), tag_of(d), len)))
			return 0;
		if (combine)
			tt_reduce(d->buf + at, in, len / d->width, d->type, x->rule);
		else
			memcpy(d->buf + at, in, len);
	}
	d->sent = false;
	return 1;
}

static int fold(struct doubling *d, int me)
{
	if (me < 2 * d->extra && !exchange(d, me % 2 ? me - 1 : -1, me % 2 ? -1 : me + 1, true))
		return 0;
	d->stage = me < 2 * d->extra && me % 2 ? UNFOLD : SWAP;
	d->round = 0;
	return 1;
}

static int swap_rounds(struct doubling *d, int me)
{
	int id = me < 2 * d->extra ? me / 2 : me - d->extra;

	for (; 1 << d->round < d->power; d->round++) {
		int other = id ^ 1 << d->round, rank = other < d->extra ? 2 * other : other + d->extra;
		if (!exchange(d, rank, rank, true))
			return 0;
	}
	d->stage = UNFOLD;
	return 1;
}

static int unfold(struct doubling *d, int me)
{
	if (me < 2 * d->extra && !exchange(d, me % 2 ? -1 : me + 1, me % 2 ? me - 1 : -1, false))
		return 0;
	d->stage = FOLD;
	d->segment++;
	return 1;
}

static void finish(const struct doubling *d)
{
	const struct tt_exchange *x = d->x;
	struct tt_run r;

	if (x->rule == TUTTI_AVERAGE)
		tt_scale(d->buf, x->count, d->type, (unsigned)x->coll->n);
	if (!x->wide)
		tt_vector_write(&x->vector, x->at, d->buf, x->count * x->width);
	for (size_t at = 0, end = x->count * x->width; x->wide && at < end; at += r.len) {
		r = tt_vector_run(&x->vector, x->at + at, end - at);
		tt_from_f32(r.out, d->buf + at / x->width * d->width, r.len / x->width, x->type);
	}
}

static int advance(struct tt_exchange *x)
{
	struct doubling *d = x->state;
	size_t piece = TT_COLL_PIECE, total = x->count * d->width;
	int more = 1;

	while (more && d->segment * piece < total)
		more = d->stage == FOLD ? fold(d, x->me) : d->stage == SWAP ? swap_rounds(d, x->me) : unfold(d, x->me);
	if (more)
		finish(d);
	return more;
}

static void release(struct tt_exchange *x) { free(x->state); }

static int begin(struct tt_exchange *x)
{
	size_t bytes = x->count * x->width;
	bool apart = !x->vector.out && !x->wide;
	struct doubling *d = calloc(1, sizeof *d + (apart ? bytes : 0));

	if (!d)
		return tt_fail(-ENOMEM, "no memory for an all-reduce");
	x->state = d;
	d->x = x;
	d->width = x->wide ? sizeof *x->wide : x->width;
	d->type = x->wide ? TUTTI_F32 : x->type;
	d->buf = x->wide ? (char *)(x->wide + x->at / x->width) : apart ? d->apart : x->vector.out + x->at;
	if (!x->wide)
		tt_vector_read(&x->vector, x->at, d->buf, bytes);
	else if (!x->summed)
		tt_exchange_widen(x);
	if (x->coll->n == 1)
		tt_reduce_alone(d->buf, x->count, d->type);
	d->power = tt_power_below(x->n);
	d->extra = x->n - d->power;
	return 0;
}

static size_t chunk_of(size_t bytes, int n, size_t piece)
{
	(void)n;
	return tt_min(bytes, piece);
}

const struct tt_algorithm tt_doubling = { "doubling", begin, advance, release, chunk_of };
