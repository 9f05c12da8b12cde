/* unit_rounds.c - a shard's clock: its rule step by step, then many seeds of workers that are slow, die, finish and
 * come late */
#include "table/rounds.h"
#include "tests/harness/cunit_main.h"
#include <stdlib.h>

enum { SEEDS = 3000, MOST = 12, VERSIONS = 4096, CHUNKS = 3 };

static struct tt_random dice;

static int draw(int n) { return (int)tt_random_below(&dice, (uint64_t)n); }

static tutti_consistency agreed; /* of the shard that was opened last, unless a test says otherwise */

static bool may_pull(const struct tt_rounds *r, uint64_t pushed)
{
	return tt_rounds_clock(r) >= tt_clock_to_pull(&agreed, pushed);
}

static struct tt_rounds *open_for(tutti_consistency as, int workers)
{
	struct tt_rounds *r = NULL;
	uint64_t clock = 1;

	agreed = as;
	CU_ASSERT_EQUAL_FATAL(tt_rounds_open(&as, workers, &r), 0);
	for (int w = 0; w < workers; w++) {
		CU_ASSERT_EQUAL(tt_rounds_join(r, w, &clock), 0);
		CU_ASSERT_EQUAL(clock, 0);
	}
	return r;
}

static bool push(struct tt_rounds *r, int worker) /* a whole one; did the clock move? */
{
	CU_ASSERT_EQUAL(tt_rounds_begin(r, worker), TT_ADMIT);
	return tt_rounds_complete(r, worker);
}

/* The rule, sentence by sentence. */

static void test_asynchronous(void)
{
	struct tt_rounds *r = open_for((tutti_consistency){ .mode = TUTTI_ASYNC }, 2);

	for (int i = 0; i < 5; i++)
		CU_ASSERT_FALSE(push(r, 0));
	CU_ASSERT_TRUE(may_pull(r, 5));
	CU_ASSERT_EQUAL(tt_rounds_clock(r), 0);
	CU_ASSERT_FALSE(tt_rounds_leave(r, 1));
	tt_rounds_close(r);
}

static void test_staleness(void)
{
	struct tt_rounds *r = open_for((tutti_consistency){ .mode = TUTTI_SSP, .staleness = 2 }, 3);
	uint64_t clock;

	for (int i = 0; i < 4; i++)
		CU_ASSERT_FALSE(push(r, 0));
	CU_ASSERT_TRUE(may_pull(r, 2));
	CU_ASSERT_FALSE(may_pull(r, 3));
	CU_ASSERT_FALSE(push(r, 1));
	CU_ASSERT_TRUE(push(r, 2));
	CU_ASSERT_TRUE(may_pull(r, 3));
	CU_ASSERT_EQUAL(tt_rounds_join(r, 3, &clock), 0);
	CU_ASSERT_EQUAL(clock, 1);
	CU_ASSERT_FALSE(tt_rounds_leave(r, 1));
	CU_ASSERT_FALSE(tt_rounds_leave(r, 2));
	CU_ASSERT_TRUE(tt_rounds_leave(r, 3)); /* 0 alone is left */
	CU_ASSERT_EQUAL(tt_rounds_clock(r), 4);
	CU_ASSERT_FALSE(tt_rounds_leave(r, 0));
	CU_ASSERT_EQUAL(tt_rounds_join(r, 0, &clock), 0);
	CU_ASSERT_EQUAL(clock, 4);
	tt_rounds_close(r);
}

