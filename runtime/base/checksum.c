/* checksum.c - XXH64 with the seed 0 (Yann Collet; xxhash's doc/xxhash_spec.md), for long data
 *
 *      32 bytes --> lane 0 | lane 1 | lane 2 | lane 3     each: rotate(lane + word * P2, 31) * P1, in parallel
 *      the end  --> the lanes are mixed, then the length and the remaining bytes, 8, 4 and 1 at a time */
#include "base/base.h"
#include <endian.h>

#define P1 0x9e3779b185ebca87u
#define P2 0xc2b2ae3d27d4eb4fu
#define P3 0x165667b19e3779f9u
#define P4 0x85ebca77c2b2ae63u
#define P5 0x27d4eb2f165667c5u

static uint64_t mix(uint64_t lane, uint64_t word) { return tt_rotate(lane + word * P2, 31) * P1; }

static inline uint64_t word_at(const uint8_t *p, size_t n) /* of 4 or 8 bytes */
{
	uint64_t w = 0;

	memcpy(&w, p, n);
	return le64toh(w);
}

void tt_sum_begin(struct tt_sum *s) { *s = (struct tt_sum){ .lane = { P1 + P2, P2, 0, 0 - P1 } }; }

static void add_stripes(struct tt_sum *s, const uint8_t *p, size_t n) /* of 32 bytes */
{
	uint64_t a = s->lane[0], b = s->lane[1], c = s->lane[2], d = s->lane[3];

	for (; n; n--, p += 32) {
		a = mix(a, word_at(p, 8));
		b = mix(b, word_at(p + 8, 8));
		c = mix(c, word_at(p + 16, 8));
		d = mix(d, word_at(p + 24, 8));
	}
	s->lane[0] = a, s->lane[1] = b, s->lane[2] = c, s->lane[3] = d;
}

void tt_sum_add(struct tt_sum *s, const void *bytes, size_t len)
{
	const uint8_t *p = bytes;
	size_t kept = s->len % 32;

	s->len += len;
	if (kept) {
		size_t n = tt_min(32 - kept, len);
		memcpy(s->rest + kept, p, n);
		p += n, len -= n;
		if (kept + n < 32)
			return;
		add_stripes(s, s->rest, 1);
	}
	add_stripes(s, p, len / 32);
	if (len % 32)
		memcpy(s->rest, p + len / 32 * 32, len % 32);
}

uint64_t tt_sum_end(const struct tt_sum *s)
{
	const uint8_t *p = s->rest, *end = p + s->len % 32;
	uint64_t h = P5;

	if (s->len >= 32) {
		h = tt_rotate(s->lane[0], 1) + tt_rotate(s->lane[1], 7);
		h += tt_rotate(s->lane[2], 12) + tt_rotate(s->lane[3], 18);
		for (int i = 0; i < 4; i++)
			h = (h ^ mix(0, s->lane[i])) * P1 + P4;
	}
	h += s->len;
	for (; end - p >= 8; p += 8)
		h = tt_rotate(h ^ mix(0, word_at(p, 8)), 27) * P1 + P4;
	for (; end - p >= 4; p += 4)
		h = tt_rotate(h ^ word_at(p, 4) * P1, 23) * P2 + P3;
	for (; p < end; p++)
		h = tt_rotate(h ^ *p * P5, 11) * P1;
	h = (h ^ h >> 33) * P2;
	h = (h ^ h >> 29) * P3;
	return h ^ h >> 32;
}

uint64_t tt_sum64(const void *bytes, size_t len)
{
	struct tt_sum s;

	tt_sum_begin(&s);
	tt_sum_add(&s, bytes, len);
	return tt_sum_end(&s);
}
