/* crowd.c - many ranks: how they find each other down the tree, what becomes of those whose parent dies, how the work
 * grows with their number, and a real job of some hundred processes.
 *   tests/member/crowd --ranks N: one simulated job of N ranks alone, with how long it took and how much memory */
#include "collective/collective_private.h"
#include "engine/engine.h"
#include "member/member_private.h"
#include "operation/operation.h"
#include "tests/harness/cunit_main.h"
#include "tests/harness/procs.h"
#include "tests/harness/ranks.h"
#include "transport/sim/sim.h"
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>

#if TT_TSAN
enum { SIM_RANKS = 100, SEEDS = 4, PROCESSES = 24, SHARERS = 12 };
#elif TT_ASAN
enum { SIM_RANKS = 880, SEEDS = 4, PROCESSES = 24, SHARERS = 12 };
#else
#define SEEDS (uint64_t)all_or(25, 4)
enum { SIM_RANKS = 880, PROCESSES = 256, SHARERS = 64 };
#endif
enum { FAN = 8, /* of the tree; 880: their table takes two pieces */ HANG_MS = 20000 * SLOW };

/* ---- simulated ---- */

static void program_sum(tutti *job)
{
	double n = tutti_size(job), me = tutti_rank(job), v[3] = { 1, me, me * me };

	CHECK(tutti_barrier(job, NULL) == 0);
	CHECK(tutti_allreduce(job, v, v, 3, TUTTI_F64, TUTTI_SUM, NULL) == 0);
	CHECK(v[0] == n && v[1] == n * (n - 1) / 2 && v[2] == n * (n - 1) * (2 * n - 1) / 6);
}

static int run_many(int ranks)
{
	struct rusage use;
	uint64_t start = tt_now();
	int failures = run_ranks((struct ranks){ .size = ranks, .wire = "sim", .seed = 1, .program = program_sum });

	getrusage(RUSAGE_SELF, &use);
	printf("%d simulated ranks joined, met, added and left in %.1f s, %ld MB: %d failures\n", ranks,
	       (double)(tt_now() - start) / 1e9, use.ru_maxrss / 1024, failures);
	return failures;
}

static void test_many(void) { WANT(run_many(SIM_RANKS) == 0, "%d ranks", SIM_RANKS); }

/* Tables of any length, of addresses of any length, in as many pieces as they take. Nobody is there to get them. */
static void test_tables(void)
{
	enum { MOST = 3000 };
	static struct tt_member members[MOST];
	struct tt_members all = { .of = members, .launched = MOST };
	struct tt_job job = { .own[TT_MEMBER_SLOT] = &all, .engine.pin_above = SIZE_MAX };
	char addr[96];

	for (size_t len = 0; len < sizeof addr; len += 19) {
		memset(addr, 'a', len);
		addr[len] = '\0';
		for (int i = 0; i < MOST; i++)
			members[i] = (struct tt_member){ .job = &job, .rank = i, .addr = addr, .host = 1, .epoch = 1 };
		for (job.size = 1; job.size < MOST; job.size += 7)
			tt_tree_send(&job);
	}
	CU_ASSERT(all.endpoints_sent > 0);
}

/* ---- growth: twice the ranks take at most two and a half times the work. n log n does, and n * n does not. ---- */

enum { TURNS, EVENTS, OPS, LOOKS, COUNTS };
static const char *const count_names[COUNTS] = {
	"turns of fibers", "events", "ops posted", "looks of one rank at others",
};
static uint64_t looks; /* of all ranks: they tell of a loop in a loop over the group, which no message does */

struct tt_member *__real_tt_group_member(const struct tutti *, int i);
struct tt_member *__wrap_tt_group_member(const struct tutti *, int i);

struct tt_member *__wrap_tt_group_member(const struct tutti *g, int i) /* the linker's --wrap */
{
	looks++;
	return __real_tt_group_member(g, i);
}

static void count_work(int ranks, void (*program)(tutti *), uint64_t count[COUNTS])
{
	struct tt_sim_counts c = { 0 };

	looks = 0;
	struct ranks run = { .size = ranks, .wire = "sim", .seed = 1, .counts = &c, .program = program };
	WANT(run_ranks(run) == 0, "%d ranks", ranks);
	count[TURNS] = c.turns;
	count[EVENTS] = c.events;
	count[OPS] = c.ops;
	count[LOOKS] = looks / (uint64_t)ranks; /* each has to learn of all others */
}

