/* complaint.h - what the first of a simulated world's ranks has to complain of, and when */
#ifndef TT_TEST_COMPLAINT_H
#define TT_TEST_COMPLAINT_H
#include "base/base.h"
#include <stdio.h>

static inline void keep_complaint(char *room, size_t size, int rank, const char *fmt, ...) TT_FORMAT(4, 5);
static inline void keep_complaint(char *room, size_t size, int rank, const char *fmt, ...)
{
	char text[300];
	va_list args;

	va_start(args, fmt);
	vsnprintf(text, sizeof text, fmt, args);
	va_end(args);
	if (!*room)
		snprintf(room, size, "rank %d at %.6f s: %s", rank, (double)tt_now() / 1e9, text);
}

#define complain(rank, ...) keep_complaint(run.complaint, sizeof run.complaint, rank, __VA_ARGS__)
#endif
