/* fake_cm.c - rdma_cm: events, connections, and how they end */
#include "tests/verbs/fake_private.h"
#include <arpa/inet.h>
#include <endian.h>
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

enum { REQUEST_DATA = 56, RESPONSE_DATA = 196, REJECT_DATA = 148, IWARP_DATA = 255, NO_LISTENER = 8, TIMED_OUT = 4,
       BY_CONSUMER = 28, DEFAULT_TIMEOUT = 17 };

static struct fake_all *const all = &fake_all;
static struct fake_cm_channel *channel_of(struct rdma_event_channel *c)
{
	return tt_container_of(c, struct fake_cm_channel, base);
}

int fake_leave_cm(int err)
{
	fake_unlock();
	if (!err)
		return 0;
	errno = err;
	return -1;
}

/* ---- events ---- */

static struct fake_news *new_event(struct fake_id *id, enum rdma_cm_event_type what, int status)
{
	struct fake_news *n = calloc(1, sizeof *n);

	if (!n)
		abort();
	n->event = (struct rdma_cm_event){ .id = &id->base, .event = what, .status = status };
	n->channel = id->channel;
	tt_list_init(&n->node);
	if (!id->channel->killed)
		tt_list_append(&all->news, &n->node);
	return n;
}

static void drop_if_unsent(struct fake_news *n)
{
	if (tt_list_empty(&n->node))
		free(n);
}

/* InfiniBand's private data has one length, whatever was sent. */
static void fill(struct fake_news *n, const struct fake_id *id, const void *data, uint8_t len)
{
	enum rdma_cm_event_type what = n->event.event;
	uint8_t whole = what == RDMA_CM_EVENT_CONNECT_REQUEST ? REQUEST_DATA
	                : what == RDMA_CM_EVENT_CONNECT_RESPONSE ? RESPONSE_DATA
	                : what == RDMA_CM_EVENT_REJECTED         ? REJECT_DATA : 0;

	if (len)
		memcpy(n->data, data, len);
	n->event.param.conn.private_data_len = fake_is_iwarp(id) ? len : whole;
	n->event.param.conn.private_data = n->event.param.conn.private_data_len ? n->data : NULL;
	if (id->other) {
		n->event.param.conn.responder_resources = id->other->depth;
		n->event.param.conn.initiator_depth = id->other->resources;
		n->event.param.conn.retry_count = id->other->retry;
		n->event.param.conn.rnr_retry_count = id->other->rnr;
		n->event.param.conn.qp_num = id->other->qp_num;
	}
}

void fake_announce(struct fake_id *id, enum rdma_cm_event_type what, int status, const void *data, uint8_t len)
{
	struct fake_news *n = new_event(id, what, status);

	fill(n, id, data, len);
	drop_if_unsent(n);
}

bool fake_answer(struct fake_id *id, enum rdma_cm_event_type good)
{
	if (!all->cm_next.set)
		return true;
	all->cm_next.set = false;
	fake_announce(id, all->cm_next.event, all->cm_next.status, NULL, 0);
	return all->cm_next.event == good;
}

bool fake_deliver_news(void)
{
	struct tt_list *node = tt_list_pop(&all->news);
	struct fake_news *n = node ? tt_container_of(node, struct fake_news, node) : NULL;

	if (!n)
		return false;
	if (n->channel->killed) {
		free(n);
		return true;
	}
	tt_list_append(&n->channel->ready, &n->node);
	fake_ring(n->channel->base.fd);
	return true;
}

static struct fake_id *owner_of(const struct rdma_cm_event *e)
{
	return fake_id_of(e->listen_id ? e->listen_id : e->id);
}

/* of: NULL for those of all ids */
static void forget_news(struct tt_list *list, struct fake_cm_channel *channel, const struct fake_id *of)
{
	tt_each_of(struct fake_news, node, n, list) {
		if (n->channel != channel || (of && fake_id_of(n->event.id) != of && owner_of(&n->event) != of))
			continue;
		tt_list_remove(&n->node);
		free(n);
		if (list == &channel->ready)
			fake_unring(channel->base.fd);
	}
}

struct rdma_event_channel *fake_create_event_channel(void)
{
	int err = fake_enter(FAKE_create_event_channel, NULL);
	struct fake_cm_channel *c = NULL;

	if (!err) {
		fake_plug_in();
		for (int i = 0; i < all->adapter_count; i++)
			all->adapters[i].cm_opened |= !all->adapters[i].removed;
		c = fake_make(sizeof *c);
		c->base.fd = fake_open_fd();
		tt_list_init(&c->ready);
	}
	return fake_leave_with(err, c);
}

