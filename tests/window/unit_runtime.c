/* unit_runtime.c - engine, windows and collectives, each test on sim (over seeds) and over TCP */
#include "engine/engine.h"
#include "member/member.h"
#include "operation/operation.h"
#include "window/window.h"
#include "tests/harness/cunit_main.h"
#include "tests/harness/ranks.h"
#include "transport/sim/sim.h"
#include "transport/tcp/tcp.h"
#include <math.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>

#if TT_TSAN
enum { SEEDS = 1 }; /* fibers share one thread: there is little for this sanitizer to see on sim */
#elif TT_ASAN
enum { SEEDS = 4 };
#else
#define SEEDS (uint64_t)all_or(12, 4)
#endif

/* On sim over seeds, on tcp and on shm; sizes: a zero-terminated list. */
static void on_wires(void (*program)(tutti *), const int *sizes, int timeout_ms, const char *allreduce)
{
	for (const int *size = sizes; *size; size++) {
		struct ranks run = {
			.size = *size, .timeout_ms = timeout_ms, .allreduce = allreduce, .program = program
		};
		for (run.wire = "sim"; run.seed < SEEDS; run.seed++)
			CU_ASSERT_EQUAL(run_ranks(run), 0);
		if (is_real_in_check(sizes, size))
			CU_ASSERT_EQUAL(run_real_ranks(run), 0);
	}
}

static const int one[] = { 1, 0 }, few[] = { 1, 2, 3, 4, 5, 0 }, two[] = { 2, 0 }, three[] = { 3, 0 },
		 four[] = { 4, 0 }, five[] = { 5, 0 }, five_down[] = { 2, 3, 4, 5, 0 },
		 many[] = { 1, 2, 3, 4, 5, 7, 8, 0 };

/* Computing: the library is not called. */
/* ---- collectives ---- */

enum { PERIOD = 17 };
static float value_of(int rank, size_t i) { return (float)(rank * 3 + (int)(i % PERIOD) - 5); }

static float expected_at(int n, size_t i, tutti_rule rule)
{
	float expected = value_of(0, i);

	for (int r = 1; r < n; r++) {
		float x = value_of(r, i);
		expected = rule == TUTTI_MAX   ? fmaxf(expected, x)
		           : rule == TUTTI_MIN ? fminf(expected, x)
		                               : expected + x;
	}
	return rule == TUTTI_AVERAGE ? expected / (float)n : expected;
}

static void allreduce_f32(tutti *job, size_t count, tutti_rule rule)
{
	int n = tutti_size(job), me = tutti_rank(job);
	float *v = malloc((count + 1) * sizeof *v);
	size_t repeated = count > PERIOD ? count - PERIOD : 0;

	for (size_t i = 0; i < count; i++)
		v[i] = i < PERIOD ? value_of(me, i) : v[i - PERIOD];
	v[count] = 42; /* a guard */
	CHECK(tutti_allreduce(job, v, v, count, TUTTI_F32, rule, NULL) == 0);
	for (size_t i = 0; i < PERIOD && i < count; i++)
		CHECK(v[i] == expected_at(n, i, rule));
	CHECK(!memcmp(v, v + count - repeated, repeated * sizeof *v));
	CHECK(v[count] == 42);
	free(v);
}

static void program_counts(tutti *job)
{
	static const size_t counts[] = { 0, 1, 2, 3, 5, 17, 1009, 4079, 4080, 4081, 20011 };

	for (size_t i = 0; i < TT_COUNT(counts); i++)
		allreduce_f32(job, counts[i], TUTTI_SUM);
	allreduce_f32(job, 777, TUTTI_MAX);
	allreduce_f32(job, 7777, TUTTI_MIN);
	allreduce_f32(job, 7777, TUTTI_AVERAGE);
	allreduce_f32(job, 77, TUTTI_AVERAGE);
}

static void test_counts_auto(void) { on_wires(program_counts, many, 0, NULL); }
static void test_counts_ring(void) { on_wires(program_counts, many, 0, "ring"); }
static void test_counts_rabenseifner(void) { on_wires(program_counts, many, 0, "rabenseifner"); }
static void test_counts_doubling(void) { on_wires(program_counts, many, 0, "doubling"); }

static void program_large(tutti *job)
{
	allreduce_f32(job, 1000003, TUTTI_SUM); /* several chunks a block, more than there are slots */
	allreduce_f32(job, 1 << 20, TUTTI_AVERAGE);
}

static void test_large(void)
{
	on_wires(program_large, few, 0, "ring");
	on_wires(program_large, few, 0, "rabenseifner");
}

static void program_integers(tutti *job)
{
	int n = tutti_size(job), rank = tutti_rank(job);
	int64_t big[9000];
	int32_t small[3];

	for (size_t i = 0; i < TT_COUNT(big); i++)
		big[i] = (int64_t)i - 4500 + rank;
	CHECK(tutti_allreduce(job, big, big, TT_COUNT(big), TUTTI_I64, TUTTI_SUM, NULL) == 0);
	for (size_t i = 0; i < TT_COUNT(big); i++)
		CHECK(big[i] == n * ((int64_t)i - 4500) + n * (n - 1) / 2);
	small[0] = rank + 2;
	small[1] = INT32_MAX;
	small[2] = -rank;
	CHECK(tutti_allreduce(job, small, small, 3, TUTTI_I32, TUTTI_PRODUCT, NULL) == 0);
	int32_t expected = 1;
	for (int r = 0; r < n; r++)
		expected *= r + 2;
	CHECK(small[0] == expected);
	CHECK(small[2] == 0);
	small[0] = -7;
	CHECK(tutti_allreduce(job, small, small, 1, TUTTI_I32, TUTTI_AVERAGE, NULL) == 0);
	CHECK(small[0] == -7);
}

static void test_integers(void) { on_wires(program_integers, few, 0, NULL); }

/* All ranks must get the same bits, also where rounding makes the order of additions matter. */
static void same_bits(tutti *job, size_t count, tutti_type type)
{
	size_t bytes = count * tt_type_size(type);
	uint16_t *v = malloc(bytes);
	uint64_t sum = 14695981039346656037u, *all = calloc((size_t)tutti_size(job), sizeof sum);
	struct tt_random chance;

	tt_random_seed(&chance, (uint64_t)tutti_rank(job) + 99);
	for (size_t i = 0; i < bytes / 2; i++)
		v[i] = (uint16_t)(0x3000 + tt_random_below(&chance, 0x1000)); /* finite in every float type */
	CHECK(tutti_allreduce(job, v, v, count, type, TUTTI_SUM, NULL) == 0);
	for (size_t i = 0; i < bytes / 2; i++)
		sum = (sum ^ v[i]) * 1099511628211u;
	CHECK(tutti_gather(job, &sum, sizeof sum, all, -1, NULL) == 0);
	for (int r = 0; r < tutti_size(job); r++)
		CHECK(all[r] == sum);
	free(all);
	free(v);
}

static void program_bits(tutti *job)
{
	static const tutti_type types[] = { TUTTI_F32, TUTTI_F64, TUTTI_F16, TUTTI_BF16 };

	for (size_t i = 0; i < TT_COUNT(types); i++) {
		same_bits(job, 1001, types[i]);
		same_bits(job, 30011, types[i]);
	}
}

static void test_bits(void) { on_wires(program_bits, many, 0, NULL); }

static void program_in_flight(tutti *job)
{
	enum { K = 12, COUNT = 9000 };
	tutti_op ops[K] = { 0 };
	int32_t *v = calloc(K * COUNT, sizeof *v);
	int n = tutti_size(job), running = 1;

	for (int k = 0; k < K; k++) {
		size_t count = k % 2 ? COUNT : 5;
		for (size_t i = 0; i < count; i++)
			v[k * COUNT + (int)i] = tutti_rank(job) + k;
		CHECK(tutti_allreduce(job, v + k * COUNT, v + k * COUNT, count, TUTTI_I32, TUTTI_SUM, &ops[k]) == 0);
	}
	for (int k = K - 1; k >= K / 2; k--)
		CHECK(tutti_wait(&ops[k], -1) == 0);
	while (running) {
		running = 0;
		for (int k = 0; k < K / 2; k++) {
			int err = tutti_test(&ops[k]);
			CHECK(err == 0 || err == -EINPROGRESS);
			running += err == -EINPROGRESS;
		}
		if (running && tt_world)
			tt_sim_sleep(1000);
	}
	for (int k = 0; k < K; k++)
		CHECK(v[k * COUNT] == n * (n - 1) / 2 + n * k &&
		      v[k * COUNT + (k % 2 ? COUNT - 1 : 4)] == v[k * COUNT]);
	free(v);
}

static void test_in_flight(void) { on_wires(program_in_flight, few, 0, NULL); }

static void program_broadcast(tutti *job)
{
	static const size_t sizes[] = { 0, 1, 4096, 16320, 16321, 65600, 65601, 131073, 700001 };

	for (size_t k = 0; k < TT_COUNT(sizes); k++) {
		int root = (int)k % tutti_size(job);
		char *b = malloc(sizes[k] + 1);
		size_t wrong = 0;
		memset(b, 1, sizes[k] + 1);
		for (size_t i = 0; tutti_rank(job) == root && i < sizes[k]; i++)
			b[i] = (char)(i * 7 + k);
		CHECK(tutti_broadcast(job, b, sizes[k], root, NULL) == 0);
		for (size_t i = 0; i < sizes[k]; i++)
			wrong += b[i] != (char)(i * 7 + k);
		CHECK(wrong == 0 && b[sizes[k]] == 1);
		free(b);
	}
	CHECK(tutti_broadcast(job, NULL, 0, tutti_size(job), NULL) == -EINVAL);
}

static void test_broadcast(void) { on_wires(program_broadcast, many, 0, NULL); }

static void gather_once(tutti *job, size_t bytes, int root)
{
	int n = tutti_size(job), me = tutti_rank(job);
	char *mine = malloc(bytes), *all = root < 0 || root == me ? malloc((size_t)n * bytes) : NULL;

	memset(mine, 'a' + me, bytes);
	CHECK(tutti_gather(job, mine, bytes, all, root, NULL) == 0);
	for (size_t i = 0; all && i < (size_t)n * bytes; i++)
		CHECK(all[i] == (char)('a' + (int)(i / bytes)));
	free(mine);
	free(all);
}

static void program_gather(tutti *job)
{
	char c = 0;

	gather_once(job, 1, -1);
	gather_once(job, 13, 0);
	gather_once(job, 4096, tutti_size(job) - 1);
	gather_once(job, 4096, -1);
	gather_once(job, 300000, 0);
	gather_once(job, 300000, -1);
	CHECK(tutti_gather(job, &c, 0, &c, -1, NULL) == -EINVAL);
	CHECK(tutti_gather(job, &c, 1, &c, tutti_size(job), NULL) == -EINVAL);
}

static void test_gather(void) { on_wires(program_gather, many, 0, NULL); }

/* Nobody leaves a barrier before everybody has come to it. */
static void program_barrier(tutti *job)
{
	uint64_t here = 0, seen = 0;
	tutti_window *w;

	CHECK(tutti_window_open(job, "count", &here, sizeof here, &w) == 0);
	for (uint64_t k = 1; k <= 5; k++) {
		CHECK(tutti_add(w, 0, 0, 1, NULL, NULL) == 0);
		CHECK(tutti_barrier(job, NULL) == 0);
		CHECK(tutti_get(w, 0, 0, &seen, 8, NULL) == 0);
		CHECK(seen == k * (uint64_t)tutti_size(job));
		CHECK(tutti_barrier(job, NULL) == 0);
	}
	tutti_window_close(w);
}

static void test_barrier(void) { on_wires(program_barrier, many, 0, NULL); }

static void program_bad_arguments(tutti *job)
{
	float x = 1;

	CHECK(tutti_allreduce(job, &x, &x, 1, (tutti_type)99, TUTTI_SUM, NULL) == -EINVAL);
	CHECK(tutti_allreduce(job, &x, &x, 1, TUTTI_F32, (tutti_rule)99, NULL) == -EINVAL);
	CHECK(tutti_allreduce(job, NULL, NULL, 1, TUTTI_F32, TUTTI_SUM, NULL) == -EINVAL);
	CHECK(tutti_allreduce(job, &x, &x, SIZE_MAX / 2, TUTTI_F32, TUTTI_SUM, NULL) == -EINVAL);
	CHECK(strstr(tutti_why(), "all-reduce") != NULL);
	CHECK(tutti_allreduce(job, &x, &x, 1, TUTTI_F32, TUTTI_SUM, NULL) == 0); /* and all goes on */
}

static void test_bad_arguments(void) { on_wires(program_bad_arguments, two, 0, NULL); }

/* Ranks that disagree get an error that names one of them, all of them, before any deadline. */
enum odd_one { ODD_COUNT, ODD_RULE, ODD_TYPE, ODD_CALL, ODD_SIZE, ODD_ROOT, ODDITIES };
static enum odd_one oddity;

static int call_oddly(tutti *job, float *v, bool odd)
{
	switch (oddity) {
	case ODD_COUNT: return tutti_allreduce(job, v, v, odd ? 20000 : 30000, TUTTI_F32, TUTTI_SUM, NULL);
	case ODD_RULE: return tutti_allreduce(job, v, v, 2, TUTTI_F32, odd ? TUTTI_MAX : TUTTI_SUM, NULL);
	case ODD_TYPE: return tutti_allreduce(job, v, v, 2, odd ? TUTTI_I32 : TUTTI_F32, TUTTI_SUM, NULL);
	case ODD_CALL:
		return odd ? tutti_barrier(job, NULL) : tutti_allreduce(job, v, v, 2, TUTTI_F32, TUTTI_SUM, NULL);
	case ODD_SIZE: return tutti_broadcast(job, v, odd ? 100 : 100000, 0, NULL);
	default: return tutti_broadcast(job, v, 100, odd, NULL);
	}
}

static void program_mismatch(tutti *job)
{
	float *v = calloc(30000, sizeof *v);
	uint64_t start = tt_now();
	int err = call_oddly(job, v, tutti_rank(job) == 1);

	/* those may have been through with it before they hear */
	bool agreed = tutti_size(job) > 2 && tutti_rank(job) != 1;
	CHECK(err == -EBADMSG || err == -ECONNABORTED || (agreed && err == 0));
	CHECK(err == 0 || strstr(tutti_why(), "rank ") != NULL);
	CHECK(tt_now() - start < 5000 * TT_MS);
	CHECK(tutti_barrier(job, NULL) == 0); /* nobody was evicted for it */
	free(v);
}

static void test_mismatch(void)
{
	for (oddity = 0; oddity < ODDITIES; oddity++) {
		on_wires(program_mismatch, two, 0, NULL);
		on_wires(program_mismatch, three, 0, NULL);
	}
}

