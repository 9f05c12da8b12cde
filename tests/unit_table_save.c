/* unit_table_save.c - saving and loading parameter tables: each test on sim (over seeds) and over TCP and shared memory */
#include "cunit_main.h"
#include "folders.h"
#include "ranks.h"
#include "table_save.h"
#include "tables.h"
#include <fcntl.h>
#include <sys/stat.h>

enum { NUMBERS = TT_TSAN ? 2 : 4 };
static const uint64_t seeds = TT_TSAN ? 0 : 4; /* a simulated world is one thread */

static char folder[96], second[sizeof folder + 8]; /* the second one is in the first */

static void sweep(void)
{
	clear_folder(second);
	clear_folder(folder);
}

static void on_wires(void (*program)(tutti *), const int *sizes)
{
	for (; *sizes; sizes++) {
		struct ranks run = { .size = *sizes, .wire = "sim", .program = program };
		for (; run.seed < seeds; run.seed++, sweep())
			CU_ASSERT_EQUAL(run_ranks(run), 0);
		run.wire = "tcp";
		CU_ASSERT_EQUAL(run_ranks(run), 0);
		sweep();
		run.wire = "shm";
		CU_ASSERT_EQUAL(run_ranks(run), 0);
		sweep();
	}
}

/* ---- a disk that gets full (the linker's --wrap) ---- */

static atomic_long disk_room = -1; /* bytes; -1: never */

ssize_t __real_pwrite(int fd, const void *bytes, size_t len, off_t at);
ssize_t __wrap_pwrite(int fd, const void *bytes, size_t len, off_t at);

ssize_t __wrap_pwrite(int fd, const void *bytes, size_t len, off_t at)
{
	if (disk_room < 0 || (disk_room -= (long)len) >= 0)
		return __real_pwrite(fd, bytes, len, at);
	disk_room = 0;
	errno = ENOSPC;
	return -1;
}

static void meet(tutti *job) { CHECK(tutti_barrier(job, NULL) == 0); }

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
	CU_ASSERT_EQUAL_FATAL(tt_image_open((struct tt_array[]){ { a, sizeof *a }, { b, sizeof *b } }, 2, count, &m), 0);
	while (n) {
		size_t first = tt_random_below(&dice, count), touched = tt_random_below(&dice, tt_random_below(&dice, 10) ? 3000 : count + 1);
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

enum { COUNT = 10007 };

static void add_up(const tutti_update_piece *p)
{
	float *to = p->to, *sum = p->state[0];
	const float *w = p->w, *d = p->d;

	for (size_t i = 0; i < p->count; i++) {
		sum[i] += d[i];
		to[i] = w[i] + d[i];
	}
}

static tutti_table_config config_of(tutti_update_rule rule, tutti_type type, uint64_t count)
{
	tutti_table_config c = { .size = sizeof c, .type = type, .count = count, .updater = { .size = sizeof c.updater, .rule = rule } };

	if (rule == TUTTI_UPDATE_OWN) {
		c.updater.own = add_up;
		c.updater.own_states = 1;
		c.updater.flags = TUTTI_SHARED_STATE;
	}
	return c;
}

static void draw(void *v, size_t count, tutti_type type, int k)
{
	for (size_t i = 0; i < count; i++) {
		double x = (double)((i * 7 + (size_t)k * 13) % 101) / 64 - 0.5;
		switch (type) {
		case TUTTI_F32: ((float *)v)[i] = (float)x; break;
		case TUTTI_F64: ((double *)v)[i] = x; break;
		case TUTTI_F16: ((uint16_t *)v)[i] = (uint16_t)(0x3000 + (i + (size_t)k) % 512); break;
		case TUTTI_BF16: ((uint16_t *)v)[i] = (uint16_t)(0x3e00 + (i + (size_t)k) % 128); break;
		case TUTTI_I32: ((int32_t *)v)[i] = (int32_t)(x * 64); break;
		default: ((int64_t *)v)[i] = (int64_t)(x * 64);
		}
	}
}

/* All push, one after the other. */
static void push_around(tutti *job, tutti_table *t, tutti_type type, size_t count, int k)
{
	void *delta = calloc(count, 8);

	for (int rank = 0; rank < tutti_size(job); rank++) {
		draw(delta, count, type, k + 3 * rank);
		if (rank == tutti_rank(job))
			CHECK(tutti_table_push(t, delta, NULL, NULL) == 0);
		meet(job);
	}
	free(delta);
}

static void go_on(tutti *job, tutti_table *t, tutti_type type, size_t count, void *got)
{
	push_around(job, t, type, count, 5);
	push_around(job, t, type, count, 6);
	CHECK(tutti_table_pull(t, got, NULL) == 0);
	meet(job);
}

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
	if (tutti_rank(job) == tutti_size(job) - 1)
		CHECK(tutti_table_save(t, folder) == 0);
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
			on_servers(job, (i + k) % 2 ? TUTTI_UPDATE_ADAM : TUTTI_UPDATE_DCASGDA, i == k ? 3 : (i + k) % 3 ? 1001 : 1002, numbers[i], numbers[k]);
}

static void test_servers(void) { on_wires(program_servers, (const int[]){ 5, 0 }); }

