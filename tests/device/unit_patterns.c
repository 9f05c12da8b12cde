/* unit_patterns.c - broadcasts and calls of tables take a device's memory; over sim, tcp and shm */
#include "average/gossip.h"
#include "gpu/gpu_private.h"
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

/* ---- gossip ---- */

enum { TENSORS = 4, ROUNDS = 4 };
static const tutti_type types[TENSORS] = { TUTTI_F32, TUTTI_BF16, TUTTI_I32, TUTTI_F64 };
static const size_t counts[TENSORS] = { 300001, 777, 1001, 3 };

struct model {
	tutti_tensor list[TENSORS];
	char *memory;
	size_t bytes;
};

static struct model model_on(tutti *job, int gpu)
{
	struct model m = { .bytes = 0 };

	for (int i = 0; i < TENSORS; i++)
		m.bytes += (counts[i] * tt_type_size(types[i]) + 63) / 64 * 64;
	char *at = m.memory = take(job, m.bytes, gpu);
	for (int i = 0; i < TENSORS; at += (counts[i] * tt_type_size(types[i]) + 63) / 64 * 64, i++)
		m.list[i] = (tutti_tensor){ at, counts[i], types[i] };
	return m;
}

/* Small numbers, of every type. */
static void fill_model(const struct model *m, int seed)
{
	for (int i = 0; i < TENSORS; i++) {
		char *bytes = bytes_of(m->list[i].data);
		for (size_t k = 0; k < counts[i]; k++) {
			float x = (float)((int)(k * 7 + (size_t)seed * 31) % 1000) * 0.013f;
			double wide = x;
			int32_t whole = (int32_t)(x * 100);
			if (types[i] == TUTTI_F32)
				memcpy(bytes + 4 * k, &x, 4);
			else if (types[i] == TUTTI_BF16)
				memcpy(bytes + 2 * k, (char *)&x + 2, 2);
			else if (types[i] == TUTTI_I32)
				memcpy(bytes + 4 * k, &whole, 4);
			else
				memcpy(bytes + 8 * k, &wide, 8);
		}
	}
}

static int chosen(void *peer) { return *(int *)peer; }

/* Publishes and mixes in turn; what each mix has made goes into `made`. Barriers: the rounds are the same each time. */
static void gossip(tutti *job, const char *name, int gpu, tutti_gossip_place place, char *made)
{
	tutti_gossip_config c = tutti_gossip_defaults();
	struct model m = model_on(job, gpu), to = model_on(job, gpu);
	tutti_gossip_result r;
	tutti_gossip *g;
	int peer;

	c.place = place;
	c.value = 0.3;
	c.timeout_ms = 20000;
	c.choice = TUTTI_CHOICE_OWN;
	c.choose = chosen;
	c.arg = &peer;
	fill_model(&m, tutti_rank(job));
	CHECK(tutti_gossip_open(job, name, m.list, TENSORS, &c, &g) == 0);
	g->device.piece = 128 << 10; /* the model has ten */
	CHECK(tutti_barrier(job, NULL) == 0);
	for (int i = 0; i < ROUNDS; i++) {
		peer = -1; /* so that both have published before one reads */
		CHECK(tutti_gossip_publish(g, 0) == 0);
		CHECK(tutti_barrier(job, NULL) == 0);
		peer = 1 - tutti_rank(job);
		CHECK(tutti_gossip_publish(g, 0) == 0);
		if (i == 1)
			CHECK(tutti_gossip_set_value(g, 1) == 0);
		CHECK(i == 2 ? tutti_gossip_fetch(g, 0, to.list, &r) == 0 : tutti_gossip_mix(g, 0, &r) == 0);
		CHECK(r.peer == 1 - tutti_rank(job));
		if (r.peer < 0)
			printf("%s: %s\n", name, r.why);
		memcpy(made + (size_t)i * m.bytes, bytes_of(i == 2 ? to.memory : m.memory), m.bytes);
		CHECK(tutti_gossip_set_value(g, 0.3) == 0);
		CHECK(tutti_barrier(job, NULL) == 0);
		fill_model(&m, tutti_rank(job) + 5 * i);
	}
	tutti_gossip_close(g);
	tutti_free(job, m.memory);
	tutti_free(job, to.memory);
}

