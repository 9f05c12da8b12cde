/* listen.c - interfaces, and the address that a net listens on */
#include "transport/dial.h"
#include <arpa/inet.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

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

static bool is_bridge(const struct ifaddrs *i)
{
	char path[64];

	snprintf(path, sizeof path, "/sys/class/net/%.15s/bridge", i->ifa_name);
	return !access(path, F_OK);
}

/* Which address others rather reach. A cable comes before none. Bridges come last: docker0 and virbr0 are on many
 * hosts, with one address on all of them. IPv4 comes before IPv6, and link-local IPv6 last. */
static int rate(const struct ifaddrs *i)
{
	int family = i->ifa_addr->sa_family == AF_INET ? 3 : link_local(i) ? 1 : 2;

	return family + (is_bridge(i) ? 0 : 4) + (i->ifa_flags & IFF_RUNNING ? 8 : 0);
}

/* The best address of the interface `name`, or of any but loopback. */
static bool find_interface(const struct ifaddrs *all, const char *name, union tt_socket_address *out)
{
	int best = 0;

	for (const struct ifaddrs *i = all; i; i = i->ifa_next) {
		if (!usable(i) || (name ? strcmp(i->ifa_name, name) != 0 : (i->ifa_flags & IFF_LOOPBACK) != 0))
			continue;
		int rank = rate(i);
		if (rank > best) {
			best = rank;
			tt_resolve_copy(out, i->ifa_addr);
		}
	}
	return best > 0;
}

/* The bytes of an address without its port. */
static const uint8_t *bytes_of(const struct sockaddr *a, int *bits)
{
	*bits = a->sa_family == AF_INET6 ? 128 : 32;
	return a->sa_family == AF_INET6 ? ((const struct sockaddr_in6 *)(const void *)a)->sin6_addr.s6_addr
	                                : (const void *)&((const struct sockaddr_in *)(const void *)a)->sin_addr;
}

/* An address of this host in a network, "10.9.0.0/16" or "fd00::/64". -ENOENT: `text` is no network. */
static int find_network(const struct ifaddrs *all, const char *text, union tt_socket_address *out)
{
	struct addrinfo hints = { .ai_flags = AI_NUMERICHOST, .ai_socktype = SOCK_STREAM }, *found;
	union tt_socket_address net;
	const char *slash = strchr(text, '/');
	char host[64], *end = NULL;
	int most, bits;

	snprintf(host, sizeof host, "%.*s", slash ? (int)tt_min((size_t)(slash - text), sizeof host - 1) : 0, text);
	long width = slash ? strtol(slash + 1, &end, 10) : -1;
	if (!slash || end == slash + 1 || *end || getaddrinfo(host, NULL, &hints, &found))
		return -ENOENT;
	tt_resolve_copy(&net, found->ai_addr);
	freeaddrinfo(found);
	const uint8_t *of = bytes_of(&net.any, &most);
	if (width < 0 || width > most)
		return tt_fail(-EINVAL, "TUTTI_IFACE names the network %s, whose width must be from 0 to %d", text,
		               most);
	for (const struct ifaddrs *i = all; i; i = i->ifa_next) {
		if (!usable(i) || i->ifa_addr->sa_family != net.any.sa_family)
			continue;
		const uint8_t *mine = bytes_of(i->ifa_addr, &bits);
		size_t whole = (size_t)width / 8;
		unsigned rest = 0xff & 0xff00 >> width % 8;
		if (memcmp(mine, of, whole) || (rest && (mine[whole] ^ of[whole]) & rest))
			continue;
		tt_resolve_copy(out, i->ifa_addr);
		return 0;
	}
	return tt_fail(-EADDRNOTAVAIL, "TUTTI_IFACE names the network %s, and no address of this host is in it", text);
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
	char text[32];

	if (!tt_read_text(text, sizeof text, "/sys/class/net/%s/%s", interface, what))
		return fallback;
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

int tt_listen_devices(struct tt_device *list, int max)
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

static void set_port(union tt_socket_address *a, unsigned port)
{
	if (a->any.sa_family == AF_INET6)
		a->v6.sin6_port = htons((uint16_t)port);
	else
		a->v4.sin_port = htons((uint16_t)port);
}

static bool is_wildcard(const union tt_socket_address *a)
{
	return a->any.sa_family == AF_INET6 ? IN6_IS_ADDR_UNSPECIFIED(&a->v6.sin6_addr)
	                                    : a->v4.sin_addr.s_addr == htonl(INADDR_ANY);
}

/* `iface` is an address of this host, a network that has one, or the name of an interface. */
static int find_iface(const char *iface, union tt_socket_address *out)
{
	struct addrinfo hints = { .ai_flags = AI_NUMERICHOST, .ai_socktype = SOCK_STREAM }, *found;
	struct ifaddrs *all;

	memset(out, 0, sizeof *out);
	if (!getaddrinfo(iface, NULL, &hints, &found)) {
		tt_resolve_copy(out, found->ai_addr);
		tt_resolve_unmap(out);
		freeaddrinfo(found);
		return 0;
	}
	if (getifaddrs(&all))
		return tt_fail(-errno, "cannot list the network interfaces: %s", strerror(errno));
	int err = find_network(all, iface, out);
	if (err == -ENOENT)
		err = find_interface(all, iface, out) ? 0 : unknown_interface(all, iface);
	freeifaddrs(all);
	return err;
}

static void set_loopback(union tt_socket_address *a)
{
	memset(a, 0, sizeof *a);
	a->v4.sin_family = AF_INET;
	a->v4.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
}

static void set_wildcard(union tt_socket_address *a)
{
	int fd = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);

	memset(a, 0, sizeof *a);
	a->any.sa_family = fd < 0 ? AF_INET : AF_INET6; /* all zeros is the wildcard of both */
	if (fd >= 0)
		close(fd);
}

