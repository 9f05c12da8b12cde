/* verbs_private.h - what the files of verbs share: verbs.c (nets, progress), verbs_device.c (devices, ports, GIDs),
 * verbs_connect.c (the door, and the terms of a connection), verbs_cm.c (connections by librdmacm), verbs_queue.c
 * (queue pairs and their end), verbs_memory.c (pins, keys, receives, the arena), verbs_gpu.c (memory of devices),
 * verbs_send.c (requests), verbs_iwarp.c (what iWARP does in another way), verbs_receive.c (completions),
 * verbs_failure.c (what each failure means)
 *
 *     PUT      RDMA WRITEs; NOTIFY: a WRITE with immediate, behind long data an empty one
 *     GET      RDMA READs
 *     ADD      a message, and a message back
 *     SEND     messages: each a head, then bytes
 *
 * On iWARP there is no immediate, and NOTIFY is a message; a request is complete there when TCP has it, and only what a
 * READ brings proves that all before has come. So a READ of a word goes behind a chain's last request, and no other
 * asks for a completion. TCP cuts what a READ brings anywhere, also within a word that changes meanwhile. So a GET is
 * messages, and messages back: the owner copies word by word.
 *
 * Each message and each immediate takes one of the receives of the target's net. A sender has credits for them, and the
 * other end gives them back in what it sends; the last one is for giving back alone, so that two who are both out of
 * credits do not wait for each other. The target of a WRITE or READ hears nothing of it. A message, a WORD, tells the
 * target how many bytes have moved, as a sign of life: after TT_VERBS_TICK bytes, if the last sign is old enough. Bytes
 * do not wait for a WORD: they move as long as the target's adapter works, whatever the target's process does.
 *
 * Requests complete in the order posted. The last one of each chain asks for a completion, which stands for all before.
 */
#ifndef TT_VERBS_PRIVATE_H
#define TT_VERBS_PRIVATE_H
#include "base/base.h"
#include "transport/dial.h"
#include "transport/door.h"
#include "transport/flight.h"
#include "transport/verbs/verbs.h"
#include "transport/verbs/verbs_library.h"
#include <endian.h>
#include <pthread.h>

enum {
	TT_VERBS_CREDITS = 32,       /* receives for one peer */
	TT_VERBS_DEPTH = 64,         /* requests of one peer that the adapter may have */
	TT_VERBS_SILENT = 16,        /* so many of them in a row may go without a completion */
	TT_VERBS_ENTRIES = TT_VERBS_CREDITS + TT_VERBS_DEPTH, /* of the completion queue, for one peer */
	TT_VERBS_PEERS = 1024,       /* of one net at most */
	/* locked memory for one peer: receives and heads in pages, entries, receives' and requests' places in queues */
	TT_VERBS_SHARE = 132 << 10, TT_VERBS_LOCKED = TT_VERBS_SHARE + (6 << 10) + (1 << 10) + (16 << 10),
	TT_VERBS_RECEIVE = 4096,     /* bytes of a receive: 1,000 peers take 128 MiB, */
	TT_VERBS_RECEIVE_MAX = 16384, TT_VERBS_RECEIVES = 64 << 20, /* or more, if those of all peers take no more */
	/* longer WRITEs and READs are cut: an adapter that loses 1 % of the packets gives up one of a megabyte */
	TT_VERBS_PIECE = 256 << 10,
	TT_VERBS_PACKET = 256,       /* bytes of a packet, at least */
	TT_VERBS_TICK = 1 << 20,     /* fewer bytes are not worth a sign of life */
	TT_VERBS_MOVED_BITS = 48,    /* of the bytes that one says have moved */
	TT_VERBS_SIGNS = 32,         /* signs of life at most, while a net waits for an acknowledgement */
	TT_VERBS_NOTIFY_MAX = 8192,  /* adaptive routing does not spread a longer WRITE with immediate */
	TT_VERBS_BOUNCE = 16 << 10, TT_VERBS_BOUNCES = 128, /* the arena for memory that is not registered */
	TT_VERBS_COPY_MAX = 128 << 10,
	TT_VERBS_INLINE = 220,
	TT_VERBS_RETRIES = 6,        /* 7: rxe never gives up */
	TT_VERBS_LAZY = 16,          /* lazy puts that leave with one doorbell */
	TT_VERBS_IWARP = 3,          /* a link, besides the library's */
	TT_VERBS_BATCH = 16,         /* completions that are polled together */
	TT_VERBS_BUCKETS = 256, TT_VERBS_KEYS = 1024,
	TT_VERBS_SLAB = 16,          /* shares that are registered together, at most */
	TT_VERBS_FULL = 0x8000, TT_VERBS_PARTITION = 0x7fff, /* of a partition key: a full member; which partition */
	TT_VERBS_PKEYS = 8,          /* partitions that two ends choose from */
	TT_VERBS_TERMS_SIZE = 136 + 2 * TT_VERBS_PKEYS, TT_VERBS_ADDRESS = 64, TT_VERBS_COOKIE = 16,
};

