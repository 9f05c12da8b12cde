/* unit_device.c - memory of devices goes through windows and messages: from, to, and both; over sim, tcp and shm */
#include "device/device_private.h"
#include "gpu/gpu_private.h"
#include "tests/device/memory.h"
#include <sys/mman.h>
#include <sys/wait.h>

enum { MOST = (3 << 20) + 77, SIZES = 6 };
static const size_t sizes[SIZES] = { 1, 8, 300, 5000, 1 << 20, MOST };

/* ---- windows ---- */

/* The window is on `there` (-1: the host's), the caller's memory on `here`. Each rank asks the next one. */
static void try_pair(tutti *job, const char *name, int there, int here)
{
	int me = tutti_rank(job), n = tutti_size(job), next = (me + 1) % n;
	char *window = take(job, MOST, there), *mine = take(job, MOST, here);
	tutti_window *w;

	CHECK(tutti_window_open(job, name, window, MOST, &w) == 0);
	for (int i = 0; i < SIZES; i++) {
		size_t len = sizes[i], at = i % 2 ? MOST - len : 0;
		paint(mine, len, me + i);
		CHECK(tutti_put(w, next, at, mine, len, NULL) == 0);
		CHECK(tutti_barrier(job, NULL) == 0);
		CHECK(is_painted(window + at, len, (me + n - 1) % n + i));
		paint(mine, len, 99);
		CHECK(tutti_get(w, next, at, mine, len, NULL) == 0);
		CHECK(is_painted(mine, len, me + i));
		CHECK(tutti_barrier(job, NULL) == 0);
	}
	CHECK(tutti_put(w, next, MOST - 7, mine, 8, NULL) == -ERANGE);
	CHECK(tutti_barrier(job, NULL) == 0);
	tutti_window_close(w);
	tutti_free(job, window);
	tutti_free(job, mine);
}

static void program_windows(tutti *job)
{
	int mine = tutti_rank(job) % 2;

	try_pair(job, "host", -1, mine);
	try_pair(job, "device", mine, -1);
	try_pair(job, "both", mine, mine);
	try_pair(job, "other", 1 - mine, mine);
}

static void test_windows(void)
{
	run_everywhere(2, 0, program_windows);
	expect_nothing_left();
}

static void test_own(void)
{
	run_everywhere(1, 0, program_windows);
	expect_nothing_left();
}

/* ---- messages ---- */

/* Each rank sends to the next one, in a ring, and receives from the one before it; alone: to itself. */
static void pass_messages(tutti *job, int from, int to, bool posted)
{
	int me = tutti_rank(job), n = tutti_size(job), next = (me + 1) % n, before = (me + n - 1) % n;
	char *out = take(job, MOST, from), *in = take(job, MOST, to);

	for (int i = 0; i < SIZES; i++) {
		tutti_op send = { 0 }, receive = { 0 };
		tutti_message info;
		size_t len = sizes[i];
		paint(out, len, me + i);
		if (posted)
			CHECK(tutti_recv(job, before, i, in, MOST, &info, &receive) == 0);
		CHECK(tutti_barrier(job, NULL) == 0);
		CHECK(tutti_send(job, next, i, out, len, &send) == 0);
		if (!posted)
			CHECK(tutti_recv(job, before, i, in, MOST, &info, &receive) == 0);
		CHECK(tutti_wait(&receive, -1) == 0 && tutti_wait(&send, -1) == 0);
		CHECK(info.bytes == len && is_painted(in, len, before + i));
	}
	CHECK(tutti_barrier(job, NULL) == 0);
	tutti_free(job, out);
	tutti_free(job, in);
}

static void program_messages(tutti *job)
{
	int mine = tutti_rank(job) % 2;

	for (int posted = 0; posted < 2; posted++) {
		pass_messages(job, mine, -1, posted);
		pass_messages(job, -1, mine, posted);
		pass_messages(job, mine, 1 - mine, posted);
	}
}

static void test_messages(void)
{
	run_everywhere(2, 0, program_messages);
	expect_nothing_left();
}

static void test_own_messages(void)
{
	run_everywhere(1, 0, program_messages);
	expect_nothing_left();
}

/* ---- what is refused ---- */

static void program_refused(tutti *job)
{
	char *memory = take(job, 4096, 0), *host = take(job, 4096, -1);
	int me = tutti_rank(job), other = 1 - me;
	void *foreign = take_foreign(0, 4096);
	tutti_window *w, *h;

	CHECK(tutti_window_open(job, "foreign", foreign, 4096, &w) == -ENOTSUP && strstr(tutti_why(), "tutti_alloc"));
	CHECK(tutti_window_open(job, "w", memory, 4096, &w) == 0);
	CHECK(tutti_window_open(job, "h", host, 4096, &h) == 0);
	CHECK(tutti_add(w, me, 0, 1, NULL, NULL) == -ENOTSUP && strstr(tutti_why(), "GPU"));
	CHECK(tutti_add(w, other, 0, 1, NULL, NULL) == -ENOTSUP && strstr(tutti_why(), "GPU"));
	CHECK(!tutti_window_map(w, me) && !tutti_window_map(w, other));
	/* memory of another allocator is a source and a sink */
	paint(foreign, 4096, me);
	CHECK(tutti_put(h, other, 0, foreign, 4096, NULL) == 0);
	CHECK(tutti_barrier(job, NULL) == 0 && is_painted(host, 4096, other));
	CHECK(tutti_put(h, other, 0, (char *)foreign + 4000, 97, NULL) == -EINVAL); /* leaves its allocation */
	CHECK(tutti_barrier(job, NULL) == 0);
	tutti_window_close(w);
	tutti_window_close(h);
	free_foreign(0, foreign);
	tutti_free(job, memory);
	tutti_free(job, host);
}

static void test_refused(void)
{
	run_everywhere(2, 0, program_refused);
	expect_nothing_left();
}

/* ---- other allocators; kernels; fork ---- */

enum { UNIT = 2 << 20 };

/* cudaMallocAsync: nobody can export it. */
static void *take_from_pool(size_t len)
{
	CUdeviceptr at = 0;

	enter(0);
	CHECK(!cuMemAllocAsync(&at, len, NULL));
	leave(0);
	return (void *)at;
}

/* PyTorch's expandable segments: side by side, and nobody can export them. */
static char *map_segments(int n)
{
	CUmemAllocationProp prop = { .type = CU_MEM_ALLOCATION_TYPE_PINNED,
		                     .location = { CU_MEM_LOCATION_TYPE_DEVICE, 0 } };
	CUmemAccessDesc may = { { CU_MEM_LOCATION_TYPE_DEVICE, 0 }, CU_MEM_ACCESS_FLAGS_PROT_READWRITE };
	CUmemGenericAllocationHandle handle;
	CUdeviceptr at = 0;

	enter(0);
	CHECK(!cuMemAddressReserve(&at, (size_t)n * UNIT, 0, 0, 0));
	for (int i = 0; i < n; i++) {
		CHECK(!cuMemCreate(&handle, UNIT, &prop, 0));
		CHECK(!cuMemMap(at + (CUdeviceptr)i * UNIT, UNIT, 0, handle, 0) && !cuMemRelease(handle));
		CHECK(!cuMemSetAccess(at + (CUdeviceptr)i * UNIT, UNIT, &may, 1));
	}
	leave(0);
	return (char *)at;
}

static void unmap_segments(char *at, int n)
{
	enter(0);
	for (int i = 0; i < n; i++)
		CHECK(!cuMemUnmap((CUdeviceptr)at + (CUdeviceptr)i * UNIT, UNIT));
	CHECK(!cuMemAddressFree((CUdeviceptr)at, (size_t)n * UNIT));
	leave(0);
}

