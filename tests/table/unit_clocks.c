/* unit_clocks.c - tables in rounds and under bounded staleness: what workers see, who waits for whom, and that no push
 * is lost or doubled */
#include "engine/engine.h"
#include "member/member.h"
#include "table/table_private.h"
#include "tests/harness/cunit_main.h"
#include "tests/harness/folders.h"
#include "tests/table/tables.h"
#include "transport/sim/sim.h"

#if TT_TSAN
enum { SEEDS = 2, STORMS = 20 };
#elif TT_ASAN
enum { SEEDS = 4, STORMS = 100 };
#else
#define SEEDS (uint64_t)all_or(10, 2)
#define STORMS (uint64_t)all_or(1000, 150)
#endif

static void on_wires(void (*program)(tutti *), const int *sizes) { run_on_wires(program, sizes, SEEDS); }

static tutti_table_config config_of(uint64_t count, tutti_mode mode, int staleness, int backup)
{
	tutti_table_config c = tutti_table_f32(count, tutti_accumulate());

	c.consistency = (tutti_consistency){ .mode = mode, .staleness = staleness, .backup = backup };
	return c;
}

static void dawdle(tutti *job) /* one now and then */
{
	uint64_t chance;

	tt_entropy(&chance, sizeof chance);
	if (chance % (uint64_t)(2 * tutti_size(job)) == 0)
		pass_time(chance / 64 % 3 * TT_MS / 2);
}

/* ---- rounds ---- */

enum { ROUNDS = 12 };

/* The k-th pull of all has all pushes of the first k rounds, and no other. */
static void go_in_rounds(tutti *job, size_t count)
{
	const tutti_table_config c = config_of(count, TUTTI_BSP, 0, 0);
	tutti_table *t = open_table(job, "clocks", &c);
	float *d = calloc(count, sizeof *d), *v = calloc(count, sizeof *v), all = 0;
	int n = tutti_size(job);

	for (int k = 1; k <= ROUNDS; k++) {
		fill(d, count, (float)(k * (tutti_rank(job) + 1)));
		all += (float)(k * n * (n + 1) / 2);
		dawdle(job);
		if (k % 3) {
			CHECK(tutti_table_push(t, d, NULL, NULL) == 0);
			CHECK(tutti_table_pull(t, v, NULL) == 0 && all_are(v, count, all));
		} else {
			CHECK(tutti_table_push_pull(t, d, NULL, v, NULL) == 0 && all_are(v, count, all));
		}
		if (k % 4 == 0)
			CHECK(tutti_table_pull(t, v, NULL) == 0 && all_are(v, count, all));
	}
	close_table(job, t);
	free(d);
	free(v);
}

static void program_rounds(tutti *job)
{
	static const size_t counts[] = { 1, 1000, 30001, 200003 };

	for (size_t i = 0; i < TT_COUNT(counts); i++)
		go_in_rounds(job, counts[i]);
}

static void test_rounds(void) { on_wires(program_rounds, (const int[]){ 1, 2, 3, 0 }); }

/* Started all at once: each waits at its gate until its round is open. */
static void program_ahead(tutti *job)
{
	enum { COUNT = 40000, CALLS = 5 };
	const tutti_table_config c = config_of(COUNT, TUTTI_BSP, 0, 0);
	tutti_table *t = open_table(job, "clocks", &c);
	float *d = calloc(COUNT, sizeof *d), *v[CALLS];
	tutti_op op[2 * CALLS];

	fill(d, COUNT, 1);
	for (int k = 0; k < CALLS; k++) {
		v[k] = calloc(COUNT, sizeof *v[k]);
		CHECK(tutti_table_push(t, d, NULL, &op[2 * k]) == 0);
		CHECK(tutti_table_pull(t, v[k], &op[2 * k + 1]) == 0);
	}
	for (int k = 0; k < 2 * CALLS; k++)
		CHECK(tutti_wait(&op[k], -1) == 0);
	/* later rounds may have closed before it was let in, but not those that write over this one */
	for (int k = 0; k < CALLS; k++) {
		CHECK(all_are(v[k], COUNT, (float)((k + 1) * tutti_size(job))));
		free(v[k]);
	}
	close_table(job, t);
	free(d);
}

static void test_ahead(void) { on_wires(program_ahead, (const int[]){ 1, 2, 4, 0 }); }

/* One step of the rule for all that was pushed in a round: momentum shows it, and the options of the push. */
static void program_rule(tutti *job)
{
	enum { COUNT = 3000 };
	tutti_table_config c = config_of(COUNT, TUTTI_BSP, 0, 0);
	tutti_update mean = tutti_update_defaults();
	float *d = calloc(COUNT, sizeof *d), *v = calloc(COUNT, sizeof *v), m = 0, w = 8;

	mean.scale = 1.0 / tutti_size(job);
	mean.learning_rate = 0.5;
	c.updater = tutti_momentum(NAN, 0.5);
	tutti_table *t = open_table(job, "clocks", &c);
	fill(v, COUNT, w);
	if (tutti_rank(job) == 0)
		CHECK(tutti_table_assign(t, v, NULL) == 0);
	CHECK(tutti_barrier(job, NULL) == 0);
	fill(d, COUNT, 2);
	for (int k = 0; k < 4; k++) {
		m = 0.5f * m + 2;
		w -= 0.5f * m;
		CHECK(tutti_table_push_pull(t, d, &mean, v, NULL) == 0 && all_are(v, COUNT, w));
	}
	close_table(job, t);
	free(d);
	free(v);
}

static void test_rule(void) { on_wires(program_rule, (const int[]){ 1, 2, 4, 0 }); }

/* ---- bounded staleness ---- */

