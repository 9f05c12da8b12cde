/* unit_sync.c - all-reduce SGD and synchronous elastic averaging against plain loops: several types, uneven ends,
 * gradients that become ready in any order; and ranks that are killed in each call. On sim over seeds, over TCP and in
 * shared memory. */
#include "average/average_private.h"
#include "operation/operation.h"
#include "tests/harness/cunit_main.h"
#include "tests/harness/folders.h"
#include "tests/harness/ranks.h"
#include <math.h>

enum { SEEDS = TT_TSAN ? 2 : 6, FAULT_SEEDS = TT_TSAN ? 20 : 100 };

static void on_wires(void (*program)(tutti *), int size)
{
	for (uint64_t seed = 0; seed < SEEDS; seed++)
		CU_ASSERT_EQUAL(
			run_ranks((struct ranks){ .size = size, .wire = "sim", .seed = seed, .program = program }), 0);
	CU_ASSERT_EQUAL(run_real_ranks((struct ranks){ .size = size, .program = program }), 0);
}

/* ---- models ---- */

enum { TENSORS = 7 };
static const struct { size_t count; tutti_type type;
} shape[TENSORS] = {
	{ 5, TUTTI_F32 },   { 70000, TUTTI_F32 }, { 0, TUTTI_F64 },    { 1000, TUTTI_BF16 },
	{ 33, TUTTI_BF16 }, { 1, TUTTI_F64 },     { 9000, TUTTI_F16 },
};

static void make_model(tutti *job, tutti_tensor *t)
{
	for (int i = 0; i < TENSORS; i++) {
		t[i] = (tutti_tensor){ NULL, shape[i].count, shape[i].type };
		if (shape[i].count && i % 2)
			CHECK(tutti_alloc(job, shape[i].count * 8, -1, &t[i].data) == 0);
		else if (shape[i].count)
			t[i].data = calloc(shape[i].count, 8);
	}
}

static void free_model(tutti *job, tutti_tensor *t)
{
	for (int i = 0; i < TENSORS; i++)
		if (i % 2)
			tutti_free(job, t[i].data);
		else
			free(t[i].data);
}

static float half_float(uint16_t h) /* f16; normal numbers and 0 */
{
	return h & 0x7fff ? ldexpf((float)(1024 + (h & 1023)), (h >> 10 & 31) - 25) * (h >> 15 ? -1.0f : 1.0f) : 0;
}

static uint16_t float_half(float x) /* exact ones */
{
	int e;
	float m = frexpf(fabsf(x), &e);

	return (uint16_t)(x == 0 ? 0 : (x < 0) << 15 | (e + 14) << 10 | ((int)(m * 2048) & 1023));
}

static double get(const tutti_tensor *t, size_t i)
{
	uint32_t bits = t->type == TUTTI_BF16 ? (uint32_t)((uint16_t *)t->data)[i] << 16 : 0;
	float f;

	memcpy(&f, &bits, sizeof f);
	return t->type == TUTTI_F32 ? (double)((float *)t->data)[i] : t->type == TUTTI_F64 ? ((double *)t->data)[i] :
	       t->type == TUTTI_F16 ? (double)half_float(((uint16_t *)t->data)[i]) : (double)f;
}

static void set(tutti_tensor *t, double x) /* all of it: a number that each type has */
{
	float f = (float)x;
	uint32_t bits;

	memcpy(&bits, &f, sizeof bits);
	for (size_t i = 0; i < t->count; i++)
		if (t->type == TUTTI_F64)
			((double *)t->data)[i] = x;
		else if (t->type == TUTTI_F32)
			((float *)t->data)[i] = f;
		else
			((uint16_t *)t->data)[i] = t->type == TUTTI_F16 ? float_half(f) : (uint16_t)(bits >> 16);
}

static bool holds(const tutti_tensor *t, double x)
{
	double tolerance = t->type == TUTTI_F64   ? 1e-14
	                   : t->type == TUTTI_F32 ? 1e-6
	                   : t->type == TUTTI_F16 ? 1e-3
	                                          : 1e-2;

	for (size_t i = 0; i < t->count; i++)
		if (fabs(get(t, i) - x) > tolerance * fabs(x))
			return false;
	return true;
}

/* ---- all-reduce SGD ---- */

static size_t bucket_bytes;

/* Epoch 1: rank 1 has most, 2: rank 0; in both together, rank 1. The last has none. */
static int steps_of(int rank, int size, int epoch)
{
	return rank == size - 1 ? 0 : 2 + (rank == 1) * 4 + (epoch == 2) * (rank == 0) * 5;
}

static void make_ready(tutti_gradients *g, int rank, int step)
{
	switch ((rank + step) % 3) {
	case 0: return; /* says nothing */
	case 1:
		for (int i = TENSORS - 1; i >= 0; i--)
			CHECK(tutti_gradients_ready(g, i) == 0);
		return;
	default:
		for (int i = 0; i < TENSORS; i++)
			CHECK(tutti_gradients_ready(g, (i * 3 + step) % TENSORS) == 0);
	}
}

static void take_steps(tutti *job, tutti_gradients *g, tutti_tensor *grads, int epoch, bool average)
{
	int rank = tutti_rank(job), n;

	for (int step = 0; step < steps_of(rank, tutti_size(job), epoch); step++) {
		int contributors = 0, sum = 0;
		for (int r = 0; r < tutti_size(job); r++)
			if (step < steps_of(r, tutti_size(job), epoch)) {
				contributors++;
				sum += r + step + epoch;
			}
		for (int i = 0; i < TENSORS; i++)
			set(&grads[i], rank + step + epoch);
		if (step)
			make_ready(g, rank, step);
		CHECK((average ? tutti_gradients_average(g, &n) : tutti_gradients_sum(g, &n)) == 0);
		CHECK(n == contributors);
		for (int i = 0; i < TENSORS; i++)
			CHECK(holds(&grads[i], average ? (double)sum / contributors : sum));
	}
}

static void sgd(tutti *job)
{
	int rank = tutti_rank(job), whole[3] = { rank, 10 + rank, 20 + rank }, winner = tutti_size(job) > 2 ? 1 : 0;
	double part[400];
	tutti_tensor grads[TENSORS],
		params[] = { { whole, 3, TUTTI_I32 }, { NULL, 0, TUTTI_F32 }, { part, TT_COUNT(part), TUTTI_F64 } };
	tutti_gradients *g;

	for (size_t i = 0; i < TT_COUNT(part); i++)
		part[i] = rank + (double)i / 3;
	make_model(job, grads);
	CHECK(tutti_gradients_open(job, grads, TENSORS, bucket_bytes, &g) == 0);
	CHECK(tutti_gradients_synchronize(g, params, 3) == 0);
	CHECK(whole[0] == 0 && whole[2] == 20 && part[399] == 133);
	take_steps(job, g, grads, 1, true);
	part[7] = whole[1] = rank;
	CHECK(tutti_gradients_synchronize(g, params, 3) == 0);
	CHECK(whole[1] == winner && part[7] == winner);
	take_steps(job, g, grads, 2, false);
	whole[1] = rank;
	CHECK(tutti_gradients_synchronize(g, params, 3) == 0);
	CHECK(whole[1] == 0);
	tutti_gradients_close(g);
	free_model(job, grads);
}

static void test_sgd(void)
{
	const size_t sizes[] = { 1, 5000, 0 };

	for (size_t i = 0; i < TT_COUNT(sizes); i++) {
		bucket_bytes = sizes[i];
		on_wires(sgd, 1 + (int)i);
		on_wires(sgd, 4 + (int)i % 2);
	}
}

static uint64_t count_reduced(tutti *job)
{
	tutti_stat s = { 0 };

	CHECK(tutti_stats(job, -1, TUTTI_STAT_ALLREDUCE, &s) == 0);
	return s.ops;
}

/* The last tensor is summed, behind the count of the ranks, while the program has not said that the first is ready. */
static void in_background(tutti *job)
{
	float first[8] = { 1 }, last[8] = { 1 };
	tutti_tensor t[] = { { first, 8, TUTTI_F32 }, { last, 8, TUTTI_F32 } };
	tutti_gradients *g;

	CHECK(tutti_gradients_open(job, t, 2, 1, &g) == 0);
	for (int step = 0; step < 3; step++) {
		first[0] = last[0] = 1;
		const uint64_t before = count_reduced(job);
		CHECK(tutti_gradients_ready(g, 1) == 0);
		for (int i = 0; step && i < 2000 && count_reduced(job) < before + 2; i++)
			pass_time(5 * TT_MS);
		CHECK(!step || (count_reduced(job) == before + 2 && last[0] == 3));
		CHECK(first[0] == 1);
		CHECK(tutti_gradients_sum(g, NULL) == 0);
		CHECK(first[0] == 3 && last[0] == 3);
	}
	tutti_gradients_close(g);
}

static void test_background(void) { on_wires(in_background, 3); }

