/* unit_gossip.c - gossip: rounds, both ways to hold a model, torn reads, peers that are late, slow, stopped or dead */
#include "average/gossip.h"
#include "tests/harness/cunit_main.h"
#include "tests/harness/folders.h"
#include "tests/harness/ranks.h"
#include "tests/harness/with.h"
#include <math.h>

enum { MANY = 16384 + 7 }; /* f32: more than a page, not a whole number of lines */
enum { DEATHS = 100 }; /* seeds */

static tutti_gossip *open_gossip(tutti *job, const char *name, const tutti_tensor *model, int n, tutti_gossip_config c)
{
	tutti_gossip *g = NULL;
	int err = tutti_gossip_open(job, name, model, n, &c, &g);

	CHECK(err == 0);
	return g;
}

static void meet(tutti *job) { CHECK(tutti_barrier(job, NULL) == 0); }

static void fill_doubles(double *x, int n, double value)
{
	for (int i = 0; i < n; i++)
		x[i] = value;
}

/* ---- rounds ---- */

static void average_pairs(tutti *job)
{
	int rank = tutti_rank(job);
	double x[3] = { rank, 2.0 * rank, -rank };
	float y[5] = { (float)rank };
	int64_t count = 100 + rank;
	tutti_tensor model[] = {
		{ x, 3, TUTTI_F64 }, { y, 5, TUTTI_F32 }, { &count, 1, TUTTI_I64 }, { NULL, 0, TUTTI_F32 }
	};
	tutti_gossip_config c = WITH(tutti_gossip_defaults(), it.value = 0.25, it.timeout_ms = 20000);
	tutti_gossip *g = open_gossip(job, "pairs", model, 4, c);
	tutti_gossip_result r;

	meet(job);
	CHECK(tutti_gossip_publish(g, 1) == 0);
	meet(job);
	x[0] += 10; /* the step after it */
	CHECK(tutti_gossip_mix(g, 1, &r) == 0);
	CHECK(r.peer == 1 - rank && r.factor == 0.25 && r.clock == 1 && r.retries == 0 && !*r.why);
	CHECK(x[0] == 0.75 * (rank + 10) + 0.25 * (1 - rank) && x[1] == 0.75 * 2 * rank + 0.25 * 2 * (1 - rank));
	CHECK(y[0] == 0.75f * (float)rank + 0.25f * (float)(1 - rank) && y[1] == 0);
	CHECK(count == 100 + rank); /* a quarter: mine */
	CHECK(tutti_gossip_mix(g, 1, &r) == 0 && r.peer == -1 && *r.why);
	meet(job);
	tutti_gossip_close(g);
	meet(job);
}

static int shown[2][6]; /* what a rank has published in each round, from 1 on */

/* A fetch that is quick finds what the peer has published in the round before. */
static void hold_model(tutti *job)
{
	int rank = tutti_rank(job);
	tutti_tensor list[] = { { NULL, MANY, TUTTI_F32 }, { NULL, 3, TUTTI_I32 } }, now[2], next[2];
	tutti_gossip *g = open_gossip(job, "held", list, 2,
	                              WITH(tutti_gossip_defaults(), it.value = 0.75, it.timeout_ms = 20000));
	tutti_gossip_result r;

	CHECK(tutti_gossip_model(g, NULL, next) == 0 && next[0].count == MANY && next[1].type == TUTTI_I32);
	for (int i = 0; i < MANY; i++)
		((float *)next[0].data)[i] = (float)rank;
	((int *)next[1].data)[0] = 7 + rank;
	meet(job);
	for (int round = 0; round < 5; round++) {
		shown[rank][round + 1] = ((int *)next[1].data)[0];
		CHECK(tutti_gossip_publish(g, 1) == 0);
		CHECK(tutti_gossip_model(g, now, next) == 0 && now[0].data != next[0].data);
		float mine = ((float *)now[0].data)[0];
		memcpy(next[0].data, now[0].data, MANY * sizeof(float)); /* a step that changes nothing */
		memcpy(next[1].data, now[1].data, 3 * sizeof(int));
		meet(job);
		CHECK(tutti_gossip_mix(g, 1, &r) == 0 && r.peer == 1 - rank);
		CHECK(tutti_gossip_model(g, now, next) == 0);
		float *x = next[0].data;
		CHECK(fabsf(x[0] + mine - 1) < 1.1f && x[0] != mine && x[MANY - 1] == x[0]);
		int got = ((int *)next[1].data)[0]; /* three quarters: the peer's */
		CHECK(got == shown[1 - rank][round + 1] || (round && got == shown[1 - rank][round]));
		meet(job);
	}
	tutti_gossip_close(g);
	meet(job);
}

static int run_all_wires(struct ranks run)
{
	int failed = run_real_ranks(run);

	for (run.seed = 0; run.seed < 20; run.seed++) {
		run.wire = "sim";
		failed += run_ranks(run);
	}
	return failed;
}

#define ON_ALL(...) CU_ASSERT_EQUAL(run_all_wires((struct ranks){ __VA_ARGS__ }), 0)

static void test_pairs(void) { ON_ALL(.size = 2, .program = average_pairs); }

/* The peer's model comes as it was published, and mine stays. */
static void fetch_model(tutti *job)
{
	int rank = tutti_rank(job), peer = 1 - rank;
	double x[3] = { rank, 2.0 * rank, -rank }, got_x[3];
	int64_t count = 100 + rank, got_count = 0;
	uint8_t byte = (uint8_t)(200 + rank), got_byte = 0;
	tutti_tensor model[] = {
		{ x, 3, TUTTI_F64 }, { NULL, 0, TUTTI_F32 }, { &count, 1, TUTTI_I64 }, { &byte, 1, TUTTI_U8 }
	};
	tutti_tensor to[] = {
		{ got_x, 3, TUTTI_F64 }, { NULL, 0, TUTTI_F32 }, { &got_count, 1, TUTTI_I64 },
		{ &got_byte, 1, TUTTI_U8 }
	};
	tutti_gossip_config c = WITH(tutti_gossip_defaults(), it.value = 0.25, it.timeout_ms = 20000);
	tutti_gossip *g = open_gossip(job, "fetched", model, 4, c);
	tutti_gossip_result r;

	meet(job);
	CHECK(tutti_gossip_publish(g, 5 + rank) == 0);
	meet(job);
	x[0] += 10;
	CHECK(tutti_gossip_fetch(g, 1, NULL, &r) == -EINVAL && tutti_gossip_fetch(g, 1, to, NULL) == -EINVAL);
	to[0].count = 2;
	CHECK(tutti_gossip_fetch(g, 1, to, &r) == -EINVAL && strstr(tutti_why(), "tensor 0"));
	to[0].count = 3;
	pass_time(5 * TT_MS);
	CHECK(tutti_gossip_fetch(g, 1, to, &r) == 0 && r.peer == peer && r.factor == 0.25 && !*r.why);
	CHECK(r.peer_clock == 1 && r.peer_loss == 5 + peer && !r.peer_not_finite && r.clock == 1);
	CHECK(r.age_ms >= 5 && r.age_ms < 60000);
	CHECK(got_x[0] == peer && got_x[1] == 2 * peer && got_x[2] == -peer && got_count == 100 + peer);
	CHECK(got_byte == 200 + peer && byte == 200 + rank);
	CHECK(x[0] == rank + 10 && count == 100 + rank);
	CHECK(tutti_gossip_fetch(g, 1, to, &r) == 0 && r.peer == -1 && *r.why);
	CHECK(tutti_gossip_value(g) == 0.25 && tutti_gossip_set_value(g, 1.5) == -EINVAL);
	CHECK(tutti_gossip_set_value(g, 0.75) == 0 && tutti_gossip_value(g) == 0.75);
	meet(job);
	CHECK(tutti_gossip_publish(g, 1) == 0);
	meet(job);
	CHECK(tutti_gossip_mix(g, 1, &r) == 0 && r.peer == peer && r.factor == 0.75 && byte == 200 + peer);
	meet(job);
	tutti_gossip_close(g);
	g = open_gossip(job, "given", model, 4, WITH(tutti_gossip_defaults(), it.way = TUTTI_GOSSIP_PUSH));
	CHECK(tutti_gossip_fetch(g, 1, to, &r) == -ENOTSUP);
	meet(job);
	tutti_gossip_close(g);
	meet(job);
}

