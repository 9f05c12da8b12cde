/* serve.c - a server's shard, and the pushes to it */
#include "engine/engine.h"
#include "kernel/kernel.h"
#include "member/member.h"
#include "table/table_private.h"
#include "table/saving.h"
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static struct tt_pusher *pusher_of(struct tt_shard *s, int rank)
{
	if (!s->pushers[rank] && (s->pushers[rank] = calloc(1, sizeof *s->pushers[rank]))) {
		s->pushers[rank]->err = -EINVAL; /* until its first piece comes */
		s->pushers[rank]->worker = tt_table_worker(s->table, rank);
	}
	return s->pushers[rank];
}

/* Rounds wait for all ranks that the job was started with, also before these have opened the table. */
static int count_in(struct tutti_table *t, int rank, uint64_t *pushed)
{
	struct tt_pusher *p = pusher_of(&t->shard, rank);
	int err;

	if (!p)
		return tt_fail(-ENOMEM, "no memory for the pushers of the table \"%s\"", t->name);
	*pushed = tt_rounds_pushed(t->shard.rounds, rank); /* tt_table_expect() may have counted it */
	if (p->counted || p->worker < 0)
		return 0;
	err = tt_rounds_join(t->shard.rounds, rank, pushed);
	p->counted = !err;
	return err;
}

int tt_table_expect(struct tutti_table *t)
{
	uint64_t pushed;
	int err = 0;

	for (int i = 0; !err && i < tt_members(t->job)->launched; i++)
		if (tt_member(t->job, i)->state < TT_LEFT)
			err = count_in(t, i, &pushed);
	return err;
}

static int open_keys(struct tutti_table *t)
{
	struct tt_shard *s = &t->shard;
	int err;

	s->room = t->count / (uint64_t)t->servers + (t->count % (uint64_t)t->servers != 0);
	if ((err = tt_keys_open(s->room, &s->keys)))
		return err;
	s->values = tt_pages_map((size_t)s->room * tt_table_row_bytes(t));
	return s->values ? 0 : tt_fail(-ENOMEM, "no memory for %llu keys", (unsigned long long)s->room);
}

static int open_fresh(struct tutti_table *t)
{
	unsigned flags = t->flags & TUTTI_TABLE_FRESH_OWN ? TT_FRESH_OWN : 0;
	uint64_t rows = tt_table_range(t, t->mine).count / t->row;

	return t->flags & TUTTI_TABLE_FRESH ? tt_changed_rows_open(rows, flags, &t->shard.fresh) : 0;
}

int tt_table_launched_workers(const struct tutti_table *t)
{
	return t->workers ? t->workers : tt_members(t->job)->launched;
}

int tt_table_serve(struct tutti_table *t)
{
	const struct tt_members *m = tt_members(t->job);
	struct tt_shard *s = &t->shard;
	size_t count;
	int err;

	tt_lock(t->job);
	err = tt_pool_open(t->job);
	tt_unlock(t->job);
	if (err)
		return err;
	s->table = t;
	s->as = t->as;
	s->workers = tt_table_launched_workers(t);
	s->next.stuck = -1;
	if (!(s->pushers = calloc((size_t)m->capacity, sizeof *s->pushers)))
		return tt_fail(-ENOMEM, "no memory for the pushers of %d ranks", m->capacity);
	if ((err = tt_memory_alloc(t->job, tt_version_bytes(t), -1, (void **)&s->memory)))
		return err;
	s->values = s->memory + TT_SHARD_HEAD;
	if (t->flags & TUTTI_TABLE_KEYS && (err = open_keys(t)))
		return err;
	count = (size_t)(tt_table_range(t, t->mine).count + s->room * t->row);
	if ((err = tt_updater_open(&t->updater, t->type, count, s->workers, &s->updater)) || (err = open_fresh(t)) ||
	    (err = tt_rounds_open(&t->as, m->launched, &s->rounds)) || (err = tt_version_open(t)))
		return err;
	tt_init_shard(t);
	((struct tt_shard_head *)s->memory)->print = t->print;
	((struct tt_shard_head *)s->memory)->placed = TT_PLACED_AT_FIRST;
	memcpy(s->memory + TT_SHARD_TERMS, t->terms, sizeof t->terms);
	return 0;
}

