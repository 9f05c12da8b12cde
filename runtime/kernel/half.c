/* half.c - vectors of f16 and bf16 to f32 and back, with the text of half.h for one number at a time */
#include "kernel/kernel.h"
#include <string.h>
#ifndef __clang__
#pragma GCC optimize("O3") /* or it does not vectorize these loops */
#endif

typedef float vf32;
typedef uint32_t vu32;
typedef int32_t vi32;

#define INLINE static inline __attribute__((unused))
INLINE vu32 as_vu32(vf32 x) { return ((union { vf32 from; vu32 to; }){ .from = x }).to; }
INLINE vf32 as_vf32(vu32 x) { return ((union { vu32 from; vf32 to; }){ .from = x }).to; }
INLINE vi32 as_vi32(vu32 x) { return (vi32)x; }
#define AS(type, x) as_##type(x)
#define ALL(type, x) ((type)(x))
#define PICK(mask, a, b) ((mask) ? (a) : (b))
#include "kernel/half.h"

void tt_to_f32(void *restrict to, const void *restrict from, size_t count, tutti_type type)
{
	for (size_t i = 0; type == TUTTI_BF16 && i < count; i++) {
		uint16_t half;
		memcpy(&half, (const char *)from + i * sizeof half, sizeof half);
		uint32_t bits = (uint32_t)half << 16;
		memcpy((char *)to + i * sizeof bits, &bits, sizeof bits);
	}
	if (type == TUTTI_BF16)
		return;
	for (size_t i = 0; i < count; i++) {
		uint16_t half;
		memcpy(&half, (const char *)from + i * sizeof half, sizeof half);
		float x = widen_half(half);
		memcpy((char *)to + i * sizeof x, &x, sizeof x);
	}
}

void tt_from_f32(void *restrict to, const void *restrict from, size_t count, tutti_type type)
{
	for (size_t i = 0; type == TUTTI_BF16 && i < count; i++) {
		uint32_t bits;
		memcpy(&bits, (const char *)from + i * sizeof bits, sizeof bits);
		uint16_t half = (uint16_t)((bits & 0x7fffffff) > 0x7f800000 ? 0x7fc0 :
		                           (bits + 0x7fff + (bits >> 16 & 1)) >> 16);
		memcpy((char *)to + i * sizeof half, &half, sizeof half);
	}
	if (type == TUTTI_BF16)
		return;
	for (size_t i = 0; i < count; i++) {
		float x;
		memcpy(&x, (const char *)from + i * sizeof x, sizeof x);
		uint16_t half = (uint16_t)narrow_half(x);
		memcpy((char *)to + i * sizeof half, &half, sizeof half);
	}
}
