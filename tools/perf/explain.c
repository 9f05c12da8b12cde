/* explain.c - the output of --explain: the transport and the settings */
#include "collective/collective.h"
#include "kernel/kernel.h"
#include "tools/perf/perf.h"
#include <stdio.h>

double tt_perf_silence(const struct tt_perf *p) { return (double)p->job->job->silence * 1e-9; }

/* The algorithm, the chunk, the measurements behind the choice, and the prediction. */
static void explain_algorithm(const struct tt_perf *p, const struct tt_perf_row *row, FILE *to)
{
	char text[400];

	if (p->test->collective && !tt_allreduce_explain(p->job, row->bytes, p->options.type, p->options.rule, text,
	                                                 sizeof text))
		fprintf(to, "  algorithm: %s\n", text);
}

void tt_perf_explain(const struct tt_perf *p, const struct tt_perf_row *row)
{
	FILE *to = p->options.json ? stderr : stdout; /* stdout has only JSON objects */
	char text[100] = "";

	if (p->test->local) {
		if (p->updater)
			tt_perf_explain_update(p, text, sizeof text);
		if (strcmp(p->test->name, "copy"))
			fprintf(to, "  kernels: %s%s%s\n", tt_reduce_use(-1), *text ? "; " : "", text);
		else if (!strcmp(p->kernel->name, "chosen"))
			fprintf(to, "  chosen for this size: %s\n", tt_copy_name[tt_copy_way(&p->copier, row->bytes)]);
		return;
	}
	fprintf(to, "  wire: %s; %d ranks, %d of them on this host, %s\n", p->transport, p->size,
	        tutti_local_size(p->job),
	        p->job->job->place.share.cores ? "each pinned to a core"
	        : p->crowded                   ? "fewer cores than ranks: not pinned"
	                                       : "not pinned");
	fprintf(to, "  waiting: TUTTI_SPIN=%s\n", tt_setting(&p->job->job->settings, TT_SPIN));
	explain_algorithm(p, row, to);
}
