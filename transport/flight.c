/* flight.c - how ops are checked and ended, how peers end, and what all registered regions have in common */
#include "transport/flight.h"
#include <stdlib.h>

void tt_flight_init(struct tt_flight *f, struct tt_flights *net, struct tt_peer *peer)
{
	f->net = net;
	f->peer = peer;
	tt_list_init(&f->ready);
	tt_list_append(&net->peers, &f->all);
	for (unsigned i = 0; i < TT_COUNT(f->free_slots); i++)
		f->free_slots[f->free_count++] = (uint8_t)(TT_COUNT(f->free_slots) - 1 - i);
}

void tt_flight_up(struct tt_flight *f)
{
	f->stage = TT_STAGE_UP;
	f->net->events++;
	if (f->peer->net->events->up)
		f->peer->net->events->up(f->peer);
}

void tt_flight_break(struct tt_flight *f, int err)
{
	if (!f->broken) {
		f->broken = err;
		f->why = tt_last_sentence();
	}
	tt_list_append_once(&f->net->ready, &f->ready);
}

void tt_flight_lose(struct tt_flight *f, const char *why)
{
	if (!f->broken)
		tt_flight_break(f, tt_fail(-ECONNRESET, "lost the connection to %s: %s", f->peer->addr, why));
}

void tt_flight_post(struct tt_flight *f, struct tt_op *op)
{
	int err = f->stage == TT_STAGE_UP ? tt_op_check(f->peer->net, op) : -ENOTCONN;

	op->err = 0;
	if (err) {
		tt_flight_finish_later(f, op, err);
	} else if (tt_broken(MESSAGES_SWAPPED) && op->kind == TT_SEND && f->pending.head) {
		op->next = f->pending.head;
		f->pending.head = op;
	} else {
		tt_queue_push(&f->pending, op);
	}
}

void tt_flight_drain(struct tt_flight *f)
{
	struct tt_op_queue q = f->finished; /* ops that done() posts in vain go into the new queue */
	struct tt_op *op;

	f->finished = (struct tt_op_queue){ 0 };
	while ((op = tt_queue_pop(&q)))
		tt_flight_finish(f, op, op->err);
}

void tt_flight_fail(struct tt_flight *f)
{
	struct tt_op *op;

	tt_flight_drain(f);
	while ((op = tt_broken(FAIL_OUT_OF_ORDER) ? f->last : f->first)) {
		tt_flight_end(f, op);
		tt_flight_finish(f, op, -ECONNRESET);
	}
	while ((op = tt_queue_pop(&f->pending)))
		tt_flight_finish(f, op, -ECONNRESET);
	while (f->finished.head) /* ops that done() has posted */
		tt_flight_drain(f);
}

static void tell_down(struct tt_flight *f)
{
	f->net->events++;
	if (f->peer->net->events->down)
		f->peer->net->events->down(f->peer, f->broken);
}

static void cut_off(struct tt_flight *f)
{
	if (f->stage == TT_STAGE_DOWN)
		return;
	f->net->calls->cut_off(f);
	tt_list_remove(&f->ready);
	f->stage = TT_STAGE_DOWN;
}

static void go_down(struct tt_flight *f)
{
	cut_off(f);
	tt_remember(f->why.text);
	tt_flight_fail(f);
	tt_remember(f->why.text);
	tell_down(f);
	if (tt_broken(DOWN_TWICE))
		tell_down(f);
}

void tt_flight_free(struct tt_flight *f)
{
	cut_off(f);
	tt_list_remove(&f->all);
	tt_list_remove(&f->ready); /* an op may have been posted after the peer went down */
	f->net->calls->free(f);
}

void tt_flight_disconnect(struct tt_flight *f)
{
	struct tt_flights *net = f->net;
	bool was_inside = net->inside;

	net->inside = true;
	cut_off(f);
	tt_flight_fail(f);
	tt_flight_free(f);
	net->inside = was_inside;
}

static void look_at_peer(struct tt_flight *f)
{
	const struct tt_flight_calls *calls = f->net->calls;

	tt_flight_drain(f);
	if (f->broken && f->stage != TT_STAGE_DOWN && !(calls->held && calls->held(f)))
		go_down(f);
}

void tt_flights_init(struct tt_flights *n, const struct tt_flight_calls *calls)
{
	n->calls = calls;
	tt_list_init(&n->peers);
	tt_list_init(&n->ready);
}

void tt_flights_close(struct tt_flights *n)
{
	while (!tt_list_empty(&n->peers))
		tt_flight_disconnect(tt_container_of(n->peers.next, struct tt_flight, all));
}

/* A peer that becomes ready again meanwhile waits for the next time. */
void tt_flights_drain(struct tt_flights *n)
{
	struct tt_list *last = n->ready.prev, *node = NULL;

	while (node != last && (node = tt_list_pop(&n->ready)))
		look_at_peer(tt_container_of(node, struct tt_flight, ready));
}

static bool inside(const struct tt_region *r, const void *local, size_t len)
{
	uintptr_t start = (uintptr_t)r->mem.base, at = (uintptr_t)local;

	return at >= start && at - start <= r->mem.len && len <= r->mem.len - (at - start);
}

