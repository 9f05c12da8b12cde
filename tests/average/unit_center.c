/* unit_center.c - centers on servers: lists of tensors, types, rules, alpha that follows the workers, testers, ranks
 * that join late, die or are refused. On sim over seeds, and over TCP and shared memory. */
#include "tests/harness/cunit_main.h"
#include "tests/harness/folders.h"
#include "tests/harness/ranks.h"
#include "tests/harness/with.h"
#include "table/table_private.h"
#include <math.h>

#define SEEDS (uint64_t)all_or(3, 1)
#define DEATHS (uint64_t)all_or(40, 15)

static void on_wires(void (*program)(tutti *), const int *sizes) /* up to a 0 */
{
	for (; *sizes; sizes++) {
		struct ranks run = { .size = *sizes, .wire = "sim", .program = program };
		for (; run.seed < SEEDS; run.seed++)
			CU_ASSERT_EQUAL(run_ranks(run), 0);
		CU_ASSERT_EQUAL(run_real_ranks(run), 0);
	}
}

static void meet(tutti *job) { CHECK(tutti_barrier(job, NULL) == 0); }

static tutti_center *open_list(tutti *job, const tutti_tensor *list, int n, tutti_center_config config)
{
	tutti_center *c = NULL;

	CHECK(tutti_center_open(job, "model", list, n, &config, &c) == 0);
	return c;
}

static tutti_center *open_flat(tutti *job, double *x, size_t n, tutti_center_config config)
{
	return open_list(job, &(tutti_tensor){ x, n, TUTTI_F64 }, 1, config);
}

static void close_center(tutti *job, tutti_center *c)
{
	meet(job);
	tutti_center_close(c);
	meet(job);
}

static void fill(double *v, size_t n, double x)
{
	for (size_t i = 0; i < n; i++)
		v[i] = x;
}

static bool all_are(const double *v, size_t n, double x)
{
	for (size_t i = 0; i < n; i++)
		if (v[i] != x)
			return false;
	return true;
}

/* ---- a job that ends and is started again goes on with the same bits ---- */

enum { GO = 20, HALF = 10, WIDE = 3000, GOERS = 2 };
static char going_folder[64];
static double at_half[GOERS][WIDE], at_end[GOERS][WIDE];

/* DiLoCo, whose workers take steps with momentum. */
static tutti_center *open_going(tutti *job, double *x)
{
	return open_flat(job, x, WIDE, WITH(tutti_center_outer(4, 0.5, 0.25), it.momentum = 0.5));
}

static void take_steps(tutti_center *c, int me, int from, int to)
{
	static _Thread_local double gradient[WIDE];
	const tutti_tensor list = { gradient, WIDE, TUTTI_F64 };

	for (int step = from; step < to; step++) {
		for (int i = 0; i < WIDE; i++)
			gradient[i] = (me + 1) * 0.37 / (step + i % 11 + 1);
		CHECK(tutti_center_move(c, &list, 0.1) == 0 && tutti_center_step(c, NULL) == (step % 4 == 3));
	}
}

static void go(tutti *job, bool again)
{
	int me = tutti_rank(job);
	double x[WIDE];
	char path[100];

	snprintf(path, sizeof path, "%s/worker-%d.safetensors", going_folder, me);
	fill(x, WIDE, 1 + me);
	tutti_center *c = open_going(job, x);
	if (again) {
		CHECK(me || tutti_table_load(tutti_center_table(c), going_folder) == 0);
		meet(job);
		memcpy(x, at_half[me], sizeof x);
		CHECK(tutti_center_load(c, path) == 0);
	} else {
		take_steps(c, me, 0, HALF);
		meet(job);
		CHECK(me || tutti_table_save(tutti_center_table(c), going_folder) == 0);
		CHECK(tutti_center_save(c, path) == 0 && tutti_center_save(c, NULL) == -EINVAL);
		memcpy(at_half[me], x, sizeof x);
	}
	meet(job);
	take_steps(c, me, HALF, GO);
	if (!again)
		memcpy(at_end[me], x, sizeof x);
	CHECK(!memcmp(at_end[me], x, sizeof x));
	close_center(job, c);
}

static void go_whole(tutti *job) { go(job, false); }
static void go_again(tutti *job) { go(job, true); }

static void test_goes_on(void)
{
	strcpy(going_folder, "/tmp/tutti-unit-center-XXXXXX");
	CU_ASSERT_PTR_NOT_NULL_FATAL(mkdtemp(going_folder));
	CU_ASSERT_EQUAL(run_ranks((struct ranks){ .size = GOERS, .wire = "sim", .program = go_whole }), 0);
	CU_ASSERT_EQUAL(run_ranks((struct ranks){ .size = GOERS, .wire = "sim", .program = go_again }), 0);
	clear_folder(going_folder);
	rmdir(going_folder);
}

/* ---- lists of tensors, in each type ---- */

enum { LONG = 70001, SHORT = 3, TENSORS = 5 };

/* The bits of 0, 1 and 2. */
static void put(void *at, tutti_type type, int value)
{
	static const uint16_t halves[] = { 0, 0x3c00, 0x4000 }, brains[] = { 0, 0x3f80, 0x4000 };
	double d = value;
	float f = (float)value;

	switch (type) {
	case TUTTI_F64: memcpy(at, &d, sizeof d); break;
	case TUTTI_F32: memcpy(at, &f, sizeof f); break;
	case TUTTI_F16: memcpy(at, &halves[value], 2); break;
	default: memcpy(at, &brains[value], 2);
	}
}

static void set_list(const tutti_tensor *list, int value)
{
	for (int t = 0; t < TENSORS; t++)
		for (size_t i = 0; i < list[t].count; i++)
			put((char *)list[t].data + i * tt_type_size(list[t].type), list[t].type, value);
}

static bool list_is(const tutti_tensor *list, int value)
{
	char want[8];

	for (int t = 0; t < TENSORS; t++)
		for (size_t i = 0; i < list[t].count; i++) {
			put(want, list[t].type, value);
			if (memcmp((char *)list[t].data + i * tt_type_size(list[t].type), want,
			           tt_type_size(list[t].type)) != 0)
				return false;
		}
	return true;
}

/* Two behind each other, an empty one, one apart, and one behind the first two; or all behind each other. */
static void lay(tutti_tensor *list, char *memory, tutti_type type, bool flat)
{
	static const size_t count[] = { SHORT, LONG, 0, LONG, SHORT };
	size_t at[] = { 0, SHORT, 0, SHORT + LONG, SHORT + 2 * LONG };

	if (!flat) {
		at[3] = 2 * SHORT + LONG + 1;
		at[4] = SHORT + LONG;
	}
	for (int t = 0; t < TENSORS; t++)
		list[t] = (tutti_tensor){ count[t] ? memory + at[t] * tt_type_size(type) : NULL, count[t], type };
}

