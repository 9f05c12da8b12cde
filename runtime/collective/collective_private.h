/* collective_private.h - what the files of this room share */
#ifndef TT_COLLECTIVE_PRIVATE_H
#define TT_COLLECTIVE_PRIVATE_H
#include "collective/collective.h"
#include "kernel/kernel.h"

struct tt_segment;
struct tt_segment_call;

/* ---- model.c: what the choice of an all-reduce's algorithm rests on; the same on all ranks of a group ---- */

struct tt_model {
	bool known;
	uint64_t latency_ns;        /* of a small message, one way */
	uint64_t net_ps, add_ps;   /* picoseconds a byte, on the wire and for adding */
	bool by_host;               /* the group is on several hosts, and the ranks of each share its memory */
};
struct tt_tune { /* of one all-reduce: how far this rank is with getting to know it */
	bool asked;                 /* rank 0: the last ping or burst is out */
	int host;                   /* rank 0: of those before this one it knows whether their ranks share memory ... */
	bool some_cannot;           /* ... and that some do not */
	uint32_t round;
	uint64_t since, trip, burst;
};

/* ---- layout.c: which ranks of a group share a host's memory ---- */

struct tt_layout {
	int hosts, here;            /* how many, and on which of them I am. 0: not known yet */
	int *seats, *start;         /* seats of the group, host by host, each in their order: those of host h from start[h] to start[h + 1] */
	int fewest, most;           /* ranks on a host */
	uint32_t print;             /* differs where this does; not 0 */
};
int tt_layout_find(struct tutti *);            /* once. -ENOMEM */
void tt_layout_free(struct tutti *);
static inline int tt_layout_ranks(const struct tt_layout *l, int host) { return l->start[host + 1] - l->start[host]; }

/* ---- this room's own of a job, and of a group ---- */

struct tt_collectives {
	struct tt_job *job;
	struct tt_list running, unexpected, segments; /* stash: messages that no collective has taken yet */
	struct tt_timer wake;       /* those that wait for another one of this rank are to go on */
};
struct tt_coll_group {
	struct tt_model model;
	struct tt_layout layout;
	struct tt_segment *segment;     /* NULL: none, or nobody has asked yet */
	bool any_failed;
	uint32_t failed;            /* ... the first of them */
};
static inline struct tt_collectives *tt_collectives(const struct tt_job *job) { return job->own[TT_COLLECTIVE_SLOT]; }
static inline struct tt_coll_group *tt_coll_group(const struct tutti *g) { return g->own[TT_COLLECTIVE_SLOT]; }

/* ---- collective.c: what all collectives share; barrier, broadcast, gather. allreduce.c is written in the same terms ---- */

struct tt_coll { /* one collective on its way: a state machine that messages and notifies push on */
	struct tt_list link;        /* in tt_collectives.running, in the order started */
	struct tt_job *job;
	struct tutti *group;
	int n, me;                  /* how many take part, and which of them I am: all ranks in here count so */
	uint32_t seq;               /* the same on every rank */
	tutti_stat_kind kind;
	size_t bytes;               /* of this rank, to be counted */
	uint32_t print;             /* a hash of what was called with which arguments; the same on every rank */
	struct tt_operation *request;
	int (*advance)(struct tt_coll *);  /* as far as it can go: 0 there is more to come, 1 ended, -errno */
	struct tt_segment_call *segment_call;     /* its stay on the board: what others write there pushes it on, too. NULL: only messages do */
	void (*release)(struct tt_coll *); /* deregisters and frees what is its own, once it is over: nothing lands afterwards */
	unsigned pending;           /* my ops that the wire still holds */
	bool over, failed, busy, released; /* over: advance has said so */
	bool undecided;             /* it has not chosen yet whether it visits a board, and may make one */
	bool may_leave_messages;                /* it may end while messages for it have not been taken */
	int err, culprit;           /* culprit: the member to name, or -1 */
	uint32_t *notified_by;      /* how many notifies have come: [2 * seat + lane]; NULL: none are expected */
	void *taken;                /* what the last take gave, if it is to be freed */
	struct tt_timer stale;      /* a rank has given up and has not said yet because of whom */
};

size_t tt_coll_piece(const struct tt_job *);   /* bytes that a message of a collective takes: whole elements of any type */

enum { TT_LANE_DATA, TT_LANE_CREDIT };

