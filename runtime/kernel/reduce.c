/* reduce.c - combines vectors element by element: one table, indexed by type and rule, for each instruction set
 *
 * All processors compute the same bits, whatever the caller's rounding and flush-to-zero modes. */
#include "kernel/kernel_private.h"
#ifdef __x86_64__
#include <cpuid.h>
#include <immintrin.h>
#endif

static const struct tt_kernels *const levels[] = {
	&tt_kernels_plain,
#ifdef __x86_64__
	&tt_kernels_avx2, &tt_kernels_avx512,
#endif
};
static _Atomic int chosen = -1; /* index of levels. CPUID traps in a virtual machine, so it runs once */

#ifdef __x86_64__
static bool has_f16c(void)
{
	unsigned a, b, c, d;

	return __get_cpuid(1, &a, &b, &c, &d) && c & bit_F16C;
}

static int best_level(void)
{
	if (!__builtin_cpu_supports("avx2") || !has_f16c())
		return 0;
	return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
	       __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") ? 2 : 1;
}
#else
static int best_level(void) { return 0; }
#endif

static const struct tt_kernels *kernels(void)
{
	int level = atomic_load_explicit(&chosen, memory_order_relaxed);

	if (level < 0) {
		level = best_level();
		atomic_store_explicit(&chosen, level, memory_order_relaxed);
	}
	return levels[level];
}

const char *tt_reduce_use(int level)
{
	if (level > best_level())
		return NULL;
	atomic_store_explicit(&chosen, level, memory_order_relaxed);
	return kernels()->name;
}

/* The application may have changed this thread's modes, on this rank alone. */
enum { MODES = 0x1f80 }; /* round to nearest, keep subnormals, no traps */

static unsigned set_modes(unsigned wanted)
{
#ifdef __x86_64__
	unsigned had = _mm_getcsr();
	if ((had ^ wanted) & ~0x3fu) /* the low bits are status */
		_mm_setcsr(wanted);
	return had;
#else
	return wanted;
#endif
}

#define IN_MODES(call) \
	do { \
		unsigned modes = set_modes(MODES); \
		kernels()->of[type].call; \
		set_modes(modes); \
	} while (0)

/* A cached store reads its line first; a streaming store does not, which saves a fourth of the traffic. Short vectors
 * gain little, and later reads find a cached result. An output that is also an input is in the cache anyway, and
 * loses. */
static bool is_worth(const void *to, const void *a, const void *b, size_t bytes)
{
	return to != a && to != b && bytes >= TT_STREAM_FROM;
}

/* Streamed tiles begin at a line. lead: the elements before the first line; false: no element begins at a line. */
static bool find_line(const void *to, size_t count, size_t size, size_t *lead)
{
	size_t bytes = -(uintptr_t)to % TT_CACHE_LINE;

	if (bytes % size || bytes / size >= count)
		return false;
	*lead = bytes / size;
	return true;
}

static void end_stream(bool stream) /* later stores (a notify, a flag) must not overtake streaming ones */
{
#ifdef __x86_64__
	if (stream)
		_mm_sfence();
#else
	(void)stream;
#endif
}

/* Rules on bits take integers of any width as bytes. Returns their count. */
static size_t as_bytes(size_t count, tutti_type *type, tutti_rule rule)
{
	if (rule < TUTTI_BAND || *type == TUTTI_BOOL)
		return count;
	count *= tt_type_size(*type);
	*type = TUTTI_U8;
	return count;
}

void tt_reduce(void *acc, const void *in, size_t count, tutti_type type, tutti_rule rule)
{
	count = as_bytes(count, &type, rule);
	IN_MODES(pair[rule](acc, acc, in, 0, count, false));
}

void tt_reduce_to(void *to, const void *a, const void *b, size_t count, tutti_type type, tutti_rule rule)
{
	count = as_bytes(count, &type, rule);
	const struct tt_kernel *k = &kernels()->of[type];
	size_t lead = 0;
	bool stream = is_worth(to, a, b, count * k->size) && find_line(to, count, k->size, &lead);
	unsigned modes = set_modes(MODES);

	k->pair[rule](to, a, b, 0, lead, false);
	k->pair[rule](to, a, b, lead, count - lead, stream);
	end_stream(stream);
	set_modes(modes);
}

static void average_bytes(const struct tt_many *m, size_t count, tutti_type type)
{
	tt_reduce_many(m, count, type, TUTTI_SUM);
	for (int i = 0; i < m->outputs; i++)
		tt_scale(m->to[i], count, type, (unsigned)m->inputs);
}

void tt_reduce_many(const struct tt_many *m, size_t count, tutti_type type, tutti_rule rule)
{
	if (rule == TUTTI_AVERAGE && tt_type_size(type) == 1) {
		average_bytes(m, count, type);
		return;
	}
	count = as_bytes(count, &type, rule);
	const struct tt_kernel *k = &kernels()->of[type];
	bool stream = m->stream;
	size_t lead = 0;
	unsigned modes = set_modes(MODES);

	for (int i = 1; i < m->outputs; i++)
		if (((uintptr_t)m->to[i] ^ (uintptr_t)m->to[0]) % TT_CACHE_LINE)
			stream = false; /* no element begins a line in both */
	stream = stream && find_line(m->to[0], count, k->size, &lead);
	k->many[rule](m, 0, lead, false);
	k->many[rule](m, lead, count - lead, stream);
	end_stream(stream);
	set_modes(modes);
}

