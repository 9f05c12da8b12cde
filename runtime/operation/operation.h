/* operation.h - a started call: a put, a collective, a push. It is begun, waited for, tested and cancelled; it is given
 * up when its time has passed. The room that starts an operation gives it functions of its own.
 *
 * An op is memory of the program, and may outlive its job: no pointer in it is followed before tt_job_find() has said
 * that the job of its serial number lives. */
#ifndef TT_OPERATION_H
#define TT_OPERATION_H
#include "member/member.h"

enum { TT_OPERATION_SLOT = 1 };
extern const struct tt_module tt_operation_module;

struct tt_operation;
struct tt_inquiry;
struct tt_operation_kind { /* each may be NULL */
	bool (*waits_for)(const struct tt_operation *, int rank); /* NULL: for its rank; if that is -1, for its group */
	bool (*late)(const struct tt_operation *, const struct tt_member *); /* has not come to it; NULL: not known */
	uint64_t (*progress)(const struct tt_operation *); /* another number when ranks have done something for it */
	/* Its time has passed, or it is cancelled: ends with err once the others have returned what they hold of it.
	 * NULL: it just ends. */
	void (*give_up)(struct tt_operation *, int err);
	/* It was given up: the rank that neither returns what it holds nor moves bytes; NULL: none. */
	struct tt_member *(*holder)(struct tt_operation *);
	void (*ended)(struct tt_operation *, int err);
	int (*explain)(const struct tt_operation *); /* its error, with a sentence; 0: the kind has none */
	/* What it waits for, where that is no other rank that can be named; NULL: this rank's own part. */
	void (*describe)(const struct tt_operation *, char *text, size_t size);
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
	bool freed;                 /* a thread is in tutti_op_free */
	bool given_up, said;        /* said: the log has a line that it waits */
	uint16_t waiting;           /* threads in tutti_wait and its like */
	uint32_t asked;             /* periods after which the ranks that it waits for were asked what they do */
	uint64_t timeout;           /* nanoseconds; at first TUTTI_TIMEOUT */
	uint64_t since, seen;       /* tt_operations.clock, at its start or its last progress; and progress() then */
	const char *why;            /* the words behind its error, which the job keeps; NULL: the kind's own */
	struct tt_post post;        /* one-sided operations */
	uint64_t *old;
};
_Static_assert(sizeof(struct tt_operation) <= sizeof(tutti_op), "tutti_op is too small for an operation");

/* Words of failed operations. A program may drop an op at any time, so the job keeps the last ones only. */
enum { TT_WORDS = 64 };
struct tt_words {
	const struct tt_operation *of; /* only compared: it may be gone */
	struct tt_sentence why;
};