/* Two roots that would each wait for the other. */
static void program_two_roots(tutti *job)
{
	char *v = calloc(1, 60000);
	int err = tutti_broadcast(job, v, 60000, tutti_rank(job), NULL);

	CHECK(err == -EBADMSG || err == -ECONNABORTED);
	CHECK(tutti_barrier(job, NULL) == 0);
	free(v);
}

static void test_two_roots(void) { on_wires(program_two_roots, two, 0, NULL); }

/* The root has its part done and leaves; who called something else then ends at the deadline and not never. */
static void program_left_behind(tutti *job)
{
	char *v = calloc(1, 60000);
	int err = 0;

	CHECK(tutti_group_timeout(job, 4000) == 0);
	if (tutti_rank(job) == 1)
		pass_time(100 * TT_MS);
	if (tutti_rank(job) == 0)
		err = tutti_broadcast(job, v, 100, 0, NULL); /* number 0: needs an answer, and gets an ABORT */
	else
		err = tutti_broadcast(job, v, 60000, 0, NULL);
	CHECK(err == -EBADMSG || err == -ECONNABORTED);
	free(v);
}

static void test_left_behind(void) { on_wires(program_left_behind, two, 0, NULL); }

/* More at once than there may be: refused, nothing leaks, and those under way end well. */
static void program_too_many(tutti *job)
{
	enum { MANY = 1100 };
	tutti_op *ops = calloc(MANY, sizeof *ops);
	float *v = calloc(MANY, sizeof *v);
	int started = 0, err = 0;

	for (; !err && started < MANY; started += !err)
		err = tutti_allreduce(job, &v[started], &v[started], 1, TUTTI_F32, TUTTI_SUM, &ops[started]);
	CHECK(err == -EAGAIN || started == MANY); /* small ones may end while more are started */
	if (err)
		CHECK(tutti_gather(job, v, 4, v, -1, NULL) == -EAGAIN || started < MANY);
	for (int i = 0; i < started; i++)
		CHECK(tutti_wait(&ops[i], -1) == 0);
	free(ops);
	free(v);
}

static void test_too_many(void)
{
	struct ranks run = { .size = 1, .wire = "sim", .program = program_too_many };

	CU_ASSERT_EQUAL(run_ranks(run), 0);
}

/* Small broadcasts need no answer, but the root does not run away from a slow rank. */
static void program_ahead(tutti *job)
{
	char c = 0;

	for (int i = 0; i < 5000; i++) {
		if (tutti_rank(job) == 1 && i % 1000 == 0)
			pass_time(20 * TT_MS);
		CHECK(tutti_broadcast(job, &c, 1, 0, NULL) == 0);
	}
}

static void test_ahead(void)
{
	struct ranks run = { .size = 3, .program = program_ahead };

	CU_ASSERT_EQUAL(run_real_ranks(run), 0);
}

/* ---- windows ---- */

struct memory {
	uint64_t word, counter;
	char bytes[10000];
};

static void program_put_get(tutti *job)
{
	int n = tutti_size(job), me = tutti_rank(job), right = (me + 1) % n;
	struct memory *m = calloc(1, sizeof *m);
	char out[10000], in[10000];
	tutti_window *w;
	uint64_t old;

	memset(out, me + 1, sizeof out);
	CHECK(tutti_window_open(job, "memory", m, sizeof *m, &w) == 0);
	CHECK(tutti_put(w, right, offsetof(struct memory, bytes), out, sizeof out, NULL) == 0);
	CHECK(tutti_get(w, right, offsetof(struct memory, bytes), in, sizeof in, NULL) == 0);
	CHECK(!memcmp(in, out, sizeof in));
	for (int i = 0; i < 10; i++)
		CHECK(tutti_add(w, 0, offsetof(struct memory, counter), 3, &old, NULL) == 0 && old % 3 == 0);
	CHECK(tutti_barrier(job, NULL) == 0);
	CHECK(me != 0 || m->counter == 30 * (uint64_t)n);
	CHECK(tutti_window_map(w, me) == m);
	tutti_window_close(w);
	free(m);
}

static void test_put_get(void) { on_wires(program_put_get, few, 0, NULL); }

static void program_notify(tutti *job)
{
	int n = tutti_size(job), me = tutti_rank(job), right = (me + 1) % n, left = (me + n - 1) % n;
	uint64_t slots[64] = { 0 }, v[64];
	tutti_window *w;

	CHECK(tutti_window_open(job, "slots", slots, sizeof slots, &w) == 0);
	for (uint64_t i = 0; i < 64; i++) {
		v[i] = 1000 + i;
		CHECK(tutti_put_notify(w, right, i * 8, &v[i], 8, 4095, NULL) == 0);
	}
	for (uint64_t i = 0; i < 64; i++) {
		CHECK(tutti_wait_notify(w, i % 2 ? left : -1, 4095, i + 1, -1) == 0);
		CHECK(__atomic_load_n(&slots[i], __ATOMIC_ACQUIRE) == 1000 + i);
	}
	CHECK(tutti_put_notify(w, right, 0, NULL, 0, 7, NULL) == 0); /* a notify alone */
	CHECK(tutti_wait_notify(w, left, 7, 1, -1) == 0);
	CHECK(tutti_wait_notify(w, left, 7, 2, 0) == -ETIMEDOUT);
	CHECK(tutti_wait_notify(w, n, 7, 2, 0) == -EINVAL);
	CHECK(tutti_put_notify(w, right, 0, NULL, 0, 4096, NULL) == -EINVAL);
	CHECK(tutti_barrier(job, NULL) == 0); /* nobody has left before all have looked */
	tutti_window_close(w);
}

static void test_notify(void) { on_wires(program_notify, few, 0, NULL); }

static void program_ranges(tutti *job)
{
	int right = (tutti_rank(job) + 1) % tutti_size(job);
	char mine[100] = "", x[200] = "";
	tutti_window *w;

	CHECK(tutti_window_open(job, "r", mine, (size_t)(50 + tutti_rank(job)), &w) == 0); /* each its own size */
	CHECK(tutti_put(w, right, 0, x, (size_t)(50 + right), NULL) == 0);
	CHECK(tutti_put(w, right, 0, x, (size_t)(51 + right), NULL) == -ERANGE);
	CHECK(strstr(tutti_why(), "\"r\"") != NULL);
	CHECK(tutti_get(w, right, SIZE_MAX, x, 2, NULL) == -ERANGE);
	CHECK(tutti_get(w, right, 8, x, SIZE_MAX - 4, NULL) == -ERANGE);
	CHECK(tutti_add(w, right, 4, 1, NULL, NULL) == -EINVAL);
	CHECK(tutti_put(w, -1, 0, x, 1, NULL) == -EINVAL);
	CHECK(tutti_put(w, right, 0, NULL, 1, NULL) == -EINVAL);
	tutti_window *again;
	CHECK(tutti_window_open(job, "r", mine, 1, &again) == -EEXIST);
	CHECK(tutti_window_open(job, "", mine, 1, &again) == -EINVAL);
	CHECK(tutti_window_open(job, "null", NULL, 1, &again) == -EINVAL);
	CHECK(tutti_barrier(job, NULL) == 0);
	tutti_window_close(w);
}

static void test_ranges(void) { on_wires(program_ranges, few, 0, NULL); }

/* One more than there can be: it takes nothing away from those that are there. */
static void program_many_windows(tutti *job)
{
	static tutti_window *w[2][TT_WINDOWS]; /* of each rank */
	tutti_window **mine = w[tutti_rank(job)];
	int n = 0, err = 0, last, other = 1 - tutti_rank(job);
	char name[16];

	for (; n < TT_WINDOWS && !err; n += !err) {
		snprintf(name, sizeof name, "w%d", n);
		err = tutti_window_open(job, name, NULL, 0, &mine[n]);
	}
	last = n - 1;
	CHECK(err == -EMFILE && last > TT_WINDOWS / 2 && strstr(tutti_why(), "windows are open: close some"));
	CHECK(tutti_put_notify(mine[last], other, 0, NULL, 0, 3, NULL) == 0 &&
	      tutti_wait_notify(mine[last], other, 3, 1, -1) == 0);
	CHECK(tutti_put_notify(mine[0], other, 0, NULL, 0, 3, NULL) == 0 &&
	      tutti_wait_notify(mine[0], other, 3, 1, -1) == 0);
	CHECK(tutti_barrier(job, NULL) == 0);
	while (n--)
		tutti_window_close(mine[n]);
}

static void test_many_windows(void) { on_wires(program_many_windows, two, 0, NULL); }

/* Names that the other never opens, more than there can be windows: it keeps those asked for last. */
static void program_many_asks(tutti *job)
{
	uint64_t v = 7, mine[2] = { 0 };
	tutti_window *w;
	tutti_op op = { 0 };
	char name[24];

	for (int i = 0; !tutti_rank(job) && i < TT_WINDOWS + 10; i++) {
		snprintf(name, sizeof name, "never%d", i);
		CHECK(tutti_window_open(job, name, NULL, 0, &w) == 0 && tutti_put(w, 1, 0, &v, 8, &op) == 0);
		CHECK(tutti_cancel(&op) == 0);
		tutti_window_close(w);
	}
	CHECK(tutti_barrier(job, NULL) == 0);
	CHECK(tutti_window_open(job, "at last", mine, sizeof mine, &w) == 0);
	CHECK(tutti_put(w, 1 - tutti_rank(job), 8, &v, 8, NULL) == 0 && tutti_barrier(job, NULL) == 0 && mine[1] == 7);
	tutti_window_close(w);
}

static void test_many_asks(void) { on_wires(program_many_asks, two, 0, NULL); }

/* A put before the owner has opened waits for it; after the owner has closed it is stale; a new pair of handles
 * works. */
static void program_open_close(tutti *job)
{
	uint64_t mine = 0, v = 5;
	tutti_window *w;

	if (tutti_rank(job) == 1)
		pass_time(30 * TT_MS);
	CHECK(tutti_window_open(job, "late", &mine, 8, &w) == 0);
	if (tutti_rank(job) == 0)
		CHECK(tutti_put_notify(w, 1, 0, &v, 8, 0, NULL) == 0);
	else
		CHECK(tutti_wait_notify(w, 0, 0, 1, -1) == 0 && mine == 5);
	CHECK(tutti_barrier(job, NULL) == 0);
	if (tutti_rank(job) == 1)
		tutti_window_close(w);
	CHECK(tutti_barrier(job, NULL) == 0);
	if (tutti_rank(job) == 0) {
		CHECK(tutti_put(w, 1, 0, &v, 8, NULL) == -ESTALE);
		CHECK(strstr(tutti_why(), "late") != NULL);
		tutti_window_close(w);
	}
	CHECK(tutti_window_open(job, "late", &mine, 8, &w) == 0);
	v = 6;
	if (tutti_rank(job) == 0)
		CHECK(tutti_put_notify(w, 1, 0, &v, 8, 0, NULL) == 0);
	else
		CHECK(tutti_wait_notify(w, 0, 0, 1, -1) == 0 && mine == 6);
	tutti_window_close(w);
}

/* What was started is finished, also if its owner opens only now. */
static void program_started(tutti *job)
{
	uint64_t mine = 0, v = 9;
	tutti_window *w;
	tutti_op op = { 0 };

	if (tutti_rank(job) == 1)
		pass_time(60 * TT_MS);
	CHECK(tutti_window_open(job, "started", &mine, 8, &w) == 0);
	if (tutti_rank(job) == 0)
		CHECK(tutti_put_notify(w, 1, 0, &v, 8, 3, &op) == 0);
	else
		CHECK(tutti_wait_notify(w, 0, 3, 1, -1) == 0 && mine == 9);
	if (tutti_rank(job) == 0) {
		tutti_window_close(w);
		CHECK(tutti_test(&op) == 0);
	}
}

static void test_started(void) { on_wires(program_started, two, 0, NULL); }

static void test_open_close(void) { on_wires(program_open_close, two, 0, NULL); }

static int open_nobodys(tutti *job, uint64_t *mine, tutti_window **w)
{
	CHECK(tutti_group_timeout(job, 300) == 0);
	int err = tutti_window_open(job, "nobody's", mine, 8, w);
	/* of what comes after: a busy core may hold up a barrier for 300 ms */
	CHECK(tutti_group_timeout(job, 10000) == 0);
	return err;
}

/* A window that is never opened over there: -ENOENT at the deadline, and that rank is not evicted for it. */
static void program_unopened(tutti *job)
{
	uint64_t mine = 0;
	tutti_window *w;
	tutti_op op = { 0 };

	if (tutti_rank(job) == 0) {
		CHECK(open_nobodys(job, &mine, &w) == 0);
		CHECK(tutti_put(w, 1, 0, &mine, 8, &op) == 0);
		CHECK(tutti_test(&op) == -EINPROGRESS);
		CHECK(tutti_wait(&op, 1) == -EINPROGRESS);
		CHECK(tutti_cancel(&op) == 0);
		CHECK(tutti_put(w, 1, 0, &mine, 8, NULL) == -ENOENT);
		CHECK(strstr(tutti_why(), "nobody's") && strstr(tutti_why(), "rank 1"));
		tutti_window_close(w);
	} else {
		pass_time(500 * TT_MS);
	}
	CHECK(tutti_barrier(job, NULL) == 0);
}

static void test_unopened(void) { on_wires(program_unopened, two, 0, NULL); }

/* Closing waits until what was started has run out of time: nobody is evicted for that, either. */
static void program_closed_unopened(tutti *job)
{
	uint64_t mine = 0, since = tt_now();
	tutti_window *w;
	tutti_op op = { 0 };

	if (tutti_rank(job) == 0) {
		CHECK(open_nobodys(job, &mine, &w) == 0);
		CHECK(tutti_put(w, 1, 0, &mine, 8, &op) == 0);
		tutti_window_close(w);
		CHECK(tt_now() - since >= 290 * TT_MS);
		CHECK(tutti_test(&op) == -ENOENT);
		CHECK(strstr(tutti_why(), "rank 1 did not open a window") != NULL);
	} else {
		pass_time(350 * TT_MS);
	}
	CHECK(tutti_barrier(job, NULL) == 0);
}

static void test_closed_unopened(void) { on_wires(program_closed_unopened, two, 0, NULL); }

/* ---- engine ---- */

/* The owner computes: its background thread answers, long before it comes back to us. */
static void program_computing(tutti *job)
{
	uint64_t mine = 77, v = 0, start;
	tutti_window *w;

	CHECK(tutti_window_open(job, "c", &mine, 8, &w) == 0);
	CHECK(tutti_barrier(job, NULL) == 0);
	if (tutti_rank(job) == 1) {
		pass_time(1000 * TT_MS);
	} else {
		pass_time(5 * TT_MS);
		start = tt_now();
		CHECK(tutti_get(w, 1, 0, &v, 8, NULL) == 0 && v == 77);
		CHECK(tt_now() - start < 900 * TT_MS);
	}
	CHECK(tutti_barrier(job, NULL) == 0);
	tutti_window_close(w);
}

