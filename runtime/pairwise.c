/* pairwise.c - reduce-scatter, all-gather and all-to-all
 *
 * In step k I send to the rank k after me, and the one k before me sends to me (Thakur, Rabenseifner, Gropp 2005). Nothing is passed
 * on for others, so each byte travels once. How far a rank may be ahead of what has come in is limited: a late one is not flooded.
 * Where all ranks share a host's memory, reduce-scatter and shorter all-gathers need no steps: each rank reads there what it is to
 * get (blocks.c).
 *
 * Order of additions of reduce-scatter: in steps, to rank r's own block those of ranks r-1, r-2, ..., r-n+1 (mod n), one after another;
 * through memory ((0 + 1) + 2) + ...
 */
#include "runtime.h"
#include <stdlib.h>
#include <string.h>

enum {
	AHEAD = 8,
	AHEAD_ADDING = 2,         /* each has slots of its own */
	GATHERED = 1024 * 1024,   /* bytes of a block: longer ones are gathered in steps on one host, too, which is faster */
	OF_ONE_SIZE = 0, OF_ANY_SIZES, /* all-to-all: ranks must agree on which */
};

struct pairwise {
	struct tt_coll coll;
	struct tt_legs legs;
};

static int advance(struct tt_coll *c) { return tt_legs_advance(&((struct pairwise *)c)->legs); }
static void release(struct tt_coll *c) { tt_legs_free(&((struct pairwise *)c)->legs); }

/* Step k's two legs; from and to: what goes out, and where the other's comes. */
static void add_step(struct pairwise *p, int k, const void *from, size_t out, void *to, size_t in)
{
	struct tt_legs *l = &p->legs;
	int n = p->coll.n, me = p->coll.me;

	l->out[l->outs++] = (struct tt_leg){ .other = (me + k) % n, .id = (uint32_t)k, .at = (char *)(uintptr_t)from, .len = out };
	l->in[l->ins++] = (struct tt_leg){ .other = (me - k + n) % n, .id = (uint32_t)k, .at = to, .len = in };
}

static char *at(const void *base, size_t offset) { return base ? (char *)(uintptr_t)base + offset : NULL; }

/* ---- reduce-scatter, all-gather ---- */

struct blockwise {
	struct pairwise pair;
	struct tt_blocks blocks;
	bool reduces;
	int (*go_on)(struct blockwise *); /* NULL: not chosen yet */
};

static int go_in_steps(struct blockwise *w) { return tt_legs_advance(&w->pair.legs); }

static int go_through_memory(struct blockwise *w)
{
	int k = w->reduces ? tt_blocks_reduce(&w->blocks) : tt_blocks_gather(&w->blocks);

	return k > 0 ? tt_blocks_leave(&w->blocks) : k;
}

static void add_steps(struct blockwise *w)
{
	const struct tt_blocks *b = &w->blocks;
	struct tt_legs *l = &w->pair.legs;
	int n = w->pair.coll.n, me = w->pair.coll.me;

	for (int k = 1; k < n; k++) {
		int theirs = (me + (w->reduces ? k : n - k)) % n; /* goes out to be added there, or comes from there */
		char *block = at(b->vector, (size_t)theirs * b->each);
		if (!w->reduces) {
			add_step(&w->pair, k, at(b->vector, (size_t)me * b->each), b->each, block, b->each);
			continue;
		}
		add_step(&w->pair, k, block, b->each, b->to, b->each);
		l->in[k - 1].combine = l->out[k - 1].combine = true;
		l->in[k - 1].scale = k == n - 1 && b->rule == TUTTI_AVERAGE;
	}
}

static int begin_steps(struct blockwise *w)
{
	const struct tt_blocks *b = &w->blocks;
	struct tt_legs *l = &w->pair.legs;
	const char *mine = at(b->vector, (size_t)w->pair.coll.me * b->each);
	int err = tt_legs_new(l, &w->pair.coll, w->pair.coll.n - 1, w->reduces ? AHEAD_ADDING : AHEAD);

	if (err)
		return err;
	l->width = b->width;
	l->type = b->type;
	l->rule = b->rule;
	add_steps(w);
	if (w->reduces && b->to != mine && b->each)
		memcpy(b->to, mine, b->each); /* for the steps to add to */
	return 0;
}