static void push_as(tutti *job, tutti_table *t, int worker, float *got)
{
	tutti_update as = { .size = sizeof as, .set = TUTTI_SET_WORKER, .worker = worker };

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
		tt_enter(job->job);
		CHECK(tt_table_know(t, 6) == 0);
		tt_exit(job->job);
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

enum { KEYS = 700 };

static uint64_t key_of(size_t i) { return (i + 1) * 0x9e3779b97f4a7c15; }

static tutti_table_config keys_config(tutti_update_rule rule, tutti_type type, uint64_t row)
{
	tutti_table_config c = config_of(rule, type, 0);

	c.flags = TUTTI_TABLE_KEYS;
	c.row = row;
	return c;
}

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
	static const tutti_update_rule rules[] = { TUTTI_UPDATE_ADAM, TUTTI_UPDATE_DCASGD, TUTTI_UPDATE_OWN, TUTTI_UPDATE_ADD };

	for (size_t i = 0; i < NUMBERS; i++)
		for (size_t k = 0; k < NUMBERS; k++) {
			tutti_table_config c = keys_config(rules[(i + k) % TT_COUNT(rules)], TUTTI_F32, 1 + 4 * (i % 2));
			keys_on_servers(job, &c, i == k ? 3 : KEYS, numbers[i], numbers[k], (i + k) % 2);
		}
	keys_on_servers(job, &(tutti_table_config){ .size = sizeof(tutti_table_config), .type = TUTTI_I64, .row = 2, .count = 5000, .flags = TUTTI_TABLE_KEYS }, KEYS, 2, 2, false);
	keys_on_servers(job, &(tutti_table_config){ .size = sizeof(tutti_table_config), .type = TUTTI_F16, .row = 7, .flags = TUTTI_TABLE_KEYS }, KEYS, 3, 2, true);
}

static void test_keys(void) { on_wires(program_keys, (const int[]){ 5, 0 }); }

