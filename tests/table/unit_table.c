/* unit_table.c - parameter tables: each test on sim (over seeds) and over TCP and shared memory */
#include "member/member.h"
#include "table/table_private.h"
#include "tests/harness/cunit_main.h"
#include "tests/table/tables.h"
#include "transport/sim/sim.h"
#include <math.h>

#if TT_TSAN
enum { SEEDS = 2 };
#else
#define SEEDS (uint64_t)all_or(10, 4)
#endif

enum { DEADLINE = 2000 };

static void on_wires(void (*program)(tutti *), const int *sizes) { run_on_wires(program, sizes, SEEDS); }

static bool are_line(const float *v, size_t n, float by_one, float base) /* base + by_one * index within a period */
{
	for (size_t i = 0; i < n; i++)
		if (v[i] != base + by_one * (float)(i % 100))
			return false;
	return true;
}

static void fill_line(float *v, size_t n, float by_one, float base)
{
	for (size_t i = 0; i < n; i++)
		v[i] = base + by_one * (float)(i % 100);
}

/* ---- sums ---- */

enum { ROUNDS = 3 };

static void sum_up(tutti *job, size_t count)
{
	int n = tutti_size(job), rank = tutti_rank(job);
	float *delta = NULL, *got = calloc(count, sizeof *got), all = 0;
	tutti_table *t = open_by_rule(job, "sums", TUTTI_F32, count, TUTTI_UPDATE_ADD);

	CHECK(tutti_table_pull(t, got, NULL) == 0 && are_line(got, count, 0, 0));
	CHECK(tutti_barrier(job, NULL) == 0);
	CHECK(tutti_alloc(job, count * sizeof *delta, -1, (void **)&delta) == 0); /* on one host it is read in place */
	fill_line(delta, count, 1, (float)rank);
	for (int i = 0; i < ROUNDS; i++)
		CHECK(tutti_table_push(t, delta, NULL, NULL) == 0);
	CHECK(tutti_barrier(job, NULL) == 0);
	CHECK(tutti_table_pull(t, got, NULL) == 0);
	for (int i = 0; i < n; i++)
		all += (float)(ROUNDS * i);
	CHECK(are_line(got, count, (float)(ROUNDS * n), all));
	CHECK(tutti_barrier(job, NULL) == 0);
	tutti_table_close(t);
	CHECK(tutti_barrier(job, NULL) == 0); /* before it is opened again */
	tutti_free(job, delta);
	free(got);
}

static void program_sums(tutti *job)
{
	static const size_t counts[] = { 1, 2, 7, 1000, 30001, 300007 };

	for (size_t i = 0; i < TT_COUNT(counts); i++)
		sum_up(job, counts[i]);
}

/* ---- of a part of the job: its ranks are the servers and workers ---- */

static void check_table_of_part(tutti *part, int servers, const int *server, int workers, const int *worker)
{
	tutti_table_config c = tutti_table_f32(1000, tutti_accumulate());
	tutti_table_info info;
	tutti_table *t;
	int n = tutti_size(part), me = tutti_rank(part), serves = servers ? -1 : me, works = workers ? -1 : me;
	float *v = calloc(1000, sizeof *v);

	c.servers = servers;
	c.server = server;
	c.workers = workers;
	c.worker = worker;
	t = open_table(part, "listed", &c);
	for (int i = 0; i < servers; i++)
		serves = server[i] == me ? i : serves;
	for (int i = 0; i < workers; i++)
		works = worker[i] == me ? i : works;
	CHECK(t && tutti_table_look(t, &info) == 0);
	CHECK(info.servers == (servers ? servers : n) && info.workers == (workers ? workers : n));
	CHECK(info.server == serves && info.worker == works);
	fill(v, 1000, 1);
	CHECK(tutti_table_push(t, v, NULL, NULL) == (works < 0 ? -EPERM : 0));
	meet(part);
	CHECK(tutti_table_pull(t, v, NULL) == 0 && all_are(v, 1000, (float)info.workers));
	close_table(part, t);
	free(v);
}

