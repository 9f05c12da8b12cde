/* unit_multiverso.c - libmultiverso in one process: flags, machine files, update rules by the recorded numbers, what
 * is refused with which sentence */
#include "bindings/c/shim.h"
#include "tests/conformance/cases.h"
#include "tests/harness/cunit_main.h"
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <sys/mman.h>

enum { ROOM = 16 };

/* Standard error, in a file. */
static int said;

static int hear(void)
{
	said = memfd_create("stderr", 0);
	return said < 0 || dup2(said, STDERR_FILENO) < 0;
}

static int lines_said(void) /* since the last call */
{
	char text[8192];
	ssize_t n = pread(said, text, sizeof text, 0);
	int lines = 0;

	for (ssize_t i = 0; i < n; i++)
		lines += text[i] == '\n';
	CU_ASSERT(!ftruncate(said, 0) && !lseek(said, 0, SEEK_SET));
	return lines;
}

/* The last call has failed with one line and this sentence. */
#define SAYS(sentence) \
	do { \
		CU_ASSERT_EQUAL(lines_said(), 1); \
		if (!strstr(MV_LastError(), sentence)) \
			printf("\"%s\" lacks \"%s\"\n", MV_LastError(), sentence); \
		CU_ASSERT_PTR_NOT_NULL(strstr(MV_LastError(), sentence)); \
	} while (0)

static const struct node *find_case(const struct node *cases, const char *id)
{
	EACH(c, cases)
	if (is_text(get(c, "id"), id))
		return c;
	CU_FAIL("no such case");
	return &nothing;
}

/* ---- flags ---- */

static int fill(char **argv, const struct node *list)
{
	int n = 0;

	EACH(word, list)
	argv[n++] = (char *)word->text;
	argv[n] = NULL;
	return n;
}

static void test_flags_case(void)
{
	const struct node *c = find_case(load_cases(), "mv-flags"), *left = get(get(c, "expected"), "argv_left");
	const struct node *expected = get(get(c, "expected"), "flags");
	char *argv[ROOM];
	int argc = fill(argv, get(get(c, "input"), "argv"));
	struct mv_flags flags;

	CU_ASSERT_EQUAL(mv_flags_take(&flags, &argc, argv), 0);
	CU_ASSERT_EQUAL(flags.sync, is_true(get(expected, "sync")));
	CU_ASSERT(is_text(get(expected, "updater_type"), flags.updater_type));
	CU_ASSERT_EQUAL(flags.omp_threads, whole(get(expected, "omp_threads")));
	CU_ASSERT_EQUAL(lines_said(), 1); /* omp_threads has no effect */
	CU_ASSERT_EQUAL(argc, length(left));
	for (int i = 0; i < argc; i++)
		CU_ASSERT(is_text(at(left, i), argv[i]));
	CU_ASSERT_PTR_NULL(argv[argc]);
	free_cases();
}

static void test_flags_dash(void)
{
	const struct node *c = find_case(load_cases(), "mv-flags-dash");
	char *argv[ROOM];
	int argc = fill(argv, get(get(c, "input"), "argv")), before = argc;
	struct mv_flags flags;

	CU_ASSERT_EQUAL(mv_flags_take(&flags, &argc, argv), 0);
	CU_ASSERT_EQUAL(argc, before);
	CU_ASSERT(is_text(get(get(c, "expected"), "arg"), argv[1]));
	free_cases();
}

static int take(struct mv_flags *flags, const char *word)
{
	char *argv[] = { "prog", (char *)word, "-x", NULL };
	int argc = 3, err = mv_flags_take(flags, &argc, argv);

	CU_ASSERT_EQUAL(argc, err ? 3 : 2); /* after an error argv is as it was */
	return mv_end("flags", err);
}

