/* table_serve.c - a server's shard, and the pushes that come in for it */
#include "table.h"
#include <stdlib.h>
#include <string.h>

/* ---- the shard ---- */

static struct tt_pusher *pusher_of(struct tt_shard *s, int rank)
{
	if (!s->pushers[rank] && (s->pushers[rank] = calloc(1, sizeof *s->pushers[rank])))
		s->pushers[rank]->err = -EINVAL; /* until its first piece comes */
	return s->pushers[rank];
}

/* All ranks that the job was started with are waited for, also while they have not opened the table yet. */
static int count_in(struct tutti_table *t, int rank, uint64_t *pushed)
{
	struct tt_pusher *p = pusher_of(&t->shard, rank);
	int err;

	if (!p)
		return tt_fail(-ENOMEM, "no memory for the pushers of the table \"%s\"", t->name);
	if (p->counted || !tt_table_has_worker(t, rank))
		return 0;
	if ((err = tt_rounds_join(t->shard.rounds, rank, pushed)))
		return err;
	p->counted = true;
	return 0;
}

int tt_table_expect(struct tutti_table *t)
{
	uint64_t pushed;
	int err = 0;

	for (int i = 0; !err && i < t->job->launched; i++)
		if (t->job->members[i].state < TT_LEFT)
			err = count_in(t, i, &pushed);
	return err;
}

int tt_table_serve(struct tutti_table *t)
{
	struct tt_range mine = tt_table_range(t, t->mine);
	struct tt_shard *s = &t->shard;
	int err;

	s->table = t;
	s->workers = t->job->launched;
	s->pushers = calloc((size_t)t->job->capacity, sizeof *s->pushers);
	if (!s->pushers)
		return tt_fail(-ENOMEM, "no memory for the pushers of %d ranks", t->job->capacity);
	err = tutti_alloc(t->job->all, tt_version_bytes(t), -1, (void **)&s->memory);
	if (!err)
		err = tt_updater_open(&t->updater, t->type, (size_t)mine.count, s->workers, &s->updater);
	if (!err)
		err = tt_rounds_open(&t->as, t->job->launched, &s->rounds);
	if (!err)
		err = tt_version_open(t);
	if (err)
		return err;
	s->values = s->memory + TT_SHARD_HEAD;
	((struct tt_shard_head *)s->memory)->print = t->print;
	return 0;
}

void tt_table_unserve(struct tutti_table *t)
{
	struct tt_shard *s = &t->shard;

	for (int i = 0; s->pushers && i < t->job->capacity; i++) /* what they had mapped is the wire's */
		free(s->pushers[i]);
	free(s->pushers);
	tt_version_close(s);
	tt_rounds_close(s->rounds);
	tt_updater_close(s->updater);
	tutti_free(t->job->all, s->memory);
	*s = (struct tt_shard){ 0 };
}

/* Workers that come later find the values as they are. */
static int know_worker(struct tutti_table *t, int worker)
{
	struct tt_shard *s = &t->shard;
	int err = 0;

	if (worker < s->workers)
		return 0;
	if (worker >= t->job->capacity)
		return -EINVAL;
	if ((err = tt_updater_join(s->updater, worker + 1)))
		return err;
	for (; s->workers <= worker; s->workers++)
		tt_updater_assigned(s->updater, s->workers, s->values, 0, (size_t)tt_table_range(t, t->mine).count);
	return 0;
}

int tt_table_admit(struct tutti_table *t, int rank, uint64_t *pushed)
{
	int err = know_worker(t, rank);

	*pushed = 0;
	if (!err && !(err = count_in(t, rank, pushed)))
		t->shard.pushers[rank]->met = true;
	return err;
}

/* ---- pushes ---- */

static void move_clock(struct tutti_table *t)
{
	if (tt_table_in_rounds(t))
		tt_version_round(t);
	else
		tt_table_tell(t);
}

/* What it had begun ends here: each piece that has come is in. */
void tt_table_dismiss(struct tutti_table *t, int rank)
{
	struct tt_pusher *p = t->shard.pushers[rank];

	if (!p)
		return;
	p->err = -EINVAL;
	p->mapped = NULL;
	if (p->half) {
		t->shard.half--;
		p->half = p->dropped = false;
		tt_version_pushed(t);
	}
	if (p->counted) {
		p->counted = false;
		p->asked = false;
		if (tt_rounds_leave(t->shard.rounds, rank))
			move_clock(t);
		tt_table_look_at_switch(t);
	}
}

