/* unit_table_save.c - parameter tables saved and loaded again: each test on sim (over seeds) and over TCP and shared
 * memory */
#include "engine/engine.h"
#include "file/file.h"
#include "member/member.h"
#include "table/table_private.h"
#include "tests/harness/cunit_main.h"
#include "tests/table/saves.h"

enum { NUMBERS = TT_TSAN ? 2 : 4 };

/* ---- images ---- */

static void step(int *a, double *b, size_t count, size_t first, size_t n)
{
	for (size_t i = first; i < count && i < first + n; i++) {
		a[i] += 1;
		b[i] += 1;
	}
}

/* Read in pieces of any size, while ranges of any size change: what is read is what was there at first. */
static void read_while_changing(uint64_t seed, size_t count)
{
	int *a = calloc(count, sizeof *a), *was_a = calloc(count, sizeof *a);
	double *b = calloc(count, sizeof *b), *was_b = calloc(count, sizeof *b);
	char *got = calloc(count, sizeof *a + sizeof *b), *at = got;
	struct tt_image *m = NULL;
	struct tt_random dice;
	size_t n = 1;

	tt_random_seed(&dice, seed);
	for (size_t i = 0; i < count; i++) {
		a[i] = was_a[i] = (int)i;
		b[i] = was_b[i] = (double)i / 2;
	}
	CU_ASSERT_EQUAL_FATAL(tt_image_open((struct tt_array[]){ { a, sizeof *a }, { b, sizeof *b } }, 2, count, &m),
	                      0);
	while (n) {
		size_t first = tt_random_below(&dice, count),
		       touched = tt_random_below(&dice, tt_random_below(&dice, 10) ? 3000 : count + 1);
		touched = tt_min(touched, count - first);
		tt_image_keep(m, first, touched);
		step(a, b, count, first, touched);
		n = tt_image_read(m, at, 8 + tt_random_below(&dice, 40000));
		at += n;
	}
	CU_ASSERT_EQUAL((size_t)(at - got), count * (sizeof *a + sizeof *b));
	CU_ASSERT(!memcmp(got, was_a, count * sizeof *a) && !memcmp(got + count * sizeof *a, was_b, count * sizeof *b));
	tt_image_close(m);
	free(a), free(b), free(was_a), free(was_b), free(got);
}

static void test_images(void)
{
	static const size_t counts[] = { 1, 7, 1023, 1024, 1025, 5000, 70000, 65536 };

	for (uint64_t seed = 0; seed < 20; seed++)
		for (size_t i = 0; i < TT_COUNT(counts); i++)
			read_while_changing(seed, counts[i]);
}

/* ---- every rule with its state ---- */

static void round_trip(tutti *job, tutti_update_rule rule, tutti_type type, unsigned flags, tutti_mode mode)
{
	tutti_table_config c = config_of(rule, type, COUNT);
	void *a = calloc(COUNT, 8), *b = calloc(COUNT, 8);
	tutti_table *t;

	c.updater.flags |= flags;
	c.consistency.mode = mode;
	CHECK(tutti_table_open(job, "w", &c, &t) == 0);
	draw(a, COUNT, type, 1);
	if (tutti_rank(job) == 0)
		CHECK(tutti_table_assign(t, a, NULL) == 0);
	meet(job);
	push_around(job, t, type, COUNT, 2);
	push_around(job, t, type, COUNT, 3);
	if (tutti_rank(job) == tutti_size(job) - 1) {
		CHECK(tutti_table_save(t, folder) == 0);
		CHECK(!strcmp(tt_operations(job->job)->last, "table save")); /* others that wait for it hear so */
	}
	meet(job);
	go_on(job, t, type, COUNT, a);
	if (tutti_rank(job) == 0)
		CHECK(tutti_table_load(t, folder) == 0);
	meet(job);
	go_on(job, t, type, COUNT, b);
	CHECK(!memcmp(a, b, COUNT * tt_type_size(type)));
	tutti_table_close(t);
	meet(job);
	free(a);
	free(b);
}

