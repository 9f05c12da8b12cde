/* fake_qp.c - queue pairs: their states, and what is posted to them */
#include "tests/verbs/fake_private.h"
#include <stdlib.h>
#include <unistd.h>

static struct fake_all *const all = &fake_all;
static const union ibv_gid no_gid;

enum { PSN_MAX = 0xffffff };

static struct fake_qp *qp_of(struct ibv_qp *q) { return tt_container_of(q, struct fake_qp, base); }
static struct fake_srq *srq_of(struct ibv_srq *s) { return tt_container_of(s, struct fake_srq, base); }
static struct fake_cq *cq_of(struct ibv_cq *cq) { return tt_container_of(cq, struct fake_cq, base); }
static struct fake_pd *pd_of(struct ibv_pd *pd) { return tt_container_of(pd, struct fake_pd, base); }
static struct fake_context *context_of(struct ibv_context *c) { return tt_container_of(c, struct fake_context, base); }
static const struct fake_device *device_of(struct ibv_context *c) { return &context_of(c)->adapter->is; }

struct fake_qp *fake_find_qp(uint32_t number) { return number < all->qp_count ? all->qp_of[number] : NULL; }

/* ---- made and destroyed ---- */

struct ibv_srq *fake_create_srq(struct ibv_pd *pd, struct ibv_srq_init_attr *attr)
{
	int err = fake_enter(FAKE_create_srq, context_of(pd->context));
	const struct fake_device *d = device_of(pd->context);
	struct fake_srq *s;

	if (!err && (!attr->attr.max_wr || attr->attr.max_wr > d->max_srq_wr || (int)attr->attr.max_sge > d->max_sge))
		err = EINVAL;
	if (err)
		return fake_leave_with(err, NULL);
	s = fake_make(sizeof *s);
	s->base.context = pd->context;
	s->base.srq_context = attr->srq_context;
	s->base.pd = pd;
	s->max = attr->attr.max_wr;
	s->max_sge = (int)attr->attr.max_sge;
	tt_list_init(&s->receives);
	pd_of(pd)->users++;
	return fake_leave_with(0, &s->base);
}

static void forget_receives(struct tt_list *receives)
{
	struct tt_list *node;

	while ((node = tt_list_pop(receives)))
		free(tt_container_of(node, struct fake_receive, node));
}

int fake_destroy_srq(struct ibv_srq *base)
{
	struct fake_srq *s = srq_of(base);
	int err = fake_enter(FAKE_destroy_srq, NULL);

	if (!err && s->async_unacked)
		err = fake_bug("destroy_srq: it waits for ever for an event that nobody has acknowledged");
	if (!err && s->users)
		err = EBUSY;
	if (err)
		return fake_leave(err);
	fake_forget_events(context_of(base->context), base);
	forget_receives(&s->receives);
	pd_of(base->pd)->users--;
	fake_drop(s);
	return fake_leave(0);
}

static int judge_new(struct ibv_pd *pd, const struct ibv_qp_init_attr *a)
{
	const struct fake_device *d = device_of(pd->context);

	if (a->qp_type != IBV_QPT_RC || d->kind == FAKE_EFA)
		return EOPNOTSUPP;
	if (!a->send_cq || !a->recv_cq || a->send_cq->context != pd->context || a->recv_cq->context != pd->context ||
	    (a->srq && a->srq->context != pd->context))
		return EINVAL;
	if (a->cap.max_send_wr > d->max_wr || a->cap.max_recv_wr > d->max_wr || (int)a->cap.max_send_sge > d->max_sge ||
	    (int)a->cap.max_recv_sge > d->max_sge || a->cap.max_inline_data > d->max_inline)
		return EINVAL;
	return 0;
}

/* The lowest that is free; the small ones are special. */
static uint32_t give_number(struct fake_qp *q)
{
	uint32_t n = 17;

	while (fake_find_qp(n))
		n++;
	if (n >= all->qp_count) {
		all->qp_of = realloc(all->qp_of, 2 * (size_t)n * sizeof *all->qp_of);
		if (!all->qp_of)
			abort();
		while (all->qp_count < 2 * n)
			all->qp_of[all->qp_count++] = NULL;
	}
	all->qp_of[n] = q;
	return n;
}

