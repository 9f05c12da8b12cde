/* ea.c - elastic averaging with a center on every rank, synchronous (Zhang et al., arXiv 1412.6651)
 *
 *      step          1  2  3 = tau              4  5  6                       x: this rank's parameters
 *                          c += D (of step 0)         c += D (of step 3)      c: its copy of the center
 *                          d = alpha (x - c)          d = alpha (x - c)       d: what it gives
 *                          x -= d                     x -= d                  D: the sum of all ranks' d
 *                          D = sum of d -------->     ...
 *
 * A started synchronization moves a copy of x, in `now`; x goes on meanwhile. Its steps are errands of the background
 * thread:
 *
 *      EARLIER the round before ends --> COUNT --> nobody has steps left --> SPREAD --> apply: x = now + (x - copy)
 *                                        ^   `--> SUMS of the others' round, and now is moved
 *                                        '---------------'
 *
 * D is needed in c for the next move only, so it is summed while the program takes its next tau steps, and added in the
 * same pass over memory that makes the next d. d and D are one buffer. */
#include "average/average_private.h"
#include "engine/engine.h"
#include "kernel/kernel.h"
#include "operation/operation.h"
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

struct tutti_ea {
	struct tt_handle handle;
	struct tt_round round;
	struct tt_model model;
	tutti_tensor *runs;  /* in sum: tensors of one type, one behind another, and what is between them */
	int n;               /* of them */
	char *center, *sum;
	char *wide;          /* of f16 and bf16: the center in f32, at twice the offset. NULL: there are none */
	int tau;
	double alpha;
	unsigned flags;
	uint64_t steps;      /* since the last synchronization */
	int phase;           /* steps since the last averaging, synchronization or set */
	bool begun;          /* there is a center */
	bool pending;        /* sum is not in the center yet; else it is zeros */
	struct tt_composite whole; /* a started synchronization */
	int warned;          /* of how many ranks: alpha is too large for them */
	enum { EARLIER, COUNT, SUMS, SPREAD } at;
	bool params;         /* it spreads rank 0's parameters, too */
	char *copy, *now;    /* x as it was, and as it is then; made when they are first needed */
	tutti_tensor *list;  /* of the tensors in `now` */
	size_t passed;       /* bytes of the model since the last pause of an errand */
};

enum { PIECE = 1 << 20 }; /* bytes of a pass over the model between two pauses */

double tutti_elastic_alpha(int ranks) { return ranks > 0 ? 0.9 / ranks : NAN; }

double tutti_elastic_alpha_max(double eta) { return eta >= 0 && eta <= 2 ? (4 - 2 * eta) / (4 - eta) : NAN; }

/* ---- life ---- */

static void cut(struct tutti_ea *ea)
{
	for (int i = 0; i < ea->model.n; i++) {
		const tutti_tensor *t = &ea->model.tensors[i];
		if (!ea->n || t->type != t[-1].type)
			ea->runs[ea->n++] = (tutti_tensor){ ea->sum + ea->model.at[i], 0, t->type };
		tutti_tensor *r = &ea->runs[ea->n - 1];
		r->count = (size_t)(ea->sum + ea->model.at[i] - (char *)r->data) / tt_type_size(t->type) + t->count;
	}
}

static bool is_half(const tutti_tensor *t) { return tt_type_size(t->type) < sizeof(float); }

/* An offset into the center. NULL: the kernels need none there. */
static char *wide_at(const struct tutti_ea *ea, size_t at) { return ea->wide ? ea->wide + 2 * at : NULL; }

/* The center was set: it is what it is in 16 bits. */
static void forget_wide(struct tutti_ea *ea)
{
	for (int i = 0; ea->wide && i < ea->model.n; i++)
		if (is_half(&ea->model.tensors[i]))
			memset(wide_at(ea, ea->model.at[i]), 0, ea->model.tensors[i].count * sizeof(float));
}

struct said { /* what must be the same on all ranks */
	uint64_t model;
	double tau, alpha, flags;
	double err;          /* this rank's own: its call fails, and so do the others' */
};

