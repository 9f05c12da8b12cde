/* sim.c - the transport of a simulated world: the contract's strictest reader
 *
 * From the world's seed come the latency and bandwidth of each link, and every freedom that transport.h grants. A
 * config may have its own latency, bandwidth and loss instead: then each rank has one link to all others.
 *
 *   post -> under way: pieces land, the word is added, the message leaves -> acknowledged -> done, by progress
 *                    |                                    (LAZY: when the target sleeps)
 *                    +-> parcels (SEND, NOTIFY) wait in `ordered` for earlier PUTs -> `incoming` of the peer
 */
#include "transport/sim/sim.h"
#include "transport/breaks.h"
#include "transport/flight.h"
#include "transport/frame.h"
#include "transport/sim/sim_private.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum {
	PIECES = 8, /* of an op, at most, so that large ops cost little */
	COPY_MAX = 64,
};

struct slot { /* a net's table of regions: what a key names */
	char *base;
	size_t len;
	int fd;       /* of a file with the same bytes, for map(); or -1 */
	uint64_t at;  /* the place in the file */
	uint64_t tag;
	bool taken;
};

enum { LAZY_POLLS = 64 };

struct net {
	struct tt_net base;
	struct tt_net_config config;
	void *secret;
	struct tt_list node; /* in the rank's list */
	struct tt_sim_rank *rank;
	int number;          /* among the rank's nets, never used twice */
	struct tt_list peers, inbox, lazy; /* lazy: flights of others that this net has not acknowledged */
	struct tt_list regions, views;
	struct tt_list pinned;
	struct slot *slots;
	uint32_t slot_count;
	bool armed;
	unsigned idle; /* calls of progress() in a row that found nothing */
};

struct pinned {
	struct tt_pin base;
	struct tt_list node; /* in net.pinned */
};

struct key { /* in tt_key.raw */
	uint64_t tag;
	uint32_t slot;
};

enum state { CONNECTING, PROVEN, UP, DOWN };

struct peer {
	struct tt_peer base;
	struct tt_list node;     /* in the net's list */
	struct peer *other;      /* the other end; NULL: not there yet, or gone */
	enum state state;
	int err;                 /* for down() */
	bool accepted, broken, failing, one_sided;
	struct tt_sim_event trip, fail; /* the handshake that is under way; how it fails */
	struct tt_sim_work hello, work;
	struct tt_list incoming; /* parcels that have arrived */
	struct tt_list ordered;  /* parcels on their way, in post order */
	struct tt_list outstanding, puts; /* flights in post order: not done; not landed */
	uint64_t posted, latency, gap, free_at; /* gap: nanoseconds for 1 KiB */
};

struct view { /* memory that map() has given out */
	struct tt_list node;  /* in its net's list */
	struct peer *of;      /* NULL: disconnected */
	char *at;
	size_t len;
};

struct flight { /* one op */
	struct tt_list node;  /* in outstanding */
	struct tt_list queue; /* in puts or lazy */
	struct peer *from;
	struct tt_op *op;
	struct tt_sim_event event;
	struct tt_sim_work work;
	struct parcel *parcel;
	uint64_t number, old;
	size_t cut[PIECES + 1];
	uint8_t order[PIECES];
	uint8_t pieces, landed;
	bool entered;  /* the link at the far end, with bandwidth */
	uint64_t last; /* when that is done with the op's last byte */
	int err;
	struct flight *free;
};

struct parcel { /* a message or a notify */
	struct tt_list node;
	struct peer *from;
	struct flight *flight; /* the PUT that it announces, until the PUT has landed */
	struct tt_sim_event event;
	uint64_t number;
	bool entered, arrived, message; /* entered: the link at the far end, with bandwidth */
	uint32_t value;
	size_t len;
	char *bytes;
};

static struct net *net_of(const struct peer *p) { return (struct net *)p->base.net; }

bool tt_sim_has_work(struct tt_sim_rank *r)
{
	tt_list_each(node, &r->nets)
		if (!tt_list_empty(&tt_container_of(node, struct net, node)->inbox))
			return true;
	return false;
}

static void queue_work(struct tt_sim_world *w, struct net *net, struct tt_sim_work *work,
                       void (*run)(struct tt_sim_world *, struct tt_sim_work *))
{
	if (!tt_list_empty(&work->node))
		return;
	work->run = run;
	tt_list_append(&net->inbox, &work->node);
	tt_sim_rouse_watchers(w, net->rank);
}

/* A lost message is sent again behind a timeout, which doubles each time (RFC 6298). */
static uint64_t lose(struct tt_sim_world *w)
{
	const double one = 1 << 30;
	uint64_t late = 0, timeout = w->config->retransmit_ns ? w->config->retransmit_ns : 200 * TT_MS;

	for (; w->config->loss > 0 && (double)tt_sim_below(w, (uint64_t)one) < w->config->loss * one; timeout *= 2)
		late += timeout;
	return late;
}

/* The time of one transfer in one direction. */
static uint64_t travel(struct tt_sim_world *w, struct peer *p)
{
	bool like_real = w->config->latency_ns;
	uint64_t ns = like_real ? p->latency : p->latency + tt_sim_below(w, p->latency);
	unsigned slow = net_of(p)->rank->slow;

	if (p->other && net_of(p->other)->rank->slow > slow)
		slow = net_of(p->other)->rank->slow;
	if (!like_real && tt_sim_one_in(w, 16))
		ns += tt_sim_below(w, 20 * p->latency);
	return ns * slow + lose(w);
}