static size_t shard_bytes(const struct tutti_table *t) { return (size_t)tt_table_range(t, t->mine).count * t->width; }

static void drop_staged(struct tutti_table *t, struct tt_pusher *p)
{
	tt_pages_unmap(p->staged, p->staged ? shard_bytes(t) : 0);
	p->staged = NULL;
	p->staged_count = 0;
}

void tt_table_unserve(struct tutti_table *t)
{
	struct tt_shard *s = &t->shard;

	tt_table_io_free(t);
	for (int i = 0; s->pushers && i < tt_members(t->job)->capacity; i++)
		if (s->pushers[i]) {
			drop_staged(t, s->pushers[i]);
			free(s->pushers[i]);
		}
	free(s->pushers);
	tt_version_close(s);
	tt_rounds_close(s->rounds);
	tt_updater_close(s->updater);
	tt_changed_rows_close(s->fresh);
	if (s->keys)
		tt_pages_unmap(s->values, (size_t)s->room * tt_table_row_bytes(t));
	tt_keys_close(s->keys);
	tt_memory_free(s->memory);
	*s = (struct tt_shard){ 0 };
}

static size_t elements_of(const struct tutti_table *t)
{
	return (size_t)(t->shard.keys ? tt_keys_count(t->shard.keys) * t->row : tt_table_range(t, t->mine).count);
}

/* The state of workers that come later begins with the values as they are now. */
int tt_table_know(struct tutti_table *t, int worker)
{
	struct tt_shard *s = &t->shard;
	int err = 0;

	if (worker < s->workers)
		return 0;
	if (worker >= tt_members(t->job)->capacity)
		return -EINVAL;
	if ((err = tt_updater_join(s->updater, worker + 1)))
		return err;
	for (; s->workers <= worker; s->workers++)
		tt_updater_assigned(s->updater, s->workers, s->values, 0, elements_of(t));
	return 0;
}

int tt_table_admit(struct tutti_table *t, int rank, uint64_t *pushed)
{
	int worker = tt_table_worker(t, rank), err = worker < 0 ? 0 : tt_table_know(t, worker);

	*pushed = 0;
	if (!err && !(err = count_in(t, rank, pushed)))
		t->shard.pushers[rank]->met = true;
	return err;
}

/* ---- pushes ---- */

static void move_clock(struct tutti_table *t)
{
	if (tt_shard_in_rounds(t))
		tt_version_round(t);
	else
		tt_table_tell(t);
}

void tt_table_resume(struct tutti_table *t, int rank, uint64_t pushed)
{
	bool skipped;

	if (!tt_rounds_resume(t->shard.rounds, rank, pushed, &skipped))
		return;
	if (skipped)
		tt_version_skip(t);
	else
		move_clock(t);
}

/* The largest clock of the other servers: the last worker may have died in a push that only they have complete. */
static uint64_t farthest(const struct tutti_table *t)
{
	uint64_t clock = 0;

	for (int i = 0; i < t->servers; i++)
		if (i != t->mine && tt_served_in_rounds(t, i) && t->source[i].clock != UINT64_MAX)
			clock = tt_max(clock, t->source[i].clock);
	return clock;
}

void tt_table_catch_up(struct tutti_table *t)
{
	const struct tt_rounds *r = t->shard.rounds;

	if (!r || t->shard.held || !tt_rounds_is_left(r) || !tt_rounds_catch_up(t->shard.rounds, farthest(t)))
		return;
	tt_version_settle(t);
	if (t->shard.next.opened)
		tt_version_round(t); /* of the pieces that have come */
	tt_version_skip(t);
}

/* A push that is half done ends here; its pieces that have come are in. */
void tt_table_dismiss(struct tutti_table *t, int rank)
{
	struct tt_pusher *p = t->shard.pushers[rank];

	if (!p)
		return;
	p->err = -EINVAL;
	p->mapped = NULL;
	drop_staged(t, p);
	if (p->half) {
		tt_stats_count(&t->job->stats.own, TUTTI_STAT_BROKEN, 0);
		t->shard.half--;
		p->half = p->dropped = false;
		tt_version_pushed(t);
	}
	if (p->counted) {
		p->counted = false;
		p->asked = false;
		if (tt_rounds_leave(t->shard.rounds, rank))
			move_clock(t);
		else if (tt_rounds_skip(t->shard.rounds)) /* the others go on from later rounds of other servers */
			tt_version_skip(t);
		tt_table_catch_up(t);
		tt_table_look_at_switch(t);
	}
	tt_shard_look(t);
}

