/* tcp.c - the transport over sockets: nets, memory and its keys, peers, and the order of the work in one progress()
 *
 *   post -> pending -> in flight -> stage + payload -> socket          socket -> place (or `in`) -> landed, answered
 *                         ^                                                          |
 *                         +------------------ acks, answers, naks ------------------+
 *   (tcp_send.c)                                                       (tcp_receive.c)
 *
 * Long payloads go from the caller's memory into the kernel, and from the kernel into their place. Short payloads
 * travel in batches through two buffers. The stream keeps all ordering. Ops begin in post order. A peer has at most
 * TT_FRAME_SLOTS unanswered requests, so what one side owes the other fits into arrays.
 */
#include "transport/tcp/tcp_private.h"
#include "transport/breaks.h"
#include <linux/sockios.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

enum {
	POLL_EVERY = 32, /* turns between two calls of epoll_wait while sockets are read directly */
	PATIENCE = 4,    /* a segment that was sent again so often stalls: 3 s at least, as Linux waits */
};

static struct tt_tcp *net_of(struct tt_net *n) { return tt_container_of(n, struct tt_tcp, base); }
static struct tt_tcp_peer *peer_of(struct tt_peer *p) { return tt_container_of(p, struct tt_tcp_peer, base); }

/* Keys */

static struct tt_tcp_key *find_key(struct tt_tcp *net, uint64_t id)
{
	size_t slot = id & 0xffffff;

	if (slot >= net->key_count || !id)
		return NULL;
	return net->keys[slot].id == id || tt_broken(STALE_KEY) ? &net->keys[slot] : NULL;
}

/* Where len bytes at offset lie: 0; or the reason why not, enum tt_frame_nak. */
int tt_tcp_find_place(struct tt_tcp *net, uint64_t id, uint64_t offset, uint64_t len, uint8_t **out)
{
	struct tt_tcp_key *key = find_key(net, id);

	if (!key)
		return TT_NAK_STALE;
	if ((offset > key->len || len > key->len - offset) && !tt_broken(KEY_PAST_END))
		return TT_NAK_RANGE;
	*out = key->base + offset;
	return 0;
}

/* Returns the first free slot of the table, or -1. */
static long free_slot(struct tt_tcp *net)
{
	size_t slot = net->key_hint;

	while (slot < net->key_count && net->keys[slot].id)
		slot++;
	if (slot == net->key_count) {
		size_t count = tt_max(16, 2 * slot);
		struct tt_tcp_key *keys = count > 1 << 24 ? NULL : realloc(net->keys, count * sizeof *keys);
		if (!keys)
			return -1;
		memset(keys + slot, 0, (count - slot) * sizeof *keys);
		net->keys = keys;
		net->key_count = count;
	}
	return (long)slot;
}

static int grant_key(struct tt_grant *r)
{
	struct tt_tcp *net = net_of(r->base.net);
	long slot = free_slot(net);

	if (slot < 0)
		return tt_fail(-ENOMEM, "no memory for a table of %zu regions on %s", net->key_count + 1,
		               net->base.addr);
	do
		r->id = ++net->generation << 24 | (uint64_t)slot;
	while (r->id >> 24 == 0);
	net->key_hint = (size_t)slot + 1;
	net->keys[slot] = (struct tt_tcp_key){ r->id, r->base.mem.base, r->base.mem.len };
	struct tt_pack pack = tt_pack(r->base.key.raw, sizeof r->base.key.raw);
	tt_put64(&pack, r->id);
	r->base.key.len = r->base.mem.len;
	return 0;
}

static int reg(struct tt_net *base, const struct tt_mem *mem, int remote, struct tt_pin *pin, struct tt_region **out)
{
	return tt_grant_new(base, mem, pin, &net_of(base)->regions, remote ? grant_key : NULL, out);
}

/* A reply that is being sent from memory which is deregistered now began earlier: it is finished from a copy. */
static void save_reply(struct tt_tcp_peer *p)
{
	p->payload_copy = malloc(p->payload_left);
	if (!p->payload_copy) {
		tt_flight_lose(&p->ops, "no memory to finish a reply from a deregistered region");
		p->payload_left = 0;
		return;
	}
	memcpy(p->payload_copy, p->payload, p->payload_left);
	p->net->base.copied += p->payload_left;
	p->payload = p->payload_copy;
}

static void forget_key(struct tt_tcp_peer *p, uint64_t id)
{
	if (p->open && p->frame.kind == TT_FRAME_PUT && p->frame.key == id && p->place) {
		p->place = NULL;
		p->put_err = TT_NAK_STALE;
	}
	if (p->payload_left && p->payload_is_answer && p->sending.key == id && !p->payload_copy)
		save_reply(p);
}

