/* smoke.c - do the guest's devices work at all? Two of them move bytes, by the libraries' calls and nothing of ours.
 *
 *   smoke plain rxe0 rxe1                queue pairs that are connected by hand, over RoCE v2
 *   smoke cm 10.78.0.1 10.78.0.2         by librdmacm, between the devices behind these addresses
 *
 * Each end writes 1 MiB into the other's memory, says so by a message, and reads the other's bytes. One process is both
 * ends. Exit status 0; 1 and a sentence for the first thing that fails; killed by SIGALRM after two minutes. */
#include <arpa/inet.h>
#include <errno.h>
#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define BYTES (1 << 20)
enum { MINE, FOR_PEER, READ_BACK, BUFFERS }; /* what the peer writes, what goes to the peer, what comes from there */

struct end {
	struct ibv_context *context;
	struct ibv_pd *pd;
	struct ibv_cq *cq;
	struct ibv_qp *qp;
	struct ibv_mr *mr;
	uint8_t *memory;
	int gid;
};

static void need(int good, const char *what)
{
	if (good)
		return;
	fprintf(stderr, "smoke: %s failed: %s\n", what, strerror(errno));
	exit(1);
}

static void make_memory(struct end *end, int me)
{
	end->pd = ibv_alloc_pd(end->context);
	need(end->pd != NULL, "ibv_alloc_pd");
	end->cq = ibv_create_cq(end->context, 16, NULL, NULL, 0);
	need(end->cq != NULL, "ibv_create_cq");
	end->memory = aligned_alloc(4096, BUFFERS * BYTES);
	need(end->memory != NULL, "aligned_alloc");
	memset(end->memory, 0, BUFFERS * BYTES);
	for (int i = 0; i < BYTES; i++)
		end->memory[FOR_PEER * BYTES + i] = (uint8_t)(i * 7 + i / 251 + me);
	/* iWARP answers a read by a write into the reader's memory */
	end->mr = ibv_reg_mr(end->pd, end->memory, BUFFERS * BYTES,
		IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ);
	need(end->mr != NULL, "ibv_reg_mr");
}

static struct ibv_qp_init_attr queue_pair(struct end *end)
{
	return (struct ibv_qp_init_attr){ .send_cq = end->cq, .recv_cq = end->cq, .qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = 8, .max_recv_wr = 8, .max_send_sge = 1, .max_recv_sge = 1 } };
}

static void expect_message(struct end *end)
{
	struct ibv_sge sge = { (uintptr_t)end->memory, 0, end->mr->lkey };
	struct ibv_recv_wr wr = { .sg_list = &sge, .num_sge = 1 }, *bad;

	need(ibv_post_recv(end->qp, &wr, &bad) == 0, "ibv_post_recv");
}

/* --- queue pairs that are connected by hand --- */

static struct ibv_context *open_device(const char *name)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct ibv_context *context = NULL;

	for (int i = 0; list && list[i] && !context; i++)
		if (strcmp(ibv_get_device_name(list[i]), name) == 0)
			context = ibv_open_device(list[i]);
	need(context != NULL, name);
	ibv_free_device_list(list);
	return context;
}

static int find_gid(struct ibv_context *context) /* RoCE v2, of an IPv4 address */
{
	struct ibv_gid_entry entry;

	for (int i = 0; i < 16; i++)
		if (ibv_query_gid_ex(context, 1, i, &entry, 0) == 0 && entry.gid_type == IBV_GID_TYPE_ROCE_V2 &&
			IN6_IS_ADDR_V4MAPPED((struct in6_addr *)&entry.gid))
			return i;
	errno = ENOENT;
	need(0, "the search for a GID of RoCE v2 with an IPv4 address");
	return -1;
}

static void open_end(struct end *end, const char *device, int me)
{
	end->context = open_device(device);
	end->gid = find_gid(end->context);
	make_memory(end, me);
	struct ibv_qp_init_attr init = queue_pair(end);
	end->qp = ibv_create_qp(end->pd, &init);
	need(end->qp != NULL, "ibv_create_qp");
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1,
		.qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ };
	need(ibv_modify_qp(end->qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS) == 0,
		"ibv_modify_qp to INIT");
}

static void connect_end(struct end *end, struct end *peer)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = peer->qp->qp_num,
		.max_dest_rd_atomic = 1, .min_rnr_timer = 12,
		.ah_attr = { .is_global = 1, .port_num = 1, .grh = { .sgid_index = end->gid, .hop_limit = 64 } } };

	need(ibv_query_gid(peer->context, 1, peer->gid, &attr.ah_attr.grh.dgid) == 0, "ibv_query_gid");
	need(ibv_modify_qp(end->qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
		IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER) == 0, "ibv_modify_qp to RTR");
	/* 67 ms until a lost packet is sent again, six times: rxe takes seven as "for ever" */
	attr = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = 6, .rnr_retry = 7,
		.max_rd_atomic = 1 };
	need(ibv_modify_qp(end->qp, &attr, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
		IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC) == 0, "ibv_modify_qp to RTS");
}

static void connect_plain(struct end ends[2], char **names)
{
	for (int i = 0; i < 2; i++)
		open_end(&ends[i], names[i], i);
	for (int i = 0; i < 2; i++)
		connect_end(&ends[i], &ends[1 - i]);
	for (int i = 0; i < 2; i++)
		expect_message(&ends[i]);
}

/* --- librdmacm --- */

static struct rdma_cm_id *await(struct rdma_event_channel *channel, enum rdma_cm_event_type wanted)
{
	struct rdma_cm_event *event;