static void end(struct tutti_table *t, struct tt_pusher *p, int worker)
{
	bool counts = p->half && !p->dropped && !p->assigns;

	if (p->half && !p->dropped)
		tt_stats_count(&t->job->stats.own, TUTTI_STAT_PUSH_IN, 0);
	t->shard.half -= p->half;
	p->half = false;
	drop_staged(t, p); /* of an assign that was given up */
	tt_version_pushed(t);
	if (counts && tt_rounds_complete(t->shard.rounds, worker))
		move_clock(t);
	tt_shard_look(t);
}

void tt_table_end_given_up(struct tutti_table *t, int worker)
{
	struct tt_pusher *p = t->shard.pushers ? t->shard.pushers[worker] : NULL;

	if (p && p->half)
		end(t, p, worker);
}

tutti_update tt_table_share(const struct tutti_table *t, const tutti_update *options, int n)
{
	tutti_update share = options ? *options : tutti_update_defaults();
	double scale = isnan(share.scale) ? t->updater.defaults.scale : share.scale;

	share.scale = (isnan(scale) ? 1 : scale) / n;
	return share;
}

/* Without rounds. */
static int begin_alone(struct tutti_table *t, struct tt_pusher *p, int worker, const tutti_update *options)
{
	tutti_update share;

	if (t->flags & TUTTI_TABLE_MEAN) {
		share = tt_table_share(t, options, tt_rounds_counts(t->shard.rounds).live);
		options = &share;
	}
	return tt_updater_begin(t->shard.updater, worker, options, &p->push);
}

static int begin(struct tutti_table *t, struct tt_pusher *p, int worker, unsigned flags, const tutti_update *options)
{
	int err;

	if (p->half)
		end(t, p, worker); /* the worker has given up the push before */
	t->shard.half++;
	p->half = true;
	p->dropped = false;
	tt_table_withdraw(t, worker, -EBUSY);
	p->assigns = flags & TT_PUSH_ASSIGN;
	if (p->assigns)
		return 0;
	if (!p->counted)
		return -EPERM;
	switch (tt_rounds_begin(t->shard.rounds, worker)) {
	case TT_DROP:
		tt_stats_count(&t->job->stats.own, TUTTI_STAT_DROPPED, 0);
		p->dropped = true;
		return 0;
	case TT_WAIT: return -EPROTO; /* the worker waits until the clock that it is told admits the push */
	case TT_ADMIT: break;
	}
	if (tt_shard_in_rounds(t)) {
		tt_version_settle(t); /* of the last round */
		return tt_version_begin(t, options, &p->push);
	}
	if (t->workers && options && options->worker >= t->workers)
		return -EINVAL; /* the table may have been loaded with state of more workers */
	err = tt_table_know(t, options && options->worker >= 0 ? options->worker : p->worker);
	return err ? err : begin_alone(t, p, p->worker, options);
}

int tt_table_take(struct tutti_table *t, int worker, unsigned flags, const tutti_update *options,
                  int (*change)(struct tutti_table *, int worker, struct tt_pusher *, void *), void *arg)
{
	struct tt_pusher *p = t->shard.pushers[worker];
	int err;

	if (!p)
		return -EINVAL; /* the worker has not joined */
	t->shard.pieces++;
	p->pieces++;
	if (!(flags & TT_PUSH_FIRST) && !p->half && !p->err)
		p->err = -EPROTO; /* no push has begun */
	if (!(flags & TT_PUSH_FIRST) && p->half && p->assigns != !!(flags & TT_PUSH_ASSIGN))
		p->err = -EPROTO; /* the push began as the other kind */
	if (flags & TT_PUSH_FIRST && (p->err = begin(t, p, worker, flags, options)))
		end(t, p, worker); /* nobody waits for the rest of a refused push */
	if (!p->err && !p->dropped)
		p->err = change(t, worker, p, arg);
	err = p->err;
	if (flags & TT_PUSH_LAST)
		end(t, p, worker);
	return err;
}

