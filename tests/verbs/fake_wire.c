/* fake_wire.c - how requests are executed */
#include "tests/verbs/fake_private.h"
#include <stdlib.h>

enum { PIECE = 64 << 10, STEPS_A_TRY = 8, RETRIES_EXCEEDED = 0x81 };

static struct fake_all *const all = &fake_all;

static struct fake_srq *srq_of(struct ibv_srq *s) { return tt_container_of(s, struct fake_srq, base); }
static bool is_iwarp(const struct fake_qp *q) { return q->context->adapter->is.kind == FAKE_IWARP; }
static bool is_read(const struct fake_request *r) { return r->wr.opcode == IBV_WR_RDMA_READ; }

static bool is_message(const struct fake_request *r)
{
	return r->wr.opcode == IBV_WR_SEND || r->wr.opcode == IBV_WR_SEND_WITH_IMM;
}

/* ---- completions ---- */

static void tell(struct fake_qp *q, struct fake_request *r)
{
	static const enum ibv_wc_opcode codes[] = { IBV_WC_RDMA_WRITE, IBV_WC_RDMA_WRITE, IBV_WC_SEND, IBV_WC_SEND,
		                                    IBV_WC_RDMA_READ };
	struct ibv_wc wc = { .wr_id = r->wr.wr_id, .status = r->status, .opcode = codes[r->wr.opcode],
		             .vendor_err = r->status ? r->vendor : 0, .byte_len = is_read(r) ? r->len : 0 };

	r->told = true;
	q->silent++;
	if (!(r->wr.send_flags & IBV_SEND_SIGNALED) && !r->status)
		return;
	fake_complete(q, q->base.send_cq, &wc, q->silent, false);
	q->silent = 0;
}

static void forget(struct fake_qp *q, struct fake_request *r)
{
	tt_list_remove(&r->node);
	if (tt_list_empty(&q->requests))
		tt_list_remove(&q->active);
	free(r->bytes);
	free(r);
}

void fake_forget_requests(struct fake_qp *q)
{
	while (!tt_list_empty(&q->requests))
		forget(q, tt_container_of(q->requests.next, struct fake_request, node));
}

/* The first request that is done, if its turn has come. */
static bool retire(struct fake_qp *q)
{
	tt_each_of(struct fake_request, node, r, &q->requests) {
		if (r->stage == FAKE_DONE) {
			if (!r->told)
				tell(q, r);
			forget(q, r);
			return true;
		}
		if (!is_iwarp(q))
			return false;
	}
	return false;
}

/* ---- how it ends ---- */

static void flush_receive(struct fake_qp *q, struct fake_receive *e)
{
	fake_complete(q, q->base.recv_cq, &(struct ibv_wc){ .wr_id = e->wr_id, .status = IBV_WC_WR_FLUSH_ERR }, 0,
	              false);
	free(e);
}

static void flush_receives(struct fake_qp *q)
{
	struct tt_list *node;

	if (q->arriving)
		flush_receive(q, q->arriving);
	q->arriving = NULL;
	while ((node = tt_list_pop(&q->receives))) {
		q->waiting--;
		flush_receive(q, tt_container_of(node, struct fake_receive, node));
	}
}

void fake_flush(struct fake_qp *q, bool receives)
{
	q->failed |= q->state != IBV_QPS_ERR && q->base.state != IBV_QPS_ERR;
	q->state = IBV_QPS_ERR;
	q->reads = 0;
	tt_each_of(struct fake_request, node, r, &q->requests) {
		if (r->stage != FAKE_DONE)
			r->status = IBV_WC_WR_FLUSH_ERR;
		r->stage = FAKE_DONE;
	}
	if (!receives)
		return;
	flush_receives(q);
	if (!q->last && q->base.srq && !q->quiet)
		fake_raise_event(q->context, IBV_EVENT_QP_LAST_WQE_REACHED, &q->base, 0);
	q->last = true;
}

