/* reduce.c - combine two vectors element by element: one table, indexed by type and rule
 *
 * Two ranks may combine the same numbers in either order (doubling) and must get the same bits. So every rule here is
 * commutative bit for bit: a NaN result is always the one positive quiet NaN without payload, the larger of -0 and +0
 * is +0, the smaller -0, and the caller's rounding and flush-to-zero modes do not count.
 */
#include "runtime.h"
#include <string.h>
#ifdef __x86_64__
#include <cpuid.h>
#include <immintrin.h>
#endif

#if defined __OPTIMIZE__ && defined __GNUC__ && !defined __clang__
/* Its -O2 does not vectorise a loop of unknown length; and it must not fear traps, which set_modes() masks. */
#pragma GCC optimize("O3", "no-trapping-math")
#endif

/* The loader chooses among the clones before a sanitizer's own runtime is up, which crashes: none there. */
/* clang 14 makes each clone's resolver a global name: not in a library. */
#if defined __x86_64__ && defined __GLIBC__ && defined __has_attribute && !(TT_ASAN || TT_TSAN || TT_MSAN) && !defined __clang__
#if __has_attribute(target_clones)
#define CLONES __attribute__((target_clones("avx2", "default"))) /* no fma: products must round everywhere alike */
#endif
#endif
#ifndef CLONES
#define CLONES
#endif

/* Elements as they lie in memory: at any address, under any name. */
#define ELEMENT __attribute__((aligned(1), may_alias))
typedef float f32 ELEMENT;
typedef double f64 ELEMENT;
typedef uint16_t f16 ELEMENT, bf16 ELEMENT;
typedef uint32_t i32 ELEMENT; /* unsigned: integers wrap */
typedef uint64_t i64 ELEMENT;

#define BIT_CAST(name, from, to) \
	static inline to name(from v) \
	{ \
		to u; \
\
		memcpy(&u, &v, sizeof u); \
		return u; \
	}
BIT_CAST(bits32, float, uint32_t)
BIT_CAST(bits64, double, uint64_t)
BIT_CAST(float_of, uint32_t, float)
BIT_CAST(double_of, uint64_t, double)

/* The 16-bit formats, computed in f32. All ways are worked out and one is selected: branches would not vectorise. */

static inline float from_bf16(uint16_t h) { return float_of((uint32_t)h << 16); }

static inline uint16_t to_bf16(float v)
{
	uint32_t u = bits32(v), rounded = (u + 0x7fff + (u >> 16 & 1)) >> 16;

	return (uint16_t)(v != v ? 0x7fc0 : rounded);
}

static inline float from_f16(uint16_t h)
{
	uint32_t sign = (uint32_t)(h & 0x8000) << 16, size = (uint32_t)(h & 0x7fff) << 13;
	uint32_t normal = size + (112u << 23), special = size + (224u << 23);
	/* A subnormal is its fraction times 2^-24: put it behind a leading one, and take that one off again. */
	uint32_t small = bits32(float_of(size + (113u << 23)) - 0x1p-14f);
	uint32_t u = size >= 31u << 23 ? special : normal;

	u = size < 1u << 23 ? small : u;
	return float_of(u | sign);
}

static inline uint16_t to_f16(float v)
{
	uint32_t u = bits32(v), sign = u >> 16 & 0x8000, size = u & 0x7fffffff;
	uint32_t normal = (size - (112u << 23) + 0xfff + (size >> 13 & 1)) >> 13;
	/* Added to 1/2, the last bit that stays is worth 2^-24: the addition itself rounds to a subnormal. */
	uint32_t small = bits32(float_of(size) + 0.5f) - (126u << 23);
	uint32_t h = size < 113u << 23 ? small : normal;

	h = size >= 143u << 23 ? 0x7c00 : h;
	return (uint16_t)(size > 0x7f800000 ? 0x7e00 : h | sign);
}

