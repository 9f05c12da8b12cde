/* chaos.c - real processes that are killed, stopped, cut off or slowed down while they compute together; those that are
 * left shrink their group and go on. What recover.c does on the simulated wire, with a kernel's own faults. Each rank
 * has a network of its own, so they meet over TCP; but of every third seed the ranks live on one host, and are only
 * killed and stopped.
 *
 *      chaos [--seed S] [--seeds N] [--jobs N] [--verbose]    --seed alone: that one; with --seeds: N from S on
 *
 * From a seed come the ranks, the rounds and the faults; when exactly a fault strikes is up to the machine, so a seed
 * that failed may have to be tried some times. What must hold: nothing hangs; every sum is that of the group that made
 * it; of two groups that made a sum one is part of the other; where only a minority was killed all the rest get to the
 * end, and each of them computes again within two seconds of its first error; and where one rank was stopped, or one
 * group cut off, the majority gets to the end.
 */
#include "engine/engine.h"
#include "member/member.h"
#include "tests/harness/ranks.h"
#include "tests/job/chaos.h"
#include "transport/shm/shm.h"
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>

enum { SLOW = TT_ASAN || TT_TSAN ? 4 : 1 }; /* how much more time everything may take */

enum {
	RANKS_MIN = 3, FAULTS_MAX = 4, TRIES_MAX = 20, GROUPS_MAX = 128, JOBS_MAX = 8, SAMPLES_MAX = 20000,
	DEADLINE_MS = 1000 * SLOW, HANG_MS = 10000 * SLOW, LIMIT_MS = 90000 * SLOW, AGAIN_MS = 2000 * SLOW, PORT = 7000,
};

enum kind { KILL, STOP, CUT, PARTITION, SLOWDOWN, KINDS };
static const char *const kind_names[] = { "kill", "stop", "cut", "partition", "slow" };

struct fault {
	enum kind kind;
	int a, b;           /* PARTITION: 0 .. a from the others */
	uint64_t at, until; /* since all have joined; UINT64_MAX: for good */
	bool struck, over;
	uint64_t struck_at;
};

struct plan {
	uint64_t seed;
	int ranks, rounds, faults;
	bool together; /* on one host */
	struct fault fault[FAULTS_MAX];
	size_t large; /* elements of the vectors of some rounds */
};

struct recovery {
	uint64_t failed, again; /* the first error, the next sum; 0: there was none */
};

struct row { /* what a rank has to say */
	atomic_bool joined, computed;
	atomic_int done, count, tries, complained;
	const char *_Atomic doing;
	_Atomic uint64_t since;
	unsigned groups[GROUPS_MAX]; /* that made a sum: bits of ranks */
	struct recovery recovery[TRIES_MAX];
	int err;
	char why[200], complaint[300];
};

struct samples {
	atomic_int n;
	uint32_t ms[SAMPLES_MAX];
};

enum { NOTICED_KILL, NOTICED_SILENCE, AGAIN_KILL, AGAIN_SILENCE, TIMES };
static const char *const time_names[] = {
	[NOTICED_KILL] = "from a kill to the errors",
	[NOTICED_SILENCE] = "from a silence to the errors",
	[AGAIN_KILL] = "from the error to the next sum, kills only",
	[AGAIN_SILENCE] = "from the error to the next sum, others",
};

static struct tally { /* of all jobs */
	atomic_int seeds, failed, faults[KINDS], left_out, sums, recoveries, returned;
	struct samples times[TIMES];
} *tally;

static const char *missing; /* what it takes to cut and to slow down, if something of it is */
static bool verbose;

static struct run {
	struct plan plan;
	struct row *row; /* shared with the ranks */
	pid_t pid[NET_MAX];
	int status[NET_MAX], log[NET_MAX], alive;
	unsigned killed, stopped; /* bits: has met that */
	unsigned cut[NET_MAX];
	uint64_t started;
	char boot[40], complaint[700];
} run;

/* ---- the plan ---- */

