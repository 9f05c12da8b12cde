/* call.c - what all of a worker's calls on a table have in common
 *
 * A call has one part for each server. A part waits at a gate until the server's clock is high enough. Then the
 * call's kind moves the data: dense.c, rows.c, pull_changed.c and snapshot.c each implement one. Parts for this
 * rank's own shard are processed in the order of the calls, one piece in each pass of the progress loop. A part ends
 * when no transport and no server uses its memory any more. A call ends with its last part. */
#include "table/table_private.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
	MAP_AGAIN_MS = 1000, /* A server that could not map a delta is not asked to for so long: it costs a trip. */
	WATCHES = 8,         /* of a server's messages, before a call waits in turns */
};

static void come_to_gate(struct tt_call_part *);
static void look_at_gates_soon(struct tutti_table *);

/* ---- pushes that were abandoned ---- */

/* Takes a push back from this rank's count at one server: later calls wait for a clock that is one lower. */
static void uncount(struct tt_call_part *p)
{
	struct tutti_table *t = p->call->table;

	p->counted = false;
	if (!t->source[p->server].pushed)
		return;
	t->source[p->server].pushed--;
	tt_each_of(struct tt_table_call, link, c, &tt_tables(t->job)->calls) {
		struct tt_call_part *q = &c->part[p->server];
		if (c->table != t || !tt_before(p->call->number, c->number))
			continue;
		q->push_gate -= q->push_gate > 0;
		q->pull_gate -= q->pull_gate > 0;
	}
	look_at_gates_soon(t);
}

static bool is_there(const struct tt_call_part *p)
{
	return p->call->table->source[p->server].clock != UINT64_MAX && p->member->state < TT_LEFT;
}

/* Sends the push without elements as soon as its round is open at that server. */
static void owe(struct tt_call_part *p)
{
	struct tt_table_call *c = p->call;

	c->left++;
	p->range.count = 0;
	p->err = 0;
	p->sent = 0;
	p->ended = false;
	p->closing = true;
	come_to_gate(p);
}

/* An abandoned push that one server knows counts at all servers, or their clocks would differ from then on. A push that
 * no server knows counts nowhere. */
static void settle_count(struct tt_table_call *c)
{
	bool said = false;

	c->given_up = 0;
	for (int i = 0; i < c->table->servers; i++)
		said |= c->part[i].counted && c->part[i].said && is_there(&c->part[i]);
	for (int i = 0; i < c->table->servers; i++) {
		struct tt_call_part *p = &c->part[i];
		if (!p->counted || p->said || !is_there(p))
			continue;
		if (said && c->table->source[i].as.mode != TUTTI_ASYNC && c->request)
			owe(p);
		else
			uncount(p);
	}
}

/* ---- ends ---- */

static tutti_stat_kind stat_of(const struct tt_table_call *c)
{
	if (c->versions)
		return TUTTI_STAT_SNAPSHOT;
	return !c->delta ? TUTTI_STAT_PULL : c->values ? TUTTI_STAT_PUSH_PULL : TUTTI_STAT_PUSH;
}

static size_t bytes_of(const struct tt_table_call *c)
{
	size_t bytes = 0;

	if (c->list && (c->list->fresh || c->list->unseen)) /* the parts' ranges do not say how many rows came */
		return c->list->found * tt_table_row_bytes(c->table);
	for (int i = 0; i < c->table->servers; i++)
		bytes += tt_call_bytes(&c->part[i]);
	return bytes;
}

static void unpin(struct tt_job *job, struct tt_table_call *c)
{
	for (int i = 0; i < 2; i++) {
		tt_unpin(job, c->pinned[i]);
		c->pinned[i] = NULL;
	}
}

static void free_call(struct tt_job *job, struct tt_table_call *c) /* its table may have gone */
{
	unpin(job, c);
	for (int i = 0; i < 2; i++)
		tt_shadow_close(&c->shadow[i]);
	tt_list_remove(&c->link);
	free(c->list);
	free(c);
}

void tt_call_free_all(struct tt_job *job)
{
	while (!tt_list_empty(&tt_tables(job)->calls))
		free_call(job, tt_container_of(tt_tables(job)->calls.next, struct tt_table_call, link));
}

static void free_over(struct tt_table_call *c)
{
	c->table->job->engine.news = true; /* tutti_table_finish() and others wait for abandoned calls, too */
	free_call(c->table->job, c);
}

