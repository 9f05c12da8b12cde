/* owner.c - may this process use the job now, and does the job still live? And the memory of jobs */
#include "engine/engine.h"
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { JOBS_MAX = 65536 };

/* The jobs that live, by serial number modulo JOBS_MAX. An operation outlives its job, so it is asked for its job by
 * number before the job's memory is read. */
static struct {
	_Atomic uint32_t serial; /* 0: none */
	struct tt_job *job;
} living[JOBS_MAX];
static _Atomic uint32_t last_serial;

/* All jobs that this process has ever been in at once. A fork's child may find `holder` held by its parent. */
static struct {
	_Atomic int holder;      /* the process whose thread is in the list; 0: none */
	struct tt_job *first;
} all;

static void enter_list(void)
{
	int me = getpid(), holder = 0;

	while (!atomic_compare_exchange_weak(&all.holder, &holder, me))
		if (holder == me) {
			tt_yield();
			holder = 0;
		}
}

static void leave_list(void) { atomic_store(&all.holder, 0); }

/* Another thread may come too late for the earlier job, and take the lock. */
static void wipe(struct tt_job *job)
{
	struct tt_ticket_lock *lock = &job->engine.lock;
	char *from = (char *)(lock + 1);

	tt_ticket_lock_take(lock);
	memset(from, 0, (size_t)((char *)(job + 1) - from));
	tt_ticket_lock_release(lock);
}

struct tt_job *tt_job_new(void)
{
	struct tt_job *job;

	enter_list();
	for (job = all.first; job && !job->spare; job = job->next)
		continue;
	if (job) {
		job->spare = false;
	} else if ((job = calloc(1, sizeof *job))) {
		job->next = all.first;
		all.first = job;
	}
	leave_list();
	if (job)
		wipe(job);
	return job;
}

void tt_job_retire(struct tt_job *job)
{
	tt_modules_free(job);
	atomic_store(&job->spare, true);
}

static int number_job(struct tt_job *job)
{
	for (int i = 0; i < JOBS_MAX; i++) {
		uint32_t none = 0, serial = atomic_fetch_add(&last_serial, 1) + 1;
		if (!serial || !atomic_compare_exchange_strong(&living[serial % JOBS_MAX].serial, &none, serial))
			continue;
		living[serial % JOBS_MAX].job = job;
		job->serial = serial;
		return 0;
	}
	return tt_fail(-EMFILE, "this process is in %d jobs: leave some", JOBS_MAX);
}

struct tt_job *tt_job_find(uint32_t serial)
{
	size_t at = serial % JOBS_MAX;
	bool lives = serial && atomic_load_explicit(&living[at].serial, memory_order_acquire) == serial;

	return lives ? living[at].job : NULL;
}

/* A child of fork() shares the sockets, and its bytes would garble the streams. The kernel zeroes the child's page. */
int tt_mark_owner(struct tt_job *job)
{
	if (!job->here) {
		void *page = mmap(NULL, 1, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		if (page == MAP_FAILED)
			return tt_fail(-ENOMEM, "no memory for a job");
		job->here = page;
		madvise(page, (size_t)sysconf(_SC_PAGESIZE), MADV_WIPEONFORK);
	}
	*job->here = 1;
	return number_job(job);
}

void tt_unmark_owner(struct tt_job *job)
{
	size_t at = job->serial % JOBS_MAX;

	if (job->serial) {
		living[at].job = NULL;
		atomic_store(&living[at].serial, 0);
	}
	if (job->here)
		*job->here = 0;
}

int tt_refuse_null(const char *name) { return tt_fail(-EINVAL, "%s is NULL, and must not be", name); }

int tt_refuse_job(const struct tt_job *job)
{
	if (!job)
		return tt_fail(-EINVAL, "the handle that this call was given is NULL: its open or join has failed, or "
		               "the program has closed it");
	if (job->ending)
		return tt_fail(-ESHUTDOWN, "this process has left the job (tutti_leave): close the handle");
	if (!*job->here)
		return tt_fail(-ECHILD, "this process is a fork's child: only its parent is a rank of the job; "
		                        "the child may leave or exec");
	return tt_fail(-ESHUTDOWN, "this process leaves the job: signal %d asked it to", atomic_load(&job->quitting));
}