static uint64_t draw_span(struct tt_random *r)
{
	switch (tt_random_below(r, 3)) {
	case 0: return tt_random_below(r, 80) * TT_MS * SLOW; /* nobody should mind */
	case 1: return (200 + tt_random_below(r, 250)) * TT_MS * SLOW; /* just when the others notice */
	default: return (DEADLINE_MS + tt_random_below(r, 1500)) * TT_MS;
	}
}

static struct fault draw_fault(struct tt_random *r, int ranks, uint64_t before)
{
	struct fault f = { .kind = tt_random_below(r, 5) < 2 ? KILL : (enum kind)tt_random_below(r, KINDS) };
	bool close_by = tt_random_below(r, 2);

	f.a = (int)tt_random_below(r, (uint64_t)ranks);
	f.b = (f.a + 1 + (int)tt_random_below(r, (uint64_t)ranks - 1)) % ranks;
	f.a = f.kind == PARTITION && f.a == ranks - 1 ? 0 : f.a;
	f.at = close_by ? before + tt_random_below(r, 20 * TT_MS) : tt_random_below(r, 400 * TT_MS);
	f.until = f.kind == KILL || (f.kind > STOP && tt_random_below(r, 2)) ? UINT64_MAX : f.at + draw_span(r);
	return f;
}

/* What can happen on one host. */
static void keep_together(struct plan *p)
{
	for (int i = 0; i < p->faults; i++) {
		struct fault *f = &p->fault[i];
		if (f->kind <= STOP)
			continue;
		f->kind = i % 2 ? KILL : STOP;
		f->until = f->kind == KILL ? UINT64_MAX : tt_min(f->until, f->at + (DEADLINE_MS + 500) * TT_MS);
	}
}

static struct plan draw_plan(uint64_t seed)
{
	static const int counts[] = { 0, 1, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 4, 4, 4 };
	struct plan p = { .seed = seed };
	struct tt_random r;

	tt_random_seed(&r, seed ^ 0x6368616f73);
	p.ranks = RANKS_MIN + (int)tt_random_below(&r, NET_MAX - RANKS_MIN + 1);
	p.rounds = 60 + (int)tt_random_below(&r, 120);
	p.faults = counts[tt_random_below(&r, TT_COUNT(counts))];
	p.large = 1 + tt_random_below(&r, 100000);
	for (int i = 0; i < p.faults; i++) {
		p.fault[i] = draw_fault(&r, p.ranks, i ? p.fault[i - 1].at : 0);
		if (p.fault[i].kind == SLOWDOWN) /* else it takes minutes */
			p.large = tt_min(p.large, 20000);
	}
	p.together = seed % 3 == 2;
	if (p.together)
		keep_together(&p);
	return p;
}

static void show_plan(const struct plan *p)
{
	printf("seed %llu: %d ranks%s, %d rounds, up to %zu elements\n", (unsigned long long)p->seed, p->ranks,
	       p->together ? " on one host" : "", p->rounds, p->large);
	for (int i = 0; i < p->faults; i++) {
		const struct fault *f = &p->fault[i];
		printf("  %s %d (%d) at %.3f s", kind_names[f->kind], f->a, f->b, (double)f->at / 1e9);
		printf(f->until == UINT64_MAX ? "\n" : " until %.3f s\n", (double)f->until / 1e9);
	}
}

/* ---- a rank ---- */

static int my_rank;
static struct row *mine;

static void complain(const char *fmt, ...) TT_FORMAT(1, 2);
static void complain(const char *fmt, ...)
{
	va_list args;

	va_start(args, fmt);
	if (!atomic_fetch_add(&mine->complained, 1))
		vsnprintf(mine->complaint, sizeof mine->complaint, fmt, args);
	va_end(args);
}

static void tell(const char *doing)
{
	mine->since = tt_now();
	mine->doing = doing;
}

static void trace(const char *what, int err)
{
	if (verbose)
		printf("  %8.3f rank %d round %d: %s: %d %s\n", (double)(tt_now() - run.started) / 1e9, my_rank,
		       mine->done, what, err, err ? tutti_why() : "");
	fflush(stdout);
}

static unsigned bits_of(const tutti *g)
{
	unsigned bits = 0;

	for (int i = 0; i < tutti_size(g); i++)
		bits |= 1u << tutti_group_member(g, i);
	return bits;
}

