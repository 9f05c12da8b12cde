/* filter.c - a block of elements without its zeros
 *
 * The magnitude of a floating-point number grows with its bits without the sign. So elements of all types are compared
 * with the limit as unsigned integers, by loops that compilers vectorize. NaN is larger than any limit. */
#include "table/parts.h"
#include <math.h>
#include <string.h>

static size_t pair_size(tutti_type type) { return sizeof(uint32_t) + tt_type_size(type); }

/* The limit: the bits of the largest number of the type that is not above clip. */

static double small_float(uint64_t bits, int fraction) /* of a 16-bit type, without its sign */
{
	int shift = fraction == 10 ? 15 : 127, exponent = (int)(bits >> fraction), more = 1 << fraction;
	int part = (int)bits & (more - 1);

	return exponent ? ldexp(more + part, exponent - shift - fraction) : ldexp(part, 1 - shift - fraction);
}

static uint64_t limit_of_16_bits(double clip, int fraction)
{
	uint64_t low = 0, high = 0x7fffu >> fraction << fraction; /* infinity */

	if (isinf(clip))
		return high;
	while (high - low > 1) {
		uint64_t middle = (low + high) / 2;
		if (small_float(middle, fraction) <= clip)
			low = middle;
		else
			high = middle;
	}
	return low;
}

static uint64_t limit_of_f32(double clip)
{
	float f = (float)clip;
	uint32_t bits;

	if ((double)f > clip)
		f = nextafterf(f, 0);
	memcpy(&bits, &f, sizeof bits);
	return bits;
}

static uint64_t limit_of_f64(double clip)
{
	uint64_t bits;

	memcpy(&bits, &clip, sizeof bits);
	return bits;
}

uint64_t tt_filter_limit(tutti_type type, double clip)
{
	switch (type) {
	case TUTTI_F16: return limit_of_16_bits(clip, 10);
	case TUTTI_BF16: return limit_of_16_bits(clip, 7);
	case TUTTI_F32: return limit_of_f32(clip);
	case TUTTI_F64: return limit_of_f64(clip);
	case TUTTI_I32: return clip < 0x1p31 ? (uint64_t)clip : 1ull << 31;
	default: break; /* i64 */
	}
	return clip < 0x1p63 ? (uint64_t)clip : 1ull << 63;
}

/* For words of one width and one kind of magnitude: how many elements stay, and which. */

#define MAGNITUDE(bits) ((bits) & (WORD)((WORD)-1 >> 1))
#define ABSOLUTE(bits) ((bits) >> (8 * sizeof(WORD) - 1) ? (WORD)(0 - (bits)) : (bits))

enum { BLOCK = 16 }; /* elements counted at once, in words of their own width; 32 and 64 were slower */

