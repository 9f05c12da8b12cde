/* unit_parts.c - what a table's shards are made of: cuts over servers, what workers have seen, sparse blocks */
#include "table/parts.h"
#include "tests/harness/cunit_main.h"
#include "tests/kernel/formats.h"
#include <stdlib.h>

static struct tt_random dice;

static size_t draw(size_t n) { return (size_t)tt_random_below(&dice, n); }

/* Cuts. */

static int server_of(const struct tt_shards *s, uint64_t i)
{
	uint32_t server;

	tt_shards_find(s, &i, 1, &server);
	return (int)server;
}

static bool is_within(const struct tt_shards *s, int k, uint64_t i)
{
	return tt_shards_first(s, k) <= i && i < tt_shards_first(s, k + 1);
}

static bool is_whole(const struct tt_shards *s, uint64_t count, int servers) /* every element in one place, in order */
{
	if (tt_shards_first(s, 0) != 0 || tt_shards_first(s, servers) != count)
		return false;
	for (int k = 0; k < servers; k++)
		if (tt_shards_first(s, k) > tt_shards_first(s, k + 1) ||
		    (k < s->used) != (tt_shards_first(s, k) < tt_shards_first(s, k + 1)))
			return false;
	for (uint64_t i = 0; i < count; i++) {
		int k = server_of(s, i);
		if (k >= servers || !is_within(s, k, i))
			return false;
	}
	return true;
}

static bool is_even(const struct tt_shards *s, uint64_t count, int servers, uint64_t align)
{
	uint64_t least = UINT64_MAX, most = 0;

	for (int k = 0; k < servers; k++) {
		uint64_t size = tt_shards_first(s, k + 1) - tt_shards_first(s, k);
		/* of the last one a part of a unit may be missing */
		least = k == s->used - 1 ? least : size < least ? size : least;
		most = size > most ? size : most;
		if (s->unit == align && k < s->used && tt_shards_first(s, k) % align)
			return false;
	}
	return (s->used == servers || (uint64_t)s->used == count) && (least > most || most - least <= s->unit);
}

static void test_cuts(void)
{
	struct tt_shards s;

	for (uint64_t count = 1; count < 150; count++)
		for (int servers = 1; servers < 14; servers++) {
			for (uint64_t align = 1; align < 20; align += 3) {
				CU_ASSERT_EQUAL(tt_shards_cut(&s, count, servers, align, TT_CUT_EVEN), 0);
				CU_ASSERT_TRUE(is_whole(&s, count, servers) && is_even(&s, count, servers, align));
				CU_ASSERT_EQUAL(s.unit, count > align * (uint64_t)(servers - 1) ? align : 1);
			}
			CU_ASSERT_EQUAL(tt_shards_cut(&s, count, servers, 16, TT_CUT_MULTIVERSO), 0);
			CU_ASSERT_TRUE(is_whole(&s, count, servers));
		}
}

static void test_largest_cuts(void)
{
	static const uint64_t aligns[] = { 1, 3, 64, 1ull << 40, UINT64_MAX };
	struct tt_shards s;

	for (size_t a = 0; a < TT_COUNT(aligns); a++)
		for (int servers = 1; servers < 5000; servers += 833) {
			CU_ASSERT_EQUAL(tt_shards_cut(&s, UINT64_MAX, servers, aligns[a], TT_CUT_EVEN), 0);
			CU_ASSERT_EQUAL(server_of(&s, UINT64_MAX - 1), servers - 1);
			CU_ASSERT_EQUAL(tt_shards_first(&s, servers), UINT64_MAX);
			for (int k = 1; k < servers; k++)
				CU_ASSERT(tt_shards_first(&s, k) > tt_shards_first(&s, k - 1));
		}
}

/* The first and the last element of each shard, and some in between, of any counts. */
static bool finds_all(const struct tt_shards *s, int servers)
{
	for (int k = 0; k < servers && k < s->used; k++) {
		uint64_t first = tt_shards_first(s, k), n = tt_shards_first(s, k + 1) - first;
		const uint64_t at[] = { first, first + n - 1, first + tt_random_next(&dice) % n };
		uint32_t server[TT_COUNT(at)];
		tt_shards_find(s, at, TT_COUNT(at), server);
		for (size_t i = 0; i < TT_COUNT(at); i++)
			if (server[i] != (uint32_t)k)
				return false;
	}
	return true;
}

