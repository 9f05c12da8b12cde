/* sketch_fake.c - verbs.h, by a seed */
#include "tests/verbs/verbs.h"
#include "base/base.h"
#include "base/list.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

enum { PIECE = 64 << 10, RNR_RETRIES = 200, MAX_INLINE = 64, MAX_MSG = 128 << 10 };

struct mr { struct ibv_mr base; struct tt_list node; int access; };

struct entry { struct ibv_wc wc; uint32_t frees; };

struct ibv_cq {
	struct tt_list node;
	struct ibv_comp_channel *channel;
	struct entry *entries; /* the first `seen` of them can be polled */
	int max, count, seen;
	bool armed;
};

enum stage { POSTED, READING, DONE };

struct request {
	struct tt_list node;
	struct ibv_send_wr wr;
	struct ibv_sge sge;
	char *bytes;  /* taken over; NULL: they are in the caller's memory */
	size_t at;    /* so many have landed */
	enum stage stage;
	enum ibv_wc_status status;
	bool told;    /* it was complete when it was handed over */
};

struct receive { struct tt_list node; struct ibv_sge sge; uint64_t wr_id; };

struct qp {
	struct ibv_qp base;
	struct tt_list node, requests, receives;
	struct ibv_cq *cq;
	struct id *id;
	struct qp *other;   /* NULL: not connected, or gone */
	uint32_t max_requests, max_receives, posted, waiting, silent;
	int retries;
	bool iwarp, accepted, heard;
};

struct id {
	struct rdma_cm_id base;
	struct tt_list node;
	struct channel *channel;
	struct id *other;
	char name[64];      /* that it listens on */
	bool ended;         /* was told DISCONNECTED */
};

struct news { struct rdma_cm_event event; struct tt_list node; struct channel *channel; };

struct channel { struct rdma_event_channel base; struct tt_list ready; };

static struct {
	struct tt_random random;
	struct tt_list mrs, cqs, qps, ids, news;
	uint32_t number;
	int objects, events;
} all = {
	.mrs = { &all.mrs, &all.mrs }, .cqs = { &all.cqs, &all.cqs }, .qps = { &all.qps, &all.qps },
	.ids = { &all.ids, &all.ids }, .news = { &all.news, &all.news },
};

static uint64_t below(uint64_t n) { return tt_random_below(&all.random, n); }

static void *make(size_t size)
{
	void *p = calloc(1, size);

	if (!p)
		abort();
	all.objects++;
	return p;
}

static void drop(void *p)
{
	free(p);
	all.objects--;
}

void fake_verbs_seed(uint64_t seed) { tt_random_seed(&all.random, seed); }
int fake_verbs_left(void) { return all.objects; }

static void ring(int fd)
{
	all.events++;
	if (eventfd_write(fd, 1))
		abort();
}

/* ---- memory ---- */

struct ibv_mr *ibv_reg_mr(struct ibv_pd *pd, void *addr, size_t length, int access)
{
	struct mr *m = make(sizeof *m);
	uint32_t key = ++all.number << 8 | (uint32_t)below(256);

	m->base = (struct ibv_mr){ pd, addr, length, key, key };
	m->access = access;
	tt_list_append(&all.mrs, &m->node);
	return &m->base;
}

void ibv_dereg_mr(struct ibv_mr *base)
{
	struct mr *m = tt_container_of(base, struct mr, base);

	tt_list_remove(&m->node);
	drop(m);
}

static bool may(uint32_t key, uint64_t addr, size_t len, int access)
{
	tt_list_each(node, &all.mrs) {
		struct mr *m = tt_container_of(node, struct mr, node);
		uint64_t start = (uintptr_t)m->base.addr;
		if (m->base.lkey == key)
			return addr >= start && addr - start <= m->base.length &&
			       len <= m->base.length - (addr - start) && (m->access & access) == access;
	}
	return false;
}

/* ---- completions ---- */

