/* tcp_connect.c - addresses, listening and connecting */
#include "transport/tcp/tcp_private.h"
#include <arpa/inet.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

union address {
	struct sockaddr any;
	struct sockaddr_in v4;
	struct sockaddr_in6 v6;
};

/* Addresses */

static socklen_t size_of(const union address *a) { return a->any.sa_family == AF_INET6 ? sizeof a->v6 : sizeof a->v4; }

static unsigned port_of(const union address *a)
{
	return ntohs(a->any.sa_family == AF_INET6 ? a->v6.sin6_port : a->v4.sin_port);
}

/* The source is the resolver or an interface: it is no longer than its family needs. */
static void copy_address(union address *to, const struct sockaddr *from)
{
	memset(to, 0, sizeof *to);
	to->any.sa_family = from->sa_family;
	memcpy(to, from, size_of(to));
}

static void set_port(union address *a, unsigned port)
{
	if (a->any.sa_family == AF_INET6)
		a->v6.sin6_port = htons((uint16_t)port);
	else
		a->v4.sin_port = htons((uint16_t)port);
}

/* turns an IPv4-mapped IPv6 address, from a dual-stack socket, into an IPv4 address */
static void unmap(union address *a)
{
	struct sockaddr_in v4 = { .sin_family = AF_INET };

	if (a->any.sa_family != AF_INET6 || !IN6_IS_ADDR_V4MAPPED(&a->v6.sin6_addr))
		return;
	v4.sin_port = a->v6.sin6_port;
	memcpy(&v4.sin_addr, &a->v6.sin6_addr.s6_addr[12], 4);
	a->v4 = v4;
}

static bool is_loopback(const union address *from)
{
	union address a = *from;

	unmap(&a);
	return a.any.sa_family == AF_INET6 ? IN6_IS_ADDR_LOOPBACK(&a.v6.sin6_addr)
	                                   : ntohl(a.v4.sin_addr.s_addr) >> 24 == 127;
}

static bool is_wildcard(const union address *a)
{
	return a->any.sa_family == AF_INET6 ? IN6_IS_ADDR_UNSPECIFIED(&a->v6.sin6_addr)
	                                    : a->v4.sin_addr.s_addr == htonl(INADDR_ANY);
}

static void name_address(const union address *from, char *text, size_t size)
{
	char host[NI_MAXHOST];
	union address a = *from;

	unmap(&a);
	if (getnameinfo(&a.any, size_of(&a), host, sizeof host, NULL, 0, NI_NUMERICHOST))
		snprintf(host, sizeof host, "?");
	snprintf(text, size, a.any.sa_family == AF_INET6 ? "[%.70s]:%u" : "%.70s:%u", host, port_of(&a));
}

/* Interfaces */

static bool usable(const struct ifaddrs *i)
{
	return i->ifa_addr && i->ifa_flags & IFF_UP &&
	       (i->ifa_addr->sa_family == AF_INET || i->ifa_addr->sa_family == AF_INET6);
}

static bool link_local(const struct ifaddrs *i)
{
	const struct sockaddr_in6 *v6 = (const struct sockaddr_in6 *)(const void *)i->ifa_addr;

	return v6->sin6_family == AF_INET6 && IN6_IS_ADDR_LINKLOCAL(&v6->sin6_addr);
}

/* The best address of the interface `name`, or of any but loopback: IPv4, then IPv6, then link-local IPv6. */
static bool find_interface(const struct ifaddrs *all, const char *name, union address *out)
{
	int best = 0;

	for (const struct ifaddrs *i = all; i; i = i->ifa_next) {
		if (!usable(i) || (name ? strcmp(i->ifa_name, name) != 0 : (i->ifa_flags & IFF_LOOPBACK) != 0))
			continue;
		int rank = i->ifa_addr->sa_family == AF_INET ? 3 : link_local(i) ? 1 : 2;
		if (rank > best) {
			best = rank;
			copy_address(out, i->ifa_addr);
		}
	}
	return best > 0;
}

static bool seen_before(const struct ifaddrs *all, const struct ifaddrs *i)
{
	for (const struct ifaddrs *j = all; j != i; j = j->ifa_next)
		if (usable(j) && !strcmp(j->ifa_name, i->ifa_name))
			return true;
	return false;
}