enum { TT_TAG_OFFER = 0x7ffd0000, TT_TAG_VOTE, TT_TAG_READY = 0x7fff0000, TT_TAG_HERE = 0x7fff0002 }; /* tags below are the collective's own. HERE: all that it says is its print */

struct tt_coll *tt_coll_new(struct tutti *, size_t size, tutti_stat_kind, uint64_t x, uint64_t y); /* zeroed, struct tt_coll first; x, y:
                                                      * what all ranks must agree on. NULL: no memory */
bool tt_coll_is_next(const struct tt_coll *);  /* to decide: all before it have. So calls have their turns on a board in the order of their calls */
void tt_coll_gave_up(struct tt_coll *, int rank); /* that rank of the job has: because of whom is about to be told */
void tt_coll_free(struct tt_coll *);           /* one that was never run */
int tt_coll_run(struct tt_coll *, tutti_op *); /* takes the gate, starts it, and waits if there is no op; frees it in the end */
void tt_coll_send(struct tt_coll *, int to, uint32_t tag, const void *, size_t); /* bytes are copied; at most tt_coll_piece() of them */
void tt_coll_send_parts(struct tt_coll *, int to, uint32_t tag, const void *, size_t, const void *, size_t); /* one message of two parts */
void tt_coll_answer(struct tutti *, int to, uint32_t seq, uint32_t print, uint32_t tag, const void *, size_t); /* for a call that is over here, to one
                                                      * that still waits in it; at most 128 bytes */
const void *tt_coll_take(struct tt_coll *, int from, uint32_t tag, size_t len); /* the bytes, until the next take or return from advance; NULL: not
                                                      * here yet. Another length than `len` fails the collective */
const void *tt_coll_take_any(struct tt_coll *, int *from, uint32_t tag, size_t *len); /* likewise, of any length; *from -1: of any rank */
int tt_coll_put(struct tt_coll *, int to, const struct tt_key *, uint64_t offset, const void *, size_t, unsigned lane, bool last);
int tt_coll_open(struct tt_coll *, int rank, void *base, size_t len, struct tt_region **); /* memory that this rank may put into. 1: not connected
                                                      * yet, ask again when pushed on; 0; -errno */
void tt_coll_use_segment(struct tt_coll *, struct tt_segment_call *); /* NULL: no more */
void tt_coll_wake_soon(struct tt_job *);        /* from a later turn */

/* ---- transfer.c: runs of bytes between ranks, of which the larger collectives consist ---- */

struct tt_transfer { /* its first four members are the collective's, and for the length of combined ones: whole elements */
	int other;                  /* the rank at the other end */
	uint32_t id;                /* the same at both ends; different from those of other legs between the two */
	char *at;                   /* what is sent; where it goes, or what it is combined with */
	size_t len;
	bool combine;               /* at both ends */
	bool scale;                 /* in: the end of an average */
	int after;                  /* out: so many legs in may bring what it sends */

	bool started, open;         /* START sent or taken; READY sent or taken */
	size_t done, by_message;          /* bytes sent or taken in; of these by message */
	uint32_t pieces, chunks, credits;
	struct tt_key key;
	struct tt_region *region;
	char *slots;
};
struct tt_transfers {
	struct tt_coll *coll;
	size_t width;               /* of an element of legs that combine */
	tutti_type type;
	tutti_rule rule;
	struct tt_transfer *in, *out;    /* taken in strictly in this order; sent in this order, as far as they may */
	int ins, outs, ins_done, outs_done;
	int ahead;                  /* how many legs may be under way, and how far sending may be ahead of what has come in */
	bool always;                /* empty legs travel too: only one end may think that it is empty */
};
int tt_transfers_new(struct tt_transfers *, struct tt_coll *, int max, int ahead); /* room for `max` in and out */
int tt_transfers_advance(struct tt_transfers *); /* like a collective's advance */
void tt_transfers_free(struct tt_transfers *);   /* on release */
size_t tt_transfers_chunk(size_t len);      /* how a leg of that length is cut */

/* ---- segment.c: what the ranks of a group on one host share; each host has one ---- */

enum {
	TT_SEGMENT_RANKS = 128,         /* at most: each maps each */
	TT_SEGMENT_FEW = 16,            /* for calls that do with rounds of messages: of more ranks, rounds are fewer than flags, and a job that needs no
	                               * more does not connect all to all */
	TT_SEGMENT_CHUNK = 256 * 1024,  /* bytes that are passed over it at once: they stay in the caches */
};
#define TT_STEP_QUIT UINT32_MAX

