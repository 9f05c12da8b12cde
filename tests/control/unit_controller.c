/* unit_controller.c - controllers and queues of batches: what they promise, on sim, TCP and shared memory; then ranks
 * that die at any moment, on sim over seeds */
#include "control/control_private.h"
#include "tests/harness/cunit_main.h"
#include "tests/harness/ranks.h"
#include <sys/resource.h>

enum { SEEDS = TT_TSAN ? 5 : 10, KILLS = TT_TSAN ? 30 : 150 };
enum { RANKS = 4, CONTROLLER = 1, TIMES = 20, BATCHES = 60, COUNT = 500, DEPTH = 5 };

static atomic_int inside, entered, got_batch[BATCHES], redelivered;

static void run(struct ranks r)
{
	inside = entered = 0;
	for (int i = 0; i < BATCHES; i++)
		got_batch[i] = 0;
	r.size = RANKS;
	CU_ASSERT_EQUAL(run_ranks(r), 0);
}

static void on_sim(void (*program)(tutti *), uint64_t seeds, int timeout_ms)
{
	for (uint64_t seed = 0; seed < seeds; seed++)
		run((struct ranks){ .wire = "sim", .seed = seed, .timeout_ms = timeout_ms, .program = program });
}

static void on_wires(void (*program)(tutti *))
{
	on_sim(program, SEEDS, 0);
	run((struct ranks){ .wire = "tcp", .program = program });
	run((struct ranks){ .wire = "shm", .program = program });
}

static tutti_controller *open_controller(tutti *job)
{
	tutti_controller *c = NULL;

	CHECK(tutti_controller_open(job, "boss", CONTROLLER, &c) == 0);
	return c;
}

static bool why_has(const char *word) { return strstr(tutti_why(), word) != NULL; }

/* ---- asking ---- */

struct book { /* the controller's */
	int asked[RANKS], done[RANKS], gone[RANKS];
	tutti_controller *c;
};

/* Gives a request back, as often as its first byte says. */
static int echo(const tutti_request *r, void *answer, size_t room, void *arg)
{
	struct book *b = arg;
	const char *text = r->data;

	b->asked[r->worker] += r->what == TUTTI_JOINED;
	b->done[r->worker] += r->what == TUTTI_LEFT;
	b->gone[r->worker] += r->what == TUTTI_GONE;
	if (r->what != TUTTI_JOINED || !r->bytes)
		return 0;
	if (text[0] == 'f')
		return snprintf(answer, room, "no such thing as %.*s", (int)r->bytes, text) < 0 ? 0 : -ENOENT;
	if (text[0] == 'q')
		return -EBADF;
	if (text[0] == 's')
		tutti_controller_stop(b->c);
	if (text[0] == 'w')
		pass_time(500 * TT_MS);
	memcpy(answer, text, r->bytes);
	return (int)r->bytes;
}

/* The answer is the same. */
static int say(tutti_controller *c, const char *text, int timeout_ms)
{
	size_t len = strlen(text);
	char got[8];
	int err = tutti_controller_ask(c, text, len, got, sizeof got, NULL, timeout_ms);

	CHECK(err || !memcmp(got, text, len));
	return err;
}

static void ask_much(tutti_controller *c, int rank)
{
	char *text = malloc(2 * TUTTI_REQUEST_MAX), *got = malloc(TUTTI_REQUEST_MAX);
	size_t n;

	for (int i = 0; i < TIMES; i++) {
		size_t bytes = (size_t)i * TUTTI_REQUEST_MAX / (TIMES - 1);
		memset(text, 'A' + (rank + i) % 26, bytes);
		CHECK(tutti_controller_ask(c, text, bytes, got, TUTTI_REQUEST_MAX, &n, -1) == 0);
		CHECK(n == bytes && !memcmp(text, got, n));
	}
	CHECK(tutti_controller_ask(c, "file", 4, got, 100, &n, -1) == -ENOENT && why_has("no such thing as file") &&
	      why_has("rank 1"));
	CHECK(tutti_controller_ask(c, "quit", 4, got, 100, &n, -1) == -EBADF && why_has("returned"));
	CHECK(tutti_controller_ask(c, "long", 4, got, 3, &n, -1) == -EMSGSIZE && n == TUTTI_REQUEST_MAX);
	CHECK(tutti_controller_ask(c, text, TUTTI_REQUEST_MAX + 1, got, 100, &n, -1) == -EMSGSIZE);
	CHECK(tutti_controller_ask(c, NULL, 1, got, 100, &n, -1) == -EINVAL);
	CHECK(tutti_controller_ask(c, "okay", 4, got, 4, NULL, -1) == 0 && !memcmp(got, "okay", 4));
	free(text);
	free(got);
}

static void ask(tutti *job)
{
	tutti_controller *c = open_controller(job), *again;
	int me = tutti_rank(job);
	struct book b = { .c = c };

	CHECK(tutti_controller_open(job, "boss", CONTROLLER, &again) == -EEXIST);
	CHECK(tutti_controller_open(job, "", CONTROLLER, &again) == -EINVAL);
	CHECK(tutti_controller_open(job, "else", RANKS, &again) == -EINVAL);
	if (me == CONTROLLER) {
		CHECK(tutti_controller_ask(c, NULL, 0, NULL, 0, NULL, -1) == -EINVAL &&
		      tutti_controller_lock(c, 0) == -EINVAL);
		CHECK(tutti_controller_serve(c, NULL, NULL) == -EINVAL);
		CHECK(tutti_controller_serve(c, echo, &b) == 0);
		for (int i = 0; i < RANKS; i++) {
			CHECK(b.asked[i] == (i == me ? 0 : TIMES + 4) && b.done[i] == (i != me) && !b.gone[i]);
		}
	} else {
		CHECK(tutti_controller_serve(c, echo, &b) == -EINVAL);
		ask_much(c, me);
		if (me != 0) /* closing says so, too */
			CHECK(tutti_controller_done(c) == 0 && tutti_controller_done(c) == -EINVAL);
		if (me != 0)
			CHECK(tutti_controller_ask(c, NULL, 0, NULL, 0, NULL, -1) == -EINVAL && why_has("done"));
	}
	tutti_controller_close(c);
}

