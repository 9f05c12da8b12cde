/* save.c - opens and reads a save: several safetensors files, and the index that names them. save_write.c writes them
 *
 *      NAME-GENERATION-00001-of-00002.safetensors      weight[0:512/1024]  step      one file for each server,
 *      NAME-GENERATION-00002-of-00002.safetensors      weight[512:1024/1024]         all of one generation
 *      NAME.safetensors.index.json                     array -> file; written last: it makes the save
 *
 * Each save has a new generation, so it overwrites no file of the save before, which stays loadable until the new index
 * is in place. An array of several servers is cut along its first dimension, and other programs read each part as an
 * array: NAME[FROM:TO/ROWS]. State by keys is cut by remainders: NAME[I%SHARES]. The index is as Hugging Face's:
 * "metadata" with "total_size", and "weight_map" from arrays to files. Tutti adds "tutti_seal" to "metadata", as in the
 * files, and "tutti_files" with each file's seal. */
#include "file/file_private.h"
#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

enum { INDEX_MAX = 1 << 30, NAME_MOST = 128, PATIENCE = 10 };

struct entry { /* of an index */
	const char *tensor, *file;
};
struct wanted { /* a file and its seal */
	const char *file, *seal;
};
struct index {
	const char *path;
	char *text;
	size_t len;
	struct entry *of;
	size_t count;
	struct wanted *files;
	size_t file_count;
};

/* ---- names ---- */

static bool is_plain(const char *name) /* a file name without a folder */
{
	return *name && !strchr(name, '/') && strcmp(name, ".") && strcmp(name, "..");
}

int tt_save_check_name(const char *name)
{
	if (is_plain(name) && *name != '.' && strlen(name) <= NAME_MOST && tt_json_is_text(name))
		return 0;
	return tt_fail(-EINVAL, "\"%s\" cannot name a save: 1 to %d letters, no /, and no dot in front", name,
	               NAME_MOST);
}

char *tt_save_file_path(const char *folder, const char *name)
{
	char *path;

	if (asprintf(&path, "%s/%s", folder, name) >= 0)
		return path;
	tt_fail(-ENOMEM, "no memory for the path of %s", name);
	return NULL;
}

char *tt_save_index_path(const char *folder, const char *name)
{
	char *path;

	if (asprintf(&path, "%s/%s" TT_INDEX_SUFFIX, folder, name) >= 0)
		return path;
	tt_fail(-ENOMEM, "no memory for the path of %s", name);
	return NULL;
}

void tt_slice_name(char *room, size_t size, const char *name, uint64_t from, uint64_t to, uint64_t rows)
{
	snprintf(room, size, "%s[%llu:%llu/%llu]", name, (ull)from, (ull)to, (ull)rows);
}

void tt_share_name(char *room, size_t size, const char *name, uint64_t i, uint64_t shares)
{
	snprintf(room, size, "%s[%llu%%%llu]", name, (ull)i, (ull)shares);
}

/* Returns the length of the array's name, without a part's suffix. */
static size_t read_slice(const char *name, struct tt_part *p)
{
	const char *bracket = strrchr(name, '[');
	unsigned long long from, to, rows;
	bool share = false;
	char again[80] = "";

	if (bracket && sscanf(bracket, "[%llu:%llu/%llu]", &from, &to, &rows) == 3) {
		tt_slice_name(again, sizeof again, "", from, to, rows);
	} else if (bracket && sscanf(bracket, "[%llu%%%llu]", &from, &rows) == 2) {
		tt_share_name(again, sizeof again, "", from, rows);
		share = true;
		to = from + 1;
	}
	if (!bracket || strcmp(again, bracket)) /* leading zeros, or more text */
		return strlen(name);
	p->from = from, p->to = to, p->rows = rows;
	p->share = share;
	p->slice = true;
	return (size_t)(bracket - name);
}

/* ---- the parts, put together ---- */

