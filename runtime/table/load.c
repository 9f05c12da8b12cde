/* load.c - loads a table from a save that any number of servers has written
 *
 *      caller         FILE read --> all have: FILE take -->             else: FILE drop -->
 *      each server    reads its rows aside    puts them in place        forgets them: nothing has changed
 *
 * A load sets values and state together; no rule is applied. After a load from files without state, the state is the
 * initial one. Of keys each server takes its own out of all files, and they replace all that it had. */
#include "engine/engine.h"
#include "file/file.h"
#include "kernel/kernel.h"
#include "member/member.h"
#include "table/table_private.h"
#include "table/saving.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
	PIECE = 256 << 10,            /* bytes copied at once, with the lock held */
	READ = 4 * TT_TENSOR_BLOCK,   /* bytes searched for keys at once */
	TRIES = 16,                   /* of a load while others save */
};

struct tt_staged { /* a shard that was read, and is not in use yet */
	struct tt_asker asker;       /* with the number of its READ */
	char *values;
	size_t bytes;                /* of the values */
	struct tt_keys *keys;        /* NULL: rows */
	uint64_t room;               /* values and updater have room for so many keys */
	struct tt_updater *updater;
	int workers;                 /* that the updater knows */
	uint32_t print;              /* of the save that it was read from */
	uint64_t clock;              /* the largest of the files: servers save at moments of their own */
	char *into;                  /* rows: the shard's values, which these replace, ... */
	uint64_t moves;              /* ... and shard.moves at that time: the shard's values may move, and move back */
};

struct reading { /* of this rank's part of a save */
	const struct tutti_table *table;
	const struct tt_save *save;
	const struct tt_saved *values;
	uint64_t total;              /* elements of each array in the save */
	uint64_t *row, rows;         /* of keys: the rows of the save that are mine, ascending */
	struct tt_table_io *io;      /* its asker is told of progress. NULL: the reader is the caller */
};

static bool has_keys(const struct tutti_table *t) { return t->flags & TUTTI_TABLE_KEYS; }
static size_t elements_of(const struct reading *r)
{
	return (size_t)(has_keys(r->table) ? r->rows * r->table->row : tt_table_range(r->table, r->table->mine).count);
}

/* Reads block by block, since files have a checksum for each block; each is a step that tells of progress. */
static int read_some(const struct reading *r, const struct tt_saved *a, uint64_t first, uint64_t count, void *to)
{
	size_t width = tt_type_size(a->is.type);
	uint64_t end = first + count;
	int err = 0;

	for (uint64_t at = first, upto; !err && at < end; at = upto) {
		upto = tt_min(end, tt_save_block_end(r->save, a, at));
		if (!(err = r->io ? tt_table_io_step(r->io) : 0))
			err = tt_save_read(r->save, a, at, upto - at, (char *)to + (at - first) * width);
	}
	return err;
}

/* Rows of other servers between two of mine are read, too, if the two are near. */
static int read_my_rows(const struct reading *r, const struct tt_saved *a, char *to)
{
	size_t bytes = (size_t)r->table->row * tt_type_size(a->is.type);
	uint64_t row = r->table->row, most = tt_max(READ / bytes, 1), i = 0, end = 0;
	char *room = malloc((size_t)tt_min(most, r->total / row + 1) * bytes);
	int err = room ? 0 : tt_fail(-ENOMEM, "no memory to read %s", r->save->path);

	while (!err && i < r->rows) {
		uint64_t first = r->row[i];
		while (end < r->rows && r->row[end] - first < most)
			end++;
		err = read_some(r, a, first * row, (r->row[end - 1] - first + 1) * row, room);
		for (; !err && i < end; i++)
			memcpy(to + (size_t)i * bytes, room + (size_t)(r->row[i] - first) * bytes, bytes);
	}
	free(room);
	return err;
}

static int read_array(const struct reading *r, const struct tt_saved *a, void *to)
{
	struct tt_range mine = tt_table_range(r->table, r->table->mine);

	return has_keys(r->table) ? read_my_rows(r, a, to) : read_some(r, a, mine.first, mine.count, to);
}

/* ---- keys ---- */

static int take_key(struct reading *r, struct tt_keys *keys, uint64_t row, uint64_t key)
{
	uint64_t *grown, number;
	int err;

	if (tt_shards_of_key(key, r->table->servers) != r->table->mine)
		return 0;
	if (!(grown = tt_grown(r->row, (size_t)r->rows, sizeof *grown)))
		return tt_fail(-ENOMEM, "no memory for the keys of %s", r->save->path);
	r->row = grown;
	if ((err = tt_keys_add(keys, key, &number)))
		return err;
	if (number != r->rows)
		return tt_fail(-EBADMSG, "%s: the key %llu of \"%s\" is there twice, in row %llu and in row %llu",
		               r->save->path, (unsigned long long)key, r->table->name,
		               (unsigned long long)r->row[number], (unsigned long long)row);
	grown[r->rows++] = row;
	return 0;
}

