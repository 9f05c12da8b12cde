/* window.h - named memory that the other ranks reach one-sided */
#ifndef TT_WINDOW_H
#define TT_WINDOW_H
#include "operation/operation.h"

enum { TT_WINDOW_SLOT = 2, TT_WINDOWS = 2048, TT_SLOTS = 4096 /* of notifies, in each window */ };
enum { TT_ASK = 11, TT_ANSWER, TT_CLOSED }; /* types of messages */
extern const struct tt_module tt_window_module;

int tt_window_open(struct tt_job *, const char *name, void *base, size_t bytes, struct tutti_window **); /* as tutti_window_open, also under names
                                                      * that begin with "tutti:" */
int tt_window_get(struct tutti_window *, const char *what, int rank, size_t offset, void *dst, size_t bytes, tutti_op *); /* as tutti_get, not under
                                                      * the gate; what: with which sentences begin */
int tt_window_post(struct tutti_window *, int rank, struct tt_post *); /* a PUT or GET, of which kind, flags, local, len and offset are set; where this
                                                      * rank knows the other's window already. An error: it was not posted */
void tt_window_again(struct tutti_window *, int rank); /* if that rank has closed its own, the next use waits for another one of that name */
bool tt_window_is_mapped(struct tutti_window *, int rank); /* is that rank's memory mapped here, as far as is known? */
char *tt_window_hold(struct tutti_window *, int rank); /* it is mapped and still open, and stays so until let go of, microseconds later. NULL: no */
void tt_window_let_go(struct tutti_window *, int rank);
#endif
