/* unit_publish.c - publications: versions whole, in part, in place; readers that are overtaken, late, killed */
#include "publish/publish_private.h"
#include "tests/harness/with.h"
#include "tests/publish/wires.h"

enum { TENSORS = 4, BIG = 10000 + 7 };

static void meet(tutti *job) { CHECK(tutti_barrier(job, NULL) == 0); }

/* All elements of a version have its number. */
struct model {
	float a[BIG];
	int64_t b;
	double c[15];
	uint8_t d[5];
};
static tutti_tensor tensor_of(struct model *m, int i)
{
	const tutti_tensor all[TENSORS] = { { m->a, BIG, TUTTI_F32 }, { &m->b, 1, TUTTI_I64 },
		                            { m->c, 15, TUTTI_F64 }, { m->d, 5, TUTTI_U8 } };

	return all[i];
}

static void list_model(struct model *m, tutti_weight list[TENSORS])
{
	static const tutti_weight shapes[TENSORS] = { { .name = "layer.weight", .dims = 1, .shape = { BIG } },
		                                      { .name = "step", .dims = 0 },
		                                      { .name = "layer.bias", .dims = 2, .shape = { 3, 5 } },
		                                      { .name = "mask", .dims = 1, .shape = { 5 } } };

	for (int i = 0; i < TENSORS; i++) {
		list[i] = shapes[i];
		list[i].type = tensor_of(m, i).type;
		list[i].data = tensor_of(m, i).data;
	}
}

static void fill_tensor(tutti_tensor t, uint64_t version)
{
	for (size_t i = 0; i < t.count; i++)
		switch (t.type) {
		case TUTTI_F32: ((float *)t.data)[i] = (float)version; break;
		case TUTTI_F64: ((double *)t.data)[i] = (double)version; break;
		case TUTTI_I64: ((int64_t *)t.data)[i] = (int64_t)version; break;
		default: ((uint8_t *)t.data)[i] = (uint8_t)version; break;
		}
}

static void fill(struct model *m, uint64_t version)
{
	for (int i = 0; i < TENSORS; i++)
		fill_tensor(tensor_of(m, i), version);
}

static bool is_version(const struct model *m, uint64_t version)
{
	bool good = m->b == (int64_t)version;

	for (int i = 0; i < BIG && good; i++)
		good = m->a[i] == (float)version;
	for (int i = 0; i < 15 && good; i++)
		good = m->c[i] == (double)version;
	for (int i = 0; i < 5 && good; i++)
		good = m->d[i] == (uint8_t)version;
	return good;
}

static tutti_publisher *open_publisher(tutti *job, struct model *m, tutti_publisher_config c)
{
	tutti_weight list[TENSORS];
	tutti_publisher *p = NULL;

	list_model(m, list);
	CHECK(tutti_publisher_open(job, "policy", list, TENSORS, &c, &p) == 0);
	return p;
}

static tutti_reader *open_reader(tutti *job, int rank)
{
	tutti_reader *r = NULL;

	CHECK(tutti_reader_open(job, "policy", rank, &r) == 0);
	return r;
}

static void list_all(struct model *m, tutti_tensor to[TENSORS])
{
	for (int i = 0; i < TENSORS; i++)
		to[i] = tensor_of(m, i);
}

/* ---- versions ---- */

static void publish_some(tutti *job, struct model *m)
{
	tutti_tensor to[TENSORS];
	tutti_publisher *p = open_publisher(job, m, (tutti_publisher_config){ .generation = 7 });
	tutti_publisher_info info;

	meet(job);
	meet(job);
	fill(m, 3);
	CHECK(tutti_publisher_publish(p, 3, "three", 5) == 0);
	CHECK(tutti_publisher_publish(p, 3, NULL, 0) == -EINVAL && strstr(tutti_why(), "above 3"));
	CHECK(tutti_publisher_publish(p, 0, NULL, 0) == -EINVAL && strstr(tutti_why(), "begin at 1"));
	CHECK(tutti_publisher_publish(p, UINT64_MAX, NULL, 0) == -EINVAL);
	CHECK(tutti_publisher_publish(p, 4, "x", 4097) == -EINVAL);
	CHECK(tutti_publisher_commit(p, 4, NULL, 0) == -EINVAL && strstr(tutti_why(), "begin"));
	meet(job);
	CHECK(tutti_publisher_wait(p, 3, 1, -1) == 0 && tutti_publisher_wait(p, 4, 1, 0) == -ETIMEDOUT);
	CHECK(tutti_publisher_begin(p, to) == 0);
	meet(job);
	for (int i = 0; i < TENSORS; i++)
		fill_tensor(to[i], 100);
	meet(job);
	CHECK(tutti_publisher_commit(p, 100, NULL, 0) == 0);
	CHECK(tutti_publisher_look(p, &info) == 0 && info.version == 100 && info.published == 2 && info.readers == 1);
	CHECK(info.generation == 7 && info.reused == 0);
	meet(job);
	meet(job);
	CHECK(tutti_publisher_look(p, &info) == 0 && info.readers == 0);
	tutti_publisher_close(p);
}

static void check_weights(tutti_reader *r, struct model *m)
{
	tutti_weight list[TENSORS], w;

	list_model(m, list);
	CHECK(tutti_reader_weights(r) == TENSORS);
	for (int i = 0; i < TENSORS; i++) {
		CHECK(tutti_reader_weight(r, i, &w) == 0 && !strcmp(w.name, list[i].name) && w.type == list[i].type);
		CHECK(w.dims == list[i].dims && !memcmp(w.shape, list[i].shape, sizeof w.shape) && !w.data);
	}
	CHECK(tutti_reader_weight(r, TENSORS, &w) == -EINVAL);
}