/* The program takes a step while the peer's model comes: the average of the copy moves what the model is by then. */
static void mix_behind(tutti *job)
{
	int rank = tutti_rank(job), peer = 1 - rank;
	double x[3] = { rank, 2.0 * rank, -rank };
	int64_t count = 100 + rank;
	tutti_tensor model[] = { { x, 3, TUTTI_F64 }, { &count, 1, TUTTI_I64 } };
	tutti_gossip_config c = WITH(tutti_gossip_defaults(), it.value = 0.25, it.timeout_ms = 20000);
	tutti_gossip *g = open_gossip(job, "behind", model, 2, c);
	tutti_gossip_result r;
	tutti_op op = { 0 };

	meet(job);
	CHECK(tutti_gossip_mix_apply(g, &r) == -EINVAL && strstr(tutti_why(), "nothing was started"));
	CHECK(tutti_gossip_publish(g, 1) == 0);
	meet(job);
	x[0] += 10;
	CHECK(tutti_gossip_mix_start(g, 1, NULL) == -EINVAL);
	CHECK(tutti_gossip_mix_start(g, 1, &op) == 0);
	x[0] += 5;
	CHECK(tutti_gossip_mix(g, 1, &r) == -EALREADY && tutti_gossip_publish(g, 1) == -EALREADY);
	CHECK(tutti_gossip_mix_start(g, 1, &op) == -EALREADY);
	CHECK(tutti_wait(&op, -1) == 0);
	CHECK(x[0] == rank + 15); /* nobody else writes it */
	CHECK(tutti_gossip_mix_apply(g, &r) == 0 && r.peer == peer && r.factor == 0.25 && !*r.why);
	CHECK(x[0] == rank + 15 + 0.25 * (peer - (rank + 10)) && x[1] == 2 * rank + 0.25 * (2 * peer - 2 * rank));
	CHECK(count == 100 + rank && r.peer_clock == 1);
	CHECK(tutti_gossip_mix_apply(g, &r) == -EINVAL);
	CHECK(tutti_gossip_mix_start(g, 1, &op) == 0 && tutti_wait(&op, -1) == 0);
	CHECK(tutti_gossip_mix_apply(g, &r) == 0 && r.peer == -1 && *r.why);
	meet(job);
	CHECK(tutti_gossip_set_value(g, 1) == 0 && tutti_gossip_publish(g, 1) == 0);
	double theirs = x[2], other = 0;
	CHECK(tutti_allreduce(job, &theirs, &other, 1, TUTTI_F64, TUTTI_SUM, NULL) == 0);
	CHECK(tutti_gossip_mix_start(g, 1, &op) == 0 && tutti_wait(&op, -1) == 0);
	CHECK(tutti_gossip_mix_apply(g, &r) == 0 && r.factor == 1 && count == 100 + peer &&
	      (x[2] == -peer || fabs(x[2] - (other - theirs)) < 1e-12)); /* of the first round, or of this one */
	meet(job);
	CHECK(tutti_gossip_publish(g, 1) == 0 && tutti_gossip_mix_start(g, 1, &op) == 0);
	CHECK(tutti_cancel(&op) == 0); /* also where the mix has ended */
	CHECK(tutti_gossip_mix_apply(g, &r) == 0 || strstr(tutti_why(), "mix"));
	tutti_gossip_close(g);
	meet(job);
}

static void test_behind(void) { ON_ALL(.size = 2, .program = mix_behind); }

/* Held by the library; and a peer that has not opened it. */
static void mix_held_behind(tutti *job)
{
	int rank = tutti_rank(job);
	tutti_tensor list = { NULL, MANY, TUTTI_F32 }, next;
	tutti_gossip_config c = WITH(tutti_gossip_defaults(), it.timeout_ms = 100);
	tutti_gossip *g = rank ? open_gossip(job, "one", &list, 1, c) : NULL;
	tutti_gossip_result r;
	tutti_op op = { 0 };

	if (rank) {
		CHECK(tutti_gossip_publish(g, 1) == 0 && tutti_gossip_mix_start(g, 1, &op) == 0);
		CHECK(tutti_wait(&op, 5000) == 0 && tutti_gossip_mix_apply(g, &r) == 0);
		CHECK(r.peer == -1 && *r.why);
	}
	meet(job);
	tutti_gossip_close(g);
	g = open_gossip(job, "held behind", &list, 1, WITH(c, it.timeout_ms = 20000));
	CHECK(tutti_gossip_model(g, NULL, &next) == 0);
	for (int i = 0; i < MANY; i++)
		((float *)next.data)[i] = (float)(4 * rank);
	meet(job);
	CHECK(tutti_gossip_publish(g, 1) == 0 && tutti_gossip_model(g, NULL, &next) == 0);
	for (int i = 0; i < MANY; i++)
		((float *)next.data)[i] = (float)(4 * rank);
	meet(job);
	CHECK(tutti_gossip_mix_start(g, 1, &op) == 0);
	for (int i = 0; i < MANY; i++)
		((float *)next.data)[i] += 1;
	CHECK(tutti_wait(&op, -1) == 0 && tutti_gossip_mix_apply(g, &r) == 0 && r.peer == 1 - rank);
	CHECK(tutti_gossip_model(g, NULL, &next) == 0);
	for (int i = 0; i < MANY; i++)
		CHECK(((float *)next.data)[i] == 3);
	meet(job);
	tutti_gossip_close(g);
	meet(job);
}

static int wait_result;
static atomic_bool has_left;

static atomic_bool waits; /* or is about to */

static void *wait_for_mix(void *op)
{
	waits = true;
	wait_result = tutti_wait(op, -1);
	return NULL;
}

/* Rank 1 has a thread that waits for a mix without end, and its hook says stop: it leaves at once all the same. */
static void leave_behind(tutti *job)
{
	static const volatile int stop = 1;
	double x = 1;
	tutti_tensor model = { &x, 1, TUTTI_F64 };
	tutti_gossip *g = NULL;
	tutti_op op = { 0 };
	pthread_t thread;

	meet(job); /* a peer that is connected, and never opens the gossip */
	while (tutti_rank(job) == 0 && !has_left)
		pass_time(TT_MS);
	if (tutti_rank(job) == 0)
		return;
	g = open_gossip(job, "alone", &model, 1, WITH(tutti_gossip_defaults(), it.timeout_ms = 30000));
	CHECK(tutti_gossip_publish(g, 1) == 0 && tutti_gossip_mix_start(g, 1, &op) == 0);
	waits = false;
	CHECK(pthread_create(&thread, NULL, wait_for_mix, &op) == 0);
	while (!waits)
		usleep(1000);
	usleep(100000);
	uint64_t begun = tt_now();
	tutti_on_wait_flag(&stop);
	this_run->left[1] = true;
	tutti_leave(job);
	has_left = true;
	tutti_on_wait_flag(NULL);
	CHECK(tt_now() - begun < 10000 * TT_MS);
	pthread_join(thread, NULL);
	CHECK(wait_result == -ESHUTDOWN);
	tutti_gossip_close(g);
}

static void test_left_behind(void)
{
	for (int i = 0; i < 2; i++) {
		has_left = false;
		CU_ASSERT_EQUAL(run_ranks((struct ranks){ .size = 2, .wire = i ? "tcp" : "shm",
		                                          .program = leave_behind }), 0);
	}
}

static void test_held_behind(void) { ON_ALL(.size = 2, .program = mix_held_behind); }

static void *mix_in_thread(void *g)
{
	tutti_gossip_result r;

	wait_result = tutti_gossip_mix(g, 1, &r);
	return NULL;
}

/* This process closes the gossip in a mix: the peer is not to blame. */
static void close_behind(tutti *job)
{
	double x = 1;
	tutti_tensor model = { &x, 1, TUTTI_F64 };
	pthread_t thread;

	meet(job); /* a peer that is connected, and never opens the gossip */
	while (tutti_rank(job) == 0 && !has_left)
		pass_time(TT_MS);
	if (tutti_rank(job) == 0)
		return;
	tutti_gossip *g = open_gossip(job, "alone", &model, 1, WITH(tutti_gossip_defaults(), it.timeout_ms = 30000));
	CHECK(tutti_gossip_publish(g, 1) == 0);
	CHECK(pthread_create(&thread, NULL, mix_in_thread, g) == 0);
	usleep(100000);
	tutti_gossip_close(g);
	pthread_join(thread, NULL);
	CHECK(wait_result == -ESTALE);
	has_left = true;
}

static void test_closed_behind(void)
{
	for (int i = 0; i < 2; i++) {
		has_left = false;
		CU_ASSERT_EQUAL(run_ranks((struct ranks){ .size = 2, .wire = i ? "tcp" : "shm",
		                                          .program = close_behind }), 0);
	}
}

/* A fetch into a list writes into no buffer, so readers of all of them go on. */
static void fetch_beside_readers(tutti *job)
{
	double x = tutti_rank(job), to = -1;
	tutti_tensor model = { &x, 1, TUTTI_F64 }, list = { &to, 1, TUTTI_F64 };
	tutti_gossip *g = open_gossip(job, "readers", &model, 1, tutti_gossip_defaults());
	tutti_gossip_result r;

	meet(job);
	for (int i = 0; i < g->config.buffers; i++)
		CHECK(tutti_gossip_publish(g, 1) == 0);
	meet(job);
	CHECK(tutti_gossip_fetch(g, 1, &list, &r) == 0 && r.peer == 1 - tutti_rank(job) && to == r.peer);
	for (int i = 0; i < g->config.buffers; i++)
		CHECK(g->head->stamp[i].number != 0);
	meet(job);
	tutti_gossip_close(g);
	meet(job);
}

static void test_beside_readers(void) { ON_ALL(.size = 2, .program = fetch_beside_readers); }

static void test_fetch(void) { ON_ALL(.size = 2, .program = fetch_model); }

/* A rank whose loss is no number gives nothing, and takes the peer's model. */
static void mend_spoiled(tutti *job)
{
	int rank = tutti_rank(job);
	double x = rank ? NAN : 3, loss = rank ? NAN : 1;
	tutti_tensor model = { &x, 1, TUTTI_F64 };
	tutti_gossip *g = open_gossip(job, "spoiled", &model, 1, WITH(tutti_gossip_defaults(), it.timeout_ms = 20000));
	tutti_gossip_result r;

	meet(job);
	CHECK(tutti_gossip_publish(g, loss) == 0);
	meet(job);
	CHECK(tutti_gossip_mix(g, loss, &r) == 0 && r.peer == 1 - rank && r.factor == rank);
	CHECK(r.peer_not_finite == !rank && x == 3);
	meet(job);
	tutti_gossip_close(g);
	meet(job);
}

static void test_spoiled(void) { ON_ALL(.size = 2, .program = mend_spoiled); }
static void test_held(void) { ON_ALL(.size = 2, .program = hold_model); }

/* ---- the choice of peers ---- */

enum { CHOOSERS = 6, CHOICES = 12 };
static tutti_gossip_choice choice_now;

/* On two hosts ranks are on both in turn. */
static bool is_chosen(int rank, int peer, int round)
{
	int away = (peer - rank + CHOOSERS) % CHOOSERS;

	switch (choice_now) {
	case TUTTI_CHOICE_EXPONENTIAL: return away == 1 << round % 3;
	case TUTTI_CHOICE_RING: return away == (round % 2 ? CHOOSERS - 1 : 1);
	default: return peer >= 0 && away && (away % 2 == 0) == (round % 4 != 3);
	}
}

