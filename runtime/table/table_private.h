/* table_private.h - what the files of the tables share. All is called with the job's gate held, where nothing else is said.
 *
 *   table.c          opening and closing; how elements are cut into shards
 *   join.c     who takes part, and what is known of the shards' clocks
 *   switch.c   another consistency
 *   call.c     the worker's side: what all calls have in common, the gates where they wait, and this rank's own shard
 *   dense.c    ... pushes and pulls of all
 *   rows.c     ... of rows and keys
 *   pull_changed.c    ... of rows that it has not seen
 *   snapshot.c ... pulls of a version
 *   keep.c     ... pulls that begin anew, as what they read was written over
 *   send_queue.c     what a server is sent, in which order, and its answers
 *   serve.c    the server's side: pushes that come in
 *   rows_serve.c ... and pulls, of rows and keys
 *   quiesce.c     a shard between two pushes: those that come meanwhile wait
 *   version.c  a shard's rounds: what is pushed in one is summed up apart, and makes the next version
 *
 * Each server of a table holds a shard: a page that says what it is, then its values, in a window that the others read one-sided.
 * Deltas go the other way in pieces. A small one is within its message; a larger one is put into a slot of the worker's inbox at
 * that server, and the message follows it; where the server can map the delta, the message says where it lies, and nothing is copied.
 * The server applies the rule when the message comes, and answers. Rows and keys, in both directions, travel within messages.
 *
 *      worker -- PUT piece --> slot, PUSH {table, range, slot} --> server applies it -- PUSHED {number} --> worker
 *
 * In rounds and under bounded staleness servers tell everybody how far their clocks are, and what has to wait for a clock waits at its
 * worker: a push or a pull that comes to a server is welcome there. */
#ifndef TT_TABLE_PRIVATE_H
#define TT_TABLE_PRIVATE_H
#include "kernel/kernel.h"
#include "table/parts.h"
#include "table/rounds.h"
#include "table/table.h"
#include "window/window.h"

enum {
	TT_PUSH_HEAD = 256,          /* what stands before a message's delta has no more bytes */
	TT_SEND_QUEUE_SLOTS = 4,           /* pieces on their way by slots: while one is applied, others travel */
	TT_SEND_QUEUE_DEPTH = 32,          /* messages on their way without an answer */
	TT_PUSH_PIECE = 256 << 10,   /* bytes of a slot: in the cache when the rule runs over it */
	TT_PUSH_INLINE = 32 << 10,   /* deltas for a shard of more bytes do not go within messages, as where memory is mapped that is slower; */
	TT_PUSH_MESSAGE = 60 << 10,  /* ... and no more of rows, and of what has no other way, within one */
	TT_ROW_NAME = 8,             /* bytes of a row's number, or of a key */
	TT_IN_PLACE = 0xfe, TT_NO_SLOT = 0xff, /* instead of a slot: mapped; behind the message */
};

enum { TT_PUSH_FIRST = 1, TT_PUSH_LAST = 2, TT_PUSH_ASSIGN = 4, TT_PUSH_OPTIONS = 8, TT_PUSH_PULL = 32 }; /* flags of a PUSH and a PUSH_ROWS, */
enum { TT_PULL_NEW = 1, TT_PULL_ALL = 2, TT_PULL_UNSEEN = 4 }; /* of a PULL_ROWS and a PULL_FRESH: the sender has seen nothing; from now on it has
                                  * seen all; it wants those alone that it has not seen, */
enum { TT_KEEP_NO_MORE = 1 };   /* of a KEEP */
enum { TT_SPARSE = 16 };         /* of those that bring elements: a block of filter.c's */

struct tt_tables { /* this room's own of a job */
	struct tt_list tables;
	struct tt_list calls;        /* pushes and pulls */
	struct tt_list held;         /* what came in and has to wait */
	struct tt_list enquiries;    /* who waits for servers to save or load */
	uint32_t generation;         /* names openings of a table, and what servers are asked */
	struct tutti_window *outbox; /* where the servers have slots for what this rank pushes; NULL: no table was opened */
};
static inline struct tt_tables *tt_tables(const struct tt_job *job) { return job->own[TT_TABLE_SLOT]; }