static bool hurts_target(enum ibv_wc_status s)
{
	return s == IBV_WC_REM_INV_REQ_ERR || s == IBV_WC_REM_ACCESS_ERR || s == IBV_WC_REM_OP_ERR ||
	       s == IBV_WC_REM_INV_RD_REQ_ERR || s == IBV_WC_REM_ABORT_ERR;
}

static void finish(struct fake_qp *q, struct fake_request *r)
{
	if (r->stage == FAKE_READING)
		q->reads--;
	r->stage = FAKE_DONE;
}

/* r ends with this error, and the connection with it. Returns true: something has happened. */
static bool end(struct fake_qp *q, struct fake_qp *other, struct fake_request *r, enum ibv_wc_status status)
{
	finish(q, r);
	r->status = status;
	fake_flush(q, fake_below(2));
	if (other && hurts_target(status)) {
		if (fake_below(2) && status != IBV_WC_REM_OP_ERR && other->state != IBV_QPS_ERR)
			fake_raise_event(other->context, status == IBV_WC_REM_ACCESS_ERR ? IBV_EVENT_QP_ACCESS_ERR :
			                                                                    IBV_EVENT_QP_REQ_ERR,
			                 &other->base, 0);
		fake_flush(other, fake_below(2));
	}
	fake_end_connection(q);
	return true;
}

/* iWARP has no words for what the other side complains of. */
static bool die(struct fake_qp *q, struct fake_qp *other, struct fake_request *r, enum ibv_wc_status status)
{
	if (is_iwarp(q))
		status = status == IBV_WC_LOC_PROT_ERR ? IBV_WC_LOC_QP_OP_ERR : IBV_WC_WR_FLUSH_ERR;
	r->vendor = status == IBV_WC_RETRY_EXC_ERR ? RETRIES_EXCEEDED : 0;
	return end(q, other, r, status);
}

/* ---- the way to the other side ---- */

static bool is_link_local(const union ibv_gid *g) { return g->raw[0] == 0xfe && g->raw[1] == 0x80; }

static bool has_gid(struct fake_qp *q, const struct fake_adapter *a, int port)
{
	const struct ibv_ah_attr *ah = &q->attr.ah_attr;
	const struct fake_port *from = &q->context->adapter->is.port[ah->port_num - 1], *to = &a->is.port[port - 1];
	const struct fake_gid *mine = &from->gids[ah->grh.sgid_index];
	bool near = from->subnet == to->subnet, ethernet = fake_is_ethernet(a, port);

	if (a->is.kind > FAKE_ROCE || ethernet != fake_is_ethernet(q->context->adapter, ah->port_num) ||
	    (!ethernet && (!near || to->lid != ah->dlid)))
		return false;
	if (!ah->is_global)
		return !from->grh && !to->grh;
	for (int i = 0; i < FAKE_GIDS; i++)
		if (mine->text && to->gids[i].text && to->gids[i].type == mine->type &&
		    !memcmp(&a->gids[port - 1][i], &ah->grh.dgid, sizeof ah->grh.dgid))
			return near || !is_link_local(&ah->grh.dgid);
	return false;
}

static void find_route(struct fake_qp *q)
{
	q->routed = all->routes;
	q->to = NULL;
	for (int i = 0; i < all->adapter_count; i++)
		for (int port = 1; port <= all->adapters[i].is.ports; port++)
			if (!q->to && has_gid(q, &all->adapters[i], port)) {
				q->to = &all->adapters[i];
				q->to_port = port;
			}
}

static bool leads_to(struct fake_qp *q, const struct fake_qp *other)
{
	if (!q->to || q->routed != all->routes)
		find_route(q);
	return q->to && q->to == other->context->adapter && q->to_port == other->attr.ah_attr.port_num &&
	       q->attr.dest_qp_num == other->base.qp_num;
}

static uint16_t pkey_of(const struct fake_qp *q)
{
	return q->context->adapter->is.port[q->attr.port_num - 1].pkeys[q->attr.pkey_index];
}