static int compare_rank(tutti *group, int i, const struct said *theirs, const struct said *mine)
{
	static const char what[] = "elastic averaging";
	int err;

	if ((err = tt_schedule_compare(group, i, what, "tau", theirs->tau, mine->tau)) ||
	    (err = tt_schedule_compare(group, i, what, "alpha", theirs->alpha, mine->alpha)) ||
	    (err = tt_schedule_compare(group, i, what, "flags", theirs->flags, mine->flags)))
		return err;
	return tt_schedule_heed(group, i, what, theirs->err);
}

/* A collective, also for a rank whose call has failed already: bad, with the sentence. The others must not wait. */
static int compare(const struct tutti_ea *ea, tutti *group, int tau, double alpha, int bad)
{
	const struct said mine = { ea->model.hash, tau, alpha, ea->flags, bad }, *theirs;
	struct tt_sentence why = tt_last_sentence();
	void *all;
	int err = tt_schedule_gather(group, &mine, sizeof mine, &all, "elastic averaging");

	if (bad)
		tt_remember(why.text);
	if (err || bad) {
		free(err ? NULL : all);
		return bad ? bad : err;
	}
	theirs = all;
	for (int i = 0; !err && i < group->n; i++)
		err = compare_rank(group, i, &theirs[i], &mine);
	if (!err)
		err = tt_schedule_compare_models(group, "elastic averaging", all, sizeof mine, &ea->model);
	free(all);
	return err;
}

/* m, the mean of n ranks' x, and the center c: each averaging multiplies m - c by 1 - alpha (n + 1). */
static void warn_of_alpha(struct tutti_ea *ea, const tutti *group)
{
	double bound = 2.0 / (group->n + 1);

	if (group->me || isnan(ea->alpha) || ea->alpha <= bound || group->n <= ea->warned)
		return;
	ea->warned = group->n;
	tt_log(TT_WARN, "elastic averaging of %d ranks: alpha is %g, and above 2 / (ranks + 1) = %g the center moves "
	       "away from the parameters at each averaging: use a smaller alpha, or NaN for 0.9 / ranks", group->n,
	       ea->alpha, bound);
}

static int make(struct tutti_ea *ea, tutti *group)
{
	static const char what[] = "tutti_ea_open";
	void *room[2] = { NULL, NULL };
	bool halves = false;
	int err = 0;

	if (!tt_model_is_float(&ea->model))
		return tt_fail(-EINVAL, "%s: parameters are f32, f64, f16 or bf16", what);
	for (int i = 0; !err && i < 2; i++)
		err = tt_memory_alloc(group->job, tt_max(ea->model.bytes, 1), -1, &room[i]);
	ea->center = room[0];
	ea->sum = room[1];
	if (err)
		return err;
	if (!(ea->runs = calloc((size_t)ea->model.n, sizeof *ea->runs)))
		return tt_fail(-ENOMEM, "%s: no memory for %d tensors", what, ea->model.n);
	for (int i = 0; i < ea->model.n; i++)
		halves |= is_half(&ea->model.tensors[i]);
	if (halves && !(ea->wide = calloc(tt_max(ea->model.bytes, 1), 2))) /* what nobody touches takes no memory */
		return tt_fail(-ENOMEM, "%s: no memory for a center in f32 of %zu bytes", what, 2 * ea->model.bytes);
	cut(ea);
	return tt_round_open(&ea->round, group, ea->n, what);
}

static int check_schedule(const char *what, int tau, double alpha)
{
	if (tau < 1)
		return tt_fail(-EINVAL, "%s: tau is %d, and must be from 1 up", what, tau);
	if (!isnan(alpha) && !(alpha >= 0 && alpha <= 1))
		return tt_fail(-EINVAL, "%s: alpha is %g, and must be from 0 to 1, or NaN", what, alpha);
	return 0;
}

static int check_opening(const struct tutti_ea *ea)
{
	int err = check_schedule("tutti_ea_open", ea->tau, ea->alpha);

	if (err || !(ea->flags & ~TUTTI_EA_DISTLEARN))
		return err;
	return tt_fail(-EINVAL, "tutti_ea_open: flags are %x, and must be TUTTI_EA_DISTLEARN or 0", ea->flags);
}

static void release_ea(struct tt_handle *h)
{
	struct tutti_ea *ea = tt_container_of(h, struct tutti_ea, handle);

	tt_round_close(&ea->round);
	tt_memory_free(ea->center);
	tt_memory_free(ea->sum);
	free(ea->wide);
	free(ea->copy);
	free(ea->now);
	free(ea->list);
	free(ea->runs);
	tt_model_close(&ea->model);
	free(ea);
}

