/* late.c - for doctor.sh: the last rank begins the all-reduce, in which the others wait, once a file is there. Rank 0
 * begins a second and a half before the others, so the doctor finds its wait too long before theirs. */
#include "tutti.h"
#include <stdio.h>
#include <unistd.h>

int main(int argc, char **argv)
{
	double sum = 1;
	tutti *all;
	int err;

	if (argc != 2 || (err = tutti_join(NULL, &all))) {
		fprintf(stderr, "late: %s\n", argc == 2 ? tutti_why() : "name a file");
		return 1;
	}
	if (!(err = tutti_barrier(all, NULL)) && tutti_rank(all) == tutti_size(all) - 1)
		while (access(argv[1], F_OK))
			usleep(10000);
	else if (tutti_rank(all))
		usleep(1500000);
	if (err || (err = tutti_allreduce(all, &sum, &sum, 1, TUTTI_F64, TUTTI_SUM, NULL)))
		fprintf(stderr, "late: rank %d: %s\n", tutti_rank(all), tutti_why());
	tutti_leave(all);
	return err != 0;
}
