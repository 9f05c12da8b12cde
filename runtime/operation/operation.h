/* operation.h - a started call: a put, a collective, a push. It is begun, waited for, tested and cancelled; a wait that
 * meets the deadline finds the rank to blame. The room that starts an operation gives it functions of its own.
 *
 * An op is memory of the program, and may outlive its job: no pointer in it is followed before tt_job_find() has said
 * that the job of its serial number lives. */
#ifndef TT_OPERATION_H
#define TT_OPERATION_H
#include "member/member.h"

enum { TT_OPERATION_SLOT = 1 };
extern const struct tt_module tt_operation_module;

struct tt_operation;
struct tt_operation_kind { /* each may be NULL */
	bool (*waits_for)(const struct tt_operation *, int rank); /* NULL: for its rank; if that is -1, for its group */
	bool (*needs)(const struct tt_operation *); /* false: others only return what they hold of it. NULL: true */
	uint64_t (*progress)(const struct tt_operation *); /* another number when ranks have done something for it */
	/* The rank to blame although all have given a sign of life since then; NULL: none. */
	struct tt_member *(*blame)(const struct tt_operation *, uint64_t since);
	bool (*withdraw)(struct tt_operation *); /* takes it back, for the caller to end. False: others know of it */
	/* Ends it with err once the others have returned what they hold of it. NULL: it just ends. */
	void (*give_up)(struct tt_operation *, int err);
	void (*ended)(struct tt_operation *, int err);
	int (*explain)(const struct tt_operation *); /* its error, with a sentence; 0: the kind has none */
};

struct tt_operation { /* what a tutti_op holds; blocking calls have it on their stack */
	struct tt_job *job;
	struct tt_list link;        /* in tt_operations.running while it runs */
	struct tt_list unanswered;  /* in a list of the room that cannot post it yet */
	const struct tt_operation_kind *words; /* its kind; never NULL */
	void *of;                   /* a window, a collective, a call on a table; NULL: that is over */
	const char *what;           /* "put", "all-reduce", for sentences */
	struct tutti *group;        /* in which it waits; NULL: the job's */
	int rank;                   /* the one that it waits for; -1: several */
	int err;
	uint32_t serial;            /* of its job, for tt_job_find(); 0: idle */
	bool ended, hurried;        /* hurried: a wait has asked for the acknowledgement */
	bool taken;                 /* the program has its result */
	bool told;                  /* `what` is the whole sentence for a wait that met the deadline */
	struct tt_post post;        /* one-sided operations */
	uint64_t *old;
};
_Static_assert(sizeof(struct tt_operation) <= sizeof(tutti_op), "tutti_op is too small for an operation");

struct tt_operations { /* the room's own struct in a job */
	struct tt_list running;
	int event_fd;
};
static inline struct tt_operations *tt_operations(const struct tt_job *job) { return job->own[TT_OPERATION_SLOT]; }

/* Without the lock. As tt_usable(): may a call that is given this op, or NULL, begin? -EINVAL: an operation runs in the
 * op. Its memory says so then, since that is the library's; but memory that was never an op may say it, too. */
int tt_operation_look_up(const tutti_op *); /* 0, or -EINVAL: it is in the list of a job that lives */
static inline int tt_operation_may_begin(struct tt_job *job, const tutti_op *op)
{
	const struct tt_operation *r = (const struct tt_operation *)op;
	int err = tt_usable(job);

	return err || !r || !r->serial || tt_list_empty(&r->link) ? err : tt_operation_look_up(op);
}
/* Begins an operation in op, or in stack if op is NULL. rank: the one that it waits for; -1: several. */
struct tt_operation *tt_operation_begin(struct tt_job *, tutti_op *op, tutti_op *stack, const char *what, int rank);
void tt_operation_end(struct tt_operation *, int err); /* once; waiters learn of it when the lock is released */
/* Ends each call that begins an operation: releases the lock. Blocking: waits first, at the deadline evicts silent
 * ranks, and returns the operation's error, with a sentence. */
int tt_operation_return(struct tt_operation *, bool blocking);
/* Cancels: blocks until it has ended, if need be by evicting silent ranks. 0, or its own error if it ends by itself. */
int tt_operation_give_up(struct tt_operation *);
bool tt_operation_concerns(const struct tt_operation *, int rank); /* another rank, alive, that it may wait for */
#endif
