/* gpu.c - `tutti perf gpu`: copies and kernels in a GPU's memory beside the driver's copy of as many bytes; puts and
 * gets of a GPU's memory beside the same calls on host memory; a gossip of models there
 *
 *   rank 0: gpu[0], gpu[1]   local           rank 1: gpu[0]: a window   open: a window
 *
 * Rank 0 acts. Rank r works on GPU r modulo their number. */
#include "gpu/gpu.h"
#include "kernel/kernel.h"
#include "tools/perf/perf.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { DIVISOR = 3 };

struct tt_perf_gpu {
	int device;
	struct tt_gpu_queue *queue;
	void *memory[2];
	tutti_window *window; /* memory[0] of each rank */
	uint8_t *stage;       /* pinned memory of the host, for the checks ... */
	bool staged;          /* ... if it is registered, and ... */
	bool local;           /* ... if p->local is */
	uint8_t *wanted;      /* what a check expects */
};

static int open_device(struct tt_perf *p, struct tt_perf_gpu *g)
{
	int count = tt_gpu_count(), device, err;

	if (!count)
		return tt_fail(-ENODEV, "no GPU to measure: %s", tt_gpu_why_not());
	device = g->device = p->rank % count;
	for (int i = 0; i < 2; i++)
		if ((err = tutti_alloc(p->job, p->most, device, &g->memory[i])))
			return err;
	err = tt_gpu_kernels(device);
	return err ? err : tt_gpu_queue_open(device, &g->queue);
}

static int open_host(struct tt_perf *p, struct tt_perf_gpu *g)
{
	int err;

	g->stage = aligned_alloc(TT_CACHE_LINE, (p->most + TT_CACHE_LINE - 1) / TT_CACHE_LINE * TT_CACHE_LINE);
	g->wanted = malloc(p->most);
	if (!g->stage || !g->wanted)
		return tt_fail(-ENOMEM, "no memory for %zu bytes", p->most);
	if ((err = tt_gpu_register(g->stage, p->most)))
		return err;
	g->staged = true;
	err = tt_gpu_register(p->local, p->most);
	g->local = !err;
	return err;
}

int tt_perf_open_gpu(struct tt_perf *p)
{
	struct tt_perf_gpu *g = p->gpu = calloc(1, sizeof *g);
	int err;

	if (!g)
		return tt_fail(-ENOMEM, "no memory for the state of a GPU");
	tt_gpu_open("yes");
	if ((err = open_device(p, g)) || (err = open_host(p, g)))
		return err;
	return tutti_window_open(p->job, "tutti perf gpu", g->memory[0], p->most, &g->window);
}

void tt_perf_close_gpu(struct tt_perf *p)
{
	struct tt_perf_gpu *g = p->gpu;

	if (!g)
		return;
	tutti_window_close(g->window);
	tt_gpu_queue_close(g->queue);
	if (g->local)
		tt_gpu_unregister(p->local);
	if (g->staged)
		tt_gpu_unregister(g->stage);
	for (int i = 0; i < 2; i++)
		if (g->memory[i])
			tutti_free(p->job, g->memory[i]);
	free(g->stage);
	free(g->wanted);
	free(g);
}

/* The mark of a kernel that has failed never comes: only the check tells. */
static int finish(struct tt_perf_gpu *g, int err)
{
	uint64_t mark = tt_gpu_mark(g->queue), next = tt_now() + TT_MS;
	int done;

	while (!(done = tt_gpu_reached(g->queue, mark))) {
		if (tt_now() < next) {
			tt_pause();
			continue;
		}
		if ((done = tt_gpu_check(g->device)))
			break;
		next = tt_now() + TT_MS;
	}
	return err ? err : done < 0 ? done : 0;
}

static int copy(const struct tt_perf *p, void *to, const void *from, size_t bytes)
{
	return finish(p->gpu, tt_gpu_copy(p->gpu->queue, to, from, bytes));
}

static size_t count_of(const struct tt_perf *p) { return p->bytes / tt_perf_type_size(p->options.type); }

/* A check divides, so that it sees what is computed. Later divisions by one keep the numbers. */
static unsigned divisor(const struct tt_perf *p) { return p->checking ? DIVISOR : 1; }

int tt_perf_gpu(struct tt_perf *p)
{
	struct tt_perf_gpu *g = p->gpu;
	tutti_type type = p->options.type;

	switch (p->kernel->calls) {
	case TT_PERF_GPU_COPY: return copy(p, g->memory[0], g->memory[1], p->bytes);
	case TT_PERF_GPU_BLEND:
		return finish(g, tt_gpu_blend(g->queue, g->memory[0], 0.5, g->memory[0], 0.5, g->memory[1],
		                              count_of(p), type));
	case TT_PERF_GPU_SCALE:
		return finish(g, tt_gpu_scale(g->queue, g->memory[0], count_of(p), type, divisor(p)));
	case TT_PERF_GPU_DOWN: return copy(p, p->local, g->memory[0], p->bytes);
	case TT_PERF_GPU_UP: return copy(p, g->memory[0], p->local, p->bytes);
	case TT_PERF_GPU_PUT: return tutti_put(g->window, 1, 0, g->memory[1], p->bytes, NULL);
	case TT_PERF_GPU_GET: case TT_PERF_GPU_FETCH:
		return tutti_get(g->window, 1, 0, g->memory[1], p->bytes, NULL);
	case TT_PERF_GPU_GOSSIP: return tt_perf_gossip(p);
	default: return 0;
	}
}