static int fail(struct tutti_table *t, int worker, struct tt_pusher *p, void *arg)
{
	(void)t, (void)worker, (void)p;
	return *(int *)arg;
}

int tt_table_refuse(struct tutti_table *t, int worker, unsigned flags, const tutti_update *options, int err)
{
	return tt_table_take(t, worker, flags, options, fail, &err);
}

struct spread { /* a rule over a range, by several threads */
	const struct tt_push *push;
	const struct tt_piece *piece; /* at element `first` of the shard */
	size_t first, width;
};

static void apply_some(void *arg, size_t at, size_t count)
{
	const struct spread *s = arg;
	struct tt_piece p = *s->piece;
	size_t skip = at * s->width;

	p.to = (char *)p.to + skip;
	p.w = (const char *)p.w + skip;
	p.d = (const char *)p.d + skip;
	p.out = p.out ? (char *)p.out + skip : NULL;
	tt_updater_apply(s->push, s->first + at, count, &p);
}

void tt_table_spread(struct tt_pool *pool, const struct tt_push *push, size_t width, size_t first, size_t count,
                     const struct tt_piece *piece)
{
	enum { GRAIN = 8192 }; /* whole cache lines of all arrays that change */

	tt_pool_run(pool, apply_some, &(struct spread){ push, piece, first, width }, count, GRAIN);
}

void tt_table_update(struct tutti_table *t, const struct tt_push *push, size_t first, size_t count,
                     const struct tt_piece *piece)
{
	tt_table_spread(t->job->pool, push, t->width, first, count, piece);
}

void tt_table_change(struct tutti_table *t, const struct tt_pusher *p, size_t at, size_t count, const void *delta,
                     void *back)
{
	char *w = t->shard.values + at * t->width;

	if (tt_shard_in_rounds(t)) {
		tt_version_sum(t, &p->push, at, count, delta);
		return;
	}
	tt_version_touch(t, at, count);
	tt_table_update(t, &p->push, at, count, &(struct tt_piece){ .to = w, .w = w, .d = delta, .out = back });
}

void tt_table_change_rows(struct tutti_table *t, const struct tt_pusher *p, const struct tt_rows_piece *rows)
{
	struct tt_rows_piece r = *rows;

	if (tt_rows_adjacent(&r, 0) == r.n) { /* the pool helps with one range */
		tt_table_change(t, p, (size_t)r.places[0] * r.row + r.at, r.n * r.count, r.d, NULL);
		return;
	}
	if (!tt_shard_in_rounds(t))
		tt_version_touch_places(t, &r);
	r.w = tt_shard_in_rounds(t) ? t->shard.sum : t->shard.values;
	tt_updater_apply_rows(&p->push, &r);
}

struct dense { /* a piece of all elements */
	size_t at, count;
	const void *delta;
	void *back;
};

static void store(struct tutti_table *t, size_t at, size_t count, const void *values)
{
	char *w = t->shard.values + at * t->width;

	tt_version_touch(t, at, count);
	memcpy(w, values, count * t->width);
	tt_updater_assigned(t->shard.updater, -1, w, at, count);
}

/* All values of the shard at once, which nobody sees half. */
static void set_all(struct tutti_table *t, const void *values)
{
	size_t count = (size_t)tt_table_range(t, t->mine).count;

	if (!tt_shard_in_rounds(t)) { /* switched since the assign began */
		store(t, 0, count, values);
		return;
	}
	tt_version_settle(t);
	memcpy(tt_version_write_spare(t), values, count * t->width);
	tt_version_take_spare(t);
	tt_updater_assigned(t->shard.updater, -1, t->shard.values, 0, count);
}

/* In rounds the pieces of an assign are put aside until its last one has come. */
static int stage(struct tutti_table *t, struct tt_pusher *p, const struct dense *d)
{
	size_t count = (size_t)tt_table_range(t, t->mine).count;

	if (d->count == count) {
		set_all(t, d->delta);
		return 0;
	}
	if (!p->staged) {
		if (!(p->staged = tt_pages_map(shard_bytes(t))))
			return -ENOMEM;
		memcpy(p->staged, t->shard.values, d->at * t->width); /* set before a switch to rounds */
		p->staged_count = d->at;
	}
	memcpy(p->staged + d->at * t->width, d->delta, d->count * t->width);
	p->staged_count += d->count;
	if (p->staged_count == count)
		set_all(t, p->staged);
	return 0;
}