static void read_some(tutti *job, struct model *m)
{
	tutti_tensor to[TENSORS];
	tutti_fetched got;
	uint64_t newest = 9;

	meet(job);
	tutti_reader *r = open_reader(job, 0);
	check_weights(r, m);
	list_all(m, to);
	CHECK(tutti_reader_newest(r, &newest) == 0 && newest == 0);
	CHECK(tutti_reader_fetch(r, 0, to, 3, &got) == -ETIMEDOUT && strstr(tutti_why(), "policy"));
	meet(job);
	meet(job);
	CHECK(tutti_reader_newest(r, &newest) == 0 && newest == 3);
	CHECK(tutti_reader_fetch(r, 0, to, 0, &got) == 0 && got.version == 3 && is_version(m, 3));
	CHECK(got.meta_bytes == 5 && !memcmp(got.meta, "three", 5) && got.overtaken == 0 && got.age_ms < 60000);
	CHECK(got.generation == 7);
	to[0].count--;
	CHECK(tutti_reader_fetch(r, 0, to, 0, &got) == -EINVAL && strstr(tutti_why(), "layer.weight"));
	to[0].data = NULL; /* not this one */
	m->a[0] = 5;
	meet(job);
	CHECK(tutti_reader_fetch(r, 3, to, 0, &got) == -ETIMEDOUT);
	CHECK(tutti_reader_newest(r, &newest) == 0 && newest == 3); /* not the one that is being written */
	meet(job);
	meet(job);
	CHECK(tutti_reader_fetch(r, 3, to, -1, &got) == 0 && got.version == 100 && got.meta_bytes == 0);
	CHECK(m->b == 100 && m->c[14] == 100 && m->d[4] == 100 && m->a[0] == 5);
	tutti_reader_close(r);
	meet(job);
}

static void show_versions(tutti *job)
{
	struct model *m = calloc(1, sizeof *m);

	if (tutti_rank(job) == 0)
		publish_some(job, m);
	else
		read_some(job, m);
	meet(job);
	free(m);
}

static void test_versions(void) { ON_ALL(.size = 2, .program = show_versions); }

/* More than a piece of a copy and of a GET, and than there are GETs under way. */
static void show_large(tutti *job)
{
	enum { COUNT = (10 << 18) + 3 };
	float *x = calloc(COUNT, sizeof *x);
	tutti_weight weight = { .name = "large", .type = TUTTI_F32, .dims = 1, .shape = { COUNT }, .data = x };
	tutti_tensor t = { x, COUNT, TUTTI_F32 };
	tutti_publisher *p = NULL;
	tutti_reader *r = NULL;
	tutti_fetched got = { 0 };
	int rank = tutti_rank(job);

	if (rank == 0)
		CHECK(tutti_publisher_open(job, "policy", &weight, 1, NULL, &p) == 0);
	else
		r = open_reader(job, 0);
	for (uint64_t version = 1; version < 3; version++) {
		for (int i = 0; rank == 0 && i < COUNT; i++)
			x[i] = (float)(version * COUNT + (uint64_t)i % 99991);
		if (rank == 0)
			CHECK(tutti_publisher_publish(p, version, NULL, 0) == 0);
		meet(job);
		if (rank == 1)
			CHECK(tutti_reader_fetch(r, got.version, &t, -1, &got) == 0 && got.version == version);
		bool good = true;
		for (int i = 0; rank == 1 && i < COUNT; i++)
			good &= x[i] == (float)(version * COUNT + (uint64_t)i % 99991);
		CHECK(good);
		meet(job);
	}
	tutti_reader_close(r);
	meet(job);
	tutti_publisher_close(p);
	free(x);
}

static void test_large(void)
{
	CU_ASSERT_EQUAL(run_real_ranks((struct ranks){ .size = 2, .program = show_large }), 0);
	CU_ASSERT_EQUAL(run_ranks((struct ranks){ .size = 2, .wire = "sim", .seed = 1, .latency_ns = LATENCY,
	                                          .program = show_large }), 0);
}

/* ---- what is refused ---- */

/* Each tensor could be, and one buffer, but not all buffers: their bytes would wrap around to few. */
static void refuse_huge(tutti *job)
{
	const tutti_publisher_config c = { .buffers = 16 };
	tutti_weight huge[16];
	tutti_publisher *p;

	for (int i = 0; i < 16; i++)
		huge[i] = (tutti_weight){ .name = "huge", .type = TUTTI_F64, .dims = 1, .shape = { (size_t)1 << 53 } };
	CHECK(tutti_publisher_open(job, "x", huge, 16, &c, &p) == -EINVAL && strstr(tutti_why(), "more than memory"));
}