static void paint_across(char *at, size_t len, int seed) /* each mapping has its own place */
{
	for (size_t i = 0; i < len; i++)
		*(char *)fake_cuda_bytes(at + i) = pattern(seed, i);
}

static void program_allocators(tutti *job)
{
	enum { LEN = 9000 };
	int me = tutti_rank(job), other = 1 - me;
	char *segments = map_segments(2), *pool = take_from_pool(LEN), *host = take(job, LEN, -1);
	char *memory[] = { pool, segments + UNIT - 5000 };
	tutti_window *w, *h;

	CHECK(tutti_window_open(job, "h", host, LEN, &h) == 0);
	for (int i = 0; i < 2; i++) {
		CHECK(tutti_window_open(job, "w", memory[i], LEN, &w) == -ENOTSUP);
		paint_across(memory[i], LEN, me + i);
		CHECK(tutti_put(h, other, 0, memory[i], LEN, NULL) == 0);
		CHECK(tutti_barrier(job, NULL) == 0 && is_painted(host, LEN, other + i));
		CHECK(tutti_get(h, other, 0, memory[i], LEN, NULL) == 0);
		CHECK(*(char *)fake_cuda_bytes(memory[i] + LEN - 1) == pattern(me + i, LEN - 1));
		CHECK(tutti_barrier(job, NULL) == 0);
	}
	tutti_window_close(h);
	unmap_segments(segments, 2);
	free_foreign(0, pool);
	tutti_free(job, host);
}

static void test_allocators(void)
{
	run_everywhere(2, 0, program_allocators);
	expect_nothing_left();
}

/* The program's kernel still writes what tutti_free is given: the fake would abort. A fork's child has nothing of the
 * GPU, and the parent goes on. */
static void program_free_and_fork(tutti *job)
{
	char *memory = take(job, MOST, 0), *host = take(job, 5000, -1);
	tutti_window *w;
	struct stream s;
	int status = -1;

	CHECK(tutti_window_open(job, "h", host, 5000, &w) == 0 && tutti_put(w, 0, 0, memory, 5000, NULL) == 0);
	pid_t child = fork();
	if (!child) {
		bool refuses = tutti_put(w, 0, 0, memory, 5000, NULL) == -ECHILD;
		tutti_free(job, memory);
		tutti_window_close(w);
		tutti_leave(job);
		_exit(refuses ? 0 : 1);
	}
	CHECK(waitpid(child, &status, 0) == child && status == 0);
	CHECK(tutti_put(w, 0, 0, memory, 5000, NULL) == 0);
	open_stream(&s, 0);
	enter(0);
	CHECK(!cuMemsetD8Async((CUdeviceptr)memory, 1, MOST, s.stream));
	leave(0);
	tutti_free(job, memory);
	close_stream(&s);
	tutti_window_close(w);
	tutti_free(job, host);
}

static void test_free_and_fork(void)
{
	CU_ASSERT_EQUAL(run_ranks((struct ranks){ .size = 1, .wire = "tcp", .program = program_free_and_fork }), 0);
	expect_nothing_left();
}

/* ---- order ---- */

enum { BIG = 2 << 20 };

/* Rank 0 puts from a device, and then says so in five ways. Its stream stands still for longer than TUTTI_SILENCE. */
static void program_order(tutti *job)
{
	int me = tutti_rank(job);
	char *memory = take(job, BIG, me ? -1 : 0), *flags = take(job, 64, -1);
	tutti_window *w, *f;
	struct stream s;

	CHECK(tutti_window_open(job, "w", memory, BIG, &w) == 0);
	CHECK(tutti_window_open(job, "f", flags, 64, &f) == 0);
	CHECK(tutti_barrier(job, NULL) == 0);
	if (!me) {
		tutti_op ops[4] = { { { 0 } } }, early = { 0 };
		uint64_t one = 1;
		paint(memory, BIG, 5);
		CHECK(tutti_put(w, 1, 0, memory, BIG, &early) == 0); /* what is behind the next one stays */
		open_stream(&s, 0);
		fake_cuda_hold(s.stream, true);
		use_stream(job, &s);
		CHECK(tutti_put(w, 1, 0, memory, BIG, &ops[0]) == 0);
		CHECK(tutti_put_notify(w, 1, 0, memory, 300, 1, &ops[1]) == 0);
		CHECK(tutti_put_notify(f, 1, 0, &one, 8, 2, &ops[2]) == 0);
		CHECK(tutti_send(job, 1, 3, &one, 8, &ops[3]) == 0);
		use_stream(job, NULL);
		CHECK(tutti_put(f, 1, 8, &one, 8, NULL) == 0); /* small puts pass */
		CHECK(tutti_get(f, 1, 8, &one, 8, NULL) == 0 && one == 1);
		pass_time(3 * job->job->silence);
		CHECK(tutti_test(&ops[1]) == -EINPROGRESS && tutti_test(&ops[2]) == -EINPROGRESS);
		fake_cuda_hold(s.stream, false);
		for (int i = 0; i < 4; i++)
			CHECK(tutti_wait(&ops[i], -1) == 0);
		CHECK(tutti_wait(&early, -1) == 0);
		close_stream(&s);
	} else {
		uint64_t said = 0;
		while (!__atomic_load_n((uint64_t *)(void *)(flags + 8), __ATOMIC_ACQUIRE))
			tutti_wait_notify(w, 0, 7, 1, 0);
		CHECK(tutti_wait_notify(w, 0, 1, 1, 0) == -ETIMEDOUT && tutti_wait_notify(f, 0, 2, 1, 0) == -ETIMEDOUT);
		CHECK(tutti_wait_notify(w, 0, 1, 1, -1) == 0 && is_painted(memory, BIG, 5));
		CHECK(tutti_wait_notify(f, 0, 2, 1, -1) == 0);
		CHECK(tutti_recv(job, 0, 3, &said, 8, NULL, NULL) == 0 && said == 1);
	}
	CHECK(tutti_barrier(job, NULL) == 0);
	tutti_window_close(w);
	tutti_window_close(f);
	tutti_free(job, memory);
	tutti_free(job, flags);
}

static void test_order(void)
{
	run_everywhere(2, 4000, program_order);
	expect_nothing_left();
}

/* The same in this rank's own windows. */
static void program_own_order(tutti *job)
{
	char *memory = take(job, BIG, 0), *host = take(job, BIG, -1);
	tutti_op ops[3] = { { { 0 } } }, cancelled = { 0 };
	tutti_window *w = NULL, *h = NULL;
	struct stream s;

	CHECK(tutti_window_open(job, "w", memory, BIG, &w) == 0 && tutti_window_open(job, "h", host, BIG, &h) == 0);
	paint(memory, BIG, 4);
	open_stream(&s, 0);
	fake_cuda_hold(s.stream, true);
	use_stream(job, &s);
	CHECK(tutti_put(h, 0, 0, memory, BIG, &ops[0]) == 0);
	use_stream(job, NULL);
	CHECK(tutti_put_notify(h, 0, 0, NULL, 0, 1, &ops[1]) == 0);
	CHECK(tutti_put_notify(w, 0, 0, memory, 100, 1, &ops[2]) == 0);
	CHECK(tutti_put_notify(h, 0, 0, NULL, 0, 1, &cancelled) == 0);
	pass_time(5 * TT_MS);
	CHECK(tutti_cancel(&cancelled) == 0 && tutti_wait(&cancelled, -1) == -ECANCELED);
	CHECK(tutti_test(&ops[1]) == -EINPROGRESS && tutti_test(&ops[2]) == -EINPROGRESS);
	CHECK(tutti_wait_notify(h, 0, 1, 1, 0) == -ETIMEDOUT && tutti_wait_notify(w, 0, 1, 1, 0) == -ETIMEDOUT);
	fake_cuda_hold(s.stream, false);
	CHECK(tutti_wait_notify(h, 0, 1, 1, -1) == 0 && is_painted(host, BIG, 4));
	CHECK(tutti_wait_notify(w, 0, 1, 1, -1) == 0);
	for (int i = 0; i < 3; i++)
		CHECK(tutti_wait(&ops[i], -1) == 0);
	tutti_window_close(w);
	tutti_window_close(h);
	close_stream(&s);
	tutti_free(job, memory);
	tutti_free(job, host);
}