static void test_flags_words(void)
{
	struct mv_flags f;
	enum mv_role role;

	CU_ASSERT_EQUAL(take(&f, "-sync=1"), 0);
	CU_ASSERT(f.sync && f.port == 55555 && !strcmp(f.updater_type, "default"));
	CU_ASSERT_EQUAL(take(&f, "-sync=False"), 0);
	CU_ASSERT_FALSE(f.sync);
	CU_ASSERT_EQUAL(take(&f, "-ps_role=server"), 0);
	CU_ASSERT(!mv_flags_role(&f, &role) && role == MV_SERVER);
	CU_ASSERT_EQUAL(take(&f, "-machine_file=a=b"), 0);
	CU_ASSERT_STRING_EQUAL(f.machine_file, "a=b");
	CU_ASSERT_EQUAL(lines_said(), 0);
	CU_ASSERT_EQUAL(take(&f, "-logtostderr=true") | take(&f, "-allocator_type=smart") |
	                        take(&f, "-allocator_alignment=16"),
	                0);
	CU_ASSERT_EQUAL(lines_said(), 3);
	CU_ASSERT_EQUAL(take(&f, "-sync=maybe"), -EINVAL);
	SAYS("-sync is \"maybe\", and must be true or false");
	CU_ASSERT_EQUAL(take(&f, "-port=0"), -EINVAL);
	SAYS("-port is \"0\", and must be a number from 1 to 65535");
	CU_ASSERT_EQUAL(take(&f, "-omp_threads=4x"), -EINVAL);
	SAYS("-omp_threads is \"4x\"");
	CU_ASSERT_EQUAL(take(&f, "-ma=true"), -ENOTSUP);
	SAYS("-ma=true is refused");
	CU_ASSERT_EQUAL(take(&f, "-backup_worker_ratio=25"), -EINVAL);
	SAYS("without -sync=true");
}

static void refuse_init(const char *word, const char *sentence)
{
	char *argv[] = { "prog", (char *)word, NULL };
	int argc = 2;

	MV_Init(&argc, argv);
	SAYS(sentence);
	CU_ASSERT_PTR_NULL(mv_session.job);
}

static void test_init_refused(void)
{
	refuse_init("-ps_role=boss", "-ps_role is \"boss\", and must be none, worker, server or default");
	refuse_init("-updater_type=adam", "-updater_type is \"adam\", and must be default, sgd,");
	refuse_init("-ps_role=worker", "the job has 1 workers and 0 servers");
	refuse_init("-machine_file=/nowhere/at/all", "cannot read the machine file /nowhere/at/all: No such file");
}

/* ---- machine files ---- */

static int read_machines(const char *text, char *boot, tutti_config *config)
{
	char name[] = "machines.XXXXXX";
	int fd = mkstemp(name);

	CU_ASSERT(fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text));
	close(fd);
	*config = tutti_config_defaults();
	int err = mv_end("machines", mv_machines_config(name, 4711, boot, 300, config));
	unlink(name);
	return err;
}

static void test_machines(void)
{
	const char *others = "198.51.100.1\n\n  198.51.100.2 \r\n", *two = "198.51.100.1\n127.0.0.1\n127.0.0.1\n";
	tutti_config c;
	char boot[300];

	unsetenv("TUTTI_RANK");
	CU_ASSERT_EQUAL(read_machines("198.51.100.1\n127.0.0.1\n198.51.100.2\n", boot, &c), 0);
	CU_ASSERT(!strcmp(boot, "198.51.100.1:4711") && c.boot == boot && c.rank == 1 && c.ranks == 3);
	CU_ASSERT_EQUAL(read_machines(others, boot, &c), -EINVAL);
	SAYS("is this host: add the host, or set TUTTI_RANK");
	CU_ASSERT_EQUAL(read_machines("", boot, &c), -EINVAL);
	SAYS("no line of the machine file");
	CU_ASSERT_EQUAL(read_machines(two, boot, &c), -EINVAL);
	SAYS("2 lines of the machine file");
	setenv("TUTTI_RANK", "1", 1);
	CU_ASSERT(!read_machines(others, boot, &c) && c.rank == 1 && c.ranks == 2);
	CU_ASSERT_EQUAL(read_machines("::1\n", boot, &c), -EINVAL);
	SAYS("TUTTI_RANK is 1, and the machine file");
	setenv("TUTTI_RANK", "0", 1);
	CU_ASSERT(!read_machines("::1\n", boot, &c) && !strcmp(boot, "[::1]:4711"));
	unsetenv("TUTTI_RANK");
}

