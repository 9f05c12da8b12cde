/* center_config.c - a center's config: its kinds, what makes sense, what must be the same on all ranks */
#include "average/average_private.h"
#include "kernel/kernel.h"
#include "member/member.h"
#include "table/table.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static tutti_center_config config_of(tutti_center_kind kind, int tau, tutti_updater updater)
{
	return (tutti_center_config){ .kind = kind, .tau = tau, .updater = updater };
}

tutti_center_config tutti_center_easgd(int tau, double alpha)
{
	return config_of(TUTTI_CENTER_ELASTIC, tau, tutti_elastic(alpha));
}

tutti_center_config tutti_center_asgd(int tau) { return config_of(TUTTI_CENTER_DELTA, tau, tutti_accumulate()); }

tutti_center_config tutti_center_downpour(int tau, int average)
{
	tutti_center_config c = tutti_center_asgd(tau);

	c.average = average;
	c.consistency.mode = TUTTI_BSP;
	return c;
}

tutti_center_config tutti_center_outer(int steps, double rate, double momentum)
{
	tutti_center_config c = tutti_center_downpour(steps, 1);

	c.updater = tutti_nesterov(isnan(rate) ? 0.7 : rate, momentum); /* NESTEROV's own default is 0.9 */
	c.updater.defaults.scale = -1; /* a gradient points away from where x went */
	return c;
}

tutti_center_config tutti_center_own(int tau, tutti_updater updater, tutti_center_merge merge, void *arg)
{
	tutti_center_config c = config_of(TUTTI_CENTER_OWN, tau, updater);

	c.merge = merge;
	c.merge_arg = arg;
	return c;
}

/* ---- what makes sense ---- */

int tt_center_check_schedule(const tutti_center_config *c, const char *what, int tau, double alpha)
{
	if (tau < 1)
		return tt_fail(-EINVAL, "%s: tau is %d, and must be from 1 up", what, tau);
	if (c->updater.rule == TUTTI_UPDATE_ELASTIC && !isnan(alpha) && !(alpha > 0 && alpha <= 1))
		return tt_fail(-EINVAL, "%s: alpha is %g, and must be above 0 and at most 1, or NaN for %s", what,
		               alpha, c->kind == TUTTI_CENTER_ELASTIC ? "0.9 / workers" : "0.5");
	return 0;
}

static int check_list(const char *what, const char *role, int n, const int *list)
{
	if (n >= 0 && !n == !list)
		return 0;
	return tt_fail(-EINVAL, "%s: %ss is %d, and the list `%s` is %s: give a list and its length, or neither for "
	               "all ranks", what, role, n, role, list ? "there" : "NULL");
}

static int check_combination(const tutti_center_config *c, const char *what)
{
	bool elastic = c->kind == TUTTI_CENTER_ELASTIC, delta = c->kind == TUTTI_CENTER_DELTA;
	bool own = c->kind == TUTTI_CENTER_OWN, moves = c->updater.rule == TUTTI_UPDATE_ELASTIC;
	const struct {
		bool bad;
		const char *why;
	} faults[] = {
		{ (elastic && !moves) || (delta && moves), "kind and the servers' rule do not go together: "
		  "tutti_center_own takes any rule" },
		{ elastic && c->consistency.mode != TUTTI_ASYNC, "an elastic center on servers is asynchronous" },
		{ c->average && !delta, "only deltas are averaged" },
		{ c->bf16 && !delta, "only deltas travel as bf16" },
		{ c->merge && !own, "a function that merges is for tutti_center_own" },
	};

	for (size_t i = 0; i < TT_COUNT(faults); i++)
		if (faults[i].bad)
			return tt_fail(-EINVAL, "%s: %s", what, faults[i].why);
	return 0;
}

int tt_center_check(const tutti_center_config *c, const char *name)
{
	char what[200];
	int err = TT_RESERVED(tutti_center_config, c);

	if (err)
		return err;
	snprintf(what, sizeof what, "center \"%.160s\"", name);
	if (c->kind != TUTTI_CENTER_ELASTIC && c->kind != TUTTI_CENTER_DELTA && c->kind != TUTTI_CENTER_OWN)
		return tt_fail(-EINVAL, "%s: kind is %d, and must be TUTTI_CENTER_ELASTIC, _DELTA or _OWN", what,
		               (int)c->kind);
	if ((err = check_combination(c, what)) ||
	    (err = tt_center_check_schedule(c, what, c->tau, c->updater.defaults.alpha)) ||
	    (err = check_list(what, "server", c->servers, c->server)) ||
	    (err = check_list(what, "worker", c->workers, c->worker)))
		return err;
	if (!(c->momentum >= 0 && c->momentum < 1))
		return tt_fail(-EINVAL, "%s: momentum is %g, and must be from 0 to below 1", what, c->momentum);
	return 0;
}

/* ---- what must be the same on all ranks ---- */

struct opened { /* by a rank */
	uint64_t model, server, worker; /* checksums */
	int32_t kind, average, bf16, snapshots, rule, mode, staleness, backup, own_states, servers, workers, tau;
	uint32_t flags;
	tutti_update defaults;
};

