/* shm_private.h - what the files of shm share: shm.c (nets, peers, progress), shm_keys.c (keys, mappings, who may
 * write), shm_ring.c (lines and payload between two processes), shm_ops.c (operations), shm_connect.c (sockets,
 * handshake).
 *
 * There are three kinds of shared memory. A net's *sheet* has its keys, and says whether the net sleeps; the net's
 * peers map it. A connection's *strip* has two lanes, one for each direction. *Arenas* hold the memory of users that
 * gave a file for it: a peer opens that file by /proc/PID/fd/N, maps it, and reads and writes it without the owner's
 * help. Memory without a file is read and written by process_vm_readv and _writev where the kernel permits that. Else
 * the owner does it, asked through the lane.
 */
#ifndef TT_SHM_PRIVATE_H
#define TT_SHM_PRIVATE_H
#include "base/base.h"
#include "transport/copy.h"
#include "transport/door.h"
#include "transport/flight.h"
#include "transport/frame.h"
#include "transport/shm/shm.h"
#include <sys/types.h>

enum {
	TT_SHM_LINES = 256,            /* of a lane: what may be under way before the other side looks */
	TT_SHM_PAYLOAD = 512 << 10,    /* bytes of a lane for what does not fit into a line, ... */
	TT_SHM_FEW = 16,               /* ... up to so many processes on a host, ... */
	TT_SHM_LITTLE = 144 << 10,     /* ... and beyond: more than two of the longest messages */
	TT_SHM_BODY = 40,              /* bytes that fit into a line */
	TT_SHM_PIECE = 64 << 10,       /* longer transfers through the payload are cut */
	/* bytes: one turn's copying for one peer, and one store between two permissions */
	TT_SHM_BUDGET = 256 << 10,
	TT_SHM_KEYS = 1 << 16,         /* regions of one net that others may reach */
	TT_SHM_BELL_WORDS = 64, TT_SHM_BELLS = 64 * TT_SHM_BELL_WORDS, /* peers of one net that ring */
	TT_SHM_BELLS_AT = 1 << 16,     /* a multiple of a page's size, as all of a file that is mapped */
	TT_SHM_BY_LANE = 1024,         /* bytes up to which asking the owner costs less than process_vm_* */
};

/* ---- in shared memory ---- */

struct tt_shm_line { /* one record; its writer sets `turn` last */
	_Atomic uint32_t turn;         /* 1 + the number of lines written before, mod 2^32: differs from last lap's */
	uint8_t kind, flags;           /* enum tt_frame_kind, TT_FRAME_NOTIFY | TT_FRAME_LAST */
	uint16_t slot;                 /* the asker's number for a request; comes back in the answer */
	uint32_t notify;               /* PUT: the value; NAK: enum tt_frame_nak */
	uint32_t extra;                /* bytes in the payload: 0, or all of them; else they are in `body` */
	uint64_t len;                  /* of this piece; GET: asked for */
	union {
		struct {
			uint64_t key, offset;
			uint64_t word;         /* ADD: operand; SUM: old value; PUT, REPLY: up to 8 bytes */
			uint64_t extra_end;    /* where this line's payload ends, counted from the first byte ever */
		};
		uint8_t body[TT_SHM_BODY];     /* of a SEND */
	};
};
_Static_assert(sizeof(struct tt_shm_line) == 64, "a line is a cache line");

struct tt_shm_lane { /* one direction; each aligned part is written by one side, but for `shut` */
	struct {
		_Atomic uint64_t writing;      /* the reader's region that the writer stores into directly; 0: none */
		_Atomic uint32_t shut;         /* by the reader: the writer may not store into any region from now on */
		_Atomic uint32_t mapped;       /* by the writer: map() gave out a pointer for stores at any time */
	} __attribute__((aligned(64)));
	struct {
		_Atomic uint64_t lines, bytes; /* by the reader: how much it has taken; */
		_Atomic uint32_t bell;         /* 1 + the writer's bell in the reader's bells; 0: it does not ring */
	} __attribute__((aligned(64)));
	struct {
		_Atomic uint32_t stirs;        /* by the writer: how many long pieces it has moved directly */
	} __attribute__((aligned(64)));
	struct tt_shm_line line[TT_SHM_LINES] __attribute__((aligned(64)));
	uint8_t payload[];
};
/* A strip is two lanes, one behind the other; the first is the initiator's. */
static inline size_t tt_shm_lane_size(size_t payload) { return sizeof(struct tt_shm_lane) + payload; }

struct tt_shm_entry { /* one key */
	_Atomic uint64_t id;           /* generation << 16 | slot; 0: free. A net never uses a generation twice */
	_Atomic uint64_t base, len, fd_offset, inode;
	_Atomic int32_t fd;            /* the owner's descriptor; -1: none */
};
struct tt_shm_sheet {
	/* Odd: the net sleeps. A process that has something for the net kicks its eventfd, once in each sleep. */
	_Atomic uint32_t naps __attribute__((aligned(64)));
	/* its address in the owner, for trying process_vm_readv */
	struct tt_shm_sheet *self __attribute__((aligned(64)));
	struct tt_shm_entry entry[TT_SHM_KEYS] __attribute__((aligned(64)));
};

