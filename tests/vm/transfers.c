/* transfers.c - a rank for check.sh: moves bytes to and from all other ranks without end, until it loses one of them.
 *   transfers FOLDER LOST,...     FOLDER/ready.RANK: bytes move. FOLDER/struck is as old as what then happened, by
 *                                 which this rank loses the ranks LOST
 *   With UNTIL=NAME the rank lives on until FOLDER/NAME is there, 60 s at most: it must have let go before.
 *
 * It succeeds if each operation has ended once, those to lost ranks with an error that names the rank, within LATEST of
 * the strike; if what a get that went well has brought is right; and if the ranks that are left still reach each other,
 * with not one notify lost or doubled on the way.
 */
#include "tutti.h"
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { RANKS = 8, FLIGHT = 4, BYTES = 64 << 10, ROUNDS = 3, PUTS = 0, COUNTS, FAREWELLS };
#define LATEST 15.0 /* seconds: TUTTI_SILENCE is 10, and the guest is slow */

struct shared { /* of each rank, for all others */
	uint64_t notified[RANKS]; /* by that rank, in all */
	char brought[RANKS][FLIGHT][BYTES], mine[BYTES];
} *shared;

static struct flight { /* to one rank */
	tutti_op op[FLIGHT];
	char *room;               /* where gets go */
	uint64_t began, ended, failed, notified;
	bool lost;
	char why[400];
} flights[RANKS];

static tutti *job;
static tutti_window *window;
static int rank, size;
static const char *folder;

static void give_up(const char *what)
{
	fprintf(stderr, "rank %d: %s: %s\n", rank, what, tutti_why());
	exit(1);
}

static void need(bool good, const char *what)
{
	if (!good)
		give_up(what);
}

static double since_strike(void)
{
	char path[4096];
	struct stat st;
	struct timespec t;

	snprintf(path, sizeof path, "%s/struck", folder);
	if (stat(path, &st))
		return -1;
	clock_gettime(CLOCK_REALTIME, &t);
	return (double)(t.tv_sec - st.st_mtim.tv_sec) + (double)(t.tv_nsec - st.st_mtim.tv_nsec) / 1e9;
}

static void live_on(const char *name)
{
	char path[4096];

	snprintf(path, sizeof path, "%s/%s", folder, name);
	for (int i = 0; i < 600 && access(path, F_OK); i++)
		usleep(100000);
}

static void tell_ready(void)
{
	char path[4096];

	snprintf(path, sizeof path, "%s/ready.%d", folder, rank);
	close(open(path, O_CREAT | O_WRONLY, 0644));
}

static char text_of(int r) { return (char)('a' + r); }

static void set_up(void)
{
	need(tutti_join(NULL, &job) == 0, "joining");
	rank = tutti_rank(job);
	size = tutti_size(job);
	need(size <= RANKS, "too many ranks");
	need(tutti_alloc(job, sizeof *shared, -1, (void **)&shared) == 0, "memory");
	memset(shared->mine, text_of(rank), BYTES);
	need(tutti_window_open(job, "transfers", shared, sizeof *shared, &window) == 0, "opening a window");
	for (int r = 0; r < size; r++)
		need(tutti_alloc(job, BYTES * FLIGHT, -1, (void **)&flights[r].room) == 0, "memory");
	need(tutti_barrier(job, NULL) == 0, "meeting");
}

/* Puts that notify, and gets, in turn. */
static void start(int r)
{
	struct flight *f = &flights[r];
	size_t at = offsetof(struct shared, brought) + (size_t)rank * sizeof shared->brought[0];
	int err;

	for (size_t i = 0; i < FLIGHT; i++) {
		if (i % 2)
			err = tutti_get(window, r, offsetof(struct shared, mine), f->room + i * BYTES, BYTES,
			                &f->op[i]);
		else
			err = tutti_put_notify(window, r, at + i * BYTES, shared->mine, BYTES, PUTS, &f->op[i]);
		if (err)
			break; /* this rank has been told already */
		f->began++;
	}
}

