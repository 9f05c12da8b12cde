/* fake_cm.c - rdma_cm: addresses, connections, and how they end */
#include "tests/verbs/fake_private.h"
#include <arpa/inet.h>
#include <endian.h>
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

enum { REQUEST_DATA = 56, RESPONSE_DATA = 196, REJECT_DATA = 148, IWARP_DATA = 255, NO_LISTENER = 8, TIMED_OUT = 4,
       BY_CONSUMER = 28, DEFAULT_TIMEOUT = 17, FIRST_PORT = 20000 };

static struct fake_all *const all = &fake_all;

static struct fake_id *id_of(struct rdma_cm_id *id) { return tt_container_of(id, struct fake_id, base); }
static bool is_iwarp(const struct fake_id *id) { return id->adapter && id->adapter->is.kind == FAKE_IWARP; }

static struct fake_cm_channel *channel_of(struct rdma_event_channel *c)
{
	return tt_container_of(c, struct fake_cm_channel, base);
}

/* As librdmacm: -1 with errno. */
static int leave(int err)
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
	n->event.param.conn.private_data_len = is_iwarp(id) ? len : whole;
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

/* The answer that the caller waits for, or what the test wants in its place. true: it is a good one. */
static bool answer(struct fake_id *id, enum rdma_cm_event_type good)
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

static struct fake_id *owner_of(const struct rdma_cm_event *e) { return id_of(e->listen_id ? e->listen_id : e->id); }

/* of: NULL for those of all ids */
static void forget_news(struct tt_list *list, struct fake_cm_channel *channel, const struct fake_id *of)
{
	tt_each_of(struct fake_news, node, n, list) {
		if (n->channel != channel || (of && id_of(n->event.id) != of && owner_of(&n->event) != of))
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
		return leave(err);
	for (uint64_t i = fake_below(4); tt_list_empty(&c->ready) && (waits || i) && fake_step(); i--)
		;
	fake_unlock();
	if (!fake_take(base->fd))
		return -1;
	fake_lock();
	struct tt_list *node = tt_list_pop(&c->ready);
	if (!node)
		return leave(EAGAIN);
	*out = &tt_container_of(node, struct fake_news, node)->event;
	owner_of(*out)->unacked++;
	return leave(0);
}

int fake_ack_cm_event(struct rdma_cm_event *e)
{
	fake_enter(FAKE_ack_cm_event, NULL);
	owner_of(e)->unacked--;
	free(tt_container_of(e, struct fake_news, event));
	return leave(0);
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
	id->wanted_timeout = id->timeout = DEFAULT_TIMEOUT;
	tt_list_append(&all->ids, &id->node);
	return id;
}

int fake_create_id(struct rdma_event_channel *channel, struct rdma_cm_id **out, void *user, enum rdma_port_space ps)
{
	int err = fake_enter(FAKE_create_id, NULL);

	if (!err)
		*out = &new_id(channel_of(channel), user, ps)->base;
	return leave(err);
}

static void end_id(struct fake_id *id, enum rdma_cm_event_type what, int status, const void *data, uint8_t len)
{
	if (id->state == FAKE_ENDED)
		return;
	fake_announce(id, what, status, data, len);
	id->state = FAKE_ENDED;
	if (what == RDMA_CM_EVENT_DISCONNECTED && !is_iwarp(id))
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
		end_id(other, RDMA_CM_EVENT_REJECTED, is_iwarp(id) ? -ECONNRESET : TIMED_OUT, NULL, 0);
	else if (other->state == FAKE_CONNECTING || other->state == FAKE_ACCEPTED)
		end_id(other, RDMA_CM_EVENT_REJECTED, is_iwarp(id) ? -ECONNREFUSED : BY_CONSUMER, NULL, 0);
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
					caller = id_of(n->event.id);
		if (caller)
			drop_id(caller);
	} while (caller);
}

int fake_destroy_id(struct rdma_cm_id *base)
{
	struct fake_id *id = id_of(base);
	int err = fake_enter(FAKE_destroy_id, NULL);

	if (!err && id->unacked)
		err = fake_bug("destroy_id: it waits for ever for an event that nobody has acknowledged");
	if (err)
		return leave(err);
	if (id->state == FAKE_LISTENING)
		refuse_callers(id);
	drop_id(id);
	return leave(0);
}

