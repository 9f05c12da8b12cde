/* unit_fake.c - the fake adapters move bytes, and punish what real ones do not allow (fake.h) */
#include "tests/verbs/fake_private.h"
#include "base/base.h"
#include "tests/harness/cunit_main.h"
#include <arpa/inet.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>

enum { SIZE = 200 << 10, SEEDS = 200, DEPTH = 64 };
#define lib tt_fake_verbs

/* ---- two ends of a connection ---- */

struct end {
	struct ibv_context *c;
	struct ibv_pd *pd;
	struct ibv_comp_channel *channel;
	struct ibv_cq *cq;
	struct ibv_srq *srq;
	struct ibv_qp *qp;
	struct ibv_mr *mr;
	struct ibv_qp_attr attr; /* what modify_qp is to set; a test changes it before join() */
	char *memory;
};

struct pair { struct end a, b; };

static struct ibv_context *open_named(const char *name)
{
	struct ibv_device **list = lib.get_device_list(NULL);
	struct ibv_context *c = NULL;

	for (int i = 0; list[i]; i++)
		if (!strcmp(lib.get_device_name(list[i]), name))
			c = lib.open_device(list[i]);
	lib.free_device_list(list);
	CU_ASSERT_PTR_NOT_NULL_FATAL(c);
	return c;
}

static struct ibv_qp *make_qp(struct end *e)
{
	struct ibv_qp_init_attr attr = { .send_cq = e->cq, .recv_cq = e->cq, .srq = e->srq, .qp_type = IBV_QPT_RC,
		                         .cap = { DEPTH, DEPTH, 2, 2, 64 } };

	return lib.create_qp(e->pd, &attr);
}

static void fill_attr(struct end *e, int gid)
{
	e->attr = (struct ibv_qp_attr){
		.path_mtu = IBV_MTU_1024, .rq_psn = 77, .sq_psn = 77, .max_rd_atomic = 4, .max_dest_rd_atomic = 4,
		.min_rnr_timer = 12, .port_num = 1, .timeout = 14, .retry_cnt = 3, .rnr_retry = 2,
		.qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ,
		.ah_attr = { .port_num = 1, .is_global = 1, .grh = { .sgid_index = (uint8_t)gid, .hop_limit = 255 } },
	};
}

static void open_end(struct end *e, const char *device, bool shared)
{
	struct ibv_srq_init_attr many = { .attr = { .max_wr = DEPTH, .max_sge = 2 } };
	struct ibv_port_attr port;
	struct ibv_gid_entry gid;

	memset(e, 0, sizeof *e);
	e->c = open_named(device);
	e->pd = lib.alloc_pd(e->c);
	e->channel = lib.create_comp_channel(e->c);
	fcntl(e->channel->fd, F_SETFL, O_NONBLOCK);
	fcntl(e->c->async_fd, F_SETFL, O_NONBLOCK);
	e->cq = lib.create_cq(e->c, 4 * DEPTH, e, e->channel, 0);
	e->srq = shared ? lib.create_srq(e->pd, &many) : NULL;
	e->qp = make_qp(e);
	e->memory = calloc(1, SIZE);
	e->mr = lib.reg_mr(e->pd, e->memory, SIZE,
	                   IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ);
	CU_ASSERT_FATAL(e->qp && e->mr);
	CU_ASSERT(lib.query_port(e->c, 1, &port) == 0);
	fill_attr(e, port.link_layer == IBV_LINK_LAYER_ETHERNET ? 1 : 0);
	e->attr.ah_attr.dlid = port.lid;
	if (e->c->device->transport_type == IBV_TRANSPORT_IWARP)
		return;
	CU_ASSERT(lib.query_gid_ex(e->c, 1, e->attr.ah_attr.grh.sgid_index, &gid, 0, sizeof gid) == 0);
	e->attr.ah_attr.grh.dgid = gid.gid;
}

static void open_pair(struct pair *p, const char *device, bool shared)
{
	open_end(&p->a, device, shared);
	open_end(&p->b, device, shared);
	p->a.attr.dest_qp_num = p->b.qp->qp_num;
	p->b.attr.dest_qp_num = p->a.qp->qp_num;
}

static void close_end(struct end *e)
{
	struct ibv_async_event event;

	while (!lib.get_async_event(e->c, &event))
		lib.ack_async_event(&event);
	if (e->qp)
		CU_ASSERT(lib.destroy_qp(e->qp) == 0);
	if (e->mr)
		CU_ASSERT(lib.dereg_mr(e->mr) == 0);
	CU_ASSERT(!e->srq || lib.destroy_srq(e->srq) == 0);
	CU_ASSERT(lib.destroy_cq(e->cq) == 0);
	CU_ASSERT(lib.destroy_comp_channel(e->channel) == 0);
	CU_ASSERT(lib.dealloc_pd(e->pd) == 0);
	CU_ASSERT(lib.close_device(e->c) == 0);
	free(e->memory);
}

static void close_pair(struct pair *p)
{
	close_end(&p->a);
	close_end(&p->b);
}

enum {
	TO_INIT = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS,
	TO_RTR = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
	         IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER,
	TO_RTS = IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
	         IBV_QP_MAX_QP_RD_ATOMIC,
};

static int change(struct end *e, enum ibv_qp_state to, int mask)
{
	e->attr.qp_state = to;
	return lib.modify_qp(e->qp, &e->attr, mask);
}

static int join_end(struct end *e)
{
	int err = change(e, IBV_QPS_INIT, TO_INIT);

	err = err ? err : change(e, IBV_QPS_RTR, TO_RTR);
	return err ? err : change(e, IBV_QPS_RTS, TO_RTS);
}

static void join(struct pair *p)
{
	CU_ASSERT(join_end(&p->a) == 0);
	CU_ASSERT(join_end(&p->b) == 0);
}

/* ---- requests ---- */

static int post(struct end *from, const struct end *to, enum ibv_wr_opcode code, uint32_t len, unsigned flags)
{
	struct ibv_sge sge = { (uintptr_t)from->memory, len, from->mr ? from->mr->lkey : 0 };
	struct ibv_send_wr wr = { .wr_id = 1, .sg_list = &sge, .num_sge = 1, .opcode = code, .imm_data = htonl(4711),
		                  .send_flags = flags | IBV_SEND_SIGNALED,
		                  .wr.rdma = { (uintptr_t)to->memory, to->mr ? to->mr->rkey : 0 } }, *bad = NULL;
	int err = ibv_post_send(from->qp, &wr, &bad);

	CU_ASSERT(!err || bad == &wr);
	return err ? err : bad ? -1 : 0;
}

