/* shm.c - the transport between processes of one host: nets, peers, and the order of the work in one progress()
 *
 *   post -> pending -> stored and loaded in the other's memory, or asked of it -> finished -> done()
 *                                          lines in the lanes, both ways -> message(), notify(), answers
 *
 * A turn looks at the next line of each lane and makes no system call. A net with more than 16 peers looks only at the
 * lanes of peers that have set their bit. epoll reports strangers and the ends of connections: a turn asks epoll now
 * and then, and after a sleep. A process that writes to a net that sleeps kicks the net's eventfd.
 */
#include "transport/shm/shm_private.h"
#include "transport/breaks.h"
#include "transport/fork.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/mman.h>
#include <unistd.h>

enum {
	POLL_EVERY = 1024,       /* turns between two calls of epoll_wait */
	LOOK_EVERY = 64,         /* turns between two looks at all peers, where they ring */
	REVIEW_NS = 1000000000,  /* between two searches for mapped memory that its owner has freed */
};

static struct tt_shm *net_of(struct tt_net *n) { return tt_container_of(n, struct tt_shm, base); }

/* ---- peers ---- */

struct tt_shm_peer *tt_shm_peer_new(struct tt_shm *net, bool accepted)
{
	struct tt_shm_peer *p = calloc(1, sizeof *p);

	if (!p) {
		tt_fail(-ENOMEM, "no memory for a peer on %s", net->base.addr);
		return NULL;
	}
	p->base.net = &net->base;
	p->net = net;
	p->fd = p->pid_fd = p->kick_fd = p->strip_fd = p->sheet_fd = p->current = p->bell = -1;
	tt_flight_init(&p->ops, &net->ops, &p->base);
	tt_list_init(&p->up);
	tt_shake_begin(&p->shake, &net->door, &p->ops, accepted);
	return p;
}

/* ---- bells ---- */

/* Where a net has many peers, a peer that writes rings. A peer writes a line, then reads whether this net wants it to
 * ring. This net says that it wants a ring, then reads the lane. So one of the two sees the other. */
static void ask_to_ring(struct tt_shm_peer *p)
{
	atomic_store_explicit(&p->in->bell, (uint32_t)p->bell + 1, memory_order_relaxed);
	atomic_thread_fence(memory_order_seq_cst);
	tt_shm_look_again(p);
}

/* From now on a turn looks at the lanes of peers that have rung. */
static void start_ringing(struct tt_shm *net)
{
	net->ringing = true;
	tt_each_of(struct tt_shm_peer, up, p, &net->up)
		ask_to_ring(p);
}

/* A net may have no bell left for a peer. Then each LOOK_EVERY-th turn finds what the peer writes. */
static void take_bell(struct tt_shm_peer *p)
{
	struct tt_shm *net = p->net;
	int bell = 0;

	while (bell < TT_SHM_BELLS && net->by_bell[bell])
		bell++;
	if (bell == TT_SHM_BELLS)
		return;
	p->bell = bell;
	net->by_bell[bell] = p;
	net->bell_words = (unsigned)tt_max(net->bell_words, (size_t)bell / 64 + 1);
	net->bell_count++;
	if (net->ringing)
		ask_to_ring(p);
	else if (net->bell_count > TT_SHM_FEW)
		start_ringing(net);
}

/* From now on a turn looks at all lanes. */
static void stop_ringing(struct tt_shm *net)
{
	net->ringing = false;
	tt_each_of(struct tt_shm_peer, up, p, &net->up)
		atomic_store_explicit(&p->in->bell, 0, memory_order_relaxed);
}

static void give_bell(struct tt_shm_peer *p)
{
	if (p->bell < 0)
		return;
	p->net->by_bell[p->bell] = NULL;
	p->net->bell_count--;
	p->bell = -1;
	if (p->net->ringing && p->net->bell_count <= TT_SHM_FEW / 2)
		stop_ringing(p->net);
}

