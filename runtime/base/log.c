/* log.c - one line per event, and the sentence behind the last error of each thread */
#include "base/base.h"

static _Thread_local struct tt_sentence last_error;

static const char *const level_names[] = { "error", "warn", "info", "debug" };

static enum tt_level level_wanted(void)
{
	const char *s = tt_env(TT_LOG);

	for (size_t i = 0; s && i < TT_COUNT(level_names); i++)
		if (!strcmp(s, level_names[i]))
			return (enum tt_level)i;
	return TT_WARN;
}

static void print_line(enum tt_level level, const char *text)
{
	char line[600]; /* longer than any text */
	int n = snprintf(line, sizeof line, "tutti: %s: %s\n", level_names[level], text);

	fwrite(line, 1, (size_t)n, stderr); /* one write, so lines of several processes do not mix */
}

void tt_log(enum tt_level level, const char *fmt, ...)
{
	char text[512];
	va_list args;

	if (level > level_wanted())
		return;
	va_start(args, fmt);
	vsnprintf(text, sizeof text, fmt, args);
	va_end(args);
	print_line(level, text);
}

int tt_fail(int err, const char *fmt, ...)
{
	va_list args;

	va_start(args, fmt);
	vsnprintf(last_error.text, sizeof last_error.text, fmt, args);
	va_end(args);
	/* Programs print tutti_why() themselves: at the default level the sentence must not appear twice. */
	if (level_wanted() >= TT_INFO)
		print_line(TT_INFO, last_error.text);
	return err;
}

void tt_remember(const char *sentence) { snprintf(last_error.text, sizeof last_error.text, "%s", sentence); }

const char *tt_why(void) { return last_error.text; }
struct tt_sentence tt_last_sentence(void) { return last_error; }

/* Edit distance by rows (Wagner and Fischer 1974), for words shorter than 64 letters. */
static unsigned distance(const char *a, const char *b)
{
	unsigned row[64], n = (unsigned)strlen(b);

	if (n >= TT_COUNT(row))
		return n;
	for (unsigned j = 0; j <= n; j++)
		row[j] = j;
	for (unsigned i = 0; a[i]; i++) {
		unsigned diagonal = row[0];
		row[0] = i + 1;
		for (unsigned j = 0; j < n; j++) {
			unsigned change = diagonal + (a[i] != b[j]), gap = 1 + (unsigned)tt_min(row[j], row[j + 1]);
			diagonal = row[j + 1];
			row[j + 1] = change < gap ? change : gap;
		}
	}
	return row[n];
}

const char *tt_nearest(const char *word, const char *const *known, int n)
{
	const char *best = NULL;
	/* more than a third of the letters differ: another word */
	unsigned least = ((unsigned)strlen(word) + 2) / 3 + 1;

	for (int i = 0; i < n; i++) {
		unsigned d = known[i] ? distance(word, known[i]) : least;
		if (d < least) {
			least = d;
			best = known[i];
		}
	}
	return best;
}