static int post_receive(struct end *e, uint32_t len)
{
	struct ibv_sge sge = { (uintptr_t)e->memory, len, e->mr->lkey };
	struct ibv_recv_wr wr = { .wr_id = 2, .sg_list = &sge, .num_sge = 1 }, *bad;

	return e->srq ? ibv_post_srq_recv(e->srq, &wr, &bad) : ibv_post_recv(e->qp, &wr, &bad);
}

/* true: there was a completion. Some polls in vain let all that can happen, happen. */
static bool wait_for(struct end *e, struct ibv_wc *wc)
{
	for (int i = 0; i < 300; i++)
		if (ibv_poll_cq(e->cq, 1, wc) == 1)
			return true;
	return false;
}

static enum ibv_wc_status status_of(struct end *e)
{
	struct ibv_wc wc = { .status = (enum ibv_wc_status)99 };

	wait_for(e, &wc);
	return wc.status;
}

/* ---- tests ---- */

static void move_bytes(const char *device, bool shared, uint64_t seed)
{
	static const enum ibv_wr_opcode codes[] = { IBV_WR_RDMA_WRITE, IBV_WR_RDMA_WRITE_WITH_IMM, IBV_WR_SEND,
		                                    IBV_WR_SEND_WITH_IMM, IBV_WR_RDMA_READ };
	static const uint32_t sizes[] = { 0, 1, 8, 63, 4096, SIZE };
	struct ibv_wc wc;
	struct pair p;

	fake_seed(seed);
	open_pair(&p, device, shared);
	join(&p);
	for (size_t i = 0; i < TT_COUNT(codes); i++)
		for (size_t k = 0; k < TT_COUNT(sizes); k++) {
			bool read = codes[i] == IBV_WR_RDMA_READ, tells = !read && codes[i] != IBV_WR_RDMA_WRITE;
			memset(p.a.memory, (int)(1 + i * 10 + k), SIZE);
			memset(p.b.memory, 0, SIZE);
			CU_ASSERT(!tells || post_receive(&p.b, SIZE) == 0);
			CU_ASSERT(post(&p.a, &p.b, codes[i], sizes[k], 0) == 0);
			CU_ASSERT(wait_for(&p.a, &wc) && !wc.status && wc.wr_id == 1 && wc.qp_num == p.a.qp->qp_num);
			CU_ASSERT(!memcmp(p.a.memory, p.b.memory, sizes[k]));
			CU_ASSERT(sizes[k] == SIZE || (read ? !!p.a.memory[sizes[k]] : !p.b.memory[sizes[k]]));
			if (!tells)
				continue;
			CU_ASSERT(wait_for(&p.b, &wc) && !wc.status && wc.wr_id == 2 && wc.byte_len == sizes[k]);
			if (codes[i] & 1)
				CU_ASSERT(wc.wc_flags & IBV_WC_WITH_IMM && ntohl(wc.imm_data) == 4711);
		}
	close_pair(&p);
}

static void test_bytes(void)
{
	for (uint64_t seed = 0; seed < SEEDS; seed++)
		move_bytes(seed % 2 ? "fake_ib0" : "fake_roce0", seed / 2 % 2, seed);
}

/* What is wrong with the connection or the request, and how the request ends. */
static struct wrong {
	const char *name;
	void (*before)(struct pair *); /* join() */
	void (*after)(struct pair *);
	enum ibv_wr_opcode code;
	uint32_t len, receive;         /* receive: 0: none is posted */
	enum ibv_wc_status status;
	int received;                  /* a status; NOTHING */
	bool hurts;                    /* the target's queue pair, too */
} *row;

enum { NOTHING = 99 };

static void drop_key(struct end *e)
{
	CU_ASSERT(lib.dereg_mr(e->mr) == 0);
	e->mr = NULL;
}

static void restrict_memory(struct end *e, int access)
{
	lib.dereg_mr(e->mr);
	e->mr = lib.reg_mr(e->pd, e->memory, SIZE, access);
}

static void swap_keys(struct end *e)
{
	uint32_t key = e->mr->lkey;

	e->mr->lkey = e->mr->rkey;
	e->mr->rkey = key;
}

static void wrong_psn(struct pair *p) { p->a.attr.sq_psn++; }
static void wrong_dest(struct pair *p) { p->b.attr.dest_qp_num++; }
static void wrong_mtu(struct pair *p) { p->a.attr.path_mtu = IBV_MTU_2048; }
static void wrong_gid(struct pair *p) { p->a.attr.ah_attr.grh.dgid.raw[15]++; }
static void wrong_gid_type(struct pair *p) { p->a.attr.ah_attr.grh.sgid_index = 2; }
static void no_write(struct pair *p) { p->b.attr.qp_access_flags = IBV_ACCESS_REMOTE_READ; }
static void no_read(struct pair *p) { p->b.attr.qp_access_flags = IBV_ACCESS_REMOTE_WRITE; }
static void no_reads(struct pair *p) { p->b.attr.max_dest_rd_atomic = 0; }
static void closed_key(struct pair *p) { drop_key(&p->b); }
static void own_key(struct pair *p) { drop_key(&p->a); }
static void rkey_is_lkey(struct pair *p) { swap_keys(&p->b); }
static void lkey_is_rkey(struct pair *p) { swap_keys(&p->a); }
static void not_writable(struct pair *p) { restrict_memory(&p->b, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ); }
static void not_readable(struct pair *p) { restrict_memory(&p->b, IBV_ACCESS_LOCAL_WRITE); }
static void sink_read_only(struct pair *p) { restrict_memory(&p->a, 0); }
static void cut(struct pair *p) { (void)p, fake_lose("fake_roce0", 1, FAKE_FOREVER); }
static void port_down(struct pair *p) { (void)p, fake_port_state("fake_roce0", 1, IBV_PORT_DOWN); }
static void gone(struct pair *p) { CU_ASSERT(lib.destroy_qp(p->b.qp) == 0); p->b.qp = NULL; }
static void killed(struct pair *p) { fake_kill(p->b.c); }
static void removed_receive(struct pair *p) { drop_key(&p->b); }
static void in_error(struct pair *p) { CU_ASSERT(change(&p->a, IBV_QPS_ERR, IBV_QP_STATE) == 0); }
static void faulty(struct pair *p) { (void)p, fake_fail_send(1, IBV_WC_LOC_EEC_OP_ERR, 42); }

