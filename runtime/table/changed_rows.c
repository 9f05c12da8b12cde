/* changed_rows.c - the rows that changed since each worker's last pull: one bit for each worker and row, 1 is stale */
#include "table/parts.h"
#include <stdlib.h>
#include <string.h>

struct view { /* of one worker */
	uint64_t *stale;            /* NULL: the worker has not joined */
	bool all;                   /* all rows are stale, and the bits are out of date */
};

struct tt_changed_rows {
	uint64_t rows;
	unsigned flags;
	int room;
	struct view *of;
};

static size_t words_of(const struct tt_changed_rows *c) { return (size_t)(c->rows / 64 + (c->rows % 64 != 0)); }

int tt_changed_rows_open(uint64_t rows, unsigned flags, struct tt_changed_rows **fresh)
{
	struct tt_changed_rows *c = calloc(1, sizeof *c);

	if (!c)
		return tt_fail(-ENOMEM, "no memory for what workers have seen");
	c->rows = rows;
	c->flags = flags;
	*fresh = c;
	return 0;
}

void tt_changed_rows_close(struct tt_changed_rows *c)
{
	for (int i = 0; c && i < c->room; i++)
		free(c->of[i].stale);
	if (c)
		free(c->of);
	free(c);
}

static int make_room(struct tt_changed_rows *c, int workers)
{
	struct view *grown;

	if (workers <= c->room)
		return 0;
	if (!(grown = realloc(c->of, (size_t)workers * sizeof *grown)))
		return tt_fail(-ENOMEM, "no memory for what %d workers have seen", workers);
	for (int i = c->room; i < workers; i++)
		grown[i] = (struct view){ 0 };
	c->of = grown;
	c->room = workers;
	return 0;
}

int tt_changed_rows_join(struct tt_changed_rows *c, int worker)
{
	int err = make_room(c, worker + 1);

	if (err)
		return err;
	if (!c->of[worker].stale && !(c->of[worker].stale = calloc(tt_max(words_of(c), 1), sizeof(uint64_t))))
		return tt_fail(-ENOMEM, "no memory for which of %llu rows worker %d has seen",
		               (unsigned long long)c->rows, worker);
	c->of[worker].all = true;
	return 0;
}

static struct view *find(struct tt_changed_rows *c, int worker)
{
	return worker >= 0 && worker < c->room && c->of[worker].stale ? &c->of[worker] : NULL;
}

void tt_changed_rows_leave(struct tt_changed_rows *c, int worker)
{
	struct view *v = find(c, worker);

	if (!v)
		return;
	free(v->stale);
	*v = (struct view){ 0 };
}

void tt_changed_rows_pushed(struct tt_changed_rows *c, int worker, const uint64_t *rows, size_t n)
{
	for (int w = 0; w < c->room; w++) {
		struct view *v = &c->of[w];
		if (!v->stale || (w == worker && !(c->flags & TT_FRESH_OWN)))
			continue;
		v->all |= !rows;
		for (size_t i = 0; !v->all && i < n; i++)
			v->stale[rows[i] / 64] |= 1ull << rows[i] % 64;
	}
}

/* Makes the bits current. */
static void set_bits(const struct tt_changed_rows *c, struct view *v)
{
	if (!v->all)
		return;
	memset(v->stale, 0xff, words_of(c) * sizeof *v->stale);
	if (c->rows % 64)
		v->stale[words_of(c) - 1] = (1ull << c->rows % 64) - 1;
	v->all = false;
}

void tt_changed_rows_see_all(struct tt_changed_rows *c, int worker)
{
	struct view *v = find(c, worker);

	if (!v)
		return;
	memset(v->stale, 0, words_of(c) * sizeof *v->stale);
	v->all = false;
}

static size_t take_bits(uint64_t *word, uint64_t first, uint64_t *rows, size_t room)
{
	size_t n = 0;

	for (; *word && n < room; *word &= *word - 1)
		rows[n++] = first + (uint64_t)__builtin_ctzll(*word);
	return n;
}

/* Skips four words at a time: the bits of ten million rows take 1.2 MB. */
static size_t skip_zeros(const uint64_t *words, size_t i, size_t end)
{
	while (end - i >= 4 && !(words[i] | words[i + 1] | words[i + 2] | words[i + 3]))
		i += 4;
	while (i < end && !words[i])
		i++;
	return i;
}

static size_t take_stale(const struct tt_changed_rows *c, struct view *v, uint64_t *at, uint64_t *rows, size_t room)
{
	size_t n = 0, end = words_of(c), i = (size_t)(*at / 64);
	uint64_t passed = v->stale[i] & ((1ull << *at % 64) - 1); /* pushed behind the cursor: for the next pull */

	v->stale[i] ^= passed;
	for (size_t k = skip_zeros(v->stale, i, end); k < end && n < room; k = skip_zeros(v->stale, k, end))
		n += take_bits(&v->stale[k], 64 * (uint64_t)k, rows + n, room - n);
	v->stale[i] |= passed;
	*at = n == room && n ? rows[n - 1] + 1 : c->rows;
	return n;
}

static size_t take_any(const struct tt_changed_rows *c, uint64_t *at, uint64_t *rows, size_t room)
{
	size_t n = 0;

	for (; n < room && *at < c->rows; ++*at)
		rows[n++] = *at;
	return n;
}

size_t tt_changed_rows_take(struct tt_changed_rows *c, int worker, uint64_t *at, uint64_t *rows, size_t room)
{
	struct view *v = find(c, worker);

	if (!room || *at >= c->rows)
		return 0;
	if (!v)
		return take_any(c, at, rows, room);
	set_bits(c, v);
	return take_stale(c, v, at, rows, room);
}

size_t tt_changed_rows_take_of(struct tt_changed_rows *c, int worker, const uint64_t *asked, size_t n, uint64_t *rows)
{
	struct view *v = find(c, worker);
	size_t taken = 0;

	if (v)
		set_bits(c, v);
	for (size_t i = 0; i < n; i++) {
		uint64_t row = asked[i], bit = 1ull << row % 64;
		if (v && !(v->stale[row / 64] & bit))
			continue;
		if (v)
			v->stale[row / 64] &= ~bit;
		rows[taken++] = row;
	}
	return taken;
}
