/* pairwise.c - reduce-scatter, all-gather and all-to-all, the latter two also of any sizes
 *
 * In step k I send to rank me + k, and rank me - k sends to me (Thakur, Rabenseifner, Gropp 2005). No rank forwards
 * data, so each byte travels once. A rank gets only a few steps ahead of what has come in, so that a late rank is not
 * flooded. Where all ranks share a host, each reads what it needs from memory (blocks.c), except for long blocks that
 * are not added.
 *
 * Order of additions of reduce-scatter: in steps, rank r adds the blocks of ranks r-1, r-2, ..., r-n+1 (mod n) to its
 * own one after another; in memory ((0 + 1) + 2) + ... Both in f32 for f16 and bf16, and rounded once.
 */
#include "collective/collective_private.h"
#include "kernel/kernel.h"
#include "member/member.h"
#include <stdlib.h>
#include <string.h>

enum {
	AHEAD = 8,
	AHEAD_ADDING = 2,         /* fewer, because each step has slots of its own */
	OF_ONE_SIZE = 0, OF_ANY_SIZES, /* ranks must agree on which */
};

struct pairwise {
	struct tt_blockwise either; /* its blocks describe the data for the steps, too */
	struct tt_transfers transfers;
	struct tt_span spans[];     /* all-gather of any sizes: each rank's block */
};

static int advance(struct tt_coll *c) { return tt_transfers_advance(&((struct pairwise *)c)->transfers); }
static void release(struct tt_coll *c) { tt_transfers_free(&((struct pairwise *)c)->transfers); }

/* Adds step k: `out` goes to the rank k places on, `in` comes from the one k places back. */
static void add_step(struct pairwise *p, int k, struct tt_span out, struct tt_span in)
{
	struct tt_transfers *l = &p->transfers;
	int n = p->either.coll.n, next = (p->either.coll.me + k) % n, last = (p->either.coll.me - k + n) % n;

	l->out[l->outs++] = (struct tt_transfer){ .other = next, .id = (uint32_t)k, .at = out.at, .len = out.len,
	                                          .given = true };
	l->in[l->ins++] = (struct tt_transfer){ .other = last, .id = (uint32_t)k, .at = in.at, .len = in.len };
}

/* ---- blocks of one size, or all-gather of any: all ranks know all blocks ---- */

/* Sums of f16 and bf16 are made in f32, and rounded once. */
static int begin_wide(struct tt_transfers *l, const struct tt_blocks *b, struct tt_span mine)
{
	struct tt_coll *c = l->coll;
	size_t len = b->each / b->width * sizeof(float);

	if (!(c->room = tt_scratch_take_room(&c->job->scratch, len)))
		return tt_fail(-ENOMEM, "no memory for %zu bytes of partial sums", len);
	l->wide = c->room;
	tt_to_f32(l->wide, b->vector.in + mine.at, b->each / b->width, b->type);
	return 0;
}

static int begin(struct tt_coll *c)
{
	struct pairwise *p = (struct pairwise *)c;
	const struct tt_blocks *b = &p->either.blocks;
	bool reduces = p->either.stage == TT_BLOCKS_REDUCE, gathers = p->either.stage == TT_BLOCKS_GATHER;
	struct tt_span mine = tt_blocks_span(b, c->me);
	struct tt_transfers *l = &p->transfers;
	int err = tt_transfers_new(l, c, c->n - 1, reduces ? AHEAD_ADDING : AHEAD);

	if (err)
		return err;
	l->vector = gathers ? b->vector : (struct tt_vector){ .in = b->vector.in, .out = b->to };
	l->width = b->width;
	l->type = b->type;
	l->rule = b->rule;
	l->always = b->spans; /* all ranks hear from all, and so notice when they disagree */
	for (int k = 1; k < c->n; k++) {
		struct tt_span next = tt_blocks_span(b, (c->me + k) % c->n);
		struct tt_span last = tt_blocks_span(b, (c->me - k + c->n) % c->n);
		add_step(p, k, gathers ? mine : next, reduces ? (struct tt_span){ 0, b->each } : last);
		l->in[k - 1].combine = l->out[k - 1].combine = reduces;
		l->in[k - 1].last = reduces && k == c->n - 1;
	}
	if (reduces && b->each && c->n > 1 && tt_coll_rounds(b->type, b->rule))
		return begin_wide(l, b, mine);
	if (!gathers && b->each) /* when reducing, the steps add to it */
		tt_vector_write(&l->vector, reduces ? 0 : mine.at, b->vector.in + mine.at, mine.len);
	if (reduces && c->n == 1)
		tt_reduce_alone(l->vector.out, b->each / b->width, b->type);
	return 0;
}

