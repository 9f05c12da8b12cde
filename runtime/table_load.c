/* table_load.c - a table out of the files of a save: on as many servers as it has, whoever wrote them
 *
 *      who calls    FILE read --> each server reads its range, aside     all have: FILE take --> each puts it in place of what it had
 *                                                                        else:     FILE drop --> and nothing has changed
 *
 * Values and state are set together and go past the rule. A file without state sets the values as an assignment does. */
#include "table_save.h"
#include "tensors.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PIECE = 256 << 10 };

struct tt_staged { /* a shard that was read, and is not in use yet */
	struct tt_asker asker;       /* for whom; with the number of his READ */
	char *values;
	struct tt_updater *updater;
	int workers;                 /* that it knows */
	char *into;                  /* where the values go, unless another version is made meanwhile */
};

/* ---- reading ---- */

static const struct tt_tensors *file_of(const struct tt_save *s, const struct tt_saved *a) { return s->parts[a->first].file; }

static int find_values(const struct tutti_table *t, const struct tt_save *s, const struct tt_saved **out)
{
	const struct tt_saved *a = tt_save_find(s, t->name);
	const char *rule;

	if (!a)
		return tt_fail(-EINVAL, "%s has no array \"%s\": is it of another table?", s->path, t->name);
	if (a->is.type != t->type || a->is.count != t->count * t->row)
		return tt_fail(-EINVAL, "%s: \"%s\" has %llu elements of %s, and the table %llu of %s", s->path, t->name, (unsigned long long)a->is.count,
		               tt_tensor_type_names[a->is.type], (unsigned long long)(t->count * t->row), tt_tensor_type_names[t->type]);
	rule = tt_tensors_note(file_of(s, a), TT_NOTE_RULE);
	if (rule && strcmp(rule, tt_update_name(t->updater.rule)))
		return tt_fail(-EINVAL, "%s: \"%s\" was updated by the rule %.40s, and the table has %s", s->path, t->name, rule, tt_update_name(t->updater.rule));
	*out = a;
	return 0;
}

static const struct tt_saved *find_state(const struct tutti_table *t, const struct tt_save *s, const struct tt_state *state)
{
	char name[TT_STATE_NAME];

	tt_state_name(name, sizeof name, t, state);
	return tt_save_find(s, name);
}

/* Of how many there is state of their own. */
static int count_workers(const struct tutti_table *t, const struct tt_save *s, const struct tt_updater *u)
{
	struct tt_state state = tt_updater_states(u) ? tt_updater_state(u, 0) : (struct tt_state){ .worker = -1 };

	if (state.worker < 0)
		return 0;
	while (find_state(t, s, &state))
		state.worker++;
	return state.worker;
}

static int read_state(const struct tutti_table *t, const struct tt_save *s, const struct tt_state *state)
{
	struct tt_range mine = tt_table_range(t, t->mine);
	const struct tt_saved *a = find_state(t, s, state);
	char name[TT_STATE_NAME];

	tt_state_name(name, sizeof name, t, state);
	if (!a)
		return tt_fail(-EINVAL, "%s has no \"%s\", which the rule %s needs: was it saved with other flags?", s->path, name, tt_update_name(t->updater.rule));
	if (a->is.count != t->count * t->row || a->is.type != (t->type == TUTTI_F64 ? TUTTI_F64 : TUTTI_F32))
		return tt_fail(-EBADMSG, "%s: \"%s\" has %llu elements of %s, which does not go with \"%s\"", s->path, name, (unsigned long long)a->is.count,
		               tt_tensor_type_names[a->is.type], t->name);
	return tt_save_read(s, a, mine.first, mine.count, state->at);
}

/* Where this range was on several servers, one of them may have counted more than another. */
static uint64_t pushes_of(const struct tutti_table *t, const struct tt_save *s, const struct tt_saved *a)
{
	struct tt_range mine = tt_table_range(t, t->mine);
	uint64_t most = 0, at = 0;

	for (const struct tt_part *p = &s->parts[a->first]; p < &s->parts[a->first + a->parts]; at += p++->tensor->count) {
		const char *pushes = tt_tensors_note(p->file, TT_NOTE_PUSHES);
		if (pushes && at < mine.first + mine.count && mine.first < at + p->tensor->count)
			most = tt_max(most, strtoull(pushes, NULL, 10));
	}
	return most;
}