void tt_reduce_wide(const struct tt_many *m, size_t count, tutti_type type, tutti_rule rule)
{
	enum { TILE = 1024 }; /* elements, which stay in the caches */
	size_t size = tt_type_size(type), n;
	float in[TILE];

	for (size_t at = 0; at < count; at += n) {
		float *to = (float *)m->to[0] + at;
		n = tt_min(TILE, count - at);
		tt_to_f32(to, (const char *)m->from[0] + at * size, n, type);
		for (int k = 1; k < m->inputs; k++) {
			tt_to_f32(in, (const char *)m->from[k] + at * size, n, type);
			tt_reduce(to, in, n, TUTTI_F32, rule);
		}
	}
}

void tt_blend_part(void *to, double by_a, const void *a, double by_b, const void *b, size_t count, tutti_type type,
                   bool stream)
{
	const struct tt_kernel *k = &kernels()->of[type];
	size_t lead = 0;
	unsigned modes = set_modes(MODES);

	stream = stream && find_line(to, count, k->size, &lead);
	k->blend(to, by_a, a, by_b, b, 0, lead, false);
	k->blend(to, by_a, a, by_b, b, lead, count - lead, stream);
	end_stream(stream);
	set_modes(modes);
}

void tt_blend(void *to, double by_a, const void *a, double by_b, const void *b, size_t count, tutti_type type)
{
	tt_blend_part(to, by_a, a, by_b, b, count, type, is_worth(to, a, b, count * tt_type_size(type)));
}

void tt_elastic_round(void *x, void *center, void *wide, void *sum, double alpha, size_t count, tutti_type type)
{
	IN_MODES(elastic_round(x, center, wide, sum, alpha, count));
}

static void divide_bytes(void *acc, size_t count, tutti_type type, unsigned n) /* towards zero */
{
	for (size_t i = 0; i < count; i++) {
		int x = type == TUTTI_I8 ? ((int8_t *)acc)[i] : ((uint8_t *)acc)[i];
		((uint8_t *)acc)[i] = (uint8_t)(x / (int64_t)n);
	}
}

void tt_scale(void *acc, size_t count, tutti_type type, unsigned n)
{
	if (tt_type_size(type) == 1)
		divide_bytes(acc, count, type, n);
	else
		IN_MODES(scale(acc, count, n));
}

void tt_reduce_alone(void *acc, size_t count, tutti_type type)
{
	if (type == TUTTI_BOOL)
		tt_reduce(acc, acc, count, type, TUTTI_BOR);
}

bool tt_rule_takes(tutti_rule rule, tutti_type type)
{
	bool whole = tt_type_size(type) && !tt_type_is_float(type);

	return rule == TUTTI_AVERAGE ? type != TUTTI_BOOL : rule < TUTTI_BAND || whole;
}

void tt_reduce_update(const struct tt_update_run *run, size_t count, tutti_type type, tutti_update_rule rule)
{
	IN_MODES(update[rule](run, count));
}

void tt_reduce_back_up(void *state, const void *w, size_t count, tutti_type type)
{
	IN_MODES(back_up(state, w, count));
}

void tt_to_f32(void *to, const void *from, size_t count, tutti_type type) { IN_MODES(back_up(to, from, count)); }
void tt_from_f32(void *to, const void *from, size_t count, tutti_type type) { IN_MODES(round_off(to, from, count)); }

/* ---- rows ---- */

static void look_ahead(const struct tt_rows_run *r, size_t size, size_t from, size_t n)
{
	const struct tt_rows_piece *p = r->rows;

	for (size_t i = from; i < from + n && i < p->n; i++) {
		size_t first = (size_t)p->places[i] * p->row + p->at;
		tt_look_at((const char *)p->w + first * size, p->count * size, true);
		for (size_t k = 0; k < TT_COUNT(r->state) && r->state[k]; k++)
			tt_look_at(r->state[k] + first * r->number, p->count * r->number, true);
	}
}

size_t tt_rows_adjacent(const struct tt_rows_piece *p, size_t from)
{
	size_t n = 1;

	while (p->count == p->row && from + n < p->n && p->places[from + n] == p->places[from] + n)
		n++;
	return n;
}

static void change_rows(const struct tt_kernel *k, const struct tt_rows_run *r, size_t first, size_t count,
                        const char *d)
{
	char *w = (char *)r->rows->w + first * k->size;
	struct tt_update_run run = { .to = w, .w = w, .d = d, .factors = r->factors };

	if (r->blends && r->by_w == 1 && r->by_d == 1) {
		k->pair[TUTTI_SUM](w, w, d, 0, count, false);
		return;
	}
	if (r->blends) {
		k->blend(w, r->by_w, w, r->by_d, d, 0, count, false);
		return;
	}
	for (size_t i = 0; i < TT_COUNT(run.state) && r->state[i]; i++)
		run.state[i] = r->state[i] + first * r->number;
	k->update[r->rule](&run, count);
}

void tt_reduce_rows(const struct tt_rows_run *r, tutti_type type)
{
	const struct tt_kernel *k = &kernels()->of[type];
	const struct tt_rows_piece *p = r->rows;
	unsigned modes = set_modes(MODES);

	look_ahead(r, k->size, 0, TT_ROWS_AHEAD);
	for (size_t i = 0, n; i < p->n; i += n) {
		n = tt_rows_adjacent(p, i);
		look_ahead(r, k->size, i + TT_ROWS_AHEAD, n);
		change_rows(k, r, (size_t)p->places[i] * p->row + p->at, n * p->count,
		            (const char *)p->d + i * p->count * k->size);
	}
	set_modes(modes);
}
