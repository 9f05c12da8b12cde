/* desk.h - a desk: a name under which one rank of a group, the master, serves the others through a window.
 *
 * Windows suffice: a request, an answer and a batch each lie in a place of their own that one rank writes and another
 * one reads, and a notify says that they are there. So what a rank sends cannot overtake or fill anything of another
 * rank, and the progress thread runs no code of the program. The master looks every TT_LOOK_MS whether a rank has gone,
 * also while others keep it busy. While nobody does anything, looks become rarer: a waiting process costs no time. */
#ifndef TT_DESK_H
#define TT_DESK_H
#include "member/member.h"

enum { TT_LOOK_MS = 20, TT_LOOK_MOST_MS = 160, TT_DESK_NOTIFY = 0 /* the only slot */ };

struct tt_desk {
	struct tt_handle handle; /* of the controller or the queue, whose first member the desk is */
	struct tt_job *job;
	const char *what;   /* "controller", "queue", for sentences */
	char *name;
	tutti_window *window;
	char *memory;       /* the window's, zeroed at first */
	int *rank_of;       /* the job's numbers of the group's ranks */
	int n, me, master;  /* ranks of the group */
	uint64_t timeout;   /* of calls that say -1, in nanoseconds */
	uint64_t heard;     /* notifies waited for so far */
	int look_ms;        /* how long the next wait for one takes at most: longer, as nothing happens */
	uint64_t looked;    /* when the master last looked who is gone */
	tutti_op op;        /* of the last put or get of tt_desk_put, tt_desk_get */
	_Atomic bool inside; /* a thread is in a call */
};

/* bytes: of this rank's window. On failure nothing is left. */
int tt_desk_open(struct tt_desk *, tutti *, const char *what, const char *name, int master, size_t bytes);
void tt_desk_hold(struct tt_desk *, const struct tt_handle_kind *); /* the program has it from now on */
void tt_desk_close(struct tt_desk *);
/* Each call on a desk is between these two. as_master: only the master may call it; else only the others. -EALREADY */
int tt_desk_enter(struct tt_desk *, const char *call, bool as_master);
void tt_desk_leave(struct tt_desk *);
bool tt_desk_wants_look(struct tt_desk *);                     /* once each TT_LOOK_MS */
tutti_what tt_desk_state(const struct tt_desk *, int rank);    /* JOINED: it is there, as far as is known */
struct tt_label tt_desk_label(const struct tt_desk *, int rank);
uint64_t tt_desk_deadline(const struct tt_desk *, int timeout_ms); /* -1: the timeout of the group */
int tt_desk_left_ms(uint64_t deadline, int most);
/* One more notify from that rank, or -1, of any. Waits for TT_LOOK_MS at first, for up to TT_LOOK_MOST_MS if nothing
 * has come for a while. -ETIMEDOUT, -ECONNRESET, -ENOTCONN, -EINTR; -ESTALE, -ESHUTDOWN: this process closes or
 * leaves */
int tt_desk_hear(struct tt_desk *, int rank, uint64_t deadline);
/* A put into that rank's window, with a notify if `notify`. At the deadline -ETIMEDOUT, by the hook -EINTR: the put
 * runs on, since to cancel it may take as long as the rank lives and says nothing. So src stays as it is until
 * tt_desk_settle has returned 0, or the desk closes. */
int tt_desk_put(struct tt_desk *, int rank, size_t at, const void *src, size_t bytes, bool notify, uint64_t deadline);
int tt_desk_get(struct tt_desk *, int rank, size_t at, void *dst, size_t bytes, uint64_t deadline); /* likewise */
int tt_desk_finish(struct tt_desk *, int rank, uint64_t deadline); /* waits for the last put or get: its result */
int tt_desk_settle(struct tt_desk *, int rank, uint64_t deadline); /* likewise. 0: it has ended, however */
static inline uint64_t tt_desk_load(const uint64_t *word) { return __atomic_load_n(word, __ATOMIC_ACQUIRE); }
#endif
