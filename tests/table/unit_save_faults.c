/* unit_save_faults.c - what goes wrong while parameter tables are saved and loaded: disks, pushes that do not go on,
 * two at once, servers that close, die and come again: each test on sim (over seeds) and, where that can be, over TCP
 * and shared memory */
#include "engine/engine.h"
#include "file/file.h"
#include "member/member.h"
#include "table/table_private.h"
#include "tests/harness/cunit_main.h"
#include "tests/table/saves.h"
#include "transport/sim/sim.h"

/* ---- a disk that gets full, or is slow (the linker's --wrap) ---- */

static atomic_long disk_room = -1; /* bytes; -1: never */
static struct {
	int rank;                    /* on sim: of this one's disk ... */
	int pieces;                  /* ... the next so many that are written or read, headers not among them, ... */
	uint64_t ns;                 /* ... take so long */
} slow;

ssize_t __real_pwrite(int fd, const void *bytes, size_t len, off_t at);
ssize_t __wrap_pwrite(int fd, const void *bytes, size_t len, off_t at);
ssize_t __real_pread(int fd, void *bytes, size_t len, off_t at);
ssize_t __wrap_pread(int fd, void *bytes, size_t len, off_t at);

static void take_time(size_t len)
{
	enum { HEADER = 10000 };

	if (slow.pieces && len > HEADER && tt_sim_rank() == slow.rank) {
		slow.pieces--;
		tt_sim_sleep(slow.ns);
	}
}

ssize_t __wrap_pread(int fd, void *bytes, size_t len, off_t at)
{
	take_time(len);
	return __real_pread(fd, bytes, len, at);
}

ssize_t __wrap_pwrite(int fd, const void *bytes, size_t len, off_t at)
{
	take_time(len);
	if (disk_room < 0 || atomic_fetch_sub(&disk_room, (long)len) >= (long)len)
		return __real_pwrite(fd, bytes, len, at);
	disk_room = 0;
	errno = ENOSPC;
	return -1;
}

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
			/* with the last, all but the index */
			disk_room = (const long[]){ 0, 1000, 300000, 2 * MORE * 4 + 900 }[i];
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

/* ---- servers that say nothing ---- */

enum {
	SILENT = 4000,
	DEADLINE = SILENT / 4
}; /* milliseconds: the job's timeout, after which such a server is given up */

static bool takes(uint64_t since, uint64_t ms)
{
	return tt_now() - since >= ms * TT_MS && tt_now() - since < (ms + DEADLINE) * TT_MS;
}

static void set_pace(int pieces, uint64_t ms)
{
	slow.rank = 1;
	slow.ns = ms * TT_MS;
	slow.pieces = pieces;
}

/* The others wait as long as rank 0 takes. */
static bool done;

static tutti_table *open_by_rank_0(tutti *job, const tutti_table_config *c)
{
	tutti_table *t = open_table(job, "w", c);

	done = false;
	meet(job);
	return t;
}

static void close_by_rank_0(tutti *job, tutti_table *t)
{
	for (done |= !tutti_rank(job); !done;)
		pass_time(DEADLINE / 10 * TT_MS);
	close_table(job, t);
}

static bool is_given_up(int err)
{
	return err == -ETIMEDOUT && strstr(tutti_why(), "rank 1: it lives, and has got no further");
}

/* Rank 1's disk is slow, and hangs then. */
static void use_slow_disk(tutti_table *t)
{
	uint64_t began;

	set_pace(1000, 3 * DEADLINE);
	began = tt_now();
	CHECK(tutti_table_save(t, folder) == 0 && tt_now() - began > 3 * SILENT * TT_MS);
	began = tt_now();
	CHECK(tutti_table_load(t, folder) == 0 && tt_now() - began > SILENT * TT_MS);
	set_pace(1, 10 * SILENT);
	began = tt_now();
	CHECK(is_given_up(tutti_table_save(t, folder)) && takes(began, SILENT));
	CHECK(tutti_table_load(t, folder) == -EBUSY &&
	      strstr(tutti_why(), "rank 1: it is being saved or loaded already, for rank 0"));
	pass_time(10 * SILENT * TT_MS);
	set_pace(1, 10 * SILENT);
	began = tt_now();
	CHECK(is_given_up(tutti_table_load(t, folder)) && takes(began, SILENT));
	pass_time(10 * SILENT * TT_MS);
	/* what was read for the other load is forgotten */
	CHECK(tutti_table_save(t, folder) == 0 && tutti_table_load(t, folder) == 0);
}

