/* unit_hub.c - short all-reduces of many ranks on one host: the same bits on all ranks, in the order of the ranks, with
 * few connections; ranks that call something else, cancel, or are killed */
#include "collective/collective_private.h"
#include "engine/engine.h"
#include "kernel/kernel.h"
#include "member/member.h"
#include "tests/harness/cunit_main.h"
#include "tests/harness/procs.h"
#include "tests/harness/ranks.h"
#include "transport/sim/sim.h"
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#if TT_TSAN || TT_ASAN
enum { SEEDS = 2, RANKS = 18, MOST = 20 };
#else
#define SEEDS (uint64_t)all_or(16, 4)
#define MOST all_or(128, 48)
enum { RANKS = 20 };
#endif
enum { MAX = 128, HANG_MS = 30000 * SLOW, LATE_NS = 1000000 };

/* ---- simulated, and real ---- */

static void fill(void *v, int rank, size_t bytes)
{
	uint64_t x = (uint64_t)(rank + 1) * 0x9e3779b97f4a7c15u;

	for (size_t i = 0; i < bytes / 2; i++) {
		x = x * 6364136223846793005u + 1442695040888963407u;
		((uint16_t *)v)[i] = (uint16_t)((x >> 33 & 0x8fff) + 0x3000);
	}
}

/* Through a hub or a segment, ranks are added in their order; without both, all ranks have the same bits alone. */
static bool in_order(const tutti *job, size_t bytes) { return tt_hub_open(job, bytes) || tt_segment_open(job); }

static void check_sum(tutti *job, size_t count, tutti_type type, tutti_rule rule, int root)
{
	size_t bytes = count * tt_type_size(type);
	int n = tutti_size(job);
	char *all = malloc((size_t)n * bytes), *in = malloc(bytes), *out = malloc(bytes), *sum = malloc(bytes);
	const void *from[MAX];
	void *to = sum;
	struct tt_many many = { .from = from, .to = &to, .inputs = n, .outputs = 1 };

	for (int i = 0; i < n; i++) {
		from[i] = all + (size_t)i * bytes;
		fill(all + (size_t)i * bytes, i, bytes);
	}
	fill(in, tutti_rank(job), bytes);
	if (root < 0)
		CHECK(tutti_allreduce(job, in, out, count, type, rule, NULL) == 0);
	else
		CHECK(tutti_reduce(job, in, out, count, type, rule, root, NULL) == 0);
	tt_reduce_many(&many, count, type, rule);
	if (in_order(job, bytes) && (root < 0 || root == tutti_rank(job)))
		CHECK(memcmp(out, sum, bytes) == 0);
	free(all);
	free(in);
	free(out);
	free(sum);
}

static _Atomic int open_hubs;

static void program_sums(tutti *job)
{
	char text[400];

	check_sum(job, 1, TUTTI_F32, TUTTI_SUM, -1);
	check_sum(job, 1024, TUTTI_F32, TUTTI_AVERAGE, -1);
	check_sum(job, 2048, TUTTI_BF16, TUTTI_SUM, -1);
	check_sum(job, 33, TUTTI_F64, TUTTI_MAX, -1);
	check_sum(job, 77, TUTTI_F32, TUTTI_SUM, tutti_size(job) - 1);
	check_sum(job, 77, TUTTI_F16, TUTTI_AVERAGE, 0);
	CHECK(!tt_coll_group(job)->segment || !tt_coll_group(job)->hub->open);
	check_sum(job, 1025, TUTTI_F32, TUTTI_SUM, -1); /* which connects all to all */
	check_sum(job, 1024, TUTTI_F32, TUTTI_SUM, -1);
	open_hubs += tt_hub_open(job, 4096);
	CHECK(!tt_hub_open(job, 4097));
	CHECK(tt_allreduce_explain(job, 4096, TUTTI_F32, TUTTI_SUM, text, sizeof text) == 0);
	CHECK(!tt_hub_open(job, 4096) || strstr(text, "hub, through memory of the first"));
}

/* Several at once, through the hub and past it, and in tensors that lie apart. */
static void program_several(tutti *job)
{
	enum { CALLS = 12 };
	static const size_t counts[] = { 8, 4000, 500 };
	float *v[CALLS];
	tutti_op ops[CALLS];
	int n = tutti_size(job), me = tutti_rank(job), right = 0;

	memset(ops, 0, sizeof ops);
	for (int k = 0; k < CALLS; k++) {
		size_t count = counts[k % 3];
		v[k] = calloc(count, sizeof *v[k]);
		v[k][0] = (float)(me + k);
		v[k][count - 1] = (float)me;
		tutti_tensor t[] = { { v[k], 2, TUTTI_F32 }, { v[k] + count - 2, 2, TUTTI_F32 } };
		CHECK((k % 4 ? tutti_allreduce(job, v[k], v[k], count, TUTTI_F32, TUTTI_SUM, &ops[k])
		             : tutti_allreduce_tensors(job, t, 2, TUTTI_SUM, &ops[k])) == 0);
	}
	for (int k = 0; k < CALLS; k++) {
		CHECK(tutti_wait(&ops[k], -1) == 0);
		right += v[k][0] == n * (n - 1) / 2.0f + (float)(n * k);
		right += v[k][counts[k % 3] - 1] == n * (n - 1) / 2.0f;
		free(v[k]);
	}
	CHECK(right == 2 * CALLS);
}

