/* check.c - fills the buffers before one iteration and looks at them after it, outside of what is timed */
#include "tools/perf/perf.h"
#include <math.h>
#include <string.h>

enum { LOCAL, OPEN };

/* Each byte depends on its offset, rank and buffer. */
static uint8_t byte_at(size_t i, int rank, int which)
{
	uint64_t x = (i + 1) * 0x9e3779b97f4a7c15u + (uint64_t)(2 * rank + which + 1) * 0xd1b54a32d192ed03u;

	return (uint8_t)(x >> 56 ^ x >> 24);
}

static void fill_bytes(uint8_t *at, size_t n, int rank, int which)
{
	for (size_t i = 0; i < n; i++)
		at[i] = byte_at(i, rank, which);
}

static int check_bytes(const struct tt_perf *p, const uint8_t *at, int rank, int which)
{
	for (size_t i = 0; i < p->bytes; i++) {
		uint8_t right = byte_at(i, rank, which);
		if (at[i] != right)
			return tt_fail(1, "byte %zu of %zu from rank %d is wrong: %u and not %u", i, p->bytes, rank,
			               at[i], right);
	}
	return 0;
}

/* Numbers of an all-reduce are 1 or 2: exact in every type, as are their sums in f16 and bf16 up to 128 ranks. As bools
 * they are false and true. */
static int number_at(const struct tt_perf *p, size_t i, int rank)
{
	bool often = p->options.rule != TUTTI_PRODUCT || rank < 8; /* else f16 overflows */

	return often && (i + (size_t)rank) % 3 == 0 ? 2 : 1;
}

static void write_number(tutti_type type, uint8_t *at, int n)
{
	float f32 = (float)n;
	double f64 = n;
	uint16_t f16 = n == 2 ? 0x4000 : 0x3c00, bf16 = n == 2 ? 0x4000 : 0x3f80;
	int32_t i32 = n;
	int64_t i64 = n;
	uint8_t byte = (uint8_t)n, truth = n == 2;
	const void *const from[] = {
		[TUTTI_F32] = &f32, [TUTTI_F64] = &f64, [TUTTI_F16] = &f16, [TUTTI_BF16] = &bf16,
		[TUTTI_I32] = &i32, [TUTTI_I64] = &i64, [TUTTI_I8] = &byte, [TUTTI_U8] = &byte, [TUTTI_BOOL] = &truth,
	};

	memcpy(at, from[type], tt_perf_type_size(type));
}

static double read_f16(uint16_t bits)
{
	int exponent = bits >> 10 & 31, fraction = bits & 1023;
	double x = exponent == 31 ? INFINITY : exponent ? ldexp(1024 + fraction, exponent - 25) : ldexp(fraction, -24);

	return bits >> 15 ? -x : x;
}

static double read_number(tutti_type type, const uint8_t *at)
{
	union {
		float f32;
		double f64;
		uint16_t f16;
		uint32_t bits;
		int32_t i32;
		int64_t i64;
		int8_t i8;
		uint8_t u8;
	} x = { .i64 = 0 };

	memcpy(&x, at, tt_perf_type_size(type));
	switch (type) {
	case TUTTI_F32: return (double)x.f32;
	case TUTTI_F64: return x.f64;
	case TUTTI_F16: return read_f16(x.f16);
	case TUTTI_BF16: x.bits = (uint32_t)x.f16 << 16; return (double)x.f32;
	case TUTTI_I32: return x.i32;
	case TUTTI_I8: return x.i8;
	case TUTTI_U8: return x.u8;
	case TUTTI_BOOL: return x.u8 + 1;
	default: return (double)x.i64;
	}
}

/* Of bools the sum is the larger number, and the product the smaller one. */
static double combine(tutti_type type, tutti_rule rule, double a, double b)
{
	if (type == TUTTI_BOOL)
		return rule == TUTTI_SUM || rule == TUTTI_MAX ? fmax(a, b) : fmin(a, b);
	return rule == TUTTI_PRODUCT ? a * b : rule == TUTTI_MAX ? fmax(a, b) : rule == TUTTI_MIN ? fmin(a, b) : a + b;
}

/* What the type makes of a result: sums of bytes wrap. */
static double as_type(tutti_type type, double x)
{
	if (type == TUTTI_I8)
		return (int8_t)(uint8_t)(int64_t)x;
	if (type == TUTTI_U8)
		return (uint8_t)(int64_t)x;
	return tt_perf_is_whole(type) ? trunc(x) : x;
}

static double expected_at(const struct tt_perf *p, size_t i)
{
	double x = number_at(p, i, 0);

	for (int r = 1; r < p->size; r++)
		x = combine(p->options.type, p->options.rule, x, number_at(p, i, r));
	if (p->options.rule == TUTTI_AVERAGE)
		x /= p->size;
	return as_type(p->options.type, x);
}

