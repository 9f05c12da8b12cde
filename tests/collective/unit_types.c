/* unit_types.c - the types of one byte and the rules on bits, in each algorithm, against a plain loop over all ranks'
 * vectors */
#include "base/base.h"
#include "kernel/kernel.h"
#include "tests/harness/cunit_main.h"
#include "tests/harness/ranks.h"
#include <stdlib.h>

enum { MOST = 60000 };
#define LARGEST (TT_TSAN ? 3 : (int)all_or(5, 3))

/* ---- the plain loop ---- */

/* Of BOOL often 0, else any byte: true has many faces. */
static uint8_t byte_of(int rank, size_t i, bool truth)
{
	uint64_t x = ((uint64_t)rank + 1) * 0x9e3779b97f4a7c15u + i * 0xd1342543de82ef95u;

	x = (x ^ x >> 31) * 0xbf58476d1ce4e5b9u;
	return truth && x >> 62 ? 0 : (uint8_t)(x >> 32);
}

static int64_t take(const uint8_t *at, tutti_type type)
{
	int64_t wide;
	int32_t half;

	memcpy(&half, at, tt_type_size(type) >= 4 ? 4 : 0);
	memcpy(&wide, at, tt_type_size(type) == 8 ? 8 : 0);
	switch (type) {
	case TUTTI_I64: return wide;
	case TUTTI_I32: return half;
	case TUTTI_I8: return (int8_t)*at;
	case TUTTI_BOOL: return *at != 0;
	default: return *at;
	}
}

static int64_t wrap(uint64_t x, tutti_type type)
{
	switch (type) {
	case TUTTI_I64: return (int64_t)x;
	case TUTTI_I32: return (int32_t)(uint32_t)x;
	case TUTTI_I8: return (int8_t)(uint8_t)x;
	case TUTTI_BOOL: return x != 0;
	default: return (uint8_t)x;
	}
}

static int64_t combine(int64_t a, int64_t b, tutti_type type, tutti_rule rule)
{
	switch (rule) {
	case TUTTI_PRODUCT: return wrap((uint64_t)a * (uint64_t)b, type);
	case TUTTI_MAX: return a > b ? a : b;
	case TUTTI_MIN: return a < b ? a : b;
	case TUTTI_BAND: return a & b;
	case TUTTI_BOR: return a | b;
	case TUTTI_BXOR: return a ^ b;
	default: return wrap((uint64_t)a + (uint64_t)b, type);
	}
}

/* Element i of what n ranks have. */
static int64_t expected(int n, size_t i, tutti_type type, tutti_rule rule)
{
	size_t width = tt_type_size(type);
	int64_t all = 0;

	for (int r = 0; r < n; r++) {
		uint8_t bytes[8];
		for (size_t k = 0; k < width; k++)
			bytes[k] = byte_of(r, i * width + k, type == TUTTI_BOOL);
		all = r ? combine(all, take(bytes, type), type, rule) : take(bytes, type);
	}
	return rule == TUTTI_AVERAGE ? all / n : all;
}

/* ---- the ranks ---- */

struct vector {
	size_t count, bytes;
	tutti_type type;
	tutti_rule rule;
	uint8_t *at;
};

static struct vector vector_of(tutti *job, size_t count, tutti_type type, tutti_rule rule)
{
	struct vector v = { .count = count, .bytes = count * tt_type_size(type), .type = type, .rule = rule };
	void *memory;

	/* in memory that others can map, and apart from it */
	CHECK(tutti_alloc(job, v.bytes + 64, -1, &memory) == 0);
	v.at = memory;
	for (size_t i = 0; i < v.bytes; i++)
		v.at[i] = byte_of(tutti_rank(job), i, type == TUTTI_BOOL);
	return v;
}