struct tt_table_peer { /* ... and of a member, made when it is needed */
	struct tt_send_queue *feed;        /* pushes on their way to it; NULL: none yet */
	struct tutti_window *inbox_window; /* slots for what it pushes, ... */
	char *inbox;                 /* ... their memory; NULL: it has not asked for any */
};
static inline struct tt_send_queue *tt_send_queue_of(const struct tt_member *m)
{
	const struct tt_table_peer *p = tt_member_own(m, TT_TABLE_SLOT);

	return p ? p->feed : NULL;
}

struct tt_shard_head { /* in the first page of a shard's window */
	uint64_t print;              /* of the config: all ranks must have opened the table with the same */
	uint64_t uid;                /* of this opening of it */
	uint64_t version;            /* the newest that is whole; 0: as it was assigned. Rounds: how many have closed */
	uint64_t writing;            /* the newest that was begun, over the one two before it */
	uint64_t born[2];            /* when versions were whole, even and odd ones: by the owner's clock, nanoseconds since 1970 */
};
enum { TT_SHARD_HEAD = 4096 };

struct tt_keep { /* of a version, for a rank that reads it */
	uint32_t call;               /* of that rank */
	uint64_t version;
	uint64_t until;              /* then it may be written over; 0: at once */
};

struct tt_pusher { /* what a server knows of one rank */
	bool met;                    /* it has joined, and is told of the clock */
	bool counted;                /* as a worker, in the rounds */
	bool asked;                  /* for another consistency: */
	uint32_t number;             /* with its CHANGE of that number, */
	uint64_t elsewhere;          /* ... and it knows of a clock, or pushes of its own, so far */
	tutti_consistency wants;
	bool half;                   /* some of a push is here, and some is not */
	bool assigns;                /* that one sets values, and counts for no clock */
	bool dropped;                /* that one came too late */
	int err;                     /* it was refused, and so is the rest of it */
	struct tt_keep keep;
	const char *mapped;          /* its delta of this shard; NULL: it is not in place */
	struct tt_push push;
};

struct tt_next { /* a version on its way: made piece by piece, from as many turns */
	struct tt_timer turn;
	bool busy;
	uint64_t at;                 /* elements that are made, of those that are to be */
	struct tt_push push;         /* the round's */
	uint8_t *made;               /* without rounds: pieces that are copied */
	uint64_t since, begun;       /* ... pushes since the last one was begun, and when that was */
	unsigned missed;             /* ... pushes that ended since the next is due, and left others half done */
	bool opened;                 /* there is a round with a push ... */
	tutti_update options;        /* ... and these are its options */
};

struct tt_image;
struct tt_table_io;
struct tt_shard { /* this rank's */
	struct tutti_table *table;
	tutti_consistency as;
	char *memory, *values;       /* with the head's page, and the newest version; NULL: it is no server */
	uint64_t moves;              /* of rows: how often the values have gone to another place */
	char *sum;                   /* of the open round; NULL: there are no rounds */
	uint64_t sum_room;           /* it is for so many keys */
	struct tt_updater *updater, *adder; /* adder: of the round */
	struct tt_keys *keys;        /* NULL: rows. Else memory is the head's page alone */
	uint64_t room;               /* values and updater are for so many keys */
	struct tt_changed_rows *fresh;      /* NULL: nobody keeps track of what workers have seen */
	struct tt_dirty_rows *touched;  /* by the open round; NULL: all rows come into each, or there are no rounds */
	struct tt_dirty_rows *differ;   /* rows in which the other copy may differ from the values; NULL likewise, or of keys: there is no other copy */
	int workers;                 /* that the updater knows */
	int half;                    /* how many pushes are half here */
	struct tt_pusher **pushers;  /* by rank; NULL: it has not joined yet */
	struct tt_rounds *rounds;
	struct tt_next next;
	uint64_t kept_until;         /* the last of the pushers' keeps has ended then */
	bool held;                   /* no push begins, and no version is begun ... */
	void (*at_rest)(struct tutti_table *, int err); /* ... and this is called when none is under way. NULL: it was */
	struct tt_timer hold_turn;   /* looks whether those that are still go on */
	uint64_t patience;           /* with these */
	uint64_t pieces, seen, since; /* of pushes: that have come; that had at `since` */
	struct tt_image *image;      /* is being written to a file: what changes is kept first. NULL: none */
	struct tt_table_io *clerk;      /* who writes and reads files of it; NULL: nobody has asked yet */
};

