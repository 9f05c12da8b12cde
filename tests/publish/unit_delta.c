/* unit_delta.c - deltas of a publication: their bytes, garbage, the ring, readers that update; and how long they are */
#include "publish/publish_private.h"
#include <math.h>
#include "tests/publish/wires.h"

static uint64_t drawn = 1;

static uint64_t draw(void)
{
	drawn ^= drawn << 13;
	drawn ^= drawn >> 7;
	return drawn ^= drawn << 17;
}

/* ---- models ---- */

enum { TENSORS = 6, MANY = 40000 };
static const tutti_tensor shapes[TENSORS] = { { NULL, MANY, TUTTI_BF16 }, { NULL, 1, TUTTI_I64 },
	                                      { NULL, 5003, TUTTI_F32 }, { NULL, 77, TUTTI_U8 },
	                                      { NULL, 4001, TUTTI_F16 }, { NULL, 0, TUTTI_F32 } };

struct state { /* of a model; all versions that any rank makes are the same, bit by bit */
	struct tt_model model;
	char *now, *old, *whole;    /* buffers; whole: for a reader */
};

static size_t bytes_of(const tutti_tensor *t) { return t->count * tt_type_size(t->type); }

static struct state open_state(const tutti_tensor *list, int n)
{
	struct state s = { .now = NULL };
	tutti_tensor some[TENSORS];

	for (int i = 0; i < n; i++) {
		some[i] = list[i];
		some[i].data = some;
	}
	CU_ASSERT_FATAL(tt_model_open(&s.model, some, n, "test") == 0);
	s.now = calloc(3, s.model.bytes);
	s.old = s.now + s.model.bytes;
	s.whole = s.old + s.model.bytes;
	return s;
}

static void close_state(struct state *s)
{
	free(s->now);
	tt_model_close(&s->model);
}

static void change_element(struct state *s, int tensor, size_t i)
{
	size_t size = tt_type_size(s->model.tensors[tensor].type);
	char *at = s->now + s->model.at[tensor] + i * size;

	at[draw() % size] ^= (char)(1 + draw() % 255);
}

/* One element of `each` changes, at random. */
static size_t change_some(struct state *s, uint64_t each)
{
	size_t changed = 0;

	memcpy(s->old, s->now, s->model.bytes);
	for (int t = 0; t < s->model.n; t++)
		for (size_t i = 0; i < s->model.tensors[t].count; i++)
			if (draw() % each == 0) {
				change_element(s, t, i);
				changed++;
			}
	return changed;
}

static bool same_elements(const struct state *s, const char *a, const char *b)
{
	for (int i = 0; i < s->model.n; i++)
		if (memcmp(a + s->model.at[i], b + s->model.at[i], bytes_of(&s->model.tensors[i])))
			return false;
	return true;
}

/* ---- a delta's bytes ---- */

/* Writes the delta from s->old to s->now, and applies it to a copy of s->old. */
static int go_through(struct state *s, uint8_t *delta, size_t room, struct tt_delta *d)
{
	tutti_tensor to[TENSORS];
	int err = tt_delta_write(&s->model, s->old, s->now, delta, room, d);

	if (err)
		return err;
	CU_ASSERT(d->bytes <= room);
	memcpy(s->whole, s->old, s->model.bytes);
	tt_model_place(&s->model, s->whole, to);
	CU_ASSERT(tt_delta_apply(delta, d->bytes, to, s->model.n));
	CU_ASSERT(same_elements(s, s->whole, s->now) && tt_delta_sum(to, s->model.n) == d->sum);
	return 0;
}