/* Ends the call for the program, which owns its memory again. */
static void end_request(struct tt_table_call *c, int err)
{
	struct tt_operation *r = c->request;

	tt_stats_ended(&r->job->stats.own, stat_of(c), r->post.since, bytes_of(c), err);
	for (int i = 0; i < 2; i++)
		if (c->shadow[i].why && err == c->shadow[i].err)
			tt_operation_word(r, c->shadow[i].why);
	unpin(c->table->job, c);
	r->of = NULL;
	c->request = NULL;
	c->values = NULL;
	tt_operation_end(r, err);
}

/* Have all parts ended for good? False: some pull again. */
static bool is_over(struct tt_table_call *c, int *err)
{
	return !c->request || (!tt_call_again(c, err) && (!c->kind->ended || c->kind->ended(c, *err)));
}

static const struct tt_call_part *first_failed(const struct tt_table_call *c) /* NULL: none */
{
	for (int i = 0; i < c->table->servers; i++)
		if (c->part[i].err)
			return &c->part[i];
	return NULL;
}

/* The error's sentence names a rank. Not before the end: a call that goes on waits for several ranks. */
static void end_as(struct tt_table_call *c, int err)
{
	const struct tt_call_part *p = first_failed(c);

	if (p && !c->starved)
		c->request->rank = p->member->rank;
	end_request(c, err);
}

static void settle_landed(struct tt_shadow *s)
{
	struct tt_table_call *c = tt_container_of(s, struct tt_table_call, shadow[1]);

	end_as(c, s->err);
	if (!--c->left)
		free_over(c);
}

/* The values have come. A device's memory gets them from their shadow. */
static void land_and_end(struct tt_table_call *c, int err)
{
	int k = err || !c->values ? 1 : tt_shadow_land(&c->shadow[1], settle_landed);

	if (k)
		end_as(c, k < 0 ? k : err);
	else
		c->left++;
}

static void end_call(struct tt_table_call *c)
{
	const struct tt_call_part *p = c->request ? first_failed(c) : NULL;
	int err = p ? p->err : 0;

	c->left++;
	if (c->given_up && (c->keeping || err == -EAGAIN))
		err = c->gave_up;
	if (is_over(c, &err)) {
		tt_keep_end(c);
		settle_count(c);
		if (c->request)
			land_and_end(c, err);
	}
	if (!--c->left && c->request)
		end_call(c);
	else if (!c->left)
		free_over(c);
}

static void look_at_gates(struct tt_timer *timer)
{
	struct tutti_table *t = tt_container_of(timer, struct tutti_table, gate_turn);

	for (int i = 0; i < t->servers; i++)
		tt_table_clock(t, i, t->source[i].clock);
}

/* By a timer, since the caller may be called from a walk over t->gated. */
static void look_at_gates_soon(struct tutti_table *t)
{
	if (!tt_list_empty(&t->gated))
		tt_timer_start(t->job, &t->gate_turn, tt_now(), look_at_gates);
}

void tt_call_end_part(struct tt_call_part *p)
{
	p->ended = true;
	if (p->pulls)
		look_at_gates_soon(p->call->table); /* a push may wait for this pull: see is_read() */
	if (!--p->call->left)
		end_call(p->call);
}

void tt_call_end_with(struct tt_call_part *p, int err)
{
	p->err = err;
	tt_call_end_part(p);
}

void tt_call_get(struct tt_call_part *p, void *to, size_t len, size_t offset, void (*done)(struct tt_post *, int err))
{
	struct tt_op *op = &p->get.op;

	p->get = (struct tt_post){ .done = done, .pinned = p->call->pinned[1] };
	op->kind = TT_GET;
	op->local = to;
	op->len = len;
	op->offset = offset;
	p->err = tt_window_post(p->call->table->window, p->member->rank, &p->get);
	if (p->err)
		tt_call_end_part(p);
}

void tt_call_put_head(struct tt_pack *h, uint8_t type, const struct tt_call_part *p, unsigned flags)
{
	tt_put8(h, (uint8_t)type);
	tt_put64(h, p->call->table->source[p->server].uid);
	tt_put32(h, p->call->number);
	tt_put8(h, (uint8_t)flags);
}

