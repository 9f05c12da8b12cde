/* unit_kernels.c - a GPU's kernels give the bits of the processor's: all types, alignments, counts; in place, too.
 *
 * The fake libcuda runs the kernels as the compiler of the processor made them. What a GPU's compiler makes of the same
 * text is looked at by tests/gpu/ptx.sh, and run by tests/gpu/device.sh. */
#include "gpu/gpu.h"
#include "kernel/kernel.h"
#include "tests/gpu/fake.h"
#include "tests/harness/cunit_main.h"
#include "tests/kernel/formats.h"
#include <errno.h>

enum { MOST = 5000, ROOM = MOST * 8 + 64, GUARD = 0x5a };

static const tutti_type reals[] = { TUTTI_F32, TUTTI_F64, TUTTI_F16, TUTTI_BF16 };
static const tutti_type divided[] = { TUTTI_F32, TUTTI_F64, TUTTI_F16, TUTTI_BF16,
	                              TUTTI_I32, TUTTI_I64, TUTTI_I8,  TUTTI_U8 };
static struct tt_random dice;
static struct tt_gpu_queue *queue; /* NULL: this build has no kernels */
static _Alignas(16) char a[ROOM], b[ROOM], mine[ROOM], theirs[ROOM];
static char *on_gpu[3]; /* a, b, and the result; of ROOM bytes each */

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

static void copy_up(int which, const void *from) { memcpy(fake_cuda_bytes(on_gpu[which]), from, ROOM); }

/* Runs what was started; the result comes to theirs. */
static void finish(int err)
{
	const uint64_t mark = tt_gpu_mark(queue);

	CU_ASSERT_EQUAL(err, 0);
	while (tt_gpu_reached(queue, mark) == 0)
		fake_cuda_run(10);
	CU_ASSERT_EQUAL(tt_gpu_reached(queue, mark), 1);
	memcpy(theirs, fake_cuda_bytes(on_gpu[2]), ROOM);
}

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
	copy_up(0, a);
	copy_up(1, b);
	copy_up(2, mine);
	tt_blend(mine + to_at, by_a, in == 1 ? mine + to_at : source[0], by_b, in == 2 ? mine + to_at : source[1],
	         count, type);
	char *to = on_gpu[2] + to_at;
	finish(tt_gpu_blend(queue, to, by_a, in == 1 ? to : on_gpu[0] + a_at, by_b, in == 2 ? to : on_gpu[1] + b_at,
	                    count, type));
	return !memcmp(mine, theirs, sizeof mine);
}

static bool scale_is_equal(tutti_type type, size_t at, size_t count)
{
	const unsigned some[] = { 1, 2, 3, 7, 1000, 3000000000u }, n = some[tt_random_below(&dice, 6)];

	memset(mine, GUARD, sizeof mine);
	fill(mine + at, count, type);
	copy_up(2, mine);
	tt_scale(mine + at, count, type, n);
	finish(tt_gpu_scale(queue, on_gpu[2] + at, count, type, n));
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

	for (size_t t = 0; queue && t < sizeof reals / sizeof *reals; t++)
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

	for (size_t t = 0; queue && t < sizeof reals / sizeof *reals; t++)
		for (size_t count = 0; count < 600; count++) {
			const size_t at = count % 3 * tt_type_size(reals[t]);
			wrong += !blend_is_equal(reals[t], at, at, at, count, (int)count % 3);
		}
	CU_ASSERT_EQUAL(wrong, 0);
}

static void test_scale(void)
{
	int wrong = 0;

	for (size_t t = 0; queue && t < sizeof divided / sizeof *divided; t++)
		for (size_t count = 0; count < 600; count++)
			wrong += !scale_is_equal(divided[t], count % 16, count % 5 ? count : some_count());
	CU_ASSERT_EQUAL(wrong, 0);
}

