/* version.c - versions of a shard, which do not change while workers read them
 *
 * In rounds, pushes are summed apart from the values. When the round has closed, the rule combines the newest version
 * and the sum, and writes the result over the version before, in pieces, one in each turn of the progress loop. A
 * worker that has pushed k times reads version k; it is safe, since version k + 2 needs two more pushes of that worker.
 *
 *   pushes --> sum --.
 *   version k --------+--> version k + 1 (where k - 1 was); the sum is 0 again
 *
 * Of keys, and of tables that track changed rows, a round works on its dirty rows alone. It also copies the rows that
 * were dirty in the round before; in all others the two versions are the same. The values of keys have one copy, since
 * there may be many more keys than a round changes: the workers that rounds wait for do not read them meanwhile.
 *
 * A rank that rounds do not wait for may ask its servers to keep a version (keep.c): they begin the version that would
 * be written over that one later.
 *
 * Without rounds, pushes change the values in place. For snapshots a version is copied from them now and then,
 * beginning at a moment when no push is half done, a piece in each turn; a push first copies the pieces that it is
 * about to change. Where pushes overlap all the time there is no such moment, and the shard is quiesced for one. */
#include "engine/engine.h"
#include "kernel/kernel.h"
#include "table/table_private.h"
#include "table/saving.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { KEEP_MS = 5000 };    /* for so long a version is kept, and less than TUTTI_SILENCE */
enum { PATIENCE_MS = 100 }; /* a quiesced shard waits so long for a push that is half done and makes no progress */

static struct tt_shard_head *head_of(const struct tt_shard *s) { return (struct tt_shard_head *)s->memory; }
static uint64_t count_of(const struct tutti_table *t) { return tt_table_range(t, t->mine).count; }

bool tt_version_is_kept(const struct tutti_table *t)
{
	return t->flags & TUTTI_TABLE_SNAPSHOTS || tt_shard_in_rounds(t);
}

static bool copies(const struct tutti_table *t) { return t->flags & TUTTI_TABLE_SNAPSHOTS && !tt_shard_in_rounds(t); }

size_t tt_version_bytes(const struct tutti_table *t)
{
	return t->mine < 0 ? 0 : TT_SHARD_HEAD + 3 * tt_table_copy(t, t->mine); /* unused pages cost nothing */
}

static size_t piece_of(const struct tutti_table *t) { return TT_PUSH_PIECE / t->width; }

/* A switch that failed may have left them; keys may have come since. */
static int open_dirty_rows(struct tutti_table *t)
{
	struct tt_shard *s = &t->shard;
	uint64_t rows = s->keys ? s->room : count_of(t) / t->row;
	int err = s->touched ? tt_dirty_rows_resize(s->touched, rows) : tt_dirty_rows_open(rows, &s->touched);

	return err || s->keys || s->differ ? err : tt_dirty_rows_open(rows, &s->differ);
}

static size_t sum_bytes(const struct tutti_table *t, uint64_t room)
{
	return t->shard.keys ? (size_t)room * tt_table_row_bytes(t) : tt_table_copy(t, t->mine);
}

int tt_version_open(struct tutti_table *t)
{
	const tutti_updater add = tutti_accumulate();
	struct tt_shard *s = &t->shard;
	int err;

	if (copies(t) && !s->next.made && !(s->next.made = calloc((size_t)(count_of(t) / piece_of(t)) + 1, 1)))
		return tt_fail(-ENOMEM, "no memory for the versions of the table \"%s\"", t->name);
	if (!tt_shard_in_rounds(t) || s->sum)
		return 0;
	if (tt_table_is_touched(t) && (err = open_dirty_rows(t)))
		return err;
	if (!s->adder && (err = tt_updater_open(&add, t->type, (size_t)count_of(t), 1, &s->adder)))
		return err;
	s->sum = tt_pages_map(sum_bytes(t, s->room));
	s->sum_room = s->room;
	return s->sum ? 0 : tt_fail(-ENOMEM, "no memory for the rounds of the table \"%s\"", t->name);
}

