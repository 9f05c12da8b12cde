/* elastic.c - jobs that grow from one rank, with real processes, over TCP and in shared memory
 *
 * Who finds the job and who begins it; newcomers that come before it; room that runs out; numbers that are used again;
 * a crowd that comes and goes; jobs that begin again at once at the same address.
 *
 * The parent forks one child a process. Each child has a place in memory that all share, and writes there what it met.
 */
#include "member/member.h"
#include "tests/harness/amount.h"
#include "tests/harness/cunit_main.h"
#include "tests/harness/procs.h"
#include "tests/harness/ranks.h"
#include <dirent.h>
#include <malloc.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>

enum { PLACES = 1024, NUMBERS = 256, HANG_MS = 60000 * SLOW, SILENCE_MS = 4000 * SLOW, EARLY = 40,
       BYTES_A_NUMBER = 1536 /* differ with how its last process has ended */ };

struct report {                  /* of one process */
	atomic_int stage;        /* how far it has come; 9: it has ended its program */
	int err, rank, late;
	uint64_t ms;             /* that joining took */
	char why[400];
	atomic_int complaints;   /* what it found wrong: how much, and the first */
	char complaint[500];
};

static struct board {
	atomic_int go;           /* the parent's word: how far they may go */
	atomic_int here;         /* newcomers that are in the job now */
	atomic_int holder[NUMBERS]; /* 1 + the place of the process that has that number; 0: none */
	char address[3][96];        /* of the ranks that a job was started with */
	struct report of[PLACES];
} *board;

static const char *wires, *boot_of;
static char boot[32];
static pid_t pids[PLACES];
static int place;                /* of this child */
static int silence_ms = SILENCE_MS;
static struct report *mine;

#define EXPECT(condition) expect_that(condition, #condition, __LINE__)

static void expect_that(bool good, const char *text, int line)
{
	if (!good && !atomic_fetch_add(&mine->complaints, 1))
		snprintf(mine->complaint, sizeof mine->complaint, "line %d: %s; last error: %s", line, text,
		         tutti_why());
}

static void reach(int stage) { mine->stage = stage; }

static void await_go(int go)
{
	for (int i = 0; board->go < go && i < HANG_MS; i++)
		sleep_ms(1);
	EXPECT(board->go >= go);
}

/* ---- a child ---- */

static const char *secret;
static int clock_behind_s; /* of this process's host */

uint64_t __real_tt_calendar(void);
uint64_t __wrap_tt_calendar(void);
uint64_t __wrap_tt_calendar(void) { return __real_tt_calendar() - (uint64_t)clock_behind_s * 1000 * TT_MS; }

static int join_as(int rank, int ranks, int timeout_ms, int newcomers, tutti **job)
{
	tutti_config c = { .rank = rank, .ranks = ranks, .boot = boot_of, .timeout_ms = timeout_ms, .secret = secret,
		           .silence_ms = silence_ms, .newcomers = newcomers, .transports = wires };
	uint64_t begun = tt_now();

	mine->err = tutti_join(&c, job);
	mine->ms = (tt_now() - begun) / TT_MS;
	snprintf(mine->why, sizeof mine->why, "%s", mine->err ? tutti_why() : "");
	if (mine->err)
		return mine->err;
	mine->rank = tutti_rank(tutti_job(*job));
	mine->late = tutti_late(*job);
	return 0;
}

static void start(int at, void (*program)(void))
{
	pids[at] = fork_child();
	if (pids[at])
		return;
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	alarm(0);
	setenv("TUTTI_LOG", "error", 1);
	place = at;
	mine = &board->of[at];
	program();
	reach(9);
	exit(0); /* not _exit: leaks are looked for now */
}

/* ---- the parent ---- */

