/* baseline_reduce.c - the baseline of an all-reduce: a ring over bare sockets, written as simply as it can be
 *
 *   rank r of n, block b of n; all indices modulo n
 *   reduce-scatter, n - 1 steps: send block r - s to the right, receive block r - s - 1 from the left and add it
 *   all-gather, n - 1 steps:     send block r + 1 - s (whose sum is complete), receive block r - s into its place
 *
 * Of two ranks that is an exchange of halves, and an exchange of sums, both ways over one connection. */
#include "kernel/kernel.h"
#include "tools/perf/perf.h"
#include <poll.h>
#include <sys/socket.h>

#if defined __OPTIMIZE__ && defined __GNUC__ && !defined __clang__
#pragma GCC optimize("O3") /* its -O2 does not vectorise a loop of unknown length */
#endif

struct block {
	uint8_t *at;
	size_t len;
};

static size_t width(const struct tt_perf *p) { return tt_perf_type_size(p->options.type); }

static struct block block_of(const struct tt_perf *p, int b)
{
	size_t n = (size_t)p->size, i = (size_t)((b % p->size + p->size) % p->size), count = p->bytes / width(p);
	size_t from = count * i / n * width(p), to = count * (i + 1) / n * width(p);

	return (struct block){ p->local + from, to - from };
}

/* The usual types and rules need only a plain loop. The rest uses Tutti's kernels. */
void tt_perf_add(const struct tt_perf *p, uint8_t *sum, const uint8_t *in, size_t len)
{
	bool sums = p->options.rule == TUTTI_SUM || p->options.rule == TUTTI_AVERAGE;
	float *restrict a = (float *)(void *)sum;
	const float *restrict b = (const float *)(const void *)in;

	if (p->options.type != TUTTI_F32 || !sums) {
		tt_reduce(sum, in, len / width(p), p->options.type, p->options.rule);
		return;
	}
	for (size_t i = 0; i < len / sizeof *a; i++)
		a[i] += b[i];
}

static void sleep_until_ready(const struct tt_perf_wire *w, bool out, bool in)
{
	struct pollfd p[2] = { { w->right, out ? POLLOUT : 0, 0 }, { w->left, in ? POLLIN : 0, 0 } };

	poll(p, 2, 1000);
}

/* Sends one block while it receives another. Adds received bytes to `sum`, if any, while they are in the cache. */
static int exchange(struct tt_perf *p, const struct tt_perf_wire *w, struct block tx, struct block rx, uint8_t *sum)
{
	size_t chunk = p->order.way.chunk, out = 0, in = 0, added = 0, ready;
	ssize_t n, k;

	while (out < tx.len || in < rx.len) {
		n = k = 0;
		if (out < tx.len &&
		    (n = send(w->right, tx.at + out, tt_min(tx.len - out, chunk), MSG_DONTWAIT | MSG_NOSIGNAL)) > 0)
			out += (size_t)n;
		if (n < 0 && errno != EAGAIN)
			return tt_perf_lost((p->rank + 1) % p->size, n);
		if (in < rx.len && (k = recv(w->left, rx.at + in, tt_min(rx.len - in, chunk), MSG_DONTWAIT)) > 0)
			in += (size_t)k;
		if (in < rx.len && (!k || (k < 0 && errno != EAGAIN)))
			return tt_perf_lost((p->rank + p->size - 1) % p->size, k);
		ready = in < rx.len ? in & ~(size_t)63 : in;
		if (sum && ready > added) {
			tt_perf_add(p, sum + added, rx.at + added, ready - added);
			added = ready;
		}
		if (p->crowded && n <= 0 && k <= 0)
			sleep_until_ready(w, out < tx.len, in < rx.len);
	}
	return 0;
}

int tt_perf_raw_allreduce(struct tt_perf *p)
{
	struct tt_perf_wire w = *tt_perf_wire(p);
	struct block in;
	int err = 0;

	if (p->size == 2) /* one connection, both ways */
		w.right = w.left = p->rank ? w.left : w.right;
	for (int s = 0; s < p->size - 1 && !err; s++) {
		in = block_of(p, p->rank - s - 1);
		err = exchange(p, &w, block_of(p, p->rank - s), (struct block){ p->open, in.len }, in.at);
	}
	in = block_of(p, p->rank + 1);
	if (!err && p->options.rule == TUTTI_AVERAGE)
		tt_scale(in.at, in.len / width(p), p->options.type, (unsigned)p->size);
	for (int s = 0; s < p->size - 1 && !err; s++)
		err = exchange(p, &w, block_of(p, p->rank + 1 - s), block_of(p, p->rank - s), NULL);
	return err;
}