static void complete(struct qp *q, const struct ibv_wc *wc, uint32_t frees)
{
	struct ibv_cq *cq = q->cq;

	if (cq->count == cq->max)
		abort();
	cq->entries[cq->count] = (struct entry){ *wc, frees };
	cq->entries[cq->count++].wc.qp_num = q->base.qp_num;
}

static void tell(struct qp *q, struct request *r)
{
	struct ibv_wc wc = { .wr_id = r->wr.wr_id, .status = r->status, .opcode = IBV_WC_SEND };

	r->told = true;
	q->silent++;
	if (!(r->wr.send_flags & IBV_SEND_SIGNALED) && !r->status)
		return;
	complete(q, &wc, q->silent);
	q->silent = 0;
}

static void forget(struct request *r)
{
	tt_list_remove(&r->node);
	free(r->bytes);
	drop(r);
}

/* The first request that is done, if its turn has come. */
static bool retire(struct qp *q)
{
	tt_list_each(node, &q->requests) {
		struct request *r = tt_container_of(node, struct request, node);
		if (r->stage == DONE) {
			if (!r->told)
				tell(q, r);
			forget(r);
			return true;
		}
		if (!q->iwarp)
			return false;
	}
	return false;
}

static bool reveal(struct ibv_cq *cq)
{
	if (cq->seen == cq->count)
		return false;
	cq->seen += 1 + (int)below((uint64_t)(cq->count - cq->seen));
	if (cq->armed)
		ring(cq->channel->fd);
	cq->armed = false;
	return true;
}

static struct qp *find_qp(uint32_t number)
{
	tt_list_each(node, &all.qps)
		if (tt_container_of(node, struct qp, node)->base.qp_num == number)
			return tt_container_of(node, struct qp, node);
	return NULL;
}

/* ---- how connections end ---- */

static void announce(struct id *id, enum rdma_cm_event_type what, struct id *listener, const void *data, uint8_t len)
{
	struct news *n;

	if (!id || (what == RDMA_CM_EVENT_DISCONNECTED && id->ended))
		return;
	id->ended |= what == RDMA_CM_EVENT_DISCONNECTED;
	n = make(sizeof *n);
	n->event = (struct rdma_cm_event){ &id->base, listener ? &listener->base : NULL, what, len, { 0 } };
	n->channel = id->channel;
	if (len)
		memcpy(n->event.private_data, data, tt_min(len, RDMA_PRIVATE_DATA));
	tt_list_append(&all.news, &n->node);
}

static void flush(struct qp *q, bool receives)
{
	struct tt_list *node;

	q->base.state = IBV_QPS_ERR;
	tt_list_each(at, &q->requests) {
		struct request *r = tt_container_of(at, struct request, node);
		if (r->stage != DONE)
			r->status = IBV_WC_WR_FLUSH_ERR;
		r->stage = DONE;
	}
	while (receives && (node = tt_list_pop(&q->receives))) {
		struct receive *e = tt_container_of(node, struct receive, node);
		complete(q, &(struct ibv_wc){ .wr_id = e->wr_id, .status = IBV_WC_WR_FLUSH_ERR }, 0);
		drop(e);
	}
}

void ibv_modify_qp_to_error(struct ibv_qp *base) { flush(tt_container_of(base, struct qp, base), true); }

/* r: the request that failed */
static void die(struct qp *q, struct request *r, enum ibv_wc_status status)
{
	struct qp *other = q->other;

	r->stage = DONE;
	r->status = q->iwarp ? IBV_WC_WR_FLUSH_ERR : status;
	flush(q, false);
	if (other && status != IBV_WC_LOC_PROT_ERR)
		flush(other, false);
	if (q->iwarp) {
		announce(q->id, RDMA_CM_EVENT_DISCONNECTED, NULL, NULL, 0);
		announce(other ? other->id : NULL, RDMA_CM_EVENT_DISCONNECTED, NULL, NULL, 0);
	}
}

/* ---- the wire ---- */

