/* allreduce.c - the call; direct.c, hierarchical.c, doubling.c, rabenseifner.c and ring.c do the work
 *
 * All ranks get the same bits. Each algorithm combines in an order that depends only on the position in the vector
 * and on the number of ranks, never on timing; a sum is made once and copied, or made twice from the same two
 * operands. So all ranks must choose the same algorithm. TUTTI_ALLREDUCE sets one; else an all-reduce is direct if
 * all ranks share a segment, hierarchical if the ranks of each of several hosts do, and otherwise follows the model,
 * which rank 0 gives to all.
 */
#include "collective/collective_private.h"
#include "engine/engine.h"
#include "member/member.h"
#include <stdio.h>
#include <string.h>

static const struct tt_algorithm *const algorithms[] = { &tt_direct, &tt_doubling, &tt_rabenseifner, &tt_ring };

static const struct tt_algorithm *find(const char *name) /* NULL: unknown, or "auto" */
{
	for (size_t i = 0; i < TT_COUNT(algorithms); i++)
		if (!strcmp(algorithms[i]->name, name))
			return algorithms[i];
	return NULL;
}

int tt_power_below(int n)
{
	int p = 1;

	while (p <= n / 2)
		p *= 2;
	return p;
}

static const struct tt_algorithm *forced(const struct tt_job *job)
{
	const char *name = tt_setting(&job->settings, TT_ALLREDUCE);

	return *name == 'a' ? NULL : find(name); /* auto is the common case, on the path of short calls */
}

static const struct tt_algorithm *choose_for(const struct tutti *group, const struct tt_algorithm *f, size_t bytes)
{
	struct tt_model model = tt_model_of(group);

	if (group->n == 1 || !bytes)
		return &tt_doubling;
	if (f && f != &tt_direct)
		return f;
	if (model.by_host)
		return &tt_hierarchical;
	if (tt_segment_open(group))
		return &tt_direct;
	return tt_model_choose(&model, group->n, bytes, TT_COLL_PIECE);
}

static size_t bytes_of(const struct tt_allreduce *a) { return a->all.count * a->all.width; }

static int choose(struct tt_allreduce *a)
{
	a->coll.undecided = false;
	a->all.is = choose_for(a->coll.group, a->forced, bytes_of(a));
	return a->all.is->begin(&a->all);
}

/* Finds out what the choice depends on. Like advance: 1 once it is known. */
static int learn(struct tt_allreduce *a)
{
	struct tutti *group = a->coll.group;
	size_t bytes = bytes_of(a);
	int known = 1;

	if (!tt_coll_is_next(&a->coll))
		return 0;
	if ((a->forced && a->forced != &tt_direct) || !bytes)
		return 1;
	known = tt_segment_make(&a->coll);
	return known > 0 && !tt_segment_open(group) && tt_model_needed(group, bytes) ? tt_model_learn(a) : known;
}

static int advance(struct tt_coll *c)
{
	struct tt_allreduce *a = (struct tt_allreduce *)c;
	int known, err = 0;

	tt_segment_tell(c);
	if (!a->all.is) {
		if ((known = learn(a)) <= 0)
			return known;
		err = choose(a);
	}
	if (!err && c->me == 0 && a->all.is != &tt_direct)
		tt_model_tell(a);
	return err ? err : a->all.is->advance(&a->all);
}

static void release(struct tt_coll *c)
{
	struct tt_allreduce *a = (struct tt_allreduce *)c;

	if (a->all.is)
		a->all.is->release(&a->all);
}

static int check_arguments(const void *buf, size_t count, size_t width, tutti_type type, tutti_rule rule)
{
	if (!width || (unsigned)rule > TUTTI_MIN)
		return tt_fail(-EINVAL, "all-reduce: type %d or rule %d is unknown", (int)type, (int)rule);
	if (!buf && count)
		return tt_fail(-EINVAL, "all-reduce: %zu elements at NULL", count);
	if (count > PTRDIFF_MAX / width)
		return tt_fail(-EINVAL, "all-reduce: %zu elements of %zu bytes are more than memory can hold", count,
		               width);
	return 0;
}

int tutti_allreduce(tutti *group, void *buf, size_t count, tutti_type type, tutti_rule rule, tutti_op *op)
{
	size_t width = tt_type_size(type);
	int err = tt_usable(tt_job_of(group));

	if (err || (err = check_arguments(buf, count, width, type, rule)))
		return err;
	const struct tt_settings *s = &group->job->settings;
	uint64_t kind = (uint64_t)type << 24 | (uint64_t)rule << 16 | (uint64_t)tt_model_measures(s) << 8 |
	                (uint8_t)tt_setting(s, TT_ALLREDUCE)[2]; /* the third letter tells the algorithms apart */
	struct tt_allreduce *a = (void *)tt_coll_new(group, sizeof *a, TUTTI_STAT_ALLREDUCE, count, kind);
	if (!a)
		return -ENOMEM;
	a->all = (struct tt_exchange){ .coll = &a->coll, .n = a->coll.n, .me = a->coll.me, .buf = buf, .count = count,
	                               .width = width, .type = type, .rule = rule };
	a->forced = forced(group->job);
	a->coll.undecided = true;
	a->coll.bytes = count * width;
	a->coll.memory[0].base = buf;
	a->coll.memory[0].len = count * width;
	a->coll.advance = advance;
	a->coll.release = release;
	return tt_coll_run(&a->coll, op);
}

int tt_allreduce_explain(struct tutti *group, size_t bytes, tutti_type type, tutti_rule rule, char *text, size_t room)
{
	const struct tt_algorithm *is;
	const struct tt_layout *layout = &tt_coll_group(group)->layout;
	size_t width = tt_type_size(type), piece = TT_COLL_PIECE, chunk;
	int n = group->n, err = check_arguments("", bytes, width, type, rule), used = 0;
	struct tt_model model;

	if (err)
		return err;
	tt_lock(group->job);
	model = tt_model_of(group);
	is = choose_for(group, forced(group->job), bytes);
	tt_unlock(group->job);
	const char *set = is == forced(group->job) ? " (as set)" : "";
	if (is == &tt_direct) {
		snprintf(text, room, "direct%s, through memory that the %d ranks of this host share", set, n);
		return 0;
	}
	if (is == &tt_hierarchical) {
		int leaders = tt_hierarchical_leaders(layout, bytes);
		n = layout->hosts;
		used = snprintf(text, room, "hierarchical, through memory on each of the %d hosts, "
		                "and between them %d times ", n, leaders);
		is = tt_model_choose(&model, n, bytes, piece);
		bytes /= (size_t)leaders;
		set = is == forced(group->job) ? set : "";
	}
	chunk = is->chunk(bytes, n, piece) / width * width;
	snprintf(text + used, room - (size_t)used, "%s%s, in chunks of %zu bytes, %.1f us expected: "
	         "a message takes %.1f us%s, the wire %.3f ns and adding %.3f ns a byte",
	         is->name, set, tt_max(width, chunk),
	         (double)tt_model_predict(&model, is, n, bytes, piece) / 1e3, (double)model.latency_ns / 1e3,
	         model.known && tt_model_measures(&group->job->settings) ? "" : " (assumed, not measured)",
	         (double)model.net_ps / 1e3, (double)model.add_ps / 1e3);
	return 0;
}
