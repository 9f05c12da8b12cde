/* center.c - a center on the servers of a table: elastic averaging, deltas, rules of the program's own
 *
 * The servers' half is a table's: its rule, its consistency, saves and snapshots. The worker's half is here, one pass
 * over its params behind each push_pull. What servers give comes into `given`. What is pushed is x itself where x lies
 * in one piece, else `given` has the packed x, and the answer comes over it. Params change only when an answer has come
 * whole. */
#include "average/average_private.h"
#include "kernel/kernel.h"
#include "operation/operation.h"
#include "table/table.h"
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct piece { /* of the model: tensors that lie one behind another */
	char *data;
	size_t at;    /* where the piece begins in the flat model, in bytes */
	size_t count; /* elements */
};

struct tutti_center {
	struct tt_handle handle;
	tutti_center_config config; /* its lists are the program's, and not looked at after opening */
	struct tt_job *job;
	tutti_table *table;
	struct tt_model model;
	struct piece *pieces;
	int n;           /* of pieces */
	tutti_type type;
	size_t count;    /* elements of the model */
	char *given;     /* what the servers gave; before that what is pushed */
	char *halves;    /* DELTA in bf16: what is pushed */
	char *old;       /* DELTA: what this worker had of the center last */
	char *copy;      /* DELTA: x when the exchange was started; made when it is first needed */
	char *velocity;  /* EAMSGD's v */
	struct tt_composite whole; /* a started exchange */
	tutti_op part;
	int *worker;     /* ranks of the job that may push; NULL: all of the job */
	int workers;
	tutti_center_schedule now; /* in force */
	uint64_t pushes; /* of this rank to the table, when the last exchange began */
	bool owes;       /* DELTA: the last push has gone out, and the center has not come; `old` is x as it was then */
	int phase;       /* steps since the last exchange by tutti_center_step, or set */
	double alpha;    /* ELASTIC: of the last exchange */
};

/* ---- the model ---- */

static size_t width_of(const tutti_center *c) { return tt_type_size(c->type); }

/* Joins tensors that lie one behind another. Returns how many pieces there are. */
static int find_pieces(const tutti_tensor *list, int n, size_t width, struct piece *pieces)
{
	struct piece *last = NULL;
	size_t at = 0;
	int found = 0;

	for (int i = 0; i < n; i++) {
		if (!list[i].count)
			continue;
		if (last && last->data + last->count * width == list[i].data)
			last->count += list[i].count;
		else {
			last = &pieces[found++];
			*last = (struct piece){ list[i].data, at, list[i].count };
		}
		at += list[i].count * width;
	}
	return found;
}

static int take_params(tutti_center *c, const char *name, const tutti_tensor *params, int n)
{
	int err = tt_model_open(&c->model, params, n, "center open");

	if (err || (err = tt_tensors_host_only("center open", params, n)))
		return err;
	if (!tt_model_is_float(&c->model))
		return tt_fail(-ENOTSUP, "center \"%.160s\": the params hold integers: a center is of floats", name);
	c->type = params[0].type;
	for (int i = 0; i < n; i++) {
		c->count += params[i].count;
		if (params[i].type != c->type)
			return tt_fail(-ENOTSUP, "center \"%.160s\": tensor %d has another type than tensor 0: open a "
			               "center for each type", name, i);
	}
	if (c->config.bf16 && c->type != TUTTI_F32)
		return tt_fail(-ENOTSUP, "center \"%.160s\": deltas travel as bf16 for params of f32 alone", name);
	if (!c->count)
		return tt_fail(-EINVAL, "center \"%.160s\": the params have no elements", name);
	if (!(c->pieces = calloc((size_t)n, sizeof *c->pieces)))
		return tt_fail(-ENOMEM, "center \"%.160s\": no memory for a list of %d tensors", name, n);
	c->n = find_pieces(params, n, width_of(c), c->pieces);
	return 0;
}

#define EACH_PIECE(c, p) for (const struct piece *p = (c)->pieces; p < (c)->pieces + (c)->n; p++)

static void pack(const tutti_center *c, char *to)
{
	EACH_PIECE(c, p)
		memcpy(to + p->at, p->data, p->count * width_of(c));
}

