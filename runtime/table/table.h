/* table.h - parameter tables */
#ifndef TT_TABLE_H
#define TT_TABLE_H
#include "engine/engine.h"
#include "kernel/kernel.h"

enum { TT_TABLE_SLOT = 4 };
enum { /* types of messages */
	TT_JOIN = 23, TT_PUSH, TT_PUSHED, TT_JOINED, TT_CLOCK, TT_FINISH, TT_CHANGE, TT_CHANGED, TT_PUSH_ROWS,
	TT_PULL_ROWS, TT_PULL_FRESH, TT_PULLED, TT_FILE, TT_FILED, TT_HELD, TT_PULL_VERSION, TT_KEEP, TT_EXPECT = 41,
	TT_REPORT = 56, TT_REPORTED,
};
extern const struct tt_module tt_table_module;

/* Applies a push's rule to elements first .. first + count, of `width` bytes each. The pool's threads help. */
void tt_table_spread(struct tt_pool *, const struct tt_push *, size_t width, size_t first, size_t count,
                     const struct tt_piece *);

/* How often this rank has pushed, summed up over the servers that know of the push or may do so: a push that has failed
 * and left this number as it was has changed nothing anywhere. Without the lock. */
uint64_t tt_table_pushes(const struct tutti_table *);
const char *tt_mode_name(uint64_t mode); /* of a consistency: "BSP"; NULL: no such mode */
#endif
