/* tensors_write.c - writes a safetensors file from front to back; tensors.c has a picture of it
 *
 *      begin: lay out the data, make a header with zeros for the checksums --> put ...: write and sum up data
 *      --> end: put checksums and seal into the header, write it, publish the file */
#include "base/pack.h"
#include "file/file_private.h"
#include <stdlib.h>

enum {
	ALIGN = 64,      /* of the data in the file; the format wants 8 */
	PIECE = 1 << 20, /* written and summed up while it is in the cache */
};

#define SUMS "\",\"tutti_sums\":\""

/* Wide types first, so that each element lies at a multiple of its size. Returns the bytes of data. */
static uint64_t lay_out(struct tt_tensor *of, size_t n, uint64_t *blocks)
{
	uint64_t end = 0;

	for (size_t width = 8; width; width /= 2)
		for (size_t i = 0; i < n; i++)
			if (tt_type_size(of[i].type) == width) {
				of[i].at = end;
				of[i].block = *blocks;
				end += tt_tensor_bytes(&of[i]);
				*blocks += tt_tensor_blocks(&of[i]);
			}
	return end;
}

static int compare_names(const void *a, const void *b) { return strcmp(*(char *const *)a, *(char *const *)b); }

static int check_names(const char *path, const char **names, size_t n, const char *what)
{
	qsort(names, n, sizeof *names, compare_names);
	for (size_t i = 0; i < n; i++)
		if (!tt_json_is_text(names[i]))
			return tt_fail(-EINVAL, "%s: a name of %s is not UTF-8", path, what);
		else if (i && !strcmp(names[i - 1], names[i]))
			return tt_fail(-EINVAL, "%s: two %s would be named \"%s\"", path, what, names[i]);
	return 0;
}

static int check_tensors(const char *path, struct tt_tensor *of, size_t n)
{
	const char **names = calloc(n + 1, sizeof *names);
	int err = names ? 0 : tt_tensors_no_memory(path);

	for (size_t i = 0; !err && i < n; i++) {
		names[i] = of[i].name;
		if (!strcmp(of[i].name, "__metadata__") || of[i].dims < 0 || of[i].dims > TT_TENSOR_DIMS ||
		    !tt_type_size(of[i].type) || tt_type_is_small(of[i].type) || !tt_tensor_measure(&of[i]))
			err = tt_fail(-EINVAL, "%s: \"%s\" can be no array: its name, its type or its shape is none",
			              path, of[i].name);
	}
	err = err ? err : check_names(path, names, n, "arrays");
	free(names);
	return err;
}

static int check_notes(const char *path, const struct tt_metadata *notes, size_t n)
{
	const char **keys = calloc(n + 1, sizeof *keys);
	int err = keys ? 0 : tt_tensors_no_memory(path);

	for (size_t i = 0; !err && i < n; i++) {
		keys[i] = notes[i].key;
		if (!strncmp(keys[i], "tutti_", 6) || !tt_json_is_text(notes[i].value))
			err = tt_fail(-EINVAL, "%s: the note \"%s\" is not UTF-8, or its key begins with tutti_", path,
			              keys[i]);
	}
	err = err ? err : check_names(path, keys, n, "notes");
	free(keys);
	return err;
}

static void print_tensor(FILE *f, const struct tt_tensor *t)
{
	fputc(',', f);
	tt_json_print(f, t->name);
	fprintf(f, ":{\"dtype\":\"%s\",\"shape\":[", tt_tensor_type_names[t->type]);
	for (int i = 0; i < t->dims; i++)
		fprintf(f, i ? ",%llu" : "%llu", (ull)t->shape[i]);
	fprintf(f, "],\"data_offsets\":[%llu,%llu]}", (ull)t->at, (ull)(t->at + tt_tensor_bytes(t)));
}

static void print_header(FILE *f, const struct tt_tensors_writer *w, uint64_t blocks, const struct tt_metadata *notes,
                         size_t note_count)
{
	static const char zeros[] = "0000000000000000";

	fprintf(f, TT_TENSORS_SEALED "%s" SUMS, zeros);
	for (uint64_t i = 0; i < blocks; i++)
		fputs(zeros, f);
	fputc('"', f);
	for (size_t i = 0; i < note_count; i++) {
		fputc(',', f);
		tt_json_print(f, notes[i].key);
		fputc(':', f);
		tt_json_print(f, notes[i].value);
	}
	fputc('}', f);
	for (size_t i = 0; i < w->count; i++)
		print_tensor(f, &w->of[i]);
	fputc('}', f);
	for (long at = TT_HEADER_AT + ftell(f); at % ALIGN; at++)
		fputc(' ', f);
}

static int too_long(const char *path)
{
	return tt_fail(-EFBIG, "%s would have a header of more than %d bytes, which is all that readers take: "
	                       "make more files of it", path, TT_HEADER_MAX);
}