static void program_rules(tutti *job)
{
	for (int rule = 0; rule <= TUTTI_UPDATE_OWN; rule += TT_TSAN ? 4 : 1)
		round_trip(job, (tutti_update_rule)rule, TUTTI_F32, 0, TUTTI_ASYNC);
	round_trip(job, TUTTI_UPDATE_ADAM, TUTTI_F64, 0, TUTTI_ASYNC);
	round_trip(job, TUTTI_UPDATE_ADAGRAD, TUTTI_F16, 0, TUTTI_SSP);
	round_trip(job, TUTTI_UPDATE_DCASGDA, TUTTI_BF16, TUTTI_BACKUP_FROM_ZERO, TUTTI_ASYNC);
	round_trip(job, TUTTI_UPDATE_ADAGRAD, TUTTI_F32, TUTTI_SHARED_STATE, TUTTI_ASYNC);
	round_trip(job, TUTTI_UPDATE_ADD, TUTTI_I32, 0, TUTTI_ASYNC);
	round_trip(job, TUTTI_UPDATE_ADD, TUTTI_I64, 0, TUTTI_BSP);
	round_trip(job, TUTTI_UPDATE_ADAM, TUTTI_F32, 0, TUTTI_BSP);
	round_trip(job, TUTTI_UPDATE_FTRL, TUTTI_F32, 0, TUTTI_BSP);
}

static void test_rules(void) { on_wires(program_rules, (const int[]){ 1, 3, 0 }); }

/* ---- other numbers of servers ---- */

static void on_servers(tutti *job, tutti_update_rule rule, uint64_t count, int before, int after)
{
	static const int all[] = { 3, 1, 4, 0, 2 };
	tutti_table_config c = config_of(rule, TUTTI_F32, count);
	float *a = calloc(count, sizeof *a), *b = calloc(count, sizeof *b);
	tutti_table *t;

	c.row = count % 7 ? 1 : 7;
	c.count = count / c.row;
	c.server = all;
	c.servers = before;
	CHECK(tutti_table_open(job, "w", &c, &t) == 0);
	push_around(job, t, TUTTI_F32, count, 1);
	if (tutti_rank(job) == 2)
		CHECK(tutti_table_save(t, folder) == 0);
	meet(job);
	go_on(job, t, TUTTI_F32, count, a);
	tutti_table_close(t);
	meet(job);
	c.servers = after;
	if (rule == TUTTI_UPDATE_ADAM) /* both ways of loading */
		c.load = folder;
	CHECK(tutti_table_open(job, "w", &c, &t) == 0);
	if (!c.load && tutti_rank(job) == 4)
		CHECK(tutti_table_load(t, folder) == 0);
	meet(job);
	go_on(job, t, TUTTI_F32, count, b);
	CHECK(!memcmp(a, b, count * sizeof *a));
	tutti_table_close(t);
	meet(job);
	free(a);
	free(b);
}

static void program_servers(tutti *job)
{
	static const int numbers[] = { 3, 2, 5, 1 };

	for (size_t i = 0; i < NUMBERS; i++)
		for (size_t k = 0; k < NUMBERS; k++)
			on_servers(job, (i + k) % 2 ? TUTTI_UPDATE_ADAM : TUTTI_UPDATE_DCASGDA,
			           i == k        ? 3
			           : (i + k) % 3 ? 1001
			                         : 1002,
			           numbers[i], numbers[k]);
}

static void test_servers(void) { on_wires(program_servers, (const int[]){ 5, 0 }); }

static void push_as(tutti *job, tutti_table *t, int worker, float *got)
{
	tutti_update as = tutti_update_defaults();

	as.worker = worker;
	draw(got, COUNT, TUTTI_F32, 9);
	if (tutti_rank(job) == 0)
		CHECK(tutti_table_push(t, got, &as, NULL) == 0);
	meet(job);
	CHECK(tutti_table_pull(t, got, NULL) == 0);
	meet(job);
}