static int by_place(const void *a, const void *b)
{
	const struct tt_part *x = a, *y = b;
	int names = strcmp(x->name, y->name);

	if (names)
		return names;
	return x->from != y->from ? (x->from > y->from) - (x->from < y->from) : (x->to > y->to) - (x->to < y->to);
}

static int add_part(struct tt_save *s, const struct tt_tensors *file, const struct tt_tensor *t)
{
	struct tt_part part = { .file = file, .tensor = t, .rows = t->dims ? t->shape[0] : 1 }, *grown;
	size_t len = t->other ? strlen(t->name) : read_slice(t->name, &part);

	if (!part.slice)
		part.to = part.rows;
	else if (part.from > part.to || part.to > part.rows || !t->dims ||
	         (!part.share && t->shape[0] != part.to - part.from))
		return tt_damaged(file, "\"%s\" does not have the rows that its name says", t->name);
	if (!(grown = tt_grown(s->parts, s->part_count, sizeof part)))
		return tt_fail(-ENOMEM, "no memory for the parts of %s", s->path);
	s->parts = grown;
	if (!(part.name = strndup(t->name, len)))
		return tt_fail(-ENOMEM, "no memory for the parts of %s", s->path);
	grown[s->part_count++] = part;
	return 0;
}

static bool fits(const struct tt_part *a, const struct tt_part *b) /* may they be parts of one array? */
{
	if (!a->slice || !b->slice || a->share != b->share || a->rows != b->rows ||
	    a->tensor->type != b->tensor->type || a->tensor->dims != b->tensor->dims)
		return false;
	for (int i = 1; i < a->tensor->dims; i++)
		if (a->tensor->shape[i] != b->tensor->shape[i])
			return false;
	return true;
}

static const char *unit_of(const struct tt_part *p) { return p->share ? "shares" : "rows"; }

static int check_part(const struct tt_save *s, const struct tt_saved *a, const struct tt_part *p, uint64_t rows)
{
	const struct tt_part *first = &s->parts[a->first];
	const char *unit = unit_of(p);

	if (p != first && !fits(first, p))
		return tt_damaged(s, "\"%s\" in %s and in %s are no parts of one array", a->is.name, first->file->path,
		                  p->file->path);
	if (p->from < rows)
		return tt_damaged(s, "%s %llu to %llu of \"%s\" are there twice", unit, (ull)p->from,
		                  (ull)tt_min(rows, p->to), a->is.name);
	if (p->from > rows)
		return tt_damaged(s, "%s %llu to %llu of \"%s\" are missing", unit, (ull)rows, (ull)p->from,
		                  a->is.name);
	return 0;
}

/* The array whose parts begin at `first`. */
static int join_parts(struct tt_save *s, size_t first, struct tt_saved *out)
{
	const struct tt_part *p = &s->parts[first], *end = s->parts + s->part_count;
	uint64_t rows = 0, count = 0; /* rows or shares */
	struct tt_saved a = { .is = *p->tensor, .first = first };

	a.is.name = p->name;
	a.is.shape[0] = 0;
	for (; p < end && !strcmp(p->name, a.is.name); p++, a.parts++) {
		int err = check_part(s, &a, p, rows);
		if (err)
			return err;
		rows = p->to;
		if (__builtin_add_overflow(count, p->tensor->count, &count) || count > INT64_MAX / 8)
			return tt_damaged(s, "\"%s\" has more bytes than can be", a.is.name);
		a.is.shape[0] += p->tensor->shape[0];
	}
	if (rows != s->parts[first].rows)
		return tt_damaged(s, "%s %llu to %llu of \"%s\" are missing", unit_of(&s->parts[first]), (ull)rows,
		                  (ull)s->parts[first].rows, a.is.name);
	a.is.count = count;
	*out = a;
	return 0;
}