static void test_bytes(void)
{
	const uint64_t each[] = { 1, 2, 7, 100, 5000, UINT64_MAX };
	struct state s = open_state(shapes, TENSORS);
	size_t room = 9 * s.model.bytes;
	uint8_t *delta = malloc(room + TT_DELTA_SLACK);
	struct tt_delta d;

	for (size_t i = 0; i < TT_COUNT(each); i++)
		for (int k = 0; k < 5; k++) {
			change_some(&s, each[i]);
			CU_ASSERT(go_through(&s, delta, room, &d) == 0);
		}
	CU_ASSERT(d.bytes == 8 * TENSORS);
	change_some(&s, 100);
	CU_ASSERT(go_through(&s, delta, d.bytes, &d) == -ENOSPC);
	CU_ASSERT(tt_delta_write(&s.model, s.old, s.now, delta, 8, &d) == -ENOSPC);
	change_some(&s, 1);
	CU_ASSERT(go_through(&s, delta, s.model.bytes / 2, &d) == -ENOSPC);
	free(delta);
	close_state(&s);
}

/* Two elements change, with so many between them: each length of a gap. */
static void test_gaps(void)
{
	const size_t gaps[] = { 0, 1, 62, 63, 64, 191, 192, 193, 447, 448, 14527, 14528, 14529, 65535, 65536, 199997 };
	const size_t lengths[] = { 1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 3, 3, 3, 4, 4 };
	const tutti_tensor one = { NULL, 200000, TUTTI_F16 };
	struct state s = open_state(&one, 1);
	enum { ROOM = 4096 };
	uint8_t delta[ROOM + TT_DELTA_SLACK];
	struct tt_delta d;

	for (size_t i = 0; i < TT_COUNT(gaps); i++) {
		memcpy(s.old, s.now, s.model.bytes);
		change_element(&s, 0, 1);
		change_element(&s, 0, 2 + gaps[i]);
		CU_ASSERT(go_through(&s, delta, ROOM, &d) == 0 && d.bytes == 8 + 3 + lengths[i] + 2);
	}
	close_state(&s);
}

/* Elements are bits: -0 is not 0, and a NaN equals itself. */
static void test_bits(void)
{
	const tutti_tensor one = { NULL, 3, TUTTI_F32 };
	struct state s = open_state(&one, 1);
	float old[3] = { 0, NAN, 1 }, now[3] = { -0.0f, NAN, 1 };
	uint8_t delta[64 + TT_DELTA_SLACK];
	struct tt_delta d;

	memcpy(s.old, old, sizeof old);
	memcpy(s.now, now, sizeof now);
	CU_ASSERT(go_through(&s, delta, 64, &d) == 0 && d.bytes == 8 + 1 + 4);
	close_state(&s);
}

/* Garbage never writes outside the tensors, which lie in memory of their own: the sanitizer looks, too. */
static void apply_garbage(const struct state *s, const uint8_t *delta, size_t bytes)
{
	enum { EDGE = 16 };
	tutti_tensor to[TENSORS];
	uint8_t *copy = malloc(bytes + !bytes), edge[EDGE];

	memset(edge, 0xab, EDGE);
	memcpy(copy, delta, bytes);
	for (int i = 0; i < s->model.n; i++) {
		to[i] = s->model.tensors[i];
		to[i].data = (char *)malloc(bytes_of(&to[i]) + 2 * EDGE) + EDGE;
		memset((char *)to[i].data - EDGE, 0xab, bytes_of(&to[i]) + 2 * EDGE);
	}
	tt_delta_apply(copy, bytes, to, s->model.n);
	for (int i = 0; i < s->model.n; i++) {
		CU_ASSERT(!memcmp((char *)to[i].data - EDGE, edge, EDGE));
		CU_ASSERT(!memcmp((char *)to[i].data + bytes_of(&to[i]), edge, EDGE));
		free((char *)to[i].data - EDGE);
	}
	free(copy);
}

