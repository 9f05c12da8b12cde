/* ring.c - a token travels around all ranks by put and notify: `tutti run -n 4 ring` */
#include <tutti.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { ROUNDS = 1000, SLOT = 0 };

static void check(int err)
{
	if (err < 0) {
		fprintf(stderr, "ring: %s\n", tutti_why());
		exit(1);
	}
}

static double seconds(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

int main(void)
{
	uint64_t inbox = 0, token = 0; /* the left neighbour puts the token into my inbox */
	tutti_window *window;
	tutti *job;

	check(tutti_join(NULL, &job));
	int rank = tutti_rank(job), size = tutti_size(job), left = (rank + size - 1) % size, right = (rank + 1) % size;
	check(tutti_window_open(job, "ring", &inbox, sizeof inbox, &window));
	check(tutti_barrier(job, NULL));

	double start = seconds();
	for (uint64_t round = 1; round <= ROUNDS; round++) {
		if (rank > 0) {
			check(tutti_wait_notify(window, left, SLOT, round, -1));
			token = inbox;
		}
		token++; /* one more hop */
		check(tutti_put_notify(window, right, 0, &token, sizeof token, SLOT, NULL));
		if (rank == 0) {
			check(tutti_wait_notify(window, left, SLOT, round, -1));
			token = inbox;
		}
	}
	if (rank == 0)
		printf("%" PRIu64 " hops around %d rank%s, %.2f us per hop\n", token, size, size == 1 ? "" : "s",
		       1e6 * (seconds() - start) / (double)token);

	check(tutti_barrier(job, NULL)); /* nobody closes while another may still put */
	tutti_window_close(window);
	tutti_leave(job);
	return 0;
}