static void test_rounds(void)
{
	struct tt_rounds *r = open_for((tutti_consistency){ .mode = TUTTI_BSP }, 2);

	CU_ASSERT_TRUE(may_pull(r, 0));
	CU_ASSERT_FALSE(push(r, 0));
	CU_ASSERT_FALSE(may_pull(r, 1));
	CU_ASSERT_EQUAL(tt_rounds_begin(r, 0), TT_WAIT); /* the next round is not open yet */
	CU_ASSERT_EQUAL(tt_rounds_begin(r, 1), TT_ADMIT);
	CU_ASSERT_EQUAL(tt_rounds_begin(r, 1), TT_WAIT);
	CU_ASSERT_TRUE(tt_rounds_complete(r, 1));
	CU_ASSERT_TRUE(may_pull(r, 1));
	CU_ASSERT_EQUAL(tt_rounds_clock(r), 1);
	CU_ASSERT_EQUAL(tt_rounds_begin(r, 0), TT_ADMIT);
	tt_rounds_close(r);
}

/* Who leaves: before its push, within it, after it. */
static void test_leaving(void)
{
	struct tt_rounds *r = open_for((tutti_consistency){ .mode = TUTTI_BSP }, 4);

	CU_ASSERT_FALSE(push(r, 0));
	CU_ASSERT_FALSE(push(r, 1));
	CU_ASSERT_FALSE(tt_rounds_complete(r, 3)); /* what has not begun */
	CU_ASSERT_EQUAL(tt_rounds_begin(r, 2), TT_ADMIT);
	CU_ASSERT_FALSE(tt_rounds_leave(r, 1));
	CU_ASSERT_FALSE(tt_rounds_leave(r, 3));
	CU_ASSERT_EQUAL(tt_rounds_counts(r).broken, 0);
	CU_ASSERT_TRUE(tt_rounds_leave(r, 2));
	CU_ASSERT_EQUAL(tt_rounds_counts(r).broken, 1);
	CU_ASSERT_EQUAL(tt_rounds_counts(r).live, 1);
	CU_ASSERT_EQUAL(tt_rounds_counts(r).pushing, 0);
	CU_ASSERT_EQUAL(tt_rounds_begin(r, 2), TT_DROP); /* what was still on its way */
	CU_ASSERT_FALSE(tt_rounds_complete(r, 2));
	CU_ASSERT_FALSE(tt_rounds_leave(r, 2));
	CU_ASSERT_TRUE(push(r, 0));
	CU_ASSERT_EQUAL(tt_rounds_clock(r), 2);
	tt_rounds_close(r);
}

/* Of the last two one has pushed and left: the other one's push is not dropped for that. */
static void test_a_push_does_not_stand_for_another(void)
{
	struct tt_rounds *r = open_for((tutti_consistency){ .mode = TUTTI_BSP }, 2);

	CU_ASSERT_FALSE(push(r, 0));
	CU_ASSERT_FALSE(tt_rounds_leave(r, 0));
	CU_ASSERT_TRUE(push(r, 1));
	CU_ASSERT_FALSE(tt_rounds_leave(r, 1)); /* nobody is left, and no round of nothing closes */
	CU_ASSERT_EQUAL(tt_rounds_clock(r), 1);
	tt_rounds_close(r);
}

static void test_joining(void)
{
	struct tt_rounds *r = open_for((tutti_consistency){ .mode = TUTTI_BSP }, 1);
	uint64_t clock;

	CU_ASSERT_TRUE(push(r, 0));
	CU_ASSERT_TRUE(push(r, 0));
	CU_ASSERT_EQUAL(tt_rounds_join(r, 40, &clock), 0);
	CU_ASSERT_EQUAL(clock, 2);
	CU_ASSERT_TRUE(may_pull(r, clock));
	CU_ASSERT_FALSE(push(r, 0)); /* is waited for */
	CU_ASSERT_TRUE(push(r, 40));
	CU_ASSERT_EQUAL(tt_rounds_join(r, 40, &clock), -EEXIST);
	CU_ASSERT_EQUAL(tt_rounds_join(r, -1, &clock), -EINVAL);
	CU_ASSERT_EQUAL(clock, 2);
	tt_rounds_close(r);
}

