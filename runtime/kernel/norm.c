/* norm.c - how far two vectors are apart */
#include "kernel/kernel.h"
#if defined __OPTIMIZE__ && !defined __clang__
#pragma GCC optimize("O3", "no-trapping-math")
#endif

enum { LANES = 16, TILE = 256 };

/* Exact. An exponent of 31 is an infinity or a NaN. */
static double widen_f16(uint16_t h)
{
	uint32_t exponent = h >> 10 & 31, fraction = h & 1023;
	uint64_t bits = (uint64_t)(exponent == 31 ? 2047 : exponent + 1008) << 52 | (uint64_t)fraction << 42;
	double d;

	memcpy(&d, &bits, sizeof d);
	d = exponent ? d : fraction * 0x1p-24;
	return h >> 15 ? -d : d;
}

static double widen_bf16(uint16_t h)
{
	uint32_t bits = (uint32_t)h << 16;
	float f;

	memcpy(&f, &bits, sizeof f);
	return f;
}

static void widen_halves(double *to, const char *from, size_t n, double (*widen)(uint16_t))
{
	uint16_t h;

	for (size_t i = 0; i < n; i++) {
		memcpy(&h, from + 2 * i, sizeof h);
		to[i] = widen(h);
	}
}

static void widen_floats(double *to, const char *from, size_t n)
{
	float f[TILE];

	memcpy(f, from, n * sizeof *f);
	for (size_t i = 0; i < n; i++)
		to[i] = f[i];
}

static void widen_tile(double *to, const char *from, size_t n, tutti_type type)
{
	switch (type) {
	case TUTTI_F32: widen_floats(to, from, n); break;
	case TUTTI_F64: memcpy(to, from, n * sizeof *to); break;
	case TUTTI_F16: widen_halves(to, from, n, widen_f16); break;
	default: widen_halves(to, from, n, widen_bf16);
	}
}

double tt_square_distance(const void *a, const void *b, size_t count, tutti_type type)
{
	double x[TILE], y[TILE] = { 0 }, sum[LANES] = { 0 }, all = 0;
	size_t size = tt_type_size(type);

	for (size_t at = 0; at < count; at += TILE) {
		size_t n = tt_min(TILE, count - at);
		widen_tile(x, (const char *)a + at * size, n, type);
		if (b)
			widen_tile(y, (const char *)b + at * size, n, type);
		for (size_t i = n; i < TILE; i++)
			x[i] = y[i] = 0;
		for (size_t i = 0; i < TILE; i += LANES)
			for (size_t k = 0; k < LANES; k++)
				sum[k] += (x[i + k] - y[i + k]) * (x[i + k] - y[i + k]);
	}
	for (int k = 0; k < LANES; k++)
		all += sum[k];
	return all;
}
