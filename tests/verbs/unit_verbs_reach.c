/* unit_verbs_reach.c - which ways between two adapters work, and which breaks of a way cost nothing: links that are
 * down for seconds, ports of other kinds, partitions, virtual ports, small MTUs; over adapters that are not there */
#include "tests/verbs/nets.h"
#include "tests/harness/ranks.h"
#include "transport/verbs/verbs_private.h"
#include <stdlib.h>
#include <sys/mman.h>

static void plug_default(void)
{
	unsetenv("TUTTI_VERBS_DEVICES"); /* run_ranks() sets it */
	fake_plug(fake_devices, FAKE_DEVICES);
	use_tcp();
}

/* ---- a link that is down for a while ---- */

static const struct { unsigned silence; const char *setting; unsigned n; } windows[] = {
	{ 10000, NULL, 18 }, { 60000, NULL, 20 }, { 5000, NULL, 17 }, { 500, NULL, 13 }, { 86400000, NULL, 31 },
	{ 10000, "30000", 20 }, { 10000, "1000", 16 }, { 60000, "10", 9 },
};

/* The smallest n whose time, 7 * 4.096 us * 2^n, is long enough. */
static void check_windows(void)
{
	for (size_t i = 0; i < TT_COUNT(windows); i++) {
		uint64_t wanted = windows[i].setting ? strtoull(windows[i].setting, NULL, 10) * TT_MS
		                                     : windows[i].silence * TT_MS * 2 / 5;
		uint64_t time = (4096ull << windows[i].n) * (TT_VERBS_RETRIES + 1);
		row_name = "windows";
		timeout_ms = windows[i].silence;
		if (windows[i].setting)
			setenv("TUTTI_VERBS_RETRY", windows[i].setting, 1);
		open_nets(1);
		for (int k = 0; fake_qp(k) && strcmp(devices[0], "fake_iwarp0") != 0; k++)
			CU_ASSERT_EQUAL(fake_attr(fake_qp(k)).timeout, windows[i].n);
		CU_ASSERT((time >= wanted || windows[i].n == 31) && time / 2 < wanted);
		close_nets();
		unsetenv("TUTTI_VERBS_RETRY");
	}
	timeout_ms = 20000;
}

static void test_windows(void) { each_way(check_windows); }

enum { FLAP_SILENCE = 6600 };

/* The link is down for a third of the silence, while bytes move both ways: they arrive late. */
static void flap(void)
{
	struct op ops[6];

	row_name = "flap";
	timeout_ms = FLAP_SILENCE;
	open_nets(1);
	fake_cut(devices[0], 1, FLAP_SILENCE / 3);
	uint64_t begun = tt_now();
	for (int i = 0; i < 6; i += 2) {
		put_to(0, 1, &ops[i]);
		send_to(1, 0, &ops[i + 1]);
	}
	for (; tt_now() - begun < FLAP_SILENCE / 3 * TT_MS; usleep(500))
		turn();
	for (int i = 0; i < 6; i++) {
		UNTIL(ops[i].dones);
		CU_ASSERT_EQUAL(ops[i].op.err, 0);
	}
	CU_ASSERT(tt_now() - begun >= FLAP_SILENCE / 3 * TT_MS && !memcmp(nets[1].memory, nets[0].memory, SIZE));
	UNTIL(nets[0].messages == 3);
	CU_ASSERT(!nets[0].downs && !nets[1].downs);
	check_others();
	close_nets();
	timeout_ms = 20000;
}

static void test_flap(void) { each_way(flap); }

/* A link that stays down ends what goes over it, before the silence does. */
static void test_cut(void)
{
	struct op op;

	row_name = "cut";
	timeout_ms = 1000;
	open_nets(1);
	fake_cut(devices[0], 1, 10000);
	uint64_t begun = tt_now();
	put_to(0, 1, &op);
	UNTIL(op.dones && nets[0].downs);
	uint64_t took = tt_now() - begun;
	CU_ASSERT(op.op.err == -ECONNRESET && says(nets[0].why, "does not acknowledge"));
	CU_ASSERT(took >= 400 * TT_MS);
	nets[2].peer[0] = nets[0].peer[2]; /* whatever happened to it */
	nets[2].peer[0] = NULL;
	close_nets();
	timeout_ms = 20000;
}

