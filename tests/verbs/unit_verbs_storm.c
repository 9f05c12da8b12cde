/* unit_verbs_storm.c - all at once over adapters that are not there (fake.h): ranks that have several threads, each
 * with puts, gets, adds and notifies of any size to any rank, while the first thread is in collectives and others start
 * children. Each byte is looked at. A race is for the thread sanitizer to see. */
#include "tests/harness/cunit_main.h"
#include "tests/harness/ranks.h"
#include <spawn.h>
#include <stdlib.h>
#include <sys/wait.h>

enum { RANKS = 3, THREADS = 3, ROUNDS = TT_TSAN ? 30 : 120, SUMS = TT_TSAN ? 6 : 20, CHILDREN = 8, SIZE = 96 << 10 };

struct shared { /* of each rank, for all others */
	uint64_t sums[THREADS];
	char of[RANKS][THREADS][SIZE]; /* who writes there */
};

struct worker {
	struct ranks *run;
	tutti *job;
	tutti_window *window;
	int thread;
	uint64_t added[RANKS], notified[RANKS];
	pthread_t id;
};

/* Any bytes, by a number. */
static void fill(char *at, size_t n, uint64_t seed)
{
	for (size_t i = 0; i < n; i++)
		at[i] = (char)(seed * 31 + i * 7 + (i >> 8));
}

/* Small, or longer than what is copied, or anything between. */
static size_t any_size(struct tt_random *r)
{
	size_t most = (size_t[]){ 8, 300, 5000, 40000, SIZE }[tt_random_below(r, 5)];

	return 1 + tt_random_below(r, most);
}

static void go_round(struct worker *w, struct tt_random *r, char *out, char *in)
{
	int me = tutti_rank(w->job), to = (me + 1 + (int)tt_random_below(r, RANKS - 1)) % RANKS;
	size_t n = any_size(r), skip = tt_random_below(r, SIZE - n + 1);
	size_t at = offsetof(struct shared, of) + ((size_t)me * THREADS + (size_t)w->thread) * SIZE + skip;
	uint64_t add = tt_random_below(r, 1000), old;

	fill(out, n, tt_random_next(r));
	CHECK(tutti_put(w->window, to, at, out, n, NULL) == 0);
	memset(in, 0, n);
	CHECK(tutti_get(w->window, to, at, in, n, NULL) == 0 && !memcmp(in, out, n));
	CHECK(tutti_add(w->window, to, sizeof(uint64_t) * (size_t)w->thread, add, &old, NULL) == 0);
	w->added[to] += add;
	CHECK(tutti_put_notify(w->window, to, at, out, n, w->thread, NULL) == 0);
	w->notified[to]++;
}

static void *work(void *arg)
{
	struct worker *w = arg;
	struct tt_random r;
	char *pinned = NULL, *plain = malloc(SIZE);

	this_run = w->run;
	tt_random_seed(&r, w->run->seed * 100 + (uint64_t)(tutti_rank(w->job) * THREADS + w->thread));
	CHECK(plain && tutti_alloc(w->job, SIZE, -1, (void **)&pinned) == 0);
	for (int i = 0; i < ROUNDS; i++)
		go_round(w, &r, i % 2 ? pinned : plain, i % 2 ? plain : pinned);
	tutti_free(w->job, pinned);
	free(plain);
	return NULL;
}

/* A child that executes another program harms nothing, whatever is registered and under way. */
static void *start_children(void *arg)
{
	struct worker *w = arg;
	char *words[] = { "true", NULL };
	int status = -1;
	pid_t pid;

	this_run = w->run;
	for (int i = 0; i < CHILDREN; i++) {
		if (i % 2) {
			CHECK(system("exit 3") == 3 << 8);
			continue;
		}
		CHECK(posix_spawnp(&pid, "true", NULL, NULL, words, NULL) == 0);
		CHECK(waitpid(pid, &status, 0) == pid && status == 0);
	}
	return NULL;
}

static void add_up(tutti *job, int round)
{
	size_t n = (size_t[]){ 1, 1000, 50000 }[round % 3];
	double *v = NULL;

	CHECK(tutti_alloc(job, n * sizeof *v, -1, (void **)&v) == 0);
	for (size_t i = 0; i < n; i++)
		v[i] = (double)(tutti_rank(job) + round) + (double)i;
	CHECK(tutti_allreduce(job, v, v, n, TUTTI_F64, TUTTI_SUM, NULL) == 0);
	for (size_t i = 0; i < n; i++)
		if (v[i] != (double)(RANKS * (RANKS - 1) / 2 + RANKS * round) + RANKS * (double)i) {
			CHECK(!"a sum is right");
			break;
		}
	tutti_free(job, v);
}

/* What others have added to this rank's words, and how often they have notified it, by what each says of itself. */
static void check_counts(tutti *job, const struct shared *mine, const struct worker *w)
{
	for (int t = 0; t < THREADS; t++) {
		double said[2 * RANKS];
		for (int i = 0; i < RANKS; i++) {
			said[2 * i] = (double)w[t].added[i];
			said[2 * i + 1] = (double)w[t].notified[i];
		}
		CHECK(tutti_allreduce(job, said, said, TT_COUNT(said), TUTTI_F64, TUTTI_SUM, NULL) == 0);
		const double *of_me = said + 2 * tutti_rank(job);
		CHECK((double)mine->sums[t] == of_me[0]);
		CHECK(tutti_wait_notify(w->window, -1, t, (uint64_t)of_me[1], -1) == 0);
		CHECK(tutti_wait_notify(w->window, -1, t, (uint64_t)of_me[1] + 1, 0) == -ETIMEDOUT);
	}
}

static void storm(tutti *job)
{
	struct worker w[THREADS + 1];
	struct shared *mine = NULL;
	tutti_window *window = NULL;

	CHECK(tutti_alloc(job, sizeof *mine, -1, (void **)&mine) == 0);
	memset(mine, 0, sizeof *mine);
	CHECK(tutti_window_open(job, "storm", mine, sizeof *mine, &window) == 0);
	for (int t = 0; t <= THREADS; t++) {
		w[t] = (struct worker){ .run = this_run, .job = job, .window = window, .thread = t };
		pthread_create(&w[t].id, NULL, t < THREADS ? work : start_children, &w[t]);
	}
	for (int i = 0; i < SUMS; i++)
		add_up(job, i);
	for (int t = 0; t <= THREADS; t++)
		pthread_join(w[t].id, NULL);
	CHECK(tutti_barrier(job, NULL) == 0);
	check_counts(job, mine, w);
	CHECK(tutti_barrier(job, NULL) == 0);
	tutti_window_close(window);
	tutti_free(job, mine);
}

static void test_storm(void)
{
	for (uint64_t i = 0; i < count_seeds(5); i++) /* InfiniBand, RoCE, iWARP, two by librdmacm */
		CU_ASSERT_EQUAL(run_ranks((struct ranks){ .size = RANKS, .wire = "verbs", .program = storm }), 0);
}

static CU_TestInfo storm_tests[] = { { "storm", test_storm }, CU_TEST_INFO_NULL };
static CU_SuiteInfo suites[] = { { "storm", NULL, NULL, NULL, NULL, storm_tests }, CU_SUITE_INFO_NULL };

int main(int argc, char **argv) { return run_suites(suites, argc, argv); }
