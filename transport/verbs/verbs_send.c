/* verbs_send.c - requests: from pending ops to a chain of work requests, and from completions back to ops
 *
 *     pending ops, answers, credits -> chain -> one doorbell -> sent[posted..completed) -> done()
 */
#include "transport/copy.h"
#include "transport/verbs/verbs_private.h"
#include <stdlib.h>

void tt_verbs_want_to_send(struct tt_verbs_peer *p)
{
	if (tt_verbs_alive(p))
		tt_list_append_once(&p->net->dirty, &p->dirty);
}

/* The arena */

/* false: it has none; the peer waits for some. */
static bool has_bounce(struct tt_verbs_peer *p)
{
	if (!p->net->bounce_count)
		tt_list_append_once(&p->net->hungry, &p->hungry);
	return p->net->bounce_count;
}

/* All that wait look again: who comes first may have no credits. */
static void give_bounce(struct tt_verbs *net, int bounce)
{
	net->bounces[net->bounce_count++] = (uint16_t)bounce;
	for (struct tt_list *node; (node = tt_list_pop(&net->hungry));)
		tt_verbs_want_to_send(tt_container_of(node, struct tt_verbs_peer, hungry));
}

static char *bounce_at(const struct tt_verbs *net, int bounce) { return net->arena + bounce * TT_VERBS_BOUNCE; }

static void count_copied(struct tt_verbs *net, size_t n) { net->base.copied += n > TT_SHORT ? n : 0; }

/* The chain */

/* On iWARP there is always room for one more READ. */
static bool has_room(const struct tt_verbs_peer *p)
{
	return p->posted - p->completed + p->net->iwarp < TT_VERBS_DEPTH;
}

static struct tt_verbs_sent *sent_at(struct tt_verbs_peer *p, uint32_t position)
{
	return &p->sent[position % TT_VERBS_DEPTH];
}

/* Adds a request without data to the chain; op: ends with it. */
struct ibv_send_wr *tt_verbs_chain(struct tt_verbs_peer *p, enum ibv_wr_opcode opcode, struct tt_op *op)
{
	struct tt_verbs *net = p->net;
	struct ibv_send_wr *wr = &net->chain[net->chained];

	*wr = (struct ibv_send_wr){ .wr_id = (uint64_t)p->generation << 32 | (uint32_t)(p->posted << 1) | 1,
		.next = wr + 1, .sg_list = net->sges[net->chained], .opcode = opcode };
	*sent_at(p, p->posted) = (struct tt_verbs_sent){ .op = op, .bounce = -1 };
	net->chained++;
	p->posted++;
	p->silent++;
	return wr;
}

void tt_verbs_add_sge(struct ibv_send_wr *wr, const void *at, size_t n, uint32_t lkey)
{
	wr->sg_list[wr->num_sge++] = (struct ibv_sge){ (uintptr_t)at, (uint32_t)n, lkey };
}

/* n bytes of the arena, to the request that was chained last. */
static char *add_bounce(struct tt_verbs_peer *p, struct ibv_send_wr *wr, size_t n)
{
	struct tt_verbs *net = p->net;
	struct tt_verbs_sent *sent = sent_at(p, p->posted - 1);

	sent->bounce = (int16_t)net->bounces[--net->bounce_count];
	sent->len = (uint32_t)n;
	tt_verbs_add_sge(wr, bounce_at(net, sent->bounce), n, net->arena_mr->lkey);
	return bounce_at(net, sent->bounce);
}

/* The completion of the chain's last request stands for all before. */
static void signal_last(struct tt_verbs_peer *p)
{
	struct tt_verbs *net = p->net;
	struct ibv_send_wr *wr = &net->chain[net->chained - 1];

	if (net->iwarp)
		wr = tt_verbs_prove_iwarp(p, wr);
	if (sent_at(p, p->posted - 1)->signalled)
		return;
	sent_at(p, p->posted - 1)->signalled = true;
	wr->send_flags |= IBV_SEND_SIGNALED;
	p->silent = 0;
	p->signals++;
}

/* A failed post may have said so by *bad alone; those from there on were not posted, and never complete. */
static void ring(struct tt_verbs_peer *p)
{
	struct tt_verbs *net = p->net;
	struct ibv_send_wr *bad = NULL;

	if (!net->chained)
		return;
	signal_last(p);
	unsigned n = net->chained;
	net->chained = 0;
	net->chain[n - 1].next = NULL;
	int err = ibv_post_send(p->qp, net->chain, &bad);
	if (!err && !bad)
		return;
	for (unsigned i = bad ? (unsigned)(bad - net->chain) : 0; i < n; i++)
		p->signals -= sent_at(p, p->posted - n + i)->signalled;
	char why[120];
	snprintf(why, sizeof why, "its queue pair takes no requests: %s", err ? strerror(abs(err)) : "no reason given");
	tt_verbs_lose(p, -ECONNRESET, why);
}

