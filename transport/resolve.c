/* resolve.c - from the text of an address to the addresses of sockets, and back
 *
 * A name server may take half a minute, or may never answer, and getaddrinfo() cannot be called off. So a name is
 * looked up on a thread of its own, which touches nothing but the struct of the lookup. Its peer may go first, and the
 * net: whoever of the two lets go of the struct last frees it.
 */
#include "transport/dial.h"
#include <fcntl.h>
#include <net/if.h>
#include <netdb.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

enum { PATIENCE_MS = 10000 };

/* Addresses */

socklen_t tt_resolve_size(const union tt_socket_address *a)
{
	return a->any.sa_family == AF_INET6 ? sizeof a->v6 : sizeof a->v4;
}

unsigned tt_resolve_port(const union tt_socket_address *a)
{
	return ntohs(a->any.sa_family == AF_INET6 ? a->v6.sin6_port : a->v4.sin_port);
}

void tt_resolve_copy(union tt_socket_address *to, const struct sockaddr *from)
{
	memset(to, 0, sizeof *to);
	to->any.sa_family = from->sa_family;
	memcpy(to, from, tt_resolve_size(to));
}

void tt_resolve_unmap(union tt_socket_address *a)
{
	struct sockaddr_in v4 = { .sin_family = AF_INET };

	if (a->any.sa_family != AF_INET6 || !IN6_IS_ADDR_V4MAPPED(&a->v6.sin6_addr))
		return;
	v4.sin_port = a->v6.sin6_port;
	memcpy(&v4.sin_addr, &a->v6.sin6_addr.s6_addr[12], 4);
	a->v4 = v4;
}

bool tt_resolve_is_loopback(const union tt_socket_address *from)
{
	union tt_socket_address a = *from;

	tt_resolve_unmap(&a);
	return a.any.sa_family == AF_INET6 ? IN6_IS_ADDR_LOOPBACK(&a.v6.sin6_addr)
	                                   : ntohl(a.v4.sin_addr.s_addr) >> 24 == 127;
}

void tt_resolve_name(const union tt_socket_address *from, char *text, size_t size)
{
	char host[NI_MAXHOST];
	union tt_socket_address a = *from;

	tt_resolve_unmap(&a);
	if (getnameinfo(&a.any, tt_resolve_size(&a), host, sizeof host, NULL, 0, NI_NUMERICHOST))
		snprintf(host, sizeof host, "?");
	snprintf(text, size, a.any.sa_family == AF_INET6 ? "[%.70s]:%u" : "%.70s:%u", host, tt_resolve_port(&a));
}

void tt_resolve_rezone(const char *own, const char *address, char text[96])
{
	const char *zone = strchr(address, '%'), *end = zone ? strchr(zone, ']') : NULL, *mine = strchr(own, '%');

	if (end && mine)
		snprintf(text, 96, "%.*s%.*s%s", (int)(zone - address), address, (int)strcspn(mine, "]"), mine, end);
	else
		snprintf(text, 96, "%s", address);
}

/* Names of hosts */

struct tt_lookup {
	_Atomic bool left;  /* by the thread, or by the peer */
	struct tt_task *thread;
	int end;            /* of a pipe; closed when the lookup is over */
	char address[96], why[200];
	int err;
	struct addrinfo *found;
};

const char *tt_resolve_after_scheme(const struct tt_net *net, const char *text)
{
	size_t n = strlen(net->transport->name);

	return strncmp(text, net->transport->name, n) || text[n] != ':' ? text : text + n + 1;
}

