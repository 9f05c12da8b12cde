/* hierarchical.c - all-reduce over several hosts: within each through memory, and between hosts slice by slice
 *
 *                          combined           exchanged          gathered
 *      host A   rank 0     a0+a1  |           a0+..+a4  |        a0+..+a4 | b0+..+b4
 *               rank 1            | b0+b1              | b...     the same
 *      host B   rank 2     a2+a3+a4 |         a0+..+a4  |
 *               rank 3            | b2+..+b4           | b...
 *               rank 4
 *
 * The first few ranks of each host are its leaders. A leader exchanges its slice with the leaders of the same place
 * on all other hosts, by the algorithm that the model chooses. Each host has as many leaders as the smallest host has
 * ranks, but only one for each LEAD bytes, and at least one.
 *
 * Order of additions: on each host by rank, as in blocks.c; then the hosts' sums, in the order of the hosts' first
 * ranks, as the algorithm between them adds.
 */
#include "collective/collective_private.h"
#include "member/member.h"
#include <stdlib.h>
#include <string.h>

enum { LEAD = 64 * 1024 };

enum phase { COMBINE, EXCHANGE, GATHER, LEAVE, DONE };

static bool is_alone(const struct tt_allreduce *a) { return !tt_coll_group(a->coll.group)->segment; }

static int place_of(const struct tutti *g) /* among the ranks of this host */
{
	return tt_coll_group(g)->segment ? tt_coll_group(g)->segment->me : 0;
}

/* ---- between hosts ---- */

static int begin_between(struct tt_allreduce *a, struct tt_span mine)
{
	struct tt_hierarchy *h = &a->hierarchy;
	const struct tutti *g = a->coll.group;
	const struct tt_layout *l = &tt_coll_group(g)->layout;
	struct tt_model model = tt_model_of(g);

	h->seats = malloc((size_t)l->hosts * sizeof *h->seats);
	if (!h->seats)
		return tt_fail(-ENOMEM, "no memory for an all-reduce over %d hosts", l->hosts);
	for (int i = 0; i < l->hosts; i++)
		h->seats[i] = l->seats[l->start[i] + place_of(g)];
	h->between = a->all;
	h->between.n = l->hosts;
	h->between.me = l->here;
	h->between.seats = h->seats;
	h->between.at = mine.at;
	h->between.count = mine.len / a->all.width;
	if (!is_alone(a))
		h->between.vector.in = h->between.vector.out; /* combined here already */
	else if (a->all.wide)
		tt_exchange_widen(&h->between);
	h->between.summed = a->all.wide;
	h->between.is = tt_model_choose(&model, l->hosts, a->all.count * a->all.width, TT_COLL_PIECE);
	return 0;
}

/* ---- the steps: like advance ---- */

static int run_blocks(struct tt_allreduce *a, enum tt_blocks_stage stage)
{
	return is_alone(a) ? 1 : tt_blocks_run(&a->hierarchy.blocks, stage);
}

static int exchange(struct tt_allreduce *a)
{
	struct tt_hierarchy *h = &a->hierarchy;
	struct tt_exchange *x = &h->between;
	int k = 1;

	if (!x->is)
		return 1;
	if (!is_alone(a) && (k = tt_segment_call_check(&h->blocks.call)) <= 0)
		return k;
	if (!h->begun) {
		h->begun = h->blocks.call.paused = true;
		k = x->is->begin(x);
	}
	if (k >= 0)
		k = x->is->advance(x);
	h->blocks.call.paused = k <= 0;
	return k;
}

static int advance(struct tt_exchange *x)
{
	static const enum tt_blocks_stage stage[] = {
		[COMBINE] = TT_BLOCKS_REDUCE, [GATHER] = TT_BLOCKS_GATHER, [LEAVE] = TT_BLOCKS_LEAVE,
	};
	struct tt_allreduce *a = tt_allreduce_of(x);
	struct tt_hierarchy *h = &a->hierarchy;
	int k = 1;

	for (; h->phase != DONE && k > 0; h->phase += k > 0)
		k = h->phase == EXCHANGE ? exchange(a) : run_blocks(a, stage[h->phase]);
	return k;
}

/* ---- life ---- */

int tt_hierarchical_leaders(const struct tt_layout *l, size_t bytes)
{
	return (int)tt_max(1, tt_min((size_t)l->fewest, bytes / LEAD));
}

static int begin(struct tt_exchange *x)
{
	struct tt_allreduce *a = tt_allreduce_of(x);
	struct tt_hierarchy *h = &a->hierarchy;
	size_t bytes = x->count * x->width;
	int n = tt_hierarchical_leaders(&tt_coll_group(x->coll->group)->layout, bytes);
	int me = place_of(x->coll->group);
	struct tt_span mine = me < n ? tt_span_of(bytes, n, me) : (struct tt_span){ 0 };

	h->blocks = (struct tt_blocks){ .vector = x->vector, .bytes = bytes, .owners = n, .wide = x->wide,
	                                .width = x->width, .type = x->type,
	                                .rule = x->rule == TUTTI_AVERAGE ? TUTTI_SUM : x->rule };
	if (!is_alone(a))
		tt_blocks_begin(&h->blocks, x->coll, TT_BLOCKS_REDUCE);
	return me < n ? begin_between(a, mine) : 0;
}

static void release(struct tt_exchange *x)
{
	struct tt_allreduce *a = tt_allreduce_of(x);
	struct tt_hierarchy *h = &a->hierarchy;

	if (h->begun)
		h->between.is->release(&h->between);
	if (h->blocks.call.coll)
		tt_blocks_end(&h->blocks);
	free(h->seats);
}

const struct tt_algorithm tt_hierarchical = { "hierarchical", begin, advance, release, NULL };
