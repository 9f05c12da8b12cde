/* verbs.c - InfiniBand, RoCE and iWARP: nets, peers, and the order of the work in one progress()
 *
 * A peer that fails is down when all that its queue pair has is given back: until then the adapter may look at the
 * memory. The queue pair is destroyed before down() comes, so nothing of that peer lands afterwards. After disconnect()
 * the queue pair may still be there, in its error state, until it has given its receives back: in that state the
 * adapter drops what the peer sends.
 */
#include "transport/fork.h"
#include "transport/verbs/verbs_private.h"
#include <fcntl.h>
#include <sched.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <unistd.h>

enum { POLL_EVERY = 256 }; /* turns between two looks at the sockets */
#define DYING (1000 * TT_MS) /* an adapter gives everything back in less */
#define FLUSHING (10 * TT_MS) /* and requests alone in some microseconds */
#define JOINING (1 * TT_MS) /* of one turn, for all that connect: some adapters take as long to make a queue pair */
#define DRAINING (20 * TT_MS) /* and says so, if it ever does, in much less: rxe does not */

static struct tt_verbs_peer *peer_of(struct tt_peer *p) { return tt_container_of(p, struct tt_verbs_peer, base); }

/* Peers */

struct tt_dial *tt_verbs_make_peer(struct tt_door *door, bool accepted)
{
	struct tt_verbs *net = tt_container_of(door, struct tt_verbs, door);
	struct tt_verbs_peer *p = calloc(1, sizeof *p);

	if (!p) {
		tt_fail(-ENOMEM, "no memory for a peer on %s", net->base.addr);
		return NULL;
	}
	p->base.net = &net->base;
	p->net = net;
	tt_entropy(&p->generation, sizeof p->generation);
	struct tt_list *nodes[] = { &p->number, &p->waits, &p->dirty, &p->hungry };
	for (size_t i = 0; i < TT_COUNT(nodes); i++)
		tt_list_init(nodes[i]);
	tt_flight_init(&p->ops, &net->ops, &p->base);
	tt_dial_init(&p->dial, door, &p->ops, accepted);
	return &p->dial;
}

static void cut_off(struct tt_flight *ops)
{
	struct tt_verbs_peer *p = tt_container_of(ops, struct tt_verbs_peer, ops);
	struct tt_list *nodes[] = { &p->waits, &p->dirty, &p->hungry };

	for (size_t i = 0; i < TT_COUNT(nodes); i++)
		tt_list_remove(nodes[i]);
	tt_dial_end(&p->dial);
	tt_verbs_drop_queue(p);
}

static void free_peer(struct tt_flight *ops)
{
	struct tt_verbs_peer *p = tt_container_of(ops, struct tt_verbs_peer, ops);

	free(p->assembly);
	free(p);
}

static int word_failure(const struct tt_verbs_peer *p, int err, const char *why)
{
	if (p->ops.stage == TT_STAGE_UP)
		return tt_fail(-ECONNRESET, "lost the connection to %s: %s", p->base.addr, why);
	return tt_fail(err == -ETIMEDOUT ? err : -EHOSTUNREACH, "cannot connect to %s: %s", p->base.addr, why);
}

void tt_verbs_lose(struct tt_verbs_peer *p, int err, const char *why)
{
	if (p->ops.broken || p->ops.stage == TT_STAGE_DOWN)
		return;
	if (p->ops.stage <= TT_STAGE_READY) {
		tt_shake_give_up(&p->dial.shake, err == -ECONNRESET ? -EHOSTUNREACH : err, why);
		return;
	}
	if (err == -EPROTO)
		tt_door_refused(&p->net->door, p->base.addr, why);
	tt_flight_break(&p->ops, word_failure(p, err, why));
	tt_log(TT_DEBUG, "%s", p->ops.why.text);
	tt_verbs_stop_queue(p);
	tt_dial_end(&p->dial); /* the other end learns of it */
	tt_list_remove(&p->waits);
	tt_list_remove(&p->dirty);
	tt_list_append(&p->net->dying, &p->waits);
	p->deadline = tt_now() + DYING;
}

void tt_verbs_drained(struct tt_verbs_peer *p)
{
	p->fetching = false;
	tt_list_append_once(&p->net->ops.ready, &p->ops.ready);
}

/* A broken peer is down when its queue pair has given back all: requests, and the receives that it has taken. One of
 * which the caller has let go goes then. */
