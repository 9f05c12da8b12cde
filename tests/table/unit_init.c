/* unit_init.c - the values that a table begins with, against a plain reading of tutti.h; rows that are assigned */
#include "base/base.h"
#include "tests/harness/cunit_main.h"
#include "tests/harness/ranks.h"
#include "tests/harness/with.h"
#include <math.h>
#include <stdlib.h>

enum { ROWS = 37, SEED = 4711 };

static void on_wires(int size, void (*program)(tutti *))
{
	struct ranks run = { .wire = "sim", .size = size, .program = program };

	CU_ASSERT_EQUAL(run_ranks(run), 0);
	CU_ASSERT_EQUAL(run_real_ranks(run), 0);
}

static bool why_has(const char *word) { return strstr(tutti_why(), word) != NULL; }

/* ---- the reference ---- */

static void philox(uint64_t key, uint64_t row, uint64_t block, uint64_t word[2])
{
	uint32_t c[4] = { (uint32_t)row, (uint32_t)(row >> 32), (uint32_t)block, (uint32_t)(block >> 32) };
	uint32_t k[2] = { (uint32_t)key, (uint32_t)(key >> 32) };

	for (int i = 0; i < 10; i++) {
		uint64_t p = 0xd2511f53ull * c[0], q = 0xcd9e8d57ull * c[2];
		uint32_t next[4] = { (uint32_t)(q >> 32) ^ c[1] ^ k[0], (uint32_t)q, (uint32_t)(p >> 32) ^ c[3] ^ k[1],
			             (uint32_t)p };
		memcpy(c, next, sizeof c);
		k[0] += 0x9e3779b9;
		k[1] += 0xbb67ae85;
	}
	word[0] = (uint64_t)c[1] << 32 | c[0];
	word[1] = (uint64_t)c[3] << 32 | c[2];
}

static long double expected(const tutti_init *init, uint64_t row, uint64_t column)
{
	const long double pi = 3.14159265358979323846264338327950288L;
	uint64_t w[2];

	philox(init->seed, row, column / 2, w);
	double u = (double)(w[0] >> 11) * 0x1p-53, v = (double)(w[1] >> 11) * 0x1p-53;
	if (init->kind == TUTTI_INIT_UNIFORM)
		return init->a + (init->b - init->a) * (column % 2 ? v : u);
	long double radius = init->sigma * sqrtl(-2 * logl(1 - (long double)u));
	return radius * (column % 2 ? sinl(2 * pi * v) : cosl(2 * pi * v));
}

/* The generator's published test vector: all bits 0. */
static void test_generator(void)
{
	uint64_t w[2];

	philox(0, 0, 0, w);
	CU_ASSERT(w[0] == 0xe169c58d6627e8d5 && w[1] == 0x9b00dbd8bc57ac4c);
}

static double read_half(uint16_t h)
{
	int power = h >> 10 & 31;
	double size = power ? ldexp(1024 + (h & 1023), power - 25) : ldexp(h & 1023, -24);

	return h & 0x8000 ? -size : size;
}

static double value_at(const void *base, size_t i, tutti_type type)
{
	uint32_t wide;
	float single;

	switch (type) {
	case TUTTI_F64: return ((const double *)base)[i];
	case TUTTI_F32: return (double)((const float *)base)[i];
	case TUTTI_F16: return read_half(((const uint16_t *)base)[i]);
	default:
		wide = (uint32_t)((const uint16_t *)base)[i] << 16;
		memcpy(&single, &wide, sizeof single);
		return (double)single;
	}
}

/* Half a unit in the last place, of the largest that may come. */
static long double slack(tutti_type type, long double x)
{
	static const double half_unit[] = { [TUTTI_F32] = 0x1p-24, [TUTTI_F64] = 0x1p-50, [TUTTI_F16] = 0x1.01p-11,
		                            [TUTTI_BF16] = 0x1.01p-8 };

	return fabsl(x) * half_unit[type] + (type == TUTTI_F16 ? 0x1p-25 : 1e-40);
}

