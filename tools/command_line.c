/* command_line.c - what the subcommands say of their command lines; numbers, sizes and times on them */
#include "tools/tools.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define SIZE_MOST 0x1p36 /* 64G */

int tt_tool_refuse(const char *tool, const char *fmt, ...)
{
	char text[1024];
	va_list args;

	va_start(args, fmt);
	vsnprintf(text, sizeof text, fmt, args);
	va_end(args);
	tt_make_plain(text);
	fprintf(stderr, "tutti %s: %s\n", tool, text);
	return TT_TOOL_REFUSED;
}

static const char *name_at(const void *list, size_t stride, int n)
{
	return *(const char *const *)((const char *)list + (size_t)n * stride);
}

static const char *nearest(const char *word, const void *list, size_t stride)
{
	const char *names[32];
	int n = 0;

	for (; n < (int)TT_COUNT(names) && name_at(list, stride, n); n++)
		names[n] = name_at(list, stride, n);
	return tt_nearest(word, names, n);
}

int tt_tool_bad_option(const char *tool, char **argv, const struct option *known, int said)
{
	const char *word = argv[optind - 1];
	char name[64] = "";

	if (said == ':')
		return tt_tool_refuse(tool, "%s needs a value; see `tutti %s --help`", word, tool);
	if (optopt && !strncmp(word, "--", 2))
		return tt_tool_refuse(tool, "%.*s takes no value; see `tutti %s --help`", (int)strcspn(word, "="), word,
		                      tool);
	if (optopt)
		return tt_tool_refuse(tool, "there is no option -%c; see `tutti %s --help`", optopt, tool);
	strncpy(name, word + 2, tt_min(strcspn(word + 2, "="), sizeof name - 1));
	const char *meant = nearest(name, known, sizeof *known);
	return tt_tool_refuse(tool, "there is no option --%s%s%s%s; see `tutti %s --help`", name,
	                      meant ? " (did you mean --" : "", meant ? meant : "", meant ? "?)" : "", tool);
}

const void *tt_tool_find(const char *tool, const char *what, const char *word, const void *list, size_t stride)
{
	for (int n = 0; name_at(list, stride, n); n++)
		if (!strcmp(name_at(list, stride, n), word))
			return (const char *)list + (size_t)n * stride;
	const char *meant = nearest(word, list, stride);
	tt_tool_refuse(tool, "there is no %s %s%s%s%s; see `tutti %s --help`", what, word,
	               meant ? " (did you mean " : "", meant ? meant : "", meant ? "?)" : "", tool);
	return NULL;
}

int tt_tool_take_number(const char *tool, const char *option, const char *text, double least, double most, double *out)
{
	char *end;
	double n = strtod(text, &end);

	if (end == text || *end || !(n >= least && n <= most))
		return tt_tool_refuse(tool, "%s %s: it is a number from %g to %g", option, text, least, most);
	*out = n;
	return 0;
}

int tt_tool_take_whole(const char *tool, const char *option, const char *text, long least, long most, long *out)
{
	char *end;
	errno = 0;
	long n = strtol(text, &end, 10);

	if (end == text || *end || errno || n < least || n > most)
		return tt_tool_refuse(tool, "%s %s: it is a whole number from %ld to %ld", option, text, least, most);
	*out = n;
	return 0;
}

int tt_tool_take_int(const char *tool, const char *option, const char *text, int least, int most, int *out)
{
	long n;
	int err = tt_tool_take_whole(tool, option, text, least, most, &n);

	if (!err)
		*out = (int)n;
	return err;
}

bool tt_tool_read_size(const char *text, size_t len, size_t *bytes)
{
	static const char units[] = "KMG";
	const char *unit;
	char word[32], *end;
	double n;

	if (!len || len >= sizeof word || strspn(text, "0123456789.") + 1 < len)
		return false;
	memcpy(word, text, len);
	word[len] = 0;
	n = strtod(word, &end);
	if (*end && (unit = strchr(units, *end))) {
		n *= (double)((size_t)1 << 10 * (unit - units + 1));
		end++;
	}
	if (end == word || *end || !(n >= 1 && n <= SIZE_MOST))
		return false;
	*bytes = (size_t)n;
	return n == (double)*bytes;
}

/* A number from 0 up with one of these units behind it. */
static bool read_units(const char *text, const char *const *units, const double *factors, double *out)
{
	char *end;
	double n = strtod(text, &end);

	if (strspn(text, "0123456789.e+-") < (size_t)(end - text)) /* neither 0x10 nor nan */
		return false;
	for (int i = 0; end != text && n >= 0 && units[i]; i++)
		if (!strcmp(end, units[i])) {
			*out = n * factors[i];
			return true;
		}
	return false;
}

int tt_tool_take_time(const char *tool, const char *option, const char *text, uint64_t *ns)
{
	static const char *const units[] = { "ns", "us", "ms", "s", NULL };
	static const double factors[] = { 1, 1e3, 1e6, 1e9 };
	double n;

	if (!read_units(text, units, factors, &n) || n < 1 || n > 3600e9)
		return tt_tool_refuse(tool, "%s %s: it is a time like 50us, 10ms or 1.5s, at most an hour", option,
		                      text);
	*ns = (uint64_t)n;
	return 0;
}

int tt_tool_take_rate(const char *tool, const char *option, const char *text, uint64_t *bytes)
{
	static const char *const units[] = { "", "K", "M", "G", NULL };
	static const double factors[] = { 1, 1e3, 1e6, 1e9 };
	double n;

	if (!read_units(text, units, factors, &n) || n < 1 || n > 1e15)
		return tt_tool_refuse(tool, "%s %s: it is a number of bytes a second like 125M or 10G", option, text);
	*bytes = (uint64_t)n;
	return 0;
}
