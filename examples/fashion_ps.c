/* fashion_ps.c - training with parameter servers: the layers are tables, over all ranks. Each rank pushes its gradients
 * as they are ready, then pulls what its own and the others' have made of the values. With --staleness S a pull waits
 * until nobody is more than S pushes behind; without it nobody waits for anybody.
 *
 *   compute   forward | back 2 | back 1 | back 0 |                  | forward
 *   network                    | push 2 | push 1 | push 0 | pull    |
 */
#include "fashion.h"
#include <math.h>
#include <stdio.h>

static float *values_of(const struct training *t, int layer) { return t->net.values + t->net.layer[layer].at; }

/* The servers keep the momentum: each rank's share of a batch's gradient goes as far in the end as the whole would. */
static enum status open_tables(struct training *t)
{
	double momentum = t->options.momentum;
	char name[16];

	for (int i = 0; i < LAYERS; i++) { /* each step has a learning rate of its own: NAN sets none */
		tutti_table_config c = tutti_table_f32(t->net.layer[i].size,
		                                       momentum > 0 ? tutti_momentum(NAN, momentum) : tutti_sgd(NAN));
		if (t->options.staleness >= 0)
			c.consistency = (tutti_consistency){ .mode = TUTTI_SSP, .staleness = t->options.staleness };
		snprintf(name, sizeof name, "layer %d", i);
		if (tutti_table_open(t->job, name, &c, &t->table[i]))
			return lost();
	}
	return OK;
}

static enum status pull_all(struct training *t)
{
	for (int i = 0; i < LAYERS; i++)
		if (tutti_table_pull(t->table[i], values_of(t, i), &t->op[i]))
			return give_up(t, 0, i - 1);
	for (int i = 0; i < LAYERS; i++)
		if (tutti_wait(&t->op[i], -1))
			return give_up(t, i, LAYERS - 1);
	return OK;
}

static enum status meet(struct training *t) { return tutti_barrier(t->job, NULL) ? lost() : pull_all(t); }

static enum status begin(struct training *t)
{
	enum status s = open_tables(t);

	for (int i = 0; !s && !t->rank && i < LAYERS; i++)
		if (tutti_table_assign(t->table[i], values_of(t, i), NULL))
			s = lost();
	return s ? s : meet(t);
}

static enum status step(struct training *t, struct batch *b)
{
	struct net *net = &t->net;
	tutti_update now = tutti_update_defaults();
	double from;
	enum status s;

	now.learning_rate = b->rate;
	net_forward(net, b->rows);
	b->loss = net_loss(net, b->rows, t->labels, 1.0f / (float)b->total);
	for (int i = LAYERS - 1; i >= 0; i--) {
		net_backward(net, i, b->rows);
		from = seconds_now();
		if (tutti_table_push(t->table[i], net->gradients + net->layer[i].at, &now, &t->op[i]))
			return give_up(t, i + 1, LAYERS - 1);
		t->waiting += seconds_now() - from;
	}
	from = seconds_now();
	for (int i = LAYERS - 1; i >= 0; i--)
		if (tutti_wait(&t->op[i], -1))
			return give_up(t, 0, i);
	s = pull_all(t);
	t->waiting += seconds_now() - from;
	return s;
}

static void end(struct training *t)
{
	if (tutti_barrier(t->job, NULL)) /* nobody closes while another may still look */
		lost();
	for (int i = 0; i < LAYERS; i++)
		tutti_table_close(t->table[i]);
}

const struct algorithm fashion_ps = { "ps", begin, step, meet, NULL, end };
