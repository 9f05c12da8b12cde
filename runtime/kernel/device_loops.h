/* device_loops.h - a GPU's loops over elements of one TYPE, at any address
 *
 *   ELEMENT NUMBER       the type in memory, and in computations
 *   VEC MASK CLEAN_NAN   floating point: for rules.h
 *   WIDEN NARROW         if an ELEMENT has half the size of a NUMBER: a word of two elements, and two numbers
 *
 * The end of this file undefines all of them. */
#include "kernel/rules.h"
#define SIZE sizeof(ELEMENT)
#define LANES (PACK / SIZE)

/* How a stream is read and written: by packs; by elements; byte by byte, where an element does not lie at a multiple of
 * its size. A GPU takes no other addresses. `how` is the number of elements of one access. */
enum ON(way) { ON(BY_BYTE) = 0, ON(BY_ELEMENT) = 1, ON(BY_PACK) = LANES };

INLINE void ON(get_pack)(NUMBER *v, const char *at)
{
	struct pack p = load_pack(at);

#ifdef WIDEN
	UNROLL for (unsigned k = 0; k < LANES; k += 2)
		WIDEN(v + k, p.word[k / 2]);
#else
	__builtin_memcpy(v, &p, sizeof p);
#endif
}

INLINE void ON(get_one)(NUMBER *v, const char *at, int how)
{
	ELEMENT x;

	if (how == ON(BY_ELEMENT)) {
		ALIGNED(at, SIZE);
		x = *(const ELEMENT *)(const void *)at;
	} else {
		for (unsigned i = 0; i < SIZE; i++)
			((char *)&x)[i] = at[i];
	}
#ifdef WIDEN
	NUMBER both[2];
	WIDEN(both, x);
	*v = both[0];
#else
	*v = x;
#endif
}

INLINE void ON(put_pack)(char *to, const NUMBER *v)
{
	struct pack p;

#ifdef NARROW
	UNROLL for (unsigned k = 0; k < LANES; k += 2)
		p.word[k / 2] = NARROW(v + k);
#else
	__builtin_memcpy(&p, v, sizeof p);
#endif
	store_pack(to, p);
}

INLINE void ON(put_one)(char *to, NUMBER v, int how)
{
#ifdef NARROW
	const NUMBER both[2] = { v, 0 };
	ELEMENT x = (ELEMENT)NARROW(both);
#else
	ELEMENT x = v;
#endif

	if (how == ON(BY_ELEMENT)) {
		ALIGNED(to, SIZE);
		*(ELEMENT *)(void *)to = x;
	} else {
		for (unsigned i = 0; i < SIZE; i++)
			to[i] = ((const char *)&x)[i];
	}
}

INLINE void ON(get)(NUMBER *v, const char *at, int how)
{
	if (how == ON(BY_PACK))
		ON(get_pack)(v, at);
	else
		ON(get_one)(v, at, how);
}

INLINE void ON(put)(char *to, const NUMBER *v, int how)
{
	if (how == ON(BY_PACK))
		ON(put_pack)(to, v);
	else
		ON(put_one)(to, *v, how);
}

struct ON(work) {
	char *to;
	const char *a, *b;
	int blend; /* a constant. 0: a is scaled, and b is a */
	NUMBER by_a, by_b;
	uint64_t n;
};

INLINE NUMBER ON(compute)(const struct ON(work) *w, NUMBER a, const NUMBER *b)
{
#ifdef CLEAN_NAN
	if (w->blend)
		return ON(blend_numbers)(w->by_a, a, w->by_b, *b);
#else
	(void)b;
#endif
	return ON(divide_number)(a, (unsigned)w->n);
}

INLINE void ON(compute_all)(const struct ON(work) *w, NUMBER *a, const NUMBER *b, int how)
{
	if (how == ON(BY_PACK))
		UNROLL for (unsigned k = 0; k < LANES; k++)
			a[k] = ON(compute)(w, a[k], b + k);
	else
		a[0] = ON(compute)(w, a[0], b);
}

/* Does `flight` accesses that lie `apart` accesses from each other. It reads everything before it writes, since an
 * output may be an input. */
INLINE void ON(step)(const struct ON(work) *w, uint64_t access, uint64_t apart, int flight, int how)
{
	const uint64_t bytes = how == ON(BY_PACK) ? PACK : SIZE, first = access * bytes, stride = apart * bytes;
	NUMBER a[SINGLES][LANES], b[SINGLES][LANES];

	UNROLL for (int u = 0; u < flight; u++) {
		ON(get)(a[u], w->a + first + u * stride, how);
		if (w->blend)
			ON(get)(b[u], w->b + first + u * stride, how);
	}
	UNROLL for (int u = 0; u < flight; u++) {
		ON(compute_all)(w, a[u], b[u], how);
		ON(put)(w->to + first + u * stride, a[u], how);
	}
}

/* A block does a tile of `flight` accesses a thread, then goes on behind the tiles of the other blocks. */
INLINE void ON(run)(const struct ON(work) *w, uint64_t accesses, int flight, int how)
{
	const uint64_t apart = block_threads(), tile = apart * flight;

	for (uint64_t base = block() * tile; base < accesses; base += blocks() * tile) {
		uint64_t i = base + thread_in_block();

		if (base + tile <= accesses)
			ON(step)(w, i, apart, flight, how);
		else
			for (; i < accesses; i += apart)
				ON(step)(w, i, apart, 1, how);
	}
}

INLINE void ON(run_part)(struct ON(work) w, uint64_t first, uint64_t accesses, int flight, int how)
{
	w.to += first * SIZE;
	w.a += first * SIZE;
	w.b += first * SIZE;
	ON(run)(&w, accesses, flight, how);
}

/* Head up to a pack's boundary, packs, tail; where the streams have no boundary in common, elements. */
INLINE void ON(run_all)(const struct ON(work) w, uint64_t count)
{
	const uint64_t to = (uint64_t)w.to, a = (uint64_t)w.a, b = (uint64_t)w.b;
	const uint64_t differ = (to ^ a) | (to ^ b), lead = -to % PACK / SIZE;

	if ((to | a | b) % SIZE) {
		ON(run_part)(w, 0, count, 1, ON(BY_BYTE));
	} else if (differ % PACK || lead >= count) {
		ON(run_part)(w, 0, count, SINGLES, ON(BY_ELEMENT));
	} else {
		const uint64_t packs = (count - lead) / LANES, tail = lead + packs * LANES;

		ON(run_part)(w, 0, lead, 1, ON(BY_ELEMENT));
		ON(run_part)(w, lead, packs, FLIGHT, ON(BY_PACK));
		ON(run_part)(w, tail, count - tail, 1, ON(BY_ELEMENT));
	}
}

#ifdef CLEAN_NAN
KERNEL ON(blend)(char *to, const char *a, const char *b, double by_a, double by_b, uint64_t count, uint64_t n)
{
	const struct ON(work) w = { to, a, b, 1, (NUMBER)by_a, (NUMBER)by_b, n };

	ON(run_all)(w, count);
}
#endif

KERNEL ON(scale)(char *to, const char *a, const char *b, double by_a, double by_b, uint64_t count, uint64_t n)
{
	const struct ON(work) w = { to, to, to, 0, 0, 0, n };

	(void)a, (void)b, (void)by_a, (void)by_b;
	ON(run_all)(w, count);
}

#undef TYPE
#undef ELEMENT
#undef NUMBER
#undef VEC
#undef MASK
#undef CLEAN_NAN
#undef WIDEN
#undef NARROW
#undef SIZE
#undef LANES
