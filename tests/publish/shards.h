/* shards.h - a model in SHARDS parts, a publisher each: what the tests of shards publish, and how they look at it */
#ifndef TT_TEST_SHARDS_H
#define TT_TEST_SHARDS_H
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <tutti.h>

enum { SHARDS = 3, LONG = 5000, SHORT = 3, TENSORS_OF_SHARD = 2 };

static int long_count = LONG; /* so many elements of `a` are used: few where there are many seeds */

/* All elements of a version have its number. */
struct part {
	float a[LONG];
	int64_t b[SHORT];
};

static inline void fill_part(struct part *p, uint64_t version)
{
	for (int i = 0; i < long_count; i++)
		p->a[i] = (float)version;
	for (int i = 0; i < SHORT; i++)
		p->b[i] = (int64_t)version;
}

static inline bool is_part(const struct part *p, uint64_t version)
{
	bool good = true;

	for (int i = 0; i < long_count; i++)
		good &= p->a[i] == (float)version;
	for (int i = 0; i < SHORT; i++)
		good &= p->b[i] == (int64_t)version;
	return good;
}

static inline bool is_model(const struct part p[SHARDS], uint64_t version)
{
	return is_part(&p[0], version) && is_part(&p[1], version) && is_part(&p[2], version);
}

static inline void list_model(struct part p[SHARDS], tutti_tensor to[SHARDS * TENSORS_OF_SHARD])
{
	for (int k = 0; k < SHARDS; k++) {
		to[2 * k] = (tutti_tensor){ p[k].a, (size_t)long_count, TUTTI_F32 };
		to[2 * k + 1] = (tutti_tensor){ p[k].b, SHORT, TUTTI_I64 };
	}
}

/* c: buffers, generation, shard, shard_0 and how long it waits. */
static inline int open_part(tutti *at, struct part *p, tutti_publisher_config c, tutti_publisher **out)
{
	char name[TENSORS_OF_SHARD][32];
	tutti_weight list[TENSORS_OF_SHARD] = {
		{ .name = name[0], .type = TUTTI_F32, .dims = 1, .shape = { (uint64_t)long_count }, .data = p->a },
		{ .name = name[1], .type = TUTTI_I64, .dims = 1, .shape = { SHORT }, .data = p->b },
	};

	snprintf(name[0], sizeof name[0], "layer%d.weight", c.shard);
	snprintf(name[1], sizeof name[1], "layer%d.steps", c.shard);
	c.shards = SHARDS;
	return tutti_publisher_open(at, "policy", list, TENSORS_OF_SHARD, &c, out);
}

static inline bool is_gone(int err) { return err == -ECONNRESET || err == -ENOTCONN; }
#endif