void fake_destroy_event_channel(struct rdma_event_channel *base)
{
	struct fake_cm_channel *c = channel_of(base);

	fake_enter(FAKE_destroy_event_channel, NULL);
	tt_each_of(struct fake_id, node, id, &all->ids)
		if (id->channel == c)
			fake_bug("destroy_event_channel: it has ids");
	forget_news(&all->news, c, NULL);
	forget_news(&c->ready, c, NULL);
	close(base->fd);
	fake_drop(c);
	fake_unlock();
}

int fake_get_cm_event(struct rdma_event_channel *base, struct rdma_cm_event **out)
{
	struct fake_cm_channel *c = channel_of(base);
	int err = fake_enter(FAKE_get_cm_event, NULL);
	bool waits = !(fcntl(base->fd, F_GETFL) & O_NONBLOCK);

	if (err)
		return fake_leave_cm(err);
	for (uint64_t i = fake_below(4); tt_list_empty(&c->ready) && (waits || i) && fake_step(); i--)
		;
	fake_unlock();
	if (!fake_take(base->fd))
		return -1;
	fake_lock();
	struct tt_list *node = tt_list_pop(&c->ready);
	if (!node)
		return fake_leave_cm(EAGAIN);
	*out = &tt_container_of(node, struct fake_news, node)->event;
	owner_of(*out)->unacked++;
	return fake_leave_cm(0);
}

int fake_ack_cm_event(struct rdma_cm_event *e)
{
	fake_enter(FAKE_ack_cm_event, NULL);
	owner_of(e)->unacked--;
	free(tt_container_of(e, struct fake_news, event));
	return fake_leave_cm(0);
}

const char *fake_event_str(enum rdma_cm_event_type e)
{
	static const char *const names[] = { "ADDR_RESOLVED", "ADDR_ERROR", "ROUTE_RESOLVED", "ROUTE_ERROR",
		"CONNECT_REQUEST", "CONNECT_RESPONSE", "CONNECT_ERROR", "UNREACHABLE", "REJECTED", "ESTABLISHED",
		"DISCONNECTED", "DEVICE_REMOVAL", "MULTICAST_JOIN", "MULTICAST_ERROR", "ADDR_CHANGE", "TIMEWAIT_EXIT" };

	return (size_t)e < TT_COUNT(names) ? names[e] : "unknown";
}

/* ---- ids ---- */

static struct fake_id *new_id(struct fake_cm_channel *channel, void *user, enum rdma_port_space ps)
{
	struct fake_id *id = fake_make(sizeof *id);

	id->base.channel = &channel->base;
	id->base.context = user;
	id->base.ps = ps;
	id->base.qp_type = IBV_QPT_RC;
	id->channel = channel;
	id->psn = (uint32_t)fake_below(1 << 24);
	id->timeout = DEFAULT_TIMEOUT;
	tt_list_append(&all->ids, &id->node);
	return id;
}

int fake_create_id(struct rdma_event_channel *channel, struct rdma_cm_id **out, void *user, enum rdma_port_space ps)
{
	int err = fake_enter(FAKE_create_id, NULL);

	if (!err)
		*out = &new_id(channel_of(channel), user, ps)->base;
	return fake_leave_cm(err);
}

static void end_id(struct fake_id *id, enum rdma_cm_event_type what, int status, const void *data, uint8_t len)
{
	if (id->state == FAKE_ENDED)
		return;
	fake_announce(id, what, status, data, len);
	id->state = FAKE_ENDED;
	if (what == RDMA_CM_EVENT_DISCONNECTED && !fake_is_iwarp(id))
		fake_announce(id, RDMA_CM_EVENT_TIMEWAIT_EXIT, 0, NULL, 0);
}

/* The process of this id leaves, or its caller destroys it. */
static void part(struct fake_id *id)
{
	struct fake_id *other = id->other;

	if (!other)
		return;
	id->other = other->other = NULL;
	if (other->state == FAKE_REQUESTED)
		end_id(other, RDMA_CM_EVENT_REJECTED, fake_is_iwarp(id) ? -ECONNRESET : TIMED_OUT, NULL, 0);
	else if (other->state == FAKE_CONNECTING || other->state == FAKE_ACCEPTED)
		end_id(other, RDMA_CM_EVENT_REJECTED, fake_is_iwarp(id) ? -ECONNREFUSED : BY_CONSUMER, NULL, 0);
	else
		end_id(other, RDMA_CM_EVENT_DISCONNECTED, 0, NULL, 0);
}

static void drop_id(struct fake_id *id)
{
	struct fake_qp *q = fake_find_qp(id->qp_num);

	if (q && q->id == id)
		fake_end_connection(q);
	part(id);
	forget_news(&all->news, id->channel, id);
	forget_news(&id->channel->ready, id->channel, id);
	tt_list_remove(&id->node);
	fake_drop(id);
}