static void compare_work(int ranks, void (*program)(tutti *), bool fast)
{
	uint64_t once[COUNTS], twice[COUNTS];

	count_work(ranks, program, once);
	count_work(2 * ranks, program, twice);
	for (int k = 0; k < COUNTS; k++)
		WANT((2 * twice[k] > 5 * once[k]) == fast, "%s: %llu of %d ranks, %llu of %d", count_names[k],
		     (unsigned long long)once[k], ranks, (unsigned long long)twice[k], 2 * ranks);
}

static void test_growth(void) { compare_work(SIM_RANKS / 2, program_sum, false); }

/* What the counts must notice: every rank asks each other one for something, and compares each with each. */
static void program_wasteful(tutti *job)
{
	uint64_t memory = (uint64_t)tutti_rank(job), v;
	int n = tutti_size(job), unlike = 0;
	tutti_window *w;

	CHECK(tutti_window_open(job, "wasteful", &memory, 8, &w) == 0);
	for (int i = 0; i < n; i++)
		CHECK(tutti_get(w, i, 0, &v, 8, NULL) == 0 && v == (uint64_t)i);
	for (int i = 0; i < n * n; i++)
		unlike += tt_group_member(job, i / n) != tt_group_member(job, i % n);
	CHECK(unlike == n * (n - 1));
	CHECK(tutti_barrier(job, NULL) == 0);
	tutti_window_close(w);
}

static void test_waste(void) { compare_work(50, program_wasteful, true); }

/* ---- who shares a host's memory, against a plain loop ---- */

enum { SEATS_MOST = 300 };

struct place { /* of a seat */
	int host, reach; /* 0: not known, and none */
};

static bool share_memory(const struct place *a, const struct place *b, bool node_list)
{
	return a->host && a->host == b->host && (node_list || (a->reach && a->reach == b->reach));
}

/* By seat its host, in the order of their first seats; how many hosts. */
static int find_hosts(const struct place *places, int n, bool node_list, int *of)
{
	int hosts = 0;

	for (int i = 0; i < n; i++) {
		of[i] = hosts;
		for (int k = 0; k < i && of[i] == hosts; k++)
			of[i] = share_memory(&places[k], &places[i], node_list) ? of[k] : hosts;
		hosts += of[i] == hosts;
	}
	return hosts;
}

static bool is_as_found(const struct tt_layout *l, const int *of, int n, int hosts)
{
	int at = 0, fewest = n, most = 0;
	uint32_t print = tt_hash(TT_HASH, of, (size_t)n * sizeof *of) | 1;
	bool good = l->hosts == hosts && l->start[0] == 0 && l->print == print;

	for (int h = 0; h < hosts && good; h++) {
		for (int i = 0; i < n; i++)
			if (of[i] == h)
				good &= l->seats[at++] == i;
		good &= l->start[h + 1] == at;
		fewest = tt_min(fewest, tt_layout_ranks(l, h));
		most = tt_max(most, tt_layout_ranks(l, h));
	}
	return good && l->fewest == fewest && l->most == most;
}

/* Seats are not in the order of the ranks. */
static void try_layout(const struct place *places, int n, bool node_list, bool sim)
{
	static const char *const addrs[] = { /* by reach */
		"tcp:10.0.0.7:4000", "shm:1c2e:84-0 tcp:10.0.0.7:4001", "tcp:10.0.0.7:4002 shm:1c2f:84-0",
	};
	static struct tt_member members[SEATS_MOST];
	static struct tt_seat seats[SEATS_MOST];
	struct tt_members all = { .of = members, .launched = n, .node_list = node_list };
	struct tt_job job = { .size = n, .own[TT_MEMBER_SLOT] = &all };
	struct tt_coll_group own = { 0 };
	struct tutti g = { .job = &job, .seats = seats, .n = n, .me = n / 3, .own[TT_COLLECTIVE_SLOT] = &own };
	int of[SEATS_MOST], hosts = find_hosts(places, n, node_list, of);

	for (int i = 0; i < n; i++) {
		int rank = seats[i].rank = n - 1 - i;
		members[rank] = (struct tt_member){ .job = &job, .rank = rank, .host = (uint64_t)places[i].host << 32 };
		members[rank].addr = sim ? "sim:1" : addrs[places[i].reach];
	}
	WANT(tt_layout_find(&g) == 0 && own.layout.here == of[g.me], "%d seats", n);
	WANT(is_as_found(&own.layout, of, n, hosts), "%d seats on %d hosts", n, hosts);
	tt_layout_free(&g);
}