static int assign(struct tutti_table *t, int worker, struct tt_pusher *p, void *arg)
{
	const struct dense *d = arg;
	int err = 0;

	if (p->staged || tt_shard_in_rounds(t))
		err = stage(t, p, d);
	else
		store(t, d->at, d->count, d->delta);
	if (!err && t->shard.fresh)
		tt_changed_rows_pushed(t->shard.fresh, worker, NULL, 0);
	return err;
}

static int change_widened(struct tutti_table *t, const struct tt_pusher *p, const struct dense *d)
{
	size_t bytes = d->count * t->width;
	void *delta = tt_scratch_take(&t->job->scratch, bytes);

	if (!delta)
		return -ENOMEM;
	tt_to_f32(delta, d->delta, d->count, TUTTI_BF16);
	tt_table_change(t, p, d->at, d->count, delta, d->back);
	tt_scratch_give(&t->job->scratch, delta, bytes);
	return 0;
}

static int apply(struct tutti_table *t, int worker, struct tt_pusher *p, void *arg)
{
	const struct dense *d = arg;
	int err = 0;

	if (t->flags & TUTTI_TABLE_BF16_DELTAS && d->count)
		err = change_widened(t, p, d);
	else
		tt_table_change(t, p, d->at, d->count, d->delta, d->back);
	return err ? err : d->count ? tt_version_touch_rows(t, worker, NULL, 0) : 0;
}

int tt_table_apply(struct tutti_table *t, int worker, unsigned flags, const tutti_update *o, struct tt_range range,
                   const void *delta, void *back)
{
	struct dense d = { (size_t)(range.first - tt_table_range(t, t->mine).first), (size_t)range.count, delta, back };

	return tt_table_take(t, worker, flags, o, flags & TT_PUSH_ASSIGN ? assign : apply, &d);
}

/* ---- messages ---- */

#define AT(option) offsetof(tutti_update, option)
static const size_t numbers[] = { /* in the order of a message */
	AT(scale), AT(learning_rate), AT(weight_decay), AT(momentum), AT(rho), AT(compensation), AT(beta1), AT(beta2),
	AT(epsilon), AT(alpha), AT(beta), AT(l1), AT(l2),
};

/* set: bit 0 says whether there is a worker, bit k + 1 whether numbers[k] is set. Numbers that are not set are 0. */
void tt_table_get_options(struct tt_pack *p, tutti_update *u)
{
	uint32_t set = tt_get32(p), worker = tt_get32(p);

	*u = (tutti_update){ .worker = set & 1 ? (int)worker : -1 };
	p->bad |= set >> (TT_COUNT(numbers) + 1) || (set & 1 && worker > INT_MAX);
	for (size_t i = 0; i < TT_COUNT(numbers); i++) {
		uint64_t bits = tt_get64(p);
		double x;
		memcpy(&x, &bits, sizeof x);
		p->bad |= set & 2u << i ? isnan(x) : bits != 0;
		x = set & 2u << i ? x : NAN;
		memcpy((char *)u + numbers[i], &x, sizeof x);
	}
}

void tt_table_put_options(struct tt_pack *p, const tutti_update *u)
{
	uint64_t bits[TT_COUNT(numbers)] = { 0 };
	uint32_t set = u->worker >= 0;

	for (size_t i = 0; i < TT_COUNT(numbers); i++) {
		double x;
		memcpy(&x, (const char *)u + numbers[i], sizeof x);
		if (isnan(x))
			continue;
		set |= 2u << i;
		memcpy(&bits[i], &x, sizeof x);
	}
	tt_put32(p, set);
	tt_put32(p, set & 1 ? (uint32_t)u->worker : 0);
	for (size_t i = 0; i < TT_COUNT(numbers); i++)
		tt_put64(p, bits[i]);
}