static void test_backup_workers(void)
{
	struct tt_rounds *r = open_for((tutti_consistency){ .mode = TUTTI_BSP, .backup = 1 }, 4);
	uint64_t clock;

	CU_ASSERT_FALSE(push(r, 0));
	CU_ASSERT_FALSE(push(r, 1));
	CU_ASSERT_EQUAL(tt_rounds_begin(r, 2), TT_ADMIT);
	CU_ASSERT_EQUAL(tt_rounds_begin(r, 3), TT_ADMIT);
	CU_ASSERT_FALSE(tt_rounds_complete(r, 2)); /* full, but the other one has begun */
	CU_ASSERT_EQUAL(tt_rounds_join(r, 4, &clock), 0);
	CU_ASSERT_EQUAL(clock, 1);
	CU_ASSERT_TRUE(tt_rounds_complete(r, 3));
	CU_ASSERT_FALSE(push(r, 0));
	CU_ASSERT_FALSE(push(r, 1));
	CU_ASSERT_FALSE(push(r, 2));
	CU_ASSERT_TRUE(push(r, 4));
	CU_ASSERT_EQUAL(tt_rounds_begin(r, 3), TT_DROP);
	CU_ASSERT_EQUAL(tt_rounds_counts(r).dropped, 1);
	CU_ASSERT_TRUE(may_pull(r, 2));
	CU_ASSERT_EQUAL(tt_rounds_begin(r, 3), TT_ADMIT); /* of the third round */
	tt_rounds_close(r);
}

/* A round that only waits for a push that has begun takes no other. */
static void test_a_full_round(void)
{
	struct tt_rounds *r = open_for((tutti_consistency){ .mode = TUTTI_BSP, .backup = 2 }, 4);

	CU_ASSERT_EQUAL(tt_rounds_begin(r, 0), TT_ADMIT);
	CU_ASSERT_FALSE(push(r, 1));
	CU_ASSERT_FALSE(push(r, 2));
	CU_ASSERT_EQUAL(tt_rounds_begin(r, 3), TT_DROP);
	CU_ASSERT_EQUAL(tt_rounds_begin(r, 3), TT_WAIT);
	CU_ASSERT_TRUE(tt_rounds_complete(r, 0));
	CU_ASSERT_EQUAL(tt_rounds_begin(r, 3), TT_ADMIT);
	tt_rounds_close(r);
}

/* More backup workers than workers: a round still takes a push. */
static void test_all_are_backup(void)
{
	struct tt_rounds *r = open_for((tutti_consistency){ .mode = TUTTI_BSP, .backup = 5 }, 2);

	CU_ASSERT_EQUAL(tt_rounds_clock(r), 0);
	CU_ASSERT_TRUE(push(r, 1));
	CU_ASSERT_EQUAL(tt_rounds_begin(r, 0), TT_DROP);
	CU_ASSERT_TRUE(push(r, 0));
	CU_ASSERT_FALSE(tt_rounds_leave(r, 0));
	CU_ASSERT_EQUAL(tt_rounds_clock(r), 2);
	tt_rounds_close(r);
}

static void test_switching(void)
{
	const tutti_consistency ssp = { .mode = TUTTI_SSP, .staleness = 3 }, bsp = { .mode = TUTTI_BSP },
				async = { .mode = TUTTI_ASYNC };
	struct tt_rounds *r = open_for(ssp, 2);
	uint64_t clock = 0;

	for (int i = 0; i < 3; i++)
		push(r, 0);
	CU_ASSERT_EQUAL(tt_rounds_begin(r, 1), TT_ADMIT);
	CU_ASSERT_EQUAL(tt_rounds_switch(r, &bsp, &clock), -EBUSY);
	CU_ASSERT_TRUE(tt_rounds_complete(r, 1));
	CU_ASSERT_EQUAL(tt_rounds_switch(r, &bsp, &clock), 0);
	CU_ASSERT_EQUAL(clock, 3);
	agreed = bsp;
	CU_ASSERT_TRUE(may_pull(r, 3));
	CU_ASSERT_FALSE(push(r, 1));
	CU_ASSERT_EQUAL(tt_rounds_switch(r, &async, &clock), 0); /* in the middle of a round */
	CU_ASSERT_EQUAL(clock, 4);
	push(r, 0);
	CU_ASSERT_EQUAL(tt_rounds_switch(r, &bsp, &clock), 0);
	CU_ASSERT_EQUAL(clock, 4);
	CU_ASSERT_FALSE(push(r, 0));
	CU_ASSERT_TRUE(push(r, 1));
	clock = 9; /* another server's */
	CU_ASSERT_EQUAL(tt_rounds_switch(r, &bsp, &clock), 0);
	CU_ASSERT_EQUAL(clock, 9);
	CU_ASSERT_EQUAL(tt_rounds_pushed(r, 1), 9);
	tt_rounds_close(r);
}

