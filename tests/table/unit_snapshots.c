/* unit_snapshots.c - published versions of tables: none is torn, while others push as fast as they can */
#include "member/member.h"
#include "table/table_private.h"
#include "tests/harness/cunit_main.h"
#include "tests/table/tables.h"

#if TT_TSAN
enum { SEEDS = 2 };
#else
#define SEEDS (uint64_t)all_or(10, 2)
#endif

static void on_wires(void (*program)(tutti *), const int *sizes) { run_on_wires(program, sizes, SEEDS); }

static const int two_servers[] = { 0, 1 };

static tutti_table_config config_of(const tutti *job, uint64_t count)
{
	return WITH(tutti_table_f32(count, tutti_accumulate()), it.flags = TUTTI_TABLE_SNAPSHOTS,
	            it.servers = tutti_size((tutti *)(uintptr_t)job) > 1 ? 2 : 1, it.server = two_servers);
}

/* Each server's range is of one version; how many pushes it has. */
static void check_whole(const tutti_table *t, const float *v, float most)
{
	for (int i = 0; i < t->servers; i++) {
		struct tt_range r = tt_table_range(t, i);
		CHECK(!r.count || (all_are(v + r.first, (size_t)r.count, v[r.first]) && v[r.first] <= most));
	}
}

/* The last rank pushes ones, the others look. */
static void look_on(tutti *job, tutti_table *t, size_t count, int pushes)
{
	float *d = calloc(count, sizeof *d), *v = calloc(count, sizeof *v), last = -1;
	bool writes = tutti_rank(job) == tutti_size(job) - 1;
	tutti_versions versions = { 0 };

	fill(d, count, 1);
	for (int k = 0; k < pushes; k++) {
		if (writes)
			CHECK(tutti_table_push(t, d, NULL, NULL) == 0);
		if (writes && tutti_size(job) > 1)
			continue;
		CHECK(tutti_table_snapshot(t, v, &versions, NULL) == 0);
		check_whole(t, v, (float)pushes);
		CHECK(v[0] >= last && versions.oldest <= versions.newest && versions.age_ms >= 0);
		last = v[0];
	}
	CHECK(tutti_barrier(job, NULL) == 0);
	pass_time(3 * TT_MS); /* then the last one is due */
	CHECK(tutti_table_push(t, d, NULL, NULL) == 0);
	CHECK(tutti_barrier(job, NULL) == 0);
	for (int i = 0; i < 2000 && !(tutti_table_snapshot(t, v, NULL, NULL) == 0 &&
	                              all_are(v, count, (float)(pushes + tutti_size(job))));
	     i++)
		pass_time(TT_MS);
	CHECK(all_are(v, count, (float)(pushes + tutti_size(job))));
	free(d);
	free(v);
}

static void program_writer(tutti *job)
{
	static const struct { size_t count; uint64_t pushes; int ms; unsigned flags;
	} of[] = {
		{ 1, 0, 1, 0 },     { 1000, 0, 1, 0 },   { 1000, 0, 1, TUTTI_TABLE_FILTER },
		{ 30000, 3, 2, 0 }, { 200000, 0, 5, 0 }, { 200000, 0, 1, 0 },
	};

	for (size_t i = 0; i < TT_COUNT(of); i++) {
		tutti_table_config c = config_of(job, of[i].count);
		c.publish_pushes = of[i].pushes;
		c.publish_ms = of[i].ms;
		c.flags |= of[i].flags;
		tutti_table *t = open_table(job, "snapshots", &c);
		look_on(job, t, of[i].count, 60);
		close_table(job, t);
	}
}

static void test_writer(void) { on_wires(program_writer, (const int[]){ 1, 2, 3, 4, 0 }); }

