/* baseline_verbs.c - the baseline over verbs: ranks 0 and 1 have one more queue pair, with a completion queue of its
 * own, on the same device, and run no more than a loop from the post to the completion
 *
 *   pingpong    a WRITE with immediate each way
 *   put, get    one WRITE or READ
 *   stream      WRITEs or READs in chains, whose last one is signalled; few chains are under way at once
 *
 * A request has all bytes that the device takes, or pieces of 256 KiB: the better one counts. */
#include "member/member.h"
#include "tools/perf/perf.h"
#include "transport/verbs/verbs_private.h"
#include <arpa/inet.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>

enum { CHAIN = 16, UNDER_WAY = 4, RECEIVES = 4, PATIENT = 1 << 14 /* polls between reads of the clock */ };

struct tt_perf_queue {
	struct tt_verbs_peer peer; /* its queue pair, and what is needed to join it; unknown to the net */
	struct ibv_cq *cq;
	struct ibv_mr *local, *open;
	struct tt_verbs_place to;  /* the other rank's window */
	size_t most;               /* bytes of a request */
	uint64_t chains, done, told, heard; /* counts: chains posted and completed; immediates */
};

struct end { /* what one rank says of itself */
	struct tt_verbs_end queue;
	struct tt_verbs_place open;
	struct tt_perf_port port;
	uint32_t most;
};

/* Requests and completions. */

static int post_receive(struct tt_perf_queue *q)
{
	struct ibv_recv_wr receive = { .wr_id = 0 }, *bad;
	int err = ibv_post_recv(q->peer.qp, &receive, &bad);

	return err ? tt_fail(-EIO, "the baseline's queue pair takes no receives: %s", strerror(abs(err))) : 0;
}

static int poll(struct tt_perf_queue *q)
{
	struct ibv_wc wc[CHAIN];
	int n = ibv_poll_cq(q->cq, CHAIN, wc), err = 0;

	for (int i = 0; i < n && !err; i++) {
		if (wc[i].status)
			return tt_fail(-EIO, "the baseline's queue pair: %s",
			               q->peer.net->library->wc_status_str(wc[i].status));
		if (wc[i].opcode & IBV_WC_RECV)
			err = post_receive(q);
		*(wc[i].opcode & IBV_WC_RECV ? &q->heard : &q->done) += 1;
	}
	return n < 0 ? tt_fail(-EIO, "the baseline's completions cannot be polled: %s", strerror(-n)) : err;
}

/* Until a count is so much. */
static int await(const struct tt_perf *p, const uint64_t *count, uint64_t enough)
{
	uint64_t end = 0;
	int err = 0;

	for (unsigned i = 1; !(err = poll(p->queue)) && *count < enough; i++) {
		if (p->crowded)
			sched_yield();
		if (i % PATIENT == 0 && !end)
			end = tt_now() + p->job->job->silence;
		if (i % PATIENT == 0 && tt_now() > end)
			return tt_fail(-ETIMEDOUT, "the baseline: rank %d has not answered within TUTTI_SILENCE",
			               1 - p->rank);
	}
	return err;
}

/* The n requests from the first on; each has `each` bytes or the rest. */
static int post(const struct tt_perf *p, enum ibv_wr_opcode opcode, size_t first, size_t n)
{
	struct tt_perf_queue *q = p->queue;
	size_t each = tt_min(p->order.way.chunk, q->most), pieces = (p->bytes + each - 1) / each;
	struct ibv_send_wr wr[CHAIN], *bad;
	struct ibv_sge sge[CHAIN];

	for (size_t i = 0; i < n; i++) {
		size_t at = (first + i) % pieces * each, len = tt_min(each, p->bytes - at);
		bool last = at + len == p->bytes, small = opcode != IBV_WR_RDMA_READ && len <= q->peer.net->inline_max;
		sge[i] = (struct ibv_sge){ (uintptr_t)p->local + at, (uint32_t)len, q->local->lkey };
		wr[i] = (struct ibv_send_wr){ .next = i + 1 < n ? &wr[i + 1] : NULL, .sg_list = &sge[i], .num_sge = 1,
			.opcode = opcode == IBV_WR_RDMA_WRITE_WITH_IMM && !last ? IBV_WR_RDMA_WRITE : opcode,
			.send_flags = (small ? IBV_SEND_INLINE : 0) | (i + 1 < n ? 0 : IBV_SEND_SIGNALED),
			.wr.rdma = { q->to.addr + at, q->to.rkey } };
	}
	q->chains++;
	int err = ibv_post_send(q->peer.qp, wr, &bad);
	return err ? tt_fail(-EIO, "the baseline's queue pair takes no requests: %s", strerror(abs(err))) : 0;
}

