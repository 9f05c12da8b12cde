/* copy.h - how processes of one host copy: in the way that is fastest now for copies of about this size
 *
 * The fastest way differs between processors, sizes and places, and in a virtual machine from minute to minute. So it
 * is measured on the copies themselves. The first copies of each size class are made in each way in turn, and timed.
 * The best way is kept for a second; then all are tried again. Nothing is copied only to measure.
 */
#ifndef TT_COPY_H
#define TT_COPY_H
#include "base/base.h"

enum tt_copy_way {
	TT_COPY_PLAIN,  /* vectors, through the caches */
	TT_COPY_STRING, /* rep movsb: tears words of 8 bytes where a page fault or an interrupt comes in between */
	TT_COPY_STREAM, /* vectors, stored past the caches */
	TT_COPY_WAYS
};

enum {
	TT_COPY_FROM = 4096, /* bytes: shorter copies are plain */
	TT_COPY_CLASSES = 7, /* size classes, each four times as long as the one before; the last has no end */
	TT_COPY_ROUNDS = 4,  /* trials of each way */
};

/* What was learnt of one kind of copy: into a ring, out of it, between a window and a buffer. A zeroed one knows
 * nothing yet. Threads may share it. */
struct tt_copier {
	uint8_t without;              /* a way that is not tried; TT_COPY_PLAIN: all are. Set before the first copy */
	struct tt_copy_class {
		_Atomic uint8_t way;      /* the best when the trials last ended */
		_Atomic uint8_t trial;    /* the one under way; TT_COPY_ROUNDS of each way: all have ended */
		_Atomic uint8_t warm;     /* a first copy was made, so the trial's copies count */
		_Atomic uint64_t bytes;   /* of this trial; when all have ended: since the last look at the clock */
		_Atomic uint64_t spent;   /* nanoseconds of this trial */
		_Atomic uint64_t settled; /* when all trials last ended */
		_Atomic uint64_t cost[TT_COPY_WAYS][TT_COPY_ROUNDS]; /* nanoseconds for a MiB */
	} of[TT_COPY_CLASSES];
};

/* As memcpy. Whatever the way, stores that follow are visible after it. */
void tt_copy(struct tt_copier *, void *to, const void *from, size_t n);
void tt_copy_words(void *to, const void *from, size_t n); /* reads each aligned word of 8 bytes at one moment */
enum tt_copy_way tt_copy_way(const struct tt_copier *, size_t n);       /* the way for copies of n bytes */
void tt_copy_by(enum tt_copy_way, void *to, const void *from, size_t n);
int tt_copy_ways(void); /* how many ways, from TT_COPY_PLAIN on, this processor has */
extern const char *const tt_copy_name[TT_COPY_WAYS];
#endif
