/* unit_verbs_costs.c - what calls cost over adapters that are not there (fake.h): bytes copied, requests, doorbells,
 * registrations, system calls. Counted, not timed. */
#include "tests/harness/cunit_main.h"
#include "tests/harness/ranks.h"
#include <stdlib.h>
#include <sys/epoll.h>
#include <time.h>

enum { MIB = 1 << 20, LARGE = 64 * MIB, FEW = 20, ROUNDS = 200 };
enum { LOOK_NS = 200000 }; /* TCP is polled so often, too: engine.c */

static uint64_t copied(tutti *job)
{
	tutti_stat s;

	CHECK(tutti_stats(job, -1, TUTTI_STAT_COPIED, &s) == 0);
	return s.bytes;
}

static float *take_memory(tutti *job, size_t bytes)
{
	void *at = NULL;

	CHECK(tutti_alloc(job, bytes, -1, &at) == 0);
	memset(at, 0, bytes);
	return at;
}

/* Each rank serves half of the table and is a worker, too. */
static tutti_table *open_table(tutti *job, size_t count)
{
	tutti_table_config c = tutti_table_rows(TUTTI_F32, count, 1, tutti_accumulate());
	tutti_table *t = NULL;

	CHECK(tutti_table_open(job, "t", &c, &t) == 0);
	return t;
}

static void do_all(tutti *job, tutti_table *t, float *v, size_t count)
{
	CHECK(tutti_allreduce(job, v, v, count, TUTTI_F32, TUTTI_SUM, NULL) == 0);
	CHECK(tutti_table_push(t, v, NULL, NULL) == 0);
	CHECK(tutti_barrier(job, NULL) == 0);
	CHECK(tutti_table_pull(t, v, NULL) == 0);
	CHECK(tutti_barrier(job, NULL) == 0);
}

/* ---- bytes copied ---- */

static void copy_nothing(tutti *job)
{
	size_t count = LARGE / sizeof(float);
	float *v = take_memory(job, LARGE);
	tutti_table *t = open_table(job, count);

	v[0] = v[count - 1] = 1;
	do_all(job, t, v, count);
	CHECK(v[0] == 4 && v[count - 1] == 4 && v[1] == 0); /* two ranks have pushed a sum of two */
	CHECK(copied(job) == 0);
	tutti_table_close(t);
	tutti_free(job, v);
}

/* The counter counts: memory that nobody has pinned goes through the arena. */
static void copy_small(tutti *job)
{
	static char brought[4096];
	char *at = (char *)take_memory(job, sizeof brought);
	tutti_window *w;

	CHECK(tutti_window_open(job, "w", at, sizeof brought, &w) == 0);
	if (tutti_rank(job) == 0) {
		CHECK(tutti_put(w, 1, 0, brought, sizeof brought, NULL) == 0);
		CHECK(copied(job) == sizeof brought);
		CHECK(tutti_get(w, 1, 0, brought, sizeof brought, NULL) == 0);
		CHECK(copied(job) == 2 * sizeof brought);
	}
	CHECK(tutti_barrier(job, NULL) == 0);
	tutti_window_close(w);
	tutti_free(job, at);
}

/* ---- requests ---- */

struct costs { uint64_t requests, doorbells, registrations, polls, locks; };

/* Ranks that do not spin sleep at once: there are fewer cores than ranks, or others want the cores. */
static const struct tt_engine *engine;
static _Thread_local uint64_t polls; /* the only system call of a turn; the linker leads it here */
static _Atomic int watched = -1;     /* a net's descriptor, */
static _Atomic uint64_t glances;     /* and how often others than the watching thread have polled that */
static _Thread_local bool watches;
int __real_epoll_wait(int, struct epoll_event *, int, int);
int __wrap_epoll_wait(int, struct epoll_event *, int, int);

int __wrap_epoll_wait(int fd, struct epoll_event *events, int max, int ms)
{
	polls++;
	glances += fd == watched && !watches;
	return __real_epoll_wait(fd, events, max, ms);
}

static struct costs costs_now(void)
{
	return (struct costs){ fake_requests(), fake_calls("post_send"), fake_calls("reg_mr"), polls,
		                engine->lock.next };
}

