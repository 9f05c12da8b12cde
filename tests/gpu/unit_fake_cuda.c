/* unit_fake_cuda.c - the fake libcuda moves bytes as a driver does, late and in any order, and punishes its caller */
#include "tests/gpu/watch.h"
#include "tests/harness/cunit_main.h"
#include <errno.h>
#include <fcntl.h>
#include <spawn.h>
#include <stdlib.h>
#include <sys/wait.h>

extern char **environ;
enum { LEN = 1 << 20, SEEDS = 64 };

/* In the processes that a test starts, too. */
#define OK(call) expect_success((int)(call), __LINE__, #call)
static bool is_started;

static void expect_success(int err, int line, const char *call)
{
	if (!is_started) {
		CU_assertImplementation(!err, (unsigned)line, call, __FILE__, "", CU_FALSE);
	} else if (err) {
		fprintf(stderr, "%d: %s: %d\n", line, call, err);
		exit(9);
	}
}

static CUcontext use_device(int device)
{
	CUcontext ctx = NULL;

	OK(cuInit(0));
	OK(cuDevicePrimaryCtxRetain(&ctx, device));
	OK(cuCtxPushCurrent_v2(ctx));
	return ctx;
}

static void leave_device(int device)
{
	OK(cuCtxPopCurrent_v2(NULL));
	OK(cuDevicePrimaryCtxRelease_v2(device));
	CU_ASSERT_EQUAL(fake_cuda_left(), 0);
	fake_cuda_list_left();
}

static int copy(CUdeviceptr to, CUdeviceptr from, size_t len)
{
	int err = (int)cuMemcpyAsync(to, from, len, NULL);

	return err ? err : (int)cuStreamSynchronize(NULL);
}

static int fill(CUdeviceptr at, int value, size_t len)
{
	int err = (int)cuMemsetD8Async(at, (unsigned char)value, len, NULL);

	return err ? err : (int)cuStreamSynchronize(NULL);
}

static bool is_all(const char *bytes, char value, size_t len)
{
	return bytes[0] == value && !memcmp(bytes, bytes + 1, len - 1);
}

static void test_untouchable(void)
{
	CUdeviceptr at;
	char *host;
	int ends[2];

	use_device(0);
	OK(cuMemAlloc_v2(&at, LEN));
	CU_ASSERT_EQUAL(pipe(ends), 0);
	CU_ASSERT_EQUAL(write(ends[1], (void *)at, 1), -1);
	CU_ASSERT_EQUAL(errno, EFAULT);
	OK(cuMemHostAlloc((void **)&host, LEN, 0));
	memset(host, 7, LEN);
	OK(copy(at, (CUdeviceptr)host, LEN));
	CU_ASSERT_TRUE(is_all(fake_cuda_bytes((void *)at), 7, LEN));
	OK(fill(at, 9, LEN));
	OK(copy((CUdeviceptr)host, at, LEN));
	CU_ASSERT_TRUE(is_all(host, 9, LEN));
	CU_ASSERT_NOT_EQUAL(copy((CUdeviceptr)host, at + 1, LEN), 0);
	OK(cuMemFree_v2(at));
	CU_ASSERT_NOT_EQUAL(copy((CUdeviceptr)host, at, 1), 0);
	CU_ASSERT_PTR_NULL(fake_cuda_bytes((void *)at));
	OK(cuMemFreeHost(host));
	close(ends[0]);
	close(ends[1]);
	leave_device(0);
}

static void test_kinds(void)
{
	unsigned which[] = { 2, 8, 9, 12 };
	unsigned type, managed;
	int device;
	size_t len;
	void *values[] = { &type, &managed, &device, &len };
	static char plain[64], registered[64];
	CUdeviceptr at, both;

	use_device(1);
	OK(cuMemAlloc_v2(&at, 100));
	OK(cuPointerGetAttributes(4, which, values, at + 99));
	CU_ASSERT_TRUE(type == 2 && !managed && device == 1 && len == 100);
	OK(cuMemAllocManaged(&both, 200, 1));
	*(char *)both = 1;
	OK(cuPointerGetAttributes(4, which, values, both));
	CU_ASSERT_TRUE(managed && len == 200);
	OK(cuPointerGetAttributes(4, which, values, (CUdeviceptr)plain));
	CU_ASSERT_TRUE(!type && !managed && !len);
	OK(cuMemHostRegister_v2(registered, sizeof registered, CU_MEMHOSTREGISTER_PORTABLE));
	OK(cuPointerGetAttributes(4, which, values, (CUdeviceptr)registered));
	CU_ASSERT_TRUE(type == 1 && !managed);
	CU_ASSERT_EQUAL(cuMemHostRegister_v2(registered, 1, 0), 712);
	OK(cuMemHostUnregister(registered));
	OK(cuMemFree_v2(at));
	OK(cuMemFree_v2(both));
	leave_device(1);
}

