/* tcp_send.c - outgoing frames: my requests, what I owe the peer, and the one stream that carries both */
#include "transport/tcp/tcp_private.h"
#include "transport/breaks.h"
#include <endian.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/uio.h>

enum {
	LAZY_FRAMES = 64, LAZY_BYTES = 1 << 20, /* after so many an acknowledgement goes even if all were lazy */
};

static bool can_send(const struct tt_tcp_peer *p) { return tt_flight_alive(&p->ops) && !p->blocked && !p->mute; }

void tt_tcp_want_to_send(struct tt_tcp_peer *p)
{
	if (can_send(p))
		tt_list_append_once(&p->net->dirty, &p->dirty);
}

/* Ops that end */

static struct tt_op *give_slot(struct tt_tcp_peer *p, unsigned slot)
{
	if (p->ops.pending.head)
		tt_tcp_want_to_send(p);
	return tt_flight_give_slot(&p->ops, slot);
}

static void finish(struct tt_tcp_peer *p, struct tt_op *op, int err)
{
	tt_flight_end(&p->ops, op);
	tt_flight_finish(&p->ops, op, err);
}

static void finish_later(struct tt_tcp_peer *p, struct tt_op *op)
{
	tt_flight_end(&p->ops, op);
	tt_flight_finish_later(&p->ops, op, 0);
}

void tt_tcp_answer_op(struct tt_tcp_peer *p, struct tt_op *op, int err)
{
	give_slot(p, (unsigned)op->priv[1]);
	finish(p, op, err);
}

void tt_tcp_take_ack(struct tt_tcp_peer *p)
{
	if (p->frame.ack - p->puts_acked > p->puts_sent - p->puts_acked) {
		tt_flight_lose(&p->ops, "it acknowledged what was not sent");
		return;
	}
	while (p->puts_acked != p->frame.ack) {
		struct tt_op *op = give_slot(p, p->put_slots[p->puts_acked++ % TT_FRAME_SLOTS]);
		if (op) /* there is always an op, except with the break DONE_EARLY */
			finish(p, op, op->err);
	}
}

/* The stage */

static bool has_room(const struct tt_tcp_peer *p)
{
	return sizeof p->buffers->stage - p->out_end >= TT_FRAME_SIZE + TT_FRAME_SMALL;
}

/* This frame's ack acknowledges all that has landed. */
static uint32_t settle(struct tt_tcp_peer *p)
{
	p->ack_due = false;
	p->lazy_frames = 0;
	p->lazy_bytes = 0;
	tt_list_remove(&p->owing);
	return p->landed;
}

static void stage_header(struct tt_tcp_peer *p, struct tt_frame *f)
{
	f->job = tt_frame_fold(p->net->door.job);
	f->epoch = p->net->door.epoch;
	if (f->kind != TT_FRAME_NAK)
		f->ack = settle(p);
	tt_frame_pack(f, p->buffers->stage + p->out_end);
	p->out_end += TT_FRAME_SIZE;
	p->queued += TT_FRAME_SIZE;
}

/* The first frame of a batch says how many bytes follow it, as long as its header has not left. */
static void join_batch(struct tt_tcp_peer *p, size_t frame)
{
	if (p->batch == TT_TCP_NO_BATCH) {
		p->batch = frame;
		p->batch_body = p->out_end;
		return;
	}
	struct tt_pack more = tt_pack(p->buffers->stage + p->batch + TT_FRAME_MORE_AT, 4);
	tt_put32(&more, (uint32_t)(p->out_end - p->batch_body));
}

static void stage_small(struct tt_tcp_peer *p, struct tt_frame *f, const void *payload, size_t n)
{
	size_t frame = p->out_end;

	stage_header(p, f);
	if (n)
		memcpy(p->buffers->stage + p->out_end, payload, n);
	p->out_end += n;
	p->queued += n;
	join_batch(p, frame);
}

/* Nothing is staged behind a long payload before that is sent. */
static void stage_large(struct tt_tcp_peer *p, struct tt_frame *f, const void *payload, size_t n)
{
	stage_header(p, f);
	p->batch = TT_TCP_NO_BATCH;
	p->payload = payload;
	p->payload_left = n;
	p->payload_is_answer = p->payload_ends_put = false;
	p->queued += n;
}

static size_t piece_of(uint64_t left) { return left <= TT_FRAME_PIECE_MAX ? (size_t)left : TT_FRAME_PIECE; }

static uint64_t load_word(const void *from, size_t n)
{
	uint64_t bytes = 0;

	tt_copy_word(&bytes, from, n);
	return le64toh(bytes);
}

/* My requests */

static uint64_t key_id(const struct tt_key *key)
{
	struct tt_pack p = tt_unpack(key->raw, sizeof key->raw);

	return tt_get64(&p);
}