/* The rules on float (f32, f16, bf16) and double. Where a == b the bits differ only for -0 and +0: a sign of both, or of either. */

static inline float clean_f32(float v) { return v != v ? float_of(0x7fc00000) : v; }
static inline double clean_f64(double v) { return v != v ? double_of(0x7ff8000000000000) : v; }

#define RULES_OF_FLOATS(type, real, uint, bits, back, nan) \
	static inline real sum_##type(real a, real b) { return clean_##type(a + b); } \
	static inline real product_##type(real a, real b) { return clean_##type(a * b); } \
	static inline real max_##type(real a, real b) \
	{ \
		uint one = bits(a > b ? a : b), other = bits(b > a ? b : a); \
		return __builtin_isunordered(a, b) ? back(nan) : back(one & other); \
	} \
	static inline real min_##type(real a, real b) \
	{ \
		uint one = bits(a < b ? a : b), other = bits(b < a ? b : a); \
		return __builtin_isunordered(a, b) ? back(nan) : back(one | other); \
	}
RULES_OF_FLOATS(f32, float, uint32_t, bits32, float_of, 0x7fc00000)
RULES_OF_FLOATS(f64, double, uint64_t, bits64, double_of, 0x7ff8000000000000)

#define RULES_OF_INTEGERS(type, sint, uint) \
	static inline uint sum_##type(uint a, uint b) { return a + b; } \
	static inline uint product_##type(uint a, uint b) { return a * b; } \
	static inline uint max_##type(uint a, uint b) { return (sint)a > (sint)b ? a : b; } \
	static inline uint min_##type(uint a, uint b) { return (sint)a < (sint)b ? a : b; }
RULES_OF_INTEGERS(i32, int32_t, uint32_t)
RULES_OF_INTEGERS(i64, int64_t, uint64_t)

/* The loops. */

#define KERNEL(type, rule, combine, load, store) \
	CLONES static void rule##_all_##type(void *restrict to, const void *restrict from, size_t count) \
	{ \
		type *restrict acc = to; \
		const type *restrict in = from; \
		for (size_t i = 0; i < count; i++) \
			acc[i] = store(combine(load(acc[i]), load(in[i]))); \
	}
#define SCALE(type, number, load, store) \
	CLONES static void scale_all_##type(void *to, size_t count, unsigned n) \
	{ \
		type *acc = to; \
		const number by = (number)n; \
		for (size_t i = 0; i < count; i++) \
			acc[i] = store((number)load(acc[i]) / by); \
	}