/* Element i, a shard of its own and so never torn, counts the pushes of worker i. */
static void program_stale(tutti *job)
{
	enum { STALENESS = 2 };
	int n = tutti_size(job), me = tutti_rank(job);
	tutti_table_config c = config_of((uint64_t)n, TUTTI_SSP, STALENESS, 0);
	int64_t d[16] = { 0 }, v[16];

	c.type = TUTTI_I64;
	tutti_table *t = open_table(job, "clocks", &c);

	d[me] = 1;
	for (int k = 1; k <= 3 * ROUNDS; k++) {
		dawdle(job);
		CHECK(tutti_table_push(t, d, NULL, NULL) == 0);
		CHECK(tutti_table_pull(t, v, NULL) == 0);
		CHECK(v[me] == k);
		for (int i = 0; i < n; i++)
			CHECK(v[i] >= k - STALENESS);
	}
	close_table(job, t);
}

static void test_stale(void) { on_wires(program_stale, (const int[]){ 1, 2, 4, 0 }); }

/* A scale of 1 is none, also of integers; and who pushes no row has pushed. */
static void program_little(tutti *job)
{
	tutti_update once = tutti_update_defaults();
	tutti_table_config c = config_of(1000, TUTTI_BSP, 0, 0);
	int64_t d[1000], v[1000];
	int n = tutti_size(job), me = tutti_rank(job);
	const uint64_t row = 999;

	once.scale = 1;
	c.type = TUTTI_I64;
	tutti_table *t = open_table(job, "clocks", &c);

	for (int i = 0; i < 1000; i++)
		d[i] = i;
	for (int k = 1; k <= 3; k++) {
		CHECK(tutti_table_push(t, d, &once, NULL) == 0 && tutti_table_pull(t, v, NULL) == 0);
		CHECK(v[0] == 0 && v[999] == 999 * n * k);
	}
	CHECK(tutti_table_push_rows(t, &row, me > 0, me ? d + 1 : NULL, NULL, NULL) == 0 &&
	      tutti_table_pull(t, v, NULL) == 0);
	CHECK(v[999] == 999 * n * 3 + n - 1);
	close_table(job, t);
}

static void test_little(void) { on_wires(program_little, (const int[]){ 1, 2, 4, 0 }); }

/* ---- from one consistency to another ---- */

/* Of two ranks the table keeps versions, of three the last only reads, of four one serves. */
static void program_switch(tutti *job)
{
	static const tutti_consistency to[] = {
		{ .mode = TUTTI_BSP },   { .mode = TUTTI_SSP, .staleness = 1 }, { .mode = TUTTI_BSP },
		{ .mode = TUTTI_ASYNC }, { .mode = TUTTI_BSP, .backup = 1 },    { .mode = TUTTI_SSP },
		{ .mode = TUTTI_BSP }
	};
	static const int ranks[] = { 0, 1 };
	enum { COUNT = 70001 };
	tutti_table_config c = config_of(COUNT, TUTTI_ASYNC, 0, 0);
	float *d = calloc(COUNT, sizeof *d), *v = calloc(COUNT, sizeof *v), all = 0;
	int n = tutti_size(job), workers = n == 3 ? 2 : n;

	if (n == 2) {
		c.flags = TUTTI_TABLE_SNAPSHOTS;
		c.publish_ms = 1;
	}
	c.servers = n == 4;
	c.server = n == 4 ? ranks : NULL;
	c.workers = n == 3 ? workers : 0;
	c.worker = n == 3 ? ranks : NULL;
	tutti_table *t = open_table(job, "clocks", &c);
	fill(d, COUNT, 1);
	for (size_t i = 0; i < TT_COUNT(to); i++) {
		int pushes = to[i].backup ? 0 : 3;
		if (tutti_rank(job) < workers)
			CHECK(tutti_table_switch(t, &to[i]) == 0);
		for (int k = 0; k < pushes && tutti_rank(job) < workers; k++) {
			dawdle(job);
			CHECK(tutti_table_push(t, d, NULL, NULL) == 0);
		}
		if (tutti_rank(job) < workers && to[i].mode == TUTTI_BSP)
			CHECK(tutti_table_pull(t, v, NULL) == 0); /* its rounds have closed */
		if (n == 2)
			pass_time(2 * TT_MS); /* a version would be due */
		CHECK(tutti_barrier(job, NULL) == 0);
		all += (float)(pushes * workers);
		for (int k = 0; tutti_rank(job) >= workers && k < 1000 &&
		                !(tutti_table_pull(t, v, NULL) == 0 && all_are(v, COUNT, all));
		     k++)
			pass_time(TT_MS); /* until it is told */
		CHECK(tutti_table_pull(t, v, NULL) == 0 && all_are(v, COUNT, all));
		if (to[i].mode == TUTTI_BSP || n == 2)
			CHECK(tutti_table_snapshot(t, v, NULL, NULL) == 0);
		CHECK(tutti_barrier(job, NULL) == 0);
	}
	close_table(job, t);
	free(d);
	free(v);
}

/* However it came to that. */
static void program_apart(tutti *job)
{
	const tutti_consistency rounds = { .mode = TUTTI_BSP };
	const tutti_table_config c = config_of(5000, TUTTI_BSP, 0, 0);
	tutti_table *t = open_table(job, "apart", &c);
	tutti_versions versions = { 0 };
	float d[5000], v[5000];

	fill(d, 5000, 1);
	CHECK(tutti_table_push_pull(t, d, NULL, v, NULL) == 0);
	CHECK(tutti_barrier(job, NULL) == 0);
	if (tutti_rank(job) == 0) {
		tt_lock(t->job);
		tt_rounds_start(t->shard.rounds, 4);
		tt_version_skip(t);
		tt_unlock(t->job);
	}
	CHECK(tutti_barrier(job, NULL) == 0);
	CHECK(tutti_table_switch(t, &rounds) == 0);
	CHECK(tutti_table_snapshot(t, v, &versions, NULL) == 0 && versions.newest == 4 &&
	      all_are(v, 5000, (float)tutti_size(job)));
	CHECK(tutti_table_push_pull(t, d, NULL, v, NULL) == 0 && all_are(v, 5000, (float)(2 * tutti_size(job))));
	CHECK(tutti_table_snapshot(t, v, &versions, NULL) == 0 && versions.oldest == 5 && versions.newest == 5);
	close_table(job, t);
}

