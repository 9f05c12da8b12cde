/* gradients.c - all-reduce SGD: gradients are summed in buckets while the backward pass computes the next ones, and the
 * parameters of the rank with most steps become everybody's
 *
 *      tensors       0 1 | 2 | 3 4 5       a backward pass has the last ones first
 *      buckets        2    1     0         bucket 0 begins when 3, 4 and 5 are ready
 *
 *      a rank that has steps     count 1, buckets 0, 1, 2
 *      one that is out of them   count 0; if others have some, too: zeros in buckets 0, 1, 2
 */
#include "average/average_private.h"
#include "kernel/kernel.h"
#include "operation/operation.h"
#include <stdlib.h>
#include <string.h>

enum { BUCKET = 16 << 20 }; /* bytes; docs/design.md has the figures */

struct bucket { /* tensors of one type, one behind another */
	tutti_tensor *tensors;
	int n, missing;
};

struct tutti_gradients {
	struct tt_handle handle;
	struct tt_round round;
	struct tt_model model;
	struct bucket *buckets;
	int n;
	int *bucket_of;  /* of each tensor */
	bool *ready;
	bool ruled;      /* the round's rule is that of the step before, which is likely this one's, too */
	int weighed;     /* buckets of this step that are the average of the contributors */
	bool joins;      /* a synchronization was interrupted: the round is its own */
	bool torn;       /* parameters of another rank came in part */
	int64_t steps;   /* since the last synchronization */
	struct tt_composite whole; /* a step whose end was started */
};

static size_t bytes_of(const tutti_tensor *t) { return t->count * tt_type_size(t->type); }

static void cut(struct tutti_gradients *g, size_t room)
{
	size_t bytes = 0;

	for (int i = g->model.n - 1; i >= 0; i--) {
		tutti_tensor *t = &g->model.tensors[i];
		if (!g->n || t->type != t[1].type || bytes + bytes_of(t) > room) {
			g->n++;
			bytes = 0;
		}
		bytes += bytes_of(t);
		g->bucket_of[i] = g->n - 1;
		g->buckets[g->n - 1].tensors = t;
		g->buckets[g->n - 1].n++;
	}
}

static void begin_step(struct tutti_gradients *g)
{
	memset(g->ready, 0, (size_t)g->model.n * sizeof *g->ready);
	g->weighed = 0;
	for (int b = 0; b < g->n; b++)
		g->buckets[b].missing = g->buckets[b].n;
}

static int make(struct tutti_gradients *g, tutti *group, size_t room)
{
	static const char what[] = "tutti_gradients_open";
	size_t n = (size_t)g->model.n;

	if (!tt_model_is_float(&g->model))
		return tt_fail(-EINVAL, "%s: gradients are f32, f64, f16 or bf16", what);
	g->buckets = calloc(n, sizeof *g->buckets);
	g->bucket_of = calloc(n, sizeof *g->bucket_of);
	g->ready = calloc(n, sizeof *g->ready);
	if (!g->buckets || !g->bucket_of || !g->ready)
		return tt_fail(-ENOMEM, "%s: no memory for %d tensors", what, g->model.n);
	cut(g, room ? room : BUCKET);
	begin_step(g);
	return tt_round_open(&g->round, group, g->n, what);
}

static void release_gradients(struct tt_handle *h)
{
	struct tutti_gradients *g = tt_container_of(h, struct tutti_gradients, handle);

	tt_round_close(&g->round);
	tt_model_close(&g->model);
	free(g->buckets);
	free(g->bucket_of);
	free(g->ready);
	free(g);
}

static int open_gradients(tutti *group, const tutti_tensor *grads, int n, size_t bucket_bytes, tutti_gradients **out)
{
	static const struct tt_handle_kind kind = { .release = release_gradients, .noun = "gradients" };
	struct tutti_gradients *g = calloc(1, sizeof *g);
	int err;

	if (!g)
		return tt_fail(-ENOMEM, "tutti_gradients_open: no memory");
	err = tt_model_open(&g->model, grads, n, "tutti_gradients_open");
	if (!err)
		err = tt_tensors_host_only("tutti_gradients_open", grads, n);
	if (err || (err = make(g, group, bucket_bytes))) {
		release_gradients(&g->handle);
		return err;
	}
	tt_round_hold(&g->round, &g->handle, group->job, &kind);
	*out = g;
	return 0;
}

