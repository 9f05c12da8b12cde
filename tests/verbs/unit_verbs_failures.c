/* unit_verbs_failures.c - every row of the failure table, over adapters that are not there: what each error of an
 * adapter does to a net, to its peers and to the other peers, and what the user reads.
 *
 * Three nets: a and b fail, a and c stay connected. */
#include "tests/verbs/nets.h"
#include "transport/verbs/verbs_private.h"
#include <linux/capability.h>
#include <malloc.h>
#include <sched.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>

/* ---- completions ---- */

static const struct { enum ibv_wc_status status; const char *words; } completions[] = {
	{ IBV_WC_LOC_LEN_ERR, "longer than its receive" },
	{ IBV_WC_LOC_QP_OP_ERR, "does not accept a request" },
	{ IBV_WC_LOC_EEC_OP_ERR, "driver" },
	{ IBV_WC_LOC_PROT_ERR, "not registered" },
	{ IBV_WC_WR_FLUSH_ERR, "in error before" },
	{ IBV_WC_MW_BIND_ERR, "driver" },
	{ IBV_WC_BAD_RESP_ERR, "firmware" },
	{ IBV_WC_LOC_ACCESS_ERR, "driver" },
	{ IBV_WC_REM_INV_REQ_ERR, "MTU" },
	{ IBV_WC_REM_ACCESS_ERR, "not registered" },
	{ IBV_WC_REM_OP_ERR, "kernel's log" },
	{ IBV_WC_RETRY_EXC_ERR, "PFC" },
	{ IBV_WC_RNR_RETRY_EXC_ERR, "no receive" },
	{ IBV_WC_LOC_RDD_VIOL_ERR, "driver" },
	{ IBV_WC_REM_INV_RD_REQ_ERR, "driver" },
	{ IBV_WC_REM_ABORT_ERR, "gave up" },
	{ IBV_WC_INV_EECN_ERR, "driver" },
	{ IBV_WC_INV_EEC_STATE_ERR, "driver" },
	{ IBV_WC_FATAL_ERR, "kernel's log" },
	{ IBV_WC_RESP_TIMEOUT_ERR, "in time" },
	{ IBV_WC_GENERAL_ERR, "kernel's log" },
	{ IBV_WC_TM_ERR, "driver" },
	{ IBV_WC_TM_RNDV_INCOMPLETE, "driver" },
	{ (enum ibv_wc_status)77, "does not know" }, /* a later library's */
};

static void fail_request(size_t i, uint64_t seed)
{
	struct op ops[3];

	open_nets(seed);
	fake_fail_send(2, completions[i].status, 0x8a);
	put_to(0, 1, &ops[0]);
	send_to(0, 1, &ops[1]);
	send_to(0, 1, &ops[2]);
	UNTIL(nets[0].downs == 1 && nets[1].downs == 1);
	CU_ASSERT(ops[0].dones == 1 && ops[1].dones == 1 && ops[2].dones == 1); /* the first one may have succeeded */
	CU_ASSERT(!ops[0].op.err || ops[0].op.err == -ECONNRESET);
	check_ended(ops + 1, 2);
	CU_ASSERT(says(nets[0].why, completions[i].words) && says(nets[0].why, "0x8a"));
	CU_ASSERT(says(nets[0].why, devices[0]));
	CU_ASSERT(says(nets[0].why, tt_fake_verbs.wc_status_str(completions[i].status)));
	check_others();
	close_nets();
}

static void fail_receive(size_t i, uint64_t seed)
{
	struct op ops[1];

	open_nets(seed);
	fake_fail_receive(1, completions[i].status, 0x8b);
	send_to(0, 1, &ops[0]);
	check_ended(ops, 1);
	if (seed == 0) /* otherwise the other side may have told of it first */
		CU_ASSERT(strlen(nets[1].why) > 0);
	check_others();
	close_nets();
}

static void complete_badly(void)
{
	for (size_t i = 0; i < TT_COUNT(completions); i++)
		for (uint64_t seed = 0; seed < (uint64_t)all_or(SEEDS, 2); seed++) {
			row_name = completions[i].words;
			fail_request(i, seed);
			fail_receive(i, seed);
		}
}

static void test_completions(void) { each_way(complete_badly); }

/* ---- asynchronous events ---- */

enum fate { NOTHING, PEER, NET };

static const struct { enum ibv_event_type type; enum fate fate; const char *words; } asyncs[] = {
	{ IBV_EVENT_CQ_ERR, NET, "completion queue" },
	{ IBV_EVENT_QP_FATAL, PEER, "queue pair" },
	{ IBV_EVENT_QP_REQ_ERR, PEER, "request" },
	{ IBV_EVENT_QP_ACCESS_ERR, PEER, "not registered" },
	{ IBV_EVENT_COMM_EST, NOTHING, NULL },
	{ IBV_EVENT_SQ_DRAINED, NOTHING, NULL },
	{ IBV_EVENT_PATH_MIG, NOTHING, NULL },
	{ IBV_EVENT_PATH_MIG_ERR, NOTHING, NULL },
	{ IBV_EVENT_DEVICE_FATAL, NET, "adapter failed" },
	{ IBV_EVENT_PORT_ACTIVE, NOTHING, NULL },
	{ IBV_EVENT_PORT_ERR, NOTHING, NULL },
	{ IBV_EVENT_LID_CHANGE, NOTHING, NULL },
	{ IBV_EVENT_PKEY_CHANGE, NOTHING, NULL },
	{ IBV_EVENT_SM_CHANGE, NOTHING, NULL },
	{ IBV_EVENT_SRQ_ERR, NET, "receives" },
	{ IBV_EVENT_SRQ_LIMIT_REACHED, NOTHING, NULL },
	{ IBV_EVENT_QP_LAST_WQE_REACHED, NOTHING, NULL },
	{ IBV_EVENT_CLIENT_REREGISTER, NOTHING, NULL },
	{ IBV_EVENT_GID_CHANGE, NOTHING, NULL },
	{ IBV_EVENT_WQ_FATAL, NET, "work queue" },
	{ (enum ibv_event_type)77, NOTHING, NULL },
};

/* Of a. */
static struct ibv_qp *queue_to_b(void)
{
	uint32_t there = qp_of(fake_context(1))->qp_num;
	struct ibv_qp *q;

	for (int i = 0; (q = fake_qp(i)) && (q->context != fake_context(0) || fake_attr(q).dest_qp_num != there); i++)
		;
	return q;
}

static void *element_of(struct ibv_context *b, enum ibv_event_type type)
{
	struct ibv_qp *q = qp_of(b);

	switch (type) {
	case IBV_EVENT_CQ_ERR: return q->recv_cq;
	case IBV_EVENT_SRQ_ERR:
	case IBV_EVENT_SRQ_LIMIT_REACHED: return q->srq;
	case IBV_EVENT_QP_FATAL:
	case IBV_EVENT_QP_REQ_ERR:
	case IBV_EVENT_QP_ACCESS_ERR:
	case IBV_EVENT_COMM_EST:
	case IBV_EVENT_SQ_DRAINED:
	case IBV_EVENT_PATH_MIG:
	case IBV_EVENT_PATH_MIG_ERR:
	case IBV_EVENT_QP_LAST_WQE_REACHED: return q;
	default: return NULL;
	}
}

/* b hears of it. The nets were opened in their order. */
static void raise_async(size_t i, uint64_t seed, int port)
{
	struct op op;

	open_nets(seed);
	struct ibv_context *b = fake_context(1);
	uint64_t before = fake_calls("ack_async_event");
	fake_raise(b, asyncs[i].type, element_of(b, asyncs[i].type), port);
	UNTIL(fake_calls("ack_async_event") > before);
	settle();
	if (asyncs[i].fate == NOTHING || port == 2) {
		CU_ASSERT(!nets[0].downs && !nets[1].downs && !nets[1].lost);
		send_to(1, 0, &op);
		UNTIL(op.dones);
		CU_ASSERT_EQUAL(op.op.err, 0);
	} else {
		UNTIL(nets[0].downs == 1 && nets[1].downs + nets[1].lost >= 1);
		CU_ASSERT(nets[1].lost == (asyncs[i].fate == NET));
		CU_ASSERT(says(nets[1].why, asyncs[i].words));
	}
	check_others();
	close_nets();
}

static bool is_of_port(enum ibv_event_type type)
{
	return (type >= IBV_EVENT_PORT_ACTIVE && type <= IBV_EVENT_SM_CHANGE) || type == IBV_EVENT_CLIENT_REREGISTER ||
	       type == IBV_EVENT_GID_CHANGE;
}

