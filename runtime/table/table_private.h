/* table_private.h - what the files of the room share. Callers hold the job's lock unless a comment says otherwise.
 *
 *   table.c         opens and closes tables, and cuts them into shards
 *   terms.c         what all ranks must give alike, and how two ranks differ
 *   uid.c           the table that a message means
 *   report.c        ranks that list different servers under one name
 *   join.c          which ranks take part, and the clocks of the shards
 *   switch.c        changes a table's consistency
 *   call.c          a worker's calls: what all kinds share, the gates where parts wait, this rank's own shard
 *   dense.c         ... pushes and pulls of whole tables
 *   rows.c          ... of rows and keys
 *   pull_changed.c  ... of the rows that changed since the worker's last pull
 *   snapshot.c      ... of a version that does not change
 *   keep.c          ... pulls again what was overwritten, and asks servers to keep a version
 *   send_queue.c    what is sent to a server, in which order, and the server's answers
 *   serve.c         the server's side of pushes
 *   rows_serve.c    the server's side of rows and keys
 *   quiesce.c       stops a shard between two pushes: pushes that arrive meanwhile wait
 *   version.c       a shard's rounds and versions
 *
 * Each server of a table has a shard: a page with its description, then its values, in a window that other ranks read
 * one-sided. Deltas travel in pieces. A small piece is part of its message. A large one is put into a slot that the
 * server has for this worker, and the message follows. If the server can map the delta, the message says where the
 * delta lies and nothing is copied. The server applies the rule when the message arrives, and answers. Rows and keys
 * travel within messages in both directions.
 *
 *      worker -- PUT piece --> slot, PUSH {table, range, slot} --> server applies it -- PUSHED {number} --> worker
 *
 * In rounds and under bounded staleness servers tell all workers their clocks. What must wait for a clock waits at its
 * worker, so a server never delays a push or a pull for its clock. */
#ifndef TT_TABLE_PRIVATE_H
#define TT_TABLE_PRIVATE_H
#include "device/device.h"
#include "kernel/kernel.h"
#include "member/member.h"
#include "table/parts.h"
#include "table/rounds.h"
#include "table/table.h"
#include "window/window.h"

enum {
	TT_PUSH_HEAD = 256,          /* most bytes of a message in front of its elements */
	TT_SEND_QUEUE_SLOTS = 4,     /* pieces in slots: while the server applies one, others travel */
	TT_SEND_QUEUE_DEPTH = 32,    /* unanswered messages of a lane */
	TT_PUSH_PIECE = 256 << 10,   /* bytes of a slot: they stay in the cache while the rule reads them */
	TT_PUSH_INLINE = 32 << 10,   /* a longer delta for a shard goes through slots or in place, which is faster */
	TT_PUSH_OFFERED = 4 << 10,   /* a shorter one costs no less in place than within its message */
	TT_PUSH_MESSAGE = 60 << 10,  /* most bytes of rows, and of elements that must go within a message */
	TT_ROW_NAME = 8,             /* bytes of a row's number, or of a key */
	TT_IN_PLACE = 0xfe, TT_NO_SLOT = 0xff, /* instead of a slot: the delta is mapped; it follows in the message */
};
_Static_assert(TT_PUSH_HEAD + TT_PUSH_MESSAGE <= TT_MESSAGE_MAX, "rows that fill a message travel in one");

/* Flags: of PUSH and PUSH_ROWS, */
enum { TT_PUSH_FIRST = 1, TT_PUSH_LAST = 2, TT_PUSH_ASSIGN = 4, TT_PUSH_OPTIONS = 8, TT_PUSH_PULL = 32,
	TT_PUSH_MAPPED = 64 };   /* of PUSH_ROWS: the elements lie in memory that the server maps */
enum { TT_SPARSE = 16 };         /* of all messages with elements: they are a block of filter.c, */
enum { TT_PULL_NEW = 1, TT_PULL_ALL = 2, TT_PULL_UNSEEN = 4 }; /* of PULL_ROWS and PULL_FRESH: the worker has seen no
                                  * row; it is about to see all; only rows that it has not seen are wanted, */
enum { TT_KEEP_NO_MORE = 1 };    /* of KEEP */

struct tt_tables { /* the room's part of a job */
	struct tt_list tables;
	struct tt_list by_uid[256];  /* the shards that this rank knows */
	struct tt_list calls;        /* this rank's pushes and pulls, in the order in which they began */
	struct tt_list held;         /* messages that wait while a shard is quiesced */
	struct tt_list enquiries;    /* saves and loads that wait for servers */
	struct tt_list closed;       /* names of the tables that this rank has closed */
	struct tt_list reports;      /* as the lowest rank of a group: the terms of its tables */
	struct tt_list questions;    /* reports that wait for an answer */
	uint32_t asked;              /* numbers the questions */
	uint32_t generation;         /* numbers the openings of tables, and the orders to servers */
	struct tutti_window *outbox; /* the slots at the servers for this rank's pushes; NULL: no table was opened */
};
static inline struct tt_tables *tt_tables(const struct tt_job *job) { return job->own[TT_TABLE_SLOT]; }

struct tt_table_peer { /* the room's part of a member, made at its first use */
	struct tt_send_queue *queue; /* what is sent to this member; NULL: nothing yet */
	struct tutti_window *inbox_window; /* slots for what this member pushes, ... */
	char *inbox;                 /* ... their memory; NULL: the member may not ask for slots yet ... */
	struct tt_pinned *pinned;    /* ... until it asks, and the window has it; NULL: no net pins */
};
static inline struct tt_send_queue *tt_send_queue_of(const struct tt_member *m)
{
	const struct tt_table_peer *p = tt_member_own(m, TT_TABLE_SLOT);

	return p ? p->queue : NULL;
}