static void test_found_without_division(void)
{
	struct tt_shards s;

	for (int k = 0; k < 2000; k++) {
		uint64_t count = (tt_random_next(&dice) >> draw(64)) | 1;
		uint64_t align = (tt_random_next(&dice) >> draw(64)) | 1;
		int servers = 1 + (int)draw(k % 10 ? 9 : 3000);
		enum tt_cut cut = k % 3 ? TT_CUT_EVEN : TT_CUT_MULTIVERSO;
		CU_ASSERT_EQUAL(tt_shards_cut(&s, count, servers, align, cut), 0);
		CU_ASSERT(finds_all(&s, servers));
	}
}

static void test_keys_are_dealt_out(void)
{
	uint64_t keys[100] = { 0, 1, UINT64_MAX, UINT64_MAX - 1, 1ull << 63 };
	uint32_t server[TT_COUNT(keys)];
	int wrong = 0;

	for (size_t i = 5; i < TT_COUNT(keys); i++)
		keys[i] = tt_random_next(&dice) >> draw(64);
	for (int servers = 1; servers < 5000; servers += 1 + servers / 3) {
		tt_shards_of_keys(keys, TT_COUNT(keys), servers, server);
		for (size_t i = 0; i < TT_COUNT(keys); i++)
			wrong += server[i] != (uint32_t)tt_shards_of_key(keys[i], servers);
		wrong += !tt_shards_have_keys(keys, 1, servers, (int)server[0]);
		wrong += tt_shards_have_keys(keys, 2, servers, (int)server[0]) != (server[0] == server[1]);
	}
	CU_ASSERT_EQUAL(wrong, 0);
}

static void test_bad_cuts(void)
{
	struct tt_shards s;

	CU_ASSERT_EQUAL(tt_shards_cut(&s, 0, 1, 1, TT_CUT_EVEN), -EINVAL);
	CU_ASSERT_EQUAL(tt_shards_cut(&s, 1, 0, 1, TT_CUT_EVEN), -EINVAL);
	CU_ASSERT_EQUAL(tt_shards_cut(&s, 1, 1, 0, TT_CUT_MULTIVERSO), -EINVAL);
	CU_ASSERT_PTR_NOT_NULL(strstr(tt_why(), "aligned to 0"));
}

static void test_keys(void)
{
	CU_ASSERT_EQUAL(tt_shards_of_key(7, 3), 1);
	CU_ASSERT_EQUAL(tt_shards_of_key(UINT64_MAX, 4), 3); /* also what was a negative number */
}

/* Keys: numbered as they come, whatever they are, and found again while the index moves. */

/* doubled now and then */
static uint64_t some_key(uint64_t i) { return i % 4 ? i * 0x9e3779b97f4a7c15 : i << (i % 40); }

static void check_keys(const struct tt_keys *k, const uint64_t *numbers, uint64_t from, uint64_t to)
{
	bool good = true;

	for (uint64_t i = from; i < to; i++)
		good &= tt_keys_find(k, some_key(i)) == numbers[i] && tt_keys_key(k, numbers[i]) == some_key(i);
	CU_ASSERT_TRUE(good);
}

static void number_keys(uint64_t expected, uint64_t n)
{
	uint64_t *numbers = calloc(n, sizeof *numbers), count = 0;
	struct tt_keys *k;
	bool good = true;

	CU_ASSERT_EQUAL(tt_keys_open(expected, &k), 0);
	for (uint64_t i = 0; i < n; i++) {
		bool is_new = tt_keys_find(k, some_key(i)) == TT_NO_KEY;
		CU_ASSERT_EQUAL(tt_keys_add(k, some_key(i), &numbers[i]), 0);
		good &= is_new ? numbers[i] == count : numbers[i] < count;
		count += is_new;
		good &= tt_keys_count(k) == count;
		if (i < 3000)
			check_keys(k, numbers, 0, i + 1);
	}
	CU_ASSERT_TRUE(good);
	check_keys(k, numbers, 0, n);
	CU_ASSERT_EQUAL(tt_keys_find(k, 0x1234567890abcdef), TT_NO_KEY);
	CU_ASSERT(count > n / 2);
	tt_keys_close(k);
	free(numbers);
}

