/* file_private.h - what this room's files share
 *
 *   tensors.c, tensors_write.c   read and write a safetensors file
 *   save.c                       reads the files of a save, by their index
 *   save_write.c                 names them, and writes the index */
#ifndef TT_TENSORS_H
#define TT_TENSORS_H
#include "file/file.h"

enum {
	TT_HEADER_MAX = 100000000, /* as in the reference library */
	TT_HEADER_AT = 8,          /* behind its own length */
};
typedef unsigned long long ull; /* for %llu */
#define tt_damaged(of, fmt, ...) tt_fail(-EBADMSG, "%s: " fmt, (of)->path, ##__VA_ARGS__)

#define TT_TENSORS_SEALED "{\"__metadata__\":{\"tutti_seal\":\"" /* the opening of Tutti's headers */
#define TT_INDEX_SEALED "{\"metadata\":{\"tutti_seal\":\""       /* and of its indexes */
#define TT_SHARD_SUFFIX ".safetensors"
#define TT_INDEX_SUFFIX TT_SHARD_SUFFIX ".index.json"

/* tensors.c */
bool tt_tensor_measure(struct tt_tensor *); /* computes count. false: more bytes than a file can have */
int tt_tensors_no_memory(const char *path);
static inline uint64_t tt_tensor_bytes(const struct tt_tensor *t) { return t->count * tt_type_size(t->type); }
static inline uint64_t tt_tensor_blocks(const struct tt_tensor *t)
{
	return (tt_tensor_bytes(t) + TT_TENSOR_BLOCK - 1) / TT_TENSOR_BLOCK;
}

/* save.c. Paths are malloc'd; NULL: no memory */
char *tt_save_file_path(const char *folder, const char *file);
char *tt_save_index_path(const char *folder, const char *name);
int tt_save_add_file(struct tt_save *, const char *folder, const char *file); 
int tt_save_add_parts(struct tt_save *, const struct tt_tensors *); /* all arrays of a file */
int tt_save_join(struct tt_save *); /* makes whole arrays of all parts */
#endif
