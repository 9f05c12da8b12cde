/* post.c - ops and messages on their way to a member, which may wait here until there is a connection */
#include "engine/engine.h"
#include "member/member_private.h"
#include <stdlib.h>
#include <string.h>

/* ---- ops ---- */

void tt_post_count(struct tt_post *p, int err)
{
	tutti_stat_kind kind = p->op.kind == TT_SEND ? TUTTI_STAT_MESSAGE : TUTTI_STAT_CHUNK;

	tt_stats_ended(&p->member->stats, kind, p->since, p->op.len, err);
}

void tt_member_hold(struct tt_member *m) { m->outstanding++; }

void tt_member_let_go(struct tt_member *m)
{
	if (m->outstanding && !--m->outstanding && m->state == TT_LEFT && m->link)
		tt_link_doom(m->link);
}

/* A recall waits for the last of them. */
static void end_read(struct tt_member *owner, struct tt_reads *reads)
{
	if (--reads->under_way || !reads->recall)
		return;
	tt_loan_stopped(owner, reads->recall);
	reads->recall = 0;
}

static void finish_post(struct tt_op *op)
{
	struct tt_post *p = tt_container_of(op, struct tt_post, op);
	struct tt_member *m = p->member;
	int err = op->err == -ECONNRESET && m->state == TT_GONE ? m->err : op->err; /* evicted, say */

	if (p->reads)
		end_read(m, p->reads);
	tt_member_let_go(m);
	p->done(p, err);
}

static void finish_unposted(struct tt_op *op)
{
	struct tt_post *p = tt_container_of(op, struct tt_post, op);

	p->done(p, op->err);
}

static void end_later(struct tt_job *job, struct tt_post *p, int err)
{
	p->op.err = err;
	p->op.done = finish_unposted;
	tt_queue_push(&job->ended, &p->op);
}

/* An op's memory is the user's, which the call has pinned, or the library's scratch memory, or short. */
static int find_region(struct tt_net *net, struct tt_post *p)
{
	struct tt_op *op = &p->op;
	struct tt_pinned *pinned = p->pinned;

	op->region = NULL;
	if (tt_post_is_device(p))
		return tt_pinned_region(pinned, net, &op->region);
	if (net->copy_max == SIZE_MAX || op->len <= p->member->job->engine.look_above)
		return 0;
	if (!pinned || !tt_pinned_holds(pinned, op->local, op->len))
		pinned = tt_scratch_pinned(&p->member->job->scratch, op->local);
	if (!pinned && op->len <= net->copy_max)
		return 0;
	if (!pinned)
		return tt_fail(-EFAULT, "%zu bytes for rank %d are not pinned", op->len, p->member->rank);
	return tt_pinned_region(pinned, net, &op->region);
}

static bool is_passing(const struct tt_op *op)
{
	return op->kind == TT_SEND && op->len && tt_may_pass(*(const uint8_t *)op->local);
}

/* No net can do it alone: it moves in pieces, or waits for the caller's stream. */
static bool is_moved(const struct tt_post *p)
{
	const struct tt_op *op = &p->op;

	return op->len && op->kind != TT_SEND && (tt_post_is_device(p) || tt_key_is_staged(op->key));
}

/* PUTs to that member may not have landed yet, and a net would bring this op there before them. */
static bool is_held(const struct tt_member *m, const struct tt_op *op)
{
	if (!m->staged || op->kind != TT_SEND || !op->len)
		return m->staged && op->kind == TT_PUT && op->flags & TT_NOTIFY;
	return !tt_members(m->job)->passing[*(const uint8_t *)op->local];
}

void tt_post_to_net(struct tt_member *m, struct tt_post *p)
{
	struct tt_net *net = m->link->peer->net;

	if ((p->op.err = find_region(net, p)))
		tt_queue_push(&m->job->ended, &p->op);
	else
		net->transport->post(m->link->peer, &p->op);
}

void tt_post_unheld(struct tt_member *m, struct tt_post *p)
{
	bool moved = is_moved(p);
	int err = moved ? 0 : find_region(tt_member_net(m), p);

	if (err) {
		end_later(m->job, p, err);
		return;
	}
	p->op.done = finish_post;
	tt_member_hold(m);
	if (p->reads)
		p->reads->under_way++;
	m->link->used |= !is_passing(&p->op);
	if (moved)
		m->job->engine.stage->move(m, p);
	else
		m->link->peer->net->transport->post(m->link->peer, &p->op);
}

static void hand_to_net(struct tt_member *m, struct tt_post *p)
{
	if (is_held(m, &p->op) && !is_moved(p))
		m->job->engine.stage->hold(m, p);
	else
		tt_post_unheld(m, p);
}

void tt_post_fail(struct tt_job *job, struct tt_post *p, int err) { end_later(job, p, err); }

void tt_post(struct tt_member *m, struct tt_post *p)
{
	p->member = m;
	if (m->state == TT_UP && !m->link->used && !is_passing(&p->op))
		tt_member_leave_rendezvous(m);
	if (m->state == TT_UP) {
		hand_to_net(m, p);
	} else if (m->state == TT_LEFT || m->state == TT_GONE || m->sought) {
		end_later(m->job, p, m->err);
	} else {
		tt_queue_push(&m->waiting, &p->op);
		tt_member_connect(m);
	}
}

