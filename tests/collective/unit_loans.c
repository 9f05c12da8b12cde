/* unit_loans.c - memory that others hold a key of is the owner's again when the call returns that took it back: whoever
 * scribbles over it then spoils nobody's bytes, and nobody's bytes come */
#include "collective/collective.h"
#include "member/member.h"
#include "tests/harness/cunit_main.h"
#include "tests/harness/ranks.h"

enum { BYTES = 1 << 20, WORDS = BYTES / 8, OLD = 1, PUT = 2, SCRIBBLE = 3 };
#define SEEDS (uint64_t)all_or(TT_ASAN ? 10 : 40, 12)

static void fill(uint64_t *v, uint64_t with)
{
	for (int i = 0; i < WORDS; i++)
		v[i] = with;
}

static bool are_all(const uint64_t *v, uint64_t is)
{
	for (int i = 0; i < WORDS; i++)
		if (v[i] != is)
			return false;
	return true;
}

static void on_all(struct ranks run)
{
	for (run.wire = "sim"; run.seed < SEEDS; run.seed++)
		CU_ASSERT_EQUAL(run_ranks(run), 0);
	run.wire = "tcp";
	CU_ASSERT_EQUAL(run_ranks(run), 0);
	run.wire = "shm";
	CU_ASSERT_EQUAL(run_ranks(run), 0);
}

/* ---- a window that is closed while others put and get ---- */

static void own_window(tutti *job, uint64_t *memory)
{
	tutti_window *w;

	fill(memory, OLD);
	CHECK(tutti_window_open(job, "closing", memory, BYTES, &w) == 0);
	CHECK(tutti_barrier(job, NULL) == 0); /* the others know the window ... */
	CHECK(tutti_wait_notify(w, -1, 0, 2, -1) == 0); /* ... and have started */
	tutti_window_close(w);
	fill(memory, SCRIBBLE);
	CHECK(tutti_barrier(job, NULL) == 0);
	CHECK(are_all(memory, SCRIBBLE));
}

/* An operation that was started before the owner asked is done in full; a later one is refused. */
static void use_window(tutti *job, uint64_t *memory)
{
	bool puts = tutti_rank(job) == 1;
	tutti_window *w;
	tutti_op op = { 0 };
	uint64_t word;
	int err;

	fill(memory, puts ? PUT : 0);
	CHECK(tutti_window_open(job, "closing", memory, BYTES, &w) == 0);
	CHECK(tutti_barrier(job, NULL) == 0);
	CHECK(tutti_get(w, 0, 0, &word, 8, NULL) == 0);
	if (puts)
		CHECK(tutti_put(w, 0, 0, memory, BYTES / 2, &op) == 0);
	else
		CHECK(tutti_get(w, 0, BYTES / 2, memory + WORDS / 2, BYTES / 2, &op) == 0);
	CHECK(tutti_put_notify(w, 0, 0, NULL, 0, 0, NULL) == 0);
	CHECK(tutti_wait(&op, -1) == 0);
	for (int i = WORDS / 2; !puts && i < WORDS; i++)
		CHECK(memory[i] == OLD);
	while (!(err = tutti_get(w, 0, 8, &word, 8, NULL)))
		CHECK(word == OLD || word == PUT);
	CHECK(err == -ESTALE);
	CHECK(tutti_barrier(job, NULL) == 0);
	tutti_window_close(w);
}

static void program_window(tutti *job)
{
	uint64_t *memory = malloc(BYTES);

	if (tutti_rank(job) == 0)
		own_window(job, memory);
	else
		use_window(job, memory);
	CHECK(tutti_barrier(job, NULL) == 0);
	free(memory);
}

/* Closing hears on its caller's thread that the holder has gone, and leaves the caller's last sentence alone. */
static void program_holder_leaves(tutti *job)
{
	uint64_t word;
	tutti_window *w;

	CHECK(tutti_window_open(job, "held", &word, 8, &w) == 0);
	if (tutti_rank(job) == 1)
		CHECK(tutti_get(w, 0, 0, &word, 8, NULL) == 0 && tutti_put_notify(w, 0, 0, NULL, 0, 0, NULL) == 0);
	else
		CHECK(tutti_wait_notify(w, 1, 0, 1, -1) == 0);
	CHECK(tutti_rank(job) == 1 || tutti_get(w, 7, 0, &word, 8, NULL) == -EINVAL);
	CHECK(tutti_rank(job) == 1 || strstr(tutti_why(), "rank 7"));
	tutti_window_close(w);
	CHECK(tutti_rank(job) == 1 || strstr(tutti_why(), "rank 7"));
}

static void test_holder_leaves(void)
{
	for (int i = 0; i < 20; i++)
		CU_ASSERT_EQUAL(run_ranks((struct ranks){ .size = 2, .wire = i % 2 ? "tcp" : "shm",
		                                          .program = program_holder_leaves }), 0);
}

static void test_window(void) { on_all((struct ranks){ .size = 3, .program = program_window }); }

/* ---- a collective that is given up ---- */

static _Atomic uint64_t given_up; /* when rank 2 did */

/* Rank 1 has started it, and then computes: its background thread answers. Rank 2 calls something else. */
static void program_collective(tutti *job)
{
	uint64_t *v = calloc(WORDS, 8);
	tutti_op op = { 0 };

	fill(v, OLD);
	CHECK(tutti_barrier(job, NULL) == 0);
	if (tutti_rank(job) == 0) {
		CHECK(tutti_allreduce(job, v, v, WORDS, TUTTI_F64, TUTTI_SUM, NULL) < 0);
		CHECK(tt_now() - given_up < job->job->silence / 8);
		fill(v, SCRIBBLE);
	} else if (tutti_rank(job) == 1) {
		CHECK(tutti_allreduce(job, v, v, WORDS, TUTTI_F64, TUTTI_SUM, &op) == 0);
		pass_time(300 * TT_MS);
		CHECK(tutti_wait(&op, -1) < 0);
		fill(v, SCRIBBLE);
	} else {
		pass_time(20 * TT_MS);
		given_up = tt_now();
		CHECK(tutti_broadcast(job, v, 8, 0, NULL) < 0);
	}
	pass_time(50 * TT_MS);
	CHECK(tutti_rank(job) == 2 || are_all(v, SCRIBBLE));
	while (tutti_barrier(job, NULL) == -ETIMEDOUT)
		continue;
	free(v);
}

static void test_collective(void) { on_all((struct ranks){ .size = 3, .program = program_collective }); }

static CU_TestInfo loan_tests[] = {
	{ "a window is closed while others put and get", test_window },
	{ "a window is closed whose holder leaves", test_holder_leaves },
	{ "a collective is given up", test_collective },
	CU_TEST_INFO_NULL,
};
static CU_SuiteInfo suites[] = { { "loans", NULL, NULL, NULL, NULL, loan_tests }, CU_SUITE_INFO_NULL };
int main(int argc, char **argv) { return run_suites(suites, argc, argv); }