struct ibv_qp *fake_create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *a)
{
	for (uint64_t from = tt_now(); tt_now() < from + all->make_ms * TT_MS;)
		usleep(200);
	int err = fake_enter(FAKE_create_qp, context_of(pd->context));
	struct fake_qp *q;

	if (!err)
		err = judge_new(pd, a);
	if (err)
		return fake_leave_with(err, NULL);
	q = fake_make(sizeof *q);
	q->base = (struct ibv_qp){ .context = pd->context, .qp_context = a->qp_context, .pd = pd, .send_cq = a->send_cq,
		                   .recv_cq = a->recv_cq, .srq = a->srq, .qp_type = a->qp_type };
	q->base.qp_num = q->base.handle = give_number(q);
	q->context = context_of(pd->context);
	q->cap = a->cap;
	q->sig_all = a->sq_sig_all;
	q->quiet = !fake_below(16);
	tt_list_init(&q->active);
	tt_list_init(&q->requests);
	tt_list_init(&q->receives);
	tt_list_append(&all->qps, &q->node);
	pd_of(pd)->users++;
	cq_of(a->send_cq)->users++;
	cq_of(a->recv_cq)->users++;
	if (a->srq)
		srq_of(a->srq)->users++;
	return fake_leave_with(0, &q->base);
}

static void forget_completions(struct fake_cq *cq, uint32_t number)
{
	int kept = 0, seen = cq->seen;

	for (int i = 0; i < cq->count; i++) {
		struct fake_entry *e = &cq->entries[(cq->first + i) % cq->base.cqe];
		if (e->wc.qp_num != number)
			cq->entries[(cq->first + kept++) % cq->base.cqe] = *e;
		else if (i < seen)
			cq->seen--;
	}
	cq->count = kept;
	if (cq->count == cq->seen)
		tt_list_remove(&cq->fresh);
}

/* What it has received and sent so far is in its queues, or, as the seed says, is gone. */
static void reset(struct fake_qp *q, bool completions)
{
	fake_forget_requests(q);
	forget_receives(&q->receives);
	free(q->arriving);
	q->arriving = NULL;
	q->waiting = q->posted = q->silent = q->reads = 0;
	q->tries = 0;
	q->since = q->lost_at = 0;
	q->heard = q->accepted = false;
	if (completions) {
		forget_completions(cq_of(q->base.send_cq), q->base.qp_num);
		forget_completions(cq_of(q->base.recv_cq), q->base.qp_num);
	}
}

/* What it has fetched goes with it, if nobody has waited for the event that it has fetched no more: the receive of the
 * message that arrives, and, of one that failed, another one. */
static void take_along(struct fake_qp *q)
{
	bool heard = q->quiet || q->last_heard;
	struct fake_srq *s = q->base.srq && q->failed && !heard ? srq_of(q->base.srq) : NULL;
	struct tt_list *node = s && (q->attr.dest_qp_num || q->peer) ? tt_list_pop(&s->receives) : NULL;

	if (!node)
		return;
	s->waiting--;
	free(tt_container_of(node, struct fake_receive, node));
}

int fake_destroy_qp(struct ibv_qp *base)
{
	struct fake_qp *q = qp_of(base);
	int err = fake_enter(FAKE_destroy_qp, NULL);

	if (!err && q->async_unacked)
		err = fake_bug("destroy_qp: it waits for ever for an event that nobody has acknowledged");
	if (err)
		return fake_leave(err);
	fake_end_connection(q);
	take_along(q);
	reset(q, fake_below(2));
	fake_forget_events(q->context, base);
	all->qp_of[base->qp_num] = NULL;
	tt_list_remove(&q->node);
	pd_of(base->pd)->users--;
	cq_of(base->send_cq)->users--;
	cq_of(base->recv_cq)->users--;
	if (base->srq)
		srq_of(base->srq)->users--;
	fake_drop(q);
	return fake_leave(0);
}

/* ---- states ---- */

