/* passive.c - a rank for check.sh: rank 0 puts into rank 1 while rank 1 polls, and while rank 1 is stopped; then rank 0
 * reads 100 MB of rank 1, which sleeps.
 *
 * It succeeds if a stopped target takes puts at 0.9 of the rate at least, and if not every third MiB that is read
 * wakes the owner, besides what wakes it in as long a time without reads. A closer bound would be about the guest: its
 * threads wake some times a second, and why was not found. unit_verbs_passive counts what the net itself wakes: 3.
 */
#include "tutti.h"
#include <errno.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

enum { BYTES = 1 << 20, READ = 100 * 1000 * 1000, NOW = 0, WAKES = READ / BYTES / 3 };
#define SECONDS 2.0

static tutti *job;
static tutti_window *window;
static struct shared {
	int64_t pid, wakes; /* of the owner */
	char bytes[BYTES];
} *mine, *theirs;

static void need(int good, const char *what)
{
	if (good)
		return;
	fprintf(stderr, "rank %d: %s: %s\n", tutti_rank(job), what, tutti_why());
	exit(1);
}

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

/* Bytes in a second. */
static double put_for(double seconds)
{
	double begun = now(), moved = 0;

	for (; now() - begun < seconds; moved += BYTES)
		need(tutti_put(window, 1, offsetof(struct shared, bytes), theirs->bytes, BYTES, NULL) == 0, "a put");
	return moved / (now() - begun);
}

static void ask_owner(void)
{
	static uint64_t asked;

	need(tutti_put_notify(window, 1, 0, NULL, 0, NOW, NULL) == 0, "a notify");
	need(tutti_wait_notify(window, 1, NOW, ++asked, -1) == 0, "an answer");
	need(tutti_get(window, 1, 0, theirs, 16, NULL) == 0, "a get");
}

/* What has woken the owner since the last call. */
static int64_t wakes(void)
{
	int64_t before = theirs->wakes;

	ask_owner();
	return theirs->wakes - before;
}

static void measure(void)
{
	struct timespec pause;

	ask_owner();
	double polls = put_for(SECONDS);
	kill((pid_t)theirs->pid, SIGSTOP);
	double stopped = put_for(SECONDS);
	kill((pid_t)theirs->pid, SIGCONT);
	wakes();
	double begun = now();
	for (size_t at = 0; at < READ; at += BYTES)
		need(tutti_get(window, 1, offsetof(struct shared, bytes), theirs->bytes, BYTES, NULL) == 0, "a get");
	double took = now() - begun;
	int64_t woken = wakes();
	pause = (struct timespec){ (time_t)took, (long)((took - (double)(time_t)took) * 1e9) };
	nanosleep(&pause, NULL);
	int64_t idle = wakes();
	printf("puts of 1 MiB: %.1f MB/s into a rank that polls, %.1f MB/s into one that is stopped, %.2f of it\n",
	       polls / 1e6, stopped / 1e6, stopped / polls);
	printf("100 MB read in %.1f s: the owner was woken %d times, and %d times in as long a time without reads\n",
	       took, (int)woken, (int)idle);
	need(stopped >= 0.9 * polls, "a stopped rank takes less");
	need(woken <= idle + WAKES, "reading wakes the owner");
}

static void serve(void)
{
	struct rusage u;

	for (int i = 0; i < 4; i++) { /* as often as rank 0 asks */
		int err = -ETIMEDOUT;
		while (err == -ETIMEDOUT) /* it polls while rank 0 puts, and sleeps while rank 0 reads */
			err = tutti_wait_notify(window, 0, NOW, (uint64_t)i + 1, i == 1 ? 0 : -1);
		need(err == 0, "a question");
		getrusage(RUSAGE_THREAD, &u); /* the one that waits: it drives the nets meanwhile */
		mine->wakes = u.ru_nvcsw;
		need(tutti_put_notify(window, 0, 0, NULL, 0, NOW, NULL) == 0, "an answer");
	}
}

int main(void)
{
	need(tutti_join(NULL, &job) == 0, "joining");
	need(tutti_alloc(job, sizeof *mine, -1, (void **)&mine) == 0, "memory");
	need(tutti_alloc(job, sizeof *theirs, -1, (void **)&theirs) == 0, "memory");
	mine->pid = getpid();
	need(tutti_window_open(job, "passive", mine, sizeof *mine, &window) == 0, "opening a window");
	need(tutti_barrier(job, NULL) == 0, "meeting");
	if (tutti_rank(job) == 0)
		measure();
	else
		serve();
	need(tutti_barrier(job, NULL) == 0, "the end");
	tutti_leave(job);
	return 0;
}
