/* unit_collectives.c - every algorithm of all-reduce against its documented order of additions, bit for bit;
 * reduce-scatter, all-gather and all-to-all; the model; all of them in groups. Each on sim (over seeds) and over
 * TCP. */
#include "collective/collective_private.h"
#include "engine/engine.h"
#include "kernel/kernel.h"
#include "member/member.h"
#include "tests/harness/cunit_main.h"
#include "tests/harness/ranks.h"
#include "transport/sim/sim.h"
#include <math.h>

#if TT_TSAN
enum {
	SEEDS = 0,
	SKIPPED = 3,
	LARGEST = 4
}; /* fibers share one thread: there is nothing for this sanitizer to see on sim. It is
				   * slow: only the larger sizes, up to 4 ranks */
#else
#define SEEDS (uint64_t)all_or(2, 1)
enum { SKIPPED = 0, LARGEST = 9 };
#endif

enum { RANKS_MAX = 9 };

/* The order of additions is no matter of the wire, and 9 ranks on few cores mostly wait for each other. */
static bool is_real(int n) { return all_or(n <= 5 || n == 8, n == 2 || n == 3); }

/* The short check has each kind of number: one, powers of two, one rank and several beyond a power of two. */
static bool is_simulated(int n) { return all_or(true, n <= 4 || n == 6 || n == 8); }

/* On sim over seeds with 1 to 9 ranks, and on tcp and shm with some of these numbers. */
static void on_wires(void (*program)(tutti *), const char *allreduce)
{
	for (int n = 1; n <= LARGEST; n++) {
		struct ranks run = { .size = n, .allreduce = allreduce, .program = program };
		for (run.wire = "sim"; is_simulated(n) && run.seed != SEEDS; run.seed++)
			CU_ASSERT_EQUAL(run_ranks(run), 0);
		if (is_real(n))
			CU_ASSERT_EQUAL(run_real_ranks(run), 0);
	}
}

static void *must(void *p)
{
	if (!p)
		abort();
	return p;
}

/* Finite in every float type, and any number in the integers. `salt` tells vectors of one rank apart. */
static void *vector_of(int rank, size_t bytes, uint64_t salt)
{
	uint64_t *v = must(malloc(bytes + 2 * sizeof *v)),
		 x = ((uint64_t)rank << 32 | (uint32_t)salt) * 0x9e3779b97f4a7c15u | 1;

	for (size_t i = 0; i < bytes / sizeof *v + 1; i++) {
		uint64_t y = (x + i) * 0xd1342543de82ef95u;
		v[i] = ((y ^ y >> 29) & 0x8fff8fff8fff8fff) + 0x3000300030003000;
	}
	return v;
}

/* ---- the documented orders, on the vectors of all ranks ---- */

struct vectors {
	char *of[RANKS_MAX];
	int n;
	size_t count, width;
	size_t given;  /* bytes of an element as it was given */
	tutti_type type;
	tutti_rule rule;
};

static void combine(const struct vectors *v, char *to, const char *from, size_t at, size_t count)
{
	tt_reduce(to + at * v->width, from + at * v->width, count, v->type, v->rule);
}

/* Doubling goes from the lowest bit up, halving from the highest down. */
static void combine_tree(struct vectors *v, bool lowest_first)
{
	char *value[RANKS_MAX];
	int p = 1, extra;

	while (2 * p <= v->n)
		p *= 2;
	extra = v->n - p;
	for (int i = 0; i < p; i++) {
		value[i] = v->of[i < extra ? 2 * i : i + extra];
		if (i < extra)
			combine(v, value[i], v->of[2 * i + 1], 0, v->count);
	}
	for (int step = 1; step < p; step *= 2) {
		int bit = lowest_first ? step : p / 2 / step;
		for (int i = 0; i < p; i++)
			if (lowest_first ? i % (2 * bit) == 0 : i < bit)
				combine(v, value[i], value[i | bit], 0, v->count);
	}
}

static void combine_ring(struct vectors *v)
{
	for (int b = 0; b < v->n; b++) {
		size_t from = v->count * (size_t)b / (size_t)v->n, to = v->count * (size_t)(b + 1) / (size_t)v->n;
		char *sum = must(malloc((to - from) * v->width + 1));
		memcpy(sum, v->of[b] + from * v->width, (to - from) * v->width);
		for (int k = 1; k < v->n; k++)
			tt_reduce(sum, v->of[(b + k) % v->n] + from * v->width, to - from, v->type, v->rule);
		memcpy(v->of[0] + from * v->width, sum, (to - from) * v->width);
		free(sum);
	}
}

/* By rank, in one go. */
static void combine_ranks(struct vectors *v)
{
	void *to = v->of[0];
	struct tt_many many = { .from = (const void *const *)v->of, .to = &to, .inputs = v->n, .outputs = 1 };

	tt_reduce_many(&many, v->count, v->type, v->rule);
}

static bool is_named(const char *name, const char *begin) { return !strncmp(name, begin, strlen(begin)); }

static void combine_as(struct vectors *v, const char *name)
{
	if (is_named(name, "ring"))
		combine_ring(v);
	else
		combine_tree(v, is_named(name, "doubling"));
}

/* On each host by rank; then one slice for each leader, by whatever the model chooses. */
static void combine_hosts(tutti *job, struct vectors *v)
{
	const struct tt_layout *l = &tt_coll_group(job)->layout;
	struct tt_model model = tt_model_of(job);
	size_t bytes = v->count * v->given;
	int leaders = tt_hierarchical_leaders(l, bytes);
	const char *name = tt_model_choose(&model, l->hosts, bytes, TT_COLL_PIECE)->name;
	char *sums[RANKS_MAX];

	for (int h = 0; h < l->hosts; h++) {
		struct vectors host = *v;
		host.n = tt_layout_ranks(l, h);
		host.rule = v->rule == TUTTI_AVERAGE ? TUTTI_SUM : v->rule;
		for (int i = 0; i < host.n; i++)
			host.of[i] = v->of[l->seats[l->start[h] + i]];
		combine_ranks(&host);
		sums[h] = host.of[0];
	}
	for (int i = 0; i < leaders; i++) {
		struct tt_span s = tt_span_of(bytes, leaders, i);
		struct vectors slice = *v;
		slice.n = l->hosts;
		slice.count = s.len / v->given;
		for (int h = 0; h < l->hosts; h++)
			slice.of[h] = sums[h] + s.at / v->given * v->width;
		combine_as(&slice, name);
	}
}

/* Sums of 16-bit types are made in f32, and rounded once. */
static bool widen_vectors(const struct vectors *v, struct vectors *wide)
{
	if ((v->type != TUTTI_F16 && v->type != TUTTI_BF16) || v->rule == TUTTI_MAX || v->rule == TUTTI_MIN ||
	    v->n == 1)
		return false;
	*wide = *v;
	wide->type = TUTTI_F32;
	wide->width = sizeof(float);
	for (int i = 0; i < v->n; i++) {
		wide->of[i] = must(malloc(v->count * sizeof(float) + 1));
		tt_to_f32(wide->of[i], v->of[i], v->count, v->type);
	}
	return true;
}

static void narrow_vector(struct vectors *v, int of, struct vectors *wide)
{
	tt_from_f32(v->of[of], wide->of[of], v->count, v->type);
	for (int i = 0; i < v->n; i++)
		free(wide->of[i]);
}

static const char *algorithm_of(tutti *job) { return tt_setting(&job->job->settings, TT_ALLREDUCE); }

enum { ODDLY = 12 }; /* bytes into a page */

/* On no rank, on all, or on every second one the vector is in memory that others can map. */
static char *memory_for(tutti *job, size_t bytes, int turn)
{
	void *p;

	if (turn % 3 == 0 || (turn % 3 == 1 && tutti_rank(job) % 2))
		return (char *)must(malloc(ODDLY + bytes)) + ODDLY;
	CHECK(tutti_alloc(job, ODDLY + bytes, -1, &p) == 0);
	return (char *)p + ODDLY;
}

/* The result of all ranks' vectors, in v.of[0]. */
static void combine_all(tutti *job, struct vectors *v)
{
	bool average = v->rule == TUTTI_AVERAGE;
	struct vectors wide;

	if (tt_segment_open(job)) {
		combine_ranks(v);
		return; /* an average is divided already */
	}
	if (widen_vectors(v, &wide)) {
		combine_all(job, &wide);
		narrow_vector(v, 0, &wide);
		return;
	}
	if (tt_coll_group(job)->model.by_host)
		combine_hosts(job, v);
	else /* direct, too, does so for what is short */
		combine_as(v, *algorithm_of(job) == 'd' ? "doubling" : algorithm_of(job));
	if (average)
		tt_scale(v->of[0], v->count, v->type, (unsigned)v->n);
}

static struct vectors vectors_of(tutti *job, size_t count, tutti_type type, tutti_rule rule)
{
	struct vectors v = {
		.n = tutti_size(job), .count = count, .width = tt_type_size(type), .given = tt_type_size(type),
		.type = type, .rule = rule
	};

	for (int r = 0; r < v.n; r++)
		v.of[r] = vector_of(r, count * v.width, count);
	return v;
}

static void free_vectors(struct vectors *v)
{
	for (int r = 0; r < v->n; r++)
		free(v->of[r]);
}

static bool is_42(const char *bytes, size_t n)
{
	for (size_t i = 0; i < n; i++)
		if (bytes[i] != 42)
			return false;
	return true;
}

/* As tensors of none, one and more elements: each in memory of its own with eight bytes behind it, or all in one
 * range on no * rank, on all or on every second one. */
enum { TENSORS = 10 };

static void reduce_tensors(tutti *job, char *mine, const struct vectors *v)
{
	const size_t most[TENSORS] = { 1, 0, 2, 13, 700, 0, v->count / 3, 5, v->count / 2, v->count };
	tutti_tensor t[TENSORS], copy[TENSORS];
	size_t at = 0;
	tutti_op op = { 0 };

	char *all = v->count % 3 == 0 || (v->count % 3 == 1 && tutti_rank(job) % 2)
	                    ? memory_for(job, v->count * v->width, 2)
	                    : NULL;

	for (int i = 0; i < TENSORS; i++) {
		size_t count = tt_min(most[i], v->count - at / v->width), bytes = count * v->width;
		t[i] = (tutti_tensor){ !count ? NULL : all ? all + at : memory_for(job, bytes + 8, i), count, v->type };
		if (count)
			memcpy(t[i].data, mine + at, bytes);
		if (count && !all)
			memset((char *)t[i].data + bytes, 42, 8);
		at += bytes;
	}
	CHECK(at == v->count * v->width);
	memcpy(copy, t, sizeof t);
	CHECK(tutti_allreduce_tensors(job, t, TENSORS, v->rule, &op) == 0);
	memset(t, 0x55, sizeof t); /* the list was read */
	CHECK(tutti_wait(&op, -1) == 0);
	at = 0;
	for (int i = 0; i < TENSORS; i++) {
		size_t bytes = copy[i].count * v->width;
		if (!bytes)
			continue;
		memcpy(mine + at, copy[i].data, bytes);
		CHECK(all || is_42((char *)copy[i].data + bytes, 8));
		if (!all)
			tutti_free(job, (char *)copy[i].data - ODDLY);
		at += bytes;
	}
	if (all)
		tutti_free(job, all - ODDLY);
}

enum way { IN_PLACE, TO_OTHER, AS_TENSORS, WAYS };

static void check_allreduce_as(tutti *job, size_t count, tutti_type type, tutti_rule rule, enum way way)
{
	struct vectors v = vectors_of(job, count, type, rule);
	size_t bytes = count * v.width;
	char *mine = memory_for(job, bytes + 8, (int)type + (int)rule + (int)count), *given = v.of[tutti_rank(job)],
	     *in = must(malloc(bytes + 1));

	memset(mine, 42, bytes + 8);
	memcpy(in, given, bytes);
	if (way != TO_OTHER)
		memcpy(mine, given, bytes);
	if (way == AS_TENSORS)
		reduce_tensors(job, mine, &v);
	else
		CHECK(tutti_allreduce(job, way == TO_OTHER ? in : mine, mine, count, type, rule, NULL) == 0);
	CHECK(memcmp(in, given, bytes) == 0);
	combine_all(job, &v);
	CHECK(memcmp(mine, v.of[0], bytes) == 0);
	CHECK(is_42(mine + bytes, 8));
	free_vectors(&v);
	free(in);
	tutti_free(job, mine - ODDLY);
}

static void check_allreduce(tutti *job, size_t count, tutti_type type, tutti_rule rule)
{
	check_allreduce_as(job, count, type, rule, (enum way)(((size_t)type + count / 2) % WAYS));
}

static void program_all(tutti *job)
{
	static const size_t counts[] = { 1, 2, 13, 1001, 6007 };

	for (int type = TUTTI_F32; type <= TUTTI_I64; type++)
		for (int rule = TUTTI_SUM; rule <= TUTTI_MIN; rule++)
			for (size_t i = SKIPPED; i < TT_COUNT(counts); i++)
				check_allreduce(job, counts[i], (tutti_type)type, (tutti_rule)rule);
	for (enum way way = IN_PLACE; way < WAYS; way++) {
		check_allreduce_as(job, 100003, TUTTI_F32, TUTTI_SUM, way);
		check_allreduce_as(job, 70001, TUTTI_BF16, TUTTI_AVERAGE, way);
	}
}

/* ---- how exact f16 and bf16 are ---- */

enum { HALVES = 40001 };

/* Of one sign. Sums stay finite, and so do averages, the sums of which would not. */
static void fill_halves(float *x, int rank, tutti_rule rule, size_t count)
{
	uint64_t random = 88172645463325252ull + (uint64_t)rank;
	float low = rule == TUTTI_SUM ? 1 : 30000, wide = rule == TUTTI_SUM ? 6000 : 30000;

	for (size_t i = 0; i < count; i++) {
		random ^= random << 13, random ^= random >> 7, random ^= random << 17;
		x[i] = (float)(random >> 40) / (1 << 24) * wide + low;
	}
}

static bool is_exact(const uint16_t *got, const double *sum, size_t count, tutti_type type, double by)
{
	int fraction = type == TUTTI_F16 ? 10 : 7, exponent;
	bool good = true;
	float x;

	for (size_t i = 0; i < count; i++) {
		tt_to_f32(&x, &got[i], 1, type);
		frexp(sum[i] / by, &exponent);
		good &= fabs((double)x - sum[i] / by) <= ldexp(1, exponent - 1 - fraction); /* not if it is infinite */
	}
	return good;
}

static bool is_same_everywhere(tutti *job, const uint16_t *got)
{
	uint32_t hash = tt_hash(TT_HASH, got, HALVES * sizeof *got), of[RANKS_MAX];
	bool same = true;

	CHECK(tutti_allgather(job, &hash, sizeof hash, of, NULL) == 0);
	for (int r = 0; r < tutti_size(job); r++)
		same &= of[r] == hash;
	return same;
}