/* ---- with bandwidth: a rank's link, on which bytes queue ---- */

static uint64_t carry(const struct tt_sim_world *w, const struct tt_sim_rank *r, size_t len)
{
	return w->config->bandwidth ? (uint64_t)((double)len * 1e9 / (double)w->config->bandwidth) * r->slow : 0;
}

/* When the link is done with `len` bytes that are there from `from` on. */
static uint64_t occupy(const struct tt_sim_world *w, const struct tt_sim_rank *r, uint64_t *free, uint64_t from,
                       size_t len)
{
	*free = tt_max(*free, from) + carry(w, r, len);
	return *free;
}

/* When the first byte of what this end sends now begins its travel. */
static uint64_t leave(struct tt_sim_world *w, struct peer *p, size_t len)
{
	struct tt_sim_rank *r = net_of(p)->rank;

	return w->config->bandwidth ? occupy(w, r, &r->out_free, w->now, len) - carry(w, r, len) : w->now;
}

/* When this end has all bytes, the first of which comes at `from`. */
static uint64_t enter(struct tt_sim_world *w, struct peer *p, uint64_t from, size_t len)
{
	struct tt_sim_rank *r = net_of(p)->rank;

	return w->config->bandwidth ? occupy(w, r, &r->in_free, from, len) : from;
}

static struct peer *new_peer(struct tt_sim_world *w, struct net *net)
{
	struct peer *p = tt_sim_make(sizeof *p);

	p->base.net = &net->base;
	p->latency = w->config->latency_ns ? w->config->latency_ns : 1000 + tt_sim_below(w, 19000);
	p->gap = w->config->bandwidth ? 0 : 100 + tt_sim_below(w, 900);
	p->one_sided = tt_sim_one_in(w, 2);
	tt_list_init(&p->hello.node);
	tt_list_init(&p->work.node);
	tt_list_init(&p->incoming);
	tt_list_init(&p->ordered);
	tt_list_init(&p->outstanding);
	tt_list_init(&p->puts);
	tt_list_append(&net->peers, &p->node);
	return p;
}

static void free_parcel(struct tt_sim_world *w, struct parcel *c)
{
	if (c->flight)
		c->flight->parcel = NULL;
	tt_sim_cancel(w, &c->event);
	tt_list_remove(&c->node);
	free(c->bytes);
	free(c);
}

static void free_parcels(struct tt_sim_world *w, struct tt_list *list)
{
	while (!tt_list_empty(list))
		free_parcel(w, tt_container_of(list->next, struct parcel, node));
}

static void run_peer(struct tt_sim_world *, struct tt_sim_work *);

static void fail_fired(struct tt_sim_world *w, struct tt_sim_event *e)
{
	struct peer *p = tt_container_of(e, struct peer, fail);

	p->failing = true;
	tt_sim_cancel(w, &p->trip);
	tt_list_remove(&p->hello.node);
	if (tt_sim_one_in(w, 2)) /* what has arrived and was not read: a reset drops it, an end of file does not */
		free_parcels(w, &p->incoming);
	queue_work(w, net_of(p), &p->work, run_peer);
}

/* This end learns of the failure after a while. Until then what is under way may still arrive. */
static void break_end(struct tt_sim_world *w, struct peer *p, int err, uint64_t delay)
{
	if (p->failing || p->state == DOWN || p->broken)
		return;
	p->broken = true;
	p->err = err;
	tt_sim_schedule(w, &p->fail, w->now + delay, fail_fired);
}

static uint64_t fail_delay(struct tt_sim_world *w) { return tt_sim_below(w, tt_sim_one_in(w, 8) ? 5 * TT_MS : 60000); }

static void break_link(struct tt_sim_world *w, struct peer *p)
{
	if (p->other)
		break_end(w, p->other, -ECONNRESET, fail_delay(w));
	break_end(w, p, -ECONNRESET, fail_delay(w));
}

/* Neither end reaches the other's memory any more. */
static void unlink_peer(struct tt_sim_world *w, struct peer *p)
{
	struct peer *other = p->other;

	if (!other)
		return;
	p->other = other->other = NULL;
	break_end(w, other, -ECONNRESET, fail_delay(w));
}

/* ---- an op under way ---- */

static struct flight *new_flight(struct tt_sim_world *w, struct peer *p, struct tt_op *op)
{
	struct flight *f = w->flights;

	if (f)
		w->flights = f->free;
	else
		f = tt_sim_need(malloc(sizeof *f));
	memset(f, 0, sizeof *f);
	f->from = p;
	f->op = op;
	f->number = ++p->posted;
	tt_list_init(&f->queue);
	tt_list_init(&f->work.node);
	tt_list_append(&p->outstanding, &f->node);
	return f;
}

/* Takes the flight out of all lists. The op is the caller's again, with f->err. */
static struct tt_op *end_flight(struct tt_sim_world *w, struct flight *f)
{
	struct tt_op *op = f->op;

