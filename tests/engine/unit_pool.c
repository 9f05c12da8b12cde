/* unit_pool.c - the pool: each element once, whoever comes late; and tables whose servers have one */
#include "engine/engine.h"
#include "member/member.h"
#include "table/table_private.h"
#include "tests/harness/cunit_main.h"
#include "topology/topology.h"
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#if TT_TSAN
enum { COUNT = 100000, ROUNDS = 100 };
#else
enum { COUNT = 100000, ROUNDS = 2000 };
#endif

static tutti *alone(const char *pool)
{
	tutti *job = NULL;

	setenv("TUTTI_POOL", pool, 1);
	CU_ASSERT_EQUAL_FATAL(tutti_join(NULL, &job), 0);
	unsetenv("TUTTI_POOL");
	return job;
}

struct work {
	unsigned char *done;
	size_t grain, count;
	pthread_t caller;
	_Atomic size_t by_others;
	_Atomic bool odd;            /* a part that does not begin or end with a grain */
	bool slow;
};

static void mark(void *arg, size_t first, size_t count)
{
	struct work *w = arg;

	if (first % w->grain || (count % w->grain && first + count < w->count))
		w->odd = true;
	for (size_t i = first; i < first + count; i++)
		w->done[i]++;
	if (!pthread_equal(pthread_self(), w->caller))
		w->by_others += count;
	else if (w->slow)
		usleep(1000); /* others have the time to take some */
}

static bool is_done_once(struct work *w, struct tt_pool *pool, size_t count, size_t grain)
{
	w->grain = grain;
	w->count = count;
	memset(w->done, 0, COUNT);
	tt_pool_run(pool, mark, w, count, grain);
	for (size_t i = 0; i < COUNT; i++)
		if (w->done[i] != (i < count))
			return false;
	return !w->odd;
}

static void run_all(const char *threads)
{
	struct work w = { .done = malloc(COUNT), .caller = pthread_self() };
	tutti *job = alone(threads);
	uint64_t chance = 1;

	CU_ASSERT_EQUAL(tt_pool_open(job->job), 0);
	CU_ASSERT_EQUAL(job->job->pool == NULL, !strcmp(threads, "0"));
	for (int i = 0; i < ROUNDS; i++) {
		chance = chance * 6364136223846793005u + 1442695040888963407u;
		if (!is_done_once(&w, job->job->pool, (size_t)(chance >> 33) % (i % 2 ? COUNT : 1000),
		                  1 + (size_t)(chance >> 20) % 5000))
			CU_FAIL("an element was not done, or twice, or in half a grain");
	}
	w.slow = true;
	/* others may have had no core to run on */
	for (int i = 0; i < 100 && (!i || (job->job->pool && !w.by_others)); i++)
		CU_ASSERT(is_done_once(&w, job->job->pool, COUNT, 100));
	CU_ASSERT_EQUAL(w.by_others > 0, strcmp(threads, "0") != 0);
	usleep(2000); /* they sleep now */
	CU_ASSERT(is_done_once(&w, job->job->pool, COUNT, 100));
	tutti_leave(job);
	free(w.done);
}

static void test_run(void)
{
	run_all("0");
	run_all("1");
	run_all("3");
	run_all("64");
}

/* As many as there are cores for, and none where ranks share them. */
static void test_auto(void)
{
	tutti *job = alone("auto");

	CU_ASSERT_EQUAL(tt_pool_open(job->job), 0);
	CU_ASSERT_EQUAL(job->job->pool == NULL, tt_cpus_count(&job->job->place.allowed) < 2);
	tt_pool_close(job->job);
	job->job->place.ranks = 2 * tt_cpus_count(&job->job->place.allowed);
	CU_ASSERT_EQUAL(tt_pool_open(job->job), 0);
	CU_ASSERT_PTR_NULL(job->job->pool);
	tutti_leave(job);
}

static void test_no_job(void)
{
	struct work w = { .done = malloc(COUNT), .caller = pthread_self() };

	CU_ASSERT(is_done_once(&w, NULL, COUNT, 100));
	CU_ASSERT_EQUAL(w.by_others, 0);
	free(w.done);
}