bool tt_call_has_sent_all(const struct tt_call_part *p)
{
	return p->closing ? p->held > 0 : p->err || (!p->asks && p->sent == p->range.count);
}

/* The server could not map the delta: sends it again from its start. While the answer was outstanding nothing else was
 * sent (tt_send_queue.trial), so the order of pushes is kept. */
static void push_by_slots(struct tt_call_part *p)
{
	p->region = NULL;
	p->err = 0;
	p->sent = 0;
	p->said = false;
	tt_send_queue_of(p->member)->by_slots_until = tt_now() + MAP_AGAIN_MS * TT_MS;
	tt_list_prepend(&tt_send_queue_of(p->member)->pushes.parts, &p->link);
}

bool tt_call_is_cut_short(const struct tt_call_part *p)
{
	return p->err && p->err != -EOPNOTSUPP && !p->pulls && !p->closing && p->sent && p->sent < p->range.count &&
	       p->server != p->call->table->mine && p->member->state < TT_LEFT;
}
void tt_call_look_at(struct tt_call_part *p)
{
	if (p->held || p->ended || (!p->err && (p->asks || p->sent < p->range.count)))
		return;
	tt_list_remove(&p->link);
	if (tt_call_is_cut_short(p)) {
		p->closing = true;
		tt_list_prepend(&tt_send_queue_of(p->member)->pushes.parts, &p->link);
		return;
	}
	if (p->region)
		p->region->net->transport->dereg(p->region);
	if (p->region && p->err == -EOPNOTSUPP && p->member->state < TT_LEFT) {
		push_by_slots(p);
		return;
	}
	p->region = NULL;
	if (!p->err && p->call->values && !p->pulled)
		p->err = p->call->gave_up;
	if (p->err && !p->pulls && p->said && p->server == p->call->table->mine)
		tt_table_end_given_up(p->call->table, p->member->rank);
	if (p->err || !p->call->values || p->pulled || p->call->keeping)
		tt_call_end_part(p);
	else if (p->pulls)
		p->call->kind->pulled(p);
	else
		tt_call_pull(p);
}

void tt_call_let_go(struct tt_call_part *p, int err)
{
	p->held--;
	p->err = p->err ? p->err : err;
	tt_call_look_at(p);
}

/* ---- this rank's own shard ---- */

static void serve_own(struct tutti_table *t);

static void take_turn(struct tt_timer *timer) { serve_own(tt_container_of(timer, struct tutti_table, own_turn)); }

/* One piece in each pass of the progress loop: in between, other ranks' pieces are served and their pings answered. */
static void serve_own(struct tutti_table *t)
{
	struct tt_call_part *p = tt_container_of(t->own.next, struct tt_call_part, link);

	if (tt_list_empty(&t->own) || (!p->pulls && !p->sent && t->shard.held))
		return;
	p->said |= !p->pulls;
	p->call->kind->serve(p);
	if (tt_list_empty(&t->own))
		tt_timer_stop(&t->own_turn);
	else
		tt_timer_start(t->job, &t->own_turn, tt_now(), take_turn);
}

void tt_table_own_go_on(struct tutti_table *t)
{
	if (!tt_list_empty(&t->own))
		tt_timer_start(t->job, &t->own_turn, tt_now(), take_turn);
}

/* By a timer, since serving the part may move the clock, and the caller may be called from a walk over t->gated. */
void tt_call_queue_own(struct tt_call_part *p)
{
	struct tutti_table *t = p->call->table;

	p->sent = 0;
	if (p->call->versions && !p->keeps)
		p->version = ((const struct tt_shard_head *)(const void *)t->shard.memory)->version;
	if (tt_list_empty(&t->own))
		tt_timer_start(t->job, &t->own_turn, tt_now(), take_turn);
	tt_list_append(&t->own, &p->link);
}

/* ---- gates ---- */

static uint64_t gate_of(const struct tt_call_part *p) { return p->pulls ? p->pull_gate : p->push_gate; }

bool tt_call_is_kept(const struct tt_call_part *p)
{
	const struct tutti_table *t = p->call->table;

	return tt_served_in_rounds(t, p->server) && t->works && !t->source[p->server].as.backup && !p->call->versions;
}

