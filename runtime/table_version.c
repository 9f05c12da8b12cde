/* table_version.c - versions of a shard, which stay as they are while they are read
 *
 * What is pushed in a round is summed up apart. When the round has closed, the rule takes the newest version and the sum, and writes the
 * next version over the one before, piece by piece, so that nothing else has to stand still while it does: whoever has pushed k times reads
 * version k, and version k + 2 needs two more pushes of his.
 *
 *   pushes --> sum --.
 *   version k --------+--> version k + 1 (where k - 1 was); the sum is 0 again
 *
 * Without rounds pushes change the values in place. Where snapshots are wanted, a version is copied from them now and then, from a moment
 * at which no push is half applied on. It is copied a piece in each turn; who is about to change a piece that is not there yet copies it
 * before. */
#include "table_save.h"
#include <stdlib.h>
#include <string.h>

static struct tt_shard_head *head_of(const struct tt_shard *s) { return (struct tt_shard_head *)s->memory; }
static uint64_t count_of(const struct tutti_table *t) { return tt_table_range(t, t->mine).count; }

bool tt_version_is_kept(const struct tutti_table *t) { return t->flags & TUTTI_TABLE_SNAPSHOTS || tt_shard_in_rounds(t); }
static bool copies(const struct tutti_table *t) { return t->flags & TUTTI_TABLE_SNAPSHOTS && !tt_shard_in_rounds(t); }

size_t tt_version_bytes(const struct tutti_table *t)
{
	return t->mine < 0 ? 0 : TT_SHARD_HEAD + 3 * tt_table_copy(t, t->mine); /* what is not used stays untouched, and costs nothing */
}

static size_t piece_of(const struct tutti_table *t) { return TT_PUSH_PIECE / t->width; }

int tt_version_open(struct tutti_table *t)
{
	const tutti_updater add = { .size = sizeof add };
	struct tt_shard *s = &t->shard;

	if (copies(t) && !s->next.made && !(s->next.made = calloc((size_t)(count_of(t) / piece_of(t)) + 1, 1)))
		return tt_fail(-ENOMEM, "no memory for the versions of the table \"%s\"", t->name);
	if (!tt_shard_in_rounds(t) || s->sum)
		return 0;
	if (!(s->sum = calloc(tt_table_copy(t, t->mine) + 1, 1)))
		return tt_fail(-ENOMEM, "no memory for the rounds of the table \"%s\"", t->name);
	return tt_updater_open(&add, t->type, (size_t)count_of(t), 1, &s->adder);
}

void tt_version_close(struct tt_shard *s)
{
	tt_timer_stop(&s->next.turn);
	tt_updater_close(s->adder);
	free(s->next.made);
	free(s->sum);
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
	return version <= h->version && h->writing < version + 2 ? t->shard.memory + tt_table_at(t, t->mine, version) : NULL;
}

/* ---- the open round ---- */

static double scale_of(const struct tutti_table *t, const tutti_update *o)
{
	o = o && o->set & TUTTI_SET_SCALE ? o : &t->updater.defaults;
	return o->set & TUTTI_SET_SCALE && t->updater.rule != TUTTI_UPDATE_OWN ? o->scale : 1;
}

int tt_version_begin(struct tutti_table *t, const tutti_update *options, struct tt_push *push)
{
	struct tt_next *n = &t->shard.next;
	tutti_update scale = { .size = sizeof scale, .set = TUTTI_SET_SCALE, .scale = scale_of(t, options) };
	int err = tt_update_check(&t->updater, options);

	if (!err)
		err = tt_updater_begin(t->shard.adder, 0, scale.scale == 1 ? NULL : &scale, push);
	if (err || n->opened)
		return err;
	n->opened = true;
	n->options = options ? *options : (tutti_update){ .size = sizeof n->options };
	n->options.set &= ~(unsigned)TUTTI_SET_WORKER;
	n->options.worker = 0;
	return 0;
}

void tt_version_sum(struct tutti_table *t, const struct tt_push *push, size_t at, size_t count, const void *delta)
{
	char *sum = t->shard.sum + at * t->width;

	tt_table_update(t, push, at, count, &(struct tt_piece){ .to = sum, .w = sum, .d = delta });
}

/* ---- the next version ---- */

static char *place_of_next(const struct tutti_table *t) { return t->shard.memory + tt_table_version_at(t, t->mine, head_of(&t->shard)->writing); }

static void copy_piece(struct tutti_table *t, size_t i)
{
	struct tt_shard *s = &t->shard;
	size_t first = i * piece_of(t), count = tt_min((size_t)count_of(t) - first, piece_of(t));

	if (!s->next.made[i])
		memcpy(place_of_next(t) + first * t->width, s->values + first * t->width, count * t->width);
	s->next.made[i] = true;
}