/* Each message, and each immediate, gives credits back and takes one. */
static uint8_t give_credits(struct tt_verbs_peer *p)
{
	uint8_t n = (uint8_t)p->owed;

	p->owed = 0;
	p->credits--;
	return n;
}

/* A message that begins with this head; op: ends with it. */
struct ibv_send_wr *tt_verbs_chain_message(struct tt_verbs_peer *p, struct tt_op *op, struct tt_verbs_head h)
{
	struct tt_verbs_head *at = &p->share->heads[p->posted % TT_VERBS_DEPTH];
	struct ibv_send_wr *wr = tt_verbs_chain(p, IBV_WR_SEND, op);

	h.credits = give_credits(p);
	*at = h;
	tt_verbs_add_sge(wr, at, sizeof *at, p->share->mr->lkey);
	if (sizeof h <= p->net->inline_max)
		wr->send_flags = IBV_SEND_INLINE;
	return wr;
}

/* Ops. Of the first pending one p->at bytes are chained. */

/* The op's next n bytes, to the request that was chained last. Those that no key covers go through the arena. */
static void add_bytes(struct tt_verbs_peer *p, struct ibv_send_wr *wr, const struct tt_op *op, size_t n, bool inlined)
{
	char *local = (char *)op->local + p->at;

	wr->send_flags = inlined ? IBV_SEND_INLINE : 0;
	if (inlined || op->region) {
		tt_verbs_add_sge(wr, local, n, inlined ? 0 : tt_verbs_lkey(op->region));
	} else if (op->kind == TT_GET) {
		add_bounce(p, wr, n);
		sent_at(p, p->posted - 1)->to = local;
	} else {
		tt_copy_word(add_bounce(p, wr, n), local, n);
		count_copied(p->net, n);
	}
}

/* May the CPU copy the next n bytes into the request? */
static bool goes_inline(const struct tt_verbs_peer *p, const struct tt_op *op, size_t n)
{
	return n <= p->net->inline_max && !(op->region && op->region->mem.gpu >= 0);
}

static enum tt_verbs_outcome send_part(struct tt_verbs_peer *p, struct tt_op *op)
{
	size_t n = tt_min(op->len - p->at, p->message - sizeof(struct tt_verbs_head));
	bool last = p->at + n == op->len, small = goes_inline(p, op, n + sizeof(struct tt_verbs_head));

	if (!small && !op->region && !has_bounce(p))
		return TT_VERBS_STARVED;
	struct ibv_send_wr *wr = tt_verbs_chain_message(p, last ? op : NULL,
		(struct tt_verbs_head){ .kind = last ? TT_VERBS_MESSAGE : TT_VERBS_PART });
	if (n)
		add_bytes(p, wr, op, n, small);
	p->at += n;
	return last ? TT_VERBS_WHOLE : TT_VERBS_MORE;
}

static uint64_t address_of(const struct tt_op *op, uint64_t at)
{
	struct tt_pack pack = tt_unpack(op->key->raw, sizeof op->key->raw);

	return tt_get64(&pack) + op->offset + at;
}

static uint32_t key_of(const struct tt_op *op)
{
	struct tt_pack pack = tt_unpack(op->key->raw, sizeof op->key->raw);

	tt_get64(&pack);
	return tt_get32(&pack);
}

/* The target's adapter takes what a READ brings a packet at a time, from the READ's first byte on. If that one is not a
 * word's first, words that change meanwhile are torn between two packets. So such a READ is of one packet, and the next
 * one begins with a word. */
static size_t keep_words_whole(const struct tt_op *op, uint64_t at, size_t n)
{
	uint64_t addr = address_of(op, at);

	return addr % 8 && n > TT_VERBS_PACKET ? TT_VERBS_PACKET - addr % 8 : n;
}

/* An empty PUT has no key. An empty GET needs the right one all the same: rxe looks at it when it answers again. */
static void set_place(struct ibv_send_wr *wr, const struct tt_op *op, uint64_t at)
{
	if (!op->len && op->kind == TT_PUT)
		return;
	wr->wr.rdma.remote_addr = address_of(op, at);
	wr->wr.rdma.rkey = key_of(op);
}

/* Is the NOTIFY what comes next of this PUT? */
static bool notifies(const struct tt_verbs_peer *p, const struct tt_op *op)
{
	size_t max = p->net->iwarp ? 0 : tt_min(TT_VERBS_NOTIFY_MAX, p->piece);

	return op->flags & TT_NOTIFY && (p->at == op->len || op->len <= max);
}