static void test_asyncs(void)
{
	for (size_t i = 0; i < TT_COUNT(asyncs); i++)
		for (uint64_t seed = 0; seed < SEEDS; seed++) {
			row_name = asyncs[i].words ? asyncs[i].words : "an asynchronous event";
			raise_async(i, seed, 1);
			if (is_of_port(asyncs[i].type))
				raise_async(i, seed, 2);
		}
}

/* ---- what a port says anew ---- */

static const char *changed;
static void plug_default(void);

static void lose_gid(void) { fake_set_gid(changed, 1, 1, NULL, IBV_GID_TYPE_ROCE_V2); }
static void lose_gids(void)
{
	for (int i = 0; i < 3; i++)
		fake_set_gid(changed, 1, i, NULL, IBV_GID_TYPE_ROCE_V2);
}
static void change_lid(void) { fake_set_lid(changed, 1, 77, IBV_EVENT_LID_CHANGE); }
static void reregister(void) { fake_set_lid(changed, 1, 78, IBV_EVENT_CLIENT_REREGISTER); }
static void go_down(void) { fake_port_state(changed, 1, IBV_PORT_DOWN); }
static void go_up(void) { go_down(), fake_port_state(changed, 1, IBV_PORT_ACTIVE); }
static void move_pkey(void) { fake_set_pkey(changed, 1, 1, 0x8003), fake_set_pkey(changed, 1, 2, 0x8005); }
static void lose_pkey(void) { fake_set_pkey(changed, 1, 1, 0x8003); }

static const struct anew {
	const char *words; /* a's sentence; NULL: it connects, as follows */
	void (*happens)(void);
	int device;        /* of fake_devices */
	int gid, pkey;
} anews[] = {
	{ NULL, lose_gid, 1, 0, 1 }, { "has no GID", lose_gids, 1, 0, 0 },
	{ NULL, change_lid, 0, 0, 1 }, { NULL, reregister, 0, 0, 1 },
	{ "its port 1 is down", go_down, 0, 0, 0 }, { NULL, go_up, 1, 1, 1 },
	{ NULL, move_pkey, 0, 0, 2 }, { "0x8005 (TUTTI_VERBS_PKEY); it has 0xffff, 0x8003", lose_pkey, 0, 0, 0 },
};

/* It happens after the nets have looked at their port. Then they connect. */
static void change(const struct anew *n, uint64_t seed)
{
	struct fake_device d = fake_devices[n->device];
	struct ibv_qp_attr attr;

	d.port[0].pkeys[1] = 0x8005;
	fake_plug(&d, 1);
	changed = devices[0] = devices[1] = d.name;
	row_name = n->words ? n->words : "a port that has changed";
	fake_seed(seed);
	CU_ASSERT_FATAL(open_one(0) == 0 && open_one(1) == 0);
	n->happens();
	UNTIL(fake_calls("ack_async_event") >= 2);
	settle();
	connect_to(1);
	UNTIL(nets[0].ups + nets[0].downs == 1);
	if (n->words) {
		CU_ASSERT(nets[0].err == -EHOSTUNREACH && says(nets[0].why, n->words));
	} else {
		CU_ASSERT_FATAL(nets[0].ups == 1);
		attr = fake_attr(fake_qp(0));
		CU_ASSERT(attr.pkey_index == n->pkey);
		CU_ASSERT(n->device == 0 || attr.ah_attr.grh.sgid_index == n->gid);
	}
	close_nets();
}

static void test_anew(void)
{
	setenv("TUTTI_VERBS_PKEY", "0x8005", 1);
	for (size_t i = 0; i < TT_COUNT(anews); i++)
		for (uint64_t seed = 0; seed < SEEDS; seed++)
			change(&anews[i], seed);
	unsetenv("TUTTI_VERBS_PKEY");
	plug_default();
}

/* ---- events of librdmacm ---- */

static const struct { enum rdma_cm_event_type event; int status; const char *words; } cm_steps[] = {
	{ RDMA_CM_EVENT_ADDR_ERROR, -ENODEV, "no adapter of this host leads" },
	{ RDMA_CM_EVENT_ROUTE_ERROR, -EHOSTUNREACH, "no path" },
	{ RDMA_CM_EVENT_CONNECT_ERROR, -EINVAL, "kernel" },
	{ RDMA_CM_EVENT_UNREACHABLE, -ETIMEDOUT, "does not answer" },
	{ RDMA_CM_EVENT_REJECTED, 8, "nobody listens" },
	{ RDMA_CM_EVENT_REJECTED, 10, "earlier connection" },
	{ RDMA_CM_EVENT_REJECTED, 28, "refused: its log" },
	{ RDMA_CM_EVENT_REJECTED, 35, "adapter refused" },
	{ RDMA_CM_EVENT_REJECTED, -ECONNREFUSED, "adapter refused" },
}, cm_events[] = {
	{ RDMA_CM_EVENT_DISCONNECTED, 0, "has ended" },
	{ RDMA_CM_EVENT_UNREACHABLE, -ETIMEDOUT, NULL }, /* a neighbour's MAC address has changed */
	{ RDMA_CM_EVENT_DEVICE_REMOVAL, 0, "removed" },
	{ RDMA_CM_EVENT_ADDR_CHANGE, 0, NULL },
	{ RDMA_CM_EVENT_TIMEWAIT_EXIT, 0, NULL },
	{ RDMA_CM_EVENT_MULTICAST_JOIN, 0, NULL },
	{ (enum rdma_cm_event_type)77, 0, NULL }, /* a later library's */
};

static struct tt_verbs_library hooked;
static size_t step_at;

static void fail_next(void) { fake_cm_next(cm_steps[step_at].event, cm_steps[step_at].status); }

static int fail_route(struct rdma_cm_id *id, int ms)
{
	if (cm_steps[step_at].event == RDMA_CM_EVENT_ROUTE_ERROR)
		fail_next();
	return tt_fake_verbs.resolve_route(id, ms);
}

static int fail_connect(struct rdma_cm_id *id, struct rdma_conn_param *p)
{
	fail_next();
	return tt_fake_verbs.connect(id, p);
}

/* In place of the answer that the connector waits for. */
static void fail_step(uint64_t seed)
{
	fake_seed(seed);
	CU_ASSERT_FATAL(open_one(0) == 0 && open_one(1) == 0);
	if (cm_steps[step_at].event == RDMA_CM_EVENT_ADDR_ERROR)
		fail_next();
	connect_to(1);
	UNTIL(nets[0].downs == 1);
	CU_ASSERT(nets[0].err == -EHOSTUNREACH && !nets[0].ups && says(nets[0].why, cm_steps[step_at].words));
	settle();
	CU_ASSERT(!nets[1].ups && !nets[1].downs);
	close_nets();
}

static struct rdma_cm_id *id_of(const struct tt_peer *p)
{
	struct rdma_cm_id *id;

	for (int i = 0; (id = fake_id(i)) && id->context != p; i++)
		;
	return id;
}

/* b hears of it. The listeners' ids come first. */
static void raise_cm(size_t i, uint64_t seed)
{
	bool removal = cm_events[i].event == RDMA_CM_EVENT_DEVICE_REMOVAL;
	struct op op;

	open_nets(seed);
	uint64_t before = fake_calls("ack_cm_event");
	fake_cm_raise(removal ? fake_id(1) : id_of(nets[1].peer[0]), cm_events[i].event, cm_events[i].status);
	UNTIL(fake_calls("ack_cm_event") > before);
	settle();
	if (cm_events[i].words) {
		UNTIL(nets[0].downs == 1 && nets[1].downs + nets[1].lost >= 1);
		CU_ASSERT(nets[1].lost == removal && says(nets[1].why, cm_events[i].words));
	} else {
		CU_ASSERT(!nets[0].downs && !nets[1].downs && !nets[1].lost);
		send_to(0, 1, &op);
		UNTIL(op.dones);
		CU_ASSERT_EQUAL(op.op.err, 0);
	}
	check_others();
	close_nets();
}

