/* updater.c - a table's update rule: its options, and its state for one shard
 *
 * tutti.h has the equations. The table of rules says which options each rule takes; weigh() turns them into the factors
 * with which updater_loops.h computes. State arrays are growable pages: zeros that cost nothing until the first
 * push. */
#include "kernel/kernel_private.h"
#include <math.h>
#include <stdlib.h>

struct tt_updater {
	tutti_updater as;        /* with all defaults */
	tutti_type type;
	size_t count;
	int workers;             /* that have state of their own; 1: they share it */
	int members;             /* workers that may push */
	char **state;            /* [worker][array], each of `count` numbers */
	uint64_t pushes;
};

/* Options. */

struct option {
	const char *name;
	unsigned bit;
	size_t at;
	enum { ANY, FROM_ZERO, BELOW_ONE, POSITIVE } range;
};
static const char *const range_names[] = { "a number", "0 or more", "from 0 to below 1", "above 0" };

enum {
	SCALE = 1 << 0, LEARNING_RATE = 1 << 1, WEIGHT_DECAY = 1 << 2, MOMENTUM = 1 << 3, RHO = 1 << 4,
	COMPENSATION = 1 << 5, BETA1 = 1 << 6, BETA2 = 1 << 7, EPSILON = 1 << 8, ALPHA = 1 << 9, BETA = 1 << 10,
	L1 = 1 << 11, L2 = 1 << 12,
	STEP = SCALE | LEARNING_RATE,
	GRADIENT = STEP | WEIGHT_DECAY,
	ADAM = GRADIENT | BETA1 | BETA2 | EPSILON,
};
#define OPTION(member, bit, range) { #member, bit, offsetof(tutti_update, member), range }
static const struct option options[] = {
	OPTION(scale, SCALE, ANY), OPTION(learning_rate, LEARNING_RATE, FROM_ZERO),
	OPTION(weight_decay, WEIGHT_DECAY, FROM_ZERO),
	OPTION(momentum, MOMENTUM, BELOW_ONE), OPTION(rho, RHO, BELOW_ONE),
	OPTION(compensation, COMPENSATION, FROM_ZERO),
	OPTION(beta1, BETA1, BELOW_ONE), OPTION(beta2, BETA2, BELOW_ONE), OPTION(epsilon, EPSILON, FROM_ZERO),
	OPTION(alpha, ALPHA, POSITIVE), OPTION(beta, BETA, FROM_ZERO), OPTION(l1, L1, FROM_ZERO),
	OPTION(l2, L2, FROM_ZERO),
};

static double *number(const tutti_update *o, const struct option *of) { return (double *)((uintptr_t)o + of->at); }

static bool is_within(double x, int range)
{
	return isfinite(x) && (range == ANY || (range == POSITIVE ? x > 0 : x >= 0 && (range == FROM_ZERO || x < 1)));
}

/* Rules. */

static void weigh_gradient(struct tt_factors *f, const tutti_update *o)
{
	f->rate = o->learning_rate;
	f->decay = o->weight_decay;
	f->keep = o->momentum;
	f->fresh = 1;
	f->epsilon = o->epsilon;
}

static void weigh_average(struct tt_factors *f, const tutti_update *o)
{
	weigh_gradient(f, o);
	f->fresh = 1 - o->momentum;
	f->compensation = o->compensation;
}

static void weigh_rmsprop(struct tt_factors *f, const tutti_update *o)
{
	weigh_gradient(f, o);
	f->keep2 = o->rho;
	f->fresh2 = 1 - o->rho;
}

static void weigh_moments(struct tt_factors *f, const tutti_update *o, uint64_t t)
{
	f->rate = o->learning_rate / (1 - pow(o->beta1, (double)t));
	f->root = 1 / sqrt(1 - pow(o->beta2, (double)t));
	f->keep = o->beta1;
	f->fresh = 1 - o->beta1;
	f->keep2 = o->beta2;
	f->fresh2 = 1 - o->beta2;
	f->epsilon = o->epsilon;
}

