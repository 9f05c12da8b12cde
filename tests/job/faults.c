/* faults.c - what happens when processes are killed, stopped, shut out or gone: real processes, real signals, real
 * wires: TCP, and shared memory. */
#include "member/member.h"
#include "tests/harness/crew.h"
#include "transport/door.h"
#include "transport/frame.h"
#include <fcntl.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/syscall.h>

enum { FLOATS = 1 << 20 };

static const char *const other_secret = "0ddba11c0ffee0123456789abcdef042";

/* The next rank that is not the one left out. */
static int next_but(int rank, int except)
{
	do
		rank = (rank + 1) % crew.size;
	while (rank == except);
	return rank;
}

/* ---- killed in the middle of a collective ---- */

struct kind { /* of calls that are under way when it happens */
	const char *name;
	size_t floats;
	int (*call)(tutti *, float *);
	bool mapped;          /* in memory that the others can map ... */
	bool stored;          /* ... and store into: who is frozen while it does may be killed */
};

static int sum_large(tutti *job, float *v)
{
	return tutti_allreduce(job, v, v, FLOATS, TUTTI_F32, TUTTI_AVERAGE, NULL);
}
/* a call takes as long as without a sanitizer, and not longer than the deadline */
enum { FLOATS_IN_PLACE = 8 * FLOATS / SLOW };
static int sum_in_place(tutti *job, float *v)
{
	return tutti_allreduce(job, v, v, FLOATS_IN_PLACE, TUTTI_F32, TUTTI_AVERAGE, NULL);
}
static int scatter_in_place(tutti *job, float *v)
{
	size_t count = FLOATS_IN_PLACE / (size_t)tutti_size(job);

	return tutti_reduce_scatter(job, v, v + (size_t)tutti_rank(job) * count, count, TUTTI_F32, TUTTI_AVERAGE, NULL);
}
static int gather_in_place(tutti *job, float *v) /* longer blocks would be put */
{
	size_t count = FLOATS / (size_t)tutti_size(job);

	return tutti_allgather(job, v + (size_t)tutti_rank(job) * count, count * sizeof *v, v, NULL);
}
static int sum_small(tutti *job, float *v) { return tutti_allreduce(job, v, v, 16, TUTTI_F32, TUTTI_AVERAGE, NULL); }
static int cast_large(tutti *job, float *v) { return tutti_broadcast(job, v, FLOATS * sizeof *v, 1, NULL); }
static int meet(tutti *job, float *v) { return (void)v, tutti_barrier(job, NULL); }
static int sum_apart(tutti *job, float *v)
{
	return tutti_allreduce(job, v, v + FLOATS / 2, FLOATS / 2, TUTTI_F32, TUTTI_AVERAGE, NULL);
}
static int sum_to_root(tutti *job, float *v)
{
	return tutti_reduce(job, v, v + FLOATS / 2, FLOATS / 2, TUTTI_F32, TUTTI_AVERAGE, 2, NULL);
}

static int sum_tensors(tutti *job, float *v)
{
	tutti_tensor t[64];

	for (size_t i = 0; i < TT_COUNT(t); i++)
		t[i] = (tutti_tensor){ v + FLOATS / TT_COUNT(t) * i, FLOATS / TT_COUNT(t) - i, TUTTI_F32 };
	return tutti_allreduce_tensors(job, t, TT_COUNT(t), TUTTI_AVERAGE, NULL);
}

static int gather_sizes(tutti *job, float *v)
{
	size_t bytes[16], at[16], n = (size_t)tutti_size(job), me = (size_t)tutti_rank(job);

	for (size_t r = 0; r < n; r++) {
		bytes[r] = (FLOATS / n - r) * sizeof *v;
		at[r] = r * (FLOATS / n) * sizeof *v;
	}
	return tutti_allgatherv(job, (char *)v + at[me], bytes[me], v, bytes, at, NULL);
}

/* All are started before the first is waited for; all end, whatever becomes of the others. */
static int start_several(tutti *job, float *v)
{
	tutti_op op[5];
	int failed = 0;

	EXPECT(tutti_allreduce(job, v, v, FLOATS / 2, TUTTI_F32, TUTTI_AVERAGE, &op[0]) == 0);
	EXPECT(tutti_barrier(job, &op[1]) == 0);
	EXPECT(tutti_broadcast(job, v + FLOATS / 2, FLOATS / 4 * sizeof *v, 3, &op[2]) == 0);
	EXPECT(tutti_allreduce(job, v + FLOATS / 4 * 3, v + FLOATS / 4 * 3, 100, TUTTI_F32, TUTTI_MAX, &op[3]) == 0);
	EXPECT(tutti_allreduce(job, v + FLOATS / 4 * 3 + 100, v + FLOATS / 4 * 3 + 100, FLOATS / 8, TUTTI_F32,
	                       TUTTI_MIN, &op[4]) == 0);
	for (size_t i = 0; i < TT_COUNT(op); i++) {
		int err = tutti_wait(&op[i], -1);
		EXPECT(err == 0 || err == -ECONNRESET);
		failed = err ? err : failed;
	}
	return failed;
}

/* Ends with the first failure: then others call no more, and what goes to or comes from them is taken back. */
static int await_first_failure(tutti_op *op, int n)
{
	for (int i = 0, ended = 0; ended < n; i = (i + 1) % n) {
		int err = tutti_wait(&op[i], 1);
		if (err && err != -EINPROGRESS) {
			for (int k = 0; k < n; k++)
				if (k != i)
					tutti_cancel(&op[k]);
			return tutti_wait(&op[i], -1); /* once more, for its sentence */
		}
		ended = err ? 0 : ended + 1;
	}
	return 0;
}

/* A short and a long one, from each to all others. */
enum { LONG_MESSAGE = 20000, MESSAGES_OF_FIVE = 5 * 4 * LONG_MESSAGE };
static int exchange_messages(tutti *job, float *v)
{
	tutti_op op[5 * 4] = { 0 };
	int n = 0, me = tutti_rank(job);

	for (int i = 0; i < 4 * tutti_size(job); i++) {
		int other = i / 4, tag = i % 2;
		size_t bytes = (tag ? LONG_MESSAGE : 100) * sizeof *v;
		float *at = v + i * LONG_MESSAGE;
		if (other == me)
			continue;
		int err = i % 4 < 2 ? tutti_send(job, other, tag, at, bytes, &op[n])
		                    : tutti_recv(job, other, tag, at, bytes, NULL, &op[n]);
		EXPECT(err == 0);
		n++;
	}
	return await_first_failure(op, n);
}

static const struct kind kinds[] = {
	{ "a large all-reduce", FLOATS, sum_large, false, false },
	{ "a small all-reduce", 16, sum_small, false, false },
	{ "a large broadcast", FLOATS, cast_large, false, false },
	{ "a barrier", 1, meet, false, false },
	{ "several in flight", FLOATS, start_several, false, false },
	{ "an all-reduce to another vector", FLOATS, sum_apart, false, false },
	{ "an all-reduce of tensors", FLOATS, sum_tensors, false, false },
	{ "a reduce", FLOATS, sum_to_root, false, false },
	{ "an all-gather of several sizes", FLOATS, gather_sizes, false, false },
	{ "messages", MESSAGES_OF_FIVE, exchange_messages, false, false },
	{ "an all-reduce in place", FLOATS_IN_PLACE, sum_in_place, true, true },
	{ "a reduce-scatter in place", FLOATS_IN_PLACE, scatter_in_place, true, false },
	{ "an all-gather in place", FLOATS, gather_in_place, true, false },
};
enum { MESSAGES = 9, IN_PLACE };
static const struct kind *kind; /* children inherit it, like the victim */
static int victim;

/* One in a page, so that all are set before a survivor has come to the end of what it was about to do. */
static size_t set_marks(float *v, float mark, bool set)
{
	size_t wrong = 0;

	for (size_t i = 0; v && i < kind->floats; i += 1024)
		if (set)
			v[i] = mark;
		else
			wrong += v[i] != mark;
	return wrong;
}

/* The memory is the caller's again the moment the call returns: freed at once, so that the sanitizer sees who minds; or
 * it is kept, and stays as it was marked. */
static float *call_until_it_fails(tutti *job)
{
	float *v = NULL;
	uint64_t started;
	int err;

	if (!kind->mapped)
		v = calloc(kind->floats, sizeof *v);
	else
		EXPECT(tutti_alloc(job, kind->floats * sizeof *v, -1, (void **)&v) == 0);
	do {
		started = tt_now();
		err = kind->call(job, v);
		mine->rounds += !err;
	} while (!err);
	if (kind->mapped)
		set_marks(v, 7, true);
	record(err, started);
	if (kind->mapped)
		return v;
	free(v);
	return NULL;
}

static void check_untouched(tutti *job, float *v)
{
	EXPECT(set_marks(v, 7, false) == 0);
	tutti_free(job, v);
}

static void program_killed(tutti *job)
{
	float x = 0, *v = call_until_it_fails(job);

	sleep_ms(kind->mapped ? 20 : 0);
	check_untouched(job, v);
	EXPECT(tutti_allreduce(job, &x, &x, 1, TUTTI_F32, TUTTI_SUM, NULL) == -ECONNRESET);
	EXPECT(names(tutti_why(), victim));
}

/* "01e27110e4b85b55", which tells nobody anything. */
static bool has_identifier(const char *text)
{
	for (; *text; text++)
		if (strspn(text, "0123456789abcdef") >= 16)
			return true;
	return false;
}

static void kill_one(const struct kind *of, int rank, int delay_ms)
{
	kind = of;
	victim = rank;
	start((struct crew){ .size = 5, .timeout_ms = 10000 * SLOW, .program = program_killed });
	await(3, 0, NOBODY);
	sleep_ms(delay_ms);
	uint64_t then = tt_now();
	strike(rank, SIGKILL);
	finish(rank);
	for (int i = 0; i < crew.size; i++) {
		const struct report *r = &board->of[i];
		if (i == rank)
			continue;
		WANT(r->err == -ECONNRESET, "%s: rank %d got %d when %d was killed: %s", of->name, i, r->err, rank,
		     r->why);
		WANT(names_only(r->why, rank) && !has_identifier(r->why), "%s: rank %d was killed, rank %d says: %s",
		     of->name, rank, i, r->why);
		WANT(r->ended - then < 4000 * TT_MS * SLOW, "%s: rank %d took %llu ms to see that %d was killed",
		     of->name, i, (unsigned long long)((r->ended - then) / TT_MS), rank);
	}
}

static void test_kill_large(void)
{
	for (int rank = 0; rank < all_or(5, 2); rank++)
		kill_one(&kinds[0], rank, 3 * rank);
}

static void test_kill_in_place(void)
{
	for (int rank = 0; rank < all_or(5, 2); rank++)
		kill_one(&kinds[IN_PLACE], rank, 3 * rank);
}

