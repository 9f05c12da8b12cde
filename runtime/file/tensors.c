/* tensors.c - reads safetensors files, Tutti's and those of other programs. tensors_write.c writes them
 *
 *      8 bytes     N, the length of the header, at most 100,000,000
 *      N bytes     JSON, padded with spaces: "__metadata__", then by name the type, the shape and the range of the data
 *      the rest    data: little endian, row by row; each byte belongs to exactly one array
 *
 * __metadata__ begins with two notes of Tutti's own, in this order. "tutti_seal" is a checksum of the header, computed
 * with zeros in its place. "tutti_sums" has one checksum for each 4 MiB of each array, in the order of the data, so a
 * part of an array can be checked alone. All are XXH64 in 16 digits. Files without them are read unchecked. */
#include "base/pack.h"
#include "file/file_private.h"
#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

const char *const tt_tensor_type_names[TUTTI_I64 + 1] = {
	[TUTTI_F32] = "F32", [TUTTI_F64] = "F64", [TUTTI_F16] = "F16",
	[TUTTI_BF16] = "BF16", [TUTTI_I32] = "I32", [TUTTI_I64] = "I64",
};

bool tt_tensor_measure(struct tt_tensor *t)
{
	t->count = 1;
	for (int i = 0; i < t->dims; i++)
		if (__builtin_mul_overflow(t->count, t->shape[i], &t->count))
			return false;
	return t->count <= INT64_MAX / tt_type_size(t->type);
}

void *tt_grown(void *array, size_t n, size_t width)
{
	return n & (n - 1) ? array : realloc(array, (n ? 2 * n : 1) * width);
}

/* ---- the seal ---- */

bool tt_seal_put(char *text, size_t len, const char *opening)
{
	char digits[TT_SUM_DIGITS + 1];
	size_t at = strlen(opening);

	if (len < at + TT_SUM_DIGITS || memcmp(text, opening, at))
		return false;
	memset(text + at, '0', TT_SUM_DIGITS);
	snprintf(digits, sizeof digits, "%016llx", (ull)tt_sum64(text, len));
	memcpy(text + at, digits, TT_SUM_DIGITS);
	return true;
}

bool tt_seal_holds(char *text, size_t len, const char *opening)
{
	char was[TT_SUM_DIGITS];
	size_t at = strlen(opening);

	if (len < at + TT_SUM_DIGITS || memcmp(text, opening, at))
		return true; /* not one of ours */
	memcpy(was, text + at, TT_SUM_DIGITS);
	tt_seal_put(text, len, opening);
	return !memcmp(was, text + at, TT_SUM_DIGITS);
}

/* ---- reading: the header ---- */

int tt_tensors_no_memory(const char *path) { return tt_fail(-ENOMEM, "no memory for the header of %s", path); }

int tt_tensor_check_type(const char *path, const struct tt_tensor *t)
{
	return t->other ? tt_fail(-ENOTSUP, "%s: \"%s\" has %.24s: Tutti reads arrays of F32, F64, F16, BF16, I32 and "
	                          "I64 with at most %d dimensions", path, t->name, t->other, TT_TENSOR_DIMS) : 0;
}

static void take_type(struct tt_tensor *t, const char *name)
{
	for (size_t i = 0; i < TT_COUNT(tt_tensor_type_names); i++)
		if (!strcmp(name, tt_tensor_type_names[i])) {
			t->type = (tutti_type)i;
			return;
		}
	t->other = name;
}

static void take_shape(struct tt_tensor *t, struct tt_json *j)
{
	for (tt_json_enter(j, '['); tt_json_more(j, ']');) {
		uint64_t length = tt_json_number(j);
		if (t->dims < TT_TENSOR_DIMS)
			t->shape[t->dims++] = length;
		else
			t->other = "too many dimensions";
	}
}

static void take_offsets(struct tt_json *j, uint64_t offsets[2])
{
	int n = 0;

	for (tt_json_enter(j, '['); tt_json_more(j, ']') && n < 3; n++)
		offsets[n < 2 ? n : 1] = tt_json_number(j);
	if (n != 2)
		offsets[1] = 0, offsets[0] = 1; /* refused as reversed */
}