static void test_own_order(void)
{
	run_everywhere(1, 0, program_own_order);
	expect_nothing_left();
}

/* A NOTIFY behind many PUTs, some of devices' memory, some of the host's. */
static void program_many(tutti *job)
{
	enum { N = 40, LEN = 70000 };
	int me = tutti_rank(job), other = 1 - me;
	char *window = take(job, (size_t)N * LEN, me), *mine = take(job, LEN, me), *host = take(job, LEN, -1);
	tutti_op ops[N] = { { { 0 } } };
	tutti_window *w;

	CHECK(tutti_window_open(job, "w", window, (size_t)N * LEN, &w) == 0);
	paint(mine, LEN, me);
	paint(host, LEN, 7);
	for (int i = 0; i < N; i++)
		CHECK(tutti_put_notify(w, other, (size_t)i * LEN, i % 3 ? mine : host, LEN, 0, &ops[i]) == 0);
	for (int i = 0; i < N; i++) {
		CHECK(tutti_wait_notify(w, other, 0, (uint64_t)i + 1, -1) == 0);
		CHECK(is_painted(window + (size_t)i * LEN, LEN, i % 3 ? other : 7));
	}
	for (int i = 0; i < N; i++)
		CHECK(tutti_wait(&ops[i], -1) == 0);
	CHECK(tutti_barrier(job, NULL) == 0);
	tutti_window_close(w);
	tutti_free(job, window);
	tutti_free(job, mine);
	tutti_free(job, host);
}

static void test_many(void)
{
	run_everywhere(2, 0, program_many);
	expect_nothing_left();
}

/* ---- what ends early ---- */

/* Rank 0's stream stands still. Rank 1 closes its window: nothing waits for the stream, and nobody is evicted. */
static void program_closed(tutti *job)
{
	int me = tutti_rank(job);
	char *memory = take(job, BIG, me ? -1 : 0);
	tutti_op put = { 0 }, get = { 0 }, notify = { 0 }, late = { 0 };
	tutti_window *w;
	struct stream s;

	CHECK(tutti_window_open(job, "w", memory, BIG, &w) == 0);
	CHECK(tutti_put(w, 1 - me, 0, memory, 8, NULL) == 0);
	if (!me) {
		char *host = take(job, 64, -1);
		open_stream(&s, 0);
		fake_cuda_hold(s.stream, true);
		use_stream(job, &s);
		CHECK(tutti_put(w, 1, 0, memory, BIG, &put) == 0);
		CHECK(tutti_get(w, 1, 0, memory, BIG, &get) == 0);
		CHECK(tutti_put_notify(w, 1, 0, host, 64, 1, &notify) == 0);
		use_stream(job, NULL);
		CHECK(tutti_wait(&put, -1) == -ESTALE && tutti_wait(&get, -1) == -ESTALE);
		CHECK(tutti_wait(&notify, -1) == -ESTALE && strstr(tutti_why(), "has closed its window"));
		CHECK(tutti_get(w, 1, 0, memory, 8, &late) == -ESTALE);
		fake_cuda_hold(s.stream, false);
		close_stream(&s);
		tutti_free(job, host);
	} else {
		pass_time(20 * TT_MS);
	}
	tutti_window_close(w);
	CHECK(tutti_barrier(job, NULL) == 0);
	tutti_free(job, memory);
}

static void test_closed(void)
{
	run_everywhere(2, 4000, program_closed);
	expect_nothing_left();
}

static void leave_early(tutti *job)
{
	struct ranks *run = tt_world ? sim_run_now : this_run;

	run->left[tutti_rank(job)] = true;
	tutti_leave(job);
}

/* False: the job has no queues for the device, since its net takes the memory. */
static bool hold_copies(tutti *job, int gpu, bool hold)
{
	const struct tt_devices *d = tt_devices(job->job);
	const struct tt_gpu_queue *in, *out;

	tt_lock(job->job);
	in = d->in[gpu];
	out = d->out[gpu];
	tt_unlock(job->job);
	if (in) {
		fake_cuda_hold(in->stream, hold);
		fake_cuda_hold(out->stream, hold);
	}
	return in;
}

static bool stands_still(tutti *job, int gpu)
{
	tt_lock(job->job);
	bool still = tt_device_stands_still(job->job, gpu);
	tt_unlock(job->job);
	return still;
}

/* Until copies of calls that have ended have ended, too. */
static void await_copies(tutti *job, int gpu)
{
	for (int i = 0; i < 5000 && stands_still(job, gpu); i++)
		pass_time(TT_MS);
	CHECK(!stands_still(job, gpu));
}

/* Until so many transfers have begun to copy. */
static void await_begun(tutti *job, int most)
{
	int n = 0;

	for (int i = 0; i < 5000 && n < most; i++) {
		pass_time(TT_MS);
		n = 0;
		tt_lock(job->job);
		tt_each_of(struct tt_transfer, link, t, &tt_devices(job->job)->moving)
			n += tt_transfer_waits(t);
		tt_unlock(job->job);
	}
	CHECK(n >= most);
}

static atomic_bool posted;

/* Rank 1 leaves while a put with a notify to it waits for a stream, and another one for its copy. */
static void program_left(tutti *job)
{
	int me = tutti_rank(job);
	char *memory = take(job, BIG, me ? -1 : 0);
	tutti_op under_way = { 0 }, waits = { 0 };
	tutti_window *w;
	struct stream s;

	posted = false;
	CHECK(tutti_window_open(job, "w", memory, BIG, &w) == 0);
	CHECK(tutti_barrier(job, NULL) == 0);
	if (!me) {
		CHECK(tutti_put(w, 1, 0, memory, 8, NULL) == 0);
		bool held = hold_copies(job, 0, true);
		CHECK(tutti_put_notify(w, 1, 0, memory, BIG, 1, &under_way) == 0);
		pass_time(2 * TT_MS);
		CHECK(!held || tutti_test(&under_way) == -EINPROGRESS);
		open_stream(&s, 0);
		fake_cuda_hold(s.stream, true);
		use_stream(job, &s);
		CHECK(tutti_put_notify(w, 1, 0, memory, BIG, 1, &waits) == 0);
		use_stream(job, NULL);
		posted = true;
		CHECK(tutti_wait(&waits, -1) < 0);
		hold_copies(job, 0, false);
		int err = tutti_wait(&under_way, -1);
		CHECK(!held || (err < 0 && err != -ETIMEDOUT));
		fake_cuda_hold(s.stream, false);
		close_stream(&s);
		tutti_free(job, memory);
	} else {
		while (!posted)
			pass_time(TT_MS);
		leave_early(job);
	}
}

static void test_left(void)
{
	run_everywhere(2, 4000, program_left);
	expect_nothing_left();
}

static atomic_bool released; /* the copies */

/* Rank 0 leaves while a copy of its bytes into rank 1's window is under way, which stands still: the close ends, and
 * the memory stays until the copy has ended. */