/* A change of the values outside of a round is about to come, or has come. */
static void expect_all_to_differ(struct tt_shard *s)
{
	if (s->differ)
		tt_dirty_rows_add(s->differ, 0, NULL, 0);
}

void tt_version_init(struct tutti_table *t)
{
	struct tt_shard *s = &t->shard;

	expect_all_to_differ(s);
	if (copies(t))
		memcpy(s->memory + TT_SHARD_HEAD + tt_table_copy(t, t->mine), s->values,
		       (size_t)count_of(t) * t->width);
}

void tt_version_close(struct tt_shard *s)
{
	tt_updater_close(s->adder);
	tt_dirty_rows_close(s->touched);
	tt_dirty_rows_close(s->differ);
	free(s->next.made);
	tt_pages_unmap(s->sum, s->table ? sum_bytes(s->table, s->sum_room) : 0);
}

int tt_version_grow(struct tutti_table *t, uint64_t room)
{
	struct tt_shard *s = &t->shard;
	char *sum;

	if (!s->sum || room <= s->sum_room)
		return 0;
	if (tt_dirty_rows_resize(s->touched, room))
		return -ENOMEM;
	if (!(sum = tt_pages_resize(s->sum, sum_bytes(t, s->sum_room), sum_bytes(t, room))))
		return -ENOMEM;
	s->sum = sum;
	s->sum_room = room;
	return 0;
}

static void forget_keys(struct tutti_table *t)
{
	struct tt_shard *s = &t->shard;
	const uint64_t *rows;
	size_t n = tt_dirty_rows_list(s->touched, &rows), row = tt_table_row_bytes(t);

	for (size_t i = 0; i < n; i++)
		memset(s->sum + (size_t)rows[i] * row, 0, row);
	tt_dirty_rows_clear(s->touched);
}

void tt_version_replace(struct tutti_table *t)
{
	expect_all_to_differ(&t->shard);
	if (t->shard.keys && t->shard.sum)
		forget_keys(t);
}

uint64_t tt_version_clock(const struct tutti_table *t)
{
	return tt_shard_in_rounds(t) ? head_of(&t->shard)->version : tt_rounds_clock(t->shard.rounds);
}

const char *tt_version_find(const struct tutti_table *t, uint64_t version)
{
	const struct tt_shard_head *h = head_of(&t->shard);

	if (!tt_shard_in_rounds(t))
		return t->shard.values;
	if (t->shard.keys)
		return version == h->version && version == h->writing ? t->shard.values : NULL;
	if (version > h->version || h->writing >= version + 2)
		return NULL;
	return t->shard.memory + tt_table_at(t, t->mine, h->placed, version);
}

/* ---- the open round ---- */

static double scale_of(const struct tutti_table *t, const tutti_update *o)
{
	double x = o && !isnan(o->scale) ? o->scale : t->updater.defaults.scale;

	return isnan(x) || t->updater.rule == TUTTI_UPDATE_OWN ? 1 : x;
}

int tt_version_begin(struct tutti_table *t, const tutti_update *options, struct tt_push *push)
{
	struct tt_next *n = &t->shard.next;
	tutti_update scale = tutti_update_defaults();
	int err = tt_update_check(&t->updater, options);

	scale.scale = scale_of(t, options);
	if (!err)
		err = tt_updater_begin(t->shard.adder, 0, scale.scale == 1 ? NULL : &scale, push);
	if (err || n->opened)
		return err;
	n->opened = true;
	n->options = options ? *options : tutti_update_defaults();
	n->options.worker = -1;
	if (t->updater.rule != TUTTI_UPDATE_OWN) /* the sum has the scale already */
		n->options.scale = NAN;
	return 0;
}

void tt_version_sum(struct tutti_table *t, const struct tt_push *push, size_t at, size_t count, const void *delta)
{
	char *sum = t->shard.sum + at * t->width;

	tt_table_update(t, push, at, count, &(struct tt_piece){ .to = sum, .w = sum, .d = delta });
}