static const struct change { /* what modify_qp of a reliable connection must and may set */
	enum ibv_qp_state from, to;
	int must, may;
} changes[] = {
	{ IBV_QPS_RESET, IBV_QPS_INIT, IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS, 0 },
	{ IBV_QPS_INIT, IBV_QPS_INIT, 0, IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS },
	{ IBV_QPS_INIT, IBV_QPS_RTR, IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
	  IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER, IBV_QP_ACCESS_FLAGS | IBV_QP_PKEY_INDEX },
	{ IBV_QPS_RTR, IBV_QPS_RTS, IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
	  IBV_QP_MAX_QP_RD_ATOMIC, IBV_QP_CUR_STATE | IBV_QP_ACCESS_FLAGS | IBV_QP_MIN_RNR_TIMER },
	{ IBV_QPS_RTS, IBV_QPS_RTS, 0, IBV_QP_CUR_STATE | IBV_QP_ACCESS_FLAGS | IBV_QP_MIN_RNR_TIMER },
}, iwarp_changes[] = { /* the kernel connects */
	{ IBV_QPS_RESET, IBV_QPS_INIT, 0, IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS },
	{ IBV_QPS_INIT, IBV_QPS_INIT, 0, IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS },
	{ IBV_QPS_INIT, IBV_QPS_RTR, 0, IBV_QP_ACCESS_FLAGS },
	{ IBV_QPS_RTS, IBV_QPS_RTS, 0, IBV_QP_ACCESS_FLAGS },
};

static bool is_known_change(bool iwarp, enum ibv_qp_state from, enum ibv_qp_state to, int mask)
{
	const struct change *list = iwarp ? iwarp_changes : changes;

	if (to == IBV_QPS_ERR || to == IBV_QPS_RESET)
		return mask == IBV_QP_STATE;
	for (size_t i = 0; i < (iwarp ? TT_COUNT(iwarp_changes) : TT_COUNT(changes)); i++)
		if (list[i].from == from && list[i].to == to)
			return (mask & list[i].must) == list[i].must &&
			       !(mask & ~(IBV_QP_STATE | list[i].must | list[i].may));
	return false;
}

static bool is_good_route(const struct fake_qp *q, const struct ibv_ah_attr *ah)
{
	const struct fake_adapter *a = q->context->adapter;
	bool ethernet = fake_port(a, ah->port_num) && fake_is_ethernet(a, ah->port_num);

	if (!fake_port(a, ah->port_num) || ah->sl > (ethernet ? 7 : 15) || (ethernet ? !ah->is_global : !ah->dlid))
		return false;
	return !ah->is_global ||
	       (ah->grh.sgid_index < FAKE_GIDS && a->is.port[ah->port_num - 1].gids[ah->grh.sgid_index].text &&
	        memcmp(&ah->grh.dgid, &no_gid, sizeof no_gid));
}

static bool are_good(const struct fake_qp *q, const struct ibv_qp_attr *a, int mask)
{
	const struct fake_adapter *adapter = q->context->adapter;
	const struct fake_port *port = fake_port(adapter, mask & IBV_QP_PORT ? a->port_num : q->attr.port_num);

	if ((mask & IBV_QP_PORT && !port) || (mask & IBV_QP_PKEY_INDEX && (a->pkey_index >= FAKE_PKEYS || !port ||
	                                                                    !port->pkeys[a->pkey_index])))
		return false;
	if (mask & IBV_QP_AV && !is_good_route(q, &a->ah_attr))
		return false;
	if (mask & IBV_QP_PATH_MTU && (a->path_mtu < IBV_MTU_256 || !port || a->path_mtu > port->mtu))
		return false;
	if ((mask & IBV_QP_MAX_QP_RD_ATOMIC && a->max_rd_atomic > adapter->is.max_rd_atomic) ||
	    (mask & IBV_QP_MAX_DEST_RD_ATOMIC && a->max_dest_rd_atomic > adapter->is.max_rd_atomic))
		return false;
	return !((mask & IBV_QP_RETRY_CNT && a->retry_cnt > 7) || (mask & IBV_QP_RNR_RETRY && a->rnr_retry > 7) ||
	         (mask & IBV_QP_TIMEOUT && a->timeout > 31) || (mask & IBV_QP_MIN_RNR_TIMER && a->min_rnr_timer > 31) ||
	         (mask & IBV_QP_DEST_QPN && a->dest_qp_num > PSN_MAX));
}

