/* unit_verbs_join.c - joining over adapters that are not there: where the nets listen, jobs without TCP, ranks with
 * several adapters, node lists, and jobs whose adapters are removed */
#include "tests/harness/cunit_main.h"
#include "member/member_private.h"
#include "tests/harness/ranks.h"
#include "transport/tcp/tcp.h"
#include "transport/verbs/verbs_private.h"
#include <stdlib.h>

enum { RANKS = 3, BYTES = 1 << 20 };

static void check_sum(tutti *job)
{
	double v = 1, sum = 0;

	CHECK(tutti_allreduce(job, &v, &sum, 1, TUTTI_F64, TUTTI_SUM, NULL) == 0);
	CHECK(sum == RANKS);
}

/* Each two talk over verbs. */
static void meet(tutti *job)
{
	check_sum(job);
	for (int i = 0; i < RANKS; i++) {
		tutti_peer p;
		if (i == tutti_rank(job))
			continue;
		CHECK(tutti_barrier(job, NULL) == 0 && tutti_group_peer(job, i, &p) == 0);
		CHECK(!*p.transport || !strcmp(p.transport, "verbs"));
		CHECK(this_run->alone == !tt_address_find(tt_member(job->job, i)->addr, "tcp", (char[96]){ "" }));
	}
}

static void test_alone(void)
{
	CU_ASSERT_EQUAL(run_ranks((struct ranks){ .size = RANKS, .wire = "verbs", .alone = true, .program = meet }), 0);
	CU_ASSERT_EQUAL(run_ranks((struct ranks){ .size = RANKS, .wire = "verbs", .program = meet }), 0);
#ifdef HAVE_LIBCONFIG
	CU_ASSERT_EQUAL(run_ranks((struct ranks){ .size = RANKS, .wire = "verbs", .alone = true, .hosts = RANKS,
	                                          .program = meet }), 0);
#endif
}

static const char *tcp_host, *verbs_host;

static bool begins(const tutti *job, int rank, const char *transport, const char *host)
{
	char addr[96], want[96];

	snprintf(want, sizeof want, "%s:%s:", transport, host);
	return tt_address_find(tt_member(job->job, rank)->addr, transport, addr) && !strncmp(addr, want, strlen(want));
}

/* Rank 0's TCP is where ranks meet. */
static void look_at_hosts(tutti *job)
{
	check_sum(job);
	for (int i = 0; i < RANKS; i++)
		CHECK(begins(job, i, "verbs", verbs_host) && (!i || begins(job, i, "tcp", tcp_host)));
}

static void test_interfaces(void)
{
	static const struct { const char *iface, *tcp, *verbs; } cases[] = {
		{ NULL, "127.0.0.1", "127.0.0.1" }, /* where ranks meet on loopback, all is on loopback */
		{ "127.0.0.2", "127.0.0.2", "127.0.0.2" },
		{ "tcp:127.0.0.3", "127.0.0.3", "127.0.0.3" },
		{ "verbs:127.0.0.4", "127.0.0.1", "127.0.0.4" },
		{ "verbs:127.0.0.5,127.0.0.6", "127.0.0.6", "127.0.0.5" },
		{ "shm:any,127.0.0.7", "127.0.0.7", "127.0.0.7" },
	};

	for (size_t i = 0; i < TT_COUNT(cases); i++) {
		tcp_host = cases[i].tcp;
		verbs_host = cases[i].verbs;
		if (cases[i].iface)
			setenv("TUTTI_IFACE", cases[i].iface, 1);
		CU_ASSERT_EQUAL(run_ranks((struct ranks){ .size = RANKS, .wire = "verbs",
			.program = look_at_hosts }), 0);
		unsetenv("TUTTI_IFACE");
	}
}

/* The adapter is removed when all have joined: each gives back all that it has of the adapter, and the job goes on over
 * TCP, with memory that was pinned before and afterwards. */
static atomic_int joined;

static void look(tutti *job)
{
	tt_lock(job->job);
	tt_progress(job->job);
	tt_unlock(job->job);
}

static void lose_adapter(tutti *job)
{
	void *before = NULL, *after = NULL;
	tutti_window *w = NULL;

	CHECK(tutti_alloc(job, BYTES, -1, &before) == 0);
	atomic_fetch_add(&joined, 1);
	while (joined < RANKS)
		look(job);
	for (int i = 0; i < FAKE_DEVICES && tutti_rank(job) == 0; i++)
		fake_remove(fake_devices[i].name);
	while (fake_left())
		look(job);
	check_sum(job);
	CHECK(tutti_alloc(job, BYTES, -1, &after) == 0);
	CHECK(tutti_window_open(job, "w", before, BYTES, &w) == 0);
	CHECK(tutti_put(w, (tutti_rank(job) + 1) % RANKS, 0, after, BYTES, NULL) == 0);
	CHECK(tutti_allreduce(job, after, after, BYTES / 8, TUTTI_F64, TUTTI_SUM, NULL) == 0);
	tutti_window_close(w);
	tutti_free(job, before);
	tutti_free(job, after);
	CHECK(fake_left() == 0);
}

