/* options.c - the command line of `tutti sim` */
#include "tools/sim/sim.h"
#include <stdio.h>

enum { RANKS_MOST = 100000, ROUNDS_MOST = 10000000 };

static int print_help(void)
{
	printf("Usage: tutti sim METHOD [OPTION ...]\n"
	       "Averages a model on many simulated ranks, in virtual time: the library itself runs, on a simulated "
	       "network.\nPrints lines of CSV. The same command line prints the same bytes.\n\n");
	for (const struct tt_sim_method *m = tt_sim_methods; m->name; m++)
		printf("  %-12s %s\n", m->name, m->sentence);
	printf("\n  -n, --ranks N         ranks; 16 by default\n"
	       "  -r, --rounds N        rounds: a rank computes for a step, then averages; 100 by default\n"
	       "  -s, --bytes SIZE      the model, of f64: 8, 4K, 1M; 4K by default\n"
	       "      --step TIME       what a rank computes for, 10ms by default\n"
	       "      --straggler X     one rank in ten takes X times as long; 1 by default\n"
	       "      --latency TIME    of each message; 50us by default\n"
	       "      --bandwidth RATE  bytes a second of each rank's link, out and in; 10G by default\n"
	       "      --loss P          the part of all messages that is lost and comes 200 ms later; 0 by default\n"
	       "      --churn P         the part of all ranks that die and come again, at random times; 0 by default\n"
	       "      --seed N          of the model at the start and of all chance; 1 by default\n");
	printf("      --graph GRAPH     gossip: who averages with whom; exponential by default\n");
	for (const struct tt_sim_graph *g = tt_sim_graphs; g->name; g++)
		printf("                          %-12s %s\n", g->name, g->sentence);
	printf("      --way WAY         gossip: pull (by default), push or push-sum\n"
	       "      --factor F        gossip that pulls: what the peer has in the average; 0.5 by default\n"
	       "      --matrix          gossip: print the graph's mixing matrix instead\n"
	       "  -p, --plot FILE.svg   draw consensus distance, staleness and bytes against time, with gnuplot\n"
	       "  -h, --help            this text\n\n"
	       "For example:\n"
	       "  tutti sim gossip --ranks 1000 --churn 0.1 --straggler 3 --plot gossip.svg\n"
	       "  tutti sim allreduce --ranks 100 --bytes 1M --straggler 3\n");
	return 0;
}

enum { LONG_STEP = 256, LONG_STRAGGLER, LONG_LATENCY, LONG_BANDWIDTH, LONG_LOSS, LONG_CHURN, LONG_SEED, LONG_GRAPH,
       LONG_MATRIX, LONG_WAY, LONG_FACTOR };
static const struct option known[] = {
	{ "ranks", required_argument, NULL, 'n' }, { "rounds", required_argument, NULL, 'r' },
	{ "bytes", required_argument, NULL, 's' }, { "step", required_argument, NULL, LONG_STEP },
	{ "straggler", required_argument, NULL, LONG_STRAGGLER },
	{ "latency", required_argument, NULL, LONG_LATENCY },
	{ "bandwidth", required_argument, NULL, LONG_BANDWIDTH }, { "loss", required_argument, NULL, LONG_LOSS },
	{ "churn", required_argument, NULL, LONG_CHURN }, { "seed", required_argument, NULL, LONG_SEED },
	{ "graph", required_argument, NULL, LONG_GRAPH }, { "matrix", no_argument, NULL, LONG_MATRIX },
	{ "way", required_argument, NULL, LONG_WAY }, { "factor", required_argument, NULL, LONG_FACTOR },
	{ "plot", required_argument, NULL, 'p' }, { "help", no_argument, NULL, 'h' }, { 0 },
};

static const struct way {
	const char *name;
	tutti_gossip_way way;
} ways[] = { { "pull", TUTTI_GOSSIP_PULL }, { "push", TUTTI_GOSSIP_PUSH }, { "push-sum", TUTTI_GOSSIP_PUSH_SUM },
             { 0 } };

static int take_method(struct tt_sim_options *o, const char *word)
{
	o->method = tt_tool_find("sim", "method", word, tt_sim_methods, sizeof *tt_sim_methods);
	return o->method ? 0 : TT_TOOL_REFUSED;
}

static int take_graph(struct tt_sim_options *o, const char *word)
{
	o->graph = tt_tool_find("sim", "graph", word, tt_sim_graphs, sizeof *tt_sim_graphs);
	return o->graph ? 0 : TT_TOOL_REFUSED;
}