static void test_garbage(void)
{
	const tutti_tensor few[2] = { { NULL, 300, TUTTI_BF16 }, { NULL, 40, TUTTI_F32 } };
	struct state s = open_state(few, 2);
	uint8_t *delta = malloc(s.model.bytes + TT_DELTA_SLACK), *other = malloc(s.model.bytes);
	tutti_tensor to[2];
	struct tt_delta d;

	change_some(&s, 7);
	CU_ASSERT_FATAL(go_through(&s, delta, s.model.bytes, &d) == 0);
	for (size_t n = 0; n < d.bytes; n++) {
		apply_garbage(&s, delta, n);
		tt_model_place(&s.model, s.whole, to);
		CU_ASSERT(!tt_delta_apply(delta, n, to, 2));
	}
	for (size_t bit = 0; bit < d.bytes * 8; bit++) {
		delta[bit / 8] ^= (uint8_t)(1 << bit % 8);
		apply_garbage(&s, delta, d.bytes);
		delta[bit / 8] ^= (uint8_t)(1 << bit % 8);
	}
	for (int k = 0; k < 1000; k++) {
		for (size_t i = 0; i < s.model.bytes; i++)
			other[i] = k % 2 ? (uint8_t)draw() : (uint8_t)(draw() | 0xc0); /* long gaps */
		memset(other, 0, 16);
		other[0] = (uint8_t)(draw() % 200);
		other[8] = (uint8_t)draw();
		apply_garbage(&s, other, 16 + (size_t)other[0] + other[8] - draw() % 3 % 2);
	}
	free(delta);
	free(other);
	close_state(&s);
}

/* ---- the ring ---- */

static void test_ring(void)
{
	struct tt_delta_entry *entry = calloc(TT_DELTAS, sizeof *entry);
	struct state s = open_state(shapes, TENSORS);
	size_t room = 20000, kept = 0, far = 0, most = SIZE_MAX;
	uint8_t *ring = calloc(1, room);
	struct tt_delta_ring r;
	struct tt_delta_chain c;

	CU_ASSERT_FATAL(tt_delta_ring_open(&r, entry, ring, room, s.model.bytes) == 0);
	for (uint64_t version = 2; version < 400; version++) {
		change_some(&s, 50 + draw() % 1000);
		kept = tt_delta_keep(&r, &s.model, s.old, s.now, version - 1, version);
		CU_ASSERT(kept > 8 * TENSORS && kept <= room);
		CU_ASSERT(tt_delta_find(entry, version - 1, version, room, kept, &c) && c.n == 1 && c.bytes == kept);
		CU_ASSERT(!memcmp(ring + c.link[0].at, r.draft, kept) && tt_delta_is_there(entry, &c));
		CU_ASSERT(!tt_delta_find(entry, version - 1, version, room, kept - 1, &c));
		size_t back = 1;
		while (back < version && tt_delta_find(entry, version - back, version, room, most, &c))
			far = tt_max(far, back++);
	}
	CU_ASSERT(far > 3);
	struct tt_delta_chain last;
	CU_ASSERT(tt_delta_find(entry, 398, 399, room, most, &last));
	CU_ASSERT(tt_delta_find(entry, 397, 399, room, most, &c) && c.n == 2);
	CU_ASSERT(!tt_delta_find(entry, 397, 400, room, most, &c) && !tt_delta_find(entry, 399, 399, room, most, &c));
	CU_ASSERT(!tt_delta_find(entry, 1, 399, room, most, &c));
	struct tt_delta_entry *e = &entry[(r.count - 1) % TT_DELTAS];
	e->at = room - e->bytes + 1; /* hostile entries */
	CU_ASSERT(!tt_delta_find(entry, 398, 399, room, most, &c) && !tt_delta_is_there(entry, &last));
	e->at = UINT64_MAX;
	CU_ASSERT(!tt_delta_find(entry, 398, 399, room, most, &c));
	e->bytes = UINT64_MAX;
	CU_ASSERT(!tt_delta_find(entry, 398, 399, room, most, &c));
	e->version = 397; /* a circle */
	CU_ASSERT(!tt_delta_find(entry, 397, 399, room, most, &c));
	tt_delta_ring_close(&r);
	free(ring);
	free(entry);
	close_state(&s);
}

/* ---- publishers and readers ---- */

/* The thread sanitizer does not see that ranks wait for each other in shared memory: the counter shows it. */
static void meet(tutti *job)
{
	static atomic_int met;

	met++;
	CHECK(tutti_barrier(job, NULL) == 0);
	met++;
}