static void move_list(tutti *job, tutti_tensor *list, tutti_center_config config, int moved)
{
	tutti_center *c;

	set_list(list, tutti_rank(job) == 0 ? 0 : 2); /* the first worker's counts */
	c = open_list(job, list, TENSORS, config);
	CHECK(list_is(list, 0));
	meet(job);
	set_list(list, 2);
	if (tutti_rank(job) == tutti_size(job) - 1)
		CHECK(tutti_center_step(c, NULL) == 0 && list_is(list, 2) && tutti_center_step(c, NULL) == 1 &&
		      list_is(list, moved));
	meet(job);
	CHECK(tutti_center_pull(c) == 0 && list_is(list, moved)); /* drawn together: x and center met in the middle */
	meet(job);
	if (tutti_rank(job) == 0) {
		set_list(list, 2);
		CHECK(tutti_center_assign(c) == 0);
		CHECK(tutti_center_exchange(c, NULL) == 0 && list_is(list, 2)); /* no difference, and no delta */
	}
	meet(job);
	CHECK(tutti_center_pull(c) == 0 && list_is(list, 2));
	close_center(job, c);
}

static void program_lists(tutti *job)
{
	static const tutti_type types[] = { TUTTI_F32, TUTTI_F64, TUTTI_F16, TUTTI_BF16 };
	tutti_tensor list[TENSORS];
	char *memory;

	CHECK(tutti_alloc(job, (2 * LONG + 3 * SHORT + 1) * 8, -1, (void **)&memory) == 0);
	for (int k = 0; k < 8; k++) {
		lay(list, memory, types[k / 2], k % 2);
		move_list(job, list, tutti_center_easgd(2, 0.5), 1);
		move_list(job, list, tutti_center_asgd(2), 2);
	}
	tutti_free(job, memory);
}

static void test_lists(void) { on_wires(program_lists, (const int[]){ 1, 2, 3, 0 }); }

/* ---- alpha, and means, follow the workers that are there ---- */

static atomic_int opened; /* ranks that have; then one of them is struck */

static void await_all(int n)
{
	opened++;
	while (opened < n)
		pass_time(TT_MS);
}

static void program_auto(tutti *job)
{
	const int server = 0;
	int n = tutti_size(job), me = tutti_rank(job);
	double x = 0;
	tutti_center *c = open_flat(job, &x, 1, WITH(tutti_center_easgd(1, NAN), it.servers = 1, it.server = &server));

	await_all(n);
	if (me == 0) {
		x = 1;
		CHECK(tutti_center_step(c, NULL) == 1 && x == 1 - 0.9 / n);
		CHECK(tutti_group_evict(job, n - 1, "the test says so") == 0);
		x = 1;
		CHECK(tutti_center_assign(c) == 0);
		x = 2;
		CHECK(tutti_center_step(c, NULL) == 1 && x == 2 - 0.9 / (n - 1));
	}
	opened += me == 0;
	while (opened <= n) /* until rank 0 has done */
		pass_time(TT_MS);
	tutti_center_close(c);
}

static void test_auto(void)
{
	static const int sizes[] = { 2, 4 };

	for (size_t i = 0; i < TT_COUNT(sizes); i++) {
		for (uint64_t seed = 0; seed < SEEDS; seed++) {
			opened = 0;
			CU_ASSERT_EQUAL(
				run_ranks((struct ranks){
					.size = sizes[i], .wire = "sim", .seed = seed, .program = program_auto }),
				0);
		}
		opened = 0;
		CU_ASSERT_EQUAL(run_ranks((struct ranks){ .size = sizes[i], .wire = "tcp", .program = program_auto }),
		                0);
		opened = 0;
		CU_ASSERT_EQUAL(run_ranks((struct ranks){ .size = sizes[i], .wire = "shm", .program = program_auto }),
		                0);
	}
}

/* ---- rounds ---- */

enum { STEPS = 3, ROUNDS = 4 };

/* Each worker goes by its rank + 1 in each round; one goes 3 rounds only. */
static void program_rounds(tutti *job)
{
	const double rate = 0.5, keep = 0.25;
	double x[2] = { 1, 1 }, center = 1, m = 0;
	int n = tutti_size(job), me = tutti_rank(job);
	tutti_center *c = open_flat(job, x, 2, tutti_center_outer(STEPS, rate, keep));

	for (int round = 0; round < ROUNDS; round++) {
		double mean = -(n + 1) / 2.0; /* of old - x */
		if (round == ROUNDS - 1 && me == n - 1 && n > 1) {
			CHECK(tutti_table_finish(tutti_center_table(c)) == 0);
			break;
		}
		for (int step = 0; step < STEPS; step++) {
			x[0] += (me + 1.0) / STEPS;
			x[1] += (me + 1.0) / STEPS;
			CHECK(tutti_center_step(c, NULL) == (step == STEPS - 1));
		}
		if (round == ROUNDS - 1 && n > 1) /* of those that pushed */
			mean = -n / 2.0;
		m = keep * m + mean;
		center -= rate * (mean + keep * m);
		CHECK(fabs(x[0] - center) < 1e-12 && x[0] == x[1]);
	}
	close_center(job, c);
}

/* Two of three workers make a round. */
static void program_backup(tutti *job)
{
	double x = 0;
	int me = tutti_rank(job);
	tutti_center *c = open_flat(job, &x, 1, WITH(tutti_center_downpour(1, 1), it.consistency.backup = 1));

	if (me < 2) {
		x += me + 1;
		CHECK(tutti_center_step(c, NULL) == 1 && x == 1.5);
	}
	close_center(job, c);
}

/* Without rounds: a part for each worker. OWN's function gets the scale. */
static void half(const tutti_update_piece *p)
{
	*(double *)p->to = *(const double *)p->w + p->options->scale * *(const double *)p->d;
}

