/* collective_private.h - what the files of this room share */
#ifndef TT_COLLECTIVE_PRIVATE_H
#define TT_COLLECTIVE_PRIVATE_H
#include "collective/collective.h"
#include "device/device.h"
#include "kernel/kernel.h"
#include "transport/copy.h"

/* An `advance` function does what is possible now and never blocks. It returns 1: done, 0: call again, or -errno. */

/* ---- model.c: the costs from which an all-reduce's algorithm is chosen; the same on all ranks of a group ---- */

struct tt_model {
	bool known;
	uint64_t latency_ns;        /* of a small message, one way */
	uint64_t net_ps, add_ps;    /* picoseconds a byte, for sending and for adding */
	bool by_host;               /* the group spans several hosts, and the ranks of each host share its memory */
};
struct tt_tune { /* how far this rank has got with measuring, within one all-reduce */
	bool asked;                 /* rank 0: the last ping or burst is sent; others: ASK is sent */
	int host;                   /* rank 0: the hosts before this one have said whether their ranks share memory, */
	bool some_cannot;           /* and some do not */
	uint32_t round;
	uint64_t since, trip, burst;
};

/* ---- layout.c: which ranks of a group share a host's memory ---- */

struct tt_layout {
	int hosts, here;            /* number of hosts, and the index of mine; hosts is 0 until tt_layout_find() */
	int *seats, *start;         /* seats by host; those of host h are at start[h] to start[h + 1] - 1 */
	int fewest, most;           /* ranks on a host */
	uint32_t print;             /* a fingerprint of the layout; not 0 */
};
int tt_layout_find(struct tutti *); /* once for each group; -ENOMEM */
void tt_layout_free(struct tutti *);
static inline int tt_layout_ranks(const struct tt_layout *l, int host) { return l->start[host + 1] - l->start[host]; }

/* ---- this room's state of a job, and of a group ---- */

struct tt_copiers { struct tt_copier read, write; };
struct tt_collectives {
	struct tt_job *job;
	struct tt_list running, unexpected; /* unexpected: messages that no collective has taken yet */
	struct tt_list segments, hubs;
	struct tt_timer wake;       /* continues the collectives that wait for another one of this rank */
	struct tt_copiers copiers;  /* between vectors and shared memory */
};
enum { TT_CALLS = 64 }; /* a power of two, since the numbers of calls wrap around */
struct tt_coll_call { /* what a rank has called. The same on every rank, or the call fails */
	uint8_t kind;               /* 1 + tutti_stat_kind - TUTTI_STAT_BARRIER; 0: none */
	uint64_t x, y;              /* the arguments: docs/wire.md */
};

struct tt_coll_group {
	struct tt_model model;
	struct tt_layout layout;
	struct tt_segment *segment; /* NULL: none, or no call has needed one yet */
	struct tt_hub *hub;         /* likewise */
	struct tt_coll_call ended[TT_CALLS]; /* the last calls that ended well: call k is at k % TT_CALLS */
	bool any_failed;
	uint32_t failed;            /* the number of the first collective that failed */
	const char *why;            /* NULL: collectives go on here. Else the words, kept by the job: some rank ... */
	uint32_t given_up_at;       /* ... has waited for too long in the call of this number */
};
static inline struct tt_collectives *tt_collectives(const struct tt_job *job) { return job->own[TT_COLLECTIVE_SLOT]; }
static inline struct tt_coll_group *tt_coll_group(const struct tutti *g) { return g->own[TT_COLLECTIVE_SLOT]; }

/* ---- vector.c: the elements of a call, in one range of memory, or in several ---- */

struct tt_part { /* a range: where it ends in memory, and in the vector */
	char *memory_end;
	size_t end;
};
struct tt_vector {
	const char *in;             /* is read, ... */
	char *out;                  /* ... and written: the same memory, or apart from it. NULL: no result is wanted */
	const struct tt_part *part; /* or these ranges are read and written; in and out are NULL, unless they adjoin */
	int parts;                  /* 0: no ranges. The same on all ranks, as are their sizes */
	struct tt_copiers *copiers; /* learn how to copy it. NULL: memcpy does */
};
struct tt_run { /* bytes that lie one behind another */
	const char *in;
	char *out;
	size_t len;
};
static inline struct tt_vector tt_vector_at(char *memory) { return (struct tt_vector){ .in = memory, .out = memory }; }
struct tt_run tt_vector_run(const struct tt_vector *, size_t at, size_t most); /* from `at` on, at most `most` bytes */
void tt_vector_read(const struct tt_vector *, size_t at, void *to, size_t len);
void tt_vector_write(const struct tt_vector *, size_t at, const void *from, size_t len); /* if there is an `out` */
/* Can others map it? They read the memory that they write to. */
static inline bool tt_vector_can_map(const struct tt_vector *v) { return v->in && (!v->out || v->out == v->in); }

/* ---- collective.c: what all collectives share ---- */