/* Heartbeats come in between now and then; that no round is without them would take more than a busy machine. */
static void expect(tutti_window *w, char *at, size_t len, bool get, uint64_t requests)
{
	struct costs least = { UINT64_MAX, UINT64_MAX, UINT64_MAX, UINT64_MAX, UINT64_MAX };

	for (int round = 0; round < ROUNDS; round++) {
		struct costs a = costs_now(), b;
		uint64_t begun = tt_now();
		for (int i = 0; i < FEW; i++)
			CHECK((get ? tutti_get(w, 1, 0, at, len, NULL) : tutti_put(w, 1, 0, at, len, NULL)) == 0);
		b = costs_now();
		uint64_t may = a.polls + 1 + (tt_now() - begun) / LOOK_NS; /* by the clock, not by the put */
		least.requests = tt_min(least.requests, b.requests - a.requests);
		least.doorbells = tt_min(least.doorbells, b.doorbells - a.doorbells);
		least.registrations = tt_min(least.registrations, b.registrations - a.registrations);
		least.polls = tt_min(least.polls, b.polls - tt_min(b.polls, may));
		least.locks = tt_min(least.locks, b.locks - a.locks);
	}
	CHECK(least.requests == FEW * requests);
	CHECK(least.doorbells == FEW);
	CHECK(least.registrations == 0);
	CHECK(least.locks == FEW);
	CHECK(least.polls == 0 || !engine->spin || engine->crowded_until);
}

static void count_requests(tutti *job)
{
	enum { PIECE = 256 << 10 }; /* of a WRITE or READ: TT_VERBS_PIECE */
	char *at = (char *)take_memory(job, PIECE);
	tutti_window *w;

	CHECK(tutti_window_open(job, "w", at, PIECE, &w) == 0);
	if (tutti_rank(job) == 0) {
		engine = &job->job->engine;
		CHECK(tutti_put(w, 1, 0, at, PIECE, NULL) == 0);
		expect(w, at, 8, false, 1);    /* inline */
		expect(w, at, 8192, false, 1); /* from where it lies */
		expect(w, at, 8, true, 1);
		expect(w, at, 8192, true, 1);
	}
	CHECK(tutti_barrier(job, NULL) == 0);
	tutti_window_close(w);
	tutti_free(job, at);
}

/* Short calls for 5 ms; how long the longest took. */
static uint64_t put_for_a_while(tutti_window *w, char *at)
{
	uint64_t longest = 0, until = tt_now() + 5 * TT_MS, begun, now = 0;

	while (now < until) {
		begun = tt_now();
		CHECK(tutti_put(w, 1, 0, at, 8, NULL) == 0);
		while ((now = tt_now()) < begun + 30000) /* a real adapter takes longer */
			;
		longest = tt_max(longest, now - begun);
	}
	return longest;
}

/* The background thread leaves the nets to a thread that polls them. Not to one that has got no core for a while: such
 * rounds do not count, and in others one may have come a little late. */
static void poll_alone(tutti *job)
{
	char *at = (char *)take_memory(job, 8);
	int counted = 0, quiet = 0;
	tutti_window *w;

	CHECK(tutti_window_open(job, "w", at, 8, &w) == 0);
	if (tutti_rank(job) == 0) {
		CHECK(tutti_put(w, 1, 0, at, 8, NULL) == 0); /* connected */
		watches = true;
		for (int i = 0; i < job->job->engine.count; i++) /* that of TCP, which each look at all nets polls */
			if (!job->job->engine.nets[i]->cheap_poll)
				watched = job->job->engine.nets[i]->fd;
		CHECK(watched >= 0);
		for (int round = 0; round < ROUNDS; round++) {
			uint64_t before = glances;
			bool counts = put_for_a_while(w, at) < 100000;
			counted += counts;
			quiet += counts && glances == before;
		}
		watched = -1;
		CHECK(counted < ROUNDS / 10 || 4 * quiet >= counted); /* nearly all; few that count tell nothing */
	}
	CHECK(tutti_barrier(job, NULL) == 0);
	tutti_window_close(w);
	tutti_free(job, at);
}

/* What a call has registered serves the next one. Beside them the background thread prepares buffers, some times. */
static void register_once(tutti *job)
{
	enum { CALLS = 40, IN_A_ROW = 3 };
	size_t count = 4 * MIB / sizeof(float);
	float *v = take_memory(job, count * sizeof *v);
	tutti_table *t = open_table(job, count);
	int quiet = 0;

	for (int i = 0; i < CALLS; i++) {
		uint64_t before = fake_calls("reg_mr");
		do_all(job, t, v, count);
		quiet = quiet >= IN_A_ROW ? quiet : fake_calls("reg_mr") == before ? quiet + 1 : 0;
	}
	CHECK(quiet >= IN_A_ROW);
	tutti_table_close(t);
	tutti_free(job, v);
}