/* The same in a job: no rank is lost, and all sums are right. */
static atomic_int cut_now;

static void sum_on(tutti *job)
{
	uint64_t end = tt_now() + FLAP_SILENCE / 2 * TT_MS;
	double more = 1;

	for (double round = 0; more; round++) {
		double v[2] = { tutti_rank(job) + round, tt_now() < end }, sum[2] = { 0 };
		if (round == 10 && !atomic_exchange(&cut_now, 1))
			fake_cut("fake_ib0", 1, FLAP_SILENCE / 3);
		CHECK(tutti_allreduce(job, v, sum, 2, TUTTI_F64, TUTTI_SUM, NULL) == 0);
		CHECK(sum[0] == 3 + 3 * round);
		more = sum[1];
		if (sum[0] != 3 + 3 * round)
			break;
	}
	CHECK(tutti_size(job) == 3);
}

static void test_job(void)
{
	atomic_store(&cut_now, 0);
	CU_ASSERT_EQUAL(run_ranks((struct ranks){ .size = 3, .wire = "verbs", .devices = "fake_ib0",
	                                          .silence_ms = FLAP_SILENCE, .program = sum_on }), 0);
	plug_default();
}

/* ---- one link for all ranks ---- */

static char folder[] = "/tmp/tutti-sysfs-XXXXXX";

static void choose(int node, char name[TT_DEVICE_NAME])
{
	char list[TT_DEVICES][TT_DEVICE_NAME];

	CU_ASSERT_EQUAL(tt_verbs.choose(node, 0, list), 1);
	snprintf(name, TT_DEVICE_NAME, "%s", list[0]);
}

/* A host of two sockets: a fast port at node 901, another one at node 902. `near`: what InfiniBand is */
static struct fake_device device_at(const char *name, int kind, int node, int width, int speed)
{
	struct fake_device d = fake_devices[kind];

	d.name = name;
	d.numa = node;
	d.port[0].width = (uint8_t)width;
	d.port[0].speed = (uint8_t)speed;
	return d;
}

enum { IB, ROCE, IWARP, X1 = 1, X4 = 2, FDR = 16, EDR = 32, HDR = 64 };

static const struct two {
	int kind[2], width[2], speed[2];
	const char *taken[2], *why, *why_not; /* why: `tutti info` says of the first; why_not: of the second */
} hosts[] = {
	/* 200G and a port that manages the host */
	{ { IB, ROCE }, { X4, X1 }, { HDR, EDR }, { "one", "one" },
	  "ranks on these cores take it: its kind comes first",
	  "not used: all ranks take InfiniBand, as one:1, before RoCE" },
	{ { ROCE, ROCE }, { X4, X1 }, { HDR, EDR }, { "one", "one" }, "ranks on these cores take it: it is the fastest",
	  "not used: one:1 is more than twice as fast" },
	{ { ROCE, ROCE }, { X4, X4 }, { HDR, EDR }, { "one", "two" }, NULL, NULL },   /* half as fast is fast enough */
	{ { IB, IB }, { X4, X4 }, { HDR, HDR }, { "one", "two" }, NULL, NULL },
	{ { IB, ROCE }, { X4, X4 }, { HDR, HDR }, { "one", "one" }, NULL, NULL },
	{ { IWARP, ROCE }, { X4, X4 }, { HDR, HDR }, { "two", "two" }, NULL, NULL },
};

static void put_across(void)
{
	struct op op;

	put_to(0, 1, &op);
	UNTIL(op.dones);
	CU_ASSERT(op.op.err == 0 && !memcmp(nets[0].memory, nets[1].memory, SIZE));
}