	if (op->kind == TT_ADD && !f->err)
		op->operand = f->old;
	if (f->parcel)
		f->parcel->flight = NULL;
	tt_sim_cancel(w, &f->event);
	tt_list_remove(&f->node);
	tt_list_remove(&f->queue);
	tt_list_remove(&f->work.node);
	f->free = w->flights;
	w->flights = f;
	return op;
}

static void run_done(struct tt_sim_world *w, struct tt_sim_work *work)
{
	struct flight *f = tt_container_of(work, struct flight, work);
	int err = f->err;
	struct tt_op *op = end_flight(w, f);

	tt_op_finish(op, err);
	if (tt_broken(DONE_TWICE))
		tt_op_finish(op, err);
}

static bool asks(const struct flight *f) { return f->op->kind == TT_GET || f->op->kind == TT_ADD; }

/* The answer or acknowledgement has come back. */
static void ack_fired(struct tt_sim_world *w, struct tt_sim_event *e)
{
	struct flight *f = tt_container_of(e, struct flight, event);
	struct peer *p = f->from;

	if (p->other) /* else the answer is lost, and the failure finishes the op */
		queue_work(w, net_of(p), &f->work, run_done);
}

static void acknowledge(struct tt_sim_world *w, struct flight *f)
{
	struct peer *p = f->from;

	if (!p->other)
		return;
	uint64_t at = w->now + travel(w, p);
	if (asks(f)) /* the answer's last byte has left by now */
		at = enter(w, p, at - carry(w, net_of(p->other)->rank, f->op->len), f->op->len);
	tt_sim_schedule(w, &f->event, at, ack_fired);
}

static void flush_lazy(struct tt_sim_world *w, struct net *net, const struct peer *only)
{
	tt_each_of(struct flight, queue, f, &net->lazy) {
		if (only && f->from != only)
			continue;
		tt_list_remove(&f->queue);
		acknowledge(w, f);
	}
}

/* Delivers parcels that have arrived, each behind the PUTs that were posted before it. */
static void deliver_ready(struct tt_sim_world *w, struct peer *p)
{
	/* Nothing comes behind what a reset has dropped. */
	while (p->other && !p->other->failing && !tt_list_empty(&p->ordered)) {
		struct parcel *c = tt_container_of(p->ordered.next, struct parcel, node);
		if (!c->arrived)
			return;
		if (!tt_list_empty(&p->puts) && !tt_broken(NOTIFY_FIRST) &&
		    tt_container_of(p->puts.next, struct flight, queue)->number <= c->number)
			return;
		tt_list_remove(&c->node);
		if (c->flight)
			c->flight->parcel = NULL;
		c->flight = NULL;
		struct tt_list *end = &p->other->incoming;
		if (tt_broken(MESSAGES_SWAPPED) && c->message)
			end = end->prev; /* the previous parcel is still there: this one goes before it */
		tt_list_append(end, &c->node);
		queue_work(w, net_of(p->other), &p->other->work, run_peer);
	}
}

static void parcel_fired(struct tt_sim_world *w, struct tt_sim_event *e)
{
	struct parcel *c = tt_container_of(e, struct parcel, event);
	struct peer *p = c->from;

	if (w->config->bandwidth && !c->entered && p->other) {
		c->entered = true;
		tt_sim_schedule(w, &c->event, enter(w, p->other, w->now, TT_FRAME_SIZE + c->len), parcel_fired);
		return;
	}
	c->arrived = true;
	deliver_ready(w, p);
}

/* A message leaves with a copy of its bytes. A notify travels behind its data. */
static void send_parcel(struct tt_sim_world *w, struct flight *f, bool message)
{
	struct parcel *c = tt_sim_make(sizeof *c);
	struct tt_op *op = f->op;

	c->from = f->from;
	c->number = f->number;
	c->message = message;
	c->value = op->notify;
	if (message) {
		c->len = op->len;
		c->bytes = tt_sim_need(malloc(op->len ? op->len : 1));
		if (op->len)
			memcpy(c->bytes, op->local, op->len);
	} else {
		c->flight = f;
		f->parcel = c;
	}
	tt_list_append(&f->from->ordered, &c->node);
	uint64_t at = leave(w, f->from, TT_FRAME_SIZE + c->len);
	tt_sim_schedule(w, &c->event, at + travel(w, f->from) + op->len * f->from->gap / 1024, parcel_fired);
}

/* All work at the target is done, or has failed there. */
static void complete(struct tt_sim_world *w, struct flight *f, int err)
{
	struct peer *p = f->from;
	struct net *target = net_of(p->other);

	f->err = err;
	tt_list_remove(&f->queue);
	if (f->parcel && err)
		free_parcel(w, f->parcel);
	else if (f->parcel)
		f->parcel->flight = NULL;
	f->parcel = NULL;
	deliver_ready(w, p);
	if (f->op->flags & TT_LAZY && !asks(f) && !target->armed && !tt_sim_one_in(w, 4))
		tt_list_append(&target->lazy, &f->queue);
	else
		acknowledge(w, f);
}

/* The strict reader's answer to a bad key. Nothing comes behind a PUT that has not landed: neither its own notify nor a
 * message that was posted later. */
static bool end_misuser(struct tt_sim_world *w, struct flight *f, int err)
{
	if (!w->config->strict || tt_broken(STALE_SPARED) || (err != -ESTALE && err != -ERANGE))
		return false;
	break_link(w, f->from);
	return true;
}

