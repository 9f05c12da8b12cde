/* table_call.c - a worker's pushes and pulls
 *
 * A call has a part for each server, which is gated until the server's clock has come far enough. A pull's part is one GET then. A push's
 * part waits in the feed of its server, which sends its pieces one after the other: so many as there are slots and answers outstanding. Parts
 * of one feed go in the order of the calls; so do those to this rank's own shard, a piece in each turn. A part ends when nothing holds its
 * memory any more; the call ends with its last part.
 *
 * Whether a server can map a delta shows in its answer to the first piece: until then nothing follows, so that a push which then
 * goes by slots is still in its place. */
#include "table.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SNAPSHOT_TRIES = 16 };

/* ---- ends ---- */

static bool snap_again(struct tt_table_call *);
static void tell_versions(const struct tt_table_call *);

static void end_call(struct tt_table_call *c)
{
	struct tt_request *r = c->request;
	int err = 0;

	for (int i = 0; i < c->table->servers && !err; i++)
		if ((err = c->part[i].err) && !c->starved)
			r->rank = c->part[i].member->rank; /* whom the sentence is about */
	if (c->versions && !err && tt_table_in_rounds(c->table) && snap_again(c)) {
		if (!c->left)
			end_call(c);
		return;
	}
	if (c->versions && !err)
		tell_versions(c);
	if (!err && c->list && c->list->how_many)
		*c->list->how_many = c->list->found;
	for (int i = 0; err && c->values && i < c->table->servers; i++)
		c->table->source[i].blank = true; /* it may believe that this rank has seen what did not come */
	tt_list_remove(&c->link);
	r->call = NULL;
	free(c->list);
	free(c);
	tt_request_end(r, err);
}

void tt_call_end_part(struct tt_call_part *p)
{
	p->ended = true;
	if (!--p->call->left)
		end_call(p->call);
}

static void end_part_with(struct tt_call_part *p, int err)
{
	p->err = err;
	tt_call_end_part(p);
}

static char *values_of(const struct tt_call_part *p) { return p->call->values + (size_t)p->range.first * p->call->table->width; }
static size_t bytes_of(const struct tt_call_part *p) { return (size_t)p->range.count * p->call->table->width; }

/* ---- pulls ---- */

static void come_to_gate(struct tt_call_part *);

/* In rounds: this rank's own pushes keep the version from being written over, but not those of others. */
static bool may_be_torn(const struct tt_call_part *p)
{
	const struct tutti_table *t = p->call->table;

	return tt_table_in_rounds(t) && (t->as.backup || t->source[p->server].pushed >= p->version + 2);
}

static bool is_whole(const struct tt_call_part *p) { return p->head.writing < p->version + 2; }

static void get(struct tt_call_part *p, void *to, size_t len, size_t offset, void (*done)(struct tt_post *, int err))
{
	struct tt_op *op = &p->get.op;

	p->get = (struct tt_post){ .done = done };
	op->kind = TT_GET;
	op->local = to;
	op->len = len;
	op->offset = offset;
	p->err = tt_window_post(p->call->table->window, p->member->rank, &p->get);
	if (p->err)
		tt_call_end_part(p);
}

static void checked(struct tt_post *post, int err)
{
	struct tt_call_part *p = tt_container_of(post, struct tt_call_part, get);

	p->err = err;
	if (err || is_whole(p)) {
		tt_call_end_part(p);
		return;
	}
	p->pull_gate = p->version + 1;
	come_to_gate(p);
}

static void got(struct tt_post *post, int err)
{
	struct tt_call_part *p = tt_container_of(post, struct tt_call_part, get);

	p->err = err;
	if (!err && may_be_torn(p))
		get(p, &p->head, sizeof p->head, 0, checked);
	else
		tt_call_end_part(p);
}

static void pull_there(struct tt_call_part *p)
{
	const struct tutti_table *t = p->call->table;

	if (t->flags & TUTTI_TABLE_FRESH && !p->told) {
		tt_rows_tell(p); /* first: who reads now and says so later has not seen what came in between */
		return;
	}
	p->version = t->source[p->server].clock;
	get(p, values_of(p), bytes_of(p), tt_table_at(t, p->server, p->version), got);
}

/* ---- snapshots: the head, the version that it names, and the head again ---- */

static void snap(struct tt_call_part *);
static void snapped_head(struct tt_post *, int err);

static void snapped_again(struct tt_post *post, int err)
{
	struct tt_call_part *p = tt_container_of(post, struct tt_call_part, get);

	p->err = err;
	if (!err && !is_whole(p) && ++p->retries < SNAPSHOT_TRIES)
		snap(p);
	else if (!err && !is_whole(p))
		end_part_with(p, -EAGAIN);
	else
		tt_call_end_part(p);
}

