/* table.h - what the files of the tables share. All is called with the job's gate held, where nothing else is said.
 *
 *   table.c          opening and closing; how elements are cut into shards
 *   table_join.c     who takes part, and what is known of the shards' clocks
 *   table_switch.c   another consistency
 *   table_call.c     the worker's side: pushes and pulls, and the feeds that carry them
 *   table_serve.c    the server's side: pushes that come in
 *   table_version.c  a shard's rounds: what is pushed in one is summed up apart, and makes the next version
 *
 * Each server of a table holds a shard: a page that says what it is, then its values, in a window that the others read one-sided.
 * Deltas go the other way in pieces. A small one is within its message; a larger one is put into a slot of the worker's inbox at
 * that server, and the message follows it; where the server can map the delta, the message says where it lies, and nothing is copied.
 * The server applies the rule when the message comes, and answers.
 *
 *      worker -- PUT piece --> slot, PUSH {table, range, slot} --> server applies it -- PUSHED {number} --> worker
 *
 * In rounds and under bounded staleness servers tell everybody how far their clocks are, and what has to wait for a clock waits at its
 * worker: a push or a pull that comes to a server is welcome there. */
#ifndef TT_TABLE_H
#define TT_TABLE_H
#include "parts.h"
#include "rounds.h"
#include "runtime.h"

enum {
	TT_PUSH_HEAD = 256,          /* what stands before a message's delta has no more bytes */
	TT_FEED_SLOTS = 4,           /* pieces on their way by slots: while one is applied, others travel */
	TT_FEED_DEPTH = 32,          /* messages on their way without an answer */
	TT_PUSH_PIECE = 256 << 10,   /* bytes of a slot: in the cache when the rule runs over it */
	TT_PUSH_INLINE = 32 << 10,   /* deltas for a shard of more bytes do not go within messages */
	TT_IN_PLACE = 0xfe, TT_NO_SLOT = 0xff, /* instead of a slot: mapped; behind the message */
};

enum { TT_PUSH_FIRST = 1, TT_PUSH_LAST = 2, TT_PUSH_ASSIGN = 4, TT_PUSH_OPTIONS = 8, TT_PUSH_PULL = 16 }; /* flags of a PUSH */

struct tt_shard_head { /* in the first page of a shard's window */
	uint64_t print;              /* of the config: all ranks must have opened the table with the same */
	uint64_t uid;                /* of this opening of it */
	uint64_t version;            /* the newest that is whole; 0: as it was assigned. Rounds: how many have closed */
	uint64_t writing;            /* the newest that was begun, over the one two before it */
	uint64_t born[2];            /* when versions were whole, even and odd ones: by the owner's clock, nanoseconds since 1970 */
};
enum { TT_SHARD_HEAD = 4096 };

struct tt_pusher { /* what a server knows of one rank */
	bool met;                    /* it has joined, and is told of the clock */
	bool counted;                /* as a worker, in the rounds */
	bool asked;                  /* for another consistency: */
	tutti_consistency wants;
	bool half;                   /* some of a push is here, and some is not */
	bool dropped;                /* that one came too late */
	int err;                     /* it was refused, and so is the rest of it */
	const char *mapped;          /* its delta of this shard; NULL: it is not in place */
	struct tt_push push;
};

struct tt_next { /* a version on its way: made piece by piece, from as many turns */
	struct tt_timer turn;
	bool busy;
	uint64_t at;                 /* elements of it that are made */
	struct tt_push push;         /* the round's */
	uint8_t *made;               /* without rounds: pieces that are copied */
	uint64_t since, begun;       /* ... pushes since the last one was begun, and when that was */
	bool opened;                 /* there is a round with a push ... */
	tutti_update options;        /* ... and these are its options */
};

struct tt_shard { /* this rank's */
	struct tutti_table *table;
	char *memory, *values;       /* with the head's page, and the newest version; NULL: it is no server */
	char *sum;                   /* of the open round; NULL: there are no rounds */
	struct tt_updater *updater, *adder; /* adder: of the round */
	int workers;                 /* that the updater knows */
	int half;                    /* how many pushes are half here */
	struct tt_pusher **pushers;  /* by rank; NULL: it has not joined yet */
	struct tt_rounds *rounds;
	struct tt_next next;
};

struct tt_range { /* elements of the table */
	uint64_t first, count;
};

struct tt_served { /* what a rank knows of a server's shard */
	uint64_t uid;
	uint64_t clock;              /* as it was told; UINT64_MAX: it was closed */
	uint64_t pushed;             /* this rank's pushes to it, those that wait, too */
	bool joined;
	int err;                     /* it would not have this rank */
};

struct tutti_table {
	struct tt_list link;         /* in job->tables */
	struct tt_job *job;
	char *name;
	tutti_type type;
	size_t width;                /* bytes an element */
	uint64_t count, print;
	tutti_updater updater;
	tutti_consistency as;
	unsigned flags;
	uint64_t publish_pushes;
	int publish_ms;
	struct tt_shards shards;     /* how the servers share the elements */
	int servers, *server;        /* their ranks */
	int workers, *worker;        /* NULL: all */
	int mine;                    /* which of the servers this one is; -1: none */
	bool works, finished;        /* this rank pushes; it pushes no more */
	struct tt_served *source;    /* by server */
	struct tt_list gated;        /* parts of calls that wait for a clock */
	struct tt_list own;          /* parts for this rank's own shard, one after the other, ... */
	struct tt_timer own_turn;    /* ... a piece in each turn */
	uint32_t calls;              /* so far */
	char stuck[200];             /* what a call waited for in vain */
	struct tutti_window *window;
	struct tt_shard shard;
};