static struct wrong wrongs[] = {
	{ "nothing", NULL, NULL, IBV_WR_RDMA_WRITE, SIZE, 0, IBV_WC_SUCCESS, NOTHING, false },
	{ "PSN", wrong_psn, NULL, IBV_WR_RDMA_WRITE, 8, 0, IBV_WC_RETRY_EXC_ERR, NOTHING, false },
	{ "the target names another", wrong_dest, NULL, IBV_WR_RDMA_WRITE, 8, 0, IBV_WC_RETRY_EXC_ERR, NOTHING, false },
	{ "MTU, long", wrong_mtu, NULL, IBV_WR_RDMA_WRITE, 1025, 0, IBV_WC_REM_INV_REQ_ERR, NOTHING, true },
	{ "MTU, short", wrong_mtu, NULL, IBV_WR_RDMA_WRITE, 1024, 0, IBV_WC_SUCCESS, NOTHING, false },
	{ "GID", wrong_gid, NULL, IBV_WR_RDMA_WRITE, 8, 0, IBV_WC_RETRY_EXC_ERR, NOTHING, false },
	{ "GID's type", wrong_gid_type, NULL, IBV_WR_RDMA_WRITE, 8, 0, IBV_WC_RETRY_EXC_ERR, NOTHING, false },
	{ "QP: write", no_write, NULL, IBV_WR_RDMA_WRITE, 8, 0, IBV_WC_REM_INV_REQ_ERR, NOTHING, true },
	{ "QP: read", no_read, NULL, IBV_WR_RDMA_READ, 8, 0, IBV_WC_REM_INV_REQ_ERR, NOTHING, true },
	{ "reads at once", no_reads, NULL, IBV_WR_RDMA_READ, 8, 0, IBV_WC_REM_INV_REQ_ERR, NOTHING, true },
	{ "closed key", NULL, closed_key, IBV_WR_RDMA_WRITE, 8, 0, IBV_WC_REM_ACCESS_ERR, NOTHING, true },
	{ "closed key, read", NULL, closed_key, IBV_WR_RDMA_READ, 8, 0, IBV_WC_REM_ACCESS_ERR, NOTHING, true },
	{ "closed key, nothing to write", NULL, closed_key, IBV_WR_RDMA_WRITE, 0, 0, IBV_WC_SUCCESS, NOTHING, false },
	{ "lkey as rkey", NULL, rkey_is_lkey, IBV_WR_RDMA_WRITE, 8, 0, IBV_WC_REM_ACCESS_ERR, NOTHING, true },
	{ "not writable", NULL, not_writable, IBV_WR_RDMA_WRITE, 8, 0, IBV_WC_REM_ACCESS_ERR, NOTHING, true },
	{ "not readable", NULL, not_readable, IBV_WR_RDMA_READ, 8, 0, IBV_WC_REM_ACCESS_ERR, NOTHING, true },
	{ "own memory", NULL, own_key, IBV_WR_RDMA_WRITE, 8, 0, IBV_WC_LOC_PROT_ERR, NOTHING, false },
	{ "rkey as lkey", NULL, lkey_is_rkey, IBV_WR_RDMA_WRITE, 8, 0, IBV_WC_LOC_PROT_ERR, NOTHING, false },
	{ "constant sink", NULL, sink_read_only, IBV_WR_RDMA_READ, 8, 0, IBV_WC_LOC_PROT_ERR, NOTHING, false },
	{ "no receive", NULL, NULL, IBV_WR_SEND, 8, 0, IBV_WC_RNR_RETRY_EXC_ERR, NOTHING, false },
	{ "no receive, too", NULL, NULL, IBV_WR_RDMA_WRITE_WITH_IMM, 8, 0, IBV_WC_RNR_RETRY_EXC_ERR, NOTHING, false },
	{ "too long", NULL, NULL, IBV_WR_SEND, 65, 64, IBV_WC_REM_INV_REQ_ERR, IBV_WC_LOC_LEN_ERR, true },
	{ "receive's memory", NULL, removed_receive, IBV_WR_SEND, 8, 64, IBV_WC_REM_OP_ERR, IBV_WC_LOC_PROT_ERR, true },
	{ "link cut", NULL, cut, IBV_WR_RDMA_WRITE, 8, 0, IBV_WC_RETRY_EXC_ERR, NOTHING, false },
	{ "port down", NULL, port_down, IBV_WR_RDMA_WRITE, 8, 0, IBV_WC_RETRY_EXC_ERR, NOTHING, false },
	{ "target destroyed", NULL, gone, IBV_WR_RDMA_WRITE, 8, 0, IBV_WC_RETRY_EXC_ERR, NOTHING, false },
	{ "process killed", NULL, killed, IBV_WR_RDMA_WRITE, 8, 0, IBV_WC_RETRY_EXC_ERR, NOTHING, false },
	{ "own error state", NULL, in_error, IBV_WR_RDMA_WRITE, 8, 0, IBV_WC_WR_FLUSH_ERR, NOTHING, false },
	{ "a fault", NULL, faulty, IBV_WR_RDMA_WRITE, 8, 0, IBV_WC_LOC_EEC_OP_ERR, NOTHING, false },
};

