/* save_write.c - names the files of a save, and writes the index. save.c has a picture of them
 *
 *      next: a new generation --> each writer: a shard --> commit: do all shards make whole arrays?
 *      --> publish the index --> remove older saves */
#include "file/file_private.h"
#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <sys/file.h>
#include <unistd.h>

enum { LOCK_MS = 30000 }; /* how long another process may take for its commit */

/* ---- shards ---- */

static void print_shard(char room[NAME_MAX + 1], const char *name, uint64_t generation, int i, int shards)
{
	snprintf(room, NAME_MAX + 1, "%s-%08llu-%05d-of-%05d" TT_SHARD_SUFFIX, name, (ull)generation, i + 1, shards);
}

int tt_save_shard(const char *folder, const char *name, uint64_t generation, int i, int shards, char **path)
{
	char room[NAME_MAX + 1], *made;
	int err = tt_save_check_name(name);

	if (err)
		return err;
	print_shard(room, name, generation, i, shards);
	if (!(made = tt_save_file_path(folder, room)))
		return -ENOMEM;
	*path = made;
	return 0;
}

/* Is this a file of such a save, whole or partly written? */
static bool is_shard(const char *file, const char *name, uint64_t *generation)
{
	char room[NAME_MAX + 1];
	unsigned long long g;
	size_t n = strlen(name), len;
	int i, shards;

	if (strncmp(file, name, n) || sscanf(file + n, "-%llu-%d-of-%d", &g, &i, &shards) != 3)
		return false;
	print_shard(room, name, g, i - 1, shards);
	len = strlen(room);
	*generation = g;
	return !strncmp(file, room, len) && (!file[len] || !strncmp(file + len, TT_ATOMIC_FILE_MARK,
	                                                            strlen(TT_ATOMIC_FILE_MARK)));
}

int tt_save_next(const char *folder, const char *name, uint64_t *generation)
{
	uint64_t newest = 0, g;
	int err = tt_save_check_name(name);
	DIR *dir = err ? NULL : opendir(folder);

	if (!err && !dir)
		err = tt_fail(-errno, "cannot look into the folder %s: %s", folder, strerror(errno));
	for (struct dirent *e; dir && (e = readdir(dir));)
		if (is_shard(e->d_name, name, &g))
			newest = tt_max(newest, g);
	if (dir)
		closedir(dir);
	if (!err)
		*generation = newest + 1;
	return err;
}

/* ---- the index ---- */

/* Removes what no index names: older saves, and partly written files. */
static void sweep(const char *folder, const char *name, uint64_t generation)
{
	DIR *dir = opendir(folder);
	char draft[NAME_MAX + 1];
	uint64_t g;

	snprintf(draft, sizeof draft, "%s" TT_INDEX_SUFFIX TT_ATOMIC_FILE_MARK, name);
	for (struct dirent *e; dir && (e = readdir(dir));)
		if (!strncmp(e->d_name, draft, strlen(draft)) || (is_shard(e->d_name, name, &g) && g < generation))
			if (unlinkat(dirfd(dir), e->d_name, 0))
				tt_log(TT_WARN, "cannot remove %s/%s, of a save that was replaced: %s", folder,
				       e->d_name, strerror(errno));
	if (dir)
		closedir(dir);
}

static const char *file_name(const struct tt_tensors *f) { return strrchr(f->path, '/') + 1; }

static void print_index(FILE *f, const struct tt_save *s)
{
	unsigned long long total = 0;

	fprintf(f, TT_INDEX_SEALED "%0*d\",\"tutti_files\":{", TT_SUM_DIGITS, 0);
	for (size_t i = 0; i < s->file_count; i++) {
		fputs(i ? "," : "", f);
		tt_json_print(f, file_name(s->files[i]));
		fputc(':', f);
		tt_json_print(f, s->files[i]->seal);
	}
	for (size_t i = 0; i < s->part_count; i++)
		total += s->parts[i].tensor->count * tt_type_size(s->parts[i].tensor->type);
	fprintf(f, "},\"total_size\":%llu},\n\"weight_map\":{", total);
	for (size_t i = 0; i < s->part_count; i++) {
		fputs(i ? ",\n" : "\n", f);
		tt_json_print(f, s->parts[i].tensor->name);
		fputc(':', f);
		tt_json_print(f, file_name(s->parts[i].file));
	}
	fputs("}}\n", f);
}

static int write_index(const struct tt_save *s)
{
	struct tt_atomic_file d = { .fd = -1 };
	char *text = NULL;
	size_t len = 0;
	FILE *f = open_memstream(&text, &len);
	int err = 0;

	if (f)
		print_index(f, s);
	if (!f || fclose(f))
		err = tt_fail(-ENOMEM, "no memory for the index %s", s->path);
	if (!err) {
		tt_seal_put(text, len, TT_INDEX_SEALED);
		err = tt_atomic_file_begin(&d, s->path, len);
	}
	if (!err)
		err = tt_atomic_file_write(&d, text, len, 0);
	if (!err)
		err = tt_atomic_file_publish(&d);
	tt_atomic_file_drop(&d);
	free(text);
	return err;
}

static int gather_shards(struct tt_save *s, const char *folder, const char *name, uint64_t generation, int shards)
{
	char room[NAME_MAX + 1];
	int err = 0;

	for (int i = 0; !err && i < shards; i++) {
		print_shard(room, name, generation, i, shards);
		if ((err = tt_save_add_file(s, folder, room)))
			return err;
		struct tt_tensors *f = s->files[i];
		close(f->fd); /* the index needs the header alone, and there may be more shards than descriptors */
		f->fd = -1;
		if (!f->seal)
			return tt_fail(-EBADMSG, "%s was not written by Tutti: it has no tutti_seal", f->path);
		err = tt_save_add_parts(s, f);
	}
	return err ? err : tt_save_join(s);
}

/* One commit at a time: an index made before another commit's sweep must not be published after it. Some file systems
 * have no locks; there the caller must not commit concurrently. */
static int lock_folder(const char *folder, int *out)
{
	int fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC), err;

	for (int ms = 0; fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) && errno == EWOULDBLOCK; ms++) {
		if (ms == LOCK_MS) {
			close(fd);
			return tt_fail(-EBUSY, "%s: another process has been putting a save in place for %d s: "
			                       "was it stopped?", folder, LOCK_MS / 1000);
		}
		usleep(1000);
		if ((err = tt_hook_poll())) {
			close(fd);
			return err;
		}
	}
	*out = fd;
	return 0;
}

int tt_save_commit(const char *folder, const char *name, uint64_t generation, int shards)
{
	int err = tt_save_check_name(name), lock = -1;
	struct tt_save *s;

	if (err || (err = lock_folder(folder, &lock)))
		return err;
	if (!(s = calloc(1, sizeof *s)) || !(s->path = tt_save_index_path(folder, name)))
		err = tt_fail(-ENOMEM, "no memory for the index of %s", name);
	else if (!(err = gather_shards(s, folder, name, generation, shards)) && !(err = write_index(s)))
		sweep(folder, name, generation);
	tt_save_close(s);
	if (lock >= 0)
		close(lock);
	return err;
}