static void weigh_ftrl(struct tt_factors *f, const tutti_update *o)
{
	f->per_alpha = 1 / o->alpha;
	f->beta = o->beta;
	f->l1 = o->l1;
	f->l2 = o->l2;
}

static void weigh(struct tt_factors *f, tutti_update_rule rule, const tutti_update *o, uint64_t t)
{
	*f = (struct tt_factors){ .scale = o->scale, .shrink = 1 };
	switch (rule) {
	case TUTTI_UPDATE_SMOOTHED:
	case TUTTI_UPDATE_DCASGD:
	case TUTTI_UPDATE_DCASGDA: weigh_average(f, o); break;
	case TUTTI_UPDATE_RMSPROP: weigh_rmsprop(f, o); break;
	case TUTTI_UPDATE_ADAM:
		weigh_moments(f, o, t);
		f->decay = o->weight_decay;
		break;
	case TUTTI_UPDATE_ADAMW:
		weigh_moments(f, o, t);
		f->shrink = 1 - o->learning_rate * o->weight_decay;
		break;
	case TUTTI_UPDATE_FTRL: weigh_ftrl(f, o); break;
	case TUTTI_UPDATE_ELASTIC: f->rate = o->alpha; break;
	default: weigh_gradient(f, o);
	}
}

static const struct rule {
	const char *name;
	unsigned takes;        /* options; all take the worker */
	unsigned flags;        /* allowed */
	bool each;             /* each worker has its own state */
	const char *states[2]; /* names, part of the file format */
	tutti_update defaults;
} rules[] = {
	[TUTTI_UPDATE_ADD] = { "add", .takes = SCALE, .defaults = { .scale = 1 } },
	[TUTTI_UPDATE_ASSIGN] = { "assign", .takes = 0 },
	[TUTTI_UPDATE_SGD] = { "sgd", .takes = GRADIENT, .defaults = { .scale = 1, .learning_rate = 1 } },
	[TUTTI_UPDATE_MOMENTUM] = { "momentum", .takes = GRADIENT | MOMENTUM, .states = { "m" },
		.defaults = { .scale = 1, .learning_rate = 1, .momentum = 0.9 } },
	[TUTTI_UPDATE_SMOOTHED] = { "smoothed", .takes = GRADIENT | MOMENTUM, .states = { "m" },
		.defaults = { .scale = 1, .learning_rate = 1 } },
	[TUTTI_UPDATE_NESTEROV] = { "nesterov", .takes = GRADIENT | MOMENTUM, .states = { "m" },
		.defaults = { .scale = 1, .learning_rate = 1, .momentum = 0.9 } },
	[TUTTI_UPDATE_ADAGRAD] = { "adagrad", .takes = GRADIENT | EPSILON, .flags = TUTTI_SHARED_STATE,
		.each = true, .states = { "G" }, .defaults = { .scale = 1, .learning_rate = 0.01, .epsilon = 1e-6 } },
	[TUTTI_UPDATE_RMSPROP] = { "rmsprop", .takes = GRADIENT | RHO | EPSILON, .states = { "v" },
		.defaults = { .scale = 1, .learning_rate = 0.01, .rho = 0.99, .epsilon = 1e-8 } },
	[TUTTI_UPDATE_ADAM] = { "adam", .takes = ADAM, .states = { "m", "v" },
		.defaults = { .scale = 1, .learning_rate = 0.001, .beta1 = 0.9, .beta2 = 0.999, .epsilon = 1e-8 } },
	[TUTTI_UPDATE_ADAMW] = { "adamw", .takes = ADAM, .states = { "m", "v" }, .defaults = { .scale = 1,
		.learning_rate = 0.001, .weight_decay = 0.01, .beta1 = 0.9, .beta2 = 0.999, .epsilon = 1e-8 } },
	[TUTTI_UPDATE_DCASGD] = { "dcasgd", .takes = STEP | COMPENSATION, .flags = TUTTI_BACKUP_FROM_ZERO,
		.each = true, .states = { "b" },
		.defaults = { .scale = 1, .learning_rate = 0.01, .compensation = 0.1 } },
	[TUTTI_UPDATE_DCASGDA] = { "dcasgda", .takes = STEP | COMPENSATION | MOMENTUM | EPSILON,
		.flags = TUTTI_BACKUP_FROM_ZERO, .each = true, .states = { "b", "s" },
		.defaults = { .scale = 1, .learning_rate = 0.01, .compensation = 0.1, .momentum = 0.95,
			.epsilon = 1e-7 } },
	[TUTTI_UPDATE_FTRL] = { "ftrl", .states = { "z", "n" },
		.takes = SCALE | ALPHA | BETA | L1 | L2,
		.defaults = { .scale = 1, .alpha = 0.005, .beta = 1 } },
	[TUTTI_UPDATE_ELASTIC] = { "elastic", .takes = ALPHA, .states = { "wide" }, .defaults = { .alpha = 0.5 } },
	[TUTTI_UPDATE_OWN] = { "own", .takes = ~0u, .flags = TUTTI_SHARED_STATE, .each = true },
};
static const char *const own_states[TT_UPDATE_STATES] = { "own0", "own1", "own2", "own3" };