static size_t piece(const struct request *r)
{
	size_t left = r->sge.length - r->at, n = 1 + below(PIECE);

	n += -(r->wr.wr.rdma.remote_addr + r->at + n) & 7; /* whole words of the target's */
	return r->sge.length == 8 || n > left ? left : n;
}

static char *local(const struct request *r) { return r->bytes ? r->bytes : (char *)(uintptr_t)r->sge.addr; }

/* false: it waits, or has failed */
static bool put_into_receive(struct qp *q, struct request *r)
{
	struct tt_list *node = tt_list_pop(&q->other->receives);
	bool message = r->wr.opcode == IBV_WR_SEND;
	struct receive *e;

	if (!node) {
		if (q->iwarp || ++q->retries > RNR_RETRIES)
			die(q, r, IBV_WC_RNR_RETRY_EXC_ERR);
		return false;
	}
	e = tt_container_of(node, struct receive, node);
	if (message && (r->sge.length > e->sge.length ||
	                !may(e->sge.lkey, e->sge.addr, r->sge.length, IBV_ACCESS_LOCAL_WRITE)))
		abort();
	if (message && r->sge.length)
		memcpy((void *)(uintptr_t)e->sge.addr, local(r), r->sge.length);
	q->retries = 0;
	q->other->heard = true;
	q->other->waiting--;
	complete(q->other, &(struct ibv_wc){ .wr_id = e->wr_id, .byte_len = r->sge.length, .imm_data = r->wr.imm_data,
	                                     .opcode = message ? IBV_WC_RECV : IBV_WC_RECV_RDMA_WITH_IMM }, 0);
	drop(e);
	return true;
}

static void move(struct qp *q, struct request *r, bool read)
{
	uint64_t remote = r->wr.wr.rdma.remote_addr;
	size_t n = piece(r), left = r->sge.length - r->at;
	char *there = (char *)(uintptr_t)(remote + r->at), *here = local(r) + r->at;

	if (left && !may(r->wr.wr.rdma.rkey, remote, r->sge.length,
	                 read ? IBV_ACCESS_REMOTE_READ : IBV_ACCESS_REMOTE_WRITE)) {
		die(q, r, IBV_WC_REM_ACCESS_ERR);
		return;
	}
	tt_copy_word(read ? here : there, read ? there : here, n);
	r->at += n;
	if (r->at == r->sge.length && (r->wr.opcode != IBV_WR_RDMA_WRITE_WITH_IMM || put_into_receive(q, r)))
		r->stage = DONE;
}

static bool may_use_local(struct qp *q, const struct request *r)
{
	int access = r->wr.opcode != IBV_WR_RDMA_READ ? 0 : q->iwarp ? IBV_ACCESS_REMOTE_WRITE : IBV_ACCESS_LOCAL_WRITE;

	return r->bytes || !r->sge.length || may(r->sge.lkey, r->sge.addr, r->sge.length, access);
}

static void take_over(struct request *r)
{
	r->bytes = malloc(r->sge.length + 1);
	if (!r->bytes)
		abort();
	if (r->sge.length)
		tt_copy_word(r->bytes, (void *)(uintptr_t)r->sge.addr, r->sge.length);
}

static void carry(struct qp *q, struct request *r)
{
	bool read = r->wr.opcode == IBV_WR_RDMA_READ;

	if (!may_use_local(q, r)) {
		die(q, r, IBV_WC_LOC_PROT_ERR);
	} else if (q->iwarp && !read && !r->told) {
		if (!r->bytes)
			take_over(r);
		tell(q, r);
	} else if (!q->other || q->other->base.state != IBV_QPS_RTS) {
		die(q, r, IBV_WC_RETRY_EXC_ERR);
	} else if (read && r->stage == POSTED) {
		r->stage = READING;
	} else if (r->wr.opcode == IBV_WR_SEND) {
		if (put_into_receive(q, r))
			r->stage = DONE;
	} else {
		move(q, r, read);
	}
}