static bool is_right(const tutti_init *init, tutti_type type, uint64_t row, size_t columns, const void *values,
                     size_t i)
{
	for (size_t c = 0; c < columns; c++) {
		long double x = expected(init, row, c);
		double got = value_at(values, i * columns + c, type);
		if (fabsl(x - got) > slack(type, x)) {
			printf("type %d, row %llu, column %zu: %g instead of %Lg\n", (int)type,
			       (unsigned long long)row, c, got, x);
			return false;
		}
	}
	return true;
}

/* ---- tables of rows ---- */

static const tutti_consistency consistencies[] = { { .mode = TUTTI_ASYNC }, { .mode = TUTTI_SSP, .staleness = 1 },
	                                           { .mode = TUTTI_BSP } };

static void check_rows(tutti *job, tutti_table_config *c)
{
	size_t bytes = ROWS * c->row * 8;
	char *values = malloc(bytes), *again = malloc(bytes);
	const uint64_t list[] = { 36, 0, 20, 36 };
	tutti_versions versions;
	tutti_table *t;

	CHECK(values && again);
	CHECK(tutti_table_open(job, "w", c, &t) == 0);
	CHECK(tutti_table_pull(t, values, NULL) == 0);
	for (size_t i = 0; i < ROWS; i++)
		CHECK(is_right(&c->init, c->type, i, c->row, values, i));
	CHECK(tutti_table_pull_rows(t, list, TT_COUNT(list), again, NULL) == 0);
	for (size_t i = 0; i < TT_COUNT(list); i++)
		CHECK(is_right(&c->init, c->type, list[i], c->row, again, i));
	if (c->flags & TUTTI_TABLE_SNAPSHOTS) {
		CHECK(tutti_table_snapshot(t, again, &versions, NULL) == 0 && versions.newest == 0);
		CHECK(!memcmp(again, values, ROWS * c->row * tt_type_size(c->type)));
	}
	CHECK(tutti_barrier(job, NULL) == 0);
	tutti_table_close(t);
	CHECK(tutti_barrier(job, NULL) == 0);
	free(values);
	free(again);
}

static void begin_rows(tutti *job)
{
	const tutti_init inits[] = { tutti_init_uniform(-0.5, 2, SEED), tutti_init_normal(0.02, UINT64_MAX - SEED) };
	static const uint64_t columns[] = { 1, 5, 64 };

	for (int type = TUTTI_F32; type <= TUTTI_BF16; type++)
		for (size_t k = 0; k < TT_COUNT(inits); k++)
			for (size_t i = 0; i < TT_COUNT(columns); i++) {
				tutti_table_config c = tutti_table_rows((tutti_type)type, ROWS, columns[i],
				                                        tutti_sgd(1));
				c.init = inits[k];
				c.servers = 1 + (int)i % tutti_size(job);
				c.server = (const int[]){ tutti_size(job) - 1, 0 };
				c.consistency = consistencies[(i + (size_t)type) % 3];
				c.flags = i == 2 ? TUTTI_TABLE_SNAPSHOTS : 0;
				check_rows(job, &c);
			}
}

static void test_rows(void) { on_wires(2, begin_rows); }

/* On 1, 2 and 3 servers the same bits. */
static uint64_t sum_of_bits;

static void begin_alike(tutti *job)
{
	tutti_table_config c = tutti_table_rows(TUTTI_F64, 1000, 3, tutti_adam(0.1));
	static double values[3000];
	tutti_table *t;

	c.init = tutti_init_normal(1, SEED);
	CHECK(tutti_table_open(job, "w", &c, &t) == 0);
	CHECK(tutti_table_pull(t, values, NULL) == 0);
	uint64_t sum = tt_sum64(values, sizeof values);
	CHECK(!sum_of_bits || sum == sum_of_bits);
	sum_of_bits = sum;
	CHECK(tutti_barrier(job, NULL) == 0);
	tutti_table_close(t);
}

static void test_alike(void)
{
	for (int n = 1; n <= 3; n++)
		CU_ASSERT_EQUAL(run_ranks((struct ranks){ .wire = "sim", .size = n, .program = begin_alike }), 0);
	/* these bits are promised for all processors */
	CU_ASSERT_EQUAL(sum_of_bits, UINT64_C(0x5cfdf498975e49c));
}

