/* perf_memory.c - `tutti perf reduce` and `copy`: the kernels in memory that nobody else uses
 *
 * Each kernel has a shape: how many vectors it reads, how many it writes, and whether those it writes are among the first.
 * Bytes are counted as STREAM does: each vector that is read or written once, and nothing for what a cache does beyond that.
 */
#include "perf.h"
#include "runtime.h"
#include <stdio.h>
#include <string.h>

static const double part = 0.5; /* exact for the numbers of the check, in each type */

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
	tt_reduce_many(&(struct tt_many){ from, p->vectors + first, p->options.inputs, outputs, stream }, count_of(p), p->options.type,
	               p->options.rule);
}

/* As tt_reduce_to and tt_blend choose by themselves. */
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

static void run_elastic(struct tt_perf *p) { tt_elastic(p->vectors[0], p->vectors[1], part, count_of(p), p->options.type); }

static void run_memcpy(struct tt_perf *p) { memcpy(p->vectors[1], p->vectors[0], p->bytes); }

static void run_plain(struct tt_perf *p) { tt_copy_by(TT_COPY_PLAIN, p->vectors[1], p->vectors[0], p->bytes); }
static void run_string(struct tt_perf *p) { tt_copy_by(TT_COPY_STRING, p->vectors[1], p->vectors[0], p->bytes); }
static void run_stream(struct tt_perf *p) { tt_copy_by(TT_COPY_STREAM, p->vectors[1], p->vectors[0], p->bytes); }
static void run_chosen(struct tt_perf *p) { tt_copy(&p->copier, p->vectors[1], p->vectors[0], p->bytes); }

/* reads 0: as many as --inputs says; writes 0: into all of these. */
static const struct tt_perf_kernel kernels[] = {
	{ "reduce", "pair", "a = a op b", 2, 1, true, false, run_pair, false },
	{ "reduce", "into", "c = a op b", 2, 1, false, false, run_into, false },
	{ "reduce", "many", "one vector = all inputs combined", 0, 1, false, false, run_many, false },
	{ "reduce", "all", "all inputs = all inputs combined", 0, 0, true, false, run_all, false },
	{ "reduce", "all-stream", "the same, stored past the caches, as the limit", 0, 0, true, false, run_all_stream, true },
	{ "reduce", "blend", "a = (1 - w) a + w b", 2, 1, true, true, run_blend, false },
	{ "reduce", "blend-into", "c = (1 - w) a + w b", 2, 1, false, true, run_blend_into, false },
	{ "reduce", "elastic", "d = w (a - b), a = a - d, b = b + d", 2, 2, true, true, run_elastic, false },
	{ "copy", "memcpy", "the C library's", 1, 1, false, false, run_memcpy, false },
	{ "copy", "plain", "vectors, loaded and stored as usual", 1, 1, false, false, run_plain, false },
	{ "copy", "string", "rep movsb", 1, 1, false, false, run_string, false },
	{ "copy", "stream", "stores past the caches", 1, 1, false, false, run_stream, false },
	{ "copy", "chosen", "as shared memory is copied: whichever of the three is best now", 1, 1, false, false, run_chosen, false },
	{ .name = NULL },
};

const struct tt_perf_kernel *tt_perf_kernel_of(const char *test, int i)
{
	for (const struct tt_perf_kernel *k = kernels; k->name; k++)
		if (!strcmp(k->test, test) && i-- == 0)
			return k;
	return NULL;
}

int tt_perf_reads(const struct tt_perf *p) { return p->kernel->reads ? p->kernel->reads : p->options.inputs; }

int tt_perf_writes(const struct tt_perf *p) { return p->kernel->writes ? p->kernel->writes : p->options.inputs; }

int tt_perf_open_memory(struct tt_perf *p)
{
	int n = p->options.inputs + 1, err = 0;

	for (int i = 0; i < n && !err; i++)
		err = tutti_alloc(p->job, p->most, -1, &p->vectors[i]);
	return err;
}

void tt_perf_close_memory(struct tt_perf *p)
{
	for (int i = 0; i < TT_PERF_VECTORS; i++)
		if (p->vectors[i])
			tutti_free(p->job, p->vectors[i]);
}

int tt_perf_run_kernel(struct tt_perf *p)
{
	p->kernel->run(p);
	return 0;
}
