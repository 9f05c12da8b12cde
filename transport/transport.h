/* transport.h - the whole contract between the runtime and a transport.
 *
 * A transport moves bytes between two processes. It knows no rank, no window and no pattern.
 *
 * Completion. Each posted op gets exactly one done(). progress() or disconnect() calls it, post() never does. After
 *   done(), whether err is 0 or not, the net touches `local` no more. With err 0, every NOTIFY or SEND that I post
 *   afterwards, and every GET or ADD that I start afterwards, sees the bytes. The target's own loads see the bytes
 *   after such a notify or message. A bad argument takes the same path: post() never fails, done() says why. Where the
 *   connection ends afterwards, a PUT that ended with 0 may still not have happened: only an answer proves it. With
 *   TT_LOCAL a later GET or ADD may come before the bytes, too.
 * Ordering. A SEND or a NOTIFY arrives after all PUTs that were posted earlier to that peer have landed. SENDs and
 *   NOTIFYs arrive in the order posted. Nothing else is ordered.
 * Tearing. A PUT or GET of exactly 8 bytes, aligned at both ends, is one load and one store. Longer ones land in any
 *   pieces, byte by byte. But a GET takes each aligned word of 8 bytes as it is at one moment, if the word's owner
 *   changes it whole, between two calls of progress().
 * Memory of devices. Memory with a kind (tt_mem.gpu >= 0) always travels in a region, and only over a net that takes it
 *   (takes_gpu). Work that the owner submits to the device after a NOTIFY or SEND sees the bytes of the PUTs before it.
 *   There is no promise about tearing, for words of 8 bytes either, and an ADD there gets -ENOTSUP.
 * ADD uses the compiler's atomics on a uint64_t. It runs on the owner's CPU or, where memory is shared, on the
 *   caller's. ADD is atomic with the owner's own such atomics.
 * Failure. A transport retries what its hardware or kernel retries, and never reconnects: what was done twice or not at
 *   all nobody could tell. So a connection that breaks is the end of its rank, whatever else leads there. When a peer
 *   fails, every outstanding op on the peer gets done(-ECONNRESET) in post order, then down() comes once; later posts
 *   get done(-ENOTCONN). After down() that peer reaches none of my memory. A failed op may or may not have happened. A
 *   range outside the key gives -ERANGE, a malformed argument -EINVAL: such an op touches no memory and hurts no other
 *   op. A transport does not notice silence.
 * Taking memory back. The owner deregisters a key when no peer that was given it uses it any more, or when that peer is
 *   disconnected: the runtime asks first (member/loan.c). A peer that uses a key afterwards touches no memory, and may
 *   lose its connection for it: a queue pair dies of a bad key. Where a transport can tell, the op gets -ESTALE.
 * Pinning. Some hardware reaches pinned memory alone, and pinning takes 50 us to 20 s. On a net that has pin(), a
 *   region is registered with the pin that holds it, and is deregistered before the unpin. A region for remote use is
 *   all of a pin for remote use. There the key may work until unpin() returns.
 * Threads. One thread at a time enters a net, but for pin and unpin. A transport has no locks but one for its pins, and
 *   no hidden threads but one: what the system may not answer soon, such as the address of a name, is asked on a thread
 *   that touches nothing of the net, and may outlive it. connect() waits for no such answer. The net calls the events
 *   and done() on the thread that entered it. They may call post, connect, reg and dereg, but not progress, disconnect
 *   or close.
 * Reachability. There are no capability flags: all four kinds are mandatory. Nothing is posted before up().
 *   down(-EHOSTUNREACH) or down(-ENXIO) after a connect() means that this transport does not lead to the peer: ask the
 *   next one.
 */
#ifndef TT_TRANSPORT_H
#define TT_TRANSPORT_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
	/* the largest SEND, in bytes, on every net: hosts with different nets cut alike. A net whose hardware takes
	 * less splits. A receiver handles a message after its last byte, so pieces must stay short */
	TT_MESSAGE_MAX = 65536 + 128,
	TT_SHORT = 256, /* bytes that are rather copied than looked for among registered memory */
	TT_DEVICES = 4, /* of one transport in a process, at most: a net each */
	TT_DEVICE_NAME = 64,
};

