/* perf_explain.c - what --explain says: which wire, which settings */
#include "perf.h"
#include "runtime.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* As tutti_join finds it: environment, file, default. */
static const char *setting(enum tt_setting s, char *room, size_t size)
{
	struct tt_settings all;
	struct tt_node *nodes = NULL;
	int count = 0;

	*room = 0;
	if (tt_settings_load(&all))
		return room;
	if (tt_setting(&all, TT_CONFIG))
		(void)tt_config_load(&all, tt_setting(&all, TT_CONFIG), &nodes, &count); /* joining has succeeded, so this does */
	free(nodes);
	if (tt_setting(&all, s))
		snprintf(room, size, "%s", tt_setting(&all, s));
	tt_settings_free(&all);
	return room;
}

double tt_perf_deadline(const struct tt_perf *p) { return (double)p->job->job->deadline * 1e-9; }

const char *tt_perf_transport(const struct tt_perf *p)
{
	static char room[64];

	if (p->test->local)
		return "memory";
	if (p->options.transport)
		return p->options.transport;
	if (!*room) {
		setting(TT_TRANSPORTS, room, sizeof room);
		room[strcspn(room, ",")] = 0;
	}
	return room;
}

/* Which algorithm, which chunk, what was measured for the choice, what it predicts. */
static void explain_algorithm(const struct tt_perf *p, const struct tt_perf_row *row, FILE *to)
{
	char text[400];

	if (p->test->collective && !tt_allreduce_explain(p->job, row->bytes, p->options.type, p->options.rule, text, sizeof text))
		fprintf(to, "  algorithm: %s\n", text);
}

void tt_perf_explain(const struct tt_perf *p, const struct tt_perf_row *row)
{
	FILE *to = p->options.json ? stderr : stdout; /* there are only objects in JSON's way */
	char room[64];

	if (p->test->local) {
		fprintf(to, "  kernels: %s\n", tt_reduce_use(-1));
		return;
	}
	fprintf(to, "  wire: %s; %d ranks, %d of them on this host, %s\n", tt_perf_transport(p), p->size, tutti_local_size(p->job),
	        p->job->job->place.share.cores ? "each pinned to a core" : p->crowded ? "fewer cores than ranks: not pinned" : "not pinned");
	fprintf(to, "  waiting: TUTTI_SPIN=%s\n", setting(TT_SPIN, room, sizeof room));
	explain_algorithm(p, row, to);
}