static int make_header(struct tt_tensors_writer *w, const char *path, uint64_t blocks, const struct tt_metadata *notes,
                       size_t note_count)
{
	FILE *f;

	if (blocks > TT_HEADER_MAX / TT_SUM_DIGITS)
		return too_long(path);
	if ((f = open_memstream(&w->text, &w->len))) {
		print_header(f, w, blocks, notes, note_count);
		if (fclose(f))
			w->len = 0;
	}
	if (!w->text || !w->len)
		return tt_tensors_no_memory(path);
	return w->len > TT_HEADER_MAX ? too_long(path) : 0;
}

static int begin(struct tt_tensors_writer *w, const char *path, const struct tt_metadata *notes, size_t note_count)
{
	uint64_t blocks = 0, size;
	int err;

	if ((err = check_tensors(path, w->of, w->count)) || (err = check_notes(path, notes, note_count)))
		return err;
	size = lay_out(w->of, w->count, &blocks);
	if ((err = make_header(w, path, blocks, notes, note_count)))
		return err;
	for (size_t i = 0; i < w->count; i++)
		w->of[i].at += TT_HEADER_AT + w->len;
	return tt_atomic_file_begin(&w->draft, path, TT_HEADER_AT + w->len + size);
}

int tt_tensors_begin(struct tt_tensors_writer *w, const char *path, const struct tt_tensor *of, size_t n,
                     const struct tt_metadata *notes, size_t note_count)
{
	int err;

	*w = (struct tt_tensors_writer){ .draft.fd = -1, .count = n, .of = calloc(n + 1, sizeof *of) };
	if (w->of && n)
		memcpy(w->of, of, n * sizeof *of);
	err = w->of ? begin(w, path, notes, note_count) : tt_tensors_no_memory(path);
	if (err)
		tt_tensors_drop(w);
	tt_sum_begin(&w->sum);
	return err;
}

static void end_block(struct tt_tensors_writer *w, const struct tt_tensor *t)
{
	char digits[TT_SUM_DIGITS + 1];
	char *sums = w->text + strlen(TT_TENSORS_SEALED) + TT_SUM_DIGITS + strlen(SUMS);

	snprintf(digits, sizeof digits, "%016llx", (ull)tt_sum_end(&w->sum));
	memcpy(sums + (t->block + (w->done - 1) / TT_TENSOR_BLOCK) * TT_SUM_DIGITS, digits, TT_SUM_DIGITS);
	tt_sum_begin(&w->sum);
}

static const struct tt_tensor *current(struct tt_tensors_writer *w) /* NULL: all arrays are written */
{
	while (w->next < w->count && w->done == tt_tensor_bytes(&w->of[w->next])) {
		w->next++;
		w->done = 0;
	}
	return w->next < w->count ? &w->of[w->next] : NULL;
}

int tt_tensors_put(struct tt_tensors_writer *w, const void *bytes, size_t len)
{
	const char *p = bytes;

	while (len) {
		const struct tt_tensor *t = current(w);
		if (!t)
			return tt_fail(-EINVAL, "%s was given %zu bytes more than its arrays have", w->draft.path, len);
		size_t n = tt_min(tt_min(len, PIECE), tt_min(TT_TENSOR_BLOCK - w->done % TT_TENSOR_BLOCK,
		                                             tt_tensor_bytes(t) - w->done));
		int err = tt_atomic_file_write(&w->draft, p, n, t->at + w->done);
		if (err)
			return err;
		tt_sum_add(&w->sum, p, n);
		w->done += n, p += n, len -= n;
		if (w->done % TT_TENSOR_BLOCK == 0 || w->done == tt_tensor_bytes(t))
			end_block(w, t);
	}
	return 0;
}

static int write_header(struct tt_tensors_writer *w)
{
	uint8_t bytes[TT_HEADER_AT];
	struct tt_pack p = tt_pack(bytes, TT_HEADER_AT);
	int err;

	tt_put64(&p, w->len);
	tt_seal_put(w->text, w->len, TT_TENSORS_SEALED);
	err = tt_atomic_file_write(&w->draft, bytes, TT_HEADER_AT, 0);
	return err ? err : tt_atomic_file_write(&w->draft, w->text, w->len, TT_HEADER_AT);
}

int tt_tensors_end(struct tt_tensors_writer *w)
{
	const struct tt_tensor *t = current(w);
	int err = t ? tt_fail(-EINVAL, "%s lacks bytes: \"%s\" has got %llu of its %llu", w->draft.path, t->name,
	                      (ull)w->done, (ull)tt_tensor_bytes(t)) : write_header(w);

	if (!err)
		err = tt_atomic_file_publish(&w->draft);
	tt_tensors_drop(w);
	return err;
}

void tt_tensors_drop(struct tt_tensors_writer *w)
{
	tt_atomic_file_drop(&w->draft);
	free(w->of);
	free(w->text);
	w->of = NULL;
	w->text = NULL;
}
