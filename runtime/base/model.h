/* model.h - the list of a model's tensors. In one buffer each tensor begins at a multiple of TT_MODEL_ALIGN. */
#ifndef TT_MODEL_H
#define TT_MODEL_H
#include "base/base.h"
#include "tutti.h"

enum { TT_MODEL_ALIGN = 64 };
struct tt_model {
	tutti_tensor *tensors; /* a copy of the program's list */
	size_t *at;            /* where each begins in one buffer, in bytes */
	int n;
	size_t bytes;          /* of that buffer */
	uint64_t hash;         /* of counts and types: the same on all ranks */
};
/* Copies the list. what: the call's name in sentences. -EINVAL: the list is empty, a tensor has no memory, or a type is
 * unknown; -ENOMEM. */
int tt_model_open(struct tt_model *, const tutti_tensor *, int n, const char *what);
void tt_model_close(struct tt_model *); /* zeroed is allowed */
bool tt_model_is_float(const struct tt_model *); /* f32, f64, f16, bf16 alone */
/* The list as if its tensors lay in `base`. */
void tt_model_place(const struct tt_model *, void *base, tutti_tensor *list);
void tt_model_store(const struct tt_model *, void *base);      /* tensors to buffer */
void tt_model_load(const struct tt_model *, const void *base); /* buffer to tensors */
#endif
