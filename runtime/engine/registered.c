/* registered.c - memory that the program registers: its pins stay from call to call, as those of tutti_alloc's do
 *
 *      register     the range is listed, and pinned for local use
 *      a call       finds the range that holds its memory, and in pin.c what is kept under the range's serial number
 *      unregister   the range leaves the list; what is kept goes, or when the last call that uses it has ended
 *
 * Ranges do not overlap, so a search by address finds the only one. Serial numbers differ from those of arenas. */
#include "engine/engine.h"
#include <stdlib.h>
#include <string.h>

struct tt_registered {
	char *base;
	size_t len;
	uint64_t serial; /* or the number of a device's allocation */
	bool device;
};

/* The first range that ends behind p. */
static size_t index_of(const struct tt_engine *e, const char *p)
{
	size_t low = 0, high = e->registered_count;

	while (low < high) {
		size_t middle = low + (high - low) / 2;
		if (e->registered[middle].base + e->registered[middle].len > p)
			high = middle;
		else
			low = middle + 1;
	}
	return low;
}

static const struct tt_registered *find(const struct tt_engine *e, const void *base, size_t len)
{
	size_t i = index_of(e, base);
	const struct tt_registered *r = &e->registered[i];

	if (i == e->registered_count || r->base > (char *)base || len > (size_t)(r->base + r->len - (char *)base))
		return NULL;
	return r;
}

uint64_t tt_registered_of(const struct tt_job *job, const void *base, size_t len, struct tt_mem *all)
{
	const struct tt_registered *r = find(&job->engine, base, len);

	if (!r || r->device)
		return 0;
	*all = (struct tt_mem){ .base = r->base, .len = r->len, .gpu = -1, .fd = -1 };
	return r->serial;
}

bool tt_registered_is(const struct tt_job *job, const struct tt_mem *mem, uint64_t serial)
{
	const struct tt_registered *r = find(&job->engine, mem->base, mem->len);

	return r && r->serial == serial;
}

static int insert(struct tt_engine *e, const struct tt_registered *new)
{
	size_t i = index_of(e, new->base);
	const struct tt_registered *next = &e->registered[i];

	if (i < e->registered_count && next->base < new->base + new->len)
		return tt_fail(-EEXIST, "tutti_register: %zu bytes at %p overlap the %zu bytes at %p, which are "
		                        "registered: call tutti_unregister for these first", new->len,
		               (void *)new->base, next->len, (void *)next->base);
	if (e->registered_count == e->registered_room) {
		size_t room = 2 * e->registered_room + 16;
		struct tt_registered *more = realloc(e->registered, room * sizeof *more);
		if (!more)
			return tt_fail(-ENOMEM, "no memory for a list of %zu registered ranges", room);
		e->registered = more;
		e->registered_room = room;
	}
	memmove(e->registered + i + 1, e->registered + i, (e->registered_count++ - i) * sizeof *new);
	e->registered[i] = *new;
	return 0;
}

/* False: no range begins there. */
static bool take_out(struct tt_engine *e, const void *base, struct tt_registered *out)
{
	size_t i = index_of(e, base);

	if (i == e->registered_count || e->registered[i].base != base)
		return false;
	*out = e->registered[i];
	memmove(e->registered + i, e->registered + i + 1, (--e->registered_count - i) * sizeof *out);
	return true;
}

static int check_range(const char *base, size_t len)
{
	struct tt_mem arena;
	int err = tt_given(base, "tutti_register: memory");

	if (err)
		return err;
	if (!len || len > UINTPTR_MAX - (uintptr_t)base)
		return tt_fail(-EINVAL, "tutti_register: bytes is %zu: from 1 up, and the memory ends below 2^64", len);
	if (tt_arena_of(base, len, &arena))
		return tt_fail(-EINVAL, "tutti_register: memory of tutti_alloc needs no registering");
	return 0;
}

static int list_range(struct tt_job *job, char *base, size_t len, const struct tt_gpu_range *range)
{
	struct tt_registered new = { base, len, range->buffer, range->device >= 0 };
	int err = tt_begin(job);

	if (err)
		return err;
	if (!new.device)
		new.serial = TT_REGISTERED | ++job->engine.registered_made;
	err = insert(&job->engine, &new);
	tt_unlock(job);
	return err;
}

int tt_register(struct tt_job *job, void *memory, size_t bytes)
{
	struct tt_gpu_range range = { .device = -1 };
	struct tt_pinned *p = NULL;
	int err = tt_usable(job);

	if (err || (err = check_range(memory, bytes)))
		return err;
	tt_gpu_look();
	if ((err = tt_find_device(memory, bytes, &range)) || (err = list_range(job, memory, bytes, &range)))
		return err;
	if ((err = tt_pin_user(job, memory, bytes, TT_PIN_READ, &range, &p))) {
		struct tt_sentence why = tt_last_sentence();
		tt_unregister(job, memory);
		return tt_fail(err, "%s", why.text);
	}
	tt_lock(job);
	tt_unpin(job, p);
	tt_unlock(job);
	return 0;
}

int tt_unregister(struct tt_job *job, void *memory)
{
	struct tt_registered r;
	int err = tt_is_mine(job);

	if (err || (err = tt_given(memory, "tutti_unregister: memory")) || (err = tt_begin(job)))
		return err;
	if (!take_out(&job->engine, memory, &r))
		err = tt_fail(-ENOENT, "tutti_unregister: no registered memory begins at %p", memory);
	else if (r.serial)
		tt_pins_drop(job, r.serial);
	tt_unlock(job);
	if (!err)
		tt_unpin_waiting(job);
	return err;
}

void tt_registered_close(struct tt_job *job)
{
	free(job->engine.registered);
	job->engine.registered = NULL;
	job->engine.registered_count = job->engine.registered_room = 0;
}