static void snapped(struct tt_post *post, int err)
{
	struct tt_call_part *p = tt_container_of(post, struct tt_call_part, get);

	p->err = err;
	if (err)
		tt_call_end_part(p);
	else
		get(p, &p->head, sizeof p->head, 0, snapped_again);
}

static void snapped_head(struct tt_post *post, int err)
{
	struct tt_call_part *p = tt_container_of(post, struct tt_call_part, get);

	p->err = err;
	p->version = p->head.version;
	if (err)
		tt_call_end_part(p);
	else
		get(p, values_of(p), bytes_of(p), tt_table_version_at(p->call->table, p->server, p->version), snapped);
}

static void snap(struct tt_call_part *p)
{
	const struct tutti_table *t = p->call->table;

	if (p->server == t->mine)
		tt_call_queue_own(p);
	else
		get(p, &p->head, sizeof p->head, 0, snapped_head);
}

/* In rounds: of which version are all? Servers that are behind are asked again. False: all agree. */
static bool snap_again(struct tt_table_call *c)
{
	int n = c->table->servers;
	uint64_t newest = 0;
	bool again = false;

	for (int i = 0; i < n; i++)
		newest = c->part[i].version > newest ? c->part[i].version : newest;
	c->left++;
	for (int i = 0; i < n; i++) {
		struct tt_call_part *p = &c->part[i];
		if (!p->range.count || p->version == newest)
			continue;
		again = true;
		c->left++;
		p->ended = false;
		if (++p->retries < SNAPSHOT_TRIES)
			snap(p);
		else
			end_part_with(p, -EAGAIN);
	}
	c->left--;
	return again;
}

static void tell_versions(const struct tt_table_call *c)
{
	tutti_versions v = { .size = sizeof v, .oldest = UINT64_MAX };
	uint64_t now = tt_calendar(), born = UINT64_MAX;

	for (int i = 0; i < c->table->servers; i++) {
		const struct tt_call_part *p = &c->part[i];
		if (!p->range.count)
			continue;
		v.oldest = p->version < v.oldest ? p->version : v.oldest;
		v.newest = p->version > v.newest ? p->version : v.newest;
		v.retries += p->retries;
		if (p->version && p->head.born[p->version & 1] < born)
			born = p->head.born[p->version & 1];
	}
	v.age_ms = born < now ? (double)(now - born) / TT_MS : 0;
	*c->versions = v;
}

/* ---- pushes ---- */

static void begin_pull(struct tt_call_part *);

/* After all. Nothing of the feed was sent since. */
static void push_by_slots(struct tt_call_part *p)
{
	p->region = NULL;
	p->err = 0;
	p->sent = 0;
	p->member->feed->unmapped = true;
	tt_list_prepend(&p->member->feed->pushes.parts, &p->link);
}

/* A live server has some of it, and is to hear that no more comes: a round may wait for that. */
static bool is_cut_short(const struct tt_call_part *p)
{
	return p->err && p->err != -EOPNOTSUPP && !p->pulls && !p->closing && p->sent && p->sent < p->range.count && p->server != p->call->table->mine &&
	       p->member->state < TT_LEFT;
}

/* A push that was never sent does not count, so those behind it are one fewer. */
static void uncount(struct tt_call_part *p)
{
	struct tutti_table *t = p->call->table;

	if (p->pulls || p->call->flags & TT_PUSH_ASSIGN || !t->source[p->server].pushed)
		return;
	t->source[p->server].pushed--;
	tt_list_each(node, &t->gated) {
		struct tt_call_part *q = tt_container_of(node, struct tt_call_part, link);
		bool behind = q->server == p->server && tt_before(p->call->number, q->call->number);
		q->push_gate -= behind && q->push_gate;
		q->pull_gate -= behind && q->pull_gate;
	}
}

/* All pieces are out and nothing holds its memory, or it has failed. */
void tt_call_look_at(struct tt_call_part *p)
{
	if (p->held || p->ended || (!p->err && (p->asks || p->sent < p->range.count)))
		return;
	tt_list_remove(&p->link);
	if (is_cut_short(p)) {
		p->closing = true;
		tt_list_prepend(&p->member->feed->pushes.parts, &p->link);
		return;
	}
	if (p->region)
		p->region->net->transport->dereg(p->region);
	if (p->region && p->err == -EOPNOTSUPP && p->member->state < TT_LEFT) {
		push_by_slots(p);
		return;
	}
	p->region = NULL;
	if (p->err && !p->sent)
		uncount(p);
	if (!p->err && p->call->values && !p->pulled)
		p->err = p->call->gave_up;
	if (p->err || !p->call->values || p->pulled)
		tt_call_end_part(p);
	else if (p->pulls)
		p->call->kind->pulled(p);
	else
		begin_pull(p);
}

