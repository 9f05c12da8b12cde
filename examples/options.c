/* options.c - reads the command line of a demo by its table */
#include "options.h"
#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *complain(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
static const char *complain(const char *fmt, ...)
{
	static char sentence[400];
	va_list args;

	va_start(args, fmt);
	vsnprintf(sentence, sizeof sentence, fmt, args);
	va_end(args);
	return sentence;
}

void options_show(const struct option *known)
{
	for (; known->name; known++)
		printf("  --%-10s %-5s %s\n", known->name, known->value ? known->value : "", known->sentence);
}

/* The beginning of a name is a good guess. */
static const char *unknown(const struct option *known, const char *word)
{
	const char *name = word + strspn(word, "-");
	size_t len = strcspn(name, "=");

	for (; len && known->name; known++)
		if (!strncmp(name, known->name, len))
			return complain("no option '%s': did you mean --%s?", word, known->name);
	return complain("no option '%s': see --help", word);
}

static const char *set_seed(const struct option *o, const char *text, void *to)
{
	errno = 0;
	unsigned long long seed = strtoull(text, NULL, 10);
	if (!*text || text[strspn(text, "0123456789")] || errno)
		return complain("--%s takes a whole number, 0 or more and below 2^64, not '%s'", o->name, text);
	*(uint64_t *)to = seed;
	return NULL;
}

static const char *set_number(const struct option *o, const char *text, void *to)
{
	char *end;
	double x = strtod(text, &end);
	int number = end != text && !*end && isfinite(x), whole = number && x == floor(x);

	if (o->kind == WHOLE && whole && x >= o->least && x <= o->most)
		*(int *)to = (int)x;
	else if (o->kind == WHOLE)
		return complain("--%s takes a whole number from %.0f to %.0f, not '%s'", o->name, o->least, o->most,
		                text);
	else if (o->kind == REAL && number && x > 0 && x <= o->most)
		*(double *)to = x;
	else if (o->kind == REAL)
		return complain("--%s takes a number above 0, up to %.0f, not '%s'", o->name, o->most, text);
	else if (o->kind == SHARE && number && x >= 0 && x < 1)
		*(double *)to = x;
	else if (o->kind == SHARE)
		return complain("--%s takes a number from 0, below 1, not '%s'", o->name, text);
	else
		return set_seed(o, text, to);
	return NULL;
}

static const char *set_option(const struct option *o, const char *value, void *to)
{
	if (o->kind == FLAG)
		*(int *)to = 1;
	else if (o->kind == TEXT && !*value)
		return complain("--%s takes a %s, which is empty here", o->name, o->value);
	else if (o->kind == TEXT)
		*(const char **)to = value;
	else
		return set_number(o, value, to);
	return NULL;
}

static const struct option *find_option(const struct option *known, const char *word)
{
	const char *name = !strcmp(word, "-h") ? "help" : strncmp(word, "--", 2) ? "" : word + 2;
	size_t len = strcspn(name, "=");

	for (; len && known->name; known++)
		if (strlen(known->name) == len && !strncmp(known->name, name, len))
			return known;
	return NULL;
}

const char *options_read(const struct option *known, int argc, char **argv, void *to)
{
	const char *wrong = NULL;

	for (int i = 1; i < argc && !wrong; i++) {
		const struct option *o = find_option(known, argv[i]);
		const char *word = argv[i], *value = strchr(word, '=');
		if (!o)
			return unknown(known, word);
		if (o->kind == FLAG && value)
			return complain("--%s takes no value", o->name);
		value = value ? value + 1 : o->kind == FLAG ? NULL : argv[++i];
		if (o->kind != FLAG && !value)
			return complain("--%s needs a %s after it", o->name, o->kind == TEXT ? o->value : "number");
		wrong = set_option(o, value, (char *)to + o->at);
	}
	return wrong;
}
