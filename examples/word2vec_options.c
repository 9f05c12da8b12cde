/* word2vec_options.c - the command line, from one table */
#include "word2vec.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum kind { FLAG, TEXT, COUNT, REAL };

static const struct option {
	const char *name, *value;
	enum kind kind;
	size_t at;
	double most; /* of a number; the least is 1, or above 0 */
	const char *sentence;
} known[] = {
	{ "text", "PATH", TEXT, offsetof(struct options, text), 0, "a file or folder to learn from (manual pages and licences of this machine)" },
	{ "megabytes", "N", COUNT, offsetof(struct options, megabytes), 1024, "of it at most, unpacked (8)" },
	{ "least", "N", COUNT, offsetof(struct options, least), 1e6, "words that occur less often are left out (5)" },
	{ "dim", "N", COUNT, offsetof(struct options, dim), 4096, "numbers to a word (64)" },
	{ "window", "N", COUNT, offsetof(struct options, window), 100, "how far apart two words of a pair are at most (5)" },
	{ "batch", "N", COUNT, offsetof(struct options, batch), 1e6, "words per step, of each rank (32)" },
	{ "epochs", "N", COUNT, offsetof(struct options, epochs), 1e4, "passes over the text (2)" },
	{ "rate", "X", REAL, offsetof(struct options, rate), 100, "learning rate, falling to a thousandth in a straight line (0.05)" },
	{ "seed", "N", COUNT, offsetof(struct options, seed), 1e9, "of the first values and of all that is drawn (1)" },
	{ "json", NULL, FLAG, offsetof(struct options, json), 0, "one object per epoch on stdout, the rest on stderr" },
	{ "help", NULL, FLAG, offsetof(struct options, help), 0, "this text" },
};
enum { KNOWN = sizeof known / sizeof *known };

void show_help(void)
{
	puts("word2vec: learns which words of a text are alike. Their rows are in two tables, of which a step touches few.\n"
	     "  tutti run -n 4 word2vec [OPTION...]     or alone: word2vec [OPTION...]");
	for (int i = 0; i < KNOWN; i++)
		printf("  --%-10s %-5s %s\n", known[i].name, known[i].value ? known[i].value : "", known[i].sentence);
	puts("JSON keys: epoch, loss (of a pair, mean of the epoch), words_per_second, untouched (share of the rows that a step neither pulls nor\n"
	     "pushes, its mean), bytes (moved by all ranks in this epoch), seconds.");
}

static int set_number(const struct option *o, const char *text, void *to)
{
	char *end;
	double x = strtod(text, &end);
	int good = end != text && !*end && x <= o->most && (o->kind == REAL ? x > 0 : x >= 1 && x == floor(x));

	if (!good)
		return complain("--%s takes a %s up to %.0f, not '%s'", o->name, o->kind == REAL ? "number above 0" : "whole number from 1", o->most, text);
	if (o->kind == REAL)
		*(double *)to = x;
	else if (!strcmp(o->name, "seed"))
		*(uint64_t *)to = (uint64_t)x;
	else
		*(int *)to = (int)x;
	return 0;
}

static const struct option *find_option(const char *word)
{
	for (int i = 0; i < KNOWN; i++)
		if (!strncmp(word, "--", 2) && !strcmp(word + 2, known[i].name))
			return &known[i];
	return NULL;
}

int read_options(int argc, char **argv, struct options *options)
{
	int err = 0;

	*options = (struct options){ .megabytes = 8, .least = 5, .dim = 64, .window = 5, .batch = 32, .epochs = 2, .rate = 0.05, .seed = 1 };
	for (int i = 1; i < argc && !err; i++) {
		const struct option *o = find_option(argv[i]);
		void *to = o ? (char *)options + o->at : NULL;
		if (!o)
			return complain("no option '%s': see --help", argv[i]);
		if (o->kind == FLAG)
			*(int *)to = 1;
		else if (++i == argc)
			return complain("--%s needs a %s after it", o->name, o->kind == TEXT ? "path" : "number");
		else if (o->kind == TEXT)
			*(const char **)to = argv[i];
		else
			err = set_number(o, argv[i], to);
	}
	return err;
}