struct tt_range { /* elements of the table */
	uint64_t first, count;
};

struct tt_served { /* what a rank knows of a server's shard */
	uint64_t uid;
	uint64_t clock;              /* as it was told; UINT64_MAX: it was closed */
	uint64_t pushed;             /* this rank's pushes to it, those that wait, too */
	tutti_consistency as;        /* its own, as it was told */
	uint32_t changed;            /* the last CHANGE of this rank that it has answered, and how */
	int change_err;
	bool joined;
	bool blank;                  /* it is to hear that this rank has seen nothing of its rows */
	int err;                     /* it would not have this rank */
};

struct tutti_table {
	struct tt_list link;         /* in tt_tables.tables */
	struct tt_job *job;
	char *name;
	tutti_type type;
	size_t width;                /* bytes an element */
	uint64_t count, row, print;  /* rows, elements of each */
	uint64_t limit;              /* of the filter */
	tutti_updater updater;
	tutti_consistency as;        /* at first */
	uint32_t changes;            /* how often this rank has asked for another */
	unsigned flags;
	uint64_t publish_pushes;
	int publish_ms;
	struct tt_shards shards;     /* how the servers share the rows; of keys: nothing */
	int servers, *server;        /* their ranks */
	int workers, *worker;        /* NULL: all */
	int mine;                    /* which of the servers this one is; -1: none */
	bool works, finished;        /* this rank pushes; it pushes no more */
	struct tt_served *source;    /* by server */
	struct tt_list gated;        /* parts of calls that wait for a clock */
	struct tt_list own;          /* parts for this rank's own shard, one after the other, ... */
	struct tt_timer own_turn;    /* ... a piece in each turn */
	struct tt_timer gate_turn;   /* gates have been lowered */
	uint32_t calls;              /* so far */
	int filing;                  /* saves and loads of this rank that are under way */
	char stuck[260];             /* what a call waited for in vain */
	struct tutti_window *window;
	struct tt_shard shard;
};

/* ---- a worker's calls ---- */

struct tt_stretch { /* of rows: elements at .. at + count of each of n rows, from the first-th of a part's on */
	uint64_t first;
	uint32_t n, at, count;
};

struct tt_call_part { /* what a call has to do with one server */
	struct tt_list link;         /* in its feed, while there are pieces to send; in the table's gated or own ones */
	struct tt_table_call *call;
	struct tt_member *member;    /* its server's */
	int server;
	struct tt_range range;       /* of rows: from 0, elements of as many as there are */
	bool gated;
	bool pulls;                  /* its push, if it had any, is over */
	uint64_t push_gate, pull_gate; /* where the clock has to be */
	uint64_t version;            /* that it pulls, in rounds or for a snapshot */
	bool keeps;                  /* the server was asked to keep that, ... */
	uint64_t kept;               /* ... and this is the one that it keeps */
	struct tt_shard_head head;   /* of that shard, before and after */
	unsigned retries;            /* what it had read was written over */
	uint64_t sent;               /* elements that are on their way or done: of a push, or asked for */
	bool closing;                /* the server is told that no more of them come */
	bool counted;                /* among this rank's pushes to it, */
	bool said;                   /* ... of which the server has heard */
	unsigned held;               /* answers and PUTs that are outstanding */
	int err;
	bool pulled;                 /* the answers to its push have brought the values, or what the rule gives back */
	bool ended;
	struct tt_region *region;    /* its delta, if the server reads that in place */
	struct tt_post get;
	const size_t *order;         /* of rows: which of the call's list; NULL: those from `base` on */
	size_t base;
	uint64_t cursor;             /* of fresh rows: how far the server has looked, ... */
	uint32_t most;               /* ... how many it may name next, ... */
	bool asks, looked, idle;     /* ... it is to be asked, has looked at all, or is not asked since there is no room */
	bool told;                   /* of all rows: the server knows that this worker sees them */
};