static int take_keys(struct reading *r, const struct tt_saved *a, struct tt_keys *keys)
{
	enum { MANY = READ / sizeof(uint64_t) };
	uint64_t *key = malloc((size_t)tt_min(a->is.count + 1, MANY) * sizeof *key);
	int err = key ? 0 : tt_fail(-ENOMEM, "no memory for the keys of %s", r->save->path);

	for (uint64_t at = 0, n; !err && at < a->is.count; at += n) {
		n = tt_min(a->is.count - at, MANY);
		err = read_some(r, a, at, n, key);
		for (uint64_t i = 0; !err && i < n; i++)
			err = take_key(r, keys, at + i, key[i]);
	}
	free(key);
	return err;
}

static int read_keys(struct reading *r, struct tt_staged *staged)
{
	const struct tutti_table *t = r->table;
	const char *path = r->save->path;
	char name[TT_STATE_NAME];
	const struct tt_saved *a;
	int err;

	snprintf(name, sizeof name, TT_KEYS_OF, t->name);
	if (!(a = tt_save_find(r->save, name)))
		return tt_fail(-EINVAL, "%s has no \"%s\", and the table has keys: is it of a table of rows?", path,
		               name);
	if ((err = tt_tensor_check_type(path, &a->is)))
		return err;
	if (a->is.type != TUTTI_I64)
		return tt_fail(-EBADMSG, "%s: \"%s\" are of %s, and keys are of I64", path, name,
		               tt_tensor_type_names[a->is.type]);
	if (a->is.count > PTRDIFF_MAX / tt_table_row_bytes(t))
		return tt_fail(-EBADMSG, "%s: \"%s\" has %llu keys, more than can have values", path, name,
		               (unsigned long long)a->is.count);
	if ((err = tt_keys_open(staged->room, &staged->keys)) || (err = take_keys(r, a, staged->keys)))
		return err;
	r->total = a->is.count * t->row;
	staged->room = tt_max(staged->room, r->rows);
	staged->bytes = (size_t)staged->room * tt_table_row_bytes(t);
	staged->values = tt_pages_map(staged->bytes);
	return staged->values ? 0 : tt_fail(-ENOMEM, "no memory for %llu keys", (unsigned long long)staged->room);
}

/* ---- values and state ---- */

static int find_values(struct reading *r)
{
	const struct tutti_table *t = r->table;
	const struct tt_saved *a = tt_save_find(r->save, t->name);
	const char *rule, *path = r->save->path, *own = tt_update_name(t->updater.rule);
	int err;

	if (!a)
		return tt_fail(-EINVAL, "%s has no array \"%s\": is it of another table?", path, t->name);
	if ((err = tt_tensor_check_type(path, &a->is)))
		return err;
	if (!has_keys(t) && r->save->parts[a->first].share)
		return tt_fail(-EINVAL, "%s: \"%s\" is of a table with keys, and this one has rows", path, t->name);
	rule = tt_tensors_note(r->save->parts[a->first].file, TT_NOTE_RULE);
	if (rule && strcmp(rule, own))
		return tt_fail(-EINVAL, "%s: \"%s\" was updated by the rule %.40s, and the table has %s", path, t->name,
		               rule, own);
	r->values = a;
	r->total = t->count * t->row;
	return 0;
}

static int check_values(const struct reading *r)
{
	const struct tutti_table *t = r->table;
	const struct tt_saved *a = r->values;

	if (a->is.type == t->type && a->is.count == r->total)
		return 0;
	return tt_fail(-EINVAL, "%s: \"%s\" has %llu elements of %s, and the table %llu of %s", r->save->path, t->name,
	               (unsigned long long)a->is.count, tt_tensor_type_names[a->is.type], (unsigned long long)r->total,
	               tt_tensor_type_names[t->type]);
}

static const struct tt_saved *find_state(const struct reading *r, const struct tt_state *state)
{
	char name[TT_STATE_NAME];

	tt_state_name(name, sizeof name, r->table, state);
	return tt_save_find(r->save, name);
}

/* The workers of which the save has state, where each worker has its own. Saves without the note have the state of
 * ranks, and nothing tells which worker a rank was. */
