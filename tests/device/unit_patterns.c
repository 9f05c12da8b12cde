/* unit_patterns.c - broadcasts and calls of tables take a device's memory; over sim, tcp and shm */
#include "tests/device/memory.h"

enum { MOST = (1 << 20) + 13, SIZES = 5 };
static const size_t sizes[SIZES] = { 1, 300, 5000, 200000, MOST };

/* ---- broadcast ---- */

/* Kinds of memory: all host, all devices, and mixed. */
static void program_broadcast(tutti *job)
{
	int me = tutti_rank(job), n = tutti_size(job);
	char *memory[2] = { take(job, MOST, -1), take(job, MOST, me % 2) };

	for (int i = 0; i < SIZES; i++)
		for (int kinds = 1; kinds < 1 << n; kinds++) {
			char *mine = memory[kinds >> me & 1];
			int root = (i + kinds) % n;
			paint(mine, sizes[i], me == root ? i + kinds : 99);
			CHECK(tutti_broadcast(job, mine, sizes[i], root, NULL) == 0);
			CHECK(is_painted(mine, sizes[i], i + kinds));
		}
	CHECK(tutti_barrier(job, NULL) == 0);
	tutti_free(job, memory[0]);
	tutti_free(job, memory[1]);
}

static void test_broadcast(void)
{
	run_everywhere(3, 0, program_broadcast);
	run_everywhere(1, 0, program_broadcast);
	expect_nothing_left();
}

/* ---- tables ---- */

enum { COUNT = 70001 };

static float *floats(tutti *job, int gpu) { return (float *)(void *)take(job, COUNT * sizeof(float), gpu); }

static void fill(float *device, int seed)
{
	float *bytes = (float *)(void *)bytes_of(device);

	for (int i = 0; i < COUNT; i++)
		bytes[i] = (float)((i * 13 + seed * 5) % 97) * 0.37f;
}

struct steps { /* what the pulls of a table have brought, one behind the other */
	float *pulled;
	int n;
};

static void keep(struct steps *s, float *values)
{
	memcpy(s->pulled + (size_t)s->n++ * COUNT, bytes_of(values), COUNT * sizeof *values);
}

/* The same calls on memory of that kind; deltas are sums of whole steps, so that their order does not matter. */
static void run_table(tutti *job, const char *name, tutti_mode mode, int gpu, struct steps *s)
{
	tutti_table_config c = tutti_table_f32(COUNT, tutti_accumulate());
	float *delta = floats(job, gpu), *values = floats(job, gpu);
	int me = tutti_rank(job);
	tutti_table *t;
	tutti_op op;

	c.consistency.mode = mode;
	CHECK(tutti_table_open(job, name, &c, &t) == 0);
	for (int step = 0; step < 3; step++) {
		fill(delta, mode == TUTTI_ASYNC ? 0 : me + step); /* an async table adds in any order */
		memset(&op, 0, sizeof op);
		if (step % 2) {
			CHECK(tutti_table_push_pull(t, delta, NULL, values, NULL) == 0);
		} else {
			CHECK(tutti_table_push(t, delta, NULL, &op) == 0);
			CHECK(tutti_wait(&op, -1) == 0);
			CHECK(tutti_table_pull(t, values, NULL) == 0);
		}
		if (mode == TUTTI_ASYNC) {
			CHECK(tutti_barrier(job, NULL) == 0);
			CHECK(tutti_table_pull(t, values, NULL) == 0);
			CHECK(tutti_barrier(job, NULL) == 0);
		}
		keep(s, values);
	}
	CHECK(tutti_barrier(job, NULL) == 0);
	if (mode == TUTTI_ASYNC && !me) {
		fill(delta, 3);
		CHECK(tutti_table_assign(t, delta, NULL) == 0);
	}
	CHECK(tutti_barrier(job, NULL) == 0);
	CHECK(tutti_table_pull(t, values, NULL) == 0);
	keep(s, values);
	CHECK(tutti_barrier(job, NULL) == 0);
	tutti_table_close(t);
	tutti_free(job, delta);
	tutti_free(job, values);
}