static bool is_right(tutti *job, const struct vector *v, const uint8_t *at, size_t first, size_t count)
{
	size_t width = tt_type_size(v->type);

	for (size_t i = 0; i < count; i++) {
		int64_t got = v->type == TUTTI_BOOL ? at[i] : take(at + i * width, v->type),
			right = expected(tutti_size(job), first + i, v->type, v->rule);
		if (got != right) {
			printf("type %d, rule %d, element %zu of %zu: %lld instead of %lld\n", (int)v->type,
			       (int)v->rule, first + i, v->count, (long long)got, (long long)right);
			return false;
		}
	}
	return true;
}

/* On every rank; on one rank, the last; and a block for each. */
static void check(tutti *job, size_t count, tutti_type type, tutti_rule rule)
{
	int n = tutti_size(job), me = tutti_rank(job);
	struct vector v = vector_of(job, count * (size_t)n, type, rule);
	uint8_t *out = malloc(v.bytes + 3);
	bool on_root = me == n - 1;

	CHECK(out != NULL);
	CHECK(tutti_reduce_scatter(job, v.at, out + 3, count, type, rule, NULL) == 0);
	CHECK(is_right(job, &v, out + 3, (size_t)me * count, count));
	CHECK(tutti_reduce(job, v.at, out + 1, v.count, type, rule, n - 1, NULL) == 0);
	CHECK(!on_root || is_right(job, &v, out + 1, 0, v.count));
	CHECK(tutti_allreduce(job, v.at, out, v.count, type, rule, NULL) == 0);
	CHECK(is_right(job, &v, out, 0, v.count));
	CHECK(tutti_allreduce_tensors(job, (tutti_tensor[]){ { v.at, count, type },
	                                                     { v.at + v.bytes / (size_t)n, v.count - count, type } },
	                              2, rule, NULL) == 0);
	CHECK(is_right(job, &v, v.at, 0, v.count));
	CHECK(tutti_barrier(job, NULL) == 0);
	tutti_free(job, v.at);
	free(out);
}

static void combine_all(tutti *job)
{
	static const size_t counts[] = { 1, 37, 5003 };

	for (tutti_type type = TUTTI_I32; type <= TUTTI_BOOL; type++)
		for (tutti_rule rule = type < TUTTI_I8 ? TUTTI_BAND : TUTTI_SUM; rule <= TUTTI_BXOR; rule++)
			for (size_t i = 0; tt_rule_takes(rule, type) && i < TT_COUNT(counts); i++)
				check(job, counts[i], type, rule);
	check(job, MOST, TUTTI_I8, TUTTI_AVERAGE);
	check(job, MOST, TUTTI_BOOL, TUTTI_SUM);
	check(job, MOST / 4, TUTTI_I32, TUTTI_BXOR);
}

static void test_algorithms(void)
{
	static const char *const algorithms[] = { "doubling", "rabenseifner", "ring", "auto" };

	for (size_t i = 0; i < TT_COUNT(algorithms); i++) {
		struct ranks run = { .allreduce = algorithms[i], .program = combine_all, .wire = "sim" };
		for (run.size = 1; run.size <= LARGEST; run.size++)
			CU_ASSERT_EQUAL(run_ranks(run), 0);
		run.size = 3;
		if (all_or(true, i % 2))
			CU_ASSERT_EQUAL(run_real_ranks(run), 0);
	}
}

/* All on one host, through memory; on several, by hierarchies. */
static void test_hosts(void)
{
	struct ranks run = { .allreduce = "direct", .program = combine_all, .wire = "sim" };

	for (run.hosts = 1; run.hosts <= 3; run.hosts++)
		for (run.size = run.hosts + 1; run.size <= LARGEST; run.size++)
			CU_ASSERT_EQUAL(run_ranks(run), 0);
}

/* ---- what is refused ---- */

#define REFUSES(call, words) do { \
	tt_remember(""); \
	CHECK((call) == -EINVAL && strstr(tutti_why(), words)); \
} while (0)