/* Who has no cookie is refused, and nobody else is hurt. */
static void ask_without_cookie(uint64_t seed)
{
	struct rdma_event_channel *channel;
	struct rdma_cm_event *e;
	struct rdma_cm_id *id;
	enum rdma_cm_event_type last = RDMA_CM_EVENT_ADDR_RESOLVED;

	open_nets(seed);
	CU_ASSERT_FATAL((channel = tt_fake_verbs.create_event_channel()) != NULL);
	fcntl(channel->fd, F_SETFL, O_NONBLOCK);
	CU_ASSERT(tt_fake_verbs.create_id(channel, &id, NULL, RDMA_PS_TCP) == 0);
	CU_ASSERT(tt_fake_verbs.resolve_addr(id, NULL, &fake_id(1)->route.addr.src_addr, 1000) == 0);
	struct rdma_conn_param p = { .qp_num = qp_of(fake_context(2))->qp_num, .private_data = "0123456789abcdef",
		                     .private_data_len = seed % 2 ? 16 : 0 };
	for (uint64_t end = tt_now() + PATIENCE; last != RDMA_CM_EVENT_REJECTED && tt_now() < end; turn()) {
		if (tt_fake_verbs.get_cm_event(channel, &e))
			continue;
		last = e->event;
		tt_fake_verbs.ack_cm_event(e);
		if (last == RDMA_CM_EVENT_ADDR_RESOLVED)
			CU_ASSERT(tt_fake_verbs.resolve_route(id, 1000) == 0);
		if (last == RDMA_CM_EVENT_ROUTE_RESOLVED)
			CU_ASSERT(tt_fake_verbs.connect(id, &p) == 0);
	}
	CU_ASSERT_EQUAL(last, RDMA_CM_EVENT_REJECTED);
	tt_fake_verbs.destroy_id(id);
	tt_fake_verbs.destroy_event_channel(channel);
	check_others();
	close_nets();
}

static void test_cm(void)
{
	static const char *const adapters[] = { "fake_ib0", "fake_roce0", "fake_iwarp0" };

	hooked = tt_fake_verbs;
	hooked.resolve_route = fail_route;
	hooked.connect = fail_connect;
	for (uint64_t seed = 0; seed < SEEDS; seed++) {
		row_name = "librdmacm";
		use_cm(adapters[seed % TT_COUNT(adapters)]);
		tt_verbs_instead = &hooked;
		for (step_at = 0; step_at < TT_COUNT(cm_steps); step_at++)
			fail_step(seed);
		tt_verbs_instead = &tt_fake_verbs;
		for (size_t i = 0; i < TT_COUNT(cm_events); i++)
			raise_cm(i, seed);
		ask_without_cookie(seed);
	}
	use_tcp();
}

/* One side alone. */
static void test_cm_refused(void)
{
	fake_seed(1);
	use_cm("fake_roce0");
	CU_ASSERT_FATAL(open_one(0) == 0);
	use_tcp();
	CU_ASSERT_FATAL(open_one(1) == 0);
	connect_to(1);
	UNTIL(nets[0].downs == 1);
	CU_ASSERT(nets[0].err == -EHOSTUNREACH && says(nets[0].why, "TUTTI_VERBS_CONNECT"));
	close_nets();
}

/* ---- what happens to links, processes and devices ---- */

static void cut(void) { fake_lose("fake_ib0", 1, FAKE_FOREVER); }
static void stop_port(void) { fake_port_state("fake_ib0", 1, IBV_PORT_DOWN); }
static void kill_b(void) { fake_kill(fake_context(1)); }

/* b has an adapter of its own here. */
static void lose_link(void (*happens)(void), uint64_t seed)
{
	struct op ops[3];

	open_nets(seed);
	happens();
	put_to(0, 1, &ops[0]);
	send_to(0, 1, &ops[1]);
	put_to(0, 1, &ops[2]);
	check_ended(ops, 3);
	CU_ASSERT(says(nets[0].why, "does not acknowledge"));
	check_others();
	close_nets();
}

static void flap(uint64_t seed)
{
	struct op op;

	open_nets(seed);
	fake_lose("fake_ib0", 1, 20);
	put_to(0, 1, &op);
	UNTIL(op.dones);
	CU_ASSERT(op.op.err == 0 && !memcmp(nets[1].memory, nets[0].memory, SIZE));
	close_nets();
}

/* Two hosts on one subnet: a and c have fake_ib1. */
static void plug_two(void)
{
	struct fake_device two[2] = { fake_devices[0], fake_devices[0] };

	two[1].name = "fake_ib1";
	two[1].port[0].lid = 9;
	two[1].port[0].gids[0].text = "fe80::2:c903:0:91";
	two[1].port[0].ip = "10.9.0.91";
	fake_plug(two, 2);
	devices[0] = devices[2] = "fake_ib1";
	devices[1] = "fake_ib0";
}

static void plug_default(void)
{
	fake_plug(fake_devices, FAKE_DEVICES);
	devices[0] = devices[1] = devices[2] = "fake_roce0";
}

static void test_links(void)
{
	static void (*const happenings[])(void) = { cut, stop_port, kill_b };

	for (uint64_t seed = 0; seed < SEEDS; seed++) {
		for (size_t i = 0; i < TT_COUNT(happenings); i++) {
			row_name = "a lost link";
			plug_two();
			lose_link(happenings[i], seed);
		}
		flap(seed);
	}
	plug_default();
}

static void remove_b(void) { fake_remove("fake_ib0"); }

static char folder[32]; /* what the kernel shows of adapters */

/* Its driver says nothing, and waits. */
static void hide_b(void) { CU_ASSERT_EQUAL(unlink(fake_context(1)->device->dev_path), 0); }

/* The net is there, and has nothing of the adapter: its memory can be pinned, which holds nothing, and it connects to
 * nobody. */
static void check_released(void)
{
	struct tt_mem mem = { .base = nets[1].memory, .len = SIZE, .gpu = -1, .fd = -1 };
	struct tt_region *region;
	struct tt_peer *peer;
	struct tt_pin *pin;

	CU_ASSERT(says(nets[1].why, "fake_ib0:1 is lost") && says(nets[1].why, "removed"));
	CU_ASSERT(tt_verbs.connect(nets[1].net, nets[0].net->addr, &peer) == -EIO &&
	          says(tt_why(), "fake_ib0:1 is lost"));
	CU_ASSERT(tt_verbs.progress(nets[1].net) == -EIO && says(tt_why(), "removed"));
	CU_ASSERT_FATAL(tt_verbs.pin(nets[1].net, &mem, 1, &pin) == 0);
	CU_ASSERT_FATAL(tt_verbs.reg(nets[1].net, &mem, 1, pin, &region) == 0);
	tt_verbs.dereg(region);
	tt_verbs.unpin(pin);
}

/* It happens to b in the middle of transfers, and b gives all back before it is closed. */
static void lose_device(void (*happens)(void), uint64_t seed)
{
	struct op ops[4];

	plug_two();
	if (happens == hide_b)
		fake_sysfs(folder);
	open_nets(seed);
	put_to(0, 1, &ops[0]);
	put_to(1, 0, &ops[1]);
	for (uint64_t i = 0; i < seed; i++)
		turn();
	happens();
	put_to(0, 1, &ops[2]);
	send_to(0, 1, &ops[3]);
	UNTIL(nets[0].downs == 1 && nets[1].lost);
	for (int i = 0; i < 4; i++)
		CU_ASSERT_EQUAL(ops[i].dones, 1);
	check_others();
	check_released();
	close_one(&nets[0]);
	close_one(&nets[2]);
	CU_ASSERT(!fake_is_open("fake_ib0") && !fake_left());
	nets[0].net = nets[2].net = NULL;
	close_nets();
}

static void make_folder(void) { CU_ASSERT_FATAL(mkdtemp(strcpy(folder, "/tmp/unit_verbs_XXXXXX")) != NULL); }

static void remove_folder(void)
{
	char command[64];

	snprintf(command, sizeof command, "rm -r %s", folder);
	CU_ASSERT(system(command) == 0);
}

static void test_removal(void)
{
	row_name = "removal";
	for (uint64_t seed = 0; seed < (uint64_t)all_or(4 * SEEDS, 8); seed++) {
		lose_device(remove_b, seed);
		setenv("TUTTI_VERBS_CONNECT", "cm", 1);
		lose_device(remove_b, seed);
		unsetenv("TUTTI_VERBS_CONNECT");
	}
	make_folder();
	lose_device(hide_b, 1);
	remove_folder();
	plug_default();
}

/* Then the rank takes the next way. */
static void test_lost_early(void)
{
	row_name = "an adapter lost in the handshake";
	fake_seed(1);
	CU_ASSERT_FATAL(open_one(0) == 0 && open_one(1) == 0);
	connect_to(1);
	fake_raise(fake_context(0), IBV_EVENT_DEVICE_FATAL, NULL, 0);
	UNTIL(nets[0].downs == 1);
	CU_ASSERT(nets[0].err == -EHOSTUNREACH && says(nets[0].why, "is lost"));
	close_nets();
}

