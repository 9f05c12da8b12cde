/* unit_interrupt.c - the hook of a thread ends its waits, and nothing else; on sim, TCP and shared memory. A wait does
 * not poll beside a process that computes */
#include "engine/engine.h"
#include "tests/harness/cunit_main.h"
#include "tests/harness/ranks.h"
#include <sched.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>

enum { SEEDS = 8, SOON = 50, LATE = 5000 /* ms; a busy machine is slow */ };

static void on_wires(void (*program)(tutti *), int size)
{
	struct ranks run = { .size = size, .program = program };

	for (run.wire = "sim"; run.seed < SEEDS; run.seed++)
		CU_ASSERT_EQUAL(run_ranks(run), 0);
	CU_ASSERT_EQUAL(run_real_ranks(run), 0);
}

static bool never(void *arg) { return *(bool *)arg; }

struct stopper { /* a hook that says stop at a time */
	uint64_t at, last, longest;
	int calls;
	struct tt_job *job;
	bool held;                   /* it was called with the lock held by its own thread, or as the driver */
};

static int stop_at(void *arg)
{
	struct stopper *s = arg;
	uint64_t now = tt_now();

	if (s->calls++ && now - s->last > s->longest)
		s->longest = now - s->last;
	s->last = now;
	if (s->job && tt_world) /* no other fiber holds it there */
		s->held |= tt_ticket_lock_is_held(&s->job->engine.lock);
	return now >= s->at;
}

static int stop_ready(void *arg)
{
	*(bool *)arg = true;
	return 1;
}

static int wait_with(tutti *job, struct tt_users *users, uint64_t timeout_ms)
{
	bool no = false;

	tt_lock(job->job);
	int err = tt_wait_for(job->job, users, never, &no, tt_now() + timeout_ms * TT_MS);
	tt_unlock(job->job);
	return err;
}

static void interrupt(tutti *job)
{
	uint64_t begun = tt_now();
	struct stopper s = { .at = begun + SOON * TT_MS, .job = job->job };

	tutti_on_wait(stop_at, &s);
	CHECK(wait_with(job, NULL, LATE) == -EINTR);
	CHECK(strstr(tutti_why(), "tutti_on_wait") != NULL);
	CHECK(tt_now() - begun >= SOON * TT_MS && tt_now() - begun < LATE / 2 * TT_MS);
	CHECK(s.calls >= 2 && !s.held);
	if (tt_world)
		CHECK(s.calls >= SOON / 20 && s.longest < 25 * TT_MS && tt_now() - begun < (SOON + 25) * TT_MS);

	/* the hook says stop already: a wait looks once, and what is there is found */
	bool yes = true;
	tt_lock(job->job);
	CHECK(tt_wait_for(job->job, NULL, never, &yes, TT_NEVER) == 0);
	tt_unlock(job->job);
	s.calls = 0;
	pass_time(TT_MS);
	CHECK(wait_with(job, NULL, LATE) == -EINTR && s.calls == 1);
	CHECK(!tt_world || job->job->engine.looked == tt_now());

	/* a wait whose time is over neither looks nor asks */
	s.calls = 0;
	pass_time(25 * TT_MS);
	CHECK(wait_with(job, NULL, 0) == -ETIMEDOUT && s.calls == 0);
	CHECK(!tt_world || job->job->engine.looked != tt_now());

	/* what is there when the hook has said stop is found */
	yes = false;
	tutti_on_wait(stop_ready, &yes);
	tt_lock(job->job);
	CHECK(tt_wait_for(job->job, NULL, never, &yes, TT_NEVER) == 0 && yes);
	tt_unlock(job->job);
	tutti_on_wait(stop_at, &s);

	s.at = TT_NEVER; /* it says nothing: the wait has its own end */
	CHECK(wait_with(job, NULL, 70) == -ETIMEDOUT);
	tutti_on_wait(NULL, NULL);
	s.calls = 0;
	CHECK(wait_with(job, NULL, 70) == -ETIMEDOUT && s.calls == 0);
	CHECK(tutti_barrier(job, NULL) == 0);
}

static void test_interrupt(void)
{
	on_wires(interrupt, 1);
	on_wires(interrupt, 3);
}

static void use_flag(tutti *job)
{
	volatile int flag = 1;

	tutti_on_wait_flag(&flag);
	CHECK(wait_with(job, NULL, LATE) == -EINTR);
	CHECK(strstr(tutti_why(), "flag") != NULL);
	flag = 0;
	CHECK(wait_with(job, NULL, 70) == -ETIMEDOUT);
	tutti_on_wait_flag(NULL);
	flag = 1;
	CHECK(wait_with(job, NULL, 70) == -ETIMEDOUT);
	CHECK(tutti_barrier(job, NULL) == 0);
}

static void test_flag(void) { on_wires(use_flag, 2); }

