/* network.c - whether this host reaches itself over each interface, has ports to listen on, and what its names mean */
#include "tools/doctor/doctor.h"
#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

enum { CONNECT_MS = 1500, NAMES_MS = 5000, PORTS_TRIED = 256 };

struct place { /* an address with room for each family */
	union {
		struct sockaddr any;
		struct sockaddr_in v4;
		struct sockaddr_in6 v6;
	} at;
	socklen_t size;
	char text[INET6_ADDRSTRLEN];
};

static bool take_place(const struct sockaddr *from, struct place *p)
{
	memset(p, 0, sizeof *p);
	if (!from || (from->sa_family != AF_INET && from->sa_family != AF_INET6))
		return false;
	p->size = from->sa_family == AF_INET ? sizeof p->at.v4 : sizeof p->at.v6;
	memcpy(&p->at, from, p->size);
	return inet_ntop(from->sa_family, from->sa_family == AF_INET ? (void *)&p->at.v4.sin_addr : &p->at.v6.sin6_addr,
	                 p->text, sizeof p->text);
}

static void set_port(struct place *p, int port)
{
	if (p->at.any.sa_family == AF_INET)
		p->at.v4.sin_port = htons((uint16_t)port);
	else
		p->at.v6.sin6_port = htons((uint16_t)port);
}

/* TUTTI_PORTS, which has been judged; 0 and 0: any, also where this job's ranks have them already. */
static void read_ports(const struct tt_doctor *d, int ports[2])
{
	const char *text = tt_setting(&d->settings, TT_PORTS);

	ports[0] = ports[1] = 0;
	if (text && !d->ports_are_held && sscanf(text, "%d-%d", &ports[0], &ports[1]) == 1)
		ports[1] = ports[0];
}

/* Binds as ranks do: also to a port that a job has just left. */
static int bind_to(int fd, const struct sockaddr *at, socklen_t size)
{
	int one = 1;

	return setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one) || bind(fd, at, size);
}

/* A socket that listens at the first free port, which p then has; -1. */
static int listen_at(struct place *p, const int ports[2])
{
	int fd = socket(p->at.any.sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	socklen_t size = p->size;

	for (int port = ports[0]; fd >= 0 && port <= ports[1]; port++) {
		set_port(p, port);
		if (!bind_to(fd, &p->at.any, p->size) && !listen(fd, 1) && !getsockname(fd, &p->at.any, &size))
			return fd;
	}
	if (fd >= 0)
		close(fd);
	return -1;
}

static int connect_to(const struct place *p) /* 0 or an errno */
{
	int fd = socket(p->at.any.sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0), err = 0;
	struct pollfd wait = { .fd = fd, .events = POLLOUT };
	socklen_t size = sizeof err;

	if (fd < 0)
		return errno;
	if (connect(fd, &p->at.any, p->size) && errno != EINPROGRESS)
		err = errno;
	else if (poll(&wait, 1, CONNECT_MS) != 1)
		err = ETIMEDOUT;
	else if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &err, &size))
		err = errno;
	close(fd);
	return err;
}

static void try_interface(struct tt_doctor *d, const struct ifaddrs *i, struct place *p)
{
	int ports[2], fd, err;

	read_ports(d, ports);
	if ((fd = listen_at(p, ports)) < 0) {
		tt_doctor_say(d, TT_FINDING, "network",
		              "nothing can listen at %s (%s)%s%s: %s: choose another interface with "
		              "TUTTI_IFACE, or free ports",
		              p->text, i->ifa_name, ports[0] ? " on ports " : "",
		              ports[0] ? tt_setting(&d->settings, TT_PORTS) : "", strerror(errno));
		return;
	}
	if ((err = connect_to(p)))
		tt_doctor_say(d, TT_FINDING, "network",
		              "this host does not reach itself at %s (%s), port %d: %s: let its firewall "
		              "accept TCP on %s",
		              p->text, i->ifa_name, ntohs(p->at.v4.sin_port), strerror(err),
		              ports[0] ? "the ports of TUTTI_PORTS"
		                       : "the ports that ranks use, which TUTTI_PORTS bounds");
	else
		tt_doctor_say(d, TT_FINE, "network", "%s (%s) accepts connections of this host; MTU %u", p->text,
		              i->ifa_name, tt_doctor_mtu(p->text));
	close(fd);
}