/* A shard that comes again out of a save is as far as all have come elsewhere, but for backup workers. */
static void test_resuming(void)
{
	for (int backup = 0; backup < 2; backup++) {
		const tutti_consistency as = { .mode = TUTTI_BSP, .backup = backup };
		struct tt_rounds *r = NULL;
		bool skipped;
		uint64_t clock;

		CU_ASSERT_EQUAL_FATAL(tt_rounds_open(&as, 3, &r), 0);
		tt_rounds_start(r, 4);
		for (int w = 0; w < 3; w++)
			CU_ASSERT(tt_rounds_join(r, w, &clock) == 0 && clock == 4);
		CU_ASSERT(!tt_rounds_resume(r, 0, 7, &skipped) && tt_rounds_clock(r) == 4);
		CU_ASSERT(tt_rounds_resume(r, 1, 8, &skipped) == backup && skipped == backup &&
		          tt_rounds_clock(r) == (backup ? 7 : 4));
		CU_ASSERT_EQUAL(tt_rounds_begin(r, 1), TT_WAIT);
		CU_ASSERT(tt_rounds_resume(r, 2, 6, &skipped) == !backup && tt_rounds_clock(r) == (backup ? 7 : 6));
		CU_ASSERT(!tt_rounds_resume(r, 2, 6, &skipped) && tt_rounds_pushed(r, 2) == 6);
		CU_ASSERT_EQUAL(tt_rounds_begin(r, 2), backup ? TT_DROP : TT_ADMIT); /* late elsewhere, too */
		tt_rounds_close(r);
	}
}

/* Who has not come again holds the clock back until it leaves. */
static void test_resuming_without(void)
{
	const tutti_consistency as = { .mode = TUTTI_BSP };
	struct tt_rounds *r = NULL;
	bool skipped;
	uint64_t clock;

	CU_ASSERT_EQUAL_FATAL(tt_rounds_open(&as, 2, &r), 0);
	tt_rounds_start(r, 4);
	CU_ASSERT(tt_rounds_join(r, 0, &clock) == 0 && tt_rounds_join(r, 1, &clock) == 0 && clock == 4);
	CU_ASSERT(!tt_rounds_resume(r, 0, 7, &skipped) && !tt_rounds_skip(r) && tt_rounds_clock(r) == 4);
	CU_ASSERT(!tt_rounds_leave(r, 1) && tt_rounds_skip(r) && tt_rounds_clock(r) == 7);
	CU_ASSERT(!tt_rounds_skip(r) && tt_rounds_begin(r, 0) == TT_ADMIT && tt_rounds_complete(r, 0) &&
	          tt_rounds_clock(r) == 8);
	CU_ASSERT(!tt_rounds_leave(r, 0) && !tt_rounds_skip(r));
	tt_rounds_close(r);
}

