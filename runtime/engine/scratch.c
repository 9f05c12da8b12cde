/* scratch.c - a cache of temporary buffers for collectives and messages
 *
 * Fresh memory costs a page fault every 4 KiB, which takes longer than to transport 4 KiB. Where an op's memory must be
 * in a region, buffers are cut from slabs that are pinned when they are made, and stay pinned. A buffer that may be a
 * transfer's slots is a slab by itself: a peer gets a key for it. */
#include "engine/engine.h"
#include <stdlib.h>
#if TT_ASAN
#include <sanitizer/asan_interface.h>
#endif

enum {
	LEAST = 256,        /* bytes; each class is twice the one before */
	PAGE = 4096,
	HELD_MAX = TT_ASAN ? 0 : 8 << 20, /* the sanitizer finds uses after the free only if nothing is kept */
	CLASS_MAX = HELD_MAX / 2,         /* so that messages leave room for collectives */
	SLAB = 2 << 20,
	SLOTS = SLAB / 4,                 /* longer buffers are slabs by themselves */
	ROOM_MAX = TT_ASAN ? 0 : 64 << 20, /* of a room that is kept */
};

struct tt_slab {
	struct tt_slab *next;
	struct tt_pinned *pinned;
	size_t used;
};

struct tt_room {
	struct tt_room *next;
	void *at;
	size_t len;
	struct tt_pinned *pinned;   /* alone, for others to write; NULL: no net pins */
	bool used;
};

static void *new_bytes(size_t bytes)
{
	size_t unit = bytes < PAGE ? TT_CACHE_LINE : PAGE;

	return aligned_alloc(unit, (bytes + unit - 1) & ~(unit - 1));
}

/* ---- what is pinned, by address ---- */

/* Room for one more. */
static bool reserve(struct tt_scratch *s)
{
	size_t room = 2 * s->pinned_room + 16;
	struct tt_pinned **more;

	if (s->pinned_count < s->pinned_room)
		return true;
	if (!(more = realloc(s->pinned, room * sizeof *more)))
		return false;
	s->pinned = more;
	s->pinned_room = room;
	return true;
}

/* The index of the first that ends behind this address. */
static size_t index_of(const struct tt_scratch *s, const void *at)
{
	size_t low = 0, high = s->pinned_count;

	while (low < high) {
		size_t middle = low + (high - low) / 2;
		const struct tt_mem *mem = &s->pinned[middle]->mem;
		if ((char *)mem->base + mem->len > (const char *)at)
			high = middle;
		else
			low = middle + 1;
	}
	return low;
}

static void list_pinned(struct tt_scratch *s, struct tt_pinned *p)
{
	size_t i = index_of(s, p->mem.base);

	memmove(s->pinned + i + 1, s->pinned + i, (s->pinned_count++ - i) * sizeof *s->pinned);
	s->pinned[i] = p;
}

struct tt_pinned *tt_scratch_pinned(const struct tt_scratch *s, const void *at)
{
	size_t i = index_of(s, at);

	return i < s->pinned_count && tt_pinned_holds(s->pinned[i], at, 1) ? s->pinned[i] : NULL;
}

/* ---- slabs ---- */

/* With the lock or without it. */
static struct tt_slab *make_slab(struct tt_job *job, size_t bytes)
{
	struct tt_slab *b = calloc(1, sizeof *b);
	struct tt_mem mem = { .base = b ? new_bytes(bytes) : NULL, .len = bytes, .gpu = -1, .fd = -1 };

	if (mem.base && !tt_pin_mem(job, &mem, bytes < SLAB, &b->pinned))
		return b;
	free(mem.base);
	free(b);
	return NULL;
}

/* NULL: it serves nobody. */
static struct tt_slab *add_slab(struct tt_scratch *s, struct tt_slab *b)
{
	/* the first one is cut: slots, which are a slab by themselves, go behind it */
	struct tt_slab **at = b && s->slabs && b->pinned->mem.len < SLAB ? &s->slabs->next : &s->slabs;
	bool listed = b && reserve(s);

	if (!b)
		return NULL;
	b->next = *at;
	*at = b;
	if (listed)
		list_pinned(s, b->pinned);
	else
		b->used = b->pinned->mem.len;
	return listed ? b : NULL;
}

static struct tt_job *job_of(struct tt_scratch *s) { return tt_container_of(s, struct tt_job, scratch); }

/* The background thread makes the next slab, so that none is pinned under the lock, unless that thread is late. */
static void ask_for_more(struct tt_scratch *s, size_t bytes)
{
	s->wanted = tt_max(s->wanted, bytes); /* of two kinds, the slab that serves all messages goes first */
	tt_errand(job_of(s));
}

/* Where a buffer begins in the slab, or would. */
static size_t place_in(const struct tt_slab *b, size_t bytes)
{
	size_t unit = tt_min(bytes, PAGE);

	return (b->used + unit - 1) & ~(unit - 1);
}

static void *cut(struct tt_scratch *s, size_t bytes)
{
	struct tt_slab *b = bytes < SLOTS ? s->slabs : NULL;

	while (b && place_in(b, bytes) + bytes > b->pinned->mem.len)
		b = b->next;
	if (!b && !(b = add_slab(s, make_slab(job_of(s), bytes < SLOTS ? SLAB : bytes))))
		return NULL;
	size_t at = place_in(b, bytes);
	b->used = at + bytes;
	if (b == s->slabs && b->used > SLAB / 2)
		ask_for_more(s, SLAB);
	return (char *)b->pinned->mem.base + at;
}

static bool is_cut(const struct tt_scratch *s)
{
	return tt_container_of(s, const struct tt_job, scratch)->engine.pin_above < SIZE_MAX;
}