static void end(struct tutti_table *t, struct tt_pusher *p, int worker, unsigned flags)
{
	bool counts = p->half && !p->dropped && !(flags & TT_PUSH_ASSIGN);

	t->shard.half -= p->half;
	p->half = false;
	tt_version_pushed(t);
	if (counts && tt_rounds_complete(t->shard.rounds, worker))
		move_clock(t);
}

static int begin(struct tutti_table *t, struct tt_pusher *p, int worker, unsigned flags, const tutti_update *options)
{
	int err;

	if (p->half)
		end(t, p, worker, 0); /* it was given up */
	t->shard.half++;
	p->half = true;
	p->dropped = false;
	if (flags & TT_PUSH_ASSIGN)
		return 0;
	if (!p->counted)
		return -EPERM;
	switch (tt_rounds_begin(t->shard.rounds, worker)) {
	case TT_DROP: p->dropped = true; return 0;
	case TT_WAIT: return -EPROTO; /* it would have, until it was told */
	case TT_ADMIT: break;
	}
	if (tt_table_in_rounds(t))
		return tt_version_begin(t, options, &p->push);
	err = know_worker(t, options && options->set & TUTTI_SET_WORKER ? options->worker : worker);
	return err ? err : tt_updater_begin(t->shard.updater, worker, options, &p->push);
}

static void assign(struct tutti_table *t, size_t at, size_t count, const void *values)
{
	char *w;

	if (tt_table_in_rounds(t))
		tt_version_settle(t);
	tt_version_touch(t, at, count);
	w = t->shard.values + at * t->width;
	memcpy(w, values, count * t->width);
	tt_updater_assigned(t->shard.updater, -1, w, at, count);
}

static void apply(struct tutti_table *t, const struct tt_pusher *p, size_t at, size_t count, const void *delta)
{
	char *w = t->shard.values + at * t->width;

	tt_version_touch(t, at, count);
	if (tt_table_in_rounds(t))
		tt_version_sum(t, &p->push, at, count, delta);
	else
		tt_updater_apply(&p->push, at, count, &(struct tt_piece){ .to = w, .w = w, .d = delta });
}

int tt_table_apply(struct tutti_table *t, int worker, unsigned flags, const tutti_update *options, struct tt_range range, const void *delta)
{
	size_t at = (size_t)(range.first - tt_table_range(t, t->mine).first), count = (size_t)range.count;
	struct tt_pusher *p = t->shard.pushers[worker];
	int err;

	if (!p)
		return -EINVAL; /* it has not joined */
	if (flags & TT_PUSH_FIRST && (p->err = begin(t, p, worker, flags, options)))
		end(t, p, worker, flags); /* no more of it comes, and nobody is to wait for it */
	if (!p->err && flags & TT_PUSH_ASSIGN)
		assign(t, at, count, delta);
	else if (!p->err && !p->dropped)
		apply(t, p, at, count, delta);
	err = p->err;
	if (flags & TT_PUSH_LAST)
		end(t, p, worker, flags);
	return err;
}

/* ---- messages ---- */

static void get_options(struct tt_pack *p, tutti_update *u)
{
	double *numbers[] = { &u->scale, &u->learning_rate, &u->weight_decay, &u->momentum, &u->rho, &u->lambda, &u->beta1, &u->beta2, &u->epsilon,
		              &u->alpha, &u->beta, &u->l1, &u->l2 };

	*u = (tutti_update){ .size = sizeof *u, .set = tt_get32(p), .worker = (int)tt_get32(p) };
	for (size_t i = 0; i < TT_COUNT(numbers); i++) {
		uint64_t bits = tt_get64(p);
		memcpy(numbers[i], &bits, sizeof bits);
	}
}

void tt_table_put_options(struct tt_pack *p, const tutti_update *u)
{
	const double numbers[] = { u->scale, u->learning_rate, u->weight_decay, u->momentum, u->rho, u->lambda, u->beta1, u->beta2, u->epsilon,
		                   u->alpha, u->beta, u->l1, u->l2 };

	tt_put32(p, u->set);
	tt_put32(p, (uint32_t)u->worker);
	for (size_t i = 0; i < TT_COUNT(numbers); i++) {
		uint64_t bits;
		memcpy(&bits, &numbers[i], sizeof bits);
		tt_put64(p, bits);
	}
}

struct tutti_table *tt_table_find(struct tt_job *job, uint64_t uid)
{
	tt_list_each(node, &job->tables) {
		struct tutti_table *t = tt_container_of(node, struct tutti_table, link);
		if (t->shard.memory && ((const struct tt_shard_head *)t->shard.memory)->uid == uid)
			return t;
	}
	return NULL;
}