/* Only a file that is not there says that the adapter is gone. */
static void test_shown(void)
{
	const struct tt_verbs *net;

	row_name = "shown";
	make_folder();
	fake_plug(&fake_devices[1], 1);
	fake_sysfs(folder);
	fake_seed(1);
	CU_ASSERT_FATAL(open_one(0) == 0);
	net = tt_container_of(nets[0].net, struct tt_verbs, base);
	const char *file = net->device->device->dev_path;
	CU_ASSERT(tt_verbs_is_shown(net) && !unlink(file) && !tt_verbs_is_shown(net));
	CU_ASSERT(!symlink(file, file) && tt_verbs_is_shown(net)); /* ELOOP: it cannot be known */
	close_nets();
	remove_folder();
	plug_default();
}

/* ---- connections that cannot be ---- */

/* a's adapter and b's do not suit each other: it is known before up(). */
static void refuse(const char *name, const struct fake_device *a, const struct fake_device *b, const char *words)
{
	struct fake_device two[2] = { *a, *b };

	row_name = name;
	two[0].name = "fake_a";
	two[1].name = "fake_b";
	fake_plug(two, 2);
	devices[0] = "fake_a";
	devices[1] = "fake_b";
	fake_seed(1);
	CU_ASSERT_FATAL(open_one(0) == 0 && open_one(1) == 0);
	connect_to(1);
	UNTIL(nets[0].downs == 1);
	CU_ASSERT(nets[0].err == -EHOSTUNREACH || nets[0].err == -ETIMEDOUT);
	CU_ASSERT(says(nets[0].why, words) && !nets[0].ups && !nets[1].ups && !nets[1].downs);
	close_nets();
	plug_default();
}

static void test_refused(void)
{
	struct fake_device roce = fake_devices[1], other = roce, far = roce;

	other.port[0].gids[0] = other.port[0].gids[1] = (struct fake_gid){ NULL, IBV_GID_TYPE_IB };
	refuse("RoCE v1 and v2", &roce, &other, "RoCE");
	refuse("InfiniBand and RoCE", &fake_devices[0], &roce,
	       "its port is RoCE and this side's, fake_a:1, is InfiniBand");
	roce.port[0].gids[1].text = NULL; /* link-local GIDs alone, in two subnets */
	far.port[0].gids[1].text = NULL;
	far.port[0].gids[0].text = "fe80::ff:fe00:77";
	far.port[0].subnet = 1;
	refuse("two subnets", &roce, &far, "");
	struct fake_device ib = fake_devices[0], pkey = ib;
	pkey.port[0].lid = 12;
	pkey.port[0].pkeys[0] = 0x8001;
	refuse("partitions", &ib, &pkey, "");
}

/* MTUs differ: both take the smaller. */
static void test_mtu(void)
{
	struct op op;

	row_name = "MTU";
	for (int small = 0; small < 2; small++) {
		struct fake_device two[2] = { fake_devices[0], fake_devices[0] };
		two[0].name = "fake_a";
		two[1].name = "fake_b";
		two[1].port[0].lid = 12;
		two[1].port[0].gids[0].text = "fe80::12";
		two[small].port[0].mtu = IBV_MTU_1024;
		fake_plug(two, 2);
		devices[0] = devices[2] = "fake_a";
		devices[1] = "fake_b";
		open_nets(1);
		put_to(0, 1, &op);
		UNTIL(op.dones);
		CU_ASSERT_EQUAL(op.op.err, 0);
		close_nets();
	}
	plug_default();
}

/* ---- calls that fail ---- */

static const char *const opening[] = { "get_device_list", "open_device", "query_device", "query_port", "query_gid_ex",
	"alloc_pd", "create_comp_channel", "create_cq", "create_srq", "reg_mr", "create_event_channel", "create_id",
	"bind_addr", "listen" };

/* Each call of open(), at each of its times: it fails with a sentence and leaves nothing, or it does without. */
static void fail_to_open(void)
{
	for (size_t i = 0; i < TT_COUNT(opening); i++)
		for (uint64_t nth = 1;; nth++) {
			row_name = opening[i];
			fake_seed(nth);
			CU_ASSERT(open_one(0) == 0);
			uint64_t calls = fake_calls(opening[i]);
			close_one(&nets[0]);
			if (nth > calls)
				break;
			fake_seed(nth);
			fake_fail(opening[i], (int)nth, ENOMEM);
			int err = open_one(0);
			CU_ASSERT(err == 0 || strlen(tt_why()) > 0);
			close_one(&nets[0]);
			CU_ASSERT_EQUAL(fake_left(), 0);
		}
}

static void test_open_fails(void) { each_way(fail_to_open); }

/* Two ports for three nets: on iWARP they are of TCP, and a firewall may know of no others. */
static void share_ports(void)
{
	bool iwarp = strstr(devices[0], "iwarp");

	row_name = "ports";
	fake_seed(1);
	CU_ASSERT(open_one(0) == 0 && open_one(1) == 0);
	CU_ASSERT_EQUAL(open_one(2), iwarp ? -EADDRINUSE : 0);
	CU_ASSERT(!iwarp || strstr(nets[2].why, "no port from 4001 to 4002 free on fake_iwarp0"));
	close_nets();
	CU_ASSERT_EQUAL(fake_left(), 0);
}

static void test_ports(void)
{
	ports[0] = 4001;
	ports[1] = 4002;
	each_way(share_ports);
	ports[0] = ports[1] = 0;
}

static const struct { const char *call; int err; } connecting[] = {
	{ "create_qp", ENOMEM }, { "create_qp", EINVAL }, { "modify_qp", EINVAL }, { "modify_qp", ETIMEDOUT },
	{ "reg_mr", ENOMEM }, { "post_send", ENOMEM }, { "post_srq_recv", ENOMEM }, { "create_id", ENOMEM },
	{ "resolve_addr", ENODEV }, { "resolve_route", EINVAL }, { "connect", EINVAL }, { "accept", EINVAL },
	{ "establish", EINVAL }, { "init_qp_attr", EINVAL },
};

/* a or b, whoever calls it as the nth. */
static void fail_to_connect(void)
{
	for (size_t i = 0; i < TT_COUNT(connecting); i++)
		for (int nth = 1; nth <= 8; nth++) {
			row_name = connecting[i].call;
			fake_seed((uint64_t)nth);
			CU_ASSERT_FATAL(open_one(0) == 0 && open_one(1) == 0);
			fake_fail(connecting[i].call, nth, connecting[i].err);
			connect_to(1);
			UNTIL(nets[0].ups == 1 || nets[0].downs == 1 || nets[0].lost || nets[1].lost);
			settle();
			CU_ASSERT(!nets[0].downs || strlen(nets[0].why) > 0);
			close_nets();
		}
}

static void test_connect_fails(void) { each_way(fail_to_connect); }

static struct ibv_qp *create_none(struct ibv_pd *pd, struct ibv_qp_init_attr *attr)
{
	(void)pd, (void)attr;
	errno = EINVAL;
	return NULL;
}

/* A failure that is not about inline data leaves later queue pairs what they had. */
static void test_inline_stays(void)
{
	row_name = "inline";
	hooked = tt_fake_verbs;
	hooked.create_qp = create_none;
	tt_verbs_instead = &hooked;
	fake_seed(1);
	CU_ASSERT_FATAL(open_one(0) == 0 && open_one(1) == 0);
	connect_to(1);
	UNTIL(nets[0].downs == 1);
	hooked.create_qp = tt_fake_verbs.create_qp;
	connect_to(1);
	UNTIL(nets[0].ups == 1);
	CU_ASSERT_EQUAL(fake_attr(fake_qp(0)).cap.max_inline_data, TT_VERBS_INLINE);
	close_nets();
	tt_verbs_instead = &tt_fake_verbs;
}

static struct tt_verbs_peer *peer_of(struct tt_peer *p) { return tt_container_of(p, struct tt_verbs_peer, base); }

/* b's message has come when a disconnects and has not looked. No later queue pair gets the number, and the message. */
static void test_number_again(void)
{
	struct tt_peer *before;
	struct op op;
	char c;

	row_name = "a number that comes again";
	open_nets(1);
	before = nets[0].peer[1];
	uint32_t number = peer_of(before)->qp->qp_num;
	connect_to(1);
	struct tt_verbs_peer *p = peer_of(nets[0].peer[1]);
	UNTIL(p->ops.stage == TT_STAGE_PROOF);
	while (recv(p->dial.fd, &c, 1, MSG_PEEK | MSG_DONTWAIT) < 0)
		tt_verbs.progress(nets[1].net);
	send_to(1, 0, &op);
	while (!op.dones)
		tt_verbs.progress(nets[1].net);
	tt_verbs.disconnect(before);
	CU_ASSERT(op.op.err == 0 && nets[0].messages == 0);
	tt_verbs.progress(nets[0].net);
	CU_ASSERT(p->qp && p->qp->qp_num != number); /* which is free when the first one has given back all */
	UNTIL(nets[0].ups == 3 && nets[1].ups == 2);
	CU_ASSERT(nets[0].messages == 0 && nets[0].downs == 0);
	check_others();
	close_nets();
}

