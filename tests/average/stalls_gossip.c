/* stalls_gossip.c - gossip of processes, some of which are stopped and some busy: the others go on mixing
 *
 * A quarter of the ranks is stopped (SIGSTOP), and a quarter calls nothing, while the other half goes on. All of them
 * go on afterwards, and no weight is missing. By hand, as under TEST_FULL:
 * stalls_gossip --ranks 20 --stalled 10 --bytes 1048576 --ms 2000 */
#define CREW_MOST 32
#include "tests/harness/crew.h"
#include "average/gossip.h"
#include "tests/harness/amount.h"
#include "tests/harness/with.h"
#include <math.h>

enum { STEP_MS = 10, WARM_UP = 15, ROUNDS = 60 }; /* rounds before the stop, and in it */

static int size, stalled, pause_ms;
static size_t bytes;
static tutti_gossip_way way_now;

static struct tally { /* of one rank while others are stalled */
	atomic_int all, rounds, mixed, given, taken;
} * tally;

static bool is_live(int rank) { return rank >= stalled; }
static bool is_busy(int rank) { return rank < stalled && rank % 2; }

static double sum_of(tutti *job, double x)
{
	EXPECT(tutti_allreduce(job, &x, &x, 1, TUTTI_F64, TUTTI_SUM, NULL) == 0);
	return x;
}

static tutti_gossip_info look_at(tutti_gossip *g)
{
	tutti_gossip_info info = { 0 };

	EXPECT(tutti_gossip_look(g, &info) == 0);
	return info;
}

static void count(struct tally *t, const tutti_gossip_result *r, bool gave)
{
	bool now = board->go == 2;

	t->all++;
	t->rounds += now;
	t->mixed += now && r->peer >= 0;
	t->given += now && gave;
	t->taken += now ? r->gifts : 0;
}

static void step(tutti_gossip *g)
{
	double had = look_at(g).weight;
	tutti_gossip_result r;

	EXPECT(tutti_gossip_publish(g, 0) == 0);
	bool gave = look_at(g).weight < had;
	sleep_ms(STEP_MS);
	EXPECT(tutti_gossip_mix(g, 0, &r) == 0);
	count(&tally[my_rank], &r, gave);
}

/* Takes what is left. The mean of the models, by weight, is what it was. */
static void settle(tutti *job, tutti_gossip *g, const double *x)
{
	tutti_gossip_info info;
	double left;

	do {
		EXPECT(tutti_gossip_mix(g, 0, NULL) == 0);
		info = look_at(g);
		left = sum_of(job, info.in_flight);
	} while (left > 0 && !mine->complaints);
	EXPECT(fabs(sum_of(job, info.weight) - 1) < 1e-12 && sum_of(job, fabs(info.lost)) == 0);
	EXPECT(fabs(sum_of(job, info.weight * x[0]) - (size - 1) / 2.0) < 1e-9);
	EXPECT(fabs(sum_of(job, info.weight * x[bytes / sizeof *x - 1]) - (size - 1) / 2.0) < 1e-9);
}

static void program(tutti *job)
{
	size_t n = bytes / sizeof(double);
	double *x = malloc(bytes);
	tutti_tensor model = { x, n, TUTTI_F64 };
	tutti_gossip_config c = WITH(tutti_gossip_defaults(), it.way = way_now);
	tutti_gossip *g = NULL;

	for (size_t i = 0; i < n; i++)
		x[i] = my_rank;
	EXPECT(tutti_gossip_open(job, "stalls", &model, 1, &c, &g) == 0);
	EXPECT(tutti_barrier(job, NULL) == 0);
	reach(1);
	while (board->go < 3) {
		step(g);
		if (is_busy(my_rank) && board->go == 2)
			await_go(3);
	}
	EXPECT(tutti_barrier(job, NULL) == 0);
	if (way_now == TUTTI_GOSSIP_PUSH_SUM)
		settle(job, g, x);
	EXPECT(tutti_barrier(job, NULL) == 0);
	tutti_gossip_close(g);
	free(x);
}