struct tt_call_header { /* of one call of one rank */
	_Atomic uint64_t flag;      /* the call, and how far this rank is in it */
	uint32_t print;
	uint8_t half;               /* where on its panel it begins */
	bool mapped, can;           /* others may map its vector; it has mapped theirs */
	struct tt_key key;          /* mapped: of the vector */
} __attribute__((aligned(2 * TT_CACHE_LINE)));
struct tt_rank_slot { /* of one rank, in memory that the others map; it alone writes it */
	struct tt_call_header header[2];
	_Atomic uint32_t asleep __attribute__((aligned(2 * TT_CACHE_LINE))); /* a WAKE, please, with each step */
	_Atomic uint32_t done __attribute__((aligned(2 * TT_CACHE_LINE))); /* with all calls before this one */
	char half[2][2 * TT_SEGMENT_CHUNK] __attribute__((aligned(4096))); /* each: what others combine; what they take */
};
struct tt_segment_peer { /* of another rank */
	struct tt_rank_slot *slot;     /* NULL: not mapped, or no more */
	struct tt_peer *peer;       /* through which it was mapped */
	const struct tt_call_header *header; /* of this call; NULL: not seen yet */
	struct tt_key key;          /* of its vector in this call ... */
	char *vector;               /* ... and where that is here */
	bool offered, voted;        /* while the board is made */
};
struct tt_segment {
	struct tt_list link;        /* in tt_collectives.boards */
	struct tutti *group;        /* NULL: closed */
	int n, me;
	const int *seats;               /* n of them, in the group */
	struct tt_segment_peer *peers;      /* n of them; mine has the panel alone */
	void *memory;               /* my panel ... */
	struct tt_region *region;   /* ... registered with the net that leads to all others */
	uint32_t made_in;            /* in which call it is being made */
	bool making, offered, voted, able;
	bool known, open;           /* how that ended */
	bool asleep;                /* my panel says that I am asleep */
	unsigned turn, half;        /* which note is next, and which half */
	uint32_t last;              /* what `done` is to be once all others have seen my last call */
	int lost;                   /* 1 + a rank (of the job) whose panel is not there any more; 0: none */
	struct tt_list queue;       /* calls, in their order: the first has the board */
};
int tt_segment_make(struct tt_coll *);       /* like advance: 1 once it is known whether there is one */
struct tt_member *tt_segment_member(const struct tt_segment *, int i);
int tt_segment_decide(struct tt_coll *, bool *uses_segment); /* likewise: 1 once a call that uses boards of one host alone knows whether it visits one */
void tt_segment_answer(struct tutti *, int seat, uint32_t call, uint32_t print); /* to an OFFER in a call that is over here */
void tt_segment_tell(struct tt_coll *);      /* whoever asks how the making of it ended */
bool tt_segment_open(const struct tutti *);  /* it is known, there is, and all ranks of the group are on it */
void tt_segment_close(struct tutti *);
void tt_segment_sweep(struct tt_job *, bool all); /* frees what was closed and nobody reads; all: once no link is left */
void tt_segment_lost(struct tt_job *, const struct tt_peer *); /* it is about to be disconnected */

struct tt_call_header *tt_segment_begin(struct tt_segment *); /* my note for the next call: to be filled in before its first step */
void tt_segment_step(struct tt_segment *, struct tt_call_header *, uint32_t call, uint32_t step); /* I am so far; wakes who sleeps */
int tt_segment_reached(struct tt_segment *, int i, uint32_t call, uint32_t step); /* is that rank? 1, 0; -ECONNABORTED: it has given up */
void tt_segment_done(struct tt_segment *, uint32_t call); /* I read nothing of it any more */
void tt_segment_set_asleep(struct tt_segment *, bool asleep);

/* ---- segment_call.c: a call on its host's board ---- */

