/* send.c - messages that go out: at once, or announced, and then read by the receiver; tutti_send */
#include "message/message_private.h"
#include "operation/operation.h"
#include <stdio.h>
#include <stdlib.h>

struct send {
	struct tt_list link;        /* in tt_msg_peer.waiting, then in .offered */
	struct tt_operation *op;
	struct tt_msg_peer *to;
	uint32_t group, number;
	uint16_t slot;              /* of the group at the receiver */
	int tag;
	char *memory;
	size_t len;
	struct tt_pinned *pinned;
	struct tt_region *region;   /* the memory, for the receiver to read */
	struct tt_loan loan;        /* of its key */
	int err;                    /* the send ends with this when the key is back */
	bool ends;                  /* the key is back */
	uint64_t nothing;           /* the memory of an empty message */
};

/* ---- the end of a send ---- */

static void end_send(struct send *s, int err)
{
	struct tt_operation *op = s->op;

	tt_list_remove(&s->link);
	tt_device_dereg(s->region, NULL, NULL); /* nobody reads it */
	tt_unpin(op->job, s->pinned);
	op->of = NULL;
	free(s);
	tt_operation_end(op, err);
}

/* The key is back. Copies of a device that were begun for the receiver may still read the memory. */
static void end_offered(void *send)
{
	struct send *s = send;
	struct tt_msg_peer *to = s->to;

	s->ends = true;
	if (!tt_device_dereg(s->region, end_offered, s))
		return;
	s->region = NULL;
	to->offers--;
	end_send(s, s->err);
	tt_msg_pump(to->member);
}

static void come_back(struct tt_loan *l) { end_offered(tt_container_of(l, struct send, loan)); }

/* The send ends with err once the receiver cannot read the memory any more; or with 0, if the receiver has read all of
 * the memory before. */
static void take_back(struct send *s, int err)
{
	uint8_t number[4];
	struct tt_pack p = tt_pack(number, sizeof number);

	if (s->loan.recalled || s->ends)
		return;
	tt_put32(&p, s->number);
	s->err = err;
	s->loan.back = come_back;
	if (tt_loan_recall(&s->loan, TT_MESSAGE_SLOT, number, sizeof number))
		end_offered(s);
}

/* ---- what goes out ---- */

static void put_head(struct tt_pack *p, uint8_t type, uint16_t slot, uint32_t group, int tag)
{
	tt_put8(p, type);
	tt_put16(p, slot);
	tt_put32(p, group);
	tt_put32(p, (uint32_t)tag);
}

static bool has_credit(const struct tt_msg_peer *p, size_t len, const struct tt_pinned *memory)
{
	return !tt_pinned_on_device(memory) && len <= TT_MSG_SHORT && p->used + tt_msg_cost(len) <= TT_MSG_CREDIT_ALL;
}

static void send_short(struct tt_msg_peer *to, uint16_t slot, uint32_t group, int tag, const void *memory, size_t len)
{
	uint8_t head[11];
	struct tt_pack p = tt_pack(head, sizeof head);

	put_head(&p, TT_MSG_SEND, slot, group, tag);
	to->used += tt_msg_cost(len);
	tt_send(to->member, head, sizeof head, memory, len);
}

/* Makes a key of the memory. tutti_send does not pin a short message, as most short messages have credit. */
static int lend_memory(struct send *s)
{
	struct tt_member *m = s->to->member;
	struct tt_net *net = tt_member_net(m);
	struct tt_mem mem = tt_mem_of(s->memory, tt_max(s->len, sizeof s->nothing));
	int err = net->transport->pin && !s->pinned ? tt_pin_mem(m->job, &mem, 1, &s->pinned) : 0;

	if (err)
		return err;
	if (net->transport->pin || tt_pinned_on_device(s->pinned))
		mem = s->pinned->mem;
	if ((err = tt_device_reg(net, &mem, s->pinned, true, &s->region)))
		return err;
	tt_loan_begin(&s->loan, m);
	return 0;
}

static uint32_t next_number(struct tt_messages *all)
{
	if (!++all->number)
		all->number = 1; /* 0: not announced */
	return all->number;
}

static int announce_send(struct send *s)
{
	struct tt_msg_peer *to = s->to;
	uint8_t bytes[11 + 4 + 16 + TT_KEY_SIZE];
	struct tt_pack p = tt_pack(bytes, sizeof bytes);
	int err = lend_memory(s);

	if (err)
		return err;
	s->number = next_number(tt_messages(to->member->job));
	put_head(&p, TT_MSG_OFFER, s->slot, s->group, s->tag);
	tt_put32(&p, s->number);
	tt_put64(&p, s->len);
	tt_put64(&p, (uintptr_t)s->memory - (uintptr_t)s->region->mem.base);
	tt_put_key(&p, &s->region->key);
	tt_list_remove(&s->link);
	tt_list_append(&to->offered, &s->link);
	to->offers++;
	tt_send(to->member, bytes, sizeof bytes, NULL, 0);
	return 0;
}