static void refuse_some(tutti *job)
{
	struct model *m = calloc(1, sizeof *m);
	tutti_weight list[TENSORS];
	tutti_tensor to[TENSORS];
	tutti_publisher_config c = { .buffers = 2 };
	tutti_publisher *p;
	tutti_reader *r;
	int rank = tutti_rank(job);

	list_model(m, list);
	CHECK(tutti_publisher_open(job, "", list, TENSORS, NULL, &p) == -EINVAL);
	CHECK(tutti_publisher_open(job, "x", list, TENSORS, &c, &p) == -EINVAL && strstr(tutti_why(), "3 to 16"));
	CHECK(tutti_publisher_open(job, "x", list, 0, NULL, &p) == -EINVAL);
	list[1].name = "";
	CHECK(tutti_publisher_open(job, "x", list, TENSORS, NULL, &p) == -EINVAL && strstr(tutti_why(), "tensor 1"));
	list_model(m, list);
	list[0].shape[0] = SIZE_MAX / 2;
	CHECK(tutti_publisher_open(job, "x", list, TENSORS, NULL, &p) == -EINVAL);
	refuse_huge(job);
	list_model(m, list);
	list[0].data = NULL; /* one of them alone */
	CHECK(tutti_publisher_open(job, "x", list, TENSORS, NULL, &p) == -EINVAL);
	CHECK(tutti_reader_open(job, "x", rank, &r) == -EINVAL && tutti_reader_open(job, "x", 5, &r) == -EINVAL);
	list_model(m, list);
	for (int i = 0; i < TENSORS; i++)
		list[i].data = NULL;
	CHECK(tutti_publisher_open(job, rank ? "b" : "a", list, TENSORS, NULL, &p) == 0);
	CHECK(tutti_publisher_publish(p, 1, NULL, 0) == -EINVAL && strstr(tutti_why(), "begin"));
	CHECK(tutti_publisher_begin(p, to) == 0 && ((float *)to[0].data)[BIG - 1] == 0);
	CHECK(tutti_reader_open(job, rank ? "b" : "a", 1 - rank, &r) == -EEXIST);
	if (rank == 0) { /* two readers of each other */
		meet(job);
		CHECK(tutti_reader_open(job, "c", 1, &r) == -EBADMSG && strstr(tutti_why(), "nothing"));
	} else {
		tutti_window *w;
		CHECK(tutti_window_open(job, "publication c", NULL, 0, &w) == 0);
		meet(job);
		meet(job);
		tutti_window_close(w);
	}
	if (rank == 0)
		meet(job);
	tutti_publisher_close(p);
	meet(job);
	free(m);
}

static void test_refused(void) { ON_ALL(.size = 2, .program = refuse_some); }

/* Bytes of others never make a list that reaches outside them. */
static void test_hostile(void)
{
	struct model *m = calloc(1, sizeof *m);
	tutti_weight list[TENSORS], *got;
	uint8_t *bytes;
	size_t len;
	int n, good = 0;

	list_model(m, list);
	CU_ASSERT_FATAL(tt_publish_pack(list, TENSORS, &bytes, &len) == 0);
	for (size_t i = 0; i < len * 8; i++) {
		uint8_t *spoilt = malloc(len - i % 3);
		memcpy(spoilt, bytes, len - i % 3);
		if (i / 8 < len - i % 3)
			spoilt[i / 8] ^= (uint8_t)(1 << i % 8);
		if (!tt_publish_unpack(spoilt, len - i % 3, &got, &n)) {
			struct tt_model model;
			bool held;
			for (int k = 0; k < n; k++)
				CU_ASSERT(strlen(got[k].name) >= 1 && got[k].dims <= 8);
			good++;
			if (!tt_publish_model(got, n, &model, &held))
				tt_model_close(&model);
			free(got);
		}
		free(spoilt);
	}
	CU_ASSERT(good > 100);
	free(bytes);
	free(m);
}

/* ---- torn versions: readers at full speed ---- */

static atomic_int reading;
static atomic_uint_fast64_t overtaken_in_all;

static void read_fast(tutti *job, struct model *m)
{
	tutti_reader *r = open_reader(job, 0);
	tutti_tensor to[TENSORS];
	tutti_fetched got = { 0 };
	uint64_t last = 0;

	list_all(m, to);
	for (int i = 0; i < (tt_world ? 10 : 50); i++) {
		CHECK(tutti_reader_fetch(r, i % 4 ? 0 : last, to, -1, &got) == 0);
		CHECK(is_version(m, got.version) && got.version >= last + (i % 4 == 0));
		CHECK(got.meta_bytes == sizeof last && !memcmp(got.meta, &got.version, sizeof last));
		last = got.version;
		overtaken_in_all += got.overtaken;
	}
	tutti_reader_close(r);
	reading--;
}

/* A thread of the publisher's that watches. */
static void *watch(void *arg)
{
	tutti_publisher *p = arg;
	tutti_publisher_info info = { 0 };
	void *good = arg;

	while (reading) {
		uint64_t before = info.version;
		int err = tutti_publisher_wait(p, before + 1, 3, 0);
		if (tutti_publisher_look(p, &info) || info.version < before || info.readers > 3 ||
		    (err && err != -ETIMEDOUT))
			good = NULL;
	}
	return good;
}

static void publish_fast(tutti *job, struct model *m)
{
	tutti_publisher *p = open_publisher(job, m, (tutti_publisher_config){ 0 });
	pthread_t thread;
	void *good = NULL;

	if (!tt_world)
		pthread_create(&thread, NULL, watch, p);
	for (uint64_t version = 1; reading; version++) {
		fill(m, version);
		CHECK(tutti_publisher_publish(p, version, &version, sizeof version) == 0);
		if (tt_world)
			pass_time(tt_sim_chance(20000));
	}
	if (!tt_world) {
		pthread_join(thread, &good);
		CHECK(good);
	}
	meet(job);
	tutti_publisher_close(p);
}

static void tear(tutti *job)
{
	struct model *m = calloc(1, sizeof *m);

	if (tutti_rank(job) == 0)
		reading = tutti_size(job) - 1;
	meet(job);
	if (tutti_rank(job) == 0)
		publish_fast(job, m);
	else
		read_fast(job, m);
	if (tutti_rank(job))
		meet(job);
	free(m);
}

static void test_torn(void)
{
	overtaken_in_all = 0;
	ON_ALL(.size = 4, .program = tear);
	CU_ASSERT(overtaken_in_all > 0 || only_verbs());
}

