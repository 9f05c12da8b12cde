/* unit_reduce.c - the element-wise kernels, against a plain reading of what each type and rule mean */
#include "runtime.h"
#include "cunit_main.h"
#include <math.h>
#include <stdlib.h>
#ifdef __x86_64__
#include <xmmintrin.h>
#endif

enum { TYPES = TUTTI_I64 + 1, RULES = TUTTI_MIN + 1, MOST = 1000 };

static const char *const type_names[] = { "f32", "f64", "f16", "bf16", "i32", "i64" };
static const char *const rule_names[] = { "sum", "average", "product", "max", "min" };
static struct tt_random dice;

static bool is_integer(tutti_type type) { return type == TUTTI_I32 || type == TUTTI_I64; }

/* The reference: what the bits mean, and the nearest bits to a value. Slow and plain on purpose. */

struct format {
	int fraction, exponent; /* bits */
};
static const struct format formats[] = {
	[TUTTI_F32] = { 23, 8 }, [TUTTI_F64] = { 52, 11 }, [TUTTI_F16] = { 10, 5 }, [TUTTI_BF16] = { 7, 8 },
};

static uint64_t nan_of(tutti_type type) /* positive, quiet, no payload */
{
	struct format f = formats[type];

	return ((1ull << f.exponent) - 1) << f.fraction | 1ull << (f.fraction - 1);
}

static long double meaning(uint64_t bits, tutti_type type)
{
	struct format f = formats[type];
	uint64_t fraction = bits & ((1ull << f.fraction) - 1), top = (1ull << f.exponent) - 1;
	uint64_t exponent = bits >> f.fraction & top;
	int bias = (1 << (f.exponent - 1)) - 1;
	long double sign = bits >> (f.fraction + f.exponent) & 1 ? -1.0L : 1.0L;

	if (exponent == top)
		return fraction ? (long double)NAN : sign * (long double)INFINITY;
	if (!exponent)
		return sign * ldexpl((long double)fraction, 1 - bias - f.fraction);
	return sign * ldexpl((long double)(fraction | 1ull << f.fraction), (int)exponent - bias - f.fraction);
}

static uint64_t nearest(long double value, tutti_type type)
{
	struct format f = formats[type];
	int bias = (1 << (f.exponent - 1)) - 1, exponent;
	uint64_t sign = (uint64_t)!!signbit(value) << (f.fraction + f.exponent), infinite = ((1ull << f.exponent) - 1) << f.fraction;

	if (isnan(value))
		return nan_of(type);
	if (isinf(value))
		return sign | infinite;
	frexpl(value, &exponent); /* value = 0.5 .. 1 times 2^exponent */
	exponent = exponent - 1 < 1 - bias ? 1 - bias : exponent - 1;
	/* In units of the last place: the mode of this thread is to nearest even. A carry runs on into the exponent. */
	uint64_t units = (uint64_t)rintl(ldexpl(fabsl(value), f.fraction - exponent));
	uint64_t bits = units < 1ull << f.fraction ? units : units + ((uint64_t)(exponent + bias - 1) << f.fraction);
	return sign | (!units ? 0 : bits >= infinite ? infinite : bits);
}

static uint64_t reference_real(uint64_t a, uint64_t b, tutti_type type, tutti_rule rule)
{
	long double x = meaning(a, type), y = meaning(b, type);

	if (isnan(x) || isnan(y))
		return nan_of(type);
	if (rule == TUTTI_MAX || rule == TUTTI_MIN) {
		bool first = x == y ? !!signbit(x) == (rule == TUTTI_MIN) : (x > y) == (rule == TUTTI_MAX);
		return first ? a : b;
	}
	/* f64 in its own arithmetic: the long double's 64 bits would round twice. The others fit. */
	if (type == TUTTI_F64)
		return nearest((long double)(rule == TUTTI_PRODUCT ? (double)x * (double)y : (double)x + (double)y), type);
	if (type != TUTTI_F32)
		return nearest(meaning(nearest(rule == TUTTI_PRODUCT ? x * y : x + y, TUTTI_F32), TUTTI_F32), type);
	return nearest((long double)(rule == TUTTI_PRODUCT ? (double)x * (double)y : (double)x + (double)y), type);
}