static void test_removal(void)
{
	CU_ASSERT_EQUAL(run_ranks((struct ranks){ .size = RANKS, .wire = "verbs", .program = lose_adapter }), 0);
	fake_plug(fake_devices, FAKE_DEVICES);
}

/* ---- several adapters ---- */

static const char *adapter_of(const struct tt_net *net) { return ((const struct tt_verbs *)net)->name; }

/* Alike, each on a switch of its own or all on one. */
static void plug_alike(int n, bool apart)
{
	static const char *const names[] = { "fake_a", "fake_b", "fake_c", "fake_d", "fake_e" };
	struct fake_device list[TT_COUNT(names)];

	for (int i = 0; i < n; i++) {
		list[i] = fake_devices[0];
		list[i].name = names[i];
		list[i].numa = -1;
		list[i].port[0].lid = (uint16_t)(7 + i);
		list[i].port[0].gids[0].text = (const char *const[]){ "fe80::a", "fe80::b", "fe80::c", "fe80::d",
			"fe80::e" }[i];
		list[i].port[0].subnet = apart ? i : 0;
		list[i].patient = true; /* an adapter that is not reached is silent */
	}
	fake_plug(list, n);
}

static atomic_int strayed; /* connections that took another way than the one that is to be shown */

/* On a busy machine the better way may run out of time: then the ranks meet once more. */
static void run_calm(struct ranks run)
{
	int failed, tries = 0;

	do {
		atomic_store(&strayed, 0);
		failed = run_ranks(run);
	} while (!failed && atomic_load(&strayed) && ++tries < 5);
	CU_ASSERT_EQUAL(failed, 0);
	CU_ASSERT_EQUAL(atomic_load(&strayed), 0);
}

static void run_plugged(const char *names, bool alone, void (*prepare)(void), void (*program)(tutti *))
{
	run_calm((struct ranks){ .size = RANKS, .wire = "verbs", .devices = names, .alone = alone,
	                         .silence_ms = prepare ? 5000 : 0, .prepare = prepare, .program = program });
	CU_ASSERT(fake_left() == 0);
	fake_plug(fake_devices, FAKE_DEVICES);
}

/* How many links this rank has, all of them over verbs. */
static int check_links(tutti *job, bool nearest)
{
	int n = 0;

	tt_lock(job->job);
	tt_each_link(l, job->job)
		if (l->member && l->member->state == TT_UP && l->used) {
			strayed += l->peer->net->transport != &tt_verbs;
			strayed += nearest && l->peer->net != job->job->engine.nets[0];
			n++;
		}
	tt_unlock(job->job);
	return n;
}

static int count_addresses(tutti *job, int rank)
{
	char addr[96];
	int n = 0;

	while (tt_address_nth(tt_member(job->job, rank)->addr, "verbs", n, addr))
		n++;
	return n;
}

static void talk_to_all(tutti *job)
{
	double all[RANKS], mine = tutti_rank(job);

	check_sum(job);
	CHECK(tutti_allgather(job, &mine, sizeof mine, all, NULL) == 0 && all[RANKS - 1] == RANKS - 1);
	CHECK(tutti_barrier(job, NULL) == 0);
}

/* Ranks side by side begin with different ones, and each pair meets at the first of both. */
static void use_nearest(tutti *job)
{
	struct tt_net **nets = job->job->engine.nets;

	talk_to_all(job);
	CHECK(!strcmp(adapter_of(nets[0]), tutti_rank(job) % 2 ? "fake_b:1" : "fake_a:1"));
	CHECK(!strcmp(adapter_of(nets[1]), tutti_rank(job) % 2 ? "fake_a:1" : "fake_b:1"));
	CHECK(check_links(job, true) > 0);
	for (int i = 0; i < RANKS; i++)
		CHECK(count_addresses(job, i) == 2);
	CHECK(tutti_barrier(job, NULL) == 0);
}

static void test_nearest(void)
{
	for (int alone = 0; alone < 2; alone++) {
		plug_alike(2, false);
		run_plugged("fake_a,fake_b", alone, NULL, use_nearest);
	}
}

