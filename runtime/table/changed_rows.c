/* changed_rows.c - which rows each worker has not seen: bits, 1 is stale */
#include "table/parts.h"
#include <stdlib.h>
#include <string.h>

struct view { /* of one worker */
	uint64_t *stale;            /* NULL: it is not there */
	bool all;                   /* every row is stale, whatever the bits say */
};

struct tt_changed_rows {
	uint64_t rows;
	unsigned flags;
	int room;
	struct view *of;
};

static size_t words_of(const struct tt_changed_rows *f) { return (size_t)(f->rows / 64 + (f->rows % 64 != 0)); }

int tt_changed_rows_open(uint64_t rows, unsigned flags, struct tt_changed_rows **fresh)
{
	struct tt_changed_rows *f = calloc(1, sizeof *f);

	if (!f)
		return tt_fail(-ENOMEM, "no memory for what workers have seen");
	f->rows = rows;
	f->flags = flags;
	*fresh = f;
	return 0;
}

void tt_changed_rows_close(struct tt_changed_rows *f)
{
	for (int i = 0; f && i < f->room; i++)
		free(f->of[i].stale);
	if (f)
		free(f->of);
	free(f);
}

static int make_room(struct tt_changed_rows *f, int workers)
{
	struct view *grown;

	if (workers <= f->room)
		return 0;
	if (!(grown = realloc(f->of, (size_t)workers * sizeof *grown)))
		return tt_fail(-ENOMEM, "no memory for what %d workers have seen", workers);
	for (int i = f->room; i < workers; i++)
		grown[i] = (struct view){ 0 };
	f->of = grown;
	f->room = workers;
	return 0;
}

int tt_changed_rows_join(struct tt_changed_rows *f, int worker)
{
	int err = make_room(f, worker + 1);

	if (err)
		return err;
	if (!f->of[worker].stale && !(f->of[worker].stale = calloc(tt_max(words_of(f), 1), sizeof(uint64_t))))
		return tt_fail(-ENOMEM, "no memory for which of %llu rows worker %d has seen", (unsigned long long)f->rows, worker);
	f->of[worker].all = true;
	return 0;
}

static struct view *find(struct tt_changed_rows *f, int worker) { return worker >= 0 && worker < f->room && f->of[worker].stale ? &f->of[worker] : NULL; }

void tt_changed_rows_leave(struct tt_changed_rows *f, int worker)
{
	struct view *v = find(f, worker);

	if (!v)
		return;
	free(v->stale);
	*v = (struct view){ 0 };
}

static void mark(struct view *v, const uint64_t *rows, size_t n)
{
	if (!rows)
		v->all = true;
	for (size_t i = 0; rows && !v->all && i < n; i++)
		v->stale[rows[i] / 64] |= 1ull << rows[i] % 64;
}

void tt_changed_rows_pushed(struct tt_changed_rows *f, int worker, const uint64_t *rows, size_t n)
{
	for (int i = 0; i < f->room; i++)
		if (f->of[i].stale && (i != worker || f->flags & TT_FRESH_OWN))
			mark(&f->of[i], rows, n);
}

void tt_changed_rows_unseen(struct tt_changed_rows *f, int worker, const uint64_t *rows, size_t n)
{
	struct view *v = find(f, worker);

	if (v)
		mark(v, rows, n);
}

/* From here on the bits say it. */
static void spell_out(const struct tt_changed_rows *f, struct view *v)
{
	if (!v->all)
		return;
	memset(v->stale, 0xff, words_of(f) * sizeof *v->stale);
	if (f->rows % 64)
		v->stale[words_of(f) - 1] = (1ull << f->rows % 64) - 1;
	v->all = false;
}

void tt_changed_rows_see_all(struct tt_changed_rows *f, int worker)
{
	struct view *v = find(f, worker);

	if (!v)
		return;
	memset(v->stale, 0, words_of(f) * sizeof *v->stale);
	v->all = false;
}

static size_t take_bits(uint64_t *word, uint64_t first, uint64_t *rows, size_t room)
{
	size_t n = 0;

	for (; *word && n < room; *word &= *word - 1)
		rows[n++] = first + (uint64_t)__builtin_ctzll(*word);
	return n;
}

/* Words of rows that were seen are passed over four at a time: of ten million rows they are 1.2 MB. */
static size_t skip_zeros(const uint64_t *words, size_t i, size_t end)
{
	while (end - i >= 4 && !(words[i] | words[i + 1] | words[i + 2] | words[i + 3]))
		i += 4;
	while (i < end && !words[i])
		i++;
	return i;
}

static size_t take_stale(const struct tt_changed_rows *f, struct view *v, uint64_t *at, uint64_t *rows, size_t room)
{
	size_t n = 0, end = words_of(f), i = (size_t)(*at / 64);
	uint64_t passed = v->stale[i] & ((1ull << *at % 64) - 1); /* stale again since the cursor was there: for the next pull */

	v->stale[i] ^= passed;
	for (size_t k = skip_zeros(v->stale, i, end); k < end && n < room; k = skip_zeros(v->stale, k, end))
		n += take_bits(&v->stale[k], 64 * (uint64_t)k, rows + n, room - n);
	v->stale[i] |= passed;
	*at = n == room && n ? rows[n - 1] + 1 : f->rows;
	return n;
}

static size_t take_any(const struct tt_changed_rows *f, uint64_t *at, uint64_t *rows, size_t room)
{
	size_t n = 0;

	for (; n < room && *at < f->rows; ++*at)
		rows[n++] = *at;
	return n;
}

size_t tt_changed_rows_take(struct tt_changed_rows *f, int worker, uint64_t *at, uint64_t *rows, size_t room)
{
	struct view *v = find(f, worker);
	bool begins = *at == 0;
	size_t n;

	if (!room || *at >= f->rows)
		return 0;
	if (!v)
		return take_any(f, at, rows, room);
	spell_out(f, v);
	n = take_stale(f, v, at, rows, room);
	if (n || !begins || !(f->flags & TT_CHANGED_DUMMY))
		return n;
	rows[0] = 0;
	return 1;
}

size_t tt_changed_rows_take_of(struct tt_changed_rows *f, int worker, const uint64_t *asked, size_t n, uint64_t *rows)
{
	struct view *v = find(f, worker);
	size_t taken = 0;

	if (v)
		spell_out(f, v);
	for (size_t i = 0; i < n; i++) {
		uint64_t row = asked[i], bit = 1ull << row % 64;
		if (v && !(v->stale[row / 64] & bit))
			continue;
		if (v)
			v->stale[row / 64] &= ~bit;
		rows[taken++] = row;
	}
	if (v && n && !taken && f->flags & TT_CHANGED_DUMMY)
		rows[taken++] = 0;
	return taken;
}