/* ---- a shard ---- */

struct tt_shard_head { /* in the first page of a shard's window */
	uint64_t print;              /* checksum of the configuration, which must be equal on all ranks */
	uint64_t uid;                /* of this opening of the table; 0: it is closed */
	uint64_t version;            /* the newest complete one; 0: as assigned. In rounds: how many have closed */
	uint64_t writing;            /* the newest that was begun: it overwrites the one two before it */
	uint64_t born[2];            /* when the newest even and odd version was complete: ns since 1970 */
	uint64_t placed;             /* in rounds: where the two versions are, and how often values were set: below */
};

/* In rounds the newest version lies in one of three copies of the values, the version before in another. Values that
 * are set as a whole, by an assign or a load, are put together in the third copy, which then is the newest version: no
 * version that somebody may read is stored into. Rows are set in place. The count is odd while the third copy is
 * written, and even again when it is the newest version. So what a reader has begun to read at an even count c is
 * written over from c + 3 on, and at an odd one from c + 2 on. Rows that were set are 4 counts.
 *
 *      bits 0-1: the copy of the even version   2-3: of the odd one   4: rows are being set   from 8 on: the count */
enum { TT_PLACED_AT_FIRST = 4, TT_BEING_SET = 16, TT_PLACED_ONCE = 256 };
static inline unsigned tt_placed_in(uint64_t placed, uint64_t version)
{
	return (placed >> (version & 1 ? 2 : 0) & 3) % 3; /* a peer may say anything */
}
enum {
	TT_SHARD_TERMS = 128,        /* in that page: the terms, TT_TERMS words */
	TT_TERMS = 65,
	TT_SHARD_HEAD = 4096,
};
_Static_assert(sizeof(struct tt_shard_head) <= TT_SHARD_TERMS, "the terms stand behind the head");

struct tt_keep { /* a version that is kept for a rank which reads it */
	uint32_t call;               /* the rank's number of its call */
	uint64_t version;
	uint64_t until;              /* from then on the version may be overwritten; 0: nothing is kept */
};

struct tt_pusher { /* what a server knows of one rank */
	int worker;                  /* its number, by which its own state is kept; -1: it is no worker */
	bool met;                    /* it has joined, and is told of the clock */
	bool counted;                /* as a worker, in the rounds */
	bool asked;                  /* for another consistency: */
	bool withdrew;               /* ... and gave up, and has not asked since: not to be blamed */
	uint32_t number;             /* ... by its CHANGE of this number */
	uint64_t elsewhere;          /* ... and this is the highest clock, or number of its own pushes, that it knows */
	tutti_consistency wants;
	uint64_t pieces;             /* of its pushes, so far */
	bool half;                   /* a push of it is half here: */
	bool assigns;                /* ... sets values, and counts for no clock */
	bool dropped;                /* ... came too late for its round */
	int err;                     /* ... was refused with this error */
	struct tt_keep keep;
	char *staged;                /* ... as much of an assign of a whole shard in rounds; NULL: nothing */
	uint64_t staged_count;       /* ... its elements */
	const char *mapped;          /* ... its delta for this shard; NULL: it is not read in place */
	uint64_t mapped_bytes;
	struct tt_push push;
};

struct tt_next { /* the next version, which is made piece by piece in as many passes of the progress loop */
	struct tt_timer turn;
	bool busy;
	uint64_t at;                 /* elements that are done */
	struct tt_push push;         /* the round's */
	uint8_t *made;               /* without rounds: pieces that are copied */
	uint64_t since, begun;       /* ... pushes since the last version began, and when it began */
	unsigned missed;             /* ... pushes that ended while others were half done, since a version is due */
	int stuck;                   /* ... the rank whose push made no progress while the shard was quiesced for a
	                              * version; -1: none was in the way */
	uint64_t stuck_at;           /* ... and how far that push had come: its pieces */
	bool opened;                 /* somebody has pushed to the open round ... */
	tutti_update options;        /* ... with these options */
};

struct tt_image;
struct tt_table_io;
struct tt_shard { /* this rank's shard of a table */
	struct tutti_table *table;
	tutti_consistency as;
	char *memory, *values;       /* of the window, from the head on; the newest version. NULL: no server */
	uint64_t moves;              /* how often `values` has changed */
	char *sum;                   /* of the open round; NULL: there are no rounds */
	uint64_t sum_room;           /* keys that `sum` has room for */
	struct tt_updater *updater, *adder; /* the table's; the one that sums up a round */
	struct tt_keys *keys;        /* NULL: a table of rows. Otherwise `memory` is the head's page alone */
	uint64_t room;               /* keys that the values and the updater have room for */
	struct tt_changed_rows *fresh;  /* NULL: the table does not keep track of what workers have seen */
	struct tt_dirty_rows *touched;  /* by the open round; NULL: a round is of all rows, or there are no rounds */
	struct tt_dirty_rows *differ;   /* rows that may differ between the two versions; NULL also with keys */
	int workers;                 /* that the updater has state for */
	int half;                    /* pushes that are half here */
	struct tt_pusher **pushers;  /* by rank; NULL: it has not joined yet */
	struct tt_rounds *rounds;
	struct tt_next next;
	uint64_t kept_until;         /* the last of the pushers' keeps ends then */
	bool held;                   /* quiesced: no push begins, and no version begins */
	void (*at_rest)(struct tutti_table *, int err); /* called once nothing is under way; NULL: it was called */
	struct tt_timer hold_turn;   /* checks the pushes that are still half here ... */
	uint64_t patience;           /* ... and gives up after so long without progress */
	uint64_t pieces, seen, since; /* of pushes: all so far; those at the last check; when that was */
	struct tt_image *image;      /* copy-on-write image that is being saved; NULL: none */
	struct tt_table_io *io;      /* saves and loads this shard; NULL: nobody has asked yet */
};

