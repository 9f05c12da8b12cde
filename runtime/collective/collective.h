/* collective.h - collectives among the ranks of a group; splitting groups */
#ifndef TT_COLLECTIVE_H
#define TT_COLLECTIVE_H
#include "operation/operation.h"

enum { TT_COLLECTIVE_SLOT = 3, TT_NOTIFY_COLLECTIVE = 1 << 23 };
enum { TT_DATA = 14, TT_WAKE = 22 }; /* types of messages */
extern const struct tt_module tt_collective_module;

bool tt_coll_is_idle(void *group);          /* true: no collective of the group is under way */
void tt_coll_end_group(struct tutti *);     /* ends its collectives with -ECANCELED and drops early messages */
/* Writes which algorithm and chunk an all-reduce of `bytes` uses and why, and the time expected. Takes the lock. */
int tt_allreduce_explain(struct tutti *, size_t bytes, tutti_type, tutti_rule, char *text, size_t room);
#endif
