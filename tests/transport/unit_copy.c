/* unit_copy.c - each way of copying copies what it should and nothing beside it; the choice follows what is measured */
#include "tests/harness/cunit_main.h"
#include "transport/copy.h"
#include <pthread.h>
#include <stdlib.h>

enum { GUARD = 128, LINE = 64, PAGE = 4096, MIB = 1 << 20, LONG = 48 * MIB };

static uint8_t *source, *target; /* a page longer than LONG, and begin at a page */

static int fill(void)
{
	source = aligned_alloc(PAGE, LONG + PAGE);
	target = aligned_alloc(PAGE, LONG + PAGE);
	if (!source || !target)
		return 1;
	for (size_t i = 0; i < LONG + PAGE; i++)
		source[i] = (uint8_t)(i % 251 + 1);
	return 0;
}

static int drop(void)
{
	free(source);
	free(target);
	return 0;
}

static bool is_zero(const uint8_t *at, size_t n)
{
	return !n || (!at[0] && !memcmp(at, at + 1, n - 1));
}

/* Both begin at a page and so many bytes: what matters to the ways is how they lie in a line and in a page. */
static bool copies(enum tt_copy_way way, size_t to, size_t from, size_t n)
{
	uint8_t *at = target + GUARD + to;

	memset(target, 0, GUARD + to + n + GUARD);
	tt_copy_by(way, at, source + GUARD + from, n);
	return !memcmp(at, source + GUARD + from, n) && is_zero(target, (size_t)(at - target)) &&
	       is_zero(at + n, GUARD);
}

static void check(size_t to, size_t from, size_t n)
{
	for (int way = 0; way < tt_copy_ways(); way++)
		if (!copies((enum tt_copy_way)way, to, from, n)) {
			printf("%s: %zu bytes from +%zu to +%zu\n", tt_copy_name[way], n, from, to);
			CU_FAIL("a wrong copy");
		}
}

static void test_short(void)
{
	for (size_t n = 0; n <= 300; n++)
		for (size_t to = 0; to < LINE; to++)
			for (size_t from = 0; from < LINE; from += n % 7 + 1)
				check(to, from, n);
}

static void test_limits(void)
{
	static const size_t limits[] = { 1024, 2048, 4096, 16384 };

	for (size_t i = 0; i < TT_COUNT(limits); i++)
		for (size_t to = 0; to < LINE; to++)
			for (size_t from = 0; from < LINE; from += i + 1)
				check(to, from, limits[i] - 1 + (to + from) % 3);
	for (size_t n = 65536; n <= 16 * MIB; n *= 4)
		for (size_t more = 0; more < 3; more++)
			check(7 * more, 21 - more, n - 1 + more);
}

/* A clock of our own: each copy takes as long as its way is said to. */

struct fake {
	struct tt_world world;
	uint64_t now;
	struct tt_copy_class *class;
	uint64_t price[TT_COPY_WAYS]; /* nanoseconds a copy */
	unsigned without;             /* as in the copier */
	int odd;                      /* the round in which ... */
	uint64_t odd_price[TT_COPY_WAYS];
};

static int ways_of(const struct fake *f) { return f->without ? TT_COPY_WAYS - 1 : TT_COPY_WAYS; }

static uint64_t fake_now(struct tt_world *w)
{
	struct fake *f = (struct fake *)w;
	int trial = f->class->trial, ways = ways_of(f), way = trial % ways;

	way += f->without && way >= (int)f->without;
	return f->now += trial / ways == f->odd ? f->odd_price[way] : f->price[way];
}

static void start_fake(struct fake *f, struct tt_copier *c, int class)
{
	*f = (struct fake){ .world.now = fake_now, .class = &c->of[class], .price = { 100, 100, 100 },
	                    .odd = -1 };
	memset(c, 0, sizeof *c);
	tt_world = &f->world;
}

static bool is_settled(const struct fake *f) { return f->class->trial == TT_COPY_ROUNDS * ways_of(f); }

static int copy_until_settled(struct tt_copier *c, struct fake *f, size_t n) /* how many it took */
{
	for (int i = 1; i < 10000; i++) {
		tt_copy(c, target, source, n);
		if (is_settled(f))
			return i;
	}
	CU_FAIL("it does not settle");
	return 0;
}

static void test_choice(void)
{
	size_t n = TT_COPY_FROM;
	struct tt_copier c;
	struct fake f;

	for (int class = 0; class < TT_COPY_CLASSES; class++, n *= 4)
		for (enum tt_copy_way best = 0; best < TT_COPY_WAYS; best++) {
			start_fake(&f, &c, class);
			f.price[best] = 50;
			copy_until_settled(&c, &f, n);
			CU_ASSERT_EQUAL(tt_copy_way(&c, n), best);
			CU_ASSERT_EQUAL(tt_copy_way(&c, class < TT_COPY_CLASSES - 1 ? 4 * n - 1 : SIZE_MAX), best);
		}
	tt_world = NULL;
}

