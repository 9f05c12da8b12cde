/* unit_gossip.c - gossip: rounds, both ways to hold a model, torn reads, peers that are late, slow, stopped or dead */
#include "average/gossip.h"
#include "tests/harness/cunit_main.h"
#include "tests/harness/ranks.h"
#include "tests/harness/with.h"
#include <math.h>

enum { MANY = 16384 + 7 }; /* f32: more than a page, not a whole number of lines */

static int other;                        /* what `choose` returns */
static int give_other(void *arg) { return *(int *)arg; }

static tutti_gossip *open_gossip(tutti *job, const char *name, const tutti_tensor *model, int n, tutti_gossip_config c)
{
	tutti_gossip *g = NULL;
	int err = tutti_gossip_open(job, name, model, n, &c, &g);

	CHECK(err == 0);
	return g;
}

static void meet(tutti *job) { CHECK(tutti_barrier(job, NULL) == 0); }

/* ---- rounds ---- */

static void average_pairs(tutti *job)
{
	int rank = tutti_rank(job);
	double x[3] = { rank, 2.0 * rank, -rank };
	float y[5] = { (float)rank };
	int64_t count = 100 + rank;
	tutti_tensor model[] = { { x, 3, TUTTI_F64 }, { y, 5, TUTTI_F32 }, { &count, 1, TUTTI_I64 }, { NULL, 0, TUTTI_F32 } };
	tutti_gossip_config c = WITH(tutti_gossip_defaults(), it.value = 0.25, it.timeout_ms = 20000);
	tutti_gossip *g = open_gossip(job, "pairs", model, 4, c);
	tutti_gossip_result r;

	meet(job);
	CHECK(tutti_gossip_publish(g, 1) == 0);
	meet(job);
	x[0] += 10; /* the step after it */
	CHECK(tutti_gossip_mix(g, 1, &r) == 0);
	CHECK(r.peer == 1 - rank && r.factor == 0.25 && r.clock == 1 && r.retries == 0 && !*r.why);
	CHECK(x[0] == 0.75 * (rank + 10) + 0.25 * (1 - rank) && x[1] == 0.75 * 2 * rank + 0.25 * 2 * (1 - rank));
	CHECK(y[0] == 0.75f * (float)rank + 0.25f * (float)(1 - rank) && y[1] == 0);
	CHECK(count == 100 + rank); /* a quarter: mine */
	CHECK(tutti_gossip_mix(g, 1, &r) == 0 && r.peer == -1 && *r.why);
	meet(job);
	tutti_gossip_close(g);
	meet(job);
}

static void hold_model(tutti *job)
{
	int rank = tutti_rank(job);
	tutti_tensor list[] = { { NULL, MANY, TUTTI_F32 }, { NULL, 3, TUTTI_I32 } }, now[2], next[2];
	tutti_gossip *g = open_gossip(job, "held", list, 2,
	                              WITH(tutti_gossip_defaults(), it.value = 0.75, it.timeout_ms = 20000));
	tutti_gossip_result r;

	CHECK(tutti_gossip_model(g, NULL, next) == 0 && next[0].count == MANY && next[1].type == TUTTI_I32);
	for (int i = 0; i < MANY; i++)
		((float *)next[0].data)[i] = (float)rank;
	((int *)next[1].data)[0] = 7 + rank;
	meet(job);
	for (int round = 0; round < 5; round++) {
		CHECK(tutti_gossip_publish(g, 1) == 0);
		CHECK(tutti_gossip_model(g, now, next) == 0 && now[0].data != next[0].data);
		float mine = ((float *)now[0].data)[0];
		memcpy(next[0].data, now[0].data, MANY * sizeof(float)); /* a step that changes nothing */
		memcpy(next[1].data, now[1].data, 3 * sizeof(int));
		meet(job);
		CHECK(tutti_gossip_mix(g, 1, &r) == 0 && r.peer == 1 - rank);
		CHECK(tutti_gossip_model(g, now, next) == 0);
		float *x = next[0].data;
		CHECK(fabsf(x[0] + mine - 1) < 1.1f && x[0] != mine && x[MANY - 1] == x[0]);
		CHECK(((int *)next[1].data)[0] == 7 + (rank + round + 1) % 2); /* three quarters: the peer's */
		meet(job);
	}
	tutti_gossip_close(g);
	meet(job);
}