static void note_group(unsigned bits)
{
	int n = mine->count;

	if (n && mine->groups[n - 1] == bits)
		return;
	if (n == GROUPS_MAX) {
		complain("it has been in more than %d groups", n);
		return;
	}
	mine->groups[n] = bits;
	mine->count = n + 1; /* now it counts, whatever happens to this process */
}

static int sum_up(tutti *g, size_t count)
{
	float *v = malloc(count * sizeof *v);
	unsigned bits = bits_of(g);
	int err;

	for (size_t i = 0; i < count; i++)
		v[i] = (float)(1u << my_rank);
	tell("in an all-reduce");
	err = tutti_allreduce(g, v, v, count, TUTTI_F32, TUTTI_SUM, NULL);
	for (size_t i = 0; !err && i < count; i++)
		if (v[i] != (float)bits) {
			complain("element %zu is %g in the group %x", i, (double)v[i], bits);
			break;
		}
	if (!err)
		note_group(bits);
	free(v);
	return err;
}

/* Some have got further than others before they noticed: the least of them counts. */
static int agree_on_round(tutti *g, int *round)
{
	int32_t least = *round;

	tell("agreeing on the round");
	int err = tutti_allreduce(g, &least, &least, 1, TUTTI_I32, TUTTI_MIN, NULL);
	if (err)
		return err;
	note_group(bits_of(g));
	if (least > *round || least < *round - 1)
		complain("it is at round %d, another at %d", *round, least);
	*round = least;
	return 0;
}

static int shrink(tutti **g)
{
	tutti *left;

	tell("shrinking");
	int err = tutti_group_shrink(*g, &left);
	trace("shrinks", err);
	if (err)
		return err;
	if ((bits_of(left) | bits_of(*g)) != bits_of(*g))
		complain("%x shrank to %x", bits_of(*g), bits_of(left));
	tutti_group_free(*g);
	*g = left;
	return 0;
}

static bool is_documented(int err)
{
	return err == -ECONNRESET || err == -ENOTCONN || err == -ETIMEDOUT || err == -ECONNABORTED || err == -EHOSTDOWN;
}

/* After an error. 0: it goes on. */
static int recover(tutti **g, int *round)
{
	struct recovery *r = &mine->recovery[mine->tries];
	int err = 0;

	r->failed = tt_now();
	do {
		if (++mine->tries == TRIES_MAX)
			return complain("it has shrunk %d times", TRIES_MAX), -ETIMEDOUT;
		err = shrink(g);
	} while (!err && agree_on_round(*g, round));
	if (!err)
		r->again = tt_now();
	return err;
}

static int compute(tutti *job)
{
	struct tt_random r;
	tutti *g = job;
	int round = 0, err = 0;

	tt_random_seed(&r, run.plan.seed * NET_MAX + (uint64_t)my_rank);
	while (round < run.plan.rounds && !err) {
		usleep((useconds_t)tt_random_below(&r, 5000));
		err = sum_up(g, round % 3 == 2 ? run.plan.large : 1);
		if (!err) {
			mine->done = ++round;
			continue;
		}
		trace("sum", err);
		if (!is_documented(err))
			complain("an undocumented error %d: %s", err, tutti_why());
		err = recover(&g, &round);
	}
	if (err && !is_documented(err))
		complain("an undocumented error %d: %s", err, tutti_why());
	return err;
}

static bool is_apart(void) { return !missing && !run.plan.together; }

static bool any_stops(void)
{
	for (int i = 0; i < run.plan.faults; i++)
		if (run.plan.fault[i].kind == STOP)
			return true;
	return false;
}

/* Shared memory reaches the ranks of one host, and no other. A rank that is stopped while others connect to it is
 * reached over the next transport. */
static void look_at_wires(tutti *at)
{
	struct tt_job *job = at->job;

	if (!is_apart() && any_stops())
		return;
	tt_lock(job);
	for (int i = 0; i < job->size; i++) {
		const struct tt_link *l = tt_member(job, i)->state == TT_UP ? tt_member(job, i)->link : NULL;
		if (l && l->used && (l->peer->net->transport == &tt_shm) == is_apart())
			complain("it uses %s to reach rank %d", l->peer->net->transport->name, i);
	}
	tt_unlock(job);
}