const char *tt_update_name(tutti_update_rule rule) { return (size_t)rule < TT_COUNT(rules) ? rules[rule].name : NULL; }

bool tt_updater_gives_back(const tutti_updater *a) { return a->rule == TUTTI_UPDATE_ELASTIC; }

static bool keeps_backup(tutti_update_rule rule) { return rule == TUTTI_UPDATE_DCASGD || rule == TUTTI_UPDATE_DCASGDA; }

static int count_states(const struct tt_updater *u)
{
	const struct rule *r = &rules[u->as.rule];

	if (u->as.rule == TUTTI_UPDATE_ELASTIC && tt_type_size(u->type) >= sizeof(float))
		return 0; /* 16 bits alone are less than the moves need */
	return u->as.rule == TUTTI_UPDATE_OWN ? u->as.own_states : !!r->states[0] + !!r->states[1];
}

static bool has_state_each(const tutti_updater *a) { return rules[a->rule].each && !(a->flags & TUTTI_SHARED_STATE); }

/* Checks of what a program passes and of what other ranks send. */

static int check_option(const struct rule *r, const tutti_update *o, const struct option *of)
{
	double x = *number(o, of);

	if (isnan(x))
		return 0;
	if (!(r->takes & of->bit))
		return tt_fail(-EINVAL, "the rule %s has no %s, which is %g: leave it NaN, as tutti_update_defaults() "
		               "and the functions of rules, such as tutti_sgd(), do", r->name, of->name, x);
	if (!is_within(x, r == &rules[TUTTI_UPDATE_OWN] ? ANY : of->range))
		return tt_fail(-EINVAL, "%s is %g: it must be %s", of->name, x, range_names[of->range]);
	return 0;
}

static int check_options(tutti_update_rule rule, const tutti_update *o)
{
	int err = TT_RESERVED(tutti_update, o);

	if (err)
		return err;
	if (o->worker < -1)
		return tt_fail(-EINVAL, "worker is %d: it must be from 0 up, or -1 for the one that pushes",
		               o->worker);
	for (size_t k = 0; !err && k < TT_COUNT(options); k++)
		err = check_option(&rules[rule], o, &options[k]);
	return err;
}

static int check_own(const tutti_updater *a)
{
	if (a->rule != TUTTI_UPDATE_OWN)
		return !a->own && !a->own_states ? 0 :
		       tt_fail(-EINVAL, "the rule %s comes with a function of its own: that is for TUTTI_UPDATE_OWN",
		               rules[a->rule].name);
	if (!a->own)
		return tt_fail(-EINVAL, "TUTTI_UPDATE_OWN needs a function: set tutti_updater.own");
	if (a->own_states < 0 || a->own_states > TT_UPDATE_STATES)
		return tt_fail(-EINVAL, "own_states is %d: it must be from 0 to %d", a->own_states, TT_UPDATE_STATES);
	return 0;
}

