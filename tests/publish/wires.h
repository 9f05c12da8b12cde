/* wires.h - runs a program of publishers and readers over all wires, and over seeds of sim: every other one has a slow
 * network */
#ifndef TT_TEST_WIRES_H
#define TT_TEST_WIRES_H
#include "tests/harness/cunit_main.h"
#include "tests/harness/ranks.h"

enum { SEEDS = 20, LATENCY = 2000, BANDWIDTH = 250000000 };

static inline int run_on_seeds(struct ranks run, uint64_t seeds)
{
	int failed = 0;

	run.wire = "sim";
	for (run.seed = first_seed(); run.seed < first_seed() + seeds; run.seed++) {
		run.latency_ns = run.seed % 2 * LATENCY;
		run.bandwidth = run.seed % 2 * BANDWIDTH;
		failed += run_ranks(run);
	}
	return failed;
}

static inline int run_all_wires(struct ranks run)
{
	return run_real_ranks(run) + run_on_seeds(run, (uint64_t)all_or(2 * SEEDS, 8));
}
#define ON_ALL(...) CU_ASSERT_EQUAL(run_all_wires((struct ranks){ __VA_ARGS__ }), 0)
/* TEST_SEEDS says another number than these, of the short check and of the full one. */
#define ON_SEEDS(few, all, ...) \
	CU_ASSERT_EQUAL(run_on_seeds((struct ranks){ __VA_ARGS__ }, count_seeds((uint64_t)all_or(all, few))), 0)
#endif