/* What map() gave stays valid. */
static void cut_off(struct tt_flight *ops)
{
	struct tt_shm_peer *p = tt_container_of(ops, struct tt_shm_peer, ops);
	int *fds[] = { &p->fd, &p->pid_fd, &p->kick_fd, &p->strip_fd, &p->sheet_fd };

	tt_shm_fence_off(p);
	tt_list_remove(&p->shake.node);
	tt_list_remove(&p->up);
	give_bell(p);
	if (p->fd >= 0)
		shutdown(p->fd, SHUT_RDWR); /* a forked child may hold the socket open */
	for (size_t i = 0; i < TT_COUNT(fds); i++) {
		if (*fds[i] < 0)
			continue;
		if (i < 2)
			epoll_ctl(p->net->base.fd, EPOLL_CTL_DEL, *fds[i], NULL);
		tt_fork_close(*fds[i]);
		*fds[i] = -1;
	}
}

static void unmap(const void *at, size_t len)
{
	if (at)
		munmap((void *)(uintptr_t)at, len);
}

static void free_peer(struct tt_flight *ops)
{
	struct tt_shm_peer *p = tt_container_of(ops, struct tt_shm_peer, ops);

	tt_shm_forbid_reading(p);
	tt_shm_drop_views(p);
	unmap(p->strip, 2 * tt_shm_lane_size(p->payload));
	unmap(p->sheet, sizeof *p->sheet);
	unmap(p->bells, sizeof *p->bells);
	free(p);
}

static const struct tt_flight_calls flight_calls = { .cut_off = cut_off, .free = free_peer };

static void disconnect(struct tt_peer *base)
{
	tt_flight_disconnect(&tt_container_of(base, struct tt_shm_peer, base)->ops);
}

/* ---- progress ---- */

static void go_on_with_handshake(struct tt_shm_peer *p)
{
	if (!tt_shm_handshake(p))
		return; /* the peer may be gone */
	tt_list_append(&p->net->up, &p->up);
	take_bell(p);
	tt_flight_up(&p->ops);
}

/* What the peer wrote before it ended counts. */
static void hang_up(struct tt_shm_peer *p)
{
	/* not for ever: the peer may go on writing */
	for (int i = 0; i < TT_SHM_LINES && tt_flight_alive(&p->ops) && tt_shm_next(p); i++)
		tt_shm_read(p);
	tt_flight_lose(&p->ops, "it has ended, or closed the connection");
}

static void handle_event(struct tt_shm *net, uint64_t tag)
{
	struct tt_shm_peer *p = (struct tt_shm_peer *)(uintptr_t)(tag & ~(uint64_t)1);
	uint64_t kicks;

	if (!p)
		(void)!read(net->event_fd, &kicks, sizeof kicks);
	else if (p->ops.broken || p->ops.stage == TT_STAGE_DOWN)
		return;
	else if (p->ops.stage == TT_STAGE_UP)
		hang_up(p);
	else if (tag & 1)
		tt_shake_closed(&p->shake);
	else
		go_on_with_handshake(p);
}

/* An event may free the peer of another event: they are taken one at a time. */
static int poll_events(struct tt_shm *net)
{
	struct epoll_event event;
	bool strangers = false;
	int n;

	for (int i = 0; i < 64 && (n = epoll_wait(net->base.fd, &event, 1, 0)) > 0; i++) {
		if (event.data.ptr != &net->door)
			handle_event(net, event.data.u64);
		else if (strangers)
			break;
		else
			tt_door_accept(&net->door);
		strangers |= event.data.ptr == &net->door;
	}
	tt_shm_retry(net);
	if (tt_door_waits(&net->door))
		tt_door_expire(&net->door);
	return 0;
}

static void review(struct tt_shm *net)
{
	uint64_t now = tt_now();

	if (now < net->reviewed + REVIEW_NS)
		return;
	net->reviewed = now;
	tt_list_each(node, &net->up)
		tt_shm_review_views(tt_container_of(node, struct tt_shm_peer, up));
}

static void serve(struct tt_shm_peer *p)
{
	tt_shm_read(p);
	if (tt_shm_has_to_push(p))
		tt_shm_push(p);
	if (tt_shm_has_to_push(p) || tt_shm_next(p))
		tt_shm_look_again(p);
}