/* ---- tables ---- */

static void init_with(const char *flag)
{
	char *argv[] = { "prog", (char *)flag, NULL };
	int argc = 2;

	MV_Init(&argc, argv);
	CU_ASSERT(argc == 1 && MV_NumWorkers() == 1 && !MV_WorkerId() && !MV_ServerId());
}

enum { STEPS = 8 };
struct run { /* what is added, and the values after each add */
	int n, steps;
	double delta[STEPS][ROOM], value[STEPS][ROOM];
};

static void check_run(const char *flag, const struct run *r, double tolerance)
{
	float w[ROOM], d[ROOM];
	TableHandler table;

	init_with(flag);
	MV_NewArrayTable(r->n, &table);
	for (int k = 0; k < r->steps; k++) {
		for (int i = 0; i < r->n; i++)
			d[i] = (float)r->delta[k][i];
		MV_AddArrayTable(table, d, r->n);
		MV_GetArrayTable(table, w, r->n);
		for (int i = 0; i < r->n; i++)
			CU_ASSERT_DOUBLE_EQUAL(w[i], r->value[k][i], tolerance * fmax(1, fabs(r->value[k][i])));
	}
	MV_ShutDown();
	CU_ASSERT_EQUAL(lines_said(), 0);
}

static void set_row(double *to, const struct node *values, double factor)
{
	EACH(v, values)
	*to++ = factor * v->number;
}

/* What the table begins with is the first add, which sgd and its kin subtract. */
static void run_case(const char *id, const char *flag)
{
	const struct node *c = find_case(load_cases(), id), *in = get(c, "input");
	const struct node *after = get(get(c, "expected"), "data_after_each_add");
	struct run r = { .n = length(get(in, "data")), .steps = 1 };

	set_row(r.delta[0], get(in, "data"), strstr(flag, "sgd") ? -1 : 1);
	set_row(r.value[0], get(in, "data"), 1);
	EACH(add, get(in, "adds"))
	{
		set_row(r.delta[r.steps], get(add, "delta"), 1);
		set_row(r.value[r.steps], at(after, r.steps - 1), 1);
		r.steps++;
	}
	CU_ASSERT(r.steps == 1 + length(after) && r.steps > 2);
	check_run(flag, &r, fmax(get(c, "tolerance")->number, 1e-9));
	free_cases();
}

static void test_rule_cases(void)
{
	run_case("mv-default", "-updater_type=default");
	run_case("mv-array-access", "-updater_type=default");
	run_case("mv-sgd", "-updater_type=sgd");
	run_case("mv-momentum-default-option", "-updater_type=momentum_sgd");
}

/* Two adds of 0.05 with the default options: learning rate 0.01, momentum 0, rho 0.1, lambda 0.1. A worker
 * alone has no delay, so dcasgd and dcasgda compensate nothing: program.c has two workers. */
static void test_default_options(void)
{
	struct run adagrad = { 1, 2, { { 0.05 }, { 0.05 } }, { { -0.1 }, { -0.1 - 0.1 / sqrt(2) } } };
	struct run delayed = { 1, 2, { { 0.05 }, { 0.05 } }, { { -0.05 }, { -0.1 } } };

	check_run("-updater_type=adagrad", &adagrad, 1e-6);
	check_run("-updater_type=dcasgd", &delayed, 1e-6);
	check_run("-updater_type=dcasgda", &delayed, 1e-6);
}

