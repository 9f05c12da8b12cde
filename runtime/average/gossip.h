/* gossip.h - what the files of gossip share
 *
 * Each rank has a window: a head, an offer to each rank, and 2 to 4 buffers, each as large as the model.
 *
 *      head { front, stamp[4] } | offer[rank] | buffer 0 | buffer 1 | ...
 *
 * publish/publish.h has front and stamps, and how readers find out that what they have read is whole.
 *
 * Push: the owner keeps a published buffer as it is, writes an offer for the receiver into its own window, notifies the
 * receiver and goes on. The receiver reads the offer, then the buffer, and then adds to the offer's word. Whoever
 * changes the word first decides: the receiver has taken the gift, or the owner has withdrawn the offer. So no receiver
 * holds a buffer, receivers need no memory for models that come, and two givers cannot meet in a receiver's window. */
#ifndef TT_GOSSIP_H
#define TT_GOSSIP_H
#include "average/average_private.h"
#include "kernel/kernel.h"
#include "publish/publish.h"
#include "window/window.h"

enum {
	TT_GOSSIP_BUFFERS = 4,  /* the most */
	TT_GOSSIP_FETCHES = 4,  /* under way at once, also those that were given up */
	TT_GOSSIP_TRIES = 3,    /* a reader that was overtaken so often has no peer */
	TT_GOSSIP_PIECE = 1 << 20, TT_GOSSIP_DEPTH = 4, /* bytes of a GET, and how many are under way */
	TT_GOSSIP_DEVICE_PIECE = 64 << 20,              /* from GPU to GPU: as TT_DIRECT of device_private.h */
	TT_GOSSIP_BLEND = 256 << 10, /* bytes averaged at once: the lock is held for so long */
	TT_GOSSIP_NOISE_MIN = 10, TT_GOSSIP_NOISE_MAX = 1000, /* dpwa's */
};

/* A stamp's `about` has the publication's clock and loss. */
struct tt_gossip_head {
	struct tt_front front;
	struct tt_stamp stamp[TT_GOSSIP_BUFFERS];
};
_Static_assert(sizeof(struct tt_front) == 64 && sizeof(struct tt_gossip_head) == 192, "docs/wire.md");

static inline double tt_gossip_clock(const struct tt_stamp *s) { return tt_double_of(s->about[0]); }
static inline double tt_gossip_loss(const struct tt_stamp *s) { return tt_double_of(s->about[1]); }

enum { /* the last byte of an offer's word. The receiver adds TAKEN or REFUSED, once; the giver sets WITHDRAWN */
	TT_OFFER_TAKEN = 1,
	TT_OFFER_REFUSED = 64,      /* the receiver has another model */
	TT_OFFER_WITHDRAWN = 128,
	TT_OFFER_ANSWERED = 127,    /* these bits: the receiver has added */
	TT_OFFER_STATE = 255,
};
struct tt_offer { /* of a gift to one rank, in the giver's window: 32 bytes within one cache line */
	uint64_t word;              /* (number * 4 + buffer) * 256 + state; 0: nothing was offered yet */
	double weight;
	uint64_t born;              /* as of the buffer */
	uint64_t seal;              /* hash of these, with state 0, and of the model's hash: a reader may have words of
	                             * two offers, or another model */
};

struct tt_pace { /* of fetches, or of gifts until they are taken */
	uint64_t slowest;           /* recent one, in nanoseconds; 0: none yet */
	unsigned times;             /* so many times that is how long the next one may take ... */
	uint64_t least;             /* ... and so long in any case */
};

static inline uint64_t tt_pace_limit(const struct tt_pace *p)
{
	return p->slowest ? tt_min(tt_max(p->slowest * p->times, p->least), 60000 * TT_MS) : 1000 * TT_MS;
}

