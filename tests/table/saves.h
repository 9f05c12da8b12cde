/* saves.h - what the tests of tables' saves share: folders that are empty at first, tables of every type and rule, of
 * keys too, and pushes that go on beside a save */
#ifndef TT_TEST_SAVES_H
#define TT_TEST_SAVES_H
#include "tests/harness/folders.h"
#include "table/saving.h"
#include "tests/table/tables.h"
#include <sys/stat.h>

static const uint64_t seeds = TT_TSAN ? 0 : 4; /* a simulated world is one thread */

/* ---- where ---- */

static char folder[96], second[sizeof folder + 8]; /* the second one is in the first */

static inline void sweep(void)
{
	clear_folder(second);
	clear_folder(folder);
}

static inline void path_of(char path[256], const char *file) { snprintf(path, 256, "%.90s/%s", folder, file); }

/* a byte of it, from its end if negative; or its length */
static inline void change_file(const char *file, long at, long cut)
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

/* Each run has its own empty folders. */
static inline void run_swept(struct ranks run)
{
	CU_ASSERT_EQUAL(run_ranks(run), 0);
	sweep();
}

static inline void on_sim(struct ranks run, uint64_t worlds)
{
	for (run.wire = "sim"; run.seed < worlds; run.seed++)
		run_swept(run);
}

static inline void on_real(struct ranks run)
{
	run.wire = "tcp";
	run_swept(run);
	run.wire = "shm";
	run_swept(run);
}

static inline void on_wires(void (*program)(tutti *), const int *sizes)
{
	for (; *sizes; sizes++) {
		struct ranks run = { .size = *sizes, .program = program };
		on_sim(run, seeds);
		on_real(run);
	}
}

static inline int run_in_folders(CU_SuiteInfo *suites, int argc, char **argv)
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

/* ---- tables ---- */

enum { COUNT = 10007 };

static inline void add_up(const tutti_update_piece *p)
{
	float *to = p->to, *sum = p->state[0];
	const float *w = p->w, *d = p->d;

	for (size_t i = 0; i < p->count; i++) {
		sum[i] += d[i];
		to[i] = w[i] + d[i];
	}
}

static inline tutti_table_config config_of(tutti_update_rule rule, tutti_type type, uint64_t count)
{
	tutti_table_config c = tutti_table_rows(type, count, 1, tutti_accumulate());

	c.updater.rule = rule;
	if (rule == TUTTI_UPDATE_OWN) {
		c.updater.own = add_up;
		c.updater.own_states = 1;
		c.updater.flags = TUTTI_SHARED_STATE;
	}
	return c;
}

static inline void draw(void *v, size_t count, tutti_type type, int k)
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
static inline void push_around(tutti *job, tutti_table *t, tutti_type type, size_t count, int k)
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

static inline void go_on(tutti *job, tutti_table *t, tutti_type type, size_t count, void *got)
{
	push_around(job, t, type, count, 5);
	push_around(job, t, type, count, 6);
	CHECK(tutti_table_pull(t, got, NULL) == 0);
	meet(job);
}

/* ---- of keys ---- */

enum { KEYS = 700 };

static inline uint64_t key_of(size_t i) { return (i + 1) * 0x9e3779b97f4a7c15; }

static inline tutti_table_config keys_config(tutti_update_rule rule, tutti_type type, uint64_t row)
{
	tutti_table_config c = config_of(rule, type, 0);

	c.flags = TUTTI_TABLE_KEYS;
	c.row = row;
	return c;
}

/* ---- while others push ---- */

/* Each element of w and of the rule's state is one more after each push. */
static inline bool is_whole(const struct tt_save *s, const char *name, uint64_t first, uint64_t count, float *value)
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

static inline void check_save(const tutti_table *t)
{
	struct tt_save *s = NULL;
	float w = -1, sum = -2;

	CHECK(tt_save_open(folder, "w", &s) == 0);
	for (int i = 0; s && i < t->servers; i++) {
		struct tt_range r = tt_table_range(t, i);
		CHECK(is_whole(s, "w", r.first, r.count, &w) && is_whole(s, "w.own0", r.first, r.count, &sum) &&
		      w == sum && w > 0);
	}
	tt_save_close(s);
}

static atomic_bool enough;

static inline void push_on(tutti *job, tutti_table *t, size_t count)
{
	float *delta = NULL;

	if (tutti_rank(job) % 2)
		/* on one host it is read in place */
		CHECK(tutti_alloc(job, count * sizeof *delta, -1, (void **)&delta) == 0);
	else
		delta = calloc(count, sizeof *delta);
	fill(delta, count, 1);
	while (!enough)
		CHECK(tutti_table_push(t, delta, NULL, NULL) == 0);
	CHECK(tutti_table_finish(t) == 0);
	if (tutti_rank(job) % 2)
		tutti_free(job, delta);
	else
		free(delta);
}

static inline void await_push(tutti_table *t, size_t count)
{
	float *v = calloc(count, sizeof *v);

	while (v[0] == 0 || v[count - 1] == 0) {
		pass_time(TT_MS);
		CHECK(tutti_table_pull(t, v, NULL) == 0);
	}
	free(v);
}
#endif
