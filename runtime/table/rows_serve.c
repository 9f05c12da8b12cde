/* rows_serve.c - pushes and pulls of rows and keys of a server's shard
 *
 * A piece names its rows and has one stretch of elements of each: all of a row, or a part if a row does not fit into a
 * message. A place is the number of a row within the shard, or the number that a key got with the first push to it. The
 * values and the state of keys grow by doubling; their pages may move, but are not copied. */
#include "engine/engine.h"
#include "kernel/kernel.h"
#include "member/member.h"
#include "table/table_private.h"
#include "table/saving.h"
#include <string.h>

/* ---- places ---- */

static int grow(struct tutti_table *t, uint64_t room)
{
	struct tt_shard *s = &t->shard;
	size_t row = (size_t)t->row * t->width, before = (size_t)s->room * row, now = (size_t)room * row;
	char *values = room <= PTRDIFF_MAX / row ? tt_pages_resize(s->values, before, now) : NULL;
	int err;

	if (!values)
		return -ENOMEM;
	s->values = values;
	if ((err = tt_updater_resize(s->updater, (size_t)(room * t->row))))
		s->values = tt_pages_resize(values, now, before); /* shrinking does not fail */
	else
		s->room = room;
	for (int i = 0; i < tt_members(t->job)->capacity; i++)
		if (s->pushers[i] && s->pushers[i]->push.updater)
			tt_updater_follow(&s->pushers[i]->push);
	if (s->image)
		tt_saving_moved(t);
	return err;
}

static uint64_t row_in(const struct tt_rows *r, uint32_t i)
{
	struct tt_pack p = tt_unpack(r->row + 8 * (size_t)i, 8);

	return tt_get64(&p);
}

static int add_key(struct tutti_table *t, uint64_t key, uint64_t *place)
{
	uint64_t known = tt_keys_count(t->shard.keys);
	int err = tt_keys_add(t->shard.keys, key, place);

	if (!err && *place >= known)
		tt_init_key(t, key, *place);
	return err;
}

/* A push gives new keys a place; for a pull they have none, TT_NO_KEY. */
static int find_keys(struct tutti_table *t, const struct tt_rows *r, bool to_push, uint64_t *places)
{
	struct tt_shard *s = &t->shard;
	uint64_t most = tt_keys_count(s->keys) + r->n;
	int err;

	for (uint32_t i = 0; i < r->n; i++)
		places[i] = row_in(r, i);
	err = !tt_shards_have_keys(places, r->n, t->servers, t->mine) ? -ERANGE :
	      to_push && most > s->room ? grow(t, tt_max(most, 2 * s->room)) : 0;
	if (to_push && !err)
		err = tt_version_grow(t, s->room);
	for (uint32_t i = 0; !err && i < r->n; i++)
		if (to_push)
			err = add_key(t, places[i], &places[i]);
		else
			places[i] = tt_keys_find(s->keys, places[i]);
	return err;
}

static int find_rows(const struct tutti_table *t, const struct tt_rows *r, uint64_t *places)
{
	struct tt_range mine = tt_table_range(t, t->mine);
	const uint64_t first = mine.first / t->row, rows = mine.count / t->row;
	bool beyond = false;

	for (uint32_t i = 0; i < r->n; i++) {
		places[i] = row_in(r, i) - first;
		beyond |= places[i] >= rows;
	}
	return beyond ? -ERANGE : 0;
}

static int find_places(struct tutti_table *t, const struct tt_rows *r, bool to_push, uint64_t *places)
{
	return t->shard.keys ? find_keys(t, r, to_push, places) : find_rows(t, r, places);
}

/* ---- pushes ---- */

struct sparse { /* a piece */
	const struct tt_rows *rows;
	const char *deltas;
	uint64_t *places;
};

static int apply(struct tutti_table *t, int worker, struct tt_pusher *p, void *arg)
{
	const struct sparse *s = arg;
	const struct tt_rows *r = s->rows;
	int err = find_places(t, r, true, s->places);

	if (!err && !(err = tt_version_touch_rows(t, worker, s->places, r->n)))
		tt_table_change_rows(t, p, &(struct tt_rows_piece){ .d = s->deltas, .places = s->places, .n = r->n,
		                                                    .row = (size_t)t->row, .at = r->at,
		                                                    .count = r->count });
	return err;
}

