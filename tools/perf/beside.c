/* beside.c - `tutti perf table`: rank 0's calls while rank 2 pushes as fast as it can
 *
 *   pull-beside   rank 2 pushes to another table; the baseline is the same pull without pushes
 *   snapshot      rank 2 pushes to the same table; the baseline is a pull beside the same pushes. Rank 2 pushes ones,
 *                 so each element counts the pushes. The elements of one server must agree in each snapshot.
 *                 Pulls are checked in the same way: torn pulls prove that the check works */
#include "table/table_private.h"
#include "tools/perf/perf.h"
#include <errno.h>

enum {
	OTHERS_BYTES = 256 << 20,    /* of each push of rank 2 in pull-beside */
	PUBLISH_BYTES = 256 << 10,   /* of a version: read within a millisecond, even if ranks share cores */
	REFUSALS_MOST = 1000,        /* in a row: then versions do not live long enough here */
};

bool tt_perf_is_beside(const struct tt_perf *p) { return p->kernel && p->kernel->calls & TT_PERF_BESIDE; }
bool tt_perf_is_snapshot(const struct tt_perf *p) { return p->kernel && p->kernel->calls & TT_PERF_SNAPSHOT; }
bool tt_perf_has_tail(const struct tt_perf *p) { return tt_perf_is_beside(p) && !tt_perf_is_snapshot(p); }
bool tt_perf_has_writer(const struct tt_perf *p)
{
	return tt_perf_is_beside(p) && (tt_perf_is_snapshot(p) || !p->order.baseline);
}

void tt_perf_publish(const struct tt_perf *p, tutti_table_config *c)
{
	if (!tt_perf_is_snapshot(p))
		return;
	c->flags |= TUTTI_TABLE_SNAPSHOTS;
	c->publish_ms = 1 + (int)(p->bytes / PUBLISH_BYTES);
}

/* ---- the writer ---- */

int tt_perf_open_writer(struct tt_perf *p, tutti_table_config *others)
{
	size_t bytes = tt_perf_is_snapshot(p) ? p->bytes : OTHERS_BYTES;
	int err = 0;

	p->beside = (struct tt_perf_beside){ 0 };
	*p->writer = (struct tt_perf_writer){ 0 };
	if (tt_perf_has_tail(p)) {
		others->count = OTHERS_BYTES / tt_perf_type_size(p->options.type);
		err = tutti_table_open(p->job, "perf others", others, &p->others);
	}
	if (err || !tt_perf_is_beside(p) || p->rank != 2 || (err = tutti_alloc(p->job, bytes, -1, &p->heap)))
		return err;
	if (tt_perf_is_snapshot(p))
		tt_perf_fill_ones(p->options.type, p->heap, bytes);
	return 0;
}

void tt_perf_close_writer(struct tt_perf *p)
{
	tutti_table_close(p->others);
	if (p->heap)
		tutti_free(p->job, p->heap);
	p->others = NULL;
	p->heap = NULL;
}

static size_t place_of(const struct tt_perf *p, const void *word) { return (size_t)((const uint8_t *)word - p->open); }

/* Pushes until rank 0 has made enough calls. */
static int push_meanwhile(struct tt_perf *p)
{
	tutti_table *t = p->others ? p->others : p->table;
	uint64_t begun = tt_now();
	int err = 0;

	for (; !err && atomic_load_explicit(p->told, memory_order_acquire) < p->order.serial;
	     p->writer->pushes[p->order.baseline]++)
		err = tutti_table_push(t, p->heap, NULL, NULL);
	p->writer->spent[p->order.baseline] += tt_now() - begun;
	return err ? err : tutti_put(p->window, 0, place_of(p, p->writer), p->writer, sizeof *p->writer, NULL);
}

int tt_perf_end_writer(struct tt_perf *p)
{
	uint64_t serial = p->order.serial;

	return tutti_put(p->window, 2, place_of(p, p->told), &serial, sizeof serial, NULL);
}

/* ---- the reader ---- */

/* A refused snapshot is tried again, and its time includes all tries. */
static int take_snapshot(struct tt_perf *p)
{
	tutti_versions versions;
	int err, refused = 0;

	while ((err = tutti_table_snapshot(p->table, p->open, &versions, NULL)) == -EAGAIN && ++refused < REFUSALS_MOST)
		continue;
	p->beside.refused += (uint64_t)refused;
	p->beside.retries += versions.retries;
	return err;
}

/* Returns the server whose range is torn; -1: none. */
static int find_torn(const struct tt_perf *p)
{
	for (int i = 0; i < p->table->servers; i++) {
		struct tt_range r = tt_table_range(p->table, i);
		const uint8_t *at = p->open + (size_t)r.first * p->table->width;
		if (r.count > 1 && memcmp(at, at + p->table->width, (size_t)(r.count - 1) * p->table->width))
			return i;
	}
	return -1;
}

/* The check is not timed. */
static int look(struct tt_perf *p)
{
	uint64_t begun = tt_now();
	int torn = find_torn(p);

	p->samples[p->order.baseline].last += tt_now() - begun;
	if (torn < 0 || p->order.baseline) {
		p->beside.torn += torn >= 0;
		return 0;
	}
	return tt_fail(-EBADMSG, "a snapshot is torn: not all elements of rank %d's range have seen the same pushes",
	               p->table->server[torn]);
}

int tt_perf_beside(struct tt_perf *p)
{
	int err;

	if (p->rank == 2 && tt_perf_has_writer(p))
		return push_meanwhile(p);
	if (p->rank)
		return 0;
	err = tt_perf_is_snapshot(p) && !p->order.baseline ? take_snapshot(p)
	                                                   : tutti_table_pull(p->table, p->open, NULL);
	return err || !tt_perf_is_snapshot(p) ? err : look(p);
}
