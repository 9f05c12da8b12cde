/* tcp_receive.c - incoming frames: each is checked, each payload is put into its place, each request is served */
#include "transport/tcp/tcp_private.h"
#include "transport/breaks.h"
#include <endian.h>
#include <string.h>
#include <sys/uio.h>

enum {
	IDLE_READS = 256, /* reads without a result before a socket is left to epoll ... */
	LAZY_READS = 64,  /* ... and before a lazy acknowledgement is sent: some 20 us */
	MEGABYTE = 1 << 20,
};
#define PACE (5 * TT_MS) /* an acknowledgement each megabyte would cost a sixth of a fast GET's speed */

/* Requests of the peer */

static void store_word(void *to, uint64_t word, size_t n)
{
	uint64_t bytes = htole64(word);

	tt_copy_word(to, &bytes, n);
}

static void notify(struct tt_tcp_peer *p)
{
	p->net->ops.events++;
	if (p->net->base.events->notify)
		p->net->base.events->notify(&p->base, p->frame.notify);
}

static void open_put(struct tt_tcp_peer *p)
{
	const struct tt_frame *f = &p->frame;
	uint64_t rest = f->flags & TT_FRAME_INLINE ? 0 : f->word;
	uint8_t *to = NULL;

	if (!p->put_err && rest > UINT64_MAX - f->len)
		p->put_err = TT_NAK_RANGE;
	else if (!p->put_err && f->len) /* f->len + rest: a PUT that does not fit touches no memory at all */
		p->put_err = tt_tcp_find_place(p->net, f->key, f->offset, f->len + rest, &to);
	p->place = p->put_err ? NULL : to;
	if (tt_broken(NOTIFY_FIRST) && !p->put_err && f->flags & TT_FRAME_NOTIFY)
		notify(p);
	if (f->flags & TT_FRAME_INLINE && p->place)
		store_word(p->place, f->word, f->len);
}

static void answer_put(struct tt_tcp_peer *p, int err)
{
	p->landed++;
	if (err)
		tt_tcp_owe_nak(p, p->frame.slot, err);
	tt_tcp_owe_ack(p, p->frame.flags & TT_FRAME_LAZY);
}

/* Its op has ended, so nothing else can tell the peer that the bytes are lost. */
static void end_local(struct tt_tcp_peer *p, int err)
{
	if (err)
		tt_flight_lose(&p->ops, "it put bytes where it may not");
}

static void close_put(struct tt_tcp_peer *p)
{
	const struct tt_frame *f = &p->frame;
	int err = p->put_err;

	if (!(f->flags & TT_FRAME_LAST)) {
		tt_tcp_count_lazy(p);
		return;
	}
	p->put_err = 0;
	if (f->flags & TT_FRAME_LOCAL)
		end_local(p, err);
	else
		answer_put(p, err);
	tt_tcp_count_lazy(p);
	if (!err && f->flags & TT_FRAME_NOTIFY && !tt_broken(NOTIFY_FIRST))
		notify(p);
}

static void serve_get(struct tt_tcp_peer *p)
{
	const struct tt_frame *f = &p->frame;
	struct tt_tcp_answer a = { .kind = TT_FRAME_REPLY, .slot = f->slot, .key = f->key, .offset = f->offset,
	                           .len = f->len };
	uint8_t *from;
	int why = tt_tcp_find_place(p->net, f->key, f->offset, f->len, &from);

	if (why)
		tt_tcp_owe_nak(p, f->slot, why);
	else
		tt_tcp_owe_answer(p, &a);
}

static void serve_add(struct tt_tcp_peer *p)
{
	const struct tt_frame *f = &p->frame;
	struct tt_tcp_answer a = { .kind = TT_FRAME_SUM, .slot = f->slot };
	uint8_t *at;
	int why = tt_tcp_find_place(p->net, f->key, f->offset, 8, &at);

	if (!why && !tt_aligned((uintptr_t)at))
		why = TT_NAK_INVALID;
	if (why) {
		tt_tcp_owe_nak(p, f->slot, why);
		return;
	}
	a.word = __atomic_fetch_add((uint64_t *)(void *)at, f->word, __ATOMIC_SEQ_CST);
	tt_tcp_owe_answer(p, &a);
}

/* Answers of the peer */

/* My request that this frame answers. NULL: there is no such request, and the connection is lost. */
static struct tt_op *asked(struct tt_tcp_peer *p, enum tt_kind kind)
{
	struct tt_op *op = p->ops.slots[p->frame.slot];

