/* unit_reduce.c - the element-wise kernels of each set of instructions, against a plain reading of what types and rules
 * mean */
#include "kernel/kernel.h"
#include "tests/harness/cunit_main.h"
#include "tests/kernel/formats.h"
#include <stdlib.h>
#ifdef __x86_64__
#include <xmmintrin.h>
#endif

enum { TYPES = TUTTI_BOOL + 1, RULES = TUTTI_BXOR + 1, MOST = 1000 };

static const char *const rule_names[] = { "sum", "average", "product", "max", "min", "band", "bor", "bxor" };
static struct tt_random dice;

/* The reference. Slow and plain on purpose. */

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
		return nearest((long double)(rule == TUTTI_PRODUCT ? (double)x * (double)y : (double)x + (double)y),
		               type);
	if (type != TUTTI_F32)
		return nearest(meaning(nearest(rule == TUTTI_PRODUCT ? x * y : x + y, TUTTI_F32), TUTTI_F32), type);
	return nearest((long double)(rule == TUTTI_PRODUCT ? (double)x * (double)y : (double)x + (double)y), type);
}

static int64_t value_of(uint64_t bits, tutti_type type)
{
	switch (type) {
	case TUTTI_I32: return (int32_t)(uint32_t)bits;
	case TUTTI_I8: return (int8_t)(uint8_t)bits;
	case TUTTI_BOOL: return bits != 0;
	default: return (int64_t)bits;
	}
}

static uint64_t bits_of(uint64_t value, tutti_type type)
{
	return type == TUTTI_I64 ? value : type == TUTTI_I32 ? (uint32_t)value : (uint8_t)value;
}

static uint64_t reference_integer(uint64_t a, uint64_t b, tutti_type type, tutti_rule rule)
{
	int64_t x = value_of(a, type), y = value_of(b, type);

	switch (rule) {
	case TUTTI_MAX: return bits_of((uint64_t)(x > y ? x : y), type);
	case TUTTI_MIN: return bits_of((uint64_t)(x < y ? x : y), type);
	case TUTTI_PRODUCT: return bits_of((uint64_t)x * (uint64_t)y, type);
	case TUTTI_BAND: return bits_of((uint64_t)x & (uint64_t)y, type);
	case TUTTI_BOR: return bits_of((uint64_t)x | (uint64_t)y, type);
	case TUTTI_BXOR: return bits_of((uint64_t)x ^ (uint64_t)y, type);
	default: return type == TUTTI_BOOL ? x || y : bits_of((uint64_t)x + (uint64_t)y, type);
	}
}

static uint64_t reference(uint64_t a, uint64_t b, tutti_type type, tutti_rule rule)
{
	return is_integer(type) ? reference_integer(a, b, type, rule) : reference_real(a, b, type, rule);
}

/* Values: any bits, and often the awkward ones. */

static uint64_t draw(tutti_type type)
{
	uint64_t mask = UINT64_MAX >> (64 - 8 * tt_type_size(type)), sign = mask ^ mask >> 1;

	if (is_integer(type)) {
		const uint64_t edges[] = { 0, 1, mask, sign, sign - 1, sign + 1, 2, 3 };
		return tt_random_below(&dice, 3) ? tt_random_next(&dice) & mask
		                                 : edges[tt_random_below(&dice, TT_COUNT(edges))];
	}
	uint64_t infinite = nan_of(type) & ~(1ull << (formats[type].fraction - 1)),
		 one = 1ull << formats[type].fraction;
	const uint64_t edges[] = { 0,
		                   sign,
		                   1,
		                   sign | 1,
		                   one - 1,
		                   one,
		                   infinite,
		                   sign | infinite,
		                   infinite - 1,
		                   infinite | 1,
		                   sign | nan_of(type),
		                   nan_of(type) | 5 };
	uint64_t common = nearest((long double)(int64_t)(tt_random_next(&dice) >> 40) / 1048576 - 8, type);
	switch (tt_random_below(&dice, 4)) {
	case 0: return edges[tt_random_below(&dice, TT_COUNT(edges))];
	case 1: return common;
	default: return tt_random_next(&dice) & mask;
	}
}

static bool takes(int type, int rule) { return tt_rule_takes((tutti_rule)rule, (tutti_type)type); }

static void fill(void *base, size_t count, tutti_type type)
{
	for (size_t i = 0; i < count; i++)
		set_element(base, i, type, draw(type));
}

