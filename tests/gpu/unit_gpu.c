/* unit_gpu.c - the room gpu/ over a libcuda of ours: kinds, order, failures of every call, fork, capture, processes */
#include "gpu/gpu.h"
#include "tests/gpu/watch.h"
#include "tests/harness/cunit_main.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <spawn.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include "tutti.h"

extern char **environ;
enum { LEN = 300 << 10, SEEDS = 60, UNIT = 2 << 20 };

static char host[LEN];
static CUcontext contexts[FAKE_CUDA_DEVICES]; /* the primary ones, as PyTorch has them */

static void use_cuda(void) /* as PyTorch does */
{
	CU_ASSERT_EQUAL(cuInit(0), 0);
	for (int i = 0; i < FAKE_CUDA_DEVICES; i++)
		CU_ASSERT_EQUAL(cuDevicePrimaryCtxRetain(&contexts[i], i), 0);
	CU_ASSERT_EQUAL(cuCtxPushCurrent_v2(contexts[0]), 0);
	tt_gpu_open("auto");
	CU_ASSERT_TRUE(tt_gpu_here);
}

static void be_done(void)
{
	CUcontext last;

	CU_ASSERT_EQUAL(cuCtxPopCurrent_v2(&last), 0);
	CU_ASSERT_PTR_EQUAL(last, contexts[0]); /* nobody has changed it */
	tt_gpu_close();
	for (int i = 0; i < FAKE_CUDA_DEVICES; i++)
		CU_ASSERT_EQUAL(cuDevicePrimaryCtxRelease_v2(i), 0);
	CU_ASSERT_EQUAL(fake_cuda_left(), 0);
	fake_cuda_list_left();
}

static bool is_all(const void *memory, char value, size_t len)
{
	const char *bytes = memory;

	return bytes && bytes[0] == value && !memcmp(bytes, bytes + 1, len - 1);
}

static int wait_until(struct tt_gpu_queue *q, uint64_t mark)
{
	int done = 0;

	for (int i = 0; i < 100000 && !done; i++) {
		done = tt_gpu_reached(q, mark);
		fake_cuda_run(1);
	}
	return done;
}

/* ---- what a pointer is ---- */

static CUdeviceptr map_at(CUdeviceptr at, int device)
{
	CUmemAllocationProp prop = { .type = CU_MEM_ALLOCATION_TYPE_PINNED,
		                     .location = { CU_MEM_LOCATION_TYPE_DEVICE, device } };
	CUmemAccessDesc may = { prop.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE };
	CUmemGenericAllocationHandle handle;

	CU_ASSERT_EQUAL(cuMemCreate(&handle, UNIT, &prop, 0), 0);
	CU_ASSERT_EQUAL(cuMemMap(at, UNIT, 0, handle, 0), 0);
	CU_ASSERT_EQUAL(cuMemSetAccess(at, UNIT, &may, 1), 0);
	CU_ASSERT_EQUAL(cuMemRelease(handle), 0);
	return at;
}

static int find(CUdeviceptr at, size_t len, struct tt_gpu_range *out)
{
	return tt_gpu_find((void *)(uintptr_t)at, len, out);
}

static void test_host(void)
{
	struct tt_gpu_range r;
	void *pinned;

	use_cuda();
	CU_ASSERT_TRUE(!tt_gpu_find(host, LEN, &r) && r.device == -1);
	CU_ASSERT_TRUE(!tt_gpu_find(NULL, 0, &r) && r.device == -1);
	CU_ASSERT_EQUAL(cuMemHostAlloc(&pinned, LEN, 0), 0);
	CU_ASSERT_TRUE(!tt_gpu_find(pinned, LEN, &r) && r.device == -1);
	CU_ASSERT_EQUAL(cuMemFreeHost(pinned), 0);
	CU_ASSERT_EQUAL(tt_gpu_check(0), -EINVAL); /* no memory of the device was seen, so nothing was made there */
	be_done();
}

/* The driver is not asked about the heap; it is asked where the range leaves the heap. */
static void test_heap(void)
{
	struct tt_gpu_range r;
	char *at;
	uint64_t calls;

	use_cuda();
	at = sbrk(LEN);
	calls = fake_cuda_calls("cuPointerGetAttributes");
	CU_ASSERT_TRUE(at != (void *)-1 && !tt_gpu_find(at, LEN, &r) && r.device == -1);
	CU_ASSERT_EQUAL(fake_cuda_calls("cuPointerGetAttributes"), calls);
	CU_ASSERT_TRUE(!tt_gpu_find(at, (size_t)((char *)sbrk(0) - at) + 1, &r) && r.device == -1);
	CU_ASSERT_EQUAL(fake_cuda_calls("cuPointerGetAttributes"), calls + 1);
	CU_ASSERT_TRUE(!tt_gpu_find(&at, sizeof at, &r) && r.device == -1);
	CU_ASSERT_EQUAL(fake_cuda_calls("cuPointerGetAttributes"), calls + 2);
	be_done();
}

