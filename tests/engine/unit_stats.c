/* unit_stats.c - the counters: exact after a known program, on sim, TCP and shared memory; what they say of lost ranks;
 * the table, and the signal that asks for it */
#include "engine/engine.h"
#include "member/member.h"
#include "tests/harness/cunit_main.h"
#include "tests/harness/ranks.h"
#include "transport/sim/sim.h"
#include <fcntl.h>
#include <math.h>
#include <poll.h>

#if TT_TSAN
enum { SEEDS = 1 };
#else
enum { SEEDS = 8 };
#endif

static void on_wires(void (*program)(tutti *), const int *sizes)
{
	for (; *sizes; sizes++) {
		struct ranks run = { .size = *sizes, .program = program };
		for (run.wire = "sim"; run.seed < SEEDS; run.seed++)
			CU_ASSERT_EQUAL(run_ranks(run), 0);
		CU_ASSERT_EQUAL(run_real_ranks(run), 0);
	}
}

static void on_real(void (*program)(tutti *))
{
	struct ranks run = { .size = 2, .program = program };

	CU_ASSERT_EQUAL(run_real_ranks(run), 0);
}

static const int few[] = { 1, 2, 3, 5, 0 }, two[] = { 2, 0 };

static tutti_stat stat_of(tutti *job, int rank, tutti_stat_kind kind)
{
	tutti_stat s = { 0 };

	CHECK(tutti_stats(job, rank, kind, &s) == 0);
	return s;
}

static bool counts(tutti *job, int rank, tutti_stat_kind kind, uint64_t ops, uint64_t bytes, uint64_t errors)
{
	tutti_stat s = stat_of(job, rank, kind);

	if (s.ops == ops && s.bytes == bytes && s.errors == errors)
		return true;
	printf("rank %d, kind %d: %llu operations, %llu bytes, %llu errors\n", rank, (int)kind,
	       (unsigned long long)s.ops, (unsigned long long)s.bytes, (unsigned long long)s.errors);
	return false;
}

static bool is_plausible(tutti_stat s) /* of times */
{
	return s.p50_us > 0 && s.p50_us <= s.p99_us && s.p99_us <= s.max_us && s.mean_us > 0 && s.mean_us <= s.max_us &&
	       s.max_us < 60e6;
}

static bool is_within(uint64_t x, uint64_t least, uint64_t most) { return x >= least && x <= most; }

/* ---- counts ---- */

static void use_window(tutti *job, int right, int left)
{
	char memory[1024] = "", bytes[100] = "";
	uint64_t sum[2] = { 0 };
	tutti_window *w, *v;

	CHECK(tutti_window_open(job, "bytes", memory, sizeof memory, &w) == 0);
	CHECK(tutti_window_open(job, "sum", sum, sizeof sum, &v) == 0);
	for (int i = 0; i < 10; i++)
		CHECK(tutti_put(w, right, 0, bytes, 100, NULL) == 0);
	CHECK(tutti_put(w, right, 1000, bytes, 100, NULL) == -ERANGE);
	for (int i = 0; i < 5; i++)
		CHECK(tutti_get(w, right, 200, bytes, 8, NULL) == 0);
	for (int i = 0; i < 3; i++)
		CHECK(tutti_add(v, right, 8, 1, NULL, NULL) == 0);
	for (int i = 0; i < 4; i++)
		CHECK(tutti_put_notify(w, right, 300, bytes, 16, 7, NULL) == 0);
	CHECK(tutti_wait_notify(w, left, 7, 4, -1) == 0);
	CHECK(tutti_barrier(job, NULL) == 0);
	tutti_window_close(v);
	tutti_window_close(w);
}

static void check_window(tutti *job, int rank, int left)
{
	CHECK(counts(job, rank, TUTTI_STAT_PUT, 11, 1000, 1));
	CHECK(counts(job, rank, TUTTI_STAT_GET, 5, 40, 0));
	CHECK(counts(job, rank, TUTTI_STAT_ADD, 3, 24, 0));
	CHECK(counts(job, rank, TUTTI_STAT_NOTIFY, 4, 64, 0));
	CHECK(counts(job, left, TUTTI_STAT_NOTIFY_IN, 4, 0, 0));
}

/* Ranks meet rank 0 over TCP, before they know the better wire. */
static bool is_met_elsewhere(int a, int b) { return !tt_world && !strcmp(this_run->wire, "shm") && (a == 0 || b == 0); }