static void unpack(const tutti_center *c, const char *from)
{
	EACH_PIECE(c, p)
		memcpy(p->data, from + p->at, p->count * width_of(c));
}

/* Returns x in one piece. */
static const char *flatten(tutti_center *c)
{
	if (c->n == 1)
		return c->pieces->data;
	pack(c, c->given);
	return c->given;
}

/* ---- opening ---- */

static int list_workers(tutti_center *c, const char *name, tutti *group)
{
	const tutti_center_config *k = &c->config;
	int err;

	if (!k->workers) {
		c->workers = tt_group_count(group);
		return tt_group_list(group, &c->worker);
	}
	if (!(c->worker = malloc((size_t)k->workers * sizeof *c->worker)))
		return tt_fail(-ENOMEM, "center open: no memory for a list of %d workers", k->workers);
	for (int i = 0; i < k->workers; i++) {
		if ((err = tutti_group_member(group, k->worker[i])) < 0)
			return tt_fail(err, "center \"%.160s\": worker %d is rank %d, which is no rank of the group: "
			               "it has ranks 0 to %d%s", name, i, k->worker[i], group->n - 1,
			               group->job->size == 1 ? ": is it started by tutti run?" : "");
		c->worker[c->workers++] = err;
	}
	return 0;
}

/* Pages that nobody touches cost nothing: a server that is no worker never touches them. */
static int take_memory(tutti_center *c)
{
	size_t bytes = c->count * width_of(c);
	int err = tt_memory_alloc(c->job, bytes, -1, (void **)&c->given);

	if (!err && c->config.kind == TUTTI_CENTER_DELTA)
		err = tt_memory_alloc(c->job, bytes, -1, (void **)&c->old);
	if (!err && c->config.bf16)
		err = tt_memory_alloc(c->job, c->count * tt_type_size(TUTTI_BF16), -1, (void **)&c->halves);
	if (!err && c->config.momentum > 0)
		err = tt_memory_alloc(c->job, bytes, -1, (void **)&c->velocity);
	return err;
}

/* The program has opened a center, and knows no table of that name. */
static int name_center(int err)
{
	struct tt_sentence why = tt_last_sentence();

	return err && !strncmp(why.text, "table \"", 7) ? tt_fail(err, "center %s", why.text + 6) : err;
}

static int open_table(tutti_center *c, tutti *group, const char *name)
{
	const tutti_center_config *k = &c->config;
	tutti_table_config t = tutti_table_rows(c->type, c->count, 1, k->updater);

	t.consistency = k->consistency;
	t.flags = (k->snapshots ? TUTTI_TABLE_SNAPSHOTS : 0) | (k->bf16 ? TUTTI_TABLE_BF16_DELTAS : 0) |
	          (k->average ? TUTTI_TABLE_MEAN : 0);
	t.servers = k->servers;
	t.server = k->server;
	t.workers = k->workers;
	t.worker = k->worker;
	t.load = k->load;
	return name_center(tutti_table_open(group, name, &t, &c->table));
}

struct opening {
	tutti *group;
	const char *name;
	const tutti_tensor *params;
	int n;
	bool alone; /* a late rank, which the others do not wait for */
};

static int prepare(tutti_center *c, const struct opening *o)
{
	int err = tt_center_check(&c->config, o->name);

	if (err || (err = take_params(c, o->name, o->params, o->n)) || (err = list_workers(c, o->name, o->group)))
		return err;
	return take_memory(c);
}

static int which_worker(tutti_center *c)
{
	tutti_table_info info;

	return tutti_table_look(c->table, &info) ? -1 : info.worker;
}

static int make_center(tutti_center *c, const struct opening *o)
{
	int err = open_table(c, o->group, o->name);

	return err || o->alone || which_worker(c) != 0 ? err : tutti_center_assign(c);
}

static int take_center(tutti_center *c) { return which_worker(c) < 0 ? 0 : tutti_center_pull(c); }

