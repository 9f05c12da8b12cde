/* unit_table_load.c - parameter tables out of files: while others push, at once with other loads, out of damaged files
 * and those of others: each test on sim (over seeds) and over TCP and shared memory */
#include "engine/engine.h"
#include "file/file.h"
#include "member/member.h"
#include "table/table_private.h"
#include "tests/harness/cunit_main.h"
#include "tests/table/saves.h"
#include "transport/sim/sim.h"

/* ---- what tables map (the linker's --wrap) ---- */

static atomic_long mapped; /* bytes */

char *__real_tt_pages_map(size_t);
char *__real_tt_pages_resize(char *, size_t, size_t);
void __real_tt_pages_unmap(char *, size_t);
char *__wrap_tt_pages_map(size_t);
char *__wrap_tt_pages_resize(char *, size_t, size_t);
void __wrap_tt_pages_unmap(char *, size_t);

char *__wrap_tt_pages_map(size_t bytes)
{
	char *at = __real_tt_pages_map(bytes);

	mapped += at ? (long)bytes : 0;
	return at;
}

char *__wrap_tt_pages_resize(char *was, size_t bytes, size_t now)
{
	char *at = __real_tt_pages_resize(was, bytes, now);

	mapped += at ? (long)now - (long)bytes : 0;
	return at;
}

void __wrap_tt_pages_unmap(char *at, size_t bytes)
{
	mapped -= at ? (long)bytes : 0;
	__real_tt_pages_unmap(at, bytes);
}

static void all_is_given_back(void) { CU_ASSERT_EQUAL(mapped, 0); }

/* ---- while others push or load ---- */

/* A load is of one moment of each server, too: of what is pushed beside it a server has all or nothing, in values and
 * in state. */
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
		CHECK(all_are(v, c.count, 1) || all_are(v, c.count, 2));
	}
	meet(job);
	tutti_table_close(t);
	free(v);
}

/* A save whose files were written, some perhaps before a load and some behind it, is none. */
static void program_saved_across(tutti *job)
{
	tutti_table_config c = config_of(TUTTI_UPDATE_ASSIGN, TUTTI_F32, COUNT);
	struct tt_order o = { .what = TT_FILE_SAVE, .folder = folder, .generation = 7 },
			count = { .what = TT_FILE_COUNT, .folder = "" };
	struct tt_order read = { .what = TT_FILE_READ, .folder = second },
			drop = { .what = TT_FILE_DROP, .folder = "" };
	uint32_t number;
	tutti_table *t = open_table(job, "w", &c);

	if (tutti_rank(job) == 0) {
		CHECK(tutti_table_save(t, second) == 0);
		CHECK(tt_table_io_order(t, "save", &o, NULL) == 0);
		CHECK(tt_table_io_order(t, "save", &count, NULL) == 0 && count.loads == o.loads);
		CHECK(tt_table_io_order(t, "load", &read, &number) == 0 &&
		      tt_table_io_order(t, "save", &count, NULL) == 0 && count.loads == o.loads + 3);
		drop.generation = number;
		CHECK(tt_table_io_order(t, "load", &drop, NULL) == 0 &&
		      tt_table_io_order(t, "save", &count, NULL) == 0 && count.loads == o.loads);
		CHECK(tutti_table_load(t, second) == 0);
		CHECK(tt_table_io_order(t, "save", &count, NULL) == 0 && count.loads == o.loads + 3);
		CHECK(tutti_table_save(t, second) == 0);
	}
	close_table(job, t);
}

/* Of a file that one server wrote three read, some from the middle of a block on. */
static void program_blocks(tutti *job)
{
	enum { MANY = 3 * TT_TENSOR_BLOCK / sizeof(float) + 1003 };
	tutti_table_config c = config_of(TUTTI_UPDATE_ASSIGN, TUTTI_F32, MANY);
	float *v = calloc(MANY, sizeof *v), *was = calloc(MANY, sizeof *was);
	tutti_table *t;

	c.servers = 1;
	c.server = (const int[]){ 0 };
	for (int i = 0; i < MANY; i++)
		was[i] = (float)i;
	t = open_table(job, "w", &c);
	if (tutti_rank(job) == 0)
		CHECK(tutti_table_assign(t, was, NULL) == 0 && tutti_table_save(t, folder) == 0);
	close_table(job, t);
	c.servers = 0;
	c.server = NULL;
	c.load = folder;
	t = open_table(job, "w", &c);
	CHECK(tutti_table_pull(t, v, NULL) == 0 && !memcmp(v, was, MANY * sizeof *v));
	close_table(job, t);
	free(v);
	free(was);
}