/* In rounds all ranges are of one version, whoever looks. */
static void look_at_rounds(tutti *job, size_t count)
{
	enum { ROUNDS = 20 };
	tutti_table_config c = config_of(job, count);
	float *d = calloc(count, sizeof *d), *v = calloc(count, sizeof *v);
	tutti_versions versions = { 0 };
	tutti_stat stat = { 0 }, before = stat;
	int workers[16], n = tutti_size(job) - (tutti_size(job) > 1);

	for (int i = 0; i < n; i++)
		workers[i] = i;
	c.consistency.mode = TUTTI_BSP;
	c.workers = n;
	c.worker = workers;
	c.flags = 0;
	tutti_table *t = open_table(job, "snapshots", &c);
	CHECK(tutti_stats(job, -1, TUTTI_STAT_SNAPSHOT, &before) == 0);
	fill(d, count, 1);
	for (int k = 0; k < ROUNDS; k++) {
		if (tutti_rank(job) < n)
			CHECK(tutti_table_push(t, d, NULL, NULL) == 0);
		CHECK(tutti_table_snapshot(t, v, &versions, NULL) == 0);
		CHECK(versions.oldest == versions.newest && all_are(v, count, (float)versions.newest * (float)n));
	}
	CHECK(tutti_barrier(job, NULL) == 0);
	CHECK(tutti_table_snapshot(t, v, &versions, NULL) == 0 && versions.newest == ROUNDS &&
	      all_are(v, count, (float)(ROUNDS * n)));
	CHECK(tutti_stats(job, -1, TUTTI_STAT_SNAPSHOT, &stat) == 0 && stat.ops - before.ops == ROUNDS + 1 &&
	      stat.errors == before.errors);
	close_table(job, t);
	free(d);
	free(v);
}

static void program_rounds(tutti *job)
{
	look_at_rounds(job, 100001);
	look_at_rounds(job, 101); /* by message, where memory is not mapped */
}

static void test_rounds(void) { on_wires(program_rounds, (const int[]){ 1, 2, 4, 0 }); }

/* Eight push without a pause, each with the next on its way before the last has ended: versions come all the same. */
static void program_overlap(tutti *job)
{
	enum { COUNT = 300000, PUSHES = 40, DEPTH = 3 };
	static const int first[] = { 0 };
	tutti_table_config c = config_of(job, COUNT);
	float *d = calloc(COUNT, sizeof *d), *v = calloc(COUNT, sizeof *v);
	tutti_versions versions = { 0 };
	tutti_op ops[DEPTH];

	c.servers = 1;
	c.server = first;
	c.publish_pushes = 1;
	tutti_table *t = open_table(job, "snapshots", &c);
	fill(d, COUNT, 1);
	for (int k = 0; k < PUSHES && tutti_rank(job); k++) {
		if (k >= DEPTH)
			CHECK(tutti_wait(&ops[k % DEPTH], -1) == 0);
		CHECK(tutti_table_push(t, d, NULL, &ops[k % DEPTH]) == 0);
		if (k != PUSHES - 1 || tutti_rank(job) != 1)
			continue;
		CHECK(tutti_table_snapshot(t, v, &versions, NULL) == 0);
		CHECK(versions.newest >= 2);
		CHECK(all_are(v, COUNT, v[0]));
	}
	for (int k = 0; k < DEPTH && tutti_rank(job); k++)
		CHECK(tutti_wait(&ops[k], -1) == 0);
	close_table(job, t);
	free(d);
	free(v);
}

static void test_overlap(void) { on_wires(program_overlap, (const int[]){ 9, 0 }); }

/* Pushes of rows that lie far apart, some of which come while a version is copied piece by piece. */
static void program_rows(tutti *job)
{
	enum { COUNT = 400000, LIST = 40, ROUNDS = 20, DEPTH = 20 };
	static const int first[] = { 0 };
	tutti_table_config c = config_of(job, COUNT);
	float *v = calloc(COUNT, sizeof *v), ones[LIST];
	uint64_t rows[LIST];
	tutti_op ops[DEPTH];

	c.servers = 1;
	c.server = first;
	c.publish_pushes = 1;
	tutti_table *t = open_table(job, "snapshots", &c);
	fill(ones, LIST, 1);
	for (uint64_t i = 0; i < LIST; i++)
		rows[i] = COUNT / LIST * i;
	for (int k = 0; k < ROUNDS && tutti_rank(job); k++) {
		for (int i = 0; i < DEPTH; i++)
			CHECK(tutti_table_push_rows(t, rows, LIST, ones, NULL, &ops[i]) == 0);
		CHECK(tutti_table_snapshot(t, v, NULL, NULL) == 0);
		for (int i = 1; i < LIST; i++)
			CHECK(v[rows[i]] == v[rows[0]]);
		for (int i = 0; i < DEPTH; i++)
			CHECK(tutti_wait(&ops[i], -1) == 0);
	}
	close_table(job, t);
	free(v);
}