/* ---- addresses ---- */

static bool is_same_host(const struct sockaddr *a, const struct sockaddr *b)
{
	const struct sockaddr_in *a4 = (const void *)a, *b4 = (const void *)b;
	const struct sockaddr_in6 *a6 = (const void *)a, *b6 = (const void *)b;

	if (a->sa_family != b->sa_family)
		return false;
	return a->sa_family == AF_INET ? a4->sin_addr.s_addr == b4->sin_addr.s_addr :
	                                 !memcmp(&a6->sin6_addr, &b6->sin6_addr, sizeof a6->sin6_addr);
}

static bool is_any(const struct sockaddr *a)
{
	static const struct sockaddr_in any4 = { .sin_family = AF_INET };
	static const struct sockaddr_in6 any6 = { .sin6_family = AF_INET6 };

	return is_same_host(a, (const struct sockaddr *)&any4) || is_same_host(a, (const struct sockaddr *)&any6);
}

static in_port_t *port_of(struct sockaddr *a)
{
	return a->sa_family == AF_INET ? &((struct sockaddr_in *)(void *)a)->sin_port :
	                                 &((struct sockaddr_in6 *)(void *)a)->sin6_port;
}

static size_t size_of(const struct sockaddr *a)
{
	return a->sa_family == AF_INET ? sizeof(struct sockaddr_in) : sizeof(struct sockaddr_in6);
}

static struct sockaddr *source_of(struct fake_id *id) { return &id->base.route.addr.src_addr; }

static struct fake_adapter *find_host(const struct sockaddr *a, int *port)
{
	struct sockaddr_in v4 = { .sin_family = AF_INET };
	struct sockaddr_in6 v6 = { .sin6_family = AF_INET6 };

	for (int i = 0; i < all->adapter_count; i++)
		for (*port = 1; *port <= all->adapters[i].is.ports; ++*port) {
			const char *ip = all->adapters[i].is.port[*port - 1].ip;
			if (!ip || all->adapters[i].removed)
				continue;
			if ((inet_pton(AF_INET, ip, &v4.sin_addr) == 1 && is_same_host(a, (struct sockaddr *)&v4)) ||
			    (inet_pton(AF_INET6, ip, &v6.sin6_addr) == 1 && is_same_host(a, (struct sockaddr *)&v6)))
				return &all->adapters[i];
		}
	return NULL;
}

static void take_adapter(struct fake_id *id, struct fake_adapter *a, int port)
{
	id->adapter = a;
	id->base.verbs = &a->cm.base;
	id->base.port_num = (uint8_t)port;
}

static bool is_taken(const struct fake_id *mine, const struct sockaddr *a)
{
	tt_each_of(struct fake_id, node, id, &all->ids) {
		struct sockaddr *b = source_of(id);
		bool listens = id != mine && id->state == FAKE_LISTENING && b->sa_family == a->sa_family;
		if (listens && *port_of(b) == *port_of((struct sockaddr *)(uintptr_t)a) &&
		    (is_any(a) || is_any(b) || is_same_host(a, b)))
			return true;
	}
	return false;
}

static int bind_id(struct fake_id *id, const struct sockaddr *a)
{
	int port = 0;
	struct fake_adapter *adapter = find_host(a, &port);

	if (!adapter && !is_any(a))
		return ENODEV;
	if (*port_of((struct sockaddr *)(uintptr_t)a) && is_taken(id, a))
		return EADDRINUSE;
	memcpy(source_of(id), a, size_of(a));
	if (!*port_of(source_of(id)))
		*port_of(source_of(id)) = htobe16((uint16_t)(FIRST_PORT + all->cm_port++ % 30000));
	if (adapter)
		take_adapter(id, adapter, port);
	return 0;
}