/* Requests begin in the order posted. A read that has begun needs no turn. */
static bool advance(struct qp *q)
{
	struct request *reading = NULL, *next = NULL;

	if (below(2) && retire(q))
		return true;
	tt_list_each(node, &q->requests) {
		struct request *r = tt_container_of(node, struct request, node);
		if (r->stage == READING && !reading)
			reading = r;
		else if (r->stage == POSTED && !next)
			next = r;
	}
	if (reading && (!next || !below(4)))
		next = reading;
	if (!next || q->base.state != IBV_QPS_RTS)
		return retire(q);
	carry(q, next);
	return true;
}

static bool deliver_news(void)
{
	struct tt_list *node = tt_list_pop(&all.news);
	struct news *n = node ? tt_container_of(node, struct news, node) : NULL;

	if (!n)
		return false;
	tt_list_append(&n->channel->ready, &n->node);
	ring(n->channel->base.fd);
	return true;
}

/* One thing happens, somewhere; false: nothing can. */
static bool step(void)
{
	uint64_t skip = below(8);

	for (int round = 0; round < 2; round++, skip = 0) {
		if (!(skip && skip--) && deliver_news())
			return true;
		tt_list_each(node, &all.qps)
			if (!(skip && skip--) && advance(tt_container_of(node, struct qp, node)))
				return true;
		tt_list_each(node, &all.cqs)
			if (!(skip && skip--) && reveal(tt_container_of(node, struct ibv_cq, node)))
				return true;
	}
	return false;
}

/* ---- what the caller calls ---- */

int ibv_poll_cq(struct ibv_cq *cq, int n, struct ibv_wc *wc)
{
	for (uint64_t i = below(below(8) ? 8 : 100); i && step(); i--)
		;
	n = tt_min(n, cq->seen);
	for (int i = 0; i < n; i++) {
		struct qp *q = find_qp(cq->entries[i].wc.qp_num);
		wc[i] = cq->entries[i].wc;
		if (q)
			q->posted -= cq->entries[i].frees;
	}
	cq->seen -= n;
	cq->count -= n;
	memmove(cq->entries, cq->entries + n, (size_t)cq->count * sizeof *cq->entries);
	return n;
}

void ibv_req_notify_cq(struct ibv_cq *cq)
{
	int before = all.events;

	cq->armed = true;
	while (all.events == before && step())
		;
}

int ibv_post_send(struct ibv_qp *base, const struct ibv_send_wr *wr)
{
	struct qp *q = tt_container_of(base, struct qp, base);
	struct request *r = make(sizeof *r);

	if (q->posted++ == q->max_requests || wr->sg_list->length > MAX_MSG || base->state == IBV_QPS_INIT ||
	    (q->iwarp && (wr->opcode == IBV_WR_RDMA_WRITE_WITH_IMM || (q->accepted && !q->heard))))
		abort();
	r->wr = *wr;
	r->sge = *wr->sg_list;
	if (wr->send_flags & IBV_SEND_INLINE && r->sge.length > MAX_INLINE)
		abort();
	if (wr->send_flags & IBV_SEND_INLINE)
		take_over(r);
	if (base->state == IBV_QPS_ERR) {
		r->stage = DONE;
		r->status = IBV_WC_WR_FLUSH_ERR;
	}
	tt_list_append(&q->requests, &r->node);
	return 0;
}

int ibv_post_recv(struct ibv_qp *base, const struct ibv_recv_wr *wr)
{
	struct qp *q = tt_container_of(base, struct qp, base);
	struct receive *e = make(sizeof *e);

	if (q->waiting++ == q->max_receives)
		abort();
	*e = (struct receive){ .sge = *wr->sg_list, .wr_id = wr->wr_id };
	tt_list_append(&q->receives, &e->node);
	return 0;
}

struct ibv_context *ibv_open_device(const char *name)
{
	struct ibv_context *c = make(sizeof *c);

	*c = (struct ibv_context){ !strcmp(name, "iwarp"), MAX_INLINE, MAX_MSG };
	return c;
}

void ibv_close_device(struct ibv_context *c) { drop(c); }

struct ibv_pd *ibv_alloc_pd(struct ibv_context *c)
{
	struct ibv_pd *pd = make(sizeof *pd);