static void test_computing(void) { on_wires(program_computing, two, 0, NULL); }

/* Rank 1 makes only calls that take the lock and poll nothing, one behind the other. Its background thread polls, and a
 * put arrives. */
static void program_never_waits(tutti *job)
{
	uint64_t there = 0, one = 1, until = tt_now() + 20000 * TT_MS;
	tutti_window *w;
	tutti_peer peer;

	CHECK(tutti_window_open(job, "never waits", &there, 8, &w) == 0);
	CHECK(tutti_barrier(job, NULL) == 0);
	if (tutti_rank(job) == 0)
		CHECK(tutti_put(w, 1, 0, &one, 8, NULL) == 0);
	while (tutti_rank(job) == 1 && !__atomic_load_n(&there, __ATOMIC_ACQUIRE) && tt_now() < until)
		CHECK(tutti_group_peer(job, 0, &peer) == 0);
	CHECK(tutti_rank(job) == 0 || there == 1);
	CHECK(tutti_barrier(job, NULL) == 0);
	tutti_window_close(w);
}

static void test_never_waits(void)
{
	CU_ASSERT_EQUAL(run_ranks((struct ranks){ .size = 2, .wire = "tcp", .silence_ms = 30000,
	                                          .program = program_never_waits }), 0);
}

static void program_event_fd(tutti *job)
{
	struct pollfd p = { .fd = tutti_event_fd(job), .events = POLLIN };
	float x = 1;
	uint64_t n;
	tutti_op op = { 0 };
	int err;

	CHECK(p.fd >= 0 && tutti_event_fd(job) == p.fd);
	CHECK(tutti_allreduce(job, &x, &x, 1, TUTTI_F32, TUTTI_SUM, &op) == 0);
	while ((err = tutti_test(&op)) == -EINPROGRESS)
		CHECK(poll(&p, 1, 10000) == 1 && read(p.fd, &n, sizeof n) == sizeof n);
	CHECK(err == 0 && x == (float)tutti_size(job));
}

static void test_event_fd(void)
{
	struct ranks run = { .size = 3, .program = program_event_fd };

	CU_ASSERT_EQUAL(run_real_ranks(run), 0);
}

enum how { TESTED, WAITED_FOR, ALL_WAITED_FOR, BY_FD };

/* A small put that was started, and that no traffic from its target acknowledges in passing. */
static void ends_soon(tutti *job, tutti_window *w, enum how how)
{
	uint64_t value = 7, start = tt_now(), n;
	struct pollfd p = { .fd = how == BY_FD ? tutti_event_fd(job) : -1, .events = POLLIN };
	tutti_op op = { 0 };
	int err;

	CHECK(tutti_put(w, 1, 0, &value, 8, &op) == 0);
	if (how == WAITED_FOR)
		CHECK(tutti_wait(&op, 10000) == 0);
	if (how == ALL_WAITED_FOR) {
		tutti_op more = { 0 };
		CHECK(tutti_put(w, 1, 0, &value, 8, &more) == 0);
		CHECK(tutti_wait_all((tutti_op *[]){ &op, &more }, 2, 10000) == 0);
	}
	while ((err = tutti_test(&op)) == -EINPROGRESS && tt_now() - start < 10000 * TT_MS) {
		if (how == BY_FD)
			CHECK(poll(&p, 1, 10000) == 1 && read(p.fd, &n, sizeof n) == sizeof n);
		else
			pass_time(TT_MS / 20);
	}
	CHECK(err == 0);
}

static atomic_int computing;

static void program_unhurried(tutti *job)
{
	uint64_t memory = 0;
	tutti_window *w;

	CHECK(tutti_window_open(job, "unhurried", &memory, sizeof memory, &w) == 0);
	CHECK(tutti_barrier(job, NULL) == 0);
	for (uint64_t round = 1; round <= 2; round++) { /* the target waits, and then it computes */
		atomic_store(&computing, round == 2);
		CHECK(tutti_barrier(job, NULL) == 0);
		if (tutti_rank(job) == 0) {
			for (enum how how = TESTED; how <= (tt_world ? ALL_WAITED_FOR : BY_FD); how++)
				ends_soon(job, w, how);
			CHECK(round == 1 || atomic_load(&computing));
			CHECK(tutti_put_notify(w, 1, 0, NULL, 0, 0, NULL) == 0);
		} else if (round == 2) {
			pass_time(500 * TT_MS);
			atomic_store(&computing, 0);
		}
		if (tutti_rank(job) == 1)
			CHECK(tutti_wait_notify(w, 0, 0, round, -1) == 0);
	}
	CHECK(tutti_barrier(job, NULL) == 0);
	tutti_window_close(w);
}

static void test_unhurried(void) { on_wires(program_unhurried, two, 0, NULL); }

static void set_spin(tutti *job, bool spin) /* the background thread reads it */
{
	tt_lock(job->job);
	job->job->engine.spin = spin;
	tt_unlock(job->job);
}

/* A rank that is blocked leaves its processor alone: neither it nor its background thread has a tick. */
static void program_blocked(tutti *job)
{
	float x = 1;

	if (tutti_rank(job) == 0) {
		struct rusage before, after;
		set_spin(job, false);
		getrusage(RUSAGE_SELF, &before);
		CHECK(tutti_allreduce(job, &x, &x, 1, TUTTI_F32, TUTTI_SUM, NULL) == 0);
		getrusage(RUSAGE_SELF, &after);
		CHECK(after.ru_nvcsw - before.ru_nvcsw < 250); /* a tick of a millisecond would make 500 */
	} else {
		pass_time(500 * TT_MS);
		CHECK(tutti_allreduce(job, &x, &x, 1, TUTTI_F32, TUTTI_SUM, NULL) == 0);
	}
}

static void test_blocked(void) { on_wires(program_blocked, two, 0, NULL); }

struct caller {
	tutti *job;
	tutti_window *window;
	struct ranks *run;
	int number;
	pthread_t thread;
};

static void *call_a_lot(void *arg)
{
	struct caller *c = arg;
	int n = tutti_size(c->job), to = (tutti_rank(c->job) + 1) % n;
	uint64_t v = 0, back = 0;

	this_run = c->run;
	for (uint64_t i = 1; i <= 200; i++) {
		v = i;
		CHECK(tutti_put_notify(c->window, to, (size_t)c->number * 8, &v, 8, c->number, NULL) == 0);
		CHECK(tutti_get(c->window, to, (size_t)c->number * 8, &back, 8, NULL) == 0 && back == i);
		CHECK(tutti_add(c->window, 0, 64, 1, NULL, NULL) == 0);
		if (i % 50 == 0)
			CHECK(tutti_wait_notify(c->window, (tutti_rank(c->job) + n - 1) % n, c->number, i, -1) == 0);
	}
	return NULL;
}

/* Any thread may call, while others wait, poll and start. */
static void program_threads(tutti *job)
{
	struct caller callers[4];
	uint64_t memory[16] = { 0 };
	tutti_window *w;

	CHECK(tutti_window_open(job, "threads", memory, sizeof memory, &w) == 0);
	for (int i = 0; i < 4; i++) {
		callers[i] = (struct caller){ .job = job, .window = w, .run = this_run, .number = i };
		pthread_create(&callers[i].thread, NULL, call_a_lot, &callers[i]);
	}
	for (int i = 0; i < 20; i++)
		allreduce_f32(job, i % 2 ? 9000 : 9, TUTTI_SUM);
	for (int i = 0; i < 4; i++)
		pthread_join(callers[i].thread, NULL);
	CHECK(tutti_barrier(job, NULL) == 0);
	CHECK(tutti_rank(job) != 0 || __atomic_load_n(&memory[8], __ATOMIC_ACQUIRE) == 800 * (uint64_t)tutti_size(job));
	CHECK(tutti_barrier(job, NULL) == 0);
	tutti_window_close(w);
}

static void test_threads(void)
{
	struct ranks run = { .size = 2, .program = program_threads };

	CU_ASSERT_EQUAL(run_real_ranks(run), 0);
}

/* A fork's child may only leave; its parent is not disturbed by that. */
static void program_fork(tutti *job)
{
	int status;
	pid_t child = fork();

	if (child == 0) {
		int refused = tutti_barrier(job, NULL) == -ECHILD;
		tutti_leave(job);
		/* so that no leak checker counts the parent's memory here */
		execlp(refused ? "true" : "false", "child", NULL);
		_exit(1);
	}
	CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
	CHECK(tutti_barrier(job, NULL) == 0);
}

static void test_fork(void)
{
	struct ranks run = { .size = 2, .program = program_fork };

	CU_ASSERT_EQUAL(run_real_ranks(run), 0);
}

/* ---- operations ---- */

/* NULL, and a sentence that says so. */
#define REFUSES(call) CHECK((tt_remember(""), (call) == -EINVAL) && strstr(tutti_why(), "NULL"))

static void job_refuses_null(tutti *job)
{
	tutti_config config = tutti_config_defaults();

	REFUSES(tutti_join(&config, NULL));
	REFUSES(tutti_leave_on(NULL, SIGTERM));
	REFUSES(tutti_leave_asked(NULL, SIGTERM));
	REFUSES(tutti_rank(NULL));
	REFUSES(tutti_size(NULL));
	REFUSES(tutti_local_rank(NULL));
	REFUSES(tutti_local_size(NULL));
	REFUSES(tutti_pin(NULL, 0));
	REFUSES(tutti_alloc(NULL, 1, -1, &(void *){ NULL }));
	REFUSES(tutti_alloc(job, 1, -1, NULL));
	REFUSES(tutti_group_split(NULL, 0, 0, &job));
	REFUSES(tutti_group_split(job, 0, 0, NULL));
	REFUSES(tutti_group_shrink(NULL, &job));
	REFUSES(tutti_group_shrink(job, NULL));
	REFUSES(tutti_group_grow(NULL, &job));
	REFUSES(tutti_group_grow(job, NULL));
	REFUSES(tutti_group_member(NULL, 0));
	REFUSES(tutti_group_rank(NULL, 0));
	REFUSES(tutti_late(NULL));
	REFUSES(tutti_group_peer(NULL, 0, &(tutti_peer){ 0 }));
	REFUSES(tutti_group_peer(job, 0, NULL));
	REFUSES(tutti_group_watch(NULL, NULL, NULL));
	REFUSES(tutti_group_next(NULL, &(tutti_change){ 0 }));
	REFUSES(tutti_group_next(job, NULL));
	REFUSES(tutti_stats(NULL, -1, TUTTI_STAT_PUT, &(tutti_stat){ 0 }));
	REFUSES(tutti_stats(job, -1, TUTTI_STAT_PUT, NULL));
	REFUSES(tutti_stats_dump(NULL, 1));
	tutti_leave(NULL);
	tutti_group_free(NULL);
	CHECK(tutti_job(NULL) == NULL);
	tutti_free(job, NULL);
}

static void window_refuses_null(tutti *job)
{
	uint64_t memory = 0;
	tutti_window *w;

	CHECK(tutti_window_open(job, "null", &memory, 8, &w) == 0);
	REFUSES(tutti_window_open(NULL, "none", &memory, 8, &w));
	REFUSES(tutti_window_open(job, "none", &memory, 8, NULL));
	REFUSES(tutti_window_open(job, "none", NULL, 8, &w));
	CHECK(tutti_window_open(job, NULL, &memory, 8, &w) == -EINVAL);
	REFUSES(tutti_put(NULL, 0, 0, &memory, 8, NULL));
	REFUSES(tutti_put(w, 0, 0, NULL, 8, NULL));
	REFUSES(tutti_get(NULL, 0, 0, &memory, 8, NULL));
	REFUSES(tutti_get(w, 0, 0, NULL, 8, NULL));
	REFUSES(tutti_add(NULL, 0, 0, 1, NULL, NULL));
	REFUSES(tutti_put_notify(NULL, 0, 0, &memory, 8, 0, NULL));
	REFUSES(tutti_put_notify(w, 0, 0, NULL, 8, 0, NULL));
	REFUSES(tutti_wait_notify(NULL, 0, 0, 1, 0));
	CHECK(!tutti_window_map(NULL, 0));
	tutti_window_close(NULL);
	tutti_window_close(w);
}

static void collectives_refuse_null(tutti *job)
{
	const size_t sizes[] = { 8 }, places[] = { 0 };
	float x[2] = { 0 };

	REFUSES(tutti_allreduce(NULL, x, x, 1, TUTTI_F32, TUTTI_SUM, NULL));
	REFUSES(tutti_allreduce(job, NULL, x, 1, TUTTI_F32, TUTTI_SUM, NULL));
	REFUSES(tutti_allreduce_tensors(NULL, &(tutti_tensor){ x, 1, TUTTI_F32 }, 1, TUTTI_SUM, NULL));
	REFUSES(tutti_allreduce_tensors(job, NULL, 1, TUTTI_SUM, NULL));
	REFUSES(tutti_reduce(NULL, x, x, 1, TUTTI_F32, TUTTI_SUM, 0, NULL));
	REFUSES(tutti_reduce(job, NULL, x, 1, TUTTI_F32, TUTTI_SUM, 0, NULL));
	REFUSES(tutti_allgatherv(NULL, x, 4, x, sizes, places, NULL));
	REFUSES(tutti_allgatherv(job, x, 4, x, NULL, NULL, NULL));
	REFUSES(tutti_broadcast(NULL, x, 4, 0, NULL));
	REFUSES(tutti_broadcast(job, NULL, 4, 0, NULL));
	REFUSES(tutti_gather(NULL, x, 4, x, -1, NULL));
	REFUSES(tutti_gather(job, NULL, 4, x, -1, NULL));
	REFUSES(tutti_gather(job, x, 4, NULL, -1, NULL));
	REFUSES(tutti_barrier(NULL, NULL));
	REFUSES(tutti_reduce_scatter(NULL, x, x, 1, TUTTI_F32, TUTTI_SUM, NULL));
	REFUSES(tutti_reduce_scatter(job, x, NULL, 1, TUTTI_F32, TUTTI_SUM, NULL));
	REFUSES(tutti_allgather(NULL, x, 4, x, NULL));
	REFUSES(tutti_allgather(job, NULL, 4, x, NULL));
	REFUSES(tutti_alltoall(NULL, x, 4, x + 1, NULL));
	REFUSES(tutti_alltoall(job, x, 4, NULL, NULL));
	REFUSES(tutti_alltoallv(NULL, x, sizes, places, x, sizes, places, NULL));
	REFUSES(tutti_alltoallv(job, x, NULL, places, x, sizes, places, NULL));
}