int fake_bind_addr(struct rdma_cm_id *base, struct sockaddr *a)
{
	struct fake_id *id = id_of(base);
	int err = fake_enter(FAKE_bind_addr, NULL);

	if (!err && (id->state != FAKE_IDLE || source_of(id)->sa_family))
		err = EINVAL;
	return leave(err ? err : bind_id(id, a));
}

int fake_resolve_addr(struct rdma_cm_id *base, struct sockaddr *from, struct sockaddr *to, int ms)
{
	struct fake_id *id = id_of(base);
	int err = fake_enter(FAKE_resolve_addr, NULL), port = 0;
	struct fake_adapter *target;

	(void)ms;
	if (!err && id->state != FAKE_IDLE)
		err = EINVAL;
	if (!err && from && !source_of(id)->sa_family)
		err = bind_id(id, from);
	if (err)
		return leave(err);
	memcpy(&base->route.addr.dst_addr, to, size_of(to));
	target = find_host(to, &port);
	id->state = FAKE_ADDR_ASKED;
	if (!answer(id, RDMA_CM_EVENT_ADDR_RESOLVED)) {
		id->state = FAKE_IDLE;
	} else if (!target) {
		fake_announce(id, RDMA_CM_EVENT_ADDR_ERROR, -ENODEV, NULL, 0);
		id->state = FAKE_IDLE;
	} else { /* without a source the target's own adapter is the nearest one */
		if (!id->adapter)
			take_adapter(id, target, port);
		id->state = FAKE_ADDR_KNOWN;
		fake_announce(id, RDMA_CM_EVENT_ADDR_RESOLVED, 0, NULL, 0);
	}
	return leave(0);
}

int fake_resolve_route(struct rdma_cm_id *base, int ms)
{
	struct fake_id *id = id_of(base);
	int err = fake_enter(FAKE_resolve_route, NULL);

	(void)ms;
	if (!err && id->state != FAKE_ADDR_KNOWN)
		err = EINVAL;
	if (err)
		return leave(err);
	id->timeout = id->wanted_timeout;
	if (!answer(id, RDMA_CM_EVENT_ROUTE_RESOLVED))
		return leave(0);
	id->state = FAKE_ROUTE_KNOWN;
	fake_announce(id, RDMA_CM_EVENT_ROUTE_RESOLVED, 0, NULL, 0);
	return leave(0);
}

int fake_listen(struct rdma_cm_id *base, int backlog)
{
	struct fake_id *id = id_of(base);
	int err = fake_enter(FAKE_listen, NULL);

	(void)backlog;
	if (!err && id->state != FAKE_IDLE)
		err = EINVAL;
	if (!err && !source_of(id)->sa_family)
		err = bind_id(id, (struct sockaddr *)&(struct sockaddr_in){ .sin_family = AF_INET });
	if (!err && is_taken(id, source_of(id)))
		err = EADDRINUSE;
	if (!err)
		id->state = FAKE_LISTENING;
	return leave(err);
}

int fake_set_option(struct rdma_cm_id *base, int level, int name, void *value, size_t len)
{
	struct fake_id *id = id_of(base);
	int err = fake_enter(FAKE_set_option, NULL);
	size_t want = name == RDMA_OPTION_ID_TOS || name == RDMA_OPTION_ID_ACK_TIMEOUT ? 1 : sizeof(int);

	if (!err && (level != RDMA_OPTION_ID || name < RDMA_OPTION_ID_TOS || name > RDMA_OPTION_ID_ACK_TIMEOUT))
		err = ENOSYS;
	if (!err && (len != want || (name == RDMA_OPTION_ID_ACK_TIMEOUT && *(uint8_t *)value > 31)))
		err = EINVAL;
	if (!err && name == RDMA_OPTION_ID_ACK_TIMEOUT)
		id->wanted_timeout = *(uint8_t *)value;
	return leave(err);
}

/* ---- connections ---- */

static struct fake_id *find_listener(struct fake_id *id)
{
	struct sockaddr *to = &id->base.route.addr.dst_addr;

	tt_each_of(struct fake_id, node, l, &all->ids)
		if (l->state == FAKE_LISTENING && !l->channel->killed && source_of(l)->sa_family == to->sa_family &&
		    *port_of(source_of(l)) == *port_of(to) && (is_any(source_of(l)) || is_same_host(source_of(l), to)))
			return l;
	return NULL;
}