/* NULL: there is no such region, or not any more */
static const struct slot *find_slot(const struct net *net, const struct tt_key *key)
{
	struct key k;

	memcpy(&k, key->raw, sizeof k);
	if (k.slot >= net->slot_count)
		return NULL;
	const struct slot *s = &net->slots[k.slot];
	return s->tag == k.tag && (s->taken || tt_broken(STALE_KEY)) ? s : NULL;
}

static int find_memory(struct net *net, const struct tt_op *op, char **out)
{
	const struct slot *s = find_slot(net, op->key);

	if (!s)
		return -ESTALE;
	if ((op->offset > s->len || op->len > s->len - op->offset) && !tt_broken(KEY_PAST_END))
		return -ERANGE;
	if (op->kind == TT_ADD && (uintptr_t)(s->base + op->offset) % 8)
		return -EINVAL;
	*out = s->base + op->offset;
	return 0;
}

static void piece_fired(struct tt_sim_world *, struct tt_sim_event *);

static void schedule_piece(struct tt_sim_world *w, struct flight *f)
{
	struct peer *p = f->from;
	uint64_t busy = f->op->len / f->pieces * p->gap / 1024 * net_of(p)->rank->slow;

	if (w->config->bandwidth) { /* the pieces come as the link carries them */
		uint64_t left = carry(w, net_of(p->other)->rank, f->op->len) / f->pieces;
		tt_sim_schedule(w, &f->event, f->last - left * (uint64_t)(f->pieces - 1 - f->landed), piece_fired);
		return;
	}
	tt_sim_schedule(w, &f->event, w->now + busy + tt_sim_below(w, p->latency / 2), piece_fired);
}

static void land_piece(struct tt_sim_world *w, struct flight *f)
{
	struct tt_op *op = f->op;
	char *remote, *local = op->local;
	int err = find_memory(net_of(f->from->other), op, &remote);

	if (err) {
		if (!end_misuser(w, f, err))
			complete(w, f, err);
		return;
	}
	if (op->kind == TT_ADD) {
		f->old = __atomic_fetch_add((uint64_t *)remote, op->operand, __ATOMIC_SEQ_CST);
		complete(w, f, 0);
		return;
	}
	unsigned i = f->order[f->landed++];
	size_t from = f->cut[i], len = f->cut[i + 1] - from;
	if (op->kind == TT_PUT) {
		tt_copy_word(remote + from, local + from, len);
		f->from->other->base.received += len;
	} else {
		tt_copy_word(local + from, remote + from, len);
		f->from->base.received += len;
		f->from->other->base.received++; /* it was asked for the bytes */
	}
	if (f->landed == f->pieces)
		complete(w, f, 0);
	else
		schedule_piece(w, f);
}

static void run_piece(struct tt_sim_world *w, struct tt_sim_work *work)
{
	struct flight *f = tt_container_of(work, struct flight, work);

	if (f->from->other)
		land_piece(w, f);
}

static void piece_fired(struct tt_sim_world *w, struct tt_sim_event *e)
{
	struct flight *f = tt_container_of(e, struct flight, event);
	struct peer *p = f->from;

	if (!p->other)
		return;
	if (w->config->bandwidth && !f->entered) {
		f->entered = true;
		f->last = asks(f) ? leave(w, p->other, TT_FRAME_SIZE + f->op->len) +
		                            carry(w, net_of(p->other)->rank, f->op->len)
		                  : enter(w, p->other, w->now, f->op->len);
		schedule_piece(w, f);
		return;
	}
	if (p->one_sided && f->op->kind != TT_ADD)
		land_piece(w, f);
	else
		queue_work(w, net_of(p->other), &f->work, run_piece);
}

/* Chooses where the op is cut, and in which order the pieces land. */
static void cut_pieces(struct tt_sim_world *w, struct flight *f)
{
	const struct tt_op *op = f->op;
	bool word = op->len == 8 && !(((uintptr_t)op->local | op->offset) % 8);

	f->pieces = 1;
	if (!word && op->len >= 2 && op->kind != TT_ADD)
		f->pieces += (uint8_t)tt_sim_below(w, tt_min(PIECES, op->len));
	f->cut[f->pieces] = op->len;
	for (unsigned i = 1; i < f->pieces; i++) { /* one cut in each equal part, so that the cuts are sorted */
		size_t part = op->len / f->pieces;
		f->cut[i] = (i - 1) * part + 1 + tt_sim_below(w, part);
		if (op->kind == TT_GET) /* a GET takes whole words */
			f->cut[i] = tt_max(f->cut[i - 1], tt_min(op->len, f->cut[i] + (-(op->offset + f->cut[i]) & 7)));
	}
	for (unsigned i = 0; i < f->pieces; i++) { /* an inside-out shuffle (Fisher, Yates) */
		unsigned j = (unsigned)tt_sim_below(w, i + 1);
		f->order[i] = f->order[j];
		f->order[j] = (uint8_t)i;
	}
}

struct copy { /* of an op that ends before its flight */
	struct tt_op op;
	struct tt_key key;
	char bytes[] __attribute__((aligned(8)));
};

static void free_copy(struct tt_op *op) { free(tt_container_of(op, struct copy, op)); }

/* The caller's op ends now with success, and a copy of the op goes on: for TT_LOCAL with its bytes and key, for the
 * breaks without them. */
