/* dirty_rows.c - the rows pushed to in the open round, and by whom: a list in order of arrival, and a number a row */
#include "table/parts.h"
#include <stdlib.h>
#include <string.h>

struct tt_dirty_rows {
	uint64_t of;                 /* rows of the shard */
	int *by;                     /* of each row: 0 nobody, worker + 1, or TT_BY_MANY */
	int all;                     /* likewise: who has pushed to all rows at once */
	uint64_t *rows;              /* those whose `by` is not 0 */
	size_t n, room;
};

static int no_memory(uint64_t rows)
{
	return tt_fail(-ENOMEM, "no memory for which of %llu rows a round touches", (unsigned long long)rows);
}

int tt_dirty_rows_open(uint64_t rows, struct tt_dirty_rows **out)
{
	struct tt_dirty_rows *d = calloc(1, sizeof *d);

	if (d && (d->by = (int *)(void *)tt_pages_map((size_t)rows * sizeof *d->by))) {
		d->of = rows;
		*out = d;
		return 0;
	}
	free(d);
	return no_memory(rows);
}

void tt_dirty_rows_close(struct tt_dirty_rows *d)
{
	if (!d)
		return;
	tt_pages_unmap((char *)d->by, (size_t)d->of * sizeof *d->by);
	free(d->rows);
	free(d);
}

int tt_dirty_rows_resize(struct tt_dirty_rows *d, uint64_t rows)
{
	char *by = tt_pages_resize((char *)d->by, (size_t)d->of * sizeof *d->by, (size_t)rows * sizeof *d->by);

	if (!by)
		return no_memory(rows);
	d->by = (int *)(void *)by;
	d->of = rows;
	return 0;
}

static int by_both(int before, int by) { return before && before != by ? TT_BY_MANY : by; }

static int make_room(struct tt_dirty_rows *d, size_t more)
{
	size_t room = tt_max(d->n + more, 2 * d->room);
	uint64_t *rows;

	if (d->n + more <= d->room)
		return 0;
	if (!(rows = realloc(d->rows, room * sizeof *rows)))
		return -ENOMEM;
	d->rows = rows;
	d->room = room;
	return 0;
}

int tt_dirty_rows_add(struct tt_dirty_rows *d, int worker, const uint64_t *rows, size_t n)
{
	int err = rows ? make_room(d, n) : 0;

	if (!rows)
		d->all = by_both(d->all, worker + 1);
	for (size_t i = 0; rows && !err && i < n; i++) {
		int *by = &d->by[rows[i]];
		if (!*by)
			d->rows[d->n++] = rows[i];
		*by = by_both(*by, worker + 1);
	}
	return err;
}

size_t tt_dirty_rows_list(const struct tt_dirty_rows *d, const uint64_t **rows)
{
	*rows = d->rows;
	return d->n;
}

int tt_dirty_rows_by(const struct tt_dirty_rows *d, uint64_t row)
{
	return d->all ? by_both(d->by[row], d->all) : d->by[row];
}

int tt_dirty_rows_all(const struct tt_dirty_rows *d) { return d->all; }

uint64_t tt_dirty_rows_count(const struct tt_dirty_rows *d) { return d->all ? d->of : d->n; }
uint64_t tt_dirty_rows_row(const struct tt_dirty_rows *d, uint64_t i) { return d->all ? i : d->rows[i]; }

uint64_t tt_dirty_rows_run(const struct tt_dirty_rows *d, uint64_t i, uint64_t most)
{
	uint64_t end = tt_min(tt_dirty_rows_count(d) - i, most), n = 1;

	if (d->all)
		return end;
	while (n < end && d->rows[i + n] == d->rows[i] + n)
		n++;
	return n;
}

void tt_dirty_rows_clear(struct tt_dirty_rows *d)
{
	for (size_t i = 0; i < d->n; i++)
		d->by[d->rows[i]] = 0;
	d->n = 0;
	d->all = 0;
}