	if (op && op->kind == kind)
		return op;
	tt_flight_lose(&p->ops, "it answered what was not asked");
	return NULL;
}

static void open_reply(struct tt_tcp_peer *p)
{
	const struct tt_frame *f = &p->frame;
	struct tt_op *op = asked(p, TT_GET);

	if (!op)
		return;
	bool last = f->flags & TT_FRAME_LAST;
	if (f->offset != op->priv[2] || f->len > op->len - f->offset || last != (f->offset + f->len == op->len)) {
		tt_flight_lose(&p->ops, "it sent a piece of a reply that does not fit");
		return;
	}
	p->place = op->len && !tt_broken(GET_EARLY) ? (uint8_t *)op->local + f->offset : NULL;
	if (f->flags & TT_FRAME_INLINE && p->place)
		store_word(p->place, f->word, f->len);
}

static void close_reply(struct tt_tcp_peer *p)
{
	struct tt_op *op = p->ops.slots[p->frame.slot];

	op->priv[2] += p->frame.len;
	if (p->frame.flags & TT_FRAME_LAST)
		tt_tcp_answer_op(p, op, 0);
}

static void take_sum(struct tt_tcp_peer *p)
{
	struct tt_op *op = asked(p, TT_ADD);

	if (!op)
		return;
	op->operand = p->frame.word;
	tt_tcp_answer_op(p, op, 0);
}

/* A NAK only marks the PUT: the ack that this frame carries ends it. */
static void take_nak(struct tt_tcp_peer *p)
{
	struct tt_op *op = p->ops.slots[p->frame.slot];
	int err = tt_frame_error(p->frame.notify);

	if (op && op->kind == TT_PUT)
		op->err = err;
	else if (op)
		tt_tcp_answer_op(p, op, err);
	else if (!tt_broken(DONE_EARLY))
		tt_flight_lose(&p->ops, "it refused what was not asked");
}

/* Frames */

static bool read_header(struct tt_tcp_peer *p)
{
	struct tt_frame *f = &p->frame;

	if (!tt_frame_unpack(p->buffers->in + p->in_at, TT_FRAME_SIZE, f)) {
		tt_flight_lose(&p->ops, "it sent a frame that is none");
		return false;
	}
	if (f->job != tt_frame_fold(p->net->door.job) || f->epoch != p->dial.shake.epoch) {
		tt_flight_lose(&p->ops, "it sent a frame of another job or of another life");
		return false;
	}
	p->in_at += TT_FRAME_SIZE;
	p->left = tt_frame_payload(f);
	if (f->more) /* a hint: a wrong one costs a copy */
		p->batch_end = p->in_pos - (p->in_end - p->in_at) + p->left + tt_min(f->more, sizeof p->buffers->stage);
	return true;
}

static void open_frame(struct tt_tcp_peer *p)
{
	if (!read_header(p))
		return;
	p->open = true;
	p->place = NULL;
	if (p->frame.kind == TT_FRAME_NAK)
		take_nak(p);
	tt_tcp_take_ack(p);
	if (p->ops.broken)
		return;
	switch (p->frame.kind) {
	case TT_FRAME_PUT:
		open_put(p);
		break;
	case TT_FRAME_REPLY:
		open_reply(p);
		break;
	case TT_FRAME_SEND:
		p->place = p->buffers->message;
		break;
	case TT_FRAME_GET:
		serve_get(p);
		break;
	case TT_FRAME_ADD:
		serve_add(p);
		break;
	case TT_FRAME_SUM:
		take_sum(p);
		break;
	}
}

static void close_frame(struct tt_tcp_peer *p)
{
	p->open = false;
	if (p->frame.kind == TT_FRAME_PUT)
		close_put(p);
	if (p->frame.kind == TT_FRAME_REPLY)
		close_reply(p);
	if (p->frame.kind == TT_FRAME_SEND) {
		if (!tt_list_empty(&p->owing))
			tt_tcp_count_lazy(p);
		p->net->ops.events++;
		if (p->net->base.events->message)
			p->net->base.events->message(&p->base, p->buffers->message, p->frame.len);
	}
}

static void advance(struct tt_tcp_peer *p, size_t n)
{
	if (p->place)
		p->place += n;
	p->left -= n;
}