/* Those who ask a listener that goes away are refused, unless somebody has got their request. */
static void refuse_callers(struct fake_id *listener)
{
	struct tt_list *lists[] = { &all->news, &listener->channel->ready };
	struct fake_id *caller;

	do {
		caller = NULL;
		for (size_t i = 0; i < TT_COUNT(lists); i++)
			tt_each_of(struct fake_news, node, n, lists[i])
				if (n->event.listen_id == &listener->base)
					caller = fake_id_of(n->event.id);
		if (caller)
			drop_id(caller);
	} while (caller);
}

int fake_destroy_id(struct rdma_cm_id *base)
{
	struct fake_id *id = fake_id_of(base);
	int err = fake_enter(FAKE_destroy_id, NULL);

	if (!err && id->unacked)
		err = fake_bug("destroy_id: it waits for ever for an event that nobody has acknowledged");
	if (err)
		return fake_leave_cm(err);
	if (id->state == FAKE_LISTENING)
		refuse_callers(id);
	drop_id(id);
	return fake_leave_cm(0);
}

/* ---- connections ---- */

static int take_param(struct fake_id *id, const struct rdma_conn_param *p, uint8_t max_data)
{
	int max = id->adapter->is.max_rd_atomic;
	struct fake_qp *q = p ? fake_find_qp(p->qp_num) : NULL;

	if (!q || q->context->adapter != id->adapter ||
	    p->private_data_len > (fake_is_iwarp(id) ? IWARP_DATA : max_data))
		return EINVAL;
	if ((p->responder_resources > max && p->responder_resources != RDMA_MAX_RESP_RES) ||
	    (p->initiator_depth > max && p->initiator_depth != RDMA_MAX_INIT_DEPTH))
		return EINVAL;
	id->resources = (uint8_t)tt_min(p->responder_resources, (size_t)max);
	id->depth = (uint8_t)tt_min(p->initiator_depth, (size_t)max);
	id->retry = p->retry_count & 7;
	id->rnr = p->rnr_retry_count & 7;
	id->qp_num = p->qp_num;
	return 0;
}

static bool is_cut(const struct fake_adapter *a, int port)
{
	return a->lost[port - 1] || a->is.port[port - 1].state != IBV_PORT_ACTIVE || a->removed;
}

static void ask(struct fake_id *id, const struct rdma_conn_param *p)
{
	struct fake_id *listener = fake_find_listener(id), *caller;
	int port = 0;
	struct fake_adapter *target = fake_find_host(&id->base.route.addr.dst_addr, &port);
	struct fake_news *n;

	if (!target || target->is.kind != id->adapter->is.kind || is_cut(target, port) ||
	    is_cut(id->adapter, id->base.port_num)) {
		end_id(id, RDMA_CM_EVENT_UNREACHABLE, -ETIMEDOUT, NULL, 0);
		return;
	}
	if (!listener) {
		end_id(id, RDMA_CM_EVENT_REJECTED, fake_is_iwarp(id) ? -ECONNREFUSED : NO_LISTENER, NULL, 0);
		return;
	}
	caller = new_id(listener->channel, listener->base.context, id->base.ps);
	fake_take_adapter(caller, target, port);
	memcpy(fake_source_of(caller), &id->base.route.addr.dst_addr, sizeof(struct sockaddr_storage));
	memcpy(&caller->base.route.addr.dst_addr, fake_source_of(id), sizeof(struct sockaddr_storage));
	caller->other = id;
	caller->resources = id->depth;
	caller->depth = id->resources;
	caller->retry = id->retry;
	caller->rnr = id->rnr;
	id->other = caller;
	caller->state = FAKE_REQUESTED;
	n = new_event(caller, RDMA_CM_EVENT_CONNECT_REQUEST, 0);
	n->event.listen_id = &listener->base;
	fill(n, caller, p->private_data, p->private_data_len);
	drop_if_unsent(n);
}

int fake_connect(struct rdma_cm_id *base, struct rdma_conn_param *p)
{
	struct fake_id *id = fake_id_of(base);
	int err = fake_enter(FAKE_connect, NULL);

	if (!err && id->state != FAKE_ROUTE_KNOWN)
		err = EINVAL;
	if (!err)
		err = take_param(id, p, REQUEST_DATA);
	if (err)
		return fake_leave_cm(err);
	id->state = FAKE_CONNECTING;
	if (fake_answer(id, RDMA_CM_EVENT_CONNECT_RESPONSE))
		ask(id, p);
	else
		id->state = FAKE_ENDED;
	return fake_leave_cm(0);
}

static void join(struct fake_id *id, struct fake_qp *mine, struct fake_qp *theirs)
{
	mine->id = id;
	mine->peer = theirs->base.qp_num;
	mine->state = IBV_QPS_RTS;
	id->state = FAKE_CONNECTED;
}