static void test_kill_blocks(void)
{
	for (int rank = 0; rank < all_or(5, 2); rank++)
		kill_one(&kinds[IN_PLACE + 1 + rank % 2], rank, 3 * rank);
}

static void test_kill_others(void)
{
	for (size_t i = 1; i < MESSAGES; i++) {
		if (all_or(true, i % 2))
			kill_one(&kinds[i], 0, 1);
		if (all_or(true, !(i % 2)))
			kill_one(&kinds[i], (int)i % 5, 4);
	}
}

static void test_kill_messages(void)
{
	for (int rank = 0; rank < all_or(5, 2); rank++)
		kill_one(&kinds[MESSAGES], rank, 3 * rank);
}

/* ---- half of a group, without its first rank ---- */

static bool minority;

static void program_minority(tutti *job)
{
	tutti *left = NULL;
	int err;

	EXPECT(tutti_barrier(job, NULL) == 0);
	reach(1);
	if (my_rank == 0)
		pause();
	EXPECT(tutti_barrier(job, NULL) == -ECONNRESET);
	err = tutti_group_shrink(job, &left);
	if (!minority) {
		EXPECT(err == -EHOSTDOWN && strstr(tutti_why(), "1 of the group's 2 ranks") &&
		       strstr(tutti_why(), "TUTTI_MINORITY=yes"));
		return;
	}
	EXPECT(err == 0 && tutti_size(left) == 1 && tutti_group_member(left, 0) == 1);
	EXPECT(left && tutti_barrier(left, NULL) == 0);
}

static void kill_half(const char *setting)
{
	minority = !strcmp(setting, "yes");
	setenv("TUTTI_MINORITY", setting, 1);
	start((struct crew){ .size = 2, .timeout_ms = 10000 * SLOW, .program = program_minority });
	await(0, 1, NOBODY);
	strike(0, SIGKILL);
	finish(0);
	unsetenv("TUTTI_MINORITY");
}

/* It does not go on, unless it is told to. */
static void test_minority(void)
{
	kill_half("no");
	kill_half("yes");
}

/* ---- started again ---- */

/* The sum of 1 << rank over a group is its members' bits: exact, and each rank's own share of it is there. */
static bool sums_of(tutti *g, unsigned bits)
{
	float x = (float)(1 << tutti_group_member(g, tutti_rank(g)));

	return tutti_allreduce(g, &x, &x, 1, TUTTI_F32, TUTTI_SUM, NULL) == 0 && x == (float)bits;
}

static void program_back(tutti *again)
{
	tutti *g = NULL;

	EXPECT(tutti_late(again) == 1);
	EXPECT(tutti_group_grow(again, &g) == 0);
	EXPECT(g && sums_of(g, 0xf) && tutti_rank(g) == 3);
	reach(3);
}

static void program_restarted(tutti *job)
{
	tutti *left = NULL, *g = NULL;
	tutti_change c = { 0 };

	if (tutti_late(job)) {
		program_back(job);
		return;
	}
	EXPECT(tutti_group_watch(job, NULL, NULL) >= 0);
	EXPECT(sums_of(job, 0xf));
	reach(1);
	if (my_rank == victim)
		pause();
	EXPECT(tutti_barrier(job, NULL) == -ECONNRESET);
	uint64_t failed = tt_now();
	EXPECT(tutti_group_shrink(job, &left) == 0);
	EXPECT(left && sums_of(left, 0xf & ~(1u << victim)));
	EXPECT(tt_now() - failed < 2000 * TT_MS * SLOW);
	reach(2);
	do {
		while (tutti_group_next(job, &c) == 0)
			sleep_ms(1);
	} while (c.what != TUTTI_JOINED);
	EXPECT(c.rank == victim);
	EXPECT(tutti_group_grow(left, &g) == 0);
	EXPECT(g && sums_of(g, 0xf));
	reach(3);
}

/* Killed and started again at once: the survivors shrink, and take it in again. */
static void test_restarted(void)
{
	victim = 2;
	start((struct crew){ .size = 4, .timeout_ms = 10000 * SLOW, .program = program_restarted });
	await(0, 1, NOBODY);
	strike(victim, SIGKILL);
	waitpid(crew.pid[victim], &crew.status[victim], 0);
	crew.pid[victim] = fork_child();
	if (crew.pid[victim] == 0)
		run_child(victim);
	finish(NOBODY);
}

/* ---- the rank at the boot address is lost ---- */

/* A newcomer in the place of one that was killed: as a new rank or as `rank`, by the address of a survivor. */
static void start_newcomer(int slot, int rank, int survivor)
{
	char more[100];

	snprintf(more, sizeof more, ",%s", board->of[survivor].addr + strlen("tcp:"));
	boot_more = more;
	as_new = rank < 0;
	if (crew.pid[slot])
		waitpid(crew.pid[slot], &crew.status[slot], 0);
	board->of[slot].stage = 0;
	crew.pid[slot] = fork_child();
	if (crew.pid[slot] == 0)
		run_child_as(slot, rank < 0 ? slot : rank);
	boot_more = "";
	as_new = false;
}

static void await_joined(int n)
{
	tutti_change c;

	for (int ms = 0; n && ms < HANG_MS; ms++)
		if (tutti_group_next(crew_job, &c) == 1)
			n -= c.what == TUTTI_JOINED;
		else
			sleep_ms(1);
	EXPECT(n == 0);
}

static unsigned bits_left, bits_grown;
static int joiners;

/* Ranks 0 and 1 die; the others go on, take the newcomers in, and compute with them. */
static void program_rootless(tutti *job)
{
	tutti *left = NULL, *g = NULL;

	if (tutti_late(job)) {
		EXPECT(tutti_group_grow(job, &g) == 0);
		EXPECT(g && sums_of(g, bits_grown));
		reach(3);
		return;
	}
	EXPECT(tutti_group_watch(job, NULL, NULL) >= 0);
	EXPECT(tutti_barrier(job, NULL) == 0);
	reach(1);
	if (!(bits_left >> my_rank & 1)) {
		if (my_rank != 4)
			pause();
		EXPECT(tutti_barrier(job, NULL) == -ECONNRESET); /* stopped, evicted, replaced, and woken */
		EXPECT(tutti_group_shrink(job, &left) < 0);
		reach(4);
		return;
	}
	while (!left || tutti_size(left) > __builtin_popcount(bits_left)) {
		tutti *from = left ? left : job;
		if (tutti_barrier(from, NULL))
			EXPECT(tutti_group_shrink(from, &left) == 0);
	}
	EXPECT(sums_of(left, bits_left));
	reach(2);
	await_joined(joiners);
	EXPECT(tutti_group_grow(left, &g) == 0);
	EXPECT(g && sums_of(g, bits_grown));
	reach(3);
	await_go(1);
}

static void lose_roots(int last)
{
	start((struct crew){ .size = 5, .timeout_ms = 10000 * SLOW, .program = program_rootless });
	await(0, 1, NOBODY);
	for (int i = 0; i <= last; i++)
		strike(i, SIGKILL);
}

/* Two new ranks come at once, by two survivors: they get two numbers. */
static void test_two_newcomers(void)
{
	bits_left = 0x1c;
	bits_grown = 0x7c;
	joiners = 2;
	lose_roots(1);
	for (int i = 2; i < 5; i++)
		await_rank(i, 2);
	start_newcomer(0, -1, 2);
	start_newcomer(1, -1, 3);
	for (int i = 0; i < 5; i++)
		await_rank(i, 3);
	board->go = 1;
	finish(NOBODY);
}

/* Rank 4 is stopped and evicted. Another process comes in its place, by a survivor; the old one wakes and is out. */
static void test_replaced(void)
{
	bits_left = 0xe;
	bits_grown = 0x1e;
	joiners = 1;
	lose_roots(0);
	strike(4, SIGSTOP);
	for (int i = 1; i < 4; i++)
		await_rank(i, 2);
	start_newcomer(0, 4, 2);
	for (int i = 0; i < 4; i++)
		await_rank(i, 3);
	strike(4, SIGCONT);
	await_rank(4, 4);
	board->go = 1;
	finish(NOBODY);
}

static void program_few(tutti *job)
{
	EXPECT(tutti_barrier(job, NULL) == 0);
	reach(1);
	if (my_rank != 2)
		pause();
	await_gone(job, 0);
	await_gone(job, 1);
	reach(2);
	await_go(1);
}

/* One of three is no majority: it lets nobody in, and says so. */
static void test_refusing(void)
{
	start((struct crew){ .size = 3, .timeout_ms = 10000 * SLOW, .program = program_few });
	await(0, 1, NOBODY);
	strike(0, SIGKILL);
	strike(1, SIGKILL);
	await_rank(2, 2);
	refused = true;
	start_newcomer(0, -1, 2);
	start_newcomer(1, 1, 2);
	refused = false;
	for (int i = 0; i < 2; i++) {
		await_rank(i, 5);
		WANT(board->of[i].err == -EPERM && strstr(board->of[i].why, "rank 2 reaches 1 of 3 ranks, no majority"),
		     "newcomer %d: %d %s", i, board->of[i].err, board->of[i].why);
	}
	board->go = 1;
	finish(NOBODY);
}

/* ---- stopped ---- */

/* Put, get and add among those who are left: nothing of what happened may hurt them. */
static void use_window(tutti_window *w, uint64_t *memory, int to, int from, uint64_t round)
{
	uint64_t v = round, back = 0;

	EXPECT(tutti_put_notify(w, to, 8, &v, 8, 1, NULL) == 0);
	EXPECT(tutti_get(w, to, 8, &back, 8, NULL) == 0 && back == round);
	EXPECT(tutti_add(w, to, 16, 1, NULL, NULL) == 0);
	EXPECT(tutti_wait_notify(w, from, 1, round, -1) == 0);
	EXPECT(__atomic_load_n(&memory[1], __ATOMIC_ACQUIRE) >= round);
}

static int before_but(int rank, int except)
{
	do
		rank = (rank + crew.size - 1) % crew.size;
	while (rank == except);
	return rank;
}

/* Stage 1: the call has failed and its memory is freed. Go 1: the stopped one goes on. Stage 2: nothing came after. */
static void program_stopped(tutti *job)
{
	uint64_t memory[8] = { 0 };
	tutti_window *w;

	EXPECT(tutti_window_open(job, "after", memory, sizeof memory, &w) == 0);
	EXPECT(tutti_barrier(job, NULL) == 0);
	float *v = call_until_it_fails(job);
	reach(1);
	if (my_rank != victim) {
		await_go(1);
		uint64_t until = tt_now() + 300 * TT_MS;
		int to = next_but(my_rank, victim), from = before_but(my_rank, victim);
		/* all the same number of rounds, or one would wait for a notify that does not come */
		for (uint64_t round = 1; round <= 20; round++)
			use_window(w, memory, to, from, round);
		while (tt_now() < until) {
			uint64_t word;
			EXPECT(tutti_get(w, to, 8, &word, 8, NULL) == 0 && word == 20);
		}
		reach(2);
		await_go(2);
	}
	check_untouched(job, v);
	tutti_window_close(w);
}