/* More buckets, and more runs of one type, than a group takes collectives at a time. */
static void sum_many(tutti *job)
{
	enum { MANY = 1500 };
	float *x = calloc(MANY, sizeof *x);
	double *y = calloc(MANY, sizeof *y);
	tutti_tensor *grads = calloc(MANY, sizeof *grads), *params = calloc(MANY, sizeof *params);
	tutti_op op = { 0 };
	tutti_gradients *g;
	tutti_ea *ea;

	for (int i = 0; i < MANY; i++) {
		x[i] = y[i] = (float)tutti_rank(job);
		grads[i] = (tutti_tensor){ &x[i], 1, TUTTI_F32 };
		params[i] = i % 2 ? grads[i] : (tutti_tensor){ &y[i], 1, TUTTI_F64 };
	}
	CHECK(tutti_ea_open(job, params, MANY, 1, 0.5, 0, &ea) == 0 && tutti_ea_step(ea, NULL) == 1);
	CHECK(tutti_rank(job) || tutti_ea_step(ea, NULL) == 1);
	CHECK(tutti_ea_synchronize_start(ea, &op) == 0 && tutti_wait(&op, -1) == 0);
	CHECK(tutti_ea_synchronize_apply(ea) == 0);
	tutti_ea_close(ea);
	CHECK(tutti_gradients_open(job, grads, MANY, 1, &g) == 0);
	for (int step = 0; step < 2; step++) {
		for (int i = MANY - 1; i >= 0; i--) {
			x[i] = (float)(i + tutti_rank(job));
			CHECK(tutti_gradients_ready(g, i) == 0);
		}
		CHECK(tutti_gradients_sum(g, NULL) == 0);
		for (int i = 0; i < MANY; i++)
			CHECK(x[i] == (float)(2 * i + 1));
	}
	tutti_gradients_close(g);
	free(grads);
	free(params);
	free(x);
	free(y);
}

static void test_many(void)
{
	CU_ASSERT_EQUAL(run_ranks((struct ranks){ .size = 2, .wire = "sim", .program = sum_many }), 0);
	CU_ASSERT_EQUAL(run_ranks((struct ranks){ .size = 2, .wire = "shm", .program = sum_many }), 0);
}

/* ---- lists that differ; buckets as they come; the norm; other memory; bf16 on the wire ---- */

static void refuse_lists(tutti *job)
{
	float x[8];
	double y[8];
	bool odd = tutti_rank(job) == 1;
	tutti_tensor t[] = { { x, 2, TUTTI_F32 }, { x + 2, 3, TUTTI_F32 } };
	tutti_gradients *g;
	tutti_ea *ea;

	CHECK(tutti_gradients_open(job, t, 2 - odd, 0, &g) == -EINVAL);
	CHECK(strstr(tutti_why(), "tensors is 1 on rank 1") && strstr(tutti_why(), "and 2 on rank 0"));
	CHECK(tutti_gradients_open(job, t, 2, 8 + odd, &g) == -EINVAL && strstr(tutti_why(), "bucket_bytes is"));
	t[1].count += odd;
	CHECK(tutti_ea_open(job, t, 2, 1, 0.5, 0, &ea) == -EINVAL);
	CHECK(strstr(tutti_why(), "tensor 1 has 4 f32 on rank 1") && strstr(tutti_why(), "and 3 f32 on rank 0"));
	t[1] = (tutti_tensor){ odd ? (void *)y : x + 2, 3, odd ? TUTTI_F64 : TUTTI_F32 };
	CHECK(tutti_gradients_open(job, t, 2, 0, &g) == -EINVAL);
	CHECK(strstr(tutti_why(), "tensor 1 has 3 f64 on rank 1") && strstr(tutti_why(), "and 3 f32 on rank 0"));
	CHECK(tutti_gradients_open(job, t, odd ? 0 : 2, 0, &g) == (odd ? -EINVAL : -ECONNABORTED));
	CHECK(tutti_gradients_open(job, t, 1, 0, &g) == 0);
	tutti_gradients_close(g);
}

static void test_lists(void) { on_wires(refuse_lists, 3); }

/* Three buckets, the last tensors first; each is the program's as soon as it has come. */
static void take_buckets(tutti *job)
{
	float x[4][3], other[4][3];
	tutti_tensor t[4], moved[4];
	int n = tutti_size(job), first, count, end;
	tutti_op op = { 0 };
	tutti_gradients *g;
	double norm;

	for (int i = 0; i < 4; i++) {
		t[i] = (tutti_tensor){ x[i], 3, TUTTI_F32 };
		moved[i] = (tutti_tensor){ other[i], i == 3 ? 2 : 3, TUTTI_F32 };
	}
	CHECK(tutti_gradients_open(job, t, 4, 24, &g) == 0);
	CHECK(tutti_gradients_next(g, &first, &count) == -EINVAL);
	CHECK(tutti_gradients_move(g, moved, 4) == -EINVAL && tutti_gradients_move(g, moved, 3) == -EINVAL);
	moved[3].count = 3;
	for (int step = 0; step < 3; step++) {
		if (step == 1 && tutti_rank(job) == 0)
			CHECK(tutti_gradients_move(g, moved, 4) == 0);
		tutti_tensor *at = step && tutti_rank(job) == 0 ? moved : t;
		for (int i = 0; i < 4; i++)
			for (int k = 0; k < 3; k++)
				((float *)at[i].data)[k] = (float)(tutti_rank(job) + i);
		CHECK(tutti_gradients_average_start(g, &op) == 0);
		CHECK(tutti_gradients_norm(g, &norm) == -EALREADY);
		for (end = 4; tutti_gradients_next(g, &first, &count) == 0 && count; end = first) {
			CHECK(count == 2 && first == end - 2);
			for (int i = first; i < end; i++)
				CHECK(((float *)at[i].data)[2] == (float)(n - 1) / 2 + (float)i);
		}
		CHECK(end == 0 && tutti_wait(&op, -1) == 0 && tutti_gradients_apply(g, &count) == 0 && count == n);
	}
	tutti_gradients_close(g);
}

static void test_buckets(void) { on_wires(take_buckets, 3); }

/* All ranks get the same bits, those of a plain sum but for its last ones. */
static void find_norm(tutti *job)
{
	tutti_tensor grads[TENSORS];
	double norm, all[16], sum = 0;
	tutti_gradients *g;

	make_model(job, grads);
	CHECK(tutti_gradients_open(job, grads, TENSORS, 0, &g) == 0);
	for (int i = 0; i < TENSORS; i++)
		set(&grads[i], tutti_rank(job) + i);
	CHECK(tutti_gradients_ready(g, 0) == 0 && tutti_gradients_norm(g, &norm) == -EINVAL);
	CHECK(tutti_gradients_average(g, NULL) == 0 && tutti_gradients_norm(g, &norm) == 0);
	for (int i = 0; i < TENSORS; i++)
		for (size_t k = 0; k < grads[i].count; k++)
			sum += get(&grads[i], k) * get(&grads[i], k);
	CHECK(fabs(norm - sqrt(sum)) <= 1e-12 * norm);
	CHECK(tutti_allgather(job, &norm, sizeof norm, all, NULL) == 0);
	for (int r = 0; r < tutti_size(job); r++)
		CHECK(!memcmp(&all[r], &norm, sizeof norm));
	for (int bad = 0; bad < 2; bad++) {
		set(&grads[0], bad ? INFINITY : NAN);
		CHECK(tutti_gradients_norm(g, &norm) == 0 && !isfinite(norm));
	}
	CHECK(tutti_gradients_norm(g, NULL) == -EINVAL && tutti_gradients_norm(NULL, &norm) == -EINVAL);
	tutti_gradients_close(g);
	free_model(job, grads);
}

static void test_norm(void) { on_wires(find_norm, 3); }

/* 1 + 2^-10 is halfway between no two numbers of bf16: each step alone gives 1. */
static void feed_back(tutti *job)
{
	enum { STEPS = 64, N = 37 };
	const float given = 1 + 0x1p-10f;
	float x[N], y[2];
	double wide[3] = { 0 }, sum = 0;
	tutti_tensor t[] = { { x, N, TUTTI_F32 }, { wide, 3, TUTTI_F64 }, { y, 2, TUTTI_F32 } };
	tutti_gradients *g;
	int n;

	CHECK(tutti_gradients_open(job, t, 3, 0, &g) == 0);
	CHECK(tutti_gradients_bf16(g, 1) == 0 && tutti_gradients_bf16(g, 1) == 0);
	for (int step = 0; step < STEPS; step++) {
		for (int i = 0; i < N; i++)
			x[i] = given;
		y[0] = y[1] = step == 3 ? INFINITY : 2;
		wide[2] = 1 + 0x1p-40;
		CHECK(tutti_gradients_average(g, &n) == 0 && n == tutti_size(job));
		sum += (double)x[N - 1];
		CHECK(x[0] == x[N - 1] && (x[0] == 1 || x[0] == 1 + 0x1p-7f));
		CHECK(step == 3 ? isinf(y[1]) : y[1] == 2);
		CHECK(wide[2] == 1 + 0x1p-40);
	}
	CHECK(fabs(sum / STEPS - (double)given) <= 0x1p-8 / STEPS);
	CHECK(tutti_gradients_ready(g, 0) == 0 && tutti_gradients_bf16(g, 0) == -EINVAL);
	CHECK(tutti_gradients_average(g, NULL) == 0 && tutti_gradients_bf16(g, 0) == 0);
	CHECK(tutti_gradients_bf16(g, 1) == 0);
	for (int step = 0; tutti_rank(job) == 0 && step < 2; step++) { /* the others give zeros */
		x[5] = 2;
		CHECK(tutti_gradients_average(g, &n) == 0 && n == 1 && x[5] == 2);
	}
	CHECK(tutti_gradients_synchronize(g, t, 1) == 0);
	if (tutti_rank(job) == 1)
		CHECK(tutti_gradients_bf16(g, 0) == 0);
	CHECK(tutti_gradients_average(g, NULL) == -EBADMSG);
	CHECK(strstr(tutti_why(), "f32") && strstr(tutti_why(), "bf16"));
	tutti_gradients_close(g);
}