static void take_attributes(struct ibv_qp_attr *to, const struct ibv_qp_attr *a, int mask)
{
#define TAKE(flag, member) if (mask & IBV_QP_##flag) to->member = a->member
	TAKE(ACCESS_FLAGS, qp_access_flags);
	TAKE(PKEY_INDEX, pkey_index);
	TAKE(PORT, port_num);
	TAKE(AV, ah_attr);
	TAKE(PATH_MTU, path_mtu);
	TAKE(TIMEOUT, timeout);
	TAKE(RETRY_CNT, retry_cnt);
	TAKE(RNR_RETRY, rnr_retry);
	TAKE(RQ_PSN, rq_psn);
	TAKE(MAX_QP_RD_ATOMIC, max_rd_atomic);
	TAKE(MIN_RNR_TIMER, min_rnr_timer);
	TAKE(SQ_PSN, sq_psn);
	TAKE(MAX_DEST_RD_ATOMIC, max_dest_rd_atomic);
	TAKE(DEST_QPN, dest_qp_num);
#undef TAKE
	to->rq_psn &= PSN_MAX;
	to->sq_psn &= PSN_MAX;
}

int fake_modify_qp(struct ibv_qp *base, struct ibv_qp_attr *a, int mask)
{
	struct fake_qp *q = qp_of(base);
	int err = fake_enter(FAKE_modify_qp, mask == IBV_QP_STATE && a->qp_state == IBV_QPS_ERR ? NULL : q->context);
	enum ibv_qp_state to = mask & IBV_QP_STATE ? a->qp_state : q->state;
	bool iwarp = q->context->adapter->is.kind == FAKE_IWARP;

	if (!err && (!is_known_change(iwarp, q->state, to, mask) || !are_good(q, a, mask) ||
	             (mask & IBV_QP_CUR_STATE && a->cur_qp_state != q->state)))
		err = EINVAL;
	if (err)
		return fake_leave(err);
	take_attributes(&q->attr, a, mask);
	base->state = to;
	if (to == IBV_QPS_ERR) {
		struct fake_cq *cq = cq_of(base->recv_cq);
		if (cq->seen < cq->count) /* or what it has taken of a shared queue of receives would never be found */
			fake_reveal(cq, cq->count - cq->seen);
		fake_flush(q, true);
		fake_end_connection(q);
		return fake_leave(0);
	}
	q->state = to;
	if (to == IBV_QPS_RESET)
		reset(q, true);
	return fake_leave(0);
}

/* ---- posts ---- */

static uint64_t sum(const struct ibv_sge *list, int n)
{
	uint64_t len = 0;

	for (int i = 0; i < n; i++)
		len += list[i].length;
	return len;
}

static int judge_send(struct fake_qp *q, const struct ibv_send_wr *wr)
{
	const struct fake_device *d = &q->context->adapter->is;
	bool iwarp = d->kind == FAKE_IWARP, read = wr->opcode == IBV_WR_RDMA_READ;
	uint64_t len = sum(wr->sg_list, wr->num_sge);

	if (q->state != IBV_QPS_RTS && q->state != IBV_QPS_ERR)
		return EINVAL;
	if (wr->opcode > IBV_WR_RDMA_READ || (iwarp && wr->opcode & 1)) /* with an immediate */
		return EINVAL;
	if (wr->num_sge < 0 || wr->num_sge > (int)q->cap.max_send_sge || wr->num_sge > FAKE_SGES ||
	    (read && wr->num_sge > d->max_sge_rd) || len > d->max_message)
		return EINVAL;
	if (wr->send_flags & IBV_SEND_INLINE && (read || len > q->cap.max_inline_data))
		return EINVAL;
	if (iwarp && read && wr->send_flags & IBV_SEND_FENCE)
		return EINVAL;
	return q->posted == q->cap.max_send_wr ? ENOMEM : 0;
}

static bool count_down(struct fake_fault *f) { return f->left && !--f->left; }