static void choose_over_rounds(tutti *job)
{
	int rank = tutti_rank(job);
	double x = rank;
	tutti_tensor model = { &x, 1, TUTTI_F64 };
	tutti_gossip *g = open_gossip(job, "choices", &model, 1,
	                              WITH(tutti_gossip_defaults(), it.choice = choice_now, it.timeout_ms = 20000));
	tutti_gossip_result r;
	char next[16];

	snprintf(next, sizeof next, "%d", (rank + 1) % CHOOSERS);
	meet(job);
	for (int round = 0; round <= CHOICES; round++) {
		if (round == CHOICES) /* the next rank's turn, which is not there for this one */
			CHECK(tutti_gossip_remove_peer(g, next) == 0);
		CHECK(tutti_gossip_publish(g, 1) == 0);
		meet(job);
		CHECK(tutti_gossip_mix(g, 1, &r) == 0);
		if (round < CHOICES)
			CHECK(is_chosen(rank, r.peer, round));
		else if (choice_now != TUTTI_CHOICE_HOSTS)
			CHECK(r.peer == (rank + 2) % CHOOSERS);
		meet(job);
	}
	tutti_gossip_close(g);
	meet(job);
}

static void test_choices(void)
{
	for (choice_now = TUTTI_CHOICE_EXPONENTIAL; choice_now <= TUTTI_CHOICE_RING; choice_now++)
		ON_ALL(.size = CHOOSERS, .program = choose_over_rounds);
	for (uint64_t seed = 0; seed < 20; seed++)
		CU_ASSERT_EQUAL(run_ranks((struct ranks){ .size = CHOOSERS, .wire = "sim", .hosts = 2, .seed = seed,
		                                          .program = choose_over_rounds }), 0);
#ifdef HAVE_LIBCONFIG
	CU_ASSERT_EQUAL(run_real_ranks((struct ranks){ .size = CHOOSERS, .hosts = 2, .program = choose_over_rounds }),
	                0);
#endif
}

/* A peer that has diverged, and of which nothing is taken, spoils nothing. */
static void take_nothing(tutti *job)
{
	double x = tutti_rank(job) ? NAN : 3;
	tutti_tensor model = { &x, 1, TUTTI_F64 };
	tutti_gossip *g =
		open_gossip(job, "none", &model, 1,
	                    WITH(tutti_gossip_defaults(), it.method = TUTTI_GOSSIP_LOSS, it.timeout_ms = 20000));
	tutti_gossip_result r;

	meet(job);
	CHECK(tutti_gossip_publish(g, tutti_rank(job)) == 0);
	meet(job);
	CHECK(tutti_gossip_mix(g, tutti_rank(job), &r) == 0 && r.peer == 1 - tutti_rank(job) &&
	      r.factor == tutti_rank(job));
	CHECK(x == 3);
	meet(job);
	tutti_gossip_close(g);
	meet(job);
}

static void test_nothing(void) { ON_ALL(.size = 2, .program = take_nothing); }

/* A push needs a third buffer: while a gift is kept, the next publication goes elsewhere. */
static void open_with_few(tutti *job)
{
	double x = 0;
	tutti_tensor model[] = { { &x, 1, TUTTI_F64 }, { NULL, 1, TUTTI_F64 } };
	tutti_gossip_config c = WITH(tutti_gossip_defaults(), it.buffers = 2);
	tutti_gossip *g;

	for (c.way = TUTTI_GOSSIP_PUSH; c.way <= TUTTI_GOSSIP_PUSH_SUM; c.way++) {
		c.buffers = 2;
		CHECK(tutti_gossip_open(job, "few", &model[0], 1, &c, &g) == -EINVAL && strstr(tutti_why(), "buffers"));
		c.buffers = 3;
		CHECK(tutti_gossip_open(job, "few", &model[1], 1, &c, &g) == -EINVAL && strstr(tutti_why(), "buffers"));
	}
}

static void test_few(void)
{
	CU_ASSERT_EQUAL(run_ranks((struct ranks){ .size = 1, .wire = "sim", .program = open_with_few }), 0);
}

/* ---- torn reads: all elements of a publication have its number ---- */

static atomic_int torn_done;
static uint64_t torn_mixed, torn_retries;

static void fill(float *x, size_t n, float value)
{
	for (size_t i = 0; i < n; i++)
		x[i] = value;
}

static bool is_level(const float *x, size_t n)
{
	for (size_t i = 1; i < n; i++)
		if (x[i] != x[0])
			return false;
	return true;
}

static size_t torn_count = MANY;
static int torn_rounds;

/* Rank 0 publishes at full speed; rank 1 takes over what it reads (f = 1), or fetches it. */
static void tear(tutti *job)
{
	int rank = tutti_rank(job), rounds = torn_rounds;
	float *x = malloc(torn_count * sizeof *x), *y = malloc(torn_count * sizeof *y), number = 0;
	tutti_tensor to = { y, torn_count, TUTTI_F32 };
	tutti_tensor model = { x, torn_count, TUTTI_F32 };
	tutti_gossip *g = open_gossip(job, "torn", &model, 1,
	                              WITH(tutti_gossip_defaults(), it.value = 1, it.timeout_ms = 20000, it.buffers = 2,
	                                   it.fetch_probability = rank));
	tutti_gossip_result r;
	tutti_gossip_info info;

	fill(x, torn_count, 0);
	CHECK(tutti_gossip_publish(g, 1) == 0);
	torn_done = 0;
	meet(job);
	for (int i = 0; rank == 1 && i < rounds; i++) {
		CHECK(tutti_gossip_publish(g, 1) == 0);
		if (i % 2) {
			CHECK(tutti_gossip_mix(g, 1, &r) == 0);
			CHECK(is_level(x, torn_count));
		} else {
			CHECK(tutti_gossip_fetch(g, 1, &to, &r) == 0);
			CHECK(r.peer < 0 || is_level(y, torn_count));
		}
	}
	torn_done |= rank;
	while (!torn_done) {
		fill(x, torn_count, ++number);
		CHECK(tutti_gossip_publish(g, 1) == 0);
		if (tt_world)
			pass_time(1000);
	}
	CHECK(tutti_gossip_look(g, &info) == 0);
	if (rank == 1) {
		torn_mixed += info.mixed;
		torn_retries += info.retries;
	}
	meet(job);
	tutti_gossip_close(g);
	free(x);
	free(y);
	meet(job);
}

static void test_torn(void)
{
	torn_rounds = all_or(300, 75);
	ON_ALL(.size = 2, .program = tear);
	CU_ASSERT(torn_mixed > 0);
}

/* ---- push-sum ---- */

enum { RANKS = 4, ROUNDS = 12 };
static double start_of(int rank) { return 3.0 * rank - 1; }
static const double mean = (3.0 * (RANKS - 1) * RANKS / 2 - RANKS) / RANKS;

static double sum_of(tutti *job, double x)
{
	CHECK(tutti_allreduce(job, &x, &x, 1, TUTTI_F64, TUTTI_SUM, NULL) == 0);
	return x;
}

/* All give and take at their own pace; then they take what is left. */
static void give_and_take(tutti *job)
{
	enum { N = 40000 };
	double *x = malloc(N * sizeof *x);
	float *y = malloc(N * sizeof *y);
	tutti_tensor model[] = { { x, N, TUTTI_F64 }, { y, N, TUTTI_F32 } };
	tutti_gossip *g;
	tutti_gossip_info info;
	double left;

	for (int i = 0; i < N; i++)
		y[i] = (float)(x[i] = start_of(tutti_rank(job)));
	g = open_gossip(job, "sum", model, 2,
	                WITH(tutti_gossip_defaults(), it.way = TUTTI_GOSSIP_PUSH_SUM, it.seed = 5));
	for (int i = 0; i < ROUNDS; i++) {
		CHECK(tutti_gossip_publish(g, 1) == 0 && tutti_gossip_mix(g, 1, NULL) == 0);
		pass_time(200000);
	}
	do {
		CHECK(tutti_gossip_mix(g, 1, NULL) == 0 && tutti_gossip_look(g, &info) == 0);
		left = sum_of(job, info.in_flight + info.offers);
	} while (left > 0);
	CHECK(fabs(sum_of(job, info.weight) - 1) < 1e-12 && info.lost == 0);
	CHECK(fabs(sum_of(job, info.weight * x[0]) - mean) < 1e-12 * RANKS);
	CHECK(fabs(sum_of(job, info.weight * x[N - 1]) - mean) < 1e-12 * RANKS);
	CHECK(fabs(sum_of(job, info.weight * (double)y[N / 2]) - mean) < 1e-5 * RANKS);
	CHECK(sum_of(job, (double)info.mixed) > RANKS);
	meet(job);
	tutti_gossip_close(g);
	free(x);
	free(y);
	meet(job);
}

static void test_push_sum(void) { ON_ALL(.size = RANKS, .program = give_and_take); }

/* ---- ranks that are killed or stopped, on sim ---- */

static struct { /* by rank; the fibers share them */
	tutti_gossip_info info;
	atomic_bool over, done;
	uint64_t longest; /* call, in nanoseconds */
	int with_victim, after_return;
} fate[RANKS];
static tutti_gossip_way way_now;
static int victim;
static uint64_t stopped_for; /* 0: killed */
static atomic_bool returned;

static void timed(int rank, int (*call)(tutti_gossip *), tutti_gossip *g)
{
	uint64_t begun = tt_now(), took;
	int err = call(g);

	took = tt_now() - begun;
	if (rank == victim)
		return;
	CHECK(err == 0);
	fate[rank].longest = tt_max(fate[rank].longest, took);
}

