/* fashion_average.c - each rank takes steps of its own, on its part of each batch; its model is averaged with others'
 *
 * With a center (ea, easgd, asgd, diloco) the center is what is tested; in gossip the mean of all models is. */
#include "fashion.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

static float *kept; /* this rank's own values, while the consensus is tested */
static tutti_ea *ea;
static tutti_center *center;
static tutti_gossip *gossip;
static double mean_loss; /* of a sample, in this rank's last step */

static size_t bytes_of(const struct training *t) { return t->net.parameters * sizeof(float); }
static tutti_tensor model_of(const struct training *t)
{
	return (tutti_tensor){ t->net.values, t->net.parameters, TUTTI_F32 };
}

static int every(const struct training *t, int otherwise) { return t->options.every ? t->options.every : otherwise; }

static void step_alone(struct training *t, struct batch *b)
{
	struct net *net = &t->net;

	net_forward(net, b->rows);
	b->loss = net_loss(net, b->rows, t->labels, b->rows ? 1.0f / (float)b->rows : 0);
	for (int i = LAYERS - 1; i >= 0; i--)
		net_backward(net, i, b->rows);
	for (int i = 0; i < LAYERS; i++)
		net_update(net, i, (float)b->rate, (float)t->options.momentum);
}

static enum status begin(struct training *t)
{
	kept = malloc(bytes_of(t));
	if (!kept)
		return complain(FAILED, "not enough memory for a second model");
	return tutti_broadcast(t->job, t->net.values, bytes_of(t), 0, NULL) ? lost() : OK;
}

static enum status timed(struct training *t, double from, int err)
{
	t->waiting += seconds_now() - from;
	return err < 0 ? lost() : OK;
}

static void keep_own(struct training *t) { memcpy(kept, t->net.values, bytes_of(t)); }
static void part(struct training *t) { memcpy(t->net.values, kept, bytes_of(t)); }

/* ---- alone ---- */

static enum status step_without(struct training *t, struct batch *b)
{
	step_alone(t, b);
	return OK;
}

/* ---- elastic averaging, all ranks at once ---- */

static enum status begin_ea(struct training *t)
{
	tutti_tensor model = model_of(t);
	enum status s = begin(t);

	if (s)
		return s;
	/* Synchronized, the centers begin as the same model; else each begins as its rank's model after a step. */
	return tutti_ea_open(t->job, &model, 1, every(t, 10), t->options.alpha, 0, &ea) || tutti_ea_synchronize(ea)
		? lost() : OK;
}

static enum status step_ea(struct training *t, struct batch *b)
{
	step_alone(t, b);
	return timed(t, seconds_now(), tutti_ea_step(ea, NULL));
}

static enum status meet_ea(struct training *t)
{
	tutti_tensor now;

	keep_own(t);
	if (tutti_ea_center(ea, &now))
		return lost();
	memcpy(t->net.values, now.data, bytes_of(t));
	return OK;
}

static void end_ea(struct training *t)
{
	(void)t;
	tutti_ea_close(ea);
	free(kept);
}

/* ---- a center on servers ---- */

static enum status begin_center(struct training *t, tutti_center_config c)
{
	tutti_tensor model = model_of(t);
	enum status s = begin(t);

	return s ? s : tutti_center_open(t->job, "center", &model, 1, &c, &center) ? lost() : OK;
}

static enum status begin_easgd(struct training *t)
{
	return begin_center(t, tutti_center_easgd(every(t, 10), t->options.alpha));
}

static enum status begin_asgd(struct training *t) { return begin_center(t, tutti_center_asgd(every(t, 2))); }

static enum status begin_diloco(struct training *t)
{
	return begin_center(t, tutti_center_outer(every(t, 20), NAN, NAN));
}

/* The center gets what all ranks have learned, each of them the whole: together they would go too far. */
static enum status step_asgd(struct training *t, struct batch *b)
{
	b->rate /= t->ranks;
	step_alone(t, b);
	return timed(t, seconds_now(), tutti_center_step(center, NULL));
}

static enum status step_center(struct training *t, struct batch *b)
{
	step_alone(t, b);
	return timed(t, seconds_now(), tutti_center_step(center, NULL));
}

static enum status meet_center(struct training *t)
{
	keep_own(t);
	if (tutti_barrier(t->job, NULL)) /* the same center for all */
		return lost();
	return tutti_table_pull(tutti_center_table(center), t->net.values, NULL) ? lost() : OK;
}

static void end_center(struct training *t)
{
	if (tutti_barrier(t->job, NULL)) /* nobody closes while another may still exchange */
		lost();
	tutti_center_close(center);
	free(kept);
}

/* ---- gossip ---- */

static enum status begin_gossip(struct training *t)
{
	tutti_gossip_config c = tutti_gossip_defaults();
	tutti_tensor model = model_of(t);
	enum status s = begin(t);

	c.seed = t->options.seed;
	mean_loss = log(CLASSES); /* of a network that knows nothing */
	return s ? s : tutti_gossip_open(t->job, "gossip", &model, 1, &c, &gossip) ? lost() : OK;
}

static void note_loss(const struct batch *b)
{
	if (b->rows)
		mean_loss = b->loss / b->rows;
}

/* It publishes the model as it was before the step, and reads another one while the step is computed. */
static enum status step_gossip(struct training *t, struct batch *b)
{
	static int step;
	int meets = step++ % every(t, 4) == 0;
	tutti_gossip_result r;
	enum status s = meets ? timed(t, seconds_now(), tutti_gossip_publish(gossip, mean_loss)) : OK;

	if (s)
		return s;
	step_alone(t, b);
	note_loss(b);
	return meets ? timed(t, seconds_now(), tutti_gossip_mix(gossip, mean_loss, &r)) : OK;
}

static enum status meet_gossip(struct training *t)
{
	keep_own(t);
	return tutti_allreduce(t->job, t->net.values, t->net.values, t->net.parameters, TUTTI_F32, TUTTI_AVERAGE, NULL)
	               ? lost()
	               : OK;
}

static void end_gossip(struct training *t)
{
	if (tutti_barrier(t->job, NULL)) /* nobody closes while another may still read */
		lost();
	tutti_gossip_close(gossip);
	free(kept);
}

const struct algorithm fashion_alone = { "alone", begin, step_without, NULL, NULL, NULL };
const struct algorithm fashion_ea = { "ea", begin_ea, step_ea, meet_ea, part, end_ea };
const struct algorithm fashion_easgd = { "easgd", begin_easgd, step_center, meet_center, part, end_center };
const struct algorithm fashion_asgd = { "asgd", begin_asgd, step_asgd, meet_center, part, end_center };
const struct algorithm fashion_diloco = { "diloco", begin_diloco, step_center, meet_center, part, end_center };
const struct algorithm fashion_gossip = { "gossip", begin_gossip, step_gossip, meet_gossip, part, end_gossip };