static void program_slow_disk(tutti *job)
{
	tutti_table_config c = config_of(TUTTI_UPDATE_ADAM, TUTTI_F32, 400000);
	tutti_table *t = open_by_rank_0(job, &c);

	if (!tutti_rank(job))
		use_slow_disk(t);
	close_by_rank_0(job, t);
}

static void test_slow_disk(void)
{
	on_sim((struct ranks){ .size = 2, .timeout_ms = SILENT, .program = program_slow_disk }, seeds);
}

/* Where one server has failed the others leave off, and are free for the next call. */
static void use_called_off(tutti_table *t)
{
	struct tt_order o = { .what = TT_FILE_SAVE, .folder = folder, .generation = 7 };
	uint64_t began = tt_now();
	char path[256];

	path_of(path, "w-00000007-00001-of-00002.safetensors"); /* rank 0 cannot write its own */
	close(open(path, O_WRONLY | O_CREAT, 0666));
	set_pace(1000, 3 * DEADLINE);
	CHECK(tt_table_io_order(t, "save", &o, NULL) == -EEXIST && tt_now() - began < 4 * DEADLINE * TT_MS);
	CHECK(!unlink(path) && slow.pieces >= 999);
	set_pace(0, 0);
	CHECK(tutti_table_save(t, folder) == 0);
	change_file("w-00000001-00001-of-00002.safetensors", -5, 0);
	set_pace(1000, 3 * DEADLINE);
	began = tt_now();
	CHECK(tutti_table_load(t, folder) == -EBADMSG && strstr(tutti_why(), "rank 0: ") &&
	      tt_now() - began < 4 * DEADLINE * TT_MS);
	CHECK(slow.pieces >= 999);
	set_pace(0, 0);
	change_file("w-00000001-00001-of-00002.safetensors", -5, 0);
	CHECK(tutti_table_load(t, folder) == 0 && tutti_table_save(t, folder) == 0);
}

static void program_called_off(tutti *job)
{
	tutti_table_config c = config_of(TUTTI_UPDATE_ADAM, TUTTI_F32, 400000);
	tutti_table *t = open_by_rank_0(job, &c);

	if (!tutti_rank(job))
		use_called_off(t);
	close_by_rank_0(job, t);
}

static void test_called_off(void)
{
	on_sim((struct ranks){ .size = 2, .timeout_ms = SILENT, .program = program_called_off }, seeds);
}

/* in the place of a rank that is not rank 0; NULL: nothing is */
static void (*hear_file)(struct tt_member *from, struct tt_pack *);
static int heard;            /* saves that it was to write */

void __real_tt_table_file(struct tt_member *, struct tt_pack *);
void __wrap_tt_table_file(struct tt_member *, struct tt_pack *);

void __wrap_tt_table_file(struct tt_member *from, struct tt_pack *p)
{
	if (!hear_file || !from->job->rank) {
		__real_tt_table_file(from, p);
		return;
	}
	hear_file(from, p);
}

static void say_nothing(struct tt_member *from, struct tt_pack *p) { (void)from, (void)p; }

static void program_mute(tutti *job)
{
	tutti_table_config c = config_of(TUTTI_UPDATE_ADD, TUTTI_F32, 1000);
	tutti_table *t = open_by_rank_0(job, &c);
	uint64_t began;

	if (!tutti_rank(job)) {
		CHECK(tutti_table_save(t, folder) == 0);
		hear_file = say_nothing;
		began = tt_now();
		CHECK(is_given_up(tutti_table_save(t, folder)) && takes(began, SILENT));
		began = tt_now();
		CHECK(is_given_up(tutti_table_load(t, folder)) && takes(began, 2 * SILENT));
		hear_file = NULL;
		CHECK(tutti_table_load(t, folder) == 0 && tutti_table_save(t, folder) == 0);
	}
	close_by_rank_0(job, t);
}

static void test_mute(void)
{
	on_sim((struct ranks){ .size = 2, .timeout_ms = SILENT, .program = program_mute }, seeds);
}

/* One that is stopped is found by its heartbeats, much sooner. */
static void program_stopped(tutti *job)
{
	tutti_table_config c = config_of(TUTTI_UPDATE_ADD, TUTTI_F32, 1000);
	tutti_table *t = open_by_rank_0(job, &c);
	uint64_t began = tt_now();

	if (!tutti_rank(job)) {
		tt_sim_stop(1, TT_MS, 100 * SILENT * TT_MS); /* once it has opened the table, too */
		pass_time(2 * TT_MS);
		CHECK(tutti_table_save(t, folder) < 0 && strstr(tutti_why(), "rank 1") &&
		      tt_now() - began < SILENT / 2 * TT_MS);
	}
	pass_time(TT_MS);
	tutti_table_close(t);
}

