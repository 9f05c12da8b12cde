/* tests.c - what is measured: one iteration of each test, through tutti.h alone */
#include "tools/perf/perf.h"
#include <errno.h>

enum { SLOT_DATA, SLOT_END };
enum { PATIENCE_S = 100 }; /* after this a target has lost rank 0 */

/* Ends what was started, so that its op and memory are free. */
int tt_perf_finish(struct tt_perf *p)
{
	int err = 0;

	for (int i = 0; i < p->started; i++) {
		int e = tutti_wait(&p->ops[i], -1);
		err = err ? err : e;
	}
	p->started = 0;
	return err;
}

/* A put with a notify. Waits for it at the next one only: by then the answer has come, and the put has ended. */
static int hit(struct tt_perf *p)
{
	int err = tt_perf_finish(p);

	if (err || (err = tutti_put_notify(p->window, 1 - p->rank, 0, p->local, p->bytes, SLOT_DATA, &p->ops[0])))
		return err;
	p->started = 1;
	return 0;
}

static int wait_hit(struct tt_perf *p)
{
	return tutti_wait_notify(p->window, 1 - p->rank, SLOT_DATA, ++p->notified[SLOT_DATA], -1);
}

int tt_perf_pingpong(struct tt_perf *p)
{
	int err = p->rank ? wait_hit(p) : hit(p);

	return err ? err : p->rank ? hit(p) : wait_hit(p);
}

/* A message is answered by one of the same length. */
int tt_perf_message(struct tt_perf *p)
{
	int peer = 1 - p->rank, err = p->rank ? 0 : tutti_send(p->job, peer, 0, p->local, p->bytes, NULL);

	if (err || (err = tutti_recv(p->job, peer, 0, p->open, p->bytes, NULL, NULL)))
		return err;
	return p->rank ? tutti_send(p->job, peer, 0, p->local, p->bytes, NULL) : 0;
}

int tt_perf_put(struct tt_perf *p) { return tutti_put(p->window, 1, 0, p->local, p->bytes, NULL); }

int tt_perf_get(struct tt_perf *p) { return tutti_get(p->window, 1, 0, p->local, p->bytes, NULL); }

/* All have the same source and target. The first error ends the test, after a wait for all that was started. */
static int stream(struct tt_perf *p, bool get)
{
	int err = 0, ended;

	while (!err && p->started < p->flight) {
		tutti_op *op = &p->ops[p->started];
		err = get ? tutti_get(p->window, 1, 0, p->local, p->bytes, op)
		          : tutti_put(p->window, 1, 0, p->local, p->bytes, op);
		p->started += !err;
	}
	ended = tt_perf_finish(p);
	return err ? err : ended;
}

int tt_perf_stream_puts(struct tt_perf *p) { return stream(p, false); }
int tt_perf_stream_gets(struct tt_perf *p) { return stream(p, true); }

int tt_perf_allreduce(struct tt_perf *p)
{
	size_t count = p->bytes / tt_perf_type_size(p->options.type);

	return tutti_allreduce(p->job, p->local, p->local, count, p->options.type, p->options.rule, NULL);
}

/* The target of one-sided tests: it takes no part. */

/* Computes, and sometimes reads a word of memory and the clock: no call of Tutti, no system call. */
static int compute(struct tt_perf *p)
{
	uint64_t end = tt_now() + PATIENCE_S * 1000 * TT_MS;
	double x = 1;

	while (atomic_load_explicit(p->told, memory_order_acquire) < p->order.serial) {
		for (int i = 0; i < 1000; i++)
			x = x * 0.999999 + 1e-6;
		if (tt_now() > end)
			return tt_fail(-ETIMEDOUT, "rank 0 has not written the word that ends rank 1's computing "
			                           "within %d s", PATIENCE_S);
	}
	p->sink += x;
	return 0;
}

int tt_perf_be_target(struct tt_perf *p)
{
	if (p->options.compute)
		return compute(p);
	return tutti_wait_notify(p->window, 0, SLOT_END, ++p->notified[SLOT_END], -1);
}

int tt_perf_end_target(struct tt_perf *p)
{
	uint64_t serial = p->order.serial;

	if (!p->options.compute)
		return tutti_put_notify(p->window, 1, 0, NULL, 0, SLOT_END, NULL);
	return tutti_put(p->window, 1, (size_t)((uint8_t *)p->told - p->open), &serial, sizeof serial, NULL);
}
