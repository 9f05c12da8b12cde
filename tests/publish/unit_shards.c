/* unit_shards.c - publications in shards: versions that all have, shards that wait, deaths and successors */
#include "publish/publish_private.h"
#include "tests/harness/with.h"
#include "tests/publish/shards.h"
#include "tests/publish/wires.h"

static void meet(tutti *job) { CHECK(tutti_barrier(job, NULL) == 0); }

static tutti_publisher *open_shard(tutti *job, struct part *p, tutti_publisher_config c)
{
	tutti_publisher *out = NULL;

	CHECK(open_part(job, p, c, &out) == 0);
	return out;
}

static int publish(tutti_publisher *p, struct part *part, uint64_t version)
{
	fill_part(part, version);
	return tutti_publisher_publish(p, version, &version, sizeof version);
}

/* ---- which version all have ---- */

static void publish_in_turn(tutti *job, struct part *part)
{
	int me = tutti_rank(job);
	tutti_publisher *p = open_shard(job, part, (tutti_publisher_config){ .shard = me, .generation = 7,
	                                                                     .buffers = 4 });
	tutti_publisher_info info;

	meet(job);
	for (int version = 1; version <= 2 && me == 0; version++) /* half of its buffers */
		CHECK(publish(p, part, (uint64_t)version) == 0);
	if (me == 0) {
		CHECK(publish(p, part, 3) == -EAGAIN && strstr(tutti_why(), "shard"));
		CHECK(tutti_publisher_look(p, &info) == 0 && info.version == 2 && info.reused == 0);
	}
	if (me == 1)
		CHECK(publish(p, part, 1) == 0);
	meet(job);
	meet(job); /* no version is whole */
	if (me == 2)
		CHECK(publish(p, part, 1) == 0 && publish(p, part, 2) == 0);
	meet(job);
	meet(job); /* version 1 is */
	while (me == 0 && publish(p, part, 3) == -EAGAIN) /* the word of a shard may be on its way */
		pass_time(TT_MS);
	if (me == 0)
		CHECK(publish(p, part, 4) == -EAGAIN && strstr(tutti_why(), "shard 1 (rank 1) has version 1"));
	meet(job);
	if (me == 1)
		CHECK(publish(p, part, 2) == 0 && publish(p, part, 3) == 0);
	meet(job);
	meet(job); /* version 2 is */
	if (me == 0)
		CHECK(publish(p, part, 4) == 0 && publish(p, part, 5) == -EAGAIN); /* it has version 1 still */
	meet(job);
	meet(job);
	tutti_publisher_close(p);
}

static void fetch_whole(tutti_reader *r, struct part part[SHARDS], uint64_t version)
{
	tutti_tensor to[SHARDS * TENSORS_OF_SHARD];
	tutti_fetched got;
	uint64_t newest = 99;

	list_model(part, to);
	do /* the word of a shard may be on its way */
		CHECK(tutti_reader_newest(r, &newest) == 0);
	while (newest < version);
	CHECK(newest == version);
	CHECK(tutti_reader_fetch(r, version - 1, to, -1, &got) == 0 && got.version == version);
	CHECK(is_model(part, version) && got.generation == 7);
	CHECK(got.meta_bytes == sizeof version && !memcmp(got.meta, &version, sizeof version));
	CHECK(tutti_reader_fetch(r, version, to, 0, &got) == -ETIMEDOUT);
}