static bool is_partner(uint16_t a, uint16_t b) { return !((a ^ b) & 0x7fff) && (a | b) & 0x8000; }

static bool is_cut(const struct fake_qp *q)
{
	struct fake_adapter *a = q->context->adapter;
	int port = q->attr.port_num ? q->attr.port_num : 1;

	if (a->lost[port - 1] > 0)
		a->lost[port - 1]--;
	else if (!a->lost[port - 1])
		return a->is.port[port - 1].state != IBV_PORT_ACTIVE;
	return true;
}

static bool is_up(const struct fake_qp *q) { return q->state == IBV_QPS_RTR || q->state == IBV_QPS_RTS; }

enum reach { REACHED, WAITS, LOST, GIVEN_UP };

static uint64_t dark_until(const struct fake_qp *q)
{
	return q->context->adapter->dark[q->attr.port_num ? q->attr.port_num - 1 : 0];
}

/* What goes while the cable is out goes again at its times, until it is through or was sent too often. */
static enum reach send_again(struct fake_qp *q, const struct fake_qp *other)
{
	uint64_t now = tt_now(), light = tt_max(dark_until(q), dark_until(other)), gap = 4096ull << q->attr.timeout;

	if (!q->lost_at && now >= light)
		return REACHED;
	if (!q->lost_at)
		q->lost_at = now;
	for (uint64_t i = 1; q->attr.timeout && q->lost_at + i * gap <= now; i++) {
		if (i > q->attr.retry_cnt && !q->context->adapter->is.patient)
			return GIVEN_UP;
		if (q->lost_at + i * gap < light)
			continue;
		q->lost_at = 0;
		return REACHED;
	}
	return WAITS;
}

static enum reach reach_iwarp(struct fake_qp *q, struct fake_qp **out)
{
	struct fake_qp *other = fake_find_qp(q->peer);

	if (!other || !is_up(other) || q->context->adapter->lost[0] < 0 ||
	    tt_now() < tt_max(dark_until(q), dark_until(other)))
		return WAITS; /* as long as TCP does */
	*out = other;
	return is_cut(q) || is_cut(other) ? LOST : REACHED;
}

static enum reach reach(struct fake_qp *q, struct fake_qp **out)
{
	struct fake_qp *other = fake_find_qp(q->attr.dest_qp_num);

	if (is_iwarp(q))
		return reach_iwarp(q, out);
	if (is_cut(q) || !other || other->context->killed || other->context->adapter->removed ||
	    other->state == IBV_QPS_ERR)
		return LOST;
	if (!is_up(other)) {
		uint64_t patience = (4096ull << q->attr.timeout) * (q->attr.retry_cnt + 1ull);
		if (!q->since)
			q->since = tt_now();
		return tt_now() - q->since < patience ? WAITS : LOST;
	}
	q->since = 0;
	*out = other;
	if (is_cut(other) || !leads_to(q, other) || !leads_to(other, q) || q->attr.sq_psn != other->attr.rq_psn ||
	    !is_partner(pkey_of(q), pkey_of(other)))
		return LOST;
	return send_again(q, other);
}

static bool try_again(struct fake_qp *q, struct fake_request *r)
{
	if (q->context->adapter->is.patient || (!is_iwarp(q) && !q->attr.timeout))
		return false;
	if (++q->tries > (q->attr.retry_cnt + 1) * STEPS_A_TRY && !is_iwarp(q))
		return die(q, NULL, r, IBV_WC_RETRY_EXC_ERR);
	return true;
}

/* ---- requests ---- */

/* Where the bytes from `at` are; so many of n lie together. */
static char *local(const struct fake_request *r, uint32_t at, size_t *n)
{
	if (r->bytes)
		return r->bytes + at;
	for (int i = 0; i < r->wr.num_sge; i++) {
		const struct ibv_sge *s = &r->sges[i];
		if (at < s->length) {
			*n = tt_min(*n, s->length - at);
			return fake_bytes(s->lkey, s->addr + at);
		}
		at -= s->length;
	}
	return NULL;
}