static void program_closed_late(tutti *job)
{
	int me = tutti_rank(job);
	char *memory = take(job, BIG, me ? 1 : -1);
	static const struct tt_gpu_queue *queue;
	tutti_window *w;

	posted = released = false;
	CHECK(tutti_window_open(job, "w", memory, BIG, &w) == 0);
	CHECK(tutti_barrier(job, NULL) == 0);
	if (!me) {
		tutti_op op = { 0 };
		CHECK(tutti_put(w, 1, 0, memory, 8, NULL) == 0);
		posted = true;
		while (!released)
			pass_time(TT_MS);
		released = false;
		CHECK(tutti_put(w, 1, 0, memory, BIG, &op) == 0);
		pass_time(20 * TT_MS);
		leave_early(job);
		return;
	}
	while (!posted)
		pass_time(TT_MS);
	queue = tt_devices(job->job)->in[1];
	fake_cuda_hold(queue->stream, true);
	released = true;
	CHECK(tutti_wait_notify(w, 0, 1, 1, -1) < 0);
	tutti_window_close(w);
	CHECK(stands_still(job, 1));
	fake_cuda_hold(queue->stream, false);
	tutti_free(job, memory);
	await_copies(job, 1);
}

static void test_closed_late(void)
{
	struct ranks run = { .size = 2, .wire = "tcp", .timeout_ms = 1500, .program = program_closed_late };

	CU_ASSERT_EQUAL(run_ranks(run), 0);
	expect_nothing_left();
}

/* Rank 1 leaves while it reads rank 0's memory in place: the mapping stays as long as the copy takes. */
static void program_left_reading(tutti *job)
{
	int me = tutti_rank(job);
	char *memory = take(job, BIG, me);
	static const struct tt_gpu_queue *queue;
	tutti_op op = { 0 };
	tutti_window *w;

	posted = false;
	CHECK(tutti_window_open(job, "w", memory, BIG, &w) == 0);
	CHECK(tutti_barrier(job, NULL) == 0);
	if (me) {
		CHECK(tutti_get(w, 0, 0, memory, 8, NULL) == 0);
		queue = tt_devices(job->job)->in[1];
		fake_cuda_hold(queue->stream, true);
		CHECK(tutti_get(w, 0, 0, memory, BIG, &op) == 0);
		pass_time(20 * TT_MS);
		posted = true;
		leave_early(job);
		CHECK(tutti_test(&op) < 0 && tutti_test(&op) != -EINPROGRESS);
		tutti_free(NULL, memory);
	} else {
		while (!posted)
			pass_time(TT_MS);
		pass_time(3 * job->job->silence);
		fake_cuda_hold(queue->stream, false);
		tutti_window_close(w);
		tutti_free(job, memory);
	}
}

static void test_left_reading(void)
{
	struct ranks run = { .size = 2, .wire = "shm", .timeout_ms = 1500, .program = program_left_reading };

	CU_ASSERT_EQUAL(run_ranks(run), 0);
	expect_nothing_left();
}

/* A copy within this rank goes in pieces, too: others wait behind one of them at most. */
static void program_long(tutti *job)
{
	enum { LONG = TT_DIRECT + (1 << 20) };
	char *memory = take(job, LONG, 0), *window = take(job, LONG, 0);
	tutti_window *w;

	CHECK(tutti_window_open(job, "w", window, LONG, &w) == 0);
	CHECK(tutti_put(w, 0, 0, memory, 8, NULL) == 0);
	paint(memory, LONG, 3);
	uint64_t copies = fake_cuda_calls("cuMemcpyAsync");
	CHECK(tutti_put(w, 0, 0, memory, LONG, NULL) == 0 && is_painted(window, LONG, 3));
	CHECK(fake_cuda_calls("cuMemcpyAsync") - copies == 2);
	tutti_window_close(w);
	tutti_free(job, memory);
	tutti_free(job, window);
}

static void test_long(void)
{
	struct ranks run = { .size = 1, .wire = "shm", .program = program_long };

	CU_ASSERT_EQUAL(run_ranks(run), 0);
	expect_nothing_left();
}

/* ---- a rank that says what makes no sense ---- */

static void say_ready(tutti *job, uint32_t id, uint32_t number)
{
	uint8_t bytes[24 + TT_KEY_SIZE];
	struct tt_pack p = tt_pack(bytes, sizeof bytes);

	tt_put8(&p, TT_READY);
	tt_put8(&p, 1);
	tt_put32(&p, id);
	tt_put32(&p, number);
	tt_put_key(&p, &tt_devices(job->job)->chunks[0]->key);
	tt_put64(&p, 0);
	tt_send(tt_member(job->job, 1), bytes, (size_t)(p.at - bytes), NULL, 0);
}

/* Rank 0 would put two pieces, and says of the first one twice that it is READY. */
static void put_twice(tutti *job)
{
	enum { ID = 99, REGION = 1 };
	uint8_t bytes[32];
	struct tt_pack p = tt_pack(bytes, sizeof bytes);

	tt_put8(&p, TT_TAKE);
	tt_put32(&p, ID);
	tt_put32(&p, REGION);
	tt_put64(&p, 0);
	tt_put64(&p, 2 * TT_CHUNK);
	tt_lock(job->job);
	tt_send(tt_member(job->job, 1), bytes, (size_t)(p.at - bytes), NULL, 0);
	say_ready(job, ID, 0);
	say_ready(job, ID, 0);
	tt_unlock(job->job);
}

static void program_twice(tutti *job)
{
	int me = tutti_rank(job);
	char *memory = take(job, 2 * TT_CHUNK, me ? 1 : -1);
	tutti_window *w;

	CHECK(tutti_window_open(job, "w", memory, 2 * TT_CHUNK, &w) == 0);
	CHECK(tutti_barrier(job, NULL) == 0);
	if (!me) {
		CHECK(tutti_put(w, 1, 0, memory, 8, NULL) == 0); /* makes the chunks */
		put_twice(job);
		while (!tutti_barrier(job, NULL))
			pass_time(TT_MS);
	} else {
		CHECK(tutti_wait_notify(w, 0, 1, 1, -1) < 0 && strstr(tutti_why(), "ready"));
	}
	tutti_window_close(w);
	tutti_free(job, memory);
	leave_early(job);
}

static void test_twice(void)
{
	struct ranks run = { .size = 2, .timeout_ms = 3000, .program = program_twice };

	run.wire = "tcp";
	CU_ASSERT_EQUAL(run_ranks(run), 0);
	expect_nothing_left();
}

/* ---- what ends early, and nobody leaves ---- */

/* Cancelled, or out of time, while the stream stands still: the memory is the caller's again. */
static void program_given_up(tutti *job)
{
	int me = tutti_rank(job);
	char *memory = take(job, BIG, 0), *host = take(job, BIG, -1);
	tutti_op ops[5] = { { { 0 } } };
	tutti_window *w;
	struct stream s;

	CHECK(tutti_window_open(job, "w", host, BIG, &w) == 0);
	CHECK(tutti_barrier(job, NULL) == 0);
	if (!me) {
		CHECK(tutti_put(w, 1, 0, memory, 8, NULL) == 0);
		open_stream(&s, 0);
		fake_cuda_hold(s.stream, true);
		use_stream(job, &s);
		CHECK(tutti_put_notify(w, 1, 0, memory, BIG, 1, &ops[0]) == 0);
		CHECK(tutti_put_notify(w, 1, 0, host, 8, 1, &ops[1]) == 0);
		CHECK(tutti_get(w, 0, 0, memory, BIG, &ops[2]) == 0);
		CHECK(tutti_send(job, 0, 4, host, 8, NULL) == 0);
		CHECK(tutti_recv(job, 0, 4, memory, BIG, NULL, &ops[3]) == 0);
		CHECK(tutti_put(w, 1, 0, memory, BIG, &ops[4]) == 0);
		use_stream(job, NULL);
		for (int i = 3; i >= 0; i--) /* without the first one the second one may go */
			CHECK(tutti_cancel(&ops[i]) == 0 && tutti_wait(&ops[i], -1) == -ECANCELED);
		CHECK(tutti_wait(&ops[4], -1) == -ETIMEDOUT);
		fake_cuda_hold(s.stream, false);
		close_stream(&s);
	} else {
		pass_time(2 * job->job->timeout); /* a barrier would time out before the put of rank 0 does */
	}
	CHECK(tutti_barrier(job, NULL) == 0);
	CHECK(!me || tutti_wait_notify(w, 0, 1, 1, 0) == -ETIMEDOUT);
	CHECK(tutti_barrier(job, NULL) == 0);
	tutti_window_close(w);
	tutti_free(job, memory);
	tutti_free(job, host);
}

