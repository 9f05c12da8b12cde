/* gossip_device.c - a gossip whose model lies on a device
 *
 *      tensors -- publish: a copy --> buffer ... another rank's buffer -- GETs --> staging -- mix: a blend --> tensors
 *      (device)                       (device, or the host's)                      (device)
 *
 * The head stays in host memory: a device's memory has no atomic access. A buffer's stamp is 0 before its copy begins,
 * and the new one once the copy has ended. A reader looks at the stamp again when all pieces have come. The program's
 * tensors are read and written here alone, in the calling thread and behind its stream: publish and mix return when the
 * device has finished. */
#include "average/gossip.h"
#include "device/device.h"

enum { COPY_NS = 10000, FENCE_NS = 100000 }; /* between two looks at the device, which wakes no
                                                * sleeper; FENCE_NS is the longest time */

/* ---- opening and closing ---- */

static int device_of(const tutti_tensor *t, int *gpu)
{
	struct tt_gpu_range range;
	int err = tt_find_device(t->data, t->count * tt_type_size(t->type), &range);

	*gpu = range.device;
	return err;
}

int tt_gossip_find_device(const tutti_tensor *list, int n, int *gpu)
{
	int first = -1, here, err;

	*gpu = -1;
	tt_gpu_look(); /* the tensors may be too short for that */
	for (int i = 0; i < n; i++) {
		if (!list[i].count)
			continue;
		if ((err = device_of(&list[i], &here)))
			return err;
		if (first >= 0 && here != *gpu)
			return tt_fail(-ENOTSUP, "gossip: tensors %d and %d lie on different devices, or one in the "
			               "host's memory: a model has one place", first, i);
		first = i;
		*gpu = here;
	}
	return 0;
}

static int open_buffers(struct tutti_gossip *g)
{
	struct tt_gossip_device *d = &g->device;
	size_t bytes = (size_t)g->config.buffers * g->model.bytes;
	void *buffers;
	int err = 0; /* one of the calls below sets it: gcc does not see that */

	d->piece = TT_GOSSIP_DEVICE_PIECE;
	if (!d->apart && !(err = tt_gpu_register(g->memory, g->bytes)))
		d->registered = true;
	else if (d->apart && !(err = tt_gpu_alloc(d->gpu, bytes, &buffers)))
		g->buffers = buffers;
	return err;
}

int tt_gossip_open_device(struct tutti_gossip *g)
{
	struct tt_gossip_device *d = &g->device;
	int err;

	if (g->config.way != TUTTI_GOSSIP_PULL)
		return tt_fail(-ENOTSUP, "gossip: the model is memory of GPU %d, and only a gossip that pulls takes "
		               "such a model", d->gpu);
	if ((err = tt_gpu_kernels(d->gpu)) || (err = tt_gpu_queue_open(d->gpu, &d->queue)))
		return err;
	return open_buffers(g);
}

int tt_gossip_open_device_window(struct tutti_gossip *g, const char *name)
{
	struct tt_gossip_device *d = &g->device;
	size_t bytes = (size_t)g->config.buffers * g->model.bytes;
	char full[200];
	int err;

	if (!d->apart)
		return 0;
	if ((err = tt_pin(g->job, g->buffers, bytes, TT_PIN_WINDOW, &d->pinned)))
		return err;
	snprintf(full, sizeof full, "tutti:buffers:%s", name);
	tt_lock(g->job);
	err = tt_window_open(g->job, full, g->buffers, bytes, d->pinned, &d->window);
	if (!err)
		tt_window_set_timeout(d->window, tt_gossip_timeout(g));
	tt_unlock(g->job);
	if (err)
		tt_unpin_now(d->pinned);
	return err;
}

void tt_gossip_end_device(struct tutti_gossip *g)
{
	struct tt_gossip_device *d = &g->device;

	if (!d->queue)
		return;
	tt_lock(g->job);
	d->stuck = tt_device_stands_still(g->job, d->gpu) || !tt_gpu_reached(d->queue, d->mark);
	tt_unlock(g->job);
}

void tt_gossip_close_device(struct tutti_gossip *g)
{
	struct tt_gossip_device *d = &g->device;

	if (d->stuck) {
		tt_gpu_queue_abandon(d->queue);
		g->memory = NULL;
		return;
	}
	tt_gpu_queue_close(d->queue);
	if (d->registered)
		tt_gpu_unregister(g->memory);
	if (d->apart && g->buffers)
		tt_gpu_free(g->buffers);
	for (int i = 0; i < TT_GOSSIP_FETCHES; i++)
		if (d->queue && g->fetch[i].staging)
			tt_gpu_free(g->fetch[i].staging);
}

/* The pin's fence is the program's stream, and the staging memory has nothing to do with that. */
int tt_gossip_make_staging(struct tt_fetch *f)
{
	struct tutti_gossip *g = f->g;
	void *staging;
	int err = tt_gpu_alloc(g->device.gpu, g->model.bytes, &staging);

	if (err)
		return err;
	if ((err = tt_pin(g->job, staging, g->model.bytes, TT_PIN_READ, &f->pinned))) {
		tt_gpu_free(staging);
		return err;
	}
	tt_gpu_fence_free(f->pinned->fence);
	f->pinned->fence = NULL;
	f->staging = staging;
	return 0;
}