/* A read takes the target's memory a packet at a time, wherever words begin; TCP, below iWARP, cuts anywhere. Others
 * take whole words of the target's. */
static size_t piece(const struct fake_qp *q, const struct fake_request *r)
{
	size_t left = r->len - r->at, n = 1 + fake_below(PIECE), packet = 128u << q->attr.path_mtu;

	if (!is_iwarp(q) && is_read(r))
		n += -n % packet;
	else if (!is_iwarp(q))
		n += -(r->wr.wr.rdma.remote_addr + r->at + n) & 7;
	return r->len == 8 || n > left ? left : n;
}

void fake_take_over(struct fake_request *r)
{
	char *bytes = malloc(r->len + 1);
	size_t n;

	if (!bytes)
		abort();
	for (uint32_t at = 0; at < r->len; at += (uint32_t)n) {
		n = r->len - at;
		const char *from = local(r, at, &n);
		tt_copy_word(bytes + at, from, n);
	}
	r->bytes = bytes;
}

static bool may_use_local(struct fake_qp *q, const struct fake_request *r)
{
	int access = !is_read(r) ? 0 : is_iwarp(q) ? IBV_ACCESS_REMOTE_WRITE : IBV_ACCESS_LOCAL_WRITE;

	for (int i = 0; !r->bytes && i < r->wr.num_sge; i++)
		if (r->sges[i].length &&
		    !fake_may(q->base.pd, r->sges[i].lkey, false, r->sges[i].addr, r->sges[i].length, access))
			return false;
	return true;
}

static bool lack_receive(struct fake_qp *q, struct fake_qp *other, struct fake_request *r)
{
	all->rnrs++;
	if (is_iwarp(q))
		return die(q, other, r, IBV_WC_RNR_RETRY_EXC_ERR);
	if (q->attr.rnr_retry == 7)
		return false;
	if (++q->rnr_tries > (q->attr.rnr_retry + 1) * STEPS_A_TRY)
		return die(q, NULL, r, IBV_WC_RNR_RETRY_EXC_ERR);
	return true;
}

static struct fake_receive *take_receive(struct fake_qp *q)
{
	struct fake_srq *s = q->base.srq ? srq_of(q->base.srq) : NULL;
	struct tt_list *node = tt_list_pop(s ? &s->receives : &q->receives);

	if (!node)
		return NULL;
	--*(s ? &s->waiting : &q->waiting);
	return tt_container_of(node, struct fake_receive, node);
}

static enum ibv_wc_status land(const struct fake_qp *q, const struct fake_receive *e, const struct fake_request *r)
{
	const struct ibv_pd *pd = q->base.srq ? q->base.srq->pd : q->base.pd;
	uint32_t at = 0;

	for (int i = 0; i < e->count && at < r->len; i++) {
		uint32_t room = (uint32_t)tt_min(e->sges[i].length, r->len - at);
		if (!fake_may(pd, e->sges[i].lkey, false, e->sges[i].addr, room, IBV_ACCESS_LOCAL_WRITE))
			return IBV_WC_LOC_PROT_ERR;
		for (size_t done = 0, n; done < room; done += n, at += (uint32_t)n) {
			n = room - done;
			const char *from = local(r, at, &n);
			memcpy(fake_bytes(e->sges[i].lkey, e->sges[i].addr + done), from, n);
		}
	}
	return at < r->len ? IBV_WC_LOC_LEN_ERR : IBV_WC_SUCCESS;
}