int tutti_gradients_open(tutti *group, const tutti_tensor *grads, int n, size_t bucket_bytes, tutti_gradients **out)
{
	int err = tt_given(out, "tutti_gradients_open: gradients");

	if (err || (err = tt_group_usable(group)) || (err = tt_users_enter(group->job, &group->handle.users)))
		return err;
	err = open_gradients(group, grads, n, bucket_bytes, out);
	tt_users_exit(group->job, &group->handle.users);
	return err;
}

void tutti_gradients_close(tutti_gradients *g)
{
	struct tt_sentence last = tt_last_sentence();

	if (!g || !tt_handle_close(&g->handle))
		return;
	tt_unlock(g->handle.job);
	tt_composite_close(&g->whole);
	tt_round_settle(&g->round);
	tt_handle_free(&g->handle);
	tt_remember(last.text);
}

int tutti_gradients_regroup(tutti_gradients *g, tutti *group)
{
	int err = tt_given(g, "tutti_gradients_regroup: gradients");

	if (err || (err = tt_group_usable(group)) || (err = tt_users_enter(g->handle.job, &g->handle.users)))
		return err;
	if (!(err = tt_composite_idle(&g->whole, "tutti_gradients_regroup")) &&
	    !(err = tt_round_reset(&g->round, &g->handle, group))) {
		g->joins = false;
		begin_step(g);
	}
	tt_users_exit(g->handle.job, &g->handle.users);
	return err;
}

static int leave(tutti_gradients *g, int err) { return tt_round_exit(&g->round, &g->handle, err); }

/* A call begins. Not while a step whose end was started runs, or is not applied. */
static int enter(tutti_gradients *g, const char *name)
{
	int err = tt_given(g, name);

	if (err || (err = tt_round_enter(&g->round, &g->handle)))
		return err;
	return (err = tt_composite_idle(&g->whole, "gradients")) ? leave(g, err) : 0;
}

/* ---- a step ---- */

static int buckets_begun(const struct tutti_gradients *g) { return g->round.begun ? g->round.begun - 1 : 0; }

static int begin_bucket(struct tutti_gradients *g, int (*sum)(struct tt_round *, const tutti_tensor *, int))
{
	int err = g->round.begun ? 0 : tt_round_count(&g->round, true);
	const struct bucket *b = &g->buckets[buckets_begun(g)];

	return err ? err : sum(&g->round, b->tensors, b->n);
}

static int check_step(const struct tutti_gradients *g)
{
	return !g->joins ? 0 : tt_fail(-EINVAL, "tutti_gradients_synchronize was interrupted: call it again before the "
	                               "next step");
}

/* The end of a step that was interrupted goes on when it is called again; nothing else may begin before that. */
static int check_end(const struct tutti_gradients *g, const char *call)
{
	if (!g->round.interrupted || g->joins)
		return 0;
	return tt_fail(-EINVAL, "%s: tutti_gradients_%s was interrupted: call it again first", call,
	               g->round.rule == TUTTI_SUM ? "sum" : "average");
}

static int make_ready(struct tutti_gradients *g, int i)
{
	int err = check_step(g);

	if (err || (err = check_end(g, "tutti_gradients_ready")))
		return err;
	if (i < 0 || i >= g->model.n || g->ready[i])
		return tt_fail(-EINVAL, "tutti_gradients_ready: gradient %d %s", i, i < 0 || i >= g->model.n ?
		               "is not there" : "is ready already; tutti_gradients_sum or _average ends the step");
	g->ready[i] = true;
	g->buckets[g->bucket_of[i]].missing--;
	while (!err && g->ruled && buckets_begun(g) < g->n && !g->buckets[buckets_begun(g)].missing)
		err = begin_bucket(g, tt_round_sum_now);
	return err == -EAGAIN ? 0 : err; /* a later call begins it */
}

int tutti_gradients_ready(tutti_gradients *g, int i)
{
	int err = enter(g, "tutti_gradients_ready: gradients");

	return err ? err : leave(g, make_ready(g, i));
}

/* The average of all ranks becomes that of the contributors. Twice the half: 0 times an infinity would be a NaN. */
static void weigh(const struct bucket *b, double half)
{
	for (int i = 0; i < b->n; i++) {
		const tutti_tensor *t = &b->tensors[i];
		tt_blend(t->data, half, t->data, half, t->data, t->count, t->type);
	}
}

