/* blocks.c - blocks of a vector in the shared segment of one host: each owner combines its block, and all ranks fetch
 * it
 *
 *                  vectors            combined          exchanged                      vectors            gathered
 *      rank 0      a0 | b0 | c0       a0 + a1 + a2      a0 | a1 | a2                   a  |    |          a | b | c
 *      rank 1      a1 | b1 | c1       b0 + b1 + b2      b0 | b1 | b2                      | b  |          a | b | c
 *      rank 2      a2 | b2 | c2       c0 + c1 + c2      c0 | c1 | c2                      |    | c        a | b | c
 *
 *      mapped    every rank reads what it needs from the others' vectors; no rank writes to them
 *      passed    other vectors go piece by piece through rank slots, which stay in the caches, with one flag for each
 *                piece: a rank that has published piece k has taken all of piece k - 1. Piece k overwrites piece k - 2
 *
 * The owners are all ranks of the host, or some. Order of additions: ((0 + 1) + 2) + ..., each element once; f16 and
 * bf16 are added in f32 and rounded once at the end.
 */
#include "collective/collective_private.h"
#include "engine/engine.h"
#include "kernel/kernel.h"
#include <string.h>

enum { SHORT = 32 * 1024 }; /* bytes to read from others: up to this many, vectors are not mapped */

enum phase { TURN, MEET, READ, FILL, TAKE, READY, LEAVE, DONE }; /* a first stage begins with TURN, others READY */

static const struct tt_segment *segment_of(const struct tt_blocks *b) { return b->call.segment; }
static bool is_owner(const struct tt_blocks *b, int i) { return i >= b->first && i < b->first + b->owners; }
static bool gathers(const struct tt_blocks *b) { return b->stage == TT_BLOCKS_GATHER; }

/* The most that any rank reads from others. */
static size_t reads(const struct tt_blocks *b)
{
	size_t block = b->bytes / (size_t)b->owners;

	return gathers(b) ? b->bytes - (b->owners > 1 ? block : 0) : block * (size_t)(segment_of(b)->n - 1);
}

static bool offers(const struct tt_blocks *b)
{
	return reads(b) > SHORT && tt_vector_can_map(&b->vector) && (!gathers(b) || is_owner(b, segment_of(b)->me));
}

struct tt_span tt_blocks_span(const struct tt_blocks *b, int i)
{
	if (!is_owner(b, i))
		return (struct tt_span){ 0 };
	i -= b->first;
	if (b->spans)
		return b->spans[i];
	return b->each ? (struct tt_span){ (size_t)i * b->each, b->each } : tt_span_of(b->bytes, b->owners, i);
}

/* ---- pieces: of all blocks at once ---- */

static size_t longest(const struct tt_blocks *b)
{
	size_t lines = (b->bytes + TT_CACHE_LINE - 1) / TT_CACHE_LINE;

	return b->each ? b->each : (lines + (size_t)b->owners - 1) / (size_t)b->owners * TT_CACHE_LINE;
}

static size_t piece_len(const struct tt_blocks *b)
{
	size_t rooms = gathers(b) ? 1 : (size_t)b->owners;

	return TT_SEGMENT_CHUNK / rooms / TT_CACHE_LINE * TT_CACHE_LINE;
}

static struct tt_span piece_of(const struct tt_blocks *b, int owner)
{
	struct tt_span s = tt_blocks_span(b, owner);
	size_t at = tt_min(b->at, s.len);

	return (struct tt_span){ s.at + at, tt_min(piece_len(b), s.len - at) };
}

/* Where rank i's slot has the piece of that owner's block. */
static char *piece_at(const struct tt_blocks *b, int i, int owner)
{
	return tt_segment_call_buffer(&b->call, i) + (gathers(b) ? 0 : (size_t)(owner - b->first) * piece_len(b));
}