struct tt_coll_loan;
struct tt_coll { /* one collective under way: a state machine that messages and notifies drive */
	struct tt_list link;        /* in tt_collectives.running, in the order of their starts */
	struct tt_job *job;
	struct tutti *group;
	int n, me;                  /* ranks, and which of them I am. In this room a rank is a seat of the group */
	uint32_t seq;               /* number of the call; the same on every rank */
	tutti_stat_kind kind;
	size_t bytes;               /* of this rank, for the stats */
	struct {
		const void *base;
		size_t len;
		struct tt_pinned *pinned; /* NULL: need not be */
	} memory[2];                /* the user's: the first is where others may put, the second is only read */
	struct tt_shadow shadow;    /* of memory[0], if that is a device's; zeros: it is the host's */
	struct tt_coll_call call;
	struct tt_coll_call odd;    /* another call under this number, if this call fails for it ... */
	int odd_rank;               /* ... and which rank called it */
	struct tt_operation *request;
	int (*advance)(struct tt_coll *);
	/* Shared memory drives this collective, too: can it go on? Asked in each turn of the progress loop, and with
	 * `asleep` before a sleep, which it announces. NULL: only messages drive it */
	bool (*poll)(struct tt_coll *, bool asleep);
	struct tt_segment_call *segment_call; /* NULL: it uses no segment */
	void (*release)(struct tt_coll *); /* at the end: deregisters and frees what the collective owns */
	unsigned pending;           /* operations that the transport has not finished */
	unsigned lent;              /* ranges of the caller's memory that were recalled and are still held */
	bool stopped;               /* another rank has taken its memory back: nothing is sent any more */
	bool over, failed, busy, released; /* over: advance has returned 1 */
	bool undecided;             /* it may still choose to use a shared segment, or make one */
	bool may_leave_messages;    /* it may end before all messages for it have been taken */
	int err, culprit;           /* culprit: the job's rank to name, or -1 */
	uint32_t *notified_by;      /* notifies that have come, at [2 * seat + lane]; NULL: none are expected */
	int (*prepare)(struct tt_coll *); /* with the lock, before the call begins; -errno: it does not. May be NULL */
	void *room;                 /* of scratch.c, until the end: operations may use it; NULL: none */
	void *taken;                /* the message that the last take returned, if it is to be freed */
	struct tt_timer stale;      /* runs while a rank has given up and the reason is not known yet */
};

enum {
	TT_COLL_HEAD = 32, /* bytes of a message in front of a piece */
	/* bytes that one message holds: whole elements of any type */
	TT_COLL_PIECE = (TT_MESSAGE_MAX - TT_COLL_HEAD) & ~63,
	TT_COLL_START = 16, /* bytes of the header of a transfer's first message */
	TT_COLL_SHORT = (TT_COLL_PIECE - TT_COLL_START) & ~63, /* a longer transfer is put: its memory is pinned */
};

enum { TT_LANE_DATA, TT_LANE_CREDIT };

bool tt_coll_rounds(tutti_type, tutti_rule); /* of f16 or bf16: is it to be made in f32, and rounded once? */
int tt_coll_check_rule(const char *what, tutti_type, tutti_rule); /* -EINVAL: unknown, or not together */
static inline bool tt_overlap(const void *a, size_t a_len, const void *b, size_t b_len)
{
	uintptr_t x = (uintptr_t)a, y = (uintptr_t)b;

	return a_len && b_len && (x < y ? y - x < a_len : x - y < b_len);
}

/* Tags below these are the collective's own. HERE carries nothing but the call in its header. */
enum { TT_TAG_OFFER = 0x7ffd0000, TT_TAG_VOTE, TT_TAG_HUB, TT_TAG_HUB_VOTE, TT_TAG_HERE = 0x7fff0002 };

/* Allocates a zeroed struct of `size` bytes that begins with struct tt_coll. All ranks agree on x and y. NULL: no
 * memory. */
struct tt_coll *tt_coll_new(struct tutti *, size_t size, tutti_stat_kind, uint64_t x, uint64_t y);
static inline struct tt_coll_call tt_coll_call_of(tutti_stat_kind kind, uint64_t x, uint64_t y)
{
	return (struct tt_coll_call){ .kind = (uint8_t)(1 + kind - TUTTI_STAT_BARRIER), .x = x, .y = y };
}
void tt_coll_free(struct tt_coll *);            /* frees a collective that was never run */
/* Takes the lock and starts the collective. Waits if there is no op. The collective is freed at its end. */
int tt_coll_run(struct tt_coll *, tutti_op *);
/* Is nothing in the way of a call that begins and ends while this thread has the lock? No other call of this rank runs,
 * no message waits for one, and the group is whole. */
bool tt_coll_is_quiet(const struct tutti *);
void tt_coll_count_at_once(struct tutti *, tutti_stat_kind, const struct tt_coll_call *, size_t bytes, uint64_t since);
/* Starts a call that this thread has the lock for, and waits for it. */
int tt_coll_go_on(struct tt_coll *);
/* May this call decide now? Earlier calls of the group come first: all ranks use the segment in the same order. */
bool tt_coll_is_next(const struct tt_coll *);
void tt_coll_gave_up(struct tt_coll *, int rank); /* that rank of the job has given up; the reason follows */
void tt_coll_poll(struct tt_coll *, bool (*poll)(struct tt_coll *, bool asleep)); /* NULL: no longer */
void tt_coll_wake_soon(struct tt_job *);        /* continues all collectives from a later turn of the progress loop */