/* Both halves have tables of the same names at the same time. */
static void program_part(tutti *job)
{
	int me = tutti_rank(job), last, none;
	tutti_table_config c = tutti_table_f32(10, tutti_accumulate());
	tutti *part = NULL;
	tutti_table *t;

	CHECK(tutti_group_split(job, me % 2, -me, &part) == 0);
	last = tutti_size(part) - 1;
	none = last + 1;
	c.servers = 1;
	c.server = &none;
	sum_up(part, 30001);
	check_table_of_part(part, 0, NULL, 0, NULL);
	check_table_of_part(part, 1, &last, 0, NULL);
	check_table_of_part(part, 0, NULL, 1, (const int[]){ 0 });
	check_table_of_part(part, 2, (const int[]){ last, 0 }, 2, (const int[]){ last, 0 });
	CHECK(tutti_table_open(part, "none", &c, &t) == -EINVAL && strstr(tutti_why(), "is no rank of the group"));
	tutti_group_free(part);
}

static void test_part(void) { on_wires(program_part, (const int[]){ 4, 7, 0 }); }

static void test_sums(void) { on_wires(program_sums, (const int[]){ 1, 2, 3, 5, 0 }); }

/* ---- several calls, several tables ---- */

/* An option names a worker by its place in the table's list: rank 2 is worker 0 here, and there is no worker 1. */
static void program_named(tutti *job)
{
	static const int servers[] = { 0 }, workers[] = { 2 };
	const tutti_table_config c = WITH(tutti_table_f32(1, tutti_adagrad(0.1)), it.servers = 1, it.server = servers,
	                                  it.workers = 1, it.worker = workers);
	const tutti_update first = WITH(tutti_update_defaults(), it.worker = 0);
	const tutti_update second = WITH(tutti_update_defaults(), it.worker = 1);
	tutti_table *t[2] = { open_table(job, "left alone", &c), open_table(job, "named", &c) };
	float one = 1, v[2] = { 0 };

	for (int i = 0; tutti_rank(job) == 2 && i < 2; i++) {
		CHECK(tutti_table_push(t[i], &one, NULL, NULL) == 0);
		CHECK(tutti_table_push(t[i], &one, i ? &first : NULL, NULL) == 0);
		CHECK(tutti_table_pull(t[i], &v[i], NULL) == 0);
		CHECK(tutti_table_push(t[i], &one, &second, NULL) == -EINVAL);
	}
	CHECK(tutti_rank(job) != 2 || (v[0] == v[1] && v[0] < 0));
	close_table(job, t[0]);
	close_table(job, t[1]);
}

static void test_named(void) { run_on_wires(program_named, (const int[]){ 3, 0 }, 2); }

/* Started together; the pushes of each worker to a server are applied in order, so the last pull of a lone worker sees
 * them all. */
static void program_started(tutti *job)
{
	enum { COUNT = 90000, CALLS = 6 };
	tutti_table *a = open_by_rule(job, "a", TUTTI_F32, COUNT, TUTTI_UPDATE_ADD),
		    *b = open_by_rule(job, "b", TUTTI_I64, 10, TUTTI_UPDATE_ADD);
	float *delta = calloc(COUNT, sizeof *delta), *got = calloc(COUNT, sizeof *got);
	int64_t small[10] = { 0 }, sum[10];
	tutti_op op[2 * CALLS];

	fill_line(delta, COUNT, 1, 1);
	small[9] = (int64_t)1 << 40;
	for (int i = 0; i < CALLS; i++) {
		CHECK(tutti_table_push(a, delta, NULL, &op[2 * i]) == 0);
		CHECK(tutti_table_push(b, small, NULL, &op[2 * i + 1]) == 0);
	}
	for (int i = 0; i < 2 * CALLS; i++)
		CHECK(tutti_wait(&op[i], -1) == 0);
	CHECK(tutti_barrier(job, NULL) == 0);
	CHECK(tutti_table_pull(a, got, &op[0]) == 0);
	CHECK(tutti_table_pull(b, sum, &op[1]) == 0);
	CHECK(tutti_wait(&op[1], -1) == 0 && tutti_wait(&op[0], -1) == 0);
	CHECK(are_line(got, COUNT, (float)(CALLS * tutti_size(job)), (float)(CALLS * tutti_size(job))));
	CHECK(sum[0] == 0 && sum[9] == CALLS * tutti_size(job) * ((int64_t)1 << 40));
	CHECK(tutti_barrier(job, NULL) == 0);
	tutti_table_close(a);
	tutti_table_close(b);
	free(delta);
	free(got);
}