static bool has_kernels(void)
{
#ifdef HAVE_GPU_KERNELS
	return true;
#else
	return false;
#endif
}

/* A build without kernels for GPUs refuses a model there. */
static void program_no_kernels(tutti *job)
{
	struct model m = model_on(job, 0);
	const tutti_gossip_config c = tutti_gossip_defaults();
	tutti_gossip *g;

	CHECK(tutti_gossip_open(job, "g", m.list, TENSORS, &c, &g) == -ENOTSUP && strstr(tutti_why(), "no kernels"));
	tutti_free(job, m.memory);
}

static void program_gossip(tutti *job)
{
	size_t all = ROUNDS * (1u << 22);
	char *host = calloc(1, all), *there = calloc(1, all), *staged = calloc(1, all), *mixed = calloc(1, all);
	int me = tutti_rank(job);

	gossip(job, "host", -1, TUTTI_PLACE_MODEL, host);
	gossip(job, "device", me, TUTTI_PLACE_MODEL, there);
	gossip(job, "staged", me, TUTTI_PLACE_HOST, staged);
	gossip(job, "mixed", me - 1, TUTTI_PLACE_HOST, mixed); /* rank 0's model is the host's */
	CHECK(!memcmp(host, there, all));
	CHECK(!memcmp(host, staged, all));
	CHECK(!memcmp(host, mixed, all));
	free(host);
	free(there);
	free(staged);
	free(mixed);
}

/* What is refused of a model on a device. */
static void program_gossip_refused(tutti *job)
{
	struct model m = model_on(job, 0), host = model_on(job, -1);
	tutti_gossip_config c = tutti_gossip_defaults();
	tutti_tensor both[2] = { m.list[0], host.list[0] };
	tutti_gossip_result r;
	tutti_gossip *g;
	tutti_op op;

	CHECK(tutti_gossip_open(job, "g", both, 2, &c, &g) == -ENOTSUP && strstr(tutti_why(), "one place"));
	c.way = TUTTI_GOSSIP_PUSH;
	CHECK(tutti_gossip_open(job, "g", m.list, TENSORS, &c, &g) == -ENOTSUP && strstr(tutti_why(), "pulls"));
	c.way = TUTTI_GOSSIP_PULL;
	c.place = 7;
	CHECK(tutti_gossip_open(job, "g", m.list, TENSORS, &c, &g) == -EINVAL && strstr(tutti_why(), "place"));
	c.place = TUTTI_PLACE_MODEL;
	CHECK(tutti_gossip_open(job, "g", m.list, TENSORS, &c, &g) == 0);
	memset(&op, 0, sizeof op);
	CHECK(tutti_gossip_mix_start(g, 0, &op) == -ENOTSUP && strstr(tutti_why(), "GPU 0"));
	CHECK(tutti_gossip_fetch(g, 0, host.list, &r) == -ENOTSUP && strstr(tutti_why(), "GPU 0"));
	CHECK(tutti_gossip_publish(g, 0) == 0);
	CHECK(tutti_gossip_mix(g, 0, &r) == 0 && r.peer == -1);
	tutti_gossip_close(g);
	tutti_free(job, m.memory);
	tutti_free(job, host.memory);
}

