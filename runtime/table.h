/* table.h - what the files of the tables share. All is called with the job's gate held.
 *
 *   table.c        opening and closing; how elements are cut into shards
 *   table_call.c   the worker's side: pushes and pulls, and the feeds that carry them
 *   table_serve.c  the server's side: pushes that come in
 *
 * Each server of a table holds a shard: a page that says what it is, then its values, in a window that the others read one-sided.
 * Deltas go the other way in pieces. A small one is within its message; a larger one is put into a slot of the worker's inbox at
 * that server, and the message follows it; where the server can map the delta, the message says where it lies, and nothing is copied.
 * The server applies the rule when the message comes, and answers.
 *
 *      worker -- PUT piece --> slot, PUSH {table, range, slot} --> server applies it -- PUSHED {number} --> worker */
#ifndef TT_TABLE_H
#define TT_TABLE_H
#include "parts.h"
#include "runtime.h"

enum {
	TT_PUSH_HEAD = 256,          /* what stands before a message's delta has no more bytes */
	TT_FEED_SLOTS = 4,           /* pieces on their way by slots: while one is applied, others travel */
	TT_FEED_DEPTH = 32,          /* messages on their way without an answer */
	TT_PUSH_PIECE = 256 << 10,   /* bytes of a slot: in the cache when the rule runs over it */
	TT_PUSH_INLINE = 32 << 10,   /* deltas for a shard of more bytes do not go within messages */
	TT_IN_PLACE = 0xfe, TT_NO_SLOT = 0xff, /* instead of a slot: mapped; behind the message */
};

enum { TT_PUSH_FIRST = 1, TT_PUSH_LAST = 2, TT_PUSH_ASSIGN = 4, TT_PUSH_OPTIONS = 8 }; /* flags of a PUSH */

struct tt_shard_head { /* in the first page of a shard's window */
	uint64_t print;              /* of the config: all ranks must have opened the table with the same */
	uint64_t uid;                /* of this opening of it */
};
enum { TT_SHARD_HEAD = 4096 };

struct tt_pusher { /* what a server knows of one worker's push under way */
	int err;                     /* it was refused, and so is the rest of it */
	const char *mapped;          /* its delta of this shard; NULL: it is not in place */
	struct tt_push push;
};

struct tt_shard { /* this rank's */
	char *memory, *values;       /* with the head's page, and without; NULL: it is no server */
	struct tt_updater *updater;
	int workers;                 /* that it knows */
	struct tt_pusher **pushers;  /* by rank; NULL: it has not pushed yet */
};

struct tt_range { /* elements of the table */
	uint64_t first, count;
};

struct tutti_table {
	struct tt_list link;         /* in job->tables */
	struct tt_job *job;
	char *name;
	tutti_type type;
	size_t width;                /* bytes an element */
	uint64_t count, print;
	tutti_updater updater;
	struct tt_shards shards;     /* how the servers share the elements */
	int servers, *server;        /* their ranks */
	int mine;                    /* which of them this one is; -1: none */
	uint64_t *uid;               /* of each server's shard */
	uint32_t calls;              /* so far */
	struct tutti_window *window;
	struct tt_shard shard;
};

static inline struct tt_range tt_table_range(const struct tutti_table *t, int i) /* the elements of its i-th server */
{
	uint64_t first = tt_shards_first(&t->shards, i);

	return (struct tt_range){ first, tt_shards_first(&t->shards, i + 1) - first };
}

static inline bool tt_table_is_large(const struct tutti_table *t, int i) /* is the delta for its i-th server too long for a message? */
{
	return tt_table_range(t, i).count * t->width > tt_min(TT_PUSH_INLINE, tt_coll_piece(t->job) - TT_PUSH_HEAD);
}

int tt_table_serve(struct tutti_table *);      /* makes this rank's shard */
void tt_table_unserve(struct tutti_table *);
int tt_table_apply(struct tutti_table *, int worker, unsigned flags, const tutti_update *, struct tt_range, const void *delta); /* a piece of a push */
void tt_table_cut_off(struct tutti_table *);     /* those for whom its calls wait: then none is under way */
void tt_table_inbox_name(char *room, size_t size, int worker); /* of the window with its slots, at each server */
void tt_table_put_options(struct tt_pack *, const tutti_update *);
void tt_feed_go_on(struct tt_feed *);          /* there may be room for more pieces */
bool tt_table_is_called(const struct tutti_table *); /* are pushes or pulls under way? */
#endif