struct tt_net;  /* one opened transport: a NIC, a set of sockets, a simulated rank */
struct tt_peer; /* a reliable channel to one remote net */

struct tt_mem { /* memory, before it is registered */
	void *base;
	size_t len;
	int gpu;            /* device number, or -1 for host memory */
	int fd;             /* a memfd or dma-buf that names the same bytes, or -1 */
	uint64_t fd_offset;
	uint64_t inode;     /* of that file, if the caller knows it; 0: a net that needs it asks the kernel */
};

struct tt_key { /* names a remote region; plain bytes, which may travel by any transport */
	uint64_t len; /* bytes in the region */
	uint8_t raw[56]; /* the transport's own. A transport leaves the last byte 0: 1 says that no net knows the key */
};

struct tt_pin { /* memory, pinned with one net that needs it; such a transport embeds this first */
	struct tt_net *net;
	struct tt_mem mem;
	int remote;
	int source; /* the memory is read-only: bytes are put from it, and a GET into it ends with -EFAULT */
};

struct tt_region { /* memory, registered with one net */
	struct tt_net *net;
	struct tt_mem mem;
	struct tt_pin *pin; /* holds the memory, on a net that has pin(); else NULL */
	struct tt_key key;  /* only if the region is registered for remote use */
};

enum tt_kind { TT_PUT, TT_GET, TT_ADD, TT_SEND };

enum {
	TT_NOTIFY = 1, /* PUT of any length, 0 too: once the bytes have landed, tell the target */
	TT_LAZY = 2,   /* done() may wait for traffic back, for a batch, or until the target goes to sleep or has polled
	                * in vain for some microseconds. Without TT_LAZY the acknowledgement goes at once. A SEND,
	                * and a PUT without NOTIFY, itself may wait for the next op or for progress(), and leave with
	                * others */
	TT_LOCAL = 4,  /* PUT: done() may come as that of a SEND does, as soon as the net needs `local` and `key` no
	                * more: the bytes may not have landed. A NOTIFY or SEND still comes behind them. A target that
	                * refuses the bytes may end the connection */
};

struct tt_op {
	/* The caller fills these, and leaves them alone until done(). */
	enum tt_kind kind;
	uint32_t flags;
	uint32_t notify;          /* with TT_NOTIFY: the value for the target, below 2^24; 8 bits are the transport's */
	struct tt_region *region; /* contains `local`. NULL: host memory that is not registered, len <= net->copy_max */
	void *local;              /* PUT, SEND: source. GET: destination. ADD: unused */
	size_t len;               /* any size, the transport splits. SEND: at most TT_MESSAGE_MAX. ADD: 8 */
	const struct tt_key *key; /* PUT, GET, ADD: the remote region; must stay until done(). A PUT of 0 bytes does not
	                           * use it */
	uint64_t offset;          /* in the remote region, in bytes. ADD: a multiple of 8 */
	uint64_t operand;         /* ADD: in, the addend; out, the old value */
	void (*done)(struct tt_op *);
	/* The transport fills these. */
	struct tt_op *next;       /* in its queues */
	int err;                  /* 0 or -errno; valid from done() on */
	uint64_t priv[3];
};

struct tt_events { /* progress() calls them, on its thread */
	void (*up)(struct tt_peer *); /* the peer is connected or accepted, and has proven that it knows the secret */
	void (*message)(struct tt_peer *, const void *, size_t); /* the bytes live until the function returns */
	void (*notify)(struct tt_peer *, uint32_t value);
	/* The last event of this peer, which then waits for disconnect(). After up: -ECONNRESET. Before up:
	 * -EHOSTUNREACH, -ENXIO (no such host), -EACCES (secret), -EPROTO (version or job) or -ETIMEDOUT. An accepted
	 * peer that never came up is not reported. */
	void (*down)(struct tt_peer *, int err);
};