int tt_version_touch_rows(struct tutti_table *t, int worker, const uint64_t *rows, size_t n)
{
	if (tt_shard_in_rounds(t))
		return t->shard.touched ? tt_dirty_rows_add(t->shard.touched, worker, rows, n) : 0;
	if (t->shard.fresh)
		tt_changed_rows_pushed(t->shard.fresh, worker, rows, n);
	return 0;
}

/* ---- versions that are kept for who reads them ---- */

bool tt_version_is_begun(const struct tutti_table *t)
{
	return head_of(&t->shard)->writing != head_of(&t->shard)->version;
}

/* Would the next version, which is not begun, be written over this one? Keys have one place. */
static bool is_in_the_way(const struct tutti_table *t, const struct tt_keep *k)
{
	return k->version + !t->shard.keys == head_of(&t->shard)->version;
}

/* When may the next version be begun? 0: now. */
static uint64_t kept_until(const struct tutti_table *t)
{
	const struct tt_shard *s = &t->shard;
	uint64_t now = tt_now(), until = now;

	for (int i = 0; s->kept_until > now && i < tt_members(t->job)->capacity; i++)
		if (s->pushers[i] && s->pushers[i]->keep.until > until && is_in_the_way(t, &s->pushers[i]->keep))
			until = s->pushers[i]->keep.until;
	return until > now ? until : 0;
}

/* ---- the next version ---- */

static char *place_of_next(const struct tutti_table *t)
{
	const struct tt_shard_head *h = head_of(&t->shard);

	return t->shard.memory + tt_table_version_at(t, t->mine, h->placed, h->writing);
}

static void copy_piece(struct tutti_table *t, size_t i)
{
	struct tt_shard *s = &t->shard;
	size_t first = i * piece_of(t), count = tt_min((size_t)count_of(t) - first, piece_of(t));

	if (!s->next.made[i])
		memcpy(place_of_next(t) + first * t->width, s->values + first * t->width, count * t->width);
	s->next.made[i] = true;
}

/* Applies the rule to the version before and the sum. */
static void make(struct tutti_table *t, char *next, size_t first, size_t count)
{
	struct tt_shard *s = &t->shard;
	size_t at = first * t->width;
	struct tt_piece piece = { .to = next + at, .w = s->values + at, .d = s->sum + at };

	if (s->image)
		tt_image_keep(s->image, first, count);
	tt_table_update(t, &s->next.push, first, count, &piece);
	memset(s->sum + at, 0, count * t->width);
}

/* Makes as many of the next `most` elements of dirty rows as are adjacent. */
static size_t make_run(struct tutti_table *t, uint64_t at, size_t most)
{
	const struct tt_dirty_rows *rows = t->shard.touched;
	uint64_t i = at / t->row, skip = at % t->row, run = tt_dirty_rows_run(rows, i, (skip + most - 1) / t->row + 1);
	size_t first = (size_t)(tt_dirty_rows_row(rows, i) * t->row + skip);
	size_t n = (size_t)tt_min(run * t->row - skip, most);

	make(t, t->shard.keys ? t->shard.values : place_of_next(t), first, n);
	return n;
}

/* Likewise, but skips dirty rows: they are made, not copied. */
static size_t copy_run(struct tutti_table *t, uint64_t at, size_t most)
{
	const struct tt_dirty_rows *differ = t->shard.differ, *dirty = t->shard.touched;
	uint64_t i = at / t->row, skip = at % t->row, rows = (skip + most - 1) / t->row + 1, n = 1;
	uint64_t first = tt_dirty_rows_row(differ, i);
	bool made = tt_dirty_rows_by(dirty, first);
	size_t from = (size_t)(first * t->row + skip) * t->width, count;

	while (n < rows && tt_dirty_rows_row(differ, i + n) == first + n &&
	       !!tt_dirty_rows_by(dirty, first + n) == made)
		n++;
	count = (size_t)tt_min(n * t->row - skip, most);
	if (!made)
		memcpy(place_of_next(t) + from, t->shard.values + from, count * t->width);
	return count;
}