static void test_started(void) { on_wires(program_started, (const int[]){ 1, 3, 4, 0 }); }

/* ---- values, rules, options ---- */

static void program_rules(tutti *job)
{
	enum { COUNT = 50000 };
	tutti_table *t = open_by_rule(job, "rules", TUTTI_F32, COUNT, TUTTI_UPDATE_SGD);
	tutti_update half = tutti_update_defaults();
	float *v = calloc(COUNT, sizeof *v), *got = calloc(COUNT, sizeof *got);

	half.learning_rate = 0.5;
	fill_line(v, COUNT, 1, 10);
	if (tutti_rank(job) == 0) /* the others' barrier is behind it */
		CHECK(tutti_table_assign(t, v, NULL) == 0);
	CHECK(tutti_barrier(job, NULL) == 0);
	CHECK(tutti_table_pull(t, got, NULL) == 0 && are_line(got, COUNT, 1, 10));
	CHECK(tutti_barrier(job, NULL) == 0);
	if (tutti_rank(job) == tutti_size(job) - 1) {
		fill_line(v, COUNT, 0, 4);
		CHECK(tutti_table_push_pull(t, v, NULL, got, NULL) == 0 && are_line(got, COUNT, 1, 6));
		CHECK(tutti_table_push_pull(t, v, &half, v, NULL) == 0 && are_line(v, COUNT, 1, 4));
	}
	CHECK(tutti_barrier(job, NULL) == 0);
	CHECK(tutti_table_pull(t, got, NULL) == 0 && are_line(got, COUNT, 1, 4));
	CHECK(tutti_barrier(job, NULL) == 0);
	tutti_table_close(t);
	free(v);
	free(got);
}

/* One rank after the other: each finds its own push, and those before it, also where some shards' values come with the
 * answer. */
static void push_and_pull(tutti *job, size_t count)
{
	tutti_table *t = open_by_rule(job, "both", TUTTI_F32, count, TUTTI_UPDATE_ADD);
	float *v = calloc(count, sizeof *v), *got = calloc(count, sizeof *got);
	int n = tutti_size(job);

	fill_line(v, count, 1, 1);
	for (int turn = 0; turn < 2 * n; turn++) {
		if (turn % n == tutti_rank(job))
			CHECK(tutti_table_push_pull(t, v, NULL, got, NULL) == 0 &&
			      are_line(got, count, (float)(turn + 1), (float)(turn + 1)));
		CHECK(tutti_barrier(job, NULL) == 0);
	}
	tutti_table_close(t);
	CHECK(tutti_barrier(job, NULL) == 0);
	free(v);
	free(got);
}

static void program_both(tutti *job)
{
	static const size_t counts[] = { 1, 40, 8192, 8193, 20000, 30000 }; /* shards of 32 KiB, and a little more */

	for (size_t i = 0; i < TT_COUNT(counts); i++)
		push_and_pull(job, counts[i]);
}

static void test_both(void) { on_wires(program_both, (const int[]){ 1, 2, 3, 0 }); }

/* What the rule gives back, of every piece, also where it would go by slots or in place. */
static void move(tutti *job, size_t count)
{
	tutti_table *t = open_by_rule(job, "elastic", TUTTI_F32, count, TUTTI_UPDATE_ELASTIC);
	float *x = NULL, *e = malloc(count * sizeof *e);

	CHECK(tutti_alloc(job, count * sizeof *x, -1, (void **)&x) == 0);
	for (int r = 0; r < tutti_size(job); r++) {
		fill_line(x, count, 1, 2);
		if (r == tutti_rank(job)) {
			CHECK(tutti_table_assign(t, x, NULL) == 0);
			fill_line(x, count, 3, 0);
			CHECK(tutti_table_push_pull(t, x, NULL, e, NULL) == 0 && are_line(e, count, 1, -1) &&
			      are_line(x, count, 3, 0));
			CHECK(tutti_table_push_pull(t, x, NULL, x, NULL) == 0 && are_line(x, count, 0.5f, -0.5f));
			CHECK(tutti_table_pull(t, e, NULL) == 0 && are_line(e, count, 2.5f, 0.5f));
			CHECK(tutti_table_push(t, e, NULL, NULL) == 0 && tutti_table_pull(t, x, NULL) == 0 &&
			      are_line(x, count, 2.5f, 0.5f));
		}
		CHECK(tutti_barrier(job, NULL) == 0);
	}
	tutti_table_close(t);
	CHECK(tutti_barrier(job, NULL) == 0);
	tutti_free(job, x);
	free(e);
}