/* Sends at most TT_COLL_PIECE bytes, which are copied. send_run sends a head and bytes of a vector as one message.
 * send_lazily may wait for the next message or put to that rank, or for a turn of the progress loop. */
void tt_coll_send(struct tt_coll *, int to, uint32_t tag, const void *, size_t);
void tt_coll_send_lazily(struct tt_coll *, int to, uint32_t tag, const void *, size_t);
void tt_coll_send_run(struct tt_coll *, int to, uint32_t tag, const void *head, size_t head_len,
                      const struct tt_vector *, size_t at, size_t len);
/* Tells a rank that still waits in a call that is over here, or that may have left: at most 128 bytes. */
void tt_coll_answer(struct tutti *, int to, uint32_t seq, const struct tt_coll_call *, uint32_t tag, const void *,
                    size_t);
/* That rank has called something else: notes it for the sentence, and is -EBADMSG. */
int tt_coll_differs(struct tt_coll *, int rank, const struct tt_coll_call *);
/* Returns the bytes of a message, valid until the next take or the return from advance; NULL if it has not come
 * yet. A message of another length than `len` fails the collective. take_any takes any length, from any rank if
 * *from is -1. */
const void *tt_coll_take(struct tt_coll *, int from, uint32_t tag, size_t len);
const void *tt_coll_take_any(struct tt_coll *, int *from, uint32_t tag, size_t *len);
/* Puts bytes of a vector, which stay valid until the end, with a notify; NULL: the notify alone. As with messages, this
 * call may end before the bytes have landed. */
int tt_coll_put(struct tt_coll *, int to, const struct tt_key *, uint64_t offset, const struct tt_vector *, size_t at,
                size_t len, unsigned lane);
/* Lends memory, into which that rank may put. 1: not connected yet, ask again on the next advance; 0; -errno. */
int tt_coll_lend(struct tt_coll *, int rank, void *base, size_t len, struct tt_coll_loan **);
enum { TT_COLL_KEY = TT_KEY_SIZE + 8 };
/* Packs its key, and where `at` is in the key's memory, which may hold more than was lent. */
void tt_coll_put_key(struct tt_pack *, const struct tt_coll_loan *, const void *at);
/* all: all that the rank was to put has come. Else it is asked to stop: the collective ends when it has; but memory of
 * tt_scratch_take of so many bytes is set aside instead, and given back then. 0: it is the caller's memory. */
void tt_coll_take_back(struct tt_coll *, struct tt_coll_loan *, bool all, size_t scratch);

/* ---- describe.c: calls in words ---- */

static inline bool tt_coll_same(const struct tt_coll_call *a, const struct tt_coll_call *b)
{
	return a->kind == b->kind && a->x == b->x && a->y == b->y;
}
/* How the call of `who`, a rank's name, differs from this rank's: a sentence. */
void tt_coll_compare(const char *who, const struct tt_coll_call *theirs, const struct tt_coll_call *mine, char *text,
                     size_t room);

/* ---- transfer.c: runs of bytes between ranks, of which the larger collectives consist ---- */

struct tt_transfer { /* the collective fills in the first part; a transfer that combines has whole elements */
	int other;                  /* the rank at the other end */
	uint32_t id;                /* the same at both ends; unique among the transfers between the two */
	size_t at, len;             /* of the vector: what is sent; or where it goes, or what it is combined with */
	bool given;                 /* what is sent, or combined with what comes, is what the caller gave (`in`) */
	bool combine;               /* the same at both ends */
	bool partial;               /* the same at both ends: f32 of `wide` travels; at and len count its bytes */
	bool last;                  /* in: the sum is complete: it is divided, for an average, and rounded */
	int after;                  /* out: the first `after` transfers in may bring bytes that this one sends */

	bool started, open;         /* START, and READY, was sent or taken */
	size_t done, by_message;    /* bytes sent or taken in; how many of them travel in START */
	uint32_t chunks, credits;
	struct tt_key key;          /* out, ... */
	uint64_t key_at;            /* ... and where the transfer's memory begins in the key's */
	struct tt_coll_loan *loan;  /* in */
	char *slots;
};
struct tt_transfers {
	struct tt_coll *coll;
	struct tt_vector vector;
	size_t width;               /* of an element, where transfers combine */
	float *wide;                /* of f16 and bf16: has partial sums, element by element. NULL: the vector has */
	tutti_type type;
	tutti_rule rule;
	struct tt_transfer *in, *out; /* `in` are taken strictly in order; `out` are sent in order as far as they may */
	int ins, outs, ins_done, outs_done;
	int ahead;                  /* how many may be under way, and how far sending may be ahead of receiving */
	bool always;                /* empty transfers travel, too: only one end may know that it is empty */
	bool rendezvous;            /* short transfers wait for READY, too: a sender cannot get ahead of the receiver */
};
int tt_transfers_new(struct tt_transfers *, struct tt_coll *, int max, int ahead); /* at most `max` in, and `max` out */
int tt_transfers_advance(struct tt_transfers *);
void tt_transfers_free(struct tt_transfers *); /* on release */
size_t tt_transfers_chunk(size_t len);         /* bytes of a chunk of a transfer of `len` bytes */

