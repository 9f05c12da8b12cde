/* unit_tensors.c - what is saved: JSON, safetensors files, and saves of several of them with their index */
#include "base/pack.h"
#include "file/file.h"
#include "tests/harness/cunit_main.h"
#include "tests/harness/folders.h"
#include <fcntl.h>
#include <sched.h>
#include <sys/file.h>
#include <stdlib.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>

static char folder[64];
static char path[128];

/* ---- a disk that does as it is told (the linker's --wrap) ---- */

static struct {
	size_t most;        /* bytes a call; 0: all */
	bool interrupt;     /* every other call */
	long room;          /* bytes until the disk is full; -1: never */
	bool stuck;         /* writes nothing, and says no error */
	int read_error;
	int sync_error, synced; /* from the sync behind so many on */
	int early_error;    /* of a sync before the end */
	size_t begun, awaited; /* bytes, before the end */
	unsigned calls;
} disk = { .room = -1 };

ssize_t __real_pwrite(int fd, const void *bytes, size_t len, off_t at);
ssize_t __wrap_pwrite(int fd, const void *bytes, size_t len, off_t at);
ssize_t __real_pread(int fd, void *bytes, size_t len, off_t at);
ssize_t __wrap_pread(int fd, void *bytes, size_t len, off_t at);
int __real_fsync(int fd);
int __wrap_fsync(int fd);
int __real_sync_file_range(int fd, off_t at, off_t len, unsigned how);
int __wrap_sync_file_range(int fd, off_t at, off_t len, unsigned how);

static bool interrupted(void)
{
	errno = EINTR;
	return disk.interrupt && disk.calls++ % 2;
}

ssize_t __wrap_pwrite(int fd, const void *bytes, size_t len, off_t at)
{
	if (interrupted())
		return -1;
	len = disk.most ? tt_min(len, disk.most) : len;
	if (disk.room >= 0)
		len = tt_min(len, (size_t)disk.room);
	if (disk.stuck)
		return 0;
	if (disk.room == 0) {
		errno = ENOSPC;
		return -1;
	}
	ssize_t n = __real_pwrite(fd, bytes, len, at);
	disk.room -= disk.room > 0 ? n : 0;
	return n;
}

ssize_t __wrap_pread(int fd, void *bytes, size_t len, off_t at)
{
	if (disk.read_error) {
		errno = disk.read_error;
		return -1;
	}
	return interrupted() ? -1 : __real_pread(fd, bytes, disk.most ? tt_min(len, disk.most) : len, at);
}

int __wrap_fsync(int fd)
{
	errno = disk.synced-- > 0 ? 0 : disk.sync_error;
	return errno ? -1 : __real_fsync(fd);
}

int __wrap_sync_file_range(int fd, off_t at, off_t len, unsigned how)
{
	*(how == SYNC_FILE_RANGE_WRITE ? &disk.begun : &disk.awaited) += (size_t)len;
	errno = disk.early_error;
	return errno ? -1 : __real_sync_file_range(fd, at, len, how);
}

static int naps = -1; /* of a millisecond, that take none; -1: they do */

int __real_usleep(useconds_t us);
int __wrap_usleep(useconds_t us);

int __wrap_usleep(useconds_t us)
{
	naps += naps >= 0;
	return naps < 0 ? __real_usleep(us) : 0;
}

static void mend_disk(void)
{
	memset(&disk, 0, sizeof disk);
	disk.room = -1;
}

/* ---- files ---- */

static const char *in_folder(const char *name)
{
	snprintf(path, sizeof path, "%s/%s", folder, name);
	return path;
}

static int count_files(void)
{
	DIR *d = opendir(folder);
	int n = 0;

	for (struct dirent *e; (e = readdir(d));)
		n += *e->d_name != '.';
	closedir(d);
	return n;
}

static void empty_folder(void)
{
	clear_folder(folder);
	mend_disk();
}

static void write_raw(const char *name, const void *bytes, size_t len)
{
	FILE *f = fopen(in_folder(name), "wb");

	CU_ASSERT_FATAL(f && fwrite(bytes, 1, len, f) == len && !fclose(f));
}

static char *read_raw(const char *name, size_t *len)
{
	FILE *f = fopen(in_folder(name), "rb");
	struct stat s;

	CU_ASSERT_FATAL(f && !fstat(fileno(f), &s));
	char *bytes = malloc((size_t)s.st_size + 1);
	*len = fread(bytes, 1, (size_t)s.st_size, f);
	bytes[*len] = 0;
	fclose(f);
	return bytes;
}

static void write_file(const char *name, const char *header, size_t data) /* as anybody might */
{
	size_t n = strlen(header);
	uint8_t *bytes = calloc(1, 8 + n + data);
	struct tt_pack p = tt_pack(bytes, 8 + n + data);

	tt_put64(&p, n);
	tt_put_bytes(&p, header, n);
	for (size_t i = 0; i < data; i++)
		bytes[8 + n + i] = (uint8_t)i;
	write_raw(name, bytes, 8 + n + data);
	free(bytes);
}

static bool said(const char *part)
{
	bool there = strstr(tt_why(), part);

	if (!there)
		printf("should say \"%s\", but says \"%s\"\n", part, tt_why());
	return there;
}

static bool is_refused(const char *name, int err, const char *sentence)
{
	struct tt_tensors *f = NULL;
	int got = tt_tensors_open(in_folder(name), &f);

	if (got != err)
		printf("should be %d with \"%s\", but is %d with \"%s\"\n", err, sentence, got, tt_why());
	tt_tensors_close(f);
	return got == err && said(sentence) && said(name);
}

/* ---- JSON ---- */

static struct tt_json cursor(char room[512], const char *text)
{
	memcpy(room, text, strlen(text) + 1);
	return tt_json(room, strlen(text));
}

static void test_texts(void)
{
	static const struct { const char *json, *text;
	} good[] = {
		{ "\"\"", "" },
		{ " \t\r\n\"abc\" ", "abc" },
		{ "\"\\\"\\\\\\/\\b\\f\\n\\r\\t\"", "\"\\/\b\f\n\r\t" },
		{ "\"\\u0041\\u00e4\\u20aC\\ud83d\\ude00!\"", "A\u00e4\u20ac\U0001f600!" },
		{ "\"\u00e4\u20ac\U0001f600\U0010ffff\"", "\u00e4\u20ac\U0001f600\U0010ffff" },
	};
	char room[512];

	for (size_t i = 0; i < TT_COUNT(good); i++) {
		struct tt_json j = cursor(room, good[i].json);
		CU_ASSERT_STRING_EQUAL(tt_json_text(&j), good[i].text);
		tt_json_end(&j);
		CU_ASSERT_PTR_NULL(j.fault);
	}
}

static void test_bad_json(void)
{
	static const struct { const char *json, *fault; size_t at;
	} bad[] = {
		{ "", "it ends too early", 0 },
		{ "{", "it ends too early", 1 },
		{ "{\"a\"", "it ends too early", 4 },
		{ "{\"a\":", "it ends too early", 5 },
		{ "{\"a\":1", "it ends too early", 6 },
		{ "{\"a\":1,}", "here should be a text", 7 },
		{ "{,}", "here should be a text", 1 },
		{ "{\"a\" 1}", "here should be :", 5 },
		{ "{\"a\":1 \"b\":2}", "here should be , or }", 7 },
		{ "{\"a\":[1 2]}", "here should be , or ]", 8 },
		{ "{\"a\":[1,]}", "here should be a value", 8 },
		{ "{\"a\":1]", "here should be , or }", 6 },
		{ "[1]", "here should be {", 0 },
		{ "{} x", "something behind the end", 3 },
		{ "{}{}", "something behind the end", 2 },
		{ "{'a':1}", "here should be a text", 1 },
		{ "{\"a", "it ends within a text", 3 },
		{ "{\"a\n\":1}", "a control character in a text", 3 },
		{ "{\"\\x\":1}", "an escape that JSON does not have", 4 },
		{ "{\"\\", "an escape that JSON does not have", 3 },
		{ "{\"\\u12\":1}", "no \\u with four", 6 },
		{ "{\"\\u0000\":1}", "no \\u with four", 8 },
		{ "{\"\\ud83d\":1}", "no \\u with four", 8 },
		{ "{\"\\ude00\":1}", "no \\u with four", 8 },
		{ "{\"\\ud83d\\u0041\":1}", "no \\u with four", 14 },
		{ "{\"\xff\":1}", "a text that is not UTF-8", 2 },
		{ "{\"\xc0\x80\":1}", "not UTF-8", 2 },
		{ "{\"\xed\xa0\x80\":1}", "not UTF-8", 2 },
		{ "{\"\xe0\x80\x80\":1}", "not UTF-8", 2 },
		{ "{\"\xf4\x90\x80\x80\":1}", "not UTF-8", 2 },
		{ "{\"\xf0\x80\x80\x80\":1}", "not UTF-8", 2 },
		{ "{\"\xe2\x82", "not UTF-8", 2 },
		{ "{\"\xc3(\":1}", "not UTF-8", 2 },
		{ "{\"a\":tru}", "here should be a value", 5 },
		{ "{\"a\":-}", "here should be a value", 5 },
		{ "{\"a\":01}", "here should be , or }", 6 },
		{ "{\"a\":1.}", "here should be a value", 5 },
		{ "{\"a\":1e}", "here should be a value", 5 },
		{ "{\"a\":+1}", "here should be a value", 5 },
		{ "{\"a\":.5}", "here should be a value", 5 },
		{ "{\"a\":[[[[[[[[[[[[[[[[[[1]]]]]]]]]]]]]]]]]]}", "too deep", 21 },
	};
	char room[512];

	for (size_t i = 0; i < TT_COUNT(bad); i++) {
		struct tt_json j = cursor(room, bad[i].json);
		for (tt_json_enter(&j, '{'); tt_json_more(&j, '}');) {
			tt_json_key(&j);
			tt_json_skip(&j);
		}
		tt_json_end(&j);
		bool right = j.fault && strstr(j.fault, bad[i].fault) && j.fault_at == bad[i].at;
		if (!right)
			printf("%s: %s at %zu\n", bad[i].json, j.fault ? j.fault : "no fault", j.fault_at);
		CU_ASSERT_TRUE(right);
		CU_ASSERT_STRING_EQUAL(tt_json_text(&j), "");
		CU_ASSERT_EQUAL(tt_json_number(&j), 0);
	}
}