static void finish_early(struct tt_sim_world *w, struct flight *f)
{
	const struct tt_op *op = f->op;
	size_t len = op->flags & TT_LOCAL ? op->len : 0;
	struct copy *copy = tt_sim_need(malloc(sizeof *copy + len));
	struct flight *early = new_flight(w, f->from, f->op);

	copy->op = *op;
	copy->op.done = free_copy;
	if (len) {
		copy->key = *op->key;
		copy->op.key = &copy->key;
		copy->op.local = memcpy(copy->bytes, op->local, len);
	}
	f->op = &copy->op;
	queue_work(w, net_of(f->from), &early->work, run_done);
}

static bool ends_early(struct tt_sim_world *w, const struct tt_op *op)
{
	return (op->kind == TT_PUT && (tt_broken(DONE_EARLY) || (op->flags & TT_LOCAL && !tt_sim_one_in(w, 4)))) ||
	       (op->kind == TT_GET && tt_broken(GET_EARLY));
}

static void start_flight(struct tt_sim_world *w, struct flight *f)
{
	struct peer *p = f->from;
	struct tt_op *op = f->op;

	w->counts.bytes += TT_FRAME_SIZE + op->len + (asks(f) ? TT_FRAME_SIZE : 0); /* a question has an answer */
	if (op->kind == TT_SEND) {
		send_parcel(w, f, true);
		if (tt_broken(DONE_IN_POST))
			run_done(w, &f->work);
		else
			acknowledge(w, f);
		return;
	}
	if (op->kind == TT_PUT && op->flags & TT_NOTIFY)
		send_parcel(w, f, false);
	if (op->kind == TT_PUT && !op->len) {
		complete(w, f, 0);
		return;
	}
	if (op->kind == TT_PUT)
		tt_list_append(&p->puts, &f->queue);
	cut_pieces(w, f);
	p->free_at = tt_max(p->free_at, w->now) + op->len * p->gap / 1024;
	size_t sent = TT_FRAME_SIZE + (asks(f) ? 0 : op->len);
	uint64_t out = tt_max(p->free_at - op->len * p->gap / 1024, leave(w, p, sent));
	uint64_t late = w->config->strict && op->kind == TT_GET && tt_sim_one_in(w, 4) ? 40 * p->latency : 0;
	tt_sim_schedule(w, &f->event, out + travel(w, p) + tt_sim_below(w, late), piece_fired);
	if (ends_early(w, op))
		finish_early(w, f);
}

static void post(struct tt_peer *base, struct tt_op *op)
{
	struct peer *p = (struct peer *)base;
	struct tt_sim_world *w = tt_sim_here();
	struct flight *f = new_flight(w, p, op);

	w->counts.ops++;
	f->err = p->state == UP ? tt_op_check(base->net, op) : -ENOTCONN;
	if (f->err)
		queue_work(w, net_of(p), &f->work, run_done);
	if (p->other)
		flush_lazy(w, net_of(p), p->other); /* traffic back carries acknowledgements */
	if (!f->err && p->other && !p->broken) /* else the failure finishes the op */
		start_flight(w, f);
}

/* ---- how a peer fails ---- */

static void finish_outstanding(struct tt_sim_world *w, struct peer *p)
{
	struct tt_list mine; /* ops that callbacks post meanwhile are not among these */

	tt_list_init(&mine);
	while (!tt_list_empty(&p->outstanding)) {
		struct tt_list *node = tt_broken(FAIL_OUT_OF_ORDER) ? p->outstanding.prev : p->outstanding.next;
		tt_list_remove(node);
		tt_list_append(&mine, node);
	}
	while (!tt_list_empty(&mine)) {
		struct flight *f = tt_container_of(mine.next, struct flight, node);
		int err = f->err = f->err == -ENOTCONN ? f->err : -ECONNRESET;
		tt_op_finish(end_flight(w, f), err);
	}
}