/* ---- large versions, written in place without a pause ---- */

enum { HOPEFUL_TRIES = 3 };
static atomic_uint whole_in_all, late_in_all; /* fetches; those that were overtaken in spite of a hold */

static int large_buffers;
static atomic_uint large_versions; /* of this run, so far */

/* TEST_VERSIONS=1000: so many versions of 64 MiB, and 50 fetches of each reader, at least. Takes minutes. */
static unsigned count_versions(void)
{
	const char *text = getenv("TEST_VERSIONS");

	return text ? (unsigned)strtoul(text, NULL, 10) : 0;
}

static int count_fetches(void) { return count_versions() ? 50 : all_or(50, 20); }
static size_t count_large(void) { return count_versions() ? 16 << 20 : (size_t)all_or(4 << 20, 1 << 20); }

static void write_large(tutti *job)
{
	tutti_weight large = { .name = "large", .type = TUTTI_F32, .dims = 1, .shape = { count_large() } };
	const tutti_publisher_config c = { .buffers = large_buffers, .hold_ms = 60000 };
	tutti_publisher *p = NULL;
	tutti_publisher_info info;
	tutti_tensor to;

	CHECK(tutti_publisher_open(job, "policy", &large, 1, &c, &p) == 0);
	for (uint64_t version = 1; reading; version++) {
		CHECK(tutti_publisher_begin(p, &to) == 0);
		for (size_t i = 0; i < to.count; i++)
			((float *)to.data)[i] = (float)version;
		CHECK(tutti_publisher_commit(p, version, NULL, 0) == 0);
		large_versions++;
	}
	CHECK(tutti_publisher_look(p, &info) == 0);
	CHECK(info.reused == 0 || large_buffers < 5); /* 3 holds, the newest, and one more */
	meet(job);
	tutti_publisher_close(p);
}

static bool is_whole(const float *x, size_t count, uint64_t version)
{
	return x[0] == (float)version && !memcmp(x, x + 1, (count - 1) * sizeof *x);
}

static void read_large(tutti *job)
{
	size_t count = count_large();
	float *x = calloc(count, sizeof *x);
	tutti_tensor to = { x, count, TUTTI_F32 };
	tutti_reader *r = open_reader(job, 0);
	tutti_fetched got;

	for (int i = 0; i < count_fetches() || large_versions < count_versions(); i++) {
		CHECK(tutti_reader_fetch(r, 0, &to, -1, &got) == 0 && is_whole(x, count, got.version));
		whole_in_all++;
		overtaken_in_all += got.overtaken;
		late_in_all += got.overtaken > HOPEFUL_TRIES + 1; /* one hold may come when the buffer is taken */
	}
	reading--;
	meet(job);
	tutti_reader_close(r);
	free(x);
}

static void large_in_place(tutti *job)
{
	bool writes = tutti_rank(job) == 0;

	if (writes)
		reading = tutti_size(job) - 1;
	meet(job);
	if (writes)
		write_large(job);
	else
		read_large(job);
}

/* Above 0: more than one fetch of ten was overtaken in spite of a hold. */
static int write_in_place(int buffers, const char *wire)
{
	uint64_t begun = tt_now();

	large_buffers = buffers;
	whole_in_all = late_in_all = large_versions = 0;
	overtaken_in_all = 0;
	CU_ASSERT_EQUAL(run_ranks((struct ranks){ .size = 4, .wire = wire, .program = large_in_place }), 0);
	printf("%s, %d buffers: %u versions of %zu MiB, %u fetches were whole, overtaken %u times, %u of them in spite "
	       "of a hold, %.1f s\n", wire, buffers, large_versions, count_large() >> 18, whole_in_all,
	       (unsigned)overtaken_in_all, late_in_all, (double)(tt_now() - begun) / 1e9);
	fflush(stdout);
	return 10 * (int)late_in_all - (int)whole_in_all;
}

static void test_in_place(void)
{
	if (count_versions())
		alarm(0); /* on a busy machine that takes longer than a test may */
	write_in_place(3, "tcp");
	write_in_place(3, "shm");
	if (!count_versions())
		CU_ASSERT(write_in_place(5, "tcp") + write_in_place(5, "shm") <= 0);
}

/* ---- holds ---- */

/* Versions come faster than one can be read: without a hold no fetch would end well. Even seeds map the memory. */
static void overtake(tutti *job)
{
	struct model *m = calloc(1, sizeof *m);
	tutti_tensor to[TENSORS];
	tutti_fetched got;

	if (tutti_rank(job) == 0) {
		tutti_publisher *p = open_publisher(job, m, (tutti_publisher_config){ 0 });
		reading = 1;
		for (uint64_t version = 1; reading; version++) {
			fill(m, version);
			CHECK(tutti_publisher_publish(p, version, NULL, 0) == 0);
			tt_sim_sleep(20000); /* a fetch takes ten times as long */
		}
		meet(job);
		tutti_publisher_close(p);
	} else {
		tutti_reader *r = open_reader(job, 0);
		list_all(m, to);
		for (int i = 0; i < 2; i++) {
			int err = tutti_reader_fetch(r, 0, to, -1, &got);
			CHECK(err == 0 && is_version(m, got.version));
			overtaken_in_all += got.overtaken;
		}
		reading = 0;
		tutti_reader_close(r);
		meet(job);
	}
	free(m);
}

static void test_overtaken(void)
{
	overtaken_in_all = 0;
	ON_SEEDS(10, 1000, .size = 2, .program = overtake);
	CU_ASSERT(overtaken_in_all >= 30 || only_verbs());
}

