/* job.h - joining and leaving; the lists of modules and of transports; what a signal does; the stats as users read them */
#ifndef TT_JOB_H
#define TT_JOB_H
#include "member/member.h"

enum { TT_JOB_SLOT = 5 };

struct tt_jobs_own { /* this room's own of a job */
	struct tt_job *job;
	struct tt_list quits;       /* signal.c's list of jobs that leave on a signal ... */
	uint64_t quit_on;           /* ... and which: bit 0 is signal 1 */
	_Atomic bool listening;     /* to the signal for the stats; these two are read without the lock, too */
	_Atomic unsigned seen;      /* how many such signals were answered */
	int ear;                    /* its place among those that the handler kicks, from 1 up; 0: none */
};
static inline struct tt_jobs_own *tt_jobs_own(const struct tt_job *job) { return job->own[TT_JOB_SLOT]; }

/* modules.c */
const struct tt_module *const *tt_module_list(void); /* all rooms that register, in the order of their floors; NULL at the end */

/* job.c */
void tt_job_goodbye(struct tt_job *);   /* finishes what was started, and tells the others; without the lock */

/* signal.c */
void tt_signal_forget(struct tt_job *); /* it leaves by itself; without the lock */

/* stats.c */
int tt_stats_listen(struct tt_job *);   /* to the signal; without the lock, like deafen */
void tt_stats_deafen(struct tt_job *);  /* before the background thread's eventfd is closed */
bool tt_stats_asked(const struct tt_job *); /* has a signal come that is not answered? No lock */
void tt_stats_look(struct tt_job *);    /* the background thread: has a signal come? Lets go of the lock to write */
#endif