/* Ways that must not be chosen are not tried. */
static void test_some_ways(void)
{
	struct tt_copier c;
	struct fake f;

	for (enum tt_copy_way without = TT_COPY_STRING; without < TT_COPY_WAYS; without++)
		for (enum tt_copy_way best = 0; best < TT_COPY_WAYS; best++) {
			start_fake(&f, &c, 2);
			c.without = (uint8_t)(f.without = without);
			f.price[best] = 50;
			copy_until_settled(&c, &f, 65536);
			CU_ASSERT(tt_copy_way(&c, 65536) == best || best == without);
			CU_ASSERT(tt_copy_way(&c, 65536) != without);
			for (int i = 0; i < TT_COPY_ROUNDS; i++)
				CU_ASSERT_EQUAL(c.of[2].cost[without][i], 0);
		}
	tt_world = NULL;
}

/* One trial found everything in the cache, another was put aside: neither says anything. */
static void test_odd_trials(void)
{
	struct tt_copier c;
	struct fake f;

	start_fake(&f, &c, 2);
	f.price[TT_COPY_STRING] = 50;
	f.odd = 1;
	f.odd_price[TT_COPY_PLAIN] = 1;
	f.odd_price[TT_COPY_STRING] = 1000000;
	copy_until_settled(&c, &f, 65536);
	CU_ASSERT_EQUAL(tt_copy_way(&c, 65536), TT_COPY_STRING);
	tt_world = NULL;
}

static void test_again(void)
{
	struct tt_copier c;
	struct fake f;
	int first;

	start_fake(&f, &c, 4);
	f.price[TT_COPY_STREAM] = 50;
	first = copy_until_settled(&c, &f, MIB);
	memcpy(f.price, (uint64_t[]){ 50, 100, 100 }, sizeof f.price);
	f.now += 900 * TT_MS;
	for (int i = 0; i < 10; i++)
		tt_copy(&c, target, source, MIB);
	CU_ASSERT(is_settled(&f));
	CU_ASSERT_EQUAL(tt_copy_way(&c, MIB), TT_COPY_STREAM);
	f.now += 100 * TT_MS;
	tt_copy(&c, target, source, MIB);
	CU_ASSERT(!is_settled(&f));
	CU_ASSERT_EQUAL(tt_copy_way(&c, MIB), TT_COPY_STREAM); /* what was settled holds until it is settled anew */
	CU_ASSERT(abs(copy_until_settled(&c, &f, MIB) - first) <= 1);
	CU_ASSERT_EQUAL(tt_copy_way(&c, MIB), TT_COPY_PLAIN);
	tt_world = NULL;
}

/* The clock is not read with each short copy. */
static void test_clock(void)
{
	struct tt_copier c;
	struct fake f;
	uint64_t before;

	start_fake(&f, &c, 0);
	copy_until_settled(&c, &f, TT_COPY_FROM);
	before = f.now;
	for (int i = 0; i < 200; i++)
		tt_copy(&c, target, source, TT_COPY_FROM);
	CU_ASSERT_EQUAL(f.now, before);
	for (int i = 0; i < 200; i++)
		tt_copy(&c, target, source, TT_COPY_FROM - 1);
	CU_ASSERT_EQUAL(f.now, before);
	tt_world = NULL;
}

/* Within a long copy the way changes under way. */
static void test_pieces(void)
{
	struct tt_copier c;
	struct fake f;

	start_fake(&f, &c, TT_COPY_CLASSES - 1);
	for (int i = 0; i < 3; i++) {
		memset(target, 0, LONG + PAGE);
		tt_copy(&c, target + 13, source + 1, LONG);
		CU_ASSERT(!memcmp(target + 13, source + 1, LONG) && is_zero(target, 13) &&
		          is_zero(target + 13 + LONG, GUARD));
	}
	CU_ASSERT(is_settled(&f));
	tt_world = NULL;
}

static struct tt_copier shared;

static void *copy_much(void *arg)
{
	uint8_t *to = malloc(65536);
	long wrong = !to;

	(void)arg;
	for (size_t i = 0; to && i < 3000; i++) {
		size_t n = 4096 + i * 4099 % 60000;
		tt_copy(&shared, to, source + i, n);
		wrong += memcmp(to, source + i, n) != 0;
	}
	free(to);
	return (void *)wrong;
}

static void test_threads(void)
{
	pthread_t thread[4];
	void *wrong;

	for (size_t i = 0; i < TT_COUNT(thread); i++)
		CU_ASSERT_FATAL(!pthread_create(&thread[i], NULL, copy_much, NULL));
	for (size_t i = 0; i < TT_COUNT(thread); i++) {
		pthread_join(thread[i], &wrong);
		CU_ASSERT_PTR_NULL(wrong);
	}
}

static CU_TestInfo way_tests[] = { { "short", test_short }, { "limits", test_limits }, CU_TEST_INFO_NULL };
static CU_TestInfo choice_tests[] = {
	{ "choice", test_choice }, { "some_ways", test_some_ways }, { "odd_trials", test_odd_trials },
	{ "again", test_again }, { "clock", test_clock }, { "pieces", test_pieces }, { "threads", test_threads },
	CU_TEST_INFO_NULL,
};

int main(int argc, char **argv)
{
	CU_SuiteInfo suites[] = {
		{ "ways", fill, drop, NULL, NULL, way_tests },
		{ "choice", fill, drop, NULL, NULL, choice_tests },
		CU_SUITE_INFO_NULL,
	};

	if (tt_copy_ways() == 1) /* nothing to choose from */
		suites[1] = (CU_SuiteInfo)CU_SUITE_INFO_NULL;
	return run_suites(suites, argc, argv);
}