/* All bytes, so many times. */
static int move(const struct tt_perf *p, enum ibv_wr_opcode opcode, int times)
{
	struct tt_perf_queue *q = p->queue;
	size_t each = tt_min(p->order.way.chunk, q->most), all = (p->bytes + each - 1) / each * (size_t)times;
	int err = 0;

	for (size_t at = 0; at < all && !err; at += CHAIN) {
		if (q->chains - q->done >= UNDER_WAY)
			err = await(p, &q->done, q->chains - UNDER_WAY + 1);
		if (!err)
			err = post(p, opcode, at, tt_min(CHAIN, all - at));
	}
	return err;
}

static int pingpong(struct tt_perf *p)
{
	struct tt_perf_queue *q = p->queue;
	int err = p->rank ? 0 : move(p, IBV_WR_RDMA_WRITE_WITH_IMM, 1);

	if (!err)
		err = await(p, &q->heard, ++q->told);
	return err || !p->rank ? err : move(p, IBV_WR_RDMA_WRITE_WITH_IMM, 1);
}

static bool pulls(const struct tt_perf *p)
{
	return p->test->ours == tt_perf_get || p->test->ours == tt_perf_stream_gets;
}

/* Of pingpong and message. */
static bool goes_back(const struct tt_perf *p) { return p->test->baseline == tt_perf_raw_pingpong; }

static int once(struct tt_perf *p)
{
	struct tt_perf_queue *q = p->queue;

	if (goes_back(p))
		return pingpong(p);
	if (p->rank)
		return 0; /* takes no part */
	int err = move(p, pulls(p) ? IBV_WR_RDMA_READ : IBV_WR_RDMA_WRITE, p->test->streams ? p->flight : 1);
	return err ? err : await(p, &q->done, q->chains);
}

/* Ways. */

static int ways(const struct tt_perf *p, struct tt_perf_way *way)
{
	way[0] = (struct tt_perf_way){ .chunk = p->queue->most };
	way[1] = (struct tt_perf_way){ .chunk = TT_VERBS_PIECE };
	return p->bytes > TT_VERBS_PIECE ? 2 : 1;
}

static void word(const struct tt_perf *p, const struct tt_perf_way *way, char *text, size_t room)
{
	const char *pieces = way->chunk == TT_VERBS_PIECE ? ", pieces of 256 KiB" : "";
	const char *what = pulls(p) ? "READ" : "WRITE";

	if (goes_back(p))
		snprintf(text, room, "bare verbs: a WRITE with immediate each way, half a round trip%s", pieces);
	else if (p->test->streams)
		snprintf(text, room, "bare verbs: %ss, %d in a chain, %d chains under way%s", what, CHAIN, UNDER_WAY,
		         pieces);
	else
		snprintf(text, room, "bare verbs: a %s from the post to the completion%s", what, pieces);
}

/* The queue pair. */

static void close_queue(struct tt_perf *p)
{
	struct tt_perf_queue *q = p->queue;
	const struct tt_verbs_library *l;

	p->bare = NULL;
	p->queue = NULL;
	if (!q)
		return;
	l = q->peer.net->library;
	if (q->peer.qp)
		l->destroy_qp(q->peer.qp);
	if (q->cq)
		l->destroy_cq(q->cq);
	if (q->local)
		l->dereg_mr(q->local);
	if (q->open)
		l->dereg_mr(q->open);
	free(q);
}

static const struct tt_perf_bare verbs = { once, ways, word, close_queue };