static void program_window(tutti *job)
{
	int n = tutti_size(job), me = tutti_rank(job), right = (me + 1) % n, left = (me + n - 1) % n;

	CHECK(counts(job, -1, TUTTI_STAT_PUT, 0, 0, 0));
	use_window(job, right, left);
	check_window(job, right, left);
	check_window(job, -1, -1);
	if (n > 1) {
		CHECK(is_plausible(stat_of(job, right, TUTTI_STAT_PUT)));
		CHECK(is_plausible(stat_of(job, right, TUTTI_STAT_GET)));
		CHECK(is_plausible(stat_of(job, -1, TUTTI_STAT_MESSAGE)));
		CHECK(counts(job, right, TUTTI_STAT_CONNECT, 1 + is_met_elsewhere(tutti_rank(job), right), 0, 0));
		CHECK(stat_of(job, right, TUTTI_STAT_MESSAGE_IN).bytes > 0);
	}
	if (n > 2)
		CHECK(counts(job, left, TUTTI_STAT_PUT, 0, 0, 0));
}

static void test_window(void) { on_wires(program_window, few); }

static void program_collectives(tutti *job)
{
	int n = tutti_size(job);
	float *v = calloc(100000, sizeof *v), all[8];
	size_t sizes[] = { 8, 8, 8, 8, 8, 8, 8, 8 }, at[8] = { 0 };

	tt_settings_set(&job->job->settings, TT_ALLREDUCE, "rabenseifner", "test"); /* it sends chunks on every wire */
	for (int i = 0; i < 3; i++)
		CHECK(tutti_allreduce(job, v, v, 100000, TUTTI_F32, TUTTI_SUM, NULL) == 0);
	CHECK(tutti_allreduce(job, v, v, 10, TUTTI_F32, TUTTI_SUM, NULL) == 0);
	CHECK(tutti_broadcast(job, v, 5000, 0, NULL) == 0);
	CHECK(tutti_gather(job, v, 4, all, -1, NULL) == 0);
	CHECK(tutti_barrier(job, NULL) == 0);
	CHECK(tutti_barrier(job, NULL) == 0);
	CHECK(tutti_reduce_scatter(job, v, v + 1000, 100, TUTTI_F32, TUTTI_SUM, NULL) == 0);
	CHECK(tutti_allgather(job, v, 40, v + 1000, NULL) == 0);
	CHECK(tutti_alltoall(job, v, 40, v + 1000, NULL) == 0);
	CHECK(tutti_alltoallv(job, v, sizes, at, v + 1000, sizes, at, NULL) == 0);
	CHECK(counts(job, -1, TUTTI_STAT_ALLREDUCE, 4, 1200040, 0));
	CHECK(counts(job, -1, TUTTI_STAT_BROADCAST, 1, 5000, 0));
	CHECK(counts(job, -1, TUTTI_STAT_GATHER, 1, 4, 0));
	CHECK(counts(job, -1, TUTTI_STAT_BARRIER, 2, 0, 0));
	CHECK(counts(job, -1, TUTTI_STAT_REDUCE_SCATTER, 1, 400 * (uint64_t)n, 0));
	CHECK(counts(job, -1, TUTTI_STAT_ALLGATHER, 1, 40, 0));
	CHECK(counts(job, -1, TUTTI_STAT_ALLTOALL, 2, 48 * (uint64_t)n, 0));
	/* half of the vector is sent to be added, the other half as a sum; what a message brings is not put again */
	if (n == 2)
		CHECK(is_within(stat_of(job, 1 - tutti_rank(job), TUTTI_STAT_CHUNK).bytes, 600000, 1200000));
	if (n > 1) {
		CHECK(is_plausible(stat_of(job, -1, TUTTI_STAT_ALLREDUCE)));
		CHECK(stat_of(job, -1, TUTTI_STAT_CHUNK).ops > 0 && stat_of(job, -1, TUTTI_STAT_CHUNK_IN).ops > 0);
	}
	CHECK(counts(job, -1, TUTTI_STAT_PUT, 0, 0, 0)); /* those are the program's own */
	free(v);
}

static void test_collectives(void) { on_wires(program_collectives, few); }