/* late: nobody waited for it any more. Its rank may have been stopped, so it doubles the limit at most. */
static inline void tt_pace_note(struct tt_pace *p, uint64_t took, bool late)
{
	if (late)
		took = tt_min(took, 2 * tt_pace_limit(p) / p->times);
	p->slowest = tt_max(tt_max(took, 1), p->slowest - p->slowest / 8);
}

struct tt_gift { /* a published buffer of mine that nobody has taken yet */
	bool kept;
	bool back;                  /* its receiver does not take it: the next mix takes it back */
	int rank;                   /* to whom it is offered */
	uint64_t word;              /* as it was offered */
	double weight;
};

enum tt_fetch_state { TT_FETCH_IDLE, TT_FETCH_ASK, TT_FETCH_HEAD, TT_FETCH_DATA, TT_FETCH_MAPPED, TT_FETCH_DONE };

struct tt_fetch_piece {
	struct tt_post post;
	struct tt_fetch *fetch;
	bool landed;
};

struct tt_fetch { /* another rank's buffer on its way here */
	struct tutti_gossip *g;
	enum tt_fetch_state state;
	int rank, err;
	uint32_t epoch;             /* of the life that gave it */
	bool gift, dropped;         /* dropped: nobody waits for it any more */
	bool late;                  /* it was waited for in vain, and is only looked at from then on */
	bool claimed;               /* a gift that is this rank's, and waits for mix */
	int verdict;                /* of a gift that is not taken: the error */
	unsigned tries, under_way;  /* posts */
	int buffer;
	struct tt_stamp stamp, again; /* of that buffer, before and after the bytes came */
	uint64_t word, heard;       /* of a gift: its offer's; notifies that had come when the fetch began */
	double weight;
	uint64_t since;             /* when the fetch began */
	struct tt_post post;
	struct tt_fetch_piece piece[TT_GOSSIP_DEPTH];
	size_t sent, have;          /* bytes, from the first one on */
	size_t unit;                /* of a GET */
	char *staging;              /* room for a model, where the model is. Made when it is first needed */
	struct tt_pinned *pinned;   /* that room */
};

struct tt_gossip_device { /* zeros: the model is in host memory, or the library's */
	int gpu;
	bool apart;                 /* the buffers are the device's, and have a window of their own */
	size_t piece;               /* of a GET from GPU to GPU */
	bool registered;            /* the driver knows the buffers, which are the host's */
	bool late;                  /* the last call has waited for the device in vain */
	bool stuck;                 /* at the end copies were under way: the memory that they use stays */
	struct tt_gpu_queue *queue; /* NULL: the model is in host memory */
	struct tutti_window *window;
	struct tt_pinned *pinned;
	struct tt_timer timer;
	struct tt_gpu_fence *fence; /* that is waited for ... */
	uint64_t waits_since;       /* ... since then */
	uint64_t mark;              /* of all work so far */
};

struct tt_gossip_peer { /* another rank of the job */
	struct tutti_gossip *g;
	int rank;
	int score;                  /* 10 to 1000 */
	bool out;                   /* removed by the program, or not in the gossip's group */
	bool asked;                 /* it did not come in time: skipped until it has answered */
	bool late;                  /* its offer did not come in time: mix does not wait for it */
	uint32_t epoch, erred;      /* its life that is known here; the one that answered nonsense */
	double given, taken;        /* weights, to and from this life's gossip */
	uint64_t heard;             /* notifies of it whose offers were read */
	uint64_t offered;           /* when my last offer to it was made */
	tutti_op told;              /* the notify of that offer */
	bool telling, untold;       /* it is under way; it has failed */
	bool probing;               /* `post` is under way. It outlasts its fetch where this peer does not answer */
	struct tt_fetch *fetch;     /* which waits for it; NULL: none */
	uint64_t since;             /* when it was posted */
	struct tt_post post;        /* a GET of one of these: */
	struct tt_front front;
	struct tt_offer offer;
};

