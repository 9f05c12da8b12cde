/* unit_sim.c - a simulated network with a latency, a bandwidth and a loss of its own takes the time that these say; a
 * killed rank's program begins anew
 *
 * All times are virtual: no busy machine changes them. */
#include "tests/harness/cunit_main.h"
#include "tests/harness/ranks.h"

enum { SEEDS = 6, BYTES = 1 << 20 };
static const double ms = 1e-6; /* of a nanosecond */

static struct run {
	uint64_t seed;
	void (*program)(int rank, tutti *, tutti_window *);
	double took[3];    /* milliseconds, by rank */
	int started[2], failures;
} now;

#define HOLDS(condition) \
	do { \
		if (!(condition) && !now.failures++) \
			printf("line %d: %s does not hold; seed %d; %s\n", __LINE__, #condition, (int)now.seed, \
			       tutti_why()); \
	} while (0)

static void run_rank(int rank, void *arg)
{
	tutti *job;
	tutti_window *w;
	void *memory = NULL;

	(void)arg;
	HOLDS(!tutti_join(NULL, &job) && !tutti_alloc(job, 4 * BYTES, -1, &memory));
	HOLDS(!tutti_window_open(tutti_job(job), "w", memory, 4 * BYTES, &w));
	now.program(rank, job, w);
	if (!tt_sim_killed(rank))
		tutti_window_close(w);
	tutti_leave(job);
	tutti_free(NULL, memory);
}

static void run_world(struct tt_sim_config c, void (*program)(int, tutti *, tutti_window *))
{
	for (uint64_t seed = 1; seed <= SEEDS; seed++) {
		now = (struct run){ .seed = c.seed = seed, .program = program };
		c.program = run_rank;
		int err = tt_sim_run(&c);
		if (err)
			printf("seed %d: %s\n", (int)seed, tt_why());
		CU_ASSERT(!err && !now.failures);
	}
}

static bool about(double x, double want)
{
	if (x < want * 0.99 || x > want * 1.05 + 0.15)
		printf("%.3f ms, and not %.3f\n", x, want);
	return x >= want * 0.99 && x <= want * 1.05 + 0.15;
}

/* ---- latency, and bandwidth: 1 MiB takes 1.05 ms on a link of 1 GB/s ---- */

static const double wire = BYTES / 1e9 * 1e3;

static double time_one(tutti_window *w, int rank, size_t bytes, bool get)
{
	static char memory[3][BYTES];
	uint64_t start = tt_now();
	char *mine = memory[tt_sim_rank()];

	HOLDS(!(get ? tutti_get(w, rank, 0, mine, bytes, NULL) : tutti_put(w, rank, 0, mine, bytes, NULL)));
	return (double)(tt_now() - start) * ms;
}

static void use_link(int rank, tutti *job, tutti_window *w)
{
	int to = (rank + 1) % 3;

	time_one(w, to, 8, false); /* connects */
	HOLDS(!tutti_barrier(job, NULL));
	if (rank == 0) {
		HOLDS(about(time_one(w, 1, 8, false), 10));
		HOLDS(about(time_one(w, 1, BYTES, false), 10 + wire));
		HOLDS(about(time_one(w, 1, BYTES, true), 10 + wire));
	}
	HOLDS(!tutti_barrier(job, NULL));
	now.took[rank] = time_one(w, to, BYTES, rank % 2); /* each link carries one put or get in each direction */
	HOLDS(!tutti_barrier(job, NULL));
}

/* Two ranks write to, or read from, the third: its link carries both, one behind the other. */
static void share_link(int rank, tutti *job, tutti_window *w)
{
	for (int get = 0; get < 2; get++) {
		if (rank)
			time_one(w, 0, 8, get);
		HOLDS(!tutti_barrier(job, NULL));
		now.took[rank] = rank ? time_one(w, 0, BYTES, get) : 0;
		HOLDS(!tutti_barrier(job, NULL));
		HOLDS(rank || about(now.took[1] > now.took[2] ? now.took[1] : now.took[2], 10 + 2 * wire));
		HOLDS(!tutti_barrier(job, NULL));
	}
}