static int count_workers(const struct reading *r, const struct tt_updater *u, int *workers)
{
	struct tt_state state = tt_updater_states(u) ? tt_updater_state(u, 0) : (struct tt_state){ .worker = -1 };

	*workers = 0;
	if (state.worker < 0)
		return 0;
	while (find_state(r, &state))
		state.worker++;
	*workers = state.worker;
	if (!state.worker || tt_tensors_note(r->save->parts[r->values->first].file, TT_NOTE_WORKERS))
		return 0;
	return tt_fail(-EINVAL, "%s: an earlier version of Tutti has saved the state of \"%s\" by ranks, and this "
	               "one keeps it by the workers' numbers: load the save with that version, pull the values, and "
	               "assign them here", r->save->path, r->table->name);
}

static int read_state(const struct reading *r, const struct tt_state *state)
{
	const struct tutti_table *t = r->table;
	const struct tt_saved *a = find_state(r, state);
	char name[TT_STATE_NAME];

	tt_state_name(name, sizeof name, t, state);
	if (!a)
		return tt_fail(-EINVAL, "%s has no \"%s\", which the rule %s needs: was it saved with other flags?",
		               r->save->path, name, tt_update_name(t->updater.rule));
	int err = tt_tensor_check_type(r->save->path, &a->is);
	if (err)
		return err;
	if (a->is.count != r->total || a->is.type != (t->type == TUTTI_F64 ? TUTTI_F64 : TUTTI_F32))
		return tt_fail(-EBADMSG, "%s: \"%s\" has %llu elements of %s, which does not go with \"%s\"",
		               r->save->path, name, (unsigned long long)a->is.count,
		               tt_tensor_type_names[a->is.type], t->name);
	return read_array(r, a, state->at);
}

/* Is any of these elements mine? */
static bool has_mine(const struct reading *r, uint64_t first, uint64_t end)
{
	struct tt_range mine = tt_table_range(r->table, r->table->mine);
	uint64_t i = 0;

	if (!has_keys(r->table))
		return first < mine.first + mine.count && mine.first < end;
	while (i < r->rows && r->row[i] * r->table->row < first)
		i++;
	return i < r->rows && r->row[i] * r->table->row < end;
}

/* The largest number under `note`: of all files, or of those that have some of my elements. */
static uint64_t largest_note(const struct reading *r, const char *note, bool of_mine)
{
	const struct tt_part *p = &r->save->parts[r->values->first], *end = p + r->values->parts;
	uint64_t most = 0;

	for (uint64_t at = 0; p < end; at += p++->tensor->count) {
		const char *number = tt_tensors_note(p->file, note);
		if (number && (!of_mine || has_mine(r, at, at + p->tensor->count)))
			most = tt_max(most, strtoull(number, NULL, 10));
	}
	return most;
}

/* Workers that the save does not know get the initial state. */
static int read_states(const struct reading *r, const void *values, struct tt_updater *u, int known)
{
	int err = 0;

	for (int i = 0; !err && i < tt_updater_states(u); i++) {
		struct tt_state state = tt_updater_state(u, i);
		if (state.worker < known)
			err = read_state(r, &state);
		else if (!i || tt_updater_state(u, i - 1).worker != state.worker)
			tt_updater_assigned(u, state.worker, values, 0, elements_of(r));
	}
	tt_updater_set_pushes(u, largest_note(r, TT_NOTE_PUSHES, true));
	return err;
}

static int read_updater(const struct reading *r, struct tt_staged *staged)
{
	const struct tutti_table *t = r->table;
	size_t count = staged->bytes / t->width;
	int err = tt_updater_open(&t->updater, t->type, count, staged->workers, &staged->updater), known;

	if (err)
		return err;
	if (!tt_tensors_note(r->save->parts[r->values->first].file, TT_NOTE_RULE)) {
		tt_updater_assigned(staged->updater, -1, staged->values, 0, elements_of(r));
		return 0;
	}
	if ((err = count_workers(r, staged->updater, &known)))
		return err;
	staged->workers = known > staged->workers ? known : staged->workers;
	err = tt_updater_join(staged->updater, staged->workers);
	return err ? err : read_states(r, staged->values, staged->updater, known);
}

static int read_shard(struct reading *r, struct tt_staged *staged)
{
	int err = find_values(r);

	if (!err && has_keys(r->table))
		err = read_keys(r, staged);
	if (err || (err = check_values(r)) || (err = read_array(r, r->values, staged->values)))
		return err;
	staged->clock = tt_min(largest_note(r, TT_NOTE_CLOCK, false), INT64_MAX);
	return read_updater(r, staged);
}