static void test_ask(void) { on_wires(ask); }

static void stop(tutti *job)
{
	tutti_controller *c = open_controller(job);
	struct book b = { .c = c };
	int err, me = tutti_rank(job);

	if (me == CONTROLLER) {
		CHECK(tutti_controller_serve(c, echo, &b) == 0);
	} else if (me == 0) {
		CHECK(say(c, "stop", -1) == 0);
		CHECK(say(c, "more", -1) == -ESHUTDOWN && why_has("rank 1"));
	} else {
		while (!(err = say(c, "more", -1)))
			;
		CHECK(err == -ESHUTDOWN);
		CHECK(tutti_controller_lock(c, -1) == -ESHUTDOWN);
	}
	CHECK(tutti_barrier(job, NULL) == 0);
	if (me == CONTROLLER) /* once more: a stop is over then */
		CHECK(tutti_controller_serve(c, echo, &b) == 0 && b.done[0] && b.done[3]);
	else
		pass_time(50 * TT_MS); /* it serves now */
	if (me != CONTROLLER) {
		while ((err = say(c, "more", -1)) == -ESHUTDOWN)
			;
		CHECK(err == 0 && tutti_controller_done(c) == 0);
	}
	CHECK(tutti_barrier(job, NULL) == 0);
	tutti_controller_close(c);
}

static void test_stop(void) { on_wires(stop); }

/* Gives a request up that is with the controller. On a busy machine connecting may take longer than the call. */
static void ask_in_vain(tutti_controller *c, const char *request, int timeout_ms)
{
	int err;

	do
		err = say(c, request, timeout_ms);
	while (err == -ETIMEDOUT && why_has("has not opened it"));
	CHECK(err == -ETIMEDOUT && why_has("rank 1") && why_has("serve"));
}

/* An answer that comes too late is not taken for another one's. */
static void be_late(tutti *job)
{
	tutti_controller *c = open_controller(job);
	struct book b = { .c = c };

	CHECK(tutti_barrier(job, NULL) == 0);
	if (tutti_rank(job) == CONTROLLER) {
		CHECK(tutti_barrier(job, NULL) == 0);
		CHECK(tutti_controller_serve(c, echo, &b) == 0);
		CHECK(b.asked[0] == 2 && b.asked[2] == 2);
	} else {
		ask_in_vain(c, "1", 30);
		CHECK(say(c, "2", 0) == -ETIMEDOUT);
		CHECK(tutti_barrier(job, NULL) == 0);
		CHECK(say(c, "3", -1) == 0);
		CHECK(tutti_controller_done(c) == 0);
	}
	tutti_controller_close(c);
}

static void test_late(void) { on_wires(be_late); }

/* A controller that is stopped answers nothing, not even whether it serves. The call ends in its time all the same. */
static void ask_stopped(tutti *job)
{
	tutti_controller *c = open_controller(job);
	struct book b = { .c = c };

	if (tutti_rank(job) == CONTROLLER) {
		CHECK(tutti_controller_serve(c, echo, &b) == 0);
	} else {
		CHECK(say(c, "1", -1) == 0);
		entered++;
		while (entered < RANKS - 1)
			pass_time(TT_MS);
		bool first = tutti_rank(job) == 0; /* the controller is stopped while it works on that request */
		if (first)
			tt_sim_stop(CONTROLLER, 30 * TT_MS, 1000 * TT_MS);
		else
			pass_time(35 * TT_MS);
		uint64_t since = tt_now();
		CHECK(say(c, first ? "w" : "2", 200) == -ETIMEDOUT && tt_now() - since < 300 * TT_MS);
		CHECK(say(c, "3", -1) == 0 && tutti_controller_done(c) == 0);
	}
	tutti_controller_close(c);
}

static void test_ask_stopped(void) { on_sim(ask_stopped, SEEDS, 10000); }

/* ---- the lock, the first ---- */

static void lock(tutti *job)
{
	tutti_controller *c = open_controller(job);
	struct book b = { .c = c };
	int me = tutti_rank(job);

	if (me == CONTROLLER) {
		CHECK(tutti_controller_serve(c, echo, &b) == 0);
	} else {
		CHECK(tutti_controller_unlock(c) == -EPERM);
		for (int i = 0; i < TIMES; i++) {
			CHECK(tutti_controller_lock(c, -1) == 0);
			CHECK(atomic_fetch_add(&inside, 1) == 0);
			entered++;
			pass_time(20000);
			CHECK(tutti_controller_lock(c, 0) == -EDEADLK);
			CHECK(atomic_fetch_sub(&inside, 1) == 1);
			CHECK(tutti_controller_unlock(c) == 0);
			CHECK(tutti_controller_unlock(c) == -EPERM && why_has("no lock"));
		}
		CHECK(tutti_controller_done(c) == 0);
	}
	CHECK(tutti_barrier(job, NULL) == 0);
	CHECK(entered == (RANKS - 1) * TIMES);
	tutti_controller_close(c);
}

static void test_lock(void) { on_wires(lock); }

/* One has it; the second is refused, at once or in its time; the third waits until the first is done, without
 * unlocking. */