/* The program has interrupted this rank, which waits for nobody any more. */
static int abort_opening(const struct opening *o)
{
	int32_t mine = -EINTR;
	tutti_op op = { 0 };
	int err = tutti_allreduce(o->group, &mine, &mine, 1, TUTTI_I32, TUTTI_MIN, &op);

	return err ? err : tutti_cancel(&op);
}

/* All have come so far, and well. */
static int together(const struct opening *o, int mine)
{
	int32_t worst = mine;
	char why[400];
	int err;

	if (o->alone)
		return mine;
	snprintf(why, sizeof why, "%s", tt_why());
	err = mine == -EINTR ? abort_opening(o) :
	                       tutti_allreduce(o->group, &worst, &worst, 1, TUTTI_I32, TUTTI_MIN, NULL);
	if (mine)
		return tt_fail(mine, "%s", why);
	if (err || !worst)
		return err;
	return tt_fail(-ECONNABORTED, "center \"%.160s\": another rank could not open it: %s", o->name,
	               strerror(-worst));
}

/* Nobody waits for a table that another rank will not open; the center has its values before anybody takes them, and
 * nobody moves it before all have done so. */
static int begin(tutti_center *c, const struct opening *o)
{
	int err = together(o, prepare(c, o));

	if (!err && !o->alone)
		err = together(o, tt_center_compare(o->group, o->name, &c->config, &c->model));
	if (err || (err = together(o, make_center(c, o))))
		return err;
	return together(o, take_center(c));
}

static void release_center(struct tt_handle *h)
{
	struct tutti_center *c = tt_container_of(h, struct tutti_center, handle);

	tutti_table_close(c->table);
	tt_model_close(&c->model);
	tt_memory_free(c->given);
	tt_memory_free(c->halves);
	tt_memory_free(c->old);
	tt_memory_free(c->copy);
	tt_memory_free(c->velocity);
	free(c->pieces);
	free(c->worker);
	free(c);
}

static void hold(struct tutti_center *c)
{
	static const struct tt_handle_kind kind = { .release = release_center, .noun = "center" };

	tt_lock(c->job);
	tt_handle_hold(&c->handle, c->job, &kind);
	tt_unlock(c->job);
}

static int open_center(tutti *group, const char *name, const tutti_tensor *params, int n,
                       const tutti_center_config *config, tutti_center **center)
{
	const struct opening o = { group, name, params, n, tutti_late(group) && tutti_job(group) == group };
	tutti_center *c = calloc(1, sizeof *c);
	int err;

	if (!c)
		return together(&o, tt_fail(-ENOMEM, "center \"%.160s\": no memory", name));
	c->config = *config;
	c->now = (tutti_center_schedule){ .tau = config->tau, .alpha = config->updater.defaults.alpha,
		.learning_rate = config->updater.defaults.learning_rate,
		.momentum = config->updater.defaults.momentum };
	c->job = group->job;
	if ((err = begin(c, &o)))
		release_center(&c->handle);
	else
		hold(*center = c);
	return err;
}

int tutti_center_open(tutti *group, const char *name, const tutti_tensor *params, int n,
                      const tutti_center_config *config, tutti_center **center)
{
	struct tt_users *outer;
	int err = tt_usable(tt_job_of(group));

	if (err)
		return err;
	if (!name || !config || !center)
		return tt_fail(-EINVAL, "center open: the name, the config or the place for the center is NULL");
	if ((err = tt_opening_enter(group->job, &group->handle.users, &outer)))
		return err;
	err = open_center(group, name, params, n, config, center);
	tt_opening_exit(group->job, &group->handle.users, outer);
	return err;
}

void tutti_center_close(tutti_center *c)
{
	if (!c || !tt_handle_close(&c->handle))
		return;
	tt_unlock(c->job);
	tt_composite_close(&c->whole);
	tutti_table_close(c->table);
	c->table = NULL;
	tt_handle_free(&c->handle);
}

tutti_table *tutti_center_table(tutti_center *c) { return c ? c->table : NULL; }

/* ---- exchanges ---- */

static int check_center(const tutti_center *c) { return tt_usable(c ? c->job : NULL); }

/* A call begins. Neither close nor leave frees anything before it has ended. */
static int leave(tutti_center *c, int err)
{
	tt_users_exit(c->job, &c->handle.users);
	return err;
}

