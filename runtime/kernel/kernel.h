/* kernel.h - element-wise kernels: vectors in, vectors out; they know no job */
#ifndef TT_KERNEL_H
#define TT_KERNEL_H
#include "base/base.h"
#include "tutti.h"

/* ---- reduce.c: element-wise kernels. Any alignment; an output is the very same vector as an input, or apart from all ---- */

enum { TT_STREAM_FROM = 4 << 20 };     /* a vector of so many bytes, that is not an input, is better stored past the caches */

struct tt_many { /* of vectors, of the same count each */
	const void *const *from;    /* one or more; each is read once */
	void *const *to;            /* one or more; the result goes into all of them */
	int inputs, outputs;
	bool stream;                /* store past the caches, where all outputs lie alike within a line; else as usual */
};

/* Collectives, chunk by chunk in the cache: acc = acc op in; or to = a op b. AVERAGE adds. */
void tt_reduce(void *acc, const void *in, size_t count, tutti_type, tutti_rule);
void tt_reduce_to(void *to, const void *a, const void *b, size_t count, tutti_type, tutti_rule);
void tt_scale(void *acc, size_t count, tutti_type, unsigned n); /* the end of an AVERAGE: acc / n, of integers towards zero */
/* All-reduce on one host, where each rank sums its slice of all mapped vectors into all of them: ((in0 op in1) op in2) op ...,
 * computed in f32 for f16 and bf16, and rounded once at the end. AVERAGE divides by the number of inputs. */
void tt_reduce_many(const struct tt_many *, size_t count, tutti_type, tutti_rule);
/* For f32, f64, f16, bf16; numbers are rounded to the type, of f16 and bf16 to f32, before they are used.
 * to = by_a a + by_b b. Gossip: x = (1 - w) x + w y, in place or into the next buffer. A table's rule: y = 1 y + a x (axpy). */
void tt_blend(void *to, double by_a, const void *a, double by_b, const void *b, size_t count, tutti_type);
/* Elastic averaging, both sides in one pass: d = alpha (x - center); x = x - d; center = center + d. */
void tt_elastic(void *x, void *center, double alpha, size_t count, tutti_type);
const char *tt_reduce_use(int level); /* for tests: only these instructions, 0 the plainest. Their name; NULL: not on this processor */

/* ---- updater.c: a table's rule and its state, for one shard ----
 *
 * The server opens an updater for each shard, begins each push once, and applies it range by range, as the chunks come:
 *
 *   tt_updater_begin(u, worker, options, &push)       checks the options, counts t
 *   tt_updater_apply(&push, first, count, &piece)     for each range, while it is in the cache
 *
 * apply is for any thread, on ranges that do not overlap those of other threads, and may not fail. All else is for one thread at a
 * time: the server's with the table's gate held. A push under way outlasts a join, and a resize if it is made to follow.
 * State is planar: each array holds one number (f64 of f64, else f32) for each element of the shard. */

enum { TT_UPDATE_STATES = 4 };         /* arrays of state at most, of one worker */

/* What a rule's equation is made of, worked out once a push: see the rules in updater.c. */
#define TT_FACTORS(X) \
	X(scale) X(decay) X(shrink) X(rate) X(keep) X(fresh) X(keep2) X(fresh2) X(root) X(epsilon) X(lambda) X(per_alpha) X(beta) X(l1) X(l2)
#define TT_FACTOR(name) double name;
struct tt_factors {
	TT_FACTORS(TT_FACTOR)
};
#undef TT_FACTOR

struct tt_updater;
struct tt_push {                       /* one push to this shard, from begin to its last range */
	const struct tt_updater *updater;
	tutti_update options;           /* as they hold for this push */
	uint64_t t;
	struct tt_factors factors;
	void *state[TT_UPDATE_STATES];
};
struct tt_piece {                      /* all of them at element `first` already; any alignment */
	void *to;                       /* where the new values go: w itself, or the other copy of the shard */
	const void *w, *d;              /* to and w are one vector or apart, and d is apart from both */
	void *out;                      /* what goes back to the worker, of a rule that has that; NULL: nothing wants it */
};
struct tt_state {
	const char *name;               /* "m", say; for files, so it stays as it is */
	int worker;                     /* -1: of all workers */
	void *at;
	size_t bytes;
};

int tt_updater_check(const tutti_updater *, tutti_type); /* is there such a rule, for this type, with such defaults? */
int tt_update_check(const tutti_updater *, const tutti_update *); /* a worker's check of a push before it travels; NULL: all as the table has it */
int tt_updater_open(const tutti_updater *, tutti_type, size_t count, int workers, struct tt_updater **); /* checks too; all state is 0 */
void tt_updater_close(struct tt_updater *);  /* NULL is allowed */
int tt_updater_join(struct tt_updater *, int workers); /* there are so many workers now, if that is more; then `assigned` for each new one */
int tt_updater_resize(struct tt_updater *, size_t count); /* the shard has so many elements now; state of new ones is 0. Nothing is copied */
void tt_updater_follow(struct tt_push *);    /* a push under way, after a resize */
void tt_updater_assigned(struct tt_updater *, int worker, const void *w, size_t first, size_t count); /* values were set (worker -1), or that worker
                                                      * has these values now: state that follows from values, DCASGD's b and FTRL's z, does. w is that of
                                                      * element `first`. Not for values that were loaded with their state */
int tt_updater_begin(struct tt_updater *, int worker, const tutti_update *, struct tt_push *); /* -EINVAL: such options; no such worker */
void tt_updater_apply(const struct tt_push *, size_t first, size_t count, const struct tt_piece *);
bool tt_updater_gives_back(const tutti_updater *); /* has the rule something for `out`? */
/* To save and to load: the arrays there are, in an order that joins do not change but add to, and t. */
int tt_updater_states(const struct tt_updater *);
struct tt_state tt_updater_state(const struct tt_updater *, int i);
uint64_t tt_updater_pushes(const struct tt_updater *);
void tt_updater_set_pushes(struct tt_updater *, uint64_t t);
const char *tt_update_name(tutti_update_rule); /* "adam"; NULL: no such rule */
#endif