static void test_numbers(void)
{
	static const struct { const char *json; uint64_t value; bool good;
	} numbers[] = {
		{ "0", 0, true },
		{ "7 ", 7, true },
		{ "9223372036854775807", INT64_MAX, true },
		{ "9223372036854775808", 0, false },
		{ "9223372036854775810", 0, false },
		{ "18446744073709551616", 0, false },
		{ "-1", 0, false },
		{ "00", 0, false },
		{ "01", 0, false },
		{ "1.0", 0, false },
		{ "1e3", 0, false },
		{ "", 0, false },
		{ "x", 0, false },
		{ "99999999999999999999999999", 0, false },
	};
	char room[512];

	for (size_t i = 0; i < TT_COUNT(numbers); i++) {
		struct tt_json j = cursor(room, numbers[i].json);
		CU_ASSERT_EQUAL(tt_json_number(&j), numbers[i].value);
		CU_ASSERT_EQUAL(!j.fault, numbers[i].good);
	}
}

static void test_skipping(void)
{
	char room[512];
	struct tt_json j =
		cursor(room, "[ -0.5e+10, {\"a\":[true,false,null,{}],\"b\":\"\\n\"}, [], 1E-2, 0, [[[[[[1]]]]]], 5]");
	int n = 0;

	for (tt_json_enter(&j, '['); n < 6 && tt_json_more(&j, ']'); n++)
		tt_json_skip(&j);
	CU_ASSERT_TRUE(tt_json_more(&j, ']'));
	CU_ASSERT_EQUAL(tt_json_number(&j), 5);
	CU_ASSERT_FALSE(tt_json_more(&j, ']'));
	tt_json_end(&j);
	CU_ASSERT_PTR_NULL(j.fault);
}

/* ---- safetensors files ---- */

static uint64_t bytes_of(const struct tt_tensor *t)
{
	uint64_t n = tt_type_size(t->type);

	for (int i = 0; i < t->dims; i++)
		n *= t->shape[i];
	return n;
}

static uint8_t byte_at(const char *name, uint64_t i)
{
	return (uint8_t)((i * 2654435761u >> 13) ^ (uint64_t)*name ^ i);
}

static uint8_t *content(const struct tt_tensor *t)
{
	uint8_t *b = malloc(bytes_of(t) + 1);

	for (uint64_t i = 0; i < bytes_of(t); i++)
		b[i] = byte_at(t->name, i);
	return b;
}

/* Written in pieces of `piece` bytes. */
static int write_tensors(const char *name, const struct tt_tensor *of, size_t n, const struct tt_metadata *notes,
                         size_t note_count, size_t piece)
{
	struct tt_tensors_writer w;
	int err = tt_tensors_begin(&w, in_folder(name), of, n, notes, note_count);

	for (size_t i = 0; !err && i < n; i++) {
		uint8_t *b = content(&of[i]);
		for (size_t at = 0; !err && at < bytes_of(&of[i]); at += piece)
			err = tt_tensors_put(&w, b + at, tt_min(piece, bytes_of(&of[i]) - at));
		free(b);
		if (err)
			tt_tensors_drop(&w);
	}
	return err ? err : tt_tensors_end(&w);
}

static bool reads(const struct tt_tensors *f, const struct tt_tensor *as, uint64_t first, uint64_t count)
{
	const struct tt_tensor *t = tt_tensors_find(f, as->name);
	size_t width = tt_type_size(as->type), len = count * width;
	uint8_t *got = malloc(len + 2);
	bool right = t && t->type == as->type && t->dims == as->dims && !memcmp(t->shape, as->shape, sizeof t->shape);

	got[0] = got[len + 1] = 0xee;
	right = right && t->at % width == 0 && !tt_tensors_read(f, t, first, count, got + 1);
	for (size_t i = 0; right && i < len; i++)
		right = got[1 + i] == byte_at(as->name, first * width + i);
	right = right && got[0] == 0xee && got[len + 1] == 0xee;
	free(got);
	return right;
}

static const struct tt_tensor all_types[] = {
	{ .name = "half", .type = TUTTI_F16, .dims = 2, .shape = { 3, 5 } },
	{ .name = "brain", .type = TUTTI_BF16, .dims = 1, .shape = { 7 } },
	{ .name = "single", .type = TUTTI_F32, .dims = 3, .shape = { 2, 3, 11 } },
	{ .name = "double", .type = TUTTI_F64, .dims = 1, .shape = { 9 } },
	{ .name = "int", .type = TUTTI_I32, .dims = 1, .shape = { 1 } },
	{ .name = "clock", .type = TUTTI_I64, .dims = 1, .shape = { 4 } },
	{ .name = "scalar", .type = TUTTI_F32 },
	{ .name = "none", .type = TUTTI_F64, .dims = 2, .shape = { 0, 1000 } },
	{ .name = "a \"name\" \\ with\n \u00e4", .type = TUTTI_F32, .dims = 8, .shape = { 1, 1, 2, 1, 1, 1, 1, 2 } },
};
static const struct tt_metadata some_notes[] = { { "rule", "adam" },
	                                         { "\u00e4 \"key\"", "line\nline\x01" },
	                                         { "empty", "" } };

static void test_round_trips(void)
{
	static const size_t pieces[] = { 1, 7, 64, 1 << 20 };
	struct tt_tensors *f;

	for (size_t k = 0; k < TT_COUNT(pieces); k++) {
		CU_ASSERT_EQUAL_FATAL(write_tensors("all", all_types, TT_COUNT(all_types), some_notes,
		                                    TT_COUNT(some_notes), pieces[k]),
		                      0);
		CU_ASSERT_EQUAL_FATAL(tt_tensors_open(in_folder("all"), &f), 0);
		CU_ASSERT_EQUAL(f->count, TT_COUNT(all_types));
		for (size_t i = 0; i < TT_COUNT(all_types); i++)
			CU_ASSERT_TRUE(
				reads(f, &all_types[i], 0, bytes_of(&all_types[i]) / tt_type_size(all_types[i].type)));
		for (size_t i = 0; i < TT_COUNT(some_notes); i++)
			CU_ASSERT_STRING_EQUAL(tt_tensors_note(f, some_notes[i].key), some_notes[i].value);
		CU_ASSERT_PTR_NULL(tt_tensors_note(f, "no such"));
		CU_ASSERT_PTR_NULL(tt_tensors_find(f, "no such"));
		CU_ASSERT_EQUAL(f->data % 64, 0);
		CU_ASSERT_EQUAL(count_files(), 1);
		tt_tensors_close(f);
	}
	empty_folder();
}

static void test_nothing_at_all(void)
{
	struct tt_tensors *f;

	CU_ASSERT_EQUAL_FATAL(write_tensors("none", NULL, 0, NULL, 0, 1), 0);
	CU_ASSERT_EQUAL_FATAL(tt_tensors_open(in_folder("none"), &f), 0);
	CU_ASSERT_EQUAL(f->count, 0);
	CU_ASSERT_PTR_NULL(tt_tensors_find(f, "x"));
	tt_tensors_close(f);
	tt_tensors_close(NULL);
	empty_folder();
}

static const struct tt_tensor large[] = { { .name = "odd", .type = TUTTI_F16, .dims = 1, .shape = { 5 } },
	                                  { .name = "large", .type = TUTTI_F32, .dims = 1, .shape = { 2500001 } } };