struct tt_call_kind {
	void (*push)(struct tt_call_part *);   /* to another rank's shard; it is let in there now */
	bool (*send)(struct tt_send_queue *, struct tt_call_part *); /* the next piece of that; false: not now */
	void (*pull)(struct tt_call_part *);   /* from another rank's shard */
	void (*pulled)(struct tt_call_part *); /* ... which has answered all that it was asked: ends it, or goes on */
	void (*serve)(struct tt_call_part *);  /* a piece of what this rank does itself */
	bool (*ended)(struct tt_table_call *, int err); /* all parts have; false: it goes on. NULL: nothing is to be done */
};

struct tt_row_list {
	const uint64_t *rows;        /* or keys; the program's */
	uint64_t *fresh;             /* instead: where rows that are found fresh go, ... */
	size_t room;                 /* ... for so many more than are found or asked for */
	size_t found;                /* so many are ... */
	size_t *how_many;            /* ... which the program hears at the end; NULL: its own rows */
	bool unseen;                 /* of its own rows those alone that are fresh */
	size_t order[];              /* part by part */
};

struct tt_table_call {
	struct tt_list link;         /* in tt_tables.calls */
	struct tutti_table *table;
	const struct tt_call_kind *kind;
	struct tt_operation *request;  /* NULL: it has ended for the program; what is left counts as a push where that has not heard of it */
	const char *delta;           /* NULL: a pull */
	char *values;                /* NULL: a push */
	struct tt_row_list *list;    /* NULL: of all */
	tutti_versions *versions, unwanted; /* a snapshot's; NULL: it is none */
	unsigned flags;
	tutti_update options;
	uint32_t number;
	bool keeping;                /* servers are asked to keep a version, and nothing is pulled */
	int left;                    /* parts that have not ended */
	uint64_t answers;            /* that came */
	uint64_t given_up;           /* when, or when something of it came back since; 0: it is not */
	uint64_t done_then;          /* how far it was */
	int gave_up;                 /* with that error */
	bool starved;                /* as a clock did not come far enough */
	struct tt_call_part part[];
};

struct tt_slot {
	struct tt_post put;
	struct tt_call_part *part;   /* NULL: free */
	struct tt_send_queue *feed;
	bool putting, unanswered;
};

struct tt_sent { /* a message that is not answered */
	struct tt_call_part *part;
	int slot;                    /* of a push: -1: within the message */
	struct tt_stretch asked;     /* of a pull of rows; n 0: which are fresh. Of a push: one row, that piece of its part */
};

struct tt_lane { /* messages that are answered in their order */
	struct tt_list parts;        /* that have more to send */
	struct tt_sent sent[TT_SEND_QUEUE_DEPTH]; /* a ring: */
	unsigned posted, answered;   /* how many in all */
};

struct tt_send_queue { /* to one server, for all tables */
	struct tt_member *member;
	struct tt_lane pushes, pulls; /* pulls of rows do not wait behind pushes */
	struct tt_slot slots[TT_SEND_QUEUE_SLOTS];
	struct tt_call_part *trial;  /* its first piece is to show whether the server can map its delta; NULL: none is */
	bool unmapped;               /* the server could not map one */
	uint64_t held_since;         /* it lets no push begin, and has answered none since then; 0: it has */
};

struct tt_rows { /* of a piece, as they stand in its message */
	const uint8_t *row;          /* n of them, 8 bytes each: rows of the table, or keys */
	uint32_t n, at, count;       /* elements at .. at + count of each */
};

struct tt_unseen { /* of the rows of a message those that their worker had not seen: n of them, a bit for each */
	uint32_t n;
	uint8_t which[TT_PUSH_MESSAGE / TT_ROW_NAME / 8];
};

struct tt_elements { /* of a message. Zeroed: none */
	const char *at;
	size_t bytes;                /* as they travel */
	void *copy;                  /* packed, or unpacked; NULL: they are where they were */
	size_t room;                 /* of that */
};

static inline struct tt_range tt_table_range(const struct tutti_table *t, int i) /* the elements of its i-th server */
{
	uint64_t first = tt_shards_first(&t->shards, i);

	return (struct tt_range){ first * t->row, (tt_shards_first(&t->shards, i + 1) - first) * t->row };
}

static inline bool tt_table_has_any(const struct tutti_table *t, int i) /* rows on its i-th server, or perhaps keys? */
{
	return t->flags & TUTTI_TABLE_KEYS || tt_table_range(t, i).count;
}