void tt_call_let_go(struct tt_call_part *p, int err)
{
	p->held--;
	p->err = p->err ? p->err : err;
	tt_call_look_at(p);
}

static void settle(struct tt_slot *s)
{
	if (!s->putting && !s->unanswered)
		s->part = NULL;
}

static struct tt_slot *free_slot(struct tt_feed *f)
{
	for (int i = 0; i < TT_FEED_SLOTS; i++)
		if (!f->slots[i].part)
			return &f->slots[i];
	return NULL;
}

static void put_done(struct tt_post *post, int err)
{
	struct tt_slot *s = tt_container_of(post, struct tt_slot, put);
	struct tt_call_part *p = s->part;

	s->putting = false;
	settle(s);
	tt_call_let_go(p, err);
	tt_feed_go_on(s->feed);
}

static int put(struct tt_feed *f, struct tt_slot *s, struct tt_call_part *p, const char *from, size_t len)
{
	struct tt_op *op = &s->put.op;
	int err;

	s->put = (struct tt_post){ .done = put_done };
	op->kind = TT_PUT;
	op->flags = TT_LAZY; /* the answer says more */
	op->local = (char *)(uintptr_t)from;
	op->len = len;
	op->offset = (uint64_t)(s - f->slots) * TT_PUSH_PIECE;
	err = tt_window_post(p->call->table->job->outbox, f->member->rank, &s->put);
	if (err)
		return err;
	s->part = p;
	s->feed = f;
	s->putting = true;
	p->held++;
	return s->put.op.err; /* it failed before any wire saw it: put_done() comes all the same */
}

static bool is_large(const struct tt_call_part *p) { return tt_table_is_large(p->call->table, p->server); }

static void say(struct tt_feed *f, struct tt_call_part *p, uint64_t count, struct tt_slot *s, const char *from)
{
	const struct tt_table_call *c = p->call;
	struct tutti_table *t = c->table;
	struct tt_elements e = { 0 };
	uint8_t head[TT_PUSH_HEAD];
	struct tt_pack h = tt_pack(head, sizeof head);
	unsigned flags = c->flags | (p->sent ? 0 : TT_PUSH_FIRST) | (p->sent + count == p->range.count ? TT_PUSH_LAST : 0);

	if (!(flags & TT_PUSH_FIRST))
		flags &= ~(unsigned)TT_PUSH_OPTIONS;
	if (c->values && t->as.mode == TUTTI_ASYNC && !(t->flags & TUTTI_TABLE_FRESH) && !is_large(p) && !tt_window_is_mapped(t->window, f->member->rank))
		flags |= TT_PUSH_PULL; /* one trip instead of two; where memory is mapped, the GET is none */
	if (from)
		tt_table_pack(t, from, (size_t)count, c->flags & TT_PUSH_ASSIGN ? 0 : t->limit, &e);
	flags |= e.copy ? TT_SPARSE : 0;
	tt_put8(&h, TT_PUSH);
	tt_put64(&h, t->source[p->server].uid);
	tt_put32(&h, c->number);
	tt_put8(&h, (uint8_t)flags);
	tt_put8(&h, p->region ? TT_IN_PLACE : s ? (uint8_t)(s - f->slots) : TT_NO_SLOT);
	tt_put64(&h, p->range.first + p->sent);
	tt_put32(&h, (uint32_t)count);
	if (flags & TT_PUSH_OPTIONS)
		tt_table_put_options(&h, &c->options);
	if (p->region && flags & TT_PUSH_FIRST)
		tt_put_key(&h, &p->region->key);
	tt_lane_post(&f->pushes, (struct tt_sent){ .part = p, .slot = s ? (int)(s - f->slots) : -1 });
	f->trial = p->region && flags & TT_PUSH_FIRST ? p : f->trial;
	if (s)
		s->unanswered = true;
	p->sent += count;
	tt_send(f->member, head, (size_t)(h.at - head), e.at, e.bytes);
	tt_elements_free(t, &e);
}