static void program_odd_switch(tutti *job)
{
	const tutti_consistency mine = { .mode = TUTTI_SSP, .staleness = tutti_rank(job) },
				bad = { .mode = TUTTI_SSP, .staleness = -1 }, rounds = { .mode = TUTTI_BSP };
	const tutti_table_config c = config_of(10, TUTTI_ASYNC, 0, 0);
	tutti_table *t = open_table(job, "clocks", &c);

	CHECK(tutti_table_switch(t, &bad) == -EINVAL && strstr(tutti_why(), "staleness"));
	CHECK(tutti_table_switch(t, &mine) == -EINVAL && strstr(tutti_why(), "different"));
	CHECK(tutti_barrier(job, NULL) == 0);
	if (tutti_rank(job) != 1) /* each is told who is missing, also after another one has given up */
		CHECK(tutti_table_switch(t, &rounds) == -ETIMEDOUT && strstr(tutti_why(), "rank 1 has not asked"));
	else
		pass_time(600 * TT_MS);
	close_table(job, t);
}

enum { PATIENCE = 400 /* ms */, SKEW = 200000 /* ns */ };
static struct {
	int err[8];              /* what each rank's switch returned */
	int switched, withdrawn; /* worlds */
} late;

static void wait_until(uint64_t then)
{
	if (tt_now() < then)
		pass_time(then - tt_now());
}

/* The others ask at about the time when rank 0 gives up, or long after it. All are told the same, and whoever was
 * told that nothing has * changed goes on at once. */
static void program_late_switch(tutti *job)
{
	const tutti_consistency rounds = { .mode = TUTTI_BSP };
	const tutti_table_config c = config_of(3000, TUTTI_SSP, 3, 0);
	tutti_table *t = open_table(job, "clocks", &c);
	int me = tutti_rank(job), n = tutti_size(job);
	float d[3000], v[3000];

	fill(d, 3000, 1);
	meet(job);
	uint64_t began = tt_now();
	if (me)
		wait_until(began + PATIENCE * TT_MS - SKEW / 2 + tt_sim_chance(tt_sim_chance(4) ? SKEW : 100 * TT_MS));
	late.err[me] = tutti_table_switch(t, &rounds);
	CHECK(late.err[me] == 0 || (late.err[me] == -ETIMEDOUT && strstr(tutti_why(), "another consistency")));
	CHECK(late.err[me] == 0 || !strstr(tutti_why(), "rank 0")); /* it has asked, and given up */
	CHECK(tutti_table_push(t, d, NULL, NULL) == 0);
	wait_until(began + 3 * PATIENCE * TT_MS);
	CHECK(late.err[me] == late.err[0]);
	for (int i = 0; i < n; i++)
		CHECK((t->source[i].as.mode == TUTTI_BSP) == !late.err[0]);
	late.switched += !me && !late.err[0];
	late.withdrawn += !me && late.err[0];
	meet(job);
	CHECK(tutti_table_switch(t, &rounds) == 0);
	for (int k = 1; k <= 3; k++)
		CHECK(tutti_table_push_pull(t, d, NULL, v, NULL) == 0 && all_are(v, 3000, (float)(n * (k + 1))));
	close_table(job, t);
}

static void test_late_switch(void)
{
	struct ranks run = { .size = 2, .wire = "sim", .timeout_ms = PATIENCE, .program = program_late_switch };

	late.switched = late.withdrawn = 0;
	for (; run.size < 5; run.size++)
		for (run.seed = 0; run.seed < 10 * SEEDS; run.seed++)
			CU_ASSERT_EQUAL(run_ranks(run), 0);
	CU_ASSERT(only_verbs() || (late.switched > 0 && late.withdrawn > 0));
}

static void program_switch_closed(tutti *job) /* at one server */
{
	const tutti_consistency rounds = { .mode = TUTTI_BSP };
	const tutti_table_config c = config_of(10, TUTTI_ASYNC, 0, 0);
	tutti_table *t = open_table(job, "clocks", &c);

	CHECK(tutti_barrier(job, NULL) == 0);
	if (tutti_rank(job) == 1)
		tutti_table_close(t);
	CHECK(tutti_barrier(job, NULL) == 0);
	if (tutti_rank(job) != 1)
		CHECK(tutti_table_switch(t, &rounds) == -ESTALE && strstr(tutti_why(), "rank 1 has closed it"));
	CHECK(tutti_barrier(job, NULL) == 0);
	tutti_table_close(tutti_rank(job) == 1 ? NULL : t);
}

static void program_switch_killed(tutti *job) /* one server */
{
	const tutti_consistency rounds = { .mode = TUTTI_BSP };
	const tutti_table_config c = config_of(10, TUTTI_ASYNC, 0, 0);
	tutti_table *t = open_table(job, "clocks", &c);

	CHECK(tutti_barrier(job, NULL) == 0);
	if (tutti_rank(job) == 1)
		tt_sim_kill(1, TT_MS);
	pass_time(1000 * TT_MS);
	if (tutti_rank(job) != 1)
		CHECK(tutti_table_switch(t, &rounds) == -ECONNRESET && strstr(tutti_why(), "changed: rank 1 "));
	pass_time(1000 * TT_MS); /* or another finds it closed */
	tutti_table_close(t);
}

static void test_switch(void)
{
	on_wires(program_switch, (const int[]){ 1, 2, 3, 4, 0 });
	on_wires(program_apart, (const int[]){ 1, 3, 0 });
	CU_ASSERT_EQUAL(
		run_ranks((struct ranks){ .size = 2, .wire = "sim", .timeout_ms = 400, .program = program_odd_switch }),
		0);
	CU_ASSERT_EQUAL(run_real_ranks((struct ranks){ .size = 3, .timeout_ms = 400, .program = program_odd_switch }),
	                0);
	on_wires(program_switch_closed, (const int[]){ 3, 0 });
	CU_ASSERT_EQUAL(run_ranks((struct ranks){
				.size = 3, .wire = "sim", .timeout_ms = 400, .program = program_switch_killed }),
	                0);
}