struct tt_net_config {
	const struct tt_events *events;
	const char *device;  /* "mlx5_0:1", as choose() names it; NULL: the best */
	const char *iface;   /* transports with `sockets`: the interface, or an address of one, to listen on and be
	                      * reached at; NULL: any */
	const char *listen;  /* transports with addresses: HOST:PORT to listen on; NULL: any free port of `ports` */
	const char *toward;  /* HOST:PORT of others, or NULL: a net that listens everywhere is reached at the address
	                      * from which packets to that place leave */
	int listen_fd;       /* a socket that listens already, in place of `listen`, or -1. The net takes it when open()
	                      * succeeds; it stays the caller's when open() fails */
	int ports[2];        /* first and last port to try; 0, 0: any */
	const void *secret;  /* the job's key; NULL only on transports that stay with this host's user */
	size_t secret_len;
	uint64_t job;        /* the job's id: the net refuses peers and frames of another job */
	uint32_t epoch;      /* which life of this process it is: frames carry it */
	unsigned peers;      /* so many are connected at once, or fewer; 0: unknown */
	unsigned near;       /* processes of the job on this host; 0: unknown */
	int nets;            /* of this transport that the caller opens, and that share what may be locked; 0: one */
	unsigned timeout_ms; /* how long a connect or a handshake may take, and how long sent bytes may stay without an
	                      * acknowledgement */
	/* what becomes of a process of this host that can still store into memory which dereg(), disconnect() or
	 * close() takes back. They wait for a process that a signal has stopped for 30 ms at most, for another one as
	 * long as silence may last, and for one that is `frozen` not at all. Then 0: they kill it. 1: it lives */
	int keep;
	void *user;
};

struct tt_net { /* each transport embeds this first in its own struct */
	const struct tt_transport *transport;
	const struct tt_events *events;
	void *user;
	char addr[96];   /* "tcp:10.0.0.7:4000": the text that connect() of another net takes */
	int fd;          /* readable when something has come after arm() returned 0; -1: only in a simulated world */
	size_t copy_max; /* largest PUT, GET or SEND with memory that is not registered; at least 64 */
	int cheap_poll;  /* 1: progress() makes no system call as long as nothing has come */
	int host_only;   /* 1: the net reaches processes of this host only */
	/* Bit d: the net moves memory of device d, in regions. It is given no memory of other devices. */
	_Atomic uint64_t takes_gpu, asked_gpu; /* asked_gpu: whether it does so is known */
	int lost;        /* set by the caller: progress() has failed. It and arm() are called no more */
	/* Bytes that went through a buffer of the net's, though the wire could have moved them. Left out: messages,
	 * which the receiver puts together, and what is below 4 KiB (tcp) or not above TT_SHORT (verbs) */
	uint64_t copied;
	/* The adapter's port, and in parentheses what its peers must have too: "mlx5_0:1 (InfiniBand, 200 Gbit/s)".
	 * Empty: the net needs no adapter of its own */
	char device[96];
};

struct tt_peer { /* likewise embedded first; lives until disconnect() */
	struct tt_net *net;
	void *user;
	/* Grows with whatever comes from the peer, also in pieces: a sign of life of its process, which an adapter's
	 * completions are not. A PING or PONG may queue behind gigabytes. So while an op needs the other process, this
	 * grows at both ends, at least once a megabyte or, if a megabyte takes less, each 32nd of timeout_ms. Where
	 * one end moves the bytes alone, it grows at the other end, by so many bytes; no byte waits for that. */
	uint64_t received;
	/* set by the caller before disconnect(): the peer gave no sign of life for too long; see `keep` */
	int frozen;
	char addr[96];     /* the other end, for messages: "10.0.0.7:4000" */
	const char *lacks; /* before up(): what is awaited, in the words of a failure; NULL: an answer */
};

struct tt_device {
	char name[32];
	int numa;      /* its NUMA node, or -1 */
	unsigned mbps; /* 0: unknown */
	char note[160]; /* what else is worth knowing: its address, or why it is not used */
};

