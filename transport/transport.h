/* transport.h - the whole contract between the runtime and a wire.
 *
 * A wire moves bytes between two processes; it knows no rank, no window and no pattern.
 *
 * Completion. Each posted op gets exactly one done(), from progress() or disconnect(), never from inside post(). After
 *   it, whether err is 0 or not, the net touches `local` no more. With err 0, every NOTIFY or SEND that I post
 *   afterwards, and every GET or ADD that I start afterwards, sees the bytes; the target's own loads see them after
 *   such a notify or message. A bad argument takes the same path: post() never fails, done() says why.
 * Ordering. A SEND or a NOTIFY arrives after all PUTs posted earlier to that peer have landed, and SENDs and NOTIFYs
 *   arrive in the order posted. Nothing else is ordered.
 * Tearing. A PUT or GET of exactly 8 bytes, aligned at both ends, is one load and one store. Longer ones land in any
 *   pieces, byte by byte. But a GET takes each aligned word of 8 bytes as it is at one moment, if its owner changes it whole, between
 *   two calls of progress().
 * ADD runs with the compiler's atomics on a uint64_t, on the owner's CPU or, where memory is shared, on the caller's; it is
 *   atomic with the owner's own such atomics.
 * Failure. A transport retries what its wire retries and never reconnects. When a peer fails, every outstanding op on
 *   it gets done(-ECONNRESET) in post order, then down() comes once; later posts get done(-ENOTCONN). After down() that
 *   peer reaches none of my memory. A failed op may or may not have happened. A key that was deregistered gives
 *   -ESTALE, a range outside the key's -ERANGE, a malformed argument -EINVAL: such an op touches no memory and hurts no
 *   other. Silence is not noticed here.
 * Threads. A net is entered by one thread at a time. No locks and no hidden threads below. The events and done() are
 *   called on that thread; they may call post, connect, reg and dereg; not progress, disconnect or close.
 * Reachability. No capability flags: all four kinds are mandatory. No post before up(). down(-EHOSTUNREACH) after a
 *   connect() means that this wire does not lead there: ask the next one.
 */
#ifndef TT_TRANSPORT_H
#define TT_TRANSPORT_H
#include <stddef.h>
#include <stdint.h>

struct tt_net;  /* one opened wire: a NIC, a socket set, a simulated rank */
struct tt_peer; /* a reliable channel to one remote net */

struct tt_mem { /* memory, before it is registered */
	void *base;
	size_t len;
	int gpu;            /* device number, or -1 for host memory */
	int fd;             /* a memfd or dma-buf naming the same bytes, or -1 */
	uint64_t fd_offset;
};

struct tt_key { /* names a remote region; plain bytes, travels by any road */
	uint64_t len; /* bytes in the region */
	uint8_t raw[56];
};

struct tt_region { /* memory, once registered with one net */
	struct tt_net *net;
	struct tt_mem mem;
	struct tt_key key; /* only if registered for remote use */
};

enum tt_kind { TT_PUT, TT_GET, TT_ADD, TT_SEND };

enum {
	TT_NOTIFY = 1, /* PUT (of any length, 0 too): once the bytes have landed, tell the target */
	TT_LAZY = 2,   /* done() may wait for traffic back, for a batch, or until the target goes to sleep or has polled
	                * in vain for some microseconds; without it the acknowledgement goes at once */
};

struct tt_op {
	/* The caller fills these, and leaves them alone until done(). */
	enum tt_kind kind;
	uint32_t flags;
	uint32_t notify;          /* with TT_NOTIFY: the value the target sees, < 2^24 (8 bits are the wire's) */
	struct tt_region *region; /* holds `local`; NULL: unregistered host memory, len <= net->copy_max */
	void *local;              /* PUT, SEND: source. GET: destination. ADD: unused */
	size_t len;               /* any size; the transport splits. SEND: <= net->send_max. ADD: 8 */
	const struct tt_key *key; /* PUT, GET, ADD: the remote region (unused by a PUT of 0 bytes); must stay until
	                           * done() */
	uint64_t offset;          /* where in it, in bytes. ADD: a multiple of 8 */
	uint64_t operand;         /* ADD: in, the addend; out, the old value */
	void (*done)(struct tt_op *);
	/* The transport fills these. */
	struct tt_op *next;       /* in its queues */
	int err;                  /* 0 or -errno; valid from done() on */
	uint64_t priv[3];
};

struct tt_events { /* called from progress(), on its thread */
	void (*up)(struct tt_peer *); /* connected or accepted, and proven to know the secret */
	void (*message)(struct tt_peer *, const void *, size_t); /* the bytes live until return */
	void (*notify)(struct tt_peer *, uint32_t value);
	void (*down)(struct tt_peer *, int err); /* the last word on this peer, which then waits for disconnect():
	                                          * -ECONNRESET after up; -EHOSTUNREACH, -EACCES (secret), -EPROTO
	                                          * (version or job) or -ETIMEDOUT before. Accepted peers that never
	                                          * came up are not reported */
};