/* ---- who is not waited for ---- */

static void program_finished(tutti *job) /* rank 0 after a few rounds; it still pulls */
{
	const tutti_table_config c = config_of(50, TUTTI_BSP, 0, 0);
	tutti_table *t = open_table(job, "clocks", &c);
	float d[50], v[50];
	int n = tutti_size(job), rounds = tutti_rank(job) ? 9 : 4;

	fill(d, 50, 1);
	for (int k = 1; k <= rounds; k++) {
		CHECK(tutti_table_push(t, d, NULL, NULL) == 0);
		CHECK(tutti_table_pull(t, v, NULL) == 0);
		CHECK(v[0] == (float)(k <= 4 ? k * n : 4 * n + (k - 4) * (n - 1)) && all_are(v, 50, v[0]));
	}
	CHECK(tutti_table_finish(t) == 0);
	CHECK(tutti_table_push(t, d, NULL, NULL) == -EPERM && strstr(tutti_why(), "finished"));
	CHECK(tutti_table_pull(t, v, NULL) == 0 && v[0] >= (float)(4 * n) && v[0] <= (float)(4 * n + 5 * (n - 1)));
	close_table(job, t);
}

static void test_finished(void) { on_wires(program_finished, (const int[]){ 1, 2, 4, 0 }); }

/* Pushes are given up at any moment, some while one server's round is open and another's is not. A push counts at all
 * servers or at none, so their clocks are the same in the end, and all that was not given up is there. */
static void program_given_up(tutti *job)
{
	enum { COUNT = 60001, PUSHES = 10 };
	tutti_table_config c = config_of(COUNT, TUTTI_BSP, 0, 0);
	tutti_table *t = open_table(job, "given up", &c);
	tutti_versions versions = { 0 };
	float *d = calloc(COUNT, sizeof *d), *v = calloc(COUNT, sizeof *v);
	tutti_op op[PUSHES];

	fill(d, COUNT, 1);
	for (int k = 0; k < PUSHES; k++)
		CHECK(tutti_table_push(t, d, NULL, &op[k]) == 0);
	for (int k = 0; k < PUSHES; k++) {
		uint64_t chance;
		tt_entropy(&chance, sizeof chance);
		pass_time(chance / 8 % 100 * 1000);
		if (chance % 3 == 0)
			CHECK(tutti_cancel(&op[k]) == 0);
		CHECK(tutti_wait(&op[k], -1) == 0 || chance % 3 == 0);
	}
	CHECK(tutti_table_finish(t) == 0);
	for (int i = 0; i < t->servers; i++)
		CHECK(t->source[i].pushed == t->source[0].pushed);
	CHECK(tutti_barrier(job, NULL) == 0);
	CHECK(tutti_table_snapshot(t, v, &versions, NULL) == 0 && versions.oldest == versions.newest &&
	      versions.newest <= PUSHES);
	close_table(job, t);
	free(d);
	free(v);
}

static void test_given_up(void) { run_on_wires(program_given_up, (const int[]){ 1, 2, 3, 4, 0 }, 4 * SEEDS); }

/* With one backup worker nobody waits for the slow one; what it pushes late is left out, whole. */
static void program_backup(tutti *job)
{
	enum { COUNT = 30000 };
	tutti_stat dropped = { 0 }, pushed = dropped;
	int n = tutti_size(job), me = tutti_rank(job);
	const tutti_table_config c = config_of(COUNT, TUTTI_BSP, 0, 1);
	tutti_table *t = open_table(job, "clocks", &c);
	float *d = calloc(COUNT, sizeof *d), *v = calloc(COUNT, sizeof *v);

	fill(d, COUNT, 1);
	for (int k = 1; k <= ROUNDS; k++) {
		if (me == n - 1)
			pass_time(2 * TT_MS);
		CHECK(tutti_table_push(t, d, NULL, NULL) == 0);
		CHECK(tutti_table_pull(t, v, NULL) == 0);
		CHECK(v[0] >= (float)(k * (n - 1)) && v[COUNT - 1] >= (float)(k * (n - 1)) &&
		      v[0] <= (float)(ROUNDS * n));
	}
	CHECK(tutti_barrier(job, NULL) == 0);
	tt_lock(job->job);
	struct tt_rounds_counts counts = tt_rounds_counts(t->shard.rounds);
	uint64_t clock = tt_rounds_clock(t->shard.rounds);
	float here = *(float *)(void *)t->shard.values;
	tt_unlock(job->job);
	CHECK(tutti_stats(job, -1, TUTTI_STAT_DROPPED, &dropped) == 0 && dropped.ops == counts.dropped);
	CHECK(tutti_stats(job, -1, TUTTI_STAT_PUSH, &pushed) == 0 && pushed.ops == ROUNDS &&
	      pushed.bytes == ROUNDS * COUNT * sizeof *d);
	CHECK(clock == ROUNDS && here + (float)counts.dropped == (float)(n * ROUNDS));
	close_table(job, t);
	free(d);
	free(v);
}

static void test_backup(void) { on_wires(program_backup, (const int[]){ 2, 3, 4, 0 }); }

/* Who waits in vain is told for what. */
static void program_alone(tutti *job)
{
	const tutti_table_config c = config_of(10, TUTTI_BSP, 0, 0);
	tutti_table *t = open_table(job, "clocks", &c);
	float v[10] = { 1 };

	if (tutti_rank(job) == 0) {
		CHECK(tutti_table_push(t, v, NULL, NULL) == 0);
		CHECK(tutti_table_pull(t, v, NULL) == -ETIMEDOUT &&
		      strstr(tutti_why(), "its table \"clocks\" waits for a push of rank 1"));
		CHECK(!strncmp(tutti_why(), "table pull: given up after ", 27) &&
		      !strstr(tutti_why(), "not all called"));
	} else {
		pass_time(600 * TT_MS);
	}
	close_table(job, t);
}