static int unknown_interface(const struct ifaddrs *all, const char *name)
{
	char names[200] = "";
	size_t n = 0;

	for (const struct ifaddrs *i = all; i; i = i->ifa_next)
		if (usable(i) && !seen_before(all, i) && n < sizeof names - IFNAMSIZ - 2)
			n += (size_t)snprintf(names + n, sizeof names - n, "%s%s", n ? ", " : "", i->ifa_name);
	return tt_fail(-ENODEV, "there is no network interface or address '%s' that is up: TUTTI_IFACE may be %s", name,
	               n ? names : "nothing, for there is none");
}

static long read_number(const char *interface, const char *what, long fallback)
{
	char path[128], text[32];
	int n = snprintf(path, sizeof path, "/sys/class/net/%s/%s", interface, what);
	int fd = n < (int)sizeof path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
	ssize_t got = fd < 0 ? -1 : read(fd, text, sizeof text - 1);

	if (fd >= 0)
		close(fd);
	if (got <= 0)
		return fallback;
	text[got] = 0;
	return strtol(text, NULL, 10);
}

static void describe(const char *name, struct tt_device *d)
{
	long mbps = read_number(name, "speed", 0);

	memset(d, 0, sizeof *d);
	snprintf(d->name, sizeof d->name, "%s", name);
	d->numa = (int)read_number(name, "device/numa_node", -1);
	d->mbps = mbps > 0 ? (unsigned)mbps : 0;
}

int tt_tcp_devices(struct tt_device *list, int max)
{
	struct ifaddrs *all;
	int n = 0;

	if (getifaddrs(&all))
		return tt_fail(-errno, "cannot list the network interfaces: %s", strerror(errno));
	for (struct ifaddrs *i = all; i; i = i->ifa_next)
		if (usable(i) && !seen_before(all, i) && n++ < max)
			describe(i->ifa_name, &list[n - 1]);
	freeifaddrs(all);
	return n;
}

/* Listening */

/* `device` is an address of this host, or the name of an interface. */
static int find_device(const char *device, union address *out)
{
	struct addrinfo hints = { .ai_flags = AI_NUMERICHOST, .ai_socktype = SOCK_STREAM }, *found;
	struct ifaddrs *all;

	memset(out, 0, sizeof *out);
	if (!getaddrinfo(device, NULL, &hints, &found)) {
		copy_address(out, found->ai_addr);
		freeaddrinfo(found);
		return 0;
	}
	if (getifaddrs(&all))
		return tt_fail(-errno, "cannot list the network interfaces: %s", strerror(errno));
	int err = find_interface(all, device, out) ? 0 : unknown_interface(all, device);
	freeifaddrs(all);
	return err;
}

static void set_loopback(union address *a)
{
	memset(a, 0, sizeof *a);
	a->v4.sin_family = AF_INET;
	a->v4.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
}

static void set_wildcard(union address *a)
{
	int fd = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);

	memset(a, 0, sizeof *a);
	a->any.sa_family = fd < 0 ? AF_INET : AF_INET6; /* all zeros is the wildcard of both */
	if (fd >= 0)
		close(fd);
}

/* Binds and listens. On error it returns -errno without a sentence: a busy port may be no error. */
static int listen_at(const union address *a)
{
	int fd = socket(a->any.sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0), on = 1, off = 0;

	if (fd < 0)
		return -errno;
	setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
	if (a->any.sa_family == AF_INET6)
		setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, is_wildcard(a) ? &off : &on, sizeof on);
	if (!bind(fd, &a->any, size_of(a)) && !listen(fd, SOMAXCONN))
		return fd;
	int err = -errno;
	close(fd);
	return err;
}

static int cannot_listen(const union address *a, int err)
{
	char text[96];

	name_address(a, text, sizeof text);
	if (err == -EADDRINUSE)
		return tt_fail(err, "cannot listen on %s: the port is in use; stop the program that has it, or take "
		               "another", text);
	if (err == -EADDRNOTAVAIL)
		return tt_fail(err, "cannot listen on %s: this host has no such address; TUTTI_IFACE names one", text);
	return tt_fail(err, "cannot listen on %s: %s", text, strerror(-err));
}