static void test_stopped(void)
{
	on_sim((struct ranks){ .size = 2, .timeout_ms = SILENT, .program = program_stopped }, seeds);
}

/* A server that knows of more workers each time, or of none more, or of more than can be: the saver does not ask for
 * ever. */
static uint32_t (*more_than)(uint32_t workers);

static uint32_t one_more(uint32_t workers) { return workers + 1; }
static uint32_t no_more(uint32_t workers) { return workers; }
static uint32_t too_many(uint32_t workers) { return UINT32_MAX - workers; }

static void say_again(struct tt_member *from, struct tt_pack *p)
{
	uint8_t bytes[16];
	struct tt_pack answer = tt_pack(bytes, sizeof bytes);

	tt_get64(p);
	tt_put8(&answer, TT_FILED);
	tt_put32(&answer, tt_get32(p));
	tt_put32(&answer, (uint32_t)-EAGAIN);
	heard += tt_get8(p) == TT_FILE_SAVE;
	tt_get64(p);
	tt_put32(&answer, more_than(tt_get32(p)));
	tt_send(from, bytes, (size_t)(answer.at - bytes), NULL, 0);
}

static void program_more_workers(tutti *job)
{
	static const struct {
		uint32_t (*more)(uint32_t);
		bool grows;
	} lies[] = { { one_more, true }, { no_more, false }, { too_many, false } };
	tutti_table_config c = config_of(TUTTI_UPDATE_ADD, TUTTI_F32, 1000);
	tutti_table *t = open_by_rank_0(job, &c);

	for (size_t i = 0; i < TT_COUNT(lies) && !tutti_rank(job); i++) {
		hear_file = say_again;
		more_than = lies[i].more;
		heard = 0;
		CHECK(tutti_table_save(t, folder) == -EAGAIN && strstr(tutti_why(), "rank 1"));
		CHECK(heard ==
		      (lies[i].grows ? 1 + tt_members(job->job)->capacity - tt_members(job->job)->launched : 1));
		hear_file = NULL;
		CHECK(tutti_table_save(t, folder) == 0);
	}
	close_by_rank_0(job, t);
}

static void test_more_workers(void) { on_sim((struct ranks){ .size = 2, .program = program_more_workers }, seeds); }

/* Ranks leave, and come again, while rank 1 writes for them: the later life asks under the same number, and its order
 * gets lost. What it hears then must not be the answer to the first. */
static int save_as(tutti *job, tutti_table *t, uint32_t number)
{
	struct tt_order o = { .what = TT_FILE_SAVE, .folder = folder, .workers = 2 };

	CHECK(tt_save_next(folder, "w", &o.generation) == 0);
	tt_lock(job->job);
	tt_tables(job->job)->generation = number;
	tt_unlock(job->job);
	return tt_table_io_order(t, "asked", &o, NULL);
}

static bool is_there(const char *file)
{
	char path[256];

	path_of(path, file);
	return !access(path, F_OK);
}

static void program_later_life(tutti *job)
{
	static const int servers[] = { 1 };
	enum { NUMBER = 70000, HANGS = SILENT + SILENT / 2 };
	tutti_table_config c = config_of(TUTTI_UPDATE_ADD, TUTTI_F32, 100000);
	tutti *again = NULL;

	c.server = servers;
	c.servers = 1;
	tutti_table *t = open_table(job, "w", &c);
	meet(job);
	if (tutti_rank(job) == 2) {
		set_pace(1, HANGS);
		CHECK(is_given_up(save_as(job, t, NUMBER)));
		CHECK(join_again(job, 2, &again) == 0);
		t = open_table(tutti_job(again), "w", &c);
		hear_file = say_nothing;
		/* it was called off */
		CHECK(is_given_up(save_as(again, t, NUMBER)) && !slow.pieces &&
		      !is_there("w-00000001-00001-of-00001.safetensors"));
		hear_file = NULL;
		CHECK(tutti_table_save(t, folder) == 0);
		tutti_leave(again);
	} else {
		pass_time(4 * SILENT * TT_MS);
		tutti_table_close(t);
	}
}

