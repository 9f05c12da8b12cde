/* unit_device.c - memory of devices goes through windows and messages: from, to, and both; over sim, tcp and shm */
#include "tests/device/memory.h"

enum { MOST = (3 << 20) + 77, SIZES = 6 };
static const size_t sizes[SIZES] = { 1, 8, 300, 5000, 1 << 20, MOST };

/* ---- windows ---- */

/* The window is on `there` (-1: the host's), the caller's memory on `here`. Each rank asks the next one. */
static void try_pair(tutti *job, const char *name, int there, int here)
{
	int me = tutti_rank(job), n = tutti_size(job), next = (me + 1) % n;
	char *window = take(job, MOST, there), *mine = take(job, MOST, here);
	tutti_window *w;

	CHECK(tutti_window_open(job, name, window, MOST, &w) == 0);
	for (int i = 0; i < SIZES; i++) {
		size_t len = sizes[i], at = i % 2 ? MOST - len : 0;
		paint(mine, len, me + i);
		CHECK(tutti_put(w, next, at, mine, len, NULL) == 0);
		CHECK(tutti_barrier(job, NULL) == 0);
		CHECK(is_painted(window + at, len, (me + n - 1) % n + i));
		paint(mine, len, 99);
		CHECK(tutti_get(w, next, at, mine, len, NULL) == 0);
		CHECK(is_painted(mine, len, me + i));
		CHECK(tutti_barrier(job, NULL) == 0);
	}
	CHECK(tutti_put(w, next, MOST - 7, mine, 8, NULL) == -ERANGE);
	CHECK(tutti_barrier(job, NULL) == 0);
	tutti_window_close(w);
	tutti_free(job, window);
	tutti_free(job, mine);
}

static void program_windows(tutti *job)
{
	int mine = tutti_rank(job) % 2;

	try_pair(job, "host", -1, mine);
	try_pair(job, "device", mine, -1);
	try_pair(job, "both", mine, mine);
	try_pair(job, "other", 1 - mine, mine);
}

static void test_windows(void)
{
	run_everywhere(2, 0, program_windows);
	expect_nothing_left();
}

static void test_own(void)
{
	run_everywhere(1, 0, program_windows);
	expect_nothing_left();
}

static CU_TestInfo tests[] = {
	{ "windows", test_windows },
	{ "own", test_own },
	CU_TEST_INFO_NULL,
};
static CU_SuiteInfo suites[] = { { "device", NULL, NULL, NULL, NULL, tests }, CU_SUITE_INFO_NULL };

int main(int argc, char **argv)
{
	fake_cuda_watch(holds_lock);
	return run_suites(suites, argc, argv);
}
