/* shards.c - how elements are divided among servers
 *
 *   count 10, unit 1, 4 servers      even  |0 1 2|3 4 5|6 7|8 9|      Multiverso  |0 1|2 3|4 5|6 7 8 9|
 *
 * Both follow one formula: shard s begins at unit s * each + min(s, more). The last shard ends at `count`. */
#include "table/parts.h"

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
	return 0;
}

uint64_t tt_shards_first(const struct tt_shards *s, int server)
{
	uint64_t k = (uint64_t)server;

	return server >= s->used ? s->count : s->unit * (k * s->each + tt_min(k, s->more));
}

int tt_shards_find(const struct tt_shards *s, uint64_t i, uint64_t *offset)
{
	uint64_t u = i / s->unit, larger = s->more * (s->each + 1);
	uint64_t k = u < larger ? u / (s->each + 1) : s->more + (u - larger) / s->each;
	int server = k < (uint64_t)s->used ? (int)k : s->used - 1;

	*offset = i - tt_shards_first(s, server);
	return server;
}