/* Each time it takes the same memory. Words of an operation that nobody has asked for give way to later ones. */
static void program_alone_often(tutti *job)
{
	enum { TIMES = 100, WAIT_MS = 400 };
	const tutti_table_config c = config_of(10, TUTTI_BSP, 0, 0);
	tutti_table *t = open_table(job, "clocks", &c);
	const struct tt_text *texts;
	float v[10] = { 1 };
	char why[300];
	tutti_op first = { 0 };

	if (tutti_rank(job) == 0) {
		CHECK(tutti_table_push(t, v, NULL, NULL) == 0);
		CHECK(tutti_table_pull(t, v, &first) == 0);
		pass_time(2 * WAIT_MS * TT_MS);
		CHECK(tutti_op_why(&first, why, sizeof why) == -ETIMEDOUT && strstr(why, "must come to 1"));
		texts = tt_members(job->job)->texts;
		for (int i = 0; i < TIMES; i++)
			CHECK(tutti_table_pull(t, v, NULL) == -ETIMEDOUT && strstr(tutti_why(), "must come to 1"));
		CHECK(tt_members(job->job)->texts == texts);
		CHECK(tutti_op_why(&first, why, sizeof why) == -ETIMEDOUT && !strncmp(why, "table pull: ", 12) &&
		      !strstr(why, "must come to"));
		CHECK(tutti_send(job, 1, 0, NULL, 0, NULL) == 0);
	} else {
		while (tutti_recv(job, 0, 0, NULL, 0, NULL, NULL) == -ETIMEDOUT)
			continue;
	}
	close_table(job, t);
}

static void program_no_worker(tutti *job)
{
	const int workers[] = { 1 };
	tutti_table_config c = config_of(10, TUTTI_BSP, 0, 0);
	float v[10] = { 1 };

	c.workers = 1;
	c.worker = workers;
	tutti_table *t = open_table(job, "clocks", &c);
	for (int k = 1; tutti_rank(job) == 1 && k < 5; k++)
		CHECK(tutti_table_push_pull(t, v, NULL, v, NULL) == 0);
	if (tutti_rank(job) != 1)
		CHECK(tutti_table_push(t, v, NULL, NULL) == -EPERM && strstr(tutti_why(), "no worker"));
	CHECK(tutti_barrier(job, NULL) == 0);
	CHECK(tutti_table_pull(t, v, NULL) == 0 && v[0] == 8);
	close_table(job, t);
}

static void program_bad(tutti *job)
{
	tutti_table_config c = config_of(10, TUTTI_BSP, 1, 0);
	tutti_table *t;

	CHECK(tutti_table_open(job, "x", &c, &t) == -EINVAL && strstr(tutti_why(), "staleness"));
	c = config_of(10, TUTTI_SSP, 0, 1);
	CHECK(tutti_table_open(job, "x", &c, &t) == -EINVAL && strstr(tutti_why(), "backup"));
	c = config_of(10, TUTTI_BSP, 0, 0);
	c.updater = tutti_elastic(NAN);
	CHECK(tutti_table_open(job, "x", &c, &t) == -EINVAL && strstr(tutti_why(), "elastic"));
	c = config_of(10, TUTTI_BSP, 0, 0);
	c.workers = 1;
	CHECK(tutti_table_open(job, "x", &c, &t) == -EINVAL && strstr(tutti_why(), "workers"));
}

static void test_wrong(void)
{
	CU_ASSERT_EQUAL(
		run_ranks((struct ranks){ .size = 2, .wire = "sim", .timeout_ms = 400, .program = program_alone }), 0);
	CU_ASSERT_EQUAL(run_real_ranks((struct ranks){ .size = 2, .timeout_ms = 400, .program = program_alone }), 0);
	const struct ranks often = { .size = 2, .wire = "sim", .timeout_ms = 400, .program = program_alone_often };
	CU_ASSERT_EQUAL(run_ranks(often), 0);
	on_wires(program_no_worker, (const int[]){ 2, 3, 0 });
	CU_ASSERT_EQUAL(run_ranks((struct ranks){ .size = 1, .wire = "sim", .program = program_bad }), 0);
}

/* ---- servers that come again ---- */

static char folder[sizeof "/tmp/tutti-clocks-XXXXXX"];

static void make_folder(void)
{
	strcpy(folder, "/tmp/tutti-clocks-XXXXXX");
	CU_ASSERT_PTR_NOT_NULL_FATAL(mkdtemp(folder));
}

static void sweep(void)
{
	clear_folder(folder);
	rmdir(folder);
}

/* Or it would have no part in the next round. */
static bool is_counted_again(const tutti_table *t, int rank)
{
	tt_lock(t->job);
	bool counted = t->shard.pushers[rank]->met && t->shard.pushers[rank]->counted;
	tt_unlock(t->job);
	return counted;
}