	pd->context = c;
	return pd;
}

void ibv_dealloc_pd(struct ibv_pd *pd) { drop(pd); }

struct ibv_comp_channel *ibv_create_comp_channel(struct ibv_context *c)
{
	struct ibv_comp_channel *channel = make(sizeof *channel);

	(void)c;
	channel->fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	return channel;
}

void ibv_destroy_comp_channel(struct ibv_comp_channel *channel)
{
	close(channel->fd);
	drop(channel);
}

bool ibv_get_cq_event(struct ibv_comp_channel *channel)
{
	eventfd_t n;

	return !eventfd_read(channel->fd, &n);
}

struct ibv_cq *ibv_create_cq(struct ibv_context *c, int cqe, struct ibv_comp_channel *channel)
{
	struct ibv_cq *cq = make(sizeof *cq);

	(void)c;
	*cq = (struct ibv_cq){ .channel = channel, .max = cqe, .entries = make((size_t)cqe * sizeof *cq->entries) };
	tt_list_append(&all.cqs, &cq->node);
	return cq;
}

void ibv_destroy_cq(struct ibv_cq *cq)
{
	tt_list_remove(&cq->node);
	drop(cq->entries);
	drop(cq);
}

/* ---- connections ---- */

struct rdma_event_channel *rdma_create_event_channel(void)
{
	struct channel *c = make(sizeof *c);

	c->base.fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK | EFD_SEMAPHORE);
	tt_list_init(&c->ready);
	return &c->base;
}

static void forget_news(struct tt_list *list, const struct channel *of, const struct rdma_cm_id *id)
{
	tt_list_each(node, list) {
		struct news *n = tt_container_of(node, struct news, node);
		if (n->channel != of || (id && n->event.id != id))
			continue;
		tt_list_remove(node);
		drop(n);
	}
}

void rdma_destroy_event_channel(struct rdma_event_channel *base)
{
	struct channel *c = tt_container_of(base, struct channel, base);

	forget_news(&all.news, c, NULL);
	forget_news(&c->ready, c, NULL);
	close(c->base.fd);
	drop(c);
}

bool rdma_get_cm_event(struct rdma_event_channel *base, struct rdma_cm_event *out)
{
	struct channel *c = tt_container_of(base, struct channel, base);
	struct tt_list *node = tt_list_pop(&c->ready);
	eventfd_t one;

	if (eventfd_read(c->base.fd, &one) || !node)
		return false;
	*out = tt_container_of(node, struct news, node)->event;
	drop(tt_container_of(node, struct news, node));
	return true;
}

struct rdma_cm_id *rdma_create_id(struct rdma_event_channel *channel, void *context)
{
	struct id *id = make(sizeof *id);

	id->base.context = context;
	id->channel = tt_container_of(channel, struct channel, base);
	tt_list_append(&all.ids, &id->node);
	return &id->base;
}

static struct id *id_of(struct rdma_cm_id *base) { return tt_container_of(base, struct id, base); }

static void part(struct id *id, enum rdma_cm_event_type what, const void *data, uint8_t len)
{
	if (id->other) {
		announce(id->other, what, NULL, data, len);
		id->other->other = NULL;
	}
	id->other = NULL;
}

/* Those who ask a listener that goes away are refused. */
static void refuse_callers(const struct id *listener)
{
	struct tt_list *lists[] = { &all.news, &listener->channel->ready };

	for (size_t i = 0; i < TT_COUNT(lists); i++)
		tt_list_each(node, lists[i]) {
			struct news *n = tt_container_of(node, struct news, node);
			if (n->event.listen_id != &listener->base)
				continue;
			struct id *caller = id_of(n->event.id);
			part(caller, RDMA_CM_EVENT_REJECTED, NULL, 0);
			tt_list_remove(&caller->node);
			drop(caller);
			tt_list_remove(node);
			drop(n);
		}
}