/* Who cannot arm does not sleep. */
static void test_arm_fails(void)
{
	row_name = "req_notify_cq";
	open_nets(1);
	fake_fail("req_notify_cq", 1, EIO);
	CU_ASSERT_EQUAL(tt_verbs.arm(nets[0].net), 1);
	for (int i = 0; i < 100 && tt_verbs.arm(nets[0].net); i++)
		turn();
	CU_ASSERT_EQUAL(tt_verbs.arm(nets[0].net), 0);
	check_others();
	close_nets();
}

static const struct { const char *call; int err; bool net; } working[] = {
	{ "post_send", ENOMEM, false }, { "post_send", EINVAL, false }, { "post_srq_recv", ENOMEM, true },
	{ "poll_cq", EIO, true },
};

static void test_work_fails(void)
{
	struct op op;

	for (size_t i = 0; i < TT_COUNT(working); i++)
		for (uint64_t seed = 0; seed < SEEDS; seed++) {
			row_name = working[i].call;
			open_nets(seed);
			fake_fail(working[i].call, 1, working[i].err);
			send_to(0, 1, &op);
			UNTIL(nets[0].downs || (working[i].net && (nets[0].lost || nets[1].lost || nets[2].lost)));
			settle();
			close_nets();
		}
}

/* ---- devices that are not used, and why ---- */

static const struct { const char *names, *words; } wrong[] = {
	{ "nonsense", "'nonsense'" }, { "fake_roce0:2x", "'fake_roce0:2x'" }, { "fake_roce0:3", "'fake_roce0:3'" },
	{ "fake_roce0:", "'fake_roce0:'" }, { "fake_roce", "'fake_roce'" }, { "fake_roce0,,fake_ib0", "''" },
	{ "fake_ib0,fake_roce1", "'fake_roce1'" },
};

static void test_devices(void)
{
	struct fake_device down = fake_devices[1], no_gid = down;

	down.port[0].state = IBV_PORT_DOWN;
	memset(no_gid.port[0].gids, 0, sizeof no_gid.port[0].gids);
	fake_plug(&down, 1);
	row_name = "port down";
	CU_ASSERT(open_one(0) == -EINVAL && says(nets[0].why, "fake_roce0:1: its port 1 is down"));
	fake_plug(&no_gid, 1);
	row_name = "no GID";
	CU_ASSERT(open_one(0) == -EINVAL && says(nets[0].why, "no GID"));
	fake_plug(fake_devices, 0);
	row_name = "no device";
	devices[0] = NULL;
	CU_ASSERT(open_one(0) == -ENODEV && says(nets[0].why, "no RDMA adapter"));
	fake_plug(&fake_devices[3], 1);
	row_name = "no RC";
	CU_ASSERT(open_one(0) == -ENODEV && says(nets[0].why, "RC"));
	plug_default();
	row_name = "no such name";
	for (size_t i = 0; i < TT_COUNT(wrong); i++) {
		devices[0] = wrong[i].names;
		CU_ASSERT(open_one(0) == -EINVAL && says(nets[0].why, wrong[i].words));
		CU_ASSERT(says(nets[0].why, "fake_ib0, fake_roce0, fake_iwarp0, fake_efa0"));
	}
	plug_default();
	CU_ASSERT_EQUAL(fake_left(), 0);
}

/* ---- choices ---- */

static struct ibv_qp_attr connected_attr(void)
{
	struct ibv_qp_attr attr;

	CU_ASSERT_FATAL(open_one(0) == 0 && open_one(1) == 0);
	connect_to(1);
	UNTIL(nets[0].ups == 1);
	attr = fake_attr(fake_qp(0));
	close_nets();
	return attr;
}

static void test_settings(void)
{
	struct fake_device d = fake_devices[1];
	struct ibv_qp_attr attr;

	row_name = "settings";
	d.port[0].pkeys[1] = 0x8005;
	d.port[1].state = IBV_PORT_ACTIVE;
	fake_plug(&d, 1);
	fake_seed(1);
	attr = connected_attr();
	CU_ASSERT(attr.ah_attr.grh.sgid_index == 1 && !attr.ah_attr.sl && !attr.pkey_index); /* v2, by IPv4 */
	CU_ASSERT(attr.port_num == 1 && attr.ah_attr.port_num == 1);
	devices[0] = devices[1] = "fake_roce0:2";
	attr = connected_attr();
	CU_ASSERT(attr.port_num == 2 && attr.ah_attr.port_num == 2);
	devices[0] = devices[1] = "fake_roce0:1";
	setenv("TUTTI_VERBS_GID_INDEX", "0", 1);
	setenv("TUTTI_VERBS_SL", "3", 1);
	setenv("TUTTI_VERBS_TC", "106", 1);
	setenv("TUTTI_VERBS_PKEY", "0x8005", 1);
	attr = connected_attr();
	CU_ASSERT(attr.ah_attr.grh.sgid_index == 0 && attr.ah_attr.sl == 3);
	CU_ASSERT(attr.ah_attr.grh.traffic_class == 106 && attr.pkey_index == 1);
	setenv("TUTTI_VERBS_PKEY", "5", 1); /* the same partition, of which a limited member talks to full ones */
	CU_ASSERT_EQUAL(connected_attr().pkey_index, 1);
	setenv("TUTTI_VERBS_PKEY", "0x8006", 1);
	CU_ASSERT(open_one(0) == -EINVAL && says(nets[0].why, "0x8006 (TUTTI_VERBS_PKEY); it has 0xffff, 0x8005"));
	setenv("TUTTI_VERBS_GID_INDEX", "5", 1);
	unsetenv("TUTTI_VERBS_PKEY");
	CU_ASSERT(open_one(0) == -EINVAL && says(nets[0].why, "TUTTI_VERBS_GID_INDEX"));
	unsetenv("TUTTI_VERBS_GID_INDEX");
	unsetenv("TUTTI_VERBS_SL");
	unsetenv("TUTTI_VERBS_TC");
	plug_default();
}

/* What `tutti info` lists. */
static void test_list(void)
{
	struct tt_device list[4];

	row_name = "list";
	make_folder();
	fake_plug(&fake_devices[1], 1);
	fake_sysfs(folder);
	CU_ASSERT(tt_verbs.list(list, 4) == 2 && list[0].numa == 1 && list[0].mbps == 100000);
	CU_ASSERT(strstr(list[0].note, "RoCE v2, GID 1 ") && strstr(list[1].note, "not used: its port 2 is down"));
	plug_default();
	remove_folder();
}

/* The limit on locked memory, with the number that was needed and the mend. */
static void test_memlock(void)
{
	static const char *const calls[] = { "create_cq", "create_srq", "reg_mr" };
	struct rlimit before, low;

	getrlimit(RLIMIT_MEMLOCK, &before);
	low = (struct rlimit){ 65536, before.rlim_max };
	setrlimit(RLIMIT_MEMLOCK, &low);
	for (size_t i = 0; i < TT_COUNT(calls); i++) {
		row_name = calls[i];
		fake_seed(1);
		fake_fail(calls[i], 1, ENOMEM);
		CU_ASSERT(open_one(0) == -ENOMEM && says(nets[0].why, "limits.conf") && says(nets[0].why, "65536"));
	}
	setrlimit(RLIMIT_MEMLOCK, &before);
	CU_ASSERT_EQUAL(fake_left(), 0);
}

/* A device with receives for one peer alone: the next one hears the limit. */
static void test_full(void)
{
	struct fake_device small = fake_devices[1];
	int refused = 0;
	struct op op;

	row_name = "full";
	fake_plug(&small, 1);
	fake_seed(1);
	for (uint32_t wr = 16; wr <= 256; wr *= 2) { /* one of them holds one peer and no two */
		small.max_srq_wr = wr;
		fake_plug(&small, 1);
		for (int i = 0; i < NETS; i++)
			if (open_one(i))
				CU_ASSERT(strlen(nets[i].why) > 0);
		if (!nets[0].net)
			continue;
		connect_to(1);
		UNTIL(nets[0].ups == 1 && nets[1].ups == 1);
		connect_to(2);
		UNTIL(nets[0].ups == 2 || nets[0].downs == 1);
		if (nets[0].downs)
			CU_ASSERT(says(nets[0].why, "room for 1 peers") && nets[2].downs + nets[2].ups == 0);
		refused += nets[0].downs;
		send_to(0, 1, &op);
		UNTIL(op.dones);
		CU_ASSERT_EQUAL(op.op.err, 0);
		close_nets();
	}
	CU_ASSERT_EQUAL(refused, 1);
	plug_default();
}