static void program_elastic(tutti *job)
{
	move(job, 1);
	move(job, 5000);
	move(job, 100000);
}

static void test_elastic(void) { on_wires(program_elastic, (const int[]){ 1, 2, 3, 0 }); }

static void test_rules(void) { on_wires(program_rules, (const int[]){ 1, 2, 3, 0 }); }

/* The servers are some of the ranks, in an order of the config's own; the others are workers alone. */
static void program_roles(tutti *job)
{
	const int servers[] = { 2, 0 };
	tutti_table_config c = tutti_table_f32(40001, tutti_accumulate());
	c.servers = 2;
	c.server = servers;
	float *v = calloc(c.count, sizeof *v);
	tutti_table *t;

	CHECK(tutti_table_open(job, "roles", &c, &t) == 0);
	fill_line(v, c.count, 2, 1);
	if (tutti_rank(job) == 1)
		CHECK(tutti_table_push(t, v, NULL, NULL) == 0);
	CHECK(tutti_barrier(job, NULL) == 0);
	CHECK(tutti_table_pull(t, v, NULL) == 0 && are_line(v, c.count, 2, 1));
	CHECK(tutti_barrier(job, NULL) == 0);
	tutti_table_close(t);
	free(v);
}

static void test_roles(void) { on_wires(program_roles, (const int[]){ 3, 4, 0 }); }

/* ---- what goes wrong ---- */

static void program_wrong(tutti *job)
{
	tutti_table_config c = tutti_table_f32(100, tutti_accumulate()), other = { .type = TUTTI_F32, .count = 100 };
	tutti_update odd = tutti_update_defaults();
	int twice[] = { 1, 1 };
	tutti_table *t, *u;
	float v[100] = { 0 };

	odd.beta1 = 0.5;
	CHECK(tutti_table_open(job, "w", &other, &u) == -EINVAL && strstr(tutti_why(), "begin with tutti_table_f32()"));
	CHECK(tutti_table_open(job, "w", NULL, &u) == -EINVAL && strstr(tutti_why(), "begin with tutti_table_f32()"));
	other.row = 1;
	CHECK(tutti_table_open(job, "w", &other, &u) == -EINVAL &&
	      strstr(tutti_why(), "functions of rules, such as tutti_sgd()"));
	other = tutti_table_f32(0, tutti_accumulate());
	CHECK(tutti_table_open(job, "w", &other, &u) == -EINVAL && strstr(tutti_why(), "count is 0"));
	other.count = UINT64_MAX / 2;
	CHECK(tutti_table_open(job, "w", &other, &u) == -EINVAL && strstr(tutti_why(), "elements"));
	other = c;
	other.servers = 2;
	other.server = twice;
	CHECK(tutti_table_open(job, "w", &other, &u) == -EINVAL && strstr(tutti_why(), "named twice"));
	other = c;
	other.updater = tutti_accumulate();
	other.updater.rule = 99;
	CHECK(tutti_table_open(job, "w", &other, &u) == -EINVAL);
	CHECK(tutti_window_open(job, "tutti:table:w", v, sizeof v, &(tutti_window *){ NULL }) == -EINVAL);
	CHECK(tutti_barrier(job, NULL) == 0);

	CHECK(tutti_table_open(job, "w", &c, &t) == 0);
	CHECK(tutti_table_open(job, "w", &c, &u) == -EEXIST);
	CHECK(tutti_table_push(t, NULL, NULL, NULL) == -EINVAL && strstr(tutti_why(), "\"w\""));
	CHECK(tutti_table_push(t, v, &odd, NULL) == -EINVAL);
	odd = (tutti_update){ .scale = 1 };
	CHECK(tutti_table_push(t, v, &odd, NULL) == -EINVAL && strstr(tutti_why(), "tutti_update_defaults()"));
	odd = tutti_update_defaults();
	odd.worker = 1 << 20;
	CHECK(tutti_table_push(t, v, &odd, NULL) == -EINVAL && strstr(tutti_why(), "no such worker"));
	CHECK(tutti_table_pull(t, v, NULL) == 0);
	CHECK(tutti_barrier(job, NULL) == 0);
	tutti_table_close(t);
}

