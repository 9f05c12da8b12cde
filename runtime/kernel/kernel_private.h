/* kernel_private.h - what reduce.c and the kernels of one instruction set know of each other; the rest knows runtime.h
 *
 *   reduce.c          chooses the kernels once, by what the processor can do; when to store past the caches
 *   reduce_kernels.h  vectors of one width and the table; compiled three times:
 *                     reduce_plain.c (16 bytes: SSE2, NEON, plain C), reduce_avx2.c (32), reduce_avx512.c (64)
 *   reduce_loops.h    the loops, compiled in each of them for each type
 *   updater_loops.h   likewise those of a table's update rules, which updater.c calls
 */
#ifndef TT_REDUCE_H
#define TT_REDUCE_H
#include "kernel/kernel.h"
#include <string.h>

struct tt_update_run { /* all at the first element */
	char *to, *out;             /* out: NULL where nobody wants it */
	const char *w, *d;
	char *state[2];             /* in NUMBERs */
	const struct tt_factors *factors;
};

/* Those with `first` go from that element on, for `count`. They may be asked to stream if there all outputs begin a line. */
struct tt_kernels {
	const char *name;           /* of the instructions */
	struct tt_kernel {
		size_t size;        /* bytes an element */
		void (*pair[TUTTI_MIN + 1])(char *to, const char *a, const char *b, size_t first, size_t count, bool stream);
		void (*many[TUTTI_MIN + 1])(const struct tt_many *, size_t first, size_t count, bool stream);
		void (*blend)(char *to, double by_a, const char *a, double by_b, const char *b, size_t first, size_t count, bool stream);
		void (*elastic)(char *x, char *center, double alpha, size_t count); /* these two: NULL, of integers */
		void (*scale)(char *acc, size_t count, unsigned n);
		void (*update[TUTTI_UPDATE_ELASTIC + 1])(const struct tt_update_run *, size_t count); /* NULL: of integers, or made of the above */
		void (*back_up)(char *state, const char *w, size_t count); /* into NUMBERs */
	} of[TUTTI_I64 + 1];
};

/* The caller of these two is updater.c. */
void tt_reduce_update(const struct tt_update_run *, size_t count, tutti_type, tutti_update_rule);
void tt_reduce_back_up(void *state, const void *w, size_t count, tutti_type);

extern const struct tt_kernels tt_kernels_plain;
#ifdef __x86_64__
extern const struct tt_kernels tt_kernels_avx2, tt_kernels_avx512;
#endif

/* Between these two a file is compiled for instructions that the rest of the library may not use. */
#define TT_PRAGMA(text) _Pragma(#text)
#ifdef __clang__
#define TT_TARGET(names) TT_PRAGMA(clang attribute push(__attribute__((target(names))), apply_to = function))
#define TT_TARGET_END _Pragma("clang attribute pop")
#else
#define TT_TARGET(names) _Pragma("GCC push_options") TT_PRAGMA(GCC target(names))
#define TT_TARGET_END _Pragma("GCC pop_options")
#endif
#endif