/* With what others take: a piece of my block to gather, else pieces for their blocks. */
static void fill_buffer(const struct tt_blocks *b)
{
	int me = segment_of(b)->me;

	for (int i = b->first; i < b->first + b->owners; i++) {
		struct tt_span s = piece_of(b, i);
		if ((i == me) == gathers(b))
			tt_vector_read(&b->vector, s.at, piece_at(b, me, i), s.len);
	}
}

/* ---- a run of bytes ---- */

/* A result of this length leaves the caches before it is read. If it is not written in place, it need not enter
 * them. */
static bool is_far(const struct tt_blocks *b)
{
	struct tt_span mine = tt_blocks_span(b, segment_of(b)->me);

	return mine.len >= TT_STREAM_FROM && b->to && b->to != b->vector.in + mine.at;
}

/* Rank i's run of that owner's block. */
static const char *run_of(const struct tt_blocks *b, int i, int owner, struct tt_span s)
{
	const struct tt_segment *segment = segment_of(b);

	if (i == segment->me)
		return b->vector.in + s.at;
	if (b->call.mapped)
		return segment->peers[i].vector + s.at;
	return piece_at(b, i, owner) + (s.at - piece_of(b, owner).at);
}

static void combine(const struct tt_blocks *b, struct tt_span s)
{
	const struct tt_segment *segment = segment_of(b);
	size_t begin = tt_blocks_span(b, segment->me).at;
	const void *from[TT_SEGMENT_RANKS];
	void *to;
	struct tt_many many = { .from = from, .to = &to, .inputs = segment->n, .outputs = 1, .stream = is_far(b) };
	struct tt_run r;

	for (; s.len; s.at += r.len, s.len -= r.len) {
		r = tt_vector_run(&b->vector, s.at, s.len);
		to = b->wide ? (void *)(b->wide + s.at / b->width) : b->to ? b->to + (s.at - begin) : r.out;
		for (int i = 0; i < segment->n; i++)
			from[i] = i == segment->me ? r.in : run_of(b, i, segment->me, s);
		if (b->wide)
			tt_reduce_wide(&many, r.len / b->width, b->type, b->rule);
		else
			tt_reduce_many(&many, r.len / b->width, b->type, b->rule);
	}
}

static void collect(const struct tt_blocks *b, struct tt_span s)
{
	const struct tt_segment *segment = segment_of(b);
	size_t at = s.at - tt_blocks_span(b, segment->me).at;

	for (int i = 0; i < segment->n; i++)
		memcpy(b->to + (size_t)i * b->each + at, run_of(b, i, segment->me, s), s.len);
}

static void take_run(const struct tt_blocks *b, int owner, struct tt_span s)
{
	if (gathers(b))
		tt_vector_write(&b->vector, s.at, run_of(b, owner, owner, s), s.len);
	else if (b->stage == TT_BLOCKS_EXCHANGE)
		collect(b, s);
	else
		combine(b, s);
}

/* ---- the steps: 1: go on; 0: wait; -errno ---- */

static int take_turn(struct tt_blocks *b)
{
	struct tt_segment_call *v = &b->call;

	if (!tt_segment_call_turn(v))
		return 0;
	if (offers(b))
		tt_segment_call_offer(v, b->vector.in);
	if (!v->standing)
		fill_buffer(b);
	tt_segment_call_step(v);
	b->phase = MEET;
	return 1;
}

static int meet(struct tt_blocks *b)
{
	struct tt_segment_call *v = &b->call;
	int k = tt_segment_call_meet(v);

	if (k > 0)
		b->phase = v->mapped ? READ : v->some_offer ? FILL : TAKE;
	v->busy = b->phase == READ;
	return k;
}

/* The next run to take: of my block, or to gather of the others'. */
static bool next_run(struct tt_blocks *b, size_t most, struct tt_span *s)
{
	int me = segment_of(b)->me;

	for (; b->owner < b->first + b->owners; b->owner++, b->at = 0) {
		*s = tt_blocks_span(b, b->owner);
		if ((b->owner == me) == gathers(b) || b->at == s->len)
			continue;
		s->at += b->at;
		s->len = tt_min(most, s->len - b->at);
		b->at += s->len;
		return true;
	}
	return false;
}