static void table_refuses_null(tutti *job)
{
	tutti_table_config c = tutti_table_f32(2, tutti_accumulate());
	tutti_consistency as = { .mode = TUTTI_ASYNC };
	tutti_table_info info = { 0 };
	uint64_t row = 0;
	float x[2] = { 0 };
	tutti_table *t;
	size_t n;

	c.flags = TUTTI_TABLE_FRESH;
	CHECK(tutti_table_open(job, "null", &c, &t) == 0);
	REFUSES(tutti_table_open(NULL, "none", &c, &t));
	REFUSES(tutti_table_open(job, "none", &c, NULL));
	CHECK(tutti_table_open(job, "none", NULL, &t) == -EINVAL && tutti_table_open(job, NULL, &c, &t) == -EINVAL);
	REFUSES(tutti_table_push(NULL, x, NULL, NULL));
	REFUSES(tutti_table_push(t, NULL, NULL, NULL));
	REFUSES(tutti_table_pull(NULL, x, NULL));
	REFUSES(tutti_table_pull(t, NULL, NULL));
	REFUSES(tutti_table_push_pull(NULL, x, NULL, x, NULL));
	REFUSES(tutti_table_push_pull(t, x, NULL, NULL, NULL));
	REFUSES(tutti_table_assign(NULL, x, NULL));
	REFUSES(tutti_table_assign(t, NULL, NULL));
	REFUSES(tutti_table_snapshot(NULL, x, NULL, NULL));
	REFUSES(tutti_table_snapshot(t, NULL, NULL, NULL));
	REFUSES(tutti_table_push_rows(NULL, &row, 1, x, NULL, NULL));
	REFUSES(tutti_table_push_rows(t, NULL, 1, x, NULL, NULL));
	REFUSES(tutti_table_pull_rows(NULL, &row, 1, x, NULL));
	REFUSES(tutti_table_pull_rows(t, &row, 1, NULL, NULL));
	REFUSES(tutti_table_pull_fresh(NULL, &row, x, 1, &n, NULL));
	REFUSES(tutti_table_pull_fresh(t, &row, x, 1, NULL, NULL));
	REFUSES(tutti_table_refresh_rows(NULL, &row, 1, x, &n, NULL));
	REFUSES(tutti_table_refresh_rows(t, NULL, 1, x, &n, NULL));
	REFUSES(tutti_table_look(NULL, &info));
	CHECK(tutti_table_look(t, NULL) == -EINVAL);
	REFUSES(tutti_table_switch(NULL, &as));
	REFUSES(tutti_table_switch(t, NULL));
	REFUSES(tutti_table_finish(NULL));
	REFUSES(tutti_table_reopen(NULL));
	REFUSES(tutti_table_save(NULL, "/tmp"));
	CHECK(tutti_table_save(t, NULL) == -EINVAL && tutti_table_load(t, NULL) == -EINVAL);
	REFUSES(tutti_table_load(NULL, "/tmp"));
	tutti_table_close(NULL);
	tutti_table_close(t);
}

static void program_null(tutti *job)
{
	job_refuses_null(job);
	window_refuses_null(job);
	collectives_refuse_null(job);
	table_refuses_null(job);
	REFUSES(tutti_wait(NULL, 0));
	REFUSES(tutti_test(NULL));
	REFUSES(tutti_cancel(NULL));
	REFUSES(tutti_wait_all(NULL, 1, 0));
	REFUSES(tutti_wait_any(NULL, 1, 0));
	REFUSES(tutti_event_fd(NULL));
	CHECK(tutti_barrier(job, NULL) == 0);
}

static void test_null(void) { on_wires(program_null, one, 0, NULL); }

static void test_idle(void)
{
	tutti_op op = { 0 }, *ops[] = { &op, NULL };

	CU_ASSERT(tutti_wait(&op, -1) == 0 && tutti_test(&op) == 0 && tutti_cancel(&op) == 0);
	CU_ASSERT(tutti_wait_all(ops, 2, -1) == 0 && tutti_wait_all(NULL, 0, -1) == 0);
	CU_ASSERT(tutti_wait_any(ops, 2, -1) == -ENOENT && tutti_wait_any(NULL, 0, -1) == -ENOENT);
	CU_ASSERT(tutti_wait_all(ops, -1, 0) == -EINVAL && tutti_wait_any(ops, -1, 0) == -EINVAL);
}

/* What would start a second operation in the op. */
static void all_refuse(tutti *job, tutti_window *w, tutti_table *t, tutti_op *op)
{
	const size_t sizes[] = { 4, 4 }, places[] = { 0, 4 };
	uint64_t v = 0, row = 0;
	float x[4] = { 0 };
	size_t n;

	CHECK(tutti_put(w, 0, 0, &v, 8, op) == -EINVAL && strstr(tutti_why(), "get runs in this tutti_op"));
	CHECK(tutti_get(w, 0, 0, &v, 8, op) == -EINVAL && tutti_add(w, 0, 0, 1, NULL, op) == -EINVAL);
	CHECK(tutti_put_notify(w, 0, 0, &v, 8, 0, op) == -EINVAL && tutti_barrier(job, op) == -EINVAL);
	CHECK(tutti_allreduce(job, x, x, 1, TUTTI_F32, TUTTI_SUM, op) == -EINVAL);
	CHECK(tutti_broadcast(job, x, 4, 0, op) == -EINVAL && tutti_gather(job, &v, 8, x, -1, op) == -EINVAL);
	CHECK(tutti_reduce_scatter(job, x, x + 2, 1, TUTTI_F32, TUTTI_SUM, op) == -EINVAL);
	CHECK(tutti_allgather(job, &v, 8, x, op) == -EINVAL && tutti_alltoall(job, x, 4, x + 2, op) == -EINVAL);
	CHECK(tutti_alltoallv(job, x, sizes, places, x + 2, sizes, places, op) == -EINVAL);
	CHECK(tutti_table_push(t, x, NULL, op) == -EINVAL && tutti_table_pull(t, x, op) == -EINVAL);
	CHECK(tutti_table_push_pull(t, x, NULL, x, op) == -EINVAL && tutti_table_assign(t, x, op) == -EINVAL);
	CHECK(tutti_table_snapshot(t, x, NULL, op) == -EINVAL);
	CHECK(tutti_table_push_rows(t, &row, 1, x, NULL, op) == -EINVAL);
	CHECK(tutti_table_pull_rows(t, &row, 1, x, op) == -EINVAL);
	CHECK(tutti_table_pull_fresh(t, &row, x, 1, &n, op) == -EINVAL);
	CHECK(tutti_table_refresh_rows(t, &row, 1, x, &n, op) == -EINVAL);
}

/* An op is busy if an operation runs in it, whatever the memory of another one says: a copy, or garbage. */
static void program_busy(tutti *job)
{
	tutti_table_config c = tutti_table_f32(4, tutti_accumulate());
	uint64_t mine = 5, got[3] = { 0 };
	tutti_op op = { 0 }, copy, garbage, *ops[] = { &op, &copy, &garbage };
	tutti_table *t;
	tutti_window *w;

	c.flags = TUTTI_TABLE_FRESH | TUTTI_TABLE_SNAPSHOTS;
	memset(&garbage, 0xa5, sizeof garbage);
	CHECK(tutti_table_open(job, "busy", &c, &t) == 0);
	if (tutti_rank(job) == 0) {
		CHECK(tutti_window_open(job, "busy", &mine, 8, &w) == 0);
		CHECK(tutti_get(w, 1, 0, &got[0], 8, &op) == 0); /* runs until rank 1 opens its window */
		copy = op;
		all_refuse(job, w, t, &op);
		CHECK(tutti_get(w, 1, 0, &got[1], 8, &copy) == 0);
		CHECK(tutti_get(w, 1, 0, &got[2], 8, &garbage) == 0);
		CHECK(tutti_wait_all(ops, 3, 0) == -EINPROGRESS && strstr(tutti_why(), "get has not ended"));
		CHECK(tutti_wait_any(ops, 3, 0) == -EINPROGRESS);
	}
	CHECK(tutti_barrier(job, NULL) == 0); /* no call that was refused counts as one of this group's */
	if (tutti_rank(job) == 1)
		CHECK(tutti_window_open(job, "busy", &mine, 8, &w) == 0);
	else
		CHECK(tutti_wait_all(ops, 3, -1) == 0 && got[0] == 5 && got[1] == 5 && got[2] == 5);
	if (tutti_rank(job) == 0)
		CHECK(tutti_put(w, 1, 1, &mine, 8, &op) == -ERANGE &&
		      tutti_wait(&op, -1) == 0); /* nothing was started */
	if (tutti_rank(job) == 0)
		CHECK(tutti_put(w, 1, 0, &mine, 8, &op) == 0 && tutti_wait(&op, -1) == 0); /* and again */
	CHECK(tutti_barrier(job, NULL) == 0);
	tutti_window_close(w);
	tutti_table_close(t);
}

static void test_busy(void) { on_wires(program_busy, two, 0, NULL); }

/* Operations that end when a test says so. */
static void begin(tutti *job, tutti_op *op)
{
	tt_lock(job->job);
	tt_operation_begin(job->job, op, NULL, "made up", -1);
	tt_unlock(job->job);
}

static void end(tutti *job, tutti_op *op, int err)
{
	tt_lock(job->job);
	tt_operation_end((struct tt_operation *)op, err);
	tt_unlock(job->job);
}

static struct {
	struct tt_timer timer;
	tutti_op *op;
} soon;

static void end_now(struct tt_timer *timer)
{
	(void)timer;
	tt_operation_end((struct tt_operation *)soon.op, 0);
}

static void end_soon(tutti *job, tutti_op *op)
{
	soon.op = op;
	tt_lock(job->job);
	tt_timer_start(job->job, &soon.timer, tt_now() + 5 * TT_MS, end_now);
	tt_unlock(job->job);
}

/* Each operation is returned once, as it ends. */
static void program_wait_any(tutti *job)
{
	tutti_op op[3] = { 0 }, idle = { 0 }, *ops[] = { &idle, &op[0], NULL, &op[1], &op[2] };

	for (int i = 0; i < 3; i++)
		begin(job, &op[i]);
	CHECK(tutti_wait_any(ops, 5, 0) == -EINPROGRESS);
	end_soon(job, &op[1]);
	CHECK(tutti_wait_any(ops, 5, 10000) == 3);
	CHECK(tutti_wait_any(ops, 5, 0) == -EINPROGRESS);
	end(job, &op[2], -EIO);
	end(job, &op[0], 0);
	CHECK(tutti_wait(&op[0], 0) == 0);
	CHECK(tutti_wait_any(ops, 5, 0) == 4 && tutti_wait_any(ops, 5, 10000) == -ENOENT);
	CHECK(tutti_wait(ops[4], 0) == -EIO && tutti_test(ops[4]) == -EIO && tutti_cancel(ops[4]) == -EIO);
}

/* The first error in the order of the list, once all have ended, however often it is asked for. */
static void program_wait_all(tutti *job)
{
	tutti_op op[4] = { 0 }, *ops[] = { NULL, &op[0], &op[1], &op[2], &op[3] };

	for (int i = 0; i < 3; i++)
		begin(job, &op[i]);
	end(job, &op[2], -EPERM);
	end(job, &op[1], -EIO);
	CHECK(tutti_wait_all(ops, 5, 1) == -EINPROGRESS);
	end_soon(job, &op[0]);
	for (int i = 0; i < 2; i++)
		CHECK(tutti_wait_all(ops, 5, 10000) == -EIO && strstr(tutti_why(), strerror(EIO)));
	CHECK(tutti_wait_any(ops, 5, 0) == -ENOENT && tutti_test(&op[2]) == -EPERM);
}

static void test_wait_any(void) { on_wires(program_wait_any, one, 0, NULL); }
static void test_wait_all(void) { on_wires(program_wait_all, one, 0, NULL); }

/* All calls about an op of a job that was left, which others may have the memory of by now. */
static void is_of_left_job(tutti_op *op)
{
	CU_ASSERT(tutti_wait(op, -1) == -EINVAL && strstr(tutti_why(), "has been left"));
	CU_ASSERT(tutti_test(op) == -EINVAL && tutti_cancel(op) == -EINVAL);
	CU_ASSERT(tutti_wait_all(&op, 1, -1) == -EINVAL && tutti_wait_any(&op, 1, -1) == -EINVAL);
}

static void test_left_job(void)
{
	const tutti_config alone = { .ranks = 1, .boot = "127.0.0.1:1", .newcomers = TUTTI_NEVER };
	tutti_op of_a = { 0 }, of_b = { 0 }, busy = { 0 }, *both[] = { &of_b, &busy };
	tutti *a, *b = NULL, *later;

	CU_ASSERT_FATAL(tutti_join(&alone, &a) == 0 && tutti_join(&alone, &b) == 0);
	CU_ASSERT(tutti_barrier(a, &of_a) == 0 && tutti_wait(&of_a, -1) == 0 && tutti_barrier(b, &of_b) == 0);
	begin(a, &busy);
	CU_ASSERT(tutti_barrier(b, &busy) == -EINVAL && strstr(tutti_why(), "made up runs in this tutti_op"));
	CU_ASSERT(tutti_wait_all(both, 2, 0) == -EINVAL && strstr(tutti_why(), "another job"));
	CU_ASSERT(tutti_wait_any(both, 2, 0) == -EINVAL && strstr(tutti_why(), "another job"));
	end(a, &busy, 0);
	tutti_leave(a);
	CU_ASSERT_FATAL(tutti_join(&alone, &later) == 0);
	is_of_left_job(&of_a);
	is_of_left_job(&busy);
	CU_ASSERT(tutti_wait(&of_b, -1) == 0);
	CU_ASSERT(tutti_barrier(b, &of_a) == 0 && tutti_wait(&of_a, -1) == 0);
	tutti_leave(later);
	tutti_leave(b);
}

/* ---- deadlines, on sim, where a rank can be stopped at will ---- */

/* Rank 2 is stopped for long: everybody's call ends with -ECONNRESET and names rank 2, not a neighbour. */
static void program_silent(tutti *job)
{
	enum { COUNT = 30000 };
	float *v = calloc(COUNT, sizeof *v);
	int err = tutti_barrier(job, NULL);

	if (tutti_rank(job) == 0)
		tt_sim_stop(2, 0, 2000 * TT_MS);
	uint64_t start = tt_now();
	for (int i = 0; i < 3 && !err; i++)
		err = tutti_allreduce(job, v, v, COUNT, TUTTI_F32, TUTTI_SUM, NULL);
	if (tutti_rank(job) != 2) {
		CHECK(err == -ECONNRESET);
		CHECK(strstr(tutti_why(), "rank 2") != NULL);
		CHECK(tt_now() - start < 400 * TT_MS);
		CHECK(tutti_allreduce(job, v, v, COUNT, TUTTI_F32, TUTTI_SUM, NULL) == -ECONNRESET);
	} else {
		CHECK(err < 0);
	}
	free(v); /* nothing of it lands afterwards: the sanitizer would see */
	if (tutti_rank(job) != 2)
		tt_sim_sleep(3000 * TT_MS);
}

static void test_silent(void)
{
	for (uint64_t seed = 0; seed < 3 * SEEDS; seed++) {
		struct ranks run = {
			.size = 5, .wire = "sim", .seed = seed, .timeout_ms = 200, .program = program_silent
		};
		CU_ASSERT_EQUAL(run_ranks(run), 0);
	}
}