/* The integer kernels add and assign, without factors. */
static int check_type(const tutti_updater *a, tutti_type type)
{
	if (!tt_type_size(type))
		return tt_fail(-EINVAL, "there is no type %d", (int)type);
	if (tt_type_is_float(type))
		return 0;
	if (a->rule != TUTTI_UPDATE_ADD && a->rule != TUTTI_UPDATE_ASSIGN && a->rule != TUTTI_UPDATE_OWN)
		return tt_fail(-EINVAL, "the rule %s is not for integers: they can be added or assigned",
		               rules[a->rule].name);
	if (a->rule == TUTTI_UPDATE_ADD && !isnan(a->defaults.scale))
		return tt_fail(-EINVAL, "a table of integers adds them as they are: it has no scale");
	return 0;
}

int tt_updater_check(const tutti_updater *a, tutti_type type)
{
	int err = TT_RESERVED(tutti_updater, a);

	if (err)
		return err;
	if (!tt_update_name(a->rule))
		return tt_fail(-EINVAL, "there is no update rule %d", (int)a->rule);
	if (a->flags & ~rules[a->rule].flags)
		return tt_fail(-EINVAL, "the rule %s takes no flags %#x", rules[a->rule].name,
		               a->flags & ~rules[a->rule].flags);
	if ((err = check_options(a->rule, &a->defaults)))
		return err;
	if (a->defaults.worker != -1)
		return tt_fail(-EINVAL, "worker is %d in a table's defaults, and must be -1: it is an option of a "
		               "push", a->defaults.worker);
	return (err = check_own(a)) ? err : check_type(a, type);
}

int tt_update_check(const tutti_updater *a, const tutti_update *o) { return o ? check_options(a->rule, o) : 0; }

/* Replaces the options that `over` sets. */
static void overlay(tutti_update *to, const tutti_update *over)
{
	for (size_t k = 0; k < TT_COUNT(options); k++)
		if (!isnan(*number(over, &options[k])))
			*number(to, &options[k]) = *number(over, &options[k]);
}

/* State. */

static size_t state_size(const struct tt_updater *u) { return u->type == TUTTI_F64 ? sizeof(double) : sizeof(float); }

static void unmap_all(const struct tt_updater *u, char **state, int workers, size_t count)
{
	int n = count_states(u);

	for (int i = 0; state && i < workers * n; i++)
		tt_pages_unmap(state[i], count * state_size(u));
}

static int no_memory(const struct tt_updater *u, int arrays, size_t count)
{
	return tt_fail(-ENOMEM, "no memory for the state of %s: %d arrays of %zu numbers", rules[u->as.rule].name,
	               arrays, count);
}

/* Maps the arrays of workers from `from` on, all or none. */
static int map_all(const struct tt_updater *u, char **state, int from, int workers, size_t count)
{
	int n = count_states(u);

	for (int i = from * n; i < workers * n; i++)
		if (!(state[i] = tt_pages_map(count * state_size(u)))) {
			while (i-- > from * n)
				tt_pages_unmap(state[i], count * state_size(u));
			return no_memory(u, workers * n, count);
		}
	return 0;
}

int tt_updater_join(struct tt_updater *u, int workers)
{
	int n = count_states(u), wanted = has_state_each(&u->as) ? workers : 1;
	char **state;
	int err;

	if (workers <= u->members)
		return 0;
	if (wanted > u->workers) {
		if (!(state = realloc(u->state, (size_t)(wanted * n + 1) * sizeof *state)))
			return tt_fail(-ENOMEM, "no memory for the state of %d workers", workers);
		u->state = state;
		if ((err = map_all(u, state, u->workers, wanted, u->count)))
			return err;
		u->workers = wanted;
	}
	u->members = workers;
	return 0;
}

int tt_updater_resize(struct tt_updater *u, size_t count)
{
	int n = u->workers * count_states(u);
	size_t bytes = u->count * state_size(u), now = count * state_size(u);

	for (int i = 0; i < n; i++) {
		char *at = tt_pages_resize(u->state[i], bytes, now);
		if (!at) {
			while (i-- > 0)
				u->state[i] = tt_pages_resize(u->state[i], now, bytes); /* shrinking does not fail */
			return no_memory(u, n, count);
		}
		u->state[i] = at;
	}
	u->count = count;
	return 0;
}