static size_t place_at(int rank, size_t inside)
{
	return sizeof(struct tt_publish_head) + (size_t)rank * sizeof(struct tt_reader_place) + inside;
}

static void put_word(tutti_window *w, size_t at, uint64_t word)
{
	CHECK(tutti_put(w, 0, at, &word, sizeof word, NULL) == 0);
}

static uint64_t find_number(tutti_window *w, int buffer)
{
	uint64_t number = 0;
	size_t at = offsetof(struct tt_publish_head, stamp) + (size_t)buffer * sizeof(struct tt_stamp);

	CHECK(tutti_get(w, 0, at, &number, sizeof number, NULL) == 0);
	return number;
}

static uint64_t put_hold(tutti *job, tutti_window *w)
{
	uint64_t word;

	CHECK(tutti_get(w, 0, offsetof(struct tt_front, newest), &word, sizeof word, NULL) == 0);
	put_word(w, place_at(tutti_rank(job), offsetof(struct tt_reader_place, hold)), word);
	return word;
}

/* The publisher wants a held buffer with each version, and its stamp stays as it is. */
static void keep_stamp(tutti *job)
{
	struct model *m = calloc(1, sizeof *m);

	reading = 1;
	meet(job);
	if (tutti_rank(job) == 0) {
		tutti_publisher *p = open_publisher(job, m, (tutti_publisher_config){ .hold_ms = 60000 });
		for (uint64_t version = 1; reading; version++)
			CHECK(tutti_publisher_publish(p, version, NULL, 0) == 0);
		meet(job);
		tutti_publisher_close(p);
	} else {
		tutti_window *w;
		uint64_t held, changed = 0;
		CHECK(tutti_window_open(job, "publication policy", NULL, 0, &w) == 0);
		put_word(w, place_at(1, offsetof(struct tt_reader_place, reader)), tt_member(job->job, 1)->epoch);
		do
			held = put_hold(job, w);
		while (!held || find_number(w, (int)(held % TT_PUBLISH_MOST)) != held / TT_PUBLISH_MOST);
		for (int i = 0; i < 20000; i++)
			changed += find_number(w, (int)(held % TT_PUBLISH_MOST)) != held / TT_PUBLISH_MOST;
		CHECK(changed == 0);
		reading = 0;
		meet(job);
		tutti_window_close(w);
	}
	free(m);
}

static void test_kept(void)
{
	CU_ASSERT_EQUAL(run_real_ranks((struct ranks){ .size = 2, .program = keep_stamp }), 0);
}

static uint64_t version_now;

static void publish_next(tutti_publisher *p, struct model *m, int times)
{
	for (int i = 0; i < times; i++) {
		fill(m, ++version_now);
		CHECK(tutti_publisher_publish(p, version_now, NULL, 0) == 0);
	}
}

static void let_hold(tutti *job, struct model *m)
{
	tutti_publisher *p = open_publisher(job, m, (tutti_publisher_config){ .hold_ms = 300 });
	tutti_publisher_info info;

	version_now = 0;
	publish_next(p, m, 1);
	meet(job);
	meet(job); /* rank 1 holds version 1 */
	publish_next(p, m, 5);
	meet(job);
	meet(job); /* rank 2 holds version 6: the newest buffer is the only one left */
	publish_next(p, m, 3);
	CHECK(tutti_publisher_look(p, &info) == 0 && info.reused == 2 && info.readers == 2);
	meet(job);
	meet(job); /* rank 3 holds the newest, too: nobody is waited for, and the oldest hold is broken */
	publish_next(p, m, 1);
	meet(job);
	meet(job);
	pass_time(400 * TT_MS); /* all holds end */
	publish_next(p, m, 3);
	CHECK(tutti_publisher_look(p, &info) == 0 && info.reused == 3);
	meet(job);
	meet(job);
	tutti_publisher_close(p);
}

static void hold_buffers(tutti *job)
{
	int rank = tutti_rank(job);
	uint64_t held = 0, at_first[3] = { 1, 6, 9 };
	tutti_window *w;

	CHECK(tutti_window_open(job, "publication policy", NULL, 0, &w) == 0);
	meet(job);
	for (int turn = 1; turn <= 3; turn++) {
		if (turn == rank) {
			put_word(w, place_at(rank, offsetof(struct tt_reader_place, reader)),
			         tt_member(job->job, rank)->epoch);
			held = put_hold(job, w);
			CHECK(held / TT_PUBLISH_MOST == at_first[rank - 1]);
		}
		meet(job);
		meet(job);
		if (turn >= rank && (turn < 3 || rank > 1))
			CHECK(find_number(w, (int)(held % TT_PUBLISH_MOST)) == held / TT_PUBLISH_MOST);
	}
	CHECK(rank > 1 || find_number(w, (int)(held % TT_PUBLISH_MOST)) != held / TT_PUBLISH_MOST);
	meet(job);
	meet(job);
	CHECK(find_number(w, (int)(held % TT_PUBLISH_MOST)) != held / TT_PUBLISH_MOST);
	meet(job);
	tutti_window_close(w);
}

static void hold(tutti *job)
{
	struct model *m = calloc(1, sizeof *m);

	if (tutti_rank(job) == 0)
		let_hold(job, m);
	else
		hold_buffers(job);
	free(m);
}

static void test_holds(void) { ON_ALL(.size = 4, .program = hold); }

