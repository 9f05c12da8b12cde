/* dial.c - a socket on its way to a connection: one that was accepted, or that tries a host's addresses in turn */
#include "transport/dial.h"
#include "transport/fork.h"
#include <netdb.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#define FEW_WATCHES ": raise the sysctl fs.epoll.max_user_watches"

static struct tt_dial *dial_of(struct tt_shake *h) { return tt_container_of(h, struct tt_dial, shake); }

static struct tt_peer *peer_of(const struct tt_dial *d) { return d->shake.ops->peer; }

void tt_dial_init(struct tt_dial *d, struct tt_door *door, struct tt_flight *ops, bool accepted)
{
	d->fd = -1;
	tt_shake_begin(&d->shake, door, ops, accepted);
}

ssize_t tt_dial_say(struct tt_shake *h, const void *bytes, size_t n)
{
	return send(dial_of(h)->fd, bytes, n, MSG_NOSIGNAL);
}

ssize_t tt_dial_hear(struct tt_shake *h, void *bytes, size_t n) { return recv(dial_of(h)->fd, bytes, n, 0); }

void tt_dial_watch(struct tt_dial *d, uint32_t events)
{
	struct epoll_event event = { .events = events, .data.ptr = peer_of(d) };
	const struct tt_door *door = d->shake.door;
	int op = d->watched ? EPOLL_CTL_MOD : EPOLL_CTL_ADD;

	d->watched = events;
	if (epoll_ctl(door->net->fd, op, d->fd, &event))
		tt_shake_fail(&d->shake, tt_fail(-errno, "cannot wait for %s: %s%s", peer_of(d)->addr,
		                                strerror(errno), errno == ENOSPC ? FEW_WATCHES : ""));
}

/* Removes the socket from epoll by hand: a forked child may hold it open, and epoll would go on reporting a freed
 * peer. */
static void close_socket(struct tt_dial *d)
{
	if (d->fd < 0)
		return;
	if (d->watched)
		epoll_ctl(d->shake.door->net->fd, EPOLL_CTL_DEL, d->fd, NULL);
	shutdown(d->fd, SHUT_RDWR); /* for the same reason: the other end learns of it now */
	tt_fork_close(d->fd);
	d->fd = -1;
	d->watched = 0;
}

static void free_addresses(struct tt_dial *d)
{
	if (d->lookup)
		tt_resolve_leave(d->lookup);
	if (d->addresses)
		freeaddrinfo(d->addresses);
	d->lookup = NULL;
	d->addresses = d->address = d->next_address = NULL;
}

void tt_dial_end(struct tt_dial *d)
{
	tt_list_remove(&d->shake.node);
	close_socket(d);
	free_addresses(d);
}

bool tt_dial_within_host(const struct tt_dial *d)
{
	union tt_socket_address a = { 0 }, b = { 0 };
	socklen_t size_a = sizeof a, size_b = sizeof b;

	if (getsockname(d->fd, &a.any, &size_a) || getpeername(d->fd, &b.any, &size_b))
		return false;
	tt_resolve_unmap(&a);
	tt_resolve_unmap(&b);
	return a.any.sa_family == b.any.sa_family && !(a.any.sa_family == AF_INET6 ?
		memcmp(&a.v6.sin6_addr, &b.v6.sin6_addr, sizeof a.v6.sin6_addr) :
		memcmp(&a.v4.sin_addr, &b.v4.sin_addr, sizeof a.v4.sin_addr));
}

/* addresses: that share the time of a handshake; 1 once the socket is connected. */
static void prepare_socket(const struct tt_door *door, int fd, int addresses)
{
	int on = 1, ms = (int)door->timeout_ms / addresses;

	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
	setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &ms, sizeof ms); /* it bounds a connect, too */
}

/* The kernel may give this socket the port at which another rank will listen: to connect to that port while nobody
 * listens there may even connect the socket to itself. Others can listen there all the same, also in TIME_WAIT. */
void tt_dial_spare_port(int fd)
{
	int on = 1;

	setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
}

static int count(const struct addrinfo *a)
{
	int n = 0;

	for (; a; a = a->ai_next)
		n++;
	return n;
}

void tt_dial_greet(struct tt_door *door, int fd, const struct sockaddr *from)
{
	struct tt_dial *d = door->calls->make(door, true);
	union tt_socket_address a;

	if (!d) {
		tt_fork_close(fd);
		return;
	}
	tt_resolve_copy(&a, from);
	tt_resolve_name(&a, peer_of(d)->addr, sizeof peer_of(d)->addr);
	d->fd = fd;
	prepare_socket(door, fd, 1);
	tt_dial_watch(d, EPOLLIN);
}

static int map_error(int err) { return err == ETIMEDOUT ? -ETIMEDOUT : -EHOSTUNREACH; }

