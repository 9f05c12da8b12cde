/* parts.h - what a table's shards are made of besides values: how rows are cut over servers, which rows have changed
 * since a worker's last pull, which are dirty in a round, the numbers of keys, and how a sparse delta travels. Nothing
 * here knows a rank, a transport or a lock. Callers serialize the calls on one object. */
#ifndef TT_PARTS_H
#define TT_PARTS_H
#include "base/base.h"

/* ---- shards.c: elements or rows are cut over servers in contiguous ranges; keys are dealt out ---- */

enum tt_cut {
	TT_CUT_EVEN,                /* units of `align`, if there is one for each server; sizes differ by one unit */
	TT_CUT_MULTIVERSO,          /* count / servers each, and the last server gets the rest; `align` is ignored */
};
struct tt_divisor { /* divides by multiplying, in a third of the time: each row of a list is looked for */
	uint64_t by, inverse;
};
struct tt_shards {
	uint64_t count, unit, each; /* each: units of a shard ... */
	uint64_t more;              /* ... and the first `more` shards have one unit more */
	int used;                   /* shards that are not empty: the first ones */
	struct tt_divisor by_unit, by_each, by_larger; /* by `unit`, `each`, units of a larger shard */
};
/* Cuts `count` elements. -EINVAL: an argument is below 1. */
int tt_shards_cut(struct tt_shards *, uint64_t count, int servers, uint64_t align, enum tt_cut);
uint64_t tt_shards_first(const struct tt_shards *, int server); /* for server = servers, the end of the last */
void tt_shards_find(const struct tt_shards *, const uint64_t *at, size_t n, uint32_t *server); /* of n elements */
static inline int tt_shards_of_key(uint64_t key, int servers) { return (int)(key % (uint64_t)servers); }
void tt_shards_of_keys(const uint64_t *keys, size_t n, int servers, uint32_t *server);
bool tt_shards_have_keys(const uint64_t *keys, size_t n, int servers, int server); /* are all of them that server's? */

/* ---- changed_rows.c: which rows have changed since a worker's last pull ----
 *
 * One bit for each worker and row. A push to all rows sets one flag for each worker. */

enum { TT_FRESH_OWN = 1 }; /* a push changes rows for its own worker, too, as in Multiverso's newer matrix */
struct tt_changed_rows;
int tt_changed_rows_open(uint64_t rows, unsigned flags, struct tt_changed_rows **);
void tt_changed_rows_close(struct tt_changed_rows *); /* NULL is allowed */
int tt_changed_rows_join(struct tt_changed_rows *, int worker); /* it has seen nothing. -ENOMEM */
void tt_changed_rows_leave(struct tt_changed_rows *, int worker); /* frees the worker's bits */
/* Marks rows as changed for all other workers; worker -1: for all. rows NULL: all rows. */
void tt_changed_rows_pushed(struct tt_changed_rows *, int worker, const uint64_t *rows, size_t n);
void tt_changed_rows_see_all(struct tt_changed_rows *, int worker); /* the worker takes all rows */
/* Takes up to `room` changed rows from *at on, in order: they count as seen. Moves *at behind them. Returns how many;
 * 0: there are no more. Worker -1 gets all rows, and nothing counts as seen. */
size_t tt_changed_rows_take(struct tt_changed_rows *, int worker, uint64_t *at, uint64_t *rows, size_t room);
/* Takes those of n rows that have changed. rows: room for n, or `asked` itself. Returns how many. */
size_t tt_changed_rows_take_of(struct tt_changed_rows *, int worker, const uint64_t *asked, size_t n, uint64_t *rows);

/* ---- dirty_rows.c: which rows the open round has, and by whom. A call costs O(its rows) ---- */

enum { TT_BY_MANY = -1 };
struct tt_dirty_rows;
int tt_dirty_rows_open(uint64_t rows, struct tt_dirty_rows **);
void tt_dirty_rows_close(struct tt_dirty_rows *); /* NULL is allowed */
int tt_dirty_rows_resize(struct tt_dirty_rows *, uint64_t rows); /* -ENOMEM: nothing has changed */
int tt_dirty_rows_add(struct tt_dirty_rows *, int worker, const uint64_t *rows, size_t n); /* NULL: all. -ENOMEM */
size_t tt_dirty_rows_list(const struct tt_dirty_rows *, const uint64_t **rows); /* each once; no pushes to all */
int tt_dirty_rows_by(const struct tt_dirty_rows *, uint64_t row); /* 0: nobody; worker + 1; TT_BY_MANY */
int tt_dirty_rows_all(const struct tt_dirty_rows *); /* likewise: who has pushed to all rows at once */
/* The rows of the round, in the order in which they came; or all rows in their order, if somebody has pushed to all. */
uint64_t tt_dirty_rows_count(const struct tt_dirty_rows *);
uint64_t tt_dirty_rows_row(const struct tt_dirty_rows *, uint64_t i); /* the i-th */
uint64_t tt_dirty_rows_run(const struct tt_dirty_rows *, uint64_t i, uint64_t most); /* consecutive ones; most > 0 */
void tt_dirty_rows_clear(struct tt_dirty_rows *);

/* ---- keys.c: numbers 64-bit keys from 0 up, in the order in which they come; no key is removed ----
 *
 * About 20 bytes a key. Apart from allocations, a call takes constant time. */

#define TT_NO_KEY UINT64_MAX
struct tt_keys;
int tt_keys_open(uint64_t expected, struct tt_keys **); /* with an index for so many */
void tt_keys_close(struct tt_keys *); /* NULL is allowed */
int tt_keys_add(struct tt_keys *, uint64_t key, uint64_t *number); /* the key's number, or a new one. -ENOMEM */
uint64_t tt_keys_find(const struct tt_keys *, uint64_t key); /* its number; TT_NO_KEY: it was never added */
uint64_t tt_keys_count(const struct tt_keys *);
uint64_t tt_keys_key(const struct tt_keys *, uint64_t number); /* the key of a number */

/* ---- filter.c: a block of elements without its zeros ----
 *
 *   m indices, u32, each above the one before | m values
 *
 * at any alignment, in the sender's byte order like all elements. A block travels so only if that is shorter: with
 * 4-byte elements when 2 m < n, as in Multiverso. There is at least one pair: element 0 if all are zeros. NaN and
 * infinity stay; -0 becomes 0. */

uint64_t tt_filter_limit(tutti_type, double clip); /* for pack, which drops what is not larger; 0: zeros alone */
/* Packs n elements. to: as much room as n elements take. Returns bytes; 0: it is not shorter, send the block as is. */
size_t tt_filter_pack(void *to, const void *from, size_t n, tutti_type, uint64_t limit);
/* -EBADMSG: pack would not have made this, and `to` has not changed. */
int tt_filter_unpack(void *to, size_t n, tutti_type, const void *from, size_t bytes);
#endif