static void try_wrong(uint64_t seed)
{
	struct pair p;
	struct ibv_wc wc = { .status = (enum ibv_wc_status)NOTHING };

	fake_seed(seed);
	fake_plug(fake_devices, FAKE_DEVICES);
	open_pair(&p, "fake_roce0", seed % 2);
	if (row->before)
		row->before(&p);
	join(&p);
	CU_ASSERT(!row->receive || post_receive(&p.b, row->receive) == 0);
	if (row->after)
		row->after(&p);
	CU_ASSERT(post(&p.a, &p.b, row->code, row->len, 0) == 0);
	CU_ASSERT(wait_for(&p.a, &wc) && wc.wr_id == 1);
	if (wc.status != row->status)
		printf("%s: status %d, expected %d\n", row->name, wc.status, row->status);
	CU_ASSERT_EQUAL(wc.status, row->status);
	if (row->status) { /* the queue pair is dead: what comes next is flushed */
		CU_ASSERT_EQUAL(fake_attr(p.a.qp).qp_state, IBV_QPS_ERR);
		CU_ASSERT(post(&p.a, &p.b, IBV_WR_SEND, 0, 0) == 0);
		CU_ASSERT_EQUAL(status_of(&p.a), IBV_WC_WR_FLUSH_ERR);
	}
	if (p.b.qp && strcmp(row->name, "process killed"))
		CU_ASSERT_EQUAL(fake_attr(p.b.qp).qp_state, row->hurts ? IBV_QPS_ERR : IBV_QPS_RTS);
	CU_ASSERT_EQUAL((int)status_of(&p.b), (int)row->received);
	close_pair(&p);
}

static void test_wrong(void)
{
	for (size_t i = 0; i < TT_COUNT(wrongs); i++)
		for (uint64_t seed = 0; seed < 20; seed++) {
			row = &wrongs[i];
			try_wrong(seed);
		}
	fake_plug(fake_devices, FAKE_DEVICES);
}

static void test_states(void)
{
	struct pair p;

	fake_seed(1);
	open_pair(&p, "fake_roce0", false);
	CU_ASSERT(post(&p.a, &p.b, IBV_WR_SEND, 8, 0) == EINVAL); /* in RESET */
	CU_ASSERT(post_receive(&p.a, 8) == EINVAL);
	CU_ASSERT(change(&p.a, IBV_QPS_RTR, TO_RTR) == EINVAL);   /* INIT first */
	CU_ASSERT(change(&p.a, IBV_QPS_INIT, TO_INIT & ~IBV_QP_ACCESS_FLAGS) == EINVAL);
	CU_ASSERT(change(&p.a, IBV_QPS_INIT, TO_INIT) == 0);
	CU_ASSERT(post_receive(&p.a, 8) == 0);
	for (int bit = 1; bit < 1 << 21; bit *= 2)
		if (TO_RTR & ~IBV_QP_STATE & bit)
			CU_ASSERT(change(&p.a, IBV_QPS_RTR, TO_RTR & ~bit) == EINVAL);
	CU_ASSERT(change(&p.a, IBV_QPS_RTR, TO_RTR | IBV_QP_TIMEOUT) == EINVAL);
	p.a.attr.max_dest_rd_atomic = 129;
	CU_ASSERT(change(&p.a, IBV_QPS_RTR, TO_RTR) == EINVAL);
	p.a.attr.max_dest_rd_atomic = 4;
	p.a.attr.ah_attr.is_global = 0; /* RoCE has no LIDs */
	CU_ASSERT(change(&p.a, IBV_QPS_RTR, TO_RTR) == EINVAL);
	p.a.attr.ah_attr.is_global = 1;
	p.a.attr.ah_attr.grh.sgid_index = 5; /* an empty one */
	CU_ASSERT(change(&p.a, IBV_QPS_RTR, TO_RTR) == EINVAL);
	p.a.attr.ah_attr.grh.sgid_index = 1;
	CU_ASSERT(change(&p.a, IBV_QPS_RTR, TO_RTR) == 0);
	CU_ASSERT(post(&p.a, &p.b, IBV_WR_SEND, 8, 0) == EINVAL);
	for (int bit = 1; bit < 1 << 21; bit *= 2)
		if (TO_RTS & ~IBV_QP_STATE & bit)
			CU_ASSERT(change(&p.a, IBV_QPS_RTS, TO_RTS & ~bit) == EINVAL);
	CU_ASSERT(change(&p.a, IBV_QPS_RTS, TO_RTS) == 0);
	CU_ASSERT(post(&p.a, &p.b, IBV_WR_SEND, 65, IBV_SEND_INLINE) == EINVAL);
	CU_ASSERT(post(&p.a, &p.b, IBV_WR_RDMA_READ, 8, IBV_SEND_INLINE) == EINVAL);
	CU_ASSERT(change(&p.a, IBV_QPS_RTS, IBV_QP_ACCESS_FLAGS) == 0);
	CU_ASSERT(change(&p.a, IBV_QPS_INIT, TO_INIT) == EINVAL);
	CU_ASSERT(change(&p.a, IBV_QPS_ERR, IBV_QP_STATE) == 0);
	CU_ASSERT(change(&p.a, IBV_QPS_RTS, TO_RTS) == EINVAL);
	CU_ASSERT_EQUAL(status_of(&p.a), IBV_WC_WR_FLUSH_ERR); /* the receive */
	CU_ASSERT(change(&p.a, IBV_QPS_RESET, IBV_QP_STATE) == 0);
	CU_ASSERT(join_end(&p.a) == 0);
	close_pair(&p);
}

static void test_limits(void)
{
	struct ibv_qp_init_attr attr = { .qp_type = IBV_QPT_RC, .cap = { 1 << 20, 1, 1, 1, 0 } };
	struct pair p;

	fake_seed(1);
	open_pair(&p, "fake_roce0", true);
	join(&p);
	attr.send_cq = attr.recv_cq = p.a.cq;
	CU_ASSERT(!lib.create_qp(p.a.pd, &attr) && errno == EINVAL);
	attr.cap.max_send_wr = 1;
	attr.cap.max_inline_data = 4096;
	CU_ASSERT(!lib.create_qp(p.a.pd, &attr) && errno == EINVAL);
	attr.cap.max_inline_data = 0;
	attr.send_cq = p.b.cq; /* another context's */
	CU_ASSERT(!lib.create_qp(p.a.pd, &attr) && errno == EINVAL);
	CU_ASSERT(!lib.reg_mr(p.a.pd, p.a.memory, 8, IBV_ACCESS_REMOTE_WRITE) && errno == EINVAL);
	for (int i = 0; i < DEPTH; i++) {
		CU_ASSERT(post(&p.a, &p.b, IBV_WR_RDMA_WRITE, 1, 0) == 0);
		CU_ASSERT(post_receive(&p.a, 8) == 0);
	}
	CU_ASSERT(post(&p.a, &p.b, IBV_WR_RDMA_WRITE, 1, 0) == ENOMEM); /* whatever is done: nobody has polled */
	CU_ASSERT(post_receive(&p.a, 8) == ENOMEM);
	CU_ASSERT(lib.dealloc_pd(p.a.pd) == EBUSY);
	CU_ASSERT(lib.destroy_cq(p.a.cq) == EBUSY);
	CU_ASSERT(lib.destroy_srq(p.a.srq) == EBUSY);
	CU_ASSERT(lib.destroy_comp_channel(p.a.channel) == EBUSY);
	for (int i = 0; i < DEPTH; i++)
		CU_ASSERT_EQUAL(status_of(&p.a), IBV_WC_SUCCESS);
	CU_ASSERT(post(&p.a, &p.b, IBV_WR_RDMA_WRITE, 1, 0) == 0);
	close_pair(&p);
}