/* Its neighbours cut it off after TUTTI_SILENCE; the others hear of that, and why. */
static void look_at_stopped(uint64_t then, uint64_t bound_ms)
{
	for (int i = 0; i < crew.size; i++) {
		const struct report *r = &board->of[i];
		if (i == victim)
			continue;
		bool killed = crew.evicted && crew.status[victim]; /* by who cut it off: others may see its end first */
		WANT(r->err == -ECONNRESET, "%s: rank %d got %d when %d was stopped: %s",
		     kind->name, i, r->err, victim, r->why);
		WANT(names_only(r->why, victim) && (killed || strstr(r->why, "no sign of life")),
		     "%s: rank %d was stopped, rank %d says: %s", kind->name, victim, i, r->why);
		WANT(r->ended - then < bound_ms * TT_MS, "%s: rank %d took %llu ms to give up on %d", kind->name, i,
		     (unsigned long long)((r->ended - then) / TT_MS), victim);
	}
}

static void stop_one(const struct kind *of, int rank, int delay_ms)
{
	/* the silence is 900: a process that shares a core with others must not seem silent */
	enum { DEADLINE = SLOW > 1 ? 6000 : 3000 };

	kind = of;
	victim = rank;
	start((struct crew){
		.size = 5, .timeout_ms = DEADLINE, .program = program_stopped, .evicted = of->stored ? rank + 1 : 0 });
	await(3, 0, NOBODY);
	sleep_ms(delay_ms);
	uint64_t then = tt_now();
	strike(rank, SIGSTOP);
	await(0, 1, rank);
	if (!of->stored || reap_some() == crew.size)
		strike(rank, SIGCONT);
	board->go = 1;
	await(0, 2, rank);
	board->go = 2;
	finish(NOBODY);
	look_at_stopped(then, 2 * DEADLINE);
	const struct report *r = &board->of[rank];
	WANT(crew.status[rank] || (r->err < 0 && *r->why), "rank %d, continued, got %d: %s", rank, r->err, r->why);
}

static void test_stop_large(void)
{
	stop_one(&kinds[0], 2, 5);
	stop_one(&kinds[0], 0, 12);
}

/* It may be frozen in the middle of a store into others' memory: then it is killed. */
static void test_stop_in_place(void)
{
	for (int rank = 0; rank < all_or(5, 2); rank++)
		stop_one(&kinds[IN_PLACE], rank, 5 + 2 * rank);
}

/* Nobody stores into others' memory here, so nobody is killed. */
static void test_stop_blocks(void)
{
	for (int rank = 0; rank < all_or(5, 2); rank++)
		stop_one(&kinds[IN_PLACE + 1 + rank % 2], rank, 5 + 2 * rank);
}

static void test_stop_small(void) { stop_one(&kinds[1], 3, 3); }
static void test_stop_messages(void) { stop_one(&kinds[MESSAGES], 1, 5); }
static void test_stop_broadcast(void) { stop_one(&kinds[2], 1, 7); } /* its root */

/* ---- one-sided, to a stopped rank ---- */

static bool putting;

/* Rank 3 is stopped; 0 waits for it, 1 and 2 for each other only. */
static void wait_for_stopped(tutti_window *w)
{
	size_t bytes = putting ? FLOATS * sizeof(float) : 8;
	char *buf = calloc(1, bytes);
	uint64_t started = tt_now();
	int err = putting ? tutti_put(w, 3, 0, buf, bytes, NULL) : tutti_get(w, 3, 0, buf, bytes, NULL);

	free(buf);
	record(err, started);
}

static void do_without_stopped(tutti *job, tutti_window *w)
{
	uint64_t v, started;

	while (board->go < 2) {
		started = tt_now();
		EXPECT(tutti_get(w, 3 - my_rank, 0, &v, 8, NULL) == 0);
		mine->rounds++;
	}
	await_gone(job, 3);
	started = tt_now();
	record(tutti_get(w, 3, 0, &v, 8, NULL), started);
}

static void program_one_sided(tutti *job)
{
	char *memory = calloc(FLOATS, sizeof(float));
	uint64_t v;
	tutti_window *w;

	EXPECT(tutti_window_open(job, "w", memory, FLOATS * sizeof(float), &w) == 0);
	EXPECT(my_rank == 3 || tutti_get(w, 3, 0, &v, 8, NULL) == 0); /* all are connected to it */
	EXPECT(tutti_barrier(job, NULL) == 0);
	reach(1);
	if (my_rank == 0) {
		await_go(1);
		wait_for_stopped(w);
	} else if (my_rank == 3) {
		while (!tutti_get(w, 0, 0, &v, 8, NULL))
			sleep_ms(1);
		EXPECT(*tutti_why());
	} else {
		do_without_stopped(job, w);
	}
	reach(2);
	if (my_rank != 3)
		await_go(3);
	tutti_window_close(w);
	free(memory);
}

static void stop_target(bool put)
{
	enum { DEADLINE = 3000 }; /* the silence is 900: on a full machine a process waits long for a core */
	uint64_t slowest = 0;
	bool alone = put && strstr(wires, "shm"); /* whoever puts stores it there himself */

	putting = put;
	start((struct crew){ .size = 4, .timeout_ms = DEADLINE, .program = program_one_sided });
	await(0, 1, NOBODY);
	strike(3, SIGSTOP);
	board->go = 1;
	await_rank(0, 2);
	board->go = 2;
	await_rank(1, 2);
	await_rank(2, 2);
	board->go = 3;
	strike(3, SIGCONT);
	finish(NOBODY);
	for (int i = 0; i < 3; i++) {
		const struct report *r = &board->of[i];
		uint64_t ms = (r->ended - r->started) / TT_MS;
		slowest = tt_max(slowest, ms);
		WANT(r->err == (!i && alone ? 0 : -ECONNRESET), "rank %d got %d: %s", i, r->err, r->why);
		WANT(!r->err || names_only(r->why, 3), "rank %d says: %s", i, r->why);
		WANT(ms < DEADLINE * SLOW, "rank %d waited %llu ms", i, (unsigned long long)ms);
	}
	WANT(alone || slowest > 50, "nobody waited for it, only %llu ms", (unsigned long long)slowest);
}

static void test_get_stopped(void) { stop_target(false); }
static void test_put_stopped(void) { stop_target(true); }

/* ---- stopped while it writes what others hold ---- */

enum { STORED = 4 << 20 };
static bool by_pointer;

/* Where the wire takes the memory away under whoever stores there, as it may, the thread sanitizer sees a race. */
__attribute__((no_sanitize("thread"))) static void store_plainly(volatile char *to, char value)
{
	for (size_t i = 0; i < STORED; i++)
		to[i] = value;
}

/* Stores without end, one value a round: by puts, or through a plain pointer. */
static void store_on(tutti_window *w)
{
	char *from = calloc(1, STORED), *to[2];
	int err = 0;

	for (int rank = 0; rank < 2; rank++) {
		EXPECT(tutti_put(w, rank, 0, from, STORED, NULL) == 0);
		to[rank] = by_pointer ? tutti_window_map(w, rank) : NULL;
		EXPECT(to[rank] || !by_pointer);
	}
	for (int round = 1; !err && !board->go; round++) {
		memset(from, round, STORED);
		for (int rank = 0; !err && rank < 2; rank++)
			if (by_pointer)
				store_plainly(to[rank], (char)round);
			else
				err = tutti_put(w, rank, 0, from, STORED, NULL);
		mine->rounds++;
	}
	EXPECT(!err || *tutti_why());
	free(from);
}

/* After the call that has waited for it, nothing changes: neither while it is stopped, nor when it goes on. */
static void watch_memory(tutti *job, const char *memory)
{
	uint64_t started = tt_now();
	char *copy = malloc(STORED);

	record(tutti_barrier(job, NULL), started);
	memcpy(copy, memory, STORED);
	reach(2);
	await_go(1);
	EXPECT(!strcmp(evict, "no") || !memcmp(copy, memory, STORED));
	reach(3);
	free(copy);
}

static void program_evicted(tutti *job)
{
	tutti_window *w;
	void *memory;

	EXPECT(tutti_alloc(job, STORED, -1, &memory) == 0);
	EXPECT(tutti_window_open(job, "w", memory, STORED, &w) == 0);
	EXPECT(tutti_barrier(job, NULL) == 0);
	reach(1);
	if (my_rank == victim)
		store_on(w);
	else
		watch_memory(job, memory);
	tutti_window_close(w);
	tutti_free(job, memory);
}

/* Of the names in the kernel's list of sockets. */
static bool is_listed(const char *addr)
{
	const char *name = strrchr(addr, ':') ? strrchr(addr, ':') + 1 : addr;
	FILE *list = fopen("/proc/net/unix", "r");
	char line[512];
	bool found = false;

	while (!found && list && *name && fgets(line, sizeof line, list))
		found = strstr(line, name) != NULL;
	if (list)
		fclose(list);
	return found;
}

static bool has_ended(int rank)
{
	reap_some();
	return crew.pid[rank] == 0;
}

/* must_die: it holds pointers; else it depends on what it was about to do. */
static void stop_writer(const char *setting, bool pointer, bool must_die)
{
	enum { DEADLINE = 1000 * SLOW };

	victim = 2;
	by_pointer = pointer;
	evict = setting;
	start((struct crew){ .size = 3, .timeout_ms = DEADLINE, .program = program_evicted, .capture = true });
	await(0, 1, NOBODY);
	while (board->of[victim].rounds < 3 && !has_ended(victim))
		sleep_ms(1);
	WANT(is_listed(board->of[victim].name), "no socket of \"%s\": what is looked for afterwards is nothing",
	     board->of[victim].name);
	uint64_t then = tt_now();
	strike(victim, SIGSTOP);
	await_rank(0, 2);
	await_rank(1, 2);
	if (must_die)
		for (int ms = 0; ms < HANG_MS && !has_ended(victim); ms++)
			sleep_ms(1);
	if (!has_ended(victim))
		strike(victim, SIGCONT);
	sleep_ms(50);
	board->go = 1;
	await_rank(0, 3);
	await_rank(1, 3);
	for (int ms = 0; ms < HANG_MS && !has_ended(victim); ms++)
		sleep_ms(1);
	bool died = WIFSIGNALED(crew.status[victim]);
	WANT(died || !must_die, "rank %d lives, and holds pointers into others' memory", victim);
	WANT(!died || !strcmp(setting, "yes"), "rank %d was killed, TUTTI_EVICT=no", victim);
	finish(died ? victim : NOBODY);
	for (int i = 0; i < 2; i++) {
		const struct report *r = &board->of[i];
		WANT(r->err == -ECONNRESET && names_only(r->why, victim), "rank %d got %d: %s", i, r->err, r->why);
		WANT(r->ended - then < 4 * DEADLINE * TT_MS, "rank %d took %llu ms", i,
		     (unsigned long long)((r->ended - then) / TT_MS));
	}
	for (int i = 0; i < 3; i++)
		WANT(!is_listed(board->of[i].name), "a socket of rank %d is left: %s", i, board->of[i].name);
	evict = "no";
}