/* A pointer into a view may be in use: from here on it leads to memory that is nobody's. */
static void empty_views(struct peer *p)
{
	tt_each_of(struct view, node, v, &net_of(p)->views) {
		if (v->of != p)
			continue;
		(void)mmap(v->at, v->len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
		v->of = NULL;
	}
}

static void free_peer(struct tt_sim_world *w, struct peer *p)
{
	p->state = DOWN;
	unlink_peer(w, p);
	while (!tt_list_empty(&p->outstanding))
		finish_outstanding(w, p);
	free_parcels(w, &p->ordered);
	free_parcels(w, &p->incoming);
	tt_sim_cancel(w, &p->trip);
	tt_sim_cancel(w, &p->fail);
	tt_list_remove(&p->hello.node);
	tt_list_remove(&p->work.node);
	tt_list_remove(&p->node);
	empty_views(p);
	free(p);
}

static void fail_peer(struct tt_sim_world *w, struct peer *p)
{
	const struct tt_events *events = p->base.net->events;

	if (p->accepted && p->state != UP) {
		free_peer(w, p); /* no event has reported it */
		return;
	}
	if (p->state == UP)
		p->err = -ECONNRESET;
	else if (p->err == -ECONNRESET)
		p->err = -EHOSTUNREACH;
	p->state = DOWN;
	unlink_peer(w, p);
	free_parcels(w, &p->ordered);
	free_parcels(w, &p->incoming);
	finish_outstanding(w, p);
	events->down(&p->base, p->err);
	if (tt_broken(DOWN_TWICE))
		events->down(&p->base, p->err);
}

static void deliver(struct tt_sim_world *w, struct peer *p, struct parcel *c)
{
	const struct tt_events *events = p->base.net->events;

	tt_list_remove(&c->node);
	p->base.received += c->len + 1;
	if (c->message)
		events->message(&p->base, c->bytes, c->len);
	else
		events->notify(&p->base, c->value);
	free_parcel(w, c);
}

static void run_peer(struct tt_sim_world *w, struct tt_sim_work *work)
{
	struct peer *p = tt_container_of(work, struct peer, work);

	if (p->state == PROVEN) {
		p->state = UP;
		p->base.net->events->up(&p->base);
	}
	while (p->state == UP && !tt_list_empty(&p->incoming))
		deliver(w, p, tt_container_of(p->incoming.next, struct parcel, node));
	if (p->failing && p->state != DOWN)
		fail_peer(w, p);
}

/* ---- connecting: the target's progress() handles the hello, then both ends come up ---- */

static bool is_cut(struct tt_sim_world *w, int a, int b)
{
	for (int i = 0; i < w->cut; i++)
		if (tt_sim_is_cut(w, i, a, b))
			return true;
	return false;
}

static struct net *find_net(struct tt_sim_world *w, const char *addr)
{
	int rank, number = 0;

	if (sscanf(addr, "sim:%d:%d", &rank, &number) < 1 || rank < 0 || rank >= w->config->ranks)
		return NULL;
	if (w->ranks[rank].killed || w->ranks[rank].gone)
		return NULL;
	tt_list_each(node, &w->ranks[rank].nets)
		if (tt_container_of(node, struct net, node)->number == number)
			return tt_container_of(node, struct net, node);
	return NULL;
}

static bool is_reachable(struct tt_sim_world *w, const struct net *from, const struct net *to)
{
	return to && !from->rank->killed && !is_cut(w, from->rank->number, to->rank->number);
}

static int refusal(struct tt_sim_world *w, const struct net *asking, const struct net *asked)
{
	if (!is_reachable(w, asking, asked))
		return -EHOSTUNREACH;
	if (asking->config.job != asked->config.job)
		return -EPROTO;
	if (asking->config.secret_len != asked->config.secret_len)
		return -EACCES;
	return asking->secret && memcmp(asking->secret, asked->secret, asked->config.secret_len) ? -EACCES : 0;
}

static void proven_fired(struct tt_sim_world *w, struct tt_sim_event *e)
{
	struct peer *p = tt_container_of(e, struct peer, trip);

	if (p->failing)
		return;
	if (!p->broken)
		tt_sim_cancel(w, &p->fail); /* the timeout */
	p->state = PROVEN;
	queue_work(w, net_of(p), &p->work, run_peer);
}

static void run_hello(struct tt_sim_world *w, struct tt_sim_work *work)
{
	struct peer *a = tt_container_of(work, struct peer, hello), *b;
	struct net *net = find_net(w, a->base.addr); /* this net itself */
	int err = refusal(w, net_of(a), net);

	if (err) {
		break_end(w, a, err, travel(w, a));
		return;
	}
	b = new_peer(w, net);
	b->accepted = true;
	snprintf(b->base.addr, sizeof b->base.addr, "%s", net_of(a)->base.addr);
	b->one_sided = a->one_sided;
	b->other = a;
	a->other = b;
	tt_sim_schedule(w, &a->trip, w->now + travel(w, a), proven_fired);
	tt_sim_schedule(w, &b->trip, w->now + a->latency + travel(w, b), proven_fired);
}

static void hello_fired(struct tt_sim_world *w, struct tt_sim_event *e)
{
	struct peer *p = tt_container_of(e, struct peer, trip);
	struct net *target = find_net(w, p->base.addr);

	if (!is_reachable(w, net_of(p), target))
		break_end(w, p, -EHOSTUNREACH, travel(w, p));
	else
		queue_work(w, target, &p->hello, run_hello);
}

static void timeout_fired(struct tt_sim_world *w, struct tt_sim_event *e)
{
	struct peer *p = tt_container_of(e, struct peer, fail);

	p->broken = true;
	p->err = -ETIMEDOUT;
	fail_fired(w, e);
}

static int connect_net(struct tt_net *base, const char *addr, struct tt_peer **out)
{
	struct tt_sim_world *w = tt_sim_here();
	struct net *net = (struct net *)base;
	struct peer *p;

	if (strncmp(addr, "sim:", 4) || strlen(addr) >= sizeof p->base.addr || addr[4] < '0' || addr[4] > '9')
		return tt_fail(-EINVAL, "%s is not an address of a simulated net: those look like sim:3", addr);
	p = new_peer(w, net);
	snprintf(p->base.addr, sizeof p->base.addr, "%s", addr);
	tt_sim_schedule(w, &p->trip, w->now + travel(w, p), hello_fired);
	if (net->config.timeout_ms)
		tt_sim_schedule(w, &p->fail, w->now + net->config.timeout_ms * TT_MS, timeout_fired);
	*out = &p->base;
	return 0;
}

static void disconnect(struct tt_peer *base) { free_peer(tt_sim_here(), (struct peer *)base); }

/* ---- nets and regions ---- */

static const struct tt_transport pinning;

static int list_devices(struct tt_device *out, int max)
{
	if (!tt_world)
		return tt_fail(-ENODEV, "the transport sim exists only inside a simulated world: tt_sim_run makes one");
	if (max > 0)
		*out = (struct tt_device){ .name = "sim", .numa = -1 };
	return 1;
}

/* Where ranks share hosts, the net stands for shared memory. Else, in half of the worlds, for an adapter. */
static bool pins(const struct tt_sim_world *w)
{
	return !w->config->hosts && !w->config->latency_ns && w->config->seed % 2;
}

static int open_net(const struct tt_net_config *config, struct tt_net **out)
{
	struct tt_sim_world *w = tt_sim_here();
	struct net *net;

	if (!w)
		return tt_fail(-ENODEV, "the transport sim exists only inside a simulated world: tt_sim_run makes one");
	net = tt_sim_make(sizeof *net);
	net->rank = &w->ranks[tt_sim_rank()];
	net->number = net->rank->nets_made++;
	net->base = (struct tt_net){ .transport = pins(w) ? &pinning : &tt_sim, .events = config->events,
	                             .user = config->user, .fd = -1, .copy_max = COPY_MAX };
	if (net->number)
		snprintf(net->base.addr, sizeof net->base.addr, "sim:%d:%d", net->rank->number, net->number);
	else
		snprintf(net->base.addr, sizeof net->base.addr, "sim:%d", net->rank->number);
	net->config = *config;
	net->config.secret_len = config->secret ? config->secret_len : 0;
	if (net->config.secret_len)
		net->secret = memcpy(tt_sim_make(config->secret_len), config->secret, config->secret_len);
	tt_list_init(&net->peers);
	tt_list_init(&net->inbox);
	tt_list_init(&net->lazy);
	tt_list_init(&net->regions);
	tt_list_init(&net->views);
	tt_list_init(&net->pinned);
	tt_list_append(&net->rank->nets, &net->node);
	*out = &net->base;
	return 0;
}

/* Like an adapter, it reaches pinned memory alone. It does not look whether the memory is there. */
static int pin(struct tt_net *base, const struct tt_mem *mem, int remote, struct tt_pin **out)
{
	struct tt_sim_world *w = tt_sim_here();
	struct pinned *p = tt_sim_make(sizeof *p);

	tt_sim_stall(w, 1000 + tt_sim_below(w, tt_sim_one_in(w, 64) ? 5 * TT_MS : 50000));
	p->base = (struct tt_pin){ .net = base, .mem = *mem, .remote = remote };
	tt_list_append(&((struct net *)base)->pinned, &p->node);
	*out = &p->base;
	return 0;
}

static void unpin(struct tt_pin *base)
{
	struct tt_sim_world *w = tt_sim_here();
	struct pinned *p = tt_container_of(base, struct pinned, base);

	tt_sim_stall(w, 1000 + tt_sim_below(w, 20000));
	tt_list_each(node, &((struct net *)base->net)->regions)
		if (tt_container_of(node, struct tt_grant, node)->base.pin == base)
			tt_sim_end(-EFAULT, "a region outlives its pin");
	tt_list_remove(&p->node);
	free(p);
}

static uint32_t take_slot(struct net *net)
{
	uint32_t i = 0;

	while (i < net->slot_count && net->slots[i].taken)
		i++;
	if (i == net->slot_count) {
		net->slot_count = i * 2 + 4;
		net->slots = tt_sim_need(realloc(net->slots, net->slot_count * sizeof *net->slots));
		memset(net->slots + i, 0, (net->slot_count - i) * sizeof *net->slots);
	}
	return i;
}

static int grant_key(struct tt_grant *r)
{
	struct net *net = (struct net *)r->base.net;
	const struct tt_mem *mem = &r->base.mem;
	struct key k = { tt_random_next(&tt_sim_here()->random) | 1, take_slot(net) };

	net->slots[k.slot] = (struct slot){ mem->base, mem->len, mem->fd, mem->fd_offset, k.tag, true };
	r->id = k.slot + 1u;
	r->base.key.len = mem->len;
	memcpy(r->base.key.raw, &k, sizeof k);
	return 0;
}

static int reg(struct tt_net *base, const struct tt_mem *mem, int remote, struct tt_pin *pin, struct tt_region **out)
{
	return tt_grant_new(base, mem, pin, &((struct net *)base)->regions, remote ? grant_key : NULL, out);
}

static void dereg(struct tt_region *base)
{
	struct tt_grant *r = tt_container_of(base, struct tt_grant, base);

	if (r->id)
		((struct net *)base->net)->slots[r->id - 1].taken = false;
	tt_grant_free(r);
}

/* Refuses the peers whose hello waits. */
static void empty_inbox(struct tt_sim_world *w, struct net *net)
{
	struct tt_list *node;

	while ((node = tt_list_pop(&net->inbox))) {
		struct tt_sim_work *work = tt_container_of(node, struct tt_sim_work, node);
		if (work->run == run_hello)
			break_end(w, tt_container_of(work, struct peer, hello), -EHOSTUNREACH, fail_delay(w));
	}
}

static void close_net(struct tt_net *base)
{
	struct net *net = (struct net *)base;
	struct tt_sim_world *w = tt_sim_here();
	struct tt_list *node;

	tt_list_remove(&net->node);
	while (!tt_list_empty(&net->peers))
		free_peer(w, tt_container_of(net->peers.next, struct peer, node));
	while (!tt_list_empty(&net->regions))
		dereg(&tt_container_of(net->regions.next, struct tt_grant, node)->base);
	while ((node = tt_list_pop(&net->views))) {
		struct view *v = tt_container_of(node, struct view, node);
		munmap(v->at, v->len);
		free(v);
	}
	while ((node = tt_list_pop(&net->pinned)))
		free(tt_container_of(node, struct pinned, node));
	empty_inbox(w, net);
	while (tt_list_pop(&net->lazy))
		;
	free(net->slots);
	free(net->secret);
	free(net);
}

/* Another mapping of the same file, which outlives its owner's mapping. In every fourth world there is now and then
 * none. */
static void *map_region(struct tt_peer *base, const struct tt_key *key, int anytime)
{
	struct tt_sim_world *w = tt_sim_here();
	struct peer *p = (struct peer *)base;
	const struct slot *s = p->state == UP && p->other ? find_slot(net_of(p->other), key) : NULL;
	size_t page = 4096, before = s ? s->at % page : 0;
	struct view *v;
	void *at;

	(void)anytime; /* no rank freezes in the middle of a store: that happens between two turns only */
	if (w->config->latency_ns) /* other hosts */
		return NULL;
	if (!s || s->fd < 0 || key->len > s->len || (w->config->seed % 4 == 3 && tt_sim_one_in(w, 8)))
		return NULL;
	at = mmap(NULL, before + s->len, PROT_READ | PROT_WRITE, MAP_SHARED, s->fd, (off_t)(s->at - before));
	if (at == MAP_FAILED)
		return NULL;
	v = tt_sim_make(sizeof *v);
	*v = (struct view){ .of = p, .at = at, .len = before + s->len };
	tt_list_append(&net_of(p)->views, &v->node);
	return v->at + before;
}

static int store_begin(struct tt_peer *base, const struct tt_key *key)
{
	struct peer *p = (struct peer *)base;

	/* A killed rank runs on until it waits, and stores nothing. */
	return p->state == UP && p->other && !net_of(p)->rank->killed && find_slot(net_of(p->other), key);
}

static void store_end(struct tt_peer *p) { (void)p; }
static int notify(struct tt_peer *p, uint32_t value) { return (void)p, (void)value, 0; }

static int progress(struct tt_net *base)
{
	struct net *net = (struct net *)base;
	struct tt_sim_world *w = tt_sim_here();
	struct tt_list *node;
	int n = 0, most = 1 + (int)tt_sim_below(w, 64);

	net->armed = false;
	while (n < most && (node = tt_list_pop(&net->inbox))) {
		struct tt_sim_work *work = tt_container_of(node, struct tt_sim_work, node);
		work->run(w, work);
		n++;
	}
	net->idle = n ? 0 : net->idle + 1;
	if (net->idle % LAZY_POLLS == LAZY_POLLS - 1)
		flush_lazy(w, net, NULL);
	tt_sim_polled(w, n);
	return n;
}

static int arm(struct tt_net *base)
{
	struct net *net = (struct net *)base;

	if (!tt_list_empty(&net->inbox))
		return 1;
	net->armed = true; /* the net goes to sleep: no peer waits for its acknowledgements */
	flush_lazy(tt_sim_here(), net, NULL);
	return 0;
}

#define FUNCTIONS \
	.name = "sim", .list = list_devices, .open = open_net, .close = close_net, .reg = reg, .dereg = dereg, \
	.connect = connect_net, .disconnect = disconnect, .post = post, .map = map_region, .store_begin = store_begin, \
	.store_end = store_end, .notify = notify, .progress = progress, .arm = arm

const struct tt_transport tt_sim = { FUNCTIONS };
static const struct tt_transport pinning = { FUNCTIONS, .pin = pin, .unpin = unpin };

/* ---- what the world does to the wire ---- */

void tt_sim_break_links(struct tt_sim_world *w, struct tt_sim_rank *r, int only)
{
	tt_each_of(struct net, node, net, &r->nets) {
		tt_list_each(at, &net->peers) {
			struct peer *p = tt_container_of(at, struct peer, node);
			int other = p->other ? net_of(p->other)->rank->number : -1;
			if (only < 0 || other == only)
				break_link(w, p);
		}
	}
}

/* All fibers of the rank have ended, as if its process had exited. The memory of its nets may be gone. */
void tt_sim_leave_world(struct tt_sim_world *w, struct tt_sim_rank *r)
{
	r->gone = true;
	tt_each_of(struct net, node, net, &r->nets) {
		empty_inbox(w, net);
		tt_list_each(at, &net->peers) {
			struct peer *p = tt_container_of(at, struct peer, node);
			tt_sim_cancel(w, &p->trip);
			tt_sim_cancel(w, &p->fail);
			p->state = DOWN;
			unlink_peer(w, p);
		}
	}
}

void tt_sim_free_flights(struct tt_sim_world *w)
{
	for (struct flight *f = w->flights, *next; f; f = next) {
		next = f->free;
		free(f);
	}
}