	need(rdma_get_cm_event(channel, &event) == 0, "rdma_get_cm_event");
	if (event->event != wanted) {
		fprintf(stderr, "smoke: %s (status %d) came in the place of %s\n", rdma_event_str(event->event),
			event->status, rdma_event_str(wanted));
		exit(1);
	}
	struct rdma_cm_id *id = event->id;
	rdma_ack_cm_event(event);
	return id;
}

static struct sockaddr_in parse(const char *text)
{
	struct sockaddr_in address = { .sin_family = AF_INET };

	errno = EINVAL;
	need(inet_pton(AF_INET, text, &address.sin_addr) == 1, text);
	return address;
}

static void give_queue_pair(struct end *end, struct rdma_cm_id *id, int me)
{
	end->context = id->verbs;
	make_memory(end, me);
	struct ibv_qp_init_attr init = queue_pair(end);
	need(rdma_create_qp(id, end->pd, &init) == 0, "rdma_create_qp");
	end->qp = id->qp;
	expect_message(end);
}

static void connect_cm(struct end ends[2], char **addresses)
{
	struct sockaddr_in here = parse(addresses[0]), there = parse(addresses[1]);
	struct rdma_conn_param param = { .responder_resources = 1, .initiator_depth = 1, .retry_count = 6,
		.rnr_retry_count = 7 };
	struct rdma_event_channel *channel = rdma_create_event_channel();
	struct rdma_cm_id *listener, *caller, *called;

	need(channel != NULL, "rdma_create_event_channel");
	need(rdma_create_id(channel, &listener, NULL, RDMA_PS_TCP) == 0, "rdma_create_id");
	need(rdma_create_id(channel, &caller, NULL, RDMA_PS_TCP) == 0, "rdma_create_id");
	need(rdma_bind_addr(listener, (struct sockaddr *)&there) == 0, "rdma_bind_addr");
	need(rdma_listen(listener, 1) == 0, "rdma_listen");
	there.sin_port = rdma_get_src_port(listener);
	need(rdma_resolve_addr(caller, (struct sockaddr *)&here, (struct sockaddr *)&there, 10000) == 0,
		"rdma_resolve_addr");
	await(channel, RDMA_CM_EVENT_ADDR_RESOLVED);
	need(rdma_resolve_route(caller, 10000) == 0, "rdma_resolve_route");
	await(channel, RDMA_CM_EVENT_ROUTE_RESOLVED);
	give_queue_pair(&ends[0], caller, 0);
	need(rdma_connect(caller, &param) == 0, "rdma_connect");
	called = await(channel, RDMA_CM_EVENT_CONNECT_REQUEST);
	give_queue_pair(&ends[1], called, 1);
	need(rdma_accept(called, &param) == 0, "rdma_accept");
	await(channel, RDMA_CM_EVENT_ESTABLISHED);
	await(channel, RDMA_CM_EVENT_ESTABLISHED);
}

/* --- bytes --- */

static void complete(struct end *end, const char *what)
{
	struct ibv_wc wc;
	int n;

	while ((n = ibv_poll_cq(end->cq, 1, &wc)) == 0)
		;
	need(n == 1, "ibv_poll_cq");
	if (wc.status == IBV_WC_SUCCESS)
		return;
	fprintf(stderr, "smoke: %s completed with \"%s\" (%d)\n", what, ibv_wc_status_str(wc.status), wc.status);
	exit(1);
}

static void post(struct end *end, struct end *peer, enum ibv_wr_opcode opcode, int mine, int theirs, uint32_t bytes,
	const char *what)
{
	struct ibv_sge sge = { (uintptr_t)(end->memory + mine * BYTES), bytes, end->mr->lkey };
	struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1, .opcode = opcode, .send_flags = IBV_SEND_SIGNALED,
		.wr.rdma = { (uintptr_t)(peer->memory + theirs * BYTES), peer->mr->rkey } }, *bad;

	need(ibv_post_send(end->qp, &wr, &bad) == 0, what);
	complete(end, what);
}

static void same(const uint8_t *one, const uint8_t *two, const char *what)
{
	if (memcmp(one, two, BYTES) == 0)
		return;
	fprintf(stderr, "smoke: %s other bytes than were sent\n", what);
	exit(1);
}

static void move_bytes(struct end *end, struct end *peer)
{
	post(end, peer, IBV_WR_RDMA_WRITE, FOR_PEER, MINE, BYTES, "a write of 1 MiB");
	post(end, peer, IBV_WR_SEND, FOR_PEER, MINE, 0, "a message");
	complete(peer, "the receipt of a message");
	same(peer->memory + MINE * BYTES, end->memory + FOR_PEER * BYTES, "a write brought");
	post(end, peer, IBV_WR_RDMA_READ, READ_BACK, FOR_PEER, BYTES, "a read of 1 MiB");
	same(end->memory + READ_BACK * BYTES, peer->memory + FOR_PEER * BYTES, "a read brought");
}

int main(int argc, char **argv)
{
	struct end ends[2];

	if (argc != 4 || (strcmp(argv[1], "plain") != 0 && strcmp(argv[1], "cm") != 0)) {
		fprintf(stderr, "usage: smoke plain DEVICE DEVICE | smoke cm ADDRESS ADDRESS\n");
		return 2;
	}
	alarm(120);
	(argv[1][0] == 'p' ? connect_plain : connect_cm)(ends, argv + 2);
	move_bytes(&ends[0], &ends[1]); /* on iWARP, who has connected speaks first */
	move_bytes(&ends[1], &ends[0]);
	printf("%s and %s: 1 MiB written and read, each way\n", argv[2], argv[3]);
	return 0;
}
