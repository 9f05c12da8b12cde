/* gather.c - gather of small values by Bruck's all-gather (Bruck et al. 1997)
 *
 * After round k a rank holds the values of 2^(k+1) ranks, from its own on. A few ranks that share a host use the
 * segment. Longer values go straight to the root (scatter.c), or to all ranks as an all-gather's (pairwise.c).
 */
#include "collective/collective_private.h"
#include "member/member.h"
#include <stdlib.h>
#include <string.h>

enum { SMALL = 4096 };              /* bytes: each rank holds the values of all */

struct gather {
	struct tt_blockwise either;
	char *held;                 /* values of me, me + 1, ... */
	char *all;
	size_t bytes;
	int have, round;
	uint32_t sent, got;         /* pieces in this round */
};

static uint32_t gather_tag(const struct gather *g, uint32_t piece) { return (uint32_t)g->round << 24 | piece; }

static int advance_gather(struct tt_coll *c)
{
	struct gather *g = (struct gather *)c;
	int n = c->n, me = c->me;
	size_t piece = TT_COLL_PIECE;

	for (; g->have < n; g->round++, g->sent = g->got = 0) {
		int more = g->have < n - g->have ? g->have : n - g->have, to = (me - g->have + n) % n;
		size_t total = (size_t)more * g->bytes, at;
		for (; (at = g->sent * piece) < total; g->sent++)
			tt_coll_send(c, to, gather_tag(g, g->sent), g->held + at, tt_min(piece, total - at));
		for (; (at = g->got * piece) < total; g->got++) {
			size_t len = tt_min(piece, total - at);
			const void *bytes = tt_coll_take(c, (me + g->have) % n, gather_tag(g, g->got), len);
			if (!bytes)
				return 0;
			memcpy(g->held + (size_t)g->have * g->bytes + at, bytes, len);
		}
		g->have += more;
	}
	for (int i = 0; g->all && i < n; i++)
		memcpy(g->all + (size_t)((me + i) % n) * g->bytes, g->held + (size_t)i * g->bytes, g->bytes);
	return 1;
}

static void release_gather(struct tt_coll *c) { free(((struct gather *)c)->held); }

static int gather_small(struct tutti *group, const void *value, size_t bytes, void *all, int root, tutti_op *op)
{
	bool mine = root == -1 || root == group->me;
	size_t total = (size_t)group->n * bytes;
	char *held = malloc(total);

	if (!held)
		return tt_fail(-ENOMEM, "gather: no memory for %d values of %zu bytes", group->n, bytes);
	struct tt_blocks blocks = { .vector = tt_vector_at(mine ? all : held), .bytes = total, .owners = group->n,
	                            .each = bytes };
	struct gather *g = (void *)tt_blockwise_new(group, sizeof *g, TUTTI_STAT_GATHER, bytes, (uint64_t)root, &blocks,
	                                            group->n <= TT_SEGMENT_FEW);
	if (!g) {
		free(held);
		return -ENOMEM;
	}
	memcpy(held, value, bytes);
	memmove(blocks.vector.out + (size_t)group->me * bytes, value, bytes); /* the value may be there already */
	g->held = held;
	g->have = 1;
	g->bytes = bytes;
	g->all = mine ? all : NULL;
	g->either.stage = TT_BLOCKS_GATHER;
	g->either.advance = advance_gather;
	g->either.release = release_gather;
	g->either.coll.bytes = bytes;
	return tt_coll_run(&g->either.coll, op);
}

int tutti_gather(tutti *group, const void *value, size_t bytes, void *all, int root, tutti_op *op)
{
	int err = tt_group_usable(group);

	if (err)
		return err;
	bool mine = root == -1 || root == group->me;
	if (root < -1 || root >= group->n)
		return tt_fail(-EINVAL, "gather: root %d must be from -1 to %d", root, group->n - 1);
	if (bytes < 1 || bytes > PTRDIFF_MAX / (size_t)group->n || !value || (mine && !all))
		return tt_fail(-EINVAL, "gather: bytes is %zu, for each of %d ranks: each gives 1 byte or more, all of "
		               "them fit into memory, and neither value nor all (on the root) may be NULL", bytes,
		               group->n);
	if ((err = tt_host_only("gather", "value", value, bytes)) ||
	    (mine && (err = tt_host_only("gather", "all", all, bytes * (size_t)group->n))))
		return err;
	if (bytes > SMALL && root == -1)
		return tt_gather_to_all(group, value, bytes, all, op);
	if (bytes > SMALL)
		return tt_gather_long(group, value, bytes, all, root, op);
	return gather_small(group, value, bytes, all, root, op);
}
