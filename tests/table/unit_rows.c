/* unit_rows.c - rows and keys of parameter tables: each test on sim (over seeds) and over TCP and shared memory */
#include "engine/engine.h"
#include "kernel/kernel.h"
#include "member/member.h"
#include "table/table_private.h"
#include "tests/harness/cunit_main.h"
#include "tests/harness/folders.h"
#include "tests/table/tables.h"
#include "transport/sim/sim.h"

#if TT_TSAN
enum { SEEDS = 2 };
#elif TT_ASAN
enum { SEEDS = 3 };
#else
#define SEEDS (uint64_t)all_or(8, 2)
#endif

static void on_wires(void (*program)(tutti *), const int *sizes) { run_on_wires(program, sizes, SEEDS); }

static tutti_table_config config_of(tutti_type type, uint64_t count, uint64_t row, unsigned flags)
{
	return WITH(tutti_table_rows(type, count, row, tutti_accumulate()), it.flags = flags);
}

/* ---- rows: sums ---- */

enum { PUSHES = 3 };

/* What a rank pushes in a round, the same wherever it is asked for: some rows come twice, in any order. */
static size_t draw_list(int rank, int round, uint64_t rows, size_t n, uint64_t *list)
{
	struct tt_random r;

	tt_random_seed(&r, (uint64_t)(1 + rank) * 1000003 + (uint64_t)round);
	for (size_t i = 0; i < n; i++)
		list[i] = i % 5 == 4 ? list[i - 1] : tt_random_below(&r, rows);
	return n;
}

static float delta_at(int rank, size_t i, size_t k) { return (float)((rank + 1) * (int)(1 + i % 7) + (int)(k % 3)); }

static void add_list(float *sums, int rank, int round, uint64_t rows, size_t row, size_t n, uint64_t *list)
{
	draw_list(rank, round, rows, n, list);
	for (size_t i = 0; i < n; i++)
		for (size_t k = 0; k < row; k++)
			sums[list[i] * row + k] += delta_at(rank, i, k);
}

static bool are_rows(const float *values, const float *sums, const uint64_t *list, size_t n, size_t row)
{
	for (size_t i = 0; i < n; i++)
		if (memcmp(values + i * row, sums + list[i] * row, row * sizeof *values))
			return false;
	return true;
}

static void sum_up(tutti *job, uint64_t rows, size_t row, size_t n)
{
	tutti_table_config c = config_of(TUTTI_F32, rows, row, 0);
	tutti_table *t = open_table(job, "sums", &c);
	float *sums = calloc(rows * row, sizeof *sums), *values = calloc((rows + n) * row, sizeof *values);
	uint64_t *list = calloc(n, sizeof *list);

	for (int round = 0; round < PUSHES; round++) {
		draw_list(tutti_rank(job), round, rows, n, list);
		for (size_t i = 0; i < n * row; i++)
			values[i] = delta_at(tutti_rank(job), i / row, i % row);
		CHECK(tutti_table_push_rows(t, list, n, values, NULL, NULL) == 0);
	}
	for (int rank = 0; rank < tutti_size(job); rank++)
		for (int round = 0; round < PUSHES; round++)
			add_list(sums, rank, round, rows, row, n, list);
	CHECK(tutti_barrier(job, NULL) == 0);
	CHECK(tutti_table_pull(t, values, NULL) == 0 && !memcmp(values, sums, rows * row * sizeof *sums));
	draw_list(tutti_rank(job), 99, rows, n, list);
	CHECK(tutti_table_pull_rows(t, list, n, values, NULL) == 0 && are_rows(values, sums, list, n, row));
	CHECK(tutti_table_pull_rows(t, NULL, 0, NULL, NULL) == 0 &&
	      tutti_table_push_rows(t, list, 0, values, NULL, NULL) == 0);
	close_table(job, t);
	free(sums);
	free(values);
	free(list);
}

static void program_sums(tutti *job)
{
	sum_up(job, 1, 1, 7);
	sum_up(job, 2, 3, 20);         /* fewer than servers */
	sum_up(job, 37, 5, 50);
	sum_up(job, 1000, 1, 3000);
	sum_up(job, 7, 20011, 11);     /* rows that are longer than a message */
	for (size_t more = 0; more < 2; more++) /* one row fills a message, and is one element too long */
		sum_up(job, 7, (TT_PUSH_MESSAGE - TT_ROW_NAME) / sizeof(float) + more, 11);
	sum_up(job, 900, 100, 2000);
}

static void test_sums(void) { on_wires(program_sums, (const int[]){ 1, 2, 3, 5, 0 }); }

/* Deltas of tutti_alloc(), which a server on the same host reads in place: rows in any number, parts of long rows, rows
 * that are set; sorted lists go so to several servers, others to one. */

static uint64_t count_sent(tutti *job)
{
	tutti_stat to = { 0 };

	return tutti_stats(job, 0, TUTTI_STAT_MESSAGE, &to) ? 0 : to.bytes;
}

static void push_mapped(tutti *job, int servers, uint64_t rows, size_t row, unsigned flags)
{
	static const int server[] = { 0, 1 };
	tutti_table_config c = config_of(TUTTI_F32, flags & TUTTI_TABLE_KEYS ? 0 : rows, row, flags);
	size_t count = rows * row, bytes = count * sizeof(float);
	float *d, *v = calloc(count, sizeof *v);
	uint64_t *list = calloc(rows, sizeof *list), sent;
	tutti_table *t;
	bool good = true;

	c.servers = servers;
	c.server = server;
	t = open_table(job, "mapped", &c);
	CHECK(tutti_alloc(job, bytes, -1, (void **)&d) == 0);
	for (size_t i = 0; i < rows; i++)
		list[i] = servers == 1 ? rows - 1 - i : i;
	for (size_t i = 0; i < count; i++)
		d[i] = (float)(list[i / row] % 100 + 1) * (float)(i % row % 10 + 1);
	sent = count_sent(job);
	if (tutti_rank(job))
		CHECK(tutti_table_push_rows(t, list, rows, d, NULL, NULL) == 0 &&
		      tutti_table_push_rows(t, list, rows, d, NULL, NULL) == 0);
	if (!tt_world && tutti_rank(job) && tt_window_is_mapped(t->window, 0) && !(flags & TUTTI_TABLE_FILTER) &&
	    (servers == 1 || !(flags & TUTTI_TABLE_KEYS)))
		CHECK(count_sent(job) - sent < 2 * 10000 + bytes / 10);
	CHECK(tutti_barrier(job, NULL) == 0 && tutti_table_pull_rows(t, list, rows, v, NULL) == 0);
	for (size_t i = 0; i < count; i++)
		good &= v[i] == 2 * (float)(tutti_size(job) - 1) * d[i];
	CHECK(good && tutti_barrier(job, NULL) == 0);
	if (tutti_rank(job) == 1)
		CHECK(tutti_table_assign_rows(t, list, rows, d, NULL) == 0);
	CHECK(tutti_barrier(job, NULL) == 0 && tutti_table_pull_rows(t, list, rows, v, NULL) == 0);
	CHECK(!memcmp(v, d, bytes));
	close_table(job, t);
	tutti_free(job, d);
	free(v);
	free(list);
}

static void program_mapped(tutti *job)
{
	for (int servers = 1; servers <= 2; servers++) {
		push_mapped(job, servers, 1000, 100, 0);
		push_mapped(job, servers, 3, 70001, 0); /* a row is longer than a piece */
		push_mapped(job, servers, 1000, 100, TUTTI_TABLE_KEYS);
		push_mapped(job, servers, 1000, 100, TUTTI_TABLE_FILTER);
	}
}

static void test_mapped(void) { on_wires(program_mapped, (const int[]){ 2, 3, 0 }); }

/* Pushes and pulls under way together; a worker's pushes to a server keep their order, whether of rows or of all. */
static void program_started(tutti *job)
{
	enum { ROWS = 600, ROW = 80, CALLS = 6 };
	tutti_table_config c = config_of(TUTTI_F32, ROWS, ROW, 0);
	tutti_table *t;
	uint64_t list[ROWS];
	float *ones = calloc(ROWS * ROW, sizeof *ones), *pulled = calloc(ROWS * ROW, sizeof *ones);
	tutti_op ops[2 * CALLS + 1];
	bool good = true;

	c.updater = tutti_assign();
	t = open_table(job, "started", &c);
	for (int i = 0; i < ROWS; i++)
		list[i] = (uint64_t)(ROWS - 1 - i);
	for (int i = 0; i < ROWS * ROW; i++)
		ones[i] = 1;
	if (tutti_rank(job) == 0) {
		float *twos = calloc(ROWS * ROW, sizeof *twos);
		for (int i = 0; i < CALLS; i++) {
			CHECK(tutti_table_push(t, i % 2 ? ones : twos, NULL, &ops[2 * i]) == 0);
			CHECK(tutti_table_push_rows(t, list, ROWS, i % 2 ? twos : ones, NULL, &ops[2 * i + 1]) == 0);
		}
		CHECK(tutti_table_push_rows(t, list, ROWS, ones, NULL, &ops[2 * CALLS]) == 0);
		for (int i = 0; i <= 2 * CALLS; i++)
			CHECK(tutti_wait(&ops[i], -1) == 0);
		free(twos);
	} else {
		for (int i = 0; i < CALLS; i++)
			CHECK(tutti_table_pull_rows(t, list, ROWS, pulled, NULL) == 0);
	}
	CHECK(tutti_barrier(job, NULL) == 0);
	CHECK(tutti_table_pull_rows(t, list, ROWS, pulled, NULL) == 0);
	for (int i = 0; i < ROWS * ROW; i++)
		good &= pulled[i] == 1;
	CHECK(good);
	close_table(job, t);
	free(ones);
	free(pulled);
}

