/* sketch.c - a transport on verbs.h
 *
 *     PUT      RDMA WRITEs; NOTIFY: the last with immediate; on iWARP a message behind them
 *     GET      RDMA READs
 *     ADD      a message, and a message back
 *     SEND     messages: each a head, then bytes
 *
 * Each message and each immediate takes one of the target's receives. A sender has credits for them, and the other end
 * gives them back in what it sends; the last one is for giving back alone, so that two who are both out of credits do
 * not wait for each other. The target of a WRITE or READ hears nothing of it: a message goes with each TICK bytes, as a
 * sign of life.
 *
 * A peer that fails is down when all its requests and receives have come back from its queue pair, for until then the
 * adapter may look at their memory.
 */
#include "tests/verbs/sketch.h"
#include "tests/verbs/verbs.h"
#include "transport/flight.h"
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

enum { CREDITS = 32, REQUESTS = 32, DEPTH = 64, SILENT = 8, PEERS = 64, PIECE = 4096, TICK = 256 << 10 };
enum kind { PART = 1, MESSAGE, NOTIFIED, ASK, ANSWER, WORD }; /* PART: the message goes on */

struct head {
	uint8_t kind, credits, bad;
	uint8_t slot;
	uint32_t rkey;              /* ASK; NOTIFIED: the value */
	uint64_t addr, word;
};

struct place { uint64_t addr; uint32_t rkey; }; /* in tt_key.raw */
struct hello { uint64_t job, secret; };
struct pin { struct tt_pin base; struct tt_list node; struct ibv_mr *mr; };

struct request { /* one that gives a completion, or a receive */
	struct tt_op *op;
	uint32_t frees;             /* places in the send queue: its own, and those of silent ones before it */
	bool receive, whole;        /* whole: the op ends with it */
	char *copy;                 /* of the GET's bytes, where they come into `buffer` */
	char buffer[sizeof(struct head) + PIECE];
};

struct net {
	struct tt_net base;
	struct tt_flights ops;
	struct ibv_context *device;
	struct ibv_pd *pd;
	struct ibv_comp_channel *wakes;
	struct ibv_cq *cq;
	struct rdma_event_channel *cm;
	struct rdma_cm_id *listener;
	struct hello hello;
	uint64_t timeout;
	struct tt_list peers, regions, pins;
	pthread_mutex_t lock;       /* of pins */
	struct ibv_wc found[16];    /* by arm() */
	int found_count;
};

enum stage { CONNECTING, ACCEPTED, UP, DOWN };

struct peer {
	struct tt_peer base;
	struct tt_flight ops;
	struct tt_list node;
	struct rdma_cm_id *id;
	enum stage stage;
	uint64_t deadline, at;      /* at: how much of the first pending op is posted */
	uint64_t unheard;           /* bytes since the last message */
	uint32_t places, silent, credits, owed, out, in; /* out, in: requests and receives that the adapter has */
	struct request *free[REQUESTS];
	uint32_t free_count;
	struct head answers[TT_FRAME_SLOTS];
	uint32_t answer_at, answer_count;
	struct ibv_mr *mr;
	char message[TT_MESSAGE_MAX];
	size_t come;                /* of the message that is to come */
	struct request requests[REQUESTS + CREDITS];
};

static struct net *net_of(const struct peer *p) { return (struct net *)p->base.net; }
static bool is_alive(const struct peer *p) { return p->stage == UP && !p->ops.broken; }

static void lose(struct peer *p, int err, const char *why)
{
	if (p->ops.broken || p->stage == DOWN)
		return;
	tt_flight_break(&p->ops, tt_fail(err, "lost the connection to %s: %s", p->base.addr, why));
	rdma_disconnect(p->id);
}

/* ---- memory ---- */

