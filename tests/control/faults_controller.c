/* faults_controller.c - controllers and queues when real processes are killed or stopped: the controller, a worker in
 * the lock, the producer of batches, a worker with batches */
#include "control/control_private.h"
#include "tests/harness/crew.h"

enum { RANKS = 4, SERVER = 0, VICTIM = 3, TIMEOUT = 4000 * SLOW, COUNT = 20000, BATCHES = 300, GONE_MS = 1000 * SLOW };

static int answer(const tutti_request *r, void *to, size_t room, void *arg)
{
	(void)arg;
	if (r->what == TUTTI_GONE)
		mine->rounds++; /* the controller counts deaths */
	return r->what == TUTTI_JOINED && r->bytes <= room ? (memcpy(to, r->data, r->bytes), (int)r->bytes) : 0;
}

/* Until there is an error, or the parent says that it is enough. The longest call is noted. */
static int ask_on(tutti_controller *c)
{
	char got[8];
	int err = 0;

	while (!err && board->go < 1) {
		uint64_t started = tt_now();
		if (!(err = tutti_controller_lock(c, -1)) &&
		    !(err = tutti_controller_ask(c, "ab", 2, got, sizeof got, NULL, -1))) {
			EXPECT(!memcmp(got, "ab", 2));
			err = tutti_controller_unlock(c);
		}
		if (err || tt_now() - started > mine->ended - mine->started)
			record(err, started);
		mine->rounds += !err;
		sleep_ms(1);
	}
	return err;
}

static bool victim_locks; /* children inherit it */

static void work(tutti *job)
{
	tutti_controller *c = NULL;

	EXPECT(tutti_controller_open(job, "boss", SERVER, &c) == 0);
	if (my_rank == SERVER) {
		reach(1);
		EXPECT(tutti_controller_serve(c, answer, NULL) == 0);
	} else if (my_rank == VICTIM && victim_locks) {
		EXPECT(tutti_controller_lock(c, -1) == 0);
		reach(1);
		for (;;)
			pause();
	} else {
		reach(1);
		if (!ask_on(c))
			EXPECT(tutti_controller_done(c) == 0);
	}
	tutti_controller_close(c);
}

/* The controller is gone: all workers say so, by its name, at once. */
static void test_controller(void)
{
	victim_locks = false;
	start((struct crew){ .size = RANKS, .timeout_ms = TIMEOUT, .program = work });
	await(5, 1, SERVER);
	uint64_t killed = tt_now();
	strike(SERVER, SIGKILL);
	finish(SERVER);
	for (int i = 1; i < RANKS; i++) {
		struct report *r = &board->of[i];
		WANT(r->err == -ECONNRESET && names_only(r->why, SERVER), "rank %d: %d: %s", i, r->err, r->why);
		WANT(r->ended - killed < GONE_MS * TT_MS, "rank %d heard of it after %llu ms", i,
		     (unsigned long long)((r->ended - killed) / TT_MS));
	}
}

/* It has the lock, or waits for the lock, or asks: the others go on. */
static void lose_worker(bool locks, int signal_number, uint64_t at_most_ms)
{
	victim_locks = locks;
	start((struct crew){ .size = RANKS, .timeout_ms = TIMEOUT, .program = work });
	await_rank(VICTIM, 1);
	await_rank(1, 1);
	await_rank(2, 1);
	sleep_ms(30);
	int before = board->of[1].rounds;
	strike(VICTIM, signal_number);
	for (int ms = 0; ms < HANG_MS && (board->of[1].rounds < before + 3 || board->of[SERVER].rounds < 1); ms++)
		sleep_ms(1);
	board->go = 1;
	if (signal_number == SIGSTOP)
		strike(VICTIM, SIGKILL);
	finish(VICTIM);
	for (int i = 1; i < VICTIM; i++) {
		struct report *r = &board->of[i];
		WANT(r->err == 0 && r->rounds > 0, "rank %d: %d: %s", i, r->err, r->why);
		WANT(r->ended - r->started < at_most_ms * TT_MS, "rank %d waited for %llu ms", i,
		     (unsigned long long)((r->ended - r->started) / TT_MS));
	}
	WANT(board->of[SERVER].rounds == 1, "the controller heard of %d deaths", board->of[SERVER].rounds);
}