/* A fetch that failed leaves no hold: rank 2 looks at the place of rank 1. */
static void find_no_hold(tutti *job)
{
	uint64_t hold = 1;
	tutti_window *w;

	CHECK(tutti_window_open(job, "publication policy", NULL, 0, &w) == 0);
	meet(job);
	for (int i = 0; hold && i < 100; i++) {
		CHECK(tutti_get(w, 0, place_at(1, offsetof(struct tt_reader_place, hold)), &hold, 8, NULL) == 0);
		pass_time(TT_MS);
	}
	CHECK(hold == 0);
	meet(job);
	tutti_window_close(w);
}

/* A fetch takes longer than hold_ms: the reader tries until its time has passed. */
static void lag(tutti *job)
{
	struct model *m = calloc(1, sizeof *m);
	tutti_tensor to[TENSORS];
	tutti_fetched got;

	if (tutti_rank(job) == 0) {
		tutti_publisher *p = open_publisher(job, m, (tutti_publisher_config){ .hold_ms = 1 });
		version_now = 0;
		for (reading = 1; reading;) {
			publish_next(p, m, 1);
			tt_sim_sleep(100000);
		}
		meet(job);
		meet(job);
		tutti_publisher_close(p);
	} else if (tutti_rank(job) == 2) {
		find_no_hold(job);
	} else {
		tutti_reader *r = open_reader(job, 0);
		list_all(m, to);
		uint64_t since = tt_now();
		CHECK(tutti_reader_fetch(r, 0, to, 200, &got) == -EAGAIN && tt_now() - since >= 200 * TT_MS);
		reading = 0;
		meet(job);
		CHECK(tutti_reader_fetch(r, 0, to, 0, &got) == 0 && is_version(m, got.version));
		meet(job);
		tutti_reader_close(r);
	}
	free(m);
}

static void test_lagging(void)
{
	CU_ASSERT_EQUAL(run_ranks((struct ranks){ .size = 3, .wire = "sim", .seed = 1, .latency_ns = LATENCY,
	                                          .bandwidth = BANDWIDTH / 20, .program = lag }), 0);
}

/* ---- deaths ---- */


static atomic_int over;

/* Rank 3 publishes, the others read; a victim dies at any moment. */
static void die(tutti *job)
{
	int rank = tutti_rank(job), err = 0;
	struct model *m = calloc(1, sizeof *m);
	tutti_tensor to[TENSORS];
	tutti_fetched got;
	tutti_publisher *p = NULL;
	tutti_reader *r = NULL;
	bool victim_now = false;

	list_all(m, to);
	if (rank == 0)
		over = 0;
	if (rank == 3)
		p = open_publisher(job, m, (tutti_publisher_config){ 0 });
	else
		r = open_reader(job, 3);
	meet(job);
	int victim = 1 + (int)(sim_run_now->seed % 3);
	if (rank == 0)
		tt_sim_kill(victim, 2 * TT_MS + tt_sim_chance(3 * TT_MS));
	for (uint64_t version = 1; rank == 3 && !tt_sim_killed(3) && (over < 2 || version < 100); version++) {
		fill(m, version);
		uint64_t since = tt_now();
		CHECK(tutti_publisher_publish(p, version, NULL, 0) == 0);
		CHECK(tt_now() - since < TT_MS); /* it waits for nobody */
		tt_sim_sleep(tt_sim_chance(100000));
	}
	for (int i = 0; rank != 3 && !tt_sim_killed(rank) && !err && i < 30; i++) {
		err = tutti_reader_fetch(r, 0, to, -1, &got);
		CHECK(err == 0 || err == -EAGAIN || tt_sim_killed(rank) ||
		      (victim == 3 && (err == -ECONNRESET || err == -ENOTCONN)));
		CHECK(err || is_version(m, got.version));
		err = err == -EAGAIN ? 0 : err;
	}
	victim_now = rank == victim;
	while (victim == 3 && rank != 3 && !err) { /* it comes to that */
		err = tutti_reader_fetch(r, 0, to, -1, &got);
		err = err == -EAGAIN ? 0 : err;
		tt_sim_sleep(TT_MS);
	}
	over += !victim_now && rank != 3;
	while (victim_now && !tt_sim_killed(rank))
		tt_sim_sleep(TT_MS);
	while (victim != 3 && rank == 3 && over < 2) /* it closes after they have read */
		tt_sim_sleep(TT_MS);
	tutti_publisher_close(p);
	tutti_reader_close(r);
	free(m);
}

static void test_killed(void) { ON_SEEDS(40, 10000, .size = 4, .silence_ms = 300, .program = die); }

/* ---- the publisher begins anew ---- */

static atomic_bool again, seen;

/* Rank 1 closes and opens again, or leaves and comes again: its reader goes on by itself. */
static void begin_anew(tutti *job, bool leaves)
{
	int rank = tutti_rank(job);
	struct model *m = calloc(1, sizeof *m);
	tutti_tensor to[TENSORS];
	tutti_fetched got = { 0 };

	list_all(m, to);
	if (rank == 1) {
		again = seen = false;
		tutti_publisher *p = open_publisher(job, m, (tutti_publisher_config){ .generation = 1 });
		fill(m, 50);
		CHECK(tutti_publisher_publish(p, 50, NULL, 0) == 0);
		meet(job);
		meet(job);
		tutti_publisher_close(p);
		if (leaves)
			CHECK(join_again(job, rank, &job) == 0);
		else
			pass_time(20 * TT_MS);
		p = open_publisher(job, m, (tutti_publisher_config){ .generation = 2, .buffers = 4 });
		fill(m, 7);
		CHECK(tutti_publisher_publish(p, 7, NULL, 0) == 0);
		again = true;
		while (!seen)
			pass_time(TT_MS);
		tutti_publisher_close(p);
		if (leaves)
			tutti_leave(job);
	} else {
		meet(job);
		tutti_reader *r = open_reader(job, 1);
		CHECK(tutti_reader_fetch(r, 0, to, -1, &got) == 0 && got.version == 50 && got.generation == 1);
		meet(job);
		int err = 0;
		while (got.generation != 2 && (!err || err == -ESTALE || err == -ETIMEDOUT || err == -ENOTCONN)) {
			err = tutti_reader_fetch(r, 50, to, 100, &got);
			pass_time(TT_MS);
		}
		CHECK(err == 0 && got.version == 7 && got.generation == 2 && is_version(m, 7) && again);
		seen = true;
		tutti_reader_close(r);
	}
	free(m);
}