static void test_given_up(void)
{
	run_everywhere(2, 1500, program_given_up);
	expect_nothing_left();
}

/* What tutti_cancel does, without the wait for the end. */
static void give_up_all(tutti *job)
{
	tt_lock(job->job);
	tt_each_of(struct tt_transfer, link, t, &tt_devices(job->job)->moving)
		tt_transfer_give_up(t, -ECANCELED, NULL);
	tt_unlock(job->job);
}

/* A call that is given up moves no more than the pieces that have begun; if they are all, the call has ended well. */
static void program_cut_short(tutti *job)
{
	enum { LONG = 8 << 20 };
	int me = tutti_rank(job);
	char *memory = take(job, LONG, me ? -1 : 0);
	tutti_op op = { 0 };
	tutti_window *w;

	CHECK(tutti_window_open(job, "w", memory, LONG, &w) == 0);
	CHECK(tutti_barrier(job, NULL) == 0);
	for (int turn = 0; turn < 2; turn++) {
		size_t len = turn ? BIG : LONG;
		paint(memory, LONG, me ? 0 : 1 + turn);
		CHECK(tutti_barrier(job, NULL) == 0);
		if (!me) {
			CHECK(tutti_put(w, 1, 0, memory, 8, NULL) == 0);
			CHECK(hold_copies(job, 0, true));
			CHECK(tutti_put(w, 1, 0, memory, len, &op) == 0);
			await_begun(job, 1);
			give_up_all(job);
			hold_copies(job, 0, false);
			CHECK(tutti_wait(&op, -1) == (turn ? 0 : -ECANCELED));
		}
		CHECK(tutti_barrier(job, NULL) == 0);
		CHECK(!me || is_painted(memory, len, 1 + turn) == (turn == 1));
		CHECK(tutti_barrier(job, NULL) == 0);
	}
	tutti_window_close(w);
	tutti_free(job, memory);
}

static void test_cut_short(void)
{
	struct ranks run = { .size = 2, .wire = "sim", .timeout_ms = 20000, .program = program_cut_short };

	fake_cuda_thread(false);
	fake_cuda_seed(1);
	CU_ASSERT_EQUAL(run_ranks(run), 0);
	fake_cuda_thread(true);
	expect_nothing_left();
}

/* A copy that has begun stands still: the call ends, and other calls on the GPU begin when it goes on. */
static void end_stuck(tutti_op *op, bool cancels)
{
	CHECK(!cancels || tutti_cancel(op) == 0);
	CHECK(tutti_wait(op, -1) == (cancels ? -ECANCELED : -ETIMEDOUT) && strstr(tutti_why(), "GPU 0 stands still"));
}

static void program_stuck(tutti *job)
{
	int me = tutti_rank(job);
	char *memory = take(job, BIG, 0), *mine = take(job, BIG, me ? -1 : 0), *host = take(job, BIG, -1);
	tutti_op ops[6] = { { { 0 } } };
	tutti_window *w = NULL, *h = NULL;
	bool held = false;

	CHECK(tutti_window_open(job, "w", memory, BIG, &w) == 0 && tutti_window_open(job, "h", host, BIG, &h) == 0);
	paint(memory, BIG, 1);
	CHECK(tutti_barrier(job, NULL) == 0);
	CHECK(tutti_put(h, me, 0, memory, 8, NULL) == 0 && tutti_put(w, 1 - me, 0, mine, 8, NULL) == 0);
	CHECK(tutti_barrier(job, NULL) == 0);
	if (!me) {
		held = hold_copies(job, 0, true);
		CHECK(held);
		CHECK(tutti_put_notify(h, 1, 0, memory, BIG, 1, &ops[0]) == 0);
		CHECK(tutti_get(h, 1, 0, memory, BIG, &ops[1]) == 0);
		CHECK(tutti_get(h, 0, 0, mine, BIG, &ops[2]) == 0);
		await_begun(job, 3);
		end_stuck(&ops[0], true);
		CHECK(tutti_put(h, 0, 0, mine, BIG, &ops[3]) == 0); /* does not begin */
		end_stuck(&ops[3], true);
		CHECK(tutti_put(h, 1, 0, host, 8, NULL) == 0);
	} else { /* the owner's GPU is held up */
		pass_time(20 * TT_MS);
		CHECK(tutti_put(w, 0, 0, mine, BIG, &ops[0]) == 0 && tutti_get(w, 0, 0, mine, BIG, &ops[1]) == 0);
		CHECK(tutti_wait(&ops[0], -1) == -ETIMEDOUT && tutti_wait(&ops[1], -1) == -ETIMEDOUT);
	}
	for (int i = 1; !me && i < 3; i++)
		end_stuck(&ops[i], false);
	CHECK(tutti_barrier(job, NULL) == 0);
	CHECK(!me || tutti_wait_notify(h, 0, 1, 1, 0) == -ETIMEDOUT);
	if (!me)
		hold_copies(job, 0, false);
	await_copies(job, 0);
	CHECK(tutti_barrier(job, NULL) == 0);
	paint(mine, BIG, 7 + me);
	CHECK(tutti_put(w, 1 - me, 0, mine, BIG, NULL) == 0);
	CHECK(tutti_barrier(job, NULL) == 0 && is_painted(memory, BIG, 8 - me));
	CHECK(__builtin_popcount(tt_devices(job->job)->free) == TT_GIVE_CHUNKS + TT_TAKE_CHUNKS);
	tutti_window_close(w);
	tutti_window_close(h);
	tutti_free(job, memory);
	tutti_free(job, mine);
	tutti_free(job, host);
}

static void program_stuck_broadcast(tutti *job)
{
	int me = tutti_rank(job);
	char *memory = take(job, BIG, me);
	tutti_op op = { 0 };

	CHECK(tutti_broadcast(job, memory, BIG, 0, NULL) == 0);
	if (!me)
		hold_copies(job, 0, true);
	CHECK(tutti_broadcast(job, memory, BIG, 0, &op) == 0);
	if (!me) {
		await_begun(job, 1);
		end_stuck(&op, true);
		hold_copies(job, 0, false);
	} else {
		CHECK(tutti_wait(&op, -1) == -ECONNABORTED);
	}
	CHECK(tutti_barrier(job, NULL) == 0);
	tutti_free(job, memory);
}