struct tt_range { /* elements of the table */
	uint64_t first, count;
};

struct tt_served { /* what a rank knows of a server's shard */
	struct tt_list link;         /* in tt_tables.by_uid, once the uid is known */
	struct tutti_table *table;
	uint64_t uid;                /* 0: not known yet */
	uint64_t clock;              /* the last that the server told; UINT64_MAX: the shard is closed */
	uint64_t pushed;             /* this rank's pushes to it, with those that still wait here */
	tutti_consistency as;        /* the shard's own, as the server told */
	uint32_t asked;              /* this rank's last CHANGE to the server */
	uint32_t changed;            /* this rank's last CHANGE that the server has answered, ... */
	int change_err;              /* ... with this error, ... */
	int awaited;                 /* ... -ETIMEDOUT: for want of this worker; -1: of none */
	bool joined;
	uint64_t expects;            /* uid of a later life's shard, which waits for this rank's pushes; 0: none */
	uint64_t placed;             /* of its head, as last read */
	bool blank;                  /* the next pull must say TT_PULL_NEW */
	int err;                     /* the server refused the JOIN */
};

struct tt_closed { /* a table that this rank has closed */
	struct tt_list link;
	char name[];
};

struct tutti_table {
	struct tt_handle handle;
	struct tt_list link;         /* in tt_tables.tables */
	struct tt_job *job;
	uint64_t timeout;            /* of calls, in nanoseconds: the group's, at opening */
	char *name;
	struct tt_closed *trace;     /* goes into tt_tables.closed */
	uint32_t group;              /* whose ranks have opened it: its uid; 0: the whole job */
	int reported_to;             /* the rank that has this server's terms; -1: none has */
	tutti_type type;
	size_t width;                /* bytes of an element */
	uint64_t count, row;         /* rows, elements of each */
	uint64_t terms[TT_TERMS];    /* what all ranks must give alike, ... */
	uint64_t print;              /* ... and its checksum */
	uint64_t limit;              /* of the filter */
	tutti_updater updater;
	tutti_init init;
	tutti_consistency as;        /* at opening */
	uint32_t changes;            /* how often this rank has asked for another consistency */
	bool change_stands;          /* the last wait for it was interrupted, and the request stands: for ... */
	tutti_consistency wanted;    /* ... this one */
	unsigned flags;
	uint64_t publish_pushes;
	int publish_ms;
	struct tt_shards shards;     /* how the servers share the rows; unused with keys */
	int servers, *server;        /* their ranks */
	int workers, *worker;        /* workers 0: all ranks */
	int mine;                    /* this rank's index among the servers; -1: it is none */
	bool works, finished;        /* this rank pushes; it has finished */
	struct tt_served *source;    /* by server */
	struct tt_list gated;        /* parts of calls that wait for a clock */
	struct tt_list own;          /* parts for this rank's own shard, in the order of the calls, ... */
	struct tt_timer own_turn;    /* ... of which one piece is served in each pass of the progress loop */
	struct tt_timer gate_turn;   /* looks at the gates again */
	uint32_t calls;              /* so far */
	struct tutti_window *window;
	struct tt_shard shard;
};
static inline unsigned long long tt_timeout_ms(const struct tutti_table *t) { return t->timeout / TT_MS; }

/* ---- a worker's calls ---- */

struct tt_stretch { /* elements at .. at + count of each of n rows; the first row is the first-th of a part */
	uint64_t first;
	uint32_t n, at, count;
};

struct tt_call_part { /* what a call does with one server */
	struct tt_list link;         /* in a lane while there are pieces to send; or in the table's `gated` or `own` */
	struct tt_table_call *call;
	struct tt_member *member;    /* the server */
	int server;                  /* its index in the table */
	struct tt_range range;       /* of a list of rows: first is 0, count the elements of this server's rows */
	bool gated;
	bool pulls;                  /* the push, if there was one, has ended */
	uint64_t push_gate, pull_gate; /* the clock that the push and the pull need */
	uint64_t version;            /* that is pulled, in rounds or as a snapshot */
	bool keeps;                  /* the server was asked to keep a version, ... */
	uint64_t kept;               /* ... and keeps this one */
	struct tt_shard_head head;   /* the shard's, as it was last read */
	uint64_t placed;             /* that it reads by; 0: nothing is read yet */
	bool fresh;                  /* ... which was in the head since the call began */
	unsigned retries;            /* how often what was read was overwritten meanwhile */
	uint64_t sent;               /* elements that are sent or asked for, with those that are done */
	bool closing;                /* the server is told that no more elements of the push come */
	bool counted;                /* among this rank's pushes to the server, ... */
	bool said;                   /* ... and the server has heard of it */
	unsigned held;               /* outstanding answers and PUTs */
	int err;
	bool pulled;                 /* the answers to the push have brought the values, or what the rule returns */
	bool ended;
	struct tt_region *region;    /* the delta, if the server reads it in place */
	struct tt_post get;
	const size_t *order;         /* this server's entries of the call's list; NULL: the entries from `base` on */
	size_t base;
	uint64_t cursor;             /* pulls of changed rows: up to where the server has looked, ... */
	uint32_t most;               /* ... how many rows it may name next, ... */
	bool asks, looked, idle;     /* ... must be asked; has looked at all; was not asked, for want of room */
	bool told;                   /* dense pulls: the server knows that this worker is about to see all rows */
};