/* Or there is nothing of it here, but it counts. */
void tt_call_say_no_more(struct tt_feed *f, struct tt_call_part *p)
{
	const struct tt_table_call *c = p->call;
	unsigned flags = (p->sent ? c->flags & TT_PUSH_ASSIGN : c->flags | TT_PUSH_FIRST) | TT_PUSH_LAST;
	uint8_t head[TT_PUSH_HEAD];
	struct tt_pack h = tt_pack(head, sizeof head);

	tt_put8(&h, TT_PUSH);
	tt_put64(&h, c->table->source[p->server].uid);
	tt_put32(&h, c->number);
	tt_put8(&h, (uint8_t)flags);
	tt_put8(&h, TT_NO_SLOT);
	tt_put64(&h, tt_table_range(c->table, p->server).first);
	tt_put32(&h, 0);
	if (flags & TT_PUSH_OPTIONS)
		tt_table_put_options(&h, &c->options);
	tt_lane_post(&f->pushes, (struct tt_sent){ .part = p, .slot = -1 });
	tt_send(f->member, head, (size_t)(h.at - head), NULL, 0);
}

/* False: not now. */
static bool send_piece(struct tt_feed *f, struct tt_call_part *p)
{
	const struct tutti_table *t = p->call->table;
	bool by_slots = is_large(p) && !p->region;
	struct tt_slot *s = by_slots ? free_slot(f) : NULL;
	uint64_t n = tt_min(p->range.count - p->sent, TT_PUSH_PIECE / t->width);
	const char *from = p->call->delta + (size_t)(p->range.first + p->sent) * t->width;

	if (by_slots && !s)
		return false;
	if (s)
		p->err = put(f, s, p, from, (size_t)n * t->width);
	if (p->err)
		tt_call_look_at(p);
	else
		say(f, p, n, s, is_large(p) ? NULL : from);
	return true;
}

void tt_lane_post(struct tt_lane *l, struct tt_sent sent)
{
	l->sent[l->posted++ % TT_FEED_DEPTH] = sent;
	sent.part->held++;
}

static bool has_sent_all(const struct tt_call_part *p)
{
	return p->closing ? p->held > 0 : p->err || (!p->asks && p->sent == p->range.count);
}

/* The next one that has something to send, if that may go. */
static struct tt_call_part *next_part(struct tt_lane *l)
{
	while (!tt_list_empty(&l->parts)) {
		struct tt_call_part *p = tt_container_of(l->parts.next, struct tt_call_part, link);
		if (!has_sent_all(p))
			return l->posted - l->answered < TT_FEED_DEPTH ? p : NULL;
		tt_list_remove(&p->link); /* it ends when it is answered */
	}
	return NULL;
}

static bool send_push(struct tt_feed *f, struct tt_call_part *p)
{
	if (!p->closing)
		return p->call->kind->send(f, p);
	tt_call_say_no_more(f, p);
	return true;
}

void tt_feed_go_on(struct tt_feed *f)
{
	struct tt_call_part *p;

	while (!f->trial && (p = next_part(&f->pushes)) && send_push(f, p))
		continue;
	while ((p = next_part(&f->pulls)))
		tt_rows_ask(f, p);
}

/* To which message it is the answer needs no saying: they come in the order of the messages. */
bool tt_lane_answered(struct tt_lane *l, uint32_t number, struct tt_sent *sent)
{
	if (l->posted == l->answered || l->sent[l->answered % TT_FEED_DEPTH].part->call->number != number)
		return false;
	*sent = l->sent[l->answered++ % TT_FEED_DEPTH];
	sent->part->call->answers++;
	return true;
}

static void free_slot_of(struct tt_feed *f, const struct tt_sent *s)
{
	if (s->slot < 0)
		return;
	f->slots[s->slot].unanswered = false;
	settle(&f->slots[s->slot]);
}

/* Those of a whole shard, behind the answer. False: nobody asked for so many. */
static bool take_values(struct tt_call_part *p, struct tt_pack *pack)
{
	size_t width = p->call->table->width, len = (size_t)p->range.count * width;

	pack->bad |= !p->call->values || tt_pack_left(pack) != len;
	if (pack->bad)
		return false;
	memcpy(p->call->values + (size_t)p->range.first * width, tt_pack_take(pack, len), len);
	p->pulled = true;
	return true;
}

void tt_table_pushed(struct tt_member *from, struct tt_pack *pack)
{
	uint32_t number = tt_get32(pack);
	int err = (int)tt_get32(pack);
	struct tt_feed *f = from->feed;
	struct tt_sent s;

	if (from->state >= TT_LEFT)
		return; /* it was told so already */
	pack->bad |= !f || err > 0 || err < -4095 || (!pack->bad && !tt_lane_answered(&f->pushes, number, &s));
	if (pack->bad)
		return;
	if (tt_pack_left(pack) && !take_values(s.part, pack))
		err = -EPROTO;
	f->trial = f->trial == s.part ? NULL : f->trial;
	free_slot_of(f, &s);
	tt_call_let_go(s.part, err);
	tt_feed_go_on(f);
}