static int choose(struct blockwise *w)
{
	struct tt_coll *c = &w->pair.coll;
	bool visits;
	int k = tt_board_decide(c, &visits);

	if (k <= 0)
		return k;
	w->go_on = visits ? go_through_memory : go_in_steps;
	if (!visits)
		return (k = begin_steps(w)) ? k : 1;
	tt_blocks_begin(&w->blocks, c);
	return 1;
}

static int advance_blockwise(struct tt_coll *c)
{
	struct blockwise *w = (struct blockwise *)c;
	int k;

	tt_board_tell(c);
	k = w->go_on ? 1 : choose(w);
	return k > 0 ? w->go_on(w) : k;
}

static void release_blockwise(struct tt_coll *c)
{
	struct blockwise *w = (struct blockwise *)c;

	if (w->go_on == go_through_memory)
		tt_blocks_end(&w->blocks);
	release(c);
}

static struct blockwise *new_blockwise(struct tutti *group, tutti_stat_kind kind, uint64_t x, uint64_t y, const struct tt_blocks *blocks)
{
	struct blockwise *w = (struct blockwise *)tt_coll_new(group, sizeof *w, kind, x, y);
	bool reduces = kind == TUTTI_STAT_REDUCE_SCATTER;

	if (!w)
		return NULL;
	w->pair.coll.undecided = blocks->bytes && (reduces || blocks->each <= GATHERED);
	w->pair.coll.advance = advance_blockwise;
	w->pair.coll.release = release_blockwise;
	w->blocks = *blocks;
	w->reduces = reduces;
	return w;
}

static bool overlap(const void *a, size_t a_len, const void *b, size_t b_len)
{
	uintptr_t x = (uintptr_t)a, y = (uintptr_t)b;

	return a_len && b_len && (x < y ? y - x < a_len : x - y < b_len);
}

static int check_size(const char *what, int n, size_t bytes, const void *in, const void *out)
{
	if (bytes > PTRDIFF_MAX / (size_t)n)
		return tt_fail(-EINVAL, "%s: %zu bytes for each of %d ranks are more than memory can hold", what, bytes, n);
	if (bytes && (!in || !out))
		return tt_fail(-EINVAL, "%s: %zu bytes a rank, and in or out is NULL", what, bytes);
	return 0;
}

int tutti_reduce_scatter(tutti *group, const void *in, void *out, size_t count, tutti_type type, tutti_rule rule, tutti_op *op)
{
	size_t width = tt_type_size(type), bytes;
	int n = group->n, me = group->me, err;

	if (!width || (unsigned)rule > TUTTI_MIN)
		return tt_fail(-EINVAL, "reduce-scatter: type %d or rule %d is unknown", (int)type, (int)rule);
	bytes = count > PTRDIFF_MAX / width ? SIZE_MAX : count * width;
	if ((err = check_size("reduce-scatter", n, bytes, in, out)))
		return err;
	const char *mine = at(in, (size_t)me * bytes);
	if (out != mine && overlap(in, (size_t)n * bytes, out, bytes))
		return tt_fail(-EINVAL, "reduce-scatter: out overlaps in; it may only be this rank's own block of it");
	struct tt_blocks blocks = { .vector = at(in, 0), .bytes = (size_t)n * bytes, .owners = n, .each = bytes, .to = out, .width = width, .type = type,
		                    .rule = rule };
	struct blockwise *w = new_blockwise(group, TUTTI_STAT_REDUCE_SCATTER, count, (uint64_t)type << 8 | (uint64_t)rule, &blocks);
	if (!w)
		return -ENOMEM;
	w->pair.coll.bytes = blocks.bytes;
	return tt_coll_run(&w->pair.coll, op);
}