/* State of workers that the save does not know is as if they came now. */
static int read_states(const struct tutti_table *t, const struct tt_save *s, const struct tt_saved *a, const void *values, struct tt_updater *u, int known)
{
	struct tt_range mine = tt_table_range(t, t->mine);
	int err = 0;

	for (int i = 0; !err && i < tt_updater_states(u); i++) {
		struct tt_state state = tt_updater_state(u, i);
		if (state.worker < known)
			err = read_state(t, s, &state);
		else if (!i || tt_updater_state(u, i - 1).worker != state.worker)
			tt_updater_assigned(u, state.worker, values, 0, (size_t)mine.count);
	}
	tt_updater_set_pushes(u, pushes_of(t, s, a));
	return err;
}

static int read_shard(const struct tutti_table *t, const struct tt_save *s, char *values, int *workers, struct tt_updater **out)
{
	struct tt_range mine = tt_table_range(t, t->mine);
	const struct tt_saved *a = NULL;
	struct tt_updater *u;
	int err, known;

	if ((err = find_values(t, s, &a)) || (err = tt_save_read(s, a, mine.first, mine.count, values)) ||
	    (err = tt_updater_open(&t->updater, t->type, (size_t)mine.count, *workers, &u)))
		return err;
	if (!tt_tensors_note(file_of(s, a), TT_NOTE_RULE)) {
		tt_updater_assigned(u, -1, values, 0, (size_t)mine.count);
	} else {
		known = count_workers(t, s, u);
		*workers = known > *workers ? known : *workers;
		if (!(err = tt_updater_join(u, *workers)))
			err = read_states(t, s, a, values, u, known);
	}
	if (err)
		tt_updater_close(u);
	else
		*out = u;
	return err;
}

static int read_from(const struct tutti_table *t, const char *folder, char *values, int *workers, struct tt_updater **out)
{
	struct tt_save *s;
	int err = tt_save_open(folder, t->name, &s);

	if (err)
		return err;
	err = read_shard(t, s, values, workers, out);
	tt_save_close(s);
	return err;
}

int tt_load_open(struct tutti_table *t, const char *folder)
{
	struct tt_updater *u;
	int err = tt_save_check_table(t);

	if (err || !tt_table_range(t, t->mine).count || (err = read_from(t, folder, t->shard.values, &t->shard.workers, &u)))
		return err;
	tt_updater_close(t->shard.updater);
	t->shard.updater = u;
	tt_enter(t->job);
	tt_version_pushed(t); /* snapshots shall have it */
	tt_exit(t->job);
	return 0;
}

/* The servers' files are of moments of their own: all go on from the last. */
static uint64_t clock_of(const struct tt_save *s, const struct tt_saved *a)
{
	uint64_t most = 0;

	for (const struct tt_part *p = &s->parts[a->first]; p < &s->parts[a->first + a->parts]; p++) {
		const char *clock = tt_tensors_note(p->file, TT_NOTE_CLOCK);
		most = tt_max(most, clock ? strtoull(clock, NULL, 10) : 0);
	}
	return tt_min(most, INT64_MAX);
}

int tt_load_clock(struct tutti_table *t, const char *folder)
{
	const struct tt_saved *a;
	struct tt_save *s;
	int err;

	if (!tt_table_has_any(t, t->mine))
		return 0;
	if ((err = tt_save_open(folder, t->name, &s)))
		return err;
	tt_enter(t->job);
	if ((a = tt_save_find(s, t->name)))
		tt_rounds_start(t->shard.rounds, clock_of(s, a));
	tt_version_skip(t);
	tt_exit(t->job);
	tt_save_close(s);
	return 0;
}

/* ---- the server's part ---- */

void tt_staged_free(struct tt_staged *s)
{
	if (!s)
		return;
	tt_updater_close(s->updater);
	free(s->values);
	free(s);
}

static void forget(struct tt_clerk *c)
{
	tt_staged_free(c->staged);
	c->staged = NULL;
}

static int read_aside(struct tt_clerk *c)
{
	return read_from(c->table, c->order.folder, c->staged->values, &c->staged->workers, &c->staged->updater);
}

static void keep_or_forget(struct tt_clerk *c, int err)
{
	if (err || !tt_asker_lives(c->table, &c->asker))
		forget(c);
}