static void run_rank(int rank)
{
	tutti_config c = { .rank = rank, .ranks = run.plan.ranks, .boot = run.boot, .timeout_ms = DEADLINE_MS,
	                   .silence_ms = DEADLINE_MS * 4 / 10 };
	tutti *job;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	dup2(run.log[rank], STDERR_FILENO);
	if (is_apart())
		net_enter(rank);
	my_rank = rank;
	mine = &run.row[rank];
#ifdef HAVE_LIBSODIUM
	c.secret = "cafe0123456789abcdef0123456789ab";
#endif
	setenv("TUTTI_IFACE", is_apart() ? "eth0" : "lo", 1);
	setenv("TUTTI_EVICT", "no", 1); /* who is stopped goes on */
	tell("joining");
	if ((mine->err = tutti_join(&c, &job))) {
		complain("cannot join: %d %s", mine->err, tutti_why());
		exit(0);
	}
	mine->joined = true;
	mine->err = compute(job);
	look_at_wires(job);
	snprintf(mine->why, sizeof mine->why, "%s", mine->err ? tutti_why() : "");
	mine->computed = true;
	tell("leaving");
	tutti_leave(job);
	tell("ending");
	exit(0); /* not _exit: leaks are looked for now */
}

/* ---- the parent: faults ---- */

static void blame(const char *fmt, ...) TT_FORMAT(1, 2);
static void blame(const char *fmt, ...)
{
	va_list args;

	va_start(args, fmt);
	if (!*run.complaint)
		vsnprintf(run.complaint, sizeof run.complaint, fmt, args);
	va_end(args);
}

static bool is_alive(int rank) { return run.pid[rank] > 0; }

/* What the cuts that hold right now amount to. */
static void cut_all(void)
{
	unsigned now[NET_MAX] = { 0 };

	for (int i = 0; i < run.plan.faults; i++) {
		const struct fault *f = &run.plan.fault[i];
		for (int a = 0; f->struck && !f->over && a < run.plan.ranks; a++)
			for (int b = 0; b < run.plan.ranks; b++)
				if ((f->kind == CUT && a == f->a && b == f->b) ||
				    (f->kind == PARTITION && a <= f->a && b > f->a))
					now[a] |= 1u << b;
	}
	for (int a = 0; a < run.plan.ranks; a++)
		if (now[a] != run.cut[a])
			net_cut(a, run.cut[a] = now[a]);
}

static void strike(struct fault *f)
{
	f->struck = true;
	if (!is_apart() && f->kind > STOP) {
		tally->left_out++;
		f->over = true;
		return;
	}
	tally->faults[f->kind]++;
	if (f->kind == KILL || f->kind == STOP) {
		if (is_alive(f->a))
			kill(run.pid[f->a], f->kind == KILL ? SIGKILL : SIGSTOP);
		*(f->kind == KILL ? &run.killed : &run.stopped) |= 1u << f->a;
	} else if (f->kind == SLOWDOWN) {
		net_slow(f->a, true);
	} else {
		cut_all();
	}
	f->struck_at = tt_now();
}

static bool is_held(int rank) /* by another fault that stops it */
{
	for (int i = 0; i < run.plan.faults; i++) {
		const struct fault *f = &run.plan.fault[i];
		if (f->kind == STOP && f->a == rank && f->struck && !f->over)
			return true;
	}
	return false;
}

static void relent(struct fault *f)
{
	f->over = true;
	if (f->kind == STOP && is_alive(f->a) && !is_held(f->a))
		kill(run.pid[f->a], SIGCONT);
	else if (f->kind == SLOWDOWN)
		net_slow(f->a, false);
	else if (f->kind == CUT || f->kind == PARTITION)
		cut_all();
}

static void follow_plan(void)
{
	uint64_t now = tt_now() - run.started;

	for (int i = 0; i < run.plan.faults; i++) {
		struct fault *f = &run.plan.fault[i];
		if (!f->struck && now >= f->at)
			strike(f);
		else if (f->struck && !f->over && now >= f->until)
			relent(f);
	}
}