/* ---- offer.c: memory of this rank that other ranks of its host map ---- */

enum { TT_OFFER_LEN = 1 + TT_KEY_SIZE };
struct tt_offered {             /* zeroed: none */
	void *memory;
	struct tt_region *region;   /* registered with the one net that leads to all others */
};
int tt_offer_make(struct tt_offered *, struct tt_job *, struct tt_net *, size_t bytes); /* -EXDEV: another net */
void tt_offer_write(const struct tt_offered *, bool able, uint8_t bytes[TT_OFFER_LEN]);
void *tt_offer_map(struct tt_peer *, const void *offer, size_t len, struct tt_key *); /* NULL: cannot be mapped */
void tt_offer_end(struct tt_offered *);

/* ---- segment.c: memory that the ranks of a group on one host share; one segment for each host ---- */

enum {
	TT_SEGMENT_RANKS = 128,     /* at most: each rank maps every other's slot */
	TT_SEGMENT_FEW = 16,        /* at most, for calls of few messages, which do not connect all to all */
	TT_SEGMENT_CHUNK = 256 * 1024, /* bytes that are passed through the segment at once: they stay in the caches */
	TT_HEADER_BYTES = 64,       /* of a vector that the call header has room for */
};
#define TT_STEP_QUIT UINT32_MAX

struct tt_call_header { /* of one call of one rank */
	_Atomic uint64_t flag;      /* the call's number, and this rank's step in it */
	struct tt_coll_call call;
	uint8_t half;               /* the half of the rank slot that the call begins with */
	bool mapped, can;           /* others may map this rank's vector; this rank has mapped theirs */
	uint32_t agreed;            /* if mapped: the set of keys that this rank knows with its own (standing.c) */
	union {
		struct tt_key key;          /* of the arena that has the vector, if mapped */
		char bytes[TT_HEADER_BYTES]; /* of an all-reduce or reduce: a vector that fits, in place of the half */
	};
	uint64_t at;                /* of the vector in the arena */
} __attribute__((aligned(2 * TT_CACHE_LINE)));
struct tt_rank_slot { /* one rank's memory, which the others map. The rank alone writes it */
	struct tt_call_header header[2];
	_Atomic uint32_t asleep __attribute__((aligned(2 * TT_CACHE_LINE))); /* this rank wants a WAKE with each step */
	_Atomic uint32_t done __attribute__((aligned(2 * TT_CACHE_LINE))); /* with all earlier calls */
	char half[2][2 * TT_SEGMENT_CHUNK] __attribute__((aligned(4096))); /* what others combine; what they copy */
};
enum { TT_STANDING = 4 };     /* arenas of a rank whose keys stand */
struct tt_standing { /* of this rank. Zeroed: none */
	uint64_t serial;            /* the arena's ... */
	struct tt_mem mem;          /* ... and its memory */
	struct tt_region *region;
	uint32_t agreed;            /* 1 + the call that agreed on this key and one of each other rank; 0: none has */
};
struct tt_known { /* what another rank has offered in that call */
	struct tt_key key;
	char *base;                 /* the arena's address here */
};
struct tt_segment_peer { /* of another rank */
	struct tt_rank_slot *slot;  /* NULL: not mapped, or no longer */
	struct tt_peer *peer;       /* through which it was mapped */
	const struct tt_call_header *header; /* of this call; NULL: not found yet */
	struct tt_key key;          /* of the rank's vector in this call ... */
	char *vector;               /* ... and its address here */
	bool offered, voted;        /* while the segment is made */
	struct tt_known known[TT_STANDING]; /* in the call that agreed on this rank's key in `standing` */
};
struct tt_segment {
	struct tt_list link;        /* in tt_collectives.segments */
	struct tutti *group;        /* NULL: closed */
	int n, me;
	const int *seats;           /* n of them, in the group */
	struct tt_offered own;      /* my slot */
	uint32_t made_in;           /* number of the call that makes the segment */
	bool making, offered, voted, able;
	bool known, open;           /* the result is known; all ranks can use the segment */
	bool asleep;                /* what my slot says */
	unsigned turn, half;        /* which header is next, and which half */
	uint32_t complete;          /* the last call that was completed here: its number ... */
	unsigned complete_turn;     /* ... and its turn + 1; 0: none */
	uint32_t last;              /* the value of `done` with which all others have finished my last call */
	int lost;                   /* 1 + a rank of the job whose slot is no longer there; 0: none */
	struct tt_list queue;       /* calls in their order: the first one uses the segment */
	struct tt_standing standing[TT_STANDING];
	unsigned next_standing;     /* which is replaced next */
	uint64_t freed;             /* tt_arenas_freed() when the freed ones were dropped */
	struct tt_segment_peer peers[]; /* n of them; mine has only the slot */
};
int tt_segment_make(struct tt_coll *); /* like advance: 1 once the result is known */
/* Like advance, for a call that uses the segment if all ranks share one: 1 once it is known whether it does. */
int tt_segment_decide(struct tt_coll *, bool *uses_segment);
struct tt_member *tt_segment_member(const struct tt_segment *, int i);
void tt_segment_answer(struct tutti *, int seat, uint32_t number, const struct tt_coll_call *); /* after the call */
void tt_segment_tell(struct tt_coll *);      /* answers the OFFERs in this call, once the result is known */
bool tt_segment_open(const struct tutti *);  /* all ranks of the group share one segment */
void tt_segment_close(struct tutti *);
void tt_segment_sweep(struct tt_job *, bool all); /* frees closed segments that no rank reads; all: also those in use */
void tt_segment_lost(struct tt_job *, const struct tt_peer *); /* the peer is about to be disconnected */

