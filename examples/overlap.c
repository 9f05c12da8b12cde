/* overlap.c - the gradients of one layer are averaged while the next ones are computed: `tutti run -n 2 overlap` */
#include <stdio.h>
#include <stdlib.h>
#include <tutti.h>

enum { LAYERS = 8, SIZE = 1 << 16 };

static void check(int err)
{
	if (err < 0) {
		fprintf(stderr, "overlap: %s\n", tutti_why());
		exit(1);
	}
}

static void compute(float *gradient, int layer, int rank) /* here a layer's gradients would be computed */
{
	for (int i = 0; i < SIZE; i++)
		gradient[i] = (float)(layer + rank);
}

int main(void)
{
	float *gradient[LAYERS];
	tutti_op done[LAYERS] = { 0 };
	tutti *job;

	check(tutti_join(NULL, &job));
	for (int i = 0; i < LAYERS; i++) {
		/* memory that the other ranks of this host may map */
		check(tutti_alloc(job, SIZE * sizeof(float), -1, (void **)&gradient[i]));
		compute(gradient[i], i, tutti_rank(job));
		/* starts it, and returns */
		check(tutti_allreduce(job, gradient[i], gradient[i], SIZE, TUTTI_F32, TUTTI_SUM, &done[i]));
	}
	for (int i = 0; i < LAYERS; i++) {
		check(tutti_wait(&done[i], -1)); /* the sum is there, and the memory is the caller's again */
		if (tutti_rank(job) == 0)
			printf("layer %d: %g\n", i, gradient[i][0]);
		tutti_free(job, gradient[i]);
	}
	tutti_leave(job);
	return 0;
}