struct tutti_gossip {
	struct tt_handle handle;
	struct tt_job *job;
	tutti_gossip_config config;
	struct tt_model model;
	bool holds;                 /* the library holds the model */
	struct tutti_window *window;
	struct tt_pinned *pinned;
	struct tt_gossip_device device;
	char *memory, *buffers;
	struct tt_gossip_head *head;
	struct tt_buffers shown;    /* which of them others read */
	struct tt_offer *offer;     /* one a rank */
	size_t bytes;               /* of memory */
	int capacity;
	int *seats, seat, members;  /* the group's ranks, mine among them, how many. NULL: all of the job */
	int next;                   /* the buffer that the program writes into; -1: none */
	uint64_t rounds;
	struct tt_random random;
	struct tt_gossip_peer *peers;
	int *list;                  /* of peers that may be chosen */
	struct tt_fetch fetch[TT_GOSSIP_FETCHES], *now; /* now: of this round */
	struct tt_gift gift[TT_GOSSIP_BUFFERS];
	unsigned probes;            /* of all peers, under way */
	struct tt_pace fetches, takes; /* takes: of my gifts */
	const char *none;           /* why this round has no peer */
	struct tt_composite whole;  /* a started mix */
	char *copy;                 /* the model when it was started; made when it is first needed */
	double loss;                /* then */
	uint64_t deadline;
	tutti_gossip_info info;     /* but for in_flight and peers, which look derives */
};

static inline char *tt_gossip_buffer(const struct tutti_gossip *g, int i)
{
	return g->buffers + (size_t)i * g->model.bytes;
}

static inline size_t tt_gossip_offset(const struct tutti_gossip *g, int i)
{
	return g->device.apart ? (size_t)i * g->model.bytes : (size_t)(tt_gossip_buffer(g, i) - g->memory);
}

/* ---- gossip.c ---- */

void tt_gossip_look(struct tutti_gossip *); /* a fetch goes on: does the started mix end? With the lock */

uint64_t tt_gossip_timeout(const struct tutti_gossip *); /* how long mix waits, in nanoseconds */

int tt_gossip_spare(struct tutti_gossip *); /* a buffer to write into: its stamp is 0; -1: all are kept */

const char *tt_gossip_own(const struct tutti_gossip *); /* the model that is mixed: a buffer, or NULL: the tensors */
void tt_gossip_adopt(struct tutti_gossip *, const char *buffer); /* the model is what lies there from now on */

/* The fetch runs on, and says nothing about the peer: the hook, or this process's close or leave has ended the wait. */
static inline bool tt_gossip_ends(const struct tutti_gossip *g, int err)
{
	return err == -EINTR || (err && err == g->handle.users.err);
}

/* ---- gossip_config.c ---- */

int tt_gossip_read(const char *file, tutti_gossip_config *); /* the section gossip of a config file; -EINVAL */
int tt_gossip_find(struct tt_job *, const char *name); /* a rank; -ENOENT */

/* ---- gossip_choice.c: which peer, and how much of it. The first three are functions of their arguments alone ---- */

double tt_gossip_factor(const tutti_gossip_config *, double clock, double peer_clock, double loss, double peer_loss);
/* dpwa's: the index of the highest score + noise; a chance of 1 in n: below(arg, n) */
int tt_gossip_pick(const int *scores, int n, uint64_t (*below)(void *, uint64_t), void *arg);
int tt_gossip_score(int score, int err); /* after a fetch that ended so; 0: removed */
int tt_gossip_choose(struct tutti_gossip *, int own); /* a rank; -1: none. own: what `choose` says. With the lock */
void tt_gossip_meet(struct tutti_gossip *, int rank); /* is it gone, or was it started anew? With the lock */
void tt_gossip_judge(struct tutti_gossip *, int rank, int err); /* a fetch has ended so */

/* ---- gossip_fetch.c ---- */