static uint64_t reference_integer(uint64_t a, uint64_t b, bool wide, tutti_rule rule)
{
	int64_t x = wide ? (int64_t)a : (int32_t)(uint32_t)a, y = wide ? (int64_t)b : (int32_t)(uint32_t)b;
	uint64_t r = rule == TUTTI_MAX ? (uint64_t)(x > y ? x : y) : rule == TUTTI_MIN ? (uint64_t)(x < y ? x : y)
	             : rule == TUTTI_PRODUCT ? (uint64_t)((unsigned __int128)a * b) : a + b;

	return wide ? r : (uint32_t)r;
}

static uint64_t reference(uint64_t a, uint64_t b, tutti_type type, tutti_rule rule)
{
	return is_integer(type) ? reference_integer(a, b, type == TUTTI_I64, rule) : reference_real(a, b, type, rule);
}

/* Values: any bits, and often the awkward ones. */

static uint64_t draw(tutti_type type)
{
	uint64_t mask = UINT64_MAX >> (64 - 8 * tt_type_size(type)), sign = mask ^ mask >> 1;

	if (is_integer(type)) {
		const uint64_t edges[] = { 0, 1, mask, sign, sign - 1, sign + 1, 2, 3 };
		return tt_random_below(&dice, 3) ? tt_random_next(&dice) & mask : edges[tt_random_below(&dice, TT_COUNT(edges))];
	}
	uint64_t infinite = nan_of(type) & ~(1ull << (formats[type].fraction - 1)), one = 1ull << formats[type].fraction;
	const uint64_t edges[] = { 0, sign, 1, sign | 1, one - 1, one, infinite, sign | infinite, infinite - 1, infinite | 1,
		                   sign | nan_of(type), nan_of(type) | 5 };
	uint64_t common = nearest((long double)(int64_t)(tt_random_next(&dice) >> 40) / 1048576 - 8, type);
	switch (tt_random_below(&dice, 4)) {
	case 0: return edges[tt_random_below(&dice, TT_COUNT(edges))];
	case 1: return common;
	default: return tt_random_next(&dice) & mask;
	}
}

static uint64_t element(const void *base, size_t i, tutti_type type)
{
	uint64_t bits = 0;

	memcpy(&bits, (const char *)base + i * tt_type_size(type), tt_type_size(type)); /* little-endian, as all of Tutti's hosts */
	return bits;
}

static void set_element(void *base, size_t i, tutti_type type, uint64_t bits)
{
	memcpy((char *)base + i * tt_type_size(type), &bits, tt_type_size(type));
}

static void fill(void *base, size_t count, tutti_type type)
{
	for (size_t i = 0; i < count; i++)
		set_element(base, i, type, draw(type));
}

static void complain(tutti_type type, tutti_rule rule, uint64_t a, uint64_t b, uint64_t got, uint64_t expected)
{
	printf("%s %s of %#llx and %#llx: %#llx instead of %#llx\n", type_names[type], rule_names[rule], (unsigned long long)a,
	       (unsigned long long)b, (unsigned long long)got, (unsigned long long)expected);
}

/* One call, at odd addresses, in both orders; nothing beside the vector may change. */
static bool try_vector(tutti_type type, tutti_rule rule, size_t count, size_t shift)
{
	static char room[4][MOST * 8 + 32];
	size_t bytes = count * tt_type_size(type);
	char *a = room[0] + shift, *b = room[1] + shift * 3 % 8, *was = room[2], *other = room[3] + 1;
	bool good = true;

	memset(room, 0x5a, sizeof room);
	fill(a, count, type);
	fill(b, count, type);
	memcpy(was, a, bytes);
	memcpy(other, b, bytes);
	tt_reduce(a, b, count, type, rule);
	tt_reduce(other, was, count, type, rule);
	for (size_t i = 0; i < count && good; i++) {
		uint64_t x = element(was, i, type), y = element(b, i, type), expected = reference(x, y, type, rule);
		good = element(a, i, type) == expected && element(other, i, type) == expected;
		if (!good)
			complain(type, rule, x, y, element(a, i, type) == expected ? element(other, i, type) : element(a, i, type), expected);
	}
	for (size_t i = 0; i < 8; i++)
		good = good && a[bytes + i] == 0x5a && (i >= shift || room[0][i] == 0x5a);
	return good;
}

