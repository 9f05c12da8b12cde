/* flight.h - what transports share: a peer's stages, its ops from post() to done(), its end, and the regions of one net
 *
 *   tt_flight_post -> pending -> tt_flight_begin -> in flight -> tt_flight_end -> finished -> done()
 *
 * An op that waits for an answer has a slot: a number below 256, which the request and its answer carry.
 *
 * A peer that is broken is looked at by progress(): it is cut off, all its ops end, and down() comes.
 */
#ifndef TT_FLIGHT_H
#define TT_FLIGHT_H
#include "base/base.h"
#include "base/list.h"
#include "transport/breaks.h"
#include "transport/frame.h"
#include "transport/transport.h"

enum tt_stage { /* of a connection, on every transport: mostly what is awaited */
	TT_STAGE_CONNECTING, TT_STAGE_HELLO, TT_STAGE_PROOF, TT_STAGE_READY, /* in the handshake: door.h */
	TT_STAGE_TERMS, TT_STAGE_MEET, TT_STAGE_JOINED, TT_STAGE_PROBE, /* behind it; verbs alone: verbs_connect.c */
	TT_STAGE_UP,
	TT_STAGE_LEFT,              /* disconnected, but its adapter still has something: the transport frees it */
	TT_STAGE_DOWN,              /* cut off */
};

struct tt_flight;

struct tt_flight_calls { /* of a transport */
	void (*cut_off)(struct tt_flight *); /* nothing of the peer moves from here on; no list but `all` has it */
	void (*free)(struct tt_flight *);    /* of a peer that is cut off */
	/* A broken peer cannot go down now, or a stranger has been freed instead. NULL: never */
	bool (*held)(struct tt_flight *);
};

struct tt_flights { /* of one net */
	const struct tt_flight_calls *calls;
	struct tt_list peers;       /* all */
	struct tt_list ready;       /* peers that have finished ops or have failed; progress() looks at them */
	int events;                 /* what this progress() has handled */
	bool inside;                /* progress() or disconnect() is on the stack: post() only queues */
};

struct tt_flight { /* of one peer */
	struct tt_peer *peer;
	struct tt_flights *net;
	struct tt_list all, ready;  /* in the net's lists */
	enum tt_stage stage;
	int broken;                 /* -errno: the peer has failed, and the next progress() reports it */
	struct tt_sentence why;     /* why it has failed: another thread may report it */
	struct tt_op_queue pending, finished;
	struct tt_op *first, *last; /* in flight, in post order; `next` leads forward and priv[0] back */
	struct tt_op *slots[TT_FRAME_SLOTS]; /* the ops that wait for an answer; priv[1] is the slot */
	uint8_t free_slots[TT_FRAME_SLOTS];
	unsigned free_count;
};

void tt_flight_init(struct tt_flight *, struct tt_flights *, struct tt_peer *);
void tt_flight_up(struct tt_flight *);                     /* the peer is up, and the caller hears of it */
void tt_flight_break(struct tt_flight *, int err);         /* the next progress() reports that the peer has failed */
void tt_flight_lose(struct tt_flight *, const char *why);  /* likewise, with -ECONNRESET and a sentence */
void tt_flight_post(struct tt_flight *, struct tt_op *);   /* checks the op and appends it to `pending` */
void tt_flight_drain(struct tt_flight *);                  /* calls done() of the finished ops */
void tt_flight_disconnect(struct tt_flight *);             /* as a transport's disconnect() */
void tt_flight_free(struct tt_flight *);                   /* likewise, of a peer without ops */
void tt_flight_fail(struct tt_flight *);                   /* ends all ops with -ECONNRESET, in post order */
void tt_flights_init(struct tt_flights *, const struct tt_flight_calls *);
void tt_flights_drain(struct tt_flights *);                /* looks at each ready peer */
void tt_flights_close(struct tt_flights *);                /* disconnects all peers */
int tt_op_check(const struct tt_net *, const struct tt_op *); /* 0, or -EINVAL or -ERANGE with a sentence */

static inline struct tt_op *tt_flight_before(const struct tt_op *op) { return (struct tt_op *)(uintptr_t)op->priv[0]; }

/* The peer is up, and nothing has broken it. */
static inline bool tt_flight_alive(const struct tt_flight *f) { return f->stage == TT_STAGE_UP && !f->broken; }

/* The op has left `pending`. */
static inline void tt_flight_begin(struct tt_flight *f, struct tt_op *op)
{
	op->priv[0] = (uintptr_t)f->last;
	op->next = NULL;
	if (f->last)
		f->last->next = op;
	else
		f->first = op;
	f->last = op;
}

static inline void tt_flight_end(struct tt_flight *f, struct tt_op *op)
{
	struct tt_op *before = tt_flight_before(op), *behind = op->next;

	if (before)
		before->next = behind;
	else
		f->first = behind;
	if (behind)
		behind->priv[0] = op->priv[0];
	else
		f->last = before;
	op->next = NULL;
}

/* A peer has used memory that is not registered: an answer says so, but the strict reader ends the peer. */
static inline bool tt_flight_misused(struct tt_flight *f, int err)
{
	if (!tt_strict || tt_broken(STALE_SPARED) || (err != -ESTALE && err != -ERANGE))
		return false;
	tt_flight_lose(f, "memory was used that is not registered, or not any more");
	return true;
}

/* Calls done() now. Only progress() and disconnect() may. */
static inline void tt_flight_finish(struct tt_flight *f, struct tt_op *op, int err)
{
	f->net->events++;
	if (tt_broken(DONE_TWICE))
		tt_op_finish(op, err);
	tt_op_finish(op, err);
}

/* The next progress() calls done(). */
static inline void tt_flight_finish_later(struct tt_flight *f, struct tt_op *op, int err)
{
	op->err = err;
	tt_queue_push(&f->finished, op);
	tt_list_append_once(&f->net->ready, &f->ready);
	if (tt_broken(DONE_IN_POST))
		tt_flight_drain(f);
}

/* The caller has looked at free_count. */
static inline unsigned tt_flight_take_slot(struct tt_flight *f, struct tt_op *op)
{
	unsigned slot = f->free_slots[--f->free_count];

	f->slots[slot] = op;
	op->priv[1] = slot;
	return slot;
}

static inline struct tt_op *tt_flight_give_slot(struct tt_flight *f, unsigned slot)
{
	struct tt_op *op = f->slots[slot];

	f->slots[slot] = NULL;
	f->free_slots[f->free_count++] = (uint8_t)slot;
	return op;
}

/* Of transports whose peers' memory is out of reach of the processor. */
void *tt_far_map(struct tt_peer *, const struct tt_key *, int anytime);
int tt_far_store_begin(struct tt_peer *, const struct tt_key *);
void tt_far_store_end(struct tt_peer *);
int tt_far_notify(struct tt_peer *, uint32_t value);
#define TT_FAR .map = tt_far_map, .store_begin = tt_far_store_begin, .store_end = tt_far_store_end, \
	.notify = tt_far_notify

struct tt_grant { /* a registered region, in the net's list */
	struct tt_region base;
	struct tt_list node;
	uint64_t id;                /* what the key names; 0: the region is for local use only */
};
/* Makes a region and appends it to `all`. grant: fills in id and key; NULL: the region is for local use only. -EINVAL:
 * the net pins, and this pin does not hold the memory. */
int tt_grant_new(struct tt_net *, const struct tt_mem *, struct tt_pin *, struct tt_list *all,
                 int (*grant)(struct tt_grant *), struct tt_region **out);
void tt_grant_free(struct tt_grant *);
#endif