/* A message, or the immediate of a write; true: something has happened. */
static bool deliver(struct fake_qp *q, struct fake_qp *other, struct fake_request *r)
{
	bool begins = !other->arriving;
	struct fake_receive *e = begins ? take_receive(other) : other->arriving;
	struct ibv_wc wc = { .opcode = is_message(r) ? IBV_WC_RECV : IBV_WC_RECV_RDMA_WITH_IMM, .byte_len = r->len,
		             .src_qp = q->base.qp_num };

	if (!e)
		return lack_receive(q, other, r);
	other->arriving = begins && fake_below(2) ? e : NULL;
	if (other->arriving)
		return true; /* the rest comes later */
	wc.wr_id = e->wr_id;
	if (r->wr.opcode & 1) {
		wc.imm_data = r->wr.imm_data;
		wc.wc_flags = IBV_WC_WITH_IMM;
	}
	if (all->receive_fault.left && !--all->receive_fault.left) {
		wc.status = all->receive_fault.status;
		wc.vendor_err = all->receive_fault.vendor;
	} else if (is_message(r)) {
		wc.status = land(other, e, r);
	}
	free(e);
	q->rnr_tries = 0;
	other->heard = true;
	if (other->state == IBV_QPS_RTR && fake_below(2))
		fake_raise_event(other->context, IBV_EVENT_COMM_EST, &other->base, 0);
	fake_complete(other, other->base.recv_cq, &wc, 0, r->wr.send_flags & IBV_SEND_SOLICITED);
	if (wc.status)
		return die(q, other, r, wc.status == IBV_WC_LOC_LEN_ERR ? IBV_WC_REM_INV_REQ_ERR : IBV_WC_REM_OP_ERR);
	finish(q, r);
	return true;
}

/* Does the target's queue pair take such a request? */
static enum ibv_wc_status judge(const struct fake_qp *q, const struct fake_qp *other, const struct fake_request *r)
{
	unsigned need = is_message(r) ? 0 : is_read(r) ? IBV_ACCESS_REMOTE_READ : IBV_ACCESS_REMOTE_WRITE;

	if (is_iwarp(q))
		return IBV_WC_SUCCESS;
	if (q->attr.path_mtu != other->attr.path_mtu && r->len > 128u << tt_min(q->attr.path_mtu, other->attr.path_mtu))
		return IBV_WC_REM_INV_REQ_ERR;
	if ((other->attr.qp_access_flags & need) != need || (is_read(r) && q->reads > other->attr.max_dest_rd_atomic))
		return IBV_WC_REM_INV_REQ_ERR;
	return IBV_WC_SUCCESS;
}

static bool move(struct fake_qp *q, struct fake_qp *other, struct fake_request *r)
{
	uint64_t remote = r->wr.wr.rdma.remote_addr;
	int access = is_read(r) ? IBV_ACCESS_REMOTE_READ : IBV_ACCESS_REMOTE_WRITE;

	if (r->len && !fake_may(other->base.pd, r->wr.wr.rdma.rkey, true, remote, r->len, access)) {
		struct fake_receive *e = r->wr.opcode & 1 && fake_below(2) ? take_receive(other) : NULL;
		if (e) /* some adapters have taken the receive already */
			fake_complete(other, other->base.recv_cq,
			              &(struct ibv_wc){ .wr_id = e->wr_id, .status = IBV_WC_LOC_ACCESS_ERR }, 0, false);
		free(e);
		return die(q, other, r, IBV_WC_REM_ACCESS_ERR);
	}
	if (r->at < r->len) {
		size_t n = piece(q, r);
		char *there = fake_bytes(r->wr.wr.rdma.rkey, remote + r->at), *here = local(r, r->at, &n);
		tt_copy_word(is_read(r) ? here : there, is_read(r) ? there : here, n);
		r->at += (uint32_t)n;
	}
	if (r->at < r->len)
		return true;
	if (r->wr.opcode == IBV_WR_RDMA_WRITE_WITH_IMM)
		return deliver(q, other, r);
	finish(q, r);
	return true;
}