static void program_bad_arguments(tutti *job)
{
	tutti_stat s = { 0 };

	CHECK(tutti_stats(job, 2, TUTTI_STAT_PUT, &s) == -EINVAL && strstr(tutti_why(), "rank 2"));
	CHECK(tutti_stats(job, -2, TUTTI_STAT_PUT, &s) == -EINVAL);
	CHECK(tutti_stats(job, 0, (tutti_stat_kind)99, &s) == -EINVAL && strstr(tutti_why(), "99"));
	CHECK(tutti_stats(job, 0, TUTTI_STAT_BARRIER, &s) == -EINVAL && strstr(tutti_why(), "barrier"));
	CHECK(tutti_barrier(job, NULL) == 0);
	CHECK(tutti_stats(job, -1, TUTTI_STAT_BARRIER, &s) == 0 && s.ops == 1);
}

static void test_bad_arguments(void) { on_wires(program_bad_arguments, two); }

/* ---- times: on sim they are what the world's clock says ---- */

static void program_times(tutti *job)
{
	uint64_t mine = 0, v = 0, longest = 0, total = 0;
	tutti_window *w;

	CHECK(tutti_window_open(job, "times", &mine, 8, &w) == 0);
	for (int i = 0; i < 30; i++) {
		uint64_t start = tt_now();
		CHECK(tutti_get(w, 1 - tutti_rank(job), 0, &v, 8, NULL) == 0);
		uint64_t took = tt_now() - start;
		longest = took > longest ? took : longest;
		total += took;
	}
	tutti_stat s = stat_of(job, 1 - tutti_rank(job), TUTTI_STAT_GET);
	CHECK(s.ops == 30 && fabs(s.max_us - (double)longest / 1e3) < 1e-3 &&
	      fabs(s.mean_us - (double)total / 30e3) < 1e-3);
	CHECK(tutti_barrier(job, NULL) == 0);
	tutti_window_close(w);
}

static void test_times(void)
{
	for (uint64_t seed = 0; seed < SEEDS; seed++) {
		struct ranks run = { .size = 2, .wire = "sim", .seed = seed, .program = program_times };
		CU_ASSERT_EQUAL(run_ranks(run), 0);
	}
}

/* After the first thousand only some are timed; but all are counted, and neither of two that alternate is left out. */
static void program_sampled(tutti *job)
{
	uint64_t mine = 0, v = 0;
	tutti_window *w;

	CHECK(tutti_window_open(job, "sampled", &mine, 8, &w) == 0);
	for (int i = 0; i < 2000; i++)
		CHECK((i % 2 ? tutti_get(w, tutti_rank(job), 0, &v, 8, NULL)
		             : tutti_put(w, tutti_rank(job), 0, &v, 8, NULL)) == 0);
	CHECK(counts(job, -1, TUTTI_STAT_PUT, 1000, 8000, 0) && counts(job, -1, TUTTI_STAT_GET, 1000, 8000, 0));
	tt_lock(job->job);
	for (int k = TUTTI_STAT_PUT; k <= TUTTI_STAT_GET; k++) {
		uint64_t timed = tt_member(job->job, tutti_rank(job))->stats->of[k]->times.count;
		CHECK(timed > 500 && timed < 600);
	}
	tt_unlock(job->job);
	for (int i = 0; i < 1600; i++)
		CHECK(tutti_add(w, tutti_rank(job), 0, 1, NULL, NULL) == 0);
	CHECK(counts(job, -1, TUTTI_STAT_ADD, 1600, 12800, 0));
	tt_lock(job->job);
	uint64_t timed = tt_member(job->job, tutti_rank(job))->stats->of[TUTTI_STAT_ADD]->times.count;
	CHECK(timed > 80 && timed < 120);
	tt_unlock(job->job);
	tutti_window_close(w);
}

static void test_sampled(void) { on_real(program_sampled); }

/* ---- what becomes of ranks ---- */

/* Rank 1 is stopped: it is asked for a sign of life, evicted and gone, and what waited for it has failed. */
static void program_lost(tutti *job)
{
	float x = 1;
	uint64_t v = 0;
	tutti_window *w;

	CHECK(tutti_window_open(job, "lost", &v, 8, &w) == 0);
	CHECK(tutti_barrier(job, NULL) == 0 || tutti_rank(job) == 1); /* it may be stopped on its way out */
	if (tutti_rank(job) == 1) {
		tt_sim_sleep(3000 * TT_MS);
	} else {
		tt_sim_stop(1, 0, 2000 * TT_MS);
		CHECK(tutti_allreduce(job, &x, &x, 1, TUTTI_F32, TUTTI_SUM, NULL) == -ECONNRESET);
		CHECK(tutti_put(w, 1, 0, &v, 8, NULL) == -ECONNRESET);
		CHECK(stat_of(job, 1, TUTTI_STAT_PING).ops >= 1);
		CHECK(counts(job, 1, TUTTI_STAT_EVICTED, 1, 0, 0));
		CHECK(counts(job, 1, TUTTI_STAT_GONE, 1, 0, 0));
		CHECK(counts(job, 1, TUTTI_STAT_PUT, 1, 0, 1));
		CHECK(counts(job, -1, TUTTI_STAT_ALLREDUCE, 1, 0, 1));
		CHECK(counts(job, -1, TUTTI_STAT_BARRIER, 1, 0, 0));
	}
	tutti_window_close(w);
}