struct tt_operations { /* the room's own struct in a job */
	struct tt_list running;
	struct tt_list composites;  /* those that run */
	int freeing;                /* threads in tutti_op_free */
	int event_fd;
	uint64_t clock;             /* nanoseconds, but for those in which this process was stopped */
	uint64_t step;              /* how long the last beat was */
	struct tt_words *words;     /* TT_WORDS of them; NULL: there were none yet */
	unsigned worded;            /* how many there were; the n-th is at n % TT_WORDS */
	const char *last;           /* what this rank has begun last, ... */
	uint64_t last_at;           /* ... and when */
	struct tt_inquiry *inquiry; /* in which other processes ask; NULL: none */
	int inquiry_fd;
	uint32_t heard;             /* inquiry->asked at the last look */
	int answer_in;              /* beats until it is answered; 0: it is */
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
/* What the call has begun is over, and went well. */
void tt_operation_at_once(struct tt_job *, tutti_op *, const char *what, int rank);
/* Sets the words behind its error. They last for TT_WORDS failures more; then the kind words the error. */
void tt_operation_word(struct tt_operation *, const char *why);
void tt_operation_end(struct tt_operation *, int err); /* once; waiters learn of it when the lock is released */
/* Ends each call that begins an operation: releases the lock. Blocking: waits first, and returns the operation's error,
 * with a sentence. If the caller's hook ends the wait, it cancels the operation: -EINTR. */
int tt_operation_return(struct tt_operation *, bool blocking);
/* Cancels: blocks until it has ended. 0, or its own error if it ends by itself. */
int tt_operation_cancel(struct tt_operation *);
/* Its time has passed, or it is cancelled; it may end later. It was not given up before, and runs. */
void tt_operation_give_up(struct tt_operation *, int err);
int tt_operation_explain(const struct tt_operation *); /* its error, with the sentence for this thread */
/* Asks ranks that it waits for what they do: their answers are for tt_operation_name(). In a group this
 * rank asks the connected ranks and a few more: ranks that wait tell each other who is late. */
void tt_operation_ping(const struct tt_operation *);
/* Since the operation began that member has said, to this rank or others, how far it has come in the group. */
bool tt_operation_has_heard(const struct tt_operation *, const struct tt_member *);
bool tt_operation_concerns(const struct tt_operation *, int rank); /* another rank, alive, that it may wait for */
/* "rank 3 (node-b), rank 4 and 2 more; the first: it is in a barrier since 41 s". is: which of those that it waits
 * for; NULL: all. Returns how many. */
int tt_operation_name(const struct tt_operation *, bool (*is)(const struct tt_operation *, const struct tt_member *),
                      char *text, size_t size);
void tt_operation_describe(const struct tt_operation *, char *text, size_t size); /* where that names no rank */
/* A call that is no operation begins: for others that wait for this rank. The text stays valid. */
static inline void tt_operation_note(struct tt_job *job, const char *what)
{
	tt_operations(job)->last = what;
	tt_operations(job)->last_at = tt_operations(job)->clock;
}
/* ---- composite.c: an operation that is made of others, its parts: the program waits for one op, the library for many
 *
 *      begin --> parts run --> all have ended --> next: ends it, begins more parts (as an errand), or waits
 *                    `--> one fails: the others are given up, then the composite ends with that error
 *
 * A part is an op of a public call. A composite takes as long as its parts, which have time limits of their own. */

struct tt_composite { /* in a handle; zeroed at first */
	struct tt_list link;        /* in tt_operations.composites while it runs */
	struct tt_job *job;
	uint32_t serial;            /* of the job, which may have been left */
	struct tt_operation *op;    /* the program's; NULL: it does not run */
	const char *what;
	tutti_op *parts;
	int n, running;             /* parts that were begun, and of these that run */
	int err;                    /* of the part that failed first, or why it was given up */
	struct tt_sentence why;     /* "": none */
	bool started;               /* the program has not taken the result yet */
	bool due, busy;             /* its errand is to run; runs */
	/* No part runs, and none has failed. With the lock. NULL: the composite ends. */
	void (*next)(struct tt_composite *);
	/* Without the lock, on the background thread, after tt_composite_errand: begins more parts. Returns how many of
	 * `parts` were begun; 0: the composite ends; -errno, with a sentence. A long errand calls tt_composite_pause
	 * each millisecond or so. */
	int (*errand)(struct tt_composite *);
	struct tt_timer timer;
};

/* Without the lock. The parts were begun already, and `next` and `errand` are set. */
void tt_composite_begin(struct tt_composite *, struct tt_job *, tutti_op *, const char *what, tutti_op *parts, int n);
/* May the handle's next call begin? 0; -EALREADY: no, with a sentence. A composite that failed is forgotten. */
int tt_composite_idle(struct tt_composite *, const char *call);
/* For the call that applies the result. 0; -EINPROGRESS: it runs; -EINVAL: none was started; or its error. */
int tt_composite_take(struct tt_composite *, const char *call);
void tt_composite_close(struct tt_composite *); /* gives it up, and waits. Also where none was begun */
/* In an errand, without the lock: makes progress, since the background thread makes none while it runs the errand. */
void tt_composite_pause(struct tt_composite *);
void tt_composites_stop(struct tt_job *); /* this rank leaves: all end. Without the lock */
/* With the lock: */
void tt_composite_end(struct tt_composite *, int err);
void tt_composite_errand(struct tt_composite *); /* runs `errand` soon */
void tt_composite_part_ended(struct tt_operation *);
void tt_composites_run(struct tt_job *);          /* what is due */
#endif