static void add_notify(struct tt_verbs_peer *p, struct ibv_send_wr *wr, const struct tt_op *op)
{
	wr->opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
	wr->imm_data = htobe32((uint32_t)give_credits(p) << 24 | op->notify);
}

/* The next piece of a PUT or GET. */
enum tt_verbs_outcome tt_verbs_move_piece(struct tt_verbs_peer *p, struct tt_op *op)
{
	bool get = op->kind == TT_GET, notify = notifies(p, op);
	size_t n = tt_min(op->len - p->at, p->piece);
	bool small = !get && goes_inline(p, op, n);

	if (get)
		n = keep_words_whole(op, p->at, n);

	if (!small && n && !op->region) {
		n = tt_min(n, TT_VERBS_BOUNCE);
		if (!has_bounce(p))
			return TT_VERBS_STARVED;
	}
	bool last = p->at + n == op->len && (notify || !(op->flags & TT_NOTIFY));
	struct ibv_send_wr *wr = tt_verbs_chain(p, get ? IBV_WR_RDMA_READ : IBV_WR_RDMA_WRITE, last ? op : NULL);
	set_place(wr, op, p->at);
	if (n)
		add_bytes(p, wr, op, n, small);
	p->at += n;
	p->moved += n;
	if (notify)
		add_notify(p, wr, op);
	return last ? TT_VERBS_WHOLE : TT_VERBS_MORE;
}

/* An ADD, or the next piece of a GET, which ends where a word does. */
static enum tt_verbs_outcome ask(struct tt_verbs_peer *p, struct tt_op *op)
{
	uint64_t addr = address_of(op, p->at);
	bool get = op->kind == TT_GET;
	size_t n = tt_min(op->len - p->at, (p->message - sizeof(struct tt_verbs_head)) / 8 * 8 - addr % 8);

	int slot = tt_flight_take_slot(&p->ops, op);

	if (!p->at)
		op->priv[2] = 0; /* so many bytes have come */
	p->asked[slot] = get ? (uint16_t)n : 0;
	tt_verbs_chain_message(p, NULL, (struct tt_verbs_head){ .kind = get ? TT_VERBS_FETCH : TT_VERBS_ASK,
		.slot = (uint8_t)slot, .rkey = htole32(key_of(op)),
		.addr = htole64(addr), .word = htole64(get ? n : op->operand) });
	p->at += n;
	return p->at == op->len ? TT_VERBS_WHOLE : TT_VERBS_MORE;
}

/* false: the arena has no room. */
static bool answer(struct tt_verbs_peer *p, struct tt_verbs_head h)
{
	size_t n = h.kind == TT_VERBS_BYTES ? le64toh(h.word) : 0;
	bool device; /* never: iWARP takes none */
	const void *from = n ? tt_verbs_find_memory(p->net, le32toh(h.rkey), le64toh(h.addr), n, &device) : NULL;

	if (from && !has_bounce(p))
		return false;
	p->answer_at++;
	p->answer_count--;
	if (n && !from) {
		tt_verbs_lose(p, -ECONNRESET, "it gets from memory that has been taken back meanwhile");
		return false;
	}
	struct ibv_send_wr *wr = tt_verbs_chain_message(p, NULL, h);
	if (from) {
		tt_copy_words(add_bounce(p, wr, n), from, n);
		count_copied(p->net, n);
		wr->send_flags = 0;
	}
	return true;
}

/* Do messages do this op? */
static bool is_asked(const struct tt_verbs_peer *p, const struct tt_op *op)
{
	return op->kind == TT_ADD || (op->kind == TT_GET && p->net->iwarp && op->len);
}

static bool can_go_on(const struct tt_verbs_peer *p, const struct tt_op *op)
{
	bool takes_receive = op->kind == TT_SEND || is_asked(p, op) || notifies(p, op);

	return (!takes_receive || p->credits > 1) && (!is_asked(p, op) || p->ops.free_count);
}

static bool chain_op(struct tt_verbs_peer *p, struct tt_op *op)
{
	enum tt_verbs_outcome o = op->kind == TT_SEND ? send_part(p, op) : is_asked(p, op) ? ask(p, op) :
	                          p->net->iwarp ? tt_verbs_move_iwarp(p, op) : tt_verbs_move_piece(p, op);

	if (o == TT_VERBS_WHOLE) {
		p->at = 0;
		tt_queue_pop(&p->ops.pending);
		tt_flight_begin(&p->ops, op);
	}
	return o != TT_VERBS_STARVED;
}

