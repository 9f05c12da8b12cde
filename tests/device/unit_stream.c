/* unit_stream.c - calls wait for work in the calling thread's stream, and for no other; which streams are refused */
#include "tests/device/memory.h"

enum { LEN = 100000 };

struct stage { /* of a test, on rank 0: its streams as a program makes them */
	CUcontext context;
	CUstream stream, other;
};

static void open_stage(struct stage *s, int device)
{
	CHECK(cuInit(0) == 0 && cuDevicePrimaryCtxRetain(&s->context, device) == 0);
	CHECK(cuCtxPushCurrent_v2(s->context) == 0);
	CHECK(cuStreamCreate(&s->stream, CU_STREAM_NON_BLOCKING) == 0);
	CHECK(cuStreamCreate(&s->other, CU_STREAM_NON_BLOCKING) == 0);
}

static void close_stage(struct stage *s, int device)
{
	CHECK(cuStreamDestroy_v2(s->stream) == 0 && cuStreamDestroy_v2(s->other) == 0);
	cuCtxPopCurrent_v2(NULL);
	CHECK(cuDevicePrimaryCtxRelease_v2(device) == 0);
}

/* Rank 0 puts what its stream is about to write. The stream is slow: the put is under way until the stream goes on. */
static void put_late(tutti *job, tutti_window *w, char *mine, CUstream held, CUstream stream, bool waits)
{
	tutti_op op;
	int err = -1;

	paint(mine, LEN, 1);
	CHECK(tutti_stream(job, stream) == 0);
	fake_cuda_hold(held, true);
	CHECK(cuMemsetD8Async((CUdeviceptr)(uintptr_t)mine, 7, LEN, held) == 0);
	memset(&op, 0, sizeof op);
	CHECK(tutti_put(w, 1, 0, mine, LEN, &op) == 0);
	for (int i = 0; i < (waits ? 20 : 2000) && (err = tutti_test(&op)); i++)
		pass_time(2 * TT_MS);
	CHECK(!err == !waits);
	fake_cuda_hold(held, false);
	CHECK(!waits || tutti_wait(&op, -1) == 0);
	CHECK(cuStreamSynchronize(held) == 0);
	CHECK(tutti_stream(job, NULL) == 0);
}

static bool is_all(const char *bytes, char value)
{
	return bytes[0] == value && !memcmp(bytes, bytes + 1, LEN - 1);
}

static void program_order(tutti *job)
{
	char *window = take(job, LEN, -1);
	tutti_window *w;

	CHECK(tutti_window_open(job, "w", window, LEN, &w) == 0);
	for (int turn = 0; turn < 2; turn++) { /* in that stream, and in another one */
		if (!tutti_rank(job)) {
			char *mine = take(job, LEN, 0);
			struct stage s;
			open_stage(&s, 0);
			put_late(job, w, mine, s.stream, turn ? s.other : s.stream, !turn);
			close_stage(&s, 0);
			tutti_free(job, mine);
		}
		CHECK(tutti_barrier(job, NULL) == 0);
		if (tutti_rank(job))
			CHECK(turn ? is_painted(window, LEN, 1) : is_all(window, 7));
		CHECK(tutti_barrier(job, NULL) == 0);
	}
	tutti_window_close(w);
	tutti_free(job, window);
}

static void test_order(void)
{
	run_everywhere(2, 0, program_order);
	expect_nothing_left();
}

