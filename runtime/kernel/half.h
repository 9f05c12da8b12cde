/* half.h - the 16-bit formats, which are computed in f32: a word of two elements makes two numbers, even then odd
 *
 * The processor's kernels (reduce_kernels.h) and a GPU's (kernels.cu) include this text. For the processor vf32 and
 * vu32 are vectors of numbers and of words; for a GPU each is one. Narrowing accepts no NaN but the clean one.
 * Instructions for f16, where there are some, do the same; a GPU's has another NaN, which kernels.cu replaces.
 *
 *   AS(type, x)          the same bits as another type
 *   ALL(type, x)         x in all lanes
 *   PICK(mask, a, b)     lanes of a where the mask is ones, else of b */

INLINE void bf16_to_f32(vf32 *v, vu32 word)
{
	v[0] = AS(vf32, word << 16);
	v[1] = AS(vf32, word & 0xffff0000);
}

INLINE vu32 round_bf16(vf32 v) { return AS(vu32, v) + 0x7fff + (AS(vu32, v) >> 16 & 1); }

INLINE vu32 f32_to_bf16(const vf32 *v) { return round_bf16(v[0]) >> 16 | (round_bf16(v[1]) & 0xffff0000); }

/* Computes all cases and picks one. */
INLINE vf32 widen_half(vu32 h)
{
	vu32 sign = (h & 0x8000) << 16, size = (h & 0x7fff) << 13;
	vu32 normal = size + (112u << 23), special = size + (224u << 23);
	/* A subnormal is its fraction times 2^-24: put it behind a leading one, then subtract the one. */
	vu32 small = AS(vu32, AS(vf32, size + (113u << 23)) - 0x1p-14f);

	h = PICK(AS(vi32, size) >= 31 << 23, special, normal);
	return AS(vf32, PICK(AS(vi32, size) < 1 << 23, small, h) | sign);
}

INLINE vu32 narrow_half(vf32 v)
{
	vu32 u = AS(vu32, v), sign = u >> 16 & 0x8000, size = u & 0x7fffffff;
	vu32 normal = (size - (112u << 23) + 0xfff + (size >> 13 & 1)) >> 13;
	/* In the sum with 1/2 the last bit is worth 2^-24, so the addition rounds to a subnormal. */
	vu32 small = AS(vu32, AS(vf32, size) + 0.5f) - (126u << 23);
	vu32 h = PICK(AS(vi32, size) < 113 << 23, small, normal);

	h = PICK(AS(vi32, size) >= 143 << 23, ALL(vu32, 0x7c00), h);
	return PICK(AS(vi32, size) > 0x7f800000, ALL(vu32, 0x7e00), h | sign);
}

INLINE void f16_to_f32(vf32 *v, vu32 word)
{
	v[0] = widen_half(word & 0xffff);
	v[1] = widen_half(word >> 16);
}

INLINE vu32 f32_to_f16(const vf32 *v) { return narrow_half(v[0]) | narrow_half(v[1]) << 16; }