int tt_updater_open(const tutti_updater *as, tutti_type type, size_t count, int workers, struct tt_updater **updater)
{
	int err = tt_updater_check(as, type);
	struct tt_updater *u;

	if (err)
		return err;
	if (!(u = calloc(1, sizeof *u)))
		return tt_fail(-ENOMEM, "no memory for an updater");
	u->as = *as;
	u->as.defaults = rules[as->rule].defaults;
	overlay(&u->as.defaults, &as->defaults);
	u->type = type;
	u->count = count;
	if ((err = tt_updater_join(u, workers))) {
		tt_updater_close(u);
		return err;
	}
	*updater = u;
	return 0;
}

void tt_updater_close(struct tt_updater *u)
{
	if (!u)
		return;
	unmap_all(u, u->state, u->workers, u->count);
	free(u->state);
	free(u);
}

static char *element(const struct tt_updater *u, char *array, size_t i) { return array + i * state_size(u); }

static void back_up(struct tt_updater *u, int worker, const void *w, size_t first, size_t count)
{
	for (int k = worker < 0 ? 0 : worker; k < (worker < 0 ? u->workers : worker + 1); k++)
		tt_reduce_back_up(element(u, u->state[k * count_states(u)], first), w, count, u->type);
}

/* The z of which FTRL computes this w. |z| is more than l1 if w is not 0, so there is exactly one. */
static double solve_ftrl(double w, double n, const tutti_update *o)
{
	return w == 0 ? 0 : -(w * ((o->beta + sqrt(n)) / o->alpha + o->l2) + copysign(o->l1, w));
}

static void solve_all(struct tt_updater *u, const void *w, size_t first, size_t count)
{
	void *z = element(u, u->state[0], first), *n = element(u, u->state[1], first);

	tt_reduce_back_up(z, w, count, u->type); /* converts w to numbers */
	for (size_t i = 0; i < count; i++)
		if (u->type == TUTTI_F64)
			((double *)z)[i] = solve_ftrl(((double *)z)[i], ((double *)n)[i], &u->as.defaults);
		else
			((float *)z)[i] = (float)solve_ftrl(((float *)z)[i], ((float *)n)[i], &u->as.defaults);
}

void tt_updater_assigned(struct tt_updater *u, int worker, const void *w, size_t first, size_t count)
{
	if (keeps_backup(u->as.rule) && !(u->as.flags & TUTTI_BACKUP_FROM_ZERO))
		back_up(u, worker, w, first, count);
	if (u->as.rule == TUTTI_UPDATE_FTRL && worker < 0) /* all workers share its state */
		solve_all(u, w, first, count);
}

int tt_updater_states(const struct tt_updater *u) { return u->workers * count_states(u); }

struct tt_state tt_updater_state(const struct tt_updater *u, int i)
{
	int n = count_states(u), worker = has_state_each(&u->as) ? i / n : -1;
	const char *const *names = u->as.rule == TUTTI_UPDATE_OWN ? own_states : rules[u->as.rule].states;

	return (struct tt_state){ names[i % n], worker, u->state[i], u->count * state_size(u) };
}

uint64_t tt_updater_pushes(const struct tt_updater *u) { return u->pushes; }
void tt_updater_set_pushes(struct tt_updater *u, uint64_t t) { u->pushes = t; }

/* A push. */

void tt_updater_follow(struct tt_push *push)
{
	const struct tt_updater *u = push->updater;
	int n = count_states(u);

	for (int k = 0; k < n; k++)
		push->state[k] = u->state[(has_state_each(&u->as) ? push->options.worker : 0) * n + k];
}