enum tt_verbs_kind { TT_VERBS_PART = 1, TT_VERBS_MESSAGE, TT_VERBS_ASK, TT_VERBS_ANSWER, TT_VERBS_WORD,
	TT_VERBS_NOTIFY, TT_VERBS_FETCH, TT_VERBS_BYTES };

struct tt_verbs_head { /* begins each message; little endian */
	uint8_t kind, credits, slot, bad; /* PART: the message goes on. bad: the ADD was refused */
	uint32_t rkey;
	uint64_t addr, word;
};

struct tt_verbs_place { /* of memory at the other end */
	uint64_t addr;
	uint32_t rkey;
};

struct tt_verbs_share { /* a peer's part of registered memory. The receives stay posted when the peer is gone */
	struct tt_list node;        /* in net->spare_shares, while no peer has it */
	struct ibv_mr *mr;          /* of its slab, */
	bool first;                 /* whose first share it is */
	struct tt_verbs_head *heads; /* one for each request */
	char *receives;
};

struct tt_verbs_end { /* what one end says of itself when the other has proven itself; see docs/wire.md */
	uint32_t refused;           /* not 0: it has room for so many peers only, */
	uint32_t number, psn, piece;
	uint16_t lid, credits, receive;
	uint8_t link, gid_type, mtu, reads, answers; /* reads, answers: that it asks for, and serves, at once */
	uint8_t flags;              /* IBV_QPF_GRH_REQUIRED: what comes to its port needs a global header */
	union ibv_gid gid;
	char address[TT_VERBS_ADDRESS]; /* where librdmacm listens, "10.0.0.7:4000"; empty: it is not used */
	uint8_t cookie[TT_VERBS_COOKIE];
	struct tt_verbs_place word; /* iWARP: that may be read */
	uint16_t pkeys[TT_VERBS_PKEYS]; /* of its partitions, then zeros */
};

enum tt_verbs_outcome { TT_VERBS_MORE, TT_VERBS_WHOLE, TT_VERBS_STARVED }; /* chained of an op; the arena has no room */
enum tt_verbs_way { TT_VERBS_NO_WAY, TT_VERBS_DMA_BUF, TT_VERBS_PEER_MEMORY }; /* to memory of a device */
enum { TT_VERBS_ALL_RIGHTS = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ };

struct tt_verbs_port { /* what the settings and the device say */
	uint8_t number;
	int gid_index;
	uint16_t pkeys[TT_VERBS_PKEYS], pkey_at[TT_VERBS_PKEYS]; /* of its partitions, then zeros; their indexes */
	uint8_t sl, traffic_class;
	enum ibv_gid_type gid_type;
	union ibv_gid gid;
	struct ibv_port_attr attr;
};

struct tt_verbs {
	struct tt_net base;
	const struct tt_verbs_library *library;
	struct tt_door door;
	struct ibv_context *device;
	struct ibv_device_attr attr;
	struct tt_verbs_port port;
	struct tt_sentence unfit;   /* why the port serves no new connection; empty: it does */
	char name[64];              /* "mlx5_0:1" */
	struct ibv_pd *pd;
	struct ibv_comp_channel *wakes;
	struct ibv_cq *cq;
	struct ibv_srq *srq;
	struct rdma_event_channel *events; /* of librdmacm */
	struct rdma_cm_id *listener;
	bool iwarp, cm;             /* cm: librdmacm connects, as iWARP wants */
	unsigned peer_max, inline_max;
	uint32_t receive;           /* bytes of a receive */
	uint32_t lockable;          /* KiB that the process may lock, if that bounds peer_max; else 0 */
	int lost;                   /* -errno: the adapter failed, or is gone; progress() lets go of all that it has */
	struct tt_sentence loss;
	bool shown;                 /* the kernel's list of devices has it */
	bool told_full, told_poor;  /* a warning: it has no room for a peer; it cannot make what a peer takes */