/* standing.c. NULL: the vector is in no arena, or cannot be registered. Valid until the next call or drop_all. */
struct tt_standing *tt_standing_of(struct tt_segment *, const void *vector, size_t bytes);
void tt_standing_offer(const struct tt_standing *, const void *vector, struct tt_call_header *); /* for step 1 */
/* In this call all ranks have offered keys, and all have mapped all of them. */
void tt_standing_agree(struct tt_segment *, struct tt_standing *mine, uint32_t call);
bool tt_standing_holds(const struct tt_call_header *, const struct tt_key *, size_t bytes); /* is the vector there? */
/* All have come. 1: all have offered keys that all know from an earlier call, so peers[] has them and the vectors. 0;
 * -EPROTO. */
int tt_standing_use(struct tt_segment *, const struct tt_standing *mine, size_t bytes);
void tt_standing_drop_all(struct tt_segment *); /* no rank can store into them once this returns */

bool tt_segment_may_begin(const struct tt_segment *); /* does no rank need what my next header says now? */
struct tt_call_header *tt_segment_begin(struct tt_segment *); /* my next header, to be filled in before step 1 */
void tt_segment_step(struct tt_segment *, struct tt_call_header *, uint32_t call, uint32_t step); /* wakes sleepers */
/* Has rank i reached that step? 1: yes, 0: no, -ECONNABORTED: that rank has given up. */
int tt_segment_reached(struct tt_segment *, int i, uint32_t call, uint32_t step);
/* A cheap look. True: ask tt_segment_reached(). */
bool tt_segment_seems_at(const struct tt_segment *, int i, uint32_t call, uint32_t step);
void tt_segment_done(struct tt_segment *, uint32_t call); /* I read nothing of that call any more */
void tt_segment_complete(struct tt_segment *, uint32_t call); /* likewise, and all ranks have done their part of it */
void tt_segment_set_asleep(struct tt_segment *, bool asleep);
/* Begins stores into the mapped vectors of all others. Returns -1, or the first rank that has given up: then the stores
 * have not begun. */
int tt_segment_store_begin(const struct tt_segment *);
void tt_segment_store_end(const struct tt_segment *);

/* ---- segment_call.c: one call that uses its host's segment ---- */

enum {
	TT_SEGMENT_CALL_PIECE = 256 * 1024, /* bytes read or stored at once: a rank checks for failures after each */
	TT_SEGMENT_CALL_PIECES = 4,         /* pieces or chunks after which it returns to the progress loop */
};
struct tt_segment_call {
	struct tt_coll *coll;
	struct tt_segment *segment;
	struct tt_list turn;        /* in segment->queue */
	struct tt_call_header *header; /* mine; NULL: this call's turn has not come */
	uint32_t step;
	uint32_t earlier;           /* 1: the call waits for the step before its own; else 0 */
	int seen;                   /* ranks that have reached the step */
	size_t bytes;               /* of a vector */
	int offers;                 /* number of ranks whose vectors are to be mapped */
	bool met, some_offer, all_offer; /* all ranks are here; some, or all, of these vectors can be mapped */
	bool mapped;                /* all ranks have mapped all of them, as peers[].vector */
	bool busy;                  /* the call has more to do and waits for no rank */
	bool paused;                /* the call waits for others than the ranks here */
	unsigned chunk;             /* how often the halves were switched ... */
	unsigned until;             /* ... and how often when the call returns to the progress loop */
	struct tt_standing *standing; /* has my vector, for others to map; NULL: they cannot */
	struct tt_timer announce;
	struct tt_timer slower;     /* while slower ranks still read the header that this call needs */
};
void tt_segment_call_begin(struct tt_segment_call *, struct tt_coll *, size_t bytes, int offers);
void tt_segment_call_end(struct tt_segment_call *, bool done); /* on release; not done: tells others that I gave up */
int tt_segment_call_check(struct tt_segment_call *); /* 1: go on, 0: a rank has given up, -ECONNRESET */
/* False: after check() the call has passed so many chunks that other work in the progress loop must get its turn. */
bool tt_segment_call_may_go_on(const struct tt_segment_call *);

