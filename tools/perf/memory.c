/* memory.c - `tutti perf reduce`, `copy` and `update`: kernels in private memory; and the list of all kernels
 *
 * A kernel's shape is the number of vectors it reads, of those it writes, and of those of the latter that are not among
 * the first of the former. Bytes are counted as in STREAM: once for each vector read or written. */
#include "kernel/kernel.h"
#include "tools/perf/perf.h"
#include <stdio.h>
#include <string.h>

static const double part = 0.5; /* exact in each type for the numbers of the check */

static size_t count_of(const struct tt_perf *p) { return p->bytes / tt_perf_type_size(p->options.type); }

static void run_pair(struct tt_perf *p)
{
	tt_reduce(p->vectors[0], p->vectors[1], count_of(p), p->options.type, p->options.rule);
}

static void run_into(struct tt_perf *p)
{
	tt_reduce_to(p->vectors[2], p->vectors[0], p->vectors[1], count_of(p), p->options.type, p->options.rule);
}

static void reduce_many(struct tt_perf *p, int first, int outputs, bool stream)
{
	const void *from[TT_PERF_VECTORS];

	for (int k = 0; k < p->options.inputs; k++)
		from[k] = p->vectors[k];
	tt_reduce_many(&(struct tt_many){ from, p->vectors + first, p->options.inputs, outputs, stream }, count_of(p),
	               p->options.type, p->options.rule);
}

/* As tt_reduce_to and tt_blend choose. */
static void run_many(struct tt_perf *p) { reduce_many(p, p->options.inputs, 1, p->bytes >= TT_STREAM_FROM); }
static void run_all(struct tt_perf *p) { reduce_many(p, 0, p->options.inputs, false); }
static void run_all_stream(struct tt_perf *p) { reduce_many(p, 0, p->options.inputs, true); }

static void run_blend(struct tt_perf *p)
{
	tt_blend(p->vectors[0], 1 - part, p->vectors[0], part, p->vectors[1], count_of(p), p->options.type);
}

static void run_blend_into(struct tt_perf *p)
{
	tt_blend(p->vectors[2], 1 - part, p->vectors[0], part, p->vectors[1], count_of(p), p->options.type);
}

static void run_memcpy(struct tt_perf *p) { memcpy(p->vectors[1], p->vectors[0], p->bytes); }

static void run_plain(struct tt_perf *p) { tt_copy_by(TT_COPY_PLAIN, p->vectors[1], p->vectors[0], p->bytes); }
static void run_string(struct tt_perf *p) { tt_copy_by(TT_COPY_STRING, p->vectors[1], p->vectors[0], p->bytes); }
static void run_stream(struct tt_perf *p) { tt_copy_by(TT_COPY_STREAM, p->vectors[1], p->vectors[0], p->bytes); }
static void run_chosen(struct tt_perf *p) { tt_copy(&p->copier, p->vectors[1], p->vectors[0], p->bytes); }

/* Reads w, d and state; writes w and state. */
#define UPDATE(name, sentence, scaled, rule) \
	{ "update", name, sentence, 2, 1, 0, scaled, tt_perf_run_update, false, rule, 0 }

