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
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { BUCKET = 16 << 20 }; /* bytes; docs/design.md has the figures */

struct bucket { /* tensors of one type, one behind another */
	tutti_tensor *tensors;
	int n, missing;
	size_t at, count;  /* its elements in `halves` and `rest`, if they are f32 */
	bool narrowed;     /* `halves` has this step's */
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
	size_t bucket_bytes;
	void *halves;    /* what travels instead of f32: bf16; NULL: f32 does */
	float *rest;     /* what rounding to `halves` has left over, for the next step */
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
		g->buckets[g->n - 1].count += t->count;
	}
}

static bool is_f32(const struct bucket *b) { return b->tensors->type == TUTTI_F32; }

static size_t place_halves(struct tutti_gradients *g)
{
	size_t all = 0;

	for (int b = 0; b < g->n; b++)
		if (is_f32(&g->buckets[b])) {
			g->buckets[b].at = all;
			all += g->buckets[b].count;
		}
	return all;
}

static void begin_step(struct tutti_gradients *g)
{
	memset(g->ready, 0, (size_t)g->model.n * sizeof *g->ready);
	g->weighed = 0;
	for (int b = 0; b < g->n; b++) {
		g->buckets[b].missing = g->buckets[b].n;
		g->buckets[b].narrowed = false;
	}
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
	cut(g, room);
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
	tt_memory_free(g->halves);
	free(g->rest);
	free(g);
}

struct said { /* what must be the same on all ranks */
	uint64_t model;
	double bucket_bytes;
	double err;          /* this rank's own: its call fails, and so do the others' */
};

/* A collective, also for a rank whose call has failed already: bad, with the sentence. The others must not wait. */
static int compare(const struct tutti_gradients *g, tutti *group, const char *what, int bad)
{
	const struct said mine = { g->model.hash, (double)g->bucket_bytes, bad }, *theirs;
	struct tt_sentence why = tt_last_sentence();
	void *all;
	int err = tt_schedule_gather(group, &mine, sizeof mine, &all, what);

	theirs = all;
	for (int i = 0; !err && !bad && i < group->n; i++)
		if (!(err = tt_schedule_heed(group, i, what, theirs[i].err)))
			err = tt_schedule_compare(group, i, what, "bucket_bytes", theirs[i].bucket_bytes,
			                          mine.bucket_bytes);
	if (!err && !bad)
		err = tt_schedule_compare_models(group, what, all, sizeof mine, &g->model);
	free(all);
	if (bad)
		tt_remember(why.text);
	return bad ? bad : err;
}

static int open_gradients(tutti *group, const tutti_tensor *grads, int n, size_t bucket_bytes, tutti_gradients **out)
{
	static const char what[] = "tutti_gradients_open";
	static const struct tt_handle_kind kind = { .release = release_gradients, .noun = "gradients" };
	static const struct tutti_gradients none;
	struct tutti_gradients *g = calloc(1, sizeof *g);
	int err;

	if (!g)
		return compare(&none, group, what, tt_fail(-ENOMEM, "%s: no memory", what));
	g->bucket_bytes = bucket_bytes ? bucket_bytes : BUCKET;
	if (!(err = tt_given(out, "tutti_gradients_open: gradients")) &&
	    !(err = tt_model_open(&g->model, grads, n, what)) && !(err = tt_tensors_host_only(what, grads, n)))
		err = make(g, group, g->bucket_bytes);
	if ((err = compare(g, group, what, err))) {
		release_gradients(&g->handle);
		return err;
	}
	tt_round_hold(&g->round, &g->handle, group->job, &kind);
	*out = g;
	return 0;
}