/* Each of these returns 1: yes, 0: not yet, or -errno. */
int tt_segment_call_turn(struct tt_segment_call *); /* is it my turn? Then offer or fill a buffer, and step */
/* From step 1 on, as the header says. `vector`: this rank's, if it is mapped. */
void tt_segment_call_go_on(struct tt_segment_call *, struct tt_call_header *, const void *vector);
void tt_segment_call_stored(struct tt_segment_call *); /* it goes on from step 2: my slice is in all mapped vectors */
int tt_segment_call_meet(struct tt_segment_call *); /* are all here, and is it known what is mapped? */
int tt_segment_call_all(struct tt_segment_call *);  /* have all reached my step? Then read what they wrote */
int tt_segment_call_still(struct tt_segment_call *); /* has none given up? Then what was read was valid */

void tt_segment_call_offer(struct tt_segment_call *, const void *vector); /* lets others map it, if it can be mapped */
void tt_segment_call_step(struct tt_segment_call *); /* I am one step further */
/* What all() and still() ask about from now on: my step, or with `earlier` 1 the one before. */
void tt_segment_call_await(struct tt_segment_call *, uint32_t earlier);
char *tt_segment_call_buffer(const struct tt_segment_call *, int i); /* the half of rank i's slot that is in use */
const char *tt_segment_call_last_buffer(const struct tt_segment_call *, int i); /* the other half, used before */
void tt_segment_call_next_buffer(struct tt_segment_call *); /* switches halves; all ranks do so at the same step */
int tt_segment_call_store_begin(struct tt_segment_call *); /* may I store into the mapped vectors? 0: into none */
void tt_segment_call_store_end(struct tt_segment_call *);

struct tt_span { size_t at, len; }; /* bytes */

/* The i-th of n parts of `bytes`, in whole cache lines: no two ranks write to the same line. */
static inline struct tt_span tt_span_of(size_t bytes, int n, int i)
{
	size_t lines = (bytes + TT_CACHE_LINE - 1) / TT_CACHE_LINE;
	size_t from = lines * (size_t)i / (size_t)n, to = lines * ((size_t)i + 1) / (size_t)n;
	size_t at = tt_min(from * TT_CACHE_LINE, bytes);

	return (struct tt_span){ at, tt_min(to * TT_CACHE_LINE, bytes) - at };
}

/* ---- hub.c: short all-reduces of many ranks on one host, through one segment, which rank 0 makes ---- */

enum { TT_HUB_BYTES = 4096 }; /* of a vector, at most */
struct tt_hub_slot { /* one rank's; it alone writes it */
	_Atomic uint64_t flag;      /* the call's number, and this rank's step in it */
	_Atomic uint32_t asleep;    /* this rank wants a WAKE with the result */
	struct tt_coll_call call;
	char vector[TT_HUB_BYTES] __attribute__((aligned(2 * TT_CACHE_LINE)));
};
struct tt_hub_memory { /* rank 0's; it alone writes all but the slots */
	_Atomic uint64_t result_of; /* the call whose result is there */
	_Atomic uint32_t awaits;    /* the rank that wakes rank 0; 0: none */
	char result[TT_HUB_BYTES] __attribute__((aligned(2 * TT_CACHE_LINE)));
	struct tt_hub_slot slot[];
};
struct tt_hub {
	struct tt_list link;        /* in tt_collectives.hubs */
	struct tutti *group;        /* NULL: closed */
	int n, me;
	struct tt_offered own;      /* rank 0's ... */
	struct tt_hub_memory *memory; /* ... and where the hub is here; NULL: not there yet, not mapped, or no longer */
	struct tt_peer *peer;       /* the others': through which it was mapped ... */
	struct tt_key key;          /* ... by this key */
	uint32_t made_in;           /* number of the call that makes the hub */
	bool making, asked, able;
	bool known, open;           /* the result is known; all ranks can use the hub */
	bool asleep;                /* what my slot says */
	bool used;
	uint32_t last;              /* if used: the last call here */
	int lost;                   /* 1 + rank 0's number in the job, if its memory is no longer there; 0: it is */
	struct tt_list queue;       /* calls in their order: the first one uses the hub */
	uint8_t from[];             /* rank 0's, while the hub is made: what came from each rank */
};
struct tt_hub_call {
	struct tt_list turn;        /* in hub->queue */
	int seen;                   /* rank 0: so many ranks have begun the call */
	bool here, done;            /* my vector is there; I have the result */
	struct tt_timer announce;
};
bool tt_hub_takes(const struct tutti *, size_t bytes); /* such a call goes through the hub, if the hub can be made */
bool tt_hub_open(const struct tutti *, size_t bytes);  /* it can go there now */
int tt_hub_make(struct tt_coll *, size_t bytes); /* like advance: 1 once it is known whether there is one */
void tt_hub_tell(struct tt_coll *); /* as tt_segment_tell() ... */
void tt_hub_answer(struct tutti *, int seat, uint32_t number, const struct tt_coll_call *); /* ... and _answer() */
void tt_hub_close(struct tutti *);
void tt_hub_sweep(struct tt_job *, bool all); /* frees closed hubs that no rank reads; all: also those in use */
void tt_hub_lost(struct tt_job *, const struct tt_peer *); /* the peer is about to be disconnected */

/* ---- blocks.c: on one host, each owner combines its block of all vectors, and brings it to all ranks ---- */

