/* verbs_receive.c - completions: of requests, and of the receives that messages and immediates have taken */
#include "transport/verbs/verbs_private.h"
#include <stdlib.h>

enum { UNALIGNED = 1, DEVICE = 2 }; /* why an ADD was refused */

static const char *receive_at(const struct tt_verbs *net, uint64_t wr_id)
{
	return net->shares[wr_id >> 16]->receives + (wr_id >> 1 & 0x7fff) * net->receive;
}

/* The owner adds now, and copies when there is room for the answer. Its own table says where a peer may. */
static void answer(struct tt_verbs_peer *p, struct tt_verbs_head *h)
{
	bool get = h->kind == TT_VERBS_FETCH;
	uint64_t addr = le64toh(h->addr), n = get ? le64toh(h->word) : 8;
	bool device = false;
	uint64_t *word = tt_verbs_find_memory(p->net, le32toh(h->rkey), addr, n, &device);

	if (!word || p->answer_count == TT_FRAME_SLOTS || (get && n > p->message - sizeof *h)) {
		tt_verbs_lose(p, -EPROTO, word ? "it asks for more than it may"
		                               : "it uses memory that is not registered, or not any more");
		return;
	}
	h->bad = get ? 0 : device ? DEVICE : addr % 8 ? UNALIGNED : 0;
	if (!get && !h->bad)
		h->word = htole64(__atomic_fetch_add(word, le64toh(h->word), __ATOMIC_SEQ_CST));
	h->kind = get ? TT_VERBS_BYTES : TT_VERBS_ANSWER;
	tt_verbs_owe_answer(p, h);
}

/* Of a GET come the pieces, in the order in which they were asked for. */
static void take_answer(struct tt_verbs_peer *p, const struct tt_verbs_head *h, const char *bytes, size_t n)
{
	struct tt_op *op = p->ops.slots[h->slot];
	bool get = h->kind == TT_VERBS_BYTES;

	if (!op || get != (op->kind == TT_GET) || n != p->asked[h->slot]) {
		tt_verbs_lose(p, -EPROTO, "it answered what was not asked");
		return;
	}
	tt_flight_give_slot(&p->ops, h->slot);
	if (get) {
		tt_copy_word((char *)op->local + op->priv[2], bytes, n);
		p->net->base.copied += op->len > TT_SHORT ? n : 0;
		if ((op->priv[2] += n) < op->len)
			return;
	} else {
		op->operand = le64toh(h->word);
	}
	tt_flight_end(&p->ops, op);
	tt_flight_finish(&p->ops, op, h->bad == DEVICE ? -ENOTSUP : h->bad ? -EINVAL : 0);
}

static void tell_message(struct tt_verbs_peer *p, const void *bytes, size_t len)
{
	tt_verbs_flush(p->net);
	if (p->base.net->events->message)
		p->base.net->events->message(&p->base, bytes, len);
}

static void tell_notify(struct tt_verbs_peer *p, uint32_t value)
{
	tt_verbs_flush(p->net);
	if (p->base.net->events->notify)
		p->base.net->events->notify(&p->base, value & 0xffffff);
}

/* A message in one part is told where it lies. */
static void take_part(struct tt_verbs_peer *p, const char *bytes, size_t len, bool last)
{
	size_t had = p->come;

	if (len > TT_MESSAGE_MAX - had) {
		tt_verbs_lose(p, -EPROTO, "it sent a message that is too long");
		return;
	}
	if (last && !had) {
		tell_message(p, bytes, len);
		return;
	}
	if (!p->assembly && !(p->assembly = malloc(TT_MESSAGE_MAX))) {
		tt_verbs_lose(p, -ECONNRESET, "no memory for a message of several parts");
		return;
	}
	memcpy(p->assembly + had, bytes, len);
	p->come = last ? 0 : had + len;
	if (last)
		tell_message(p, p->assembly, had + len);
}

/* false: it gives what it has not; nor is the rest of the message believed. */
static bool take_credits(struct tt_verbs_peer *p, unsigned n)
{
	p->credits += n;
	if (p->credits <= p->credit_max)
		return true;
	tt_verbs_lose(p, -EPROTO, "it gave back more credits than it had");
	return false;
}

/* An end whose adapter moves 50 GB/s, and which could not say so, would take an hour and a half for so many. */
static void take_sign(struct tt_verbs_peer *p, uint64_t moved)
{
	if (moved >> TT_VERBS_MOVED_BITS)
		tt_verbs_lose(p, -EPROTO, "it claims to have moved more bytes than it can have");
	else
		p->base.received += moved;
}

static void take_message(struct tt_verbs_peer *p, const struct ibv_wc *wc)
{
	const char *bytes = receive_at(p->net, wc->wr_id);
	struct tt_verbs_head h = { 0 };

	if (wc->byte_len >= sizeof h)
		memcpy(&h, bytes, sizeof h);
	if (!take_credits(p, h.credits))
		return;
	/* whoever says more than its first word is up, so this end may be */
	if (h.kind == TT_VERBS_WORD && !tt_verbs_listens_first(p))
		tt_verbs_prove(p, &p->heard);
	else if (p->ops.stage < TT_STAGE_UP && !p->ops.broken)
		tt_verbs_come_up(p);
	if (p->ops.stage != TT_STAGE_UP)
		return;
	switch (h.kind) {
	case TT_VERBS_PART:
	case TT_VERBS_MESSAGE:
		take_part(p, bytes + sizeof h, wc->byte_len - sizeof h, h.kind == TT_VERBS_MESSAGE);
		return;
	case TT_VERBS_ASK:
	case TT_VERBS_FETCH: answer(p, &h); return;
	case TT_VERBS_ANSWER:
	case TT_VERBS_BYTES: take_answer(p, &h, bytes + sizeof h, wc->byte_len - sizeof h); return;
	case TT_VERBS_NOTIFY: tell_notify(p, (uint32_t)le64toh(h.word)); return;
	case TT_VERBS_WORD: take_sign(p, le64toh(h.word)); return;
	default: tt_verbs_lose(p, -EPROTO, "it sent a message of no known kind");
	}
}

