/* kernel_private.h - the kernels of one instruction set
 *
 *   reduce.c          chooses the instruction set, and when stores bypass the caches
 *   reduce_kernels.h  vectors of one width, and the table of kernels; compiled three times:
 *                     reduce_plain.c (16 bytes: SSE2, NEON, plain C), reduce_avx2.c (32), reduce_avx512.c (64)
 *   reduce_loops.h    the loops, compiled in each of them for each type
 *   updater_loops.h   the loops of a table's update rules, likewise
 *   elastic_loops.h   the loops of elastic averaging, likewise */
#ifndef TT_REDUCE_H
#define TT_REDUCE_H
#include "kernel/kernel.h"

struct tt_update_run { /* all at the first element */
	char *to, *out; /* out: NULL if not wanted */
	const char *w, *d;
	char *state[2]; /* in NUMBERs */
	const struct tt_factors *factors;
};

/* stream: bypass the caches; then all outputs begin a cache line at element `first`. */
struct tt_kernels {
	const char *name; /* of the instruction set */
	struct tt_kernel {
		size_t size; /* bytes an element */
		/* NULL: reduce.c makes do with another one, or the type does not take the rule. */
		void (*pair[TUTTI_BXOR + 1])(char *to, const char *a, const char *b, size_t first, size_t count,
		                            bool stream);
		void (*many[TUTTI_BXOR + 1])(const struct tt_many *, size_t first, size_t count, bool stream);
		/* The rest but scale: NULL for integers. */
		void (*blend)(char *to, double by_a, const char *a, double by_b, const char *b, size_t first,
		              size_t count, bool stream);
		void (*elastic_round)(char *x, char *center, char *wide, char *sum, double alpha, size_t count);
		void (*scale)(char *acc, size_t count, unsigned n); /* NULL for elements of one byte */
		void (*update[TUTTI_UPDATE_ELASTIC + 1])(const struct tt_update_run *, size_t count); /* or NULL */
		void (*back_up)(char *state, const char *w, size_t count); /* into NUMBERs ... */
		void (*round_off)(char *to, const char *state, size_t count); /* ... and back */
	} of[TUTTI_BOOL + 1];
};

/* A rule on many rows: w = by_w w + by_d d, or else `rule`. */
struct tt_rows_run {
	const struct tt_rows_piece *rows;
	bool blends;
	double by_w, by_d;
	tutti_update_rule rule;
	const struct tt_factors *factors;
	char *state[2]; /* in NUMBERs, at the shard's first element; NULL: the rule has none */
	size_t number;  /* bytes of a NUMBER */
};

void tt_reduce_update(const struct tt_update_run *, size_t count, tutti_type, tutti_update_rule);
void tt_reduce_rows(const struct tt_rows_run *, tutti_type);
void tt_reduce_back_up(void *state, const void *w, size_t count, tutti_type);

extern const struct tt_kernels tt_kernels_plain;
#ifdef __x86_64__
extern const struct tt_kernels tt_kernels_avx2, tt_kernels_avx512;
#endif

/* Between these two a file may use instructions that the rest of the library may not. */
#define TT_PRAGMA(text) _Pragma(#text)
#ifdef __clang__
#define TT_TARGET(names) TT_PRAGMA(clang attribute push(__attribute__((target(names))), apply_to = function))
#define TT_TARGET_END _Pragma("clang attribute pop")
#else
#define TT_TARGET(names) _Pragma("GCC push_options") TT_PRAGMA(GCC target(names))
#define TT_TARGET_END _Pragma("GCC pop_options")
#endif
#endif