static int wait_inside(void *arg)
{
	CHECK(wait_with(arg, NULL, LATE) == -EINVAL);
	return 1;
}

static void wait_in_hook(tutti *job)
{
	tutti_on_wait(wait_inside, job);
	CHECK(wait_with(job, NULL, LATE) == -EINTR);
	tutti_on_wait(NULL, NULL);
}

static void test_hook_waits(void) { on_wires(wait_in_hook, 1); }

/* ---- several threads of one rank ---- */

struct thread {
	tutti *job;
	struct ranks *run;
	struct tt_users *users;
	bool hooked;
	int result;
	atomic_bool waits;
	uint64_t took;
	char why[80];
	struct tt_task *task;
};

static void wait_in_thread(void *arg)
{
	struct thread *t = arg;
	uint64_t begun = tt_now();
	struct stopper s = { .at = begun + SOON * TT_MS };

	this_run = t->run;
	if (t->hooked)
		tutti_on_wait(stop_at, &s);
	t->waits = true;
	t->result = wait_with(t->job, t->users, t->hooked || t->users ? LATE : 3 * SOON);
	t->took = tt_now() - begun;
	snprintf(t->why, sizeof t->why, "%s", tutti_why());
	tutti_on_wait(NULL, NULL);
}

/* One thread drives, one is parked: each with a hook and without. */
static void wait_in_two(tutti *job)
{
	for (int which = 0; which < 4; which++) {
		struct thread t[2] = { { .job = job, .run = this_run, .hooked = which & 1 },
			               { .job = job, .run = this_run, .hooked = which & 2 } };
		for (int i = 0; i < 2; i++) {
			CHECK(tt_spawn(wait_in_thread, &t[i], &t[i].task) == 0);
			while (!t[i].waits)
				pass_time(TT_MS);
		}
		for (int i = 0; i < 2; i++) {
			tt_join(t[i].task);
			CHECK(t[i].result == (t[i].hooked ? -EINTR : -ETIMEDOUT));
			CHECK(t[i].took < LATE / 2 * TT_MS);
		}
	}
	CHECK(tutti_barrier(job, NULL) == 0);
}

static void test_threads(void) { on_wires(wait_in_two, 2); }

/* A handle ends: its users' waits return why. */
static void end_users(tutti *job)
{
	static const int why[] = { -ESTALE, -ESHUTDOWN };

	for (int i = 0; i < 4; i++) {
		struct tt_users users = { 0 };
		struct thread t[2] = { { .job = job, .run = this_run, .users = &users },
			               { .job = job, .run = this_run, .users = &users, .hooked = i & 1 } };
		t[0].hooked = false;
		for (int k = 0; k < 2; k++)
			CHECK(tt_spawn(wait_in_thread, &t[k], &t[k].task) == 0);
		pass_time(10 * TT_MS);
		tt_lock(job->job);
		users.err = why[i / 2];
		job->job->engine.news = true;
		tt_unlock(job->job);
		for (int k = 0; k < 2; k++) {
			tt_join(t[k].task);
			CHECK(t[k].result == users.err || (t[k].hooked && t[k].result == -EINTR));
			CHECK(t[k].took < (tt_world ? SOON : LATE / 2) * TT_MS);
			const char *words = i < 2 ? "closes the handle" : "leaves the job";
			CHECK(t[k].result == -EINTR || strstr(t[k].why, words));
		}
	}
}

static void test_users(void) { on_wires(end_users, 1); }

/* ---- another process computes on the only processor of this thread ---- */

static void take_one_cpu(cpu_set_t *had)
{
	cpu_set_t one;

	CHECK(sched_getaffinity(0, sizeof *had, had) == 0);
	CPU_ZERO(&one);
	CPU_SET(sched_getcpu(), &one);
	CHECK(sched_setaffinity(0, sizeof one, &one) == 0);
}

static pid_t compute_beside(void)
{
	pid_t child = fork();

	if (child)
		return child;
	alarm(30); /* it ends even if this process is killed */
	for (volatile bool forever = true; forever;)
		;
	return 0;
}

static void end_beside(pid_t child)
{
	CHECK(child > 0 && kill(child, SIGKILL) == 0 && waitpid(child, NULL, 0) == child);
}

static void wait_beside(tutti *job)
{
	struct tt_engine *e = &job->job->engine;
	uint64_t until = tt_now() + LATE * TT_MS;
	cpu_set_t had;
	bool no = false;

	CHECK(e->spin && e->adapts);
	take_one_cpu(&had);
	pid_t busy = compute_beside();
	tt_lock(job->job);
	while (!e->crowded_until && tt_now() < until) /* it polls all the time */
		CHECK(tt_wait_until(job->job, never, &no, tt_now() + TT_MS) == -ETIMEDOUT);
	CHECK(e->crowded_until);
	CHECK(tt_wait_until(job->job, never, &no, tt_now() + TT_MS) == -ETIMEDOUT);
	CHECK(!e->spin_until || tt_now() > e->crowded_until);
	tt_unlock(job->job);
	end_beside(busy);
	CHECK(sched_setaffinity(0, sizeof had, &had) == 0);
	tt_lock(job->job);
	e->spin_until = 0;
	for (until = tt_now() + LATE * TT_MS; !e->spin_until && tt_now() < until;) /* the pause ends */
		CHECK(tt_wait_until(job->job, never, &no, tt_now() + TT_MS) == -ETIMEDOUT);
	CHECK(e->spin_until);
	tt_unlock(job->job);
}

