/* door.h - how two nets connect: a listening socket that accepts strangers, and the handshake on each connection
 *
 *     initiator                    acceptor
 *        HELLO  ------------------>          with a HELLO goes what the transport says besides
 *               <------------------  HELLO
 *        PROOF  ------------------>          nothing is believed before the proof
 *               <------------------  PROOF
 *        READY  ------------------>          one byte, if last_word is set
 *
 * With a secret both ends prove that they know the secret. Without one a connection stays within the host, and both
 * ends must belong to one user, as the kernel says. Where the kernel says nothing of users, any local user may join.
 *
 * frame.h has the bytes. The transport owns the sockets: it connects, and it sends and receives what the door asks for.
 */
#ifndef TT_DOOR_H
#define TT_DOOR_H
#include "base/base.h"
#include "transport/flight.h"
#include <sys/types.h>

/* Accepted connections that may be in the handshake at once: the ranks of a large host that all connect to one of them
 * find room, and strangers take a quarter of 1024 files at most. */
enum { TT_DOOR_UNPROVEN = 256 };
/* How long a stranger keeps its place in a full house: where many processes share a core, each turn of an honest one
 * takes some hundred milliseconds. */
#define TT_DOOR_GRACE (1000 * TT_MS)

struct sockaddr;
struct tt_dial;
struct tt_door;

struct tt_shake { /* the handshake of one connection; part of the transport's peer */
	struct tt_door *door;
	struct tt_flight *ops;      /* has the peer, and how far the connection is */
	struct tt_list node;        /* in door->shakes, until the handshake is over */
	bool accepted;
	bool strange;               /* the other end is another user's, `user` */
	uid_t user;
	uint32_t epoch;             /* the other end's */
	uint64_t deadline;
	size_t got;                 /* bytes of the message that is awaited */
	uint8_t mine[TT_HELLO_SIZE], theirs[TT_HELLO_SIZE], proof[TT_PROOF_SIZE];
};

struct tt_door_calls {
	bool packets;               /* the sockets keep messages apart: a short one is wrong */
	/* READY is said; so is a wrong proof, in one byte in place of the acceptor's proof */
	bool last_word;
	bool quiet;                 /* refusals are logged for debugging only */
	/* Makes a peer and begins its handshake; NULL: it cannot. For tt_dial_greet() and tt_dial_connect() alone. */
	struct tt_dial *(*make)(struct tt_door *, bool accepted);
	/* Makes a peer for an accepted socket and begins its handshake, or closes the socket. */
	void (*greet)(struct tt_door *, int fd, const struct sockaddr *from);
	/* As send() and recv(). In TT_STAGE_HELLO the message is a HELLO, with what the transport says besides. */
	ssize_t (*say)(struct tt_shake *, const void *, size_t);
	ssize_t (*hear)(struct tt_shake *, void *, size_t);
	/* Without a secret: the user at the other end, as tt_dial_user(). NULL: the transport judges users itself. */
	int (*user)(struct tt_shake *, uid_t *user);
	/* Judges what came with a HELLO. NULL: it is good, or there is none; else why not. May be NULL. */
	const char *(*agree)(struct tt_shake *);
	/* The other end's proof is right; this end has not said its own last message yet. May be NULL. */
	void (*proven)(struct tt_shake *);
};

struct tt_door { /* of one net; zeroed, with a listen_fd of -1, it can be closed */
	struct tt_net *net;
	const struct tt_door_calls *calls;
	uint64_t job, timeout;      /* timeout: nanoseconds that a handshake may take */
	uint32_t epoch;
	unsigned timeout_ms;
	bool has_secret;
	uint8_t secret[32];         /* the hash of the job's secret */
	int listen_fd;
	uint64_t listen_again;      /* not 0: accepting is paused until then */
	unsigned unproven, refused; /* accepted connections in the handshake; how many were refused */
	unsigned lacks;             /* how often there was no file or memory for one */
	struct tt_list shakes;      /* in order of their deadlines */
};

int tt_door_open(struct tt_door *, struct tt_net *, const struct tt_net_config *, const struct tt_door_calls *);
int tt_door_listen(struct tt_door *, int fd); /* adds fd to the epoll of net->fd, with the door as its data; takes fd */
void tt_door_accept(struct tt_door *);
void tt_door_expire(struct tt_door *);        /* ends the handshakes that take too long */
bool tt_door_waits(const struct tt_door *);   /* has tt_door_expire() something to look at? */
void tt_door_close(struct tt_door *);
/* To the log: a warning for the first of them. */
void tt_door_refused(struct tt_door *, const char *who, const char *why);

void tt_shake_begin(struct tt_shake *, struct tt_door *, struct tt_flight *, bool accepted);
bool tt_shake_connected(struct tt_shake *);   /* the initiator's socket is connected: says HELLO */
/* a message has come. true: the handshake is over, the stage TT_STAGE_TERMS. false: the peer may be gone */
bool tt_shake_step(struct tt_shake *);
void tt_shake_closed(struct tt_shake *);      /* the other end has closed the connection, or its process has ended */
void tt_shake_refuse(struct tt_shake *, const char *why);            /* ends an accepted connection that is not up */
bool tt_shake_give_up(struct tt_shake *, int err, const char *why);  /* ends either; false */
/* This end cannot go on, and tt_fail() has said why. At any time, also when the connection is up. An accepted peer that
 * is not up is freed; any other peer has failed with err. */
void tt_shake_fail(struct tt_shake *, int err);
#endif