static bool is_readable(int fd) { return poll(&(struct pollfd){ .fd = fd, .events = POLLIN }, 1, 0) == 1; }

static void test_events(void)
{
	struct ibv_cq *cq;
	struct ibv_wc wc;
	struct pair p;
	void *user;

	for (uint64_t seed = 0; seed < SEEDS; seed++) {
		fake_seed(seed);
		open_pair(&p, "fake_ib0", false);
		join(&p);
		CU_ASSERT(ibv_req_notify_cq(p.b.cq, 0) == 0);
		CU_ASSERT(post_receive(&p.b, 8) == 0);
		CU_ASSERT(post(&p.a, &p.b, IBV_WR_SEND, 8, 0) == 0);
		CU_ASSERT(!is_readable(p.b.channel->fd)); /* nobody has worked */
		CU_ASSERT(ibv_req_notify_cq(p.a.cq, 0) == 0);
		for (int i = 0; i < 3 && !is_readable(p.b.channel->fd); i++)
			CU_ASSERT(ibv_req_notify_cq(p.a.cq, 0) == 0);
		CU_ASSERT(is_readable(p.b.channel->fd));
		CU_ASSERT(lib.get_cq_event(p.b.channel, &cq, &user) == 0 && cq == p.b.cq && user == &p.b);
		CU_ASSERT(!is_readable(p.b.channel->fd) && lib.get_cq_event(p.b.channel, &cq, &user) == -1);
		fake_lenient(1);
		CU_ASSERT(lib.destroy_qp(p.b.qp) == 0 && lib.destroy_cq(p.b.cq) == EBUSY && fake_bugs() == 1);
		lib.ack_cq_events(cq, 1);
		p.b.qp = make_qp(&p.b);
		CU_ASSERT(wait_for(&p.a, &wc) && !wc.status);
		while (!lib.get_cq_event(p.a.channel, &cq, &user))
			lib.ack_cq_events(cq, 1);
		close_pair(&p);
	}
}

static void test_bugs(void)
{
	struct ibv_async_event event;
	struct ibv_cq *small;
	struct pair p;

	fake_seed(1);
	fake_lenient(1);
	open_pair(&p, "fake_ib0", false);
	CU_ASSERT(lib.close_device(p.a.c) == EBUSY && fake_bugs() == 1); /* not empty */
	fake_raise(p.a.c, IBV_EVENT_QP_FATAL, p.a.qp, 0);
	CU_ASSERT(is_readable(p.a.c->async_fd));
	CU_ASSERT(lib.get_async_event(p.a.c, &event) == 0 && event.element.qp == p.a.qp);
	CU_ASSERT(lib.destroy_qp(p.a.qp) == EBUSY && fake_bugs() == 2);
	lib.ack_async_event(&event);
	lib.destroy_qp(p.a.qp);
	small = lib.create_cq(p.a.c, 1, NULL, NULL, 0);
	struct ibv_cq *large = p.a.cq;
	p.a.cq = small;
	p.a.qp = make_qp(&p.a);
	p.b.attr.dest_qp_num = p.a.qp->qp_num;
	join(&p);
	CU_ASSERT(post(&p.a, &p.b, IBV_WR_RDMA_WRITE, 1, 0) == 0);
	CU_ASSERT(post(&p.a, &p.b, IBV_WR_RDMA_WRITE, 1, 0) == 0);
	while (fake_bugs() == 2)
		CU_ASSERT_FATAL(ibv_req_notify_cq(large, 0) == 0);
	CU_ASSERT(lib.get_async_event(p.a.c, &event) == 0 && event.event_type == IBV_EVENT_CQ_ERR);
	lib.ack_async_event(&event);
	lib.destroy_qp(p.a.qp);
	p.a.qp = NULL;
	CU_ASSERT(lib.destroy_cq(small) == 0);
	p.a.cq = large;
	close_pair(&p);
}

/* A lost try is repeated; too many are the end. */
static void test_flap(void)
{
	struct pair p;

	for (uint64_t seed = 0; seed < 20; seed++) {
		fake_seed(seed);
		open_pair(&p, "fake_ib0", false);
		join(&p);
		fake_lose("fake_ib0", 1, 10);
		CU_ASSERT(post(&p.a, &p.b, IBV_WR_RDMA_WRITE, SIZE, 0) == 0);
		CU_ASSERT_EQUAL(status_of(&p.a), IBV_WC_SUCCESS);
		fake_lose("fake_ib0", 1, 100);
		CU_ASSERT(post(&p.a, &p.b, IBV_WR_RDMA_WRITE, SIZE, 0) == 0);
		CU_ASSERT_EQUAL(status_of(&p.a), IBV_WC_RETRY_EXC_ERR);
		close_pair(&p);
	}
}