/* Tells this save from others in the same folder. */
static uint32_t print_of(const struct tt_save *s)
{
	struct tt_sum sum;

	tt_sum_begin(&sum);
	for (size_t i = 0; i < s->file_count; i++) {
		const struct tt_tensors *f = s->files[i];
		tt_sum_add(&sum, f->path, strlen(f->path));
		if (f->seal)
			tt_sum_add(&sum, f->seal, strlen(f->seal));
	}
	return (uint32_t)tt_sum_end(&sum);
}

static int read_from(const struct tutti_table *t, const char *folder, struct tt_staged *staged, struct tt_table_io *io)
{
	struct reading r = { .table = t, .io = io };
	struct tt_save *save;
	int err = tt_save_open(folder, t->name, &save);

	if (err)
		return err;
	r.save = save;
	staged->print = print_of(save);
	err = read_shard(&r, staged);
	free(r.row);
	tt_save_close(save);
	return err;
}

/* ---- staged ---- */

static int new_staged(const struct tutti_table *t, struct tt_staged **out)
{
	struct tt_staged *s = calloc(1, sizeof *s);
	size_t bytes = (size_t)tt_table_range(t, t->mine).count * t->width;

	if (!s || (!has_keys(t) && !(s->values = tt_pages_map(bytes)))) {
		free(s);
		return tt_fail(-ENOMEM, "no memory to read %zu bytes of the table \"%s\"", bytes, t->name);
	}
	s->bytes = bytes;
	s->workers = t->shard.workers;
	s->room = t->shard.room; /* the shard may grow meanwhile */
	*out = s;
	return 0;
}

static void empty(struct tt_staged *s)
{
	tt_updater_close(s->updater);
	tt_keys_close(s->keys);
	if (s->values != s->into) /* else the shard owns them */
		tt_pages_unmap(s->values, s->bytes);
}

void tt_staged_free(struct tt_staged *s)
{
	if (s)
		empty(s);
	free(s);
}

static void place(struct tutti_table *t, struct tt_staged *staged)
{
	staged->into = has_keys(t) ? NULL : tt_shard_in_rounds(t) ? tt_version_write_spare(t) : t->shard.values;
	staged->moves = t->shard.moves;
}

/* The staged shard gets what the shard had. */
static void swap_keys(struct tutti_table *t, struct tt_staged *staged)
{
	struct tt_shard *s = &t->shard, was = *s;

	s->keys = staged->keys;
	s->room = staged->room;
	s->values = staged->values;
	staged->keys = was.keys;
	staged->values = was.values;
	staged->bytes = (size_t)was.room * tt_table_row_bytes(t);
}

/* The values stand where place() wanted them, unless those of the shard have moved meanwhile. */
static void place_values(struct tutti_table *t, const struct tt_staged *staged)
{
	if (tt_shard_in_rounds(t)) {
		if (staged->into != tt_version_spare(t))
			memcpy(tt_version_write_spare(t), staged->values, staged->bytes);
		tt_version_take_spare(t);
	} else if (t->shard.values != staged->into || t->shard.moves != staged->moves) {
		memcpy(t->shard.values, staged->values, staged->bytes);
	}
}

static void use(struct tutti_table *t, struct tt_staged *staged)
{
	struct tt_shard *s = &t->shard;

	tt_version_replace(t);
	if (has_keys(t))
		swap_keys(t, staged);
	else
		place_values(t, staged);
	tt_updater_close(s->updater);
	s->updater = staged->updater;
	staged->updater = NULL;
	s->workers = staged->workers; /* workers that have come since join with their next push */
	for (int i = 0; i < tt_members(t->job)->capacity; i++)
		if (s->pushers[i])
			s->pushers[i]->push = (struct tt_push){ 0 }; /* it refers to the old updater */
}

int tt_load_open(struct tutti_table *t, const char *folder)
{
	struct tt_staged staged = { .workers = t->shard.workers };
	int err = tt_save_check_name(t->name);

	if (err || !tt_table_has_any(t, t->mine))
		return err;
	place(t, &staged);
	if (!has_keys(t)) {
		staged.values = staged.into;
		staged.bytes = (size_t)tt_table_range(t, t->mine).count * t->width;
	}
	if (!(err = read_from(t, folder, &staged, NULL))) {
		use(t, &staged);
		tt_lock(t->job);
		tt_version_pushed(t); /* makes a version of it for snapshots */
		tt_rounds_start(t->shard.rounds, staged.clock);
		tt_version_skip(t);
		tt_unlock(t->job);
	}
	empty(&staged);
	return err;
}

/* ---- the server ---- */

void tt_load_forget(struct tt_table_io *c)
{
	tt_staged_free(c->staged);
	c->staged = NULL;
}

