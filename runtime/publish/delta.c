/* delta.c - what changed between two versions of a model, as bytes
 *
 *      bytes of each tensor's changes, 8 each | changes of tensor 0 | changes of tensor 1 | ...
 *
 *      change:  gap | the element's new bytes        gap: how many elements since the last change are the same
 *      gap:     0 to 191                             the gap
 *               192 to 247, b                        192 + 256 * (first byte - 192) + b
 *               248 to 255, 1 to 8 bytes             these bytes, the lowest first
 *
 * With 1 % of the elements changed at random, a gap takes 1.15 bytes, and has an entropy of 1.01 bytes. */
#include "publish/delta.h"
#include <endian.h>

enum {
	BLOCK = 64,                 /* bytes that are compared at once */
	PIECE = 64 << 10,           /* bytes that are compared, then summed while they are in the cache */
	AHEAD = 2 << 10,            /* bytes to prefetch: the processor alone prefetches too little */
	ONE = 192, TWO = 248,       /* first bytes below have no byte behind them; one byte */
	SAMPLE = 512,               /* bytes that are compared of each ... */
	SAMPLES_MIN = 16, SAMPLES_MAX = 64, /* ... of so many parts, to guess how much has changed */
	PART = 256,                 /* of fewer, where the samples would be more than one byte of so many */
};

static uint64_t word_at(const void *p)
{
	uint64_t w;

	memcpy(&w, p, sizeof w);
	return le64toh(w);
}

/* ---- writing ---- */

struct changes {
	uint8_t *at, *end;
	size_t next;                /* the element behind the last change */
};

static inline uint8_t *put_gap(uint8_t *to, size_t gap)
{
	if (gap < ONE) {
		*to++ = (uint8_t)gap;
	} else if (gap < ONE + 256 * (TWO - ONE)) {
		*to++ = (uint8_t)(ONE + (gap - ONE) / 256);
		*to++ = (uint8_t)((gap - ONE) % 256);
	} else {
		uint8_t *first = to++;
		for (; gap; gap >>= 8)
			*to++ = (uint8_t)gap;
		*first = (uint8_t)(TWO + (to - first) - 2);
	}
	return to;
}

/* size: of an element; a constant where this is inlined. index: the first element's */
static inline __attribute__((always_inline)) void write_word(struct changes *c, const char *old, const char *now,
                                                             size_t index, size_t size)
{
	const uint64_t element = size == 8 ? UINT64_MAX : (UINT64_C(1) << 8 * size % 64) - 1;

	for (uint64_t x = word_at(old) ^ word_at(now); x;) {
		size_t lane = (size_t)__builtin_ctzll(x) / 8 / size;
		c->at = put_gap(c->at, index + lane - c->next);
		memcpy(c->at, now + lane * size, size);
		c->at += size;
		c->next = index + lane + 1;
		x &= ~(element << 8 * size * lane);
	}
}

static bool differs(const char *old, const char *now)
{
	uint64_t x = 0;

	for (int i = 0; i < BLOCK; i += 8)
		x |= word_at(old + i) ^ word_at(now + i);
	return x;
}

/* A bit for each word of a block that differs: without branches, which would be guessed wrong. */
static unsigned words_that_differ(const char *old, const char *now)
{
	unsigned words = 0;

	for (int i = 0; i < BLOCK / 8; i++)
		words |= (unsigned)(word_at(old + 8 * i) != word_at(now + 8 * i)) << i;
	return words;
}

/* The address may lie behind the tensor: a prefetch of such memory does nothing. */
static inline void prefetch(const char *from, size_t at)
{
	__builtin_prefetch((const void *)((uintptr_t)from + at));
}

/* Returns false if there is no room. A block's changes fit into TT_DELTA_SLACK. */
static inline __attribute__((always_inline)) bool write_blocks(struct changes *c, const char *old, const char *now,
                                                               size_t index, size_t bytes, size_t size)
{
	for (size_t at = 0; at < bytes; at += BLOCK) {
		prefetch(old, at + AHEAD);
		prefetch(now, at + AHEAD);
		if (!differs(old + at, now + at))
			continue;
		for (unsigned words = words_that_differ(old + at, now + at); words; words &= words - 1) {
			size_t i = at + 8 * (size_t)__builtin_ctz(words);
			write_word(c, old + i, now + i, index + i / size, size);
		}
		if (c->at > c->end)
			return false;
	}
	return true;
}

static bool write_some(struct changes *c, const char *old, const char *now, size_t index, size_t bytes, size_t size)
{
	switch (size) {
	case 1: return write_blocks(c, old, now, index, bytes, 1);
	case 2: return write_blocks(c, old, now, index, bytes, 2);
	case 4: return write_blocks(c, old, now, index, bytes, 4);
	default: return write_blocks(c, old, now, index, bytes, 8);
	}
}