int tt_doctor_connect(const char *address)
{
	struct place p = { .size = 0 };
	char host[96], port[6];

	if (tt_address_split(address, host, sizeof host, port))
		return EINVAL;
	if (inet_pton(AF_INET, host, &p.at.v4.sin_addr) == 1) {
		p.at.any.sa_family = AF_INET;
		p.size = sizeof p.at.v4;
	} else if (inet_pton(AF_INET6, host, &p.at.v6.sin6_addr) == 1) {
		p.at.any.sa_family = AF_INET6;
		p.size = sizeof p.at.v6;
	} else {
		return EINVAL; /* an address with an interface behind it: nobody says that it is wrong */
	}
	set_port(&p, atoi(port));
	return connect_to(&p);
}

static bool is_link_local(const struct place *p)
{
	return p->at.any.sa_family == AF_INET6 && IN6_IS_ADDR_LINKLOCAL(&p->at.v6.sin6_addr);
}

static void try_interfaces(struct tt_doctor *d)
{
	struct ifaddrs *all = NULL;
	struct place p;
	int beyond = 0, loopback = 0;

	if (getifaddrs(&all))
		return;
	for (const struct ifaddrs *i = all; i; i = i->ifa_next)
		if (i->ifa_flags & IFF_UP && take_place(i->ifa_addr, &p) && !is_link_local(&p)) {
			beyond += !(i->ifa_flags & IFF_LOOPBACK);
			loopback += (i->ifa_flags & IFF_LOOPBACK) != 0;
			try_interface(d, i, &p);
		}
	if (!loopback)
		tt_doctor_say(d, TT_FINDING, "network",
		              "the loopback is down, and ranks of one host meet there: ip link set lo up");
	if (!beyond)
		tt_doctor_say(d, TT_NOTE, "network", "this host has no interface but loopback: jobs stay on it");
	freeifaddrs(all);
}

/* Is "10.0.0.7:4000", "[fe80::7]:4000" or a bare address at that host? */
static bool is_at(const char *address, const char *host)
{
	bool bracket = *address == '[';
	size_t n = strlen(host);
	char end;

	if (strncmp(address + bracket, host, n))
		return false;
	end = address[bracket + n];
	return !end || end == (bracket ? ']' : strchr(host, ':') ? 0 : ':');
}

unsigned tt_doctor_mtu(const char *address)
{
	struct ifaddrs *all = NULL;
	char path[128], text[32];
	struct place p;
	unsigned mtu = 0;

	if (getifaddrs(&all))
		return 0;
	for (const struct ifaddrs *i = all; i && !mtu; i = i->ifa_next) {
		if (!take_place(i->ifa_addr, &p) || !is_at(address, p.text))
			continue;
		snprintf(path, sizeof path, "/sys/class/net/%s/mtu", i->ifa_name);
		if (tt_doctor_read(path, text, sizeof text))
			mtu = (unsigned)strtoul(text, NULL, 10);
	}
	freeifaddrs(all);
	return mtu;
}

/* ---- ports ---- */