static void test_key_numbers(void)
{
	number_keys(0, 1);
	number_keys(0, 3000);
	number_keys(100000, 100000);
	number_keys(0, 300000);
	tt_keys_close(NULL);
}

/* What workers have seen. */

enum { ROWS = 200, WORKERS = 5 };

struct model { /* of tt_fresh, plainly */
	bool here[WORKERS], stale[WORKERS][ROWS];
	unsigned flags;
};

static void set_stale(struct model *m, int worker, const uint64_t *rows, size_t n)
{
	for (size_t i = 0; i < n; i++)
		m->stale[worker][rows ? rows[i] : i] = true;
}

static void model_push(struct model *m, int worker, const uint64_t *rows, size_t n)
{
	for (int w = 0; w < WORKERS; w++)
		if (w != worker || m->flags & TT_FRESH_OWN)
			set_stale(m, w, rows, n);
}

/* A pull in pieces, while others push behind its back: rows it has passed are for the next one. */
static bool pull_all(struct tt_changed_rows *f, struct model *m, int worker)
{
	uint64_t at = 0, rows[7], expected = 0;
	size_t n;

	while ((n = tt_changed_rows_take(f, worker, &at, rows, 1 + draw(7)))) {
		for (size_t i = 0; i < n; i++) {
			for (; expected < rows[i]; expected++)
				if (m->stale[worker][expected])
					return false;
			if (!m->stale[worker][expected])
				return false;
			m->stale[worker][expected++] = false;
		}
		uint64_t row = draw(expected);
		tt_changed_rows_pushed(f, -1, &row, 1);
		model_push(m, -1, &row, 1);
	}
	for (; expected < ROWS; expected++)
		if (m->stale[worker][expected])
			return false;
	return at == ROWS || !ROWS;
}

static bool pull_some(struct tt_changed_rows *f, struct model *m, int worker, const uint64_t *asked, size_t n)
{
	uint64_t rows[ROWS];
	size_t got = tt_changed_rows_take_of(f, worker, asked, n, rows), k = 0;

	for (size_t i = 0; i < n; i++)
		if (m->stale[worker][asked[i]]) {
			if (k == got || rows[k++] != asked[i])
				return false;
			m->stale[worker][asked[i]] = false;
		}
	return k == got;
}

static bool step(struct tt_changed_rows *f, struct model *m)
{
	uint64_t rows[ROWS];
	int worker = (int)draw(WORKERS);
	size_t n = draw(9), what = draw(20);

	for (size_t i = 0; i < n; i++)
		rows[i] = draw(ROWS);
	if (what == 0) {
		tt_changed_rows_leave(f, worker);
		m->here[worker] = false;
	} else if (what == 1 || !m->here[worker]) {
		if (tt_changed_rows_join(f, worker))
			return false;
		m->here[worker] = true;
		set_stale(m, worker, NULL, ROWS);
	} else if (what == 2) {
		tt_changed_rows_pushed(f, worker, NULL, 0);
		model_push(m, worker, NULL, ROWS);
	} else if (what < 9) {
		tt_changed_rows_pushed(f, worker, rows, n);
		model_push(m, worker, rows, n);
	} else if (what < 15)
		return pull_some(f, m, worker, rows, n);
	else
		return pull_all(f, m, worker);
	return true;
}

static void test_fresh_against_model(void)
{
	static struct model m;
	struct tt_changed_rows *f;

	for (unsigned flags = 0; flags <= TT_FRESH_OWN; flags++) {
		m = (struct model){ .flags = flags };
		CU_ASSERT_EQUAL_FATAL(tt_changed_rows_open(ROWS, flags, &f), 0);
		for (int i = 0; i < 20000; i++)
			CU_ASSERT_TRUE(step(f, &m));
		tt_changed_rows_close(f);
	}
	tt_changed_rows_close(NULL);
}