static int take_member(const struct tt_tensors *f, struct tt_tensor *t, struct tt_json *j, uint64_t offsets[2],
                       unsigned *seen)
{
	static const char *const members[] = { "dtype", "shape", "data_offsets" };
	const char *key = tt_json_key(j);
	unsigned i = 0;

	while (i < TT_COUNT(members) && strcmp(key, members[i]))
		i++;
	if (i == TT_COUNT(members)) {
		tt_json_skip(j);
		return 0;
	}
	if (*seen & 1u << i)
		return tt_damaged(f, "\"%s\" has two of %s", t->name, members[i]);
	*seen |= 1u << i;
	if (i == 0)
		take_type(t, tt_json_text(j));
	else if (i == 1)
		take_shape(t, j);
	else
		take_offsets(j, offsets);
	return 0;
}

static int check_length(const struct tt_tensors *f, struct tt_tensor *t, const uint64_t offsets[2], unsigned seen)
{
	if (seen != 7)
		return tt_damaged(f, "\"%s\" lacks one of dtype, shape and data_offsets", t->name);
	if (offsets[0] > offsets[1])
		return tt_damaged(f, "the data_offsets of \"%s\" are not two, the end behind the beginning", t->name);
	if (t->other) { /* nobody may ask for it: its place alone must be right */
		t->type = TUTTI_U8;
		t->count = offsets[1] - offsets[0];
	} else if (!tt_tensor_measure(t) || tt_tensor_bytes(t) != offsets[1] - offsets[0])
		return tt_damaged(f, "the shape of \"%s\", of %s, does not make the %llu bytes of its data_offsets",
		                  t->name, tt_tensor_type_names[t->type], (ull)(offsets[1] - offsets[0]));
	t->at = offsets[0];
	return 0;
}

static int take_tensor(struct tt_tensors *f, const char *name, struct tt_json *j)
{
	struct tt_tensor t = { .name = name }, *grown = tt_grown(f->of, f->count, sizeof t);
	uint64_t offsets[2] = { 0 };
	unsigned seen = 0;
	int err = 0;

	if (!grown)
		return tt_tensors_no_memory(f->path);
	f->of = grown;
	for (tt_json_enter(j, '{'); !err && tt_json_more(j, '}');)
		err = take_member(f, &t, j, offsets, &seen);
	if (!err && !j->fault)
		err = check_length(f, &t, offsets, seen);
	f->of[f->count++] = t;
	return err;
}

static int take_notes(struct tt_tensors *f, struct tt_json *j)
{
	if (f->notes)
		return tt_damaged(f, "two of __metadata__");
	for (tt_json_enter(j, '{'); tt_json_more(j, '}'); f->note_count++) {
		struct tt_metadata *grown = tt_grown(f->notes, f->note_count, sizeof *grown);
		if (!grown)
			return tt_tensors_no_memory(f->path);
		f->notes = grown;
		grown[f->note_count].key = tt_json_key(j);
		grown[f->note_count].value = tt_json_text(j);
	}
	return 0;
}

static int parse_header(struct tt_tensors *f, size_t len)
{
	struct tt_json j = tt_json(f->text, len);
	int err = 0;

	for (tt_json_enter(&j, '{'); !err && tt_json_more(&j, '}');) {
		const char *key = tt_json_key(&j);
		if (j.fault)
			break;
		err = strcmp(key, "__metadata__") ? take_tensor(f, key, &j) : take_notes(f, &j);
	}
	if (!err)
		tt_json_end(&j);
	return j.fault ? tt_damaged(f, "bad JSON at byte %zu: %s", TT_HEADER_AT + j.fault_at, j.fault) : err;
}

/* ---- reading: does it fit together? ---- */

static int by_place(const void *a, const void *b)
{
	const struct tt_tensor *x = a, *y = b;

	if (x->at != y->at)
		return (x->at > y->at) - (x->at < y->at);
	return (x->count > y->count) - (x->count < y->count); /* empty arrays first */
}
static int by_name(const void *a, const void *b)
{
	return strcmp(((const struct tt_tensor *)a)->name, ((const struct tt_tensor *)b)->name);
}

static int by_key(const void *a, const void *b)
{
	return strcmp(((const struct tt_metadata *)a)->key, ((const struct tt_metadata *)b)->key);
}

static void sort(void *array, size_t n, size_t width, int (*compare)(const void *, const void *))
{
	if (n) /* else array may be NULL */
		qsort(array, n, width, compare);
}