static inline int tt_table_files(const struct tutti_table *t) { return t->flags & TUTTI_TABLE_KEYS ? t->servers : t->shards.used; } /* of a save:
                                                                * the servers that have any are the first ones */
static inline size_t tt_table_row_bytes(const struct tutti_table *t) { return (size_t)t->row * t->width; }
static inline size_t tt_table_piece(const struct tt_job *job) { return tt_min(TT_PUSH_MESSAGE, tt_message_max(job) - TT_PUSH_HEAD); } /* bytes of a
                                                                * message's rows and elements */

/* In rounds: only rows that were pushed to come into one, and nobody reads the version before when it closes. */
static inline bool tt_table_is_touched(const struct tutti_table *t) { return t->flags & (TUTTI_TABLE_KEYS | TUTTI_TABLE_FRESH); }
static inline bool tt_shard_in_rounds(const struct tutti_table *t) { return t->shard.as.mode == TUTTI_BSP; } /* is this rank's? */
static inline bool tt_served_in_rounds(const struct tutti_table *t, int i) { return t->source[i].as.mode == TUTTI_BSP; } /* is the i-th server's? */
static inline size_t tt_table_copy(const struct tutti_table *t, int i) /* bytes of one of the copies that its i-th server holds */
{
	return ((size_t)tt_table_range(t, i).count * t->width + TT_CACHE_LINE - 1) / TT_CACHE_LINE * TT_CACHE_LINE;
}
/* Where they lie in its window: what is pulled from it when its clock is v, and the version v that a snapshot is of. */
static inline size_t tt_table_at(const struct tutti_table *t, int i, uint64_t v)
{
	return TT_SHARD_HEAD + (tt_served_in_rounds(t, i) && v & 1 ? tt_table_copy(t, i) : 0);
}
static inline size_t tt_table_version_at(const struct tutti_table *t, int i, uint64_t v)
{
	return TT_SHARD_HEAD + (size_t)((v & 1) + !tt_served_in_rounds(t, i)) * tt_table_copy(t, i);
}

static inline bool tt_table_is_large(const struct tutti_table *t, int i) /* is the delta for its i-th server too long for a message? */
{
	return tt_table_range(t, i).count * t->width > tt_min(TT_PUSH_INLINE, tt_table_piece(t->job));
}

/* table.c */
int tt_table_can_be(tutti_update_rule, unsigned flags, const tutti_consistency *);
bool tt_table_has_worker(const struct tutti_table *, int rank);
void tt_table_inbox_name(char *room, size_t size, int worker); /* of the window with its slots, at each server */

/* join.c */
int tt_table_join(struct tutti_table *);       /* at all servers; without the gate, waits */
bool tt_table_is_other(const struct tutti_table *, int server); /* is it another rank's, and has it anything? */
bool tt_table_have_answered(void *table);      /* all other servers what they were asked, or gone */
struct tutti_table *tt_table_find_served(struct tt_member *from, uint64_t uid, int *server); /* NULL: it is closed here */
void tt_table_finish(struct tutti_table *);    /* nobody waits for this rank */
void tt_table_tell(struct tutti_table *);      /* how far the clock of this rank's shard is */
void tt_table_tell_closed(struct tutti_table *);

/* switch.c */
void tt_table_put_consistency(struct tt_pack *, const tutti_consistency *);
tutti_consistency tt_table_get_consistency(struct tt_pack *);
void tt_table_look_at_switch(struct tutti_table *); /* fewer workers may have to ask for it */

/* serve.c */
int tt_table_serve(struct tutti_table *);      /* makes this rank's shard; without the gate */
void tt_table_unserve(struct tutti_table *);
int tt_table_expect(struct tutti_table *);     /* its workers, before anybody pushes */
int tt_table_admit(struct tutti_table *, int rank, uint64_t *pushed); /* a rank that has opened it; pushed: its pushes count on from there */
void tt_table_resume(struct tutti_table *, int rank, uint64_t pushed); /* ... or from there, as elsewhere */
void tt_table_dismiss(struct tutti_table *, int rank); /* it pushes no more */
void tt_table_catch_up(struct tutti_table *);  /* with other servers' rounds, when nobody is left to push to this one's */
void tt_table_end_given_up(struct tutti_table *, int worker); /* if the push that is half here goes on no more */
int tt_table_know(struct tutti_table *, int worker); /* the rule has its state, where each worker has its own */
int tt_table_take(struct tutti_table *, int worker, unsigned flags, const tutti_update *, int (*change)(struct tutti_table *, int worker,
                  const struct tt_pusher *, void *), void *arg); /* a piece of a push: here each begins, with its first piece, and ends, with its last */