/* An exchange of deltas has failed. If the servers may have something of its push, a second push of that would count
 * twice: the next exchange takes the center alone, and what x has moved since the push counts in the one after. copy: x
 * when the push began; NULL: params. */
static void note_failure(tutti_center *c, char **copy)
{
	if (c->config.kind != TUTTI_CENTER_DELTA || tt_table_pushes(c->table) == c->pushes)
		return;
	c->owes = true;
	if (copy) {
		char *x = *copy;
		*copy = c->old;
		c->old = x;
	} else {
		pack(c, c->old);
	}
}

/* Not while an exchange that was started runs, or is not applied. */
static int check_idle(tutti_center *c)
{
	bool started = c->whole.started;
	int err = tt_composite_idle(&c->whole, "center");

	if (!err && started)
		note_failure(c, &c->copy);
	return err;
}

static int enter(tutti_center *c)
{
	int err = c ? tt_users_enter(c->job, &c->handle.users) : tt_refuse_job(NULL);

	return !err && (err = check_idle(c)) ? leave(c, err) : err;
}

/* How many workers are there, as far as is known. */
static int count_workers(const tutti_center *c)
{
	int all = c->worker ? c->workers : c->job->size, there = 0;

	tt_lock(c->job);
	for (int i = 0; i < all; i++)
		there += tt_member(c->job, c->worker ? c->worker[i] : i)->state < TT_LEFT;
	tt_unlock(c->job);
	return there > 0 ? there : 1;
}

static tutti_update options_of(tutti_center *c)
{
	tutti_update o = tutti_update_defaults();

	o.alpha = c->now.alpha;
	o.learning_rate = c->now.learning_rate;
	o.momentum = c->now.momentum;
	if (c->config.kind == TUTTI_CENTER_ELASTIC && isnan(o.alpha))
		o.alpha = tutti_elastic_alpha(count_workers(c));
	c->alpha = isnan(o.alpha) ? 0.5 : o.alpha; /* ELASTIC's own */
	return o;
}

static const char *to_push(tutti_center *c)
{
	if (c->config.kind != TUTTI_CENTER_DELTA)
		return flatten(c);
	EACH_PIECE(c, p)
		tt_blend(c->given + p->at, 1, p->data, -1, c->old + p->at, p->count, c->type);
	if (!c->halves)
		return c->given;
	tt_from_f32(c->halves, c->given, c->count, TUTTI_BF16);
	return c->halves;
}

static void swap_old(tutti_center *c)
{
	char *given = c->old;

	c->old = c->given;
	c->given = given;
}

static void set_params(tutti_center *c)
{
	unpack(c, c->given);
	if (c->old)
		swap_old(c);
}

static void take(tutti_center *c)
{
	const tutti_center_config *k = &c->config;

	if (k->kind == TUTTI_CENTER_DELTA || (k->kind == TUTTI_CENTER_OWN && !k->merge)) {
		set_params(c);
		return;
	}
	EACH_PIECE(c, p)
		if (k->merge)
			k->merge(c->type, p->data, c->given + p->at, p->count, k->merge_arg);
		else
			tt_blend(p->data, 1, p->data, -1, c->given + p->at, p->count, c->type);
}

/* How far x is from what the servers gave; ELASTIC: they gave alpha (x - center). */
static double distance(const tutti_center *c)
{
	bool moved = c->config.updater.rule == TUTTI_UPDATE_ELASTIC;
	double square = 0;

	EACH_PIECE(c, p)
		square += moved ? tt_square_distance(c->given + p->at, NULL, p->count, c->type) :
		                  tt_square_distance(p->data, c->given + p->at, p->count, c->type);
	return sqrt(square) / (moved ? c->alpha : 1);
}

/* The params become the center, and what they have moved since `from`, which is lost. */
static void follow(tutti_center *c, char *from)
{
	EACH_PIECE(c, p) {
		char *moved = from + p->at;
		tt_blend(moved, 1, p->data, -1, moved, p->count, c->type);
		tt_blend(p->data, 1, c->given + p->at, 1, moved, p->count, c->type);
	}
	swap_old(c);
}