struct tt_call_kind { /* the server is another rank, except in `serve` */
	void (*push)(struct tt_call_part *);   /* begins the push: its gate is open */
	bool (*send)(struct tt_send_queue *, struct tt_call_part *); /* sends the next piece; false: no slot is free */
	void (*pull)(struct tt_call_part *);   /* begins the pull */
	void (*pulled)(struct tt_call_part *); /* all that was asked for is here: ends the part, or goes on */
	void (*serve)(struct tt_call_part *);  /* does a piece by itself */
	bool (*ended)(struct tt_table_call *, int err); /* all parts have ended. False: the call goes on. May be NULL */
};

struct tt_row_list {
	const uint64_t *rows;        /* rows or keys; the program's memory */
	uint64_t *fresh;             /* instead: where the numbers of changed rows go, ... */
	size_t room;                 /* ... how many more fit, ... */
	size_t found;                /* ... how many came */
	size_t *how_many;            /* gets `found` at the end; NULL: nothing */
	bool unseen;                 /* pull only those of `rows` that the worker has not seen */
	size_t order[];              /* the entries of `rows`, part by part */
};

struct tt_table_call {
	struct tt_list link;         /* in tt_tables.calls */
	struct tutti_table *table;
	const struct tt_call_kind *kind;
	struct tt_operation *request;  /* NULL: ended for the program, but servers must still hear of the push */
	bool begun;                  /* its parts have */
	bool blocks;                 /* the caller waits for its end at once */
	const char *delta;           /* NULL: a pull */
	char *values;                /* NULL: a push */
	struct tt_shadow shadow[2];  /* of delta and values of a dense call, if they are a device's */
	struct tt_pinned *pinned[2]; /* delta and values of a dense call; NULL: need not be */
	struct tt_row_list *list;    /* NULL: a dense call */
	tutti_versions *versions, unwanted; /* of a snapshot; NULL: it is none */
	unsigned flags;              /* TT_PUSH_ASSIGN, TT_PUSH_OPTIONS */
	tutti_update options;
	uint32_t number;
	bool keeping;                /* the call asks servers to keep a version, and pulls nothing meanwhile */
	int left;                    /* parts that have not ended */
	uint64_t answers;            /* so far */
	uint64_t given_up;           /* 1 + the operations' clock, when abandoned or at progress since; 0: it was not */
	uint64_t done_then;          /* progress() at that time */
	int gave_up;                 /* the error it was abandoned with */
	bool starved;                /* since a clock did not rise */
	struct tt_call_part part[];
};

struct tt_slot {
	struct tt_post put;
	struct tt_call_part *part;   /* NULL: free */
	struct tt_send_queue *queue;
	bool putting, unanswered;
};

struct tt_sent { /* an unanswered message */
	struct tt_call_part *part;
	int slot;                    /* of a push; -1: none */
	struct tt_stretch asked;     /* the rows to pull (n 0: which have changed?), or the piece that is pushed */
};

struct tt_lane { /* messages that the server answers in their order */
	struct tt_list parts;        /* that have more to send */
	struct tt_sent sent[TT_SEND_QUEUE_DEPTH]; /* a ring: */
	unsigned posted, answered;   /* messages so far */
};

struct tt_send_queue { /* to one server, for all tables */
	struct tt_member *member;
	struct tt_lane pushes, pulls; /* pulls of rows do not wait behind pushes */
	struct tt_slot slots[TT_SEND_QUEUE_SLOTS];
	struct tt_call_part *trial;  /* waits for the answer whether the server can map its delta; NULL: none does */
	uint64_t by_slots_until;     /* it could not map one: later ones go through slots for a while; 0: it could */
	uint64_t held_since;         /* when it said that it is quiesced; 0: it has answered since */
};

struct tt_rows { /* rows of a piece, as they stand in its message */
	const uint8_t *row;          /* n numbers of rows, or keys, of 8 bytes each */
	uint32_t n, at, count;       /* elements at .. at + count of each */
};

struct tt_unseen { /* rows of a message that the worker had not seen: n of them, a bit for each */
	uint32_t n;
	uint8_t which[TT_PUSH_MESSAGE / TT_ROW_NAME / 8];
};

struct tt_elements { /* of a message. Zeroed: none */
	const char *at;
	size_t bytes;                /* as they travel */
	void *copy;                  /* scratch memory with the packed or unpacked elements; NULL: none was needed */
	size_t room;                 /* bytes of `copy` */
};

/* ---- small questions ---- */

static inline struct tt_range tt_table_range(const struct tutti_table *t, int i) /* the elements of the i-th server */
{
	uint64_t first = tt_shards_first(&t->shards, i);

	return (struct tt_range){ first * t->row, (tt_shards_first(&t->shards, i + 1) - first) * t->row };
}

static inline bool tt_table_has_any(const struct tutti_table *t, int i) /* has the i-th server rows or keys? */
{
	return t->flags & TUTTI_TABLE_KEYS || tt_table_range(t, i).count;
}

static inline int tt_table_files(const struct tutti_table *t) /* of a save: one for each server that has rows */
{
	return t->flags & TUTTI_TABLE_KEYS ? t->servers : t->shards.used;
}

