/* device_private.h - what the files of this room share
 *
 *      asker                                                owner of device memory
 *      GET:  GIVE {id, region, offset, length}    -->       lifts pieces into its chunks
 *                          <-- READY {id, piece, key, at}
 *            reads the chunk, lands the bytes
 *            FREE {id, piece}                     -->       lifts the next piece
 *
 *      PUT:  TAKE {id, region, offset, length}    -->
 *            READY {id, piece, key, at}           -->       reads the chunk, lands the bytes
 *                          <-- FREE {id, piece}
 *                          <-- END {id, 0}                  all bytes have landed
 *
 * Either side says END {id, errno, sentence} where it cannot go on. */
#ifndef TT_DEVICE_PRIVATE_H
#define TT_DEVICE_PRIVATE_H
#include "device/device.h"
#include "engine/engine.h"

enum { TT_GIVE = 49, TT_TAKE, TT_READY, TT_FREE, TT_END, TT_EXPORT, TT_EXPORTED }; /* types of messages */
enum {
	TT_CHUNK = 1 << 20,
	TT_GIVE_CHUNKS = 16, /* for pieces that another rank is to fetch */
	TT_TAKE_CHUNKS = 8,  /* for pieces that come here. They wait for no other rank's chunk: no circle */
	TT_DIRECT = 64 << 20, /* a piece that needs no chunk. A mark between two costs 5 us (H200), as much as 10 MiB.
	                       * A copy that comes behind a piece waits 33 us for it (H200) */
	TT_PIECES = 4,       /* of one transfer, at a time */
	TT_STREAMS = 4,      /* of the program, which a turn remembers */
	TT_ASKED = 64,       /* transfers that one rank may have asked another one for */
};

enum tt_side_kind {
	TT_SIDE_HOST,   /* memory of this process */
	TT_SIDE_DEVICE, /* memory of a device of this process */
	TT_SIDE_KEY,    /* memory of the other rank that its net reaches */
	TT_SIDE_PEER,   /* memory of the other rank that only its room reaches */
};
struct tt_side { /* where bytes come from, or go to */
	enum tt_side_kind kind;
	char *at;
	int gpu;
	struct tt_gpu_fence *fence;
	const struct tt_key *key;
	uint64_t offset;            /* in the key's memory */
};

struct tt_ready { /* a piece that lies in a chunk of the other rank */
	uint32_t number;
	struct tt_key key;
	uint64_t at;
};

enum tt_step { TT_STEP_NONE, TT_STEP_FILL, TT_STEP_FULL, TT_STEP_DRAIN };
struct tt_piece {
	struct tt_transfer *of;
	enum tt_step step;
	struct tt_ready ready;      /* its number; and where it lies, if the other rank gives it */
	size_t offset, len;
	int chunk;                  /* -1: none, it goes straight to its place */
	struct tt_gpu_queue *queue; /* in which a copy is under way ... */
	uint64_t mark;              /* ... up to this mark; NULL: none is */
	bool posted;                /* an op of this piece is under way */
	bool awaited;               /* the other rank is to fetch it */
	struct tt_post post;
};

struct tt_transfer {
	struct tt_list link;        /* in tt_devices.moving, .ending, or in tt_device_peer.landed */
	struct tt_list put;         /* in tt_device_peer.puts */
	struct tt_job *job;
	struct tt_member *member;   /* the other rank; NULL: within this process */
	struct tt_post *post;       /* the op; NULL: the other rank has asked, or it has ended */
	bool serves;                /* the other rank has asked */
	struct tt_post notify;      /* of a PUT: follows the bytes */
	uint32_t id;                /* the asker's */
	uint64_t seq;               /* of a PUT: its place among those to the member */
	struct tt_side from, to;
	size_t len, unit;           /* unit: bytes of a piece */
	size_t begun, moved;        /* bytes */
	struct tt_region *region;   /* of the owner, if the other rank has asked */
	bool started;
	bool told;                  /* the other rank knows that it ends, or has ended */
	bool direct;                /* no chunk is needed: bytes go straight to their place */
	struct tt_import *import;   /* `from` is in this mapping; NULL: in none */
	uint64_t moved_at;          /* when something of it has happened last */
	int giving_up;              /* what it ends with unless all bytes have moved; 0: nobody has given it up */
	bool left;                  /* its op has ended: it waits for copies that a device holds up, or for FREE */
	int err;                    /* what it ends with, once nothing of it is under way ... */
	char *why;                  /* ... and the sentence; NULL: none */
	struct tt_piece pieces[TT_PIECES];
	struct tt_ready ready[TT_PIECES]; /* pieces that wait for a chunk here */
	int readies;
	uint32_t first;             /* all pieces before this one have been READY ... */
	uint32_t came;              /* ... and of it and the next ones those with a bit */
};

