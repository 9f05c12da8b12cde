/* dial.h - sockets of TCP for any transport that connects through them: addresses, listening, connecting
 *
 *     accepted by the door -> tt_dial_accept() ----------------------------------+
 *     tt_dial_begin() -> the name is looked up -> each address in turn is tried -+-> tt_dial_step() -> tt_shake_step()
 *
 * Nothing blocks: the net's epoll reports what is awaited, with the struct tt_peer as its data, and the transport then
 * calls tt_dial_step(). An address is HOST:PORT, with or without the transport's name and a colon before it.
 */
#ifndef TT_DIAL_H
#define TT_DIAL_H
#include "transport/door.h"
#include <netinet/in.h>
#include <sys/socket.h>

struct addrinfo;

/* dial.c */
struct tt_dial { /* the socket of one connection, and its handshake; part of the transport's peer */
	struct tt_shake shake;
	int fd;                     /* the socket; or what tells that the lookup is over; -1: none */
	uint32_t watched;           /* the events of fd that the net's epoll reports */
	struct addrinfo *addresses, *address, *next_address; /* all of the host; the one that is tried now; the next */
	char tried[200];            /* those that failed, and why */
	struct tt_lookup *lookup;   /* while the host's name is looked up */
};

void tt_dial_init(struct tt_dial *, struct tt_door *, struct tt_flight *, bool accepted); /* begins the handshake */
/* The door's calls, of a transport that has make(). */
void tt_dial_greet(struct tt_door *, int fd, const struct sockaddr *from);
ssize_t tt_dial_say(struct tt_shake *, const void *, size_t);
ssize_t tt_dial_hear(struct tt_shake *, void *, size_t);
/* The user whose process has the other end of a connection within this host. -ENOENT: the other end is closed.
 * -EOPNOTSUPP: the kernel says so of no connection. Any other error, as -EMFILE: the kernel cannot be asked now. */
int tt_dial_user(struct tt_shake *, uid_t *user);
#define TT_DIAL_CALLS .greet = tt_dial_greet, .say = tt_dial_say, .hear = tt_dial_hear, .user = tt_dial_user
/* Starts connecting to addr with a new peer, which is named after it. 0: the peer comes up, or breaks, maybe before
 * this returns. -EINVAL: no address. -EACCES: addr is beyond this host, and there is no secret. -EMFILE, -ENOMEM,
 * -EAGAIN: no file, memory, thread is left */
int tt_dial_connect(struct tt_door *, const char *addr, struct tt_peer **);
/* Epoll has reported fd. true: the handshake is over, the connection is up. false: not yet, or the peer may be gone */
bool tt_dial_step(struct tt_dial *);
/* What epoll is to report of fd. On an error the peer has failed, or an accepted one is freed */
void tt_dial_watch(struct tt_dial *, uint32_t events);
void tt_dial_spare_port(int fd); /* the port that a socket gets when it connects stays free for who listens there */
/* Ends the handshake, closes the socket, calls the lookup off; may be called again. */
void tt_dial_end(struct tt_dial *);
bool tt_dial_within_host(const struct tt_dial *); /* both ends of the connection are on this host */

/* listen.c */
/* Listens as the config says, hands the socket to the door, writes net->addr. `iface` is an interface or an address
 * of this host. A listen_fd stays the caller's on an error. -EINVAL: no address, no TCP socket. -EHOSTUNREACH: no such
 * host. -ENODEV: no such interface. -EADDRINUSE: the port, or all `ports`. -EADDRNOTAVAIL: not this host's. -EACCES:
 * beyond this host without a secret */
int tt_listen(struct tt_door *, const struct tt_net_config *);
/* The socket alone, at the device or anywhere, for a later listen_fd; no `listen`. -errno: as above */
int tt_listen_open(const struct tt_net_config *);
bool tt_listens_at(int fd, const char *address); /* is fd a socket that listens at HOST:PORT, or everywhere at PORT? */
int tt_listen_devices(struct tt_device *, int max); /* the interfaces, as transport.h says of list() */

/* owner.c */
enum { TT_PORT_OWNER = 80 };
void tt_port_owner(unsigned port, char text[TT_PORT_OWNER]); /* who listens there: "process 71 (mean)", or as known */

/* resolve.c */
union tt_socket_address {
	struct sockaddr any;
	struct sockaddr_in v4;
	struct sockaddr_in6 v6;
};
/* The source is the resolver or an interface: it is no longer than its family needs. */
void tt_resolve_copy(union tt_socket_address *, const struct sockaddr *from);
socklen_t tt_resolve_size(const union tt_socket_address *);
unsigned tt_resolve_port(const union tt_socket_address *);
void tt_resolve_unmap(union tt_socket_address *); /* makes IPv4 of IPv4 in IPv6, which a dual-stack socket says */
bool tt_resolve_is_loopback(const union tt_socket_address *);
void tt_resolve_name(const union tt_socket_address *, char *text, size_t size); /* HOST:PORT, in numbers */
/* Each host has names of its own for its interfaces: in [fe80::7%eth0]:4000 replaces the interface by that of this
 * host's `own` address, if `own` has one. */
void tt_resolve_rezone(const char *own, const char *address, char text[96]);
const char *tt_resolve_after_scheme(const struct tt_net *, const char *text); /* its HOST:PORT */
/* HOST:PORT; flags as for getaddrinfo. A name waits for the name server, 10 s at most, unless AI_NUMERICHOST is among
 * them; not with the lock. -EINVAL: no address. -EHOSTUNREACH: no such host, or a name with AI_NUMERICHOST. -EAGAIN: no
 * name server answers now */
int tt_resolve(const char *address, int flags, struct addrinfo **);
/* Looks a name up on a thread of its own. *fd becomes readable when it is over; the caller closes it. -ENOMEM, -EMFILE,
 * -EAGAIN */
int tt_resolve_begin(const struct tt_net *, const char *text, struct tt_lookup **, int *fd);
int tt_resolve_end(struct tt_lookup *, struct addrinfo **, char why[200]); /* it is over: frees it */
void tt_resolve_leave(struct tt_lookup *); /* it may never be over: its thread frees it, and ends, by itself */
#endif
