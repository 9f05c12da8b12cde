/* verbs_cm.c - librdmacm: connects iWARP's queue pairs, and InfiniBand's and RoCE's with TUTTI_VERBS_CONNECT=cm
 *
 *     acceptor                    connector
 *     its TERMS ----------------> have the IP address where the acceptor's adapter listens, and a cookie
 *                                 looks for the address, then for the route; sends the cookie
 *     CONNECT_REQUEST <---------- (only a peer that has proven itself knows a cookie)
 *     accepts ------------------> CONNECT_RESPONSE: establishes. On iWARP the kernel does: ESTABLISHED
 *     ESTABLISHED <--------------
 *
 * The queue pairs are verbs_queue.c's, so that this transport says which rights they have, and when. The net's timeout
 * ends what librdmacm would try for minutes.
 */
#include "transport/verbs/verbs_private.h"
#include "transport/dial.h"
#include <netdb.h>

enum { ATTEMPTS = 16, REQUESTS = 64, RNR_FOREVER = 7 };

/* The net's own address */

/* The loopback belongs to any adapter, a link-local address means nothing to others. */
static bool is_of_use(const struct sockaddr *a)
{
	union tt_socket_address at;

	if (!a || (a->sa_family != AF_INET && a->sa_family != AF_INET6))
		return false;
	tt_resolve_copy(&at, a);
	return !tt_resolve_is_loopback(&at) && (a->sa_family == AF_INET || !IN6_IS_ADDR_LINKLOCAL(&at.v6.sin6_addr));
}

static bool is_ours(const struct tt_verbs *net, const struct rdma_cm_id *id)
{
	return id->verbs && id->port_num == net->port.number &&
	       !strcmp(net->library->get_device_name(id->verbs->device),
	               net->library->get_device_name(net->device->device));
}

/* 0: there the net listens. ENODEV: the address is not this adapter's. Else why not. */
static int listen_at(struct tt_verbs *net, struct sockaddr *at)
{
	const struct tt_verbs_library *l = net->library;
	struct rdma_cm_id *id;
	int err = ENODEV;

	if (l->create_id(net->events, &id, NULL, RDMA_PS_TCP))
		return errno;
	if (l->bind_addr(id, at))
		err = errno;
	else if (is_ours(net, id))
		err = l->listen(id, REQUESTS) ? errno : 0;
	if (err)
		l->destroy_id(id);
	else
		net->listener = id;
	return err;
}

/* On iWARP a port is one of TCP: that of TUTTI_PORTS, if set, or one that the kernel takes and a socket may have. */
static int listen_on(struct tt_verbs *net, const struct sockaddr *address, const int ports[2])
{
	bool given = net->iwarp && ports[0];
	int port = given ? ports[0] : 1, last = given ? ports[1] : ATTEMPTS, err = EADDRINUSE;
	union tt_socket_address at;

	for (tt_resolve_copy(&at, address); port <= last && err == EADDRINUSE; port++) {
		at.v4.sin_port = given ? htons((uint16_t)port) : 0; /* of IPv6, too */
		err = listen_at(net, &at.any);
	}
	return err;
}

static int listen_anywhere(struct tt_verbs *net, const int ports[2])
{
	struct ifaddrs *all = NULL;
	int err = ENODEV;

	if (net->library->getifaddrs(&all))
		return errno;
	for (struct ifaddrs *i = all; i && err; i = i->ifa_next) {
		int now = is_of_use(i->ifa_addr) ? listen_on(net, i->ifa_addr, ports) : ENODEV;
		if (now != ENODEV)
			err = now; /* an address of the adapter's that does not serve; another one may */
	}
	net->library->freeifaddrs(all);
	return err;
}

int tt_verbs_open_cm(struct tt_verbs *net, const int ports[2])
{
	int err = tt_verbs_load_cm();

	if (err)
		return err;
	if (!(net->events = net->library->create_event_channel()))
		return tt_fail(-errno, "librdmacm cannot be used: %s. Is the module rdma_ucm loaded, and "
		               "/dev/infiniband/rdma_cm there, in this container too?", strerror(errno));
	err = listen_anywhere(net, ports);
	if (err == EADDRINUSE && net->iwarp && ports[0])
		return tt_fail(-err, "librdmacm finds no port from %d to %d free on %s: give a wider range in "
		               "TUTTI_PORTS, two for each adapter of iWARP in a process", ports[0], ports[1],
		               net->name);
	if (err)
		return tt_fail(-err, "librdmacm listens at no address of %s: %s. Does its network interface have an "
		               "IP address?", net->name, strerror(err));
	return 0;
}

void tt_verbs_close_cm(struct tt_verbs *net)
{
	if (net->listener)
		net->library->destroy_id(net->listener);
	if (net->events)
		net->library->destroy_event_channel(net->events);
	/* librdmacm has a context of its own, and closes that of a removed device when it looks for devices */
	struct ibv_context **there = net->events && net->lost ? net->library->get_devices(NULL) : NULL;
	if (there)
		net->library->free_devices(there);
	net->listener = NULL;
	net->events = NULL;
}

void tt_verbs_say_where(const struct tt_verbs_peer *p, struct tt_verbs_end *mine)
{
	union tt_socket_address at;

	tt_resolve_copy(&at, &p->net->listener->route.addr.src_addr);
	tt_resolve_name(&at, mine->address, sizeof mine->address);
	memcpy(mine->cookie, p->cookie, sizeof mine->cookie);
}

/* Connections */

