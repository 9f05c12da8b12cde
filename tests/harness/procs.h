/* procs.h - for tests that fork: checks of the parent that say more than their condition, and children that write
 * nothing twice. The children of CUnit programs cannot use its asserts: they report through memory that they share. */
#ifndef TT_TEST_PROCS_H
#define TT_TEST_PROCS_H
#include "base/base.h"
#include <CUnit/CUnit.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { SLOW = TT_ASAN || TT_TSAN ? 4 : 1 }; /* how much more time everything may take */

#define WANT(condition, ...) want(condition, #condition, __FILE__, __LINE__, __VA_ARGS__)

static inline void want(bool good, const char *text, const char *file, int line, const char *fmt, ...) TT_FORMAT(5, 6);
static inline void want(bool good, const char *text, const char *file, int line, const char *fmt, ...)
{
	va_list args;

	CU_assertImplementation(good, (unsigned)line, text, file, "", CU_FALSE);
	if (good)
		return;
	va_start(args, fmt);
	printf("line %d: %s: ", line, text);
	vprintf(fmt, args);
	printf("\n");
	va_end(args);
	fflush(stdout);
}

static inline pid_t fork_child(void)
{
	fflush(stdout);
	fflush(stderr);
	pid_t pid = fork();
	if (pid < 0) {
		perror("fork");
		exit(1); /* -1 kept as a pid would one day be killed */
	}
	return pid;
}

static inline void sleep_ms(int ms) { usleep((useconds_t)ms * 1000); }
#endif