static void read_in_turn(tutti *job, struct part part[SHARDS])
{
	tutti_reader *r = NULL, *none = NULL;
	tutti_weight w;
	uint64_t newest = 99;

	meet(job);
	CHECK(tutti_reader_open(job, "policy", 1, &none) == -EINVAL && strstr(tutti_why(), "shard 1"));
	CHECK(tutti_reader_open(job, "policy", 0, &r) == 0 && tutti_reader_weights(r) == SHARDS * TENSORS_OF_SHARD);
	for (int i = 0; i < SHARDS * TENSORS_OF_SHARD; i++) {
		char name[32];
		snprintf(name, sizeof name, "layer%d.%s", i / 2, i % 2 ? "steps" : "weight");
		CHECK(tutti_reader_weight(r, i, &w) == 0 && w.shard == i / 2 && !strcmp(w.name, name));
	}
	CHECK(tutti_reader_weight(r, SHARDS * TENSORS_OF_SHARD, &w) == -EINVAL);
	CHECK(tutti_reader_weight(r, -1, &w) == -EINVAL);
	meet(job);
	CHECK(tutti_reader_newest(r, &newest) == 0 && newest == 0);
	meet(job);
	meet(job);
	fetch_whole(r, part, 1);
	meet(job);
	meet(job);
	meet(job);
	fetch_whole(r, part, 2);
	meet(job);
	meet(job);
	fetch_whole(r, part, 2); /* shard 0 has version 4, and keeps this one */
	tutti_reader_close(r);
	meet(job);
}

static void show_shards(tutti *job)
{
	struct part *part = calloc(SHARDS, sizeof *part);

	if (tutti_rank(job) < SHARDS)
		publish_in_turn(job, part);
	else
		read_in_turn(job, part);
	meet(job);
	free(part);
}

static void test_versions(void) { ON_ALL(.size = SHARDS + 1, .program = show_shards); }

/* ---- what is refused ---- */

static void refuse(tutti *job, int shards, int shard, int shard_0, int wait, uint64_t generation, const char *word)
{
	static float x;
	const tutti_weight w = { .name = "x", .type = TUTTI_F32, .data = &x };
	const tutti_publisher_config c = { .shards = shards, .shard = shard, .shard_0 = shard_0, .shard_wait_ms = wait,
		                           .generation = generation };
	tutti_publisher *p;

	CHECK(tutti_publisher_open(job, "refused", &w, 1, &c, &p) == -EINVAL && strstr(tutti_why(), word));
}

static atomic_int refused;

static void refuse_some(tutti *job)
{
	int me = tutti_rank(job);
	tutti_publisher *p = NULL;
	struct part *part = calloc(1, sizeof *part);

	refuse(job, 1, 1, 0, 0, 1, "at least 2");
	refuse(job, -1, 0, 0, 0, 1, "at least 2");
	refuse(job, 0, 0, 0, 5, 1, "at least 2");
	refuse(job, 2, 2, 0, 0, 1, "numbered");
	refuse(job, 2000, 0, me, 0, 1, "1024");
	refuse(job, 2, 0, me, 0, 0, "generation");
	refuse(job, 2, 0, me, -2, 1, "shard_wait_ms");
	refuse(job, 2, 0, 1 - me, 0, 1, "shard_0");
	refuse(job, 2, 1, me, 0, 1, "shard_0");
	refuse(job, 2, 1, 7, 0, 1, "member 7");
	if (me == 0)
		p = open_shard(job, part, (tutti_publisher_config){ .generation = 5 });
	refused = 0;
	meet(job);
	if (me == 1) { /* not in this generation, nor with so many */
		CHECK(open_part(job, part, (tutti_publisher_config){ .generation = 4, .shard = 1 }, &p) == -ESTALE);
		CHECK(open_part(job, part, (tutti_publisher_config){ .generation = 6, .shard = 1 }, &p) == -ETIMEDOUT);
		CHECK(strstr(tutti_why(), "generation 6"));
		p = NULL;
		refused = 1;
	}
	while (!refused) /* for as long as a barrier waits at most */
		pass_time(TT_MS);
	meet(job);
	tutti_publisher_close(p);
	free(part);
}

static void test_refused(void)
{
	CU_ASSERT_EQUAL(run_real_ranks((struct ranks){ .size = 2, .timeout_ms = 1500, .program = refuse_some }), 0);
	CU_ASSERT_EQUAL(run_on_sim(2, 1, 700, refuse_some), 0);
}

enum { LONG_ENOUGH = 120 }; /* seconds of what ends by itself */
static uint64_t long_enough(void) { return tt_now() + LONG_ENOUGH * 1000 * TT_MS; }

/* ---- publishers and readers at full speed ---- */