/* Rounds that have closed are applied first. New keys have their place at once, not when a round closes. */
static int assign(struct tutti_table *t, int worker, struct tt_pusher *p, void *arg)
{
	const struct sparse *s = arg;
	const struct tt_rows *r = s->rows;
	size_t len = r->count * t->width;
	int err;

	(void)p;
	if (tt_shard_in_rounds(t))
		tt_version_settle(t);
	if ((err = find_places(t, r, true, s->places)))
		return err;
	tt_version_being_set(t, true);
	for (uint32_t i = 0; i < r->n; i++) {
		size_t at = (size_t)(s->places[i] * t->row + r->at);
		char *w = t->shard.values + at * t->width;
		tt_version_touch(t, at, r->count);
		memcpy(w, s->deltas + i * len, len);
		tt_updater_assigned(t->shard.updater, -1, w, at, r->count);
	}
	tt_version_being_set(t, false);
	if (t->shard.fresh && r->n)
		tt_changed_rows_pushed(t->shard.fresh, worker, s->places, r->n);
	return 0;
}

int tt_table_apply_rows(struct tutti_table *t, int worker, unsigned flags, const tutti_update *o,
                        const struct tt_rows *r, const void *deltas)
{
	size_t bytes = r->n * sizeof(uint64_t);
	struct sparse s = { r, deltas, tt_scratch_take(&t->job->scratch, bytes) };
	int err = s.places ? tt_table_take(t, worker, flags, o, flags & TT_PUSH_ASSIGN ? assign : apply, &s) :
	                     tt_table_refuse(t, worker, flags, o, -ENOMEM);

	tt_scratch_give(&t->job->scratch, s.places, bytes);
	return err;
}

/* ---- pulls ---- */

/* With TT_PULL_NEW all rows are stale to the worker. */
static int meet(struct tutti_table *t, int worker, unsigned flags)
{
	return t->shard.fresh && flags & TT_PULL_NEW ? tt_changed_rows_join(t->shard.fresh, worker) : 0;
}

static void read_places(const struct tutti_table *t, const char *from, const struct tt_rows *r, const uint64_t *places,
                        uint32_t n, char *values)
{
	const size_t len = r->count * t->width, row = tt_table_row_bytes(t);

	from += r->at * t->width;
	for (uint32_t i = 0; i < n; i++, values += len) {
		if (i + TT_ROWS_AHEAD < n && places[i + TT_ROWS_AHEAD] != TT_NO_KEY)
			tt_look_at(from + (size_t)places[i + TT_ROWS_AHEAD] * row, len, false);
		if (places[i] == TT_NO_KEY)
			tt_init_row(t, row_in(r, i), r->at, r->count, values);
		else
			memcpy(values, from + (size_t)places[i] * row, len);
	}
}

/* Moves the rows of n that the worker has not seen to the front, and marks them as seen. */
static void take_unseen(struct tutti_table *t, int worker, uint64_t *places, uint32_t n, uint64_t *room,
                        struct tt_unseen *u)
{
	u->n = (uint32_t)tt_changed_rows_take_of(t->shard.fresh, worker, places, n, room);
	memset(u->which, 0, sizeof u->which);
	for (uint32_t i = 0, k = 0; k < u->n; i++)
		if (places[i] == room[k]) {
			u->which[i / 8] |= (uint8_t)(1u << i % 8);
			places[k++] = places[i];
		}
}

int tt_table_read_rows(struct tutti_table *t, int worker, unsigned flags, uint64_t version, const struct tt_rows *r,
                       char *values, struct tt_unseen *unseen)
{
	size_t bytes = 2 * r->n * sizeof(uint64_t);
	uint64_t *places = tt_scratch_take(&t->job->scratch, bytes);
	const char *from;
	bool newest;
	int err;

	if (t->shard.keys && tt_shard_in_rounds(t) && tt_version_is_begun(t))
		tt_version_settle(t); /* in one place with the one before */
	from = tt_version_find(t, version);
	newest = !tt_shard_in_rounds(t) || version == tt_version_clock(t);
	err = !places ? -ENOMEM : from && (newest || !unseen) ? meet(t, worker, flags) : -EAGAIN;

	if (!err && !(err = find_places(t, r, false, places))) {
		if (unseen)
			take_unseen(t, worker, places, r->n, places + r->n, unseen);
		read_places(t, from, r, places, unseen ? unseen->n : r->n, values);
	}
	/* A row in parts counts as seen with its first: a push between two of them makes it stale again. */
	if (!err && !unseen && t->shard.fresh && !r->at && newest)
		tt_changed_rows_take_of(t->shard.fresh, worker, places, r->n, places);
	tt_scratch_give(&t->job->scratch, places, bytes);
	return err;
}