static void test_feedback(void) { on_wires(feed_back, 2); }

static void refuse_gradients(tutti *job)
{
	float x = 1, y = 1;
	int32_t k = 1;
	tutti_tensor t[] = { { &x, 1, TUTTI_F32 }, { &y, 1, TUTTI_F32 } }, whole = { &k, 1, TUTTI_I32 };
	tutti_gradients *g = NULL;

	CHECK(tutti_gradients_open(job, &whole, 1, 0, &g) == -EINVAL);
	CHECK(tutti_gradients_open(job, t, 0, 0, &g) == -EINVAL && tutti_gradients_open(NULL, t, 2, 0, &g) == -EINVAL);
	CHECK(tutti_gradients_open(job, t, 2, 0, NULL) == -EINVAL && tutti_gradients_sum(NULL, NULL) == -EINVAL && !g);
	CHECK(tutti_gradients_open(job, t, 2, 0, &g) == 0);
	CHECK(tutti_gradients_ready(g, 2) == -EINVAL && tutti_gradients_ready(g, -1) == -EINVAL);
	CHECK(tutti_gradients_ready(g, 0) == 0 && tutti_gradients_ready(g, 0) == -EINVAL);
	CHECK(tutti_gradients_synchronize(g, t, 2) == -EINVAL);
	CHECK(tutti_gradients_average(g, NULL) == 0 && x == 1);
	CHECK(tutti_gradients_ready(g, 0) == 0 && tutti_gradients_ready(g, 1) == 0);
	CHECK(tutti_gradients_sum(g, NULL) == -EINVAL && strstr(tutti_why(), "tutti_gradients_average"));
	CHECK(tutti_gradients_average(g, NULL) == 0);
	CHECK(tutti_gradients_synchronize(g, t, 0) == -EINVAL);
	CHECK(tutti_gradients_synchronize(g, t, 2) == 0);
	tutti_gradients_close(g);
	tutti_gradients_close(NULL);
}

static void test_refused_gradients(void) { on_wires(refuse_gradients, 2); }

/* ---- elastic averaging ---- */

enum { RANKS = 4, WIDTH = 40, STEPS = 9 };
static struct { int tau; double alpha; unsigned flags; } as;

static double start_of(int i) { return 0.25 * i - 3; }
static double update_of(int rank, int step, int i) { return sin(rank * 1.7 + step * 0.9 + i * 0.31); }
static int ea_steps_of(int rank, int epoch) { return rank == 2 ? 0 : STEPS - (rank * 3 + epoch * 2) % 7; }

/* One element on all ranks, through the steps of an epoch. x, c: of each rank. */
static void expect_element(int size, int epoch, int i, double *x, double *c)
{
	double alpha = isnan(as.alpha) ? 0.9 / size : as.alpha;
	int step[RANKS] = { 0 }, left = 1;

	while (left) {
		double sum = 0;
		left = 0;
		for (int k = 0; k < size; k++) {
			bool averages = false;
			while (step[k] < ea_steps_of(k, epoch) && !averages) {
				x[k] += update_of(k, step[k], i);
				averages = ++step[k] % as.tau == 0;
			}
			left += averages;
		}
		for (int k = 0; k < size && left; k++) {
			sum += alpha * (x[k] - c[k]);
			x[k] -= alpha * (x[k] - c[k]);
		}
		for (int k = 0; k < size; k++)
			c[k] += sum;
	}
	for (int k = 0; k < size && as.flags & TUTTI_EA_DISTLEARN; k++) /* the move too many */
		if (step[k])
			x[k] -= alpha * (x[k] - c[k]);
}

static void ea_steps(tutti *job, tutti_ea *ea, double *p, float *q, int epoch)
{
	int rank = tutti_rank(job);

	for (int step = 0; step < ea_steps_of(rank, epoch); step++) {
		for (int i = 0; i < WIDTH; i++) {
			p[i] += update_of(rank, step, i);
			q[i] += (float)update_of(rank, step, i);
		}
		CHECK(tutti_ea_step(ea, NULL) == ((step + 1) % as.tau == 0));
	}
}

static void check_elements(const double *p, const float *q, const double (*expected)[WIDTH], int rank)
{
	for (int i = 0; i < WIDTH; i++)
		CHECK(fabs(p[i] - expected[rank][i]) < 1e-10 && fabs((double)q[i] - expected[rank][i]) < 1e-4);
}

static void elastic(tutti *job)
{
	int rank = tutti_rank(job), size = tutti_size(job);
	double p[WIDTH], x[RANKS][WIDTH], c[RANKS][WIDTH], at_x[RANKS], at_c[RANKS];
	float q[WIDTH], none;
	tutti_tensor params[] = { { p, WIDTH, TUTTI_F64 }, { &none, 0, TUTTI_F32 }, { q, WIDTH, TUTTI_F32 } },
		     center[3];
	tutti_ea *ea;

	for (int i = 0; i < WIDTH; i++) {
		p[i] = start_of(i) + rank;
		q[i] = (float)p[i];
	}
	CHECK(tutti_ea_open(job, params, 3, as.tau, as.alpha, as.flags, &ea) == 0);
	CHECK(tutti_ea_synchronize(ea) == 0);
	for (int epoch = 0; epoch < 2; epoch++) {
		ea_steps(job, ea, p, q, epoch);
		if (epoch)
			CHECK(tutti_ea_synchronize(ea) == 0);
		else
			CHECK(tutti_ea_synchronize_center(ea) == 0);
		for (int i = 0; i < WIDTH; i++) {
			for (int k = 0; k < size; k++) {
				at_x[k] = epoch ? x[k][i] : start_of(i);
				at_c[k] = epoch ? c[k][i] : start_of(i);
			}
			expect_element(size, epoch, i, at_x, at_c);
			for (int k = 0; k < size; k++) {
				x[k][i] = epoch ? at_x[0] : at_x[k];
				c[k][i] = epoch ? at_x[0] : at_c[0];
			}
		}
		check_elements(p, q, x, rank);
		CHECK(tutti_ea_center(ea, center) == 0 && center[1].count == 0);
		check_elements(center[0].data, center[2].data, c, rank);
	}
	tutti_ea_close(ea);
}

static void test_elastic(void)
{
	for (as.tau = 1; as.tau <= 4; as.tau++) {
		as.flags = as.tau % 2 ? 0 : TUTTI_EA_DISTLEARN;
		as.alpha = as.tau < 3 ? 0.2 : (double)NAN;
		on_wires(elastic, as.tau == 4 ? 1 : RANKS);
	}
}

/* A program that looks at the center, and so makes the library wait, sees the same bits as one that does not. */
static void look_at_center(tutti *job)
{
	uint16_t a[WIDTH], b[WIDTH];
	tutti_tensor p[] = { { a, WIDTH, TUTTI_BF16 }, { b, WIDTH, TUTTI_BF16 } }, center[2];
	tutti_ea *ea[2];

	for (int i = 0; i < WIDTH; i++)
		a[i] = b[i] = (uint16_t)(0x3f80 + 7 * i + 11 * tutti_rank(job));
	for (int k = 0; k < 2; k++)
		CHECK(tutti_ea_open(job, &p[k], 1, 1, 0.3, 0, &ea[k]) == 0);
	for (int step = 0; step < 8; step++) {
		for (int i = 0; i < WIDTH; i++) {
			a[i] = (uint16_t)(a[i] + step * tutti_rank(job));
			b[i] = (uint16_t)(b[i] + step * tutti_rank(job));
		}
		CHECK(tutti_ea_step(ea[0], NULL) == 1 && tutti_ea_step(ea[1], NULL) == 1);
		CHECK(tutti_rank(job) == 1 || tutti_ea_center(ea[1], &center[1]) == 0);
		CHECK(!memcmp(a, b, sizeof a));
	}
	for (int k = 0; k < 2; k++)
		CHECK(tutti_ea_center(ea[k], &center[k]) == 0);
	CHECK(!memcmp(center[0].data, center[1].data, sizeof a));
	tutti_ea_close(ea[0]);
	tutti_ea_close(ea[1]);
}

/* Each rank's d is less than half of the center's last place. A save and a load in the middle keep what has added up so
 * far; to set the center drops that. */
enum { HALVES = 70 };