static int run_all_wires(struct ranks run)
{
	int failed = run_real_ranks(run);

	for (run.seed = 0; run.seed < 20; run.seed++) {
		run.wire = "sim";
		failed += run_ranks(run);
	}
	return failed;
}

#define ON_ALL(...) CU_ASSERT_EQUAL(run_all_wires((struct ranks){ __VA_ARGS__ }), 0)

static void test_pairs(void) { ON_ALL(.size = 2, .program = average_pairs); }
static void test_held(void) { ON_ALL(.size = 2, .program = hold_model); }

/* ---- torn reads: all elements of a publication have its number ---- */

static atomic_int torn_done;
static uint64_t torn_mixed, torn_retries;

static void fill(float *x, size_t n, float value)
{
	for (size_t i = 0; i < n; i++)
		x[i] = value;
}

static bool is_level(const float *x, size_t n)
{
	for (size_t i = 1; i < n; i++)
		if (x[i] != x[0])
			return false;
	return true;
}

static size_t torn_count = MANY;
static int torn_rounds = 300;

/* Rank 0 publishes at full speed; rank 1 takes over what it reads (f = 1). */
static void tear(tutti *job)
{
	static const char *const peer[] = { "1", "0" };
	int rank = tutti_rank(job), rounds = torn_rounds;
	float *x = malloc(torn_count * sizeof *x), number = 0;
	tutti_tensor model = { x, torn_count, TUTTI_F32 };
	tutti_gossip *g = open_gossip(job, "torn", &model, 1,
	                              WITH(tutti_gossip_defaults(), it.value = 1, it.timeout_ms = 20000, it.buffers = 2,
	                                   it.fetch_probability = rank));
	tutti_gossip_result r;
	tutti_gossip_info info;

	(void)peer;
	fill(x, torn_count, 0);
	CHECK(tutti_gossip_publish(g, 1) == 0);
	torn_done = 0;
	meet(job);
	for (int i = 0; rank == 1 && i < rounds; i++) {
		CHECK(tutti_gossip_publish(g, 1) == 0);
		CHECK(tutti_gossip_mix(g, 1, &r) == 0);
		CHECK(is_level(x, torn_count));
	}
	torn_done |= rank;
	while (!torn_done) {
		fill(x, torn_count, ++number);
		CHECK(tutti_gossip_publish(g, 1) == 0);
		if (tt_world)
			pass_time(1000);
	}
	CHECK(tutti_gossip_look(g, &info) == 0);
	if (rank == 1) {
		torn_mixed += info.mixed;
		torn_retries += info.retries;
	}
	meet(job);
	tutti_gossip_close(g);
	free(x);
	meet(job);
}

static void test_torn(void)
{
	ON_ALL(.size = 2, .program = tear);
	CU_ASSERT(torn_mixed > 0);
}

static CU_TestInfo tests[] = {
	{ "pairs", test_pairs },
	{ "a model that the library holds", test_held },
	{ "torn reads", test_torn },
	CU_TEST_INFO_NULL,
};
static CU_SuiteInfo suites[] = { { "gossip", NULL, NULL, NULL, NULL, tests }, CU_SUITE_INFO_NULL };

int main(int argc, char **argv)
{
	if (argc == 4 && !strcmp(argv[1], "--torn")) { /* by hand: elements, rounds */
		torn_count = (size_t)atoll(argv[2]);
		torn_rounds = atoi(argv[3]);
		for (int i = 0; i < 2; i++) {
			int failed = run_ranks((struct ranks){ .size = 2, .wire = i ? "shm" : "tcp", .program = tear });
			printf("%s: %d torn, %llu read, %llu retries\n", i ? "shm" : "tcp", failed,
			       (unsigned long long)torn_mixed, (unsigned long long)torn_retries);
		}
		return 0;
	}
	(void)other, (void)give_other;
	return run_suites(suites, argc, argv);
}