/* The first adapter that any rank opens fails: that rank does with its other one. */
static atomic_int adapters;

static void fail_first(void)
{
	atomic_store(&adapters, 0);
	fake_fail("create_cq", 1, ENOMEM);
}

static void use_others(tutti *job)
{
	atomic_fetch_add(&adapters, job->job->engine.count - 1); /* beside TCP */
	talk_to_all(job);
	CHECK(check_links(job, false) > 0 && adapters == 2 * RANKS - 1);
	CHECK(tutti_barrier(job, NULL) == 0);
}

static void test_first_fails(void)
{
	plug_alike(2, false);
	run_calm((struct ranks){ .size = RANKS, .wire = "verbs", .devices = "fake_a,fake_b", .timeout_ms = 20000,
	                         .prepare = fail_first, .program = use_others });
	fake_plug(fake_devices, FAKE_DEVICES);
}

/* The first of rank 0 does not reach the first of rank 1: they take the next way, and none over TCP. */
static void use_next_way(tutti *job)
{
	talk_to_all(job);
	CHECK(check_links(job, false) > 0);
	CHECK(tutti_barrier(job, NULL) == 0);
}

static void test_next_way(void)
{
	plug_alike(2, true);
	run_plugged("fake_b,fake_a", false, NULL, use_next_way);
}

/* Each of the four ways between two ranks is silent: TCP comes after them. */
static void use_tcp(tutti *job)
{
	talk_to_all(job);
	tt_lock(job->job);
	tt_each_link(l, job->job)
		CHECK(!l->used || l->peer->net->transport == &tt_tcp);
	tt_unlock(job->job);
	CHECK(tutti_barrier(job, NULL) == 0);
}

/* Others are on other hosts: whoever asked for a connection has said why it is over TCP. */
static atomic_int told;

static void be_told(tutti *job)
{
	use_tcp(job);
	tt_lock(job->job);
	told += tt_members(job->job)->warned;
	tt_unlock(job->job);
	CHECK(tutti_barrier(job, NULL) == 0 && told > 0);
}

static void cut_both(void)
{
	fake_lose("fake_a", 1, FAKE_FOREVER);
	fake_lose("fake_b", 1, FAKE_FOREVER);
}

static void test_silent(void)
{
	plug_alike(2, false);
	run_plugged("fake_a,fake_b", false, cut_both, use_tcp);
#ifdef HAVE_LIBCONFIG
	plug_alike(2, false);
	run_calm((struct ranks){ .size = RANKS, .wire = "verbs", .devices = "fake_a", .hosts = RANKS,
		.silence_ms = 5000,
	                         .prepare = cut_both, .program = be_told });
	fake_plug(fake_devices, FAKE_DEVICES);
#endif
}

/* Four at most, the first of them another one for each rank; one, if none is named. */
static void count_nets(tutti *job)
{
	talk_to_all(job);
	CHECK(count_addresses(job, tutti_rank(job)) == TT_DEVICES && job->job->engine.count == TT_DEVICES + 1);
	CHECK(!strncmp(adapter_of(job->job->engine.nets[0]), "fake_", 5));
	CHECK(adapter_of(job->job->engine.nets[0])[5] == "abcde"[tutti_rank(job)]);
	CHECK(tutti_barrier(job, NULL) == 0);
}

static void test_too_many(void)
{
	plug_alike(5, false);
	run_plugged("fake_a,fake_b,fake_c,fake_d,fake_e", false, NULL, count_nets);
}

/* ---- node lists ---- */

/* The list has TCP addresses alone. All bytes of a rank of another host go over verbs, those of this host through
 * memory if there is some. */
static void look_further(tutti *job)
{
	enum { LEN = 100000 };
	int me = tutti_rank(job), next = (me + 1) % RANKS;
	bool near = this_run->near && next % this_run->hosts == me % this_run->hosts;
	char *at = calloc(2, LEN);
	tutti_window *w;
	tutti_peer p;

	CHECK(tutti_window_open(job, "w", at, LEN, &w) == 0);
	memset(at + LEN, 'a' + me, LEN);
	uint64_t before = fake_requests();
	CHECK(tutti_put(w, next, 0, at + LEN, LEN, NULL) == 0);
	strayed += !near && fake_requests() == before;
	CHECK(tutti_barrier(job, NULL) == 0);
	CHECK(at[0] == 'a' + (me + RANKS - 1) % RANKS && at[LEN - 1] == at[0]);
	CHECK(tutti_group_peer(job, next, &p) == 0);
	strayed += strcmp(p.transport, near ? "shm" : "verbs") != 0;
	CHECK(tutti_barrier(job, NULL) == 0);
	tutti_window_close(w);
	free(at);
}