static void check_halves(tutti *job, tutti_type type, tutti_rule rule)
{
	uint16_t *mine = must(malloc(HALVES * sizeof *mine)), *got = must(malloc(HALVES * sizeof *got)),
		 *again = must(malloc(HALVES * sizeof *again));
	double *sum = must(calloc(HALVES, sizeof *sum));
	float *x = must(malloc(HALVES * sizeof *x));

	for (int r = 0; r < tutti_size(job); r++) {
		fill_halves(x, r, rule, HALVES);
		tt_from_f32(again, x, HALVES, type);
		tt_to_f32(x, again, HALVES, type);
		for (size_t i = 0; i < HALVES; i++)
			sum[i] += (double)x[i];
		if (r == tutti_rank(job))
			memcpy(mine, again, HALVES * sizeof *mine);
	}
	CHECK(tutti_allreduce(job, mine, got, HALVES, type, rule, NULL) == 0);
	CHECK(tutti_allreduce(job, mine, again, HALVES, type, rule, NULL) == 0);
	CHECK(is_exact(got, sum, HALVES, type, rule == TUTTI_AVERAGE ? tutti_size(job) : 1));
	CHECK(memcmp(got, again, HALVES * sizeof *got) == 0 && is_same_everywhere(job, got));
	memcpy(again, mine, HALVES * sizeof *got);
	const tutti_tensor two[] = { { again, 77, type }, { again + 77, HALVES - 77, type } };
	CHECK(tutti_allreduce_tensors(job, two, 2, rule, NULL) == 0);
	CHECK(memcmp(got, again, HALVES * sizeof *got) == 0);
	CHECK(tutti_reduce(job, mine, again, HALVES, type, rule, 0, NULL) == 0);
	CHECK(tutti_rank(job) || is_exact(again, sum, HALVES, type, rule == TUTTI_AVERAGE ? tutti_size(job) : 1));
	size_t n = (size_t)tutti_size(job), me = (size_t)tutti_rank(job), each = HALVES / n;
	CHECK(tutti_reduce_scatter(job, mine, again + me * each, each, type, rule, NULL) == 0);
	CHECK(is_exact(again + me * each, sum + me * each, each, type, rule == TUTTI_AVERAGE ? tutti_size(job) : 1));
	free(mine);
	free(got);
	free(again);
	free(sum);
	free(x);
}

static void program_halves(tutti *job)
{
	for (int i = 0; i < 4; i++)
		check_halves(job, i % 2 ? TUTTI_F16 : TUTTI_BF16, i / 2 ? TUTTI_SUM : TUTTI_AVERAGE);
}

/* By each algorithm, and by hierarchies; the short check has some of the numbers of ranks for each. */
static void test_halves(void)
{
	static const char *const algorithms[] = { "auto", "ring", "rabenseifner", "doubling" };
	struct ranks run = { .program = program_halves };

	for (int i = 0; i < (int)TT_COUNT(algorithms); i++)
		for (run.size = 2; run.size <= LARGEST; run.size++) {
			run.allreduce = algorithms[i];
			run.wire = "sim";
			if (all_or(true, run.size % 4 == i || run.size == 3))
				CU_ASSERT_EQUAL(run_ranks(run), 0);
			if (all_or(is_real(run.size), run.size == 2 + i % 2))
				CU_ASSERT_EQUAL(run_real_ranks(run), 0);
		}
	run.allreduce = NULL;
	for (run.hosts = 2; run.hosts <= 3; run.hosts++)
		for (run.size = run.hosts + 1; run.size <= LARGEST; run.size += all_or(1, 3)) {
			run.wire = "sim";
			CU_ASSERT_EQUAL(run_ranks(run), 0);
#ifdef HAVE_LIBCONFIG
			run.wire = "shm";
			if (all_or(run.size <= 5, run.size == 3))
				CU_ASSERT_EQUAL(run_ranks(run), 0);
#endif
		}
}

/* Whoever sleeps until the last one comes is woken by it, and not by the next heartbeat. */
static void program_late(tutti *job)
{
	enum { ROUNDS = 12, LATE_MS = 5 };
	float *v = must(calloc(100000, sizeof *v));
	uint64_t since;

	CHECK(tutti_allreduce(job, v, v, 1, TUTTI_F32, TUTTI_SUM, NULL) == 0);
	since = tt_now();
	for (int i = 0; i < ROUNDS; i++) {
		if (i % tutti_size(job) == tutti_rank(job) && tt_world)
			tt_sim_sleep(LATE_MS * TT_MS);
		else if (i % tutti_size(job) == tutti_rank(job))
			usleep(LATE_MS * 1000);
		CHECK(tutti_allreduce(job, v, v, i % 2 ? 10 : 100000, TUTTI_F32, TUTTI_SUM, NULL) == 0);
	}
	CHECK(tt_now() - since < ROUNDS * (LATE_MS + 1) * TT_MS * (tt_world ? 1 : 20));
	free(v);
}

static void test_late(void)
{
	for (int n = 2; n <= LARGEST; n++) {
		for (uint64_t seed = 0; seed != SEEDS; seed++)
			CU_ASSERT_EQUAL(
				run_ranks((struct ranks){
					.size = n, .wire = "sim", .hosts = 1, .seed = seed, .program = program_late }),
				0);
		CU_ASSERT_EQUAL(run_ranks((struct ranks){ .size = n, .wire = "shm", .program = program_late }), 0);
	}
}

/* Short all-reduces one behind another, each of which some ranks begin without an operation, and some with one; some
 * ranks are late. The sizes are around what a call header has room for, and what a rank reads of all others. */
static void program_short(tutti *job)
{
	enum { ROUNDS = 300, MOST = 2000 };
	static const size_t counts[] = { 1, 7, 8, 9, 100, 12 * 1024 / 8, 12 * 1024 / 8 + 1, MOST };
	int n = tutti_size(job), me = tutti_rank(job);
	uint64_t *in = must(calloc(MOST, sizeof *in)), *out = must(calloc(MOST, sizeof *out));
	unsigned chance = 77u + (unsigned)me, same = 5;

	for (uint64_t k = 0; k < ROUNDS; k++) {
		size_t count = counts[(size_t)rand_r(&same) % TT_COUNT(counts)], wrong = 0;
		uint64_t *to = rand_r(&chance) % 2 ? in : out;
		tutti_op op = { 0 };
		bool started = rand_r(&chance) % 3 == 0;
		for (size_t i = 0; i < count; i++)
			in[i] = (uint64_t)me * 1000 + k + i;
		if (rand_r(&chance) % 8 == 0)
			pass_time(TT_MS / 20);
		CHECK(tutti_allreduce(job, in, to, count, TUTTI_I64, TUTTI_SUM, started ? &op : NULL) == 0);
		CHECK(!started || tutti_wait(&op, -1) == 0);
		for (size_t i = 0; i < count; i++)
			wrong += to[i] != (uint64_t)n * (uint64_t)(n - 1) / 2 * 1000 + (uint64_t)n * (k + i);
		CHECK(wrong == 0);
	}
	free(in);
	free(out);
}

static void run_on_one_host(void (*program)(tutti *))
{
	for (int n = 2; n <= LARGEST; n++) {
		struct ranks run = { .size = n, .hosts = 1, .wire = "sim", .program = program };
		for (; run.seed != SEEDS; run.seed++)
			CU_ASSERT_EQUAL(run_ranks(run), 0);
		run.wire = "shm";
		run.hosts = 0;
		if (n < 4)
			CU_ASSERT_EQUAL(run_ranks(run), 0);
	}
}

static void test_short(void) { run_on_one_host(program_short); }

/* Vectors in more arenas than have keys that stand. Each rank chooses its own, and frees one now and then; some give
 * memory that cannot be mapped, or begin with an operation, or late. */
static void program_standing(tutti *job)
{
	enum { ROUNDS = 200, ARENAS = TT_STANDING + 2, MOST = 9000 };
	static const size_t counts[] = { 100, 129, 1000, 3000, MOST };
	int n = tutti_size(job), me = tutti_rank(job);
	int64_t *of[ARENAS + 1] = { [ARENAS] = must(calloc(MOST, sizeof **of)) };
	unsigned chance = 99u + (unsigned)me, same = 3, all_mapped = 0;

	for (int k = 0; k < ARENAS; k++)
		CHECK(tutti_alloc(job, MOST * sizeof **of, -1, (void **)&of[k]) == 0);
	for (int64_t k = 0; k < ROUNDS; k++) {
		size_t count = counts[(size_t)rand_r(&same) % TT_COUNT(counts)], wrong = 0;
		unsigned which = rand_r(&same) % 4 ? 0 : (unsigned)rand_r(&chance) % (ARENAS + 1);
		bool started = rand_r(&chance) % 4 == 0;
		tutti_op op = { 0 };
		if (which && which < ARENAS && rand_r(&chance) % 2) {
			tutti_free(job, of[which]);
			CHECK(tutti_alloc(job, MOST * sizeof **of, -1, (void **)&of[which]) == 0);
		}
		int64_t *v = of[which];
		for (size_t i = 0; i < count; i++)
			v[i] = me * 1000 + k + (int64_t)i;
		if (rand_r(&chance) % 8 == 0)
			pass_time(TT_MS / 20);
		CHECK(tutti_allreduce(job, v, v, count, TUTTI_I64, TUTTI_SUM, started ? &op : NULL) == 0);
		CHECK(!started || tutti_wait(&op, -1) == 0);
		for (size_t i = 0; i < count; i++)
			wrong += v[i] != (int64_t)n * (n - 1) / 2 * 1000 + n * (k + (int64_t)i);
		CHECK(wrong == 0);
		all_mapped += tt_coll_group(job)->segment->standing[0].agreed != 0;
	}
	CHECK(all_mapped > 0 || tt_world); /* in some of its worlds not all can map */
	for (int k = 0; k < ARENAS; k++)
		tutti_free(job, of[k]);
	free(of[ARENAS]);
}

static void test_standing(void) { run_on_one_host(program_standing); }

static int deaths;

/* The last rank comes to a call in shared memory when the others sleep in it, and dies as soon as the call has ended
 * there: it has done its part, so the call is whole for the others. */
static void program_last_dies(tutti *job)
{
	int me = tutti_rank(job), last = tutti_size(job) - 1;
	float x = 1;

	CHECK(tutti_barrier(job, NULL) == 0);
	if (!tt_segment_open(job)) /* some seeds have memory that cannot be mapped */
		return;
	deaths += me == last;
	if (me == last)
		tt_sim_sleep(3 * TT_MS);
	if (sim_run_now->seed % 2)
		CHECK(tutti_barrier(job, NULL) == 0);
	else
		CHECK(tutti_allreduce(job, &x, &x, 1, TUTTI_F32, TUTTI_SUM, NULL) == 0 && x == (float)(last + 1));
	if (me == last)
		tt_sim_kill(me, sim_run_now->seed / 2 * 100);
}

static void test_last_dies(void)
{
	struct ranks run = { .hosts = 1, .wire = "sim", .program = program_last_dies };

	deaths = 0;
	for (run.size = 2; run.size <= 4; run.size++)
		for (run.seed = 0; run.seed < (uint64_t)all_or(200, 40); run.seed++)
			CU_ASSERT_EQUAL(run_ranks(run), 0);
	CU_ASSERT(deaths > 40 || only_verbs());
}

static void program_direct(tutti *job)
{
	program_all(job);
	CHECK(tt_segment_open(job));
}

static void test_direct(void)
{
	for (int n = 1; n <= LARGEST; n++)
		for (uint64_t seed = 0; is_simulated(n) && seed != SEEDS; seed++)
			CU_ASSERT_EQUAL(run_ranks((struct ranks){ .size = n,
			                                          .wire = "sim",
			                                          .hosts = 1,
			                                          .seed = seed,
			                                          .allreduce = "direct",
			                                          .program = program_all }),
			                0);
	for (int n = 2; n <= LARGEST; n += all_or(2, 4))
		CU_ASSERT_EQUAL(run_ranks((struct ranks){
					.size = n, .wire = "shm", .allreduce = "direct", .program = program_direct }),
		                0);
}

static void program_hierarchical(tutti *job)
{
	char text[400];

	program_all(job);
	check_allreduce(job, 300007, TUTTI_F32, TUTTI_AVERAGE); /* several leaders, where there are several ranks */
	if (tutti_size(job) <= 4)
		check_allreduce(job, 2000003, TUTTI_BF16, TUTTI_SUM);
	CHECK(tt_allreduce_explain(job, 1 << 20, TUTTI_F32, TUTTI_SUM, text, sizeof text) == 0);
	CHECK((strstr(text, "hierarchical") != NULL) == tt_coll_group(job)->model.by_host);
	CHECK(tt_coll_group(job)->model.by_host || tt_world); /* in every fourth of its worlds not all can map */
}

/* With as many ranks on each, or not; one host may have a single one. */
static void test_hierarchical(void)
{
	for (int hosts = 2; hosts <= 3; hosts++)
		for (int n = hosts + 1; n <= LARGEST; n += all_or(hosts - 1, 2 * hosts - 1)) {
			struct ranks run = {
				.size = n, .hosts = hosts, .allreduce = "direct", .program = program_hierarchical
			};
			for (run.wire = "sim"; run.seed != SEEDS; run.seed++)
				CU_ASSERT_EQUAL(run_ranks(run), 0);
#ifdef HAVE_LIBCONFIG
			run.wire = "shm";
			if (n <= 2 * hosts)
				CU_ASSERT_EQUAL(run_ranks(run), 0);
#endif
		}
}

static void test_doubling(void) { on_wires(program_all, "doubling"); }
static void test_rabenseifner(void) { on_wires(program_all, "rabenseifner"); }
static void test_ring(void) { on_wires(program_all, "ring"); }

/* Many chunks a leg, more than there are slots; two and more segments. */
static void program_large(tutti *job)
{
	check_allreduce_as(job, 3000017, TUTTI_F32, TUTTI_SUM, IN_PLACE);
	check_allreduce_as(job, 3000017, TUTTI_F32, TUTTI_SUM, AS_TENSORS);
	check_allreduce_as(job, 1 << 21, TUTTI_F32, TUTTI_AVERAGE, TO_OTHER);
	check_allreduce_as(job, 3300017, TUTTI_BF16, TUTTI_AVERAGE, IN_PLACE);
}

/* The short check has one algorithm on sim and the other one on tcp and shm. */
static void test_large(void)
{
	static const char *const algorithms[] = { "rabenseifner", "ring" };
	static const int sizes[] = { 3, 2, 4 };

	for (size_t i = 0; i < (size_t)all_or(TT_COUNT(sizes), 1) * TT_COUNT(algorithms); i++) {
		struct ranks run = { .size = sizes[i / 2],
			             .allreduce = algorithms[i % 2],
			             .program = program_large,
			             .wire = "sim",
			             .seed = i };
		if (all_or(true, i == 0))
			CU_ASSERT_EQUAL(run_ranks(run), 0);
		if (all_or(true, i == 1))
			CU_ASSERT_EQUAL(run_real_ranks(run), 0);
	}
}

/* Thousands of tensors of a few elements, and a vector of none at all. */
static void program_many_tensors(tutti *job)
{
	enum { MANY = 5000 };
	int n = tutti_size(job);
	int32_t *v = must(malloc(2 * MANY * sizeof *v)); /* every second one is in a tensor */
	tutti_tensor *t = must(malloc(MANY * sizeof *t));
	bool right = true;

	for (int i = 0; i < 2 * MANY; i++)
		v[i] = i;
	for (int i = 0; i < MANY; i++)
		t[MANY - 1 - i] = (tutti_tensor){ &v[2 * i], 1, TUTTI_I32 };
	CHECK(tutti_allreduce_tensors(job, t, MANY, TUTTI_SUM, NULL) == 0);
	for (int i = 0; i < 2 * MANY; i++)
		right = right && v[i] == (i % 2 ? i : n * i);
	CHECK(right);
	t[0] = t[1] = (tutti_tensor){ NULL, 0, TUTTI_F32 };
	CHECK(tutti_allreduce_tensors(job, t, 2, TUTTI_SUM, NULL) == 0);
	free(t);
	free(v);
}

