/* reader_private.h - what the files of a reader share
 *
 * A reader of a publication in shards has a reader inside it for each shard but shard 0, which it reads itself. */
#ifndef TT_READER_PRIVATE_H
#define TT_READER_PRIVATE_H
#include "publish/publish_private.h"
#include "transport/copy.h"

enum { TT_READER_DEPTH = 8 }; /* GETs under way */

struct tt_fetch {
	tutti_reader *r;
	const tutti_tensor *to;
	struct tt_stamp stamp;      /* of the version that is read ... */
	struct tt_stamp now;        /* ... as it is after the hold ... */
	uint64_t word;              /* ... whose word this is */
	int buffer;
	bool mapped, held;          /* held: this fetch has put a hold */
	unsigned begun, ended;      /* GETs; those between are under way */
	uint64_t from;              /* the version that the tensors have; 0: none, or parts of several */
	uint64_t bytes;             /* that came */
	struct tt_delta_chain chain;
};

struct tt_seen { /* of a shard's window, as one GET brings it: the end of its head, and what is behind that */
	struct tt_stamp stamp[TT_PUBLISH_MOST];
	struct tt_shard_word word[]; /* of shard 0: all words */
};
_Static_assert(offsetof(struct tt_publish_head, stamp) + offsetof(struct tt_seen, word) ==
               sizeof(struct tt_publish_head), "the words are behind the stamps");

struct tutti_reader {
	struct tt_handle handle;    /* of the reader that the program has */
	struct tt_users *users;     /* of that */
	struct tt_job *job;
	tutti_window *window;       /* of all shards */
	char *what;                 /* "reader "NAME"", for sentences */
	int member;                 /* the publisher, in the job */
	uint64_t timeout;
	struct tt_publish_head head; /* of the opening that the reader knows; zeros: none. Without stamps */
	struct tt_publish_layout at;
	uint8_t *bytes;             /* the list as it came; all openings must have the same */
	tutti_weight *list;
	int n;
	struct tt_model model;      /* without memory */
	uint64_t generation;        /* of the last fetch: versions are compared within it */
	char meta[TT_PUBLISH_META];
	uint8_t *deltas;            /* deltas that came, and how many bytes have place there */
	size_t room;
	uint64_t mismatched;
	struct tt_copier copier;
	tutti_op op[TT_READER_DEPTH];
	struct tt_seen *seen;       /* by the last look; NULL: the publication is not in shards */
	/* of the reader that the program has */
	int parts;                  /* shards, or 1 */
	tutti_reader **part;        /* a reader each; part[0] is the program's */
	struct tt_fetch *fetch;     /* one a part, of the fetch that runs */
	int missing;                /* the shard that the last look missed, or that was overtaken */
};

/* ---- source.c: one publisher's window, as a reader sees it ---- */

int tt_reader_get(tutti_reader *, size_t at, void *to, size_t bytes);
int tt_reader_put_word(tutti_reader *, size_t inside, uint64_t word); /* into this rank's place there */
int tt_reader_start_hold(tutti_reader *, const uint64_t *word, tutti_op *);
/* Zeroes words of this rank's place, and waits for nothing: a publisher that has gone does not take them. */
void tt_reader_clear(tutti_reader *, size_t inside, size_t bytes);
size_t tt_reader_stamp_at(int buffer);
struct tt_label tt_reader_publisher(const tutti_reader *);
/* The publisher has closed its window: the next use asks for the next one; or is gone. Returns err, whose sentence
 * says which shard it was. */
int tt_reader_lose(tutti_reader *, int err);
int tt_reader_refuse(const tutti_reader *, const char *why); /* -EBADMSG */
/* The first contact with an opening: its head, its list, and this rank's place there. -EAGAIN: it is a newer one now */
int tt_reader_meet(tutti_reader *);
/* 0: the publication is open, as far as is known; -EINPROGRESS: not yet; -ESTALE: it was closed. A get would wait. */
int tt_reader_ask(tutti_reader *);
/* Finds the newest version. Returns 0, with the version's stamp and buffer. -EAGAIN: the version changes just now;
 * -ENODATA: the publisher has shown none yet; -EINPROGRESS: the name is not open. */
int tt_reader_look(tutti_reader *, struct tt_stamp *stamp, int *buffer);
void tt_reader_free(tutti_reader *); /* what it knows of one publisher; not its window, nor its parts */

/* ---- parts.c: a reader of shards ---- */

/* After the first contact with shard 0. Waits for the other shards. */
int tt_parts_open(tutti_reader *, struct tt_users *opening);
/* Finds the newest version that all shards have. Returns 0, with its number in fetch[0].stamp; else as
 * tt_reader_look(). */
int tt_parts_look(tutti_reader *);
/* The stamp and the buffer of that version, into fetch[] of all parts. -EAGAIN: it was written over meanwhile. */
int tt_parts_find(tutti_reader *);
/* Starts an operation of each part from the first one on, at once, and waits for all of them. The function starts op[0]
 * of the fetch's reader. */
int tt_parts_all(tutti_reader *, int first, int (*start)(struct tt_fetch *));
int tt_parts_newest(tutti_reader *, uint64_t *version); /* also while another thread fetches */
void tt_parts_free(tutti_reader *);
#endif