static void put_is_sent(struct tt_tcp_peer *p)
{
	unsigned slot = p->put_slots[p->puts_sent++ % TT_FRAME_SLOTS];

	if (tt_broken(DONE_EARLY)) {
		finish_later(p, p->ops.slots[slot]);
		p->ops.slots[slot] = NULL;
	}
}

/* Does it end when its bytes are in the kernel? */
static bool ends_when_sent(const struct tt_op *op)
{
	return op->kind == TT_SEND || (op->kind == TT_PUT && op->flags & TT_LOCAL);
}

/* All of it is staged. */
static void await_sent(struct tt_tcp_peer *p, struct tt_op *op)
{
	op->priv[1] = p->queued;
	op->priv[2] = 0;
	if (p->first_send)
		p->last_send->priv[2] = (uintptr_t)op;
	else
		p->first_send = op;
	p->last_send = op;
}

static void stage_put(struct tt_tcp_peer *p, struct tt_op *op)
{
	uint64_t done = op->priv[2];
	size_t n = piece_of(op->len - done);
	bool last = done + n == op->len, local = ends_when_sent(op);
	const uint8_t *from = op->len ? (const uint8_t *)op->local + done : NULL;
	struct tt_frame f = { .kind = TT_FRAME_PUT, .slot = local ? 0 : (uint16_t)op->priv[1], .len = n };

	if (op->len) {
		f.key = key_id(op->key);
		f.offset = op->offset + done;
		f.word = op->len - done - n;
	}
	if (last)
		f.flags = TT_FRAME_LAST | (local ? TT_FRAME_LOCAL : op->flags & TT_LAZY ? TT_FRAME_LAZY : 0);
	if (last && op->flags & TT_NOTIFY) {
		f.flags |= TT_FRAME_NOTIFY;
		f.notify = op->notify;
	}
	op->priv[2] += n;
	p->current = last ? NULL : op;
	if (op->len <= 8) {
		f.flags |= TT_FRAME_INLINE;
		f.word = load_word(from, n);
	}
	if (n >= TT_FRAME_SMALL)
		stage_large(p, &f, from, n);
	else
		stage_small(p, &f, from, tt_frame_payload(&f));
	if (last && local)
		await_sent(p, op);
	else if (n >= TT_FRAME_SMALL)
		p->payload_ends_put = last;
	else
		put_is_sent(p);
}

static void begin_put(struct tt_tcp_peer *p, struct tt_op *op)
{
	if (!ends_when_sent(op))
		p->put_slots[p->puts_begun++ % TT_FRAME_SLOTS] = (uint8_t)tt_flight_take_slot(&p->ops, op);
	stage_put(p, op);
}

static void begin_read(struct tt_tcp_peer *p, struct tt_op *op)
{
	struct tt_frame f = { .kind = TT_FRAME_GET, .key = key_id(op->key), .offset = op->offset, .len = op->len };

	f.slot = (uint16_t)tt_flight_take_slot(&p->ops, op);
	if (op->kind == TT_ADD) {
		f.kind = TT_FRAME_ADD;
		f.len = 0;
		f.word = op->operand;
	}
	stage_small(p, &f, NULL, 0);
}

static void begin_send(struct tt_tcp_peer *p, struct tt_op *op)
{
	struct tt_frame f = { .kind = TT_FRAME_SEND, .len = op->len };

	if (op->len < TT_FRAME_SMALL)
		stage_small(p, &f, op->local, op->len);
	else
		stage_large(p, &f, op->local, op->len);
	await_sent(p, op);
}

static bool stage_op(struct tt_tcp_peer *p)
{
	struct tt_op *op = p->current ? p->current : p->ops.pending.head;

	if (!op || (!p->current && !ends_when_sent(op) && !p->ops.free_count))
		return false;
	p->answer_turn = true;
	if (p->current) {
		stage_put(p, op);
		return true;
	}
	tt_queue_pop(&p->ops.pending);
	tt_flight_begin(&p->ops, op);
	op->priv[2] = 0;
	if (op->kind == TT_PUT)
		begin_put(p, op);
	else if (op->kind == TT_SEND)
		begin_send(p, op);
	else
		begin_read(p, op);
	return true;
}

/* What I owe */

void tt_tcp_pay_ack(struct tt_tcp_peer *p)
{
	p->ack_due = true;
	tt_tcp_want_to_send(p);
}

/* Acknowledges now; or, if lazy, when enough has come, when nothing more comes, or before this process goes to
 * sleep. */
void tt_tcp_owe_ack(struct tt_tcp_peer *p, bool lazy)
{
	tt_list_append_once(&p->net->owing, &p->owing);
	if (!lazy)
		tt_tcp_pay_ack(p);
}