static int open_ea(tutti *group, const tutti_tensor *params, int n, int tau, double alpha, unsigned flags,
                   tutti_ea **out)
{
	static const struct tt_handle_kind kind = { .release = release_ea, .noun = "elastic average" };
	static const struct tutti_ea none;
	struct tutti_ea *ea = calloc(1, sizeof *ea);
	int err;

	if (!ea)
		return compare(&none, group, tau, alpha, tt_fail(-ENOMEM, "tutti_ea_open: no memory"));
	ea->tau = tau;
	ea->alpha = alpha;
	ea->flags = flags;
	if (!(err = tt_given(out, "tutti_ea_open: ea")) && !(err = check_opening(ea)) &&
	    !(err = tt_model_open(&ea->model, params, n, "tutti_ea_open")) &&
	    !(err = tt_tensors_host_only("tutti_ea_open", params, n)))
		err = make(ea, group);
	if ((err = compare(ea, group, tau, alpha, err))) {
		release_ea(&ea->handle);
		return err;
	}
	tt_round_hold(&ea->round, &ea->handle, group->job, &kind);
	warn_of_alpha(ea, group);
	*out = ea;
	return 0;
}

int tutti_ea_open(tutti *group, const tutti_tensor *params, int n, int tau, double alpha, unsigned flags,
                  tutti_ea **out)
{
	struct tt_users *outer;
	int err = tt_group_usable(group);

	if (err || (err = tt_opening_enter(group->job, &group->handle.users, &outer)))
		return err;
	err = open_ea(group, params, n, tau, alpha, flags, out);
	tt_opening_exit(group->job, &group->handle.users, outer);
	return err;
}

void tutti_ea_close(tutti_ea *ea)
{
	struct tt_sentence last = tt_last_sentence();

	if (!ea || !tt_handle_close(&ea->handle))
		return;
	tt_unlock(ea->handle.job);
	tt_composite_close(&ea->whole);
	tt_round_settle(&ea->round);
	tt_handle_free(&ea->handle);
	tt_remember(last.text);
}

static int leave(tutti_ea *ea, int err) { return tt_round_exit(&ea->round, &ea->handle, err); }

/* ---- passes over the model ----
 *
 * The background thread makes those of a started synchronization, and answers other ranks between the pieces. */

/* Of `left` elements that a pass has still to do: how many come next. */
static size_t next_piece(struct tutti_ea *ea, size_t left, size_t width)
{
	size_t count = tt_min(left, PIECE / width);

	if (ea->whole.busy && ea->passed > PIECE) {
		tt_composite_pause(&ea->whole);
		ea->passed = 0;
	}
	ea->passed += count * width;
	return count;
}

static void copy_model(struct tutti_ea *ea, char *to, const char *from)
{
	for (size_t at = 0, n; at < ea->model.bytes; at += n) {
		n = next_piece(ea, ea->model.bytes - at, 1);
		memcpy(to + at, from + at, n);
	}
}

static void drop_sum(struct tutti_ea *ea)
{
	for (size_t at = 0, n; at < ea->model.bytes; at += n) {
		n = next_piece(ea, ea->model.bytes - at, 1);
		memset(ea->sum + at, 0, n);
	}
	ea->pending = false;
}

static void add_run(struct tutti_ea *ea, const tutti_tensor *r)
{
	size_t at = (size_t)((char *)r->data - ea->sum), width = tt_type_size(r->type), bytes = r->count * width;

	for (size_t i = 0, n; i < bytes; i += n * width) {
		n = next_piece(ea, (bytes - i) / width, width);
		tt_elastic_round(NULL, ea->center + at + i, wide_at(ea, at + i), ea->sum + at + i, 0, n, r->type);
	}
}

static void move_tensor(struct tutti_ea *ea, const tutti_tensor *t, size_t at, double alpha)
{
	size_t width = tt_type_size(t->type), bytes = t->count * width;

	for (size_t i = 0, n; i < bytes; i += n * width) {
		n = next_piece(ea, (bytes - i) / width, width);
		tt_elastic_round((char *)t->data + i, ea->center + at + i, wide_at(ea, at + i), ea->sum + at + i, alpha,
		                 n, t->type);
	}
}

