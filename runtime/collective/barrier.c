/* barrier.c - barrier by dissemination (Hensgen, Finkel, Manber 1988)
 *
 * In round k rank r sends to rank r + 2^k. A few ranks that share a host meet in the shared segment instead.
 */
#include "collective/collective_private.h"
#include "member/member.h"

struct barrier {
	struct tt_blockwise either;
	int round;
	bool told;
};

static int advance_barrier(struct tt_coll *c)
{
	struct barrier *b = (struct barrier *)c;
	int n = c->n, me = c->me;

	for (; 1 << b->round < n; b->round++, b->told = false) {
		int step = 1 << b->round;
		if (!b->told)
			tt_coll_send(c, (me + step) % n, (uint32_t)b->round, NULL, 0);
		b->told = true;
		if (!tt_coll_take(c, (me - step + n) % n, (uint32_t)b->round, 0))
			return 0;
	}
	return 1;
}

static struct tt_coll *make(struct tutti *group, struct tt_call_header *begun)
{
	static char nothing;
	const struct tt_blocks blocks = { .vector = tt_vector_at(&nothing), .owners = 1, .begun = begun };
	struct tt_blockwise *w = tt_blockwise_new(group, sizeof(struct barrier), TUTTI_STAT_BARRIER, 0, 0, &blocks,
	                                          group->n <= TT_SEGMENT_FEW);

	if (!w)
		return NULL;
	w->stage = TT_BLOCKS_GATHER;
	w->advance = advance_barrier;
	return &w->coll;
}

/* 1: this way cannot be taken. */
static int run_at_once(struct tutti *group)
{
	struct tt_coll_call call = tt_coll_call_of(TUTTI_STAT_BARRIER, 0, 0);
	struct tt_begun begun;
	int err = tt_at_once(group, TUTTI_STAT_BARRIER, NULL, &call, &begun);

	return begun.header && err > 0 ? tt_at_once_go_on(group, make(group, begun.header), &begun) : err;
}

int tutti_barrier(tutti *group, tutti_op *op)
{
	int err = tt_group_usable(group);

	if (err || (!op && group->n > 1 && group->n <= TT_SEGMENT_FEW && (err = run_at_once(group)) <= 0))
		return err;
	struct tt_coll *c = make(group, NULL);
	return c ? tt_coll_run(c, op) : -ENOMEM;
}