static void test_sub_ranges(void)
{
	enum { BLOCK = TT_TENSOR_BLOCK / 4, ALL = 2500001 };
	static const uint64_t ranges[][2] = { { 0, ALL },
		                              { 0, 1 },
		                              { 0, 0 },
		                              { ALL, 0 },
		                              { ALL - 1, 1 },
		                              { BLOCK - 1, 2 },
		                              { BLOCK, BLOCK },
		                              { 5, ALL - 7 },
		                              { BLOCK - 3, BLOCK + 9 },
		                              { 2 * BLOCK, ALL - 2 * BLOCK },
		                              { 1, 1 } };
	struct tt_tensors *f;
	char b[4];

	CU_ASSERT_EQUAL_FATAL(write_tensors("large", large, 2, NULL, 0, 1000003), 0);
	CU_ASSERT_EQUAL_FATAL(tt_tensors_open(in_folder("large"), &f), 0);
	for (size_t i = 0; i < TT_COUNT(ranges); i++)
		CU_ASSERT_TRUE(reads(f, &large[1], ranges[i][0], ranges[i][1]));
	CU_ASSERT_EQUAL(tt_tensors_read(f, tt_tensors_find(f, "large"), ALL, 1, b), -ERANGE);
	CU_ASSERT_TRUE(said("\"large\" has 2500001 elements, none from 2500001 to 2500002"));
	CU_ASSERT_EQUAL(tt_tensors_read(f, tt_tensors_find(f, "large"), 1, UINT64_MAX, b), -ERANGE);
	tt_tensors_close(f);
	empty_folder();
}

static void spoil(const char *name, long at) /* one bit; counted from the end if below 0 */
{
	size_t len;
	char *b = read_raw(name, &len);

	b[at < 0 ? (long)len + at : at] ^= 1;
	write_raw(name, b, len);
	free(b);
}

static void test_damaged_data(void)
{
	enum { BLOCK = TT_TENSOR_BLOCK / 4, ALL = 2500001 };
	struct tt_tensors *f;
	char sentence[100];
	float *got = malloc(ALL * sizeof *got);

	CU_ASSERT_EQUAL_FATAL(write_tensors("large", large, 2, NULL, 0, 1 << 20), 0);
	CU_ASSERT_EQUAL_FATAL(tt_tensors_open(in_folder("large"), &f), 0);
	const struct tt_tensor *t = tt_tensors_find(f, "large");
	spoil("large", (long)t->at + TT_TENSOR_BLOCK + 17); /* a word in the second block */
	tt_tensors_close(f);
	CU_ASSERT_EQUAL_FATAL(tt_tensors_open(in_folder("large"), &f), 0);
	t = tt_tensors_find(f, "large");
	CU_ASSERT_EQUAL(tt_tensors_read(f, t, 0, ALL, got), -EBADMSG);
	snprintf(sentence, sizeof sentence, "\"large\" is damaged: bytes %llu to %llu do not have their checksum",
	         (unsigned long long)t->at + TT_TENSOR_BLOCK, (unsigned long long)t->at + 2 * TT_TENSOR_BLOCK);
	CU_ASSERT_TRUE(said(sentence));
	/* far from the word, but in its block */
	CU_ASSERT_EQUAL(tt_tensors_read(f, t, 2 * BLOCK - 1, 1, got), -EBADMSG);
	CU_ASSERT_TRUE(reads(f, &large[1], 0, BLOCK));
	CU_ASSERT_TRUE(reads(f, &large[1], 2 * BLOCK, ALL - 2 * BLOCK));
	CU_ASSERT_TRUE(reads(f, &large[0], 0, 5));
	tt_tensors_close(f);
	free(got);
	empty_folder();
}

/* No bit of a file of ours can change unnoticed, nor can it end anywhere earlier, or later. */
static void test_every_bit_counts(void)
{
	size_t len, missed = 0;
	struct tt_tensors *f;

	CU_ASSERT_EQUAL_FATAL(
		write_tensors("all", all_types, TT_COUNT(all_types), some_notes, TT_COUNT(some_notes), 1 << 20), 0);
	char *b = read_raw("all", &len), room[512];
	for (size_t at = 0; at < len; at++) {
		b[at] ^= (char)(1 << at % 8);
		write_raw("bad", b, len);
		b[at] ^= (char)(1 << at % 8);
		int err = (f = NULL, tt_tensors_open(in_folder("bad"), &f));
		bool ours = !err && f->seal && f->sums; /* else it passes for a stranger's: the index knows better */
		for (size_t i = 0; !err && i < f->count; i++)
			err = tt_tensors_read(f, &f->of[i], 0, f->of[i].count, room);
		missed += !err && ours;
		tt_tensors_close(f);
	}
	CU_ASSERT_EQUAL(missed, 0);
	for (size_t n = 0; n < len; n++) {
		write_raw("bad", b, n);
		missed += tt_tensors_open(in_folder("bad"), &f) != -EBADMSG;
	}
	b[len] = 0;
	write_raw("bad", b, len + 1);
	missed += tt_tensors_open(in_folder("bad"), &f) != -EBADMSG;
	CU_ASSERT_EQUAL(missed, 0);
	CU_ASSERT_TRUE(said("belong to no array"));
	free(b);
	empty_folder();
}

/* As the reference library writes it: sorted by type, spaces at the end, no checksums. */
static void test_a_strangers_file(void)
{
	uint8_t got[24];
	struct tt_tensors *f;

	write_file(
		"theirs",
		"{\"__metadata__\":{\"format\":\"pt\"},\"b\":{\"dtype\":\"I64\",\"shape\":[2],\"data_offsets\":[0,16]},"
		"\"a\":{\"shape\":[2,2],\"data_offsets\":[16,24],\"new\":{\"x\":[1.5,null]},\"dtype\":\"F16\"},"
		"\"s\":{\"dtype\":\"BF16\",\"shape\":[],\"data_offsets\":[24,26]},"
		"\"e\":{\"dtype\":\"F32\",\"shape\":[4,0],\"data_offsets\":[24,24]}}      ",
		26);
	CU_ASSERT_EQUAL_FATAL(tt_tensors_open(in_folder("theirs"), &f), 0);
	CU_ASSERT_EQUAL(f->count, 4);
	CU_ASSERT_PTR_NULL(f->sums);
	CU_ASSERT_STRING_EQUAL(tt_tensors_note(f, "format"), "pt");
	const struct tt_tensor *a = tt_tensors_find(f, "a"), *s = tt_tensors_find(f, "s");
	CU_ASSERT_FATAL(a && s && a->dims == 2 && a->shape[1] == 2 && a->type == TUTTI_F16 && s->dims == 0 &&
	                s->count == 1);
	CU_ASSERT_EQUAL(tt_tensors_read(f, a, 1, 2, got), 0);
	CU_ASSERT_EQUAL(got[0], 18);
	CU_ASSERT_EQUAL(got[3], 21);
	tt_tensors_close(f);
	empty_folder();
}

static void test_seals(void)
{
	char text[] = "{\"s\":\"................\",\"x\":1}";

	CU_ASSERT_TRUE(tt_seal_put(text, strlen(text), "{\"s\":\""));
	CU_ASSERT_TRUE(tt_seal_holds(text, strlen(text), "{\"s\":\""));
	text[sizeof text - 3] = '2';
	CU_ASSERT_FALSE(tt_seal_holds(text, strlen(text), "{\"s\":\""));
	CU_ASSERT_TRUE(tt_seal_holds(text, strlen(text), "{\"t\":\"")); /* not one of those */
	CU_ASSERT_FALSE(tt_seal_put(text, strlen(text), "{\"t\":\""));
	CU_ASSERT_FALSE(tt_seal_put(text, 20, "{\"s\":\""));
}

#define T(name, dtype, shape, from, to) \
	"\"" name "\":{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":[" #from "," #to "]}"

/* Another program's arrays: those that Tutti can have are read, the others keep their place, and refuse by name. */
static void test_other_types(void)
{
	static const struct { const char *dtype, *shape; size_t bytes; const char *says;
	} others[] = {
		{ "BOOL", "[4]", 4, "has BOOL: Tutti reads arrays of F32" },
		{ "U8", "[2,2]", 4, "has U8" },
		{ "U16", "[3]", 6, "has U16" },
		{ "F8_E4M3", "[8]", 8, "has F8_E4M3" },
		{ "F4", "[8]", 4, "has F4" },
		{ "f32", "[1]", 4, "has f32" },
		{ "F32", "[1,1,1,1,1,1,1,1,1,1]", 4, "has too many dimensions" },
	};
	char header[600];
	float values[2] = { 0 };

	for (size_t i = 0; i < TT_COUNT(others); i++) {
		size_t n = others[i].bytes;
		struct tt_save *s = NULL;
		snprintf(header, sizeof header, "{\"q[0:9/9]\":{\"dtype\":\"%s\",\"shape\":%s,"
		         "\"data_offsets\":[0,%zu]},\"w\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":"
		         "[%zu,%zu]}}", others[i].dtype, others[i].shape, n, n, n + 8);
		write_file("o.safetensors", header, n + 8);
		CU_ASSERT_EQUAL_FATAL(tt_save_open(folder, "o", &s), 0);
		CU_ASSERT_EQUAL(tt_save_read(s, tt_save_find(s, "w"), 0, 2, values), 0);
		CU_ASSERT_EQUAL(((uint8_t *)values)[7], (uint8_t)(n + 7));
		CU_ASSERT_EQUAL(tt_save_read(s, tt_save_find(s, "q[0:9/9]"), 0, n, header), -ENOTSUP);
		CU_ASSERT_TRUE(said(others[i].says) && said("o.safetensors: \"q[0:9/9]\""));
		tt_save_close(s);
	}
}