int tt_table_find_fresh(struct tutti_table *t, int worker, unsigned flags, uint64_t *at, uint64_t *rows, size_t most,
                        size_t *n)
{
	uint64_t first = tt_table_range(t, t->mine).first / t->row;
	int err = meet(t, worker, flags);

	if (err)
		return err;
	*n = 0;
	if (flags & TT_PULL_ALL)
		tt_changed_rows_see_all(t->shard.fresh, worker);
	else
		*n = tt_changed_rows_take(t->shard.fresh, worker, at, rows, most);
	for (size_t i = 0; i < *n; i++)
		rows[i] += first;
	return 0;
}

/* ---- messages ---- */

struct request { /* the head of all of them */
	struct tutti_table *table;   /* NULL: this rank has closed it */
	uint32_t number;
	unsigned flags;
};

static struct request get_request(struct tt_member *from, struct tt_pack *p)
{
	uint64_t uid = tt_get64(p);

	return (struct request){ tt_table_find(from->job, uid), tt_get32(p), tt_get8(p) };
}

static void get_shape(struct tt_pack *p, struct tt_rows *r)
{
	r->n = tt_get32(p);
	r->at = tt_get32(p);
	r->count = tt_get32(p);
}

/* most: bytes of the elements. */
static void get_rows(const struct tutti_table *t, struct tt_pack *p, struct tt_rows *r, size_t most)
{
	p->bad |= r->n > TT_PUSH_MESSAGE / TT_ROW_NAME || r->count > t->row || r->at > t->row - r->count;
	p->bad |= (uint64_t)r->n * r->count * t->width > most;
	r->row = tt_pack_take(p, p->bad ? 0 : TT_ROW_NAME * (size_t)r->n);
}

/* Finds a piece in the worker's memory. All of its rows are whole, or it is a part of one. */
static int find_mapped(struct tutti_table *t, struct tt_member *from, struct tt_pack *p, unsigned flags,
                       const struct tt_rows *r, struct tt_elements *e)
{
	struct tt_pusher *pusher = t->shard.pushers[from->rank];
	int err = flags & TT_PUSH_FIRST ? tt_table_map_delta(t, from, p, UINT64_MAX) : 0;
	uint64_t first = tt_get64(p), rows = pusher ? pusher->mapped_bytes / tt_table_row_bytes(t) : 0;

	p->bad |= flags & TT_SPARSE || tt_pack_left(p) || (r->n != 1 && r->count != t->row);
	if (err || !pusher || !pusher->mapped)
		return err ? err : -EOPNOTSUPP; /* the answer to the first piece of that push */
	p->bad |= first > rows || r->n > rows - first;
	e->at = pusher->mapped + (size_t)(first * t->row + r->at) * t->width;
	if (flags & TT_PUSH_LAST)
		pusher->mapped = NULL; /* its worker may take the memory back */
	return 0;
}

static int take_rows(struct tutti_table *t, struct tt_member *from, struct tt_pack *p, unsigned flags,
                     const tutti_update *o, struct tt_rows *r)
{
	bool mapped = flags & TT_PUSH_MAPPED;
	struct tt_elements e = { 0 };
	int err;

	get_rows(t, p, r, mapped ? TT_PUSH_PIECE : TT_PUSH_MESSAGE);
	if (p->bad)
		return 0;
	if (!mapped && flags & TT_PUSH_FIRST && t->shard.pushers[from->rank])
		t->shard.pushers[from->rank]->mapped = NULL; /* of a push that was given up */
	if (mapped && (err = find_mapped(t, from, p, flags, r, &e)))
		return err; /* the worker sends this push again, or has not joined */
	err = mapped ? 0 : tt_table_unpack(t, p, (size_t)r->n * r->count, flags & TT_SPARSE, &e);
	if (!p->bad && err)
		err = tt_table_refuse(t, from->rank, flags, o, err);
	else if (!p->bad)
		err = tt_table_apply_rows(t, from->rank, flags, o, r, e.at);
	tt_elements_free(t, &e);
	return err;
}

void tt_table_push_rows(struct tt_member *from, struct tt_pack *p)
{
	const struct tt_pack message = *p;
	struct request q = get_request(from, p);
	struct tutti_table *t = q.table;
	tutti_update options;
	struct tt_rows r;
	int err = t ? 0 : -ESTALE;

	if (!p->bad && tt_shard_wait(from, t, TT_PUSH_ROWS, q.flags & TT_PUSH_FIRST, &message))
		return;
	get_shape(p, &r);
	if (q.flags & TT_PUSH_OPTIONS)
		tt_table_get_options(p, &options);
	if (t && !p->bad)
		err = take_rows(t, from, p, q.flags, q.flags & TT_PUSH_OPTIONS ? &options : NULL, &r);
	if (!p->bad)
		tt_table_answer(from, q.number, err);
}

