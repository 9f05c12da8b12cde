/* reduce_kernels.h - vectors of WIDTH bytes, and the table of kernels made of them
 *
 * Vectors are GCC's and clang's vector_size, so one text serves all instruction sets. Intrinsics appear in three places
 * only: for f16 conversions and square roots, which the compilers do not find, and for streaming stores.
 *
 * Two ranks may combine the same numbers in either order (doubling) and must get the same bits. So every rule is
 * commutative bit for bit: a NaN result is always the one positive quiet NaN without payload, the larger of -0 and +0
 * is +0, the smaller -0. Nothing is contracted to a fused multiply-add (-ffp-contract=off). */
#if defined __OPTIMIZE__ && !defined __clang__
#pragma GCC optimize("O3", "no-trapping-math") /* -O2 does not unroll; reduce.c masks traps */
#endif

#define INLINE static inline __attribute__((always_inline))
#define VECTOR __attribute__((vector_size(WIDTH)))
typedef float vf32 VECTOR;
typedef double vf64 VECTOR;
typedef int32_t vi32 VECTOR;
typedef int64_t vi64 VECTOR;
typedef int8_t vi8 VECTOR;
typedef uint8_t vu8 VECTOR;   /* unsigned: integers wrap */
typedef uint32_t vu32 VECTOR;
typedef uint64_t vu64 VECTOR;
typedef uint32_t loose VECTOR __attribute__((aligned(1), may_alias)); /* in memory: any address and type */

enum {
	TILE = 4,      /* vectors of each stream in one step: a cache line or more, and still in registers */
	AHEAD = 1024,  /* bytes to prefetch; 256 to 512 and 2048 were slower */
};

/* Lanes of a where the mask is ones, else of b. */
#define PICK(mask, a, b) ((__typeof__(a))(((mask) & (__typeof__(mask))(a)) | (~(mask) & (__typeof__(mask))(b))))
#define ALL(vector, x) ((vector){ 0 } + (x))

/* Bypasses the caches; `to` is aligned to the vector. */
#ifdef __x86_64__
INLINE void stream_vector(void *to, vi32 v)
{
#if WIDTH == 64
	_mm512_stream_si512(to, (__m512i)v);
#elif WIDTH == 32
	_mm256_stream_si256(to, (__m256i)v);
#else
	_mm_stream_si128(to, (__m128i)v);
#endif
}
#else
INLINE void stream_vector(void *to, vi32 v) { memcpy(to, &v, sizeof v); }
#endif

#define AS(type, x) ((type)(x))
#include "kernel/half.h"

/* If the two vectors of one in memory are the even and the odd elements, no lane moves. */

INLINE void widen_bf16(vf32 *v, const void *at) { bf16_to_f32(v, *(const loose *)at); }

INLINE vf32 widen_one_bf16(uint16_t h) { return (vf32)(vu32){ (uint32_t)h << 16 }; }

#define narrow_bf16 f32_to_bf16

#if defined __x86_64__ && WIDTH == 64
INLINE void widen_f16(vf32 *v, const void *at)
{
	v[0] = (vf32)_mm512_cvtph_ps(_mm256_loadu_si256(at));
	v[1] = (vf32)_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)at + 1));
}

INLINE vf32 widen_one_f16(uint16_t h) { return (vf32)_mm512_cvtph_ps(_mm256_castsi128_si256(_mm_cvtsi32_si128(h))); }

INLINE vu32 narrow_f16(const vf32 *v)
{
	__m512i low = _mm512_castsi256_si512(_mm512_cvtps_ph((__m512)v[0], _MM_FROUND_TO_NEAREST_INT));

	return (vu32)_mm512_inserti64x4(low, _mm512_cvtps_ph((__m512)v[1], _MM_FROUND_TO_NEAREST_INT), 1);
}
#elif defined __x86_64__ && WIDTH == 32
INLINE void widen_f16(vf32 *v, const void *at)
{
	v[0] = (vf32)_mm256_cvtph_ps(_mm_loadu_si128(at));
	v[1] = (vf32)_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)at + 1));
}

