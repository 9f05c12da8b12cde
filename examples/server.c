/* server.c - a parameter server and its workers: rank 0 holds the weights of a linear model, and the others learn them
 * from samples of their own, without waiting for each other: `tutti run -n 3 server` */
#include <tutti.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

enum { SERVER, WEIGHTS = 4, STEPS = 2000 };

static void check(int err)
{
	if (err < 0) {
		fprintf(stderr, "server: %s\n", tutti_why());
		exit(1);
	}
}

/* From samples x of sum(truth[i] x[i]): the gradient of the squared error goes to the server, which takes a step of
 * SGD. */
static void learn(tutti_table *table, unsigned seed)
{
	static const float truth[WEIGHTS] = { 2, -1, 0.5f, 3 };
	float w[WEIGHTS], x[WEIGHTS], gradient[WEIGHTS];

	check(tutti_table_pull(table, w, NULL));
	for (int step = 0; step < STEPS; step++) {
		float error = 0;
		for (int i = 0; i < WEIGHTS; i++) {
			x[i] = 2 * (float)rand_r(&seed) / (float)RAND_MAX - 1;
			error += (w[i] - truth[i]) * x[i];
		}
		for (int i = 0; i < WEIGHTS; i++)
			gradient[i] = 2 * error * x[i];
		/* w: after this step, and what others did meanwhile */
		check(tutti_table_push_pull(table, gradient, NULL, w, NULL));
	}
}

int main(void)
{
	const int servers[] = { SERVER };
	tutti_table_config config = tutti_table_f32(WEIGHTS, tutti_sgd(0.05));
	float w[WEIGHTS];
	tutti_table *table;
	tutti_op all = { 0 };
	tutti *job;
	int err;

	config.servers = 1;
	config.server = servers;
	check(tutti_join(NULL, &job));
	check(tutti_table_open(job, "weights", &config, &table));
	if (tutti_rank(job) != SERVER || tutti_size(job) == 1)
		/* the server has nothing to do: its part is done in the background */
		learn(table, (unsigned)tutti_rank(job));

	check(tutti_barrier(job, &all));
	/* until all have done their steps, however long that takes */
	while ((err = tutti_wait(&all, -1)) == -ETIMEDOUT)
		;
	check(err);
	check(tutti_table_pull(table, w, NULL));
	printf("rank %d: %.3f %.3f %.3f %.3f\n", tutti_rank(job), (double)w[0], (double)w[1], (double)w[2],
	       (double)w[3]);

	check(tutti_barrier(job, NULL)); /* nobody closes while another may still look */
	tutti_table_close(table);
	tutti_leave(job);
	return 0;
}