static void test_device_memory(void)
{
	struct tt_gpu_range r, again;
	CUdeviceptr at;
	uint64_t calls;

	use_cuda();
	CU_ASSERT_EQUAL(cuMemAlloc_v2(&at, LEN), 0);
	calls = fake_cuda_calls("cuPointerGetAttributes");
	CU_ASSERT_TRUE(!find(at + 100, LEN - 100, &r) && r.device == 0 && !r.ours);
	CU_ASSERT_EQUAL(fake_cuda_calls("cuPointerGetAttributes"), calls + 1);
	CU_ASSERT_TRUE(r.base == (char *)at && r.len == LEN);
	CU_ASSERT_EQUAL(find(at + 100, LEN - 99, &again), -EINVAL);
	CU_ASSERT_EQUAL(cuMemFree_v2(at), 0);
	CU_ASSERT_EQUAL(cuMemAlloc_v2(&at, LEN), 0);
	CU_ASSERT_TRUE(!find(at, LEN, &again) && again.buffer != r.buffer);
	CU_ASSERT_EQUAL(cuMemFree_v2(at), 0);
	be_done();
}

static void test_refused_memory(void)
{
	struct tt_gpu_range r;
	CUdeviceptr at;
	CUcontext other;

	use_cuda();
	CU_ASSERT_EQUAL(cuMemAllocManaged(&at, LEN, 1), 0);
	CU_ASSERT_EQUAL(find(at, LEN, &r), -ENOTSUP);
	CU_ASSERT_PTR_NOT_NULL(strstr(tt_why(), "managed"));
	CU_ASSERT_EQUAL(cuMemFree_v2(at), 0);
	CU_ASSERT_EQUAL(cuCtxCreate_v2(&other, 0, 0), 0);
	CU_ASSERT_EQUAL(cuMemAlloc_v2(&at, LEN), 0);
	CU_ASSERT_EQUAL(find(at, LEN, &r), -ENOTSUP);
	CU_ASSERT_PTR_NOT_NULL(strstr(tt_why(), "primary"));
	CU_ASSERT_EQUAL(cuMemFree_v2(at), 0);
	CU_ASSERT_EQUAL(cuCtxDestroy_v2(other), 0);
	be_done();
}

/* PyTorch's expandable segments: many mappings side by side in one reservation. */
static void test_mappings_side_by_side(void)
{
	struct tt_gpu_range r;
	CUdeviceptr at;

	use_cuda();
	CU_ASSERT_EQUAL(cuMemAddressReserve(&at, 5 * UNIT, 0, 0, 0), 0);
	map_at(at, 0);
	map_at(at + UNIT, 0);
	map_at(at + 2 * UNIT, 1);
	map_at(at + 4 * UNIT, 1);
	CU_ASSERT_TRUE(!find(at + 5, 2 * UNIT - 5, &r) && r.device == 0);
	CU_ASSERT_TRUE(!find(at + 2 * UNIT, UNIT, &r) && r.device == 1);
	CU_ASSERT_EQUAL(find(at + 5, 2 * UNIT, &r), -ENOTSUP);
	CU_ASSERT_PTR_NOT_NULL(strstr(tt_why(), "GPU 0 and GPU 1"));
	CU_ASSERT_EQUAL(find(at + 2 * UNIT, 3 * UNIT, &r), -EINVAL); /* over a hole */
	for (int i = 0; i < 5; i++)
		if (i != 3)
			CU_ASSERT_EQUAL(cuMemUnmap(at + (CUdeviceptr)i * UNIT, UNIT), 0);
	CU_ASSERT_EQUAL(cuMemAddressFree(at, 5 * UNIT), 0);
	be_done();
}

static void test_own_memory(void)
{
	struct tt_gpu_range r;
	struct tt_gpu_facts facts;
	uint64_t calls;
	void *at;

	use_cuda();
	CU_ASSERT_EQUAL(tt_gpu_alloc(1, LEN, &at), 0);
	CU_ASSERT_TRUE(is_all(fake_cuda_bytes(at), 0, LEN));
	calls = fake_cuda_calls(NULL);
	CU_ASSERT_TRUE(!tt_gpu_find((char *)at + 1, LEN - 1, &r) && r.device == 1 && r.ours && r.base == at);
	CU_ASSERT_EQUAL(fake_cuda_calls(NULL), calls);
	CU_ASSERT_EQUAL(tt_gpu_find(at, r.len + 1, &r), -EINVAL);
	CU_ASSERT_TRUE(!tt_gpu_find(host, LEN, &r));
	CU_ASSERT_EQUAL(fake_cuda_calls(NULL), calls + 1);
	tt_gpu_free(at);
	CU_ASSERT_TRUE(!tt_gpu_facts(0, &facts) && facts.vmm_fd && facts.dma_buf && facts.rdma && !facts.mig);
	CU_ASSERT_EQUAL(tt_gpu_of_uuid(facts.uuid), 0);
	CU_ASSERT_EQUAL(tt_gpu_facts(FAKE_CUDA_DEVICES, &facts), -ENODEV);
	CU_ASSERT_EQUAL(tt_gpu_alloc(-1, 1, &at), -ENODEV);
	CU_ASSERT_EQUAL(tt_gpu_alloc(0, (size_t)1 << 40, &at), -ENOMEM);
	be_done();
}