INLINE vf32 widen_one_f16(uint16_t h) { return (vf32)_mm256_cvtph_ps(_mm_cvtsi32_si128(h)); }

INLINE vu32 narrow_f16(const vf32 *v)
{
	__m256i low = _mm256_castsi128_si256(_mm256_cvtps_ph((__m256)v[0], _MM_FROUND_TO_NEAREST_INT));

	return (vu32)_mm256_inserti128_si256(low, _mm256_cvtps_ph((__m256)v[1], _MM_FROUND_TO_NEAREST_INT), 1);
}
#else
INLINE void widen_f16(vf32 *v, const void *at) { f16_to_f32(v, *(const loose *)at); }

INLINE vf32 widen_one_f16(uint16_t h) { return widen_half((vu32){ h }); }

#define narrow_f16 f32_to_f16
#define F16_ALTERNATES
#endif

/* State is in f32, in order: weave turns even and odd elements into that order, unweave back. */
#ifdef __clang__
#define SHUFFLE(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define SHUFFLE(a, b, ...) __builtin_shuffle(a, b, (vi32){ __VA_ARGS__ })
#endif
#if WIDTH == 64
#define FIRST 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23
#define SECOND 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31
#define EVEN 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30
#define ODD 1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31
#elif WIDTH == 32
#define FIRST 0, 8, 1, 9, 2, 10, 3, 11
#define SECOND 4, 12, 5, 13, 6, 14, 7, 15
#define EVEN 0, 2, 4, 6, 8, 10, 12, 14
#define ODD 1, 3, 5, 7, 9, 11, 13, 15
#else
#define FIRST 0, 4, 1, 5
#define SECOND 2, 6, 3, 7
#define EVEN 0, 2, 4, 6
#define ODD 1, 3, 5, 7
#endif

INLINE void weave(vf32 *v)
{
	vf32 even = v[0], odd = v[1];

	v[0] = SHUFFLE(even, odd, FIRST);
	v[1] = SHUFFLE(even, odd, SECOND);
}

INLINE void unweave(vf32 *v)
{
	vf32 first = v[0], second = v[1];

	v[0] = SHUFFLE(first, second, EVEN);
	v[1] = SHUFFLE(first, second, ODD);
}

#ifdef __x86_64__
#if WIDTH == 64
INLINE vf32 root_f32(vf32 v) { return (vf32)_mm512_sqrt_ps((__m512)v); }
INLINE vf64 root_f64(vf64 v) { return (vf64)_mm512_sqrt_pd((__m512d)v); }
#elif WIDTH == 32
INLINE vf32 root_f32(vf32 v) { return (vf32)_mm256_sqrt_ps((__m256)v); }
INLINE vf64 root_f64(vf64 v) { return (vf64)_mm256_sqrt_pd((__m256d)v); }
#else
INLINE vf32 root_f32(vf32 v) { return (vf32)_mm_sqrt_ps((__m128)v); }
INLINE vf64 root_f64(vf64 v) { return (vf64)_mm_sqrt_pd((__m128d)v); }
#endif
#else
INLINE vf32 root_f32(vf32 v)
{
	for (size_t i = 0; i < WIDTH / sizeof v[0]; i++)
		v[i] = sqrtf(v[i]);
	return v;
}

INLINE vf64 root_f64(vf64 v)
{
	for (size_t i = 0; i < WIDTH / sizeof v[0]; i++)
		v[i] = sqrt(v[i]);
	return v;
}
#endif