static int pin(struct tt_net *base, const struct tt_mem *mem, int remote, struct tt_pin **out)
{
	struct net *net = (struct net *)base;
	struct pin *p = calloc(1, sizeof *p);
	/* iWARP stores what a READ brings as if the target had written it */
	int access = IBV_ACCESS_LOCAL_WRITE | (remote ? IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ : 0) |
	             (net->device->iwarp ? IBV_ACCESS_REMOTE_WRITE : 0);

	if (!p)
		return tt_fail(-ENOMEM, "no memory to pin %zu bytes", mem->len);
	p->base = (struct tt_pin){ base, *mem, remote };
	p->mr = ibv_reg_mr(net->pd, mem->base, mem->len, access);
	pthread_mutex_lock(&net->lock);
	tt_list_append(&net->pins, &p->node);
	pthread_mutex_unlock(&net->lock);
	*out = &p->base;
	return 0;
}

static struct ibv_mr *mr_of(const struct tt_pin *p) { return tt_container_of(p, const struct pin, base)->mr; }

static void unpin(struct tt_pin *base)
{
	struct net *net = (struct net *)base->net;
	struct pin *p = tt_container_of(base, struct pin, base);

	pthread_mutex_lock(&net->lock);
	tt_list_remove(&p->node);
	pthread_mutex_unlock(&net->lock);
	ibv_dereg_mr(p->mr);
	free(p);
}

static int grant_key(struct tt_grant *g)
{
	const struct ibv_mr *mr = mr_of(g->base.pin);

	memcpy(g->base.key.raw, &(struct place){ (uintptr_t)mr->addr, mr->rkey }, sizeof(struct place));
	g->base.key.len = g->base.mem.len;
	return 0;
}

static int reg(struct tt_net *base, const struct tt_mem *mem, int remote, struct tt_pin *pin, struct tt_region **out)
{
	return tt_grant_new(base, mem, pin, &((struct net *)base)->regions, remote ? grant_key : NULL, out);
}

/* The adapter knows the key until unpin(). */
static void dereg(struct tt_region *base) { tt_grant_free(tt_container_of(base, struct tt_grant, base)); }

static uint32_t lkey_of(const struct tt_region *r) { return mr_of(r->pin)->lkey; }

/* ---- requests ---- */

static void post_receive(struct peer *p, struct request *r)
{
	struct ibv_sge sge = { (uintptr_t)r->buffer, sizeof r->buffer, p->mr->lkey };

	p->in++;
	ibv_post_recv(p->id->qp, &(struct ibv_recv_wr){ (uintptr_t)r, &sge });
}

static bool has_room(const struct peer *p) { return p->free_count && p->places < DEPTH; }

/* r: NULL for one that nobody waits for */
static void post_request(struct peer *p, struct request *r, struct ibv_send_wr *wr)
{
	p->places++;
	p->silent++;
	if (r) {
		r->frees = p->silent;
		p->silent = 0;
		p->out++;
		wr->wr_id = (uintptr_t)r;
		wr->send_flags |= IBV_SEND_SIGNALED;
	}
	ibv_post_send(p->id->qp, wr);
}

static struct request *take_request(struct peer *p, struct tt_op *op, bool whole)
{
	struct request *r = p->free[--p->free_count];

	r->op = op;
	r->whole = whole;
	r->copy = NULL;
	return r;
}

static uint8_t give_credits(struct peer *p)
{
	uint8_t n = (uint8_t)p->owed;

	p->owed = 0;
	p->credits--;
	p->unheard = 0;
	return n;
}

/* A message that is a head alone. It is silent, unless too many are. */
static void say(struct peer *p, struct tt_op *op, struct head h)
{
	struct ibv_sge sge = { (uintptr_t)&h, sizeof h, 0 };
	struct ibv_send_wr wr = { .sg_list = &sge, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_INLINE };

	h.credits = give_credits(p);
	post_request(p, op || p->silent >= SILENT ? take_request(p, op, true) : NULL, &wr);
}

