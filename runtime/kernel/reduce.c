/* reduce.c - combine vectors element by element: one table, indexed by type and rule, for each set of instructions
 *
 * Whatever the processor, the bits are the same. The caller's rounding and flush-to-zero modes do not count.
 */
#include "kernel/kernel_private.h"
#ifdef __x86_64__
#include <cpuid.h>
#include <immintrin.h>
#endif

/* Which kernels. */

static const struct tt_kernels *const levels[] = {
	&tt_kernels_plain,
#ifdef __x86_64__
	&tt_kernels_avx2, &tt_kernels_avx512,
#endif
};
static _Atomic int chosen = -1; /* of levels; asking costs a trap in a virtual machine, so it is done once */

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
	return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
	       __builtin_cpu_supports("avx512vl") ? 2 : 1;
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

/* The application may have set this thread to flush subnormals or to round otherwise; the next rank's thread has not. */
enum { MODES = 0x1f80 }; /* to nearest, nothing flushed, no traps */

static unsigned set_modes(unsigned wanted)
{
#ifdef __x86_64__
	unsigned had = _mm_getcsr();
	if ((had ^ wanted) & ~0x3fu) /* the low bits only tell what happened */
		_mm_setcsr(wanted);
	return had;
#else
	return wanted;
#endif
}

/* Past the caches? A store that the caches take reads its line first, and one past them does not: a fourth less to move. Short
 * vectors gain little, and who needs the result soon would find it in the cache. A vector that is read as well is in the cache
 * anyway, and loses. */
static bool is_worth(const void *to, const void *a, const void *b, size_t bytes) { return to != a && to != b && bytes >= TT_STREAM_FROM; }

/* Streamed tiles begin at a line: how many elements come before? false: none begins there. */
static bool find_line(const void *to, size_t count, size_t size, size_t *lead)
{
	size_t bytes = -(uintptr_t)to % TT_CACHE_LINE;

	if (bytes % size || bytes / size >= count)
		return false;
	*lead = bytes / size;
	return true;
}

static void end_stream(bool stream) /* such stores pass later ones: a notify, a flag */
{
#ifdef __x86_64__
	if (stream)
		_mm_sfence();
#else
	(void)stream;
#endif
}

void tt_reduce(void *acc, const void *in, size_t count, tutti_type type, tutti_rule rule)
{
	unsigned modes = set_modes(MODES);

	kernels()->of[type].pair[rule](acc, acc, in, 0, count, false);
	set_modes(modes);
}

void tt_reduce_to(void *to, const void *a, const void *b, size_t count, tutti_type type, tutti_rule rule)
{
	const struct tt_kernel *k = &kernels()->of[type];
	size_t lead = 0;
	bool stream = is_worth(to, a, b, count * k->size) && find_line(to, count, k->size, &lead);
	unsigned modes = set_modes(MODES);

	k->pair[rule](to, a, b, 0, lead, false);
	k->pair[rule](to, a, b, lead, count - lead, stream);
	end_stream(stream);
	set_modes(modes);
}

void tt_reduce_many(const struct tt_many *m, size_t count, tutti_type type, tutti_rule rule)
{
	const struct tt_kernel *k = &kernels()->of[type];
	bool stream = m->stream;
	size_t lead = 0;
	unsigned modes = set_modes(MODES);

	for (int i = 1; i < m->outputs; i++)
		if (((uintptr_t)m->to[i] ^ (uintptr_t)m->to[0]) % TT_CACHE_LINE)
			stream = false; /* what begins at a line of one does not in another */
	stream = stream && find_line(m->to[0], count, k->size, &lead);
	k->many[rule](m, 0, lead, false);
	k->many[rule](m, lead, count - lead, stream);
	end_stream(stream);
	set_modes(modes);
}

void tt_blend(void *to, double by_a, const void *a, double by_b, const void *b, size_t count, tutti_type type)
{
	const struct tt_kernel *k = &kernels()->of[type];
	size_t lead = 0;
	bool stream = is_worth(to, a, b, count * k->size) && find_line(to, count, k->size, &lead);
	unsigned modes = set_modes(MODES);

	k->blend(to, by_a, a, by_b, b, 0, lead, false);
	k->blend(to, by_a, a, by_b, b, lead, count - lead, stream);
	end_stream(stream);
	set_modes(modes);
}

void tt_elastic(void *x, void *center, double alpha, size_t count, tutti_type type)
{
	unsigned modes = set_modes(MODES);

	kernels()->of[type].elastic(x, center, alpha, count);
	set_modes(modes);
}

void tt_scale(void *acc, size_t count, tutti_type type, unsigned n)
{
	unsigned modes = set_modes(MODES);

	kernels()->of[type].scale(acc, count, n);
	set_modes(modes);
}

void tt_reduce_update(const struct tt_update_run *run, size_t count, tutti_type type, tutti_update_rule rule)
{
	unsigned modes = set_modes(MODES);

	kernels()->of[type].update[rule](run, count);
	set_modes(modes);
}

void tt_reduce_back_up(void *state, const void *w, size_t count, tutti_type type)
{
	unsigned modes = set_modes(MODES);

	kernels()->of[type].back_up(state, w, count);
	set_modes(modes);
}