int tt_table_refuse(struct tutti_table *, int worker, unsigned flags, const tutti_update *, int err); /* a piece, which counts all the same */
void tt_table_update(struct tutti_table *, const struct tt_push *, size_t first, size_t count, const struct tt_piece *); /* the rule, over a
                                                * range; by the pool's threads, too */
void tt_table_change(struct tutti_table *, const struct tt_pusher *, size_t at, size_t count, const void *delta, void *back); /* a
                                                * stretch of the shard, by that push */
int tt_table_apply(struct tutti_table *, int worker, unsigned flags, const tutti_update *, struct tt_range, const void *delta, void *back); /* a
                                                * piece of all; back: where what its rule gives back goes, or NULL */
void tt_table_answer(struct tt_member *, uint32_t number, int err); /* to a piece of a push */
void tt_table_pack(struct tutti_table *, const char *elements, size_t count, uint64_t limit, struct tt_elements *); /* without zeros, if that is
                                                * shorter, and the table's filter is on */
int tt_table_unpack(struct tutti_table *, struct tt_pack *, size_t count, bool sparse, struct tt_elements *); /* all that is left of a message.
                                                * -ENOMEM; or the message is bad */
void tt_elements_free(struct tutti_table *, struct tt_elements *);
void tt_table_get_options(struct tt_pack *, tutti_update *);
void tt_table_put_options(struct tt_pack *, const tutti_update *);
struct tutti_table *tt_table_find(struct tt_job *, uint64_t uid); /* whose shard here has it */

/* rows_serve.c: rows and keys of it */
int tt_table_apply_rows(struct tutti_table *, int worker, unsigned flags, const tutti_update *, const struct tt_rows *, const void *deltas);
int tt_table_read_rows(struct tutti_table *, int worker, unsigned flags, uint64_t version, const struct tt_rows *, char *values, struct tt_unseen *);
                                                /* -EAGAIN: it has that version no more. unseen: of those alone, NULL: of all */
int tt_table_find_fresh(struct tutti_table *, int worker, unsigned flags, uint64_t *at, uint64_t *rows, size_t most, size_t *n); /* rows of the table;
                                                * *at moves on, and at its end there are no more */

/* quiesce.c */
void tt_shard_quiesce(struct tutti_table *, uint64_t patience, void (*at_rest)(struct tutti_table *, int err)); /* calls it when no push is half here and
                                                      * no version half made: at once, or from a later turn; or with -ETIMEDOUT and a sentence, as one
                                                      * that is half here has not gone on for so long. Pushes that would begin wait, until ... */
void tt_shard_resume(struct tutti_table *);
void tt_shard_look(struct tutti_table *);      /* something has ended */
bool tt_shard_wait(struct tt_member *from, struct tutti_table *, uint8_t, bool begins, const struct tt_pack *); /* must this
                                                      * message wait, as it begins a push or comes behind one that waits? Then it comes again */
void tt_shard_forget(struct tt_member *from);  /* what waits */

/* version.c */
int tt_version_open(struct tutti_table *);
void tt_version_close(struct tt_shard *);
size_t tt_version_bytes(const struct tutti_table *); /* of the window */
uint64_t tt_version_clock(const struct tutti_table *); /* what workers are told */
bool tt_version_is_kept(const struct tutti_table *); /* is there one to be read? */
int tt_version_begin(struct tutti_table *, const tutti_update *, struct tt_push *); /* of a push to the open round */
int tt_version_touch_rows(struct tutti_table *, int worker, const uint64_t *rows, size_t n); /* of the shard, NULL: all: are about to be pushed to, or were */
int tt_version_grow(struct tutti_table *, uint64_t room); /* a round may touch so many keys; -ENOMEM */
void tt_version_replace(struct tutti_table *); /* all values are others from now on: what the open round has of keys is gone */
void tt_version_sum(struct tutti_table *, const struct tt_push *, size_t at, size_t count, const void *delta);
const char *tt_version_find(const struct tutti_table *, uint64_t version); /* the values, in rounds of that version; NULL: it is not there any more */
void tt_version_round(struct tutti_table *);   /* it has closed */
uint64_t tt_version_keep(struct tutti_table *, int rank, uint32_t call, uint64_t version); /* that one, or a newer
                                                * one: which. For a quarter of a deadline at most, or until ... */