static int resolve(const char *address, int flags, struct addrinfo **out)
{
	struct addrinfo hints = { .ai_flags = flags | AI_NUMERICSERV, .ai_socktype = SOCK_STREAM };
	char host[256], port[6];
	int err = tt_address_split(address, host, sizeof host, port);

	if (err)
		return err;
	if (!*host && !(flags & AI_PASSIVE))
		return tt_fail(-EINVAL, "'%s' names no host: write HOST:PORT", address);
	if (!(err = getaddrinfo(*host ? host : NULL, port, &hints, out)))
		return 0;
	const char *zone = strchr(host, '%');
	if (zone && !if_nametoindex(zone + 1))
		return tt_fail(-EINVAL, "'%s': this host has no interface %s, which must be one of this host's own",
		               address, zone + 1);
	return tt_fail(err == EAI_AGAIN ? -EAGAIN : -EHOSTUNREACH, "cannot resolve the host of '%s': %s", address,
	               gai_strerror(err));
}

static void let_go(struct tt_lookup *l)
{
	if (!atomic_exchange(&l->left, true))
		return;
	if (l->found)
		freeaddrinfo(l->found);
	free(l);
}

static void look_up(void *arg)
{
	struct tt_lookup *l = arg;
	uint64_t one = 1;
	int end = l->end;

	l->err = resolve(l->address, 0, &l->found);
	if (l->err)
		snprintf(l->why, sizeof l->why, "%s", tt_why());
	let_go(l);
	(void)!write(end, &one, sizeof one); /* the peer is told: also if a fork's child has the descriptor, too */
	close(end);
}

static int begin(const char *text, struct tt_lookup **out, int *fd)
{
	struct tt_lookup *l = calloc(1, sizeof *l);
	int event = tt_eventfd("a look-up"), err = event;

	if (!l) {
		close(event);
		return tt_fail(-ENOMEM, "no memory to look up %s", text);
	}
	snprintf(l->address, sizeof l->address, "%s", text);
	l->end = event < 0 ? -1 : fcntl(event, F_DUPFD_CLOEXEC, 3); /* the thread's own: it may outlive the peer */
	if (event >= 0 && l->end < 0)
		err = tt_fail(-errno, "no file is left to look up %s: %s%s", text, strerror(errno),
		              tt_files_hint(errno));
	else if (event >= 0)
		err = tt_spawn(look_up, l, &l->thread);
	if (err < 0) {
		close(event);
		close(l->end);
		free(l);
		return err;
	}
	*out = l;
	*fd = event;
	return 0;
}

int tt_resolve_begin(const struct tt_net *net, const char *text, struct tt_lookup **out, int *fd)
{
	return begin(tt_resolve_after_scheme(net, text), out, fd);
}

int tt_resolve_end(struct tt_lookup *l, struct addrinfo **out, char why[200])
{
	int err;

	tt_join(l->thread); /* what it wrote is seen from here on */
	err = l->err;
	*out = l->found;
	l->found = NULL;
	memcpy(why, l->why, sizeof l->why);
	let_go(l);
	return err;
}

void tt_resolve_leave(struct tt_lookup *l)
{
	tt_detach(l->thread);
	let_go(l);
}

static int wait_for_name(const char *address, struct addrinfo **out)
{
	struct pollfd p = { .events = POLLIN };
	uint64_t end = tt_now() + TT_MS * PATIENCE_MS;
	struct tt_lookup *l;
	char why[200];
	int n, err = begin(address, &l, &p.fd);

	if (err)
		return err;
	n = tt_hook_poll_files(&p, 1, end);
	close(p.fd);
	if (n > 0)
		return (err = tt_resolve_end(l, out, why)) ? tt_fail(err, "%s", why) : 0;
	tt_resolve_leave(l);
	if (n == -EINTR)
		return n;
	return tt_fail(-EAGAIN, "no name server has answered for '%s' within %d s: is /etc/resolv.conf right?", address,
	               PATIENCE_MS / 1000);
}

/* A numeric address never waits for a name server. */
int tt_resolve(const char *address, int flags, struct addrinfo **out)
{
	int err = resolve(address, flags | AI_NUMERICHOST, out);

	return err == -EHOSTUNREACH && !(flags & AI_NUMERICHOST) ? wait_for_name(address, out) : err;
}