static void contend(tutti_controller *c, int me)
{
	if (me == 0) {
		CHECK(tutti_controller_lock(c, -1) == 0);
		inside = 1;
		while (!entered)
			pass_time(TT_MS);
		return;
	}
	while (!inside)
		pass_time(TT_MS);
	if (me == 3) {
		CHECK(tutti_controller_lock(c, -1) == 0 && entered == 1);
		CHECK(tutti_controller_unlock(c) == 0);
		return;
	}
	uint64_t since = tt_now();
	CHECK(tutti_controller_lock(c, 0) == -EBUSY && why_has("rank 0"));
	CHECK(tutti_controller_lock(c, 60) == -EBUSY && tt_now() - since >= 60 * TT_MS);
	entered = 1;
}

static void wait_for_lock(tutti *job)
{
	tutti_controller *c = open_controller(job);
	struct book b = { .c = c };

	if (tutti_rank(job) == CONTROLLER) {
		CHECK(tutti_controller_serve(c, echo, &b) == 0);
	} else {
		contend(c, tutti_rank(job));
		CHECK(tutti_controller_done(c) == 0);
	}
	tutti_controller_close(c);
}

static void test_wait_for_lock(void) { on_wires(wait_for_lock); }

/* A lock that is granted to one who has given the call up is freed by the next call. */
static void give_lock_up(tutti *job)
{
	CHECK(tutti_group_timeout(job, 100) == 0);
	tutti_controller *c = open_controller(job);
	struct book b = { .c = c };

	tutti_barrier(job, NULL);
	if (tutti_rank(job) == CONTROLLER) {
		while (!entered)
			pass_time(TT_MS);
		CHECK(tutti_controller_serve(c, echo, &b) == 0);
	} else if (tutti_rank(job) == 0) {
		CHECK(tutti_controller_lock(c, 50) == -ETIMEDOUT); /* and the group's 100 ms */
		entered = 1;
		while (say(c, "x", -1) == -ETIMEDOUT)
			;
		CHECK(tutti_controller_unlock(c) == -EPERM);
		while (tutti_controller_done(c) == -ETIMEDOUT)
			;
	} else {
		int err;
		pass_time(600 * TT_MS);
		while ((err = tutti_controller_lock(c, 5000)) == -ETIMEDOUT)
			;
		CHECK(err == 0);
		while (tutti_controller_done(c) == -ETIMEDOUT)
			;
	}
	tutti_controller_close(c);
}

static void test_give_lock_up(void) { on_wires(give_lock_up); }

static void be_first(tutti *job)
{
	tutti_controller *c = open_controller(job);
	struct book b = { .c = c };
	static atomic_int firsts[TIMES];

	for (int i = 0; i < TIMES; i++)
		firsts[i] = 0;
	tutti_barrier(job, NULL);
	if (tutti_rank(job) == CONTROLLER)
		CHECK(tutti_controller_serve(c, echo, &b) == 0);
	for (int i = 0; i < TIMES && tutti_rank(job) != CONTROLLER; i++) {
		int first = tutti_controller_first(c);
		CHECK(first == 0 || first == 1);
		firsts[i] += first;
	}
	tutti_controller_close(c);
	tutti_barrier(job, NULL);
	for (int i = 0; i < TIMES; i++)
		CHECK(firsts[i] == 1);
}

static void test_first(void) { on_wires(be_first); }

/* One closes the handle, one leaves the job then, one leaves at once, and nobody is connected to it: none of them has
 * asked. */
static void leave_silently(tutti *job)
{
	tutti_controller *c = tutti_rank(job) == 3 ? NULL : open_controller(job);
	struct book b = { .c = c };

	if (tutti_rank(job) == CONTROLLER)
		CHECK(tutti_controller_serve(c, echo, &b) == 0 && b.done[0] == 1 && b.done[2] == 1 &&
		      b.done[3] + b.gone[3] == 1);
	tutti_controller_close(c);
	while (tutti_rank(job) == 2 && entered < 1)
		pass_time(TT_MS);
	if (tutti_rank(job) == CONTROLLER)
		entered = 1;
}

static void test_leave_silently(void)
{
	on_sim(leave_silently, SEEDS, 500);
	run((struct ranks){ .wire = "tcp", .timeout_ms = 2000, .program = leave_silently });
	run((struct ranks){ .wire = "shm", .timeout_ms = 2000, .program = leave_silently });
}

/* All close the handle a while after the controller has looked at them, and stay in the job; none of them has asked. */
static void close_unasked(tutti *job)
{
	tutti_controller *c = open_controller(job);
	struct book b = { .c = c };

	if (tutti_rank(job) == CONTROLLER)
		CHECK(tutti_controller_serve(c, echo, &b) == 0 && b.done[0] == 1 && b.done[2] == 1 && b.done[3] == 1);
	else
		pass_time(100 * TT_MS);
	tutti_controller_close(c);
	CHECK(tutti_barrier(job, NULL) == 0);
}

static void test_close_unasked(void) { on_wires(close_unasked); }

/* An answer that came after the worker had given the call up does not keep it from saying that it is done. */
static void close_late(tutti *job)
{
	tutti_controller *c = open_controller(job);
	struct book b = { .c = c };

	CHECK(tutti_barrier(job, NULL) == 0);
	if (tutti_rank(job) == CONTROLLER) {
		CHECK(tutti_barrier(job, NULL) == 0);
		uint64_t since = tt_now();
		CHECK(tutti_controller_serve(c, echo, &b) == 0 && b.asked[0] == 1 && b.done[0] == 1);
		CHECK(tt_now() - since < 1000 * TT_MS);
	} else {
		ask_in_vain(c, "1", 20);
		CHECK(tutti_barrier(job, NULL) == 0);
		pass_time(200 * TT_MS);
	}
	tutti_controller_close(c);
	if (tutti_rank(job) != CONTROLLER) /* in the job still */
		pass_time(1500 * TT_MS);
}