#ifdef HAVE_LIBCONFIG
static char where_now[96]; /* the second life of rank 2 listens */
static atomic_int met;

static void forget_met(void) { atomic_store(&met, 0); }

static bool is_up(tutti *job, int rank, uint32_t earlier)
{
	struct tt_member *m = tt_member(job->job, rank);

	tt_lock(job->job);
	int ready = earlier ? m->state == TT_UP && m->epoch != earlier : tt_member_reach(m) == 0;
	bool verbs = ready && tt_member_net(m)->transport == &tt_verbs;
	tt_unlock(job->job);
	strayed += ready && !verbs;
	return ready;
}

static void wait_for(tutti *job, int rank, uint32_t earlier)
{
	for (int i = 0; i < 20000 && !is_up(job, rank, earlier); i++)
		pass_time(TT_MS);
	CHECK(is_up(job, rank, earlier));
	atomic_fetch_add(&met, 1);
	for (int i = 0; i < 20000 && atomic_load(&met) < 2; i++)
		pass_time(TT_MS);
}

/* Rank 2 comes again, at the same address and with other ports: what was known of the earlier life is forgotten. */
static void come_again(tutti *job)
{
	tutti_config c = { .file = this_run->nodes, .node = "n2", .transports = "verbs,tcp" };
	char addr[96];

	look_further(job);
	uint32_t earlier = tt_member(job->job, 2)->epoch;
	CHECK(tutti_barrier(job, NULL) == 0);
	if (tutti_rank(job) == 2) {
		this_run->left[2] = true;
		tutti_leave(job);
		pass_time(100 * TT_MS); /* a later life has a later epoch: 64ths of a second */
		CHECK(tutti_join(&c, &job) == 0);
		snprintf(where_now, sizeof where_now, "%s", job->job->engine.nets[0]->addr);
		wait_for(job, 1, 0);
		tutti_leave(job);
	} else if (tutti_rank(job) == 1) {
		wait_for(job, 2, earlier);
		tt_lock(job->job);
		CHECK(!tt_address_find(tt_member(job->job, 2)->addr, "verbs", addr) || !strcmp(addr, where_now));
		tt_unlock(job->job);
	}
}

/* A net in the place of rank 1: the only thing that it ever says is where it listens. */
static struct {
	struct tt_net *net;
	char answer[100];
	size_t len;
	struct tt_op op;
	int ups, greetings;
} life;

static void life_up(struct tt_peer *p) { (void)p, life.ups++; }
static void life_down(struct tt_peer *p, int err) { (void)p, (void)err; }
static void life_done(struct tt_op *op) { (void)op; }

static void life_hears(struct tt_peer *p, const void *bytes, size_t len)
{
	life.greetings += len && *(const uint8_t *)bytes == TT_HELLO;
	if (!len || *(const uint8_t *)bytes != TT_WHERE || life.op.local)
		return;
	life.op = (struct tt_op){ .kind = TT_SEND, .local = life.answer, .len = life.len, .done = life_done };
	tt_tcp.post(p, &life.op);
}

static const struct tt_events life_events = { .up = life_up, .message = life_hears, .down = life_down };

static void begin_life(const tutti *job, const char *where)
{
	struct tt_net_config c = { .events = &life_events, .listen_fd = -1, .job = job->job->id, .epoch = 1,
		                   .listen = tt_member(job->job, 1)->addr + strlen("tcp:"), .timeout_ms = 20000 };
	struct tt_pack p = tt_pack(life.answer, sizeof life.answer);

	memset(&life, 0, sizeof life);
	tt_put8(&p, TT_WHERE);
	tt_put_text(&p, where);
	life.len = (size_t)(p.at - (uint8_t *)life.answer);
	CU_ASSERT_FATAL(tt_tcp.open(&c, &life.net) == 0);
}

static int join_node(const struct ranks *run, const char *node, tutti **job)
{
	return tutti_join(&(tutti_config){ .file = run->nodes, .node = node, .transports = "verbs,tcp" }, job);
}

static struct ranks begin_pair(tutti **job)
{
	struct ranks run = { .size = 2, .wire = "verbs", .hosts = 2 };

	fake_seed(1);
	tt_verbs_instead = &tt_fake_verbs;
	setenv("TUTTI_VERBS_DEVICES", "fake_roce0", 1);
	setenv("TUTTI_VERBS_CONNECT", "tcp", 1);
	write_nodes(&run);
	CU_ASSERT_FATAL(join_node(&run, "n0", job) == 0);
	return run;
}