static void go_slowly(tutti *job, tutti_type type, const char *path)
{
	int size = tutti_size(job);
	const double alpha = 0.9 / 512, x0 = 1.25;
	uint16_t x[HALVES];
	tutti_tensor p = { x, HALVES, type }, c;
	double expected = 1;
	tutti_ea *ea, *again;

	set(&p, 1);
	CHECK(tutti_ea_open(job, &p, 1, 1, alpha, 0, &ea) == 0);
	CHECK(tutti_ea_center(ea, &c) == 0 && holds(&c, 1)); /* the center begins as x */
	for (int step = 0; step < 200; step++) {
		set(&p, x0);
		CHECK(tutti_ea_step(ea, NULL) == 1);
		if (path && step == 100) {
			CHECK(tutti_ea_save(ea, path) == 0);
			CHECK(tutti_ea_open(job, &p, 1, 1, alpha, 0, &again) == 0);
			CHECK(tutti_ea_load(again, path) == 0);
			tutti_ea_close(ea);
			ea = again;
		}
		expected += size * alpha * (x0 - expected);
	}
	CHECK(tutti_ea_center(ea, &c) == 0);
	for (size_t i = 0; i < HALVES; i++)
		CHECK(fabs(get(&c, i) - expected) <= 0.01);
	CHECK(expected > 1.08);
	set(&c, 1);
	set(&p, x0);
	CHECK(tutti_ea_step(ea, NULL) == 1 && tutti_ea_center(ea, &c) == 0 && holds(&c, 1));
	CHECK(tutti_ea_synchronize_center(ea) == 0 && tutti_ea_center(ea, &c) == 0 && holds(&c, 1));
	tutti_ea_close(ea);
}

static void small_moves(tutti *job)
{
	go_slowly(job, TUTTI_BF16, NULL);
	go_slowly(job, TUTTI_F16, NULL);
}

static void test_small_moves(void) { on_wires(small_moves, 2); }

static void test_looks(void) { on_wires(look_at_center, 3); }

/* alpha NaN is 0.9 / ranks of the group, also of the next one. */
static void follow_group(tutti *job)
{
	double x = tutti_rank(job);
	tutti_tensor t = { &x, 1, TUTTI_F64 }, center;
	tutti *alone;
	tutti_ea *ea;

	CHECK(tutti_ea_open(job, &t, 1, 1, (double)NAN, 0, &ea) == 0);
	CHECK(tutti_ea_center(ea, &center) == 0);
	*(double *)center.data = 0;
	CHECK(tutti_ea_step(ea, NULL) == 1);
	CHECK(fabs(x - tutti_rank(job) * (1 - 0.9 / tutti_size(job))) < 1e-12);
	CHECK(tutti_group_split(job, tutti_rank(job), 0, &alone) == 0);
	CHECK(tutti_ea_regroup(ea, alone) == 0);
	CHECK(tutti_ea_center(ea, &center) == 0);
	CHECK(fabs(*(double *)center.data - 0.9 * (tutti_size(job) - 1) / 2) < 1e-12); /* no sum got lost */
	*(double *)center.data = 0;
	x = 1;
	CHECK(tutti_ea_step(ea, NULL) == 1 && fabs(x - 0.1) < 1e-12);
	tutti_ea_close(ea);
	tutti_group_free(alone);
}

/* Alpha 0.6 is fine for 2 ranks and not for 3; the distance of the center from the mean grows as the warning says. */
static void diverge(tutti *job)
{
	int me = tutti_rank(job);
	double x = me;
	tutti_tensor t = { &x, 1, TUTTI_F64 }, center;
	tutti *pair;
	tutti_ea *ea;

	CHECK(tutti_group_split(job, me == 2, 0, &pair) == 0);
	CHECK(tutti_ea_open(pair, &t, 1, 1, 0.6, 0, &ea) == 0);
	CHECK(tutti_ea_regroup(ea, job) == 0 && tutti_ea_synchronize(ea) == 0);
	x = 1;
	CHECK(tutti_ea_step(ea, NULL) == 1 && tutti_ea_set(ea, 1, 0.6) == 0);
	CHECK(tutti_ea_center(ea, &center) == 0 && fabs(*(double *)center.data - x - 1.4) < 1e-12); /* |1 - 0.6 * 4| */
	CHECK(tutti_ea_set(ea, 1, 0.5) == 0);
	tutti_ea_close(ea);
	tutti_group_free(pair);
}

static void test_divergence(void)
{
	tutti_log_line l;
	int n = 0;

	CU_ASSERT_TRUE_FATAL(tutti_log_open() >= 0);
	CU_ASSERT_EQUAL(run_ranks((struct ranks){ .size = 3, .wire = "tcp", .program = diverge }), 0);
	while (tutti_log_next(&l) == 1)
		if (strstr(l.text, "alpha is"))
			n += strstr(l.text, "of 3 ranks: alpha is 0.6, and above 2 / (ranks + 1) = 0.5") ? 1 : 100;
	tutti_log_close();
	CU_ASSERT_EQUAL(n, 1);
}

static void test_alpha(void)
{
	on_wires(follow_group, 3);
	CU_ASSERT_DOUBLE_EQUAL(tutti_elastic_alpha(4), 0.225, 1e-15);
	CU_ASSERT(isnan(tutti_elastic_alpha(0)) && isnan(tutti_elastic_alpha_max(2.1)) &&
	          isnan(tutti_elastic_alpha_max(-0.1)));
	CU_ASSERT(tutti_elastic_alpha_max(0) == 1 && tutti_elastic_alpha_max(2) == 0);
	CU_ASSERT_DOUBLE_EQUAL(tutti_elastic_alpha_max(1), 2.0 / 3, 1e-15);
}

/* A step's end runs while the program does something else. Rank 0 has one step less than the others. */
static void start_steps(tutti *job)
{
	enum { N = 30000 };
	int me = tutti_rank(job), n = tutti_size(job), count;
	float *x = calloc(2 * N, sizeof *x);
	double params = me;
	tutti_tensor t[] = { { x, N, TUTTI_F32 }, { x + N, N, TUTTI_F32 } }, p = { &params, 1, TUTTI_F64 };
	tutti_op op = { 0 };
	tutti_gradients *g;

	CHECK(tutti_gradients_open(job, t, 2, N * sizeof *x, &g) == 0);
	CHECK(tutti_gradients_apply(g, NULL) == -EINVAL && tutti_gradients_average_start(g, NULL) == -EINVAL);
	for (int step = 0; step < (me ? 4 : 3); step++) {
		for (int i = 0; i < 2 * N; i++)
			x[i] = (float)(me + 1 + step);
		if (step)
			CHECK(tutti_gradients_ready(g, 1) == 0);
		CHECK((step == 2 ? tutti_gradients_sum_start : tutti_gradients_average_start)(g, &op) ==
		      (step == 2 ? -EINVAL : 0)); /* it has begun as the step before */
		if (step == 2)
			CHECK(tutti_gradients_average_start(g, &op) == 0);
		CHECK(tutti_gradients_ready(g, 0) == -EALREADY && tutti_gradients_sum(g, NULL) == -EALREADY);
		CHECK(tutti_wait(&op, -1) == 0);
		CHECK(tutti_gradients_average(g, NULL) == -EALREADY);
		CHECK(tutti_gradients_apply(g, &count) == 0 && count == (step < 3 ? n : n - 1));
		float mean = step < 3 ? (float)(n + 1) / 2 + (float)step : (float)(n + 2) / 2 + (float)step;
		CHECK(fabsf(x[0] - mean) < 1e-5f && fabsf(x[2 * N - 1] - mean) < 1e-5f);
	}
	CHECK(tutti_gradients_synchronize(g, &p, 1) == 0 && params == (n > 1));
	CHECK(tutti_gradients_average_start(g, &op) == 0); /* and it is closed meanwhile */
	CHECK(tutti_wait(&op, -1) == 0);
	tutti_gradients_close(g);
	free(x);
}

static atomic_int started; /* ranks wait for each other without a collective */

/* One rank gives the step up: all hear it, and go on after a regroup. */
static void cancel_step(tutti *job)
{
	double x = tutti_rank(job), params = 1;
	tutti_tensor t = { &x, 1, TUTTI_F64 }, p = { &params, 1, TUTTI_F64 };
	tutti_op op = { 0 };
	tutti_gradients *g;
	int err;

	CHECK(tutti_gradients_open(job, &t, 1, 0, &g) == 0);
	if (tutti_rank(job) == 0) {
		CHECK(tutti_gradients_average_start(g, &op) == 0);
		CHECK(tutti_cancel(&op) == 0);
		CHECK(tutti_gradients_apply(g, NULL) == -ECANCELED);
		CHECK(tutti_gradients_average(g, NULL) == -ECANCELED);
		started = 1;
	} else {
		while (!started)
			pass_time(TT_MS);
		CHECK((err = tutti_gradients_average_start(g, &op)) == 0 || err == -ECONNABORTED);
		CHECK(err || tutti_wait(&op, -1) == -ECONNABORTED);
		CHECK(err || tutti_gradients_apply(g, NULL) == -ECONNABORTED);
	}
	CHECK(tutti_gradients_regroup(g, job) == 0 && tutti_gradients_synchronize(g, &p, 1) == 0);
	CHECK(tutti_gradients_average_start(g, &op) == 0 && tutti_wait(&op, -1) == 0);
	CHECK(tutti_rank(job) == 0 || tutti_gradients_apply(g, NULL) == 0);
	CHECK(tutti_gradients_regroup(g, job) == (tutti_rank(job) == 0 ? -EALREADY : -ECONNABORTED));
	CHECK(tutti_rank(job) != 0 || tutti_gradients_apply(g, NULL) == 0); /* nobody waits for this rank */
	CHECK(tutti_gradients_average(g, NULL) == 0 && tutti_gradients_regroup(g, job) == 0);
	CHECK(tutti_gradients_average(g, NULL) == 0);
	tutti_gradients_close(g);
}