static void test_everybodys_pull(void)
{
	uint64_t at = 0, rows[70];
	struct tt_changed_rows *f;

	CU_ASSERT_EQUAL_FATAL(tt_changed_rows_open(65, 0, &f), 0);
	CU_ASSERT_EQUAL(tt_changed_rows_join(f, 0), 0);
	for (int again = 0; again < 2; again++, at = 0) {
		CU_ASSERT_EQUAL(tt_changed_rows_take(f, -1, &at, rows, 60), 60);
		CU_ASSERT_EQUAL(tt_changed_rows_take(f, -1, &at, rows, 60), 5);
		CU_ASSERT_EQUAL(rows[4], 64);
		CU_ASSERT_EQUAL(tt_changed_rows_take(f, -1, &at, rows, 60), 0);
		CU_ASSERT_EQUAL(tt_changed_rows_take_of(f, -1, (uint64_t[]){ 64, 3 }, 2, rows), 2);
	}
	CU_ASSERT_EQUAL(tt_changed_rows_take(f, 0, &at, rows, 70), 65);
	tt_changed_rows_close(f);
}

/* Ten million rows, of which a few are stale. */
static void test_all_seen(void)
{
	uint64_t rows[100], at = 0, two[] = { 2, 99 };
	struct tt_changed_rows *f;

	CU_ASSERT_EQUAL(tt_changed_rows_open(100, 0, &f), 0);
	tt_changed_rows_see_all(f, 1); /* who is not here sees nothing */
	CU_ASSERT_EQUAL(tt_changed_rows_join(f, 1), 0);
	tt_changed_rows_see_all(f, 1);
	CU_ASSERT_EQUAL(tt_changed_rows_take(f, 1, &at, rows, 100), 0);
	tt_changed_rows_pushed(f, 0, two, 2);
	at = 0;
	CU_ASSERT(tt_changed_rows_take(f, 1, &at, rows, 100) == 2 && rows[0] == 2 && rows[1] == 99);
	tt_changed_rows_pushed(f, 0, two, 2);
	tt_changed_rows_see_all(f, 1);
	at = 0;
	CU_ASSERT_EQUAL(tt_changed_rows_take(f, 1, &at, rows, 100), 0);
	tt_changed_rows_close(f);
}

static void test_many_rows(void)
{
	enum { MANY = 10000000 };
	uint64_t at = 0, stale[] = { 0, 63, 64, 4999999, MANY - 1 }, rows[TT_COUNT(stale) + 1];
	struct tt_changed_rows *f;

	CU_ASSERT_EQUAL_FATAL(tt_changed_rows_open(MANY, 0, &f), 0);
	CU_ASSERT_EQUAL(tt_changed_rows_join(f, 3), 0);
	while (tt_changed_rows_take(f, 3, &at, rows, 1) && at < 1000)
		CU_ASSERT_EQUAL(rows[0] + 1, at);
	uint64_t *rest = malloc(MANY * sizeof *rest);
	CU_ASSERT_PTR_NOT_NULL_FATAL(rest);
	CU_ASSERT_EQUAL(tt_changed_rows_take(f, 3, &at, rest, MANY), MANY - 1000);
	free(rest);
	tt_changed_rows_pushed(f, 0, stale, TT_COUNT(stale));
	at = 0;
	CU_ASSERT_EQUAL(tt_changed_rows_take(f, 3, &at, rows, TT_COUNT(rows)), TT_COUNT(stale));
	CU_ASSERT(!memcmp(rows, stale, sizeof stale));
	CU_ASSERT_EQUAL(at, MANY);
	tt_changed_rows_close(f);
}

/* Sparse blocks. */

static const tutti_type types[] = { TUTTI_F32, TUTTI_F64, TUTTI_F16, TUTTI_BF16, TUTTI_I32, TUTTI_I64 };
enum { LONGEST = 300, MARGIN = 16 };

static double integer(const void *base, size_t i, tutti_type type)
{
	return type == TUTTI_I32 ? (double)(int32_t)element(base, i, type) : (double)(int64_t)element(base, i, type);
}

static bool stays(const void *base, size_t i, tutti_type type, double clip)
{
	double x = is_integer(type) ? integer(base, i, type) : (double)meaning(element(base, i, type), type);

	return !(fabs(x) <= clip);
}