static void test_stuck(void)
{
	struct ranks run = { .size = 2, .wire = "sim", .timeout_ms = 2000, .program = program_stuck };

	fake_cuda_thread(false);
	fake_cuda_seed(1);
	CU_ASSERT_EQUAL(run_ranks(run), 0);
	fake_cuda_thread(true);
	run.wire = "tcp";
	CU_ASSERT_EQUAL(run_ranks(run), 0);
	run.wire = "shm";
	CU_ASSERT_EQUAL(run_ranks(run), 0);
	run.program = program_stuck_broadcast;
	CU_ASSERT_EQUAL(run_ranks(run), 0);
	expect_nothing_left();
}

/* Rank 0 leaves while its GPU stands still. The chunks and queues stay, so this is the last test. */
static void program_left_stuck(tutti *job)
{
	static const struct tt_gpu_queue *queue;
	char *memory = take(job, BIG, 0);
	tutti_op op = { 0 };
	tutti_window *w;

	posted = false;
	CHECK(tutti_window_open(job, "w", memory, BIG, &w) == 0);
	CHECK(tutti_barrier(job, NULL) == 0);
	if (!tutti_rank(job)) {
		CHECK(tutti_put(w, 1, 0, memory, 8, NULL) == 0);
		CHECK(hold_copies(job, 0, true));
		CHECK(tutti_put(w, 1, 0, memory, BIG, &op) == 0);
		queue = tt_devices(job->job)->out[0];
		await_begun(job, 1);
		posted = true;
		leave_early(job);
		fake_cuda_hold(queue->stream, false);
		for (int i = 0; i < 1000 && queue->word && *queue->word != (uint32_t)queue->marked; i++)
			pass_time(TT_MS);
		CHECK(*queue->word == (uint32_t)queue->marked); /* into chunks that are still there */
		tutti_window_close(w);
		tutti_free(NULL, memory);
	} else {
		while (!posted)
			pass_time(TT_MS);
		leave_early(job);
		tutti_window_close(w);
		tutti_free(NULL, memory);
	}
}

static void test_left_stuck(void)
{
	struct ranks run = { .size = 2, .wire = "tcp", .timeout_ms = 20000, .program = program_left_stuck };

	CU_ASSERT_EQUAL(run_ranks(run), 0);
}

/* ---- what the driver is asked ---- */