/* reads 0: --inputs; writes 0: all of these. */
static const struct tt_perf_kernel kernels[] = {
	{ "reduce", "pair", "a = a op b", 2, 1, 0, false, run_pair, false, 0, 0 },
	{ "reduce", "into", "c = a op b", 2, 1, 1, false, run_into, false, 0, 0 },
	{ "reduce", "many", "one vector = all inputs combined", 0, 1, 1, false, run_many, false, 0, 0 },
	{ "reduce", "all", "all inputs = all inputs combined", 0, 0, 0, false, run_all, false, 0, 0 },
	{ "reduce", "all-stream", "the same, stored past the caches, as the baseline", 0, 0, 0, false, run_all_stream,
	  true, 0, 0 },
	{ "reduce", "blend", "a = (1 - w) a + w b", 2, 1, 0, true, run_blend, false, 0, 0 },
	{ "reduce", "blend-into", "c = (1 - w) a + w b", 2, 1, 1, true, run_blend_into, false, 0, 0 },
	{ "copy", "memcpy", "the C library's", 1, 1, 1, false, run_memcpy, false, 0, 0 },
	{ "copy", "plain", "vectors, loaded and stored as usual", 1, 1, 1, false, run_plain, false, 0, 0 },
	{ "copy", "string", "rep movsb", 1, 1, 1, false, run_string, false, 0, 0 },
	{ "copy", "stream", "stores past the caches", 1, 1, 1, false, run_stream, false, 0, 0 },
	{ "copy", "chosen", "as shared memory is copied: whichever of the three is best now", 1, 1, 1, false,
	  run_chosen, false, 0, 0 },
	UPDATE("add", "w += d", false, TUTTI_UPDATE_ADD),
	{ "update", "assign", "w = d", 1, 1, 1, false, tt_perf_run_update, false, TUTTI_UPDATE_ASSIGN, 0 },
	UPDATE("sgd", "w -= lr d", true, TUTTI_UPDATE_SGD),
	UPDATE("momentum", "Polyak's", true, TUTTI_UPDATE_MOMENTUM),
	UPDATE("smoothed", "Multiverso's momentum", true, TUTTI_UPDATE_SMOOTHED),
	UPDATE("nesterov", "Nesterov's momentum", true, TUTTI_UPDATE_NESTEROV),
	UPDATE("adagrad", "AdaGrad", true, TUTTI_UPDATE_ADAGRAD),
	UPDATE("rmsprop", "RMSProp", true, TUTTI_UPDATE_RMSPROP),
	UPDATE("adam", "Adam", true, TUTTI_UPDATE_ADAM),
	UPDATE("adamw", "Adam, the weights decay apart from it", true, TUTTI_UPDATE_ADAMW),
	UPDATE("dcasgd", "SGD that makes up for the delay", true, TUTTI_UPDATE_DCASGD),
	UPDATE("dcasgda", "the same, adaptive", true, TUTTI_UPDATE_DCASGDA),
	UPDATE("ftrl", "FTRL-proximal", true, TUTTI_UPDATE_FTRL),
	{ "update", "elastic", "e = alpha (d - w), w += e, d = e, which goes back", 2, 2, 0, true, tt_perf_run_update,
	  false, TUTTI_UPDATE_ELASTIC, 0 },
	{ .test = "table", .name = "push", .sentence = "one push of the whole table", .calls = TT_PERF_PUSH },
	{ .test = "table", .name = "pull", .sentence = "one pull", .calls = TT_PERF_PULL },
	{ .test = "table", .name = "push-pull", .sentence = "both in one call",
	  .calls = TT_PERF_PUSH | TT_PERF_PULL | TT_PERF_AT_ONCE },
	{ .test = "table", .name = "push-then-pull", .sentence = "one call after the other",
	  .calls = TT_PERF_PUSH | TT_PERF_PULL },
	{ .test = "table", .name = "elastic", .sentence = "a worker's exchange with a center; not for integers",
	  .scaled = true, .calls = TT_PERF_PUSH | TT_PERF_PULL | TT_PERF_AT_ONCE | TT_PERF_CENTER },
	{ .test = "table", .name = "push-rows", .sentence = "a push of a list of rows",
	  .calls = TT_PERF_PUSH | TT_PERF_ROWS },
	{ .test = "table", .name = "pull-rows", .sentence = "a pull of them", .calls = TT_PERF_PULL | TT_PERF_ROWS },
	{ .test = "table", .name = "pull-beside", .sentence = "a pull while another worker pushes 256 MiB",
	  .calls = TT_PERF_PULL | TT_PERF_BESIDE },
	{ .test = "table", .name = "snapshot", .sentence = "a snapshot while another worker pushes",
	  .calls = TT_PERF_PULL | TT_PERF_BESIDE | TT_PERF_SNAPSHOT },
	{ .test = "publish", .name = "version", .sentence = "a publish of a version: one copy",
	  .calls = TT_PERF_VERSION },
	{ .test = "publish", .name = "commit", .sentence = "begin and commit in place", .calls = TT_PERF_COMMIT },
	{ .test = "publish", .name = "fetch", .sentence = "a fetch of what rank 1 has published",
	  .calls = TT_PERF_FETCH },
	{ .test = "publish", .name = "readers", .sentence = "a publish while all other ranks fetch; processor time",
	  .calls = TT_PERF_VERSION | TT_PERF_READERS },
	{ .test = "publish", .name = "delta", .sentence = "a commit in place that keeps a delta",
	  .calls = TT_PERF_DELTA },
	{ .test = "gpu", .name = "copy", .sentence = "the driver's copy, the ceiling of what follows",
	  .calls = TT_PERF_GPU_COPY },
	{ .test = "gpu", .name = "blend", .sentence = "a = (a + b) / 2", .scaled = true, .calls = TT_PERF_GPU_BLEND },
	{ .test = "gpu", .name = "scale", .sentence = "a = a / n", .calls = TT_PERF_GPU_SCALE },
	{ .test = "gpu", .name = "down", .sentence = "a copy to pinned host memory", .calls = TT_PERF_GPU_DOWN },
	{ .test = "gpu", .name = "up", .sentence = "a copy from there", .calls = TT_PERF_GPU_UP },
	{ .test = "gpu", .name = "put", .sentence = "a put to rank 1's GPU", .calls = TT_PERF_GPU_PUT },
	{ .test = "gpu", .name = "get", .sentence = "a get from there", .calls = TT_PERF_GPU_GET },
	{ .test = "gpu", .name = "fetch", .sentence = "the same, beside a copy within the GPU",
	  .calls = TT_PERF_GPU_FETCH },
	{ .test = "gpu", .name = "gossip", .sentence = "publishes, fetches rank 1's model, and averages it",
	  .scaled = true, .calls = TT_PERF_GPU_GOSSIP },
	{ .name = NULL },
};

