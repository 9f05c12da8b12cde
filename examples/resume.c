/* resume.c - a table that is saved, and goes on from its save in the next run: `tutti run -n 2 resume FOLDER` */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <tutti.h>

enum { WEIGHTS = 1000, STEPS = 50 };

static void check(int err)
{
	if (err < 0) {
		fprintf(stderr, "resume: %s\n", tutti_why());
		exit(1);
	}
}

int main(int argc, char **argv)
{
	const char *folder = argc > 1 ? argv[1] : ".";
	tutti_table_config config = tutti_table_f32(WEIGHTS, tutti_accumulate());
	static float delta[WEIGHTS], weights[WEIGHTS];
	tutti_table *table;
	tutti *job;
	int err;

	check(tutti_join(NULL, &job));
	check(tutti_table_open(job, "weights", &config, &table)); /* on all ranks: each is a server of a part of it */
	if (tutti_rank(job) == 0 && (err = tutti_table_load(table, folder)) && err != -ENOENT)
		check(err); /* -ENOENT: there is no save yet */
	check(tutti_barrier(job, NULL));
	for (int i = 0; i < WEIGHTS; i++)
		delta[i] = 1;
	for (int step = 0; step < STEPS; step++)
		check(tutti_table_push(table, delta, NULL, NULL)); /* the rule adds */
	check(tutti_barrier(job, NULL));
	if (tutti_rank(job) == 0) {
		check(tutti_table_save(table, folder));
		check(tutti_table_pull(table, weights, NULL));
		printf("%d ranks: each weight is %g\n", tutti_size(job), weights[0]);
	}
	check(tutti_barrier(job, NULL)); /* no rank closes its part while another one may still read it */
	tutti_table_close(table);
	tutti_leave(job);
	return 0;
}