/* A synchronization that was started has failed: what came of the last step of it is of no account. */
static void forget(struct tutti_ea *ea)
{
	if (ea->at == SPREAD)
		drop_sum(ea);
	else
		tt_round_end(&ea->round); /* keeps the error */
	ea->at = EARLIER;
}

/* Not while a synchronization that was started runs, or is not applied. */
static int check_idle(struct tutti_ea *ea)
{
	bool started = ea->whole.started;
	int err = tt_composite_idle(&ea->whole, "elastic averaging");

	if (!err && started)
		forget(ea);
	return err;
}

/* A call begins. */
static int enter(tutti_ea *ea, const char *name)
{
	int err = tt_given(ea, name);

	if (err || (err = tt_round_enter(&ea->round, &ea->handle)))
		return err;
	return (err = check_idle(ea)) ? leave(ea, err) : 0;
}

/* ---- rounds ---- */

static void begin(struct tutti_ea *ea)
{
	if (!ea->begun)
		tt_model_store(&ea->model, ea->center);
	ea->begun = true;
}

static int add_sum(struct tutti_ea *ea)
{
	int err = tt_round_end(&ea->round);

	if (err || !ea->pending)
		return err;
	for (int i = 0; i < ea->n; i++)
		add_run(ea, &ea->runs[i]);
	drop_sum(ea);
	return 0;
}

/* No round runs. x: the parameters, or their copy in `now`. */
static void move(struct tutti_ea *ea, const tutti_tensor *x)
{
	double alpha = isnan(ea->alpha) ? tutti_elastic_alpha(ea->round.group->n) : ea->alpha;

	for (int i = 0; i < ea->model.n; i++)
		move_tensor(ea, &x[i], ea->model.at[i], alpha);
	ea->pending = true;
}

/* The distance before the move, whose d lies in `sum`. */
static double distance(const struct tutti_ea *ea)
{
	double alpha = isnan(ea->alpha) ? tutti_elastic_alpha(ea->round.group->n) : ea->alpha, square = 0;

	for (int i = 0; i < ea->model.n; i++) {
		const tutti_tensor *t = &ea->model.tensors[i];
		size_t at = ea->model.at[i];
		square += alpha > 0 ? tt_square_distance(ea->sum + at, NULL, t->count, t->type) :
		                      tt_square_distance(t->data, ea->center + at, t->count, t->type);
	}
	return sqrt(square) / (alpha > 0 ? alpha : 1);
}

static int give(struct tutti_ea *ea, const tutti_tensor *x, tutti_average_result *result)
{
	int err = 0;

	move(ea, x);
	if (result)
		*result = (tutti_average_result){ .distance = distance(ea) };
	struct tt_hook hook = tt_hook_suspend(); /* x has moved: all sums of the round have to begin */
	for (int i = 0; !err && i < ea->n; i++)
		err = tt_round_sum(&ea->round, &ea->runs[i], 1);
	tt_hook_resume(hook);
	return err;
}

/* The round of an interrupted synchronization has a count and no sum. */
static bool joins(const struct tutti_ea *ea) { return ea->round.begun == 1; }

static int check_step(const struct tutti_ea *ea)
{
	return !joins(ea) ? 0 : tt_fail(-EINVAL, "tutti_ea_synchronize or _center was interrupted: call it again "
	                                "before the next step");
}

static int step(struct tutti_ea *ea, tutti_average_result *result)
{
	int err;

	begin(ea);
	if (ea->phase + 1 < ea->tau) {
		ea->phase++;
		ea->steps++;
		return 0;
	}
	if ((err = check_step(ea)) || (err = tt_round_end(&ea->round)) || (err = tt_round_count(&ea->round, true)) ||
	    (err = give(ea, ea->model.tensors, result)))
		return err;
	ea->phase = 0;
	ea->steps++;
	return 1;
}

int tutti_ea_step(tutti_ea *ea, tutti_average_result *result)
{
	int err = enter(ea, "tutti_ea_step: ea");

	return err ? err : leave(ea, step(ea, result));
}