/* Could this push close its round, and the new version overwrite one that an earlier call of this rank still reads? */
static bool is_read(const struct tt_call_part *push)
{
	const struct tutti_table *t = push->call->table;

	tt_each_of(const struct tt_table_call, link, c, &tt_tables(t->job)->calls) {
		const struct tt_call_part *p = &c->part[push->server];
		if (c == push->call)
			break; /* the rest of the list are later calls */
		if (c->table == t && c->values && (!p->ended || p->idle || p->err == -EAGAIN) && tt_call_is_kept(p) &&
		    p->pull_gate < push->push_gate + tt_table_is_touched(t))
			return true;
	}
	return false;
}

static bool has_to_wait(const struct tt_call_part *p)
{
	uint64_t clock = p->call->table->source[p->server].clock;

	return clock < gate_of(p) || (clock != UINT64_MAX && !p->pulls && is_read(p));
}

static uint64_t version_to_pull(const struct tt_call_part *p)
{
	if (p->keeps)
		return p->kept;
	return p->call->list || tt_call_is_kept(p) ? p->pull_gate : p->call->table->source[p->server].clock;
}

static void let_in(struct tt_call_part *p)
{
	const struct tutti_table *t = p->call->table;

	p->version = version_to_pull(p);
	if (t->source[p->server].clock == UINT64_MAX)
		tt_call_end_with(p, p->member->state >= TT_LEFT ? p->member->err : -ESTALE);
	else if (p->server == t->mine)
		tt_call_queue_own(p);
	else if (p->pulls)
		p->call->kind->pull(p);
	else
		p->call->kind->push(p);
}

static void come_to_gate(struct tt_call_part *p)
{
	struct tutti_table *t = p->call->table;

	p->gated = has_to_wait(p);
	if (p->gated)
		tt_list_append(&t->gated, &p->link);
	else
		let_in(p);
}

void tt_call_pull(struct tt_call_part *p)
{
	p->pulls = true;
	p->sent = 0;
	p->placed = 0;
	come_to_gate(p);
}

static void leave_gate(struct tt_call_part *p)
{
	p->gated = false;
	tt_list_remove(&p->link);
}

void tt_table_clock(struct tutti_table *t, int server, uint64_t clock)
{
	struct tt_served *s = &t->source[server];

	s->clock = clock > s->clock ? clock : s->clock;
	t->job->engine.news |= clock == UINT64_MAX; /* who waits for this server stops waiting */
	tt_each_of(struct tt_call_part, link, p, &t->gated) {
		if (p->server != server || has_to_wait(p))
			continue;
		leave_gate(p);
		let_in(p);
	}
}

static void turn_back(struct tt_call_part *p, int err)
{
	leave_gate(p);
	tt_call_end_with(p, err);
}

/* The server knows: its last PONG says it. */
static const char *who_is_slow(const struct tt_call_part *p, char text[TT_DOING])
{
	const struct tt_job *job = p->call->table->job;
	char name[64];

	*text = 0;
	if (p->member->rank == job->rank)
		tt_table_doing(job, text, TT_DOING);
	else if (p->member->doing)
		snprintf(text, TT_DOING, "%s", p->member->doing);
	snprintf(name, sizeof name, "its table \"%.40s\" waits", p->call->table->name);
	return strstr(text, name) ? text : "a worker does not push";
}

/* Words the error of a call that timed out at its gate. */
static void explain_gate(const struct tt_call_part *p)
{
	const struct tt_table_call *c = p->call;
	struct tutti_table *t = c->table;
	unsigned long long clock = t->source[p->server].clock, gate = gate_of(p);
	struct tt_label server = tt_member_label(p->member);
	char why[400], text[TT_DOING];
	int n = snprintf(why, sizeof why, "given up after %llu ms: ", tt_timeout_ms(t));

	if (clock >= gate)
		snprintf(why + n, sizeof why - (size_t)n, "this rank still pulls the version of the table "
		         "\"%.60s\" that its push would have %s write over", t->name, server.text);
	else
		snprintf(why + n, sizeof why - (size_t)n, "the clock of the table \"%.60s\" at %s is at "
		         "%llu, and must come to %llu: %s", t->name, server.text, clock, gate,
		         who_is_slow(p, text));
	tt_operation_word(c->request, why);
}

/* ---- calls ---- */