/* A neighbour that gets no access costs it the direct way, and nothing else. */
static void test_no_access(void)
{
	void *at, *other;

	use_cuda();
	fake_cuda_fail("cuMemSetAccess", 2, 1);
	CU_ASSERT_EQUAL(tt_gpu_alloc(0, LEN, &at), 0);
	CU_ASSERT_TRUE(tt_gpu_can_read(0, 0, at) && !tt_gpu_can_read(1, 0, at));
	CU_ASSERT_EQUAL(tt_gpu_alloc(0, LEN, &other), 0);
	CU_ASSERT_TRUE(tt_gpu_can_read(1, 0, other) && tt_gpu_can_read(1, 0, host));
	tt_gpu_free(at);
	tt_gpu_free(other);
	be_done();
}

/* ---- order ---- */

static bool is_idle(CUstream stream) { return cuStreamQuery(stream) == 0; }

static struct {
	CUstream stream;           /* of the program */
	struct tt_gpu_queue *first, *second;
	void *source, *middle;     /* on the devices */
	char *chunk;               /* pinned */
} world;

static void open_world(uint64_t seed)
{
	fake_cuda_thread(false);
	fake_cuda_seed(seed);
	CU_ASSERT_EQUAL(cuStreamCreate(&world.stream, seed % 2 ? CU_STREAM_NON_BLOCKING : 0), 0);
	CU_ASSERT_EQUAL(tt_gpu_queue_open(0, &world.first), 0);
	CU_ASSERT_EQUAL(tt_gpu_queue_open(0, &world.second), 0);
	CU_ASSERT_EQUAL(tt_gpu_alloc(0, LEN, &world.source), 0);
	CU_ASSERT_EQUAL(tt_gpu_alloc(0, LEN, &world.middle), 0);
	world.chunk = aligned_alloc(4096, (LEN + 4095) / 4096 * 4096);
	memset(world.chunk, 1, LEN);
	CU_ASSERT_EQUAL(tt_gpu_register(world.chunk, LEN), 0);
}

static void close_world(void)
{
	tt_gpu_queue_close(world.first);
	tt_gpu_queue_close(world.second);
	CU_ASSERT_EQUAL(cuStreamSynchronize(world.stream), 0);
	CU_ASSERT_EQUAL(cuStreamDestroy_v2(world.stream), 0);
	tt_gpu_unregister(world.chunk);
	free(world.chunk);
	tt_gpu_free(world.source);
	tt_gpu_free(world.middle);
	fake_cuda_thread(true);
}

/* The program writes. When its fence has passed, a queue of ours copies, and what the mark says is done is on the host.
 * 1: right; 0: wrong bytes; -1: the mark was never reached. */
static int lift(void)
{
	struct tt_gpu_fence *fence = NULL;
	int right;

	CU_ASSERT_EQUAL(cuMemsetD8Async((CUdeviceptr)world.source, 5, LEN, world.stream), 0);
	CU_ASSERT_EQUAL(tt_gpu_fence_note(0, world.stream, &fence), 0);
	for (int i = 0; i < 100000 && tt_gpu_fence_passed(fence) == 0; i++)
		fake_cuda_run(1);
	CU_ASSERT_EQUAL(tt_gpu_fence_passed(fence), 1);
	CU_ASSERT_EQUAL(tt_gpu_copy(world.first, world.chunk, world.source, LEN), 0);
	right = wait_until(world.first, tt_gpu_mark(world.first)) == 1 ? is_all(world.chunk, 5, LEN) : -1;
	tt_gpu_fence_free(fence);
	return right;
}

/* How many of the seeds are right, when each call of a function is lost; NULL: none is. */
static int count_right(int (*scene)(void), const char *lost)
{
	int right = 0;

	use_cuda();
	for (int seed = 0; seed < SEEDS; seed++) {
		open_world((uint64_t)seed);
		if (lost)
			fake_cuda_fail(lost, 1, FAKE_CUDA_LOST);
		right += scene() == 1;
		close_world();
	}
	be_done();
	return right;
}

static void test_order(void)
{
	CU_ASSERT_EQUAL(count_right(lift, NULL), SEEDS);
	CU_ASSERT_TRUE(count_right(lift, "cuEventQuery") < SEEDS);
	CU_ASSERT_TRUE(count_right(lift, "cuEventRecord") < SEEDS);
	CU_ASSERT_TRUE(count_right(lift, "cuStreamWriteValue32_v2") < SEEDS);
}