/* The last rank, a server and a worker, comes again at the clock of its save, and is told how far the others are. */
static void program_clock(tutti *job, tutti_consistency as)
{
	enum { SAVED = 3, LOST = 5, ROUNDS = 9 };
	int rank = tutti_rank(job), last = tutti_size(job) - 1, n = tutti_size(job), err = 0;
	tutti_table_config c = config_of(90000, as.mode, as.staleness, 0);
	float *v = calloc(c.count, sizeof *v), *ones = calloc(c.count, sizeof *ones);
	tutti_versions versions = { 0 };
	tutti_table_info info = { 0 };
	tutti *again = NULL;
	tutti_table *t;

	fill(ones, c.count, 1);
	CHECK(tutti_table_open(job, "w", &c, &t) == 0);
	uint64_t first = tt_table_range(t, last).first;
	for (int k = 0; k < LOST; k++) {
		CHECK(tutti_table_push_pull(t, ones, NULL, v, NULL) == 0);
		CHECK(tutti_barrier(job, NULL) == 0);
		if (rank == 0 && k == SAVED - 1)
			CHECK(tutti_table_save(t, folder) == 0);
		CHECK(tutti_barrier(job, NULL) == 0);
	}
	if (rank == last) {
		CHECK(join_again(job, last, &again) == 0);
		c.load = folder;
		CHECK(tutti_table_open(tutti_job(again), "w", &c, &t) == 0);
	} else {
		while (!(err = tutti_table_pull(t, v, NULL)))
			pass_time(TT_MS);
		CHECK(err == -ENOTCONN || err == -ECONNRESET || err == -ESTALE);
		while ((err = tutti_table_reopen(t)) == -ENOTCONN || err == -ECONNRESET)
			pass_time(TT_MS);
		CHECK(err == 0);
		while (!is_counted_again(t, last))
			pass_time(TT_MS);
	}
	for (int k = LOST; k < ROUNDS; k++) {
		CHECK(tutti_table_push_pull(t, ones, NULL, v, NULL) == 0);
		CHECK(as.mode != TUTTI_BSP ||
		      (all_are(v, first, (float)(n * (k + 1))) &&
		       all_are(v + first, c.count - first, (float)(n * (k + 1 - LOST + SAVED)))));
	}
	if (as.mode == TUTTI_BSP)
		CHECK(tutti_table_snapshot(t, v, &versions, NULL) == 0 && versions.oldest == ROUNDS &&
		      versions.newest == ROUNDS);
	for (int k = 0; k < 1000 && (tutti_table_look(t, &info) || info.clock < ROUNDS); k++)
		pass_time(TT_MS); /* under bounded staleness others may be behind */
	tt_lock(t->job);
	for (int i = 0; i < t->servers; i++)
		CHECK(t->source[i].pushed == ROUNDS && t->source[i].clock == ROUNDS);
	tt_unlock(t->job);
	free(v);
	free(ones);
	pass_time(100 * TT_MS); /* the others look, too */
	if (rank == last)
		tutti_leave(again);
	else
		tutti_table_close(t);
}

static void program_rounds_again(tutti *job) { program_clock(job, (tutti_consistency){ .mode = TUTTI_BSP }); }
static void program_stale_again(tutti *job)
{
	program_clock(job, (tutti_consistency){ .mode = TUTTI_SSP, .staleness = 1 });
}

static void test_clock(void)
{
	make_folder();
	on_wires(program_rounds_again, (const int[]){ 3, 0 });
	on_wires(program_stale_again, (const int[]){ 3, 0 });
	sweep();
}

/* Ranks 2 and 3 serve. Rank 0 has finished, and rank 1 closes the table, before rank 3 comes again or after it.
 * Neither opens it again: * nobody waits for them. */
/* rounds of all four; of these saved; rounds of two; the rank that comes again */
enum { BEFORE = 5, SAVED = 3, AFTER = 9, AGAIN = 3 };
static struct {
	tutti_consistency as;
	bool closes_late;
	atomic_int opened, done;
} gone;

static void wait_for(atomic_int *n, int least)
{
	while (*n < least)
		pass_time(TT_MS);
}

static void go_on_without(tutti_table *t, float *ones, float *v, bool again)
{
	uint64_t second = tt_table_range(t, 1).first, count = t->count;

	if (again)
		gone.opened++;
	else
		while (!is_counted_again(t, AGAIN))
			pass_time(TT_MS);
	for (int k = 1; k <= AFTER; k++) {
		CHECK(tutti_table_push_pull(t, ones, NULL, v, NULL) == 0);
		CHECK(gone.as.mode != TUTTI_BSP || all_are(v, second, (float)(4 * BEFORE + 2 * k)));
		CHECK(gone.as.mode != TUTTI_BSP || all_are(v + second, count - second, (float)(4 * SAVED + 2 * k)));
	}
	gone.done++;
}

static void program_gone(tutti *job)
{
	int rank = tutti_rank(job), err = 0;
	tutti_table_config c = config_of(50000, gone.as.mode, gone.as.staleness, 0);
	float *v = calloc(c.count, sizeof *v), *ones = calloc(c.count, sizeof *ones);
	tutti *again = NULL;

	c.servers = 2;
	c.server = (const int[]){ 2, AGAIN };
	tutti_table *t = open_table(job, "gone", &c);
	fill(ones, c.count, 1);
	for (int k = 1; k <= BEFORE; k++) {
		CHECK(tutti_table_push_pull(t, ones, NULL, v, NULL) == 0);
		meet(job);
		if (rank == 0 && k == SAVED)
			CHECK(tutti_table_save(t, folder) == 0);
		meet(job);
	}
	if (rank == 0)
		CHECK(tutti_table_finish(t) == 0);
	if (rank == 1 && !gone.closes_late)
		tutti_table_close(t);
	meet(job);
	if (rank == AGAIN) {
		CHECK(join_again(job, AGAIN, &again) == 0);
		c.load = folder;
		t = open_table(tutti_job(again), "gone", &c);
	} else if (rank == 2) {
		while (!(err = tutti_table_pull(t, v, NULL)))
			pass_time(TT_MS);
		while ((err = tutti_table_reopen(t)))
			pass_time(TT_MS);
	}
	if (rank == 1 && gone.closes_late) {
		wait_for(&gone.opened, 1);
		pass_time(20 * TT_MS);
		tutti_table_close(t);
	}
	if (rank >= 2)
		go_on_without(t, ones, v, rank == AGAIN);
	wait_for(&gone.done, 2);
	free(v);
	free(ones);
	if (rank == AGAIN)
		tutti_leave(again);
	else
		tutti_table_close(rank == 1 ? NULL : t);
}

static void try_gone(tutti_consistency as, bool closes_late)
{
	struct ranks run = { .size = 4, .program = program_gone };
	const char *const wires[] = { "sim", "tcp", "shm" };

	gone.as = as;
	gone.closes_late = closes_late;
	for (size_t i = 0; i < TT_COUNT(wires); i++) {
		run.wire = wires[i];
		for (run.seed = 0; run.seed < (i ? 1 : SEEDS); run.seed++) {
			gone.opened = gone.done = 0;
			CU_ASSERT_EQUAL(run_ranks(run), 0);
		}
	}
}