static int begin_all(struct tutti_gradients *g, tutti_rule rule)
{
	int err = check_step(g);

	if (err)
		return err;
	if (g->round.begun && g->round.rule != rule)
		return tt_fail(-EINVAL, "a step whose gradients were ready ends as the step before: with "
		               "tutti_gradients_%s", rule == TUTTI_SUM ? "average" : "sum");
	g->round.rule = rule;
	g->ruled = true;
	while (!err && buckets_begun(g) < g->n)
		err = begin_bucket(g, tt_round_sum);
	return err;
}

static int finish_step(struct tutti_gradients *g, int *contributors)
{
	int n = 0, all = g->round.group->n, err = tt_round_contributors(&g->round, &n);

	for (; !err && g->weighed < g->n && !(err = tt_round_wait(&g->round, g->weighed + 1)); g->weighed++)
		if (g->round.rule == TUTTI_AVERAGE && n < all)
			weigh(&g->buckets[g->weighed], 0.5 * all / n);
	if (err || (err = tt_round_end(&g->round)))
		return err;
	begin_step(g);
	g->steps++;
	if (contributors)
		*contributors = n;
	return 0;
}

static int end_step(struct tutti_gradients *g, tutti_rule rule, int *contributors)
{
	int err = begin_all(g, rule);

	return err ? err : finish_step(g, contributors);
}

int tutti_gradients_sum(tutti_gradients *g, int *contributors)
{
	int err = enter(g, "tutti_gradients_sum: gradients");

	return err ? err : leave(g, end_step(g, TUTTI_SUM, contributors));
}

int tutti_gradients_average(tutti_gradients *g, int *contributors)
{
	int err = enter(g, "tutti_gradients_average: gradients");

	return err ? err : leave(g, end_step(g, TUTTI_AVERAGE, contributors));
}

/* ---- the end of a step, started ---- */

static int begin_end(struct tutti_gradients *g, tutti_rule rule, tutti_op *op)
{
	struct tt_job *job = g->handle.job;
	int err = tt_given(op, "a started step of gradients: op");

	if (err || (err = tt_operation_may_begin(job, op)) || (err = begin_all(g, rule)))
		return err;
	tt_composite_begin(&g->whole, job, op, "step of gradients", g->round.ops, g->round.begun);
	return 0;
}

int tutti_gradients_sum_start(tutti_gradients *g, tutti_op *op)
{
	int err = enter(g, "tutti_gradients_sum_start: gradients");

	return err ? err : leave(g, begin_end(g, TUTTI_SUM, op));
}

int tutti_gradients_average_start(tutti_gradients *g, tutti_op *op)
{
	int err = enter(g, "tutti_gradients_average_start: gradients");

	return err ? err : leave(g, begin_end(g, TUTTI_AVERAGE, op));
}

static int apply(struct tutti_gradients *g, int *contributors)
{
	bool started = g->whole.started;
	int err = tt_composite_take(&g->whole, "tutti_gradients_apply");

	return !started || err == -EINPROGRESS ? err : finish_step(g, contributors); /* has the round's own error */
}

int tutti_gradients_apply(tutti_gradients *g, int *contributors)
{
	int err = tt_given(g, "tutti_gradients_apply: gradients");

	if (err || (err = tt_round_enter(&g->round, &g->handle)))
		return err;
	return leave(g, apply(g, contributors));
}

/* ---- everybody's parameters ---- */

static int sum_zeros(struct tutti_gradients *g)
{
	int err = 0;

	for (int i = 0; buckets_begun(g) == 0 && i < g->model.n; i++)
		if (g->model.tensors[i].count)
			memset(g->model.tensors[i].data, 0, bytes_of(&g->model.tensors[i]));
	for (int b = buckets_begun(g); !err && b < g->n; b++)
		err = tt_round_sum(&g->round, g->buckets[b].tensors, g->buckets[b].n);
	return err ? err : tt_round_end(&g->round);
}

/* Goes on with the round that an interrupted call has begun. */
static int join_round(struct tutti_gradients *g, int *others)
{
	int err = g->round.begun ? 0 : tt_round_count(&g->round, false);

	return err ? err : tt_round_contributors(&g->round, others);
}

static int join_rounds(struct tutti_gradients *g) /* until no rank has a step left */
{
	int others, err;

	while (!(err = join_round(g, &others)) && others)
		if ((err = sum_zeros(g)))
			return err;
	return err ? err : tt_round_end(&g->round);
}