static void open_again(tutti *job) { begin_anew(job, false); }
static void come_again(tutti *job) { begin_anew(job, true); }
static void test_again(void) { ON_ALL(.size = 2, .program = open_again); }
static void test_new_life(void) { ON_ALL(.size = 2, .program = come_again); }

/* The same name, other tensors. */
static void change(tutti *job)
{
	struct model *m = calloc(1, sizeof *m);
	tutti_weight list[TENSORS];
	tutti_tensor to[TENSORS];
	tutti_fetched got;
	tutti_publisher *p;

	list_model(m, list);
	list_all(m, to);
	if (tutti_rank(job) == 0) {
		p = open_publisher(job, m, (tutti_publisher_config){ 0 });
		CHECK(tutti_publisher_publish(p, 1, NULL, 0) == 0);
		meet(job);
		meet(job);
		tutti_publisher_close(p);
		list[2].shape[0] = 5;
		list[2].shape[1] = 3;
		CHECK(tutti_publisher_open(job, "policy", list, TENSORS, NULL, &p) == 0);
		CHECK(tutti_publisher_publish(p, 2, NULL, 0) == 0);
		meet(job);
		meet(job);
		tutti_publisher_close(p);
	} else {
		meet(job);
		tutti_reader *r = open_reader(job, 0);
		CHECK(tutti_reader_fetch(r, 0, to, -1, &got) == 0);
		meet(job);
		meet(job);
		int err = tutti_reader_fetch(r, 0, to, -1, &got);
		CHECK(err == -ESTALE || err == -EBADMSG);
		for (int i = 0; i < 2; i++)
			CHECK(tutti_reader_fetch(r, 0, to, -1, &got) == -EBADMSG && strstr(tutti_why(), "other"));
		tutti_reader_close(r);
		CHECK(tutti_reader_open(job, "policy", 0, &r) == 0);
		CHECK(tutti_reader_fetch(r, 0, to, -1, &got) == 0 && got.version == 2);
		tutti_reader_close(r);
		meet(job);
	}
	meet(job);
	free(m);
}

static void test_changed(void) { ON_ALL(.size = 2, .program = change); }

/* ---- readers that come late, in a job of their own ---- */

static atomic_bool done;
static atomic_int served;
static char late_boot[32];
static struct ranks *late_run;

static void *come_late(void *arg)
{
	struct model *m = calloc(1, sizeof *m);
	tutti_config c = { .rank = TUTTI_NEW_RANK, .ranks = 1, .boot = late_boot,
		           .transports = transports_of(late_run) };
	tutti_tensor to[TENSORS];
	tutti_fetched got;
	tutti *job;

	this_run = late_run;
	list_all(m, to);
	for (int i = 0; i < 3; i++) {
		CHECK(tutti_join(&c, &job) == 0);
		tutti_reader *r = open_reader(tutti_job(job), 0);
		CHECK(tutti_reader_fetch(r, 0, to, -1, &got) == 0 && is_version(m, got.version));
		if (i != 1) /* else leave ends it */
			tutti_reader_close(r);
		tutti_leave(job);
		if (i == 1)
			tutti_reader_close(r);
	}
	served++;
	free(m);
	return arg;
}

/* The publisher hosts a second job, beside that of its training. */
static void host(tutti *job)
{
	enum { READERS = 3 };
	struct model *m = calloc(1, sizeof *m);
	pthread_t thread[READERS];
	tutti *readers;

	late_run = this_run;
	served = 0;
	snprintf(late_boot, sizeof late_boot, "127.0.0.1:%d", free_port());
	tutti_config c = { .rank = 0, .ranks = 1, .boot = late_boot, .transports = transports_of(late_run) };
	CHECK(tutti_join(&c, &readers) == 0);
	tutti_publisher *p = open_publisher(readers, m, (tutti_publisher_config){ 0 });
	for (int i = 0; i < READERS; i++)
		pthread_create(&thread[i], NULL, come_late, NULL);
	for (uint64_t version = 1; served < READERS; version++) {
		fill(m, version);
		CHECK(tutti_publisher_publish(p, version, NULL, 0) == 0);
		usleep(1000);
	}
	for (int i = 0; i < READERS; i++)
		pthread_join(thread[i], NULL);
	tutti_leave(readers);
	tutti_publisher_close(p);
	free(m);
	(void)job;
}

static void test_fleet(void)
{
	if (!only_verbs())
		CU_ASSERT_EQUAL(run_real_ranks((struct ranks){ .size = 1, .program = host }), 0);
}

/* Another thread closes what a fetch waits on. */
static void *fetch_in_vain(void *arg)
{
	struct model *m = calloc(1, sizeof *m);
	tutti_tensor to[TENSORS];
	tutti_fetched got;

	list_all(m, to);
	int err = tutti_reader_fetch(arg, 99, to, -1, &got);
	done = err == -ESTALE;
	free(m);
	return NULL;
}