/* Is one of these numbers NaN? */
#if defined __x86_64__ && WIDTH == 64
INLINE bool some_nan(vf32 a, vf32 b) { return _mm512_cmp_ps_mask((__m512)a, (__m512)b, _CMP_UNORD_Q); }
#elif defined __x86_64__ && WIDTH == 32
INLINE bool some_nan(vf32 a, vf32 b) { return _mm256_movemask_ps(_mm256_cmp_ps((__m256)a, (__m256)b, _CMP_UNORD_Q)); }
#elif defined __x86_64__
INLINE bool some_nan(vf32 a, vf32 b) { return _mm_movemask_ps(_mm_cmpunord_ps((__m128)a, (__m128)b)); }
#else
INLINE bool some_nan(vf32 a, vf32 b)
{
	vi64 numbers = (vi64)((a == a) & (b == b));
	int64_t all = -1;

	for (size_t i = 0; i < WIDTH / sizeof all; i++)
		all &= numbers[i];
	return all != -1;
}
#endif

INLINE void widen_truth(vu8 *v, const void *at) { *v = (vu8)((vu8)*(const loose *)at != 0) & 1; }

#define JOIN_(a, b) a##_##b
#define JOIN(a, b) JOIN_(a, b)
#define ON(name) JOIN(name, TYPE) /* sum_f32 */
#define NUMBER_RULES(X) X(sum, TUTTI_SUM) X(product, TUTTI_PRODUCT) X(max, TUTTI_MAX) X(min, TUTTI_MIN)
#define BIT_RULES(X) X(and, TUTTI_BAND) X(or, TUTTI_BOR) X(xor, TUTTI_BXOR)

#define TYPE f32
#define ELEMENT float
#define NUMBER float
#define VEC vf32
#define ROOT root_f32
#define MASK vi32
#define CLEAN_NAN 0x7fc00000
#include "kernel/reduce_loops.h"
#define TYPE f64
#define ELEMENT double
#define NUMBER double
#define VEC vf64
#define ROOT root_f64
#define MASK vi64
#define CLEAN_NAN 0x7ff8000000000000
#include "kernel/reduce_loops.h"
#define TYPE f16
#define ELEMENT uint16_t
#define NUMBER float
#define VEC vf32
#define ROOT root_f32
#define MASK vi32
#define CLEAN_NAN 0x7fc00000
#define WIDEN widen_f16
#define WIDEN_ONE widen_one_f16
#define NARROW narrow_f16
#ifdef F16_ALTERNATES
#define ALTERNATES
#endif
#include "kernel/reduce_loops.h"
#define TYPE bf16
#define ELEMENT uint16_t
#define NUMBER float
#define VEC vf32
#define ROOT root_f32
#define MASK vi32
#define CLEAN_NAN 0x7fc00000
#define WIDEN widen_bf16
#define WIDEN_ONE widen_one_bf16
#define NARROW narrow_bf16
#define ALTERNATES
#include "kernel/reduce_loops.h"
#define TYPE i32
#define ELEMENT uint32_t
#define NUMBER int32_t
#define VEC vu32
#define MASK vi32
#include "kernel/reduce_loops.h"
#define TYPE i64
#define ELEMENT uint64_t
#define NUMBER int64_t
#define VEC vu64
#define MASK vi64
#include "kernel/reduce_loops.h"
#define TYPE u8
#define ELEMENT uint8_t
#define NUMBER uint8_t
#define VEC vu8
#define MASK vi8
#define ORDER vu8
#define RULES(X) NUMBER_RULES(X) BIT_RULES(X)
#define BYTES
#include "kernel/reduce_loops.h"
#define TYPE i8
#define ELEMENT uint8_t
#define NUMBER int8_t
#define VEC vu8
#define MASK vi8
#define RULES(X) X(max, TUTTI_MAX) X(min, TUTTI_MIN) /* sums and products have the bits of u8 */
#define BYTES
#include "kernel/reduce_loops.h"
#define TYPE truth
#define ELEMENT uint8_t
#define NUMBER uint8_t
#define VEC vu8
#define MASK vi8
#define WIDEN widen_truth
#define WIDEN_ONE(x) ((VEC){ (x) != 0 })
#define RULES(X) BIT_RULES(X)
#define BYTES
#include "kernel/reduce_loops.h"