/* Rank 0 publishes as fast as it can, always one number everywhere. What rank 1 fetches is one number everywhere. */
static void program_torn(tutti *job)
{
	enum { MANY = 40 };
	int me = tutti_rank(job), peer = me ? 0 : -1, came = 0;
	float *mine = floats(job, 0), *theirs = floats(job, 0);
	tutti_tensor m = { mine, COUNT, TUTTI_F32 }, to = { theirs, COUNT, TUTTI_F32 };
	tutti_gossip_config c = tutti_gossip_defaults();
	tutti_gossip_result r;
	tutti_gossip *g;

	c.choice = TUTTI_CHOICE_OWN;
	c.choose = chosen;
	c.arg = &peer;
	c.buffers = 2; /* the fewest: a reader is overtaken often */
	CHECK(tutti_gossip_open(job, "torn", &m, 1, &c, &g) == 0);
	CHECK(tutti_gossip_publish(g, 0) == 0);
	CHECK(tutti_barrier(job, NULL) == 0);
	for (int i = 0; i < MANY; i++) {
		memset(bytes_of(mine), i, COUNT * sizeof *mine);
		CHECK(tutti_gossip_publish(g, 0) == 0);
		CHECK(!me || tutti_gossip_fetch(g, 0, &to, &r) == 0);
		if (!me || r.peer != 0)
			continue;
		const char *bytes = bytes_of(theirs);
		CHECK(!memcmp(bytes, bytes + 1, COUNT * sizeof *theirs - 1));
		came++;
	}
	CHECK(!me || came > 0);
	CHECK(tutti_barrier(job, NULL) == 0);
	tutti_gossip_close(g);
	tutti_free(job, mine);
	tutti_free(job, theirs);
}

static const char *failing; /* a function of the driver */

/* Each call of the driver fails once: it has a sentence, or does not matter, and nothing is left behind. */
static void program_failing(tutti *job)
{
	struct model m = model_on(job, 0);
	tutti_gossip_config c = tutti_gossip_defaults();
	tutti_gossip *g;
	int err;

	for (int nth = 1; nth <= 8; nth++) {
		c.place = nth % 2 ? TUTTI_PLACE_MODEL : TUTTI_PLACE_HOST;
		fake_cuda_fail(failing, (nth + 1) / 2, 2); /* out of memory */
		err = tutti_gossip_open(job, "g", m.list, TENSORS, &c, &g);
		CHECK(!err || *tutti_why());
		if (err)
			continue;
		err = tutti_gossip_publish(g, 0);
		CHECK(!err || *tutti_why());
		err = tutti_broadcast(job, m.memory, m.bytes, 0, NULL);
		CHECK(!err || *tutti_why());
		tutti_gossip_close(g);
	}
	fake_cuda_fail(failing, 1 << 30, 0);
	tutti_free(job, m.memory);
}

static void test_failing(void)
{
	static const char *const functions[] = { "cuMemCreate", "cuMemAddressReserve", "cuMemMap", "cuMemSetAccess",
		"cuStreamCreate", "cuMemHostRegister_v2", "cuMemcpyAsync", "cuEventCreate", "cuEventRecord",
		"cuPointerGetAttributes", "cuModuleLoadData", "cuModuleGetFunction" };

	fake_cuda_thread(false);
	for (size_t i = 0; has_kernels() && i < TT_COUNT(functions); i++) {
		failing = functions[i];
		fake_cuda_seed(i);
		CU_ASSERT_EQUAL(run_on_sim(1, 1, 10000, program_failing), 0);
		expect_nothing_left();
	}
	fake_cuda_thread(true);
}

static void test_torn(void)
{
	if (has_kernels())
		run_everywhere(2, 0, program_torn);
	expect_nothing_left();
}

static void test_gossip(void)
{
	if (has_kernels()) {
		run_everywhere(2, 0, program_gossip);
		run_everywhere(1, 0, program_gossip_refused);
	} else {
		run_everywhere(1, 0, program_no_kernels);
	}
	expect_nothing_left();
}

/* ---- publications ---- */

/* A device copies into a version without a buffer between: CUDA has pinned its memory. */
static bool is_pinned(const void *memory)
{
	CUpointer_attribute which[] = { CU_POINTER_ATTRIBUTE_MEMORY_TYPE };
	unsigned type = 0;
	void *values[] = { &type };

	return !cuPointerGetAttributes(1, which, values, (CUdeviceptr)(uintptr_t)memory) && type == CU_MEMORYTYPE_HOST;
}