static void test_evicted(void)
{
	if (!strstr(wires, "shm"))
		return;
	stop_writer("yes", true, true);
	stop_writer("yes", false, false);
}

/* What it does when it goes on is its owner's risk: memory is not looked at. */
static void test_not_evicted(void)
{
	if (strstr(wires, "shm"))
		stop_writer("no", true, false);
}

/* ---- a window closes, and a rank that has its key does not answer ---- */

enum { HOLDERS_DEADLINE = 3000 * SLOW };

/* Stage 1: all have the key. The victim is stopped, or computes; go 1: rank 0 closes its window. */
static void program_holder(tutti *job)
{
	uint64_t memory[8] = { 0 }, word, started;
	tutti_window *w;

	EXPECT(tutti_window_open(job, "held", memory, sizeof memory, &w) == 0);
	EXPECT(tutti_barrier(job, NULL) == 0);
	EXPECT(my_rank == 0 || tutti_get(w, 0, 0, &word, 8, NULL) == 0);
	reach(1);
	if (my_rank == 0) {
		await_go(1);
		started = tt_now();
		tutti_window_close(w);
		record(0, started);
		reach(2);
	}
	await_go(2); /* without a call: the background thread answers */
	if (my_rank)
		tutti_window_close(w);
}

static uint64_t close_before(bool stopped)
{
	victim = 2;
	start((struct crew){ .size = 3, .timeout_ms = HOLDERS_DEADLINE, .program = program_holder });
	await(0, 1, NOBODY);
	if (stopped)
		strike(victim, SIGSTOP);
	board->go = 1;
	await_rank(0, 2);
	if (stopped)
		strike(victim, SIGCONT);
	board->go = 2;
	finish(NOBODY);
	return (board->of[0].ended - board->of[0].started) / TT_MS;
}

static void test_close_held(void)
{
	uint64_t took = close_before(false);

	WANT(took < HOLDERS_DEADLINE / 2, "closing a window took %llu ms, and its holders live",
	     (unsigned long long)took);
	took = close_before(true);
	WANT(took < HOLDERS_DEADLINE, "closing a window took %llu ms, and a holder was stopped",
	     (unsigned long long)took);
}

/* ---- the owner is busy ---- */

static int compare(const void *a, const void *b)
{
	const uint64_t *x = a, *y = b;

	return (*x > *y) - (*x < *y);
}

/* How long a get of 8 bytes takes: the median, as others use this machine too. */
static uint64_t median_get(tutti_window *w)
{
	uint64_t took[31], v, start;

	for (size_t i = 0; i < TT_COUNT(took); i++) {
		start = tt_now();
		EXPECT(tutti_get(w, 1, 0, &v, 8, NULL) == 0 && v == 77);
		took[i] = tt_now() - start;
		sleep_ms(i % 4);
	}
	qsort(took, TT_COUNT(took), sizeof *took, compare);
	return took[TT_COUNT(took) / 2];
}

static void compute_for(uint64_t ms)
{
	uint64_t until = tt_now() + ms * TT_MS;
	volatile uint64_t work = 0;

	while (tt_now() < until)
		for (uint64_t i = 0; i < 10000; i++)
			work = work + i;
}

/* The limits are far above what a get takes, also where many processes share two cores, and far below the computing. */
static void program_busy(tutti *job)
{
	enum { COMPUTING = 2000, SLOWEST = 200 };
	uint64_t memory = my_rank == 1 ? 77 : 0, computing, waiting, start;
	tutti_window *w;

	EXPECT(tutti_window_open(job, "busy", &memory, 8, &w) == 0);
	EXPECT(tutti_barrier(job, NULL) == 0);
	if (my_rank == 1) {
		compute_for(COMPUTING);
		EXPECT(tutti_barrier(job, NULL) == 0); /* a long one: rank 0 comes late */
	} else {
		sleep_ms(20);
		start = tt_now();
		computing = median_get(w);
		EXPECT(tt_now() - start < (COMPUTING - 50) * TT_MS * SLOW);
		EXPECT(computing < SLOWEST * TT_MS * SLOW);
		sleep_ms(COMPUTING + 100);
		waiting = median_get(w);
		EXPECT(waiting < SLOWEST * TT_MS * SLOW);
		mine->started = computing;
		mine->ended = waiting;
		EXPECT(tutti_barrier(job, NULL) == 0);
	}
	tutti_window_close(w);
}

static void test_busy(void)
{
	start((struct crew){ .size = 2, .timeout_ms = 20000, .program = program_busy });
	finish(NOBODY);
	if (name_each_test)
		printf("a get of 8 bytes: %llu us while the owner computes, %llu us while it waits\n",
		       (unsigned long long)board->of[0].started / 1000, (unsigned long long)board->of[0].ended / 1000);
}

/* ---- strangers at the door ---- */

static bool ends_now(tutti *job, bool *right)
{
	float x[2] = { (float)my_rank + 1, my_rank == 0 && board->go };

	*right = !tutti_allreduce(job, x, x, 2, TUTTI_F32, TUTTI_SUM, NULL) && x[0] == 6;
	return x[1] > 0;
}

/* Sums until the parent says so: all in the same round. */
static void program_besieged(tutti *job)
{
	float *v = calloc(50000, sizeof *v);
	bool right = true;

	while (right && !ends_now(job, &right)) {
		v[49999] = (float)(my_rank + 1);
		EXPECT(tutti_allreduce(job, v, v, 50000, TUTTI_F32, TUTTI_SUM, NULL) == 0 && v[49999] == 6);
		mine->rounds++;
		sleep_ms(1); /* the strangers need processors, too */
	}
	EXPECT(right);
	free(v);
}

static int dial(int rank)
{
	struct sockaddr_in to = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	struct timeval patience = { .tv_sec = 5 };
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	to.sin_port = htons((uint16_t)atoi(strrchr(board->of[rank].addr, ':') + 1));
	setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
	setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
	WANT(connect(fd, (struct sockaddr *)&to, sizeof to) == 0, "rank %d at %s: %s", rank, board->of[rank].addr,
	     strerror(errno));
	return fd;
}

static void say(int fd, const void *bytes, size_t len)
{
	(void)!send(fd, bytes, len, MSG_NOSIGNAL); /* it may be closed by now, which is all right */
}

/* Hangs up only after the other side has had its say: what it thinks of us is not lost in a reset. */
static void hang_up(int fd)
{
	char waste[4096];

	shutdown(fd, SHUT_WR);
	while (recv(fd, waste, sizeof waste, 0) > 0)
		;
	close(fd);
}

static void make_hello(uint64_t job, uint8_t to[TT_HELLO_SIZE])
{
	struct tt_hello h = { .version = TT_FRAME_VERSION, .flags = TT_HELLO_SECRET, .epoch = 1, .job = job };

	tt_entropy(h.nonce, sizeof h.nonce);
	tt_hello_pack(&h, to);
}

static void send_noise(int rank, bool magic)
{
	enum { MILLION = 1000000 };
	uint8_t *noise = malloc(MILLION);
	int fd = dial(rank);

	tt_entropy(noise, MILLION);
	if (magic)
		make_hello(board->of[rank].job ^ 1, noise); /* well made, of another job */
	say(fd, noise, MILLION);
	hang_up(fd);
	free(noise);
}

/* A right HELLO, cut short or followed by a proof and frames that are made up. */
static void fake_handshake(int rank, size_t len, bool proof)
{
	uint8_t hello[TT_HELLO_SIZE], theirs[TT_HELLO_SIZE], rest[4096];
	int fd = dial(rank);

	make_hello(board->of[rank].job, hello);
	say(fd, hello, len);
	if (proof) {
		WANT(recv(fd, theirs, sizeof theirs, MSG_WAITALL) == TT_HELLO_SIZE,
		     "rank %d did not answer a right HELLO", rank);
		tt_entropy(rest, sizeof rest);
		say(fd, rest, sizeof rest);
	}
	hang_up(fd);
}

/* A proof that is wrong is answered by zeros, which are no proof, and by nothing else. */
static bool is_refused(int fd)
{
	static const uint8_t no[TT_PROOF_SIZE];
	uint8_t bytes[TT_PROOF_SIZE + 1];
	ssize_t n = recv(fd, bytes, sizeof bytes, MSG_WAITALL);

	return n <= 0 || (n == sizeof no && !memcmp(bytes, no, sizeof no));
}

/* What the acceptor says is thrown back at it: neither its HELLO nor its proof may count as mine. */
static void reflect(int rank)
{
	uint8_t bytes[TT_HELLO_SIZE];
	int fd = dial(rank), other = dial(rank);

	make_hello(board->of[rank].job, bytes);
	say(other, bytes, sizeof bytes);
	WANT(recv(other, bytes, sizeof bytes, MSG_WAITALL) == TT_HELLO_SIZE, "rank %d did not answer", rank);
	say(fd, bytes, sizeof bytes);
	ssize_t n = recv(fd, bytes, sizeof bytes, MSG_WAITALL);
	say(fd, bytes, TT_PROOF_SIZE);
	WANT(n == TT_HELLO_SIZE && is_refused(fd), "rank %d was convinced by its own words", rank);
	hang_up(fd);
	hang_up(other);
}

static void one_by_one(int rank)
{
	uint8_t hello[TT_HELLO_SIZE];
	int fd = dial(rank);

	make_hello(board->of[rank].job, hello);
	for (int i = 0; i < TT_HELLO_SIZE - 1; i++) {
		say(fd, &hello[i], 1);
		sleep_ms(1);
	}
	hang_up(fd);
}

/* A whole process of another job, or of ours without its secret. */
static void join_with(const char *the_secret, int rank, int expected, const char *word)
{
	struct report *r = &board->of[RANKS_MAX - 1];
	int status;
	pid_t pid = fork_child();

	if (pid == 0) {
		tutti *job;
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		alarm(20 * SLOW);
		mine = r;
		close(STDERR_FILENO);
		set_environment(rank, the_secret);
		int err = tutti_join(NULL, &job);
		record(err, 0);
		if (!err)
			tutti_leave(job);
		exit(0);
	}
	WANT(waitpid(pid, &status, 0) == pid && status == 0, "status 0x%x", status);
	WANT(r->err == expected && strstr(r->why, word), "joined with %d: %s", r->err, r->why);
}