static bool is_held(struct tt_flight *ops)
{
	struct tt_verbs_peer *p = tt_container_of(ops, struct tt_verbs_peer, ops);
	bool stranger = p->dial.shake.accepted && ops->stage < TT_STAGE_UP;

	if (p->signals || p->fetching)
		return true;
	if (!stranger && ops->stage != TT_STAGE_LEFT)
		return false;
	tt_flight_free(ops);
	return true;
}

static const struct tt_flight_calls flight_calls = { .cut_off = cut_off, .free = free_peer, .held = is_held };

/* The queue pair stops, and the adapter has done with the memory of all requests. false: it does not say so in time. */
static bool give_back_requests(struct tt_verbs_peer *p)
{
	uint64_t end = tt_now() + FLUSHING;
	struct tt_sentence before = tt_last_sentence();

	tt_verbs_lose(p, -ECONNRESET, "this side has closed the connection");
	tt_remember(before.text); /* this is no failure of the caller's */
	while (p->signals && tt_now() < end)
		tt_verbs_take_back(p);
	return !p->signals;
}

/* A queue pair that is destroyed takes along the receives that it has fetched, which are all peers'. So one that may
 * have some goes when it has given them back, without the caller. */
static void disconnect(struct tt_peer *base)
{
	struct tt_verbs_peer *p = peer_of(base);
	struct tt_flights *net = p->ops.net;
	bool was_inside = net->inside;

	net->inside = true;
	if (p->fetching && give_back_requests(p)) {
		p->ops.stage = TT_STAGE_LEFT;
		tt_flight_fail(&p->ops);
		tt_verbs_give_share(p);
	} else {
		tt_flight_disconnect(&p->ops);
	}
	net->inside = was_inside;
}

/* What takes too long */

/* The adapter retries some seconds at most, then its request fails. But one may lose count. Time in which this process
 * stood still does not count. */
static void review(struct tt_verbs_peer *p, uint64_t now)
{
	if (!p->signals || !tt_verbs_alive(p)) {
		p->since = 0;
	} else if (!p->since || p->seen != p->completed) {
		p->seen = p->completed;
		p->since = now;
	} else if (now - p->since >= p->net->door.timeout) {
		tt_verbs_lose(p, -ECONNRESET, "its adapter acknowledges nothing, and this one does not give up");
	}
}

static const char *word_late(enum tt_stage stage)
{
	if (stage == TT_STAGE_PROBE)
		return "no full packet went through both ways: " TT_VERBS_BETWEEN ";";
	if (stage == TT_STAGE_MEET)
		return "librdmacm has not connected the adapters: look at the routes and, with iWARP, whether a "
		       "firewall lets TUTTI_PORTS through;";
	return "its process has not answered";
}

/* A queue pair gives everything back, or its adapter is broken: then its end alone makes sure. */
static void expire(struct tt_verbs *net)
{
	uint64_t now = tt_now();
	char why[300];

	tt_each_of(struct tt_verbs_peer, waits, p, &net->joining)
		if (now >= p->deadline) {
			snprintf(why, sizeof why, "%s within %u ms (this side's adapter is %s)",
			         word_late(p->ops.stage), net->door.timeout_ms, net->name);
			tt_verbs_lose(p, -ETIMEDOUT, why);
		}
	tt_each_of(struct tt_verbs_peer, waits, p, &net->dying) {
		if (p->fetching && now >= p->deadline - DYING + DRAINING)
			tt_verbs_drained(p);
		if (now >= p->deadline && p->signals) {
			tt_log(TT_WARN, "%s has not given back %u requests for %s", net->name, p->signals,
			       p->base.addr);
			p->signals = 0;
			tt_list_append_once(&net->ops.ready, &p->ops.ready);
		}
	}
	if (now - net->reviewed < net->door.timeout / 16)
		return;
	bool stood = now - net->reviewed > net->door.timeout / 4;
	net->reviewed = now;
	if (net->shown && !tt_verbs_is_shown(net))
		tt_verbs_lose_net(net, "the adapter was removed");
	tt_each_of(struct tt_verbs_peer, ops.all, p, &net->ops.peers) {
		p->since = stood ? 0 : p->since;
		review(p, now);
	}
}

/* Progress */

static void hear_wakes(struct tt_verbs *net)
{
	struct ibv_cq *cq;
	void *context;

	while (!net->library->get_cq_event(net->wakes, &cq, &context))
		net->library->ack_cq_events(cq, 1);
}

/* If many peers connect at once, a turn spends a millisecond on them, so that connected peers are served meanwhile.
 * Where turns take long, it spends a quarter of them, up to 10 ms: the handshake has a deadline. */