static void test_rows(void) { on_wires(program_rows, (const int[]){ 2, 3, 0 }); }

/* ---- versions that are being copied, while assigns change what is copied ---- */

static int assigned_busily; /* how often rank 0 met an assign half done beside a version half copied */

static void look_for_assign(tutti *job, const tutti_table *t, int writer)
{
	tt_lock(job->job);
	const struct tt_pusher *p = t->shard.pushers[writer];
	assigned_busily += t->shard.next.busy && p && p->half && p->assigns;
	tt_unlock(job->job);
}

/* Each whole, and so that several are on their way. Pushes come between, so that versions are due. */
static void assign_on(tutti_table *t, size_t count, int writes)
{
	enum { DEPTH = 4 };
	float *v[DEPTH];
	tutti_op ops[DEPTH];

	for (int k = 0; k < writes + DEPTH; k++) {
		int at = k % DEPTH;
		if (k >= DEPTH)
			CHECK(tutti_wait(&ops[at], -1) == 0);
		else
			v[at] = calloc(count, sizeof **v);
		fill(v[at], count, (float)(10 * k));
		if (k < writes)
			CHECK((k % 3 == 2 ? tutti_table_push(t, v[at], NULL, &ops[at]) :
			                    tutti_table_assign(t, v[at], &ops[at])) == 0);
		else
			free(v[at]);
	}
}

static void program_assigns(tutti *job)
{
	enum { COUNT = 400000, WRITES = 30 };
	static const int first[] = { 0 };
	tutti_table_config c = WITH(config_of(job, COUNT), it.servers = 1, it.server = first, it.publish_pushes = 1);
	int writer = tutti_size(job) - 1;
	float *v = calloc(COUNT, sizeof *v);
	tutti_table *t = open_table(job, "snapshots", &c);
	tutti_op end;

	if (tutti_rank(job) == writer)
		assign_on(t, COUNT, WRITES);
	CHECK(tutti_barrier(job, &end) == 0);
	while (tutti_rank(job) != writer && tutti_test(&end) == -EINPROGRESS) {
		pass_time(TT_MS / 20); /* the server's own snapshot takes none */
		if (tutti_rank(job) == 0)
			look_for_assign(job, t, writer);
		CHECK(tutti_table_snapshot(t, v, NULL, NULL) == 0);
		CHECK(all_are(v, COUNT, v[0]));
	}
	CHECK(tutti_wait(&end, -1) == 0);
	close_table(job, t);
	free(v);
}

static void test_assigns(void)
{
	assigned_busily = 0;
	on_wires(program_assigns, (const int[]){ 3, all_or(2, 0), 0 });
	CU_ASSERT(only_verbs() || assigned_busily > 0);
}

/* ---- a reader whose wire is slower than the rounds ---- */

enum { SLOW = 40, READS = 4, TRIES = 5, ROW = 4 };

static atomic_bool read_enough;

static void push_on(tutti_table *t, const uint64_t *rows, size_t n, const float *d)
{
	for (int k = 0; !read_enough && k < 1000000; k++) {
		pass_time(10000);
		int err = rows ? tutti_table_push_rows(t, rows, n, d, NULL, NULL) : tutti_table_push(t, d, NULL, NULL);
		CHECK(err == 0);
	}
	CHECK(read_enough && tutti_table_finish(t) == 0);
}

/* Their parts for each server began anew a few times at most. */
static void check_read(tutti *job, const tutti_table *t, int err, unsigned reads, uint64_t *tries)
{
	tutti_stat s = { 0 };

	CHECK(err == 0);
	CHECK(tutti_stats(job, -1, TUTTI_STAT_RETRY, &s) == 0);
	CHECK(s.ops - *tries <= TRIES * (uint64_t)t->servers * reads);
	*tries = s.ops;
}

/* A part that begins anew is nobody's fault: no rank is to be evicted for it. */
static int await(tutti_op *op)
{
	int err;

	while ((err = tutti_test(op)) == -EINPROGRESS) {
		CHECK(((struct tt_operation *)op)->rank < 0);
		pass_time(TT_MS / 100);
	}
	return err;
}