static void test_resuming_stale(void)
{
	const tutti_consistency as = { .mode = TUTTI_SSP, .staleness = 1 };
	struct tt_rounds *r = NULL;
	bool skipped;
	uint64_t clock;

	CU_ASSERT_EQUAL_FATAL(tt_rounds_open(&as, 2, &r), 0);
	tt_rounds_start(r, 2);
	CU_ASSERT(tt_rounds_join(r, 0, &clock) == 0 && tt_rounds_join(r, 1, &clock) == 0 && clock == 2);
	CU_ASSERT(!tt_rounds_resume(r, 0, 5, &skipped) && tt_rounds_clock(r) == 2);
	CU_ASSERT(tt_rounds_resume(r, 1, 4, &skipped) && !skipped && tt_rounds_clock(r) == 4);
	tt_rounds_close(r);
}

/* Its last worker has died in the middle of a push that others have whole. */
static void test_catching_up(void)
{
	const tutti_consistency as = { .mode = TUTTI_BSP }, stale = { .mode = TUTTI_SSP };
	struct tt_rounds *r = NULL;
	uint64_t clock;

	CU_ASSERT_EQUAL_FATAL(tt_rounds_open(&as, 1, &r), 0);
	CU_ASSERT(tt_rounds_join(r, 0, &clock) == 0 && tt_rounds_begin(r, 0) == TT_ADMIT);
	CU_ASSERT_FALSE(tt_rounds_catch_up(r, 1));
	CU_ASSERT_FALSE(tt_rounds_leave(r, 0));
	CU_ASSERT_FALSE(tt_rounds_catch_up(r, 0));
	CU_ASSERT(tt_rounds_catch_up(r, 3) && tt_rounds_clock(r) == 3);
	CU_ASSERT_FALSE(tt_rounds_catch_up(r, 3));
	CU_ASSERT(tt_rounds_join(r, 1, &clock) == 0 && clock == 3 && tt_rounds_begin(r, 1) == TT_ADMIT &&
	          tt_rounds_complete(r, 1));
	CU_ASSERT(!tt_rounds_catch_up(r, 9) && tt_rounds_clock(r) == 4);
	tt_rounds_close(r);
	CU_ASSERT_EQUAL_FATAL(tt_rounds_open(&stale, 1, &r), 0);
	CU_ASSERT_FALSE(tt_rounds_catch_up(r, 3));
	tt_rounds_close(r);
}

/* What has come of a broken push stays in the sum, so the mean has to count that push. */
static void test_broken_pushes_count(void)
{
	const tutti_consistency bsp = { .mode = TUTTI_BSP }, async = { 0 };
	struct tt_rounds *r = NULL;
	uint64_t clock = 0;

	CU_ASSERT_EQUAL_FATAL(tt_rounds_open(&bsp, 3, &r), 0);
	for (int i = 0; i < 3; i++)
		CU_ASSERT(tt_rounds_join(r, i, &clock) == 0 && tt_rounds_begin(r, i) == TT_ADMIT);
	CU_ASSERT(!tt_rounds_complete(r, 0) && !tt_rounds_leave(r, 1));
	CU_ASSERT(tt_rounds_complete(r, 2) && tt_rounds_summed(r) == 3);
	CU_ASSERT(tt_rounds_begin(r, 0) == TT_ADMIT && tt_rounds_begin(r, 2) == TT_ADMIT);
	CU_ASSERT(!tt_rounds_leave(r, 0) && !tt_rounds_leave(r, 2));
	CU_ASSERT(tt_rounds_catch_up(r, 2) && tt_rounds_summed(r) == 2);
	CU_ASSERT(tt_rounds_join(r, 1, &clock) == 0 && tt_rounds_begin(r, 1) == TT_ADMIT && !tt_rounds_leave(r, 1));
	CU_ASSERT(tt_rounds_switch(r, &async, &clock) == 0 && tt_rounds_summed(r) == 1);
	CU_ASSERT(tt_rounds_join(r, 1, &clock) == 0 && tt_rounds_begin(r, 1) == TT_ADMIT && !tt_rounds_leave(r, 1));
	CU_ASSERT(tt_rounds_switch(r, &bsp, &clock) == 0 && tt_rounds_summed(r) == 0);
	tt_rounds_close(r);
}