static void note_failure(struct tt_dial *d, int err)
{
	size_t n = strlen(d->tried);
	union tt_socket_address a;
	char name[96];

	if (!d->address)
		return;
	tt_resolve_copy(&a, d->address->ai_addr);
	tt_resolve_name(&a, name, sizeof name);
	snprintf(d->tried + n, sizeof d->tried - n, "%s%s (%s)", n ? ", " : "tried ", name, strerror(err));
}

static bool fail(struct tt_dial *d, int err)
{
	bool one = d->addresses && !d->addresses->ai_next && strstr(d->tried, peer_of(d)->addr);

	return tt_shake_give_up(&d->shake, map_error(err), one || !*d->tried ? strerror(err) : d->tried);
}

/* Starts connecting to the next address of the host. Returns -errno if none is left. */
static int try_next(struct tt_dial *d, int err)
{
	for (struct addrinfo *a; (a = d->next_address);) {
		d->address = a;
		d->next_address = a->ai_next;
		close_socket(d);
		d->fd = tt_fork_socket(a->ai_family, SOCK_STREAM | SOCK_NONBLOCK);
		if (d->fd >= 0) {
			tt_dial_spare_port(d->fd);
			prepare_socket(d->shake.door, d->fd, count(d->addresses));
			if (!connect(d->fd, a->ai_addr, a->ai_addrlen) || errno == EINPROGRESS || errno == EINTR) {
				tt_dial_watch(d, EPOLLOUT);
				return 0;
			}
		}
		err = errno;
		note_failure(d, err);
	}
	return -err;
}

static bool allowed_without_secret(const struct addrinfo *list)
{
	union tt_socket_address a;

	for (; list; list = list->ai_next) {
		tt_resolve_copy(&a, list->ai_addr);
		if (!tt_resolve_is_loopback(&a))
			return false;
	}
	return true;
}

/* Connects to the addresses that were found; without a file left, or an address, returns -errno with a sentence. */
static int dial(struct tt_dial *d, struct addrinfo *found)
{
	d->addresses = d->next_address = found;
	if (!d->shake.door->has_secret && !allowed_without_secret(found))
		return tt_fail(-EACCES, "will not connect to %s without a secret: set TUTTI_SECRET on both sides",
		               peer_of(d)->addr);
	int err = try_next(d, EHOSTUNREACH);
	if (err == -EMFILE || err == -ENFILE)
		return tt_fail(-EMFILE, "no file is left for a connection to %s: %s%s", peer_of(d)->addr,
		               strerror(-err), tt_files_hint(-err));
	if (err)
		fail(d, -err);
	return 0;
}

/* The descriptor of the lookup stands in for the socket: it becomes readable at the end. */
static int look_up(struct tt_dial *d, const char *addr)
{
	int err = tt_resolve_begin(d->shake.door->net, addr, &d->lookup, &d->fd);

	if (!err)
		tt_dial_watch(d, EPOLLIN);
	return err;
}

static int begin(struct tt_dial *d, const char *addr)
{
	struct tt_peer *peer = peer_of(d);
	struct addrinfo *found;
	char address[96];

	tt_resolve_rezone(peer->net->addr, tt_resolve_after_scheme(peer->net, addr), address);
	int err = tt_resolve(address, AI_NUMERICHOST, &found);
	if (err && err != -EHOSTUNREACH)
		return err;
	snprintf(peer->addr, sizeof peer->addr, "%s", address);
	return err ? look_up(d, addr) : dial(d, found);
}

int tt_dial_connect(struct tt_door *door, const char *addr, struct tt_peer **out)
{
	struct tt_dial *d = door->calls->make(door, false);
	int err = d ? begin(d, addr) : -ENOMEM;

	if (!err)
		*out = peer_of(d);
	else if (d)
		tt_flight_free(d->shake.ops);
	return err;
}

static bool finish_lookup(struct tt_dial *d)
{
	struct addrinfo *found = NULL;
	char why[200];
	int err = tt_resolve_end(d->lookup, &found, why);

	d->lookup = NULL;
	if (err)
		return tt_shake_give_up(&d->shake, -ENXIO, why);
	err = dial(d, found);
	return err ? tt_shake_give_up(&d->shake, err == -EACCES ? err : -EHOSTUNREACH,
	                             tt_last_sentence().text) : false; /* not tt_why(), which is written anew */
}

static bool finish_connect(struct tt_dial *d)
{
	int err = 0;
	socklen_t size = sizeof err;

	getsockopt(d->fd, SOL_SOCKET, SO_ERROR, &err, &size);
	if (err) {
		note_failure(d, err);
		int last = try_next(d, err);
		return last ? fail(d, -last) : false;
	}
	prepare_socket(d->shake.door, d->fd, 1);
	if (tt_shake_connected(&d->shake))
		tt_dial_watch(d, EPOLLIN);
	return false;
}

bool tt_dial_step(struct tt_dial *d)
{
	if (d->shake.ops->stage == TT_STAGE_CONNECTING)
		return d->lookup ? finish_lookup(d) : finish_connect(d);
	if (!tt_shake_step(&d->shake))
		return false;
	free_addresses(d);
	return true;
}
