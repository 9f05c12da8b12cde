/* sentence.c - the sentence of what failed, and lines on standard error */
#include "bindings/c/shim.h"
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static char why[600], last_error[700];

/* One write, so that lines of several processes do not mix. */
static void write_line(const char *text)
{
	char line[800];
	int n = mv_session.job ? snprintf(line, sizeof line, "multiverso: rank %d: %s\n", mv_session.rank, text)
	                       : snprintf(line, sizeof line, "multiverso: %s\n", text);

	if (write(STDERR_FILENO, line, (size_t)n) < 0)
		return; /* nobody reads it */
}

int mv_fail(int err, const char *format, ...)
{
	va_list args;

	va_start(args, format);
	vsnprintf(why, sizeof why, format, args);
	va_end(args);
	return err;
}

int mv_check(int err) { return err < 0 ? mv_fail(err, "%s", tutti_why()) : 0; }

int mv_end(const char *function, int err)
{
	if (err >= 0)
		return err;
	snprintf(last_error, sizeof last_error, "%s: %s", function, why);
	write_line(last_error);
	return err;
}

void mv_say(const char *format, ...)
{
	char text[600];
	va_list args;

	va_start(args, format);
	vsnprintf(text, sizeof text, format, args);
	va_end(args);
	write_line(text);
}

const char *MV_LastError(void) { return last_error; }