static void test_every_status(void)
{
	struct ibv_wc wc;
	struct pair p;

	for (int s = 1; s <= IBV_WC_TM_RNDV_INCOMPLETE; s++) {
		fake_seed((uint64_t)s);
		open_pair(&p, "fake_ib0", false);
		join(&p);
		CU_ASSERT(post_receive(&p.b, 8) == 0 && post_receive(&p.b, 8) == 0);
		fake_fail_send(2, (enum ibv_wc_status)s, 1000 + (uint32_t)s);
		CU_ASSERT(post(&p.a, &p.b, IBV_WR_SEND, 8, 0) == 0 && post(&p.a, &p.b, IBV_WR_SEND, 8, 0) == 0);
		CU_ASSERT_EQUAL(status_of(&p.a), IBV_WC_SUCCESS);
		CU_ASSERT(wait_for(&p.a, &wc) && wc.status == (enum ibv_wc_status)s);
		CU_ASSERT_EQUAL(wc.vendor_err, 1000 + (uint32_t)s);
		CU_ASSERT(strcmp(lib.wc_status_str(wc.status), "unknown"));
		close_pair(&p);

		open_pair(&p, "fake_ib0", false);
		join(&p);
		CU_ASSERT(post_receive(&p.b, 8) == 0);
		fake_fail_receive(1, (enum ibv_wc_status)s, 7);
		CU_ASSERT(post(&p.a, &p.b, IBV_WR_SEND, 8, 0) == 0);
		CU_ASSERT(wait_for(&p.b, &wc) && wc.status == (enum ibv_wc_status)s && wc.vendor_err == 7);
		CU_ASSERT_NOT_EQUAL(status_of(&p.a), IBV_WC_SUCCESS);
		close_pair(&p);
	}
}

static void test_failing_calls(void)
{
	struct ibv_context *c;
	struct ibv_pd *pd;

	fake_seed(1);
	c = open_named("fake_ib0");
	pd = lib.alloc_pd(c);
	fake_fail("reg_mr", 2, ENOMEM);
	char bytes[8];
	struct ibv_mr *mr = lib.reg_mr(pd, bytes, 8, 0);
	CU_ASSERT(mr && !lib.reg_mr(pd, bytes, 8, 0) && errno == ENOMEM);
	CU_ASSERT_EQUAL(fake_calls("reg_mr"), 2);
	CU_ASSERT(lib.fork_init() == EINVAL); /* too late */
	lib.dereg_mr(mr);
	CU_ASSERT(lib.fork_init() == 0);
	CU_ASSERT_EQUAL(fake_left(), 2);
	fake_remove("fake_ib0");
	CU_ASSERT(!lib.reg_mr(pd, bytes, 8, 0) && errno == EIO && fake_is_open("fake_ib0"));
	lib.dealloc_pd(pd);
	lib.close_device(c);
	CU_ASSERT(!fake_is_open("fake_ib0") && !fake_left());
	struct ibv_device **list = lib.get_device_list(NULL);
	CU_ASSERT(strcmp(list[0]->name, "fake_ib0"));
	lib.free_device_list(list);
	fake_plug(fake_devices, FAKE_DEVICES);
	c = open_named("fake_efa0");
	struct end e = { .c = c, .pd = lib.alloc_pd(c), .cq = lib.create_cq(c, 8, NULL, NULL, 0) };
	CU_ASSERT(!make_qp(&e) && errno == EOPNOTSUPP);
	lib.destroy_cq(e.cq);
	lib.dealloc_pd(e.pd);
	lib.close_device(c);
}

/* ---- rdma_cm ---- */

struct side { /* of a connection by rdma_cm */
	struct end end;
	struct rdma_event_channel *channel;
	struct rdma_cm_id *id;
};

static struct sockaddr_in address(const char *ip, uint16_t port)
{
	struct sockaddr_in a = { .sin_family = AF_INET, .sin_port = htons(port) };

	inet_pton(AF_INET, ip, &a.sin_addr);
	return a;
}

/* The event that comes next; the first bytes of its private data. */
static enum rdma_cm_event_type next_event(struct rdma_event_channel *c, struct rdma_cm_id **id, int *status, char *data,
                                          uint8_t *len)
{
	struct rdma_cm_event *e;
	enum rdma_cm_event_type what;

	if (lib.get_cm_event(c, &e))
		return (enum rdma_cm_event_type)NOTHING;
	what = e->event;
	if (id)
		*id = e->id;
	if (status)
		*status = e->status;
	if (data && e->param.conn.private_data)
		snprintf(data, 8, "%s", (const char *)e->param.conn.private_data);
	if (len)
		*len = e->param.conn.private_data_len;
	CU_ASSERT(lib.ack_cm_event(e) == 0);
	return what;
}

static enum rdma_cm_event_type next(struct side *s) { return next_event(s->channel, NULL, NULL, NULL, NULL); }

static int apply(struct side *s, enum ibv_qp_state to)
{
	struct ibv_qp_attr attr = { .qp_state = to };
	int mask = 0;

	if (lib.init_qp_attr(s->id, &attr, &mask))
		return errno;
	return mask ? lib.modify_qp(s->end.qp, &attr, mask) : 0;
}

static void open_side(struct side *s, const char *device)
{
	open_end(&s->end, device, false);
	s->channel = lib.create_event_channel();
	fcntl(s->channel->fd, F_SETFL, 0);
	CU_ASSERT_FATAL(lib.create_id(s->channel, &s->id, s, RDMA_PS_TCP) == 0);
}

static void close_side(struct side *s)
{
	if (s->id)
		CU_ASSERT(lib.destroy_id(s->id) == 0);
	close_end(&s->end);
	lib.destroy_event_channel(s->channel);
}

static void ask_route(struct side *s, const char *ip, uint16_t port)
{
	struct sockaddr_in to = address(ip, port);

	CU_ASSERT(lib.resolve_addr(s->id, NULL, (struct sockaddr *)&to, 100) == 0);
	CU_ASSERT(next(s) == RDMA_CM_EVENT_ADDR_RESOLVED && s->id->verbs->device == s->end.c->device);
	CU_ASSERT(lib.resolve_route(s->id, 100) == 0);
	CU_ASSERT(next(s) == RDMA_CM_EVENT_ROUTE_RESOLVED);
	CU_ASSERT(apply(s, IBV_QPS_INIT) == 0);
}

static int ask(struct side *s, uint8_t len)
{
	struct rdma_conn_param p = { .private_data = "hello", .private_data_len = len, .responder_resources = 4,
		                     .initiator_depth = 3, .retry_count = 7, .rnr_retry_count = 7,
		                     .qp_num = s->end.qp->qp_num };

	return lib.connect(s->id, &p);
}

static int accept_side(struct side *s)
{
	struct rdma_conn_param p = { .private_data = "answer", .private_data_len = 7, .responder_resources = 3,
		                     .initiator_depth = 4, .qp_num = s->end.qp->qp_num };

	return lib.accept(s->id, &p);
}

static struct rdma_cm_id *listen_on(struct side *s, const char *ip)
{
	struct sockaddr_in any = address(ip, 0);
	struct rdma_cm_id *listener = s->id;