uint32_t tt_staged_print(const struct tt_staged *s) { return s->print; }
const struct tt_asker *tt_staged_asker(const struct tt_staged *s) { return &s->asker; }

static int read_aside(struct tt_table_io *c) { return read_from(c->table, c->order.folder, c->staged, c); }

static void keep_or_forget(struct tt_table_io *c, int err)
{
	if (err || c->unwanted)
		tt_load_forget(c);
}

void tt_load_read(struct tt_table_io *c)
{
	int err = new_staged(c->table, &c->staged);

	if (err) {
		tt_table_io_done(c, err);
	} else {
		c->staged->asker = c->asker;
		tt_table_io_work(c, read_aside, keep_or_forget);
	}
}

/* Pushes to this table wait meanwhile; pulls, heartbeats and other tables do not. */
static int copy_values(struct tt_table_io *c)
{
	const struct tutti_table *t = c->table;
	struct tt_ticket_lock *lock = &t->job->engine.lock;
	size_t bytes = has_keys(t) ? 0 : c->staged->bytes;

	for (size_t at = 0; at < bytes; at += PIECE) {
		tt_ticket_lock_take(lock);
		memcpy(c->staged->into + at, c->staged->values + at, tt_min(PIECE, bytes - at));
		tt_ticket_lock_release(lock);
		c->steps++;
	}
	return 0;
}

static void finish(struct tt_table_io *c, int err)
{
	if (!err && !c->stop) {
		tt_version_settle(c->table); /* a worker that left may have closed a round: before the load */
		use(c->table, c->staged);
	}
	tt_load_forget(c);
	if (c->stop)
		return;
	tt_shard_resume(c->table);
	tt_version_pushed(c->table); /* as in tt_load_open() */
	if (c->table->shard.fresh)
		tt_changed_rows_pushed(c->table->shard.fresh, -1, NULL, 0);
}

/* Ends pushes that are half done: the load replaces what they have changed. */
static void end_pushes(struct tutti_table *t)
{
	tt_log(TT_WARN, "table load: table \"%s\": %s: it ends here", t->name, tt_why());
	for (int i = 0; i < tt_members(t->job)->capacity; i++)
		tt_table_end_given_up(t, i);
	tt_version_settle(t);
}

static void take_now(struct tutti_table *t, int err) /* err: a push that is half done makes no progress */
{
	if (err)
		end_pushes(t);
	place(t, t->shard.io->staged);
	tt_table_io_work(t->shard.io, copy_values, finish);
}

void tt_load_take(struct tt_table_io *c)
{
	struct tt_asker reader = c->asker;

	reader.number = (uint32_t)c->order.generation;
	if (c->staged && tt_asker_is(&c->staged->asker, &reader)) {
		c->loads++;
		tt_shard_quiesce(c->table, c->table->job->silence, take_now);
	} else {
		tt_table_io_done(c, tt_fail(-EINVAL, "it has read nothing that could be taken"));
	}
}

/* ---- the call ---- */

/* All servers that have not taken what they have read forget it, before the call returns its error. */
static int drop(struct tutti_table *t, const char *what, uint32_t number, int err)
{
	struct tt_order o = { .what = TT_FILE_DROP, .generation = number, .folder = "" };
	char why[512];

	snprintf(why, sizeof why, "%s", tt_why());
	tt_table_io_order(t, what, &o, NULL);
	tt_remember(why);
	return err;
}

/* -EAGAIN: another save has replaced this one meanwhile, and servers have read parts of both. */
static int load_once(struct tutti_table *t, const char *what, const char *folder)
{
	struct tt_order o = { .what = TT_FILE_READ, .folder = folder }, then = { .what = TT_FILE_TAKE, .folder = "" };
	uint32_t number = 0; /* also if there was no memory for the order: then the drop below finds nothing */
	int err = tt_table_io_order(t, what, &o, &number);

	then.generation = number;
	if (!err && o.differ)
		err = tt_fail(-EAGAIN, "%s: table \"%s\": its saves in %s take each other's places faster than they "
		              "can be read", what, t->name, folder);
	else if (!err)
		err = tt_table_io_order(t, what, &then, NULL);
	if (err == -EINTR) /* servers were told to forget what they read, or take it all the same */
		return err;
	return err ? drop(t, what, number, err) : 0;
}

static int load(struct tutti_table *t, const char *what, const char *folder)
{
	int err = -EAGAIN;

	for (int i = 0; err == -EAGAIN && i < TRIES; i++)
		err = load_once(t, what, folder);
	return err;
}

int tutti_table_load(tutti_table *t, const char *folder) { return tt_table_io_call(t, "table load", folder, load); }