static void test_damaged_headers(void)
{
	static const struct { const char *header; size_t data; int err; const char *sentence;
	} bad[] = {
		{ "", 0, -EBADMSG, "bad JSON at byte 8: it ends too early" },
		{ "[]", 0, -EBADMSG, "bad JSON at byte 8: here should be {" },
		{ "{\"a\":1}", 0, -EBADMSG, "bad JSON at byte 13: here should be {" },
		{ "{" T("a", "F32", "[1]", 0, 4) ",}", 4, -EBADMSG, "bad JSON at byte 62: here should be a text" },
		{ "{" T("a", "F32", "[1]", 0, 4) "} \n x", 4, -EBADMSG, "something behind the end" },
		{ "{" T("a", "F32", "[-1]", 0, 4) "}", 4, -EBADMSG, "here should be a whole number" },
		{ "{" T("a", "F32", "[1.0]", 0, 4) "}", 4, -EBADMSG, "here should be a whole number" },
		{ "{" T("a", "F32", "[[1]]", 0, 4) "}", 4, -EBADMSG, "here should be a whole number" },
		{ "{\"a\":{\"x\":[[[[[[[[[[[[[[[[[[[[[[]]]]]]]]]]]]]]]]]]]]]]}}", 0, -EBADMSG, "too deep" },
		{ "{" T("a", "U8", "[4]", 4, 8) "}", 8, -EBADMSG, "a hole of 4 bytes before \"a\"" },
		{ "{" T("a", "U8", "[4]", 0, 8) "}", 4, -EBADMSG, "\"a\" ends beyond the end of the file" },
		{ "{" T("a", "U8", "[4]", 0, 4) "," T("b", "F32", "[1]", 2, 6) "}", 6, -EBADMSG, "\"b\" overlaps" },
		{ "{\"a\":{\"dtype\":\"F32\",\"shape\":[1]}}", 0, -EBADMSG,
		  "\"a\" lacks one of dtype, shape and data_offsets" },
		{ "{\"a\":{\"dtype\":\"F32\",\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4, -EBADMSG,
		  "\"a\" has two of dtype" },
		{ "{" T("a", "F32", "[2]", 0, 4) "}", 4, -EBADMSG,
		  "the shape of \"a\", of F32, does not make the 4 bytes" },
		{ "{" T("a", "F32", "[4294967296,4294967296,4]", 0, 4) "}", 4, -EBADMSG, "does not make the 4 bytes" },
		{ "{" T("a", "F32", "[4611686018427387905]", 0, 4) "}", 4, -EBADMSG, "does not make the 4 bytes" },
		{ "{" T("a", "F32", "[1]", 4, 0) "}", 4, -EBADMSG, "the data_offsets of \"a\" are not two" },
		{ "{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0]}}", 4, -EBADMSG,
		  "the data_offsets of \"a\" are not two" },
		{ "{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4,4]}}", 4, -EBADMSG,
		  "the data_offsets of \"a\" are not two" },
		{ "{" T("a", "F32", "[2]", 0, 8) "}", 4, -EBADMSG, "\"a\" ends beyond the end of the file at byte 66" },
		{ "{" T("a", "F32", "[2305843009213693951]", 0, 9223372036854775804) "}", 4, -EBADMSG,
		  "\"a\" ends beyond the end of the file" },
		{ "{" T("a", "F32", "[1]", 0, 4) "}", 9, -EBADMSG, "5 bytes from byte 66 on belong to no array" },
		{ "{" T("a", "F32", "[1]", 0, 4) "," T("b", "F32", "[1]", 2, 6) "}", 6, -EBADMSG,
		  "\"b\" overlaps another array at byte " },
		{ "{" T("b", "F32", "[1]", 8, 12) "," T("a", "F32", "[1]", 0, 4) "}", 12, -EBADMSG,
		  "a hole of 4 bytes before \"b\", at byte " },
		{ "{" T("a", "F32", "[1]", 4, 8) "}", 8, -EBADMSG, "a hole of 4 bytes before \"a\"" },
		{ "{" T("a", "F32", "[1]", 0, 4) "," T("\\u0061", "F32", "[1]", 4, 8) "}", 8, -EBADMSG,
		  "two arrays are named \"a\"" },
		{ "{\"__metadata__\":{\"a\":\"1\",\"a\":\"2\"}}", 0, -EBADMSG, "__metadata__ has two of \"a\"" },
		{ "{\"__metadata__\":{\"a\":\"1\"},\"__metadata__\":{\"b\":\"2\"}}", 0, -EBADMSG,
		  "two of __metadata__" },
		{ "{\"__metadata__\":{\"a\":1}}", 0, -EBADMSG, "here should be a text" },
		{ "{\"__metadata__\":{\"x\":\"\",\"tutti_sums\":\"0123\"}," T("a", "F32", "[1]", 0, 4) "}", 4, -EBADMSG,
		  "tutti_sums is not 1 checksums of 16 digits" },
		{ "{\"__metadata__\":{\"tutti_sums\":\"0123456789ABCDEF\"}," T("a", "F32", "[1]", 0, 4) "}", 4,
		  -EBADMSG, "tutti_sums is not 1 checksums" },
		{ "{\"__metadata__\":{\"tutti_seal\":\"0123456789abcdef\"}," T("a", "F32", "[1]", 0, 4) "}", 4,
		  -EBADMSG, "does not have the checksum that it names" },
	};

	for (size_t i = 0; i < TT_COUNT(bad); i++) {
		write_file("bad", bad[i].header, bad[i].data);
		CU_ASSERT_TRUE(is_refused("bad", bad[i].err, bad[i].sentence));
	}
	empty_folder();
}

static void test_no_safetensors_file(void)
{
	uint8_t huge[16] = { 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, '{', '}' },
		long_one[16] = { 100, 0, 0, 0, 0, 0, 0, 0, '{', '}' };
	uint8_t too_long[8] = { 0x01, 0xe1, 0xf5, 0x05 }; /* 100,000,001 */

	write_raw("f", huge, sizeof huge);
	CU_ASSERT_TRUE(is_refused("f", -EBADMSG, "the header would have 18446744073709551615 bytes, the file has 16"));
	write_raw("f", long_one, sizeof long_one);
	CU_ASSERT_TRUE(is_refused("f", -EBADMSG, "the header would have 100 bytes, the file has 16"));
	write_raw("f", too_long, sizeof too_long);
	CU_ASSERT_FATAL(!truncate(in_folder("f"), 200000000)); /* long enough, and yet */
	CU_ASSERT_TRUE(is_refused("f", -EBADMSG, "a header at most 100000000"));
	write_raw("f", huge, 7);
	CU_ASSERT_TRUE(is_refused("f", -EBADMSG, "has 7 bytes, fewer than the 8"));
	write_raw("f", huge, 0);
	CU_ASSERT_TRUE(is_refused("f", -EBADMSG, "has 0 bytes"));
	unlink(in_folder("f"));
	CU_ASSERT_TRUE(is_refused("f", -ENOENT, "No such file"));
	CU_ASSERT_FATAL(!mkfifo(in_folder("f"), 0600));
	CU_ASSERT_TRUE(is_refused("f", -EINVAL, "is no file")); /* and does not wait for a writer */
	empty_folder();
}

static void test_cut_off_while_open(void)
{
	struct tt_tensors *f;
	double got[9];

	CU_ASSERT_EQUAL_FATAL(write_tensors("all", all_types, TT_COUNT(all_types), NULL, 0, 100), 0);
	CU_ASSERT_EQUAL_FATAL(tt_tensors_open(in_folder("all"), &f), 0);
	const struct tt_tensor *t = tt_tensors_find(f, "double");
	CU_ASSERT_FATAL(t && !truncate(in_folder("all"), (off_t)t->at + 5));
	CU_ASSERT_EQUAL(tt_tensors_read(f, t, 0, 9, got), -EBADMSG);
	CU_ASSERT_TRUE(said("cut off while it was read"));
	tt_tensors_close(f);
	empty_folder();
}

