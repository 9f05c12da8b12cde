/* verbs_queue.c - a queue pair, from its making to its end
 *
 *     make (INIT, no rights) -> join (RTR, RTS: rights, the other end's address) -> stop (ERR: all comes back) -> drop
 *
 * On iWARP the kernel joins, so that the rights come before.
 */
#include "transport/verbs/verbs_private.h"
#include <stdlib.h>

enum { RNR_FOREVER = 7, RNR_TIMER = 12 /* 0.64 ms */,
       RIGHTS = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ };

static struct tt_list *bucket(struct tt_verbs *net, uint32_t number)
{
	return &net->by_number[number % TT_VERBS_BUCKETS];
}

struct tt_verbs_peer *tt_verbs_find(struct tt_verbs *net, uint32_t number)
{
	tt_each_of(struct tt_verbs_peer, number, p, bucket(net, number))
		if (p->qp->qp_num == number)
			return p;
	return NULL;
}

/* Providers differ in what they take inline, and refuse more: a head of 24 bytes fits into 32 still. */
static struct ibv_qp *create_queue(struct tt_verbs *net, struct tt_verbs_peer *p)
{
	static const unsigned sizes[] = { TT_VERBS_INLINE, 110, 64, 48, 32, 0 };
	struct ibv_qp *qp = NULL;

	errno = 0;
	for (size_t i = 0; i < TT_COUNT(sizes) && !qp && errno != ENOMEM; i++) {
		struct ibv_qp_init_attr attr = {
			.qp_context = p, .send_cq = net->cq, .recv_cq = net->cq, .srq = net->srq, .qp_type = IBV_QPT_RC,
			.cap = { .max_send_wr = TT_VERBS_DEPTH, .max_send_sge = 2, .max_inline_data = sizes[i] },
		};
		if (sizes[i] > net->inline_max)
			continue;
		if ((qp = net->library->create_qp(net->pd, &attr))) /* other failures say nothing about it */
			net->inline_max = sizes[i];
	}
	return qp;
}

int tt_verbs_init_queue(struct tt_verbs_peer *p, struct tt_verbs_end *mine)
{
	const struct tt_verbs *net = p->net;
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .pkey_index = net->port.pkey_at[0],
		.port_num = net->port.number, .qp_access_flags = net->iwarp ? RIGHTS : 0 };
	int err = net->library->modify_qp(p->qp, &attr,
		IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);

	if (err)
		return tt_fail(-EIO, "%s cannot prepare a queue pair: %s", net->name, strerror(abs(err)));
	tt_entropy(&p->psn, sizeof p->psn); /* what is late of another connection fits nowhere */
	p->psn &= 0xffffff;
	*mine = (struct tt_verbs_end){
		.number = p->qp->qp_num, .psn = p->psn,
		.piece = (uint32_t)tt_min(net->port.attr.max_msg_sz, TT_VERBS_PIECE),
		.lid = net->port.attr.lid, .credits = TT_VERBS_CREDITS, .receive = (uint16_t)net->receive,
		.link = tt_verbs_link(net), .gid_type = (uint8_t)net->port.gid_type,
		.mtu = (uint8_t)net->port.attr.active_mtu, .gid = net->port.gid,
		.reads = (uint8_t)tt_min((size_t)net->attr.max_qp_init_rd_atom, 255),
		.answers = (uint8_t)tt_min((size_t)net->attr.max_qp_rd_atom, 255),
		.flags = net->port.attr.flags & IBV_QPF_GRH_REQUIRED,
	};
	memcpy(mine->pkeys, net->port.pkeys, sizeof mine->pkeys);
	return 0;
}

int tt_verbs_make_queue(struct tt_verbs_peer *p, struct tt_verbs_end *mine)
{
	struct tt_verbs *net = p->net;
	int err = *net->unfit.text ? tt_fail(-EHOSTUNREACH, "%s: %s", net->name, net->unfit.text)
	                           : tt_verbs_take_share(net, &p->share);

	if (err)
		return err;
	if (!(p->qp = create_queue(net, p)))
		return tt_verbs_locked_too_much(net, "a queue pair", TT_VERBS_DEPTH * 256, errno);
	tt_list_append(bucket(net, p->qp->qp_num), &p->number);
	if ((err = tt_verbs_init_queue(p, mine)))
		return err;
	tt_entropy(p->cookie, sizeof p->cookie);
	if (net->cm)
		tt_verbs_say_where(p, mine);
	if (net->iwarp)
		mine->word = (struct tt_verbs_place){ (uintptr_t)net->words->addr, net->words->rkey };
	return 0;
}

/* An adapter sends a packet again each 4.096 us * 2^n, TT_VERBS_RETRIES times, and gives up after one more such time:
 *
 *     sent   again   again   again   again   again   again   gives up
 *       |-------|-------|-------|-------|-------|-------|-------|      7 times 4.096 us * 2^n
 *
 * The smallest n whose whole time is at least 2/5 of the net's timeout: the last packet goes after 6/7 of that, which
 * is more than a third of the timeout, and the adapter gives up after less than 4/5 of it. A link that comes back in
 * time has cost nothing, and the adapter still says why before the rank counts as silent. NCCL takes n = 20 (30 s),
 * for reroutes by a subnet manager and switches that restart. */