static tutti_publisher *open_publisher(tutti *job, struct state *s, tutti_publisher_config c)
{
	static const char *const names[TENSORS] = { "a", "b", "c", "d", "e", "none" };
	tutti_weight list[TENSORS] = { { .name = NULL } };
	tutti_publisher *p = NULL;

	for (int i = 0; i < s->model.n; i++) {
		list[i] = (tutti_weight){ .name = names[i], .type = s->model.tensors[i].type, .dims = 1,
			                  .shape = { s->model.tensors[i].count }, .data = s->now + s->model.at[i] };
	}
	CHECK(tutti_publisher_open(job, "policy", list, s->model.n, &c, &p) == 0);
	return p;
}

static tutti_reader *open_reader(tutti *job)
{
	tutti_reader *r = NULL;

	CHECK(tutti_reader_open(job, "policy", 0, &r) == 0);
	return r;
}

/* Ranks are threads or fibers, and share the publisher's state. The reader looks at it while the publisher waits. */
static struct state shared;
static tutti_publisher *publisher;
static uint64_t version_now;

static void publish_next(uint64_t each)
{
	if (each)
		change_some(&shared, each);
	CHECK(tutti_publisher_publish(publisher, ++version_now, &version_now, sizeof version_now) == 0);
}

static size_t delta_bytes(void)
{
	tutti_publisher_info info = { 0 };

	CHECK(tutti_publisher_look(publisher, &info) == 0 && info.version == version_now);
	return info.delta_bytes;
}

/* Takes the newest version by so many deltas. */
static tutti_fetched check_update(tutti_reader *r, uint64_t held, const tutti_tensor *to, unsigned deltas)
{
	tutti_fetched got = { 0 };

	CHECK(tutti_reader_update(r, 0, held, to, -1, &got) == 0 && got.version == version_now);
	CHECK(got.deltas == deltas && (got.bytes < shared.model.bytes / 2) == (deltas > 0));
	CHECK(got.meta_bytes == sizeof version_now && !memcmp(got.meta, &version_now, sizeof version_now));
	CHECK(same_elements(&shared, shared.whole, shared.now));
	return got;
}

static void read_deltas(tutti *job)
{
	tutti_reader *r = open_reader(job);
	tutti_tensor to[TENSORS];
	tutti_fetched got;

	tt_model_place(&shared.model, shared.whole, to);
	meet(job); /* 1 */
	check_update(r, 0, to, 0);
	meet(job);
	meet(job); /* 2 */
	check_update(r, 1, to, 1);
	meet(job);
	meet(job); /* 12 */
	check_update(r, 2, to, 10);
	CHECK(tutti_reader_update(r, 12, 12, to, 0, &got) == -ETIMEDOUT);
	to[5] = (tutti_tensor){ NULL, 9, TUTTI_F32 }; /* left out, so its count is of no account */
	CHECK(tutti_reader_update(r, 0, 2, to, -1, &got) == 0 && got.deltas == 0);
	tt_model_place(&shared.model, shared.whole, to);
	check_update(r, 12, to, 0);
	meet(job);
	meet(job); /* 13: all elements changed */
	check_update(r, 12, to, 0);
	meet(job);
	meet(job); /* 14: the program has changed what it holds, or says that it holds another version */
	CHECK(check_update(r, 3, to, 0).mismatched == 0);
	memcpy(shared.whole, shared.old, shared.model.bytes);
	memset(shared.whole, 7, 1000);
	got = check_update(r, 13, to, 0);
	CHECK(got.mismatched == 1 && got.bytes > shared.model.bytes);
	to[1].data = NULL; /* some tensors alone */
	CHECK(tutti_reader_update(r, 0, 13, to, -1, &got) == 0 && got.deltas == 0 && got.mismatched == 1);
	meet(job);
	meet(job); /* 15: in place */
	tt_model_place(&shared.model, shared.whole, to);
	CHECK(check_update(r, 14, to, 1).mismatched == 1);
	meet(job);
	tutti_reader_close(r);
}