/* What it sends, or the answer to what it reads, does not pass the switch behind the port. */
static bool is_dropped(const struct fake_qp *q, const struct fake_qp *other, const struct fake_request *r)
{
	const struct fake_qp *from = is_read(r) ? other : q;
	uint8_t port = from->attr.port_num; /* 0: librdmacm has connected it */
	unsigned max = port ? from->context->adapter->path_mtu[port - 1] : 0;

	return !is_iwarp(q) && max && tt_min(r->len, 128u << from->attr.path_mtu) > max;
}

/* Takes a request a step further; false: it waits. */
static bool carry(struct fake_qp *q, struct fake_request *r)
{
	struct fake_qp *other = NULL;
	enum ibv_wc_status bad;

	if (r->fault) {
		reach(q, &other);
		return end(q, other, r, r->fault);
	}
	if (!may_use_local(q, r))
		return die(q, NULL, r, IBV_WC_LOC_PROT_ERR);
	if (is_iwarp(q) && !is_read(r) && !r->told) {
		if (!r->bytes)
			fake_take_over(r);
		tell(q, r);
		return true;
	}
	if (!is_iwarp(q) && is_read(r) && !q->attr.max_rd_atomic)
		return die(q, NULL, r, IBV_WC_LOC_QP_OP_ERR);
	switch (reach(q, &other)) {
	case WAITS: return false;
	case LOST: return try_again(q, r);
	case GIVEN_UP: return die(q, NULL, r, IBV_WC_RETRY_EXC_ERR);
	case REACHED: break;
	}
	if (is_dropped(q, other, r))
		return try_again(q, r);
	q->tries = 0;
	bad = judge(q, other, r);
	if (bad)
		return die(q, other, r, bad);
	if (is_read(r) && r->stage == FAKE_POSTED) {
		r->stage = FAKE_READING;
		q->reads++;
		return true;
	}
	return is_message(r) ? deliver(q, other, r) : move(q, other, r);
}

static bool must_wait(const struct fake_qp *q, const struct fake_request *r)
{
	return q->reads && ((r->wr.send_flags & IBV_SEND_FENCE) ||
	                    (is_read(r) && !is_iwarp(q) && q->reads >= q->attr.max_rd_atomic));
}

/* Requests begin in the order posted. A read that has begun needs no turn. */
static bool advance(struct fake_qp *q)
{
	struct fake_request *reading = NULL, *next = NULL;

	if (fake_below(2) && retire(q))
		return true;
	tt_each_of(struct fake_request, node, r, &q->requests) {
		if (r->stage == FAKE_READING && !reading)
			reading = r;
		else if (r->stage == FAKE_POSTED && !next)
			next = r;
		if (next)
			break;
	}
	if (q->state != IBV_QPS_RTS)
		return retire(q);
	if (next && must_wait(q, next))
		next = NULL;
	if (reading && next && fake_below(4)) { /* either first */
		struct fake_request *r = next;
		next = reading;
		reading = r;
	}
	return (next && carry(q, next)) || (reading && carry(q, reading)) || retire(q);
}

static bool advance_some(uint64_t *skip)
{
	tt_each_of(struct fake_qp, active, q, &all->active) {
		if ((*skip && (*skip)--) || !advance(q))
			continue;
		if (!tt_list_empty(&q->requests)) { /* the others' turn */
			tt_list_remove(&q->active);
			tt_list_append(&all->active, &q->active);
		}
		return true;
	}
	return false;
}

static bool reveal_some(uint64_t *skip)
{
	tt_each_of(struct fake_cq, fresh, cq, &all->fresh) {
		if (*skip && (*skip)--)
			continue;
		fake_reveal(cq, 1 + (int)fake_below((uint64_t)(cq->count - cq->seen)));
		return true;
	}
	return false;
}

bool fake_step(void)
{
	uint64_t skip = fake_below(8);

	for (int round = 0; round < 2; round++, skip = 0)
		if ((!(skip && skip--) && fake_deliver_news()) || advance_some(&skip) || reveal_some(&skip))
			return true;
	return false;
}