static void test_what_cannot_be_written(void)
{
	static const struct tt_tensor twins[] = { { .name = "x" }, { .name = "x" } },
				      reserved = { .name = "__metadata__" }, bent = { .name = "\xff" },
				      many = { .name = "x", .dims = 9 },
				      strange = { .name = "x", .type = (tutti_type)99 },
				      enormous = { .name = "x", .dims = 2, .shape = { UINT64_MAX, 3 } };
	enum { BLOCKS = 6249999 }; /* whose checksums alone make the longest header */
	static const struct tt_tensor endless = { .name = "x", .dims = 2, .shape = { BLOCKS, TT_TENSOR_BLOCK / 4 } },
		beyond = { .name = "x", .dims = 2, .shape = { BLOCKS + 2, TT_TENSOR_BLOCK / 4 } };
	static const struct tt_metadata ours = { "tutti_seal", "" }, pair[] = { { "a", "" }, { "a", "" } };
	struct tt_tensors_writer w;
	float four[4] = { 0 };

	CU_ASSERT_EQUAL(write_tensors("f", twins, 2, NULL, 0, 9), -EINVAL);
	CU_ASSERT_TRUE(said("two arrays would be named \"x\""));
	CU_ASSERT_EQUAL(write_tensors("f", &reserved, 1, NULL, 0, 9), -EINVAL);
	CU_ASSERT_EQUAL(write_tensors("f", &bent, 1, NULL, 0, 9), -EINVAL);
	CU_ASSERT_TRUE(said("not UTF-8"));
	CU_ASSERT_EQUAL(write_tensors("f", &many, 1, NULL, 0, 9), -EINVAL);
	CU_ASSERT_EQUAL(write_tensors("f", &strange, 1, NULL, 0, 9), -EINVAL);
	CU_ASSERT_EQUAL(write_tensors("f", &enormous, 1, NULL, 0, 9), -EINVAL);
	CU_ASSERT_EQUAL(tt_tensors_begin(&w, in_folder("f"), &endless, 1, NULL, 0), -EFBIG);
	CU_ASSERT_TRUE(said("a header of more than 100000000 bytes"));
	CU_ASSERT_EQUAL(tt_tensors_begin(&w, in_folder("f"), &beyond, 1, NULL, 0), -EFBIG);
	CU_ASSERT_EQUAL(write_tensors("f", NULL, 0, &ours, 1, 9), -EINVAL);
	CU_ASSERT_EQUAL(write_tensors("f", NULL, 0, pair, 2, 9), -EINVAL);
	CU_ASSERT_EQUAL(write_tensors("no/such/folder", NULL, 0, NULL, 0, 9), -ENOENT);

	CU_ASSERT_EQUAL_FATAL(tt_tensors_begin(&w, in_folder("f"), twins, 1, NULL, 0), 0);
	CU_ASSERT_EQUAL(tt_tensors_put(&w, four, 3), 0);
	CU_ASSERT_EQUAL(tt_tensors_end(&w), -EINVAL);
	CU_ASSERT_TRUE(said("lacks bytes: \"x\" has got 3 of its 4"));
	CU_ASSERT_EQUAL_FATAL(tt_tensors_begin(&w, in_folder("f"), twins, 1, NULL, 0), 0);
	CU_ASSERT_EQUAL(tt_tensors_put(&w, four, 5), -EINVAL);
	CU_ASSERT_TRUE(said("1 bytes more than its arrays have"));
	tt_tensors_drop(&w);
	tt_tensors_drop(&w);
	CU_ASSERT_EQUAL(count_files(), 0);
}

/* Whatever happens to the disk: what was there before is there still, and nothing else. */
static void expect_failure(int err, const char *sentence)
{
	struct tt_tensors *f;

	CU_ASSERT_EQUAL(write_tensors("f", large, 2, NULL, 0, 1 << 20), err);
	CU_ASSERT_TRUE(said(sentence));
	mend_disk();
	CU_ASSERT_EQUAL(count_files(), 1);
	CU_ASSERT_EQUAL_FATAL(tt_tensors_open(in_folder("f"), &f), 0);
	CU_ASSERT_TRUE(reads(f, &all_types[0], 0, 15));
	tt_tensors_close(f);
}

static void test_disks_that_fail(void)
{
	struct rlimit was, little;
	struct tt_tensors *f;

	CU_ASSERT_EQUAL_FATAL(write_tensors("f", all_types, 1, NULL, 0, 9), 0);
	disk.room = 5000000;
	expect_failure(-ENOSPC, "No space left on device");
	disk.room = 10000014 + 100; /* within the header, which comes last */
	expect_failure(-ENOSPC, "No space left on device");
	disk.stuck = true;
	expect_failure(-ENOSPC, "No space left on device");
	disk.sync_error = EIO;
	expect_failure(-EIO, "cannot sync");
	disk.early_error = EIO;
	expect_failure(-EIO, "cannot write");
	CU_ASSERT_FATAL(!mkdir(in_folder("d"), 0700));
	CU_ASSERT_EQUAL(write_tensors("d", all_types, 1, NULL, 0, 9), -EISDIR);
	CU_ASSERT_TRUE(said("cannot put in place"));
	CU_ASSERT_FATAL(!rmdir(in_folder("d")));
	getrlimit(RLIMIT_FSIZE, &was);
	little = was;
	little.rlim_cur = 1 << 20;
	setrlimit(RLIMIT_FSIZE, &little);
	expect_failure(-EFBIG, "ulimit -f"); /* and no signal */
	setrlimit(RLIMIT_FSIZE, &was);

	disk.early_error = EINVAL; /* of a file system that has no such thing */
	CU_ASSERT_EQUAL(write_tensors("f", large, 2, NULL, 0, 1 << 20), 0);
	mend_disk();
	disk.most = 1000;
	disk.interrupt = true;
	CU_ASSERT_EQUAL(write_tensors("f", all_types, TT_COUNT(all_types), NULL, 0, 1 << 20), 0);
	CU_ASSERT_EQUAL_FATAL(tt_tensors_open(in_folder("f"), &f), 0);
	disk.most = 3;
	for (size_t i = 0; i < TT_COUNT(all_types); i++)
		CU_ASSERT_TRUE(reads(f, &all_types[i], 0, bytes_of(&all_types[i]) / tt_type_size(all_types[i].type)));
	disk.read_error = EIO;
	CU_ASSERT_EQUAL(tt_tensors_read(f, tt_tensors_find(f, "clock"), 0, 4, (int64_t[4]){ 0 }), -EIO);
	CU_ASSERT_TRUE(is_refused("f", -EIO, "at byte 0: Input/output error"));
	tt_tensors_close(f);
	empty_folder();
}

/* When the file is in place and only its folder cannot be synced: it is whole, and may be gone after a crash. */
static void test_a_folder_that_fails(void)
{
	struct tt_tensors *f;

	CU_ASSERT_EQUAL_FATAL(write_tensors("f", all_types, 1, NULL, 0, 9), 0);
	disk.sync_error = EIO;
	disk.synced = 1;
	CU_ASSERT_EQUAL(write_tensors("f", all_types, 2, NULL, 0, 9), -EIO);
	CU_ASSERT_TRUE(said("cannot sync the folder of"));
	mend_disk();
	CU_ASSERT_EQUAL(count_files(), 1);
	CU_ASSERT_EQUAL_FATAL(tt_tensors_open(in_folder("f"), &f), 0);
	CU_ASSERT_TRUE(reads(f, &all_types[1], 0, 7));
	tt_tensors_close(f);
	empty_folder();
}

/* A window is begun when it is written, wherever that begins, and awaited four windows later: there is little left to
 * sync at the end. */
static void test_begun_early(void)
{
	enum { MIB = 1 << 20, SIZE = 96 * MIB };
	char *piece = calloc(1, MIB);
	struct tt_atomic_file d;

	CU_ASSERT_EQUAL_FATAL(tt_atomic_file_begin(&d, in_folder("f"), SIZE), 0);
	for (uint64_t at = 0; at < SIZE; at += MIB)
		CU_ASSERT_EQUAL(tt_atomic_file_write(&d, piece, MIB, (at + SIZE / 2) % SIZE), 0);
	CU_ASSERT_EQUAL(disk.begun, SIZE);
	CU_ASSERT_EQUAL(disk.awaited, SIZE - 2 * 32 * MIB);
	tt_atomic_file_drop(&d);
	free(piece);
	empty_folder();
}

enum { NO_MOUNT = 42 };

static int fill_little_disk(void) /* in a child: a file system of its own, of 1 MiB */
{
	if (unshare(CLONE_NEWNS | (geteuid() ? CLONE_NEWUSER : 0)) ||
	    mount("none", "/", "none", MS_REC | MS_PRIVATE, NULL) || mount("none", folder, "tmpfs", 0, "size=1m"))
		return NO_MOUNT;
	return write_tensors("f", large, 2, NULL, 0, 1 << 20) == -ENOSPC && said("no room for the 10000") &&
	                       count_files() == 0
	               ? 0
	               : 1;
}

static void test_a_full_disk(void)
{
	pid_t pid = fork();
	int status = 0;

	if (!pid)
		_exit(fill_little_disk());
	CU_ASSERT_EQUAL(waitpid(pid, &status, 0), pid);
	if (WIFEXITED(status) && WEXITSTATUS(status) == NO_MOUNT)
		printf("a full disk: not tried, this process may not mount one\n");
	else
		CU_ASSERT_EQUAL(status, 0);
}

/* ---- saves ---- */

enum { ROWS = 1000, WIDTH = 12 };

static int32_t value_at(uint64_t stamp, uint64_t i) { return (int32_t)(stamp * 1000003 + i); }

/* One server's part of a matrix, with a clock of its own. */
static int save_shard(const char *name, uint64_t generation, int i, int shards, uint64_t from, uint64_t to)
{
	char slice[64], clock[64], *file;
	struct tt_tensor of[] = { { .name = slice, .type = TUTTI_I32, .dims = 2, .shape = { to - from, WIDTH } },
		                  { .name = clock, .type = TUTTI_I64, .dims = 1, .shape = { 1 } } };
	struct tt_metadata note = { "rule", "adam" };
	int64_t time = (int64_t)generation;
	int32_t *rows = malloc((to - from) * WIDTH * 4 + 1);
	struct tt_tensors_writer w;

	tt_slice_name(slice, sizeof slice, "weight", from, to, ROWS);
	snprintf(clock, sizeof clock, "clock.%d", i);
	for (uint64_t k = 0; k < (to - from) * WIDTH; k++)
		rows[k] = value_at(generation, from * WIDTH + k);
	int err = tt_save_shard(folder, name, generation, i, shards, &file);
	if (!err)
		err = tt_tensors_begin(&w, file, of, 2, &note, 1);
	if (!err)
		err = tt_tensors_put(&w, rows, (to - from) * WIDTH * 4) || tt_tensors_put(&w, &time, 8)
		              ? -EIO
		              : tt_tensors_end(&w);
	free(rows);
	free(file);
	return err;
}

