/* saving.h - what saving and loading of tables share. All is called with the job's gate held, unless it says otherwise.
 *
 *   image.c  a shard as it was at one moment, while it is changed
 *   io_thread.c  who asks servers to write or to read, and the servers' side: one thread for each shard that does
 *   save.c   a shard to a file; a save of the whole table
 *   load.c   a save to a shard, or to all of them
 */
#ifndef TT_TABLE_SAVE_H
#define TT_TABLE_SAVE_H
#include "file/file.h"
#include "table/table_private.h"

/* ---- image.c ---- */

struct tt_array {
	const void *at;
	size_t width;                /* bytes an element */
};
struct tt_image;
int tt_image_open(const struct tt_array *, int arrays, size_t count, struct tt_image **); /* of this moment; count: elements of each array, not 0 */
void tt_image_close(struct tt_image *);                           /* NULL is allowed */
void tt_image_keep(struct tt_image *, size_t first, size_t count); /* these elements are about to change, in whichever of the arrays */
void tt_image_moved(struct tt_image *, int array, const void *now); /* that array lies there now */
size_t tt_image_read(struct tt_image *, void *to, size_t room);   /* the next bytes, array after array, of one at a time; 0: that was all */

/* ---- io_thread.c ---- */

enum tt_file_what { /* write your shard; read it, aside; use what you have read; forget that; how often were you loaded? */
	TT_FILE_SAVE, TT_FILE_READ, TT_FILE_TAKE, TT_FILE_DROP, TT_FILE_COUNT
};
struct tt_order {
	enum tt_file_what what;
	const char *folder;          /* SAVE, READ */
	uint64_t generation;         /* SAVE; TAKE: the number of that READ; DROP: of that READ or SAVE */
	uint32_t workers;            /* SAVE: whose state is written, where each has its own */
	bool differ;                 /* READ: not all servers have read the same save */
	uint64_t loads;              /* SAVE, COUNT: of all servers, together with their numbers: it has changed if one was loaded */
};
struct tt_asker { /* who gave an order: */
	int rank;
	uint32_t epoch;              /* in that life of his, */
	uint32_t number;             /* as he calls it */
};
struct tt_table_io { /* of a shard: does one thing at a time, and nothing else between a READ and its TAKE or DROP */
	struct tutti_table *table;
	struct tt_order order;       /* with a folder of its own */
	struct tt_asker asker;
	bool busy;                   /* he has no answer yet, and is told ... */
	struct tt_timer turn;        /* ... now and then that it gets on, ... */
	_Atomic uint64_t steps;      /* ... as its thread has come so far ... */
	uint64_t told;               /* ... since he was told */
	_Atomic bool unwanted;       /* he has given it up: it is not worth its end */
	_Atomic bool stop;           /* the table is being closed: give it up */
	struct tt_task *thread;      /* NULL: none, or joined */
	int (*work)(struct tt_table_io *);   /* by the thread, without the gate */
	void (*after)(struct tt_table_io *, int err); /* ... with the gate again, before he is told. NULL: nothing */
	struct tt_saving *saving;
	uint32_t loads;              /* that were taken */
	struct tt_staged *staged;
};
int tt_table_io_call(struct tutti_table *, const char *what, const char *folder, int (*act)(struct tutti_table *, const char *what, const char *folder));
                                                      /* what the program calls: act with the folder's real path; without the gate */
int tt_table_io_order(struct tutti_table *, const char *what, struct tt_order *, uint32_t *number); /* to all servers, and waits until each has
                                                      * answered, is gone or gets on no more; without the gate. The sentence begins with `what`.
                                                      * With -EAGAIN the order's `workers` are raised to those that some server has state of. number: of this
                                                      * order, NULL: of no use */
void tt_table_io_work(struct tt_table_io *, int (*work)(struct tt_table_io *), void (*after)(struct tt_table_io *, int err)); /* goes on, on the thread */
void tt_table_io_done(struct tt_table_io *, int err); /* an error with its sentence as this thread's last */
bool tt_asker_is(const struct tt_asker *, const struct tt_asker *);
int tt_table_io_step(struct tt_table_io *);           /* one more of what is done for him: is it wanted still? -ECANCELED, -ESTALE, with a sentence */
void tt_table_io_forget_dead(struct tutti_table *); /* what is written or was read for one who is gone, and is not being taken */
void tt_table_io_stop(struct tutti_table *);       /* nothing is written or read from now on, but for what the thread is in the middle of */
void tt_table_io_free(struct tutti_table *);       /* waits for that; without the gate */

/* ---- save.c, load.c: what a clerk does. Each ends with tt_table_io_done(), at once or later ---- */

void tt_save_begin(struct tt_table_io *);
void tt_saving_free(struct tt_saving *);        /* NULL is allowed */
void tt_saving_moved(struct tutti_table *);     /* the values and the state that are being saved, as their room has grown */
void tt_state_name(char *room, size_t size, const struct tutti_table *, const struct tt_state *); /* of the array that it is in a save */
#define TT_NOTE_RULE "update_rule"              /* of the state that comes with the values; a file without it has values alone */
#define TT_NOTE_PUSHES "update_pushes"
#define TT_NOTE_CLOCK "update_clock"
#define TT_KEYS_OF "%s.keys"                    /* the array of a table's keys: row i of the values and of the state belongs to the i-th */
enum { TT_STATE_NAME = 256 };
void tt_load_read(struct tt_table_io *);
void tt_load_take(struct tt_table_io *);
uint32_t tt_staged_print(const struct tt_staged *); /* of the save that it is of */
const struct tt_asker *tt_staged_asker(const struct tt_staged *); /* with the number of his READ */
void tt_load_forget(struct tt_table_io *);         /* what was read */
void tt_staged_free(struct tt_staged *);        /* NULL is allowed */
int tt_load_open(struct tutti_table *, const char *folder); /* into a shard that nobody else knows yet, and its clock; without the gate */
#endif
