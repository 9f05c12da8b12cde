/* fake_kernels.c - a GPU's kernels on the processor: one call for each thread of each block, one after the other */
#include "tests/gpu/fake_private.h"
#include "kernel/kernels.cu"
#include <string.h>

#define KERNELS(X) \
	X(blend_f32) X(blend_f64) X(blend_f16) X(blend_bf16) X(scale_f32) X(scale_f64) X(scale_f16) X(scale_bf16) \
	X(scale_i32) X(scale_i64) X(scale_i8) X(scale_u8)

static double number(uint64_t word) { return ((union { uint64_t word; double number; }){ word }).number; }

#define CALLER(name) \
	static void call_##name(const uint64_t *w) \
	{ \
		name((char *)w[0], (const char *)w[1], (const char *)w[2], number(w[3]), number(w[4]), w[5], w[6]); \
	}
KERNELS(CALLER)

static const struct {
	const char *name;
	fake_kernel *call;
} kernels[] = {
#define ROW(name) { #name, call_##name },
	KERNELS(ROW)
};

fake_kernel *fake_kernel_find(const char *name)
{
	for (unsigned i = 0; i < sizeof kernels / sizeof *kernels; i++)
		if (!strcmp(kernels[i].name, name))
			return kernels[i].call;
	return NULL;
}

void fake_kernel_run(fake_kernel *kernel, unsigned blocks, unsigned threads, const uint64_t words[FAKE_KERNEL_WORDS])
{
	here.blocks = blocks;
	here.threads = threads;
	for (here.block = 0; here.block < blocks; here.block++)
		for (here.thread = 0; here.thread < threads; here.thread++)
			kernel(words);
}