/* What is kept of earlier calls makes room where no more may be locked. */
static void give_up_kept(tutti *job)
{
	float *v = take_memory(job, MIB);
	char *wide = calloc(1, MIB);
	tutti_window *w = NULL;

	CHECK(tutti_allreduce(job, v, v, MIB / sizeof *v, TUTTI_F32, TUTTI_SUM, NULL) == 0);
	CHECK(tutti_barrier(job, NULL) == 0);
	if (tutti_rank(job) == 0) {
		fake_fail("reg_mr", 1, ENOMEM);
		CHECK(tutti_window_open(job, "wide", wide, MIB, &w) == 0);
		tutti_window_close(w);
	}
	CHECK(tutti_barrier(job, NULL) == 0);
	tutti_free(job, v);
	free(wide);
}

/* A few bytes are copied where all of the memory cannot be locked. */
static void copy_unlockable(tutti *job)
{
	float *near = take_memory(job, MIB), *far = take_memory(job, MIB);
	tutti_window *w = NULL;

	CHECK(tutti_window_open(job, "w", near, MIB, &w) == 0 && tutti_barrier(job, NULL) == 0);
	if (tutti_rank(job) == 0) {
		CHECK(tutti_put(w, 1, 0, near, 8, NULL) == 0); /* connected */
		fake_fail("reg_mr", 1, ENOMEM);
		CHECK(tutti_put(w, 1, 0, far, 1000, NULL) == 0);
		fake_fail("reg_mr", 0, 0);
	}
	CHECK(tutti_barrier(job, NULL) == 0);
	tutti_window_close(w);
	tutti_free(job, near);
	tutti_free(job, far);
}

static void use_all(tutti *job, tutti_window *w, char *at, size_t len)
{
	CHECK(tutti_allreduce(job, at, at, len / sizeof(float), TUTTI_F32, TUTTI_SUM, NULL) == 0);
	if (tutti_rank(job) == 0) {
		CHECK(tutti_put(w, 1, 0, at, len, NULL) == 0);
		CHECK(tutti_get(w, 1, 0, at + len / 2, len / 2, NULL) == 0);
	}
	CHECK(tutti_barrier(job, NULL) == 0);
}

/* How many registrations the calls need, without those that the background thread makes beside them. */
static uint64_t count_registrations(tutti *job, tutti_window *w, char *at, int ranges)
{
	uint64_t least = UINT64_MAX;

	for (int round = 0; round < 4; round++) {
		uint64_t before = fake_calls("reg_mr");
		for (int i = 0; i < ranges; i++)
			use_all(job, w, at + i * MIB, MIB);
		least = tt_min(least, fake_calls("reg_mr") - before);
	}
	return least;
}

/* Memory of malloc's: each call registers it, unless the program has. More ranges than are kept unregistered stay. */
static void register_brought(tutti *job)
{
	enum { RANGES = 20 };
	char *there = (char *)take_memory(job, MIB), *brought = calloc(RANGES, MIB);
	tutti_window *w;

	CHECK(tutti_window_open(job, "w", there, MIB, &w) == 0);
	CHECK(count_registrations(job, w, brought, 1) > 0);
	for (int i = 0; i < RANGES; i++)
		CHECK(tutti_register(job, brought + i * MIB, MIB) == 0);
	CHECK(count_registrations(job, w, brought, RANGES) == 0);
	for (int i = 0; i < RANGES; i++)
		CHECK(tutti_unregister(job, brought + i * MIB) == 0);
	CHECK(count_registrations(job, w, brought, 1) > 0);
	CHECK(tutti_barrier(job, NULL) == 0);
	tutti_window_close(w);
	tutti_free(job, there);
	free(brought);
}

/* Nanoseconds of this thread's for puts from registered memory: the least of some rounds. */
static uint64_t time_puts(tutti_window *w, const char *from)
{
	uint64_t least = UINT64_MAX;

	for (int round = 0; round < ROUNDS; round++) {
		struct timespec a, b;
		clock_gettime(CLOCK_THREAD_CPUTIME_ID, &a);
		for (int i = 0; i < FEW; i++)
			CHECK(tutti_put(w, 1, 0, from, 1000, NULL) == 0);
		clock_gettime(CLOCK_THREAD_CPUTIME_ID, &b);
		least = tt_min(least, (uint64_t)((b.tv_sec - a.tv_sec) * 1000000000 + b.tv_nsec - a.tv_nsec));
	}
	return least;
}

/* A put finds its kept pin in as many steps, however many pins are kept. */
static void find_among_many(tutti *job)
{
	enum { MANY = 20000, LEN = 1024 };
	static char brought[MANY * LEN]; /* until tutti_leave, which unregisters it */
	char *there = (char *)take_memory(job, LEN);
	uint64_t few, many;
	tutti_window *w;

	CHECK(tutti_window_open(job, "w", there, LEN, &w) == 0 && tutti_barrier(job, NULL) == 0);
	if (tutti_rank(job) == 0) {
		for (int i = 0; i < FEW; i++)
			CHECK(tutti_register(job, brought + i * LEN, LEN) == 0);
		few = time_puts(w, brought);
		for (int i = FEW; i < MANY; i++)
			CHECK(tutti_register(job, brought + i * LEN, LEN) == 0);
		many = time_puts(w, brought);
		CHECK(many < 3 * few);
	}
	CHECK(tutti_barrier(job, NULL) == 0);
}

