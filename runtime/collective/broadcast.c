/* broadcast.c - broadcast: a binomial tree
 *
 * Small ones go by message, large ones in chunks, put straight into the children's buffers as they arrive. A child says READY
 * with the key of its buffer when it has come so far; START comes the other way, and brings nothing but the print: else ranks
 * that disagree about the size or the root would wait for each other. A root need not wait for small ones to arrive; now and
 * then it does, so that it gets only so far ahead.
 */
#include "collective/collective_private.h"
#include "member/member.h"
#include <string.h>

enum {
	EAGER = 4096,                  /* bytes: so many go on their way at once also where the ranks share a host; of more all read the root's */
	CHUNK = 256 * 1024,
	ACK_EVERY = 64,                /* small broadcasts after which the root waits for the others */
	TAG_ACK = 1, TAG_START = 2,
};

struct broadcast {
	struct tt_blockwise either;
	char *buf;
	size_t bytes;
	int me, parent, children;   /* counted from the root */
	struct tt_region *region;   /* my buffer, open to my parent */
	bool ready_sent;            /* large, and these two */
	bool start_sent, start_seen;
	bool passed_on;             /* small */
	int acked;                  /* small: children that have it, one after another */
	struct child {
		int rank;
		bool ready;
		struct tt_key key;
		size_t chunks;          /* put so far */
	} child[];
};

static void find_family(struct broadcast *b, int root)
{
	int n = b->either.coll.n, low;

	b->me = (b->either.coll.me - root + n) % n;
	for (low = 1; low < n && !(b->me & low); low <<= 1)
		;
	b->parent = b->me ? (b->me - low + root) % n : -1;
	for (low >>= 1; low; low >>= 1) /* the largest subtree first */
		if (b->me + low < n)
			b->child[b->children++].rank = (b->me + low + root) % n;
}

static size_t most_children(int n)
{
	size_t most = 0;

	while ((n - 1) >> most)
		most++;
	return most;
}

static bool pass_on(struct broadcast *b)
{
	const void *bytes;

	if (b->parent >= 0) {
		if (!(bytes = tt_coll_take(&b->either.coll, b->parent, 0, b->bytes)))
			return false;
		if (b->bytes)
			memcpy(b->buf, bytes, b->bytes);
	}
	for (int i = 0; i < b->children; i++)
		tt_coll_send(&b->either.coll, b->child[i].rank, 0, b->buf, b->bytes);
	return true;
}

static int advance_small(struct broadcast *b)
{
	bool acks = b->either.coll.seq % ACK_EVERY == 0;

	if (!b->passed_on && !pass_on(b))
		return 0;
	if (!b->passed_on && acks && b->parent >= 0)
		tt_coll_send(&b->either.coll, b->parent, TAG_ACK, NULL, 0);
	b->passed_on = true;
	for (; acks && b->acked < b->children; b->acked++)
		if (!tt_coll_take(&b->either.coll, b->child[b->acked].rank, TAG_ACK, 0))
			return 0;
	return 1;
}

static int open_to_parent(struct broadcast *b)
{
	uint8_t key[TT_KEY_SIZE];
	int err;

	if (b->parent < 0 || b->ready_sent)
		return 0;
	if ((err = tt_coll_open(&b->either.coll, b->parent, b->buf, b->bytes, &b->region)))
		return err < 0 ? err : 0;
	struct tt_pack p = tt_pack(key, sizeof key);
	tt_put_key(&p, &b->region->key);
	tt_coll_send(&b->either.coll, b->parent, TT_TAG_READY, key, sizeof key);
	b->ready_sent = true;
	return 0;
}

static int feed(struct broadcast *b, struct child *child, size_t have)
{
	const void *key;
	int err = 0;

	if (!child->ready && (key = tt_coll_take(&b->either.coll, child->rank, TT_TAG_READY, TT_KEY_SIZE))) {
		struct tt_pack p = tt_unpack(key, TT_KEY_SIZE);
		tt_get_key(&p, &child->key);
		child->ready = true;
	}
	for (; !err && child->ready && child->chunks < have; child->chunks++) {
		size_t at = child->chunks * CHUNK;
		size_t len = tt_min(CHUNK, b->bytes - at);
		err = tt_coll_put(&b->either.coll, child->rank, &child->key, at, b->buf + at, len, TT_LANE_DATA, at + len == b->bytes);
	}
	return err;
}

static void exchange_start(struct broadcast *b)
{
	for (int i = 0; !b->start_sent && i < b->children; i++)
		tt_coll_send(&b->either.coll, b->child[i].rank, TAG_START, NULL, 0);
	b->start_sent = true;
	if (!b->start_seen)
		b->start_seen = b->parent < 0 || tt_coll_take(&b->either.coll, b->parent, TAG_START, 0);
}

static int advance_large(struct broadcast *b)
{
	size_t all = (b->bytes + CHUNK - 1) / CHUNK, have = b->parent < 0 ? all : tt_min(all, b->either.coll.notified[TT_LANE_DATA]);
	int err = open_to_parent(b);

	exchange_start(b);
	bool done = have == all && b->start_seen;

	for (int i = 0; !err && i < b->children; i++) {
		err = feed(b, &b->child[i], have);
		done = done && b->child[i].chunks == all;
	}
	return err ? err : done;
}

static int advance_broadcast(struct tt_coll *c)
{
	struct broadcast *b = (struct broadcast *)c;

	return b->bytes <= tt_coll_piece(c->job) ? advance_small(b) : advance_large(b);
}

static void release_broadcast(struct tt_coll *c)
{
	struct broadcast *b = (struct broadcast *)c;

	if (b->region)
		b->region->net->transport->dereg(b->region);
}

int tutti_broadcast(tutti *group, void *buf, size_t bytes, int root, tutti_op *op)
{
	if (root < 0 || root >= group->n)
		return tt_fail(-EINVAL, "broadcast: root %d must be from 0 to %d", root, group->n - 1);
	if (!buf && bytes)
		return tt_fail(-EINVAL, "broadcast: %zu bytes at NULL", bytes);
	struct tt_blocks blocks = { .vector = buf, .bytes = bytes, .first = root, .owners = 1 };
	struct broadcast *b = (struct broadcast *)tt_blockwise_new(group, sizeof *b + most_children(group->n) * sizeof b->child[0], TUTTI_STAT_BROADCAST,
	                                                           bytes, (uint64_t)root, &blocks, bytes > EAGER);
	if (!b)
		return -ENOMEM;
	b->buf = buf;
	b->bytes = bytes;
	b->either.coll.bytes = bytes;
	b->either.stage = TT_BLOCKS_GATHER;
	b->either.advance = advance_broadcast;
	b->either.release = release_broadcast;
	find_family(b, root);
	b->either.coll.notifier[TT_LANE_DATA] = b->parent;
	return tt_coll_run(&b->either.coll, op);
}
