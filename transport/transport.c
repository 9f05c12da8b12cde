/* transport.c - what is wrong with an op, and how it ends */
#include "transport/transport.h"
#include "base/base.h"
#include "transport/breaks.h"

void tt_queue_push(struct tt_op_queue *q, struct tt_op *op)
{
	if (!q->head)
		q->tail = &q->head;
	op->next = NULL;
	*q->tail = op;
	q->tail = &op->next;
}

struct tt_op *tt_queue_pop(struct tt_op_queue *q)
{
	struct tt_op *op = q->head;

	if (op) {
		q->head = op->next;
		op->next = NULL;
	}
	return op;
}

void tt_op_finish(struct tt_op *op, int err)
{
	op->err = err;
	op->done(op); /* may free or post the op again: not ours from here on */
}

static bool inside(const struct tt_region *r, const void *local, size_t len)
{
	uintptr_t start = (uintptr_t)r->mem.base, at = (uintptr_t)local;

	return at >= start && at - start <= r->mem.len && len <= r->mem.len - (at - start);
}

static int check_remote(const struct tt_op *op)
{
	if (!op->key)
		return tt_fail(-EINVAL, "an op without a key: PUT, GET and ADD name a region of the peer's");
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
	if (op->len && !op->local)
		return tt_fail(-EINVAL, "an op over %zu bytes at address 0", op->len);
	if (op->region && op->len && !inside(op->region, op->local, op->len))
		return tt_fail(-EINVAL, "the %zu bytes of an op are not in the region it names", op->len);
	return 0;
}

int tt_op_check(const struct tt_net *net, const struct tt_op *op)
{
	if (op->flags & ~(uint32_t)(TT_NOTIFY | TT_LAZY))
		return tt_fail(-EINVAL, "an op with unknown flags 0x%x", op->flags);
	if (op->flags & TT_NOTIFY && (op->kind != TT_PUT || op->notify >= 1u << 24))
		return tt_fail(-EINVAL, "a notify of %u: only a PUT has one, and it is below 2^24", op->notify);
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
			return tt_fail(-EINVAL, "an ADD to %zu bytes at offset %llu: it takes 8, at a multiple of 8",
			               op->len, (unsigned long long)op->offset);
		return check_remote(op);
	case TT_SEND:
		if (op->len <= net->send_max)
			return 0;
		return tt_fail(-EINVAL, "a message of %zu bytes: at most %zu, PUT longer ones", op->len,
		               net->send_max);
	}
	return tt_fail(-EINVAL, "an op of unknown kind %d", (int)op->kind);
}
