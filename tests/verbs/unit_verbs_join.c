/* unit_verbs_join.c - joining over adapters that are not there: where the nets listen, and jobs without TCP */
#include "tests/harness/cunit_main.h"
#include "tests/harness/ranks.h"
#include <stdlib.h>

enum { RANKS = 3 };

static void check_sum(tutti *job)
{
	double v = 1, sum = 0;

	CHECK(tutti_allreduce(job, &v, &sum, 1, TUTTI_F64, TUTTI_SUM, NULL) == 0);
	CHECK(sum == RANKS);
}

/* Each two talk over verbs. */
static void meet(tutti *job)
{
	check_sum(job);
	for (int i = 0; i < RANKS; i++) {
		tutti_peer p;
		if (i == tutti_rank(job))
			continue;
		CHECK(tutti_barrier(job, NULL) == 0 && tutti_group_peer(job, i, &p) == 0);
		CHECK(!*p.transport || !strcmp(p.transport, "verbs"));
		CHECK(this_run->alone == !tt_address_find(tt_member(job->job, i)->addr, "tcp", (char[96]){ "" }));
	}
}

static void test_alone(void)
{
	CU_ASSERT_EQUAL(run_ranks((struct ranks){ .size = RANKS, .wire = "verbs", .alone = true, .program = meet }), 0);
	CU_ASSERT_EQUAL(run_ranks((struct ranks){ .size = RANKS, .wire = "verbs", .program = meet }), 0);
#ifdef HAVE_LIBCONFIG
	CU_ASSERT_EQUAL(run_ranks((struct ranks){ .size = RANKS, .wire = "verbs", .alone = true, .hosts = RANKS,
	                                          .program = meet }), 0);
#endif
}

static const char *tcp_host, *verbs_host;

static bool begins(const tutti *job, int rank, const char *transport, const char *host)
{
	char addr[96], want[96];

	snprintf(want, sizeof want, "%s:%s:", transport, host);
	return tt_address_find(tt_member(job->job, rank)->addr, transport, addr) && !strncmp(addr, want, strlen(want));
}

/* Rank 0's TCP is where ranks meet. */
static void look_at_hosts(tutti *job)
{
	check_sum(job);
	for (int i = 0; i < RANKS; i++)
		CHECK(begins(job, i, "verbs", verbs_host) && (!i || begins(job, i, "tcp", tcp_host)));
}

static void test_interfaces(void)
{
	static const struct { const char *iface, *tcp, *verbs; } cases[] = {
		{ NULL, "127.0.0.1", "127.0.0.1" }, /* where ranks meet on loopback, all is on loopback */
		{ "127.0.0.2", "127.0.0.2", "127.0.0.2" },
		{ "tcp:127.0.0.3", "127.0.0.3", "127.0.0.3" },
		{ "verbs:127.0.0.4", "127.0.0.1", "127.0.0.4" },
		{ "verbs:127.0.0.5,127.0.0.6", "127.0.0.6", "127.0.0.5" },
		{ "shm:any,127.0.0.7", "127.0.0.7", "127.0.0.7" },
	};

	for (size_t i = 0; i < TT_COUNT(cases); i++) {
		tcp_host = cases[i].tcp;
		verbs_host = cases[i].verbs;
		if (cases[i].iface)
			setenv("TUTTI_IFACE", cases[i].iface, 1);
		CU_ASSERT_EQUAL(run_ranks((struct ranks){ .size = RANKS, .wire = "verbs", .program = look_at_hosts }), 0);
		unsetenv("TUTTI_IFACE");
	}
}

static CU_TestInfo join_tests[] = {
	{ "alone", test_alone }, { "interfaces", test_interfaces }, CU_TEST_INFO_NULL,
};
static CU_SuiteInfo suites[] = { { "join", NULL, NULL, NULL, NULL, join_tests }, CU_SUITE_INFO_NULL };

int main(int argc, char **argv) { return run_suites(suites, argc, argv); }