static void test_layouts(void)
{
	struct place places[SEATS_MOST];
	struct tt_random random;

	tt_random_seed(&random, 1);
	for (int k = 0; k < 200; k++) {
		int n = 1 + (int)tt_random_below(&random, SEATS_MOST);
		uint64_t hosts = 1 + tt_random_below(&random, SEATS_MOST);
		bool sim = k % 4 == 0;
		for (int i = 0; i < n; i++) {
			places[i].host = (int)tt_random_below(&random, hosts);
			places[i].reach = sim ? 1 : (int)tt_random_below(&random, 3);
		}
		try_layout(places, n, k % 4 == 1, sim);
	}
}

static bool is_beside(int a, int b, int n)
{
	return (a && (a - 1) / FAN == b) || (b && (b - 1) / FAN == a) || (a + 1) % n == b || (b + 1) % n == a;
}

/* With nothing to do, ranks keep the connections of the tree and of the ring alone. */
static void program_idle(tutti *job)
{
	tt_sim_sleep(5000 * TT_MS - tt_now()); /* a world begins at 1 s */
	int rank = tutti_rank(job), n = tutti_size(job), beside = 0;
	for (int i = 0; i < n; i++)
		beside += i != rank && is_beside(i, rank, n);
	CHECK(count_connections(job) == beside);
	tt_sim_sleep(6000 * TT_MS - tt_now());
}

/* One rank is late by three times TUTTI_SILENCE. All others hear that from ranks that they are connected to: the wait
 * leaves few connections. */
static void program_one_late(tutti *job)
{
	const struct tt_operation *r;
	uint64_t silence = job->job->silence;
	int late = tutti_size(job) * 2 / 3;
	double v = 1;
	tutti_op op = { 0 };
	char text[400];

	for (int i = 0; i < 2; i++) /* what the calls themselves connect */
		CHECK(tutti_allreduce(job, &v, &v, 1, TUTTI_F64, TUTTI_MAX, NULL) == 0 &&
		      tutti_barrier(job, NULL) == 0);
	int before = count_connections(job);
	if (tutti_rank(job) == late)
		pass_time(3 * silence);
	CHECK(tutti_allreduce(job, &v, &v, 1, TUTTI_F64, TUTTI_MAX, &op) == 0);
	r = (const struct tt_operation *)&op;
	if (tutti_rank(job) != late) {
		pass_time(silence * 5 / 2);
		tt_lock(job->job);
		int n = tt_operation_name(r, r->words->late, text, sizeof text);
		tt_unlock(job->job);
		CHECK(n == 1 && tt_operation_concerns(r, late) && r->words->late(r, tt_member(job->job, late)));
		CHECK(strstr(text, ": its last call was barrier"));
	}
	CHECK(tutti_wait(&op, TUTTI_NEVER) == 0);
	CHECK(count_connections(job) - before <= 16);
	CHECK(tutti_barrier(job, NULL) == 0);
}

static void test_one_late(void)
{
	for (int ring = 0; ring < 2; ring++)
		CU_ASSERT_EQUAL(run_ranks((struct ranks){ .size = all_or(TT_ASAN || TT_TSAN ? 200 : 1000, 100),
		                                          .wire = "sim",
		                                          .allreduce = ring ? "ring" : NULL,
		                                          .silence_ms = 1000,
		                                          .program = program_one_late }), 0);
}

static bool is_nobody(const struct tt_operation *r, const struct tt_member *m) { return (void)r, (void)m, false; }

/* All ranks have called, as far as rank 0 hears: the log says so. */
static void program_none_late(tutti *job)
{
	static const struct tt_operation_kind kind = { .late = is_nobody };
	tutti_op op = { 0 };

	CHECK(tutti_barrier(job, NULL) == 0);
	if (tutti_rank(job) == 0) {
		tt_lock(job->job);
		struct tt_operation *r = tt_operation_begin(job->job, &op, NULL, "test", -1);
		r->words = &kind;
		tt_unlock(job->job);
		pass_time(4 * job->job->silence);
		tt_lock(job->job);
		CHECK(r->said);
		tt_operation_end(r, 0);
		tt_unlock(job->job);
		CHECK(tutti_wait(&op, TUTTI_NEVER) == 0);
	}
	CHECK(tutti_barrier(job, NULL) == 0);
}

