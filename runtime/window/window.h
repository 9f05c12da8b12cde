/* window.h - named memory that the other ranks reach one-sided */
#ifndef TT_WINDOW_H
#define TT_WINDOW_H
#include "operation/operation.h"

enum { TT_WINDOW_SLOT = 2, TT_WINDOWS = 2048, TT_SLOTS = 4096 /* of notifies, in each window */ };
enum { TT_ASK = 11, TT_ANSWER }; /* types of messages */
extern const struct tt_module tt_window_module;

void tt_window_set_timeout(struct tutti_window *, uint64_t timeout); /* of its operations, in nanoseconds */
/* As tutti_window_open with tutti_job, also for names that begin with "tutti:". pinned: the memory, or NULL; the
 * window's from now on, unless opening fails. */
int tt_window_open(struct tt_job *, const char *name, void *base, size_t bytes, struct tt_pinned *pinned,
                   struct tutti_window **);
void tt_window_close(struct tutti_window *); /* what tt_window_open gave; without the lock. NULL is allowed */
/* As tutti_get. what: the call's name in sentences. Without the lock. */
int tt_window_get(struct tutti_window *, const char *what, int rank, size_t offset, void *dst, size_t bytes,
                  tutti_op *);
/* Posts a PUT or GET whose kind, flags, local, len and offset are set, where the other rank's window is known already.
 * Does not block. -ENOTCONN, -ECONNRESET, -ESTALE, -ERANGE: nothing was posted. */
int tt_window_post(struct tutti_window *, int rank, struct tt_post *);
void tt_window_again(struct tutti_window *, int rank); /* if that rank has closed its own, the next use asks anew */
/* Asks for that rank's window unless it is known: 0: it is; -EINPROGRESS: the answer comes; -ESTALE: that rank has
 * closed its own, and is asked anew the next time; -ENOTCONN, -ECONNRESET. */
int tt_window_ask(struct tutti_window *, int rank);
/* tutti_wait_notify(), for a window that is part of what the program holds: the close of that ends the wait */
int tt_window_await(struct tutti_window *, struct tt_users *, int rank, int slot, uint64_t count, int timeout_ms);
uint64_t tt_window_notified(struct tutti_window *, int rank, int slot); /* how many have come from that rank */
bool tt_window_is_closed(struct tutti_window *, int rank); /* that rank has closed its own, and was not asked again */
uint64_t tt_window_bytes(struct tutti_window *, int rank); /* how large that rank's is, which is known */
bool tt_window_is_mapped(struct tutti_window *, int rank); /* that rank's memory is mapped here, as far as is known */
/* The address of a mapped window, which stays open until tt_window_let_go, microseconds later; NULL: not mapped, or
 * closed. */
char *tt_window_hold(struct tutti_window *, int rank);
void tt_window_let_go(struct tutti_window *, int rank);
#endif
