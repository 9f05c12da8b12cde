/* readers.c - processes read memory of another one's device while it changes: no fetch is torn whose stamp is the same
 * before and after; and the owner, or a reader, is killed, stopped, or takes the memory back
 *
 *      owner   stamp = 0, starts work that fills the memory with n, sees it done, stamp = n
 *      reader  gets the stamp, the memory, and the stamp again: it has what was filled with n if both are n */
#include "tests/gpu/fake.h"
#include "tests/harness/crew.h"

enum { OWNER, READER, LEN = 24000, FETCHES = 5000 / SLOW };

struct share { /* what a rank has */
	char *data;
	uint64_t *stamp;
	tutti_window *on_device, *on_host;
};

static void open_share(tutti *job, struct share *s)
{
	EXPECT(tutti_alloc(job, LEN, 0, (void **)&s->data) == 0);
	EXPECT(tutti_alloc(job, 4096, -1, (void **)&s->stamp) == 0);
	EXPECT(tutti_window_open(job, "data", s->data, LEN, &s->on_device) == 0);
	EXPECT(tutti_window_open(job, "stamp", s->stamp, 8, &s->on_host) == 0);
}

static void close_share(tutti *job, struct share *s)
{
	tutti_window_close(s->on_device);
	tutti_window_close(s->on_host);
	tutti_free(job, s->data);
	tutti_free(job, s->stamp);
}

/* ---- the owner ---- */