/* Behind the sheet in its file: a bit for each peer, which the peer sets when there is something in its lane. */
struct tt_shm_bells {
	struct {
		_Atomic uint64_t bits __attribute__((aligned(64)));
	} word[TT_SHM_BELL_WORDS];
};
static inline size_t tt_shm_bells_at(void)
{
	return (sizeof(struct tt_shm_sheet) + TT_SHM_BELLS_AT - 1) / TT_SHM_BELLS_AT * TT_SHM_BELLS_AT;
}
static inline size_t tt_shm_sheet_size(void) { return tt_shm_bells_at() + sizeof(struct tt_shm_bells); } /* a file's */

/* ---- private memory ---- */

struct tt_shm_view { /* a peer's file, mapped */
	/* 0: the owner has freed the file or is gone; empty pages lie there for old pointers */
	uint64_t inode;
	int fd;                        /* the owner's number */
	uint8_t *at;
	size_t len;
	bool given;                    /* map() has given out a pointer into it */
};

struct tt_shm_found { /* what a key of the peer's means */
	uint64_t id;
	uint8_t *at;                   /* in my address space; NULL: not mapped */
	uint64_t base, len;            /* in the owner's address space */
};

struct tt_shm_mine { /* a key of mine, as I believe it: the sheet is only for others to read. id 0: none */
	uint64_t id;
	uint8_t *base;
	uint64_t len;
};

struct tt_shm_answer { /* what I owe: an answer in pieces, or one that the lane had no room for */
	uint8_t kind;                  /* TT_FRAME_REPLY, SUM, ACK or NAK */
	uint8_t why;
	uint16_t slot;
	uint64_t key, offset, len, at, word;
};

struct tt_shm {
	struct tt_net base;
	struct tt_door door;
	struct tt_flights ops;
	uint64_t generation;
	bool keep;

	uint64_t reach;                /* equal for processes that reach each other's memory */
	int event_fd, sheet_fd;
	struct tt_shm_sheet *sheet;
	struct tt_shm_mine *mine;      /* my keys, by slot */
	uint32_t *free_slots;          /* a stack of the free ones below `high` */
	size_t free_count, high;

	struct tt_list regions;
	struct tt_list up;             /* peers whose lanes are read */
	struct tt_shm_bells *bells;
	bool ringing;                  /* peers ring, and only those that have rung are looked at */
	unsigned bell_count, bell_words; /* peers that have a bell; words of the bells that were ever given */
	struct tt_shm_peer *by_bell[TT_SHM_BELLS];
	uint64_t look[TT_SHM_BELL_WORDS]; /* peers that the next turn looks at, whether they ring or not */
	unsigned near;                 /* processes of the job on this host; 0: unknown */
	unsigned turns;
	bool armed;                    /* since the last progress() */
	uint64_t reviewed;             /* when views were last compared with the owners' files */
	struct tt_copier puts, lanes;
	struct tt_copier gets, answers; /* take words of 8 bytes whole */
	/* views of peers that are gone: pointers into them may be in use until close() */
	struct tt_shm_view *left;
	size_t left_count;
};

struct tt_shm_peer {
	struct tt_peer base;
	struct tt_shm *net;
	struct tt_shake shake;
	char listens[96];              /* the address that is dialled: numbers, so sentences have base.addr */
	bool mine;                     /* the other end is in this very process */
	bool may_read;                 /* the other end may read this process's memory, under yama */
	int fd, pid_fd, kick_fd;       /* socket; the process; the eventfd of its net */
	pid_t pid;
	struct tt_list up;
	int bell;                      /* its number, while it is up; or -1 */

	uint8_t *strip;
	size_t payload;                /* bytes of each of its lanes */
	struct tt_shm_lane *out, *in;
	int strip_fd, sheet_fd;        /* until they are mapped */
	const struct tt_shm_sheet *sheet; /* the other net's, ... */
	struct tt_shm_bells *bells;    /* ... and its bells */
	uint32_t kicked;               /* the last sleep of the other net in which I kicked it */
	uint32_t next_out, next_in;    /* lines written and read, ever */
	uint64_t out_bytes, in_bytes;  /* payload written and freed, ever */
	uint64_t out_taken;            /* lines that the other side has taken, as far as I know */
	uint64_t out_bytes_taken;
	uint32_t told_lines;           /* lines that I have said I took */
	uint64_t told_bytes;

	struct tt_flight ops;          /* in flight: what is asked of the owner */
	size_t copied;                 /* in this turn */
	size_t at;                     /* how much of the first pending op is done ... */
	int current;                   /* ... and its slot, if it goes through the lane in pieces; else -1 */
	bool stuck;                    /* pending ops wait for room or for a slot */
	struct tt_shm_answer answers[256];
	unsigned answer_at, answer_count;
	uint8_t put_err[256];          /* by the peer's slot: why a PUT in pieces is refused */