static void test_lost(void)
{
	for (uint64_t seed = 0; seed < SEEDS; seed++) {
		struct ranks run = {
			.size = 2, .wire = "sim", .seed = seed, .timeout_ms = 200, .program = program_lost
		};
		CU_ASSERT_EQUAL(run_ranks(run), 0);
	}
}

static void program_refusing(tutti *job)
{
	tutti_config c = { .rank = 1, .ranks = 2, .boot = this_run->boot, .transports = transports_of(this_run) };
	tutti *other;

	CHECK(tutti_barrier(job, NULL) == 0);
	if (tutti_rank(job) == 0) {
		CHECK(tutti_join(&c, &other) == -EPERM); /* rank 1 is taken */
		CHECK(counts(job, -1, TUTTI_STAT_REFUSED, 1, 0, 0));
	}
	CHECK(tutti_barrier(job, NULL) == 0);
}

static void test_refusing(void) { on_real(program_refusing); }

/* ---- the table ---- */

struct row {
	char peer[16], operation[16];
	unsigned long long ops, bytes, errors;
	char p50[16], p99[16], max[16], mean[16];
};

static int read_rows(char *text, struct row *rows, int max) /* below the two lines of heading; -1: not a table */
{
	int n = 0, line = 0;
	char *rest;

	/* ranks are threads */
	for (char *at = strtok_r(text, "\n", &rest); at && n < max; at = strtok_r(NULL, "\n", &rest), line++) {
		struct row *r = &rows[n];
		if (line < 2)
			continue;
		if (sscanf(at, "%15s %15s %llu %llu %llu %15s %15s %15s %15s", r->peer, r->operation, &r->ops,
		           &r->bytes, &r->errors, r->p50, r->p99, r->max, r->mean) != 9)
			return -1;
		n++;
	}
	return n;
}

static const struct row *find_row(const struct row *rows, int n, const char *peer, const char *operation)
{
	for (int i = 0; i < n; i++)
		if (!strcmp(rows[i].peer, peer) && !strcmp(rows[i].operation, operation))
			return &rows[i];
	return NULL;
}

static void program_dump(tutti *job)
{
	static _Thread_local char text[16384];
	int ends[2], right = (tutti_rank(job) + 1) % 2, n;
	struct row rows[64];
	const struct row *r;

	use_window(job, right, right);
	CHECK(pipe(ends) == 0);
	CHECK(tutti_stats_dump(job, ends[1]) == 0);
	ssize_t len = read(ends[0], text, sizeof text - 1);
	close(ends[0]);
	close(ends[1]);
	text[len > 0 ? len : 0] = 0;
	CHECK(!strncmp(text, right ? "tutti: stats of rank 0 of 2 after " : "tutti: stats of rank 1 of 2 after ", 34));
	n = read_rows(text, rows, TT_COUNT(rows));
	r = find_row(rows, n, right ? "1" : "0", "put");
	CHECK(r && r->ops == 11 && r->bytes == 1000 && r->errors == 1 && atof(r->p50) > 0 &&
	      atof(r->max) >= atof(r->p99));
	r = find_row(rows, n, "job", "barrier");
	CHECK(r && r->ops == 1 && r->errors == 0 && atof(r->mean) > 0);
	r = find_row(rows, n, right ? "1" : "0", "notify-in");
	CHECK(r && r->ops == 4 && !strcmp(r->p50, "-"));
	CHECK(!find_row(rows, n, "job", "gather")); /* what did not happen takes no line */
	CHECK(!find_row(rows, n, right ? "0" : "1", "put"));
}

static void test_dump(void) { on_wires(program_dump, two); }