static void judge_ports(struct tt_doctor *d)
{
	int ports[2], free_ports = 0, tried = 0;
	struct sockaddr_in at = { .sin_family = AF_INET, .sin_addr = { htonl(INADDR_ANY) } };

	read_ports(d, ports);
	for (int port = ports[0]; ports[0] && port <= ports[1] && tried < PORTS_TRIED; port++, tried++) {
		int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
		at.sin_port = htons((uint16_t)port);
		free_ports += fd >= 0 && !bind_to(fd, (struct sockaddr *)&at, sizeof at);
		if (fd >= 0)
			close(fd);
	}
	if (tried && free_ports < d->ranks)
		tt_doctor_say(d, TT_FINDING, "ports",
		              "of TUTTI_PORTS=%s %d port%s free, and each of %d rank%s of this host needs "
		              "one: widen the range",
		              tt_setting(&d->settings, TT_PORTS), free_ports, free_ports == 1 ? " is" : "s are",
		              d->ranks, d->ranks == 1 ? "" : "s");
	else if (tried)
		tt_doctor_say(d, TT_FINE, "ports", "%d of TUTTI_PORTS=%s are free", free_ports,
		              tt_setting(&d->settings, TT_PORTS));
}

/* ---- names ---- */

static struct {
	char name[256], list[256];
	int err, addresses, loopback, over; /* over: an eventfd */
} names;

static void look_up(void *unused)
{
	struct addrinfo hints = { .ai_socktype = SOCK_STREAM }, *all = NULL;
	uint64_t one = 1;
	struct place p;

	(void)unused;
	names.err = getaddrinfo(names.name, NULL, &hints, &all);
	for (const struct addrinfo *a = names.err ? NULL : all; a; a = a->ai_next)
		if (take_place(a->ai_addr, &p)) {
			size_t at = strlen(names.list);
			snprintf(names.list + at, sizeof names.list - at, "%s%s", at ? ", " : "", p.text);
			names.addresses++;
			names.loopback += !strncmp(p.text, "127.", 4) || !strcmp(p.text, "::1");
		}
	if (!names.err)
		freeaddrinfo(all);
	(void)!write(names.over, &one, sizeof one);
}

/* Is TUTTI_BOOT at this host's name? */
static bool meets_here(const struct tt_doctor *d)
{
	const char *boot = tt_setting(&d->settings, TT_BOOT), *end = boot ? strrchr(boot, ':') : NULL;

	return end && (size_t)(end - boot) == strlen(names.name) && !strncmp(boot, names.name, strlen(names.name));
}

static void judge_names(struct tt_doctor *d)
{
	struct tt_task *task;
	struct pollfd wait;

	if (gethostname(names.name, sizeof names.name - 1) || (names.over = eventfd(0, EFD_CLOEXEC)) < 0)
		return;
	if (tt_spawn(look_up, NULL, &task))
		return;
	tt_detach(task);
	wait = (struct pollfd){ .fd = names.over, .events = POLLIN };
	if (poll(&wait, 1, NAMES_MS) != 1)
		tt_doctor_say(d, TT_FINDING, "names",
		              "the name server has not said within %d s what %s is: see /etc/resolv.conf, or "
		              "write the hosts into /etc/hosts",
		              NAMES_MS / 1000, names.name);
	else if (names.err)
		tt_doctor_say(d, meets_here(d) ? TT_FINDING : TT_NOTE, "names",
		              "this host's own name, %s, is unknown (%s): write "
		              "the name into /etc/hosts, or give jobs an address in TUTTI_BOOT",
		              names.name, gai_strerror(names.err));
	else if (names.loopback == names.addresses)
		tt_doctor_say(d, meets_here(d) ? TT_FINDING : TT_NOTE, "names",
		              "this host's own name, %s, means %s, where other "
		              "hosts do not find it: in TUTTI_BOOT write an address, or the name that others know",
		              names.name, names.list);
	else
		tt_doctor_say(d, names.addresses > 1 ? TT_NOTE : TT_FINE, "names", "%s is %s%s", names.name, names.list,
		              names.addresses > 1 ? "; TUTTI_IFACE chooses" : "");
}

void tt_doctor_network(struct tt_doctor *d)
{
	try_interfaces(d);
	judge_ports(d);
	judge_names(d);
}