/* Binds and listens. On error it returns -errno without a sentence: a busy port may be no error. */
static int listen_at(const union tt_socket_address *a)
{
	int fd = tt_high_file(socket(a->any.sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0)), on = 1, off = 0;

	if (fd < 0)
		return -errno;
	setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
	if (a->any.sa_family == AF_INET6)
		setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, is_wildcard(a) ? &off : &on, sizeof on);
	if (!bind(fd, &a->any, tt_resolve_size(a)) && !listen(fd, SOMAXCONN))
		return fd;
	int err = -errno;
	close(fd);
	return err;
}

static int cannot_listen(const union tt_socket_address *a, int err)
{
	char text[96], owner[TT_PORT_OWNER];

	tt_resolve_name(a, text, sizeof text);
	if (err == -EADDRINUSE) {
		tt_port_owner(tt_resolve_port(a), owner);
		return tt_fail(err, "cannot listen on %s: the port is in use by %s; a job needs a port of its own: set "
		               "TUTTI_BOOT=HOST:PORT, MASTER_PORT or the list of nodes, which names it (a program "
		               "that a rank starts gets its own job by `tutti run`)", text, owner);
	}
	if (err == -EADDRNOTAVAIL)
		return tt_fail(err, "cannot listen on %s: this host has no such address; TUTTI_IFACE names one", text);
	return tt_fail(err, "cannot listen on %s: %s", text, strerror(-err));
}

static int listen_in_range(union tt_socket_address *a, const int ports[2])
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
	tt_resolve_name(a, text, sizeof text);
	*strrchr(text, ':') = 0;
	return tt_fail(fd, "no port from %d to %d is free on %s: give a wider range in TUTTI_PORTS", ports[0], ports[1],
	               text);
}

static int no_secret(const union tt_socket_address *a)
{
	char text[96];

	tt_resolve_name(a, text, sizeof text);
	return tt_fail(-EACCES, "will not listen on %s without a secret: set TUTTI_SECRET, or stay on 127.0.0.1", text);
}

