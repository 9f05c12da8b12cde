/* growable_pages.c - zeroed memory that costs nothing until it is written, and grows without a copy
 *
 * The kernel moves the pages to a larger free range, which takes a few milliseconds for a gigabyte. */
#include "base/base.h"
#include <sys/mman.h>
#include <unistd.h>

enum { HUGE_PAGE = 2 << 20 };

static char *want_huge(char *at, size_t bytes)
{
	if (at == MAP_FAILED)
		return NULL;
	if (bytes >= HUGE_PAGE)
		madvise(at, bytes, MADV_HUGEPAGE);
	return at;
}

char *tt_pages_map(size_t bytes)
{
	const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;

	return want_huge(mmap(NULL, tt_max(bytes, 1), PROT_READ | PROT_WRITE, flags, -1, 0), bytes);
}

/* A later growth must show zeros here; whole pages are new and zero anyway. */
static void clear_rest_of_page(char *at, size_t bytes)
{
	size_t page = (size_t)sysconf(_SC_PAGESIZE), end = (tt_max(bytes, 1) + page - 1) / page * page;

	memset(at + bytes, 0, end - bytes);
}

/* The thread sanitizer does not see mremap(), and confuses old accesses with new ones. */
static char *resize_by_copy(char *at, size_t bytes, size_t now)
{
	char *grown = tt_pages_map(now);

	if (grown) {
		memcpy(grown, at, tt_min(bytes, now));
		tt_pages_unmap(at, bytes);
	}
	return grown;
}

char *tt_pages_resize(char *at, size_t bytes, size_t now)
{
	if (TT_TSAN)
		return resize_by_copy(at, bytes, now);
	if (now < bytes)
		clear_rest_of_page(at, now);
	return want_huge(mremap(at, tt_max(bytes, 1), tt_max(now, 1), MREMAP_MAYMOVE), now);
}

void tt_pages_unmap(char *at, size_t bytes)
{
	if (at)
		munmap(at, tt_max(bytes, 1));
}