/* As many bytes as the kernel reads and writes: a copy of n bytes moves 2 n. */
static int copy_as_much(struct tt_perf *p)
{
	struct tt_perf_gpu *g = p->gpu;
	size_t left = tt_perf_moved_gpu(p) / 2, n;
	int err = 0;

	for (; left && !err; left -= n) {
		n = tt_min(left, p->bytes);
		err = tt_gpu_copy(g->queue, g->memory[0], g->memory[1], n);
	}
	return finish(g, err);
}

int tt_perf_raw_gpu(struct tt_perf *p)
{
	if (p->rank)
		return 0;
	switch (p->kernel->calls) {
	case TT_PERF_GPU_PUT: return tutti_put(p->window, 1, 0, p->local, p->bytes, NULL);
	case TT_PERF_GPU_GET: return tutti_get(p->window, 1, 0, p->local, p->bytes, NULL);
	default: return copy_as_much(p);
	}
}

size_t tt_perf_moved_gpu(const struct tt_perf *p)
{
	switch (p->kernel->calls) {
	case TT_PERF_GPU_BLEND: return 3 * p->bytes;
	case TT_PERF_GPU_GOSSIP: return 7 * p->bytes; /* a copy to publish, a copy from the peer, a blend */
	case TT_PERF_GPU_COPY: case TT_PERF_GPU_SCALE: case TT_PERF_GPU_FETCH: return 2 * p->bytes;
	default: return p->bytes;
	}
}

bool tt_perf_computes_on_gpu(const struct tt_perf_kernel *k)
{
	return k->calls == TT_PERF_GPU_BLEND || k->calls == TT_PERF_GPU_SCALE || k->calls == TT_PERF_GPU_GOSSIP;
}

/* Has a kernel something beside it? The copies are the ceiling themselves. */
bool tt_perf_is_beside_gpu(const struct tt_perf_kernel *k)
{
	return k->calls != TT_PERF_GPU_COPY && k->calls != TT_PERF_GPU_DOWN && k->calls != TT_PERF_GPU_UP;
}

void tt_perf_word_gpu(const struct tt_perf *p, char *text, size_t room)
{
	bool moves = p->kernel->calls == TT_PERF_GPU_PUT || p->kernel->calls == TT_PERF_GPU_GET;

	snprintf(text, room, "%s", moves ? "the same call on host memory" : "the driver's copy of as many bytes");
}

/* Rank r has the numbers of 2 r in gpu[0] and in its window, those of 2 r + 1 in gpu[1] and in `local`. */
int tt_perf_fill_gpu(struct tt_perf *p)
{
	tutti_type type = p->options.type;
	int err = 0;

	if (p->rank > 1)
		return 0;
	for (int i = 0; i < 2 && !err; i++) {
		tt_perf_fill_numbers(p, type, p->gpu->stage, p->bytes, 2 * p->rank + i);
		err = copy(p, p->gpu->memory[i], p->gpu->stage, p->bytes);
		memcpy(i ? p->local : p->open, p->gpu->stage, p->bytes);
	}
	if (err || p->kernel->calls != TT_PERF_GPU_GOSSIP || p->order.baseline)
		return err;
	return tt_perf_open_gossip_of(p, &(tutti_tensor){ p->gpu->memory[0], count_of(p), type });
}

/* What the iteration does, as the check sees it: the baseline of most is a copy. */
static unsigned result_of(const struct tt_perf *p)
{
	unsigned what = p->kernel->calls;
	bool same = what == TT_PERF_GPU_PUT || what == TT_PERF_GPU_GET;

	return p->order.baseline && !same ? TT_PERF_GPU_COPY : what == TT_PERF_GPU_FETCH ? TT_PERF_GPU_GET : what;
}

/* What the result must be, to the bit. */
static void expect(const struct tt_perf *p, uint8_t *to)
{
	tutti_type type = p->options.type;
	unsigned what = result_of(p);
	int whose = what == TT_PERF_GPU_GET || what == TT_PERF_GPU_GOSSIP ? 2 :
	            what == TT_PERF_GPU_DOWN || what == TT_PERF_GPU_SCALE ? 0 : 1;

	tt_perf_fill_numbers(p, type, to, p->bytes, whose);
	if (what == TT_PERF_GPU_BLEND || what == TT_PERF_GPU_GOSSIP) {
		uint8_t *a = p->gpu->stage; /* free until the result comes */
		tt_perf_fill_numbers(p, type, a, p->bytes, 0);
		tt_blend(to, 0.5, a, 0.5, to, count_of(p), type);
	} else if (what == TT_PERF_GPU_SCALE) {
		tt_scale(to, count_of(p), type, DIVISOR);
	}
}

/* Brings the result into the stage. */
static int bring(struct tt_perf *p)
{
	const struct tt_perf_gpu *g = p->gpu;
	unsigned what = result_of(p);
	bool here = p->order.baseline && (what == TT_PERF_GPU_PUT || what == TT_PERF_GPU_GET);

	if (here || what == TT_PERF_GPU_DOWN)
		memcpy(g->stage, what == TT_PERF_GPU_PUT ? p->open : p->local, p->bytes);
	else
		return copy(p, g->stage, g->memory[what == TT_PERF_GPU_GET], p->bytes);
	return 0;
}

int tt_perf_check_gpu(struct tt_perf *p)
{
	const struct tt_perf_gpu *g = p->gpu;
	int err;

	if (p->rank != (p->kernel->calls == TT_PERF_GPU_PUT))
		return 0;
	expect(p, g->wanted);
	if ((err = bring(p)))
		return err;
	if (!memcmp(g->stage, g->wanted, p->bytes))
		return 0;
	size_t i = 0;
	while (g->stage[i] == g->wanted[i])
		i++;
	return tt_fail(1, "byte %zu of %zu is wrong: %u and not %u", i, p->bytes, g->stage[i], g->wanted[i]);
}