	struct tt_shm_view *views;
	size_t view_count;
	struct tt_shm_found found[16]; /* by the slot of the key */
	bool vm, vm_tried;             /* process_vm_* works on the peer; it has been tried */
	bool unmappable;               /* has been logged */
	/* it froze while it stored into my memory: it was killed or let be, never waited for */
	bool evicted;
	uint32_t stirs;                /* of the peer, as last seen */
};

/* shm.c */
struct tt_shm_peer *tt_shm_peer_new(struct tt_shm *, bool accepted); /* its handshake has begun */
void tt_shm_forbid_reading(const struct tt_shm_peer *); /* the peer goes */

/* shm_connect.c */
extern const struct tt_door_calls tt_shm_door;
void tt_shm_address(uint64_t job, const char *listen, char addr[96]);
int tt_shm_take_name(struct tt_shm *, const struct tt_net_config *); /* listens */
int tt_shm_connect(struct tt_net *, const char *addr, struct tt_peer **);
/* true: it is up now. False: not yet, or the peer may be gone */
bool tt_shm_handshake(struct tt_shm_peer *);
void tt_shm_retry(struct tt_shm *);                           /* connects again where the other's queue was full */

/* shm_keys.c */
/* a memfd that keeps its length, mapped; NULL: see errno */
void *tt_shm_make_file(const char *name, size_t len, int *fd);
int tt_shm_reg(struct tt_net *, const struct tt_mem *, int remote, struct tt_pin *, struct tt_region **);
void tt_shm_dereg(struct tt_region *);
/* Where a range lies in my memory: 0 or enum tt_frame_nak. */
int tt_shm_place(struct tt_shm *, uint64_t id, uint64_t offset, uint64_t len, uint8_t **out);
uint64_t tt_shm_id(const struct tt_key *);
/* What the op's key means, whose id the caller has put into the tt_shm_found: 0 or -errno. */
int tt_shm_find(struct tt_shm_peer *, const struct tt_op *, struct tt_shm_found *);
bool tt_shm_begin_write(struct tt_shm_peer *, uint64_t id);   /* true: I may store there until tt_shm_end_write() */
void tt_shm_end_write(struct tt_shm_peer *);
bool tt_shm_valid(const struct tt_shm_peer *, uint64_t id);   /* is it still a key of the peer's? */
void tt_shm_fence_off(struct tt_shm_peer *);                  /* from here on the peer stores into none of my memory */
void tt_shm_fence_off_all(struct tt_shm *);                   /* likewise all peers, in the time of one */
void *tt_shm_map(struct tt_peer *, const struct tt_key *, int anytime);
int tt_shm_store_begin(struct tt_peer *, const struct tt_key *);
void tt_shm_store_end(struct tt_peer *);
void tt_shm_review_views(struct tt_shm_peer *);               /* unmaps what its owner has freed */
void tt_shm_drop_views(struct tt_shm_peer *);
void tt_shm_drop_left(struct tt_shm *);

/* shm_ring.c */
/* The next line to write, with room for `extra` bytes of payload. NULL: there is no room now. */
struct tt_shm_line *tt_shm_line(struct tt_shm_peer *, size_t extra, uint8_t **payload);
void tt_shm_publish(struct tt_shm_peer *, struct tt_shm_line *);
const uint8_t *tt_shm_payload(const struct tt_shm_peer *, const struct tt_shm_line *);
void tt_shm_taken(struct tt_shm_peer *, const struct tt_shm_line *);

/* shm_ops.c */
void tt_shm_post(struct tt_peer *, struct tt_op *);
int tt_shm_notify(struct tt_peer *, uint32_t value);
int tt_shm_send(struct tt_peer *, const void *head, size_t head_len, const void *body, size_t body_len);
/* writes what is pending or owed, as far as there is room */
void tt_shm_push(struct tt_shm_peer *);
void tt_shm_read(struct tt_shm_peer *);                       /* reads what has come */

/* The next turn looks at the peer, whether it rings or not. */
static inline void tt_shm_look_again(struct tt_shm_peer *p)
{
	if (p->net->ringing && p->bell >= 0)
		p->net->look[p->bell / 64] |= 1ull << p->bell % 64;
}

static inline bool tt_shm_has_to_push(const struct tt_shm_peer *p) { return p->ops.pending.head || p->answer_count; }

/* The next line to read, or NULL. */
static inline const struct tt_shm_line *tt_shm_next(const struct tt_shm_peer *p)
{
	const struct tt_shm_line *line = &p->in->line[p->next_in % TT_SHM_LINES];

	return atomic_load_explicit(&line->turn, memory_order_acquire) == p->next_in + 1 ? line : NULL;
}
#endif
