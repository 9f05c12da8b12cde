/* delta_ring.c - which deltas a publisher keeps, and which of them a reader takes */
#include "publish/delta.h"
#include <stdlib.h>

/* ---- the publisher ---- */

int tt_delta_ring_open(struct tt_delta_ring *r, struct tt_delta_entry *entry, uint8_t *bytes, size_t room,
                       size_t model_bytes)
{
	*r = (struct tt_delta_ring){ .entry = entry, .bytes = bytes, .room = room,
		                     .longest = tt_min(room, model_bytes / 2) };
	if (!(r->draft = malloc(r->longest + TT_DELTA_SLACK)))
		return tt_fail(-ENOMEM, "publisher: no memory for a delta of %zu bytes", r->longest);
	return 0;
}

void tt_delta_ring_close(struct tt_delta_ring *r) { free(r->draft); }

/* Readers must not take what is written over from now on, and find that out if they read it just now. */
static void drop_overlaps(struct tt_delta_ring *r, size_t at, size_t bytes)
{
	for (unsigned i = 0; i < TT_DELTAS; i++) {
		struct tt_delta_entry *e = &r->entry[i];
		if (i == r->count % TT_DELTAS || (e->at < at + bytes && at < e->at + e->bytes))
			__atomic_store_n(&e->version, 0, __ATOMIC_RELAXED);
	}
	__atomic_thread_fence(__ATOMIC_SEQ_CST);
}

static void show_delta(struct tt_delta_ring *r, const struct tt_delta *d, uint64_t from, uint64_t version)
{
	size_t at = d->bytes <= r->room - r->next ? r->next : 0;
	struct tt_delta_entry *e = &r->entry[r->count % TT_DELTAS];

	drop_overlaps(r, at, d->bytes);
	memcpy(r->bytes + at, r->draft, d->bytes);
	e->from = from;
	e->at = at;
	e->bytes = d->bytes;
	e->sum = d->sum;
	__atomic_store_n(&e->version, version, __ATOMIC_RELEASE);
	r->next = tt_min((at + d->bytes + 63) / 64 * 64, r->room);
	r->count++;
}

size_t tt_delta_keep(struct tt_delta_ring *r, const struct tt_model *m, const char *old, const char *now, uint64_t from,
                     uint64_t version)
{
	struct tt_delta d;

	if (tt_delta_write(m, old, now, r->draft, r->longest, &d))
		return 0;
	show_delta(r, &d, from, version);
	return d.bytes;
}

/* ---- a reader ---- */

static const struct tt_delta_entry *find_from(const struct tt_delta_entry *all, uint64_t from)
{
	for (int i = 0; i < TT_DELTAS; i++)
		if (all[i].from == from && all[i].version > from)
			return &all[i];
	return NULL;
}

bool tt_delta_find(const struct tt_delta_entry *all, uint64_t from, uint64_t version, size_t room, size_t most,
                   struct tt_delta_chain *c)
{
	const struct tt_delta_entry *e;

	*c = (struct tt_delta_chain){ 0 };
	for (; from < version && c->n < TT_DELTAS; from = e->version) {
		if (!(e = find_from(all, from)) || e->bytes > room || e->at > room - e->bytes ||
		    e->bytes > most - c->bytes)
			return false;
		c->link[c->n++] = *e;
		c->bytes += e->bytes;
	}
	return c->n && from == version;
}

bool tt_delta_is_there(const struct tt_delta_entry *all, const struct tt_delta_chain *c)
{
	for (int k = 0, i; k < c->n; k++) {
		for (i = 0; i < TT_DELTAS && memcmp(&all[i], &c->link[k], sizeof all[i]); i++)
			;
		if (i == TT_DELTAS)
			return false;
	}
	return true;
}
