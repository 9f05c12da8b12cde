/* files.c - descriptors of the library's own; memory files, which other processes can map; the limit on open files, of
 * which half stays the program's, and the one on locked memory; the kernel's small files; open files of processes */
#include "base/base.h"
#include <dirent.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

int tt_high_file(int fd)
{
	if (fd < 0 || fd > STDERR_FILENO)
		return fd;
	int high = fcntl(fd, F_DUPFD_CLOEXEC, STDERR_FILENO + 1), err = errno;
	close(fd);
	errno = err;
	return high;
}

const char *tt_files_hint(int err)
{
	return err == EMFILE ? ": raise the limit with ulimit -n" :
	       err == ENFILE ? ": raise the limit of all processes, the sysctl fs.file-max" : "";
}

const char *tt_process_hint(int err)
{
	return err == EAGAIN ? ": raise the limit on processes with ulimit -u, or that of the cgroup, pids.max" :
	       err == EPERM || err == ENOSYS ? ": a seccomp filter, of an old container say, denies clone3" : "";
}

/* To callers both limits are one: a call may go well later. The sentence tells them apart. */
static int wait_file(int fd, const char *kind, const char *what)
{
	int err = errno;

	if (fd >= 0)
		return fd;
	return tt_fail(err == ENFILE ? -EMFILE : -err, "cannot make an %s for %s: %s%s", kind, what, strerror(err),
	               tt_files_hint(err));
}

int tt_eventfd(const char *what)
{
	return wait_file(tt_high_file(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)), "eventfd", what);
}

int tt_epoll(const char *what)
{
	return wait_file(tt_high_file(epoll_create1(EPOLL_CLOEXEC)), "epoll descriptor", what);
}

int tt_memory_file(const char *name, size_t len)
{
	struct rlimit most;
	int fd, err = EFBIG;

	if (!getrlimit(RLIMIT_FSIZE, &most) && most.rlim_cur >= len) { /* beyond the limit SIGXFSZ ends the program */
		fd = tt_high_file(memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING));
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

static int each_file_of(int pid, int (*fn)(void *, int, const char *, const char *), void *arg)
{
	char path[320], is[64];
	int found = 0;

	snprintf(path, sizeof path, "/proc/%d/fd", pid);
	DIR *files = opendir(path);
	if (!files)
		return -errno;
	for (const struct dirent *e; !found && (e = readdir(files));) {
		snprintf(path, sizeof path, "/proc/%d/fd/%.16s", pid, e->d_name);
		ssize_t n = readlink(path, is, sizeof is - 1);
		is[n > 0 ? n : 0] = 0;
		if (n > 0)
			found = fn(arg, pid, path, is);
	}
	closedir(files);
	return found;
}

int tt_each_file(int pid, int (*fn)(void *, int, const char *, const char *), void *arg)
{
	DIR *all = pid ? NULL : opendir("/proc");
	int found = pid ? each_file_of(pid, fn, arg) : 0;

	for (const struct dirent *e; all && found <= 0 && (e = readdir(all));)
		if (atoi(e->d_name) > 0)
			found = each_file_of(atoi(e->d_name), fn, arg);
	if (all)
		closedir(all);
	return pid || found > 0 ? found : 0;
}

/* Some programs close all numbers that a file could have, one by one. So the limit goes no further than systemd's hard
 * limit. */
uint64_t tt_files_most(void)
{
	struct rlimit files = { 0, 0 };

	getrlimit(RLIMIT_NOFILE, &files);
	return tt_max(files.rlim_cur, tt_min(files.rlim_max, (rlim_t)TT_FILES_MOST));
}

void tt_files_raise(void)
{
	struct rlimit files;

	if (getrlimit(RLIMIT_NOFILE, &files) || files.rlim_cur >= tt_files_most())
		return;
	files.rlim_cur = tt_files_most();
	setrlimit(RLIMIT_NOFILE, &files);
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
	unsigned inside = 0, outside = 0, ids = 0;
	char map[128];

	if (getrlimit(RLIMIT_MEMLOCK, &most) || most.rlim_cur == RLIM_INFINITY)
		return UINT64_MAX;
	/* the kernel does not heed this capability of a user namespace */
	bool initial = tt_read_text(map, sizeof map, "/proc/self/uid_map") &&
	               sscanf(map, "%u %u %u", &inside, &outside, &ids) == 3 && !inside && !outside &&
	               ids == UINT32_MAX;
	bool may = initial && !syscall(SYS_capget, &head, caps) && caps[0].effective >> CAP_IPC_LOCK & 1;
	return may ? UINT64_MAX : most.rlim_cur;
}
