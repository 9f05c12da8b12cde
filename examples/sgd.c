/* sgd.c - each rank fits a line to points of its own; they average their gradients: `tutti run -n 4 sgd` */
#include <stdio.h>
#include <stdlib.h>
#include <tutti.h>

enum { POINTS = 50 };

static void check(int err)
{
	if (err < 0) {
		fprintf(stderr, "sgd: %s\n", tutti_why());
		exit(1);
	}
}

int main(void)
{
	float slope = 0, height = 0, by_slope, by_height;
	const tutti_tensor params[] = { { &slope, 1, TUTTI_F32 }, { &height, 1, TUTTI_F32 } };
	const tutti_tensor grads[] = { { &by_slope, 1, TUTTI_F32 }, { &by_height, 1, TUTTI_F32 } };
	tutti_gradients *g;
	tutti *job;

	check(tutti_join(NULL, &job));
	check(tutti_gradients_open(job, grads, 2, 0, &g));
	check(tutti_gradients_synchronize(g, params, 2)); /* all begin with rank 0's parameters */
	for (int step = 0; step < 1000 + 10 * tutti_rank(job); step++) { /* not all have as many */
		by_slope = by_height = 0;
		for (int i = 0; i < POINTS; i++) { /* points of the line 2 x + 1, other ones on each rank */
			float x = (float)(i * tutti_size(job) + tutti_rank(job)) / (float)(POINTS * tutti_size(job));
			float error = slope * x + height - (2 * x + 1);
			by_slope += error * x / POINTS;
			by_height += error / POINTS;
		}
		check(tutti_gradients_average(g, NULL)); /* over the ranks that have a step left */
		slope -= by_slope;
		height -= by_height;
	}
	check(tutti_gradients_synchronize(g, params, 2)); /* those of the rank with most steps */
	printf("rank %d: %.3f x + %.3f\n", tutti_rank(job), slope, height);
	tutti_gradients_close(g);
	tutti_leave(job);
	return 0;
}