static inline size_t tt_delta_width(const struct tutti_table *t, unsigned flags) /* of a push with these flags */
{
	return t->flags & TUTTI_TABLE_BF16_DELTAS && !(flags & TT_PUSH_ASSIGN) ? 2 : t->width;
}
static inline size_t tt_table_row_bytes(const struct tutti_table *t) { return (size_t)t->row * t->width; }

static inline bool tt_table_is_large(const struct tutti_table *t, int i) /* does its delta not fit a message? */
{
	return tt_table_range(t, i).count * t->width > tt_min(TT_PUSH_INLINE, TT_PUSH_MESSAGE);
}

/* Does a round consist of the rows that were pushed to alone? Then nobody reads the version before when it closes. */
static inline bool tt_table_is_touched(const struct tutti_table *t)
{
	return t->flags & (TUTTI_TABLE_KEYS | TUTTI_TABLE_FRESH);
}

static inline bool tt_shard_in_rounds(const struct tutti_table *t) { return t->shard.as.mode == TUTTI_BSP; }

static inline bool tt_served_in_rounds(const struct tutti_table *t, int i) { return t->source[i].as.mode == TUTTI_BSP; }

static inline size_t tt_table_copy(const struct tutti_table *t, int i) /* bytes of a version at the i-th server */
{
	return ((size_t)tt_table_range(t, i).count * t->width + TT_CACHE_LINE - 1) / TT_CACHE_LINE * TT_CACHE_LINE;
}

/* Offsets in the i-th server's window: of the values to pull at clock v, and of version v of a snapshot. placed: of the
 * head. */
static inline size_t tt_table_at(const struct tutti_table *t, int i, uint64_t placed, uint64_t v)
{
	return TT_SHARD_HEAD + (tt_served_in_rounds(t, i) ? tt_placed_in(placed, v) : 0) * tt_table_copy(t, i);
}
static inline size_t tt_table_version_at(const struct tutti_table *t, int i, uint64_t placed, uint64_t v)
{
	size_t copy = tt_served_in_rounds(t, i) ? tt_placed_in(placed, v) : (v & 1) + 1;

	return TT_SHARD_HEAD + copy * tt_table_copy(t, i);
}

/* table.c */
int tt_table_can_be(tutti_update_rule, unsigned flags, const tutti_consistency *); /* -EINVAL: not together */
int tt_table_worker(const struct tutti_table *, int rank); /* the rank's number as a worker; -1: it is none */
void tt_table_inbox_name(char *room, size_t size, int worker); /* of the window with a worker's slots, at each server */

/* terms.c */
void tt_terms_make(struct tutti_table *, double clip); /* the terms and their checksum */
/* -EINVAL, and a sentence: how their terms differ from this rank's. */
int tt_terms_refuse(const struct tutti_table *, const char *them, const uint64_t *theirs);

/* uid.c */
void tt_served_make(struct tutti_table *, int server); /* nothing is known of the shard yet */
void tt_served_name(struct tutti_table *, int server, uint64_t uid); /* messages of that uid are about the shard */
void tt_served_forget_all(struct tutti_table *); /* no message finds the table any more */
struct tutti_table *tt_table_find(struct tt_job *, uint64_t uid); /* the table whose shard here has this uid; NULL */
struct tutti_table *tt_table_find_served(struct tt_member *from, uint64_t uid, int *server); /* NULL: closed here */

/* report.c. Without the lock: */
int tt_table_report(struct tutti_table *, const tutti *); /* -EINVAL: another rank has given other terms. Blocks */
/* With the lock: */
void tt_table_take_back_report(struct tutti_table *);
void tt_table_forget_reports(struct tt_member *);
void tt_table_free_reports(struct tt_job *);

/* init.c: the values at first */
int tt_init_check(const char *name, const tutti_init *, tutti_type);
void tt_init_shard(struct tutti_table *); /* of rows: all of them */
void tt_init_key(struct tutti_table *, uint64_t key, uint64_t place); /* of a key that is new */
/* Elements first .. first + count of a row, or of the values under a key. */
void tt_init_row(const struct tutti_table *, uint64_t row, uint64_t first, uint64_t count, void *to);

/* join.c */
int tt_table_make_inboxes(struct tutti_table *); /* for the slots of its workers. Without the lock */
void tt_table_free_inbox(struct tt_table_peer *); /* likewise. Its window is closed */
int tt_table_join(struct tutti_table *);       /* joins all servers. Takes the lock, and blocks up to TUTTI_TIMEOUT */
bool tt_table_is_other(const struct tutti_table *, int server); /* is it another rank, with rows or keys? */
void tt_table_finish(struct tutti_table *);    /* this rank no longer blocks others */
bool tt_table_was_closed(const struct tt_job *, const char *name); /* by this rank, which had joined it */
void tt_table_tell(struct tutti_table *);      /* tells all who have joined the clock of this rank's shard */
void tt_table_tell_closed(struct tutti_table *);
void tt_table_ask_who_finished(struct tutti_table *); /* asks ranks that it counts whether they have finished */

/* switch.c */
void tt_table_put_consistency(struct tt_pack *, const tutti_consistency *);
tutti_consistency tt_table_get_consistency(struct tt_pack *);
void tt_table_look_at_switch(struct tutti_table *); /* switches if all workers that are left have asked */
void tt_table_withdraw(struct tutti_table *, int rank, int err); /* the worker's request, if any, ends with err */