/* The part of a payload that came with the batch. */
static void copy_payload(struct tt_tcp_peer *p)
{
	size_t n = tt_min(p->left, p->in_end - p->in_at);

	if (p->place && n)
		memcpy(p->place, p->buffers->in + p->in_at, n);
	if (p->frame.len >= TT_FRAME_SMALL)
		p->net->base.copied += n;
	p->in_at += n;
	advance(p, n);
}

static void digest(struct tt_tcp_peer *p)
{
	while (!p->ops.broken) {
		if (p->left)
			copy_payload(p);
		if (p->left)
			break;
		if (p->open)
			close_frame(p);
		else if (p->in_end - p->in_at >= TT_FRAME_SIZE)
			open_frame(p);
		else
			break;
	}
	p->in_end -= p->in_at; /* less than a header is left */
	memmove(p->buffers->in, p->buffers->in + p->in_at, p->in_end);
	p->in_at = 0;
}

/* The socket */

void tt_tcp_activate(struct tt_tcp_peer *p)
{
	p->idle = 0;
	tt_list_append_once(&p->net->active, &p->active);
}

/* Whoever sends gigabytes, or answers with them, hears nothing else until they have landed. So each megabyte, or what
 * comes within some milliseconds if that is more, is acknowledged as a sign of life, perhaps with nothing new. */
static void count_received(struct tt_tcp_peer *p, size_t n)
{
	uint64_t before = p->base.received, now;

	p->base.received += n;
	if (before / MEGABYTE == p->base.received / MEGABYTE || (now = tt_now()) < p->life_told + PACE)
		return;
	p->life_told = now;
	tt_tcp_pay_ack(p);
}

/* One system call reads the rest of the payload into its place, then the next header, and the batch that it begins,
 * into `in`. */
static ssize_t receive(struct tt_tcp_peer *p, size_t budget, bool *all)
{
	size_t first = tt_min(p->left, p->place ? budget : TT_TCP_WASTE);
	uint64_t next = p->left ? p->in_pos + p->left : p->in_pos - p->in_end; /* where the next header starts */
	uint64_t end = (next > p->batch_end ? next : p->batch_end) + TT_FRAME_SIZE;
	size_t second = first < p->left ? 0 : tt_min(end - p->in_pos - p->left, sizeof p->buffers->in - p->in_end);
	struct iovec iov[2] = { { p->place ? p->place : p->net->waste, first },
		                { p->buffers->in + p->in_end, second } };
	struct msghdr m = { .msg_iov = iov, .msg_iovlen = 2 };
	ssize_t n = first ? recvmsg(p->dial.fd, &m, 0) : recv(p->dial.fd, iov[1].iov_base, second, 0);

	if (n > 0) {
		size_t placed = tt_min((size_t)n, first);
		advance(p, placed);
		p->in_pos += (size_t)n;
		p->in_end += (size_t)n - placed;
		count_received(p, (size_t)n);
	}
	*all = n == (ssize_t)(first + second);
	return n;
}

static void read_failed(struct tt_tcp_peer *p, ssize_t n)
{
	if (n < 0 && errno == EINTR)
		return;
	if (n == 0 || errno != EAGAIN || p->mute)
		tt_flight_lose(&p->ops, n && errno != EAGAIN ? strerror(errno) : "it closed it");
	else if (++p->idle >= IDLE_READS)
		tt_list_remove(&p->active);
	else if (p->idle == LAZY_READS && !tt_list_empty(&p->owing))
		tt_tcp_pay_ack(p);
}

/* A peer that sends without end delays the others by the time of one such read at most. A peer that is alone is read in
 * as few turns as possible. */
static size_t budget_of(const struct tt_tcp *net)
{
	return net->active.next == net->active.prev ? TT_TCP_BUDGET : TT_TCP_SHARE;
}

void tt_tcp_read_peer(struct tt_tcp_peer *p)
{
	size_t budget = budget_of(p->net);
	bool all = true;

	for (size_t i = 0, got = 0; i < TT_TCP_SYSCALLS && got < budget && all && tt_flight_alive(&p->ops); i++) {
		ssize_t n = receive(p, budget - got, &all);
		if (n <= 0) {
			read_failed(p, n);
			return;
		}
		p->net->ops.events++;
		p->idle = 0;
		got += (size_t)n;
		digest(p);
		tt_tcp_push_all(p->net); /* answers do not wait for the next read */
		/* no read that is probably fruitless before the caller learns of this one */
		all = all && (p->left || p->in_pos < p->batch_end);
	}
}