void tt_load_read(struct tt_clerk *c)
{
	struct tutti_table *t = c->table;
	struct tt_staged *s;

	if ((s = calloc(1, sizeof *s)) && !(s->values = malloc((size_t)tt_table_range(t, t->mine).count * t->width))) {
		free(s);
		s = NULL;
	}
	if (!s) {
		tt_clerk_done(c, tt_fail(-ENOMEM, "no memory to read %llu elements", (unsigned long long)tt_table_range(t, t->mine).count));
		return;
	}
	s->asker = c->asker;
	s->workers = t->shard.workers;
	c->staged = s;
	tt_clerk_work(c, read_aside, keep_or_forget);
}

static bool are_same(const struct tt_asker *a, const struct tt_asker *b) { return a->rank == b->rank && a->epoch == b->epoch && a->number == b->number; }

void tt_load_forget(struct tutti_table *t, const struct tt_asker *asker)
{
	struct tt_clerk *c = t->shard.clerk;

	if (c && c->staged && !c->busy && are_same(&c->staged->asker, asker))
		forget(c);
}

void tt_load_forget_dead(struct tutti_table *t)
{
	struct tt_clerk *c = t->shard.clerk;

	if (c && c->staged && !c->busy && !tt_asker_lives(t, &c->staged->asker))
		forget(c);
}

/* Pushes wait meanwhile; pulls, pings and other tables do not. */
static int copy_values(struct tt_clerk *c)
{
	const struct tutti_table *t = c->table;
	struct tt_gate *gate = &t->job->engine.gate;
	size_t bytes = (size_t)tt_table_range(t, t->mine).count * t->width;

	for (size_t at = 0; at < bytes; at += PIECE) {
		tt_gate_enter(gate);
		memcpy(c->staged->into + at, c->staged->values + at, tt_min(PIECE, bytes - at));
		tt_gate_leave(gate);
	}
	return 0;
}

/* A worker that goes may close a round: the version that this makes is of no use any more. */
static void use(struct tutti_table *t, struct tt_staged *staged)
{
	struct tt_shard *s = &t->shard;

	tt_version_settle(t);
	if (s->values != staged->into)
		memcpy(s->values, staged->values, (size_t)tt_table_range(t, t->mine).count * t->width);
	tt_updater_close(s->updater);
	s->updater = staged->updater;
	for (int i = 0; i < t->job->capacity; i++)
		if (s->pushers[i])
			s->pushers[i]->push = (struct tt_push){ 0 }; /* of the rule that is gone */
	s->workers = staged->workers; /* who has come since then joins with its next push */
	staged->updater = NULL;
}

static void finish(struct tt_clerk *c, int err)
{
	if (!err && !c->stop)
		use(c->table, c->staged);
	forget(c);
	if (c->stop)
		return;
	tt_shard_release(c->table);
	tt_version_pushed(c->table); /* a new one is due */
	if (c->table->shard.fresh)
		tt_fresh_pushed(c->table->shard.fresh, -1, NULL, 0);
}

static void take_now(struct tutti_table *t) /* no push is half done, no version half made */
{
	t->shard.clerk->staged->into = t->shard.values;
	tt_clerk_work(t->shard.clerk, copy_values, finish);
}

void tt_load_take(struct tt_clerk *c)
{
	struct tt_asker reader = c->asker;

	reader.number = (uint32_t)c->order.generation;
	if (c->staged && are_same(&c->staged->asker, &reader))
		tt_shard_hold(c->table, take_now);
	else
		tt_clerk_done(c, tt_fail(-EINVAL, "it has read nothing that could be taken"));
}

/* ---- the call ---- */

static int load(struct tutti_table *t, const char *what, const char *folder)
{
	struct tt_order o = { .what = TT_FILE_READ, .folder = folder }, then = { .what = TT_FILE_TAKE, .folder = "" };
	uint32_t number;
	int err = tt_clerk_order(t, what, &o, &number);
	char why[512];

	then.generation = number;
	if (!err)
		err = tt_clerk_order(t, what, &then, NULL);
	if (!err)
		return 0;
	snprintf(why, sizeof why, "%s", tt_why());
	then.what = TT_FILE_DROP; /* whoever has not taken it forgets it */
	tt_clerk_order(t, what, &then, NULL);
	tt_remember(why);
	return err;
}

int tutti_table_load(tutti_table *t, const char *folder) { return tt_clerk_call(t, "table load", folder, load); }
