/* delta.h - what changed between two versions of a model, and the ring in which a publisher keeps that
 *
 *      entry[64] { version, from, at, bytes, sum } | ring: ... delta | delta | ...
 *
 * A delta leads from one version to the next one. A reader that has a version reads the entries, then the deltas that
 * lead to the newest version, then the entries again: if an entry has changed, the delta's bytes may be torn, and the
 * reader drops them. The publisher zeroes the version of each entry whose bytes it is about to write over. */
#ifndef TT_DELTA_H
#define TT_DELTA_H
#include "base/model.h"

/* ---- delta.c: a delta's bytes ---- */

enum { TT_DELTA_SLACK = 1024 }; /* bytes behind `room` that tt_delta_write may write, too */

struct tt_delta {
	size_t bytes;
	uint64_t sum;               /* XXH64 of the new version's tensors, one behind the other */
};

/* Writes the changes from `old` to `now`, both buffers of the model, elements compared as bits. Returns 0, with *delta;
 * -ENOSPC: they need more than `room` bytes, or a sample of both buffers says so. */
int tt_delta_write(const struct tt_model *, const char *old, const char *now, uint8_t *to, size_t room,
                   struct tt_delta *delta);
/* Applies such bytes to tensors that have the old version. False: the bytes make no sense, and elements may have
 * changed, but nothing outside the tensors. */
bool tt_delta_apply(const uint8_t *from, size_t bytes, const tutti_tensor *to, int n);
uint64_t tt_delta_sum(const tutti_tensor *, int n);

/* ---- delta_ring.c: which deltas there are ---- */

enum { TT_DELTAS = 64 };
struct tt_delta_entry { /* one cache line */
	uint64_t version, from;     /* leads from that version to this one; version 0: no delta, or it changes now */
	uint64_t at, bytes;         /* in the ring */
	uint64_t sum;
	uint64_t reserved[3];
};
_Static_assert(sizeof(struct tt_delta_entry) == 64, "docs/wire.md");

struct tt_delta_ring { /* the publisher's view */
	struct tt_delta_entry *entry;
	uint8_t *bytes;
	size_t room, next;          /* bytes of the ring; where the next delta begins, if it fits */
	unsigned count;             /* deltas so far */
	uint8_t *draft;             /* where a delta is written first */
	size_t longest;             /* a longer one is dropped */
};

/* entry, bytes: zeroed memory in the window. -ENOMEM. */
int tt_delta_ring_open(struct tt_delta_ring *, struct tt_delta_entry *entry, uint8_t *bytes, size_t room,
                       size_t model_bytes);
void tt_delta_ring_close(struct tt_delta_ring *); /* zeroed is allowed */
/* Keeps what changed from one version to the next. Returns the delta's bytes; 0: the delta would be too long. */
size_t tt_delta_keep(struct tt_delta_ring *, const struct tt_model *, const char *old, const char *now, uint64_t from,
                     uint64_t version);

struct tt_delta_chain {
	struct tt_delta_entry link[TT_DELTAS];
	int n;
	size_t bytes;
};
/* Finds the deltas that lead from one version to another one, in entries that a publisher gave. False: there are none,
 * or they have more than `most` bytes together, or lie outside a ring of `room` bytes. */
bool tt_delta_find(const struct tt_delta_entry *, uint64_t from, uint64_t version, size_t room, size_t most,
                   struct tt_delta_chain *);
bool tt_delta_is_there(const struct tt_delta_entry *, const struct tt_delta_chain *); /* the entries read again */
#endif
