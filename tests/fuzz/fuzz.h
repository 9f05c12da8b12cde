/* fuzz.h - what the fuzz programs share: taking an input apart, and a world in which nothing is left to chance.
 *
 * Each fuzz_NAME.c is one LLVMFuzzerTestOneInput(). Linked with clang's -fsanitize=fuzzer it looks for inputs that
 * break it; linked with replay.c it runs the inputs of files, which is how `make check` runs tests/fuzz/corpus. */
#ifndef TT_FUZZ_H
#define TT_FUZZ_H
#include "base/base.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len);

/* What must hold for every input. */
#define FUZZ_CHECK(condition, sentence) ((condition) ? (void)0 : fuzz_broken(__FILE__, __LINE__, #condition, sentence))

static inline void fuzz_broken(const char *file, int line, const char *condition, const char *sentence)
{
	fprintf(stderr, "%s:%d: %s does not hold: %s (last error: %s)\n", file, line, condition, sentence, tt_why());
	abort();
}

struct fuzz_input { /* read from its beginning; zeros once it has ended */
	const uint8_t *at;
	size_t left;
};

static inline const uint8_t *fuzz_take(struct fuzz_input *in, size_t want, size_t *got) /* at most so many bytes */
{
	const uint8_t *at = in->at;

	*got = tt_min(want, in->left);
	in->at += *got;
	in->left -= *got;
	return at;
}

static inline uint32_t fuzz_number(struct fuzz_input *in, size_t bytes)
{
	uint32_t v = 0;
	size_t got;
	const uint8_t *at = fuzz_take(in, bytes, &got);

	for (size_t i = 0; i < got; i++)
		v |= (uint32_t)at[i] << 8 * i;
	return v;
}

/* Memory between two fences, which nothing may touch. */
enum { FUZZ_FENCE = 64, FUZZ_FENCE_BYTE = 0xfe };

static inline uint8_t *fuzz_fenced(size_t len)
{
	uint8_t *m = malloc(len + 2 * FUZZ_FENCE);

	if (!m)
		abort();
	memset(m, FUZZ_FENCE_BYTE, len + 2 * FUZZ_FENCE);
	memset(m + FUZZ_FENCE, 0, len);
	return m + FUZZ_FENCE;
}

static inline void fuzz_free_fenced(uint8_t *m, size_t len)
{
	for (size_t i = 0; i < FUZZ_FENCE; i++)
		FUZZ_CHECK(m[-1 - (long)i] == FUZZ_FENCE_BYTE && m[len + i] == FUZZ_FENCE_BYTE,
		           "bytes outside a region were written");
	free(m - FUZZ_FENCE);
}

/* ---- a still world: time passes only where somebody waits, chance is a counter, nothing runs in the background
 * ---- */

struct fuzz_world {
	struct tt_world base;
	uint64_t now;
	uint8_t chance;
	const char *(*env)(const char *variable); /* NULL: nothing is set */
};

static inline uint64_t fuzz_now(struct tt_world *w) { return ((struct fuzz_world *)w)->now; }

static inline void fuzz_entropy(struct tt_world *w, void *to, size_t len)
{
	for (size_t i = 0; i < len; i++)
		((uint8_t *)to)[i] = ++((struct fuzz_world *)w)->chance;
}

static inline const char *fuzz_env(struct tt_world *base, const char *variable)
{
	struct fuzz_world *w = (struct fuzz_world *)base;

	if (!strcmp(variable, "TUTTI_LOG"))
		return "error";
	return w->env ? w->env(variable) : NULL;
}

static inline int fuzz_spawn(struct tt_world *w, void (*fn)(void *), void *arg, struct tt_task **out)
{
	(void)w, (void)fn, (void)arg;
	*out = (struct tt_task *)out; /* whoever waits does the work */
	return 0;
}

static inline void fuzz_join(struct tt_world *w, struct tt_task *task) { (void)w, (void)task; }

static inline void fuzz_park(struct tt_world *base, struct tt_parking *p, uint64_t deadline, bool nets)
{
	struct fuzz_world *w = (struct fuzz_world *)base;

	(void)p, (void)nets;
	FUZZ_CHECK(deadline != TT_NEVER, "a wait without a deadline");
	if (deadline > w->now)
		w->now = deadline;
}

static inline void fuzz_wake(struct tt_world *w, struct tt_parking *p) { (void)w, (void)p; }

static inline struct fuzz_world fuzz_world(const char *(*env)(const char *))
{
	return (struct fuzz_world){ { fuzz_now, fuzz_entropy, fuzz_env, fuzz_spawn, fuzz_join, fuzz_park, fuzz_wake,
		                      false },
		                    1000 * TT_MS,
		                    0,
		                    env };
}
#endif
