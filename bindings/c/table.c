/* table.c - tables, and adds that run while the program goes on */
#include "bindings/c/shim.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ADDS_MAX = 16 };          /* of a table that run at a time: each has a copy of its data */
enum { LARGE_BYTES = 16 << 20 }; /* from here on a copy takes about as long as the add */

struct add {
	tutti_op op;
	uint64_t *rows; /* NULL: all */
	float *data;    /* both lie behind the struct */
};

struct mv_table {
	struct mv_table *next;
	tutti_table *table;
	int rows, columns;
	struct add *adds[ADDS_MAX]; /* a ring: started, and not waited for */
	int first, started;
};

int mv_table_open(int rows, int columns, struct mv_table **table)
{
	tutti_table_config config = mv_session.config;
	struct mv_table *t = calloc(1, sizeof *t);
	char name[40];

	if (!t)
		return mv_fail(-ENOMEM, "no memory for a table");
	snprintf(name, sizeof name, "multiverso %d", mv_session.tables_made++);
	config.count = (uint64_t)rows;
	config.row = (uint64_t)columns;
	*t = (struct mv_table){ .next = mv_session.tables, .rows = rows, .columns = columns };
	int err = mv_check(tutti_table_open(mv_session.job, name, &config, &t->table));
	if (err) {
		free(t);
		return err;
	}
	*table = mv_session.tables = t;
	return 0;
}

int mv_table_find(TableHandler handler, struct mv_table **table)
{
	for (struct mv_table *t = mv_session.tables; t; t = t->next)
		if (t == handler) {
			*table = t;
			return 0;
		}
	return mv_fail(-EINVAL, "the handler is no open table: MV_NewArrayTable or MV_NewMatrixTable has failed, or "
	                        "MV_ShutDown was called");
}

static int end_first(struct mv_table *t)
{
	struct add *add = t->adds[t->first];
	int err = mv_check(tutti_wait(&add->op, -1));

	tutti_cancel(&add->op); /* does nothing to an operation that has ended */
	free(add);
	t->first = (t->first + 1) % ADDS_MAX;
	t->started--;
	return err;
}

/* Waits for all, also after one has failed. */
static int settle_table(struct mv_table *t)
{
	int err = 0;

	while (t->started) {
		int one = end_first(t);
		err = err ? err : one;
	}
	return err;
}

int mv_tables_settle(void)
{
	int err = 0;

	for (struct mv_table *t = mv_session.tables; t; t = t->next) {
		int one = settle_table(t);
		err = err ? err : one;
	}
	return err;
}

int mv_tables_finish(void)
{
	int err = 0;

	for (struct mv_table *t = mv_session.worker < 0 ? NULL : mv_session.tables; !err && t; t = t->next)
		err = mv_check(tutti_table_finish(t->table));
	return err;
}

static void drop_adds(struct mv_table *t)
{
	for (; t->started; t->started--, t->first = (t->first + 1) % ADDS_MAX) {
		tutti_cancel(&t->adds[t->first]->op);
		free(t->adds[t->first]);
	}
}

void mv_tables_close(void)
{
	for (struct mv_table *t = mv_session.tables, *next; t; t = next) {
		next = t->next;
		drop_adds(t);
		tutti_table_close(t->table);
		free(t);
	}
	mv_session.tables = NULL;
}

static int check_call(const struct mv_table *t, const int *rows, int n, const float *data, int size)
{
	int64_t wanted = (int64_t)(rows ? n : t->rows) * t->columns;

	if (n < 0)
		return mv_fail(-EINVAL, "row_ids_n is %d, and must be from 0 up", n);
	if (size != wanted)
		return mv_fail(-EINVAL, "%s %lld elements, and size is %d",
		               rows ? "the listed rows have" : "the table has", (long long)wanted, size);
	if (!data && size)
		return mv_fail(-EINVAL, "data is NULL");
	for (int i = 0; i < n; i++)
		if (rows[i] < 0 || rows[i] >= t->rows)
			return mv_fail(-EINVAL, "row %d is not in the table, which has rows 0 to %d", rows[i],
			               t->rows - 1);
	return 0;
}

/* An add, with a list of rows if there is one, and a copy of data if it goes on behind the program. */
static struct add *make_add(const int *rows, int n, const float *data, int size)
{
	size_t row_bytes = (size_t)n * sizeof(uint64_t), bytes = data ? (size_t)size * sizeof *data : 0;
	struct add *add = malloc(sizeof *add + row_bytes + bytes);

	if (!add)
		return NULL;
	memset(&add->op, 0, sizeof add->op);
	add->rows = rows ? (uint64_t *)(add + 1) : NULL;
	add->data = (float *)((char *)(add + 1) + row_bytes);
	for (int i = 0; i < n; i++)
		add->rows[i] = (uint64_t)rows[i];
	if (bytes)
		memcpy(add->data, data, bytes);
	return add;
}

int mv_table_get(struct mv_table *t, const int *rows, int n, float *data, int size)
{
	int err = check_call(t, rows, n, data, size);

	if (err || (err = settle_table(t)))
		return err;
	if (!rows)
		return mv_check(tutti_table_pull(t->table, data, NULL));
	struct add *list = make_add(rows, n, NULL, 0);
	if (!list)
		return mv_fail(-ENOMEM, "no memory for a list of %d rows", n);
	err = mv_check(tutti_table_pull_rows(t->table, list->rows, (size_t)n, data, NULL));
	free(list);
	return err;
}

static int push(struct mv_table *t, struct add *add, int n, const float *data, tutti_op *op)
{
	return mv_check(add->rows ? tutti_table_push_rows(t->table, add->rows, (size_t)n, data, NULL, op)
	                          : tutti_table_push(t->table, data, NULL, op));
}

/* In sync mode a push waits for other workers, so a large one goes on behind the program, too. */
static bool is_behind(int size, bool async)
{
	return async && ((size_t)size * sizeof(float) < LARGE_BYTES || mv_session.flags.sync);
}

int mv_table_add(struct mv_table *t, const int *rows, int n, const float *data, int size, bool async)
{
	int err = check_call(t, rows, n, data, size);
	bool behind = is_behind(size, async);

	if (err || (behind && t->started == ADDS_MAX && (err = end_first(t))))
		return err;
	struct add *add = make_add(rows, n, behind ? data : NULL, size);
	if (!add)
		return mv_fail(-ENOMEM, "no memory for a copy of %d elements", size);
	err = behind ? push(t, add, n, add->data, &add->op) : push(t, add, n, data, NULL);
	if (err || !behind)
		free(add);
	else
		t->adds[(t->first + t->started++) % ADDS_MAX] = add;
	return err;
}