void rdma_destroy_id(struct rdma_cm_id *base)
{
	struct id *id = id_of(base);

	if (base->qp)
		abort();
	if (id->name[0])
		refuse_callers(id);
	part(id, RDMA_CM_EVENT_DISCONNECTED, NULL, 0);
	forget_news(&all.news, id->channel, base);
	forget_news(&id->channel->ready, id->channel, base);
	tt_list_remove(&id->node);
	drop(id);
}

struct ibv_qp *rdma_create_qp(struct rdma_cm_id *id, struct ibv_pd *pd, const struct ibv_qp_init_attr *attr)
{
	struct qp *q = make(sizeof *q);

	q->base.qp_num = ++all.number;
	q->cq = attr->send_cq;
	q->id = id_of(id);
	q->iwarp = pd->context->iwarp;
	q->max_requests = attr->cap.max_send_wr;
	q->max_receives = attr->cap.max_recv_wr;
	tt_list_init(&q->requests);
	tt_list_init(&q->receives);
	tt_list_append(&all.qps, &q->node);
	return id->qp = &q->base;
}

static void forget_completions(struct ibv_cq *cq, uint32_t number)
{
	int kept = 0, seen = cq->seen;

	for (int i = 0; i < cq->count; i++)
		if (cq->entries[i].wc.qp_num != number)
			cq->entries[kept++] = cq->entries[i];
		else if (i < seen)
			cq->seen--;
	cq->count = kept;
}

void rdma_destroy_qp(struct rdma_cm_id *id)
{
	struct qp *q = tt_container_of(id->qp, struct qp, base);
	struct tt_list *node;

	if (q->other)
		q->other->other = NULL;
	while (!tt_list_empty(&q->requests))
		forget(tt_container_of(q->requests.next, struct request, node));
	while ((node = tt_list_pop(&q->receives)))
		drop(tt_container_of(node, struct receive, node));
	if (below(2))
		forget_completions(q->cq, q->base.qp_num);
	tt_list_remove(&q->node);
	drop(q);
	id->qp = NULL;
}

void rdma_listen(struct rdma_cm_id *id, const char *name)
{
	snprintf(id_of(id)->name, sizeof id_of(id)->name, "%s", name);
}

void rdma_connect(struct rdma_cm_id *base, const char *name, const void *data, uint8_t len)
{
	struct id *id = id_of(base), *listener = NULL, *caller;

	tt_list_each(node, &all.ids)
		if (!strcmp(tt_container_of(node, struct id, node)->name, name))
			listener = tt_container_of(node, struct id, node);
	if (!listener) {
		announce(id, RDMA_CM_EVENT_REJECTED, NULL, NULL, 0);
		return;
	}
	caller = id_of(rdma_create_id(&listener->channel->base, NULL));
	caller->other = id;
	id->other = caller;
	announce(caller, RDMA_CM_EVENT_CONNECT_REQUEST, listener, data, len);
}

int rdma_accept(struct rdma_cm_id *base)
{
	struct id *id = id_of(base);

	if (!id->other || !id->other->base.qp)
		return -1;
	struct qp *mine = tt_container_of(base->qp, struct qp, base);
	struct qp *theirs = tt_container_of(id->other->base.qp, struct qp, base);
	mine->other = theirs;
	theirs->other = mine;
	mine->base.state = theirs->base.state = IBV_QPS_RTS;
	mine->accepted = true;
	announce(id->other, RDMA_CM_EVENT_ESTABLISHED, NULL, NULL, 0);
	announce(id, RDMA_CM_EVENT_ESTABLISHED, NULL, NULL, 0);
	return 0;
}

void rdma_reject(struct rdma_cm_id *id, const void *data, uint8_t len)
{
	part(id_of(id), RDMA_CM_EVENT_REJECTED, data, len);
}

void rdma_disconnect(struct rdma_cm_id *base)
{
	struct id *id = id_of(base);

	if (base->qp)
		ibv_modify_qp_to_error(base->qp);
	part(id, RDMA_CM_EVENT_DISCONNECTED, NULL, 0);
}