static int push_pull(tutti_center *c, tutti_average_result *result)
{
	const tutti_update options = options_of(c);
	int err;

	c->pushes = tt_table_pushes(c->table);
	if ((err = tutti_table_push_pull(c->table, to_push(c), &options, c->given, NULL))) {
		note_failure(c, NULL);
		return err;
	}
	if (result)
		*result = (tutti_average_result){ .distance = distance(c) };
	take(c);
	return 0;
}

/* Ends an exchange whose push has gone out. */
static int pull_owed(tutti_center *c, tutti_average_result *result)
{
	int err = tutti_table_pull(c->table, c->given, NULL);

	if (err)
		return err;
	if (result)
		*result = (tutti_average_result){ .distance = distance(c) };
	follow(c, c->old);
	c->owes = false;
	return 0;
}

int tutti_center_exchange(tutti_center *c, tutti_average_result *result)
{
	int err = enter(c);

	return err ? err : leave(c, c->owes ? pull_owed(c, result) : push_pull(c, result));
}

/* ---- started exchanges ----
 *
 *      start   elastic: given = x       deltas: copy = x, given = x - old
 *      (table) given = e                given = the new center
 *      apply   x = x - given            x = given + (x - copy), old = given
 */

static int make_copy(tutti_center *c)
{
	int err = c->copy ? 0 : tt_memory_alloc(c->job, c->count * width_of(c), -1, (void **)&c->copy);

	if (!err)
		pack(c, c->copy);
	return err;
}

static int begin_exchange(tutti_center *c)
{
	const tutti_update options = options_of(c);
	const void *push = c->given;
	int err = 0;

	c->pushes = tt_table_pushes(c->table);
	if (c->owes)
		return tutti_table_pull(c->table, c->given, &c->part);
	if (c->config.kind == TUTTI_CENTER_DELTA && !(err = make_copy(c)))
		push = to_push(c);
	else if (!err)
		pack(c, c->given);
	return err ? err : tutti_table_push_pull(c->table, push, &options, c->given, &c->part);
}

static int start_exchange(tutti_center *c, tutti_op *op)
{
	int err;

	if (c->config.kind == TUTTI_CENTER_OWN)
		return tt_fail(-ENOTSUP, "tutti_center_exchange_start: a function of the program merges what comes "
		               "back, and may need the params that were pushed: use tutti_center_exchange");
	if ((err = begin_exchange(c)))
		return err;
	tt_composite_begin(&c->whole, c->job, op, "center exchange", &c->part, 1);
	return 0;
}

int tutti_center_exchange_start(tutti_center *c, tutti_op *op)
{
	int err = enter(c);

	if (err)
		return err;
	if (!(err = tt_given(op, "tutti_center_exchange_start: op")) && !(err = tt_operation_may_begin(c->job, op)))
		err = start_exchange(c, op);
	return leave(c, err);
}

static double distance_then(const tutti_center *c)
{
	return c->config.kind == TUTTI_CENTER_DELTA && !c->owes ?
	       sqrt(tt_square_distance(c->copy, c->given, c->count, c->type)) : distance(c);
}

static int apply(tutti_center *c, tutti_average_result *result)
{
	bool started = c->whole.started;
	int err = tt_composite_take(&c->whole, "tutti_center_exchange_apply");

	if (err && started && err != -EINPROGRESS)
		note_failure(c, &c->copy);
	if (err)
		return err;
	if (result)
		*result = (tutti_average_result){ .distance = distance_then(c) };
	if (c->config.kind == TUTTI_CENTER_DELTA)
		follow(c, c->owes ? c->old : c->copy);
	else
		take(c);
	c->owes = false;
	c->phase = 0;
	return 0;
}

int tutti_center_exchange_apply(tutti_center *c, tutti_average_result *result)
{
	int err = c ? tt_users_enter(c->job, &c->handle.users) : tt_refuse_job(NULL);

	return err ? err : leave(c, apply(c, result));
}

int tutti_center_step(tutti_center *c, tutti_average_result *result)
{
	int err = check_center(c);

	if (err)
		return err;
	if (c->phase + 1 < c->now.tau) {
		c->phase++;
		return 0;
	}
	if ((err = tutti_center_exchange(c, result)))
		return err;
	c->phase = 0;
	return 1;
}

