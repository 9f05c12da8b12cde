/* unit_snapshots.c - published versions of tables: none is torn, while others push as fast as they can */
#include "member/member.h"
#include "table/table_private.h"
#include "tests/harness/cunit_main.h"
#include "tests/table/tables.h"

#if TT_TSAN
enum { SEEDS = 2 };
#else
enum { SEEDS = 10 };
#endif

static void on_wires(void (*program)(tutti *), const int *sizes) { run_on_wires(program, sizes, SEEDS); }

static const int two_servers[] = { 0, 1 };

static tutti_table_config config_of(const tutti *job, uint64_t count)
{
	return (tutti_table_config){ .size = sizeof(tutti_table_config), .type = TUTTI_F32, .count = count, .flags = TUTTI_TABLE_SNAPSHOTS,
		                     .servers = tutti_size((tutti *)(uintptr_t)job) > 1 ? 2 : 1, .server = two_servers };
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
	tutti_versions versions = { .size = sizeof versions };

	fill(d, count, 1);
	for (int k = 0; k < pushes; k++) {
		if (writes)
			CHECK(tutti_table_push(t, d, NULL, NULL) == 0);
		if (writes && tutti_size(job) > 1)
			continue;
		int err = tutti_table_snapshot(t, v, &versions, NULL);
		CHECK(err == 0 || err == -EAGAIN);
		if (err)
			continue;
		check_whole(t, v, (float)pushes);
		CHECK(v[0] >= last && versions.oldest <= versions.newest && versions.age_ms >= 0);
		last = v[0];
	}
	CHECK(tutti_barrier(job, NULL) == 0);
	pass_time(3 * TT_MS); /* then the last one is due */
	CHECK(tutti_table_push(t, d, NULL, NULL) == 0);
	CHECK(tutti_barrier(job, NULL) == 0);
	for (int i = 0; i < 2000 && !(tutti_table_snapshot(t, v, NULL, NULL) == 0 && all_are(v, count, (float)(pushes + tutti_size(job)))); i++)
		pass_time(TT_MS);
	CHECK(all_are(v, count, (float)(pushes + tutti_size(job))));
	free(d);
	free(v);
}

static void program_writer(tutti *job)
{
	static const struct { size_t count; uint64_t pushes; int ms; unsigned flags; } of[] = {
		{ 1, 0, 1, 0 }, { 1000, 0, 1, 0 }, { 1000, 0, 1, TUTTI_TABLE_FILTER }, { 30000, 3, 2, 0 }, { 200000, 0, 5, 0 }, { 200000, 0, 1, 0 },
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
	tutti_versions versions = { .size = sizeof versions };
	tutti_stat stat = { .size = sizeof stat }, before = stat;
	int workers[16], n = tutti_size(job) - (tutti_size(job) > 1);
	uint64_t refused = 0;

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
		int err = tutti_table_snapshot(t, v, &versions, NULL);
		CHECK(err == 0 || err == -EAGAIN);
		refused += err != 0;
		if (!err)
			CHECK(versions.oldest == versions.newest && all_are(v, count, (float)versions.newest * (float)n));
	}
	CHECK(refused < ROUNDS || tutti_rank(job) >= n); /* a worker is one version behind at most, and has all the time until its next push */
	CHECK(tutti_barrier(job, NULL) == 0);
	CHECK(tutti_table_snapshot(t, v, &versions, NULL) == 0 && versions.newest == ROUNDS && all_are(v, count, (float)(ROUNDS * n)));
	CHECK(tutti_stats(job, -1, TUTTI_STAT_SNAPSHOT, &stat) == 0 && stat.ops - before.ops == ROUNDS + 1 && stat.errors - before.errors == refused);
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
	tutti_versions versions = { .size = sizeof versions };
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
		int err = tutti_table_snapshot(t, v, &versions, NULL);
		CHECK(err == -EAGAIN || (err == 0 && versions.newest >= 2 && all_are(v, COUNT, v[0])));
	}
	for (int k = 0; k < DEPTH && tutti_rank(job); k++)
		CHECK(tutti_wait(&ops[k], -1) == 0);
	close_table(job, t);
	free(d);
	free(v);
}

static void test_overlap(void) { on_wires(program_overlap, (const int[]){ 9, 0 }); }

static void program_wrong(tutti *job)
{
	tutti_table_config c = { .size = sizeof c, .type = TUTTI_F32, .count = 5 };
	tutti_versions versions = { .size = 3 };
	tutti_table *t, *u;
	float v[5];

	t = open_table(job, "snapshots", &c);
	CHECK(tutti_table_snapshot(t, v, NULL, NULL) == -EINVAL && strstr(tutti_why(), "TUTTI_TABLE_SNAPSHOTS"));
	c.publish_ms = 3;
	CHECK(tutti_table_open(job, "x", &c, &u) == -EINVAL && strstr(tutti_why(), "TUTTI_TABLE_SNAPSHOTS"));
	c.flags = TUTTI_TABLE_SNAPSHOTS;
	CHECK(tutti_table_open(job, "x", &c, &u) == 0);
	CHECK(tutti_table_snapshot(u, v, &versions, NULL) == -EINVAL && strstr(tutti_why(), "tutti_versions"));
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
	{ "rounds", test_rounds },
	{ "wrong", test_wrong },
	CU_TEST_INFO_NULL,
};

static CU_SuiteInfo suites[] = { { "snapshots", NULL, NULL, NULL, NULL, snapshot_tests }, CU_SUITE_INFO_NULL };

int main(int argc, char **argv) { return run_suites(suites, argc, argv); }