/* Each number of 16 bits, widened, divided by one and narrowed, stays what it is; a NaN becomes the clean one. */
static void test_all_halves(void)
{
	enum { ALL = 1 << 16, AT_ONCE = MOST };

	for (size_t t = 0; queue && t < 2; t++) {
		const tutti_type type = t ? TUTTI_BF16 : TUTTI_F16;
		const uint64_t infinity = nearest((long double)INFINITY, type), clean = nan_of(type);
		int wrong = 0;

		for (uint32_t first = 0; first < ALL; first += AT_ONCE) {
			const uint32_t count = first + AT_ONCE < ALL ? AT_ONCE : ALL - first;
			for (uint32_t i = 0; i < count; i++)
				set_element(mine, i, type, first + i);
			copy_up(2, mine);
			finish(tt_gpu_scale(queue, on_gpu[2], count, type, 1));
			for (uint32_t i = 0; i < count; i++)
				wrong += element(theirs, i, type) !=
				         (((first + i) & 0x7fff) > infinity ? clean : first + i);
		}
		CU_ASSERT_EQUAL(wrong, 0);
	}
}

static void test_refusals(void)
{
	if (!queue)
		return;
	CU_ASSERT_EQUAL(tt_gpu_blend(queue, on_gpu[2], 1, on_gpu[0], 1, on_gpu[1], 1, TUTTI_I32), -ENOTSUP);
	CU_ASSERT_STRING_EQUAL(tutti_why(), "GPUs blend no elements of type i32: use host memory");
	CU_ASSERT_EQUAL(tt_gpu_scale(queue, on_gpu[2], 1, TUTTI_BOOL, 1), -ENOTSUP);
	CU_ASSERT_EQUAL(tt_gpu_scale(queue, on_gpu[2], 1, 77, 1), -ENOTSUP);
	CU_ASSERT_EQUAL(tt_gpu_blend(queue, on_gpu[2], 1, on_gpu[0], 1, on_gpu[1], 0, TUTTI_F32), 0);
}

/* A kernel that cannot be started leaves an error, and the next one works. */
static void test_a_failed_start(void)
{
	if (!queue)
		return;
	fake_cuda_fail("cuLaunchKernel", 1, 701);
	CU_ASSERT_EQUAL(tt_gpu_scale(queue, on_gpu[2], 1, TUTTI_F32, 1), -EIO);
	CU_ASSERT_PTR_NOT_NULL(strstr(tutti_why(), "cuLaunchKernel"));
	CU_ASSERT_TRUE(scale_is_equal(TUTTI_F32, 0, 100));
}

static void test_an_image_that_the_driver_refuses(void)
{
	if (!queue)
		return;
	fake_cuda_fail("cuModuleLoadData", 1, 222);
	CU_ASSERT_EQUAL(tt_gpu_kernels(1), -EIO);
	CU_ASSERT_PTR_NOT_NULL(strstr(tutti_why(), "GPU 1: cuModuleLoadData: CUDA error 222"));
	CU_ASSERT_PTR_NOT_NULL(strstr(tutti_why(), "update the driver"));
	CU_ASSERT_EQUAL(tt_gpu_kernels(1), 0);
}

static int open_gpu(void)
{
	int err;

	fake_cuda_seed(17);
	tt_random_seed(&dice, 17);
	tt_gpu_open("yes");
	err = tt_gpu_kernels(0);
	if (err == -ENOTSUP) {
		printf("SKIPPED: %s\n", tutti_why());
		return 0;
	}
	for (int i = 0; i < 3 && !err; i++)
		err = tt_gpu_alloc(0, ROOM, (void **)&on_gpu[i]);
	return err ? err : tt_gpu_queue_open(0, &queue);
}

static int close_gpu(void)
{
	tt_gpu_queue_close(queue);
	for (int i = 0; i < 3; i++)
		tt_gpu_free(on_gpu[i]);
	tt_gpu_close();
	if (fake_cuda_left())
		fake_cuda_list_left();
	return fake_cuda_left();
}

static CU_TestInfo kernel_tests[] = {
	{ "blend at all alignments", test_blend_at_all_alignments },
	{ "blend of all counts", test_blend_of_all_counts },
	{ "scale", test_scale },
	{ "all numbers of 16 bits", test_all_halves },
	{ "refusals", test_refusals },
	{ "a failed start", test_a_failed_start },
	{ "an image that the driver refuses", test_an_image_that_the_driver_refuses },
	CU_TEST_INFO_NULL,
};

static CU_SuiteInfo suites[] = {
	{ "kernels of a GPU", open_gpu, close_gpu, NULL, NULL, kernel_tests },
	CU_SUITE_INFO_NULL,
};

int main(int argc, char **argv) { return run_suites(suites, argc, argv); }