struct tt_net_config {
	const struct tt_events *events;
	const char *device;  /* "mlx5_0", "eth0", an address of one ...; NULL: the best */
	const char *listen;  /* wires with addresses: HOST:PORT to listen on; NULL: any free port of `ports` */
	int listen_fd;       /* an already listening socket in place of `listen`, or -1. The net's once open() has
	                      * succeeded; it stays the caller's when open() fails */
	int ports[2];        /* first and last port to try; 0, 0: any */
	const void *secret;  /* the job's key; NULL only on wires that leave this host's user alone */
	size_t secret_len;
	uint64_t job;        /* the job's id: peers and frames of another one are refused */
	uint32_t epoch;      /* which life of this process: frames carry it */
	unsigned timeout_ms; /* how long a connect or a handshake may take, and how long sent bytes may stay
	                      * unacknowledged */
	int keep;            /* 1: a frozen peer that can still write my memory is let be when I disconnect from it; 0: if
	                      * it is a process of this host, it is killed */
	void *user;
};

struct tt_net { /* each transport embeds this first in its own struct */
	const struct tt_transport *transport;
	const struct tt_events *events;
	void *user;
	char addr[96];   /* "tcp:10.0.0.7:4000": give this text to whoever should connect */
	int fd;          /* readable when arm() said 0 and something came; -1: only in a simulated world */
	size_t copy_max; /* largest PUT, GET or SEND with unregistered memory; at least 64 */
	size_t send_max; /* largest TT_SEND; at least 1024 */
	int cheap_poll;  /* 1: progress() makes no system call as long as nothing has come */
	int host_only;   /* 1: it leads to processes of this host alone */
};

struct tt_peer { /* likewise embedded first; lives until disconnect() */
	struct tt_net *net;
	void *user;
	uint64_t received; /* grows with whatever comes from it, also in pieces: a sign of life */
	int frozen;        /* the caller's, before disconnect(): it has given no sign of life for as long as it may. Where it
	                    * could still write my memory when it thaws, its process is ended first; see `keep` */
	char addr[96];   /* the other end as a person would name it, for messages: "10.0.0.7:4000" */
};

struct tt_device {
	char name[32];
	int numa;      /* the NUMA node it hangs on, or -1 */
	unsigned mbps; /* 0: unknown */
};

struct tt_transport {
	const char *name;
	int (*list)(struct tt_device *, int max); /* how many there are (it may be more than max); -errno: unusable */
	int (*open)(const struct tt_net_config *, struct tt_net **); /* also listens */
	void (*close)(struct tt_net *);           /* disconnects every peer, deregisters every region */
	/* remote: also fill in the key */
	int (*reg)(struct tt_net *, const struct tt_mem *, int remote, struct tt_region **);
	void (*dereg)(struct tt_region *);        /* its key stops working; a landing in progress is cut off, its op
	                                           * gets -ESTALE */
	/* up() or down() follows from progress(). -EMFILE: this process has no file left for it */
	int (*connect)(struct tt_net *, const char *addr, struct tt_peer **);
	void (*disconnect)(struct tt_peer *);     /* finishes what is outstanding with -ECONNRESET, frees the peer;
	                                           * no down() */
	void (*post)(struct tt_peer *, struct tt_op *);
	/* the peer's region in my address space, or NULL; after down() it stays valid, frozen, until disconnect(), and
	 * until close() it is memory, but nobody's. anytime: it may be stored through at any time, else only between
	 * store_begin() and store_end() */
	void *(*map)(struct tt_peer *, const struct tt_key *, int anytime);
	/* around each piece that is stored, some microseconds long: dereg() and disconnect() at the owner wait for its end.
	 * 1, or 0: the key has been taken back, store nothing and leave store_end() out */
	int (*store_begin)(struct tt_peer *, const struct tt_key *);
	void (*store_end)(struct tt_peer *);
	/* where something was stored so: tells the target of `value` now, as a NOTIFY behind all that was posted does. 0: post one */
	int (*notify)(struct tt_peer *, uint32_t value);
	int (*progress)(struct tt_net *);         /* events handled, or -errno: the net is lost */
	int (*arm)(struct tt_net *);              /* 0: sleep on fd. 1: call progress again */
};

struct tt_op_queue { /* linked by `next`; zeroed is empty */
	struct tt_op *head, **tail;
};

static inline void tt_queue_push(struct tt_op_queue *q, struct tt_op *op)
{
	if (!q->head)
		q->tail = &q->head;
	op->next = NULL;
	*q->tail = op;
	q->tail = &op->next;
}

static inline struct tt_op *tt_queue_pop(struct tt_op_queue *q)
{
	struct tt_op *op = q->head;

	if (op) {
		q->head = op->next;
		op->next = NULL;
	}
	return op;
}

/* Calls done(), which may free the op or post it again: the op is no longer the transport's. */
static inline void tt_op_finish(struct tt_op *op, int err)
{
	op->err = err;
	op->done(op);
}
#endif