static void test_none_late(void)
{
	CU_ASSERT_EQUAL(run_ranks((struct ranks){ .size = 2,
	                                          .wire = "sim",
	                                          .silence_ms = 1000,
	                                          .program = program_none_late }), 0);
}

/* Rank 1 has told rank 0 that rank 2 is behind, which is over now. Rank 0 is not to blame rank 2 for another one. */
static void program_caught_up(tutti *job)
{
	struct tt_member *of = NULL;
	uint32_t begun = 0;

	CHECK(tutti_barrier(job, NULL) == 0);
	for (int step = 0; step < 2; step++) {
		tt_lock(job->job);
		of = tt_member(job->job, 2);
		begun = job->started;
		if (tutti_rank(job) == 1) {
			of->started_in = job->uid;
			of->started = step ? begun : begun - 1;
			of->heard = tt_now();
			tt_member_ping_for(tt_member(job->job, 0), job->uid);
		}
		tt_unlock(job->job);
		pass_time(job->job->silence / 8);
		if (tutti_rank(job) == 0)
			CHECK(of->started_in == job->uid && of->started == (step ? begun : begun - 1));
	}
	CHECK(tutti_barrier(job, NULL) == 0);
}

static void test_caught_up(void)
{
	CU_ASSERT_EQUAL(run_ranks((struct ranks){ .size = 3,
	                                          .wire = "sim",
	                                          .silence_ms = 1000,
	                                          .program = program_caught_up }), 0);
}

/* As after a SIGSTOP of many seconds, which rank 0 forgets within five silences. */
static void program_stopped_once(tutti *job)
{
	uint64_t silence = job->job->silence;

	pass_time(20 * silence);
	tt_lock(job->job);
	if (tutti_rank(job) == 0)
		tt_members(job->job)->heartbeat.at = 1;
	tt_unlock(job->job);
	pass_time(5 * silence);
	tt_lock(job->job);
	CHECK(tt_time(job->job, TT_TIME_GRACE) < silence / 8);
	tt_unlock(job->job);
	CHECK(tutti_barrier(job, NULL) == 0);
}

static void test_stopped_once(void)
{
	CU_ASSERT_EQUAL(run_ranks((struct ranks){ .size = 2,
	                                          .wire = "sim",
	                                          .silence_ms = 1000,
	                                          .program = program_stopped_once }), 0);
}

static void test_one_of_some_late(void)
{
	CU_ASSERT_EQUAL(run_ranks((struct ranks){ .size = all_or(64, 36),
	                                          .wire = "tcp",
	                                          .allreduce = "ring",
	                                          .silence_ms = all_or(3000, 1000) * SLOW,
	                                          .program = program_one_late }), 0);
}

/* While others have not even joined, rank 0 asks each of them something. */
static void program_hasty(tutti *job)
{
	uint64_t memory = (uint64_t)tutti_rank(job) + 1, v[100];
	int n = tutti_size(job);
	tutti_op op[100] = { 0 };
	tutti_window *w;

	CHECK(tutti_window_open(job, "hasty", &memory, 8, &w) == 0);
	for (int i = 0; tutti_rank(job) == 0 && i < n; i++)
		CHECK(tutti_get(w, i, 0, &v[i], 8, &op[i]) == 0);
	for (int i = 0; tutti_rank(job) == 0 && i < n; i++)
		CHECK(tutti_wait(&op[i], 60000) == 0 && v[i] == (uint64_t)i + 1);
	CHECK(tutti_barrier(job, NULL) == 0);
	tutti_window_close(w);
}

/* At once everybody uses rank 0, or rank 0 everybody, while connections are given up. */
static void program_at_once(tutti *job)
{
	uint64_t memory = (uint64_t)tutti_rank(job) + 1, v = 0;
	int n = tutti_size(job), rank = tutti_rank(job);
	tutti_window *w;

	CHECK(tutti_window_open(job, "at once", &memory, 8, &w) == 0);
	tt_sim_sleep(tt_sim_chance(300000));
	for (int i = 0; rank == 0 && i < n; i++)
		CHECK(tutti_get(w, i, 0, &v, 8, NULL) == 0 && v == (uint64_t)i + 1);
	CHECK(tutti_get(w, 0, 0, &v, 8, NULL) == 0 && v == 1);
	CHECK(tutti_barrier(job, NULL) == 0);
	tutti_window_close(w);
}

static void program_nothing(tutti *job) { (void)job; }