static void test_many_tensors(void) { on_wires(program_many_tensors, "auto"); }

static void program_bad_tensors(tutti *job)
{
	float v[4] = { 1, 2, 3, 4 };
	int32_t w = 5;
	tutti_tensor t[] = { { v, 2, TUTTI_F32 }, { &w, 1, TUTTI_I32 } }, null = { NULL, 1, TUTTI_F32 },
		     huge[] = { { v, SIZE_MAX / 8, TUTTI_F32 }, { v, SIZE_MAX / 8, TUTTI_F32 } };

	CHECK(tutti_allreduce_tensors(job, t, 2, TUTTI_SUM, NULL) == -ENOTSUP &&
	      strstr(tutti_why(), "tensors 0 and 1"));
	CHECK(tutti_allreduce_tensors(job, t, 0, TUTTI_SUM, NULL) == -EINVAL);
	CHECK(tutti_allreduce_tensors(job, NULL, 1, TUTTI_SUM, NULL) == -EINVAL);
	CHECK(tutti_allreduce_tensors(job, &null, 1, TUTTI_SUM, NULL) == -EINVAL);
	CHECK(tutti_allreduce_tensors(job, t, 1, (tutti_rule)9, NULL) == -EINVAL);
	CHECK(tutti_allreduce_tensors(job, huge, 2, TUTTI_SUM, NULL) == -EINVAL);
	CHECK(tutti_allreduce(job, v, v + 1, 2, TUTTI_F32, TUTTI_SUM, NULL) == -EINVAL &&
	      strstr(tutti_why(), "overlap"));
	CHECK(tutti_allreduce(job, v + 1, v, 2, TUTTI_F32, TUTTI_SUM, NULL) == -EINVAL);
	CHECK(tutti_allreduce(job, NULL, v, 2, TUTTI_F32, TUTTI_SUM, NULL) == -EINVAL);
	CHECK(tutti_allreduce(job, v, v + 2, 2, TUTTI_F32, TUTTI_MAX, NULL) == 0 && v[2] == 1 && v[3] == 2);
	CHECK(tutti_reduce(job, v, v + 1, 2, TUTTI_F32, TUTTI_SUM, tutti_rank(job), NULL) == -EINVAL);
	CHECK(tutti_reduce(job, NULL, v, 2, TUTTI_F32, TUTTI_SUM, 0, NULL) == -EINVAL);
	CHECK(tutti_reduce(job, v, v, 2, TUTTI_F32, TUTTI_SUM, -1, NULL) == -EINVAL);
	CHECK(tutti_reduce(job, v, v, 2, TUTTI_F32, TUTTI_SUM, tutti_size(job), NULL) == -EINVAL);
	CHECK(tutti_reduce(job, v, v, 2, TUTTI_F32, (tutti_rule)9, 0, NULL) == -EINVAL);
}

static void test_bad_tensors(void)
{
	CU_ASSERT_EQUAL(run_ranks((struct ranks){ .size = 2, .wire = "sim", .program = program_bad_tensors }), 0);
}

/* ---- reduce ---- */

/* The documented orders: along a binomial tree, or a chain. Ranks are counted from the root. */
static void combine_to(struct vectors *v, int root)
{
	bool chain = v->count * v->given / (size_t)v->n > 128 * 1024;
	struct vectors wide;

	if (widen_vectors(v, &wide)) {
		combine_to(&wide, root);
		narrow_vector(v, root, &wide);
		return;
	}
	for (int step = 1; !chain && step < v->n; step *= 2)
		for (int i = 0; i + step < v->n; i += 2 * step)
			combine(v, v->of[(root + i) % v->n], v->of[(root + i + step) % v->n], 0, v->count);
	for (int i = v->n - 1; chain && i > 0; i--)
		combine(v, v->of[(root + i - 1) % v->n], v->of[(root + i) % v->n], 0, v->count);
	if (v->rule == TUTTI_AVERAGE)
		tt_scale(v->of[root], v->count, v->type, (unsigned)v->n);
}

static void check_reduce(tutti *job, size_t count, tutti_type type, tutti_rule rule, int root, bool in_place, int turn)
{
	struct vectors v = vectors_of(job, count, type, rule);
	size_t bytes = count * v.width;
	int me = tutti_rank(job);
	char *in = memory_for(job, bytes + 8, turn), *apart = must(malloc(bytes + 8)), *out = in_place ? in : apart;
	static char elsewhere[1]; /* is not looked at */

	memset(apart, 42, bytes + 8);
	memset(memcpy(in, v.of[me], bytes) + bytes, 42, 8);
	CHECK(tutti_reduce(job, in, me == root ? out : elsewhere, count, type, rule, root, NULL) == 0);
	CHECK((me == root && in_place) || memcmp(in, v.of[me], bytes) == 0);
	if (tt_segment_open(job))
		combine_ranks(&v);
	else
		combine_to(&v, root);
	CHECK(me != root || memcmp(out, v.of[tt_segment_open(job) ? 0 : root], bytes) == 0);
	CHECK(is_42(in + bytes, 8) && is_42(apart + bytes, 8));
	free_vectors(&v);
	free(apart);
	tutti_free(job, in - ODDLY);
}

static void program_reduce(tutti *job)
{
	static const size_t counts[] = { 0, 1, 999, 6007, 40001 };
	int n = tutti_size(job);

	for (int type = TUTTI_F32; type <= TUTTI_I64; type++)
		for (size_t i = SKIPPED; i < TT_COUNT(counts); i++)
			check_reduce(job, counts[i], (tutti_type)type, (tutti_rule)((type + (int)i) % 5),
			             (type + (int)i) % n, i % 2, type);
	check_reduce(job, 300001, TUTTI_F32, TUTTI_SUM, n - 1, true, 0);
	check_reduce(job, 300001, TUTTI_F32, TUTTI_AVERAGE, 0, false, 1);
}

static void test_reduce(void) { on_wires(program_reduce, NULL); }

/* A rank that is no root gets ahead, but not for ever: else what it sends is more than the root may keep. */
static void program_reduces_ahead(tutti *job)
{
	enum { CALLS = 5000, COUNT = 16 }; /* whole lines, too */
	float x[COUNT] = { 1 }, sum[COUNT];

	for (size_t count = 1; count <= COUNT; count += COUNT - 1) {
		if (tutti_rank(job) == 0)
			pass_time(300 * TT_MS);
		for (int i = 0; i < CALLS; i++)
			CHECK(tutti_reduce(job, x, sum, count, TUTTI_F32, TUTTI_SUM, 0, NULL) == 0);
		CHECK(tutti_rank(job) || sum[0] == (float)tutti_size(job));
		CHECK(tutti_barrier(job, NULL) == 0);
	}
}

static void test_reduces_ahead(void)
{
	struct ranks run = { .size = 3, .program = program_reduces_ahead };

	CU_ASSERT_EQUAL(run_real_ranks(run), 0);
	run.wire = "sim";
	CU_ASSERT_EQUAL(run_ranks(run), 0);
}

/* A rank between others and the root gives the call up while its sum is on its way. */
static void program_reduce_given_up(tutti *job)
{
	enum { COUNT = 1 << 20 };
	float *x = must(calloc(COUNT, sizeof *x)), *sum = must(calloc(COUNT, sizeof *sum));
	int me = tutti_rank(job);

	for (int k = 0; k < 8; k++) {
		tutti_op op = { 0 };
		int err = tutti_reduce(job, x, sum, COUNT, TUTTI_F32, TUTTI_SUM, 0, &op);
		CHECK(err == 0);
		for (int turn = 0; me == 1 && turn < 40 * k && tutti_test(&op) == -EINPROGRESS; turn++)
			pass_time(TT_MS / 20);
		err = me == 1 ? tutti_cancel(&op) : tutti_wait(&op, -1);
		CHECK(err == 0 || err == -ECANCELED || err == -ECONNABORTED);
		CHECK(tutti_barrier(job, NULL) == 0);
	}
	free(x);
	free(sum);
}

static void test_reduce_given_up(void)
{
	struct ranks run = { .size = 3, .program = program_reduce_given_up };

	CU_ASSERT_EQUAL(run_real_ranks(run), 0);
	for (run.wire = "sim"; run.seed != SEEDS; run.seed++)
		CU_ASSERT_EQUAL(run_ranks(run), 0);
}

/* ---- the model: the same numbers everywhere, and kept ---- */

static struct tt_model models[RANKS_MAX];

static bool needs_model(const tutti *group) { return group->n > 1 && !tt_segment_open(group); }

static void check_explained(tutti *job)
{
	char before[300], after[300];
	float *v = must(calloc(50000, sizeof *v));

	CHECK(tt_allreduce_explain(job, 1 << 20, TUTTI_F32, TUTTI_SUM, before, sizeof before) == 0);
	CHECK(tt_segment_open(job) ? strstr(before, "direct") != NULL
	                           : strstr(before, "expected") && strstr(before, "chunks"));
	CHECK(tutti_allreduce(job, v, v, 50000, TUTTI_F32, TUTTI_SUM, NULL) == 0);
	CHECK(tt_allreduce_explain(job, 1 << 20, TUTTI_F32, TUTTI_SUM, after, sizeof after) == 0);
	CHECK(strcmp(before, after) == 0);
	CHECK(tt_allreduce_explain(job, 4, (tutti_type)99, TUTTI_SUM, after, sizeof after) == -EINVAL);
	free(v);
}

/* The thread sanitizer does not see what ranks tell each other in shared memory, so it is shown a lock. */
static pthread_mutex_t showing = PTHREAD_MUTEX_INITIALIZER;

static void give_model(int rank, const struct tt_model *m)
{
	pthread_mutex_lock(&showing);
	models[rank] = *m;
	pthread_mutex_unlock(&showing);
}

static struct tt_model model_of(int rank)
{
	pthread_mutex_lock(&showing);
	struct tt_model m = models[rank];
	pthread_mutex_unlock(&showing);
	return m;
}

static void program_model(tutti *job)
{
	enum { K = 3, COUNT = 20000 };
	float *v = must(calloc(K * COUNT, sizeof *v));
	tutti_op ops[K] = { 0 };
	bool right = true;

	for (int i = 0; i < K * COUNT; i++)
		v[i] = (float)(i % 7);
	for (int k = 0; k < K; k++) /* all are under way before anybody knows it */
		CHECK(tutti_allreduce(job, v + k * COUNT, v + k * COUNT, COUNT, TUTTI_F32, TUTTI_SUM, &ops[k]) == 0);
	for (int k = K - 1; k >= 0; k--)
		CHECK(tutti_wait(&ops[k], -1) == 0);
	for (int i = 0; i < K * COUNT; i++)
		right = right && v[i] == (float)(i % 7 * tutti_size(job));
	CHECK(right);
	give_model(tutti_rank(job), &tt_coll_group(job)->model);
	CHECK(tutti_barrier(job, NULL) == 0);
	struct tt_model m = model_of(0);
	const struct tt_model *mine = &tt_coll_group(job)->model;
	CHECK(mine->known == needs_model(job));
	CHECK(mine->latency_ns == m.latency_ns && mine->net_ps == m.net_ps && mine->add_ps == m.add_ps);
	CHECK(tutti_barrier(job, NULL) == 0);
	check_explained(job);
	CHECK(tt_list_empty(&tt_collectives(job->job)->unexpected)); /* nothing was left over */
	free(v);
}

/* In every fourth world not all can map what others offer: then no rank is direct. */
static void test_not_direct(void)
{
	for (int n = 6; n <= LARGEST; n++)
		CU_ASSERT_EQUAL(run_ranks((struct ranks){
					.size = n, .wire = "sim", .hosts = 1, .seed = 3, .program = program_model }),
		                0);
}

static void test_model(void) { on_wires(program_model, "auto"); }

static const struct tt_model slow_wire = { .latency_ns = 5000, .net_ps = 1000, .add_ps = 50 },
			     slow_start = { .latency_ns = 1000000, .net_ps = 10, .add_ps = 1 };

static void test_choice(void)
{
	const size_t piece = 16000;

	for (int n = 2; n <= 1024; n *= 2) {
		CU_ASSERT_PTR_EQUAL(tt_model_choose(&slow_wire, n, 1000, piece), &tt_doubling);
		CU_ASSERT_PTR_EQUAL(tt_model_choose(&slow_wire, n, 64 << 20, piece), &tt_rabenseifner);
	}
	CU_ASSERT_PTR_EQUAL(tt_model_choose(&slow_wire, 6, 64 << 20, piece), &tt_ring); /* no power of two */
	CU_ASSERT_PTR_EQUAL(tt_model_choose(&slow_start, 1000, 1 << 20, piece), &tt_rabenseifner);
	CU_ASSERT(tt_model_predict(&slow_wire, &tt_doubling, 8, 4096, piece) == 3 * (5000 + 4096 + 204));
}

/* A wrong setting is told of when joining. */
static void test_settings(void)
{
	tutti_config c = tutti_config_defaults();
	tutti *job;

	setenv("TUTTI_ALLREDUCE", "rign", 1);
	CU_ASSERT_EQUAL(tutti_join(&c, &job), -EINVAL);
	CU_ASSERT_PTR_NOT_NULL(strstr(tutti_why(), "rign"));
	unsetenv("TUTTI_ALLREDUCE");
	setenv("TUTTI_MEASURE", "perhaps", 1);
	CU_ASSERT_EQUAL(tutti_join(&c, &job), -EINVAL);
	CU_ASSERT_PTR_NOT_NULL(strstr(tutti_why(), "TUTTI_MEASURE"));
	unsetenv("TUTTI_MEASURE");
}

/* ---- reduce-scatter, all-gather, all-to-all ---- */

/* What rank r gives to rank `to`. */
static char *block_for(int r, int to, int n, size_t bytes, size_t count) { return vector_of(r * n + to, bytes, count); }

/* The documented order: all at once by rank, or one after another, from the neighbour on. */
static void combine_for(tutti *job, const struct vectors *v, char *to)
{
	int me = tutti_rank(job);
	void *out = to;
	struct tt_many many = { .from = (const void *const *)v->of, .to = &out, .inputs = v->n, .outputs = 1 };

	if (tt_segment_open(job)) {
		tt_reduce_many(&many, v->count, v->type, v->rule);
		return;
	}
	struct vectors wide;
	if (widen_vectors(v, &wide)) {
		char *sum = must(malloc(v->count * sizeof(float) + 1));
		combine_for(job, &wide, sum);
		tt_from_f32(to, sum, v->count, v->type);
		free(sum);
		free_vectors(&wide);
		return;
	}
	memcpy(to, v->of[me], v->count * v->width);
	for (int k = 1; k < v->n; k++)
		tt_reduce(to, v->of[(me - k + v->n) % v->n], v->count, v->type, v->rule);
	if (v->rule == TUTTI_AVERAGE)
		tt_scale(to, v->count, v->type, (unsigned)v->n);
}