static int save_all(const char *name, int shards, uint64_t *generation)
{
	int err = tt_save_next(folder, name, generation);

	for (int i = 0; !err && i < shards; i++)
		err = save_shard(name, *generation, i, shards, (uint64_t)(ROWS * i / shards),
		                 (uint64_t)(ROWS * (i + 1) / shards));
	return err ? err : tt_save_commit(folder, name, *generation, shards);
}

/* As servers of another number: each reads its own rows. */
static bool loads(const char *name, int servers, uint64_t generation)
{
	struct tt_save *s;
	bool right = true;
	int32_t *rows = malloc(ROWS * WIDTH * 4);
	int64_t clock;

	if (tt_save_open(folder, name, &s))
		right = false;
	for (int i = 0; right && i < servers; i++) {
		const struct tt_saved *a = tt_save_find(s, "weight");
		uint64_t from = (uint64_t)(ROWS * i / servers) * WIDTH,
			 to = (uint64_t)(ROWS * (i + 1) / servers) * WIDTH;
		right = a && a->is.dims == 2 && a->is.shape[0] == ROWS && a->is.shape[1] == WIDTH &&
		        a->is.count == ROWS * WIDTH;
		right = right && !tt_save_read(s, a, from, to - from, rows);
		for (uint64_t k = from; right && k < to; k++)
			right = rows[k - from] == value_at(generation, k);
	}
	if (right) {
		const struct tt_saved *c = tt_save_find(s, "clock.0");
		const char *rule = tt_tensors_note(s->files[0], "rule");
		right = c && !tt_save_read(s, c, 0, 1, &clock) && clock == (int64_t)generation && rule &&
		        !strcmp(rule, "adam") && !tt_save_find(s, "other");
		right = right && tt_save_read(s, c, 0, 2, &clock) == -ERANGE &&
		        !tt_tensors_note(s->files[0], "no such");
		tt_save_close(s);
	}
	if (!right)
		printf("%s: %s\n", name, tt_why());
	free(rows);
	return right;
}

static void test_other_numbers_of_servers(void)
{
	static const int numbers[] = { 1, 2, 3, 7, 16 };
	uint64_t g;

	for (size_t i = 0; i < TT_COUNT(numbers); i++) {
		CU_ASSERT_EQUAL_FATAL(save_all("model", numbers[i], &g), 0);
		CU_ASSERT_EQUAL(g, i + 1);
		CU_ASSERT_EQUAL(count_files(), numbers[i] + 1); /* the files of the save before it are gone */
		for (size_t k = 0; k < TT_COUNT(numbers); k++)
			CU_ASSERT_TRUE(loads("model", numbers[k], g));
	}
	empty_folder();
}

static void test_more_shards_than_descriptors(void)
{
	enum { SHARDS = 40, FREE = 20 };
	struct rlimit usual, few;
	uint64_t g;

	CU_ASSERT_EQUAL(getrlimit(RLIMIT_NOFILE, &usual), 0);
	few = usual;
	int next = dup(0);
	close(next);
	few.rlim_cur = (rlim_t)next + FREE;
	CU_ASSERT_EQUAL(setrlimit(RLIMIT_NOFILE, &few), 0);
	CU_ASSERT_EQUAL(save_all("m", SHARDS, &g), 0);
	CU_ASSERT_EQUAL(setrlimit(RLIMIT_NOFILE, &usual), 0);
	CU_ASSERT_TRUE(loads("m", 1, g));
	empty_folder();
}

/* Two savers may have found one name free. */
static void test_only_new(void)
{
	struct tt_atomic_file first, second;
	size_t len;

	CU_ASSERT_EQUAL(tt_atomic_file_begin(&first, in_folder("x"), 1), 0);
	CU_ASSERT_EQUAL(tt_atomic_file_begin(&second, in_folder("x"), 1), 0);
	first.only_new = second.only_new = true;
	CU_ASSERT_EQUAL(tt_atomic_file_write(&first, "1", 1, 0), 0);
	CU_ASSERT_EQUAL(tt_atomic_file_write(&second, "2", 1, 0), 0);
	CU_ASSERT_EQUAL(tt_atomic_file_publish(&first), 0);
	CU_ASSERT_EQUAL(tt_atomic_file_publish(&second), -EEXIST);
	char *got = read_raw("x", &len);
	CU_ASSERT(len == 1 && *got == '1');
	free(got);
	empty_folder();
}

static void test_servers_without_rows(void)
{
	CU_ASSERT_EQUAL(save_shard("m", 1, 0, 3, 0, 0), 0);
	CU_ASSERT_EQUAL(save_shard("m", 1, 1, 3, 0, ROWS), 0);
	CU_ASSERT_EQUAL(save_shard("m", 1, 2, 3, ROWS, ROWS), 0);
	CU_ASSERT_EQUAL(tt_save_commit(folder, "m", 1, 3), 0);
	CU_ASSERT_TRUE(loads("m", 2, 1));
	empty_folder();
}

static void test_saves_side_by_side(void)
{
	uint64_t a, b;

	CU_ASSERT_EQUAL(save_all("m", 2, &a), 0);
	CU_ASSERT_EQUAL(save_all("m-1", 2, &b), 0);
	write_raw("m-00000001-00001-of-00002.safetensors.bak", "", 0);
	write_raw("m-00002-of-00002.safetensors", "", 0);
	CU_ASSERT_EQUAL(save_all("m", 3, &a), 0);
	CU_ASSERT_TRUE(loads("m", 2, a));
	CU_ASSERT_TRUE(loads("m-1", 2, b));
	CU_ASSERT_EQUAL(count_files(), 4 + 3 + 2); /* nothing that it does not know */
	empty_folder();
}

/* Who commits waits for another, but not for one that was stopped in the middle. */
static void test_a_lock_that_stays(void)
{
	int fd = open(folder, O_RDONLY | O_DIRECTORY);
	uint64_t g;

	CU_ASSERT_EQUAL_FATAL(flock(fd, LOCK_EX), 0);
	naps = 0;
	CU_ASSERT_EQUAL(save_all("m", 2, &g), -EBUSY);
	CU_ASSERT_TRUE(said("another process has been putting a save in place for 30 s"));
	CU_ASSERT_EQUAL(naps, 30000);
	naps = -1;
	close(fd);
	CU_ASSERT_EQUAL(save_all("m", 2, &g), 0);
	CU_ASSERT_TRUE(loads("m", 2, g));
	empty_folder();
}

static void expect_no_commit(uint64_t generation, int shards, const char *sentence)
{
	CU_ASSERT_EQUAL(tt_save_commit(folder, "m", generation, shards),
	                strstr(sentence, "No such") ? -ENOENT : -EBADMSG);
	CU_ASSERT_TRUE(said(sentence));
	CU_ASSERT_TRUE(loads("m", 2, 1)); /* the save before it stays */
}

static void test_what_is_no_save(void)
{
	uint64_t g;

	CU_ASSERT_EQUAL(save_all("m", 2, &g), 0);
	CU_ASSERT_EQUAL(save_shard("m", 2, 0, 2, 0, 500), 0);
	expect_no_commit(2, 2, "m-00000002-00002-of-00002.safetensors: No such file");
	CU_ASSERT_EQUAL(save_shard("m", 2, 1, 2, 501, ROWS), 0);
	expect_no_commit(2, 2, "rows 500 to 501 of \"weight\" are missing");
	CU_ASSERT_EQUAL(save_shard("m", 2, 1, 2, 498, ROWS), 0);
	expect_no_commit(2, 2, "rows 498 to 500 of \"weight\" are there twice");
	CU_ASSERT_EQUAL(save_shard("m", 2, 1, 2, 500, 990), 0);
	expect_no_commit(2, 2, "rows 990 to 1000 of \"weight\" are missing");
	write_file("m-00000002-00002-of-00002.safetensors", "{" T("weight[500:1000/1000]", "I32", "[500]", 0, 2000) "}",
	           2000);
	expect_no_commit(2, 2, "has no tutti_seal");
	static const struct tt_tensor
		other = { .name = "weight[500:1000/1000]", .type = TUTTI_F32, .dims = 2, .shape = { 500, WIDTH } },
		wide = { .name = "weight[500:1000/1000]", .type = TUTTI_I32, .dims = 2, .shape = { 500, WIDTH + 1 } },
		whole = { .name = "weight", .type = TUTTI_I32, .dims = 1, .shape = { 5 } },
		lying = { .name = "weight[500:1000/1000]", .dims = 1, .shape = { 499 } };
	CU_ASSERT_EQUAL(write_tensors("m-00000002-00002-of-00002.safetensors", &other, 1, NULL, 0, 1000), 0);
	expect_no_commit(2, 2, "are no parts of one array");
	CU_ASSERT_EQUAL(write_tensors("m-00000002-00002-of-00002.safetensors", &wide, 1, NULL, 0, 1000), 0);
	expect_no_commit(2, 2, "are no parts of one array");
	CU_ASSERT_EQUAL(write_tensors("m-00000002-00002-of-00002.safetensors", &whole, 1, NULL, 0, 1000), 0);
	expect_no_commit(2, 2, "are no parts of one array");
	CU_ASSERT_EQUAL(write_tensors("m-00000002-00002-of-00002.safetensors", &lying, 1, NULL, 0, 1000), 0);
	expect_no_commit(2, 2, "does not have the rows that its name says");
	CU_ASSERT_EQUAL(tt_save_next(folder, "m", &g), 0);
	CU_ASSERT_EQUAL(g, 3); /* not the number of what was begun and left */
	CU_ASSERT_EQUAL(save_all("m", 2, &g), 0);
	CU_ASSERT_EQUAL(count_files(), 3);
	/* what cannot be removed stays, and nothing fails */
	CU_ASSERT_FATAL(!mkdir(in_folder("m-00000004-00001-of-00001.safetensors"), 0700));
	CU_ASSERT_EQUAL(save_all("m", 2, &g), 0);
	CU_ASSERT_EQUAL(g, 5);
	CU_ASSERT_EQUAL(count_files(), 4);
	CU_ASSERT_FATAL(!rmdir(in_folder("m-00000004-00001-of-00001.safetensors")));
	empty_folder();
}