static void test_bad_consistency(void)
{
	static const struct { tutti_consistency as; const char *word;
	} bad[] = {
		{ { .mode = (tutti_mode)7 }, "there is no consistency 7" },
		{ { .mode = TUTTI_SSP, .staleness = -1 }, "staleness is -1" },
		{ { .mode = TUTTI_BSP, .staleness = 2 }, "staleness is 2" },
		{ { .mode = TUTTI_BSP, .backup = -3 }, "backup is -3" },
		{ { .mode = TUTTI_SSP, .backup = 1 }, "backup is 1" },
	};
	struct tt_rounds *r = NULL;

	for (size_t i = 0; i < TT_COUNT(bad); i++) {
		CU_ASSERT_EQUAL(tt_rounds_open(&bad[i].as, 1, &r), -EINVAL);
		CU_ASSERT_PTR_NOT_NULL(strstr(tt_why(), bad[i].word));
	}
	CU_ASSERT_PTR_NULL(r);
	tt_rounds_close(NULL);
}

/* Many seeds: a server and workers that each push and pull in turn, one small step of one of them at a time. */

enum doing { AWAY, COMPUTES, PARKED, PUSHES, PULLS };
struct worker {
	enum doing doing;
	uint64_t pushed;            /* as it counts */
	int left, chunk, speed;
	uint64_t delta;
};
struct run {
	tutti_consistency as;
	struct tt_rounds *rounds;
	struct worker of[MOST];
	uint64_t clock, dropped;    /* that we know of */
	uint64_t sum, value;        /* of the open round, or straight to the values */
	uint64_t given;             /* all chunks that were taken */
	uint64_t version[VERSIONS]; /* what the values were */
	int summed;                 /* complete pushes of the open round */
	const char *wrong;
};

static void blame(struct run *run, bool good, const char *sentence)
{
	if (!good && !run->wrong)
		run->wrong = sentence;
}

static bool is_live(const struct worker *w) { return w->doing != AWAY; }

static int count_doing(const struct run *run, enum doing doing)
{
	int n = 0;

	for (int i = 0; i < MOST; i++)
		n += run->of[i].doing == doing;
	return n;
}

static int count_lagging(const struct run *run, uint64_t clock) /* live, and no further than that */
{
	int n = 0;

	for (int i = 0; i < MOST; i++)
		n += is_live(&run->of[i]) && run->of[i].pushed <= clock;
	return n;
}

static bool is_full(const struct run *run)
{
	return run->as.mode == TUTTI_BSP && run->summed && count_lagging(run, run->clock) <= run->as.backup;
}

static uint64_t slowest(const struct run *run)
{
	uint64_t least = UINT64_MAX;

	for (int i = 0; i < MOST; i++)
		if (is_live(&run->of[i]) && run->of[i].pushed < least)
			least = run->of[i].pushed;
	return least;
}

static void wake_parked(struct run *run)
{
	for (int i = 0; i < MOST; i++)
		if (run->of[i].doing == PARKED)
			run->of[i].doing = COMPUTES;
}

static void publish(struct run *run)
{
	run->value += run->sum;
	run->sum = 0;
	run->summed = 0;
	run->clock = tt_rounds_clock(run->rounds);
	run->version[run->clock % VERSIONS] = run->value;
	wake_parked(run);
}

static void check_moved(struct run *run, bool moved) /* by the rule, from what the workers know */
{
	uint64_t clock = tt_rounds_clock(run->rounds);

	blame(run, moved == (clock != run->clock), "the clock moved and nobody said so");
	if (run->as.mode == TUTTI_BSP && moved) {
		blame(run, clock == run->clock + 1, "two rounds at once");
		blame(run, !count_doing(run, PUSHES), "a round closed over a push under way");
		blame(run, is_full(run), "a round closed too early");
	}
	if (moved)
		publish(run);
	blame(run, !is_full(run) || count_doing(run, PUSHES), "a round did not close");
	if (run->as.mode == TUTTI_SSP && slowest(run) != UINT64_MAX)
		blame(run, clock == slowest(run), "the clock is not the slowest worker's");
}