const struct tt_perf_kernel *tt_perf_kernel_of(const char *test, int i)
{
	for (const struct tt_perf_kernel *k = kernels; k->name; k++)
		if (!strcmp(k->test, test) && i-- == 0)
			return k;
	return NULL;
}

int tt_perf_reads(const struct tt_perf *p)
{
	return (p->kernel->reads ? p->kernel->reads : p->options.inputs) + tt_perf_states(p);
}

int tt_perf_writes(const struct tt_perf *p)
{
	return (p->kernel->writes ? p->kernel->writes : p->options.inputs) + tt_perf_states(p);
}

int tt_perf_vectors(const struct tt_perf *p) { return tt_perf_reads(p) + p->kernel->apart; }

void *tt_perf_written(const struct tt_perf *p, int k)
{
	int in_place = tt_perf_writes(p) - p->kernel->apart;

	return p->vectors[k < in_place ? k : tt_perf_reads(p) + k - in_place];
}

int tt_perf_open_memory(struct tt_perf *p)
{
	int n = p->options.inputs + 1, err = 0;

	for (int i = 0; i < n && !err; i++)
		err = tutti_alloc(p->job, p->most, -1, &p->memory[i]);
	return err;
}

void tt_perf_close_memory(struct tt_perf *p)
{
	tt_updater_close(p->updater);
	for (int i = 0; i < TT_PERF_VECTORS; i++)
		if (p->memory[i])
			tutti_free(p->job, p->memory[i]);
}

int tt_perf_take_kernel(struct tt_perf *p)
{
	p->kernel = tt_perf_kernel_of(p->test->name, (int)p->order.kernel);
	p->options.type = (tutti_type)p->order.type;
	if (p->test->table)
		return tt_perf_open_table(p);
	if (p->test->gpu || p->test->publishes)
		return 0;
	if (p->kernel->run == tt_perf_run_update)
		return tt_perf_open_update(p);
	memcpy(p->vectors, p->memory, sizeof p->vectors);
	return 0;
}

int tt_perf_run_kernel(struct tt_perf *p)
{
	p->kernel->run(p);
	return 0;
}