static void program_mean(tutti *job)
{
	double x = 0;
	int n = tutti_size(job);
	tutti_center_config own = WITH(tutti_center_asgd(1), it.average = 1, it.updater = tutti_own(half, NULL, 0));
	tutti_table_config t = WITH(tutti_table_rows(TUTTI_I32, 1, 1, tutti_accumulate()), it.flags = TUTTI_TABLE_MEAN);
	tutti_table *table;
	tutti_center *c = open_flat(job, &x, 1, WITH(tutti_center_asgd(1), it.average = 1));

	x = n;
	CHECK(tutti_rank(job) || (tutti_center_step(c, NULL) == 1 && x == 1));
	close_center(job, c);
	for (int rounds = 0; rounds < 2; rounds++) {
		own.consistency.mode = rounds ? TUTTI_BSP : TUTTI_ASYNC;
		x = 0;
		c = open_flat(job, &x, 1, own);
		x = n;
		CHECK((!rounds && tutti_rank(job)) || (tutti_center_step(c, NULL) == 1 && x == (rounds ? n : 1)));
		close_center(job, c);
	}
	CHECK(tutti_table_open(job, "whole", &t, &table) == -EINVAL && strstr(tutti_why(), "TUTTI_TABLE_MEAN"));
	t = WITH(tutti_table_f32(1, tutti_assign()), it.flags = TUTTI_TABLE_MEAN);
	CHECK(tutti_table_open(job, "whole", &t, &table) == -EINVAL && strstr(tutti_why(), "TUTTI_TABLE_MEAN"));
}

static void program_defaults(tutti *job)
{
	tutti_center_config outer = tutti_center_outer(50, NAN, NAN);
	double x = 0;
	tutti_center *c = open_flat(job, &x, 1, outer);

	x = 1; /* m = -1, and the center goes by 0.7 (1 + 0.9) */
	CHECK(tutti_center_exchange(c, NULL) == 0 && fabs(x - 0.7 * 1.9) < 1e-12);
	x += 1;
	close_center(job, c);
	c = open_flat(job, &x, 1,
	              WITH(tutti_center_downpour(1, 0), it.consistency.mode = TUTTI_SSP, it.consistency.staleness = 1));
	CHECK(tutti_center_step(c, NULL) == 1 && tutti_center_step(c, NULL) == 1);
	close_center(job, c);
}

static bool why_has(const char *word) { return strstr(tutti_why(), word) != NULL; }

/* DiLoCo whose rate and tau change: center += rate (the mean of x - old). */
static void program_schedule(tutti *job)
{
	int me = tutti_rank(job), n = tutti_size(job);
	double x[2] = { 0, 0 }, center = 0, mean = (n + 1) / 2.0;
	tutti_center *c = open_flat(job, x, 2, tutti_center_outer(2, 1, 0));
	tutti_center_schedule s = { 0 }, other;
	tutti_average_result r = { 0 };

	for (int step = 0; step < 8; step++) {
		if (step == 3) {
			CHECK(tutti_center_get(c, &s) == 0 && s.tau == 2 && s.learning_rate == 1 && s.momentum == 0);
			other = WITH(s, it.tau = 0);
			CHECK(tutti_center_set(c, job, &other) == -EINVAL && why_has("tau is 0"));
			other = WITH(s, it.tau = me ? 7 : 0);
			CHECK(tutti_center_set(c, job, &other) == -EINVAL && why_has("tau is 0"));
			CHECK(!me || (why_has("7") && why_has("rank 0")));
			CHECK(n == 1 || tutti_center_set(c, job, me ? &s : NULL) == -EINVAL);
			other = WITH(s, it.alpha = 0.5);
			CHECK(tutti_center_set(c, job, &other) == -EINVAL && why_has("alpha"));
			other = WITH(s, it.learning_rate = me ? 0.25 : 0.5);
			CHECK(n == 1 || (tutti_center_set(c, job, &other) == -EINVAL && why_has("learning_rate is") &&
			                 why_has("0.25") && why_has("0.5")));
			s.tau = 1;
			s.learning_rate = 0.5;
			CHECK(tutti_center_set(c, job, &s) == 0 && tutti_center_get(c, &other) == 0 && other.tau == 1);
		}
		x[0] += me + 1;
		x[1] += me + 1;
		double was = x[0];
		bool exchanges = step % 2 == 1 || step >= 3;
		CHECK(tutti_center_step(c, &r) == exchanges);
		if (!exchanges)
			continue;
		center += step == 1 ? 2 * mean : step == 3 ? 0.5 * 2 * mean : 0.5 * mean;
		CHECK(fabs(x[0] - center) < 1e-12 && fabs(x[1] - center) < 1e-12); /* two servers, each its order */
		CHECK(fabs(r.distance - sqrt(2) * fabs(was - center)) < 1e-12);
	}
	close_center(job, c);
}

/* An elastic center: each worker has a schedule of its own. */
static void program_own_schedule(tutti *job)
{
	double x[4];
	tutti_center_schedule s;
	tutti_average_result r;

	fill(x, 4, 0);
	tutti_center *c = open_flat(job, x, 4, tutti_center_easgd(3, 0.25));
	if (tutti_rank(job) == 0) {
		CHECK(tutti_center_get(c, &s) == 0 && s.tau == 3 && s.alpha == 0.25);
		s.tau = 1;
		s.alpha = 0.5;
		CHECK(tutti_center_set(c, NULL, &s) == 0);
		fill(x, 4, 2);
		CHECK(tutti_center_step(c, &r) == 1 && all_are(x, 4, 1) && fabs(r.distance - 4) < 1e-12);
		s.learning_rate = 1;
		CHECK(tutti_center_set(c, NULL, &s) == -EINVAL);
	}
	close_center(job, c);
}

/* Steps are taken while the exchange runs, and its op is used for something else before the exchange is applied. */
static void overlap(tutti *job, tutti_center *c, double *x, double step)
{
	tutti_average_result r;
	tutti_op op = { 0 };

	CHECK(tutti_center_exchange_apply(c, NULL) == -EINVAL && why_has("nothing was started"));
	CHECK(tutti_center_exchange_start(c, NULL) == -EINVAL && tutti_center_exchange_start(c, &op) == 0);
	x[0] += step;
	x[1] += step;
	double was = x[0];
	CHECK(tutti_center_exchange_start(c, &op) == -EALREADY && tutti_center_exchange(c, NULL) == -EALREADY);
	CHECK(tutti_center_pull(c) == -EALREADY && tutti_center_assign(c) == -EALREADY);
	CHECK(tutti_wait(&op, -1) == 0 && x[0] == was && x[1] == was);
	CHECK(tutti_center_exchange(c, NULL) == -EALREADY && why_has("apply"));
	CHECK(tutti_barrier(job, &op) == 0 && tutti_wait(&op, -1) == 0);
	CHECK(tutti_center_exchange_apply(c, &r) == 0 && r.distance >= 0);
	CHECK(tutti_center_exchange_apply(c, &r) == -EINVAL);
}