	struct tt_flights ops;
	struct tt_list regions, pins;
	struct tt_list by_rkey[TT_VERBS_KEYS]; /* regions that peers may use, by their memory's rkey */
	struct tt_list joining;     /* proven peers that are not up yet */
	struct tt_list dying;       /* broken peers whose requests and receives have not all come back */
	struct tt_list dirty;       /* peers with something to send, perhaps */
	struct tt_list hungry;      /* peers that wait for room in the arena */
	struct tt_list by_number[TT_VERBS_BUCKETS]; /* peers, by the number of their queue pair */
	pthread_mutex_t lock;       /* of pins */
	pthread_rwlock_t open;      /* held by who registers; taken by who closes the domain and the device */
	_Atomic bool closing;       /* pins hold nothing from here on; the last who holds `open` closes */

	pthread_mutex_t gpu_lock;   /* of trials */
	uint8_t gpu_ways[64];       /* enum tt_verbs_way, of the devices that base.takes_gpu has */
	_Atomic uint64_t gpu_flushes; /* devices that see what has landed only after a flush */
	char gpu_why[512];          /* how the last device that was tried is reached, or why not */

	struct tt_verbs_share **shares;
	unsigned share_count;
	struct ibv_mr *slab;        /* of the next share, if any of the slab are left */
	unsigned slab_left, slab_size; /* shares of the slab that nobody had, and all */
	struct tt_list spare_shares;
	char *arena;
	struct ibv_mr *arena_mr;
	struct ibv_mr *words;       /* iWARP: the first is there to be read, into the other end's second */
	uint16_t bounces[TT_VERBS_BOUNCES];
	unsigned bounce_count;

	struct ibv_wc *backlog;     /* completions that were polled and not looked at */
	unsigned backlog_count, backlog_max;
	struct ibv_recv_wr again[TT_VERBS_BATCH]; /* receives to be posted again */
	struct ibv_sge again_sge[TT_VERBS_BATCH];
	unsigned again_count;

	struct ibv_send_wr chain[TT_VERBS_DEPTH]; /* the requests of one peer that leave together */
	struct ibv_sge sges[TT_VERBS_DEPTH][2];
	unsigned chained;

	bool asleep;                /* arm() has been called since the sockets were looked at */
	bool armed;                 /* the queue of completions has been armed, and not been polled since */
	unsigned turns;             /* calls of progress() */
	uint64_t looked;            /* when the sockets were looked at; 0: never */
	uint64_t reviewed;          /* when it was last looked for peers that do not acknowledge */
};

struct tt_verbs_sent { /* a request that the adapter has */
	struct tt_op *op;           /* ends with it; or NULL */
	void *to;                   /* of a READ into the arena: where the bytes go */
	uint32_t len;
	int16_t bounce;             /* its place in the arena, or -1 */
	bool signalled;
};

struct tt_verbs_peer {
	struct tt_peer base;
	struct tt_verbs *net;
	struct tt_flight ops;
	uint64_t deadline;          /* of joining, or of dying */
	struct tt_list number, waits, dirty, hungry; /* waits: joining or dying */

	/* the connection over TCP */
	struct tt_dial dial;
	uint8_t terms[TT_VERBS_TERMS_SIZE]; /* the other end's; then its READY */
	size_t got;
	bool ready;                 /* its READY has come */
	bool told, heard;           /* this end's first message was acknowledged; the other's has come */
	struct rdma_cm_id *id;
	uint8_t cookie[TT_VERBS_COOKIE]; /* the acceptor's */
	struct tt_verbs_place word;
	uint16_t pkey_index;        /* of the partition in which both ends may talk */
	uint8_t reads, serves;      /* READs that this end asks for, and serves, at once */

	struct ibv_qp *qp;
	bool fetching;              /* qp may take receives: the adapter has not said that it has its last */
	struct tt_verbs_share *share;
	uint32_t psn, generation;
	uint32_t piece, message;    /* bytes of a WRITE or READ, and of a message with its head */

	/* my requests: positions, which count up */
	struct tt_verbs_sent sent[TT_VERBS_DEPTH];
	uint32_t posted, completed;
	bool failed;                /* a request or a receive has come back with an error */
	uint32_t seen;              /* `completed` when it was last looked at, */
	uint64_t since;             /* and since when it is that; 0: nothing is awaited */
	unsigned silent, signals;   /* requests since the last that asked for a completion; completions to come */
	unsigned lazy;              /* pending puts that wait for others */
	uint64_t at;                /* bytes of the first pending op that are posted */
	uint64_t moved, sign_at;    /* bytes since the last sign of life; so many make it worth a look at the clock */
	uint64_t signed_at;         /* when the last one went */
	unsigned credits, credit_max, owed;
	uint16_t asked[TT_FRAME_SLOTS]; /* bytes that the answer of each slot has to bring */
	struct tt_verbs_head answers[TT_FRAME_SLOTS];
	unsigned answer_at, answer_count;

