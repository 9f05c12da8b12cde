/* shards.c - how elements are divided among servers
 *
 *   count 10, unit 1, 4 servers      even  |0 1 2|3 4 5|6 7|8 9|      Multiverso  |0 1|2 3|4 5|6 7 8 9|
 *
 * Both follow one formula: shard s begins at unit s * each + min(s, more). The last shard ends at `count`. */
#include "table/parts.h"

static struct tt_divisor divisor(uint64_t by) { return (struct tt_divisor){ by, UINT64_MAX / by }; }

static inline uint64_t divide(uint64_t x, const struct tt_divisor *d)
{
	uint64_t q = (uint64_t)((unsigned __int128)x * d->inverse >> 64); /* the quotient, or one less */

	return q + (x - q * d->by >= d->by);
}

static inline uint64_t remainder_of(uint64_t x, const struct tt_divisor *d) { return x - divide(x, d) * d->by; }

static uint64_t units_of(uint64_t count, uint64_t unit) { return count / unit + (count % unit != 0); }

int tt_shards_cut(struct tt_shards *s, uint64_t count, int servers, uint64_t align, enum tt_cut cut)
{
	uint64_t units, used;

	if (!count || !align || servers < 1)
		return tt_fail(-EINVAL, "there are %llu elements, aligned to %llu, on %d servers: none may be below "
		               "1", (unsigned long long)count, (unsigned long long)align, servers);
	if (cut == TT_CUT_MULTIVERSO || units_of(count, align) < (uint64_t)servers)
		align = 1;
	units = units_of(count, align);
	used = tt_min(units, (uint64_t)servers);
	*s = (struct tt_shards){ .count = count, .unit = align, .each = units / used, .used = (int)used };
	s->more = cut == TT_CUT_MULTIVERSO ? 0 : units % used;
	s->by_unit = divisor(align);
	s->by_each = divisor(s->each);
	s->by_larger = divisor(s->each + (s->more > 0)); /* `each` may be the largest number */
	return 0;
}

uint64_t tt_shards_first(const struct tt_shards *s, int server)
{
	uint64_t k = (uint64_t)server;

	return server >= s->used ? s->count : s->unit * (k * s->each + tt_min(k, s->more));
}

void tt_shards_find(const struct tt_shards *given, const uint64_t *at, size_t n, uint32_t *server)
{
	const struct tt_shards s = *given; /* nothing that is written below is part of it */
	const uint64_t larger = s.more * (s.each + 1), last = (uint64_t)s.used - 1;

	for (size_t i = 0; i < n; i++) {
		uint64_t u = divide(at[i], &s.by_unit);
		uint64_t k = u < larger ? divide(u, &s.by_larger) : s.more + divide(u - larger, &s.by_each);
		server[i] = (uint32_t)tt_min(k, last);
	}
}

void tt_shards_of_keys(const uint64_t *keys, size_t n, int servers, uint32_t *server)
{
	const struct tt_divisor by = divisor((uint64_t)servers);

	for (size_t i = 0; i < n; i++)
		server[i] = (uint32_t)remainder_of(keys[i], &by);
}

bool tt_shards_have_keys(const uint64_t *keys, size_t n, int servers, int server)
{
	const struct tt_divisor by = divisor((uint64_t)servers);
	bool all = true;

	for (size_t i = 0; i < n; i++)
		all &= remainder_of(keys[i], &by) == (uint64_t)server;
	return all;
}