#define ROW(type, real) \
	{ .size = sizeof(element_##type), \
	  .pair = { [TUTTI_SUM] = sum_##type, [TUTTI_AVERAGE] = sum_##type, [TUTTI_PRODUCT] = product_##type, \
		    [TUTTI_MAX] = max_##type, [TUTTI_MIN] = min_##type }, \
	  .many = { [TUTTI_SUM] = sum_many_##type, [TUTTI_AVERAGE] = average_many_##type, \
		    [TUTTI_PRODUCT] = product_many_##type, [TUTTI_MAX] = max_many_##type, \
		    [TUTTI_MIN] = min_many_##type }, \
	  .scale = scale_##type, real }
#define ROW_OF_BYTES(numbers, order, bits) \
	{ .size = 1, \
	  .pair = { [TUTTI_SUM] = sum_##numbers, [TUTTI_AVERAGE] = sum_##numbers, [TUTTI_PRODUCT] = product_##numbers, \
		    [TUTTI_MAX] = max_##order, [TUTTI_MIN] = min_##order, [TUTTI_BAND] = and_##bits, \
		    [TUTTI_BOR] = or_##bits, [TUTTI_BXOR] = xor_##bits }, \
	  .many = { [TUTTI_SUM] = sum_many_##numbers, [TUTTI_PRODUCT] = product_many_##numbers, \
		    [TUTTI_MAX] = max_many_##order, [TUTTI_MIN] = min_many_##order, [TUTTI_BAND] = and_many_##bits, \
		    [TUTTI_BOR] = or_many_##bits, [TUTTI_BXOR] = xor_many_##bits } }
#define ROW_OF_TRUTHS \
	{ .size = 1, \
	  .pair = { [TUTTI_SUM] = or_truth, [TUTTI_PRODUCT] = and_truth, [TUTTI_MAX] = or_truth, \
		    [TUTTI_MIN] = and_truth, [TUTTI_BAND] = and_truth, [TUTTI_BOR] = or_truth, \
		    [TUTTI_BXOR] = xor_truth }, \
	  .many = { [TUTTI_SUM] = or_many_truth, [TUTTI_PRODUCT] = and_many_truth, [TUTTI_MAX] = or_many_truth, \
		    [TUTTI_MIN] = and_many_truth, [TUTTI_BAND] = and_many_truth, [TUTTI_BOR] = or_many_truth, \
		    [TUTTI_BXOR] = xor_many_truth } }
#define REAL(type) \
	.blend = blend_##type, .elastic_round = elastic_round_##type, \
	.back_up = back_up_##type, .round_off = round_off_##type, \
	.update = { [TUTTI_UPDATE_MOMENTUM] = update_momentum_##type, \
		    [TUTTI_UPDATE_SMOOTHED] = update_momentum_##type, \
		    [TUTTI_UPDATE_NESTEROV] = update_nesterov_##type, [TUTTI_UPDATE_ADAGRAD] = update_adagrad_##type, \
		    [TUTTI_UPDATE_RMSPROP] = update_rmsprop_##type, [TUTTI_UPDATE_ADAM] = update_adam_##type, \
		    [TUTTI_UPDATE_ADAMW] = update_adam_##type, [TUTTI_UPDATE_DCASGD] = update_dcasgd_##type, \
		    [TUTTI_UPDATE_DCASGDA] = update_dcasgda_##type, [TUTTI_UPDATE_FTRL] = update_ftrl_##type, \
		    [TUTTI_UPDATE_ELASTIC] = update_elastic_##type }
const struct tt_kernels KERNELS = { KERNELS_NAME, {
	[TUTTI_F32] = ROW(f32, REAL(f32)), [TUTTI_F64] = ROW(f64, REAL(f64)), [TUTTI_F16] = ROW(f16, REAL(f16)),
	[TUTTI_BF16] = ROW(bf16, REAL(bf16)), [TUTTI_I32] = ROW(i32, ), [TUTTI_I64] = ROW(i64, ),
	[TUTTI_I8] = ROW_OF_BYTES(u8, i8, u8), [TUTTI_U8] = ROW_OF_BYTES(u8, u8, u8), [TUTTI_BOOL] = ROW_OF_TRUTHS,
} };