/* One rank writes to two others at once: its own link carries both. */
static void divide_link(int rank, tutti *job, tutti_window *w)
{
	static char memory[BYTES];
	tutti_op op[2] = { 0 };

	for (int i = 1; i < 3 && !rank; i++)
		time_one(w, i, 8, false);
	HOLDS(!tutti_barrier(job, NULL));
	uint64_t start = tt_now();
	for (int i = 1; i < 3 && !rank; i++)
		HOLDS(!tutti_put(w, i, 0, memory, BYTES, &op[i - 1]));
	for (int i = 0; i < 2; i++)
		HOLDS(!tutti_wait(&op[i], -1));
	HOLDS(rank || about((double)(tt_now() - start) * ms, 10 + 2 * wire));
	HOLDS(!tutti_barrier(job, NULL));
}

static void test_links(void)
{
	struct tt_sim_config c = { .ranks = 3, .latency_ns = 5 * TT_MS, .bandwidth = 1000000000 };

	run_world(c, use_link);
	run_world(c, share_link);
	run_world(c, divide_link);
}

/* ---- loss: late, in order, nothing lost ---- */

enum { PUTS = 200 };

static void put_in_order(int rank, tutti *job, tutti_window *w)
{
	uint64_t at[PUTS + 1] = { 0 };
	int late = 0;

	for (uint64_t i = 1; i <= PUTS; i++) {
		if (rank == 0)
			HOLDS(!tutti_put_notify(w, 1, 0, &i, sizeof i, 0, NULL));
		else
			HOLDS(!tutti_wait_notify(w, 0, 0, i, -1));
		at[i] = tt_now();
		late += i > 1 && at[i] - at[i - 1] > 45 * TT_MS;
	}
	/* a put, its notify or its acknowledgement: each of these is lost with a chance of a tenth */
	HOLDS(rank || (late > PUTS / 10 && late < PUTS / 2));
	HOLDS(!tutti_barrier(job, NULL));
}

static void test_loss(void)
{
	struct tt_sim_config c = { .ranks = 2, .latency_ns = 50000, .loss = 0.1, .retransmit_ns = 50 * TT_MS };

	run_world(c, put_in_order);
}

/* ---- a life after death ---- */

static void live_twice(int rank, tutti *job, tutti_window *w)
{
	uint64_t word = 0;

	if (rank) {
		bool again = now.started[1]++;
		HOLDS(tutti_late(job) == again && tutti_rank(tutti_job(job)) == 1);
		word = 41 + again;
		HOLDS(!tutti_put(w, 0, 0, &word, sizeof word, NULL));
		if (!again)
			tt_sim_restart(1, 100 * TT_MS), tt_sim_kill(1, 50 * TT_MS);
		while (!tt_sim_killed(1) && now.started[1] < 3)
			tt_sim_sleep(TT_MS);
		return;
	}
	uint64_t epoch = tt_member(job->job, 1)->epoch;
	for (int i = 0; i < 5000 && word != 42; i++) {
		tt_sim_sleep(TT_MS);
		HOLDS(!tutti_get(w, 0, 0, &word, sizeof word, NULL));
	}
	HOLDS(word == 42 && now.started[1] == 2);
	HOLDS(tt_member(job->job, 1)->epoch > epoch);
	HOLDS(!tutti_get(w, 1, 0, &word, sizeof word, NULL));
	now.started[1] = 3;
}

static void test_restart(void)
{
	run_world((struct tt_sim_config){ .ranks = 2 }, live_twice);
	run_world((struct tt_sim_config){ .ranks = 2, .latency_ns = 50000, .bandwidth = 1000000 }, live_twice);
}

static CU_TestInfo tests[] = {
	{ "links", test_links },
	{ "loss", test_loss },
	{ "restart", test_restart },
	CU_TEST_INFO_NULL,
};
static CU_SuiteInfo suites[] = { { "sim", NULL, NULL, NULL, NULL, tests }, CU_SUITE_INFO_NULL };

int main(int argc, char **argv) { return run_suites(suites, argc, argv); }
