/* state.c - what a rank holds beside its parameters, in a file: so that a job that was started again goes on where it
 * was. docs/saves.md has the arrays */
#include "average/average_private.h"
#include "file/file.h"
#include <stdlib.h>
#include <string.h>

static const char note[] = "state_of";

static size_t bytes_of(const struct tt_held *h) { return h->count * tt_type_size(h->type); }

struct tt_held tt_held_numbers(const char *name, uint64_t *numbers, size_t count)
{
	struct tt_held h = { .type = TUTTI_I64, .count = count, .at = numbers };

	snprintf(h.name, sizeof h.name, "%s", name);
	return h;
}

struct tt_held tt_held_tensor(const char *name, int i, const tutti_tensor *t)
{
	struct tt_held h = { .type = t->type, .count = t->count, .at = t->data };

	snprintf(h.name, sizeof h.name, i < 0 ? "%s" : "%s.%d", name, i);
	return h;
}

int tt_state_save(const char *of, const char *path, const struct tt_held *held, int n)
{
	struct tt_tensor *list = calloc((size_t)n, sizeof *list);
	const struct tt_metadata says = { note, of };
	struct tt_tensors_writer w;
	int err;

	if (!list)
		return tt_fail(-ENOMEM, "no memory to save the state of %s: %d arrays", of, n);
	for (int i = 0; i < n; i++)
		list[i] = (struct tt_tensor){ .name = held[i].name, .type = held[i].type, .dims = 1,
		                              .shape = { held[i].count } };
	if (!(err = tt_tensors_begin(&w, path, list, (size_t)n, &says, 1))) {
		for (int i = 0; !err && i < n; i++)
			err = tt_tensors_put(&w, held[i].at, bytes_of(&held[i]));
		if (!err)
			err = tt_tensors_end(&w);
		else
			tt_tensors_drop(&w);
	}
	free(list);
	return err;
}

static int check_kind(const struct tt_tensors *f, const char *of)
{
	const char *is = tt_tensors_note(f, note);

	return is && !strcmp(is, of) ? 0 :
	       tt_fail(-EINVAL, "%s has no state of %s: it is of %.100s", f->path, of, is ? is : "another program");
}

/* The array of the file is as it was saved. */
static int check_array(const struct tt_tensors *f, const struct tt_held *h, const struct tt_tensor *t)
{
	int err;

	if (!t)
		return tt_fail(-EINVAL, "%s has no array \"%s\": was it saved with other tensors or another config?",
		               f->path, h->name);
	if ((err = tt_tensor_check_type(f->path, t)))
		return err;
	if (t->type != h->type || t->count != h->count)
		return tt_fail(-EINVAL, "%s: \"%s\" has %llu elements of %s, and must have %zu of %s", f->path, h->name,
		               (unsigned long long)t->count, tt_tensor_type_names[t->type], h->count,
		               tt_tensor_type_names[h->type]);
	return 0;
}

/* All arrays, one behind another. */
static int read_all(const struct tt_tensors *f, const struct tt_held *held, int n, char *to)
{
	int err = 0;

	for (int i = 0; !err && i < n; to += bytes_of(&held[i++])) {
		const struct tt_tensor *t = tt_tensors_find(f, held[i].name);
		if (!(err = check_array(f, &held[i], t)))
			err = tt_tensors_read(f, t, 0, t->count, to);
	}
	return err;
}

static int load_from(const struct tt_tensors *f, const char *of, const struct tt_held *held, int n)
{
	size_t bytes = 0;
	char *room, *from;
	int err = check_kind(f, of);

	for (int i = 0; i < n; i++)
		bytes += bytes_of(&held[i]);
	if (err)
		return err;
	if (!(room = malloc(tt_max(bytes, 1))))
		return tt_fail(-ENOMEM, "no memory to read %zu bytes of %s", bytes, f->path);
	err = read_all(f, held, n, room);
	from = room;
	for (int i = 0; !err && i < n; from += bytes_of(&held[i++]))
		if (held[i].count)
			memcpy(held[i].at, from, bytes_of(&held[i]));
	free(room);
	return err;
}

int tt_state_load(const char *of, const char *path, const struct tt_held *held, int n)
{
	struct tt_tensors *f;
	int err = tt_tensors_open(path, &f);

	if (err)
		return err;
	err = load_from(f, of, held, n);
	tt_tensors_close(f);
	return err;
}