static void compute(uint64_t ns)
{
	for (uint64_t end = tt_now() + ns; tt_now() < end;)
		;
}

static long preemptions(void)
{
	struct rusage r;

	return getrusage(RUSAGE_THREAD, &r) ? 0 : r.ru_nivcsw;
}

struct heavy {
	struct tt_timer timer;       /* takes long, and is an event; or ... */
	int looks;                   /* ... this look takes long, and is none */
};

static void expire_slowly(struct tt_timer *t) { (void)t, compute(TT_MS); }

static bool look_slowly(void *arg)
{
	if (!--((struct heavy *)arg)->looks)
		compute(TT_MS);
	return false;
}

/* True: polling goes on, as the other process had the core before it began. False also if yet another process, of a
 * busy machine, has it meanwhile. */
static bool polls_despite_own_work(tutti *job, bool event)
{
	struct tt_engine *e = &job->job->engine;
	struct heavy heavy = { .looks = event ? 0 : 100 };
	pid_t busy = compute_beside();
	long before = preemptions();

	for (uint64_t end = tt_now() + LATE * TT_MS; preemptions() == before && tt_now() < end;)
		; /* the program computes */
	CHECK(preemptions() > before);
	end_beside(busy);
	tt_lock(job->job);
	e->crowded_until = e->crowded_ns = 0;
	if (event)
		tt_timer_start(job->job, &heavy.timer, tt_now() + TT_MS / 50, expire_slowly);
	CHECK(tt_wait_until(job->job, look_slowly, &heavy, tt_now() + TT_MS) == -ETIMEDOUT);
	bool polls = !e->crowded_until && !tt_timer_runs(&heavy.timer) && heavy.looks <= 0;
	tt_timer_stop(&heavy.timer);
	tt_unlock(job->job);
	return polls;
}

static void work_long(tutti *job)
{
	enum { TRIES = 50 };
	cpu_set_t had;

	take_one_cpu(&had);
	for (int event = 0; event < 2; event++) {
		int tries = 0;
		while (tries < TRIES && !polls_despite_own_work(job, event))
			tries++;
		CHECK(tries < TRIES);
	}
	CHECK(sched_setaffinity(0, sizeof had, &had) == 0);
}

static int heard;

static int hear_nothing(struct tt_peer *p) { return (void)p, heard++, 0; }

/* Nor do the short looks before a wait. */
static void watch_beside(tutti *job)
{
	static const struct tt_transport deaf = { .hear = hear_nothing };
	struct tt_net net = { .transport = &deaf };
	struct tt_peer peer = { .net = &net };
	struct tt_engine *e = &job->job->engine;

	tt_lock(job->job);
	e->crowded_until = 0;
	CHECK(!tt_watch(job->job, &peer) && heard > 0 && e->spin);
	heard = 0;
	e->crowded_until = tt_now() + LATE * TT_MS;
	CHECK(!tt_watch(job->job, &peer) && !heard);
	e->crowded_until = 0;
	tt_unlock(job->job);
}

static void test_watch_beside(void)
{
	CU_ASSERT_EQUAL(run_ranks((struct ranks){ .size = 1, .wire = "tcp", .program = watch_beside }), 0);
}

static void test_own_work(void)
{
	CU_ASSERT_EQUAL(run_ranks((struct ranks){ .size = 1, .wire = "tcp", .program = work_long }), 0);
}

static void test_beside(void)
{
	CU_ASSERT_EQUAL(run_ranks((struct ranks){ .size = 1, .wire = "tcp", .program = wait_beside }), 0);
}

static CU_TestInfo tests[] = {
	{ "a hook ends a wait", test_interrupt },
	{ "a flag ends a wait", test_flag },
	{ "a hook must not wait", test_hook_waits },
	{ "two threads", test_threads },
	{ "users of a handle", test_users },
	{ "beside a busy process", test_beside },
	{ "no short looks beside a busy process", test_watch_beside },
	{ "work of its own is no busy process", test_own_work },
	CU_TEST_INFO_NULL,
};
static CU_SuiteInfo suites[] = { { "interrupt", NULL, NULL, NULL, NULL, tests }, CU_SUITE_INFO_NULL };

int main(int argc, char **argv) { return run_suites(suites, argc, argv); }