static int set_schedule(struct tutti_ea *ea, int tau, double alpha)
{
	int err = compare(ea, ea->round.group, tau, alpha, check_schedule("tutti_ea_set", tau, alpha));

	if (err)
		return err;
	ea->tau = tau;
	ea->alpha = alpha;
	ea->phase = 0;
	warn_of_alpha(ea, ea->round.group);
	return 0;
}

int tutti_ea_set(tutti_ea *ea, int tau, double alpha)
{
	int err = enter(ea, "tutti_ea_set: ea");

	return err ? err : leave(ea, set_schedule(ea, tau, alpha));
}

int tutti_ea_get(const tutti_ea *ea, int *tau, double *alpha)
{
	int err = tt_given(ea, "tutti_ea_get: ea");

	if (err)
		return err;
	if (tau)
		*tau = ea->tau;
	if (alpha)
		*alpha = ea->alpha;
	return 0;
}

/* Takes part in the rounds of those that have steps left, and is drawn to the center like them. torch-distlearn goes
 * one round further, whose sum gets lost. */
static int join_round(struct tutti_ea *ea, int *others)
{
	int err = joins(ea) ? 0 : tt_round_end(&ea->round);

	if (!err && !joins(ea))
		err = tt_round_count(&ea->round, false);
	return err ? err : tt_round_contributors(&ea->round, others);
}

static int finish(struct tutti_ea *ea)
{
	bool moved = ea->flags & TUTTI_EA_DISTLEARN && ea->steps;
	int err, others;

	begin(ea);
	while (!(err = join_round(ea, &others)) && others)
		if ((err = give(ea, ea->model.tensors, NULL)))
			return err;
	if (!err && !(err = tt_round_end(&ea->round)) && moved) {
		move(ea, ea->model.tensors);
		drop_sum(ea);
	}
	if (!err)
		err = add_sum(ea);
	if (!err) {
		ea->steps = 0;
		ea->phase = 0;
	}
	return err;
}

static void store_root(struct tutti_ea *ea, bool params)
{
	if (ea->round.group->me)
		return;
	if (params)
		tt_model_store(&ea->model, ea->sum);
	else
		copy_model(ea, ea->sum, ea->center);
}

/* Through the sum's memory, which is whole or of no account: nothing is ever torn. */
static int spread(struct tutti_ea *ea, bool params)
{
	tutti *group = ea->round.group;
	bool root = group->me == 0;
	int err;

	store_root(ea, params);
	err = tutti_broadcast(group, ea->sum, ea->model.bytes, 0, NULL);
	if (!err) {
		copy_model(ea, ea->center, ea->sum);
		forget_wide(ea);
	}
	if (!err && params && !root)
		tt_model_load(&ea->model, ea->sum);
	drop_sum(ea);
	return err;
}

static int synchronize(struct tutti_ea *ea, bool params)
{
	int err = finish(ea);

	return err ? err : spread(ea, params);
}

int tutti_ea_synchronize_center(tutti_ea *ea)
{
	int err = enter(ea, "tutti_ea_synchronize_center: ea");

	return err ? err : leave(ea, synchronize(ea, false));
}

int tutti_ea_synchronize(tutti_ea *ea)
{
	int err = enter(ea, "tutti_ea_synchronize: ea");

	return err ? err : leave(ea, synchronize(ea, true));
}

/* ---- a started synchronization ---- */

static int begin_count(struct tutti_ea *ea)
{
	int err = tt_round_count(&ea->round, false);

	ea->at = COUNT;
	return err ? err : ea->round.begun;
}

/* Sums run, with the count beside them. */
static int begin_sums(struct tutti_ea *ea)
{
	int err = give(ea, ea->list, NULL);

	ea->at = SUMS;
	return err ? err : ea->round.begun;
}

static int begin_spread(struct tutti_ea *ea)
{
	int err;

	if (ea->flags & TUTTI_EA_DISTLEARN && ea->steps) {
		move(ea, ea->list);
		drop_sum(ea);
	}
	if ((err = add_sum(ea)))
		return err;
	ea->at = SPREAD;
	if (ea->params && ea->round.group->me == 0)
		copy_model(ea, ea->sum, ea->now);
	else
		store_root(ea, false);
	err = tutti_broadcast(ea->round.group, ea->sum, ea->model.bytes, 0, ea->round.ops);
	return err ? err : 1;
}

