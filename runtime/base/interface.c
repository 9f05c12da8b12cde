/* interface.c - what the whole public interface shares: its number, the names of its types, and the
 * words that its structs keep for later */
#include "base/base.h"

int tutti_abi(void) { return TUTTI_ABI; }

const char *tt_type_name(tutti_type type)
{
	static const char *const names[] = { [TUTTI_F32] = "f32", [TUTTI_F64] = "f64", [TUTTI_F16] = "f16",
		                             [TUTTI_BF16] = "bf16", [TUTTI_I32] = "i32", [TUTTI_I64] = "i64",
		                             [TUTTI_I8] = "i8", [TUTTI_U8] = "u8", [TUTTI_BOOL] = "bool" };

	return (size_t)type < TT_COUNT(names) ? names[type] : NULL;
}

int tt_reserved(const char *type, const uint64_t *words, size_t n)
{
	for (size_t i = 0; i < n; i++)
		if (words[i])
			return tt_fail(-EINVAL, "%s.reserved[%zu] is %#llx and must be 0: the program has not zeroed "
			               "the struct, or was built for a newer libtutti than this one", type, i,
			               (unsigned long long)words[i]);
	return 0;
}