static struct tt_feed *feed_of(struct tt_member *m)
{
	if (m->feed || !(m->feed = calloc(1, sizeof *m->feed)))
		return m->feed;
	m->feed->member = m;
	tt_list_init(&m->feed->pushes.parts);
	tt_list_init(&m->feed->pulls.parts);
	return m->feed;
}

struct tt_feed *tt_feed_to(struct tt_call_part *p)
{
	struct tt_feed *f = feed_of(p->member);

	p->err = !f ? -ENOMEM : p->member->state >= TT_LEFT ? p->member->err : 0;
	if (!p->err)
		return f;
	tt_call_end_part(p);
	return NULL;
}

/* On one host, if the delta lies in memory that others can map. */
static void offer_in_place(struct tt_feed *f, struct tt_call_part *p)
{
	const struct tutti_table *t = p->call->table;
	struct tt_member *m = p->member;
	struct tt_mem mem;

	if (!is_large(p) || f->unmapped || !tt_window_is_mapped(t->window, m->rank))
		return; /* where I can map its memory, it can map mine */
	mem = tt_mem_of((char *)(uintptr_t)p->call->delta + (size_t)p->range.first * t->width, (size_t)p->range.count * t->width);
	if (mem.fd < 0)
		return;
	if (tt_member_net(m)->transport->reg(tt_member_net(m), &mem, 1, &p->region))
		p->region = NULL; /* by slots, then */
}

static void push_there(struct tt_call_part *p)
{
	struct tt_feed *f = tt_feed_to(p);

	if (!f)
		return;
	offer_in_place(f, p);
	tt_list_append(&f->pushes.parts, &p->link);
	tt_feed_go_on(f);
}

/* ---- this rank's own shard ---- */

static uint64_t push_piece_here(struct tt_call_part *p)
{
	const struct tt_table_call *c = p->call;
	struct tutti_table *t = c->table;
	uint64_t n = tt_min(p->range.count - p->sent, TT_PUSH_PIECE / t->width);
	unsigned flags = c->flags | (p->sent ? 0 : TT_PUSH_FIRST) | (p->sent + n == p->range.count ? TT_PUSH_LAST : 0);

	p->err = tt_table_apply(t, t->job->rank, flags, c->flags & TT_PUSH_OPTIONS ? &c->options : NULL, (struct tt_range){ p->range.first + p->sent, n },
	                        c->delta + (size_t)(p->range.first + p->sent) * t->width);
	return n;
}

static uint64_t pull_piece_here(struct tt_call_part *p)
{
	const struct tutti_table *t = p->call->table;
	uint64_t n = tt_min(p->range.count - p->sent, TT_PUSH_PIECE / t->width);

	size_t at = p->call->versions ? tt_table_version_at(t, t->mine, p->version) : tt_table_at(t, t->mine, p->version);

	memcpy(values_of(p) + (size_t)p->sent * t->width, t->shard.memory + at + (size_t)p->sent * t->width, (size_t)n * t->width);
	return n;
}

/* What it has read may have been written over between two turns, as in any other server's shard. */
static void look_at_own_pull(struct tt_call_part *p)
{
	const struct tutti_table *t = p->call->table;

	if (p->sent < p->range.count)
		return;
	tt_list_remove(&p->link);
	p->head = *(const struct tt_shard_head *)(const void *)t->shard.memory;
	if ((!tt_table_in_rounds(t) && !p->call->versions) || is_whole(p))
		tt_call_end_part(p);
	else if (++p->retries < SNAPSHOT_TRIES || !p->call->versions)
		begin_pull(p);
	else
		end_part_with(p, -EAGAIN);
}

/* Before it reads any, like pull_there(). */
static void tell_own(struct tt_call_part *p)
{
	struct tutti_table *t = p->call->table;

	if (p->pulls && !p->sent && t->shard.fresh)
		p->err = tt_table_find_fresh(t, t->job->rank, tt_rows_pull_flags(p) | TT_PULL_ALL, &p->cursor, NULL, 0, &(size_t){ 0 });
}

static void serve_piece(struct tt_call_part *p)
{
	tell_own(p);
	p->sent += p->pulls ? pull_piece_here(p) : push_piece_here(p);
	if (p->pulls)
		look_at_own_pull(p);
	else
		tt_call_look_at(p);
}

static void serve_own(struct tutti_table *t);

static void take_turn(struct tt_timer *turn) { serve_own(tt_container_of(turn, struct tutti_table, own_turn)); }

