/* dirty_rows.c - which rows come into the open round, and by whom: a list in the order they came, and a number for each row */
#include "table/parts.h"
#include <stdlib.h>
#include <string.h>

struct tt_dirty_rows {
	uint64_t of;                 /* rows there are */
	int *by;                     /* each: 0 nobody, worker + 1, or TT_BY_MANY */
	int all;                     /* likewise: who has touched all rows at once */
	uint64_t *rows;              /* those that are not 0 */
	size_t n, room;
};

static int no_memory(uint64_t rows) { return tt_fail(-ENOMEM, "no memory for which of %llu rows a round touches", (unsigned long long)rows); }

int tt_dirty_rows_open(uint64_t rows, struct tt_dirty_rows **out)
{
	struct tt_dirty_rows *s = calloc(1, sizeof *s);

	if (s && (s->by = (int *)(void *)tt_pages_map((size_t)rows * sizeof *s->by))) {
		s->of = rows;
		*out = s;
		return 0;
	}
	free(s);
	return no_memory(rows);
}

void tt_dirty_rows_close(struct tt_dirty_rows *s)
{
	if (!s)
		return;
	tt_pages_unmap((char *)s->by, (size_t)s->of * sizeof *s->by);
	free(s->rows);
	free(s);
}

int tt_dirty_rows_resize(struct tt_dirty_rows *s, uint64_t rows)
{
	char *by = tt_pages_resize((char *)s->by, (size_t)s->of * sizeof *s->by, (size_t)rows * sizeof *s->by);

	if (!by)
		return no_memory(rows);
	s->by = (int *)(void *)by;
	s->of = rows;
	return 0;
}

static int by_both(int before, int worker) { return before && before != worker + 1 ? TT_BY_MANY : worker + 1; }

static int make_room(struct tt_dirty_rows *s, size_t more)
{
	size_t room = tt_max(s->n + more, 2 * s->room);
	uint64_t *rows;

	if (s->n + more <= s->room)
		return 0;
	if (!(rows = realloc(s->rows, room * sizeof *rows)))
		return -ENOMEM;
	s->rows = rows;
	s->room = room;
	return 0;
}

int tt_dirty_rows_add(struct tt_dirty_rows *s, int worker, const uint64_t *rows, size_t n)
{
	int err = rows ? make_room(s, n) : 0;

	if (!rows)
		s->all = by_both(s->all, worker);
	for (size_t i = 0; rows && !err && i < n; i++) {
		int *by = &s->by[rows[i]];
		if (!*by)
			s->rows[s->n++] = rows[i];
		*by = by_both(*by, worker);
	}
	return err;
}

size_t tt_dirty_rows_list(const struct tt_dirty_rows *s, const uint64_t **rows)
{
	*rows = s->rows;
	return s->n;
}

int tt_dirty_rows_by(const struct tt_dirty_rows *s, uint64_t row) { return !s->all || s->all == s->by[row] ? s->by[row] : s->by[row] ? TT_BY_MANY : s->all; }
int tt_dirty_rows_all(const struct tt_dirty_rows *s) { return s->all; }

uint64_t tt_dirty_rows_count(const struct tt_dirty_rows *s) { return s->all ? s->of : s->n; }
uint64_t tt_dirty_rows_row(const struct tt_dirty_rows *s, uint64_t i) { return s->all ? i : s->rows[i]; }

uint64_t tt_dirty_rows_run(const struct tt_dirty_rows *s, uint64_t i, uint64_t most)
{
	uint64_t end = tt_min(tt_dirty_rows_count(s) - i, most), n = 1;

	if (s->all)
		return end;
	while (n < end && s->rows[i + n] == s->rows[i] + n)
		n++;
	return n;
}

void tt_dirty_rows_clear(struct tt_dirty_rows *s)
{
	for (size_t i = 0; i < s->n; i++)
		s->by[s->rows[i]] = 0;
	s->n = 0;
	s->all = 0;
}