static void refuse(tutti *job)
{
	tutti_table_config c = tutti_table_rows(TUTTI_U8, 2, 1, tutti_accumulate());
	tutti_gossip_config g = tutti_gossip_defaults();
	uint64_t x[2] = { 0 };
	const tutti_tensor bytes = { x, 2, TUTTI_I8 };
	tutti_center_config center = tutti_center_easgd(1, 0.5);
	tutti_gradients *gradients;
	tutti_gossip *gossip;
	tutti_center *opened;
	tutti_table *table;
	tutti_ea *ea;

	REFUSES(tutti_allreduce(job, x, x, 1, TUTTI_F32, TUTTI_BAND, NULL), "type is f32");
	REFUSES(tutti_reduce(job, x, x, 1, TUTTI_BF16, TUTTI_BXOR, 0, NULL), "type is bf16");
	REFUSES(tutti_allreduce(job, x, x, 1, TUTTI_BOOL, TUTTI_AVERAGE, NULL), "TUTTI_BOOL has no average");
	REFUSES(tutti_reduce_scatter(job, x, x, 1, TUTTI_BOOL, TUTTI_AVERAGE, NULL), "TUTTI_BOOL has no average");
	REFUSES(tutti_allreduce(job, x, x, 1, TUTTI_BOOL + 1, TUTTI_SUM, NULL), "unknown");
	REFUSES(tutti_allreduce(job, x, x, 1, TUTTI_I8, TUTTI_BXOR + 1, NULL), "unknown");
	REFUSES(tutti_table_open(job, "t", &c, &table), "u8 is for collectives and queues");
	CHECK(tutti_gossip_open(job, "g", &bytes, 1, &g, &gossip) == 0); /* which does not add */
	tutti_gossip_close(gossip);
	CHECK(tutti_gradients_open(job, &bytes, 1, 0, &gradients) == -EINVAL);
	CHECK(tutti_ea_open(job, &bytes, 1, 1, 0.5, 0, &ea) == -EINVAL);
	CHECK(tutti_center_open(job, "c", &bytes, 1, &center, &opened) == -ENOTSUP);
}

static void test_refused(void)
{
	CU_ASSERT_EQUAL(run_ranks((struct ranks){ .wire = "sim", .size = 2, .program = refuse }), 0);
}

/* ---- queues take all types ---- */

static void send_batches(tutti *job)
{
	uint8_t bytes[5] = { 1, 2, 255, 0, 4 };
	const tutti_tensor batch[] = { { bytes, 5, TUTTI_U8 }, { bytes, 3, TUTTI_BOOL }, { bytes, 1, TUTTI_I8 } };
	const tutti_tensor *got;
	tutti_queue *q;

	CHECK(tutti_queue_open(job, "q", 0, 64, 0, &q) == 0);
	if (tutti_rank(job) == 0) {
		CHECK(tutti_queue_send(q, batch, 3, -1) == 0 && tutti_queue_end(q, -1) >= 0);
	} else {
		CHECK(tutti_queue_receive(q, &got, -1) == 3);
		CHECK(got[0].type == TUTTI_U8 && got[0].count == 5 && !memcmp(got[0].data, bytes, 5));
		CHECK(got[1].type == TUTTI_BOOL && got[1].count == 3 && !memcmp(got[1].data, bytes, 3));
		CHECK(got[2].type == TUTTI_I8 && got[2].count == 1);
		CHECK(tutti_queue_receive(q, &got, -1) == 0);
	}
	tutti_queue_close(q);
}

static void test_queue(void)
{
	struct ranks run = { .wire = "sim", .size = 2, .program = send_batches };

	CU_ASSERT_EQUAL(run_ranks(run), 0);
	CU_ASSERT_EQUAL(run_real_ranks(run), 0);
}

static CU_TestInfo type_tests[] = { { "algorithms", test_algorithms },
	                            { "hosts", test_hosts },
	                            { "refused", test_refused },
	                            { "queue", test_queue },
	                            CU_TEST_INFO_NULL };
static CU_SuiteInfo suites[] = { { "types", NULL, NULL, NULL, NULL, type_tests }, CU_SUITE_INFO_NULL };

int main(int argc, char **argv) { return run_suites(suites, argc, argv); }