/* serve.c */
int tt_table_serve(struct tutti_table *);      /* makes this rank's shard. Without the lock */
void tt_table_unserve(struct tutti_table *);
int tt_table_expect(struct tutti_table *);     /* counts the table's workers, before anybody pushes */
/* The options with the n-th part of the scale. */
tutti_update tt_table_share(const struct tutti_table *, const tutti_update *, int n);
int tt_table_admit(struct tutti_table *, int rank, uint64_t *pushed); /* a rank joins: its pushes count from there */
void tt_table_resume(struct tutti_table *, int rank, uint64_t pushed); /* ... or from there, as at another server */
void tt_table_dismiss(struct tutti_table *, int rank); /* this rank no longer blocks others */
void tt_table_catch_up(struct tutti_table *);  /* with other servers' rounds, if no worker is left to push here */
void tt_table_end_given_up(struct tutti_table *, int worker); /* ends its push that is half here, if it was abandoned */
int tt_table_know(struct tutti_table *, int worker); /* makes the state of that number, if the rule has such */
int tt_table_launched_workers(const struct tutti_table *); /* workers that the table has state for at first */
/* Takes a piece of a push: `change` applies it. The first piece begins the push, the last one ends it. */
int tt_table_take(struct tutti_table *, int worker, unsigned flags, const tutti_update *,
                  int (*change)(struct tutti_table *, int worker, struct tt_pusher *, void *), void *arg);
int tt_table_refuse(struct tutti_table *, int worker, unsigned flags, const tutti_update *, int err); /* a bad piece */
/* Applies the rule to elements of the shard. The pool's threads help. */
void tt_table_update(struct tutti_table *, const struct tt_push *, size_t first, size_t count, const struct tt_piece *);
/* Applies a delta to elements of the shard: adds it to the open round's sum, or applies the rule. back: as below. */
void tt_table_change(struct tutti_table *, const struct tt_pusher *, size_t at, size_t count, const void *delta,
                     void *back);
/* The same of rows; their `w` is set here. */
void tt_table_change_rows(struct tutti_table *, const struct tt_pusher *, const struct tt_rows_piece *);
/* Maps a push's delta for this shard, as its first piece comes. It has so many bytes; UINT64_MAX: any number. */
int tt_table_map_delta(struct tutti_table *, struct tt_member *from, struct tt_pack *, uint64_t bytes);
/* Takes a piece of a dense push. back: room for what the rule returns, or NULL. */
int tt_table_apply(struct tutti_table *, int worker, unsigned flags, const tutti_update *, struct tt_range,
                   const void *delta, void *back);
void tt_table_answer(struct tt_member *, uint32_t number, int err); /* to a piece of a push */
/* Drops zeros, if that is shorter and the table has a filter. */
void tt_table_pack(struct tutti_table *, const char *elements, size_t count, uint64_t limit, struct tt_elements *);
/* The same where they lie; sets TT_SPARSE then. Returns their bytes. */
size_t tt_table_pack_here(struct tutti_table *, char *elements, size_t count, uint64_t limit, uint8_t *flags);
/* Takes the rest of a message. -ENOMEM; or the message is bad. */
int tt_table_unpack(struct tutti_table *, struct tt_pack *, size_t count, bool sparse, struct tt_elements *);
void tt_elements_free(struct tutti_table *, struct tt_elements *);
void tt_table_get_options(struct tt_pack *, tutti_update *);
void tt_table_put_options(struct tt_pack *, const tutti_update *);

/* rows_serve.c */
int tt_table_apply_rows(struct tutti_table *, int worker, unsigned flags, const tutti_update *, const struct tt_rows *,
                        const void *deltas);
/* unseen: reads only the rows that the worker has not seen; NULL: all. -EAGAIN: that version is overwritten. */
int tt_table_read_rows(struct tutti_table *, int worker, unsigned flags, uint64_t version, const struct tt_rows *,
                       char *values, struct tt_unseen *);
/* Finds up to `most` rows, from *at on, that the worker has not seen. Moves *at. *n < most: there are no more. */
int tt_table_find_fresh(struct tutti_table *, int worker, unsigned flags, uint64_t *at, uint64_t *rows, size_t most,
                        size_t *n);

/* quiesce.c */
/* Stops the shard between two pushes: pushes that would begin wait until tt_shard_resume. Calls at_rest, at once or
 * later, when no push is half here and no version half made; -ETIMEDOUT: no progress for `patience` ns. */
void tt_shard_quiesce(struct tutti_table *, uint64_t patience, void (*at_rest)(struct tutti_table *, int err));
void tt_shard_resume(struct tutti_table *);
void tt_shard_look(struct tutti_table *);      /* a push or a version has ended */
int tt_shard_half_done(const struct tt_shard *); /* the lowest rank whose push is half here; -1: there is none */
/* Must this message wait, since it begins a push or comes after one that waits? Then it is handled again later. */
bool tt_shard_wait(struct tt_member *from, struct tutti_table *, uint8_t type, bool begins, const struct tt_pack *);
void tt_shard_forget(struct tt_member *from);  /* drops its messages that wait */