/* ---- the parent: processes ---- */

static void start_ranks(void)
{
	/* another one than the last seed's */
	int port = is_apart() ? PORT + (int)(run.plan.seed % 20000) : free_port();

	snprintf(run.boot, sizeof run.boot, "%s:%d", is_apart() ? net_addr(0) : "127.0.0.1", port);
	fflush(stdout);
	run.started = tt_now();
	for (int i = 0; i < run.plan.ranks; i++) {
		run.log[i] = memfd_create("stderr", MFD_CLOEXEC);
		run.pid[i] = fork();
		if (run.pid[i] < 0) {
			perror("fork");
			exit(1);
		}
		if (run.pid[i] == 0)
			run_rank(i);
		run.alive++;
	}
}

static void reap(void)
{
	for (int i = 0; i < run.plan.ranks; i++)
		if (is_alive(i) && waitpid(run.pid[i], &run.status[i], WNOHANG) == run.pid[i]) {
			run.pid[i] = 0;
			run.alive--;
		}
}

static bool have_joined(void)
{
	int n = 0;

	for (int i = 0; i < run.plan.ranks; i++)
		n += run.row[i].joined;
	return n == run.plan.ranks;
}

static void show_stack(pid_t pid)
{
	char command[200];

	snprintf(command, sizeof command,
	         "command -v gdb > /dev/null && gdb -p %d -batch -ex 'thread apply all backtrace' 2> /dev/null",
	         (int)pid);
	fflush(stdout);
	if (system(command))
		printf("no gdb is here to show where it hangs\n");
}

/* It may begin the next call while it is looked at. */
static uint64_t waited(int rank)
{
	uint64_t since = run.row[rank].since, now = tt_now(); /* in this order */

	return now > since ? (now - since) / TT_MS : 0;
}

/* Every call has its bound, however often it is made. */
static bool some_hang(void)
{
	for (int i = 0; i < run.plan.ranks; i++)
		if (is_alive(i) && run.row[i].doing && waited(i) > HANG_MS)
			return true;
	return tt_now() > run.started + LIMIT_MS * TT_MS;
}

static void end_hang(void)
{
	for (int i = 0; i < run.plan.ranks; i++) {
		if (!is_alive(i))
			continue;
		blame("it hangs: rank %d is %s for %llu ms, at round %d", i, run.row[i].doing,
		      (unsigned long long)waited(i), run.row[i].done);
		show_stack(run.pid[i]);
		kill(run.pid[i], SIGKILL);
		waitpid(run.pid[i], &run.status[i], 0);
		run.killed |= 1u << i; /* by me */
		run.pid[i] = 0;
	}
	run.alive = 0;
}

static void attend(void)
{
	bool joined = false;

	while (run.alive && !some_hang()) {
		if (!joined && (joined = have_joined()))
			run.started = tt_now();
		if (joined)
			follow_plan();
		reap();
		usleep(500);
	}
	end_hang();
}

/* ---- the verdict ---- */

static void check_ends(void)
{
	for (int i = 0; i < run.plan.ranks; i++) {
		const struct row *r = &run.row[i];
		int status = run.status[i];
		bool killed = run.killed >> i & 1 && WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
		if (r->complained)
			blame("rank %d: %s", i, r->complaint);
		if (status && !killed)
			blame("rank %d ended with status 0x%x while it was %s", i, status, r->doing);
	}
}

static void check_groups(int a, int b)
{
	for (int i = 0; i < run.row[a].count; i++)
		for (int k = 0; k < run.row[b].count; k++) {
			unsigned one = run.row[a].groups[i], other = run.row[b].groups[k];
			if ((one & other) != one && (one & other) != other)
				blame("the groups %x (rank %d) and %x (rank %d) both made a sum, and neither is part "
				      "of the other",
				      one, a, other, b);
		}
}

static bool only_kills(void)
{
	for (int i = 0; i < run.plan.faults; i++)
		if (run.plan.fault[i].struck && run.plan.fault[i].kind != KILL)
			return false;
	return true;
}