/* One more frame has come: now there may be enough to acknowledge. */
void tt_tcp_count_lazy(struct tt_tcp_peer *p)
{
	p->lazy_frames++;
	p->lazy_bytes += p->frame.len;
	if (!tt_list_empty(&p->owing) && (p->lazy_frames >= LAZY_FRAMES || p->lazy_bytes >= LAZY_BYTES))
		tt_tcp_pay_ack(p);
}

void tt_tcp_owe_nak(struct tt_tcp_peer *p, unsigned slot, int why)
{
	if (tt_flight_misused(&p->ops, tt_frame_error((uint32_t)why)))
		return;
	if (p->nak_count == TT_FRAME_SLOTS) {
		tt_flight_lose(&p->ops, "it asks for more than it may");
		return;
	}
	struct tt_tcp_nak *n = &p->buffers->naks[(p->nak_at + p->nak_count++) % TT_FRAME_SLOTS];
	*n = (struct tt_tcp_nak){ .slot = (uint16_t)slot, .why = (uint8_t)why, .ack = p->landed };
	tt_tcp_want_to_send(p);
}

void tt_tcp_owe_answer(struct tt_tcp_peer *p, const struct tt_tcp_answer *a)
{
	if (p->answer_count == TT_FRAME_SLOTS) {
		tt_flight_lose(&p->ops, "it asks for more than it may");
		return;
	}
	p->buffers->answers[(p->answer_at + p->answer_count++) % TT_FRAME_SLOTS] = *a;
	tt_tcp_want_to_send(p);
}

static bool stage_nak(struct tt_tcp_peer *p)
{
	if (!p->nak_count)
		return false;
	struct tt_tcp_nak *n = &p->buffers->naks[p->nak_at++ % TT_FRAME_SLOTS];
	struct tt_frame f = { .kind = TT_FRAME_NAK, .slot = n->slot, .notify = n->why, .ack = n->ack };
	p->nak_count--;
	if (n->ack == p->landed)
		settle(p);
	stage_small(p, &f, NULL, 0);
	return true;
}

static void stage_reply(struct tt_tcp_peer *p, struct tt_tcp_answer *a)
{
	size_t n = piece_of(a->len - a->at);
	struct tt_frame f = { .kind = TT_FRAME_REPLY, .slot = a->slot, .offset = a->at, .len = n };
	uint8_t *from;
	int why = tt_tcp_find_place(p->net, a->key, a->offset + a->at, n, &from);

	if (why) {
		tt_tcp_owe_nak(p, a->slot, why);
		return;
	}
	if (a->at + n == a->len)
		f.flags = TT_FRAME_LAST;
	if (n >= TT_FRAME_SMALL) {
		stage_large(p, &f, from, n);
		p->payload_is_answer = true;
		p->sending = *a;
		p->sending.at += n;
		p->answer_turn = false;
		return;
	}
	if (a->len <= 8) {
		f.flags |= TT_FRAME_INLINE;
		f.word = load_word(from, n);
	}
	stage_small(p, &f, from, tt_frame_payload(&f));
}

static bool stage_answer(struct tt_tcp_peer *p)
{
	if (!p->answer_count)
		return false;
	struct tt_tcp_answer a = p->buffers->answers[p->answer_at++ % TT_FRAME_SLOTS];
	p->answer_count--;
	if (a.kind == TT_FRAME_REPLY) {
		stage_reply(p, &a);
	} else {
		struct tt_frame f = { .kind = TT_FRAME_SUM, .slot = a.slot, .word = a.word };
		stage_small(p, &f, NULL, 0);
	}
	return true;
}

static bool stage_ack(struct tt_tcp_peer *p)
{
	struct tt_frame f = { .kind = TT_FRAME_ACK };

	if (!p->ack_due)
		return false;
	stage_small(p, &f, NULL, 0);
	return true;
}

/* NAKs go first: no frame may acknowledge a PUT whose NAK has not been sent. */
static bool stage_next(struct tt_tcp_peer *p)
{
	if (stage_nak(p))
		return true;
	if (p->answer_turn ? stage_answer(p) || stage_op(p) : stage_op(p) || stage_answer(p))
		return true;
	return stage_ack(p);
}

/* The socket */

static void payload_is_sent(struct tt_tcp_peer *p)
{
	free(p->payload_copy);
	p->payload_copy = NULL;
	if (p->payload_ends_put)
		put_is_sent(p);
	if (p->payload_is_answer && p->sending.at < p->sending.len)
		/* behind the others, so that a short answer does not wait for a long one */
		tt_tcp_owe_answer(p, &p->sending);
	p->payload_ends_put = p->payload_is_answer = false;
}

