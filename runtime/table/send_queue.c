/* send_queue.c - what this rank sends to a server of tables, and its answers
 *
 * A feed serves all tables. It has a lane for pushes and one for pulls of rows, in each of which messages are answered in their order, and the slots
 * that pieces of pushes are put into. Parts go in the order of their calls; so many pieces are on their way as there are slots and
 * answers outstanding.
 *
 * Whether a server can map a delta shows in its answer to the first piece: until then nothing follows, so that a push which then
 * goes by slots is still in its place. */
#include "kernel/kernel.h"
#include "member/member.h"
#include "table/table_private.h"
#include "window/window.h"
#include <stdlib.h>
#include <string.h>

/* ---- slots ---- */

static void settle(struct tt_slot *s)
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
	settle(s);
	tt_call_let_go(p, err);
	tt_send_queue_go_on(s->feed);
}

int tt_send_queue_put(struct tt_send_queue *f, struct tt_slot *s, struct tt_call_part *p, const char *from, size_t len)
{
	struct tt_op *op = &s->put.op;
	int err;

	s->put = (struct tt_post){ .done = put_done };
	op->kind = TT_PUT;
	op->flags = TT_LAZY; /* the answer says more */
	op->local = (char *)(uintptr_t)from;
	op->len = len;
	op->offset = (uint64_t)(s - f->slots) * TT_PUSH_PIECE;
	err = tt_window_post(tt_tables(p->call->table->job)->outbox, f->member->rank, &s->put);
	if (err)
		return err;
	s->part = p;
	s->feed = f;
	s->putting = true;
	p->held++;
	return s->put.op.err; /* it failed before any wire saw it: put_done() comes all the same */
}

static void free_slot_of(struct tt_send_queue *f, const struct tt_sent *s)
{
	if (s->slot < 0)
		return;
	f->slots[s->slot].unanswered = false;
	settle(&f->slots[s->slot]);
}

/* ---- lanes ---- */

void tt_lane_post(struct tt_lane *l, struct tt_sent sent)
{
	l->sent[l->posted++ % TT_SEND_QUEUE_DEPTH] = sent;
	sent.part->held++;
	sent.part->said |= !sent.part->pulls;
}

/* The next one that has something to send, if that may go. */
static struct tt_call_part *next_part(struct tt_lane *l)
{
	while (!tt_list_empty(&l->parts)) {
		struct tt_call_part *p = tt_container_of(l->parts.next, struct tt_call_part, link);
		if (tt_call_is_cut_short(p))
			return NULL; /* it is closed first, when its answers are here */
		if (!tt_call_has_sent_all(p))
			return l->posted - l->answered < TT_SEND_QUEUE_DEPTH ? p : NULL;
		tt_list_remove(&p->link); /* it ends when it is answered */
	}
	return NULL;
}

/* Or there is nothing of it here, but it counts. */
static void say_no_more(struct tt_send_queue *f, struct tt_call_part *p)
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

/* To which message it is the answer needs no saying: they come in the order of the messages. */
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
		return false; /* it was told so already */
	pack->bad |= !f || *err > 0 || *err < -4095 || (!pack->bad && !find_sent(pull ? &f->pulls : &f->pushes, number, sent));
	return !pack->bad;
}

/* Those of a whole shard, or what the rule gives back of the piece, behind the answer. False: nobody asked for so many. */
static bool take_values(const struct tt_sent *s, struct tt_pack *pack)
{
	struct tt_call_part *p = s->part;
	const struct tutti_table *t = p->call->table;
	bool piece = tt_updater_gives_back(&t->updater);
	size_t len = (size_t)(piece ? s->asked.count : p->range.count) * t->width;

	pack->bad |= !p->call->values || tt_pack_left(pack) != len;
	if (pack->bad)
		return false;
	memcpy(p->call->values + (size_t)(p->range.first + (piece ? s->asked.first : 0)) * t->width, tt_pack_take(pack, len), len);
	p->pulled = true;
	return true;
}

/* Its server has begun nothing of it. */
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

static struct tt_send_queue *feed_of(struct tt_member *m)
{
	struct tt_table_peer *peer = tt_member_make_own(m, TT_TABLE_SLOT, sizeof *peer);

	if (!peer || peer->feed || !(peer->feed = calloc(1, sizeof *peer->feed)))
		return peer ? peer->feed : NULL;
	peer->feed->member = m;
	tt_list_init(&peer->feed->pushes.parts);
	tt_list_init(&peer->feed->pulls.parts);
	return peer->feed;
}

struct tt_send_queue *tt_send_queue_to(struct tt_call_part *p)
{
	struct tt_send_queue *f = feed_of(p->member);

	p->err = !f ? -ENOMEM : p->member->state >= TT_LEFT ? p->member->err : 0;
	if (!p->err)
		return f;
	tt_call_end_part(p);
	return NULL;
}

static void close_lane(struct tt_send_queue *f, struct tt_lane *l, int err)
{
	struct tt_list *node;

	while ((node = tt_list_pop(&l->parts))) {
		struct tt_call_part *p = tt_container_of(node, struct tt_call_part, link);
		p->err = p->err ? p->err : err;
		tt_call_look_at(p);
	}
	for (unsigned end = l->posted; l->answered != end;) { /* what ends here may post more: that waits for another connection */
		struct tt_sent s = l->sent[l->answered++ % TT_SEND_QUEUE_DEPTH];
		free_slot_of(f, &s);
		if (f->member->state < TT_LEFT && !s.part->pulls)
			unsay(s.part); /* it lives, and there was no file for a connection to it */
		tt_call_let_go(s.part, err);
	}
}

/* Its answers do not come any more. PUTs end by themselves. */
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