enum { PULLED_HEAD = 18 };

/* placed: NULL: of PULL_FRESH. Else the answer says by what it was read: see compare_placed() in rows.c. Returns where
 * its flags stand. */
static uint8_t *put_answer(struct tt_pack *h, uint32_t number, int err, const uint64_t *placed)
{
	uint8_t *flags;

	tt_put8(h, TT_PULLED);
	tt_put32(h, number);
	tt_put32(h, (uint32_t)err);
	flags = h->at;
	tt_put8(h, 0);
	if (placed)
		tt_put64(h, *placed);
	return flags;
}

static void answer(struct tt_member *to, uint32_t number, int err, const uint64_t *placed, const void *more, size_t len)
{
	uint8_t head[PULLED_HEAD];
	struct tt_pack h = tt_pack(head, sizeof head);

	put_answer(&h, number, err, placed);
	tt_send(to, head, (size_t)(h.at - head), more, len);
}

/* Answers with rows, which are gathered where they are sent from. */
static void answer_rows(struct tt_member *from, struct tutti_table *t, const struct request *q, uint64_t version,
                        const struct tt_rows *r)
{
	bool some = q->flags & TT_PULL_UNSEEN;
	size_t bits = some ? (r->n + 7) / 8 : 0, len = PULLED_HEAD + bits, count = (size_t)r->n * r->count;
	char *bytes = tt_send_begin(from, len + count * t->width), *to = bytes ? bytes + len : NULL;
	struct tt_pack h = tt_pack(bytes, bytes ? len : 0);
	struct tt_unseen unseen = { 0 };
	uint8_t *flags;
	int err = !bytes ? -ENOMEM : tt_table_read_rows(t, from->rank, q->flags, version, r, to, some ? &unseen : NULL);
	uint64_t placed = tt_table_placed(t);

	if (!bytes) {
		answer(from, q->number, err, &placed, NULL, 0);
		return;
	}
	flags = put_answer(&h, q->number, err, &placed);
	tt_put_bytes(&h, unseen.which, err ? 0 : bits);
	if (!err)
		len += tt_table_pack_here(t, to, some ? (size_t)unseen.n * r->count : count, 0, flags);
	tt_send_commit(from, bytes, err ? (size_t)((char *)h.at - bytes) : len);
}

void tt_table_pull_rows(struct tt_member *from, struct tt_pack *p)
{
	struct request q = get_request(from, p);
	uint64_t version = tt_get64(p);
	struct tutti_table *t = q.table;
	struct tt_rows r;

	get_shape(p, &r);
	if (t)
		get_rows(t, p, &r, TT_PUSH_MESSAGE);
	p->bad |= t && q.flags & TT_PULL_UNSEEN && (!t->shard.fresh || r.count != t->row);
	if (p->bad)
		return;
	if (t)
		answer_rows(from, t, &q, version, &r);
	else
		answer(from, q.number, -ESTALE, &(uint64_t){ 0 }, NULL, 0);
}

/* Answers with { the place to go on from, rows }. */
void tt_table_pull_fresh(struct tt_member *from, struct tt_pack *p)
{
	struct request q = get_request(from, p);
	struct tutti_table *t = q.table;
	uint64_t at = tt_get64(p), *rows;
	uint32_t most = tt_get32(p);
	size_t bytes = 8 + 8 * (size_t)most, n = 0;
	int err = t ? 0 : -ESTALE;

	p->bad |= bytes > TT_PUSH_MESSAGE + 8 || (t && !t->shard.fresh);
	if (p->bad)
		return;
	if (!(rows = tt_scratch_take(&from->job->scratch, bytes)))
		err = -ENOMEM;
	if (!err)
		err = tt_table_find_fresh(t, from->rank, q.flags, &at, rows + 1, most, &n);
	struct tt_pack a = tt_pack(rows, err ? 0 : 8 + 8 * n);
	if (!err)
		tt_put64(&a, at);
	for (size_t i = 1; !err && i <= n; i++)
		tt_put64(&a, rows[i]); /* each in place */
	answer(from, q.number, err, NULL, rows, err ? 0 : 8 + 8 * n);
	tt_scratch_give(&from->job->scratch, rows, bytes);
}