static const struct {
	enum tt_blocks_stage stage;
	size_t most, most_of_two;   /* bytes of a block: longer ones travel in steps on one host, too: no slower. Of two
	                             * ranks a step saves half of the copies */
} ways[] = {
	[TUTTI_STAT_REDUCE_SCATTER] = { TT_BLOCKS_REDUCE, SIZE_MAX, SIZE_MAX },
	[TUTTI_STAT_ALLGATHER] = { TT_BLOCKS_GATHER, 1024 * 1024, 256 * 1024 },
	[TUTTI_STAT_GATHER] = { TT_BLOCKS_GATHER, 1024 * 1024, 256 * 1024 },
	[TUTTI_STAT_ALLTOALL] = { TT_BLOCKS_EXCHANGE, 256 * 1024, 256 * 1024 },
};

/* All ranks must agree on x and y. bytes, at: each rank's block if they differ, else NULL. */
static int run(struct tutti *group, tutti_stat_kind kind, uint64_t x, uint64_t y, const struct tt_blocks *b,
               const size_t bytes[], const size_t at[], size_t counted, tutti_op *op)
{
	size_t most = group->n == 2 ? ways[kind].most_of_two : ways[kind].most;
	bool may_use_segment = b->bytes && b->each <= most, out_of_in = ways[kind].stage != TT_BLOCKS_GATHER;
	size_t spans = bytes ? (size_t)group->n * sizeof(struct tt_span) : 0;
	struct pairwise *p = (void *)tt_blockwise_new(group, sizeof *p + spans, kind, x, y, b, may_use_segment);

	if (!p)
		return -ENOMEM;
	for (int r = 0; bytes && r < group->n; r++)
		p->spans[r] = (struct tt_span){ at[r], bytes[r] };
	p->either.blocks.spans = bytes ? p->spans : NULL;
	p->either.stage = ways[kind].stage;
	p->either.begin = begin;
	p->either.advance = advance;
	p->either.release = release;
	p->either.coll.bytes = counted;
	p->either.coll.memory[out_of_in].base = b->vector.in; /* what is gathered is in one vector */
	p->either.coll.memory[out_of_in].len = b->bytes;
	if (kind == TUTTI_STAT_ALLTOALL) {
		p->either.coll.memory[0].base = b->to;
		p->either.coll.memory[0].len = b->bytes;
	}
	return tt_coll_run(&p->either.coll, op);
}

/* bytes: of each rank */
static int check_size(const char *what, int n, size_t bytes, const void *in, const void *out)
{
	int err;

	if (bytes > PTRDIFF_MAX / (size_t)n)
		return tt_fail(-EINVAL, "%s: %zu bytes for each of %d ranks are more than memory can hold", what, bytes,
		               n);
	if (bytes && (!in || !out))
		return tt_fail(-EINVAL, "%s: each rank has %zu bytes, and in or out is NULL", what, bytes);
	return (err = tt_host_only(what, "in", in, bytes)) ? err : tt_host_only(what, "out", out, bytes);
}

