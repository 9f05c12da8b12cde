/* reduce_loops.h - the loops over elements of one TYPE, at any address
 *
 *   ELEMENT NUMBER VEC MASK    the type in memory, in computations, a vector of it, the result of a comparison
 *   CLEAN_NAN ROOT             floating point: the bits of the one NaN; the square roots of a VEC
 *   WIDEN WIDEN_ONE NARROW     if an ELEMENT has half the size of a NUMBER: one vector of memory makes two
 *   ALTERNATES                 these two are the even and the odd elements
 *   ORDER RULES                integers: the vector whose numbers are compared; the rules, else NUMBER_RULES
 *   BYTES                      no averages: reduce.c divides
 *
 * The end of this file undefines all of them. */
typedef ELEMENT ON(element);
typedef ELEMENT ON(cell) __attribute__((vector_size(WIDTH), aligned(1), may_alias)); /* a vector in memory */
#ifndef WIDEN
#define WIDEN(v, at) (*(v) = (VEC)*(const loose *)(at))
#define WIDEN_ONE(x) ((VEC){ x })
#endif
#ifdef NARROW
#define NARROWED(v) ((ON(cell))NARROW(v))
#else
#define NARROWED(v) ((ON(cell))*(v))
#endif
#ifndef ORDER
#define ORDER MASK
#endif
#ifndef RULES
#define RULES NUMBER_RULES
#endif
#define SIZE sizeof(ELEMENT)
#define PARTS (sizeof(NUMBER) / SIZE) /* vectors of NUMBERs for one in memory */
#define LANES (WIDTH / sizeof(NUMBER))

/* get and put move a vector, or a single element if `len` is less than WIDTH. */

INLINE void ON(get)(VEC *v, const char *at, size_t len)
{
	ELEMENT one;

	if (len == WIDTH) {
		WIDEN(v, at);
		return;
	}
	memcpy(&one, at, SIZE);
	*v = WIDEN_ONE(one);
	for (size_t u = 1; u < PARTS; u++)
		v[u] = *v; /* not used, but must be initialized */
}

INLINE void ON(put)(char *to, const VEC *v, size_t len, bool stream)
{
	ON(cell) packed = NARROWED(v);
	ELEMENT one = packed[0];

	if (stream)
		stream_vector(to, (vi32)packed);
	else if (len == WIDTH)
		*(ON(cell) *)(void *)to = packed;
	else
		memcpy(to, &one, SIZE);
}

/* Rules, on numbers. */
#include "kernel/rules.h"

#ifdef CLEAN_NAN
/* If a == b, only -0 and +0 differ in their bits: max needs the signs of both, min of either. */
INLINE VEC ON(extreme)(VEC a, VEC b, bool least)
{
	MASK first = least ? a < b : a > b, second = least ? a > b : a < b;
	MASK one = (MASK)PICK(first, a, b), other = (MASK)PICK(second, b, a);

	return (VEC)PICK((a == a) & (b == b), least ? one | other : one & other, ALL(MASK, CLEAN_NAN));
}

INLINE VEC ON(divide)(VEC v, unsigned n) { return ON(divide_number)(v, n); }
#else
INLINE VEC ON(clean)(VEC v) { return v; }

INLINE VEC ON(extreme)(VEC a, VEC b, bool least)
{
	MASK more = (MASK)((ORDER)a > (ORDER)b);

	return PICK(least ? ~more : more, a, b);
}

INLINE VEC ON(divide)(VEC v, unsigned n)
{
	for (size_t i = 0; i < LANES; i++)
		v[i] = (__typeof__(v[0]))ON(divide_number)((NUMBER)v[i], n);
	return v;
}

INLINE VEC ON(combine_bits)(VEC a, VEC b, tutti_rule rule)
{
	return rule == TUTTI_BAND ? a & b : rule == TUTTI_BOR ? a | b : a ^ b;
}
#endif

INLINE VEC ON(combine)(VEC a, VEC b, tutti_rule rule)
{
	switch (rule) {
	case TUTTI_PRODUCT: return a * b;
	case TUTTI_MAX: return ON(extreme)(a, b, false);
	case TUTTI_MIN: return ON(extreme)(a, b, true);
#ifndef CLEAN_NAN
	case TUTTI_BAND: case TUTTI_BOR: case TUTTI_BXOR: return ON(combine_bits)(a, b, rule);
#endif
	default: return a + b;
	}
}

/* One step of each loop, from byte i on: so many vectors, or one element if `len` is less than WIDTH. A step reads
 * everything before it writes, since an output may be an input. */

struct ON(work) {
	char *to;
	const char *a, *b;
	const struct tt_many *many;
};

/* Widening takes so long that the processor does not look far enough ahead by itself. Other types lose by this. */
INLINE void ON(look_ahead)(const char *at, int vectors)
{
	for (int i = 0; PARTS > 1 && vectors == TILE && i < TILE * WIDTH; i += TT_CACHE_LINE)
		__builtin_prefetch(at + AHEAD + i);
}

INLINE void ON(get_all)(VEC *v, const char *at, int vectors, size_t len)
{
	ON(look_ahead)(at, vectors);
	for (int u = 0; u < vectors; u++)
		ON(get)(v + u * PARTS, at + u * WIDTH, len);
}

INLINE void ON(put_all)(char *to, const VEC *v, int vectors, size_t len, bool stream)
{
	for (int u = 0; u < vectors; u++)
		ON(put)(to + u * WIDTH, v + u * PARTS, len, stream);
}