int tutti_gradients_open(tutti *group, const tutti_tensor *grads, int n, size_t bucket_bytes, tutti_gradients **out)
{
	struct tt_users *outer;
	int err = tt_group_usable(group);

	if (err || (err = tt_opening_enter(group->job, &group->handle.users, &outer)))
		return err;
	err = open_gradients(group, grads, n, bucket_bytes, out);
	tt_opening_exit(group->job, &group->handle.users, outer);
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

/* The gradients stay in their group unless all ranks have come, with the same lists. */
static int regroup(struct tutti_gradients *g, tutti *group)
{
	static const char what[] = "tutti_gradients_regroup";
	int err = tt_composite_idle(&g->whole, what);

	if (!err && !(err = tt_round_may_move(&g->handle, group))) {
		tt_round_settle(&g->round);
		g->joins = false;
		begin_step(g);
	}
	if (!(err = compare(g, group, what, err)))
		tt_round_move(&g->round, &g->handle, group);
	return err;
}

int tutti_gradients_regroup(tutti_gradients *g, tutti *group)
{
	int err = tt_given(g, "tutti_gradients_regroup: gradients");

	if (err || (err = tt_group_usable(group)) || (err = tt_users_enter(g->handle.job, &g->handle.users)))
		return err;
	err = regroup(g, group);
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

typedef int start_sum(struct tt_round *, const tutti_tensor *, int);

static tutti_tensor halves_of(const struct tutti_gradients *g, const struct bucket *b)
{
	return (tutti_tensor){ (uint16_t *)g->halves + b->at, b->count, TUTTI_BF16 };
}

static int sum_bucket(struct tutti_gradients *g, const struct bucket *b, start_sum *sum)
{
	tutti_tensor halves = halves_of(g, b);

	return b->narrowed ? sum(&g->round, &halves, 1) : sum(&g->round, b->tensors, b->n);
}

/* Error feedback (tutti.h): what travels is g + rest, rounded; the rest is what rounding has taken away. */
static void narrow(struct tutti_gradients *g, struct bucket *b)
{
	size_t at = b->at;

	if (!g->halves || !is_f32(b) || b->narrowed)
		return;
	for (int i = 0; i < b->n; at += b->tensors[i++].count)
		tt_feed_back((uint16_t *)g->halves + at, &g->rest[at], b->tensors[i].data, b->tensors[i].count);
	b->narrowed = true;
}

static void widen(const struct tutti_gradients *g, const struct bucket *b)
{
	size_t at = b->at;

	for (int i = 0; b->narrowed && i < b->n; at += b->tensors[i++].count)
		tt_to_f32(b->tensors[i].data, (uint16_t *)g->halves + at, b->tensors[i].count, TUTTI_BF16);
}

static int begin_bucket(struct tutti_gradients *g, start_sum *sum)
{
	int err = g->round.begun ? 0 : tt_round_count(&g->round, true);
	struct bucket *b = &g->buckets[buckets_begun(g)];

	if (err)
		return err;
	narrow(g, b);
	return sum_bucket(g, b, sum);
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

/* Waits for the next bucket of this step. */
static int finish_bucket(struct tutti_gradients *g, int contributors)
{
	const struct bucket *b = &g->buckets[g->weighed];
	int all = g->round.group->n, err = tt_round_wait(&g->round, g->weighed + 1);

	if (err)
		return err;
	widen(g, b);
	if (g->round.rule == TUTTI_AVERAGE && contributors < all)
		weigh(b, 0.5 * all / contributors);
	g->weighed++;
	return 0;
}

static int finish_step(struct tutti_gradients *g, int *contributors)
{
	int n = 0, err = tt_round_contributors(&g->round, &n);

	while (!err && g->weighed < g->n)
		err = finish_bucket(g, n);
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

static int next_bucket(struct tutti_gradients *g, int *first, int *n)
{
	int contributors, err = 0;

	if (!g->whole.started)
		return tt_fail(-EINVAL, "tutti_gradients_next: no end of a step was started");
	if (g->weighed == g->n) {
		*n = 0;
		return 0;
	}
	if ((err = tt_round_contributors(&g->round, &contributors)) || (err = finish_bucket(g, contributors)))
		return err;
	const struct bucket *b = &g->buckets[g->weighed - 1];
	*first = (int)(b->tensors - g->model.tensors);
	*n = b->n;
	return 0;
}

int tutti_gradients_next(tutti_gradients *g, int *first, int *n)
{
	int err = tt_given(g, "tutti_gradients_next: gradients");

	if (err || (err = tt_given(first, "tutti_gradients_next: first")) ||
	    (err = tt_given(n, "tutti_gradients_next: n")) || (err = tt_round_enter(&g->round, &g->handle)))
		return err;
	return leave(g, next_bucket(g, first, n));
}

/* ---- between steps ---- */

static int check_between(const struct tutti_gradients *g, const char *call)
{
	int err = check_step(g);

	if (err || (err = check_end(g, call)))
		return err;
	if (!memchr(g->ready, true, (size_t)g->model.n) && !g->round.begun)
		return 0;
	return tt_fail(-EINVAL, "%s: gradients of a step are ready; tutti_gradients_sum or _average ends it", call);
}

static int find_norm(const struct tutti_gradients *g, double *norm)
{
	int err = check_between(g, "tutti_gradients_norm");
	double sum = 0;

	if (err)
		return err;
	for (int i = 0; i < g->model.n; i++) {
		const tutti_tensor *t = &g->model.tensors[i];
		sum += t->count ? tt_square_distance(t->data, NULL, t->count, t->type) : 0;
	}
	*norm = sqrt(sum);
	return 0;
}

int tutti_gradients_norm(tutti_gradients *g, double *norm)
{
	int err = tt_given(norm, "tutti_gradients_norm: norm");

	if (err || (err = enter(g, "tutti_gradients_norm: gradients")))
		return err;
	return leave(g, find_norm(g, norm));
}

static int move_to(struct tutti_gradients *g, const tutti_tensor *grads, int n)
{
	static const char what[] = "tutti_gradients_move";
	struct tt_model model = { 0 };
	int err = check_between(g, what);

	if (!err && !(err = tt_model_open(&model, grads, n, what)) && !(err = tt_tensors_host_only(what, grads, n)) &&
	    model.hash != g->model.hash)
		err = tt_fail(-EINVAL, "%s: the list has tensors of other counts or types than at open", what);
	if (!err)
		memcpy(g->model.tensors, model.tensors, (size_t)n * sizeof *model.tensors);
	tt_model_close(&model);
	return err;
}

int tutti_gradients_move(tutti_gradients *g, const tutti_tensor *grads, int n)
{
	int err = enter(g, "tutti_gradients_move: gradients");

	return err ? err : leave(g, move_to(g, grads, n));
}

static void drop_halves(struct tutti_gradients *g)
{
	tt_memory_free(g->halves);
	free(g->rest);
	g->halves = g->rest = NULL;
}

static int set_bf16(struct tutti_gradients *g, int on)
{
	int err = check_between(g, "tutti_gradients_bf16");
	size_t count = place_halves(g);

	if (err || (on != 0) == (g->halves != NULL) || !count)
		return err;
	if (!on) {
		drop_halves(g);
		return 0;
	}
	g->rest = calloc(count, sizeof *g->rest);
	if (!g->rest || tt_memory_alloc(g->handle.job, count * sizeof(uint16_t), -1, &g->halves)) {
		drop_halves(g);
		return tt_fail(-ENOMEM, "tutti_gradients_bf16: no memory for %zu elements", count);
	}
	return 0;
}

int tutti_gradients_bf16(tutti_gradients *g, int on)
{
	int err = enter(g, "tutti_gradients_bf16: gradients");

	return err ? err : leave(g, set_bf16(g, on));
}

/* ---- everybody's parameters ---- */

/* Zeros, in the memory that travels, and without the rest: this rank is not counted. */
static void zero(const struct tutti_gradients *g, struct bucket *b)
{
	b->narrowed = g->halves && is_f32(b);
	if (b->narrowed && b->count)
		memset((uint16_t *)g->halves + b->at, 0, b->count * sizeof(uint16_t));
	for (int i = 0; !b->narrowed && i < b->n; i++)
		if (b->tensors[i].count)
			memset(b->tensors[i].data, 0, bytes_of(&b->tensors[i]));
}

static int sum_zeros(struct tutti_gradients *g)
{
	int err = 0;

	for (int b = buckets_begun(g); !err && b < g->n; b++) {
		zero(g, &g->buckets[b]);
		err = sum_bucket(g, &g->buckets[b], tt_round_sum);
	}
	if (err || (err = tt_round_end(&g->round)))
		return err;
	begin_step(g);
	return 0;
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

static int synchronize(struct tutti_gradients *g, const tutti_tensor *params, int n)
{
	struct tt_model model;
	int winner, err;

	if ((err = tt_model_open(&model, params, n, "tutti_gradients_synchronize")))
		return err;
	tt_model_close(&model); /* it was a list of tensors */
	if ((err = tt_tensors_host_only("tutti_gradients_synchronize", params, n)) ||
	    (!g->joins && (err = check_between(g, "tutti_gradients_synchronize"))) || (err = join_others(g)) ||
	    (err = choose_winner(g, &winner)))
		return err;
	return spread(g, params, n, winner);
}

int tutti_gradients_synchronize(tutti_gradients *g, const tutti_tensor *params, int n)
{
	int err = enter(g, "tutti_gradients_synchronize: gradients");

	return err ? err : leave(g, synchronize(g, params, n));
}

/* ---- the state in a file: the counter, and with bf16 what rounding has left over ---- */

static const char state_of[] = "gradients";

static int check_state(const struct tutti_gradients *g, const char *call)
{
	int err = check_between(g, call);

	if (err)
		return err;
	return !g->torn ? 0 : tt_fail(-EINVAL, "%s: parameters of another rank came in part: call "
	                              "tutti_gradients_synchronize first", call);
}

/* Returns how many of `held` there are. */
static int list_state(struct tutti_gradients *g, uint64_t *steps, struct tt_held held[2])
{
	const tutti_tensor rest = { g->rest, place_halves(g), TUTTI_F32 };

	held[0] = tt_held_numbers("steps", steps, 1);
	held[1] = tt_held_tensor("rest", -1, &rest);
	return g->halves ? 2 : 1;
}

static int save_state(struct tutti_gradients *g, const char *path)
{
	uint64_t steps = (uint64_t)g->steps;
	struct tt_held held[2];
	int n = list_state(g, &steps, held), err = check_state(g, "tutti_gradients_save");

	return err ? err : tt_state_save(state_of, path, held, n);
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
	struct tt_held held[2];
	int n = list_state(g, &steps, held), err = check_state(g, "tutti_gradients_load");

	if (err || (err = tt_state_load(state_of, path, held, n)))
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