static bool save_is_refused(const char *sentence)
{
	struct tt_save *s = NULL;
	int err = tt_save_open(folder, "m", &s);

	tt_save_close(s);
	if (!err)
		printf("should say \"%s\", but is taken\n", sentence);
	return err && said(sentence);
}

/* Within the folder: what is there of that name is gone. */
static bool move(const char *from, const char *to)
{
	char other[sizeof path];

	snprintf(other, sizeof other, "%s/%s", folder, to);
	return !rename(in_folder(from), other);
}

static void test_damaged_saves(void)
{
	uint64_t g;
	size_t len;

	CU_ASSERT_TRUE(save_is_refused("m.safetensors.index.json: No such file"));
	CU_ASSERT_FATAL(!mkdir(in_folder("m.safetensors.index.json"), 0700));
	CU_ASSERT_TRUE(save_is_refused("is no index: it is no file"));
	CU_ASSERT_FATAL(!rmdir(in_folder("m.safetensors.index.json")));
	CU_ASSERT_EQUAL_FATAL(save_all("m", 2, &g), 0);
	char *index = read_raw("m.safetensors.index.json", &len);
	for (size_t at = 0; at < len; at++) { /* in any digit, name or bracket */
		index[at] ^= 4;
		write_raw("m.safetensors.index.json", index, len);
		index[at] ^= 4;
		struct tt_save *s = NULL;
		/* what does not begin like ours is a stranger's, if it is any */
		CU_ASSERT_TRUE(tt_save_open(folder, "m", &s) || at < 30);
		tt_save_close(s);
	}
	for (size_t n = 0; n < len - 1; n += 7) {
		write_raw("m.safetensors.index.json", index, n);
		CU_ASSERT_TRUE(save_is_refused("m.safetensors.index.json"));
	}
	write_raw("m.safetensors.index.json", index, len);
	CU_ASSERT_TRUE(loads("m", 2, 1));
	CU_ASSERT_FATAL(move("m-00000001-00002-of-00002.safetensors", "hidden"));
	CU_ASSERT_TRUE(save_is_refused("m-00000001-00002-of-00002.safetensors: No such file"));
	CU_ASSERT_FATAL(move("hidden", "m-00000001-00002-of-00002.safetensors"));
	CU_ASSERT_EQUAL(save_shard("m", 1, 1, 2, 500, ROWS), 0);
	CU_ASSERT_TRUE(loads("m", 3, 1)); /* the very same file again */
	CU_ASSERT_EQUAL(save_shard("m", 2, 1, 2, 500, ROWS), 0);
	CU_ASSERT_FATAL(move("m-00000002-00002-of-00002.safetensors", "m-00000001-00002-of-00002.safetensors"));
	CU_ASSERT_TRUE(save_is_refused("is not the file that was there when this was written"));
	CU_ASSERT_EQUAL(save_shard("m", 1, 1, 2, 500, ROWS), 0);
	spoil("m-00000001-00002-of-00002.safetensors", 100);
	CU_ASSERT_TRUE(save_is_refused("00002-of-00002.safetensors"));
	CU_ASSERT_EQUAL(save_shard("m", 1, 1, 2, 500, ROWS), 0);
	spoil("m-00000001-00002-of-00002.safetensors", -5);
	struct tt_save *s;
	int32_t rows[WIDTH];
	CU_ASSERT_EQUAL_FATAL(tt_save_open(folder, "m", &s), 0);
	CU_ASSERT_EQUAL(tt_save_read(s, tt_save_find(s, "weight"), 0, WIDTH, rows), 0);
	CU_ASSERT_EQUAL(tt_save_read(s, tt_save_find(s, "weight"), (ROWS - 1) * WIDTH, WIDTH, rows), -EBADMSG);
	CU_ASSERT_TRUE(said("\"weight[500:1000/1000]\" is damaged"));
	tt_save_close(s);
	free(index);
	empty_folder();
}

static void test_a_strangers_index(void)
{
	static const struct { const char *index, *sentence;
	} bad[] = {
		{ "", "bad JSON at byte 0" },
		{ "{}", "names no array" },
		{ "{\"weight_map\":{}}", "names no array" },
		{ "{\"weight_map\":{\"a\":\"f\",\"a\":\"f\"}}", "names \"a\" twice" },
		{ "{\"weight_map\":{\"a\":\"f\"}} ?", "bad JSON at byte 25: something behind the end" },
		{ "{\"weight_map\":{\"a\":\"../f\"}}",
		  "\"a\" is said to be in \"../f\", which is not in its own folder" },
		{ "{\"weight_map\":{\"a\":\"..\"}}", "not in its own folder" },
		{ "{\"weight_map\":{\"a\":\"\"}}", "not in its own folder" },
		{ "{\"weight_map\":{\"a\":5}}", "here should be a text" },
		{ "{\"weight_map\":{\"x\":\"f\"}}", "\"x\" is not in" },
		{ "{\"weight_map\":{\"a\":\"gone\"}}", "gone: No such file" },
		{ "{\"weight_map\":{\"p[0:2/4]\":\"f\"}}", "rows 2 to 4 of \"p\" are missing" },
		{ "{\"weight_map\":{\"s[0%2]\":\"f\"}}", "shares 1 to 2 of \"s\" are missing" },
		{ "{\"weight_map\":{\"s[0%3]\":\"f\",\"s[2%3]\":\"f\"}}", "shares 1 to 2 of \"s\" are missing" },
		{ "{\"weight_map\":{\"s[2%3]\":\"f\"}}", "shares 0 to 2 of \"s\" are missing" },
		{ "{\"weight_map\":{\"s[0%2]\":\"f\",\"s[2%3]\":\"f\"}}", "are no parts of one array" },
		{ "{\"metadata\":{\"tutti_files\":{\"f\":\"00\"}},\"weight_map\":{\"a\":\"f\"}}",
		  "is not the file that was there" },
		{ "{\"metadata\":[],\"weight_map\":{\"a\":\"f\"}}", "here should be {" },
	};
	static const char good[] =
		"{\"more\":[{}],\"weight_map\":{\"a\":\"f\",\"q[01:2/4]\":\"f\"},\"metadata\":{\"total_size\":4.0e0,"
		"\"total_parameters\":null}}";
	struct tt_save *s;

	write_file(
		"f",
		"{" T("a", "F32", "[1]", 0, 4) "," T("p[0:2/4]", "F32", "[2]", 4, 12) "," T(
			"q[01:2/4]", "F32", "[1]", 12,
			16) "," T("s[0%2]", "F32", "[1]", 16, 20) "," T("s[0%3]", "F32", "[1]", 20,
	                                                                24) "," T("s[2%3]", "F32", "[1]", 24, 28) "}",
		28);
	for (size_t i = 0; i < TT_COUNT(bad); i++) {
		write_raw("m.safetensors.index.json", bad[i].index, strlen(bad[i].index));
		CU_ASSERT_TRUE(save_is_refused(bad[i].sentence));
	}
	write_raw("m.safetensors.index.json", good, strlen(good));
	CU_ASSERT_EQUAL_FATAL(tt_save_open(folder, "m", &s), 0);
	CU_ASSERT_EQUAL(s->count, 2);
	CU_ASSERT_PTR_NOT_NULL(tt_save_find(s, "q[01:2/4]")); /* no name of a part: that has no zeros in front */
	tt_save_close(s);
	empty_folder();
}

static void test_bad_names(void)
{
	static const char *const names[] = { "", ".", "..", ".hidden", "a/b", "\xff" };
	char long_name[200], *file;
	uint64_t g;
	struct tt_save *s;

	memset(long_name, 'x', sizeof long_name);
	long_name[129] = 0;
	for (size_t i = 0; i <= TT_COUNT(names); i++) {
		const char *name = i < TT_COUNT(names) ? names[i] : long_name;
		CU_ASSERT_EQUAL(tt_save_open(folder, name, &s), -EINVAL);
		CU_ASSERT_EQUAL(tt_save_next(folder, name, &g), -EINVAL);
		CU_ASSERT_EQUAL(tt_save_commit(folder, name, 1, 1), -EINVAL);
		CU_ASSERT_EQUAL(tt_save_shard(folder, name, 1, 0, 1, &file), -EINVAL);
	}
	CU_ASSERT_EQUAL(tt_save_next("no/such", "m", &g), -ENOENT);
}