/* The others' pieces go on between its own, and their pings are answered. */
static void serve_own(struct tutti_table *t)
{
	struct tt_call_part *p = tt_container_of(t->own.next, struct tt_call_part, link);

	if (tt_list_empty(&t->own) || (!p->pulls && !p->sent && t->shard.held))
		return;
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

/* From a turn of its own: what is done here may move the clock for which the next part waits. */
void tt_call_queue_own(struct tt_call_part *p)
{
	struct tutti_table *t = p->call->table;

	p->sent = 0;
	p->version = p->call->versions ? ((const struct tt_shard_head *)(const void *)t->shard.memory)->version : t->source[p->server].clock;
	if (tt_list_empty(&t->own))
		tt_timer_start(t->job, &t->own_turn, tt_now(), take_turn);
	tt_list_append(&t->own, &p->link);
}

/* ---- gates ---- */

static uint64_t gate_of(const struct tt_call_part *p) { return p->pulls ? p->pull_gate : p->push_gate; }

/* It waits for no clock, so it asks which version is the newest. */
static bool reads_alone(const struct tutti_table *t, const struct tt_table_call *c)
{
	return c->versions || (tt_table_in_rounds(t) && !t->works && !c->list);
}

static void let_in(struct tt_call_part *p)
{
	const struct tutti_table *t = p->call->table;

	if (t->source[p->server].clock == UINT64_MAX) {
		p->err = p->member->state >= TT_LEFT ? p->member->err : -ESTALE;
		tt_call_end_part(p);
	} else if (p->pulls && reads_alone(t, p->call))
		snap(p);
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

	p->gated = t->source[p->server].clock < gate_of(p);
	if (p->gated)
		tt_list_append(&t->gated, &p->link);
	else
		let_in(p);
}

static void begin_pull(struct tt_call_part *p)
{
	p->pulls = true;
	p->sent = 0;
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
	tt_list_each(node, &t->gated) {
		struct tt_call_part *p = tt_container_of(node, struct tt_call_part, link);
		if (p->server != server || s->clock < gate_of(p))
			continue;
		leave_gate(p);
		let_in(p);
	}
}

static void turn_back(struct tt_call_part *p, int err)
{
	leave_gate(p);
	uncount(p);
	p->err = err;
	tt_call_end_part(p);
}

/* The sentence for who waits in vain. */
static void explain_gate(const struct tt_call_part *p)
{
	struct tt_table_call *c = p->call;
	struct tutti_table *t = c->table;

	snprintf(t->stuck, sizeof t->stuck, "the clock of the table \"%.60s\" at rank %d is at %llu, and must come to %llu: a worker does not push", t->name,
	         p->member->rank, (unsigned long long)t->source[p->server].clock, (unsigned long long)gate_of(p));
}

/* ---- servers that go ---- */

static void close_lane(struct tt_feed *f, struct tt_lane *l, int err)
{
	struct tt_list *node;

	while ((node = tt_list_pop(&l->parts))) {
		struct tt_call_part *p = tt_container_of(node, struct tt_call_part, link);
		p->err = p->err ? p->err : err;
		tt_call_look_at(p);
	}
	while (l->answered != l->posted) {
		struct tt_sent s = l->sent[l->answered++ % TT_FEED_DEPTH];
		free_slot_of(f, &s);
		tt_call_let_go(s.part, err);
	}
}

/* Its answers do not come any more. PUTs end by themselves. */
void tt_table_member_down(struct tt_member *m, int err)
{
	struct tt_feed *f = m->feed;

	tt_table_filer_down(m, err);
	if (!f)
		return;
	f->trial = NULL;
	close_lane(f, &f->pushes, err);
	close_lane(f, &f->pulls, err);
}

/* ---- calls ---- */

/* Of a pull in steps that heartbeats alone do not make. */
static uint64_t steps_of(const struct tt_call_part *p)
{
	return p->ended ? 1 : p->get.done && p->member->link ? p->member->link->peer->received / TT_PUSH_INLINE : 0;
}

uint64_t tt_call_progress(const struct tt_table_call *c)
{
	uint64_t n = c->answers;

	for (int i = 0; i < c->table->servers; i++)
		n += steps_of(&c->part[i]);
	return n;
}

bool tt_call_waits_for(const struct tt_table_call *c, int rank)
{
	for (int i = 0; i < c->table->servers; i++)
		if (!c->part[i].ended && !c->part[i].gated && c->part[i].member->rank == rank && i != c->table->mine)
			return true;
	return false;
}

static struct tt_table_call *first_call(const struct tutti_table *t)
{
	tt_list_each(node, &t->job->calls) {
		struct tt_table_call *c = tt_container_of(node, struct tt_table_call, link);
		if (c->table == t)
			return c;
	}
	return NULL;
}

bool tt_table_is_called(const struct tutti_table *t) { return first_call(t); }

static void give_up_part(struct tt_call_part *p, int err)
{
	struct tt_feed *f = p->member->feed;
	struct tutti_table *t = p->call->table;

	if (p->gated) {
		if (err == -ETIMEDOUT)
			explain_gate(p);
		turn_back(p, err);
		return;
	}
	if (p->ended || (p->pulls && !p->call->list) || p->server == t->mine || has_sent_all(p))
		return; /* all of it is on its way */
	p->err = p->err ? p->err : err;
	tt_call_look_at(p);
	if (f) /* rows that are mapped need none */
		tt_feed_go_on(f);
}

void tt_call_give_up(struct tt_table_call *c, int err)
{
	int n = c->table->servers;

	if (c->given_up)
		return;
	c->given_up = tt_now();
	c->gave_up = err;
	c->left++; /* or the last part would take the call along */
	for (int i = 0; i < n; i++) {
		c->starved |= c->part[i].gated && err == -ETIMEDOUT;
		give_up_part(&c->part[i], err);
	}
	if (c->starved)
		c->request->what = c->table->stuck;
	if (!--c->left)
		end_call(c);
}

bool tt_call_is_overdue(const struct tt_table_call *c) { return c->given_up && tt_now() - c->given_up > c->table->job->deadline; }

/* They have had a whole deadline. */
void tt_table_give_up(struct tutti_table *t)
{
	struct tt_table_call *c;

	while ((c = first_call(t)))
		tt_request_give_up(c->request);
}

struct tt_table_call *tt_call_new(struct tutti_table *t, const struct tt_call_kind *kind, const void *delta, void *values, const tutti_update *options)
{
	struct tt_table_call *c = calloc(1, sizeof *c + (size_t)t->servers * sizeof *c->part);

	if (!c)
		return NULL;
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
		c->part[i].member = &t->job->members[t->server[i]];
		c->part[i].range = tt_table_range(t, i);
		tt_list_init(&c->part[i].link);
	}
	return c;
}