static void test_later_life(void)
{
	on_sim((struct ranks){ .size = 3, .timeout_ms = SILENT, .program = program_later_life }, seeds);
}

/* ---- two at once ---- */

/* Each of several callers may be refused, where others got some of the servers first; what is committed is whole, and
 * then it can be saved again. */
static atomic_int saved; /* how often */

static void program_two_at_once(tutti *job)
{
	tutti_table_config c = config_of(TUTTI_UPDATE_OWN, TUTTI_F32, 50000);
	float *ones = calloc(c.count, sizeof *ones);
	tutti_table *t;
	int err;

	fill(ones, c.count, 1);
	CHECK(tutti_table_open(job, "w", &c, &t) == 0);
	CHECK(tutti_table_push(t, ones, NULL, NULL) == 0);
	meet(job);
	for (int i = 0; i < 5; i++) {
		err = tutti_table_save(t, folder);
		CHECK(err == 0 || err == -EBUSY || err == -EEXIST || err == -ENOENT);
		saved += !err;
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

static void test_two_at_once(void)
{
	saved = 0;
	on_wires(program_two_at_once, (const int[]){ 3, 0 });
	CU_ASSERT(saved > 0);
}

/* ---- holds ---- */

static int change_nothing(struct tutti_table *t, int worker, struct tt_pusher *p, void *arg)
{
	(void)t, (void)worker, (void)p, (void)arg;
	return 0;
}

/* Its server has the first piece of a push of that rank, and gets no other. */
static void begin_push(tutti_table *t, int rank)
{
	tt_lock(t->job);
	CHECK(tt_table_take(t, rank, TT_PUSH_FIRST, NULL, change_nothing, NULL) == 0);
	tt_unlock(t->job);
}

/* A push that does not go on: a save fails with its name, a load ends it; what others push meanwhile waits, and nobody
 * is evicted. */
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
		CHECK(tutti_table_save(t, folder) == -ETIMEDOUT &&
		      strstr(tutti_why(), "rank 1 is in the middle of a push"));
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
	struct ranks run = { .size = 4, .timeout_ms = 1000, .program = program_stuck };

	on_sim(run, seeds);
	on_real(run);
}

static void stay_held(struct tutti_table *t, int err) { (void)t, (void)err; }

/* A hold of many silences: who waits for it is told, and cuts nobody off; not even who has given up its push. */
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
		tt_lock(job->job);
		tt_shard_quiesce(t, job->job->silence, stay_held);
		tt_unlock(job->job);
	}
	meet(job);
	if (tutti_rank(job) == 0) {
		pass_time(2000 * TT_MS);
		tt_lock(job->job);
		tt_shard_resume(t);
		tt_unlock(job->job);
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

/* One that does not end: the push runs out of time, and the server, which still does not give it back, is evicted. */
static void program_held_for_ever(tutti *job)
{
	enum { DEADLINE = 300 };
	static const int servers[] = { 0 };
	tutti_table_config c = config_of(TUTTI_UPDATE_ADD, TUTTI_F32, 90000);
	float *v = calloc(c.count, sizeof *v);
	tutti_table *t;

	c.server = servers;
	c.servers = 1;
	t = open_table(job, "w", &c);
	meet(job);
	if (tutti_rank(job) == 0) {
		tt_lock(job->job);
		tt_shard_quiesce(t, job->job->silence, stay_held);
		tt_unlock(job->job);
		pass_time(15 * DEADLINE * TT_MS);
	} else {
		uint64_t then = tt_now();
		pass_time(TT_MS);
		CHECK(tutti_table_push(t, v, NULL, NULL) == -ECONNRESET &&
		      strstr(tutti_why(), "rank 0 was evicted: a table push was given up"));
		CHECK(tt_now() - then > 2 * DEADLINE * TT_MS && tt_now() - then < 5 * DEADLINE * TT_MS);
	}
	tutti_table_close(t);
	free(v);
}

static void test_held(void)
{
	struct ranks run = { .size = 3, .timeout_ms = 4000, .silence_ms = 500, .program = program_held };

	on_sim(run, seeds);
	on_real(run);
	on_sim((struct ranks){ .size = 2, .timeout_ms = 300, .program = program_held_for_ever }, 1);
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
			tt_lock(job->job);
			begun = s.table->handle.users.count || s.err != 1;
			tt_unlock(job->job);
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

/* One who goes while they write: they leave off. */
static void program_saver_killed(tutti *job)
{
	static const int servers[] = { 0, 1 };
	tutti_table_config c = config_of(TUTTI_UPDATE_ADAM, TUTTI_F32, 400000);

	c.server = servers;
	c.servers = 2;
	tutti_table *t = open_by_rank_0(job, &c);
	if (tutti_rank(job) == 2) {
		set_pace(1000, 3 * DEADLINE);
		tt_sim_kill(2, DEADLINE * TT_MS);
		tutti_table_save(t, folder);
	} else if (tutti_rank(job) == 0) {
		pass_time(20 * DEADLINE * TT_MS);
		CHECK(slow.pieces == 999);
		set_pace(0, 0);
		CHECK(tutti_table_save(t, folder) == 0);
	}
	for (done |= !tutti_rank(job); !done;)
		pass_time(DEADLINE / 10 * TT_MS);
	tutti_table_close(t);
}

static void test_saver_killed(void)
{
	on_sim((struct ranks){ .size = 3, .timeout_ms = SILENT, .program = program_saver_killed }, seeds);
}

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
		CHECK(tt_table_io_order(t, "read", &o, NULL) == 0);
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
	on_sim((struct ranks){ .size = 3, .timeout_ms = 1000, .program = program_asker_killed }, 2 * seeds);
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
		CHECK(victim == 1 ? (err == -ECONNRESET || err == -ETIMEDOUT) && strstr(tutti_why(), "rank 1")
		                  : err == 0);
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
	on_sim((struct ranks){ .size = 4, .timeout_ms = 1000, .program = program_killed }, 10 * seeds);
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

	fill(v, c.count, 1);
	CHECK(tutti_table_open(job, "w", &c, &t) == 0);
	if (rank == 1) {
		CHECK(tutti_table_push(t, v, NULL, NULL) == 0 && tutti_table_save(t, folder) == 0);
		CHECK(tutti_table_push(t, v, NULL, NULL) == 0);
	}
	meet(job);
	if (rank == last) {
		CHECK(join_again(job, last, &again) == 0);
		c.load = folder;
		CHECK(tutti_table_open(tutti_job(again), "w", &c, &t) == 0);
		pass_time(300 * TT_MS); /* others may come to it */
		tutti_leave(again);
	} else if (rank == 1) {
		while (!(err = tutti_table_pull(t, v, NULL)))
			pass_time(TT_MS);
		CHECK(err == -ENOTCONN || err == -ECONNRESET || err == -ESTALE);
		while ((err = tutti_table_reopen(t)) == -ENOTCONN || err == -ECONNRESET)
			pass_time(TT_MS);
		CHECK(err == 0 && tutti_table_pull(t, v, NULL) == 0);
		CHECK(v[0] == 2 && v[tt_table_range(t, last).first - 1] == 2 && v[tt_table_range(t, last).first] == 1 &&
		      v[c.count - 1] == 1);
		fill(v, c.count, 1);
		CHECK(tutti_table_push_pull(t, v, NULL, v, NULL) == 0 && v[0] == 3 && v[c.count - 1] == 2);
	} else {
		pass_time(1000 * TT_MS); /* a rank that has just left is put off for half a second */
	}
	free(v);
	pass_time(500 * TT_MS);
	if (rank != last)
		tutti_table_close(t);
}

static void test_again(void) { on_wires(program_again, (const int[]){ 3, 0 }); }

static CU_TestInfo fault_tests[] = {
	{ "a disk without room", test_full },
	{ "a slow disk, and one that hangs", test_slow_disk },
	{ "called off", test_called_off },
	{ "a mute server", test_mute },
	{ "a stopped server", test_stopped },
	{ "a server that knows ever more workers", test_more_workers },
	{ "an answer to an earlier life", test_later_life },
	{ "two at once", test_two_at_once },
	{ "a push that does not go on", test_stuck },
	{ "held for long", test_held },
	{ "closed meanwhile", test_closed },
	{ "closed by another thread", test_closed_here },
	{ "closed and opened again", test_reopened },
	{ "killed meanwhile", test_killed },
	{ "a saver that is killed", test_saver_killed },
	{ "killed between its read and its take", test_asker_killed },
	{ "a server comes again", test_again },
	CU_TEST_INFO_NULL,
};

static CU_SuiteInfo suites[] = { { "save faults", NULL, NULL, NULL, NULL, fault_tests }, CU_SUITE_INFO_NULL };

int main(int argc, char **argv) { return run_in_folders(suites, argc, argv); }