static void fail(struct tt_verbs_peer *p, const char *step)
{
	char why[160];

	snprintf(why, sizeof why, "librdmacm cannot %s on %s: %s", step, p->net->name, strerror(errno));
	tt_verbs_lose(p, -EHOSTUNREACH, why);
}

static struct rdma_conn_param describe(const struct tt_verbs_peer *p)
{
	return (struct rdma_conn_param){ .private_data = p->cookie, .private_data_len = sizeof p->cookie,
		.responder_resources = p->serves, .initiator_depth = p->reads, .retry_count = TT_VERBS_RETRIES,
		.rnr_retry_count = RNR_FOREVER, .srq = 1, .qp_num = p->qp->qp_num };
}

static void ask(struct tt_verbs_peer *p)
{
	struct rdma_conn_param param = describe(p);

	if (p->net->library->connect(p->id, &param))
		fail(p, "connect");
}

static bool join(struct tt_verbs_peer *p)
{
	int err = p->net->iwarp ? 0 : tt_verbs_route_queue(p);

	errno = err;
	if (err)
		fail(p, "prepare the queue pair");
	p->fetching = !err;
	return !err;
}

static void accept_request(struct tt_verbs_peer *p)
{
	struct rdma_conn_param param = describe(p);

	param.private_data_len = 0;
	if (join(p) && p->net->library->accept(p->id, &param))
		fail(p, "accept");
}

static void establish(struct tt_verbs_peer *p)
{
	if (!join(p))
		return;
	if (p->net->library->establish(p->id))
		fail(p, "establish the connection");
	else
		tt_verbs_ready(p);
}

/* The acceptor waits for the request, or it has come before the TERMS. */
void tt_verbs_meet(struct tt_verbs_peer *p, const struct tt_verbs_end *them)
{
	const struct tt_verbs_library *l = p->net->library;
	union tt_socket_address from;
	struct addrinfo *to;

	p->ops.stage = TT_STAGE_MEET;
	if (p->dial.shake.accepted) {
		if (p->id)
			accept_request(p);
		return;
	}
	memcpy(p->cookie, them->cookie, sizeof p->cookie);
	if (tt_resolve(them->address, AI_NUMERICHOST | AI_NUMERICSERV, &to)) {
		tt_verbs_lose(p, -EHOSTUNREACH, tt_last_sentence().text);
		return;
	}
	tt_resolve_copy(&from, &p->net->listener->route.addr.src_addr);
	from.v4.sin_port = 0; /* of IPv6, too */
	if (l->create_id(p->net->events, &p->id, p, RDMA_PS_TCP) ||
	    l->resolve_addr(p->id, &from.any, to->ai_addr, (int)p->net->door.timeout_ms))
		fail(p, "look for the other end's address");
	freeaddrinfo(to);
}

void tt_verbs_part(struct tt_verbs_peer *p)
{
	if (p->id)
		p->net->library->destroy_id(p->id);
	p->id = NULL;
}

/* Events */

static void take_request(struct tt_verbs *net, struct rdma_cm_id *id, const uint8_t *cookie)
{
	tt_each_of(struct tt_verbs_peer, waits, p, &net->joining) {
		if (!p->dial.shake.accepted || !p->qp || p->id || memcmp(p->cookie, cookie, sizeof p->cookie) != 0)
			continue;
		p->id = id;
		id->context = p;
		if (p->ops.stage == TT_STAGE_MEET)
			accept_request(p);
		return;
	}
	tt_log(TT_DEBUG, "%s: refused a connection of librdmacm that nobody awaits", net->name);
	net->library->reject(id, NULL, 0);
	net->library->destroy_id(id);
}

static void take_event(struct tt_verbs *net, enum rdma_cm_event_type event, int status, struct tt_verbs_peer *p)
{
	if (p && (p->ops.broken || p->ops.stage == TT_STAGE_DOWN))
		return;
	if (p && event == RDMA_CM_EVENT_ADDR_RESOLVED) {
		if (net->library->resolve_route(p->id, (int)net->door.timeout_ms))
			fail(p, "look for a route");
	} else if (p && event == RDMA_CM_EVENT_ROUTE_RESOLVED) {
		ask(p);
	} else if (p && event == RDMA_CM_EVENT_CONNECT_RESPONSE) {
		establish(p);
	} else if (p && event == RDMA_CM_EVENT_ESTABLISHED) {
		if (p->ops.stage == TT_STAGE_MEET)
			tt_verbs_ready(p);
	} else {
		tt_verbs_hear_failure(net, p, event, status);
	}
}

/* Each event is acknowledged: else its id would stay for ever. An event that this function leaves for lack of time
 * wakes the net again. */
void tt_verbs_hear_cm(struct tt_verbs *net, uint64_t end)
{
	struct rdma_cm_event *e;

	for (int i = 0; (!i || tt_now() < end) && !net->library->get_cm_event(net->events, &e); i++) {
		enum rdma_cm_event_type event = e->event;
		struct rdma_cm_id *id = e->id;
		int status = e->status;
		uint8_t cookie[TT_VERBS_COOKIE] = { 0 };
		if (e->param.conn.private_data && e->param.conn.private_data_len >= sizeof cookie)
			memcpy(cookie, e->param.conn.private_data, sizeof cookie);
		net->library->ack_cm_event(e);
		if (event == RDMA_CM_EVENT_CONNECT_REQUEST)
			take_request(net, id, cookie);
		else
			take_event(net, event, status, id->context);
	}
}