/* A server knows more workers than the job was started with, and than the other servers do. */
static void program_workers(tutti *job)
{
	tutti_table_config c = config_of(TUTTI_UPDATE_DCASGD, TUTTI_F32, COUNT);
	float *a = calloc(COUNT, sizeof *a), *b = calloc(COUNT, sizeof *b);
	tutti_table *t;

	CHECK(tutti_table_open(job, "w", &c, &t) == 0);
	push_around(job, t, TUTTI_F32, COUNT, 1);
	if (tutti_rank(job) == 1) {
		tt_lock(job->job);
		CHECK(tt_table_know(t, 6) == 0);
		tt_unlock(job->job);
		CHECK(tutti_table_save(t, folder) == 0);
	}
	meet(job);
	push_as(job, t, 6, a);
	if (tutti_rank(job) == 2)
		CHECK(tutti_table_load(t, folder) == 0);
	meet(job);
	push_as(job, t, 6, b);
	CHECK(!memcmp(a, b, COUNT * sizeof *a));
	tutti_table_close(t);
	free(a);
	free(b);
}

static void test_workers(void) { on_wires(program_workers, (const int[]){ 3, 0 }); }

/* ---- keys ---- */

/* All push to `n` keys, one after the other, each beginning with another one. */
static void push_keys(tutti *job, tutti_table *t, size_t n, int k)
{
	uint64_t *key = calloc(n, sizeof *key);
	void *delta = calloc(n * t->row, 8);

	for (int rank = 0; rank < tutti_size(job); rank++) {
		for (size_t i = 0; i < n; i++)
			key[i] = key_of((i + (size_t)(rank * k)) % n);
		draw(delta, n * t->row, t->type, k + 3 * rank);
		if (rank == tutti_rank(job))
			CHECK(tutti_table_push_rows(t, key, n, delta, NULL, NULL) == 0);
		meet(job);
	}
	free(key);
	free(delta);
}

static void go_on_with_keys(tutti *job, tutti_table *t, size_t n, void *got)
{
	uint64_t *key = calloc(n + 10, sizeof *key);

	for (size_t i = 0; i < n + 10; i++) /* the last are nobody's */
		key[i] = key_of(i);
	push_keys(job, t, n, 5);
	push_keys(job, t, n, 6);
	CHECK(tutti_table_pull_rows(t, key, n + 10, got, NULL) == 0);
	meet(job);
	free(key);
}

/* Saved by so many servers, loaded by so many others; new keys come in between, which are gone after it. */
static void keys_on_servers(tutti *job, const tutti_table_config *config, size_t n, int before, int after, bool opened)
{
	static const int all[] = { 3, 1, 4, 0, 2 };
	tutti_table_config c = *config;
	size_t bytes = (n + 10) * (size_t)c.row * tt_type_size(c.type);
	char *a = calloc(1, bytes), *b = calloc(1, bytes);
	tutti_table *t;

	c.server = all;
	c.servers = before;
	t = open_table(job, "w", &c);
	push_keys(job, t, n, 1);
	if (tutti_rank(job) == 2)
		CHECK(tutti_table_save(t, folder) == 0);
	meet(job);
	go_on_with_keys(job, t, n, a);
	push_keys(job, t, 3 * n, 7);
	if (before != after) {
		close_table(job, t);
		c.servers = after;
		c.load = opened ? folder : NULL;
		t = open_table(job, "w", &c);
	}
	if (!c.load && tutti_rank(job) == 4)
		CHECK(tutti_table_load(t, folder) == 0);
	meet(job);
	go_on_with_keys(job, t, n, b);
	CHECK(!memcmp(a, b, bytes));
	close_table(job, t);
	free(a);
	free(b);
}

static void program_keys(tutti *job)
{
	static const int numbers[] = { 3, 2, 5, 1 };
	static const tutti_update_rule rules[] = { TUTTI_UPDATE_ADAM, TUTTI_UPDATE_DCASGD, TUTTI_UPDATE_OWN,
		                                   TUTTI_UPDATE_ADD };

	for (size_t i = 0; i < NUMBERS; i++)
		for (size_t k = 0; k < NUMBERS; k++) {
			tutti_table_config c =
				keys_config(rules[(i + k) % TT_COUNT(rules)], TUTTI_F32, 1 + 4 * (i % 2));
			keys_on_servers(job, &c, i == k ? 3 : KEYS, numbers[i], numbers[k], (i + k) % 2);
		}
	const tutti_table_config wide = WITH(tutti_table_keys(TUTTI_I64, 2, tutti_accumulate()), it.count = 5000),
				 half = tutti_table_keys(TUTTI_F16, 7, tutti_accumulate());
	keys_on_servers(job, &wide, KEYS, 2, 2, false);
	keys_on_servers(job, &half, KEYS, 3, 2, true);
}

