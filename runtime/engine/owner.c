/* owner.c - may this process use the job now? */
#include "engine/engine.h"
#include <sys/mman.h>
#include <unistd.h>

/* A child of fork() shares the sockets, and its bytes would garble the streams. The kernel zeroes the child's page. */
int tt_mark_owner(struct tt_job *job)
{
	void *page = mmap(NULL, 1, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (page == MAP_FAILED)
		return tt_fail(-ENOMEM, "no memory for a job");
	job->here = page;
	madvise(page, (size_t)sysconf(_SC_PAGESIZE), MADV_WIPEONFORK);
	*job->here = 1;
	return 0;
}

int tt_is_mine(const struct tt_job *job)
{
	if (*job->here)
		return 0;
	return tt_fail(-ECHILD, "this process is a fork's child: only its parent is a rank of the job; "
	                        "the child may leave or exec");
}

int tt_usable(struct tt_job *job)
{
	int number = atomic_load(&job->quitting);

	if (number)
		return tt_fail(-ESHUTDOWN, "this process leaves the job: signal %d asked it to", number);
	return tt_is_mine(job);
}