/* Each push is to the first keys, and to some that nobody has pushed to: so the room for keys grows while they are saved. */
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
	key = s ? tt_save_find(s, "w.keys") : NULL, w = s ? tt_save_find(s, "w") : NULL, sum = s ? tt_save_find(s, "w.own0") : NULL;
	CHECK(key && w && sum && key->is.count >= KEYS && w->is.count == key->is.count && sum->is.count == key->is.count);
	if (key && w && sum) {
		size_t n = (size_t)key->is.count, first = 0;
		uint64_t *k = calloc(n, sizeof *k);
		float *v = calloc(2 * n, sizeof *v), of[8] = { 0 };
		CHECK(tt_save_read(s, key, 0, n, k) == 0 && tt_save_read(s, w, 0, n, v) == 0 && tt_save_read(s, sum, 0, n, v + n) == 0);
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

/* What an open round has of keys is gone with them: they have other places after a load. The image of a save is kept while a round changes them. */
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
	for (int i = 0; i < MORE * ROW; i++)
		ones[i] = 1;
	for (uint64_t i = 0; i < MORE; i++)
		keys[i] = MORE - i;
	CHECK(tutti_table_push_rows(t, keys, FEW, ones, NULL, NULL) == 0 && tutti_table_pull_rows(t, keys, FEW, v, NULL) == 0);
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

/* Each element of w and of the rule's state is one more after each push. */
static bool is_whole(const struct tt_save *s, const char *name, uint64_t first, uint64_t count, float *value)
{
	const struct tt_saved *a = tt_save_find(s, name);
	float *v = malloc(count * sizeof *v);
	bool whole = a && v && tt_save_read(s, a, first, count, v) == 0;

	for (uint64_t i = 0; whole && i < count; i++)
		whole = v[i] == v[0];
	if (whole)
		*value = v[0];
	free(v);
	return whole;
}

static void check_save(const tutti_table *t)
{
	struct tt_save *s = NULL;
	float w = -1, sum = -2;

	CHECK(tt_save_open(folder, "w", &s) == 0);
	for (int i = 0; s && i < t->servers; i++) {
		struct tt_range r = tt_table_range(t, i);
		CHECK(is_whole(s, "w", r.first, r.count, &w) && is_whole(s, "w.own0", r.first, r.count, &sum) && w == sum && w > 0);
	}
	tt_save_close(s);
}

static atomic_bool enough;

static void push_on(tutti *job, tutti_table *t, size_t count)
{
	float *delta = NULL;

	if (tutti_rank(job) % 2)
		CHECK(tutti_alloc(job, count * sizeof *delta, -1, (void **)&delta) == 0); /* on one host it is read in place */
	else
		delta = calloc(count, sizeof *delta);
	for (size_t i = 0; i < count; i++)
		delta[i] = 1;
	while (!enough)
		CHECK(tutti_table_push(t, delta, NULL, NULL) == 0);
	CHECK(tutti_table_finish(t) == 0);
	if (tutti_rank(job) % 2)
		tutti_free(job, delta);
	else
		free(delta);
}

static void await_push(tutti_table *t, size_t count)
{
	float *v = calloc(count, sizeof *v);

	while (v[0] == 0 || v[count - 1] == 0) {
		pass_time(TT_MS);
		CHECK(tutti_table_pull(t, v, NULL) == 0);
	}
	free(v);
}

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
	meet(job);
	tutti_table_close(t);
	meet(job);
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

/* A load is of one moment of each server, too: of what is pushed beside it a server has all or nothing, in values and in state. */
static void load_while_pushed(tutti *job, size_t count, tutti_mode mode)
{
	static const int servers[] = { 0, 3 }, workers[] = { 3, 2, 0 };
	tutti_table_config c = config_of(TUTTI_UPDATE_OWN, TUTTI_F32, count);

	c.server = servers;
	c.servers = 2;
	c.worker = workers;
	c.workers = 3;
	c.consistency.mode = mode;
	enough = false;
	meet(job);
	tutti_table *t = open_table(job, "w", &c);
	if (tutti_rank(job) != 1) {
		push_on(job, t, count);
	} else {
		await_push(t, count);
		CHECK(tutti_table_save(t, folder) == 0);
		for (int i = 0; i < 4; i++) {
			CHECK(tutti_table_load(t, folder) == 0);
			pass_time(TT_MS);
			CHECK(tutti_table_save(t, folder) == 0);
			check_save(t);
		}
		enough = true;
	}
	close_table(job, t);
}

static void program_loaded(tutti *job)
{
	size_t large = tt_world || TT_TSAN ? 100000 : 1000003;

	load_while_pushed(job, 900, TUTTI_ASYNC);
	load_while_pushed(job, large, TUTTI_ASYNC);
	load_while_pushed(job, large, TUTTI_SSP);
	load_while_pushed(job, large, TUTTI_BSP);
}

static void test_loaded(void) { on_wires(program_loaded, (const int[]){ 4, 0 }); }

/* ---- what goes wrong ---- */

static void path_of(char path[256], const char *file) { snprintf(path, 256, "%.90s/%s", folder, file); }

static void change_file(const char *file, long at, long cut) /* a byte of it, from its end if negative; or its length */
{
	char path[256], c;
	struct stat s;

	path_of(path, file);
	int fd = open(path, O_RDWR);
	CHECK(fd >= 0 && !fstat(fd, &s));
	at += at < 0 ? s.st_size : 0;
	if (cut)
		CHECK(ftruncate(fd, s.st_size - cut) == 0);
	else
		CHECK(pread(fd, &c, 1, at) == 1 && (c ^= 4, pwrite(fd, &c, 1, at) == 1));
	close(fd);
}

static void refuse(tutti_table *t, int err, const char *a, const char *b, size_t count, const float *was)
{
	float *got = calloc(count, sizeof *got);
	int said = tutti_table_load(t, folder);

	CHECK(said == err);
	CHECK(strstr(tutti_why(), a) && strstr(tutti_why(), b));
	if (said != err || !strstr(tutti_why(), a) || !strstr(tutti_why(), b))
		printf("not %d with %s, %s, but %d: %s\n", err, a, b, said, tutti_why());
	CHECK(tutti_table_pull(t, got, NULL) == 0 && !memcmp(got, was, count * sizeof *got));
	free(got);
}

static void write_foreign(const char *file, tutti_type type, uint64_t count, const void *bytes)
{
	struct tt_tensor of = { .name = "w", .type = type, .dims = 1, .shape = { count } };
	struct tt_tensors_writer w;
	char path[256];

	path_of(path, file);
	CHECK(tt_tensors_begin(&w, path, &of, 1, NULL, 0) == 0 && tt_tensors_put(&w, bytes, count * tt_type_size(type)) == 0 && tt_tensors_end(&w) == 0);
}

#define FIRST "w-00000001-00001-of-00002.safetensors"
#define SECOND "w-00000001-00002-of-00002.safetensors"

static void program_damaged(tutti *job)
{
	static const int servers[] = { 1, 0 };
	tutti_table_config c = config_of(TUTTI_UPDATE_ADAM, TUTTI_F32, COUNT);
	float *was = calloc(COUNT, sizeof *was), *ones = calloc(COUNT, sizeof *ones);
	double *wide = calloc(COUNT, sizeof *wide);
	char path[256];
	tutti_table *t;

	c.server = servers;
	c.servers = 2;
	CHECK(tutti_table_open(job, "w", &c, &t) == 0);
	push_around(job, t, TUTTI_F32, COUNT, 1);
	if (tutti_rank(job) == 0) {
		CHECK(tutti_table_load(t, folder) == -ENOENT && strstr(tutti_why(), "w.safetensors.index.json"));
		CHECK(tutti_table_load(t, NULL) == -EINVAL && tutti_table_load(t, "/nowhere/at/all") == -ENOENT);
		CHECK(tutti_table_save(t, NULL) == -EINVAL && tutti_table_save(t, "/nowhere/at/all") == -ENOENT && strstr(tutti_why(), "/nowhere/at/all"));
		CHECK(tutti_table_save(t, folder) == 0);
		push_around(job, t, TUTTI_F32, COUNT, 2);
		CHECK(tutti_table_pull(t, was, NULL) == 0);
		change_file(SECOND, -5, 0);
		refuse(t, -EBADMSG, SECOND, "damaged: bytes", COUNT, was);
		change_file(SECOND, -5, 0);
		change_file(FIRST, 40, 0);
		refuse(t, -EBADMSG, FIRST, "checksum", COUNT, was);
		change_file(FIRST, 40, 0);
		change_file(FIRST, 0, 1);
		refuse(t, -EBADMSG, FIRST, "cut off", COUNT, was);
		path_of(path, SECOND);
		CHECK(unlink(path) == 0);
		refuse(t, -EBADMSG, FIRST, "cut off", COUNT, was);
		path_of(path, FIRST);
		CHECK(unlink(path) == 0);
		refuse(t, -ENOENT, FIRST, "cannot read", COUNT, was);
		path_of(path, "w.safetensors.index.json");
		CHECK(unlink(path) == 0);
		refuse(t, -ENOENT, "index.json", "cannot read", COUNT, was);
		write_foreign("w.safetensors", TUTTI_F32, COUNT - 1, was);
		refuse(t, -EINVAL, "w.safetensors", "10006 elements of F32, and the table 10007 of F32", COUNT, was);
		write_foreign("w.safetensors", TUTTI_F64, COUNT, wide);
		refuse(t, -EINVAL, "w.safetensors", "elements of F64", COUNT, was);
		for (int i = 0; i < COUNT; i++)
			ones[i] = 1;
		write_foreign("w.safetensors", TUTTI_F32, COUNT, ones);
		CHECK(tutti_table_load(t, folder) == 0 && tutti_table_pull(t, was, NULL) == 0 && !memcmp(was, ones, COUNT * sizeof *was));
	} else {
		push_around(job, t, TUTTI_F32, COUNT, 2);
	}
	meet(job);
	tutti_table_close(t);
	free(was);
	free(ones);
	free(wide);
}

static void test_damaged(void) { on_wires(program_damaged, (const int[]){ 2, 3, 0 }); }

static int count_files(void)
{
	DIR *dir = opendir(folder);
	int n = 0;

	for (struct dirent *e; dir && (e = readdir(dir));)
		n += *e->d_name == 'w';
	if (dir)
		closedir(dir);
	return n;
}

/* A save for which there is no room: nothing of it stays, the one before is there, and pushes go on. */
static void program_full(tutti *job)
{
	enum { MORE = 100000 };
	tutti_table_config c = config_of(TUTTI_UPDATE_OWN, TUTTI_F32, MORE);
	float *v = calloc(MORE, sizeof *v);
	tutti_table *t = open_table(job, "w", &c);

	fill(v, MORE, 1);
	if (!tutti_rank(job)) {
		CHECK(tutti_table_push(t, v, NULL, NULL) == 0 && tutti_table_save(t, folder) == 0);
		CHECK(tutti_table_push(t, v, NULL, NULL) == 0);
		for (int i = 0; i < 4; i++) {
			disk_room = (const long[]){ 0, 1000, 300000, 2 * MORE * 4 + 900 }[i]; /* with the last, all but the index */
			CHECK(tutti_table_save(t, folder) == -ENOSPC && strstr(tutti_why(), folder));
			CHECK(i == 3 || strstr(tutti_why(), "table \"w\", rank "));
			disk_room = -1;
			CHECK(tutti_table_push(t, v, NULL, NULL) == 0);
		}
		CHECK(tutti_table_load(t, folder) == 0 && tutti_table_pull(t, v, NULL) == 0 && all_are(v, MORE, 1));
		CHECK(tutti_table_save(t, folder) == 0 && count_files() == 1 + t->servers);
	}
	close_table(job, t);
	free(v);
}

static void test_full(void) { on_wires(program_full, (const int[]){ 2, 0 }); }

static void refuse_keys(tutti_table *t, int err, const char *a, const char *b, float was)
{
	uint64_t key = key_of(0);
	float got = 0;
	int said = tutti_table_load(t, folder);

	CHECK(said == err && strstr(tutti_why(), a) && strstr(tutti_why(), b));
	if (said != err || !strstr(tutti_why(), a) || !strstr(tutti_why(), b))
		printf("not %d with %s, %s, but %d: %s\n", err, a, b, said, tutti_why());
	CHECK(tutti_table_pull_rows(t, &key, 1, &got, NULL) == 0 && got == was);
}

static void write_keys(const uint64_t *key, uint64_t keys, tutti_type type, const void *value, uint64_t values)
{
	struct tt_tensor of[] = { { .name = "w.keys", .type = TUTTI_I64, .dims = 1, .shape = { keys } }, { .name = "w", .type = type, .dims = 1, .shape = { values } } };
	struct tt_tensors_writer w;
	char path[256];

	path_of(path, "w.safetensors");
	CHECK(tt_tensors_begin(&w, path, of, 2, NULL, 0) == 0 && tt_tensors_put(&w, key, keys * 8) == 0);
	CHECK(tt_tensors_put(&w, value, values * tt_type_size(type)) == 0 && tt_tensors_end(&w) == 0);
}

static void damage_keys(tutti_table *t)
{
	uint64_t key[] = { key_of(0), key_of(1), key_of(2), key_of(1) };
	float value[] = { 1, 2, 3, 4 };
	char path[256];

	CHECK(tutti_table_push_rows(t, key, 3, value, NULL, NULL) == 0);
	refuse_keys(t, -ENOENT, "w.safetensors.index.json", "cannot read", 1);
	write_keys(key, 4, TUTTI_F32, value, 4);
	refuse_keys(t, -EBADMSG, "w.safetensors", "is there twice, in row 1 and in row 3", 1);
	write_keys(key, 3, TUTTI_F32, value, 4);
	refuse_keys(t, -EINVAL, "w.safetensors", "4 elements of F32, and the table 3 of F32", 1);
	write_keys(key, 2, TUTTI_F64, value, 2);
	refuse_keys(t, -EINVAL, "w.safetensors", "elements of F64", 1);
	write_foreign("w.safetensors", TUTTI_F32, 3, value);
	refuse_keys(t, -EINVAL, "w.safetensors", "has no \"w.keys\"", 1);
	value[0] = 7;
	write_keys(key, 3, TUTTI_F32, value, 3);
	CHECK(tutti_table_load(t, folder) == 0 && tutti_table_pull_rows(t, key, 3, value, NULL) == 0 && value[0] == 7 && value[1] == 2 && value[2] == 3);
	CHECK(tutti_table_save(t, folder) == 0 && tutti_table_push_rows(t, key, 1, value, NULL, NULL) == 0);
	for (int at = 1; at <= 9; at += 8) { /* a value, and a key */
		change_file(SECOND, -at, 0);
		refuse_keys(t, -EBADMSG, SECOND, "damaged: bytes", 14);
		change_file(SECOND, -at, 0);
	}
	change_file(FIRST, 0, 3);
	refuse_keys(t, -EBADMSG, FIRST, "cut off", 14);
	path_of(path, FIRST);
	CHECK(unlink(path) == 0);
	refuse_keys(t, -ENOENT, FIRST, "cannot read", 14);
	CHECK(tutti_table_save(t, folder) == 0);
}

static void program_damaged_keys(tutti *job)
{
	tutti_table_config c = keys_config(TUTTI_UPDATE_ADD, TUTTI_F32, 1), rows = config_of(TUTTI_UPDATE_ADD, TUTTI_F32, 3);
	tutti_table *t = open_table(job, "w", &c);

	if (!tutti_rank(job))
		damage_keys(t);
	close_table(job, t);
	t = open_table(job, "w", &rows);
	if (!tutti_rank(job))
		CHECK(tutti_table_load(t, folder) == -EINVAL && strstr(tutti_why(), "is of a table with keys, and this one has rows"));
	close_table(job, t);
}

static void test_damaged_keys(void) { on_wires(program_damaged_keys, (const int[]){ 2, 0 }); }

/* Another rule, other flags, another table; a folder that cannot be written. */
static void open_and_refuse(tutti *job, const char *name, tutti_update_rule rule, unsigned flags, const char *why)
{
	tutti_table_config c = config_of(rule, TUTTI_F32, 100);
	tutti_table *t;

	c.updater.flags = flags;
	CHECK(tutti_table_open(job, name, &c, &t) == 0);
	CHECK(tutti_table_load(t, folder) == -EINVAL && strstr(tutti_why(), why));
	tutti_table_close(t);
	c.load = folder;
	CHECK(tutti_table_open(job, name, &c, &t) == -EINVAL && strstr(tutti_why(), why));
}

static void program_unfit(tutti *job)
{
	tutti_table_config c = config_of(TUTTI_UPDATE_ADAGRAD, TUTTI_F32, 100);
	char path[256], other[256];
	tutti_table *t;

	CHECK(tutti_table_open(job, "w", &c, &t) == 0);
	CHECK(tutti_table_save(t, folder) == 0);
	tutti_table_close(t);
	open_and_refuse(job, "w", TUTTI_UPDATE_ADD, 0, "by the rule adagrad, and the table has add");
	open_and_refuse(job, "w", TUTTI_UPDATE_ADAGRAD, TUTTI_SHARED_STATE, "\"w.G\"");
	path_of(path, "w.safetensors.index.json");
	path_of(other, "v.safetensors.index.json");
	CHECK(rename(path, other) == 0);
	open_and_refuse(job, "v", TUTTI_UPDATE_ADAGRAD, 0, "no array \"v\"");
	c.count = 7;
	CHECK(tutti_table_open(job, "a/b", &c, &t) == 0);
	CHECK(tutti_table_save(t, folder) == -EINVAL && strstr(tutti_why(), "cannot name a save"));
	tutti_table_close(t);
}

static void test_unfit(void) { on_wires(program_unfit, (const int[]){ 1, 0 }); }

/* One of two callers may be refused; what is committed is whole, and then it can be saved again. */
static void program_two_at_once(tutti *job)
{
	tutti_table_config c = config_of(TUTTI_UPDATE_OWN, TUTTI_F32, 50000);
	float *ones = calloc(c.count, sizeof *ones);
	tutti_table *t;
	int err;

	for (uint64_t i = 0; i < c.count; i++)
		ones[i] = 1;
	CHECK(tutti_table_open(job, "w", &c, &t) == 0);
	CHECK(tutti_table_push(t, ones, NULL, NULL) == 0);
	meet(job);
	for (int i = 0; i < 5; i++) {
		err = tutti_table_save(t, folder);
		CHECK(err == 0 || err == -EBUSY || err == -EEXIST || err == -ENOENT);
	}
	meet(job);
	if (!tutti_rank(job))
		CHECK(tutti_table_save(t, folder) == 0);
	meet(job);
	check_save(t);
	err = tutti_table_load(t, folder);
	CHECK(err == 0 || err == -EBUSY);
	meet(job);
	tutti_table_close(t);
	free(ones);
}

static void test_two_at_once(void) { on_wires(program_two_at_once, (const int[]){ 3, 0 }); }

/* Two load different saves while a third saves: each load is of all servers, or of none. */
static atomic_int loaded; /* how often */

static void program_loads(tutti *job)
{
	tutti_table_config c = config_of(TUTTI_UPDATE_ASSIGN, TUTTI_F32, 50000);
	float *v = calloc(c.count, sizeof *v);
	int rank = tutti_rank(job), err = 0;
	tutti_table *t;

	CHECK(tutti_table_open(job, "w", &c, &t) == 0);
	for (int k = 1; !rank && k <= 2; k++) {
		fill(v, c.count, (float)k);
		CHECK(tutti_table_assign(t, v, NULL) == 0 && tutti_table_save(t, k == 1 ? folder : second) == 0);
	}
	for (int i = 0; i < 6; i++) {
		meet(job);
		if (rank == 0)
			pass_time(tt_world ? tt_sim_chance(2 * TT_MS) : (uint64_t)i * TT_MS / 4);
		err = rank < 2 ? tutti_table_load(t, rank ? folder : second) : tutti_table_save(t, second);
		CHECK(err == 0 || err == -EBUSY || err == -EEXIST || err == -ENOENT);
		loaded += rank < 2 && !err;
		meet(job);
		CHECK(tutti_table_pull(t, v, NULL) == 0);
		for (uint64_t k = 1; k < c.count; k++)
			v[0] = v[k] == v[0] ? v[0] : -1;
		CHECK(v[0] == 1 || v[0] == 2);
	}
	meet(job);
	tutti_table_close(t);
	free(v);
}

static void test_loads(void)
{
	loaded = 0;
	on_wires(program_loads, (const int[]){ 3, 0 });
	CU_ASSERT(loaded > 0);
}

/* What a server refuses whoever asks. */
static void program_folders(tutti *job)
{
	static const char *const folders[] = { "", ".", "tmp", "../tmp" };
	tutti_table_config c = config_of(TUTTI_UPDATE_ADD, TUTTI_F32, 1000);
	tutti_table *t;

	CHECK(tutti_table_open(job, "w", &c, &t) == 0);
	meet(job);
	for (size_t i = 0; i < TT_COUNT(folders) && !tutti_rank(job); i++)
		for (int what = TT_FILE_SAVE; what <= TT_FILE_READ; what++) {
			struct tt_order o = { .what = (enum tt_file_what)what, .folder = folders[i], .generation = 1, .workers = 2 };
			char why[64];
			snprintf(why, sizeof why, "\"%s\" is no absolute path", folders[i]);
			CHECK(tt_clerk_order(t, "asked", &o, NULL) == -EINVAL && strstr(tutti_why(), why));
		}
	meet(job);
	tutti_table_close(t);
}

static void test_folders(void) { on_wires(program_folders, (const int[]){ 2, 0 }); }

/* Values by others, without state: that is as at the start, too. */
static void program_stateless(tutti *job)
{
	tutti_table_config c = config_of(TUTTI_UPDATE_ADAM, TUTTI_F32, COUNT);
	float *a = calloc(COUNT, sizeof *a), *b = calloc(COUNT, sizeof *b);
	tutti_table *t, *fresh;

	draw(a, COUNT, TUTTI_F32, 4);
	if (!tutti_rank(job))
		write_foreign("w.safetensors", TUTTI_F32, COUNT, a);
	CHECK(tutti_table_open(job, "w", &c, &t) == 0 && tutti_table_open(job, "fresh", &c, &fresh) == 0);
	push_around(job, t, TUTTI_F32, COUNT, 1);
	if (!tutti_rank(job))
		CHECK(tutti_table_load(t, folder) == 0 && tutti_table_assign(fresh, a, NULL) == 0);
	meet(job);
	go_on(job, t, TUTTI_F32, COUNT, a);
	go_on(job, fresh, TUTTI_F32, COUNT, b);
	CHECK(!memcmp(a, b, COUNT * sizeof *a));
	tutti_table_close(t);
	tutti_table_close(fresh);
	free(a);
	free(b);
}

static void test_stateless(void) { on_wires(program_stateless, (const int[]){ 2, 0 }); }

/* ---- holds ---- */

static int change_nothing(struct tutti_table *t, int worker, const struct tt_pusher *p, void *arg)
{
	(void)t, (void)worker, (void)p, (void)arg;
	return 0;
}

/* Its server has the first piece of a push of that rank, and gets no other. */
static void begin_push(tutti_table *t, int rank)
{
	tt_enter(t->job);
	CHECK(tt_table_take(t, rank, TT_PUSH_FIRST, NULL, change_nothing, NULL) == 0);
	tt_exit(t->job);
}

/* A push that does not go on: a save fails with its name, a load ends it; what others push meanwhile waits, and nobody is cut off. */
static void program_stuck(tutti *job)
{
	static const int servers[] = { 0 };
	static atomic_bool done;
	tutti_table_config c = config_of(TUTTI_UPDATE_ADD, TUTTI_F32, 90000);
	float *v = calloc(c.count, sizeof *v);
	tutti_table *t;

	done = false;
	c.server = servers;
	c.servers = 1;
	t = open_table(job, "w", &c);
	if (tutti_rank(job) == 2)
		CHECK(tutti_table_save(t, folder) == 0);
	meet(job);
	if (tutti_rank(job) == 0)
		begin_push(t, 1);
	meet(job);
	if (tutti_rank(job) == 2) {
		CHECK(tutti_table_save(t, folder) == -ETIMEDOUT && strstr(tutti_why(), "rank 1 is in the middle of a push"));
		CHECK(tutti_table_load(t, folder) == 0);
		CHECK(tutti_table_save(t, folder) == 0);
		done = true;
	}
	for (; !done; pass_time(TT_MS))
		CHECK(tutti_rank(job) != 3 || tutti_table_push(t, v, NULL, NULL) == 0);
	close_table(job, t);
	free(v);
}

static void test_stuck(void)
{
	struct ranks run = { .size = 4, .wire = "sim", .deadline_ms = 600, .program = program_stuck };

	for (; run.seed < seeds; run.seed++, sweep())
		CU_ASSERT_EQUAL(run_ranks(run), 0);
	CU_ASSERT_EQUAL(run_real_ranks(run), 0);
	sweep();
}

static void stay_held(struct tutti_table *t, int err) { (void)t, (void)err; }

/* A hold of many deadlines: who waits for it is told, and cuts nobody off; not even who has given up its push. */
static void program_held(tutti *job)
{
	static const int servers[] = { 0 };
	tutti_table_config c = config_of(TUTTI_UPDATE_ADD, TUTTI_F32, 90000);
	float *v = calloc(c.count, sizeof *v);
	tutti_table *t;
	tutti_op op;

	c.server = servers;
	c.servers = 1;
	t = open_table(job, "w", &c);
	fill(v, c.count, 1);
	if (tutti_rank(job) == 0) {
		tt_enter(job->job);
		tt_shard_hold(t, job->job->deadline, stay_held);
		tt_exit(job->job);
	}
	meet(job);
	if (tutti_rank(job) == 0) {
		pass_time(1200 * TT_MS);
		tt_enter(job->job);
		tt_shard_release(t);
		tt_exit(job->job);
	} else if (tutti_rank(job) == 1) {
		CHECK(tutti_table_push(t, v, NULL, NULL) == 0);
	} else {
		CHECK(tutti_table_push(t, v, NULL, &op) == 0);
		pass_time(50 * TT_MS);
		CHECK(tutti_cancel(&op) == 0 || tutti_test(&op) == -ECANCELED);
	}
	while (tutti_barrier(job, NULL) == -ETIMEDOUT)
		continue;
	CHECK(tutti_table_pull(t, v, NULL) == 0 && (v[0] == 1 || v[0] == 2));
	close_table(job, t);
	free(v);
}

static void test_held(void)
{
	struct ranks run = { .size = 3, .wire = "sim", .deadline_ms = 300, .program = program_held };

	for (; run.seed < seeds; run.seed++)
		CU_ASSERT_EQUAL(run_ranks(run), 0);
	CU_ASSERT_EQUAL(run_real_ranks(run), 0);
}

/* ---- who closes, dies, comes again ---- */

struct saver {
	tutti_table *table;
	int err;
};

static void save_aside(void *arg)
{
	struct saver *s = arg;

	s->err = tutti_table_save(s->table, folder);
}

/* By another thread of the rank that saves it: the save comes first. */
static void program_closed_here(tutti *job)
{
	tutti_table_config c = config_of(TUTTI_UPDATE_OWN, TUTTI_F32, 400000);
	struct saver s = { .err = 1 };
	struct tt_task *thread;
	bool begun = false;

	CHECK(tutti_table_open(job, "w", &c, &s.table) == 0);
	meet(job);
	if (tutti_rank(job) == 1) {
		CHECK(tt_spawn(save_aside, &s, &thread) == 0);
		while (!begun) {
			tt_enter(job->job);
			begun = s.table->filing || s.err != 1;
			tt_exit(job->job);
			pass_time(TT_MS / 16);
		}
		tutti_table_close(s.table);
		tt_join(thread);
		CHECK(s.err == 0);
	}
	meet(job);
	tutti_table_close(tutti_rank(job) == 1 ? NULL : s.table);
}

static void test_closed_here(void) { on_wires(program_closed_here, (const int[]){ 2, 0 }); }

/* A server closes the table and opens it again: who has reopened it has the new one. */
static void program_reopened(tutti *job)
{
	static const int server[] = { 0 };
	tutti_table_config c = config_of(TUTTI_UPDATE_ADD, TUTTI_F32, 100);
	float v[100] = { 1 };
	tutti_table *t;
	int err;

	c.servers = 1;
	c.server = server;
	CHECK(tutti_table_open(job, "w", &c, &t) == 0);
	meet(job);
	for (int i = 0; i < 50; i++) {
		if (tutti_rank(job) == 0) {
			pass_time(tt_world ? tt_sim_chance(TT_MS) : TT_MS / 4);
			tutti_table_close(t);
			CHECK(tutti_table_open(job, "w", &c, &t) == 0);
		} else {
			while (!(err = tutti_table_push(t, v, NULL, NULL)))
				continue;
			CHECK(err == -ESTALE);
			while ((err = tutti_table_reopen(t)) == -ESTALE)
				pass_time(TT_MS / 32);
			CHECK(err == 0 && tutti_table_push(t, v, NULL, NULL) == 0);
		}
		meet(job);
	}
	tutti_table_close(t);
}

static void test_reopened(void) { on_wires(program_reopened, (const int[]){ 2, 0 }); }

/* One who has made all read, and goes before they take it. */
static void program_asker_killed(tutti *job)
{
	static const int servers[] = { 0, 1 };
	tutti_table_config c = config_of(TUTTI_UPDATE_ASSIGN, TUTTI_F32, 5000);
	float *v = calloc(c.count, sizeof *v);
	struct tt_order o = { .what = TT_FILE_READ, .folder = folder };
	tutti_table *t;
	int err;

	c.server = servers;
	c.servers = 2;
	CHECK(tutti_table_open(job, "w", &c, &t) == 0);
	if (!tutti_rank(job))
		CHECK(tutti_table_save(t, folder) == 0);
	meet(job);
	if (tutti_rank(job) == 2) {
		CHECK(tt_clerk_order(t, "read", &o, NULL) == 0);
		fill(v, c.count, 1);
		CHECK(tutti_table_assign(t, v, NULL) == 0);
		CHECK(tutti_table_load(t, folder) == -EBUSY && strstr(tutti_why(), "for rank 2"));
		CHECK(tutti_table_save(t, folder) == -EBUSY && strstr(tutti_why(), "for rank 2"));
		tt_sim_kill(2, 0);
		pass_time(TT_MS);
	}
	if (tutti_rank(job) == 0) {
		for (; v[0] == 0; pass_time(20 * TT_MS))
			CHECK(tutti_table_pull(t, v, NULL) == 0);
		pass_time(tt_sim_chance(100 * TT_MS));
		while ((err = tutti_table_save(t, folder)) == -EBUSY)
			pass_time(20 * TT_MS);
		CHECK(err == 0 && tutti_table_pull(t, v, NULL) == 0 && v[0] == 1 && v[c.count - 1] == 1);
		CHECK(tutti_table_load(t, folder) == 0);
	}
	pass_time(3000 * TT_MS);
	free(v);
	tutti_table_close(t);
}

static void test_asker_killed(void)
{
	for (uint64_t seed = 0; seed < 2 * seeds; seed++, sweep())
		CU_ASSERT_EQUAL(run_ranks((struct ranks){ .size = 3, .wire = "sim", .seed = seed, .deadline_ms = 1000, .program = program_asker_killed }), 0);
}

static void program_closed(tutti *job) /* by a server, while it is being saved */
{
	tutti_table_config c = config_of(TUTTI_UPDATE_OWN, TUTTI_F32, 400000);
	tutti_table *t;
	int err = 0;

	CHECK(tutti_table_open(job, "w", &c, &t) == 0);
	meet(job);
	if (tutti_rank(job)) {
		while (!err)
			err = tutti_table_save(t, folder);
		CHECK(err == -ESTALE && strstr(tutti_why(), "rank 0"));
		err = tutti_table_load(t, folder);
		CHECK(err == -ESTALE || err == -ENOENT); /* nothing was saved in time */
	} else {
		pass_time(tt_world ? TT_MS / 2 : 30 * TT_MS);
	}
	tutti_table_close(tutti_rank(job) ? NULL : t);
	meet(job);
	tutti_table_close(tutti_rank(job) ? t : NULL);
}

static void test_closed(void) { on_wires(program_closed, (const int[]){ 2, 0 }); }

/* A worker dies in the middle of a push, or a server does: a save of the others ends. */
static void program_killed(tutti *job)
{
	static const int servers[] = { 0, 1 };
	tutti_table_config c = config_of(TUTTI_UPDATE_OWN, TUTTI_F32, 100000);
	float *ones = calloc(c.count, sizeof *ones);
	int victim = 1 + (int)(sim_run_now->seed % 2), err = 0;
	tutti_table *t;

	c.server = servers;
	c.servers = 2;
	fill(ones, c.count, 1);
	CHECK(tutti_table_open(job, "w", &c, &t) == 0);
	meet(job);
	if (tutti_rank(job) == 0)
		tt_sim_kill(victim, 2 * TT_MS + tt_sim_chance(10 * TT_MS));
	if (tutti_rank(job) == 3) {
		for (int i = 0; !err && i < 10; i++) {
			err = tutti_table_save(t, folder);
			pass_time(3 * TT_MS / 2);
		}
		CHECK(victim == 1 ? (err == -ECONNRESET || err == -ETIMEDOUT) && strstr(tutti_why(), "rank 1") : err == 0);
	} else {
		for (int i = 0; !err && i < 60; i++)
			err = tutti_table_push(t, ones, NULL, NULL);
	}
	pass_time(4000 * TT_MS);
	free(ones);
	tutti_table_close(t);
}

static void test_killed(void)
{
	for (uint64_t seed = 0; seed < 10 * seeds; seed++, sweep())
		CU_ASSERT_EQUAL(run_ranks((struct ranks){ .size = 4, .wire = "sim", .seed = seed, .deadline_ms = 1000, .program = program_killed }), 0);
}

/* The last rank, a server, leaves and comes again: it goes on from its last save, the others from where they are. */
static void program_again(tutti *job)
{
	int rank = tutti_rank(job), last = tutti_size(job) - 1;
	tutti_table_config c = config_of(TUTTI_UPDATE_OWN, TUTTI_F32, 90000);
	float *v = calloc(c.count, sizeof *v);
	tutti *again = NULL;
	tutti_table *t;
	int err = 0;

	for (uint64_t i = 0; i < c.count; i++)
		v[i] = 1;
	CHECK(tutti_table_open(job, "w", &c, &t) == 0);
	if (rank == 1) {
		CHECK(tutti_table_push(t, v, NULL, NULL) == 0 && tutti_table_save(t, folder) == 0);
		CHECK(tutti_table_push(t, v, NULL, NULL) == 0);
	}
	meet(job);
	if (rank == last) {
		CHECK(join_again(job, last, &again) == 0);
		c.load = folder;
		CHECK(tutti_table_open(again, "w", &c, &t) == 0);
		pass_time(300 * TT_MS); /* others may come to it */
		tutti_leave(again);
	} else if (rank == 1) {
		while (!(err = tutti_table_pull(t, v, NULL)))
			pass_time(TT_MS);
		CHECK(err == -ENOTCONN || err == -ECONNRESET || err == -ESTALE);
		while ((err = tutti_table_reopen(t)) == -ENOTCONN || err == -ECONNRESET)
			pass_time(TT_MS);
		CHECK(err == 0 && tutti_table_pull(t, v, NULL) == 0);
		CHECK(v[0] == 2 && v[tt_table_range(t, last).first - 1] == 2 && v[tt_table_range(t, last).first] == 1 && v[c.count - 1] == 1);
		for (uint64_t i = 0; i < c.count; i++)
			v[i] = 1;
		CHECK(tutti_table_push_pull(t, v, NULL, v, NULL) == 0 && v[0] == 3 && v[c.count - 1] == 2);
	} else {
		pass_time(200 * TT_MS);
	}
	free(v);
	pass_time(500 * TT_MS);
	if (rank != last)
		tutti_table_close(t);
}

static void test_again(void) { on_wires(program_again, (const int[]){ 3, 0 }); }

static CU_TestInfo save_tests[] = {
	{ "images", test_images },
	{ "every rule, with its state", test_rules },
	{ "other numbers of servers", test_servers },
	{ "workers that some servers do not know", test_workers },
	{ "keys, on other numbers of servers", test_keys },
	{ "keys while others push", test_keys_pushed },
	{ "keys, in rounds", test_keys_in_rounds },
	{ "while others push", test_pushed },
	{ "loaded while others push", test_loaded },
	{ "damaged and foreign files", test_damaged },
	{ "damaged and foreign files of keys", test_damaged_keys },
	{ "a disk without room", test_full },
	{ "other rules, other tables", test_unfit },
	{ "values without state", test_stateless },
	{ "two at once", test_two_at_once },
	{ "loads at once", test_loads },
	{ "folders that are none", test_folders },
	{ "a push that does not go on", test_stuck },
	{ "held for long", test_held },
	{ "closed meanwhile", test_closed },
	{ "closed by another thread", test_closed_here },
	{ "closed and opened again", test_reopened },
	{ "killed meanwhile", test_killed },
	{ "killed between its read and its take", test_asker_killed },
	{ "a server comes again", test_again },
	CU_TEST_INFO_NULL,
};

static CU_SuiteInfo suites[] = { { "table saves", NULL, NULL, NULL, NULL, save_tests }, CU_SUITE_INFO_NULL };

int main(int argc, char **argv)
{
	const char *base = getenv("TMPDIR");

	snprintf(folder, sizeof folder, "%.40s/saves-XXXXXX", base && strlen(base) < 40 ? base : "/tmp");
	if (!mkdtemp(folder)) {
		perror(folder);
		return 99;
	}
	snprintf(second, sizeof second, "%s/second", folder);
	if (mkdir(second, 0700)) {
		perror(second);
		return 99;
	}
	int result = run_suites(suites, argc, argv);
	sweep();
	rmdir(second);
	rmdir(folder);
	return result;
}
