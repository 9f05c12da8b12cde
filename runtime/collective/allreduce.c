/* allreduce.c - all-reduce, also of several tensors, and reduce to a root; direct.c, hierarchical.c, doubling.c,
 * rabenseifner.c, ring.c and tree.c do the work
 *
 * All ranks get the same bits. Each algorithm combines in an order that depends only on the position in the vector
 * and on the number of ranks, never on timing; a sum is made once and copied, or made twice from the same two
 * operands. So all ranks must choose the same algorithm. TUTTI_ALLREDUCE sets one; else an all-reduce is direct if
 * all ranks share a segment, hierarchical if the ranks of each of several hosts do, and otherwise follows the model,
 * which rank 0 gives to all.
 *
 * A sum of f16 or bf16 is made in f32 and rounded once, at the end. Partial sums travel as f32; what a rank gives and
 * the result travel in their own type.
 */
#include "collective/collective_private.h"
#include "engine/engine.h"
#include "kernel/kernel.h"
#include "member/member.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct tt_algorithm *const algorithms[] = { &tt_direct, &tt_doubling, &tt_rabenseifner, &tt_ring };

static const struct tt_algorithm *find(const char *name) /* NULL: unknown, or "auto" */
{
	for (size_t i = 0; i < TT_COUNT(algorithms); i++)
		if (!strcmp(algorithms[i]->name, name))
			return algorithms[i];
	return NULL;
}

const char *tt_algorithm_name(uint64_t letter)
{
	for (size_t i = 0; i < TT_COUNT(algorithms); i++)
		if ((unsigned char)algorithms[i]->name[2] == letter)
			return algorithms[i]->name;
	return letter == (unsigned char)"auto"[2] ? "auto" : "unknown";
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
	if (tt_hub_open(group, bytes))
		return &tt_through_hub;
	if (model.by_host)
		return &tt_hierarchical;
	if (tt_segment_open(group))
		return &tt_direct;
	return tt_model_choose(&model, group->n, bytes, TT_COLL_PIECE);
}

static size_t bytes_of(const struct tt_allreduce *a) { return a->all.count * a->all.width; }

bool tt_coll_rounds(tutti_type type, tutti_rule rule)
{
	return (type == TUTTI_F16 || type == TUTTI_BF16) &&
	       (rule == TUTTI_SUM || rule == TUTTI_AVERAGE || rule == TUTTI_PRODUCT);
}

static bool is_short(const struct tt_settings *s) { return *tt_setting(s, TT_PARTIALS) == 's'; }

void tt_exchange_widen(const struct tt_exchange *x)
{
	struct tt_run r;

	for (size_t at = x->at, end = at + x->count * x->width; at < end; at += r.len) {
		r = tt_vector_run(&x->vector, at, end - at);
		tt_to_f32(x->wide + at / x->width, r.in, r.len / x->width, x->type);
	}
}

static const struct tt_algorithm *choose_any(const struct tt_allreduce *a)
{
	if (a->root >= 0 && a->coll.n > 1 && bytes_of(a) && tt_hub_open(a->coll.group, bytes_of(a)))
		return &tt_through_hub;
	if (a->root >= 0 && a->coll.n > 1 && bytes_of(a))
		return tt_segment_open(a->coll.group) ? &tt_direct : &tt_tree;
	return choose_for(a->coll.group, a->forced, bytes_of(a));
}

/* Are sums f32 on their way? */
static bool is_wide(const struct tt_allreduce *a)
{
	return a->coll.n > 1 && a->all.count && tt_coll_rounds(a->all.type, a->all.rule) &&
	       !is_short(&a->coll.job->settings);
}