/* What `tutti info` says of the port; "": nothing. */
static const char *note_of(const char *port)
{
	static struct tt_device list[16];
	int n = tt_verbs.list(list, 16);

	for (int i = 0; i < n; i++)
		if (!strcmp(list[i].name, port))
			return list[i].note;
	return "";
}

/* No device is opened that nobody has named, and none twice. */
static void test_named(void)
{
	static const struct { const char *names; uint64_t opens; } cases[] = {
		{ "fake_roce0", 1 }, { "fake_roce0:1", 1 }, { "fake_ib0,fake_roce0:1", 2 }, { NULL, FAKE_DEVICES },
	};
	row_name = "named";
	devices[0] = NULL;
	for (size_t i = 0; i < TT_COUNT(cases); i++) {
		if (cases[i].names)
			setenv("TUTTI_VERBS_DEVICES", cases[i].names, 1);
		fake_seed(1);
		CU_ASSERT(open_one(0) == 0);
		CU_ASSERT_EQUAL(fake_calls("open_device"), cases[i].opens);
		CU_ASSERT(!strcmp(note_of("fake_ib0:1"), "not used: TUTTI_VERBS_DEVICES does not name it") == (i < 2));
		CU_ASSERT(!strcmp(note_of("fake_roce0:2"), "not used: its port 2 is down"));
		close_nets();
		unsetenv("TUTTI_VERBS_DEVICES");
	}
	setenv("TUTTI_VERBS_DEVICES", "fake_roce1", 1);
	CU_ASSERT(open_one(0) == -EINVAL && tt_verbs.list(NULL, 0) == -EINVAL && says(tt_why(), "'fake_roce1'"));
	unsetenv("TUTTI_VERBS_DEVICES");
	plug_default();
}

static void set_memlock(rlim_t limit)
{
	struct rlimit r;

	getrlimit(RLIMIT_MEMLOCK, &r);
	r.rlim_cur = limit;
	CU_ASSERT_FATAL(setrlimit(RLIMIT_MEMLOCK, &r) == 0);
}

/* Takes the right to lock without limit, or gives it back. */
static void lock_at_will(bool on)
{
	struct __user_cap_header_struct head = { .version = _LINUX_CAPABILITY_VERSION_3 };
	struct __user_cap_data_struct caps[2];

	CU_ASSERT_FATAL(syscall(SYS_capget, &head, caps) == 0);
	caps[0].effective &= ~(1u << CAP_IPC_LOCK);
	caps[0].effective |= on ? caps[0].permitted & 1u << CAP_IPC_LOCK : 0;
	CU_ASSERT_FATAL(syscall(SYS_capset, &head, caps) == 0);
}

static const struct room {
	int peers;
	rlim_t kib;          /* that b may lock; 0: any number */
	const char *words[3];
} rooms[] = {
	{ 1, 0, { "room for 1 peers and no more" } },
	{ 2, 0, { "room for 2 peers and no more" } },
	{ 0, 2 * (2048 + 155), { "it has room for 1 peers and no more", "4406 KiB", "memlock unlimited" } },
	{ 5, 2 * (2048 + 3 * 155), { "it has room for 3 peers and no more", "5026 KiB", "limits.conf" } },
};

/* b has room for some, as the job has no more, or as it may lock no more memory. The next one hears why. */
static void test_room(void)
{
	struct rlimit before;

	getrlimit(RLIMIT_MEMLOCK, &before);
	if (before.rlim_max < rooms[3].kib << 10)
		return; /* a limit of its own */
	lock_at_will(false);
	for (size_t i = 0; i < TT_COUNT(rooms); i++) {
		const struct room *r = &rooms[i];
		int had = 0;
		row_name = r->words[0];
		fake_seed(i);
		set_memlock(before.rlim_max);
		CU_ASSERT_FATAL(open_one(0) == 0);
		set_memlock(r->kib ? r->kib << 10 : before.rlim_max);
		peers = (unsigned)r->peers;
		CU_ASSERT_FATAL(open_one(1) == 0);
		for (peers = 0; !nets[0].downs && had < 9; had++) {
			connect_to(1);
			UNTIL(nets[0].ups + nets[0].downs == had + 1);
		}
		CU_ASSERT(nets[0].ups == atoi(strpbrk(r->words[0], "123")) && nets[0].err == -EHOSTUNREACH);
		for (int k = 0; k < 3 && r->words[k]; k++)
			CU_ASSERT(says(nets[0].why, r->words[k]));
		nets[1].peer[0] = nets[0].peer[1] = NULL; /* there are several: close() disconnects them */
		close_nets();
	}
	set_memlock(2 * (2048 + 154) << 10);
	CU_ASSERT(open_one(0) == -ENOMEM && says(nets[0].why, "limits.conf") && says(nets[0].why, "4511744"));
	set_memlock(before.rlim_cur);
	lock_at_will(true);
}

static int choose(int node, int turn, char names[200])
{
	char list[TT_DEVICES][TT_DEVICE_NAME];
	int n = tt_verbs.choose(node, turn, list);

	*names = 0;
	for (int i = 0; i < n; i++)
		sprintf(names + strlen(names), "%s%.*s", i ? " " : "", (int)strcspn(list[i], ":"), list[i]);
	return n;
}

/* Four of NUMA node 901, one of them down; another one; and one without RC. */
static void plug_six(int numa_of_e, int speed_of_e)
{
	static const char *const names[] = { "a", "b", "c", "d", "e" };
	struct fake_device six[6];

	for (int i = 0; i < 5; i++) {
		six[i] = fake_devices[1];
		six[i].name = names[i];
		six[i].numa = 901;
	}
	six[1].port[0].state = IBV_PORT_DOWN;
	six[4].numa = numa_of_e;
	six[4].port[0].speed = (uint8_t)speed_of_e;
	six[5] = fake_devices[3];
	fake_plug(six, 6);
	fake_sysfs(folder);
}

/* The nearest, then the fastest; of those alike another one for each rank; several only if they are named. */
static void test_choice(void)
{
	static const struct { const char *names; int node, numa, speed, turn; const char *chosen; } cases[] = {
		{ NULL, 901, 902, 64, 0, "a" }, { NULL, 901, 902, 64, 1, "c" }, { NULL, 901, 902, 64, 2, "d" },
		{ NULL, 901, 902, 64, 3, "a" }, { NULL, 902, 902, 16, 5, "e" }, { NULL, 901, 901, 64, 7, "e" },
		{ NULL, -1, 902, 16, 1, "c" }, { NULL, 903, 902, 32, 3, "e" },
		{ "a,b,c,d,e", 901, 902, 64, 0, "a c d e" }, { "a,b,c,d,e", 901, 902, 64, 1, "c d a e" },
		{ "e,d,a", 902, 902, 64, 0, "e a d" }, { "e,d,a", 901, 901, 16, 1, "d a e" },
		{ "a:2,b", 901, 901, 32, 0, "" },
	};
	char names[200];

	row_name = "choice";
	make_folder();
	for (size_t i = 0; i < TT_COUNT(cases); i++) {
		plug_six(cases[i].numa, cases[i].speed);
		if (cases[i].names)
			setenv("TUTTI_VERBS_DEVICES", cases[i].names, 1);
		int n = choose(cases[i].node, cases[i].turn, names);
		if (strcmp(names, cases[i].chosen))
			printf("choice %zu: %s\n", i, names);
		CU_ASSERT(!strcmp(names, cases[i].chosen) && (n > 0) == (*names != 0));
		unsetenv("TUTTI_VERBS_DEVICES");
	}
	CU_ASSERT(says(tt_why(), "a:2: its port 2 is down; b:1: its port 1 is down"));
	remove_folder();
	plug_default();
}

/* InfiniBand and RoCE do not reach each other: all ranks take the same one, though they are alike. */
static void test_networks(void)
{
	struct fake_device two[] = { fake_devices[0], fake_devices[1] };
	char first[200], names[200];

	two[0].numa = two[1].numa = -1;
	two[0].port[0].speed = two[1].port[0].speed;
	two[0].port[0].width = two[1].port[0].width;
	fake_plug(two, 2);
	CU_ASSERT(choose(-1, 0, first) == 1);
	for (int turn = 1; turn < 4; turn++)
		CU_ASSERT(choose(-1, turn, names) == 1 && !strcmp(names, first));
	plug_default();
}