/* The bytes behind the last whole block are compared as a block that ends with zeros. */
static bool write_piece(struct changes *c, const char *old, const char *now, size_t index, size_t bytes, size_t size)
{
	size_t blocks = bytes / BLOCK * BLOCK, rest = bytes - blocks;
	char a[BLOCK] = { 0 }, b[BLOCK] = { 0 };

	if (!write_some(c, old, now, index, blocks, size))
		return false;
	memcpy(a, old + blocks, rest);
	memcpy(b, now + blocks, rest);
	return write_some(c, a, b, index + blocks / size, rest ? BLOCK : 0, size);
}

static bool write_tensor(struct changes *c, const char *old, const char *now, size_t bytes, size_t size,
                         struct tt_sum *sum)
{
	c->next = 0;
	for (size_t at = 0, n; at < bytes; at += n) {
		n = tt_min(bytes - at, PIECE);
		if (!write_piece(c, old + at, now + at, at / size, n, size))
			return false;
		tt_sum_add(sum, now + at, n);
	}
	return true;
}

static size_t bytes_of(const tutti_tensor *t) { return t->count * tt_type_size(t->type); }

/* Guesses the delta's bytes: parts of both buffers are compared, each pair of bytes as an element. */
static size_t guess(const struct tt_model *m, const char *old, const char *now)
{
	size_t parts = tt_min(tt_max(m->bytes / SAMPLE / PART, SAMPLES_MIN), SAMPLES_MAX), changed = 0, seen = 0;
	uint16_t a, b;

	for (size_t i = 0; i < parts; i++) {
		size_t at = m->bytes / parts * i / BLOCK * BLOCK, end = tt_min(at + SAMPLE, m->bytes);
		for (seen += end - at; at < end; at += sizeof a) {
			memcpy(&a, old + at, sizeof a);
			memcpy(&b, now + at, sizeof b);
			changed += a != b;
		}
	}
	return seen ? (size_t)((double)changed * 3 / (double)seen * (double)m->bytes) : 0;
}

int tt_delta_write(const struct tt_model *m, const char *old, const char *now, uint8_t *to, size_t room,
                   struct tt_delta *delta)
{
	struct changes c = { .at = to + 8 * (size_t)m->n, .end = to + room };
	struct tt_sum sum;

	if (room < 8 * (size_t)m->n || guess(m, old, now) / 3 * 2 > room)
		return -ENOSPC;
	tt_sum_begin(&sum);
	for (int i = 0; i < m->n; i++) {
		const uint8_t *first = c.at;
		size_t at = m->at[i];
		if (!write_tensor(&c, old + at, now + at, bytes_of(&m->tensors[i]), tt_type_size(m->tensors[i].type),
		                  &sum))
			return -ENOSPC;
		uint64_t len = htole64((uint64_t)(c.at - first));
		memcpy(to + 8 * (size_t)i, &len, sizeof len);
	}
	*delta = (struct tt_delta){ .bytes = (size_t)(c.at - to), .sum = tt_sum_end(&sum) };
	return 0;
}

/* ---- applying ---- */

static inline bool take_gap(const uint8_t **from, const uint8_t *end, size_t *gap)
{
	const uint8_t *p = *from;
	size_t first = *p++, more = first < ONE ? 0 : first < TWO ? 1 : first - TWO + 1;

	if ((size_t)(end - p) < more)
		return false;
	*gap = first < ONE ? first : first < TWO ? ONE + 256 * (first - ONE) + p[0] : 0;
	for (size_t i = 0; first >= TWO && i < more; i++)
		*gap |= (size_t)p[i] << 8 * i;
	*from = p + more;
	return true;
}

static inline __attribute__((always_inline)) bool apply_changes(const uint8_t *p, const uint8_t *end, char *to,
                                                                size_t count, size_t size)
{
	for (size_t next = 0, gap; p < end; next++, p += size) {
		if (!take_gap(&p, end, &gap) || gap >= count - next || (size_t)(end - p) < size)
			return false;
		next += gap;
		memcpy(to + next * size, p, size);
	}
	return true;
}

static bool apply_tensor(const uint8_t *from, size_t bytes, const tutti_tensor *t)
{
	switch (tt_type_size(t->type)) {
	case 1: return apply_changes(from, from + bytes, t->data, t->count, 1);
	case 2: return apply_changes(from, from + bytes, t->data, t->count, 2);
	case 4: return apply_changes(from, from + bytes, t->data, t->count, 4);
	default: return apply_changes(from, from + bytes, t->data, t->count, 8);
	}
}

bool tt_delta_apply(const uint8_t *from, size_t bytes, const tutti_tensor *to, int n)
{
	size_t at = 8 * (size_t)n;

	if (bytes < at)
		return false;
	for (int i = 0; i < n; i++) {
		uint64_t len = word_at(from + 8 * (size_t)i);
		if (len > bytes - at || !apply_tensor(from + at, len, &to[i]))
			return false;
		at += len;
	}
	return at == bytes;
}

uint64_t tt_delta_sum(const tutti_tensor *list, int n)
{
	struct tt_sum sum;

	tt_sum_begin(&sum);
	for (int i = 0; i < n; i++)
		if (list[i].count)
			tt_sum_add(&sum, list[i].data, bytes_of(&list[i]));
	return tt_sum_end(&sum);
}