/* Rounds, deltas and their mean: what x has moved since the start counts in the next round, once. */
static void start_deltas(tutti *job)
{
	int me = tutti_rank(job), n = tutti_size(job);
	double x[2] = { 0, 0 }, center = 0, mean = (n + 1) / 2.0;
	tutti_center *c = open_flat(job, x, 2, tutti_center_downpour(1, 1));

	for (int round = 0; round < 4; round++) {
		x[0] += me + 1;
		x[1] += me + 1;
		overlap(job, c, x, 10 * (me + 1));
		center += round ? 11 * mean : mean;
		CHECK(fabs(x[0] - (center + 10 * (me + 1))) < 1e-9 && fabs(x[0] - x[1]) < 1e-12);
	}
	CHECK(tutti_center_exchange(c, NULL) == 0);
	CHECK(fabs(x[0] - (center + 10 * mean)) < 1e-9);
	double before = x[0];
	overlap(job, c, x, 0); /* no step: the center's bits */
	CHECK(fabs(x[0] - x[1]) < 1e-12 && fabs(x[0] - before) < 1e-12);
	close_center(job, c);
}

static void start_elastic(tutti *job)
{
	double x[2] = { 0, 0 };
	tutti_center *c = open_flat(job, x, 2, tutti_center_easgd(1, 0.25));

	if (tutti_rank(job) == 0)
		fill(x, 2, 2);
	overlap(job, c, x, 1); /* e = 0.5 on rank 0 */
	if (tutti_rank(job) == 0)
		CHECK(all_are(x, 2, 2.5));
	meet(job);
	CHECK(tutti_center_pull(c) == 0 && (tutti_size(job) > 1 || all_are(x, 2, 0.5)));
	close_center(job, c);
}

/* Cancelled, closed, and refused. */
static void start_in_vain(tutti *job)
{
	double x[2] = { 1, 1 };
	tutti_center *c = open_flat(job, x, 2, tutti_center_asgd(1));
	tutti_op op = { 0 };

	fill(x, 2, 5);
	CHECK(tutti_center_exchange_start(c, &op) == 0);
	int err = tutti_cancel(&op), applied = tutti_center_exchange_apply(c, NULL);
	CHECK(err == 0 && (applied == 0 || (applied == -ECANCELED && all_are(x, 2, 5))));
	CHECK(tutti_center_exchange_start(c, &op) == 0);
	CHECK(tutti_cancel(&op) == 0);
	err = tutti_center_exchange(c, NULL); /* one that was cancelled is forgotten */
	CHECK(err == 0 || (err == -EALREADY && tutti_center_exchange_apply(c, NULL) == 0));
	CHECK(tutti_center_exchange_start(c, &op) == 0);
	close_center(job, c); /* while it runs */
	c = open_flat(job, x, 2, tutti_center_own(1, tutti_accumulate(), NULL, NULL));
	CHECK(tutti_center_exchange_start(c, &op) == -ENOTSUP);
	close_center(job, c);
}

/* A server is killed while an exchange runs: the params stay as they are. */
static void lose_started(tutti *job)
{
	enum { N = 40000 };
	static const int server = 1;
	double *x = calloc(N, sizeof *x);
	tutti_center *c = open_flat(job, x, N, WITH(tutti_center_asgd(1), it.servers = 1, it.server = &server));
	int me = tutti_rank(job), err = 0;

	if (me == server) /* the others have opened the center by then, too */
		tt_sim_kill(me, TT_MS + tt_sim_chance(2 * TT_MS));
	while (me == server && !tt_sim_killed(me))
		pass_time(TT_MS / 10);
	for (int i = 0; me != server && !err; i++) {
		tutti_op op = { 0 };
		double was = x[0] + 1;
		fill(x, N, was);
		if ((err = tutti_center_exchange_start(c, &op)))
			break;
		err = tutti_wait(&op, -1);
		int applied = tutti_center_exchange_apply(c, NULL);
		CHECK(applied == err && (!err || (all_are(x, N, was) && why_has("rank 1"))));
	}
	CHECK(me == server || err == -ECONNRESET);
	tutti_center_close(c);
	free(x);
}

static void test_started(void)
{
	on_wires(start_deltas, (const int[]){ 1, 3, 0 });
	on_wires(start_elastic, (const int[]){ 1, 2, 0 });
	on_wires(start_in_vain, (const int[]){ 1, 2, 0 });
	for (uint64_t seed = 0; seed < DEATHS; seed++)
		CU_ASSERT_EQUAL(run_ranks((struct ranks){ .size = 3, .wire = "sim", .seed = seed,
		                                          .program = lose_started }), 0);
}

static void test_schedules(void)
{
	on_wires(program_schedule, (const int[]){ 1, 3, 0 });
	on_wires(program_own_schedule, (const int[]){ 2, 0 });
}

static void test_rounds(void)
{
	on_wires(program_rounds, (const int[]){ 1, 2, 4, 0 });
	on_wires(program_backup, (const int[]){ 3, 0 });
	on_wires(program_mean, (const int[]){ 1, 2, 0 });
	on_wires(program_defaults, (const int[]){ 1, 3, 0 });
}

/* ---- an exchange of deltas that fails is made again: no delta counts twice ---- */

/* In rounds: rank 0 comes to the round in time, and gives up waiting for the others. */
static void program_again(tutti *job)
{
	int me = tutti_rank(job), n = tutti_size(job), err;
	double x = 0, mean = (n + 1) / 2.0;

	CHECK(tutti_group_timeout(job, 300) == 0);
	tutti_center *c = open_flat(job, &x, 1, tutti_center_downpour(2, 1));
	CHECK(tutti_group_timeout(job, 30000) == 0);
	meet(job);
	x = me + 1;
	CHECK(tutti_center_step(c, NULL) == 0);
	if (me) {
		pass_time(1000 * TT_MS);
		CHECK(tutti_center_step(c, NULL) == 1 && x == mean);
	} else {
		CHECK(tutti_center_step(c, NULL) == -ETIMEDOUT && x == 1);
		x += 10;
		while ((err = tutti_center_step(c, NULL)) == -ETIMEDOUT)
			;
		CHECK(err == 1 && x == mean + 10);
	}
	meet(job);
	CHECK(tutti_center_step(c, NULL) == 0 && tutti_center_step(c, NULL) == 1);
	CHECK(fabs(x - (mean + 10.0 / n)) < 1e-12);
	close_center(job, c);
}

enum { PUSHED = 20 };

