/* files.c - open files are few, and the program's before they are the library's */
#include "base.h"
#include <sys/resource.h>

bool tt_files_scarce(int fd)
{
	struct rlimit most;

	return !getrlimit(RLIMIT_NOFILE, &most) && (rlim_t)fd >= most.rlim_cur / 2;
}