static void publish_deltas(tutti *job)
{
	tutti_tensor to[TENSORS];

	publish_next(1);
	CHECK(delta_bytes() == 0);
	meet(job);
	meet(job);
	publish_next(100);
	CHECK(delta_bytes() > 1000 && delta_bytes() < 5000);
	meet(job);
	meet(job);
	for (int i = 0; i < 10; i++)
		publish_next(100);
	meet(job);
	meet(job);
	publish_next(1);
	CHECK(delta_bytes() == 0);
	meet(job);
	meet(job);
	publish_next(100);
	meet(job);
	meet(job);
	change_some(&shared, 1000);
	CHECK(tutti_publisher_begin(publisher, to) == 0);
	for (int i = 0; i < TENSORS; i++)
		memcpy(to[i].data, shared.now + shared.model.at[i], bytes_of(&to[i]));
	++version_now;
	CHECK(tutti_publisher_commit(publisher, version_now, &version_now, sizeof version_now) == 0);
	CHECK(delta_bytes() > 100 && delta_bytes() < 1000);
	meet(job);
	meet(job);
}

static void begin(tutti *job, tutti_publisher_config c)
{
	if (tutti_rank(job) == 0) {
		version_now = 0;
		shared = open_state(shapes, TENSORS);
		publisher = open_publisher(job, &shared, c);
	}
	meet(job);
}

static void end(tutti *job)
{
	meet(job);
	if (tutti_rank(job) == 0) {
		tutti_publisher_close(publisher);
		close_state(&shared);
	}
}

static void show_deltas(tutti *job)
{
	begin(job, (tutti_publisher_config){ .deltas = 0.5 });
	if (tutti_rank(job) == 0)
		publish_deltas(job);
	else
		read_deltas(job);
	end(job);
}

static void test_updates(void) { ON_ALL(.size = 2, .program = show_deltas); }

/* A publisher without deltas; with memory for a few bytes of them; and what is refused. */
static void show_none(tutti *job)
{
	const double wrong[] = { -0.1, 16.5, NAN };
	tutti_tensor to[TENSORS];
	tutti_publisher *p;

	for (int few = 0; few < 2; few++) {
		begin(job, (tutti_publisher_config){ .deltas = few * 1e-9 });
		tutti_reader *r = tutti_rank(job) ? open_reader(job) : NULL;
		for (uint64_t i = 0; i < 3; i++) {
			if (!r)
				publish_next(i ? 10 : 1);
			meet(job);
			tt_model_place(&shared.model, shared.whole, to);
			if (r)
				check_update(r, i, to, 0);
			meet(job);
		}
		tutti_reader_close(r);
		end(job);
	}
	for (size_t i = 0; i < TT_COUNT(wrong); i++) {
		const tutti_publisher_config c = { .deltas = wrong[i] };
		const tutti_weight w = { .name = "w", .dims = 1, .shape = { 4 } };
		CHECK(tutti_publisher_open(job, "x", &w, 1, &c, &p) == -EINVAL && strstr(tutti_why(), "deltas"));
	}
	const tutti_publisher_config most = { .deltas = 16 };
	const tutti_weight huge = { .name = "w", .type = TUTTI_U8, .dims = 1, .shape = { UINT64_C(1) << 40 } };
	CHECK(tutti_publisher_open(job, "x", &huge, 1, &most, &p) == -EINVAL && strstr(tutti_why(), "16 TiB"));
}

static void test_without(void) { ON_ALL(.size = 2, .program = show_none); }

/* The name is opened again under the same generation, and its version 1 is another one. */
static void show_anew(tutti *job)
{
	const tutti_publisher_config c = { .deltas = 1, .generation = 1 };
	tutti_reader *r = NULL;
	tutti_tensor to[TENSORS];
	tutti_fetched got;
	int err;

	begin(job, c);
	tt_model_place(&shared.model, shared.whole, to);
	if (tutti_rank(job) == 0) {
		publish_next(1);
	} else {
		r = open_reader(job);
		CHECK(tutti_reader_fetch(r, 0, to, -1, &got) == 0 && got.version == 1);
	}
	meet(job);
	if (tutti_rank(job) == 0) {
		tutti_publisher_close(publisher);
		publisher = open_publisher(job, &shared, c);
		version_now = 0;
		publish_next(1);
		publish_next(100);
	}
	meet(job);
	while (r && (err = tutti_reader_update(r, 0, 1, to, 100, &got)))
		CHECK(err == -ESTALE || err == -ETIMEDOUT);
	if (r)
		CHECK(got.version == 2 && got.deltas == 0 && same_elements(&shared, shared.whole, shared.now));
	tutti_reader_close(r);
	end(job);
}