enum tt_blocks_stage {
	TT_BLOCKS_NONE,
	TT_BLOCKS_REDUCE,           /* my block is combined */
	TT_BLOCKS_EXCHANGE,         /* instead of REDUCE: my block of each rank's vector is here */
	TT_BLOCKS_GATHER,           /* all owners' blocks are here */
	TT_BLOCKS_LEAVE,            /* no rank reads my vector any more */
};
struct tt_blocks { /* zeroed; the caller fills in the first part: the same on all ranks, but for the addresses */
	struct tt_vector vector;    /* all blocks: my part of each; to gather, where each comes, and mine is there */
	size_t bytes;               /* of all blocks */
	int first, owners;          /* the owners: so many ranks of the host, from the first on */
	size_t each;                /* bytes of a block; 0: as tt_span_of() cuts the vector */
	const struct tt_span *spans; /* each owner's block instead, where they differ; `each`: the longest */
	char *to;                   /* where my combined block goes, or the blocks of all ranks. NULL: to the vector */
	float *wide;                /* where my combined block of f16 or bf16 goes, as f32, from its place in the vector
	                             * on; NULL: it is rounded */
	size_t width;               /* of an element */
	tutti_type type;
	tutti_rule rule;            /* AVERAGE: of the ranks of this host */
	struct tt_call_header *begun; /* of a call that has begun at once; NULL */

	struct tt_segment_call call;
	enum tt_blocks_stage stage;
	int phase, owner;
	size_t at;                  /* bytes done of each block, or of the owner's */
};
void tt_blocks_begin(struct tt_blocks *, struct tt_coll *, enum tt_blocks_stage first);
void tt_blocks_end(struct tt_blocks *);   /* on release */
struct tt_span tt_blocks_span(const struct tt_blocks *, int i); /* the block that rank i owns */
/* Like advance. The stages come in their order; some may be left out, but never the last one. */
int tt_blocks_run(struct tt_blocks *, enum tt_blocks_stage);

/* ---- blockwise.c: a collective that uses the segment where all ranks share a host, and messages elsewhere ---- */

struct tt_blockwise {
	struct tt_coll coll;
	struct tt_blocks blocks;
	enum tt_blocks_stage stage; /* in the segment: runs this stage, then LEAVE */
	int (*begin)(struct tt_coll *);    /* without it: begins; may be NULL ... */
	int (*advance)(struct tt_coll *);  /* ... and advances */
	void (*release)(struct tt_coll *); /* always, even if not begun; may be NULL */
	bool chosen, uses_segment;
};
/* Like tt_coll_new(). The caller fills in the rest. */
struct tt_blockwise *tt_blockwise_new(struct tutti *, size_t size, tutti_stat_kind, uint64_t x, uint64_t y,
                                      const struct tt_blocks *, bool may_use_segment);

/* ---- pairwise.c, scatter.c: gathers of long values. The arguments have been checked ---- */

int tt_gather_to_all(struct tutti *, const void *value, size_t bytes, void *all, tutti_op *);
int tt_gather_long(struct tutti *, const void *value, size_t bytes, void *all, int root, tutti_op *);

/* ---- allreduce.c, and the algorithms: direct.c, hierarchical.c, doubling.c, rabenseifner.c, ring.c, tree.c ---- */

struct tt_exchange { /* an all-reduce among some ranks of a group */
	struct tt_coll *coll;
	const struct tt_algorithm *is;
	int n, me;
	const int *seats;           /* n of them, in the group; NULL: all ranks */
	struct tt_vector vector;
	size_t at;                  /* bytes of it before the first element */
	size_t count, width;        /* elements, and bytes of one */
	tutti_type type;
	tutti_rule rule;            /* AVERAGE: of all ranks of the group */
	float *wide;                /* of f16 and bf16: memory for partial sums of all elements; or NULL */
	bool summed;                /* `wide` has what this rank gives; else `in` has */
	void *state;                /* the algorithm's own, from begin() to release() */
};
static inline int tt_exchange_seat(const struct tt_exchange *x, int i) { return x->seats ? x->seats[i] : i; }
void tt_exchange_widen(const struct tt_exchange *); /* `wide` gets what this rank gives */

/* ---- tree.c: trees over the ranks of a group, and the reduce that goes along one ---- */

enum { TT_CHILDREN_MAX = 31 };  /* one for each bit of a rank */
struct tt_family { /* a rank's neighbours in a tree */
	int parent;                 /* -1: the root has none */
	int children, child[TT_CHILDREN_MAX]; /* the smallest subtree first */
};
struct tt_family tt_family_of(int n, int me, int root); /* in a binomial tree */
bool tt_tree_combines(const struct tt_exchange *); /* does this rank add what others send? */

struct tt_begun { /* how far a call has got */
	struct tt_call_header *header; /* mine, at step 1; NULL: it has not begun */
	bool stored;                /* it is at step 2: my slice is in all vectors */
};
struct tt_direct { /* the state of direct.c */
	struct tt_segment_call call;
	struct tt_begun begun;      /* at once; zeroed: it has not */
	int phase;
	size_t at;                  /* bytes done of the vector, or of my slice */
};

struct tt_hierarchy { /* the state of hierarchical.c */
	struct tt_blocks blocks;
	struct tt_exchange between; /* hosts; `is` is NULL on ranks that take no part in it */
	int *seats, phase;
	bool begun;
};