/* A reader that stalls costs the deadline at most. */
static void program_stalled(tutti *job)
{
	char bytes[4096] = "";
	int ends[2];
	uint64_t start;

	CHECK(tutti_barrier(job, NULL) == 0);
	CHECK(pipe2(ends, O_NONBLOCK) == 0);
	while (write(ends[1], bytes, sizeof bytes) > 0)
		;
	fcntl(ends[1], F_SETFL, 0);
	start = tt_now();
	CHECK(tutti_stats_dump(job, ends[1]) == -ETIMEDOUT);
	CHECK(tt_now() - start >= 299 * TT_MS && tt_now() - start < 10000 * TT_MS);
	close(ends[0]);
	close(ends[1]);
	CHECK(tutti_stats_dump(job, ends[1]) == -EBADF && tutti_stats_dump(job, -1) == -EBADF);
}

static void test_stalled(void)
{
	struct ranks run = { .size = 1, .timeout_ms = 300, .program = program_stalled };

	CU_ASSERT_EQUAL(run_real_ranks(run), 0);
}

/* ---- the signal, in this process ---- */

static int stderr_before, captured[2];

static void capture_stderr(void)
{
	stderr_before = dup(STDERR_FILENO);
	CU_ASSERT_EQUAL_FATAL(pipe(captured), 0);
	dup2(captured[1], STDERR_FILENO);
}

static void release_stderr(void)
{
	dup2(stderr_before, STDERR_FILENO);
	close(stderr_before);
	close(captured[0]);
	close(captured[1]);
}

/* How many tables come, if `expected` do; each is one write. */
static int tables(int expected, int patience_ms)
{
	struct pollfd p = { .fd = captured[0], .events = POLLIN };
	char text[16384];
	int n = 0;

	while (n < expected + 1 && poll(&p, 1, n < expected ? 20000 : patience_ms) == 1) {
		ssize_t len = read(captured[0], text, sizeof text - 1);
		text[len > 0 ? len : 0] = 0;
		for (const char *at = text; (at = strstr(at, "tutti: stats of rank 0 of 1 after ")); at++)
			n++;
	}
	return n;
}

static bool is_default(void)
{
	struct sigaction now;

	return !sigaction(SIGUSR1, NULL, &now) && now.sa_handler == SIG_DFL;
}

static tutti *join_alone(void)
{
	tutti_config c = { .ranks = 1, .boot = "127.0.0.1:1", .newcomers = TUTTI_NEVER };
	tutti *job = NULL;

	CU_ASSERT_EQUAL_FATAL(tutti_join(&c, &job), 0);
	CU_ASSERT_EQUAL(tutti_barrier(job, NULL), 0);
	return job;
}

static void test_signal(void)
{
	capture_stderr();
	CU_ASSERT_TRUE(is_default());
	tutti *a = join_alone(), *b = join_alone();
	raise(SIGUSR1);
	CU_ASSERT_EQUAL(tables(2, 50), 2);
	tutti_leave(a);
	raise(SIGUSR1);
	CU_ASSERT_EQUAL(tables(1, 50), 1);
	a = join_alone(); /* what it is too late for it does not answer */
	CU_ASSERT_EQUAL(tables(0, 50), 0);
	raise(SIGUSR1);
	CU_ASSERT_EQUAL(tables(2, 50), 2);
	CU_ASSERT_FALSE(is_default());
	tutti_leave(a);
	tutti_leave(b);
	CU_ASSERT_TRUE(is_default());
	release_stderr();
}

static void test_many_jobs(void) /* more than are kicked awake: the others look by themselves */
{
	tutti *job[20];

	capture_stderr();
	for (size_t i = 0; i < TT_COUNT(job); i++)
		job[i] = join_alone();
	raise(SIGUSR1);
	CU_ASSERT_EQUAL(tables(20, 50), 20);
	for (size_t i = 0; i < TT_COUNT(job); i++)
		tutti_leave(job[i]);
	CU_ASSERT_TRUE(is_default());
	release_stderr();
}

static volatile sig_atomic_t heard;
static void hear(int sig) { heard = sig; }

