/* table.c - a parameter table from its opening to its save: `tutti run -n 4 table [async|ssp|bsp [FOLDER]]`. All ranks
 * are servers and workers. Where FOLDER has a save of an earlier run, this one goes on from it. docs/tables.md explains
 * it. */
#include <tutti.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { COUNT = 1 << 20, STEPS = 100 };

static void check(int err)
{
	if (err < 0) {
		fprintf(stderr, "table: %s\n", tutti_why());
		exit(1);
	}
}

static tutti_consistency consistency_of(const char *word)
{
	if (!strcmp(word, "ssp"))
		return (tutti_consistency){ .mode = TUTTI_SSP, .staleness = 2 }; /* two ahead of the slowest at most */
	if (!strcmp(word, "bsp"))
		return (tutti_consistency){ .mode = TUTTI_BSP };                 /* rounds: all pull the same values */
	if (!strcmp(word, "async"))
		return (tutti_consistency){ .mode = TUTTI_ASYNC };               /* nobody waits */
	fprintf(stderr, "table: there is no '%s': it is async, ssp or bsp\n", word);
	exit(2);
}

static tutti_table *open_table(tutti *job, const char *word)
{
	tutti_table_config config = tutti_table_f32(COUNT, tutti_sgd(0.1));
	tutti_table *table;

	config.consistency = consistency_of(word);
	config.updater.defaults.scale = 1.0 / tutti_size(job); /* each pushes a gradient: of these the mean */
	check(tutti_table_open(job, "weights", &config, &table));
	return table;
}

/* One rank sets the values that all begin with: the last save's, or new ones. */
static void begin(tutti *job, tutti_table *table, const char *folder, float *w)
{
	int err = folder && tutti_rank(job) == 0 ? tutti_table_load(table, folder) : -ENOENT;

	if (err == -ENOENT && tutti_rank(job) == 0) { /* there is no save */
		for (int i = 0; i < COUNT; i++)
			w[i] = 1;
		err = tutti_table_assign(table, w, NULL);
	}
	check(tutti_rank(job) == 0 ? err : 0);
	check(tutti_barrier(job, NULL));
}

/* Stands for a model's: of half the squared distance from zero. */
static double compute(float *gradient, const float *w)
{
	double sum = 0;

	for (int i = 0; i < COUNT; i++)
		sum += fabs((double)(gradient[i] = w[i]));
	return sum / COUNT;
}

static double train(tutti_table *table, float *w, float *gradient)
{
	double distance = 0;

	for (int step = 0; step < STEPS; step++) {
		check(tutti_table_pull(table, w, NULL));
		distance = compute(gradient, w);
		check(tutti_table_push(table, gradient, NULL, NULL));
	}
	return distance;
}

int main(int argc, char **argv)
{
	const char *word = argc > 1 ? argv[1] : "async", *folder = argc > 2 ? argv[2] : NULL;
	void *w, *gradient;
	tutti *job;

	check(tutti_join(NULL, &job));
	/* any memory will do: servers of this host read this one in place */
	check(tutti_alloc(job, COUNT * sizeof(float), -1, &w));
	check(tutti_alloc(job, COUNT * sizeof(float), -1, &gradient));
	tutti_table *table = open_table(job, word);
	begin(job, table, folder, w);

	double distance = train(table, w, gradient);
	printf("rank %d: after %d steps at a distance of %.2g\n", tutti_rank(job), STEPS, distance);
	check(tutti_barrier(job, NULL)); /* all have pushed; nobody closes while another may still pull */
	if (folder && tutti_rank(job) == 0)
		check(tutti_table_save(table, folder));
	check(tutti_barrier(job, NULL));
	tutti_table_close(table);
	tutti_free(job, w);
	tutti_free(job, gradient);
	tutti_leave(job);
	return 0;
}