#define FILTER(name, word, size) \
	static inline bool stays_##name(const char *at, uint64_t limit) \
	{ \
		typedef word WORD; \
		WORD bits; \
		memcpy(&bits, at, sizeof bits); \
		return size(bits) > (WORD)limit; \
	} \
	static inline size_t count_block_##name(const char *from, uint64_t limit) \
	{ \
		word kept = 0; \
		for (int i = 0; i < BLOCK; i++) \
			kept = (word)(kept + stays_##name(from + (size_t)i * sizeof kept, limit)); \
		return kept; \
	} \
	static size_t count_##name(const char *from, size_t n, uint64_t limit) \
	{ \
		size_t kept = 0, i = 0; \
		for (; n - i >= BLOCK; i += BLOCK) \
			kept += count_block_##name(from + i * sizeof(word), limit); \
		for (; i < n; i++) \
			kept += stays_##name(from + i * sizeof(word), limit); \
		return kept; \
	} \
	/* Writes each element; the next one overwrites it if it does not stay. So there is no branch to predict. */ \
	static void keep_##name(char *indices, char *values, const char *from, size_t n, size_t kept, uint64_t limit) \
	{ \
		size_t m = 0; \
		for (uint32_t i = 0; m < kept;) { \
			if (i % BLOCK == 0 && n - i >= BLOCK && !count_block_##name(from + i * sizeof(word), limit)) { \
				i += BLOCK; \
				continue; \
			} \
			do { \
				const char *at = from + i * sizeof(word); \
				memcpy(indices + m * sizeof i, &i, sizeof i); \
				memcpy(values + m * sizeof(word), at, sizeof(word)); \
				m += stays_##name(at, limit); \
			} while (++i % BLOCK && m < kept); \
		} \
	} \
	static void put_##name(char *to, const char *indices, const char *values, size_t m) \
	{ \
		for (size_t k = 0; k < m; k++) { \
			uint32_t i; \
			memcpy(&i, indices + k * sizeof i, sizeof i); \
			memcpy(to + i * sizeof(word), values + k * sizeof(word), sizeof(word)); \
		} \
	}

FILTER(r16, uint16_t, MAGNITUDE)
FILTER(r32, uint32_t, MAGNITUDE)
FILTER(r64, uint64_t, MAGNITUDE)
FILTER(i32, uint32_t, ABSOLUTE)
FILTER(i64, uint64_t, ABSOLUTE)

static const struct {
	size_t (*count)(const char *from, size_t n, uint64_t limit);
	void (*keep)(char *indices, char *values, const char *from, size_t n, size_t kept, uint64_t limit);
	void (*put)(char *to, const char *indices, const char *values, size_t m);
} loops[] = {
	[TUTTI_F32] = { count_r32, keep_r32, put_r32 }, [TUTTI_F64] = { count_r64, keep_r64, put_r64 },
	[TUTTI_F16] = { count_r16, keep_r16, put_r16 }, [TUTTI_BF16] = { count_r16, keep_r16, put_r16 },
	[TUTTI_I32] = { count_i32, keep_i32, put_i32 }, [TUTTI_I64] = { count_i64, keep_i64, put_i64 },
};

static bool is_shorter(size_t pairs, size_t n, tutti_type type)
{
	return n <= UINT32_MAX && pairs * pair_size(type) < n * tt_type_size(type);
}

size_t tt_filter_pack(void *to, const void *from, size_t n, tutti_type type, uint64_t limit)
{
	size_t kept = loops[type].count(from, n, limit), m = tt_max(kept, 1);
	char *indices = to, *values;

	if (!is_shorter(m, n, type))
		return 0;
	values = indices + m * sizeof(uint32_t);
	memset(indices, 0, sizeof(uint32_t));
	memcpy(values, from, tt_type_size(type));
	loops[type].keep(indices, values, from, n, kept, limit);
	return m * pair_size(type);
}

static bool grow_to_below(const char *indices, size_t m, size_t n)
{
	int64_t last = -1;
	bool good = true;
	uint32_t i;

	for (size_t k = 0; k < m; k++, last = i) {
		memcpy(&i, indices + k * sizeof i, sizeof i);
		good &= i > last;
	}
	return good && (uint64_t)last < n;
}

int tt_filter_unpack(void *to, size_t n, tutti_type type, const void *from, size_t bytes)
{
	size_t m = bytes / pair_size(type);
	const char *indices = from;

	if (!m || bytes % pair_size(type) || !is_shorter(m, n, type))
		return tt_fail(-EBADMSG, "a sparse block has %zu bytes for %zu elements: pairs of %zu bytes, and fewer "
		               "than the elements take, are expected", bytes, n, pair_size(type));
	if (!grow_to_below(indices, m, n))
		return tt_fail(-EBADMSG, "the %zu indices of a sparse block do not grow, or pass its %zu elements",
		               m, n);
	memset(to, 0, n * tt_type_size(type));
	loops[type].put(to, indices, indices + m * sizeof(uint32_t), m);
	return 0;
}