static int listen_in_range(union address *a, const int ports[2])
{
	char text[96];
	int fd = -EADDRINUSE;

	for (int port = ports[0]; port <= ports[1] && fd == -EADDRINUSE; port++) {
		set_port(a, (unsigned)port);
		fd = listen_at(a);
	}
	if (fd != -EADDRINUSE)
		return fd < 0 ? cannot_listen(a, fd) : fd;
	set_port(a, 0);
	name_address(a, text, sizeof text);
	*strrchr(text, ':') = 0;
	return tt_fail(fd, "no port from %d to %d is free on %s: give a wider range in TUTTI_PORTS", ports[0], ports[1],
	               text);
}

static int no_secret(const union address *a)
{
	char text[96];

	name_address(a, text, sizeof text);
	return tt_fail(-EACCES, "will not listen on %s without a secret: set TUTTI_SECRET, or stay on 127.0.0.1", text);
}

static int parse_listen(const struct tt_net_config *c, union address *a)
{
	const char *text = tt_tcp_after_scheme(c->listen);
	struct addrinfo *found;
	bool any = (*text == ':' && !strchr(text + 1, ':')) || *text == '*';
	char local[16];

	if (any) { /* no host: all interfaces, or loopback if there is no secret */
		snprintf(local, sizeof local, "127.0.0.1%.6s", text + (*text == '*'));
		text = local;
	}
	int err = tt_tcp_resolve(text, AI_PASSIVE, &found);
	if (err)
		return err;
	copy_address(a, found->ai_addr);
	freeaddrinfo(found);
	if (any && c->secret) {
		unsigned port = port_of(a);
		set_wildcard(a);
		set_port(a, port);
	}
	return 0;
}

static int choose_address(const struct tt_net_config *c, union address *a)
{
	if (c->listen)
		return parse_listen(c, a);
	if (c->device)
		return find_device(c->device, a);
	if (c->secret)
		set_wildcard(a);
	else
		set_loopback(a);
	return 0;
}

static int listen_somewhere(const struct tt_net_config *c, union address *a)
{
	/* a wrong name is an error, even if it is not used */
	int err = c->listen && c->device ? find_device(c->device, a) : 0;

	if (!err)
		err = choose_address(c, a);
	if (err)
		return err;
	if (!c->secret && !is_loopback(a))
		return no_secret(a);
	if (!c->listen && c->ports[0] > 0)
		return listen_in_range(a, c->ports);
	int fd = listen_at(a);
	return fd < 0 ? cannot_listen(a, fd) : fd;
}

static int take_listener(const struct tt_net_config *c, union address *a)
{
	socklen_t size = sizeof *a;

	memset(a, 0, sizeof *a);
	if (getsockname(c->listen_fd, &a->any, &size))
		return tt_fail(-errno, "descriptor %d is no listening socket: %s", c->listen_fd, strerror(errno));
	if (a->any.sa_family != AF_INET && a->any.sa_family != AF_INET6)
		return tt_fail(-EINVAL, "descriptor %d is no TCP socket", c->listen_fd);
	if (!c->secret && !is_loopback(a))
		return no_secret(a);
	fcntl(c->listen_fd, F_SETFL, fcntl(c->listen_fd, F_GETFL) | O_NONBLOCK);
	fcntl(c->listen_fd, F_SETFD, FD_CLOEXEC);
	return c->listen_fd;
}

/* A net that listens everywhere is reached at the named device, else at the first interface that leads somewhere. */
static int advertise(struct tt_tcp *net, const struct tt_net_config *c, union address *a)
{
	unsigned port = port_of(a);
	struct ifaddrs *all;

	if (is_wildcard(a) && c->device) {
		int err = find_device(c->device, a);
		if (err)
			return err;
	} else if (is_wildcard(a)) {
		bool found = !getifaddrs(&all);
		if (found) {
			found = find_interface(all, NULL, a);
			freeifaddrs(all);
		}
		if (!found)
			set_loopback(a);
	}
	set_port(a, port);
	memcpy(net->base.addr, "tcp:", 4);
	name_address(a, net->base.addr + 4, sizeof net->base.addr - 4);
	return 0;
}

