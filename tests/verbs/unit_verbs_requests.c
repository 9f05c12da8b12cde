/* unit_verbs_requests.c - what a net asks of its adapter: doorbells and armings, counted */
#include "tests/verbs/nets.h"
#include "transport/verbs/verbs_private.h"
#include <poll.h>
#include <sched.h>
#include <sys/resource.h>
#include <time.h>

enum { STREAM = 64 };

static struct op ops[STREAM];

/* A short put from a to b, outside progress(). */
static void put_short(struct op *o, uint32_t flags, size_t len)
{
	*o = (struct op){ .op = { .kind = TT_PUT, .flags = flags, .local = nets[0].memory, .len = len,
		                  .region = nets[0].region, .key = &nets[1].region->key, .done = done } };
	tt_verbs.post(nets[0].peer[1], &o->op);
}

static uint64_t count_doorbells(uint32_t flags, int n)
{
	uint64_t before = fake_calls("post_send"), posted;

	for (int i = 0; i < n; i++)
		put_short(&ops[i], flags, 8);
	posted = fake_calls("post_send") - before;
	for (int i = 0; i < n; i++) {
		UNTIL(ops[i].dones == 1 && ops[i].op.err == 0);
	}
	settle();
	return posted;
}

/* One alone leaves at once, a stream in batches; what somebody waits for waits for nothing. */
static void ring_seldom(void)
{
	row_name = devices[0];
	open_nets(1);
	CU_ASSERT_EQUAL(count_doorbells(TT_LAZY, 1), 1);
	CU_ASSERT(count_doorbells(TT_LAZY, STREAM) <= 1 + STREAM / TT_VERBS_LAZY);
	CU_ASSERT_EQUAL(count_doorbells(TT_LAZY | TT_NOTIFY, STREAM / 4), STREAM / 4);
	CU_ASSERT_EQUAL(count_doorbells(0, STREAM / 4), STREAM / 4);
	close_nets();
}

static void test_doorbells(void) { each_way(ring_seldom); }

/* Turns a until it may sleep. */
static void lull(void)
{
	do {
		CU_ASSERT(tt_verbs.progress(nets[0].net) >= 0);
	} while (tt_verbs.arm(nets[0].net));
}

/* A put that waits for others leaves before a thread sleeps. */
static void test_put_off(void)
{
	uint64_t before;

	row_name = "put off";
	open_nets(1);
	lull();
	before = fake_calls("post_send");
	put_short(&ops[0], TT_LAZY, 8);
	put_short(&ops[1], TT_LAZY, 8);
	CU_ASSERT_EQUAL(fake_calls("post_send") - before, 1);
	tt_verbs.arm(nets[0].net);
	CU_ASSERT_EQUAL(fake_calls("post_send") - before, 2);
	UNTIL(ops[0].dones && ops[1].dones);
	close_nets();
}

/* Other threads' calls arm the net again and again while one sleeps on it: the adapter is not asked anew. */
static void test_armed_once(void)
{
	uint64_t armed, polled;

	row_name = "armed once";
	open_nets(1);
	lull();
	armed = fake_calls("req_notify_cq");
	polled = fake_calls("poll_cq");
	for (int i = 0; i < STREAM; i++)
		CU_ASSERT_EQUAL(tt_verbs.arm(nets[0].net), 0);
	CU_ASSERT(fake_calls("req_notify_cq") == armed && fake_calls("poll_cq") == polled);
	send_to(0, 1, &ops[0]); /* what completes now wakes whoever sleeps */
	CU_ASSERT_EQUAL(tt_verbs.arm(nets[0].net), 0);
	CU_ASSERT_EQUAL(fake_calls("req_notify_cq"), armed);
	CU_ASSERT(poll(&(struct pollfd){ .fd = nets[0].net->fd, .events = POLLIN }, 1, 0) == 1);
	UNTIL(ops[0].dones);
	lull();
	CU_ASSERT(fake_calls("req_notify_cq") > armed);
	close_nets();
}

/* Ranks on different cores get different interrupts, as far as the adapter has some. */
static void spread(int vectors)
{
	struct fake_device d = fake_devices[1];
	cpu_set_t all, one;
	int cores = 0;

	row_name = "vectors";
	d.vectors = vectors;
	fake_plug(&d, 1);
	CU_ASSERT_FATAL(sched_getaffinity(0, sizeof all, &all) == 0);
	for (int core = 0; core < CPU_SETSIZE && cores < 8; core++) {
		if (!CPU_ISSET(core, &all))
			continue;
		cores++;
		CPU_ZERO(&one);
		CPU_SET(core, &one);
		CU_ASSERT_FATAL(sched_setaffinity(0, sizeof one, &one) == 0);
		fake_seed(1);
		CU_ASSERT_FATAL(open_one(0) == 0);
		CU_ASSERT_EQUAL(fake_vector(tt_container_of(nets[0].net, struct tt_verbs, base)->cq), core % vectors);
		close_nets();
	}
	CU_ASSERT(sched_setaffinity(0, sizeof all, &all) == 0);
	fake_plug(fake_devices, FAKE_DEVICES);
}

