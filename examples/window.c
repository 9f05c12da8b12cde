/* window.c - reads a neighbour's memory, and draws tickets from a counter on rank 0: `tutti run -n 4 window` */
#include <tutti.h>
#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

struct shared {
	uint64_t value;
	uint64_t tickets; /* only rank 0's is used */
};

static void check(int err)
{
	if (err < 0) {
		fprintf(stderr, "window: %s\n", tutti_why());
		exit(1);
	}
}

int main(void)
{
	struct shared mine = { 0 };
	uint64_t theirs, ticket;
	tutti_window *window;
	tutti *job;

	check(tutti_join(NULL, &job));
	int rank = tutti_rank(job), right = (rank + 1) % tutti_size(job);
	mine.value = 100 + (uint64_t)rank; /* before the window opens: from then on others may look */
	check(tutti_window_open(job, "numbers", &mine, sizeof mine, &window));

	check(tutti_get(window, right, offsetof(struct shared, value), &theirs, sizeof theirs, NULL));
	check(tutti_add(window, 0, offsetof(struct shared, tickets), 1, &ticket, NULL));
	printf("rank %d: rank %d holds %" PRIu64 ", and my ticket is %" PRIu64 "\n", rank, right, theirs, ticket);

	check(tutti_barrier(job, NULL)); /* nobody closes while another may still look */
	tutti_window_close(window);
	tutti_leave(job);
	return 0;
}
