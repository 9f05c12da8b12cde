/* send_queue.c - what this rank sends to a server of tables, and the server's answers
 *
 * One send queue for each server serves all tables. It has a lane for pushes and a lane for pulls of rows: the server
 * answers the messages of a lane in their order. Pieces of large pushes are put into slots in the server's memory.
 * Parts are sent in the order of their calls. A piece waits while no slot is free, or too many answers are outstanding.
 *
 * The answer to the first piece says whether the server could map the delta. Nothing else is sent before that answer,
 * so a push that then goes through slots keeps its place. */
#include "table/table_private.h"
#include <stdlib.h>
#include <string.h>

/* ---- slots ---- */

static void free_if_done(struct tt_slot *s)
{
	if (!s->putting && !s->unanswered)
		s->part = NULL;
}

struct tt_slot *tt_send_queue_slot(struct tt_send_queue *f)
{
	for (int i = 0; i < TT_SEND_QUEUE_SLOTS; i++)
		if (!f->slots[i].part)
			return &f->slots[i];
	return NULL;
}

static void put_done(struct tt_post *post, int err)
{
	struct tt_slot *s = tt_container_of(post, struct tt_slot, put);
	struct tt_call_part *p = s->part;

	s->putting = false;
	free_if_done(s);
	tt_call_let_go(p, err);
	tt_send_queue_go_on(s->queue);
}

int tt_send_queue_put(struct tt_send_queue *f, struct tt_slot *s, struct tt_call_part *p, const char *from, size_t len)
{
	struct tt_op *op = &s->put.op;
	int err;

	s->put = (struct tt_post){ .done = put_done, .pinned = p->call->pinned[0] };
	op->kind = TT_PUT;
	op->flags = TT_LAZY; /* the server's answer comes later and says more */
	op->local = (char *)(uintptr_t)from;
	op->len = len;
	op->offset = (uint64_t)(s - f->slots) * TT_PUSH_PIECE;
	err = tt_window_post(tt_tables(p->call->table->job)->outbox, f->member->rank, &s->put);
	if (err)
		return err;
	s->part = p;
	s->queue = f;
	s->putting = true;
	p->held++;
	return s->put.op.err; /* an error found before a transport saw the PUT: put_done() is called all the same */
}

void tt_send_queue_offer(struct tt_send_queue *f, struct tt_call_part *p, const char *delta, size_t len)
{
	struct tt_net *net;
	struct tt_mem mem;

	if (tt_now() < f->by_slots_until || !tt_window_is_mapped(p->call->table->window, p->member->rank))
		return; /* where this rank can map the server's memory, the server can map this rank's */
	net = tt_member_net(p->member);
	if (net->transport->pin)
		return;
	mem = tt_mem_of((char *)(uintptr_t)delta, len);
	if (mem.fd >= 0 && net->transport->reg(net, &mem, 1, NULL, &p->region))
		p->region = NULL; /* the delta goes another way */
}

static void free_slot_of(struct tt_send_queue *f, const struct tt_sent *s)
{
	if (s->slot < 0)
		return;
	f->slots[s->slot].unanswered = false;
	free_if_done(&f->slots[s->slot]);
}

/* ---- lanes ---- */

void tt_lane_post(struct tt_lane *l, struct tt_sent sent)
{
	l->sent[l->posted++ % TT_SEND_QUEUE_DEPTH] = sent;
	sent.part->held++;
	sent.part->said |= !sent.part->pulls;
}

/* The first part that has something to send; NULL: none, or the server owes too many answers. */
static struct tt_call_part *next_part(struct tt_lane *l)
{
	while (!tt_list_empty(&l->parts)) {
		struct tt_call_part *p = tt_container_of(l->parts.next, struct tt_call_part, link);
		if (tt_call_is_cut_short(p))
			return NULL; /* later parts wait until the server has been told that this push ends */
		if (!tt_call_has_sent_all(p))
			return l->posted - l->answered < TT_SEND_QUEUE_DEPTH ? p : NULL;
		tt_list_remove(&p->link); /* the answers end it */
	}
	return NULL;
}

/* Ends a push that was cut short, or sends one without elements, which counts for the server's clock. */
static void say_no_more(struct tt_send_queue *f, struct tt_call_part *p)
{
	const struct tt_table_call *c = p->call;
	unsigned flags = tt_call_push_flags(p, true);
	uint8_t head[TT_PUSH_HEAD];
	struct tt_pack h = tt_pack(head, sizeof head);

	tt_call_put_head(&h, TT_PUSH, p, flags);
	tt_put8(&h, TT_NO_SLOT);
	tt_put64(&h, tt_table_range(c->table, p->server).first);
	tt_put32(&h, 0);
	if (flags & TT_PUSH_OPTIONS)
		tt_table_put_options(&h, &c->options);
	tt_lane_post(&f->pushes, (struct tt_sent){ .part = p, .slot = -1 });
	tt_send(f->member, head, (size_t)(h.at - head), NULL, 0);
}

static bool send_push(struct tt_send_queue *f, struct tt_call_part *p)
{
	if (!p->closing)
		return p->call->kind->send(f, p);
	say_no_more(f, p);
	return true;
}

