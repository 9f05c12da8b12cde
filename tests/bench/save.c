/* save.c - how fast a table is saved beside what dd writes, in turn. One rank, f32; each replaces what it wrote before,
 * and removes that, so the first pair, which replaces nothing, is not shown.
 *
 *      cc -O2 -Iruntime tests/bench/save.c -o save $(pkg-config --cflags --libs tutti) && ./save FOLDER [MiB
 * [PAIRS]] */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <tutti.h>

static double seconds(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int fail(void)
{
	fprintf(stderr, "save: %s\n", tutti_why());
	return 1;
}

int main(int argc, char **argv)
{
	const long mib = argc > 2 ? atol(argv[2]) : 512, pairs = argc > 3 ? atol(argv[3]) : 7;
	tutti_table_config c = tutti_table_f32((uint64_t)mib << 18, tutti_accumulate());
	float *v = malloc(c.count * sizeof *v);
	char dd[4200];
	tutti *job;
	tutti_table *t;

	if (argc < 2 || !v ||
	    snprintf(dd, sizeof dd, "dd if=/dev/zero of='%s/dd' bs=1M count=%ld conv=fsync 2> /dev/null", argv[1],
	             mib) >= (int)sizeof dd)
		return 2;
	for (uint64_t i = 0; i < c.count; i++)
		v[i] = (float)i;
	if (tutti_join(NULL, &job) || tutti_table_open(job, "w", &c, &t) || tutti_table_assign(t, v, NULL))
		return fail();
	for (long i = 0; i <= pairs; i++) {
		double begun = seconds(), saved;
		if (tutti_table_save(t, argv[1]))
			return fail();
		saved = seconds() - begun;
		begun = seconds();
		if (system(dd))
			return 1;
		double written = seconds() - begun, gb = 1e-9 * 1048576 * (double)mib;
		if (i)
			printf("save %.3f GB/s, dd %.3f GB/s, ratio %.2f\n", gb / saved, gb / written, written / saved);
	}
	tutti_table_close(t);
	tutti_leave(job);
	free(v);
	return 0;
}