/* expected[3]: the numbers have a period of three. */
static int check_vector(size_t bytes, tutti_type type, const uint8_t *at, const double *expected)
{
	size_t size = tt_perf_type_size(type);
	double slack = type == TUTTI_F16 || type == TUTTI_BF16 ? 0.02 : 1e-6;

	size_t count = bytes / size, period = 3 * size;

	if (bytes > period && !memcmp(at, at + period, bytes - period))
		count = 3; /* the rest repeats these */
	for (size_t i = 0; i < count; i++) {
		double x = read_number(type, at + i * size);
		if (!(fabs(x - expected[i % 3]) <= slack * fabs(expected[i % 3])))
			return tt_fail(1, "element %zu of %zu is wrong: %g and not %g", i, bytes / size, x,
			               expected[i % 3]);
	}
	return 0;
}

static int check_numbers(const struct tt_perf *p)
{
	double expected[3];

	for (size_t i = 0; i < 3; i++)
		expected[i] = expected_at(p, i);
	return check_vector(p->bytes, p->options.type, tt_perf_local(p), expected);
}

/* Kernels in memory: vector k holds the numbers of rank k. STREAM has doubles. */

static tutti_type type_in_memory(const struct tt_perf *p) { return p->order.baseline ? TUTTI_F64 : p->options.type; }

static double expected_in_memory(const struct tt_perf *p, size_t i)
{
	double x = number_at(p, i, 0), by = p->kernel->scaled ? 0.5 : 1;
	tutti_rule rule = p->order.baseline ? TUTTI_SUM : p->options.rule;
	int reads = tt_perf_reads(p);

	if (p->kernel->scaled && !p->order.baseline)
		x *= 1 - by;
	for (int k = 1; k < reads; k++)
		x = combine(type_in_memory(p), rule, x, by * number_at(p, i, k));
	if (rule == TUTTI_AVERAGE && !p->kernel->reads)
		x /= reads;
	return as_type(type_in_memory(p), x);
}

static int check_memory(const struct tt_perf *p)
{
	double expected[3];
	int err = 0;

	if (p->updater && !p->order.baseline)
		return tt_perf_check_update(p);
	for (size_t i = 0; i < 3; i++)
		expected[i] = expected_in_memory(p, i);
	for (int k = 0; k < tt_perf_writes(p) && !err; k++)
		err = check_vector(p->bytes, type_in_memory(p), tt_perf_written(p, k), expected);
	return err;
}

/* Tables: the sum of the pushes; without pushes rank 0's values. A server of the baseline has its range of the sum. */

/* The baseline of a call beside pushes is a call on our own buffers. */
static uint8_t *delta_of(const struct tt_perf *p) { return tt_perf_is_beside(p) ? p->local : tt_perf_local(p); }
static uint8_t *values_of(const struct tt_perf *p) { return tt_perf_is_beside(p) ? p->open : tt_perf_open(p); }

static double expected_of_table(const struct tt_perf *p, size_t i)
{
	double x = 0;

	for (int r = 0; r < (p->kernel->calls & TT_PERF_PUSH ? p->size : 1); r += 2)
		x += number_at(p, i, r);
	return x;
}

/* Listed rows, bytes first .. end of their vector. A server of the baseline has them at their offsets in the table. */
static int check_rows(const struct tt_perf *p, size_t first, size_t end, const uint8_t *at, bool placed)
{
	size_t row = tt_perf_row_bytes(p), size = tt_perf_type_size(p->options.type);
	double expected[3];
	int err = 0;

	for (size_t k = first / row; k < end / row && !err; k++) {
		size_t pushed = p->kernel->calls & TT_PERF_PUSH ? k * row : tt_perf_place_of(p, k);
		for (size_t i = 0; i < 3; i++)
			expected[i] = expected_of_table(p, pushed / size + i);
		err = check_vector(row, p->options.type, at + (placed ? tt_perf_place_of(p, k) : k * row), expected);
	}
	return err;
}

/* Of the numbers of ranks 0 and 1. */
static int check_averaged(const struct tt_perf *p, tutti_type type, const void *at)
{
	double expected[3];

	for (size_t i = 0; i < 3; i++)
		expected[i] = (number_at(p, i, 0) + number_at(p, i, 1)) / 2.0;
	return at ? check_vector(p->bytes, type, at, expected) : 1;
}

static int check_table(struct tt_perf *p)
{
	if (tt_perf_is_elastic(p)) /* of two workers one comes first, and nobody knows which */
		return p->rank || tt_perf_workers(p) > 1 ? 0 : check_averaged(p, p->options.type, p->local);
	bool baseline = p->order.baseline && !tt_perf_is_beside(p), serves = tt_perf_is_server(p);
	bool pushes = p->kernel->calls & TT_PERF_PUSH;
	bool here = baseline && pushes ? serves || (p->kernel->calls & TT_PERF_PULL && tt_perf_workers(p) == 1)
	                               : !serves;
	size_t size = tt_perf_type_size(p->options.type), first = serves ? tt_perf_range(p, p->rank / 2) : 0;
	size_t end = serves ? tt_perf_range(p, p->rank / 2 + 1) : tt_perf_moved(p);
	double expected[3];
	int err = baseline || tt_perf_is_snapshot(p) ? 0 : tt_perf_pull_all(p);

	if (err || !here || (tt_perf_is_beside(p) && p->rank) || tt_perf_is_snapshot(p))
		return err; /* each snapshot is checked by itself */
	if (tt_perf_is_of_rows(p))
		return check_rows(p, first, end, values_of(p), serves);
	for (size_t i = 0; i < 3; i++)
		expected[i] = expected_of_table(p, first / size + i);
	return check_vector(end - first, p->options.type, values_of(p) + first, expected);
}