static void serve_all(struct tt_shm *net)
{
	tt_list_each(node, &net->up)
		serve(tt_container_of(node, struct tt_shm_peer, up));
}

/* A handler may end peers. */
static void serve_word(struct tt_shm *net, unsigned word)
{
	_Atomic uint64_t *rung = &net->bells->word[word].bits;
	uint64_t bits = net->look[word];

	net->look[word] = 0;
	if (atomic_load_explicit(rung, memory_order_relaxed)) {
		bits |= atomic_exchange(rung, 0);
		atomic_thread_fence(memory_order_seq_cst);
	}
	for (; bits; bits &= bits - 1) {
		struct tt_shm_peer *p = net->by_bell[word * 64 + (unsigned)__builtin_ctzll(bits)];
		if (p)
			serve(p);
	}
}

/* Each sleep has a new number. */
static void set_nap(struct tt_shm *net, bool asleep)
{
	uint32_t naps = atomic_load_explicit(&net->sheet->naps, memory_order_relaxed);

	if ((naps % 2 == 1) != asleep)
		atomic_store_explicit(&net->sheet->naps, naps + 1, memory_order_relaxed);
}

/* Each LOOK_EVERY-th turn looks at all lanes: signs of life do not ring, and a peer that means harm may clear the bits
 * of others. */
static int progress(struct tt_net *base)
{
	struct tt_shm *net = net_of(base);

	net->ops.events = 0;
	if (!tt_list_empty(&net->ops.ready))
		tt_flights_drain(&net->ops);
	bool armed = net->armed;
	if (armed || ++net->turns % POLL_EVERY == 0 || tt_list_empty(&net->up) || tt_door_waits(&net->door)) {
		net->armed = false;
		set_nap(net, false);
		poll_events(net);
		review(net);
	}
	if (!net->ringing || armed || net->turns % LOOK_EVERY == 0)
		serve_all(net);
	else
		for (unsigned word = 0; word < net->bell_words; word++)
			serve_word(net, word);
	if (!tt_list_empty(&net->ops.ready))
		tt_flights_drain(&net->ops);
	return net->ops.events;
}

/* The net first says that it sleeps, then looks a last time. A writer first writes, then looks whether the net
 * sleeps. */
static int arm(struct tt_net *base)
{
	struct tt_shm *net = net_of(base);

	net->armed = true;
	set_nap(net, true);
	atomic_thread_fence(memory_order_seq_cst);
	if (!tt_list_empty(&net->ops.ready))
		return 1;
	tt_list_each(node, &net->door.shakes)
		if (tt_container_of(node, struct tt_shake, node)->ops->stage == TT_STAGE_CONNECTING)
			return 1; /* no event tells when the other's queue has room */
	tt_each_of(struct tt_shm_peer, up, p, &net->up) {
		if (tt_shm_has_to_push(p))
			tt_shm_push(p); /* there may be room by now */
		if (tt_shm_next(p) || !tt_list_empty(&p->ops.ready) || (tt_shm_has_to_push(p) && !p->stuck))
			return 1;
	}
	return 0;
}

static int hear(struct tt_peer *base)
{
	struct tt_shm_peer *p = tt_container_of(base, struct tt_shm_peer, base);
	struct tt_shm *net = p->net;

	bool line = tt_flight_alive(&p->ops) && tt_shm_next(p);

	if (!line && tt_list_empty(&net->ops.ready))
		return 0;
	net->ops.events = 0;
	if (line)
		serve(p);
	if (!tt_list_empty(&net->ops.ready))
		tt_flights_drain(&net->ops);
	return net->ops.events;
}

/* ---- nets ---- */

/* Memory of other processes is mapped through their files there. */
static int look_for_proc(void)
{
	if (!access("/proc/self/fd", X_OK))
		return 0;
	return tt_fail(-ENOSYS, "shm maps the memory of other processes through /proc, which is not mounted here");
}