/* Memory for partial sums, if they cannot be in `out`. */
static int take_room(struct tt_allreduce *a)
{
	const struct tt_exchange *x = &a->all;
	bool wide = is_wide(a), needed = a->root < 0 ? wide : tt_tree_combines(x) && (wide || a->coll.me != a->root);
	size_t len = x->count * (wide ? sizeof *x->wide : x->width);

	if (a->coll.room || !needed)
		return 0;
	if (!(a->coll.room = tt_scratch_take_room(&a->coll.job->scratch, len)))
		return tt_fail(-ENOMEM, "no memory for %zu bytes of partial sums%s", len,
		               wide ? ": TUTTI_PARTIALS=short needs less" : "");
	return 0;
}

/* Before the first message, so that other ranks need not wait for a call that then fails. */
static int prepare(struct tt_coll *c)
{
	struct tt_allreduce *a = (struct tt_allreduce *)c;
	bool in_memory = tt_segment_open(c->group) || tt_hub_open(c->group, bytes_of(a));
	bool direct = in_memory && (!a->forced || a->forced == &tt_direct);

	return c->n == 1 || !bytes_of(a) || direct ? 0 : take_room(a);
}

static int choose(struct tt_allreduce *a)
{
	const struct tt_algorithm *is = choose_any(a);
	bool in_memory = is == &tt_direct || is == &tt_through_hub;
	int err = a->coll.n == 1 || !bytes_of(a) || in_memory ? 0 : take_room(a);

	a->coll.undecided = false;
	if (err)
		return err;
	if (!in_memory && is_wide(a))
		a->all.wide = a->coll.room;
	else if (is == &tt_tree && a->coll.room)
		a->all.vector.out = a->coll.room;
	a->all.is = is;
	return is->begin(&a->all);
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
	known = tt_hub_make(&a->coll, bytes);
	if (known <= 0 || tt_hub_open(group, bytes))
		return known;
	known = tt_segment_make(&a->coll);
	if (known <= 0 || a->root >= 0 || tt_segment_open(group) || !tt_model_needed(group, bytes))
		return known;
	return tt_model_learn(a);
}

static int advance(struct tt_coll *c)
{
	struct tt_allreduce *a = (struct tt_allreduce *)c;
	int known, err = 0;

	tt_segment_tell(c);
	tt_hub_tell(c);
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
	free(a->parts);
}

/* ---- the calls ---- */

int tt_coll_check_rule(const char *what, tutti_type type, tutti_rule rule)
{
	if (!tt_type_size(type) || (unsigned)rule > TUTTI_BXOR)
		return tt_fail(-EINVAL, "%s: type %d or rule %d is unknown", what, (int)type, (int)rule);
	if (tt_rule_takes(rule, type))
		return 0;
	return rule == TUTTI_AVERAGE ?
	       tt_fail(-EINVAL, "%s: TUTTI_BOOL has no average: sum it up as TUTTI_I32", what) :
	       tt_fail(-EINVAL, "%s: TUTTI_BAND, TUTTI_BOR and TUTTI_BXOR are for integers and TUTTI_BOOL, and the "
	               "type is %s", what, tt_type_name(type));
}

static int check_arguments(const char *what, const void *in, const void *out, size_t count, tutti_type type,
                           tutti_rule rule)
{
	size_t width = tt_type_size(type);
	int err = tt_coll_check_rule(what, type, rule);

	if (err)
		return err;
	if (count && (!in || !out))
		return tt_fail(-EINVAL, "%s: %zu elements at NULL", what, count);
	if (count > PTRDIFF_MAX / width)
		return tt_fail(-EINVAL, "%s: %zu elements of %zu bytes are more than memory can hold", what, count,
		               width);
	if (in != out && tt_overlap(in, count * width, out, count * width))
		return tt_fail(-EINVAL, "%s: in and out overlap; they may only be the same memory", what);
	return 0;
}

static int check_memory(const char *what, const void *in, const void *out, size_t count, tutti_type type,
                        tutti_rule rule)
{
	size_t width = tt_type_size(type);
	int err = check_arguments(what, in, out, count, type, rule);

	if (err || (err = tt_host_only(what, "in", in, count * width)))
		return err;
	return in == out ? 0 : tt_host_only(what, "out", out, count * width);
}