static void check_scattered(tutti *job, const char *out, size_t count, tutti_type type, tutti_rule rule)
{
	struct vectors v = {
		.n = tutti_size(job), .count = count, .width = tt_type_size(type), .given = tt_type_size(type),
		.type = type, .rule = rule
	};
	size_t bytes = count * v.width;
	char *expected = must(malloc(bytes + 1));

	for (int r = 0; r < v.n; r++)
		v.of[r] = block_for(r, tutti_rank(job), v.n, bytes, count);
	combine_for(job, &v, expected);
	CHECK(memcmp(out, expected, bytes) == 0);
	for (int r = 0; r < v.n; r++)
		free(v.of[r]);
	free(expected);
}

/* The memory is this rank's own again once the call has returned: it is spoiled at once. */
static void check_reduce_scatter(tutti *job, size_t count, tutti_type type, tutti_rule rule, bool in_place, int turn)
{
	int n = tutti_size(job), me = tutti_rank(job);
	size_t bytes = count * tt_type_size(type), at = (size_t)me * bytes, all = (size_t)n * bytes;
	char *in = memory_for(job, all + 8, turn), *before = must(malloc(all + 8)), *after = must(malloc(all + 8));
	char *out = in_place ? in + at : must(malloc(bytes + 1));

	for (int r = 0; r < n; r++) {
		char *block = block_for(me, r, n, bytes, count);
		memcpy(in + (size_t)r * bytes, block, bytes);
		free(block);
	}
	memset(in + all, 42, 8);
	memcpy(before, in, all + 8);
	CHECK(tutti_reduce_scatter(job, in, out, count, type, rule, NULL) == 0);
	memcpy(after, in, all + 8);
	memset(in, 0x55, in_place ? at : all);
	check_scattered(job, out, count, type, rule);
	CHECK(memcmp(after, before, at) == 0);
	CHECK(memcmp(after + at + bytes, before + at + bytes, all + 8 - at - bytes) == 0);
	CHECK(in_place || memcmp(after + at, before + at, bytes) == 0);
	free(after);
	free(before);
	if (!in_place)
		free(out);
	tutti_free(job, in - ODDLY);
}

static void program_reduce_scatter(tutti *job)
{
	static const size_t counts[] = { 0, 1, 999, 6007 };
	float x[2 * RANKS_MAX] = { 0 };

	for (int type = TUTTI_F32; type <= TUTTI_I64; type++)
		for (int rule = TUTTI_SUM; rule <= TUTTI_MIN; rule++)
			for (size_t i = SKIPPED; i < TT_COUNT(counts); i++)
				check_reduce_scatter(job, counts[i], (tutti_type)type, (tutti_rule)rule,
				                     (type + rule) % 2, type + (int)i);
	check_reduce_scatter(job, 40001, TUTTI_F32, TUTTI_AVERAGE, false, 0);
	check_reduce_scatter(job, 300001, TUTTI_F32, TUTTI_SUM, true, 1);
	CHECK(tutti_reduce_scatter(job, x, (char *)x + tutti_rank(job) * 8 + 4, 2, TUTTI_F32, TUTTI_SUM, NULL) ==
	      -EINVAL);
	CHECK(tutti_reduce_scatter(job, NULL, x, 1, TUTTI_F32, TUTTI_SUM, NULL) == -EINVAL);
	CHECK(tutti_reduce_scatter(job, x, x, 1, (tutti_type)9, TUTTI_SUM, NULL) == -EINVAL);
	CHECK(tutti_reduce_scatter(job, x, x, SIZE_MAX / 4, TUTTI_F32, TUTTI_SUM, NULL) == -EINVAL);
}

static void test_reduce_scatter(void) { on_wires(program_reduce_scatter, NULL); }

enum {
	BLOCKS = 9,
	LONGEST = 600001,
	APART = 1009,
	HUGE = TT_SEGMENT_CALL_PIECES * TT_SEGMENT_CALL_PIECE + TT_SEGMENT_CHUNK / 2 + 20
};

/* The last ones that go as one message and as two, and the first ones that do not; and others. */
static size_t block_bytes(size_t k)
{
	const size_t q = (TT_COLL_PIECE - 16) & ~(size_t)63;
	const size_t of[BLOCKS] = { 0, 1, 13, q, q + 1, 2 * q, 2 * q + 1, 70001, LONGEST };

	return of[k];
}

/* What rank `from` has for rank `to`: a piece of one sequence, that begins elsewhere for each two. */
static char sequence[HUGE + APART * 16 * RANKS_MAX];

static void fill_sequence(void)
{
	char *v = vector_of(0, sizeof sequence, 0);

	for (size_t i = 0; i < sizeof sequence; i++)
		sequence[i] = v[i / 2 * 2] ^ (char)(i * 7);
	free(v);
}

static const char *block_of(int from, int to) { return sequence + APART * (size_t)(from * 16 + to); }
static void check_block(const char *block, int from, int to, size_t bytes)
{
	CHECK(!memcmp(block, block_of(from, to), bytes));
}
static void fill_block(char *block, int from, int to, size_t bytes) { memcpy(block, block_of(from, to), bytes); }

static void check_allgather(tutti *job, size_t bytes, bool in_place, int turn)
{
	int n = tutti_size(job), me = tutti_rank(job);
	size_t all = (size_t)n * bytes;
	char *out = memory_for(job, all + 8, turn), *got = must(malloc(all + 8)),
	     *in = in_place ? out + (size_t)me * bytes : must(malloc(bytes + 1));

	memset(out, 42, all + 8);
	fill_block(in, me, 0, bytes);
	CHECK(tutti_allgather(job, in, bytes, out, NULL) == 0);
	memcpy(got, out, all + 8);
	memset(out, 0x55, all);
	for (int r = 0; r < n; r++)
		check_block(got + (size_t)r * bytes, r, 0, bytes);
	for (int i = 0; i < 8; i++)
		CHECK(got[all + (size_t)i] == 42);
	if (!in_place)
		free(in);
	free(got);
	tutti_free(job, out - ODDLY);
}

static void program_allgather(tutti *job)
{
	int me = tutti_rank(job);

	for (size_t k = 0; k < BLOCKS; k++)
		check_allgather(job, block_bytes(k), k % 2, (int)k);
	char c[2 * RANKS_MAX] = { 0 };
	CHECK(tutti_allgather(job, c + 1 + 2 * me, 2, c, NULL) == -EINVAL);
	CHECK(tutti_allgather(job, NULL, 2, c, NULL) == -EINVAL);
}

static void test_allgather(void) { on_wires(program_allgather, NULL); }

/* Rank r gives `sizes`[r] bytes; places in another order than the ranks, and with gaps. */
static void check_allgatherv(tutti *job, const size_t *sizes, bool in_place, int turn)
{
	int n = tutti_size(job), me = tutti_rank(job);
	size_t bytes[RANKS_MAX], at[RANKS_MAX], all = 0;

	for (int r = n - 1; r >= 0; r--) {
		bytes[r] = sizes[r];
		at[r] = all + 5;
		all = at[r] + bytes[r];
	}
	char *out = memory_for(job, all + 8, turn), *got = must(malloc(all + 8)),
	     *in = in_place ? out + at[me] : must(malloc(bytes[me] + 1));
	tutti_op op = { 0 };

	memset(out, 42, all + 8);
	fill_block(in, me, 0, bytes[me]);
	CHECK(tutti_allgatherv(job, in, bytes[me], out, bytes, at, &op) == 0);
	memset(bytes, 0x55, sizeof bytes); /* the arrays were read */
	CHECK(tutti_wait(&op, -1) == 0);
	memcpy(got, out, all + 8);
	memset(out, 0x55, all);
	for (int r = 0; r < n; r++) {
		check_block(got + at[r], r, 0, sizes[r]);
		CHECK(is_42(got + at[r] + sizes[r], 5));
	}
	CHECK(is_42(got, 5) && is_42(got + all, 8));
	if (!in_place)
		free(in);
	free(got);
	tutti_free(job, out - ODDLY);
}

static void program_allgatherv(tutti *job)
{
	int n = tutti_size(job), me = tutti_rank(job);

	for (size_t k = 0; k < 2 * BLOCKS; k++) {
		size_t sizes[RANKS_MAX] = { 0 };
		for (int r = 0; r < n; r++)
			sizes[r] = k < BLOCKS        ? block_bytes((k + (size_t)r) % BLOCKS)
			           : r == (int)k % n ? block_bytes(k % BLOCKS)
			                             : k % 2;
		check_allgatherv(job, sizes, k % 2, (int)k);
	}
	size_t one[RANKS_MAX], at[RANKS_MAX], far[RANKS_MAX];
	char c[RANKS_MAX] = { 0 };
	for (int r = 0; r < RANKS_MAX; r++) {
		one[r] = 1;
		at[r] = (size_t)r;
		far[r] = SIZE_MAX;
	}
	CHECK(tutti_allgatherv(job, c, 2, c, one, at, NULL) == -EINVAL && strstr(tutti_why(), "gives 2"));
	CHECK(tutti_allgatherv(job, NULL, 1, c, one, at, NULL) == -EINVAL);
	CHECK(tutti_allgatherv(job, c, 1, NULL, one, at, NULL) == -EINVAL);
	CHECK(tutti_allgatherv(job, c, 1, c, NULL, at, NULL) == -EINVAL);
	CHECK(tutti_allgatherv(job, c, 1, c, one, far, NULL) == -EINVAL);
	CHECK(n == 1 || tutti_allgatherv(job, c + (me + 1) % n, 1, c, one, at, NULL) == -EINVAL);
}

static void test_allgatherv(void) { on_wires(program_allgatherv, NULL); }

/* Ranks disagree about a size, a place, a root, or the tensors: none gets a result that the others have not asked
 * for. */
static int call_new(tutti *job, int k, char *v, bool odd)
{
	int n = tutti_size(job), me = tutti_rank(job);
	size_t bytes[RANKS_MAX], at[RANKS_MAX], each = k % 2 ? 100000 : 8;
	char *out = v + 400000;
	tutti_tensor t[] = { { v, each / 4, TUTTI_F32 }, { v + 200000, each / 4, TUTTI_F32 } };

	for (int r = 0; r < n; r++) {
		bytes[r] = k / 2 == 0 && odd && r == 0 ? 0 : each;
		at[r] = (size_t)r * 100001 + (k / 2 == 1 && odd);
	}
	switch (k / 2) {
	case 0:
	case 1: return tutti_allgatherv(job, v, bytes[me], out, bytes, at, NULL);
	case 2: return tutti_reduce(job, v, out, each / 4, TUTTI_F32, TUTTI_SUM, odd ? n - 1 : 0, NULL);
	case 3: return odd ? tutti_reduce(job, v, out, each / 4, TUTTI_F32, TUTTI_SUM, 0, NULL) :
		             tutti_allreduce(job, v, out, each / 4, TUTTI_F32, TUTTI_SUM, NULL);
	case 4: return tutti_scatter(job, v, each, out, odd ? n - 1 : 0, NULL);
	case 5: return tutti_gather(job, v, each + 5000 * odd, out, 0, NULL);
	default:
		t[0].count += odd;
		t[1].count -= odd;
		return tutti_allreduce_tensors(job, t, 2, TUTTI_SUM, NULL);
	}
}

static void program_disagree_new(tutti *job)
{
	int n = tutti_size(job), me = tutti_rank(job);
	char *v = must(calloc(400000 + RANKS_MAX * 100002, 1));
	uint64_t start = tt_now();

	for (int k = 0; k < 14; k++) {
		int err = call_new(job, k, v, me == n - 1);
		/* a leaf of a reduce or gather may be through with the call before it hears of the disagreement */
		bool leaf = me && (k / 2 == 3 || (k / 2 == 2 && n > 2) || k / 2 == 5);
		leaf |= k == 8 || (k == 9 && me && me < n - 1); /* the root of a short scatter waits for nobody */
		CHECK(err == -EBADMSG || err == -ECONNABORTED || (err == 0 && leaf));
		CHECK(!err || strstr(tutti_why(), "rank "));
		CHECK(tutti_barrier(job, NULL) == 0); /* nobody was evicted for it */
	}
	CHECK(tt_now() - start < 8000 * TT_MS);
	free(v);
}

/* ---- who has called what ---- */

static const struct { const char *odd, *others; } calls[] = {
	{ "all-reduce of 4 f32 (sum)", "barrier" },
	{ "all-reduce of 5 f32 (sum)", "all-reduce of 4 f32 (sum)" },
	{ "all-reduce of 4 f32 (max)", "all-reduce of 4 f32 (sum)" },
	{ "all-reduce of 4 bf16 (average)", "all-reduce of 4 f32 (average)" },
	{ "all-reduce of 4 f32 (sum) in tensors", "and so did this rank, but not with the same sizes" },
	{ "reduce of 4 f32 (sum) to rank 1", "broadcast of 16 bytes from rank 0" },
	{ "scatter of 8 bytes a rank from rank 1", "all-to-all of 16 bytes a rank" },
	{ "gather of 16 bytes to all ranks", "gather of 16 bytes to rank 0" },
	{ "reduce-scatter of 2 i64 a rank (bor)", "all-gather of 16 bytes a rank" },
	{ "all-gather of any sizes", "all-to-all of any sizes" },
	{ "TUTTI_ALLREDUCE is ring on ", "and doubling on this rank" },
	{ "TUTTI_ALLREDUCE is auto on ", "and rabenseifner on this rank" },
	{ "TUTTI_PARTIALS is short on ", "and f32 on this rank" },
	{ "TUTTI_MEASURE is no on ", "and yes on this rank" },
};

static int call_one(tutti *job, int k, bool odd)
{
	float v[64] = { 0 }, w[64];
	size_t each[] = { 8, 8, 8, 8 }, at[] = { 0, 8, 16, 24 };
	const tutti_tensor two[] = { { v, 1 + odd, TUTTI_F32 }, { v + 8, 3 - odd, TUTTI_F32 } };

	switch (k) {
	case 0: return odd ? tutti_allreduce(job, v, v, 4, TUTTI_F32, TUTTI_SUM, NULL) : tutti_barrier(job, NULL);
	case 1: return tutti_allreduce(job, v, v, 4 + odd, TUTTI_F32, TUTTI_SUM, NULL);
	case 2: return tutti_allreduce(job, v, v, 4, TUTTI_F32, odd ? TUTTI_MAX : TUTTI_SUM, NULL);
	case 3: return tutti_allreduce(job, v, v, 4, odd ? TUTTI_BF16 : TUTTI_F32, TUTTI_AVERAGE, NULL);
	case 4: return tutti_allreduce_tensors(job, two, 2, TUTTI_SUM, NULL);
	case 5: return odd ? tutti_reduce(job, v, w, 4, TUTTI_F32, TUTTI_SUM, 1, NULL) :
		             tutti_broadcast(job, v, 16, 0, NULL);
	case 6: return odd ? tutti_scatter(job, v, 8, w, 1, NULL) : tutti_alltoall(job, v, 16, w, NULL);
	case 7: return tutti_gather(job, v, 16, w, odd ? -1 : 0, NULL);
	case 8: return odd ? tutti_reduce_scatter(job, v, w, 2, TUTTI_I64, TUTTI_BOR, NULL) :
		             tutti_allgather(job, v, 16, w, NULL);
	case 9: return odd ? tutti_allgatherv(job, v, 8, w, each, at, NULL) :
		             tutti_alltoallv(job, v, each, at, w, each, at, NULL);
	default: return tutti_allreduce(job, v, v, 4, TUTTI_F32, TUTTI_SUM, NULL);
	}
}