/* Mean, deviation, and a part beyond two deviations. */
static void test_distribution(void)
{
	enum { COUNT = 200000 };
	const tutti_init init = tutti_init_normal(2, SEED);
	long double sum = 0, squares = 0, far = 0;

	for (uint64_t i = 0; i < COUNT; i++) {
		long double x = expected(&init, i / 8, i % 8);
		sum += x;
		squares += x * x;
		far += fabsl(x) > 4;
	}
	CU_ASSERT(fabsl(sum / COUNT) < 0.02);
	CU_ASSERT(fabsl(squares / COUNT - 4) < 0.06);
	CU_ASSERT(fabsl(far / COUNT - 0.0455L) < 0.003);
}

/* ---- keys ---- */

static void begin_keys(tutti *job)
{
	const uint64_t keys[] = { 7, UINT64_MAX, 1000003, 8 };
	const int columns = 5;
	float values[20], deltas[20], was[20];
	tutti_table *t;

	for (size_t k = 0; k < TT_COUNT(consistencies); k++) {
		tutti_table_config c = tutti_table_keys(TUTTI_F32, (uint64_t)columns, tutti_accumulate());
		c.init = tutti_init_uniform(1, 3, SEED);
		c.consistency = consistencies[k];
		CHECK(tutti_table_open(job, "k", &c, &t) == 0);
		CHECK(tutti_table_pull_rows(t, keys, 4, was, NULL) == 0);
		for (size_t i = 0; i < 4; i++)
			CHECK(is_right(&c.init, TUTTI_F32, keys[i], (size_t)columns, was, i));
		for (int i = 0; i < 20; i++)
			deltas[i] = 0.25f;
		CHECK(tutti_barrier(job, NULL) == 0);
		/* all workers push to three of the keys */
		CHECK(tutti_table_push_rows(t, keys, 3, deltas, NULL, NULL) == 0);
		CHECK(tutti_barrier(job, NULL) == 0);
		CHECK(tutti_table_pull_rows(t, keys, 4, values, NULL) == 0);
		for (int i = 0; i < 20; i++) {
			float sum = was[i];
			for (int r = 0; i < 15 && c.consistency.mode != TUTTI_BSP && r < tutti_size(job); r++)
				sum += 0.25f;
			if (i < 15 && c.consistency.mode == TUTTI_BSP)
				sum += 0.25f * (float)tutti_size(job);
			CHECK(values[i] == sum);
		}
		CHECK(tutti_barrier(job, NULL) == 0);
		tutti_table_close(t);
		CHECK(tutti_barrier(job, NULL) == 0);
	}
}

static void test_keys(void) { on_wires(2, begin_keys); }

/* ---- a save comes before init; what is refused ---- */

static char folder[] = "/tmp/tutti-init-XXXXXX";

static void begin_from_save(tutti *job)
{
	tutti_table_config c = tutti_table_rows(TUTTI_F32, 4, 2, tutti_assign());
	float values[8], twos[8] = { 2, 2, 2, 2, 2, 2, 2, 2 };
	tutti_table *t;

	c.init = tutti_init_uniform(0, 1, 1);
	CHECK(tutti_table_open(job, "s", &c, &t) == 0);
	CHECK(tutti_barrier(job, NULL) == 0);
	if (tutti_rank(job) == 0)
		CHECK(tutti_table_assign(t, twos, NULL) == 0 && tutti_table_save(t, folder) == 0);
	CHECK(tutti_barrier(job, NULL) == 0);
	tutti_table_close(t);
	CHECK(tutti_barrier(job, NULL) == 0);
	c.load = folder;
	CHECK(tutti_table_open(job, "s", &c, &t) == 0);
	CHECK(tutti_table_pull(t, values, NULL) == 0 && !memcmp(values, twos, sizeof twos));
	CHECK(tutti_barrier(job, NULL) == 0);
	tutti_table_close(t);
}

static void test_save(void)
{
	CU_ASSERT(mkdtemp(folder) != NULL);
	on_wires(2, begin_from_save);
}