/* Who has to get to the end, come what may: bits. Where several silences cross each other only time bounds are kept. */
static unsigned must_finish(void)
{
	const struct plan *p = &run.plan;
	const struct fault *f = &p->fault[0];
	unsigned all = (1u << p->ranks) - 1, low = (2u << f->a) - 1;

	if (only_kills())
		return 2 * __builtin_popcount(run.killed) < p->ranks ? all & ~run.killed : 0;
	if (p->faults != 1 || f->kind == CUT || f->kind == SLOWDOWN)
		return 0;
	if (f->kind == STOP)
		return all & ~(1u << f->a);
	return 2 * (f->a + 1) >= p->ranks ? low : all & ~low;
}

/* While the last round is made up for by some, others leave who had done it. */
static void check_survivors(void)
{
	unsigned expected = must_finish();

	for (int i = 0; i < run.plan.ranks; i++)
		if (expected >> i & 1 && run.row[i].done < run.plan.rounds - 1)
			blame("rank %d did %d of %d rounds, and the ranks %x of %d should have gone on; it ended with "
			      "%d: %s",
			      i, run.row[i].done, run.plan.rounds, expected, run.plan.ranks, run.row[i].err,
			      run.row[i].why);
}

/* A silence is found out by heartbeats, or by the deadline while a group shrinks: each fault may cost as much again. */
static uint64_t bound_ms(void)
{
	return only_kills() ? AGAIN_MS : AGAIN_MS + 2 * DEADLINE_MS * (uint64_t)run.plan.faults;
}

static void add_sample(int which, uint64_t ns)
{
	struct samples *s = &tally->times[which];
	int n = s->n++;

	if (n < SAMPLES_MAX)
		s->ms[n] = (uint32_t)(ns / TT_MS);
}

static void check_times(int rank)
{
	for (int i = 0; i < run.row[rank].tries && i < TRIES_MAX; i++) {
		const struct recovery *r = &run.row[rank].recovery[i];
		if (!r->again)
			continue;
		uint64_t ms = (r->again - r->failed) / TT_MS;
		tally->recoveries++;
		if (!(run.stopped >> rank & 1)) /* then it is its own doing */
			add_sample(only_kills() ? AGAIN_KILL : AGAIN_SILENCE, r->again - r->failed);
		if (ms > bound_ms() && !(run.stopped >> rank & 1))
			blame("rank %d computed again only %llu ms after an error", rank, (unsigned long long)ms);
	}
}

/* How soon the others met an error, where one fault alone can be the reason. */
static void time_notice(void)
{
	const struct fault *f = &run.plan.fault[0];

	if (run.plan.faults != 1 || !f->struck || f->kind == SLOWDOWN || (!is_apart() && f->kind > STOP))
		return;
	for (int i = 0; i < run.plan.ranks; i++)
		if ((f->kind > STOP || i != f->a) && run.row[i].recovery[0].failed > f->struck_at)
			add_sample(f->kind == KILL ? NOTICED_KILL : NOTICED_SILENCE,
			           run.row[i].recovery[0].failed - f->struck_at);
}

static void judge(void)
{
	check_ends();
	for (int a = 0; a < run.plan.ranks; a++)
		for (int b = a; b < run.plan.ranks; b++)
			check_groups(a, b);
	check_survivors();
	for (int i = 0; i < run.plan.ranks; i++) {
		check_times(i);
		tally->sums += run.row[i].done;
		tally->returned += run.stopped >> i & 1 && !(run.killed >> i & 1) && run.row[i].err;
	}
	time_notice();
}

static void show_logs(void)
{
	char text[1500];

	for (int i = 0; i < run.plan.ranks; i++) {
		const struct row *r = &run.row[i];
		ssize_t n = pread(run.log[i], text, sizeof text - 1, 0);
		text[n > 0 ? n : 0] = 0;
		printf("  rank %d: %d rounds, %d tries, %s, %d %s\n%s", i, r->done, r->tries, r->doing, r->err, r->why,
		       text);
	}
}

