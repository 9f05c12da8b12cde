/* files.c - memory files, which other processes can map; the limit on open files, of which half stays the program's,
 * and the one on locked memory; the kernel's small files */
#include "base/base.h"
#include <fcntl.h>
#include <linux/capability.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
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

bool tt_read_text(char *text, size_t size, const char *fmt, ...)
{
	char path[512];
	va_list args;
	ssize_t n = -1;

	va_start(args, fmt);
	int len = vsnprintf(path, sizeof path, fmt, args);
	va_end(args);
	int fd = len < (int)sizeof path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
	if (fd >= 0) {
		n = read(fd, text, size - 1);
		close(fd);
	}
	text[n > 0 ? n : 0] = 0;
	return n > 0;
}

bool tt_files_scarce(int fd)
{
	struct rlimit most;

	return !getrlimit(RLIMIT_NOFILE, &most) && (rlim_t)fd >= most.rlim_cur / 2;
}

uint64_t tt_lockable(void)
{
	struct __user_cap_header_struct head = { .version = _LINUX_CAPABILITY_VERSION_3 };
	struct __user_cap_data_struct caps[2] = { { 0 } };
	struct rlimit most;

	if (getrlimit(RLIMIT_MEMLOCK, &most) || most.rlim_cur == RLIM_INFINITY ||
	    (!syscall(SYS_capget, &head, caps) && caps[0].effective >> CAP_IPC_LOCK & 1))
		return UINT64_MAX;
	return most.rlim_cur;
}