static void count_push(struct tt_call_part *p)
{
	struct tutti_table *t = p->call->table;
	struct tt_served *s = &t->source[p->server];

	if (p->call->delta && !(p->call->flags & TT_PUSH_ASSIGN)) {
		p->push_gate = tt_table_in_rounds(t) ? s->pushed : 0;
		s->pushed++;
	}
	if (t->works && !p->call->versions)
		p->pull_gate = tt_clock_to_pull(&t->as, s->pushed);
}

/* A push of rows, none of which is there: to a clock it is one. */
static bool counts_anyway(const struct tt_call_part *p)
{
	const struct tutti_table *t = p->call->table;

	return p->call->delta && p->call->list && t->as.mode != TUTTI_ASYNC && tt_table_has_any(t, p->server);
}

/* The others' shares first: they travel while this rank's own is looked after. */
static void begin_parts(struct tt_table_call *c)
{
	struct tutti_table *t = c->table;
	int n = t->servers, from = t->mine < 0 ? 0 : t->mine + 1;

	c->left++; /* or the last part would take the call along */
	for (int i = 0; i < n; i++) {
		struct tt_call_part *p = &c->part[(from + i) % n];
		p->pulls = !c->delta;
		p->closing = !p->range.count && counts_anyway(p);
		if (p->range.count || p->closing)
			count_push(p);
		if (p->range.count || p->closing)
			come_to_gate(p);
		else
			tt_call_end_part(p);
	}
	serve_own(t);
	if (!--c->left)
		end_call(c);
}

int tt_call_start(struct tt_table_call *c, const char *what, tutti_op *op)
{
	struct tutti_table *t = c->table;
	struct tt_job *job = t->job;
	tutti_op stack;

	tt_enter(job);
	struct tt_request *r = tt_request_begin(job, op, &stack, what, -1);
	c->number = ++t->calls;
	c->request = r;
	r->call = c;
	tt_list_append(&job->calls, &c->link);
	begin_parts(c);
	return tt_request_return(r, !op);
}

static const struct tt_call_kind of_all = { push_there, send_piece, pull_there, pull_there, serve_piece };

static int call(struct tutti_table *t, const char *what, const void *delta, void *values, unsigned flags, const tutti_update *options, tutti_op *op)
{
	struct tt_table_call *c;
	int err = tt_usable(t->job);

	if (err)
		return err;
	if (!(c = tt_call_new(t, &of_all, delta, values, options)))
		return tt_fail(-ENOMEM, "%s: no memory for a call to %d servers", what, t->servers);
	c->flags |= flags;
	return tt_call_start(c, what, op);
}

