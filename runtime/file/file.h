/* file.h - files that are whole or absent, safetensors files, and saves of several files. No lock needed
 *
 * Functions return 0 or -errno. -EBADMSG: the file is damaged, truncated or of another format; the sentence says
 * where. */
#ifndef TT_FILE_H
#define TT_FILE_H
#include "base/base.h"
#include "tutti.h"

/* ---- atomic_file.c: a file that others see whole or not at all ---- */

#define TT_ATOMIC_FILE_MARK ".part-" /* and 16 random digits follow the name while the file is written */
struct tt_atomic_file { /* fd -1, else zeroed: none */
	char *path, *part;
	int fd;
	bool only_new; /* publishes no file in another one's place: -EEXIST */
	uint64_t front, given, end; /* the last sequential run of writes; writeback of it has begun up to `given` */
};
int tt_atomic_file_begin(struct tt_atomic_file *, const char *path, uint64_t size); /* reserves size bytes */
int tt_atomic_file_write(struct tt_atomic_file *, const void *bytes, size_t len, uint64_t at);
int tt_atomic_file_publish(struct tt_atomic_file *); /* syncs and renames; releases everything, also on failure */
void tt_atomic_file_drop(struct tt_atomic_file *);   /* removes the file; does nothing after publish */

/* ---- tensors.c, tensors_write.c: safetensors files. Several threads may read an open one ---- */

enum { TT_TENSOR_DIMS = 8, TT_TENSOR_BLOCK = 4 << 20 /* bytes of an array for each checksum */, TT_SUM_DIGITS = 16 };

struct tt_tensor { /* an array in a file. A writer fills in name, type, dims and shape */
	const char *name;
	tutti_type type;
	const char *other; /* what no type of Tutti's is: "F8_E4M3". Its elements are bytes, and cannot be read */
	int dims;
	uint64_t shape[TT_TENSOR_DIMS];
	uint64_t count; /* elements */
	uint64_t at;    /* its first byte in the file */
	uint64_t block; /* the index of its first checksum */
};
extern const char *const tt_tensor_type_names[TUTTI_I64 + 1]; /* in files: "F32" */
struct tt_metadata { const char *key, *value; }; /* a note about the file; keys of Tutti's own begin with tutti_ */
struct tt_tensors { /* an open file */
	char *path, *text; /* text: the header, into which all names point */
	int fd;
	uint64_t data;     /* where the data begins in the file */
	struct tt_tensor *of; /* sorted by name, like notes */
	size_t count;
	struct tt_metadata *notes;
	size_t note_count;
	const char *seal, *sums; /* NULL: another program's file, without checksums */
};
/* open checks the header, read the data. -ENOTSUP: the array to read is one that Tutti cannot have. */
int tt_tensors_open(const char *path, struct tt_tensors **);
void tt_tensors_close(struct tt_tensors *); /* NULL is allowed */
const struct tt_tensor *tt_tensors_find(const struct tt_tensors *, const char *name);
int tt_tensor_check_type(const char *path, const struct tt_tensor *); /* 0; -ENOTSUP: of a type that Tutti has not */
const char *tt_tensors_note(const struct tt_tensors *, const char *key);
int tt_tensors_read(const struct tt_tensors *, const struct tt_tensor *, uint64_t first, uint64_t count, void *to);

struct tt_tensors_writer {
	struct tt_atomic_file draft;
	char *text; /* the header, written last, with all checksums */
	size_t len;
	struct tt_tensor *of;
	size_t count, next; /* next: the array being written ... */
	uint64_t done;      /* ... and how many of its bytes are */
	struct tt_sum sum;  /* of the current block */
};
int tt_tensors_begin(struct tt_tensors_writer *, const char *path, const struct tt_tensor *, size_t n,
                     const struct tt_metadata *, size_t notes);
int tt_tensors_put(struct tt_tensors_writer *, const void *bytes, size_t len); /* in order, pieces of any length */
int tt_tensors_end(struct tt_tensors_writer *);   /* publishes the file; releases the writer, also on failure */
void tt_tensors_drop(struct tt_tensors_writer *); /* gives up, after a failed put too */

/* A text with a checksum of itself in 16 digits behind `opening`, computed with zeros there. */
bool tt_seal_put(char *text, size_t len, const char *opening);   /* false: the text does not begin with opening */
bool tt_seal_holds(char *text, size_t len, const char *opening); /* or does not begin with it */
void *tt_grown(void *array, size_t n, size_t width); /* realloc by doubling, with room for element n. NULL: no memory */

/* ---- save.c, save_write.c: files of several writers that are one save, and their index ----
 *
 *   one rank: tt_save_next --> its number to all --> each: tt_save_shard, tt_tensors_begin .. end
 *   --> when all have ended: one rank: tt_save_commit */

struct tt_part { /* what one file has of an array */
	char *name;              /* of the whole array */
	bool slice;              /* false: the file has the whole array */
	uint64_t from, to, rows; /* rows from..to of so many, along the first dimension; or, */
	bool share;              /* if true, what is `from` modulo `rows`, of any length */
	const struct tt_tensors *file;
	const struct tt_tensor *tensor;
};
struct tt_saved { /* a whole array of a save */
	struct tt_tensor is; /* at and block are not used */
	size_t first, parts; /* its parts, in order */
};
struct tt_save { /* an open save; it stays readable when a newer one replaces it */
	char *path; /* of the index */
	struct tt_tensors **files; /* all open, with a descriptor each */
	size_t file_count;
	struct tt_part *parts;
	size_t part_count;
	struct tt_saved *of; /* sorted by name */
	size_t count;
};
int tt_save_check_name(const char *name); /* -EINVAL: no save may have this name */
int tt_save_next(const char *folder, const char *name, uint64_t *generation); /* one that no file has yet */
int tt_save_shard(const char *folder, const char *name, uint64_t generation, int i, int shards, char **path);
void tt_slice_name(char *room, size_t size, const char *name, uint64_t from, uint64_t to, uint64_t rows);
void tt_share_name(char *room, size_t size, const char *name, uint64_t i, uint64_t shares);
/* Checks that all shards make whole arrays, publishes the index, and removes older saves. On failure the older save
 * stays. Blocks up to 30 s for another commit: then -EBUSY. */
int tt_save_commit(const char *folder, const char *name, uint64_t generation, int shards);
/* Opens by the index; without one, another program's NAME.safetensors. -ENOENT: there is neither. */
int tt_save_open(const char *folder, const char *name, struct tt_save **);
void tt_save_close(struct tt_save *); /* NULL is allowed */
const struct tt_saved *tt_save_find(const struct tt_save *, const char *name);
int tt_save_read(const struct tt_save *, const struct tt_saved *, uint64_t first, uint64_t count, void *to);
/* The end of the checksum block with element `at`: reading a part of a block reads all of it. */
uint64_t tt_save_block_end(const struct tt_save *, const struct tt_saved *, uint64_t at);
#endif