static uint64_t join_until(struct tt_verbs *net)
{
	uint64_t now = tt_now(), last = net->looked;

	net->looked = now;
	return now + tt_min(tt_max(JOINING, last ? (now - last) / 4 : 0), 10 * JOINING);
}

/* Each turn takes one step of a peer that connects, at least. */
static bool hears_now(const struct tt_verbs_peer *p, bool *stepped, uint64_t end)
{
	if (p->ops.stage == TT_STAGE_UP)
		return true;
	if (*stepped && tt_now() >= end)
		return false;
	return *stepped = true;
}

/* An event may free its own peer, and no other's. What may free others, accepting too, comes last. epoll brings the
 * events of peers that are not heard again in the next turn, behind those that it has not brought yet. */
static int poll_events(struct tt_verbs *net)
{
	struct epoll_event events[64];
	int n = epoll_wait(net->base.fd, events, (int)TT_COUNT(events), 0);
	bool strangers = false, device = false, cm = false, stepped = false;
	uint64_t end = join_until(net);

	if (n < 0)
		return errno == EINTR ? 0 : tt_fail(-errno, "cannot poll %s: %s", net->base.addr, strerror(errno));
	for (int i = 0; i < n; i++) {
		void *what = events[i].data.ptr;
		if (what == &net->door)
			strangers = true;
		else if (what == &net->wakes)
			hear_wakes(net);
		else if (what == &net->device)
			device = true;
		else if (what == &net->events)
			cm = true;
		else if (hears_now(peer_of(what), &stepped, end))
			tt_verbs_hear(peer_of(what));
	}
	if (device)
		tt_verbs_hear_device(net);
	if (cm)
		tt_verbs_hear_cm(net, end);
	if (strangers)
		tt_door_accept(&net->door);
	if (tt_door_waits(&net->door))
		tt_door_expire(&net->door);
	expire(net);
	return 0;
}

/* While connections begin or end the sockets tell more than the queue. */
static bool should_look(struct tt_verbs *net)
{
	return net->asleep || ++net->turns % POLL_EVERY == 0 || tt_door_waits(&net->door) ||
	       !tt_list_empty(&net->joining) || !tt_list_empty(&net->dying) || tt_list_empty(&net->ops.peers);
}

/* Nothing comes back any more. */
static void lose_all(struct tt_verbs *net)
{
	tt_each_of(struct tt_verbs_peer, ops.all, p, &net->ops.peers) {
		p->signals = 0;
		p->fetching = false;
		if (p->ops.broken)
			tt_list_append_once(&net->ops.ready, &p->ops.ready);
		else
			tt_verbs_lose(p, -ECONNRESET, net->loss.text);
	}
}

/* A child of fork() that kept the adapter's files would keep the queue pairs of a rank that has ended. The libraries
 * close these files themselves. */
static void let_children_inherit(struct tt_verbs *net)
{
	if (net->events)
		tt_fork_release(net->events->fd);
	if (net->wakes)
		tt_fork_release(net->wakes->fd);
}

/* All that the adapter has. A device that is removed waits for that. wait: for who registers memory, too. */
static void let_go(struct tt_verbs *net, bool wait)
{
	const struct tt_verbs_library *l = net->library;

	let_children_inherit(net);
	tt_verbs_close_cm(net);
	if (net->srq)
		l->destroy_srq(net->srq);
	if (net->cq)
		l->destroy_cq(net->cq);
	if (net->wakes)
		l->destroy_comp_channel(net->wakes);
	if (!net->closing && net->device) /* it may stay open for a while, and wakes nobody */
		epoll_ctl(net->base.fd, EPOLL_CTL_DEL, net->device->async_fd, NULL);
	tt_verbs_close_memory(net, wait);
	net->srq = NULL;
	net->cq = NULL;
	net->wakes = NULL;
	net->backlog_count = 0;
	tt_door_close(&net->door); /* who comes now takes the next transport */
}

static int progress(struct tt_net *base)
{
	struct tt_verbs *net = tt_verbs_of(base);
	int err = net->lost;

	net->ops.inside = true;
	net->armed = false;
	net->ops.events = 0;
	if (!err && should_look(net)) {
		net->asleep = false;
		err = poll_events(net);
	}
	if (!err)
		err = net->lost ? net->lost : tt_verbs_poll(net);
	bool lost = net->lost; /* what is lost from here on ends in the next turn, as its peers must go first */
	if (lost)
		lose_all(net);
	if (!tt_list_empty(&net->ops.ready))
		tt_flights_drain(&net->ops);
	tt_verbs_push_all(net);
	net->ops.inside = false;
	if (lost) {
		let_go(net, false);
		tt_remember(net->loss.text);
	}
	return err ? err : net->ops.events;
}