/* Rank 1 lives but does not take part: it is named, and nobody is evicted. Whoever calls later, rank 1 too, gets the
 * same; after a shrink all go on. */
static void program_absent(tutti *job)
{
	float x = tutti_rank(job);
	tutti *again = NULL;

	CHECK(tutti_barrier(job, NULL) == 0);
	CHECK(tutti_group_timeout(job, tutti_rank(job) == 3 ? 150 : 0) == 0); /* the shortest timeout decides */
	uint64_t then = tt_now();
	if (tutti_rank(job) == 1)
		pass_time(900 * TT_MS);
	CHECK(tutti_allreduce(job, &x, &x, 1, TUTTI_F32, TUTTI_SUM, NULL) == -ETIMEDOUT);
	CHECK(tutti_rank(job) == 1 || tt_now() - then < 600 * TT_MS);
	CHECK(strstr(tutti_why(),
	             "rank 3 gave it up after 150 ms: it had not been called by rank 1: its last call was barrier"));
	CHECK(tutti_barrier(job, NULL) == -ETIMEDOUT && strstr(tutti_why(), "tutti_group_shrink"));
	tutti_group_timeout(job, 0);
	CHECK(tutti_group_shrink(job, &again) == 0 && tutti_size(again) == tutti_size(job));
	x = tutti_rank(job);
	CHECK(again && tutti_allreduce(again, &x, &x, 1, TUTTI_F32, TUTTI_SUM, NULL) == 0 && x == 6);
	for (int i = 0; i < tutti_size(job); i++)
		CHECK(!has_gone(job, i));
}

static void test_absent(void) { on_wires(program_absent, four, 2000, NULL); }

/* wait leaves op and memory with the library; cancel takes them back, and cuts nobody off. */
static void program_cancel(tutti *job)
{
	enum { COUNT = 30000, WAIT_MS = 40 };
	float *v = calloc(COUNT, sizeof *v);
	tutti_op op = { 0 };

	CHECK(tutti_barrier(job, NULL) == 0);
	if (tutti_rank(job) == 1) {
		pass_time(500 * TT_MS);
		free(v);
		return;
	}
	CHECK(tutti_allreduce(job, v, v, COUNT, TUTTI_F32, TUTTI_SUM, &op) == 0);
	for (int i = 0, err; i < 2; i++)
		CHECK((err = tutti_wait(&op, WAIT_MS)) == -EINPROGRESS ||
		      err == -ECONNABORTED); /* the other one cancels, too */
	CHECK(tutti_cancel(&op) != -EINPROGRESS);
	CHECK(tutti_test(&op) == -ECANCELED || tutti_test(&op) == -ECONNABORTED);
	CHECK(!has_gone(job, 1));
	free(v);
}

static void test_cancel(void) { on_wires(program_cancel, three, 400, NULL); }

/* Who leaves in order fails nobody's earlier call; later ones say that it has left. */
static void program_left(tutti *job)
{
	float x = 1;

	CHECK(tutti_allreduce(job, &x, &x, 1, TUTTI_F32, TUTTI_SUM, NULL) == 0);
	if (tutti_rank(job) == 0)
		return;
	pass_time(50 * TT_MS);
	int err = tutti_allreduce(job, &x, &x, 1, TUTTI_F32, TUTTI_SUM, NULL);
	CHECK(err == -ENOTCONN || err == -ECONNRESET);
	CHECK(strstr(tutti_why(), "left") != NULL);
}

static void test_left(void) { on_wires(program_left, two, 1000, NULL); }

/* ---- groups ---- */

/* Every rank's number in the job, by a sum that only it gives a share to: exact, and each group has its own. */
static void check_group(tutti *g, const int *ranks, int n, size_t count)
{
	double *v = calloc(count, sizeof *v), sum = 0;
	size_t wrong = 0;

	CHECK(tutti_size(g) == n);
	CHECK(ranks[tutti_rank(g)] == tutti_group_member(g, tutti_rank(g)));
	for (int i = 0; i < n; i++) {
		CHECK(tutti_group_member(g, i) == ranks[i]);
		sum += 1 << ranks[i];
	}
	for (size_t i = 0; i < count; i++)
		v[i] = 1 << ranks[tutti_rank(g)];
	CHECK(tutti_allreduce(g, v, v, count, TUTTI_F64, TUTTI_SUM, NULL) == 0);
	for (size_t i = 0; i < count; i++)
		wrong += v[i] != sum;
	CHECK(wrong == 0);
	free(v);
}

static void program_split(tutti *job)
{
	int n = tutti_size(job), me = tutti_rank(job), half[8], k = 0, root = -1;
	tutti *part = NULL, *single = NULL, *none = job;

	for (int i = n - 1; i >= 0; i--)
		if (i % 2 == me % 2)
			half[k++] = i;
	CHECK(tutti_group_split(job, me % 2, -me, &part) == 0);
	check_group(part, half, k, 3);
	check_group(part, half, k, 20000); /* by put */
	CHECK(tutti_group_split(part, me, 0, &single) == 0);
	check_group(single, &me, 1, 5);
	CHECK(tutti_group_split(job, me == 0 ? -1 : 7, 0, &none) == 0);
	CHECK((none == NULL) == (me == 0));
	root = me;
	CHECK(tutti_broadcast(part, &root, sizeof root, k - 1, NULL) == 0);
	CHECK(root == half[k - 1]);
	CHECK(tutti_broadcast(part, &root, sizeof root, k, NULL) == -EINVAL);
	CHECK(tutti_group_member(part, k) == -EINVAL);
	for (int i = 0; i < n; i++)
		CHECK(tutti_group_rank(job, i) == i);
	for (int i = 0; i < k; i++)
		CHECK(tutti_group_rank(part, half[i]) == i);
	CHECK(tutti_group_rank(part, me ^ 1) == -ENOENT && strstr(tutti_why(), "not in this group"));
	CHECK(tutti_group_rank(part, -1) == -ENOENT && tutti_group_rank(part, n) == -ENOENT);
	CHECK(tutti_job(job) == job && tutti_job(part) == job && tutti_job(single) == job);
	tutti_group_free(job); /* the job's own: it stays */
	tutti_group_free(single);
	tutti_group_free(part); /* the others' end with the job */
	CHECK(tutti_barrier(job, NULL) == 0);
}

static void test_split(void) { on_wires(program_split, many, 0, NULL); }

/* A window keeps the numbering of the group that it was opened with, also when that has ended. */
static void use_part(tutti_window *w, uint64_t *mine, int k, int at, const int *ranks)
{
	int next = (at + 1) % k, before = (at + k - 1) % k;
	uint64_t x = (uint64_t)ranks[at] + 100, y = 0, old = 0;

	CHECK(tutti_put_notify(w, next, 0, &x, 8, 1, NULL) == 0);
	CHECK(tutti_wait_notify(w, before, 1, 1, -1) == 0 && mine[0] == (uint64_t)ranks[before] + 100);
	CHECK(tutti_get(w, next, 0, &y, 8, NULL) == 0 && y == x);
	CHECK(tutti_add(w, next, 8, x, &old, NULL) == 0 && tutti_put_notify(w, next, 0, NULL, 0, 2, NULL) == 0);
	CHECK(tutti_wait_notify(w, before, 2, 1, -1) == 0 && mine[1] == (uint64_t)ranks[before] + 100);
	CHECK(tutti_put(w, k, 0, &x, 8, NULL) == -EINVAL && strstr(tutti_why(), "\"part\""));
	CHECK(tutti_get(w, -1, 0, &x, 8, NULL) == -EINVAL && tutti_wait_notify(w, k, 1, 1, 0) == -EINVAL);
	CHECK(tutti_window_map(w, k) == NULL && tutti_window_map(w, at) == mine);
	uint64_t *there = tutti_window_map(w, next);
	CHECK(!there || there[0] == x);
	CHECK(tutti_put(w, next, 4096, &x, 8, NULL) == -ERANGE);
}

static void program_part_window(tutti *job)
{
	int n = tutti_size(job), me = tutti_rank(job), half[8], k = 0, at;
	void *mine = NULL, *all = NULL;
	tutti_window *w, *met;
	uint64_t x = 7;
	tutti *part;

	for (int i = n - 1; i >= 0; i--)
		if (i % 2 == me % 2)
			half[k++] = i;
	CHECK(tutti_alloc(job, 4096, -1, &mine) == 0 && tutti_alloc(job, 4096, -1, &all) == 0);
	CHECK(tutti_group_split(job, me % 2, -me, &part) == 0);
	at = tutti_rank(part);
	CHECK(tutti_window_open(part, "part", mine, 4096, &w) == 0);
	CHECK(tutti_window_open(me % 2 ? part : job, "met", all, 4096, &met) == 0);
	if (me % 2 == 0) /* of two groups, by the numbers of this rank's own */
		for (int i = 1; i < n; i += 2)
			CHECK(tutti_put_notify(met, i, 8 * (size_t)me, &x, 8, 3, NULL) == 0);
	else
		CHECK(tutti_wait_notify(met, -1, 3, (uint64_t)(n + 1) / 2, -1) == 0 && ((uint64_t *)all)[0] == 7);
	tutti_group_free(part);
	use_part(w, mine, k, at, half);
	CHECK(tutti_barrier(job, NULL) == 0);
	tutti_window_close(w);
	tutti_window_close(met);
	tutti_free(job, mine);
	tutti_free(job, all);
}

static void test_part_window(void) { on_wires(program_part_window, many, 0, NULL); }

/* What is known of the others: of whom this rank has put to, over which wire. */
static void program_peer(tutti *job)
{
	const struct ranks *run = tt_world ? sim_run_now : this_run;
	int n = tutti_size(job), me = tutti_rank(job);
	char host[64] = "";
	uint64_t x = 0;
	tutti *part = NULL;
	tutti_window *w;
	tutti_peer p;

	if (!tt_world)
		gethostname(host, sizeof host);
	CHECK(tutti_window_open(job, "peer", &x, 8, &w) == 0);
	pass_time(50 * TT_MS); /* a life is counted in 64ths of a second */
	for (int i = 0; i < n; i++) {
		CHECK(tutti_put(w, i, 0, &(uint64_t){ 1 }, 8, NULL) == 0);
		CHECK(tutti_group_peer(job, i, &p) == 0);
		CHECK(p.rank == i && p.state == TUTTI_JOINED && !*p.why_not && !strcmp(p.host, host));
		CHECK(!strcmp(p.transport, i == me ? "self" : run->wire));
		CHECK(n == 1 || tt_world || !strncmp(p.address, "127.0.0.1:", 10));
		CHECK(p.alive_s > 0 && p.alive_s < 60);
	}
	CHECK(tutti_group_split(job, 0, -me, &part) == 0);
	for (int i = 0; i < n; i++)
		CHECK(tutti_group_peer(part, i, &p) == 0 && p.rank == n - 1 - i);
	CHECK(tutti_group_peer(part, n, &p) == -EINVAL && tutti_group_peer(part, -1, &p) == -EINVAL);
	CHECK(tutti_barrier(job, NULL) == 0);
	if (n == 1 || me == n - 1)
		return; /* leaves */
	CHECK(tutti_wait_notify(w, n - 1, 1, 1, -1) == -ENOTCONN);
	CHECK(tutti_group_peer(job, n - 1, &p) == 0 && p.state == TUTTI_LEFT && p.alive_s == 0);
	CHECK(!*p.transport && !*p.why_not);
}

static void test_peer(void) { on_wires(program_peer, few, 2000, NULL); }

/* Ranks 0 and 2 are on one host. */
static void program_far_peer(tutti *job)
{
	int me = tutti_rank(job);
	uint64_t x = 0;
	tutti_window *w;
	tutti_peer p;

	CHECK(tutti_window_open(job, "peer", &x, 8, &w) == 0);
	for (int i = 0; i < 3; i++) {
		bool near = (i - me) % 2 == 0;
		CHECK(tutti_put(w, i, 0, &(uint64_t){ 1 }, 8, NULL) == 0 && tutti_group_peer(job, i, &p) == 0);
		CHECK(!strcmp(p.transport, i == me ? "self" : near ? "shm" : "tcp"));
		CHECK(near ? !*p.why_not : !!strstr(p.why_not, "is on another host, and shm stays within one"));
	}
	CHECK(tutti_barrier(job, NULL) == 0);
}

static atomic_bool met; /* the heartbeat has connected them over shared memory already */

/* Two ranks of a host do without shared memory, as if the other one were in a container. One has tried at least. */
static void program_detour(tutti *job)
{
	char list[200];
	int me = tutti_rank(job);
	struct tt_member *m = tt_member(job->job, 1 - me);
	char addr[96] = "", both[2][300];
	tutti_window *w;
	tutti_peer p;

	tt_lock(job->job);
	CHECK(tt_address_find(m->addr, "tcp", addr));
	snprintf(list, sizeof list, "shm:0000000000000001:0000000000000001 %s", addr);
	free((char *)(uintptr_t)m->addr);
	m->addr = strdup(list); /* the job frees it */
	if (m->state == TT_UP && !strcmp(tt_member_net(m)->transport->name, "shm"))
		met = true;
	tt_unlock(job->job);
	CHECK(tutti_barrier(job, NULL) == 0);
	if (met)
		return;
	CHECK(tutti_window_open(job, "peer", NULL, 0, &w) == 0);
	CHECK(tutti_put_notify(w, 1 - me, 0, NULL, 0, 1, NULL) == 0 && tutti_wait_notify(w, 1 - me, 1, 1, -1) == 0);
	CHECK(tutti_group_peer(job, 1 - me, &p) == 0);
	if (!strcmp(p.transport, "shm")) /* they were connecting when this rank looked */
		met = true;
	CHECK(tutti_barrier(job, NULL) == 0);
	if (met)
		return;
	CHECK(!strcmp(p.transport, "tcp") && *p.why_not);
	CHECK(tutti_gather(job, p.why_not, sizeof p.why_not, both, -1, NULL) == 0);
	CHECK(strstr(both[0], "rank 1 is not reached over shm: cannot connect") ||
	      strstr(both[1], "rank 0 is not reached over shm: cannot connect"));
	for (int i = 0; i < 2; i++) /* no sentence for people has the address, which is numbers */
		CHECK(!strstr(both[i], "0000000000000001"));
}

static void test_detour(void)
{
	for (int tries = 0; tries < 20; tries++) {
		met = false;
		CU_ASSERT_EQUAL(run_ranks((struct ranks){ .size = 2, .wire = "shm", .program = program_detour }), 0);
		if (!met)
			return;
	}
	CU_FAIL("they were always connected before");
}

static void test_far_peer(void)
{
#ifdef HAVE_LIBCONFIG
	CU_ASSERT_EQUAL(run_ranks((struct ranks){ .size = 3, .hosts = 2, .wire = "shm", .program = program_far_peer }),
	                0);
#endif
}