static void complain(tutti_type type, tutti_rule rule, uint64_t a, uint64_t b, uint64_t got, uint64_t expected)
{
	if (!is_emulated())
		printf("%s %s of %#llx and %#llx: %#llx instead of %#llx\n", type_names[type], rule_names[rule],
		       (unsigned long long)a, (unsigned long long)b, (unsigned long long)got,
		       (unsigned long long)expected);
}

/* In place at odd addresses, in both orders, and out of place; nothing beside the vector may change. */
static bool try_vector(tutti_type type, tutti_rule rule, size_t count, size_t shift)
{
	static char room[5][MOST * 8 + 32];
	size_t bytes = count * tt_type_size(type);
	char *a = room[0] + shift, *b = room[1] + shift * 3 % 8, *was = room[2], *other = room[3] + 1,
	     *to = room[4] + shift * 5 % 8;
	bool good = true;

	memset(room, 0x5a, sizeof room);
	fill(a, count, type);
	fill(b, count, type);
	memcpy(was, a, bytes);
	memcpy(other, b, bytes);
	tt_reduce(a, b, count, type, rule);
	tt_reduce(other, was, count, type, rule);
	tt_reduce_to(to, was, b, count, type, rule);
	for (size_t i = 0; i < count && good; i++) {
		uint64_t x = element(was, i, type), y = element(b, i, type), expected = reference(x, y, type, rule);
		good = element(a, i, type) == expected && element(other, i, type) == expected;
		if (!good)
			complain(type, rule, x, y,
			         element(a, i, type) == expected ? element(other, i, type) : element(a, i, type),
			         expected);
	}
	for (size_t i = 0; i < 8; i++)
		good = good && a[bytes + i] == 0x5a && to[bytes + i] == 0x5a && (i >= shift || room[0][i] == 0x5a);
	good = good && !memcmp(to, a, bytes);
	tt_reduce_to(b, was, b, count, type, rule);
	return good && !memcmp(b, a, bytes);
}

static void test_every_type_and_rule(void)
{
	static const size_t counts[] = { 0, 1, 7, 8, 64, 255, 257, MOST };

	for (int type = 0; type < TYPES; type++)
		for (int rule = 0; rule < RULES; rule++)
			for (size_t c = 0; takes(type, rule) && c < TT_COUNT(counts); c++)
				for (size_t shift = 0; shift < 8; shift++)
					CU_ASSERT(try_vector((tutti_type)type, (tutti_rule)rule, counts[c], shift) ||
					          is_emulated());
}