int tutti_allgather(tutti *group, const void *in, size_t bytes, void *out, tutti_op *op)
{
	int n = group->n, me = group->me, err = check_size("all-gather", n, bytes, in, out);

	if (err)
		return err;
	char *mine = at(out, (size_t)me * bytes);
	if (in != mine && overlap(in, bytes, out, (size_t)n * bytes))
		return tt_fail(-EINVAL, "all-gather: in overlaps out; it may only be this rank's own place in it");
	struct tt_blocks blocks = { .vector = out, .bytes = (size_t)n * bytes, .owners = n, .each = bytes };
	struct blockwise *w = new_blockwise(group, TUTTI_STAT_ALLGATHER, bytes, 0, &blocks);
	if (!w)
		return -ENOMEM;
	w->pair.coll.bytes = bytes;
	if (in != mine && bytes)
		memcpy(mine, in, bytes);
	return tt_coll_run(&w->pair.coll, op);
}

/* ---- all-to-all ---- */

static struct pairwise *new_pairwise(struct tutti *group, uint64_t x, uint64_t y)
{
	struct pairwise *p = (struct pairwise *)tt_coll_new(group, sizeof *p, TUTTI_STAT_ALLTOALL, x, y);

	if (!p)
		return NULL;
	p->coll.advance = advance;
	p->coll.release = release;
	if (!tt_legs_new(&p->legs, &p->coll, p->coll.n - 1, AHEAD))
		return p;
	tt_coll_free(&p->coll);
	return NULL;
}

int tutti_alltoall(tutti *group, const void *in, size_t bytes, void *out, tutti_op *op)
{
	int n = group->n, me = group->me, err = check_size("all-to-all", n, bytes, in, out);

	if (err)
		return err;
	if (overlap(in, (size_t)n * bytes, out, (size_t)n * bytes))
		return tt_fail(-EINVAL, "all-to-all: in and out overlap");
	struct pairwise *p = new_pairwise(group, bytes, OF_ONE_SIZE);
	if (!p)
		return -ENOMEM;
	p->coll.bytes = (size_t)n * bytes;
	for (int k = 1; k < n; k++)
		add_step(p, k, at(in, (size_t)((me + k) % n) * bytes), bytes, at(out, (size_t)((me - k + n) % n) * bytes), bytes);
	if (bytes)
		memcpy(at(out, (size_t)me * bytes), at(in, (size_t)me * bytes), bytes);
	return tt_coll_run(&p->coll, op);
}

static int check_blocks(int n, const char *side, const void *base, const size_t *bytes, const size_t *from)
{
	if (!bytes || !from)
		return tt_fail(-EINVAL, "all-to-all: the sizes or places of %s are NULL", side);
	for (int r = 0; r < n; r++)
		if (bytes[r] && (!base || bytes[r] > PTRDIFF_MAX || from[r] > PTRDIFF_MAX - bytes[r]))
			return tt_fail(-EINVAL, "all-to-all: %zu bytes at %zu of %s, for rank %d, are in no memory", bytes[r], from[r], side, r);
	return 0;
}

int tutti_alltoallv(tutti *group, const void *in, const size_t in_bytes[], const size_t in_at[], void *out, const size_t out_bytes[],
                    const size_t out_at[], tutti_op *op)
{
	int n = group->n, me = group->me, err;

	if ((err = check_blocks(n, "in", in, in_bytes, in_at)) || (err = check_blocks(n, "out", out, out_bytes, out_at)))
		return err;
	if (in_bytes[me] != out_bytes[me])
		return tt_fail(-EINVAL, "all-to-all: this rank %d has %zu bytes for itself and expects %zu", me, in_bytes[me], out_bytes[me]);
	struct pairwise *p = new_pairwise(group, 0, OF_ANY_SIZES);
	if (!p)
		return -ENOMEM;
	p->legs.always = true;
	p->coll.bytes = in_bytes[me];
	for (int k = 1; k < n; k++) {
		int to = (me + k) % n, from = (me - k + n) % n;
		p->coll.bytes += in_bytes[to];
		add_step(p, k, at(in, in_at[to]), in_bytes[to], at(out, out_at[from]), out_bytes[from]);
	}
	if (in_bytes[me])
		memmove(at(out, out_at[me]), at(in, in_at[me]), in_bytes[me]);
	return tt_coll_run(&p->coll, op);
}
