/* shadow.c - host memory that stands for a device's memory during a call which works in host memory
 *
 *      device memory -- lift -->  shadow  -- the call reads and writes it -->  shadow -- land --> device memory
 *
 * Such a call has the same messages and the same bits as a call of host memory, and its ranks need not have the same
 * kind of memory. The job keeps the last shadow: fresh memory costs a page fault every 4 KiB. */
#include "device/device_private.h"
#include <stdlib.h>

enum { TOO_LARGE = 4 }; /* a kept shadow is not used for memory that is so many times smaller */

/* NULL: the kept one does not fit. */
static void *take_kept(struct tt_job *job, size_t len, size_t *room)
{
	struct tt_devices *d = tt_devices(job);
	void *memory = NULL;

	tt_ticket_lock_take(&job->engine.lock);
	if (d->shadow && d->shadow_len >= len && d->shadow_len / TOO_LARGE <= len) {
		memory = d->shadow;
		*room = d->shadow_len;
		d->shadow = NULL;
	}
	tt_ticket_lock_release(&job->engine.lock);
	return memory;
}

static int open_device(struct tt_job *job, struct tt_shadow *s, void *memory, size_t len,
                       const struct tt_gpu_range *range)
{
	void *host;
	int err = tt_pin_user(job, memory, len, TT_PIN_COPY, range, &s->pinned);

	if (err)
		return err;
	s->room = len;
	if (!(host = take_kept(job, len, &s->room)) && (err = tt_memory_alloc(job, len, -1, &host))) {
		tt_unpin_now(s->pinned);
		return err;
	}
	s->job = job;
	s->device = memory;
	s->memory = host;
	s->len = len;
	return 0;
}

int tt_shadow_open(struct tt_job *job, struct tt_shadow *s, void *memory, size_t len)
{
	struct tt_gpu_range range;
	int err = tt_find_device(memory, len, &range);

	*s = (struct tt_shadow){ .memory = memory };
	return err || range.device < 0 ? err : open_device(job, s, memory, len, &range);
}

void tt_shadow_close(struct tt_shadow *s)
{
	struct tt_devices *d;

	if (!s->job)
		return;
	d = tt_devices(s->job);
	tt_unpin(s->job, s->pinned);
	tt_memory_free(d->shadow);
	d->shadow = s->memory;
	d->shadow_len = s->room;
	free(s->why);
	s->why = NULL;
	s->job = NULL;
}

void tt_shadow_drop(struct tt_shadow *s)
{
	if (!s->job)
		return;
	tt_unpin_now(s->pinned);
	tt_memory_free(s->memory);
	s->job = NULL;
}

static void end_move(struct tt_post *post, int err)
{
	struct tt_shadow *s = tt_container_of(post, struct tt_shadow, post);
	const char *why = tt_device_why(s->job);

	*s->moving = true;
	s->moving = NULL;
	if (err && !s->err) {
		s->err = err;
		s->why = why ? strdup(why) : NULL;
	}
	s->moved(s);
}

static int move(struct tt_shadow *s, bool *is_done, struct tt_device_end to, struct tt_device_end from,
                void (*moved)(struct tt_shadow *))
{
	if (s->err || !s->job || *is_done)
		return s->err ? s->err : 1;
	if (s->moving)
		return 0;
	s->moving = is_done;
	s->moved = moved;
	s->post = (struct tt_post){ .done = end_move };
	tt_device_copy(s->job, &s->post, to, from, s->len);
	return 0;
}

int tt_shadow_lift(struct tt_shadow *s, void (*moved)(struct tt_shadow *))
{
	return move(s, &s->lifted, (struct tt_device_end){ s->memory, NULL },
	            (struct tt_device_end){ s->device, s->pinned }, moved);
}

int tt_shadow_land(struct tt_shadow *s, void (*moved)(struct tt_shadow *))
{
	return move(s, &s->landed, (struct tt_device_end){ s->device, s->pinned },
	            (struct tt_device_end){ s->memory, NULL }, moved);
}

void tt_shadow_give_up(struct tt_shadow *s, int err)
{
	if (s->moving)
		tt_device_give_up(s->job, &s->post, err);
}