/* The delta of this whole shard, in the worker's memory. */
static int map_delta(struct tutti_table *t, struct tt_member *from, struct tt_pack *p)
{
	struct tt_pusher *pusher = t->shard.pushers[from->rank];
	struct tt_key key;

	tt_get_key(p, &key);
	if (!pusher)
		return -EINVAL; /* it has not joined */
	p->bad |= key.len != tt_table_range(t, t->mine).count * t->width;
	pusher->mapped = p->bad ? NULL : tt_member_net(from)->transport->map(from->link->peer, &key, 0);
	return pusher->mapped || p->bad ? 0 : -EOPNOTSUPP;
}

/* Where a piece lies. NULL: nowhere. */
static const char *bytes_of(const struct tutti_table *t, const struct tt_member *from, struct tt_pack *p, unsigned slot, struct tt_range range)
{
	const struct tt_pusher *pusher = t->shard.pushers[from->rank];
	size_t len = (size_t)range.count * t->width;

	if (slot == TT_NO_SLOT)
		return tt_pack_left(p) == len ? (const char *)tt_pack_take(p, len) : NULL;
	if (slot == TT_IN_PLACE)
		return pusher && pusher->mapped ? pusher->mapped + (size_t)(range.first - tt_table_range(t, t->mine).first) * t->width : NULL;
	return slot < TT_FEED_SLOTS && from->inbox && len <= TT_PUSH_PIECE ? from->inbox + (size_t)slot * TT_PUSH_PIECE : NULL;
}

static bool is_within(const struct tutti_table *t, struct tt_range range)
{
	struct tt_range mine = tt_table_range(t, t->mine);

	return range.first >= mine.first && range.count <= mine.count && range.first - mine.first <= mine.count - range.count;
}

static int take(struct tutti_table *t, struct tt_member *from, struct tt_pack *p, unsigned flags, unsigned slot, const tutti_update *options,
                struct tt_range range)
{
	struct tt_pusher *pusher = t->shard.pushers[from->rank];
	size_t len = (size_t)range.count * t->width;
	const char *delta;
	void *copy = NULL;
	int err = 0;

	if (slot == TT_IN_PLACE && pusher && !pusher->mapped)
		return -EOPNOTSUPP; /* as its first piece */
	delta = bytes_of(t, from, p, slot, range);
	p->bad |= !delta;
	if (slot == TT_IN_PLACE && pusher && flags & TT_PUSH_LAST)
		pusher->mapped = NULL; /* its worker may take the memory back */
	if (delta && slot == TT_NO_SLOT && t->updater.rule == TUTTI_UPDATE_OWN) { /* behind the message's head it is not aligned */
		if (!(copy = tt_scratch_take(&t->job->scratch, len)))
			return -ENOMEM;
		delta = memcpy(copy, delta, len);
	}
	if (delta)
		err = tt_table_apply(t, from->rank, flags, options, range, delta);
	tt_scratch_give(&t->job->scratch, copy, len);
	return err;
}

void tt_table_push(struct tt_member *from, struct tt_pack *p)
{
	uint64_t uid = tt_get64(p);
	uint32_t number = tt_get32(p);
	unsigned flags = tt_get8(p), slot = tt_get8(p);
	struct tt_range range = { .first = tt_get64(p), .count = tt_get32(p) };
	struct tutti_table *t = tt_table_find(from->job, uid);
	tutti_update options;
	uint8_t answer[9];
	struct tt_pack a = tt_pack(answer, sizeof answer);
	int err = t ? 0 : -ESTALE;

	if (flags & TT_PUSH_OPTIONS)
		get_options(p, &options);
	if (t && !p->bad && slot == TT_IN_PLACE && flags & TT_PUSH_FIRST)
		err = map_delta(t, from, p);
	if (t && !err && !is_within(t, range))
		err = -ERANGE;
	if (t && !err && !p->bad)
		err = take(t, from, p, flags, slot, flags & TT_PUSH_OPTIONS ? &options : NULL, range);
	if (p->bad)
		return;
	tt_put8(&a, TT_PUSHED);
	tt_put32(&a, number);
	tt_put32(&a, (uint32_t)err);
	if (t && !err && flags & TT_PUSH_PULL && t->as.mode == TUTTI_ASYNC && !tt_table_is_large(t, t->mine))
		tt_send(from, answer, sizeof answer, t->shard.values, (size_t)tt_table_range(t, t->mine).count * t->width);
	else
		tt_send(from, answer, sizeof answer, NULL, 0);
}