static int take_param(struct fake_id *id, const struct rdma_conn_param *p, uint8_t max_data)
{
	int max = id->adapter->is.max_rd_atomic;
	struct fake_qp *q = p ? fake_find_qp(p->qp_num) : NULL;

	if (!q || q->context->adapter != id->adapter || p->private_data_len > (is_iwarp(id) ? IWARP_DATA : max_data))
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
	struct fake_id *listener = find_listener(id), *caller;
	int port = 0;
	struct fake_adapter *target = find_host(&id->base.route.addr.dst_addr, &port);
	struct fake_news *n;

	if (!target || target->is.kind != id->adapter->is.kind || is_cut(target, port) ||
	    is_cut(id->adapter, id->base.port_num)) {
		end_id(id, RDMA_CM_EVENT_UNREACHABLE, -ETIMEDOUT, NULL, 0);
		return;
	}
	if (!listener) {
		end_id(id, RDMA_CM_EVENT_REJECTED, is_iwarp(id) ? -ECONNREFUSED : NO_LISTENER, NULL, 0);
		return;
	}
	caller = new_id(listener->channel, listener->base.context, id->base.ps);
	take_adapter(caller, target, port);
	memcpy(source_of(caller), &id->base.route.addr.dst_addr, sizeof(struct sockaddr_storage));
	memcpy(&caller->base.route.addr.dst_addr, source_of(id), sizeof(struct sockaddr_storage));
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
	struct fake_id *id = id_of(base);
	int err = fake_enter(FAKE_connect, NULL);

	if (!err && id->state != FAKE_ROUTE_KNOWN)
		err = EINVAL;
	if (!err)
		err = take_param(id, p, REQUEST_DATA);
	if (err)
		return leave(err);
	id->state = FAKE_CONNECTING;
	if (answer(id, RDMA_CM_EVENT_CONNECT_RESPONSE))
		ask(id, p);
	else
		id->state = FAKE_ENDED;
	return leave(0);
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
	struct fake_id *id = id_of(base);
	int err = fake_enter(FAKE_accept, NULL);

	if (!err && (id->state != FAKE_REQUESTED || !id->other))
		err = EINVAL;
	if (!err)
		err = take_param(id, p, RESPONSE_DATA);
	if (err)
		return leave(err);
	id->timeout = id->wanted_timeout;
	id->retry = id->other->retry;
	id->other->resources = id->depth;
	id->other->depth = id->resources;
	if (is_iwarp(id))
		return leave(accept_iwarp(id, p));
	id->state = FAKE_ACCEPTED;
	id->other->state = FAKE_RESPONDED;
	fake_announce(id->other, RDMA_CM_EVENT_CONNECT_RESPONSE, 0, p->private_data, p->private_data_len);
	return leave(0);
}

int fake_establish(struct rdma_cm_id *base)
{
	struct fake_id *id = id_of(base);
	int err = fake_enter(FAKE_establish, NULL);

	if (!err && id->state != FAKE_RESPONDED)
		err = EINVAL;
	if (err)
		return leave(err);
	id->state = FAKE_CONNECTED;
	if (id->other) {
		id->other->state = FAKE_CONNECTED;
		fake_announce(id->other, RDMA_CM_EVENT_ESTABLISHED, 0, NULL, 0);
	}
	return leave(0);
}

int fake_reject(struct rdma_cm_id *base, const void *data, uint8_t len)
{
	struct fake_id *id = id_of(base), *other = id->other;
	int err = fake_enter(FAKE_reject, NULL);

	if (!err && ((id->state != FAKE_REQUESTED && id->state != FAKE_RESPONDED) ||
	             len > (is_iwarp(id) ? IWARP_DATA : REJECT_DATA)))
		err = EINVAL;
	if (err)
		return leave(err);
	id->state = FAKE_ENDED;
	id->other = NULL;
	if (other) {
		other->other = NULL;
		end_id(other, RDMA_CM_EVENT_REJECTED, is_iwarp(id) ? -ECONNREFUSED : BY_CONSUMER, data, len);
	}
	return leave(0);
}