static void meet_and_put(void)
{
	CU_ASSERT_FATAL(open_one(0) == 0 && open_one(1) == 0);
	connect_to(1);
	UNTIL(nets[0].ups + nets[0].downs == 1);
	CU_ASSERT_FATAL(nets[0].ups == 1);
	UNTIL(nets[1].ups == 1);
	put_across();
	close_nets();
}

/* A rank of each socket, on two hosts alike: what they choose, they connect by. */
static void test_sockets(void)
{
	char names[2][TT_DEVICE_NAME];

	CU_ASSERT_FATAL(mkdtemp(folder) != NULL);
	for (size_t i = 0; i < TT_COUNT(hosts); i++) {
		const struct two *h = &hosts[i];
		row_name = "sockets";
		fake_plug((struct fake_device[]){
			device_at("one", h->kind[0], 901, h->width[0], h->speed[0]),
			device_at("two", h->kind[1], 902, h->width[1], h->speed[1]) }, 2);
		fake_sysfs(folder);
		for (int k = 0; k < 2; k++) {
			choose(901 + k, names[k]);
			CU_ASSERT(!strncmp(names[k], h->taken[k], 3));
			devices[k] = names[k];
		}
		if (h->why) {
			struct tt_device list[4];
			CU_ASSERT(tt_verbs.list(list, 4) >= 2);
			CU_ASSERT(says(list[0].note, h->why) && says(list[1].note, h->why_not));
		}
		if (h->kind[0] != h->kind[1])
			meet_and_put();
	}
	plug_default();
	char command[64];
	snprintf(command, sizeof command, "rm -r %s", folder);
	CU_ASSERT(system(command) == 0);
}

/* ---- receives that a queue pair takes along ---- */

static uint32_t receives_of(const struct net *n, uint32_t *all)
{
	const struct tt_verbs *v = tt_container_of(n->net, const struct tt_verbs, base);

	*all = v->share_count * TT_VERBS_CREDITS;
	return fake_waiting(v->srq) + v->again_count;
}

static bool is_whole(const struct net *n)
{
	uint32_t all, there = receives_of(n, &all);

	return there == all;
}

/* Either side closes while messages of the other one arrive. All receives are there afterwards. */
static void close_often(void)
{
	enum { BURST = 8 };
	int times = getenv("TEST_CONNECTS") ? atoi(getenv("TEST_CONNECTS")) : 600;
	struct op ops[2][BURST];

	row_name = "pool";
	fake_seed(1);
	CU_ASSERT_FATAL(open_one(0) == 0 && open_one(1) == 0);
	for (int i = 0; i < times; i++) {
		nets[0].ups = nets[1].ups = nets[1].downs = nets[0].downs = 0;
		connect_to(1);
		UNTIL(nets[0].ups == 1 && nets[1].ups == 1);
		for (int k = 0; k < 2 * BURST; k++)
			send_to(k % 2, !(k % 2), &ops[k % 2][k / 2]);
		for (int k = i % 5; k; k--)
			turn();
		int first = i % 2;
		tt_verbs.disconnect(nets[first].peer[!first]);
		for (int k = 0; k < BURST; k++)
			CU_ASSERT(ops[first][k].dones == 1);
		UNTIL(nets[!first].downs == 1);
		CU_ASSERT(!nets[first].downs);
		tt_verbs.disconnect(nets[!first].peer[first]);
		nets[0].peer[1] = nets[1].peer[0] = NULL;
	}
	UNTIL(is_whole(&nets[0]) && is_whole(&nets[1]));
	close_nets();
}

static void test_pool(void) { each_way(close_often); }

/* ---- a switch between with a small MTU ---- */