int tt_table_map_delta(struct tutti_table *t, struct tt_member *from, struct tt_pack *p, uint64_t bytes)
{
	struct tt_pusher *pusher = t->shard.pushers[from->rank];
	struct tt_key key;

	tt_get_key(p, &key);
	if (!pusher)
		return -EINVAL; /* the worker has not joined */
	p->bad |= bytes != UINT64_MAX && key.len != bytes;
	pusher->mapped = p->bad ? NULL : tt_member_net(from)->transport->map(from->link->peer, &key, 0);
	pusher->mapped_bytes = key.len;
	return pusher->mapped || p->bad ? 0 : -EOPNOTSUPP;
}

void tt_table_pack(struct tutti_table *t, const char *elements, size_t count, uint64_t limit, struct tt_elements *e)
{
	size_t len = count * t->width;
	void *packed = t->flags & TUTTI_TABLE_FILTER ? tt_scratch_take(&t->job->scratch, len) : NULL;
	size_t bytes = packed ? tt_filter_pack(packed, elements, count, t->type, limit) : 0;

	*e = (struct tt_elements){ elements, len, NULL, 0 };
	if (bytes)
		*e = (struct tt_elements){ packed, bytes, packed, len };
	else
		tt_scratch_give(&t->job->scratch, packed, len);
}

size_t tt_table_pack_here(struct tutti_table *t, char *elements, size_t count, uint64_t limit, uint8_t *flags)
{
	struct tt_elements e;

	tt_table_pack(t, elements, count, limit, &e);
	if (e.copy) {
		memcpy(elements, e.at, e.bytes);
		*flags |= TT_SPARSE;
	}
	tt_elements_free(t, &e);
	return e.bytes;
}

int tt_table_unpack(struct tutti_table *t, struct tt_pack *p, size_t count, bool sparse, struct tt_elements *e)
{
	size_t len = count * t->width, left = tt_pack_left(p);
	const uint8_t *from = tt_pack_take(p, left);

	*e = (struct tt_elements){ .at = (const char *)from };
	p->bad |= sparse ? len > TT_PUSH_MESSAGE : left != len;
	if (p->bad || (!sparse && t->updater.rule != TUTTI_UPDATE_OWN))
		return 0;
	if (!(e->copy = tt_scratch_take(&t->job->scratch, len)))
		return -ENOMEM;
	e->room = len;
	e->at = e->copy;
	if (!sparse)
		memcpy(e->copy, from, len); /* within a message elements are not aligned */
	else
		p->bad |= tt_filter_unpack(e->copy, count, t->type, from, left) != 0;
	return 0;
}

void tt_elements_free(struct tutti_table *t, struct tt_elements *e)
{
	tt_scratch_give(&t->job->scratch, e->copy, e->room);
}

/* Where a piece lies that is not within its message. NULL: nowhere. */
static const char *find_piece(const struct tutti_table *t, struct tt_member *from, unsigned slot, struct tt_range range,
                              size_t width)
{
	const struct tt_pusher *pusher = t->shard.pushers[from->rank];
	const struct tt_table_peer *peer = tt_member_own(from, TT_TABLE_SLOT);
	size_t first = (size_t)(range.first - tt_table_range(t, t->mine).first), len = (size_t)range.count * width;

	if (slot == TT_IN_PLACE) /* a push of rows may have mapped less */
		return pusher && pusher->mapped && first * width + len <= pusher->mapped_bytes ?
		       pusher->mapped + first * width : NULL;
	if (slot >= TT_SEND_QUEUE_SLOTS || !peer || !peer->inbox || len > TT_PUSH_PIECE)
		return NULL;
	return peer->inbox + (size_t)slot * TT_PUSH_PIECE;
}

static bool is_within(const struct tutti_table *t, struct tt_range r)
{
	struct tt_range mine = tt_table_range(t, t->mine);

	return r.first >= mine.first && r.count <= mine.count && r.first - mine.first <= mine.count - r.count;
}

