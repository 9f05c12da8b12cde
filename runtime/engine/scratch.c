/* scratch.c - a cache of temporary buffers for collectives and messages
 *
 * Fresh memory costs a page fault every 4 KiB, which takes longer than to transport 4 KiB. */
#include "engine/engine.h"
#include <stdlib.h>

enum {
	LEAST = 256,        /* bytes; each class is twice the one before */
	PAGE = 4096,
	HELD_MAX = TT_ASAN ? 0 : 8 << 20, /* the sanitizer finds uses after the free only if nothing is kept */
	CLASS_MAX = HELD_MAX / 2,         /* so that messages leave room for collectives */
};

static void *new_bytes(size_t bytes)
{
	size_t unit = bytes < PAGE ? TT_CACHE_LINE : PAGE;

	return aligned_alloc(unit, (bytes + unit - 1) & ~(unit - 1));
}

static size_t bytes_of(int class) { return (size_t)LEAST << class; }

static int class_of(size_t bytes)
{
	for (int i = 0; i < TT_SCRATCH_CLASSES; i++)
		if (bytes <= bytes_of(i))
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
		return new_bytes(bytes_of(i));
	memcpy(&s->free[i], p, sizeof p);
	s->held[i] -= bytes_of(i);
	s->all -= bytes_of(i);
	return p;
}

void tt_scratch_give(struct tt_scratch *s, void *p, size_t bytes)
{
	int i = class_of(bytes);

	if (!p || i < 0 || s->held[i] + bytes_of(i) > CLASS_MAX || s->all + bytes_of(i) > HELD_MAX) {
		free(p);
		return;
	}
	memcpy(p, &s->free[i], sizeof p);
	s->free[i] = p;
	s->held[i] += bytes_of(i);
	s->all += bytes_of(i);
}

void tt_scratch_free(struct tt_scratch *s)
{
	void *p;

	for (int i = 0; i < TT_SCRATCH_CLASSES; i++)
		while ((p = s->free[i])) {
			memcpy(&s->free[i], p, sizeof p);
			free(p);
		}
	*s = (struct tt_scratch){ 0 };
}
