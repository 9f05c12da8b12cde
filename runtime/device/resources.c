/* resources.c - chunks of pinned host memory, and a queue of copies for each direction and device
 *
 * A rank without CUDA has chunks, too: for bytes of its own that go to a device of another rank. A driver knows the
 * chunks from the first use of a device on.
 *
 * Both are made at the first use, on the background thread: a driver may synchronise, and pinning takes time. Transfers
 * wait meanwhile, and end with the error if that fails; the next one tries again. */
#include "device/device_private.h"
#include <stdlib.h>

enum { CHUNKS = TT_GIVE_CHUNKS + TT_TAKE_CHUNKS, GIVE_BITS = (1 << TT_GIVE_CHUNKS) - 1, BYTES = CHUNKS * TT_CHUNK };

/* ---- with the lock ---- */

int tt_device_prepared(struct tt_job *job, int gpu)
{
	struct tt_devices *d = tt_devices(job);
	bool queues = gpu < 0 || d->in[gpu];

	if (d->memory && queues)
		return 1;
	const struct tt_unprepared *u = &d->unprepared[d->memory ? 1 + gpu : 0];
	if (u->err)
		return tt_fail(u->err, "%s", u->why ? u->why : "no memory");
	d->wants_chunks |= !d->memory;
	if (!queues)
		d->wants |= (uint64_t)1 << gpu;
	tt_errand(job);
	return 0;
}

void tt_device_try_again(struct tt_devices *d)
{
	for (int i = 0; d->failed && i <= TT_GPUS; i++) {
		free(d->unprepared[i].why);
		d->unprepared[i] = (struct tt_unprepared){ 0 };
	}
	d->failed = false;
}

int tt_chunk_take(struct tt_devices *d, bool give)
{
	uint32_t free = give ? d->free & GIVE_BITS : d->free & ~(uint32_t)GIVE_BITS;
	int chunk = free ? __builtin_ctz(free) : -1;

	if (free)
		d->free &= ~((uint32_t)1 << chunk);
	return chunk;
}

void tt_chunk_give_back(struct tt_devices *d, int chunk)
{
	if (chunk >= 0)
		d->free |= (uint32_t)1 << chunk;
}

static int register_chunks(struct tt_job *job, struct tt_pinned *pinned)
{
	struct tt_engine *e = &job->engine;
	int err = 0;

	for (int i = 0; !err && i < e->count; i++)
		err = e->nets[i]->transport->reg(e->nets[i], &pinned->mem, 1, tt_pinned_on(pinned, e->nets[i]),
		                                 &tt_devices(job)->chunks[i]);
	return err;
}

static void deregister_chunks(struct tt_devices *d)
{
	for (int i = 0; i < TT_NETS; i++) {
		if (d->chunks[i])
			d->chunks[i]->net->transport->dereg(d->chunks[i]);
		d->chunks[i] = NULL;
	}
}

/* ---- without the lock ---- */

static void free_chunks(char *memory, struct tt_pinned *pinned, bool frees)
{
	if (!memory)
		return;
	for (int i = 0; pinned && i < TT_NETS && pinned->local[i]; i++)
		pinned->local[i]->net->transport->dereg(pinned->local[i]);
	tt_unpin_now(pinned);
	if (frees)
		tt_memory_free(memory);
}

static int make_chunks(struct tt_job *job)
{
	struct tt_devices *d = tt_devices(job);
	struct tt_pinned *pinned = NULL;
	void *memory;
	int err = tt_memory_alloc(job, BYTES, -1, &memory);

	if (err)
		return err;
	struct tt_mem mem = tt_mem_of(memory, BYTES);
	if (!(err = tt_pin_mem(job, &mem, 1, &pinned))) {
		tt_ticket_lock_take(&job->engine.lock);
		if (!(err = register_chunks(job, pinned))) {
			d->memory = memory;
			d->pinned = pinned;
			d->free = (uint32_t)((1ull << CHUNKS) - 1);
		} else
			deregister_chunks(d);
		tt_ticket_lock_release(&job->engine.lock);
	}
	if (err)
		free_chunks(memory, pinned, true);
	return err;
}

