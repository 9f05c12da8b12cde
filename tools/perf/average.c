/* average.c - a center of `tutti perf table`; and `tutti perf gossip`: rank 0 fetches rank 1's published model of f32,
 * and averages it into its own
 *
 * The library holds both models, so that nothing is copied. The baseline reads the same bytes into a buffer from a bare
 * socket, then averages; in bare memory it averages out of the other rank's memory, in place: 12 bytes an element. */
#include "kernel/kernel.h"
#include "tools/perf/perf.h"
#include <errno.h>
#include <stdio.h>

/* ---- a center, alpha 0.5 ---- */

bool tt_perf_is_elastic(const struct tt_perf *p)
{
	return p->kernel && p->kernel->calls & TT_PERF_CENTER && !p->order.baseline;
}

void tt_perf_close_center(struct tt_perf *p)
{
	tutti_center_close(p->center);
	p->center = NULL;
}

int tt_perf_open_center(struct tt_perf *p, const tutti_table_config *table)
{
	static const int workers[] = { 0, 2 };
	tutti_tensor model = { p->local, p->bytes / tt_perf_type_size(p->options.type), p->options.type };
	tutti_center_config c = tutti_center_easgd(1, 0.5);
	char name[64];

	c.servers = table->servers;
	c.server = table->server;
	c.workers = tt_perf_workers(p);
	c.worker = workers;
	snprintf(name, sizeof name, "perf center %llu", (unsigned long long)p->order.serial);
	return tutti_center_open(p->job, name, &model, 1, &c, &p->center);
}

/* The center is what rank 0 has at first, the worker that exchanges has what rank 1 would have. */
int tt_perf_fill_center(struct tt_perf *p)
{
	int err = 0;

	tt_perf_fill_numbers(p, p->options.type, p->local, p->bytes, 0);
	if (p->rank == 0)
		err = tutti_center_assign(p->center);
	tt_perf_fill_numbers(p, p->options.type, p->local, p->bytes, 1);
	return err;
}

int tt_perf_exchange(struct tt_perf *p) { return tutti_center_exchange(p->center, NULL); }

/* ---- gossip ---- */

enum { BUFFERS = 3 };

/* No peer while the buffers are filled: a fetch of then would still be under way when the first iteration begins. */
static int choose(void *arg)
{
	const struct tt_perf *p = arg;

	return p->gossip ? 1 - p->rank : -1;
}

void tt_perf_close_gossip(struct tt_perf *p)
{
	tutti_gossip_close(p->gossip);
	p->gossip = NULL;
}

static int open_gossip(struct tt_perf *p, const tutti_tensor *model, tutti_gossip **out)
{
	tutti_gossip_config c = tutti_gossip_defaults();
	char name[64];

	tt_perf_close_gossip(p);
	c.buffers = BUFFERS;
	c.choice = TUTTI_CHOICE_OWN;
	c.choose = choose;
	c.arg = p;
	c.fetch_probability = p->rank ? 0 : 1;
	c.timeout_ms = 10000; /* a round in which the machine is busy elsewhere is slow, and no error */
	snprintf(name, sizeof name, "perf gossip %llu", (unsigned long long)p->order.serial);
	return tutti_gossip_open(p->job, name, model, 1, &c, out);
}

int tt_perf_open_gossip_of(struct tt_perf *p, const tutti_tensor *model)
{
	tutti_gossip *g;
	int err = open_gossip(p, model, &g);

	if (err)
		return err;
	err = tutti_gossip_publish(g, 1);
	p->gossip = g;
	return err;
}

int tt_perf_open_gossip(struct tt_perf *p)
{
	tutti_tensor model = { NULL, p->bytes / sizeof(float), TUTTI_F32 }, next;
	tutti_gossip *g;
	int err;

	if (p->rank > 1)
		return 0;
	if ((err = open_gossip(p, &model, &g)))
		return err;
	for (int i = 0; i < BUFFERS && !err; i++) { /* an iteration finds a model in each, as a step would leave it */
		if (!(err = tutti_gossip_model(g, NULL, &next)))
			tt_perf_fill_numbers(p, TUTTI_F32, next.data, p->bytes, p->rank);
		err = err ? err : tutti_gossip_publish(g, 1);
	}
	p->gossip = g;
	return err;
}

int tt_perf_gossip(struct tt_perf *p)
{
	tutti_gossip_result r;
	int err = tutti_gossip_publish(p->gossip, 1);

	if (err || (err = tutti_gossip_mix(p->gossip, 1, &r)))
		return err;
	return r.peer == 1 ? 0 : tt_fail(-ENODATA, "%s", r.why);
}

/* What rank 0 has after one iteration; NULL: an error. */
const void *tt_perf_averaged(const struct tt_perf *p)
{
	tutti_tensor next = { NULL, 0, TUTTI_F32 };

	if (p->order.baseline)
		return p->shared.part ? tt_perf_local_of(p, 0) : p->open;
	return tutti_gossip_model(p->gossip, NULL, &next) ? NULL : next.data;
}

static int average(const struct tt_perf *p, void *x, const void *y)
{
	if (!p->rank)
		tt_blend(x, 0.5, x, 0.5, y, p->bytes / sizeof(float), TUTTI_F32);
	return 0;
}

int tt_perf_raw_gossip(struct tt_perf *p)
{
	int err = tt_perf_raw_get(p);

	return err ? err : average(p, p->open, p->local);
}

int tt_perf_shared_gossip(struct tt_perf *p) { return average(p, tt_perf_local_of(p, 0), tt_perf_open_of(p, 1)); }