/* The next part of a SEND; true: it was the last. */
static bool post_message(struct peer *p, struct tt_op *op)
{
	size_t n = tt_min(op->len - p->at, PIECE);
	bool last = p->at + n == op->len;
	struct request *r = take_request(p, op, last);
	struct head h = { .kind = last ? MESSAGE : PART, .credits = give_credits(p) };
	struct ibv_sge sge = { (uintptr_t)r->buffer, (uint32_t)(sizeof h + n), p->mr->lkey };

	memcpy(r->buffer, &h, sizeof h);
	if (n)
		memcpy(r->buffer + sizeof h, (char *)op->local + p->at, n);
	p->at += n;
	post_request(p, r, &(struct ibv_send_wr){ .sg_list = &sge, .opcode = IBV_WR_SEND });
	return last;
}

static struct place place_of(const struct tt_op *op)
{
	struct place to = { 0 };

	if (op->len)
		memcpy(&to, op->key->raw, sizeof to);
	return to;
}

/* The next piece of a PUT or GET; true: it was the last. */
static bool post_piece(struct peer *p, struct tt_op *op)
{
	struct net *net = net_of(p);
	size_t n = tt_min(op->len - p->at, net->device->max_msg);
	bool last = p->at + n == op->len, get = op->kind == TT_GET;
	bool immediate = last && op->flags & TT_NOTIFY && !net->device->iwarp;
	struct request *r = take_request(p, op, last && (immediate || !(op->flags & TT_NOTIFY)));
	struct place to = place_of(op);
	struct ibv_sge sge = { (uintptr_t)op->local + p->at, (uint32_t)n, op->region && n ? lkey_of(op->region) : 0 };
	struct ibv_send_wr wr = { .sg_list = &sge, .opcode = get ? IBV_WR_RDMA_READ : IBV_WR_RDMA_WRITE,
	                          .wr.rdma = { to.addr + op->offset + p->at, to.rkey } };

	if (get && !op->region) {
		sge.addr = (uintptr_t)r->buffer;
		sge.lkey = p->mr->lkey;
		r->copy = op->local;
	} else if (!op->region) {
		wr.send_flags = IBV_SEND_INLINE;
	}
	if (immediate) {
		wr.opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
		wr.imm_data = (uint32_t)give_credits(p) << 24 | op->notify;
	}
	op->priv[2] += get;
	p->at += n;
	p->unheard += n;
	post_request(p, r, &wr);
	return last;
}

/* Posts a part of the op; true: all of it is posted. */
static bool advance(struct peer *p, struct tt_op *op)
{
	struct place to = { 0 };

	if (op->kind == TT_SEND)
		return post_message(p, op);
	if (op->kind == TT_ADD) {
		memcpy(&to, op->key->raw, sizeof to);
		say(p, NULL, (struct head){ .kind = ASK, .slot = (uint8_t)tt_flight_take_slot(&p->ops, op),
		                            .rkey = to.rkey, .addr = to.addr + op->offset, .word = op->operand });
		return true;
	}
	bool notify = op->flags & TT_NOTIFY && net_of(p)->device->iwarp;
	if ((!notify || p->at < op->len) && (!post_piece(p, op) || notify))
		return false;
	if (notify)
		say(p, op, (struct head){ .kind = NOTIFIED, .rkey = op->notify });
	return true;
}

static bool takes_receive(const struct peer *p, const struct tt_op *op)
{
	bool notifies = op->flags & TT_NOTIFY && op->len - p->at <= net_of(p)->device->max_msg;

	return op->kind == TT_SEND || op->kind == TT_ADD || notifies;
}