static void try_seed(uint64_t seed)
{
	struct row *row = run.row;

	memset(row, 0, NET_MAX * sizeof *row);
	run = (struct run){ .plan = draw_plan(seed), .row = row };
	if (verbose)
		show_plan(&run.plan);
	start_ranks();
	attend();
	if (is_apart())
		net_reset();
	judge();
	tally->seeds++;
	if (*run.complaint) {
		tally->failed++;
		show_plan(&run.plan);
		printf("seed %llu: %s\n", (unsigned long long)seed, run.complaint);
		show_logs();
		printf("  replay: chaos --seed %llu --verbose\n", (unsigned long long)seed);
	} else if (verbose) {
		show_logs();
	}
	for (int i = 0; i < run.plan.ranks; i++)
		close(run.log[i]);
	fflush(stdout);
}

/* ---- jobs: the seeds are dealt out ---- */

static void *share(size_t bytes)
{
	void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	if (p == MAP_FAILED) {
		perror("chaos");
		exit(99);
	}
	return p;
}

static void work(int job, int jobs, uint64_t first, uint64_t seeds)
{
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	run.row = share(NET_MAX * sizeof *run.row);
	missing = net_build();
	if (missing && job == 0)
		printf("chaos: nobody is cut off or slowed down, only killed and stopped: these tests lack %s\n",
		       missing);
	for (uint64_t s = first + (uint64_t)job; s < first + seeds && tally->failed < 5; s += (uint64_t)jobs)
		try_seed(s);
	exit(0);
}

static int compare(const void *a, const void *b)
{
	uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;

	return x < y ? -1 : x > y;
}

static void report(void)
{
	printf("chaos: %d sums, %d times to compute again; struck:", tally->sums, tally->recoveries);
	for (int i = 0; i < KINDS; i++)
		printf(" %d %s", tally->faults[i], kind_names[i]);
	printf(", left out: %d\n", tally->left_out);
	printf("chaos: %d ranks that had been stopped found that the others had gone on\n", tally->returned);
	for (int i = 0; i < TIMES; i++) {
		struct samples *s = &tally->times[i];
		size_t n = tt_min((uint64_t)s->n, SAMPLES_MAX);
		qsort(s->ms, n, sizeof *s->ms, compare);
		if (n)
			printf("chaos: %s: median %u ms, max %u ms (%zu)\n", time_names[i], s->ms[n / 2], s->ms[n - 1],
			       n);
	}
}

int main(int argc, char **argv)
{
#ifndef HAVE_LIBSODIUM
	printf("SKIPPED: these ranks join with a secret, and this build has no libsodium\n");
	return 77;
#endif
	uint64_t first = 0, seeds = 0;
	int jobs = 2, status, bad = 0;

	for (int i = 1; i < argc; i++) {
		if (!strcmp(argv[i], "--seed") && i + 1 < argc)
			first = strtoull(argv[++i], NULL, 10), seeds = seeds ? seeds : 1;
		else if (!strcmp(argv[i], "--seeds") && i + 1 < argc)
			seeds = strtoull(argv[++i], NULL, 10);
		else if (!strcmp(argv[i], "--jobs") && i + 1 < argc)
			jobs = atoi(argv[++i]);
		else if (!strcmp(argv[i], "--verbose"))
			verbose = true;
		else
			return fprintf(stderr, "usage: chaos [--seed S] [--seeds N] [--jobs N] [--verbose]\n"), 2;
	}
	seeds = seeds ? seeds : 12;
	jobs = (int)tt_min((uint64_t)(jobs < 1 ? 1 : jobs > JOBS_MAX ? JOBS_MAX : jobs), seeds);
	tally = share(sizeof *tally);
	for (int i = 0; i < jobs; i++)
		if (fork() == 0)
			work(i, jobs, first, seeds);
	while (wait(&status) > 0)
		bad += status != 0;
	report();
	bad += tally->failed != 0 || (uint64_t)tally->seeds != seeds;
	if (!bad && seeds > 100 && !tally->recoveries)
		return printf("chaos: nobody ever shrank a group: this tests nothing\n"), 1;
	printf("chaos: %d seeds, %s\n", tally->seeds, bad ? "FAILED" : "passed");
	return bad != 0;
}
