/* scratch.c - buffers for a moment, of collectives and messages, kept for the next one
 *
 * Fresh memory costs a page fault every 4 KiB, more than the wire takes for as many bytes. */
#include "runtime.h"
#include <stdlib.h>
#include <string.h>

enum {
	LEAST = 256,        /* bytes; each class is twice the one before */
	LINE = 64, PAGE = 4096,
	HELD_MAX = TT_ASAN ? 0 : 8 << 20, /* that one is to see who writes to what has been given back */
};

static void *new_bytes(size_t bytes)
{
	size_t unit = bytes < PAGE ? LINE : PAGE;

	return aligned_alloc(unit, (bytes + unit - 1) & ~(unit - 1));
}

static int class_of(size_t bytes)
{
	for (int i = 0; i < TT_SCRATCH_CLASSES; i++)
		if (bytes <= (size_t)LEAST << i)
			return i;
	return -1;
}

void *tt_scratch_take(struct tt_scratch *s, size_t bytes)
{
	int i = class_of(bytes);
	void *p;

	if (i < 0)
		return new_bytes(bytes);
	if (!(p = s->free[i]))
		return new_bytes((size_t)LEAST << i);
	memcpy(&s->free[i], p, sizeof p);
	s->held -= (size_t)LEAST << i;
	return p;
}

void tt_scratch_give(struct tt_scratch *s, void *p, size_t bytes)
{
	int i = class_of(bytes);

	if (!p || i < 0 || s->held + ((size_t)LEAST << i) > HELD_MAX) {
		free(p);
		return;
	}
	memcpy(p, &s->free[i], sizeof p);
	s->free[i] = p;
	s->held += (size_t)LEAST << i;
}

void tt_scratch_free(struct tt_scratch *s)
{
	void *p;

	for (int i = 0; i < TT_SCRATCH_CLASSES; i++)
		while ((p = s->free[i])) {
			memcpy(&s->free[i], p, sizeof p);
			free(p);
		}
	s->held = 0;
}