static void test_worker(void) { lose_worker(false, SIGKILL, GONE_MS); }
static void test_lock(void) { lose_worker(true, SIGKILL, GONE_MS); }
static void test_stopped(void) { lose_worker(true, SIGSTOP, TIMEOUT); } /* its silence is three tenths of that */

/* ---- queues ---- */

static int victim; /* children inherit it */

/* The victim waits for its death in the middle of its work. */
static void rest(int rounds)
{
	while (my_rank == victim && mine->rounds == rounds)
		pause();
}

static int send_batch(tutti_queue *q, float *x, int i)
{
	tutti_tensor list = { x, COUNT, TUTTI_F32 };

	for (int k = 0; k < COUNT; k++)
		x[k] = (float)i;
	return tutti_queue_send(q, &list, 1, -1);
}

static void produce(tutti_queue *q)
{
	float *x = malloc(COUNT * sizeof *x);
	uint64_t started = tt_now();
	int err = 0;

	for (int i = 0; i < BATCHES && !err; i++) {
		rest(BATCHES / 2);
		started = tt_now();
		err = send_batch(q, x, i);
		mine->rounds += !err;
	}
	if (!err)
		EXPECT(tutti_queue_end(q, -1) >= 0);
	record(err, started);
	free(x);
}

static void consume(tutti_queue *q)
{
	const tutti_tensor *list;
	uint64_t started;
	int n;

	if (victim != SERVER && my_rank != victim)
		await_go(1); /* or there is nothing left for the victim */
	while (started = tt_now(), (n = tutti_queue_receive(q, &list, -1)) > 0) {
		const float *x = list->data;
		EXPECT(n == 1 && list->count == COUNT);
		for (int k = 1; k < COUNT; k++)
			EXPECT(x[k] == x[0]);
		mine->rounds++;
		rest(5);
	}
	record(n, started);
}

static void feed(tutti *job)
{
	tutti_queue *q = NULL;

	EXPECT(tutti_queue_open(job, "data", SERVER, COUNT * sizeof(float), 0, &q) == 0);
	if (my_rank == SERVER)
		produce(q);
	else
		consume(q);
	tutti_queue_close(q);
}

static void lose_in_queue(int who)
{
	victim = who;
	start((struct crew){ .size = RANKS, .timeout_ms = TIMEOUT, .program = feed });
	for (int ms = 0; ms < HANG_MS && board->of[victim].rounds < 5; ms++)
		sleep_ms(1);
	board->go = 1;
	strike(victim, SIGKILL);
	finish(victim);
}

static void test_producer(void)
{
	lose_in_queue(SERVER);
	for (int i = 1; i < RANKS; i++) {
		struct report *r = &board->of[i];
		WANT(r->err == -ECONNRESET && names_only(r->why, SERVER), "rank %d: %d: %s", i, r->err, r->why);
	}
}

static void test_taker(void)
{
	int done = 0;

	lose_in_queue(VICTIM);
	WANT(board->of[SERVER].err == 0, "producer: %d: %s", board->of[SERVER].err, board->of[SERVER].why);
	for (int i = 1; i < RANKS; i++)
		done += board->of[i].rounds;
	WANT(done >= BATCHES, "of %d batches %d were taken", BATCHES, done);
}

static CU_TestInfo tests[] = { { "controller", test_controller },
	                       { "worker", test_worker },
	                       { "lock", test_lock },
	                       { "stopped", test_stopped },
	                       { "producer", test_producer },
	                       { "taker", test_taker },
	                       CU_TEST_INFO_NULL };
static CU_SuiteInfo suites[] = { { "faults", NULL, NULL, NULL, NULL, tests }, CU_SUITE_INFO_NULL };

int main(int argc, char **argv) { return run_over_wires(suites, argc, argv); }