/* Whoever has a handler of his own, before the job or later, keeps it. */
static void test_own_handler(void)
{
	struct sigaction now;

	capture_stderr();
	signal(SIGUSR1, hear);
	tutti *job = join_alone();
	raise(SIGUSR1);
	CU_ASSERT_EQUAL(heard, SIGUSR1);
	CU_ASSERT_EQUAL(tables(0, 50), 0);
	tutti_leave(job);
	signal(SIGUSR1, SIG_DFL);
	job = join_alone();
	signal(SIGUSR1, hear);
	tutti_leave(job);
	CU_ASSERT_TRUE(!sigaction(SIGUSR1, NULL, &now) && now.sa_handler == hear);
	signal(SIGUSR1, SIG_IGN);
	job = join_alone();
	CU_ASSERT_TRUE(!sigaction(SIGUSR1, NULL, &now) && now.sa_handler == SIG_IGN);
	tutti_leave(job);
	signal(SIGUSR1, SIG_DFL);
	release_stderr();
}

static void test_launched(void) /* tutti run lets its ranks ignore the signal until they have joined */
{
	struct sigaction now;

	capture_stderr();
	setenv("TUTTI_BOOT", "127.0.0.1:1", 1);
	setenv("TUTTI_LOCAL_SIZE", "1", 1);
	setenv("TUTTI_LOCAL_RANK", "0", 1);
	signal(SIGUSR1, SIG_IGN);
	tutti *job = join_alone();
	raise(SIGUSR1);
	CU_ASSERT_EQUAL(tables(1, 50), 1);
	tutti_leave(job);
	CU_ASSERT_TRUE(!sigaction(SIGUSR1, NULL, &now) && now.sa_handler == SIG_IGN);
	signal(SIGUSR1, SIG_DFL);
	unsetenv("TUTTI_BOOT");
	unsetenv("TUTTI_LOCAL_SIZE");
	unsetenv("TUTTI_LOCAL_RANK");
	release_stderr();
}

static void test_setting(void)
{
	tutti_config c = { .ranks = 1, .boot = "127.0.0.1:1", .newcomers = TUTTI_NEVER };
	tutti *job;

	setenv("TUTTI_STATS_SIGNAL", "none", 1);
	job = join_alone();
	CU_ASSERT_TRUE(is_default());
	tutti_leave(job);
	setenv("TUTTI_STATS_SIGNAL", "HUP", 1);
	CU_ASSERT_EQUAL(tutti_join(&c, &job), -EINVAL);
	CU_ASSERT_PTR_NOT_NULL(strstr(tutti_why(), "TUTTI_STATS_SIGNAL=HUP"));
	unsetenv("TUTTI_STATS_SIGNAL");
	CU_ASSERT_TRUE(is_default());
}

/* ---- the cost: what a start and an end take. Printed with -v; how busy the machine is nobody can promise ---- */

static void test_cost(void)
{
	enum { N = 200000 };
	uint64_t best = UINT64_MAX;
	tutti *job = join_alone();

	tt_lock(job->job);
	for (int round = 0; round < 7; round++) {
		struct tt_post p = { .member = tt_member(job->job, 0), .op = { .kind = TT_SEND, .len = 8 } };
		uint64_t start = tt_now();
		for (int i = 0; i < N; i++) {
			p.since = tt_stats_start(job->job);
			tt_post_count(&p, 0);
		}
		best = tt_min(best, tt_now() - start);
	}
	tt_unlock(job->job);
	if (name_each_test)
		printf("  %.1f ns an operation, its start and its end\n", (double)best / N);
	CU_ASSERT_EQUAL(tt_member(job->job, 0)->stats->of[TUTTI_STAT_MESSAGE]->ops, 7 * N);
	CU_ASSERT_TRUE(best / N < 5000); /* no system call, no allocation */
	tutti_leave(job);
}

static CU_TestInfo count_tests[] = {
	{ "windows", test_window },
	{ "collectives", test_collectives },
	{ "arguments", test_bad_arguments },
	{ "times", test_times },
	{ "some are timed", test_sampled },
	{ "a lost rank", test_lost },
	{ "a refused one", test_refusing },
	{ "cost", test_cost },
	CU_TEST_INFO_NULL,
};
static CU_TestInfo dump_tests[] = {
	{ "table", test_dump },
	{ "a stalled reader", test_stalled },
	{ "signal", test_signal },
	{ "many jobs", test_many_jobs },
	{ "own handler", test_own_handler },
	{ "launched", test_launched },
	{ "setting", test_setting },
	CU_TEST_INFO_NULL,
};
static CU_SuiteInfo suites[] = {
	{ "counts", NULL, NULL, NULL, NULL, count_tests },
	{ "dump", NULL, NULL, NULL, NULL, dump_tests },
	CU_SUITE_INFO_NULL,
};

int main(int argc, char **argv) { return run_suites(suites, argc, argv); }
