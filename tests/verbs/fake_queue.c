/* fake_queue.c - queues of completions, and asynchronous events */
#include "tests/verbs/fake_private.h"
#include <stdlib.h>
#include <unistd.h>

static struct fake_all *const all = &fake_all;

static struct fake_context *context_of(struct ibv_context *c) { return tt_container_of(c, struct fake_context, base); }
static struct fake_cq *cq_of(struct ibv_cq *cq) { return tt_container_of(cq, struct fake_cq, base); }

/* ---- asynchronous events ---- */

static unsigned *unacked_of(const struct ibv_async_event *e)
{
	switch (e->event_type) {
	case IBV_EVENT_CQ_ERR:
		return &tt_container_of(e->element.cq, struct fake_cq, base)->async_unacked;
	case IBV_EVENT_SRQ_ERR:
	case IBV_EVENT_SRQ_LIMIT_REACHED:
		return &tt_container_of(e->element.srq, struct fake_srq, base)->async_unacked;
	case IBV_EVENT_QP_FATAL:
	case IBV_EVENT_QP_REQ_ERR:
	case IBV_EVENT_QP_ACCESS_ERR:
	case IBV_EVENT_COMM_EST:
	case IBV_EVENT_SQ_DRAINED:
	case IBV_EVENT_PATH_MIG:
	case IBV_EVENT_PATH_MIG_ERR:
	case IBV_EVENT_QP_LAST_WQE_REACHED:
		return &tt_container_of(e->element.qp, struct fake_qp, base)->async_unacked;
	default:
		return NULL;
	}
}

void fake_raise_event(struct fake_context *c, enum ibv_event_type type, void *element, int port)
{
	struct fake_event *e;

	if (c->killed || c->base.async_fd < 0)
		return;
	e = calloc(1, sizeof *e);
	if (!e)
		abort();
	e->event.event_type = type;
	if (element)
		e->event.element.qp = element; /* whatever it is */
	else
		e->event.element.port_num = port;
	tt_list_append(&c->events, &e->node);
	fake_ring(c->base.async_fd);
}

void fake_forget_events(struct fake_context *c, const void *element)
{
	tt_each_of(struct fake_event, node, e, &c->events) {
		if (element && (void *)e->event.element.qp != element)
			continue;
		tt_list_remove(&e->node);
		free(e);
		fake_unring(c->base.async_fd);
	}
}

int fake_get_async_event(struct ibv_context *base, struct ibv_async_event *out)
{
	struct fake_context *c = context_of(base);
	struct tt_list *node;
	unsigned *unacked;

	if (fake_enter(FAKE_get_async_event, NULL)) {
		fake_unlock();
		return -1;
	}
	fake_unlock();
	if (!fake_take(base->async_fd))
		return -1;
	fake_lock();
	node = tt_list_pop(&c->events);
	if (!node)
		return fake_leave(-1);
	*out = tt_container_of(node, struct fake_event, node)->event;
	free(tt_container_of(node, struct fake_event, node));
	unacked = unacked_of(out);
	if (unacked)
		++*unacked;
	if (out->event_type == IBV_EVENT_QP_LAST_WQE_REACHED) { /* all that it had fetched can be polled now */
		struct fake_cq *cq = cq_of(out->element.qp->recv_cq);
		tt_container_of(out->element.qp, struct fake_qp, base)->last_heard = true;
		if (cq->seen < cq->count)
			fake_reveal(cq, cq->count - cq->seen);
	}
	return fake_leave(0);
}

void fake_ack_async_event(struct ibv_async_event *e)
{
	unsigned *unacked;

	fake_enter(FAKE_ack_async_event, NULL);
	unacked = unacked_of(e);
	if (unacked && !*unacked)
		fake_bug("ack_async_event: nobody has got this event");
	else if (unacked)
		--*unacked;
	fake_unlock();
}

/* ---- completions ---- */

struct ibv_comp_channel *fake_create_comp_channel(struct ibv_context *c)
{
	int err = fake_enter(FAKE_create_comp_channel, context_of(c));
	struct fake_channel *channel = NULL;

	if (!err) {
		channel = fake_make(sizeof *channel);
		channel->base = (struct ibv_comp_channel){ .context = c, .fd = fake_open_fd() };
		tt_list_init(&channel->events);
		context_of(c)->objects++;
	}
	return fake_leave_with(err, channel);
}

int fake_destroy_comp_channel(struct ibv_comp_channel *base)
{
	int err = fake_enter(FAKE_destroy_comp_channel, NULL);

	if (!err && base->refcnt)
		err = EBUSY;
	if (!err) {
		close(base->fd);
		context_of(base->context)->objects--;
		fake_drop(tt_container_of(base, struct fake_channel, base));
	}
	return fake_leave(err);
}

struct ibv_cq *fake_create_cq(struct ibv_context *c, int cqe, void *user, struct ibv_comp_channel *channel,
                                int vector)
{
	int err = fake_enter(FAKE_create_cq, context_of(c));
	struct fake_cq *cq;

	if (!err && (cqe < 1 || cqe > (int)context_of(c)->adapter->is.max_cqe || vector < 0 ||
	             vector >= c->num_comp_vectors || (channel && channel->context != c)))
		err = EINVAL;
	if (err)
		return fake_leave_with(err, NULL);
	cq = fake_make(sizeof *cq);
	cq->entries = calloc((size_t)cqe, sizeof *cq->entries);
	if (!cq->entries)
		abort();
	cq->base.context = c;
	cq->base.channel = channel;
	cq->base.cq_context = user;
	cq->base.cqe = cqe;
	cq->vector = vector;
	tt_list_init(&cq->fresh);
	if (channel)
		channel->refcnt++;
	context_of(c)->objects++;
	return fake_leave_with(0, &cq->base);
}