/* A stream fills memory, another one copies it, after an event or at once: is what it copies new? */
static bool copy_after_fill(uint64_t seed, bool wait)
{
	CUstream fills, copies;
	CUevent event;
	CUdeviceptr at;
	char *host;
	bool new;

	fake_cuda_seed(seed);
	OK(cuStreamCreate(&fills, CU_STREAM_NON_BLOCKING));
	OK(cuStreamCreate(&copies, CU_STREAM_NON_BLOCKING));
	OK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
	OK(cuMemAlloc_v2(&at, LEN));
	OK(cuMemHostAlloc((void **)&host, LEN, CU_MEMHOSTALLOC_PORTABLE));
	OK(cuMemsetD8Async(at, 5, LEN, fills));
	OK(cuEventRecord(event, fills));
	while (wait && cuEventQuery(event) == CUDA_ERROR_NOT_READY)
		fake_cuda_run(1);
	OK(cuMemcpyAsync((CUdeviceptr)host, at, LEN, copies));
	OK(cuStreamSynchronize(copies));
	new = is_all(host, 5, LEN);
	OK(cuMemFree_v2(at));
	OK(cuMemFreeHost(host));
	OK(cuEventDestroy_v2(event));
	OK(cuStreamDestroy_v2(fills));
	OK(cuStreamDestroy_v2(copies));
	return new;
}

static void test_order(void)
{
	int old = 0;

	use_device(0);
	fake_cuda_thread(false);
	for (int seed = 0; seed < SEEDS; seed++) {
		CU_ASSERT_TRUE(copy_after_fill((uint64_t)seed, true));
		old += !copy_after_fill((uint64_t)seed, false);
	}
	CU_ASSERT_TRUE(old > SEEDS / 4);
	fake_cuda_thread(true);
	leave_device(0);
}

/* The legacy stream waits for blocking streams, and they for it, whatever the seed. */
static void test_legacy(void)
{
	CUdeviceptr at;
	char *host;

	use_device(0);
	fake_cuda_thread(false);
	for (int seed = 0; seed < SEEDS; seed++) {
		CUstream blocking;
		fake_cuda_seed((uint64_t)seed);
		OK(cuStreamCreate(&blocking, 0));
		OK(cuMemAlloc_v2(&at, LEN));
		OK(cuMemHostAlloc((void **)&host, LEN, CU_MEMHOSTALLOC_PORTABLE));
		OK(cuMemsetD8Async(at, 5, LEN, seed % 2 ? blocking : NULL));
		OK(cuMemcpyAsync((CUdeviceptr)host, at, LEN, seed % 2 ? NULL : blocking));
		OK(cuStreamSynchronize(seed % 2 ? NULL : blocking));
		CU_ASSERT_TRUE(is_all(host, 5, LEN));
		OK(cuMemFree_v2(at));
		OK(cuMemFreeHost(host));
		OK(cuStreamDestroy_v2(blocking));
	}
	fake_cuda_thread(true);
	leave_device(0);
}

static void set_flag(void *flag) { *(_Atomic int *)flag = 1; }

/* A poll of a word is a load: with nobody calling, the thread of the fake moves on. */
static void test_thread(void)
{
	_Atomic uint32_t *word;
	_Atomic int flag = 0;
	CUstream stream;

	use_device(0);
	OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
	OK(cuMemHostAlloc((void **)&word, 64, CU_MEMHOSTALLOC_PORTABLE));
	*word = 0;
	OK(cuStreamWriteValue32_v2(stream, (CUdeviceptr)word, 3, 0));
	OK(cuLaunchHostFunc(stream, set_flag, &flag));
	for (int i = 0; i < 5000 && !flag; i++)
		usleep(1000);
	CU_ASSERT_TRUE(*word == 3 && flag);
	fake_cuda_hold(stream, true);
	OK(cuStreamWriteValue32_v2(stream, (CUdeviceptr)word, 4, 0));
	usleep(5000);
	CU_ASSERT_EQUAL(*word, 3);
	CU_ASSERT_EQUAL(cuStreamQuery(stream), CUDA_ERROR_NOT_READY);
	fake_cuda_hold(stream, false);
	OK(cuStreamSynchronize(stream));
	CU_ASSERT_EQUAL(*word, 4);
	OK(cuStreamDestroy_v2(stream));
	OK(cuMemFreeHost((void *)word));
	leave_device(0);
}

