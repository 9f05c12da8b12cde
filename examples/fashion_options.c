/* fashion_options.c - the command line */
#include "fashion.h"
#include "options.h"
#include <stdio.h>

#define AT(member) offsetof(struct options, member)

static const struct option known[] = {
	{ "algorithm", "NAME", TEXT, AT(algorithm), 0, 0, "how the ranks keep their models together (allreduce; ps: parameter servers)" },
	{ "staleness", "N", WHOLE, AT(staleness), 0, 10000, "ps: how many steps a rank may be ahead of the slowest (any number)" },
	{ "epochs", "N", WHOLE, AT(epochs), 1, 10000, "passes over the training set (10)" },
	{ "batch", "N", WHOLE, AT(batch), 1, 60000, "samples per step, of all ranks together (128)" },
	{ "rate", "X", REAL, AT(rate), 0, 1000, "learning rate, falling to 0 in a straight line (0.04)" },
	{ "momentum", "X", SHARE, AT(momentum), 0, 1, "of the gradients, 0: none (0.9)" },
	{ "seed", "N", SEED, AT(seed), 0, 0, "of the first weights and of the shuffles (1)" },
	{ "data", "DIR", TEXT, AT(data), 0, 0, "the idx files (/usr/share/datasets/fashion-mnist)" },
	{ "plot", "FILE", TEXT, AT(plot), 0, 0, "a PNG of the loss curve, or none (fashion.png)" },
	{ "json", NULL, FLAG, AT(json), 0, 0, "one object per epoch on stdout, the rest on stderr" },
	{ "help", NULL, FLAG, AT(help), 0, 0, "this text" },
	{ .name = NULL },
};

static const struct options defaults = {
	.algorithm = "allreduce", .staleness = -1, .data = "/usr/share/datasets/fashion-mnist", .plot = "fashion.png",
	.epochs = 10, .batch = 128, .rate = 0.04, .momentum = 0.9, .seed = 1,
};

void show_help(const char *algorithms)
{
	puts("fashion: trains a small network on Fashion-MNIST, on every rank of a job at once.\n"
	     "  tutti run -n 4 fashion [OPTION...]     or alone: fashion [OPTION...]");
	options_show(known);
	printf("Algorithms: %s.\n"
	       "JSON keys: epoch, loss (the epoch's mean, in training), accuracy (of the test set, 0 to 1), seconds (this epoch).\n",
	       algorithms);
}

enum status read_options(int argc, char **argv, struct options *options)
{
	*options = defaults;
	const char *wrong = options_read(known, argc, argv, options);
	return wrong ? complain(USAGE, "%s", wrong) : OK;
}
