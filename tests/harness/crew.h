/* crew.h - for tests of faults: real processes, one child a rank, on real wires: TCP, and shared memory.
 *
 * The parent forks one child a rank. Each joins by the environment, runs one program and writes what it met into memory
 * that all share. The parent strikes at the right moment, then looks at what the others report. */
#ifndef TT_TEST_CREW_H
#define TT_TEST_CREW_H
#include "tests/harness/cunit_main.h"
#include "tests/harness/procs.h"
#include "tests/harness/ranks.h"
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#ifndef CREW_MOST
#define CREW_MOST 8 /* ranks */
#endif

enum { RANKS_MAX = CREW_MOST, HANG_MS = 30000 * SLOW, NOBODY = -1 };

struct report {                  /* of one rank, to its parent */
	atomic_int rounds;       /* calls that went well */
	atomic_int stage;        /* how far its program has come */
	int err;                 /* of the call that failed */
	uint64_t started, ended; /* that call */
	char why[400];
	atomic_int complaints; /* what its program found wrong: how much, and the first */
	char complaint[500];
	char addr[96], name[96]; /* where it listens, over TCP and in shared memory */
	pid_t child;             /* that its program has forked */
	uint64_t job;
};

static struct board {  /* what parent and children share */
	atomic_int go; /* the parent's word: how far they may go */
	struct report of[RANKS_MAX];
} * board;

static struct crew { /* the running one; children inherit it */
	int size, timeout_ms, port;
	void (*program)(tutti *);
	bool capture;         /* their stderr */
	int evicted;          /* 1 + a rank that others may kill */
	pid_t pid[RANKS_MAX]; /* 0: has ended */
	int status[RANKS_MAX], log[RANKS_MAX];
} crew;

static const char *const secret = "c0ffee00dec0de0123456789abcdef42";

/* ---- a child ---- */

static int my_rank;
static struct report *mine;

#define EXPECT(condition) expect_that(condition, #condition, __LINE__)

static inline void expect_that(bool good, const char *text, int line)
{
	if (!good && !atomic_fetch_add(&mine->complaints, 1))
		snprintf(mine->complaint, sizeof mine->complaint, "line %d: %s; last error: %s", line, text,
		         tutti_why());
}

static inline void reach(int stage) { mine->stage = stage; }

static inline void await_go(int go)
{
	for (int i = 0; board->go < go && i < HANG_MS; i++)
		sleep_ms(1);
	EXPECT(board->go >= go);
}

static inline void record(int err, uint64_t started)
{
	mine->err = err;
	mine->started = started;
	mine->ended = tt_now();
	snprintf(mine->why, sizeof mine->why, "%s", tutti_why());
}

static inline void set_number(const char *name, int value)
{
	char text[16];

	snprintf(text, sizeof text, "%d", value);
	setenv(name, text, 1);
}

static const char *wires; /* what they may use */
static const char *evict = "no"; /* who is stopped while it writes is to go on, too */

static const char *boot_more = ""; /* further addresses for TUTTI_BOOT, each behind a comma */
static bool as_new;                /* the rank asks for a number */

static inline void set_environment(int rank, const char *the_secret)
{
	char boot[300];

	setenv("TUTTI_TRANSPORTS", wires, 1);
	setenv("TUTTI_EVICT", crew.evicted ? "yes" : evict, 1);
	snprintf(boot, sizeof boot, "127.0.0.1:%d%s", crew.port, boot_more);
	set_number("TUTTI_RANK", rank);
	if (as_new)
		setenv("TUTTI_RANK", "new", 1);
	set_number("TUTTI_SIZE", crew.size);
	set_number("TUTTI_TIMEOUT", crew.timeout_ms);
	set_number("TUTTI_SILENCE", silence_for(crew.timeout_ms, false));
	setenv("TUTTI_BOOT", boot, 1);
	setenv("TUTTI_SECRET", the_secret, 1);
	setenv("TUTTI_IFACE", "lo", 1);
}

/* On a full machine they may hear of it late. */
static inline void await_gone(tutti *job, int rank)
{
	for (int ms = 0; ms < HANG_MS && !has_gone(job, rank); ms++)
		sleep_ms(1);
}

static tutti *crew_job; /* of this rank, for functions that a program calls */
static bool refused;    /* joining fails: the report has the error */

static inline void run_child_as(int slot, int rank)
{
	tutti *job;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	alarm(0);
	if (crew.capture)
		dup2(crew.log[slot], STDERR_FILENO);
	my_rank = rank;
	mine = &board->of[slot];
	set_environment(rank, secret);
	uint64_t started = tt_now();
	int err = tutti_join(NULL, &job);
	if (refused) {
		record(err, started);
		reach(5);
		exit(0);
	}
	EXPECT(err == 0);
	if (!err) {
		const struct tt_member *me = tt_member(job->job, job->job->rank);
		tt_address_find(me->addr, "tcp", mine->addr);
		tt_address_find(me->addr, "shm", mine->name);
		mine->job = job->job->id;
		crew_job = job;
		crew.program(job);
		tutti_leave(job);
	}
	exit(0); /* not _exit: leaks are looked for now */
}

static inline void run_child(int rank) { run_child_as(rank, rank); }

/* ---- the parent ---- */

