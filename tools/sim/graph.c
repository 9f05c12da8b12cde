/* graph.c - who mixes with whom in which round, where that is not left to chance */
#include "tools/sim/sim.h"
#include <stdlib.h>

static int hops(int ranks) /* 1, 2, 4, ... below ranks */
{
	int n = 0;

	while (1 << n < ranks)
		n++;
	return n;
}

static int exponential_peer(int rank, int ranks, int round) { return (rank + (1 << round % hops(ranks))) % ranks; }

static int ring_peer(int rank, int ranks, int round) { return (rank + (round % 2 ? ranks - 1 : 1)) % ranks; }

static int ring_period(int ranks) { return (void)ranks, 2; }

static int torus_width(int ranks) /* of the most square one; 1: there is none */
{
	int width = 1;

	for (int i = 2; i * i <= ranks; i++)
		if (ranks % i == 0)
			width = i;
	return width;
}

/* Right, left, below, above. */
static int torus_peer(int rank, int ranks, int round)
{
	int width = torus_width(ranks), column = rank % width, row = rank - column;

	if (round % 4 < 2)
		return row + ring_peer(column, width, round);
	return (row + (round % 2 ? ranks - width : width)) % ranks + column;
}

static int torus_period(int ranks) { return torus_width(ranks) > 1 ? 4 : 0; }

static int complete_peer(int rank, int ranks, int round) { return (rank + 1 + round % (ranks - 1)) % ranks; }

static int complete_period(int ranks) { return ranks - 1; }

const struct tt_sim_graph tt_sim_graphs[] = {
	{ "exponential", "rank + 1, 2, 4, ... in turn", exponential_peer, hops,
	  TUTTI_CHOICE_EXPONENTIAL },
	{ "ring", "the next rank and the one before, in turn", ring_peer, ring_period, TUTTI_CHOICE_RING },
	{ "torus", "right, left, below and above, in turn", torus_peer, torus_period,
	  TUTTI_CHOICE_OWN },
	{ "uniform", "any rank, by chance", NULL, NULL, TUTTI_CHOICE_UNIFORM },
	{ "complete", "all ranks, in turn", complete_peer, complete_period, TUTTI_CHOICE_OWN },
	{ .name = NULL },
};

static void mix_rows(const struct tt_sim_options *o, int round, double *to, const double *from)
{
	int n = o->ranks;

	for (int i = 0; i < n; i++) {
		int peer = o->graph->peer(i, n, round);
		for (int k = 0; k < n; k++)
			to[(size_t)i * n + k] = (1 - o->factor) * from[(size_t)i * n + k] +
			                        o->factor * from[(size_t)peer * n + k];
	}
}

double *tt_sim_matrix(const struct tt_sim_options *o)
{
	int n = o->ranks;
	double *now = calloc((size_t)n * n, sizeof *now), *next = calloc((size_t)n * n, sizeof *next);

	for (int i = 0; now && next && i < n; i++)
		now[(size_t)i * n + i] = 1;
	for (int k = 0; now && next && k < o->graph->period(n); k++) {
		double *mixed = next;
		mix_rows(o, k, mixed, now);
		next = now;
		now = mixed;
	}
	if (!next) {
		free(now);
		return NULL;
	}
	free(next);
	return now;
}