static int list_devices(struct tt_device *list, int max)
{
	int err = look_for_proc();

	if (err)
		return err;
	if (max > 0)
		list[0] = (struct tt_device){ .name = "memory", .numa = -1 };
	return 1;
}

static void close_net(struct tt_net *base)
{
	struct tt_shm *net = net_of(base);
	int fds[] = { net->event_fd, net->sheet_fd, net->base.fd };

	tt_shm_fence_off_all(net);
	tt_flights_close(&net->ops);
	while (!tt_list_empty(&net->regions))
		tt_shm_dereg(&tt_container_of(net->regions.next, struct tt_grant, node)->base);
	for (size_t i = 0; i < TT_COUNT(fds); i++)
		if (fds[i] >= 0)
			close(fds[i]);
	unmap(net->sheet, tt_shm_sheet_size());
	tt_shm_drop_left(net);
	tt_door_close(&net->door);
	free(net->free_slots);
	free(net->mine);
	free(net);
}

static void set_up(struct tt_shm *net, const struct tt_net_config *c)
{
	uint32_t generation;

	tt_list_init(&net->regions);
	tt_list_init(&net->up);
	tt_flights_init(&net->ops, &flight_calls);
	net->base = (struct tt_net){ .transport = &tt_shm, .events = c->events, .user = c->user, .fd = -1,
	                             .copy_max = SIZE_MAX, .cheap_poll = 1,
	                             .host_only = 1 };
	tt_entropy(&generation, sizeof generation); /* a key of an earlier process fits nowhere */
	net->generation = generation;
	net->keep = c->keep;
	net->near = c->near;
	net->event_fd = net->sheet_fd = -1;
	net->gets.without = net->answers.without = TT_COPY_STRING;
}

static int make_files(struct tt_shm *net)
{
	struct epoll_event event = { .events = EPOLLIN, .data.ptr = NULL };

	net->base.fd = tt_epoll("shared memory");
	net->event_fd = net->base.fd < 0 ? net->base.fd : tt_eventfd("shared memory");
	if (net->event_fd < 0)
		return net->event_fd;
	if (epoll_ctl(net->base.fd, EPOLL_CTL_ADD, net->event_fd, &event))
		return tt_fail(-errno, "cannot wait for an eventfd: %s", strerror(errno));
	net->sheet = tt_shm_make_file("tutti-sheet", tt_shm_sheet_size(), &net->sheet_fd);
	net->free_slots = calloc(TT_SHM_KEYS, sizeof *net->free_slots);
	net->mine = calloc(TT_SHM_KEYS, sizeof *net->mine);
	if (!net->sheet || !net->free_slots || !net->mine)
		return tt_fail(-ENOMEM, "no memory that other processes can map: %s", strerror(errno));
	net->sheet->self = net->sheet;
	net->bells = (void *)((char *)net->sheet + tt_shm_bells_at());
	return 0;
}

static int open_net(const struct tt_net_config *c, struct tt_net **out)
{
	struct tt_shm *net;
	int err = look_for_proc();

	if (err)
		return err;
	if (!(net = calloc(1, sizeof *net)))
		return tt_fail(-ENOMEM, "no memory for a net");
	set_up(net, c);
	err = tt_door_open(&net->door, &net->base, c, &tt_shm_door);
	if (err || (err = make_files(net)) || (err = tt_shm_take_name(net, c))) {
		close_net(&net->base);
		return err;
	}
	*out = &net->base;
	return 0;
}

const struct tt_transport tt_shm = {
	.name = "shm",
	.list = list_devices,
	.open = open_net,
	.address = tt_shm_address,
	.close = close_net,
	.reg = tt_shm_reg,
	.dereg = tt_shm_dereg,
	.connect = tt_shm_connect,
	.disconnect = disconnect,
	.post = tt_shm_post,
	.map = tt_shm_map,
	.store_begin = tt_shm_store_begin,
	.store_end = tt_shm_store_end,
	.notify = tt_shm_notify,
	.send = tt_shm_send,
	.hear = hear,
	.progress = progress,
	.arm = arm,
};