/* valgrind computes long double in 64 bits, and keeps no floating-point modes: there these references are wrong. The code
 * is run all the same, for its memory. */
static bool is_emulated(void)
{
	volatile long double one = 1, small = 0x1p-60L;

	return one + small == one;
}

static void test_every_type_and_rule(void)
{
	static const size_t counts[] = { 0, 1, 7, 8, 64, 255, 257, MOST };

	for (int type = 0; type < TYPES; type++)
		for (int rule = 0; rule < RULES; rule++)
			for (size_t c = 0; c < TT_COUNT(counts); c++)
				for (size_t shift = 0; shift < 8; shift++)
					CU_ASSERT(try_vector((tutti_type)type, (tutti_rule)rule, counts[c], shift) || is_emulated());
}

static void test_sizes(void)
{
	static const size_t sizes[] = { 4, 8, 2, 2, 4, 8 };

	for (int type = 0; type < TYPES; type++)
		CU_ASSERT_EQUAL(tt_type_size((tutti_type)type), sizes[type]);
	CU_ASSERT_EQUAL(tt_type_size((tutti_type)TYPES), 0);
	CU_ASSERT_EQUAL(tt_type_size((tutti_type)-1), 0);
}

/* Every 16-bit value goes to f32 and back: the larger of it and itself is itself. */
static void test_halves_round_trip(tutti_type type)
{
	static uint16_t all[65536], same[65536];
	int wrong = 0;

	for (unsigned i = 0; i < 65536; i++)
		all[i] = same[i] = (uint16_t)i;
	tt_reduce(all, same, 65536, type, TUTTI_MAX);
	for (unsigned i = 0; i < 65536; i++)
		wrong += all[i] != (isnan(meaning(i, type)) ? nan_of(type) : i);
	CU_ASSERT_EQUAL(wrong, 0);
}

static void test_f16_round_trips(void) { test_halves_round_trip(TUTTI_F16); }
static void test_bf16_round_trips(void) { test_halves_round_trip(TUTTI_BF16); }

/* The same, but in vectors too short for the processor's own conversion: our own must say the same. */
static void test_f16_one_by_one(void)
{
	int wrong = 0;

	for (unsigned i = 0; i < 65536; i++)
		for (unsigned k = 0; k < 4; k++) {
			uint16_t a = (uint16_t)i, b = (uint16_t)(k ? tt_random_next(&dice) : i);
			uint64_t expected = reference(a, b, TUTTI_F16, (tutti_rule)k);
			tt_reduce(&a, &b, 1, TUTTI_F16, (tutti_rule)k);
			wrong += a != expected;
		}
	CU_ASSERT(wrong == 0 || is_emulated());
}

static uint64_t reference_scale(uint64_t bits, tutti_type type, unsigned n)
{
	if (type == TUTTI_I32)
		return (uint32_t)((int32_t)(uint32_t)bits / (int64_t)n);
	if (type == TUTTI_I64)
		return (uint64_t)((int64_t)bits / (int64_t)n);
	long double x = meaning(bits, type);
	if (type == TUTTI_F64)
		return nearest((long double)((double)x / (double)n), type);
	return nearest((long double)((float)x / (float)n), type);
}

static bool is_nan(uint64_t bits, tutti_type type) { return !is_integer(type) && isnan(meaning(bits, type)); }