static void begin_push(struct run *run, int i)
{
	struct worker *w = &run->of[i];
	uint64_t round = w->pushed + 1;

	switch (tt_rounds_begin(run->rounds, i)) {
	case TT_ADMIT:
		blame(run, run->as.mode != TUTTI_BSP || round == run->clock + 1, "a push of another round was let in");
		blame(run, !is_full(run), "a push was let into a full round");
		w->doing = PUSHES;
		w->chunk = 0;
		w->delta = (uint64_t)draw(1000) * CHUNKS;
		break;
	case TT_WAIT:
		blame(run, run->as.mode == TUTTI_BSP && round == run->clock + 2, "a push waits without need");
		w->doing = PARKED;
		break;
	case TT_DROP:
		blame(run, run->as.backup && round <= run->clock + 1, "a push was dropped");
		run->dropped++;
		w->pushed++;
		w->doing = PULLS;
	}
}

static void push_chunk(struct run *run, int i)
{
	struct worker *w = &run->of[i];

	*(run->as.mode == TUTTI_BSP ? &run->sum : &run->value) += w->delta / CHUNKS;
	run->given += w->delta / CHUNKS;
	if (++w->chunk < CHUNKS)
		return;
	w->doing = PULLS;
	if (run->as.mode != TUTTI_ASYNC)
		w->pushed++;
	run->summed++;
	check_moved(run, tt_rounds_complete(run->rounds, i));
}

static void leave(struct run *run, int i)
{
	run->of[i].doing = AWAY;
	check_moved(run, tt_rounds_leave(run->rounds, i));
}

static void pull(struct run *run, int i)
{
	struct worker *w = &run->of[i];

	if (run->as.mode == TUTTI_BSP && !run->as.backup) {
		blame(run, run->clock == w->pushed, "a pull of another version");
		blame(run, run->value == run->version[w->pushed % VERSIONS], "a version changed");
	}
	if (run->as.mode == TUTTI_BSP)
		blame(run, run->clock >= w->pushed, "a version that is not there yet");
	if (run->as.mode == TUTTI_SSP)
		blame(run, w->pushed <= slowest(run) + (uint64_t)run->as.staleness, "staler than is allowed");
	w->doing = COMPUTES;
	if (--w->left == 0)
		leave(run, i);
}

static void join(struct run *run, int i)
{
	struct worker *w = &run->of[i];

	*w = (struct worker){ .doing = draw(2) ? COMPUTES : PULLS, .left = 1 + draw(12), .speed = draw(4) ? 8 : 1 };
	blame(run, !tt_rounds_join(run->rounds, i, &w->pushed), "nobody can join");
	blame(run, w->pushed == run->clock || w->pushed == run->clock + 1, "it does not join at the clock");
	check_moved(run, false);
}

static tutti_consistency draw_consistency(void)
{
	tutti_consistency as = { .mode = (tutti_mode)draw(3) };

	if (as.mode == TUTTI_SSP)
		as.staleness = draw(4);
	if (as.mode == TUTTI_BSP)
		as.backup = draw(2) ? 0 : draw(4);
	return as;
}

static void switch_mode(struct run *run)
{
	tutti_consistency to = draw_consistency();
	uint64_t clock = 0;
	int err = tt_rounds_switch(run->rounds, &to, &clock);

	blame(run, (err == -EBUSY) == (count_doing(run, PUSHES) > 0), "switched in the middle of a push");
	if (err)
		return;
	for (int i = 0; i < MOST; i++) {
		blame(run, !is_live(&run->of[i]) || run->of[i].pushed <= clock, "the clock went back");
		run->of[i].pushed = clock;
	}
	run->as = to;
	publish(run);
}

