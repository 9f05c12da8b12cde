/* image.c - a copy-on-write image: the arrays of a shard as they were at one moment, read while pushes change them
 *
 *      arrays, as they are now      ====|====|====|====|====      a push is about to change this block:
 *                                            ^^^^                 what has not been read of it is copied first
 *      old                          ....|....|=old|....|....
 *
 * A block that is read before it changes is not copied. Only the first push that changes a block pays for its copy.
 * `old` takes at most as much memory as the arrays; pages that are never written take none. */
#include "table/saving.h"
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { BLOCK = 1024 };                /* elements copied at once: little more than the row that a push changes */

struct tt_image {
	size_t count;                 /* elements of each array */
	int arrays;
	uint64_t *kept;               /* a bit for each block: its unread elements are in `old` */
	char *old;                    /* room for all arrays, one after the other */
	size_t bytes;                 /* of `old` */
	int array;                    /* the reader has read all arrays before this one ... */
	size_t next;                  /* ... and so many elements of this one */
	struct {
		const char *now;
		char *old;
		size_t width;
	} of[];
};

int tt_image_open(const struct tt_array *of, int arrays, size_t count, struct tt_image **out)
{
	struct tt_image *m = calloc(1, sizeof *m + (size_t)arrays * sizeof *m->of);
	size_t at = 0;

	if (!m)
		return tt_fail(-ENOMEM, "no memory for a save of %zu elements", count);
	m->count = count;
	m->arrays = arrays;
	for (int a = 0; a < arrays; a++)
		m->bytes += count * of[a].width;
	m->kept = calloc(count / BLOCK / 64 + 1, sizeof *m->kept);
	m->old = mmap(NULL, m->bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (!m->kept || m->old == MAP_FAILED) {
		tt_image_close(m);
		return tt_fail(-ENOMEM, "no memory for a save of %zu elements", count);
	}
	for (int a = 0; a < arrays; at += count * of[a++].width) {
		m->of[a].now = of[a].at;
		m->of[a].old = m->old + at;
		m->of[a].width = of[a].width;
	}
	*out = m;
	return 0;
}

void tt_image_close(struct tt_image *m)
{
	if (!m)
		return;
	if (m->old != MAP_FAILED)
		munmap(m->old, m->bytes);
	free(m->kept);
	free(m);
}

void tt_image_moved(struct tt_image *m, int array, const void *now) { m->of[array].now = now; }

static bool is_kept(const struct tt_image *m, size_t block) { return m->kept[block / 64] >> block % 64 & 1; }

static void keep_block(struct tt_image *m, size_t block)
{
	size_t first = block * BLOCK, count = tt_min(BLOCK, m->count - first);

	for (int a = m->array; a < m->arrays; a++) {
		size_t width = m->of[a].width;
		if (a > m->array || first + count > m->next)
			memcpy(m->of[a].old + first * width, m->of[a].now + first * width, count * width);
	}
	m->kept[block / 64] |= 1ull << block % 64;
}

/* Elements from m->count on have come since the image was made. */
void tt_image_keep(struct tt_image *m, size_t first, size_t count)
{
	count = first < m->count ? tt_min(count, m->count - first) : 0;
	for (size_t block = first / BLOCK; count && block <= (first + count - 1) / BLOCK; block++)
		if (!is_kept(m, block))
			keep_block(m, block);
}

size_t tt_image_read(struct tt_image *m, void *to, size_t room)
{
	char *at = to;

	if (m->array == m->arrays)
		return 0;
	for (size_t width = m->of[m->array].width, n; m->next < m->count && room >= width; room -= n * width) {
		const char *from = is_kept(m, m->next / BLOCK) ? m->of[m->array].old : m->of[m->array].now;
		n = tt_min(tt_min(BLOCK - m->next % BLOCK, m->count - m->next), room / width);
		memcpy(at, from + m->next * width, n * width);
		at += n * width;
		m->next += n;
	}
	if (m->next == m->count) {
		m->array++;
		m->next = 0;
	}
	return (size_t)(at - (char *)to);
}