static tutti_gossip_result last_result[RANKS];
static int publish(tutti_gossip *g) { return tutti_gossip_publish(g, 1); }
static int mix(tutti_gossip *g) { return tutti_gossip_mix(g, 1, &last_result[g->job->rank]); }

static bool all_over(void)
{
	for (int i = 0; i < RANKS; i++)
		if (i != victim && (!fate[i].over || fate[i].info.in_flight > 0 || fate[i].info.offers))
			return false;
	return true;
}

static tutti_gossip *open_small(tutti *job, double *x, size_t n)
{
	tutti_tensor model = { x, n, TUTTI_F64 };

	return open_gossip(job, "faults", &model, 1,
	                   WITH(tutti_gossip_defaults(), it.way = way_now, it.timeout_ms = 50));
}

static void live_on(tutti *job)
{
	enum { N = 3000 }; /* some GETs */
	int rank = tutti_rank(job);
	double x[N];
	tutti_gossip *g;

	fate[rank].over = fate[rank].done = false;
	fate[rank].longest = 0;
	fill_doubles(x, N, start_of(rank));
	g = open_small(job, x, N);
	meet(job);
	if (rank == 0)
		tt_sim_kill(victim, 5 * TT_MS + tt_sim_chance(20 * TT_MS));
	for (int i = 0; i < 40 && !tt_sim_killed(rank); i++) {
		timed(rank, publish, g);
		tt_sim_sleep(TT_MS);
		timed(rank, mix, g);
	}
	if (rank == victim) {
		while (!tt_sim_killed(rank))
			tt_sim_sleep(TT_MS);
		tutti_gossip_close(g);
		return;
	}
	while (!fate[victim].done) { /* it is dead for all, and what was on its way is settled */
		timed(rank, mix, g);
		CHECK(tutti_gossip_look(g, &fate[rank].info) == 0);
		fate[rank].over = !tt_member_is_there(job->job, victim);
		tt_sim_sleep(TT_MS);
		if (all_over())
			fate[victim].done = true;
	}
	CHECK(fate[rank].longest <= 100 * TT_MS);
	tutti_gossip_close(g);
}

static void test_killed(void)
{
	stopped_for = 0;
	for (int k = 0; k < 2; k++)
		for (uint64_t seed = 0; seed < count_seeds(DEATHS); seed++) {
			double sum = 1.0 / RANKS;
			way_now = k ? TUTTI_GOSSIP_PUSH_SUM : TUTTI_GOSSIP_PULL;
			victim = (int)(seed % RANKS);
			memset((void *)fate, 0, sizeof fate);
			CU_ASSERT_EQUAL(run_ranks((struct ranks){ .size = RANKS,
			                                          .wire = "sim",
			                                          .seed = seed,
			                                          .silence_ms = 500,
			                                          .program = live_on }),
			                0);
			for (int i = 0; i < RANKS; i++)
				if (i != victim)
					sum += fate[i].info.weight + fate[i].info.lost;
			if (k && !only_verbs() && fabs(sum - 1) > 1e-12)
				printf("seed %llu: %.17g\n", (unsigned long long)seed, sum - 1);
			CU_ASSERT(!k || only_verbs() || fabs(sum - 1) < 1e-12);
		}
}

/* One is stopped for longer than the silence. The others evict it and go on; it finds that nobody is there. Whoever
 * comes back leaves, and comes in again: the others take it up under its new life. */
static void come_back(tutti *job)
{
	int rank = tutti_rank(job);
	bool late = false; /* not a comparison of jobs: the second may lie where the first was */
	double x[10];
	tutti_gossip *g;

	fill_doubles(x, 10, start_of(rank));
	g = open_small(job, x, 10);
	meet(job);
	if (rank == 0 && stopped_for)
		tt_sim_stop(victim, 5 * TT_MS + tt_sim_chance(5 * TT_MS), stopped_for);
	for (int i = 0; !fate[victim].done; i++) {
		int err = tutti_gossip_publish(g, 1);
		pass_time(TT_MS);
		CHECK(tutti_gossip_look(g, &fate[rank].info) == 0);
		if (rank == victim && !late && (stopped_for ? err == -ECONNRESET || !fate[rank].info.peers : i == 5)) {
			tutti_gossip_close(g);
			CHECK(join_again(job, rank, &job) == 0);
			g = open_small(job, x, 10);
			late = true;
			returned = true;
			continue;
		}
		timed(rank, mix, g);
		if (rank != victim && returned && last_result[rank].peer == victim)
			fate[rank].over = true;
		bool all = true;
		for (int k = 0; k < RANKS; k++)
			all = all && (k == victim || fate[k].over);
		fate[victim].done |= all;
	}
	CHECK(rank == victim || !stopped_for || fate[rank].longest <= 100 * TT_MS);
	tutti_gossip_close(g);
	if (late)
		tutti_leave(job);
}

static int run_return(const char *wire, uint64_t seed, int silence_ms)
{
	memset((void *)fate, 0, sizeof fate);
	returned = false;
	return run_ranks((struct ranks){ .size = RANKS, .wire = wire, .seed = seed,
		.silence_ms = silence_ms, .program = come_back });
}

static void test_stopped(void)
{
	way_now = TUTTI_GOSSIP_PULL;
	stopped_for = 2000 * TT_MS;
	for (uint64_t seed = 0; seed < count_seeds(DEATHS); seed++) {
		victim = 1 + (int)(seed % (RANKS - 1));
		CU_ASSERT_EQUAL(run_return("sim", seed, 300), 0);
	}
}

static void test_again(void)
{
	way_now = TUTTI_GOSSIP_PULL;
	stopped_for = 0;
	victim = RANKS - 1;
	CU_ASSERT_EQUAL(run_return("tcp", 0, 0), 0);
	CU_ASSERT_EQUAL(run_return("shm", 0, 0), 0);
	for (uint64_t seed = 0; seed < 30; seed++)
		CU_ASSERT_EQUAL(run_return("sim", seed, 0), 0);
}

/* ---- gifts that cannot be taken ---- */

static tutti_gossip *open_pushing(tutti *job, double *x, size_t n, int buffers)
{
	tutti_tensor model = { x, n, TUTTI_F64 };

	return open_gossip(job, "gifts", &model, 1,
	                   WITH(tutti_gossip_defaults(), it.way = TUTTI_GOSSIP_PUSH_SUM, it.timeout_ms = 200,
	                        it.buffers = buffers, it.choice = TUTTI_CHOICE_RING));
}

static void await_offer(tutti_gossip *g)
{
	tutti_gossip_info info = { 0 };

	for (int i = 0; i < 5000 && !info.offers; i++) {
		CHECK(tutti_gossip_look(g, &info) == 0);
		pass_time(TT_MS);
	}
	CHECK(info.offers == 1);
}

/* The giver begins anew before its gift is fetched. Mails are counted from then on, and weights are of that life. */
static void give_in_two_lives(tutti *job)
{
	int rank = tutti_rank(job);
	bool late = rank == 1;
	double x = rank;
	tutti_gossip *g = open_pushing(job, &x, 1, 0);
	tutti_gossip_info info = { .in_flight = 1 };

	meet(job);
	if (late) {
		CHECK(tutti_gossip_publish(g, 1) == 0);
		meet(job);
		meet(job);
		tutti_gossip_close(g);
		CHECK(join_again(job, rank, &job) == 0);
		x = 10;
		g = open_pushing(job, &x, 1, 0);
		returned = true;
		while (!tutti_gossip_publish(g, 1) && !tutti_gossip_look(g, &info) && !(info.in_flight > 0))
			pass_time(TT_MS);
		for (int i = 0; i < 2000 && info.in_flight > 0; i++, pass_time(TT_MS))
			CHECK(tutti_gossip_look(g, &info) == 0);
		CHECK(info.in_flight == 0);
		fate[1].done = true;
	} else {
		meet(job);
		await_offer(g);
		meet(job);
		while (!returned)
			pass_time(TT_MS);
		while (!fate[1].done) {
			CHECK(tutti_gossip_mix(g, 1, NULL) == 0);
			pass_time(TT_MS);
		}
		CHECK(tutti_gossip_look(g, &info) == 0 && fabs(info.weight - 0.75) < 1e-12);
		CHECK(fabs(x - 10 / 3.0) < 1e-12);
	}
	tutti_gossip_close(g);
	if (late)
		tutti_leave(job);
}

static int run_lives(const char *wire, uint64_t seed)
{
	memset((void *)fate, 0, sizeof fate);
	returned = false;
	return run_ranks((struct ranks){ .size = 2, .wire = wire, .seed = seed, .program = give_in_two_lives });
}

static void test_two_lives(void)
{
	CU_ASSERT_EQUAL(run_lives("tcp", 0), 0);
	CU_ASSERT_EQUAL(run_lives("shm", 0), 0);
	for (uint64_t seed = 0; seed < 20; seed++)
		CU_ASSERT_EQUAL(run_lives("sim", seed), 0);
}

/* The giver closes, and stays in the job: its gift is lost, and nobody waits for it in each round. */
static bool is_known_before;

static void give_and_close(tutti *job)
{
	int rank = tutti_rank(job);
	double x = rank;
	tutti_gossip *g = open_pushing(job, &x, 1, 0);

	for (int i = !is_known_before; i < 2; i++) {
		meet(job);
		if (rank == 1)
			CHECK(tutti_gossip_publish(g, 1) == 0);
		meet(job);
		if (rank == 0)
			await_offer(g);
		if (rank == 0 && !i)
			CHECK(tutti_gossip_mix(g, 1, &last_result[0]) == 0 && last_result[0].gifts == 1);
		meet(job);
		if (rank == 1)
			CHECK(tutti_gossip_look(g, &fate[1].info) == 0);
	}
	if (rank == 1)
		tutti_gossip_close(g);
	meet(job);
	if (rank == 0) {
		uint64_t begun = tt_now();
		for (int i = 0; i < 10; i++)
			CHECK(tutti_gossip_mix(g, 1, NULL) == 0);
		CHECK(tt_now() - begun < 450 * TT_MS);
		tutti_gossip_close(g);
	}
	meet(job);
}