static void push(struct peer *p)
{
	struct tt_op *op;

	while (is_alive(p) && has_room(p)) {
		op = p->ops.pending.head;
		if (p->answer_count && p->credits > 1) {
			say(p, NULL, p->answers[p->answer_at++ % TT_FRAME_SLOTS]);
			p->answer_count--;
		} else if ((p->unheard >= TICK && p->credits > 1) || (p->owed >= CREDITS / 2 && p->credits)) {
			say(p, NULL, (struct head){ .kind = WORD });
		} else if (op && p->unheard < TICK && (!takes_receive(p, op) || p->credits > 1) &&
		           (op->kind != TT_ADD || p->ops.free_count)) {
			if (!p->at)
				op->priv[2] = 0;
			if (!advance(p, op))
				continue;
			p->at = 0;
			tt_queue_pop(&p->ops.pending);
			tt_flight_begin(&p->ops, op);
		} else {
			return;
		}
	}
}

static void post(struct tt_peer *base, struct tt_op *op)
{
	struct peer *p = (struct peer *)base;

	tt_flight_post(&p->ops, p->stage == UP, op);
	push(p);
}

/* ---- what comes ---- */

static void finish(struct peer *p, struct tt_op *op, int err)
{
	tt_flight_end(&p->ops, op);
	tt_flight_finish(&p->ops, op, err);
}

/* The owner adds. Its own table says whether it may. */
static void answer(struct peer *p, const struct head *ask)
{
	struct head a = { .kind = ANSWER, .slot = ask->slot };
	struct tt_grant *found = NULL;

	tt_list_each(node, &net_of(p)->regions) {
		struct tt_grant *g = tt_container_of(node, struct tt_grant, node);
		uint64_t at = ask->addr - (uintptr_t)g->base.mem.base;
		if (g->base.pin->remote && mr_of(g->base.pin)->rkey == ask->rkey && at < g->base.mem.len &&
		    8 <= g->base.mem.len - at)
			found = g;
	}
	if (!found || p->answer_count == TT_FRAME_SLOTS) {
		lose(p, -ECONNRESET, "it adds to memory that is not registered, or asks too much");
		return;
	}
	a.bad = ask->addr % 8 != 0;
	if (!a.bad)
		a.word = __atomic_fetch_add((uint64_t *)(uintptr_t)ask->addr, ask->word, __ATOMIC_SEQ_CST);
	p->answers[(p->answer_at + p->answer_count++) % TT_FRAME_SLOTS] = a;
}

static void take_answer(struct peer *p, const struct head *h)
{
	struct tt_op *op = p->ops.slots[h->slot];

	if (!op) {
		lose(p, -ECONNRESET, "it answered what was not asked");
		return;
	}
	tt_flight_give_slot(&p->ops, h->slot);
	op->operand = h->word;
	finish(p, op, h->bad ? -EINVAL : 0);
}

static void come_up(struct peer *p)
{
	p->stage = UP;
	p->base.net->events->up(&p->base);
}

static void take_part(struct peer *p, const char *bytes, size_t len, bool last)
{
	size_t had = p->come;

	if (len > sizeof p->message - had) {
		lose(p, -ECONNRESET, "it sent a message that is too long");
		return;
	}
	memcpy(p->message + had, bytes, len);
	p->come = last ? 0 : had + len;
	if (last)
		p->base.net->events->message(&p->base, p->message, had + len);
}

static void take_receive(struct peer *p, const struct ibv_wc *wc, const struct request *r)
{
	struct head h = { .kind = NOTIFIED, .credits = (uint8_t)(wc->imm_data >> 24) };

	h.rkey = wc->imm_data & 0xffffff;

	if (wc->opcode == IBV_WC_RECV)
		memcpy(&h, r->buffer, sizeof h);
	if (p->stage == ACCEPTED && !p->ops.broken)
		come_up(p);
	if (p->stage != UP)
		return;
	p->base.received++;
	p->credits += h.credits;
	if (h.kind <= MESSAGE)
		take_part(p, r->buffer + sizeof h, wc->byte_len - sizeof h, h.kind == MESSAGE);
	else if (h.kind == NOTIFIED)
		p->base.net->events->notify(&p->base, h.rkey);
	else if (h.kind == ASK)
		answer(p, &h);
	else if (h.kind == ANSWER)
		take_answer(p, &h);
}

