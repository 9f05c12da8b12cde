/* library.c - libraries that are loaded at run time: one binary serves hosts with and without them */
#include "base/base.h"
#include <dlfcn.h>

void *tt_library_load(const char *file, int flags, const struct tt_symbol *wanted, size_t n, const char **lacks)
{
	void *library = dlopen(file, flags);

	*lacks = NULL;
	for (size_t i = 0; library && i < n; i++) {
		void *found = dlsym(library, wanted[i].name);
		if (!found) {
			*lacks = wanted[i].name;
			dlclose(library);
			return NULL;
		}
		memcpy(wanted[i].to, &found, sizeof found); /* a pointer to data is none to a function */
	}
	return library;
}