int tt_updater_begin(struct tt_updater *u, int worker, const tutti_update *over, struct tt_push *push)
{
	int err = tt_update_check(&u->as, over);

	if (err)
		return err;
	if (over && !isnan(over->scale) && u->as.rule == TUTTI_UPDATE_ADD &&
	    (u->type == TUTTI_I32 || u->type == TUTTI_I64))
		return tt_fail(-EINVAL, "a table of integers adds them as they are: it has no scale");
	worker = over && over->worker >= 0 ? over->worker : worker;
	if (worker < 0 || worker >= u->members)
		return tt_fail(-EINVAL, "worker %d: this table has the workers 0 to %d", worker, u->members - 1);
	*push = (struct tt_push){ .updater = u, .options = u->as.defaults, .t = ++u->pushes };
	if (over)
		overlay(&push->options, over);
	push->options.worker = worker;
	tt_updater_follow(push);
	weigh(&push->factors, u->as.rule, &push->options, push->t);
	return 0;
}

static void call_own(const struct tt_push *p, size_t first, size_t count, const struct tt_piece *at, void *const *state)
{
	const struct tt_updater *u = p->updater;
	const tutti_update_piece piece = { .type = u->type, .first = first, .count = count, .to = at->to, .w = at->w,
		                           .d = at->d, .state = state, .t = p->t, .options = &p->options,
		                           .arg = u->as.own_arg };

	u->as.own(&piece);
}

static void run_rule(const struct tt_push *p, size_t count, const struct tt_piece *at, void *const *state)
{
	struct tt_update_run run = { .to = at->to, .out = at->out, .w = at->w, .d = at->d, .factors = &p->factors };

	for (size_t k = 0; k < TT_COUNT(run.state); k++)
		run.state[k] = state[k];
	tt_reduce_update(&run, count, p->updater->type, p->updater->as.rule);
}

/* Is the rule w = by_w w + by_d d? */
static bool find_blend(const struct tt_push *p, double *by_w, double *by_d)
{
	const struct tt_factors *f = &p->factors;
	bool adds = p->updater->as.rule == TUTTI_UPDATE_ADD;

	*by_w = adds ? 1 : 1 - f->rate * f->decay;
	*by_d = adds ? f->scale : -f->rate * f->scale;
	return adds || p->updater->as.rule == TUTTI_UPDATE_SGD;
}

void tt_updater_apply(const struct tt_push *p, size_t first, size_t count, const struct tt_piece *at)
{
	const struct tt_updater *u = p->updater;
	void *state[TT_UPDATE_STATES] = { 0 };
	double by_w, by_d;

	for (int k = 0; k < count_states(u); k++)
		state[k] = element(u, p->state[k], first);
	if (u->as.rule == TUTTI_UPDATE_ASSIGN)
		memcpy(at->to, at->d, count * tt_type_size(u->type));
	else if (u->as.rule == TUTTI_UPDATE_OWN)
		call_own(p, first, count, at, state);
	else if (!find_blend(p, &by_w, &by_d))
		run_rule(p, count, at, state);
	else if (by_w == 1 && by_d == 1)
		tt_reduce_to(at->to, at->w, at->d, count, u->type, TUTTI_SUM);
	else
		tt_blend(at->to, by_w, at->w, by_d, at->d, count, u->type);
}

/* Rules that do not compute in the kernels' modes. */
static void apply_each(const struct tt_push *p, const struct tt_rows_piece *r)
{
	size_t width = tt_type_size(p->updater->type);

	for (size_t i = 0, n; i < r->n; i += n) {
		size_t first = (size_t)r->places[i] * r->row + r->at;
		char *w = (char *)r->w + first * width;
		n = tt_rows_adjacent(r, i);
		tt_updater_apply(p, first, n * r->count,
		                 &(struct tt_piece){ .to = w, .w = w, .d = (const char *)r->d + i * r->count * width });
	}
}

void tt_updater_apply_rows(const struct tt_push *p, const struct tt_rows_piece *r)
{
	const struct tt_updater *u = p->updater;
	struct tt_rows_run run = { .rows = r, .rule = u->as.rule, .factors = &p->factors, .number = state_size(u) };

	if (u->as.rule == TUTTI_UPDATE_ASSIGN || u->as.rule == TUTTI_UPDATE_OWN) {
		apply_each(p, r);
		return;
	}
	run.blends = find_blend(p, &run.by_w, &run.by_d);
	for (int k = 0; k < count_states(u); k++)
		run.state[k] = p->state[k];
	tt_reduce_rows(&run, u->type);
}