static void test_close_late(void) { on_wires(close_late); }

/* A worker that has not opened the controller does not keep it from stopping. */
static void stop_without_all(tutti *job)
{
	tutti_controller *c = tutti_rank(job) == 3 ? NULL : open_controller(job);
	struct book b = { .c = c };

	if (tutti_rank(job) == CONTROLLER) {
		uint64_t since = tt_now();
		CHECK(tutti_controller_serve(c, echo, &b) == 0 && tt_now() - since < 1000 * TT_MS);
	} else if (tutti_rank(job) == 0) {
		CHECK(say(c, "stop", -1) == 0);
	}
	CHECK(tutti_barrier(job, NULL) == 0);
	tutti_controller_close(c);
}

static void test_stop_without_all(void) { on_wires(stop_without_all); }

/* ---- deaths ---- */

/* The worst that may be: a worker in the lock. The others go on, and the controller hears of it. */
static void lose_worker(tutti *job)
{
	tutti_controller *c = open_controller(job);
	int me = tutti_rank(job), victim = 3;
	struct book b = { .c = c };

	if (me == victim)
		tt_sim_kill(me, tt_sim_chance(3 * TT_MS));
	if (me == CONTROLLER) {
		CHECK(tutti_controller_serve(c, echo, &b) == 0);
		CHECK(b.done[0] == 1 && b.done[2] == 1 && b.done[3] + b.gone[3] == 1);
	}
	for (int i = 0; me != CONTROLLER && i < TIMES && !tt_sim_killed(me); i++) {
		int err = tutti_controller_lock(c, -1);
		if (me == victim)
			continue;
		CHECK(err == 0 && atomic_fetch_add(&inside, 1) == 0);
		CHECK(say(c, "x", -1) == 0);
		CHECK(atomic_fetch_sub(&inside, 1) == 1);
		CHECK(tutti_controller_unlock(c) == 0);
	}
	if (me != CONTROLLER && me != victim)
		CHECK(tutti_controller_done(c) == 0);
	tutti_controller_close(c);
}

static void test_lose_worker(void) { on_sim(lose_worker, count_seeds(KILLS), 0); }

static void lose_controller(tutti *job)
{
	tutti_controller *c = open_controller(job);
	struct book b = { .c = c };
	int err = 0;

	if (tutti_rank(job) == CONTROLLER) {
		tt_sim_kill(CONTROLLER, tt_sim_chance(3 * TT_MS));
		tutti_controller_serve(c, echo, &b);
	}
	for (int i = 0; tutti_rank(job) != CONTROLLER && !err; i++) {
		err = i % 3 == 0 ? tutti_controller_lock(c, -1) : i % 3 == 1 ? say(c, "x", -1) :
		                                                               tutti_controller_unlock(c);
		CHECK(err == 0 || err == -ECONNRESET);
		CHECK(!err || why_has("rank 1"));
	}
	tutti_controller_close(c);
}

static void test_lose_controller(void) { on_sim(lose_controller, count_seeds(KILLS), 0); }

/* One that is stopped is evicted for its silence, and the lock is free. */
static void lose_silent(tutti *job)
{
	tutti_controller *c = open_controller(job);
	struct book b = { .c = c };

	if (tutti_rank(job) == CONTROLLER) {
		CHECK(tutti_controller_serve(c, echo, &b) == 0 && b.gone[3] == 1 && b.done[0] == 1);
	} else if (tutti_rank(job) == 3) {
		CHECK(tutti_controller_lock(c, -1) == 0);
		inside = 1;
		tt_sim_stop(3, 0, 60000 * TT_MS);
		pass_time(TT_MS);
	} else {
		while (!inside)
			pass_time(TT_MS);
		uint64_t since = tt_now();
		CHECK(tutti_controller_lock(c, -1) == 0 && tt_now() - since < 4000 * TT_MS);
		CHECK(tutti_controller_done(c) == 0);
	}
	tutti_controller_close(c);
}

static void test_lose_silent(void) { on_sim(lose_silent, SEEDS, 5000); }

/* ---- requests without a callback ---- */

/* Takes the next event of the kind. Returns which worker it is of. */
static int next(tutti_controller *c, tutti_what what, tutti_request *r)
{
	CHECK(tutti_controller_next(c, r, -1) == 1 && r->what == what);
	return r->worker;
}

static void see_all_leave(tutti_controller *c)
{
	tutti_request r;

	for (int i = 0; i < RANKS - 1; i++)
		CHECK(!next(c, TUTTI_LEFT, &r) || !r.bytes);
	CHECK(tutti_controller_next(c, &r, -1) == 0 && tutti_controller_next(c, &r, 0) == 0);
}