static bool can_go_on(const struct run *run, const struct worker *w)
{
	return w->doing == COMPUTES || w->doing == PUSHES ||
	       (w->doing == PULLS && tt_rounds_clock(run->rounds) >= tt_clock_to_pull(&run->as, w->pushed));
}

static void step(struct run *run, int i)
{
	switch (run->of[i].doing) {
	case COMPUTES: begin_push(run, i); break;
	case PUSHES: push_chunk(run, i); break;
	case PULLS: pull(run, i); break;
	case PARKED:
	case AWAY: break;
	}
}

static bool has_somebody_to_go_on(const struct run *run)
{
	for (int i = 0; i < MOST; i++)
		if (can_go_on(run, &run->of[i]))
			return true;
	return false;
}

static void turn(struct run *run)
{
	int i = draw(MOST), chance = draw(400);
	struct worker *w = &run->of[i];

	if (chance == 0 && is_live(w))
		leave(run, i); /* dies */
	else if (chance == 1 && !is_live(w))
		join(run, i);
	else if (chance == 2)
		switch_mode(run);
	else if (can_go_on(run, w) && draw(8) < w->speed)
		step(run, i);
}

static const char *run_seed(uint64_t seed)
{
	static struct run run;
	int workers, turns = 0;

	tt_random_seed(&dice, seed);
	run = (struct run){ .as = draw_consistency() };
	workers = 1 + draw(MOST);
	if (tt_rounds_open(&run.as, draw(MOST), &run.rounds))
		return "it does not open";
	for (int i = 0; i < workers; i++)
		join(&run, i);
	for (; count_doing(&run, AWAY) < MOST && !run.wrong; turns++) {
		turn(&run);
		blame(&run, has_somebody_to_go_on(&run) || count_doing(&run, AWAY) == MOST, "all are blocked");
		blame(&run, turns < 200000, "it does not end");
	}
	blame(&run, run.value + run.sum == run.given, "a push was lost, or counted twice");
	blame(&run, tt_rounds_counts(run.rounds).dropped == run.dropped && !tt_rounds_counts(run.rounds).live,
	      "the counters are wrong");
	tt_rounds_close(run.rounds);
	return run.wrong;
}

static void test_seeds(void)
{
	for (uint64_t seed = 0; seed < SEEDS; seed++) {
		const char *wrong = run_seed(seed);
		CU_ASSERT_PTR_NULL(wrong);
		if (wrong)
			printf("seed %llu: %s\n", (unsigned long long)seed, wrong);
	}
}

static CU_TestInfo rule_tests[] = {
	{ "asynchronous", test_asynchronous },
	{ "staleness", test_staleness },
	{ "rounds", test_rounds },
	{ "leaving", test_leaving },
	{ "a push does not stand for another", test_a_push_does_not_stand_for_another },
	{ "joining", test_joining },
	{ "backup workers", test_backup_workers },
	{ "a full round", test_a_full_round },
	{ "all are backup", test_all_are_backup },
	{ "switching", test_switching },
	{ "resuming", test_resuming },
	{ "resuming without a worker", test_resuming_without },
	{ "resuming under bounded staleness", test_resuming_stale },
	{ "catching up", test_catching_up },
	{ "broken pushes count", test_broken_pushes_count },
	{ "bad consistency", test_bad_consistency },
	CU_TEST_INFO_NULL,
};
static CU_TestInfo seed_tests[] = { { "seeds", test_seeds }, CU_TEST_INFO_NULL };

static CU_SuiteInfo suites[] = {
	{ "rule", NULL, NULL, NULL, NULL, rule_tests },
	{ "workers", NULL, NULL, NULL, NULL, seed_tests },
	CU_SUITE_INFO_NULL,
};

int main(int argc, char **argv) { return run_suites(suites, argc, argv); }