static const char *const kinds[] = { "elastic", "delta", "own" };

static uint64_t sum_list(const int *list, int n) { return list ? tt_sum64(list, (size_t)n * sizeof *list) : 0; }

static const char *mode_of(const struct opened *o)
{
	const char *name = tt_mode_name((uint64_t)o->mode);

	return name ? name : "of another version";
}

static struct opened describe(const tutti_center_config *c, uint64_t model)
{
	return (struct opened){
		.model = model, .server = sum_list(c->server, c->servers), .worker = sum_list(c->worker, c->workers),
		.kind = (int32_t)c->kind, .average = c->average != 0, .bf16 = c->bf16 != 0,
		.snapshots = c->snapshots != 0, .rule = (int32_t)c->updater.rule,
		.mode = (int32_t)c->consistency.mode, .staleness = c->consistency.staleness,
		.backup = c->consistency.backup, .own_states = c->updater.own_states, .servers = c->servers,
		.workers = c->workers, .tau = c->tau, .flags = c->updater.flags, .defaults = c->updater.defaults,
	};
}

static const char *word(const char *const *words, size_t n, int i)
{
	return i >= 0 && (size_t)i < n ? words[i] : "of another version";
}

static const char *rule_name(int rule)
{
	const char *name = tt_update_name((tutti_update_rule)rule);

	return name ? name : "of another version";
}

struct comparison { /* with rank i */
	tutti *group;
	int i;
	const char *what;
};

static int compare_words(const struct comparison *c, const char *member, const char *theirs, const char *mine)
{
	return tt_schedule_compare_words(c->group, c->i, c->what, member, theirs, mine);
}

static int compare_numbers(const struct comparison *c, const struct opened *a, const struct opened *b)
{
	const tutti_update *o = &a->defaults, *p = &b->defaults;
	const struct {
		const char *member;
		double theirs, mine;
	} of[] = {
		{ "average", a->average, b->average }, { "bf16", a->bf16, b->bf16 },
		{ "snapshots", a->snapshots, b->snapshots }, { "consistency.staleness", a->staleness, b->staleness },
		{ "consistency.backup", a->backup, b->backup }, { "servers", a->servers, b->servers },
		{ "workers", a->workers, b->workers }, { "updater.flags", a->flags, b->flags },
		{ "updater.own_states", a->own_states, b->own_states },
		{ "scale", o->scale, p->scale }, { "learning_rate", o->learning_rate, p->learning_rate },
		{ "weight_decay", o->weight_decay, p->weight_decay }, { "momentum", o->momentum, p->momentum },
		{ "rho", o->rho, p->rho }, { "compensation", o->compensation, p->compensation },
		{ "beta1", o->beta1, p->beta1 }, { "beta2", o->beta2, p->beta2 },
		{ "epsilon", o->epsilon, p->epsilon }, { "alpha", o->alpha, p->alpha }, { "beta", o->beta, p->beta },
		{ "l1", o->l1, p->l1 }, { "l2", o->l2, p->l2 },
		{ "tau", a->tau, a->mode == TUTTI_BSP ? b->tau : a->tau },
	};
	int err = 0;

	for (size_t k = 0; !err && k < TT_COUNT(of); k++)
		err = tt_schedule_compare(c->group, c->i, c->what, of[k].member, of[k].theirs, of[k].mine);
	return err;
}

static int compare_lists(const struct comparison *c, const char *role, uint64_t theirs, uint64_t mine)
{
	return theirs == mine ? 0 : tt_fail(-EINVAL, "%s: %s lists other ranks as %ss than this rank", c->what,
	                                    tt_member_label(tt_group_member(c->group, c->i)).text, role);
}

static int compare_rank(const struct comparison *c, const struct opened *theirs, const struct opened *mine)
{
	int err;

	if ((err = compare_words(c, "kind", word(kinds, TT_COUNT(kinds), theirs->kind), kinds[mine->kind])) ||
	    (err = compare_words(c, "updater.rule", rule_name(theirs->rule), rule_name(mine->rule))) ||
	    (err = compare_words(c, "consistency.mode", mode_of(theirs), mode_of(mine))) ||
	    (err = compare_numbers(c, theirs, mine)) ||
	    (err = compare_lists(c, "server", theirs->server, mine->server)))
		return err;
	return compare_lists(c, "worker", theirs->worker, mine->worker);
}

int tt_center_compare(tutti *group, const char *name, const tutti_center_config *config,
                      const struct tt_model *model)
{
	const struct opened mine = describe(config, model->hash), *theirs;
	char what[200];
	void *all;
	int err = tt_schedule_gather(group, &mine, sizeof mine, &all, "center open");

	if (err)
		return err;
	snprintf(what, sizeof what, "center \"%.160s\"", name);
	theirs = all;
	err = tt_schedule_compare_models(group, what, all, sizeof mine, model);
	for (int i = 0; !err && i < group->n; i++)
		err = compare_rank(&(struct comparison){ group, i, what }, &theirs[i], &mine);
	free(all);
	return err;
}