static CUstream new_stream(void)
{
	CUcontext context;
	CUstream stream = NULL;

	EXPECT(!cuInit(0) && !cuDevicePrimaryCtxRetain(&context, 0) && !cuCtxPushCurrent_v2(context));
	EXPECT(!cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
	return stream;
}

static void write_on(struct share *s, CUstream stream)
{
	for (uint64_t n = 1; board->go < 1; n++) {
		__atomic_store_n(s->stamp, 0, __ATOMIC_SEQ_CST);
		EXPECT(!cuMemsetD8Async((CUdeviceptr)s->data, (unsigned char)n, LEN, stream));
		while (cuStreamQuery(stream) == CUDA_ERROR_NOT_READY)
			;
		__atomic_store_n(s->stamp, n, __ATOMIC_SEQ_CST);
		mine->rounds++;
		sleep_ms(1);
	}
}

/* ---- a reader ---- */

static bool is_filled(const char *bytes, uint64_t n)
{
	return bytes[0] == (char)n && !memcmp(bytes, bytes + 1, LEN - 1);
}

/* 0, or the error of a get. *torn: the stamp was the same, and the memory had not been filled with it. *raced: bytes of
 * two fills had come, which the stamps tell. */
static int fetch(struct share *s, char *into, char *bytes, int *torn, int *raced)
{
	uint64_t before, after;
	int err;

	if ((err = tutti_get(s->on_host, OWNER, 0, &before, 8, NULL)) ||
	    (err = tutti_get(s->on_device, OWNER, 0, into, LEN, NULL)) ||
	    (err = tutti_get(s->on_host, OWNER, 0, &after, 8, NULL)))
		return err;
	bool mixed = bytes[0] != bytes[LEN - 1] || memcmp(bytes, bytes + 1, LEN - 1);
	*torn += before && before == after && !is_filled(bytes, before);
	*raced += mixed;
	return 0;
}

static int torn, raced;

static void read_on(tutti *job, struct share *s, int fetches)
{
	bool host = my_rank % 2 == 0; /* every other reader reads into host memory */
	char *into = NULL;
	uint64_t started = 0;
	int err = 0;

	EXPECT(tutti_alloc(job, LEN, host ? -1 : 0, (void **)&into) == 0);
	for (int i = 0; !err && i < fetches; i++) {
		started = tt_now();
		err = fetch(s, into, host ? into : fake_cuda_bytes(into), &torn, &raced);
		mine->rounds += !err;
	}
	record(err, started);
	tutti_free(job, into);
}

/* ---- the tests ---- */

static void program_changing(tutti *job)
{
	struct share s;

	open_share(job, &s);
	EXPECT(tutti_barrier(job, NULL) == 0);
	if (my_rank == OWNER) {
		write_on(&s, new_stream());
	} else {
		read_on(job, &s, FETCHES);
		EXPECT(mine->err == 0 && torn == 0);
		mine->child = raced;
		reach(1);
	}
	EXPECT(tutti_barrier(job, NULL) == 0);
	close_share(job, &s);
}

static void test_changing(void)
{
	start((struct crew){ .size = 3, .timeout_ms = 10000 * SLOW, .program = program_changing });
	await(0, 1, OWNER);
	WANT(board->of[1].child + board->of[2].child > 0, "the owner has never written while a reader read");
	board->go = 1;
	finish(NOBODY);
}

/* Until something ends it. */
static void program_struck(tutti *job)
{
	struct share s;

	open_share(job, &s);
	EXPECT(tutti_barrier(job, NULL) == 0);
	if (my_rank == OWNER) {
		write_on(&s, new_stream());
	} else {
		read_on(job, &s, INT32_MAX);
		EXPECT(torn == 0);
		reach(1);
		await_go(2);
	}
	close_share(job, &s);
}

static void expect_readers_end(int err)
{
	await(0, 1, OWNER);
	for (int i = 1; i < crew.size; i++)
		WANT(board->of[i].err == err, "rank %d: %d: %s", i, board->of[i].err, board->of[i].why);
	board->go = 2;
}

static void test_owner_killed(void)
{
	start((struct crew){ .size = 3, .timeout_ms = 10000 * SLOW, .program = program_struck });
	await(30, 0, NOBODY);
	strike(OWNER, SIGKILL);
	expect_readers_end(-ECONNRESET);
	finish(OWNER);
}

static void test_owner_stopped(void)
{
	start((struct crew){ .size = 3, .timeout_ms = 4000 * SLOW, .program = program_struck });
	await(30, 0, NOBODY);
	strike(OWNER, SIGSTOP);
	expect_readers_end(-ECONNRESET);
	strike(OWNER, SIGKILL);
	finish(OWNER);
}

/* The owner closes its windows in the middle of reads and frees the memory. */
static void test_owner_frees(void)
{
	start((struct crew){ .size = 3, .timeout_ms = 10000 * SLOW, .program = program_struck });
	await(30, 0, NOBODY);
	board->go = 1;
	expect_readers_end(-ESTALE);
	finish(NOBODY);
}

static void program_victim(tutti *job)
{
	struct share s;

	open_share(job, &s);
	EXPECT(tutti_barrier(job, NULL) == 0);
	if (my_rank == OWNER) {
		write_on(&s, new_stream());
		uint64_t started = tt_now();
		close_share(job, &s);
		record(0, started);
		reach(1);
		await_go(2);
		return;
	}
	read_on(job, &s, INT32_MAX);
	EXPECT(torn == 0);
	reach(1);
	await_go(2);
	close_share(job, &s);
}

/* A reader ends in the middle of a read: the owner gets its memory back, and the other reader goes on meanwhile. */
static void lose_reader(int signal_number)
{
	start((struct crew){ .size = 3, .timeout_ms = 4000 * SLOW, .program = program_victim });
	await(30, 0, NOBODY);
	strike(READER, signal_number);
	int rounds = board->of[2].rounds;
	await_rank(2, 0);
	for (int ms = 0; ms < HANG_MS && board->of[2].rounds < rounds + 30; ms++)
		sleep_ms(1);
	WANT(board->of[2].rounds >= rounds + 30, "the other reader stopped at %d", board->of[2].rounds);
	board->go = 1;
	await(0, 1, READER);
	WANT(board->of[2].err == -ESTALE, "%d: %s", board->of[2].err, board->of[2].why);
	WANT(board->of[OWNER].ended - board->of[OWNER].started < 4000 * TT_MS * SLOW, "to close took too long");
	board->go = 2;
	if (signal_number == SIGSTOP && crew.pid[READER] > 0)
		strike(READER, SIGKILL);
	finish(READER);
}

static void test_reader_killed(void) { lose_reader(SIGKILL); }
static void test_reader_stopped(void) { lose_reader(SIGSTOP); }

static void program_exit(tutti *job)
{
	struct share s;
	tutti_op op = { 0 };

	open_share(job, &s);
	EXPECT(tutti_put(s.on_device, 1 - my_rank, 0, s.data, LEN, NULL) == 0);
	EXPECT(tutti_barrier(job, NULL) == 0);
	if (my_rank == OWNER) {
		CUstream stream = new_stream(); /* of which nothing runs, as behind a long kernel */
		fake_cuda_hold(stream, true);
		EXPECT(tutti_stream(job, stream) == 0);
		EXPECT(tutti_put(s.on_device, READER, 0, s.data, LEN, &op) == 0);
		exit(0);
	}
	uint64_t started = tt_now();
	int err = tutti_wait_notify(s.on_device, OWNER, 0, 1, -1);
	EXPECT(err == -ECONNRESET || err == -ENOTCONN);
	record(err, started);
	close_share(job, &s);
}

/* The owner exits without leaving, while work waits for its GPU. */
static void test_owner_exits(void)
{
	start((struct crew){ .size = 2, .timeout_ms = 4000 * SLOW, .program = program_exit });
	finish(NOBODY);
}

static CU_TestInfo tests[] = {
	{ "memory that changes", test_changing },
	{ "the owner is killed", test_owner_killed },
	{ "the owner is stopped", test_owner_stopped },
	{ "the owner frees", test_owner_frees },
	{ "a reader is killed", test_reader_killed },
	{ "a reader is stopped", test_reader_stopped },
	{ "the owner exits", test_owner_exits },
	CU_TEST_INFO_NULL,
};
static CU_SuiteInfo suites[] = { { "readers", NULL, NULL, NULL, NULL, tests }, CU_SUITE_INFO_NULL };

int main(int argc, char **argv) { return run_over_wires(suites, argc, argv); }
