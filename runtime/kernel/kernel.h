/* kernel.h - element-wise kernels: vectors in, vectors out; they know no job */
#ifndef TT_KERNEL_H
#define TT_KERNEL_H
#include "base/base.h"
#include "tutti.h"

/* ---- reduce.c: any alignment. An output is exactly an input, or does not overlap any ---- */

enum { TT_STREAM_FROM = 4 << 20 }; /* bytes from which an output that is not an input should bypass the caches */

struct tt_many { /* vectors of equal count */
	const void *const *from; /* one or more; each is read once */
	void *const *to;         /* one or more; all get the result */
	int inputs, outputs;
	bool stream; /* bypass the caches, if all outputs have the same offset within a line */
};

/* acc = acc op in; or to = a op b. AVERAGE adds; tt_scale then divides by n (integers towards zero). */
void tt_reduce(void *acc, const void *in, size_t count, tutti_type, tutti_rule);
void tt_reduce_to(void *to, const void *a, const void *b, size_t count, tutti_type, tutti_rule);
void tt_scale(void *acc, size_t count, tutti_type, unsigned n);
void tt_reduce_alone(void *acc, size_t count, tutti_type); /* combines one vector: BOOL becomes 0 or 1 */
bool tt_rule_takes(tutti_rule, tutti_type); /* of those that exist */
/* ((in0 op in1) op in2) op ..., for f16 and bf16 in f32 and rounded once, at the end. AVERAGE divides by inputs. */
void tt_reduce_many(const struct tt_many *, size_t count, tutti_type, tutti_rule);
/* Of f16 and bf16, without the rounding and the division: to[0] is f32, and is no input. */
void tt_reduce_wide(const struct tt_many *, size_t count, tutti_type, tutti_rule);
/* These three take f32, f64, f16 and bf16. Factors are rounded to the type first (f16, bf16: to f32).
 * to = by_a a + by_b b. Gossip: x = (1 - w) x + w y, in place or into the next buffer. A rule: y = 1 y + a x. */
void tt_blend(void *to, double by_a, const void *a, double by_b, const void *b, size_t count, tutti_type);
/* The same of a part of longer vectors, of which `to` is neither a nor b. stream: bypass the caches. */
void tt_blend_part(void *to, double by_a, const void *a, double by_b, const void *b, size_t count, tutti_type,
                   bool stream);
/* Elastic averaging: one rank's part of a round in which the moves of all ranks are summed: center = center + sum, of
 * the last round; sum = alpha (x - center), which this rank gives; x = x - sum. Each of the three is rounded to the
 * type. x NULL: the center takes the sum, and no more. wide: of f16 and bf16 the center in f32, not rounded, at first
 * zeros; where the caller has set the center, wide follows. NULL of f32 and f64. */
void tt_elastic_round(void *x, void *center, void *wide, void *sum, double alpha, size_t count, tutti_type);
/* Between f32 and f16 or bf16, at any alignment; they do not overlap. from_f32 rounds to the nearest, ties to even. */
void tt_to_f32(void *to, const void *from, size_t count, tutti_type);
void tt_from_f32(void *to, const void *from, size_t count, tutti_type);
const char *tt_reduce_use(int level); /* 0: plain; -1: the best. Its name; NULL: none */

/* ---- rows: no processor predicts which one comes next ---- */

enum { TT_ROWS_AHEAD = 8, TT_LOOK_BYTES = 1024 }; /* to prefetch: rows, and bytes of each */

static inline void tt_look_at(const char *row, size_t bytes, bool to_write)
{
	for (size_t at = 0; at < bytes && at < TT_LOOK_BYTES; at += TT_CACHE_LINE)
		if (to_write)
			__builtin_prefetch(row + at, 1);
		else
			__builtin_prefetch(row + at);
}

/* ---- feedback.c ---- */

/* to = bf16(g + rest), then rest = g + rest - to; where that is no number, rest is 0. They do not overlap. g: f32 at
 * any alignment. */
void tt_feed_back(uint16_t *to, float *rest, const void *g, size_t count);

/* ---- norm.c ---- */

/* The sum of (a - b)^2, made in f64. b NULL: the sum of a^2. f32, f64, f16, bf16. */
double tt_square_distance(const void *a, const void *b, size_t count, tutti_type);