/* Two hosts: a and c have fake_ib1. */
static void plug_two(int kind)
{
	struct fake_device two[2] = { fake_devices[kind], fake_devices[kind] };

	two[0].name = "fake_a";
	two[1].name = "fake_b";
	two[1].port[0].lid = kind == IB ? 9 : 0;
	two[1].port[0].gids[0].text = "fe80::2:c903:0:91";
	if (kind == ROCE)
		two[1].port[0].gids[1].text = "::ffff:10.9.0.91";
	two[1].port[0].ip = "10.9.0.91";
	fake_plug(two, 2);
	devices[0] = devices[2] = "fake_a";
	devices[1] = "fake_b";
}

/* What leaves a, b or both in full packets is lost: neither side is up, so that the pair takes another way. */
static void connect_through(int ways, uint64_t seed)
{
	timeout_ms = 500;
	fake_seed(seed);
	CU_ASSERT_FATAL(open_one(0) == 0 && open_one(1) == 0);
	if (ways & 1)
		fake_path_mtu("fake_a", 1, 1500);
	if (ways & 2)
		fake_path_mtu("fake_b", 1, 1500);
	connect_to(1);
	UNTIL(nets[0].ups + nets[0].downs);
	CU_ASSERT(nets[0].err == -EHOSTUNREACH || nets[0].err == -ETIMEDOUT);
	CU_ASSERT(nets[0].downs == 1 && !nets[0].ups && !nets[1].ups);
	CU_ASSERT(says(nets[0].why, "the MTU of all that is between"));
	settle();
	CU_ASSERT(!nets[1].ups && !nets[1].downs);
	close_nets();
	timeout_ms = 20000;
}

static void test_small_mtu(void)
{
	row_name = "a small MTU between";
	for (int kind = IB; kind <= ROCE; kind++) {
		plug_two(kind);
		for (int ways = 1; ways < 4; ways++)
			for (uint64_t seed = 0; seed < SEEDS; seed++)
				connect_through(ways, seed);
		fake_seed(1); /* what fits goes */
		CU_ASSERT_FATAL(open_one(0) == 0 && open_one(1) == 0);
		fake_path_mtu("fake_a", 1, 4096);
		connect_to(1);
		UNTIL(nets[0].ups == 1 && nets[1].ups == 1);
		put_across();
		close_nets();
	}
	plug_default();
}

/* In a job the ranks take TCP, and all ranks stay. The adapter sends again for longer than the ranks wait. */
static void make_narrow(void) { fake_path_mtu("fake_ib0", 1, 2048); }

static atomic_int explained;

static void put_much(tutti *job)
{
	enum { LEN = 100000 };
	char *at = calloc(2, LEN);
	tutti_window *w;
	tutti_peer p;
	int next = (tutti_rank(job) + 1) % 3;

	memset(at + LEN, 'a' + tutti_rank(job), LEN);
	CHECK(tutti_window_open(job, "w", at, LEN, &w) == 0);
	CHECK(tutti_put(w, next, 0, at + LEN, LEN, NULL) == 0 && tutti_barrier(job, NULL) == 0);
	CHECK(at[0] == 'a' + (tutti_rank(job) + 2) % 3 && at[LEN - 1] == at[0]);
	CHECK(tutti_group_peer(job, next, &p) == 0 && !strcmp(p.transport, "tcp"));
	atomic_fetch_add(&explained, strstr(p.why_not, "the MTU of all that is between") != NULL);
	CHECK(tutti_barrier(job, NULL) == 0 && explained > 0);
	CHECK(tutti_barrier(job, NULL) == 0);
	tutti_window_close(w);
	free(at);
}

static void test_narrow_job(void)
{
	struct fake_device d = fake_devices[IB];

	d.patient = true;
	fake_plug(&d, 1);
	atomic_store(&explained, 0);
	CU_ASSERT_EQUAL(run_ranks((struct ranks){ .size = 3, .wire = "verbs", .devices = "fake_ib0", .silence_ms = 5000,
	                                          .prepare = make_narrow, .program = put_much }), 0);
	plug_default();
}

/* ---- partitions ---- */