static void test_sizes(void)
{
	static const size_t sizes[] = { 4, 8, 2, 2, 4, 8, 1, 1, 1 };

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
	if (is_integer(type))
		return bits_of((uint64_t)(value_of(bits, type) / (int64_t)n), type);
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
		for (size_t k = 0; t != TUTTI_BOOL && k < TT_COUNT(by); k++) {
			tutti_type type = (tutti_type)t;
			int wrong = 0;
			fill(room + k, MOST, type);
			memcpy(was, room + k, MOST * tt_type_size(type));
			tt_scale(room + k, MOST, type, by[k]);
			for (size_t i = 0; i < MOST; i++) {
				uint64_t got = element(room + k, i, type),
					 expected = reference_scale(element(was, i, type), type, by[k]);
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

/* One vector alone is combined, too: BOOL becomes 0 or 1. */
static void test_alone(void)
{
	uint8_t truths[] = { 0, 1, 2, 255, 0, 128 };
	const uint8_t clean[] = { 0, 1, 1, 1, 0, 1 };

	tt_reduce_alone(truths, sizeof truths, TUTTI_U8);
	CU_ASSERT(truths[3] == 255);
	tt_reduce_alone(truths, sizeof truths, TUTTI_BOOL);
	CU_ASSERT(!memcmp(truths, clean, sizeof clean));
}

static void test_rules(void)
{
	int taken = 0;

	for (int type = 0; type < TYPES; type++)
		for (int rule = 0; rule < RULES; rule++)
			taken += tt_rule_takes((tutti_rule)rule, (tutti_type)type);
	CU_ASSERT_EQUAL(taken, 4 * 5 + 4 * 8 + 7);
	CU_ASSERT(!tt_rule_takes(TUTTI_AVERAGE, TUTTI_BOOL) && !tt_rule_takes(TUTTI_BAND, TUTTI_BF16));
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

/* A tile of 16-bit numbers is looked through for NaNs at once: one is found wherever it is. */
static void test_one_nan(void)
{
	enum { TILE = 256, ODD = 37 };
	uint16_t a[TILE + ODD], ones[TILE + ODD], pair[TILE + ODD], many[TILE + ODD];
	const void *from[] = { a, ones };
	void *to[] = { many };

	for (int type = TUTTI_F16; type <= TUTTI_BF16; type++)
		for (size_t at = 0; at < TT_COUNT(a); at++) {
			int wrong = 0;
			for (size_t i = 0; i < TT_COUNT(a); i++)
				a[i] = ones[i] = (uint16_t)nearest(1, (tutti_type)type);
			a[at] = 0xffff; /* a negative NaN with a payload */
			tt_reduce_to(pair, a, ones, TT_COUNT(a), (tutti_type)type, TUTTI_SUM);
			tt_reduce_many(&(struct tt_many){ from, to, 2, 1, false }, TT_COUNT(a), (tutti_type)type,
			               TUTTI_SUM);
			for (size_t i = 0; i < TT_COUNT(a); i++) {
				uint64_t sum = i == at ? nan_of((tutti_type)type) : nearest(2, (tutti_type)type);
				wrong += pair[i] != sum || many[i] != sum;
			}
			CU_ASSERT_EQUAL(wrong, 0);
		}
}

/* PyTorch can set its threads to flush subnormals; a rank whose background thread adds must come to the same sum. */
static void test_the_callers_modes_do_not_count(void)
{
#ifdef __x86_64__
	const uint32_t small = 0x00000005; /* 5 times 2^-149 */
	uint32_t a[9], b[9], c[9], d[9], e[9], f[9] = { 0 }, center[9] = { 0 };
	const void *from[] = { a, b };
	void *to[] = { d };
	/* flush, subnormals are zeros, round towards zero */
	unsigned had = _mm_getcsr(), wanted = had | 0x8040 | 0x6000;

	for (int i = 0; i < 9; i++)
		a[i] = b[i] = small;
	_mm_setcsr(wanted);
	tt_reduce(a, b, 9, TUTTI_F32, TUTTI_SUM);
	tt_reduce_to(c, a, b, 9, TUTTI_F32, TUTTI_SUM);
	tt_reduce_many(&(struct tt_many){ from, to, 2, 1, false }, 9, TUTTI_F32, TUTTI_SUM);
	tt_blend(e, 1, a, 2, b, 9, TUTTI_F32);
	tt_elastic_round(a, center, NULL, f, 1, 9, TUTTI_F32);
	unsigned left = _mm_getcsr();
	_mm_setcsr(had);
	CU_ASSERT(((left ^ wanted) & ~0x3fu) == 0 || is_emulated());
	for (int i = 0; i < 9; i++) {
		CU_ASSERT_EQUAL(f[i], 2 * small);
		CU_ASSERT(a[i] == 0 && c[i] == 3 * small && d[i] == 3 * small && e[i] == 4 * small);
	}
#endif
}

/* Many inputs, many outputs. 16 bits are computed in f32, and rounded once. */

static tutti_type number_of(tutti_type type) { return type == TUTTI_F16 || type == TUTTI_BF16 ? TUTTI_F32 : type; }

static uint64_t convert(uint64_t bits, tutti_type from, tutti_type to)
{
	return from == to ? bits : nearest(meaning(bits, from), to);
}

static uint64_t clean(uint64_t bits, tutti_type type) { return is_nan(bits, type) ? nan_of(type) : bits; }

static uint64_t reference_many(const uint64_t *in, int inputs, tutti_type type, tutti_rule rule)
{
	tutti_type number = number_of(type);
	uint64_t all = clean(convert(in[0], type, number), number);

	if (type == TUTTI_BOOL)
		all = all != 0;
	for (int k = 1; k < inputs; k++)
		all = reference(all, convert(in[k], type, number), number, rule);
	if (rule == TUTTI_AVERAGE)
		all = clean(reference_scale(all, number, (unsigned)inputs), number);
	return clean(convert(all, number, type), type);
}

enum { VECTORS = 5, EDGE = 64 };
static char many_room[2 * VECTORS][2 * EDGE + MOST * 8 + EDGE] __attribute__((aligned(64)));

/* Outputs that are other vectors, or (in place) as many of the inputs themselves. */
static bool try_many(tutti_type type, tutti_rule rule, int inputs, int outputs, size_t count, size_t shift,
                     bool in_place, bool stream)
{
	static char was[VECTORS][MOST * 8];
	const void *from[VECTORS];
	void *to[VECTORS];
	size_t bytes = count * tt_type_size(type);
	bool good = true;

	memset(many_room, 0x5a, sizeof many_room);
	for (int k = 0; k < VECTORS; k++) {
		/* alike within a line, or (odd shifts) each otherwise: then nothing may be streamed */
		size_t at = shift + (shift % 2 ? (size_t)k : 0);
		char *a = many_room[k] + at, *b = many_room[VECTORS + k] + at;
		fill(a, count, type);
		memcpy(was[k], a, bytes);
		from[k] = a;
		to[k] = in_place ? a : b;
	}
	tt_reduce_many(&(struct tt_many){ from, to, inputs, outputs, stream }, count, type, rule);
	for (size_t i = 0; i < count && good; i++) {
		uint64_t in[VECTORS], expected;
		for (int k = 0; k < inputs; k++)
			in[k] = element(was[k], i, type);
		expected = reference_many(in, inputs, type, rule);
		for (int k = 0; k < outputs && good; k++)
			if (!(good = element(to[k], i, type) == expected))
				complain(type, rule, in[0], in[1], element(to[k], i, type), expected);
	}
	for (int k = 0; k < VECTORS; k++) {
		bool written = k < outputs;
		char *at = (char *)to[k];
		good = good && at[-1] == 0x5a && at[bytes] == 0x5a;
		good = good && (written || (in_place ? !memcmp(at, was[k], bytes) : at[0] == 0x5a));
	}
	return good;
}

static void test_many(void)
{
	static const size_t counts[] = { 1, 3, 31, 64, 129, 333 };
	static const size_t shifts[] = { 1, 8, 64 - 4, 63 };

	for (int type = 0; type < TYPES; type++)
		for (int rule = 0; rule < RULES; rule++)
			for (size_t c = 0; takes(type, rule) && c < TT_COUNT(counts); c++)
				for (int how = 0; how < 4; how++) {
					int inputs = 1 + (int)tt_random_below(&dice, VECTORS),
					    outputs = 1 + (int)tt_random_below(&dice, VECTORS);
					bool in_place = how & 1, stream = how & 2;
					if (in_place && outputs > inputs)
						outputs = inputs;
					CU_ASSERT(try_many((tutti_type)type, (tutti_rule)rule, inputs, outputs,
					                   counts[c], shifts[tt_random_below(&dice, TT_COUNT(shifts))],
					                   in_place, stream) ||
					          is_emulated());
				}
}

/* Ties go to even, and many are rounded once: 1 and three fourths of a last place, of which none alone would count. */
static void try_rounding(tutti_type type, uint16_t one, uint16_t quarter, uint16_t half)
{
	const uint16_t in[4][2] = { { one, one }, { quarter, half }, { quarter, 0 }, { quarter, 0 } }, odd = one + 1;
	const void *from[] = { in[0], in[1], in[2], in[3] };
	uint16_t all[2], up = odd, down = one;
	void *to[] = { all };

	tt_reduce_many(&(struct tt_many){ from, to, 4, 1, false }, 2, type, TUTTI_SUM);
	CU_ASSERT_EQUAL(all[0], one + 1);
	CU_ASSERT_EQUAL(all[1], one);
	tt_reduce(&up, &half, 1, type, TUTTI_SUM);
	CU_ASSERT_EQUAL(up, one + 2);
	tt_reduce(&down, &half, 1, type, TUTTI_SUM);
	tt_reduce(&down, &quarter, 1, type, TUTTI_SUM);
	CU_ASSERT_EQUAL(down, one);
}

static void test_rounding(void)
{
	try_rounding(TUTTI_F16, 0x3c00, 0x0c00, 0x1000);  /* 2^-12, 2^-11 */
	try_rounding(TUTTI_BF16, 0x3f80, 0x3b00, 0x3b80); /* 2^-9, 2^-8 */
}

/* What is stored past the caches, from 4 MiB on, is the same. */
static void test_large(void)
{
	enum { BYTES = (4 << 20) + 1000 };
	/* to lies otherwise than both */
	char *room = malloc(3 * (BYTES + 128)), *a = room + 6, *b = a + BYTES + 64 - 6, *to = b + BYTES + 64 + 8;

	for (int t = 0; t < TYPES; t++) {
		size_t count = BYTES / tt_type_size((tutti_type)t), bytes = count * tt_type_size((tutti_type)t);
		for (size_t i = 0; i < BYTES; i++)
			a[i] = (char)(i * 7 + i / 999), b[i] = (char)(i * 11);
		tt_reduce_to(to, a, b, count, (tutti_type)t, TUTTI_SUM);
		if (!is_integer((tutti_type)t)) {
			double x = 0.25, y = -3;
			tt_blend(to, x, a, y, b, count, (tutti_type)t);
			tt_blend(a, x, a, y, b, count, (tutti_type)t);
		} else {
			tt_reduce(a, b, count, (tutti_type)t, TUTTI_SUM);
		}
		CU_ASSERT(!memcmp(a, to, bytes));
		tt_reduce_to(to, a, b, count, (tutti_type)t, TUTTI_MAX);
		tt_reduce(a, b, count, (tutti_type)t, TUTTI_MAX);
		CU_ASSERT(!memcmp(a, to, bytes));
	}
	free(room);
}

/* The fused ones. */

static uint64_t negate(uint64_t bits, tutti_type type)
{
	return bits ^ 1ull << (formats[type].fraction + formats[type].exponent);
}

static uint64_t reference_blend(double by_a, uint64_t a, double by_b, uint64_t b, tutti_type type)
{
	tutti_type n = number_of(type);
	uint64_t x = reference(nearest((long double)by_a, n), convert(a, type, n), n, TUTTI_PRODUCT);
	uint64_t y = reference(nearest((long double)by_b, n), convert(b, type, n), n, TUTTI_PRODUCT);

	return convert(reference(x, y, n, TUTTI_SUM), n, type);
}

static const struct {
	size_t count, shift;
} shapes[] = { { 0, 0 }, { 1, 1 }, { 7, 2 }, { 64, 0 }, { 131, 3 }, { MOST, 5 } };

static bool try_blend(tutti_type type, double by_a, double by_b, size_t count, size_t shift)
{
	static char room[3][MOST * 8 + 16];
	size_t bytes = count * tt_type_size(type);
	char *a = room[0] + shift, *b = room[1] + 1, *to = room[2] + 2;
	bool good = true;

	memset(room, 0x5a, sizeof room);
	fill(a, count, type);
	fill(b, count, type);
	tt_blend(to, by_a, a, by_b, b, count, type);
	for (size_t i = 0; i < count && good; i++) {
		uint64_t x = element(a, i, type), y = element(b, i, type),
			 expected = reference_blend(by_a, x, by_b, y, type);
		if (!(good = element(to, i, type) == expected))
			complain(type, TUTTI_SUM, x, y, element(to, i, type), expected);
	}
	tt_blend(a, by_a, a, by_b, b, count, type);
	return good && !memcmp(a, to, bytes) && to[bytes] == 0x5a && a[bytes] == 0x5a;
}

/* Element i of a center of 16 bits, in f32. In every third place somebody has set the center since. */
static uint64_t wide_center(size_t i, uint64_t center, tutti_type type, tutti_type n)
{
	uint64_t c = convert(center, type, n), more = nearest(meaning(c, n) * (1 + 0x1p-14L), n);

	return n == type || i % 3 == 2 || convert(more, n, type) != center ? c : more;
}

/* Sums, then the move, which is rounded before it is used; so is the center, but for 16 bits. */
static bool try_elastic_round(tutti_type type, double alpha, size_t count, size_t shift, bool moves)
{
	static char room[4][MOST * 8 + 16], was[3][MOST * 8];
	size_t bytes = count * tt_type_size(type);
	char *v[3] = { room[0] + shift, room[1] + 1, room[2] + 2 }, *wide = room[3] + 1; /* x, center, sum */
	tutti_type n = number_of(type);
	bool good = true;

	memset(room, 0x5a, sizeof room);
	for (int k = 0; k < 3; k++) {
		fill(v[k], count, type);
		memcpy(was[k], v[k], bytes);
	}
	for (size_t i = 0; i < count; i++)
		set_element(wide, i, n, i % 3 == 2 ? nearest(12345, n) :
		                                     wide_center(i, element(v[1], i, type), type, n));
	tt_elastic_round(moves ? v[0] : NULL, v[1], n == type ? NULL : wide, v[2], alpha, count, type);
	for (size_t i = 0; i < count && good; i++) {
		uint64_t x = convert(element(was[0], i, type), type, n);
		uint64_t c = wide_center(i, element(was[1], i, type), type, n);
		uint64_t sum = convert(element(was[2], i, type), type, n), center = reference(c, sum, n, TUTTI_SUM);
		uint64_t apart = reference(x, negate(center, n), n, TUTTI_SUM);
		uint64_t move = convert(reference(nearest((long double)alpha, n), apart, n, TUTTI_PRODUCT), n, type);
		x = convert(reference(x, negate(convert(move, type, n), n), n, TUTTI_SUM), n, type);
		good = element(v[1], i, type) == convert(center, n, type) &&
		       element(v[0], i, type) == (moves ? x : element(was[0], i, type)) &&
		       element(v[2], i, type) == (moves ? move : element(was[2], i, type)) &&
		       (n == type || element(wide, i, n) == center);
		if (!good)
			complain(type, TUTTI_SUM, element(was[0], i, type), element(was[1], i, type),
			         element(v[0], i, type), x);
	}
	return good && v[0][bytes] == 0x5a && v[1][bytes] == 0x5a && v[2][bytes] == 0x5a &&
	       wide[count * tt_type_size(n)] == 0x5a;
}

static void test_fused(void)
{
	static const double factors[] = { 1, 0.5, 0.3, -2.7e-5, 0 };

	for (int type = 0; type <= TUTTI_BF16; type++)
		for (size_t s = 0; s < TT_COUNT(shapes); s++)
			for (size_t f = 0; f < TT_COUNT(factors); f++) {
				double w = factors[f];
				CU_ASSERT(try_blend((tutti_type)type, 1 - w, w, shapes[s].count, shapes[s].shift) ||
				          is_emulated());
				CU_ASSERT(try_blend((tutti_type)type, 1, w, shapes[s].count, shapes[s].shift) ||
				          is_emulated());
				for (int moves = 0; moves < 2; moves++)
					CU_ASSERT(try_elastic_round((tutti_type)type, w, shapes[s].count,
					                            shapes[s].shift, moves) ||
					          is_emulated());
			}
}

/* All of bf16, and f32 on both sides of each and halfway to the next. */
static void test_between_f32_and_bf16(void)
{
	enum { ALL = 1 << 16, EACH = 4 };
	static const uint32_t low[EACH] = { 0, 0x7fff, 0x8000, 0x8001 };
	static uint16_t half[ALL * EACH + 1];
	static uint32_t wide[ALL * EACH + 1];
	char *odd_half = (char *)half + 1, *odd_wide = (char *)wide + 1; /* any alignment */
	size_t wrong = 0;

	for (uint32_t i = 0; i < ALL; i++)
		half[i] = (uint16_t)i;
	tt_to_f32(odd_wide, half, ALL, TUTTI_BF16);
	for (uint32_t i = 0; i < ALL; i++) {
		uint32_t bits;
		memcpy(&bits, odd_wide + i * sizeof bits, sizeof bits);
		wrong += bits != i << 16;
	}
	CU_ASSERT_EQUAL(wrong, 0);
	for (uint32_t i = 0; i < ALL * EACH; i++)
		wide[i] = (i / EACH) << 16 | low[i % EACH];
	tt_from_f32(odd_half, wide, ALL * EACH, TUTTI_BF16);
	for (uint32_t i = 0; i < ALL * EACH; i++) {
		uint16_t bits;
		memcpy(&bits, odd_half + i * sizeof bits, sizeof bits);
		wrong += bits != nearest(meaning(wide[i], TUTTI_F32), TUTTI_BF16);
	}
	CU_ASSERT(wrong == 0 || is_emulated());
}

/* All of f16, and f32 on both sides of each and halfway to the next. */
static void test_between_f32_and_f16(void)
{
	enum { ALL = 1 << 16, EACH = 4 };
	static const uint32_t more[EACH] = { 0, 0x0fff, 0x1000, 0x1001 };
	static uint16_t half[ALL * EACH];
	static uint32_t wide[ALL * EACH];
	size_t wrong = 0;

	for (uint32_t i = 0; i < ALL; i++)
		half[i] = (uint16_t)i;
	tt_to_f32(wide, half, ALL, TUTTI_F16);
	for (uint32_t i = 0; i < ALL; i++)
		wrong += wide[i] != nearest(meaning(half[i], TUTTI_F16), TUTTI_F32) && (i & 0x7fff) <= 0x7c00;
	CU_ASSERT(wrong == 0 || is_emulated());
	for (uint32_t i = ALL; i-- > 0;)
		for (uint32_t k = 0; k < EACH; k++)
			wide[i * EACH + k] = wide[i] + more[k];
	tt_from_f32(half, wide, ALL * EACH, TUTTI_F16);
	for (uint32_t i = 0; i < ALL * EACH; i++)
		wrong += half[i] != nearest(meaning(wide[i], TUTTI_F32), TUTTI_F16);
	CU_ASSERT(wrong == 0 || is_emulated());
}

/* Distances: the plain sum, in long double. */
static void test_distance(void)
{
	static char a[2000 * 8 + 1], b[2000 * 8 + 1];
	static const size_t counts[] = { 0, 1, 15, 16, 255, 256, 257, 2000 };

	for (int t = 0; t < TYPES; t++)
		for (size_t k = 0; k < sizeof counts / sizeof *counts && !is_integer((tutti_type)t); k++) {
			tutti_type type = (tutti_type)t;
			long double sum = 0, square = 0;
			for (size_t i = 0; i < counts[k]; i++) {
				uint64_t x = nearest((long double)i / 7 - 100, type);
				uint64_t y = nearest(3 - (long double)i / 3, type);
				memcpy(a + 1 + i * tt_type_size(type), &x, tt_type_size(type));
				memcpy(b + 1 + i * tt_type_size(type), &y, tt_type_size(type));
				long double d = meaning(x, type) - meaning(y, type);
				sum += d * d;
				square += meaning(x, type) * meaning(x, type);
			}
			CU_ASSERT(fabsl(tt_square_distance(a + 1, b + 1, counts[k], type) - sum) <= 1e-12L * sum);
			CU_ASSERT(fabsl(tt_square_distance(a + 1, NULL, counts[k], type) - square) <= 1e-12L * square);
		}
	uint64_t tiny = nearest(-3 * 0x1p-24L, TUTTI_F16), infinity = nearest(1e9L, TUTTI_F16);
	CU_ASSERT(tt_square_distance(&tiny, NULL, 1, TUTTI_F16) == 9 * 0x1p-48);
	CU_ASSERT(isinf(tt_square_distance(&infinity, NULL, 1, TUTTI_F16)));
}

static CU_TestInfo reduce_tests[] = {
	{ "distance", test_distance },
	{ "sizes", test_sizes },
	{ "every type and rule", test_every_type_and_rule },
	{ "f16 round trips", test_f16_round_trips },
	{ "bf16 round trips", test_bf16_round_trips },
	{ "f16 one by one", test_f16_one_by_one },
	{ "scale", test_scale },
	{ "alone", test_alone },
	{ "rules", test_rules },
	{ "integers", test_integers_wrap_and_round_to_zero },
	{ "signed zeros", test_signed_zeros },
	{ "one NaN", test_one_nan },
	{ "floating-point modes", test_the_callers_modes_do_not_count },
	{ "many", test_many },
	{ "rounding", test_rounding },
	{ "large", test_large },
	{ "fused", test_fused },
	{ "between f32 and bf16", test_between_f32_and_bf16 },
	{ "between f32 and f16", test_between_f32_and_f16 },
	CU_TEST_INFO_NULL,
};

/* Each set of instructions that this processor has. */

static int use_plain(void) { return !tt_reduce_use(0); }
static int use_avx2(void) { return !tt_reduce_use(1); }
static int use_avx512(void) { return !tt_reduce_use(2); }

int main(int argc, char **argv)
{
	CU_SuiteInfo suites[] = { { "reduce plain", use_plain, NULL, NULL, NULL, reduce_tests },
		                  { "reduce AVX2", use_avx2, NULL, NULL, NULL, reduce_tests },
		                  { "reduce AVX-512", use_avx512, NULL, NULL, NULL, reduce_tests },
		                  CU_SUITE_INFO_NULL };

	for (int level = 0; level < 3; level++)
		if (!tt_reduce_use(level)) {
			printf("not on this processor: %s\n", suites[level].pName);
			suites[level] = (CU_SuiteInfo)CU_SUITE_INFO_NULL;
		}
	tt_random_seed(&dice, 20240607);
	return run_suites(suites, argc, argv);
}
