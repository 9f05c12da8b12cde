/* unit_group_of.c - groups that their members make by themselves: tutti_group_of */
#include "tests/harness/amount.h"
#include "tests/harness/cunit_main.h"
#include "tests/harness/ranks.h"
#include <stdlib.h>

enum { DEADLINE = 3000, SHORT = 100 };

static void on_wires(void (*program)(tutti *), int size)
{
	struct ranks run = { .size = size, .wire = "sim", .timeout_ms = DEADLINE, .program = program };

	for (; run.seed < (uint64_t)all_or(300, 12); run.seed++)
		CU_ASSERT_EQUAL(run_ranks(run), 0);
	CU_ASSERT_EQUAL(run_real_ranks(run), 0);
}

static void check_group(tutti *g, const int *list, int n)
{
	int one = 1, sum = 0;

	CHECK(tutti_size(g) == n);
	for (int i = 0; i < n; i++)
		CHECK(tutti_group_member(g, i) == list[i]);
	CHECK(tutti_allreduce(g, &one, &sum, 1, TUTTI_I32, TUTTI_SUM, NULL) == 0);
	CHECK(sum == n);
}

static bool lists(const int *list, int n, int rank)
{
	while (n-- > 0)
		if (list[n] == rank)
			return true;
	return false;
}

static void make(tutti *job, const int *list, int n, const char *name)
{
	tutti *g = NULL;

	if (!lists(list, n, tutti_rank(job)))
		return;
	int err = tutti_group_of(job, list, n, name, &g);
	CHECK(err == 0);
	if (err)
		return;
	check_group(g, list, n);
	tutti_group_free(g);
}

/* Ranks come in any order, some while others still make the group before. */
static void program_lists(tutti *job)
{
	int n = tutti_size(job), me = tutti_rank(job), all[8], back[8], odd[4], odds = 0, mine[1] = { me };

	for (int i = 0; i < n; i++) {
		all[i] = i;
		back[n - 1 - i] = i;
		if (i % 2)
			odd[odds++] = i;
	}
	for (int k = 0; k < 5; k++) {
		pass_time((uint64_t)((me * 7 + k * 3) % 5) * TT_MS / 2);
		make(job, all, n, "all");
		make(job, odd, odds, "odd");
		make(job, back, n, "all");
		make(job, mine, 1, "mine");
	}
}

static void test_lists(void)
{
	for (int n = 1; n <= 6; n++)
		on_wires(program_lists, n);
}

/* Nobody waits for ranks that are not listed, and the new group can make groups of its own. */
static void program_nested(tutti *job)
{
	static const int three[] = { 4, 0, 2 }, two[] = { 2, 0 };
	tutti *g = NULL, *h = NULL;
	int me = tutti_rank(job);

	if (me % 2)
		return;
	CHECK(tutti_group_of(job, three, 3, "three", &g) == 0);
	check_group(g, three, 3);
	if (me == 0)
		return; /* rank 1 of it */
	CHECK(tutti_group_of(g, two, 2, "two", &h) == 0);
	CHECK(tutti_size(h) == 2 && tutti_group_member(h, 0) == 2 && tutti_group_member(h, 1) == 4);
	CHECK(tutti_barrier(h, NULL) == 0);
}

static void test_nested(void) { on_wires(program_nested, 5); }

static void program_bad(tutti *job)
{
	static const int twice[] = { 0, 1, 0 }, far[] = { 0, 9 }, other[] = { 1 };
	char name[300];
	tutti *g = NULL;

	memset(name, 'n', sizeof name);
	name[201] = 0;
	CHECK(tutti_group_of(NULL, twice, 1, "g", &g) == -EINVAL);
	CHECK(tutti_group_of(job, NULL, 1, "g", &g) == -EINVAL);
	CHECK(tutti_group_of(job, twice, 1, "g", NULL) == -EINVAL);
	CHECK(tutti_group_of(job, twice, 1, NULL, &g) == -EINVAL);
	CHECK(tutti_group_of(job, twice, 1, "", &g) == -EINVAL);
	CHECK(tutti_group_of(job, twice, 1, name, &g) == -EINVAL);
	CHECK(tutti_group_of(job, twice, 0, "g", &g) == -EINVAL);
	CHECK(tutti_group_of(job, twice, 3, "g", &g) == -EINVAL);
	CHECK(tutti_group_of(job, far, 2, "g", &g) == -EINVAL && strstr(tutti_why(), "rank 9"));
	if (tutti_rank(job) != 1)
		CHECK(tutti_group_of(job, other, 1, "g", &g) == -EINVAL && strstr(tutti_why(), "not in its list"));
	CHECK(!g);
	CHECK(tutti_barrier(job, NULL) == 0);
}

static void test_bad(void) { on_wires(program_bad, 3); }