static void program_tables(tutti *job)
{
	static const tutti_mode modes[] = { TUTTI_ASYNC, TUTTI_BSP, TUTTI_SSP };
	struct steps host, device;
	size_t bytes = 4 * COUNT * sizeof(float);

	for (size_t i = 0; i < TT_COUNT(modes); i++) {
		char name[2][8] = { "host0", "gpu0" };
		name[0][4] = name[1][3] = (char)('0' + i);
		host = (struct steps){ malloc(bytes), 0 };
		device = (struct steps){ malloc(bytes), 0 };
		run_table(job, name[0], modes[i], -1, &host);
		run_table(job, name[1], modes[i], tutti_rank(job) % 2, &device);
		if (modes[i] != TUTTI_SSP) /* which may bring stale values */
			CHECK(!memcmp(host.pulled, device.pulled, bytes));
		CHECK(!memcmp(host.pulled + 3 * COUNT, device.pulled + 3 * COUNT, COUNT * sizeof(float)) ||
		      modes[i] == TUTTI_SSP);
		free(host.pulled);
		free(device.pulled);
	}
}

static void test_tables(void)
{
	run_everywhere(2, 0, program_tables);
	run_everywhere(1, 0, program_tables);
	expect_nothing_left();
}

/* ---- a stream that stands still ---- */

static CUcontext context;
static CUstream stream;

static void hold_stream(tutti *job, float *memory, bool hold)
{
	if (hold) {
		CHECK(cuInit(0) == 0 && cuDevicePrimaryCtxRetain(&context, 0) == 0);
		CHECK(cuCtxPushCurrent_v2(context) == 0);
		CHECK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING) == 0);
		CHECK(tutti_stream(job, stream) == 0);
		fake_cuda_hold(stream, true);
		CHECK(cuMemsetD8Async((CUdeviceptr)(uintptr_t)memory, 0, COUNT * sizeof *memory, stream) == 0);
		return;
	}
	fake_cuda_hold(stream, false);
	CHECK(cuStreamSynchronize(stream) == 0);
	CHECK(tutti_stream(job, NULL) == 0);
	CHECK(cuStreamDestroy_v2(stream) == 0);
	cuCtxPopCurrent_v2(NULL);
	CHECK(cuDevicePrimaryCtxRelease_v2(0) == 0);
}

/* Calls of a table keep their order, so the assignment stands. A call that is given up ends without its stream. */
static void held_table(tutti *job, tutti_table *t, float *device, float *host)
{
	tutti_op push, assign, given_up;

	memset(&push, 0, sizeof push);
	memset(&assign, 0, sizeof assign);
	memset(&given_up, 0, sizeof given_up);
	fill(device, 1);
	hold_stream(job, device, true);
	CHECK(tutti_table_push(t, device, NULL, &push) == 0);
	fill(host, 5);
	CHECK(tutti_table_assign(t, host, &assign) == 0);
	CHECK(tutti_table_push(t, device, NULL, &given_up) == 0);
	CHECK(tutti_cancel(&given_up) == 0 && tutti_wait(&given_up, -1) == -ECANCELED);
	for (int i = 0; i < 20; i++) {
		pass_time(TT_MS);
		CHECK(tutti_test(&push) != 0 && tutti_test(&assign) != 0);
	}
	hold_stream(job, device, false);
	CHECK(tutti_wait(&push, -1) == 0);
	CHECK(tutti_wait(&assign, -1) == 0);
	CHECK(tutti_table_pull(t, device, NULL) == 0);
	CHECK(!memcmp(bytes_of(device), host, COUNT * sizeof *host));
}