/* All three requests are open at once; a lock is taken meanwhile. They are answered last first. */
static void answer_three(tutti_controller *c)
{
	tutti_request r[RANKS - 1];
	char *large = calloc(1, TUTTI_REQUEST_MAX + 1);

	for (int i = 0; i < RANKS - 1; i++) {
		int worker = next(c, TUTTI_JOINED, &r[i]);
		CHECK(r[i].bytes == 2 && ((const char *)r[i].data)[0] == 'a');
		CHECK(((const char *)r[i].data)[1] == '0' + worker);
		if (i == 1)
			entered = 1; /* the third takes the lock first */
	}
	CHECK(tutti_controller_next(c, &r[0], 30) == -ETIMEDOUT);
	CHECK(tutti_controller_answer(c, r[2].worker, 0, large, TUTTI_REQUEST_MAX + 1) == -EMSGSIZE);
	CHECK(tutti_controller_answer(c, r[2].worker, 1, NULL, 0) == -EINVAL);
	CHECK(tutti_controller_answer(c, CONTROLLER, 0, NULL, 0) == -EINVAL && why_has("no worker"));
	for (int i = RANKS - 2; i >= 0; i--) {
		const char *text = r[i].worker == 2 ? "no such sample" : "fine";
		int err = r[i].worker == 2 ? -ENOENT : r[i].worker == 3 ? -EBADF : 0;
		CHECK(tutti_controller_answer(c, r[i].worker, err, text, err == -EBADF ? 0 : strlen(text)) == 0);
		CHECK(tutti_controller_answer(c, r[i].worker, 0, NULL, 0) == -EINVAL && why_has("open request"));
	}
	free(large);
}

static void ask_open(tutti_controller *c, int me)
{
	char text[] = { 'a', (char)('0' + me), 0 }, got[20];
	size_t n = 0;

	if (me == 3) {
		while (!entered)
			pass_time(TT_MS);
		CHECK(tutti_controller_lock(c, -1) == 0 && tutti_controller_unlock(c) == 0);
	}
	int err = tutti_controller_ask(c, text, 2, got, sizeof got, &n, -1);
	CHECK(err == (me == 2 ? -ENOENT : me == 3 ? -EBADF : 0));
	CHECK(me != 0 || (n == 4 && !memcmp(got, "fine", 4)));
	CHECK(me != 2 || (why_has("no such sample") && why_has("rank 1")));
	CHECK(me != 3 || why_has("returned -9"));
}

static void pull(tutti *job)
{
	tutti_controller *c = open_controller(job);
	tutti_request r;
	int me = tutti_rank(job);

	if (me == CONTROLLER) {
		CHECK(tutti_controller_next(c, NULL, 0) == -EINVAL);
		CHECK(tutti_controller_next(c, &r, 0) == -ETIMEDOUT);
		CHECK(tutti_controller_answer(c, 0, 0, NULL, 0) == -EINVAL && why_has("rank 0"));
	}
	CHECK(tutti_barrier(job, NULL) == 0);
	if (me == CONTROLLER) {
		answer_three(c);
		see_all_leave(c);
	} else {
		CHECK(tutti_controller_next(c, &r, 0) == -EINVAL);
		CHECK(tutti_controller_answer(c, 0, 0, NULL, 0) == -EINVAL);
		ask_open(c, me);
		CHECK(tutti_controller_done(c) == 0);
	}
	CHECK(tutti_barrier(job, NULL) == 0);
	tutti_controller_close(c);
}

static void test_pull(void) { on_wires(pull); }

/* What is open when serving ends is refused; the next call serves again. */
static void stop_pull(tutti *job)
{
	tutti_controller *c = open_controller(job);
	int me = tutti_rank(job);
	tutti_request r;

	if (me == CONTROLLER) {
		int worker = next(c, TUTTI_JOINED, &r);
		tutti_controller_stop(c);
		CHECK(tutti_controller_next(c, &r, -1) == 0);
		CHECK(tutti_controller_answer(c, worker, 0, NULL, 0) == -EINVAL);
		CHECK(tutti_barrier(job, NULL) == 0);
		while (tutti_controller_next(c, &r, -1) == 1)
			if (r.what == TUTTI_JOINED)
				CHECK(tutti_controller_answer(c, r.worker, 0, r.data, r.bytes) == 0);
	} else {
		CHECK(say(c, "x", -1) == -ESHUTDOWN && why_has("serves no more"));
		CHECK(tutti_barrier(job, NULL) == 0);
		int err;
		while ((err = say(c, "y", -1)) == -ESHUTDOWN)
			;
		CHECK(err == 0 && tutti_controller_done(c) == 0);
	}
	tutti_controller_close(c);
}

static void test_stop_pull(void) { on_wires(stop_pull); }

/* serve's function does not serve. */
static int serve_inside(const tutti_request *r, void *answer, size_t room, void *arg)
{
	tutti_request other;

	(void)answer, (void)room;
	if (r->what == TUTTI_JOINED)
		CHECK(tutti_controller_next(arg, &other, 0) == -EALREADY);
	return 0;
}

static void nest(tutti *job)
{
	tutti_controller *c = open_controller(job);

	if (tutti_rank(job) == CONTROLLER)
		CHECK(tutti_controller_serve(c, serve_inside, c) == 0);
	else
		CHECK(tutti_controller_ask(c, NULL, 0, NULL, 0, NULL, -1) == 0 && tutti_controller_done(c) == 0);
	tutti_controller_close(c);
}

static void test_nest(void) { on_wires(nest); }

/* Threads answer, while the main one takes requests. */
struct answerer {
	tutti_controller *c;
	struct ranks *run;
	_Atomic int worker[RANKS];  /* 1: has asked */
	_Atomic bool over;
	pthread_t thread;
};

static void *answer_all(void *arg)
{
	struct answerer *a = arg;

	this_run = a->run;
	while (!a->over)
		for (int i = 0; i < RANKS; i++)
			if (atomic_exchange(&a->worker[i], 0))
				CHECK(tutti_controller_answer(a->c, i, 0, "!", 1) == 0);
	return NULL;
}

