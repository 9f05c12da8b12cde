/* scarce.c - the n-th request for memory of agreement.c, group.c, transfer.c or scratch.c fails, for every n that a
 * program comes to. On sim, over seeds: calls may fail, but nobody dies of it, nobody hangs, and there are no two
 * answers to who goes on. */
#undef malloc
#undef calloc
#undef realloc
#include "member/member.h"
#include "tests/harness/cunit_main.h"
#include "tests/harness/procs.h"
#include "tests/harness/ranks.h"
#include "transport/sim/sim.h"

enum { SEEDS = 8, DEADLINE = 1000, RANKS = 5, REQUESTS_MAX = 2000 };

static long requests, fails_at; /* counted while it is armed */
static bool armed;
static uint32_t answers[RANKS]; /* the uid of the group in which each rank goes on; 0: none */

static bool is_refused(void) { return armed && ++requests == fails_at; }

void *scarce_malloc(size_t n) { return is_refused() ? NULL : malloc(n); }
void *scarce_calloc(size_t n, size_t size) { return is_refused() ? NULL : calloc(n, size); }
void *scarce_realloc(void *p, size_t n) { return is_refused() ? NULL : realloc(p, n); }

/* All begin together, and what each rank needed to join does not count. */
static void arm(tutti *job)
{
	CHECK(tutti_barrier(job, NULL) == 0);
	tt_sim_sleep(10 * TT_MS);
	armed = true;
}

static bool are_of_one_mind(void)
{
	uint32_t first = 0;

	for (int i = 0; i < RANKS; i++) {
		if (first && answers[i] && answers[i] != first)
			return false;
		first = answers[i] ? answers[i] : first;
	}
	return true;
}

/* False: it made fewer requests than that. */
static bool run_refusing(struct ranks run, long at)
{
	requests = 0;
	fails_at = at;
	armed = false;
	memset(answers, 0, sizeof answers);
	WANT(run_ranks(run) == 0, "seed %d: request %ld was refused", (int)run.seed, at);
	WANT(are_of_one_mind(), "seed %d: request %ld was refused, and there are two groups", (int)run.seed, at);
	armed = false;
	return requests >= at;
}

static void run_scarce(void (*program)(tutti *), int size, uint64_t seed)
{
	struct ranks run = { .size = size, .wire = "sim", .timeout_ms = DEADLINE, .program = program };

	for (run.seed = seed; run.seed < seed + SEEDS; run.seed++) {
		long n = 0;
		while (n < REQUESTS_MAX && run_refusing(run, n + 1))
			n++;
		WANT(n > 3, "seed %d: %ld requests", (int)run.seed, n);
	}
}

/* ---- parts, and collectives of legs ---- */

static void program_legs(tutti *job)
{
	enum { COUNT = 50000 };
	float *in = calloc(RANKS * COUNT, sizeof *in), *out = calloc(RANKS * COUNT, sizeof *out);
	tutti *part = NULL;

	arm(job);
	uint64_t then = tt_now();
	tutti_group_split(job, tutti_rank(job) % 2, 0, &part);
	if (part)
		tutti_reduce_scatter(part, in, out, 100, TUTTI_F32, TUTTI_SUM, NULL);
	tutti_reduce_scatter(job, in, out, COUNT, TUTTI_F32, TUTTI_SUM, NULL);
	tutti_alltoall(job, in, COUNT, out, NULL);
	CHECK(tt_now() - then < 8 * DEADLINE * TT_MS);
	free(in);
	free(out);
}

static void test_legs(void) { run_scarce(program_legs, 3, 1); }

/* ---- agreeing, while who coordinates dies ---- */

static void program_shrink(tutti *job)
{
	tutti *left = NULL;
	int rank = tutti_rank(job), err = -ETIMEDOUT;

	arm(job);
	if (rank == 0)
		tt_sim_kill(0, tt_sim_chance(400000));
	for (int i = 0; i < 4 && err == -ETIMEDOUT; i++)
		err = tutti_group_shrink(job, &left);
	if (!err && left)
		answers[rank] = left->uid;
	tt_sim_sleep(DEADLINE * TT_MS);
}

/* With some of these seeds rank 0 has told some of the others what was agreed when it dies. */
static void test_shrink(void) { run_scarce(program_shrink, RANKS, 80); }

/* ---- a newcomer ---- */

static void program_grow(tutti *job)
{
	int n = tutti_size(job), rank = tutti_rank(job);
	tutti *again = NULL, *left = NULL, *grown = NULL;

	arm(job);
	if (rank == n - 1) {
		armed = false;
		if (join_again(job, rank, &again))
			return;
		armed = true;
		for (int i = 0; i < 3 && !grown; i++)
			tutti_group_grow(again, &grown);
		tt_sim_sleep(DEADLINE * TT_MS);
		tutti_leave(again);
		return;
	}
	tt_sim_sleep(300 * TT_MS);
	if (!tutti_group_shrink(job, &left) && left && !tutti_group_grow(left, &grown) && grown)
		tutti_barrier(grown, NULL);
	if (rank)
		tt_sim_sleep(3 * DEADLINE * TT_MS);
}

static void test_grow(void) { run_scarce(program_grow, 3, 1); }

static CU_TestInfo tests[] = {
	{ "legs", test_legs }, { "shrink", test_shrink }, { "grow", test_grow }, CU_TEST_INFO_NULL,
};
static CU_SuiteInfo suites[] = { { "no memory", NULL, NULL, NULL, NULL, tests }, CU_SUITE_INFO_NULL };

int main(int argc, char **argv) { return run_suites(suites, argc, argv); }