void tt_version_let_go(struct tutti_table *, int rank, uint32_t call);
int tt_version_switch(struct tutti_table *, const tutti_consistency *, uint64_t clock); /* no push is under way; the clock goes on from there at the least */
void tt_version_skip(struct tutti_table *);    /* the clock is farther, and nothing has been pushed: in rounds the values are that version */
bool tt_version_is_begun(const struct tutti_table *); /* the next one, over what was there? */
void tt_version_settle(struct tutti_table *);  /* what is on its way is made at once */
void tt_version_pushed(struct tutti_table *);  /* no more of a push comes */
void tt_version_look(struct tutti_table *);    /* one may be due */
void tt_version_touch(struct tutti_table *, size_t at, size_t count); /* these elements, or their state, are about to change outside of a round */

/* send_queue.c */
struct tt_send_queue *tt_send_queue_to(struct tt_call_part *); /* to its server. NULL: none, and the part has ended */
void tt_lane_post(struct tt_lane *, struct tt_sent); /* before its message is sent */
bool tt_send_queue_answered(struct tt_member *from, bool pull, struct tt_pack *, int *err, struct tt_sent *); /* the head of an answer, and to which message
                                                * it is. False: it is gone, or nothing was to be answered, or something else */
struct tt_slot *tt_send_queue_slot(struct tt_send_queue *); /* a free one; NULL: none is */
int tt_send_queue_put(struct tt_send_queue *, struct tt_slot *, struct tt_call_part *, const char *from, size_t len);
void tt_send_queue_go_on(struct tt_send_queue *);          /* there may be room for more pieces */

/* dense.c, snapshot.c */
void tt_dense_serve(struct tt_call_part *);
int tt_dense_check(const struct tutti_table *, const char *what, const void *memory); /* may all of it be pushed and pulled? */
void tt_snapshot_pull(struct tt_call_part *);  /* the newest version of another rank's shard */
void tt_snapshot_ask(struct tt_send_queue *, struct tt_call_part *); /* for it, by message, and ... */
int tt_snapshot_take(struct tt_call_part *, struct tt_pack *, bool sparse); /* ... what comes back */
bool tt_table_in_rounds(const struct tutti_table *); /* at all servers */

/* keep.c */
bool tt_call_again(struct tt_table_call *, int *err); /* its parts have ended: do some begin anew? Else *err is its */
void tt_keep_ask(struct tt_send_queue *, struct tt_call_part *);
void tt_keep_take(struct tt_call_part *, struct tt_pack *); /* the answer */
void tt_keep_end(struct tt_table_call *);      /* nothing more is read */