static void fill(char *block, size_t n, tutti_type type, size_t one_in)
{
	for (size_t i = 0; i < n; i++) {
		uint64_t bits = tt_random_next(&dice);
		set_element(block, i, type, draw(one_in) ? 0 : is_integer(type) && draw(2) ? bits >> 58 : bits);
	}
}

static bool is_round_trip(const char *from, size_t n, tutti_type type, double clip)
{
	static char packed_room[MARGIN + LONGEST * 8 + MARGIN], back[MARGIN + LONGEST * 8 + MARGIN];
	size_t width = tt_type_size(type), kept = 0, shift = draw(8);
	char *packed = packed_room + shift, *to = back + draw(8);

	for (size_t i = 0; i < n; i++)
		kept += stays(from, i, type, clip);
	memset(packed_room, 0x5a, sizeof packed_room);
	size_t pairs = tt_max(kept, 1), bytes = tt_filter_pack(packed, from, n, type, tt_filter_limit(type, clip));
	if (bytes != (pairs * (4 + width) < n * width ? pairs * (4 + width) : 0))
		return false;
	for (size_t i = bytes; i < bytes + MARGIN / 2; i++)
		if (packed[i] != 0x5a)
			return false;
	if (!bytes)
		return true;
	memset(back, 0x5a, sizeof back);
	if (tt_filter_unpack(to, n, type, packed, bytes))
		return false;
	for (size_t i = 0; i < n; i++)
		if (element(to, i, type) != (stays(from, i, type, clip) || (!kept && !i) ? element(from, i, type) : 0))
			return false;
	return to[n * width] == 0x5a;
}

static void test_round_trips(void)
{
	static const double clips[] = { 0, 1e-6, 0.25, 3, 1e5, 4e9, 1e300, INFINITY };
	for (size_t t = 0; t < TT_COUNT(types); t++)
		for (size_t n = 0; n < LONGEST; n += n < 40 ? 1 : 37)
			for (size_t c = 0; c < TT_COUNT(clips); c++)
				for (size_t one_in = 1; one_in < 200; one_in *= 3) {
					size_t shift = draw(8);
					/* nothing behind it may be read */
					char *room = malloc(shift + n * tt_type_size(types[t]) + !n);
					CU_ASSERT_PTR_NOT_NULL_FATAL(room);
					fill(room + shift, n, types[t], one_in);
					CU_ASSERT_TRUE(is_round_trip(room + shift, n, types[t], clips[c]));
					free(room);
				}
}

static float float_of(uint16_t bits, tutti_type type) { return (float)meaning(bits, type); }

/* Every number of 16 bits against limits in between and on them. */
static void test_limits(void)
{
	static const tutti_type small[] = { TUTTI_F16, TUTTI_BF16 };
	static const double clips[] = { 0,       1e-45,   3e-8,  6e-8,  1e-5,   0.1,   1,       1.0004,
		                        1.00049, 65503.9, 65504, 65520, 3.3e38, 1e300, INFINITY };

	for (size_t t = 0; t < TT_COUNT(small); t++)
		for (size_t c = 0; c < TT_COUNT(clips); c++) {
			uint64_t limit = tt_filter_limit(small[t], clips[c]);
			int wrong = 0;
			for (uint32_t bits = 0; bits < 0x10000; bits++)
				wrong += ((bits & 0x7fff) > limit) ==
				         (fabsf(float_of((uint16_t)bits, small[t])) <= clips[c]);
			CU_ASSERT_EQUAL(wrong, 0);
		}
	CU_ASSERT_EQUAL(tt_filter_limit(TUTTI_F32, 0.1), 0x3dcccccc); /* the float below, for 0.1f is more */
	CU_ASSERT_EQUAL(tt_filter_limit(TUTTI_F32, 1e39), 0x7f7fffff);
	CU_ASSERT_EQUAL(tt_filter_limit(TUTTI_F64, 1), 0x3ff0000000000000);
	CU_ASSERT_EQUAL(tt_filter_limit(TUTTI_I32, 2.9), 2);
	CU_ASSERT_EQUAL(tt_filter_limit(TUTTI_I64, 1e30), 1ull << 63);
}