struct tt_post *tt_post_withdraw(struct tt_member *m, bool (*is)(const struct tt_post *, const void *), const void *arg)
{
	struct tt_op_queue others = { 0 };
	struct tt_post *found = NULL;
	struct tt_op *op;

	while ((op = tt_queue_pop(&m->waiting)))
		if (!found && is(tt_container_of(op, struct tt_post, op), arg))
			found = tt_container_of(op, struct tt_post, op);
		else
			tt_queue_push(&others, op);
	m->waiting = others;
	return found;
}

void tt_post_waiting(struct tt_member *m)
{
	struct tt_op_queue q = m->waiting;
	struct tt_op *op;

	m->waiting = (struct tt_op_queue){ 0 };
	while ((op = tt_queue_pop(&q)))
		tt_post(m, tt_container_of(op, struct tt_post, op));
}

void tt_fail_waiting(struct tt_member *m, int err)
{
	struct tt_op *op;

	while ((op = tt_queue_pop(&m->waiting)))
		end_later(m->job, tt_container_of(op, struct tt_post, op), err);
}

struct tt_net *tt_member_net(struct tt_member *m) { return m->link->peer->net; }

/* ---- messages ---- */

struct message {
	struct tt_post post;
	size_t room;     /* of `bytes`, which may be more than are sent */
	uint8_t bytes[];
};

static void free_message(struct tt_post *p, int err)
{
	tt_post_count(p, err);
	struct message *msg = tt_container_of(p, struct message, post);
	tt_scratch_give(&p->member->job->scratch, msg, sizeof *msg + msg->room);
}

/* scratch: NULL for a message that finish_raw frees. */
static struct message *make_message(struct tt_scratch *scratch, size_t room)
{
	size_t bytes = sizeof(struct message) + room;
	struct message *msg = scratch ? tt_scratch_take(scratch, bytes) : malloc(bytes);

	if (!msg)
		return NULL;
	*msg = (struct message){ .post.done = free_message, .room = room };
	msg->post.op.kind = TT_SEND;
	msg->post.op.local = msg->bytes;
	msg->post.op.len = room;
	return msg;
}

/* True for most messages to a rank of this host: the transport has the bytes, and no op waits for its end. */
static bool send_now(struct tt_member *m, const void *head, size_t len, const void *body, size_t body_len)
{
	const struct tt_transport *t = m->state == TT_UP ? tt_member_net(m)->transport : NULL;
	uint64_t since;

	if (!t || !t->send || !m->link->used || m->staged)
		return false;
	since = tt_stats_start(m->job);
	if (!t->send(m->link->peer, head, len, body, body_len))
		return false;
	tt_stats_ended(&m->stats, TUTTI_STAT_MESSAGE, since, len + body_len, 0);
	return true;
}

void *tt_send_begin(struct tt_member *m, size_t room)
{
	struct message *msg = make_message(&m->job->scratch, room);

	return msg ? msg->bytes : NULL;
}

static void post_message(struct tt_member *m, struct message *msg, size_t len)
{
	msg->post.op.len = len;
	msg->post.since = tt_stats_start(m->job);
	tt_post(m, &msg->post);
}

void tt_send_commit(struct tt_member *m, void *bytes, size_t len)
{
	struct message *msg = tt_container_of(bytes, struct message, bytes);

	if (send_now(m, bytes, len, NULL, 0))
		tt_scratch_give(&m->job->scratch, msg, sizeof *msg + msg->room);
	else
		post_message(m, msg, len);
}

void tt_send(struct tt_member *m, const void *head, size_t len, const void *body, size_t body_len)
{
	uint8_t *bytes;

	if (send_now(m, head, len, body, body_len))
		return;
	if (!(bytes = tt_send_begin(m, len + body_len))) {
		tt_member_fail_soon(m, 0, -ENOMEM, "no memory for a message to %s", tt_member_label(m).text);
		return;
	}
	memcpy(bytes, head, len);
	if (body_len)
		memcpy(bytes + len, body, body_len);
	post_message(m, tt_container_of(bytes, struct message, bytes), len + body_len);
}

void tt_send_words(struct tt_member *m, uint8_t type, const uint32_t *words, int n, const void *more, size_t len)
{
	uint8_t bytes[1 + 4 * 8];
	struct tt_pack p = tt_pack(bytes, sizeof bytes);

	tt_put8(&p, type);
	for (int i = 0; i < n; i++)
		tt_put32(&p, words[i]);
	tt_send(m, bytes, (size_t)(p.at - bytes), more, len);
}

/* An empty PUT that is not lazy. Without memory for it, later traffic brings the acknowledgement. */
void tt_member_nudge(struct tt_member *m)
{
	struct message *msg = make_message(&m->job->scratch, 0);

	if (!msg)
		return;
	msg->post.op.kind = TT_PUT;
	tt_post(m, &msg->post);
}

static void finish_raw(struct tt_op *op) { free(tt_container_of(op, struct message, post.op)); }

bool tt_send_raw(struct tt_link *l, const void *bytes, size_t len)
{
	struct message *msg = make_message(NULL, len);

	if (!msg && l->member && l->member->link == l)
		tt_member_gone(l->member, -ENOMEM, "no memory for a message to %s", tt_member_label(l->member).text);
	if (!msg) {
		tt_link_doom(l);
		return false;
	}
	memcpy(msg->bytes, bytes, len);
	msg->post.op.done = finish_raw;
	l->peer->net->transport->post(l->peer, &msg->post.op);
	return true;
}
