/* outlive.c - a table goes on without a server that has died: `tutti run --keep-going -n 4 outlive`, then `kill -9` one
 * of the processes that it names. docs/tables.md explains it. */
#include <tutti.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { COUNT = 1 << 16 };

static void check(int err)
{
	if (err < 0) {
		fprintf(stderr, "outlive: %s\n", tutti_why());
		exit(1);
	}
}

/* Has the group lost a rank, or has another rank seen that first and gone on? Any other error stays, however often the
 * call is made again, so it ends this process; the others go on without it. */
static int is_lost(int err)
{
	switch (err) {
	case -ECONNRESET:
	case -ENOTCONN:
	case -ESTALE:
	case -ENOENT:
	case -ETIMEDOUT:
	case -ECONNABORTED: return 1;
	default: check(err); return 0;
	}
}

/* All ranks of the group are servers and workers. The first one gives the values. */
static int open_table(tutti *group, const float *w, tutti_table **table)
{
	tutti_table_config config = tutti_table_f32(COUNT, tutti_sgd(0.1));
	int err;

	config.updater.defaults.scale = 1.0 / tutti_size(group);
	if ((err = tutti_table_open(group, "weights", &config, table)))
		return err;
	if (tutti_rank(group) == 0)
		err = tutti_table_assign(*table, w, NULL);
	return err ? err : tutti_barrier(group, NULL);
}

/* The range of a dead server is gone. Those who are left take the mean of the values that each of them pulled last, and
 * open the table anew. If somebody dies meanwhile: again. With a save, tutti_table_load takes the place of the mean. */
static void go_on(tutti **group, tutti_table **table, float *w)
{
	tutti *left;
	int err;

	do {
		tutti_table_close(*table); /* all have closed it when the group has shrunk: the name is free */
		*table = NULL;
		check(tutti_group_shrink(*group, &left));
		tutti_group_free(*group);
		*group = left;
		err = tutti_allreduce(left, w, w, COUNT, TUTTI_F32, TUTTI_AVERAGE, NULL);
	} while (is_lost(err ? err : open_table(left, w, table)));
	if (tutti_rank(left) == 0)
		printf("%d ranks go on\n", tutti_size(left));
}

static int train(tutti_table *table, float *w, float *pulled)
{
	int err = tutti_table_pull(table, pulled, NULL);

	if (err)
		return err;
	memcpy(w, pulled, COUNT * sizeof *w);
	return tutti_table_push(table, w, NULL, NULL); /* the gradient of half the squared distance from zero */
}

int main(int argc, char **argv)
{
	int steps = argc > 1 ? atoi(argv[1]) : 2000;
	float *w = malloc(COUNT * sizeof *w), *pulled = malloc(COUNT * sizeof *pulled);
	tutti_table *table = NULL;
	tutti *job, *group;

	setvbuf(stdout, NULL, _IOLBF, 0);
	check(tutti_join(NULL, &job));
	printf("rank %d of %d is process %d\n", tutti_rank(job), tutti_size(job), (int)getpid());
	for (int i = 0; i < COUNT; i++)
		w[i] = 1;
	group = job;
	check(open_table(group, w, &table));
	for (int step = 0; step < steps; step++) {
		if (is_lost(train(table, w, pulled)))
			go_on(&group, &table, w);
		nanosleep(&(struct timespec){ .tv_nsec = 1000000 }, NULL); /* here a model would be trained */
	}
	printf("rank %d: %d steps, at a distance of %.2g\n", tutti_rank(job), steps, fabs((double)w[0]));
	while (is_lost(tutti_barrier(group, NULL))) /* this rank still serves others, and goes on with them */
		go_on(&group, &table, w);
	tutti_table_close(table);
	free(w);
	free(pulled);
	tutti_leave(job);
	return 0;
}