static int open_registrations(void) { return (int)fake_calls("reg_mr") - (int)fake_calls("dereg_mr"); }

/* What a started call uses stays pinned until the call ends, and then goes. */
static void unregister_in_use(tutti *job)
{
	char *there = (char *)take_memory(job, LARGE), *brought = calloc(1, LARGE);
	tutti_window *w;
	tutti_op op = { 0 };

	CHECK(tutti_window_open(job, "w", there, LARGE, &w) == 0 && tutti_barrier(job, NULL) == 0);
	if (tutti_rank(job) == 0) {
		CHECK(tutti_put(w, 1, 0, there, LARGE, NULL) == 0); /* its arena is pinned, and stays so */
		int before = open_registrations();
		CHECK(tutti_register(job, brought, LARGE) == 0 && open_registrations() == before + 1);
		memset(brought, 7, LARGE);
		CHECK(tutti_put(w, 1, 0, brought, LARGE, &op) == 0);
		CHECK(tutti_unregister(job, brought) == 0);
		CHECK(tutti_wait(&op, -1) == 0);
		for (int i = 0; i < 1000 && open_registrations() > before; i++)
			usleep(1000);
		CHECK(open_registrations() == before);
	}
	CHECK(tutti_barrier(job, NULL) == 0);
	CHECK(tutti_rank(job) == 0 || (there[0] == 7 && there[LARGE - 1] == 7));
	tutti_window_close(w);
	tutti_free(job, there);
	free(brought);
}

/* The system locks no more: nothing is registered then. */
static void register_unlockable(tutti *job)
{
	static char brought[MIB]; /* until tutti_leave, which unregisters it */

	CHECK(tutti_barrier(job, NULL) == 0);
	if (tutti_rank(job) == 0) {
		fake_fail("reg_mr", 1, ENOMEM);
		CHECK(tutti_register(job, brought, MIB) == -ENOMEM && strstr(tutti_why(), "ulimit -l"));
		fake_fail("reg_mr", 0, 0);
		CHECK(tutti_unregister(job, brought) == -ENOENT);
		CHECK(tutti_register(job, brought, MIB) == 0);
	}
	CHECK(tutti_barrier(job, NULL) == 0);
}

static void on_verbs(void (*program)(tutti *))
{
	static const char *const adapters[] = { "fake_ib0", "fake_roce0" }; /* iWARP copies what a GET brings */

	for (size_t i = 0; i < TT_COUNT(adapters); i++)
		CU_ASSERT_EQUAL(run_ranks((struct ranks){ .size = 2, .wire = "verbs", .devices = adapters[i],
		                                          .program = program }), 0);
}

static void test_copies_nothing(void) { on_verbs(copy_nothing); }
static void test_copies_small(void) { on_verbs(copy_small); }
static void test_requests(void) { on_verbs(count_requests); }
static void test_polls_alone(void) { on_verbs(poll_alone); }
static void test_registrations(void) { on_verbs(register_once); }
static void test_kept(void) { on_verbs(give_up_kept); }
static void test_unlockable(void) { on_verbs(copy_unlockable); }
static void test_brought(void) { on_verbs(register_brought); }
static void test_many(void) { on_verbs(find_among_many); }
static void test_in_use(void) { on_verbs(unregister_in_use); }
static void test_register_unlockable(void) { on_verbs(register_unlockable); }

static CU_TestInfo costs_tests[] = {
	{ "all-reduce, push and pull copy nothing", test_copies_nothing },
	{ "what is not registered is copied, and counted", test_copies_small },
	{ "one request, doorbell and lock and no system call a put, and a get", test_requests },
	{ "the background thread leaves the nets to short calls", test_polls_alone },
	{ "nothing is registered twice", test_registrations },
	{ "what is kept makes room", test_kept },
	{ "a few bytes need no locked memory", test_unlockable },
	{ "registered memory is pinned once", test_brought },
	{ "as fast with 20,000 registered ranges", test_many },
	{ "unregistered in use", test_in_use },
	{ "registering without memory to lock", test_register_unlockable },
	CU_TEST_INFO_NULL,
};
static CU_SuiteInfo suites[] = { { "costs", NULL, NULL, NULL, NULL, costs_tests }, CU_SUITE_INFO_NULL };

int main(int argc, char **argv) { return run_suites(suites, argc, argv); }