/* ---- updater.c: a table's rule and its state, for one shard ----
 *
 * A server opens an updater for each shard. It begins each push once, and applies the push range by range as chunks
 * arrive:
 *
 *   tt_updater_begin(u, worker, options, &push)       checks the options, counts t
 *   tt_updater_apply(&push, first, count, &piece)     for each range, while it is in the cache
 *   tt_updater_apply_rows(&push, &rows)               for ranges of many rows at once
 *
 * Any thread may call apply, on ranges that do not overlap; apply cannot fail. All other functions need the server's
 * lock. A push under way stays valid after a join, and after a resize followed by tt_updater_follow. State is planar:
 * each array holds one number (f64 for f64, else f32) for each element of the shard. */

enum { TT_UPDATE_STATES = 4 }; /* the most arrays of one worker */

/* The factors of a rule's equation, computed once a push: see weigh() in updater.c. */
#define TT_FACTORS(X) \
	X(scale) X(decay) X(shrink) X(rate) X(keep) X(fresh) X(keep2) X(fresh2) X(root) X(epsilon) X(compensation) \
	X(per_alpha) X(beta) X(l1) X(l2)
#define TT_FACTOR(name) double name;
struct tt_factors {
	TT_FACTORS(TT_FACTOR)
};
#undef TT_FACTOR

struct tt_updater;
struct tt_push { /* one push to this shard, from begin to its last range */
	const struct tt_updater *updater;
	tutti_update options; /* with all defaults */
	uint64_t t;           /* the shard's push number, from 1 */
	struct tt_factors factors;
	void *state[TT_UPDATE_STATES];
};
struct tt_piece { /* a range: all pointers are at element `first`; any alignment */
	void *to;          /* the new values: w itself, or another copy of the shard */
	const void *w, *d; /* values and deltas; to is w or apart from it, and d is apart from both */
	void *out;         /* what the rule gives back to the worker: d itself, or apart from all; NULL: not wanted */
};
struct tt_rows_piece { /* the same range of each of several rows, which are changed in place */
	void *w;                /* the values of the shard, at its first element; any alignment */
	const void *d;          /* deltas, row after row; apart from w, any alignment */
	const uint64_t *places; /* the numbers of the rows in the shard. A row that comes twice changes twice */
	size_t n, row, at, count; /* n rows of `row` elements each. The range: elements at .. at + count of a row */
};
size_t tt_rows_adjacent(const struct tt_rows_piece *, size_t from); /* how many from there are one range of the shard */
struct tt_state {
	const char *name; /* "m", say; part of the file format */
	int worker;       /* -1: shared by all workers */
	void *at;
	size_t bytes;
};

int tt_updater_check(const tutti_updater *, tutti_type); /* rule, type and defaults: 0 or -EINVAL */
int tt_update_check(const tutti_updater *, const tutti_update *); /* a push's options (NULL: none): 0 or -EINVAL */
int tt_updater_open(const tutti_updater *, tutti_type, size_t count, int workers, struct tt_updater **);
void tt_updater_close(struct tt_updater *); /* NULL is allowed */
int tt_updater_join(struct tt_updater *, int workers); /* grows to so many; call `assigned` for each new one */
int tt_updater_resize(struct tt_updater *, size_t count); /* elements; state of new ones is 0. Nothing is copied */
void tt_updater_follow(struct tt_push *); /* a push under way, after a resize */
/* Values from `first` on were set (worker -1), or this worker now has them: updates the state that follows from values
 * (DCASGD's b, FTRL's z). Not for values that were loaded with their state. */
void tt_updater_assigned(struct tt_updater *, int worker, const void *w, size_t first, size_t count);
int tt_updater_begin(struct tt_updater *, int worker, const tutti_update *, struct tt_push *); /* 0 or -EINVAL */
void tt_updater_apply(const struct tt_push *, size_t first, size_t count, const struct tt_piece *);
void tt_updater_apply_rows(const struct tt_push *, const struct tt_rows_piece *); /* nothing is given back */
bool tt_updater_gives_back(const tutti_updater *); /* does the rule write `out`? */
/* For saves: the arrays, in an order to which joins only append, and t. */
int tt_updater_states(const struct tt_updater *);
struct tt_state tt_updater_state(const struct tt_updater *, int i);
uint64_t tt_updater_pushes(const struct tt_updater *);
void tt_updater_set_pushes(struct tt_updater *, uint64_t t);
const char *tt_update_name(tutti_update_rule); /* "adam"; NULL: no such rule */
#endif