static void end_request(struct peer *p, struct request *r)
{
	struct tt_op *op = r->op;

	p->places -= r->frees;
	p->free[p->free_count++] = r;
	if (op && op->kind == TT_GET) {
		if (r->copy && op->len)
			tt_copy_word(r->copy, r->buffer, op->len);
		if (!--op->priv[2] && op != p->ops.pending.head)
			finish(p, op, 0);
	} else if (op && r->whole) {
		finish(p, op, 0);
	}
}

static const char *sentence(enum ibv_wc_status status)
{
	return status == IBV_WC_REM_ACCESS_ERR ? "a key was used that is not registered, or not any more"
	       : status == IBV_WC_RETRY_EXC_ERR ? "it does not acknowledge"
	                                        : "a request failed";
}

static void take_completion(struct net *net, const struct ibv_wc *wc)
{
	struct request *r = (struct request *)(uintptr_t)wc->wr_id;
	struct peer *p = NULL;

	tt_list_each(node, &net->peers) {
		struct peer *q = tt_container_of(node, struct peer, node);
		if (q->id->qp && q->id->qp->qp_num == wc->qp_num)
			p = q;
	}
	if (!p)
		return; /* of a queue pair that is gone: r is gone, too */
	net->ops.events++;
	if (r && r->receive)
		p->in--;
	else if (r)
		p->out--;
	if (wc->status)
		lose(p, -ECONNRESET, sentence(wc->status));
	else if (r && r->receive)
		take_receive(p, wc, r);
	else if (r)
		end_request(p, r);
	if (!wc->status && r && r->receive && !p->ops.broken) {
		post_receive(p, r);
		p->owed++;
	}
	if (p->ops.broken)
		tt_list_append_once(&net->ops.ready, &p->ops.ready);
}

/* ---- connections ---- */

static struct peer *new_peer(struct net *net, struct rdma_cm_id *id, enum stage stage, const char *addr)
{
	struct ibv_qp_init_attr attr = { net->cq, net->cq, { DEPTH, CREDITS } };
	struct peer *p = calloc(1, sizeof *p);

	if (!p)
		return NULL;
	p->base.net = &net->base;
	snprintf(p->base.addr, sizeof p->base.addr, "%s", addr);
	tt_flight_init(&p->ops, &net->ops, &p->base);
	tt_list_append(&net->peers, &p->node);
	p->id = id ? id : rdma_create_id(net->cm, p);
	p->id->context = p;
	p->stage = stage;
	p->deadline = tt_now() + net->timeout;
	p->credits = CREDITS;
	p->mr = ibv_reg_mr(net->pd, p->requests, sizeof p->requests,
	                   IBV_ACCESS_LOCAL_WRITE | (net->device->iwarp ? IBV_ACCESS_REMOTE_WRITE : 0));
	rdma_create_qp(p->id, net->pd, &attr);
	for (unsigned i = 0; i < REQUESTS; i++)
		p->free[p->free_count++] = &p->requests[i];
	for (unsigned i = REQUESTS; i < TT_COUNT(p->requests); i++) {
		p->requests[i].receive = true;
		post_receive(p, &p->requests[i]);
	}
	return p;
}

static void disconnect(struct tt_peer *base)
{
	struct peer *p = (struct peer *)base;

	rdma_disconnect(p->id);
	rdma_destroy_qp(p->id); /* from here on the adapter touches nothing */
	p->stage = DOWN;
	tt_flight_fail(&p->ops);
	rdma_destroy_id(p->id);
	ibv_dereg_mr(p->mr);
	tt_list_remove(&p->ops.ready);
	tt_list_remove(&p->node);
	free(p);
}

