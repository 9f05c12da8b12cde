/* parts.h - what a table's shards are made of besides values: where each row lives, who has seen it, who has touched it, which number a
 * key has, how a sparse delta travels.
 * None of it knows a rank, a wire or a gate; its callers do. */
#ifndef TT_PARTS_H
#define TT_PARTS_H
#include "base/base.h"

/* ---- shards.c: elements or rows, cut over servers in contiguous ranges; keys, dealt out to them ---- */

enum tt_cut {
	TT_CUT_EVEN,                /* whole units of `align`, if there is one for each server, else single ones; sizes differ by one unit */
	TT_CUT_MULTIVERSO,          /* each the same, rounded down, and the last the rest. align is not looked at */
};
struct tt_shards {
	uint64_t count, unit, each; /* each: units of a shard ... */
	uint64_t more;              /* ... and the first few have one more */
	int used;                   /* shards that have anything; those behind are empty */
};
int tt_shards_cut(struct tt_shards *, uint64_t count, int servers, uint64_t align, enum tt_cut); /* all from 1 up; else -EINVAL */
uint64_t tt_shards_first(const struct tt_shards *, int server); /* where it begins, and where the one before it ends: up to `servers` */
int tt_shards_find(const struct tt_shards *, uint64_t i, uint64_t *offset); /* who has it, and at which place */
static inline int tt_shards_of_key(uint64_t key, int servers) { return (int)(key % (uint64_t)servers); }

/* ---- changed_rows.c: which rows a worker has not seen since they were last pushed to ----
 *
 * A bit for each worker and row; a push to all rows is one flag for each worker, whatever their number. For one thread at a time. */

enum { TT_FRESH_OWN = 1 }; /* a push makes the rows stale for its own worker, too, as Multiverso's newer matrix does */
struct tt_changed_rows;
int tt_changed_rows_open(uint64_t rows, unsigned flags, struct tt_changed_rows **);
void tt_changed_rows_close(struct tt_changed_rows *);              /* NULL is allowed */
int tt_changed_rows_join(struct tt_changed_rows *, int worker);    /* it has seen nothing, even if it was there before. -ENOMEM */
void tt_changed_rows_leave(struct tt_changed_rows *, int worker);  /* gives its bits back */
/* Rows are below `rows`. rows NULL: all. */
void tt_changed_rows_pushed(struct tt_changed_rows *, int worker, const uint64_t *rows, size_t n); /* worker -1: nobody's, stale for all */
void tt_changed_rows_see_all(struct tt_changed_rows *, int worker); /* it takes all rows */
/* The next stale rows from *at on, at most `room`, in their order; they count as seen. *at moves behind them. How many; 0: there are no
 * more. Worker -1 gets all rows, and nothing counts as seen. */
size_t tt_changed_rows_take(struct tt_changed_rows *, int worker, uint64_t *at, uint64_t *rows, size_t room);
size_t tt_changed_rows_take_of(struct tt_changed_rows *, int worker, const uint64_t *asked, size_t n, uint64_t *rows); /* those of the asked ones; `rows` has
                                                      * room for n, or is `asked` itself */

/* ---- dirty_rows.c: which rows come into the open round, and by whom. A call costs as much as the rows that it is about ---- */

enum { TT_BY_MANY = -1 };
struct tt_dirty_rows;
int tt_dirty_rows_open(uint64_t rows, struct tt_dirty_rows **);
void tt_dirty_rows_close(struct tt_dirty_rows *);          /* NULL is allowed */
int tt_dirty_rows_resize(struct tt_dirty_rows *, uint64_t rows); /* -ENOMEM, and all is as it was */
int tt_dirty_rows_add(struct tt_dirty_rows *, int worker, const uint64_t *rows, size_t n); /* NULL: all of them. -ENOMEM, and nothing has been */
size_t tt_dirty_rows_list(const struct tt_dirty_rows *, const uint64_t **rows); /* each once; not those that were touched with all others alone */
int tt_dirty_rows_by(const struct tt_dirty_rows *, uint64_t row); /* 0: nobody; worker + 1; TT_BY_MANY */
int tt_dirty_rows_all(const struct tt_dirty_rows *);       /* likewise: who has touched all at once */
/* The rows to go through, in the order they came, or all in theirs if all were touched at once. */
uint64_t tt_dirty_rows_count(const struct tt_dirty_rows *); /* how many */
uint64_t tt_dirty_rows_row(const struct tt_dirty_rows *, uint64_t i); /* the i-th */
uint64_t tt_dirty_rows_run(const struct tt_dirty_rows *, uint64_t i, uint64_t most); /* how many follow each other from the i-th on; most: not 0 */
void tt_dirty_rows_clear(struct tt_dirty_rows *);

/* ---- keys.c: 64-bit keys, numbered from 0 up as they come; none goes ----
 *
 * About 20 bytes a key. No call takes longer than a few others, however many keys there are, but for what the kernel needs to find room. */

#define TT_NO_KEY UINT64_MAX
struct tt_keys;
int tt_keys_open(uint64_t expected, struct tt_keys **); /* for so many there is an index from the start */
void tt_keys_close(struct tt_keys *);                /* NULL is allowed */
int tt_keys_add(struct tt_keys *, uint64_t key, uint64_t *number); /* the one that it has, or a new one. -ENOMEM */
uint64_t tt_keys_find(const struct tt_keys *, uint64_t key); /* its number; TT_NO_KEY: nobody has added it */
uint64_t tt_keys_count(const struct tt_keys *);
uint64_t tt_keys_key(const struct tt_keys *, uint64_t number); /* the other way */

/* ---- filter.c: a block of elements without its zeros ----
 *
 *   m indices, u32, each above the one before | m values
 *
 * in the sender's order of bytes like all elements, at any alignment. A block is sent so only if that is shorter: of 4-byte elements
 * when 2 m < n, as in Multiverso. There is at least one pair, element 0 if all are zeros. NaN and infinity stay; -0 comes back as 0. */

uint64_t tt_filter_limit(tutti_type, double clip);   /* for pack: what is no larger than clip (0 or more) is left out, too, and lost; 0: zeros alone */
size_t tt_filter_pack(void *to, const void *from, size_t n, tutti_type, uint64_t limit); /* bytes; 0: no shorter, send it as it is. to: as much
                                                      * room as n elements take */
int tt_filter_unpack(void *to, size_t n, tutti_type, const void *from, size_t bytes); /* -EBADMSG: pack would not have made it, and `to` is as it was */
#endif