static uint64_t ms_since(uint64_t begun) { return (tt_now() - begun) / TT_MS; }

/* A close asks no hook, and does not wait for what an interrupted call has left: rank 1 never takes part. */
static void close_interrupted(tutti *job)
{
	static const volatile int stop = 1;
	double x[2] = { 0 }, params = 0;
	tutti_tensor t[] = { { x, 1, TUTTI_F64 }, { x + 1, 1, TUTTI_F64 } }, p = { &params, 1, TUTTI_F64 };
	tutti_gradients *g;
	tutti_ea *ea;

	CHECK(tutti_gradients_open(job, t, 2, 1, &g) == 0);
	CHECK(tutti_ea_open(job, t, 1, 1, 0.5, 0, &ea) == 0);
	if (tutti_rank(job) == 0) {
		tutti_on_wait_flag(&stop);
		CHECK(tutti_gradients_average(g, NULL) == -EINTR);
		CHECK(tutti_gradients_ready(g, 0) == -EINVAL && strstr(tutti_why(), "tutti_gradients_average was"));
		CHECK(tutti_gradients_synchronize(g, &p, 1) == -EINVAL);
		CHECK(strstr(tutti_why(), "tutti_gradients_average was interrupted") != NULL);
		CHECK(tutti_ea_step(ea, NULL) == 1 && tutti_ea_step(ea, NULL) == -EINTR);
		uint64_t begun = tt_now();
		tutti_gradients_close(g);
		tutti_ea_close(ea);
		CHECK(ms_since(begun) < 5000);
		tutti_on_wait_flag(NULL);
		started = 1;
	}
	while (!started)
		pass_time(TT_MS);
	if (tutti_rank(job)) {
		tutti_gradients_close(g);
		tutti_ea_close(ea);
	}
}

/* A sum that no call has left is not cancelled by a close whose thread has a hook that says stop. */
static void close_with_hook(tutti *job)
{
	static const volatile int stop = 1;
	double x = tutti_rank(job), center = 0;
	tutti_tensor t = { &x, 1, TUTTI_F64 }, c = { &center, 1, TUTTI_F64 };
	tutti_ea *ea;

	CHECK(tutti_ea_open(job, &t, 1, 1, 0.5, 0, &ea) == 0);
	while (tutti_rank(job) && !started)
		pass_time(TT_MS);
	CHECK(tutti_ea_step(ea, NULL) == 1);
	started = 1;
	if (tutti_rank(job))
		CHECK(tutti_ea_center(ea, &c) == 0);
	else
		tutti_on_wait_flag(&stop);
	tutti_ea_close(ea);
	tutti_on_wait_flag(NULL);
}

static void on_wires_anew(void (*program)(tutti *))
{
	for (uint64_t seed = 0; seed < SEEDS + 2; seed++) {
		const char *wire = seed < SEEDS ? "sim" : seed == SEEDS ? "tcp" : "shm";
		started = 0;
		CU_ASSERT_EQUAL(
			run_ranks((struct ranks){ .size = 3, .seed = seed, .program = program, .wire = wire }), 0);
	}
}

static void test_started_steps(void)
{
	on_wires(start_steps, 3);
	on_wires(start_steps, 1);
	on_wires_anew(cancel_step);
}

/* A round has failed, and its sums end by themselves: their memory is waited for, whatever the hook says. */
static void fail_round(tutti *job)
{
	static const volatile int stop = 1;
	double x = 1;
	tutti_tensor t = { &x, 1, TUTTI_F64 };
	struct tt_round r;

	CHECK(tutti_group_timeout(job, 300) == 0);
	if (tutti_rank(job) == 0) {
		CHECK(tt_round_open(&r, job, 1, "test") == 0);
		CHECK(tt_round_count(&r, true) == 0 && tt_round_sum(&r, &t, 1) == 0);
		tutti_on_wait_flag(&stop);
		CHECK(tt_round_fail(&r, -ETIMEDOUT) == -ETIMEDOUT);
		tutti_on_wait_flag(NULL);
		CHECK(tutti_test(&r.ops[0]) == -ETIMEDOUT && tutti_test(&r.ops[1]) == -ETIMEDOUT);
		tt_round_close(&r);
		started = 1;
	}
	while (!started)
		pass_time(TT_MS);
}

static void test_closes(void)
{
	on_wires_anew(close_interrupted);
	on_wires_anew(fail_round);
	on_wires_anew(close_with_hook);
}

/* ---- an errand of the background thread ---- */

static struct { /* of rank 0 */
	struct tt_composite whole;
	tutti_window *window;
	atomic_bool runs, waits;
} errand;

static uint64_t word_of[2]; /* rank 0's ends the errand */

/* Ends when rank 1 has put a word, for which somebody must make progress; its main thread is elsewhere. */
static int run_until_put(struct tt_composite *c)
{
	uint64_t begun = tt_now();

	errand.runs = true;
	while (!__atomic_load_n(&word_of[0], __ATOMIC_ACQUIRE) && ms_since(begun) < 10000)
		tt_composite_pause(c);
	return 0;
}

static void pause_errand(tutti *job)
{
	int me = tutti_rank(job);
	tutti_window *w;
	tutti_op op = { 0 };
	uint64_t one = 1;

	word_of[me] = 0;
	CHECK(tutti_window_open(job, "errand", &word_of[me], sizeof word_of[0], &w) == 0);
	CHECK(tutti_barrier(job, NULL) == 0);
	if (me == 0) {
		memset(&errand, 0, sizeof errand);
		errand.whole.next = tt_composite_errand;
		errand.whole.errand = run_until_put;
		tt_composite_begin(&errand.whole, job->job, &op, "errand", NULL, 0);
		started = 1;
		for (uint64_t begun = tt_now(); !__atomic_load_n(&word_of[0], __ATOMIC_ACQUIRE) &&
		                                ms_since(begun) < 8000;)
			pass_time(TT_MS); /* not in the library */
		CHECK(__atomic_load_n(&word_of[0], __ATOMIC_ACQUIRE) == 1);
		CHECK(tutti_wait(&op, -1) == 0 && tt_composite_take(&errand.whole, "test") == 0);
	}
	while (!started)
		pass_time(TT_MS);
	if (me == 1)
		CHECK(tutti_put(w, 0, 0, &one, sizeof one, NULL) == 0);
	CHECK(tutti_barrier(job, NULL) == 0);
	tutti_window_close(w);
}

static void test_errands(void)
{
	for (int i = 0; i < 2; i++) {
		started = 0;
		CU_ASSERT_EQUAL(run_ranks((struct ranks){ .size = 2, .wire = i ? "tcp" : "shm",
		                                          .program = pause_errand }), 0);
	}
}

static void take_ea_steps(tutti_ea *ea, double *x, int n, int me)
{
	for (int step = 0; step < 4 + 2 * me; step++) {
		for (int i = 0; i < n; i++)
			x[i] += me * 0.7 + 0.01 * i;
		CHECK(tutti_ea_step(ea, NULL) >= 0);
	}
}

/* Started and blocking synchronizations, one after the other: the same bits where no step comes between; else the step
 * is added. Ranks end after different numbers of steps. */
static void synchronize_behind(tutti *job)
{
	enum { N = 40000 };
	int me = tutti_rank(job);
	double *x[2];
	tutti_tensor t[2], center[2];
	tutti_op op = { 0 };
	tutti_ea *ea[2];

	for (int k = 0; k < 2; k++) {
		x[k] = calloc(N, sizeof **x);
		t[k] = (tutti_tensor){ x[k], N, TUTTI_F64 };
		for (int i = 0; i < N; i++)
			x[k][i] = me * 1.1 + i;
		CHECK(tutti_ea_open(job, &t[k], 1, 2, 0.3, 0, &ea[k]) == 0);
		CHECK(k || tutti_ea_synchronize(ea[k]) == 0);
	}
	CHECK(tutti_ea_synchronize_apply(ea[1]) == -EINVAL && tutti_ea_synchronize_start(ea[1], NULL) == -EINVAL);
	CHECK(tutti_ea_synchronize_start(ea[1], &op) == 0 && tutti_wait(&op, -1) == 0);
	CHECK(tutti_ea_step(ea[1], NULL) == -EALREADY && tutti_ea_synchronize_apply(ea[1]) == 0);
	CHECK(!memcmp(x[0], x[1], N * sizeof **x));
	for (int round = 0; round < 4; round++) {
		bool params = round % 2;
		take_ea_steps(ea[0], x[0], N, me);
		CHECK((params ? tutti_ea_synchronize : tutti_ea_synchronize_center)(ea[0]) == 0);
		take_ea_steps(ea[1], x[1], N, me);
		CHECK((params ? tutti_ea_synchronize_start : tutti_ea_synchronize_center_start)(ea[1], &op) == 0);
		double moved = round < 2 ? 0 : 5;
		for (int i = 0; i < N; i++)
			x[1][i] += moved;
		CHECK(tutti_ea_set(ea[1], 2, 0.3) == -EALREADY);
		CHECK(tutti_wait(&op, -1) == 0 && tutti_ea_synchronize_apply(ea[1]) == 0);
		bool same = true;
		for (int i = 0; i < N; i++)
			same &= fabs(x[0][i] + moved - x[1][i]) < 1e-9 && (!params || moved > 0 || x[0][i] == x[1][i]);
		CHECK(same);
		for (int k = 0; k < 2; k++)
			CHECK(tutti_ea_center(ea[k], &center[k]) == 0);
		CHECK(!memcmp(center[0].data, center[1].data, N * sizeof **x));
		memcpy(x[1], x[0], N * sizeof **x);
	}
	for (int k = 0; k < 2; k++) {
		tutti_ea_close(ea[k]);
		free(x[k]);
	}
}