static int connect_net(struct tt_net *base, const char *addr, struct tt_peer **out)
{
	struct net *net = (struct net *)base;
	struct peer *p = new_peer(net, NULL, CONNECTING, addr);

	if (!p)
		return tt_fail(-ENOMEM, "no memory for the connection to %s", addr);
	rdma_connect(p->id, addr, &net->hello, sizeof net->hello);
	*out = &p->base;
	return 0;
}

static void greet(struct net *net, const struct rdma_cm_event *e)
{
	struct hello h;
	int err;

	memcpy(&h, e->private_data, sizeof h);
	err = h.job != net->hello.job ? -EPROTO : h.secret != net->hello.secret ? -EACCES : 0;
	struct peer *p = err ? NULL : new_peer(net, e->id, ACCEPTED, "a peer that connected");
	if (p && !rdma_accept(p->id))
		return;
	if (!p)
		rdma_reject(e->id, &err, sizeof err);
	if (p)
		disconnect(&p->base);
	else
		rdma_destroy_id(e->id);
}

static void take_news(struct net *net, const struct rdma_cm_event *e)
{
	struct peer *p = e->id->context;
	int err = -EHOSTUNREACH;

	net->ops.events++;
	if (e->event == RDMA_CM_EVENT_CONNECT_REQUEST) {
		greet(net, e);
	} else if (e->event == RDMA_CM_EVENT_ESTABLISHED && p->stage == CONNECTING && !p->ops.broken) {
		come_up(p);
		say(p, NULL, (struct head){ .kind = WORD }); /* the connector's word comes first */
	} else if (e->event == RDMA_CM_EVENT_REJECTED) {
		if (e->private_data_len)
			memcpy(&err, e->private_data, sizeof err);
		lose(p, err, "it refuses");
	} else if (e->event == RDMA_CM_EVENT_DISCONNECTED) {
		lose(p, p->stage == UP ? -ECONNRESET : -EHOSTUNREACH, "it ended it");
	}
}

static void look(struct tt_flight *f)
{
	struct peer *p = tt_container_of(f, struct peer, ops);

	tt_flight_drain(f);
	if (!f->broken || p->in || p->out || p->stage == DOWN)
		return;
	if (p->stage == ACCEPTED) {
		disconnect(&p->base);
		return;
	}
	p->stage = DOWN;
	tt_flight_down(f);
}

static int progress(struct tt_net *base)
{
	struct net *net = (struct net *)base;
	struct rdma_cm_event news;
	struct ibv_wc wc[16];
	int n;

	net->ops.events = 0;
	while (rdma_get_cm_event(net->cm, &news))
		take_news(net, &news);
	for (int i = 0; i < net->found_count; i++)
		take_completion(net, &net->found[i]);
	net->found_count = 0;
	while ((n = ibv_poll_cq(net->cq, TT_COUNT(wc), wc)) > 0)
		for (int i = 0; i < n; i++)
			take_completion(net, &wc[i]);
	tt_list_each(node, &net->peers) {
		struct peer *p = tt_container_of(node, struct peer, node);
		if (p->stage < UP && net->timeout && tt_now() >= p->deadline)
			lose(p, -ETIMEDOUT, "it does not answer");
		push(p);
	}
	tt_flights_drain(&net->ops, look);
	return net->ops.events;
}

static int arm(struct tt_net *base)
{
	struct net *net = (struct net *)base;

	ibv_get_cq_event(net->wakes);
	ibv_req_notify_cq(net->cq);
	net->found_count = ibv_poll_cq(net->cq, TT_COUNT(net->found), net->found); /* what came before gives no event */
	return net->found_count || !tt_list_empty(&net->ops.ready);
}

/* ---- nets ---- */