static void test_loads(void)
{
	on_wires(program_saved_across, (const int[]){ 3, 0 });
	on_wires(program_blocks, (const int[]){ 3, 0 });
	loaded = 0;
	on_wires(program_loads, (const int[]){ 3, 0 });
	CU_ASSERT(loaded > 0);
}

/* ---- rounds that close meanwhile (the linker's --wrap) ---- */

/* so many, when a load has copied its values to where the version was that it found: workers have died, or come
 * again */
static int closes;
static int (*copy)(struct tt_table_io *);

void __real_tt_table_io_work(struct tt_table_io *, int (*)(struct tt_table_io *), void (*)(struct tt_table_io *, int));
void __wrap_tt_table_io_work(struct tt_table_io *, int (*)(struct tt_table_io *), void (*)(struct tt_table_io *, int));

static int copy_and_close(struct tt_table_io *c)
{
	int err = copy(c);

	tt_lock(c->table->job);
	for (int i = 0; i < closes; i++) {
		tt_version_round(c->table);
		tt_version_settle(c->table);
	}
	tt_unlock(c->table->job);
	return err;
}

void __wrap_tt_table_io_work(struct tt_table_io *c, int (*work)(struct tt_table_io *),
                             void (*after)(struct tt_table_io *, int))
{
	if (closes && c->order.what == TT_FILE_TAKE) {
		copy = work;
		work = copy_and_close;
	}
	__real_tt_table_io_work(c, work, after);
}

/* Rank 1 has pushed, and rank 2 has not; rank 0 is no worker, and reads the newest. */
static void load_while_closing(tutti *job, int rounds)
{
	static const int servers[] = { 0 }, workers[] = { 1, 2 };
	tutti_table_config c = config_of(TUTTI_UPDATE_ADD, TUTTI_F32, 100000);
	float *v = calloc(c.count, sizeof *v);

	c.server = servers;
	c.servers = 1;
	c.worker = workers;
	c.workers = 2;
	c.consistency.mode = TUTTI_BSP;
	tutti_table *t = open_table(job, "w", &c);
	fill(v, c.count, 1);
	if (tutti_rank(job) == 1) {
		CHECK(tutti_table_assign(t, v, NULL) == 0 && tutti_table_save(t, folder) == 0);
		CHECK(tutti_table_push(t, v, NULL, NULL) == 0);
	}
	meet(job);
	if (!tutti_rank(job)) {
		closes = rounds;
		CHECK(tutti_table_load(t, folder) == 0);
		closes = 0;
		CHECK(tutti_table_pull(t, v, NULL) == 0 && all_are(v, c.count, 1));
	}
	close_table(job, t);
	free(v);
}

static void program_closing(tutti *job)
{
	for (int rounds = 0; rounds <= 3; rounds++)
		load_while_closing(job, rounds);
}

static void test_closing(void) { on_wires(program_closing, (const int[]){ 3, 0 }); }

/* ---- another save in its place (the linker's --wrap) ---- */

static bool replaces; /* the save in the second folder takes the place of one that has been read */

void __real_tt_save_close(struct tt_save *);
void __wrap_tt_save_close(struct tt_save *);

static void move_in(void)
{
	char from[256 + sizeof second], to[256 + sizeof folder];
	DIR *dir = opendir(second);

	for (struct dirent *e; dir && (e = readdir(dir));) {
		snprintf(from, sizeof from, "%s/%s", second, e->d_name);
		snprintf(to, sizeof to, "%s/%s", folder, e->d_name);
		CHECK(*e->d_name == '.' || rename(from, to) == 0);
	}
	if (dir)
		closedir(dir);
}