static void test_giver_closes(void)
{
	for (int i = 0; i < 2; i++) {
		is_known_before = i;
		ON_ALL(.size = 2, .program = give_and_close);
	}
}

/* The giver closes, and opens again in the same life. Its first gift is lost, the next one is taken. */
static void give_and_open_again(tutti *job)
{
	int rank = tutti_rank(job);
	double x = rank;
	tutti_gossip *g = open_pushing(job, &x, 1, 0);
	tutti_gossip_info info = { .in_flight = 1, .offers = 1 };

	meet(job);
	if (rank == 1)
		CHECK(tutti_gossip_publish(g, 1) == 0);
	meet(job);
	if (rank == 0)
		await_offer(g);
	meet(job);
	if (rank == 1) {
		tutti_gossip_close(g);
		x = 10;
		g = open_pushing(job, &x, 1, 0);
	}
	meet(job);
	for (int i = 0; i < 200 && rank == 0 && info.offers; i++, pass_time(TT_MS))
		CHECK(tutti_gossip_mix(g, 1, NULL) == 0 && tutti_gossip_look(g, &info) == 0);
	CHECK(rank == 1 || (!info.offers && info.weight == 0.5 && x == 0));
	meet(job);
	if (rank == 1)
		CHECK(tutti_gossip_publish(g, 1) == 0);
	meet(job);
	if (rank == 0) {
		await_offer(g);
		CHECK(tutti_gossip_mix(g, 1, &last_result[0]) == 0 && last_result[0].gifts == 1);
		CHECK(tutti_gossip_look(g, &info) == 0 && fabs(info.weight - 0.75) < 1e-12 &&
		      fabs(x - 10 / 3.0) < 1e-12);
	}
	meet(job);
	for (int i = 0; i < 2000 && rank == 1 && info.in_flight > 0; i++, pass_time(TT_MS))
		CHECK(tutti_gossip_look(g, &info) == 0);
	CHECK(rank == 0 || info.in_flight == 0);
	tutti_gossip_close(g);
	meet(job);
}

static void test_opened_again(void) { ON_ALL(.size = 2, .program = give_and_open_again); }

/* The receiver has another model, or closes before it takes the gift: the giver goes on with the others. */
static bool is_other_model;

static void give_in_vain(tutti *job)
{
	int rank = tutti_rank(job);
	double x[2] = { rank, rank };
	tutti_gossip *g = open_pushing(job, x, is_other_model && rank == 1 ? 2 : 1, 3); /* one gift at a time */
	tutti_gossip_info info = { 0 };

	meet(job);
	if (rank == 0)
		CHECK(tutti_gossip_publish(g, 1) == 0); /* the ring: to rank 1 */
	meet(job);
	if (rank == 1)
		await_offer(g);
	if (rank == 1 && !is_other_model)
		tutti_gossip_close(g);
	for (int i = 0; i < 50 && rank == 1 && is_other_model; i++, pass_time(TT_MS))
		CHECK(tutti_gossip_mix(g, 1, NULL) == 0);
	meet(job);
	for (int i = 0; i < 1000 && rank == 0 && g->peers[2].given == 0; i++, pass_time(TT_MS))
		CHECK(tutti_gossip_publish(g, 1) == 0 && tutti_gossip_mix(g, 1, NULL) == 0);
	if (rank == 2) {
		await_offer(g);
		CHECK(tutti_gossip_mix(g, 1, &last_result[2]) == 0 && last_result[2].gifts == 1 &&
		      last_result[2].peer == 0);
	}
	meet(job);
	if (rank == 0) {
		for (int i = 0; i < 1000 && !tutti_gossip_look(g, &info) && info.in_flight > 0; i++)
			pass_time(TT_MS);
		CHECK(info.in_flight == 0);
		CHECK(!is_other_model || fabs(info.weight - 1 / 6.0) < 1e-12); /* what was refused has come back */
	}
	if (rank != 1 || is_other_model)
		tutti_gossip_close(g);
	meet(job);
}

static void test_in_vain(void)
{
	for (int i = 0; i < 2; i++) {
		is_other_model = i;
		ON_ALL(.size = 3, .program = give_in_vain);
	}
}

/* The receiver closes, and opens again in the same life: it gets gifts as before. What it has not taken comes back, and
 * what it has taken with it is counted. */
static void close_receiver(tutti *job)
{
	int rank = tutti_rank(job);
	double x = rank;
	tutti_gossip *g = open_pushing(job, &x, 1, 0);
	tutti_gossip_info info = { 0 };

	for (int i = 0; i < 2; i++) { /* a gift that is taken, and one that is not */
		meet(job);
		if (rank == 1)
			CHECK(tutti_gossip_publish(g, 1) == 0);
		meet(job);
		if (rank == 0 && !i) {
			await_offer(g);
			CHECK(tutti_gossip_mix(g, 1, &last_result[0]) == 0 && last_result[0].gifts == 1);
		}
		meet(job);
		if (rank == 1)
			CHECK(tutti_gossip_look(g, &info) == 0 && info.weight == (i ? 0.125 : 0.25));
	}
	if (rank == 0) {
		tutti_gossip_close(g);
		g = open_pushing(job, &x, 1, 0);
	}
	meet(job);
	if (rank == 1) {
		CHECK(tutti_gossip_mix(g, 1, NULL) == 0 && tutti_gossip_look(g, &info) == 0);
		CHECK(info.weight == 0.25 && info.in_flight == 0 && info.lost == 0.25);
		for (int i = 0; i < 2000 && !(info.in_flight > 0); i++, pass_time(TT_MS))
			CHECK(tutti_gossip_publish(g, 1) == 0 && tutti_gossip_look(g, &info) == 0);
		CHECK(info.in_flight == 0.125);
	} else {
		await_offer(g);
		CHECK(tutti_gossip_mix(g, 1, &last_result[0]) == 0 && last_result[0].gifts == 1);
		CHECK(tutti_gossip_look(g, &info) == 0 && info.weight == 0.625);
	}
	meet(job);
	tutti_gossip_close(g);
	meet(job);
}

static void test_receiver_closes(void) { ON_ALL(.size = 2, .program = close_receiver); }

/* A peer that was removed is not heard: its gift stays with it until the peer is added again. */
static void remove_giver(tutti *job)
{
	int rank = tutti_rank(job);
	double x = rank;
	tutti_gossip *g = open_pushing(job, &x, 1, 0);
	tutti_gossip_info info;

	if (rank == 0)
		CHECK(tutti_gossip_remove_peer(g, "1") == 0);
	meet(job);
	if (rank == 1)
		CHECK(tutti_gossip_publish(g, 1) == 0);
	meet(job);
	for (int i = 0; i < 20 && rank == 0; i++, pass_time(TT_MS))
		CHECK(tutti_gossip_mix(g, 1, NULL) == 0 && tutti_gossip_look(g, &info) == 0 && !info.offers &&
		      info.weight == 0.5);
	if (rank == 0) {
		CHECK(tutti_gossip_add_peer(g, "1") == 0);
		await_offer(g);
		CHECK(tutti_gossip_mix(g, 1, &last_result[0]) == 0 && last_result[0].gifts == 1);
	}
	meet(job);
	tutti_gossip_close(g);
	meet(job);
}

static void test_removed(void) { ON_ALL(.size = 2, .program = remove_giver); }

/* The gift comes back, and the receiver gets no other one before it has answered the offer that was withdrawn. */
static void remove_receiver(tutti *job)
{
	int rank = tutti_rank(job);
	double x = rank;
	tutti_gossip *g = open_pushing(job, &x, 1, 0);
	tutti_gossip_info info;

	meet(job);
	if (rank == 0) {
		CHECK(tutti_gossip_publish(g, 1) == 0);
		uint64_t word = g->offer[1].word;
		CHECK(word && tutti_gossip_remove_peer(g, "1") == 0 && tutti_gossip_add_peer(g, "1") == 0);
		CHECK(tutti_gossip_mix(g, 1, NULL) == 0 && tutti_gossip_publish(g, 1) == 0);
		CHECK(g->offer[1].word == (word | TT_OFFER_WITHDRAWN) && g->info.weight == 0.5);
	}
	meet(job);
	if (rank == 1) {
		await_offer(g);
		CHECK(tutti_gossip_mix(g, 1, &last_result[1]) == 0 && last_result[1].gifts == 0);
	}
	meet(job);
	CHECK(rank == 1 || (tutti_gossip_mix(g, 1, NULL) == 0 && tutti_gossip_publish(g, 1) == 0));
	meet(job);
	if (rank == 1) {
		await_offer(g);
		CHECK(tutti_gossip_mix(g, 1, &last_result[1]) == 0 && last_result[1].gifts == 1);
	}
	meet(job);
	CHECK(tutti_gossip_look(g, &info) == 0 && info.weight == (rank ? 0.75 : 0.25) && info.lost == 0);
	meet(job);
	tutti_gossip_close(g);
	meet(job);
}

static void test_removed_receiver(void) { ON_ALL(.size = 2, .program = remove_receiver); }

