/* publish.h - buffers that one rank writes and others read one-sided, each buffer a whole state of a model
 *
 *      front { hash, newest, last } | stamp[n] | ... | buffer 0 | buffer 1 | ...
 *
 * A stamp says what a buffer holds: the number of the publication, or 0 while the owner writes into the buffer. A
 * reader gets the front, which repeats the newest stamp, then the buffer, then the buffer's stamp. If the two stamps
 * differ, the bytes may be torn, and the reader drops them. Nobody is asked, and the owner waits for nobody. (A
 * sequence lock: Lameter 2005; Boehm, MSPC 2012.) */
#ifndef TT_PUBLISH_H
#define TT_PUBLISH_H
#include "base/base.h"

struct tt_stamp { /* 32 bytes within one cache line. The owner writes it */
	uint64_t number;    /* of the publication; 0: the owner writes into the buffer */
	uint64_t about[2];  /* the publication's, for who reads it */
	uint64_t born;      /* when it was published: nanoseconds of the calendar */
};

struct tt_front { /* one cache line, and as much as each net gets into memory that is not registered */
	uint64_t hash;      /* of what the buffers hold: readers that expect another one read nothing */
	uint64_t newest;    /* number * most + buffer, where `most` is how many buffers there may be; 0: nothing yet */
	uint64_t reserved[2];
	struct tt_stamp last; /* of that publication */
};

struct tt_buffers { /* the owner's view */
	struct tt_front *front;
	struct tt_stamp *stamp; /* one a buffer */
	int n, most;
	int newest;             /* a buffer; -1: nothing was published */
	uint64_t number;        /* of the newest; of others, numbers are less */
};

/* Nobody may write into a buffer before its number is 0 for all: also a store that bypasses the caches. */
void tt_buffers_spoil(struct tt_buffers *, int buffer);
/* The buffer that was published longest ago, so that late readers of the others go on. Not the newest, nor one whose
 * bit is in `kept`. -1: there is none. */
int tt_buffers_oldest(const struct tt_buffers *, unsigned kept);
/* Others read this buffer from now on, which was spoilt and is written. number: above b->number. */
void tt_buffers_show(struct tt_buffers *, int buffer, uint64_t number, uint64_t about, uint64_t about_too);

/* The newest buffer, as a front says that was copied here, maybe in the middle of a change. Returns 0, with *buffer;
 * -EAGAIN: it changes just now; -ENODATA: nothing was published. */
int tt_front_read(uint64_t newest, const struct tt_stamp *last, int most, int *buffer);

static inline uint64_t tt_bits_of(double x)
{
	uint64_t bits;

	memcpy(&bits, &x, sizeof bits);
	return bits;
}

static inline double tt_double_of(uint64_t bits)
{
	double x;

	memcpy(&x, &bits, sizeof x);
	return x;
}
#endif
