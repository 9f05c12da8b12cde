/* formats.h - what the bits of each type mean, and the nearest bits to a value: for tests of kernels. Slow and plain on
 * purpose. */
#ifndef TT_FORMATS_H
#define TT_FORMATS_H
#include "kernel/kernel.h"
#include <math.h>
#include <string.h>

static const char *const type_names[] = { "f32", "f64", "f16", "bf16", "i32", "i64", "i8", "u8", "bool" };

static inline bool is_integer(tutti_type type) { return type >= TUTTI_I32; }

struct format {
	int fraction, exponent; /* bits */
};
static const struct format formats[] = {
	[TUTTI_F32] = { 23, 8 }, [TUTTI_F64] = { 52, 11 }, [TUTTI_F16] = { 10, 5 }, [TUTTI_BF16] = { 7, 8 },
};

static inline uint64_t nan_of(tutti_type type) /* positive, quiet, no payload */
{
	struct format f = formats[type];

	return ((1ull << f.exponent) - 1) << f.fraction | 1ull << (f.fraction - 1);
}

static inline long double meaning(uint64_t bits, tutti_type type)
{
	struct format f = formats[type];
	uint64_t fraction = bits & ((1ull << f.fraction) - 1), top = (1ull << f.exponent) - 1;
	uint64_t exponent = bits >> f.fraction & top;
	int bias = (1 << (f.exponent - 1)) - 1;
	long double sign = bits >> (f.fraction + f.exponent) & 1 ? -1.0L : 1.0L;

	if (exponent == top)
		return fraction ? (long double)NAN : sign * (long double)INFINITY;
	if (!exponent)
		return sign * ldexpl((long double)fraction, 1 - bias - f.fraction);
	return sign * ldexpl((long double)(fraction | 1ull << f.fraction), (int)exponent - bias - f.fraction);
}

static inline uint64_t nearest(long double value, tutti_type type)
{
	struct format f = formats[type];
	int bias = (1 << (f.exponent - 1)) - 1, exponent;
	uint64_t sign = (uint64_t) !!signbit(value) << (f.fraction + f.exponent), infinite = ((1ull << f.exponent) - 1)
	                                                                                     << f.fraction;

	if (isnan(value))
		return nan_of(type);
	if (isinf(value))
		return sign | infinite;
	frexpl(value, &exponent); /* value = 0.5 .. 1 times 2^exponent */
	exponent = exponent - 1 < 1 - bias ? 1 - bias : exponent - 1;
	/* In units of the last place: the mode of this thread is to nearest even. A carry runs on into the exponent. */
	uint64_t units = (uint64_t)rintl(ldexpl(fabsl(value), f.fraction - exponent));
	uint64_t bits = units < 1ull << f.fraction ? units : units + ((uint64_t)(exponent + bias - 1) << f.fraction);
	return sign | (!units ? 0 : bits >= infinite ? infinite : bits);
}

static inline uint64_t element(const void *base, size_t i, tutti_type type)
{
	uint64_t bits = 0;

	/* little-endian, as all of Tutti's hosts */
	memcpy(&bits, (const char *)base + i * tt_type_size(type), tt_type_size(type));
	return bits;
}

static inline void set_element(void *base, size_t i, tutti_type type, uint64_t bits)
{
	memcpy((char *)base + i * tt_type_size(type), &bits, tt_type_size(type));
}

/* valgrind computes long double in 64 bits, and keeps no floating-point modes: there these references are wrong. The
 * code is run all the same, for its memory. */
static inline bool is_emulated(void)
{
	volatile long double one = 1, small = 0x1p-60L;

	return one + small == one;
}
#endif