struct tt_staged { /* a region that no net knows */
	struct tt_region base;
	struct tt_list link;        /* in tt_devices.regions */
	uint32_t id;
	struct tt_gpu_fence *fence;
	int fd;                     /* of the allocation, for processes of this host; 0: none */
	bool ends;                  /* nobody finds it any more */
	void (*idle)(void *);       /* what follows once no copy uses it, with ... */
	void *arg;                  /* ... this; NULL: nothing */
};

struct tt_device_peer { /* a member's own */
	struct tt_list puts;        /* transfers of PUTs to it whose bytes have not landed, in the order of the posts */
	struct tt_list landed;      /* those whose notify waits for its turn */
	struct tt_op_queue held;    /* posts; op.priv[0]: behind the PUT of that seq */
	uint64_t seq;               /* of the last PUT */
	int asked;                  /* transfers that this rank has asked it for, and that run */
	int served;                 /* ... and it this rank */
};

struct tt_devices { /* the room's own struct in a job */
	struct tt_list moving;
	struct tt_list ending;      /* nothing of them is under way: their ops end in this turn */
	struct tt_list regions;
	uint32_t ids, regions_made; /* the last numbers */
	const char *why;            /* of the op that ends now */
	const struct tt_gpu_fence *not_passed[TT_STREAMS]; /* in this turn: one a stream, so each is asked once */
	int streams;
	bool fresh;                 /* something was added or has come since the last turn */
	struct tt_timer timer;      /* for copies and fences, which wake no sleeper */
	/* What copies need. Made by an errand, at the first use */
	char *memory;               /* of the chunks */
	struct tt_pinned *pinned;
	struct tt_region *chunks[TT_NETS]; /* for remote use */
	bool registered;            /* the driver knows the chunks */
	uint32_t free;              /* a bit for each chunk; the first ones are those to give */
	uint16_t stuck[TT_GPUS];    /* copies of transfers that are left: nothing begins on the device meanwhile */
	struct tt_gpu_queue *out[TT_GPUS], *in[TT_GPUS];
	struct tt_list imports, unmapped; /* see import.c */
	int socket;                 /* to which owners send descriptors; 0: none */
	uint8_t socket_name[16];
	bool wants_chunks;
	uint64_t wants;             /* a bit for each device whose queues are missing */
	uint64_t checks;            /* a bit for each device to ask whether it is broken */
	void *shadow;               /* that no call uses now; NULL: none */
	size_t shadow_len;
	struct tt_unprepared {      /* why what copies need could not be made, for those that wait now */
		int err;            /* 0: it is not known */
		char *why;
	} unprepared[1 + TT_GPUS];  /* the chunks; the queues of each device */
	bool failed;                /* some of that was not */
};
static inline struct tt_devices *tt_devices(const struct tt_job *job) { return job->own[TT_DEVICE_SLOT]; }
struct tt_device_peer *tt_device_peer(struct tt_member *); /* NULL: no memory */
void tt_device_notified(struct tt_post *, int err); /* done() of tt_transfer.notify: the net has it, or it has failed */

/* ---- resources.c: chunks and queues ---- */

/* Is there what a copy between host memory and the device needs? 1; 0: not yet; -errno with the sentence */
int tt_device_prepared(struct tt_job *, int gpu);
void tt_device_try_again(struct tt_devices *);  /* those that come from now on */
void tt_device_prepare(struct tt_job *);        /* the module's errand */
/* Nothing looks at transfers any more. stuck: a bit for each device that has not ended its copies; what they use stays
 * until the process ends. These two without the lock */