static void test_keys(void) { on_wires(program_keys, (const int[]){ 5, 0 }); }

/* Each push is to the first keys, and to some that nobody has pushed to: so the room for keys grows while they are
 * saved. */
static void push_new_keys(tutti *job, tutti_table *t, const atomic_bool *done)
{
	enum { NEW = 300 };
	uint64_t key[KEYS + NEW];
	float delta[KEYS + NEW];

	fill(delta, TT_COUNT(delta), 1);
	for (size_t i = 0; i < KEYS; i++)
		key[i] = key_of(i);
	for (size_t k = 0; !*done; k++) {
		for (size_t i = 0; i < NEW; i++)
			key[KEYS + i] = key_of(KEYS + k % 2000 * NEW + i) + (uint64_t)tutti_rank(job);
		CHECK(tutti_table_push_rows(t, key, TT_COUNT(key), delta, NULL, NULL) == 0);
	}
}

/* Value and state of each key are alike, and those of the first keys that are on one server. */
static void check_keys(const tutti_table *t)
{
	struct tt_save *s = NULL;
	const struct tt_saved *key, *w, *sum;

	CHECK(tt_save_open(folder, "w", &s) == 0);
	key = s ? tt_save_find(s, "w.keys") : NULL, w = s ? tt_save_find(s, "w") : NULL,
	sum = s ? tt_save_find(s, "w.own0") : NULL;
	CHECK(key && w && sum && key->is.count >= KEYS && w->is.count == key->is.count &&
	      sum->is.count == key->is.count);
	if (key && w && sum) {
		size_t n = (size_t)key->is.count, first = 0;
		uint64_t *k = calloc(n, sizeof *k);
		float *v = calloc(2 * n, sizeof *v), of[8] = { 0 };
		CHECK(tt_save_read(s, key, 0, n, k) == 0 && tt_save_read(s, w, 0, n, v) == 0 &&
		      tt_save_read(s, sum, 0, n, v + n) == 0);
		CHECK(!memcmp(v, v + n, n * sizeof *v));
		for (size_t i = 0; i < n; i++)
			for (size_t base = 0; base < KEYS && v[i] > 0; base += KEYS / 7)
				if (k[i] == key_of(base)) {
					float *server = &of[k[i] % (uint64_t)t->servers];
					CHECK(*server == 0 || *server == v[i]);
					*server = v[i];
					first++;
				}
		CHECK(first >= 7);
		free(k);
		free(v);
	}
	tt_save_close(s);
}

static void program_keys_pushed(tutti *job)
{
	static const int servers[] = { 0, 3 };
	static atomic_bool done;
	tutti_table_config c = keys_config(TUTTI_UPDATE_OWN, TUTTI_F32, 1);
	float one[KEYS];
	uint64_t key[KEYS];
	tutti_table *t;

	c.server = servers;
	c.servers = 2;
	done = false;
	t = open_table(job, "w", &c);
	for (size_t i = 0; i < KEYS; i++)
		key[i] = key_of(i);
	fill(one, KEYS, 1);
	if (tutti_rank(job) == 1)
		CHECK(tutti_table_push_rows(t, key, KEYS, one, NULL, NULL) == 0);
	meet(job);
	if (tutti_rank(job) != 1)
		push_new_keys(job, t, &done);
	for (int i = 0; i < 6 && tutti_rank(job) == 1; i++) {
		CHECK(tutti_table_save(t, folder) == 0);
		check_keys(t);
		pass_time(TT_MS);
	}
	done |= tutti_rank(job) == 1;
	close_table(job, t);
}

static void test_keys_pushed(void) { on_wires(program_keys_pushed, (const int[]){ 4, 0 }); }

/* What an open round has of keys is gone with them: they have other places after a load. The image of a save is kept
 * while a round changes them. */
