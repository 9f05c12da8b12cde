/* switch.c - changes a table's consistency between two steps
 *
 * Each worker asks the first server, and waits. A server switches when all workers that it counts have asked: then no
 * push is under way. When the first server has switched, each worker asks the other servers, which so switch, too. All
 * workers go on from one clock, the highest that a worker knows, so the clocks of all servers are equal from then on. A
 * server tells every rank that has joined.
 *
 *      CHANGE {uid, number, clock, consistency} --> server
 *      when all have asked                      <-- CHANGED {uid, number, errno, clock, consistency}
 *                                               -ETIMEDOUT: instead of the clock a rank that has not asked
 *
 * A worker whose time is over withdraws its request: the clock of a second CHANGE of that number says so. The server
 * answers each request once, so the worker learns which was first, the switch or the end of its patience. Since one
 * server decides, all workers learn the same, and what was withdrawn has changed nothing. A push withdraws its worker's
 * request, too. */
#include "table/table_private.h"
#include <string.h>

#define WITHDRAW UINT64_MAX /* instead of a clock */

void tt_table_put_consistency(struct tt_pack *p, const tutti_consistency *c)
{
	tt_put8(p, (uint8_t)c->mode);
	tt_put32(p, (uint32_t)c->staleness);
	tt_put32(p, (uint32_t)c->backup);
}

tutti_consistency tt_table_get_consistency(struct tt_pack *p)
{
	tutti_consistency c = { .mode = (tutti_mode)tt_get8(p) };

	c.staleness = (int)tt_get32(p);
	c.backup = (int)tt_get32(p);
	p->bad |= c.mode != TUTTI_ASYNC && c.mode != TUTTI_SSP && c.mode != TUTTI_BSP;
	p->bad |= c.staleness < 0 || c.backup < 0;
	return c;
}

static bool are_same(const tutti_consistency *a, const tutti_consistency *b)
{
	return a->mode == b->mode && a->staleness == b->staleness && a->backup == b->backup;
}

/* ---- the answer, at each rank that has joined ---- */
static void take_change(struct tutti_table *t, int server, uint32_t number, int err, uint64_t clock,
                        const tutti_consistency *as)
{
	struct tt_served *s = &t->source[server];

	if (number == t->changes) {
		s->changed = number;
		s->change_err = err;
		s->awaited = err == -ETIMEDOUT && clock - 1 < (uint64_t)t->job->size ? (int)clock - 1 : -1;
		t->job->engine.news = true;
	}
	if (err)
		return;
	s->as = *as;
	tt_table_forgive(t, server);
	s->pushed = clock;
	tt_table_clock(t, server, clock);
}

static void send_change(struct tutti_table *t, int rank, uint32_t number, int err, uint64_t clock)
{
	uint8_t bytes[40];
	struct tt_pack p = tt_pack(bytes, sizeof bytes);

	tt_put8(&p, TT_CHANGED);
	tt_put64(&p, t->source[t->mine].uid);
	tt_put32(&p, number);
	tt_put32(&p, (uint32_t)err);
	tt_put64(&p, clock);
	tt_table_put_consistency(&p, &t->shard.as);
	tt_send(tt_member(t->job, rank), bytes, (size_t)(p.at - bytes), NULL, 0);
}

/* ---- a server's side ---- */

/* A worker that has not asked, and has not given up either; -1: there is none. */
static int find_awaited(const struct tutti_table *t)
{
	for (int i = 0; i < t->job->size; i++) {
		const struct tt_pusher *p = t->shard.pushers[i];
		if (p && p->counted && !p->asked && !p->withdrew)
			return i;
	}
	return -1;
}

static void answer(struct tutti_table *t, int rank, uint32_t number, int err)
{
	uint64_t clock = err == -ETIMEDOUT ? (uint64_t)(find_awaited(t) + 1) : tt_version_clock(t);

	if (rank == t->job->rank)
		take_change(t, t->mine, number, err, clock, &t->shard.as);
	else
		send_change(t, rank, number, err, clock);
}

static bool all_have_asked(const struct tutti_table *t)
{
	bool any = false;

	for (int i = 0; i < t->job->size; i++) {
		const struct tt_pusher *p = t->shard.pushers[i];
		if (p && p->counted && !p->asked)
			return false;
		any |= p && p->asked;
	}
	return any;
}

/* Do all workers ask for the same, and is it possible? clock: the highest that one of them knows. */
static int judge(const struct tutti_table *t, tutti_consistency *to, uint64_t *clock)
{
	bool first = true;

	*clock = 0;
	for (int i = 0; i < t->job->size; i++) {
		const struct tt_pusher *p = t->shard.pushers[i];
		if (!p || !p->asked)
			continue;
		if (!first && !are_same(to, &p->wants))
			return -EINVAL;
		*clock = tt_max(*clock, p->elsewhere);
		*to = p->wants;
		first = false;
	}
	return tt_table_can_be(t->updater.rule, t->flags, to);
}