static void test_nan_and_the_least_integer(void)
{
	float f[] = { 0, NAN, 0, -INFINITY, -0.0f, 0 };
	int32_t i[] = { 0, INT32_MIN, 0, 0 };
	char packed[24];

	CU_ASSERT_EQUAL(tt_filter_pack(packed, f, 6, TUTTI_F32, tt_filter_limit(TUTTI_F32, 1e30)), 16);
	memset(f, 1, sizeof f);
	CU_ASSERT_EQUAL(tt_filter_unpack(f, 6, TUTTI_F32, packed, 16), 0);
	CU_ASSERT(isnan(f[1]) && f[3] == -INFINITY && f[0] == 0 && f[4] == 0 && f[5] == 0);
	CU_ASSERT_EQUAL(tt_filter_pack(packed, i, 4, TUTTI_I32, 1000), 8);
	memset(i, 1, sizeof i);
	CU_ASSERT_EQUAL(tt_filter_unpack(i, 4, TUTTI_I32, packed, 8), 0);
	CU_ASSERT(i[1] == INT32_MIN && i[0] == 0 && i[3] == 0);
}

static void refuse(const uint32_t *pairs, size_t bytes, size_t n, const char *word)
{
	float to[8] = { 5, 5, 5, 5, 5, 5, 5, 5 };

	CU_ASSERT_EQUAL(tt_filter_unpack(to, n, TUTTI_F32, pairs, bytes), -EBADMSG);
	CU_ASSERT_PTR_NOT_NULL(strstr(tt_why(), word));
	for (int i = 0; i < 8; i++)
		CU_ASSERT_EQUAL(to[i], 5);
}

static void test_bad_blocks(void)
{
	refuse((uint32_t[]){ 2, 2, 0, 0 }, 16, 8, "do not grow");
	refuse((uint32_t[]){ 3, 2, 0, 0 }, 16, 8, "do not grow");
	refuse((uint32_t[]){ 3, 8, 0, 0 }, 16, 8, "pass its 8 elements");
	refuse((uint32_t[]){ UINT32_MAX, 0 }, 8, 8, "pass its 8 elements");
	refuse((uint32_t[]){ 0, 1, 2, 3, 0, 0, 0, 0 }, 32, 8, "fewer than the elements take");
	refuse((uint32_t[]){ 0, 0 }, 7, 8, "7 bytes");
	refuse((uint32_t[]){ 0, 0 }, 0, 8, "0 bytes");
	refuse((uint32_t[]){ 0, 0, 0 }, 12, 8, "12 bytes");
	refuse((uint32_t[]){ 0, 0 }, 8, 1ull << 33, "for 8589934592 elements");
	refuse((uint32_t[]){ 0, 0 }, 8, 2, "for 2 elements");
	refuse((uint32_t[]){ 0, 0 }, 8, 0, "for 0 elements");
	refuse(NULL, SIZE_MAX, 8, "sparse block"); /* before anything is looked at */
	refuse(NULL, SIZE_MAX / 8 * 8, SIZE_MAX / 4 + 2, "sparse block");
}

/* Any bytes are refused, or give what is within the block. */
static void test_random_blocks(void)
{
	char packed[64], to[8 * 24 + 1];
	int good = 0;

	for (int i = 0; i < 100000; i++) {
		tutti_type type = types[draw(TT_COUNT(types))];
		size_t n = draw(24), bytes = draw(sizeof packed);
		for (size_t k = 0; k < sizeof packed; k++)
			packed[k] = draw(3) ? 0 : (char)draw(24);
		to[n * tt_type_size(type)] = 0x5a;
		good += !tt_filter_unpack(to, n, type, packed, bytes);
		CU_ASSERT(to[n * tt_type_size(type)] == 0x5a);
	}
	CU_ASSERT(good > 100);
}

/* ---- touched.c ---- */