static void read_all(tutti *job, tutti_table *t, size_t n, float *v, bool one, uint64_t *tries)
{
	tutti_versions versions = { 0 };
	float *w = calloc(n, ROW * sizeof *w);
	tutti_op op, other;

	if (t->as.mode == TUTTI_BSP) {
		CHECK(tutti_table_pull(t, v, &op) == 0 && tutti_table_snapshot(t, w, NULL, &other) == 0);
		CHECK(await(&other) == 0);
		check_read(job, t, await(&op), 2, tries);
		check_whole(t, v, 1e9f);
		check_whole(t, w, 1e9f);
	}
	free(w);
	check_read(job, t, tutti_table_snapshot(t, v, &versions, NULL), 1, tries);
	check_whole(t, v, 1e9f);
	CHECK(!one || (versions.oldest == versions.newest && all_are(v, n * ROW, *v)));
}

static void read_on(tutti *job, tutti_table *t, const uint64_t *rows, size_t n, float *v)
{
	bool one = t->as.mode == TUTTI_BSP && !t->as.backup; /* else servers may have left out different pushes */
	tutti_stat s = { 0 };
	uint64_t tries = tutti_stats(job, -1, TUTTI_STAT_RETRY, &s) ? 0 : s.ops;

	tt_sim_slow(tutti_rank(job), SLOW);
	for (int k = 0; k < READS; k++) {
		check_read(job, t, tutti_table_pull_rows(t, rows, n, v, NULL), 1, &tries);
		CHECK(!one || all_are(v, n * ROW, *v));
		if (!(t->flags & TUTTI_TABLE_KEYS))
			read_all(job, t, n, v, one, &tries);
	}
	tt_sim_slow(tutti_rank(job), 1);
	read_enough = true;
}

static void read_slowly(tutti *job, size_t n, int servers, unsigned flags, tutti_consistency as)
{
	static const int server[] = { 0, 1, 2 }, worker[] = { 0, 1 };
	tutti_table_config c = tutti_table_rows(TUTTI_F32, 0, ROW, tutti_accumulate());
	float *d = calloc(n, ROW * sizeof *d), *v = calloc(n, ROW * sizeof *v);
	uint64_t *rows = calloc(n, sizeof *rows);

	c.flags = flags;
	for (size_t i = 0; i < n; i++)
		rows[i] = i;
	c.count = flags & TUTTI_TABLE_KEYS ? 0 : n;
	c.servers = servers;
	c.server = server;
	c.consistency = as;
	c.publish_pushes = flags & TUTTI_TABLE_SNAPSHOTS ? 1 : 0;
	c.workers = as.backup ? 0 : 2;
	c.worker = as.backup ? NULL : worker;
	read_enough = false;
	tutti_table *t = open_table(job, "slow", &c);
	fill(d, n * ROW, 1);
	if (tutti_rank(job) < 2)
		push_on(t, flags & TUTTI_TABLE_KEYS ? rows : NULL, n, d);
	else
		read_on(job, t, rows, n, v);
	close_table(job, t);
	free(d);
	free(v);
	free(rows);
}

static void program_slow(tutti *job)
{
	const tutti_consistency rounds = { .mode = TUTTI_BSP }, backup = { .mode = TUTTI_BSP, .backup = 1 };
	const tutti_consistency none = { .mode = TUTTI_ASYNC };

	for (int servers = 1; servers <= 3; servers++) {
		read_slowly(job, 25, servers, 0, rounds);
		read_slowly(job, 15000, servers, 0, rounds);
		read_slowly(job, 15000, servers, 0, backup);
		read_slowly(job, 3000, servers, TUTTI_TABLE_KEYS, rounds);
		read_slowly(job, 3000, servers, TUTTI_TABLE_KEYS, backup);
		read_slowly(job, 15000, servers, TUTTI_TABLE_SNAPSHOTS, none);
	}
}

static void test_slow(void)
{
	for (struct ranks run = { .size = 3, .wire = "sim", .program = program_slow };
	     run.seed < (uint64_t)all_or(SEEDS / 2, 1 + SEEDS / 10); run.seed++)
		CU_ASSERT_EQUAL(run_ranks(run), 0);
}

