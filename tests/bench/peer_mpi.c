/* peer_mpi.c - MPI's all-reduce as `tutti perf allreduce` measures Tutti's: f32 sums, all ranks beginning together, on
 * rank 0's clock
 *   mpirun -n N peer_mpi BYTES SECONDS
 * Prints one JSON line for the faster of its two forms, in place and from one buffer into another.
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SAMPLES = 100000, WARM = 3 };

static int compare(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return x < y ? -1 : x > y;
}

static void reduce_once(float *from, float *to, int count, int in_place)
{
	MPI_Allreduce(in_place ? MPI_IN_PLACE : from, to, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
}

/* All ranks must stop at the same iteration: rank 0 says after how many. */
static int iterations(float *from, float *to, int count, int in_place, double seconds)
{
	double begun = MPI_Wtime(), each;
	int n;

	for (int i = 0; i < WARM; i++)
		reduce_once(from, to, count, in_place);
	each = (MPI_Wtime() - begun) / WARM;
	n = seconds / each < 5 ? 5 : seconds / each > SAMPLES ? SAMPLES : (int)(seconds / each);
	MPI_Bcast(&n, 1, MPI_INT, 0, MPI_COMM_WORLD);
	return n;
}

static void check(float *from, float *to, int count, int in_place, int rank, int ranks)
{
	for (int i = 0; i < count; i++)
		from[i] = to[i] = (float)(rank + 1);
	reduce_once(from, to, count, in_place);
	for (int i = 0; i < count; i++)
		if (to[i] != (float)(ranks * (ranks + 1) / 2)) {
			fprintf(stderr, "element %d is wrong: %g\n", i, (double)to[i]);
			MPI_Abort(MPI_COMM_WORLD, 1);
		}
	memset(from, 0, (size_t)count * sizeof *from);
	memset(to, 0, (size_t)count * sizeof *to);
}

static double measure(float *from, float *to, int count, int in_place, double seconds, double *samples)
{
	int n = iterations(from, to, count, in_place, seconds);

	for (int i = 0; i < n; i++) {
		MPI_Barrier(MPI_COMM_WORLD);
		double begun = MPI_Wtime();
		reduce_once(from, to, count, in_place);
		samples[i] = (MPI_Wtime() - begun) * 1e6;
	}
	qsort(samples, (size_t)n, sizeof *samples, compare);
	return samples[n / 2];
}

int main(int argc, char **argv)
{
	int rank, ranks;

	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &ranks);
	if (argc != 3) {
		fprintf(stderr, "usage: peer_mpi BYTES SECONDS\n");
		MPI_Abort(MPI_COMM_WORLD, 2);
	}
	size_t bytes = strtoull(argv[1], NULL, 10);
	float *from = malloc(bytes), *to = malloc(bytes);
	double *samples = malloc(SAMPLES * sizeof *samples), best = 0, seconds = strtod(argv[2], NULL) / 2;
	if (!from || !to || !samples)
		MPI_Abort(MPI_COMM_WORLD, 1);
	for (int in_place = 0; in_place < 2; in_place++) {
		check(from, to, (int)(bytes / sizeof *to), in_place, rank, ranks);
		double us = measure(from, to, (int)(bytes / sizeof *to), in_place, seconds, samples);
		best = !in_place || us < best ? us : best;
	}
	if (!rank)
		printf("{\"test\": \"allreduce\", \"bytes\": %zu, \"ranks\": %d, \"p50_us\": %.3f}\n", bytes, ranks,
		       best);
	MPI_Finalize();
	free(from);
	free(to);
	free(samples);
	return 0;
}
