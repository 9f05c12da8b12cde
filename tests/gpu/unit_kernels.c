/* unit_kernels.c - a GPU's kernels give the bits of the processor's: all types, alignments, counts; in place, too.
 *
 * The kernels run as the compiler of the processor made them. What a GPU's compiler makes of the same text is looked at
 * by tests/gpu/ptx.sh, and run by tests/gpu/device.sh. */
#include "kernel/kernel.h"
#include "tests/gpu/fake_kernels.h"
#include "tests/harness/cunit_main.h"
#include "tests/kernel/formats.h"
#include <stdlib.h>

enum { MOST = 5000, ROOM = MOST * 8 + 64, GUARD = 0x5a };

static const tutti_type reals[] = { TUTTI_F32, TUTTI_F64, TUTTI_F16, TUTTI_BF16 };
static const tutti_type divided[] = { TUTTI_F32, TUTTI_F64, TUTTI_F16, TUTTI_BF16,
	                              TUTTI_I32, TUTTI_I64, TUTTI_I8,  TUTTI_U8 };
static struct tt_random dice;
static _Alignas(16) char a[ROOM], b[ROOM], mine[ROOM], theirs[ROOM];

/* Any bits; often a number near one, a zero, an infinity, a NaN, the smallest numbers. */
static void fill(char *at, size_t count, tutti_type type)
{
	for (size_t i = 0; i < count; i++) {
		uint64_t bits = tt_random_next(&dice), kind = tt_random_below(&dice, 4);

		if (!is_integer(type) && kind == 0)
			bits = nearest((long double)(1 + tt_random_below(&dice, 1000)) / 300, type);
		else if (!is_integer(type) && kind == 1)
			bits = (bits & 1) << (8 * tt_type_size(type) - 1) |
			       (bits & 2 ? nan_of(type) * (bits >> 2 & 1) : bits >> 60);
		set_element(at, i, type, bits);
	}
}

static uint64_t word_of(double x)
{
	uint64_t word;

	memcpy(&word, &x, sizeof word);
	return word;
}

static void run(const char *what, tutti_type type, unsigned blocks, const uint64_t *words)
{
	char name[32];

	snprintf(name, sizeof name, "%s_%s", what, type_names[type]);
	fake_kernel *kernel = fake_kernel_find(name);
	CU_ASSERT_PTR_NOT_NULL_FATAL(kernel);
	fake_kernel_run(kernel, blocks, 256, words);
}

static unsigned some_blocks(void) { return 1 + (unsigned)tt_random_below(&dice, 3); }

/* in: 0: `to` is another memory; 1: it is a; 2: it is b. The same call on both, and what lies around stays. */
static bool blend_is_equal(tutti_type type, size_t to_at, size_t a_at, size_t b_at, size_t count, int in)
{
	const double by_a = (double)tt_random_below(&dice, 1000) / 999;
	const double by_b = tt_random_below(&dice, 4) ? 1 - by_a : -3;
	char *source[] = { a + a_at, b + b_at };

	fill(source[0], count, type);
	fill(source[1], count, type);
	memset(mine, GUARD, sizeof mine);
	if (in)
		memcpy(mine + to_at, source[in - 1], count * tt_type_size(type));
	memcpy(theirs, mine, sizeof mine);
	tt_blend(mine + to_at, by_a, in == 1 ? mine + to_at : source[0], by_b, in == 2 ? mine + to_at : source[1],
	         count, type);
	char *to = theirs + to_at;
	run("blend", type, some_blocks(),
	    (const uint64_t[]){ (uint64_t)to, (uint64_t)(in == 1 ? to : source[0]),
	                        (uint64_t)(in == 2 ? to : source[1]), word_of(by_a), word_of(by_b), count, 0 });
	return !memcmp(mine, theirs, sizeof mine);
}

static bool scale_is_equal(tutti_type type, size_t at, size_t count)
{
	const unsigned some[] = { 1, 2, 3, 7, 1000, 3000000000u }, n = some[tt_random_below(&dice, 6)];

	memset(mine, GUARD, sizeof mine);
	fill(mine + at, count, type);
	memcpy(theirs, mine, sizeof mine);
	tt_scale(mine + at, count, type, n);
	run("scale", type, some_blocks(), (const uint64_t[]){ (uint64_t)(theirs + at), 0, 0, 0, 0, count, n });
	return !memcmp(mine, theirs, sizeof mine);
}

static size_t some_count(void)
{
	const uint32_t most[] = { 20, 300, MOST };

	return tt_random_below(&dice, most[tt_random_below(&dice, 3)] + 1);
}

static void test_blend_at_all_alignments(void)
{
	int wrong = 0;

	for (size_t t = 0; t < sizeof reals / sizeof *reals; t++)
		for (size_t at = 0; at < 16 * 16; at++) /* `to` against a; b lies as one of them, or elsewhere */
			for (size_t way = 0; way < 3; way++) {
				const size_t b_at[] = { at % 16, at / 16, tt_random_below(&dice, 16) };
				wrong += !blend_is_equal(reals[t], at % 16, at / 16, b_at[way], some_count(),
				                         (int)tt_random_below(&dice, 3));
			}
	CU_ASSERT_EQUAL(wrong, 0);
}

static void test_blend_of_all_counts(void)
{
	int wrong = 0;

	for (size_t t = 0; t < sizeof reals / sizeof *reals; t++)
		for (size_t count = 0; count < 600; count++) {
			const size_t at = count % 3 * tt_type_size(reals[t]);
			wrong += !blend_is_equal(reals[t], at, at, at, count, (int)count % 3);
		}
	CU_ASSERT_EQUAL(wrong, 0);
}

static void test_scale(void)
{
	int wrong = 0;

	for (size_t t = 0; t < sizeof divided / sizeof *divided; t++)
		for (size_t count = 0; count < 600; count++)
			wrong += !scale_is_equal(divided[t], count % 16, count % 5 ? count : some_count());
	CU_ASSERT_EQUAL(wrong, 0);
}

/* Each number of 16 bits, widened, divided by one and narrowed, stays what it is; a NaN becomes the clean one. */
static void test_all_halves(void)
{
	static _Alignas(16) uint16_t all[1 << 16];

	for (size_t t = 0; t < 2; t++) {
		const tutti_type type = t ? TUTTI_BF16 : TUTTI_F16;
		const uint64_t infinity = nearest((long double)INFINITY, type), clean = nan_of(type);
		int wrong = 0;

		for (uint32_t h = 0; h < 1 << 16; h++)
			all[h] = (uint16_t)h;
		run("scale", type, 2, (const uint64_t[]){ (uint64_t)all, 0, 0, 0, 0, 1 << 16, 1 });
		for (uint32_t h = 0; h < 1 << 16; h++)
			wrong += all[h] != ((h & 0x7fff) > infinity ? clean : h);
		CU_ASSERT_EQUAL(wrong, 0);
	}
}

static CU_TestInfo kernel_tests[] = {
	{ "blend at all alignments", test_blend_at_all_alignments },
	{ "blend of all counts", test_blend_of_all_counts },
	{ "scale", test_scale },
	{ "all numbers of 16 bits", test_all_halves },
	CU_TEST_INFO_NULL,
};

static CU_SuiteInfo suites[] = { { "kernels of a GPU", NULL, NULL, NULL, NULL, kernel_tests }, CU_SUITE_INFO_NULL };

int main(int argc, char **argv)
{
	tt_random_seed(&dice, 17);
	return run_suites(suites, argc, argv);
}