void tt_table_look_at_switch(struct tutti_table *t)
{
	tutti_consistency to = { 0 };
	uint64_t clock;
	int err;

	if (!all_have_asked(t))
		return;
	if (!(err = judge(t, &to, &clock)))
		err = tt_version_switch(t, &to, clock);
	for (int i = 0; i < t->job->size; i++) {
		struct tt_pusher *p = t->shard.pushers[i];
		if (p && p->met && (p->asked || !err))
			answer(t, i, p->asked ? p->number : 0, err);
		if (p)
			p->asked = p->withdrew = false;
	}
}

void tt_table_withdraw(struct tutti_table *t, int rank, int err)
{
	struct tt_pusher *p = t->shard.pushers[rank];

	if (!p || !p->asked)
		return;
	p->asked = false;
	p->withdrew = err == -ETIMEDOUT;
	answer(t, rank, p->number, err);
}

static void take_request(struct tutti_table *t, int rank, uint32_t number, uint64_t clock, const tutti_consistency *to)
{
	struct tt_pusher *p = t->shard.pushers[rank];

	if (clock == WITHDRAW) {
		tt_table_withdraw(t, rank, -ETIMEDOUT);
		return;
	}
	if (!p || !p->counted) {
		answer(t, rank, number, -EPERM);
		return;
	}
	p->asked = true;
	p->withdrew = false;
	p->number = number;
	p->elsewhere = clock;
	p->wants = *to;
	tt_table_look_at_switch(t);
}

void tt_table_take_switch(struct tt_member *from, struct tt_pack *p)
{
	uint64_t uid = tt_get64(p);
	uint32_t number = tt_get32(p);
	uint64_t clock = tt_get64(p);
	struct tutti_table *t = tt_table_find(from->job, uid);
	tutti_consistency to = tt_table_get_consistency(p);

	p->bad |= clock > INT64_MAX && clock != WITHDRAW;
	if (t && !p->bad)
		take_request(t, from->rank, number, clock, &to);
}

/* ---- a worker's side ---- */

void tt_table_take_switched(struct tt_member *from, struct tt_pack *p)
{
	int i, err;
	struct tutti_table *t = tt_table_find_served(from, tt_get64(p), &i);
	uint32_t number = tt_get32(p);
	uint64_t clock;
	tutti_consistency as;

	err = (int)tt_get32(p);
	clock = tt_get64(p);
	as = tt_table_get_consistency(p);
	p->bad |= err > 0 || err < -4095 || clock > INT64_MAX;
	if (t && !p->bad)
		take_change(t, i, number, err, clock, &as);
}

static bool is_gone(const struct tutti_table *t, int i)
{
	return t->source[i].clock == UINT64_MAX || tt_member(t->job, t->server[i])->state >= TT_LEFT;
}

/* The highest of this rank's pushes and the servers' clocks: pushes of ranks that are gone may have moved a clock. */
static uint64_t farthest(const struct tutti_table *t)
{
	uint64_t most = 0;

	for (int i = 0; i < t->servers; i++)
		if (tt_table_has_any(t, i) && t->source[i].as.mode != TUTTI_ASYNC && !is_gone(t, i))
			most = tt_max(most, tt_max(t->source[i].pushed, t->source[i].clock));
	return most;
}

static void ask(struct tutti_table *t, int i, uint64_t clock, const tutti_consistency *to)
{
	uint8_t bytes[32];
	struct tt_pack p = tt_pack(bytes, sizeof bytes);

	if (i == t->mine) {
		take_request(t, t->job->rank, t->changes, clock, to);
		return;
	}
	tt_put8(&p, TT_CHANGE);
	tt_put64(&p, t->source[i].uid);
	tt_put32(&p, t->changes);
	tt_put64(&p, clock);
	tt_table_put_consistency(&p, to);
	tt_send(tt_member(t->job, t->server[i]), bytes, (size_t)(p.at - bytes), NULL, 0);
}

struct request { /* to servers from .. end - 1 */
	struct tutti_table *table;
	int from, end;
};

static bool is_open(const struct tutti_table *t, int i)
{
	return tt_table_has_any(t, i) && t->source[i].changed != t->changes && !is_gone(t, i);
}

static bool is_answered(void *arg)
{
	const struct request *r = arg;

	for (int i = r->from; i < r->end; i++)
		if (is_open(r->table, i))
			return false;
	return true;
}

