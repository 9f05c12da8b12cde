/* interface.c - what the whole public interface shares: its number, and the words that its structs keep for later */
#include "base/base.h"

int tutti_abi(void) { return TUTTI_ABI; }

int tt_reserved(const char *type, const uint64_t *words, size_t n)
{
	for (size_t i = 0; i < n; i++)
		if (words[i])
			return tt_fail(-EINVAL, "%s.reserved[%zu] is %#llx and must be 0: the program has not zeroed "
			               "the struct, or was built for a newer libtutti than this one", type, i,
			               (unsigned long long)words[i]);
	return 0;
}
