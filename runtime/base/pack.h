/* pack.h - a bounds-checked little-endian cursor for wire formats
 * Past the end, puts write nothing and gets return zeros. Both set `bad`, so callers check once, at the end. */
#ifndef TT_PACK_H
#define TT_PACK_H
#include <endian.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

struct tt_pack {
	uint8_t *at, *end;
	bool bad;
};

static inline struct tt_pack tt_pack(void *base, size_t len)
{
	return (struct tt_pack){ base, len ? (uint8_t *)base + len : base, false };
}

static inline struct tt_pack tt_unpack(const void *base, size_t len)
{
	return tt_pack((void *)(uintptr_t)base, len);
}

static inline size_t tt_pack_left(const struct tt_pack *p) { return (size_t)(p->end - p->at); }

static inline uint8_t *tt_pack_take(struct tt_pack *p, size_t n) /* the next n bytes; NULL: too few, and bad */
{
	uint8_t *at = p->at;

	if (p->bad || tt_pack_left(p) < n) {
		p->bad = true;
		return NULL;
	}
	p->at += n;
	return at;
}

/* n is a constant, so each is one store or load: compilers make loops of eight steps of bytes. */
static inline void tt_put_uint(struct tt_pack *p, uint64_t v, size_t n)
{
	uint8_t *at = tt_pack_take(p, n);

	v = htole64(v);
	if (at)
		memcpy(at, &v, n);
}

static inline uint64_t tt_get_uint(struct tt_pack *p, size_t n)
{
	const uint8_t *at = tt_pack_take(p, n);
	uint64_t v = 0;

	if (at)
		memcpy(&v, at, n);
	return le64toh(v);
}

static inline void tt_put8(struct tt_pack *p, uint8_t v) { tt_put_uint(p, v, 1); }
static inline void tt_put16(struct tt_pack *p, uint16_t v) { tt_put_uint(p, v, 2); }
static inline void tt_put32(struct tt_pack *p, uint32_t v) { tt_put_uint(p, v, 4); }
static inline void tt_put64(struct tt_pack *p, uint64_t v) { tt_put_uint(p, v, 8); }
static inline uint8_t tt_get8(struct tt_pack *p) { return (uint8_t)tt_get_uint(p, 1); }
static inline uint16_t tt_get16(struct tt_pack *p) { return (uint16_t)tt_get_uint(p, 2); }
static inline uint32_t tt_get32(struct tt_pack *p) { return (uint32_t)tt_get_uint(p, 4); }
static inline uint64_t tt_get64(struct tt_pack *p) { return tt_get_uint(p, 8); }

static inline void tt_put_bytes(struct tt_pack *p, const void *from, size_t n)
{
	uint8_t *at = tt_pack_take(p, n);

	if (at && n)
		memcpy(at, from, n);
}

static inline void tt_get_bytes(struct tt_pack *p, void *to, size_t n)
{
	const uint8_t *at = tt_pack_take(p, n);

	if (at && n)
		memcpy(to, at, n);
	else if (n)
		memset(to, 0, n);
}

/* A text: one byte of length, then the bytes without the zero. Longer than 255 is bad. */
static inline void tt_put_text(struct tt_pack *p, const char *s)
{
	size_t n = strlen(s);

	if (n > 255)
		p->bad = true;
	tt_put8(p, (uint8_t)n);
	tt_put_bytes(p, s, n);
}

static inline void tt_get_text(struct tt_pack *p, char *s, size_t size) /* size: of s; too small is bad */
{
	size_t n = tt_get8(p);

	if (n >= size) {
		p->bad = true;
		n = 0;
	}
	tt_get_bytes(p, s, n);
	s[n] = 0;
}
#endif