static int sum_of(tutti *job, size_t count)
{
	float v[16] = { 1 };
	int err = tutti_allreduce(job, v, v, count, TUTTI_F32, TUTTI_SUM, NULL);

	CHECK(err || v[0] == (float)tutti_size(job));
	return err;
}

static bool is_odd_call(int err) { return err == -EBADMSG || err == -ECONNABORTED; }

/* In the call that makes the hub, and later; rank 0, too. */
static void program_disagree(tutti *job)
{
	int me = tutti_rank(job), odd[] = { 3, 0, 5 };

	for (int k = 0; k < 3; k++) {
		int err = sum_of(job, me == odd[k] ? 5 : 4);
		CHECK(is_odd_call(err));
		CHECK(err != -EBADMSG || strstr(tutti_why(), "of 5 f32"));
		CHECK(sum_of(job, 7) == 0);
		err = me == odd[k] ? tutti_barrier(job, NULL) : sum_of(job, 4);
		CHECK(is_odd_call(err));
		CHECK(sum_of(job, 3) == 0);
	}
}

/* One cancels; all others hear of it, and the next call is whole. */
static void program_cancel(tutti *job)
{
	int me = tutti_rank(job), who[] = { 2, 0 };
	char cancelled = 0;

	for (int k = 0; k < 2; k++) {
		float v[4] = { 0 };
		tutti_op op = { 0 };
		if (me == who[k]) {
			CHECK(tutti_allreduce(job, v, v, 4, TUTTI_F32, TUTTI_SUM, &op) == 0);
			CHECK(tutti_cancel(&op) == 0);
			CHECK(tutti_send(job, 1, k, &cancelled, 1, NULL) == 0);
		} else {
			if (me == 1) /* before, the call cannot end */
				CHECK(tutti_recv(job, who[k], k, &cancelled, 1, NULL, NULL) == 0);
			int err = sum_of(job, 4);
			CHECK(err == -ECONNABORTED);
		}
		CHECK(sum_of(job, 4) == 0);
	}
}

/* One cancels while the hub is made, when the others may know the result already: where the hub is not open, too, the
 * next call is whole. */
static void program_cancel_late(tutti *job)
{
	float v[4] = { 1 };
	tutti_op op = { 0 };
	int err = 0;

	if (tutti_rank(job) == 3) {
		CHECK(tutti_allreduce(job, v, v, 4, TUTTI_F32, TUTTI_SUM, &op) == 0);
		pass_time(tt_sim_chance(LATE_NS));
		tutti_cancel(&op);
	} else {
		err = sum_of(job, 4);
	}
	CHECK(err == 0 || err == -ECONNABORTED);
	CHECK(sum_of(job, 5) == 0);
}

/* A part of them has its own hub, which ends with the group. */
static void program_groups(tutti *job)
{
	int n = tutti_size(job), me = tutti_rank(job);
	tutti *part = NULL;

	for (int k = 0; k < 3; k++) {
		CHECK(tutti_group_split(job, me < n - 1, n - me, &part) == 0);
		if (me < n - 1) {
			check_sum(part, 100, TUTTI_F32, TUTTI_SUM, -1);
			CHECK(tutti_size(part) == n - 1 && sum_of(part, 2) == 0);
		}
		tutti_group_free(part);
		CHECK(sum_of(job, 1) == 0);
	}
}

static void on_one_host(void (*program)(tutti *))
{
	struct ranks run = { .size = RANKS, .wire = "sim", .hosts = 1, .program = program };

	for (; run.seed != SEEDS; run.seed++)
		CU_ASSERT_EQUAL(run_ranks(run), 0);
	run.wire = "shm";
	CU_ASSERT_EQUAL(run_ranks(run), 0);
}

static void test_sums(void)
{
	on_one_host(program_sums);
	CU_ASSERT(open_hubs >= RANKS);
}
static void test_several(void) { on_one_host(program_several); }
static void test_disagree(void) { on_one_host(program_disagree); }
static void test_cancel(void) { on_one_host(program_cancel); }

static void test_cancel_late(void)
{
	struct ranks run = { .size = RANKS, .wire = "sim", .hosts = 1, .timeout_ms = 2000,
		             .program = program_cancel_late };

	for (; run.seed != 8 * SEEDS; run.seed++)
		CU_ASSERT_EQUAL(run_ranks(run), 0);
}

static void test_groups(void) { on_one_host(program_groups); }

/* ---- processes ---- */

static struct board {
	atomic_int joined, summed, links, right, named, rounds, done;
	char why[256];
} *board;