/* Of a GET under way: what its server has sent, in steps so large that heartbeats alone do not look like progress. */
static uint64_t steps_of(const struct tt_call_part *p)
{
	return p->ended ? 1 : p->get.done && p->member->link ? p->member->link->peer->received / TT_PUSH_INLINE : 0;
}

/* A number that changes whenever one of the call's servers has done something for it. */
static uint64_t progress(const struct tt_table_call *c)
{
	uint64_t n = c->answers;

	for (int i = 0; i < c->table->servers; i++)
		n += steps_of(&c->part[i]);
	return n;
}

static bool waits_for(const struct tt_operation *r, int rank)
{
	const struct tt_table_call *c = r->of;

	for (int i = 0; c->begun && i < c->table->servers; i++)
		if (!c->part[i].ended && c->part[i].member->rank == rank && i != c->table->mine)
			return true;
	return false;
}

static bool is_any(const struct tt_table_call *c) { return c; }
static bool is_awaited(const struct tt_table_call *c) { return c->request; }
static bool is_push(const struct tt_table_call *c) { return c->delta; }
static bool has_not_begun(const struct tt_table_call *c) { return !c->begun; }

static struct tt_table_call *find_call(const struct tutti_table *t, bool (*is)(const struct tt_table_call *))
{
	tt_each_of(struct tt_table_call, link, c, &tt_tables(t->job)->calls)
		if (c->table == t && is(c))
			return c;
	return NULL;
}

bool tt_table_is_called(const struct tutti_table *t) { return find_call(t, is_awaited); }
bool tt_table_is_pushed(const struct tutti_table *t) { return find_call(t, is_push); }

static void give_up_part(struct tt_call_part *p, int err)
{
	struct tt_send_queue *f = tt_send_queue_of(p->member);
	struct tutti_table *t = p->call->table;

	if (p->gated) {
		if (err == -ETIMEDOUT)
			explain_gate(p);
		turn_back(p, err);
		return;
	}
	if (p->ended || (p->pulls && !p->call->list) || p->server == t->mine || tt_call_has_sent_all(p))
		return; /* all is sent */
	p->err = p->err ? p->err : err;
	tt_call_look_at(p);
	if (f) /* NULL: the rows are copied from mapped memory */
		tt_send_queue_go_on(f);
}

static void withdraw(struct tt_table_call *, int err);

/* What has not been sent is not sent any more. What is on its way is answered by servers that live. */
static void give_up(struct tt_operation *r, int err)
{
	struct tt_table_call *c = r->of;
	int n = c->table->servers;

	if (c->given_up)
		return;
	c->given_up = tt_operations(r->job)->clock + 1;
	c->done_then = progress(c);
	c->gave_up = err;
	if (!c->begun) {
		withdraw(c, err);
		return;
	}
	tt_shadow_give_up(&c->shadow[1], err);
	c->left++; /* the call outlives its last part */
	for (int i = 0; i < n; i++) {
		c->starved |= c->part[i].gated && err == -ETIMEDOUT;
		give_up_part(&c->part[i], err);
	}
	if (!--c->left)
		end_call(c);
}

/* Was the call abandoned, and has no server done anything for it for TUTTI_SILENCE? */
static bool is_overdue(struct tt_table_call *c)
{
	uint64_t done = progress(c), now = tt_operations(c->table->job)->clock + 1;

	if (!c->given_up)
		return false;
	if (done != c->done_then) {
		c->done_then = done;
		c->given_up = now;
	}
	return now - c->given_up > c->table->job->silence;
}

void tt_call_held(struct tt_job *job, int rank)
{
	tt_each_of(struct tt_table_call, link, c, &tt_tables(job)->calls)
		for (int i = 0; i < c->table->servers; i++)
			c->answers += c->part[i].member->rank == rank && !c->part[i].ended && !c->part[i].gated;
}

static uint64_t quiet_for(const struct tt_member *m)
{
	const struct tt_send_queue *f = tt_send_queue_of(m);

	return f && f->held_since ? tt_now() - f->held_since : 0;
}

/* HELD counts as progress of the calls that wait, but not for ever. */
void tt_table_held(struct tt_member *from, struct tt_pack *p)
{
	struct tt_send_queue *f = tt_send_queue_of(from);

	(void)p;
	if (!f || f->pushes.posted == f->pushes.answered)
		return;
	f->held_since = f->held_since ? f->held_since : tt_now();
	if (quiet_for(from) < from->job->timeout)
		tt_call_held(from->job, from->rank);
}