/* ---- one that keeps a version, and is heard of no more ---- */

enum { STAY = 6 }; /* rounds */

static uint64_t keep_and_push(tutti *job, tutti_table *t, uint32_t call)
{
	float d[ROW] = { 1, 1, 1, 1 };
	uint64_t since = tt_now();

	if (tutti_rank(job) == 0) {
		tt_lock(job->job);
		CHECK(tt_version_keep(t, 2, call, 0) == t->source[0].clock);
		tt_unlock(job->job);
	}
	for (int k = 0; k < STAY; k++) {
		CHECK(tutti_table_push(t, d, NULL, NULL) == 0 && tutti_table_pull(t, d, NULL) == 0);
		fill(d, ROW, 1);
	}
	return tt_now() - since;
}

/* Rounds wait for it once, for half of the silence at most; and not for one that is gone. */
static void program_silent(tutti *job)
{
	static const int server[] = { 0 }, worker[] = { 0, 1 };
	static atomic_int done;
	tutti_table_config c = tutti_table_rows(TUTTI_F32, 1, ROW, tutti_accumulate());
	uint64_t silence = job->job->silence, took;

	c.servers = 1;
	c.server = server;
	c.workers = 2;
	c.worker = worker;
	c.consistency.mode = TUTTI_BSP;
	done = 0;
	tutti_table *t = open_table(job, "silent", &c);
	meet(job);
	if (tutti_rank(job) < 2) {
		took = keep_and_push(job, t, 1);
		CHECK(took > silence * 2 / 5 && took < silence * 3 / 5);
	}
	meet(job);
	if (tutti_rank(job) == 2)
		tt_sim_kill(2, 10 * TT_MS);
	if (tutti_rank(job) < 2) {
		took = keep_and_push(job, t, 2);
		CHECK(took < silence / 5);
		done++;
	}
	while (done < 2)
		pass_time(TT_MS);
	tutti_table_close(t);
}

static void test_silent(void)
{
	for (struct ranks run = { .size = 3, .wire = "sim", .program = program_silent }; run.seed < SEEDS; run.seed++)
		CU_ASSERT_EQUAL(run_ranks(run), 0);
}

static enum { READER_DIES, TABLE_SWITCHES, TABLE_CLOSES, ENDINGS } ending; /* while the next version waits */

/* The first version after the kept one has its own place, the second waits. */
static void push_twice(tutti_table *t)
{
	float d[ROW] = { 1, 1, 1, 1 }, v[ROW];

	CHECK(tutti_table_push(t, d, NULL, NULL) == 0 && tutti_table_pull(t, v, NULL) == 0);
	CHECK(tutti_table_push(t, d, NULL, NULL) == 0);
}

static void program_keep_ends(tutti *job)
{
	static const int server[] = { 0 }, worker[] = { 0, 1 };
	static atomic_int done;
	const tutti_consistency by_clock = { .mode = TUTTI_ASYNC };
	tutti_table_config c = tutti_table_rows(TUTTI_F32, 1, ROW, tutti_accumulate());
	c.servers = 1;
	c.server = server;
	c.workers = 2;
	c.worker = worker;
	c.consistency.mode = TUTTI_BSP;
	tutti_table *t = open_table(job, "kept", &c);
	float v[ROW];

	done = 0;
	meet(job);
	if (tutti_rank(job) == 0) {
		tt_lock(job->job);
		CHECK(tt_version_keep(t, 2, 1, 0) == t->source[0].clock);
		tt_unlock(job->job);
	} else if (tutti_rank(job) == 2 && ending == READER_DIES) {
		tt_sim_kill(2, 10 * TT_MS);
	}
	uint64_t since = tt_now();
	if (tutti_rank(job) < 2) {
		push_twice(t);
		if (ending == TABLE_SWITCHES)
			CHECK(tutti_table_switch(t, &by_clock) == 0);
		if (ending != TABLE_CLOSES)
			CHECK(tutti_table_pull(t, v, NULL) == 0 && all_are(v, ROW, 4));
		done++;
	}
	while (done < 2)
		pass_time(TT_MS);
	tutti_table_close(t);
	CHECK(tt_now() - since < job->job->silence / (ending == READER_DIES ? 5 : 3));
}

