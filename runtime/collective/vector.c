/* vector.c - the elements of a call, in one range of memory, or in several: tensors, one behind another
 *
 *      elements    0 ...            |          | ...           count - 1
 *      memory      tensor 0         tensor 1   tensor 2
 *
 * Algorithms count bytes from the beginning of the vector, and go through it run by run. A run is bytes that lie one
 * behind another in memory.
 */
#include "collective/collective_private.h"
#include <string.h>

static const struct tt_part *find_part(const struct tt_vector *v, size_t at)
{
	int low = 0, high = v->parts - 1;

	while (low < high) {
		int middle = low + (high - low) / 2;
		if (v->part[middle].end > at)
			high = middle;
		else
			low = middle + 1;
	}
	return &v->part[low];
}

struct tt_run tt_vector_run(const struct tt_vector *v, size_t at, size_t most)
{
	if (!v->parts || v->in)
		return (struct tt_run){ v->in ? v->in + at : NULL, v->out ? v->out + at : NULL, most };
	const struct tt_part *p = find_part(v, at);
	char *from = p->memory_end - (p->end - at);
	return (struct tt_run){ from, from, tt_min(most, p->end - at) };
}

static void copy(struct tt_copier *learnt, void *to, const void *from, size_t len)
{
	if (learnt)
		tt_copy(learnt, to, from, len);
	else
		memcpy(to, from, len);
}

void tt_vector_read(const struct tt_vector *v, size_t at, void *to, size_t len)
{
	struct tt_run r;

	for (char *next = to; len; at += r.len, len -= r.len, next += r.len) {
		r = tt_vector_run(v, at, len);
		if (r.in != next)
			copy(v->copiers ? &v->copiers->read : NULL, next, r.in, r.len);
	}
}

void tt_vector_write(const struct tt_vector *v, size_t at, const void *from, size_t len)
{
	struct tt_run r;

	for (const char *next = from; len; at += r.len, len -= r.len, next += r.len) {
		r = tt_vector_run(v, at, len);
		if (r.out && r.out != next)
			copy(v->copiers ? &v->copiers->write : NULL, r.out, next, r.len);
	}
}