/* A name may have several addresses, or, as Debian writes it into /etc/hosts, 127.0.1.1 alone: then other hosts reach
 * this host at another address. An address and "localhost" mean themselves. */
static bool means_host(const char *text, const struct addrinfo *found)
{
	union tt_socket_address a;
	struct addrinfo *number;
	bool several = false;

	if (!strncmp(text, "localhost:", 10))
		return false;
	if (!tt_resolve(text, AI_NUMERICHOST, &number)) {
		freeaddrinfo(number);
		return false;
	}
	for (const struct addrinfo *i = found->ai_next; i; i = i->ai_next)
		several |= i->ai_addrlen != found->ai_addrlen || memcmp(i->ai_addr, found->ai_addr, i->ai_addrlen);
	tt_resolve_copy(&a, found->ai_addr);
	return several || tt_resolve_is_loopback(&a);
}

static int parse_listen(const struct tt_net *net, const struct tt_net_config *c, union tt_socket_address *a)
{
	const char *text = tt_resolve_after_scheme(net, c->listen);
	struct addrinfo *found;
	bool any = (*text == ':' && !strchr(text + 1, ':')) || *text == '*';
	char local[16];

	if (any) { /* no host: all interfaces, or loopback if there is no secret */
		snprintf(local, sizeof local, "127.0.0.1%.6s", text + (*text == '*'));
		text = local;
	}
	int err = tt_resolve(text, AI_PASSIVE, &found);
	if (err)
		return err == -EAGAIN ? -EHOSTUNREACH : err;
	tt_resolve_copy(a, found->ai_addr);
	tt_resolve_unmap(a); /* a socket of IPv6 alone cannot listen at [::ffff:10.0.0.7] */
	any |= means_host(text, found);
	freeaddrinfo(found);
	if (any && c->secret) {
		unsigned port = tt_resolve_port(a);
		set_wildcard(a);
		set_port(a, port);
	}
	return 0;
}

static int choose_address(const struct tt_net *net, const struct tt_net_config *c, union tt_socket_address *a)
{
	if (c->listen)
		return parse_listen(net, c, a);
	if (c->iface)
		return find_iface(c->iface, a);
	if (c->secret)
		set_wildcard(a);
	else
		set_loopback(a);
	return 0;
}

static int listen_somewhere(const struct tt_net *net, const struct tt_net_config *c, union tt_socket_address *a)
{
	/* a wrong name is an error, even if it is not used */
	int err = c->listen && c->iface ? find_iface(c->iface, a) : 0;

	if (!err)
		err = choose_address(net, c, a);
	if (err)
		return err;
	if (!c->secret && !tt_resolve_is_loopback(a))
		return no_secret(a);
	if (!c->listen && c->ports[0] > 0)
		return listen_in_range(a, c->ports);
	int fd = listen_at(a);
	return fd < 0 ? cannot_listen(a, fd) : fd;
}

/* A name is not looked up: the port must do. */
bool tt_listens_at(int fd, const char *address)
{
	union tt_socket_address a = { 0 };
	socklen_t size = sizeof a, word = sizeof(int);
	const char *port = strrchr(address, ':');
	char here[96], host[64] = "";
	struct in_addr v4;
	int listens = 0;

	if (getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &word) || !listens || getsockname(fd, &a.any, &size) ||
	    (a.any.sa_family != AF_INET && a.any.sa_family != AF_INET6))
		return false;
	if (!port || tt_resolve_port(&a) != strtoul(port + 1, NULL, 10))
		return false;
	snprintf(host, sizeof host, "%.*s", (int)(port - address), address);
	tt_resolve_name(&a, here, sizeof here);
	return is_wildcard(&a) || (*host != '[' && inet_pton(AF_INET, host, &v4) != 1) || !strcmp(here, address);
}