int tt_save_join(struct tt_save *s)
{
	int err = 0;

	if (s->part_count)
		qsort(s->parts, s->part_count, sizeof *s->parts, by_place);
	for (size_t first = 0; !err && first < s->part_count; first += s->of[s->count++].parts) {
		struct tt_saved *grown = tt_grown(s->of, s->count, sizeof *grown);
		if (!grown)
			return tt_fail(-ENOMEM, "no memory for the arrays of %s", s->path);
		s->of = grown;
		if ((err = join_parts(s, first, &grown[s->count])))
			return err;
	}
	return err;
}

int tt_save_add_file(struct tt_save *s, const char *folder, const char *name)
{
	struct tt_tensors **grown = tt_grown(s->files, s->file_count, sizeof *grown);
	char *path = tt_save_file_path(folder, name);
	int err = grown && path ? 0 : tt_fail(-ENOMEM, "no memory for the files of %s", s->path);

	if (grown)
		s->files = grown;
	if (!err && !(err = tt_tensors_open(path, &s->files[s->file_count])))
		s->file_count++;
	free(path);
	return err;
}

/* ---- reading an index ---- */

static int by_tensor(const void *a, const void *b)
{
	return strcmp(((const struct entry *)a)->tensor, ((const struct entry *)b)->tensor);
}

static int by_file(const void *a, const void *b)
{
	const struct entry *x = a, *y = b;
	int files = strcmp(x->file, y->file);

	return files ? files : strcmp(x->tensor, y->tensor);
}

static int read_text(struct index *x)
{
	int fd = open(x->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK), err = 0;
	struct stat s = { 0 };
	ssize_t n = 0;

	if (fd < 0 || fstat(fd, &s))
		err = tt_fail(-errno, "cannot read %s: %s", x->path, strerror(errno));
	else if (!S_ISREG(s.st_mode) || s.st_size > INDEX_MAX)
		err = tt_fail(-EBADMSG, "%s is no index: it is no file, or has more than %d bytes", x->path, INDEX_MAX);
	else if (!(x->text = malloc((size_t)s.st_size + 1)))
		err = tt_fail(-ENOMEM, "no memory for the %lld bytes of %s", (long long)s.st_size, x->path);
	while (!err && x->len < (size_t)s.st_size && (n = read(fd, x->text + x->len, (size_t)s.st_size - x->len)) > 0)
		x->len += (size_t)n;
	if (!err && n < 0)
		err = tt_fail(-errno, "cannot read %s: %s", x->path, strerror(errno));
	if (fd >= 0)
		close(fd);
	return err;
}

static int take_entry(struct index *x, struct tt_json *j)
{
	struct entry *grown = tt_grown(x->of, x->count, sizeof *grown);

	if (!grown)
		return tt_fail(-ENOMEM, "no memory for the entries of %s", x->path);
	x->of = grown;
	grown[x->count].tensor = tt_json_key(j);
	grown[x->count].file = tt_json_text(j);
	if (!j->fault && !is_plain(grown[x->count].file))
		return tt_damaged(x, "\"%s\" is said to be in \"%.100s\", which is not in its own folder",
		                  grown[x->count].tensor, grown[x->count].file);
	x->count++;
	return 0;
}

static int take_file(struct index *x, struct tt_json *j)
{
	struct wanted *grown = tt_grown(x->files, x->file_count, sizeof *grown);

	if (!grown)
		return tt_fail(-ENOMEM, "no memory for the files of %s", x->path);
	x->files = grown;
	grown[x->file_count].file = tt_json_key(j);
	grown[x->file_count++].seal = tt_json_text(j);
	return 0;
}

static int take_metadata(struct index *x, struct tt_json *j)
{
	int err = 0;

	for (tt_json_enter(j, '{'); !err && tt_json_more(j, '}');) {
		if (strcmp(tt_json_key(j), "tutti_files"))
			tt_json_skip(j);
		else
			for (tt_json_enter(j, '{'); !err && tt_json_more(j, '}');)
				err = take_file(x, j);
	}
	return err;
}

static int take_map(struct index *x, struct tt_json *j)
{
	int err = 0;

	for (tt_json_enter(j, '{'); !err && tt_json_more(j, '}');)
		err = take_entry(x, j);
	return err;
}