static void take(int r, size_t i, int err)
{
	struct flight *f = &flights[r];

	f->ended++;
	f->notified += !err && i % 2 == 0;
	for (size_t k = 0; !err && i % 2 && k < BYTES; k += 997)
		need(f->room[i * BYTES + k] == text_of(r), "a get has brought other bytes than were there");
	if (!err)
		return;
	f->failed++;
	if (!f->lost)
		snprintf(f->why, sizeof f->why, "%s", tutti_why());
	f->lost = true;
	if (err != -ECONNRESET)
		give_up("another error than -ECONNRESET");
}

/* false: a rank is lost. */
static bool go_round(void)
{
	bool whole = true;

	for (int r = 0; r < size; r++)
		if (r != rank)
			start(r);
	for (int r = 0; r < size; r++) {
		uint64_t began = flights[r].began - flights[r].ended;
		for (size_t i = 0; i < began; i++)
			take(r, i, tutti_wait(&flights[r].op[i], -1));
		whole = whole && (r == rank || began == FLIGHT) && !flights[r].lost;
	}
	return whole;
}

static void check_lost(int r)
{
	char name[32];

	snprintf(name, sizeof name, "rank %d", r);
	if (!flights[r].lost) { /* nothing of this rank's was under way */
		need(tutti_put(window, r, 0, shared, 8, NULL) == -ECONNRESET, "a put to a lost rank");
		snprintf(flights[r].why, sizeof flights[r].why, "%s", tutti_why());
	}
	need(strstr(flights[r].why, name) != NULL, "an error without the rank's name");
	printf("rank %d: lost %s %.1f s after the strike: %llu operations began, %llu ended, %llu of them failed: %s\n",
	       rank, name, since_strike(), (unsigned long long)flights[r].began, (unsigned long long)flights[r].ended,
	       (unsigned long long)flights[r].failed, flights[r].why);
	need(flights[r].began == flights[r].ended, "an operation has not ended");
}

/* Those that are left tell each other how often they have notified, and count. */
static void check_left(int r)
{
	uint64_t n = flights[r].notified;

	need(!flights[r].failed, "an operation to a rank that lives has failed");
	need(tutti_put_notify(window, r, offsetof(struct shared, notified) + (size_t)rank * 8, &n, 8, COUNTS, NULL) ==
	             0,
	     "a put to a rank that lives");
	need(tutti_wait_notify(window, r, COUNTS, 1, 20000) == 0, "waiting for a rank that lives");
	n = shared->notified[r];
	need(tutti_wait_notify(window, r, PUTS, n, 0) == 0, "a notify is missing");
	need(tutti_wait_notify(window, r, PUTS, n + 1, 0) == -ETIMEDOUT, "a notify came twice");
	/* whoever has left has no notifies that could be counted */
	need(tutti_put_notify(window, r, 0, NULL, 0, FAREWELLS, NULL) == 0, "a farewell");
	need(tutti_wait_notify(window, r, FAREWELLS, 1, 20000) == 0, "waiting for a farewell");
	printf("rank %d: of rank %d came %llu notifies, each once\n", rank, r, (unsigned long long)n);
}

int main(int argc, char **argv)
{
	if (argc != 3) {
		fprintf(stderr, "usage: transfers FOLDER LOST,LOST...\n");
		return 2;
	}
	folder = argv[1];
	setvbuf(stdout, NULL, _IOLBF, 0);
	set_up();
	for (int rounds = 1; go_round(); rounds++)
		if (rounds == ROUNDS)
			tell_ready();
	need(since_strike() >= 0, "a rank was lost before the strike");
	bool is_lost[RANKS] = { false };
	for (char *at = argv[2]; *at; at++)
		if (*at >= '0' && *at - '0' < size)
			is_lost[*at - '0'] = true;
	for (int r = 0; r < size; r++)
		if (r != rank && is_lost[r])
			check_lost(r);
	need(since_strike() < LATEST, "it took too long to find out");
	for (int r = 0; r < size; r++)
		if (r != rank && !is_lost[r])
			check_left(r);
	if (getenv("UNTIL") && *getenv("UNTIL"))
		live_on(getenv("UNTIL"));
	tutti_leave(job);
	return 0;
}