static atomic_int reading;
static atomic_uint_fast64_t last_version, overtaken_in_all; /* last_version: all shards publish up to it */

static void begin_versions(int readers)
{
	reading = readers;
	last_version = UINT64_MAX;
}

/* The first shard that sees that all have read names the last version. With four buffers others are at most two
 * versions ahead. One that is further ahead, with more buffers, ends a bit later: nobody reads its last versions. */
static bool goes_on(uint64_t version)
{
	uint_fast64_t none = UINT64_MAX;

	if (reading <= 0)
		atomic_compare_exchange_strong(&last_version, &none, version + 2);
	return version <= last_version;
}

static void publish_fast(tutti *job, struct part *part)
{
	tutti_publisher *p = open_shard(job, part, (tutti_publisher_config){ .shard = tutti_rank(job), .generation = 1,
	                                                                     .shard_wait_ms = -1, .buffers = 4 });

	for (uint64_t version = 1; goes_on(version); version++) {
		CHECK(publish(p, part, version) == 0);
		if (tt_world)
			pass_time(tt_sim_chance(100000));
	}
	meet(job);
	tutti_publisher_close(p);
}

static void read_fast(tutti *job, struct part part[SHARDS], int times)
{
	tutti_tensor to[SHARDS * TENSORS_OF_SHARD];
	tutti_reader *r = NULL;
	tutti_fetched got = { 0 };
	uint64_t last = 0;

	list_model(part, to);
	CHECK(tutti_reader_open(job, "policy", 0, &r) == 0);
	for (int i = 0; i < times; i++) {
		CHECK(tutti_reader_fetch(r, i % 4 ? 0 : last, to, -1, &got) == 0);
		CHECK(is_model(part, got.version) && got.version >= last + (i % 4 == 0));
		last = got.version;
		overtaken_in_all += got.overtaken;
	}
	reading--;
	meet(job);
	tutti_reader_close(r);
}

static void race(tutti *job)
{
	struct part *part = calloc(SHARDS, sizeof *part);

	if (tutti_rank(job) == 0)
		begin_versions(tutti_size(job) - SHARDS);
	meet(job);
	if (tutti_rank(job) < SHARDS)
		publish_fast(job, part);
	else
		read_fast(job, part, tt_world ? 10 : 50);
	free(part);
}

/* "a killed shard" has readers that are overtaken on more seeds. */
static void test_torn(void)
{
	overtaken_in_all = 0;
	CU_ASSERT_EQUAL(run_real_ranks((struct ranks){ .size = SHARDS + 2, .program = race }), 0);
	ON_SEEDS(30, 1000, .size = SHARDS + 2, .program = race);
	CU_ASSERT(overtaken_in_all > 0 || only_verbs());
	printf("readers of shards were overtaken %u times\n", (unsigned)overtaken_in_all);
}

/* A far reader, and a version each half round trip: also where a shard is ahead of the slowest one, a version lives as
 * long as the reader needs. */
enum { FAR = 100000 };

static void read_far(tutti *job, struct part part[SHARDS], int *late)
{
	tutti_tensor to[SHARDS * TENSORS_OF_SHARD];
	tutti_reader *r = NULL;
	tutti_fetched got;

	list_model(part, to);
	CHECK(tutti_reader_open(job, "policy", 0, &r) == 0);
	for (int i = 0; i < 10; i++) {
		int err = tutti_reader_fetch(r, 0, to, 100, &got);
		CHECK(err ? err == -EAGAIN && strstr(tutti_why(), "more buffers") : is_model(part, got.version));
		*late += err == -EAGAIN;
	}
	reading--;
	meet(job);
	tutti_reader_close(r);
}

static atomic_int far_buffers, far_late, far_in_step;
static atomic_uint_fast64_t far_published;