static int take_listener(const struct tt_net_config *c, union tt_socket_address *a)
{
	socklen_t size = sizeof *a;

	memset(a, 0, sizeof *a);
	if (getsockname(c->listen_fd, &a->any, &size))
		return tt_fail(-errno, "descriptor %d is no listening socket: %s", c->listen_fd, strerror(errno));
	if (a->any.sa_family != AF_INET && a->any.sa_family != AF_INET6)
		return tt_fail(-EINVAL, "descriptor %d is no TCP socket", c->listen_fd);
	if (!c->secret && !tt_resolve_is_loopback(a))
		return no_secret(a);
	fcntl(c->listen_fd, F_SETFL, fcntl(c->listen_fd, F_GETFL) | O_NONBLOCK);
	fcntl(c->listen_fd, F_SETFD, FD_CLOEXEC);
	return c->listen_fd;
}

/* The address of this host from which packets to that place leave, by the kernel's routes. Nothing is sent. */
static bool find_route(const struct tt_net *net, const char *toward, union tt_socket_address *out)
{
	union tt_socket_address a = { 0 };
	socklen_t size = sizeof a;
	struct addrinfo *found;
	bool good = false;

	toward = tt_resolve_after_scheme(net, toward);
	if (*toward == '*' || *toward == ':' || tt_resolve(toward, 0, &found))
		return false;
	for (const struct addrinfo *i = found; i && !good; i = i->ai_next) {
		int fd = socket(i->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
		size = sizeof a;
		good = fd >= 0 && !connect(fd, i->ai_addr, i->ai_addrlen) && !getsockname(fd, &a.any, &size) &&
		       !tt_resolve_is_loopback(&a);
		if (fd >= 0)
			close(fd);
	}
	freeaddrinfo(found);
	if (good) {
		tt_resolve_unmap(&a);
		*out = a;
	}
	return good;
}

/* The address of the default route, else the best interface's. A net that listens on IPv4 alone gets no address of
 * IPv6. The addresses are those of documents: nobody has them. */
static bool find_outward(const struct tt_net *net, union tt_socket_address *a)
{
	bool v4 = a->any.sa_family == AF_INET, found = false;
	struct ifaddrs *all;

	if (find_route(net, "192.0.2.1:9", a) || (!v4 && find_route(net, "[2001:db8::1]:9", a)))
		return true;
	if (!getifaddrs(&all)) {
		found = find_interface(all, NULL, a);
		freeifaddrs(all);
	}
	return found;
}

/* A net that listens everywhere is reached at the named interface, else at the address that leads to the others, else
 * at the address of the default route or at the best interface. */
static int advertise(struct tt_net *net, const struct tt_net_config *c, union tt_socket_address *a)
{
	unsigned port = tt_resolve_port(a);

	if (is_wildcard(a) && c->iface) {
		int err = find_iface(c->iface, a);
		if (err)
			return err;
	} else if (is_wildcard(a) && !(c->toward && find_route(net, c->toward, a)) && !find_outward(net, a))
		set_loopback(a);
	set_port(a, port);
	size_t n = (size_t)snprintf(net->addr, sizeof net->addr, "%s:", net->transport->name);
	tt_resolve_name(a, net->addr + n, sizeof net->addr - n);
	return 0;
}

int tt_listen_open(const struct tt_net_config *c)
{
	union tt_socket_address a;

	return listen_somewhere(NULL, c, &a);
}

/* A descriptor that was handed in stays the caller's until all else has succeeded. */
int tt_listen(struct tt_door *door, const struct tt_net_config *c)
{
	union tt_socket_address a;
	socklen_t size = sizeof a;
	int fd = c->listen_fd >= 0 ? take_listener(c, &a) : listen_somewhere(door->net, c, &a), err;

	if (fd < 0)
		return fd;
	if (getsockname(fd, &a.any, &size))
		err = tt_fail(-errno, "cannot read the address of a listening socket: %s", strerror(errno));
	else
		err = advertise(door->net, c, &a);
	if (!err)
		err = tt_door_listen(door, fd);
	if (err && fd != c->listen_fd)
		close(fd);
	return err;
}