/* ---- the schedule ---- */

static int check_schedule(const tutti_center *c, const tutti_center_schedule *s)
{
	tutti_update o = tutti_update_defaults();
	int err = tt_center_check_schedule(&c->config, "center set", s->tau, s->alpha);

	if (err)
		return err;
	o.alpha = s->alpha;
	o.learning_rate = s->learning_rate;
	o.momentum = s->momentum;
	return tt_update_check(&c->config.updater, &o);
}

static int compare_schedule(tutti *group, int i, const tutti_center_schedule *theirs, const tutti_center_schedule *mine)
{
	static const char what[] = "center set";
	int err = tt_schedule_compare(group, i, what, "tau", theirs->tau, mine->tau);

	if (!err)
		err = tt_schedule_compare(group, i, what, "alpha", theirs->alpha, mine->alpha);
	if (!err)
		err = tt_schedule_compare(group, i, what, "learning_rate", theirs->learning_rate, mine->learning_rate);
	return err ? err : tt_schedule_compare(group, i, what, "momentum", theirs->momentum, mine->momentum);
}

struct said { /* to the other ranks */
	tutti_center_schedule schedule;
	double err;      /* this rank's own: its call fails, and so do the others' */
};

static int compare_all(tutti *group, const struct said *theirs, const tutti_center_schedule *mine)
{
	int err = 0;

	for (int i = 0; !err && i < group->n; i++)
		if (!(err = compare_schedule(group, i, &theirs[i].schedule, mine)))
			err = tt_schedule_heed(group, i, "center set", theirs[i].err);
	return err;
}

/* A collective, also for a rank whose call has failed already: bad, with the sentence. The others must not wait. */
static int agree(tutti *group, const tutti_center_schedule *schedule, int bad)
{
	const struct said mine = { schedule ? *schedule : (tutti_center_schedule){ 0 }, bad };
	struct tt_sentence why = tt_last_sentence();
	void *all = NULL;
	int err = tt_group_usable(group);

	if (!err && !(err = tt_schedule_gather(group, &mine, sizeof mine, &all, "center set")) && !bad)
		err = compare_all(group, all, schedule);
	free(all);
	if (bad)
		tt_remember(why.text);
	return bad ? bad : err;
}

static int set_schedule(tutti_center *c, tutti *group, const tutti_center_schedule *schedule)
{
	int err = tt_given(schedule, "tutti_center_set: schedule");

	if (!err && !(err = TT_RESERVED(tutti_center_schedule, schedule)))
		err = check_schedule(c, schedule);
	if (c->config.consistency.mode == TUTTI_BSP)
		err = agree(group, schedule, err);
	if (err)
		return err;
	c->now = *schedule;
	c->phase = 0;
	return 0;
}

int tutti_center_set(tutti_center *c, tutti *group, const tutti_center_schedule *schedule)
{
	int err = enter(c);

	return err ? err : leave(c, set_schedule(c, group, schedule));
}

int tutti_center_get(const tutti_center *c, tutti_center_schedule *schedule)
{
	int err = check_center(c);

	if (err || (err = tt_given(schedule, "tutti_center_get: schedule")))
		return err;
	*schedule = c->now;
	return 0;
}

int tutti_center_pull(tutti_center *c)
{
	int err = enter(c);

	if (err)
		return err;
	if (!(err = tutti_table_pull(c->table, c->given, NULL))) {
		set_params(c);
		c->owes = false;
	}
	return leave(c, err);
}

int tutti_center_assign(tutti_center *c)
{
	int err = enter(c);

	if (err)
		return err;
	if (!(err = tutti_table_assign(c->table, flatten(c), NULL)) && c->old)
		pack(c, c->old);
	return leave(c, err);
}

/* ---- lists of other tensors ---- */