static int parse_index(struct index *x)
{
	struct tt_json j = tt_json(x->text, x->len);
	int err = 0;

	if (!tt_seal_holds(x->text, x->len, TT_INDEX_SEALED))
		return tt_fail(-EBADMSG, "%s does not have the checksum that it names", x->path);
	for (tt_json_enter(&j, '{'); !err && tt_json_more(&j, '}');) {
		const char *key = tt_json_key(&j);
		if (!strcmp(key, "metadata"))
			err = take_metadata(x, &j);
		else if (!strcmp(key, "weight_map"))
			err = take_map(x, &j);
		else
			tt_json_skip(&j);
	}
	if (!err)
		tt_json_end(&j);
	if (j.fault)
		return tt_damaged(x, "bad JSON at byte %zu: %s", j.fault_at, j.fault);
	if (err)
		return err;
	if (!x->count)
		return tt_fail(-EBADMSG, "%s names no array in a weight_map", x->path);
	qsort(x->of, x->count, sizeof *x->of, by_tensor);
	for (size_t i = 1; i < x->count; i++)
		if (!by_tensor(&x->of[i - 1], &x->of[i]))
			return tt_fail(-EBADMSG, "%s names \"%s\" twice", x->path, x->of[i].tensor);
	return 0;
}

static int check_seal(const struct index *x, const char *name, const struct tt_tensors *f)
{
	for (size_t i = 0; i < x->file_count; i++)
		if (!strcmp(x->files[i].file, name) && (!f->seal || strcmp(f->seal, x->files[i].seal)))
			return tt_damaged(x, "%s is not the file that was there when this was written: "
			                     "its tutti_seal is another", f->path);
	return 0;
}

static int open_parts(struct tt_save *s, const char *folder, struct index *x)
{
	int err = 0;

	qsort(x->of, x->count, sizeof *x->of, by_file);
	for (size_t i = 0; !err && i < x->count; i++) {
		const struct entry *e = &x->of[i];
		if (!i || strcmp(e->file, x->of[i - 1].file)) {
			if ((err = tt_save_add_file(s, folder, e->file)) ||
			    (err = check_seal(x, e->file, s->files[s->file_count - 1])))
				return err;
		}
		const struct tt_tensors *f = s->files[s->file_count - 1];
		const struct tt_tensor *t = tt_tensors_find(f, e->tensor);
		err = t ? add_part(s, f, t) : tt_damaged(s, "\"%s\" is not in %s, where it should be", e->tensor,
		                                         f->path);
	}
	return err;
}

static int try_open(const char *folder, const char *path, struct tt_save **out)
{
	struct tt_save *s = calloc(1, sizeof *s);
	struct index x = { .path = path };
	int err = 0;

	if (!s || !(s->path = strdup(path)))
		err = tt_fail(-ENOMEM, "no memory for %s", path);
	if (!err && !(err = read_text(&x)) && !(err = parse_index(&x)) && !(err = open_parts(s, folder, &x)))
		err = tt_save_join(s);
	free(x.of);
	free(x.files);
	free(x.text);
	if (err)
		tt_save_close(s);
	else
		*out = s;
	return err;
}

/* If a newer save has removed a file, the index is another file by now. */
static bool is_another(const char *path, const struct stat *before)
{
	struct stat now;

	return !stat(path, &now) && (now.st_ino != before->st_ino || now.st_mtim.tv_sec != before->st_mtim.tv_sec ||
	                             now.st_mtim.tv_nsec != before->st_mtim.tv_nsec);
}

int tt_save_add_parts(struct tt_save *s, const struct tt_tensors *f)
{
	int err = 0;

	for (size_t k = 0; !err && k < f->count; k++)
		err = add_part(s, f, &f->of[k]);
	return err;
}