static void race_far(tutti *job)
{
	struct part *part = calloc(SHARDS, sizeof *part);
	int me = tutti_rank(job), late = 0;
	tutti_publisher *p = NULL;

	if (me == 0)
		begin_versions(1);
	far_published = 0;
	meet(job);
	if (me < SHARDS)
		p = open_shard(job, part, (tutti_publisher_config){ .shard = me, .generation = 1, .shard_wait_ms = -1,
		                                                    .buffers = far_buffers });
	else
		read_far(job, part, &late);
	for (uint64_t version = 1; me < SHARDS && goes_on(version); version++) {
		uint64_t end = long_enough();
		while (far_in_step && far_published < SHARDS * (version - 1) && tt_now() < end)
			pass_time(FAR / 10);
		CHECK(tt_now() < end && publish(p, part, version) == 0);
		far_published++;
		pass_time(FAR);
	}
	far_late += late;
	if (me < SHARDS)
		meet(job);
	tutti_publisher_close(p);
	free(part);
}

static int count_late(int buffers, bool in_step)
{
	far_buffers = buffers;
	far_in_step = in_step;
	far_late = 0;
	for (uint64_t seed = 0; seed < count_seeds(10); seed++)
		CU_ASSERT_EQUAL(run_ranks((struct ranks){ .size = SHARDS + 1, .wire = "sim", .seed = seed,
		                                          .latency_ns = FAR, .program = race_far }), 0);
	return far_late;
}

static void test_far(void)
{
	CU_ASSERT_EQUAL(count_late(4, true), 0);
	CU_ASSERT_EQUAL(count_late(8, true), 0);
	CU_ASSERT_EQUAL(count_late(16, false), 0);
}

/* ---- deaths ---- */

/* Ranks 0 and 5 read, 1 to 3 have shard 0 to 2, and 4 takes the place of a killed shard 1 or 2, in generation 2. A
 * killed shard 0 has no successor: that one would have its rank. */
enum { FIRST = 1, SPARE = 4, LAST = 5, RANKS = 6, ENOUGH = 5, FEW = 200 };
static atomic_int victim, finished, ready;

/* What a rank does when it is killed. */
enum step { BEFORE, OPENING, PUBLISHING, FETCHING, BETWEEN, STEPS };
static enum step step_of[RANKS];
static unsigned died[2][STEPS]; /* readers, shards */

static void be_at(int rank, enum step step)
{
	if (!tt_sim_killed(rank))
		step_of[rank] = step;
}

static bool has_successor(void) { return victim > FIRST && victim < SPARE; }

/* Nobody knows the rank of a shard that has died before it opened the name: the shards of the former generation find
 * that out by their timeout alone, and open the next one later than this shard waits for them. */
static int open_in_time(tutti *job, struct part *part, tutti_publisher_config c, tutti_publisher **p)
{
	int err;

	be_at(tutti_rank(job), OPENING);
	do
		err = open_part(job, part, c, p);
	while (err == -ETIMEDOUT && c.generation == 2);
	return err;
}

/* Until all have read enough, or a shard is gone. */
static int publish_generation(tutti *job, struct part *part, int generation, int shard)
{
	tutti_publisher_config c = { .generation = (uint64_t)generation, .shard = shard, .shard_0 = FIRST,
		                     .shard_wait_ms = -1, .buffers = 8 };
	tutti_publisher *p = NULL;
	int me = tutti_rank(job), err = open_in_time(job, part, c, &p);

	for (uint64_t version = 1; !err && !tt_sim_killed(me) && goes_on(version); version++) {
		be_at(me, PUBLISHING);
		err = publish(p, part, version);
		be_at(me, BETWEEN);
		tt_sim_sleep(tt_sim_chance(200000));
	}
	finished += !err && !tt_sim_killed(me);
	while (!err && !tt_sim_killed(me) && finished < SHARDS && !(victim == FIRST && has_gone(job, FIRST)))
		tt_sim_sleep(TT_MS);
	tutti_publisher_close(p);
	return err;
}

static void publish_on(tutti *job, struct part *part)
{
	int me = tutti_rank(job), err;

	if (me != SPARE) {
		err = publish_generation(job, part, 1, me - FIRST);
		CHECK(!err || victim < SPARE);
		CHECK(is_gone(err) || err == -EAGAIN || err == -ETIMEDOUT || !err || me == victim || err == -ESTALE);
	}
	if (me == victim || !has_successor())
		return;
	while (!has_gone(job, victim))
		tt_sim_sleep(TT_MS);
	CHECK(publish_generation(job, part, 2, (me == SPARE ? victim : me) - FIRST) == 0);
}