static int make_queues(struct tt_job *job, int gpu)
{
	struct tt_devices *d = tt_devices(job);
	struct tt_gpu_queue *in, *out = NULL;
	int err = tt_gpu_queue_open(gpu, &in);

	if (err)
		return err;
	err = tt_gpu_queue_open(gpu, &out);
	if (!err && !d->registered && !(err = tt_gpu_register(d->memory, BYTES)))
		d->registered = true;
	if (err) {
		tt_gpu_queue_close(in);
		tt_gpu_queue_close(out);
		return err;
	}
	tt_ticket_lock_take(&job->engine.lock);
	d->out[gpu] = out;
	d->in[gpu] = in;
	tt_ticket_lock_release(&job->engine.lock);
	return 0;
}

static void note_failure(struct tt_job *job, int which, int err)
{
	struct tt_devices *d = tt_devices(job);
	struct tt_unprepared *u = &d->unprepared[which];

	if (!err)
		return;
	tt_ticket_lock_take(&job->engine.lock);
	free(u->why);
	*u = (struct tt_unprepared){ err, strdup(tt_why()) };
	d->failed = true;
	tt_ticket_lock_release(&job->engine.lock);
}

/* A device that fails harms no other one. */
static void make_wanted(struct tt_job *job, bool chunks, uint64_t devices)
{
	int err = chunks ? make_chunks(job) : 0;

	note_failure(job, 0, err);
	for (int i = 0; !err && i < TT_GPUS; i++)
		if (devices >> i & 1)
			note_failure(job, 1 + i, make_queues(job, i));
}

static void go_on(struct tt_timer *t) { (void)t; }

static void check(struct tt_job *job)
{
	struct tt_devices *d = tt_devices(job);
	uint64_t devices = d->checks;

	d->checks = 0;
	if (!devices)
		return;
	tt_ticket_lock_release(&job->engine.lock);
	for (int i = 0; i < TT_GPUS; i++)
		if (devices >> i & 1)
			tt_gpu_check(i);
	tt_ticket_lock_take(&job->engine.lock);
}

/* With the lock, which this function releases meanwhile. */
void tt_device_prepare(struct tt_job *job)
{
	struct tt_devices *d = tt_devices(job);
	bool mapped = tt_imports_map(job), chunks = d->wants_chunks;
	uint64_t devices = d->wants;

	check(job);
	if (mapped)
		tt_timer_start(job, &d->timer, tt_now(), go_on);
	if (!chunks && !devices)
		return;
	tt_ticket_lock_release(&job->engine.lock);
	make_wanted(job, chunks, devices);
	tt_ticket_lock_take(&job->engine.lock);
	d->wants_chunks = false;
	d->wants = 0;
	tt_timer_start(job, &d->timer, tt_now(), go_on); /* wakes a sleeper: transfers wait for this */
}

void tt_device_close_queues(struct tt_job *job, uint64_t stuck)
{
	struct tt_devices *d = tt_devices(job);

	for (int i = 0; i < TT_GPUS; i++) {
		void (*end)(struct tt_gpu_queue *) = stuck >> i & 1 ? tt_gpu_queue_abandon : tt_gpu_queue_close;
		end(d->in[i]);
		end(d->out[i]);
		d->in[i] = d->out[i] = NULL;
	}
}

void tt_device_close_resources(struct tt_job *job, uint64_t stuck)
{
	struct tt_devices *d = tt_devices(job);

	tt_device_try_again(d);
	deregister_chunks(d);
	if (d->registered && !stuck)
		tt_gpu_unregister(d->memory);
	d->registered = false;
	free_chunks(d->memory, d->pinned, !stuck);
	d->memory = NULL;
}