static bool await_rounds(atomic_int *(*of)(int), int rounds, bool live)
{
	for (int ms = 0; ms < HANG_MS; ms++, sleep_ms(1)) {
		bool all = true;
		for (int i = 0; i < size; i++)
			all = all && (*of(i) >= rounds || (live && !is_live(i)));
		if (all)
			return true;
	}
	return false;
}

static atomic_int *all_of(int rank) { return &tally[rank].all; }
static atomic_int *rounds_of(int rank) { return &tally[rank].rounds; }

static void strike_stopped(int signal_number)
{
	for (int i = 0; i < stalled; i++)
		if (!is_busy(i))
			strike(i, signal_number);
}

static void report(uint64_t took)
{
	int rounds = 0, mixed = 0, given = 0, taken = 0;
	double least = 1;

	for (int i = stalled; i < size; i++) {
		rounds += tally[i].rounds;
		mixed += tally[i].mixed;
		given += tally[i].given;
		taken += tally[i].taken;
		least = fmin(least, tally[i].rounds ? (double)tally[i].mixed / tally[i].rounds : 0);
	}
	printf("%s, %s: %d of %d ranks go on: %d rounds in %.2f s, %.3f of them mixed (the least of a rank: %.3f)",
	       wires, way_now == TUTTI_GOSSIP_PULL ? "pull" : "push-sum", size - stalled, size, rounds,
	       (double)took / 1e9, rounds ? (double)mixed / rounds : 0, least);
	if (way_now == TUTTI_GOSSIP_PUSH_SUM)
		printf("; %d given, %d taken: %.3f", given, taken, given ? (double)taken / given : 0);
	printf("\n");
	if (way_now == TUTTI_GOSSIP_PULL)
		WANT(mixed >= 0.9 * rounds, "%d of %d rounds mixed", mixed, rounds);
	else
		WANT(taken >= 0.9 * given && given > rounds / 10, "%d of %d gifts were taken in %d rounds", taken,
		     given, rounds);
}

static void stall(void)
{
	start((struct crew){ .size = size, .timeout_ms = 60000, .program = program });
	await(0, 1, NOBODY);
	WANT(await_rounds(all_of, WARM_UP, false), "a rank has not done %d rounds in %d ms", WARM_UP, HANG_MS);
	strike_stopped(SIGSTOP);
	uint64_t begun = tt_now();
	board->go = 2;
	sleep_ms(pause_ms);
	WANT(await_rounds(rounds_of, ROUNDS, true), "beside stopped ranks a rank has not done %d rounds in %d ms",
	     ROUNDS, HANG_MS);
	board->go = 3;
	report(tt_now() - begun);
	strike_stopped(SIGCONT);
	finish(NOBODY);
	memset((void *)tally, 0, CREW_MOST * sizeof *tally);
}

static void test_pull(void)
{
	way_now = TUTTI_GOSSIP_PULL;
	stall();
}

static void test_push_sum(void)
{
	way_now = TUTTI_GOSSIP_PUSH_SUM;
	stall();
}

static CU_TestInfo tests[] = {
	{ "pull beside stopped and busy ranks", test_pull },
	{ "push-sum beside stopped and busy ranks", test_push_sum },
	CU_TEST_INFO_NULL,
};
static CU_SuiteInfo suites[] = { { "stalls", NULL, NULL, NULL, NULL, tests }, CU_SUITE_INFO_NULL };

/* "--NAME value"; removed from the command line. */
static int option(int *argc, char **argv, const char *name, int without)
{
	for (int i = 1; i + 1 < *argc; i++)
		if (!strcmp(argv[i], name)) {
			without = atoi(argv[i + 1]);
			memmove(&argv[i], &argv[i + 2], (size_t)(*argc - i - 1) * sizeof *argv);
			*argc -= 2;
			break;
		}
	return without;
}

int main(int argc, char **argv)
{
	size = option(&argc, argv, "--ranks", all_or(20, 6));
	stalled = option(&argc, argv, "--stalled", all_or(10, 3));
	bytes = (size_t)option(&argc, argv, "--bytes", all_or(1 << 20, 1 << 16));
	pause_ms = option(&argc, argv, "--ms", all_or(2000, 100));
	tally = mmap(NULL, CREW_MOST * sizeof *tally, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	return run_over_wires(suites, argc, argv);
}