void __wrap_tt_save_close(struct tt_save *s)
{
	__real_tt_save_close(s);
	if (replaces)
		move_in();
}

/* Values and clock of a table that is opened are of one save. */
static void program_replaced(tutti *job)
{
	enum { FEW = 100 };
	tutti_table_config c = config_of(TUTTI_UPDATE_ADD, TUTTI_F32, FEW);
	tutti_table_info info = { 0 };
	float v[FEW];

	c.consistency.mode = TUTTI_BSP;
	tutti_table *t = open_table(job, "w", &c);
	for (int k = 1; k <= 5; k++) {
		fill(v, FEW, 1);
		CHECK(tutti_table_push(t, v, NULL, NULL) == 0 && tutti_table_pull(t, v, NULL) == 0);
		CHECK((k != 2 && k != 5) || tutti_table_save(t, k == 2 ? folder : second) == 0);
	}
	close_table(job, t);
	c.load = folder;
	replaces = true;
	t = open_table(job, "w", &c);
	replaces = false;
	CHECK(tutti_table_look(t, &info) == 0 && info.clock == 2);
	CHECK(tutti_table_pull(t, v, NULL) == 0 && all_are(v, FEW, 2));
	close_table(job, t);
}

/* All servers load the same one, though the first has read another than the rest. */
static int mixed; /* loads that had to begin anew */

static void program_replaced_between(tutti *job)
{
	tutti_table_config c = config_of(TUTTI_UPDATE_ASSIGN, TUTTI_F32, COUNT);
	struct tt_order o = { .what = TT_FILE_READ, .folder = folder }, drop = { .what = TT_FILE_DROP, .folder = "" };
	float v[COUNT];
	uint32_t number;
	tutti_table *t = open_table(job, "w", &c);

	for (int k = 1; tutti_rank(job) == 0 && k <= 4; k++) {
		fill(v, COUNT, (float)k);
		CHECK(tutti_table_assign(t, v, NULL) == 0 && tutti_table_save(t, k % 2 ? folder : second) == 0);
		if ((replaces = k % 2 == 0))
			tt_sim_stop(2, 0, 20 * TT_MS); /* it reads when the others have */
		if (k == 2) {
			CHECK(tt_table_io_order(t, "load", &o, &number) == 0);
			mixed += o.differ;
			drop.generation = number;
			CHECK(tt_table_io_order(t, "load", &drop, NULL) == 0);
		} else if (k == 4) {
			CHECK(tutti_table_load(t, folder) == 0 && tutti_table_pull(t, v, NULL) == 0);
			CHECK(all_are(v, COUNT, 3) || all_are(v, COUNT, 4));
		}
		replaces = false;
	}
	close_table(job, t);
}

static void test_replaced(void)
{
	on_wires(program_replaced, (const int[]){ 1, 0 });
	mixed = 0;
	on_sim((struct ranks){ .size = 3, .program = program_replaced_between }, 3 * seeds);
	CU_ASSERT(mixed > 0 || !seeds);
}