static void test_gone(void)
{
	make_folder();
	for (int late = 0; late < 2; late++) {
		try_gone((tutti_consistency){ .mode = TUTTI_BSP }, late);
		try_gone((tutti_consistency){ .mode = TUTTI_SSP, .staleness = 1 }, late);
	}
	sweep();
}

/* ---- the last worker dies ---- */

/* In the middle of a push, mostly: some servers have all of it, others a part, or nothing. Who reads afterwards finds
 * one version of all. */
enum { LAST = 300000, LAST_KEYS = 30000 };
static int torn, looked; /* shards that have a part of a round; servers that are done */
static struct {
	unsigned flags;
	bool saves;              /* rank 0 does, meanwhile */
} last;

static int push_last(tutti_table *t, const uint64_t *all, const float *d)
{
	return all ? tutti_table_push_rows(t, all, LAST_KEYS, d, NULL, NULL) : tutti_table_push(t, d, NULL, NULL);
}

static void read_one_version(tutti_table *t)
{
	const uint64_t rows[] = { 0, 100000, 200000, 299999 };
	tutti_versions versions = { 0 };
	float *v = calloc(LAST, sizeof *v), few[4];

	CHECK(tutti_table_snapshot(t, v, &versions, NULL) == 0 && versions.oldest == versions.newest);
	CHECK(tutti_table_pull_rows(t, rows, 4, few, NULL) == 0);
	CHECK(few[0] == v[0] && few[1] == v[100000] && few[2] == v[200000] && few[3] == v[299999]);
	free(v);
}

/* Of each key there is what the rounds that closed have, and of the last one perhaps nothing. */
static void read_keys(tutti_table *t, const uint64_t *all)
{
	float *v = calloc(LAST_KEYS, sizeof *v), least, most;

	CHECK(tutti_table_pull_rows(t, all, LAST_KEYS, v, NULL) == 0);
	least = most = v[0];
	for (int i = 1; i < LAST_KEYS; i++) {
		least = v[i] < least ? v[i] : least;
		most = v[i] > most ? v[i] : most;
	}
	CHECK(most <= least + 2);
	free(v);
}

static uint64_t *name_keys(void)
{
	uint64_t *all = calloc(LAST_KEYS, sizeof *all);

	for (uint64_t i = 0; i < LAST_KEYS; i++)
		all[i] = i * 0x9e3779b97f4a7c15;
	return all;
}

static tutti_table *open_last(tutti *job)
{
	tutti_table_config c = config_of(last.flags & TUTTI_TABLE_KEYS ? 0 : LAST, TUTTI_BSP, 0, 0);

	c.flags = last.flags;
	c.servers = 3;
	c.server = (const int[]){ 0, 1, 2 };
	c.workers = 2;
	c.worker = (const int[]){ 3, 4 };
	return open_table(job, "last", &c);
}

static void program_last(tutti *job)
{
	int me = tutti_rank(job), err = 0;
	uint64_t *all = last.flags & TUTTI_TABLE_KEYS ? name_keys() : NULL;
	float *d = calloc(LAST, sizeof *d);
	tutti_table *t = open_last(job);

	fill(d, LAST, 1);
	CHECK(tutti_barrier(job, NULL) == 0);
	if (me == 4)
		tt_sim_kill(4, TT_MS + tt_sim_chance(4 * TT_MS));
	for (int k = 0; me >= 3 && (me == 4 || k < 2) && !err; k++)
		err = push_last(t, all, d);
	for (int i = 0; me < 3 && i < 1000 && tt_rounds_counts(t->shard.rounds).live; i++) {
		if (last.saves && !me)
			CHECK((err = tutti_table_save(t, folder)) == 0 || err == -ETIMEDOUT);
		pass_time(TT_MS);
	}
	if (me < 3) {
		torn += tt_rounds_counts(t->shard.rounds).broken > 0;
		pass_time(20 * TT_MS); /* all servers have heard of it */
		if (all)
			read_keys(t, all);
		else
			read_one_version(t);
		for (looked++; looked < 3;)
			pass_time(TT_MS);
	}
	tutti_table_close(t);
	free(d);
	free(all);
}

static void try_last(unsigned flags, bool saves)
{
	torn = 0;
	last.flags = flags;
	last.saves = saves;
	for (uint64_t seed = 0; seed < (uint64_t)all_or(5, 2) * SEEDS || (!torn && seed < 50 * SEEDS); seed++) {
		looked = 0;
		CU_ASSERT_EQUAL(
			run_ranks((struct ranks){
				.size = 5, .wire = "sim", .seed = seed, .timeout_ms = 500, .program = program_last }),
			0);
	}
	CU_ASSERT(only_verbs() || torn > 0);
}

static void test_last(void)
{
	make_folder();
	try_last(0, false);
	try_last(0, true);
	try_last(TUTTI_TABLE_FRESH, false);
	try_last(TUTTI_TABLE_KEYS, false);
	try_last(TUTTI_TABLE_KEYS, true);
	sweep();
}

/* ---- storms ---- */

/* Ranks 0 and 1 serve, the others work: element i counts the pushes of rank i % RANKS. Some die, some leave and come
 * again, some finish early. In the end each server finds all pushes that were answered, each once. */
enum { RANKS = 6, STORM_COUNT = 9000 };

static struct storm {
	tutti_consistency as;
	int pushed[RANKS], begun[RANKS], dropped[2];
	bool dead[RANKS];
	int at_work, served;
	uint64_t clock[2];
} storm;