static tutti *join(int rank, int size, int port)
{
	char boot[32];
	tutti_config c = { .rank = rank, .ranks = size, .boot = boot, .timeout_ms = HANG_MS };
	tutti *job = NULL;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	alarm(0);
	snprintf(boot, sizeof boot, "127.0.0.1:%d", port);
	if (tutti_join(&c, &job)) {
		snprintf(board->why, sizeof board->why, "rank %d: %s", rank, tutti_why());
		_exit(1);
	}
	board->joined++;
	return job;
}

static void wait_for(const atomic_int *count, int n)
{
	for (int i = 0; *count < n && i < HANG_MS; i++)
		sleep_ms(1);
}

static _Noreturn void add_once(int rank, int size, int port)
{
	tutti *job = join(rank, size, port);
	float v[1024] = { 0 };

	v[1023] = (float)rank;
	wait_for(&board->joined, size);
	if (tutti_allreduce(job, v, v, 1024, TUTTI_F32, TUTTI_SUM, NULL))
		snprintf(board->why, sizeof board->why, "rank %d: %s", rank, tutti_why());
	board->right += v[1023] == (float)(size * (size - 1) / 2);
	board->summed++;
	wait_for(&board->summed, size);
	board->links += count_connections(job);
	board->done++;
	wait_for(&board->done, size);
	tutti_leave(job);
	_exit(0);
}

/* Adds until somebody is dead. */
static _Noreturn void add_for_ever(int rank, int size, int port, int dead)
{
	tutti *job = join(rank, size, port);
	float v[256] = { 1 };
	char name[32];

	snprintf(name, sizeof name, "rank %d ", dead);
	while (!tutti_allreduce(job, (float[256]){ 1 }, v, 256, TUTTI_F32, TUTTI_SUM, NULL) && v[0] == (float)size)
		board->rounds++;
	board->named += strstr(tutti_why(), name) != NULL;
	snprintf(board->why, sizeof board->why, "rank %d: %s", rank, tutti_why());
	tutti_leave(job);
	_exit(0);
}

static void end_all(const pid_t *pid, int size)
{
	int status;

	for (int i = 0; i < size; i++)
		waitpid(pid[i], &status, 0);
}

static void test_connections(void)
{
	static pid_t pid[MAX];
	int n = MOST, port = free_port();
	uint64_t joined, start = tt_now();

	memset(board, 0, sizeof *board);
	for (int i = 0; i < n; i++)
		if (!(pid[i] = fork_child()))
			add_once(i, n, port);
	wait_for(&board->joined, n);
	joined = tt_now();
	wait_for(&board->summed, n);
	printf("%d processes joined in %.2f s, and added 4 KiB in %.2f s", n, (double)(joined - start) / 1e9,
	       (double)(tt_now() - joined) / 1e9);
	end_all(pid, n);
	printf(": %d connections\n", board->links / 2);
	WANT(board->right == n, "%d of %d added right, one says: %s", board->right, n, board->why);
	/* A busy machine may answer too late over shm: then a pair of ranks is connected over tcp, too. */
	WANT(board->links / 2 <= (n < TT_SEGMENT_RANKS ? 3 : 2) * n, "%d connections of %d ranks", board->links / 2, n);
}

static void test_killed(void)
{
	static const int dead[] = { 7, 0, RANKS - 1 };
	pid_t pid[RANKS];

	for (int k = 0; k < 3; k++) {
		int port = free_port();
		memset(board, 0, sizeof *board);
		for (int i = 0; i < RANKS; i++)
			if (!(pid[i] = fork_child()))
				add_for_ever(i, RANKS, port, dead[k]);
		wait_for(&board->rounds, 100 * RANKS);
		uint64_t start = tt_now();
		kill(pid[dead[k]], SIGKILL);
		end_all(pid, RANKS);
		WANT(board->rounds >= 100 * RANKS && board->named == RANKS - 1,
		     "rank %d is dead: %d of %d ranks name it, one says: %s", dead[k], board->named, RANKS - 1,
		     board->why);
		WANT(tt_now() - start < 20000 * TT_MS * SLOW, "the end took %d ms", (int)((tt_now() - start) / TT_MS));
	}
}

static CU_TestInfo hub_tests[] = {
	{ "sums", test_sums },
	{ "several at once", test_several },
	{ "other calls", test_disagree },
	{ "cancelled", test_cancel },
	{ "cancelled late", test_cancel_late },
	{ "groups", test_groups },
	CU_TEST_INFO_NULL,
};
static CU_TestInfo process_tests[] = {
	{ "connections", test_connections },
	{ "killed", test_killed },
	CU_TEST_INFO_NULL,
};
static CU_SuiteInfo suites[] = {
	{ "hub", NULL, NULL, NULL, NULL, hub_tests },
	{ "hub of processes", NULL, NULL, NULL, NULL, process_tests },
	CU_SUITE_INFO_NULL,
};

int main(int argc, char **argv)
{
	board = mmap(NULL, sizeof *board, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	return board == MAP_FAILED ? 1 : run_suites(suites, argc, argv);
}