/* An adapter that does not say so wakes nobody: until then the net does not sleep. */
static bool is_draining(const struct tt_verbs *net)
{
	bool draining = false;

	tt_each_of(struct tt_verbs_peer, waits, p, &net->dying)
		draining |= p->fetching;
	return draining;
}

/* What came before a queue was armed gives no event: it is looked for afterwards. */
static bool arm_queue(struct tt_verbs *net)
{
	hear_wakes(net);
	net->armed = !ibv_req_notify_cq(net->cq, 0);
	if (net->armed)
		tt_verbs_set_aside(net);
	return net->armed;
}

/* Each call of another thread arms the nets anew while one sleeps. */
static int arm(struct tt_net *base)
{
	struct tt_verbs *net = tt_verbs_of(base);

	net->asleep = true;
	tt_verbs_push_all(net);
	if (!net->armed && !arm_queue(net))
		return 1;
	return net->lost || net->backlog_count || !tt_list_empty(&net->ops.ready) || !tt_list_empty(&net->dirty) ||
	       is_draining(net);
}

/* Nets */

static void close_net(struct tt_net *base)
{
	struct tt_verbs *net = tt_verbs_of(base);

	tt_flights_close(&net->ops);
	let_go(net, true);
	tt_verbs_close_pins(net);
	free(net->backlog);
	if (base->fd >= 0)
		close(base->fd);
	pthread_mutex_destroy(&net->lock);
	pthread_mutex_destroy(&net->gpu_lock);
	pthread_rwlock_destroy(&net->open);
	free(net);
}

static int watch(struct tt_verbs *net, int fd, void *what)
{
	struct epoll_event event = { .events = EPOLLIN, .data.ptr = what };

	if (fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK) || epoll_ctl(net->base.fd, EPOLL_CTL_ADD, fd, &event))
		return tt_fail(-errno, "cannot wait for %s: %s", net->name, strerror(errno));
	tt_fork_hold(fd);
	return 0;
}

/* A long message is cut into fewer parts where there are few peers. Of what may be locked, the smallest receives alone
 * were counted. */
static void choose_receive(struct tt_verbs *net, uint64_t spare)
{
	net->receive = TT_VERBS_RECEIVE;
	while (2 * net->receive <= TT_VERBS_RECEIVE_MAX &&
	       2 * net->receive * TT_VERBS_CREDITS * (uint64_t)net->peer_max <= tt_min(spare / 2, TT_VERBS_RECEIVES))
		net->receive *= 2;
}

/* So many peers that neither their receives nor their completions can overflow a queue. Of what may be locked, windows
 * and other nets of the rank have their part. */
static int count_peers(struct tt_verbs *net, unsigned wanted, unsigned nets)
{
	size_t receives = (size_t)net->attr.max_srq_wr / TT_VERBS_CREDITS, arena = TT_VERBS_BOUNCES * TT_VERBS_BOUNCE;
	size_t entries = (size_t)net->attr.max_cqe / TT_VERBS_ENTRIES, n = wanted ? wanted : TT_VERBS_PEERS;
	uint64_t lockable = tt_lockable(), part = lockable / (1 + nets), spare = part > arena ? part - arena : 0;

	n = tt_min(tt_min(n, TT_VERBS_PEERS), tt_min(receives, tt_min(entries, (size_t)net->attr.max_qp)));
	if (spare / TT_VERBS_LOCKED < n) {
		n = spare / TT_VERBS_LOCKED;
		net->lockable = (uint32_t)(lockable >> 10);
	}
	net->peer_max = (unsigned)n;
	choose_receive(net, spare);
	if (n)
		return 0;
	return net->lockable ? tt_verbs_locked_too_much(net, "an arena, a peer and as much again for windows",
	                                                2 * (arena + TT_VERBS_LOCKED), ENOMEM) :
	       tt_fail(-EIO, "%s has no room for a peer: its max_cqe, max_srq_wr or max_qp is too small", net->name);
}

/* Which of the adapter's interrupts tells of completions. They lie on different cores; so do ranks of one host, as a
 * rule, and this thread runs on a core of its rank. */
static int choose_vector(const struct tt_verbs *net)
{
	int core = sched_getcpu();

	return core > 0 && net->device->num_comp_vectors > 0 ? core % net->device->num_comp_vectors : 0;
}