#define KERNELS(type, as, load, store) \
	KERNEL(type, sum, sum_##as, load, store) \
	KERNEL(type, product, product_##as, load, store) \
	KERNEL(type, max, max_##as, load, store) \
	KERNEL(type, min, min_##as, load, store)
KERNELS(f32, f32, , )
KERNELS(f64, f64, , )
KERNELS(bf16, f32, from_bf16, to_bf16)
KERNELS(i32, i32, , )
KERNELS(i64, i64, , )
SCALE(f32, float, , )
SCALE(f64, double, , )
SCALE(bf16, float, from_bf16, to_bf16)
SCALE(i32, int64_t, (int32_t), (uint32_t))
SCALE(i64, int64_t, (int64_t), (uint64_t))

/* f16 goes through f32 a block at a time, because the processor's own conversion is many times as fast as the loops
 * that compilers make of ours, and they use it only when told to. */

enum { BLOCK = 256 };

CLONES static void widen_plain(float *restrict to, const f16 *restrict from, size_t n)
{
	for (size_t i = 0; i < n; i++)
		to[i] = from_f16(from[i]);
}

CLONES static void narrow_plain(f16 *restrict to, const float *restrict from, size_t n)
{
	for (size_t i = 0; i < n; i++)
		to[i] = to_f16(from[i]);
}

#ifdef __x86_64__
#define F16C __attribute__((target("avx,f16c")))

static bool has_f16c(void)
{
	static _Atomic int known; /* 0: not yet, 1: no, 2: yes; asking costs a trap in a virtual machine */
	unsigned a, b, c, d;
	int is = known;

	if (!is)
		known = is = 1 + (__builtin_cpu_supports("avx") && __get_cpuid(1, &a, &b, &c, &d) && c & bit_F16C);
	return is == 2;
}

F16C static void widen_f16c(float *restrict to, const f16 *restrict from, size_t n)
{
	size_t i = 0;

	for (; i + 8 <= n; i += 8)
		_mm256_storeu_ps(to + i, _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)(from + i))));
	widen_plain(to + i, from + i, n - i);
}

F16C static void narrow_f16c(f16 *restrict to, const float *restrict from, size_t n)
{
	size_t i = 0;

	for (; i + 8 <= n; i += 8)
		_mm_storeu_si128((__m128i *)(void *)(to + i), _mm256_cvtps_ph(_mm256_loadu_ps(from + i), _MM_FROUND_TO_NEAREST_INT));
	narrow_plain(to + i, from + i, n - i);
}
#else
#define has_f16c() false
#define widen_f16c widen_plain
#define narrow_f16c narrow_plain
#endif

static void combine_f16(f16 *acc, const f16 *in, size_t count, void (*rule)(void *restrict, const void *restrict, size_t))
{
	float a[BLOCK], b[BLOCK];
	bool hard = has_f16c();

	for (size_t i = 0, n; i < count; i += n) {
		n = tt_min(count - i, BLOCK);
		(hard ? widen_f16c : widen_plain)(a, acc + i, n);
		(hard ? widen_f16c : widen_plain)(b, in + i, n);
		rule(a, b, n);
		(hard ? narrow_f16c : narrow_plain)(acc + i, a, n);
	}
}

static void scale_all_f16(void *to, size_t count, unsigned n)
{
	f16 *acc = to;

	for (size_t i = 0; i < count; i++) /* rare: once an all-reduce, not once a rank */
		acc[i] = to_f16(from_f16(acc[i]) / (float)n);
}

#define HALVES(rule) \
	static void rule##_all_f16(void *restrict to, const void *restrict from, size_t count) \
	{ \
		combine_f16(to, from, count, rule##_all_f32); \
	}
HALVES(sum)
HALVES(product)
HALVES(max)
HALVES(min)

#define ROW(type) \
	{ sizeof(type), { [TUTTI_SUM] = sum_all_##type, [TUTTI_AVERAGE] = sum_all_##type, [TUTTI_PRODUCT] = product_all_##type, \
		[TUTTI_MAX] = max_all_##type, [TUTTI_MIN] = min_all_##type }, scale_all_##type }
static const struct {
	size_t size;
	void (*combine[TUTTI_MIN + 1])(void *restrict, const void *restrict, size_t);
	void (*scale)(void *, size_t, unsigned);
} types[] = {
	[TUTTI_F32] = ROW(f32), [TUTTI_F64] = ROW(f64), [TUTTI_F16] = ROW(f16),
	[TUTTI_BF16] = ROW(bf16), [TUTTI_I32] = ROW(i32), [TUTTI_I64] = ROW(i64),
};

/* The application may have set this thread to flush subnormals or to round otherwise; the next rank's thread has not. */
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

size_t tt_type_size(tutti_type type) { return (size_t)type < TT_COUNT(types) ? types[type].size : 0; }

void tt_reduce(void *acc, const void *in, size_t count, tutti_type type, tutti_rule rule)
{
	unsigned modes = set_modes(0x1f80);

	types[type].combine[rule](acc, in, count);
	set_modes(modes);
}

void tt_scale(void *acc, size_t count, tutti_type type, unsigned n)
{
	unsigned modes = set_modes(0x1f80);

	types[type].scale(acc, count, n);
	set_modes(modes);
}