static uint64_t count_dirty(const struct tutti_table *t) { return tt_dirty_rows_count(t->shard.touched) * t->row; }

static uint64_t count_to_copy(const struct tutti_table *t)
{
	const struct tt_shard *s = &t->shard;

	return s->differ && !tt_dirty_rows_all(s->touched) ? tt_dirty_rows_count(s->differ) * t->row : 0;
}

/* Makes the dirty rows, then copies the others in which the copy that is written over differs. */
static void make_rows(struct tutti_table *t, uint64_t at, uint64_t end)
{
	uint64_t made = count_dirty(t);

	while (at < end && at < made)
		at += make_run(t, at, (size_t)(tt_min(end, made) - at));
	while (at < end)
		at += copy_run(t, at - made, (size_t)(end - at));
}

static bool is_made_by_rows(const struct tutti_table *t) { return tt_shard_in_rounds(t) && t->shard.touched; }

static uint64_t count_to_make(const struct tutti_table *t)
{
	return is_made_by_rows(t) ? count_dirty(t) + count_to_copy(t) : count_of(t);
}

static void make_piece(struct tutti_table *t)
{
	struct tt_next *n = &t->shard.next;
	size_t count = (size_t)tt_min(count_to_make(t) - n->at, piece_of(t));

	if (copies(t))
		copy_piece(t, (size_t)n->at / piece_of(t));
	else if (is_made_by_rows(t))
		make_rows(t, n->at, n->at + count);
	else
		make(t, place_of_next(t), (size_t)n->at, count);
	n->at += count;
}

/* A row that one worker alone has pushed to is stale for the others. */
static void mark_changed(struct tt_changed_rows *c, int by, const uint64_t *rows, size_t n)
{
	tt_changed_rows_pushed(c, by == TT_BY_MANY ? -1 : by - 1, rows, n);
}

/* From now on the version before differs from the newest in this round's dirty rows. */
static void close_dirty_rows(struct tt_shard *s)
{
	struct tt_dirty_rows *dirty = s->touched;
	const uint64_t *rows;
	size_t n = tt_dirty_rows_list(dirty, &rows);

	if (s->fresh && tt_dirty_rows_all(dirty))
		mark_changed(s->fresh, tt_dirty_rows_all(dirty), NULL, 0);
	for (size_t i = 0; s->fresh && i < n; i++)
		mark_changed(s->fresh, tt_dirty_rows_by(dirty, rows[i]), &rows[i], 1);
	if (s->differ) {
		s->touched = s->differ;
		s->differ = dirty;
	}
	tt_dirty_rows_clear(s->touched);
}

static void now_at(struct tt_shard *s, char *place)
{
	s->values = place;
	s->moves++;
}

static void publish(struct tutti_table *t)
{
	struct tt_shard *s = &t->shard;

	s->next.busy = s->next.opened = false;
	if (tt_shard_in_rounds(t) && !s->keys)
		now_at(s, place_of_next(t));
	if (tt_shard_in_rounds(t) && s->touched)
		close_dirty_rows(s);
	head_of(s)->born[head_of(s)->writing & 1] = tt_calendar();
	__atomic_store_n(&head_of(s)->version, head_of(s)->writing, __ATOMIC_RELEASE);
	if (tt_shard_in_rounds(t))
		tt_table_tell(t);
	tt_shard_look(t);
	if (!tt_shard_in_rounds(t))
		tt_version_look(t);
}

static void go_on(struct tutti_table *t);

static void take_turn(struct tt_timer *turn)
{
	struct tt_next *n = tt_container_of(turn, struct tt_next, turn);

	go_on(tt_container_of(n, struct tt_shard, next)->table);
}