void tt_send_queue_go_on(struct tt_send_queue *f)
{
	struct tt_call_part *p;

	while (!f->trial && (p = next_part(&f->pushes)) && send_push(f, p))
		continue;
	while ((p = next_part(&f->pulls)))
		tt_rows_ask(f, p);
}

/* An answer belongs to the oldest unanswered message of its lane. */
static bool find_sent(struct tt_lane *l, uint32_t number, struct tt_sent *sent)
{
	if (l->posted == l->answered || l->sent[l->answered % TT_SEND_QUEUE_DEPTH].part->call->number != number)
		return false;
	*sent = l->sent[l->answered++ % TT_SEND_QUEUE_DEPTH];
	sent->part->call->answers++;
	return true;
}

bool tt_send_queue_answered(struct tt_member *from, bool pull, struct tt_pack *pack, int *err, struct tt_sent *sent)
{
	uint32_t number = tt_get32(pack);
	struct tt_send_queue *f = tt_send_queue_of(from);

	*err = (int)tt_get32(pack);
	if (from->state >= TT_LEFT)
		return false; /* the messages have ended already: close_lane() */
	pack->bad |= !f || *err > 0 || *err < -4095;
	pack->bad = pack->bad || !find_sent(pull ? &f->pulls : &f->pushes, number, sent);
	return !pack->bad;
}

/* An answer's values: the whole shard, or what the rule returns for the piece. False: not as many as were asked for. */
static bool take_values(const struct tt_sent *s, struct tt_pack *pack)
{
	struct tt_call_part *p = s->part;
	const struct tutti_table *t = p->call->table;
	bool piece = tt_updater_gives_back(&t->updater);
	size_t len = (size_t)(piece ? s->asked.count : p->range.count) * t->width;
	size_t at = (size_t)(p->range.first + (piece ? s->asked.first : 0)) * t->width;

	pack->bad |= !p->call->values || tt_pack_left(pack) != len;
	if (pack->bad)
		return false;
	memcpy(p->call->values + at, tt_pack_take(pack, len), len);
	p->pulled = true;
	return true;
}

/* The server has applied nothing of this push: it does not count yet. */
static void unsay(struct tt_call_part *p)
{
	p->said = false;
	p->sent = 0;
}

void tt_table_pushed(struct tt_member *from, struct tt_pack *pack)
{
	struct tt_send_queue *f = tt_send_queue_of(from);
	struct tt_sent s;
	int err;

	if (!tt_send_queue_answered(from, false, pack, &err, &s))
		return;
	if (tt_pack_left(pack) && !take_values(&s, pack))
		err = -EPROTO;
	f->trial = f->trial == s.part ? NULL : f->trial;
	f->held_since = 0;
	free_slot_of(f, &s);
	if (err == -EOPNOTSUPP && s.part->region)
		unsay(s.part);
	tt_call_let_go(s.part, err);
	tt_send_queue_go_on(f);
}

/* ---- from its first use to its end ---- */

static struct tt_send_queue *queue_of(struct tt_member *m)
{
	struct tt_table_peer *peer = tt_member_make_own(m, TT_TABLE_SLOT, sizeof *peer);

	if (!peer || peer->queue || !(peer->queue = calloc(1, sizeof *peer->queue)))
		return peer ? peer->queue : NULL;
	peer->queue->member = m;
	tt_list_init(&peer->queue->pushes.parts);
	tt_list_init(&peer->queue->pulls.parts);
	return peer->queue;
}

struct tt_send_queue *tt_send_queue_to(struct tt_call_part *p)
{
	struct tt_send_queue *f = queue_of(p->member);

	p->err = !f ? -ENOMEM : p->member->state >= TT_LEFT ? p->member->err : 0;
	if (!p->err)
		return f;
	tt_call_end_part(p);
	return NULL;
}

void tt_send_queue_add(struct tt_call_part *p, bool asks)
{
	struct tt_send_queue *f = tt_send_queue_to(p);

	if (!f)
		return;
	p->asks = asks;
	tt_list_append(p->pulls ? &f->pulls.parts : &f->pushes.parts, &p->link);
	tt_send_queue_go_on(f);
}

static void close_lane(struct tt_send_queue *f, struct tt_lane *l, int err)
{
	struct tt_list *node;

	while ((node = tt_list_pop(&l->parts))) {
		struct tt_call_part *p = tt_container_of(node, struct tt_call_part, link);
		p->err = p->err ? p->err : err;
		tt_call_look_at(p);
	}
	for (unsigned end = l->posted; l->answered != end;) { /* a part that ends may post more, which stays */
		struct tt_sent s = l->sent[l->answered++ % TT_SEND_QUEUE_DEPTH];
		free_slot_of(f, &s);
		if (f->member->state < TT_LEFT && !s.part->pulls)
			unsay(s.part); /* the server lives: no file was left for a connection to it */
		tt_call_let_go(s.part, err);
	}
}

/* Ends what waits for this member's answers. The transport ends the PUTs. */
void tt_table_member_down(struct tt_member *m, int err)
{
	struct tt_send_queue *f = tt_send_queue_of(m);

	tt_table_filer_down(m, err);
	if (!f)
		return;
	f->trial = NULL;
	f->held_since = 0;
	close_lane(f, &f->pushes, err);
	close_lane(f, &f->pulls, err);
}