enum {
	TT_SEGMENT_CALL_PIECE = 256 * 1024,  /* bytes that are read or stored at once: between two of them a rank looks whether it still may ... */
	TT_SEGMENT_CALL_PIECES = 4,          /* ... and after so many it leaves the engine to others */
};
struct tt_segment_call {
	struct tt_coll *coll;
	struct tt_segment *segment;
	struct tt_list turn;        /* in board->queue */
	struct tt_call_header *header;       /* NULL: its turn has not come */
	uint32_t step;
	int seen;                   /* ranks that have come to it */
	size_t bytes;               /* of a vector */
	int offers;                 /* so many ranks' vectors are to be mapped */
	bool met, some_offer, all_offer; /* all are here; some of these, all of these have given keys of their vectors */
	bool mapped;                /* all have mapped them all: fellows[].vector */
	bool busy;                  /* the call has more to do, and waits for nobody ... */
	bool paused;                  /* ... or for others than the ranks here */
	unsigned chunk;             /* how often the halves of the panels were changed */
	struct tt_region *region;   /* my vector, for others to map; NULL: they cannot */
	struct tt_timer announce;
};
void tt_segment_call_begin(struct tt_segment_call *, struct tt_coll *, size_t bytes, int offers);
void tt_segment_call_end(struct tt_segment_call *, bool done); /* on release. done: else the others learn that I have given up */
bool tt_segment_call_poll(struct tt_segment_call *, bool asleep); /* may it go on, by what others have written? On every turn; dozing: and before a sleep, which
                                        * it has to tell them of first */
int tt_segment_call_check(struct tt_segment_call *); /* first, whenever pushed on: 1: go on; 0: some rank has given up; -ECONNRESET */
/* 1: yes, 0: wait; -errno */
int tt_segment_call_turn(struct tt_segment_call *);  /* is it my turn? Then offer, or fill my room, and go to the first step */
int tt_segment_call_meet(struct tt_segment_call *);  /* are all here, and is it known whether vectors are mapped? */
int tt_segment_call_all(struct tt_segment_call *);   /* have all come to my step? What they wrote before that can be read */
int tt_segment_call_still(struct tt_segment_call *); /* ... and nobody has given up since: what was read was meant for this call */

void tt_segment_call_offer(struct tt_segment_call *, void *vector); /* may others map it? By those whose vectors they are to reach */
void tt_segment_call_step(struct tt_segment_call *); /* I am one step further */
char *tt_segment_call_buffer(const struct tt_segment_call *, int i); /* the half of that rank's panel that it uses now */
void tt_segment_call_next_buffer(struct tt_segment_call *);          /* the other one from now on; all do so at the same step */
int tt_segment_call_store_begin(struct tt_segment_call *); /* may I store into all mapped vectors? 0: into none */
void tt_segment_call_store_end(struct tt_segment_call *);

struct tt_span { size_t at, len; }; /* bytes */
static inline struct tt_span tt_span_of(size_t bytes, int n, int i) /* the i-th of n, in whole lines: no two ranks write into one */
{
	size_t lines = (bytes + TT_CACHE_LINE - 1) / TT_CACHE_LINE, from = lines * (size_t)i / (size_t)n, to = lines * ((size_t)i + 1) / (size_t)n;
	size_t at = tt_min(from * TT_CACHE_LINE, bytes);

	return (struct tt_span){ at, tt_min(to * TT_CACHE_LINE, bytes) - at };
}

/* ---- blocks.c: blocks of a vector, combined each by its owner, brought from the owners to all; on one host ---- */

enum tt_blocks_stage { TT_BLOCKS_NONE,
	TT_BLOCKS_REDUCE,           /* my block is combined */
	TT_BLOCKS_EXCHANGE,         /* my block of each rank's vector is here; instead of the one before */
	TT_BLOCKS_GATHER,           /* all owners' blocks are here */
	TT_BLOCKS_LEAVE,            /* nobody reads my vector any more */
};
struct tt_blocks { /* zeroed, then the first part is the caller's: the same on all ranks of the host but for the places */
	char *vector;               /* all blocks, of `bytes` together: my share in each; or where each comes, mine is there */
	size_t bytes;
	int first, owners;          /* so many ranks of the host, from that one on, have a block each */
	size_t each;                /* bytes of a block; 0: shared out in whole lines (tt_span_of) */
	char *to;                   /* an owner: where its combined block goes, in place or apart from the vector; or the blocks of all ranks, in their order */
	size_t width;               /* of an element, ... */
	tutti_type type;
	tutti_rule rule;            /* ... and how they are combined. AVERAGE: of the ranks of this host */

	struct tt_segment_call call;
	enum tt_blocks_stage stage;
	int phase, owner;
	size_t at;                  /* bytes of each block, or of the owner's, that are done */
};
void tt_blocks_begin(struct tt_blocks *, struct tt_coll *, enum tt_blocks_stage first); /* to gather alone, only the owners' vectors need be mapped */
void tt_blocks_end(struct tt_blocks *);   /* on release */
int tt_blocks_run(struct tt_blocks *, enum tt_blocks_stage); /* some of them, in their order, the last one always. Like advance: 1 once it is done */

