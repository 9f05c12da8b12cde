/* word2vec_options.c - the command line */
#include "word2vec.h"
#include "options.h"
#include <stdio.h>

#define AT(member) offsetof(struct options, member)

static const struct option known[] = {
	{ "text", "PATH", TEXT, AT(text), 0, 0,
	  "a file or folder to learn from (manual pages and licences of this machine)" },
	{ "megabytes", "N", WHOLE, AT(megabytes), 1, 1024, "of it at most, unpacked (8)" },
	{ "least", "N", WHOLE, AT(least), 1, 1e6, "words that occur less often are left out (5)" },
	{ "dim", "N", WHOLE, AT(dim), 1, 4096, "numbers to a word (64)" },
	{ "window", "N", WHOLE, AT(window), 1, 100, "how far apart two words of a pair are at most (5)" },
	{ "batch", "N", WHOLE, AT(batch), 1, 1e6, "words per step, of each rank (32)" },
	{ "epochs", "N", WHOLE, AT(epochs), 1, 1e4, "passes over the text (2)" },
	{ "rate", "X", REAL, AT(rate), 0, 100, "learning rate, falling to a thousandth in a straight line (0.05)" },
	{ "seed", "N", SEED, AT(seed), 0, 0, "of the first values and of all that is drawn (1)" },
	{ "json", NULL, FLAG, AT(json), 0, 0, "one object per epoch on stdout, the rest on stderr" },
	{ "help", NULL, FLAG, AT(help), 0, 0, "this text" },
	{ .name = NULL },
};

static const struct options defaults = {
	.megabytes = 8, .least = 5, .dim = 64, .window = 5, .batch = 32, .epochs = 2, .rate = 0.05, .seed = 1
};

void show_help(void)
{
	puts("word2vec: learns which words of a text are alike. Their rows are in two tables, of which a step touches "
	     "few.\n"
	     "  tutti run -n 4 word2vec [OPTION...]     or alone: word2vec [OPTION...]");
	options_show(known);
	puts("JSON keys: epoch, loss (of a pair, mean of the epoch), words_per_second, untouched (share of the rows "
	     "that a step neither pulls nor\n"
	     "pushes, its mean), bytes (moved between all ranks in this epoch; rows that lie in memory of the same "
	     "host are read there), seconds.");
}

int read_options(int argc, char **argv, struct options *options)
{
	*options = defaults;
	const char *wrong = options_read(known, argc, argv, options);
	return wrong ? complain("%s", wrong), USAGE : 0;
}