/* One question about memory that is neither Tutti's nor of the heap, in each call. */
static void program_asked(tutti *job)
{
	char *foreign = take_foreign(0, BIG), *host = take(job, BIG, -1);
	char *plain = mmap(NULL, BIG, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	char *each[] = { foreign, plain };
	tutti_op send = { 0 };
	tutti_window *w;

	CHECK(tutti_window_open(job, "w", host, BIG, &w) == 0);
	for (int i = 0; i < 2; i++) {
		paint(each[i], BIG, i);
		uint64_t before = fake_cuda_calls("cuPointerGetAttributes");
		CHECK(tutti_put(w, 0, 0, each[i], BIG, NULL) == 0 && tutti_get(w, 0, 0, each[i], BIG, NULL) == 0);
		CHECK(fake_cuda_calls("cuPointerGetAttributes") == before + 2);
		CHECK(tutti_broadcast(job, each[i], BIG, 0, NULL) == 0);
		CHECK(fake_cuda_calls("cuPointerGetAttributes") == before + 3);
		CHECK(tutti_send(job, 0, 1, each[i], BIG, &send) == 0);
		CHECK(tutti_recv(job, 0, 1, host, BIG, NULL, NULL) == 0);
		CHECK(fake_cuda_calls("cuPointerGetAttributes") == before + 4 && tutti_wait(&send, -1) == 0);
	}
	tutti_window_close(w);
	free_foreign(0, foreign);
	tutti_free(job, host);
	munmap(plain, BIG);
}

/* Calls that wait for one stream ask it once a turn, however many they are. */
static void program_one_stream(tutti *job)
{
	enum { MANY = 30 };
	char *memory = take(job, 4096, 0), *host = take(job, 4096, -1);
	tutti_op ops[MANY] = { { { 0 } } };
	uint64_t asked[2];
	tutti_window *w;
	struct stream s;

	CHECK(tutti_window_open(job, "w", host, 4096, &w) == 0);
	CHECK(tutti_put(w, 0, 0, memory, 4096, NULL) == 0);
	open_stream(&s, 0);
	fake_cuda_hold(s.stream, true);
	use_stream(job, &s);
	for (int i = 0, turn = 0; turn < 2; turn++) {
		for (; i < (turn ? MANY : 1); i++)
			CHECK(tutti_put(w, 0, 0, memory, 4096, &ops[i]) == 0);
		uint64_t before = fake_cuda_calls("cuEventQuery");
		pass_time(20 * TT_MS);
		asked[turn] = fake_cuda_calls("cuEventQuery") - before;
	}
	CHECK(asked[0] > 20 && asked[1] < 2 * asked[0]);
	use_stream(job, NULL);
	fake_cuda_hold(s.stream, false);
	for (int i = 0; i < MANY; i++)
		CHECK(tutti_wait(&ops[i], -1) == 0);
	tutti_window_close(w);
	close_stream(&s);
	tutti_free(job, memory);
	tutti_free(job, host);
}

static void test_asked(void)
{
	struct ranks run = { .size = 1, .wire = "sim", .program = program_asked };

	fake_cuda_thread(false);
	fake_cuda_seed(1);
	CU_ASSERT_EQUAL(run_ranks(run), 0);
	run.program = program_one_stream;
	CU_ASSERT_EQUAL(run_ranks(run), 0);
	fake_cuda_thread(true);
	expect_nothing_left();
}

#ifdef TEST_FAKE
/* Memory of another allocator is registered once, and let go when it was freed. */
static void program_kept(tutti *job)
{
	int me = tutti_rank(job);
	char *foreign = me ? NULL : take_foreign(0, BIG), *host = take(job, BIG, -1);
	tutti_window *w;

	CHECK(tutti_window_open(job, "w", host, BIG, &w) == 0);
	if (!me) {
		paint(foreign, BIG, 1);
		CHECK(tutti_put(w, 1, 0, foreign, 5000, NULL) == 0);
		uint64_t made = fake_calls("reg_dmabuf_mr"), ended = fake_calls("dereg_mr");
		for (int i = 0; i < 5; i++)
			CHECK(tutti_put(w, 1, 0, foreign + i * 1000, BIG - 5000, NULL) == 0);
		CHECK(fake_calls("reg_dmabuf_mr") == made && fake_calls("dereg_mr") == ended);
		free_foreign(0, foreign);
		foreign = take_foreign(0, BIG);
		paint(foreign, BIG, 2);
		CHECK(tutti_put(w, 1, 0, foreign, BIG, NULL) == 0);
		CHECK(fake_calls("reg_dmabuf_mr") == made + 1 && fake_calls("dereg_mr") == ended + 1);
		free_foreign(0, foreign);
		foreign = take_foreign(0, BIG);
		paint(foreign, BIG, 2);
		made = fake_calls("reg_dmabuf_mr");
		fake_fail("reg_dmabuf_mr", 1, EINVAL); /* the adapter cannot map all of the allocation */
		for (int i = 0; i < 3; i++)
			CHECK(tutti_put(w, 1, 0, foreign, BIG - 4096, NULL) == 0);
		CHECK(fake_calls("reg_dmabuf_mr") == made + 4);
	}
	CHECK(tutti_barrier(job, NULL) == 0);
	CHECK(!me || is_painted(host, BIG, 2));
	CHECK(tutti_barrier(job, NULL) == 0);
	tutti_window_close(w);
	if (!me)
		free_foreign(0, foreign);
	tutti_free(job, host);
}

static void test_kept(void)
{
	struct ranks run = { .size = 2, .wire = "verbs", .devices = "fake_roce0", .program = program_kept };

	CU_ASSERT_EQUAL(run_ranks(run), 0);
	expect_nothing_left();
}
#else
static void test_kept(void) {}
#endif

/* GPU 1 gets no access to memory of GPU 0: the bytes go through the host. */
static void program_no_access(tutti *job)
{
	tutti_window *w;

	fake_cuda_fail("cuMemSetAccess", 2, 1);
	char *from = take(job, BIG, 0), *to = take(job, BIG, 1);
	paint(from, BIG, 4);
	CHECK(tutti_window_open(job, "w", to, BIG, &w) == 0);
	CHECK(tutti_put(w, 0, 0, from, BIG, NULL) == 0 && is_painted(to, BIG, 4));
	tutti_window_close(w);
	tutti_free(job, from);
	tutti_free(job, to);
}

static void test_no_access(void)
{
	run_everywhere(1, 0, program_no_access);
	expect_nothing_left();
}

/* The sender's stream stands still: the send times out, and nobody is evicted. Then the receiver's. */
static void program_late_sender(tutti *job)
{
	int me = tutti_rank(job);
	char *memory = take(job, BIG, me);
	struct stream s;

	for (int late = 0; late < 2; late++) {
		tutti_op op = { 0 };
		if (me == late) {
			open_stream(&s, me);
			fake_cuda_hold(s.stream, true);
			use_stream(job, &s);
		}
		int err = me ? tutti_recv(job, 0, 1, memory, BIG, NULL, &op) : tutti_send(job, 1, 1, memory, BIG, &op);
		CHECK(err == 0);
		if (me == late)
			use_stream(job, NULL);
		err = tutti_wait(&op, -1);
		CHECK(me ? err == -ESTALE || err == -ETIMEDOUT : err == -ETIMEDOUT || err == -ESTALE);
		if (me == late) {
			fake_cuda_hold(s.stream, false);
			close_stream(&s);
		}
		pass_time(job->job->timeout);
		CHECK(tutti_barrier(job, NULL) == 0);
	}
	tutti_free(job, memory);
}

static void test_late_sender(void)
{
	run_everywhere(2, 1500, program_late_sender);
	expect_nothing_left();
}

/* The device of rank 0 breaks. Who reads it hears why; memory of the host and other devices goes on. */
static void program_broken(tutti *job)
{
	int me = tutti_rank(job);
	char *memory = take(job, BIG, me), *host = take(job, BIG, -1);
	tutti_window *w, *h;

	CHECK(tutti_window_open(job, "w", memory, BIG, &w) == 0);
	CHECK(tutti_window_open(job, "h", host, BIG, &h) == 0);
	CHECK(tutti_get(w, 1 - me, 0, memory, BIG, NULL) == 0);
	CHECK(tutti_barrier(job, NULL) == 0);
	if (!me) {
		fake_cuda_break(0, 700);
		CHECK(tutti_put(h, 1, 0, memory, BIG, NULL) == -EIO && strstr(tutti_why(), "700"));
		CHECK(tutti_add(h, 1, 0, 1, NULL, NULL) == 0);
	}
	CHECK(tutti_barrier(job, NULL) == 0);
	if (me) {
		int err = tutti_get(w, 0, 0, memory, BIG, NULL); /* in place, it is broken for its owner alone */
		CHECK(err == -EIO || (!err && !strcmp(tt_world ? "sim" : this_run->wire, "shm")));
		CHECK(!err || (strstr(tutti_why(), "GPU 0") && strstr(tutti_why(), "rank 0")));
		CHECK(!err || strstr(tutti_why(), "700"));
		CHECK(tutti_put(w, 0, 0, host, BIG, NULL) == -EIO && strstr(tutti_why(), "700"));
		CHECK(tutti_get(w, 1, 0, host, BIG, NULL) == 0);
	}
	CHECK(tutti_put(h, 1 - me, 0, host, BIG, NULL) == 0);
	CHECK(tutti_barrier(job, NULL) == 0);
	fake_cuda_break(0, 0);
	tutti_window_close(w);
	tutti_window_close(h);
	tutti_free(job, memory);
	tutti_free(job, host);
}

static void test_broken(void)
{
	static const char *const wires[] = { "sim", "tcp", "shm" };

	for (int i = 0; i < 3; i++) {
		struct ranks run = { .size = 2, .wire = wires[i], .program = program_broken };
		fake_cuda_thread(i > 0);
		CU_ASSERT_EQUAL(run_ranks(run), 0);
		tt_gpu_close(); /* the process forgets that the device was broken */
	}
}

/* ---- one host ---- */

static bool fails; /* no process can map the memory of another one */

/* On one host a GET copies from device to device; more windows than a rank keeps mapped. */
static void program_import(tutti *job)
{
	enum { WINDOWS = 40 };
	int me = tutti_rank(job), other = 1 - me;
	char *mine = take(job, BIG, me), *memory[WINDOWS], name[16];
	tutti_window *w[WINDOWS];

	for (int i = 0; i < WINDOWS; i++) {
		memory[i] = take(job, BIG / 8, i % 2);
		paint(memory[i], BIG / 8, me + i);
		snprintf(name, sizeof name, "w%d", i);
		CHECK(tutti_window_open(job, name, memory[i] + 64, BIG / 8 - 64, &w[i]) == 0);
	}
	CHECK(tutti_barrier(job, NULL) == 0);
	if (fails && !me) /* the first one goes in pieces, the others too where none can be mapped */
		fake_cuda_fail("cuMemImportFromShareableHandle", 1, 801);
	CHECK(tutti_barrier(job, NULL) == 0);
	for (int n = 0; n < 2; n++)
		for (int i = 0; i < WINDOWS; i++) {
			paint(mine, BIG / 8, 99);
			CHECK(tutti_get(w[i], other, 1000, mine, 100000, NULL) == 0);
			for (size_t at = 0; at < 100000; at += 997)
				CHECK(((char *)fake_cuda_bytes(mine))[at] == pattern(other + i, at + 1064));
		}
	CHECK(tutti_barrier(job, NULL) == 0);
	for (int i = 0; i < WINDOWS; i++) {
		tutti_window_close(w[i]);
		tutti_free(job, memory[i]);
	}
	tutti_free(job, mine);
}

static void test_import(void)
{
	struct ranks run = { .size = 2, .wire = "shm", .program = program_import };

	for (fails = false;; fails = true) {
		uint64_t before = fake_cuda_calls("cuMemImportFromShareableHandle");
		CU_ASSERT_EQUAL(run_ranks(run), 0);
		CU_ASSERT_TRUE(fake_cuda_calls("cuMemImportFromShareableHandle") - before >= 80);
		expect_nothing_left();
		if (fails)
			break;
	}
}

static uint64_t mapped(void) { return fake_cuda_calls("cuMemMap") - fake_cuda_calls("cuMemUnmap"); }

/* What an owner frees is given back by who has read it, too; and what could not be mapped is tried again. */
static void program_forgotten(tutti *job)
{
	int me = tutti_rank(job);
	char *memory = take(job, BIG, 0), *mine = take(job, 4096, 0);
	uint64_t before, asked = fake_cuda_calls("cuMemImportFromShareableHandle");
	tutti_window *w;

	CHECK(tutti_window_open(job, "w", memory, BIG, &w) == 0);
	CHECK(tutti_barrier(job, NULL) == 0);
	before = mapped();
	CHECK(tutti_barrier(job, NULL) == 0);
	if (me) {
		fake_cuda_fail("cuMemImportFromShareableHandle", 1, 801);
		for (int i = 0; i < 3; i++)
			CHECK(tutti_get(w, 0, 0, mine, 4096, NULL) == 0);
		CHECK(fake_cuda_calls("cuMemImportFromShareableHandle") == asked + 1 && mapped() == before);
		pass_time(job->job->silence * 3 / 2);
		for (int i = 0; i < 3; i++)
			CHECK(tutti_get(w, 0, 0, mine, 4096, NULL) == 0);
		CHECK(fake_cuda_calls("cuMemImportFromShareableHandle") == asked + 2 && mapped() == before + 1);
	}
	CHECK(tutti_barrier(job, NULL) == 0);
	tutti_window_close(w);
	tutti_free(job, memory);
	CHECK(tutti_barrier(job, NULL) == 0);
	for (int i = 0; i < 1000 && mapped() > before - 2; i++)
		pass_time(TT_MS);
	CHECK(mapped() == before - 2);
	CHECK(tutti_barrier(job, NULL) == 0);
	tutti_free(job, mine);
}

static void test_forgotten(void)
{
	struct ranks run = { .size = 2, .wire = "shm", .timeout_ms = 1500, .program = program_forgotten };

	CU_ASSERT_EQUAL(run_ranks(run), 0);
	expect_nothing_left();
}

/* ---- calls of the driver that fail ---- */

static const char *failing;
static int failing_nth;

/* 0; or an error, with a sentence. */
static void may_fail(int err)
{
	CHECK(err == 0 || (err < 0 && *tutti_why()));
}

/* Whatever fails, on either rank: the call ends, and host memory goes on. */
static void program_failing(tutti *job)
{
	enum { N = 70000 };
	int me = tutti_rank(job), other = 1 - me;
	char *host = take(job, N, -1), *memory = take(job, N, me);
	tutti_window *w = NULL, *h = NULL;
	tutti_op send = { 0 };

	CHECK(tutti_window_open(job, "h", host, N, &h) == 0);
	CHECK(tutti_barrier(job, NULL) == 0);
	if (!me)
		fake_cuda_fail(failing, failing_nth, 2);
	may_fail(tutti_window_open(job, "w", memory, N, &w));
	CHECK(tutti_barrier(job, NULL) == 0);
	if (w)
		may_fail(tutti_put_notify(w, me, 0, host, N, 0, NULL));
	may_fail(tutti_put(h, other, 0, memory, N, NULL));
	may_fail(tutti_get(h, other, 0, memory, N, NULL));
	may_fail(tutti_send(job, other, 0, memory, N, &send));
	may_fail(tutti_recv(job, other, 0, host, N, NULL, NULL));
	CHECK(tutti_put(h, other, 0, host, 5000, NULL) == 0);
	tutti_cancel(&send);
	CHECK(tutti_barrier(job, NULL) == 0);
	tutti_window_close(w);
	tutti_window_close(h);
	tutti_free(job, host);
	tutti_free(job, memory);
}

static void test_failing(void)
{
	static const char *const functions[] = {
		"cuPointerGetAttributes", "cuMemcpyAsync", "cuStreamWriteValue32_v2", "cuStreamCreate", "cuStreamQuery",
		"cuStreamIsCapturing", "cuEventCreate", "cuEventRecord", "cuEventQuery", "cuMemHostAlloc",
		"cuMemHostRegister_v2", "cuMemExportToShareableHandle", "cuCtxPushCurrent_v2", "cuLaunchHostFunc",
		"cuThreadExchangeStreamCaptureMode",
	};
	struct ranks run = { .size = 2, .wire = "sim", .timeout_ms = 2000, .program = program_failing };

	fake_cuda_thread(false);
	for (size_t i = 0; i < TT_COUNT(functions); i++)
		for (failing_nth = all_or(1, 1 + (int)i % 2); failing_nth < 5; failing_nth += all_or(1, 2)) {
			failing = functions[i];
			fake_cuda_seed(run.seed = i);
			CU_ASSERT_EQUAL(run_ranks(run), 0);
			expect_nothing_left();
		}
	fake_cuda_thread(true);
}

/* What GPU 0 lacks, GPU 1 does not: an op of each begins in the same turn. */
static void program_two(tutti *job)
{
	char *memory[2] = { take(job, 4096, 0), take(job, 4096, 1) }, *host = take(job, 8192, -1);
	tutti_op ops[2] = { { { 0 } } };
	tutti_window *w;

	CHECK(tutti_window_open(job, "w", host, 8192, &w) == 0);
	fake_cuda_fail("cuMemHostAlloc", 1, 2); /* the first queue's word */
	for (int i = 0; i < 2; i++)
		CHECK(tutti_put(w, 0, (size_t)i * 4096, memory[i], 4096, &ops[i]) == 0);
	CHECK(tutti_wait(&ops[0], -1) < 0 && strstr(tutti_why(), "GPU 0"));
	CHECK(tutti_wait(&ops[1], -1) == 0);
	CHECK(tutti_put(w, 0, 0, memory[0], 4096, NULL) == 0); /* tries again */
	tutti_window_close(w);
	for (int i = 0; i < 2; i++)
		tutti_free(job, memory[i]);
	tutti_free(job, host);
}

/* An op that fails leaves nothing in the job: not its sentence, either. */
static void program_sentences(tutti *job)
{
	char *memory = take(job, 4096, 0), *host = take(job, 4096, -1);
	tutti_window *w;

	CHECK(tutti_window_open(job, "w", host, 4096, &w) == 0);
	CHECK(tutti_put(w, 0, 0, memory, 4096, NULL) == 0);
	const struct tt_text *texts = tt_members(job->job)->texts;
	for (int i = 0; i < 100; i++) {
		fake_cuda_fail("cuMemcpyAsync", 1, 2);
		CHECK(tutti_put(w, 0, 0, memory, 4096, NULL) < 0 && strstr(tutti_why(), "cuMemcpyAsync"));
	}
	CHECK(tt_members(job->job)->texts == texts);
	tutti_window_close(w);
	tutti_free(job, memory);
	tutti_free(job, host);
}

static void test_failing_alone(void)
{
	struct ranks run = { .size = 1, .wire = "sim", .program = program_two };

	fake_cuda_thread(false);
	fake_cuda_seed(1);
	CU_ASSERT_EQUAL(run_ranks(run), 0);
	run.program = program_sentences;
	CU_ASSERT_EQUAL(run_ranks(run), 0);
	fake_cuda_thread(true);
	expect_nothing_left();
}

static CU_TestInfo tests[] = {
	{ "windows", test_windows },
	{ "own", test_own },
	{ "messages", test_messages },
	{ "own messages", test_own_messages },
	{ "refused", test_refused },
	{ "allocators", test_allocators },
	{ "free and fork", test_free_and_fork },
	{ "order", test_order },
	{ "own order", test_own_order },
	{ "many", test_many },
	{ "closed", test_closed },
	{ "left", test_left },
	{ "twice", test_twice },
	{ "closed late", test_closed_late },
	{ "left reading", test_left_reading },
	{ "long", test_long },
	{ "given up", test_given_up },
	{ "cut short", test_cut_short },
	{ "stuck", test_stuck },
	{ "asked", test_asked },
	{ "kept", test_kept },
	{ "no access", test_no_access },
	{ "late sender", test_late_sender },
	{ "import", test_import },
	{ "forgotten", test_forgotten },
	{ "failing", test_failing },
	{ "failing alone", test_failing_alone },
	{ "broken", test_broken }, /* the driver keeps what a broken device had */
	{ "left stuck", test_left_stuck },
	CU_TEST_INFO_NULL,
};
static CU_SuiteInfo suites[] = { { "device", NULL, NULL, NULL, NULL, tests }, CU_SUITE_INFO_NULL };

int main(int argc, char **argv)
{
	fake_cuda_watch(thread_holds_lock);
	return run_suites(suites, argc, argv);
}
