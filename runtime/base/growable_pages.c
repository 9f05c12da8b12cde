/* growable_pages.c - memory that begins with zeros, costs nothing until it is written to, and grows without being copied
 *
 * The kernel moves its pages to where there is room for more: of a gigabyte that is some milliseconds. */
#include "base/base.h"
#include <string.h>
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
	return want_huge(mmap(NULL, tt_max(bytes, 1), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0), bytes);
}

#if !TT_TSAN
/* What was cut off shall be zeros when it grows again: whole pages are, as new ones. */
static void clear_rest_of_page(char *at, size_t bytes)
{
	size_t page = (size_t)sysconf(_SC_PAGESIZE), end = (tt_max(bytes, 1) + page - 1) / page * page;

	memset(at + bytes, 0, end - bytes);
}
#endif

#if TT_TSAN
/* The sanitizer does not see mremap(), and takes what lay there before for what lies there now. */
char *tt_pages_resize(char *at, size_t bytes, size_t now)
{
	char *grown = tt_pages_map(now);

	if (grown) {
		memcpy(grown, at, tt_min(bytes, now));
		tt_pages_unmap(at, bytes);
	}
	return grown;
}
#else
char *tt_pages_resize(char *at, size_t bytes, size_t now)
{
	if (now < bytes)
		clear_rest_of_page(at, now);
	return want_huge(mremap(at, tt_max(bytes, 1), tt_max(now, 1), MREMAP_MAYMOVE), now);
}
#endif

void tt_pages_unmap(char *at, size_t bytes)
{
	if (at)
		munmap(at, tt_max(bytes, 1));
}