static void test_started(void) { on_wires(program_started, (const int[]){ 1, 2, 4, 0 }); }

/* ---- rows in rounds, and under bounded staleness ---- */

/* In round k all pull the sums of k rounds and nothing else, also of servers that some had no rows for. */
static void follow_rounds(tutti *job, tutti_mode mode)
{
	enum { ROWS = 40, ROW = 30, N = 12, LOOKS = 4 };
	tutti_table_config c = config_of(TUTTI_F32, ROWS, ROW, 0);
	float *sums = calloc(ROWS * ROW, sizeof *sums), *values = calloc(ROWS * ROW, sizeof *values);
	uint64_t list[N], all[ROWS];
	tutti_table *t;

	c.consistency = (tutti_consistency){ .mode = mode };
	t = open_table(job, "rounds", &c);
	for (uint64_t i = 0; i < ROWS; i++)
		all[i] = i;
	for (int round = 0; round < LOOKS; round++) {
		size_t n = tutti_rank(job) == round ? 1 : N;
		draw_list(tutti_rank(job), round, ROWS, N, list);
		for (size_t i = 0; i < n * ROW; i++)
			values[i] = delta_at(tutti_rank(job), i / ROW, i % ROW);
		CHECK(tutti_table_push_rows(t, list, n, values, NULL, NULL) == 0);
		for (int rank = 0; rank < tutti_size(job); rank++)
			add_list(sums, rank, round, ROWS, ROW, rank == round ? 1 : N, list);
		CHECK(tutti_table_pull_rows(t, all, ROWS, values, NULL) == 0);
		CHECK(mode != TUTTI_BSP || !memcmp(values, sums, ROWS * ROW * sizeof *sums));
	}
	CHECK(tutti_barrier(job, NULL) == 0);
	CHECK(tutti_table_pull_rows(t, all, ROWS, values, NULL) == 0 &&
	      !memcmp(values, sums, ROWS * ROW * sizeof *sums));
	close_table(job, t);
	free(sums);
	free(values);
}

static void program_rounds(tutti *job)
{
	follow_rounds(job, TUTTI_BSP);
	follow_rounds(job, TUTTI_SSP);
}

static void test_rounds(void) { on_wires(program_rounds, (const int[]){ 1, 2, 3, 5, 0 }); }

/* of five servers, each list takes several messages */
enum { VERSION_ROWS = 90, VERSION_ROW = 300, VERSION_ROUNDS = 6 };

static tutti_table *open_versions(tutti *job, int workers, int backup, uint64_t *all)
{
	static const int ranks[] = { 0, 1, 2, 3, 4 };
	tutti_table_config c = config_of(TUTTI_F32, VERSION_ROWS, VERSION_ROW, 0);

	c.consistency = (tutti_consistency){ .mode = TUTTI_BSP, .backup = backup };
	c.workers = workers;
	c.worker = workers ? ranks : NULL;
	for (uint64_t i = 0; i < VERSION_ROWS; i++)
		all[i] = VERSION_ROWS - 1 - i;
	return open_table(job, "versions", &c);
}

/* Pushes and pulls started all at once: the i-th pull is what i pushes of all have made, whatever has been pushed
 * behind it. */
static void program_versions_ahead(tutti *job)
{
	uint64_t all[VERSION_ROWS];
	tutti_table *t = open_versions(job, 0, 0, all);
	float *ones = calloc(VERSION_ROWS * VERSION_ROW, sizeof *ones), *v[VERSION_ROUNDS], *w[VERSION_ROUNDS];
	tutti_op op[3 * VERSION_ROUNDS];

	fill(ones, VERSION_ROWS * VERSION_ROW, 1);
	for (int k = 0; k < VERSION_ROUNDS; k++) {
		v[k] = calloc(VERSION_ROWS * VERSION_ROW, sizeof *v[k]);
		w[k] = calloc(VERSION_ROWS * VERSION_ROW, sizeof *w[k]);
		CHECK((k % 2 ? tutti_table_push(t, ones, NULL, &op[3 * k])
		             : tutti_table_push_rows(t, all, VERSION_ROWS, ones, NULL, &op[3 * k])) == 0);
		CHECK(tutti_table_pull_rows(t, all, VERSION_ROWS, v[k], &op[3 * k + 1]) == 0);
		CHECK(tutti_table_pull(t, w[k], &op[3 * k + 2]) == 0);
	}
	for (int k = 0; k < 3 * VERSION_ROUNDS; k++)
		CHECK(tutti_wait(&op[k], -1) == 0);
	for (int k = 0; k < VERSION_ROUNDS; k++) {
		CHECK(all_are(v[k], VERSION_ROWS * VERSION_ROW, (float)((k + 1) * tutti_size(job))));
		CHECK(all_are(w[k], VERSION_ROWS * VERSION_ROW, (float)((k + 1) * tutti_size(job))));
		free(v[k]);
		free(w[k]);
	}
	close_table(job, t);
	free(ones);
}

/* v is of the rows from the last to the first. With backup workers servers may have left out different pushes. */
static bool is_one_version(const tutti_table *t, const float *v, int backup)
{
	bool good = true;

	for (int i = 0; i < t->servers; i++) {
		struct tt_range r = tt_table_range(t, i);
		const float *from = v + VERSION_ROWS * VERSION_ROW - r.first - r.count;
		good &= all_are(from, r.count, backup ? *from : *v);
	}
	return good;
}

/* The last rank reads while the others push, or is a worker that no round waits for. */
static void read_along(tutti *job, int backup)
{
	uint64_t all[VERSION_ROWS];
	int n = tutti_size(job), me = tutti_rank(job);
	tutti_table *t = open_versions(job, backup ? 0 : n - 1, backup, all);
	float *d = calloc(VERSION_ROWS * VERSION_ROW, sizeof *d), *v = calloc(VERSION_ROWS * VERSION_ROW, sizeof *v);
	bool reads = me == n - 1;

	fill(d, VERSION_ROWS * VERSION_ROW, 1);
	for (int k = 0; k < 8 * VERSION_ROUNDS; k++) {
		int err = 0;
		if (!reads)
			err = tutti_table_push(t, d, NULL, NULL);
		else if (backup && k % 8 == 0)
			err = tutti_table_push_rows(t, all, VERSION_ROWS, d, NULL, NULL);
		CHECK(err == 0);
		err = reads ? tutti_table_pull_rows(t, all, VERSION_ROWS, v, NULL) : 0;
		CHECK(err == 0 && (!reads || is_one_version(t, v, backup)));
	}
	CHECK(tutti_barrier(job, NULL) == 0);
	CHECK(tutti_table_pull_rows(t, all, VERSION_ROWS, v, NULL) == 0 && is_one_version(t, v, backup));
	close_table(job, t);
	free(d);
	free(v);
}

static void program_versions_read(tutti *job)
{
	read_along(job, 0);
	if (tutti_size(job) > 2)
		read_along(job, 1);
}

static void test_versions(void)
{
	run_on_wires(program_versions_ahead, (const int[]){ 1, 2, 4, 0 }, SEEDS);
	run_on_wires(program_versions_read, (const int[]){ 2, 3, 5, 0 }, SEEDS);
}

/* ---- rounds of rows that were pushed to ---- */

enum { TOUCHED = 300, TOUCHED_ROW = 20, TOUCHED_LIST = 40, TOUCHED_ROUNDS = 8 };

static uint64_t name_of(const tutti_table *t, uint64_t row)
{
	return t->flags & TUTTI_TABLE_KEYS ? row * 0x9e3779b97f4a7c15 + 3 : row;
}

/* Momentum 0.5 moves a row in each round that it comes into, and in no other. */
static void step_rows(float *w, float *m, int ranks, int round)
{
	float *sum = calloc(TOUCHED * TOUCHED_ROW, sizeof *sum);
	bool touched[TOUCHED] = { false };
	uint64_t list[TOUCHED_LIST];

	for (int rank = 0; rank < ranks; rank++) {
		add_list(sum, rank, round, TOUCHED, TOUCHED_ROW, TOUCHED_LIST, list);
		for (int i = 0; i < TOUCHED_LIST; i++)
			touched[list[i]] = true;
	}
	for (int i = 0; i < TOUCHED * TOUCHED_ROW; i++)
		if (touched[i / TOUCHED_ROW]) {
			m[i] = 0.5f * m[i] + sum[i];
			w[i] -= 0.25f * m[i];
		}
	free(sum);
}

static tutti_table *open_touched(tutti *job, unsigned flags, int workers)
{
	static const int ranks[] = { 0, 1, 2, 3, 4 };
	tutti_table_config c = config_of(TUTTI_F32, flags & TUTTI_TABLE_KEYS ? 0 : TOUCHED, TOUCHED_ROW, flags);

	c.consistency = (tutti_consistency){ .mode = TUTTI_BSP };
	c.workers = workers;
	c.worker = workers ? ranks : NULL;
	c.updater = tutti_momentum(0.25, 0.5);
	return open_table(job, "touched", &c);
}