static int end_spread(struct tutti_ea *ea)
{
	copy_model(ea, ea->center, ea->sum);
	forget_wide(ea);
	if (ea->params)
		copy_model(ea, ea->now, ea->sum);
	drop_sum(ea);
	ea->steps = 0;
	ea->phase = 0;
	return 0;
}

/* The phase that began last has ended. */
static int advance(struct tutti_ea *ea)
{
	int others = 0, err;

	if (ea->at == SPREAD)
		return end_spread(ea);
	if (ea->at == COUNT && ((err = tt_round_contributors(&ea->round, &others)) || others))
		return err ? err : begin_sums(ea);
	if ((err = tt_round_end(&ea->round)))
		return err;
	return ea->at == COUNT ? begin_spread(ea) : begin_count(ea);
}

static int run_errand(struct tt_composite *c)
{
	struct tutti_ea *ea = tt_container_of(c, struct tutti_ea, whole);
	int err = tt_round_enter(&ea->round, &ea->handle);

	return err ? err : leave(ea, advance(ea));
}

static int make_copies(struct tutti_ea *ea)
{
	size_t bytes = tt_max(ea->model.bytes, 1);

	if (!ea->copy)
		ea->copy = malloc(bytes);
	if (!ea->now)
		ea->now = malloc(bytes);
	if (!ea->list)
		ea->list = calloc((size_t)ea->model.n, sizeof *ea->list);
	if (!ea->copy || !ea->now || !ea->list)
		return tt_fail(-ENOMEM, "elastic averaging: no memory for two copies of the parameters, which a "
		               "started synchronization needs");
	tt_model_place(&ea->model, ea->now, ea->list);
	tt_model_store(&ea->model, ea->copy);
	tt_model_store(&ea->model, ea->now);
	return 0;
}

static int start(struct tutti_ea *ea, bool params, tutti_op *op)
{
	struct tt_job *job = ea->handle.job;
	int err = tt_given(op, "a started synchronization: op");

	if (err || (err = tt_operation_may_begin(job, op)) || (err = check_step(ea)) || (err = make_copies(ea)))
		return err;
	if (ea->round.err)
		return tt_round_end(&ea->round);
	begin(ea);
	ea->params = params;
	ea->at = EARLIER;
	ea->whole.next = tt_composite_errand;
	ea->whole.errand = run_errand;
	tt_composite_begin(&ea->whole, job, op, "synchronization of elastic averaging", ea->round.ops,
	                   ea->round.begun);
	return 0;
}

int tutti_ea_synchronize_center_start(tutti_ea *ea, tutti_op *op)
{
	int err = enter(ea, "tutti_ea_synchronize_center_start: ea");

	return err ? err : leave(ea, start(ea, false, op));
}

int tutti_ea_synchronize_start(tutti_ea *ea, tutti_op *op)
{
	int err = enter(ea, "tutti_ea_synchronize_start: ea");

	return err ? err : leave(ea, start(ea, true, op));
}

/* An x that has not moved since becomes rank 0's, bit for bit. */
static void follow(struct tutti_ea *ea)
{
	for (int i = 0; i < ea->model.n; i++) {
		const tutti_tensor *t = &ea->model.tensors[i];
		char *copy = ea->copy + ea->model.at[i], *now = ea->now + ea->model.at[i];
		tt_blend(copy, 1, ea->params ? t->data : now, -1, copy, t->count, t->type);
		tt_blend(t->data, 1, ea->params ? now : t->data, 1, copy, t->count, t->type);
	}
}

static int apply(struct tutti_ea *ea)
{
	bool started = ea->whole.started;
	int err = tt_composite_take(&ea->whole, "tutti_ea_synchronize_apply");
	if (!err)
		follow(ea);
	else if (started && err != -EINPROGRESS && ea->at != SPREAD)
		tt_round_fail(&ea->round, err);
	if (started && err != -EINPROGRESS)
		forget(ea);
	return err;
}

int tutti_ea_synchronize_apply(tutti_ea *ea)
{
	int err = tt_given(ea, "tutti_ea_synchronize_apply: ea");

	if (err || (err = tt_round_enter(&ea->round, &ea->handle)))
		return err;
	return leave(ea, apply(ea));
}