static inline struct tt_range tt_table_range(const struct tutti_table *t, int i) /* the elements of its i-th server */
{
	uint64_t first = tt_shards_first(&t->shards, i);

	return (struct tt_range){ first, tt_shards_first(&t->shards, i + 1) - first };
}

static inline bool tt_table_in_rounds(const struct tutti_table *t) { return t->as.mode == TUTTI_BSP; }
static inline size_t tt_table_copy(const struct tutti_table *t, int i) /* bytes of one of the copies that its i-th server holds */
{
	return ((size_t)tt_table_range(t, i).count * t->width + TT_CACHE_LINE - 1) / TT_CACHE_LINE * TT_CACHE_LINE;
}
/* Where they lie in its window: what is pulled from it when its clock is v, and the version v that a snapshot is of. */
static inline size_t tt_table_at(const struct tutti_table *t, int i, uint64_t v)
{
	return TT_SHARD_HEAD + (tt_table_in_rounds(t) && v & 1 ? tt_table_copy(t, i) : 0);
}
static inline size_t tt_table_version_at(const struct tutti_table *t, int i, uint64_t v)
{
	return TT_SHARD_HEAD + (size_t)((v & 1) + !tt_table_in_rounds(t)) * tt_table_copy(t, i);
}

static inline bool tt_table_is_large(const struct tutti_table *t, int i) /* is the delta for its i-th server too long for a message? */
{
	return tt_table_range(t, i).count * t->width > tt_min(TT_PUSH_INLINE, tt_coll_piece(t->job) - TT_PUSH_HEAD);
}

/* table.c */
int tt_table_can_be(tutti_update_rule, const tutti_consistency *);
bool tt_table_has_worker(const struct tutti_table *, int rank);
void tt_table_inbox_name(char *room, size_t size, int worker); /* of the window with its slots, at each server */

/* table_join.c */
int tt_table_join(struct tutti_table *);       /* at all servers; without the gate, waits */
bool tt_table_is_other(const struct tutti_table *, int server); /* is it another rank's, and has it anything? */
bool tt_table_have_answered(void *table);      /* all other servers what they were asked, or gone */
struct tutti_table *tt_table_find_served(struct tt_member *from, uint64_t uid, int *server); /* NULL: it is closed here */
void tt_table_finish(struct tutti_table *);    /* nobody waits for this rank */
void tt_table_tell(struct tutti_table *);      /* how far the clock of this rank's shard is */
void tt_table_tell_closed(struct tutti_table *);

/* table_switch.c */
void tt_table_put_consistency(struct tt_pack *, const tutti_consistency *);
tutti_consistency tt_table_get_consistency(struct tt_pack *);
void tt_table_look_at_switch(struct tutti_table *); /* fewer workers may have to ask for it */
void tt_table_switched(struct tutti_table *, int server, int err, uint64_t clock);

/* table_serve.c */
int tt_table_serve(struct tutti_table *);      /* makes this rank's shard; without the gate */
void tt_table_unserve(struct tutti_table *);
int tt_table_expect(struct tutti_table *);     /* its workers, before anybody pushes */
int tt_table_admit(struct tutti_table *, int rank, uint64_t *pushed); /* a rank that has opened it; pushed: its pushes count on from there */
void tt_table_dismiss(struct tutti_table *, int rank); /* it pushes no more */
int tt_table_apply(struct tutti_table *, int worker, unsigned flags, const tutti_update *, struct tt_range, const void *delta); /* a piece of a push */
void tt_table_put_options(struct tt_pack *, const tutti_update *);
struct tutti_table *tt_table_find(struct tt_job *, uint64_t uid); /* whose shard here has it */

/* table_version.c */
int tt_version_open(struct tutti_table *);
void tt_version_close(struct tt_shard *);
size_t tt_version_bytes(const struct tutti_table *); /* of the window */
uint64_t tt_version_clock(const struct tutti_table *); /* what workers are told */
int tt_version_begin(struct tutti_table *, const tutti_update *, struct tt_push *); /* of a push to the open round */
void tt_version_sum(struct tutti_table *, const struct tt_push *, size_t at, size_t count, const void *delta);
void tt_version_round(struct tutti_table *);   /* it has closed */
int tt_version_switch(struct tutti_table *, const tutti_consistency *); /* no push is under way */
void tt_version_settle(struct tutti_table *);  /* what is on its way is made at once */
void tt_version_pushed(struct tutti_table *);  /* no more of a push comes */
void tt_version_touch(struct tutti_table *, size_t at, size_t count); /* these elements are about to change, outside of a round */

/* table_call.c */
void tt_table_clock(struct tutti_table *, int server, uint64_t clock); /* it is so far now, or farther */
void tt_table_give_up(struct tutti_table *);   /* its calls: then none is under way */
void tt_feed_go_on(struct tt_feed *);          /* there may be room for more pieces */
bool tt_table_is_called(const struct tutti_table *); /* are pushes or pulls under way? */
#endif