static void test_touched(void)
{
	const uint64_t some[] = { 7, 2, 7 }, more[] = { 2, 90 }, side[] = { 91, 92 };
	const uint64_t *rows;
	struct tt_dirty_rows *s;

	CU_ASSERT_EQUAL_FATAL(tt_dirty_rows_open(8, &s), 0);
	for (int round = 0; round < 3; round++) {
		CU_ASSERT(tt_dirty_rows_list(s, &rows) == 0 && tt_dirty_rows_by(s, 7) == 0 &&
		          tt_dirty_rows_all(s) == 0);
		CU_ASSERT(tt_dirty_rows_add(s, 0, some, 3) == 0 && tt_dirty_rows_resize(s, 100) == 0 &&
		          tt_dirty_rows_add(s, 4, more, 2) == 0);
		CU_ASSERT(tt_dirty_rows_list(s, &rows) == 3 && rows[0] == 7 && rows[1] == 2 && rows[2] == 90);
		CU_ASSERT(tt_dirty_rows_by(s, 7) == 1 && tt_dirty_rows_by(s, 2) == TT_BY_MANY &&
		          tt_dirty_rows_by(s, 90) == 5 && tt_dirty_rows_by(s, 99) == 0);
		CU_ASSERT(tt_dirty_rows_count(s) == 3 && tt_dirty_rows_row(s, 1) == 2 &&
		          tt_dirty_rows_run(s, 0, 9) == 1);
		CU_ASSERT(tt_dirty_rows_add(s, 0, side, 2) == 0 && tt_dirty_rows_run(s, 2, 9) == 3 &&
		          tt_dirty_rows_run(s, 2, 2) == 2 && tt_dirty_rows_run(s, 4, 9) == 1);
		CU_ASSERT(tt_dirty_rows_add(s, 4, NULL, 0) == 0 && tt_dirty_rows_list(s, &rows) == 5 &&
		          tt_dirty_rows_all(s) == 5);
		CU_ASSERT(tt_dirty_rows_count(s) == 100 && tt_dirty_rows_row(s, 98) == 98 &&
		          tt_dirty_rows_run(s, 2, 200) == 98 && tt_dirty_rows_run(s, 2, 9) == 9);
		CU_ASSERT(tt_dirty_rows_by(s, 7) == TT_BY_MANY && tt_dirty_rows_by(s, 90) == 5 &&
		          tt_dirty_rows_by(s, 99) == 5);
		CU_ASSERT(tt_dirty_rows_add(s, 1, NULL, 0) == 0 && tt_dirty_rows_by(s, 99) == TT_BY_MANY &&
		          tt_dirty_rows_by(s, 90) == TT_BY_MANY);
		tt_dirty_rows_clear(s);
	}
	tt_dirty_rows_close(s);
	tt_dirty_rows_close(NULL);
}

static CU_TestInfo cut_tests[] = {
	{ "cuts", test_cuts },
	{ "largest cuts", test_largest_cuts },
	{ "found without division", test_found_without_division },
	{ "keys are dealt out", test_keys_are_dealt_out },
	{ "bad cuts", test_bad_cuts },
	{ "keys", test_keys },
	CU_TEST_INFO_NULL,
};
static CU_TestInfo fresh_tests[] = {
	{ "against a model", test_fresh_against_model }, { "everybody's pull", test_everybodys_pull },
	{ "many rows", test_many_rows }, { "all seen", test_all_seen }, CU_TEST_INFO_NULL,
};
static CU_TestInfo touched_tests[] = { { "rounds", test_touched }, CU_TEST_INFO_NULL };
static CU_TestInfo key_tests[] = { { "numbers", test_key_numbers }, CU_TEST_INFO_NULL };
static CU_TestInfo filter_tests[] = {
	{ "round trips", test_round_trips },
	{ "limits", test_limits },
	{ "NaN and the least integer", test_nan_and_the_least_integer },
	{ "bad blocks", test_bad_blocks },
	{ "random blocks", test_random_blocks },
	CU_TEST_INFO_NULL,
};

static CU_SuiteInfo suites[] = {
	{ "shards", NULL, NULL, NULL, NULL, cut_tests }, { "fresh", NULL, NULL, NULL, NULL, fresh_tests },
	{ "touched", NULL, NULL, NULL, NULL, touched_tests }, { "keys", NULL, NULL, NULL, NULL, key_tests },
	{ "filter", NULL, NULL, NULL, NULL, filter_tests }, CU_SUITE_INFO_NULL,
};

int main(int argc, char **argv)
{
	tt_random_seed(&dice, 20240607);
	return run_suites(suites, argc, argv);
}