static inline void start(struct crew c)
{
	if (!board)
		board = mmap(NULL, sizeof *board, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	memset(board, 0, sizeof *board);
	crew = c;
	crew.port = free_port();
	for (int i = 0; i < crew.size; i++) {
		crew.log[i] = crew.capture ? memfd_create("stderr", 0) : -1;
		crew.pid[i] = fork_child();
		if (crew.pid[i] == 0)
			run_child(i);
	}
}

/* Notes who has ended. */
static inline int reap_some(void)
{
	int left = 0;

	for (int i = 0; i < crew.size; i++) {
		if (crew.pid[i] && waitpid(crew.pid[i], &crew.status[i], WNOHANG) == crew.pid[i])
			crew.pid[i] = 0;
		left += crew.pid[i] != 0;
	}
	return left;
}

/* When all its threads stand: until then one of them may still answer. It may have been killed since (TUTTI_EVICT):
 * reap_some() sees that. */
static inline void await_stop(int rank)
{
	siginfo_t what;

	waitid(P_PID, (id_t)crew.pid[rank], &what, WSTOPPED | WEXITED | WNOWAIT);
}

/* Never to pid 0 or -1: that would strike whoever runs the tests. */
static inline void strike(int rank, int signal_number)
{
	WANT(crew.pid[rank] > 0, "rank %d has ended (status 0x%x) before signal %d; complaint: %s", rank,
	     crew.status[rank], signal_number, board->of[rank].complaint);
	if (crew.pid[rank] > 0)
		kill(crew.pid[rank], signal_number);
	if (crew.pid[rank] > 0 && signal_number == SIGSTOP)
		await_stop(rank);
}

static inline bool has_come(int rank, int rounds, int stage)
{
	return board->of[rank].rounds >= rounds && board->of[rank].stage >= stage;
}

static inline bool have_come(int rounds, int stage, int except)
{
	for (int i = 0; i < crew.size; i++)
		if (i != except && !has_come(i, rounds, stage))
			return false;
	return true;
}

/* One that has ended before will not come. The parent's own victim does not count: the others may need their time. */
static inline bool will_come(int rounds, int stage, int except)
{
	reap_some();
	for (int i = 0; i < crew.size; i++)
		if (i != except && !crew.pid[i] && !has_come(i, rounds, stage))
			return false;
	return true;
}

/* Until all but one have come so far. */
static inline void await(int rounds, int stage, int except)
{
	for (int ms = 0; ms < HANG_MS && !have_come(rounds, stage, except) && will_come(rounds, stage, except); ms++)
		sleep_ms(1);
	for (int i = 0; i < crew.size && !have_come(rounds, stage, except); i++)
		WANT(i == except || has_come(i, rounds, stage),
		     "rank %d: round %d, stage %d; complaint: %s", i, board->of[i].rounds, board->of[i].stage,
		     board->of[i].complaint);
}

static inline void await_rank(int rank, int stage)
{
	for (int ms = 0; ms < HANG_MS && board->of[rank].stage < stage; ms++)
		sleep_ms(1);
	WANT(board->of[rank].stage >= stage, "rank %d: stage %d; complaint: %s", rank, board->of[rank].stage,
	     board->of[rank].complaint);
}

/* What a rank has written on stderr: how many lines hold this word. */
static inline int logged(int rank, const char *word, bool print)
{
	char text[16384];
	int n = 0;
	ssize_t len = pread(crew.log[rank], text, sizeof text - 1, 0);

	text[len > 0 ? len : 0] = 0;
	for (char *line = text, *end; *line; line = end) {
		end = line + strcspn(line, "\n");
		if (*end)
			*end++ = 0;
		n += strstr(line, word) != NULL;
		if (print)
			printf("  rank %d: %s\n", rank, line);
	}
	return n;
}

/* Everyone ends by itself, in time, with nothing leaked and nothing to complain of; `killed` by a signal. */
static inline void finish(int killed)
{
	for (int ms = 0; ms < HANG_MS && reap_some(); ms++)
		sleep_ms(1);
	for (int i = 0; i < crew.size; i++) {
		WANT(crew.pid[i] == 0, "rank %d of %d hangs in stage %d", i, crew.size, board->of[i].stage);
		if (crew.pid[i]) {
			kill(crew.pid[i], SIGKILL);
			waitpid(crew.pid[i], &crew.status[i], 0);
			crew.pid[i] = 0;
		} else {
			WANT(i == killed ? WIFSIGNALED(crew.status[i])
			                 : crew.status[i] == 0 || (i == crew.evicted - 1 && crew.status[i] == SIGKILL),
			     "rank %d ended with status 0x%x", i, crew.status[i]);
		}
		WANT(board->of[i].complaints == 0, "rank %d complains of %d things: %s", i, board->of[i].complaints,
		     board->of[i].complaint);
		if (crew.capture && crew.status[i])
			logged(i, "", true);
		if (crew.capture)
			close(crew.log[i]);
	}
}

/* "rank 3", and not "rank 31". */
static inline bool names(const char *why, int rank)
{
	char name[16];
	int n = snprintf(name, sizeof name, "rank %d", rank);
	const char *at = strstr(why, name);

	return at && (at[n] < '0' || at[n] > '9');
}

static inline bool names_only(const char *why, int rank)
{
	for (int i = 0; i < crew.size; i++)
		if (names(why, i) != (i == rank))
			return false;
	return true;
}

/* Every test over TCP, then in shared memory. */
static inline int run_over_wires(CU_SuiteInfo *suites, int argc, char **argv)
{
	static const char *const all[] = { "tcp", "shm,tcp" };
	int err = 0;

#ifndef HAVE_LIBSODIUM
	printf("SKIPPED: these tests join with a secret, and this build has no libsodium\n");
	return 77;
#endif
	for (size_t i = 0; i < TT_COUNT(all); i++) {
		printf("TUTTI_TRANSPORTS=%s\n", wires = all[i]);
		err |= run_suites(suites, argc, argv);
	}
	return err;
}
#endif