/* Another program's file, without an index. -ENOENT: there is none. */
static int open_single(const char *folder, const char *name, struct tt_save **out)
{
	struct tt_save *s = calloc(1, sizeof *s);
	int err = 0;

	if (!s || asprintf(&s->path, "%s/%s" TT_SHARD_SUFFIX, folder, name) < 0) {
		free(s);
		return tt_fail(-ENOMEM, "no memory for %s", name);
	}
	if (access(s->path, F_OK))
		err = -ENOENT;
	if (!err && !(err = tt_save_add_file(s, folder, strrchr(s->path, '/') + 1)) &&
	    !(err = tt_save_add_parts(s, s->files[0])))
		err = tt_save_join(s);
	if (err)
		tt_save_close(s);
	else
		*out = s;
	return err;
}

/* Not -ENOENT: a program that starts anew without a save must not do so if a save is damaged. */
static int say_not_whole(void)
{
	struct tt_sentence last = tt_last_sentence();

	return tt_fail(-EBADMSG, "%s: without it the save is not whole", last.text);
}

int tt_save_open(const char *folder, const char *name, struct tt_save **out)
{
	struct stat before = { 0 };
	char *path;
	int err = tt_save_check_name(name);

	if (err)
		return err;
	if (!(path = tt_save_index_path(folder, name)))
		return -ENOMEM;
	for (int i = 0; i < PATIENCE; i++) {
		int missing = stat(path, &before) ? errno : 0;
		err = !missing            ? try_open(folder, path, out)
		      : missing == ENOENT ? open_single(folder, name, out)
		                          : -missing;
		if (missing && err == -missing)
			tt_fail(err, "cannot read %s: %s", path, strerror(missing));
		if (err != -ENOENT)
			break;
		if (!is_another(path, &before)) {
			err = missing ? err : say_not_whole();
			break;
		}
	}
	free(path);
	return err;
}

void tt_save_close(struct tt_save *s)
{
	if (!s)
		return;
	for (size_t i = 0; i < s->file_count; i++)
		tt_tensors_close(s->files[i]);
	for (size_t i = 0; i < s->part_count; i++)
		free(s->parts[i].name);
	free(s->files);
	free(s->parts);
	free(s->of);
	free(s->path);
	free(s);
}

static int compare_saved(const void *a, const void *b)
{
	return strcmp(((const struct tt_saved *)a)->is.name, ((const struct tt_saved *)b)->is.name);
}

const struct tt_saved *tt_save_find(const struct tt_save *s, const char *name)
{
	struct tt_saved wanted = { .is.name = name };

	return s->count ? bsearch(&wanted, s->of, s->count, sizeof wanted, compare_saved) : NULL;
}

uint64_t tt_save_block_end(const struct tt_save *s, const struct tt_saved *a, uint64_t at)
{
	const struct tt_part *p = &s->parts[a->first];
	uint64_t begin = 0, block = TT_TENSOR_BLOCK / tt_type_size(a->is.type);

	while (at - begin >= p->tensor->count)
		begin += p++->tensor->count;
	return begin + tt_min(p->tensor->count, (at - begin) / block * block + block);
}

int tt_save_read(const struct tt_save *s, const struct tt_saved *a, uint64_t first, uint64_t count, void *to)
{
	size_t width = tt_type_size(a->is.type);
	uint64_t at = 0, end = first + count;
	int err = 0;

	if (first > a->is.count || count > a->is.count - first)
		return tt_fail(-ERANGE, "%s: \"%s\" has %llu elements, none from %llu to %llu", s->path, a->is.name,
		               (ull)a->is.count, (ull)first, (ull)(first + count));
	for (const struct tt_part *p = &s->parts[a->first]; !err && p < &s->parts[a->first + a->parts]; p++) {
		uint64_t from = tt_max(first, at), upto = tt_min(end, at + p->tensor->count);
		if (from < upto)
			err = tt_tensors_read(p->file, p->tensor, from - at, upto - from,
			                      (char *)to + (from - first) * width);
		at += p->tensor->count;
	}
	return err;
}