static int check_list(const tutti_center *c, const tutti_tensor *list, const char *what)
{
	const struct tt_model *m = &c->model;

	if (!list)
		return tt_fail(-EINVAL, "%s: the list of tensors is NULL", what);
	for (int i = 0; i < m->n; i++)
		if (list[i].count != m->tensors[i].count || list[i].type != c->type || (list[i].count && !list[i].data))
			return tt_fail(-EINVAL, "%s: tensor %d has %zu elements%s, the params' has %zu", what, i,
			               list[i].count, list[i].type != c->type ? " of another type" :
			               list[i].data ? "" : " and no memory", m->tensors[i].count);
	return tt_tensors_host_only(what, list, m->n);
}

static int read_center(tutti_center *c, const tutti_tensor *to, tutti_versions *versions)
{
	int err = check_list(c, to, "center read");
	char *at;

	if (err || (err = tutti_table_snapshot(c->table, c->given, versions, NULL)))
		return err;
	at = c->given;
	for (int i = 0; i < c->model.n; i++) {
		size_t bytes = to[i].count * width_of(c);
		if (bytes)
			memcpy(to[i].data, at, bytes);
		at += bytes;
	}
	return 0;
}

int tutti_center_read(tutti_center *c, const tutti_tensor *to, tutti_versions *versions)
{
	int err = enter(c);

	return err ? err : leave(c, read_center(c, to, versions));
}

static int check_momentum(const tutti_center *c, const tutti_tensor *list, const char *what)
{
	int err = check_center(c);

	if (err)
		return err;
	if (!c->velocity)
		return tt_fail(-EINVAL, "%s: the center was opened without momentum: set tutti_center_config.momentum",
		               what);
	return check_list(c, list, what);
}

int tutti_center_ahead(tutti_center *c, const tutti_tensor *to)
{
	int err = check_momentum(c, to, "center ahead");
	char *v = c && !err ? c->velocity : NULL;

	for (int i = 0; !err && i < c->model.n; i++) {
		tt_blend(to[i].data, 1, c->model.tensors[i].data, c->config.momentum, v, to[i].count, c->type);
		v += to[i].count * width_of(c);
	}
	return err;
}

int tutti_center_move(tutti_center *c, const tutti_tensor *gradient, double rate)
{
	int err = check_momentum(c, gradient, "center move");
	char *v = c && !err ? c->velocity : NULL;

	for (int i = 0; !err && i < c->model.n; i++) {
		const tutti_tensor *g = &gradient[i];
		tt_blend(v, c->config.momentum, v, -rate, g->data, g->count, c->type);
		tt_reduce(c->model.tensors[i].data, v, g->count, c->type, TUTTI_SUM);
		v += g->count * width_of(c);
	}
	return err;
}

/* ---- the worker's state in a file ---- */

static const char state_of[] = "a center's worker";

static int list_state(const tutti_center *c, struct tt_held *list, uint64_t *phase)
{
	int n = 0;

	list[n++] = tt_held_numbers("steps", phase, 1);
	if (c->old)
		list[n++] = tt_held_tensor("old", -1, &(tutti_tensor){ c->old, c->count, c->type });
	if (c->velocity)
		list[n++] = tt_held_tensor("velocity", -1, &(tutti_tensor){ c->velocity, c->count, c->type });
	return n;
}

static int save_state(const tutti_center *c, const char *path)
{
	uint64_t phase = (uint64_t)c->phase;
	struct tt_held list[3];

	if (c->owes)
		return tt_fail(-EINVAL, "tutti_center_save: an exchange has failed: make it again first");
	return tt_state_save(state_of, path, list, list_state(c, list, &phase));
}

int tutti_center_save(tutti_center *c, const char *path)
{
	int err = tt_given(path, "tutti_center_save: path");

	if (err || (err = enter(c)))
		return err;
	return leave(c, save_state(c, path));
}

static int load_state(tutti_center *c, const char *path)
{
	uint64_t phase;
	struct tt_held list[3];
	int err = tt_state_load(state_of, path, list, list_state(c, list, &phase));

	if (err)
		return err;
	c->phase = (int)tt_min(phase, INT_MAX / 2);
	c->owes = false;
	return 0;
}

int tutti_center_load(tutti_center *c, const char *path)
{
	int err = tt_given(path, "tutti_center_load: path");

	if (err || (err = enter(c)))
		return err;
	return leave(c, load_state(c, path));
}
