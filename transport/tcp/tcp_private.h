/* tcp_private.h - what the files of tcp share: tcp.c (nets, keys, peers, progress), tcp_send.c (requests, answers, the
 * way out), tcp_receive.c (the way in) */
#ifndef TT_TCP_PRIVATE_H
#define TT_TCP_PRIVATE_H
#include "base/base.h"
#include "transport/dial.h"
#include "transport/flight.h"
#include "transport/frame.h"
#include "transport/tcp/tcp.h"

enum {
	TT_TCP_STAGE = 32 << 10,  /* bytes of small frames that leave together */
	TT_TCP_WASTE = 16 << 10,
	TT_TCP_NO_BATCH = TT_TCP_STAGE,
	TT_TCP_SYSCALLS = 16, TT_TCP_BUDGET = 1 << 20, /* one turn's work on one peer, each way ... */
	TT_TCP_SHARE = 256 << 10, /* ... but of reads, if other peers may have sent something */
};

struct tt_tcp_key { /* a slot of the table that keys name */
	uint64_t id;    /* generation << 24 | slot; 0: free. A net never uses a generation twice */
	uint8_t *base;
	size_t len;
};

struct tt_tcp_answer { /* what I owe for one request of the peer's */
	uint8_t kind;      /* TT_FRAME_REPLY or TT_FRAME_SUM */
	uint16_t slot;
	uint64_t key, offset, len;
	uint64_t at;       /* REPLY: bytes already sent */
	uint64_t word;     /* SUM: the old value */
};

struct tt_tcp_nak {
	uint16_t slot;
	uint8_t why;
	uint32_t ack; /* see frame.h */
};

/* The buffers of one peer. Their pages take memory at the first write: rank 0 is connected to thousands of ranks, and
 * most of these say little. The struct has no pointer. */
struct tt_tcp_buffers {
	uint8_t in[TT_TCP_STAGE + TT_FRAME_SIZE] __attribute__((aligned(4096)));
	uint8_t stage[TT_TCP_STAGE] __attribute__((aligned(4096)));
	uint8_t message[TT_MESSAGE_MAX] __attribute__((aligned(4096)));
	struct tt_tcp_answer answers[TT_FRAME_SLOTS] __attribute__((aligned(4096)));
	struct tt_tcp_nak naks[TT_FRAME_SLOTS];
};

struct tt_tcp {
	struct tt_net base;
	struct tt_door door;
	uint64_t generation;
	struct tt_list regions;
	struct tt_list active;      /* peers whose sockets are read directly */
	struct tt_list dirty;       /* peers with something to send and a socket that may take it */
	struct tt_flights ops;
	struct tt_list owing;       /* peers that I owe a lazy acknowledgement */
	unsigned blocked;           /* peers whose socket is full */

	struct tt_tcp_key *keys;
	size_t key_count, key_hint; /* no slot below the hint is free */

	unsigned turns;             /* calls of progress() */
	uint8_t waste[TT_TCP_WASTE]; /* takes the bytes for deregistered memory */
};

struct tt_tcp_peer {
	struct tt_peer base;
	struct tt_tcp *net;
	bool blocked, mute;         /* the socket is full; nothing can be sent any more */
	struct tt_dial dial;
	unsigned idle;              /* reads in a row without a result */
	struct tt_list active, dirty, owing;

	/* my requests */
	struct tt_flight ops;
	struct tt_op *first_send, *last_send; /* ops that end when sent; priv[1]: where it ends, priv[2]: the next */
	struct tt_op *current;      /* a PUT that is sent in pieces; priv[2] bytes of it are staged */
	uint8_t put_slots[TT_FRAME_SLOTS];
	uint32_t puts_begun, puts_sent, puts_acked; /* positions in the ring put_slots */

	/* what I owe */
	struct tt_tcp_answer sending;
	unsigned answer_at, answer_count, nak_at, nak_count;
	bool answer_turn;           /* an answer comes next: a long op and an answer take turns */
	bool ack_due;
	uint64_t life_told;         /* when a megabyte was last acknowledged while it came */
	uint32_t landed, lazy_frames; /* the peer's PUTs; its frames since I last acknowledged */
	size_t lazy_bytes;

	/* out: stage[out_at..out_end), then the payload */
	size_t out_at, out_end;
	/* where the batch's first frame begins in stage, or TT_TCP_NO_BATCH; where it ends */
	size_t batch, batch_body;
	uint64_t queued, sent;         /* bytes, ever */
	const uint8_t *payload;
	size_t payload_left;
	bool payload_is_answer, payload_ends_put;
	void *payload_copy;            /* of a reply whose region was deregistered */

	/* in: the frame that is being received, and bytes read beyond it */
	struct tt_frame frame;
	bool open;
	uint8_t *place;             /* where the payload goes; NULL: nowhere */
	size_t left;
	int put_err;                /* why the PUT that comes in pieces is refused */
	size_t in_at, in_end;
	uint64_t in_pos, batch_end; /* bytes received ever; where the batch of small frames ends */
	struct tt_tcp_buffers *buffers;
};

/* tcp.c */
int tt_tcp_find_place(struct tt_tcp *, uint64_t key, uint64_t offset, uint64_t len, uint8_t **out); /* 0 or TT_NAK_ */

/* tcp_send.c */
void tt_tcp_post(struct tt_peer *, struct tt_op *);
void tt_tcp_owe_ack(struct tt_tcp_peer *, bool lazy);
void tt_tcp_count_lazy(struct tt_tcp_peer *); /* counts the frame that is being received */
void tt_tcp_pay_ack(struct tt_tcp_peer *);
void tt_tcp_owe_nak(struct tt_tcp_peer *, unsigned slot, int why);
void tt_tcp_owe_answer(struct tt_tcp_peer *, const struct tt_tcp_answer *);
void tt_tcp_take_ack(struct tt_tcp_peer *);       /* of the frame that is being received: it ends PUTs */
void tt_tcp_answer_op(struct tt_tcp_peer *, struct tt_op *, int err); /* the answer has come */
void tt_tcp_want_to_send(struct tt_tcp_peer *);
void tt_tcp_unblock(struct tt_tcp_peer *);
void tt_tcp_push_out(struct tt_tcp_peer *);       /* sends what the socket takes, within one turn's budget */
void tt_tcp_push_all(struct tt_tcp *);            /* likewise, every dirty peer's */

/* tcp_receive.c */
void tt_tcp_activate(struct tt_tcp_peer *);       /* the socket is read directly from now on */
void tt_tcp_read_peer(struct tt_tcp_peer *);
#endif