static void set_one(tutti *job, int k, bool odd)
{
	struct tt_settings *s = &job->job->settings;

	const char *algorithm = k == 10 ? (odd ? "ring" : "doubling") : k == 11 && !odd ? "rabenseifner" : "auto";

	tt_settings_set(s, TT_ALLREDUCE, algorithm, "test");
	tt_settings_set(s, TT_PARTIALS, k == 12 && odd ? "short" : "f32", "test");
	tt_settings_set(s, TT_MEASURE, k == 13 && odd ? "no" : "yes", "test");
}

/* Rank 1 is the odd one, and all others name it; it names one of them. A rank that waits for nobody may be through, but
 * not all ranks are. */
static void program_who(tutti *job)
{
	bool odd = tutti_rank(job) == 1;

	for (int k = 0; k < (int)TT_COUNT(calls); k++) {
		set_one(job, k, odd);
		int err = call_one(job, k, odd);
		CHECK(err == -EBADMSG || (!err && k >= 5 && k <= 7));
		CHECK(!err || odd || (strstr(tutti_why(), "rank 1") && strstr(tutti_why(), calls[k].odd)));
		CHECK(!err || odd || strstr(tutti_why(), calls[k].others));
		CHECK(!err || !odd || (strstr(tutti_why(), "rank ") && strstr(tutti_why(), "this rank")));
		int32_t noticed = err == -EBADMSG;
		set_one(job, 0, odd);
		CHECK(tutti_barrier(job, NULL) == 0);
		CHECK(tutti_allreduce(job, &noticed, &noticed, 1, TUTTI_I32, TUTTI_MAX, NULL) == 0 && noticed);
	}
}

static void test_who(void)
{
	for (struct ranks run = { .size = 2, .program = program_who }; run.size <= 4; run.size++) {
		run.wire = "sim";
		for (run.hosts = 0; run.hosts <= 1; run.hosts++)
			CU_ASSERT_EQUAL(run_ranks(run), 0);
		run.hosts = 0;
		if (all_or(true, run.size == 3))
			CU_ASSERT_EQUAL(run_real_ranks(run), 0);
	}
}

/* A call without elements meets nobody: on its rank it is over when the others hear that they have called another. */
static void program_disagree_empty(tutti *job)
{
	int me = tutti_rank(job);
	float v[8] = { 0 }, w;
	uint64_t start = tt_now();

	for (int k = 0; k < 6; k++) {
		bool empty = me == k % 2 * (tutti_size(job) - 1);
		int err = k < 4 ? tutti_allreduce(job, v, v, empty ? 0 : 8, TUTTI_F32, TUTTI_SUM, NULL) :
		                  tutti_reduce_scatter(job, v, &w, empty ? 0 : 1, TUTTI_F32, TUTTI_SUM, NULL);
		CHECK(err == -EBADMSG || err == -ECONNABORTED || (empty && !err));
		CHECK(!err || strstr(tutti_why(), "rank "));
		CHECK(tutti_barrier(job, NULL) == 0);
	}
	CHECK(tt_now() - start < 8000 * TT_MS);
}

static void test_disagree_empty(void)
{
	for (struct ranks run = { .size = 2, .program = program_disagree_empty }; run.size <= 4; run.size++) {
		run.wire = "sim";
		for (run.seed = 0; run.seed != SEEDS; run.seed++)
			CU_ASSERT_EQUAL(run_ranks(run), 0);
		CU_ASSERT_EQUAL(run_real_ranks(run), 0);
	}
}

static void test_disagree_new(void)
{
	for (struct ranks run = { .size = 2, .program = program_disagree_new }; run.size <= 4; run.size++) {
		run.wire = "sim";
		for (run.seed = 0; run.seed != SEEDS; run.seed++)
			CU_ASSERT_EQUAL(run_ranks(run), 0);
		CU_ASSERT_EQUAL(run_real_ranks(run), 0);
	}
}

static void check_alltoall(tutti *job, size_t bytes, int turn)
{
	int n = tutti_size(job), me = tutti_rank(job);
	size_t all = (size_t)n * bytes;
	char *in = memory_for(job, all + 8, turn), *out = must(malloc(all + 8));

	memset(out, 42, all + 8);
	for (int r = 0; r < n; r++)
		fill_block(in + (size_t)r * bytes, me, r, bytes);
	CHECK(tutti_alltoall(job, in, bytes, out, NULL) == 0);
	memset(in, 0x55, all);
	for (int r = 0; r < n; r++)
		check_block(out + (size_t)r * bytes, r, me, bytes);
	for (int i = 0; i < 8; i++)
		CHECK(out[all + (size_t)i] == 42);
	free(out);
	tutti_free(job, in - ODDLY);
}

static void check_broadcast(tutti *job, size_t bytes, int root, int turn)
{
	char *v = memory_for(job, bytes + 8, turn), *got = must(malloc(bytes + 8));

	memset(v, 42, bytes + 8);
	if (tutti_rank(job) == root)
		fill_block(v, root, 0, bytes);
	CHECK(tutti_broadcast(job, v, bytes, root, NULL) == 0);
	memcpy(got, v, bytes + 8);
	memset(v, 0x55, bytes);
	check_block(got, root, 0, bytes);
	for (int i = 0; i < 8; i++)
		CHECK(got[bytes + (size_t)i] == 42);
	free(got);
	tutti_free(job, v - ODDLY);
}

/* ---- to and from a root ---- */

/* Around what all ranks hold, what fits into a message, and what comes by puts. */
static size_t rooted_bytes(size_t k)
{
	const size_t of[] = { 1, 4096, 4097, TT_COLL_PIECE, TT_COLL_PIECE + 1, 70001, LONGEST };

	return of[k];
}
enum { ROOTED = 7 };

static void check_gather(tutti *job, size_t bytes, int root, bool in_place, int turn)
{
	int n = tutti_size(job), me = tutti_rank(job);
	bool mine = root < 0 || root == me;
	size_t len = (size_t)n * bytes;
	char *all = mine ? memory_for(job, len + 8, turn) : NULL, *got = must(malloc(len + 8));
	char *value = mine && in_place ? all + (size_t)me * bytes : must(malloc(bytes));

	if (mine)
		memset(all, 42, len + 8);
	fill_block(value, me, 0, bytes);
	CHECK(tutti_gather(job, value, bytes, all, root, NULL) == 0);
	if (mine) {
		memcpy(got, all, len + 8);
		memset(all, 0x55, len);
		for (int r = 0; r < n; r++)
			check_block(got + (size_t)r * bytes, r, 0, bytes);
		CHECK(is_42(got + len, 8));
		tutti_free(job, all - ODDLY);
	}
	if (!mine || !in_place)
		free(value);
	free(got);
}

static void check_scatter(tutti *job, size_t bytes, int root, bool in_place, int turn)
{
	int n = tutti_size(job), me = tutti_rank(job);
	size_t len = (size_t)n * bytes;
	char *all = root == me ? memory_for(job, len, turn) : NULL, *got = must(malloc(bytes));
	char *apart = memory_for(job, bytes + 8, turn + 1);
	char *value = all && in_place ? all + (size_t)me * bytes : apart;

	memset(apart, 42, bytes + 8);
	for (int r = 0; all && r < n; r++)
		fill_block(all + (size_t)r * bytes, root, r, bytes);
	CHECK(tutti_scatter(job, all, bytes, value, root, NULL) == 0);
	memcpy(got, value, bytes);
	memset(value, 0x55, bytes);
	if (all)
		memset(all, 0x66, len);
	check_block(got, root, me, bytes);
	CHECK(is_42(apart + bytes, 8));
	free(got);
	tutti_free(job, apart - ODDLY);
	if (all)
		tutti_free(job, all - ODDLY);
}

static void program_rooted(tutti *job)
{
	int n = tutti_size(job);
	char c[4] = { 0 };

	for (size_t k = 0; k < ROOTED; k++)
		for (int turn = 0; turn < 2; turn++) {
			check_gather(job, rooted_bytes(k), turn ? (int)k % n : -1, k % 2, (int)k + turn);
			check_scatter(job, rooted_bytes(k), (n - 1) * turn, k % 2, (int)k + turn);
		}
	CHECK(tutti_scatter(job, c, 1, c, n, NULL) == -EINVAL);
	CHECK(tutti_scatter(job, c, 0, c, 0, NULL) == -EINVAL);
	CHECK(tutti_scatter(job, c, SIZE_MAX, c, 0, NULL) == -EINVAL);
	CHECK(tutti_scatter(job, c, 1, NULL, 0, NULL) == -EINVAL);
	CHECK(tutti_rank(job) || tutti_scatter(job, NULL, 1, c, 0, NULL) == -EINVAL);
	CHECK(tutti_rank(job) || n == 1 || tutti_scatter(job, c, 2, c + 1, 0, NULL) == -EINVAL);
	CHECK(tutti_gather(job, c, SIZE_MAX, c, 0, NULL) == -EINVAL);
}

static void test_rooted(void) { on_wires(program_rooted, NULL); }

/* The root of scatters, and the others of gathers, get ahead of a rank that is late, but not for ever. */
static void program_rooted_ahead(tutti *job)
{
	enum { CALLS = 300, BYTES = 9000 };
	char *v = must(calloc(RANKS_MAX, BYTES)), *w = must(malloc(RANKS_MAX * BYTES));
	uint64_t start = tt_now();

	for (int gathers = 0; gathers < 2; gathers++) {
		if ((tutti_rank(job) == 0) == gathers)
			pass_time(300 * TT_MS);
		for (int i = 0; i < CALLS; i++) {
			v[0] = (char)i;
			CHECK(gathers ? !tutti_gather(job, v, BYTES, w, 0, NULL) :
			                !tutti_scatter(job, v, BYTES, w, 0, NULL));
			CHECK((gathers && tutti_rank(job)) || w[0] == (tutti_rank(job) && !gathers ? 0 : (char)i));
		}
		CHECK(tt_now() - start > 250 * TT_MS); /* it had to wait for the late one */
		CHECK(tutti_barrier(job, NULL) == 0);
		start = tt_now();
	}
	free(v);
	free(w);
}

static void test_rooted_ahead(void)
{
	struct ranks run = { .size = 3, .wire = "sim", .program = program_rooted_ahead };

	for (; run.seed != SEEDS; run.seed++)
		CU_ASSERT_EQUAL(run_ranks(run), 0);
	CU_ASSERT_EQUAL(run_real_ranks(run), 0);
}

/* ---- on one host, straight through memory ---- */

/* Around what needs no mapping, what goes over a panel at once, and what a rank reads before it leaves the engine to
 * others. */
static void program_one_host(tutti *job)
{
	size_t n = (size_t)tutti_size(job), piece = TT_SEGMENT_CHUNK / n / TT_CACHE_LINE * TT_CACHE_LINE / 8,
	       is_short = 32 * 1024 / 8 / tt_max(n - 1, 1);
	const size_t counts[] = { 1, 9, is_short, is_short + 1, piece - 1, piece, piece + 1, 3 * piece + 5 };

	for (int turn = 0; turn < 3; turn++)
		for (size_t i = SKIPPED; i < TT_COUNT(counts); i++) {
			check_reduce_scatter(job, counts[i], TUTTI_I64, TUTTI_PRODUCT, i % 2, turn);
			check_reduce_scatter(job, counts[i], TUTTI_F64, TUTTI_AVERAGE, i % 2 == 0, turn);
			check_allgather(job, 8 * counts[i] + i % 3, i % 2, turn);
			check_alltoall(job, 8 * counts[i] + i % 3, turn);
			check_broadcast(job, n * 8 * counts[i] + i % 3, (int)((i + (size_t)turn) % n), turn);
		}
	CHECK(n == 1 || tt_coll_group(job)->layout.hosts == 1);
}

/* More than is read before the engine is left to others, and than a panel holds; the last piece is shorter. */
static void program_one_host_large(tutti *job)
{
	for (int turn = 0; turn < 3; turn++) {
		check_reduce_scatter(job, HUGE / 4, TUTTI_F32, TUTTI_SUM, turn % 2, turn);
		check_allgather(job, HUGE, turn % 2, turn); /* in steps */
		check_allgather(job, 1 << 20, turn % 2, turn);
		check_alltoall(job, HUGE, turn); /* in steps */
		check_alltoall(job, 256 << 10, turn);
		check_broadcast(job, HUGE, turn % tutti_size(job), turn);
	}
}

/* Two ranks: longer blocks go in steps, so nobody makes a board for them. */
static void program_two(tutti *job)
{
	for (int turn = 0; turn < 3; turn++) {
		check_allgather(job, (256 << 10) + 1, turn % 2, turn);
		check_gather(job, (256 << 10) + 1, -1, turn % 2, turn);
		CHECK(!tt_coll_group(job)->segment);
	}
	check_allgather(job, 256 << 10, false, 0);
	CHECK(tt_coll_group(job)->segment != NULL);
}

/* Calls that have a board one after another, and others, all under way at once. */
static void program_several(tutti *job)
{
	enum { CALLS = 12, COUNT = 20003 };
	size_t n = (size_t)tutti_size(job), me = (size_t)tutti_rank(job);
	float *v[CALLS];
	tutti_op ops[CALLS] = { 0 }, barriers[CALLS] = { 0 };
	bool right = true;

	for (size_t k = 0; k < CALLS; k++) {
		size_t count = k % 2 ? 101 : COUNT;
		CHECK(tutti_barrier(job, &barriers[k]) == 0); /* only the first finds no board */
		v[k] = (float *)(void *)memory_for(job, n * count * sizeof(float), (int)(k / 4));
		for (size_t i = 0; i < n * count; i++)
			v[k][i] = (float)(i % 7 + me + k);
		float *mine = v[k] + me * count;
		CHECK((k % 4 == 0   ? tutti_reduce_scatter(job, v[k], mine, count, TUTTI_F32, TUTTI_MAX, &ops[k])
		       : k % 4 == 1 ? tutti_allreduce(job, v[k], v[k], n * count, TUTTI_F32, TUTTI_MAX, &ops[k])
		       : k % 4 == 2 ? tutti_allgather(job, mine, count * sizeof(float), v[k], &ops[k])
		                    : tutti_reduce_scatter(job, v[k], mine, k == 3 ? 0 : count, TUTTI_F32, TUTTI_MAX,
		                                           &ops[k])) == 0);
	}
	for (size_t k = CALLS; k--;) {
		size_t count = k % 2 ? 101 : COUNT;
		CHECK(tutti_wait(&ops[k], -1) == 0 && tutti_wait(&barriers[k], -1) == 0);
		for (size_t i = 0; i < n * count; i++) {
			size_t r = k % 4 == 1 || (k % 4 != 2 && k != 3 && i / count == me) ? n - 1
			           : k % 4 == 2                                            ? i / count
			                                                                   : me;
			right = right && v[k][i] == (float)(i % 7 + r + k);
		}
		tutti_free(job, (char *)v[k] - ODDLY);
	}
	CHECK(right);
	CHECK(tt_list_empty(&tt_collectives(job->job)->unexpected));
}