static void refuse(tutti *job)
{
	tutti_table_config c = tutti_table_rows(TUTTI_I32, 4, 2, tutti_assign());
	tutti_table *t;

	c.init = tutti_init_normal(1, 0);
	CHECK(tutti_table_open(job, "r", &c, &t) == -EINVAL && why_has("init is for f32"));
	c.type = TUTTI_F32;
	c.init = tutti_init_normal(-1, 0);
	CHECK(tutti_table_open(job, "r", &c, &t) == -EINVAL && why_has("init.sigma is -1"));
	c.init = tutti_init_uniform(2, 1, 0);
	CHECK(tutti_table_open(job, "r", &c, &t) == -EINVAL && why_has("from 2 to 1"));
	c.init.kind = (tutti_init_kind)3;
	CHECK(tutti_table_open(job, "r", &c, &t) == -EINVAL && why_has("no kind 3"));
	c.init = WITH(tutti_init_normal(1, 0), it.reserved[2] = 1);
	CHECK(tutti_table_open(job, "r", &c, &t) == -EINVAL && why_has("tutti_init.reserved[2]"));
	/* ranks that differ */
	c.init = tutti_init_normal(1, (uint64_t)tutti_rank(job));
	CHECK(tutti_table_open(job, "r", &c, &t) == -EINVAL);
}

static void test_refused(void)
{
	CU_ASSERT_EQUAL(run_ranks((struct ranks){ .wire = "sim", .size = 2, .program = refuse }), 0);
}

/* ---- rows that are assigned ---- */

static void sync_ranks(tutti *job) { CHECK(tutti_barrier(job, NULL) == 0); }

/* Past the rule: the state stays. */
static void assign_past_rule(tutti *job)
{
	tutti_table_config c = tutti_table_rows(TUTTI_F32, 10, 2, tutti_momentum(1, 0.5));
	const uint64_t rows[] = { 9, 2 }, twice[] = { 3, 3 }, none = 10;
	float ones[4] = { 1, 1, 1, 1 }, tens[4] = { 10, 20, 30, 40 }, values[4];
	tutti_table *t;

	CHECK(tutti_table_open(job, "a", &c, &t) == 0);
	sync_ranks(job);
	if (tutti_rank(job) == 0) {
		CHECK(tutti_table_push_rows(t, rows, 2, ones, NULL, NULL) == 0);
		CHECK(tutti_table_assign_rows(t, rows, 2, tens, NULL) == 0);
		CHECK(tutti_table_pull_rows(t, rows, 2, values, NULL) == 0 && !memcmp(values, tens, sizeof tens));
		CHECK(tutti_table_push_rows(t, rows, 2, ones, NULL, NULL) == 0); /* m is 1.5 */
		CHECK(tutti_table_pull_rows(t, rows, 2, values, NULL) == 0);
		CHECK(values[0] == 8.5f && values[3] == 38.5f);
		CHECK(tutti_table_assign_rows(t, twice, 2, tens, NULL) == 0);
		CHECK(tutti_table_pull_rows(t, twice, 1, values, NULL) == 0 && values[0] == 30 && values[1] == 40);
		CHECK(tutti_table_assign_rows(t, rows, 0, NULL, NULL) == 0);
		CHECK(tutti_table_assign_rows(t, &none, 1, tens, NULL) == -EINVAL && why_has("row 10"));
		CHECK(tutti_table_assign_rows(t, NULL, 1, tens, NULL) == -EINVAL);
		CHECK(tutti_table_assign_rows(NULL, rows, 1, tens, NULL) == -EINVAL);
	}
	sync_ranks(job);
	tutti_table_close(t);
}

static void test_past_rule(void) { on_wires(3, assign_past_rule); }