static void test_wrong(void) { on_wires(program_wrong, (const int[]){ 2, 3, 0 }); }

/* In rounds, too, where no server looks at the number. */
static void program_no_such_worker(tutti *job)
{
	const int workers[] = { 0, 1 };
	tutti_table_config c = WITH(tutti_table_f32(4, tutti_accumulate()), it.workers = 2, it.worker = workers);
	tutti_update odd = WITH(tutti_update_defaults(), it.worker = 2);
	float v[4] = { 0 };
	tutti_table *t;

	for (int bsp = 0; bsp < 2; bsp++) {
		c.consistency.mode = bsp ? TUTTI_BSP : TUTTI_ASYNC;
		CHECK(tutti_table_open(job, "x", &c, &t) == 0);
		CHECK(tutti_table_push(t, v, &odd, NULL) == -EINVAL && strstr(tutti_why(), "no such worker as 2: "));
		CHECK(tutti_table_push_pull(t, v, &odd, v, NULL) == -EINVAL &&
		      strstr(tutti_why(), "no such worker as 2: "));
		CHECK(tutti_table_push_rows(t, (uint64_t[]){ 1 }, 1, v, &odd, NULL) == -EINVAL &&
		      strstr(tutti_why(), "no such worker as 2: "));
		CHECK(tutti_barrier(job, NULL) == 0);
		tutti_table_close(t);
		CHECK(tutti_barrier(job, NULL) == 0);
	}
}

static void test_no_such_worker(void) { on_wires(program_no_such_worker, (const int[]){ 2, 0 }); }

/* Or the other rank has seen it first, and gone: it may have closed its window before this rank asked, or after. A rank
 * that is still connecting hears no goodbye: -ECONNRESET. */
static bool is_refused(int err, const char *differs)
{
	return (err == -EINVAL && strstr(tutti_why(), differs)) || err == -ENOENT ||
	       (err == -ESTALE && strstr(tutti_why(), "has closed its window")) ||
	       err == -ENOTCONN || err == -ECONNRESET;
}

static void program_disagree(tutti *job)
{
	tutti_table_config c = tutti_table_f32(tutti_rank(job) ? 100 : 101, tutti_accumulate());
	tutti_table *t;
	int err = tutti_table_open(job, "w", &c, &t);

	CHECK(is_refused(err, tutti_rank(job) ? "rank 0 opened it with count 101, and rank 1 with 100" :
	                                        "rank 1 opened it with count 100, and rank 0 with 101"));
}

static void program_defaults(tutti *job)
{
	tutti_table_config c = tutti_table_f32(100, tutti_sgd(0.1 * (1 + tutti_rank(job))));
	tutti_table *t;
	int err = tutti_table_open(job, "w", &c, &t);

	CHECK(is_refused(err, tutti_rank(job) ? "learning_rate 0.1, and rank 1 with 0.2" :
	                                        "learning_rate 0.2, and rank 0 with 0.1"));
}

/* Each member that differs is named, with both values. */
static void test_terms(void)
{
	static struct tutti_table a, b;
	struct tt_job job = { .rank = 0 };
	int list[] = { 4, 5, 6 }, other[] = { 4, 7, 6 };
	const struct { void *at; size_t size; uint64_t set; const char *says;
	} of[] = {
		{ &b.as.mode, sizeof b.as.mode, TUTTI_SSP, "consistency.mode SSP, and rank 0 with ASYNC" },
		{ &b.as.staleness, sizeof b.as.staleness, 3, "staleness 3, and rank 0 with 0" },
		{ &b.updater.rule, sizeof b.updater.rule, TUTTI_UPDATE_SGD, "update rule sgd, and rank 0 with add" },
		{ &b.flags, sizeof b.flags, TUTTI_TABLE_FILTER, "flags 0x10, and rank 0 with 0" },
		{ &b.type, sizeof b.type, TUTTI_F64, "type f64, and rank 0 with f32" },
		{ &b.updater.defaults.momentum, 8, 0x3fb999999999999a, "momentum 0.1, and rank 0 with the default" },
		{ &b.init.seed, 8, 7, "init.seed 7, and rank 0 with 0" },
		{ &b.servers, sizeof b.servers, 2, "servers 2, and rank 0 with 3" },
		{ &b.worker, sizeof b.worker, (uintptr_t)other,
		  "worker 1 is rank 7 in the list of rank 1, and rank 5 in that of rank 0" },
	};

	a = (struct tutti_table){ .job = &job, .name = "w", .type = TUTTI_F32, .count = 1, .row = 1,
		                  .updater = tutti_accumulate(), .servers = 3, .server = list, .workers = 3,
		                  .worker = list };
	tt_terms_make(&a, 0);
	for (size_t i = 0; i < TT_COUNT(of); i++) {
		b = a;
		memcpy(of[i].at, &of[i].set, of[i].size);
		tt_terms_make(&b, 0);
		CU_ASSERT_NOT_EQUAL(a.print, b.print);
		CU_ASSERT_EQUAL(tt_terms_refuse(&a, "rank 1", b.terms), -EINVAL);
		CU_ASSERT_PTR_NOT_NULL(strstr(tutti_why(), of[i].says));
	}
	memset(b.terms, 0xff, sizeof b.terms); /* nonsense of a peer */
	CU_ASSERT_EQUAL(tt_terms_refuse(&a, "rank 1", b.terms), -EINVAL);
}