/* All is started at once. */
static void go_touched(tutti *job, unsigned flags)
{
	enum { ALL = TOUCHED * TOUCHED_ROW };
	tutti_table *t = open_touched(job, flags, 0);
	float *w = calloc(ALL, sizeof *w), *m = calloc(ALL, sizeof *m), *v[TOUCHED_ROUNDS], *d[TOUCHED_ROUNDS];
	uint64_t list[TOUCHED_ROUNDS][TOUCHED_LIST], all[TOUCHED];
	tutti_op op[2 * TOUCHED_ROUNDS];

	for (uint64_t i = 0; i < TOUCHED; i++)
		all[i] = name_of(t, i);
	for (int k = 0; k < TOUCHED_ROUNDS; k++) {
		v[k] = calloc(ALL, sizeof *v[k]);
		d[k] = calloc(TOUCHED_LIST * TOUCHED_ROW, sizeof *d[k]);
		draw_list(tutti_rank(job), k, TOUCHED, TOUCHED_LIST, list[k]);
		for (size_t i = 0; i < TOUCHED_LIST * TOUCHED_ROW; i++)
			d[k][i] = delta_at(tutti_rank(job), i / TOUCHED_ROW, i % TOUCHED_ROW);
		for (int i = 0; i < TOUCHED_LIST; i++)
			list[k][i] = name_of(t, list[k][i]);
		CHECK(tutti_table_push_rows(t, list[k], TOUCHED_LIST, d[k], NULL, &op[2 * k]) == 0);
		CHECK(tutti_table_pull_rows(t, all, TOUCHED, v[k], &op[2 * k + 1]) == 0);
	}
	for (int k = 0; k < TOUCHED_ROUNDS; k++) {
		CHECK(tutti_wait(&op[2 * k], -1) == 0 && tutti_wait(&op[2 * k + 1], -1) == 0);
		step_rows(w, m, tutti_size(job), k);
		CHECK(!memcmp(v[k], w, ALL * sizeof *w));
		free(v[k]);
		free(d[k]);
	}
	close_table(job, t);
	free(w);
	free(m);
}

/* A copy of the table, which the rows that this worker has pushed to and the fresh ones keep as it is. */
static void keep_fresh_copy(tutti *job)
{
	enum { ALL = TOUCHED * TOUCHED_ROW };
	tutti_table *t = open_touched(job, TUTTI_TABLE_FRESH, 0);
	float *w = calloc(ALL, sizeof *w), *m = calloc(ALL, sizeof *m), *v = calloc(ALL, sizeof *v),
	      *copy = calloc(ALL, sizeof *copy);
	uint64_t list[TOUCHED_LIST], rows[TOUCHED];
	size_t n;

	for (int k = 0; k < 3 * TOUCHED_ROUNDS; k++) {
		draw_list(tutti_rank(job), k, TOUCHED, TOUCHED_LIST, list);
		for (size_t i = 0; i < TOUCHED_LIST * TOUCHED_ROW; i++)
			v[i] = delta_at(tutti_rank(job), i / TOUCHED_ROW, i % TOUCHED_ROW);
		CHECK(tutti_table_push_rows(t, list, TOUCHED_LIST, v, NULL, NULL) == 0);
		step_rows(w, m, tutti_size(job), k);
		if (k % 5 == 3)
			continue;
		if (k % 5 == 4) { /* what it alone has pushed to does not come as fresh */
			CHECK(tutti_table_pull(t, copy, NULL) == 0 && !memcmp(copy, w, ALL * sizeof *w));
			continue;
		}
		CHECK(tutti_table_pull_rows(t, list, TOUCHED_LIST, v, NULL) == 0 &&
		      are_rows(v, w, list, TOUCHED_LIST, TOUCHED_ROW));
		for (size_t i = 0; i < TOUCHED_LIST; i++)
			memcpy(copy + list[i] * TOUCHED_ROW, v + i * TOUCHED_ROW, TOUCHED_ROW * sizeof *v);
		CHECK(tutti_table_pull_fresh(t, rows, v, TOUCHED, &n, NULL) == 0);
		CHECK(k < 2 || n < TOUCHED);
		for (size_t i = 0; i < n; i++)
			memcpy(copy + rows[i] * TOUCHED_ROW, v + i * TOUCHED_ROW, TOUCHED_ROW * sizeof *v);
		CHECK(!memcmp(copy, w, ALL * sizeof *w));
	}
	CHECK(tutti_table_finish(t) == 0);
	CHECK(tutti_table_pull_fresh(t, rows, v, TOUCHED, &n, NULL) == -EPERM && strstr(tutti_why(), "do not wait"));
	close_table(job, t);
	free(w);
	free(m);
	free(v);
	free(copy);
}

/* The last rank, which is no worker, finds one version of all keys: each round adds as much to each. */
static void read_keys_along(tutti *job)
{
	int n = tutti_size(job);
	tutti_table *t = open_touched(job, TUTTI_TABLE_KEYS, n - 1);
	float *v = calloc(TOUCHED * TOUCHED_ROW, sizeof *v);
	uint64_t all[TOUCHED];

	for (uint64_t i = 0; i < TOUCHED; i++)
		all[i] = name_of(t, i);
	for (int k = 0; k < 4 * TOUCHED_ROUNDS; k++) {
		fill(v, TOUCHED * TOUCHED_ROW, 1);
		int err = tutti_rank(job) < n - 1 ? tutti_table_push_rows(t, all, TOUCHED, v, NULL, NULL)
		                                  : tutti_table_pull_rows(t, all, TOUCHED, v, NULL);
		CHECK(err == 0 && all_are(v, TOUCHED * TOUCHED_ROW, v[0]));
	}
	close_table(job, t);
	free(v);
}

/* ---- both copies of their values ---- */

enum { COPY_ROWS = 500, COPY_ROW = 300, COPY_LIST = 25, COPY_ROUNDS = 21, COPY_ALL = COPY_ROWS * COPY_ROW };

static char folder[] = "/tmp/tutti-rows-XXXXXX"; /* has the save of one round */

static tutti_table *open_copies(tutti *job)
{
	tutti_table_config c = config_of(TUTTI_F32, COPY_ROWS, COPY_ROW, TUTTI_TABLE_FRESH);

	c.consistency = (tutti_consistency){ .mode = TUTTI_BSP };
	return open_table(job, "copies", &c);
}

/* What others may do to the values between two rounds of a few rows. w: what they are, and behind that what was
 * saved. */
static void disturb(tutti *job, tutti_table *t, int k, float *w)
{
	static const tutti_consistency async = { .mode = TUTTI_ASYNC }, rounds = { .mode = TUTTI_BSP };
	float *v = calloc(COPY_ALL, sizeof *v);
	bool first = tutti_rank(job) == 0;

	fill(v, COPY_ALL, (float)k);
	CHECK(tutti_barrier(job, NULL) == 0);
	switch (k % 7) {
	case 1:
		CHECK(!first || tutti_table_save(t, folder) == 0);
		memcpy(w + COPY_ALL, w, COPY_ALL * sizeof *w);
		break;
	case 2:
		CHECK(!first || tutti_table_assign(t, v, NULL) == 0);
		memcpy(w, v, COPY_ALL * sizeof *w);
		break;
	case 5:
		CHECK(tutti_table_switch(t, &async) == 0 && tutti_table_push(t, v, NULL, NULL) == 0 &&
		      tutti_table_switch(t, &rounds) == 0);
		break;
	case 4:
		CHECK(tutti_table_push(t, v, NULL, NULL) == 0);
		break;
	case 6:
		CHECK(!first || tutti_table_load(t, folder) == 0);
		memcpy(w, w + COPY_ALL, COPY_ALL * sizeof *w);
		break;
	}
	for (int i = 0; i < COPY_ALL && (k % 7 == 4 || k % 7 == 5); i++)
		w[i] += (float)(k * tutti_size(job));
	CHECK(tutti_barrier(job, NULL) == 0);
	free(v);
}

/* A round is written over the version before the last: rows that neither has touched are there already. */
static void program_copies(tutti *job)
{
	tutti_table *t = open_copies(job);
	float *w = calloc(2 * COPY_ALL, sizeof *w), *v = calloc(COPY_ALL, sizeof *v);
	uint64_t list[COPY_LIST];

	for (int k = 0; k < COPY_ROUNDS; k++) {
		disturb(job, t, k, w);
		draw_list(tutti_rank(job), k, COPY_ROWS, COPY_LIST, list);
		for (size_t i = 0; i < COPY_LIST * COPY_ROW; i++)
			v[i] = delta_at(tutti_rank(job), i / COPY_ROW, i % COPY_ROW);
		CHECK(tutti_table_push_rows(t, list, COPY_LIST, v, NULL, NULL) == 0);
		for (int rank = 0; rank < tutti_size(job); rank++)
			add_list(w, rank, k, COPY_ROWS, COPY_ROW, COPY_LIST, list);
		CHECK(tutti_table_pull(t, v, NULL) == 0 && !memcmp(v, w, COPY_ALL * sizeof *w));
	}
	close_table(job, t);
	free(w);
	free(v);
}

/* So nobody looks at them: what is written there from behind stays. */
static void program_untouched(tutti *job)
{
	enum { ALONE = COPY_ROWS - 1 };
	tutti_table *t = open_copies(job);
	float *v = calloc(COPY_ALL, sizeof *v);

	fill(v, COPY_ALL, 1);
	CHECK(tutti_table_push_pull(t, v, NULL, v, NULL) == 0);
	for (uint64_t row = 0; row < 4; row++) {
		if (row == 3) {
			tt_lock(job->job);
			size_t at = tt_table_at(t, 0, tt_table_placed(t), tt_version_clock(t) + 1);
			fill((float *)(void *)(t->shard.memory + at) + ALONE * COPY_ROW,
			     COPY_ROW, 77);
			tt_unlock(job->job);
		}
		CHECK(tutti_table_push_rows(t, &row, 1, v, NULL, NULL) == 0 && tutti_table_pull(t, v, NULL) == 0);
		CHECK(all_are(v + row * COPY_ROW, COPY_ROW, 2) &&
		      all_are(v + (row + 1) * COPY_ROW, (size_t)(ALONE - row - 1) * COPY_ROW, 1));
		CHECK(all_are(v + ALONE * COPY_ROW, COPY_ROW, row < 3 ? 1 : 77));
		fill(v, COPY_ROW, 1);
	}
	close_table(job, t);
	free(v);
}