static void test_scale(void)
{
	static const unsigned by[] = { 1, 2, 3, 7, 4096, 1u << 31, UINT32_MAX };
	static char room[MOST * 8 + 8], was[MOST * 8];

	for (int t = 0; t < TYPES; t++)
		for (size_t k = 0; k < TT_COUNT(by); k++) {
			tutti_type type = (tutti_type)t;
			int wrong = 0;
			fill(room + k, MOST, type);
			memcpy(was, room + k, MOST * tt_type_size(type));
			tt_scale(room + k, MOST, type, by[k]);
			for (size_t i = 0; i < MOST; i++) {
				uint64_t got = element(room + k, i, type), expected = reference_scale(element(was, i, type), type, by[k]);
				wrong += is_nan(expected, type) ? !is_nan(got, type) : got != expected;
			}
			CU_ASSERT(wrong == 0 || is_emulated());
		}
}

static void test_integers_wrap_and_round_to_zero(void)
{
	int32_t a[] = { INT32_MAX, -7, 7 }, one[] = { 1, 0, 0 };
	int64_t b[] = { INT64_MIN, -7 }, minus[] = { -1, 0 };

	tt_reduce(a, one, 3, TUTTI_I32, TUTTI_SUM);
	CU_ASSERT_EQUAL(a[0], INT32_MIN);
	tt_scale(a, 3, TUTTI_I32, 2);
	CU_ASSERT_EQUAL(a[1], -3);
	CU_ASSERT_EQUAL(a[2], 3);
	tt_reduce(b, minus, 2, TUTTI_I64, TUTTI_AVERAGE);
	CU_ASSERT_EQUAL(b[0], INT64_MAX);
	tt_scale(b, 2, TUTTI_I64, 2);
	CU_ASSERT_EQUAL(b[1], -3);
}

static void test_signed_zeros(void)
{
	float a[] = { -0.0f, 0.0f, -0.0f }, b[] = { 0.0f, -0.0f, -0.0f };

	tt_reduce(a, b, 3, TUTTI_F32, TUTTI_MAX);
	CU_ASSERT(!signbit(a[0]) && !signbit(a[1]) && signbit(a[2]));
	a[0] = a[2] = -0.0f;
	a[1] = 0.0f;
	tt_reduce(a, b, 3, TUTTI_F32, TUTTI_MIN);
	CU_ASSERT(signbit(a[0]) && signbit(a[1]) && signbit(a[2]));
}

/* PyTorch can set its threads to flush subnormals; a rank whose background thread adds must come to the same sum. */
static void test_the_callers_modes_do_not_count(void)
{
#ifdef __x86_64__
	const uint32_t small = 0x00000005; /* 5 times 2^-149 */
	uint32_t a[9], b[9];
	unsigned had = _mm_getcsr(), wanted = had | 0x8040 | 0x6000; /* flush, subnormals are zeros, round towards zero */

	for (int i = 0; i < 9; i++)
		a[i] = b[i] = small;
	_mm_setcsr(wanted);
	tt_reduce(a, b, 9, TUTTI_F32, TUTTI_SUM);
	unsigned left = _mm_getcsr();
	_mm_setcsr(had);
	CU_ASSERT(((left ^ wanted) & ~0x3fu) == 0 || is_emulated());
	for (int i = 0; i < 9; i++)
		CU_ASSERT_EQUAL(a[i], 2 * small);
#endif
}

static CU_TestInfo reduce_tests[] = {
	{ "sizes", test_sizes },
	{ "every type and rule", test_every_type_and_rule },
	{ "f16 round trips", test_f16_round_trips },
	{ "bf16 round trips", test_bf16_round_trips },
	{ "f16 one by one", test_f16_one_by_one },
	{ "scale", test_scale },
	{ "integers", test_integers_wrap_and_round_to_zero },
	{ "signed zeros", test_signed_zeros },
	{ "floating-point modes", test_the_callers_modes_do_not_count },
	CU_TEST_INFO_NULL,
};
static CU_SuiteInfo suites[] = { { "reduce", NULL, NULL, NULL, NULL, reduce_tests }, CU_SUITE_INFO_NULL };

int main(int argc, char **argv)
{
	tt_random_seed(&dice, 20240607);
	return run_suites(suites, argc, argv);
}
