/* publish_private.h - what publisher and readers share
 *
 * A publisher has a window "publication NAME":
 *
 *      head { front, generation, ... , stamp[16] } | word[shard] | place[rank] | list of tensors | meta[buffer] |
 *      buffer 0 | buffer 1 | ... | with deltas: entry[64] | ring
 *
 * Only shard 0 of a publication in shards has the words. Numbers in front and stamps are the program's versions. Head
 * and list stay as they are while the window is open.
 *
 * A reader whose fetches were overtaken takes a hold: the reader writes the number and the buffer into its place, then
 * reads the buffer's stamp. The publisher writes the stamp, then reads the places. Each has a full fence between its
 * write and its read, so at least one of them sees the other: the reader sees that it is overtaken, or the publisher
 * sees the hold and takes another buffer. (Dekker; Peterson 1981.) */
#ifndef TT_PUBLISH_PRIVATE_H
#define TT_PUBLISH_PRIVATE_H
#include "base/model.h"
#include "operation/operation.h"
#include "publish/delta.h"
#include "publish/publish.h"
#include "window/window.h"

enum {
	TT_PUBLISH_MOST = 16,       /* buffers */
	TT_PUBLISH_META = 4096,     /* bytes of meta data of a version */
	TT_PUBLISH_NAME = 160,
	TT_PUBLISH_LIST = 64 << 20, /* bytes of a list of tensors, at most */
	TT_PUBLISH_PLACES = 1 << 20,
	TT_PUBLISH_SHARDS = 1024,
};
#define TT_PUBLISH_VERSIONS (UINT64_C(1) << 60) /* a version is less */
#define TT_PUBLISH_BYTES (SIZE_MAX / 64)        /* of a buffer, at most: all buffers together are a size_t */

struct tt_publish_head {
	struct tt_front front;      /* its hash is a random number of this opening */
	uint64_t what;              /* TT_PUBLISH_WHAT */
	uint64_t generation;
	uint64_t places, list_bytes, buffers, bytes; /* bytes: of a buffer */
	uint64_t list_hash;
	uint16_t shard, shards;     /* which shard this is, and of how many; 0, 0: a publication without shards */
	uint32_t deltas;            /* pages of 4 KiB in their ring; 0: there are no deltas */
	struct tt_stamp stamp[TT_PUBLISH_MOST]; /* about[0]: bytes of meta data */
};
_Static_assert(sizeof(struct tt_publish_head) == 640, "docs/wire.md");
#define TT_PUBLISH_WHAT UINT64_C(0x316275706c707474)

struct tt_shard_word { /* of a shard. The shard writes it, into shard 0's window */
	uint64_t version;           /* its newest one; the others stay as they are while shard 0 has its window open */
	uint64_t generation;
	uint64_t rank;              /* in the job, + 1; 0: the shard has not opened the name */
	uint64_t hash;              /* of the shard's front */
};

struct tt_reader_place { /* of a reader. The reader writes it */
	uint64_t hold;              /* as front.newest: that buffer shall keep that number; 0: none */
	uint64_t taken;             /* the version of the last fetch */
	uint64_t reader;            /* the reader's epoch; 0: there is no reader */
	uint64_t reserved;
};
enum { TT_PLACE_USED = offsetof(struct tt_reader_place, reserved) };

struct tt_publish_layout { /* where the parts begin in the window, in bytes */
	size_t places, list, meta, buffers, stride, entries, ring, all;
};
static inline size_t tt_publish_ring(const struct tt_publish_head *h) { return (size_t)h->deltas << 12; }
size_t tt_publish_places(const struct tt_publish_head *); /* behind the words */
struct tt_publish_layout tt_publish_layout(const struct tt_publish_head *);

/* ---- list.c: the list of tensors ---- */

/* Checks the list, and gives it as bytes, malloc'd. -EINVAL, -ENOMEM. */
int tt_publish_pack(const tutti_weight *, int n, uint8_t **bytes, size_t *len);
/* Makes the list of such bytes, malloc'd in one piece. -EPROTO: the bytes make no sense. */
int tt_publish_unpack(const uint8_t *bytes, size_t len, tutti_weight **list, int *n);
/* The model of a list; where no tensor has memory, a model that must not be stored or loaded, and *held is true. */
int tt_publish_model(const tutti_weight *, int n, struct tt_model *, bool *held);

/* ---- shard.c: the words of shards, as their publishers use them ---- */

/* The newest version that all shards have, as the words say that were copied here; 0: none. */
uint64_t tt_shards_whole(const struct tt_shard_word *, int shards);

struct tt_shards { /* a publisher's */
	struct tt_job *job;
	tutti_window *window;
	int me, n, first;           /* first: shard 0's rank in the job */
	uint64_t wait;              /* how long this shard waits for the others, in nanoseconds */
	uint64_t timeout;
	struct tt_shard_word mine, *words; /* words: shard 0's own memory, or what was copied from there */
	uint64_t whole;             /* all have this version, or a newer one by now */
	tutti_op op;                /* tells shard 0 this shard's newest version */
	bool tells;                 /* the op was started */
};
int tt_shards_check(const tutti_publisher_config *, const char *name, tutti *at);
/* Makes this shard known to shard 0, which it waits for. memory: of the window, if this is shard 0. The struct is zeros
 * before, and closed also after an error. */
int tt_shards_open(struct tt_shards *, tutti *at, tutti_window *, const tutti_publisher_config *,
                   const struct tt_publish_head *mine, struct tt_shard_word *own, struct tt_users *);
void tt_shards_close(struct tt_shards *); /* before the window */
/* The buffers with versions that this shard must keep: all shards may not have a newer one. As bits. */
unsigned tt_shards_kept(const struct tt_shards *, const struct tt_buffers *);
int tt_shards_look(struct tt_shards *);   /* looks what all shards have by now */
int tt_shards_missing(struct tt_shards *); /* -EAGAIN: the slowest shard is so far behind; -ECONNRESET: it is gone */
int tt_shards_settle(struct tt_shards *); /* waits until shard 0 knows the version that was told last */
int tt_shards_tell(struct tt_shards *, uint64_t version); /* the buffer is shown. Does not block */

/* ---- waiting.c ---- */

/* Waits up to *ns nanoseconds, longer the next time. 0; -EINTR, -ESTALE, -ESHUTDOWN: the call ends. */
int tt_publish_pause(struct tt_job *, struct tt_users *, uint64_t *ns, uint64_t deadline);
uint64_t tt_publish_deadline(uint64_t timeout, int timeout_ms); /* -1: timeout, in nanoseconds */
enum { TT_PUBLISH_PAUSE = 50000 }; /* the first pause, in nanoseconds */
#endif