static void program_keys_in_rounds(tutti *job)
{
	enum { FEW = 700, MORE = 5000, ROW = 8 };
	tutti_table_config c = keys_config(TUTTI_UPDATE_ADD, TUTTI_F32, ROW);
	float *ones = calloc(MORE * ROW, sizeof *ones), *v = calloc(MORE * ROW, sizeof *v);
	uint64_t *keys = calloc(MORE, sizeof *keys);
	int n = tutti_size(job), rank = tutti_rank(job);
	tutti_table *t;

	c.consistency = (tutti_consistency){ .mode = TUTTI_BSP };
	CHECK(tutti_table_open(job, "w", &c, &t) == 0);
	fill(ones, MORE * ROW, 1);
	for (uint64_t i = 0; i < MORE; i++)
		keys[i] = MORE - i;
	CHECK(tutti_table_push_rows(t, keys, FEW, ones, NULL, NULL) == 0 &&
	      tutti_table_pull_rows(t, keys, FEW, v, NULL) == 0);
	meet(job);
	if (rank == 0)
		CHECK(tutti_table_save(t, folder) == 0);
	else
		CHECK(tutti_table_push_rows(t, keys, MORE, ones, NULL, NULL) == 0);
	meet(job);
	if (rank == 0) {
		CHECK(tutti_table_load(t, folder) == 0);
		CHECK(tutti_table_push_rows(t, keys + 10, FEW, ones, NULL, NULL) == 0);
	}
	CHECK(tutti_table_pull_rows(t, keys, MORE, v, NULL) == 0);
	bool good = true;
	for (int i = 0; i < MORE * ROW; i++)
		good &= v[i] == (float)(n * (i / ROW < FEW) + (i / ROW >= 10 && i / ROW < 10 + FEW));
	CHECK(good);
	meet(job);
	tutti_table_close(t);
	free(ones);
	free(v);
	free(keys);
}

static void test_keys_in_rounds(void) { on_wires(program_keys_in_rounds, (const int[]){ 1, 3, 0 }); }

/* ---- while others push ---- */

static void save_while_pushed(tutti *job, size_t count, tutti_mode mode, unsigned flags)
{
	static const int servers[] = { 0, 3 }, workers[] = { 3, 2, 0 };
	tutti_table_config c = config_of(TUTTI_UPDATE_OWN, TUTTI_F32, count);
	tutti_table *t;

	c.server = servers;
	c.servers = 2;
	c.worker = workers;
	c.workers = 3;
	c.consistency.mode = mode;
	c.flags = flags;
	c.publish_pushes = flags ? 3 : 0;
	enough = false;
	meet(job);
	CHECK(tutti_table_open(job, "w", &c, &t) == 0);
	if (tutti_rank(job) != 1) {
		push_on(job, t, count);
	} else {
		await_push(t, count);
		for (int i = 0; i < 5; i++) {
			CHECK(tutti_table_save(t, folder) == 0);
			check_save(t);
			pass_time(TT_MS);
		}
		enough = true;
	}
	close_table(job, t);
}

static void program_pushed(tutti *job)
{
	size_t large = tt_world || TT_TSAN ? 100000 : 1000003;

	save_while_pushed(job, 900, TUTTI_ASYNC, 0);
	save_while_pushed(job, large, TUTTI_ASYNC, 0);
	save_while_pushed(job, large, TUTTI_ASYNC, TUTTI_TABLE_SNAPSHOTS);
	save_while_pushed(job, large, TUTTI_SSP, 0);
	save_while_pushed(job, 900, TUTTI_BSP, 0);
	save_while_pushed(job, large, TUTTI_BSP, 0);
}

static void test_pushed(void) { on_wires(program_pushed, (const int[]){ 4, 0 }); }

static CU_TestInfo save_tests[] = {
	{ "images", test_images },
	{ "every rule, with its state", test_rules },
	{ "other numbers of servers", test_servers },
	{ "workers that some servers do not know", test_workers },
	{ "keys, on other numbers of servers", test_keys },
	{ "keys while others push", test_keys_pushed },
	{ "keys, in rounds", test_keys_in_rounds },
	{ "while others push", test_pushed },
	CU_TEST_INFO_NULL,
};

static CU_SuiteInfo suites[] = { { "table saves", NULL, NULL, NULL, NULL, save_tests }, CU_SUITE_INFO_NULL };

int main(int argc, char **argv) { return run_in_folders(suites, argc, argv); }
