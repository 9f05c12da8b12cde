/* save.c - saves a table to files while workers use it; docs/saves.md describes the files, runtime/file/ writes them
 *
 *      caller         a free generation --> FILE --> ... FILED --> COUNT --> ... FILED --> the index: it is a save
 *      each server                          quiesce, take an image, resume; the I/O thread writes the image
 *
 * A server's file holds its shard between two pushes: the values and the rule's state. The servers' moments differ.
 * COUNT asks all servers whether a load came in between: files from before and after a load must not become one
 * save. */
#include "file/file.h"
#include "kernel/kernel.h"
#include "member/member.h"
#include "table/table_private.h"
#include "table/saving.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { PIECE = 256 << 10 };          /* bytes read from an image at once, with the lock held */

struct tt_saving { /* a shard that is being written */
	struct tt_image *image;      /* NULL: there are no elements */
	char pushes[24], clock[24], workers[24];
	uint64_t keys, keys_done;    /* written before the image; keys never change */
	int arrays;
	struct tt_tensor of[];       /* keys, if it has them; values; state */
};

void tt_state_name(char *room, size_t size, const struct tutti_table *t, const struct tt_state *s)
{
	if (s->worker < 0)
		snprintf(room, size, "%s.%s", t->name, s->name);
	else
		snprintf(room, size, "%s.%s.%d", t->name, s->name, s->worker);
}

uint32_t tt_saving_workers(const struct tutti_table *t)
{
	int n = tt_updater_states(t->shard.updater);

	return n ? (uint32_t)(tt_updater_state(t->shard.updater, n - 1).worker + 1) : 0;
}

static bool has_keys(const struct tutti_table *t) { return t->flags & TUTTI_TABLE_KEYS; }

static uint64_t rows_of(const struct tutti_table *t)
{
	return has_keys(t) ? tt_keys_count(t->shard.keys) : tt_table_range(t, t->mine).count / t->row;
}

static char *slice_name(const struct tutti_table *t, const char *array)
{
	uint64_t first = tt_table_range(t, t->mine).first / t->row;
	char room[TT_STATE_NAME + 80];

	if (tt_table_files(t) == 1)
		return strdup(array);
	if (has_keys(t))
		tt_share_name(room, sizeof room, array, (uint64_t)t->mine, (uint64_t)t->servers);
	else
		tt_slice_name(room, sizeof room, array, first, first + rows_of(t), t->count);
	return strdup(room);
}

static void add_array(struct tt_saving *s, const struct tutti_table *t, const char *name, tutti_type type, uint64_t row)
{
	s->of[s->arrays++] = (struct tt_tensor){ .name = slice_name(t, name), .type = type, .dims = 1 + (row > 1),
	                                         .shape = { rows_of(t), row } };
}

static void describe(struct tt_saving *s, const struct tutti_table *t, struct tt_array *of)
{
	tutti_type type = t->type == TUTTI_F64 ? TUTTI_F64 : TUTTI_F32;
	char name[TT_STATE_NAME];

	if (has_keys(t)) {
		snprintf(name, sizeof name, TT_KEYS_OF, t->name);
		s->keys = rows_of(t);
		add_array(s, t, name, TUTTI_I64, 1);
	}
	add_array(s, t, t->name, t->type, t->row);
	*of++ = (struct tt_array){ t->shard.values, t->width };
	for (int i = 0; i < tt_updater_states(t->shard.updater); i++) {
		struct tt_state state = tt_updater_state(t->shard.updater, i);
		tt_state_name(name, sizeof name, t, &state);
		add_array(s, t, name, type, t->row);
		*of++ = (struct tt_array){ state.at, tt_type_size(type) };
	}
}

/* All arrays of the image have moved. The image has no state of workers that came since it was made. */
void tt_saving_moved(struct tutti_table *t)
{
	const struct tt_saving *s = t->shard.io->saving;

	tt_image_moved(s->image, 0, t->shard.values);
	for (int i = 1; i < s->arrays - 1; i++) /* the keys are not in the image */
		tt_image_moved(s->image, i, tt_updater_state(t->shard.updater, i - 1).at);
}

void tt_saving_free(struct tt_saving *s)
{
	if (!s)
		return;
	tt_image_close(s->image);
	for (int i = 0; i < s->arrays; i++)
		free((char *)(uintptr_t)s->of[i].name);
	free(s);
}

static int new_saving(const struct tutti_table *t, struct tt_saving **out)
{
	int images = 1 + tt_updater_states(t->shard.updater), err = 0;
	struct tt_saving *s = calloc(1, sizeof *s + (size_t)(images + 1) * sizeof *s->of);
	struct tt_array *of = calloc((size_t)images, sizeof *of);
	size_t count = (size_t)(rows_of(t) * t->row);

	if (s && of) {
		snprintf(s->pushes, sizeof s->pushes, "%llu", (unsigned long long)tt_updater_pushes(t->shard.updater));
		snprintf(s->clock, sizeof s->clock, "%llu", (unsigned long long)tt_version_clock(t));
		snprintf(s->workers, sizeof s->workers, "%u", tt_saving_workers(t));
		describe(s, t, of);
	}
	for (int i = 0; s && of && i < s->arrays; i++)
		err = s->of[i].name ? err : -ENOMEM;
	if (!s || !of || err)
		err = tt_fail(-ENOMEM, "no memory for a save of %d arrays", images);
	else if (count)
		err = tt_image_open(of, images, count, &s->image);
	free(of);
	if (err)
		tt_saving_free(s);
	else
		*out = s;
	return err;
}

/* ---- the server ---- */