/* False: the send has to wait. */
static bool try_send(struct send *s)
{
	struct tt_msg_peer *to = s->to;
	struct tt_member *m = to->member;
	int err = m->state >= TT_LEFT ? tt_msg_how_ended(m) : tt_member_reach(m);

	if (err > 0 || (!err && !has_credit(to, s->len, s->pinned) && to->offers == TT_MSG_OFFERS))
		return false;
	if (!err && has_credit(to, s->len, s->pinned)) {
		send_short(to, s->slot, s->group, s->tag, s->memory, s->len);
		end_send(s, 0);
	} else if (err || (err = announce_send(s)))
		end_send(s, err);
	return true;
}

void tt_msg_pump(struct tt_member *m)
{
	struct tt_msg_peer *p = tt_member_own(m, TT_MESSAGE_SLOT);

	while (p && !tt_list_empty(&p->waiting) && try_send(tt_container_of(p->waiting.next, struct send, link)))
		continue;
}

/* ---- what the receiver says ---- */

void tt_msg_take_credit(struct tt_member *from, struct tt_pack *p)
{
	struct tt_msg_peer *peer = tt_member_own(from, TT_MESSAGE_SLOT);
	uint32_t cost = tt_get32(p);

	p->bad |= !peer || cost > peer->used;
	if (p->bad)
		return;
	peer->used -= cost;
	tt_msg_pump(from);
}

void tt_msg_take_taken(struct tt_member *from, struct tt_pack *p)
{
	struct tt_msg_peer *peer = tt_member_own(from, TT_MESSAGE_SLOT);
	uint32_t number = tt_get32(p), taken = tt_get32(p);

	p->bad |= !peer;
	if (p->bad)
		return;
	tt_each_of(struct send, link, s, &peer->offered) {
		if (s->number != number || s->ends)
			continue;
		s->err = taken ? 0 : -ESTALE;
		if (s->loan.recalled)
			return; /* STOPPED follows */
		tt_loan_end(&s->loan);
		end_offered(s);
		return;
	}
	p->bad = true;
}

/* ---- tutti_send ---- */

static void give_up_send(struct tt_operation *op, int err)
{
	struct send *s = op->of;

	if (!s->number)
		end_send(s, err);
	else
		take_back(s, err);
}

static void give_up_own_send(struct tt_operation *op, int err)
{
	if (tt_msg_withdraw_own(op))
		tt_operation_end(op, err);
}

static void count_send(struct tt_operation *op, int err)
{
	tt_stats_ended(&tt_member(op->job, op->rank)->stats, TUTTI_STAT_SEND, op->post.since, op->post.op.len, err);
}

static int explain_send(const struct tt_operation *op)
{
	struct tt_label to = tt_member_label(tt_member(op->job, op->rank));
	int tag = (int)op->post.op.operand;

	if (op->err == -ETIMEDOUT)
		return tt_fail(op->err, "send: %s has not received the message with tag %d, of %zu bytes, within %llu "
		               "ms", to.text, tag, op->post.op.len, (unsigned long long)(op->timeout / TT_MS));
	if (op->err == -ESHUTDOWN)
		return tt_fail(op->err, "send: this process has left the job (tutti_leave) before it has received the "
		               "message with tag %d to itself", tag);
	if (op->err == -ESTALE)
		return tt_fail(op->err, "send: the group was shrunk, grown or freed, here or on %s, before the message "
		               "with tag %d was received", to.text, tag);
	if (op->err == -ECANCELED)
		return tt_fail(op->err, "send: it was cancelled, or its group was freed, before %s had received the "
		               "message with tag %d", to.text, tag);
	return 0;
}

static void describe_own_send(const struct tt_operation *op, char *text, size_t size)
{
	snprintf(text, size, "a receive of this rank itself with tag %d", (int)op->post.op.operand);
}

static const struct tt_operation_kind send_kind = {
	.give_up = give_up_send,
	.ended = count_send,
	.explain = explain_send,
};
static void end_own_send(struct tt_operation *op, int err)
{
	count_send(op, err);
	tt_unpin(op->job, op->post.pinned);
}

static const struct tt_operation_kind own_send_kind = {
	.give_up = give_up_own_send,
	.ended = end_own_send,
	.explain = explain_send,
	.describe = describe_own_send,
};

static struct tt_operation *begin_send(struct tutti *g, struct tt_member *m, int tag, size_t len, tutti_op *op,
                                       tutti_op *stack)
{
	struct tt_operation *o = tt_operation_begin(g->job, op, stack, "send", m->rank);

	o->words = m->rank == g->job->rank ? &own_send_kind : &send_kind;
	o->timeout = tt_group_timeout(g);
	o->post.op.operand = (uint64_t)tag;
	o->post.op.len = len;
	return o;
}