/* A mark is not reached before what it stands for, and the marks of a queue come in order. */
static void test_marks(void)
{
	int early = 0;

	use_cuda();
	for (int seed = 0; seed < SEEDS; seed++) {
		uint64_t one, two;
		open_world((uint64_t)seed);
		memset(world.chunk, 3, LEN);
		CU_ASSERT_EQUAL(tt_gpu_copy(world.first, world.source, world.chunk, LEN), 0);
		one = tt_gpu_mark(world.first);
		CU_ASSERT_EQUAL(tt_gpu_mark(world.first), one);
		CU_ASSERT_EQUAL(tt_gpu_copy(world.first, world.middle, world.source, LEN), 0);
		two = tt_gpu_mark(world.first);
		while (tt_gpu_reached(world.first, two) == 0) {
			early += !tt_gpu_reached(world.first, one);
			if (tt_gpu_reached(world.first, one))
				CU_ASSERT_TRUE(is_all(fake_cuda_bytes(world.source), 3, LEN));
			CU_ASSERT_EQUAL(fake_cuda_run(1), 1);
		}
		CU_ASSERT_EQUAL(tt_gpu_reached(world.first, one), 1);
		CU_ASSERT_TRUE(is_all(fake_cuda_bytes(world.middle), 3, LEN));
		close_world();
	}
	CU_ASSERT_TRUE(early > SEEDS / 4);
	be_done();
}

/* Where a mark cannot be set the driver is asked: nothing is said to be done that is not, and copies go on. */
static void test_lost_marks(void)
{
	static const char *const by[] = { "cuStreamWriteValue32_v2", "cuLaunchHostFunc" };

	int early = 0, done;

	use_cuda();
	for (int seed = 0; seed < SEEDS; seed++) {
		fake_cuda_attribute(0, 92, seed % 2 == 0);
		open_world((uint64_t)seed);
		fake_cuda_fail(by[seed % 2], 1, 2);
		for (int i = 0; i < 2; i++) {
			memset(world.chunk, 3 + i, LEN);
			CU_ASSERT_EQUAL(tt_gpu_copy(world.first, world.source, world.chunk, LEN), 0);
			uint64_t mark = tt_gpu_mark(world.first);
			while (!(done = tt_gpu_reached(world.first, mark))) {
				early++;
				fake_cuda_run(1);
			}
			CU_ASSERT_EQUAL(done, 1);
			CU_ASSERT_TRUE(is_all(fake_cuda_bytes(world.source), (char)(3 + i), LEN));
		}
		close_world();
	}
	CU_ASSERT_TRUE(early > SEEDS);
	fake_cuda_attribute(0, 92, 1);
	be_done();
}

/* The program's kernels may be using memory that is freed: the fake aborts if it is unmapped under them. Where the
 * device cannot be waited for, the memory stays. */
static void test_free_waits(void)
{
	struct tt_gpu_range r;
	int late = 0;
	void *graph;

	use_cuda();
	for (int seed = 0; seed < SEEDS; seed++) {
		open_world((uint64_t)seed);
		CU_ASSERT_EQUAL(cuMemsetD8Async((CUdeviceptr)world.middle, 5, LEN, world.stream), 0);
		late += !is_idle(world.stream);
		CU_ASSERT_TRUE(tt_gpu_free_idle(world.middle) && is_idle(world.stream));
		world.middle = NULL;
		close_world();
	}
	CU_ASSERT_TRUE(late > SEEDS / 2);
	open_world(1);
	CU_ASSERT_EQUAL(cuStreamBeginCapture_v2(world.stream, 0), 0);
	CU_ASSERT_TRUE(tt_gpu_free_idle(world.middle) && !tt_gpu_find(world.middle, LEN, &r) && r.ours);
	CU_ASSERT_EQUAL(cuStreamEndCapture(world.stream, &graph), 901);
	CU_ASSERT_FALSE(tt_gpu_free_idle(host));
	close_world();
	be_done();
}

/* Where the device writes no words, the driver's thread counts marks. */
static void test_calls(void)
{
	use_cuda();
	fake_cuda_attribute(0, 92, 0);
	open_world(1);
	CU_ASSERT_EQUAL(lift(), 1);
	CU_ASSERT_TRUE(fake_cuda_calls("cuLaunchHostFunc") > 0);
	fake_cuda_attribute(0, 92, 1);
	close_world();
	be_done();
}

/* ---- streams of the program ---- */

static void test_streams(void)
{
	struct tt_gpu_fence *fence;
	CUstream stream, other;

	use_cuda();
	CU_ASSERT_EQUAL(cuStreamCreate(&stream, 0), 0);
	CU_ASSERT_EQUAL(cuCtxPushCurrent_v2(contexts[1]), 0);
	CU_ASSERT_EQUAL(cuStreamCreate(&other, 0), 0);
	CU_ASSERT_EQUAL(cuCtxPopCurrent_v2(NULL), 0);
	CU_ASSERT_EQUAL(tt_gpu_fence_note(0, other, &fence), -EINVAL);
	CU_ASSERT_EQUAL(tt_gpu_fence_note(1, other, &fence), 0);
	tt_gpu_fence_free(fence);
	CU_ASSERT_EQUAL(tt_gpu_fence_note(1, NULL, &fence), 0);
	tt_gpu_fence_free(fence);
	CU_ASSERT_EQUAL(cuStreamDestroy_v2(stream), 0);
	CU_ASSERT_EQUAL(cuStreamDestroy_v2(other), 0);
	CU_ASSERT_EQUAL(tt_gpu_fence_note(0, stream, &fence), -EINVAL);
	tt_gpu_fence_free(NULL);
	be_done();
}