static size_t read_some(struct tt_table_io *c, void *room)
{
	struct tt_saving *s = c->saving;
	uint64_t *key = room;
	size_t n = (size_t)tt_min(s->keys - s->keys_done, PIECE / sizeof *key);

	for (size_t i = 0; i < n; i++)
		key[i] = tt_keys_key(c->table->shard.keys, s->keys_done++);
	return n ? n * sizeof *key : s->image ? tt_image_read(s->image, room, PIECE) : 0;
}

static int next_piece(struct tt_table_io *c, char *room, size_t *n)
{
	struct tt_ticket_lock *lock = &c->table->job->engine.lock; /* tt_lock() would hold up the background thread */
	int err = tt_table_io_step(c);

	if (err)
		return err;
	tt_ticket_lock_take(lock);
	*n = read_some(c, room);
	tt_ticket_lock_release(lock);
	return 0;
}

static int write_arrays(struct tt_table_io *c, struct tt_tensors_writer *w)
{
	char *room = malloc(PIECE);
	int err = room ? 0 : tt_fail(-ENOMEM, "no memory to write %s", w->draft.path);
	size_t n = 1;

	while (!err && n && !(err = next_piece(c, room, &n)))
		err = n ? tt_tensors_put(w, room, n) : 0;
	free(room);
	return err;
}

/* Two savers may have found the same generation free. Neither overwrites a file that the other may commit. */
static int write_to(struct tt_table_io *c, const char *path)
{
	const struct tt_metadata notes[] = { { TT_NOTE_RULE, tt_update_name(c->table->updater.rule) },
		{ TT_NOTE_PUSHES, c->saving->pushes }, { TT_NOTE_CLOCK, c->saving->clock },
		{ TT_NOTE_WORKERS, c->saving->workers } };
	struct tt_tensors_writer w;
	int err;

	if (!access(path, F_OK))
		return tt_fail(-EEXIST, "%s is there already: is another save of it under way?", path);
	err = tt_tensors_begin(&w, path, c->saving->of, (size_t)c->saving->arrays, notes, TT_COUNT(notes));
	if (err)
		return err;
	w.draft.only_new = true; /* the other saver may have begun before this one, and end first */
	if (!(err = write_arrays(c, &w)))
		return tt_tensors_end(&w);
	tt_tensors_drop(&w);
	return err;
}

static int write_shard(struct tt_table_io *c)
{
	const struct tutti_table *t = c->table;
	char *path = NULL;
	int err = tt_save_shard(c->order.folder, t->name, c->order.generation, t->mine, tt_table_files(t), &path);

	err = err ? err : write_to(c, path);
	free(path);
	return err;
}

static void forget_image(struct tt_table_io *c, int err)
{
	(void)err;
	c->table->shard.image = NULL;
	tt_saving_free(c->saving);
	c->saving = NULL;
}

static void save_now(struct tutti_table *t, int err) /* err: a push that is half done makes no progress */
{
	struct tt_table_io *c = t->shard.io;

	err = err ? err : tt_table_io_step(c); /* the order may have been called off meanwhile */
	err = err ? err : new_saving(t, &c->saving);
	t->shard.image = err ? NULL : c->saving->image;
	if (err)
		tt_table_io_done(c, err);
	tt_shard_resume(t);
	if (!err)
		tt_table_io_work(c, write_shard, forget_image);
}

/* All servers write the state of the same workers, since the slices of all servers make one array. A server to which a
 * worker has not pushed writes that worker's initial state. */
void tt_save_begin(struct tt_table_io *c)
{
	struct tutti_table *t = c->table;
	uint32_t workers = c->order.workers, known = tt_saving_workers(t);
	int capacity = tt_members(t->job)->capacity, err = 0;

	if (workers > (uint32_t)capacity)
		err = tt_fail(-EINVAL, "state of %u workers is asked for, and there is room for %d ranks", workers,
		              capacity);
	else if (known > workers)
		err = tt_fail(-EAGAIN, "it has state of %u workers", known);
	else if (known && tt_table_know(t, (int)workers - 1))
		err = tt_fail(-ENOMEM, "no state for %u workers", workers);
	if (err)
		tt_table_io_done(c, err);
	else
		tt_shard_quiesce(t, t->job->silence, save_now);
}

/* ---- the call ---- */

/* Has no server been loaded since `loads` was counted? A load that falls between the files of two servers also changes
 * the count of the first of them: no server takes a load before all servers have read it, and what was read counts. */
static int check(struct tutti_table *t, const char *what, uint64_t loads)
{
	struct tt_order o = { .what = TT_FILE_COUNT, .folder = "" };
	int err = tt_table_io_order(t, what, &o, NULL);

	if (err || o.loads == loads)
		return err;
	return tt_fail(-EBUSY, "%s: table \"%s\" was being loaded meanwhile: save again", what, t->name);
}

static int save(struct tutti_table *t, const char *what, const char *folder)
{
	const struct tt_members *m = tt_members(t->job);
	struct tt_order o = { .what = TT_FILE_SAVE, .folder = folder, 
		              .workers = (uint32_t)tt_table_launched_workers(t) };
	uint32_t workers;
	int err;

	do { /* again with the state of more workers, if some have joined */
		workers = o.workers;
		if ((err = tt_save_next(folder, t->name, &o.generation)))
			return err;
		err = tt_table_io_order(t, what, &o, NULL);
	} while (err == -EAGAIN && o.workers > workers && o.workers <= (uint32_t)m->capacity);
	if (err || (err = check(t, what, o.loads)))
		return err;
	return tt_save_commit(folder, t->name, o.generation, tt_table_files(t));
}

int tutti_table_save(tutti_table *t, const char *folder) { return tt_table_io_call(t, "table save", folder, save); }