/* Half of the credits stay for other messages. The other half is so much that the target gives it back. */
static bool owes_sign(struct tt_verbs_peer *p)
{
	if (p->moved < tt_max(p->sign_at, TT_VERBS_TICK) || p->credits <= p->credit_max / 2)
		return false;
	uint64_t now = tt_now();
	if (now - p->signed_at < p->net->door.timeout / TT_VERBS_SIGNS) {
		p->sign_at = p->moved + TT_VERBS_TICK;
		return false;
	}
	p->signed_at = now;
	return true;
}

static void chain_sign(struct tt_verbs_peer *p)
{
	tt_verbs_chain_message(p, NULL, (struct tt_verbs_head){ .kind = TT_VERBS_WORD, .word = htole64(p->moved) });
	p->moved = p->sign_at = 0;
}

static bool chain_next(struct tt_verbs_peer *p)
{
	struct tt_op *op = p->ops.pending.head;

	if (p->answer_count && p->credits > 1) {
		return answer(p, p->answers[p->answer_at % TT_FRAME_SLOTS]);
	} else if ((p->owed >= p->credit_max / 2 && p->credits) || owes_sign(p)) {
		chain_sign(p);
	} else if (!op || !can_go_on(p, op) || !chain_op(p, op)) {
		return false;
	}
	return true;
}

/* Posts what the queue pair takes, with one doorbell. */
static void push(struct tt_verbs_peer *p)
{
	tt_list_remove(&p->dirty);
	p->lazy = 0;
	while (tt_verbs_alive(p) && has_room(p) && chain_next(p))
		if (p->silent >= TT_VERBS_SILENT)
			signal_last(p);
	ring(p);
}

void tt_verbs_push_all(struct tt_verbs *net)
{
	for (struct tt_list *node; (node = tt_list_pop(&net->dirty));)
		push(tt_container_of(node, struct tt_verbs_peer, dirty));
}

/* It is as long as the longest packet: a switch between that drops those is found out here. */
void tt_verbs_probe(struct tt_verbs_peer *p)
{
	const struct tt_verbs *net = p->net;

	if (tt_verbs_listens_first(p))
		return;
	struct ibv_send_wr *wr = tt_verbs_chain_message(p, NULL, (struct tt_verbs_head){ .kind = TT_VERBS_WORD });
	wr->send_flags = 0;
	size_t zeros = tt_min(p->message, TT_VERBS_RECEIVE) - sizeof(struct tt_verbs_head);
	tt_verbs_add_sge(wr, bounce_at(net, TT_VERBS_BOUNCES), zeros, net->arena_mr->lkey);
	ring(p);
}

/* Lazy puts wait for each other while the adapter has enough to do for this peer. The next progress() or arm() sends
 * them at the latest. A NOTIFY is waited for at the other end. */
static bool may_wait(struct tt_verbs_peer *p, const struct tt_op *op)
{
	return op->kind == TT_PUT && (op->flags & (TT_LAZY | TT_NOTIFY)) == TT_LAZY && p->posted != p->completed &&
	       ++p->lazy < TT_VERBS_LAZY;
}

void tt_verbs_post(struct tt_peer *base, struct tt_op *op)
{
	struct tt_verbs_peer *p = tt_container_of(base, struct tt_verbs_peer, base);

	tt_flight_post(&p->ops, op);
	if (p->net->ops.inside || may_wait(p, op))
		tt_verbs_want_to_send(p);
	else
		push(p);
}

void tt_verbs_owe_answer(struct tt_verbs_peer *p, const struct tt_verbs_head *answer)
{
	p->answers[(p->answer_at + p->answer_count++) % TT_FRAME_SLOTS] = *answer;
}

/* What comes back */

static void retire(struct tt_verbs_peer *p, struct tt_verbs_sent *s)
{
	struct tt_op *op = s->op;

	if (s->bounce >= 0) {
		if (s->to) {
			tt_copy_word(s->to, bounce_at(p->net, s->bounce), s->len);
			count_copied(p->net, s->len);
		}
		give_bounce(p->net, s->bounce);
	}
	if (op) {
		if (op->kind == TT_GET && op->region && op->region->mem.gpu >= 0)
			tt_verbs_flush(p->net);
		tt_flight_end(&p->ops, op);
		tt_flight_finish(&p->ops, op, 0);
	}
}

/* Done() may post, so that requests are added meanwhile. */
void tt_verbs_requests_done(struct tt_verbs_peer *p, uint32_t position)
{
	while (p->completed != position + 1) {
		struct tt_verbs_sent s = *sent_at(p, p->completed++);
		p->signals -= s.signalled && p->signals; /* it may have been waited for in vain */
		retire(p, &s);
	}
}

void tt_verbs_forget_requests(struct tt_verbs_peer *p)
{
	for (; p->completed != p->posted; p->completed++)
		if (sent_at(p, p->completed)->bounce >= 0)
			give_bounce(p->net, sent_at(p, p->completed)->bounce);
	p->signals = 0;
}