int fake_vector(const struct ibv_cq *cq) { return tt_container_of(cq, const struct fake_cq, base)->vector; }

static void forget_cq_events(struct fake_cq *cq)
{
	struct fake_channel *channel = tt_container_of(cq->base.channel, struct fake_channel, base);

	tt_each_of(struct fake_cq_event, node, e, &channel->events) {
		if (e->cq != cq)
			continue;
		tt_list_remove(&e->node);
		free(e);
		fake_unring(channel->base.fd);
	}
}

int fake_destroy_cq(struct ibv_cq *base)
{
	struct fake_cq *cq = tt_container_of(base, struct fake_cq, base);
	int err = fake_enter(FAKE_destroy_cq, NULL);

	if (!err && (cq->unacked || cq->async_unacked))
		err = fake_bug("destroy_cq: it waits for ever for an event that nobody has acknowledged");
	if (!err && cq->users)
		err = EBUSY;
	if (err)
		return fake_leave(err);
	if (base->channel) {
		forget_cq_events(cq);
		base->channel->refcnt--;
	}
	fake_forget_events(context_of(base->context), base);
	context_of(base->context)->objects--;
	tt_list_remove(&cq->fresh);
	free(cq->entries);
	fake_drop(cq);
	return fake_leave(0);
}

int fake_get_cq_event(struct ibv_comp_channel *base, struct ibv_cq **out, void **user)
{
	struct fake_channel *channel = tt_container_of(base, struct fake_channel, base);
	int err = fake_enter(FAKE_get_cq_event, NULL);
	struct tt_list *node;

	fake_unlock();
	if (err || !fake_take(base->fd))
		return -1;
	fake_lock();
	node = tt_list_pop(&channel->events);
	if (!node)
		return fake_leave(-1);
	struct fake_cq_event *e = tt_container_of(node, struct fake_cq_event, node);
	*out = &e->cq->base;
	*user = e->cq->base.cq_context;
	e->cq->unacked++;
	free(e);
	return fake_leave(0);
}

void fake_ack_cq_events(struct ibv_cq *base, unsigned n)
{
	struct fake_cq *cq = tt_container_of(base, struct fake_cq, base);

	fake_enter(FAKE_ack_cq_events, NULL);
	if (n > cq->unacked)
		fake_bug("ack_cq_events: more than were got");
	else
		cq->unacked -= n;
	fake_unlock();
}

void fake_complete(struct fake_qp *q, struct ibv_cq *base, const struct ibv_wc *wc, uint32_t frees, bool solicited)
{
	struct fake_cq *cq = cq_of(base);
	struct ibv_wc *to;

	if (cq->count == base->cqe) {
		fake_bug("poll_cq: the queue of completions overflows");
		fake_raise_event(q->context, IBV_EVENT_CQ_ERR, base, 0);
		return;
	}
	struct fake_entry *e = &cq->entries[(cq->first + cq->count++) % base->cqe];
	*e = (struct fake_entry){ *wc, frees, solicited || wc->status };
	to = &e->wc;
	to->qp_num = q->base.qp_num;
	if (wc->status) { /* the rest is not valid */
		to->opcode = (enum ibv_wc_opcode)(fake_below(2) ? IBV_WC_RECV : IBV_WC_RDMA_READ);
		to->byte_len = (uint32_t)fake_below(UINT32_MAX);
		to->imm_data = (uint32_t)fake_below(UINT32_MAX);
		to->wc_flags = (unsigned)fake_below(4);
	}
	tt_list_append_once(&all->fresh, &cq->fresh);
}

static void ring_channel(struct fake_cq *cq)
{
	struct fake_cq_event *e = calloc(1, sizeof *e);

	if (!e)
		abort();
	e->cq = cq;
	cq->armed = FAKE_UNARMED;
	tt_list_append(&tt_container_of(cq->base.channel, struct fake_channel, base)->events, &e->node);
	fake_ring(cq->base.channel->fd);
}

void fake_reveal(struct fake_cq *cq, int more)
{
	bool wakes = cq->armed == FAKE_ARMED;

	for (; more; more--, cq->seen++)
		wakes |= cq->armed && cq->entries[(cq->first + cq->seen) % cq->base.cqe].solicited;
	if (cq->seen == cq->count)
		tt_list_remove(&cq->fresh);
	if (wakes && cq->base.channel && !tt_container_of(cq->base.context, struct fake_context, base)->killed)
		ring_channel(cq);
}

int fake_poll_cq(struct ibv_cq *base, int n, struct ibv_wc *wc)
{
	struct fake_cq *cq = cq_of(base);
	int err = fake_enter(FAKE_poll_cq, NULL);

	if (err)
		return fake_leave(-1);
	for (uint64_t i = fake_below(fake_below(8) ? 8 : 100); i && fake_step(); i--)
		;
	n = (int)tt_min((size_t)n, (size_t)cq->seen);
	for (int i = 0; i < n; i++, cq->first = (cq->first + 1) % base->cqe) {
		struct fake_entry *e = &cq->entries[cq->first];
		struct fake_qp *q = fake_find_qp(e->wc.qp_num);
		wc[i] = e->wc;
		if (q)
			q->posted -= e->frees;
	}
	cq->seen -= n;
	cq->count -= n;
	return fake_leave(n);
}

int fake_req_notify_cq(struct ibv_cq *base, int solicited)
{
	struct fake_cq *cq = cq_of(base);
	int err = fake_enter(FAKE_req_notify_cq, NULL), before = all->rings;

	if (!err) {
		cq->armed = solicited && cq->armed != FAKE_ARMED ? FAKE_SOLICITED : FAKE_ARMED;
		while (all->rings == before && fake_step())
			;
	}
	return fake_leave(err);
}