static void keeps_going(void) { await(board->of[0].rounds + 5, 0, NOBODY); }

static void besiege(int rank)
{
	send_noise(rank, false);
	send_noise(rank, true);
	keeps_going();
	for (size_t len = 0; len < TT_HELLO_SIZE; len += 5)
		fake_handshake(rank, len, false);
	fake_handshake(rank, TT_HELLO_SIZE, false);
	fake_handshake(rank, TT_HELLO_SIZE, true);
	reflect(rank);
	one_by_one(rank);
	keeps_going();
}

static void test_strangers(void)
{
	start((struct crew){ .size = 3, .timeout_ms = 10000, .program = program_besieged, .capture = true });
	await(5, 0, NOBODY);
	besiege(0);
	besiege(1);
	join_with(other_secret, 1, -EACCES, "TUTTI_SECRET");
	keeps_going();
	board->go = 1;
	finish(NOBODY);
}

/* finish() closes the captured stderr: these look at it before. */
static void test_logged_once(void)
{
	start((struct crew){ .size = 3, .timeout_ms = 10000, .program = program_besieged, .capture = true });
	await(5, 0, NOBODY);
	for (int i = 0; i < 10; i++) {
		send_noise(0, i % 2);
		fake_handshake(0, TT_HELLO_SIZE, true);
		join_with(other_secret, 2, -EACCES, "TUTTI_SECRET");
	}
	keeps_going();
	bool good = logged(0, "refused", false) == 1 && logged(0, "tutti: rank 0: warn: ", false) == 1;
	WANT(good, "%d lines tell of refusals", logged(0, "refused", !good));
	WANT(logged(1, "", false) == 0 && logged(2, "", false) == 0, "ranks that nobody bothered say %d and %d lines",
	     logged(1, "", true), logged(2, "", true));
	board->go = 1;
	finish(NOBODY);
}

/* Rank 1's stderr is a pipe that nobody reads, and full. */
static void program_unheard(tutti *job)
{
	static const char page[4096];
	int ends[2];

	if (my_rank == 1) {
		EXPECT(pipe2(ends, O_CLOEXEC) == 0 && fcntl(ends[1], F_SETFL, O_NONBLOCK) == 0);
		while (write(ends[1], page, sizeof page) > 0)
			continue;
		fcntl(ends[1], F_SETFL, 0);
		dup2(ends[1], STDERR_FILENO);
	}
	program_besieged(job);
}

/* A line of its log would hold it up for ever, and the others would evict it. */
static void test_unread_log(void)
{
	start((struct crew){ .size = 3, .timeout_ms = 10000, .program = program_unheard, .capture = true });
	await(5, 0, NOBODY);
	send_noise(1, false);
	fake_handshake(1, TT_HELLO_SIZE, true);
	sleep_ms(2 * silence_for(crew.timeout_ms, false));
	keeps_going();
	board->go = 1;
	finish(NOBODY);
}

/* It knows the secret, but its place is taken. */
static void test_same_rank(void)
{
	start((struct crew){ .size = 3, .timeout_ms = 10000, .program = program_besieged, .capture = true });
	await(5, 0, NOBODY);
	join_with(secret, 1, -EPERM, "rank 1 is already taken");
	keeps_going();
	board->go = 1;
	finish(NOBODY);
}

/* Rank 2 has never spoken to rank 1 when more strangers crowd its door than have a place: it gets in all the same. */
static void program_crowded(tutti *job)
{
	uint64_t memory = (uint64_t)my_rank + 100, v = 0;
	tutti_window *w;

	EXPECT(tutti_window_open(job, "crowd", &memory, 8, &w) == 0);
	reach(1);
	await_go(1);
	if (my_rank == 2) {
		uint64_t started = tt_now();
		int err = tutti_get(w, 1, 0, &v, 8, NULL);
		record(err, started);
		EXPECT(err == 0 && v == 101);
	}
	reach(2);
	await_go(2);
	EXPECT(tutti_barrier(job, NULL) == 0);
	tutti_window_close(w);
}

enum { STRANGERS = TT_DOOR_UNPROVEN + 150 };

static void crowd(int rank, int fd[STRANGERS], size_t speak)
{
	uint8_t hello[TT_HELLO_SIZE];

	make_hello(board->of[rank].job, hello);
	for (int i = 0; i < STRANGERS; i++) {
		fd[i] = dial(rank);
		say(fd[i], hello, speak);
	}
}

static void test_crowd(void)
{
	int fd[STRANGERS];

	start((struct crew){ .size = 3, .timeout_ms = 10000, .program = program_crowded, .capture = true });
	await(0, 1, NOBODY);
	crowd(1, fd, TT_HELLO_SIZE);
	board->go = 1;
	await(0, 2, NOBODY);
	const struct report *r = &board->of[2];
	WANT(r->ended - r->started < 5000 * TT_MS * SLOW, "it took %llu ms",
	     (unsigned long long)((r->ended - r->started) / TT_MS));
	for (int ms = 0; ms < HANG_MS && !logged(1, "refused", false); ms++) /* that get may not have gone over TCP */
		sleep_ms(1);
	bool once = logged(1, "refused", false) == 1;
	WANT(once, "%d lines tell of refusals", logged(1, "refused", !once));
	board->go = 2;
	finish(NOBODY);
	for (int i = 0; i < STRANGERS; i++)
		close(fd[i]);
}

/* A stranger that has said a whole HELLO keeps its place while a crowd says parts of one. */
static void test_babbling_crowd(void)
{
	uint8_t hello[TT_HELLO_SIZE];
	int fd[STRANGERS];

	start((struct crew){ .size = 3, .timeout_ms = 10000, .program = program_crowded, .capture = true });
	await(0, 1, NOBODY);
	int whole = dial(1);
	make_hello(board->of[1].job, hello);
	say(whole, hello, sizeof hello);
	WANT(recv(whole, hello, sizeof hello, MSG_WAITALL) == sizeof hello, "rank 1 did not answer a right HELLO");
	crowd(1, fd, TT_HELLO_SIZE - 1);
	for (int ms = 0; ms < HANG_MS && !logged(1, "refused", false); ms++)
		sleep_ms(1);
	sleep_ms((int)(TT_DOOR_GRACE / TT_MS) * 3 / 2);
	WANT(recv(whole, hello, 1, MSG_DONTWAIT) < 0 && errno == EAGAIN, "its place was taken");
	board->go = 1;
	await(0, 2, NOBODY);
	board->go = 2;
	finish(NOBODY);
	close(whole);
	for (int i = 0; i < STRANGERS; i++)
		close(fd[i]);
}

/* Strangers that say nothing take no place: nobody loses one, and no line of the log tells of them. */
static void test_silent_crowd(void)
{
	int fd[STRANGERS];

	start((struct crew){ .size = 3, .timeout_ms = 10000, .program = program_crowded, .capture = true });
	await(0, 1, NOBODY);
	crowd(1, fd, 0);
	sleep_ms((int)(TT_DOOR_GRACE / TT_MS) * 3 / 2);
	board->go = 1;
	await(0, 2, NOBODY);
	bool quiet = logged(1, "", false) == 0;
	WANT(quiet, "rank 1 says %d lines", logged(1, "", !quiet));
	board->go = 2;
	finish(NOBODY);
	for (int i = 0; i < STRANGERS; i++)
		close(fd[i]);
}

/* ---- leaving, and not leaving ---- */

static bool from_the_top;

/* They go one after the other; those who are still there work with each other until it is their turn. */
static void program_leave(tutti *job)
{
	uint64_t memory = (uint64_t)my_rank, v;
	int turn = from_the_top ? crew.size - 1 - my_rank : my_rank, last = from_the_top ? 0 : crew.size - 1;
	float x = 1;
	tutti_window *w;

	EXPECT(tutti_window_open(job, "leave", &memory, 8, &w) == 0);
	EXPECT(tutti_allreduce(job, &x, &x, 1, TUTTI_F32, TUTTI_SUM, NULL) == 0 && x == (float)crew.size);
	for (uint64_t until = tt_now() + (uint64_t)(20 + 60 * turn) * TT_MS; my_rank != last && tt_now() < until;
	     mine->rounds++)
		EXPECT(tutti_get(w, last, 0, &v, 8, NULL) == 0 && v == (uint64_t)last);
	if (my_rank == last) {
		sleep_ms(20 + 60 * turn);
		for (int i = 0; i < crew.size; i++)
			while (i != last && !tutti_get(w, i, 0, &v, 8, NULL)) /* it may still be about to go */
				sleep_ms(5);
		int err = tutti_barrier(job, NULL);
		EXPECT(err == -ENOTCONN || err == -ECONNRESET);
		EXPECT(strstr(tutti_why(), "left"));
	}
	tutti_window_close(w);
}

static void leave_in_turn(bool top)
{
	from_the_top = top;
	start((struct crew){ .size = 5, .timeout_ms = 10000, .program = program_leave });
	finish(NOBODY);
}

static void test_leave(void)
{
	leave_in_turn(false);
	leave_in_turn(true);
}

/* Everyone leaves at once, the connections of a barrier still warm. */
static void program_leave_at_once(tutti *job)
{
	for (int i = 0; i < 3; i++)
		EXPECT(tutti_barrier(job, NULL) == 0);
}

static void test_leave_at_once(void)
{
	for (int i = 0; i < 4; i++) {
		start((struct crew){ .size = 6, .timeout_ms = 10000, .program = program_leave_at_once });
		uint64_t then = tt_now();
		finish(NOBODY);
		WANT(tt_now() - then < 5000 * TT_MS * SLOW, "they took %llu ms",
		     (unsigned long long)((tt_now() - then) / TT_MS));
	}
}

static void program_exit(tutti *job)
{
	kind = &kinds[0];
	if (my_rank == victim) {
		float *v = calloc(FLOATS, sizeof *v);
		for (int i = 0; i < 3; i++)
			EXPECT(sum_large(job, v) == 0);
		free(v);
		exit(0); /* and no word to anybody */
	}
	call_until_it_fails(job);
}

static void test_exit(void)
{
	victim = 2;
	start((struct crew){ .size = 4, .timeout_ms = 10000 * SLOW, .program = program_exit });
	finish(NOBODY);
	for (int i = 0; i < crew.size; i++) {
		const struct report *r = &board->of[i];
		if (i == victim)
			continue;
		WANT(r->err == -ECONNRESET && names_only(r->why, victim), "rank %d got %d: %s", i, r->err, r->why);
		WANT(r->ended - r->started < 5000 * TT_MS * SLOW, "rank %d took %llu ms", i,
		     (unsigned long long)((r->ended - r->started) / TT_MS));
	}
}