/* version.c */
int tt_version_open(struct tutti_table *);
void tt_version_close(struct tt_shard *);
size_t tt_version_bytes(const struct tutti_table *); /* of the window */
uint64_t tt_version_clock(const struct tutti_table *); /* that workers are told */
bool tt_version_is_kept(const struct tutti_table *); /* does the shard keep versions? */
int tt_version_begin(struct tutti_table *, const tutti_update *, struct tt_push *); /* a push to the open round */
/* Rows of the shard are about to be pushed to, or were. NULL: all. */
int tt_version_touch_rows(struct tutti_table *, int worker, const uint64_t *rows, size_t n);
int tt_version_grow(struct tutti_table *, uint64_t room); /* makes room for so many keys in a round. -ENOMEM */
void tt_version_replace(struct tutti_table *); /* all values are replaced: drops what the open round has of keys */
void tt_version_sum(struct tutti_table *, const struct tt_push *, size_t at, size_t count, const void *delta);
const char *tt_version_find(const struct tutti_table *, uint64_t version); /* its values; NULL: overwritten */
void tt_version_round(struct tutti_table *);   /* a round has closed */
/* Keeps this version, or a newer one, for some seconds or until it is let go. Returns which. */
uint64_t tt_version_keep(struct tutti_table *, int rank, uint32_t call, uint64_t version);
void tt_version_let_go(struct tutti_table *, int rank, uint32_t call);
void tt_version_init(struct tutti_table *); /* version 0 has the values as they are */
int tt_version_switch(struct tutti_table *, const tutti_consistency *, uint64_t clock); /* goes on from that clock */
void tt_version_skip(struct tutti_table *);    /* the clock rose without a push: the values are this version, too */
bool tt_version_is_begun(const struct tutti_table *); /* is an old version being overwritten? */
void tt_version_settle(struct tutti_table *);  /* completes the next version at once */
void tt_version_pushed(struct tutti_table *);  /* a push has ended */
void tt_version_look(struct tutti_table *);    /* begins the next version if it is due */
void tt_version_touch(struct tutti_table *, size_t at, size_t count); /* they are about to change, but by no round */
void tt_version_touch_places(struct tutti_table *, const struct tt_rows_piece *); /* the same of several rows */
/* In rounds, of a table of rows: */
char *tt_version_spare(const struct tutti_table *); /* the copy that is no version */
char *tt_version_write_spare(struct tutti_table *); /* likewise; the caller is about to write it */
void tt_version_take_spare(struct tutti_table *); /* it has the values of the newest version from now on */
void tt_version_being_set(struct tutti_table *, bool begins); /* some values of the newest version, in place */

/* send_queue.c */
struct tt_send_queue *tt_send_queue_to(struct tt_call_part *); /* to the part's server. NULL: the part has ended */
void tt_send_queue_add(struct tt_call_part *, bool asks); /* queues the part. asks: its first message is a question */
void tt_lane_post(struct tt_lane *, struct tt_sent); /* notes a message that is about to be sent */
/* Reads the head of an answer, and finds its message. False: the message is bad, or its sender has left. */
bool tt_send_queue_answered(struct tt_member *from, bool pull, struct tt_pack *, int *err, struct tt_sent *);
struct tt_slot *tt_send_queue_slot(struct tt_send_queue *); /* a free one; NULL: none is free */
/* Registers the delta for the server, if it lies in memory that a server on this host can map: then p->region. */
void tt_send_queue_offer(struct tt_send_queue *, struct tt_call_part *, const char *delta, size_t len);
int tt_send_queue_put(struct tt_send_queue *, struct tt_slot *, struct tt_call_part *, const char *from, size_t len);
void tt_send_queue_go_on(struct tt_send_queue *); /* sends what slots and lanes have room for */

/* dense.c, snapshot.c */
void tt_dense_serve(struct tt_call_part *);
int tt_dense_check(const struct tutti_table *, const char *what, const void *memory); /* -ENOTSUP: it has keys */
void tt_snapshot_pull(struct tt_call_part *);  /* the newest version of another rank's shard */
void tt_snapshot_ask(struct tt_send_queue *, struct tt_call_part *); /* for it, by message */
int tt_snapshot_take(struct tt_call_part *, struct tt_pack *, bool sparse); /* the answer */
bool tt_table_in_rounds(const struct tutti_table *); /* at all servers */

/* keep.c */
bool tt_call_again(struct tt_table_call *, int *err); /* all parts have ended: do some pull again? Else sets *err */
void tt_keep_ask(struct tt_send_queue *, struct tt_call_part *);
void tt_keep_take(struct tt_call_part *, struct tt_pack *); /* the answer */
void tt_keep_end(struct tt_table_call *);      /* lets all versions go */

/* call.c */
/* kind: see struct tt_call_kind. delta NULL: a pull; values NULL: a push. NULL: no memory. */
struct tt_table_call *tt_call_new(struct tutti_table *, const struct tt_call_kind *kind, const void *delta,
                                  void *values, const tutti_update *);