static int check_remote(const struct tt_op *op)
{
	if (!op->key)
		return tt_fail(-EINVAL, "the op has no key: PUT, GET and ADD name a region of the peer's");
	if ((op->offset > op->key->len || op->len > op->key->len - op->offset) && !tt_broken(KEY_PAST_END))
		return tt_fail(-ERANGE, "%zu bytes at offset %llu reach past the end of a region of %llu bytes",
		               op->len, (unsigned long long)op->offset, (unsigned long long)op->key->len);
	return 0;
}

static int check_local(const struct tt_net *net, const struct tt_op *op)
{
	if (op->region && op->region->net != net)
		return tt_fail(-EINVAL, "the region of an op belongs to another net than %s", net->addr);
	if (op->kind == TT_ADD)
		return 0;
	if (!op->region && op->len > net->copy_max)
		return tt_fail(-EINVAL, "%zu bytes of an op are not registered, and at most %zu may be so", op->len,
		               net->copy_max);
	if (op->len && !op->local)
		return tt_fail(-EINVAL, "the %zu bytes of an op are at address 0", op->len);
	if (op->kind == TT_GET && op->region && op->region->pin && op->region->pin->source)
		return tt_fail(-EFAULT, "the memory into which a GET of %zu bytes shall write is read-only", op->len);
	if (op->region && op->len && !inside(op->region, op->local, op->len))
		return tt_fail(-EINVAL, "the %zu bytes of an op are not in the region it names", op->len);
	return 0;
}

int tt_op_check(const struct tt_net *net, const struct tt_op *op)
{
	if (op->flags & ~(uint32_t)(TT_NOTIFY | TT_LAZY | TT_LOCAL))
		return tt_fail(-EINVAL, "the op has unknown flags 0x%x", op->flags);
	if (op->flags & TT_NOTIFY && (op->kind != TT_PUT || op->notify >= 1u << 24))
		return tt_fail(-EINVAL, "the notify is %u: only a PUT has one, and it is below 2^24", op->notify);
	int err = check_local(net, op);
	if (err)
		return err;
	switch (op->kind) {
	case TT_PUT:
		return op->len ? check_remote(op) : 0;
	case TT_GET:
		return check_remote(op);
	case TT_ADD:
		if (op->len != 8 || op->offset % 8)
			return tt_fail(-EINVAL, "an ADD has %zu bytes at offset %llu: it takes 8, at a multiple of 8",
			               op->len, (unsigned long long)op->offset);
		return check_remote(op);
	case TT_SEND:
		if (op->len <= TT_MESSAGE_MAX)
			return 0;
		return tt_fail(-EINVAL, "the message has %zu bytes: PUT what has more than %d", op->len,
		               TT_MESSAGE_MAX);
	}
	return tt_fail(-EINVAL, "the op has the unknown kind %d", (int)op->kind);
}

static bool holds(const struct tt_pin *pin, const struct tt_mem *mem, bool remote)
{
	size_t offset = (uintptr_t)mem->base - (uintptr_t)pin->mem.base;

	if (remote)
		return pin->remote && !offset && mem->len == pin->mem.len;
	return offset <= pin->mem.len && mem->len <= pin->mem.len - offset;
}

static int check_pin(const struct tt_net *net, const struct tt_mem *mem, const struct tt_pin *pin, bool remote)
{
	if (!net->transport->pin || tt_broken(PIN_SPARED) || (pin && pin->net == net && holds(pin, mem, remote)))
		return 0;
	return tt_fail(-EINVAL, "cannot register %zu bytes on %s: they are not pinned%s", mem->len, net->addr,
	               remote ? ", all and alone, for use by others" : "");
}

int tt_grant_new(struct tt_net *net, const struct tt_mem *mem, struct tt_pin *pin, struct tt_list *all,
                 int (*grant)(struct tt_grant *), struct tt_region **out)
{
	int err = check_pin(net, mem, pin, grant);

	if (err)
		return err;
	if (mem->gpu >= 0 && !tt_net_takes(net, mem->gpu))
		return tt_fail(-ENOTSUP, "%s cannot register memory of GPU %d: stage it through host memory",
		               net->transport->name, mem->gpu);
	if (!mem->base && mem->len)
		return tt_fail(-EINVAL, "cannot register %zu bytes at address 0", mem->len);
	struct tt_grant *g = calloc(1, sizeof *g);
	if (!g)
		return tt_fail(-ENOMEM, "no memory for a region on %s", net->addr);
	g->base.net = net;
	g->base.mem = *mem;
	g->base.pin = pin;
	if (grant && (err = grant(g))) {
		free(g);
		return err;
	}
	tt_list_append(all, &g->node);
	*out = &g->base;
	return 0;
}

void tt_grant_free(struct tt_grant *g)
{
	tt_list_remove(&g->node);
	free(g);
}

/* Far peers */

void *tt_far_map(struct tt_peer *p, const struct tt_key *key, int anytime)
{
	return (void)p, (void)key, (void)anytime, NULL;
}

int tt_far_store_begin(struct tt_peer *p, const struct tt_key *key) { return (void)p, (void)key, 0; }
void tt_far_store_end(struct tt_peer *p) { (void)p; }
int tt_far_notify(struct tt_peer *p, uint32_t value) { return (void)p, (void)value, 0; }