static void program_touched(tutti *job)
{
	go_touched(job, TUTTI_TABLE_KEYS);
	go_touched(job, TUTTI_TABLE_FRESH);
	keep_fresh_copy(job);
	if (tutti_size(job) > 1)
		read_keys_along(job);
}

static void program_touched_switch(tutti *job) /* keys that came before, between and in rounds */
{
	static const tutti_consistency to[] = { { .mode = TUTTI_BSP }, { .mode = TUTTI_SSP }, { .mode = TUTTI_BSP } };
	tutti_table_config c = config_of(TUTTI_I64, 0, 1, TUTTI_TABLE_KEYS);
	tutti_table *t = open_table(job, "touched", &c);
	int64_t ones[TOUCHED], v[TOUCHED];
	uint64_t keys[TOUCHED];

	for (int i = 0; i < TOUCHED; i++)
		ones[i] = 1;
	for (size_t k = 0; k <= TT_COUNT(to); k++) {
		for (size_t i = 0; i < TOUCHED; i++)
			keys[i] = i * (k + 1);
		CHECK(tutti_table_push_rows(t, keys, TOUCHED, ones, NULL, NULL) == 0);
		CHECK(tutti_table_pull_rows(t, keys, TOUCHED, v, NULL) == 0);
		CHECK(tutti_barrier(job, NULL) == 0);
		if (k < TT_COUNT(to))
			CHECK(tutti_table_switch(t, &to[k]) == 0);
	}
	CHECK(tutti_table_pull_rows(t, keys, TOUCHED, v, NULL) == 0 && v[0] == 4 * tutti_size(job) &&
	      v[1] == 3 * tutti_size(job));
	close_table(job, t);
}

/* More of one server's keys than can be asked for at once: the pushes behind a pull wait until all of it has been
 * answered. */
static void program_long_pulls(tutti *job)
{
	enum { KEYS = 90, ROW = 4000, CALLS = 3 };
	const int server = 0;
	tutti_table_config c = config_of(TUTTI_F32, 0, ROW, TUTTI_TABLE_KEYS);
	float *ones = calloc(KEYS * ROW, sizeof *ones), *v[CALLS];
	uint64_t keys[KEYS];
	tutti_op op[2 * CALLS];

	c.servers = 1;
	c.server = &server;
	c.consistency = (tutti_consistency){ .mode = TUTTI_BSP };
	tutti_table *t = open_table(job, "long", &c);
	fill(ones, KEYS * ROW, 1);
	for (uint64_t i = 0; i < KEYS; i++)
		keys[i] = i;
	for (int k = 0; k < CALLS; k++) {
		v[k] = calloc(KEYS * ROW, sizeof *v[k]);
		CHECK(tutti_table_push_rows(t, keys, 1, ones, NULL, &op[2 * k]) == 0);
		CHECK(tutti_table_pull_rows(t, keys, KEYS, v[k], &op[2 * k + 1]) == 0);
	}
	for (int k = 0; k < CALLS; k++) {
		CHECK(tutti_wait(&op[2 * k], -1) == 0 && tutti_wait(&op[2 * k + 1], -1) == 0);
		CHECK(all_are(v[k], ROW, (float)((k + 1) * tutti_size(job))) &&
		      all_are(v[k] + ROW, (KEYS - 1) * ROW, 0));
		free(v[k]);
	}
	close_table(job, t);
	free(ones);
}

static void test_touched(void)
{
	CU_ASSERT_PTR_NOT_NULL_FATAL(mkdtemp(folder));
	run_on_wires(program_copies, (const int[]){ 1, 3, 0 }, 2);
	clear_folder(folder);
	rmdir(folder);
	CU_ASSERT_EQUAL(run_ranks((struct ranks){ .size = 1, .wire = "sim", .program = program_untouched }), 0);
	run_on_wires(program_long_pulls, (const int[]){ 1, 3, 0 }, SEEDS);
	run_on_wires(program_touched, (const int[]){ 1, 2, 3, 5, 0 }, SEEDS);
	run_on_wires(program_touched_switch, (const int[]){ 1, 3, 0 }, SEEDS);
}

/* ---- rows: rules and types ---- */

/* One worker pushes to one server: the same comes out, bit for bit, as of an updater of one's own that takes row by
 * row. */
static void run_rule(tutti *job, tutti_update_rule rule, tutti_type type)
{
	enum { ROWS = 23, ROW = 9, N = 40 };
	const int server = 0;
	tutti_table_config c = config_of(type, ROWS, ROW, 0);
	size_t width = tt_type_size(type), row = ROW * width;
	char *model = calloc(ROWS, row), *deltas = calloc(N, row), *got = calloc(ROWS, row);
	struct tt_updater *u;
	struct tt_push push;
	uint64_t list[N];
	tutti_table *t;

	c.updater.rule = rule;
	c.servers = 1;
	c.server = &server;
	t = open_table(job, "rules", &c);
	if (tutti_rank(job) == tutti_size(job) - 1) {
		CHECK(tt_updater_open(&c.updater, type, ROWS * ROW, tutti_size(job), &u) == 0);
		for (int round = 0; round < 3; round++) {
			draw_list(3, round, ROWS, N, list);
			for (size_t i = 0; i < N * row; i += width) /* small numbers of any type */
				memset(deltas + i, 0, width),
					deltas[i + width - 1] = (char)(type == TUTTI_I64 ? 0 : 0x38 + (i / width) % 6);
			CHECK(tutti_table_push_rows(t, list, N, deltas, NULL, NULL) == 0);
			CHECK(tt_updater_begin(u, tutti_rank(job), NULL, &push) == 0);
			for (size_t i = 0; i < N; i++)
				tt_updater_apply(&push, list[i] * ROW, ROW,
				                 &(struct tt_piece){ .to = model + list[i] * row,
				                                     .w = model + list[i] * row,
				                                     .d = deltas + i * row });
		}
		CHECK(tutti_table_pull(t, got, NULL) == 0 && !memcmp(got, model, ROWS * row));
		tt_updater_close(u);
	}
	close_table(job, t);
	free(model);
	free(deltas);
	free(got);
}

static void program_rules(tutti *job)
{
	static const tutti_update_rule rules[] = { TUTTI_UPDATE_ADD,     TUTTI_UPDATE_SGD,  TUTTI_UPDATE_MOMENTUM,
		                                   TUTTI_UPDATE_ADAGRAD, TUTTI_UPDATE_ADAM, TUTTI_UPDATE_DCASGD,
		                                   TUTTI_UPDATE_FTRL };
	static const tutti_type types[] = { TUTTI_F32, TUTTI_F64, TUTTI_F16, TUTTI_BF16 };

	for (size_t r = 0; r < TT_COUNT(rules); r++)
		for (size_t i = 0; i < TT_COUNT(types); i++)
			run_rule(job, rules[r], types[i]);
	run_rule(job, TUTTI_UPDATE_ADD, TUTTI_I64);
	run_rule(job, TUTTI_UPDATE_ASSIGN, TUTTI_I32);
}

static void test_rules(void)
{
	CU_ASSERT_EQUAL(run_ranks((struct ranks){ .size = 1, .wire = "sim", .program = program_rules }), 0);
	CU_ASSERT_EQUAL(run_ranks((struct ranks){ .size = 3, .wire = "sim", .seed = 1, .program = program_rules }), 0);
	CU_ASSERT_EQUAL(run_real_ranks((struct ranks){ .size = 2, .program = program_rules }), 0);
}

static void own_rule(const tutti_update_piece *p) /* counts, and expects elements where they can be read */
{
	const double *w = p->w, *d = p->d;
	double *to = p->to, *seen = p->state[0];

	*(int *)p->arg += (uintptr_t)p->d % sizeof *d != 0;
	for (size_t i = 0; i < p->count; i++)
		to[i] = w[i] + d[i] * ++seen[i];
}

static void program_own_rule(tutti *job)
{
	int misplaced = 0;
	tutti_table_config c = config_of(TUTTI_F64, 10, 3, 0);
	const uint64_t list[] = { 9, 2, 9 };
	const double deltas[9] = { 1, 2, 3, 4, 5, 6, 7, 8, 9 };
	double got[6];

	c.updater = tutti_own(own_rule, &misplaced, 1);
	tutti_table *t = open_table(job, "own", &c);
	if (tutti_rank(job) == 0) {
		CHECK(tutti_table_push_rows(t, list, 3, deltas, NULL, NULL) == 0);
		CHECK(tutti_table_pull_rows(t, list, 2, got, NULL) == 0);
		CHECK(got[0] == 1 + 7 * 2 && got[2] == 3 + 9 * 2 && got[3] == 4 && got[5] == 6);
	}
	close_table(job, t);
	CHECK(!misplaced);
}

static void test_own_rule(void) { on_wires(program_own_rule, (const int[]){ 1, 3, 0 }); }

/* ---- keys ---- */

/* some near 0, some anywhere */
static uint64_t key_at(size_t i) { return (uint64_t)i * 0x9e3779b97f4a7c15 ^ (i % 3 ? 0 : i); }