/* Values, after three pushes, are to the bit what one thread makes of them. */
static void push_with(const char *threads, tutti_update_rule rule, float *values, const float *delta)
{
	tutti *job = alone(threads);
	tutti_table_config c = tutti_table_f32(COUNT, tutti_accumulate());
	tutti_table *t;

	c.updater.rule = rule;
	CU_ASSERT_EQUAL_FATAL(tutti_table_open(job, "pool", &c, &t), 0);
	CU_ASSERT_EQUAL(job->job->pool == NULL, !strcmp(threads, "0"));
	for (int i = 0; i < 3; i++)
		CU_ASSERT_EQUAL(tutti_table_push(t, delta, NULL, NULL), 0);
	CU_ASSERT_EQUAL(tutti_table_pull(t, values, NULL), 0);
	tutti_table_close(t);
	tutti_leave(job);
}

static void test_rules(void)
{
	static const tutti_update_rule rules[] = { TUTTI_UPDATE_ADD, TUTTI_UPDATE_SGD, TUTTI_UPDATE_MOMENTUM,
		                                   TUTTI_UPDATE_ADAM, TUTTI_UPDATE_FTRL };
	static float delta[COUNT], by_one[COUNT], by_many[COUNT];

	for (size_t i = 0; i < COUNT; i++)
		delta[i] = (float)(i % 1000) / 999 - 0.5f;
	for (size_t i = 0; i < TT_COUNT(rules); i++) {
		push_with("0", rules[i], by_one, delta);
		push_with("3", rules[i], by_many, delta);
		CU_ASSERT_EQUAL(memcmp(by_one, by_many, sizeof by_one), 0);
	}
}

static void add_own(const tutti_update_piece *p)
{
	_Atomic size_t *longest = p->arg;
	size_t known = atomic_load(longest);
	float *to = p->to;

	for (size_t i = 0; i < p->count; i++)
		to[i] = ((const float *)p->w)[i] + ((const float *)p->d)[i];
	while (known < p->count && !atomic_compare_exchange_weak(longest, &known, p->count))
		;
}

/* Rows that lie one behind another are one range, of which each thread takes shares. A message has 30 of these. */
static void test_rows(void)
{
	enum { ROW = 500, ROWS = COUNT / ROW, SHARE = 8192 };
	static float delta[COUNT], values[COUNT];
	_Atomic size_t longest = 0;
	tutti *job = alone("3");
	tutti_table_config c = tutti_table_rows(TUTTI_F32, ROWS, ROW, tutti_own(add_own, (void *)&longest, 0));
	uint64_t rows[ROWS];
	tutti_table *t;
	int wrong = 0;

	for (size_t i = 0; i < COUNT; i++)
		delta[i] = (float)(i % 1000);
	CU_ASSERT_EQUAL_FATAL(tutti_table_open(job, "rows", &c, &t), 0);
	for (uint64_t i = 0; i < ROWS; i++)
		rows[i] = i;
	CU_ASSERT_EQUAL(tutti_table_push_rows(t, rows, ROWS, delta, NULL, NULL), 0);
	CU_ASSERT(longest > 10 * ROW && longest <= SHARE);
	longest = 0;
	rows[0] = 1;
	rows[1] = 0;
	CU_ASSERT_EQUAL(tutti_table_push_rows(t, rows, 2, delta, NULL, NULL), 0);
	CU_ASSERT_EQUAL(longest, ROW);
	CU_ASSERT_EQUAL(tutti_table_pull(t, values, NULL), 0);
	for (size_t i = 0; i < COUNT; i++)
		wrong += values[i] != delta[i] + (i < 2 * ROW ? delta[(i + ROW) % (2 * ROW)] : 0);
	CU_ASSERT_EQUAL(wrong, 0);
	tutti_table_close(t);
	tutti_leave(job);
}

static void refuse(const char *pool)
{
	tutti *job;

	setenv("TUTTI_POOL", pool, 1);
	CU_ASSERT_EQUAL(tutti_join(NULL, &job), -EINVAL);
	CU_ASSERT_PTR_NOT_NULL(strstr(tutti_why(), "TUTTI_POOL="));
	CU_ASSERT_PTR_NOT_NULL(strstr(tutti_why(), "auto"));
	unsetenv("TUTTI_POOL");
}

static void test_wrong(void)
{
	refuse("many");
	refuse("-1");
	refuse("65");
	refuse("4x");
}

static CU_TestInfo pool_tests[] = {
	{ "each element once", test_run },
	{ "no pool", test_no_job },
	{ "auto", test_auto },
	{ "rules, to the bit", test_rules },
	{ "rows one behind another", test_rows },
	{ "wrong settings", test_wrong },
	CU_TEST_INFO_NULL,
};
static CU_SuiteInfo suites[] = { { "pool", NULL, NULL, NULL, NULL, pool_tests }, CU_SUITE_INFO_NULL };

int main(int argc, char **argv) { return run_suites(suites, argc, argv); }
