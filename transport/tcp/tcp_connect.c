/* tcp_connect.c - what tcp does on the way to a connection; dial.h and door.h do the rest */
#include "transport/fork.h"
#include "transport/tcp/tcp_private.h"
#include <netinet/tcp.h>
#include <string.h>
#include <unistd.h>

static struct tt_tcp_peer *peer_of(struct tt_shake *h) { return tt_container_of(h, struct tt_tcp_peer, shake); }

static ssize_t say(struct tt_shake *h, const void *bytes, size_t n)
{
	return send(peer_of(h)->dial.fd, bytes, n, MSG_NOSIGNAL);
}
static ssize_t hear(struct tt_shake *h, void *bytes, size_t n) { return recv(peer_of(h)->dial.fd, bytes, n, 0); }

/* Within one host no queue has to be kept short. Reno, which every kernel has and which does not pace, is as good as
 * any there. A control that paces (BBR, if the host has it as default) costs up to a third of the rate. */
static void proven(struct tt_shake *h)
{
	const struct tt_dial *d = &peer_of(h)->dial;

	if (tt_dial_within_host(d) && setsockopt(d->fd, IPPROTO_TCP, TCP_CONGESTION, "reno", 4))
		tt_log(TT_DEBUG, "cannot choose the congestion control of a local connection: %s", strerror(errno));
}

static int find_user(struct tt_shake *h, uid_t *user) { return tt_dial_user(&peer_of(h)->dial, user); }

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
	struct tt_tcp_peer *p = tt_tcp_peer_new(tt_container_of(door, struct tt_tcp, door), true);

	if (p)
		tt_dial_accept(&p->dial, fd, from);
	else
		tt_fork_close(fd);
}

const struct tt_door_calls tt_tcp_door = {
	.greet = greet, .say = say, .hear = hear, .user = find_user, .proven = proven, .over = over,
};

int tt_tcp_connect(struct tt_net *base, const char *addr, struct tt_peer **out)
{
	struct tt_tcp_peer *p = tt_tcp_peer_new(tt_container_of(base, struct tt_tcp, base), false);

	if (!p)
		return -ENOMEM;
	int err = tt_dial_begin(&p->dial, addr);
	if (err) {
		tt_tcp_peer_free(p);
		return err;
	}
	*out = &p->base;
	return 0;
}
