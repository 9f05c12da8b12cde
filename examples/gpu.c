/* gpu.c - puts, notifies, gets and pushes of memory that lies on GPUs: `tutti run -n 2 gpu`
 *
 * Rank r uses GPU r modulo argv[1], the number of GPUs of the host (1). Tutti itself brings numbers to the GPU and
 * back, so that this program builds without CUDA; a program of yours launches kernels on the same memory. */
#include <tutti.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

enum { COUNT = 1000000, BYTES = COUNT * sizeof(float), SLOT = 0 };

static void check(int err)
{
	if (err < 0) {
		fprintf(stderr, "gpu: %s\n", tutti_why());
		exit(1);
	}
}

static void expect(const char *what, const float *host, float value)
{
	for (int i = 0; i < COUNT; i++)
		if (host[i] != value) {
			fprintf(stderr, "gpu: %s: element %d is %g and not %g\n", what, i, (double)host[i],
			        (double)value);
			exit(1);
		}
}

/* The window holds two vectors: [mine | theirs]. */
static void meet(tutti *job, tutti_window *window, const float *mine, float *host)
{
	int rank = tutti_rank(job), size = tutti_size(job), left = (rank + size - 1) % size, right = (rank + 1) % size;

	for (int i = 0; i < COUNT; i++)
		host[i] = (float)(rank + 1);
	check(tutti_put(window, rank, 0, host, BYTES, NULL));                         /* host to GPU */
	check(tutti_put_notify(window, right, BYTES, mine, BYTES, SLOT, NULL));       /* GPU to the next rank's GPU */
	check(tutti_wait_notify(window, left, SLOT, 1, -1));
	check(tutti_get(window, rank, BYTES, host, BYTES, NULL));                     /* GPU to host */
	expect("what the left rank has put", host, (float)(left + 1));
	check(tutti_get(window, right, 0, host, BYTES, NULL));                        /* the next rank's GPU to host */
	expect("what the right rank has", host, (float)(right + 1));
}

/* Each rank is a worker and a server of one table; what is pushed and pulled lies on the GPU. */
static void push(tutti *job, tutti_window *window, const float *mine, float *theirs, float *host)
{
	int rank = tutti_rank(job), size = tutti_size(job);
	tutti_table_config config = tutti_table_f32(COUNT, tutti_accumulate());
	tutti_table *table;

	check(tutti_table_open(job, "sum", &config, &table));
	check(tutti_table_push(table, mine, NULL, NULL));
	check(tutti_barrier(job, NULL));
	check(tutti_table_pull(table, theirs, NULL));
	check(tutti_get(window, rank, BYTES, host, BYTES, NULL));
	expect("the sum of all pushes", host, (float)(size * (size + 1) / 2));
	check(tutti_barrier(job, NULL));
	tutti_table_close(table);
}

int main(int argc, char **argv)
{
	int gpus = argc > 1 ? atoi(argv[1]) : 1, err;
	float *host = malloc(BYTES);
	tutti_window *window;
	void *memory;
	tutti *job;

	check(tutti_join(NULL, &job));
	err = tutti_alloc(job, 2 * BYTES, tutti_rank(job) % (gpus > 0 ? gpus : 1), &memory);
	if (err == -ENODEV) {
		printf("gpu: skipped: %s\n", tutti_why());
		tutti_leave(job);
		free(host);
		return 0;
	}
	check(err);
	if (!host)
		return 1;
	check(tutti_window_open(job, "vectors", memory, 2 * BYTES, &window));
	float *mine = memory, *theirs = mine + COUNT;
	meet(job, window, mine, host);
	push(job, window, mine, theirs, host);
	printf("rank %d: all numbers are right\n", tutti_rank(job));
	check(tutti_barrier(job, NULL)); /* nobody closes while another may still look */
	tutti_window_close(window);
	tutti_free(job, memory);
	tutti_leave(job);
	free(host);
	return 0;
}