/* The sanitizer frees nothing here, and finds uses after the end in this way. */
static void poison(void *p, size_t bytes, bool on)
{
#if TT_ASAN
	if (on)
		ASAN_POISON_MEMORY_REGION(p, bytes);
	else
		ASAN_UNPOISON_MEMORY_REGION(p, bytes);
#else
	(void)p, (void)bytes, (void)on;
#endif
}

/* ---- buffers ---- */

static size_t bytes_of(int class) { return (size_t)LEAST << class; }

static int class_of(size_t bytes)
{
	for (int i = 0; i < TT_SCRATCH_CLASSES; i++)
		if (bytes <= bytes_of(i))
			return i;
	return -1;
}

void *tt_scratch_take(struct tt_scratch *s, size_t bytes)
{
	int i = class_of(bytes);
	void *p;

	if (i < 0)
		return new_bytes(bytes);
	if (!(p = s->free[i]))
		return is_cut(s) ? cut(s, bytes_of(i)) : new_bytes(bytes_of(i));
	if (is_cut(s))
		poison(p, bytes_of(i), false);
	memcpy(&s->free[i], p, sizeof p);
	s->held[i] -= bytes_of(i);
	s->all -= bytes_of(i);
	if (!s->free[i] && bytes_of(i) >= SLOTS && is_cut(s))
		ask_for_more(s, bytes_of(i));
	return p;
}

/* Is there room to keep a buffer of this class? */
static bool may_keep(const struct tt_scratch *s, int i)
{
	return s->held[i] + bytes_of(i) <= CLASS_MAX && s->all + bytes_of(i) <= HELD_MAX;
}

void tt_scratch_give(struct tt_scratch *s, void *p, size_t bytes)
{
	int i = class_of(bytes);

	if (!p || i < 0 || (!is_cut(s) && !may_keep(s, i))) {
		free(p);
		return;
	}
	memcpy(p, &s->free[i], sizeof p);
	s->free[i] = p;
	s->held[i] += bytes_of(i);
	s->all += bytes_of(i);
	if (is_cut(s))
		poison(p, bytes_of(i), true);
}

/* ---- rooms: buffers that other ranks may write ---- */

static struct tt_room *find_room(const struct tt_scratch *s, size_t bytes)
{
	struct tt_room *least = NULL;

	for (struct tt_room *r = s->rooms; r; r = r->next)
		if (!r->used && r->len >= bytes && (!least || r->len < least->len))
			least = r;
	return least;
}

/* Pinned ones stay, so they have powers of two: all together are twice the largest, at most. */
static struct tt_room *make_room(struct tt_scratch *s, size_t bytes)
{
	struct tt_room *r = calloc(1, sizeof *r);
	bool pin = is_cut(s);

	if (!r)
		return NULL;
	for (r->len = pin ? PAGE : bytes; r->len < bytes; r->len *= 2)
		;
	struct tt_mem mem = { .base = r->at = new_bytes(r->len), .len = r->len, .gpu = -1, .fd = -1 };
	if (!r->at || (pin && (!reserve(s) || tt_pin_mem(job_of(s), &mem, 1, &r->pinned)))) {
		free(r->at);
		free(r);
		return NULL;
	}
	if (pin)
		list_pinned(s, r->pinned);
	r->next = s->rooms;
	s->rooms = r;
	return r;
}

void *tt_scratch_take_room(struct tt_scratch *s, size_t bytes)
{
	struct tt_room *r = find_room(s, bytes);

	if (!r && !(r = make_room(s, bytes)))
		return NULL;
	r->used = true;
	return r->at;
}

static void free_room(struct tt_room **at)
{
	struct tt_room *r = *at;

	*at = r->next;
	free(r->at);
	free(r->pinned);
	free(r);
}

/* Of those that are not pinned, the largest one is kept for the next call: new pages cost far more than the sums that
 * are made there. */
void tt_scratch_give_room(struct tt_scratch *s, void *p)
{
	struct tt_room **at = &s->rooms, **kept = NULL;

	for (struct tt_room **r = &s->rooms; *r; r = &(*r)->next) {
		if ((*r)->at == p)
			at = r;
		else if (!(*r)->used && !(*r)->pinned)
			kept = r;
	}
	(*at)->used = false;
	if ((*at)->pinned)
		return;
	if ((*at)->len > ROOM_MAX || (kept && (*kept)->len >= (*at)->len))
		free_room(at);
	else if (kept)
		free_room(kept);
}

void tt_scratch_fill(struct tt_job *job)
{
	struct tt_scratch *s = &job->scratch;
	size_t bytes = s->wanted;
	struct tt_slab *b;

	if (!bytes)
		return;
	s->wanted = 0;
	tt_ticket_lock_release(&job->engine.lock);
	b = make_slab(job, bytes);
	tt_ticket_lock_take(&job->engine.lock);
	b = add_slab(s, b);
	if (b && bytes < SLAB) {
		b->used = bytes;
		tt_scratch_give(s, b->pinned->mem.base, bytes);
	}
}

static void free_slabs(struct tt_scratch *s)
{
	for (struct tt_slab *b = s->slabs, *next; b; b = next) {
		next = b->next;
		poison(b->pinned->mem.base, b->pinned->mem.len, false);
		free(b->pinned->mem.base);
		free(b->pinned);
		free(b);
	}
}

void tt_scratch_free(struct tt_scratch *s)
{
	void *p;

	for (int i = 0; i < TT_SCRATCH_CLASSES && !s->slabs; i++)
		while ((p = s->free[i])) {
			memcpy(&s->free[i], p, sizeof p);
			free(p);
		}
	free_slabs(s);
	while (s->rooms)
		free_room(&s->rooms);
	free(s->pinned);
	*s = (struct tt_scratch){ 0 };
}