/* Turns offsets in the data into offsets in the file. */
static int place_data(struct tt_tensors *f, uint64_t size, uint64_t *blocks)
{
	uint64_t end = 0;

	sort(f->of, f->count, sizeof *f->of, by_place);
	for (size_t i = 0; i < f->count; i++) {
		struct tt_tensor *t = &f->of[i];
		if (t->at < end)
			return tt_damaged(f, "\"%s\" overlaps another array at byte %llu", t->name,
			                  (ull)(f->data + t->at));
		if (t->at > end)
			return tt_damaged(f, "a hole of %llu bytes before \"%s\", at byte %llu", (ull)(t->at - end),
			                  t->name, (ull)(f->data + end));
		end += tt_tensor_bytes(t); /* at most 2^63 - 1, like the sum before it */
		if (end > size - f->data)
			return tt_damaged(f, "\"%s\" ends beyond the end of the file at byte %llu: was it cut off?",
			                  t->name, (ull)size);
		t->at += f->data;
		t->block = *blocks;
		*blocks += tt_tensor_blocks(t);
	}
	if (end < size - f->data)
		return tt_damaged(f, "%llu bytes from byte %llu on belong to no array", (ull)(size - f->data - end),
		                  (ull)(f->data + end));
	return 0;
}

static int refuse_doubles(struct tt_tensors *f)
{
	sort(f->of, f->count, sizeof *f->of, by_name);
	sort(f->notes, f->note_count, sizeof *f->notes, by_key);
	for (size_t i = 1; i < f->count; i++)
		if (!by_name(&f->of[i - 1], &f->of[i]))
			return tt_damaged(f, "two arrays are named \"%s\"", f->of[i].name);
	for (size_t i = 1; i < f->note_count; i++)
		if (!by_key(&f->notes[i - 1], &f->notes[i]))
			return tt_damaged(f, "__metadata__ has two of \"%s\"", f->notes[i].key);
	return 0;
}

static int find_sums(struct tt_tensors *f, uint64_t blocks)
{
	f->seal = tt_tensors_note(f, "tutti_seal");
	f->sums = tt_tensors_note(f, "tutti_sums");
	if (!f->sums || (strlen(f->sums) == blocks * TT_SUM_DIGITS &&
	                 strspn(f->sums, "0123456789abcdef") == blocks * TT_SUM_DIGITS))
		return 0;
	return tt_damaged(f, "tutti_sums is not %llu checksums of %d digits", (ull)blocks, TT_SUM_DIGITS);
}

static int read_fully(const struct tt_tensors *f, void *to, size_t len, uint64_t at)
{
	for (char *p = to; len;) {
		ssize_t n = pread(f->fd, p, tt_min(len, 1 << 30), (off_t)at);
		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return tt_fail(-errno, "cannot read %s at byte %llu: %s", f->path, (ull)at, strerror(errno));
		if (!n)
			return tt_fail(-EBADMSG, "%s ends at byte %llu: it was cut off while it was read", f->path,
			               (ull)at);
		p += n, at += (uint64_t)n, len -= (size_t)n;
	}
	return 0;
}

static int read_header(struct tt_tensors *f, uint64_t size)
{
	uint8_t bytes[TT_HEADER_AT];
	uint64_t len, blocks = 0;
	int err;

	if (size < TT_HEADER_AT)
		return tt_fail(-EBADMSG, "%s has %llu bytes, fewer than the 8 that a safetensors file begins with",
		               f->path, (ull)size);
	if ((err = read_fully(f, bytes, TT_HEADER_AT, 0)))
		return err;
	struct tt_pack p = tt_unpack(bytes, TT_HEADER_AT);
	len = tt_get64(&p);
	if (len > TT_HEADER_MAX || len > size - TT_HEADER_AT)
		return tt_damaged(f, "the header would have %llu bytes, the file has %llu, a header at most %d: "
		                     "no safetensors file, or cut off", (ull)len, (ull)size, TT_HEADER_MAX);
	if (!(f->text = malloc(len + 1)))
		return tt_tensors_no_memory(f->path);
	f->data = TT_HEADER_AT + len;
	if ((err = read_fully(f, f->text, len, TT_HEADER_AT)))
		return err;
	if (!tt_seal_holds(f->text, len, TT_TENSORS_SEALED))
		return tt_damaged(f, "the header, bytes 8 to %llu, does not have the checksum that it names",
		                  (ull)f->data);
	if ((err = parse_header(f, len)) || (err = place_data(f, size, &blocks)) || (err = refuse_doubles(f)))
		return err;
	return find_sums(f, blocks);
}

