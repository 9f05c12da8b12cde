/* save.c - a table into files, while it is used. docs/saves.md has these; tensors.c and save.c write and read them.
 *
 *      who calls      a generation that no file has ---> FILE ---> ... FILED --> the index, which makes the save
 *      each server                                   hold its shard: image of the moment: release; a thread writes the image
 *
 * Between the two it asks all of them whether a load came in between: two moments then, of which no file may be one save.
 *
 * Each server's file is its shard between two pushes: values, and the rule's state. Two servers' moments are not the same one. */
#include "file/file.h"
#include "kernel/kernel.h"
#include "member/member.h"
#include "table/table_private.h"
#include "table/saving.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { PIECE = 256 << 10 };          /* bytes that are taken out of an image at once, with the gate held */

struct tt_saving { /* a shard that is being written */
	struct tt_image *image;      /* NULL: there are no elements */
	char pushes[24], clock[24];
	uint64_t keys, keys_done;    /* these do not change; written before the image */
	int arrays;
	struct tt_tensor of[];       /* keys, if it has them; values; state */
};

/* ---- what is written ---- */

void tt_state_name(char *room, size_t size, const struct tutti_table *t, const struct tt_state *s)
{
	if (s->worker < 0)
		snprintf(room, size, "%s.%s", t->name, s->name);
	else
		snprintf(room, size, "%s.%s.%d", t->name, s->name, s->worker);
}

static bool has_keys(const struct tutti_table *t) { return t->flags & TUTTI_TABLE_KEYS; }
static uint64_t rows_of(const struct tutti_table *t) { return has_keys(t) ? tt_keys_count(t->shard.keys) : tt_table_range(t, t->mine).count / t->row; }

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
	s->of[s->arrays++] = (struct tt_tensor){ .name = slice_name(t, name), .type = type, .dims = row > 1 ? 2 : 1, .shape = { rows_of(t), row } };
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

/* No array of the image is at its old place any more. State of workers that came since is not in it. */
void tt_saving_moved(struct tutti_table *t)
{
	const struct tt_saving *s = t->shard.clerk->saving;

	tt_image_moved(s->image, 0, t->shard.values);
	for (int i = 1; i < s->arrays - 1; i++) /* the keys are not in it */
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

/* ---- the server's part ---- */

static size_t read_keys(struct tt_saving *s, const struct tt_keys *keys, uint64_t *room)
{
	size_t n = (size_t)tt_min(s->keys - s->keys_done, PIECE / sizeof *room);

	for (size_t i = 0; i < n; i++)
		room[i] = tt_keys_key(keys, s->keys_done++);
	return n * sizeof *room;
}

static size_t read_some(struct tt_table_io *c, void *room)
{
	struct tt_saving *s = c->saving;

	if (s->keys_done < s->keys)
		return read_keys(s, c->table->shard.keys, room);
	return s->image ? tt_image_read(s->image, room, PIECE) : 0;
}

static int next_piece(struct tt_table_io *c, char *room, size_t *n)
{
	struct tt_ticket_lock *gate = &c->table->job->engine.lock; /* not tt_lock(): that would keep the background thread away from the nets */
	int err = tt_table_io_step(c);

	if (err)
		return err;
	tt_ticket_lock_take(gate);
	*n = read_some(c, room);
	tt_ticket_lock_release(gate);
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

/* Two savers may have found the same generation free: neither overwrites what the other one may be about to commit. */
static int write_to(struct tt_table_io *c, const char *path)
{
	const struct tt_metadata notes[] = { { TT_NOTE_RULE, tt_update_name(c->table->updater.rule) }, { TT_NOTE_PUSHES, c->saving->pushes },
		                             { TT_NOTE_CLOCK, c->saving->clock } };
	struct tt_tensors_writer w;
	int err;

	if (!access(path, F_OK))
		return tt_fail(-EEXIST, "%s is there already: is another save of it under way?", path);
	err = tt_tensors_begin(&w, path, c->saving->of, (size_t)c->saving->arrays, notes, TT_COUNT(notes));
	if (err)
		return err;
	if ((err = write_arrays(c, &w)))
		tt_tensors_drop(&w);
	return err ? err : tt_tensors_end(&w);
}

static int write_shard(struct tt_table_io *c)
{
	const struct tutti_table *t = c->table;
	char *path;
	int err = tt_save_shard(c->order.folder, t->name, c->order.generation, t->mine, tt_table_files(t), &path);

	if (err)
		return err;
	err = write_to(c, path);
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

static void save_now(struct tutti_table *t, int err) /* no push is half done, or one does not go on */
{
	struct tt_table_io *c = t->shard.clerk;

	err = err ? err : tt_table_io_step(c); /* it may have waited for long */
	err = err ? err : new_saving(t, &c->saving);
	t->shard.image = err ? NULL : c->saving->image;
	if (err)
		tt_table_io_done(c, err);
	tt_shard_resume(t);
	if (!err)
		tt_table_io_work(c, write_shard, forget_image);
}

/* All servers write the state of the same workers, or it would make no whole arrays: where one of them has pushed to some servers only, the
 * others have for it what it would find there. */
void tt_save_begin(struct tt_table_io *c)
{
	struct tutti_table *t = c->table;
	int states = tt_updater_states(t->shard.updater), last = states ? tt_updater_state(t->shard.updater, states - 1).worker : -1, err = 0;

	if (c->order.workers > (uint32_t)tt_members(t->job)->capacity)
		err = tt_fail(-EINVAL, "state of %u workers is asked for, and there is room for %d ranks", c->order.workers, tt_members(t->job)->capacity);
	else if (last >= 0 && (uint32_t)last >= c->order.workers)
		err = tt_fail(-EAGAIN, "it has state of %d workers", last + 1);
	else if (last >= 0 && c->order.workers)
		err = tt_table_know(t, (int)c->order.workers - 1) ? tt_fail(-ENOMEM, "no state for %u workers", c->order.workers) : 0;
	if (err)
		tt_table_io_done(c, err);
	else
		tt_shard_quiesce(t, t->job->deadline, save_now);
}

/* ---- the call ---- */

/* A load is of all servers, and none takes it before all have read it. If some wrote their files before it and some behind it, the first ones
 * have it to take now, or have taken it since. */
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
	struct tt_order o = { .what = TT_FILE_SAVE, .folder = folder, .workers = (uint32_t)tt_members(t->job)->launched };
	uint32_t workers;
	int err;

	do {
		workers = o.workers;
		if ((err = tt_save_next(folder, t->name, &o.generation)))
			return err;
		err = tt_table_io_order(t, what, &o, NULL);
	} while (err == -EAGAIN && o.workers > workers && o.workers <= (uint32_t)tt_members(t->job)->capacity); /* some have come since */
	if (err || (err = check(t, what, o.loads)))
		return err;
	return tt_save_commit(folder, t->name, o.generation, tt_table_files(t));
}

int tutti_table_save(tutti_table *t, const char *folder) { return tt_table_io_call(t, "table save", folder, save); }