static int take_way(struct tt_sim_options *o, const char *word)
{
	const struct way *found = tt_tool_find("sim", "way", word, ways, sizeof *ways);

	if (found)
		o->way = found->way;
	return found ? 0 : TT_TOOL_REFUSED;
}

static int take_bytes(struct tt_sim_options *o, const char *text)
{
	if (tt_tool_read_size(text, strlen(text), &o->bytes) && o->bytes % sizeof(double) == 0)
		return 0;
	return tt_tool_refuse("sim", "--bytes %s: it is a number of bytes like 8, 4K or 1M, a multiple of 8", text);
}

static int take_option(struct tt_sim_options *o, int c, char **argv)
{
	long seed = 0;
	int err;

	switch (c) {
	case 'n': return tt_tool_take_int("sim", "--ranks", optarg, 2, RANKS_MOST, &o->ranks);
	case 'r': return tt_tool_take_int("sim", "--rounds", optarg, 1, ROUNDS_MOST, &o->rounds);
	case 's': return take_bytes(o, optarg);
	case LONG_STEP: return tt_tool_take_time("sim", "--step", optarg, &o->step);
	case LONG_STRAGGLER: return tt_tool_take_number("sim", "--straggler", optarg, 1, 1000, &o->straggler);
	case LONG_LATENCY: return tt_tool_take_time("sim", "--latency", optarg, &o->latency);
	case LONG_BANDWIDTH: return tt_tool_take_rate("sim", "--bandwidth", optarg, &o->bandwidth);
	case LONG_LOSS: return tt_tool_take_number("sim", "--loss", optarg, 0, 0.5, &o->loss);
	case LONG_CHURN: return tt_tool_take_number("sim", "--churn", optarg, 0, 0.5, &o->churn);
	case LONG_SEED:
		err = tt_tool_take_whole("sim", "--seed", optarg, 0, INT64_MAX, &seed);
		o->seed = (uint64_t)seed;
		return err;
	case LONG_GRAPH: o->of_gossip = "--graph"; return take_graph(o, optarg);
	case LONG_WAY: o->of_gossip = "--way"; return take_way(o, optarg);
	case LONG_FACTOR:
		o->of_gossip = "--factor";
		return tt_tool_take_number("sim", "--factor", optarg, 0.001, 1, &o->factor);
	case LONG_MATRIX:
		o->of_gossip = "--matrix";
		o->matrix = true;
		return 0;
	case 'p': o->plot = optarg; return tt_tool_can_plot("sim", optarg);
	default: return tt_tool_bad_option("sim", argv, known, c);
	}
}

static int check_together(struct tt_sim_options *o)
{
	if (o->of_gossip && strcmp(o->method->name, "gossip"))
		return tt_tool_refuse("sim", "%s is for gossip", o->of_gossip);
	if (o->matrix && o->plot)
		return tt_tool_refuse("sim", "--matrix runs nothing that --plot could draw");
	if (o->matrix && !o->graph->peer)
		return tt_tool_refuse("sim", "--matrix: %s goes by chance, and has no matrix", o->graph->name);
	if ((o->matrix || o->factor) && o->way != TUTTI_GOSSIP_PULL)
		return tt_tool_refuse("sim", "%s is for gossip that pulls", o->matrix ? "--matrix" : "--factor");
	if (o->graph->period && !o->graph->period(o->ranks))
		return tt_tool_refuse("sim", "--graph %s: %d ranks make no rectangle", o->graph->name, o->ranks);
	if (!o->factor)
		o->factor = 0.5;
	return 0;
}

int tt_sim_read_options(int argc, char **argv, struct tt_sim_options *o)
{
	int c, err;

	*o = (struct tt_sim_options){ .ranks = 16, .rounds = 100, .bytes = 4096, .step = 10 * TT_MS, .straggler = 1,
		                      .graph = tt_sim_graphs, .latency = 50000, .bandwidth = 10000000000,
		                      .seed = 1 };
	while ((c = getopt_long(argc, argv, ":n:r:s:p:h", known, NULL)) != -1) {
		if (c == 'h')
			return print_help();
		if ((err = take_option(o, c, argv)))
			return err;
	}
	if (optind >= argc)
		return tt_tool_refuse("sim", "a method is missing; see `tutti sim --help`");
	if ((err = take_method(o, argv[optind])))
		return err;
	if (optind + 1 < argc)
		return tt_tool_refuse("sim", "it takes one method (%s is one too many); see `tutti sim --help`",
		                      argv[optind + 1]);
	err = check_together(o);
	return err ? err : -1;
}