void tt_call_uncount_all(struct tutti_table *t, int server)
{
	tt_each_of(struct tt_table_call, link, c, &tt_tables(t->job)->calls)
		if (c->table == t)
			c->part[server].counted = false;
}

void tt_table_forgive(struct tutti_table *t, int server)
{
	tt_each_of(struct tt_call_part, link, p, &t->gated)
		if (p->server == server && !p->call->request)
			turn_back(p, -ECANCELED);
}

static void drop_owed(struct tt_call_part *p)
{
	if (p->gated)
		turn_back(p, -ECANCELED);
	else if (p->server == p->call->table->mine) {
		tt_list_remove(&p->link);
		tt_call_end_with(p, -ECANCELED);
	} else
		tt_member_evict(p->member, -ETIMEDOUT, "%s was evicted: it has not answered within %llu ms",
		                tt_member_label(p->member).text, tt_timeout_ms(p->call->table));
}

static void drop_all_owed(struct tt_table_call *c)
{
	int i = -1;

	for (int left = c->left; left; left--) { /* the last part frees the call */
		while (c->part[++i].ended)
			continue;
		drop_owed(&c->part[i]);
	}
}

void tt_table_give_up(struct tutti_table *t)
{
	struct tt_table_call *c;

	while ((c = find_call(t, is_any)))
		if (c->request)
			tt_operation_cancel(c->request);
		else
			drop_all_owed(c);
}

struct tt_table_call *tt_call_new(struct tutti_table *t, const struct tt_call_kind *kind, const void *delta,
                                  void *values, const tutti_update *options)
{
	struct tt_table_call *c = calloc(1, sizeof *c + (size_t)t->servers * sizeof *c->part);

	if (!c)
		return NULL;
	tt_list_init(&c->link);
	c->table = t;
	c->kind = kind;
	c->delta = delta;
	c->values = values;
	c->flags = options ? TT_PUSH_OPTIONS : 0;
	if (options)
		c->options = *options;
	c->left = t->servers;
	for (int i = 0; i < t->servers; i++) {
		c->part[i].call = c;
		c->part[i].server = i;
		c->part[i].member = tt_member(t->job, t->server[i]);
		c->part[i].range = tt_table_range(t, i);
		tt_list_init(&c->part[i].link);
	}
	return c;
}

static size_t count_of(const struct tutti_table *t)
{
	struct tt_range last = tt_table_range(t, t->servers - 1);

	return (size_t)(last.first + last.count);
}

static size_t delta_bytes(const struct tt_table_call *c, size_t count)
{
	return count * tt_delta_width(c->table, c->flags);
}

/* Of the delta (0) or the values (1), which slots or GETs use. Rows travel in memory of the library's own. */
static size_t bytes_to_pin(const struct tt_table_call *c, int which)
{
	const struct tutti_table *t = c->table;
	size_t count = c->list ? 0 : count_of(t);
	bool by_slots = false;

	if (which)
		return c->values && (t->servers > 1 || t->mine < 0) ? count * t->width : 0;
	for (int i = 0; c->delta && i < t->servers; i++)
		by_slots |= i != t->mine && tt_table_is_large(t, i);
	return by_slots ? delta_bytes(c, count) : 0;
}

/* A dense call works in host memory. */
static int open_shadows(struct tt_table_call *c)
{
	size_t count = count_of(c->table);
	int err = 0;

	if (c->list)
		return 0;
	if (c->delta)
		err = tt_shadow_open(c->table->job, &c->shadow[0], (char *)(uintptr_t)c->delta, delta_bytes(c, count));
	if (!err && c->values)
		err = tt_shadow_open(c->table->job, &c->shadow[1], c->values, count * c->table->width);
	c->delta = c->delta ? c->shadow[0].memory : NULL;
	c->values = c->values ? c->shadow[1].memory : NULL;
	return err;
}

static int pin(struct tt_table_call *c)
{
	const void *const memory[] = { c->delta, c->values };
	int err = 0;

	for (int i = 0; !err && i < 2; i++)
		err = tt_pin(c->table->job, memory[i], bytes_to_pin(c, i), TT_PIN_READ, &c->pinned[i]);
	return err;
}