static int make_queue(struct tt_perf *p, struct tt_verbs *net, struct end *mine)
{
	const struct tt_verbs_library *l = net->library;
	struct tt_perf_queue *q = p->queue = calloc(1, sizeof *q);
	struct ibv_qp_init_attr attr = { .qp_type = IBV_QPT_RC, .cap = { .max_send_wr = CHAIN * UNDER_WAY,
		.max_recv_wr = RECEIVES, .max_send_sge = 1, .max_recv_sge = 1, .max_inline_data = net->inline_max } };
	int err = 0;

	if (!q)
		return tt_fail(-ENOMEM, "no memory for the baseline");
	q->peer.net = net;
	attr.send_cq = attr.recv_cq = q->cq = l->create_cq(net->device, CHAIN * UNDER_WAY + RECEIVES, NULL, NULL, 0);
	if (!q->cq || !(q->peer.qp = l->create_qp(net->pd, &attr)))
		return tt_fail(-errno, "%s has no queue pair for the baseline: %s", net->name, strerror(errno));
	q->local = l->reg_mr(net->pd, p->local, p->most, IBV_ACCESS_LOCAL_WRITE);
	q->open = l->reg_mr(net->pd, p->open, p->most, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
	                                               IBV_ACCESS_REMOTE_READ);
	if (!q->local || !q->open)
		return tt_verbs_locked_too_much(net, "the baseline's memory", p->most, errno);
	err = tt_verbs_init_queue(&q->peer, &mine->queue);
	for (int i = 0; i < RECEIVES && !err; i++)
		err = post_receive(q);
	mine->open = (struct tt_verbs_place){ (uintptr_t)p->open, q->open->rkey };
	return err;
}

static int join_queue(struct tt_perf_queue *q, const struct end *theirs)
{
	const struct tt_verbs *net = q->peer.net;

	q->to = theirs->open;
	q->most = tt_min(net->port.attr.max_msg_sz, theirs->most);
	q->peer.reads = (uint8_t)tt_min((size_t)net->attr.max_qp_init_rd_atom, theirs->queue.answers);
	q->peer.serves = (uint8_t)tt_min((size_t)net->attr.max_qp_rd_atom, theirs->queue.reads);
	int err = tt_verbs_join_queue(&q->peer, &theirs->queue);
	return err ? tt_fail(-EIO, "%s cannot connect a queue pair for the baseline: %s", net->name, strerror(err)) : 0;
}

static struct tt_verbs *find_net(const struct tt_perf *p)
{
	struct tt_job *job = p->job->job;
	struct tt_net *net = NULL;

	tt_lock(job);
	if (tt_member(job, 1 - p->rank)->state == TT_UP)
		net = tt_member_net(tt_member(job, 1 - p->rank));
	tt_unlock(job);
	return net && net->transport == &tt_verbs ? tt_container_of(net, struct tt_verbs, base) : NULL;
}

static int describe(struct tt_perf *p, bool bare, struct end *mine)
{
	struct tt_verbs *net = find_net(p);

	if (!net)
		return tt_fail(-ENODEV, "rank %d does not reach rank %d over verbs", p->rank, 1 - p->rank);
	snprintf(mine->port.name, sizeof mine->port.name, "%s", net->name);
	inet_ntop(AF_INET6, net->port.gid.raw, mine->port.gid, sizeof mine->port.gid);
	mine->port.gid_index = net->port.gid_index;
	mine->port.mtu = 128 << net->port.attr.active_mtu;
	mine->port.cm = net->cm;
	mine->most = net->port.attr.max_msg_sz;
	return bare && !net->cm ? make_queue(p, net, mine) : 0;
}

int tt_perf_open_verbs(struct tt_perf *p)
{
	bool one_by_one = (p->test->one_sided && !tt_perf_is_gossip(p) && !p->test->publishes) || goes_back(p);
	bool bare = one_by_one && !p->options.no_baseline;
	struct end end[2] = { 0 };
	int err;

	p->bare = bare ? &verbs : NULL;
	err = p->rank < 2 ? describe(p, bare, &end[p->rank]) : 0;
	for (int r = 0; r < 2 && !err; r++) {
		err = tutti_broadcast(p->job, &end[r], sizeof end[r], r, NULL);
		p->ports[r] = end[r].port;
	}
	if (err || !bare)
		return err;
	if (p->ports[0].cm || p->ports[1].cm) {
		p->lacks = ": librdmacm connects the queue pairs";
		p->bare = NULL;
	}
	p->has_baseline = p->bare;
	return p->queue ? join_queue(p->queue, &end[1 - p->rank]) : 0;
}