/* Started exchanges are cancelled at any moment. What was sent of a delta counts once, what was not is lost. */
static void program_cancelled(tutti *job)
{
	enum { N = 40000 };
	static const int server = 0;
	double *x = calloc(N, sizeof *x);
	tutti_center *c = open_flat(job, x, N, WITH(tutti_center_asgd(1), it.servers = 1, it.server = &server));

	for (int i = 0; tutti_rank(job) && i < PUSHED; i++) {
		tutti_op op = { 0 };
		for (size_t k = 0; k < N; k++)
			x[k]++;
		CHECK(tutti_center_exchange_start(c, &op) == 0);
		pass_time(tt_sim_chance(2 * TT_MS));
		CHECK(tutti_cancel(&op) == 0);
		int err = i % 2 ? tutti_center_exchange_apply(c, NULL) : tutti_center_exchange(c, NULL);
		CHECK(err == 0 || err == -ECANCELED || (err == -EALREADY && tutti_center_exchange_apply(c, NULL) == 0));
	}
	if (tutti_rank(job)) {
		CHECK(tutti_center_exchange(c, NULL) == 0 && tutti_center_exchange(c, NULL) == 0);
		CHECK(tutti_center_pull(c) == 0);
		for (size_t k = 0; k < N; k++)
			CHECK(x[k] <= PUSHED);
	}
	close_center(job, c);
	free(x);
}

static void test_again(void)
{
	static const int sizes[] = { 2, 3 };

	for (uint64_t seed = 0; seed < DEATHS; seed++) {
		CU_ASSERT_EQUAL(run_ranks((struct ranks){ .size = sizes[seed % 2], .wire = "sim", .seed = seed,
		                                          .program = program_again }), 0);
		CU_ASSERT_EQUAL(run_ranks((struct ranks){ .size = 2, .wire = "sim", .seed = seed,
		                                          .program = program_cancelled }), 0);
	}
}


/* ---- deltas in bf16 ---- */

enum { FEW = 5, MANY = 300007 };

static int next_rank(tutti *job) { return (tutti_rank(job) + 1) % tutti_size(job); }

static uint64_t count_received(tutti *job)
{
	const struct tt_member *m = tt_member(job->job, next_rank(job));

	return m->link ? m->link->peer->received : 0;
}

/* Even elements move by what bf16 has, odd ones by what it has not. Returns how many bytes came
 * from the next rank in all rounds; 0: it is mapped, and nothing travels. */
static uint64_t go_rounds(tutti *job, float *x, size_t count, int bf16)
{
	tutti_center_config config = WITH(tutti_center_outer(1, NAN, NAN), it.bf16 = bf16);
	tutti_center *c;

	for (size_t i = 0; i < count; i++)
		x[i] = i % 2 ? 1 : 1000.001f;
	c = open_list(job, &(tutti_tensor){ x, count, TUTTI_F32 }, 1, config);
	uint64_t before = count_received(job);
	meet(job);
	for (int round = 0; round < ROUNDS; round++) {
		for (size_t i = 0; i < count; i++)
			x[i] += (float)(tutti_rank(job) + 1) * (i % 2 ? 0.1f : 0.25f);
		CHECK(tutti_center_step(c, NULL) == 1);
	}
	meet(job);
	before = tt_window_is_mapped(tutti_center_table(c)->window, next_rank(job)) ? 0 : count_received(job) - before;
	close_center(job, c);
	return before;
}

static void compare_rounds(tutti *job, size_t count)
{
	float *wide = calloc(count, sizeof *wide), *half = calloc(count, sizeof *half);
	uint64_t as_wide = go_rounds(job, wide, count, 0), as_half = go_rounds(job, half, count, 1);
	size_t far = 0, other = 0;

	for (size_t i = 0; i < count; i++) {
		far += fabsf(half[i] - wide[i]) > (i % 2 ? (wide[i] - 1) / 256 : 0);
		other += half[i] != wide[i];
	}
	CHECK(far == 0 && other == count / 2);
	/* A rank has the others' pushes and pulls from them: 2 + 4 bytes an element instead of 4 + 4. */
	double elements = ROUNDS * (double)count / tutti_size(job), less = (double)as_wide - (double)as_half;
	if (count == MANY && as_wide && tutti_size(job) > 1 && !only_verbs()) /* the target of a WRITE counts nothing */
		CHECK(less > 1.9 * elements && less < 2.1 * elements);
	free(wide);
	free(half);
}

/* Of tables with such deltas. */
static void refuse_tables(tutti *job)
{
	const tutti_updater add = tutti_accumulate();
	tutti_table_config bad[] = { tutti_table_rows(TUTTI_F64, 3, 1, add), tutti_table_keys(TUTTI_F32, 1, add),
	                             tutti_table_f32(3, add), tutti_table_f32(3, tutti_elastic(0.5)) };
	tutti_table_config good = WITH(tutti_table_f32(3, add), it.flags = TUTTI_TABLE_BF16_DELTAS);
	float delta[3] = { 1, 1, 1 };
	tutti_table *t;

	bad[2].flags = TUTTI_TABLE_FILTER;
	for (size_t i = 0; i < TT_COUNT(bad); i++) {
		bad[i].flags |= TUTTI_TABLE_BF16_DELTAS;
		CHECK(tutti_table_open(job, "halves", &bad[i], &t) == -EINVAL);
		CHECK(strstr(tutti_why(), "TUTTI_TABLE_BF16_DELTAS"));
	}
	CHECK(tutti_table_open(job, "halves", &good, &t) == 0);
	CHECK(tutti_table_push_rows(t, (const uint64_t[]){ 1 }, 1, delta, NULL, NULL) == -ENOTSUP);
	meet(job);
	tutti_table_close(t);
}

static void program_bf16(tutti *job)
{
	tutti_center_config outer = WITH(tutti_center_outer(1, NAN, NAN), it.bf16 = 1);
	double x = 1;
	float y = 1;
	tutti_center *c;

	compare_rounds(job, FEW);
	compare_rounds(job, MANY);
	CHECK(tutti_center_open(job, "model", &(tutti_tensor){ &x, 1, TUTTI_F64 }, 1, &outer, &c) == -ENOTSUP);
	CHECK(strstr(tutti_why(), "params of f32"));
	refuse_tables(job);
	outer = WITH(tutti_center_easgd(1, NAN), it.bf16 = 1);
	CHECK(tutti_center_open(job, "model", &(tutti_tensor){ &y, 1, TUTTI_F32 }, 1, &outer, &c) == -EINVAL);
}

static void test_bf16(void)
{
	on_wires(program_bf16, (const int[]){ 1, 2, 3, 0 });
}

/* ---- rules of the program's own ---- */

struct merged {
	size_t count;
	tutti_type type;
};

static void take_larger(const tutti_update_piece *p)
{
	const double *w = p->w, *d = p->d;
	double *to = p->to;

	for (size_t i = 0; i < p->count; i++)
		to[i] = w[i] > d[i] ? w[i] : d[i];
}

static void meet_halfway(tutti_type type, void *local, const void *given, size_t count, void *arg)
{
	struct merged *m = arg;
	const double *from = given;
	double *x = local;

	for (size_t i = 0; i < count; i++)
		x[i] = (x[i] + from[i]) / 2;
	m->count += count;
	m->type = type;
}