/* No server is asked twice: it may have answered already. */
static void ask_open(const struct request *r, uint64_t clock, const tutti_consistency *to)
{
	struct tutti_table *t = r->table;

	for (int i = r->from; i < r->end; i++) {
		if (!is_open(t, i) || (t->source[i].asked == t->changes) != (clock == WITHDRAW))
			continue;
		t->source[i].asked = t->changes;
		ask(t, i, clock, to);
	}
}

static int explain(const struct tutti_table *t, int err, const char *who)
{
	switch (err) {
	case -ETIMEDOUT:
		return tt_fail(err, "table \"%s\": given up after %llu ms: %s asked for another consistency", t->name,
		               tt_timeout_ms(t), who);
	case -EBUSY:
		return tt_fail(err, "table \"%s\": calls of this rank are under way: its consistency changes between "
		               "steps", t->name);
	case -EINVAL: return tt_fail(err, "table \"%s\": its workers asked for different consistencies", t->name);
	default: return tt_fail(err, "table \"%s\": its consistency cannot be changed: %s", t->name, strerror(-err));
	}
}

static int answer_of(const struct tutti_table *t, int i)
{
	const struct tt_member *m = tt_member(t->job, t->server[i]);
	const struct tt_served *s = &t->source[i];
	char who[128] = "not all of its workers";

	if (m->state >= TT_LEFT)
		return tt_fail(m->err, "table \"%s\": its consistency cannot be changed: %s", t->name, m->why);
	if (is_gone(t, i))
		return tt_fail(-ESTALE, "table \"%s\": %s has closed it: close yours and open it again", t->name,
		               tt_member_label(m).text);
	if (s->changed != t->changes)
		return explain(t, -ETIMEDOUT, who);
	if (s->change_err && s->awaited >= 0)
		snprintf(who, sizeof who, "%s has not", tt_member_label(tt_member(t->job, s->awaited)).text);
	return s->change_err ? explain(t, s->change_err, who) : 0;
}

static void say_awaited(void *arg)
{
	tt_log(TT_WARN, "table \"%s\": its consistency changes when all of its workers have asked for that, and some "
	       "have not", ((const struct request *)arg)->table->name);
}

static int ask_some(struct tutti_table *t, int from, int end, uint64_t clock, const tutti_consistency *to)
{
	struct request r = { t, from, end };
	int err = 0;

	ask_open(&r, clock, to);
	err = tt_await(t->job, &t->handle.users, is_answered, &r, t->timeout, say_awaited);
	if (err && err != -ETIMEDOUT)
		return err;
	if (err) {
		ask_open(&r, WITHDRAW, to);
		tt_wait_until(t->job, is_answered, &r, tt_now() + t->timeout);
	}
	err = 0;
	for (int i = from; !err && i < end; i++)
		if (tt_table_has_any(t, i))
			err = answer_of(t, i);
	return err;
}

/* A call that was interrupted leaves its request: the next call for the same consistency goes on with it. */
static void begin_request(struct tutti_table *t, const tutti_consistency *to)
{
	struct request r = { t, 0, t->servers };

	if (t->change_stands && are_same(&t->wanted, to))
		return;
	if (t->change_stands)
		ask_open(&r, WITHDRAW, &t->wanted);
	t->changes++;
	t->wanted = *to;
}

static int ask_all(struct tutti_table *t, const tutti_consistency *to)
{
	uint64_t clock = farthest(t);
	int err;

	begin_request(t, to);
	err = ask_some(t, 0, 1, clock, to); /* the first server has rows: see tt_shards_cut() */
	if (!err)
		err = ask_some(t, 1, t->servers, tt_max(clock, t->source[0].pushed), to);
	t->change_stands = err == -EINTR;
	return err;
}

/* Abandoned pushes count, too: a push that a server hears of after CHANGE would withdraw the request. */
static bool pushes_nothing(void *arg) { return !tt_table_is_pushed(arg); }

int tutti_table_switch(tutti_table *t, const tutti_consistency *to)
{
	int err = tt_usable(tt_job_of(t));

	if (err || (err = tt_given(to, "tutti_table_switch: consistency")) || (err = tt_consistency_check(to)) ||
	    (err = tt_table_can_be(t->updater.rule, t->flags, to)))
		return err;
	if (!t->works)
		return tt_fail(-EPERM, "table \"%s\": its workers choose its consistency, and this rank is none or has "
		               "finished", t->name);
	if ((err = tt_begin(t->job)))
		return err;
	err = tt_table_is_called(t) ? -ETIMEDOUT :
	      tt_wait_for(t->job, &t->handle.users, pushes_nothing, t, tt_now() + t->timeout);
	if (err == -ETIMEDOUT)
		err = explain(t, -EBUSY, "");
	else if (!err)
		err = ask_all(t, to);
	tt_unlock(t->job);
	return err;
}