static int note_socket(void *count, int pid, const char *path, const char *is)
{
	(void)pid;
	*(int *)count += atoi(strrchr(path, '/') + 1) > STDERR_FILENO && !strncmp(is, "socket:", 7);
	return 0;
}

static int count_sockets(void)
{
	int n = 0;

	EXPECT(tt_each_file(getpid(), note_socket, &n) == 0);
	return n;
}

/* The files that a child opens get the numbers of its parent's sockets. All that a child may call leaves them alone. */
static bool may_be_inherited(tutti *job, tutti_window *w, void *memory)
{
	int fd[16];
	bool good = count_sockets() == 0 && tutti_barrier(job, NULL) == -ECHILD;

	for (size_t i = 0; i < TT_COUNT(fd); i++)
		fd[i] = open("/dev/null", O_RDONLY);
	tutti_window_close(w);
	tutti_free(job, memory);
	tutti_leave(job);
	for (size_t i = 0; i < TT_COUNT(fd); i++)
		good &= fcntl(fd[i], F_GETFD) >= 0;
	return good;
}

/* A fork's child ends, by exit and by _exit, while the sums go on; what it inherited is not its own. */
static void program_fork(tutti *job)
{
	tutti_window *w;
	void *memory;
	float x;
	int status;

	EXPECT(tutti_alloc(job, 4096, -1, &memory) == 0 && tutti_window_open(job, "w", memory, 4096, &w) == 0);
	for (int i = 0; i < 4; i++) {
		pid_t pid = my_rank == 1 ? fork() : -1;
		if (pid == 0) {
			bool good = may_be_inherited(job, w, memory);
			if (i % 2 && SLOW == 1) /* the leak checker stumbles over its parent's threads */
				exit(!good);
			_exit(!good);
		}
		for (int k = 0; k < 20; k++) {
			x = 1;
			EXPECT(tutti_allreduce(job, &x, &x, 1, TUTTI_F32, TUTTI_SUM, NULL) == 0 && x == 3);
		}
		EXPECT(my_rank != 1 || (waitpid(pid, &status, 0) == pid && status == 0));
	}
	EXPECT(my_rank != 1 || count_sockets() > 0);
	tutti_window_close(w);
	tutti_free(job, memory);
}

static void test_fork(void)
{
	start((struct crew){ .size = 3, .timeout_ms = 10000, .program = program_fork });
	finish(NOBODY);
}

/* A living child's parent is killed: the others hear of that at once, before TUTTI_SILENCE. Its port is free. */
static void program_orphan(tutti *job)
{
	if (my_rank == victim && !fork()) {
		prctl(PR_SET_PDEATHSIG, 0);
		mine->child = getpid();
		sleep_ms(2 * HANG_MS);
		_exit(0);
	}
	while (my_rank == victim && !mine->child)
		sleep_ms(1); /* the child has closed its copies of the sockets */
	kind = &kinds[1];
	call_until_it_fails(job);
}