/* In both at once, in either order: they do not wait for each other. */
static void program_two_groups(tutti *job)
{
	float *a = malloc(100000 * sizeof *a), *b = malloc(100000 * sizeof *b);
	int me = tutti_rank(job);
	tutti_op first = { 0 }, second = { 0 };
	tutti *part;

	CHECK(tutti_group_split(job, 0, me, &part) == 0);
	for (int i = 0; i < 100000; i++)
		a[i] = b[i] = (float)me;
	CHECK(tutti_allreduce(me % 2 ? job : part, me % 2 ? a : b, me % 2 ? a : b, 100000, TUTTI_F32, TUTTI_SUM,
	                      &first) == 0);
	CHECK(tutti_allreduce(me % 2 ? part : job, me % 2 ? b : a, me % 2 ? b : a, 100000, TUTTI_F32, TUTTI_SUM,
	                      &second) == 0);
	CHECK(tutti_wait(&first, -1) == 0);
	CHECK(tutti_wait(&second, -1) == 0);
	CHECK(a[0] == 6 && a[99999] == 6 && b[0] == 6 && b[99999] == 6);
	tutti_group_free(part);
	free(a);
	free(b);
}

static void test_two_groups(void) { on_wires(program_two_groups, four, 0, NULL); }

/* A group of which nobody is missing goes on when others of the job do not. */
static void program_part_goes_on(tutti *job)
{
	int me = tutti_rank(job), two[] = { 0, 1 };
	tutti *part;
	float x = 1;

	CHECK(tutti_group_split(job, me < 2 ? 0 : 1, 0, &part) == 0);
	if (me == 3)
		return; /* leaves */
	pass_time(50 * TT_MS);
	if (me == 2)
		CHECK(tutti_allreduce(part, &x, &x, 1, TUTTI_F32, TUTTI_SUM, NULL) == -ENOTCONN);
	else
		check_group(part, two, 2, 10000);
}

static void test_part_goes_on(void) { on_wires(program_part_goes_on, four, 1000, NULL); }

static void program_many_groups(tutti *job)
{
	tutti *parts[1100];
	int n = 0, err = 0;

	while (n < 1100 && !(err = tutti_group_split(job, 0, 0, &parts[n])))
		n++;
	CHECK(err == -EMFILE && n == 1023);
	tutti_group_free(parts[5]);
	CHECK(tutti_group_split(job, 0, 0, &parts[5]) == 0);
	CHECK(tutti_barrier(parts[5], NULL) == 0);
	CHECK(tutti_barrier(parts[1022], NULL) == 0);
}

static void test_many_groups(void)
{
	struct ranks run = { .size = 2, .program = program_many_groups };

	CU_ASSERT_EQUAL(run_real_ranks(run), 0);
}

/* The last one leaves, again and again; the others go on without it. */
static void program_shrink(tutti *job)
{
	int ranks[8] = { 0, 1, 2, 3, 4, 5, 6, 7 }, me = tutti_rank(job), n = tutti_size(job);
	tutti *g = job, *left = NULL;
	float x = 1;

	for (n--; me < n && n > 0; n--) {
		CHECK(tutti_allreduce(g, &x, &x, 1, TUTTI_F32, TUTTI_SUM, NULL) != 0);
		CHECK(tutti_group_shrink(g, &left) == 0);
		CHECK(tutti_barrier(g, NULL) == -ESTALE);
		CHECK(tutti_group_shrink(g, &g) == -ESTALE);
		tutti_group_free(g);
		g = left;
		check_group(g, ranks, n, 1);
		check_group(g, ranks, n, 30000);
	}
	CHECK(tutti_size(job) >= tutti_size(g) && tutti_rank(job) == me);
}

static void test_shrink(void) { on_wires(program_shrink, five_down, 1000, NULL); }

/* Nobody has died, and one never comes: it is left out, lives, and is told that the others went on. */
static void program_shrink_without(tutti *job)
{
	int me = tutti_rank(job), ranks[] = { 0, 1, 3 };
	tutti *left = job;

	if (me == 2) {
		pass_time(700 * TT_MS);
		int err = tutti_group_shrink(job, &left);
		CHECK(err == -ECONNRESET && strstr(tutti_why(), "without this one"));
		CHECK(!has_gone(job, 0));
		return;
	}
	CHECK(tutti_group_shrink(job, &left) == 0);
	if (left != job)
		check_group(left, ranks, 3, 1);
	pass_time(800 * TT_MS); /* rank 2 finds them here */
}

static void test_shrink_without(void) { on_wires(program_shrink_without, four, 300, NULL); }

/* They call long after each other, the coordinator last or first, and come to the same group all the same. */
static void program_shrink_skewed(tutti *job)
{
	static const int skew[2][3] = { { 800, 0, 400 }, { 0, 400, 800 } };
	int me = tutti_rank(job), ranks[] = { 0, 1, 2, 3 };
	tutti *g = job, *left = NULL;
	float x = 1;

	for (int i = 0; i < 2 && me < 4 - i; i++) {
		CHECK(tutti_barrier(g, NULL) == 0);
		if (me == 3 - i)
			return;
		CHECK(tutti_allreduce(g, &x, &x, 1, TUTTI_F32, TUTTI_SUM, NULL) != 0);
		pass_time((uint64_t)skew[i][me] * TT_MS);
		CHECK(tutti_group_shrink(g, &left) == 0);
		check_group(g = left, ranks, 3 - i, 1);
	}
}

static void test_shrink_skewed(void) { on_wires(program_shrink_skewed, four, 1000, NULL); }

/* Some leave as soon as they have shrunk the group, the coordinator among them: nobody else misses what was decided. */
static void leave_shrunk(tutti *job, int leavers)
{
	int me = tutti_rank(job), rest[4], n = 0, err;
	tutti *left = NULL, *last = NULL;

	for (int i = leavers; i < 4; i++)
		rest[n++] = i;
	CHECK(tutti_barrier(job, NULL) == 0);
	if (me == 4)
		return;
	CHECK(tutti_barrier(job, NULL) == -ENOTCONN);
	CHECK(tutti_group_shrink(job, &left) == 0);
	if (!left || me < leavers)
		return;
	CHECK(tutti_size(left) == 4);
	err = tutti_barrier(left, NULL);
	CHECK(err == -ENOTCONN || err == -ECONNRESET);
	CHECK(tutti_group_shrink(left, &last) == 0);
	if (last)
		check_group(last, rest, n, 1);
}

static void program_leave_shrunk(tutti *job) { leave_shrunk(job, 1); }
static void program_two_leave_shrunk(tutti *job) { leave_shrunk(job, 2); }
static void test_leave_shrunk(void) { on_wires(program_leave_shrunk, five, 2000, NULL); }
static void test_two_leave_shrunk(void) { on_wires(program_two_leave_shrunk, five, 2000, NULL); }

/* Rank 1 has no memory for the new group: the others are told, and go on without it. */
static void program_no_memory(tutti *job)
{
	int me = tutti_rank(job), ranks[] = { 0, 2, 3 }, capacity = tt_members(job->job)->capacity;
	tutti *left = NULL, *last = NULL;

	CHECK(tutti_barrier(job, NULL) == 0);
	if (me == 4)
		return;
	CHECK(tutti_barrier(job, NULL) == -ENOTCONN);
	if (me == 1) {
		tt_members(job->job)->capacity = -1; /* more than there is */
		CHECK(tutti_group_shrink(job, &left) == -ENOMEM);
		tt_members(job->job)->capacity = capacity;
		pass_time(500 * TT_MS);
		return;
	}
	CHECK(tutti_group_shrink(job, &left) == 0 && tutti_size(left) == 4);
	uint64_t then = tt_now();
	CHECK(left && tutti_barrier(left, NULL) == -ECONNABORTED && strstr(tutti_why(), "rank 1 gave it up"));
	CHECK(left && tutti_group_shrink(left, &last) == 0);
	CHECK(tt_now() - then < 1900 * TT_MS);
	if (last)
		check_group(last, ranks, 3, 1);
}

static void test_no_memory(void)
{
	if (!TT_ASAN && !TT_TSAN) /* these end the process where there is no memory */
		on_wires(program_no_memory, five, 3000, NULL);
}

/* It names the job for one that has joined late, which has no seat there. */
static void check_whole_job(tutti *again, int rank, int launched)
{
	tutti *job = tutti_job(again), *none = NULL;
	tutti_stat s;
	uint64_t x = 1;
	char all[16 * 8];

	CHECK(job && job != again && tutti_job(job) == job);
	CHECK(tutti_rank(job) == rank && tutti_size(job) == launched);
	for (int i = 0; i <= rank; i++)
		CHECK(tutti_group_member(job, i) == i && tutti_group_rank(job, i) == i);
	CHECK(tutti_group_member(job, rank + 1) == -EINVAL);
	CHECK(tutti_group_rank(again, rank) == 0 && tutti_group_rank(again, 0) == -ENOENT);
	CHECK(tutti_stats(job, rank, TUTTI_STAT_PUT, &s) == 0);
	CHECK(tutti_stats(again, 1, TUTTI_STAT_PUT, &s) == -EINVAL);
	CHECK(tutti_barrier(job, NULL) == -EINVAL && strstr(tutti_why(), "tutti_group_grow"));
	CHECK(tutti_allreduce(job, &x, &x, 1, TUTTI_I64, TUTTI_SUM, NULL) == -EINVAL && x == 1);
	CHECK(tutti_broadcast(job, &x, 8, 0, NULL) == -EINVAL);
	CHECK(tutti_gather(job, &x, 8, all, -1, NULL) == -EINVAL);
	CHECK(tutti_allgather(job, &x, 8, all, NULL) == -EINVAL);
	CHECK(tutti_group_split(job, 0, 0, &none) == -EINVAL && tutti_group_shrink(job, &none) == -EINVAL);
	CHECK(tutti_group_grow(job, &none) == -EINVAL && !none);
	tutti_group_free(job); /* neither ends */
	tutti_group_free(again);
}

static bool await_newcomer(tutti *job, tutti_change *c)
{
	for (uint64_t end = tt_now() + 30000 * TT_MS; tt_now() < end; pass_time(5 * TT_MS))
		if (tutti_group_next(job, c) == 1 && c->what == TUTTI_JOINED)
			return true;
	return false;
}

/* The last rank leaves and comes back, as itself or as a new one; the others go on without it, and then with it. */
static void come_back(tutti *job, int as, int rank)
{
	int ranks[9] = { 0, 1, 2, 3, 4, 5, 6, 7 }, n = tutti_size(job), me = tutti_rank(job);
	tutti *again = NULL, *left = NULL, *g = NULL;
	tutti_change c = { 0 };
	tutti_window *w;
	uint64_t x = 0;
	float y = 1;
	bool watches_last = tt_world && me == 2;

	ranks[n - 1] = rank;
	if (me == n - 1) {
		CHECK(join_again(job, as, &again) == 0);
		if (!again)
			return;
		CHECK(tutti_late(again) == 1 && tutti_size(again) == 1 && tutti_group_member(again, 0) == rank);
		check_whole_job(again, rank, n);
		CHECK(tutti_window_open(tutti_job(again), "w", &x, 8, &w) == 0);
		CHECK(tutti_wait_notify(w, 0, 7, 1, -1) == 0);
		CHECK(x == 42);
		CHECK(tutti_group_grow(again, &g) == 0);
		if (g)
			check_group(g, ranks, n, 5);
		if (g)
			check_group(g, ranks, n, 30000);
		CHECK(tutti_group_grow(again, &left) == -ESTALE);
		CHECK(g && tutti_group_grow(g, &left) == 0); /* nobody new: the same */
		if (left)
			check_group(left, ranks, n, 5);
		tutti_group_free(g);
		tutti_leave(left); /* the job */
		return;
	}
	CHECK(tutti_late(job) == 0);
	if (tt_world && me == 1)
		pass_time(500 * TT_MS); /* this rank watches late, and misses nothing */
	if (!watches_last)
		CHECK(tutti_group_watch(job, NULL, NULL) >= (tt_world ? -1 : 0));
	CHECK(tutti_allreduce(job, &y, &y, 1, TUTTI_F32, TUTTI_SUM, NULL) != 0);
	CHECK(tutti_group_shrink(job, &left) == 0);
	if (!watches_last)
		CHECK(await_newcomer(job, &c) && c.rank == rank);
	else
		pass_time(1000 * TT_MS);
	if (me == 0) {
		uint64_t v = 42;
		CHECK(tutti_window_open(job, "w", &x, 8, &w) == 0);
		CHECK(tutti_put_notify(w, rank, 0, &v, 8, 7, NULL) == 0);
	}
	CHECK(tutti_group_grow(left, &g) == 0);
	if (watches_last) { /* the newcomer is in a group, and no change */
		CHECK(tutti_group_watch(job, NULL, NULL) >= -1);
		while (tutti_group_next(job, &c) == 1)
			CHECK(c.what != TUTTI_JOINED);
	}
	if (g)
		check_group(g, ranks, n, 5);
	if (g)
		check_group(g, ranks, n, 30000);
	CHECK(g && tutti_group_grow(g, &left) == 0);
	if (g)
		check_group(left, ranks, n, 5);
}

/* The last rank leaves, and a new one joins; rank 0 leaves at once: the others may hear of that first, and take rank 0
 * for dead no more for it. */
static void program_leaves_at_once(tutti *job)
{
	char in[16 * 8] = { 0 }, out[16 * 8];
	tutti *again = NULL;
	tutti_change c = { 0 };
	bool left = false;

	CHECK(tutti_alltoall(job, in, 8, out, NULL) == 0); /* all are connected to rank 0 */
	CHECK(tutti_group_watch(job, NULL, NULL) >= -1);
	if (tutti_rank(job) == tutti_size(job) - 1) {
		CHECK(join_again(job, TUTTI_NEW_RANK, &again) == 0);
		if (again)
			tutti_leave(again);
		return;
	}
	for (uint64_t end = tt_now() + 1000 * TT_MS; !left && tt_now() < end;) {
		if (tutti_group_next(job, &c) != 1) {
			pass_time(TT_MS / 10);
			continue;
		}
		CHECK(c.rank != 0 || c.what == TUTTI_LEFT);
		left = tutti_rank(job) == 0 ? c.what == TUTTI_JOINED : c.rank == 0;
	}
	CHECK(left);
}

static void test_leaves_at_once(void)
{
	struct ranks run = { .size = 16, .wire = "sim", .timeout_ms = 3000, .program = program_leaves_at_once };

	for (; run.seed < 6; run.seed++)
		CU_ASSERT_EQUAL(run_ranks(run), 0);
}

