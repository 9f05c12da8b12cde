/* file_private.h - what readers and writers of saves know of each other; the rest knows runtime.h
 *
 *   tensors.c        reads a safetensors file
 *   tensors_write.c  writes one
 *   save.c           reads several that are one save, by their index
 *   save_write.c     names them, and writes the index
 */
#ifndef TT_TENSORS_H
#define TT_TENSORS_H
#include "file/file.h"

enum {
	TT_HEADER_MAX = 100000000,    /* the reference library's, too */
	TT_HEADER_AT = 8,             /* behind its own length */
};

#define TT_TENSORS_SEALED "{\"__metadata__\":{\"tutti_seal\":\"" /* how a header of ours begins */
#define TT_INDEX_SEALED "{\"metadata\":{\"tutti_seal\":\""       /* and an index */
#define TT_SHARD_SUFFIX ".safetensors"
#define TT_INDEX_SUFFIX TT_SHARD_SUFFIX ".index.json"

/* tensors.c */
bool tt_tensor_measure(struct tt_tensor *); /* its count, of its shape. false: more bytes than a file can have */
int tt_tensors_no_memory(const char *path);
static inline uint64_t tt_tensor_bytes(const struct tt_tensor *t) { return t->count * tt_type_size(t->type); }
static inline uint64_t tt_tensor_blocks(const struct tt_tensor *t) { return (tt_tensor_bytes(t) + TT_TENSOR_BLOCK - 1) / TT_TENSOR_BLOCK; }

/* save.c: each 0 or -errno; the paths are malloc'd, NULL: no memory */
char *tt_save_file_path(const char *folder, const char *file);
char *tt_save_index_path(const char *folder, const char *name);
int tt_save_add_file(struct tt_save *, const char *folder, const char *file); /* opens it */
int tt_save_add_part(struct tt_save *, const struct tt_tensors *, const struct tt_tensor *);
int tt_save_add_parts(struct tt_save *, const struct tt_tensors *); /* all of that file */
int tt_save_join(struct tt_save *); /* all its parts to whole arrays */
#endif