/* Two under way; ranks disagree about the first, which the second waits for. */
static void program_disagree_first(tutti *job)
{
	float v[RANKS_MAX] = { 0 }, w[2] = { 0 };
	tutti_op first = { 0 }, second = { 0 };
	int err;

	CHECK(tutti_barrier(job, NULL) == 0);
	CHECK(tutti_allreduce(job, v, v, 1 + (size_t)tutti_rank(job), TUTTI_F32, TUTTI_SUM, &first) == 0);
	CHECK(tutti_allreduce(job, w, w, 1, TUTTI_F32, TUTTI_SUM, &second) == 0);
	err = tutti_wait(&first, -1);
	CHECK(err == -EBADMSG || err == -ECONNABORTED);
	CHECK(tutti_wait(&second, -1) == 0);
}

/* One that has not heard how the making of the board ended asks when the others are on it. */
static void program_board_unknown(tutti *job)
{
	float v[8] = { 0 };

	CHECK(tutti_allreduce(job, v, v, 1, TUTTI_F32, TUTTI_SUM, NULL) == 0);
	CHECK(tutti_barrier(job, NULL) == 0);
	if (tutti_rank(job) == 1 && tt_coll_group(job)->segment) {
		tt_lock(job->job);
		tt_coll_group(job)->segment->known = tt_coll_group(job)->segment->open =
			tt_coll_group(job)->segment->making = false;
		tt_unlock(job->job);
		if (tt_world)
			tt_sim_sleep(20 * TT_MS);
	}
	CHECK(tutti_allreduce(job, v, v, 1, TUTTI_F32, TUTTI_SUM, NULL) == 0);
}

static bool makes_board(tutti *job)
{
	int x = 1;

	CHECK(tutti_allreduce(job, &x, &x, 1, TUTTI_I32, TUTTI_SUM, NULL) == 0);
	return tt_segment_open(job);
}

/* Likewise where there is none: in a call that those who know it finish without waiting, and then they may leave the
 * job. */
static void without_board(tutti *job, bool stay)
{
	char v[8192] = "";
	uint64_t start;

	if (!makes_board(job))
		return; /* some worlds have none */
	tt_lock(job->job);
	tt_coll_group(job)->segment->open = tt_coll_group(job)->segment->able = false; /* as if not all could map */
	if (tutti_rank(job) == 1)
		/* its first call failed before the last vote */
		tt_coll_group(job)->segment->known = tt_coll_group(job)->segment->making = false;
	tt_unlock(job->job);
	pass_time((tutti_rank(job) == 1 ? 25 : 5) * TT_MS);
	v[sizeof v - 1] = tutti_rank(job) == 0 ? 7 : 0;
	start = tt_now();
	CHECK(tutti_broadcast(job, v, sizeof v, 0, NULL) == 0 && v[sizeof v - 1] == 7);
	CHECK(tt_now() - start < job->job->timeout / 2);
	if (stay)
		pass_time(50 * TT_MS);
}

static void program_all_stay(tutti *job) { without_board(job, true); }
static void program_some_leave(tutti *job) { without_board(job, false); }

/* Ranks that call something else hear of it before any deadline, and nobody is evicted for it. */
static int call_something(tutti *job, int k, char *v, bool odd)
{
	size_t count = k % 2 ? 10 : 100000, other = count + odd, me = (size_t)tutti_rank(job);
	int n = tutti_size(job);

	switch (k) {
	case 0:
	case 1: return tutti_reduce_scatter(job, v, v + me * other * 4, other, TUTTI_F32, TUTTI_SUM, NULL);
	case 2:
	case 3: return tutti_allgather(job, v + me * other * 4, other * 4, v, NULL);
	case 4:
	case 5: return odd ? tutti_allgather(job, v + me * other * 4, other * 4, v, NULL) :
		             tutti_reduce_scatter(job, v, v + me * count * 4, count, TUTTI_F32, TUTTI_SUM, NULL);
	case 6: return odd ? tutti_barrier(job, NULL) : tutti_gather(job, v, 8, v + 64, -1, NULL);
	case 7: return odd ? tutti_barrier(job, NULL) : tutti_broadcast(job, v, 64, n - 1, NULL);
	case 8: return tutti_broadcast(job, v, 4096 + !odd, 0, NULL); /* as a message, or not */
	case 9: return tutti_broadcast(job, v, 8192, odd ? n - 1 : 0, NULL);
	default: return odd ? tutti_broadcast(job, v, 8192, 0, NULL) : tutti_alltoall(job, v, 8192, v + 8192 * n, NULL);
	}
}

static void program_disagree(tutti *job)
{
	int n = tutti_size(job);
	char *v = memory_for(job, (size_t)n * 100001 * 4, 2);
	uint64_t start = tt_now();

	for (int k = 0; k <= 10; k++) {
		int err = call_something(job, k, v, tutti_rank(job) == n - 1);
		CHECK(n == 1 ? err == 0 : err == -EBADMSG || err == -ECONNABORTED);
	}
	CHECK(tt_now() - start < 8000 * TT_MS);
	CHECK(tutti_barrier(job, NULL) == 0);
	tutti_free(job, v - ODDLY);
}

/* Combined, something else, gathered, in one visit, in place; owners are some of the ranks, with equal shares or whole
 * lines. */
struct staged {
	struct tt_coll coll;
	struct tt_blocks blocks;
	int stage;
};

static int pass_token(struct staged *s)
{
	struct tt_coll *c = &s->coll;
	int owners = s->blocks.owners, owns = c->me < owners;

	if (!s->blocks.call.paused && owns)
		tt_coll_send(c, (c->me + 1) % owners, 5, NULL, 0);
	s->blocks.call.paused = owns;
	if (owns && !tt_coll_take(c, (c->me + owners - 1) % owners, 5, 0))
		return 0;
	s->blocks.call.paused = false;
	return 1;
}

static int advance_staged(struct tt_coll *c)
{
	struct staged *s = (struct staged *)c;
	int k = 1;

	if (!c->segment_call)
		tt_blocks_begin(&s->blocks, c, TT_BLOCKS_REDUCE);
	for (; k > 0 && s->stage < 4; s->stage += k > 0)
		switch (s->stage) {
		case 0: k = tt_blocks_run(&s->blocks, TT_BLOCKS_REDUCE); break;
		case 1: k = s->blocks.owners > 1 ? pass_token(s) : 1; break;
		case 2: k = tt_blocks_run(&s->blocks, TT_BLOCKS_GATHER); break;
		case 3: k = tt_blocks_run(&s->blocks, TT_BLOCKS_LEAVE); break;
		}
	return k;
}

static void release_staged(struct tt_coll *c)
{
	struct staged *s = (struct staged *)c;

	tt_blocks_end(&s->blocks);
}

static struct staged *new_staged(tutti *job, const struct tt_blocks *blocks)
{
	struct staged *s =
		must(tt_coll_new(job, sizeof *s, TUTTI_STAT_REDUCE_SCATTER, blocks->bytes, (uint64_t)blocks->owners));

	s->coll.advance = advance_staged;
	s->coll.release = release_staged;
	s->blocks = *blocks;
	return s;
}

static void check_staged(tutti *job, int owners, size_t count, bool alike, int turn)
{
	struct vectors v = {
		.n = tutti_size(job), .count = count, .width = 2, .type = TUTTI_BF16, .rule = TUTTI_AVERAGE
	};
	size_t bytes = 2 * count;
	char *mine = memory_for(job, bytes + 8, turn), *got = must(malloc(bytes + 8));
	size_t each = alike ? bytes / (size_t)owners : 0,
	       at = tutti_rank(job) < owners
	                    ? alike ? each * (size_t)tutti_rank(job) : tt_span_of(bytes, owners, tutti_rank(job)).at
	                    : 0;

	for (int r = 0; r < v.n; r++)
		v.of[r] = vector_of(r, bytes, count);
	memcpy(mine, v.of[tutti_rank(job)], bytes);
	memset(mine + bytes, 42, 8);
	CHECK(tt_coll_run(&new_staged(job, &(struct tt_blocks){ .vector = tt_vector_at(mine),
	                                                        .bytes = bytes,
	                                                        .owners = owners,
	                                                        .each = each,
	                                                        .to = mine + at,
	                                                        .width = 2,
	                                                        .type = v.type,
	                                                        .rule = v.rule })
	                           ->coll,
	                  NULL) == 0);
	memcpy(got, mine, bytes + 8);
	memset(mine, 0x55, bytes);
	combine_ranks(&v);
	CHECK(memcmp(got, v.of[0], bytes) == 0);
	for (int i = 0; i < 8; i++)
		CHECK(got[bytes + (size_t)i] == 42);
	for (int r = 0; r < v.n; r++)
		free(v.of[r]);
	free(got);
	tutti_free(job, mine - ODDLY);
}

static void program_staged(tutti *job)
{
	int n = tutti_size(job);
	size_t lot = (size_t)n * HUGE / 2;

	if (!makes_board(job))
		return;
	for (int turn = 0; turn < 3; turn++)
		for (int owners = 1; owners <= n; owners++) {
			check_staged(job, owners, 1, false, turn);
			check_staged(job, owners, 33, false, turn);
			check_staged(job, owners, 100003, false, turn);
			check_staged(job, owners, 2 * 32 * 50 * (size_t)owners, true, turn);
			if (n <= 4 && (owners == 1 || owners == n - 1))
				check_staged(job, owners, lot + 7, false, turn);
		}
}

/* A rank gives up, and uses its panel for something else, while another takes from it: that one fails, or has got what
 * was meant. */
enum { GIVEN_UP = 128, SHOWN = 128 * 1024 };

struct quitter {
	struct tt_coll coll;
	struct tt_segment_call call;
	int delay_us;
	bool shown;
};

static int show_and_quit(struct tt_coll *c)
{
	struct quitter *q = (struct quitter *)c;
	uint64_t since;

	if (!c->segment_call)
		tt_segment_call_begin(&q->call, c, SHOWN, c->n);
	if (!q->shown && !tt_segment_call_turn(&q->call))
		return 0;
	if (!q->shown) {
		memset(tt_segment_call_buffer(&q->call, 1), 1, SHOWN);
		tt_segment_call_step(&q->call);
	}
	q->shown = true;
	if (!tt_segment_call_all(&q->call))
		return 0;
	for (since = tt_now(); tt_now() - since < (uint64_t)q->delay_us * 1000;)
		;
	return -EIO;
}

static void quit_and_spoil(struct tt_coll *c)
{
	struct quitter *q = (struct quitter *)c;
	char *room = tt_segment_call_buffer(&q->call, 1);

	tt_segment_call_end(&q->call, false);
	memset(room, 77, SHOWN);
}

static void program_given_up(tutti *job)
{
	uint8_t *v = must(malloc(2 * SHOWN));

	CHECK(makes_board(job));
	for (int i = 0; i < GIVEN_UP; i++) {
		memset(v, 0, 2 * SHOWN);
		if (tutti_rank(job) == 0) {
			int err = tutti_reduce_scatter(job, v, v, SHOWN / 4, TUTTI_I32, TUTTI_MAX, NULL);
			CHECK(err == -ECONNABORTED || (!err && v[0] == 1 && !memcmp(v, v + 1, SHOWN - 1)));
		} else {
			struct quitter *q = must(tt_coll_new(job, sizeof *q, TUTTI_STAT_REDUCE_SCATTER, SHOWN / 4,
			                                     TUTTI_I32 << 8 | TUTTI_MAX));
			q->delay_us = i % 64;
			q->coll.advance = show_and_quit;
			q->coll.release = quit_and_spoil;
			CHECK(tt_coll_run(&q->coll, NULL) == -EIO);
		}
	}
	CHECK(tutti_barrier(job, NULL) == 0);
	free(v);
}

enum {
	SOME_CALLS = 7,
	SOME_BYTES = 20000,
	SOME_COUNT = 23 * TT_SEGMENT_CHUNK / 10 / 4, /* f32 in 2.3 chunks */
	SOME_APART = 5,                              /* f32 between two tensors */
};

static bool is_sum(int k) { return k % SOME_CALLS >= 3 && k % SOME_CALLS <= 5; }

static int begin_some(tutti *job, int k, char *in, char *out, float *v, tutti_op *op)
{
	enum { FIRST = SOME_COUNT / 3 };
	const tutti_tensor tensors[2] = { { v, FIRST, TUTTI_F32 },
		                          { v + FIRST + SOME_APART, SOME_COUNT - FIRST, TUTTI_F32 } };
	size_t bytes = 1 + (size_t)k * 7919 % (SOME_BYTES - 4097);

	switch (k % SOME_CALLS) {
	case 0: return tutti_barrier(job, op);
	case 1: return tutti_alltoall(job, in, bytes, out, op);
	case 2: return tutti_broadcast(job, in, 4097 + bytes, k % tutti_size(job), op);
	case 3: return tutti_allreduce(job, v, v, SOME_COUNT, TUTTI_F32, TUTTI_SUM, op);
	case 4: return tutti_reduce(job, v, v, SOME_COUNT, TUTTI_F32, TUTTI_SUM, k % tutti_size(job), op);
	case 5: return tutti_allreduce_tensors(job, tensors, 2, TUTTI_SUM, op);
	default: return tutti_allgather(job, in, bytes, out, op);
	}
}

/* Checks an all-reduce or a reduce. The memory between tensors and behind the vector stays as it was. */
static void check_some_sum(tutti *job, int k, const float *v)
{
	int n = tutti_size(job), me = tutti_rank(job), which = k % SOME_CALLS;
	float mine = (float)(k + me), sum = (float)(n * k + n * (n - 1) / 2);
	size_t apart = which == 5 ? SOME_COUNT / 3 : SOME_COUNT, wrong = 0;

	if (which == 4 && k % n != me)
		sum = mine;
	for (size_t i = 0; i < SOME_COUNT + SOME_APART; i++)
		wrong += v[i] != (i >= apart && i < apart + SOME_APART ? mine : sum);
	CHECK(!wrong);
}

static void give_up_all(tutti *job, int turns)
{
	tt_lock(job->job);
	while (turns-- > 0)
		tt_progress(job->job);
	tt_list_each(node, &tt_collectives(job->job)->running) {
		struct tt_operation *r = tt_container_of(node, struct tt_coll, link)->request;
		r->words->give_up(r, -EIO);
	}
	tt_unlock(job->job);
}

/* Now and then a rank gives a call up while others are in it. They may be one behind: nobody takes that for another
 * call. */
static void program_some_given_up(tutti *job)
{
	enum { CALLS = 15 * SOME_CALLS };
	int n = tutti_size(job), me = tutti_rank(job), which;
	char *in = memory_for(job, (size_t)n * SOME_BYTES, 2), *out = must(malloc((size_t)n * SOME_BYTES));
	float *v = must(malloc((SOME_COUNT + SOME_APART) * sizeof *v));
	tutti_op op = { 0 };

	CHECK(makes_board(job));
	for (int k = 0; k < CALLS; k++) {
		which = k % SOME_CALLS;
		memset(in, k, (size_t)n * SOME_BYTES);
		for (int i = 0; i < SOME_COUNT + SOME_APART; i++)
			v[i] = (float)(k + me);
		CHECK(begin_some(job, k, in, out, v, &op) == 0);
		if (k % 5 == 4 && k / 5 % n == me)
			give_up_all(job, is_sum(k) ? k % 4 * 200 : 0);
		int err = tutti_wait(&op, -1);
		CHECK(err == 0 || err == -EIO || err == -ECONNABORTED);
		CHECK(err || (which != 1 && which != 6) || *out == (char)k);
		if (!err && is_sum(k))
			check_some_sum(job, k, v);
	}
	free(v);
	free(out);
	tutti_free(job, in - ODDLY);
}

