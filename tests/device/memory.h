/* memory.h - memory of devices for tests of the runtime over the fake libcuda, and patterns in it
 *
 * In a simulated world the devices work when they are looked at, so a seed repeats the run. */
#ifndef TESTS_DEVICE_MEMORY_H
#define TESTS_DEVICE_MEMORY_H
#include "tests/gpu/watch.h"
#include "tests/harness/cunit_main.h"
#include "tests/harness/ranks.h"

int __real_tt_gpu_reached(struct tt_gpu_queue *, uint64_t mark);
int __real_tt_gpu_fence_passed(struct tt_gpu_fence *);
int __wrap_tt_gpu_reached(struct tt_gpu_queue *, uint64_t mark);
int __wrap_tt_gpu_fence_passed(struct tt_gpu_fence *);

int __wrap_tt_gpu_reached(struct tt_gpu_queue *q, uint64_t mark)
{
	if (tt_world)
		fake_cuda_run(2);
	return __real_tt_gpu_reached(q, mark);
}

int __wrap_tt_gpu_fence_passed(struct tt_gpu_fence *f)
{
	if (tt_world)
		fake_cuda_run(1);
	return __real_tt_gpu_fence_passed(f);
}

static inline char pattern(int seed, size_t i) { return (char)(seed * 31 + (int)(i * 7 + i / 251)); }

/* The memory is a device's, or the host's. */
static inline char *bytes_of(void *memory)
{
	char *bytes = fake_cuda_bytes(memory);

	return bytes ? bytes : memory;
}

static inline void paint(void *memory, size_t len, int seed)
{
	char *bytes = bytes_of(memory);

	for (size_t i = 0; i < len; i++)
		bytes[i] = pattern(seed, i);
}

static inline bool is_painted(void *memory, size_t len, int seed)
{
	const char *bytes = bytes_of(memory);

	for (size_t i = 0; i < len; i++)
		if (bytes[i] != pattern(seed, i))
			return false;
	return true;
}

static inline void *take(tutti *job, size_t bytes, int gpu)
{
	void *memory = NULL;

	CHECK(tutti_alloc(job, bytes, gpu, &memory) == 0);
	return memory;
}

/* Fibers share a thread, and one may be put aside with the lock. */
static inline bool thread_holds_lock(void) { return !tt_world && holds_lock(); }

/* ---- what the program has of CUDA ---- */

static inline void enter(int gpu)
{
	CUcontext context;

	CHECK(!cuInit(0) && !cuDevicePrimaryCtxRetain(&context, gpu) && !cuCtxPushCurrent_v2(context));
}

static inline void leave(int gpu)
{
	CHECK(!cuCtxPopCurrent_v2(NULL) && !cuDevicePrimaryCtxRelease_v2(gpu));
}

/* Memory of an allocator that is not Tutti's. */
static inline void *take_foreign(int gpu, size_t len)
{
	CUdeviceptr at = 0;

	enter(gpu);
	CHECK(!cuMemAlloc_v2(&at, len));
	leave(gpu);
	return (void *)at;
}

static inline void free_foreign(int gpu, void *memory)
{
	enter(gpu);
	CHECK(!cuMemFree_v2((CUdeviceptr)memory));
	leave(gpu);
}

struct stream {
	CUstream stream;
	int gpu;
};

static inline void open_stream(struct stream *s, int gpu)
{
	s->gpu = gpu;
	enter(gpu);
	CHECK(!cuStreamCreate(&s->stream, CU_STREAM_NON_BLOCKING));
	leave(gpu);
}

static inline void close_stream(struct stream *s)
{
	enter(s->gpu);
	CHECK(!cuStreamDestroy_v2(s->stream));
	leave(s->gpu);
}

/* NULL: the legacy stream. A test that uses a stream calls nothing in between that another fiber may run in. */
static inline void use_stream(tutti *job, const struct stream *s)
{
	if (s)
		enter(s->gpu);
	CHECK(tutti_stream(job, s ? s->stream : NULL) == 0);
	if (s)
		leave(s->gpu);
}

static bool nets_reach_it = true; /* false: the calls copy it within the process, and no adapter is asked */

/* On sim with some seeds, tcp, shm and verbs. */
static inline void run_everywhere(int size, int timeout_ms, void (*program)(tutti *))
{
	struct ranks run = { .size = size, .wire = "sim", .timeout_ms = timeout_ms, .program = program };

	fake_cuda_thread(false);
	for (run.seed = 0; run.seed < (uint64_t)all_or(6, 2); run.seed++) {
		fake_cuda_seed(run.seed);
		CU_ASSERT_EQUAL(run_ranks(run), 0);
	}
	fake_cuda_thread(true);
	CU_ASSERT_EQUAL(run_real_ranks(run), 0);
#ifdef TEST_FAKE /* an adapter that reaches devices, and one that does not */
	run.wire = "verbs";
	run.devices = "fake_roce0";
	CU_ASSERT_EQUAL(run_ranks(run), 0);
	CU_ASSERT_TRUE(!nets_reach_it || fake_calls("reg_dmabuf_mr") > 0); /* it was asked, and moved something */
	fake_gpus(0);
	if (all_or(1, 0))
		CU_ASSERT_EQUAL(run_ranks(run), 0);
	fake_gpus(FAKE_DMABUF | FAKE_PEERMEM);
#endif
}

/* After each test: nothing of the driver is left. */
static inline void expect_nothing_left(void)
{
	tt_gpu_close();
	CU_ASSERT_EQUAL(fake_cuda_left(), 0);
	fake_cuda_list_left();
}
#endif