static void dereg(struct tt_region *base)
{
	struct tt_grant *r = tt_container_of(base, struct tt_grant, base);
	struct tt_tcp *net = net_of(base->net);

	if (r->id) {
		net->keys[r->id & 0xffffff].id = 0;
		net->key_hint = tt_min(net->key_hint, r->id & 0xffffff);
		tt_each_of(struct tt_tcp_peer, ops.all, p, &net->ops.peers)
			forget_key(p, r->id);
	}
	tt_grant_free(r);
}

/* Peers */

static struct tt_dial *make_peer(struct tt_door *door, bool accepted)
{
	struct tt_tcp *net = tt_container_of(door, struct tt_tcp, door);
	struct tt_tcp_peer *p = calloc(1, sizeof *p);

	if (p && !(p->buffers = (struct tt_tcp_buffers *)(void *)tt_pages_map(sizeof *p->buffers))) {
		free(p);
		p = NULL;
	}
	if (!p) {
		tt_fail(-ENOMEM, "no memory for a peer on %s", net->base.addr);
		return NULL;
	}
	madvise(p->buffers, sizeof *p->buffers, MADV_NOHUGEPAGE); /* those of several peers may be adjacent */
	p->base.net = &net->base;
	p->net = net;
	p->batch = TT_TCP_NO_BATCH;
	p->answer_turn = true;
	tt_flight_init(&p->ops, &net->ops, &p->base);
	struct tt_list *nodes[] = { &p->active, &p->dirty, &p->owing };
	for (size_t i = 0; i < TT_COUNT(nodes); i++)
		tt_list_init(nodes[i]);
	tt_dial_init(&p->dial, door, &p->ops, accepted);
	return &p->dial;
}

static void cut_off(struct tt_flight *ops)
{
	struct tt_tcp_peer *p = tt_container_of(ops, struct tt_tcp_peer, ops);
	struct tt_list *nodes[] = { &p->active, &p->dirty, &p->owing };

	for (size_t i = 0; i < TT_COUNT(nodes); i++)
		tt_list_remove(nodes[i]);
	tt_tcp_unblock(p);
	tt_dial_end(&p->dial);
	free(p->payload_copy);
	p->payload_copy = NULL;
	p->payload_left = 0;
	p->open = false;
	p->current = p->first_send = p->last_send = NULL;
}

static void free_peer(struct tt_flight *ops)
{
	struct tt_tcp_peer *p = tt_container_of(ops, struct tt_tcp_peer, ops);

	tt_pages_unmap((char *)p->buffers, sizeof *p->buffers);
	free(p);
}

static const struct tt_flight_calls flight_calls = { .cut_off = cut_off, .free = free_peer };

static void disconnect(struct tt_peer *base) { tt_flight_disconnect(&peer_of(base)->ops); }

/* Within one host no queue has to be kept short. Reno, which every kernel has and which does not pace, is as good as
 * any there. A control that paces (BBR, if the host has it as default) costs up to a third of the rate. */
static void choose_congestion_control(struct tt_shake *h)
{
	const struct tt_dial *d = tt_container_of(h, const struct tt_dial, shake);

	if (tt_dial_within_host(d) && setsockopt(d->fd, IPPROTO_TCP, TCP_CONGESTION, "reno", 4))
		tt_log(TT_DEBUG, "cannot choose the congestion control of a local connection: %s", strerror(errno));
}

static const struct tt_door_calls door_calls = {
	TT_DIAL_CALLS, .make = make_peer, .proven = choose_congestion_control,
};

static int connect_to(struct tt_net *net, const char *addr, struct tt_peer **out)
{
	return tt_dial_connect(&net_of(net)->door, addr, out);
}

/* Progress */

static void go_on_with_handshake(struct tt_tcp_peer *p)
{
	if (!tt_dial_step(&p->dial))
		return; /* p may be gone */
	tt_tcp_activate(p);
	tt_flight_up(&p->ops);
}

static void handle_event(struct tt_tcp_peer *p, uint32_t events)
{
	if (p->ops.broken || p->ops.stage == TT_STAGE_DOWN)
		return;
	if (p->ops.stage != TT_STAGE_UP) {
		go_on_with_handshake(p);
		return;
	}
	if (p->blocked && events & (EPOLLOUT | EPOLLERR | EPOLLHUP)) {
		tt_tcp_unblock(p);
		tt_dial_watch(&p->dial, EPOLLIN);
		tt_tcp_want_to_send(p);
	}
	if (events & ~(uint32_t)EPOLLOUT)
		tt_tcp_activate(p);
}

/* Refusing a stranger frees that stranger only, so the other events stay valid. Accepting may refuse other strangers,
 * so it comes last. */