static void test_before_init(void)
{
	TableHandler table = &table;
	float x[1];

	CU_ASSERT_EQUAL(MV_NumWorkers(), -1);
	SAYS("MV_NumWorkers: Multiverso is not initialized: call MV_Init first");
	CU_ASSERT(MV_WorkerId() == -1 && MV_ServerId() == -1 && lines_said() == 2);
	MV_Barrier();
	SAYS("MV_Barrier: ");
	MV_ShutDown();
	SAYS("MV_ShutDown: ");
	MV_GetArrayTable(table, x, 1);
	SAYS("MV_GetArrayTable: Multiverso is not initialized");
	MV_NewArrayTable(1, &table);
	SAYS("MV_NewArrayTable: ");
	CU_ASSERT_PTR_NULL(table);
}

static void test_tables_refuse(void)
{
	float x[12] = { 0 }, kept[12] = { 0 };
	int rows[] = { 3, 4 }, below[] = { -1 };
	TableHandler array, matrix, none = x;

	CU_ASSERT_STRING_EQUAL(MV_LastError(), "");
	MV_Init(NULL, NULL);
	MV_NewArrayTable(10, &array);
	MV_NewMatrixTable(4, 3, &matrix);
	CU_ASSERT_EQUAL(lines_said(), 0);
	MV_Init(NULL, NULL);
	SAYS("MV_Init: MV_Init was called before: call MV_ShutDown first");
	MV_AddArrayTable(array, x, 9);
	SAYS("MV_AddArrayTable: the table has 10 elements, and size is 9");
	x[0] = 5;
	MV_GetArrayTable(array, x, 11);
	SAYS("the table has 10 elements, and size is 11");
	CU_ASSERT_EQUAL(x[0], 5);
	MV_AddAsyncMatrixTableAll(matrix, x, 10);
	SAYS("MV_AddAsyncMatrixTableAll: the table has 12 elements");
	MV_GetMatrixTableByRows(matrix, x, 6, rows, 2);
	SAYS("row 4 is not in the table, which has rows 0 to 3");
	MV_AddMatrixTableByRows(matrix, x, 3, below, 1);
	SAYS("row -1 is not in the table");
	MV_AddMatrixTableByRows(matrix, x, 4, rows, 1);
	SAYS("the listed rows have 3 elements, and size is 4");
	MV_AddMatrixTableByRows(matrix, x, 0, rows, -1);
	SAYS("row_ids_n is -1");
	MV_AddAsyncMatrixTableByRows(matrix, x, 3, NULL, 1);
	SAYS("row_ids is NULL");
	MV_AddArrayTable(array, NULL, 10);
	SAYS("data is NULL");
	MV_GetArrayTable(x, x, 10);
	SAYS("the handler is no open table");
	MV_NewMatrixTable(3, 0, &none);
	SAYS("MV_NewMatrixTable: a table has 1 element at least, and not 3 x 0");
	CU_ASSERT_PTR_NULL(none);
	MV_NewArrayTable(3, NULL);
	SAYS("the place for the handler is NULL");
	MV_GetMatrixTableAll(matrix, x, 12);
	CU_ASSERT(!memcmp(x, kept, sizeof x)); /* nothing has changed */
	MV_AddMatrixTableByRows(matrix, x, 0, rows, 0);
	MV_ShutDown();
	CU_ASSERT_EQUAL(lines_said(), 0);
	MV_GetArrayTable(array, x, 10);
	SAYS("call MV_Init first");
}

int main(int argc, char **argv)
{
	static CU_TestInfo tests[] = { { "tables refuse", test_tables_refuse },
		                       { "before MV_Init", test_before_init },
		                       { "flags of the recorded case", test_flags_case },
		                       { "an argument with a dash", test_flags_dash },
		                       { "flags", test_flags_words },
		                       { "MV_Init refuses", test_init_refused },
		                       { "machine files", test_machines },
		                       { "recorded rules", test_rule_cases },
		                       { "rules with their default options", test_default_options },
		                       CU_TEST_INFO_NULL };
	static CU_SuiteInfo suites[] = { { "multiverso", NULL, NULL, NULL, NULL, tests }, CU_SUITE_INFO_NULL };

	if (hear())
		return 99;
	return run_suites(suites, argc, argv);
}
