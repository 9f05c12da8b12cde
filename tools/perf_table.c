/* perf_table.c - `tutti perf table`: pushes and pulls of a table of the row's size
 *
 * Even ranks are workers, odd ones are servers: in a ring of two to four ranks each worker stands beside each server, and the bare
 * sockets of the other limits lead from each to each. With several workers all ranks meet before each call.
 */
#include "perf.h"
#include <errno.h>
#include <stdio.h>

enum { OTHERS_BYTES = 256 << 20 }; /* of the push beside which rank 0 pulls */

bool tt_perf_is_server(const struct tt_perf *p) { return p->rank % 2; }
int tt_perf_servers(const struct tt_perf *p) { return p->size / 2; }
int tt_perf_workers(const struct tt_perf *p) { return p->size - p->size / 2; }
bool tt_perf_is_beside(const struct tt_perf *p) { return p->kernel && p->kernel->calls & TT_PERF_BESIDE; }

/* ---- opening, for a row ---- */

static int open_table(struct tt_perf *p, const char *what, size_t bytes, tutti_table **table)
{
	int server[TT_PERF_RANKS], n = tt_perf_servers(p);
	char name[64];

	for (int i = 0; i < n; i++)
		server[i] = 2 * i + 1;
	snprintf(name, sizeof name, "perf %s %llu", what, (unsigned long long)p->order.serial);
	return tutti_table_open(p->job, name, &(tutti_table_config){ .size = sizeof(tutti_table_config), .type = p->options.type,
	                        .count = bytes / tt_perf_type_size(p->options.type), .servers = n, .server = server }, table);
}

/* One that pushes beside another has its own table and delta. */
static int open_others(struct tt_perf *p)
{
	int err = open_table(p, "others", OTHERS_BYTES, &p->others);

	if (!err && p->rank == 2)
		err = tutti_alloc(p->job, OTHERS_BYTES, -1, &p->heap);
	return err;
}

int tt_perf_open_table(struct tt_perf *p)
{
	int err;

	tt_perf_close_table(p);
	if ((err = tutti_barrier(p->job, NULL)) || (err = open_table(p, "table", p->bytes, &p->table)))
		return err;
	return tt_perf_is_beside(p) ? open_others(p) : 0;
}

void tt_perf_close_table(struct tt_perf *p)
{
	tutti_table_close(p->table);
	tutti_table_close(p->others);
	if (p->heap)
		tutti_free(p->job, p->heap);
	p->table = p->others = NULL;
	p->heap = NULL;
}

/* What a call that pushes nothing pulls. */
int tt_perf_fill_table(struct tt_perf *p) { return p->rank || p->kernel->calls & TT_PERF_PUSH ? 0 : tutti_table_assign(p->table, p->local, NULL); }

int tt_perf_pull_all(struct tt_perf *p)
{
	unsigned calls = p->kernel->calls;
	bool knows = calls & TT_PERF_PULL && (!(calls & TT_PERF_PUSH) || tt_perf_workers(p) == 1);

	return knows || tt_perf_is_server(p) ? 0 : tutti_table_pull(p->table, p->open, NULL);
}

/* ---- one iteration ---- */

/* Until rank 0 has pulled often enough. */
static int push_meanwhile(struct tt_perf *p)
{
	int err = 0;

	while (!err && atomic_load_explicit(p->told, memory_order_acquire) < p->order.serial)
		err = tutti_table_push(p->others, p->heap, NULL, NULL);
	return err;
}

int tt_perf_end_others(struct tt_perf *p)
{
	uint64_t serial = p->order.serial;

	return tutti_put(p->window, 2, (size_t)((uint8_t *)p->told - p->open), &serial, sizeof serial, NULL);
}

static int pull_beside(struct tt_perf *p)
{
	if (!p->rank)
		return tutti_table_pull(p->table, p->open, NULL);
	return p->rank == 2 && !p->order.limit ? push_meanwhile(p) : 0;
}

int tt_perf_table(struct tt_perf *p)
{
	unsigned calls = p->kernel->calls;
	int err = 0;

	if (tt_perf_is_beside(p))
		return pull_beside(p);
	if (tt_perf_is_server(p))
		return 0; /* it serves in the call in which it waits for the others */
	if (calls & TT_PERF_AT_ONCE)
		return tutti_table_push_pull(p->table, p->local, NULL, p->open, NULL);
	if (calls & TT_PERF_PUSH)
		err = tutti_table_push(p->table, p->local, NULL, NULL);
	return !err && calls & TT_PERF_PULL ? tutti_table_pull(p->table, p->open, NULL) : err;
}
