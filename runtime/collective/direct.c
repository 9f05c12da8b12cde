/* direct.c - all-reduce on one host, through memory: each rank combines its slice of all vectors, and all ranks get
 * the result, or of a reduce the root alone. The group's shared segment says how far each rank has got
 * (segment_call.c).
 *
 *      short     each rank puts its vector into its slot, up to 64 bytes of it into the call header, and combines all
 *                vectors itself: one flag
 *
 *      mapped    all ranks can map all vectors: each combines its slice of them and stores the result into all of them,
 *                or into the root's
 *
 *                rank 0's   | a0 | b0 |        rank 0: a0 + a1 -> both a       no byte is copied
 *                rank 1's   | a1 | b1 |        rank 1: b0 + b1 -> both b
 *
 *      passed    other vectors, and those in parts or not in place, go chunk by chunk through the slots, which stay
 *                in the caches:
 *
 *                rank 0     b0 -> slot          a0 + a1 -> a0, slot             b <- slot of 1
 *                rank 1     a1 -> slot          b0 + b1 -> b1, slot             a <- slot of 0
 *
 *                A rank fills the other half with the next chunk before it waits for the results of this one. So each
 *                wait has a copy in front of it, in which the others catch up, and ranks that share a core meet once a
 *                chunk.
 *
 * Order of additions: ((0 + 1) + 2) + ..., each element once; f16 and bf16 are added in f32 and rounded once at the
 * end.
 */
#include "collective/collective_private.h"
#include "kernel/kernel.h"
#include <string.h>

enum {
	SHORT = 32 * 1024,        /* bytes to read from others: up to so many a vector that is not mapped is short */
};

enum phase { TURN, MEET, STORE, STORED, IN, COMBINE, OUT, DONE };

/* ---- sizes ---- */

static struct tt_span mine(const struct tt_allreduce *a, size_t len) { return tt_span_of(len, a->coll.n, a->coll.me); }
static size_t bytes_of(const struct tt_allreduce *a) { return a->all.count * a->all.width; }
static bool is_up_to(const struct tt_allreduce *a, size_t len) { return bytes_of(a) <= len / (size_t)(a->coll.n - 1); }
static size_t chunk_len(const struct tt_allreduce *a) { return tt_min(TT_SEGMENT_CHUNK, bytes_of(a) - a->direct.at); }

/* The vector of rank i, or what of it others combine. */
static const char *buffer_of(const struct tt_allreduce *a, int i)
{
	const struct tt_segment_call *v = &a->direct.call;

	return bytes_of(a) <= TT_HEADER_BYTES ? v->segment->peers[i].header->bytes : tt_segment_call_buffer(v, i);
}

static char *my_buffer(const struct tt_allreduce *a)
{
	const struct tt_segment_call *v = &a->direct.call;

	return bytes_of(a) <= TT_HEADER_BYTES ? v->header->bytes : tt_segment_call_buffer(v, a->coll.me);
}

static void combine(const struct tt_allreduce *a, const void *const *from, void *const *to, int outputs, size_t bytes)
{
	struct tt_many many = { .from = from, .to = to, .inputs = a->coll.n, .outputs = outputs };

	tt_reduce_many(&many, bytes / a->all.width, a->all.type, a->all.rule);
}

bool tt_direct_maps(const struct tt_exchange *x, int n)
{
	size_t few = tt_max(TT_MAP_FROM / (size_t)(n - 1), (size_t)TT_HEADER_BYTES); /* which travel in the header */

	return x->count * x->width > few && tt_vector_can_map(&x->vector);
}

/* ---- the steps: 1: go on; 0: wait; -errno ---- */

/* What others combine: all of a short vector, else their slices of the chunk. */
static void copy_in(struct tt_allreduce *a)
{
	size_t at = a->direct.at, len = chunk_len(a);
	struct tt_span s = is_up_to(a, SHORT) ? (struct tt_span){ len, 0 } : mine(a, len);
	char *room = my_buffer(a);
	size_t behind = s.at + s.len;

	tt_vector_read(&a->all.vector, at, room, s.at);
	tt_vector_read(&a->all.vector, at + behind, room + behind, len - behind);
}

/* A part of the chunk: the result goes to my vector and, if `pass`, to my slot, where the others take it. */
static void combine_part(const struct tt_allreduce *a, struct tt_span s, bool pass)
{
	const void *from[TT_SEGMENT_RANKS];
	struct tt_run r;

	for (; s.len; s.at += r.len, s.len -= r.len) {
		void *to[2];
		int outputs = 0;
		r = tt_vector_run(&a->all.vector, a->direct.at + s.at, s.len);
		for (int i = 0; i < a->coll.n; i++)
			from[i] = i == a->coll.me ? r.in : buffer_of(a, i) + s.at;
		if (r.out)
			to[outputs++] = r.out;
		if (pass)
			to[outputs++] = my_buffer(a) + TT_SEGMENT_CHUNK + s.at;
		if (outputs)
			combine(a, from, to, outputs, r.len);
	}
}

static int go_on_if(struct tt_allreduce *a, int k, enum phase then)
{
	if (k > 0)
		a->direct.phase = then;
	return k;
}

static int take_turn(struct tt_allreduce *a)
{
	struct tt_segment_call *v = &a->direct.call;

	if (!tt_segment_call_turn(v))
		return 0;
	if (tt_direct_maps(&a->all, a->coll.n))
		tt_segment_call_offer(v, a->all.vector.in);
	if (!v->standing)
		copy_in(a);
	tt_segment_call_step(v);
	a->direct.phase = MEET;
	return 1;
}