	char *assembly;             /* TT_MESSAGE_MAX bytes: a message that comes in parts */
	size_t come;
};

/* Bytes of a peer's share: its receives, and a page of heads. */
static inline size_t tt_verbs_share_bytes(const struct tt_verbs *net)
{
	return (size_t)TT_VERBS_CREDITS * net->receive + TT_VERBS_SHARE - TT_VERBS_CREDITS * TT_VERBS_RECEIVE;
}

static inline bool tt_verbs_alive(const struct tt_verbs_peer *p)
{
	return p->ops.stage >= TT_STAGE_PROBE && p->ops.stage <= TT_STAGE_UP && !p->ops.broken;
}

static inline uint8_t tt_verbs_link(const struct tt_verbs *net)
{
	return net->iwarp ? TT_VERBS_IWARP : net->port.attr.link_layer;
}

/* iWARP's connector sends first. */
static inline bool tt_verbs_listens_first(const struct tt_verbs_peer *p)
{
	return p->net->iwarp && p->dial.shake.accepted;
}

static inline struct tt_verbs *tt_verbs_of(struct tt_net *n) { return tt_container_of(n, struct tt_verbs, base); }

/* verbs.c */
struct tt_dial *tt_verbs_make_peer(struct tt_door *, bool accepted);
/* The connection is broken, or cannot come up: the first cause wins. -EPROTO: the other end does what no Tutti does.
 * The peer may be gone, if it was accepted and its handshake was not over. */
void tt_verbs_lose(struct tt_verbs_peer *, int err, const char *why);
void tt_verbs_drained(struct tt_verbs_peer *); /* its queue pair takes no more receives */

/* verbs_device.c */
const char *tt_verbs_link_name(uint8_t link);
int tt_verbs_list(struct tt_device *, int max);
int tt_verbs_choose(int node, int turn, char (*names)[TT_DEVICE_NAME]);
int tt_verbs_open_device(struct tt_verbs *, const char *device); /* fills in device, attr, port, name */
bool tt_verbs_read_anew(struct tt_verbs *, char *note, size_t size); /* the port. false: it is unfit; says why */
bool tt_verbs_is_shown(const struct tt_verbs *);

/* verbs_connect.c */
extern const struct tt_door_calls tt_verbs_door;
int tt_verbs_connect(struct tt_net *, const char *addr, struct tt_peer **);
void tt_verbs_hear(struct tt_verbs_peer *);      /* its socket has an event; the peer may be gone afterwards */
void tt_verbs_ready(struct tt_verbs_peer *);     /* its queue pair takes what comes */
void tt_verbs_prove(struct tt_verbs_peer *, bool *way); /* a message has gone this way: it is up when both are proven */
void tt_verbs_come_up(struct tt_verbs_peer *);
void tt_verbs_hang_up(struct tt_verbs_peer *, int err, const char *why); /* looks at what has come, then loses it */

/* verbs_cm.c */
int tt_verbs_open_cm(struct tt_verbs *, const int ports[2]);
void tt_verbs_close_cm(struct tt_verbs *);
void tt_verbs_say_where(const struct tt_verbs_peer *, struct tt_verbs_end *mine);
void tt_verbs_meet(struct tt_verbs_peer *, const struct tt_verbs_end *theirs);
void tt_verbs_part(struct tt_verbs_peer *);
void tt_verbs_hear_cm(struct tt_verbs *, uint64_t end); /* until that time, if more comes */

/* verbs_queue.c */
int tt_verbs_make_queue(struct tt_verbs_peer *, struct tt_verbs_end *mine); /* and says what the other end needs */
int tt_verbs_init_queue(struct tt_verbs_peer *, struct tt_verbs_end *mine); /* likewise, of one that is made */
int tt_verbs_join_queue(struct tt_verbs_peer *, const struct tt_verbs_end *theirs);
int tt_verbs_route_queue(struct tt_verbs_peer *); /* likewise, to where librdmacm says */
void tt_verbs_stop_queue(struct tt_verbs_peer *); /* into error: what it has comes back */
void tt_verbs_drop_queue(struct tt_verbs_peer *); /* from here on the adapter touches nothing of the peer's */
struct tt_verbs_peer *tt_verbs_find(struct tt_verbs *, uint32_t number);