/* All ranks create the same keys at once, some of them twice, each from a place of its own on. */
static void create_keys(tutti *job, size_t keys, size_t row, size_t at_once)
{
	tutti_table_config c = config_of(TUTTI_I64, keys % 2, row, TUTTI_TABLE_KEYS);
	tutti_table *t = open_table(job, "keys", &c);
	uint64_t *list = calloc(at_once, sizeof *list);
	int64_t *values = calloc(at_once * row, sizeof *values);
	int n = tutti_size(job), rank = tutti_rank(job);
	bool good = true;

	for (size_t done = 0; done < keys; done += at_once) {
		for (size_t i = 0; i < at_once; i++) {
			size_t k = (done + i + (size_t)rank * keys / (size_t)n) % keys;
			list[i] = key_at(k);
			for (size_t j = 0; j < row; j++)
				values[i * row + j] = (int64_t)(k + j);
		}
		CHECK(tutti_table_push_rows(t, list, tt_min(at_once, keys - done), values, NULL, NULL) == 0);
	}
	CHECK(tutti_barrier(job, NULL) == 0);
	for (size_t done = 0; done < keys; done += at_once) {
		for (size_t i = 0; i < at_once; i++)
			list[i] = key_at((done + i) % keys);
		CHECK(tutti_table_pull_rows(t, list, at_once, values, NULL) == 0);
		for (size_t i = 0; i < at_once * row; i++)
			good &= values[i] == n * (int64_t)((done + i / row) % keys + i % row);
	}
	CHECK(good);
	for (size_t i = 0; i < at_once; i++)
		list[i] = ~key_at(i);
	memset(values, 1, at_once * row * sizeof *values);
	CHECK(tutti_table_pull_rows(t, list, at_once, values, NULL) == 0);
	for (size_t i = 0; i < at_once * row; i++)
		good &= values[i] == 0;
	CHECK(good);
	close_table(job, t);
	free(list);
	free(values);
}

static void program_keys(tutti *job)
{
	create_keys(job, 100, 3, 100);
	create_keys(job, 3001, 1, 500);
	create_keys(job, 20, 9001, 3); /* longer than a message */
}

static void program_many_keys(tutti *job) { create_keys(job, 100000, 3, 5000); }

static void test_keys(void) { on_wires(program_keys, (const int[]){ 1, 2, 3, 5, 0 }); }

static void test_many_keys(void)
{
	CU_ASSERT_EQUAL(run_ranks((struct ranks){ .size = 3, .wire = "sim", .program = program_many_keys }), 0);
	CU_ASSERT_EQUAL(run_real_ranks((struct ranks){ .size = 2, .program = program_many_keys }), 0);
}

/* State grows along with the values, also in the middle of a push: two workers' pushes of many pieces each are under
 * way at once. */
static void program_key_state(tutti *job)
{
	enum { KEYS = 9000, ROW = 8 };
	tutti_table_config c = config_of(TUTTI_F64, 0, ROW, TUTTI_TABLE_KEYS);
	int rank = tutti_rank(job);
	uint64_t *list = calloc(KEYS, sizeof *list);
	double *values = calloc(KEYS * ROW, sizeof *values);
	bool good = true;

	c.updater = tutti_momentum(NAN, 0.5);
	tutti_table *t = open_table(job, "state", &c);
	for (int i = 0; i < KEYS; i++)
		list[i] = (uint64_t)rank << 32 | (uint64_t)i;
	for (int round = 0; round < 2; round++) {
		for (int i = 0; i < KEYS * ROW; i++)
			values[i] = -(i % 100);
		CHECK(tutti_table_push_rows(t, list, KEYS, values, NULL, NULL) == 0);
	}
	CHECK(tutti_table_pull_rows(t, list, KEYS, values, NULL) == 0);
	for (int i = 0; i < KEYS * ROW; i++)
		good &= values[i] == 2.5 * (i % 100); /* m = g, then 1.5 g */
	CHECK(good);
	close_table(job, t);
	free(list);
	free(values);
}

static void test_key_state(void) { on_wires(program_key_state, (const int[]){ 1, 2, 3, 0 }); }

/* ---- fresh rows ---- */

static bool is_sorted_list(uint64_t *rows, size_t n, const char *expected) /* "1 3", in any order */
{
	char text[200] = "";

	for (size_t i = 0; i < n; i++)
		for (size_t k = i; k > 0 && rows[k - 1] > rows[k]; k--) {
			uint64_t row = rows[k];
			rows[k] = rows[k - 1];
			rows[k - 1] = row;
		}
	for (size_t i = 0; i < n; i++)
		snprintf(text + strlen(text), sizeof text - strlen(text), i ? " %d" : "%d", (int)rows[i]);
	return !strcmp(text, expected);
}

static void expect_fresh(tutti *job, tutti_table *t, int rank, const char *expected)
{
	uint64_t rows[8];
	float values[8];
	size_t n = 99;

	if (tutti_rank(job) == rank) {
		CHECK(tutti_table_pull_fresh(t, rows, values, 8, &n, NULL) == 0);
		CHECK(is_sorted_list(rows, n, expected));
	}
	CHECK(tutti_barrier(job, NULL) == 0);
}

static void push_some(tutti *job, tutti_table *t, int rank, size_t n, const uint64_t *rows) /* n 0: all */
{
	const float ones[4] = { 1, 1, 1, 1 };

	if (tutti_rank(job) == rank)
		CHECK((n ? tutti_table_push_rows(t, rows, n, ones, NULL, NULL)
		         : tutti_table_push(t, ones, NULL, NULL)) == 0);
	CHECK(tutti_barrier(job, NULL) == 0);
}

static void pull_some(tutti *job, tutti_table *t, int rank, size_t n, const uint64_t *rows) /* n 0: all */
{
	float values[4];

	if (tutti_rank(job) == rank)
		CHECK((n ? tutti_table_pull_rows(t, rows, n, values, NULL) : tutti_table_pull(t, values, NULL)) == 0);
	CHECK(tutti_barrier(job, NULL) == 0);
}

/* The recorded cases mv-sparse-old and mv-sparse-new, where a pull that finds no row fresh gets none, and rows that are
 * asked for by name count as pulled; then what they leave open. */
static void follow_sparse_case(tutti *job, bool own)
{
	tutti_table_config c = config_of(TUTTI_F32, 4, 1, TUTTI_TABLE_FRESH | (own ? TUTTI_TABLE_FRESH_OWN : 0));
	tutti_table *t = open_table(job, "sparse", &c);
	const uint64_t odd[] = { 1, 3 }, two[] = { 2 }, even[] = { 0, 2 }, low[] = { 0, 1 };
	float values[4] = { 1, 1, 1, 1 };

	expect_fresh(job, t, 0, "0 1 2 3");
	expect_fresh(job, t, 0, "");
	push_some(job, t, 1, 2, odd);
	expect_fresh(job, t, 0, "1 3");
	expect_fresh(job, t, 1, "0 1 2 3");
	push_some(job, t, 1, 1, two);
	expect_fresh(job, t, 1, own ? "2" : "");
	pull_some(job, t, 0, 2, even);
	expect_fresh(job, t, 0, "");
	push_some(job, t, 0, 0, NULL);
	pull_some(job, t, 1, 2, low);
	expect_fresh(job, t, 1, "2 3");
	expect_fresh(job, t, 0, own ? "0 1 2 3" : "");

	push_some(job, t, 1, 0, NULL);
	pull_some(job, t, 0, 0, NULL); /* whole pulls see all */
	expect_fresh(job, t, 0, "");
	push_some(job, t, 1, 1, two);
	expect_fresh(job, t, 0, "2");
	push_some(job, t, 1, 1, two);
	if (tutti_rank(job) == 0) /* so does a push and pull, its own push too */
		CHECK(tutti_table_push_pull(t, values, NULL, values, NULL) == 0 && values[2] == values[0] + 3);
	expect_fresh(job, t, 0, "");
	close_table(job, t);
}

static void program_sparse_cases(tutti *job)
{
	follow_sparse_case(job, false);
	follow_sparse_case(job, true);
}

static void test_sparse_cases(void) { on_wires(program_sparse_cases, (const int[]){ 2, 3, 5, 0 }); }

static uint64_t bytes_of(tutti *job, tutti_stat_kind kind)
{
	tutti_stat stat = { 0 };

	CHECK(tutti_stats(job, -1, kind, &stat) == 0);
	return stat.bytes;
}

/* Many rows, and less room than there are fresh ones: no row is lost, none comes twice, and what comes is what was
 * pushed. */
static void pull_all_fresh(tutti_table *t, size_t row, size_t room, uint64_t rows, const float *sums,
                           const bool *expected)
{
	uint64_t *list = calloc(room, sizeof *list);
	float *values = calloc(room * row, sizeof *values);
	bool *came = calloc(rows, sizeof *came), good = true;
	uint64_t before = bytes_of(tt_members(t->job)->all, TUTTI_STAT_PULL), all = 0;
	size_t n = room;

	for (; n == room; all += n) {
		CHECK(tutti_table_pull_fresh(t, list, values, room, &n, NULL) == 0);
		good &= are_rows(values, sums, list, n, row);
		for (size_t i = 0; i < n; i++) {
			good &= list[i] < rows && !came[list[i]];
			came[list[i]] = true;
		}
	}
	CHECK(good && !memcmp(came, expected, rows * sizeof *came));
	CHECK(bytes_of(tt_members(t->job)->all, TUTTI_STAT_PULL) - before == all * row * sizeof *values);
	free(list);
	free(values);
	free(came);
}

static void find_fresh(tutti *job, uint64_t rows, size_t row, size_t n, size_t room)
{
	tutti_table_config c = config_of(TUTTI_F32, rows, row, TUTTI_TABLE_FRESH);
	tutti_table *t = open_table(job, "fresh", &c);
	float *sums = calloc(rows * row, sizeof *sums), *values = calloc(n * row, sizeof *values);
	uint64_t *list = calloc(n, sizeof *list);
	bool *expected = calloc(rows, sizeof *expected);

	memset(expected, true, rows);
	for (int round = 0; round < 3; round++) {
		if (tutti_rank(job) == round % tutti_size(job)) {
			draw_list(0, round, rows, n, list);
			for (size_t i = 0; i < n * row; i++)
				values[i] = delta_at(0, i / row, i % row);
			CHECK(tutti_table_push_rows(t, list, n, values, NULL, NULL) == 0);
		}
		add_list(sums, 0, round, rows, row, n, list);
		CHECK(tutti_barrier(job, NULL) == 0);
		for (size_t i = 0; i < n && round; i++)
			expected[list[i]] |= tutti_rank(job) != round % tutti_size(job);
		pull_all_fresh(t, row, room, rows, sums, expected);
		memset(expected, false, rows);
		CHECK(tutti_barrier(job, NULL) == 0);
	}
	close_table(job, t);
	free(sums);
	free(values);
	free(list);
	free(expected);
}