/* Ranks that never open the gossip get a gift each, which then goes to a rank that takes it. */
static void give_beside_absent(tutti *job)
{
	int rank = tutti_rank(job);
	double x = rank;
	tutti_tensor model = { &x, 1, TUTTI_F64 };
	tutti_gossip_config c = WITH(tutti_gossip_defaults(), it.way = TUTTI_GOSSIP_PUSH_SUM, it.timeout_ms = 50);
	tutti_gossip *g = rank < 2 ? open_gossip(job, "some", &model, 1, c) : NULL;
	tutti_gossip_info info = { 0 }, later;

	meet(job);
	for (int i = 0; g && i < 5000 && !(g->peers[2].asked && g->peers[3].asked); i++, pass_time(TT_MS))
		CHECK(tutti_gossip_publish(g, 1) == 0 && tutti_gossip_mix(g, 1, NULL) == 0);
	if (g) {
		uint64_t offered = g->peers[2].offered + g->peers[3].offered;
		CHECK(tutti_gossip_look(g, &info) == 0);
		later = info;
		for (int i = 0; i < 5000 && later.mixed < info.mixed + 10; i++, pass_time(TT_MS))
			CHECK(tutti_gossip_publish(g, 1) == 0 && tutti_gossip_mix(g, 1, NULL) == 0 &&
			      tutti_gossip_look(g, &later) == 0);
		CHECK(later.mixed >= info.mixed + 10 && g->peers[2].offered + g->peers[3].offered == offered);
		fate[rank].over = true;
		while (!fate[1 - rank].over) {
			CHECK(tutti_gossip_publish(g, 1) == 0 && tutti_gossip_mix(g, 1, NULL) == 0);
			pass_time(TT_MS);
		}
	}
	meet(job);
	tutti_gossip_close(g);
	meet(job);
}

static void test_absent(void)
{
	for (int i = 0; i < 3; i++) {
		memset((void *)fate, 0, sizeof fate);
		CU_ASSERT_EQUAL(run_ranks((struct ranks){ .size = RANKS, .wire = i ? i > 1 ? "shm" : "tcp" : "sim",
		                                          .program = give_beside_absent }), 0);
	}
}

/* ---- peers that are stopped ---- */

enum { CROWD = 8, STOPPED = 5 };

/* A fetch from a stopped rank is given up, holds nothing, and the wait for it is no longer than recent fetches. */
static void pull_beside_stopped(tutti *job)
{
	int rank = tutti_rank(job), rounds = 0, mixed = 0;
	double x[3000];
	tutti_gossip_result r;

	fill_doubles(x, 3000, rank);
	tutti_gossip *g = open_gossip(job, "stopped", &(tutti_tensor){ x, 3000, TUTTI_F64 }, 1,
	                              tutti_gossip_defaults());
	meet(job);
	CHECK(tt_gossip_timeout(g) == 1000 * TT_MS);
	for (int i = 0; i < 40; i++, pass_time(TT_MS))
		CHECK(tutti_gossip_publish(g, 1) == 0 && tutti_gossip_mix(g, 1, NULL) == 0);
	CHECK(tt_gossip_timeout(g) < 200 * TT_MS);
	if (rank < STOPPED) {
		meet(job);
	} else {
		uint64_t begun = tt_now();
		for (int i = 0; i < STOPPED && rank == STOPPED; i++)
			tt_sim_stop(i, 0, 2000 * TT_MS);
		for (; tt_now() < begun + 1900 * TT_MS; rounds++, pass_time(TT_MS)) {
			CHECK(tutti_gossip_publish(g, 1) == 0 && tutti_gossip_mix(g, 1, &r) == 0);
			mixed += r.peer >= 0;
		}
		CHECK(rounds > 500 && mixed > 0.9 * rounds);
		meet(job);
	}
	tutti_gossip_close(g);
}

static void test_beside_stopped(void)
{
	for (uint64_t seed = 0; seed < count_seeds(3); seed++)
		CU_ASSERT_EQUAL(run_ranks((struct ranks){ .size = CROWD, .wire = "sim", .seed = seed,
		                                          .silence_ms = 10000, .program = pull_beside_stopped }), 0);
	CU_ASSERT(tt_gossip_score(500, -ENOMEM) == 500 && tt_gossip_score(500, -EINVAL) == 0);
}

/* ---- a gossip of a group ---- */

/* Two groups of three, each in the order from the last rank to the first. */
static void gossip_in_group(tutti *job)
{
	int rank = tutti_rank(job);
	double x = rank;
	tutti_tensor model = { &x, 1, TUTTI_F64 };
	tutti_gossip_config c = WITH(tutti_gossip_defaults(), it.choice = TUTTI_CHOICE_RING, it.timeout_ms = 20000);
	tutti_gossip_result r;
	tutti_gossip_info info;
	tutti *half = NULL;
	tutti_gossip *g;
	char outside[16];

	CHECK(tutti_group_split(job, rank % 2, -rank, &half) == 0 && tutti_size(half) == 3);
	g = open_gossip(half, "half", &model, 1, c);
	CHECK(tutti_gossip_look(g, &info) == 0 && info.peers == 2 && info.weight == 1 / 3.0);
	snprintf(outside, sizeof outside, "%d", (rank + 1) % 6);
	CHECK(tutti_gossip_add_peer(g, outside) == -ENOENT && strstr(tutti_why(), "group of 3"));
	for (int round = 0; round < 4; round++) {
		meet(job);
		CHECK(tutti_gossip_publish(g, 1) == 0);
		meet(job);
		CHECK(tutti_gossip_mix(g, 1, &r) == 0 && r.peer == (rank + (round % 2 ? 2 : 4)) % 6);
	}
	meet(job);
	tutti_gossip_close(g);
	meet(job);
	tutti_group_free(half);
}

static void test_group(void) { ON_ALL(.size = 6, .program = gossip_in_group); }

/* ---- the config file, names, a list of nodes ---- */

static void write_file(const char *path, const char *text)
{
	FILE *f = fopen(path, "w");

	CU_ASSERT_PTR_NOT_NULL_FATAL(f);
	fputs(text, f);
	fclose(f);
}

static int configure(const char *section, tutti_gossip_config *c)
{
	char path[] = "/tmp/tutti-gossip-XXXXXX", text[300];
	tutti *job;

	close(mkstemp(path));
	snprintf(text, sizeof text, "nodes = ( { name = \"left\"; address = \"127.0.0.1:%d\"; } );\n%s\n", free_port(),
	         section);
	write_file(path, text);
	int err = tutti_join(&(tutti_config){ .file = path, .node = "left" }, &job);
	CU_ASSERT_EQUAL_FATAL(err, 0);
	err = tutti_gossip_configure(job, c);
	tutti_leave(job);
	unlink(path);
	return err;
}

static void test_config(void)
{
	tutti_gossip_config c = tutti_gossip_defaults();

#ifdef HAVE_LIBCONFIG
	CU_ASSERT_EQUAL(
		configure("gossip = { method = \"loss\"; divergence_threshold = 0.2; timeout = 250; choice = \"dpwa\";"
	                  " fetch_probability = 1; way = \"pull\"; buffers = 4; seed = 9; };",
	                  &c),
		0);
	CU_ASSERT(c.method == TUTTI_GOSSIP_LOSS && c.divergence_threshold == 0.2 && c.timeout_ms == 250 && c.seed == 9);
	CU_ASSERT(c.choice == TUTTI_CHOICE_DPWA && c.fetch_probability == 1 && c.buffers == 4 && c.value == 0.5);
	CU_ASSERT_EQUAL(configure("", &c), 0);
	CU_ASSERT(configure("gossip = { metod = \"loss\"; };", &c) == -EINVAL &&
	          strstr(tutti_why(), "did you mean \"method\""));
	CU_ASSERT(configure("gossip = { method = \"los\"; };", &c) == -EINVAL &&
	          strstr(tutti_why(), "did you mean loss"));
	CU_ASSERT(configure("gossip = { buffers = 5; };", &c) == -EINVAL && configure("gossip = 7;", &c) == -EINVAL);
	CU_ASSERT_EQUAL(c.seed, 9);
#else
	(void)configure;
#endif
	c = WITH(tutti_gossip_defaults(), it.method = TUTTI_GOSSIP_LOSS);
	CU_ASSERT_EQUAL(tt_gossip_factor(&c, 1, 1, 0, 0), 0.5);
	CU_ASSERT_EQUAL(tt_gossip_factor(&c, 1, 1, 3, -1), 1);
	CU_ASSERT_EQUAL(tt_gossip_factor(&c, 1, 1, -1, 0.5), 1);
	const double nan = (double)NAN;
	for (c.method = TUTTI_GOSSIP_CONSTANT; c.method <= TUTTI_GOSSIP_LOSS; c.method++) {
		CU_ASSERT(!tt_gossip_factor(&c, 1, 1, 1, INFINITY) && !tt_gossip_factor(&c, 1, 1, 1, nan));
		CU_ASSERT(tt_gossip_factor(&c, 1, 1, -INFINITY, 1) == 1 && tt_gossip_factor(&c, 1, 1, nan, 1) == 1);
		CU_ASSERT_EQUAL(tt_gossip_factor(&c, 1, 1, nan, INFINITY), 0);
	}
}