static int find_center(struct tutti_ea *ea, tutti_tensor *list)
{
	int err;

	begin(ea);
	if (!(err = check_step(ea)) && !(err = add_sum(ea)))
		tt_model_place(&ea->model, ea->center, list);
	return err;
}

int tutti_ea_center(tutti_ea *ea, tutti_tensor *list)
{
	int err = tt_given(ea, "tutti_ea_center: ea");

	if (err || (err = tt_given(list, "tutti_ea_center: list")) || (err = enter(ea, "")))
		return err;
	return leave(ea, find_center(ea, list));
}

/* ---- the state in a file: the center, and the counters ---- */

static const char state_of[] = "an elastic average";

/* *n: how many arrays. NULL: no memory. */
static struct tt_held *list_state(struct tutti_ea *ea, uint64_t counters[2], int *n)
{
	struct tt_held *list = calloc(2 * (size_t)ea->model.n + 1, sizeof *list);

	if (!list) {
		tt_fail(-ENOMEM, "no memory for the state of %d tensors", ea->model.n);
		return NULL;
	}
	*n = 0;
	for (int i = 0; i < ea->model.n; i++) {
		const tutti_tensor *t = &ea->model.tensors[i];
		const tutti_tensor center = { ea->center + ea->model.at[i], t->count, t->type };
		const tutti_tensor wide = { wide_at(ea, ea->model.at[i]), t->count, TUTTI_F32 };
		list[(*n)++] = tt_held_tensor("center", i, &center);
		if (is_half(t))
			list[(*n)++] = tt_held_tensor("wide", i, &wide);
	}
	list[(*n)++] = tt_held_numbers("steps", counters, 2);
	return list;
}

static int save_state(struct tutti_ea *ea, const char *path)
{
	uint64_t counters[2] = { ea->steps, (uint64_t)ea->phase };
	struct tt_held *list;
	int err, n;

	begin(ea);
	if ((err = check_step(ea)) || (err = add_sum(ea)))
		return err;
	list = list_state(ea, counters, &n);
	err = list ? tt_state_save(state_of, path, list, n) : -ENOMEM;
	free(list);
	return err;
}

int tutti_ea_save(tutti_ea *ea, const char *path)
{
	int err = tt_given(path, "tutti_ea_save: path");

	if (err || (err = enter(ea, "tutti_ea_save: ea")))
		return err;
	return leave(ea, save_state(ea, path));
}

static int load_state(struct tutti_ea *ea, const char *path)
{
	uint64_t counters[2];
	struct tt_held *list;
	int err, n;

	if (ea->round.err || ea->round.begun || ea->pending)
		return ea->round.err ? tt_round_end(&ea->round) :
		       tt_fail(-EINVAL, "tutti_ea_load: an averaging is under way: load before the first step");
	if (!(list = list_state(ea, counters, &n)))
		return -ENOMEM;
	if (!(err = tt_state_load(state_of, path, list, n))) {
		ea->steps = counters[0];
		ea->phase = (int)tt_min(counters[1], INT_MAX / 2);
		ea->begun = true;
	}
	free(list);
	return err;
}

int tutti_ea_load(tutti_ea *ea, const char *path)
{
	int err = tt_given(path, "tutti_ea_load: path");

	if (err || (err = enter(ea, "tutti_ea_load: ea")))
		return err;
	return leave(ea, load_state(ea, path));
}

/* The average stays in its group unless all ranks have come, with the same config. */
static int regroup(struct tutti_ea *ea, tutti *group)
{
	int err = check_idle(ea);

	if (!err && !(err = tt_round_may_move(&ea->handle, group)) && tt_round_settle(&ea->round))
		drop_sum(ea);
	if ((err = compare(ea, group, ea->tau, ea->alpha, err)))
		return err;
	tt_round_move(&ea->round, &ea->handle, group);
	warn_of_alpha(ea, group);
	return 0;
}

int tutti_ea_regroup(tutti_ea *ea, tutti *group)
{
	int err = tt_given(ea, "tutti_ea_regroup: ea");

	if (err || (err = tt_group_usable(group)) || (err = tt_users_enter(ea->handle.job, &ea->handle.users)))
		return err;
	err = regroup(ea, group);
	tt_users_exit(ea->handle.job, &ea->handle.users);
	return err;
}