static int listen_here(char where[64])
{
	struct sockaddr_in a = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t size = sizeof a;
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);

	CU_ASSERT_FATAL(!bind(fd, (struct sockaddr *)&a, size) && !listen(fd, 4));
	getsockname(fd, (struct sockaddr *)&a, &size);
	snprintf(where, 64, "verbs:127.0.0.1:%u", ntohs(a.sin_port));
	return fd;
}

static void end_pair(const struct ranks *run, tutti *job)
{
	tutti_leave(job);
	unlink(run->nodes);
}

/* Rank 1 ends when rank 0 has heard where it listens, and before rank 0 says HELLO. Where its next life listens rank 0
 * asks anew. */
static void end_before_hello(void)
{
	uint64_t end = tt_now() + 60000 * TT_MS;
	char where[64];
	tutti *first, *second;
	struct ranks run = begin_pair(&first);
	int fd = listen_here(where), called = -1;

	begin_life(first, where);
	while ((called = accept(fd, NULL, NULL)) < 0 && tt_now() < end)
		tt_tcp.progress(life.net);
	CU_ASSERT(called >= 0);
	tt_tcp.close(life.net);
	close(fd);
	close(called);
	CU_ASSERT_FATAL(join_node(&run, "n1", &second) == 0);
	while (!is_up(first, 1, 0) && tt_now() < end)
		pass_time(TT_MS);
	CU_ASSERT(is_up(first, 1, 0));
	tutti_leave(second);
	end_pair(&run, first);
}

/* On a busy machine the better way may run out of time. */
static void test_ended_before_hello(void)
{
	int tries = 0;

	do {
		atomic_store(&strayed, 0);
		end_before_hello();
	} while (atomic_load(&strayed) && ++tries < 5);
	CU_ASSERT_EQUAL(atomic_load(&strayed), 0);
}

/* Nobody listens where the better net shall lead: rank 0 says HELLO over the connection that has told it so. */
static void test_standby(void)
{
	uint64_t end = tt_now() + 60000 * TT_MS;
	tutti *job;
	struct ranks run = begin_pair(&job);

	begin_life(job, "verbs:127.0.0.1:1");
	while (!life.greetings && tt_now() < end)
		tt_tcp.progress(life.net);
	CU_ASSERT(life.greetings == 1 && life.ups == 1);
	tt_tcp.close(life.net);
	end_pair(&run, job);
}

static void test_nonsense_where(void)
{
	uint64_t end = tt_now() + 60000 * TT_MS;
	tutti_peer p = { .state = TUTTI_JOINED };
	tutti *job;
	struct ranks run = begin_pair(&job);

	begin_life(job, "verbs:127.0.0.1:1");
	life.len--;
	while (!tutti_group_peer(job, 1, &p) && p.state != TUTTI_GONE && tt_now() < end)
		tt_tcp.progress(life.net);
	CU_ASSERT_EQUAL(p.state, TUTTI_GONE);
	tt_tcp.close(life.net);
	end_pair(&run, job);
}
#endif

static void test_node_list(void)
{
#ifdef HAVE_LIBCONFIG
	for (int i = 0; i < 10; i++) /* each adapter, each way of connecting */
		run_calm((struct ranks){ .size = RANKS, .wire = "verbs", .hosts = i % 2 ? 2 : RANKS, .near = i % 2,
		                         .program = look_further });
	run_calm((struct ranks){ .size = RANKS, .wire = "verbs", .hosts = RANKS, .prepare = forget_met,
	                         .program = come_again });
#endif
}

static CU_TestInfo join_tests[] = {
	{ "alone", test_alone }, { "interfaces", test_interfaces },
	{ "a pair meets at the nearest adapters of both", test_nearest },
	{ "the first adapter fails", test_first_fails },
	{ "two adapters do not reach each other: the next way", test_next_way },
	{ "a node list of TCP addresses", test_node_list },
#ifdef HAVE_LIBCONFIG
	{ "a life that ends before HELLO", test_ended_before_hello },
	{ "a better net that leads nowhere", test_standby },
	{ "nonsense in place of addresses", test_nonsense_where },
#endif
	{ "none reaches any", test_silent }, { "more adapters than nets", test_too_many }, { "removal", test_removal },
	CU_TEST_INFO_NULL,
};
static CU_SuiteInfo suites[] = { { "join", NULL, NULL, NULL, NULL, join_tests }, CU_SUITE_INFO_NULL };

int main(int argc, char **argv) { return run_suites(suites, argc, argv); }