static const struct {
	uint16_t keys[2][FAKE_PKEYS];
	const char *setting;
	int index[2];      /* of the tables: where a and b talk */
	const char *words; /* a's sentence; NULL: they connect */
} partitions[] = {
	{ { { 0x7fff, 0xffff }, { 0x7fff, 0xffff } }, NULL, { 1, 1 }, NULL },
	{ { { 0x7fff, 0x8005 }, { 0x8005, 0x7fff } }, NULL, { 1, 0 }, NULL },
	{ { { 0xffff, 0x0005, 0x8005 }, { 0xffff, 0x8005 } }, "0x8005", { 2, 1 }, NULL },
	{ { { 0xffff, 0x0005, 0x8005 }, { 0xffff, 0x0005 } }, "5", { 2, 1 }, NULL },
	{ { { 0x7fff }, { 0xffff } }, NULL, { 0, 0 }, NULL },
	{ { { 0x7fff, 0x8001 }, { 0xffff } }, NULL, { 0, 0 }, NULL }, /* the one partition of a host that serves all */
	{ { { 0xffff, 0x8002 }, { 0x7fff, 0x8001 } }, NULL, { 0, 0 }, NULL },
	{ { { 0x8001, 0x8002, 0x8003 }, { 0x8003, 0x8002 } }, NULL, { 1, 1 }, NULL },
	{ { { 0x7fff, 0x0001 }, { 0x7fff, 0x8001 } }, NULL, { 1, 1 }, NULL },
	{ { { 0x7fff }, { 0x7fff } }, NULL, { 0, 0 }, "that both have, one of them as a full member (0x8000 is set)" },
	{ { { 0x8001, 0x7fff }, { 0x8002 } }, NULL, { 0, 0 },
	  "its port has the partition keys 0x8002, and this side's, fake_a:1, has 0x8001, 0x7fff: " },
};

static void test_partitions(void)
{
	for (size_t i = 0; i < TT_COUNT(partitions); i++) {
		struct fake_device two[2] = { fake_devices[IB], fake_devices[IB] };
		row_name = "partitions";
		for (int k = 0; k < 2; k++)
			memcpy(two[k].port[0].pkeys, partitions[i].keys[k], sizeof two[k].port[0].pkeys);
		two[0].name = "fake_a";
		two[1].name = "fake_b";
		two[1].port[0].lid = 9;
		two[1].port[0].gids[0].text = "fe80::2:c903:0:91";
		fake_plug(two, 2);
		devices[0] = "fake_a";
		devices[1] = "fake_b";
		if (partitions[i].setting)
			setenv("TUTTI_VERBS_PKEY", partitions[i].setting, 1);
		fake_seed(i);
		CU_ASSERT_FATAL(open_one(0) == 0 && open_one(1) == 0);
		connect_to(1);
		UNTIL(nets[0].ups + nets[0].downs == 1);
		CU_ASSERT(nets[0].ups == !partitions[i].words);
		if (partitions[i].words) {
			CU_ASSERT(says(nets[0].why, partitions[i].words));
		} else {
			UNTIL(nets[1].ups == 1);
			for (int k = 0; k < 2; k++)
				CU_ASSERT_EQUAL(fake_attr(qp_of(fake_context(k))).pkey_index, partitions[i].index[k]);
			put_across();
		}
		close_nets();
		unsetenv("TUTTI_VERBS_PKEY");
	}
	plug_default();
}

/* ---- virtual ports ---- */

/* One end, or both, are virtual: they have LIDs, and their packets need a global header all the same. */
static void test_virtual(void)
{
	for (int which = 1; which < 4; which++)
		for (uint64_t seed = 0; seed < SEEDS; seed++) {
			struct fake_device two[2] = { fake_devices[IB], fake_devices[IB] };
			row_name = "a virtual port";
			for (int k = 0; k < 2; k++)
				two[k].port[0].grh = which >> k & 1;
			two[0].name = "fake_a";
			two[1].name = "fake_b"; /* it has the LID of the other, as ports of one adapter have */
			two[1].port[0].gids[0].text = "fe80::2:c903:0:91";
			fake_plug(two, 2);
			devices[0] = devices[2] = "fake_a";
			devices[1] = "fake_b";
			timeout_ms = 2000;
			fake_seed(seed);
			meet_and_put();
		}
	timeout_ms = 20000;
	plug_default();
}

