/* scarce.h - comes before everything else in what scarce.c tests: its memory can run out. */
#ifndef TT_TEST_SCARCE_H
#define TT_TEST_SCARCE_H
#include <stdlib.h>

void *scarce_malloc(size_t);
void *scarce_calloc(size_t, size_t);
void *scarce_realloc(void *, size_t);
#define malloc(n) scarce_malloc(n)
#define calloc(n, size) scarce_calloc(n, size)
#define realloc(p, n) scarce_realloc(p, n)
#endif
