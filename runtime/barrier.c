/* barrier.c - barrier: dissemination (Hensgen, Finkel, Manber 1988)
 *
 * In round k I tell the rank 2^k behind me.
 */
#include "runtime.h"

struct barrier {
	struct tt_coll coll;
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

int tutti_barrier(tutti *group, tutti_op *op)
{
	struct tt_coll *c = tt_coll_new(group, sizeof(struct barrier), TUTTI_STAT_BARRIER, 0, 0);

	if (!c)
		return -ENOMEM;
	c->advance = advance_barrier;
	return tt_coll_run(c, op);
}