static void enqueue(struct fake_qp *q, const struct ibv_send_wr *wr)
{
	struct fake_request *r = calloc(1, sizeof *r);

	if (!r)
		abort();
	all->requests++;
	r->wr = *wr;
	for (int i = 0; i < wr->num_sge; i++)
		r->sges[i] = wr->sg_list[i];
	r->len = (uint32_t)sum(wr->sg_list, wr->num_sge);
	if (q->sig_all)
		r->wr.send_flags |= IBV_SEND_SIGNALED;
	if (count_down(&all->send_fault)) {
		r->fault = all->send_fault.status;
		r->vendor = all->send_fault.vendor;
	}
	if (wr->send_flags & IBV_SEND_INLINE)
		fake_take_over(r);
	if (q->state == IBV_QPS_ERR) {
		r->stage = FAKE_DONE;
		r->status = IBV_WC_WR_FLUSH_ERR;
	}
	q->posted++;
	tt_list_append(&q->requests, &r->node);
	tt_list_append_once(&all->active, &q->active);
}

/* As siw: errors are negative, and the doorbell of what went before may hide them. */
static int refuse(const struct fake_qp *q, int err, struct ibv_send_wr *wr, struct ibv_send_wr **bad)
{
	*bad = wr;
	if (!err || q->context->adapter->is.kind != FAKE_IWARP)
		return fake_leave(err);
	return fake_leave(wr->opcode != IBV_WR_RDMA_WRITE_WITH_IMM && fake_below(2) ? 0 : -err);
}

int fake_post_send(struct ibv_qp *base, struct ibv_send_wr *wr, struct ibv_send_wr **bad)
{
	struct fake_qp *q = qp_of(base);
	int err = fake_enter(FAKE_post_send, q->context->adapter->removed ? NULL : q->context), before = all->rings;

	for (; wr; wr = wr->next) {
		if (!err)
			err = judge_send(q, wr);
		if (err)
			return refuse(q, err, wr, bad);
		if (q->accepted && !q->heard)
			fake_bug("post_send: on iWARP the connector sends first");
		if (q->state != IBV_QPS_ERR || !q->context->adapter->is.swallows)
			enqueue(q, wr);
	}
	while (cq_of(base->send_cq)->armed && all->rings == before && fake_step())
		; /* somebody may sleep: nobody polls or arms the queue */
	return fake_leave(0);
}

static int enqueue_receive(struct tt_list *list, uint32_t *waiting, uint32_t max, int max_sge,
                           const struct ibv_recv_wr *wr)
{
	struct fake_receive *e;

	if (wr->num_sge < 0 || wr->num_sge > max_sge || wr->num_sge > FAKE_SGES)
		return EINVAL;
	if (*waiting == max)
		return ENOMEM;
	e = calloc(1, sizeof *e);
	if (!e)
		abort();
	e->count = wr->num_sge;
	e->wr_id = wr->wr_id;
	for (int i = 0; i < wr->num_sge; i++)
		e->sges[i] = wr->sg_list[i];
	++*waiting;
	tt_list_append(list, &e->node);
	return 0;
}

int fake_post_recv(struct ibv_qp *base, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
	struct fake_qp *q = qp_of(base);
	int err = fake_enter(FAKE_post_recv, NULL);

	if (!err && (base->srq || q->state == IBV_QPS_RESET))
		err = EINVAL;
	for (; wr; wr = wr->next) {
		if (!err)
			err = enqueue_receive(&q->receives, &q->waiting, q->cap.max_recv_wr,
			                      (int)q->cap.max_recv_sge, wr);
		if (err) {
			*bad = wr;
			return fake_leave(err);
		}
	}
	if (q->state == IBV_QPS_ERR)
		fake_flush(q, true);
	return fake_leave(0);
}

int fake_post_srq_recv(struct ibv_srq *base, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
	struct fake_srq *s = srq_of(base);
	int err = fake_enter(FAKE_post_srq_recv, NULL);

	for (; wr; wr = wr->next) {
		if (!err)
			err = enqueue_receive(&s->receives, &s->waiting, s->max, s->max_sge, wr);
		if (err) {
			*bad = wr;
			return fake_leave(err);
		}
	}
	return fake_leave(0);
}
