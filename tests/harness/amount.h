/* amount.h - how much a test does of what is alike: more seeds, ranks, delays. All with TEST_FULL=yes, which
 * ./bootstrap check --full and make check-long set; in make check a part, which has each kind at least once. */
#ifndef TT_TEST_AMOUNT_H
#define TT_TEST_AMOUNT_H
#include <stdlib.h>

static inline int all_or(int all, int part) { return getenv("TEST_FULL") ? all : part; }
#endif