static void share_answers(tutti *job)
{
	tutti_controller *c = open_controller(job);
	struct answerer a = { .c = c, .run = this_run };
	tutti_request r;
	char got;

	if (tutti_rank(job) == CONTROLLER) {
		pthread_create(&a.thread, NULL, answer_all, &a);
		while (tutti_controller_next(c, &r, -1) == 1)
			a.worker[r.worker] = r.what == TUTTI_JOINED;
		a.over = true;
		pthread_join(a.thread, NULL);
	} else {
		for (int i = 0; i < 200; i++)
			CHECK(tutti_controller_ask(c, "?", 1, &got, 1, NULL, -1) == 0 && got == '!');
		CHECK(tutti_controller_done(c) == 0);
	}
	tutti_controller_close(c);
}

static void test_share_answers(void)
{
	run((struct ranks){ .wire = "tcp", .program = share_answers });
	run((struct ranks){ .wire = "shm", .program = share_answers });
}

/* Each request stays open until another worker has asked, or the time has passed. */
static void lose_open(tutti *job)
{
	tutti_controller *c = open_controller(job);
	int me = tutti_rank(job), victim = 3, open = -1, ends = 0, err;
	tutti_request r;

	if (me == victim)
		tt_sim_kill(me, tt_sim_chance(3 * TT_MS));
	if (me == CONTROLLER) {
		while ((err = tutti_controller_next(c, &r, 1)) && (err == 1 || err == -ETIMEDOUT)) {
			int last = open;
			bool asks = err == 1 && r.what == TUTTI_JOINED;
			ends += err == 1 && !asks;
			open = asks ? r.worker : -1;
			err = last < 0 ? 0 : tutti_controller_answer(c, last, 0, "x", 1);
			CHECK(!err || last == victim);
			CHECK(!err || why_has("rank 3"));
		}
		CHECK(err == 0 && ends == RANKS - 1);
	}
	for (int i = 0; me != CONTROLLER && i < TIMES && !tt_sim_killed(me); i++)
		CHECK(say(c, "x", -1) == 0 || me == victim);
	if (me != CONTROLLER && me != victim)
		CHECK(tutti_controller_done(c) == 0);
	tutti_controller_close(c);
}

static void test_lose_open(void) { on_sim(lose_open, count_seeds(KILLS), 0); }

/* ---- queues ---- */

static int send_batch(tutti_queue *q, int i, int timeout_ms)
{
	float x[COUNT];
	int64_t y[2] = { i, -i };
	tutti_tensor list[] = { { x, (size_t)(i % COUNT), TUTTI_F32 }, { y, 2, TUTTI_I64 } };

	for (int k = 0; k < COUNT; k++)
		x[k] = (float)(i + k);
	return tutti_queue_send(q, list, 2, timeout_ms);
}

static int look_at_batch(const tutti_tensor *list, int n)
{
	const int64_t *y = list[1].data;
	const float *x = list[0].data;

	CHECK(n == 2 && list[0].type == TUTTI_F32 && list[1].type == TUTTI_I64 && list[1].count == 2);
	CHECK(y[0] >= 0 && y[0] < BATCHES && y[1] == -y[0] && list[0].count == (size_t)y[0]);
	for (size_t k = 0; k < list[0].count; k++)
		CHECK(x[k] == (float)y[0] + (float)k);
	return (int)y[0];
}

static tutti_queue *open_queue(tutti *job)
{
	tutti_queue *q = NULL;

	CHECK(tutti_queue_open(job, "data", CONTROLLER, COUNT * 4 + 16, DEPTH, &q) == 0);
	return q;
}

static void check_errors(tutti *job, tutti_queue *q)
{
	float x[COUNT + 5];
	tutti_tensor list[] = { { x, COUNT + 5, TUTTI_F32 } };
	tutti_queue *other;

	CHECK(tutti_queue_open(job, "data", CONTROLLER, 8, 0, &other) == -EEXIST);
	CHECK(tutti_queue_open(job, "none", CONTROLLER, 0, 0, &other) == -EINVAL);
	CHECK(tutti_queue_open(job, "none", CONTROLLER, 8, -1, &other) == -EINVAL);
	if (tutti_rank(job) == CONTROLLER) {
		CHECK(tutti_queue_send(q, list, 1, -1) == -EMSGSIZE && tutti_queue_send(q, list, 0, -1) == -EINVAL);
		CHECK(tutti_queue_receive(q, (const tutti_tensor **)&list, 0) == -EINVAL);
	} else {
		CHECK(tutti_queue_send(q, list, 1, -1) == -EINVAL && tutti_queue_end(q, -1) == -EINVAL);
	}
}

static void flow(tutti *job)
{
	tutti_queue *q = open_queue(job);
	const tutti_tensor *list;
	int n;

	check_errors(job, q);
	if (tutti_rank(job) == CONTROLLER) {
		for (int i = 0; i < BATCHES; i++)
			CHECK(send_batch(q, i, -1) == 0);
		CHECK(tutti_queue_end(q, -1) == 0);
		CHECK(send_batch(q, 0, -1) == -ESHUTDOWN);
	} else {
		while ((n = tutti_queue_receive(q, &list, -1)) > 0)
			got_batch[look_at_batch(list, n)]++;
		CHECK(n == 0 && tutti_queue_receive(q, &list, -1) == 0);
	}
	tutti_queue_close(q);
	CHECK(tutti_barrier(job, NULL) == 0);
	for (int i = 0; i < BATCHES; i++)
		CHECK(got_batch[i] == 1);
}

static void test_flow(void) { on_wires(flow); }