static void test_anew(void) { ON_ALL(.size = 2, .program = show_anew); }

/* The publisher writes over its few deltas all the time. Version v has v in the element v % MANY, and before it the
 * numbers of the versions before: the reader knows each version. */
static atomic_bool reading;
static atomic_uint updates_in_all;

static void write_version(uint16_t *a, uint64_t from, uint64_t version)
{
	while (from++ < version)
		for (uint64_t k = 0; k < 40; k++)
			a[(from * 977 + k * 13) % MANY] = (uint16_t)(from + k);
}

static void race(tutti *job)
{
	begin(job, (tutti_publisher_config){ .deltas = 0.02 });
	if (tutti_rank(job) == 0) {
		reading = true;
		meet(job);
		for (uint64_t v = 1; reading; v++) {
			write_version((uint16_t *)(void *)shared.now, v - 1, v);
			CHECK(tutti_publisher_publish(publisher, v, NULL, 0) == 0);
			pass_time(tt_world ? tt_sim_chance(100000) : 10000);
		}
	} else {
		uint16_t *is = calloc(MANY, sizeof *is);
		tutti_reader *r = open_reader(job);
		tutti_tensor to[TENSORS];
		tutti_fetched got = { 0 };
		uint64_t last = 0;
		tt_model_place(&shared.model, shared.whole, to);
		meet(job);
		for (int i = 0; i < 200; i++) {
			CHECK(tutti_reader_update(r, last, last, to, -1, &got) == 0 && got.mismatched == 0);
			write_version(is, last, got.version);
			CHECK(got.version > last && !memcmp(is, shared.whole, MANY * sizeof *is));
			last = got.version;
			updates_in_all += got.deltas > 0;
		}
		reading = false;
		tutti_reader_close(r);
		free(is);
	}
	end(job);
}

static void test_race(void)
{
	updates_in_all = 0;
	ON_ALL(.size = 2, .program = race);
	CU_ASSERT(updates_in_all > 100);
	printf("%u updates by deltas\n", updates_in_all);
}

/* ---- how long deltas are: `tutti perf publish` has the figures ---- */

static void test_lengths(void)
{
	const tutti_tensor one = { NULL, 1 << 20, TUTTI_BF16 };
	const uint64_t each[] = { 1000, 100, 10, 1 };
	struct state s = open_state(&one, 1);
	uint8_t *delta = malloc(s.model.bytes + TT_DELTA_SLACK);

	change_some(&s, 1);
	for (size_t i = 0; i < TT_COUNT(each); i++) {
		double changed = (double)change_some(&s, each[i]), p = 1 / (double)each[i];
		double entropy = p < 1 ? -(log2(p) + (1 / p - 1) * log2(1 - p)) / 8 : 0; /* of a gap, in bytes */
		struct tt_delta d = { 0 };
		tt_delta_write(&s.model, s.old, s.now, delta, s.model.bytes / 2, &d);
		CU_ASSERT(each[i] == 1 ? d.bytes == 0 : (double)d.bytes / (changed * (2 + entropy)) < 1.25);
	}
	free(delta);
	close_state(&s);
}

static CU_TestInfo tests[] = {
	{ "bytes", test_bytes },
	{ "gaps", test_gaps },
	{ "bits", test_bits },
	{ "garbage", test_garbage },
	{ "the ring", test_ring },
	{ "updates", test_updates },
	{ "without deltas", test_without },
	{ "opened again", test_anew },
	{ "a fast publisher", test_race },
	{ "lengths", test_lengths },
	CU_TEST_INFO_NULL,
};
static CU_SuiteInfo suites[] = { { "delta", NULL, NULL, NULL, NULL, tests }, CU_SUITE_INFO_NULL };

int main(int argc, char **argv) { return run_suites(suites, argc, argv); }