void tt_device_close_queues(struct tt_job *, uint64_t stuck);
void tt_device_close_resources(struct tt_job *, uint64_t stuck);
int tt_chunk_take(struct tt_devices *, bool give); /* -1: none is free */
void tt_chunk_give_back(struct tt_devices *, int chunk);
static inline char *tt_chunk_at(const struct tt_devices *d, int chunk) { return d->memory + (size_t)chunk * TT_CHUNK; }

/* ---- region.c ---- */

struct tt_staged *tt_staged_find(const struct tt_job *, uint32_t id); /* NULL: taken back, or there never was one */
uint32_t tt_staged_id(const struct tt_key *);
struct tt_allocation { /* in which the memory of a key lies */
	uint64_t buffer;            /* its number in its process */
	uint64_t offset, len;       /* where the memory begins in it; its bytes */
};
void tt_staged_done(struct tt_transfer *); /* which the other rank has asked for */
bool tt_staged_allocation(const struct tt_key *, struct tt_allocation *); /* false: no other process can map it */

/* ---- import.c ---- */

/* May the transfer read the owner's memory in place? 1: it does from now on; 0: not known yet; -1: no */
int tt_import_use(struct tt_transfer *);
void tt_import_done(struct tt_transfer *);
bool tt_imports_map(struct tt_job *);          /* part of the errand: maps and unmaps. True: has mapped something */
void tt_imports_end(struct tt_member *owner);  /* which has ended */
void tt_imports_close(struct tt_devices *, uint64_t stuck); /* without the lock */
void tt_import_take_export(struct tt_member *, struct tt_pack *); /* messages */
void tt_import_take_exported(struct tt_member *, struct tt_pack *);

/* ---- transfer.c ---- */

/* The sides are filled in, and it is in the list `moving`. NULL: no memory */
struct tt_transfer *tt_transfer_new(struct tt_job *, struct tt_member *, const struct tt_side *to,
                                    const struct tt_side *from, size_t len);
void tt_transfer_fail(struct tt_transfer *, int err, const char *why); /* why: the sentence, or NULL */
/* Ends it with err, soon: at once if it has not begun, else once the pieces under way have ended. If they were the last
 * ones, the transfer ends well. */
void tt_transfer_give_up(struct tt_transfer *, int err, const char *why);
int tt_transfer_advance(struct tt_transfer *); /* as far as it goes. Returns how much has happened */
bool tt_transfer_runs(const struct tt_transfer *);  /* pieces of it are under way */
uint64_t tt_transfer_copying(struct tt_transfer *); /* a bit for each device whose copies are under way, after a look */
bool tt_transfer_waits(const struct tt_transfer *); /* for a copy of a device: nothing wakes a sleeper then */
bool tt_transfer_is_held(const struct tt_transfer *); /* it cannot begin while a device stands still */
void tt_transfer_leave(struct tt_transfer *);       /* its op has ended, and copies run */
static inline bool tt_transfer_has_peer(const struct tt_transfer *t)
{
	return t->from.kind == TT_SIDE_PEER || t->to.kind == TT_SIDE_PEER;
}

/* ---- serve.c: what the two rooms of a transfer say to each other ---- */

/* Asks the owner to begin. With the pieces, and at its end, each side says: */
void tt_say_begin(struct tt_transfer *);
void tt_say_ready(struct tt_piece *);
void tt_say_free(struct tt_transfer *, uint32_t number);
void tt_say_end(struct tt_transfer *);
void tt_device_take_give(struct tt_member *, struct tt_pack *); /* messages */
void tt_device_take_take(struct tt_member *, struct tt_pack *);
void tt_device_take_ready(struct tt_member *, struct tt_pack *);
void tt_device_take_free(struct tt_member *, struct tt_pack *);
void tt_device_take_end(struct tt_member *, struct tt_pack *);

/* ---- order.c: NOTIFYs and SENDs behind PUTs ---- */

void tt_order_begin(struct tt_transfer *);        /* of a PUT */
void tt_order_landed(struct tt_transfer *);       /* its bytes have; or it has failed */
bool tt_order_is_next(const struct tt_transfer *); /* all PUTs before it have landed, or it is none */
void tt_order_hold(struct tt_member *, struct tt_post *);
/* Ends with err what is held for the member and uses this key; NULL: all. */
void tt_order_fail(struct tt_member *, const struct tt_key *, int err);
bool tt_order_withdraw(struct tt_member *, struct tt_post *);
#endif