/* Each rank names itself as the only server: no rank meets another one's shard. */
static void program_disjoint(tutti *job)
{
	int me = tutti_rank(job), last = tutti_size(job) - 1, err;
	const tutti_table_config c = WITH(tutti_table_f32(100, tutti_accumulate()), it.servers = 1, it.server = &me);
	tutti_table *t = NULL;

	if (!me) {
		CHECK(tutti_table_open(job, "w", &c, &t) == 0);
	}
	meet(job);
	if (me) {
		err = tutti_table_open(job, "w", &c, &t);
		CHECK(err == -EINVAL && strstr(tutti_why(), "server 0 is rank 0 in the list of rank 0"));
	}
	meet(job);
	tutti_table_close(t); /* its word is on its way when the others have met it */
	meet(job);
	if (me == last)
		CHECK(tutti_table_open(job, "w", &c, &t) == 0);
	meet(job);
	tutti_table_close(me == last ? t : NULL);
	meet(job);
}

/* A mistake that is refused leaves nothing behind. */
static void program_mistaken(tutti *job)
{
	static const int nine[] = { 9 }, twice[] = { 1, 1 }, none[] = { 0 };
	tutti_table_config c = tutti_table_f32(100, tutti_accumulate());
	tutti_table *t;
	float v[100] = { 0 };

	c.servers = 1;
	c.server = nine;
	CHECK(tutti_table_open(job, "w", &c, &t) == -EINVAL);
	CHECK(strstr(tutti_why(), "server 0 is rank 9") && strstr(tutti_why(), "0 to 2") &&
	      !strstr(tutti_why(), "window"));
	c.servers = 2;
	c.server = twice;
	CHECK(tutti_table_open(job, "w", &c, &t) == -EINVAL && strstr(tutti_why(), "rank 1 is named twice"));
	c.servers = 70000;
	CHECK(tutti_table_open(job, "w", &c, &t) == -EINVAL && strstr(tutti_why(), "70000 servers are named"));
	c.servers = 1;
	c.server = none;
	t = open_table(job, "w", &c);
	CHECK(tutti_table_push(t, v, NULL, NULL) == 0);
	close_table(job, t);
}

/* Tables are found by their uids, also the last one of many, and none that is closed. */
static void program_many(tutti *job)
{
	enum { MANY = 600 };
	static const int first[] = { 0 };
	const tutti_table_config c = WITH(tutti_table_f32(1, tutti_accumulate()), it.servers = 1, it.server = first);
	tutti_table *t[MANY];
	float one = 1, v;
	char name[16];
	size_t most = 0, n;
	int server;

	for (int i = 0; i < MANY; i++) {
		snprintf(name, sizeof name, "t%d", i);
		t[i] = open_table(job, name, &c);
	}
	for (int i = 0; i < MANY; i++)
		CHECK(tutti_table_push(t[i], &one, NULL, NULL) == 0);
	meet(job);
	tt_lock(job->job);
	for (size_t i = 0; i < TT_COUNT(tt_tables(job->job)->by_uid); i++) {
		n = 0;
		tt_list_each(node, &tt_tables(job->job)->by_uid[i])
			n++;
		most = tt_max(most, n);
	}
	CHECK(most <= 1 + MANY / TT_COUNT(tt_tables(job->job)->by_uid));
	for (int i = 0; i < MANY; i++)
		CHECK(tt_table_find_served(tt_member(job->job, 0), t[i]->source[0].uid, &server) == t[i] && !server);
	tt_unlock(job->job);
	for (int i = 0; i < MANY; i++)
		CHECK(tutti_table_pull(t[i], &v, NULL) == 0 && v == (float)tutti_size(job));
	uint64_t uid = t[7]->source[0].uid;
	meet(job);
	for (int i = 0; i < MANY; i++)
		tutti_table_close(t[i]);
	tt_lock(job->job);
	CHECK(!tt_table_find_served(tt_member(job->job, 0), uid, &server));
	CHECK(!tt_table_find(job->job, uid));
	tt_unlock(job->job);
	meet(job);
}