static void program_fresh(tutti *job)
{
	find_fresh(job, 1, 1, 1, 1);
	find_fresh(job, 100, 7, 30, 100);
	find_fresh(job, 100, 7, 30, 3);
	find_fresh(job, 30000, 1, 5000, 30001); /* more than one message of them */
	find_fresh(job, 20000, 2, 5000, 7000);
	find_fresh(job, 6, 20011, 3, 4);
}

/* Of a list: what this worker has seen of it stays as it is in the program's memory. */
static void refresh(tutti *job, tutti_mode mode, uint64_t rows, size_t row, size_t n)
{
	tutti_table_config c = config_of(TUTTI_F32, rows, row, TUTTI_TABLE_FRESH | TUTTI_TABLE_FILTER);
	float *sums = calloc(rows * row, sizeof *sums), *values = calloc((rows + n) * row, sizeof *values);
	uint64_t *list = calloc(rows + n, sizeof *list), before;
	bool *stale = calloc(rows, sizeof *stale), good = true;
	int me = tutti_rank(job);

	c.consistency.mode = mode;
	tutti_table *t = open_table(job, "refresh", &c);
	memset(stale, true, rows);
	for (int round = 0; round < 6; round++) {
		int who = round % tutti_size(job);
		size_t asked = 0, expected = 0, fresh = 0;
		for (size_t i = 0; i < n * row; i++)
			values[i] = delta_at(who, i / row, i % row);
		draw_list(who, round, rows, n, list);
		if (me == who || mode == TUTTI_BSP)
			CHECK(tutti_table_push_rows(t, list, me == who ? n : 0, values, NULL, NULL) == 0);
		add_list(sums, who, round, rows, row, n, list);
		for (size_t i = 0; i < n; i++)
			stale[list[i]] |= me != who;
		CHECK(tutti_barrier(job, NULL) == 0);
		for (uint64_t i = 0; i < rows; i++)
			if ((i * 7 + (uint64_t)(round + me)) % 3 == 0)
				list[asked++] = i;
		fill(values, asked * row, -1);
		before = bytes_of(job, TUTTI_STAT_PULL);
		CHECK(tutti_table_refresh_rows(t, list, asked, values, &fresh, NULL) == 0);
		for (size_t i = 0; i < asked; i++) {
			good &= stale[list[i]] ? are_rows(values + i * row, sums, &list[i], 1, row)
			                       : all_are(values + i * row, row, -1);
			expected += stale[list[i]];
			stale[list[i]] = false;
		}
		CHECK(good && fresh == expected &&
		      bytes_of(job, TUTTI_STAT_PULL) - before == fresh * row * sizeof *values);
		CHECK(tutti_barrier(job, NULL) == 0);
	}
	CHECK(tutti_table_refresh_rows(t, NULL, 0, NULL, NULL, NULL) == 0);
	close_table(job, t);
	free(sums);
	free(values);
	free(list);
	free(stale);
}

static void program_refresh(tutti *job)
{
	refresh(job, TUTTI_ASYNC, 1, 1, 1);
	refresh(job, TUTTI_ASYNC, 100, 7, 30);
	refresh(job, TUTTI_ASYNC, 30000, 1, 5000); /* more than one message of them */
	refresh(job, TUTTI_BSP, 1000, 30, 200);
	refresh(job, TUTTI_ASYNC, 5, (TT_PUSH_MESSAGE - TT_ROW_NAME) / sizeof(float), 3); /* one row fills a message */
}

/* Seen by one pull is seen for all. A row may be listed twice; one's own pushes count where that was asked for. */
static void refresh_beside(tutti *job, unsigned own)
{
	enum { ROWS = 9 };
	static const uint64_t list[] = { 4, 8, 4 }, all[] = { 0, 1, 2, 3, 4, 5, 6, 7, 8 };
	static const float ones[] = { 1, 1, 1, 1 };
	tutti_table_config c = config_of(TUTTI_F32, ROWS, 2, TUTTI_TABLE_FRESH | own);
	tutti_table *t = open_table(job, "beside", &c);
	bool pushes = tutti_rank(job) == 0, sees = !pushes || own;
	uint64_t came[ROWS];
	float v[2 * ROWS];
	size_t n;

	fill(v, 6, -1);
	CHECK(tutti_table_refresh_rows(t, list, 3, v, &n, NULL) == 0 && (n == 2 || n == 3));
	CHECK((v[0] == 0 || v[4] == 0) && v[2] == 0 && v[3] == 0);
	CHECK(tutti_barrier(job, NULL) == 0);
	CHECK(!pushes || tutti_table_push_rows(t, list, 2, ones, NULL, NULL) == 0);
	CHECK(tutti_barrier(job, NULL) == 0);
	CHECK(tutti_table_pull_rows(t, list, 1, v, NULL) == 0 && v[0] == 1);
	fill(v, 4, -1);
	CHECK(tutti_table_refresh_rows(t, list, 2, v, &n, NULL) == 0 && n == sees && v[0] == -1 &&
	      v[2] == (sees ? 1 : -1));
	CHECK(tutti_table_pull_fresh(t, came, v, ROWS, &n, NULL) == 0 && n == ROWS - 2);
	CHECK(tutti_table_refresh_rows(t, all, ROWS, v, &n, NULL) == 0 && n == 0);
	CHECK(tutti_barrier(job, NULL) == 0);
	CHECK(!pushes || tutti_table_push_rows(t, list, 1, ones, NULL, NULL) == 0);
	CHECK(tutti_barrier(job, NULL) == 0);
	CHECK(tutti_table_refresh_rows(t, all, ROWS, v, &n, NULL) == 0 && n == sees && (!sees || v[8] == 2));
	CHECK(tutti_table_pull_fresh(t, came, v, ROWS, &n, NULL) == 0 && n == 0);
	close_table(job, t);
}

static void refresh_finished(tutti *job)
{
	tutti_table_config c = config_of(TUTTI_F32, 9, 1, TUTTI_TABLE_FRESH);
	const uint64_t row = 3;
	float v = -1;
	size_t n = 7;

	c.consistency.mode = TUTTI_BSP;
	tutti_table *t = open_table(job, "finished", &c);
	CHECK(tutti_table_finish(t) == 0);
	CHECK(tutti_table_refresh_rows(t, &row, 1, &v, &n, NULL) == -EPERM && strstr(tutti_why(), "has finished") &&
	      n == 7 && v == -1);
	CHECK(tutti_table_pull_rows(t, &row, 1, &v, NULL) == 0 && v == 0);
	close_table(job, t);
}

static void program_refresh_beside(tutti *job)
{
	refresh_beside(job, 0);
	refresh_beside(job, TUTTI_TABLE_FRESH_OWN);
	refresh_finished(job);
}

static void test_refresh(void)
{
	on_wires(program_refresh, (const int[]){ 1, 2, 3, 5, 0 });
	on_wires(program_refresh_beside, (const int[]){ 1, 2, 3, 0 });
}

static void test_fresh(void) { on_wires(program_fresh, (const int[]){ 1, 2, 3, 5, 0 }); }

/* A rank finishes while it pulls: the rounds of the others go on, and what they write over is not taken for its
 * version. */
enum { LAST_ROWS = 64, LAST_ROW = 32768 }; /* a server names them in eight parts */
static int last_server;          /* rank 0, which finishes, or another */
static atomic_int overwritten;   /* in how many runs it had to be told so */

static void finish_in_a_pull(tutti *job, tutti_table *t, float *v)
{
	uint64_t rows[LAST_ROWS];
	tutti_op op;
	size_t n;
	int err;

	if (tt_world && last_server)
		tt_sim_slow(0, 100);
	CHECK(tutti_table_pull_fresh(t, rows, v, LAST_ROWS, &n, &op) == 0);
	CHECK(tutti_table_finish(t) == 0);
	err = tutti_wait(&op, -1);
	if (tt_world)
		tt_sim_slow(0, 1);
	CHECK(err == -EAGAIN ||
	      (err == 0 && n == LAST_ROWS && all_are(v, LAST_ROWS * LAST_ROW, (float)tutti_size(job))));
	overwritten += err == -EAGAIN;
}

static void program_finish_in_a_pull(tutti *job)
{
	tutti_table_config c = config_of(TUTTI_F32, LAST_ROWS, LAST_ROW, TUTTI_TABLE_FRESH);
	float *v = calloc(LAST_ROWS * LAST_ROW, sizeof *v);
	const uint64_t row = LAST_ROWS - 1;

	c.consistency.mode = TUTTI_BSP;
	c.servers = 1;
	c.server = &last_server;
	tutti_table *t = open_table(job, "last", &c);
	fill(v, LAST_ROWS * LAST_ROW, 1);
	CHECK(tutti_table_push(t, v, NULL, NULL) == 0);
	if (tutti_rank(job) == 0)
		finish_in_a_pull(job, t, v);
	for (int k = 0; tutti_rank(job) && k < 2; k++)
		CHECK(tutti_table_push_rows(t, &row, 1, v, NULL, NULL) == 0);
	close_table(job, t);
	free(v);
}

static void test_finish_in_a_pull(void)
{
	struct ranks run = { .size = 3, .wire = "sim", .hosts = 1, .program = program_finish_in_a_pull };

	for (last_server = 0; last_server < 2; last_server++) {
		overwritten = 0;
		for (run.seed = 0; run.seed < SEEDS; run.seed++)
			CU_ASSERT_EQUAL(run_ranks(run), 0);
		CU_ASSERT(only_verbs() || !last_server || (uint64_t)overwritten == SEEDS);
		CU_ASSERT_EQUAL(run_real_ranks((struct ranks){ .size = 3, .program = program_finish_in_a_pull }), 0);
	}
}

