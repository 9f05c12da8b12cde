/* fake_kernel.c - fake.h: modules; kernels.cu as the compiler of the processor made it */
#include "tests/gpu/fake_private.h"
#include <stdlib.h>
#include <string.h>

struct launch {
	fake_kernel *kernel;
	unsigned blocks, threads;
	uint64_t words[FAKE_KERNEL_WORDS];
};

/* Any image will do. */
SHOW CUresult cuModuleLoadData(CUmodule *out, const void *image)
{
	ENTER(NEEDS_CONTEXT | IS_SLOW);
	if (!image || !*(const char *)image)
		return leave(200);
	*out = make(OF_MODULE, 1);
	return leave(0);
}

SHOW CUresult cuModuleUnload(CUmodule module)
{
	ENTER(NEEDS_CONTEXT | IS_SLOW);
	if (!module)
		return leave(400);
	wait_for_context(current());
	drop(OF_MODULE, module);
	return leave(0);
}

/* With lazy loading the first look at a function may synchronise. */
SHOW CUresult cuModuleGetFunction(CUfunction *out, CUmodule module, const char *name)
{
	ENTER(NEEDS_CONTEXT | IS_SLOW);
	fake_kernel *found = fake_kernel_find(name);

	if (!module || !found)
		return leave(module ? 500 : 400);
	memcpy(out, &found, sizeof found);
	return leave(0);
}

SHOW CUresult cuLaunchKernel(CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                             unsigned block_y, unsigned block_z, unsigned shared, CUstream stream, void **arguments,
                             void **extra)
{
	ENTER(NEEDS_CONTEXT);
	struct range *uses[FAKE_KERNEL_WORDS];
	struct launch *l;
	int count = 0;

	if (!function || !grid_x || !block_x || block_x > 1024 || grid_y != 1 || grid_z != 1 || block_y != 1 ||
	    block_z != 1 || shared || extra || !arguments)
		return leave(1);
	l = calloc(1, sizeof *l);
	if (!l)
		abort();
	memcpy(&l->kernel, &function, sizeof function);
	l->blocks = grid_x;
	l->threads = block_x;
	for (int i = 0; i < FAKE_KERNEL_WORDS; i++) {
		memcpy(&l->words[i], arguments[i], sizeof l->words[i]);
		uses[count] = range_of((void *)l->words[i], 1);
		count += uses[count] != NULL;
	}
	return leave(start_kernel(stream, l, uses, count));
}

static bool reaches(CUcontext ctx, const struct range *r)
{
	return r->is == MAPPED ? r->access[ctx->device] != 0 : r->is != OF_DEVICE || r->device == ctx->device;
}

int run_kernel(struct launch *l, CUcontext ctx)
{
	for (int i = 0; i < FAKE_KERNEL_WORDS; i++) {
		void *at = (void *)l->words[i];
		struct range *r = range_of(at, 1);
		if (is_in_window(at) && (!r || !reaches(ctx, r)))
			return 700;
		if (r)
			l->words[i] = (uintptr_t)reachable(r, at);
	}
	fake_kernel_run(l->kernel, l->blocks, l->threads, l->words);
	return 0;
}