/* Two leave, and come back one after the other, in turns that the seed decides; then all are together again. */
static void program_two_back(tutti *job)
{
	int all[] = { 0, 1, 2, 3, 4 }, back[] = { 0, 1, 2, 3, 4 }, me = tutti_rank(job), joined = 0;
	tutti *g = NULL, *left = job, *next;
	tutti_change c = { 0 };
	float x = 1;

	if (me >= 3) {
		tutti *again = NULL;
		pass_time((uint64_t)(me == 3 ? 40 : 80) * TT_MS);
		CHECK(join_again(job, me, &again) == 0);
		CHECK(again && tutti_group_grow(again, &g) == 0);
		if (g && tutti_size(g) == 5)
			check_group(g, tutti_group_member(g, 3) == 3 ? all : (back[3] = 4, back[4] = 3, back), 5,
			            20000);
		CHECK(g && tutti_size(g) == 5);
		tutti_leave(again);
		return;
	}
	CHECK(tutti_group_watch(job, NULL, NULL) >= (tt_world ? -1 : 0));
	while (tutti_size(left) > 3) {
		CHECK(tutti_allreduce(left, &x, &x, 1, TUTTI_F32, TUTTI_SUM, NULL) != 0);
		if (tutti_group_shrink(left, &next))
			return CHECK(false);
		left = next;
	}
	while (joined < 2)
		if (tutti_group_next(job, &c) == 1)
			joined += c.what == TUTTI_JOINED;
		else
			pass_time(5 * TT_MS);
	CHECK(tutti_group_grow(left, &g) == 0);
	CHECK(g && tutti_size(g) == 5);
	if (g && tutti_size(g) == 5)
		check_group(g, tutti_group_member(g, 3) == 3 ? all : (back[3] = 4, back[4] = 3, back), 5, 20000);
}

/* One of many: the group does not fit into one message, and news of the newcomer reach those whom rank 0 has no
 * connection to. */
static void program_one_of_many(tutti *job)
{
	int n = tutti_size(job), wrong = 0;
	tutti *again = NULL, *left = NULL, *g = NULL;
	tutti_change c = { 0 };
	float x = 1;

	CHECK(tutti_barrier(job, NULL) == 0);
	if (tutti_rank(job) == 7) {
		CHECK(join_again(job, 7, &again) == 0);
		CHECK(again && tutti_group_grow(again, &g) == 0);
	} else {
		CHECK(tutti_group_watch(job, NULL, NULL) >= (tt_world ? -1 : 0));
		CHECK(tutti_allreduce(job, &x, &x, 1, TUTTI_F32, TUTTI_SUM, NULL) != 0);
		CHECK(tutti_group_shrink(job, &left) == 0);
		CHECK(await_newcomer(job, &c) && c.rank == 7 && left && tutti_group_grow(left, &g) == 0);
	}
	CHECK(g && tutti_size(g) == n);
	for (int i = 0; g && i < n; i++)
		wrong += tutti_group_member(g, i) != (i < 7 ? i : i < n - 1 ? i + 1 : 7);
	CHECK(wrong == 0);
	x = 1;
	CHECK(g && tutti_allreduce(g, &x, &x, 1, TUTTI_F32, TUTTI_SUM, NULL) == 0 && x == (float)n);
	if (again)
		tutti_leave(again);
}

static void test_one_of_many(void)
{
	struct ranks run = { .size = 230, .wire = "sim", .timeout_ms = 5000, .program = program_one_of_many };

	for (; run.seed < tt_min(SEEDS, 3); run.seed++)
		CU_ASSERT_EQUAL(run_ranks(run), 0);
}

static void program_rejoin(tutti *job) { come_back(job, tutti_size(job) - 1, tutti_size(job) - 1); }
static void program_newcomer(tutti *job) { come_back(job, TUTTI_NEW_RANK, tutti_size(job)); }
static void test_rejoin(void) { on_wires(program_rejoin, five_down, 2000, NULL); }
static void test_two_back(void) { on_wires(program_two_back, five, 3000, NULL); }
static void test_newcomer(void) { on_wires(program_newcomer, five_down, 2000, NULL); }

static CU_TestInfo group_tests[] = {
	{ "a rank comes back", test_rejoin },
	{ "a new rank", test_newcomer },
	{ "two ranks come back", test_two_back },
	{ "rank 0 leaves at once", test_leaves_at_once },
	{ "one of many comes back", test_one_of_many },
	{ "they shrink long after each other", test_shrink_skewed },
	{ "one leaves as it has shrunk", test_leave_shrunk },
	{ "two leave as they have shrunk", test_two_leave_shrunk },
	{ "no memory for a shrunk group", test_no_memory },
	{ "shrink", test_shrink },
	{ "shrink without one that does not come", test_shrink_without },
	{ "split", test_split },
	{ "window of a part", test_part_window },
	{ "peer", test_peer },
	{ "far peer", test_far_peer },
	{ "detour", test_detour },
	{ "two groups at once", test_two_groups },
	{ "a part goes on", test_part_goes_on },
	{ "as many groups as there can be", test_many_groups },
	CU_TEST_INFO_NULL,
};
static CU_TestInfo collective_tests[] = {
	{ "all-reduce: counts, algorithm chosen", test_counts_auto },
	{ "all-reduce: counts, ring", test_counts_ring },
	{ "all-reduce: counts, rabenseifner", test_counts_rabenseifner },
	{ "all-reduce: counts, doubling", test_counts_doubling },
	{ "all-reduce: large", test_large },
	{ "all-reduce: integers", test_integers },
	{ "all-reduce: same bits everywhere", test_bits },
	{ "all-reduce: several in flight", test_in_flight },
	{ "broadcast", test_broadcast },
	{ "gather", test_gather },
	{ "barrier", test_barrier },
	{ "bad arguments", test_bad_arguments },
	{ "ranks that disagree", test_mismatch },
	{ "two roots", test_two_roots },
	{ "left behind", test_left_behind },
	{ "too many at once", test_too_many },
	{ "ahead of a slow rank", test_ahead },
	CU_TEST_INFO_NULL,
};
/* ---- memory that others can map ---- */

static bool is_filled(const char *p, size_t len, char with)
{
	return !len || (*p == with && !memcmp(p, p + 1, len - 1));
}

/* Two on each other, in use or not, would spoil what is looked for here. */
static void use_memory(tutti *job, unsigned chance)
{
	enum { HELD = 40 };
	struct { char *at; size_t len; } held[HELD] = { 0 };
	void *p;

	for (int i = 0; i < 600; i++) {
		int k = rand_r(&chance) % HELD;
		if (held[k].at)
			CHECK(is_filled(held[k].at, held[k].len, (char)k));
		tutti_free(job, held[k].at);
		held[k].len = (size_t)rand_r(&chance) >> rand_r(&chance) % 22 % 31 & 0x3fffff;
		CHECK(tutti_alloc(job, held[k].len, -1, &p) == 0 && (uintptr_t)p % 4096 == 0);
		held[k].at = p;
		CHECK(is_filled(p, held[k].len, 0));
		memset(p, k, held[k].len);
	}
	for (int k = 0; k < HELD; k++)
		tutti_free(job, held[k].at);
}

static void look_at_arenas(tutti *job)
{
	char byte, *large;
	void *small, *p = NULL;

	CHECK(tutti_alloc(job, 5000, -1, &small) == 0 && tutti_alloc(job, 5 << 20, -1, &p) == 0);
	large = p;
	struct tt_mem a = tt_mem_of(small, 8192), b = tt_mem_of(large + 4096, 4096);
	CHECK(a.fd >= 0 && b.fd >= 0 && a.fd != b.fd && b.fd_offset == 4096 && (uintptr_t)large % (2 << 20) == 0);
	struct stat file;
	CHECK(fstat(b.fd, &file) == 0 && b.inode == (uint64_t)file.st_ino && a.inode && a.inode != b.inode);
	CHECK(tt_mem_of(large, (5 << 20) + 1).fd == -1 && tt_mem_of(&byte, 1).fd == -1 &&
	      tt_mem_of(large + (5 << 20), 1).fd == -1);
	large[4096] = 7;
	CHECK(pread(b.fd, &byte, 1, 4096) == 1 && byte == 7);
	CHECK(ftruncate(b.fd, 0) && ftruncate(b.fd, 8 << 20));
	CHECK(tutti_barrier(job, NULL) == 0); /* ranks are threads: the other rank could get the freed addresses */
	tutti_free(job, large);
	tutti_free(job, small);
	CHECK(tt_mem_of(large, 1).fd == -1);
	CHECK(tutti_barrier(job, NULL) == 0);
	tutti_free(job, NULL);
	CHECK(tutti_alloc(job, SIZE_MAX, -1, &p) == -ENOMEM);
	/* a sanitizer ends the program there */
	CHECK(TT_ASAN || TT_TSAN || tutti_alloc(job, (size_t)1 << 60, -1, &p) == -ENOMEM);
}

/* No file is made and closed for it each time. */
static void allocate_by_turns(tutti *job)
{
	void *first, *p;

	CHECK(tutti_alloc(job, 4096, -1, &first) == 0);
	int fd = tt_mem_of(first, 4096).fd;
	for (int i = 0; i < 3; i++) {
		tutti_free(job, first);
		CHECK(fd >= 0 && tt_mem_of(first, 4096).fd == fd);
		CHECK(tutti_alloc(job, 4096, -1, &p) == 0 && p == first && is_filled(p, 4096, 0));
		memset(p, 1, 4096);
	}
	tutti_free(job, p);
}

static uint64_t arena_of(const void *p) { return tt_arena_of(p, 1, &(struct tt_mem){ 0 }); }

/* Not from the one with the lowest address: simulated runs, which pin arenas, can be replayed. */
static void allocate_from_oldest(tutti *job)
{
	enum { HALF = 1 << 20, HALVES = 16, LATE = 9 }; /* new slabs lie at falling addresses, but for the first ones */
	void *p[HALVES], *again;

	for (int i = 0; i < HALVES; i++)
		CHECK(tutti_alloc(job, HALF, -1, &p[i]) == 0);
	uint64_t oldest = arena_of(p[LATE]);
	CHECK(oldest && oldest < arena_of(p[HALVES - 1]));
	for (int i = LATE; i < HALVES; i += 2)
		tutti_free(job, p[i]);
	CHECK(tutti_alloc(job, HALF, -1, &again) == 0 && arena_of(again) == oldest);
	tutti_free(job, again);
	for (int i = 0; i < HALVES; i += i < LATE - 1 ? 1 : 2)
		tutti_free(job, p[i]);
}

/* Half of the files are left to the program. */
static void allocate_many(tutti *job)
{
	enum { FILES = 64, MANY = 80 };
	struct rlimit was, few;
	void *p[MANY];
	int mapped = 0, fd[FILES], open_files = 0;

	getrlimit(RLIMIT_NOFILE, &was);
	few = (struct rlimit){ FILES, was.rlim_max };
	setrlimit(RLIMIT_NOFILE, &few);
	for (int i = 0; i < MANY; i++) {
		CHECK(tutti_alloc(job, 2 << 20, -1, &p[i]) == 0 && !((char *)p[i])[(2 << 20) - 1]);
		mapped += tt_mem_of(p[i], 1).fd >= 0;
	}
	while (open_files < FILES && (fd[open_files] = dup(STDERR_FILENO)) >= 0)
		open_files++;
	CHECK(mapped > 0 && mapped <= FILES / 2 && open_files > FILES / 3); /* what else is open may lie anywhere */
	while (open_files)
		close(fd[--open_files]);
	for (int i = 0; i < MANY; i++)
		tutti_free(job, p[i]);
	setrlimit(RLIMIT_NOFILE, &was);
}

static void program_alone(tutti *job)
{
	allocate_by_turns(job);
	allocate_from_oldest(job);
	allocate_many(job);
}

/* A child reads it, and spoils nothing. */
static void fork_with_memory(tutti *job)
{
	char *p;
	void *at;
	int status;

	CHECK(tutti_alloc(job, 8192, -1, &at) == 0);
	p = at;
	p[0] = 1;
	pid_t child = fork();
	if (!child) {
		bool good = p[0] == 1;
		memset(p, 2, 8192);
		execlp(good ? "true" : "false", "child", NULL);
		_exit(1);
	}
	CHECK(waitpid(child, &status, 0) == child && status == 0);
	CHECK(p[0] == 1 && p[4096] == 0);
	tutti_free(job, p);
}

static void program_memory(tutti *job)
{
	use_memory(job, (unsigned)tutti_rank(job));
	look_at_arenas(job);
	fork_with_memory(job);
}

/* Windows that are mapped, and a few bytes: without a request, but with the same results. */
static void program_short_calls(tutti *job)
{
	uint64_t v = 7, *mine;
	char bytes[100];
	tutti_window *w;
	void *memory;

	CHECK(tutti_alloc(job, 8192, -1, &memory) == 0);
	mine = memory;
	CHECK(tutti_window_open(job, "short", memory, 4096, &w) == 0);
	int other = 1 - tutti_rank(job);
	for (uint64_t i = 1; i <= 200; i++) { /* the first finds the window, and where it is mapped */
		v = i;
		if (tutti_rank(job) == 0)
			CHECK(tutti_put(w, 1, 8, &v, 8, NULL) == 0 &&
			      tutti_put_notify(w, 1, 64, memset(bytes, (int)i, 100), 100, 5, NULL) == 0);
		CHECK(tutti_wait_notify(w, other, 5, i, -1) == 0);
		if (tutti_rank(job) == 1)
			CHECK(mine[1] == i && ((char *)memory)[64] == (char)i && ((char *)memory)[163] == (char)i &&
			      tutti_put_notify(w, 0, 0, &v, 8, 5, NULL) == 0);
		v = 0;
		CHECK(tutti_rank(job) == 1 || (mine[0] == i && tutti_get(w, 1, 8, &v, 8, NULL) == 0 && v == i));
	}
	CHECK(tutti_put(w, other, 4090, &v, 8, NULL) == -ERANGE && strstr(tutti_why(), "outside the window \"short\""));
	CHECK(tutti_get(w, other, 1 << 20, &v, 8, NULL) == -ERANGE);
	CHECK(tutti_barrier(job, NULL) == 0);
	if (tutti_rank(job) == 1)
		tutti_window_close(w);
	CHECK(tutti_barrier(job, NULL) == 0);
	if (tutti_rank(job) == 0) {
		CHECK(tutti_put(w, 1, 8, &v, 8, NULL) == -ESTALE && tutti_get(w, 1, 8, &v, 8, NULL) == -ESTALE);
		CHECK(tutti_put_notify(w, 1, 8, &v, 8, 5, NULL) == -ESTALE);
		tutti_window_close(w);
	}
	CHECK(tutti_barrier(job, NULL) == 0); /* else it might have left */
	tutti_free(job, memory);
}