static bool is_free(int port)
{
	struct sockaddr_in a = { .sin_family = AF_INET, .sin_port = htons((uint16_t)port),
		                 .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	int fd = socket(AF_INET, SOCK_STREAM, 0), on = 1;

	setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
	bool is = !bind(fd, (struct sockaddr *)&a, sizeof a) && !listen(fd, 1);
	close(fd);
	return is;
}

static void test_orphan(void)
{
	enum { DEADLINE = 20000 * SLOW, AT_ONCE = 2000 * SLOW };

	for (victim = 0; victim < 2; victim++) {
		start((struct crew){ .size = 3, .timeout_ms = DEADLINE, .program = program_orphan });
		await(10, 0, NOBODY);
		WANT(silence_for(DEADLINE, false) > 2 * AT_ONCE, "the silence is too short to tell anything");
		uint64_t then = tt_now();
		strike(victim, SIGKILL);
		finish(victim);
		for (int i = 0; i < crew.size; i++) {
			const struct report *r = &board->of[i];
			WANT(i == victim || (r->err == -ECONNRESET && names_only(r->why, victim)),
			     "rank %d got %d: %s", i, r->err, r->why);
			WANT(i == victim || r->ended - then < AT_ONCE * TT_MS, "rank %d took %llu ms", i,
			     (unsigned long long)((r->ended - then) / TT_MS));
		}
		WANT(is_free(crew.port), "the child of rank %d holds port %d", victim, crew.port);
		WANT(board->of[victim].child > 0, "rank %d has no child", victim);
		if (board->of[victim].child > 0)
			kill(board->of[victim].child, SIGKILL);
	}
}

/* ---- told of changes; ended by a signal ---- */

/* Rank 0 polls for what happens to the others, and asks nothing of them. */
static void program_watch(tutti *job)
{
	tutti_change c = { 0 };
	struct pollfd p = { .events = POLLIN };

	EXPECT(tutti_barrier(job, NULL) == 0);
	p.fd = tutti_group_watch(job, NULL, NULL);
	EXPECT(p.fd >= 0 && tutti_group_next(job, &c) == 0 && poll(&p, 1, 0) == 0);
	reach(1);
	uint64_t started = tt_now();
	if (poll(&p, 1, HANG_MS) == 1 && tutti_group_next(job, &c) == 1) {
		EXPECT(c.rank == victim && c.what == TUTTI_GONE && c.err == -ECONNRESET && names_only(c.why, victim));
		EXPECT(tutti_group_next(job, &c) == 0 && poll(&p, 1, 0) == 0);
		record(c.err, started);
		reach(2);
	}
	await_go(1);
}

static void strike_watched(int signal_number, uint64_t bound_ms)
{
	victim = 2;
	start((struct crew){ .size = 5, .timeout_ms = 3000 * SLOW, .program = program_watch });
	await(0, 1, NOBODY);
	uint64_t then = tt_now(), slowest = 0;
	strike(victim, signal_number);
	await(0, 2, victim);
	board->go = 1;
	for (int i = 0; i < crew.size; i++)
		if (i != victim)
			slowest = tt_max(slowest, (board->of[i].ended - then) / TT_MS);
	WANT(slowest < bound_ms * SLOW, "the last one knew after %llu ms", (unsigned long long)slowest);
	if (signal_number == SIGSTOP)
		strike(victim, SIGKILL);
	finish(victim);
}

static void test_watch_killed(void) { strike_watched(SIGKILL, 2000); } /* at once */
static void test_watch_stopped(void) { strike_watched(SIGSTOP, 3 * 300 + 2000); }

/* Rank 1 has started a large put when it is asked to end; the others learn that it left, and the put has landed. */
static void program_term(tutti *job)
{
	char *memory = calloc(FLOATS, sizeof(float)), *mine_too = malloc(FLOATS * sizeof(float));
	tutti_change c = { 0 };
	tutti_window *w;
	tutti_op op;

	memset(mine_too, 7, FLOATS * sizeof(float));
	if (!getenv("TUTTI_TERM"))
		EXPECT(tutti_leave_on(job, SIGTERM) == 0 && tutti_leave_on(job, SIGKILL) == -EINVAL);
	EXPECT(tutti_group_watch(job, NULL, NULL) >= 0);
	EXPECT(tutti_window_open(job, "term", memory, FLOATS * sizeof(float), &w) == 0);
	EXPECT(tutti_barrier(job, NULL) == 0);
	if (my_rank == victim) {
		EXPECT(tutti_put(w, 0, 0, mine_too, FLOATS * sizeof(float), &op) == 0);
		raise(SIGTERM);
		for (;;)
			pause();
	}
	while (tutti_group_next(job, &c) == 0 || c.rank != victim) /* others that have heard of it leave, too */
		sleep_ms(1);
	EXPECT(c.what == TUTTI_LEFT && c.err == -ENOTCONN);
	EXPECT(my_rank || (memory[0] == 7 && memory[FLOATS * sizeof(float) - 1] == 7));
	EXPECT(tutti_barrier(job, NULL) == -ENOTCONN && strstr(tutti_why(), "has left"));
	tutti_window_close(w);
	free(memory);
	free(mine_too);
}

static void test_term(void)
{
	victim = 1;
	start((struct crew){ .size = 4, .timeout_ms = 10000, .program = program_term });
	finish(victim);
	WANT(WIFSIGNALED(crew.status[victim]) && WTERMSIG(crew.status[victim]) == SIGTERM, "status 0x%x",
	     crew.status[victim]);
}

/* As a program does that becomes a daemon, or starts another one by hand. The thread sanitizer would call close() of a
 * file that the job's thread waits for a race. */
static void close_files(void)
{
	for (int fd = STDERR_FILENO + 1; fd < 256; fd++)
		syscall(SYS_close, fd);
}

static void program_term_without_files(tutti *job)
{
	EXPECT(tutti_leave_on(job, SIGTERM) == 0);
	close_files();
	raise(SIGTERM);
	sleep_ms(20000);
}

/* The signal is not lost with the files. */
static void test_term_without_files(void)
{
	victim = 0;
	start((struct crew){ .size = 1, .timeout_ms = 10000, .program = program_term_without_files });
	finish(victim);
	WANT(WIFSIGNALED(crew.status[victim]) && WTERMSIG(crew.status[victim]) == SIGTERM, "status 0x%x",
	     crew.status[victim]);
}

/* The same without a word from the program. */
static void test_term_setting(void)
{
	setenv("TUTTI_TERM", "leave", 1);
	test_term();
	unsetenv("TUTTI_TERM");
}

static atomic_int handled;
static void handle(int number) { handled = number; }

/* A program that asks goes on for as long as it likes; all agree to end at one step. */
static void program_term_asked(tutti *job)
{
	struct sigaction own = { .sa_handler = handle }, now;
	int32_t end = 0;

	sigaction(SIGTERM, &own, NULL);
	EXPECT(tutti_leave_asked(job, SIGTERM) == 0 && tutti_leave_asked(job, SIGKILL) == -EINVAL);
	for (int step = 0; !end; step++) {
		if (my_rank == victim && step == 5)
			raise(SIGTERM);
		end = tutti_leave_asked(job, SIGTERM);
		EXPECT(end == (my_rank == victim && step == 5));
		EXPECT(tutti_allreduce(job, &end, &end, 1, TUTTI_I32, TUTTI_MAX, NULL) == 0 && end == (step == 5));
	}
	EXPECT(tutti_barrier(job, NULL) == 0 && !handled);
	if (my_rank == victim)
		raise(SIGTERM);
	EXPECT(handled == (my_rank == victim ? SIGTERM : 0)); /* the second one does what it did before */
	tutti_leave(job);
	EXPECT(sigaction(SIGTERM, NULL, &now) == 0 && now.sa_handler == handle);
	exit(0);
}

static void test_term_asked(void)
{
	victim = 1;
	start((struct crew){ .size = 3, .timeout_ms = 10000, .program = program_term_asked });
	finish(NOBODY);
}

/* With TUTTI_TERM=leave the second one leaves in order. */
static void program_term_both(tutti *job)
{
	EXPECT(tutti_leave_asked(job, SIGTERM) == 0 && tutti_barrier(job, NULL) == 0);
	if (my_rank == victim) {
		raise(SIGTERM);
		EXPECT(tutti_leave_asked(job, SIGTERM) == 1 && tutti_barrier(job, NULL) == 0);
		raise(SIGTERM);
		for (;;)
			pause();
	}
	EXPECT(tutti_barrier(job, NULL) == 0 && tutti_barrier(job, NULL) == -ENOTCONN);
}

static void test_term_both(void)
{
	victim = 1;
	setenv("TUTTI_TERM", "leave", 1);
	start((struct crew){ .size = 2, .timeout_ms = 10000, .program = program_term_both });
	unsetenv("TUTTI_TERM");
	finish(victim);
	WANT(WIFSIGNALED(crew.status[victim]) && WTERMSIG(crew.status[victim]) == SIGTERM, "status 0x%x",
	     crew.status[victim]);
}

/* It is not for programs that have a handler. */
static void program_term_own(tutti *job)
{
	struct sigaction now;

	EXPECT(sigaction(SIGTERM, NULL, &now) == 0 && now.sa_handler == handle);
	EXPECT(tutti_barrier(job, NULL) == 0);
	raise(SIGTERM);
	EXPECT(handled == SIGTERM && tutti_barrier(job, NULL) == 0);
}

static void test_term_setting_own(void)
{
	signal(SIGTERM, handle);
	setenv("TUTTI_TERM", "leave", 1);
	start((struct crew){ .size = 2, .timeout_ms = 10000, .program = program_term_own });
	unsetenv("TUTTI_TERM");
	signal(SIGTERM, SIG_DFL);
	finish(NOBODY);
}

/* A handler of the program's own is called when the goodbyes are said, and the program can leave the job as ever.
 * Another job then hears of the next signal. */
static void raise_and_await(void)
{
	handled = 0;
	kill(getpid(), SIGTERM);
	for (int i = 0; i < HANG_MS && !handled; i++)
		sleep_ms(1);
	EXPECT(handled == SIGTERM);
}

static void leave_another_on_term(void)
{
	tutti_config c = { .ranks = 1, .boot = "127.0.0.1:1", .newcomers = TUTTI_NEVER, .secret = other_secret };
	tutti *other;

	EXPECT(tutti_join(&c, &other) == 0 && tutti_leave_on(other, SIGTERM) == 0);
	raise_and_await();
	EXPECT(tutti_barrier(other, NULL) == -ESHUTDOWN);
	tutti_leave(other);
}

static void program_term_handled(tutti *job)
{
	struct sigaction own = { .sa_handler = handle }, now;

	EXPECT(tutti_barrier(job, NULL) == 0);
	sigaction(SIGTERM, &own, NULL);
	EXPECT(tutti_leave_on(job, SIGTERM) == 0);
	if (my_rank == victim) {
		raise_and_await();
		EXPECT(tutti_barrier(job, NULL) == -ESHUTDOWN && strstr(tutti_why(), "signal 15"));
		leave_another_on_term();
	} else {
		EXPECT(tutti_barrier(job, NULL) == -ENOTCONN);
		tutti_leave(job);
		EXPECT(sigaction(SIGTERM, NULL, &now) == 0 && now.sa_handler == handle);
		exit(0);
	}
}

static void test_term_handled(void)
{
	victim = 2;
	start((struct crew){ .size = 3, .timeout_ms = 10000, .program = program_term_handled });
	finish(NOBODY);
}

/* A signal that comes when its job is as good as left takes the effect that it has then. */
static void program_term_late(tutti *job)
{
	struct sigaction own = { .sa_handler = handle };
	tutti_config c = { .ranks = 1, .boot = "127.0.0.1:1", .newcomers = TUTTI_NEVER, .secret = other_secret };
	tutti *other;

	(void)job;
	sigaction(SIGTERM, &own, NULL);
	for (int i = 0; i < 20; i++) {
		handled = 0;
		EXPECT(tutti_join(&c, &other) == 0 && tutti_leave_on(other, SIGTERM) == 0);
		raise(SIGTERM);
		tutti_leave(other); /* the thread may hardly have heard of it */
		EXPECT(handled == SIGTERM);
	}
}

static void test_term_late(void)
{
	victim = NOBODY;
	start((struct crew){ .size = 1, .timeout_ms = 2000, .program = program_term_late });
	finish(NOBODY);
}

/* A collective that the others never start cannot be finished: a second signal ends the process at once, one alone
 * after TUTTI_SILENCE. */
static void program_term_stuck(tutti *job)
{
	tutti_op op;

	EXPECT(tutti_barrier(job, NULL) == 0);
	if (my_rank == victim) {
		pid_t child = fork();
		if (child == 0) { /* it is no rank: the signal ends it, and nobody says goodbye for it */
			EXPECT(tutti_leave_on(job, SIGTERM) == -ECHILD);
			for (;;)
				pause();
		}
		int status = 0;
		EXPECT(tutti_leave_on(job, SIGTERM) == 0 && tutti_barrier(job, &op) == 0);
		kill(child, SIGTERM);
		EXPECT(waitpid(child, &status, 0) == child && WIFSIGNALED(status));
		reach(1);
		for (;;)
			pause();
	}
	await_go(1);
}

static void end_stuck(bool two)
{
	enum { DEADLINE = 20000, SILENCE = DEADLINE * 3 / 10 }; /* the second signal ends it long before half of this */

	victim = 0;
	start((struct crew){ .size = 3, .timeout_ms = DEADLINE, .program = program_term_stuck });
	await_rank(victim, 1);
	uint64_t then = tt_now();
	strike(victim, SIGTERM);
	sleep_ms(300);
	if (two)
		strike(victim, SIGTERM);
	for (int ms = 0; ms < HANG_MS && reap_some() == crew.size; ms++)
		sleep_ms(1);
	uint64_t took = (tt_now() - then) / TT_MS;
	WANT(two ? took < SILENCE / 2 * SLOW : took >= SILENCE && took < DEADLINE,
	     "it took %llu ms", (unsigned long long)took);
	board->go = 1;
	finish(victim);
	WANT(WTERMSIG(crew.status[victim]) == SIGTERM, "status 0x%x", crew.status[victim]);
}

static void test_term_stuck(void)
{
	end_stuck(false);
	end_stuck(true);
}

/* ---- two jobs in one process ---- */

static int second_port;

static void use_both(tutti *a, tutti *b)
{
	uint64_t in_a = 10 + (uint64_t)my_rank, in_b = 20 + (uint64_t)my_rank, v = 0;
	float *x = calloc(100000, sizeof *x), y[2] = { 0, (float)tutti_rank(b) };
	tutti_window *wa = NULL, *wb = NULL;
	tutti_op op[2];

	x[99999] = (float)my_rank;
	EXPECT(tutti_window_open(a, "same name", &in_a, 8, &wa) == 0 &&
	       tutti_window_open(b, "same name", &in_b, 8, &wb) == 0);
	EXPECT(tutti_allreduce(a, x, x, 100000, TUTTI_F32, TUTTI_SUM, &op[0]) == 0 &&
	       tutti_allreduce(b, y, y, 2, TUTTI_F32, TUTTI_MAX, &op[1]) == 0);
	EXPECT(tutti_wait(&op[1], -1) == 0 && y[1] == 2);
	EXPECT(tutti_wait(&op[0], -1) == 0 && x[99999] == 3);
	EXPECT(tutti_get(wa, 0, 0, &v, 8, NULL) == 0 && v == 10);
	EXPECT(tutti_get(wb, 0, 0, &v, 8, NULL) == 0 && v == 22); /* rank 0 of b is rank 2 of a */
	EXPECT(tutti_barrier(a, NULL) == 0 && tutti_barrier(b, NULL) == 0);
	tutti_window_close(wa);
	tutti_window_close(wb);
	free(x);
}

static void program_two_jobs(tutti *a)
{
	char boot[32];
	tutti_config c = { .rank = 2 - my_rank, .ranks = 3, .boot = boot, .secret = other_secret };
	float x = 1;
	tutti *b;

	snprintf(boot, sizeof boot, "127.0.0.1:%d", second_port);
	EXPECT(tutti_join(&c, &b) == 0);
	EXPECT(tutti_rank(b) == 2 - my_rank && tutti_size(b) == 3);
	for (int i = 0; i < 10; i++)
		use_both(a, b);
	tutti_leave(b);
	for (int i = 0; i < 10; i++)
		EXPECT(tutti_allreduce(a, &x, &x, 1, TUTTI_F32, TUTTI_AVERAGE, NULL) == 0 && x == 1);
}

static void test_two_jobs(void)
{
	second_port = free_port();
	start((struct crew){ .size = 3, .timeout_ms = 10000, .program = program_two_jobs });
	finish(NOBODY);
}

/* ---- asked for their stats ---- */

/* The signal comes while both compute, then while rank 0 waits, then while both call all the time. All goes on. */
static void program_asked(tutti *job)
{
	float told = 0;

	reach(1);
	await_go(1);
	if (my_rank == 1)
		await_go(2);
	reach(2);
	EXPECT(tutti_barrier(job, NULL) == 0);
	while (told == 0) {
		told = my_rank == 0 && board->go == 3;
		EXPECT(tutti_allreduce(job, &told, &told, 1, TUTTI_F32, TUTTI_MAX, NULL) == 0);
		mine->rounds++;
	}
}

static void ask(int rank, int nth)
{
	strike(rank, SIGUSR1);
	for (int ms = 0; ms < HANG_MS && logged(rank, "tutti: stats of rank", false) < nth; ms++)
		sleep_ms(1);
	int n = logged(rank, "tutti: stats of rank", false);
	WANT(n == nth, "rank %d has written %d tables, not %d", rank, n, nth);
}

static void test_asked(void)
{
	start((struct crew){ .size = 2, .timeout_ms = 20000, .program = program_asked, .capture = true });
	await(0, 1, NOBODY);
	ask(0, 1);
	ask(1, 1);
	WANT(logged(0, "barrier", false) == 0, "rank 0 counts a barrier before it has called one");
	board->go = 1;
	await_rank(0, 2);
	sleep_ms(20); /* now it waits */
	ask(0, 2);
	board->go = 2;
	await(5, 2, NOBODY);
	ask(0, 3);
	ask(1, 2);
	WANT(logged(0, "barrier", false) == 1 && logged(1, "all-reduce", false) == 1, "tables lack lines");
	board->go = 3;
	finish(NOBODY);
}

/* Until this rank has given up shared memory, since the other one does not answer there in time. */
static void await_late(tutti *job, const struct tt_member *other)
{
	bool late = !strstr(wires, "shm");

	for (int ms = 0; ms < HANG_MS && !late; ms++) {
		sleep_ms(1);
		tt_lock(job->job);
		late = other->late;
		tt_unlock(job->job);
	}
	EXPECT(late);
}

/* Rank 6 stands still while rank 3 connects, for longer than rank 3 waits for an answer in shared memory. They use that
 * all the same, when rank 6 goes on. */
static void program_late(tutti *job)
{
	const struct tt_member *other = tt_member(job->job, 6);
	tutti_window *w;
	char bytes[8] = "", over[8] = "";

	EXPECT(tutti_window_open(job, "late", bytes, sizeof bytes, &w) == 0);
	EXPECT(my_rank != 3 || other->state == TT_AWAY);
	reach(1);
	await_go(1);
	if (my_rank == 3) {
		tutti_op op = { 0 };
		EXPECT(tutti_put(w, 6, 0, "x", 1, &op) == 0);
		await_late(job, other);
		reach(2);
		EXPECT(tutti_wait(&op, -1) == 0);
		tt_lock(job->job);
		EXPECT(other->state == TT_UP);
		snprintf(over, sizeof over, "%s", other->link->peer->net->transport->name);
		tt_unlock(job->job);
		EXPECT(!strncmp(wires, over, strlen(over)));
		reach(3);
	}
	EXPECT(tutti_barrier(job, NULL) == 0);
	tutti_window_close(w);
}

static void test_late(void)
{
	enum { DEADLINE = 12000 * SLOW };

	setenv("TUTTI_LOG", "info", 1);
	start((struct crew){ .size = 8, .timeout_ms = DEADLINE, .program = program_late, .capture = true });
	await(0, 1, NOBODY);
	unsetenv("TUTTI_LOG");
	strike(6, SIGSTOP);
	board->go = 1;
	await_rank(3, 2);
	strike(6, SIGCONT);
	await_rank(3, 3);
	int again = logged(3, "tries what is better once more", false);
	WANT(again == !!strstr(wires, "shm"), "rank 3 tries shared memory again %d times", again);
	finish(NOBODY);
}

static CU_TestInfo kill_tests[] = {
	{ "in a large all-reduce", test_kill_large },
	{ "in an all-reduce in place", test_kill_in_place },
	{ "in a reduce-scatter, an all-gather in place", test_kill_blocks },
	{ "in others", test_kill_others },
	{ "in an exchange of messages", test_kill_messages },
	{ "exit without a word", test_exit },
	{ "its child lives on", test_orphan },
	{ "and started again", test_restarted },
	{ "rank 0, and two newcomers", test_two_newcomers },
	{ "rank 0, and a rank is replaced", test_replaced },
	{ "rank 0, and a minority refuses", test_refusing },
	{ "half of a group", test_minority },
	CU_TEST_INFO_NULL,
};
static CU_TestInfo stop_tests[] = {
	{ "in a large all-reduce", test_stop_large },
	{ "in an all-reduce in place", test_stop_in_place },
	{ "in a reduce-scatter, an all-gather in place", test_stop_blocks },
	{ "in a small all-reduce", test_stop_small },
	{ "in messages of all to all", test_stop_messages },
	{ "in a broadcast", test_stop_broadcast },
	{ "get from it", test_get_stopped },
	{ "put to it", test_put_stopped },
	{ "busy, not stopped", test_busy },
	{ "with the key of a window that closes", test_close_held },
	{ "holding pointers", test_evicted },
	{ "holding pointers, let be", test_not_evicted },
	{ "while another rank connects", test_late },
	CU_TEST_INFO_NULL,
};
static CU_TestInfo stranger_tests[] = {
	{ "noise and half handshakes", test_strangers },
	{ "logged once", test_logged_once },
	{ "unread log", test_unread_log },
	{ "a rank that is taken", test_same_rank },
	{ "a crowd", test_crowd },
	{ "a silent crowd", test_silent_crowd },
	{ "a babbling crowd", test_babbling_crowd },
	CU_TEST_INFO_NULL,
};
static CU_TestInfo leave_tests[] = {
	{ "in turn", test_leave },
	{ "at once", test_leave_at_once },
	{ "a fork's child", test_fork },
	{ "two jobs", test_two_jobs },
	CU_TEST_INFO_NULL,
};
/* ---- out of files ---- */

static void limit_files(rlim_t most)
{
	struct rlimit limit;

	getrlimit(RLIMIT_NOFILE, &limit);
	limit.rlim_cur = most;
	setrlimit(RLIMIT_NOFILE, &limit);
}

/* The standard streams keep their numbers. A higher limit would not do: another rank's connection may end here at any
 * time, one that crossed a connection of this rank say, and gives its files back. */
enum { NO_FILES = STDERR_FILENO + 1 };

static void need_files(tutti *job, tutti_window *w)
{
	struct rlimit was;
	uint64_t then;

	EXPECT(tutti_put(w, 0, 0, "x", 1, NULL) == 0); /* that connection is there: the others hear of it all */
	getrlimit(RLIMIT_NOFILE, &was);
	then = tt_now();
	limit_files(NO_FILES);
	EXPECT(tutti_put(w, 2, 0, "x", 1, NULL) == -EMFILE && strstr(tutti_why(), "ulimit -n"));
	EXPECT(tt_now() - then < (uint64_t)crew.timeout_ms / 4 * TT_MS);
	reach(1); /* from now on the others may try to connect to this one */
	await_go(1);
	then = tt_now();
	EXPECT(tutti_barrier(job, NULL) == -EMFILE && strstr(tutti_why(), "barrier: this process has no file left"));
	EXPECT(tt_now() - then < (uint64_t)crew.timeout_ms / 4 * TT_MS);
	limit_files(was.rlim_cur);
}

static void program_files(tutti *job)
{
	tutti_window *w;
	char bytes[8] = "";

	EXPECT(tutti_window_open(job, "w", bytes, sizeof bytes, &w) == 0);
	if (my_rank == 1) {
		need_files(job, w);
	} else {
		/* where they need messages, rank 1 tells rank 5 in its last round, over a connection that rank 5 makes:
		 * that may be all that 5 waits for */
		reach(1);
		await_go(1);
		int err = tutti_barrier(job, NULL);
		EXPECT(err == -ECONNABORTED || (my_rank == 5 && !err));
	}
	reach(2);
	await_go(2);
	EXPECT(tutti_barrier(job, NULL) == 0);
	if (my_rank == 1)
		EXPECT(tutti_put(w, 2, 0, "x", 1, NULL) == 0);
	EXPECT(tutti_barrier(job, NULL) == 0);
	tutti_window_close(w);
}

/* Rank 1 cannot connect, and says so; nobody is evicted for it, and with files it goes on. */
static void test_files(void)
{
	start((struct crew){ .size = 6, .timeout_ms = 4000 * SLOW, .program = program_files });
	for (int stage = 1; stage <= 2; stage++) {
		await(0, stage, NOBODY);
		board->go = stage;
	}
	finish(NOBODY);
}

static void program_shut(tutti *job)
{
	struct rlimit was;

	EXPECT(tutti_barrier(job, NULL) == 0);
	getrlimit(RLIMIT_NOFILE, &was);
	if (my_rank == 1)
		limit_files(NO_FILES);
	reach(1);
	await_go(1);
	limit_files(was.rlim_cur);
	EXPECT(tutti_barrier(job, NULL) == 0);
}

/* Rank 1 tries again and again to accept a stranger, for which it has no file; one line of its log tells of that. */
static void test_shut_door(void)
{
	start((struct crew){ .size = 2, .timeout_ms = 10000, .program = program_shut, .capture = true });
	await(0, 1, NOBODY);
	int fd = dial(1);
	say(fd, "T", 1);
	sleep_ms(900);
	bool once = logged(1, "cannot accept", false) == 1;
	WANT(once, "%d lines tell of it", logged(1, "cannot accept", !once));
	board->go = 1;
	finish(NOBODY);
	close(fd);
}

/* No file of the lower half is left to rank 1, but for what connections of the rendezvous give back: where the wire of
 * one host is left out for that, the others are reached all the same, on either end. */
static void program_few_files(tutti *job)
{
	tutti_window *w;
	char bytes[8] = "";

	EXPECT(tutti_window_open(job, "w", bytes, sizeof bytes, &w) == 0);
	if (my_rank == 1) {
		int next = dup(0);
		close(next);
		limit_files(2 * (rlim_t)next);
	}
	reach(1);
	await_go(1);
	for (int i = 0; i < tutti_size(job); i++)
		if (i != my_rank && (i == 1 || my_rank == 1))
			EXPECT(tutti_put(w, i, 0, "x", 1, NULL) == 0);
	EXPECT(tutti_barrier(job, NULL) == 0);
	tutti_window_close(w);
}

static void test_few_files(void)
{
	start((struct crew){ .size = 6, .timeout_ms = 4000 * SLOW, .program = program_few_files });
	await(0, 1, NOBODY);
	board->go = 1;
	finish(NOBODY);
}

static CU_TestInfo file_tests[] = {
	{ "no file left", test_files },
	{ "no file for a stranger", test_shut_door },
	{ "few files left", test_few_files },
	CU_TEST_INFO_NULL,
};
static CU_TestInfo stats_tests[] = {
	{ "asked for by a signal", test_asked },
	CU_TEST_INFO_NULL,
};
static CU_TestInfo told_tests[] = {
	{ "of a crash", test_watch_killed },
	{ "of a silence", test_watch_stopped },
	CU_TEST_INFO_NULL,
};
static CU_TestInfo signal_tests[] = {
	{ "leaves in order", test_term },
	{ "leaves without files", test_term_without_files },
	{ "TUTTI_TERM=leave", test_term_setting },
	{ "a signal that the program asks for", test_term_asked },
	{ "asked for, and TUTTI_TERM=leave", test_term_both },
	{ "TUTTI_TERM=leave and a handler", test_term_setting_own },
	{ "the program's own handler", test_term_handled },
	{ "when its job is left", test_term_late },
	{ "cannot finish; twice", test_term_stuck },
	CU_TEST_INFO_NULL,
};
static CU_SuiteInfo suites[] = {
	{ "told", NULL, NULL, NULL, NULL, told_tests },
	{ "signals", NULL, NULL, NULL, NULL, signal_tests },
	{ "killed", NULL, NULL, NULL, NULL, kill_tests },
	{ "stopped", NULL, NULL, NULL, NULL, stop_tests },
	{ "strangers", NULL, NULL, NULL, NULL, stranger_tests },
	{ "leaving", NULL, NULL, NULL, NULL, leave_tests },
	{ "files", NULL, NULL, NULL, NULL, file_tests },
	{ "stats", NULL, NULL, NULL, NULL, stats_tests },
	CU_SUITE_INFO_NULL,
};

int main(int argc, char **argv) { return run_over_wires(suites, argc, argv); }