/* A descriptor that was handed in stays the caller's until all else has succeeded. */
int tt_tcp_listen(struct tt_tcp *net, const struct tt_net_config *c)
{
	union address a;
	socklen_t size = sizeof a;
	int fd = c->listen_fd >= 0 ? take_listener(c, &a) : listen_somewhere(c, &a), err;

	if (fd < 0)
		return fd;
	if (getsockname(fd, &a.any, &size))
		err = tt_fail(-errno, "cannot read the address of a listening socket: %s", strerror(errno));
	else
		err = advertise(net, c, &a);
	if (!err)
		err = tt_door_listen(&net->door, fd);
	if (err && fd != c->listen_fd)
		close(fd);
	return err;
}

/* Connecting */

static void prepare_socket(const struct tt_tcp *net, int fd)
{
	int on = 1, ms = (int)net->door.timeout_ms;

	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
	setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &ms, sizeof ms);
}

static bool same_host(const union address *from, const union address *to)
{
	union address a = *from, b = *to;

	unmap(&a);
	unmap(&b);
	return a.any.sa_family == b.any.sa_family && !(a.any.sa_family == AF_INET6 ?
		memcmp(&a.v6.sin6_addr, &b.v6.sin6_addr, sizeof a.v6.sin6_addr) :
		memcmp(&a.v4.sin_addr, &b.v4.sin_addr, sizeof a.v4.sin_addr));
}

/* Within one host no queue has to be kept short. Reno, which every kernel has and which does not pace, is as good as
 * any there. A control that paces (BBR, if the host has it as default) costs up to a third of the rate. */
static void choose_control(int fd)
{
	union address here = { 0 }, there = { 0 };
	socklen_t size = sizeof here, size_there = sizeof there;

	if (getsockname(fd, &here.any, &size) || getpeername(fd, &there.any, &size_there) || !same_host(&here, &there))
		return;
	if (setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, "reno", 4))
		tt_log(TT_DEBUG, "cannot choose the congestion control of a local connection: %s", strerror(errno));
}

static struct tt_tcp_peer *peer_of(struct tt_shake *h) { return tt_container_of(h, struct tt_tcp_peer, shake); }

static struct tt_tcp_peer *begin_peer(struct tt_tcp *net, bool accepted)
{
	struct tt_tcp_peer *p = tt_tcp_peer_new(net);

	if (p)
		tt_shake_begin(&p->shake, &net->door, &p->base, accepted);
	return p;
}

static ssize_t say(struct tt_shake *h, const void *bytes, size_t n)
{
	return send(peer_of(h)->fd, bytes, n, MSG_NOSIGNAL);
}
static ssize_t hear(struct tt_shake *h, void *bytes, size_t n) { return recv(peer_of(h)->fd, bytes, n, 0); }
static void proven(struct tt_shake *h) { choose_control(peer_of(h)->fd); }

static void over(struct tt_shake *h, int err)
{
	struct tt_tcp_peer *p = peer_of(h);

	if (err)
		tt_flight_break(&p->ops, err);
	else
		tt_tcp_peer_free(p);
}

static void greet(struct tt_door *door, int fd, const struct sockaddr *from)
{
	struct tt_tcp *net = tt_container_of(door, struct tt_tcp, door);
	struct tt_tcp_peer *p = begin_peer(net, true);
	union address a;

	if (!p) {
		close(fd);
		return;
	}
	copy_address(&a, from);
	name_address(&a, p->base.addr, sizeof p->base.addr);
	p->fd = fd;
	prepare_socket(net, fd);
	tt_tcp_watch(p, EPOLLIN);
}

const struct tt_door_calls tt_tcp_door = { .greet = greet, .say = say, .hear = hear, .proven = proven, .over = over };

void tt_tcp_free_addresses(struct tt_tcp_peer *p)
{
	if (p->lookup)
		tt_tcp_leave_lookup(p->lookup);
	if (p->addresses)
		freeaddrinfo(p->addresses);
	p->lookup = NULL;
	p->addresses = p->next_address = NULL;
}

