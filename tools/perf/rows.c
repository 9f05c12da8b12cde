/* rows.c - `tutti perf table`: a list of rows to push and pull, and the baseline's work on each
 *
 * A row has 256 bytes, and one of sixteen is listed, at random: else all would use the same sets of the caches. The
 * list is sorted, so the rows of a server are a stretch of it. */
#include "tools/perf/perf.h"
#include <stdlib.h>
#include <string.h>

enum { ROW_BYTES = 256, EVERY = 16 };

size_t tt_perf_row_bytes(const struct tt_perf *p) { return tt_min(p->bytes, ROW_BYTES); }
size_t tt_perf_moved(const struct tt_perf *p)
{
	return tt_perf_is_of_rows(p) ? p->listed * tt_perf_row_bytes(p) : p->bytes;
}

size_t tt_perf_place_of(const struct tt_perf *p, size_t k) { return (size_t)p->rows[k] * tt_perf_row_bytes(p); }

int tt_perf_list_rows(struct tt_perf *p, tutti_table_config *c)
{
	size_t rows = p->bytes / tt_perf_row_bytes(p);

	if (!tt_perf_is_of_rows(p))
		return 0;
	p->listed = tt_max(rows / EVERY, 1);
	free(p->rows);
	if (!(p->rows = malloc(p->listed * sizeof *p->rows)))
		return tt_fail(-ENOMEM, "no memory for a list of %zu rows", p->listed);
	for (size_t k = 0; k < p->listed; k++) {
		size_t first = rows * k / p->listed, end = rows * (k + 1) / p->listed;
		p->rows[k] = first + (k * 0x9e3779b97f4a7c15u >> 32) % (end - first);
	}
	c->count = rows;
	c->row = tt_perf_row_bytes(p) / tt_perf_type_size(p->options.type);
	return 0;
}

int tt_perf_call_rows(struct tt_perf *p)
{
	if (p->kernel->calls & TT_PERF_PUSH)
		return tutti_table_push_rows(p->table, p->rows, p->listed, p->local, NULL, NULL);
	return tutti_table_pull_rows(p->table, p->rows, p->listed, p->open, NULL);
}

/* In a stretch of the vector: the next bytes of one row, and their offset in the table. */
static size_t next_piece(const struct tt_perf *p, size_t at, size_t len, size_t *place)
{
	size_t row = tt_perf_row_bytes(p);

	*place = tt_perf_place_of(p, at / row) + at % row;
	return tt_min(len, row - at % row);
}

void tt_perf_add_rows(const struct tt_perf *p, size_t at, const uint8_t *from, size_t len)
{
	for (size_t n, place; len; at += n, from += n, len -= n) {
		n = next_piece(p, at, len, &place);
		tt_perf_add(p, tt_perf_open(p) + place, from, n);
	}
}

void tt_perf_copy_rows(const struct tt_perf *p, uint8_t *to, const uint8_t *table, size_t at, size_t len)
{
	for (size_t n, place; len; at += n, to += n, len -= n) {
		n = next_piece(p, at, len, &place);
		memcpy(to, table + place, n);
	}
}