static void begin(void)
{
	if (!board)
		board = mmap(NULL, sizeof *board, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	memset(board, 0, sizeof *board);
	memset(pids, 0, sizeof pids);
	snprintf(boot, sizeof boot, "127.0.0.1:%d", free_port());
	boot_of = boot;
}

static void await(int at, int stage)
{
	for (int ms = 0; ms < HANG_MS && board->of[at].stage < stage; ms++)
		sleep_ms(1);
	WANT(board->of[at].stage >= stage, "process %d: stage %d, %d: %s; complaint: %s", at, board->of[at].stage,
	     board->of[at].err, board->of[at].why, board->of[at].complaint);
}

/* Ends one that hangs. False: it did not end by itself in time, or badly. */
static bool end_process(int at, bool killed)
{
	int status = 0, ms = 0;

	for (; ms < HANG_MS && waitpid(pids[at], &status, WNOHANG) == 0; ms++)
		sleep_ms(1);
	if (ms == HANG_MS) {
		kill(pids[at], SIGKILL);
		waitpid(pids[at], &status, 0);
	}
	pids[at] = 0;
	return ms < HANG_MS && (killed ? WIFSIGNALED(status) : status == 0);
}

static void finish(int n)
{
	for (int i = 0; i < n; i++) {
		const struct report *r = &board->of[i];
		WANT(!pids[i] || end_process(i, false), "process %d ended badly, or hangs in stage %d: %s", i,
		     r->stage, r->complaint);
		WANT(!r->complaints, "process %d complains of %d things: %s", i, r->complaints, r->complaint);
	}
}

/* ---- finding the job, or beginning it ---- */

static void founder(void) /* of a job that takes newcomers until the parent says 5 */
{
	static uint64_t memory[NUMBERS];
	tutti_window *w;
	tutti *job;

	EXPECT(join_as(0, 1, HANG_MS, 0, &job) == 0);
	if (mine->err)
		return;
	EXPECT(!tutti_late(job) && tutti_size(job) == 1);
	EXPECT(tutti_window_open(job, "elastic", memory, sizeof memory, &w) == 0);
	reach(1);
	await_go(5);
	mine->rank = (int)memory[0]; /* the parent looks at it */
	tutti_window_close(w);
	tutti_leave(job);
}

static void second_founder(void)
{
	tutti *job;

	if (!join_as(0, 1, HANG_MS, 0, &job))
		tutti_leave(job);
}

/* It counts itself in, and checks that nobody else has its number. */
static bool take_part(tutti *job)
{
	uint64_t here = (uint64_t)place + 1, old = 0;
	tutti_window *w;
	int rank = mine->rank, nobody = 0;

	EXPECT(mine->late == 1 && tutti_size(job) == 1 && rank > 0 && rank < NUMBERS);
	if (mine->complaints)
		return false;
	EXPECT(atomic_compare_exchange_strong(&board->holder[rank], &nobody, place + 1));
	EXPECT(tutti_window_open(tutti_job(job), "elastic", &here, sizeof here, &w) == 0);
	EXPECT(tutti_add(w, 0, 0, 1, &old, NULL) == 0);
	EXPECT(tutti_put(w, 0, 8 * (size_t)rank, &here, 8, NULL) == 0);
	EXPECT(tutti_get(w, 0, 8 * (size_t)rank, &old, 8, NULL) == 0 && old == here);
	tutti_window_close(w);
	return true;
}

static void end_part(tutti *job)
{
	board->holder[mine->rank] = 0;
	tutti_leave(job);
}

static void visitor(void)
{
	tutti *job;

	if (join_as(TUTTI_NEW_RANK, 1, HANG_MS, 0, &job)) {
		EXPECT(mine->err == 0);
		return;
	}
	if (take_part(job)) {
		reach(1);
		end_part(job);
	}
}

static void impatient_visitor(void)
{
	tutti *job;

	if (!join_as(TUTTI_NEW_RANK, 1, 500, 0, &job))
		tutti_leave(job);
}

static void test_taken(void)
{
	begin();
	start(0, founder);
	await(0, 1);
	start(1, second_founder);
	await(1, 9);
	const struct report *r = &board->of[1];
	WANT(r->err == -EADDRINUSE && strstr(r->why, "in use by process"), "%d: %s", r->err, r->why);
	WANT(r->ms < 2000 * SLOW, "it took %llu ms", (unsigned long long)r->ms);
	start(2, visitor);
	await(2, 9);
	board->go = 5;
	finish(3);
	WANT(board->of[0].rank == 1, "%d newcomers have counted", board->of[0].rank);
}

static void test_nobody(void)
{
	begin();
	start(0, impatient_visitor);
	await(0, 9);
	const struct report *r = &board->of[0];
	WANT(r->err == -ETIMEDOUT && strstr(r->why, "rank 0 was not found at 127.0.0.1"), "%d: %s", r->err, r->why);
	WANT(r->ms >= 450 && r->ms < 5000 * SLOW, "it took %llu ms", (unsigned long long)r->ms);
	finish(1);
}

static void start_shuffled(struct tt_random *chance, void (*program)(void), int n)
{
	int order[EARLY];

	for (int i = 0; i < n; i++) {
		int at = (int)tt_random_below(chance, (uint64_t)i + 1);
		order[i] = order[at];
		order[at] = i + 1;
	}
	for (int i = 0; i < n; i++) {
		start(order[i], program);
		sleep_ms((int)tt_random_below(chance, 8));
	}
}

static void come_early(int seed)
{
	struct tt_random chance;

	tt_random_seed(&chance, (uint64_t)seed);
	begin();
	start_shuffled(&chance, visitor, EARLY);
	start(0, founder);
	for (int i = 1; i <= EARLY; i++)
		await(i, 9);
	board->go = 5;
	finish(EARLY + 1);
	WANT(board->of[0].rank == EARLY, "seed %d: %d newcomers have counted", seed, board->of[0].rank);
}

/* They wait for the job, in any order, and all get in. */
static void test_early(void)
{
	for (int seed = 1; seed <= all_or(8, 1); seed++)
		come_early(seed);
}

/* ---- room ---- */

static void founder_of_two(void)
{
	tutti *job;

	EXPECT(join_as(0, 1, HANG_MS, 2, &job) == 0);
	if (mine->err)
		return;
	reach(1);
	await_go(5);
	tutti_leave(job);
}

static void long_visitor(void) /* until the parent says 1 + its place */
{
	tutti *job;

	EXPECT(join_as(TUTTI_NEW_RANK, 1, HANG_MS, 0, &job) == 0);
	if (mine->err)
		return;
	EXPECT(mine->late && mine->rank >= 1 && mine->rank <= 2);
	reach(1);
	await_go(1 + place);
	tutti_leave(job);
}

static void test_room(void)
{
	begin();
	start(0, founder_of_two);
	await(0, 1);
	start(1, long_visitor);
	await(1, 1);
	start(2, long_visitor);
	await(2, 1);
	start(4, impatient_visitor);
	await(4, 9);
	const struct report *r = &board->of[4];
	WANT(r->err == -EPERM && strstr(r->why, "2 newcomers are there (TUTTI_NEWCOMERS)"), "%d: %s", r->err, r->why);
	start(3, long_visitor);
	sleep_ms(100);
	WANT(board->of[3].stage == 0, "a third newcomer is in");
	board->go = 2; /* the first one leaves */
	await(3, 1);
	WANT(board->of[3].rank == 1, "it has number %d", board->of[3].rank);
	board->go = 5;
	finish(5);
}

/* ---- a job without room ---- */

static void founder_of_none(void) /* a job of one would not listen */
{
	tutti *job;

	EXPECT(join_as(place, 2, HANG_MS, TUTTI_NEVER, &job) == 0);
	if (mine->err)
		return;
	reach(1);
	await_go(5);
	tutti_leave(job);
}

static void unwanted_visitor(void)
{
	tutti *job;

	if (!join_as(TUTTI_NEW_RANK, 2, HANG_MS, 0, &job))
		tutti_leave(job);
}

/* Nobody needs to wait for room that never comes. */
static void test_no_room(void)
{
	begin();
	start(0, founder_of_none);
	start(1, founder_of_none);
	await(0, 1);
	await(1, 1);
	start(2, unwanted_visitor);
	await(2, 9);
	const struct report *r = &board->of[2];
	WANT(r->err == -EPERM && strstr(r->why, "the job takes no newcomers: TUTTI_NEWCOMERS is 0 on rank 0"),
	     "%d: %s", r->err, r->why);
	WANT(r->ms < HANG_MS / 10, "it took %llu ms", (unsigned long long)r->ms);
	board->go = 5;
	finish(3);
}

/* ---- a number that is used again ---- */

static int put_to(tutti_window *w, int rank)
{
	uint64_t v = 7;

	return tutti_put(w, rank, 0, &v, 8, NULL);
}

static void founder_of_stale(void)
{
	tutti *job, *grown;
	tutti_window *whole, *part;
	uint64_t memory = 0;
	int err;

	EXPECT(join_as(0, 1, HANG_MS, 1, &job) == 0);
	if (mine->err)
		return;
	reach(1);
	await_go(1); /* the first newcomer is there, and calls, too */
	EXPECT(tutti_group_grow(job, &grown) == 0 && tutti_size(grown) == 2);
	EXPECT(tutti_window_open(job, "whole", &memory, 8, &whole) == 0);
	EXPECT(tutti_window_open(grown, "part", &memory, 8, &part) == 0);
	EXPECT(put_to(whole, 1) == 0 && put_to(part, 1) == 0);
	EXPECT(tutti_barrier(grown, NULL) == 0);
	await_go(2); /* it has gone */
	err = put_to(part, 1);
	EXPECT(err == -ENOTCONN || err == -ECONNRESET);
	reach(2);
	await_go(3); /* another one has its number */
	EXPECT(put_to(whole, 1) == 0);
	EXPECT(put_to(part, 1) == -ESTALE && strstr(tutti_why(), "a newcomer has its number 1"));
	EXPECT(tutti_wait_notify(part, 1, 0, 1, 0) == -ESTALE);
	EXPECT(tutti_barrier(grown, NULL) < 0);
	tutti_window_close(whole);
	tutti_window_close(part);
	reach(3);
	await_go(4);
	tutti_leave(job);
}

static void open_and_wait(tutti *at, const char *name, int go)
{
	uint64_t memory = 0;
	tutti_window *whole, *part = NULL;

	EXPECT(tutti_window_open(tutti_job(at), "whole", &memory, 8, &whole) == 0);
	if (name)
		EXPECT(tutti_window_open(at, name, &memory, 8, &part) == 0 && tutti_barrier(at, NULL) == 0);
	reach(1);
	if (go)
		await_go(go);
	tutti_window_close(part);
	tutti_window_close(whole);
}

static void first_holder(void)
{
	tutti *job, *grown;

	EXPECT(join_as(TUTTI_NEW_RANK, 1, HANG_MS, 0, &job) == 0);
	if (mine->err)
		return;
	EXPECT(mine->rank == 1);
	board->go = 1;
	EXPECT(tutti_group_grow(job, &grown) == 0);
	open_and_wait(grown, "part", 0);
	tutti_leave(job);
}

static void second_holder(void)
{
	tutti *job;

	EXPECT(join_as(TUTTI_NEW_RANK, 1, HANG_MS, 0, &job) == 0);
	if (mine->err)
		return;
	EXPECT(mine->rank == 1);
	open_and_wait(job, NULL, 4);
	tutti_leave(job);
}

static void test_stale(void)
{
	begin();
	start(0, founder_of_stale);
	await(0, 1);
	start(1, first_holder);
	await(1, 9);
	WANT(end_process(1, false), "the first holder: %s", board->of[1].complaint);
	board->go = 2;
	await(0, 2);
	start(2, second_holder);
	await(2, 1);
	board->go = 3;
	await(0, 3);
	board->go = 4;
	finish(3);
}

/* ---- coming again ---- */

static void returning_visitor(void)
{
	tutti *job;

	for (int i = 0; i < all_or(100, 20) && !mine->complaints; i++) {
		EXPECT(join_as(TUTTI_NEW_RANK, 1, HANG_MS, 0, &job) == 0);
		if (mine->err || !take_part(job))
			return;
		end_part(job);
	}
}

static void test_return(void)
{
	begin();
	start(0, founder);
	await(0, 1);
	start(1, returning_visitor);
	start(2, returning_visitor);
	await(1, 9);
	await(2, 9);
	board->go = 5;
	finish(3);
	WANT(board->of[0].rank == 2 * all_or(100, 20), "%d visits", board->of[0].rank);
}

/* All leave and begin the next job at the same address: each meets the others, and nobody of the job before. */
enum { AGAIN = 3 };

static void begin_again(void)
{
	tutti *job;

	for (int32_t i = 0; i < all_or(300, 40) && !mine->complaints; i++) {
		int32_t v[2] = { i, -i };
		EXPECT(join_as(place, AGAIN, HANG_MS / 4, 0, &job) == 0);
		if (mine->err)
			return;
		EXPECT(!mine->late && tutti_size(job) == AGAIN);
		EXPECT(tutti_allreduce(job, v, v, 2, TUTTI_I32, TUTTI_MAX, NULL) == 0 && v[0] == i && v[1] == -i);
		tutti_leave(job);
		mine->stage = i > 0;
	}
}

static void test_again(void)
{
	begin();
	for (int i = 0; i < AGAIN; i++)
		start(i, begin_again);
	finish(AGAIN);
}

/* ---- rank 0 goes down while others join, and is started again ---- */

enum { BRIEF_MS = 1000 * SLOW };

static void brief(void)
{
	tutti *job;

	silence_ms = BRIEF_MS;
	EXPECT(join_as(place, AGAIN, HANG_MS, 0, &job) == 0);
	if (mine->err)
		return;
	EXPECT(!mine->late && tutti_barrier(job, NULL) == 0);
	tutti_leave(job);
}

/* Once rank 1 has found the new rank 0, the silence is no bound any more. */
static void test_new_root(void)
{
	begin();
	start(0, brief);
	start(1, brief);
	sleep_ms(BRIEF_MS / 2);
	kill(pids[0], SIGKILL);
	WANT(end_process(0, true), "rank 0 was not killed: %s", board->of[0].why);
	start(0, brief);
	sleep_ms(2 * BRIEF_MS);
	start(2, brief);
	finish(AGAIN);
}

/* ---- who comes to a job under way with the addresses of all ranks ---- */

enum { MEMBERS = 3 };

static void member(void)
{
	struct tt_tally refused = { .ops = 0 };
	tutti *job;

	EXPECT(join_as(place, MEMBERS, HANG_MS, 0, &job) == 0);
	if (mine->err)
		return;
	tt_address_find(tt_member(job->job, place)->addr, "tcp", board->address[place]);
	EXPECT(tutti_barrier(job, NULL) == 0);
	reach(1);
	await_go(5);
	tt_lock(job->job);
	tt_stats_sum(&refused, job->job->stats.own, TUTTI_STAT_REFUSED);
	tt_unlock(job->job);
	EXPECT(refused.ops <= 3); /* each of them is a line in the log */
	tutti_leave(job);
}

static void begin_members(void)
{
	begin();
	for (int i = 0; i < MEMBERS; i++)
		start(i, member);
	for (int i = 0; i < MEMBERS; i++)
		await(i, 1);
}

static const char *all_addresses(void)
{
	static char list[200];

	snprintf(list, sizeof list, "%s,%s,%s", boot, board->address[1] + 4, board->address[2] + 4);
	return list;
}

static void kill_member(int at)
{
	kill(pids[at], SIGKILL);
	WANT(end_process(at, true), "rank %d was not killed", at);
}

static void come_as(int rank)
{
	tutti *job;

	boot_of = all_addresses();
	if (!join_as(rank, MEMBERS, HANG_MS, 0, &job))
		tutti_leave(job);
}

static void second_rank_1(void) { come_as(1); }
static void second_rank_0(void) { come_as(0); }
static void new_rank(void) { come_as(TUTTI_NEW_RANK); }
#ifdef HAVE_LIBSODIUM
static void rank_1_with_another_secret(void)
{
	secret = "another secret than that of the job";
	come_as(1);
}
#endif
static void rank_1_of_another_clock(void)
{
	clock_behind_s = 3600;
	come_as(1);
}
static void rank_1_in_a_minority(void)
{
	setenv("TUTTI_MINORITY", "yes", 1);
	come_as(1);
}

/* HANG_MS would be the rank's timeout. */
static void expect_refusal(void (*program)(void), int err, const char *words, const char *more)
{
	const struct report *r = &board->of[MEMBERS];

	start(MEMBERS, program);
	await(MEMBERS, 9);
	WANT(r->err == err && strstr(r->why, words) && strstr(r->why, more), "%d: %s", r->err, r->why);
	WANT(r->ms < 15000 * SLOW, "it took %llu ms", (unsigned long long)r->ms);
	WANT(end_process(MEMBERS, false), "it ended badly");
	memset(&board->of[MEMBERS], 0, sizeof board->of[MEMBERS]);
}

static void expect_welcome(void (*program)(void))
{
	const struct report *r = &board->of[MEMBERS];

	start(MEMBERS, program);
	await(MEMBERS, 9);
	WANT(!r->err && r->late, "%d: %s", r->err, r->why);
	WANT(r->ms < 15000 * SLOW, "it took %llu ms", (unsigned long long)r->ms);
	WANT(end_process(MEMBERS, false), "it ended badly");
	memset(&board->of[MEMBERS], 0, sizeof board->of[MEMBERS]);
}

static void test_refused_by_all(void)
{
	begin_members();
	expect_refusal(second_rank_1, -EPERM, "all ranks that answer at ", "rank 1 is already taken");
#ifdef HAVE_LIBSODIUM
	expect_refusal(rank_1_with_another_secret, -EPERM, "all ranks that answer at ", "TUTTI_SECRET");
#else
	printf("built without libsodium: a rank with another secret is not tested\n");
#endif
	board->go = 5;
	finish(MEMBERS);
}

/* It is to host no second job. */
static void test_rank_0_again(void)
{
	begin_members();
	kill_member(0);
	expect_refusal(second_rank_0, -EPERM, "refused this process as rank 0: ", "TUTTI_RANK=new");
	expect_welcome(new_rank);
	board->go = 5;
	finish(MEMBERS);
}

/* The ranks that are there know a later life, but one that has ended. */
static void test_clock_behind(void)
{
	begin_members();
	kill_member(1);
	expect_welcome(rank_1_of_another_clock);
	board->go = 5;
	finish(MEMBERS);
}

static void test_settings_differ(void)
{
	begin_members();
	kill_member(1);
	expect_refusal(rank_1_in_a_minority, -EPERM, "TUTTI_MINORITY is yes on rank 1 and no on rank ",
	               ": all ranks must have the same value");
	board->go = 5;
	finish(MEMBERS);
}

/* ---- a program that does not know tutti_late ---- */

static void solo(void)
{
	char text[4096] = "";
	int log = memfd_create("stderr", 0), n = 0;
	tutti *job;

	EXPECT(join_as(TUTTI_NEW_RANK, 1, HANG_MS, 0, &job) == 0);
	if (mine->err)
		return;
	setenv("TUTTI_LOG", "warn", 1);
	tt_log_read_level();
	dup2(log, STDERR_FILENO);
	EXPECT(tutti_barrier(job, NULL) == 0 && tutti_barrier(job, NULL) == 0);
	tt_log_flush(tt_now());
	EXPECT(pread(log, text, sizeof text - 1, 0) > 0);
	for (const char *at = text; (at = strstr(at, "calls a collective in a group of itself alone")); at++)
		n++;
	EXPECT(n == 1);
	tutti_leave(job);
	close(log);
}

static void test_solo(void)
{
	begin();
	start(0, founder);
	await(0, 1);
	start(1, solo);
	await(1, 9);
	board->go = 5;
	finish(2);
}

/* ---- a list of nodes that grows ---- */

#ifdef HAVE_LIBCONFIG
static char lists[2][40]; /* files: with two nodes, and with three */
static int ports[3];

static void write_list(int at, int n)
{
	snprintf(lists[at], sizeof lists[at], "/tmp/tutti-elastic-XXXXXX");
	int fd = mkstemp(lists[at]);
	FILE *f = fd < 0 ? NULL : fdopen(fd, "w");

	if (!f)
		abort();
	fprintf(f, "nodes = (");
	for (int i = 0; i < n; i++)
		fprintf(f, "%s{ name = \"n%d\"; address = \"127.0.0.1:%d\"; }", i ? ", " : "", i, ports[i]);
	fprintf(f, ");\n");
	fclose(f);
}

static int join_list(int list, int timeout_ms, tutti **job)
{
	char name[8];

	snprintf(name, sizeof name, "n%d", place);
	tutti_config c = { .file = lists[list], .node = name, .timeout_ms = timeout_ms, .silence_ms = SILENCE_MS,
		           .transports = wires };
	mine->err = tutti_join(&c, job);
	EXPECT(mine->err == 0);
	return mine->err;
}

static void await_gone_2(tutti *job)
{
	bool gone = false;

	for (int ms = 0; ms < HANG_MS && !gone; ms++) {
		tt_lock(job->job);
		gone = tt_member(job->job, 2)->state == TT_GONE;
		tt_unlock(job->job);
		sleep_ms(1);
	}
	EXPECT(gone);
}

/* Of two nodes. It adds the third at 1, hears from it, and removes it at 2. */
static void listed(void)
{
	uint64_t memory[4] = { 0 }, v = 0;
	tutti_window *w;
	tutti *job;

	if (join_list(0, HANG_MS, &job))
		return;
	EXPECT(tutti_window_open(job, "list", memory, sizeof memory, &w) == 0);
	EXPECT(tutti_barrier(job, NULL) == 0);
	reach(1);
	await_go(1);
	EXPECT(tutti_node_add(job, "n1", "127.0.0.1", ports[1]) == 1);
	EXPECT(tutti_node_add(job, "n1", "127.0.0.1", ports[0]) == -EEXIST);
	EXPECT(tutti_node_add(job, "n2", "127.0.0.1", 0) == -EINVAL);
	EXPECT(tutti_node_add(job, "n2", "127.0.0.1", ports[2]) == 2);
	EXPECT(tutti_wait_notify(w, 2, 0, 1, HANG_MS) == 0 && memory[2] == 42);
	EXPECT(tutti_get(w, 2, 0, &v, 8, NULL) == 0 && v == 43);
	EXPECT(tutti_barrier(job, NULL) == 0 && tutti_size(job) == 2);
	reach(2);
	await_go(2);
	EXPECT(tutti_node_remove(job, "n9") == -ENOENT);
	EXPECT(place == 1 || tutti_node_remove(job, "n0") == -EINVAL);
	if (!place)
		EXPECT(tutti_node_remove(job, "n2") == 0);
	await_gone_2(job);
	EXPECT(tutti_get(w, 2, 0, &v, 8, NULL) == -ECONNRESET);
	EXPECT(tutti_barrier(job, NULL) == 0);
	reach(3);
	tutti_window_close(w);
	tutti_leave(job);
}

static void added(void)
{
	uint64_t memory[4] = { 43 }, v = 42;
	tutti_window *w;
	tutti *job;

	if (join_list(1, HANG_MS, &job))
		return;
	EXPECT(tutti_window_open(job, "list", memory, sizeof memory, &w) == 0);
	reach(1);
	for (int i = 0; i < 2; i++)
		EXPECT(tutti_put_notify(w, i, 16, &v, 8, 0, NULL) == 0);
	reach(2);
	await_go(2);
	for (int ms = 0; ms < HANG_MS && !tutti_put(w, 0, 0, &v, 8, NULL); ms++)
		sleep_ms(1); /* until it is evicted */
	EXPECT(tutti_put(w, 0, 0, &v, 8, NULL) == -ECONNRESET);
	tutti_window_close(w);
	tutti_leave(job);
}

static void test_nodes(void)
{
	begin();
	for (int i = 0; i < 3; i++)
		ports[i] = free_port();
	write_list(0, 2);
	write_list(1, 3);
	start(0, listed);
	start(1, listed);
	await(0, 1);
	await(1, 1);
	start(2, added);
	await(2, 1);
	sleep_ms(100);
	WANT(board->of[2].stage == 1, "a node that nobody has added is in");
	board->go = 1;
	await(0, 2);
	await(1, 2);
	await(2, 2);
	board->go = 2;
	finish(3);
	unlink(lists[0]);
	unlink(lists[1]);
}

static void node(void)
{
	uint64_t memory = 43;
	tutti_window *w;
	tutti *job;

	if (join_list(0, HANG_MS, &job))
		return;
	EXPECT(tutti_window_open(job, "node", &memory, 8, &w) == 0);
	EXPECT(tutti_barrier(job, NULL) == 0);
	reach(1);
	await_go(5);
	tutti_window_close(w);
	tutti_leave(job);
}

/* It learns from the first rank that it meets that it is not the node's first process: it may not vote in a group. */
static void node_again(void)
{
	tutti *job, *left;
	uint64_t v = 0;
	tutti_window *w;

	clock_behind_s = 3600;
	if (join_list(0, HANG_MS, &job))
		return;
	EXPECT(tutti_window_open(job, "node", NULL, 0, &w) == 0);
	EXPECT(tutti_get(w, 0, 0, &v, 8, NULL) == 0 && v == 43);
	EXPECT(tutti_barrier(job, NULL) == -EINVAL && strstr(tutti_why(), "this node was started again"));
	EXPECT(tutti_group_shrink(job, &left) == -EINVAL);
	EXPECT(tutti_get(w, 1, 0, &v, 8, NULL) == 0 && v == 43);
	tutti_window_close(w);
	tutti_leave(job);
}

static void test_node_again(void)
{
	begin();
	for (int i = 0; i < MEMBERS; i++)
		ports[i] = free_port();
	write_list(0, MEMBERS);
	for (int i = 0; i < MEMBERS; i++)
		start(i, node);
	for (int i = 0; i < MEMBERS; i++)
		await(i, 1);
	kill_member(2);
	start(2, node_again);
	await(2, 9);
	board->go = 5;
	finish(MEMBERS);
	unlink(lists[0]);
}
#endif

/* ---- a crowd ---- */

static int count_entries(const char *folder)
{
	DIR *d = opendir(folder);
	int n = 0;

	while (d && readdir(d))
		n++;
	if (d)
		closedir(d);
	return n;
}

struct use { /* of what a process may leak */
	int files, threads;
	size_t bytes;
};

/* Buffers that wait for their next use do not count. */
static struct use measure(tutti *job)
{
	struct use u = { .files = count_entries("/proc/self/fd"), .threads = count_entries("/proc/self/task") };

#if !TT_ASAN && !TT_TSAN
	tt_lock(job->job);
	u.bytes = mallinfo2().uordblks - job->job->scratch.all;
	tt_unlock(job->job);
#endif
	(void)job;
	return u;
}

static bool is_quiet(tutti *job)
{
	bool quiet = true;

	tt_lock(job->job);
	for (int i = 1; i < job->job->size; i++)
		quiet &= tt_member(job->job, i)->state >= TT_LEFT && !tt_member(job->job, i)->untold;
	quiet &= tt_list_empty(&tt_members(job->job)->links);
	tt_unlock(job->job);
	return quiet;
}

/* A third of them are killed in the job, at any moment. */
static bool is_victim(int at) { return at % 3 == 0; }

enum { QUESTION = 1, ANSWER = 2 };

/* Until the parent says so it answers newcomers, who may be killed meanwhile. */
static void answer_until(tutti *job, int go)
{
	tutti_op op = { 0 };
	tutti_message m;
	uint64_t v;

	for (int ms = 0; board->go < go && ms < HANG_MS; ms++) {
		EXPECT(tutti_recv(tutti_job(job), -1, QUESTION, &v, sizeof v, &m, &op) == 0);
		int err;
		while ((err = tutti_wait(&op, 1)) == -EINPROGRESS && board->go < go)
			ms++;
		if (err == -EINPROGRESS)
			tutti_cancel(&op);
		EXPECT(err == 0 || err == -EINPROGRESS);
		if (err)
			continue;
		v++;
		err = tutti_send(tutti_job(job), m.rank, ANSWER, &v, sizeof v, NULL);
		EXPECT(!err || is_victim((int)v - 2));
	}
	EXPECT(board->go >= go);
}

static void ask(tutti *job)
{
	uint64_t v = (uint64_t)place + 1, answer = 0;

	EXPECT(tutti_send(tutti_job(job), 0, QUESTION, &v, sizeof v, NULL) == 0);
	EXPECT(tutti_recv(tutti_job(job), 0, ANSWER, &answer, sizeof answer, NULL, NULL) == 0 && answer == v + 1);
}

static int crowd_at_a_time(void) { return all_or(64, 16); }

/* It measures when the parent says 1: each number has been used, and nobody is there; and again at 5, after many more
 * have come and gone. */
static void founder_of_crowd(void)
{
	static uint64_t memory[NUMBERS];
	struct use before = { 0 }, after;
	tutti_window *w;
	tutti *job;

	EXPECT(join_as(0, 1, HANG_MS, crowd_at_a_time(), &job) == 0);
	if (mine->err)
		return;
	EXPECT(tutti_window_open(job, "elastic", memory, sizeof memory, &w) == 0);
	reach(1);
	answer_until(job, 1);
	for (int ms = 0; ms < HANG_MS && !is_quiet(job); ms++)
		sleep_ms(1);
	before = measure(job);
	reach(2);
	answer_until(job, 5);
	for (int ms = 0; ms < HANG_MS && !is_quiet(job); ms++)
		sleep_ms(1);
	after = measure(job);
	EXPECT(is_quiet(job));
	snprintf(mine->why, sizeof mine->why, "files %d and %d, threads %d and %d, bytes %zu and %zu", before.files,
	         after.files, before.threads, after.threads, before.bytes, after.bytes);
	if (after.files > before.files || after.threads > before.threads ||
	    after.bytes > before.bytes + (size_t)crowd_at_a_time() * BYTES_A_NUMBER)
		EXPECT(!"what rank 0 uses grows with the newcomers that have gone");
	mine->rank = (int)memory[0];
	tutti_window_close(w);
	tutti_leave(job);
}

static void crowd_visitor(void)
{
	tutti *job;

	EXPECT(join_as(TUTTI_NEW_RANK, 1, HANG_MS, 0, &job) == 0);
	if (mine->err)
		return;
	bool good = take_part(job);
	if (is_victim(place) && good)
		reach(1); /* it may be killed from now on */
	if (good)
		ask(job);
	reach(1);
	if (is_victim(place))
		sleep_ms(HANG_MS); /* until it is killed */
	sleep_ms((int)(tt_now() % 64));
	end_part(job);
}

/* Processes from `first` on come, `most` at a time, and go. Returns how many are victims. */
static int run_crowd(int first, int n, int most)
{
	int started = first, left = 0, killed = 0;

	for (int ms = 0; (started < first + n || left) && ms < HANG_MS; ms++) {
		for (; started < first + n && left < most; left++)
			start(started++, crowd_visitor);
		for (int i = first; i < started; i++) {
			int stage = board->of[i].stage;
			bool strikes = pids[i] && is_victim(i) && stage >= 1;
			if (!strikes && !(pids[i] && stage == 9))
				continue;
			if (strikes) {
				board->holder[board->of[i].rank] = 0;
				kill(pids[i], SIGKILL);
				killed++;
			}
			WANT(end_process(i, strikes), "newcomer %d, stage %d: %s", i, stage, board->of[i].complaint);
			left--;
		}
		sleep_ms(1);
	}
	for (int i = first; i < first + n; i++)
		WANT(!board->of[i].complaints && !pids[i], "newcomer %d, stage %d, complains: %s", i,
		     board->of[i].stage, board->of[i].complaint);
	return killed;
}

static void test_crowd(void)
{
	int most = crowd_at_a_time(), total = TT_ASAN || TT_TSAN ? all_or(200, 60) : all_or(1000, 60), killed;
	int first = 3 * most / 2; /* by then each number has been used */

	begin();
	start(0, founder_of_crowd);
	await(0, 1);
	killed = run_crowd(1, first, most);
	board->go = 1;
	await(0, 2);
	killed += run_crowd(1 + first, total - first, most);
	board->go = 5;
	finish(1);
	printf("%d newcomers, %d at a time, %d of them killed: %s\n", total, most, killed, board->of[0].why);
	WANT(board->of[0].rank == total, "%d of %d newcomers have counted", board->of[0].rank, total);
}

static CU_TestInfo tests[] = {
	{ "a port that is taken", test_taken },
	{ "nobody is there", test_nobody },
	{ "before the job", test_early },
	{ "room for two", test_room },
	{ "no room", test_no_room },
	{ "a number that is used again", test_stale },
	{ "coming again", test_return },
	{ "the next job at the same address", test_again },
	{ "a new rank 0", test_new_root },
	{ "refused by all", test_refused_by_all },
	{ "rank 0 started again", test_rank_0_again },
	{ "a clock that is behind", test_clock_behind },
	{ "settings that differ", test_settings_differ },
	{ "a group of one", test_solo },
#ifdef HAVE_LIBCONFIG
	{ "a list of nodes", test_nodes },
	{ "a node started again", test_node_again },
#endif
	{ "a crowd", test_crowd },
	CU_TEST_INFO_NULL,
};

int main(int argc, char **argv)
{
	static const char *const all[] = { "tcp", "shm,tcp" };
	CU_SuiteInfo suites[] = { { "elastic", NULL, NULL, NULL, NULL, tests }, CU_SUITE_INFO_NULL };
	int err = 0;

	for (size_t i = 0; i < TT_COUNT(all); i++) {
		printf("TUTTI_TRANSPORTS=%s\n", wires = all[i]);
		err |= run_suites(suites, argc, argv);
	}
	return err;
}