static void test_some_given_up(void)
{
	CU_ASSERT_EQUAL(run_ranks((struct ranks){ .size = 3, .wire = "shm", .program = program_some_given_up }), 0);
}

/* One rank gives a call up at once, or the ranks disagree about the call. The call before is complete on that rank, and
 * must end well on slower ranks, too, with the right sum. */
static void program_completed_before(tutti *job)
{
	enum { COUNT = 300 };
	int n = tutti_size(job), me = tutti_rank(job), rounds = all_or(600, 60);
	float v[COUNT], w[COUNT] = { 0 };

	for (int k = 0; k < rounds; k++) {
		for (int i = 0; i < COUNT; i++)
			v[i] = (float)(k + me);
		CHECK(tutti_allreduce(job, v, v, COUNT, TUTTI_F32, TUTTI_SUM, NULL) == 0);
		CHECK(v[0] == (float)(n * k + n * (n - 1) / 2) && v[COUNT - 1] == v[0]);
		CHECK(tutti_barrier(job, NULL) == 0);
		for (int i = 0; i < 1 + k % 3; i++) {
			tutti_op op = { 0 };
			size_t count = k % 2 && me == n - 1 ? COUNT - 1 : COUNT;
			CHECK(tutti_allreduce(job, w, w, count, TUTTI_F32, TUTTI_SUM, &op) == 0);
			if (me == 0 && k % 2 == 0)
				tutti_cancel(&op);
			int err = tutti_wait(&op, -1);
			CHECK(err == 0 || err == -ECANCELED || err == -ECONNABORTED || err == -EBADMSG);
		}
	}
}

static uint32_t step_of(tutti *job, int i) /* of rank i, in the newest call */
{
	const struct tt_rank_slot *slot = tt_coll_group(job)->segment->peers[i].slot;
	uint32_t step = 0;

	for (int k = 0; k < 2; k++) {
		uint64_t flag = atomic_load(&slot->header[k].flag);
		step = flag >> 32 == job->started - 1 ? (uint32_t)flag : step;
	}
	return step;
}

static bool learns(const struct tt_copier *c)
{
	bool any = tt_copy_ways() == 1; /* there is nothing to learn */

	for (int i = 0; i < TT_COPY_CLASSES; i++)
		any |= c->of[i].warm || c->of[i].trial;
	return any;
}

/* Stores past the caches into slots would cost the ranks that read the slots. */
static bool keeps_slots_cached(const struct tt_collectives *all)
{
	const struct tt_copier *c = &all->copiers.read;
	bool streamed = false;

	for (int i = 0; i < TT_COPY_CLASSES; i++)
		for (int k = 0; k < TT_COPY_ROUNDS; k++)
			streamed |= c->of[i].cost[TT_COPY_STREAM][k] > 0;
	return !streamed;
}

/* A rank fills the second chunk (step 3) when it has combined the first one (step 2), though the other has not. */
static void program_chunk_ahead(tutti *job)
{
	enum { COUNT = 3 * TT_SEGMENT_CHUNK / sizeof(int32_t) };
	int me = tutti_rank(job);
	int32_t *v = must(malloc(COUNT * sizeof *v));
	tutti_op op = { 0 };

	for (int i = 0; i < COUNT; i++)
		v[i] = i + me;
	CHECK(makes_board(job));
	CHECK(tutti_barrier(job, NULL) == 0);
	if (!me)
		usleep(20000); /* until the other rank has begun, and stays there */
	CHECK(tutti_allreduce(job, v, v, COUNT, TUTTI_I32, TUTTI_SUM, &op) == 0);
	if (me) {
		uint64_t end = tt_now() + 2000 * TT_MS;
		tt_lock(job->job);
		while (step_of(job, 0) < 3 && tt_now() < end)
			usleep(100);
		CHECK(step_of(job, 0) >= 3);
		tt_unlock(job->job);
	}
	CHECK(tutti_wait(&op, -1) == 0);
	for (int i = 0; i < COUNT; i++)
		CHECK(v[i] == 2 * i + 1);
	CHECK(learns(&tt_collectives(job->job)->copiers.read) && learns(&tt_collectives(job->job)->copiers.write));
	for (int i = 0; i < 10; i++)
		CHECK(tutti_allreduce(job, v, v, COUNT, TUTTI_I32, TUTTI_MAX, NULL) == 0);
	CHECK(keeps_slots_cached(tt_collectives(job->job)));
	free(v);
}

static void test_chunk_ahead(void)
{
	CU_ASSERT_EQUAL(run_ranks((struct ranks){ .size = 2, .wire = "shm", .program = program_chunk_ahead }), 0);
}

/* Rank 1 says that it is ahead by all steps of the call. So rank 0 never waits, and must return to the progress loop
 * after each few chunks all the same. */
enum { LONG_CHUNKS = 32, FAR_AHEAD = 1000 };

struct turns {
	struct tt_timer timer;
	struct tt_job *job;
	unsigned chunk;              /* of the call, when the timer ended last */
	int between;                 /* how often it ended while the call was in another chunk than before */
};

static struct tt_segment_call *running_call(struct tt_job *job)
{
	tt_each_of(struct tt_coll, link, c, &tt_collectives(job)->running)
		if (c->segment_call)
			return c->segment_call;
	return NULL;
}

static void see_turn(struct tt_timer *t)
{
	struct turns *s = tt_container_of(t, struct turns, timer);
	const struct tt_segment_call *v = running_call(s->job);

	s->between += v && v->chunk != s->chunk;
	s->chunk = v ? v->chunk : s->chunk;
	tt_timer_start(s->job, t, tt_now(), see_turn);
}

static bool is_far_ahead(tutti *job)
{
	const struct tt_rank_slot *slot = tt_coll_group(job)->segment->peers[1].slot;

	return (uint32_t)slot->header[0].flag == FAR_AHEAD || (uint32_t)slot->header[1].flag == FAR_AHEAD;
}

static int begin_long(tutti *job, int k, int32_t *v, tutti_op *op)
{
	enum { COUNT = LONG_CHUNKS * TT_SEGMENT_CHUNK / sizeof *v, BLOCK = COUNT / 2 };

	return k ? tutti_reduce_scatter(job, v, v + BLOCK * tutti_rank(job), BLOCK, TUTTI_I32, TUTTI_MAX, op) :
	       tutti_allreduce(job, v, v, COUNT, TUTTI_I32, TUTTI_MAX, op);
}

static void go_far_ahead(tutti *job, int k, int32_t *v, atomic_int *done)
{
	struct tt_segment_call *call = NULL;
	uint64_t end = tt_now() + 5000 * TT_MS;
	tutti_op op = { 0 };

	CHECK(begin_long(job, k, v, &op) == 0);
	tt_lock(job->job);
	while ((!(call = running_call(job->job)) || !call->header) && tt_now() < end)
		tt_progress(job->job);
	if (call && call->header)
		tt_segment_step(call->segment, call->header, call->coll->seq, FAR_AHEAD);
	while (*done <= k && tt_now() < end)
		usleep(100);
	CHECK(*done > k);
	tt_unlock(job->job);
	CHECK(tutti_wait(&op, -1) == 0);
}

static void program_long(tutti *job)
{
	static atomic_int done;
	int32_t *v = must(calloc(LONG_CHUNKS, TT_SEGMENT_CHUNK));

	CHECK(makes_board(job));
	if (tutti_rank(job) == 0)
		done = 0;
	for (int k = 0; k < 2; k++) {
		struct turns s = { .job = job->job };
		uint64_t end = tt_now() + 5000 * TT_MS;
		CHECK(tutti_barrier(job, NULL) == 0);
		if (tutti_rank(job) == 1) {
			go_far_ahead(job, k, v, &done);
			continue;
		}
		while (!is_far_ahead(job) && tt_now() < end)
			usleep(100);
		tt_lock(job->job);
		tt_timer_start(job->job, &s.timer, tt_now(), see_turn);
		tt_unlock(job->job);
		CHECK(begin_long(job, k, v, NULL) == 0);
		tt_lock(job->job);
		tt_timer_stop(&s.timer);
		tt_unlock(job->job);
		/* on a slow machine messages of the members make the call go on, too, twice in a turn at times */
		CHECK(s.between >= LONG_CHUNKS / TT_SEGMENT_CALL_PIECES / 2);
		done++;
	}
	CHECK(tutti_barrier(job, NULL) == 0);
	free(v);
}

static void test_long(void)
{
	CU_ASSERT_EQUAL(run_ranks((struct ranks){ .size = 2, .wire = "shm", .program = program_long }), 0);
}

/* Rank 1 gives up a call of several chunks after so many turns, spoils its slot, and says only later why. Rank 0 does
 * not take what it reads there for results. */
static void quit_in_the_midst(tutti *job, int32_t *v, int turns, atomic_int *begun)
{
	struct tt_segment_call *call = NULL;
	uint64_t end = tt_now() + 5000 * TT_MS;
	tutti_op op = { 0 };

	CHECK(begin_long(job, 0, v, &op) == 0);
	tt_lock(job->job);
	++*begun; /* from now on only this thread goes on with the call */
	for (; tt_now() < end && (!call || !call->header); call = running_call(job->job))
		tt_progress(job->job);
	for (; turns-- && running_call(job->job) == call && call->chunk < LONG_CHUNKS / 2;)
		tt_progress(job->job);
	CHECK(call && call->header && call == running_call(job->job));
	tt_segment_step(call->segment, call->header, call->coll->seq, TT_STEP_QUIT);
	memset(call->segment->peers[1].slot->half, 77, sizeof call->segment->peers[1].slot->half);
	usleep(2000);
	tt_unlock(job->job);
	give_up_all(job, 0);
	CHECK(tutti_wait(&op, -1) == -EIO);
}

static void program_midst(tutti *job)
{
	static atomic_int begun;
	int32_t *v = must(calloc(LONG_CHUNKS, TT_SEGMENT_CHUNK));

	CHECK(makes_board(job));
	begun = 0;
	for (int k = 0; k < 12; k++) {
		CHECK(tutti_barrier(job, NULL) == 0);
		if (tutti_rank(job) == 1) {
			quit_in_the_midst(job, v, k * k, &begun);
			continue;
		}
		while (begun <= k)
			usleep(100);
		CHECK(begin_long(job, 0, v, NULL) == -ECONNABORTED);
	}
	CHECK(tutti_barrier(job, NULL) == 0);
	free(v);
}

static void test_midst(void)
{
	CU_ASSERT_EQUAL(run_ranks((struct ranks){ .size = 2, .wire = "shm", .program = program_midst }), 0);
}

/* A blocking call waits where 1,024 started calls are under way. */
static void program_full(tutti *job)
{
	enum { MOST = 1024 };
	tutti_op *ops = must(calloc(MOST, sizeof *ops)), one_more = { 0 };
	int me = tutti_rank(job);

	if (me)
		CHECK(tutti_recv(job, 0, 0, NULL, 0, NULL, NULL) == 0);
	for (int i = 0; i < MOST; i++)
		CHECK(tutti_barrier(job, me ? NULL : &ops[i]) == 0);
	if (!me)
		CHECK(tutti_barrier(job, &one_more) == -EAGAIN && tutti_send(job, 1, 0, NULL, 0, NULL) == 0);
	CHECK(tutti_barrier(job, NULL) == 0);
	for (int i = 0; i < MOST; i++)
		CHECK(tutti_wait(&ops[i], -1) == 0);
	free(ops);
}

static void on_one_host(void (*program)(tutti *), int least, int most)
{
	for (int n = least; n <= most && n <= LARGEST; n++) {
		struct ranks run = { .size = n, .wire = "sim", .hosts = 1, .program = program };
		for (; is_simulated(n) && run.seed != 2 * SEEDS; run.seed++) /* in seed 3 not all can map */
			CU_ASSERT_EQUAL(run_ranks(run), 0);
		run.wire = "shm";
		if (is_real(n))
			CU_ASSERT_EQUAL(run_ranks(run), 0);
	}
}

static void test_one_host(void) { on_one_host(program_one_host, 1, 9); }
static void test_one_host_large(void) { on_one_host(program_one_host_large, 2, 4); }
static void test_two(void) { on_one_host(program_two, 2, 2); }
static void test_several(void) { on_one_host(program_several, 2, 9); }
static void test_disagree_first(void) { on_one_host(program_disagree_first, 2, 4); }
static void test_board_unknown(void) { on_one_host(program_board_unknown, 2, 4); }
static void test_all_stay(void) { on_one_host(program_all_stay, 2, 4); }
static void test_some_leave(void) { on_one_host(program_some_leave, 2, 4); }
static void test_disagree(void) { on_one_host(program_disagree, 1, 4); }
static void test_staged(void) { on_one_host(program_staged, 1, 5); }
static void test_full(void) { on_one_host(program_full, 2, 2); }
static void test_completed_before(void) { on_one_host(program_completed_before, 2, 4); }

static void test_given_up(void)
{
	CU_ASSERT_EQUAL(run_ranks((struct ranks){ .size = 2, .wire = "shm", .program = program_given_up }), 0);
}

static void program_alltoall(tutti *job)
{
	char c[2 * RANKS_MAX] = { 0 };

	for (size_t k = 0; k < BLOCKS; k++)
		check_alltoall(job, block_bytes(k), (int)k);
	CHECK(tutti_alltoall(job, c, 1, c, NULL) == -EINVAL);
}

static void test_alltoall(void) { on_wires(program_alltoall, NULL); }

static size_t bytes_between(int from, int to, size_t round)
{
	static const size_t sizes[] = { 0, 5, 0, 16306, 300, 140000, 16304, 7 }; /* 140000: more than two messages */

	return sizes[((size_t)(from * 3 + to * 5) + round) % TT_COUNT(sizes)];
}

static void check_alltoallv(tutti *job, size_t round)
{
	int n = tutti_size(job), me = tutti_rank(job);
	size_t in_bytes[RANKS_MAX], in_at[RANKS_MAX], out_bytes[RANKS_MAX], out_at[RANKS_MAX], in_len = 0, out_len = 0;
	tutti_op op = { 0 };

	for (int r = n - 1; r >= 0; r--) { /* places in another order than the ranks, and with gaps */
		in_bytes[r] = bytes_between(me, r, round);
		out_bytes[r] = bytes_between(r, me, round);
		in_at[r] = in_len;
		out_at[r] = out_len;
		in_len += in_bytes[r] + 3;
		out_len += out_bytes[r] + 5;
	}
	char *in = must(malloc(in_len)), *out = must(calloc(1, out_len));
	for (int r = 0; r < n; r++)
		fill_block(in + in_at[r], me, r, in_bytes[r]);
	CHECK(tutti_alltoallv(job, in, in_bytes, in_at, out, out_bytes, out_at, &op) == 0);
	CHECK(tutti_wait(&op, -1) == 0);
	for (int r = 0; r < n; r++) {
		check_block(out + out_at[r], r, me, out_bytes[r]);
		for (size_t i = 0; i < 5; i++)
			CHECK(out[out_at[r] + out_bytes[r] + i] == 0);
	}
	free(in);
	free(out);
}

static void program_alltoallv(tutti *job)
{
	for (size_t round = 0; round < 8; round++)
		check_alltoallv(job, round);
	CHECK(tt_list_empty(&tt_collectives(job->job)->unexpected));
}