static void program_held(tutti *job)
{
	tutti_table_config c = tutti_table_f32(COUNT, tutti_accumulate());
	float *device = floats(job, 0), *host = floats(job, -1);
	int me = tutti_rank(job);
	tutti_table *t;
	tutti_op op;

	CHECK(tutti_table_open(job, "t", &c, &t) == 0);
	if (!me)
		held_table(job, t, device, host);
	CHECK(tutti_barrier(job, NULL) == 0);
	fill(device, 9); /* the stream sets all to 0 before the broadcast reads it */
	memset(&op, 0, sizeof op);
	if (!me)
		hold_stream(job, device, true);
	CHECK(tutti_broadcast(job, device, COUNT * sizeof *device, 0, &op) == 0);
	for (int i = 0; !me && i < 20; i++) {
		pass_time(TT_MS);
		CHECK(tutti_test(&op) != 0);
	}
	if (!me)
		hold_stream(job, device, false);
	CHECK(tutti_wait(&op, -1) == 0);
	for (int i = 0; i < COUNT; i++)
		((float *)(void *)host)[i] = 0;
	CHECK(!memcmp(bytes_of(device), host, COUNT * sizeof *host));
	CHECK(tutti_barrier(job, NULL) == 0);
	tutti_table_close(t);
	tutti_free(job, device);
	tutti_free(job, host);
}

static void test_held(void)
{
	run_everywhere(2, 0, program_held);
	expect_nothing_left();
}

/* ---- a GPU that fails ---- */

static bool is_lost(tutti_op *op) { return tutti_wait(op, -1) == -EIO && strstr(tutti_why(), "GPU 0: CUDA error 700"); }

/* GPU 0, which is rank 0's, fails in the middle of calls. Rank 1's memory is the host's, and it goes on. */
static void program_broken(tutti *job)
{
	int me = tutti_rank(job);
	float *mine = floats(job, -me);
	tutti_table_config c = tutti_table_f32(COUNT, tutti_accumulate());
	tutti_op ops[4]; /* reads and writes the memory; pushes and pulls it */
	tutti_table *t;

	memset(ops, 0, sizeof ops);
	CHECK(tutti_table_open(job, "t", &c, &t) == 0);
	if (!me)
		hold_stream(job, mine, true);
	CHECK(tutti_broadcast(job, mine, COUNT * sizeof *mine, 0, &ops[0]) == 0);
	CHECK(tutti_broadcast(job, mine, COUNT * sizeof *mine, 1, &ops[1]) == 0);
	CHECK(tutti_table_pull(t, mine, &ops[3]) == 0);
	CHECK(tutti_table_push(t, mine, NULL, &ops[2]) == 0);
	pass_time(20 * TT_MS);
	if (!me)
		fake_cuda_break(0, 700);
	CHECK(me ? tutti_wait(&ops[0], -1) == -ECONNABORTED : is_lost(&ops[0]));
	for (int i = 1; i < 4; i++)
		CHECK(me ? tutti_wait(&ops[i], -1) == 0 : is_lost(&ops[i]));
	CHECK(tutti_barrier(job, NULL) == 0);
	if (!me) {
		fake_cuda_break(0, 0);
		hold_stream(job, mine, false);
	}
	tutti_table_close(t);
	tutti_free(job, mine);
}

static void test_broken(void)
{
	static const char *const wires[] = { "sim", "tcp", "shm" };

	for (size_t i = 0; i < TT_COUNT(wires); i++) {
		fake_cuda_thread(i > 0);
		CU_ASSERT_EQUAL(run_ranks((struct ranks){ .size = 2, .wire = wires[i], .program = program_broken }), 0);
		tt_gpu_close(); /* a broken device is one for good, until then, and nothing of it is given back */
	}
}

static CU_TestInfo tests[] = { { "broadcast", test_broadcast }, { "tables", test_tables }, { "held", test_held },
	                       { "broken", test_broken }, CU_TEST_INFO_NULL };
static CU_SuiteInfo suites[] = { { "patterns", NULL, NULL, NULL, NULL, tests }, CU_SUITE_INFO_NULL };

int main(int argc, char **argv)
{
	fake_cuda_watch(holds_lock);
	nets_reach_it = false;
	return run_suites(suites, argc, argv);
}