/* With the lock, which this function releases. */
static int send_own(struct tutti *g, struct tt_member *m, int tag, void *memory, size_t len, struct tt_pinned *pinned,
                    tutti_op *op)
{
	tutti_op stack;
	struct tt_operation *o = begin_send(g, m, tag, len, op, &stack);
	o->post.pinned = pinned;
	int k = tt_msg_deliver_own(g, tag, memory, len, pinned, o);

	if (k)
		tt_operation_end(o, k < 0 ? k : 0);
	return tt_operation_return(o, !op);
}

/* A blocking send of a short message with credit is no operation: the send has ended when it begins. */
static bool send_at_once(struct tt_msg_peer *to, uint16_t slot, uint32_t group, int tag, const void *memory, size_t len,
                         const struct tt_pinned *pinned)
{
	struct tt_member *m = to->member;
	uint64_t since;

	if (to->used > TT_MSG_CREDIT_ALL / 2)
		tt_progress(m->job); /* takes CREDIT */
	if (m->state != TT_UP || !m->link->used || !tt_list_empty(&to->waiting) ||
	    !has_credit(to, len, pinned))
		return false;
	since = tt_stats_start(m->job);
	tt_operation_note(m->job, "send");
	send_short(to, slot, group, tag, memory, len);
	tt_stats_ended(&m->stats, TUTTI_STAT_SEND, since, len, 0);
	return true;
}

static void fill_send(struct send *s, struct tt_msg_peer *to, uint16_t slot, struct tutti *g, int tag, void *memory,
                      size_t len)
{
	tt_list_init(&s->link);
	s->to = to;
	s->slot = slot;
	s->group = tt_msg_group(g);
	s->tag = tag;
	s->memory = len ? memory : (char *)&s->nothing;
	s->len = len;
}

/* With the lock, which this function releases. */
static int send_to(struct tutti *g, struct tt_member *m, int tag, void *memory, size_t len, struct tt_pinned *pinned,
                   tutti_op *op)
{
	struct tt_msg_peer *to = tt_msg_peer(m);
	const struct tt_seat *seat = tt_msg_is_job(g) ? NULL : tt_group_find(g, m);
	uint16_t slot = seat ? seat->slot : 0;
	struct tt_job *job = g->job;
	tutti_op stack;
	int err = tt_msg_fault(g, m);

	if (!op && !err && to && send_at_once(to, slot, tt_msg_group(g), tag, memory, len, pinned)) {
		tt_unlock(job);
		return 0;
	}
	struct send *s = to ? calloc(1, sizeof *s) : NULL;
	if (!s) {
		tt_unpin(job, pinned);
		tt_unlock(job);
		return tt_fail(-ENOMEM, "no memory for a send");
	}
	struct tt_operation *o = begin_send(g, m, tag, len, op, &stack);
	fill_send(s, to, slot, g, tag, memory, len);
	s->pinned = pinned;
	s->op = o;
	o->of = s;
	if (err)
		end_send(s, err);
	else {
		tt_list_append(&to->waiting, &s->link);
		tt_msg_pump(m);
	}
	return tt_operation_return(o, !op);
}

int tutti_send(tutti *group, int rank, int tag, const void *memory, size_t bytes, tutti_op *op)
{
	struct tt_job *job = tt_job_of(group);
	void *from = (void *)(uintptr_t)memory;
	struct tt_pinned *pinned;
	struct tt_member *m;
	int err = tt_operation_may_begin(job, op);

	if (err || (err = tt_msg_check("send", group, rank, tag, memory, bytes)))
		return err;
	if (rank == -1)
		return tt_fail(-EINVAL, "send: rank -1 must be from 0 to %d", tt_group_count(group) - 1);
	bool own = tt_group_to_job(group, rank) == job->rank;
	if ((err = tt_begin_pinned(job, &group->handle.users, memory, bytes,
	                           bytes > TT_MSG_SHORT && !own ? TT_PIN_RECEIVE : TT_PIN_DEVICE, NULL, &pinned)))
		return err;
	if ((err = tt_msg_find("send", group, rank, &m))) {
		tt_unpin(job, pinned);
		tt_unlock(job);
		return err;
	}
	return own ? send_own(group, m, tag, from, bytes, pinned, op) : send_to(group, m, tag, from, bytes, pinned, op);
}

/* ---- events ---- */

void tt_msg_end_sends(struct tt_member *m, const struct tutti *group, int err)
{
	struct tt_msg_peer *p = tt_member_own(m, TT_MESSAGE_SLOT);

	if (!p)
		return;
	tt_each_of(struct send, link, s, &p->waiting)
		if (!group || s->group == tt_msg_group(group))
			end_send(s, err);
	tt_each_of(struct send, link, s, &p->offered)
		if (!group || s->group == tt_msg_group(group))
			take_back(s, err);
}

void tt_msg_end_waiting(struct tt_member *m, int err)
{
	struct tt_msg_peer *p = tt_member_own(m, TT_MESSAGE_SLOT);

	tt_each_of(struct send, link, s, &p->waiting)
		end_send(s, err);
}