/* ---- damaged files ---- */

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
	CHECK(tt_tensors_begin(&w, path, &of, 1, NULL, 0) == 0 &&
	      tt_tensors_put(&w, bytes, count * tt_type_size(type)) == 0 && tt_tensors_end(&w) == 0);
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
		CHECK(tutti_table_save(t, NULL) == -EINVAL && tutti_table_save(t, "/nowhere/at/all") == -ENOENT &&
		      strstr(tutti_why(), "/nowhere/at/all"));
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
		refuse(t, -EBADMSG, FIRST, "without it the save is not whole", COUNT, was);
		path_of(path, "w.safetensors.index.json");
		CHECK(unlink(path) == 0);
		refuse(t, -ENOENT, "index.json", "cannot read", COUNT, was);
		write_foreign("w.safetensors", TUTTI_F32, COUNT - 1, was);
		refuse(t, -EINVAL, "w.safetensors", "10006 elements of F32, and the table 10007 of F32", COUNT, was);
		write_foreign("w.safetensors", TUTTI_F64, COUNT, wide);
		refuse(t, -EINVAL, "w.safetensors", "elements of F64", COUNT, was);
		fill(ones, COUNT, 1);
		write_foreign("w.safetensors", TUTTI_F32, COUNT, ones);
		CHECK(tutti_table_load(t, folder) == 0 && tutti_table_pull(t, was, NULL) == 0 &&
		      !memcmp(was, ones, COUNT * sizeof *was));
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
	struct tt_tensor of[] = { { .name = "w.keys", .type = TUTTI_I64, .dims = 1, .shape = { keys } },
		                  { .name = "w", .type = type, .dims = 1, .shape = { values } } };
	struct tt_tensors_writer w;
	char path[256];

	path_of(path, "w.safetensors");
	CHECK(tt_tensors_begin(&w, path, of, 2, NULL, 0) == 0 && tt_tensors_put(&w, key, keys * 8) == 0);
	CHECK(tt_tensors_put(&w, value, values * tt_type_size(type)) == 0 && tt_tensors_end(&w) == 0);
}

static void write_index(const char *text)
{
	char path[256];

	path_of(path, "w.safetensors.index.json");
	FILE *f = fopen(path, "w");
	CHECK(f && fputs(text, f) >= 0 && !fclose(f));
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
	CHECK(tutti_table_load(t, folder) == 0 && tutti_table_pull_rows(t, key, 3, value, NULL) == 0 && value[0] == 7 &&
	      value[1] == 2 && value[2] == 3);
	CHECK(tutti_table_save(t, folder) == 0 && tutti_table_push_rows(t, key, 1, value, NULL, NULL) == 0);
	for (int at = 1; at <= 9; at += 8) { /* a value, and a key */
		change_file(SECOND, -at, 0);
		refuse_keys(t, -EBADMSG, SECOND, "damaged: bytes", 14);
		change_file(SECOND, -at, 0);
	}
	write_index("{\"weight_map\":{\"w.keys[0%2]\":\"" FIRST "\",\"w[0%2]\":\"" FIRST "\"}}");
	refuse_keys(t, -EBADMSG, "index.json", "shares 1 to 2 of \"w\" are missing", 14);
	change_file(FIRST, 0, 3);
	refuse_keys(t, -EBADMSG, FIRST, "cut off", 14);
	path_of(path, FIRST);
	CHECK(unlink(path) == 0);
	refuse_keys(t, -EBADMSG, FIRST, "without it the save is not whole", 14);
	CHECK(tutti_table_save(t, folder) == 0);
}

static void program_damaged_keys(tutti *job)
{
	tutti_table_config c = keys_config(TUTTI_UPDATE_ADD, TUTTI_F32, 1),
			   rows = config_of(TUTTI_UPDATE_ADD, TUTTI_F32, 3);
	tutti_table *t = open_table(job, "w", &c);

	if (!tutti_rank(job))
		damage_keys(t);
	close_table(job, t);
	t = open_table(job, "w", &rows);
	if (!tutti_rank(job))
		CHECK(tutti_table_load(t, folder) == -EINVAL &&
		      strstr(tutti_why(), "is of a table with keys, and this one has rows"));
	close_table(job, t);
}

static void test_damaged_keys(void) { on_wires(program_damaged_keys, (const int[]){ 2, 0 }); }

/* ---- of other tables, of others ---- */

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

static void write_old(uint64_t count)
{
	const struct tt_metadata rule = { "update_rule", "adagrad" };
	struct tt_tensor of[3] = { { .name = "w" }, { .name = "w.G.0" }, { .name = "w.G.1" } };
	struct tt_tensors_writer w;
	float *zeros = calloc(3 * count, sizeof *zeros);
	char path[256];

	for (int i = 0; i < 3; i++) {
		of[i].type = TUTTI_F32;
		of[i].dims = 1;
		of[i].shape[0] = count;
	}
	path_of(path, "w.safetensors");
	CHECK(tt_tensors_begin(&w, path, of, 3, &rule, 1) == 0 &&
	      tt_tensors_put(&w, zeros, 3 * count * sizeof *zeros) == 0 && tt_tensors_end(&w) == 0);
	free(zeros);
}