static int combine_all(struct tt_allreduce *a)
{
	combine_part(a, (struct tt_span){ 0, bytes_of(a) }, false);
	tt_segment_call_next_buffer(&a->direct.call);
	return go_on_if(a, tt_segment_call_still(&a->direct.call), DONE);
}

static int meet(struct tt_allreduce *a)
{
	struct tt_segment_call *v = &a->direct.call;
	int k = tt_segment_call_meet(v);

	if (k <= 0)
		return k;
	if (!v->some_offer && is_up_to(a, SHORT))
		return combine_all(a);
	v->busy = v->mapped;
	a->direct.phase = v->mapped ? STORE : v->some_offer ? IN : COMBINE;
	return 1;
}

void tt_direct_store(const struct tt_segment *b, const struct tt_exchange *x, int root, size_t at, size_t len)
{
	const void *from[TT_SEGMENT_RANKS];
	void *to[TT_SEGMENT_RANKS];

	for (int i = 0; i < b->n; i++) {
		from[i] = (i == b->me ? x->vector.in : b->peers[i].vector) + at;
		to[i] = (void *)(uintptr_t)from[i];
	}
	struct tt_many many = { .from = from, .to = root < 0 ? to : &to[root], .inputs = b->n,
	                        .outputs = root < 0 ? b->n : 1 };
	tt_reduce_many(&many, len / x->width, x->type, x->rule);
}

static int store(struct tt_allreduce *a)
{
	struct tt_direct *d = &a->direct;
	struct tt_span s = mine(a, bytes_of(a));

	for (int i = 0; i < TT_SEGMENT_CALL_PIECES && d->at < s.len; i++) {
		size_t len = tt_min(TT_SEGMENT_CALL_PIECE, s.len - d->at);
		if (!tt_segment_call_store_begin(&d->call))
			return 0;
		tt_direct_store(d->call.segment, &a->all, a->root, s.at + d->at, len);
		tt_segment_call_store_end(&d->call);
		d->at += len;
	}
	if (d->at < s.len)
		return 0;
	d->call.busy = false;
	tt_segment_call_step(&d->call);
	d->phase = STORED;
	return 1;
}

static int end_stored(struct tt_allreduce *a) { return go_on_if(a, tt_segment_call_all(&a->direct.call), DONE); }

static int pass_in(struct tt_allreduce *a)
{
	copy_in(a);
	tt_segment_call_step(&a->direct.call);
	a->direct.phase = COMBINE;
	return 1;
}

/* When all ranks have combined chunk c - 1, nobody reads its inputs, so those of chunk c + 1 go there. Ranks may still
 * read its sums, in the second part of the half. take_out(c) waits for these ranks before chunk c + 1 has sums. */
static int combine_chunk(struct tt_allreduce *a)
{
	struct tt_direct *d = &a->direct;
	size_t len = chunk_len(a);
	int k = tt_segment_call_all(&d->call);

	if (k <= 0)
		return k;
	combine_part(a, mine(a, len), true);
	tt_segment_call_step(&d->call);
	d->at += len;
	tt_segment_call_next_buffer(&d->call);
	d->phase = OUT;
	if (d->at == bytes_of(a))
		return 1;
	copy_in(a);
	tt_segment_call_step(&d->call);
	tt_segment_call_await(&d->call, 1);
	return 1;
}

static int take_out(struct tt_allreduce *a)
{
	struct tt_direct *d = &a->direct;
	size_t from = (d->at - 1) / TT_SEGMENT_CHUNK * TT_SEGMENT_CHUNK, len = d->at - from;
	int k = tt_segment_call_all(&d->call);

	if (k <= 0)
		return k;
	for (int i = 0; i < a->coll.n; i++) {
		struct tt_span s = tt_span_of(len, a->coll.n, i);
		const char *sums = tt_segment_call_last_buffer(&d->call, i) + TT_SEGMENT_CHUNK;
		if (i != a->coll.me)
			tt_vector_write(&a->all.vector, from + s.at, sums + s.at, s.len);
	}
	k = tt_segment_call_still(&d->call);
	tt_segment_call_await(&d->call, 0);
	return go_on_if(a, k, d->at < bytes_of(a) ? COMBINE : DONE);
}

static int (*const steps[])(struct tt_allreduce *) = {
	[TURN] = take_turn, [MEET] = meet, [STORE] = store, [STORED] = end_stored,
	[IN] = pass_in, [COMBINE] = combine_chunk, [OUT] = take_out,
};

static int advance(struct tt_exchange *x)
{
	struct tt_allreduce *a = tt_allreduce_of(x);
	struct tt_direct *d = &a->direct;
	int k = tt_segment_call_check(&d->call);

	while (k > 0 && d->phase != DONE && tt_segment_call_may_go_on(&d->call))
		k = steps[d->phase](a);
	return k < 0 ? k : d->phase == DONE;
}

/* ---- life ---- */

static int begin(struct tt_exchange *x)
{
	struct tt_allreduce *a = tt_allreduce_of(x);

	a->all.vector.copiers = &tt_collectives(x->coll->job)->copiers;
	tt_segment_call_begin(&a->direct.call, x->coll, bytes_of(a), a->coll.n);
	if (!a->direct.begun.header)
		return 0;
	tt_segment_call_go_on(&a->direct.call, a->direct.begun.header, a->all.vector.in);
	a->direct.phase = a->direct.begun.stored ? STORED : MEET;
	if (a->direct.begun.stored)
		tt_segment_call_stored(&a->direct.call);
	return 0;
}

static void release(struct tt_exchange *x)
{
	struct tt_direct *d = &tt_allreduce_of(x)->direct;

	tt_segment_call_end(&d->call, d->phase == DONE);
}

const struct tt_algorithm tt_direct = { "direct", begin, advance, release, NULL };