/* call.c */
void tt_table_clock(struct tutti_table *, int server, uint64_t clock); /* it is so far now, or farther */
void tt_table_give_up(struct tutti_table *);   /* its calls: then none is under way */
void tt_call_free_all(struct tt_job *);        /* no wire knows them any more */
void tt_call_get(struct tt_call_part *, void *to, size_t len, size_t offset, void (*done)(struct tt_post *, int err)); /* of its shard's window */
bool tt_call_is_kept(const struct tt_call_part *); /* in rounds: nobody writes over what it pulls, since that takes a push of this rank, which waits */
void tt_call_agree(struct tt_table_call *);    /* of which version its rows are to be, where that is not what this rank has pushed */
void tt_call_pull(struct tt_call_part *);      /* its push, if it had any, is over: now, or when the clock lets it */
bool tt_call_has_sent_all(const struct tt_call_part *);
bool tt_call_is_cut_short(const struct tt_call_part *); /* a live server is to hear that no more of its push comes */
void tt_call_held(struct tt_job *, int rank);  /* that server says that it takes no push now */
void tt_call_end_with(struct tt_call_part *, int err);
static inline char *tt_call_values(const struct tt_call_part *p) { return p->call->values + (size_t)p->range.first * p->call->table->width; }
static inline size_t tt_call_bytes(const struct tt_call_part *p) { return (size_t)p->range.count * p->call->table->width; }
static inline bool tt_call_is_whole(const struct tt_call_part *p) { return p->head.writing < p->version + 2; } /* was what it has read not written over? */
struct tt_table_call *tt_call_new(struct tutti_table *, const struct tt_call_kind *, const void *delta, void *values, const tutti_update *);
int tt_call_start(struct tt_table_call *, const char *what, tutti_op *);
int tt_call_may_push(const struct tutti_table *, const char *what);
void tt_call_end_part(struct tt_call_part *);
void tt_call_look_at(struct tt_call_part *);   /* has it come to its end? */
void tt_call_let_go(struct tt_call_part *, int err); /* something that it held has come back */
void tt_call_queue_own(struct tt_call_part *); /* this rank does it itself, from the start, a piece in each turn */
void tt_table_own_go_on(struct tutti_table *); /* this rank's own pushes, which have waited */
bool tt_table_is_pushed(const struct tutti_table *); /* are pushes under way, those too that the program has given up? */
bool tt_table_is_called(const struct tutti_table *); /* does the program have pushes or pulls under way? */
void tt_table_forgive(struct tutti_table *, int server);
void tt_call_uncount_all(struct tutti_table *, int server); /* another life of it is known now */

/* rows.c */
void tt_rows_ask(struct tt_send_queue *, struct tt_call_part *); /* the next piece of a pull */
bool tt_rows_copy(struct tt_call_part *);      /* from memory, if that is mine or mapped. False: the rest takes messages */
unsigned tt_rows_pull_flags(struct tt_call_part *); /* of the next message to its server */
void tt_rows_put_head(struct tt_pack *, uint8_t, const struct tt_call_part *, unsigned flags);
int tt_rows_check(const struct tutti_table *, const char *what, const uint64_t *rows, size_t n, const void *memory);
int tt_rows_call(struct tutti_table *, const char *what, const struct tt_call_kind *, const void *delta, void *values, const tutti_update *, size_t n,
                 struct tt_table_call **);     /* with a list that has room for n */

/* pull_changed.c */
void tt_rows_tell(struct tt_call_part *);      /* its server, that this worker is about to see all rows; then `pulled` */
bool tt_changed_rows_ended(struct tt_table_call *, int err); /* a call has */
int tt_changed_rows_check(const struct tutti_table *, const char *what); /* may this rank ask which rows are fresh? */
void tt_rows_ask_for_fresh(struct tt_send_queue *, struct tt_call_part *);
void tt_rows_take_found(struct tt_call_part *, struct tt_pack *); /* the answer */

/* handlers of messages: table.c has their table */
void tt_table_take_join(struct tt_member *, struct tt_pack *);
void tt_table_take_joined(struct tt_member *, struct tt_pack *);
void tt_table_take_clock(struct tt_member *, struct tt_pack *);
void tt_table_take_finish(struct tt_member *, struct tt_pack *);
void tt_table_take_switch(struct tt_member *, struct tt_pack *);
void tt_table_take_switched(struct tt_member *, struct tt_pack *);
void tt_table_push(struct tt_member *, struct tt_pack *);
void tt_table_pushed(struct tt_member *, struct tt_pack *);
void tt_table_push_rows(struct tt_member *, struct tt_pack *);
void tt_table_pull_rows(struct tt_member *, struct tt_pack *);
void tt_table_pull_fresh(struct tt_member *, struct tt_pack *);
void tt_table_pull_version(struct tt_member *, struct tt_pack *);
void tt_table_keep(struct tt_member *, struct tt_pack *);
void tt_table_pulled(struct tt_member *, struct tt_pack *);
void tt_table_file(struct tt_member *, struct tt_pack *);  /* of saving and loading */
void tt_table_filed(struct tt_member *, struct tt_pack *);
void tt_table_held(struct tt_member *, struct tt_pack *);

/* events of members */
void tt_table_member_down(struct tt_member *, int err);    /* what waits for it ends */
void tt_table_member_gone(struct tt_member *);             /* nobody waits for its clock, or for what it would have pushed */
void tt_table_filer_down(struct tt_member *, int err);     /* who waits for it to save or load */
#endif