/* ---- memory in steps, and another process ---- */

static CUdeviceptr map(CUmemGenericAllocationHandle handle, int device, size_t len)
{
	CUmemAccessDesc may = { { CU_MEM_LOCATION_TYPE_DEVICE, device }, CU_MEM_ACCESS_FLAGS_PROT_READWRITE };
	CUdeviceptr at = 0;

	OK(cuMemAddressReserve(&at, len, 0, 0, 0));
	OK(cuMemMap(at, len, 0, handle, 0));
	OK(cuMemSetAccess(at, len, &may, 1));
	OK(cuMemRelease(handle));
	return at;
}

static void unmap(CUdeviceptr at, size_t len)
{
	OK(cuMemUnmap(at, len));
	OK(cuMemAddressFree(at, len));
}

/* In the other process: doubles what it finds. */
static int be_importer(int fd, size_t len)
{
	CUmemGenericAllocationHandle handle;
	CUdeviceptr at;
	char byte;

	use_device(0);
	if (cuMemImportFromShareableHandle(&handle, (void *)(intptr_t)fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR))
		return 1;
	at = map(handle, 0, len);
	if (copy((CUdeviceptr)&byte, at + len - 1, 1) || fill(at, 2 * byte, len))
		return 2;
	unmap(at, len);
	return 0;
}

static int spawn(const char *role, int fd, size_t len)
{
	char number[16], bytes[32], program[] = "/proc/self/exe";
	char *args[] = { program, (char *)(uintptr_t)role, number, bytes, NULL };
	pid_t pid;
	int status = -1;

	snprintf(number, sizeof number, "%d", fd);
	snprintf(bytes, sizeof bytes, "%zu", len);
	if (posix_spawn(&pid, program, NULL, NULL, args, environ) || waitpid(pid, &status, 0) != pid)
		return -1;
	return status;
}

