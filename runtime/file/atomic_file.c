/* atomic_file.c - a file that others see whole or not at all.
 *
 *      FILE.part-RANDOM: reserve, write ... --> sync --> rename to FILE --> sync the folder
 *                        any failure, a crash: FILE is as it was
 *
 * The disk begins while more is written, and is waited for when it is some windows behind: so at the end there is little to sync, and no
 * more than these of a file waits in memory to be written. */
#include "file/file.h"
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

enum {
	PIECE = 1 << 30,             /* a single write takes at most 2 GiB - 4096 */
	PAGE = 4096,
	WINDOW = 8 << 20, AHEAD = 4, /* bytes that the disk is given at once; so many such that it may have before it is waited for */
};

static int blame(const struct tt_atomic_file *d, const char *what) { return tt_fail(-errno, "cannot %s %s: %s", what, d->path, strerror(errno)); }

/* So that a full disk is noticed before anything was written, where the file system can tell. */
static int reserve(struct tt_atomic_file *d, uint64_t size)
{
	struct rlimit most;

	if (size > INT64_MAX || (!getrlimit(RLIMIT_FSIZE, &most) && most.rlim_cur < size)) /* else a signal would end the program */
		return tt_fail(-EFBIG, "%s would have %llu bytes, more than this process may write into one file (ulimit -f)", d->path, (unsigned long long)size);
	if (size && fallocate(d->fd, 0, 0, (off_t)size) && errno != EOPNOTSUPP && errno != ENOSYS && errno != EINTR)
		return tt_fail(-errno, "no room for the %llu bytes of %s: %s", (unsigned long long)size, d->path, strerror(errno));
	return 0;
}

int tt_atomic_file_begin(struct tt_atomic_file *d, const char *path, uint64_t size)
{
	uint64_t random;
	int err;

	tt_entropy(&random, sizeof random);
	*d = (struct tt_atomic_file){ .fd = -1, .path = strdup(path) };
	if (!d->path || asprintf(&d->part, "%s" TT_ATOMIC_FILE_MARK "%016llx", path, (unsigned long long)random) < 0) {
		d->part = NULL;
		err = tt_fail(-ENOMEM, "no memory to write %s", path);
	} else if ((d->fd = open(d->part, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666)) < 0)
		err = blame(d, "write");
	else
		err = reserve(d, size);
	if (err)
		tt_atomic_file_drop(d);
	return err;
}

static int start(struct tt_atomic_file *d, uint64_t at, unsigned how)
{
	if (!sync_file_range(d->fd, (off_t)at, WINDOW, how) || errno == ENOSYS || errno == EINVAL || errno == ESPIPE)
		return 0; /* a file system that cannot has its sync at the end */
	return tt_fail(-errno, "cannot write %s at byte %llu: %s", d->path, (unsigned long long)at, strerror(errno)); /* a sync would not say it again */
}

/* Of what was written from front to back. */
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
		d->front = d->given = (at + PAGE - 1) & ~(uint64_t)(PAGE - 1); /* a page is given once: the first one with the end */
	for (const char *p = bytes; len;) {
		ssize_t n = pwrite(d->fd, p, tt_min(len, PIECE), (off_t)at);
		if (n < 0 && errno == EINTR)
			continue;
		if (!n)
			errno = ENOSPC;
		if (n <= 0)
			return tt_fail(-errno, "cannot write %s at byte %llu: %s", d->path, (unsigned long long)at, strerror(errno));
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
		slash[slash == d->part] = 0; /* the part has been renamed: its name is free to become the folder's */
	fd = open(slash ? d->part : ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (fd < 0 || (fsync(fd) && errno != EINVAL)) /* some file systems have no such thing */
		err = tt_fail(-errno, "cannot sync the folder of %s: %s", d->path, strerror(errno));
	if (fd >= 0)
		close(fd);
	return err;
}

int tt_atomic_file_publish(struct tt_atomic_file *d)
{
	int err = fsync(d->fd) ? blame(d, "sync") : 0;

	if (close(d->fd) && !err)
		err = blame(d, "close");
	d->fd = -1;
	if (!err && rename(d->part, d->path))
		err = blame(d, "put in place");
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