/* One rank starts early, and the others go on with steps; then it cancels one before the others begin. */
static void wait_behind(tutti *job)
{
	int me = tutti_rank(job);
	double x = me;
	tutti_tensor t = { &x, 1, TUTTI_F64 };
	tutti_op op = { 0 };
	tutti_ea *ea;

	CHECK(tutti_ea_open(job, &t, 1, 1, 0.25, 0, &ea) == 0 && tutti_ea_synchronize(ea) == 0);
	if (me == 0) {
		CHECK(tutti_ea_synchronize_center_start(ea, &op) == 0);
		x += 100;
		CHECK(tutti_wait(&op, 1) == -EINPROGRESS && tutti_ea_synchronize_apply(ea) == -EINPROGRESS);
		started = 1;
	}
	while (me && !started)
		pass_time(TT_MS);
	for (int step = 0; me && step < 5; step++) {
		x += 1;
		CHECK(tutti_ea_step(ea, NULL) == 1);
	}
	if (me)
		CHECK(tutti_ea_synchronize_center(ea) == 0);
	else
		CHECK(tutti_wait(&op, -1) == 0 && tutti_ea_synchronize_apply(ea) == 0 && x > 100.5 && x < 103);
	CHECK(tutti_barrier(job, NULL) == 0);
	while (me && started < 2)
		pass_time(TT_MS);
	if (me)
		CHECK(tutti_ea_synchronize_center(ea) == -ECONNABORTED);
	else
		CHECK(tutti_ea_synchronize_start(ea, &op) == 0 && tutti_cancel(&op) == 0 &&
		      tutti_ea_synchronize_apply(ea) == -ECANCELED && tutti_ea_step(ea, NULL) == -ECANCELED);
	started = 2;
	CHECK(tutti_ea_regroup(ea, job) == 0 && tutti_ea_synchronize(ea) == 0);
	tutti_ea_close(ea);
}

static void test_started_synchronizations(void)
{
	on_wires(synchronize_behind, 3);
	on_wires(synchronize_behind, 1);
	on_wires_anew(wait_behind);
}

/* tau and alpha change under way; the equations are computed for all ranks beside it. */
static void change_schedule(tutti *job)
{
	enum { MOST = 8 };
	int me = tutti_rank(job), n = tutti_size(job), tau, taken = 0;
	double x = me, all[MOST], c = 0, alpha;
	tutti_tensor t = { &x, 1, TUTTI_F64 };
	tutti_average_result r = { 0 };
	tutti_ea *ea;

	CHECK(tutti_ea_open(job, &t, 1, 3, 0.2, 0, &ea) == 0);
	CHECK(tutti_ea_synchronize(ea) == 0 && x == 0);
	memset(all, 0, sizeof all);
	tau = 3;
	alpha = 0.2;
	for (int step = 0; step < 12; step++) {
		if (step == 4) { /* one step after an averaging: counted anew */
			CHECK(tutti_ea_set(ea, 0, 0.5) == -EINVAL && tutti_ea_set(ea, 2, 1.5) == -EINVAL);
			CHECK(tutti_ea_set(ea, me ? 4 : 0, 0.4) == -EINVAL && strstr(tutti_why(), me ? "tau is 0" :
			      "from 1 up") && (!me || (strstr(tutti_why(), "rank 0") && strstr(tutti_why(), "4"))));
			CHECK(tutti_ea_set(ea, me ? 2 : 5, 0.4) == -EINVAL && strstr(tutti_why(), "tau is") &&
			      strstr(tutti_why(), "2") && strstr(tutti_why(), "5") && strstr(tutti_why(), "rank"));
			CHECK(tutti_ea_set(ea, 2, me ? 0.4 : 0.3) == -EINVAL && strstr(tutti_why(), "alpha is"));
			CHECK(tutti_ea_get(ea, &tau, &alpha) == 0 && tau == 3 && alpha == 0.2);
			CHECK(tutti_ea_set(ea, 2, 0.4) == 0 && tutti_ea_get(ea, &tau, &alpha) == 0 && tau == 2 &&
			      alpha == 0.4);
			taken = 0;
		}
		x += me + 1;
		double sum = 0, before = all[me] + me + 1;
		for (int i = 0; i < n; i++)
			all[i] += i + 1;
		bool averages = ++taken % tau == 0;
		CHECK(tutti_ea_step(ea, &r) == averages);
		CHECK(!averages || fabs(r.distance - fabs(before - c)) < 1e-12);
		for (int i = 0; averages && i < n; i++) {
			double d = alpha * (all[i] - c);
			all[i] -= d;
			sum += d;
		}
		c += sum;
		CHECK(fabs(x - all[me]) < 1e-12);
	}
	tutti_ea_close(ea);
}

static void test_schedule(void) { on_wires(change_schedule, 3); }

static void refuse_ea(tutti *job)
{
	double x[2] = { 1, 2 };
	int32_t k = 1;
	tutti_tensor t = { x, 2, TUTTI_F64 }, whole = { &k, 1, TUTTI_I32 };
	tutti_ea *ea = NULL;

	CHECK(tutti_ea_open(job, &whole, 1, 1, 0.5, 0, &ea) == -EINVAL &&
	      tutti_ea_open(job, &t, 1, 0, 0.5, 0, &ea) == -EINVAL);
	CHECK(tutti_ea_open(job, &t, 1, 1, -0.1, 0, &ea) == -EINVAL &&
	      tutti_ea_open(job, &t, 1, 1, 1.1, 0, &ea) == -EINVAL);
	CHECK(tutti_ea_open(job, &t, 1, 1, 0.5, 2, &ea) == -EINVAL &&
	      tutti_ea_open(job, &t, 0, 1, 0.5, 0, &ea) == -EINVAL && !ea);
	CHECK(tutti_ea_open(job, &t, 1, 1, tutti_rank(job) ? 0.5 : 0.4, 0, &ea) == -EINVAL &&
	      strstr(tutti_why(), "rank"));
	CHECK(tutti_ea_open(job, &t, 1, 1 + tutti_rank(job), 0.5, 0, &ea) == -EINVAL);
	CHECK(tutti_ea_open(job, &t, 1, 2 * tutti_rank(job), 0.5, 0, &ea) == -EINVAL && strstr(tutti_why(), "tau is"));
	CHECK(tutti_ea_open(job, &t, tutti_rank(job), 2, 0.5, 0, &ea) == (tutti_rank(job) ? -ECONNABORTED : -EINVAL));
	CHECK(tutti_ea_open(job, &t, 1, 2, 0.5, 0, tutti_rank(job) ? &ea : NULL) ==
	      (tutti_rank(job) ? -ECONNABORTED : -EINVAL) && !ea);
	t.count -= tutti_rank(job) == 1;
	CHECK(tutti_ea_open(job, &t, 1, 1, 0.5, 0, &ea) == -EINVAL && !ea);
	CHECK(tutti_ea_step(NULL, NULL) == -EINVAL && tutti_ea_center(NULL, NULL) == -EINVAL);
	tutti_ea_close(NULL);
}

static void test_refused_ea(void) { on_wires(refuse_ea, 2); }

/* ---- ranks that are killed ---- */

enum { CREW = 5, LARGE = 30000, GOAL = 6, TRIES = 12 };
static int dies_at[CREW];         /* before which of its calls a rank orders its own end; -1: never */
static uint64_t dies_within;      /* nanoseconds of that */
static int calls[CREW], shrinks, emptied;
static bool ended_well[CREW];
static unsigned crew_of[CREW];    /* with whom it ended */
static float ended_with[CREW];

struct life {
	tutti *job, *group;
	int rank;
	float *p, *v;            /* parameters and gradients: two tensors each */
	tutti_tensor params[2], grads[2];
};

static struct life begin_life(tutti *job)
{
	struct life l = { .job = job, .group = job, .rank = tutti_rank(job), .p = calloc(2 * LARGE, sizeof(float)) };

	tutti_barrier(job, NULL); /* all have joined */
	l.v = l.p + LARGE;
	for (int i = 0; i < 2; i++) {
		l.params[i] = (tutti_tensor){ l.p + i, i ? LARGE - 1 : 1, TUTTI_F32 };
		l.grads[i] = (tutti_tensor){ l.v + i, i ? LARGE - 1 : 1, TUTTI_F32 };
	}
	return l;
}