/* A worker that opens the table anew has seen nothing, and so has one that comes back. */
static void program_come_back(tutti *job)
{
	const int server = 0;
	tutti_table_config c = config_of(TUTTI_F32, 4, 1, TUTTI_TABLE_FRESH);
	int rank = tutti_rank(job);
	tutti *again = job;
	tutti_table *t;
	uint64_t rows[4];
	float values[4];
	size_t n;

	c.servers = 1;
	c.server = &server;
	t = open_table(job, "again", &c);
	expect_fresh(job, t, 1, "0 1 2 3");
	expect_fresh(job, t, 1, "");
	if (rank == 1) {
		tutti_table_close(t);
		t = open_table(job, "again", &c);
	}
	expect_fresh(job, t, 1, "0 1 2 3");
	CHECK(tutti_barrier(job, NULL) == 0);
	if (rank == 1) {
		tutti_table_close(t);
		CHECK(join_again(job, 1, &again) == 0);
		t = open_table(tutti_job(again), "again", &c);
		CHECK(tutti_table_pull_fresh(t, rows, values, 4, &n, NULL) == 0 && n == 4);
		CHECK(tutti_table_pull_fresh(t, rows, values, 4, &n, NULL) == 0 && n == 0);
	} else {
		pass_time(2000 * TT_MS);
	}
	tutti_table_close(t);
	if (rank == 1)
		tutti_leave(again);
}

static void test_come_back(void)
{
	for (uint64_t seed = 0; seed < SEEDS; seed++)
		CU_ASSERT_EQUAL(run_ranks((struct ranks){
					.size = 3, .wire = "sim", .seed = seed, .program = program_come_back }),
		                0);
	CU_ASSERT_EQUAL(run_real_ranks((struct ranks){ .size = 3, .program = program_come_back }), 0);
}

/* ---- the filter ---- */

static void filter(tutti *job, unsigned flags, uint64_t *sent)
{
	enum { ROWS = 100, ROW = 200, N = 100 };
	tutti_table_config c = config_of(TUTTI_F32, ROWS, ROW, flags);
	float *values = calloc(N * ROW, sizeof *values), small[64] = { 0 };
	uint64_t list[N], before;
	bool good = true;
	tutti_table *t, *u;

	c.clip = flags ? 0.5 : 0;
	t = open_table(job, "filter", &c);
	c.count = 64;
	c.row = 1;
	u = open_table(job, "small", &c);
	for (size_t i = 0; i < N; i++)
		list[i] = i;
	for (size_t i = 0; i < N * ROW; i++)
		values[i] = i % 10 ? i % 11 ? 0 : 0.25f : 1 + (float)(i % 7);
	small[5] = 2;
	before = bytes_of(job, TUTTI_STAT_MESSAGE);
	CHECK(tutti_table_push_rows(t, list, N, values, NULL, NULL) == 0 &&
	      tutti_table_push(u, small, NULL, NULL) == 0);
	pass_time(10 * TT_MS); /* messages count when they have ended */
	*sent = bytes_of(job, TUTTI_STAT_MESSAGE) - before;
	CHECK(tutti_barrier(job, NULL) == 0);
	CHECK(tutti_table_pull_rows(t, list, N, values, NULL) == 0 && tutti_table_pull(u, small, NULL) == 0);
	for (size_t i = 0; i < N * ROW; i++)
		good &= i % 10 ? i % 11 || (values[i] >= 0 && values[i] <= 0.25f * (float)tutti_size(job))
		               : values[i] == (float)tutti_size(job) * (1 + (float)(i % 7));
	for (int i = 0; i < 64; i++)
		good &= small[i] == (i == 5 ? 2.0f * (float)tutti_size(job) : 0);
	CHECK(good);
	close_table(job, t);
	close_table(job, u);
	free(values);
}

static void program_filter(tutti *job)
{
	uint64_t sparse, dense;

	filter(job, TUTTI_TABLE_FILTER, &sparse);
	filter(job, 0, &dense);
	CHECK(tutti_size(job) == 1 || sparse * 2 < dense); /* messages count when they are acknowledged */
}

static void test_filter(void) { on_wires(program_filter, (const int[]){ 1, 2, 3, 0 }); }

/* ---- cuts ---- */

static void program_cuts(tutti *job)
{
	static const struct { uint64_t rows, row; unsigned flags; uint64_t from[5];
	} cases[] = {
		{ 11, 4, TUTTI_TABLE_CUT_MULTIVERSO, { 0, 2, 4, 6, 11 } },
		{ 2, 4, TUTTI_TABLE_CUT_MULTIVERSO, { 0, 1, 2, 2, 2 } },
		{ 11, 4, 0, { 0, 3, 6, 9, 11 } }, /* no four rows for each server, which would fill a line */
		{ 13, 4, 0, { 0, 4, 8, 12, 13 } },
		{ 14, 16, 0, { 0, 4, 8, 11, 14 } },
		{ 2, 1, 0, { 0, 1, 2, 2, 2 } },
	};

	for (size_t i = 0; i < TT_COUNT(cases); i++) {
		tutti_table_config c = config_of(TUTTI_F32, cases[i].rows, cases[i].row, cases[i].flags);
		tutti_table *t = open_table(job, "cuts", &c);
		for (int k = 0; k < 4; k++) {
			struct tt_range r = tt_table_range(t, k);
			CHECK(r.first == cases[i].from[k] * cases[i].row &&
			      r.first + r.count == cases[i].from[k + 1] * cases[i].row);
		}
		close_table(job, t);
	}
}

static void test_cuts(void)
{
	CU_ASSERT_EQUAL(run_ranks((struct ranks){ .size = 4, .wire = "sim", .program = program_cuts }), 0);
}

/* ---- what goes wrong ---- */

static bool is_wrong(tutti *job, tutti_table_config c, const char *why)
{
	tutti_table *t;

	return tutti_table_open(job, "wrong", &c, &t) == -EINVAL && strstr(tutti_why(), why);
}

static void program_wrong_config(tutti *job)
{
	CHECK(is_wrong(job, config_of(TUTTI_F32, 5, 1, 1u << 20), "no flags 0x100000"));
	CHECK(is_wrong(job, config_of(TUTTI_F32, 5, 1, TUTTI_TABLE_KEYS | TUTTI_TABLE_FRESH), "has keys"));
	CHECK(is_wrong(job, config_of(TUTTI_F32, 5, 1, TUTTI_TABLE_FRESH_OWN), "without TUTTI_TABLE_FRESH"));
	CHECK(is_wrong(job, config_of(TUTTI_F32, 5, 1ull << 32, 0), "2^32 - 1"));
	CHECK(is_wrong(job, config_of(TUTTI_F32, 1ull << 40, 1u << 31, 0), "what memory can be"));
	/* three copies of it would be 128 bytes */
	CHECK(is_wrong(job, config_of(TUTTI_F32, 0x5555555555555580 / 4, 1, 0), "what memory can be"));
	CHECK(is_wrong(job, config_of(TUTTI_F32, 0, 5, 0), "count is 0, of rows of 5"));
	tutti_table_config c = config_of(TUTTI_F32, 5, 1, 0);
	c.clip = 1;
	CHECK(is_wrong(job, c, "clip"));
	c.flags = TUTTI_TABLE_FILTER;
	c.updater = tutti_assign();
	CHECK(is_wrong(job, c, "the rule assign takes values"));
	c.updater = tutti_elastic(0.1);
	CHECK(is_wrong(job, c, "the rule elastic takes values"));
	c = config_of(TUTTI_F32, 5, 1, TUTTI_TABLE_FRESH);
	c.consistency = (tutti_consistency){ .mode = TUTTI_BSP, .backup = 1 };
	CHECK(is_wrong(job, c, "leave out TUTTI_TABLE_FRESH, or the backup workers"));
	CHECK(tutti_barrier(job, NULL) == 0);
}

static void program_wrong_calls(tutti *job)
{
	tutti_table_config c = config_of(TUTTI_F32, 5, 2, 0), k = config_of(TUTTI_F32, 0, 2, TUTTI_TABLE_KEYS);
	tutti_table_config l = config_of(TUTTI_F32, 5, 16384, TUTTI_TABLE_FRESH); /* rows of more than a message */
	tutti_table *t = open_table(job, "rows", &c), *keys = open_table(job, "keys", &k),
		    *wide = open_table(job, "wide", &l);
	const tutti_update odd = WITH(tutti_update_defaults(), it.beta1 = 0.5),
			   stranger = WITH(tutti_update_defaults(), it.worker = 1 << 20);
	uint64_t list[] = { 4, 5, ~0ull };
	float values[10] = { 0 };
	size_t n = 7;

	CHECK(tutti_table_push_rows(t, list, 2, values, NULL, NULL) == -EINVAL &&
	      strstr(tutti_why(), "row 5, number 1") && strstr(tutti_why(), "has 5 rows"));
	CHECK(tutti_table_pull_rows(t, list + 2, 1, values, NULL) == -EINVAL &&
	      strstr(tutti_why(), "row 18446744073709551615"));
	CHECK(tutti_table_pull_rows(t, NULL, 1, values, NULL) == -EINVAL && strstr(tutti_why(), "the list"));
	CHECK(tutti_table_pull_rows(t, list, 1, NULL, NULL) == -EINVAL && strstr(tutti_why(), "the memory"));
	CHECK(tutti_table_pull_rows(t, list, SIZE_MAX / 8, values, NULL) == -EINVAL &&
	      strstr(tutti_why(), "more than memory"));
	CHECK(tutti_table_push_rows(t, list, 1, values, &odd, NULL) == -EINVAL);
	CHECK(tutti_table_push_rows(t, list, 1, values, &stranger, NULL) == -EINVAL &&
	      (tutti_size(job) == 1 || strstr(tutti_why(), "no such worker")));
	CHECK(tutti_table_pull_fresh(t, list, values, 1, &n, NULL) == -EINVAL &&
	      strstr(tutti_why(), "TUTTI_TABLE_FRESH") && n == 7);
	CHECK(tutti_table_refresh_rows(t, list, 1, values, &n, NULL) == -EINVAL &&
	      strstr(tutti_why(), "TUTTI_TABLE_FRESH") && n == 7);
	CHECK(tutti_table_refresh_rows(wide, list, 1, values, &n, NULL) == -ENOTSUP &&
	      strstr(tutti_why(), "has 65536 bytes, and at most ") && n == 7);
	CHECK(tutti_table_push(keys, values, NULL, NULL) == -ENOTSUP && strstr(tutti_why(), "has keys"));
	CHECK(tutti_table_pull(keys, values, NULL) == -ENOTSUP && tutti_table_assign(keys, values, NULL) == -ENOTSUP &&
	      tutti_table_push_pull(keys, values, NULL, values, NULL) == -ENOTSUP);
	close_table(job, t);
	close_table(job, keys);
	close_table(job, wide);
}