static void test_export(void)
{
	CUmemAllocationProp prop = { .type = CU_MEM_ALLOCATION_TYPE_PINNED,
		                     .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
		                     .location = { CU_MEM_LOCATION_TYPE_DEVICE, 0 } };
	CUmemGenericAllocationHandle handle;
	CUdeviceptr at;
	size_t len;
	int fd;

	use_device(0);
	OK(cuMemGetAllocationGranularity(&len, &prop, 0));
	CU_ASSERT_EQUAL(cuMemCreate(&handle, len + 1, &prop, 0), 1);
	OK(cuMemCreate(&handle, len, &prop, 0));
	OK(cuMemExportToShareableHandle(&fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
	at = map(handle, 0, len);
	OK(fill(at, 21, len));
	fcntl(fd, F_SETFD, 0);
	CU_ASSERT_EQUAL(spawn("import", fd, len), 0);
	CU_ASSERT_TRUE(is_all(fake_cuda_bytes((void *)at), 42, len));
	close(fd);
	unmap(at, len);
	leave_device(0);
}

/* ---- failures ---- */

static void test_failures(void)
{
	CUdeviceptr at = 0;
	CUstream stream;

	use_device(0);
	fake_cuda_seed(1);
	fake_cuda_fail("cuMemAlloc_v2", 2, 2);
	OK(cuMemAlloc_v2(&at, 10));
	CU_ASSERT_EQUAL(cuMemAlloc_v2(&at, 10), 2);
	CU_ASSERT_EQUAL(fake_cuda_calls("cuMemAlloc_v2"), 2);
	OK(cuStreamCreate(&stream, 0));
	fake_cuda_break(0, 700);
	CU_ASSERT_EQUAL(cuMemsetD8Async(at, 0, 10, stream), 700);
	CU_ASSERT_EQUAL(cuStreamQuery(stream), 700);
	CU_ASSERT_EQUAL(cuMemFree_v2(at), 700);
	fake_cuda_break(0, 0);
	OK(cuMemFree_v2(at));
	OK(cuStreamDestroy_v2(stream));
	CU_ASSERT_EQUAL(cuStreamQuery(stream), 400);
	leave_device(0);
}

static void test_capture(void)
{
	CUstreamCaptureMode relaxed = CU_STREAM_CAPTURE_MODE_RELAXED;
	CUstream stream;
	CUdeviceptr at;
	void *graph;

	use_device(0);
	fake_cuda_seed(2);
	OK(cuMemAlloc_v2(&at, 10));
	OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
	OK(cuStreamBeginCapture_v2(stream, 0));
	OK(cuMemsetD8Async(at, 0, 10, stream));
	CU_ASSERT_EQUAL(fake_cuda_captured(), 1);
	OK(cuThreadExchangeStreamCaptureMode(&relaxed));
	CU_ASSERT_EQUAL(relaxed, 0);
	OK(cuMemFree_v2(at));
	OK(cuThreadExchangeStreamCaptureMode(&relaxed));
	OK(cuStreamEndCapture(stream, &graph));
	CU_ASSERT_PTR_NOT_NULL(graph);
	OK(cuStreamBeginCapture_v2(stream, 0));
	CU_ASSERT_EQUAL(cuMemAlloc_v2(&at, 10), 900);
	CU_ASSERT_EQUAL(cuStreamEndCapture(stream, &graph), 901);
	OK(cuStreamDestroy_v2(stream));
	leave_device(0);
}

static void test_kernel(void)
{
	CUmodule module;
	CUfunction f;
	CUdeviceptr at;
	float *bytes;
	uint64_t none = 0, count = 1000, n = 3;
	void *arguments[] = { &at, &none, &none, &none, &none, &count, &n };

	use_device(0);
	fake_cuda_seed(3);
	OK(cuModuleLoadData(&module, "// text"));
	CU_ASSERT_EQUAL(cuModuleGetFunction(&f, module, "scale"), 500);
	OK(cuModuleGetFunction(&f, module, "scale_f32"));
	OK(cuMemAlloc_v2(&at, 2 * count * sizeof *bytes));
	bytes = fake_cuda_bytes((void *)at);
	for (uint64_t i = 0; i < 2 * count; i++)
		bytes[i] = 6;
	OK(cuLaunchKernel(f, 2, 1, 1, 256, 1, 1, 0, NULL, arguments, NULL));
	OK(cuStreamSynchronize(NULL));
	CU_ASSERT_TRUE(bytes[0] == 2 && bytes[999] == 2 && bytes[1000] == 6);
	at += 1 << 20; /* a hole */
	OK(cuLaunchKernel(f, 2, 1, 1, 256, 1, 1, 0, NULL, arguments, NULL));
	CU_ASSERT_EQUAL(cuStreamSynchronize(NULL), 700);
	fake_cuda_break(0, 0);
	OK(cuMemFree_v2(at - (1 << 20)));
	OK(cuModuleUnload(module));
	leave_device(0);
}

/* ---- bugs of the caller ---- */

static struct tt_ticket_lock job;

static int do_badly(const char *what)
{
	CUdeviceptr at;
	CUstream stream;

	if (freopen("/dev/null", "w", stderr) == NULL)
		return 1;
	use_device(0);
	fake_cuda_seed(4);
	fake_cuda_watch(holds_lock);
	OK(cuMemAlloc_v2(&at, LEN));
	OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
	tt_ticket_lock_take(&job);
	if (!strcmp(what, "alloc"))
		cuMemAlloc_v2(&at, 1);
	if (!strcmp(what, "pageable"))
		cuMemcpyAsync(at, (CUdeviceptr)malloc(8), 8, stream);
	tt_ticket_lock_release(&job);
	return 0;
}

static void test_bugs(void)
{
	const char *const bad[] = { "alloc", "pageable" };
	int status;

	CU_ASSERT_EQUAL(spawn("nothing", 0, 0), 0);
	for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
		status = spawn(bad[i], 0, 0);
		CU_ASSERT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
	}
	use_device(0);
	pid_t child = fork();
	if (!child) {
		signal(SIGABRT, SIG_DFL);
		if (freopen("/dev/null", "w", stderr))
			cuInit(0);
		_exit(0);
	}
	CU_ASSERT_EQUAL(waitpid(child, &status, 0), child);
	CU_ASSERT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
	leave_device(0);
}

static CU_TestInfo tests[] = { { "polled words", test_thread },    { "untouchable", test_untouchable },
	                       { "kinds of memory", test_kinds },  { "order", test_order },
	                       { "legacy stream", test_legacy },   { "export", test_export },
	                       { "failures", test_failures },      { "capture", test_capture },
	                       { "kernels", test_kernel },         { "bugs", test_bugs },
	                       CU_TEST_INFO_NULL };
static CU_SuiteInfo suites[] = { { "fake libcuda", NULL, NULL, NULL, NULL, tests }, CU_SUITE_INFO_NULL };

int main(int argc, char **argv)
{
	is_started = argc == 4;
	if (is_started && !strcmp(argv[1], "import"))
		return be_importer(atoi(argv[2]), strtoul(argv[3], NULL, 10));
	if (is_started)
		return do_badly(argv[1]);
	return run_suites(suites, argc, argv);
}