/* State of ranks: nothing tells which worker a rank was. */
static void program_old(tutti *job)
{
	write_old(100);
	open_and_refuse(job, "w", TUTTI_UPDATE_ADAGRAD, 0, "by ranks");
}

/* The state of a worker goes with its number: rank 2 was worker 1, and rank 1 is. */
static void program_numbers(tutti *job)
{
	static const int server[] = { 0 }, before[] = { 1, 2 }, after[] = { 2, 1 };
	tutti_table_config c = config_of(TUTTI_UPDATE_ADAGRAD, TUTTI_F32, 100);
	float *d = calloc(100, sizeof *d), *a = calloc(100, sizeof *a), *b = calloc(100, sizeof *b);
	struct tt_save *s = NULL;
	tutti_table *t;
	int me = tutti_rank(job);

	c.servers = 1;
	c.server = server;
	c.workers = 2;
	c.worker = before;
	t = open_table(job, "w", &c);
	fill(d, 100, (float)me);
	CHECK(!me || tutti_table_push(t, d, NULL, NULL) == 0);
	meet(job);
	if (!me) {
		CHECK(tutti_table_save(t, folder) == 0 && tt_save_open(folder, "w", &s) == 0);
		CHECK(tt_save_find(s, "w.G.0") && tt_save_find(s, "w.G.1") && !tt_save_find(s, "w.G.2"));
		tt_save_close(s);
	}
	meet(job);
	CHECK(me != 2 || (tutti_table_push(t, d, NULL, NULL) == 0 && tutti_table_pull(t, a, NULL) == 0));
	close_table(job, t);
	c.worker = after;
	t = open_table(job, "w", &c);
	CHECK(me || tutti_table_load(t, folder) == 0);
	meet(job);
	fill(d, 100, 2);
	CHECK(me != 1 || (tutti_table_push(t, d, NULL, NULL) == 0 && tutti_table_pull(t, b, NULL) == 0));
	CHECK(tutti_broadcast(job, a, 100 * sizeof *a, 2, NULL) == 0 &&
	      tutti_broadcast(job, b, 100 * sizeof *b, 1, NULL) == 0);
	CHECK(a[0] != 0 && !memcmp(a, b, 100 * sizeof *a));
	close_table(job, t);
	free(d);
	free(a);
	free(b);
}

static void test_numbers(void)
{
	on_wires(program_numbers, (const int[]){ 3, 0 });
	on_wires(program_old, (const int[]){ 1, 0 });
}

static void test_unfit(void) { on_wires(program_unfit, (const int[]){ 1, 0 }); }

/* Values by others, without state: that is as at the start, too. */
static void program_stateless(tutti *job)
{
	tutti_table_config c = config_of(TUTTI_UPDATE_ADAM, TUTTI_F32, COUNT);
	float *a = calloc(COUNT, sizeof *a), *b = calloc(COUNT, sizeof *b);
	tutti_table *t, *fresh = NULL;

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
			struct tt_order o = {
				.what = (enum tt_file_what)what, .folder = folders[i], .generation = 1, .workers = 2
			};
			char why[64];
			snprintf(why, sizeof why, "\"%s\" is no absolute path", folders[i]);
			CHECK(tt_table_io_order(t, "asked", &o, NULL) == -EINVAL && strstr(tutti_why(), why));
		}
	meet(job);
	tutti_table_close(t);
}

static void test_folders(void) { on_wires(program_folders, (const int[]){ 2, 0 }); }

/* ---- versions in rounds, beside assigns and loads ---- */

static bool are_alike(const tutti_table *t, const float *v)
{
	for (int i = 0; i < t->servers; i++) {
		struct tt_range r = tt_table_range(t, i);
		if (r.count && !all_are(v + r.first, (size_t)r.count, v[r.first]))
			return false;
	}
	return true;
}