struct tt_transport {
	const char *name;
	int sockets; /* 1: its connections begin over TCP, so a net listens at HOST:PORT */
	/* Returns how many devices there are, which may be more than max. -errno: the transport is unusable. */
	int (*list)(struct tt_device *, int max);
	/* The devices that a process opens a net for each, the nearest to a NUMA node (-1: unknown) first. Equally near
	 * ones rotate by `turn`, so that ranks side by side use different ones. Returns how many, at most TT_DEVICES;
	 * -errno: none can be used. NULL: the transport has one net. */
	int (*choose)(int node, int turn, char (*names)[TT_DEVICE_NAME]);
	int (*open)(const struct tt_net_config *, struct tt_net **); /* also listens */
	/* Writes the address of the net that a process of this host opens for `job` with this text as `listen`. NULL:
	 * such a process has to tell its address. */
	void (*address)(uint64_t job, const char *listen, char addr[96]);
	void (*close)(struct tt_net *); /* disconnects every peer, deregisters every region, unpins what is pinned */
	/* Slow, and the only functions that may run beside any other one of the net. A range may have several pins.
	 * NULL, both: the net reaches any memory. pin: -ENOMEM, with a sentence that names the net. */
	int (*pin)(struct tt_net *, const struct tt_mem *, int remote, struct tt_pin **);
	void (*unpin)(struct tt_pin *);
	/* Slow, and may run beside any other function, as pin. Finds out, by bytes that move, whether the net takes
	 * memory of the device, and notes it in the net; tt_why() then says by which way, or why not. NULL: it does
	 * not. */
	void (*ask_gpu)(struct tt_net *, int device);
	/* Fast. remote: fills in the key. pin: what holds the memory, on a net that has pin(); else NULL. -EINVAL: the
	 * pin does not hold the memory */
	int (*reg)(struct tt_net *, const struct tt_mem *, int remote, struct tt_pin *pin, struct tt_region **);
	/* The key stops working: what still uses it touches no memory (on a net that pins: after unpin()). A landing in
	 * progress is cut off. */
	void (*dereg)(struct tt_region *);
	/* up() or down() follows from progress(). -EMFILE: this process has no file left for the connection. */
	int (*connect)(struct tt_net *, const char *addr, struct tt_peer **);
	/* Finishes what is outstanding with -ECONNRESET and frees the peer. No down() follows. */
	void (*disconnect)(struct tt_peer *);
	void (*post)(struct tt_peer *, struct tt_op *);
	/* Returns the peer's region in my address space, or NULL. After down() the memory stays valid, frozen, until
	 * disconnect(); until close() it is still memory, but nobody's. anytime: the caller may store through the
	 * pointer at any time. Else it stores only between store_begin() and store_end(). */
	void *(*map)(struct tt_peer *, const struct tt_key *, int anytime);
	/* Called around each piece that is stored, some microseconds long: dereg() and disconnect() at the owner wait
	 * for store_end(). store_begin() returns 1; or 0: the key has been taken back, so store nothing and do not call
	 * store_end(). */
	int (*store_begin)(struct tt_peer *, const struct tt_key *);
	void (*store_end)(struct tt_peer *);
	/* Tells the target of `value` now, as a NOTIFY behind all that was posted does; for bytes that were stored
	 * through map(). Returns 0 if it did not: post a NOTIFY. */
	int (*notify)(struct tt_peer *, uint32_t value);
	/* Sends a message of two parts now, as a SEND behind all that was posted does. The caller may change the bytes
	 * afterwards, and no done() follows. Returns 0 if it did not: post a SEND. NULL: it never does. */
	int (*send)(struct tt_peer *, const void *head, size_t head_len, const void *body, size_t body_len);
	/* As progress(), for this peer alone: it costs a few loads as long as nothing has come. NULL: no such way. */
	int (*hear)(struct tt_peer *);
	/* True, and what is known, for a sentence: the peer's host has acknowledged nothing for seconds, though it was
	 * asked again and again. NULL: the transport does not know */
	bool (*stalls)(struct tt_peer *, char *text, size_t size);
	int (*progress)(struct tt_net *); /* returns the number of events that it handled. -errno: the net is lost */
	int (*arm)(struct tt_net *);      /* 0: the caller may sleep on fd. 1: call progress() again */
};

/* Does the net move memory of this device, as far as ask_gpu() was called? */
static inline bool tt_net_takes(const struct tt_net *net, int device)
{
	return device >= 0 && net->takes_gpu >> device & 1;
}

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
