/* job_private.h - what the files of this room share */
#ifndef TT_JOB_PRIVATE_H
#define TT_JOB_PRIVATE_H
#include "job/job.h"
#include "member/member.h"

enum { TT_JOB_SLOT = 5 };

struct tt_jobs_own { /* the room's own struct in a job */
	struct tt_job *job;
	struct tt_list quits;       /* in signal.c's list of jobs that leave on a signal ... */
	uint64_t quit_on;           /* ... and on which: bit 0 is signal 1 */
	_Atomic uint64_t asks_for;  /* for which signals the program asks */
	_Atomic bool listening;     /* to the signal for the stats; these two are read without the lock, too */
	_Atomic unsigned seen;      /* number of such signals that were answered */
	int ear;                    /* its place among the jobs that the handler wakes, from 1 up; 0: none */
};
static inline struct tt_jobs_own *tt_jobs_own(const struct tt_job *job) { return job->own[TT_JOB_SLOT]; }

const struct tt_transport *tt_transport_find(const char *name); /* by name or by the scheme of an address, or NULL */
const struct tt_module *const *tt_module_list(void); /* all modules, in the order of their floors; NULL at the end */

int tt_read_ports(const struct tt_settings *, int ports[2]); /* TUTTI_PORTS, 0 and 0 by default; -EINVAL */

/* Finishes the operations of this rank, as far as they end within `patience` nanoseconds, and says goodbye. Blocks;
 * without the lock. */
void tt_job_goodbye(struct tt_job *, uint64_t patience);
int tt_signal_begin(struct tt_job *);   /* TUTTI_TERM. Without the lock */
void tt_signal_forget(struct tt_job *); /* the job leaves by itself. Without the lock */

int tt_stats_listen(struct tt_job *);   /* to the signal. Without the lock, like tt_stats_deafen */
void tt_stats_deafen(struct tt_job *);  /* before the background thread's eventfd is closed */
bool tt_stats_asked(const struct tt_job *); /* a signal has come that is not answered. Needs no lock */
void tt_stats_look(struct tt_job *);    /* on the background thread: answers it; releases the lock to write */
#endif
