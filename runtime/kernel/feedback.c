/* feedback.c - error feedback: f32 rounded to bf16, with what rounding takes away kept for the next time */
#include "kernel/kernel.h"
#include <string.h>
#if defined __OPTIMIZE__ && !defined __clang__
#pragma GCC optimize("O3", "no-trapping-math") /* or it does not vectorize this loop */
#endif

enum { SIGN = 0x7fffffff, INFINITE = 0x7f800000, CLEAN_NAN = 0x7fc00000 }; /* SIGN: all bits but that */

static uint32_t bits_of(float x) { return ((union { float from; uint32_t to; }){ .from = x }).to; }
static float number_of(uint32_t x) { return ((union { uint32_t from; float to; }){ .from = x }).to; }

void tt_feed_back(uint16_t *restrict to, float *restrict rest, const void *restrict g, size_t count)
{
	for (size_t i = 0; i < count; i++) {
		float x, left;
		memcpy(&x, (const char *)g + i * sizeof x, sizeof x);
		x += rest[i];
		uint32_t bits = bits_of(x), sent = (bits + 0x7fff + (bits >> 16 & 1)) & 0xffff0000;
		sent = (bits & SIGN) > INFINITE ? CLEAN_NAN : sent;
		left = x - number_of(sent);
		rest[i] = (bits_of(left) & SIGN) < INFINITE ? left : 0;
		to[i] = (uint16_t)(sent >> 16);
	}
}
