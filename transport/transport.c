/* transport.c - the list of transports, and how ops end */
#include "transport.h"
#include <string.h>

static const struct tt_transport *const transports[] = { &tt_shm, &tt_tcp, &tt_sim };

const struct tt_transport *tt_transport_at(int i)
{
	return i >= 0 && (size_t)i < sizeof transports / sizeof *transports ? transports[i] : NULL;
}

const struct tt_transport *tt_transport_find(const char *name)
{
	size_t len = strcspn(name, ":");
	const struct tt_transport *t;

	for (int i = 0; (t = tt_transport_at(i)); i++)
		if (strlen(t->name) == len && !strncmp(t->name, name, len))
			return t;
	return NULL;
}

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
