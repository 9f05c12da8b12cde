/* copy.h - how processes of one host copy: whichever way is fastest now for copies of about this size
 *
 * Which one that is differs between processors, sizes and places, and in a virtual machine from minute to minute. So it is found
 * out on the copies themselves: of each size class the first ones are made in each way in turn and timed, and the best way is
 * kept for a second; then all are tried again. Nothing is copied only to measure.
 */
#ifndef TT_COPY_H
#define TT_COPY_H
#include "base/base.h"

enum tt_copy_way {
	TT_COPY_PLAIN,  /* vectors, through the caches */
	TT_COPY_STRING, /* the processor's own: rep movsb */
	TT_COPY_STREAM, /* vectors, stored past the caches */
	TT_COPY_WAYS
};

enum {
	TT_COPY_FROM = 4096, /* bytes: shorter copies are plain */
	TT_COPY_CLASSES = 7, /* of sizes, each four times as long as the one before, the last without an end */
	TT_COPY_ROUNDS = 4,  /* trials of each way */
};

/* What was learnt of one kind of copy: into a ring, out of it, between a window and a buffer. Zeroed knows nothing yet. Threads
 * may share it. */
struct tt_copier {
	struct tt_copy_class {
		_Atomic uint8_t way;      /* the best, when it was last settled */
		_Atomic uint8_t trial;    /* the one under way; TT_COPY_ROUNDS * TT_COPY_WAYS: settled */
		_Atomic uint8_t warm;     /* the trial's copies count: one was made before them */
		_Atomic uint64_t bytes;   /* of this trial; once settled, since the clock was read */
		_Atomic uint64_t spent;   /* nanoseconds of this trial */
		_Atomic uint64_t settled; /* when */
		_Atomic uint64_t cost[TT_COPY_WAYS][TT_COPY_ROUNDS]; /* nanoseconds for a MiB */
	} of[TT_COPY_CLASSES];
};

void tt_copy(struct tt_copier *, void *to, const void *from, size_t n); /* as memcpy; whatever the way, later stores come after it */
enum tt_copy_way tt_copy_way(const struct tt_copier *, size_t n);       /* the one kept for copies of n bytes */
void tt_copy_by(enum tt_copy_way, void *to, const void *from, size_t n);
int tt_copy_ways(void); /* how many of them, from TT_COPY_PLAIN on, this processor has */
extern const char *const tt_copy_name[TT_COPY_WAYS];
#endif
