/* loan.c - memory that other ranks hold a key of: how it is taken back
 *
 * On RDMA a key that is used after it was taken back ends the connection. So the owner asks first, and the memory stays
 * registered until the holder has answered, or is disconnected: a rank that is known to be dead may still write.
 *
 *      owner                                        holder
 *        RECALL {number, room, what} ------------>    the room stops using it, in any state of the call
 *                                                     its PUTs are posted; it waits for the end of its GETs
 *               <----------------- STOPPED {number}   behind the last PUT
 *
 * A loan whose bytes have all come needs no question: the holder uses the key no more. The owner decides what waits:
 * the call waits for memory of the user; memory of the library is set aside, and nobody waits.
 *
 * A holder that falls silent is evicted by its heartbeat. One that lives, but neither answers nor moves bytes for
 * TUTTI_SILENCE, is evicted, too: no wait is without a bound. */
#include "engine/engine.h"
#include "member/member_private.h"

enum { MOVES = 1024 }; /* bytes within a heartbeat: more than PING and PONG have */

void tt_loan_begin(struct tt_loan *l, struct tt_member *holder)
{
	l->number = ++tt_members(holder->job)->loans;
	l->recalled = false;
	l->of = holder->link;
	tt_list_append(&l->of->loans, &l->link);
}

void tt_loan_end(struct tt_loan *l)
{
	if (l->of)
		tt_list_remove(&l->link);
	l->of = NULL;
}

static bool is_awaited(const struct tt_link *l)
{
	tt_list_each(node, &l->loans)
		if (tt_container_of(node, struct tt_loan, link)->recalled)
			return true;
	return false;
}

static void lose_patience(struct tt_timer *t)
{
	struct tt_link *l = tt_container_of(t, struct tt_link, recall);
	struct tt_job *job = l->job;
	struct tt_member *m = l->member;
	uint64_t moved = l->peer->received - l->recall_seen;

	if (!is_awaited(l))
		return;
	l->recall_seen = l->peer->received;
	if (moved > MOVES * (job->silence / tt_time(job, TT_TIME_HEARTBEAT)))
		tt_timer_start(job, t, tt_now() + job->silence, lose_patience);
	else if (m && m->link == l && m->state < TT_LEFT)
		tt_member_evict(m, -ETIMEDOUT, "%s was evicted: it is alive but did not give back memory of this "
		                "rank within %llu ms", tt_member_label(m).text,
		                (unsigned long long)(job->silence / TT_MS));
	else
		tt_link_doom(l);
}

bool tt_loan_recall(struct tt_loan *l, int slot, const void *what, size_t len)
{
	struct tt_link *of = l->of;
	uint8_t head[6];
	struct tt_pack p = tt_pack(head, sizeof head);

	if (!of)
		return true;
	if (!is_awaited(of)) {
		of->recall_seen = of->peer->received;
		tt_timer_start(of->job, &of->recall, tt_now() + of->job->silence, lose_patience);
	}
	l->recalled = true;
	tt_put8(&p, TT_RECALL);
	tt_put32(&p, l->number);
	tt_put8(&p, (uint8_t)slot);
	if (of->member && of->member->link == of && of->member->state < TT_LEFT) /* else it will be disconnected */
		tt_send(of->member, head, sizeof head, what, len);
	return false;
}

void tt_loans_return(struct tt_link *of)
{
	struct tt_list *node;

	tt_timer_stop(&of->recall);
	while ((node = tt_list_pop(&of->loans))) {
		struct tt_loan *l = tt_container_of(node, struct tt_loan, link);
		l->of = NULL;
		if (l->recalled)
			l->back(l);
	}
}

void tt_loan_stopped(struct tt_member *owner, uint32_t number)
{
	tt_send_words(owner, TT_STOPPED, &number, 1, NULL, 0);
}

/* ---- messages ---- */

void tt_loan_take_recall(struct tt_member *from, struct tt_pack *p)
{
	uint32_t number = tt_get32(p);
	int slot = tt_get8(p);

	tt_each_module(m, from->job, recalled)
		if (m->slot == slot) {
			bool stopped = m->recalled(from, p, number);
			if (stopped && !p->bad)
				tt_loan_stopped(from, number);
			return;
		}
	p->bad = true;
}

void tt_loan_take_stopped(struct tt_member *from, struct tt_pack *p)
{
	uint32_t number = tt_get32(p);

	tt_each_of(struct tt_loan, link, l, &from->link->loans) {
		if (l->number != number || !l->recalled)
			continue;
		tt_loan_end(l);
		from->link->recall_seen = from->link->peer->received; /* it answers: patience begins anew */
		tt_timer_start(from->job, &from->link->recall, tt_now() + from->job->silence, lose_patience);
		l->back(l);
		return;
	}
	p->bad = true;
}