/* Pins what GETs and slots use, and takes the lock. Blocks if there is no op. On an error it frees the call. */
int tt_call_start(struct tt_table_call *, const char *what, tutti_op *);
int tt_call_may_push(const struct tutti_table *, const char *what);
int tt_call_check_options(const struct tutti_table *, const char *what, const tutti_update *);
void tt_call_free_all(struct tt_job *);        /* no transport knows them any more */
/* GETs from the part's shard. */
void tt_call_get(struct tt_call_part *, void *to, size_t len, size_t offset, void (*done)(struct tt_post *, int err));
bool tt_call_is_kept(const struct tt_call_part *); /* do rounds wait until this rank has read its version? */
void tt_call_agree(struct tt_table_call *);    /* if rounds do not wait for this rank: pull the newest known version */
void tt_call_pull(struct tt_call_part *);      /* begins the pull, now or when its gate opens */
void tt_call_put_head(struct tt_pack *, uint8_t type, const struct tt_call_part *, unsigned flags); /* of a message */
bool tt_call_has_sent_all(const struct tt_call_part *);
bool tt_call_is_cut_short(const struct tt_call_part *); /* must a live server hear that no more of the push comes? */
void tt_table_doing(const struct tt_job *, char *text, size_t size); /* whom the shards here wait for */
void tt_call_held(struct tt_job *, int rank);  /* that server is quiesced: the calls that wait for it make progress */
void tt_call_end_part(struct tt_call_part *);
void tt_call_end_with(struct tt_call_part *, int err);
void tt_call_look_at(struct tt_call_part *);   /* ends the part, or its push, if nothing is outstanding */
void tt_call_let_go(struct tt_call_part *, int err); /* a PUT has ended, or an answer has come */
void tt_call_queue_own(struct tt_call_part *); /* this rank does the part by itself, a piece at a time */
void tt_table_own_go_on(struct tutti_table *); /* this rank's own pushes, which have waited */
void tt_table_clock(struct tutti_table *, int server, uint64_t clock); /* the server's clock has risen, or has not */
void tt_table_give_up(struct tutti_table *);   /* abandons all calls: afterwards none is under way */
bool tt_table_is_pushed(const struct tutti_table *); /* are pushes under way, also such as the program has abandoned? */
bool tt_table_is_called(const struct tutti_table *); /* does the program have calls under way? */
void tt_table_forgive(struct tutti_table *, int server); /* drops what this rank owes a server that counts anew */
void tt_call_uncount_all(struct tutti_table *, int server); /* the server is a later life: it has counted no push yet */

static inline char *tt_call_values(const struct tt_call_part *p)
{
	return p->call->values + (size_t)p->range.first * p->call->table->width;
}
static inline size_t tt_call_bytes(const struct tt_call_part *p)
{
	return (size_t)p->range.count * p->call->table->width;
}

/* The head has come: the next read begins from there. */
static inline void tt_call_saw_head(const struct tt_call_part *p)
{
	p->call->table->source[p->server].placed = p->head.placed;
}

/* Was the version not overwritten before the head was read, ... */
static inline bool tt_call_is_there(const struct tt_call_part *p) { return p->head.writing < p->version + 2; }
/* ... nor by values that were set since p->placed was read? A `placed` of an earlier call may have been old by then. */
static inline bool tt_call_is_whole(const struct tt_call_part *p)
{
	uint64_t before = p->placed / TT_PLACED_ONCE, after = p->head.placed / TT_PLACED_ONCE;

	if (!tt_call_is_there(p) || (p->placed | p->head.placed) & TT_BEING_SET)
		return false;
	return p->fresh ? after - before < 3 - (before & 1) : p->placed == p->head.placed;
}
/* Begins to read by this `placed`. */
static inline void tt_call_read_by(struct tt_call_part *p, uint64_t placed, bool fresh)
{
	p->placed = placed;
	p->fresh = fresh;
}

static inline unsigned tt_call_push_flags(const struct tt_call_part *p, bool last) /* of the next piece */
{
	return (p->sent ? p->call->flags & TT_PUSH_ASSIGN : p->call->flags | TT_PUSH_FIRST) | (last ? TT_PUSH_LAST : 0);
}

/* rows.c */
static inline uint64_t tt_table_placed(const struct tutti_table *t) /* of this rank's shard */
{
	return ((const struct tt_shard_head *)(const void *)t->shard.memory)->placed;
}
void tt_rows_ask(struct tt_send_queue *, struct tt_call_part *); /* sends the next question of a part that pulls */
bool tt_rows_copy(struct tt_call_part *);      /* from this rank's or mapped memory, else err. False: take messages */
unsigned tt_rows_pull_flags(struct tt_call_part *); /* of the next message to the server */
int tt_rows_check(const struct tutti_table *, const char *what, const uint64_t *rows, size_t n, const void *memory);
/* Makes a call with room for a list of n rows. */
int tt_rows_call(struct tutti_table *, const char *what, const struct tt_call_kind *, const void *delta, void *values,
                 const tutti_update *, size_t n, struct tt_table_call **);

/* pull_changed.c */
void tt_rows_tell(struct tt_call_part *);      /* tells the server that this worker is about to see all rows */
bool tt_changed_rows_ended(struct tt_table_call *, int err); /* the `ended` of a kind */
int tt_changed_rows_check(const struct tutti_table *, const char *what); /* may this rank ask which have changed? */
void tt_rows_ask_for_fresh(struct tt_send_queue *, struct tt_call_part *);
void tt_rows_take_found(struct tt_call_part *, struct tt_pack *); /* the answer */

/* messages and events */
typedef void tt_table_handler(struct tt_member *from, struct tt_pack *);
tt_table_handler tt_table_take_join, tt_table_take_joined, tt_table_take_clock, tt_table_take_finish, tt_table_push,
	tt_table_pushed, tt_table_push_rows, tt_table_pull_rows, tt_table_pull_fresh, tt_table_pull_version,
	tt_table_pulled, tt_table_keep, tt_table_take_switch, tt_table_take_switched, tt_table_file, tt_table_filed,
	tt_table_held, tt_table_take_expect, tt_table_take_report, tt_table_take_reported;
void tt_table_member_down(struct tt_member *, int err);    /* ends what waits for its answers */
void tt_table_member_gone(struct tt_member *);             /* nobody waits for its clock or its pushes */
void tt_table_filer_down(struct tt_member *, int err);     /* ends saves and loads that wait for it */
#endif