/* verbs_memory.c */
int tt_verbs_pin(struct tt_net *, const struct tt_mem *, int remote, struct tt_pin **);
void tt_verbs_unpin(struct tt_pin *);
int tt_verbs_reg(struct tt_net *, const struct tt_mem *, int remote, struct tt_pin *, struct tt_region **);
void tt_verbs_dereg(struct tt_region *);
uint32_t tt_verbs_lkey(const struct tt_region *);
/* NULL: peers may not use it. *device: it is memory of a device, which the CPU cannot touch */
void *tt_verbs_find_memory(struct tt_verbs *, uint32_t rkey, uint64_t addr, size_t n, bool *device);
int tt_verbs_open_arena(struct tt_verbs *);
/* Pins and regions are empty from here on, and the device is closed. That waits for who registers, for seconds perhaps;
 * or, without `wait`, is left to them */
void tt_verbs_close_memory(struct tt_verbs *, bool wait);
void tt_verbs_close_pins(struct tt_verbs *);    /* they are gone */
void tt_verbs_leave_open(struct tt_verbs *);    /* lets `open` go */
int tt_verbs_take_share(struct tt_verbs *, struct tt_verbs_share **);
void tt_verbs_give_share(struct tt_verbs_peer *); /* the adapter has none of its requests any more */
void tt_verbs_receive_again(struct tt_verbs *, uint64_t wr_id);
void tt_verbs_post_receives(struct tt_verbs *);
#define TT_VERBS_BETWEEN "look at the GIDs of both ports, the MTU of all that is between and, with RoCE, at " \
	"firewalls (UDP port 4791) and flow control (PFC)"
#define TT_VERBS_UNLIMITED "Put the line '* - memlock unlimited' into /etc/security/limits.conf, or " \
	"LimitMEMLOCK=infinity into the service that starts the job"
/* -err, and a sentence: memory could not be locked */
int tt_verbs_locked_too_much(const struct tt_verbs *, const char *what, size_t bytes, int err);

/* verbs_gpu.c */
void tt_verbs_ask_gpu(struct tt_net *, int device);
int tt_verbs_register_gpu(struct tt_verbs *, const struct tt_mem *, int access, struct ibv_mr **);
void tt_verbs_flush(const struct tt_verbs *); /* what has landed on devices is visible to them */

/* verbs_send.c */
void tt_verbs_post(struct tt_peer *, struct tt_op *);
void tt_verbs_push_all(struct tt_verbs *);
void tt_verbs_want_to_send(struct tt_verbs_peer *);
void tt_verbs_probe(struct tt_verbs_peer *);
void tt_verbs_owe_answer(struct tt_verbs_peer *, const struct tt_verbs_head *);
void tt_verbs_requests_done(struct tt_verbs_peer *, uint32_t position); /* the one there, and all before */
void tt_verbs_forget_requests(struct tt_verbs_peer *);
/* for verbs_iwarp.c: adds a request to the chain, memory to that request; op: ends with the request */
struct ibv_send_wr *tt_verbs_chain(struct tt_verbs_peer *, enum ibv_wr_opcode, struct tt_op *);
struct ibv_send_wr *tt_verbs_chain_message(struct tt_verbs_peer *, struct tt_op *, struct tt_verbs_head);
void tt_verbs_add_sge(struct ibv_send_wr *, const void *at, size_t n, uint32_t lkey);
enum tt_verbs_outcome tt_verbs_move_piece(struct tt_verbs_peer *, struct tt_op *); /* the next one of a PUT or GET */

/* verbs_iwarp.c: the two places where iWARP differs */
enum tt_verbs_outcome tt_verbs_move_iwarp(struct tt_verbs_peer *, struct tt_op *); /* as tt_verbs_move_piece() */
/* Returns the request whose completion proves that all before has come; adds it to the chain. */
struct ibv_send_wr *tt_verbs_prove_iwarp(struct tt_verbs_peer *, struct ibv_send_wr *last);

/* verbs_receive.c */
int tt_verbs_poll(struct tt_verbs *);             /* looks at all completions; 0 or -errno */
void tt_verbs_set_aside(struct tt_verbs *);       /* polls all completions, to be looked at later */
void tt_verbs_take_back(struct tt_verbs_peer *);  /* likewise, but looks at those of its requests */

/* verbs_failure.c */
const char *tt_verbs_explain(const struct tt_verbs_peer *, const struct ibv_wc *, char *text, size_t size);
void tt_verbs_lose_net(struct tt_verbs *, const char *why); /* progress() ends it; the first cause wins */
void tt_verbs_hear_device(struct tt_verbs *);     /* the asynchronous events */
void tt_verbs_hear_failure(struct tt_verbs *, struct tt_verbs_peer *, enum rdma_cm_event_type, int status);
#endif
