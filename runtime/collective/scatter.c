/* scatter.c - scatter, and gather of values that are too long for gather.c: straight between the root and each rank
 *
 *      scatter    root --> each rank: its block           gather    each rank --> root: its value
 *
 * What fits into a message travels as one. A sender does not wait until such a message has arrived, except in every
 * 64th call, which bounds how far the sender gets ahead. Longer runs are transfers into the receiver's own memory, on
 * one host one copy by the sender.
 */
#include "collective/collective_private.h"
#include "member/member.h"
#include <string.h>

enum {
	AHEAD = 32,                 /* values that may come to the root of a gather at the same time */
	ACK_EVERY = 64,             /* short calls after which the senders wait for the receivers */
	TAG_ACK = 64,               /* transfers have the tags below */
};

struct scatter {
	struct tt_coll coll;
	struct tt_transfers transfers;
	int root;
	bool gathers, moved;
	int acked;                  /* how many of the other ends have said that they have the bytes */
};

static bool is_root(const struct scatter *s) { return s->coll.me == s->root; }
static bool receives(const struct scatter *s) { return s->gathers == is_root(s); }

/* The ranks that this one exchanges bytes with: the i-th one, from 0 up. */
static int ends(const struct scatter *s) { return is_root(s) ? s->coll.n - 1 : 1; }
static int end_at(const struct scatter *s, int i) { return is_root(s) ? (s->root + 1 + i) % s->coll.n : s->root; }

static int advance(struct tt_coll *c)
{
	struct scatter *s = (struct scatter *)c;
	int k = s->moved ? 1 : tt_transfers_advance(&s->transfers);

	if (k <= 0)
		return k;
	bool acks = !s->transfers.rendezvous && c->seq % ACK_EVERY == 0 && c->n > 1;
	for (int i = 0; acks && !s->moved && receives(s) && i < ends(s); i++)
		tt_coll_send(c, end_at(s, i), TAG_ACK, NULL, 0);
	s->moved = true;
	for (; acks && !receives(s) && s->acked < ends(s); s->acked++)
		if (!tt_coll_take(c, end_at(s, s->acked), TAG_ACK, 0))
			return 0;
	return 1;
}

static void release(struct tt_coll *c) { tt_transfers_free(&((struct scatter *)c)->transfers); }

/* The root has all blocks in `all`; each other rank has its own in `own`. */
static void add_transfers(struct scatter *s, size_t bytes)
{
	struct tt_transfers *l = &s->transfers;

	l->rendezvous = bytes > TT_COLL_PIECE;
	for (int i = 0; s->coll.n > 1 && i < ends(s); i++) {
		int other = end_at(s, i);
		struct tt_transfer t = { .other = other, .at = is_root(s) ? (size_t)other * bytes : 0, .len = bytes,
		                         .given = true };
		if (receives(s))
			l->in[l->ins++] = t;
		else
			l->out[l->outs++] = t;
	}
}

static int run(struct scatter *s, const void *in, void *out, size_t bytes, tutti_op *op)
{
	struct tt_coll *c = &s->coll;
	size_t all = (size_t)c->n * bytes;
	/* nothing comes in to the root of a scatter, so that it may send to all at once */
	int err = tt_transfers_new(&s->transfers, c, is_root(s) ? c->n - 1 : 1, s->gathers ? AHEAD : c->n);

	if (err) {
		tt_coll_free(c);
		return err;
	}
	c->advance = advance;
	c->release = release;
	c->bytes = bytes;
	s->transfers.vector = (struct tt_vector){ .in = in, .out = out };
	c->memory[0].base = out;
	c->memory[0].len = !receives(s) ? 0 : is_root(s) ? all : bytes;
	c->memory[1].base = in;
	c->memory[1].len = receives(s) ? 0 : is_root(s) ? all : bytes;
	add_transfers(s, bytes);
	return tt_coll_run(c, op);
}

static struct scatter *make(struct tutti *group, tutti_stat_kind kind, size_t bytes, int root)
{
	struct scatter *s = (void *)tt_coll_new(group, sizeof *s, kind, bytes, (uint64_t)root);

	if (!s)
		return NULL;
	s->root = root;
	s->gathers = kind == TUTTI_STAT_GATHER;
	return s;
}

int tt_gather_long(struct tutti *group, const void *value, size_t bytes, void *all, int root, tutti_op *op)
{
	struct scatter *s = make(group, TUTTI_STAT_GATHER, bytes, root);

	if (!s)
		return -ENOMEM;
	if (is_root(s)) /* the value may be there already */
		memmove((char *)all + (size_t)root * bytes, value, bytes);
	return run(s, value, all, bytes, op);
}

int tutti_scatter(tutti *group, const void *all, size_t bytes, void *value, int root, tutti_op *op)
{
	int err = tt_group_usable(group);

	if (err)
		return err;
	bool mine = root == group->me;
	const char *own = mine && all ? (const char *)all + (size_t)root * bytes : NULL;
	if (root < 0 || root >= group->n)
		return tt_fail(-EINVAL, "scatter: root %d must be from 0 to %d", root, group->n - 1);
	if (bytes < 1 || bytes > PTRDIFF_MAX / (size_t)group->n)
		return tt_fail(-EINVAL, "scatter: bytes is %zu, for each of %d ranks: a block has at least 1 "
		               "byte, and all of them fit into memory", bytes, group->n);
	if (!value || (mine && !all))
		return tt_fail(-EINVAL, "scatter: value is NULL, or all is NULL on the root");
	if (mine && value != own && tt_overlap(all, (size_t)group->n * bytes, value, bytes))
		return tt_fail(-EINVAL, "scatter: value overlaps all; it may only be the root's own block of all");
	if ((err = tt_host_only("scatter", "value", value, bytes)) ||
	    (mine && (err = tt_host_only("scatter", "all", all, bytes * (size_t)group->n))))
		return err;
	struct scatter *s = make(group, TUTTI_STAT_SCATTER, bytes, root);
	if (!s)
		return -ENOMEM;
	if (mine && value != own)
		memcpy(value, own, bytes);
	return run(s, all, value, bytes, op);
}