static void write_over(struct tutti_table *t) /* the version before the newest, from now on */
{
	struct tt_shard_head *h = head_of(&t->shard);

	__atomic_store_n(&h->writing, h->version + 1, __ATOMIC_RELEASE);
	__atomic_thread_fence(__ATOMIC_SEQ_CST); /* before any of it */
}

static void go_on(struct tutti_table *t)
{
	uint64_t until = tt_version_is_begun(t) ? 0 : kept_until(t);

	if (until) {
		tt_timer_start(t->job, &t->shard.next.turn, until, take_turn);
		return;
	}
	write_over(t);
	make_piece(t);
	if (t->shard.next.at < count_to_make(t))
		tt_timer_start(t->job, &t->shard.next.turn, tt_now(), take_turn);
	else
		publish(t);
}

static void start(struct tutti_table *t)
{
	struct tt_shard *s = &t->shard;

	s->next.at = 0;
	s->next.busy = true;
	go_on(t);
}

void tt_version_round(struct tutti_table *t)
{
	struct tt_shard *s = &t->shard;
	struct tt_next *n = &s->next;

	int pushes = t->flags & TUTTI_TABLE_MEAN ? (int)tt_max((size_t)tt_rounds_summed(s->rounds), 1) : 1;
	tutti_update options = n->opened ? n->options : tutti_update_defaults();

	if (t->flags & TUTTI_TABLE_MEAN)
		options = tt_table_share(t, &options, pushes);
	tt_updater_begin(s->updater, 0, &options, &n->push);
	if (t->updater.rule != TUTTI_UPDATE_OWN)
		n->push.factors.scale = 1.0 / pushes; /* the sum has the scale already */
	start(t);
}

void tt_version_settle(struct tutti_table *t)
{
	struct tt_next *n = &t->shard.next;

	if (!n->busy)
		return;
	tt_timer_stop(&n->turn);
	write_over(t);
	while (n->at < count_to_make(t))
		make_piece(t);
	publish(t);
}

/* ---- without rounds ---- */

static uint64_t due_at(const struct tutti_table *t)
{
	const struct tt_next *n = &t->shard.next;

	if (t->publish_pushes && n->since >= t->publish_pushes)
		return 0;
	return t->publish_ms ? n->begun + (uint64_t)t->publish_ms * TT_MS : UINT64_MAX;
}

static void take_due_turn(struct tt_timer *turn)
{
	struct tt_next *n = tt_container_of(turn, struct tt_next, turn);

	tt_version_look(tt_container_of(n, struct tt_shard, next)->table);
}

static void begin_copy(struct tutti_table *t)
{
	struct tt_next *n = &t->shard.next;

	n->since = 0;
	n->missed = 0;
	n->begun = tt_now();
	memset(n->made, 0, (size_t)(count_of(t) / piece_of(t)) + 1);
	start(t);
}

/* A worker that is stopped in the middle of a push would hold up all others each time. */
static void note_stuck(struct tt_shard *s)
{
	s->next.stuck = tt_shard_half_done(s);
	if (s->next.stuck >= 0)
		s->next.stuck_at = s->pushers[s->next.stuck]->pieces;
}

static bool is_stuck(const struct tt_shard *s)
{
	const struct tt_pusher *p = s->next.stuck < 0 ? NULL : s->pushers[s->next.stuck];

	return p && p->half && p->pieces == s->next.stuck_at;
}

static void copy_now(struct tutti_table *t, int err)
{
	t->shard.next.missed = 0;
	if (err)
		note_stuck(&t->shard);
	if (!err && copies(t) && t->shard.next.since && !kept_until(t))
		begin_copy(t);
	tt_shard_resume(t);
}

/* Where pushes overlap all the time, there is always one that is half done. */
static void await_moment(struct tutti_table *t)
{
	if (++t->shard.next.missed > 2 * (unsigned)t->shard.workers && !is_stuck(&t->shard))
		tt_shard_quiesce(t, tt_min(PATIENCE_MS * TT_MS, t->job->silence), copy_now);
}