static void check_error(int rank, int err)
{
	char shard[32], who[32];

	if (rank == victim) /* it reads on after the others have read enough */
		return;
	snprintf(shard, sizeof shard, "shard %d", victim - FIRST);
	snprintf(who, sizeof who, "rank %d", (int)victim);
	CHECK(is_gone(err) || err == -EAGAIN || err == -ETIMEDOUT || err == -ESTALE);
	CHECK(!is_gone(err) || (strstr(tutti_why(), shard) && strstr(tutti_why(), who)));
}

static void read_on(tutti *job, struct part part[SHARDS])
{
	tutti_tensor to[SHARDS * TENSORS_OF_SHARD];
	int me = tutti_rank(job), err = -1, good = 0;
	uint64_t end = long_enough();
	tutti_reader *r = NULL;
	tutti_fetched got;

	list_model(part, to);
	be_at(me, OPENING);
	while (err && tt_now() < end && !tt_sim_killed(me) && !(victim == FIRST && has_gone(job, FIRST))) {
		err = tutti_reader_open(job, "policy", FIRST, &r);
		tt_sim_sleep(TT_MS / 10);
	}
	while (r && good < ENOUGH && tt_now() < end && !tt_sim_killed(me) && !(victim == FIRST && is_gone(err))) {
		be_at(me, FETCHING);
		err = tutti_reader_fetch(r, 0, to, -1, &got);
		be_at(me, BETWEEN);
		if (err)
			check_error(me, err);
		else
			CHECK(is_model(part, got.version));
		good += victim > FIRST && me != victim && !err && got.generation == (has_successor() ? 2 : 1);
		tt_sim_sleep(tt_sim_chance(20000));
	}
	CHECK(good == ENOUGH || victim == FIRST || me == victim);
	reading -= me != victim;
	while (me != victim && victim != FIRST && finished < SHARDS)
		tt_sim_sleep(TT_MS);
	tutti_reader_close(r);
}

/* All are there, and then one is killed: while they open, or later. */
static void begin_dying(int me)
{
	static const int victims[] = { FIRST, FIRST + 1, FIRST + 2, LAST };
	uint64_t end = long_enough();

	if (me == 0) {
		victim = victims[sim_run_now->seed % TT_COUNT(victims)];
		finished = 0;
		begin_versions(victim == LAST ? 1 : 2);
	}
	step_of[me] = BEFORE;
	ready++;
	while (ready < RANKS && tt_now() < end)
		tt_sim_sleep(1000);
	CHECK(ready == RANKS);
	if (me == 0)
		tt_sim_kill(victim, tt_sim_chance(sim_run_now->seed / 8 % 2 ? TT_MS / 2 : victim == LAST ? 10 * TT_MS :
		                                  3 * TT_MS));
}

static void die(tutti *job)
{
	struct part *part = calloc(SHARDS, sizeof *part);
	int me = tutti_rank(job);

	meet(job);
	begin_dying(me);
	if (me == 0 || me == LAST)
		read_on(job, part);
	else
		publish_on(job, part);
	while (me == victim && !tt_sim_killed(me))
		tt_sim_sleep(TT_MS);
	if (me == victim)
		died[me < SPARE][step_of[me]]++;
	free(part);
}