	CU_ASSERT(lib.bind_addr(listener, (struct sockaddr *)&any) == 0 && lib.listen(listener, 5) == 0);
	CU_ASSERT(listener->route.addr.src_sin.sin_port != 0);
	return listener;
}

static void connect_sides(struct side *a, struct side *b, const char *device, const char *ip)
{
	bool iwarp = !strcmp(device, "fake_iwarp0");
	struct rdma_cm_id *listener;
	char data[8] = "";
	uint8_t len;

	open_side(a, device);
	open_side(b, device);
	listener = listen_on(b, ip);
	ask_route(a, ip, ntohs(listener->route.addr.src_sin.sin_port));
	CU_ASSERT(iwarp || (ask(a, 57) == -1 && errno == EINVAL)); /* too much */
	CU_ASSERT(ask(a, 6) == 0);
	CU_ASSERT(next_event(b->channel, &b->id, NULL, data, &len) == RDMA_CM_EVENT_CONNECT_REQUEST);
	CU_ASSERT(!strcmp(data, "hello") && len == (iwarp ? 6 : 56) && b->id != listener && b->id->context == b);
	CU_ASSERT(apply(b, IBV_QPS_INIT) == 0);
	CU_ASSERT(iwarp || (apply(b, IBV_QPS_RTR) == 0 && apply(b, IBV_QPS_RTS) == 0));
	CU_ASSERT(accept_side(b) == 0);
	if (iwarp) {
		CU_ASSERT(next_event(a->channel, NULL, NULL, data, &len) == RDMA_CM_EVENT_ESTABLISHED);
	} else {
		CU_ASSERT(next_event(a->channel, NULL, NULL, data, &len) == RDMA_CM_EVENT_CONNECT_RESPONSE);
		CU_ASSERT(apply(a, IBV_QPS_RTR) == 0 && apply(a, IBV_QPS_RTS) == 0 && lib.establish(a->id) == 0);
	}
	CU_ASSERT(!strcmp(data, "answer") && len == (iwarp ? 7 : 196));
	CU_ASSERT(next(b) == RDMA_CM_EVENT_ESTABLISHED);
	CU_ASSERT(lib.destroy_id(listener) == 0);
}

static void send_over(struct side *a, struct side *b)
{
	struct ibv_wc wc;

	CU_ASSERT(post_receive(&b->end, SIZE) == 0);
	memset(a->end.memory, 5, SIZE);
	CU_ASSERT(post(&a->end, &b->end, IBV_WR_SEND, SIZE, 0) == 0);
	CU_ASSERT(wait_for(&b->end, &wc) && !wc.status && wc.byte_len == SIZE && b->end.memory[SIZE - 1] == 5);
	CU_ASSERT_EQUAL(status_of(&a->end), IBV_WC_SUCCESS);
}

static void test_cm(void)
{
	struct side a, b;

	for (uint64_t seed = 0; seed < SEEDS; seed++) {
		bool ib = seed % 2;
		fake_seed(seed);
		connect_sides(&a, &b, ib ? "fake_ib0" : "fake_roce0", ib ? "10.9.0.1" : "10.9.0.2");
		CU_ASSERT_EQUAL(fake_attr(a.end.qp).max_rd_atomic, 3);
		CU_ASSERT_EQUAL(fake_attr(b.end.qp).max_dest_rd_atomic, 3);
		send_over(&a, &b);
		CU_ASSERT(fake_disconnect(seed % 3 ? a.id : b.id) == 0);
		CU_ASSERT(next(&a) == RDMA_CM_EVENT_DISCONNECTED && next(&a) == RDMA_CM_EVENT_TIMEWAIT_EXIT);
		CU_ASSERT(next(&b) == RDMA_CM_EVENT_DISCONNECTED && next(&b) == RDMA_CM_EVENT_TIMEWAIT_EXIT);
		CU_ASSERT_EQUAL(fake_attr(a.end.qp).qp_state, IBV_QPS_RTS); /* the queue pairs are the caller's */
		close_side(&a);
		close_side(&b);
		CU_ASSERT_EQUAL(fake_left(), 0);
	}
}

static void test_cm_refusals(void)
{
	static const int reasons[] = { 8, 10, 28 };
	struct rdma_cm_id *listener;
	struct side a, b;
	uint8_t len;
	int status;
	char data[8];

	fake_seed(1);
	open_side(&a, "fake_ib0");
	ask_route(&a, "10.9.0.1", 1); /* nobody listens */
	CU_ASSERT(ask(&a, 0) == 0 && next_event(a.channel, NULL, &status, NULL, NULL) == RDMA_CM_EVENT_REJECTED &&
	          status == 8);
	close_side(&a);
	for (size_t i = 0; i < TT_COUNT(reasons); i++) {
		open_side(&a, "fake_ib0");
		ask_route(&a, "10.9.0.1", 1);
		fake_cm_next(RDMA_CM_EVENT_REJECTED, reasons[i]);
		CU_ASSERT(ask(&a, 0) == 0);
		CU_ASSERT(next_event(a.channel, NULL, &status, NULL, NULL) == RDMA_CM_EVENT_REJECTED);
		CU_ASSERT_EQUAL(status, reasons[i]);
		close_side(&a);
	}
	open_side(&a, "fake_roce0");
	open_side(&b, "fake_roce0");
	listener = listen_on(&b, "10.9.0.2");
	ask_route(&a, "10.9.0.2", ntohs(listener->route.addr.src_sin.sin_port));
	CU_ASSERT(ask(&a, 0) == 0 && next_event(b.channel, &b.id, NULL, NULL, NULL) == RDMA_CM_EVENT_CONNECT_REQUEST);
	CU_ASSERT(lib.reject(b.id, "no", 3) == 0);
	CU_ASSERT(next_event(a.channel, NULL, &status, data, &len) == RDMA_CM_EVENT_REJECTED);
	CU_ASSERT(status == 28 && len == 148 && !strcmp(data, "no"));
	lib.destroy_id(listener);
	close_side(&b);
	close_side(&a);
	open_side(&a, "fake_roce0");
	struct sockaddr_in nowhere = address("10.9.0.99", 5);
	CU_ASSERT(lib.resolve_addr(a.id, NULL, (struct sockaddr *)&nowhere, 100) == 0);
	CU_ASSERT(next(&a) == RDMA_CM_EVENT_ADDR_ERROR);
	fake_cm_raise(a.id, RDMA_CM_EVENT_ADDR_CHANGE, 0);
	CU_ASSERT(next(&a) == RDMA_CM_EVENT_ADDR_CHANGE);
	fake_remove("fake_roce0");
	close_side(&a);
	CU_ASSERT_EQUAL(fake_left(), 0);
	fake_plug(fake_devices, FAKE_DEVICES);
}