static void program_publisher(tutti *job)
{
	const tutti_weight w = { .name = "w", .type = TUTTI_F32, .dims = 1, .shape = { COUNT } };
	float *model = floats(job, 0);
	tutti_publisher *p = NULL;
	tutti_tensor to = { 0 };

	CHECK(tutti_publisher_open(job, "p", &w, 1, NULL, &p) == 0 && tutti_publisher_begin(p, &to) == 0);
	CHECK(is_pinned(to.data));
	CHECK(tutti_publisher_commit(p, 1, NULL, 0) == 0);
	tutti_publisher_close(p);
	p = NULL;
	fake_cuda_fail("cuMemHostRegister_v2", 1, 2);
	CHECK(tutti_publisher_open(job, "p", &w, 1, NULL, &p) == 0 && tutti_publisher_begin(p, &to) == 0);
	CHECK(!is_pinned(to.data)); /* and does as well */
	tutti_publisher_close(p);
	fake_cuda_fail("cuMemHostRegister_v2", 1 << 30, 0);
	tutti_free(job, model);
}

static void test_publisher(void)
{
	run_everywhere(1, 0, program_publisher);
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

/* Rank 0's publish waits for its stream, which rank 1 lets go. */
static void held_gossip(tutti *job, float *device)
{
	static atomic_bool has_returned;
	tutti_gossip_config c = tutti_gossip_defaults();
	tutti_tensor m = { device, COUNT, TUTTI_F32 };
	tutti_gossip *g;

	CHECK(tutti_gossip_open(job, "held", &m, 1, &c, &g) == 0);
	has_returned = false;
	if (!tutti_rank(job))
		hold_stream(job, device, true);
	CHECK(tutti_barrier(job, NULL) == 0);
	if (!tutti_rank(job)) {
		CHECK(tutti_gossip_publish(g, 0) == 0);
		has_returned = true;
	} else {
		pass_time(20 * TT_MS);
		CHECK(!has_returned);
		fake_cuda_hold(stream, false);
	}
	CHECK(tutti_barrier(job, NULL) == 0);
	if (!tutti_rank(job))
		hold_stream(job, device, false);
	tutti_gossip_close(g);
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
	if (has_kernels())
		held_gossip(job, device);
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

/* What waits for a stream can be given up, and counts for no clock then. */
static void program_given_up(tutti *job)
{
	float *device = floats(job, 0), *host = floats(job, -1);
	tutti_table_config c = tutti_table_f32(COUNT, tutti_accumulate());
	int me = tutti_rank(job);
	tutti_op ops[4];
	tutti_table *t;

	memset(ops, 0, sizeof ops);
	c.consistency.mode = TUTTI_BSP;
	CHECK(tutti_table_open(job, "t", &c, &t) == 0);
	fill(host, 2);
	if (!me)
		hold_stream(job, device, true);
	if (me) {
		CHECK(tutti_broadcast(job, host, COUNT * sizeof *host, 0, NULL) == -ECONNABORTED);
	} else {
		CHECK(tutti_table_pull(t, device, &ops[0]) == 0);
		CHECK(tutti_table_push(t, device, NULL, &ops[1]) == 0);
		CHECK(tutti_table_push_pull(t, host, NULL, device, &ops[2]) == 0);
		CHECK(tutti_broadcast(job, device, COUNT * sizeof *device, 0, &ops[3]) == 0);
		pass_time(5 * TT_MS);
	}
	for (int i = 3; !me && i >= 0; i--)
		CHECK(tutti_cancel(&ops[i]) == 0 && tutti_wait(&ops[i], -1) == -ECANCELED);
	if (!me)
		hold_stream(job, device, false);
	fill(device, 2);
	CHECK(tutti_table_push(t, device, NULL, NULL) == 0); /* the first round of both */
	CHECK(tutti_table_pull(t, device, NULL) == 0);
	for (int i = 0; i < COUNT; i++)
		host[i] += host[i];
	CHECK(!memcmp(bytes_of(device), host, COUNT * sizeof *host));
	CHECK(tutti_barrier(job, NULL) == 0);
	tutti_table_close(t);
	tutti_free(job, device);
	tutti_free(job, host);
}

static void test_given_up(void)
{
	run_everywhere(2, 0, program_given_up);
	expect_nothing_left();
}

/* ---- a GPU that stands still ---- */

static bool says_stuck(void) { return strstr(tutti_why(), "GPU 0 stands still"); }

static bool is_settled(tutti_gossip *g)
{
	tt_lock(g->job);
	bool settled = tt_fetch_is_settled(g->now);
	tt_unlock(g->job);
	return settled;
}

/* Rank 0's mix begins and does not end; nor do later calls, until the GPU goes on. `closes`: it never does. */
static void stuck_gossip(tutti *job, float *device, bool closes)
{
	int me = tutti_rank(job), peer = 1 - me;
	tutti_gossip_config c = tutti_gossip_defaults();
	tutti_tensor m = { device, COUNT, TUTTI_F32 };
	tutti_gossip_result r;
	tutti_gossip *g;

	c.timeout_ms = 20000;
	c.choice = TUTTI_CHOICE_OWN;
	c.choose = chosen;
	c.arg = &peer;
	CHECK(tutti_gossip_open(job, "stuck", &m, 1, &c, &g) == 0 && tutti_gossip_publish(g, 0) == 0);
	CHECK(tutti_barrier(job, NULL) == 0);
	CHECK(tutti_gossip_publish(g, 0) == 0);
	if (!me) {
		CUstream queue = g->device.queue->stream;
		while (!is_settled(g))
			pass_time(TT_MS);
		fake_cuda_hold(queue, true);
		CHECK(tutti_gossip_mix(g, 0, &r) == -ETIMEDOUT && says_stuck());
		if (!closes) {
			CHECK(tutti_gossip_publish(g, 0) == -ETIMEDOUT && strstr(tutti_why(), "GPU 0"));
			fake_cuda_hold(queue, false);
			CHECK(tutti_gossip_publish(g, 0) == 0 && tutti_gossip_mix(g, 0, &r) == 0 && r.peer == 1);
		} else {
			tutti_gossip_close(g);
			fake_cuda_hold(queue, false);
		}
	} else {
		pass_time((closes ? 1600 : 3100) * TT_MS);
	}
	CHECK(tutti_barrier(job, NULL) == 0);
	if (me || !closes)
		tutti_gossip_close(g);
}

static void program_stuck(tutti *job)
{
	float *device = floats(job, tutti_rank(job));

	if (has_kernels())
		stuck_gossip(job, device, false);
	tutti_free(job, device);
}

static void test_stuck(void)
{
	struct ranks run = { .size = 2, .wire = "shm", .timeout_ms = 1500, .program = program_stuck };

	CU_ASSERT_EQUAL(run_ranks(run), 0);
	expect_nothing_left();
}

static void program_closed_stuck(tutti *job)
{
	float *device = floats(job, tutti_rank(job));

	if (has_kernels())
		stuck_gossip(job, device, true);
	tutti_free(job, device);
}

/* What the copies used stays, so this is the last test. */
static void test_closed_stuck(void)
{
	struct ranks run = { .size = 2, .wire = "tcp", .timeout_ms = 1500, .program = program_closed_stuck };

	CU_ASSERT_EQUAL(run_ranks(run), 0);
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

static CU_TestInfo tests[] = {
	{ "broadcast", test_broadcast },
	{ "tables", test_tables },
	{ "gossip", test_gossip },
	{ "torn", test_torn },
	{ "publisher", test_publisher },
	{ "failing", test_failing },
	{ "held", test_held },
	{ "given up", test_given_up },
	{ "stuck", test_stuck },
	{ "broken", test_broken },
	{ "closed stuck", test_closed_stuck },
	CU_TEST_INFO_NULL,
};
static CU_SuiteInfo suites[] = { { "patterns", NULL, NULL, NULL, NULL, tests }, CU_SUITE_INFO_NULL };

int main(int argc, char **argv)
{
	fake_cuda_watch(holds_lock);
	nets_reach_it = false;
	return run_suites(suites, argc, argv);
}