static void test_vectors(void) { spread(4), spread(1), spread(3), spread(64); }

/* Registering, 50 us at least, is not done for each peer. */
static void test_slabs(void)
{
	enum { PEERS = 100 };
	struct tt_verbs *net;
	struct tt_verbs_share *share;
	uint64_t before;

	row_name = "slabs";
	peers = PEERS;
	fake_seed(1);
	CU_ASSERT_FATAL(open_one(0) == 0);
	net = tt_container_of(nets[0].net, struct tt_verbs, base);
	before = fake_calls("reg_mr");
	for (int i = 0; i < PEERS; i++) {
		CU_ASSERT_FATAL(tt_verbs_take_share(net, &share) == 0);
		memset(share->receives, i, (size_t)TT_VERBS_CREDITS * net->receive);
		memset(share->heads, i, TT_VERBS_DEPTH * sizeof *share->heads);
	}
	for (int i = 0; i < PEERS; i++)
		CU_ASSERT(net->shares[i]->receives[0] == i && *(char *)&net->shares[i]->heads[TT_VERBS_DEPTH - 1] == i);
	CU_ASSERT(fake_calls("reg_mr") - before <= 5 + PEERS / TT_VERBS_SLAB);
	peers = 0;
	close_nets();
}

/* How many requests a message of 64 KiB takes, between nets for so many peers. */
static uint64_t count_parts(unsigned here, unsigned there)
{
	static char text[TT_MESSAGE_MAX];
	uint64_t before, parts;

	row_name = "parts";
	fake_seed(1);
	peers = here;
	CU_ASSERT_FATAL(open_one(0) == 0);
	peers = there;
	CU_ASSERT_FATAL(open_one(1) == 0);
	peers = 0;
	connect_to(1);
	UNTIL(nets[0].ups == 1 && nets[1].ups == 1);
	settle();
	before = fake_requests();
	ops[0] = (struct op){ .op = { .kind = TT_SEND, .local = text, .len = sizeof text, .done = done } };
	tt_verbs.post(nets[0].peer[1], &ops[0].op);
	UNTIL(ops[0].dones && nets[1].messages == 1);
	parts = fake_requests() - before;
	close_nets();
	return parts;
}

static void test_parts(void)
{
	CU_ASSERT(count_parts(64, 64) <= 5);
	CU_ASSERT(count_parts(256, 256) <= 9);
	CU_ASSERT(count_parts(1000, 1000) <= 18); /* a WORD gives credits back */
	CU_ASSERT(count_parts(1000, 64) <= 18 && count_parts(64, 1000) <= 18); /* both take the shorter receive */
}

/* What peers write and read, not what the adapter tells by. */
static void test_relaxed(void)
{
	const struct tt_verbs *net;

	row_name = "relaxed";
	open_nets(1);
	net = tt_container_of(nets[0].net, struct tt_verbs, base);
	CU_ASSERT(fake_is_relaxed(tt_verbs_lkey(nets[0].region)) && !fake_is_relaxed(net->shares[0]->mr->lkey));
	close_nets();
}

/* All of a job at once: both ends of 1,000 connections on one thread. */
static void test_thousand(void)
{
	enum { PEERS = 1000 };
	struct rlimit files;
	struct timespec from, to;

	row_name = "a thousand peers";
	getrlimit(RLIMIT_NOFILE, &files);
	files.rlim_cur = files.rlim_max;
	if (files.rlim_max < 4 * PEERS || setrlimit(RLIMIT_NOFILE, &files))
		return;
	peers = PEERS;
	fake_seed(1);
	CU_ASSERT_FATAL(open_one(0) == 0 && open_one(1) == 0);
	uint64_t before = fake_calls("reg_mr");
	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &from);
	for (int i = 0; i < PEERS; i++) {
		connect_to(1);
		turn();
	}
	UNTIL(nets[0].ups == PEERS && nets[1].ups == PEERS);
	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &to);
	CU_ASSERT(to.tv_sec - from.tv_sec < 6);
	CU_ASSERT(fake_calls("reg_mr") - before <= 2 * (5 + PEERS / TT_VERBS_SLAB));
	const struct tt_verbs *net = tt_container_of(nets[1].net, struct tt_verbs, base);
	CU_ASSERT(net->share_count == PEERS && tt_verbs_share_bytes(net) == TT_VERBS_SHARE);
	nets[0].peer[1] = nets[1].peer[0] = NULL; /* close() disconnects all */
	peers = 0;
	close_nets();
}