int tutti_reduce_scatter(tutti *group, const void *in, void *out, size_t count, tutti_type type, tutti_rule rule,
                         tutti_op *op)
{
	size_t width = tt_type_size(type), bytes;
	int err = tt_group_usable(group);

	if (err)
		return err;
	int n = group->n, me = group->me;
	if ((err = tt_coll_check_rule("reduce-scatter", type, rule)))
		return err;
	bytes = count > PTRDIFF_MAX / width ? SIZE_MAX : count * width;
	if ((err = check_size("reduce-scatter", n, bytes, in, out)))
		return err;
	const char *mine = in ? (const char *)in + (size_t)me * bytes : NULL;
	if (out != mine && tt_overlap(in, (size_t)n * bytes, out, bytes))
		return tt_fail(-EINVAL, "reduce-scatter: out overlaps in; it may only be this rank's own block of it");
	struct tt_blocks blocks = { .vector.in = in, .bytes = (size_t)n * bytes, .owners = n, .each = bytes, .to = out,
		                    .width = width, .type = type, .rule = rule };
	uint64_t how = (uint64_t)type << 8 | (uint64_t)rule;
	return run(group, TUTTI_STAT_REDUCE_SCATTER, count, how, &blocks, NULL, NULL, blocks.bytes, op);
}

static int allgather(struct tutti *group, tutti_stat_kind kind, uint64_t y, const void *in, size_t bytes, void *out,
                     tutti_op *op)
{
	int n = group->n, me = group->me;
	char *mine = out ? (char *)out + (size_t)me * bytes : NULL;
	if (in != mine && tt_overlap(in, bytes, out, (size_t)n * bytes))
		return tt_fail(-EINVAL, "%s: what this rank gives overlaps the result; it may only be this rank's own "
		               "place there", tt_stats_name(kind));
	struct tt_blocks blocks = { .vector = tt_vector_at(out), .bytes = (size_t)n * bytes, .owners = n,
		                    .each = bytes };
	if (in != mine && bytes)
		memcpy(mine, in, bytes);
	return run(group, kind, bytes, y, &blocks, NULL, NULL, bytes, op);
}

int tt_gather_to_all(struct tutti *group, const void *value, size_t bytes, void *all, tutti_op *op)
{
	return allgather(group, TUTTI_STAT_GATHER, (uint64_t)-1, value, bytes, all, op);
}

int tutti_allgather(tutti *group, const void *in, size_t bytes, void *out, tutti_op *op)
{
	int err = tt_group_usable(group);

	if (err || (err = check_size("all-gather", group->n, bytes, in, out)))
		return err;
	return allgather(group, TUTTI_STAT_ALLGATHER, OF_ONE_SIZE, in, bytes, out, op);
}

int tutti_alltoall(tutti *group, const void *in, size_t bytes, void *out, tutti_op *op)
{
	int err = tt_group_usable(group);

	if (err || (err = check_size("all-to-all", group->n, bytes, in, out)))
		return err;
	int n = group->n;
	if (tt_overlap(in, (size_t)n * bytes, out, (size_t)n * bytes))
		return tt_fail(-EINVAL, "all-to-all: in and out overlap");
	struct tt_blocks blocks = { .vector.in = in, .bytes = (size_t)n * bytes, .owners = n, .each = bytes,
		                    .to = out };
	return run(group, TUTTI_STAT_ALLTOALL, bytes, OF_ONE_SIZE, &blocks, NULL, NULL, blocks.bytes, op);
}

/* ---- blocks of any sizes ---- */

static int check_blocks(const char *what, int n, const char *side, const void *base, const size_t *bytes,
                        const size_t *from)
{
	int err = 0;

	if (!bytes || !from)
		return tt_fail(-EINVAL, "%s: the sizes or places of %s are NULL", what, side);
	for (int r = 0; !err && r < n; r++) {
		if (bytes[r] && (!base || bytes[r] > PTRDIFF_MAX || from[r] > PTRDIFF_MAX - bytes[r]))
			return tt_fail(-EINVAL, "%s: %zu bytes at %zu of %s, for rank %d, are in no memory", what,
			               bytes[r], from[r], side, r);
		err = tt_host_only(what, side, (const char *)base + from[r], bytes[r]);
	}
	return err;
}