struct tt_allreduce {
	struct tt_coll coll;
	struct tt_exchange all;     /* all.is is NULL until the algorithm is chosen */
	const struct tt_algorithm *forced; /* by TUTTI_ALLREDUCE; NULL: auto */
	int root;                   /* which alone gets the result; -1: all do */
	struct tt_part *parts;      /* of the vector, or NULL */
	union {
		struct tt_direct direct;
		struct tt_hub_call hub;
		struct tt_hierarchy hierarchy;
	};
	struct tt_tune tune;
};
static inline struct tt_allreduce *tt_allreduce_of(const struct tt_exchange *x)
{
	return tt_container_of(x, struct tt_allreduce, all);
}

struct tt_algorithm {
	const char *name;
	int (*begin)(struct tt_exchange *);
	int (*advance)(struct tt_exchange *);
	void (*release)(struct tt_exchange *); /* also after a begin() that failed */
	size_t (*chunk)(size_t bytes, int n, size_t piece); /* bytes sent at once; NULL: none are sent */
};
/* Is it better to combine this vector where it lies, if n ranks can map it, than to copy it? */
bool tt_direct_maps(const struct tt_exchange *, int n);
/* Combines bytes of all mapped vectors into all of them, or into the root's (-1: none). */
void tt_direct_store(const struct tt_segment *, const struct tt_exchange *, int root, size_t at, size_t len);
extern const struct tt_algorithm tt_direct, tt_hierarchical, tt_through_hub;
extern const struct tt_algorithm tt_doubling, tt_rabenseifner, tt_ring, tt_tree;
const char *tt_algorithm_name(uint64_t letter); /* by the third one, which a call holds; "unknown" */
int tt_hierarchical_leaders(const struct tt_layout *, size_t bytes); /* ranks of each host that exchange slices */
int tt_power_below(int n); /* the largest power of two that is at most n; n >= 1 */

/* ---- at_once.c: a short call from begin to end, for ranks that come to it at about the same time ---- */

enum {
	TT_AT_ONCE = 12 * 1024,     /* bytes that an all-reduce reads from others, up to which they are copied */
	TT_MAP_FROM = 1024,     /* more than so many bytes are not copied where all vectors can be mapped ... */
	TT_AT_ONCE_MOST = 512 * 1024, /* a longer vector would hold the lock for too long */
};
/* x: an all-reduce; NULL: a barrier. Returns 0: all of it is done; -errno; 1, without a header: this way cannot be
 * taken. 1 with a header: another rank is late, or calls something else; this thread has the lock, and the group's next
 * call is this one: it goes on from there. */
int tt_at_once(struct tutti *, tutti_stat_kind, const struct tt_exchange *x, const struct tt_coll_call *,
               struct tt_begun *begun);
int tt_at_once_go_on(struct tutti *, struct tt_coll *, const struct tt_begun *); /* NULL: no memory for it */

/* transfer.c, for an algorithm that consists of transfers; its state is a struct tt_transfers. */
int tt_exchange_begin(struct tt_exchange *, int max, int ahead); /* like tt_transfers_new() */
/* For a vector of so many blocks: how many segments each block is cut into. A transfer counts blocks of segments. */
int tt_exchange_segments(const struct tt_exchange *, int blocks);
/* tt_exchange_begin() with `max` for each segment. Then `reduce` and `gather` say which transfers each segment needs:
 * the gather of a segment comes behind the reduce of the next one. */
int tt_exchange_begin_segments(struct tt_exchange *, int blocks, int max, int ahead,
                               void (*reduce)(struct tt_exchange *, int segment),
                               void (*gather)(struct tt_exchange *, int segment));
int tt_exchange_advance(struct tt_exchange *);
void tt_exchange_release(struct tt_exchange *);
/* A transfer with rank `other` of n blocks from `first` on, of a vector that is cut into `blocks`. */
struct tt_transfer tt_exchange_blocks(const struct tt_exchange *, int other, uint32_t id, int blocks, int first, int n);
/* It is combined. given: the sender has combined nothing with it yet. */
void tt_exchange_combine(const struct tt_exchange *, struct tt_transfer *, bool given);
void tt_exchange_send(struct tt_exchange *, struct tt_transfer); /* after all those received so far */
void tt_exchange_receive(struct tt_exchange *, struct tt_transfer);

/* model.c */
bool tt_model_measures(const struct tt_settings *);
struct tt_model tt_model_of(const struct tutti *); /* as measured, or as assumed */
bool tt_model_needed(const struct tutti *, size_t bytes); /* once the layout is known */
int tt_model_learn(struct tt_allreduce *);  /* like advance: 1 once this rank knows the model */
void tt_model_tell(struct tt_allreduce *);  /* on each advance of rank 0: answers ranks that do not know the model */
const struct tt_algorithm *tt_model_choose(const struct tt_model *, int n, size_t bytes, size_t piece);
/* The time expected, in nanoseconds. */
uint64_t tt_model_predict(const struct tt_model *, const struct tt_algorithm *, int n, size_t bytes, size_t piece);
#endif