static int do_everything(int device, CUstream);

/* A capturing stream is refused before anything is recorded, and no call of ours breaks the capture. */
static void test_capture(void)
{
	struct tt_gpu_fence *fence;
	CUstream stream, mine;
	void *graph;

	use_cuda();
	fake_cuda_seed(5);
	CU_ASSERT_EQUAL(cuStreamCreate(&mine, CU_STREAM_NON_BLOCKING), 0);
	for (int blocking = 0; blocking < 2; blocking++) {
		CU_ASSERT_EQUAL(cuStreamCreate(&stream, blocking ? 0 : CU_STREAM_NON_BLOCKING), 0);
		CU_ASSERT_EQUAL(cuStreamBeginCapture_v2(stream, 0), 0);
		CU_ASSERT_EQUAL(tt_gpu_fence_note(0, stream, &fence), -ENOTSUP);
		if (blocking)
			CU_ASSERT_EQUAL(tt_gpu_fence_note(0, NULL, &fence), -ENOTSUP);
		CU_ASSERT_EQUAL(do_everything(0, mine), 0);
		CU_ASSERT_EQUAL(fake_cuda_captured(), 0);
		CU_ASSERT_EQUAL(cuStreamEndCapture(stream, &graph), 0);
		CU_ASSERT_EQUAL(cuStreamDestroy_v2(stream), 0);
	}
	CU_ASSERT_EQUAL(cuStreamDestroy_v2(mine), 0);
	be_done();
}

/* ---- every call fails once ---- */

static struct {
	const char *name;
	int calls;
} called[100]; /* what do_everything() has called before it gives back */
static int called_count;

/* A failure of these has no consequence: an attribute that the driver does not know is 0, a device that cannot be asked
 * about its neighbour does not reach it, and no call can fail because the mode of captures is as it was. */
static bool is_harmless(const char *function)
{
	return !strcmp(function, "cuDeviceGetAttribute") || !strcmp(function, "cuDeviceCanAccessPeer") ||
	       !strcmp(function, "cuCtxPopCurrent_v2") || !strcmp(function, "cuThreadExchangeStreamCaptureMode");
}

static void note_calls(void)
{
	called_count = 0;
	for (const char *name; (name = fake_cuda_called(called_count)) && called_count < 100; called_count++) {
		called[called_count].name = name;
		called[called_count].calls = is_harmless(name) ? 0 : (int)fake_cuda_calls(name);
	}
}

/* Each function of gpu.h that calls the driver. The first error, with a sentence; and all is given back. */
static int do_everything(int device, CUstream stream)
{
	struct tt_gpu_queue *q = NULL;
	struct tt_gpu_fence *fence = NULL;
	struct tt_gpu_facts facts;
	struct tt_gpu_range range;
	void *at = NULL, *twin = NULL, *chunk = aligned_alloc(4096, 4096);
	bool registered = false;
	int fd = -1, err;
	uint64_t offset;

	tt_remember("");
	if (!(err = tt_gpu_facts(device, &facts)) && !(err = tt_gpu_queue_open(device, &q)) &&
	    !(err = tt_gpu_alloc(device, 4096, &at)) && !(err = tt_gpu_register(chunk, 4096))) {
		registered = true;
		err = tt_gpu_find(at, 4096, &range);
	}
	if (!err && !(err = tt_gpu_export(at, &fd)))
		err = tt_gpu_import(device, fd, range.len, &twin);
	if (!err && !(err = tt_gpu_fence_note(device, stream, &fence)) &&
	    !(err = tt_gpu_copy(q, at, chunk, 4096)) && !(err = tt_gpu_kernels(device)) &&
	    !(err = tt_gpu_scale(q, at, 1024, TUTTI_F32, 2)) && !(err = tt_gpu_copy(q, chunk, twin, 4096)))
		err = wait_until(q, tt_gpu_mark(q)) < 1 ? tt_gpu_reached(q, tt_gpu_mark(q)) :
		      *tt_why()                         ? -EIO : 0; /* all that a lost mark leaves is a sentence */
	if (!err && (err = tt_gpu_fence_passed(fence)) >= 0)
		err = tt_gpu_check(device);
	if (!err)
		err = tt_gpu_flush(device);
	if (!err && !(err = tt_gpu_dma_buf(at, 100, &fd, &offset)))
		close(fd);
	if (!err)
		note_calls();
	tt_gpu_fence_free(fence);
	tt_gpu_queue_close(q);
	tt_gpu_unimport(twin);
	tt_gpu_free(at);
	if (registered)
		tt_gpu_unregister(chunk);
	free(chunk);
	return err;
}

static int count_descriptors(void)
{
	DIR *folder = opendir("/proc/self/fd");
	int n = 0;

	while (folder && readdir(folder))
		n++;
	if (folder)
		closedir(folder);
	return n;
}