int tutti_allgatherv(tutti *group, const void *in, size_t in_bytes, void *out, const size_t bytes[], const size_t at[],
                     tutti_op *op)
{
	int err = tt_group_usable(group);

	if (err || (err = check_blocks("all-gather", group->n, "out", out, bytes, at)))
		return err;
	int n = group->n, me = group->me;
	struct tt_blocks blocks = { .vector = tt_vector_at(out), .owners = n };
	if (in_bytes != bytes[me] || (in_bytes && !in))
		return tt_fail(-EINVAL, "all-gather: rank %d, this one, gives %zu bytes at %p, and its place in out "
		               "has %zu", me, in_bytes, in, bytes[me]);
	if ((err = tt_host_only("all-gather", "in", in, in_bytes)))
		return err;
	for (int r = 0; r < n; r++) {
		const char *place = bytes[r] ? (const char *)out + at[r] : NULL;
		if ((r != me || in != place) && tt_overlap(in, in_bytes, place, bytes[r]))
			return tt_fail(-EINVAL, "all-gather: in overlaps the place of rank %d in out; it may only be "
			               "this rank's own place", r);
		blocks.each = tt_max(blocks.each, bytes[r]);
		blocks.bytes = bytes[r] ? tt_max(blocks.bytes, at[r] + bytes[r]) : blocks.bytes;
	}
	tt_vector_write(&blocks.vector, at[me], in, in_bytes);
	uint64_t sizes = tt_hash(TT_HASH, bytes, (size_t)n * sizeof *bytes);
	uint64_t what = sizes << 32 | tt_hash(TT_HASH, at, (size_t)n * sizeof *at);
	return run(group, TUTTI_STAT_ALLGATHER, what, OF_ANY_SIZES, &blocks, bytes, at, in_bytes, op);
}

/* ---- all-to-all of any sizes: always in steps ---- */

/* From the first block to the end of the last. */
static void set_memory(struct tt_coll *c, int i, const void *base, const size_t bytes[], const size_t from[])
{
	size_t first = SIZE_MAX, end = 0;

	for (int r = 0; r < c->n; r++) {
		first = bytes[r] ? tt_min(first, from[r]) : first;
		end = bytes[r] ? tt_max(end, from[r] + bytes[r]) : end;
	}
	c->memory[i].base = end ? (const char *)base + first : NULL;
	c->memory[i].len = end ? end - first : 0;
}

int tutti_alltoallv(tutti *group, const void *in, const size_t in_bytes[], const size_t in_at[], void *out,
                    const size_t out_bytes[], const size_t out_at[], tutti_op *op)
{
	int err = tt_group_usable(group);

	if (err || (err = check_blocks("all-to-all", group->n, "in", in, in_bytes, in_at)) ||
	    (err = check_blocks("all-to-all", group->n, "out", out, out_bytes, out_at)))
		return err;
	int n = group->n, me = group->me;
	if (in_bytes[me] != out_bytes[me])
		return tt_fail(-EINVAL, "all-to-all: this rank %d has %zu bytes for itself and expects %zu", me,
		               in_bytes[me], out_bytes[me]);
	struct pairwise *p = (void *)tt_coll_new(group, sizeof *p, TUTTI_STAT_ALLTOALL, 0, OF_ANY_SIZES);
	if (!p)
		return -ENOMEM;
	p->either.coll.advance = advance;
	p->either.coll.release = release;
	p->transfers.vector = (struct tt_vector){ .in = in, .out = out };
	p->transfers.always = true;
	if ((err = tt_transfers_new(&p->transfers, &p->either.coll, n - 1, AHEAD))) {
		tt_coll_free(&p->either.coll);
		return err;
	}
	p->either.coll.bytes = in_bytes[me];
	set_memory(&p->either.coll, 0, out, out_bytes, out_at);
	set_memory(&p->either.coll, 1, in, in_bytes, in_at);
	for (int k = 1; k < n; k++) {
		int to = (me + k) % n, from = (me - k + n) % n;
		p->either.coll.bytes += in_bytes[to];
		add_step(p, k, (struct tt_span){ in_at[to], in_bytes[to] },
		         (struct tt_span){ out_at[from], out_bytes[from] });
	}
	if (in_bytes[me])
		memmove((char *)out + out_at[me], (const char *)in + in_at[me], in_bytes[me]);
	return tt_coll_run(&p->either.coll, op);
}
