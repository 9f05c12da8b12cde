/* order.c - a NOTIFY or SEND arrives after all PUTs that were posted to the member before it
 *
 * Nets keep that order for what they are given. PUTs that move in pieces are given to a net late, so what must not
 * overtake them waits here. Each such PUT has a number; what waits has the number of the last PUT before it:
 *
 *      puts    5, 7                  held    NOTIFY (4) ready   SEND (6) waits for 5   NOTIFY (7) waits for 7
 *
 * The notify of such a PUT waits in the same line. */
#include "device/device_private.h"

static struct tt_device_peer *peer_of(struct tt_member *m) { return tt_member_own(m, TT_DEVICE_SLOT); }

static uint64_t oldest_put(const struct tt_device_peer *peer)
{
	return tt_list_empty(&peer->puts) ? UINT64_MAX :
	       tt_container_of(peer->puts.next, struct tt_transfer, put)->seq;
}

static void release_held(struct tt_member *m)
{
	struct tt_device_peer *peer = peer_of(m);

	while (peer->held.head && peer->held.head->priv[0] < oldest_put(peer)) {
		struct tt_post *p = tt_container_of(tt_queue_pop(&peer->held), struct tt_post, op);
		m->staged--;
		if (m->state == TT_UP)
			tt_post_unheld(m, p);
		else
			tt_post_fail(m->job, p, m->err);
	}
}

void tt_order_hold(struct tt_member *m, struct tt_post *p)
{
	struct tt_device_peer *peer = peer_of(m);

	p->op.priv[0] = peer->seq;
	tt_queue_push(&peer->held, &p->op);
	m->staged++;
}

void tt_order_begin(struct tt_transfer *t)
{
	struct tt_device_peer *peer = peer_of(t->member);

	t->seq = ++peer->seq;
	tt_list_append(&peer->puts, &t->put);
	t->member->staged++;
}

void tt_order_landed(struct tt_transfer *t)
{
	if (tt_list_empty(&t->put))
		return;
	tt_list_remove(&t->put);
	t->member->staged--;
	release_held(t->member);
}

bool tt_order_is_next(const struct tt_transfer *t)
{
	return tt_list_empty(&t->put) || peer_of(t->member)->puts.next == &t->put;
}

/* Takes out the posts for which `is` holds, and ends them with err; 0: they are the caller's. Returns how many. */
static int take_out(struct tt_member *m, bool (*is)(const struct tt_post *, const void *), const void *arg, int err)
{
	struct tt_device_peer *peer = peer_of(m);
	struct tt_op_queue rest = { 0 };
	struct tt_op *op;
	int n = 0;

	while (peer && (op = tt_queue_pop(&peer->held))) {
		struct tt_post *p = tt_container_of(op, struct tt_post, op);
		if (!is(p, arg)) {
			tt_queue_push(&rest, op);
			continue;
		}
		n++;
		m->staged--;
		if (err)
			tt_post_fail(m->job, p, err);
	}
	if (peer)
		peer->held = rest;
	return n;
}

static bool is_post(const struct tt_post *p, const void *arg) { return p == arg; }
static bool uses_key(const struct tt_post *p, const void *key) { return p->op.len && p->op.key == key; }

/* The notify of a PUT whose bytes have not landed goes with its transfer, which still looks at it. */
static bool stands_alone(const struct tt_post *p, const void *unused)
{
	(void)unused;
	return p->done != tt_device_notified ||
	       tt_list_empty(&tt_container_of(p, const struct tt_transfer, notify)->put);
}

bool tt_order_withdraw(struct tt_member *m, struct tt_post *p) { return take_out(m, is_post, p, 0) > 0; }

void tt_order_fail(struct tt_member *m, const struct tt_key *key, int err)
{
	take_out(m, key ? uses_key : stands_alone, key, err);
}
