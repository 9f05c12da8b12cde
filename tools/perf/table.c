/* table.c - `tutti perf table`: pushes and pulls of a table of the row's size
 *
 * Even ranks are workers, odd ranks are servers. In a ring of two to four ranks each worker is next to each server, so
 * the bare sockets of the other baselines connect them. With several workers all ranks meet before each call. */
#include "tools/perf/perf.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

bool tt_perf_is_server(const struct tt_perf *p) { return p->rank % 2; }
int tt_perf_servers(const struct tt_perf *p) { return p->size / 2; }
int tt_perf_workers(const struct tt_perf *p) { return p->size - p->size / 2; }

/* ---- opening, for a row ---- */

int tt_perf_open_table(struct tt_perf *p)
{
	static const int servers[] = { 1, 3 };
	tutti_table_config c = tutti_table_rows(p->options.type, p->bytes / tt_perf_type_size(p->options.type), 1,
	                                        tutti_accumulate());
	char name[64];
	int err;

	c.servers = tt_perf_servers(p);
	c.server = servers;
	tt_perf_close_table(p);
	tt_perf_publish(p, &c);
	if ((err = tt_perf_list_rows(p, &c)))
		return err;
	if (p->kernel->calls & TT_PERF_CENTER)
		return (err = tutti_barrier(p->job, NULL)) ? err : tt_perf_open_center(p, &c);
	snprintf(name, sizeof name, "perf table %llu", (unsigned long long)p->order.serial);
	if ((err = tutti_barrier(p->job, NULL)) || (err = tutti_table_open(p->job, name, &c, &p->table)))
		return err;
	return tt_perf_open_writer(p, &c);
}

void tt_perf_close_table(struct tt_perf *p)
{
	tutti_table_close(p->table);
	tt_perf_close_center(p);
	free(p->rows);
	p->rows = NULL;
	p->table = NULL;
	tt_perf_close_writer(p);
}

/* The values that calls without a push pull. */
int tt_perf_fill_table(struct tt_perf *p)
{
	return p->rank || p->kernel->calls & TT_PERF_PUSH ? 0 : tutti_table_assign(p->table, p->local, NULL);
}

int tt_perf_pull_all(struct tt_perf *p)
{
	unsigned calls = p->kernel->calls;
	bool knows = calls & TT_PERF_PULL && (!(calls & TT_PERF_PUSH) || tt_perf_workers(p) == 1);

	if (knows || tt_perf_is_server(p))
		return 0;
	return tt_perf_is_of_rows(p) ? tutti_table_pull_rows(p->table, p->rows, p->listed, p->open, NULL)
	                             : tutti_table_pull(p->table, p->open, NULL);
}

/* ---- one iteration ---- */

int tt_perf_table(struct tt_perf *p)
{
	unsigned calls = p->kernel->calls;
	int err = 0;

	if (tt_perf_is_beside(p))
		return tt_perf_beside(p);
	if (tt_perf_is_server(p))
		return 0; /* a server serves while it waits in a call for the others */
	if (calls & TT_PERF_ROWS)
		return tt_perf_call_rows(p);
	if (calls & TT_PERF_CENTER)
		return tt_perf_exchange(p);
	if (calls & TT_PERF_AT_ONCE)
		return tutti_table_push_pull(p->table, p->local, NULL, p->open, NULL);
	if (calls & TT_PERF_PUSH)
		err = tutti_table_push(p->table, p->local, NULL, NULL);
	return !err && calls & TT_PERF_PULL ? tutti_table_pull(p->table, p->open, NULL) : err;
}
