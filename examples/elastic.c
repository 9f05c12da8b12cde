/* elastic.c - each rank fits a line to data of its own, tied to a center on the servers: `tutti run -n 4 elastic` */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <tutti.h>

static void check(int err)
{
	if (err < 0) {
		fprintf(stderr, "elastic: %s\n", tutti_why());
		exit(1);
	}
}

int main(void)
{
	float line[2] = { 0, 0 };
	const tutti_tensor model = { line, 2, TUTTI_F32 };
	/* every 5 steps; NAN: as the number of workers wants it */
	tutti_center_config config = tutti_center_easgd(5, NAN);
	tutti_center *center;
	tutti *job;

	check(tutti_join(NULL, &job));
	check(tutti_center_open(job, "line", &model, 1, &config, &center));
	for (int step = 0; step < 4000; step++) { /* a point of the line 3 x - 1; a rank sees one side of 0 only */
		float side = tutti_rank(job) % 2 ? 1 : -1, x = side * (float)rand() / (float)RAND_MAX;
		float error = line[0] * x + line[1] - (3 * x - 1);
		line[0] -= 0.05f * error * x;
		line[1] -= 0.05f * error;
		check(tutti_center_step(center, NULL)); /* now and then: line and center move towards each other */
	}
	check(tutti_barrier(job, NULL));
	check(tutti_center_pull(center));
	if (tutti_rank(job) == 0)
		printf("the center: %.2f x %+.2f\n", (double)line[0], (double)line[1]);
	check(tutti_barrier(job, NULL)); /* nobody closes while another may still pull */
	tutti_center_close(center);
	tutti_leave(job);
	return 0;
}