static void close_waiting(tutti *job)
{
	struct model *m = calloc(1, sizeof *m);
	pthread_t thread;

	done = false;
	if (tutti_rank(job) == 0) {
		tutti_publisher *p = open_publisher(job, m, (tutti_publisher_config){ 0 });
		CHECK(tutti_publisher_publish(p, 1, NULL, 0) == 0);
		meet(job);
		tutti_publisher_close(p);
	} else {
		tutti_reader *r = open_reader(job, 0);
		pthread_create(&thread, NULL, fetch_in_vain, r);
		usleep(20000);
		tutti_reader_close(r);
		pthread_join(thread, NULL);
		CHECK(done);
		meet(job);
	}
	free(m);
}

/* The publisher has closed the name: a fetch has its timeout still, and another thread may close the reader. */
static void read_closed(tutti *job)
{
	struct model *m = calloc(1, sizeof *m);
	tutti_tensor to[TENSORS];
	tutti_fetched got;
	uint64_t newest;
	pthread_t thread;

	list_all(m, to);
	if (tutti_rank(job) == 0) {
		tutti_publisher *p = open_publisher(job, m, (tutti_publisher_config){ 0 });
		CHECK(tutti_publisher_publish(p, 1, NULL, 0) == 0);
		meet(job);
		tutti_publisher_close(p);
		meet(job);
		meet(job);
	} else {
		tutti_reader *r = open_reader(job, 0);
		CHECK(tutti_reader_fetch(r, 0, to, 0, &got) == 0);
		meet(job);
		meet(job);
		CHECK(tutti_reader_fetch(r, 0, to, 0, &got) == -ESTALE && strstr(tutti_why(), "closed"));
		for (int ms = 0; ms < 30; ms += 10)
			CHECK(tutti_reader_fetch(r, 0, to, ms, &got) == -ETIMEDOUT &&
			      strstr(tutti_why(), "not opened"));
		CHECK(tutti_reader_newest(r, &newest) == -ESTALE);
		done = false;
		if (!tt_world) {
			pthread_create(&thread, NULL, fetch_in_vain, r);
			usleep(20000);
		}
		tutti_reader_close(r);
		if (!tt_world) {
			pthread_join(thread, NULL);
			CHECK(done);
		}
		meet(job);
	}
	free(m);
}

static void test_unopened(void) { ON_ALL(.size = 2, .timeout_ms = 5000, .program = read_closed); }

/* The name is opened again and again, with larger and smaller windows, while a fetch and another thread look at it. */
static void *look_newest(void *arg)
{
	uint64_t newest;

	while (reading)
		tutti_reader_newest(arg, &newest);
	return NULL;
}

static void reopen(tutti *job)
{
	struct model *m = calloc(1, sizeof *m);
	tutti_tensor to[TENSORS];
	tutti_fetched got;
	pthread_t thread;
	uint64_t version = 0;

	list_all(m, to);
	if (tutti_rank(job) == 0) {
		tutti_publisher *p = open_publisher(job, m, (tutti_publisher_config){ .buffers = 16 });
		reading = 1;
		meet(job);
		for (int i = 0; i < all_or(400, 60); i++) {
			for (int k = 0; k < 16; k++) {
				fill(m, ++version);
				CHECK(tutti_publisher_publish(p, version, NULL, 0) == 0);
			}
			pass_time(tt_world ? tt_sim_chance(100000) : 500000);
			tutti_publisher_close(p);
			tutti_publisher_config c = { .generation = 1, .buffers = i % 2 ? 16 : 3 };
			p = open_publisher(job, m, c);
			fill(m, ++version);
			CHECK(tutti_publisher_publish(p, version, NULL, 0) == 0);
		}
		reading = 0;
		meet(job);
		tutti_publisher_close(p);
	} else {
		tutti_reader *r = open_reader(job, 0);
		meet(job);
		if (!tt_world)
			pthread_create(&thread, NULL, look_newest, r);
		while (reading) {
			int err = tutti_reader_fetch(r, 0, to, 1000, &got);
			CHECK(err == 0 || err == -ESTALE);
			CHECK(err || is_version(m, got.version));
			if (tt_world)
				pass_time(tt_sim_chance(20000));
		}
		if (!tt_world)
			pthread_join(thread, NULL);
		tutti_reader_close(r);
		meet(job);
	}
	free(m);
}

static void test_reopened(void) { ON_ALL(.size = 2, .program = reopen); }

static void test_closed(void)
{
	CU_ASSERT_EQUAL(run_real_ranks((struct ranks){ .size = 2, .program = close_waiting }), 0);
}

static CU_TestInfo tests[] = {
	{ "versions", test_versions },
	{ "a large version", test_large },
	{ "what is refused", test_refused },
	{ "a hostile list", test_hostile },
	{ "torn versions", test_torn },
	{ "written in place", test_in_place },
	{ "overtaken", test_overtaken },
	{ "a held stamp", test_kept },
	{ "holds", test_holds },
	{ "lagging behind", test_lagging },
	{ "one is killed", test_killed },
	{ "opened again", test_again },
	{ "a new life", test_new_life },
	{ "other tensors", test_changed },
	{ "a fleet of readers", test_fleet },
	{ "closed in a fetch", test_closed },
	{ "closed before a fetch", test_unopened },
	{ "opened in a fetch", test_reopened },
	CU_TEST_INFO_NULL,
};
static CU_SuiteInfo suites[] = { { "publish", NULL, NULL, NULL, NULL, tests }, CU_SUITE_INFO_NULL };

int main(int argc, char **argv) { return run_suites(suites, argc, argv); }