/* Of 16-bit types one test serves a tile: NaNs are rare. */
INLINE void ON(clean_all)(VEC *v, int vectors)
{
#ifdef NARROW
	bool nan = false;

	for (int u = 0; u < vectors; u++)
		nan |= some_nan(v[u * PARTS], v[u * PARTS + 1]);
	if (__builtin_expect(!nan, 1))
		return;
#endif
	for (size_t u = 0; u < vectors * PARTS; u++)
		v[u] = ON(clean)(v[u]);
}

INLINE void ON(step_pair)(const struct ON(work) *w, size_t i, int vectors, size_t len, bool stream, tutti_rule rule)
{
	VEC a[TILE * PARTS], b[TILE * PARTS];

	ON(get_all)(a, w->a + i, vectors, len);
	ON(get_all)(b, w->b + i, vectors, len);
	for (size_t u = 0; u < vectors * PARTS; u++)
		a[u] = ON(combine)(a[u], b[u], rule);
	ON(clean_all)(a, vectors);
	ON(put_all)(w->to + i, a, vectors, len, stream);
}

INLINE void ON(step_many)(const struct ON(work) *w, size_t i, int vectors, size_t len, bool stream, tutti_rule rule)
{
	const struct tt_many *m = w->many;
	VEC all[TILE * PARTS], in[TILE * PARTS];

	ON(get_all)(all, (const char *)m->from[0] + i, vectors, len);
	for (int k = 1; k < m->inputs; k++) {
		ON(get_all)(in, (const char *)m->from[k] + i, vectors, len);
		for (size_t u = 0; u < vectors * PARTS; u++)
			all[u] = ON(combine)(all[u], in[u], rule);
	}
	for (size_t u = 0; rule == TUTTI_AVERAGE && u < vectors * PARTS; u++)
		all[u] = ON(divide)(all[u], (unsigned)m->inputs);
	if (rule != TUTTI_AVERAGE)
		ON(clean_all)(all, vectors);
	for (int k = 0; k < m->outputs; k++)
		ON(put_all)((char *)m->to[k] + i, all, vectors, len, stream);
}

INLINE void ON(step_scale)(const struct ON(work) *w, size_t i, int vectors, size_t len, bool stream, unsigned n)
{
	VEC v[TILE * PARTS];

	ON(get_all)(v, w->to + i, vectors, len);
	for (size_t u = 0; u < vectors * PARTS; u++)
		v[u] = ON(divide)(v[u], n);
	ON(put_all)(w->to + i, v, vectors, len, stream);
}

#ifdef CLEAN_NAN
INLINE void ON(step_blend)(const struct ON(work) *w, size_t i, int vectors, size_t len, bool stream, NUMBER by_a,
                           NUMBER by_b)
{
	VEC a[TILE * PARTS], b[TILE * PARTS];

	ON(get_all)(a, w->a + i, vectors, len);
	ON(get_all)(b, w->b + i, vectors, len);
	for (size_t u = 0; u < vectors * PARTS; u++)
		a[u] = ON(blend_numbers)(by_a, a[u], by_b, b[u]);
	ON(put_all)(w->to + i, a, vectors, len, stream);
}
#endif

/* Tiles, then vectors, then elements. Only tiles bypass the caches. */

#define LOOP(first, count, step, ...) \
	do { \
		size_t i = (first) * SIZE, end = i + (count) * SIZE; \
		for (; i + TILE * WIDTH <= end; i += TILE * WIDTH) \
			ON(step)(&w, i, TILE, WIDTH, stream, __VA_ARGS__); \
		for (; i + WIDTH <= end; i += WIDTH) \
			ON(step)(&w, i, 1, WIDTH, false, __VA_ARGS__); \
		for (; i < end; i += SIZE) \
			ON(step)(&w, i, 1, SIZE, false, __VA_ARGS__); \
	} while (0)

#define PAIR(name, rule) \
	static void ON(name)(char *to, const char *a, const char *b, size_t first, size_t count, bool stream) \
	{ \
		const struct ON(work) w = { .to = to, .a = a, .b = b }; \
\
		LOOP(first, count, step_pair, rule); \
	}
#define MANY(name, rule) \
	static void ON(name)(const struct tt_many *many, size_t first, size_t count, bool stream) \
	{ \
		const struct ON(work) w = { .many = many }; \
\
		LOOP(first, count, step_many, rule); \
	}
#define BOTH(name, rule) PAIR(name, rule) MANY(name##_many, rule)
RULES(BOTH)

#ifndef BYTES
MANY(average_many, TUTTI_AVERAGE)

static void ON(scale)(char *acc, size_t count, unsigned n)
{
	const struct ON(work) w = { .to = acc };
	const bool stream = false;

	LOOP(0, count, step_scale, n);
}
#endif

#ifdef CLEAN_NAN
static void ON(blend)(char *to, double by_a, const char *a, double by_b, const char *b, size_t first, size_t count,
                      bool stream)
{
	const struct ON(work) w = { .to = to, .a = a, .b = b };

	LOOP(first, count, step_blend, (NUMBER)by_a, (NUMBER)by_b);
}

#include "kernel/updater_loops.h"
#include "kernel/elastic_loops.h"
#endif

#undef TYPE
#undef ELEMENT
#undef NUMBER
#undef VEC
#undef MASK
#undef ROOT
#undef CLEAN_NAN
#undef WIDEN
#undef WIDEN_ONE
#undef NARROW
#undef NARROWED
#undef ALTERNATES
#undef SIZE
#undef PARTS
#undef LANES
#undef LOOP
#undef PAIR
#undef MANY
#undef BOTH
#undef ORDER
#undef RULES
#undef BYTES