static int make_queues(struct tt_verbs *net)
{
	const struct tt_verbs_library *l = net->library;
	struct ibv_srq_init_attr attr = { .attr = { .max_wr = net->peer_max * TT_VERBS_CREDITS, .max_sge = 1 } };
	int entries = (int)net->peer_max * TT_VERBS_ENTRIES;

	if (!(net->pd = l->alloc_pd(net->device)) || !(net->wakes = l->create_comp_channel(net->device)))
		return tt_fail(-errno, "%s cannot be used: %s", net->name, strerror(errno));
	if (!(net->cq = l->create_cq(net->device, entries, NULL, net->wakes, choose_vector(net))))
		return tt_verbs_locked_too_much(net, "a completion queue", (size_t)entries * 64, errno);
	if (!(net->srq = l->create_srq(net->pd, &attr)))
		return tt_verbs_locked_too_much(net, "a queue of receives", attr.attr.max_wr * 32, errno);
	tt_fork_hold(net->device->cmd_fd);
	int err = watch(net, net->wakes->fd, &net->wakes);
	return err ? err : watch(net, net->device->async_fd, &net->device);
}

static void set_up(struct tt_verbs *net, const struct tt_net_config *c)
{
	struct tt_list *heads[] = { &net->regions, &net->pins, &net->joining, &net->dying, &net->dirty, &net->hungry,
		&net->spare_shares };

	for (size_t i = 0; i < TT_COUNT(heads); i++)
		tt_list_init(heads[i]);
	for (size_t i = 0; i < TT_VERBS_BUCKETS; i++)
		tt_list_init(&net->by_number[i]);
	for (size_t i = 0; i < TT_VERBS_KEYS; i++)
		tt_list_init(&net->by_rkey[i]);
	tt_flights_init(&net->ops, &flight_calls);
	pthread_mutex_init(&net->lock, NULL);
	pthread_mutex_init(&net->gpu_lock, NULL);
	pthread_rwlock_init(&net->open, NULL);
	net->inline_max = TT_VERBS_INLINE;
	net->door.listen_fd = -1;
	net->base = (struct tt_net){ .transport = &tt_verbs, .events = c->events, .user = c->user, .cheap_poll = 1,
		.copy_max = TT_VERBS_COPY_MAX, .fd = -1 };
}

static int open_all(struct tt_verbs *net, const struct tt_net_config *c)
{
	const char *connect = tt_env(TT_VERBS_CONNECT);
	int err = tt_verbs_open_device(net, c->device);

	if (!err)
		err = tt_door_open(&net->door, &net->base, c, &tt_verbs_door);
	if (!err && (net->base.fd = tt_epoll("RDMA")) < 0)
		err = net->base.fd;
	if (err || (err = count_peers(net, c->peers, (unsigned)tt_max(c->nets, 1))))
		return err;
	net->shares = calloc(net->peer_max + 1, sizeof *net->shares);
	if (!net->shares)
		return tt_fail(-ENOMEM, "no memory for a table of %u peers", net->peer_max);
	if ((err = make_queues(net)) || (err = tt_verbs_open_arena(net)))
		return err;
	net->cm = net->iwarp || (connect && !strcmp(connect, "cm"));
	if ((err = tt_listen(&net->door, c)) || !net->cm)
		return err;
	if (!(err = tt_verbs_open_cm(net, c->ports)) && !(err = watch(net, net->events->fd, &net->events)))
		return 0;
	if (c->listen_fd >= 0) { /* it stays the caller's */
		tt_fork_release(c->listen_fd);
		net->door.listen_fd = -1;
	}
	return err;
}

static int open_net(const struct tt_net_config *c, struct tt_net **out)
{
	const struct tt_verbs_library *library = tt_verbs_load();
	struct tt_verbs *net = library ? calloc(1, sizeof *net) : NULL;

	if (!library)
		return -ENODEV;
	if (!net)
		return tt_fail(-ENOMEM, "no memory for a net");
	net->library = library;
	set_up(net, c);
	int err = open_all(net, c);
	if (err) {
		struct tt_sentence why = tt_last_sentence();
		close_net(&net->base);
		tt_remember(why.text);
		return err;
	}
	*out = &net->base;
	return 0;
}

const struct tt_transport tt_verbs = {
	.name = "verbs",
	.sockets = 1,
	.list = tt_verbs_list,
	.choose = tt_verbs_choose,
	.open = open_net,
	.close = close_net,
	.pin = tt_verbs_pin,
	.unpin = tt_verbs_unpin,
	.ask_gpu = tt_verbs_ask_gpu,
	.reg = tt_verbs_reg,
	.dereg = tt_verbs_dereg,
	.connect = tt_verbs_connect,
	.disconnect = disconnect,
	.post = tt_verbs_post,
	TT_FAR,
	.progress = progress,
	.arm = arm,
};