static void close_net(struct tt_net *base)
{
	struct net *net = (struct net *)base;

	while (!tt_list_empty(&net->peers))
		disconnect(&tt_container_of(net->peers.next, struct peer, node)->base);
	while (!tt_list_empty(&net->regions))
		dereg(&tt_container_of(net->regions.next, struct tt_grant, node)->base);
	while (!tt_list_empty(&net->pins))
		unpin(&tt_container_of(net->pins.next, struct pin, node)->base);
	rdma_destroy_id(net->listener);
	rdma_destroy_event_channel(net->cm);
	ibv_destroy_cq(net->cq);
	ibv_destroy_comp_channel(net->wakes);
	ibv_dealloc_pd(net->pd);
	ibv_close_device(net->device);
	close(base->fd);
	pthread_mutex_destroy(&net->lock);
	free(net);
}

static uint64_t hash(const void *bytes, size_t len) /* a sketch: it proves little */
{
	uint64_t h = 0xcbf29ce484222325;

	for (size_t i = 0; i < len; i++)
		h = (h ^ ((const uint8_t *)bytes)[i]) * 0x100000001b3;
	return h;
}

static int open_net(const struct tt_net_config *config, const struct tt_transport *t, const char *device,
                    struct tt_net **out)
{
	static unsigned nets;
	struct net *net = calloc(1, sizeof *net);
	struct epoll_event watch = { .events = EPOLLIN };

	if (!net)
		return tt_fail(-ENOMEM, "no memory for a net");
	net->base = (struct tt_net){ .transport = t, .events = config->events, .user = config->user, .copy_max = 64,
	                             .fd = epoll_create1(EPOLL_CLOEXEC) };
	snprintf(net->base.addr, sizeof net->base.addr, "%s:%u", t->name, nets++);
	net->hello = (struct hello){ config->job, config->secret ? hash(config->secret, config->secret_len) : 0 };
	net->timeout = config->timeout_ms * TT_MS;
	tt_list_init(&net->ops.ready);
	tt_list_init(&net->peers);
	tt_list_init(&net->regions);
	tt_list_init(&net->pins);
	pthread_mutex_init(&net->lock, NULL);
	net->device = ibv_open_device(device);
	net->pd = ibv_alloc_pd(net->device);
	net->wakes = ibv_create_comp_channel(net->device);
	net->cq = ibv_create_cq(net->device, PEERS * (DEPTH + CREDITS), net->wakes);
	net->cm = rdma_create_event_channel();
	net->listener = rdma_create_id(net->cm, NULL);
	rdma_listen(net->listener, net->base.addr);
	epoll_ctl(net->base.fd, EPOLL_CTL_ADD, net->wakes->fd, &watch);
	epoll_ctl(net->base.fd, EPOLL_CTL_ADD, net->cm->fd, &watch);
	*out = &net->base;
	return 0;
}

static int open_ib(const struct tt_net_config *c, struct tt_net **out) { return open_net(c, &tt_fake_ib, "ib", out); }
static int open_iwarp(const struct tt_net_config *c, struct tt_net **out)
{
	return open_net(c, &tt_fake_iwarp, "iwarp", out);
}

static int list_devices(struct tt_device *out, int max)
{
	if (max > 0)
		*out = (struct tt_device){ .name = "fake", .numa = -1 };
	return 1;
}

static void *map(struct tt_peer *p, const struct tt_key *k, int any) { return (void)p, (void)k, (void)any, NULL; }
static int store_begin(struct tt_peer *p, const struct tt_key *k) { return (void)p, (void)k, 0; }
static void store_end(struct tt_peer *p) { (void)p; }
static int notify(struct tt_peer *p, uint32_t value) { return (void)p, (void)value, 0; }

#define SKETCH(how) \
	{ .name = "fake-" #how, .list = list_devices, .open = open_##how, .close = close_net, .pin = pin, \
	  .unpin = unpin, .reg = reg, .dereg = dereg, .connect = connect_net, .disconnect = disconnect, \
	  .post = post, .map = map, .store_begin = store_begin, .store_end = store_end, .notify = notify, \
	  .progress = progress, .arm = arm }
const struct tt_transport tt_fake_ib = SKETCH(ib);
const struct tt_transport tt_fake_iwarp = SKETCH(iwarp);
