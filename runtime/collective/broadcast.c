/* broadcast.c - broadcast along a binomial tree
 *
 * A short vector travels as one message. A longer one consists of transfers, one along each edge of the tree, which
 * forward chunks as they arrive. A root does not wait until short ones have arrived, except now and then, which
 * bounds how far the root gets ahead. Where all ranks share a host, long vectors are read from the root's memory.
 */
#include "collective/collective_private.h"
#include "member/member.h"
#include <string.h>

enum {
	EAGER = 4096,               /* bytes: vectors up to this length travel as messages on one host, too */
	ACK_EVERY = 64,             /* short broadcasts after which the root waits for the others */
	TAG_ACK = 1,
};

struct broadcast {
	struct tt_blockwise either;
	struct tt_transfers transfers; /* of a long vector */
	char *buf;
	size_t bytes;
	bool passed_on;             /* short: my children have been sent theirs */
	int acked;                  /* short: how many children have it */
	struct tt_family family;
};

static bool is_long(const struct broadcast *b) { return b->bytes > TT_COLL_PIECE; }

static bool pass_on(struct broadcast *b)
{
	const void *bytes;

	if (b->family.parent >= 0) {
		if (!(bytes = tt_coll_take(&b->either.coll, b->family.parent, 0, b->bytes)))
			return false;
		if (b->bytes)
			memcpy(b->buf, bytes, b->bytes);
	}
	for (int i = b->family.children; i--;) /* the largest subtree first */
		tt_coll_send(&b->either.coll, b->family.child[i], 0, b->buf, b->bytes);
	return true;
}

static int advance_short(struct broadcast *b)
{
	bool acks = b->either.coll.seq % ACK_EVERY == 0;

	if (!b->passed_on && !pass_on(b))
		return 0;
	if (!b->passed_on && acks && b->family.parent >= 0)
		tt_coll_send(&b->either.coll, b->family.parent, TAG_ACK, NULL, 0);
	b->passed_on = true;
	for (; acks && b->acked < b->family.children; b->acked++)
		if (!tt_coll_take(&b->either.coll, b->family.child[b->acked], TAG_ACK, 0))
			return 0;
	return 1;
}

static int begin(struct tt_coll *c)
{
	struct broadcast *b = (struct broadcast *)c;
	struct tt_transfers *l = &b->transfers;
	const struct tt_family *f = &b->family;
	struct tt_transfer edge = { .other = f->parent, .len = b->bytes };
	int err = is_long(b) ? tt_transfers_new(l, c, f->children, f->children + 1) : 0;

	if (err || !is_long(b))
		return err;
	l->vector = b->either.blocks.vector;
	l->rendezvous = true;
	if (f->parent >= 0)
		l->in[l->ins++] = edge;
	edge.after = l->ins;
	for (; l->outs < f->children; l->outs++) {
		edge.other = f->child[f->children - 1 - l->outs]; /* the largest subtree first */
		l->out[l->outs] = edge;
	}
	return 0;
}

static int advance(struct tt_coll *c)
{
	struct broadcast *b = (struct broadcast *)c;

	return is_long(b) ? tt_transfers_advance(&b->transfers) : advance_short(b);
}

static void release(struct tt_coll *c) { tt_transfers_free(&((struct broadcast *)c)->transfers); }

int tutti_broadcast(tutti *group, void *buf, size_t bytes, int root, tutti_op *op)
{
	struct tt_shadow shadow;
	int err = tt_group_usable(group);

	if (err)
		return err;
	if (root < 0 || root >= group->n)
		return tt_fail(-EINVAL, "broadcast: root %d must be from 0 to %d", root, group->n - 1);
	if (!buf && bytes)
		return tt_fail(-EINVAL, "broadcast: %zu bytes at NULL", bytes);
	if ((err = tt_shadow_open(group->job, &shadow, buf, bytes)))
		return err;
	shadow.lifted = group->me != root;
	shadow.landed = group->me == root;
	struct tt_blocks blocks = { .vector = tt_vector_at(shadow.memory), .bytes = bytes, .first = root, .owners = 1 };
	struct tt_blockwise *w = tt_blockwise_new(group, sizeof(struct broadcast), TUTTI_STAT_BROADCAST, bytes,
	                                          (uint64_t)root, &blocks, bytes > EAGER);
	struct broadcast *b = (struct broadcast *)w;

	if (!b) {
		tt_shadow_drop(&shadow);
		return -ENOMEM;
	}
	b->buf = shadow.memory;
	b->bytes = bytes;
	w->coll.shadow = shadow;
	w->coll.bytes = bytes;
	w->coll.memory[0].base = shadow.memory;
	w->coll.memory[0].len = bytes;
	w->stage = TT_BLOCKS_GATHER;
	w->begin = begin;
	w->advance = advance;
	w->release = release;
	b->family = tt_family_of(group->n, group->me, root);
	return tt_coll_run(&w->coll, op);
}
