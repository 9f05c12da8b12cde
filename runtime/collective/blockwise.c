/* blockwise.c - a collective that uses the shared segment if all its ranks are on one host, and messages otherwise
 *
 * Calls choose in their order. The first call that may use the segment makes it. Whether a segment exists already
 * would be no basis for the choice: after an earlier call has failed, ranks may disagree about that.
 */
#include "collective/collective_private.h"
#include "member/member.h"

static int choose(struct tt_blockwise *w)
{
	int k = tt_segment_decide(&w->coll, &w->uses_segment);

	if (k <= 0)
		return k;
	w->chosen = true;
	if (w->uses_segment)
		tt_blocks_begin(&w->blocks, &w->coll, w->stage);
	else if (w->begin && (k = w->begin(&w->coll)))
		return k;
	return 1;
}

static int advance(struct tt_coll *c)
{
	struct tt_blockwise *w = (struct tt_blockwise *)c;
	int k;

	tt_segment_tell(c);
	if (!w->chosen && (k = choose(w)) <= 0)
		return k;
	if (!w->uses_segment)
		return w->advance(c);
	k = tt_blocks_run(&w->blocks, w->stage);
	return k > 0 ? tt_blocks_run(&w->blocks, TT_BLOCKS_LEAVE) : k;
}

static void release(struct tt_coll *c)
{
	struct tt_blockwise *w = (struct tt_blockwise *)c;

	if (w->uses_segment)
		tt_blocks_end(&w->blocks);
	if (w->release)
		w->release(c);
}

struct tt_blockwise *tt_blockwise_new(struct tutti *group, size_t size, tutti_stat_kind kind, uint64_t x, uint64_t y,
                                      const struct tt_blocks *blocks, bool may_use_segment)
{
	struct tt_blockwise *w = (struct tt_blockwise *)tt_coll_new(group, size, kind, x, y);

	if (!w)
		return NULL;
	w->coll.advance = advance;
	w->coll.release = release;
	w->coll.undecided = may_use_segment;
	w->blocks = *blocks;
	return w;
}
