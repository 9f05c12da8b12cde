/* fashion_options.c - the command line, from one table */
#include "fashion.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum kind { FLAG, TEXT, COUNT, LAG, REAL, SHARE, SEED };
static const char *const value_names[] = { [TEXT] = "name", [COUNT] = "number", [LAG] = "number", [REAL] = "number", [SHARE] = "number", [SEED] = "number" };

static const struct option {
	const char *name, *value;
	enum kind kind;
	size_t at;
	double most; /* of a number; the least is 1, above 0, or 0 for a seed and a lag; a share is from 0, below 1 */
	const char *sentence;
} known[] = {
	{ "algorithm", "NAME", TEXT, offsetof(struct options, algorithm), 0, "how the ranks keep their models together (allreduce; ps: parameter servers)" },
	{ "staleness", "N", LAG, offsetof(struct options, staleness), 10000, "ps: how many steps a rank may be ahead of the slowest (any number)" },
	{ "epochs", "N", COUNT, offsetof(struct options, epochs), 10000, "passes over the training set (10)" },
	{ "batch", "N", COUNT, offsetof(struct options, batch), 60000, "samples per step, of all ranks together (128)" },
	{ "rate", "X", REAL, offsetof(struct options, rate), 1000, "learning rate, falling to 0 in a straight line (0.04)" },
	{ "momentum", "X", SHARE, offsetof(struct options, momentum), 0, "of the gradients, 0: none (0.9)" },
	{ "seed", "N", SEED, offsetof(struct options, seed), 0, "of the first weights and of the shuffles (1)" },
	{ "data", "DIR", TEXT, offsetof(struct options, data), 0, "the idx files (/usr/share/datasets/fashion-mnist)" },
	{ "plot", "FILE", TEXT, offsetof(struct options, plot), 0, "a PNG of the loss curve, or none (fashion.png)" },
	{ "json", NULL, FLAG, offsetof(struct options, json), 0, "one object per epoch on stdout, the rest on stderr" },
	{ "help", NULL, FLAG, offsetof(struct options, help), 0, "this text" },
};
enum { KNOWN = sizeof known / sizeof *known };

static const struct options defaults = {
	.algorithm = "allreduce", .staleness = -1, .data = "/usr/share/datasets/fashion-mnist", .plot = "fashion.png",
	.epochs = 10, .batch = 128, .rate = 0.04, .momentum = 0.9, .seed = 1,
};

void show_help(const char *algorithms)
{
	puts("fashion: trains a small network on Fashion-MNIST, on every rank of a job at once.\n"
	     "  tutti run -n 4 fashion [OPTION...]     or alone: fashion [OPTION...]");
	for (int i = 0; i < KNOWN; i++)
		printf("  --%-9s %-5s %s\n", known[i].name, known[i].value ? known[i].value : "", known[i].sentence);
	printf("Algorithms: %s.\n"
	       "JSON keys: epoch, loss (the epoch's mean, in training), accuracy (of the test set, 0 to 1), seconds (this epoch).\n",
	       algorithms);
}

/* The beginning of a name is a good guess. */
static enum status unknown(const char *word)
{
	const char *name = word + strspn(word, "-");
	size_t len = strcspn(name, "=");

	for (int i = 0; len && i < KNOWN; i++)
		if (!strncmp(name, known[i].name, len))
			return complain(USAGE, "no option '%s': did you mean --%s?", word, known[i].name);
	return complain(USAGE, "no option '%s': see --help", word);
}

static enum status set_number(const struct option *o, const char *text, void *to)
{
	char *end;
	double x = strtod(text, &end);
	int number = end != text && !*end && isfinite(x), whole = number && x == floor(x);

	if ((o->kind == COUNT || o->kind == LAG) && whole && x >= (o->kind == COUNT) && x <= o->most)
		*(int *)to = (int)x;
	else if (o->kind == SEED && whole && strspn(text, "0123456789") == strlen(text) && x < 0x1p64)
		*(uint64_t *)to = strtoull(text, NULL, 10);
	else if (o->kind == REAL && number && x > 0 && x <= o->most)
		*(double *)to = x;
	else if (o->kind == SHARE && number && x >= 0 && x < 1)
		*(double *)to = x;
	else if (o->kind == SHARE)
		return complain(USAGE, "--%s takes a number from 0, below 1, not '%s'", o->name, text);
	else if (o->kind == SEED)
		return complain(USAGE, "--%s takes a whole number, 0 or more, not '%s'", o->name, text);
	else
		return complain(USAGE, "--%s takes a %s up to %.0f, not '%s'", o->name,
		                o->kind == COUNT ? "whole number from 1" : o->kind == LAG ? "whole number from 0" : "number above 0", o->most, text);
	return OK;
}

static enum status set_option(const struct option *o, const char *value, struct options *options)
{
	void *to = (char *)options + o->at;

	if (o->kind == FLAG)
		*(int *)to = 1;
	else if (o->kind == TEXT && !*value)
		return complain(USAGE, "--%s takes a %s, which is empty here", o->name, value_names[o->kind]);
	else if (o->kind == TEXT)
		*(const char **)to = value;
	else
		return set_number(o, value, to);
	return OK;
}

static const struct option *find_option(const char *word)
{
	size_t len = strncmp(word, "--", 2) ? 0 : strcspn(word + 2, "=");

	for (int i = 0; len && i < KNOWN; i++)
		if (strlen(known[i].name) == len && !strncmp(known[i].name, word + 2, len))
			return &known[i];
	return !strcmp(word, "-h") ? &known[KNOWN - 1] : NULL;
}

/* --name value and --name=value */
enum status read_options(int argc, char **argv, struct options *options)
{
	enum status s = OK;

	*options = defaults;
	for (int i = 1; i < argc && !s; i++) {
		const struct option *o = find_option(argv[i]);
		const char *word = argv[i], *value = strchr(word, '=');
		if (!o)
			return unknown(word);
		if (o->kind == FLAG && value)
			return complain(USAGE, "--%s takes no value", o->name);
		value = value ? value + 1 : o->kind == FLAG ? NULL : argv[++i];
		if (o->kind != FLAG && !value)
			return complain(USAGE, "--%s needs a %s after it", o->name, value_names[o->kind]);
		s = set_option(o, value, options);
	}
	return s;
}
