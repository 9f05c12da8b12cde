/* files.c - memory files, which other processes can map; the limit on open files, of which half stays the program's */
#include "base/base.h"
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

int tt_memory_file(const char *name, size_t len)
{
	struct rlimit most;
	int fd, err = EFBIG;

	if (!getrlimit(RLIMIT_FSIZE, &most) && most.rlim_cur >= len) { /* beyond the limit SIGXFSZ ends the program */
		fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
		if (fd >= 0 && !ftruncate(fd, (off_t)len) &&
		    !fcntl(fd, F_ADD_SEALS, F_SEAL_GROW | F_SEAL_SHRINK | F_SEAL_SEAL))
			return fd;
		err = errno;
		if (fd >= 0)
			close(fd);
	}
	errno = err;
	return -1;
}

bool tt_files_scarce(int fd)
{
	struct rlimit most;

	return !getrlimit(RLIMIT_NOFILE, &most) && (rlim_t)fd >= most.rlim_cur / 2;
}
