/* control_private.h - what worker and controller share.
 *
 *   the controller's window              worker w's window
 *   | state | seq 0 | seq 1 | ...        | answer |
 *   | request 0 | request 1 | ...
 *
 * Worker w puts its request, and then, with a notify, its number: seq w. A number other than the last one is a new
 * request. The answer has the same number. Until it is there, the worker leaves the request alone. */
#ifndef TT_CONTROL_PRIVATE_H
#define TT_CONTROL_PRIVATE_H
#include "control/desk.h"

enum tt_ask { TT_ASK_PROGRAM, TT_ASK_LOCK, TT_ASK_UNLOCK, TT_ASK_FIRST, TT_ASK_DONE };

struct tt_request {
	uint64_t life;     /* which life of the worker asks: its first number */
	uint64_t wait;     /* LOCK: nanoseconds in the queue */
	uint32_t ask, bytes;
	uint64_t gave_up;  /* 1: the worker gave up a LOCK since its last request, which may have been granted */
	char data[TUTTI_REQUEST_MAX];
};
struct tt_answer {
	uint64_t seq;
	int32_t err;       /* negative: data is its sentence */
	uint32_t bytes;
	char data[TUTTI_REQUEST_MAX];
};
enum { TT_SERVES_NOT_YET, TT_SERVES, TT_SERVES_NO_MORE }; /* the state */

enum tt_asking { TT_ASKS_NOT, TT_ASKS, TT_IS_ANSWERED };

struct tt_worker { /* as the controller knows it */
	uint64_t seq, life;  /* of its last request */
	bool over;           /* done or gone */
	bool untold;         /* the program has not heard of that end yet ... */
	tutti_what end;      /* ... which is LEFT or GONE */
	bool done;
	enum tt_asking asks; /* TT_ASKS: the program has its request. TT_IS_ANSWERED: a thread writes the answer now.
	                      * Only a thread that holds the job's lock changes it */
	bool withdrawn;      /* serving ends, and the program had its request */
	uint64_t turn, until; /* it waits for the lock: its place in the queue, and how long. turn 0: it does not */
	uint64_t firsts;     /* calls of tutti_controller_first */
	tutti_op op;         /* which brings the worker's answer */
};

struct tutti_controller {
	struct tt_desk desk;
	/* of the controller */
	struct tt_worker *workers;
	struct tt_answer *answers; /* one for each worker */
	int at;              /* the worker whose request is looked at first: workers take turns */
	int holder;          /* of the lock; -1: none */
	uint64_t turns, firsts;
	_Atomic bool stop;
	/* of a worker */
	struct tt_request *request;
	uint64_t state;      /* the controller's, as this worker has read it last */
	uint64_t life, seq;  /* seq: the number of the last request; life: there was none */
	bool pending;        /* request `seq` may be with the controller */
	bool gave_up;        /* a LOCK, and has sent nothing since */
	bool interrupted;    /* the wait for the answer to `request` was: the same call goes on with it */
	bool finished;
};

static inline size_t tt_seq_at(int rank) { return 8 + 8 * (size_t)rank; }
static inline size_t tt_request_at(int n, int rank)
{
	return (tt_seq_at(n) + 63) / 64 * 64 + (size_t)rank * sizeof(struct tt_request);
}
#endif