/* Begins to read what that rank has published, or its gift; NULL: too many are under way. Without the lock. */
struct tt_fetch *tt_fetch_begin(struct tutti_gossip *, int rank, bool gift);
void tt_fetch_drop(struct tt_fetch *); /* NULL is allowed */
bool tt_fetch_forgo(struct tt_fetch *); /* drops one whose bytes do not come yet; false: they do, and it goes on */
struct tt_blend { /* what becomes of the other rank's model */
	const tutti_tensor *list;   /* a copy of the model is put there; NULL: the model is averaged: */
	char *to;                   /* a spare buffer, which gets the result */
	const char *own;            /* a buffer; NULL: the program's tensors */
	const char *copy;           /* own = own + factor (peer - copy); NULL: the average */
	double factor;              /* of the other rank's model */
	double total;               /* a gift: this rank's weight */
};
/* Waits until `deadline`, then copies or averages, and sets the factor. 0: a gift is this rank's from then on;
 * -ETIMEDOUT: it goes on, or may be dropped; -EAGAIN: overtaken too often; -ENODATA: nothing is published; -ECANCELED:
 * the gift was withdrawn; -EINVAL: another model; and as of windows. */
int tt_fetch_mix(struct tt_fetch *, struct tt_blend *, double loss, uint64_t deadline);
/* The same of memory at hand. */
void tt_gossip_blend(const struct tutti_gossip *, const struct tt_blend *, const char *peer, size_t from, size_t end);
bool tt_fetch_is_settled(struct tt_fetch *); /* tt_fetch_mix will not wait. With the lock */
double tt_fetch_age(const struct tt_fetch *); /* milliseconds since the model was published */
bool tt_fetch_is_wanted(struct tt_fetch *);
bool tt_fetch_is_idle(void *g); /* nothing is under way */

/* ---- gossip_device.c: a model on a device. Without the lock ---- */

int tt_gossip_find_device(const tutti_tensor *, int n, int *gpu); /* -1: host memory. -ENOTSUP: not all in one place */
int tt_gossip_open_device(struct tutti_gossip *);  /* g->device.gpu and apart are set, and g->memory */
int tt_gossip_open_device_window(struct tutti_gossip *, const char *name);
void tt_gossip_end_device(struct tutti_gossip *);   /* the windows were closed, and the job is still there */
void tt_gossip_close_device(struct tutti_gossip *); /* likewise, or the job was left */
int tt_gossip_make_staging(struct tt_fetch *);
int tt_gossip_await_stream(struct tutti_gossip *); /* until the calling thread's stream has come so far; -EINTR */
int tt_gossip_store(struct tutti_gossip *, int buffer); /* the tensors into a buffer */
int tt_gossip_blend_device(const struct tt_fetch *, const struct tt_blend *); /* waits for the stream, too */
bool tt_gossip_is_broken(const struct tutti_gossip *); /* this rank's device is */

/* ---- push_sum.c: gifts ---- */

uint64_t tt_offer_seal(const struct tutti_gossip *, const struct tt_offer *);
void tt_gift_give(struct tutti_gossip *, int rank); /* the published buffer, or one that its receiver has left alone */
bool tt_gift_is_answered(struct tutti_gossip *, int rank); /* the last offer, which was withdrawn. With the lock */
void tt_gifts_part(struct tutti_gossip *, int rank); /* the program removes that rank. Without the lock */
void tt_gifts_end(struct tutti_gossip *, int rank); /* that rank's life, or its gossip, has ended. With the lock */
void tt_gifts_settle(struct tutti_gossip *);        /* which were taken, which come back, who is gone */
void tt_gifts_fetch(struct tutti_gossip *);         /* begins to read what has come */
double tt_gifts_in_flight(const struct tutti_gossip *); /* given and not taken, or taken and not mixed. With the lock */
int tt_gifts_mix(struct tutti_gossip *, tutti_gossip_result *, uint64_t deadline); /* 0, -EINTR */
#endif