/* Two lists under one name, of one collector or of two: all hear both lists, also the rank that comes later. */
static void program_clash(tutti *job)
{
	static const int one[] = { 0, 1, 2 }, other[] = { 0, 2, 1 }, third[] = { 1, 0, 2 };
	int me = tutti_rank(job);
	tutti *g = NULL;

	for (int k = 0; k < 4; k++) {
		const int *list = me == 1 ? (k % 2 ? third : other) : one;
		if (me == k % 3)
			pass_time(20 * TT_MS);
		CHECK(tutti_group_of(job, list, 3, "g", &g) == -EBADMSG);
		CHECK(strstr(tutti_why(), "{0, 1, 2}") && strstr(tutti_why(), k % 2 ? "{1, 0, 2}" : "{0, 2, 1}"));
		CHECK(tutti_barrier(job, NULL) == 0);
		make(job, one, 3, "g");
	}
}

static void test_clash(void) { on_wires(program_clash, 3); }

/* The sentence names the ranks that have not come. The same call works later. */
static void program_late(tutti *job)
{
	static const int list[] = { 0, 1, 2 };
	int me = tutti_rank(job);
	tutti *g = NULL;

	for (int late = 0; late < 3; late++) {
		CHECK(tutti_group_timeout(job, SHORT) == 0);
		if (me != late) {
			CHECK(tutti_group_of(job, list, 3, "g", &g) == -ETIMEDOUT);
			CHECK(strstr(tutti_why(), late == 1 ? "rank 1" : late ? "rank 2" : "rank 0"));
		}
		CHECK(tutti_group_timeout(job, 0) == 0);
		CHECK(tutti_barrier(job, NULL) == 0);
		make(job, list, 3, "g");
	}
}

static void test_late(void) { on_wires(program_late, 3); }

static void program_leaver(tutti *job)
{
	static const int list[] = { 1, 0, 2 };
	tutti *g = NULL;

	CHECK(tutti_barrier(job, NULL) == 0);
	if (tutti_rank(job) == 2) {
		pass_time(10 * TT_MS);
		return;
	}
	if (tutti_rank(job) == 0)
		pass_time(30 * TT_MS); /* the collector's call has failed before this one */
	int err = tutti_group_of(job, list, 3, "g", &g);
	CHECK(err == -ENOTCONN || err == -ECONNRESET);
	CHECK(strstr(tutti_why(), "rank 2"));
	make(job, list, 2, "g");
}

static void test_leaver(void) { on_wires(program_leaver, 3); }

/* Any rank dies at any moment: the others get the group, or an error that names it, and go on without it. */
static void program_death(tutti *job)
{
	struct ranks *run = sim_run_now;
	int list[4] = { 0, 1, 2, 3 }, me = tutti_rank(job), victim = (int)(run->seed % 4);
	tutti *g = NULL, *rest = NULL;

	tutti_barrier(job, NULL); /* all have joined; on some ranks it fails */
	if (me == victim)
		tt_sim_kill(me, run->seed / 4 * 3000);
	int err = tutti_group_of(job, list, 4, "g", &g);
	if (me == victim)
		return;
	CHECK(err == 0 || err == -ECONNRESET || err == -ETIMEDOUT);
	for (int i = 0, n = 0; i < 4; i++)
		if (i != victim)
			list[n++] = i;
	for (int ms = 0; ms < DEADLINE && tt_member_is_there(job->job, victim); ms++)
		tt_sim_sleep(TT_MS);
	err = tutti_group_of(job, list, 3, "rest", &rest);
	CHECK(err == 0);
	if (!err)
		check_group(rest, list, 3);
}

static void test_death(void)
{
	struct ranks run = { .size = 4, .wire = "sim", .timeout_ms = DEADLINE, .program = program_death };

	for (; run.seed < (uint64_t)all_or(2000, 160); run.seed++)
		CU_ASSERT_EQUAL(run_ranks(run), 0);
}

static int is_set(void *flag) { return *(int *)flag; }

static void program_interrupted(tutti *job)
{
	static const int list[] = { 0, 1, 2 };
	int me = tutti_rank(job), yes = 1;
	tutti *g = NULL;

	for (int late = 0; late < 3; late++) {
		if (me != late) {
			tutti_on_wait(is_set, &yes);
			CHECK(tutti_group_of(job, list, 3, "g", &g) == -EINTR);
			tutti_on_wait(NULL, NULL);
		}
		CHECK(tutti_barrier(job, NULL) == 0);
		make(job, list, 3, "g");
	}
}

static void test_interrupted(void) { on_wires(program_interrupted, 3); }

/* The collector is stopped: a member's call ends all the same. If the collector makes the group later, it finds that
 * the member has gone on. */
static void program_stopped(tutti *job)
{
	static const int list[] = { 0, 1 };
	tutti *g = NULL;
	int one = 1;

	CHECK(tutti_barrier(job, NULL) == 0);
	if (tutti_rank(job) == 1) {
		tt_sim_sleep(TT_MS); /* rank 0 is in its call */
		tt_sim_stop(0, 0, 2 * SHORT * 2 * TT_MS);
		CHECK(tutti_group_timeout(job, SHORT) == 0);
		uint64_t then = tt_now();
		CHECK(tutti_group_of(job, list, 2, "g", &g) == -ETIMEDOUT);
		CHECK(tt_now() - then < (SHORT + 120) * TT_MS && strstr(tutti_why(), "rank 0 has not answered"));
		CHECK(tutti_group_timeout(job, 0) == 0);
	} else if (!tutti_group_of(job, list, 2, "g", &g)) {
		int err = tutti_allreduce(g, &one, &one, 1, TUTTI_I32, TUTTI_SUM, NULL);
		CHECK(err == -ECONNABORTED);
		tutti_group_free(g);
	}
	make(job, list, 2, "again");
	make(job, list, 2, "g");
}