/* An open save can still be read when another has taken its place; who opens meanwhile gets one of the two. */
static void test_replaced_while_open(void)
{
	struct tt_save *s;
	uint64_t g;
	int32_t rows[WIDTH];

	CU_ASSERT_EQUAL(save_all("m", 2, &g), 0);
	CU_ASSERT_EQUAL_FATAL(tt_save_open(folder, "m", &s), 0);
	CU_ASSERT_EQUAL(save_all("m", 3, &g), 0);
	CU_ASSERT_EQUAL(tt_save_read(s, tt_save_find(s, "weight"), 999 * WIDTH, WIDTH, rows), 0);
	CU_ASSERT_EQUAL(rows[0], value_at(1, 999 * WIDTH));
	tt_save_close(s);
	pid_t pid = fork();
	if (!pid) {
		for (int i = 0; i < 50; i++)
			if (save_all("m", 1 + i % 3, &g))
				_exit(1);
		_exit(0);
	}
	int status = -1, opened = 0;
	for (; !waitpid(pid, &status, WNOHANG); opened++) {
		int err = tt_save_open(folder, "m", &s);
		CU_ASSERT_EQUAL(err, 0);
		if (err)
			printf("%s\n", tt_why());
		else
			tt_save_close(s);
	}
	CU_ASSERT_EQUAL(status, 0);
	CU_ASSERT_TRUE(opened > 0);
	empty_folder();
}

/* A process that saves without end and is killed at any moment: what it committed last can be loaded, or what it was
 * about to. */
static void test_crashes(void)
{
	struct tt_random r;
	int torn = 0;

	tt_random_seed(&r, 1);
	for (int round = 0; round < 40; round++) {
		uint64_t committed = 0, g = 0;
		int pipe_fds[2], status;
		CU_ASSERT_FATAL(!pipe(pipe_fds));
		pid_t pid = fork();
		if (!pid)
			for (;;)
				if (save_all("m", 2, &g) || write(pipe_fds[1], &g, sizeof g) < 0)
					_exit(1);
		close(pipe_fds[1]);
		/* the first one is there */
		CU_ASSERT_EQUAL_FATAL(read(pipe_fds[0], &committed, sizeof committed), sizeof committed);
		usleep((useconds_t)tt_random_below(&r, 20000));
		kill(pid, SIGKILL);
		CU_ASSERT_EQUAL(waitpid(pid, &status, 0), pid);
		CU_ASSERT_TRUE(WIFSIGNALED(status));
		for (uint64_t more; read(pipe_fds[0], &more, sizeof more) == sizeof more;)
			committed = more;
		close(pipe_fds[0]);
		torn += count_files() != 3;
		struct tt_save *s;
		CU_ASSERT_EQUAL_FATAL(tt_save_open(folder, "m", &s), 0);
		int64_t clock = 0;
		CU_ASSERT_EQUAL(tt_save_read(s, tt_save_find(s, "clock.1"), 0, 1, &clock), 0);
		tt_save_close(s);
		CU_ASSERT_TRUE((uint64_t)clock == committed || (uint64_t)clock == committed + 1);
		CU_ASSERT_TRUE(loads("m", 3, (uint64_t)clock));
	}
	uint64_t g;
	CU_ASSERT_TRUE(torn > 0); /* else it was never killed in the middle */
	CU_ASSERT_EQUAL(save_all("m", 2, &g), 0);
	CU_ASSERT_EQUAL(count_files(), 3); /* what the dead left is gone */
	empty_folder();
}

/* ---- the reference library, if it is here ---- */

static bool python(const char *program)
{
	char command[4096];

	snprintf(command, sizeof command, "python3 -c '%s' '%s' > /dev/null", program, folder);
	return !system(command);
}

static void test_the_reference_library(void)
{
	struct tt_tensors *f;
	uint64_t g;
	float got[4];

	if (system("python3 -c 'import safetensors.numpy' 2> /dev/null")) {
		printf("the reference library: not tried, python3 has no safetensors with numpy here\n");
		return;
	}
	CU_ASSERT_EQUAL(save_all("model", 2, &g), 0);
	CU_ASSERT_EQUAL(write_tensors("all", all_types, TT_COUNT(all_types), some_notes, TT_COUNT(some_notes), 100), 0);
	CU_ASSERT_TRUE(python(
		"import sys, json, struct, safetensors\n"
		"d = sys.argv[1] + \"/\"\n"
		"def byte(name, i): return (((i * 2654435761) >> 13) ^ name.encode()[0] ^ i) & 255\n"
		"of = dict(safetensors.deserialize(open(d + \"all\", \"rb\").read()))\n"
		"assert len(of) == 9 and of[\"half\"][\"shape\"] == [3, 5] and of[\"brain\"][\"dtype\"] == \"BF16\" "
		"and of[\"scalar\"][\"shape\"] == []\n"
		"for name, t in of.items(): assert all(b == byte(name, i) for i, b in enumerate(bytes(t[\"data\"]))), "
		"name\n"
		"map = json.load(open(d + \"model.safetensors.index.json\"))\n"
		"rows = {}\n"
		"for name, file in map[\"weight_map\"].items():\n"
		"  t = dict(safetensors.deserialize(open(d + file, \"rb\").read()))[name]\n"
		"  if name.startswith(\"weight[\"): rows[int(name[7:].split(\":\")[0])] = bytes(t[\"data\"])\n"
		"whole = b\"\".join(rows[k] for k in sorted(rows))\n"
		"assert struct.unpack(\"<12000i\", whole) == tuple(1000003 + i for i in range(12000))\n"
		"assert map[\"metadata\"][\"total_size\"] == 48016\n"));
	CU_ASSERT_TRUE(python("import sys, numpy, safetensors.numpy\n"
	                      "x = { \"x\": numpy.array([[1, 2], [3, 4]], \"f4\"), \"n\": numpy.array([-5], \"i8\") }\n"
	                      "safetensors.numpy.save_file(x, sys.argv[1] + \"/theirs\", {\"k\": \"v\"})\n"));
	CU_ASSERT_EQUAL_FATAL(tt_tensors_open(in_folder("theirs"), &f), 0);
	CU_ASSERT_STRING_EQUAL(tt_tensors_note(f, "k"), "v");
	CU_ASSERT_FATAL(tt_tensors_find(f, "x") && !tt_tensors_read(f, tt_tensors_find(f, "x"), 1, 3, got));
	CU_ASSERT_TRUE(got[0] == 2 && got[2] == 4);
	tt_tensors_close(f);
	empty_folder();
}

static CU_TestInfo json_tests[] = {
	{ "texts", test_texts },     { "bad json", test_bad_json },
	{ "numbers", test_numbers }, { "skipping", test_skipping },
	CU_TEST_INFO_NULL,
};
static CU_TestInfo file_tests[] = {
	{ "round trips", test_round_trips },
	{ "nothing at all", test_nothing_at_all },
	{ "sub-ranges", test_sub_ranges },
	{ "damaged data", test_damaged_data },
	{ "every bit counts", test_every_bit_counts },
	{ "a stranger's file", test_a_strangers_file },
	{ "seals", test_seals },
	{ "types of other programs", test_other_types },
	{ "damaged headers", test_damaged_headers },
	{ "no safetensors file", test_no_safetensors_file },
	{ "cut off while open", test_cut_off_while_open },
	{ "what cannot be written", test_what_cannot_be_written },
	{ "disks that fail", test_disks_that_fail },
	{ "a folder that fails", test_a_folder_that_fails },
	{ "begun early", test_begun_early },
	{ "a full disk", test_a_full_disk },
	CU_TEST_INFO_NULL,
};
static CU_TestInfo save_tests[] = {
	{ "other numbers of servers", test_other_numbers_of_servers },
	{ "servers without rows", test_servers_without_rows },
	{ "more shards than descriptors", test_more_shards_than_descriptors },
	{ "only a new file", test_only_new },
	{ "side by side", test_saves_side_by_side },
	{ "a lock that stays", test_a_lock_that_stays },
	{ "what is no save", test_what_is_no_save },
	{ "damaged saves", test_damaged_saves },
	{ "a stranger's index", test_a_strangers_index },
	{ "bad names", test_bad_names },
	{ "replaced while open", test_replaced_while_open },
	{ "crashes", test_crashes },
	{ "the reference library", test_the_reference_library },
	CU_TEST_INFO_NULL,
};
static CU_SuiteInfo suites[] = {
	{ "json", NULL, NULL, NULL, NULL, json_tests },
	{ "files", NULL, NULL, NULL, NULL, file_tests },
	{ "saves", NULL, NULL, NULL, NULL, save_tests },
	CU_SUITE_INFO_NULL,
};

int main(int argc, char **argv)
{
	const char *base = getenv("TMPDIR");

	snprintf(folder, sizeof folder, "%.40s/tensors-XXXXXX", base && strlen(base) < 40 ? base : "/tmp");
	if (!mkdtemp(folder)) {
		perror(folder);
		return 99;
	}
	int result = run_suites(suites, argc, argv);
	rmdir(folder);
	return result;
}
