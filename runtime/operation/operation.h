/* operation.h - a started call: a put, a collective, a push. It is begun, waited for, tested, cancelled; and whoever waits in vain
 * finds out whom to blame. The room that starts one gives it words of its own. */
#ifndef TT_OPERATION_H
#define TT_OPERATION_H
#include "member/member.h"

enum { TT_OPERATION_SLOT = 1 };
extern const struct tt_module tt_operation_module;

struct tt_operation;
struct tt_operation_kind { /* what a kind of operation says of itself. Each may be NULL */
	bool (*waits_for)(const struct tt_operation *, int rank); /* NULL: for its rank; if that is -1, for all of its group */
	bool (*needs)(const struct tt_operation *);   /* its end does need the others' part; false: only what they hold has to come back. NULL: true */
	uint64_t (*progress)(const struct tt_operation *); /* another number whenever those that it waits for have done something */
	struct tt_member *(*blame)(const struct tt_operation *, uint64_t since); /* all have given a sign of life since then: who is to blame all the same? NULL: nobody */
	void (*reproach)(const struct tt_member *, char *why, size_t size); /* a sentence about it, where there is a better one than that it did not take part */
	bool (*withdraw)(struct tt_operation *);      /* nobody knows of it yet: it is taken back, to be ended. false: somebody does */
	void (*give_up)(struct tt_operation *, int err); /* it is to end with err; what others hold of it has to come back first. NULL: it just ends */
	void (*ended)(struct tt_operation *, int err);
	int (*explain)(const struct tt_operation *);  /* its error, with a sentence; 0: there is none of its own */
};

struct tt_operation { /* what a tutti_op holds; blocking calls have it on their stack */
	struct tt_job *job;
	struct tt_list link;        /* in tt_operations.running while it runs */
	struct tt_list unanswered;  /* in a list of whoever cannot post it yet */
	const struct tt_operation_kind *words; /* NULL: it has none */
	void *of;                   /* the words': a window, a collective, a call on a table; NULL: it is over */
	const char *what;           /* "put", "all-reduce", for sentences */
	struct tutti *group;        /* in which it waits; NULL: the job's */
	int rank;                   /* the one it waits for; -1: several */
	int err;
	bool ended, hurried;        /* hurried: a wait has asked for the acknowledgement */
	bool told;                  /* what: the whole sentence for who has waited in vain */
	struct tt_post post;        /* one-sided operations */
	uint64_t *old;
};
_Static_assert(sizeof(struct tt_operation) <= sizeof(tutti_op), "tutti_op is too small for a request");

struct tt_operations { /* this room's own of a job */
	struct tt_list running;
	int event_fd;
};
static inline struct tt_operations *tt_operations(const struct tt_job *job) { return job->own[TT_OPERATION_SLOT]; }

struct tt_operation *tt_operation_begin(struct tt_job *, tutti_op *, tutti_op *stack, const char *what, int rank);
void tt_operation_end(struct tt_operation *, int err);  /* once; waiters learn of it when the gate is let go */
int tt_operation_return(struct tt_operation *, bool blocking); /* the end of every call that begins a request: leaves the gate; blocking:
                                                     * waits, and at the deadline cuts off who is silent */
int tt_operation_give_up(struct tt_operation *);         /* it has ended then, also if that costs silent ranks */
bool tt_operation_concerns(const struct tt_operation *, int rank); /* may it wait for that rank? */

/* ---- blame.c, for operation.c ---- */

void tt_operation_ping(const struct tt_operation *);     /* whoever it may wait for */
bool tt_operation_is_busy(const struct tt_operation *, uint64_t since); /* bytes come from one that it waits for, but no pong yet */
bool tt_operation_unreached(const struct tt_operation *, uint64_t since); /* no file was left to ask one that it waits for */
struct tt_member *tt_operation_silent(const struct tt_operation *, uint64_t since); /* whom a late request waits for */
#endif