static void program_refused(tutti *job)
{
	char *window = take(job, LEN, -1), *mine = take(job, LEN, 0);
	struct stage s, elsewhere;
	CUcontext own;
	CUstream foreign = NULL;
	tutti_window *w;
	void *graph;

	CHECK(tutti_window_open(job, "w", window, LEN, &w) == 0);
	paint(mine, LEN, 3);
	open_stage(&s, 0);
	CHECK(tutti_stream(NULL, s.stream) == -EINVAL);
	CHECK(cuCtxCreate_v2(&own, 0, 0) == 0 && cuStreamCreate(&foreign, 0) == 0);
	CHECK(tutti_stream(job, foreign) == -EINVAL && strstr(tutti_why(), "primary context"));
	cuStreamDestroy_v2(foreign);
	cuCtxDestroy_v2(own);

	CHECK(tutti_stream(job, s.other) == 0);
	CHECK(cuStreamBeginCapture_v2(s.other, 0) == 0);
	CHECK(tutti_put(w, 0, 0, mine, LEN, NULL) == -ENOTSUP && strstr(tutti_why(), "captured"));
	CHECK(tutti_put(w, 0, 0, window, 8, NULL) == 0); /* the host's memory has nothing to do with it */
	CHECK(tutti_stream(job, s.stream) == 0);
	CHECK(tutti_put(w, 0, 0, mine, LEN, NULL) == 0); /* beside the capture */
	CHECK(fake_cuda_captured() == 0 && cuStreamEndCapture(s.other, &graph) == 0);

	open_stage(&elsewhere, 1); /* its stream is for memory of GPU 1 alone */
	CHECK(tutti_stream(job, elsewhere.stream) == 0);
	CHECK(tt_gpu_stream(0) == s.stream && tt_gpu_stream(1) == elsewhere.stream);
	CHECK(tutti_put(w, 0, 0, mine, LEN, NULL) == 0 && is_painted(window, LEN, 3));
	CHECK(tutti_stream(job, NULL) == 0 && !tt_gpu_stream(0) && !tt_gpu_stream(1));
	close_stage(&elsewhere, 1);
	close_stage(&s, 0);
	tutti_window_close(w);
	tutti_free(job, window);
	tutti_free(job, mine);
}

static void test_refused(void)
{
	run_everywhere(1, 0, program_refused);
	expect_nothing_left();
}

/* ---- a capture of another thread ---- */

static atomic_bool begun, over;

static void *capture(void *unused)
{
	struct stage s;
	void *graph;

	open_stage(&s, 0);
	CHECK(cuStreamBeginCapture_v2(s.stream, 0) == 0); /* global: each unsafe call of any thread ends it */
	begun = true;
	while (!over)
		usleep(100);
	CHECK(cuStreamEndCapture(s.stream, &graph) == 0);
	close_stage(&s, 0);
	return unused;
}

/* Every step of a call's way, the first use of the GPU too, leaves the capture as it is. */
static void program_beside(tutti *job)
{
	int me = tutti_rank(job), other = 1 - me;
	pthread_t thread;
	tutti_window *w;
	char *memory, *mine;

	if (!me) {
		begun = over = false;
		CHECK(pthread_create(&thread, NULL, capture, NULL) == 0);
		while (!begun)
			usleep(100);
	}
	CHECK(tutti_barrier(job, NULL) == 0);
	memory = take(job, LEN, 0);
	mine = take(job, LEN, 0);
	paint(memory, LEN, me);
	CHECK(tutti_window_open(job, "w", memory, LEN, &w) == 0);
	CHECK(tutti_get(w, other, 0, mine, LEN, NULL) == 0 && is_painted(mine, LEN, other));
	CHECK(tutti_barrier(job, NULL) == 0);
	CHECK(tutti_put(w, other, 0, mine, LEN, NULL) == 0);
	CHECK(tutti_broadcast(job, mine, LEN, 0, NULL) == 0 && is_painted(mine, LEN, 1));
	CHECK(me ? tutti_recv(job, 0, 1, mine, LEN, NULL, NULL) == 0 : tutti_send(job, 1, 1, mine, LEN, NULL) == 0);
	CHECK(tutti_barrier(job, NULL) == 0);
	tutti_window_close(w);
	CHECK(tutti_barrier(job, NULL) == 0);
	over = true;
	if (!me)
		CHECK(pthread_join(thread, NULL) == 0);
	CHECK(tutti_barrier(job, NULL) == 0);
	tutti_free(job, memory); /* this would have ended the capture */
	tutti_free(job, mine);
}

static void test_beside(void)
{
	CU_ASSERT_EQUAL(run_ranks((struct ranks){ .size = 2, .wire = "tcp", .program = program_beside }), 0);
	expect_nothing_left();
	CU_ASSERT_EQUAL(run_ranks((struct ranks){ .size = 2, .wire = "shm", .program = program_beside }), 0);
	expect_nothing_left();
}

static CU_TestInfo tests[] = { { "order", test_order }, { "refused", test_refused },
	                       { "beside a capture", test_beside }, CU_TEST_INFO_NULL };
static CU_SuiteInfo suites[] = { { "stream", NULL, NULL, NULL, NULL, tests }, CU_SUITE_INFO_NULL };

int main(int argc, char **argv)
{
	fake_cuda_watch(holds_lock);
	return run_suites(suites, argc, argv);
}