/* Until all others are in the barrier, too. */
static void set_on(tutti *job, tutti_table *t, float *v, size_t count, const uint64_t *rows)
{
	tutti_op op;
	int k = 0;

	CHECK(tutti_barrier(job, &op) == 0);
	for (; tutti_test(&op) == -EINPROGRESS; k++) {
		fill(v, count, (float)(100 * k)); /* all values of a server's range are alike */
		if (k % 8 == 7)
			CHECK(tutti_table_load(t, folder) == 0);
		else if (k % 2 && rows)
			CHECK(tutti_table_assign_rows(t, rows, count, v, NULL) == 0);
		else
			CHECK(tutti_table_assign(t, v, NULL) == 0);
	}
	CHECK(tutti_wait(&op, -1) == 0);
}

static void read_on(tutti_table *t, float *d, float *v, bool works)
{
	int torn = 0, reads = all_or(10000 / 4, 40), err;

	for (int k = 0; k < reads; k++) {
		if (works && k % 4 == 0)
			CHECK(tutti_table_push(t, d, NULL, NULL) == 0);
		do /* a rank for which no round waits gives up after 16 tries */
			err = k % 2 ? tutti_table_snapshot(t, v, NULL, NULL) : tutti_table_pull(t, v, NULL);
		while (err == -EAGAIN);
		CHECK(err == 0);
		torn += !are_alike(t, v);
	}
	CHECK(torn == 0);
}

static void read_beside(tutti *job, size_t count)
{
	static const int servers[] = { 0, 1 }, workers[] = { 2 };
	tutti_table_config c = WITH(tutti_table_f32(count, tutti_accumulate()), it.consistency.mode = TUTTI_BSP,
	                            it.servers = 2, it.server = servers, it.workers = 1, it.worker = workers);
	float *d = calloc(count, sizeof *d), *v = calloc(count, sizeof *v);
	tutti_table *t = open_table(job, "w", &c);
	uint64_t *rows = calloc(count, sizeof *rows);

	fill(d, count, 1);
	for (size_t i = 0; i < count; i++)
		rows[i] = i;
	CHECK(tutti_rank(job) || tutti_table_save(t, folder) == 0);
	meet(job);
	if (tutti_rank(job) == 3) {
		set_on(job, t, v, count, count < 2000 ? rows : NULL); /* rows that fit into a message */
	} else {
		read_on(t, d, v, tutti_rank(job) == 2);
		meet(job);
	}
	fill(v, count, 7); /* what was assigned before a barrier is there behind the barrier */
	CHECK(tutti_rank(job) != 3 || tutti_table_assign(t, v, NULL) == 0);
	meet(job);
	CHECK(tutti_table_pull(t, v, NULL) == 0 && all_are(v, count, 7));
	close_table(job, t);
	free(rows);
	free(d);
	free(v);
}

static void program_beside(tutti *job)
{
	read_beside(job, 1001);
	read_beside(job, 100001);
	read_beside(job, 300001); /* in several pieces */
}

static void test_beside(void)
{
	on_sim((struct ranks){ .size = 4, .program = program_beside }, (uint64_t)all_or(4, 1));
	on_real((struct ranks){ .size = 4, .program = program_beside });
}

static CU_TestInfo load_tests[] = {
	{ "loaded while others push", test_loaded },
	{ "loads at once", test_loads },
	{ "loaded while rounds close", test_closing },
	{ "replaced while it is opened", test_replaced },
	{ "damaged and foreign files", test_damaged },
	{ "damaged and foreign files of keys", test_damaged_keys },
	{ "other rules, other tables", test_unfit },
	{ "workers' numbers, old saves", test_numbers },
	{ "versions beside assigns and loads", test_beside },
	{ "values without state", test_stateless },
	{ "folders that are none", test_folders },
	CU_TEST_INFO_NULL,
};

static CU_SuiteInfo suites[] = { { "table loads", NULL, NULL, NULL, all_is_given_back, load_tests },
	                         CU_SUITE_INFO_NULL };

int main(int argc, char **argv) { return run_in_folders(suites, argc, argv); }
