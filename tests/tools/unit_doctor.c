/* unit_doctor.c - what `tutti doctor` says of the adapters of a job's ranks */
#include "tests/harness/cunit_main.h"
#include "tools/doctor/doctor.h"
#include <stdarg.h>

static char said[4][700];
static int findings, lines;

void tt_doctor_say(struct tt_doctor *d, enum tt_verdict verdict, const char *check, const char *fmt, ...)
{
	va_list args;

	(void)d;
	CU_ASSERT(!strcmp(check, "adapter") && lines < 4);
	va_start(args, fmt);
	vsnprintf(said[lines++], sizeof *said, fmt, args);
	va_end(args);
	findings += verdict == TT_FINDING;
}

static void look(const char *a, const char *b, const char *c)
{
	struct tt_doctor_rank ranks[] = { { "rank 0 (n1)", a }, { "rank 1 (n2)", b }, { "rank 2 (n3)", c } };

	lines = findings = 0;
	tt_doctor_adapters(NULL, ranks, 3);
}

static void test_adapters(void)
{
	static const char fast[] = "mlx5_0:1 (InfiniBand, 200 Gbit/s)", also[] = "mlx5_1:1 (InfiniBand, 200 Gbit/s)",
	                  other[] = "mlx5_2:1 (RoCE, 25 Gbit/s)";

	look("", "", "");
	CU_ASSERT_EQUAL(lines, 0);
	look(fast, also, fast);
	CU_ASSERT(lines == 1 && !findings);
	CU_ASSERT(!strcmp(said[0], "rank 0 mlx5_0:1 (InfiniBand, 200 Gbit/s), "
	                           "rank 1 mlx5_1:1 (InfiniBand, 200 Gbit/s), "
	                           "rank 2 mlx5_0:1 (InfiniBand, 200 Gbit/s)"));
	look(fast, other, also);
	CU_ASSERT(lines == 2 && findings == 1);
	CU_ASSERT(strstr(said[0], "has taken mlx5_2:1 (RoCE, 25 Gbit/s), and most ranks mlx5_0:1") != NULL);
	look(fast, also, "");
	CU_ASSERT(findings == 1 && strstr(said[0], "rank 2 (n3) has taken no RDMA adapter") != NULL);
	CU_ASSERT(strstr(said[1], "rank 2 none") != NULL);
}

static CU_TestInfo doctor_tests[] = { { "adapters", test_adapters }, CU_TEST_INFO_NULL };
static CU_SuiteInfo suites[] = { { "doctor", NULL, NULL, NULL, NULL, doctor_tests }, CU_SUITE_INFO_NULL };

int main(int argc, char **argv) { return run_suites(suites, argc, argv); }
