/* verbs_iwarp.c - what the requests of iWARP do not do, and what is chained behind them instead */
#include "transport/verbs/verbs_private.h"

/* siw may answer a READ of no bytes with some. */
static struct ibv_send_wr *chain_word(struct tt_verbs_peer *p, struct tt_op *op)
{
	const struct ibv_mr *words = p->net->words;
	struct ibv_send_wr *wr = tt_verbs_chain(p, IBV_WR_RDMA_READ, op);

	wr->wr.rdma.remote_addr = p->word.addr;
	wr->wr.rdma.rkey = p->word.rkey;
	tt_verbs_add_sge(wr, (char *)words->addr + 8, 8, words->lkey);
	return wr;
}

struct ibv_send_wr *tt_verbs_prove_iwarp(struct tt_verbs_peer *p, struct ibv_send_wr *last)
{
	return last->opcode == IBV_WR_RDMA_READ ? last : chain_word(p, NULL);
}

enum tt_verbs_outcome tt_verbs_move_iwarp(struct tt_verbs_peer *p, struct tt_op *op)
{
	if (p->at < op->len)
		return tt_verbs_move_piece(p, op);
	if (op->flags & TT_NOTIFY)
		tt_verbs_chain_message(p, op,
		                       (struct tt_verbs_head){ .kind = TT_VERBS_NOTIFY, .word = htole64(op->notify) });
	else
		chain_word(p, op);
	return TT_VERBS_WHOLE;
}