static int accept_iwarp(struct fake_id *id, const struct rdma_conn_param *p)
{
	struct fake_qp *mine = fake_find_qp(id->qp_num), *theirs = fake_find_qp(id->other->qp_num);

	if (!theirs || mine->state == IBV_QPS_RESET || mine->state >= IBV_QPS_RTS || theirs->state == IBV_QPS_RESET ||
	    theirs->state >= IBV_QPS_RTS)
		return EINVAL;
	join(id, mine, theirs);
	join(id->other, theirs, mine);
	mine->accepted = true;
	fake_announce(id->other, RDMA_CM_EVENT_ESTABLISHED, 0, p->private_data, p->private_data_len);
	fake_announce(id, RDMA_CM_EVENT_ESTABLISHED, 0, NULL, 0);
	return 0;
}

int fake_accept(struct rdma_cm_id *base, struct rdma_conn_param *p)
{
	struct fake_id *id = fake_id_of(base);
	int err = fake_enter(FAKE_accept, NULL);

	if (!err && (id->state != FAKE_REQUESTED || !id->other))
		err = EINVAL;
	if (!err)
		err = take_param(id, p, RESPONSE_DATA);
	if (err)
		return fake_leave_cm(err);
	id->retry = id->other->retry;
	id->other->resources = id->depth;
	id->other->depth = id->resources;
	if (fake_is_iwarp(id))
		return fake_leave_cm(accept_iwarp(id, p));
	id->state = FAKE_ACCEPTED;
	id->other->state = FAKE_RESPONDED;
	fake_announce(id->other, RDMA_CM_EVENT_CONNECT_RESPONSE, 0, p->private_data, p->private_data_len);
	return fake_leave_cm(0);
}

int fake_establish(struct rdma_cm_id *base)
{
	struct fake_id *id = fake_id_of(base);
	int err = fake_enter(FAKE_establish, NULL);

	if (!err && id->state != FAKE_RESPONDED)
		err = EINVAL;
	if (err)
		return fake_leave_cm(err);
	id->state = FAKE_CONNECTED;
	if (id->other) {
		id->other->state = FAKE_CONNECTED;
		fake_announce(id->other, RDMA_CM_EVENT_ESTABLISHED, 0, NULL, 0);
	}
	return fake_leave_cm(0);
}

int fake_reject(struct rdma_cm_id *base, const void *data, uint8_t len)
{
	struct fake_id *id = fake_id_of(base), *other = id->other;
	int err = fake_enter(FAKE_reject, NULL);

	if (!err && ((id->state != FAKE_REQUESTED && id->state != FAKE_RESPONDED) ||
	             len > (fake_is_iwarp(id) ? IWARP_DATA : REJECT_DATA)))
		err = EINVAL;
	if (err)
		return fake_leave_cm(err);
	id->state = FAKE_ENDED;
	id->other = NULL;
	if (other) {
		other->other = NULL;
		end_id(other, RDMA_CM_EVENT_REJECTED, fake_is_iwarp(id) ? -ECONNREFUSED : BY_CONSUMER, data, len);
	}
	return fake_leave_cm(0);
}

int fake_disconnect(struct rdma_cm_id *base)
{
	struct fake_id *id = fake_id_of(base);
	int err = fake_enter(FAKE_disconnect, NULL);
	struct fake_qp *q = fake_find_qp(id->qp_num);

	if (!err && id->state < FAKE_RESPONDED)
		err = EINVAL;
	if (err)
		return fake_leave_cm(err);
	if (q && q->id == id)
		fake_end_connection(q);
	part(id);
	end_id(id, RDMA_CM_EVENT_DISCONNECTED, 0, NULL, 0);
	return fake_leave_cm(0);
}

void fake_end_connection(struct fake_qp *q)
{
	struct fake_id *id = q->id;
	struct fake_qp *other = id ? fake_find_qp(q->peer) : NULL;

	if (!id)
		return;
	q->id = NULL;
	fake_flush(q, fake_below(2));
	if (other && other->id) {
		other->id = NULL;
		fake_flush(other, fake_below(2));
	}
	part(id);
	end_id(id, RDMA_CM_EVENT_DISCONNECTED, 0, NULL, 0);
}

void fake_cm_remove(struct fake_adapter *a)
{
	tt_each_of(struct fake_id, node, id, &all->ids)
		if (id->adapter == a)
			fake_announce(id, RDMA_CM_EVENT_DEVICE_REMOVAL, 0, NULL, 0);
}

void fake_cm_kill(const struct fake_context *c)
{
	tt_each_of(struct fake_id, node, id, &all->ids) {
		struct fake_qp *q = fake_find_qp(id->qp_num);
		if (q && q->context == c)
			id->channel->killed = true;
	}
	tt_each_of(struct fake_id, node, id, &all->ids)
		if (id->channel->killed)
			part(id);
}
