/* tree.c - trees over the ranks of a group, and the reduce that goes along one, over messages
 *
 *      short    a binomial tree: few steps                  long    a chain: each rank receives the vector once
 *
 *                    0                                              0 <- 1 <- 2 <- 3 <- 4 <- 5 <- 6 <- 7
 *               1    2       4
 *                    3     5   6
 *                              7
 *
 * Ranks are counted from the root, modulo n. Each combines what comes with what it has, and passes it on chunk by
 * chunk. A chain of ranks that are numbered host by host leaves and enters each host once.
 *
 * Order of additions: binomial: a rank's own, then its children's sums, the smallest subtree first; chain: rank n-2
 * adds what n-1 has to its own, then n-3, and so on.
 */
#include "collective/collective_private.h"

enum {
	CHAIN = 128 * 1024, /* bytes for each rank from which a chain is faster: its ranks work at the same time */
	MEET_EVERY = 64,    /* reduces after which short ones wait for their receiver, too, which bounds how far ahead
	                     * of it a rank gets */
};

struct tt_family tt_family_of(int n, int me, int root)
{
	int at = (me - root + n) % n, low; /* counted from the root */
	struct tt_family f = { .parent = -1 };

	for (low = 1; low < n && !(at & low); low <<= 1)
		if (at + low < n)
			f.child[f.children++] = (at + low + root) % n;
	if (at)
		f.parent = (at - low + root) % n;
	return f;
}

static struct tt_family chain_of(int n, int me, int root)
{
	int last = (root - 1 + n) % n, behind = (me + 1) % n;

	return (struct tt_family){ .parent = me == root ? -1 : (me - 1 + n) % n, .children = me != last,
	                           .child = { behind } };
}

static struct tt_family family_of(const struct tt_exchange *x, int rank)
{
	int root = tt_allreduce_of(x)->root;
	bool is_long = x->count * x->width / (size_t)x->n > CHAIN;

	return is_long ? chain_of(x->n, rank, root) : tt_family_of(x->n, rank, root);
}

bool tt_tree_combines(const struct tt_exchange *x) { return family_of(x, x->me).children; }

/* The vector, combined along the edge from `child` on. */
static struct tt_transfer edge_of(const struct tt_exchange *x, int other, int child)
{
	struct tt_transfer edge = { .other = other, .len = x->count * x->width };

	tt_exchange_combine(x, &edge, !family_of(x, child).children);
	return edge;
}

/* A parent tells its children what it has called: if they have called something else, they notice. A child that is
 * through with this call may have left: then nobody hears it. */
static void plan(struct tt_exchange *x, const struct tt_family *f)
{
	struct tt_transfers *l = x->state;
	struct tt_transfer edge;

	l->rendezvous = x->coll->seq % MEET_EVERY == 0;
	x->coll->may_leave_messages = true;
	for (int i = 0; i < f->children; i++) {
		edge = edge_of(x, f->child[i], f->child[i]);
		tt_coll_answer(x->coll->group, edge.other, x->coll->seq, &x->coll->call, TT_TAG_HERE, NULL, 0);
		edge.given = i == 0;
		edge.last = f->parent < 0 && i == f->children - 1;
		tt_exchange_receive(x, edge);
	}
	if (f->parent < 0)
		return;
	edge = edge_of(x, f->parent, x->me);
	edge.given = !f->children;
	tt_exchange_send(x, edge);
}

static int begin(struct tt_exchange *x)
{
	struct tt_family f = family_of(x, x->me);
	int err = tt_exchange_begin(x, tt_max(f.children, 1), f.children + 1);

	if (!err)
		plan(x, &f);
	return err;
}

const struct tt_algorithm tt_tree = { "tree", begin, tt_exchange_advance, tt_exchange_release, NULL };