/* The sums begin with zeros. */
static int fill_table(struct tt_perf *p)
{
	bool baseline = p->order.baseline && !tt_perf_is_beside(p), push = p->kernel->calls & TT_PERF_PUSH;

	if (tt_perf_is_snapshot(p))
		return 0; /* rank 2 has its own delta */
	if (tt_perf_is_elastic(p))
		return tt_perf_fill_center(p);
	tt_perf_fill_numbers(p, p->options.type, delta_of(p), p->bytes, p->rank);
	if (baseline && tt_perf_is_server(p) && !push)
		tt_perf_fill_numbers(p, p->options.type, values_of(p), p->bytes, 0);
	else
		memset(values_of(p), 0, p->bytes);
	return baseline ? 0 : tt_perf_fill_table(p);
}

/* Repeats the first numbers. */
static void repeat(uint8_t *at, size_t done, size_t bytes)
{
	for (; done < bytes; done *= 2)
		memcpy(at + done, at, tt_min(done, bytes - done));
}

void tt_perf_fill_numbers(const struct tt_perf *p, tutti_type type, void *to, size_t bytes, int rank)
{
	size_t size = tt_perf_type_size(type), done = tt_min(3 * size, bytes);
	uint8_t *at = to;

	for (size_t i = 0; i < done / size; i++)
		write_number(type, at + i * size, number_at(p, i, rank));
	repeat(at, done, bytes);
}

void tt_perf_fill_ones(tutti_type type, void *to, size_t bytes)
{
	write_number(type, to, 1);
	repeat(to, tt_perf_type_size(type), bytes);
}

/* The checked iteration of a rule is a first push: state is still 0. */
static void fill_memory(const struct tt_perf *p)
{
	bool push = p->updater && !p->order.baseline;

	for (int k = 0; k < (push ? 2 : tt_perf_vectors(p)); k++)
		tt_perf_fill_numbers(p, type_in_memory(p), push ? p->memory[k] : p->vectors[k], p->bytes, k);
}

int tt_perf_fill(struct tt_perf *p)
{
	if (p->test->table)
		return fill_table(p);
	if (p->test->gpu)
		return tt_perf_fill_gpu(p);
	if (tt_perf_is_gossip(p) && !p->order.baseline)
		return tt_perf_open_gossip(p);
	if (p->test->publishes && !p->order.baseline)
		return tt_perf_open_publication(p);
	if (p->test->publishes && !tt_perf_is_fetch(p))
		return 0; /* the copy is of what is published */
	if (p->test->local) {
		fill_memory(p);
	} else if (tt_perf_is_gossip(p)) {
		tt_perf_fill_numbers(p, TUTTI_F32, tt_perf_open(p), p->bytes, p->rank);
		tt_perf_fill_numbers(p, TUTTI_F32, tt_perf_local(p), p->bytes, p->rank);
	} else if (p->test->collective) {
		tt_perf_fill_numbers(p, p->options.type, tt_perf_local(p), p->bytes, p->rank);
	} else {
		fill_bytes(tt_perf_open(p), p->bytes, p->rank, OPEN);
		fill_bytes(tt_perf_local(p), p->bytes, p->rank, LOCAL);
	}
	return 0;
}

void tt_perf_clear(struct tt_perf *p)
{
	for (int k = 0; p->test->local && k < tt_perf_vectors(p); k++)
		memset(p->vectors[k], 0, p->bytes);
	if (!p->test->local)
		memset(tt_perf_local(p), 0, p->bytes);
}

int tt_perf_check(struct tt_perf *p)
{
	bool gets = p->test->ours == tt_perf_get || p->test->ours == tt_perf_stream_gets || tt_perf_is_fetch(p);

	if (p->test->local)
		return check_memory(p);
	if (p->test->table)
		return check_table(p);
	if (p->test->gpu)
		return tt_perf_check_gpu(p);
	if (p->test->publishes && !(p->order.baseline && gets))
		return tt_perf_check_publication(p);
	if (p->test->collective)
		return check_numbers(p);
	if (p->rank > 1)
		return 0;
	if (tt_perf_is_gossip(p))
		return p->rank ? 0 : check_averaged(p, TUTTI_F32, tt_perf_averaged(p));
	if (!p->test->one_sided)
		return check_bytes(p, tt_perf_open(p), 1 - p->rank, LOCAL);
	if (gets)
		return p->rank ? 0 : check_bytes(p, tt_perf_local(p), 1, OPEN);
	return p->rank ? check_bytes(p, tt_perf_open(p), 0, LOCAL) : 0;
}
