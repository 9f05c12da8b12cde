/* barrier.c - by dissemination (Hensgen, Finkel, Manber 1988): in round k I tell the rank 2^k behind me; or by a flag of each on the host's
 * board, if an earlier call of this group has made it: for a barrier alone that is too much
 */
#include "runtime.h"

struct barrier {
	struct tt_coll coll;
	int (*go_on)(struct barrier *); /* NULL: not chosen yet */
	int round;
	bool told;
	struct tt_visit visit;
	bool met;
};

static int disseminate(struct barrier *b)
{
	struct tt_coll *c = &b->coll;
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

static int visit(struct barrier *b)
{
	struct tt_visit *v = &b->visit;
	int k = tt_visit_check(v);

	if (k > 0 && !v->note && (k = tt_visit_turn(v)) > 0)
		tt_visit_step(v);
	if (k > 0)
		k = tt_visit_meet(v);
	b->met = k > 0;
	return k;
}

static int choose(struct barrier *b)
{
	bool visits;
	int k = tt_board_decide(&b->coll, &visits);

	if (k <= 0)
		return k;
	b->go_on = visits ? visit : disseminate;
	if (visits)
		tt_visit_begin(&b->visit, &b->coll);
	return 1;
}

static int advance(struct tt_coll *c)
{
	struct barrier *b = (struct barrier *)c;
	int k = b->go_on ? 1 : choose(b);

	return k > 0 ? b->go_on(b) : k;
}

static void release(struct tt_coll *c)
{
	struct barrier *b = (struct barrier *)c;

	if (b->go_on == visit)
		tt_visit_end(&b->visit, b->met);
}

int tutti_barrier(tutti *group, tutti_op *op)
{
	struct tt_coll *c = tt_coll_new(group, sizeof(struct barrier), "barrier", 0, 0);

	if (!c)
		return -ENOMEM;
	c->undecided = true;
	c->advance = advance;
	c->release = release;
	return tt_coll_run(c, op);
}