/* `how` is what else all ranks must agree on. */
static uint64_t print_of(const struct tutti *group, const struct tt_exchange *x, uint32_t how)
{
	const struct tt_settings *s = &group->job->settings;

	return (uint64_t)how << 32 | (uint64_t)x->type << 24 | (uint64_t)x->rule << 16 | (uint64_t)is_short(s) << 9 |
	       (uint64_t)tt_model_measures(s) << 8 |
	       (uint8_t)tt_setting(s, TT_ALLREDUCE)[2]; /* the third letter tells the algorithms apart */
}

/* Takes the parts. NULL: no memory. */
static struct tt_allreduce *make(struct tutti *group, tutti_stat_kind kind, const struct tt_exchange *x, uint64_t same,
                                 int root, struct tt_part *parts)
{
	struct tt_allreduce *a = (void *)tt_coll_new(group, sizeof *a, kind, x->count, same);

	if (!a) {
		free(parts);
		return NULL;
	}
	a->all = *x;
	a->all.coll = &a->coll;
	a->all.n = a->coll.n;
	a->all.me = a->coll.me;
	a->parts = parts;
	a->root = root;
	a->forced = root < 0 ? forced(group->job) : NULL;
	a->coll.undecided = true;
	a->coll.bytes = bytes_of(a);
	a->coll.memory[0].base = x->vector.out;
	a->coll.memory[0].len = x->vector.out ? bytes_of(a) : 0;
	a->coll.memory[1].base = x->vector.in;
	a->coll.memory[1].len = x->vector.in != x->vector.out ? bytes_of(a) : 0;
	a->coll.prepare = prepare;
	a->coll.advance = advance;
	a->coll.release = release;
	return a;
}

static int run(struct tutti *group, tutti_stat_kind kind, const struct tt_exchange *x, uint32_t how, int root,
               struct tt_part *parts, tutti_op *op)
{
	struct tt_allreduce *a = make(group, kind, x, print_of(group, x, how), root, parts);

	return a ? tt_coll_run(&a->coll, op) : -ENOMEM;
}

static bool is_at_once(const struct tutti *group, const struct tt_exchange *x)
{
	const struct tt_algorithm *f = forced(group->job);

	return x->vector.in && x->count && group->n > 1 && x->count * x->width <= TT_AT_ONCE_MOST &&
	       (!f || f == &tt_direct);
}

/* 1: this way cannot be taken. */
static int run_at_once(struct tutti *group, const struct tt_exchange *x)
{
	struct tt_coll_call call = tt_coll_call_of(TUTTI_STAT_ALLREDUCE, x->count, print_of(group, x, 0));
	struct tt_begun begun;
	int err = tt_at_once(group, TUTTI_STAT_ALLREDUCE, x, &call, &begun);

	if (!begun.header || err <= 0)
		return err;
	struct tt_allreduce *a = make(group, TUTTI_STAT_ALLREDUCE, x, call.y, -1, NULL);
	if (a)
		a->direct.begun = begun;
	return tt_at_once_go_on(group, a ? &a->coll : NULL, &begun);
}

int tutti_allreduce(tutti *group, const void *in, void *out, size_t count, tutti_type type, tutti_rule rule,
                    tutti_op *op)
{
	int err = tt_group_usable(group);
	struct tt_exchange x = { .vector = { .in = in, .out = out }, .count = count, .width = tt_type_size(type),
	                         .type = type, .rule = rule };

	if (!err)
		err = check_memory("all-reduce", in, out, count, type, rule);
	if (err || (!op && is_at_once(group, &x) && (err = run_at_once(group, &x)) <= 0))
		return err;
	return run(group, TUTTI_STAT_ALLREDUCE, &x, 0, -1, NULL, op);
}