static int read_mapped(struct tt_blocks *b)
{
	struct tt_span s = { 0 };

	for (size_t left = TT_SEGMENT_CALL_PIECES * TT_SEGMENT_CALL_PIECE; left; left -= s.len) {
		if (!next_run(b, gathers(b) ? left : tt_min(left, TT_SEGMENT_CALL_PIECE), &s)) {
			b->call.busy = false;
			b->phase = DONE;
			return 1;
		}
		take_run(b, b->owner, s);
	}
	return 0;
}

static int fill(struct tt_blocks *b)
{
	fill_buffer(b);
	tt_segment_call_step(&b->call);
	b->phase = TAKE;
	return 1;
}

static void take_piece(struct tt_blocks *b)
{
	int me = segment_of(b)->me;

	for (int i = b->first; i < b->first + b->owners; i++)
		if ((i == me) != gathers(b))
			take_run(b, i, piece_of(b, i));
}

static int take(struct tt_blocks *b)
{
	int k = tt_segment_call_all(&b->call);

	if (k <= 0)
		return k;
	take_piece(b);
	b->at += piece_len(b);
	tt_segment_call_next_buffer(&b->call);
	if ((k = tt_segment_call_still(&b->call)) > 0)
		b->phase = b->at < longest(b) ? FILL : DONE;
	return k;
}

/* All ranks have read what they combine, so owners' blocks are complete; or what they gather, so my vector is free. */
static int pass(struct tt_blocks *b)
{
	int k = tt_segment_call_all(&b->call);

	if (k > 0)
		b->phase = b->phase == READY ? READ : DONE;
	b->call.busy = b->phase == READ;
	return k;
}

static int (*const steps[])(struct tt_blocks *) = {
	[TURN] = take_turn, [MEET] = meet, [READ] = read_mapped, [FILL] = fill,
	[TAKE] = take, [READY] = pass, [LEAVE] = pass,
};

static int advance(struct tt_blocks *b)
{
	int k = tt_segment_call_check(&b->call);

	while (k > 0 && b->phase != DONE && tt_segment_call_may_go_on(&b->call))
		k = steps[b->phase](b);
	return k < 0 ? k : b->phase == DONE;
}

static enum phase first_phase(const struct tt_blocks *b, enum tt_blocks_stage stage)
{
	if (stage == TT_BLOCKS_LEAVE)
		return b->call.mapped ? LEAVE : DONE;
	if (!b->stage)
		return b->begun ? MEET : TURN;
	return b->call.mapped ? READY : FILL;
}

static void begin_stage(struct tt_blocks *b, enum tt_blocks_stage stage)
{
	b->phase = first_phase(b, stage);
	b->stage = stage;
	if (gathers(b))
		b->vector.in = b->vector.out; /* blocks that were combined, perhaps */
	b->at = 0;
	b->owner = b->first;
	if (b->phase == READY || b->phase == LEAVE)
		tt_segment_call_step(&b->call);
}

int tt_blocks_run(struct tt_blocks *b, enum tt_blocks_stage stage)
{
	if (b->stage < stage)
		begin_stage(b, stage);
	return b->stage > stage ? 1 : advance(b);
}

void tt_blocks_begin(struct tt_blocks *b, struct tt_coll *c, enum tt_blocks_stage first)
{
	int all = tt_coll_group(c->group)->segment->n;

	b->vector.copiers = &tt_collectives(c->job)->copiers;
	tt_segment_call_begin(&b->call, c, b->bytes, first == TT_BLOCKS_GATHER ? b->owners : all);
	if (b->begun)
		tt_segment_call_go_on(&b->call, b->begun, NULL);
}

void tt_blocks_end(struct tt_blocks *b)
{
	tt_segment_call_end(&b->call, b->stage == TT_BLOCKS_LEAVE && b->phase == DONE);
}