/* Turns all; true: none made more queue pairs than 10 ms have room for. */
static bool turn_each(void)
{
	bool few = true;

	for (int i = 0; i < NETS; i++) {
		uint64_t before = fake_calls("create_qp");
		CU_ASSERT(tt_verbs.progress(nets[i].net) >= 0);
		few &= fake_calls("create_qp") - before <= 6;
	}
	return few;
}

/* Where many connect at once, and a queue pair takes long to make, a peer that is up does not wait for all of them. */
static void crowd_in(void)
{
	enum { CROWD = 40 };
	bool few = true;
	uint64_t end = tt_now() + PATIENCE;

	row_name = "a crowd";
	peers = 2 * CROWD;
	open_nets(1);
	fake_make_slowly(2);
	for (int i = 0; i < CROWD; i++)
		connect_to(1);
	while (nets[0].ups < CROWD + 2 && tt_now() < end)
		few &= turn_each();
	CU_ASSERT(few);
	CU_ASSERT(nets[0].ups == CROWD + 2 && nets[1].ups == CROWD + 1);
	nets[0].peer[1] = nets[1].peer[0] = NULL; /* close() disconnects all */
	peers = 0;
	close_nets();
}

static void test_crowd(void) { each_way(crowd_in); }

static uint64_t time_searches(uint32_t rkey, uint64_t addr)
{
	struct tt_verbs *net = tt_container_of(nets[0].net, struct tt_verbs, base);
	uint64_t least = UINT64_MAX;

	for (int i = 0; i < 100; i++) {
		struct timespec from, to;
		bool device, found = true;
		clock_gettime(CLOCK_THREAD_CPUTIME_ID, &from);
		for (int k = 0; k < 10; k++)
			found &= tt_verbs_find_memory(net, rkey, addr, 8, &device) != NULL;
		clock_gettime(CLOCK_THREAD_CPUTIME_ID, &to);
		CU_ASSERT(found);
		least = tt_min(least, (uint64_t)((to.tv_sec - from.tv_sec) * 1000000000 + to.tv_nsec - from.tv_nsec));
	}
	return least;
}

/* An ADD looks for its word among all that peers may reach, with the job's lock. */
static void test_many_regions(void)
{
	enum { REGIONS = 3000 };
	static struct tt_pin *pins[REGIONS];
	static struct tt_region *regions[REGIONS];
	char *memory = aligned_alloc(4096, 4096);
	struct tt_mem mem = { .base = memory, .len = 4096, .gpu = -1, .fd = -1 };
	uint64_t one = 0;

	row_name = "many regions";
	fake_seed(1);
	CU_ASSERT_FATAL(open_one(0) == 0);
	for (int i = 0; i < REGIONS; i++) {
		CU_ASSERT_FATAL(tt_verbs.pin(nets[0].net, &mem, 1, &pins[i]) == 0);
		CU_ASSERT_FATAL(tt_verbs.reg(nets[0].net, &mem, 1, pins[i], &regions[i]) == 0);
		struct tt_pack key = tt_unpack(regions[i]->key.raw, sizeof regions[i]->key.raw);
		uint64_t addr = tt_get64(&key);
		uint32_t rkey = tt_get32(&key);
		if (i == 0)
			one = time_searches(rkey, addr);
		if (i == REGIONS - 1) /* without buckets a thousand times as long */
			CU_ASSERT(time_searches(rkey, addr) < 20 * tt_max(one, 200));
	}
	for (int i = 0; i < REGIONS; i++) {
		tt_verbs.dereg(regions[i]);
		tt_verbs.unpin(pins[i]);
	}
	free(memory);
	close_nets();
}

static CU_TestInfo requests_tests[] = {
	{ "lazy puts share doorbells", test_doorbells },
	{ "what was put off leaves before a sleep", test_put_off },
	{ "armed once", test_armed_once },
	{ "an interrupt for each core", test_vectors },
	{ "relaxed ordering", test_relaxed },
	{ "long messages in few parts", test_parts },
	{ "a thousand peers", test_thousand },
	{ "a crowd connects a few at a time", test_crowd },
	{ "a word among many regions", test_many_regions },
	{ "receives of several peers are registered together", test_slabs },
	CU_TEST_INFO_NULL,
};
static CU_SuiteInfo suites[] = { { "requests", NULL, NULL, NULL, NULL, requests_tests }, CU_SUITE_INFO_NULL };

int main(int argc, char **argv)
{
	tt_verbs_instead = &tt_fake_verbs;
	return run_suites(suites, argc, argv);
}
