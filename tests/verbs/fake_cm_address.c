/* fake_cm_address.c - rdma_cm: addresses, and what a connection asks of its queue pair */
#include "tests/verbs/fake_private.h"
#include <arpa/inet.h>
#include <endian.h>
#include <stdlib.h>

enum { FIRST_PORT = 20000 };

static struct fake_all *const all = &fake_all;

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

struct interface {
	struct ifaddrs base;
	struct sockaddr_storage at;
};

static struct ifaddrs *add_interface(struct ifaddrs *before, const char *ip)
{
	struct interface *i = calloc(1, sizeof *i);
	struct sockaddr_in *v4 = (struct sockaddr_in *)(void *)&i->at;
	struct sockaddr_in6 *v6 = (struct sockaddr_in6 *)(void *)&i->at;

	if (!i)
		abort();
	v4->sin_family = AF_INET;
	if (inet_pton(AF_INET, ip, &v4->sin_addr) != 1) {
		v6->sin6_family = AF_INET6;
		inet_pton(AF_INET6, ip, &v6->sin6_addr);
	}
	i->base = (struct ifaddrs){ .ifa_next = before, .ifa_addr = (struct sockaddr *)(void *)&i->at };
	return &i->base;
}

int fake_getifaddrs(struct ifaddrs **out)
{
	struct ifaddrs *list = NULL;

	fake_lock();
	fake_plug_in();
	for (int i = 0; i < all->adapter_count; i++)
		for (int port = 0; port < all->adapters[i].is.ports; port++)
			if (all->adapters[i].is.port[port].ip)
				list = add_interface(list, all->adapters[i].is.port[port].ip);
	fake_unlock();
	*out = add_interface(add_interface(list, "fe80::1"), "127.0.0.1");
	return 0;
}

void fake_freeifaddrs(struct ifaddrs *list)
{
	for (struct ifaddrs *next; list; list = next) {
		next = list->ifa_next;
		free(tt_container_of(list, struct interface, base));
	}
}

struct fake_adapter *fake_find_host(const struct sockaddr *a, int *port)
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

struct fake_id *fake_find_listener(struct fake_id *id)
{
	struct sockaddr *to = &id->base.route.addr.dst_addr;

	tt_each_of(struct fake_id, node, l, &all->ids) {
		struct sockaddr *at = fake_source_of(l);
		bool listens = l->state == FAKE_LISTENING && !l->channel->killed && at->sa_family == to->sa_family;
		if (listens && *port_of(at) == *port_of(to) && (is_any(at) || is_same_host(at, to)))
			return l;
	}
	return NULL;
}

void fake_take_adapter(struct fake_id *id, struct fake_adapter *a, int port)
{
	id->adapter = a;
	id->base.verbs = &a->cm.base;
	id->base.port_num = (uint8_t)port;
}

static bool is_taken(const struct fake_id *mine, const struct sockaddr *a)
{
	tt_each_of(struct fake_id, node, id, &all->ids) {
		struct sockaddr *b = fake_source_of(id);
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
	struct fake_adapter *adapter = fake_find_host(a, &port);

	if (!adapter && !is_any(a))
		return ENODEV;
	if (*port_of((struct sockaddr *)(uintptr_t)a) && is_taken(id, a))
		return EADDRINUSE;
	memcpy(fake_source_of(id), a, size_of(a));
	if (!*port_of(fake_source_of(id)))
		*port_of(fake_source_of(id)) = htobe16((uint16_t)(FIRST_PORT + all->cm_port++ % 30000));
	if (adapter)
		fake_take_adapter(id, adapter, port);
	return 0;
}

int fake_bind_addr(struct rdma_cm_id *base, struct sockaddr *a)
{
	struct fake_id *id = fake_id_of(base);
	int err = fake_enter(FAKE_bind_addr, NULL);

	if (!err && (id->state != FAKE_IDLE || fake_source_of(id)->sa_family))
		err = EINVAL;
	return fake_leave_cm(err ? err : bind_id(id, a));
}

int fake_resolve_addr(struct rdma_cm_id *base, struct sockaddr *from, struct sockaddr *to, int ms)
{
	struct fake_id *id = fake_id_of(base);
	int err = fake_enter(FAKE_resolve_addr, NULL), port = 0;
	struct fake_adapter *target;

	(void)ms;
	if (!err && id->state != FAKE_IDLE)
		err = EINVAL;
	if (!err && from && !fake_source_of(id)->sa_family)
		err = bind_id(id, from);
	if (err)
		return fake_leave_cm(err);
	memcpy(&base->route.addr.dst_addr, to, size_of(to));
	target = fake_find_host(to, &port);
	id->state = FAKE_ADDR_ASKED;
	if (!fake_answer(id, RDMA_CM_EVENT_ADDR_RESOLVED)) {
		id->state = FAKE_IDLE;
	} else if (!target) {
		fake_announce(id, RDMA_CM_EVENT_ADDR_ERROR, -ENODEV, NULL, 0);
		id->state = FAKE_IDLE;
	} else { /* without a source the target's own adapter is the nearest one */
		if (!id->adapter)
			fake_take_adapter(id, target, port);
		id->state = FAKE_ADDR_KNOWN;
		fake_announce(id, RDMA_CM_EVENT_ADDR_RESOLVED, 0, NULL, 0);
	}
	return fake_leave_cm(0);
}

int fake_resolve_route(struct rdma_cm_id *base, int ms)
{
	struct fake_id *id = fake_id_of(base);
	int err = fake_enter(FAKE_resolve_route, NULL);

	(void)ms;
	if (!err && id->state != FAKE_ADDR_KNOWN)
		err = EINVAL;
	if (err)
		return fake_leave_cm(err);
	if (!fake_answer(id, RDMA_CM_EVENT_ROUTE_RESOLVED))
		return fake_leave_cm(0);
	id->state = FAKE_ROUTE_KNOWN;
	fake_announce(id, RDMA_CM_EVENT_ROUTE_RESOLVED, 0, NULL, 0);
	return fake_leave_cm(0);
}

int fake_listen(struct rdma_cm_id *base, int backlog)
{
	struct fake_id *id = fake_id_of(base);
	int err = fake_enter(FAKE_listen, NULL);

	(void)backlog;
	if (!err && id->state != FAKE_IDLE)
		err = EINVAL;
	if (!err && !fake_source_of(id)->sa_family)
		err = bind_id(id, (struct sockaddr *)&(struct sockaddr_in){ .sin_family = AF_INET });
	if (!err && is_taken(id, fake_source_of(id)))
		err = EADDRINUSE;
	if (!err)
		id->state = FAKE_LISTENING;
	return fake_leave_cm(err);
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
	if (a->qp_state == IBV_QPS_INIT || (fake_is_iwarp(id) && a->qp_state == IBV_QPS_RTR)) {
		a->port_num = id->base.port_num;
		a->pkey_index = 0;
		a->qp_access_flags = IBV_ACCESS_REMOTE_WRITE;
		if (id->resources || fake_is_iwarp(id))
			a->qp_access_flags |= IBV_ACCESS_REMOTE_READ;
		*mask = IBV_QP_STATE | IBV_QP_ACCESS_FLAGS | (fake_is_iwarp(id) ? 0 : IBV_QP_PKEY_INDEX | IBV_QP_PORT);
		return 0;
	}
	if (fake_is_iwarp(id)) {
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
	struct fake_id *id = fake_id_of(base);
	int err = fake_enter(FAKE_init_qp_attr, NULL);

	if (!err)
		err = id->adapter ? fill_state(id, a, mask) : EINVAL;
	return fake_leave_cm(err);
}