/* A node of the list comes when the first one has long given up to connect to it. */
static void meet_late_node(const char *transports)
{
	enum { SILENCE = 500 };
	struct ranks run = { .size = 2, .hosts = 1 };
	tutti_config node[] = { { .node = "n0" }, { .node = "n1" } };
	double x[] = { 1, 3 };
	tutti *job[2];
	tutti_gossip *g[2];
	tutti_gossip_result r = { .peer = -1 };
	const tutti_gossip_config config = WITH(tutti_gossip_defaults(), it.timeout_ms = 50);

	write_nodes(&run);
	for (int i = 0; i < 2; i++) {
		node[i].file = run.nodes;
		node[i].transports = transports;
		node[i].silence_ms = SILENCE;
		node[i].timeout_ms = 10 * SILENCE;
		CU_ASSERT_EQUAL_FATAL(tutti_join(&node[i], &job[i]), 0);
		CU_ASSERT_EQUAL_FATAL(
			tutti_gossip_open(job[i], "late", &(tutti_tensor){ &x[i], 1, TUTTI_F64 }, 1, &config, &g[i]),
			0);
		CU_ASSERT(tutti_gossip_publish(g[i], 1) == 0 && tutti_gossip_mix(g[i], 1, NULL) == 0);
		for (int ms = 0; !i && ms < 3 * SILENCE; ms += 10, usleep(10000)) {
			CU_ASSERT(tutti_gossip_publish(g[0], 1) == 0);
			CU_ASSERT(tutti_gossip_mix(g[0], 1, &r) == 0 && r.peer == -1 && *r.why && x[0] == 1);
		}
	}
	for (int i = 0; i < 2; i++) { /* each takes from the other */
		for (int ms = 0; ms < 20000 && r.peer != 1 - i; ms++, usleep(1000))
			CU_ASSERT(tutti_gossip_publish(g[i], 1) == 0 && tutti_gossip_mix(g[i], 1, &r) == 0);
		CU_ASSERT(r.peer == 1 - i && x[i] > 1 && x[i] < 3);
	}
	CU_ASSERT(tutti_gossip_score(g[0], "n1") > 0 && tutti_gossip_score(g[0], "n2") == -ENOENT);
	CU_ASSERT(tutti_node_add(job[0], "n2", "127.0.0.1", 1) == 2 && tutti_gossip_score(g[0], "n2") == 1000);
	for (int i = 0; i < 2; i++) {
		tutti_gossip_close(g[i]);
		tutti_leave(job[i]);
	}
	unlink(run.nodes);
}

#ifdef HAVE_LIBCONFIG
static void write_own_list(char file[32], const char *nodes)
{
	snprintf(file, 32, "/tmp/tutti-own-XXXXXX");
	int fd = mkstemp(file);

	CU_ASSERT_FATAL(fd >= 0 && dprintf(fd, "lists = \"own\"; nodes = (%s);", nodes) > 0);
	close(fd);
}

static tutti_gossip *join_own(const char *file, const char *node, const char *transports, double *x, tutti **job)
{
	const tutti_config c = { .file = file, .node = node, .transports = transports, .timeout_ms = TUTTI_NEVER };
	tutti_gossip_config config = WITH(tutti_gossip_defaults(), it.timeout_ms = 50, it.value = 1);
	const tutti_tensor model = { x, 1, TUTTI_F64 };
	tutti_gossip *g = NULL;

	CU_ASSERT_EQUAL_FATAL(tutti_join(&c, job), 0);
	config.way = TUTTI_GOSSIP_PUSH;
	CU_ASSERT_EQUAL(tutti_gossip_open(*job, "own", &model, 1, &config, &g), -ENOTSUP);
	config.way = TUTTI_GOSSIP_PULL;
	CU_ASSERT_EQUAL_FATAL(tutti_gossip_open(*job, "own", &model, 1, &config, &g), 0);
	return g;
}

/* Returns what a round of g averages with, or -1. */
static int mix_round(tutti_gossip *g)
{
	tutti_gossip_result r = { .peer = -1 };

	CU_ASSERT(tutti_gossip_publish(g, 1) == 0 && tutti_gossip_mix(g, 1, &r) == 0);
	return r.peer;
}

/* Beside other work a round may miss its deadline. */
static bool mixes_with(tutti_gossip *g, int peer)
{
	for (int ms = 0; ms < 20000; ms++, usleep(1000))
		if (mix_round(g) == peer)
			return true;
	return false;
}

/* b lists itself first, then a; a lists itself alone, and has b as a guest. */
static void meet_own_lists(const char *transports)
{
	int port[] = { free_port(), free_port() };
	char nodes[200], file[2][32];
	double x[] = { 1, 2 };
	tutti *job[2], *none;
	tutti_gossip *g[2];

	snprintf(nodes, sizeof nodes, "{ name = \"a\"; address = \"127.0.0.1:%d\"; }", port[0]);
	write_own_list(file[0], nodes);
	g[0] = join_own(file[0], "a", transports, &x[0], &job[0]);
	CU_ASSERT_EQUAL(mix_round(g[0]), -1);
	snprintf(nodes, sizeof nodes, "{ name = \"b\"; address = \"127.0.0.1:%d\"; },"
	         "{ name = \"a\"; address = \"localhost:%d\"; }", port[1], port[0]);
	write_own_list(file[1], nodes);
	g[1] = join_own(file[1], "b", transports, &x[1], &job[1]);
	for (int ms = 0; ms < 20000 && mix_round(g[1]) != 1; ms++)
		usleep(1000);
	CU_ASSERT_EQUAL(x[1], 1);
	for (int i = 0, read = 0; i < 2000 && read < 20; i++) { /* b reads, in time or not, and is not read */
		read += mix_round(g[1]) == 1;
		CU_ASSERT_EQUAL(mix_round(g[0]), -1);
	}
	x[1] = 2;
	CU_ASSERT(tutti_gossip_publish(g[1], 1) == 0 && tutti_node_add(job[0], "b", "localhost", port[1]) == 1);
	CU_ASSERT_PTR_NOT_NULL(strstr(tt_member(tt_job_of(job[0]), 1)->addr, "tcp:localhost:")); /* not as b says it */
	CU_ASSERT(mixes_with(g[0], 1));
	CU_ASSERT_EQUAL(x[0], 2);
	CU_ASSERT(tutti_barrier(job[0], NULL) == -ENOTSUP && strstr(tutti_why(), "TUTTI_LISTS=own"));
	CU_ASSERT(tutti_group_of(job[0], (int[]){ 0, 1 }, 2, "two", &none) == -ENOTSUP);
	tutti_gossip_close(g[1]);
	tutti_leave(job[1]);
	tutti_peer p = { .state = TUTTI_JOINED };
	for (int ms = 0; ms < 20000 && p.state == TUTTI_JOINED; ms++, usleep(1000))
		CU_ASSERT_EQUAL(tutti_group_peer(tutti_job(job[0]), 1, &p), 0);
	CU_ASSERT_EQUAL(p.state, TUTTI_LEFT);
	g[1] = join_own(file[1], "b", transports, &x[1], &job[1]);
	CU_ASSERT(mixes_with(g[1], 1) && mixes_with(g[0], 1));
	tutti_gossip_close(g[1]); /* b's next life does not list a, which finds it */
	tutti_leave(job[1]);
	unlink(file[1]);
	*strrchr(nodes, ',') = 0;
	write_own_list(file[1], nodes);
	for (int ms = 0; ms < 20000 && mix_round(g[0]) == 1; ms++) /* one that has ended is not chosen */
		usleep(1000);
	for (int ms = 0; ms < 300; ms++, usleep(1000)) {
		CU_ASSERT(mix_round(g[0]) == -1 && !tutti_group_peer(tutti_job(job[0]), 1, &p));
		CU_ASSERT_EQUAL(p.state, TUTTI_LEFT);
	}
	g[1] = join_own(file[1], "b", transports, &x[1], &job[1]);
	CU_ASSERT(mixes_with(g[1], -1) && mixes_with(g[0], 1));
	for (int i = 0; i < 2; i++) {
		tutti_gossip_close(g[i]);
		tutti_leave(job[i]);
		unlink(file[i]);
	}
}
#endif

/* A place in the list is for ever: a process that is refused gets none. */
static void refuse_guest(void)
{
#ifdef HAVE_LIBCONFIG
	int port[] = { free_port(), free_port() };
	char nodes[200], file[2][32];
	double x[] = { 1, 2 };
	tutti *job[2];
	tutti_gossip *g[2];

	snprintf(nodes, sizeof nodes, "{ name = \"a\"; address = \"127.0.0.1:%d\"; }", port[0]);
	write_own_list(file[0], nodes);
	snprintf(nodes, sizeof nodes, "{ name = \"b\"; address = \"127.0.0.1:%d\"; },"
	         "{ name = \"a\"; address = \"127.0.0.1:%d\"; }", port[1], port[0]);
	write_own_list(file[1], nodes);
	for (int i = 0; i < 2; i++) {
		setenv("TUTTI_JOB", i ? "another" : "one", 1);
		g[i] = join_own(file[i], i ? "b" : "a", "tcp", &x[i], &job[i]);
	}
	unsetenv("TUTTI_JOB");
	tutti_peer p = { .state = TUTTI_JOINED };
	for (int ms = 0; ms < 20000 && p.state == TUTTI_JOINED; ms++, usleep(1000))
		CU_ASSERT(mix_round(g[1]) == -1 && !tutti_group_peer(tutti_job(job[1]), 1, &p));
	CU_ASSERT_EQUAL(p.state, TUTTI_GONE);
	CU_ASSERT_EQUAL(tt_job_of(job[0])->size, 1);
	for (int i = 0; i < 2; i++) {
		tutti_gossip_close(g[i]);
		tutti_leave(job[i]);
		unlink(file[i]);
	}
#endif
}

static void test_own_lists(void)
{
	refuse_guest();
#ifdef HAVE_LIBCONFIG
	meet_own_lists("tcp");
	meet_own_lists("shm,tcp");
#endif
}

static void test_late_node(void)
{
#ifdef HAVE_LIBCONFIG
	meet_late_node("tcp");
	meet_late_node("shm,tcp");
#else
	(void)meet_late_node;
#endif
}

static void name_peers(tutti *job)
{
	double x = 0;
	tutti_tensor model = { &x, 1, TUTTI_F64 };
	tutti_gossip *g = open_gossip(job, "names", &model, 1, tutti_gossip_defaults());
	tutti_gossip_info info;
	char other[16];

	snprintf(other, sizeof other, "%d", 1 - tutti_rank(job));
	CHECK(tutti_gossip_score(g, other) == 1000 && tutti_gossip_remove_peer(g, other) == 0);
	CHECK(tutti_gossip_score(g, other) == -ENOENT && tutti_gossip_look(g, &info) == 0 && info.peers == 0);
	CHECK(tutti_gossip_publish(g, 1) == 0 && tutti_gossip_mix(g, 1, &last_result[0]) == 0 &&
	      last_result[0].peer == -1);
	CHECK(tutti_gossip_add_peer(g, other) == 0 && tutti_gossip_score(g, other) == 1000);
	CHECK(tutti_gossip_add_peer(g, "2") == -ENOENT && tutti_gossip_add_peer(g, "nobody") == -ENOENT);
	CHECK(tutti_gossip_add_peer(g, tutti_rank(job) ? "1" : "0") == -EINVAL);
	meet(job);
	tutti_gossip_close(g);
}