static void test_tree(void)
{
	static void (*const programs[])(tutti *) = { program_idle, program_hasty, program_at_once, program_nothing,
		                                     program_sum };

	for (uint64_t seed = 1; seed <= SEEDS; seed++)
		for (size_t k = 0; k < TT_COUNT(programs); k++)
			WANT(run_ranks((struct ranks){ .size = 10 + (int)(seed * 7 % 90),
			                               .wire = "sim",
			                               .seed = seed,
			                               .program = programs[k] }) == 0,
			     "seed %d, program %d", (int)seed, (int)k);
}

/* A parent in the tree is killed, or stands still, while all join: those below it get the table all the same. If that
 * comes before its card, nobody joins. */
struct orphans {
	bool stop, leaves; /* leaves: rank 0, as soon as it can */
	int joined, speechless, ms; /* ms: the longest that anybody waited */
};

enum { ORPHANS = 40, PARENT = 2, ORPHANS_TIMEOUT = 2000 };

/* Why it could not join: with the words of rank 0, of who was told by it, or of who saw it give up. */
static bool explains(const char *why)
{
	return strstr(why, "rank 2 of 40 did not join") || strstr(why, "rank 0 knows who is missing") ||
	       strstr(why, "cannot join: rank 0");
}

static void orphan_rank(int rank, void *arg)
{
	struct orphans *o = arg;
	uint64_t start = tt_now(), at = tt_sim_chance(400000);
	tutti *job;

	if (rank == 0 && o->stop)
		tt_sim_stop(PARENT, at, 20000 * TT_MS);
	else if (rank == 0)
		tt_sim_kill(PARENT, at);
	int err = tutti_join(NULL, &job), ms = (int)((tt_now() - start) / TT_MS);
	if (rank != PARENT) {
		o->joined += !err;
		o->speechless += err && !explains(tutti_why());
		o->ms = ms > o->ms ? ms : o->ms;
	}
	if (rank || !o->leaves)
		tt_sim_sleep(500 * TT_MS);
	if (!err)
		tutti_leave(job);
}

static void test_parent(void)
{
	int all = 0, none = 0;

	for (uint64_t seed = 1; seed <= 4 * SEEDS; seed++) {
		struct orphans o = { .stop = seed % 2, .leaves = seed / 2 % 2 };
		struct tt_sim_config c = {
			.seed = seed, .ranks = ORPHANS, .program = orphan_rank, .arg = &o, .timeout_ms = ORPHANS_TIMEOUT
		};
		int err = tt_sim_run(&c), most = !o.joined ? ORPHANS_TIMEOUT : o.stop ? ORPHANS_TIMEOUT / 4 : 0;
		bool good = !err && (o.joined == ORPHANS - 1 || o.joined == 0) && o.ms < most + 100 && !o.speechless;
		WANT(good, "seed %d: %d: %s; %d joined, in %d ms at most, %d do not say why not", (int)seed, err,
		     err ? tutti_why() : "", o.joined, o.ms, o.speechless);
		all += o.joined > 0;
		none += o.joined == 0;
	}
	WANT(all > 0 && none > 0, "the others joined %d times, and %d times nobody did", all, none);
}

/* ---- real processes ---- */

static struct board {
	atomic_int joined, right, refused, stay; /* stay: before they add */
	char why[256]; /* of one that failed */
} *board;

static _Noreturn void be_rank(int rank, int size, int port, int timeout_ms)
{
	char boot[32];
	tutti_config c = { .rank = rank, .ranks = size, .boot = boot, .timeout_ms = timeout_ms };
	tutti *job = NULL;
	double v = rank;
	int err;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	alarm(0);
	snprintf(boot, sizeof boot, "127.0.0.1:%d", port);
	if ((err = tutti_join(&c, &job))) {
		board->refused++;
	} else {
		board->joined++;
		for (int i = 0; board->stay && i < HANG_MS; i++)
			sleep_ms(1);
		if (!(err = tutti_barrier(job, NULL)))
			err = tutti_allreduce(job, &v, &v, 1, TUTTI_F64, TUTTI_SUM, NULL);
		board->right += !err && v == size * (size - 1) / 2.0;
	}
	if (err)
		snprintf(board->why, sizeof board->why, "rank %d: %s", rank, tutti_why());
	if (job)
		tutti_leave(job);
	_exit(0);
}

static void start_ranks(pid_t *pid, int size, int port, int timeout_ms, bool stay)
{
	memset(board, 0, sizeof *board);
	board->stay = stay;
	for (int i = 0; i < size; i++) {
		pid[i] = fork_child();
		if (pid[i] == 0)
			be_rank(i, size, port, timeout_ms);
	}
}