/* Is also called when the last push that is half done ends. */
void tt_version_look(struct tutti_table *t)
{
	struct tt_next *n = &t->shard.next;
	uint64_t due;

	if (!copies(t) || n->busy || !n->since || t->shard.held)
		return;
	due = tt_max(due_at(t), kept_until(t));
	if (due > tt_now()) {
		if (due != UINT64_MAX)
			tt_timer_start(t->job, &n->turn, due, take_due_turn);
	} else if (t->shard.half) {
		await_moment(t);
	} else {
		begin_copy(t);
	}
}

void tt_version_pushed(struct tutti_table *t)
{
	if (!copies(t))
		return;
	t->shard.next.since++;
	tt_version_look(t);
}

void tt_version_touch(struct tutti_table *t, size_t at, size_t count)
{
	if (t->shard.image)
		tt_image_keep(t->shard.image, at, count);
	expect_all_to_differ(&t->shard);
	if (!copies(t) || !t->shard.next.busy)
		return;
	for (size_t i = at / piece_of(t); i * piece_of(t) < at + count; i++)
		copy_piece(t, i);
}

void tt_version_touch_places(struct tutti_table *t, const struct tt_rows_piece *r)
{
	expect_all_to_differ(&t->shard);
	for (size_t i = 0; (t->shard.image || (copies(t) && t->shard.next.busy)) && i < r->n; i++)
		tt_version_touch(t, (size_t)r->places[i] * r->row + r->at, r->count);
}

/* The next version may not have to wait any more. Not from here: it moves the clock, while gates may be looked at. */
static void look_at_kept(struct tutti_table *t)
{
	struct tt_next *n = &t->shard.next;

	if (!tt_version_is_begun(t) && (n->busy || copies(t)))
		tt_timer_start(t->job, &n->turn, tt_now(), n->busy ? take_turn : take_due_turn);
}

/* A version of keys that is on its way takes the newest one's place, and waits for those alone who asked before. */
static uint64_t newest_to_keep(struct tt_shard *s) { return head_of(s)->version + (s->keys && s->next.busy); }

uint64_t tt_version_keep(struct tutti_table *t, int rank, uint32_t call, uint64_t version)
{
	struct tt_shard *s = &t->shard;
	struct tt_pusher *p = s->pushers[rank];

	if (!p || !tt_version_is_kept(t))
		return version;
	if (p->keep.until <= tt_now())
		p->keep = (struct tt_keep){ call, newest_to_keep(s),
			                    tt_now() + tt_min(KEEP_MS * TT_MS, t->job->silence / 2) };
	p->keep.call = call; /* calls of one rank share what is kept, and the last to ask lets go of it */
	version = p->keep.version = tt_max(p->keep.version, version);
	s->kept_until = tt_max(s->kept_until, p->keep.until);
	look_at_kept(t); /* the call may have kept an older one */
	return version;
}

void tt_version_let_go(struct tutti_table *t, int rank, uint32_t call)
{
	struct tt_pusher *p = t->shard.pushers[rank];

	if (!p || p->keep.call != call)
		return;
	p->keep.until = 0;
	look_at_kept(t);
}

/* ---- values that are set in rounds ---- */

static char *copy_at(const struct tutti_table *t, unsigned i)
{
	return t->shard.memory + TT_SHARD_HEAD + i * tt_table_copy(t, t->mine);
}

static unsigned find_spare(uint64_t placed) { return 3 - tt_placed_in(placed, 0) - tt_placed_in(placed, 1); }

char *tt_version_spare(const struct tutti_table *t) { return copy_at(t, find_spare(head_of(&t->shard)->placed)); }

char *tt_version_write_spare(struct tutti_table *t)
{
	uint64_t *placed = &head_of(&t->shard)->placed;

	/* It is odd already if a load has come to nothing. */
	__atomic_store_n(placed, *placed + (*placed & TT_PLACED_ONCE ? 2 : 1) * TT_PLACED_ONCE, __ATOMIC_RELEASE);
	__atomic_thread_fence(__ATOMIC_SEQ_CST); /* before any of it */
	return tt_version_spare(t);
}