static int poll_events(struct tt_tcp *net)
{
	struct epoll_event events[64];
	int n = epoll_wait(net->base.fd, events, (int)TT_COUNT(events), 0);
	bool strangers = false;

	if (n < 0)
		return errno == EINTR ? 0 : tt_fail(-errno, "cannot poll %s: %s", net->base.addr, strerror(errno));
	for (int i = 0; i < n; i++) {
		if (events[i].data.ptr == &net->door)
			strangers = true;
		else
			handle_event(peer_of(events[i].data.ptr), events[i].events);
	}
	if (strangers)
		tt_door_accept(&net->door);
	if (tt_door_waits(&net->door))
		tt_door_expire(&net->door);
	return 0;
}

/* Small packets may get through where large ones are lost, so the peer is heard, and hears nothing. */
static bool stalls(struct tt_peer *base, char *text, size_t size)
{
	struct tcp_info is = { 0 };
	socklen_t len = sizeof is;
	int bytes = 0;

	if (getsockopt(peer_of(base)->dial.fd, IPPROTO_TCP, TCP_INFO, &is, &len) || !is.tcpi_unacked ||
	    is.tcpi_retransmits < PATIENCE || ioctl(peer_of(base)->dial.fd, SIOCOUTQ, &bytes))
		return false;
	snprintf(text, size, "%d bytes to %s were sent %u times and not acknowledged: is its host alive, and do all "
	         "hosts and switches on the way carry packets of %u bytes (the MTU)?", bytes, base->addr,
	         is.tcpi_retransmits + 1, is.tcpi_pmtu);
	return true;
}

static int progress(struct tt_net *base)
{
	struct tt_tcp *net = net_of(base);
	int err = 0;

	net->ops.inside = true;
	net->ops.events = 0;
	tt_flights_drain(&net->ops);
	if (++net->turns % POLL_EVERY == 0 || net->blocked || tt_list_empty(&net->active))
		err = poll_events(net);
	tt_tcp_push_all(net);
	tt_list_each(node, &net->active)
		tt_tcp_read_peer(tt_container_of(node, struct tt_tcp_peer, active));
	tt_tcp_push_all(net);
	tt_flights_drain(&net->ops);
	tt_tcp_push_all(net);
	net->ops.inside = false;
	return err ? err : net->ops.events;
}

/* Sends the acknowledgements that could wait. Level-triggered epoll reports everything else. */
static int arm(struct tt_net *base)
{
	struct tt_tcp *net = net_of(base);

	for (struct tt_list *node; (node = tt_list_pop(&net->owing));) {
		struct tt_tcp_peer *p = tt_container_of(node, struct tt_tcp_peer, owing);
		p->ack_due = true;
		tt_tcp_push_out(p);
	}
	/* after a sleep epoll is asked first: it knows what has come, and time has passed */
	net->turns = POLL_EVERY - 1;
	return !tt_list_empty(&net->ops.ready) || !tt_list_empty(&net->dirty);
}

static void close_net(struct tt_net *base)
{
	struct tt_tcp *net = net_of(base);

	tt_flights_close(&net->ops);
	while (!tt_list_empty(&net->regions))
		dereg(&tt_container_of(net->regions.next, struct tt_grant, node)->base);
	tt_door_close(&net->door);
	if (net->base.fd >= 0)
		close(net->base.fd);
	free(net->keys);
	free(net);
}

static void set_up(struct tt_tcp *net, const struct tt_net_config *c)
{
	struct tt_list *heads[] = { &net->regions, &net->active, &net->dirty, &net->owing };
	uint32_t generation;

	for (size_t i = 0; i < TT_COUNT(heads); i++)
		tt_list_init(heads[i]);
	tt_flights_init(&net->ops, &flight_calls);
	net->base = (struct tt_net){ .transport = &tt_tcp, .events = c->events, .user = c->user, .fd = -1,
	                             .copy_max = SIZE_MAX };
	tt_entropy(&generation, sizeof generation); /* a key of an earlier process at this address fits nowhere */
	net->generation = generation;
}

static int open_net(const struct tt_net_config *c, struct tt_net **out)
{
	struct tt_tcp *net = calloc(1, sizeof *net);

	if (!net)
		return tt_fail(-ENOMEM, "no memory for a net");
	set_up(net, c);
	int err = tt_door_open(&net->door, &net->base, c, &door_calls);
	net->base.fd = tt_epoll("TCP");
	if (net->base.fd < 0)
		err = net->base.fd;
	if (!err)
		err = tt_listen(&net->door, c);
	if (err) {
		close_net(&net->base);
		return err;
	}
	*out = &net->base;
	return 0;
}

const struct tt_transport tt_tcp = {
	.name = "tcp",
	.sockets = 1,
	.list = tt_listen_devices,
	.open = open_net,
	.close = close_net,
	.reg = reg,
	.dereg = dereg,
	.connect = connect_to,
	.disconnect = disconnect,
	.post = tt_tcp_post,
	.stalls = stalls,
	TT_FAR,
	.progress = progress,
	.arm = arm,
};
