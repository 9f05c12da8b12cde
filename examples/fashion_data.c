/* fashion_data.c - Fashion-MNIST from its idx files, gzipped or plain
 *
 * An idx file, all numbers big-endian:
 *   images: u32 0x803, u32 count, u32 28, u32 28, then count x 28 x 28 bytes of grey
 *   labels: u32 0x801, u32 count,                 then count bytes, each 0 .. 9
 */
#include "fashion.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#ifdef HAVE_ZLIB
#include <zlib.h>
#endif

enum { IMAGES = 0x803, LABELS = 0x801, MOST = 1 << 20 /* samples; a larger count is taken for damage */ };

struct file {
	char path[1024];
	size_t at; /* bytes read, unpacked */
	int zipped;
#ifdef HAVE_ZLIB
	gzFile stream;
#else
	FILE *stream;
#endif
};

#ifdef HAVE_ZLIB /* which reads plain files just as well */
static enum status open_stream(struct file *f)
{
	f->stream = gzopen(f->path, "rb");
	if (!f->stream)
		return complain(FAILED, "cannot open %s: %s", f->path, strerror(errno ? errno : ENOMEM));
	gzbuffer(f->stream, 1 << 17);
	return !f->zipped || !gzdirect(f->stream)
	               ? OK
	               : complain(FAILED, "%s is not gzip data: unpack or replace it", f->path);
}

static size_t read_stream(struct file *f, void *buf, size_t len)
{
	int got = gzread(f->stream, buf, (unsigned)len); /* len: at most MOST x PIXELS, which an int holds */

	return got > 0 ? (size_t)got : 0;
}

/* NULL, or what is wrong with the packed data so far */
static const char *stream_error(struct file *f)
{
	int err;
	const char *text = gzerror(f->stream, &err);

	if (err == Z_OK || err == Z_STREAM_END)
		return NULL;
	if (err == Z_ERRNO)
		return strerror(errno);
	return strncmp(text, f->path, strlen(f->path)) ? text : text + strlen(f->path) + 2; /* "path: reason" */
}

static void close_stream(struct file *f)
{
	if (f->stream)
		gzclose(f->stream);
}
#else
static enum status open_stream(struct file *f)
{
	if (f->zipped)
		return complain(
			FAILED,
			"%s is packed and this program was built without zlib: gunzip a copy and name its directory "
			"with --data",
			f->path);
	f->stream = fopen(f->path, "rb");
	return f->stream ? OK : complain(FAILED, "cannot open %s: %s", f->path, strerror(errno));
}

static size_t read_stream(struct file *f, void *buf, size_t len) { return fread(buf, 1, len, f->stream); }

static const char *stream_error(struct file *f) { return ferror(f->stream) ? strerror(errno) : NULL; }

static void close_stream(struct file *f)
{
	if (f->stream)
		fclose(f->stream);
}
#endif

/* dir/prefix-kind, or that with .gz */
static enum status open_file(struct file *f, const char *dir, const char *prefix, const char *kind)
{
	size_t len = (size_t)snprintf(f->path, sizeof f->path, "%s/%s-%s", dir, prefix, kind);

	if (len + sizeof ".gz" > sizeof f->path)
		return complain(FAILED, "the name of the data directory is too long");
	if (access(f->path, F_OK)) {
		strcpy(f->path + len, ".gz");
		f->zipped = 1;
	}
	if (access(f->path, F_OK))
		return complain(FAILED,
		                "no file %s, nor one without .gz: apt install dataset-fashion-mnist, or --data DIR",
		                f->path);
	return open_stream(f);
}

static enum status read_exactly(struct file *f, void *buf, size_t len, const char *what)
{
	size_t got = read_stream(f, buf, len);
	const char *wrong = stream_error(f);

	f->at += got;
	if (got < len && wrong)
		return complain(FAILED, "%s is damaged at byte %zu of its data (%s): replace it", f->path, f->at,
		                wrong);
	if (got < len)
		return complain(FAILED, "%s ends after %zu bytes where %s needs %zu: replace it", f->path, f->at, what,
		                f->at - got + len);
	return OK;
}

static enum status read_number(struct file *f, uint32_t *number)
{
	uint8_t b[4];
	enum status s = read_exactly(f, b, sizeof b, "the header");