static void take_immediate(struct tt_verbs_peer *p, const struct ibv_wc *wc)
{
	uint32_t value = be32toh(wc->imm_data);

	if (!take_credits(p, value >> 24))
		return;
	if (p->ops.stage < TT_STAGE_UP && !p->ops.broken)
		tt_verbs_come_up(p);
	if (p->ops.stage == TT_STAGE_UP)
		tell_notify(p, value);
}

static void fail(struct tt_verbs_peer *p, const struct ibv_wc *wc)
{
	char text[400];

	p->failed = true;
	if (!p->ops.broken) /* what follows is its consequence */
		tt_verbs_lose(p, -ECONNRESET, tt_verbs_explain(p, wc, text, sizeof text));
}

/* The receive is posted again, then its credit is given back. */
static void take_receive(struct tt_verbs *net, struct tt_verbs_peer *p, const struct ibv_wc *wc)
{
	if (p && wc->status) {
		fail(p, wc);
	} else if (p) {
		p->base.received++;
		if (wc->opcode == IBV_WC_RECV_RDMA_WITH_IMM)
			take_immediate(p, wc);
		else
			take_message(p, wc);
		if (++p->owed > TT_VERBS_CREDITS)
			tt_verbs_lose(p, -EPROTO, "it sent more than it had credits for");
	}
	tt_verbs_receive_again(net, wc->wr_id);
}

static void end_request(struct tt_verbs_peer *p, const struct ibv_wc *wc)
{
	uint32_t ahead = (((uint32_t)wc->wr_id >> 1) - p->completed) & 0x7fffffff, position = p->completed + ahead;

	if (wc->wr_id >> 32 != p->generation || ahead >= p->posted - p->completed)
		return; /* of a queue pair that had this number before */
	if (wc->status)
		fail(p, wc);
	if (p->failed) { /* all before it may be in doubt, too */
		struct tt_verbs_sent *s = &p->sent[position % TT_VERBS_DEPTH];
		p->signals -= s->signalled && p->signals; /* it may have been waited for in vain */
		s->signalled = false;
		return;
	}
	tt_verbs_requests_done(p, position);
	tt_verbs_prove(p, &p->told);
}

static void take_completion(struct tt_verbs *net, const struct ibv_wc *wc)
{
	struct tt_verbs_peer *p = tt_verbs_find(net, wc->qp_num);

	net->ops.events++;
	if (!(wc->wr_id & 1))
		take_receive(net, p, wc);
	else if (p)
		end_request(p, wc);
	if (!p)
		return;
	if (p->ops.broken)
		tt_list_append_once(&net->ops.ready, &p->ops.ready);
	else
		tt_verbs_want_to_send(p);
}

static void look_at_backlog(struct tt_verbs *net)
{
	for (unsigned i = 0; i < net->backlog_count; i++)
		take_completion(net, &net->backlog[i]);
	net->backlog_count = 0;
}

int tt_verbs_poll(struct tt_verbs *net)
{
	struct ibv_wc wc[TT_VERBS_BATCH];
	int n;

	if (net->backlog_count)
		look_at_backlog(net);
	while ((n = ibv_poll_cq(net->cq, TT_VERBS_BATCH, wc)) > 0) {
		for (int i = 0; i < n; i++)
			take_completion(net, &wc[i]);
		tt_verbs_post_receives(net);
		if (n < TT_VERBS_BATCH)
			break;
	}
	tt_verbs_post_receives(net);
	if (n < 0)
		tt_verbs_lose_net(net, "it cannot be polled any more");
	return net->lost;
}

void tt_verbs_set_aside(struct tt_verbs *net)
{
	int n;

	do {
		if (net->backlog_max - net->backlog_count < TT_VERBS_BATCH) {
			unsigned max = net->backlog_max * 2 + 4 * TT_VERBS_BATCH;
			struct ibv_wc *more = realloc(net->backlog, max * sizeof *more);
			if (!more) { /* receives in those that are not kept would never be posted again */
				tt_verbs_lose_net(net, "this process has no memory to keep its completions");
				return;
			}
			net->backlog = more;
			net->backlog_max = max;
		}
		n = ibv_poll_cq(net->cq, TT_VERBS_BATCH, net->backlog + net->backlog_count);
		net->backlog_count += n > 0 ? (unsigned)n : 0;
	} while (n == TT_VERBS_BATCH);
}

void tt_verbs_take_back(struct tt_verbs_peer *p)
{
	struct tt_verbs *net = p->net;

	tt_verbs_set_aside(net);
	for (unsigned i = 0; i < net->backlog_count; i++) {
		struct ibv_wc *wc = &net->backlog[i];
		if (!(wc->wr_id & 1) || wc->qp_num != p->qp->qp_num)
			continue;
		end_request(p, wc);
		wc->qp_num = 0; /* nobody's any more */
	}
}
