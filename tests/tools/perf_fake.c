/* perf_fake.c - `tutti perf` of two ranks, threads of this process, over adapters that are not there (fake.h)
 *
 *   perf_fake TEST [OPTION ...]     as `tutti perf`; TEST_SEED: which adapters (ranks.h) */
#define TEST_FAKE
#include "tests/harness/ranks.h"
#include "tools/perf/perf.h"

static struct tt_perf_options options;

static void measure(tutti *job) { CHECK(tt_perf_measure(&options, job) == 0); }

int main(int argc, char **argv)
{
	int status = tt_perf_read_options(argc, argv, &options);

	return status >= 0 ? status : run_ranks((struct ranks){ .size = 2, .wire = "verbs", .program = measure }) != 0;
}