static void program_own(tutti *job)
{
	enum { N = 5000 };
	int n = tutti_size(job), me = tutti_rank(job);
	double x[N];
	struct merged merged = { 0, TUTTI_I32 };
	tutti_center *c;

	fill(x, N, 0);
	c = open_flat(job, x, N, tutti_center_own(1, tutti_own(take_larger, NULL, 0), meet_halfway, &merged));
	fill(x, N, me == n - 1 ? 8 : -4);
	if (me == n - 1)
		CHECK(tutti_center_step(c, NULL) == 1 && all_are(x, N, 8) && merged.count == N &&
		      merged.type == TUTTI_F64);
	meet(job);
	if (me != n - 1)
		CHECK(tutti_center_step(c, NULL) == 1 && all_are(x, N, 2) && merged.count == N);
	close_center(job, c);
	fill(x, N, 1);
	/* what is given becomes the params */
	c = open_flat(job, x, N, tutti_center_own(1, tutti_assign(), NULL, NULL));
	fill(x, N, 3);
	CHECK(tutti_center_step(c, NULL) == 1 && all_are(x, N, 3));
	close_center(job, c);
}

static void test_own(void) { on_wires(program_own, (const int[]){ 1, 3, 0 }); }

/* ---- momentum, with two tensors ---- */

static void program_momentum(tutti *job)
{
	double x = 1, y[2] = { 2, 3 }, gx, gy[2];
	const tutti_tensor list[] = { { &x, 1, TUTTI_F64 }, { y, 2, TUTTI_F64 } },
			   g[] = { { &gx, 1, TUTTI_F64 }, { gy, 2, TUTTI_F64 } };
	tutti_center *c = open_list(job, list, 2, WITH(tutti_center_easgd(10, 0.5), it.momentum = 0.5));

	CHECK(tutti_center_ahead(c, g) == 0 && gx == 1 && gy[1] == 3); /* v is 0 */
	CHECK(tutti_center_move(c, g, 0.25) == 0 && x == 0.75 && y[0] == 1.5 && y[1] == 2.25); /* v = -g / 4 */
	CHECK(tutti_center_ahead(c, g) == 0 && gx == 0.75 - 0.125 && gy[0] == 1.5 - 0.25 && gy[1] == 2.25 - 0.375);
	gx = gy[0] = gy[1] = 0;
	CHECK(tutti_center_move(c, g, 0.25) == 0 && x == 0.75 - 0.125 && y[1] == 2.25 - 0.375);
	CHECK(tutti_center_move(c, list, 1) == 0); /* a list like any other */
	CHECK(tutti_center_move(c, NULL, 1) == -EINVAL &&
	      tutti_center_ahead(c, &(tutti_tensor){ &gx, 3, TUTTI_F64 }) == -EINVAL);
	close_center(job, c);
}

static void test_momentum(void) { on_wires(program_momentum, (const int[]){ 2, 0 }); }

/* ---- a tester reads a center while others exchange ---- */

enum { TESTED = 60000, READS = 20 };

static atomic_int reading;

/* Each push adds 1 to all elements: of a consistent center each server's are alike. */
static void read_on(tutti *job, tutti_center *c, double *to)
{
	tutti_versions v = { 0 };
	const tutti_tensor list = { to, TESTED, TUTTI_F64 };
	uint64_t newest = 0;
	int servers = tutti_size(job) - 1;

	for (int i = 0; i < READS; i++) {
		CHECK(tutti_center_read(c, &list, &v) == 0 && v.newest >= newest);
		newest = v.newest;
		int steps = 0;
		for (size_t k = 1; k < TESTED; k++)
			steps += to[k] != to[k - 1];
		CHECK(steps < servers && to[0] >= 0);
	}
	CHECK(tutti_center_read(c, &list, NULL) == 0);
	CHECK(tutti_center_exchange(c, NULL) == -EPERM); /* it is no worker */
}

static void program_tester(tutti *job)
{
	const int others[] = { 0, 1, 2, 3 };
	int n = tutti_size(job), me = tutti_rank(job);
	double *x = calloc(TESTED, sizeof *x);
	tutti_center *c = open_flat(job, x, TESTED,
	                            WITH(tutti_center_asgd(1), it.snapshots = 1, it.servers = it.workers = n - 1,
	                                 it.server = it.worker = others));

	if (me == 0)
		reading = 1;
	meet(job);
	if (me == n - 1) {
		read_on(job, c, x);
		reading = 0;
	} else {
		while (reading) {
			for (size_t i = 0; i < TESTED; i++)
				x[i] += 1;
			CHECK(tutti_center_step(c, NULL) == 1);
			pass_time(TT_MS);
		}
	}
	close_center(job, c);
	free(x);
}

static void test_tester(void) { on_wires(program_tester, (const int[]){ 2, 4, 0 }); }

/* ---- refused ---- */

/* The words are looked for at once: what the barrier meets may be the last error then. */
static void refuse_with(tutti *job, tutti_center_config config, const char *word, const char *other)
{
	double x = 0;
	tutti_center *c = NULL;

	CHECK(tutti_center_open(job, "model", &(tutti_tensor){ &x, 1, TUTTI_F64 }, 1, &config, &c) == -EINVAL);
	CHECK(!c && strstr(tutti_why(), word) && strstr(tutti_why(), other));
	meet(job);
}

static void refuse(tutti *job, tutti_center_config config, const char *word)
{
	refuse_with(job, config, word, "");
}

static void refuse_list(tutti *job, const tutti_tensor *list, int n, int err)
{
	tutti_center_config config = tutti_center_asgd(1);
	tutti_center *c = NULL;

	CHECK(tutti_center_open(job, "model", list, n, &config, &c) == err && !c);
	meet(job);
}