static void test_killed(void)
{
	memset(died, 0, sizeof died);
	long_count = FEW;
	for (uint64_t seed = first_seed(), end = seed + count_seeds((uint64_t)all_or(10000, 100)); seed < end; seed++) {
		ready = 0;
		CU_ASSERT_EQUAL(run_ranks((struct ranks){ .size = RANKS, .wire = "sim", .seed = seed,
		                                          .latency_ns = seed / 4 % 2 * LATENCY,
		                                          .bandwidth = seed / 4 % 2 * BANDWIDTH, .timeout_ms = 500,
		                                          .program = die }), 0);
	}
	long_count = LONG;
	for (int i = 0; i < 2; i++)
		printf("%s were killed %u times before they opened, %u while they opened, %u published, %u fetched, %u "
		       "between\n", i ? "shards" : "readers", died[i][BEFORE], died[i][OPENING], died[i][PUBLISHING],
		       died[i][FETCHING], died[i][BETWEEN]);
	if (only_verbs() || getenv("TEST_SEEDS") || getenv("TEST_SEED"))
		return;
	CU_ASSERT(died[1][OPENING] > 0 && died[1][PUBLISHING] > 0);
	CU_ASSERT(died[0][FETCHING] > 0 || !getenv("TEST_FULL")); /* of few seeds two or so */
}

/* ---- a new generation ---- */

static atomic_uint_fast64_t seen; /* generation */
static atomic_int opened;         /* shards of generation 3: the reader sees that before shard 0 does */

/* In generation 2, shards 1 and 2 have moved, in 3 shard 0, too. */
static int shard_of(int rank, uint64_t g)
{
	return g == 3 ? (rank + 1) % SHARDS : g == 2 ? (SHARDS - rank) % SHARDS : rank;
}

static void publish_generations(tutti *job, struct part *part)
{
	int me = tutti_rank(job);

	for (uint64_t g = 1; g <= 3; g++) {
		tutti_publisher *p = open_shard(job, part, (tutti_publisher_config){ .generation = g,
			.shard = shard_of(me, g), .shard_0 = g == 3 ? SHARDS - 1 : 0 });
		CHECK(publish(p, part, 9 - g) == 0);
		if (g == 1)
			meet(job);
		if (g == 1)
			meet(job);
		opened += g == 3;
		while (g > 1 && (seen < g || (g == 3 && opened < SHARDS)))
			pass_time(TT_MS);
		pass_time((uint64_t)me * 5 * TT_MS);
		tutti_publisher_close(p);
	}
}

static int fetch_again(tutti_reader *r, const tutti_tensor *to, uint64_t generation, tutti_fetched *got)
{
	int err = 0;

	while (got->generation != generation && (!err || err == -ESTALE || err == -ETIMEDOUT)) {
		err = tutti_reader_fetch(r, 8, to, 100, got);
		pass_time(TT_MS);
	}
	seen = generation;
	return err;
}

static void read_generations(tutti *job, struct part *part)
{
	tutti_tensor to[SHARDS * TENSORS_OF_SHARD];
	tutti_fetched got = { 0 };
	tutti_reader *r = NULL;

	list_model(part, to);
	meet(job);
	CHECK(tutti_reader_open(job, "policy", 0, &r) == 0);
	CHECK(tutti_reader_fetch(r, 0, to, -1, &got) == 0 && got.version == 8 && is_model(part, 8));
	meet(job);
	CHECK(fetch_again(r, to, 2, &got) == 0 && got.version == 7 && is_model(part, 7));
	CHECK(fetch_again(r, to, 3, &got) == -EBADMSG && strstr(tutti_why(), "another shard"));
	tutti_reader_close(r);
}

/* All shards close and open again; the reader goes on by itself, and takes no version of the former generation. */
static void open_again(tutti *job)
{
	struct part *part = calloc(SHARDS, sizeof *part);

	seen = 0;
	opened = 0;
	meet(job);
	if (tutti_rank(job) < SHARDS)
		publish_generations(job, part);
	else
		read_generations(job, part);
	meet(job);
	free(part);
}

static void test_again(void) { ON_ALL(.size = SHARDS + 1, .program = open_again); }

static CU_TestInfo tests[] = {
	{ "versions of shards", test_versions },
	{ "what shards refuse", test_refused },
	{ "torn in shards", test_torn },
	{ "far from shards", test_far },
	{ "a killed shard", test_killed },
	{ "shards open again", test_again },
	CU_TEST_INFO_NULL,
};
static CU_SuiteInfo suites[] = { { "shards", NULL, NULL, NULL, NULL, tests }, CU_SUITE_INFO_NULL };

int main(int argc, char **argv) { return run_suites(suites, argc, argv); }