static void end_ranks(const pid_t *pid, int size)
{
	int status;

	for (int i = 0; i < size; i++)
		waitpid(pid[i], &status, 0);
}

/* 256 are too many to share memory; 64 share a hub. */
static void meet(int n)
{
	static pid_t pid[PROCESSES];
	uint64_t start = tt_now();

	start_ranks(pid, n, free_port(), 30000 * SLOW, false);
	end_ranks(pid, n);
	WANT(board->right == n, "%d joined, %d added right, one says: %s", board->joined, board->right, board->why);
	printf("%d processes joined, met, added and left in %.1f s\n", n, (double)(tt_now() - start) / 1e9);
}

static void test_processes(void) { meet(PROCESSES); }
static void test_sharers(void) { meet(SHARERS); }

/* Killed at any time while joining, rank 1 may have owed the table to ranks 9 to 16: all others join, or all are told
 * why not. */
static void test_killed(void)
{
	enum { RANKS = 24 };
	pid_t pid[RANKS];

	for (int ms = 0; ms < 40; ms += all_or(5, 10)) {
		uint64_t start = tt_now();
		start_ranks(pid, RANKS, free_port(), 1500 * SLOW, false);
		sleep_ms(ms);
		kill(pid[1], SIGKILL);
		end_ranks(pid, RANKS);
		bool good = board->joined + board->refused >= RANKS - 1 &&
		            (board->joined >= RANKS - 1 || board->joined <= 1);
		WANT(good, "killed after %d ms: %d joined, %d refused, one says: %s", ms, board->joined, board->refused,
		     board->why);
		WANT(tt_now() - start < 8000 * TT_MS * SLOW, "killed after %d ms: all took %d ms", ms,
		     (int)((tt_now() - start) / TT_MS));
	}
}

/* Rank 20 has given up its connection to rank 0, and yet nobody else can be rank 20. */
static void test_impostor(void)
{
	enum { RANKS = 24, TWICE = 20 };
	pid_t pid[RANKS + 1];
	int port = free_port(), status;

	start_ranks(pid, RANKS, port, 10000 * SLOW, true);
	for (int i = 0; board->joined < RANKS && i < HANG_MS; i++)
		sleep_ms(1);
	sleep_ms(50);
	if (!(pid[RANKS] = fork_child()))
		be_rank(TWICE, RANKS, port, 3000);
	waitpid(pid[RANKS], &status, 0);
	WANT(board->refused == 1 && strstr(board->why, "rank 20 is already taken"), "%d refused: %s", board->refused,
	     board->why);
	board->stay = 0;
	end_ranks(pid, RANKS);
	WANT(board->right == RANKS, "%d added right, one says: %s", board->right, board->why);
}

static CU_TestInfo sim_tests[] = {
	{ "many", test_many },
	{ "growth", test_growth },
	{ "growth that is noticed", test_waste },
	{ "layouts", test_layouts },
	{ "tables", test_tables },
	{ "the tree", test_tree },
	{ "one is late", test_one_late },
	{ "none is late", test_none_late },
	{ "late no more", test_caught_up },
	{ "stopped once", test_stopped_once },
	{ "a parent dies", test_parent },
	CU_TEST_INFO_NULL,
};
static CU_TestInfo real_tests[] = {
	{ "many processes", test_processes },
	{ "many processes that share memory", test_sharers },
	{ "one of some is late", test_one_of_some_late },
	{ "killed while joining", test_killed },
	{ "a rank twice", test_impostor },
	CU_TEST_INFO_NULL,
};
static CU_SuiteInfo suites[] = {
	{ "real", NULL, NULL, NULL, NULL, real_tests }, /* first: the simulation's memory makes forks slow */
	{ "simulated", NULL, NULL, NULL, NULL, sim_tests },
	CU_SUITE_INFO_NULL,
};

int main(int argc, char **argv)
{
	if (argc == 3 && !strcmp(argv[1], "--ranks"))
		return run_many(atoi(argv[2])) != 0;
	for (int i = 0; i < TT_SETTINGS; i++) /* nothing of whoever runs the tests */
		unsetenv(tt_setting_info[i].variable);
	board = mmap(NULL, sizeof *board, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (board == MAP_FAILED)
		return 1;
	return run_suites(suites, argc, argv);
}
