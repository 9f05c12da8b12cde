/* fuzz_tensors.c - a file that is said to be a safetensors file, or an index of some. Input: a byte, then the file's
 * bytes if that is even, else the index's, of which three files are there: "a" with all of x and a half of w, "b" with
 * the other half of w, and "c", of ours. */
#include "base/pack.h"
#include "file/file.h"
#include "tests/fuzz/fuzz.h"
#include <sys/mman.h>
#include <unistd.h>

enum { READ_MAX = 1 << 16 };

static char folder[64];

static void check_tensor(const struct tt_tensors *f, const struct tt_tensor *t)
{
	uint64_t count = tt_min(t->count, READ_MAX / 8);
	size_t len = count * tt_type_size(t->type);
	uint8_t *to = fuzz_fenced(len);

	FUZZ_CHECK(tt_tensors_find(f, t->name) == t, "an array that its name does not find");
	FUZZ_CHECK(t->dims >= 0 && t->dims <= TT_TENSOR_DIMS, "a shape that is none");
	int err = tt_tensors_read(f, t, t->count - count, count, to);
	FUZZ_CHECK(t->other ? err == -ENOTSUP : !err || (f->sums && err == -EBADMSG),
	           "the bytes are in the file, and without checksums they are as they are");
	fuzz_free_fenced(to, len);
}

static void read_file(const uint8_t *bytes, size_t len)
{
	struct tt_tensors *f;
	char path[32];
	int fd = memfd_create("tensors", MFD_CLOEXEC);

	snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
	if (fd >= 0 && write(fd, bytes, len) == (ssize_t)len) {
		int err = tt_tensors_open(path, &f);
		FUZZ_CHECK(err <= 0 && (!err || *tt_why()), "an error without a sentence");
		for (size_t i = 0; !err && i < f->count; i++)
			check_tensor(f, &f->of[i]);
		if (!err)
			tt_tensors_close(f);
	}
	close(fd);
}

static void write_file(const char *name, const void *bytes, size_t len)
{
	char path[128];

	snprintf(path, sizeof path, "%s/%s", folder, name);
	FILE *f = fopen(path, "wb");
	if (!f || fwrite(bytes, 1, len, f) != len || fclose(f))
		abort();
}

static void write_tensors(const char *name, const char *header, size_t data)
{
	uint8_t bytes[512] = { 0 };
	struct tt_pack p = tt_pack(bytes, sizeof bytes);

	tt_put64(&p, strlen(header));
	tt_put_bytes(&p, header, strlen(header));
	write_file(name, bytes, 8 + strlen(header) + data);
}

static void remove_folder(void)
{
	static const char *const names[] = { "a", "b", "c", "m.safetensors.index.json" };
	char path[128];

	for (size_t i = 0; i < TT_COUNT(names); i++) {
		snprintf(path, sizeof path, "%s/%s", folder, names[i]);
		unlink(path);
	}
	rmdir(folder);
}

static void make_folder(void)
{
	static const struct tt_tensor y = { .name = "y", .type = TUTTI_F32, .dims = 1, .shape = { 2 } };
	struct tt_tensors_writer w;
	char path[128];

	strcpy(folder, "/tmp/fuzz-XXXXXX");
	if (!mkdtemp(folder))
		abort();
	atexit(remove_folder);
	write_tensors(
		"a",
		"{\"x\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]},\"w[0:1/3]\":{\"dtype\":\"F64\","
		"\"shape\":[1,2],\"data_offsets\":[8,24]}}",
		24);
	write_tensors(
		"b",
		"{\"w[1:3/3]\":{\"dtype\":\"F64\",\"shape\":[2,2],\"data_offsets\":[0,32]},"
		"\"v[0:0/0]\":{\"dtype\":\"F64\",\"shape\":[0],\"data_offsets\":[0,0]}}",
		32);
	snprintf(path, sizeof path, "%s/c", folder);
	if (tt_tensors_begin(&w, path, &y, 1, NULL, 0) || tt_tensors_put(&w, "12345678", 8) || tt_tensors_end(&w))
		abort();
}

static void read_index(const uint8_t *bytes, size_t len)
{
	struct tt_save *s;
	uint8_t *to = fuzz_fenced(64);

	write_file("m.safetensors.index.json", bytes, len);
	int err = tt_save_open(folder, "m", &s);
	FUZZ_CHECK(err <= 0 && (!err || *tt_why()), "an error without a sentence");
	for (size_t i = 0; !err && i < s->count; i++) {
		FUZZ_CHECK(tt_save_find(s, s->of[i].is.name) == &s->of[i], "an array that its name does not find");
		FUZZ_CHECK(s->of[i].is.count <= 6 && !tt_save_read(s, &s->of[i], 0, s->of[i].is.count, to),
		           "what is in the files can be read");
	}
	if (!err)
		tt_save_close(s);
	fuzz_free_fenced(to, 64);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len)
{
	struct fuzz_world world = fuzz_world(NULL);

	if (!len)
		return 0;
	tt_world = &world.base;
	if (!*folder)
		make_folder();
	if (*bytes % 2)
		read_index(bytes + 1, len - 1);
	else
		read_file(bytes + 1, len - 1);
	tt_world = NULL;
	return 0;
}