/* Each rank has something else than the others. */
static void refuse_differences(tutti *job)
{
	bool other = tutti_rank(job) == 1;
	const int server = other;
	double x[6] = { 0 };
	const tutti_tensor list[] = { { x, other ? 4 : 2, TUTTI_F64 }, { x, other ? 2 : 4, TUTTI_F64 } };

	refuse_list(job, list, 2, -EINVAL);
	CHECK(strstr(tutti_why(), "tensor 0 has 4 f64 on rank 1, and 2 f64 on rank 0"));
	refuse(job, tutti_center_downpour(1, other), other ? "average is 0 on rank 0" : "average is 1 on rank 1");
	refuse(job, other ? tutti_center_own(1, tutti_accumulate(), NULL, NULL) : tutti_center_asgd(1),
	       other ? "kind is delta on rank 0" : "kind is own on rank 1");
	refuse(job, tutti_center_outer(1, other ? 0.5 : 0.25, NAN), other ? "learning_rate is 0.25 on rank 0" :
	                                                                   "learning_rate is 0.5 on rank 1");
	refuse(job, other ? tutti_center_downpour(1, 0) : tutti_center_asgd(1),
	       other ? "consistency.mode is ASYNC on rank 0" : "consistency.mode is BSP on rank 1");
	refuse(job, WITH(tutti_center_downpour(1, 0), it.consistency.backup = other),
	       other ? "consistency.backup is 0 on rank 0" : "consistency.backup is 1 on rank 1");
	refuse(job, WITH(tutti_center_asgd(1), it.updater = other ? tutti_sgd(1) : tutti_accumulate()),
	       other ? "rule is add on rank 0" : "rule is sgd on rank 1");
	refuse_with(job, WITH(tutti_center_asgd(1), it.servers = 1, it.server = &server), "as servers than this",
	            "center \"model\"");
	refuse(job, tutti_center_outer(1 + other, NAN, NAN), other ? "tau is 1 on rank 0" : "tau is 2 on rank 1");
}

static void program_refused(tutti *job)
{
	tutti_center_config config = tutti_center_asgd(1);
	const int none_such = -1;
	double x = 0;
	float f = 0;
	int32_t i = 0;
	const tutti_tensor mixed[] = { { &x, 1, TUTTI_F64 }, { &f, 1, TUTTI_F32 } }, whole = { &i, 1, TUTTI_I32 },
			   none = { NULL, 0, TUTTI_F32 };
	tutti_center *c = NULL;

	refuse(job, tutti_center_easgd(0, 0.5), "tau");
	refuse(job, tutti_center_easgd(1, -1), "alpha is -1, and must be");
	refuse(job, tutti_center_easgd(10, 2), "alpha is 2, and must be above 0 and at most 1");
	refuse(job, WITH(tutti_center_asgd(1), it.servers = 1, it.server = &none_such), "center \"model\": server 0");
	refuse(job, WITH(tutti_center_easgd(1, 0.5), it.consistency.mode = TUTTI_BSP), "asynchronous");
	refuse(job, WITH(tutti_center_easgd(1, 0.5), it.updater = tutti_sgd(1)), "rule");
	refuse(job, WITH(tutti_center_asgd(1), it.updater = tutti_elastic(1)), "rule");
	refuse(job, WITH(tutti_center_easgd(1, 0.5), it.average = 1), "averaged");
	refuse(job, WITH(tutti_center_asgd(1), it.merge = meet_halfway), "merges");
	refuse(job, WITH(tutti_center_asgd(1), it.momentum = 1), "momentum");
	refuse(job, WITH(tutti_center_asgd(1), it.kind = (tutti_center_kind)7), "kind");
	refuse(job, WITH(tutti_center_asgd(1), it.workers = 1), "workers");
	refuse_list(job, mixed, 2, -ENOTSUP);
	refuse_list(job, &whole, 1, -ENOTSUP);
	refuse_list(job, &none, 1, -EINVAL);
	refuse_list(job, mixed, 0, -EINVAL);
	refuse_differences(job);
	CHECK(tutti_center_open(NULL, "model", mixed, 1, &config, &c) == -EINVAL);
	CHECK(tutti_center_open(job, "model", mixed, 1, NULL, &c) == -EINVAL);
	CHECK(tutti_center_step(NULL, NULL) == -EINVAL && tutti_center_pull(NULL) == -EINVAL &&
	      !tutti_center_table(NULL));
	tutti_center_close(NULL);
	config.tau = tutti_rank(job) == 1 ? 0 : 1; /* one rank's fault is all ranks' */
	CHECK(tutti_center_open(job, "model", mixed, 1, &config, &c) ==
	              (tutti_rank(job) == 1 ? -EINVAL : -ECONNABORTED) &&
	      !c);
	meet(job);
	c = open_flat(job, &x, 1, tutti_center_asgd(1));
	CHECK(tutti_center_read(c, mixed, NULL) == -EINVAL && strstr(tutti_why(), "versions"));
	CHECK(tutti_center_read(c, &mixed[1], NULL) == -EINVAL && tutti_center_read(c, NULL, NULL) == -EINVAL);
	CHECK(tutti_center_ahead(c, mixed) == -EINVAL && strstr(tutti_why(), "momentum"));
	close_center(job, c);
}

/* A program that needs tutti run, and was started by itself. */
static void program_alone(tutti *job)
{
	const int two[] = { 0, 1 };
	const char *hint = "is it started by tutti run?";

	refuse(job, WITH(tutti_center_asgd(1), it.servers = 2, it.server = two), hint);
	refuse(job, WITH(tutti_center_asgd(1), it.servers = 1, it.server = two + 1), hint);
	refuse(job, WITH(tutti_center_asgd(1), it.workers = 1, it.worker = two + 1), "worker 0 is rank 1, which is no");
	refuse(job, WITH(tutti_center_asgd(1), it.workers = 1, it.worker = two + 1), hint);
}

static void test_refused(void)
{
	on_wires(program_refused, (const int[]){ 2, 0 });
	CU_ASSERT_EQUAL(run_on_sim(1, 1, 0, program_alone), 0);
}

/* ---- a worker leaves, and joins again ---- */

static atomic_int have_seen; /* ranks that the late one has drawn away */

static void program_late(tutti *job)
{
	const int server = 0;
	const tutti_center_config config = WITH(tutti_center_easgd(1, 0.5), it.servers = 1, it.server = &server);
	int last = tutti_size(job) - 1;
	double x = 0;
	tutti_center *c = open_flat(job, &x, 1, config);
	tutti *again = NULL;
	bool good;

	have_seen = 0;
	meet(job);
	if (tutti_rank(job) == last) {
		tutti_center_close(c);
		CHECK(join_again(job, last, &again) == 0);
		x = -1;
		CHECK(tutti_center_open(tutti_job(again), "model", &(tutti_tensor){ &x, 1, TUTTI_F64 }, 1, &config,
		                        &c) == 0);
		CHECK(x >= 0); /* as the center is */
		x = 1000;
		CHECK(tutti_center_step(c, NULL) == 1 && x < 1000);
		tutti_center_close(c);
		tutti_leave(again);
		return;
	}
	/* Until the last rank has come, and has drawn the center to 500 at least; another rank may take half of that
	 * along. */
	do {
		x += x < 100 ? 1 : 0;
		CHECK((good = tutti_center_step(c, NULL) == 1));
		pass_time(TT_MS);
	} while (good && x < 110);
	for (have_seen++; tutti_rank(job) == server && have_seen < last;) /* the others need it */
		pass_time(TT_MS);
	pass_time(50 * TT_MS);
	tutti_center_close(c);
}