static int call(const struct life *l, int err)
{
	if (tt_sim_killed(l->rank) || err >= 0)
		return err;
	CHECK(err == -ECONNRESET || err == -ENOTCONN || err == -ENODATA);
	CHECK(strstr(tutti_why(), err == -ENODATA ? "whole" : "rank "));
	return err;
}

/* A rank dies while a call runs, or before the next one. */
#define CALL(l, x) \
	(calls[(l)->rank]++ == dies_at[(l)->rank] ? tt_sim_kill((l)->rank, tt_sim_chance(dies_within)) : (void)0, \
	 call(l, x))

static int shrink(struct life *l)
{
	tutti *left;
	int err = tutti_group_shrink(l->group, &left);

	if (err)
		return err;
	shrinks++;
	if (l->group != l->job)
		tutti_group_free(l->group);
	l->group = left;
	return 0;
}

/* The parts of an all-reduce add the ranks in other orders. */
static bool is_even(const float *v, size_t n)
{
	for (size_t i = 1; i < n; i++)
		if (!(fabsf(v[i] - v[0]) <= 1e-5f * fabsf(v[0])))
			return false;
	return true;
}

static void end_life(struct life *l, int err)
{
	if (!tt_sim_killed(l->rank)) {
		bool last = err == -EHOSTDOWN; /* the others came to their end, while it made up for a call */
		for (int i = 0; last && i < CREW; i++)
			last = !ended_well[i];
		CHECK(err == 0 || (err == -EHOSTDOWN && !last));
		CHECK(err || is_even(l->p, LARGE));
		ended_well[l->rank] = !err;
		ended_with[l->rank] = l->p[0];
		for (int i = 0; i < tutti_size(l->group); i++)
			crew_of[l->rank] |= 1u << tutti_group_member(l->group, i);
	}
	free(l->p);
}

static bool behind; /* by started forms */

static int wait_for(struct life *l, tutti_op *op)
{
	tt_sim_sleep(tt_sim_chance(TT_MS));
	return CALL(l, tutti_wait(op, -1));
}

static int average_life(struct life *l, tutti_gradients *g, int *n)
{
	tutti_op op = { 0 };
	int err;

	if (!behind)
		return CALL(l, tutti_gradients_average(g, n));
	if ((err = CALL(l, tutti_gradients_average_start(g, &op))))
		return err;
	wait_for(l, &op);
	return CALL(l, tutti_gradients_apply(g, n));
}

static int synchronize_life(struct life *l, tutti_ea *ea)
{
	tutti_op op = { 0 };
	int err;

	if (!behind)
		return CALL(l, tutti_ea_synchronize_center(ea));
	if ((err = CALL(l, tutti_ea_synchronize_center_start(ea, &op))))
		return err;
	wait_for(l, &op);
	return CALL(l, tutti_ea_synchronize_apply(ea));
}

/* Parameters count the steps that they have taken. */
static int step_sgd(struct life *l, tutti_gradients *g)
{
	int n, err = 0;

	tt_sim_sleep(tt_sim_chance(TT_MS));
	for (int i = 0; i < LARGE; i++)
		l->v[i] = 1;
	for (int i = 1; !err && i >= 0; i--)
		err = CALL(l, tutti_gradients_ready(g, i));
	if (err || (err = average_life(l, g, &n)))
		return err;
	CHECK(is_even(l->v, LARGE) && l->v[0] == 1 && n == tutti_size(l->group));
	for (int i = 0; i < LARGE; i++)
		l->p[i] += l->v[i];
	return 0;
}

static int open_life_sgd(struct life *l, tutti_gradients **g)
{
	return CALL(l, tutti_gradients_open(l->group, l->grads, 2, 4096, g));
}

static int recover_sgd(struct life *l, tutti_gradients **g)
{
	int err = shrink(l);

	if (err || (err = *g ? CALL(l, tutti_gradients_regroup(*g, l->group)) : open_life_sgd(l, g)))
		return err;
	err = CALL(l, tutti_gradients_synchronize(*g, l->params, 2));
	if (err != -ENODATA)
		return err;
	emptied++;
	memset(l->p, 0, LARGE * sizeof *l->p);
	return CALL(l, tutti_gradients_synchronize(*g, l->params, 2));
}

static void live_with_sgd(tutti *job)
{
	struct life l = begin_life(job);
	tutti_gradients *g = NULL;
	int err = open_life_sgd(&l, &g), tries = 0;

	while (tries < TRIES && !tt_sim_killed(l.rank) && (int)l.p[0] < GOAL) {
		if (!err && !(err = step_sgd(&l, g)) && (int)l.p[0] % 3 == 0)
			err = CALL(&l, tutti_gradients_synchronize(g, l.params, 2));
		while (err && tries++ < TRIES && !tt_sim_killed(l.rank))
			err = recover_sgd(&l, &g);
	}
	tutti_gradients_close(g);
	end_life(&l, err);
}

static int open_life_ea(struct life *l, tutti_ea **ea)
{
	return CALL(l, tutti_ea_open(l->group, l->params, 2, 2, (double)NAN, 0, ea));
}

static int recover_ea(struct life *l, tutti_ea **ea, int32_t *done)
{
	int err = shrink(l);

	if (err || (err = *ea ? CALL(l, tutti_ea_regroup(*ea, l->group)) : open_life_ea(l, ea)))
		return err;
	if ((err = CALL(l, tutti_ea_synchronize(*ea))))
		return err;
	return CALL(l, tutti_allreduce(l->group, done, done, 1, TUTTI_I32, TUTTI_MIN, NULL));
}

static int step_ea(struct life *l, tutti_ea *ea)
{
	tutti_tensor center[2];
	int err;

	tt_sim_sleep(tt_sim_chance(TT_MS));
	for (int i = 0; i < LARGE; i++)
		l->p[i] += (float)(1 + l->rank);
	if ((err = CALL(l, tutti_ea_step(ea, NULL))) < 0 ||
	    (l->rank % 2 && (err = CALL(l, tutti_ea_center(ea, center)))))
		return err;
	CHECK(isfinite(l->p[0]) && is_even(l->p, LARGE));
	return 0;
}

static void live_with_ea(tutti *job)
{
	struct life l = begin_life(job);
	tutti_ea *ea = NULL;
	int32_t done = 0, tries = 0;
	int err = open_life_ea(&l, &ea);

	while (tries < TRIES && !tt_sim_killed(l.rank) && done < GOAL) {
		if (!err && !(err = step_ea(&l, ea)) && ++done % 3 == 0)
			err = done == GOAL ? CALL(&l, tutti_ea_synchronize(ea))
			                   : synchronize_life(&l, ea);
		while (err && tries++ < TRIES && !tt_sim_killed(l.rank))
			err = recover_ea(&l, &ea, &done);
	}
	tutti_ea_close(ea);
	end_life(&l, err);
}

static void kill_in_each_call(void (*program)(tutti *))
{
	const uint64_t seeds = count_seeds(FAULT_SEEDS);
	struct tt_random r;

	shrinks = emptied = 0;
	for (uint64_t seed = 0; seed < seeds; seed++) {
		tt_random_seed(&r, seed);
		behind = seed % 3 == 1;
		memset(calls, 0, sizeof calls);
		memset(ended_well, 0, sizeof ended_well);
		memset(crew_of, 0, sizeof crew_of);
		for (int i = 0; i < CREW; i++)
			dies_at[i] = -1;
		for (int i = 0; i < 1 + (int)(seed % 2); i++)
			dies_at[tt_random_below(&r, CREW)] = (int)tt_random_below(&r, 24);
		dies_within = (uint64_t[]){ 1, 20000, 200000, 2 * TT_MS }[tt_random_below(&r, 4)];
		CU_ASSERT_EQUAL(
			run_ranks((struct ranks){
				.size = CREW, .wire = "sim", .seed = seed, .timeout_ms = 1000, .program = program }),
			0);
		for (int i = 0; i < CREW; i++)
			for (int k = 0; k < i; k++)
				CU_ASSERT(!ended_well[i] || !ended_well[k] || crew_of[i] != crew_of[k] ||
				          ended_with[i] == ended_with[k]);
	}
	CU_ASSERT(only_verbs() || shrinks > (int)seeds);
}

static void test_killed_sgd(void)
{
	kill_in_each_call(live_with_sgd);
	if (count_seeds(FAULT_SEEDS) >= 500)
		CU_ASSERT(emptied > 0);
}

static void test_killed_ea(void) { kill_in_each_call(live_with_ea); }

/* ---- a job that ends and is started again goes on with the same bits ---- */

enum { GOERS = 3, GO = 20, HALF = 10, WIDE = 1000, NARROW = 33 };

static char folder[64];
static struct going { /* what the program of a rank saves by itself */
	float x[WIDE];
	double y[3];
	uint16_t z[NARROW]; /* bf16, which averaging alone moves */
} at_half[GOERS], at_end[GOERS];

static void go_on(tutti *job, tutti_ea *ea, struct going *x, int from, int to)
{
	for (int step = from; step < to; step++) {
		for (int i = 0; i < WIDE; i++)
			x->x[i] += 0.37f * (float)((tutti_rank(job) + 2) * (i % 7 + 1)) / (float)(step + 3);
		for (int i = 0; i < 3; i++)
			x->y[i] -= 0.11 * (tutti_rank(job) + i) / (step + 1);
		CHECK(tutti_ea_step(ea, NULL) == (step % 3 == 2));
	}
}