/* Pinning may take seconds. A thread that closes the table meanwhile waits. With the lock, on success. */
static int pin_and_lock(struct tt_table_call *c)
{
	struct tt_users *users = &c->table->handle.users;
	struct tt_job *job = c->table->job;
	int err, ends;

	if (!tt_pins(job, bytes_to_pin(c, 0), TT_PIN_READ) && !tt_pins(job, bytes_to_pin(c, 1), TT_PIN_READ))
		return tt_begin(job);
	if ((err = tt_users_enter(job, users)))
		return err;
	err = pin(c);
	if (!(ends = tt_users_lock(job, users)) && !err)
		return 0;
	unpin(job, c);
	tt_unlock(job);
	return ends ? ends : err;
}

static void count_push(struct tt_call_part *p)
{
	struct tutti_table *t = p->call->table;
	struct tt_served *s = &t->source[p->server];

	if (p->call->delta && !(p->call->flags & TT_PUSH_ASSIGN)) {
		t->change_stands = false; /* the server withdraws it */
		p->push_gate = tt_served_in_rounds(t, p->server) ? s->pushed : 0;
		s->pushed++;
		p->counted = true;
	}
	if (t->works && !p->call->versions)
		p->pull_gate = tt_clock_to_pull(&s->as, s->pushed);
}

/* A push of rows none of which this server has still counts for its clock. */
static bool counts_anyway(const struct tt_call_part *p)
{
	const struct tutti_table *t = p->call->table;

	return p->call->delta && !(p->call->flags & TT_PUSH_ASSIGN) && p->call->list &&
	       t->source[p->server].as.mode != TUTTI_ASYNC &&
	       tt_table_has_any(t, p->server);
}

static void count_pushes(struct tt_table_call *c)
{
	for (int i = 0; i < c->table->servers; i++) {
		struct tt_call_part *p = &c->part[i];
		p->pulls = !c->delta;
		p->closing = !p->range.count && counts_anyway(p);
		if (p->range.count || p->closing)
			count_push(p);
	}
}

static bool is_to_agree(const struct tt_call_part *p)
{
	return p->range.count && tt_served_in_rounds(p->call->table, p->server) && !tt_call_is_kept(p) &&
	       p->call->table->source[p->server].clock != UINT64_MAX;
}

void tt_call_agree(struct tt_table_call *c)
{
	uint64_t newest = 0;

	for (int i = 0; i < c->table->servers; i++)
		if (is_to_agree(&c->part[i]))
			newest = tt_max(newest, tt_max(c->part[i].pull_gate, c->table->source[i].clock));
	for (int i = 0; i < c->table->servers; i++)
		if (is_to_agree(&c->part[i]))
			c->part[i].pull_gate = newest;
}

/* Parts for other ranks begin first: they travel while this rank serves its own. err: none may begin. */
static void begin_parts(struct tt_table_call *c, int err)
{
	struct tutti_table *t = c->table;
	int n = t->servers, from = t->mine < 0 ? 0 : t->mine + 1;

	c->begun = true;
	c->left++; /* the call outlives its last part */
	for (int i = 0; i < n; i++) {
		struct tt_call_part *p = &c->part[(from + i) % n];
		if (p->ended)
			continue;
		if (err)
			tt_call_end_with(p, err);
		else if (p->range.count || p->closing)
			come_to_gate(p);
		else
			tt_call_end_part(p);
	}
	serve_own(t);
	if (!--c->left)
		end_call(c);
}

static void begin_calls(struct tutti_table *t);

static void begin_lifted(struct tt_shadow *s)
{
	begin_calls(tt_container_of(s, struct tt_table_call, shadow[0])->table);
}

/* Calls begin in their order, so a call behind one whose delta is still lifted waits, too. */
static void begin_calls(struct tutti_table *t)
{
	struct tt_table_call *c;
	int k;

	while ((c = find_call(t, has_not_begun)) && (k = tt_shadow_lift(&c->shadow[0], begin_lifted)))
		begin_parts(c, c->given_up ? c->gave_up : k < 0 ? k : 0);
}

static void withdraw(struct tt_table_call *c, int err)
{
	if (err == -ETIMEDOUT)
		tt_operation_word(c->request, "given up: the stream of a thread that pushes a GPU's memory has not "
		                              "come to that push");
	if (c->shadow[0].moving)
		tt_shadow_give_up(&c->shadow[0], err);
	else
		begin_parts(c, err);
}