int tutti_reduce(tutti *group, const void *in, void *out, size_t count, tutti_type type, tutti_rule rule, int root,
                 tutti_op *op)
{
	int err = tt_group_usable(group);

	if (err)
		return err;
	bool mine = root == group->me;
	struct tt_exchange x = { .vector = { .in = in, .out = mine ? out : NULL }, .count = count,
	                         .width = tt_type_size(type), .type = type, .rule = rule };
	err = check_memory("reduce", in, mine ? out : in, count, type, rule);
	if (root < 0 || root >= group->n)
		return tt_fail(-EINVAL, "reduce: root %d must be from 0 to %d", root, group->n - 1);
	return err ? err : run(group, TUTTI_STAT_REDUCE, &x, (uint32_t)root, root, NULL, op);
}

/* ---- several tensors: one vector in parts ---- */

static int check_tensors(const tutti_tensor *t, int n, tutti_rule rule)
{
	size_t count = 0;
	int err = tt_given(t, "all-reduce: the list of tensors");

	if (!err && n < 1)
		err = tt_fail(-EINVAL, "all-reduce: a list of %d tensors has at least one", n);
	for (int i = 0; !err && i < n; i++) {
		err = check_memory("all-reduce", t[i].data, t[i].data, t[i].count, t[i].type, rule);
		if (!err && t[i].type != t[0].type)
			return tt_fail(-ENOTSUP, "all-reduce: tensors 0 and %d are of types %d and %d: take a call for "
			               "each type", i, (int)t[0].type, (int)t[i].type);
		if (!err && __builtin_add_overflow(count, t[i].count, &count))
			count = SIZE_MAX;
	}
	return err ? err : check_arguments("all-reduce", t, (void *)(uintptr_t)t, count, t[0].type, rule);
}

/* Empty ones are left out. Views of one buffer without gaps are one range here, if perhaps not on other ranks. Returns
 * a hash of the sizes. */
static uint32_t fill_vector(struct tt_exchange *x, struct tt_part *parts, const tutti_tensor *t, int n)
{
	uint32_t hash = TT_HASH;
	struct tt_vector *v = &x->vector;
	size_t end = 0;
	bool adjoin = true;

	for (int i = 0; i < n; i++) {
		size_t bytes = t[i].count * x->width;
		hash = tt_hash(hash, &t[i].count, sizeof t[i].count);
		if (!bytes)
			continue;
		end += bytes;
		adjoin &= !v->parts || parts[v->parts - 1].memory_end == t[i].data;
		parts[v->parts++] = (struct tt_part){ (char *)t[i].data + bytes, end };
	}
	if (v->parts && adjoin)
		v->in = v->out = parts[v->parts - 1].memory_end - end;
	v->parts = v->parts > 1 ? v->parts : 0;
	x->count = end / x->width;
	return hash;
}

int tutti_allreduce_tensors(tutti *group, const tutti_tensor *tensors, int n, tutti_rule rule, tutti_op *op)
{
	int err = tt_group_usable(group);

	if (err || (err = check_tensors(tensors, n, rule)))
		return err;
	struct tt_part *parts = malloc((size_t)n * sizeof *parts);
	struct tt_exchange x = { .vector.part = parts, .width = tt_type_size(tensors[0].type), .type = tensors[0].type,
	                         .rule = rule };
	if (!parts)
		return tt_fail(-ENOMEM, "no memory for a list of %d tensors", n);
	uint32_t sizes = fill_vector(&x, parts, tensors, n);
	return run(group, TUTTI_STAT_ALLREDUCE, &x, sizes, -1, parts, op);
}

int tt_allreduce_explain(struct tutti *group, size_t bytes, tutti_type type, tutti_rule rule, char *text, size_t room)
{
	const struct tt_algorithm *is;
	const struct tt_layout *layout = &tt_coll_group(group)->layout;
	size_t width = tt_type_size(type), piece = TT_COLL_PIECE, chunk;
	int n = group->n, err = check_arguments("all-reduce", "", "", bytes, type, rule), used = 0;
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
	if (is == &tt_through_hub) {
		snprintf(text, room, "hub, through memory of the first of the %d ranks of this host", n);
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
