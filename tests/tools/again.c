/* again.c - for run.sh: `again ROUNDS` joins and leaves the job so many times. After the first time rank 0 opens a file
 * of its own under the number that TUTTI_BOOT_FD has. Others join again when rank 0 has left. */
#include "tutti.h"
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static int fail(const char *what, int rank, int round)
{
	fprintf(stderr, "again: rank %d, round %d: %s: %s\n", rank, round, what, tutti_why());
	return 1;
}

static int rank_in_environment(void) { return atoi(getenv("TUTTI_RANK")); }

static int take_number(void) /* a file of this program's, under TUTTI_BOOT_FD's number */
{
	const char *number = getenv("TUTTI_BOOT_FD");
	int fd = open("mine", O_RDWR | O_CREAT, 0600);

	if (!number || fd < 0 || fd == atoi(number))
		return fd;
	dup2(fd, atoi(number));
	close(fd);
	return atoi(number);
}

static void meet(int rank, int round) /* outside of the job */
{
	char name[32];

	snprintf(name, sizeof name, "left.%d", round);
	if (rank == 0)
		close(open(name, O_CREAT | O_WRONLY, 0600));
	while (access(name, F_OK))
		usleep(5000);
}

int main(int argc, char **argv)
{
	int rank = rank_in_environment(), rounds = argc > 1 ? atoi(argv[1]) : 2, mine = -1;
	tutti *all;

	for (int i = 0; i < rounds; i++) {
		if (tutti_join(NULL, &all))
			return fail("join", rank, i);
		int err = tutti_barrier(all, NULL);
		tutti_leave(all);
		if (err)
			return fail("barrier", rank, i);
		if (rank == 0 && mine < 0)
			mine = take_number();
		meet(rank, i);
	}
	return rank == 0 && write(mine, "still mine\n", 11) != 11;
}