/* Depth, and one for each worker; a worker that closes gives back what it has. */
static void fill(tutti *job)
{
	tutti_queue *q = open_queue(job);
	const tutti_tensor *list;
	int n;

	if (tutti_rank(job) == CONTROLLER) {
		for (int i = 0; i < DEPTH + RANKS - 1; i++)
			CHECK(send_batch(q, i, -1) == 0);
		CHECK(send_batch(q, 0, 0) == -ETIMEDOUT && send_batch(q, 0, 30) == -ETIMEDOUT && why_has("rank"));
		CHECK(tutti_queue_end(q, 10) == -ETIMEDOUT);
		CHECK(tutti_barrier(job, NULL) == 0);
		n = tutti_queue_end(q, -1);
		CHECK(n >= 0 && n <= DEPTH + RANKS - 1);
	} else {
		CHECK(tutti_barrier(job, NULL) == 0);
		if (tutti_rank(job) == 0) {
			tutti_queue_close(q);
			q = NULL;
		}
		while (q && (n = tutti_queue_receive(q, &list, -1)) > 0)
			got_batch[look_at_batch(list, n)]++;
	}
	tutti_queue_close(q);
	CHECK(tutti_barrier(job, NULL) == 0);
	for (int i = 0; i < DEPTH + RANKS - 1; i++)
		CHECK(got_batch[i] == 1);
}

static void test_fill(void) { on_wires(fill); }

/* A batch that did not come in time is there for the next call. */
static void fetch_late(tutti *job)
{
	tutti_queue *q = open_queue(job);
	const tutti_tensor *list;
	int n = 0, late = 0;

	for (int i = 0; tutti_rank(job) == CONTROLLER && i < DEPTH; i++)
		CHECK(send_batch(q, i, -1) == 0);
	CHECK(tutti_barrier(job, NULL) == 0);
	if (tutti_rank(job) == CONTROLLER) {
		tt_sim_slow(CONTROLLER, 20000);
		pass_time(400 * TT_MS);
		tt_sim_slow(CONTROLLER, 1);
		CHECK(tutti_queue_end(q, -1) == 0);
	} else {
		pass_time(TT_MS);
		while ((n = tutti_queue_receive(q, &list, 5)) == -ETIMEDOUT || n > 0)
			if (n > 0)
				got_batch[look_at_batch(list, n)]++;
			else
				late++;
		CHECK(n == 0 && late > 0);
	}
	tutti_queue_close(q);
	CHECK(tutti_barrier(job, NULL) == 0);
	for (int i = 0; i < DEPTH; i++)
		CHECK(got_batch[i] == 1);
}

static void test_fetch_late(void) { on_sim(fetch_late, SEEDS, 0); }

/* A worker for which there is nothing to do sleeps. */
static void rest(tutti *job)
{
	tutti_queue *q = open_queue(job);
	const tutti_tensor *list;
	struct rusage before, after;

	getrusage(RUSAGE_THREAD, &before);
	if (tutti_rank(job) != CONTROLLER)
		CHECK(tutti_queue_receive(q, &list, 700) == -ETIMEDOUT);
	getrusage(RUSAGE_THREAD, &after);
	/* a look each 20 ms would be 35; threads of all ranks wait for the lock of the fake adapters, too */
	CHECK(only_verbs() || after.ru_nvcsw - before.ru_nvcsw < 25);
	CHECK(tutti_barrier(job, NULL) == 0);
	tutti_queue_close(q);
	CHECK(tutti_barrier(job, NULL) == 0);
}

static void test_rest(void) { run((struct ranks){ .wire = "tcp", .program = rest }); }

/* A worker that has not opened the queue holds no batch. It opens the queue when all batches are done with. */
static void leave_one_out(tutti *job)
{
	int n = 0, me = tutti_rank(job);
	uint64_t since = tt_now();

	while (me == 3 && inside < BATCHES)
		pass_time(TT_MS);
	CHECK(tt_now() - since < 1000 * TT_MS);
	tutti_queue *q = open_queue(job);
	const tutti_tensor *list;
	for (int i = 0; me == CONTROLLER && i < BATCHES; i++)
		CHECK(send_batch(q, i, 500) == 0);
	if (me == CONTROLLER)
		CHECK(tutti_queue_end(q, -1) == 0);
	while (me != CONTROLLER && (n = tutti_queue_receive(q, &list, -1)) > 0) {
		got_batch[look_at_batch(list, n)]++;
		inside++;
	}
	CHECK(n == 0);
	tutti_queue_close(q);
	CHECK(tutti_barrier(job, NULL) == 0);
	for (int i = 0; i < BATCHES; i++)
		CHECK(got_batch[i] == 1);
}

/* Workers open the queue later than the timeout. What the producer has sent before, without waiting, comes to them,
 * although it makes no call meanwhile; and two batches at once come to the first one that opens. */
static void open_late(tutti *job)
{
	int n = 0, me = tutti_rank(job);
	tutti_queue *q = NULL;
	const tutti_tensor *list;

	tutti_group_timeout(job, 100);
	if (me == CONTROLLER) {
		q = open_queue(job);
		CHECK(send_batch(q, 0, 0) == 0);
		entered = 1;
		while (inside < 1)
			pass_time(TT_MS);
		for (int i = 1; i <= DEPTH; i++)
			CHECK(send_batch(q, i, 5000) == 0);
		while (inside <= DEPTH)
			pass_time(TT_MS);
		CHECK(tutti_queue_end(q, 5000) == 0);
	} else {
		while (!entered || (me != CONTROLLER + 1 && inside <= DEPTH))
			pass_time(TT_MS);
		pass_time(300 * TT_MS);
		q = open_queue(job);
		while ((n = tutti_queue_receive(q, &list, 5000)) > 0) {
			got_batch[look_at_batch(list, n)]++;
			inside++;
		}
		CHECK(n == 0);
	}
	tutti_queue_close(q);
	tutti_group_timeout(job, 10000);
	CHECK(tutti_barrier(job, NULL) == 0);
	for (int i = 0; i <= DEPTH; i++)
		CHECK(got_batch[i] == 1);
}