static int join_others(struct tutti_gradients *g)
{
	g->ruled = false;
	int err = join_rounds(g);

	g->joins = err == -EINTR;
	return err;
}

/* Most steps, then the lowest rank; torn parameters come last. */
static int choose_winner(struct tutti_gradients *g, int *winner)
{
	int64_t n = g->round.group->n, steps = g->torn ? 0 : g->steps + 1;
	int64_t best = steps * n + n - 1 - g->round.group->me;
	int err = tutti_allreduce(g->round.group, &best, &best, 1, TUTTI_I64, TUTTI_MAX, NULL);

	if (err)
		return err;
	g->torn = g->torn && best >= n; /* else the program gets them from elsewhere, and calls again */
	*winner = (int)(n - 1 - best % n);
	return best >= n ? 0 : tt_fail(-ENODATA, "tutti_gradients_synchronize: no rank is left whose parameters are "
	                               "whole: take them from a save");
}

static int spread(struct tutti_gradients *g, const tutti_tensor *params, int n, int winner)
{
	int err = 0;

	g->torn = winner != g->round.group->me;
	for (int i = 0; !err && i < n; i++)
		err = tutti_broadcast(g->round.group, params[i].data, bytes_of(&params[i]), winner, NULL);
	if (err)
		return err;
	g->torn = false;
	g->steps = 0;
	return 0;
}

static int check_between_steps(const struct tutti_gradients *g, const char *call)
{
	int err = check_end(g, call);

	if (!err && (memchr(g->ready, true, (size_t)g->model.n) || (g->round.begun && !g->joins)))
		err = tt_fail(-EINVAL, "%s: gradients of a step are ready; tutti_gradients_sum or _average ends it",
		              call);
	return err;
}

static int synchronize(struct tutti_gradients *g, const tutti_tensor *params, int n)
{
	struct tt_model model;
	int winner, err;

	if ((err = tt_model_open(&model, params, n, "tutti_gradients_synchronize")))
		return err;
	tt_model_close(&model); /* it was a list of tensors */
	if ((err = tt_tensors_host_only("tutti_gradients_synchronize", params, n)) ||
	    (err = check_between_steps(g, "tutti_gradients_synchronize")) || (err = join_others(g)) ||
	    (err = choose_winner(g, &winner)))
		return err;
	return spread(g, params, n, winner);
}

int tutti_gradients_synchronize(tutti_gradients *g, const tutti_tensor *params, int n)
{
	int err = enter(g, "tutti_gradients_synchronize: gradients");

	return err ? err : leave(g, synchronize(g, params, n));
}

/* ---- the state in a file: the counter ---- */

static const char state_of[] = "gradients";

static int check_state(const struct tutti_gradients *g, const char *call)
{
	int err = check_step(g);

	if (err || (err = check_between_steps(g, call)))
		return err;
	return !g->torn ? 0 : tt_fail(-EINVAL, "%s: parameters of another rank came in part: call "
	                              "tutti_gradients_synchronize first", call);
}

static int save_state(struct tutti_gradients *g, const char *path)
{
	uint64_t steps = (uint64_t)g->steps;
	const struct tt_held held = tt_held_numbers("steps", &steps, 1);
	int err = check_state(g, "tutti_gradients_save");

	return err ? err : tt_state_save(state_of, path, &held, 1);
}

int tutti_gradients_save(tutti_gradients *g, const char *path)
{
	int err = tt_given(path, "tutti_gradients_save: path");

	if (err || (err = enter(g, "tutti_gradients_save: gradients")))
		return err;
	return leave(g, save_state(g, path));
}

static int load_state(struct tutti_gradients *g, const char *path)
{
	uint64_t steps;
	const struct tt_held held = tt_held_numbers("steps", &steps, 1);
	int err = check_state(g, "tutti_gradients_load");

	if (err || (err = tt_state_load(state_of, path, &held, 1)))
		return err;
	g->steps = (int64_t)tt_min(steps, INT32_MAX);
	return 0;
}

int tutti_gradients_load(tutti_gradients *g, const char *path)
{
	int err = tt_given(path, "tutti_gradients_load: path");

	if (err || (err = enter(g, "tutti_gradients_load: gradients")))
		return err;
	return leave(g, load_state(g, path));
}