static void test_late(void) { on_wires(program_late, (const int[]){ 2, 3, 0 }); }

/* ---- ranks die ---- */

enum { MODEL = 20000, FOR = 40, PAUSE_MS = 100, GO_ON_MS = 2000 };

static int victim, left;
static const int all_ranks[] = { 0, 1, 2, 3 };

/* Ranks 0 and 1 serve; a worker dies at any moment, and nobody waits for it. */
static void program_worker_dies(tutti *job)
{
	double *x = calloc(MODEL, sizeof *x);
	tutti_center *c =
		open_flat(job, x, MODEL, WITH(tutti_center_easgd(1, NAN), it.servers = 2, it.server = all_ranks));
	int me = tutti_rank(job);

	meet(job);
	if (me == victim)
		tt_sim_kill(me, TT_MS + tt_sim_chance(20 * TT_MS));
	for (int i = 0; i < FOR; i++) {
		uint64_t began = tt_now();
		x[0] += 1;
		int err = tutti_center_step(c, NULL);
		CHECK(me == victim || (err == 1 && tt_now() - began < PAUSE_MS * TT_MS));
		pass_time(TT_MS);
	}
	left -= me != victim;
	while (left)
		pass_time(TT_MS);
	tutti_center_close(c);
	free(x);
}

static void go_on(tutti *job, tutti_center *c, double *x, tutti_center_config config)
{
	const tutti_tensor list = { x, MODEL, TUTTI_F64 };
	uint64_t began = tt_now();
	tutti *rest = NULL;
	double mean = x[0];

	tutti_center_close(c);
	CHECK(tutti_group_shrink(job, &rest) == 0);
	if (!rest)
		return;
	CHECK(tutti_size(rest) == tutti_size(job) - 1);
	CHECK(tutti_allreduce(rest, &mean, &mean, 1, TUTTI_F64, TUTTI_AVERAGE, NULL) == 0);
	CHECK(tutti_allreduce_tensors(rest, &list, 1, TUTTI_AVERAGE, NULL) == 0);
	CHECK(tutti_center_open(rest, "model", &list, 1, &config, &c) == 0);
	/* sums are rounded */
	CHECK(fabs(x[0] - mean) < 1e-9 * fabs(mean) && fabs(x[MODEL - 1] - mean) < 1e-9 * fabs(mean));
	CHECK(tutti_center_step(c, NULL) == 1);
	CHECK(tt_now() - began < GO_ON_MS * TT_MS);
	close_center(rest, c);
	tutti_group_free(rest);
}

/* All ranks serve and work. Elastic or in rounds: the named error comes, and the others go on with their mean. */
static void program_server_dies(tutti *job)
{
	double *x = calloc(MODEL, sizeof *x);
	bool rounds = (victim + tutti_size(job)) % 2;
	tutti_center_config config = rounds ? tutti_center_downpour(1, 1) : tutti_center_easgd(1, NAN);
	tutti_center *c = open_flat(job, x, MODEL, config);
	int err = 0, me = tutti_rank(job), i = 0;

	meet(job);
	if (me == victim)
		tt_sim_kill(me, TT_MS + tt_sim_chance(20 * TT_MS));
	for (; err >= 0 && i < 4000; i++) {
		double before = x[0] + 1;
		fill(x, MODEL, before);
		err = tutti_center_step(c, NULL);
		CHECK(err == 1 || me == victim || x[0] == before); /* params are as they were */
		pass_time(TT_MS);
	}
	if (me == victim) {
		tutti_center_close(c);
	} else {
		CHECK(err == -ECONNRESET || err == -ESTALE); /* the latter: another has closed its part already */
		go_on(job, c, x, config);
	}
	free(x);
}

static void test_deaths(void)
{
	for (uint64_t seed = 0; seed < count_seeds(DEATHS); seed++) {
		victim = 1 + (int)(seed % 3);
		left = 3;
		CU_ASSERT_EQUAL(
			run_ranks((struct ranks){ .size = 4,
		                                  .wire = "sim",
		                                  .seed = seed,
		                                  .timeout_ms = 5000,
		                                  .program = victim > 1 ? program_worker_dies : program_server_dies }),
			0);
		victim = (int)(seed % 4);
		CU_ASSERT_EQUAL(run_ranks((struct ranks){ .size = 4, .wire = "sim", .seed = seed, .timeout_ms = 5000,
		                                          .program = program_server_dies }),
		                0);
	}
}

/* ---- a save, and back ---- */

static char folder[] = "/tmp/tutti-center-XXXXXX";

static void program_save(tutti *job)
{
	int me = tutti_rank(job);
	double x[100];
	tutti_center *c;

	fill(x, 100, 5);
	c = open_flat(job, x, 100, tutti_center_asgd(1));
	if (me == 0)
		CHECK(tutti_table_save(tutti_center_table(c), folder) == 0);
	meet(job);
	fill(x, 100, 9 + me);
	CHECK(tutti_center_step(c, NULL) == 1 && !all_are(x, 100, 5));
	meet(job);
	if (me == 0)
		CHECK(tutti_table_load(tutti_center_table(c), folder) == 0);
	meet(job);
	CHECK(tutti_center_pull(c) == 0 && all_are(x, 100, 5));
	CHECK(tutti_center_step(c, NULL) == 1 && all_are(x, 100, 5)); /* nothing is counted twice */
	close_center(job, c);
}

static void test_save(void)
{
	CU_ASSERT_PTR_NOT_NULL_FATAL(mkdtemp(folder));
	CU_ASSERT_EQUAL(run_real_ranks((struct ranks){ .size = 3, .program = program_save }), 0);
	clear_folder(folder);
	rmdir(folder);
}

static CU_TestInfo tests[] = {
	{ "lists of tensors", test_lists },
	{ "alpha follows the workers", test_auto },
	{ "rounds", test_rounds },
	{ "an exchange made again", test_again },
	{ "a job that goes on", test_goes_on },
	{ "schedules", test_schedules },
	{ "started exchanges", test_started },
	{ "deltas in bf16", test_bf16 },
	{ "own rules", test_own },
	{ "momentum", test_momentum },
	{ "a tester", test_tester },
	{ "refused", test_refused },
	{ "a late worker", test_late },
	{ "deaths", test_deaths },
	{ "a save", test_save },
	CU_TEST_INFO_NULL,
};
static CU_SuiteInfo suites[] = { { "centers", NULL, NULL, NULL, NULL, tests }, CU_SUITE_INFO_NULL };

int main(int argc, char **argv) { return run_suites(suites, argc, argv); }
