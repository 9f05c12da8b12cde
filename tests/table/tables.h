/* tables.h - what the tests of tables share: a program on every wire, opening and closing, vectors of one value */
#ifndef TT_TEST_TABLES_H
#define TT_TEST_TABLES_H
#include "member/member.h"
#include "table/table.h"
#include "tests/harness/ranks.h"
#include "tests/harness/with.h"

/* On sim once for each seed, then over TCP and shared memory, with so many ranks as `sizes` says in turn, up to a 0. */
static inline void run_on_wires(void (*program)(tutti *), const int *sizes, uint64_t seeds)
{
	for (const int *size = sizes; *size; size++) {
		struct ranks run = { .size = *size, .wire = "sim", .program = program };
		for (; run.seed < seeds; run.seed++)
			CU_ASSERT_EQUAL(run_ranks(run), 0);
		if (is_real_in_check(sizes, size))
			CU_ASSERT_EQUAL(run_real_ranks(run), 0);
	}
}

static inline tutti_table *open_table(tutti *job, const char *name, const tutti_table_config *c)
{
	tutti_table *t = NULL;

	CHECK(tutti_table_open(job, name, c, &t) == 0);
	return t;
}

static inline tutti_table *open_by_rule(tutti *job, const char *name, tutti_type type, uint64_t count,
                                        tutti_update_rule rule)
{
	tutti_table_config c = tutti_table_rows(type, count, 1, tutti_accumulate());

	c.updater.rule = rule;
	return open_table(job, name, &c);
}

static inline void meet(tutti *job) { CHECK(tutti_barrier(job, NULL) == 0); }

/* By all, once all are done with it, and before one opens it again. */
static inline void close_table(tutti *job, tutti_table *t)
{
	meet(job);
	tutti_table_close(t);
	meet(job);
}

static inline void fill(float *v, size_t n, float x)
{
	for (size_t i = 0; i < n; i++)
		v[i] = x;
}

static inline bool all_are(const float *v, size_t n, float x)
{
	for (size_t i = 0; i < n; i++)
		if (v[i] != x)
			return false;
	return true;
}
#endif