static uint64_t count_progress(const struct tt_operation *r) { return r->of ? progress(r->of) : 0; }

static struct tt_member *find_overdue(struct tt_operation *r)
{
	for (int i = 0; is_overdue(r->of) && i < r->job->size; i++)
		if (tt_operation_concerns(r, i))
			return tt_member(r->job, i);
	return NULL;
}

static int explain(const struct tt_operation *r)
{
	const char *why =
		r->err == -EINVAL ? "refuses these options: there is no such worker, or not with this type" :
		r->err == -EPERM ? "takes no push of this rank: it has finished, or is no worker of the table" :
		r->err == -ESTALE ? "has closed the table, or was started anew: tutti_table_reopen goes on when it has "
		                    "opened it again" : NULL;

	if (r->rank < 0)
		return 0;
	struct tt_label server = tt_member_label(tt_member(r->job, r->rank));
	if (r->err == -EAGAIN)
		return tt_fail(r->err, "%s: the versions of %s come faster than they can be read: make fewer "
		               "(tutti_table_config.publish_ms), or try again", r->what, server.text);
	return why ? tt_fail(r->err, "%s: %s %s", r->what, server.text, why) : 0;
}

static const struct tt_operation_kind words = {
	.waits_for = waits_for,
	.progress = count_progress,
	.give_up = give_up,
	.holder = find_overdue,
	.explain = explain,
};

/* The server that the call waits for. NULL: none, or this rank's own part has pieces left, which turns serve. */
static const struct tt_member *awaited_server(const struct tt_table_call *c)
{
	const struct tt_member *m = NULL;

	for (int i = 0; i < c->table->servers; i++) {
		const struct tt_call_part *p = &c->part[i];
		if (p->ended)
			continue;
		if (i == c->table->mine || p->gated)
			return NULL;
		m = m ? m : p->member;
	}
	return m;
}

/* An answer that comes soon is seen in its server's own line, before a turn looks at everything else. */
static void watch_servers(const struct tt_operation *r)
{
	for (int i = 0; i < WATCHES && !r->ended; i++) {
		const struct tt_member *m = awaited_server(r->of);
		if (!m || m->state != TT_UP || !tt_watch(r->job, m->link->peer))
			return;
	}
}

int tt_call_start(struct tt_table_call *c, const char *what, tutti_op *op)
{
	struct tutti_table *t = c->table;
	struct tt_job *job = t->job;
	tutti_op stack;
	int err = open_shadows(c);

	if (err || (err = pin_and_lock(c))) {
		for (int i = 0; i < 2; i++)
			tt_shadow_drop(&c->shadow[i]);
		free(c->list);
		free(c);
		return err;
	}
	struct tt_operation *r = tt_operation_begin(job, op, &stack, what, -1);
	c->number = ++t->calls;
	c->request = r;
	c->blocks = !op;
	r->words = &words;
	r->timeout = t->timeout;
	r->of = c;
	tt_list_append(&tt_tables(job)->calls, &c->link);
	count_pushes(c);
	if (c->list && !c->delta)
		tt_call_agree(c);
	begin_calls(t);
	if (!op)
		watch_servers(r);
	return tt_operation_return(r, !op);
}

uint64_t tt_table_pushes(const struct tutti_table *t)
{
	uint64_t n = 0;

	tt_lock(t->job);
	for (int i = 0; i < t->servers; i++)
		n += t->source[i].pushed;
	tt_unlock(t->job);
	return n;
}

int tt_call_check_options(const struct tutti_table *t, const char *what, const tutti_update *options)
{
	int most = t->workers ? t->workers : tt_members(t->job)->capacity, err = tt_update_check(&t->updater, options);

	if (err || !options || options->worker < most)
		return err;
	return tt_fail(-EINVAL, "%s: table \"%s\" has no such worker as %d: give one below %d, or -1, the worker that "
	               "pushes", what, t->name, options->worker, most);
}

int tt_call_may_push(const struct tutti_table *t, const char *what)
{
	if (t->finished)
		return tt_fail(-EPERM, "%s: this rank has finished with the table \"%s\"", what, t->name);
	if (!t->works)
		return tt_fail(-EPERM, "%s: this rank is no worker of the table \"%s\": see tutti_table_config.worker",
		               what, t->name);
	return 0;
}
