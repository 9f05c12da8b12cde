/* multiverso.c - the public functions */
#include "bindings/c/shim.h"
#include <errno.h>

void MV_Init(int *argc, char *argv[]) { mv_end("MV_Init", mv_session_open(argc, argv)); }

void MV_ShutDown(void)
{
	if (!mv_end("MV_ShutDown", mv_is_open()))
		mv_session_close("MV_ShutDown");
}

void MV_Barrier(void)
{
	if (mv_end("MV_Barrier", mv_is_open()))
		return;
	mv_end("MV_Barrier", mv_tables_settle());
	mv_end("MV_Barrier", mv_check(tutti_barrier(mv_session.job, NULL))); /* others wait for this rank */
}

static int number(const char *function, const int *of) { return mv_end(function, mv_is_open()) ? -1 : *of; }

int MV_NumWorkers(void) { return number("MV_NumWorkers", &mv_session.worker_count); }
int MV_WorkerId(void) { return number("MV_WorkerId", &mv_session.worker); }
int MV_ServerId(void) { return number("MV_ServerId", &mv_session.server); }

static int create(int rows, int columns, TableHandler *out)
{
	struct mv_table *t = NULL;
	int err = mv_is_open();

	if (!out)
		return mv_fail(-EINVAL, "the place for the handler is NULL");
	if (!err && (rows < 1 || columns < 1))
		err = mv_fail(-EINVAL, "a table has 1 element at least, and not %d x %d", rows, columns);
	err = err ? err : mv_table_open(rows, columns, &t);
	*out = t;
	return err;
}

void MV_NewArrayTable(int size, TableHandler *out) { mv_end("MV_NewArrayTable", create(size, 1, out)); }

void MV_NewMatrixTable(int num_row, int num_col, TableHandler *out)
{
	mv_end("MV_NewMatrixTable", create(num_row, num_col, out));
}

static int find(TableHandler handler, const int *rows, bool listed, struct mv_table **t)
{
	int err = mv_is_open();

	err = err ? err : mv_table_find(handler, t);
	return !err && listed && !rows ? mv_fail(-EINVAL, "row_ids is NULL") : err;
}

static void get(const char *function, TableHandler handler, float *data, int size)
{
	struct mv_table *t;
	int err = find(handler, NULL, false, &t);

	mv_end(function, err ? err : mv_table_get(t, NULL, 0, data, size));
}

static void add(const char *function, TableHandler handler, const float *data, int size, bool async)
{
	struct mv_table *t;
	int err = find(handler, NULL, false, &t);

	mv_end(function, err ? err : mv_table_add(t, NULL, 0, data, size, async));
}

static void add_rows(const char *function, TableHandler handler, const float *data, int size, const int *rows, int n,
                     bool async)
{
	struct mv_table *t;
	int err = find(handler, rows, true, &t);

	mv_end(function, err ? err : mv_table_add(t, rows, n, data, size, async));
}

void MV_GetArrayTable(TableHandler handler, float *data, int size) { get("MV_GetArrayTable", handler, data, size); }

void MV_AddArrayTable(TableHandler handler, const float *data, int size)
{
	add("MV_AddArrayTable", handler, data, size, false);
}

void MV_AddAsyncArrayTable(TableHandler handler, const float *data, int size)
{
	add("MV_AddAsyncArrayTable", handler, data, size, true);
}

void MV_GetMatrixTableAll(TableHandler handler, float *data, int size)
{
	get("MV_GetMatrixTableAll", handler, data, size);
}

void MV_AddMatrixTableAll(TableHandler handler, const float *data, int size)
{
	add("MV_AddMatrixTableAll", handler, data, size, false);
}

void MV_AddAsyncMatrixTableAll(TableHandler handler, const float *data, int size)
{
	add("MV_AddAsyncMatrixTableAll", handler, data, size, true);
}

void MV_GetMatrixTableByRows(TableHandler handler, float *data, int size, const int row_ids[], int row_ids_n)
{
	struct mv_table *t;
	int err = find(handler, row_ids, true, &t);

	mv_end("MV_GetMatrixTableByRows", err ? err : mv_table_get(t, row_ids, row_ids_n, data, size));
}

void MV_AddMatrixTableByRows(TableHandler handler, const float *data, int size, const int row_ids[], int row_ids_n)
{
	add_rows("MV_AddMatrixTableByRows", handler, data, size, row_ids, row_ids_n, false);
}

void MV_AddAsyncMatrixTableByRows(TableHandler handler, const float *data, int size, const int row_ids[], int row_ids_n)
{
	add_rows("MV_AddAsyncMatrixTableByRows", handler, data, size, row_ids, row_ids_n, true);
}