static int take(struct tutti_table *t, struct tt_member *from, struct tt_pack *p, unsigned flags, unsigned slot,
                const tutti_update *o, struct tt_range range, void *back)
{
	struct tt_pusher *pusher = t->shard.pushers[from->rank];
	struct tt_elements e = { 0 };
	size_t width = tt_delta_width(t, flags), len = (size_t)range.count * width;
	int err = 0;

	if (flags & TT_PUSH_FIRST && slot != TT_IN_PLACE && pusher)
		pusher->mapped = NULL; /* of a push that was given up: it may have had another width */
	if (slot == TT_IN_PLACE && pusher && !pusher->mapped)
		return -EOPNOTSUPP; /* the answer to the first piece of that push */
	if (slot == TT_NO_SLOT && width != t->width) {
		p->bad |= flags & TT_SPARSE || tt_pack_left(p) != len;
		e.at = p->bad ? NULL : (const char *)tt_pack_take(p, len);
	} else if (slot == TT_NO_SLOT)
		err = tt_table_unpack(t, p, (size_t)range.count, flags & TT_SPARSE, &e);
	else
		e.at = find_piece(t, from, slot, range, width);
	p->bad |= !err && !e.at;
	if (slot == TT_IN_PLACE && pusher && flags & TT_PUSH_LAST)
		pusher->mapped = NULL; /* its worker may take the memory back */
	if (!p->bad && err)
		err = tt_table_refuse(t, from->rank, flags, o, err);
	else if (!p->bad)
		err = tt_table_apply(t, from->rank, flags, o, range, e.at, back);
	tt_elements_free(t, &e);
	return err;
}

static void answer_with(struct tt_member *to, uint32_t number, int err, const void *values, size_t bytes)
{
	uint8_t answer[9];
	struct tt_pack a = tt_pack(answer, sizeof answer);

	tt_put8(&a, TT_PUSHED);
	tt_put32(&a, number);
	tt_put32(&a, (uint32_t)err);
	tt_send(to, answer, sizeof answer, values, bytes);
}

void tt_table_answer(struct tt_member *to, uint32_t number, int err) { answer_with(to, number, err, NULL, 0); }

/* Does the answer to this piece bring what the rule gives back? */
static bool gives_back(const struct tutti_table *t, unsigned flags, struct tt_range range)
{
	return flags & TT_PUSH_PULL && !(flags & TT_PUSH_ASSIGN) && tt_updater_gives_back(&t->updater) &&
	       (size_t)range.count * t->width <= TT_PUSH_MESSAGE;
}

static void answer_push(struct tutti_table *t, struct tt_member *to, uint32_t number, int err, unsigned flags,
                        const void *back, size_t bytes)
{
	if (!err && flags & TT_PUSH_PULL && back)
		answer_with(to, number, 0, back, bytes);
	else if (!err && flags & TT_PUSH_PULL && t->shard.as.mode == TUTTI_ASYNC && !tt_table_is_large(t, t->mine))
		answer_with(to, number, 0, t->shard.values, (size_t)tt_table_range(t, t->mine).count * t->width);
	else
		tt_table_answer(to, number, err);
}

void tt_table_push(struct tt_member *from, struct tt_pack *p)
{
	const struct tt_pack message = *p;
	uint64_t uid = tt_get64(p);
	uint32_t number = tt_get32(p);
	unsigned flags = tt_get8(p), slot = tt_get8(p);
	struct tt_range range = { .first = tt_get64(p), .count = tt_get32(p) };
	struct tutti_table *t = tt_table_find(from->job, uid);
	tutti_update options;
	void *back = NULL;
	size_t bytes = t && gives_back(t, flags, range) ? (size_t)range.count * t->width : 0;
	int err = t ? 0 : -ESTALE;

	if (!p->bad && tt_shard_wait(from, t, TT_PUSH, flags & TT_PUSH_FIRST, &message))
		return;
	if (flags & TT_PUSH_OPTIONS)
		tt_table_get_options(p, &options);
	if (t && !p->bad && slot == TT_IN_PLACE && flags & TT_PUSH_FIRST)
		err = tt_table_map_delta(t, from, p, tt_table_range(t, t->mine).count * tt_delta_width(t, flags));
	if (t && !err && !is_within(t, range))
		err = -ERANGE;
	const tutti_update *o = flags & TT_PUSH_OPTIONS ? &options : NULL;
	if (t && !err && !p->bad && bytes && !(back = tt_scratch_take(&t->job->scratch, bytes)))
		err = tt_table_refuse(t, from->rank, flags, o, -ENOMEM);
	else if (t && !err && !p->bad)
		err = take(t, from, p, flags, slot, o, range, back);
	if (!p->bad)
		answer_push(t, from, number, err, flags, back, bytes);
	if (back)
		tt_scratch_give(&t->job->scratch, back, bytes);
}
