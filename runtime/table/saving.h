/* saving.h - what saving and loading of tables share. Callers hold the job's lock unless a comment says otherwise.
 *
 *   image.c      a copy-on-write image of a shard
 *   io_thread.c  orders to servers; at each server a thread that reads and writes files
 *   save.c       a shard to a file; a save of the whole table
 *   load.c       a save to a shard, or to all of them */
#ifndef TT_TABLE_SAVE_H
#define TT_TABLE_SAVE_H
#include "file/file.h"
#include "table/table_private.h"

/* image.c */
struct tt_array {
	const void *at;
	size_t width;                /* bytes of an element */
};
struct tt_image;
int tt_image_open(const struct tt_array *, int arrays, size_t count, struct tt_image **); /* elements of each, > 0 */
void tt_image_close(struct tt_image *);         /* NULL is allowed */
void tt_image_keep(struct tt_image *, size_t first, size_t count); /* these elements of an array are about to change */
void tt_image_moved(struct tt_image *, int array, const void *now); /* the array has moved */
size_t tt_image_read(struct tt_image *, void *to, size_t room); /* the next bytes, array after array; 0: the end */

/* io_thread.c */
enum tt_file_what { /* orders: save; read, aside; use what you have read; drop it; how often were you loaded? */
	TT_FILE_SAVE, TT_FILE_READ, TT_FILE_TAKE, TT_FILE_DROP, TT_FILE_COUNT
};
struct tt_order {
	enum tt_file_what what;
	const char *folder;          /* SAVE, READ */
	uint64_t generation;         /* SAVE; TAKE: the number of its READ; DROP: of its READ or SAVE */
	uint32_t workers;            /* SAVE: whose state is written, if each has its own */
	bool differ;                 /* READ: not all servers have read the same save */
	uint64_t loads;              /* SAVE, COUNT: a sum over all servers, which changes when one is loaded */
};
struct tt_asker { /* who has given an order */
	int rank;
	uint32_t epoch;              /* of its life */
	uint32_t number;             /* its own, of the order */
};
struct tt_table_io { /* of a shard. It does one thing at a time, and nothing else between a READ and its TAKE or DROP */
	struct tutti_table *table;
	struct tt_order order;       /* owns its folder */
	struct tt_asker asker;
	bool busy;                   /* the asker has no answer yet */
	struct tt_timer turn;        /* tells the asker of progress: */
	_Atomic uint64_t steps;      /* ... steps of the thread so far, ... */
	uint64_t told;               /* ... of which the asker was told */
	_Atomic bool unwanted;       /* the asker has abandoned the order */
	_Atomic bool stop;           /* the table is being closed */
	struct tt_task *thread;      /* the last one; NULL: none, or joined */
	struct tt_task *ended;       /* likewise, the one before */
	int (*work)(struct tt_table_io *); /* on the thread, without the lock */
	void (*after)(struct tt_table_io *, int err); /* with the lock, before the asker is told. May be NULL */
	struct tt_saving *saving;
	uint32_t loads;              /* loads that were taken */
	struct tt_staged *staged;
};
/* Calls act with the folder's real path. Without the lock. */
int tt_table_io_call(struct tutti_table *, const char *what, const char *folder,
                     int (*act)(struct tutti_table *, const char *what, const char *folder));
/* Sends an order to all servers. Error sentences begin with `what`. number: gets the order's; may be NULL. Without the
 * lock; blocks until each server has answered, is gone or makes no progress. -EAGAIN: raised the order's `workers` to
 * those that some server has state of. */
int tt_table_io_order(struct tutti_table *, const char *what, struct tt_order *, uint32_t *number);
/* Goes on with the order on the thread. */
void tt_table_io_work(struct tt_table_io *, int (*work)(struct tt_table_io *),
                      void (*after)(struct tt_table_io *, int err));
void tt_table_io_done(struct tt_table_io *, int err); /* answers. The error's sentence is this thread's last */
bool tt_asker_is(const struct tt_asker *, const struct tt_asker *);
int tt_table_io_step(struct tt_table_io *);     /* counts a step. -ECANCELED, -ESTALE: the order is unwanted */
void tt_table_io_forget_dead(struct tutti_table *); /* drops the orders of askers that are gone, except for a TAKE */
void tt_table_io_stop(struct tutti_table *);    /* the thread does nothing more than it is in the middle of */
void tt_table_io_free(struct tutti_table *);    /* waits for the thread. Without the lock */

/* save.c, load.c: what the I/O thread does. Each order ends with tt_table_io_done(), at once or later */
void tt_save_begin(struct tt_table_io *);
void tt_saving_free(struct tt_saving *);        /* NULL is allowed */
uint32_t tt_saving_workers(const struct tutti_table *); /* of how many workers the shard has state, each its own */
void tt_saving_moved(struct tutti_table *);     /* the values or the state, which are being saved, have moved */
void tt_state_name(char *room, size_t size, const struct tutti_table *, const struct tt_state *); /* of the array */
#define TT_NOTE_RULE "update_rule"              /* of the saved state; a file without it has values alone */
#define TT_NOTE_PUSHES "update_pushes"
#define TT_NOTE_CLOCK "update_clock"
#define TT_NOTE_WORKERS "update_workers"        /* of how many workers, by number; 0: of no worker's own */
#define TT_KEYS_OF "%s.keys"                    /* the array of the keys: row i of the others belongs to key i */
enum { TT_STATE_NAME = 256 };
void tt_load_read(struct tt_table_io *);
void tt_load_take(struct tt_table_io *);
uint32_t tt_staged_print(const struct tt_staged *); /* checksum of the save that it is from */
const struct tt_asker *tt_staged_asker(const struct tt_staged *); /* with the number of its READ */
void tt_load_forget(struct tt_table_io *);      /* drops what was read */
void tt_staged_free(struct tt_staged *);        /* NULL is allowed */
/* Loads a shard that no other rank knows yet, and its clock. Without the lock. */
int tt_load_open(struct tutti_table *, const char *folder);
#endif