/* A host's name stands for a rank if one other rank runs there: neither two nor three do. */
static void name_hosts(tutti *job)
{
	double x = 0;
	tutti_tensor model = { &x, 1, TUTTI_F64 };
	tutti_gossip *g = open_gossip(job, "hosts", &model, 1, tutti_gossip_defaults());
	char host[96];

	CHECK(gethostname(host, sizeof host) == 0);
	meet(job);
	CHECK(tutti_gossip_score(g, host) == (tutti_size(job) == 2 ? 1000 : -ENOENT));
	meet(job);
	tutti_gossip_close(g);
}

static void test_names(void)
{
	CU_ASSERT_EQUAL(run_ranks((struct ranks){ .size = 2, .wire = "sim", .program = name_peers }), 0);
	for (int n = 2; n <= 4; n++)
		CU_ASSERT_EQUAL(run_ranks((struct ranks){ .size = n, .wire = "tcp", .program = name_hosts }), 0);
}

/* ---- a job that ends and is started again goes on: the same peers, clock and weight ---- */

enum { GO = 16, HALF = 8 };
static char folder[64];
static struct going {
	int peer[GO];
	double clock;
} going[RANKS];

static void go_rounds(tutti *job, tutti_gossip *g, int from, const char *path)
{
	struct going *of = &going[tutti_rank(job)];
	tutti_gossip_result r;
	tutti_gossip_info info;
	int same = 0;

	for (int i = from; i < GO; i++) {
		if (!from && i == HALF)
			CHECK(tutti_gossip_save(g, path) == 0 && tutti_gossip_look(g, &info) == 0 &&
			      (of->clock = info.clock) >= HALF);
		CHECK(tutti_gossip_publish(g, 1) == 0);
		meet(job);
		CHECK(tutti_gossip_mix(g, 1, &r) == 0);
		CHECK(r.peer < 0 || !from || r.peer == of->peer[i]); /* -1: it had not published yet */
		same += r.peer >= 0;
		of->peer[i] = from ? of->peer[i] : r.peer;
		meet(job);
	}
	CHECK(same >= GO - from - 1);
}

static void go(tutti *job, bool again)
{
	int me = tutti_rank(job);
	double x = me;
	char path[100];
	tutti_gossip_config c = WITH(tutti_gossip_defaults(), it.seed = 7 + again, it.timeout_ms = 20000);
	tutti_gossip *g = open_gossip(job, "goes on", &(tutti_tensor){ &x, 1, TUTTI_F64 }, 1, c);
	tutti_gossip_info info;

	snprintf(path, sizeof path, "%s/gossip-%d.safetensors", folder, me);
	if (again)
		CHECK(tutti_gossip_load(g, path) == 0 && tutti_gossip_look(g, &info) == 0 &&
		      info.clock == going[me].clock && info.weight == 1.0 / RANKS);
	meet(job);
	go_rounds(job, g, again ? HALF : 0, path);
	CHECK(tutti_gossip_load(g, path) == -EINVAL && strstr(tutti_why(), "published already"));
	tutti_gossip_close(g);
	meet(job);
}

static void go_whole(tutti *job) { go(job, false); }
static void go_again(tutti *job) { go(job, true); }

static void test_goes_on(void)
{
	strcpy(folder, "/tmp/tutti-unit-gossip-XXXXXX");
	CU_ASSERT_PTR_NOT_NULL_FATAL(mkdtemp(folder));
	CU_ASSERT_EQUAL(run_ranks((struct ranks){ .size = RANKS, .wire = "sim", .program = go_whole }), 0);
	CU_ASSERT_EQUAL(run_ranks((struct ranks){ .size = RANKS, .wire = "sim", .program = go_again }), 0);
	clear_folder(folder);
	rmdir(folder);
}

/* Loads a file that another program could have written. rounds: the type of that array, which has 8 bytes. */
static int load_made(tutti_gossip *g, const char *rounds, double clock, double weight, uint64_t random)
{
	char text[600], path[100];
	uint64_t numbers[5] = { 0, random }, len;

	snprintf(path, sizeof path, "%s/made.safetensors", folder);
	len = (uint64_t)snprintf(text, sizeof text, "{\"__metadata__\":{\"state_of\":\"a gossip\"},"
	                         "\"clock\":{\"dtype\":\"F64\",\"shape\":[1],\"data_offsets\":[0,8]},"
	                         "\"weight\":{\"dtype\":\"F64\",\"shape\":[1],\"data_offsets\":[8,16]},"
	                         "\"rounds\":{\"dtype\":\"%s\",\"shape\":[1],\"data_offsets\":[16,24]},"
	                         "\"random\":{\"dtype\":\"I64\",\"shape\":[4],\"data_offsets\":[24,56]}}", rounds);
	FILE *f = fopen(path, "wb");
	CHECK(f && fwrite(&len, 8, 1, f) == 1 && fwrite(text, len, 1, f) == 1 && fwrite(&clock, 8, 1, f) == 1 &&
	      fwrite(&weight, 8, 1, f) == 1 && fwrite(numbers, sizeof numbers, 1, f) == 1);
	CHECK(fclose(f) == 0);
	return tutti_gossip_load(g, path);
}

static void load_what_is_wrong(tutti *job)
{
	double x = 1;
	tutti_gossip *g = open_gossip(job, "made", &(tutti_tensor){ &x, 1, TUTTI_F64 }, 1, tutti_gossip_defaults());

	CHECK(load_made(g, "I64", 5, 0.25, 9) == 0 && g->info.clock == 5 && g->info.weight == 0.25);
	CHECK(load_made(g, "U64", 6, 0.5, 9) == -ENOTSUP && strstr(tutti_why(), "\"rounds\" has U64"));
	CHECK(load_made(g, "F64", 6, 0.5, 9) == -EINVAL && strstr(tutti_why(), "1 elements of F64"));
	CHECK(load_made(g, "I64", -1, 0.5, 9) == -EINVAL && load_made(g, "I64", (double)NAN, 0.5, 9) == -EINVAL);
	CHECK(load_made(g, "I64", 6, 0, 9) == -EINVAL && strstr(tutti_why(), "weight is 0"));
	CHECK(load_made(g, "I64", 6, HUGE_VAL, 9) == -EINVAL);
	CHECK(load_made(g, "I64", 6, 0.5, 0) == -EINVAL && strstr(tutti_why(), "zeros alone"));
	CHECK(g->info.clock == 5 && g->info.weight == 0.25 && g->random.s[0] == 9);
	tutti_gossip_close(g);
}

static void test_wrong_state(void)
{
	strcpy(folder, "/tmp/tutti-unit-gossip-XXXXXX");
	CU_ASSERT_PTR_NOT_NULL_FATAL(mkdtemp(folder));
	CU_ASSERT_EQUAL(run_ranks((struct ranks){ .size = 1, .wire = "sim", .program = load_what_is_wrong }), 0);
	clear_folder(folder);
	rmdir(folder);
}

static CU_TestInfo tests[] = {
	{ "pairs", test_pairs },
	{ "a model that is fetched", test_fetch },
	{ "a started mix", test_behind },
	{ "a started mix of a model that the library holds", test_held_behind },
	{ "a leave in a started mix", test_left_behind },
	{ "a close in a mix", test_closed_behind },
	{ "a fetch beside readers", test_beside_readers },
	{ "a spoiled model", test_spoiled },
	{ "a model that the library holds", test_held },
	{ "the choice of peers", test_choices },
	{ "nothing of a peer that has diverged", test_nothing },
	{ "too few buffers", test_few },
	{ "torn reads", test_torn },
	{ "push-sum keeps the mean", test_push_sum },
	{ "one is killed", test_killed },
	{ "one is stopped, and comes again", test_stopped },
	{ "one leaves and comes again", test_again },
	{ "a gift of an earlier life", test_two_lives },
	{ "the giver closes", test_giver_closes },
	{ "the giver closes and opens again", test_opened_again },
	{ "a gift in vain", test_in_vain },
	{ "the receiver closes and opens again", test_receiver_closes },
	{ "a giver that was removed", test_removed },
	{ "a receiver that is removed and added again", test_removed_receiver },
	{ "ranks that never open", test_absent },
	{ "pull beside stopped ranks", test_beside_stopped },
	{ "a gossip of a group", test_group },
	{ "the config file", test_config },
	{ "a node of the list comes late", test_late_node },
	{ "lists of nodes that differ", test_own_lists },
	{ "peers by name", test_names },
	{ "a job that goes on", test_goes_on },
	{ "a state that makes no sense", test_wrong_state },
	CU_TEST_INFO_NULL,
};
static CU_SuiteInfo suites[] = { { "gossip", NULL, NULL, NULL, NULL, tests }, CU_SUITE_INFO_NULL };

int main(int argc, char **argv)
{
	if (argc == 4 && !strcmp(argv[1], "--torn")) { /* by hand: elements, rounds */
		torn_count = (size_t)atoll(argv[2]);
		torn_rounds = atoi(argv[3]);
		for (int i = 0; i < 2; i++) {
			int failed = run_ranks((struct ranks){ .size = 2, .wire = i ? "shm" : "tcp", .program = tear });
			printf("%s: %d torn, %llu read, %llu retries\n", i ? "shm" : "tcp", failed,
			       (unsigned long long)torn_mixed, (unsigned long long)torn_retries);
		}
		return 0;
	}
	return run_suites(suites, argc, argv);
}