/* A put whose bytes this call has stored: the op is one that runs no more, and whose result is to be taken. */
static void check_ended(tutti *job, tutti_op *op)
{
	tutti_op *const list[] = { op };
	uint64_t ends = 0;
	int fd = tutti_event_fd(job);

	CHECK(fd >= 0 && read(fd, &ends, sizeof ends) == sizeof ends && ends > 0);
	CHECK(tutti_op_why(op, NULL, 0) == 0);
	CHECK(tutti_wait_any(list, 1, 0) == 0 && tutti_wait_any(list, 1, 0) == -ENOENT);
	CHECK(tutti_wait(op, -1) == 0 && tutti_cancel(op) == 0);
}

/* Each rank answers the other one's number, and looks for it in that rank's own line first. Messages come between. */
static void program_answers(tutti *job)
{
	enum { NUMBERS = 400 };
	int me = tutti_rank(job), other = 1 - me;
	uint64_t got, *mine;
	tutti_window *w;
	void *memory;

	if (!tt_world)
		set_spin(job, true);
	CHECK(tutti_alloc(job, 4096, -1, &memory) == 0 && tutti_event_fd(job) >= 0);
	mine = memory;
	CHECK(tutti_window_open(job, "answers", memory, 4096, &w) == 0);
	CHECK(tutti_get(w, other, 0, &got, 8, NULL) == 0);
	bool mapped = !tt_world && tutti_window_map(w, other); /* a notify in a simulated world is an op */
	for (uint64_t i = 1; i <= NUMBERS; i++) {
		tutti_op op = { 0 };
		bool with_op = i % 3 == 0;
		if (me)
			CHECK(tutti_wait_notify(w, other, 1, i, -1) == 0 && mine[0] == i);
		if (i % 5 == 0)
			CHECK(tutti_send(job, other, (int)i, &i, sizeof i, NULL) == 0);
		CHECK(tutti_put_notify(w, other, 0, &i, 8, 1, with_op ? &op : NULL) == 0);
		if (with_op && mapped)
			check_ended(job, &op);
		else if (with_op)
			CHECK(tutti_wait(&op, -1) == 0);
		if (!me)
			CHECK(tutti_wait_notify(w, other, 1, i, -1) == 0 && mine[0] == i);
		if (i % 5 == 0)
			CHECK(tutti_recv(job, other, (int)i, &got, sizeof got, NULL, NULL) == 0 && got == i);
	}
	CHECK(tutti_barrier(job, NULL) == 0);
	tutti_window_close(w);
	CHECK(tutti_barrier(job, NULL) == 0);
	tutti_free(job, memory);
}

static void test_answers(void) { on_wires(program_answers, two, 0, NULL); }
static void test_short_calls(void) { on_wires(program_short_calls, two, 0, NULL); }

static void test_memory(void)
{
	struct ranks run = { .size = 2, .program = program_memory };

	CU_ASSERT_EQUAL(run_real_ranks(run), 0);
}

static void test_files(void)
{
	CU_ASSERT_EQUAL(run_ranks((struct ranks){ .size = 1, .wire = "tcp", .program = program_alone }), 0);
}

/* ---- pinning ---- */

static const struct tt_transport *adapter; /* what the first net was */

/* The job's first net becomes one that pins. Returns what it was. */
static const struct tt_transport *pin_with(tutti *job, struct tt_transport *t,
                                           int (*pin)(struct tt_net *, const struct tt_mem *, int, struct tt_pin **),
                                           void (*unpin)(struct tt_pin *))
{
	struct tt_net *net = job->job->engine.nets[0];
	const struct tt_transport *was = net->transport;

	tt_lock(job->job);
	*t = *was;
	t->pin = pin;
	t->unpin = unpin;
	net->transport = t;
	adapter = was;
	tt_pins_open(job->job);
	tt_unlock(job->job);
	return was;
}

static void pin_no_more(tutti *job, const struct tt_transport *was)
{
	tt_lock(job->job);
	job->job->engine.nets[0]->transport = was;
	tt_pins_open(job->job);
	tt_unlock(job->job);
}

enum { GETS_MEANWHILE = 100 };

static atomic_uint gets_done, pins_waited;

/* As a slow adapter: until another thread has got so many words meanwhile. false: that thread waits for this pin. */
static bool wait_for_gets(void)
{
	unsigned until = gets_done + GETS_MEANWHILE;

	for (int i = 0; i < 10000 && (int)(until - gets_done) > 0; i++)
		usleep(1000);
	return (int)(until - gets_done) <= 0;
}

static int pin_slowly(struct tt_net *net, const struct tt_mem *mem, int remote, struct tt_pin **out)
{
	pins_waited += wait_for_gets();
	if (adapter->pin)
		return adapter->pin(net, mem, remote, out);
	*out = malloc(sizeof **out);
	**out = (struct tt_pin){ .net = net, .mem = *mem, .remote = remote };
	return 0;
}

static void unpin_slowly(struct tt_pin *pin)
{
	pins_waited += wait_for_gets();
	if (adapter->unpin)
		adapter->unpin(pin);
	else
		free(pin);
}

struct getter { /* a thread that gets 8 bytes again and again */
	struct ranks *run;
	tutti_window *window;
	atomic_bool stop;
};

static void *get_words(void *arg)
{
	struct getter *g = arg;
	uint64_t word;

	this_run = g->run;
	for (; !g->stop; gets_done++)
		CHECK(tutti_get(g->window, 1, 0, &word, 8, NULL) == 0);
	return NULL;
}

static void open_large(tutti *job)
{
	size_t bytes = (size_t)4 << 30;
	void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	tutti_window *w = NULL;

	CHECK(memory != MAP_FAILED && tutti_window_open(job, "large", memory, bytes, &w) == 0);
	tutti_window_close(w);
	munmap(memory, bytes);
}

/* Nobody else waits while a window is pinned, or unpinned. */
static void program_large_window(tutti *job)
{
	tutti_window *w = NULL;
	pthread_t thread;
	uint64_t word;
	void *memory;

	CHECK(tutti_alloc(job, 64, -1, &memory) == 0 && tutti_window_open(job, "small", memory, 64, &w) == 0);
	CHECK(tutti_get(w, 1 - tutti_rank(job), 0, &word, 8, NULL) == 0 && tutti_barrier(job, NULL) == 0);
	if (tutti_rank(job) == 0) {
		static struct tt_transport slow;
		struct getter g = { .run = this_run, .window = w };
		const struct tt_transport *was = pin_with(job, &slow, pin_slowly, unpin_slowly);
		pins_waited = 0;
		pthread_create(&thread, NULL, get_words, &g);
		open_large(job);
		CHECK(pins_waited == 2);
		g.stop = true;
		pthread_join(thread, NULL);
		pin_no_more(job, was);
	}
	CHECK(tutti_barrier(job, NULL) == 0);
	tutti_window_close(w);
	tutti_free(job, memory);
}

static void test_large_window(void)
{
	if (over_real_verbs()) /* they would lock these gigabytes */
		return;
	CU_ASSERT_EQUAL(run_real_ranks((struct ranks){ .size = 2, .program = program_large_window }), 0);
}

static int pins, unpins;

static int count_pin(struct tt_net *net, const struct tt_mem *mem, int remote, struct tt_pin **out)
{
	pins++;
	return adapter->pin(net, mem, remote, out);
}

static void count_unpin(struct tt_pin *pin)
{
	unpins++;
	adapter->unpin(pin);
}

static int pin_nothing(struct tt_net *net, const struct tt_mem *mem, int remote, struct tt_pin **out)
{
	(void)remote, (void)out;
	return tt_fail(-ENOMEM, "no more memory can be pinned on %s: %zu bytes", net->addr, mem->len);
}

/* Allocated memory is pinned once, other memory for each call, and all of it is let go. */
static void put_and_count(tutti *job, tutti_window *w)
{
	enum { PUTS = 10, LEN = 4096 };
	char *own = calloc(1, LEN);
	void *memory;

	pins = unpins = 0;
	CHECK(tutti_alloc(job, 3 << 20, -1, &memory) == 0);
	for (int i = 0; i < PUTS; i++)
		CHECK(tutti_put(w, 1, 0, (char *)memory + (size_t)i * LEN, LEN, NULL) == 0);
	CHECK(pins == 1 && unpins == 0);
	tutti_free(job, memory);
	for (int i = 0; i < PUTS; i++)
		CHECK(tutti_put(w, 1, 0, own, LEN, NULL) == 0);
	tt_sim_sleep(100 * TT_MS);
	CHECK(pins == 1 + PUTS && unpins == pins);
	free(own);
}

static void program_pinned(tutti *job)
{
	static char memory[2][4096];
	tutti_window *w, *other;

	CHECK(tutti_window_open(job, "pinned", memory[tutti_rank(job)], 4096, &w) == 0);
	CHECK(tutti_barrier(job, NULL) == 0);
	if (tutti_rank(job) == 0) {
		static struct tt_transport counts;
		adapter = job->job->engine.nets[0]->transport;
		pin_with(job, &counts, count_pin, count_unpin);
		put_and_count(job, w);
		counts.pin = pin_nothing;
		char *own = calloc(1, 4096);
		CHECK(tutti_put(w, 1, 0, own, 4096, NULL) == -ENOMEM && strstr(tutti_why(), "sim:0"));
		CHECK(tutti_window_open(job, "refused", own, 4096, &other) == -ENOMEM && strstr(tutti_why(), "sim:0"));
		CHECK(tutti_put(w, 1, 0, own, 64, NULL) == 0);
		pin_no_more(job, adapter);
		free(own);
	}
	CHECK(tutti_barrier(job, NULL) == 0);
	tutti_window_close(w);
}

static void test_pinned(void)
{
	for (uint64_t seed = 0; seed < SEEDS; seed++)
		if (seed % 2) /* sim pins there */
			CU_ASSERT_EQUAL(run_ranks((struct ranks){ .size = 2, .wire = "sim", .seed = seed,
			                                          .program = program_pinned }), 0);
}

/* Several ranks are in this process: each line carries the rank of the job that has said it. */
static void program_logs(tutti *job)
{
	for (int i = 0; i < 20; i++) {
		tt_lock(job->job);
		tt_log(TT_WARN, "rank %d", tutti_rank(job));
		tt_unlock(job->job);
		CHECK(tutti_barrier(job, NULL) == 0);
	}
	/* While a thread joins, lines outside the lock are the job's, too. */
	tt_speak_for(&job->job->speaker);
	tt_lock(job->job);
	tt_unlock(job->job);
	CHECK(tt_speaker == &job->job->speaker);
	tt_speak_for(NULL);
	tt_lock(job->job);
	tt_unlock(job->job);
	CHECK(tt_speaker == NULL);
}

static void test_log(void)
{
	static const char *const wires[] = { "sim", "tcp", "shm" };

	CU_ASSERT_TRUE_FATAL(tutti_log_open() >= 0);
	for (size_t i = 0; i < TT_COUNT(wires); i++) {
		tutti_log_line l;
		char said[32];
		int n = 0;
		CU_ASSERT_EQUAL(run_ranks((struct ranks){ .size = 3, .wire = wires[i], .seed = 3,
		                                          .program = program_logs }), 0);
		while (tutti_log_next(&l) == 1) {
			snprintf(said, sizeof said, "rank %d", l.rank);
			n += !strcmp(l.text, said);
		}
		bool runs = !getenv("TEST_WIRE") || !strcmp(wires[i], "tcp"); /* ranks.h */
		CU_ASSERT_EQUAL(n, runs ? 3 * 20 : 0);
	}
	tutti_log_close();
}

static CU_TestInfo window_tests[] = {
	{ "memory", test_memory },
	{ "memory and files", test_files },
	{ "short calls on it", test_short_calls },
	{ "answers", test_answers },
	{ "put, get, add", test_put_get },
	{ "notify", test_notify },
	{ "ranges", test_ranges },
	{ "open and close", test_open_close },
	{ "a large window is pinned", test_large_window },
	{ "what is pinned", test_pinned },
	{ "never opened", test_unopened },
	{ "closed before that", test_closed_unopened },
	{ "started, then closed", test_started },
	{ "as many as there can be", test_many_windows },
	{ "more than are opened", test_many_asks },
	CU_TEST_INFO_NULL,
};
static CU_TestInfo engine_tests[] = {
	{ "the owner computes", test_computing },
	{ "never waits", test_never_waits },
	{ "unhurried", test_unhurried },
	{ "blocked", test_blocked },
	{ "event fd", test_event_fd },
	{ "threads", test_threads },
	{ "fork", test_fork },
	{ "log", test_log },
	CU_TEST_INFO_NULL,
};
static CU_TestInfo operation_tests[] = {
	{ "NULL", test_null },
	{ "idle", test_idle },
	{ "busy", test_busy },
	{ "wait for any", test_wait_any },
	{ "wait for all", test_wait_all },
	{ "of a job that was left", test_left_job },
	CU_TEST_INFO_NULL,
};
static int ups, downs;
static void count_up(struct tt_peer *p) { ups += p != NULL; }
static void count_down(struct tt_peer *p, int err) { downs += p && err == -ECONNRESET; }

/* Somebody of this job who connects and says nothing. */
static void program_mute(tutti *job)
{
	static const struct tt_events events = { .up = count_up, .down = count_down };
	struct tt_net_config c = { .events = &events, .listen_fd = -1, .job = job->job->id, .epoch = 1 };
	uint64_t until = tt_now() + 10000 * TT_MS;
	struct tt_net *net;
	struct tt_peer *peer;
	char addr[96] = "";

	if (tutti_rank(job) == 1) {
		pass_time(800 * TT_MS); /* twice the deadline: a call would meet it */
		return;
	}
	CHECK(tt_tcp.open(&c, &net) == 0);
	CHECK(tt_address_find(tt_member(job->job, 0)->addr, "tcp", addr) && tt_tcp.connect(net, addr, &peer) == 0);
	for (ups = downs = 0; !downs && tt_now() < until; pass_time(TT_MS))
		CHECK(tt_tcp.progress(net) >= 0);
	CHECK(ups == 1 && downs == 1);
	tt_tcp.close(net);
}

static void test_mute(void)
{
	struct ranks run = { .size = 2, .wire = "tcp", .timeout_ms = 400, .program = program_mute };

	CU_ASSERT_EQUAL(run_ranks(run), 0);
}

static CU_TestInfo deadline_tests[] = {
	{ "a silent rank", test_silent }, { "an absent rank", test_absent }, { "a mute connection", test_mute },
	{ "cancel", test_cancel },        { "a rank that left", test_left }, CU_TEST_INFO_NULL,
};
static CU_SuiteInfo suites[] = {
	{ "collectives", NULL, NULL, NULL, NULL, collective_tests },
	{ "windows", NULL, NULL, NULL, NULL, window_tests },
	{ "groups", NULL, NULL, NULL, NULL, group_tests },
	{ "engine", NULL, NULL, NULL, NULL, engine_tests },
	{ "operations", NULL, NULL, NULL, NULL, operation_tests },
	{ "deadlines", NULL, NULL, NULL, NULL, deadline_tests },
	CU_SUITE_INFO_NULL,
};

int main(int argc, char **argv) { return run_suites(suites, argc, argv); }