/* With the nth call of the function failing. */
static void fail_one(const char *function, int nth, int with)
{
	int descriptors = count_descriptors(), before = fake_cuda_left(), err, left;

	tt_remember("");
	fake_cuda_seed(1);
	fake_cuda_fail(function, nth, with);
	err = do_everything(0, NULL);
	fake_cuda_seed(1);
	tt_gpu_close();
	left = fake_cuda_left() - before;
	if (!err || !*tt_why() || left || count_descriptors() != descriptors)
		printf("call %d of %s fails: %d (%s), %d objects left\n", nth, function, err, tt_why(), left);
	CU_ASSERT_TRUE(err < 0 && *tt_why());
	CU_ASSERT_EQUAL(left, 0);
	CU_ASSERT_EQUAL(count_descriptors(), descriptors);
}

static void test_each_call_fails(void)
{
	int n;

	tt_gpu_open("auto");
	fake_cuda_thread(false);
	fail_one("cuInit", 1, 100);
	fail_one("cuDeviceGetCount", 1, 1);
	fail_one("cuDeviceGet", 2, 1);
	CU_ASSERT_TRUE(tt_gpu_count() == FAKE_CUDA_DEVICES);
	fake_cuda_seed(1);
	CU_ASSERT_EQUAL(do_everything(0, NULL), 0);
	tt_gpu_close();
	CU_ASSERT_EQUAL(fake_cuda_left(), 0);
	n = called_count;
	CU_ASSERT_TRUE(n > 35);
	for (int i = 0; i < n; i++)
		for (int nth = 1; nth <= called[i].calls; nth++)
			if (strcmp(called[i].name, "cuMemSetAccess") != 0 || nth != 2) /* the neighbour's; see below */
				fail_one(called[i].name, nth, 1);
	fake_cuda_thread(true);
}

/* ---- broken devices, children ---- */

static void test_broken(void)
{
	struct tt_gpu_range r;
	uint64_t mark;
	void *at;

	use_cuda();
	open_world(7);
	CU_ASSERT_EQUAL(tt_gpu_check(0), 0);
	fake_cuda_hold(world.stream, true);
	CU_ASSERT_EQUAL(tt_gpu_copy(world.first, world.chunk, world.source, LEN), 0);
	mark = tt_gpu_mark(world.first);
	fake_cuda_break(0, 700);
	CU_ASSERT_EQUAL(tt_gpu_check(0), -EIO);
	CU_ASSERT_PTR_NOT_NULL(strstr(tt_why(), "GPU 0: CUDA error 700"));
	CU_ASSERT_EQUAL(tt_gpu_broken(0), -EIO);
	CU_ASSERT_EQUAL(tt_gpu_broken(1), 0);
	CU_ASSERT_EQUAL(tt_gpu_reached(world.first, mark), -EIO);
	CU_ASSERT_EQUAL(tt_gpu_copy(world.first, world.chunk, world.source, LEN), -EIO);
	CU_ASSERT_EQUAL(tt_gpu_alloc(0, 1, &at), -EIO);
	CU_ASSERT_TRUE(!tt_gpu_find(host, LEN, &r) && r.device == -1);
	CU_ASSERT_TRUE(!tt_gpu_find(NULL, 8, &r) && r.device == -1);
	CU_ASSERT_EQUAL(tt_gpu_alloc(1, 1, &at), 0); /* the other device is whole */
	tt_gpu_free(at);
	fake_cuda_break(0, 0);
	CU_ASSERT_EQUAL(tt_gpu_check(0), -EIO); /* for good */
	free(world.chunk);
	tt_gpu_close();
}

static void be_child(CUdeviceptr theirs, void *ours)
{
	struct tt_gpu_range r;
	struct tt_gpu_queue *q;
	void *at;

	if (tt_gpu_find(host, LEN, &r) || r.device != -1)
		_exit(1);
	if (find(theirs, LEN, &r) != -ENOTSUP || tt_gpu_find(ours, LEN, &r) != -ENOTSUP || !strstr(tt_why(), "fork"))
		_exit(2);
	if (tt_gpu_alloc(0, 1, &at) != -ENOTSUP || tt_gpu_queue_open(0, &q) != -ENOTSUP || tt_gpu_check(0) != -ENOTSUP)
		_exit(3);
	if (tt_gpu_register(host, LEN) != -ENOTSUP || tt_gpu_count())
		_exit(4);
	tt_gpu_unregister(host);
	tt_gpu_queue_close(world.first);
	tt_gpu_free(ours);
	tt_gpu_close();
	_exit(0);
}

static void test_fork(void)
{
	CUdeviceptr theirs;
	int status = -1;
	pid_t child;

	use_cuda();
	open_world(8);
	CU_ASSERT_EQUAL(cuMemAlloc_v2(&theirs, LEN), 0);
	child = fork();
	if (!child)
		be_child(theirs, world.source);
	CU_ASSERT_EQUAL(waitpid(child, &status, 0), child);
	CU_ASSERT_EQUAL(status, 0);
	CU_ASSERT_EQUAL(lift(), 1); /* the parent goes on */
	CU_ASSERT_EQUAL(cuMemFree_v2(theirs), 0);
	close_world();
	be_done();
}

