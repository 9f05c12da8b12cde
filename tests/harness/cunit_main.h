/* cunit_main.h - the main program that the CUnit test programs share.
 *
 *   static CU_TestInfo pack_tests[] = { { "integers", test_integers }, CU_TEST_INFO_NULL };
 *   static CU_SuiteInfo suites[] = { { "pack", NULL, NULL, NULL, NULL, pack_tests }, CU_SUITE_INFO_NULL };
 *   int main(int argc, char **argv) { return run_suites(suites, argc, argv); }
 *
 * program [-v] [WORD ...]: only the tests whose name, or whose suite's name, contains one of the words; -v names each
 * as it starts. Returns 0 only if at least one test ran and none failed. A test that hangs is named after TEST_SECONDS.
 * The CU_ASSERT_..._FATAL forms leave the test by longjmp: use them only on the thread, and the stack, that runs it. */
#ifndef TT_CUNIT_MAIN_H
#define TT_CUNIT_MAIN_H
#include "tests/harness/amount.h"
#include <CUnit/CUnit.h>
#include <CUnit/TestDB.h>
#include <CUnit/TestRun.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#ifndef TEST_SECONDS
#define TEST_SECONDS 900 /* for the whole program; under valgrind everything is some 30 times slower */
#endif

static const char *volatile running_suite = "", *volatile running_test = "";
static bool name_each_test;

static inline void note_test(const CU_pTest test, const CU_pSuite suite)
{
	running_suite = suite->pName;
	running_test = test->pName;
	if (name_each_test) {
		printf("%s: %s\n", suite->pName, test->pName);
		fflush(stdout);
	}
}

/* Says where it happened, then lets the signal end the program. */
static inline void name_the_culprit(int signal_number)
{
	const char *parts[] = { "test program stopped in ", running_suite, ": ", running_test, "\n" };

	for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
		(void)!write(STDERR_FILENO, parts[i], strlen(parts[i]));
	signal(signal_number, SIG_DFL);
	raise(signal_number);
}

static inline bool is_wanted(const char *suite, const char *test, int words, char **word)
{
	for (int i = 0; i < words; i++)
		if (strstr(suite, word[i]) || strstr(test, word[i]))
			return true;
	return words == 0;
}

static inline void select_tests(int words, char **word)
{
	for (CU_pSuite suite = CU_get_registry()->pSuite; suite; suite = suite->pNext)
		for (CU_pTest test = suite->pTest; test; test = test->pNext)
			if (!is_wanted(suite->pName, test->pName, words, word))
				CU_set_test_active(test, CU_FALSE);
}

static inline void print_failures(void)
{
	for (CU_pFailureRecord f = CU_get_failure_list(); f; f = f->pNext)
		printf("FAILED %s: %s: %s:%u: %s\n", f->pSuite ? f->pSuite->pName : "", f->pTest ? f->pTest->pName : "",
		       f->strFileName ? f->strFileName : "", f->uiLineNumber, f->strCondition ? f->strCondition : "");
}

static inline int run_suites(CU_SuiteInfo *suites, int argc, char **argv)
{
	if (argc > 1 && !strcmp(argv[1], "-v")) {
		name_each_test = true;
		argc--;
		argv++;
	}
	if (CU_initialize_registry() || CU_register_suites(suites)) {
		printf("FAILED to register the tests: %s\n", CU_get_error_msg());
		return 1;
	}
	CU_set_fail_on_inactive(CU_FALSE);
	CU_set_test_start_handler(note_test);
	select_tests(argc - 1, argv + 1);
	signal(SIGALRM, name_the_culprit);
	signal(SIGABRT, name_the_culprit);
	alarm(TEST_SECONDS);
	CU_run_all_tests();
	alarm(0);
	print_failures();
	printf("%u tests, %u checks, %u failed\n", CU_get_number_of_tests_run(), CU_get_number_of_asserts(),
	       CU_get_number_of_failures());
	int result = CU_get_number_of_tests_run() == 0 || CU_get_number_of_failure_records() > 0;
	CU_cleanup_registry();
	return result;
}
#endif