/* `tutti info` says why not. */
static void test_passed_over(void)
{
	cpu_set_t before, one;
	int cpu = sched_getcpu(), node = tt_numa_node();

	row_name = "passed over";
	CU_ASSERT_FATAL(!sched_getaffinity(0, sizeof before, &before) && cpu >= 0 && node >= 0);
	CPU_ZERO(&one);
	CPU_SET(cpu, &one);
	CU_ASSERT_FATAL(!sched_setaffinity(0, sizeof one, &one)); /* its node stays the same */
	make_folder();
	plug_six(node, 32);
	CU_ASSERT(!strncmp(note_of("e:1"), "RoCE v2, GID 1", 14));
	CU_ASSERT(!strcmp(note_of("a:1"), "not used: to ranks on these cores e:1 is nearer"));
	CU_ASSERT(!strcmp(note_of("b:1"), "not used: its port 1 is down"));
	CU_ASSERT(!strncmp(note_of("fake_efa0:1"), "not used: it has no reliable connections", 40));
	plug_six(901, 64);
	CU_ASSERT(!strcmp(note_of("a:1"), "not used: to ranks on these cores e:1 is as near, and faster"));
	setenv("TUTTI_VERBS_DEVICES", "a,e", 1);
	CU_ASSERT(!strncmp(note_of("a:1"), "RoCE v2, GID 1", 14) && !strncmp(note_of("e:1"), "RoCE v2, GID 1", 14));
	unsetenv("TUTTI_VERBS_DEVICES");
	CU_ASSERT(!sched_setaffinity(0, sizeof before, &before));
	remove_folder();
	plug_default();
}

static int count_done(const struct op *ops, int n)
{
	int dones = 0;

	for (int i = 0; i < n; i++)
		dones += ops[i].dones;
	return dones;
}

/* More than the arena holds waits for room. */
static void test_starved(void)
{
	enum { PEERS = 4, OPS = 40 };
	static struct op ops[PEERS][OPS];
	struct tt_peer *to[PEERS];
	char *bytes = malloc(SIZE);

	row_name = "starved";
	for (uint64_t seed = 0; seed < SEEDS; seed++) {
		open_nets(seed);
		for (int i = 0; i < PEERS; i++) {
			connect_to(1);
			to[i] = nets[0].peer[1];
		}
		UNTIL(nets[0].ups == 2 + PEERS);
		memset(bytes, 'x', SIZE);
		for (int i = 0; i < PEERS * OPS; i++) {
			struct op *o = &ops[i / OPS][i % OPS];
			*o = (struct op){ .op = { .kind = TT_PUT, .local = bytes, .len = SIZE,
				                  .key = &nets[1].region->key, .done = done } };
			if (i % 3 == 0) {
				o->op.kind = TT_GET;
				o->op.local = malloc(SIZE);
			}
			tt_verbs.post(to[i / OPS], &o->op);
		}
		UNTIL(count_done(ops[0], PEERS * OPS) == PEERS * OPS);
		for (int i = 0; i < PEERS * OPS; i++) {
			CU_ASSERT_EQUAL(ops[i / OPS][i % OPS].op.err, 0);
			if (i % 3 == 0)
				free(ops[i / OPS][i % OPS].op.local);
		}
		CU_ASSERT(!memcmp(nets[1].memory, bytes, SIZE));
		nets[1].peer[0] = NULL; /* it has several: close() disconnects them */
		close_nets();
	}
	free(bytes);
}

/* Adapters that never give up, on a link that is cut: before up() and afterwards the net's own timeout counts. */
static void test_patience(void)
{
	struct op op;

	row_name = "patience";
	for (int late = 0; late < 2; late++) {
		struct fake_device d = fake_devices[1];
		d.patient = true;
		fake_plug(&d, 1);
		fake_seed(1);
		timeout_ms = late ? 20000 : 500;
		CU_ASSERT_FATAL(open_one(0) == 0);
		timeout_ms = 20000; /* b waits longer */
		CU_ASSERT_FATAL(open_one(1) == 0);
		if (!late)
			fake_lose("fake_roce0", 1, FAKE_FOREVER);
		connect_to(1);
		UNTIL(nets[0].ups == 1 || nets[0].downs == 1);
		if (late) {
			tt_container_of(nets[0].net, struct tt_verbs, base)->door.timeout = 500 * TT_MS;
			fake_lose("fake_roce0", 1, FAKE_FOREVER);
			send_to(0, 1, &op);
			UNTIL(nets[0].downs == 1 && op.dones == 1);
		}
		CU_ASSERT_EQUAL(nets[0].err, late ? -ECONNRESET : -ETIMEDOUT);
		CU_ASSERT(says(nets[0].why, late ? "acknowledges nothing" : "500 ms"));
		CU_ASSERT(late || says(nets[0].why, "no full packet went through both ways"));
		close_nets();
	}
	timeout_ms = 20000;
	plug_default();
}

/* b's process stands still when a has come to this stage, or one further. */
static void stop_other(enum tt_stage stage, const char *words)
{
	uint64_t end = tt_now() + PATIENCE;

	row_name = words;
	timeout_ms = 5000; /* also under valgrind, on busy cores, a comes so far within it */
	fake_seed(1);
	CU_ASSERT_FATAL(open_one(0) == 0 && open_one(1) == 0);
	connect_to(1);
	const enum tt_stage *now = &tt_container_of(nets[0].peer[1], struct tt_verbs_peer, base)->ops.stage;
	for (int i = 0; !nets[0].downs && *now < stage && tt_now() < end; i = !i)
		tt_verbs.progress(nets[i].net);
	CU_ASSERT(!nets[0].downs && *now >= stage && *now < TT_STAGE_PROBE);
	while (!nets[0].downs && tt_now() < end)
		tt_verbs.progress(nets[0].net);
	CU_ASSERT(nets[0].downs == 1 && nets[0].err == -ETIMEDOUT && says(nets[0].why, words));
	close_nets();
	timeout_ms = 20000;
}

static void test_stopped_other(void)
{
	stop_other(TT_STAGE_TERMS, "its process has not answered");
	use_cm("fake_ib0");
	stop_other(TT_STAGE_MEET, "librdmacm has not connected");
	use_tcp();
}

/* What an adapter never gives back does not keep the peer for ever. */
static void test_swallowed(void)
{
	struct fake_device d = fake_devices[1];
	struct op op;

	row_name = "swallowed";
	d.swallows = true;
	fake_plug(&d, 1);
	open_nets(1);
	struct ibv_qp *q = queue_to_b();
	fake_raise(fake_context(0), IBV_EVENT_QP_FATAL, q, 0);
	CU_ASSERT(tt_fake_verbs.modify_qp(q, &(struct ibv_qp_attr){ .qp_state = IBV_QPS_ERR }, IBV_QP_STATE) == 0);
	send_to(0, 1, &op); /* before the net knows */
	UNTIL(nets[0].downs == 1 && op.dones);
	CU_ASSERT_EQUAL(op.op.err, -ECONNRESET);
	close_nets();
	plug_default();
}

/* A queue pair that fails may have taken receives of the shared queue: it is destroyed when it says that these are all.
 * Else a later peer had credits for receives that are not there. */
static void lose_often(void)
{
	enum { TIMES = 150, BURST = 30 };
	struct op ops[BURST];

	row_name = "receives";
	fake_seed(1);
	CU_ASSERT_FATAL(open_one(0) == 0 && open_one(1) == 0);
	for (int i = 0; i <= TIMES; i++) {
		connect_to(1);
		UNTIL(nets[0].ups == i + 1 && nets[1].ups == i + 1);
		if (i == TIMES)
			break;
		send_to(0, 1, &ops[0]);
		fake_fail_send(1, IBV_WC_REM_INV_REQ_ERR, 0);
		put_to(0, 1, &ops[1]);
		UNTIL(nets[0].downs == i + 1 && nets[1].downs == i + 1);
		for (int k = 0; k < 2; k++) {
			tt_verbs.disconnect(nets[k].peer[!k]);
			nets[k].peer[!k] = NULL;
		}
	}
	uint64_t before = fake_rnrs();
	for (int i = 0; i < BURST; i++)
		send_to(0, 1, &ops[i]);
	UNTIL(ops[BURST - 1].dones);
	CU_ASSERT(nets[0].downs == TIMES && nets[1].downs == TIMES && fake_rnrs() == before);
	close_nets();
}