/* Whoever reads the copy that was the version until now may end. */
void tt_version_take_spare(struct tutti_table *t)
{
	struct tt_shard *s = &t->shard;
	uint64_t placed = head_of(s)->placed, spare = find_spare(placed);
	unsigned shift = head_of(s)->version & 1 ? 2 : 0;

	if (s->image) /* the copies of the values change places */
		tt_image_keep(s->image, 0, (size_t)count_of(t));
	expect_all_to_differ(s);
	now_at(s, copy_at(t, (unsigned)spare));
	placed = (placed & ~((uint64_t)3 << shift)) | spare << shift;
	__atomic_store_n(&head_of(s)->placed, placed + TT_PLACED_ONCE, __ATOMIC_RELEASE);
}

void tt_version_being_set(struct tutti_table *t, bool begins)
{
	uint64_t *placed = &head_of(&t->shard)->placed, still = *placed & ~(uint64_t)TT_BEING_SET;

	if (!tt_shard_in_rounds(t))
		return;
	__atomic_store_n(placed, begins ? still | TT_BEING_SET : still + 4 * TT_PLACED_ONCE, __ATOMIC_RELEASE);
	__atomic_thread_fence(__ATOMIC_SEQ_CST); /* before the first value */
}

/* ---- switching to or from rounds ---- */

static void move_values(struct tutti_table *t, char *to)
{
	struct tt_shard *s = &t->shard;

	if (s->keys || s->values == to)
		return;
	memcpy(to, s->values, (size_t)count_of(t) * t->width);
	now_at(s, to);
}

/* Moves the values to where the new consistency expects them, as the version or clock that all start from. */
static void place_values(struct tutti_table *t, uint64_t clock)
{
	struct tt_shard *s = &t->shard;

	if (tt_shard_in_rounds(t)) {
		__atomic_store_n(&head_of(s)->writing, clock, __ATOMIC_RELEASE);
		__atomic_thread_fence(__ATOMIC_SEQ_CST); /* before any of it */
		move_values(t, s->memory + tt_table_at(t, t->mine, head_of(s)->placed, clock));
		expect_all_to_differ(s);
		__atomic_store_n(&head_of(s)->version, clock, __ATOMIC_RELEASE);
		return;
	}
	move_values(t, copy_at(t, 0));
	head_of(s)->placed = (head_of(s)->placed & ~(uint64_t)15) | TT_PLACED_AT_FIRST;
	if (copies(t)) {
		memset(s->next.made, 0, (size_t)(count_of(t) / piece_of(t)) + 1);
		start(t);
		tt_version_settle(t);
	}
}

void tt_version_skip(struct tutti_table *t)
{
	struct tt_shard *s = &t->shard;

	tt_version_settle(t);
	if (s->image) /* the copies of the values change places */
		tt_image_keep(s->image, 0, (size_t)count_of(t));
	if (tt_shard_in_rounds(t)) {
		place_values(t, tt_rounds_clock(s->rounds));
		head_of(s)->born[head_of(s)->version & 1] = tt_calendar();
	}
	tt_table_tell(t);
}

int tt_version_switch(struct tutti_table *t, const tutti_consistency *to, uint64_t clock)
{
	const tutti_consistency from = t->shard.as;
	int err;

	tt_version_settle(t);
	t->shard.as = *to;
	err = tt_version_open(t);
	t->shard.as = from;
	if (err || (err = tt_rounds_switch(t->shard.rounds, to, &clock)))
		return err;
	if (t->shard.next.opened) /* the open round */
		tt_version_round(t);
	tt_version_settle(t);
	if (t->shard.image) /* the copies of the values change places */
		tt_image_keep(t->shard.image, 0, (size_t)count_of(t));
	tt_timer_stop(&t->shard.next.turn);
	t->shard.next.since = 0;
	t->shard.as = t->source[t->mine].as = *to;
	place_values(t, clock);
	return 0;
}