static void test_stopped(void)
{
	struct ranks run = { .size = 2, .wire = "sim", .timeout_ms = DEADLINE, .program = program_stopped };

	for (; run.seed < 12; run.seed++)
		CU_ASSERT_EQUAL(run_ranks(run), 0);
}

/* Rank 1 gives up while the collector is stopped. Often its REVOKE comes to rank 2 before the collector's MADE. */
static void program_resigned(tutti *job)
{
	static const int list[] = { 0, 1, 2 };
	tutti *g = NULL;

	CHECK(tutti_barrier(job, NULL) == 0);
	if (tutti_rank(job) == 1) {
		tt_sim_sleep(TT_MS); /* ranks 0 and 2 are in their calls */
		tt_sim_stop(0, 0, 3 * SHORT * TT_MS);
		CHECK(tutti_group_timeout(job, SHORT) == 0);
		CHECK(tutti_group_of(job, list, 3, "g", &g) == -ETIMEDOUT);
		CHECK(tutti_group_timeout(job, 0) == 0);
	} else {
		CHECK(tutti_group_of(job, list, 3, "g", &g) == 0);
	}
	if (tutti_rank(job) == 2) {
		uint64_t then = tt_now();
		CHECK(tutti_barrier(g, NULL) == -ECONNABORTED && strstr(tutti_why(), "rank 1"));
		CHECK(tt_now() - then < SHORT * TT_MS);
	}
	CHECK(tutti_barrier(job, NULL) == 0); /* to which rank 1 may have come before it was known to have resigned */
	tutti_group_free(g);
	make(job, list, 3, "g");
}

static void test_resigned(void)
{
	struct ranks run = { .size = 3, .wire = "sim", .timeout_ms = DEADLINE, .program = program_resigned };

	for (; run.seed < (uint64_t)all_or(400, 40); run.seed++)
		CU_ASSERT_EQUAL(run_ranks(run), 0);
}

/* The new group has the timeout of the group that it was made of. */
static void program_timeout(tutti *job)
{
	static const int list[] = { 0, 1 };
	tutti *g = NULL;

	CHECK(tutti_group_timeout(job, 2 * SHORT) == 0);
	CHECK(tutti_group_of(job, list, 2, "g", &g) == 0);
	CHECK(tutti_group_timeout(job, 0) == 0);
	if (tutti_rank(job) == 0)
		CHECK(tutti_barrier(g, NULL) == -ETIMEDOUT);
	CHECK(tutti_barrier(job, NULL) == 0);
}

static void test_timeout(void) { on_wires(program_timeout, 2); }

/* A rank that has joined late is listed by its number in the job. */
static void program_newcomer(tutti *job)
{
	static const int list[] = { 3, 0, 1 };
	tutti *again = NULL, *g = NULL;
	tutti_change c = { .rank = -1 };

	CHECK(tutti_group_watch(job, NULL, NULL) >= 0);
	CHECK(tutti_barrier(job, NULL) == 0);
	if (tutti_rank(job) == 2) {
		CHECK(join_again(job, TUTTI_NEW_RANK, &again) == 0);
		if (!again)
			return;
		CHECK(tutti_group_of(tutti_job(again), list, 3, "g", &g) == 0);
		if (g)
			check_group(g, list, 3);
		tutti_leave(again);
		return;
	}
	for (int ms = 0; ms < DEADLINE && !(c.rank == 3 && c.what == TUTTI_JOINED); ms++)
		if (!tutti_group_next(job, &c))
			pass_time(TT_MS);
	CHECK(tutti_group_of(tutti_job(job), list, 3, "g", &g) == 0);
	if (g)
		check_group(g, list, 3);
}

static void test_newcomer(void) { on_wires(program_newcomer, 3); }

static CU_TestInfo tests[] = {
	{ "lists", test_lists }, { "a group of a group", test_nested }, { "wrong arguments", test_bad },
	{ "two lists", test_clash }, { "ranks that come late", test_late }, { "a rank leaves", test_leaver },
	{ "a rank dies", test_death }, { "interrupted", test_interrupted },
	{ "a stopped collector", test_stopped }, { "a member resigns early", test_resigned },
	{ "the timeout", test_timeout }, { "a newcomer", test_newcomer },
	CU_TEST_INFO_NULL,
};
static CU_SuiteInfo suites[] = { { "group_of", NULL, NULL, NULL, NULL, tests }, CU_SUITE_INFO_NULL };

int main(int argc, char **argv) { return run_suites(suites, argc, argv); }