struct path { char text[120]; };

static struct path state_path(const char *name, int rank)
{
	struct path p;

	snprintf(p.text, sizeof p.text, "%s/%s-%d.safetensors", folder, name, rank);
	return p;
}

static tutti_ea *open_going(tutti *job, struct going *x)
{
	const tutti_tensor list[] = { { x->x, WIDE, TUTTI_F32 }, { x->y, 3, TUTTI_F64 }, { NULL, 0, TUTTI_F32 },
	                              { x->z, NARROW, TUTTI_BF16 } };
	tutti_ea *ea = NULL;

	CHECK(tutti_ea_open(job, list, 4, 3, 0.3, 0, &ea) == 0);
	return ea;
}

static void begin_going(tutti *job, struct going *x)
{
	memset(x, 0, sizeof *x);
	for (int i = 0; i < NARROW; i++)
		x->z[i] = (uint16_t)(0x3f80 + tutti_rank(job) * 16 + i);
}

static void finish_going(tutti *job, tutti_ea *ea, struct going *x, bool is_it)
{
	int me = tutti_rank(job);

	CHECK(tutti_ea_synchronize_center(ea) == 0);
	if (is_it)
		at_end[me] = *x;
	else
		CHECK(!memcmp(&at_end[me], x, sizeof *x));
	tutti_ea_close(ea);
}

static void go_whole(tutti *job)
{
	struct going x;

	begin_going(job, &x);
	tutti_ea *ea = open_going(job, &x);
	CHECK(tutti_ea_synchronize_center(ea) == 0);
	go_on(job, ea, &x, 0, GO);
	finish_going(job, ea, &x, true);
}

static void go_half(tutti *job) /* and goes on beside the one that is started again */
{
	struct going x;
	int me = tutti_rank(job);

	begin_going(job, &x);
	tutti_ea *ea = open_going(job, &x);
	CHECK(tutti_ea_synchronize_center(ea) == 0);
	go_on(job, ea, &x, 0, HALF);
	CHECK(tutti_ea_save(ea, state_path("ea", me).text) == 0);
	at_half[me] = x;
	CHECK(tutti_ea_load(ea, state_path("ea", me).text) == 0); /* no averaging is under way: it is as it was */
	go_on(job, ea, &x, HALF, GO);
	CHECK(tutti_ea_load(ea, state_path("ea", me).text) == -EINVAL && strstr(tutti_why(), "first step"));
	finish_going(job, ea, &x, false);
}

static void refuse_loads(tutti_ea *ea, tutti_gradients *g, int me)
{
	char name[20];

	CHECK(tutti_ea_load(ea, state_path("none", me).text) == -ENOENT && tutti_ea_load(ea, NULL) == -EINVAL);
	CHECK(tutti_ea_load(NULL, state_path("ea", me).text) == -EINVAL && tutti_ea_save(ea, NULL) == -EINVAL);
	CHECK(tutti_gradients_load(g, state_path("ea", me).text) == -EINVAL &&
	      strstr(tutti_why(), "no state of gradients: it is of an elastic average"));
	CHECK(tutti_ea_save(ea, "/nowhere/ea.safetensors") == -ENOENT);
	snprintf(name, sizeof name, "torn-%d", me);
	int from = open(state_path("ea", me).text, O_RDONLY);
	int to = open(state_path(name, me).text, O_CREAT | O_WRONLY, 0600);
	char bytes[8000];
	ssize_t n = read(from, bytes, sizeof bytes);
	bytes[n - 9] ^= 1;
	CHECK(n > 0 && write(to, bytes, (size_t)n) == n && !close(from) && !close(to));
	CHECK(tutti_ea_load(ea, state_path(name, me).text) == -EBADMSG);
}

static void go_again(tutti *job)
{
	int me = tutti_rank(job);
	struct going x = at_half[me];
	double v = 0;
	tutti_ea *ea = open_going(job, &x);
	tutti_gradients *g = NULL;

	CHECK(tutti_ea_load(ea, state_path("ea", me).text) == 0);
	CHECK(tutti_gradients_open(job, &(tutti_tensor){ &v, 1, TUTTI_F64 }, 1, 0, &g) == 0);
	refuse_loads(ea, g, me);
	tutti_gradients_close(g);
	go_on(job, ea, &x, HALF, GO);
	finish_going(job, ea, &x, false);
}

static int winner_was;

/* Rank 1 had more steps before the restart, and keeps its parameters after it. */
static void count_steps(tutti *job)
{
	int me = tutti_rank(job), mine = me;
	double v = 0;
	tutti_gradients *g = NULL;

	CHECK(tutti_gradients_open(job, &(tutti_tensor){ &v, 1, TUTTI_F64 }, 1, 0, &g) == 0);
	if (winner_was < 0) {
		for (int i = 0; i < 3; i++)
			CHECK(tutti_gradients_average(g, NULL) == 0);
		if (me == 1)
			CHECK(tutti_gradients_ready(g, 0) == 0 &&
			      tutti_gradients_save(g, state_path("g", 9).text) == -EINVAL &&
			      tutti_gradients_average(g, NULL) == 0);
		CHECK(tutti_gradients_save(g, state_path("g", me).text) == 0);
	} else {
		CHECK(tutti_gradients_load(g, state_path("g", me).text) == 0);
	}
	CHECK(tutti_gradients_synchronize(g, &(tutti_tensor){ &mine, 1, TUTTI_I32 }, 1) == 0);
	CHECK(mine == 1);
	tutti_gradients_close(g);
}

/* The second set goes on where the first set is: also with what rounding to bf16 has left over. */
static void keep_rest(tutti *job)
{
	int me = tutti_rank(job);
	float v[2] = { 1.001f, 1.001f };
	tutti_gradients *g[2] = { NULL };

	for (int i = 0; i < 2; i++) {
		CHECK(tutti_gradients_open(job, &(tutti_tensor){ &v[i], 1, TUTTI_F32 }, 1, 0, &g[i]) == 0);
		CHECK(i || tutti_gradients_save(g[i], state_path("plain", me).text) == 0);
		CHECK(tutti_gradients_bf16(g[i], 1) == 0);
	}
	CHECK(tutti_gradients_average(g[0], NULL) == 0 && v[0] == 1);
	CHECK(tutti_gradients_save(g[0], state_path("rest", me).text) == 0);
	CHECK(tutti_gradients_load(g[1], state_path("plain", me).text) == -EINVAL && strstr(tutti_why(), "\"rest\""));
	CHECK(tutti_gradients_load(g[1], state_path("rest", me).text) == 0);
	v[0] = v[1] = 1.003f;
	CHECK(tutti_gradients_average(g[0], NULL) == 0 && tutti_gradients_average(g[1], NULL) == 0);
	CHECK(v[0] > 1.005f && v[1] == v[0]); /* without the rest both are 1 */
	for (int i = 0; i < 2; i++)
		tutti_gradients_close(g[i]);
}

static void keep_wide(tutti *job) { go_slowly(job, TUTTI_BF16, state_path("wide", tutti_rank(job)).text); }

static void test_goes_on(void)
{
	void (*const programs[])(tutti *) = { go_whole, go_half, go_again, keep_rest, keep_wide };

	strcpy(folder, "/tmp/tutti-unit-sync-XXXXXX");
	CU_ASSERT_PTR_NOT_NULL_FATAL(mkdtemp(folder));
	for (size_t i = 0; i < TT_COUNT(programs); i++)
		CU_ASSERT_EQUAL(run_ranks((struct ranks){ .size = GOERS, .wire = "sim", .program = programs[i] }), 0);
	for (winner_was = -1; winner_was < 1; winner_was++)
		CU_ASSERT_EQUAL(run_ranks((struct ranks){ .size = GOERS, .wire = "sim", .program = count_steps }), 0);
	clear_folder(folder);
	rmdir(folder);
}

static CU_TestInfo tests[] = {
	{ "all-reduce SGD", test_sgd },
	{ "gradients in the background", test_background },
	{ "many buckets", test_many },
	{ "lists that differ", test_lists },
	{ "buckets as they come", test_buckets },
	{ "the norm of gradients", test_norm },
	{ "bf16 with error feedback", test_feedback },
	{ "gradients refused", test_refused_gradients },
	{ "elastic averaging", test_elastic },
	{ "looks at the center", test_looks },
	{ "small moves of 16 bits", test_small_moves },
	{ "alpha", test_alpha },
	{ "an alpha that diverges", test_divergence },
	{ "a schedule", test_schedule },
	{ "started steps", test_started_steps },
	{ "started synchronizations", test_started_synchronizations },
	{ "closes with a hook", test_closes },
	{ "a long errand", test_errands },
	{ "elastic averaging refused", test_refused_ea },
	{ "a job that goes on", test_goes_on },
	{ "killed in all-reduce SGD", test_killed_sgd },
	{ "killed in elastic averaging", test_killed_ea },
	CU_TEST_INFO_NULL,
};
static CU_SuiteInfo suites[] = { { "synchronous averaging", NULL, NULL, NULL, NULL, tests }, CU_SUITE_INFO_NULL };

int main(int argc, char **argv) { return run_suites(suites, argc, argv); }