/* ---- blockwise.c: a collective that goes through memory where its ranks share a host, and there is another way ---- */

struct tt_blockwise {
	struct tt_coll coll;
	struct tt_blocks blocks;
	enum tt_blocks_stage stage; /* what it does with them before it leaves */
	int (*begin)(struct tt_coll *);    /* the other way, when that is chosen; NULL: nothing is to be done */
	int (*advance)(struct tt_coll *);  /* ... like the collective's own */
	void (*release)(struct tt_coll *); /* ... also where it was never begun; NULL */
	bool chosen, uses_segment;
};
struct tt_blockwise *tt_blockwise_new(struct tutti *, size_t size, tutti_stat_kind, uint64_t x, uint64_t y, const struct tt_blocks *,
                                      bool may_use_segment); /* like tt_coll_new; the rest is the caller's */

/* ---- allreduce.c; direct.c, hierarchical.c, doubling.c, rabenseifner.c and ring.c: the algorithms; model.c: which of them ---- */

struct tt_exchange { /* what an algorithm does: all-reduce among some ranks of a group */
	struct tt_coll *coll;
	const struct tt_algorithm *is;
	int n, me;
	const int *seats;           /* n of them, in the group; NULL: all ranks */
	char *buf;
	size_t count, width;        /* elements, bytes each */
	tutti_type type;
	tutti_rule rule;            /* AVERAGE: of all ranks in the group */
	void *state;                /* the algorithm's own, from begin() to release() */
};
static inline int tt_exchange_seat(const struct tt_exchange *x, int i) { return x->seats ? x->seats[i] : i; }

struct tt_direct { /* direct.c's own */
	struct tt_segment_call call;
	int phase;
	size_t at;                  /* bytes of the vector, or of my slice, that are done */
};

struct tt_hierarchy { /* hierarchical.c's own */
	struct tt_blocks blocks;
	struct tt_exchange between; /* hosts; is NULL: others do that */
	int *seats, phase;
	bool begun;
};

struct tt_allreduce {
	struct tt_coll coll;
	struct tt_exchange all;     /* all.is NULL: not chosen yet */
	const struct tt_algorithm *forced; /* as set; NULL: auto */
	union {
		struct tt_direct direct;
		struct tt_hierarchy hierarchy;
	};
	struct tt_tune tune;
};
struct tt_algorithm {
	const char *name;
	int (*begin)(struct tt_exchange *);   /* 0 or -errno */
	int (*advance)(struct tt_exchange *); /* like a collective's */
	void (*release)(struct tt_exchange *); /* also after a begin that failed */
	size_t (*chunk)(size_t bytes, size_t width, int n, size_t piece); /* bytes that travel at once. NULL: in memory nothing does */
};
extern const struct tt_algorithm tt_direct, tt_hierarchical, tt_doubling, tt_rabenseifner, tt_ring;
int tt_hierarchical_leaders(const struct tt_layout *, size_t bytes); /* of each host: so many slices are exchanged between hosts */

/* transfer.c, for an algorithm that consists of transfers: its state is a struct tt_transfers. */
int tt_exchange_begin(struct tt_exchange *, int max, int ahead); /* like tt_transfers_new() */
int tt_exchange_advance(struct tt_exchange *);
void tt_exchange_release(struct tt_exchange *);
struct tt_transfer tt_exchange_blocks(const struct tt_exchange *, int other, uint32_t id, int blocks, int first, int n);
void tt_exchange_send(struct tt_exchange *, struct tt_transfer);
void tt_exchange_receive(struct tt_exchange *, struct tt_transfer);

int tt_power_below(int n); /* the largest power of two that is not above n, which is 1 or more */

bool tt_model_measures(const struct tt_settings *);
struct tt_model tt_model_of(const struct tutti *); /* as measured, or as assumed */
bool tt_model_needed(const struct tutti *, size_t bytes); /* once the layout is known */
int tt_model_learn(struct tt_allreduce *);  /* like advance: 1 once this rank knows the model */
void tt_model_tell(struct tt_allreduce *);  /* on each advance: rank 0 answers those who do not know it yet */
const struct tt_algorithm *tt_model_choose(const struct tt_model *, int n, size_t bytes, size_t piece);
uint64_t tt_model_predict(const struct tt_model *, const struct tt_algorithm *, int n, size_t bytes, size_t piece); /* nanoseconds */
#endif
