/* mean.c - each rank has a gradient, and all get the mean: `tutti run -n 4 mean` */
#include <stdio.h>
#include <tutti.h>

int main(void)
{
	float gradient[4];
	tutti *job;

	if (tutti_join(NULL, &job)) {
		fprintf(stderr, "mean: %s\n", tutti_why());
		return 1;
	}
	for (int i = 0; i < 4; i++)
		gradient[i] = (float)(tutti_rank(job) + i);
	int err = tutti_allreduce(job, gradient, gradient, 4, TUTTI_F32, TUTTI_AVERAGE, NULL);
	if (err)
		fprintf(stderr, "mean: %s\n", tutti_why());
	else if (tutti_rank(job) == 0)
		printf("%d ranks: %g %g %g %g\n", tutti_size(job), gradient[0], gradient[1], gradient[2], gradient[3]);
	tutti_leave(job);
	return err != 0;
}