static uint8_t ack_timeout(const struct tt_verbs *net)
{
	const char *set = tt_env(TT_VERBS_RETRY);
	uint64_t least = set ? strtoull(set, NULL, 10) * TT_MS : net->door.timeout / 5 * 2;
	unsigned n = 8;

	while (n < 31 && (4096ull << n) * (TT_VERBS_RETRIES + 1) < least)
		n++;
	return (uint8_t)n;
}

static struct ibv_ah_attr path_to(const struct tt_verbs *net, const struct tt_verbs_end *them)
{
	const struct tt_verbs_port *port = &net->port;
	struct ibv_ah_attr path = { .dlid = them->lid, .sl = port->sl, .port_num = port->number };

	/* within an InfiniBand subnet LIDs suffice; but virtual ports of one adapter share theirs (SR-IOV), and ports
	 * of Omni-Path may have longer ones */
	path.is_global = them->link == IBV_LINK_LAYER_ETHERNET || !them->lid ||
	                 (them->flags | port->attr.flags) & IBV_QPF_GRH_REQUIRED ||
	                 them->gid.global.subnet_prefix != port->gid.global.subnet_prefix;
	if (path.is_global)
		path.grh = (struct ibv_global_route){ .dgid = them->gid, .sgid_index = (uint8_t)port->gid_index,
			.hop_limit = 255, .traffic_class = port->traffic_class };
	return path;
}

int tt_verbs_join_queue(struct tt_verbs_peer *p, const struct tt_verbs_end *them)
{
	struct tt_verbs *net = p->net;
	struct ibv_qp_attr ready = {
		.qp_state = IBV_QPS_RTR, .path_mtu = (enum ibv_mtu)tt_min(them->mtu, net->port.attr.active_mtu),
		.dest_qp_num = them->number, .rq_psn = them->psn, .max_dest_rd_atomic = p->serves,
		.min_rnr_timer = RNR_TIMER, .ah_attr = path_to(net, them),
		.qp_access_flags = RIGHTS, .pkey_index = p->pkey_index,
	}, send = {
		.qp_state = IBV_QPS_RTS, .sq_psn = p->psn, .timeout = ack_timeout(net), .retry_cnt = TT_VERBS_RETRIES,
		.rnr_retry = RNR_FOREVER, .max_rd_atomic = p->reads,
	};
	int err = net->library->modify_qp(p->qp, &ready,
		IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | IBV_QP_ACCESS_FLAGS |
		IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER |
		(them->link == IBV_LINK_LAYER_INFINIBAND ? IBV_QP_PKEY_INDEX : 0));

	if (!err)
		err = net->library->modify_qp(p->qp, &send, IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT |
			IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC);
	return abs(err);
}

/* librdmacm knows the way. Its times, some seconds a try, are this transport's all the same. */
int tt_verbs_route_queue(struct tt_verbs_peer *p)
{
	static const enum ibv_qp_state states[] = { IBV_QPS_INIT, IBV_QPS_RTR, IBV_QPS_RTS };
	int err = 0;

	for (size_t i = 0; i < TT_COUNT(states) && !err; i++) {
		struct ibv_qp_attr attr = { .qp_state = states[i] };
		int mask = 0;
		if (p->net->library->init_qp_attr(p->id, &attr, &mask))
			return errno;
		attr.qp_access_flags = i ? RIGHTS : 0;
		attr.max_rd_atomic = p->reads;
		attr.max_dest_rd_atomic = p->serves;
		attr.min_rnr_timer = RNR_TIMER;
		attr.timeout = ack_timeout(p->net);
		if (states[i] == IBV_QPS_RTR)
			mask |= IBV_QP_ACCESS_FLAGS;
		err = p->net->library->modify_qp(p->qp, &attr, mask);
	}
	return abs(err);
}

void tt_verbs_stop_queue(struct tt_verbs_peer *p)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_ERR };

	if (p->qp)
		p->net->library->modify_qp(p->qp, &attr, IBV_QP_STATE); /* it may be there already */
}

/* A provider may drop what the queue pair has completed, receives with it: they are looked at first. */
void tt_verbs_drop_queue(struct tt_verbs_peer *p)
{
	if (p->qp) {
		tt_verbs_stop_queue(p);
		tt_verbs_set_aside(p->net);
		tt_list_remove(&p->number);
		for (unsigned i = 0; i < p->net->backlog_count; i++) /* another queue pair may get the number */
			if (p->net->backlog[i].qp_num == p->qp->qp_num)
				p->net->backlog[i].qp_num = 0;
		int err = p->net->library->destroy_qp(p->qp);
		if (err)
			tt_log(TT_WARN, "%s cannot destroy a queue pair: %s", p->net->name, strerror(abs(err)));
		p->qp = NULL;
	}
	tt_verbs_part(p);
	tt_verbs_give_share(p);
}