static void test_wrong(void)
{
	on_wires(program_wrong_config, (const int[]){ 2, 0 });
	on_wires(program_wrong_calls, (const int[]){ 1, 3, 0 });
}

enum { MANY = 3000, LONG = 30 };

static int push_and_pull(tutti_table *t, const uint64_t *list, float *values, unsigned flags)
{
	static _Thread_local uint64_t fresh[MANY];
	size_t n;
	int err = tutti_table_push_rows(t, list, MANY, values, NULL, NULL);

	if (!err)
		err = tutti_table_pull_rows(t, list, MANY, values, NULL);
	if (!err && flags & TUTTI_TABLE_FRESH)
		err = tutti_table_pull_fresh(t, fresh, values, MANY, &n, NULL);
	return err;
}

/* A server dies while all push and pull: their calls end by its name. */
static void die(tutti *job, unsigned flags)
{
	tutti_table_config c = config_of(TUTTI_F32, flags & TUTTI_TABLE_KEYS ? 0 : MANY, LONG, flags);
	tutti_table *t = open_table(job, "w", &c);
	float *values = calloc(MANY * LONG, sizeof *values);
	uint64_t *list = calloc(MANY, sizeof *list);
	int err = 0;

	for (size_t i = 0; i < MANY; i++)
		list[i] = i;
	CHECK(tutti_barrier(job, NULL) == 0 || tt_sim_killed(tutti_rank(job)));
	if (tutti_rank(job) == 0)
		tt_sim_kill(1, tt_sim_chance(8 * TT_MS));
	while (!err)
		err = push_and_pull(t, list, values, flags);
	if (tutti_rank(job) != 1) {
		CHECK((err == -ECONNRESET || err == -ETIMEDOUT) && strstr(tutti_why(), "rank 1"));
		CHECK(tutti_table_pull_rows(t, list, MANY, values, NULL) == -ECONNRESET &&
		      strstr(tutti_why(), "rank 1"));
	}
	pass_time(2000 * TT_MS); /* or others find it closed */
	free(values);
	free(list);
	tutti_table_close(t);
}

static void program_killed(tutti *job) { die(job, 0); }
static void program_killed_keys(tutti *job) { die(job, TUTTI_TABLE_KEYS); }
static void program_killed_fresh(tutti *job) { die(job, TUTTI_TABLE_FRESH | TUTTI_TABLE_FRESH_OWN); }

static void test_killed(void)
{
	for (uint64_t seed = 0; seed < 2 * SEEDS; seed++) {
		CU_ASSERT_EQUAL(run_on_sim(4, seed, 1000, program_killed), 0);
		CU_ASSERT_EQUAL(run_on_sim(4, seed, 1000, program_killed_keys), 0);
		CU_ASSERT_EQUAL(run_on_sim(4, seed, 1000, program_killed_fresh), 0);
	}
}

static void close_early(tutti *job, unsigned flags) /* by a server, while others go on */
{
	tutti_table_config c = config_of(TUTTI_F32, flags & TUTTI_TABLE_KEYS ? 0 : MANY, LONG, flags);
	tutti_table *t = open_table(job, "w", &c);
	float *values = calloc(MANY * LONG, sizeof *values);
	uint64_t *list = calloc(MANY, sizeof *list);
	int err = 0;

	for (size_t i = 0; i < MANY; i++)
		list[i] = i;
	CHECK(tutti_barrier(job, NULL) == 0);
	if (tutti_rank(job)) {
		while (!err)
			err = push_and_pull(t, list, values, flags);
		CHECK(err == -ESTALE && strstr(tutti_why(), "rank 0") && strstr(tutti_why(), "closed"));
		CHECK(tutti_table_pull_rows(t, list, MANY, values, NULL) == -ESTALE);
	}
	tutti_table_close(tutti_rank(job) ? NULL : t);
	CHECK(tutti_barrier(job, NULL) == 0);
	tutti_table_close(tutti_rank(job) ? t : NULL);
	free(values);
	free(list);
}

static void program_closed(tutti *job)
{
	close_early(job, 0);
	CHECK(tutti_barrier(job, NULL) == 0);
	close_early(job, TUTTI_TABLE_KEYS);
	CHECK(tutti_barrier(job, NULL) == 0);
	close_early(job, TUTTI_TABLE_FRESH);
}

static void test_closed(void) { on_wires(program_closed, (const int[]){ 3, 0 }); }

/* Calls that are cancelled under way give the memory back, harm no server, and leave fresh what may not have come. */
static void program_cancelled(tutti *job)
{
	tutti_table_config c = config_of(TUTTI_F32, MANY, LONG, TUTTI_TABLE_FRESH);
	tutti_table *t = open_table(job, "cancel", &c);
	uint64_t *list = calloc(MANY, sizeof *list), fresh[MANY];
	size_t n = 0;
	tutti_op op;

	for (size_t i = 0; i < MANY; i++)
		list[i] = i;
	for (int i = 0; i < 8; i++) {
		float *values = calloc(MANY * LONG, sizeof *values);
		if (i % 4 == 0)
			CHECK(tutti_table_push_rows(t, list, MANY, values, NULL, &op) == 0);
		else if (i % 4 == 1)
			CHECK(tutti_table_pull_rows(t, list, MANY, values, &op) == 0);
		else if (i % 4 == 2)
			CHECK(tutti_table_pull_fresh(t, fresh, values, MANY, &n, &op) == 0);
		else
			CHECK(tutti_table_refresh_rows(t, list, MANY, values, &n, &op) == 0);
		pass_time(i > 3 ? TT_MS / 5 : 0);
		CHECK(tutti_cancel(&op) == 0);
		int err = tutti_wait(&op, 0);
		CHECK(err == 0 || err == -ECANCELED);
		free(values);
		if (i % 4 && err) {
			values = calloc(MANY * LONG, sizeof *values);
			CHECK(tutti_table_pull_fresh(t, fresh, values, MANY, &n, NULL) == 0 && n == MANY);
			free(values);
		}
	}
	close_table(job, t);
	free(list);
}

/* Of a table whose rows are copied where they are mapped, by one that has sent its servers nothing. */
static void program_copied(tutti *job)
{
	tutti_table_config c = config_of(TUTTI_F32, MANY, LONG, 0);
	tutti_table *t = open_table(job, "copied", &c);
	uint64_t *list = calloc(8 * MANY, sizeof *list);
	float *values = calloc(8 * MANY * LONG, sizeof *values);
	tutti_op op;

	for (size_t i = 0; i < 8 * MANY; i++)
		list[i] = i % MANY;
	CHECK(tutti_table_pull_rows(t, list, 8 * MANY, values, &op) == 0);
	CHECK(tutti_cancel(&op) == 0);
	int err = tutti_wait(&op, 0);
	CHECK(err == 0 || err == -ECANCELED);
	close_table(job, t);
	free(values);
	free(list);
}

static void test_copied(void) { on_wires(program_copied, (const int[]){ 1, 3, 0 }); }

static void test_cancelled(void) { on_wires(program_cancelled, (const int[]){ 1, 2, 4, 0 }); }

static CU_TestInfo rows_tests[] = {
	{ "sums", test_sums },
	{ "started", test_started },
	{ "deltas in place", test_mapped },
	{ "in rounds", test_rounds },
	{ "one version of rows", test_versions },
	{ "rounds of touched rows", test_touched },
	{ "rules and types", test_rules },
	{ "a rule of one's own", test_own_rule },
	{ "keys", test_keys },
	{ "many keys", test_many_keys },
	{ "keys and state", test_key_state },
	{ "the recorded sparse cases", test_sparse_cases },
	{ "fresh rows", test_fresh },
	{ "fresh ones of a list", test_refresh },
	{ "finished in a pull", test_finish_in_a_pull },
	{ "who comes back", test_come_back },
	{ "filter", test_filter },
	{ "cuts", test_cuts },
	{ "wrong arguments", test_wrong },
	{ "a server is killed", test_killed },
	{ "closed", test_closed },
	{ "cancelled", test_cancelled },
	{ "cancelled while they are copied", test_copied },
	CU_TEST_INFO_NULL,
};

static CU_SuiteInfo suites[] = { { "rows", NULL, NULL, NULL, NULL, rows_tests }, CU_SUITE_INFO_NULL };

int main(int argc, char **argv) { return run_suites(suites, argc, argv); }
