/* device.h - memory of devices on its way: to a host, from a host, and to another device
 *
 * An op is moved by this room where a device's memory stands at one end and the net does not take it: the bytes go in
 * pieces, through chunks of pinned host memory. docs/design.md, Device memory, has the picture. A caller posts such an
 * op as any other, with tt_post(). */
#ifndef TT_DEVICE_H
#define TT_DEVICE_H
#include "member/member.h"

enum { TT_DEVICE_SLOT = 7 };
extern const struct tt_module tt_device_module;

/* Registers memory for remote use; a device's, too, which only this room can read where the net does not take it.
 * pinned: what holds the memory; a device's always has it. fenced: others read the memory as the caller's stream leaves
 * it, so they wait for that. */
int tt_device_reg(struct tt_net *, const struct tt_mem *, struct tt_pinned *pinned, bool fenced, struct tt_region **);
/* Others can ask for the memory no more. True: nothing reads or writes it, unless the device stands still for longer
 * than the patience (below), and the region is gone; NULL is allowed.
 * False: copies that a device has begun still do, mostly for some microseconds. The caller calls again later;
 * idle(arg) tells it when, from a later turn. */
bool tt_device_dereg(struct tt_region *, void (*idle)(void *), void *arg);

struct tt_device_end { /* of a copy within this process */
	void *at;
	struct tt_pinned *pinned; /* of a device's memory; NULL: the memory is the host's */
};
/* Copies len bytes, of which one end at least is a device's; 0: none. p->done(p, err) follows, from a later turn; with
 * TT_NOTIFY in p->op.flags behind that of all copies before. The rest of *p is not looked at. */
void tt_device_copy(struct tt_job *, struct tt_post *p, struct tt_device_end to, struct tt_device_end from,
                    size_t len);

bool tt_device_copies(const struct tt_job *); /* some are under way */
/* How long a call that has failed waits for copies that a device has begun, in nanoseconds. */
uint64_t tt_device_patience(const struct tt_job *);
/* Copies of calls that have ended are still under way: the memory that they use must stay. With the lock. */
bool tt_device_stands_still(const struct tt_job *, int gpu);

/* ---- shadow.c: calls that work in host memory, of a device's memory ---- */

struct tt_shadow {
	char *memory;               /* that the call works in: the caller's own, if that is the host's */
	struct tt_job *job;         /* NULL: it is the caller's own, and nothing moves */
	struct tt_pinned *pinned;
	char *device;
	size_t len, room;
	bool lifted, landed;
	bool *moving;               /* becomes true when the move under way has ended; NULL: none is */
	void (*moved)(struct tt_shadow *);
	struct tt_post post;
	int err;
	char *why;                  /* the sentence behind err, until tt_shadow_close(); NULL: none */
};
/* Without the lock. A zeroed struct is one of host memory. */
int tt_shadow_open(struct tt_job *, struct tt_shadow *, void *memory, size_t len);
/* Copies from the device's memory into the shadow, or back; the first copy waits for the caller's stream. 1: done, also
 * if the memory is the host's; 0: moved() follows; -errno. */
int tt_shadow_lift(struct tt_shadow *, void (*moved)(struct tt_shadow *));
int tt_shadow_land(struct tt_shadow *, void (*moved)(struct tt_shadow *));
void tt_shadow_give_up(struct tt_shadow *, int err); /* a copy that waits for a stream ends with err, soon */
void tt_shadow_close(struct tt_shadow *);            /* nothing moves */
void tt_shadow_drop(struct tt_shadow *);             /* likewise, of a call that has not begun. Without the lock */

/* Ends an op that waits here, with err, soon. If bytes of the op are moving, no more bytes begin to; an op whose bytes
 * have all moved ends well. False: the op is not here. */
bool tt_device_give_up(struct tt_job *, struct tt_post *, int err);
/* The owner takes back the memory of that key: ends with -ESTALE what waits here and would use it. why: the sentence,
 * or NULL. */
void tt_device_recalled(struct tt_member *owner, const struct tt_key *, const char *why);
void tt_device_forget(struct tt_member *owner, const struct tt_key *); /* this rank uses that key no more */
/* In a done() with an error: the sentence behind it, until done() returns; NULL: there is none. */
const char *tt_device_why(const struct tt_job *);
#endif