/* In every consistency, of rows and keys; a rank that is no worker assigns. Then all push. */
static void assign_in(tutti *job, const tutti_consistency *as, unsigned flags)
{
	tutti_table_config c = flags & TUTTI_TABLE_KEYS ? tutti_table_keys(TUTTI_F64, 3, tutti_accumulate()) :
	                                                  tutti_table_rows(TUTTI_F64, 50, 3, tutti_accumulate());
	const uint64_t rows[] = { 4, 49, 17, 0 };
	double values[12], deltas[12], got[12];
	int n = tutti_size(job), me = tutti_rank(job);
	tutti_table *t;

	for (int i = 0; i < 12; i++) {
		values[i] = i == 5 ? 0 : i + 1; /* the filter leaves out zeros, and with clip what is small */
		deltas[i] = 64;
	}
	c.consistency = *as;
	c.flags |= flags;
	c.clip = flags & TUTTI_TABLE_FILTER ? 10 : 0;
	c.workers = n - 1;
	c.worker = (const int[]){ 0, 1, 2 };
	c.servers = 2;
	c.server = (const int[]){ n - 1, 0 };
	CHECK(tutti_table_open(job, "in", &c, &t) == 0);
	sync_ranks(job);
	if (me == n - 1)
		CHECK(tutti_table_assign_rows(t, rows, 4, values, NULL) == 0);
	sync_ranks(job);
	CHECK(tutti_table_pull_rows(t, rows, 4, got, NULL) == 0 && !memcmp(got, values, sizeof values));
	for (int k = 1; k <= 3; k++) {
		sync_ranks(job);
		if (me < n - 1)
			CHECK(tutti_table_push_rows(t, rows, 4, deltas, NULL, NULL) == 0);
		sync_ranks(job);
		if (me == n - 1)
			continue;
		CHECK(tutti_table_pull_rows(t, rows, 4, got, NULL) == 0);
		for (int i = 0; i < 12; i++)
			CHECK(got[i] == values[i] + 64 * k * (n - 1));
	}
	sync_ranks(job);
	tutti_table_close(t);
	sync_ranks(job);
}

static void assign_in_all(tutti *job)
{
	for (size_t k = 0; k < TT_COUNT(consistencies); k++) {
		assign_in(job, &consistencies[k], 0);
		assign_in(job, &consistencies[k], TUTTI_TABLE_KEYS);
		assign_in(job, &consistencies[k], TUTTI_TABLE_FILTER);
		assign_in(job, &consistencies[k], TUTTI_TABLE_SNAPSHOTS);
	}
}

static void test_consistencies(void) { on_wires(3, assign_in_all); }

/* Rows that do not fit into a message; and what is assigned is fresh for others. */
static void assign_long(tutti *job)
{
	enum { LONG = 20000 };
	tutti_table_config c = tutti_table_rows(TUTTI_F32, 5, LONG, tutti_sgd(1));
	float *values = malloc(2 * LONG * sizeof *values), *got = malloc(5 * LONG * sizeof *got);
	const uint64_t rows[] = { 4, 1 };
	uint64_t fresh[5];
	tutti_table *t;
	size_t n;

	CHECK(values && got);
	for (int i = 0; i < 2 * LONG; i++)
		values[i] = (float)i;
	c.flags = TUTTI_TABLE_FRESH;
	CHECK(tutti_table_open(job, "l", &c, &t) == 0);
	CHECK(tutti_table_pull_fresh(t, fresh, got, 5, &n, NULL) == 0 && n == 5);
	sync_ranks(job);
	if (tutti_rank(job) == 1)
		CHECK(tutti_table_assign_rows(t, rows, 2, values, NULL) == 0);
	sync_ranks(job);
	if (tutti_rank(job) == 0) {
		CHECK(tutti_table_pull_fresh(t, fresh, got, 5, &n, NULL) == 0 && n == 2);
		CHECK(fresh[0] + fresh[1] == 5);
		CHECK(!memcmp(got, values + (fresh[0] == 1) * LONG, LONG * sizeof *got));
	}
	sync_ranks(job);
	tutti_table_close(t);
	free(values);
	free(got);
}

static void test_long(void) { on_wires(2, assign_long); }

static CU_TestInfo init_tests[] = { { "generator", test_generator },
	                            { "rows", test_rows },
	                            { "alike", test_alike },
	                            { "distribution", test_distribution },
	                            { "keys", test_keys },
	                            { "save", test_save },
	                            { "refused", test_refused },
	                            CU_TEST_INFO_NULL };
static CU_TestInfo assign_tests[] = { { "past the rule", test_past_rule },
	                              { "consistencies", test_consistencies },
	                              { "long rows", test_long },
	                              CU_TEST_INFO_NULL };
static CU_SuiteInfo suites[] = { { "init", NULL, NULL, NULL, NULL, init_tests },
	                         { "assign rows", NULL, NULL, NULL, NULL, assign_tests },
	                         CU_SUITE_INFO_NULL };

int main(int argc, char **argv) { return run_suites(suites, argc, argv); }