static void make_piece(struct tutti_table *t)
{
	struct tt_shard *s = &t->shard;
	struct tt_next *n = &s->next;
	size_t count = tt_min((size_t)(count_of(t) - n->at), piece_of(t)), at = (size_t)n->at * t->width;

	if (copies(t)) {
		copy_piece(t, (size_t)n->at / piece_of(t));
	} else {
		if (s->image)
			tt_image_keep(s->image, (size_t)n->at, count);
		tt_table_update(t, &n->push, (size_t)n->at, count, &(struct tt_piece){ .to = place_of_next(t) + at, .w = s->values + at, .d = s->sum + at });
		memset(s->sum + at, 0, count * t->width);
	}
	n->at += count;
}

static void publish(struct tutti_table *t)
{
	struct tt_shard *s = &t->shard;

	s->next.busy = s->next.opened = false;
	if (tt_shard_in_rounds(t))
		s->values = place_of_next(t);
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

static void go_on(struct tutti_table *t)
{
	make_piece(t);
	if (t->shard.next.at < count_of(t))
		tt_timer_start(t->job, &t->shard.next.turn, tt_now(), take_turn);
	else
		publish(t);
}

static void start(struct tutti_table *t)
{
	struct tt_shard *s = &t->shard;

	s->next.at = 0;
	s->next.busy = true;
	__atomic_store_n(&head_of(s)->writing, head_of(s)->version + 1, __ATOMIC_RELEASE);
	__atomic_thread_fence(__ATOMIC_SEQ_CST); /* before any of it */
	go_on(t);
}

void tt_version_round(struct tutti_table *t)
{
	struct tt_shard *s = &t->shard;
	struct tt_next *n = &s->next;

	tt_updater_begin(s->updater, 0, n->opened ? &n->options : NULL, &n->push); /* these were looked at before */
	if (t->updater.rule != TUTTI_UPDATE_OWN)
		n->push.factors.scale = 1; /* it is in the sum */
	start(t);
}

void tt_version_settle(struct tutti_table *t)
{
	struct tt_next *n = &t->shard.next;

	if (!n->busy)
		return;
	tt_timer_stop(&n->turn);
	while (n->at < count_of(t))
		make_piece(t);
	publish(t);
}

/* ---- without rounds ---- */

static uint64_t due_at(const struct tutti_table *t)
{
	const struct tt_next *n = &t->shard.next;

	return t->publish_pushes && n->since >= t->publish_pushes ? 0 : t->publish_ms ? n->begun + (uint64_t)t->publish_ms * TT_MS : UINT64_MAX;
}

static void take_due_turn(struct tt_timer *turn)
{
	struct tt_next *n = tt_container_of(turn, struct tt_next, turn);

	tt_version_look(tt_container_of(n, struct tt_shard, next)->table);
}

/* The end of the last push that is half applied comes by here, too. */
void tt_version_look(struct tutti_table *t)
{
	struct tt_next *n = &t->shard.next;
	uint64_t now = tt_now(), due = due_at(t);

	if (!copies(t) || n->busy || !n->since || t->shard.half || t->shard.held)
		return;
	if (due > now) {
		if (due != UINT64_MAX)
			tt_timer_start(t->job, &n->turn, due, take_due_turn);
		return;
	}
	n->since = 0;
	n->begun = now;
	memset(n->made, 0, (size_t)(count_of(t) / piece_of(t)) + 1);
	start(t);
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
	if (!copies(t) || !t->shard.next.busy)
		return;
	for (size_t i = at / piece_of(t); i * piece_of(t) < at + count; i++)
		copy_piece(t, i);
}

/* ---- from one to the other ---- */

static void move_values(struct tutti_table *t, char *to)
{
	struct tt_shard *s = &t->shard;

	if (s->keys)
		return; /* their values are elsewhere */
	if (s->values != to)
		memcpy(to, s->values, (size_t)count_of(t) * t->width);
	s->values = to;
}

/* Where the new consistency expects them, under the version or clock that all start from. */
static void place_values(struct tutti_table *t, uint64_t clock)
{
	struct tt_shard *s = &t->shard;

	if (tt_shard_in_rounds(t)) {
		head_of(s)->version = head_of(s)->writing = clock;
		move_values(t, s->memory + tt_table_at(t, t->mine, clock));
		return;
	}
	move_values(t, s->memory + tt_table_at(t, t->mine, 0));
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
	if (t->shard.next.opened) /* a round that was not closed */
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
