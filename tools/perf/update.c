/* update.c - `tutti perf update`: update rules, each a push of a whole vector by the threads of a pool
 *
 * The baseline works on the same vectors: values, state and delta. f32 state of 16-bit values counts as two vectors. */
#include "engine/engine.h"
#include "kernel/kernel.h"
#include "table/table.h"
#include "member/member.h"
#include "tools/perf/perf.h"
#include <stdio.h>
#include <string.h>

enum { W, D }; /* of p->memory */
enum { FEW = 3 };   /* elements, as numbers repeat */

static int open_updater(const struct tt_perf *p, size_t count, struct tt_updater **u)
{
	tutti_updater as = tutti_accumulate();

	as.rule = p->kernel->rule;
	return tt_updater_open(&as, p->options.type, count, 1, u);
}

/* In the order of kernels: w and state, written in place, d, and what `assign` writes, which does not read w. */
static void order_vectors(struct tt_perf *p)
{
	bool reads_w = p->kernel->reads > 1;
	int n = 0;

	if (reads_w)
		p->vectors[n++] = p->memory[W];
	for (int i = 0; i < tt_updater_states(p->updater); i++) {
		struct tt_state s = tt_updater_state(p->updater, i);
		for (size_t at = 0; at < s.bytes; at += p->bytes)
			p->vectors[n++] = (char *)s.at + at;
	}
	p->vectors[n++] = p->memory[D];
	p->vectors[n] = p->memory[W];
}

/* A pool as servers have; it ends with the job. */
static int open_pool(struct tt_perf *p)
{
	struct tt_job *job = p->job->job;
	char helpers[16];
	int err;

	if (p->options.threads < 2)
		return 0;
	snprintf(helpers, sizeof helpers, "%d", p->options.threads - 1);
	tt_lock(job);
	if (!(err = tt_settings_set(&job->settings, TT_POOL, helpers, "--threads")))
		err = tt_pool_open(job);
	tt_unlock(job);
	return err;
}

int tt_perf_open_update(struct tt_perf *p)
{
	int err;

	tt_updater_close(p->updater);
	p->updater = NULL;
	if ((err = open_pool(p)))
		return err;
	if ((err = open_updater(p, p->bytes / tt_perf_type_size(p->options.type), &p->updater)))
		return err;
	order_vectors(p);
	return 0;
}

int tt_perf_states(const struct tt_perf *p)
{
	size_t bytes = 0;

	for (int i = 0; p->updater && i < tt_updater_states(p->updater); i++)
		bytes += tt_updater_state(p->updater, i).bytes;
	return (int)(bytes / p->bytes);
}

/* What a rule gives back comes over the delta, as in a push_pull of one vector. With an alpha of 1 the values of
 * elastic then go round in a circle of six pushes: with others they would come to denormal numbers. */
static void push(const struct tt_perf *p, struct tt_updater *u, size_t count, void *w, void *d)
{
	tutti_update options = tutti_update_defaults();
	struct tt_push one;

	if (p->kernel->rule == TUTTI_UPDATE_ELASTIC)
		options.alpha = 1;
	if (!tt_updater_begin(u, 0, &options, &one)) /* with these options this cannot fail */
		tt_table_spread(p->job->job->pool, &one, tt_perf_type_size(p->options.type), 0, count,
		                &(struct tt_piece){ w, w, d, d });
}

void tt_perf_run_update(struct tt_perf *p)
{
	push(p, p->updater, p->bytes / tt_perf_type_size(p->options.type), p->memory[W], p->memory[D]);
}

/* Does everything repeat the first elements? */
static bool repeats(const void *at, size_t bytes, const void *few, size_t period)
{
	const char *all = at;

	return !memcmp(all, few, tt_min(bytes, period)) &&
	       (bytes <= period || !memcmp(all, all + period, bytes - period));
}

/* A row's first push: all elements must equal those of a push of a few alone. Unit tests check the equations. */
int tt_perf_check_update(const struct tt_perf *p)
{
	size_t few = FEW * tt_perf_type_size(p->options.type);
	uint64_t w[FEW], d[FEW];
	struct tt_updater *u;
	bool right;
	int err = open_updater(p, FEW, &u);

	if (err)
		return err;
	tt_perf_fill_numbers(p, p->options.type, w, few, W);
	tt_perf_fill_numbers(p, p->options.type, d, few, D);
	push(p, u, FEW, w, d);
	right = repeats(p->memory[W], p->bytes, w, few) && repeats(p->memory[D], p->bytes, d, few);
	for (int i = 0; i < tt_updater_states(u); i++) {
		struct tt_state all = tt_updater_state(p->updater, i), s = tt_updater_state(u, i);
		right = right && repeats(all.at, all.bytes, s.at, s.bytes);
	}
	tt_updater_close(u);
	return right ? 0 : tt_fail(1, "an element, or its state, is not what three alone come to");
}

void tt_perf_explain_update(const struct tt_perf *p, char *text, size_t room)
{
	size_t moved = (size_t)(tt_perf_reads(p) + tt_perf_writes(p)) * tt_perf_type_size(p->options.type);
	int n = snprintf(text, room, "%zu bytes an element", moved);

	for (int i = 0; i < tt_updater_states(p->updater); i++)
		n += snprintf(text + n, room - (size_t)n, "%s %s", i ? " and" : "; state",
		              tt_updater_state(p->updater, i).name);
}