static void work(tutti_table *t, int me, int pushes)
{
	static float d[RANKS][STORM_COUNT];
	float *v = calloc(STORM_COUNT, sizeof *v);
	int err = 0;

	for (int i = me; i < STORM_COUNT; i += RANKS)
		d[me][i] = 1;
	for (int k = 0; k < pushes && !err; k++) {
		pass_time(tt_sim_chance(300) * 1000);
		storm.begun[me]++;
		err = tutti_table_push(t, d[me], NULL, NULL);
		storm.pushed[me] += !err;
		if (!err && tt_sim_chance(2))
			err = tutti_table_pull(t, v, NULL);
	}
	CHECK(!err || storm.dead[me]);
	free(v);
}

static bool is_over(const tutti_table *t)
{
	tt_lock(t->job);
	bool over = !tt_rounds_counts(t->shard.rounds).live && !t->shard.next.busy;
	tt_unlock(t->job);
	return over;
}

static void check_shard(const tutti_table *t)
{
	struct tt_range mine = tt_table_range(t, t->mine);
	const float *v = (const float *)(void *)t->shard.values;
	struct tt_rounds_counts counts = tt_rounds_counts(t->shard.rounds);
	float all = 0;
	int pushed = 0;

	for (int w = 2; w < RANKS; w++) {
		size_t i = (size_t)((RANKS + (uint64_t)w - mine.first % RANKS) % RANKS);
		bool whole = true;
		float x = v[i];
		for (; i < mine.count; i += RANKS)
			whole &= v[i] == x;
		CHECK(whole || storm.dead[w]);
		CHECK(x <= (float)storm.begun[w]);
		if (!storm.as.backup && !storm.dead[w])
			CHECK(x == (float)storm.pushed[w]);
		if (!storm.as.backup)
			CHECK(x >= (float)storm.pushed[w]);
		all += x;
		pushed += storm.dead[w] ? 1 << 20 : storm.pushed[w];
	}
	if (pushed < 1 << 20)
		CHECK(all + (float)counts.dropped == (float)pushed);
}

static void await_both(int step)
{
	for (storm.served++; storm.served < 2 * step;)
		pass_time(TT_MS);
}

/* Whoever died in the middle of what, both have closed the same rounds. */
static void serve(const tutti_table *t)
{
	for (int i = 0; i < 20000 && (storm.at_work || !is_over(t)); i++)
		pass_time(TT_MS);
	await_both(1);
	pass_time(20 * TT_MS); /* they hear of each other's clocks */
	CHECK(is_over(t));
	check_shard(t);
	storm.clock[t->mine] = tt_version_clock(t);
	await_both(2);
	CHECK(storm.as.mode != TUTTI_BSP || storm.clock[0] == storm.clock[1]);
}

/* Not where so many have died that those who are left may be no majority, which would let it in. */
static void come_again(tutti *job, const tutti_table_config *c, int me)
{
	int dead = 0, err = join_again(job, me, &job);
	tutti_table *t = err ? NULL : open_table(tutti_job(job), "clocks", c);

	for (int i = 0; i < RANKS; i++)
		dead += storm.dead[i];
	CHECK(!err || dead >= 2);
	if (t)
		work(t, me, 3);
	tutti_table_close(t);
	if (!err)
		tutti_leave(job);
}

static void program_storm(tutti *job)
{
	static const int servers[] = { 0, 1 }, workers[] = { 2, 3, 4, 5 };
	tutti_table_config c = config_of(STORM_COUNT, storm.as.mode, storm.as.staleness, storm.as.backup);
	int me = tutti_rank(job);
	tutti_table *t;

	c.servers = 2;
	c.server = servers;
	c.workers = 4;
	c.worker = workers;
	t = open_table(job, "clocks", &c);
	CHECK(tutti_barrier(job, NULL) == 0);
	if (me < 2) {
		serve(t);
		tutti_table_close(t);
		return;
	}
	if (storm.dead[me])
		tt_sim_kill(me, 2 * TT_MS + tt_sim_chance(8 * TT_MS)); /* when all are through the barrier */
	work(t, me, 4 + (int)tt_sim_chance(20));
	tutti_table_close(t);
	if (!storm.dead[me] && tt_sim_chance(3) == 0)
		come_again(job, &c, me);
	storm.at_work -= !storm.dead[me];
}

static void test_storm(void)
{
	for (uint64_t seed = 0; seed < STORMS; seed++) {
		struct tt_random r;
		tt_random_seed(&r, seed);
		storm = (struct storm){ .as.mode = (tutti_mode)tt_random_below(&r, 3) };
		if (storm.as.mode == TUTTI_SSP)
			storm.as.staleness = (int)tt_random_below(&r, 4);
		if (storm.as.mode == TUTTI_BSP && tt_random_below(&r, 2))
			storm.as.backup = 1 + (int)tt_random_below(&r, 2);
		for (int i = 2; i < RANKS; i++)
			storm.at_work += !(storm.dead[i] = tt_random_below(&r, 6) == 0);
		CU_ASSERT_EQUAL(run_ranks((struct ranks){ .size = RANKS,
		                                          .wire = "sim",
		                                          .seed = seed,
		                                          .timeout_ms = 1000,
		                                          .program = program_storm }),
		                0);
	}
}

static CU_TestInfo clock_tests[] = {
	{ "rounds", test_rounds },
	{ "started ahead", test_ahead },
	{ "a round's rule", test_rule },
	{ "bounded staleness", test_stale },
	{ "little is pushed", test_little },
	{ "another consistency", test_switch },
	{ "another consistency, asked for late", test_late_switch },
	{ "finished", test_finished },
	{ "given up", test_given_up },
	{ "backup workers", test_backup },
	{ "wrong", test_wrong },
	{ "servers that come again", test_clock },
	{ "who is gone when a server comes again", test_gone },
	{ "the last worker dies", test_last },
	{ "storms", test_storm },
	CU_TEST_INFO_NULL,
};

static CU_SuiteInfo suites[] = { { "clocks", NULL, NULL, NULL, NULL, clock_tests }, CU_SUITE_INFO_NULL };

int main(int argc, char **argv) { return run_suites(suites, argc, argv); }
