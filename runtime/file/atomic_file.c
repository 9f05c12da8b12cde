/* atomic_file.c - a file that others see whole or not at all
 *
 *      FILE.part-RANDOM: reserve, write ... --> sync --> rename to FILE --> sync the folder
 *                        any failure, a crash: FILE is as it was
 *
 * Writeback runs while more is written, and the writer waits for it when it is AHEAD windows behind. So the sync at the
 * end is short, and no more dirty pages than these stay in memory. */
#include "file/file_private.h"
#include <fcntl.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <unistd.h>

enum {
	PIECE = 1 << 30,  /* a single write takes at most 2 GiB - 4096 */
	PAGE = 4096,
	WINDOW = 8 << 20, /* bytes of which writeback starts at once ... */
	AHEAD = 4,        /* ... and how many windows may be under way */
};

static int explain(const struct tt_atomic_file *d, const char *what)
{
	return tt_fail(-errno, "cannot %s %s: %s", what, d->path, strerror(errno));
}

static int explain_write(const struct tt_atomic_file *d, uint64_t at)
{
	return tt_fail(-errno, "cannot write %s at byte %llu: %s", d->path, (ull)at, strerror(errno));
}

/* Finds a full disk before the first write, if the file system can tell. */
static int reserve(struct tt_atomic_file *d, uint64_t size)
{
	struct rlimit most;

	/* Beyond the limit SIGXFSZ ends the program. */
	if (size > INT64_MAX || (!getrlimit(RLIMIT_FSIZE, &most) && most.rlim_cur < size))
		return tt_fail(-EFBIG, "%s would have %llu bytes, more than this process may write into one file "
		                       "(ulimit -f)", d->path, (ull)size);
	if (size && fallocate(d->fd, 0, 0, (off_t)size) && errno != EOPNOTSUPP && errno != ENOSYS && errno != EINTR)
		return tt_fail(-errno, "no room for the %llu bytes of %s: %s", (ull)size, d->path, strerror(errno));
	return 0;
}

int tt_atomic_file_begin(struct tt_atomic_file *d, const char *path, uint64_t size)
{
	uint64_t random;
	int err;

	tt_entropy(&random, sizeof random);
	*d = (struct tt_atomic_file){ .fd = -1, .path = strdup(path) };
	if (!d->path || asprintf(&d->part, "%s" TT_ATOMIC_FILE_MARK "%016llx", path, (ull)random) < 0) {
		d->part = NULL;
		err = tt_fail(-ENOMEM, "no memory to write %s", path);
	} else if ((d->fd = tt_high_file(open(d->part, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666))) < 0)
		err = explain(d, "write");
	else
		err = reserve(d, size);
	if (err)
		tt_atomic_file_drop(d);
	return err;
}

static int start(struct tt_atomic_file *d, uint64_t at, unsigned how)
{
	if (!sync_file_range(d->fd, (off_t)at, WINDOW, how) || errno == ENOSYS || errno == EINVAL || errno == ESPIPE)
		return 0; /* this file system cannot: the sync at the end does all */
	return explain_write(d, at); /* a later sync would not report this error again */
}

/* Starts writeback of the sequential run. */
static int give_to_disk(struct tt_atomic_file *d)
{
	const unsigned wait = SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE | SYNC_FILE_RANGE_WAIT_AFTER;
	int err = 0;

	for (; !err && d->end >= d->given + WINDOW; d->given += WINDOW) {
		err = start(d, d->given, SYNC_FILE_RANGE_WRITE);
		if (!err && d->given - d->front >= AHEAD * WINDOW)
			err = start(d, d->given - AHEAD * WINDOW, wait);
	}
	return err;
}

int tt_atomic_file_write(struct tt_atomic_file *d, const void *bytes, size_t len, uint64_t at)
{
	if (at != d->end)
		d->front = d->given = (at + PAGE - 1) & ~(uint64_t)(PAGE - 1); /* publish syncs the rest */
	for (const char *p = bytes; len;) {
		ssize_t n = pwrite(d->fd, p, tt_min(len, PIECE), (off_t)at);
		if (n < 0 && errno == EINTR)
			continue;
		if (!n)
			errno = ENOSPC;
		if (n <= 0)
			return explain_write(d, at);
		p += n, at += (uint64_t)n, len -= (size_t)n;
	}
	d->end = at;
	return give_to_disk(d);
}

static int sync_folder(struct tt_atomic_file *d)
{
	char *slash = strrchr(d->part, '/');
	int fd, err = 0;

	if (slash)
		slash[slash == d->part] = 0; /* the file is renamed, so `part` may become the folder's name */
	fd = open(slash ? d->part : ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (fd < 0 || (fsync(fd) && errno != EINVAL)) /* some file systems cannot */
		err = tt_fail(-errno, "cannot sync the folder of %s: %s", d->path, strerror(errno));
	if (fd >= 0)
		close(fd);
	return err;
}

/* rename() would replace a file that has come meanwhile. Some file systems have no links: there it may. */
static int put_in_place(const struct tt_atomic_file *d)
{
	if (d->only_new && !link(d->part, d->path))
		return unlink(d->part);
	if (d->only_new && errno != EPERM && errno != EOPNOTSUPP && errno != ENOSYS)
		return -1;
	return rename(d->part, d->path);
}

int tt_atomic_file_publish(struct tt_atomic_file *d)
{
	int err = fsync(d->fd) ? explain(d, "sync") : 0;

	if (close(d->fd) && !err)
		err = explain(d, "close");
	d->fd = -1;
	if (!err && put_in_place(d))
		err = explain(d, "put in place");
	if (!err) {
		err = sync_folder(d);
		free(d->part);
		d->part = NULL;
	}
	tt_atomic_file_drop(d);
	return err;
}

void tt_atomic_file_drop(struct tt_atomic_file *d)
{
	if (d->fd >= 0)
		close(d->fd);
	if (d->part)
		unlink(d->part);
	free(d->part);
	free(d->path);
	*d = (struct tt_atomic_file){ .fd = -1 };
}