static void finish_sends(struct tt_tcp_peer *p)
{
	struct tt_op *op;

	while ((op = p->first_send) && op->priv[1] <= p->sent) {
		p->first_send = (struct tt_op *)(uintptr_t)op->priv[2];
		finish_later(p, op);
	}
}

static void payload_goes_on(struct tt_tcp_peer *p, size_t n)
{
	p->payload += n;
	p->payload_left -= n;
}

/* The memory that a GET reads may change meanwhile. The socket took a part of this word; the rest, which is of the same
 * moment, is kept. */
static void keep_word(struct tt_tcp_peer *p)
{
	size_t n = tt_min(-(uintptr_t)p->payload % 8, p->payload_left);

	memcpy(p->buffers->stage + p->out_end, p->payload, n); /* everything that was staged has left */
	p->out_end += n;
	payload_goes_on(p, n);
}

static void bytes_are_sent(struct tt_tcp_peer *p, size_t n)
{
	size_t staged = tt_min(n, p->out_end - p->out_at);

	p->sent += n;
	p->net->ops.events++;
	p->out_at += staged;
	if (p->out_at > p->batch)
		p->batch = TT_TCP_NO_BATCH;
	if (p->out_at == p->out_end) {
		p->out_at = p->out_end = 0;
		p->batch = TT_TCP_NO_BATCH;
	}
	if (p->payload_left) {
		payload_goes_on(p, n - staged);
		if (p->payload_is_answer)
			keep_word(p);
		if (!p->payload_left)
			payload_is_sent(p);
	}
	finish_sends(p);
}

static void block(struct tt_tcp_peer *p)
{
	p->blocked = true;
	p->net->blocked++;
	tt_dial_watch(&p->dial, EPOLLIN | EPOLLOUT);
}

void tt_tcp_unblock(struct tt_tcp_peer *p)
{
	if (p->blocked) {
		p->blocked = false;
		p->net->blocked--;
	}
}

static ssize_t send_once(struct tt_tcp_peer *p)
{
	struct iovec iov[2] = { { p->buffers->stage + p->out_at, p->out_end - p->out_at },
	                        { (void *)(uintptr_t)p->payload, p->payload_left } };
	struct msghdr m = { .msg_iov = iov, .msg_iovlen = 2 };

	if (!p->payload_left)
		return send(p->dial.fd, iov[0].iov_base, iov[0].iov_len, MSG_NOSIGNAL);
	if (!iov[0].iov_len) {
		m.msg_iov++;
		m.msg_iovlen--;
	}
	return sendmsg(p->dial.fd, &m, MSG_NOSIGNAL);
}

/* Nothing can be sent any more. What the peer said before it closed may be unread: the reads will find the end. */
static void fall_mute(struct tt_tcp_peer *p)
{
	p->mute = true;
	tt_tcp_activate(p);
}

/* Sends what the socket takes, up to the budget of one turn. If more is left, the peer stays dirty or waits for
 * EPOLLOUT. */
void tt_tcp_push_out(struct tt_tcp_peer *p)
{
	size_t budget = TT_TCP_BUDGET;

	tt_list_remove(&p->dirty);
	for (int i = 0; i < TT_TCP_SYSCALLS && budget && can_send(p); i++) {
		while (!p->payload_left && has_room(p) && stage_next(p))
			;
		if (!p->payload_left && p->out_at == p->out_end)
			return;
		ssize_t n = send_once(p);
		if (n >= 0)
			bytes_are_sent(p, (size_t)n);
		else if (errno == EAGAIN)
			block(p);
		else if (errno != EINTR)
			fall_mute(p);
		budget -= n > 0 ? tt_min(budget, (size_t)n) : 0;
	}
	tt_tcp_want_to_send(p);
}

void tt_tcp_push_all(struct tt_tcp *net)
{
	/* a peer that becomes dirty again waits for the next turn */
	struct tt_list *last = net->dirty.prev, *node = NULL;

	while (node != last && (node = tt_list_pop(&net->dirty)))
		tt_tcp_push_out(tt_container_of(node, struct tt_tcp_peer, dirty));
}

/* Posting */

static bool is_lazy_send(const struct tt_op *op) { return op->kind == TT_SEND && op->flags & TT_LAZY; }

void tt_tcp_post(struct tt_peer *base, struct tt_op *op)
{
	struct tt_tcp_peer *p = tt_container_of(base, struct tt_tcp_peer, base);
	bool waits = is_lazy_send(op); /* for other ops, which leave together with it */

	tt_flight_post(&p->ops, op);
	if (!tt_flight_alive(&p->ops))
		return;
	tt_tcp_activate(p);
	tt_tcp_want_to_send(p);
	if (!p->net->ops.inside && !waits && !tt_broken(MESSAGES_SWAPPED))
		tt_tcp_push_out(p);
}