int fake_disconnect(struct rdma_cm_id *base)
{
	struct fake_id *id = id_of(base);
	int err = fake_enter(FAKE_disconnect, NULL);
	struct fake_qp *q = fake_find_qp(id->qp_num);

	if (!err && id->state < FAKE_RESPONDED)
		err = EINVAL;
	if (err)
		return leave(err);
	if (q && q->id == id)
		fake_end_connection(q);
	part(id);
	end_id(id, RDMA_CM_EVENT_DISCONNECTED, 0, NULL, 0);
	return leave(0);
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

/* ---- what the connection asks of the queue pair ---- */

static void fill_path(const struct fake_id *id, struct ibv_qp_attr *a)
{
	const struct fake_adapter *to = id->other->adapter;
	const struct fake_port *mine = &id->adapter->is.port[id->base.port_num - 1];
	const struct fake_port *theirs = &to->is.port[id->other->base.port_num - 1];
	int from = 0, index = 0;

	for (int i = FAKE_GIDS - 1; i >= 0 && id->adapter->is.kind == FAKE_ROCE; i--) {
		if (mine->gids[i].text && strchr(mine->gids[i].text, '.'))
			from = i;
		if (theirs->gids[i].text && strchr(theirs->gids[i].text, '.'))
			index = i;
	}
	memset(&a->ah_attr, 0, sizeof a->ah_attr);
	a->ah_attr.port_num = id->base.port_num;
	a->ah_attr.dlid = theirs->lid;
	a->ah_attr.is_global = id->adapter->is.kind == FAKE_ROCE;
	a->ah_attr.grh.sgid_index = (uint8_t)from;
	a->ah_attr.grh.dgid = to->gids[id->other->base.port_num - 1][index];
	a->ah_attr.grh.hop_limit = 64;
	a->path_mtu = (enum ibv_mtu)tt_min(mine->mtu, theirs->mtu);
}

static int fill_state(const struct fake_id *id, struct ibv_qp_attr *a, int *mask)
{
	if (a->qp_state == IBV_QPS_INIT || (is_iwarp(id) && a->qp_state == IBV_QPS_RTR)) {
		a->port_num = id->base.port_num;
		a->pkey_index = 0;
		a->qp_access_flags = IBV_ACCESS_REMOTE_WRITE;
		if (id->resources || is_iwarp(id))
			a->qp_access_flags |= IBV_ACCESS_REMOTE_READ;
		*mask = IBV_QP_STATE | IBV_QP_ACCESS_FLAGS | (is_iwarp(id) ? 0 : IBV_QP_PKEY_INDEX | IBV_QP_PORT);
		return 0;
	}
	if (is_iwarp(id)) {
		*mask = 0;
		return a->qp_state == IBV_QPS_RTS ? 0 : EINVAL;
	}
	if (!id->other || (a->qp_state != IBV_QPS_RTR && a->qp_state != IBV_QPS_RTS) || id->state < FAKE_REQUESTED)
		return EINVAL;
	if (a->qp_state == IBV_QPS_RTR) {
		fill_path(id, a);
		a->dest_qp_num = id->other->qp_num;
		a->rq_psn = id->other->psn;
		a->max_dest_rd_atomic = id->resources;
		a->min_rnr_timer = 0;
		*mask = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
		        IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
		return 0;
	}
	a->timeout = id->timeout;
	a->retry_cnt = id->retry;
	a->rnr_retry = id->rnr;
	a->sq_psn = id->psn;
	a->max_rd_atomic = id->depth;
	*mask = IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
	        IBV_QP_MAX_QP_RD_ATOMIC;
	return 0;
}

int fake_init_qp_attr(struct rdma_cm_id *base, struct ibv_qp_attr *a, int *mask)
{
	struct fake_id *id = id_of(base);
	int err = fake_enter(FAKE_init_qp_attr, NULL);

	if (!err)
		err = id->adapter ? fill_state(id, a, mask) : EINVAL;
	return leave(err);
}