int tt_tensors_open(const char *path, struct tt_tensors **out)
{
	struct tt_tensors *f = calloc(1, sizeof *f);
	struct stat s;
	int err = 0;

	if (!f || !(f->path = strdup(path))) {
		free(f);
		return tt_tensors_no_memory(path);
	}
	f->fd = tt_high_file(open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK)); /* O_NONBLOCK: may be a pipe */
	if (f->fd < 0 || fstat(f->fd, &s))
		err = tt_fail(-errno, "cannot read %s: %s", path, strerror(errno));
	else if (!S_ISREG(s.st_mode))
		err = tt_fail(-EINVAL, "%s is no file", path);
	if (err || (err = read_header(f, (uint64_t)s.st_size)))
		tt_tensors_close(f);
	else
		*out = f;
	return err;
}

void tt_tensors_close(struct tt_tensors *f)
{
	if (!f)
		return;
	if (f->fd >= 0)
		close(f->fd);
	free(f->notes);
	free(f->of);
	free(f->text);
	free(f->path);
	free(f);
}

const struct tt_tensor *tt_tensors_find(const struct tt_tensors *f, const char *name)
{
	struct tt_tensor wanted = { .name = name };

	return f->count ? bsearch(&wanted, f->of, f->count, sizeof wanted, by_name) : NULL;
}

const char *tt_tensors_note(const struct tt_tensors *f, const char *key)
{
	struct tt_metadata wanted = { .key = key }, *found = f->note_count ? bsearch(&wanted, f->notes, f->note_count,
	        sizeof wanted, by_key) : NULL;

	return found ? found->value : NULL;
}

/* ---- reading: data ---- */

static int check_block(const struct tt_tensors *f, const struct tt_tensor *t, uint64_t block, const void *bytes,
                       size_t len)
{
	char digits[TT_SUM_DIGITS + 1];

	snprintf(digits, sizeof digits, "%016llx", (ull)tt_sum64(bytes, len));
	if (!memcmp(digits, f->sums + (t->block + block) * TT_SUM_DIGITS, TT_SUM_DIGITS))
		return 0;
	uint64_t at = t->at + block * TT_TENSOR_BLOCK;
	return tt_damaged(f, "\"%s\" is damaged: bytes %llu to %llu do not have their checksum", t->name, (ull)at,
	                  (ull)(at + len));
}

/* Reads the bytes from..to of the array, all in one block. The checksum needs the whole block: a part goes to room. */
static int read_block(const struct tt_tensors *f, const struct tt_tensor *t, uint64_t block, uint64_t from, uint64_t to,
                      char *at, char **room)
{
	uint64_t begin = block * TT_TENSOR_BLOCK;
	size_t len = tt_min(TT_TENSOR_BLOCK, tt_tensor_bytes(t) - begin);
	bool whole = to - from == len;
	int err;

	if (!whole && !*room && !(*room = malloc(TT_TENSOR_BLOCK)))
		return tt_fail(-ENOMEM, "no memory to check \"%s\" of %s", t->name, f->path);
	if ((err = read_fully(f, whole ? at : *room, len, t->at + begin)) ||
	    (err = check_block(f, t, block, whole ? at : *room, len)) || whole)
		return err;
	memcpy(at, *room + (from - begin), to - from);
	return 0;
}

int tt_tensors_read(const struct tt_tensors *f, const struct tt_tensor *t, uint64_t first, uint64_t count, void *to)
{
	size_t width = tt_type_size(t->type);
	uint64_t from = first * width, end = from + count * width;
	char *at = to, *room = NULL;
	int err = tt_tensor_check_type(f->path, t);

	if (err)
		return err;
	if (first > t->count || count > t->count - first)
		return tt_fail(-ERANGE, "%s: \"%s\" has %llu elements, none from %llu to %llu", f->path, t->name,
		               (ull)t->count, (ull)first, (ull)(first + count));
	if (!f->sums)
		return read_fully(f, to, end - from, t->at + from);
	for (uint64_t upto; !err && from < end; at += upto - from, from = upto) {
		uint64_t block = from / TT_TENSOR_BLOCK;
		upto = tt_min(end, (block + 1) * TT_TENSOR_BLOCK);
		err = read_block(f, t, block, from, upto, at, &room);
	}
	free(room);
	return err;
}