static void test_alltoallv(void) { on_wires(program_alltoallv, NULL); }

/* One rank expects another size of one other: all get an error before any deadline, those two name each other or who
 * told. */
static const size_t wrong_sizes[][2] = { { 0, 5 },        { 5, 0 },      { 100, 101 },  { 100, 140000 },
	                                 { 140000, 100 }, { 140000, 0 }, { 0, 140000 }, { 140000, 140001 } };
static size_t wrong;

static void program_wrong_sizes(tutti *job)
{
	int n = tutti_size(job), me = tutti_rank(job), err;
	size_t in_bytes[RANKS_MAX], out_bytes[RANKS_MAX], at[RANKS_MAX];
	char *in = must(calloc(RANKS_MAX, 200000)), *out = must(calloc(RANKS_MAX, 200000));
	uint64_t start = tt_now();

	for (int r = 0; r < n; r++) {
		in_bytes[r] = out_bytes[r] = 40;
		at[r] = (size_t)r * 200000;
	}
	if (me == n - 1)
		in_bytes[0] = wrong_sizes[wrong][0];
	if (me == 0)
		out_bytes[n - 1] = wrong_sizes[wrong][1];
	err = tutti_alltoallv(job, in, in_bytes, at, out, out_bytes, at, NULL);
	bool agreed = me != 0 && me != n - 1; /* those may have been through with it before they hear */
	CHECK(err == -EBADMSG || err == -ECONNABORTED || ((agreed || me == n - 1) && err == 0));
	CHECK(me != 0 || (err && strstr(tutti_why(), "rank ")));
	CHECK(tt_now() - start < 5000 * TT_MS);
	CHECK(tutti_barrier(job, NULL) == 0); /* nobody was evicted for it */
	free(in);
	free(out);
}

/* A rank that says of a leg what cannot be: that less of a short one comes as messages than all, or more of a long one
 * than fits; and puts where nobody has opened anything. */
static const struct { size_t count; uint64_t said; } wrong_starts[] = { { 100, 0 }, { 100, 64 }, { 1 << 22, 1 << 23 } };

static int start_wrong(struct tt_coll *c)
{
	uint64_t len = wrong_starts[wrong].count * sizeof(float), said = wrong_starts[wrong].said;
	size_t first = tt_min(said, (TT_COLL_PIECE - 16) & ~(size_t)63);
	char *bytes = must(calloc(1, 16 + first));
	struct tt_pack p = tt_pack((uint8_t *)bytes, 16);

	tt_put64(&p, len);
	tt_put64(&p, said);
	tt_coll_send(c, 0, 64, bytes, 16 + first);
	tt_coll_put(c, 0, NULL, 0, NULL, 0, 0, TT_LANE_DATA);
	free(bytes);
	return 1;
}

static void program_wrong_start(tutti *job)
{
	size_t count = wrong_starts[wrong].count;
	float *in = must(calloc(2 * count, sizeof *in)), *out = must(calloc(count, sizeof *out));

	if (tutti_rank(job) == 0) {
		CHECK(tutti_reduce_scatter(job, in, out, count, TUTTI_F32, TUTTI_SUM, NULL) == -EBADMSG);
		CHECK(strstr(tutti_why(), "rank 1"));
	} else {
		struct tt_coll *c = tt_coll_new(job, sizeof *c, TUTTI_STAT_REDUCE_SCATTER, count,
		                                (uint64_t)TUTTI_F32 << 8 | TUTTI_SUM);
		((struct tt_coll *)must(c))->advance = start_wrong;
		int err = tt_coll_run(c, NULL);
		CHECK(err == 0 || err == -ECONNABORTED);
	}
	CHECK(tutti_barrier(job, NULL) == 0);
	free(in);
	free(out);
}

static void test_wrong_start(void)
{
	struct ranks run = { .size = 2, .wire = "sim", .timeout_ms = 2000, .program = program_wrong_start };

	for (wrong = 0; wrong < TT_COUNT(wrong_starts); wrong++)
		for (run.seed = 0; run.seed != SEEDS; run.seed++)
			CU_ASSERT_EQUAL(run_ranks(run), 0);
}

static void program_bad_blocks(tutti *job)
{
	size_t one[] = { 1, 1 }, two[] = { 2, 2 }, far[] = { SIZE_MAX, SIZE_MAX };
	char in[4] = { 0 }, out[4];

	CHECK(tutti_alltoallv(job, in, NULL, one, out, one, one, NULL) == -EINVAL);
	CHECK(tutti_alltoallv(job, in, one, one, out, one, NULL, NULL) == -EINVAL);
	CHECK(tutti_alltoallv(job, in, one, far, out, one, one, NULL) == -EINVAL);
	CHECK(tutti_alltoallv(job, NULL, one, one, out, one, one, NULL) == -EINVAL);
	CHECK(tutti_alltoallv(job, in, one, one, out, two, one, NULL) == -EINVAL);
	CHECK(strstr(tutti_why(), "expects 2") != NULL);
}

static void test_wrong_sizes(void)
{
	struct ranks run = { .size = 2, .wire = "sim", .program = program_bad_blocks };

	CU_ASSERT_EQUAL(run_ranks(run), 0);
	run.program = program_wrong_sizes;
	for (wrong = 0; wrong < TT_COUNT(wrong_sizes); wrong++)
		for (run.size = 2; run.size <= 4; run.size++) {
			run.wire = "sim";
			for (run.seed = 0; run.seed != SEEDS; run.seed++)
				CU_ASSERT_EQUAL(run_ranks(run), 0);
			CU_ASSERT_EQUAL(run_real_ranks(run), 0);
		}
}

/* ---- in groups: parts of a job, whose members are not neighbours and stand in reverse, and what is left of one
 * ---- */

static void run_each(tutti *g, size_t salt)
{
	check_allreduce(g, 1001 + salt, TUTTI_F32, TUTTI_SUM);
	check_allreduce(g, 100003 + salt, TUTTI_BF16, TUTTI_AVERAGE);
	check_allreduce(g, 300001 + salt, TUTTI_F32, TUTTI_SUM);
	if (strcmp(algorithm_of(g), "rabenseifner"))
		return; /* the others do not ask which it is */
	check_reduce_scatter(g, 7 + salt, TUTTI_F32, TUTTI_SUM, false, 0);
	check_reduce_scatter(g, 200001 + salt, TUTTI_F32, TUTTI_AVERAGE, true, 2);
	program_allgather(g);
	program_allgatherv(g);
	check_reduce(g, 100003 + salt, TUTTI_F32, TUTTI_AVERAGE, tutti_size(g) - 1, true, 1);
	program_alltoall(g);
	check_alltoallv(g, 3 + salt);
}

static tutti *split_in_reverse(tutti *g)
{
	int me = tutti_rank(g);
	tutti *part = NULL;

	CHECK(tutti_group_split(g, me % 2, -me, &part) == 0);
	return must(part);
}

static void program_parts(tutti *job)
{
	enum { COUNT = 50000 };
	float *v = must(malloc(COUNT * sizeof *v));
	tutti *part = split_in_reverse(job);
	tutti_op op = { 0 };

	for (int i = 0; i < COUNT; i++)
		v[i] = 1;
	CHECK(tutti_allreduce(job, v, v, COUNT, TUTTI_F32, TUTTI_SUM, &op) == 0); /* meanwhile */
	run_each(part, (size_t)tutti_rank(job) % 2);
	CHECK(tutti_wait(&op, -1) == 0);
	CHECK(v[0] == (float)tutti_size(job) && v[COUNT - 1] == (float)tutti_size(job));
	tutti_group_free(part);
	free(v);
}

/* The one in the middle leaves, so those after it have other numbers. */
static void program_rest(tutti *job)
{
	int n = tutti_size(job), me = tutti_rank(job);
	tutti *rest = NULL, *part;
	float x = 1;

	program_alltoall(job); /* so that it says goodbye to all of them */
	if (me == n / 2)
		return;
	CHECK(tutti_allreduce(job, &x, &x, 1, TUTTI_F32, TUTTI_SUM, NULL) != 0);
	CHECK(tutti_group_shrink(job, &rest) == 0);
	CHECK(tutti_rank(must(rest)) == me - (me > n / 2));
	run_each(rest, 0);
	part = split_in_reverse(rest);
	run_each(part, (size_t)tutti_rank(rest) % 2);
}

static void test_groups(void)
{
	static const char *const algorithms[] = { "doubling", "rabenseifner", "ring" };

	for (size_t i = 0; i < (size_t)all_or(TT_COUNT(algorithms), 1); i++)
		on_wires(program_parts, algorithms[i]);
	on_wires(program_rest, "rabenseifner");
}

/* Each group has its own, the same on all its ranks. */
static void program_group_models(tutti *job)
{
	enum { COUNT = 20000 };
	tutti *part = split_in_reverse(job);
	struct { uint64_t latency_ns, net_ps, add_ps; } all[RANKS_MAX], mine;
	float *v = must(calloc(COUNT, sizeof *v));

	CHECK(tutti_allreduce(part, v, v, COUNT, TUTTI_F32, TUTTI_SUM, NULL) == 0);
	CHECK(tt_coll_group(part)->model.known == needs_model(part) && !tt_coll_group(job)->model.known);
	mine.latency_ns = tt_coll_group(part)->model.latency_ns;
	mine.net_ps = tt_coll_group(part)->model.net_ps;
	mine.add_ps = tt_coll_group(part)->model.add_ps;
	CHECK(tutti_gather(part, &mine, sizeof mine, all, -1, NULL) == 0);
	for (int r = 0; r < tutti_size(part); r++)
		CHECK(memcmp(&all[r], &mine, sizeof mine) == 0);
	tutti_group_free(part); /* perhaps before those who waited for the model were woken */
	CHECK(tutti_allreduce(job, v, v, COUNT, TUTTI_F32, TUTTI_SUM, NULL) == 0);
	CHECK(tt_coll_group(job)->model.known == needs_model(job));
	free(v);
}

static void test_group_models(void) { on_wires(program_group_models, "auto"); }

/* Whoever is named is named by its number in the job. */
static void program_wrong_size_in_part(tutti *job)
{
	tutti *part = split_in_reverse(job); /* of two: the first expects less than the second has */
	int me = tutti_rank(part);
	size_t in_bytes[] = { 40, 40 }, out_bytes[] = { 40, me ? 40 : 5 }, at[] = { 0, 40 };
	char in[80] = { 0 }, out[80], name[16];
	int err = tutti_alltoallv(part, in, in_bytes, at, out, out_bytes, at, NULL);

	snprintf(name, sizeof name, "rank %d", tutti_group_member(part, 1 - me));
	CHECK(err == -EBADMSG || err == -ECONNABORTED || (me && !err));
	CHECK(!err || strstr(tutti_why(), name));
	CHECK(tutti_barrier(part, NULL) == 0);
}

static void test_wrong_size_in_part(void)
{
	struct ranks run = { .size = 4, .program = program_wrong_size_in_part };

	CU_ASSERT_EQUAL(run_real_ranks(run), 0);
	run.wire = "sim";
	for (; run.seed != SEEDS; run.seed++)
		CU_ASSERT_EQUAL(run_ranks(run), 0);
}

/* ---- numbers of collectives wrap around ---- */

static void program_wrap(tutti *job)
{
	float x;

	tt_lock(job->job);
	job->started = UINT32_MAX - 6; /* as if so many had been started */
	tt_unlock(job->job);
	if (tt_world)
		tt_sim_sleep(100 * TT_MS); /* until all have come so far */
	else
		usleep(100000);
	for (int i = 0; i < 20; i++) {
		x = 1;
		CHECK(tutti_allreduce(job, &x, &x, 1, TUTTI_F32, TUTTI_SUM, NULL) == 0);
		CHECK(x == (float)tutti_size(job));
		CHECK(tutti_broadcast(job, &x, 4, i % tutti_size(job), NULL) == 0);
		CHECK(tt_collective_module.group_finished(job) == (uint32_t)(UINT32_MAX - 4 + 2 * i));
	}
	CHECK(job->started == 33);
}

static void test_wrap(void) { on_wires(program_wrap, NULL); }

static CU_TestInfo allreduce_tests[] = {
	{ "direct", test_direct },
	{ "over several hosts", test_hierarchical },
	{ "not direct", test_not_direct },
	{ "halves", test_halves },
	{ "late", test_late },
	{ "short", test_short },
	{ "keys that stand", test_standing },
	{ "doubling", test_doubling },
	{ "rabenseifner", test_rabenseifner },
	{ "ring", test_ring },
	{ "large", test_large },
	{ "many tensors", test_many_tensors },
	{ "wrong tensors and overlaps", test_bad_tensors },
	{ "reduce", test_reduce },
	{ "reduces ahead of the root", test_reduces_ahead },
	{ "reduce, given up", test_reduce_given_up },
	{ "model", test_model },
	{ "choice", test_choice },
	{ "settings", test_settings },
	{ "numbers wrap", test_wrap },
	CU_TEST_INFO_NULL,
};
static CU_TestInfo pairwise_tests[] = {
	{ "reduce-scatter", test_reduce_scatter },
	{ "all-gather", test_allgather },
	{ "all-gather of any sizes", test_allgatherv },
	{ "all-to-all", test_alltoall },
	{ "disagreement", test_disagree_new },
	{ "who has called what", test_who },
	{ "disagreement without elements", test_disagree_empty },
	{ "all-to-all of any sizes", test_alltoallv },
	{ "wrong sizes", test_wrong_sizes },
	{ "a wrong start", test_wrong_start },
	{ "scatter and gather", test_rooted },
	{ "scatter and gather, ahead of a late rank", test_rooted_ahead },
	CU_TEST_INFO_NULL,
};
static CU_TestInfo one_host_tests[] = {
	{ "one host, sizes", test_one_host },
	{ "one host, large", test_one_host_large },
	{ "one host, two ranks", test_two },
	{ "one host, several at once", test_several },
	{ "one host, board unknown", test_board_unknown },
	{ "one host, some given up", test_some_given_up },
	{ "one host, no board unknown", test_all_stay },
	{ "one host, no board unknown, others leave", test_some_leave },
	{ "one host, disagreement about the first", test_disagree_first },
	{ "one host, disagreement", test_disagree },
	{ "one host, combined and gathered", test_staged },
	{ "one host, given up", test_given_up },
	{ "one host, as many as there may be", test_full },
	{ "one host, completed before a call that failed", test_completed_before },
	{ "one host, the next chunk in advance", test_chunk_ahead },
	{ "one host, many chunks", test_long },
	{ "one host, given up in the midst", test_midst },
	{ "one host, the last one dies", test_last_dies },
	CU_TEST_INFO_NULL,
};
static CU_TestInfo group_tests[] = {
	{ "all of them", test_groups },
	{ "the model", test_group_models },
	{ "a wrong size", test_wrong_size_in_part },
	CU_TEST_INFO_NULL,
};
static CU_SuiteInfo suites[] = {
	{ "all-reduce", NULL, NULL, NULL, NULL, allreduce_tests },
	{ "pairwise", NULL, NULL, NULL, NULL, pairwise_tests },
	{ "blocks", NULL, NULL, NULL, NULL, one_host_tests },
	{ "groups", NULL, NULL, NULL, NULL, group_tests },
	CU_SUITE_INFO_NULL,
};

int main(int argc, char **argv)
{
	fill_sequence();
	return run_suites(suites, argc, argv);
}
