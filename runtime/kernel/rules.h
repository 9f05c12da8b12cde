/* rules.h - the equations of one TYPE that the processor's loops and a GPU's kernels share, so that both have the same
 * bits. VEC is a vector of NUMBERs on the processor, and one NUMBER on a GPU. half.h explains AS, ALL and PICK. */

#ifdef CLEAN_NAN
/* A NaN result is always the one positive quiet NaN without payload. */
INLINE VEC ON(clean)(VEC v) { return PICK(v == v, v, AS(VEC, ALL(MASK, CLEAN_NAN))); }

INLINE VEC ON(divide_number)(VEC v, unsigned n) { return ON(clean)(v / (NUMBER)n); }

INLINE VEC ON(blend_numbers)(NUMBER by_a, VEC a, NUMBER by_b, VEC b) { return ON(clean)(by_a * a + by_b * b); }
#else
INLINE NUMBER ON(divide_number)(NUMBER x, unsigned n) { return (NUMBER)(x / (int64_t)n); } /* towards zero */
#endif