static bool copy_shard(struct tutti_table *t, int i, char *values)
{
	struct tt_range r = tt_table_range(t, i);
	size_t len = (size_t)r.count * t->width;
	const char *memory = i == t->mine ? t->shard.values : tt_window_hold(t->window, t->server[i]);

	if (!memory)
		return false;
	memcpy(values + (size_t)r.first * t->width, i == t->mine ? memory : memory + tt_table_at(t, i, t->source[i].clock), len);
	if (i != t->mine)
		tt_window_let_go(t->window, t->server[i]);
	return true;
}

/* Of a small table, if all of it is mapped and no server has to hear of it: a call costs several times as much. False: it takes one. Not
 * tt_enter(): nobody looks at the nets here, and the background thread is to. */
static bool pull_at_once(struct tutti_table *t, char *values)
{
	struct tt_range last = tt_table_range(t, t->servers - 1);
	struct tt_gate *gate = &t->job->engine.gate;
	bool done;

	if ((last.first + last.count) * t->width > TT_PUSH_INLINE || t->flags & TUTTI_TABLE_FRESH)
		return false;
	tt_gate_enter(gate);
	done = t->as.mode == TUTTI_ASYNC && tt_list_empty(&t->job->calls);
	for (int i = 0; i < t->servers && done; i++)
		done = !tt_table_range(t, i).count || copy_shard(t, i, values);
	tt_gate_leave(gate);
	return done;
}

static int check(const struct tutti_table *t, const char *what, const void *memory)
{
	if (t->flags & TUTTI_TABLE_KEYS)
		return tt_fail(-ENOTSUP, "%s: table \"%s\" has keys, not a fixed number of elements: push and pull those that you mean", what, t->name);
	if (memory)
		return 0;
	return tt_fail(-EINVAL, "%s: table \"%s\" has %llu elements, and the memory given for them is NULL", what, t->name,
	               (unsigned long long)(t->count * t->row));
}

int tt_call_may_push(const struct tutti_table *t, const char *what)
{
	if (t->finished)
		return tt_fail(-EPERM, "%s: this rank has finished with the table \"%s\"", what, t->name);
	if (!t->works)
		return tt_fail(-EPERM, "%s: rank %d is no worker of the table \"%s\": see tutti_table_config.worker", what, t->job->rank, t->name);
	return 0;
}

static int check_push(const struct tutti_table *t, const char *what, const void *delta)
{
	int err = tt_call_may_push(t, what);

	return err ? err : check(t, what, delta);
}

int tutti_table_push(tutti_table *t, const void *delta, const tutti_update *options, tutti_op *op)
{
	int err = check_push(t, "table push", delta);

	if (err || (err = tt_update_check(&t->updater, options)))
		return err;
	return call(t, "table push", delta, NULL, 0, options, op);
}

int tutti_table_pull(tutti_table *t, void *values, tutti_op *op)
{
	int err = check(t, "table pull", values);

	if (err || (err = tt_usable(t->job)))
		return err;
	return !op && pull_at_once(t, values) ? 0 : call(t, "table pull", NULL, values, 0, NULL, op);
}

int tutti_table_push_pull(tutti_table *t, const void *delta, const tutti_update *options, void *values, tutti_op *op)
{
	int err = check_push(t, "table push and pull", delta && values ? values : NULL);

	if (!err && tt_updater_gives_back(&t->updater))
		return tt_fail(-ENOTSUP, "table push and pull: not for the rule %s yet: push, then pull", tt_update_name(t->updater.rule));
	if (err || (err = tt_update_check(&t->updater, options)))
		return err;
	return call(t, "table push and pull", delta, values, 0, options, op);
}

int tutti_table_snapshot(tutti_table *t, void *values, tutti_versions *versions, tutti_op *op)
{
	int err = check(t, "table snapshot", values);

	if (err || (err = tt_usable(t->job)))
		return err;
	if (!(t->flags & TUTTI_TABLE_SNAPSHOTS) && !tt_table_in_rounds(t))
		return tt_fail(-EINVAL, "table snapshot: the table \"%s\" keeps no versions: open it with TUTTI_TABLE_SNAPSHOTS, or in rounds", t->name);
	if (versions && versions->size != sizeof *versions)
		return tt_fail(-EINVAL, "tutti_versions.size is %zu, and must be sizeof(tutti_versions), %zu", versions->size, sizeof *versions);
	struct tt_table_call *c = tt_call_new(t, &of_all, NULL, values, NULL);
	if (!c)
		return tt_fail(-ENOMEM, "table snapshot: no memory for a call to %d servers", t->servers);
	c->versions = versions ? versions : &c->unwanted;
	return tt_call_start(c, "table snapshot", op);
}

int tutti_table_assign(tutti_table *t, const void *values, tutti_op *op)
{
	int err = check(t, "table assign", values);

	return err ? err : call(t, "table assign", values, NULL, TT_PUSH_ASSIGN, NULL, op);
}