static void test_cm_kill(void)
{
	struct side a, b;

	fake_seed(1);
	connect_sides(&a, &b, "fake_roce0", "10.9.0.2");
	fake_kill(b.end.c);
	CU_ASSERT(next(&a) == RDMA_CM_EVENT_DISCONNECTED);
	close_side(&b);
	close_side(&a);
	connect_sides(&a, &b, "fake_roce0", "10.9.0.2");
	fake_remove("fake_roce0");
	CU_ASSERT(next(&a) == RDMA_CM_EVENT_DEVICE_REMOVAL);
	CU_ASSERT(next(&b) == RDMA_CM_EVENT_DEVICE_REMOVAL);
	close_side(&a);
	close_side(&b);
	fake_plug(fake_devices, FAKE_DEVICES);
}

static void test_iwarp(void)
{
	struct side a, b;
	struct ibv_wc wc;

	for (uint64_t seed = 0; seed < SEEDS; seed++) {
		fake_seed(seed);
		fake_lenient(1);
		connect_sides(&a, &b, "fake_iwarp0", "10.9.0.3");
		CU_ASSERT(post(&a.end, &b.end, IBV_WR_RDMA_WRITE_WITH_IMM, 8, 0) == -EINVAL);
		CU_ASSERT(post(&b.end, &a.end, IBV_WR_RDMA_WRITE, 8, 0) == 0);
		CU_ASSERT_EQUAL(fake_bugs(), 1); /* it has not heard */
		CU_ASSERT_EQUAL(status_of(&b.end), IBV_WC_SUCCESS);
		send_over(&a, &b);
		send_over(&b, &a);
		CU_ASSERT_EQUAL(fake_bugs(), 1);
		CU_ASSERT(post(&a.end, &b.end, IBV_WR_RDMA_READ, SIZE, 0) == 0);
		CU_ASSERT_EQUAL(status_of(&a.end), IBV_WC_SUCCESS);
		if (seed % 3 == 0) { /* a write with a closed key succeeds; then the connection is gone */
			drop_key(&b.end);
			CU_ASSERT(post(&a.end, &b.end, IBV_WR_RDMA_WRITE, 8, 0) == 0);
			CU_ASSERT_EQUAL(status_of(&a.end), IBV_WC_SUCCESS);
		} else if (seed % 3 == 1) { /* no receive */
			CU_ASSERT(post(&a.end, &b.end, IBV_WR_SEND, 8, 0) == 0);
			CU_ASSERT_EQUAL(status_of(&a.end), IBV_WC_SUCCESS);
		} else { /* a READ into memory without REMOTE_WRITE */
			restrict_memory(&a.end, IBV_ACCESS_LOCAL_WRITE);
			CU_ASSERT(post(&a.end, &b.end, IBV_WR_RDMA_READ, 8, 0) == 0);
			CU_ASSERT_EQUAL(status_of(&a.end), IBV_WC_LOC_QP_OP_ERR);
		}
		CU_ASSERT(next(&a) == RDMA_CM_EVENT_DISCONNECTED && next(&b) == RDMA_CM_EVENT_DISCONNECTED);
		CU_ASSERT(!wait_for(&b.end, &wc) || wc.status == IBV_WC_WR_FLUSH_ERR);
		close_side(&a);
		close_side(&b);
		CU_ASSERT_EQUAL(fake_left(), 0);
	}
}

/* ---- threads ---- */

static pthread_barrier_t meeting;

static void *ping(void *arg)
{
	struct end *me = arg;
	struct ibv_wc wc;

	pthread_barrier_wait(&meeting);
	for (int left = 2000; left;) {
		if (ibv_poll_cq(me->cq, 1, &wc) != 1)
			continue;
		if (wc.status)
			abort();
		left -= wc.opcode == IBV_WC_RECV;
		if (wc.opcode == IBV_WC_RECV && left) {
			post_receive(me, 8);
			post(me, me, IBV_WR_SEND, 8, 0);
		}
	}
	return NULL;
}

/* Two connections, each end in a thread. */
static void test_threads(void)
{
	struct pair p[2];
	pthread_t threads[4];

	fake_seed(3);
	for (int i = 0; i < 2; i++) {
		open_pair(&p[i], "fake_ib0", i);
		p[i].a.attr.rnr_retry = p[i].b.attr.rnr_retry = 7;
		join(&p[i]);
		post_receive(&p[i].a, 8);
		post_receive(&p[i].b, 8);
		post(&p[i].a, &p[i].b, IBV_WR_SEND, 8, 0);
		post(&p[i].b, &p[i].a, IBV_WR_SEND, 8, 0);
	}
	pthread_barrier_init(&meeting, NULL, 4);
	for (int i = 0; i < 4; i++)
		pthread_create(&threads[i], NULL, ping, i % 2 ? &p[i / 2].b : &p[i / 2].a);
	for (int i = 0; i < 4; i++)
		pthread_join(threads[i], NULL);
	pthread_barrier_destroy(&meeting);
	close_pair(&p[0]);
	close_pair(&p[1]);
}

static CU_TestInfo fake_tests[] = {
	{ "bytes", test_bytes }, { "wrong", test_wrong }, { "states", test_states }, { "limits", test_limits },
	{ "events", test_events }, { "bugs", test_bugs }, { "flap", test_flap }, { "every_status", test_every_status },
	{ "failing_calls", test_failing_calls }, { "cm", test_cm }, { "cm_refusals", test_cm_refusals },
	{ "cm_kill", test_cm_kill }, { "iwarp", test_iwarp }, { "threads", test_threads }, CU_TEST_INFO_NULL,
};
static CU_SuiteInfo suites[] = { { "fake", NULL, NULL, NULL, NULL, fake_tests }, CU_SUITE_INFO_NULL };
int main(int argc, char **argv) { return run_suites(suites, argc, argv); }
