/* file.h - files that are whole or absent; safetensors; saves of several files */
#ifndef TT_FILE_H
#define TT_FILE_H
#include "base/base.h"
#include "tutti.h"
#include <stdio.h>

/* ---- atomic_file.c: a file that others see whole or not at all ---- */

#define TT_ATOMIC_FILE_MARK ".part-"         /* and 16 letters by chance, behind the name while it is being written */
struct tt_atomic_file { /* fd -1, else zeroed: none */
	char *path, *part;
	int fd;
	uint64_t front, given, end; /* what was written last from front to back, without a gap: the disk has begun with it as far as `given` */
};
int tt_atomic_file_begin(struct tt_atomic_file *, const char *path, uint64_t size); /* size: bytes that it will have, for which room is made */
int tt_atomic_file_write(struct tt_atomic_file *, const void *bytes, size_t len, uint64_t at);
int tt_atomic_file_publish(struct tt_atomic_file *); /* synced, under its name, and the folder synced; it ends the draft, also when it fails */
void tt_atomic_file_drop(struct tt_atomic_file *);   /* without a trace; after the end it does nothing */

/* ---- tensors.c, tensors_write.c: safetensors files. No gate needed; several threads may read an open one ---- */

enum { TT_TENSOR_DIMS = 8, TT_TENSOR_BLOCK = 4 << 20 /* bytes of an array that have a checksum of their own */, TT_SUM_DIGITS = 16 };

struct tt_tensor { /* an array in a file. Who writes gives name, type and shape */
	const char *name;
	tutti_type type;
	int dims;
	uint64_t shape[TT_TENSOR_DIMS];
	uint64_t count;             /* elements */
	uint64_t at;                /* its first byte in the file */
	uint64_t block;             /* the number of its first checksum */
};
extern const char *const tt_tensor_type_names[TUTTI_I64 + 1]; /* as files write them: "F32" */
struct tt_metadata { const char *key, *value; }; /* a text about the file; keys that begin with tutti_ are Tutti's own */
struct tt_tensors { /* an open file */
	char *path, *text;          /* text: the header, which all names point into */
	int fd;
	uint64_t data;              /* where that begins in the file */
	struct tt_tensor *of;       /* by name, like the notes */
	size_t count;
	struct tt_metadata *notes;
	size_t note_count;
	const char *seal, *sums;    /* NULL: written by others, and not checked */
};
/* -EBADMSG: damaged, cut off or something else, and the sentence says where; -ENOTSUP: of a type that Tutti does not have. The header is
 * checked when a file is opened; the data when it is read. */
int tt_tensors_open(const char *path, struct tt_tensors **);
void tt_tensors_close(struct tt_tensors *); /* NULL is allowed */
const struct tt_tensor *tt_tensors_find(const struct tt_tensors *, const char *name);
const char *tt_tensors_note(const struct tt_tensors *, const char *key);
int tt_tensors_read(const struct tt_tensors *, const struct tt_tensor *, uint64_t first, uint64_t count, void *to); /* elements */

struct tt_tensors_writer {
	struct tt_atomic_file draft;
	char *text;                 /* the header, to be written when all sums are known */
	size_t len;
	struct tt_tensor *of;
	size_t count, next;         /* next: is being written ... */
	uint64_t done;              /* ... and so many of its bytes are; */
	struct tt_sum sum;          /* of those of its last block */
};
int tt_tensors_begin(struct tt_tensors_writer *, const char *path, const struct tt_tensor *, size_t n, const struct tt_metadata *, size_t notes);
int tt_tensors_put(struct tt_tensors_writer *, const void *bytes, size_t len); /* the next ones: array by array as given, in pieces of any length */
int tt_tensors_end(struct tt_tensors_writer *);   /* the file is there and safe, or there is none */
void tt_tensors_drop(struct tt_tensors_writer *); /* when a put failed, or no end is wanted */

/* A text that says its own checksum, in 16 digits behind its opening: of itself with zeros there. */
bool tt_seal_put(char *text, size_t len, const char *opening);   /* false: it does not begin so */
bool tt_seal_holds(char *text, size_t len, const char *opening); /* true too where it does not begin so: it says nothing. The digits may be changed */
void *tt_grown(void *array, size_t n, size_t width); /* n elements, with room for another; doubles. NULL: no memory, and it is as it was */

/* ---- save.c, save_write.c: files of several writers that are one save, and their index. No gate needed ----
 *
 *   one rank: tt_save_next --> its number to all --> each: tt_save_shard, tt_tensors_begin .. end --> when all have: one rank: tt_save_commit */

struct tt_part { /* of an array: what one file has of it */
	char *name;                 /* of the whole */
	bool slice;                 /* else it is the whole */
	uint64_t from, to, rows;    /* rows from..to of so many: along the first dimension; or */
	bool share;                 /* ... share `from` of so many, of whatever length: what is `from` modulo their number */
	const struct tt_tensors *file;
	const struct tt_tensor *tensor;
};
struct tt_saved { /* an array of a save, put together */
	struct tt_tensor is;        /* name, type, shape and count of the whole; at and block say nothing */
	size_t first, parts;        /* its parts, in their order */
};
struct tt_save { /* an open save: stays readable when another one takes its place */
	char *path;                 /* of its index */
	struct tt_tensors **files;  /* all open: a descriptor each */
	size_t file_count;
	struct tt_part *parts;
	size_t part_count;
	struct tt_saved *of;        /* by name */
	size_t count;
};
int tt_save_check_name(const char *name); /* may a save have it? -EINVAL */
int tt_save_next(const char *folder, const char *name, uint64_t *generation); /* one that no file there has */
int tt_save_shard(const char *folder, const char *name, uint64_t generation, int i, int shards, char **path); /* of the i-th of so many; malloc'd */
void tt_slice_name(char *room, size_t size, const char *name, uint64_t from, uint64_t to, uint64_t rows); /* under which a part is written */
void tt_share_name(char *room, size_t size, const char *name, uint64_t i, uint64_t shares);
int tt_save_commit(const char *folder, const char *name, uint64_t generation, int shards); /* are all there and do they make whole arrays? Then
                                                      * the index names them, and the files of earlier saves are removed. Else the save before it stays */
int tt_save_open(const char *folder, const char *name, struct tt_save **); /* by its index; or NAME.safetensors alone, by others */
void tt_save_close(struct tt_save *);               /* NULL is allowed */
const struct tt_saved *tt_save_find(const struct tt_save *, const char *name);
int tt_save_read(const struct tt_save *, const struct tt_saved *, uint64_t first, uint64_t count, void *to); /* elements of the whole */
uint64_t tt_save_block_end(const struct tt_save *, const struct tt_saved *, uint64_t at); /* of the block with that element, which is read as a whole */
#endif