/* What says that it may be called with a job's lock makes no call that may synchronise: the fake would abort. */
static void test_lock(void)
{
	static struct tt_ticket_lock job;
	struct tt_gpu_fence *fence;
	struct tt_gpu_range r;

	use_cuda();
	open_world(9);
	fake_cuda_watch(holds_lock);
	CU_ASSERT_EQUAL(tt_gpu_fence_note(0, world.stream, &fence), 0);
	tt_ticket_lock_take(&job);
	CU_ASSERT_EQUAL(tt_gpu_find(world.source, LEN, &r), 0);
	CU_ASSERT_EQUAL(tt_gpu_copy(world.first, world.chunk, world.source, LEN), 0);
	CU_ASSERT_EQUAL(wait_until(world.first, tt_gpu_mark(world.first)), 1);
	CU_ASSERT_EQUAL(tt_gpu_fence_passed(fence), 1);
	CU_ASSERT_EQUAL(tt_gpu_check(0), 0);
	CU_ASSERT_EQUAL(tt_gpu_flush(0), 0);
	CU_ASSERT_TRUE(tt_gpu_can_reach(0, 1));
	tt_gpu_fence_free(fence);
	tt_ticket_lock_release(&job);
	fake_cuda_watch(NULL);
	close_world();
	be_done();
}

/* ---- other processes, adapters ---- */

static int copy_out(struct tt_gpu_queue *q, char *to, const void *from, size_t len)
{
	int err = tt_gpu_copy(q, to, from, len);

	return err ? err : wait_until(q, tt_gpu_mark(q)) == 1 ? 0 : -ETIMEDOUT;
}

/* In another process: adds one to each byte of the memory, as often as it is told. device: its own number. */
static int be_importer(int fd, size_t len, int device)
{
	struct tt_gpu_queue *q;
	char *chunk = aligned_alloc(4096, len);
	void *at;

	tt_gpu_open("yes");
	if (tt_gpu_queue_open(device, &q) || tt_gpu_register(chunk, len))
		return 1;
	if (tt_gpu_import(device, fd, len, &at))
		return fprintf(stderr, "%s\n", tt_why()), 2;
	for (char more; read(0, &more, 1) == 1; (void)!write(1, &more, 1)) {
		if (copy_out(q, chunk, at, len) || !is_all(chunk, chunk[0], len))
			return 3;
		memset(chunk, chunk[0] + 1, len);
		if (copy_out(q, at, chunk, len))
			return 4;
	}
	tt_gpu_unimport(at);
	tt_gpu_queue_close(q);
	tt_gpu_unregister(chunk);
	free(chunk);
	tt_gpu_close();
	return fake_cuda_left();
}

static pid_t start_importer(int fd, size_t len, int device, char *visible, int to[2], int from[2])
{
	char number[16], bytes[32], ordinal[16], program[] = "/proc/self/exe";
	char *args[] = { program, number, bytes, ordinal, NULL }, *env[] = { visible, NULL };
	posix_spawn_file_actions_t actions;
	pid_t pid = -1;

	CU_ASSERT_TRUE(!pipe2(to, O_CLOEXEC) && !pipe2(from, O_CLOEXEC));
	snprintf(number, sizeof number, "%d", fd);
	snprintf(bytes, sizeof bytes, "%zu", len);
	snprintf(ordinal, sizeof ordinal, "%d", device);
	posix_spawn_file_actions_init(&actions);
	posix_spawn_file_actions_adddup2(&actions, to[0], 0);
	posix_spawn_file_actions_adddup2(&actions, from[1], 1);
	CU_ASSERT_EQUAL(posix_spawn(&pid, program, &actions, NULL, args, visible ? env : environ), 0);
	posix_spawn_file_actions_destroy(&actions);
	close(to[0]);
	close(from[1]);
	return pid;
}

/* Memory of device 0, which the other process sees as its device 1: ordinals do not travel. */
static void test_two_processes(void)
{
	static char visible[] = "CUDA_VISIBLE_DEVICES=1,0";
	struct tt_gpu_range r;
	int fd, to[2], from[2], status = -1;
	char byte = 0;
	pid_t pid;

	use_cuda();
	open_world(10);
	CU_ASSERT_EQUAL(tt_gpu_find(world.source, LEN, &r), 0);
	CU_ASSERT_EQUAL(tt_gpu_export(world.source, &fd), 0);
	CU_ASSERT_EQUAL(tt_gpu_export((char *)world.source + 1, &status), -EINVAL);
	CU_ASSERT_EQUAL(fcntl(fd, F_SETFD, 0), 0);
	pid = start_importer(fd, r.len, 1, visible, to, from);
	close(fd);
	for (int i = 1; i <= 3; i++) {
		CU_ASSERT_TRUE(write(to[1], "x", 1) == 1 && read(from[0], &byte, 1) == 1);
		CU_ASSERT_TRUE(is_all(fake_cuda_bytes(world.source), (char)i, r.len));
	}
	tt_gpu_free(world.source); /* the other's mapping keeps the pages */
	world.source = NULL;
	CU_ASSERT_TRUE(write(to[1], "x", 1) == 1 && read(from[0], &byte, 1) == 1);
	close(to[1]);
	CU_ASSERT_EQUAL(waitpid(pid, &status, 0), pid);
	CU_ASSERT_EQUAL(status, 0);
	close(from[0]);
	close_world();
	be_done();
}