/* ---- work on the device ---- */

static void look_again(struct tt_timer *t) { (void)t; }

/* The caller's stream has come to the call, and earlier work has ended. An idle stream takes a few us to say so. */
static bool has_passed(void *arg)
{
	struct tutti_gossip *g = arg;

	if (tt_gpu_fence_passed(g->device.fence) && tt_gpu_reached(g->device.queue, g->device.mark))
		return true;
	const uint64_t now = tt_now(), waited = now - g->device.waits_since;
	tt_timer_start(g->job, &g->device.timer, now + tt_min(tt_max(waited / 8, COPY_NS), FENCE_NS), look_again);
	return false;
}

static bool has_reached(void *arg)
{
	struct tutti_gossip *g = arg;

	if (tt_gpu_reached(g->device.queue, g->device.mark))
		return true;
	tt_timer_start(g->job, &g->device.timer, tt_now() + COPY_NS, look_again);
	return false;
}

static void say_late(void *arg)
{
	const struct tutti_gossip *g = arg;

	tt_log(TT_WARN, "a gossip waits for this thread's stream of GPU %d", g->device.gpu);
}

int tt_gossip_await_stream(struct tutti_gossip *g)
{
	struct tt_gossip_device *d = &g->device;
	int err, passed;

	if (!d->queue)
		return 0;
	if ((err = tt_gpu_fence_note(d->gpu, tt_gpu_stream(d->gpu), &d->fence)))
		return err;
	d->waits_since = tt_now();
	tt_lock(g->job);
	err = tt_await(g->job, &g->handle.users, has_passed, g, g->job->timeout, say_late);
	tt_timer_stop(&d->timer);
	tt_unlock(g->job);
	passed = tt_gpu_fence_passed(d->fence);
	tt_gpu_fence_free(d->fence);
	d->late = err == -ETIMEDOUT;
	if (d->late)
		return tt_fail(err, "gossip: GPU %d has not come to the call within %llu ms: the work in this thread's "
		               "stream takes longer than TUTTI_TIMEOUT, or the GPU stands still", d->gpu,
		               (unsigned long long)(g->job->timeout / TT_MS));
	return err ? err : passed < 0 ? passed : 0;
}

/* The copies and kernels under way read and write the program's tensors: nothing interrupts this wait. */
static int end_work(struct tutti_gossip *g, int err)
{
	struct tt_gossip_device *d = &g->device;

	d->mark = tt_gpu_mark(d->queue);
	tt_lock(g->job);
	d->late = tt_wait_until(g->job, has_reached, g, tt_now() + g->job->timeout);
	tt_timer_stop(&d->timer);
	tt_unlock(g->job);
	if (d->late)
		return tt_fail(-ETIMEDOUT, "gossip: GPU %d stands still: it has begun to read and write the model, and "
		               "does not end that. Until it goes on, leave the tensors alone", d->gpu);
	int reached = tt_gpu_reached(d->queue, d->mark);
	return err ? err : reached < 0 ? reached : 0;
}

int tt_gossip_store(struct tutti_gossip *g, int buffer)
{
	const struct tt_model *m = &g->model;
	char *to = tt_gossip_buffer(g, buffer);
	int err = 0;

	for (int i = 0; i < m->n && !err; i++) {
		size_t bytes = m->tensors[i].count * tt_type_size(m->tensors[i].type);
		if (bytes)
			err = tt_gpu_copy(g->device.queue, to + m->at[i], m->tensors[i].data, bytes);
	}
	return end_work(g, err);
}

/* The cases are those of average() in gossip_fetch.c, so the bits are. */
static int blend_tensor(struct tt_gpu_queue *q, const tutti_tensor *t, const char *peer, double f,
                        const tutti_tensor *to)
{
	size_t bytes = t->count * tt_type_size(t->type);

	if (to)
		return tt_gpu_copy(q, to->data, peer, bytes);
	if (f != 0 && f != 1 && tt_type_is_float(t->type))
		return tt_gpu_blend(q, t->data, 1 - f, t->data, f, peer, t->count, t->type);
	return f > 0.5 ? tt_gpu_copy(q, t->data, peer, bytes) : 0;
}

int tt_gossip_blend_device(const struct tt_fetch *f, const struct tt_blend *b)
{
	struct tutti_gossip *g = f->g;
	const struct tt_model *m = &g->model;
	int err = tt_gossip_await_stream(g);

	if (err)
		return err;
	for (int i = 0; i < m->n && !err; i++)
		if (m->tensors[i].count)
			err = blend_tensor(g->device.queue, &m->tensors[i], f->staging + m->at[i], b->factor,
			                   b->list ? &b->list[i] : NULL);
	return end_work(g, err);
}

bool tt_gossip_is_broken(const struct tutti_gossip *g) { return g->device.queue && tt_gpu_broken(g->device.gpu); }