static void test_open_late(void)
{
	on_sim(open_late, all_or(SEEDS, 2), 0);
	run((struct ranks){ .wire = "tcp", .program = open_late });
}

static void test_leave_one_out(void) { on_sim(leave_one_out, SEEDS, 5000); }

static void starve(tutti *job)
{
	tutti_queue *q = open_queue(job);
	const tutti_tensor *list;

	if (tutti_rank(job) != CONTROLLER) {
		CHECK(tutti_queue_receive(q, &list, 0) == -ETIMEDOUT);
		CHECK(tutti_queue_receive(q, &list, 30) == -ETIMEDOUT && why_has("rank 1") && why_has("no batch came"));
	}
	CHECK(tutti_barrier(job, NULL) == 0);
	tutti_queue_close(q);
}

static void test_starve(void) { on_wires(starve); }

/* What the victim had comes to others: each batch is done with by one that lives, and nobody else's is done twice. */
static void lose_taker(tutti *job)
{
	tutti_queue *q = open_queue(job);
	const tutti_tensor *list;
	int n, me = tutti_rank(job), victim = 3;

	if (me == victim)
		tt_sim_kill(me, tt_sim_chance(6 * TT_MS));
	if (me == CONTROLLER) {
		for (int i = 0; i < BATCHES; i++)
			CHECK(send_batch(q, i, -1) == 0);
		n = tutti_queue_end(q, -1);
		CHECK(n >= 0);
		redelivered += n;
		for (int i = 0, twice = 0; i < BATCHES; i++) {
			twice += got_batch[i] - 1;
			CHECK(got_batch[i] >= 1 && twice <= 1); /* the one that it had in its hands */
		}
	} else {
		while ((n = tutti_queue_receive(q, &list, -1)) > 0 && !tt_sim_killed(me)) {
			got_batch[look_at_batch(list, n)]++;
			tt_sim_sleep(200000);
		}
		CHECK(me == victim || n == 0);
	}
	tutti_queue_close(q);
}

static void test_lose_taker(void)
{
	redelivered = 0;
	on_sim(lose_taker, count_seeds(KILLS), 0);
	CU_ASSERT(only_verbs() || redelivered > (int)count_seeds(KILLS) / 4);
}

static void lose_producer(tutti *job)
{
	tutti_queue *q = open_queue(job);
	const tutti_tensor *list;
	int n, i = 0;

	if (tutti_rank(job) == CONTROLLER) {
		tt_sim_kill(CONTROLLER, tt_sim_chance(6 * TT_MS));
		while (!tt_sim_killed(CONTROLLER) && send_batch(q, i++ % BATCHES, -1) == 0)
			;
	} else {
		while ((n = tutti_queue_receive(q, &list, -1)) > 0)
			look_at_batch(list, n);
		CHECK(n == -ECONNRESET && why_has("rank 1"));
	}
	tutti_queue_close(q);
}

static void test_lose_producer(void) { on_sim(lose_producer, count_seeds(KILLS), 0); }

static void lose_all_takers(tutti *job)
{
	tutti_queue *q = open_queue(job);
	int err, sent = 0;

	if (tutti_rank(job) == CONTROLLER) {
		for (; !(err = send_batch(q, sent % BATCHES, -1)); sent++)
			;
		CHECK(err == -ECONNRESET && why_has("no worker is left"));
		CHECK(tutti_queue_end(q, -1) == (sent ? -ECONNRESET : 0));
	} else {
		tt_sim_kill(tutti_rank(job), tt_sim_chance(3 * TT_MS));
	}
	tutti_queue_close(q);
}

static void test_lose_all_takers(void) { on_sim(lose_all_takers, SEEDS, 0); }

static CU_TestInfo controller_tests[] = { { "ask", test_ask },
	                                  { "stop", test_stop },
	                                  { "late", test_late },
	                                  { "ask_stopped", test_ask_stopped },
	                                  { "lock", test_lock },
	                                  { "wait_for_lock", test_wait_for_lock },
	                                  { "give_lock_up", test_give_lock_up },
	                                  { "first", test_first },
	                                  { "leave_silently", test_leave_silently },
	                                  { "close_unasked", test_close_unasked },
	                                  { "close_late", test_close_late },
	                                  { "stop_without_all", test_stop_without_all },
	                                  { "lose_worker", test_lose_worker },
	                                  { "lose_controller", test_lose_controller },
	                                  { "lose_silent", test_lose_silent },
	                                  { "pull", test_pull },
	                                  { "stop_pull", test_stop_pull },
	                                  { "nest", test_nest },
	                                  { "share_answers", test_share_answers },
	                                  { "lose_open", test_lose_open },
	                                  CU_TEST_INFO_NULL };
static CU_TestInfo queue_tests[] = { { "flow", test_flow },
	                             { "fill", test_fill },
	                             { "leave_one_out", test_leave_one_out },
	                             { "open_late", test_open_late },
	                             { "starve", test_starve },
	                             { "rest", test_rest },
	                             { "fetch_late", test_fetch_late },
	                             { "lose_taker", test_lose_taker },
	                             { "lose_producer", test_lose_producer },
	                             { "lose_all_takers", test_lose_all_takers },
	                             CU_TEST_INFO_NULL };
static CU_SuiteInfo suites[] = { { "controller", NULL, NULL, NULL, NULL, controller_tests },
	                         { "queue", NULL, NULL, NULL, NULL, queue_tests },
	                         CU_SUITE_INFO_NULL };

int main(int argc, char **argv) { return run_suites(suites, argc, argv); }