static void test_many(void)
{
	CU_ASSERT_EQUAL(run_ranks((struct ranks){ .size = 2, .wire = "sim", .program = program_many }), 0);
}

static void test_disagreeing(void)
{
	run_on_wires(program_disjoint, (const int[]){ 3, 0 }, SEEDS / 2);
	run_on_wires(program_mistaken, (const int[]){ 3, 0 }, 1);
}

static void program_late(tutti *job) /* a server never opens it, then does */
{
	tutti_table_config c = tutti_table_f32(100, tutti_accumulate());
	tutti_table *t;
	float v[100] = { 1 };

	if (!tutti_rank(job)) {
		pass_time(1400 * TT_MS);
	} else {
		CHECK(tutti_table_open(job, "w", &c, &t) == -ENOENT);
		CHECK(strstr(tutti_why(), "rank 0") && strstr(tutti_why(), "\"w\""));
	}
	CHECK(tutti_barrier(job, NULL) == 0);
	CHECK(tutti_table_open(job, "w", &c, &t) == 0);
	CHECK(tutti_table_push(t, v, NULL, NULL) == 0);
	CHECK(tutti_barrier(job, NULL) == 0);
	tutti_table_close(t);
}

static void program_closed(tutti *job) /* by a server, while others go on */
{
	tutti_table *t = open_by_rule(job, "w", TUTTI_F32, 70000, TUTTI_UPDATE_ADD);
	float *v = calloc(70000, sizeof *v);
	int err = 0;

	CHECK(tutti_barrier(job, NULL) == 0);
	if (tutti_rank(job)) {
		while (!err)
			err = tutti_table_push(t, v, NULL, NULL);
		CHECK(err == -ESTALE && strstr(tutti_why(), "rank 0") && strstr(tutti_why(), "closed"));
	}
	tutti_table_close(tutti_rank(job) ? NULL : t);
	CHECK(tutti_barrier(job, NULL) == 0);
	tutti_table_close(tutti_rank(job) ? t : NULL);
	free(v);
}

static void test_open(void)
{
	for (uint64_t seed = 0; seed < SEEDS; seed++) {
		CU_ASSERT_EQUAL(run_on_sim(2, seed, 200, program_disagree), 0);
		CU_ASSERT_EQUAL(run_on_sim(3, seed, 1000, program_late), 0);
		CU_ASSERT_EQUAL(
			run_ranks((struct ranks){ .size = 3, .wire = "sim", .seed = seed, .program = program_closed }),
			0);
	}
	CU_ASSERT_EQUAL(
		run_ranks((struct ranks){ .size = 2, .wire = "sim", .timeout_ms = 200, .program = program_defaults }),
		0);
	CU_ASSERT_EQUAL(
		run_real_ranks((struct ranks){ .size = 2, .timeout_ms = DEADLINE, .program = program_disagree }), 0);
	CU_ASSERT_EQUAL(run_real_ranks((struct ranks){ .size = 3, .timeout_ms = 1000, .program = program_late }), 0);
	CU_ASSERT_EQUAL(run_real_ranks((struct ranks){ .size = 3, .program = program_closed }), 0);
}