static int map_error(int err) { return err == ETIMEDOUT ? -ETIMEDOUT : -EHOSTUNREACH; }

/* Starts connecting to the next address of the host. Returns -errno if none is left. */
static int try_next(struct tt_tcp_peer *p, int err)
{
	for (struct addrinfo *a; (a = p->next_address);) {
		p->next_address = a->ai_next;
		tt_tcp_close_socket(p);
		p->fd = socket(a->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
		if (p->fd >= 0) {
			prepare_socket(p->net, p->fd);
			if (!connect(p->fd, a->ai_addr, a->ai_addrlen) || errno == EINPROGRESS || errno == EINTR) {
				tt_tcp_watch(p, EPOLLOUT);
				return 0;
			}
		}
		err = errno;
	}
	return -err;
}

static bool allowed_without_secret(const struct addrinfo *list)
{
	union address a;

	for (; list; list = list->ai_next) {
		copy_address(&a, list->ai_addr);
		if (!is_loopback(&a))
			return false;
	}
	return true;
}

/* Connects to the addresses that were found; without a file left, or an address, returns -errno with a sentence. */
static int dial(struct tt_tcp_peer *p, struct addrinfo *found)
{
	p->addresses = p->next_address = found;
	if (!p->net->door.has_secret && !allowed_without_secret(found))
		return tt_fail(-EACCES, "will not connect to %s without a secret: set TUTTI_SECRET on both sides",
		               p->base.addr);
	int err = try_next(p, EHOSTUNREACH);
	if (err == -EMFILE || err == -ENFILE)
		return tt_fail(-EMFILE, "no file is left for a connection to %s: raise the limit with ulimit -n",
		               p->base.addr);
	if (err)
		tt_shake_give_up(&p->shake, map_error(-err), strerror(-err));
	return 0;
}

/* The descriptor of the lookup stands in for the socket: it becomes readable at the end. */
static int look_up(struct tt_tcp_peer *p, const char *addr)
{
	int err = tt_tcp_start_lookup(addr, &p->lookup, &p->fd);

	if (!err)
		tt_tcp_watch(p, EPOLLIN);
	return err;
}

int tt_tcp_connect(struct tt_net *base, const char *addr, struct tt_peer **out)
{
	struct tt_tcp *net = tt_container_of(base, struct tt_tcp, base);
	struct addrinfo *found;
	int err = tt_tcp_resolve(addr, AI_NUMERICHOST, &found);

	if (err && err != -EHOSTUNREACH)
		return err;
	struct tt_tcp_peer *p = begin_peer(net, false);
	if (!p) {
		if (!err)
			freeaddrinfo(found);
		return -ENOMEM;
	}
	snprintf(p->base.addr, sizeof p->base.addr, "%s", tt_tcp_after_scheme(addr));
	err = err ? look_up(p, addr) : dial(p, found);
	if (err) {
		tt_tcp_peer_free(p);
		return err;
	}
	*out = &p->base;
	return 0;
}

static bool finish_lookup(struct tt_tcp_peer *p)
{
	struct addrinfo *found = NULL;
	char why[200];
	int err = tt_tcp_end_lookup(p->lookup, &found, why);

	p->lookup = NULL;
	if (err)
		return tt_shake_give_up(&p->shake, -ENXIO, why);
	err = dial(p, found);
	return err ? tt_shake_give_up(&p->shake, err == -EACCES ? err : -EHOSTUNREACH, tt_why()) : false;
}

static bool finish_connect(struct tt_tcp_peer *p)
{
	int err = 0;
	socklen_t size = sizeof err;

	getsockopt(p->fd, SOL_SOCKET, SO_ERROR, &err, &size);
	if (err) {
		int last = try_next(p, err);
		return last ? tt_shake_give_up(&p->shake, map_error(-last), strerror(-last)) : false;
	}
	if (tt_shake_connected(&p->shake))
		tt_tcp_watch(p, EPOLLIN);
	return false;
}

bool tt_tcp_handshake(struct tt_tcp_peer *p)
{
	if (p->shake.stage != TT_STAGE_CONNECTING)
		return tt_shake_step(&p->shake);
	return p->lookup ? finish_lookup(p) : finish_connect(p);
}