	if (!s)
		*number = (uint32_t)b[0] << 24 | (uint32_t)b[1] << 16 | (uint32_t)b[2] << 8 | b[3];
	return s;
}

static enum status expect_number(struct file *f, uint32_t wanted, const char *what)
{
	uint32_t number;
	size_t at = f->at;
	enum status s = read_number(f, &number);

	if (!s && number != wanted)
		return complain(
			FAILED,
			"%s has %u as its %s (bytes %zu to %zu) where %u must stand: not a file of Fashion-MNIST's "
			"kind",
			f->path, number, what, at, at + 3, wanted);
	return s;
}

static enum status read_header(struct file *f, uint32_t magic, int *count)
{
	uint32_t number = 0;
	enum status s = expect_number(f, magic, "magic number");

	if (!s)
		s = read_number(f, &number);
	if (!s && (!number || number > MOST))
		return complain(FAILED, "%s announces %u samples (bytes 4 to 7), outside 1 to %d: replace it", f->path,
		                number, MOST);
	*count = (int)number;
	if (!s && magic == IMAGES)
		s = expect_number(f, SIDE, "number of rows");
	if (!s && magic == IMAGES)
		s = expect_number(f, SIDE, "number of columns");
	return s;
}

/* Reading past the end also lets zlib compare its checksum. */
static enum status expect_end(struct file *f)
{
	char more;
	size_t got = read_stream(f, &more, 1);
	const char *wrong = stream_error(f);

	if (wrong)
		return complain(FAILED, "%s is damaged at the end of its %zu bytes of data (%s): replace it", f->path,
		                f->at, wrong);
	return got ? complain(FAILED, "%s goes on after the %zu bytes that its header announces: replace it", f->path,
	                      f->at)
	           : OK;
}

/* Reads header and body of one file; *body is the caller's even after an error. */
static enum status read_file(struct file *f, uint32_t magic, size_t each, int *count, uint8_t **body)
{
	enum status s = read_header(f, magic, count);
	char what[64];

	if (s)
		return s;
	snprintf(what, sizeof what, "its header (%d samples)", *count);
	*body = malloc((size_t)*count * each);
	if (!*body)
		return complain(FAILED, "not enough memory for the %d samples of %s", *count, f->path);
	s = read_exactly(f, *body, (size_t)*count * each, what);
	return s ? s : expect_end(f);
}

static enum status read_images(const char *dir, const char *prefix, struct samples *set)
{
	struct file f = { .at = 0 };
	enum status s = open_file(&f, dir, prefix, "images-idx3-ubyte");

	if (!s)
		s = read_file(&f, IMAGES, PIXELS, &set->count, &set->pixels);
	close_stream(&f);
	return s;
}

static enum status read_labels(const char *dir, const char *prefix, struct samples *set)
{
	struct file f = { .at = 0 };
	int count = 0;
	enum status s = open_file(&f, dir, prefix, "labels-idx1-ubyte");

	if (!s)
		s = read_file(&f, LABELS, 1, &count, &set->labels);
	if (!s && count != set->count)
		s = complain(FAILED, "%s has %d labels for %d images: the two files do not belong together", f.path,
		             count, set->count);
	for (int i = 0; !s && i < count; i++)
		if (set->labels[i] >= CLASSES)
			s = complain(FAILED, "%s has the label %d at byte %d, and labels end at %d: replace it", f.path,
			             set->labels[i], 8 + i, CLASSES - 1);
	close_stream(&f);
	return s;
}

enum status find_data(const char *dir)
{
	struct stat st;

	if (stat(dir, &st) || !S_ISDIR(st.st_mode))
		return complain(FAILED, "no data directory %s: apt install dataset-fashion-mnist, or --data DIR", dir);
	return OK;
}

enum status read_samples(const char *dir, const char *prefix, struct samples *set)
{
	enum status s = read_images(dir, prefix, set);

	return s ? s : read_labels(dir, prefix, set);
}

void free_samples(struct samples *set)
{
	free(set->pixels);
	free(set->labels);
}

void scale_pixels(const struct samples *set, int sample, float *x)
{
	const uint8_t *p = set->pixels + (size_t)sample * PIXELS;
	const float mean = 0.286f * 255, deviation = 0.353f * 255; /* of the training set */

	for (int i = 0; i < PIXELS; i++)
		x[i] = ((float)p[i] - mean) * (1 / deviation);
}
