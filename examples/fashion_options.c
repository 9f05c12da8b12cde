/* fashion_options.c - the command line */
#include "fashion.h"
#include "options.h"
#include <math.h>
#include <stdio.h>

#define AT(member) offsetof(struct options, member)

static const struct option known[] = {
	{ "algorithm", "NAME", TEXT, AT(algorithm), 0, 0,
	  "how the ranks keep their models together, see below (allreduce)" },
	{ "staleness", "N", WHOLE, AT(staleness), 0, 10000,
	  "ps: how many steps a rank may be ahead of the slowest (any number)" },
	{ "every", "N", WHOLE, AT(every), 1, 100000,
	  "ea, easgd, asgd, diloco, gossip: steps between two exchanges (10; asgd 2, diloco 20, gossip 4)" },
	{ "alpha", "X", REAL, AT(alpha), 0, 1, "ea, easgd: how far an exchange moves a model (0.9 / ranks)" },
	{ "lack", "N", WHOLE, AT(lack), 0, 9,
	  "classes that each rank's part of the data lacks, others on each rank (0)" },
	{ "epochs", "N", WHOLE, AT(epochs), 1, 10000, "passes over the training set (10)" },
	{ "batch", "N", WHOLE, AT(batch), 1, 60000, "samples per step, of all ranks together (128)" },
	{ "rate", "X", REAL, AT(rate), 0, 1000, "learning rate, falling to 0 in a straight line (0.04)" },
	{ "momentum", "X", SHARE, AT(momentum), 0, 1, "of the gradients, 0: none (0.9)" },
	{ "seed", "N", SEED, AT(seed), 0, 0, "of the first weights and of the shuffles (1)" },
	{ "data", "DIR", TEXT, AT(data), 0, 0, "the idx files (/usr/share/datasets/fashion-mnist)" },
	{ "plot", "FILE", TEXT, AT(plot), 0, 0, "a PNG of the loss curve, or none (fashion.png)" },
	{ "save", "FILE", TEXT, AT(save), 0, 0, "after each epoch; after SIGTERM too, then the exit status is 75" },
	{ "load", "FILE", TEXT, AT(load), 0, 0, "goes on where FILE was saved, with any number of ranks" },
	{ "keep-going", NULL, FLAG, AT(keep_going), 0, 0,
	  "once training has begun, most of the ranks go on when the others die (tutti run --keep-going)" },
	{ "json", NULL, FLAG, AT(json), 0, 0, "one object per epoch on stdout, the rest on stderr" },
	{ "help", NULL, FLAG, AT(help), 0, 0, "this text" },
	{ .name = NULL },
};

static const struct options defaults = {
	.algorithm = "allreduce", .staleness = -1, .alpha = NAN,
	.data = "/usr/share/datasets/fashion-mnist", .plot = "fashion.png",
	.epochs = 10, .batch = 128, .rate = 0.04, .momentum = 0.9, .seed = 1,
};

void show_help(const char *algorithms)
{
	puts("fashion: trains a small network on Fashion-MNIST, on every rank of a job at once.\n"
	     "  tutti run -n 4 fashion [OPTION...]     or alone: fashion [OPTION...]");
	options_show(known);
	printf("Algorithms: %s.\n"
	       "  allreduce  gradients are summed over all ranks, each step\n"
	       "  ps         parameter servers: gradients are pushed, values pulled, each step\n"
	       "  ea         elastic averaging, all ranks at once (AllReduceEA)\n"
	       "  easgd      elastic averaging with a center on servers, each rank when it likes\n"
	       "  asgd       a center on servers takes what each rank has learned since\n"
	       "  diloco     an outer optimizer takes the mean of what all have learned since\n"
	       "  gossip     each rank averages with another one, each 4 steps\n"
	       "  alone      nobody talks: what each rank learns by itself, for comparison\n"
	       "JSON keys: epoch, loss (the epoch's mean, in training), accuracy (of the test set, 0 to 1), seconds "
	       "(this epoch).\n",
	       algorithms);
}

enum status read_options(int argc, char **argv, struct options *options)
{
	*options = defaults;
	const char *wrong = options_read(known, argc, argv, options);
	return wrong ? complain(USAGE, "%s", wrong) : OK;
}