static void test_keep_ends(void)
{
	for (ending = 0; ending < ENDINGS; ending++)
		for (struct ranks run = { .size = 3, .wire = "sim", .program = program_keep_ends }; run.seed < SEEDS;
		     run.seed++)
			CU_ASSERT_EQUAL(run_ranks(run), 0);
}

/* A worker that is stopped in the middle of a push holds up the others once, not for each version that is due. */
static void program_stopped(tutti *job)
{
	enum { COUNT = 300000, PUSHES = 100, PATIENCE = 100 };
	static const int server[] = { 0 };
	static atomic_int stopped, done;
	const tutti_table_config c = WITH(tutti_table_f32(COUNT, tutti_accumulate()), it.servers = 1,
	                                  it.server = server, it.flags = TUTTI_TABLE_SNAPSHOTS,
	                                  it.publish_pushes = 1);
	float *d = calloc(COUNT, sizeof *d);
	tutti_table *t = open_table(job, "stopped", &c);
	uint64_t began;

	stopped = done = 0;
	meet(job);
	if (tutti_rank(job) == 0) {
		while (!t->shard.half)
			pass_time(TT_MS / 100);
		tt_sim_stop(1, 0, 30 * PATIENCE * TT_MS);
		stopped = 1;
	} else if (tutti_rank(job) == 1) {
		tt_sim_slow(1, 100);
		CHECK(tutti_table_push(t, d, NULL, NULL) == 0);
		tt_sim_slow(1, 1);
	} else {
		while (!stopped)
			pass_time(TT_MS / 10);
		began = tt_now();
		for (int i = 0; i < PUSHES; i++)
			CHECK(tutti_table_push(t, d, NULL, NULL) == 0);
		CHECK(tt_now() - began < 3 * PATIENCE * TT_MS);
		done = 1;
	}
	while (!done)
		pass_time(TT_MS);
	close_table(job, t);
	free(d);
}

static void test_stopped(void)
{
	CU_ASSERT_EQUAL(run_ranks((struct ranks){ .size = 3, .wire = "sim", .program = program_stopped }), 0);
}

static void program_wrong(tutti *job)
{
	tutti_table_config c = tutti_table_f32(5, tutti_accumulate());
	tutti_table *t, *u;
	float v[5];

	t = open_table(job, "snapshots", &c);
	CHECK(tutti_table_snapshot(t, v, NULL, NULL) == -EINVAL && strstr(tutti_why(), "TUTTI_TABLE_SNAPSHOTS"));
	c.publish_ms = 3;
	CHECK(tutti_table_open(job, "x", &c, &u) == -EINVAL && strstr(tutti_why(), "TUTTI_TABLE_SNAPSHOTS"));
	c.flags = TUTTI_TABLE_SNAPSHOTS;
	CHECK(tutti_table_open(job, "x", &c, &u) == 0);
	CHECK(tutti_table_snapshot(u, NULL, NULL, NULL) == -EINVAL);
	tutti_table_close(u);
	c.flags = 1u << 20;
	c.publish_ms = 0;
	CHECK(tutti_table_open(job, "x", &c, &u) == -EINVAL && strstr(tutti_why(), "flags"));
	tutti_table_close(t);
}

static void test_wrong(void) { on_wires(program_wrong, (const int[]){ 1, 0 }); }

static CU_TestInfo snapshot_tests[] = {
	{ "one writes", test_writer },
	{ "several write", test_overlap },
	{ "rows", test_rows },
	{ "assigns", test_assigns },
	{ "rounds", test_rounds },
	{ "a slow reader", test_slow },
	{ "a silent reader", test_silent },
	{ "a version that waits for a reader", test_keep_ends },
	{ "a worker is stopped in its push", test_stopped },
	{ "wrong", test_wrong },
	CU_TEST_INFO_NULL,
};

static CU_SuiteInfo suites[] = { { "snapshots", NULL, NULL, NULL, NULL, snapshot_tests }, CU_SUITE_INFO_NULL };

int main(int argc, char **argv) { return run_suites(suites, argc, argv); }