static void test_bad_import(void)
{
	void *at;
	int fd;

	use_cuda();
	open_world(11);
	CU_ASSERT_TRUE(tt_gpu_import(0, open("/dev/null", O_RDONLY), LEN, &at) < 0 && *tt_why());
	CU_ASSERT_EQUAL(tt_gpu_export(world.source, &fd), 0);
	CU_ASSERT_TRUE(tt_gpu_import(0, fd, 2 * UNIT, &at) < 0); /* longer than it is */
	fake_cuda_peer(false);
	CU_ASSERT_EQUAL(tt_gpu_export(world.source, &fd), 0);
	CU_ASSERT_TRUE(tt_gpu_import(1, fd, UNIT, &at) < 0 && *tt_why()); /* device 1 cannot reach it */
	close_world();
	be_done();
	use_cuda();
	open_world(11);
	CU_ASSERT_FALSE(tt_gpu_can_reach(0, 1)); /* it was asked when the device was first used */
	fake_cuda_peer(true);
	CU_ASSERT_FALSE(tt_gpu_can_reach(0, 1));
	close_world();
	be_done();
}

static void test_dma_buf(void)
{
	struct fake_dma_buf buf;
	uint64_t offset;
	CUdeviceptr theirs;
	char *bytes;
	int fd;

	use_cuda();
	CU_ASSERT_EQUAL(cuMemAlloc_v2(&theirs, LEN), 0);
	memset(fake_cuda_bytes((void *)theirs), 6, LEN);
	CU_ASSERT_EQUAL(tt_gpu_dma_buf((void *)(theirs + 5), LEN - 5, &fd, &offset), 0);
	CU_ASSERT_EQUAL(pread(fd, &buf, sizeof buf, 0), sizeof buf);
	CU_ASSERT_TRUE(buf.magic == FAKE_DMA_BUF && offset + LEN - 5 <= buf.len);
	bytes = mmap(NULL, buf.len, PROT_READ, MAP_SHARED, buf.fd, (off_t)buf.offset);
	CU_ASSERT_TRUE(is_all(bytes + offset, 6, LEN - 5));
	munmap(bytes, buf.len);
	close(fd);
	CU_ASSERT_EQUAL(tt_gpu_dma_buf(host, LEN, &fd, &offset), -EINVAL);
	fake_cuda_attribute(0, 124, 0);
	CU_ASSERT_EQUAL(tt_gpu_dma_buf((void *)theirs, LEN, &fd, &offset), -ENOTSUP);
	fake_cuda_attribute(0, 124, 1);
	CU_ASSERT_EQUAL(cuMemFree_v2(theirs), 0);
	be_done();
}

/* ---- a process that may not, or does not, use CUDA ---- */

static void test_off(void)
{
	struct tt_gpu_range r;
	void *mine;

	tt_gpu_open("no");
	CU_ASSERT_FALSE(tt_gpu_look());
	CU_ASSERT_TRUE(!tt_gpu_count() && strstr(tt_gpu_why_not(), "TUTTI_GPU"));
	CU_ASSERT_EQUAL(tt_gpu_alloc(0, 1, &mine), -ENODEV);
	CU_ASSERT_TRUE(!tt_gpu_find(host, LEN, &r) && r.device == -1);
}

static CU_TestInfo tests[] = { { "each call fails once", test_each_call_fails },
	                       { "host memory", test_host },
	                       { "the heap", test_heap },
	                       { "device memory", test_device_memory },
	                       { "refused memory", test_refused_memory },
	                       { "mappings side by side", test_mappings_side_by_side },
	                       { "own memory", test_own_memory },
	                       { "no access", test_no_access },
	                       { "order", test_order },
	                       { "marks", test_marks },
	                       { "lost marks", test_lost_marks },
	                       { "free waits", test_free_waits },
	                       { "calls", test_calls },
	                       { "streams", test_streams },
	                       { "capture", test_capture },
	                       { "fork", test_fork },
	                       { "job's lock", test_lock },
	                       { "two processes", test_two_processes },
	                       { "bad imports", test_bad_import },
	                       { "dma-buf", test_dma_buf },
	                       { "broken device", test_broken }, /* what is on it cannot be given back */
	                       { "TUTTI_GPU=no", test_off },     /* for good */
	                       CU_TEST_INFO_NULL };
static CU_SuiteInfo suites[] = { { "gpu", NULL, NULL, NULL, NULL, tests }, CU_SUITE_INFO_NULL };

int main(int argc, char **argv)
{
	if (argc == 4)
		return be_importer(atoi(argv[1]), strtoul(argv[2], NULL, 10), atoi(argv[3]));
	return run_suites(suites, argc, argv);
}