/* ---- memory that may not be written ---- */

/* A mapped file is put from; what others may write into must be writable. */
static void test_read_only(void)
{
	enum { LEN = SIZE };
	struct tt_region *r;
	struct tt_pin *pin;
	struct op op;
	char *bytes = mmap(NULL, LEN, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	row_name = "read only";
	CU_ASSERT_FATAL(bytes != MAP_FAILED);
	memset(bytes, 'r', LEN);
	CU_ASSERT_FATAL(mprotect(bytes, LEN, PROT_READ) == 0);
	struct tt_mem mem = { .base = bytes, .len = LEN, .gpu = -1, .fd = -1 };
	open_nets(1);
	CU_ASSERT(tt_verbs.pin(nets[0].net, &mem, 1, &pin) == -EFAULT);
	CU_ASSERT_FATAL(tt_verbs.pin(nets[0].net, &mem, 0, &pin) == 0);
	CU_ASSERT_FATAL(tt_verbs.reg(nets[0].net, &mem, 0, pin, &r) == 0);
	op = (struct op){ .op = { .kind = TT_PUT, .region = r, .local = bytes, .len = LEN,
	                          .key = &nets[1].region->key, .done = done } };
	tt_verbs.post(nets[0].peer[1], &op.op);
	UNTIL(op.dones);
	CU_ASSERT(op.op.err == 0 && !memcmp(nets[1].memory, bytes, LEN));
	op = (struct op){ .op = { .kind = TT_GET, .region = r, .local = bytes, .len = LEN,
	                          .key = &nets[1].region->key, .done = done } };
	tt_verbs.post(nets[0].peer[1], &op.op);
	UNTIL(op.dones);
	CU_ASSERT(op.op.err == -EFAULT);
	put_across(); /* the connection is as good as before */
	tt_verbs.dereg(r);
	tt_verbs.unpin(pin);
	close_nets();
	munmap(bytes, LEN);
}

/* ---- what providers take inline ---- */

static void test_inline(void)
{
	static const struct { uint32_t most, taken; } cases[] = { { 512, TT_VERBS_INLINE }, { 128, 110 }, { 80, 64 },
		{ 60, 48 }, { 32, 32 }, { 28, 0 }, { 0, 0 } };

	for (size_t i = 0; i < TT_COUNT(cases); i++) {
		struct fake_device d = fake_devices[ROCE];
		row_name = "inline";
		d.max_inline = cases[i].most;
		fake_plug(&d, 1);
		open_nets(i);
		CU_ASSERT_EQUAL(fake_attr(fake_qp(0)).cap.max_inline_data, cases[i].taken);
		put_across();
		check_others();
		close_nets();
	}
	plug_default();
}

/* A job over adapters without inline data, and with one vector of completions: each message comes from memory. */
static void without_inline(void)
{
	struct fake_device d = fake_devices[IB];

	for (int i = 0; i < FAKE_DEVICES; i++)
		if (!strcmp(fake_devices[i].name, devices[0]))
			d = fake_devices[i];
	d.max_inline = 0;
	d.vectors = 1;
	fake_plug(&d, 1);
	atomic_store(&cut_now, 1); /* the link stays */
	row_name = "without inline data";
	CU_ASSERT_EQUAL(run_ranks((struct ranks){ .size = 3, .wire = "verbs", .devices = d.name,
	                                          .silence_ms = 1000, .program = sum_on }), 0);
	unsetenv("TUTTI_VERBS_DEVICES");
	fake_plug(fake_devices, FAKE_DEVICES);
}

static void test_without_inline(void) { each_way(without_inline); }

/* ---- a VPI adapter: one port is InfiniBand, the other one Ethernet ---- */

static uint8_t link_of(int i) { return tt_container_of(nets[i].net, struct tt_verbs, base)->port.attr.link_layer; }

static void test_vpi(void)
{
	struct fake_device two[2] = { fake_vpi, fake_devices[ROCE] };
	struct tt_device list[4];
	char name[TT_DEVICE_NAME];

	row_name = "VPI";
	fake_plug(two, 2);
	choose(0, name);
	CU_ASSERT_STRING_EQUAL(name, "fake_vpi0:1");
	CU_ASSERT_EQUAL(tt_verbs.list(list, 4), 4);
	CU_ASSERT(says(list[1].note, "all ranks take InfiniBand, as fake_vpi0:1, before RoCE"));
	for (uint64_t seed = 0; seed < SEEDS; seed++) { /* its Ethernet port reaches RoCE, not its other port */
		fake_seed(seed);
		devices[0] = "fake_vpi0:2";
		devices[1] = "fake_roce0";
		devices[2] = "fake_vpi0:1";
		for (int i = 0; i < NETS; i++)
			CU_ASSERT_FATAL(open_one(i) == 0);
		CU_ASSERT(link_of(0) == IBV_LINK_LAYER_ETHERNET && link_of(2) == IBV_LINK_LAYER_INFINIBAND);
		connect_to(1);
		connect_to(2);
		UNTIL(nets[0].ups == 1 && nets[1].ups == 1 && nets[0].downs == 1);
		CU_ASSERT(says(nets[0].why, "its port is InfiniBand and this side's, fake_vpi0:2, is RoCE"));
		fake_port_state("fake_vpi0", 1, IBV_PORT_DOWN); /* what happens to the other port is no news */
		settle();
		CU_ASSERT(!*tt_container_of(nets[0].net, struct tt_verbs, base)->unfit.text);
		put_across();
		nets[0].peer[2] = nets[2].peer[0] = NULL;
		close_nets();
		choose(0, name);
		CU_ASSERT(strcmp(name, "fake_vpi0:1") != 0);
		fake_port_state("fake_vpi0", 1, IBV_PORT_ACTIVE);
	}
	plug_default();
}

/* ---- no memory for completions ---- */

static atomic_bool out_of_memory;
void *__real_realloc(void *, size_t);
void *__wrap_realloc(void *, size_t);

void *__wrap_realloc(void *p, size_t size)
{
	return atomic_load(&out_of_memory) ? NULL : __real_realloc(p, size);
}

/* Before a queue pair goes, all completions are polled and kept: the net says why it ends where it cannot. */
static void test_no_memory(void)
{
	row_name = "no memory";
	open_nets(1);
	tt_verbs.disconnect(nets[0].peer[1]);
	nets[0].peer[1] = NULL;
	atomic_store(&out_of_memory, true);
	UNTIL(nets[0].lost);
	atomic_store(&out_of_memory, false);
	CU_ASSERT(says(nets[0].why, "no memory to keep its completions"));
	close_nets();
}

static CU_TestInfo reach_tests[] = {
	{ "windows", test_windows }, { "flap", test_flap }, { "cut", test_cut }, { "a job's link is down", test_job },
	{ "sockets", test_sockets }, { "pool", test_pool },
	{ "a small MTU", test_small_mtu }, { "a job behind a small MTU", test_narrow_job },
	{ "partitions", test_partitions }, { "virtual ports", test_virtual }, { "read only", test_read_only },
	{ "inline", test_inline }, { "a job without inline data", test_without_inline }, { "VPI", test_vpi },
	{ "no memory", test_no_memory }, CU_TEST_INFO_NULL,
};
static CU_SuiteInfo suites[] = { { "reach", NULL, NULL, NULL, NULL, reach_tests }, CU_SUITE_INFO_NULL };

int main(int argc, char **argv)
{
	tt_verbs_instead = &tt_fake_verbs;
	plug_default();
	return run_suites(suites, argc, argv);
}
