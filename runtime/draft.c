/* draft.c - a file that others see whole or not at all.
 *
 *      FILE.part-RANDOM: reserve, write ... --> sync --> rename to FILE --> sync the folder
 *                        any failure, a crash: FILE is as it was */
#include "runtime.h"
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

enum { PIECE = 1 << 30 }; /* a single write takes at most 2 GiB - 4096 */

static int blame(const struct tt_draft *d, const char *what) { return tt_fail(-errno, "cannot %s %s: %s", what, d->path, strerror(errno)); }

/* So that a full disk is noticed before anything was written, where the file system can tell. */
static int reserve(struct tt_draft *d, uint64_t size)
{
	struct rlimit most;

	if (size > INT64_MAX || (!getrlimit(RLIMIT_FSIZE, &most) && most.rlim_cur < size)) /* else a signal would end the program */
		return tt_fail(-EFBIG, "%s would have %llu bytes, more than this process may write into one file (ulimit -f)", d->path, (unsigned long long)size);
	if (size && fallocate(d->fd, 0, 0, (off_t)size) && errno != EOPNOTSUPP && errno != ENOSYS && errno != EINTR)
		return tt_fail(-errno, "no room for the %llu bytes of %s: %s", (unsigned long long)size, d->path, strerror(errno));
	return 0;
}

int tt_draft_begin(struct tt_draft *d, const char *path, uint64_t size)
{
	uint64_t random;
	int err;

	tt_entropy(&random, sizeof random);
	*d = (struct tt_draft){ .fd = -1, .path = strdup(path) };
	if (!d->path || asprintf(&d->part, "%s" TT_DRAFT_MARK "%016llx", path, (unsigned long long)random) < 0) {
		d->part = NULL;
		err = tt_fail(-ENOMEM, "no memory to write %s", path);
	} else if ((d->fd = open(d->part, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666)) < 0)
		err = blame(d, "write");
	else
		err = reserve(d, size);
	if (err)
		tt_draft_drop(d);
	return err;
}

int tt_draft_write(struct tt_draft *d, const void *bytes, size_t len, uint64_t at)
{
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
	return 0;
}

static int sync_folder(struct tt_draft *d)
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

int tt_draft_publish(struct tt_draft *d)
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
	tt_draft_drop(d);
	return err;
}

void tt_draft_drop(struct tt_draft *d)
{
	if (d->fd >= 0)
		close(d->fd);
	if (d->part)
		unlink(d->part);
	free(d->part);
	free(d->path);
	*d = (struct tt_draft){ .fd = -1 };
}