/* A server dies while all push: their calls end by its name; the other shards hold whole pushes of everybody. */
static void program_killed(tutti *job)
{
	enum { COUNT = 300000 };
	tutti_table *t = open_by_rule(job, "w", TUTTI_F32, COUNT, TUTTI_UPDATE_ADD);
	float *v = calloc(COUNT, sizeof *v);
	int err = 0;

	fill_line(v, COUNT, 0, 1);
	CHECK(tutti_barrier(job, NULL) == 0);
	if (tutti_rank(job) == 0)
		tt_sim_kill(1, TT_MS + tt_sim_chance(4 * TT_MS)); /* when all are through the barrier */
	while (!err)
		err = tutti_table_push(t, v, NULL, NULL);
	if (tutti_rank(job) != 1) {
		CHECK((err == -ECONNRESET || err == -ETIMEDOUT) && strstr(tutti_why(), "rank 1"));
		CHECK(tutti_table_pull(t, v, NULL) == -ECONNRESET && strstr(tutti_why(), "rank 1"));
		CHECK(tutti_table_reopen(t) == -ECONNRESET && strstr(tutti_why(), "table open: rank 1"));
	}
	pass_time(2000 * TT_MS); /* or others find it closed */
	free(v);
	tutti_table_close(t);
}

static void test_killed(void)
{
	for (uint64_t seed = 0; seed < 4 * SEEDS; seed++)
		CU_ASSERT_EQUAL(run_on_sim(4, seed, 1000, program_killed), 0);
}

/* ---- options in a message ---- */

static bool is_same(double a, double b) { return a == b || (isnan(a) && isnan(b)); }

/* What comes of options when bits are added to `set`, and to the number k. */
static bool is_read(const tutti_update *o, uint32_t set, int k, uint64_t bits, tutti_update *to)
{
	uint8_t message[112], *at = message + 8 + 8 * k;
	struct tt_pack p = tt_pack(message, sizeof message);

	tt_table_put_options(&p, o);
	CU_ASSERT(!p.bad && p.at == p.end);
	for (int i = 0; i < 4; i++)
		message[i] |= (uint8_t)(set >> 8 * i);
	for (int i = 0; i < 8; i++)
		at[i] |= (uint8_t)(bits >> 8 * i);
	p = tt_pack(message, sizeof message);
	tt_table_get_options(&p, to);
	return !p.bad;
}

static void test_options(void)
{
	const tutti_update none = tutti_update_defaults(), some = WITH(tutti_update_defaults(), it.worker = 3,
	                                                               it.scale = -2, it.momentum = 0, it.l2 = 0.5);
	const uint64_t nan_bits = 0x7ff8000000000000;
	tutti_update to;

	CU_ASSERT(is_read(&none, 0, 0, 0, &to) && to.worker == -1);
	for (size_t k = 0; k < 13; k++)
		CU_ASSERT(isnan((&to.scale)[k]));
	CU_ASSERT(is_read(&some, 0, 0, 0, &to) && to.worker == 3);
	for (size_t k = 0; k < 13; k++)
		CU_ASSERT(is_same((&to.scale)[k], (&some.scale)[k]));
	CU_ASSERT(is_read(&none, 2, 0, 0, &to) && to.scale == 0);
	CU_ASSERT(!is_read(&none, 2, 0, nan_bits, &to)); /* a NaN is no number ... */
	CU_ASSERT(!is_read(&none, 0, 12, 1, &to));       /* ... and what is not set is 0 */
	CU_ASSERT(!is_read(&none, 1u << 14, 0, 0, &to));
	CU_ASSERT(!is_read(&none, 1, -1, 1ull << 63, &to)); /* a worker below 0 */
}

static CU_TestInfo table_tests[] = {
	{ "options in a message", test_options },
	{ "sums", test_sums },
	{ "part", test_part },
	{ "a worker is named", test_named },
	{ "started", test_started },
	{ "push and pull", test_both },
	{ "rules and options", test_rules },
	{ "what a rule gives back", test_elastic },
	{ "servers that are named", test_roles },
	{ "wrong arguments", test_wrong },
	{ "no such worker", test_no_such_worker },
	{ "opened late, otherwise, closed", test_open },
	{ "the member that differs", test_terms },
	{ "disjoint lists of servers, mistakes", test_disagreeing },
	{ "many tables", test_many },
	{ "a server is killed", test_killed },
	CU_TEST_INFO_NULL,
};

static CU_SuiteInfo suites[] = { { "table", NULL, NULL, NULL, NULL, table_tests }, CU_SUITE_INFO_NULL };

int main(int argc, char **argv) { return run_suites(suites, argc, argv); }