static void test_receives(void) { each_way(lose_often); }

/* ---- nothing leaks ---- */

enum { CONNECTS = TT_ASAN || TT_TSAN ? 150 : 700, UNDER_WAY = 200 << 10 };

/* CONNECTS; or TEST_CONNECTS, which `make check-long` and the guest set. */
static int count_connects(void)
{
	const char *text = getenv("TEST_CONNECTS");

	return text ? atoi(text) : CONNECTS;
}

/* Of malloc(), and of the address space; sanitizers count for themselves. */
struct used { size_t bytes, pages; };

static struct used memory_used(void)
{
	struct used u = { 0 };
	char text[100];

	if (TT_ASAN || TT_TSAN)
		return u;
	if (tt_read_text(text, sizeof text, "/proc/self/statm"))
		u.pages = strtoul(text, NULL, 10);
#if __GLIBC_PREREQ(2, 33)
	u.bytes = mallinfo2().uordblks; /* without large blocks: the fake's tables grow */
#endif
	return u;
}

static int count_files(void)
{
	int n = 0;

	for (int fd = 0; fd < 1024; fd++)
		n += fcntl(fd, F_GETFD) >= 0;
	return n;
}

/* Over adapters that are there, "rxe0,rxe1". */
static const char *real_devices(void) { return getenv("TEST_DEVICES"); }

/* Of verbs, as the kernel counts them; or the fake. */
static int count_objects(void)
{
	FILE *f = real_devices() ? popen("rdma resource show | grep -o '[a-z_]* [0-9]*' | grep -v ctx", "r") : NULL;
	int sum = 0, n;

	if (!f)
		return fake_left();
	while (fscanf(f, "%*s %d", &n) == 1)
		sum += n;
	pclose(f);
	return sum;
}

static void connect_often(void)
{
	int objects = 0, files = 0, connects = count_connects();
	struct used before = { 0 }, after;

	row_name = "leaks";
	fake_seed(1);
	CU_ASSERT_FATAL(open_one(0) == 0 && open_one(1) == 0);
	for (int i = 0; i < connects; i++) {
		nets[0].ups = nets[1].ups = nets[1].downs = nets[0].downs = 0;
		connect_to(1);
		UNTIL(nets[0].ups == 1 && nets[1].ups == 1);
		int first = i % 2;
		tt_verbs.disconnect(nets[first].peer[!first]);
		UNTIL(nets[!first].downs == 1);
		tt_verbs.disconnect(nets[!first].peer[first]);
		nets[0].peer[1] = nets[1].peer[0] = NULL;
		if (i == connects / 7) {
			for (uint64_t end = tt_now() + 100 * TT_MS; tt_now() < end; turn())
				; /* a queue pair goes some time after its connection */
			objects = count_objects();
			files = count_files();
			before = memory_used();
		}
	}
	after = memory_used();
	CU_ASSERT(after.bytes < before.bytes + UNDER_WAY); /* some peers are coming or going at any time */
	CU_ASSERT(after.pages < before.pages + (size_t)connects / 4 + 16);
	if (getenv("TEST_CONNECTS"))
		printf("%d connects: %d objects and %d more, %d files, %zd bytes and %zd pages more\n", connects,
		       objects, count_objects() - objects, count_files() - files, (ssize_t)(after.bytes - before.bytes),
		       (ssize_t)(after.pages - before.pages));
	UNTIL(count_objects() == objects);
	CU_ASSERT(objects > 0);
	CU_ASSERT_EQUAL(count_files(), files);
	close_nets();
}

/* rxe takes seven retries as for ever, whoever connects. */
static void check_retries(void)
{
	open_nets(1);
	for (int i = 0; fake_qp(i) && strcmp(devices[0], "fake_iwarp0") != 0; i++)
		CU_ASSERT_EQUAL(fake_attr(fake_qp(i)).retry_cnt, TT_VERBS_RETRIES);
	close_nets();
}

static void test_retries(void) { each_way(check_retries); }

static void test_leaks(void)
{
	char *names = real_devices() ? strdup(real_devices()) : NULL, *second = names ? strchr(names, ',') : NULL;

	if (second) {
		*second = 0;
		devices[0] = names, devices[1] = second + 1;
		connect_often();
	} else {
		each_way(connect_often);
	}
	free(names);
}

/* ---- fork ---- */

static bool has_files(const int *fds, int n) /* a child of fork() */
{
	int status;
	pid_t child = fork();

	if (child == 0) {
		int open = 0;
		for (int i = 0; i < n; i++)
			open += fcntl(fds[i], F_GETFD) >= 0;
		_exit(open);
	}
	CU_ASSERT_FATAL(waitpid(child, &status, 0) == child && WIFEXITED(status));
	CU_ASSERT(WEXITSTATUS(status) == 0 || WEXITSTATUS(status) == n);
	return WEXITSTATUS(status);
}

/* A child has none of the adapter's files. When the net is closed, other files of these numbers are the program's. */
static void test_fork(void)
{
	int fds[4], n = 0;

	open_nets(1);
	const struct tt_verbs *v = (const struct tt_verbs *)nets[0].net;
	fds[n++] = v->wakes->fd;
	fds[n++] = v->device->async_fd;
	if (v->device->cmd_fd >= 0) /* the fake has none */
		fds[n++] = v->device->cmd_fd;
	if (v->events)
		fds[n++] = v->events->fd;
	CU_ASSERT_FALSE(has_files(fds, n));
	close_nets();
	for (int i = 0; i < n; i++)
		CU_ASSERT_FATAL(dup2(STDERR_FILENO, fds[i]) == fds[i]);
	CU_ASSERT_TRUE(has_files(fds, n));
	for (int i = 0; i < n; i++)
		close(fds[i]);
}

static void *pin_more(void *pin)
{
	struct tt_mem mem = { .base = nets[0].memory, .len = SIZE, .gpu = -1, .fd = -1 };

	tt_verbs.pin(nets[0].net, &mem, 0, pin); /* which stays NULL on an error */
	return NULL;
}

/* A pin takes seconds. The thread that finds the net lost has the job's lock, and does not wait for the pin: the
 * adapter is let go when the pin ends. */
static void test_lost_while_pinning(void)
{
	struct tt_pin *pin = NULL;
	pthread_t thread;

	row_name = "lost while memory is pinned";
	fake_seed(1);
	CU_ASSERT_FATAL(open_one(0) == 0);
	fake_pin_slowly(10000);
	CU_ASSERT_FATAL(!pthread_create(&thread, NULL, pin_more, &pin));
	UNTIL(fake_pinning() == 1);
	fake_fail("poll_cq", 1, EIO);
	UNTIL(nets[0].lost);
	CU_ASSERT(fake_pinning() == 1 && fake_context(0));
	fake_pin_slowly(0);
	pthread_join(thread, NULL);
	CU_ASSERT(pin && !fake_context(0));
	tt_verbs.unpin(pin);
	close_nets();
}

static CU_TestInfo failure_tests[] = {
	{ "completions", test_completions }, { "asyncs", test_asyncs }, { "links", test_links },
	{ "removal", test_removal }, { "refused", test_refused }, { "mtu", test_mtu },
	{ "open_fails", test_open_fails }, { "connect_fails", test_connect_fails }, { "work_fails", test_work_fails },
	{ "ports that librdmacm may take", test_ports },
	{ "receives that a queue pair has taken", test_receives },
	{ "arm_fails", test_arm_fails }, { "lost early", test_lost_early }, { "shown", test_shown },
	{ "inline stays", test_inline_stays }, { "number again", test_number_again },
	{ "cm", test_cm }, { "cm_refused", test_cm_refused },
	{ "devices", test_devices }, { "settings", test_settings }, { "list", test_list },
	{ "memlock", test_memlock }, { "full", test_full }, { "swallowed", test_swallowed },
	{ "choice", test_choice }, { "networks", test_networks }, { "passed over", test_passed_over },
	{ "anew", test_anew }, { "named", test_named },
	{ "room", test_room }, { "starved", test_starved }, { "patience", test_patience },
	{ "the other process stands still", test_stopped_other },
	{ "lost while pinning", test_lost_while_pinning },
	{ "retries", test_retries }, { "leaks", test_leaks }, { "fork", test_fork }, CU_TEST_INFO_NULL,
};
static CU_SuiteInfo suites[] = { { "failures", NULL, NULL, NULL, NULL, failure_tests }, CU_SUITE_INFO_NULL };

int main(int argc, char **argv)
{
	tt_verbs_instead = real_devices() ? NULL : &tt_fake_verbs;
	return run_suites(suites, argc, argv);
}
