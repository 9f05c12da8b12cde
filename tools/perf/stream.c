/* stream.c - the baseline of `tutti perf reduce`, `copy` and `update`: STREAM's loops over the same vectors and threads
 *
 * A loop reads and writes as many streams as the kernel: it copies doubles (one read), adds them, or adds them with a
 * factor (triad, if the kernel has factors). Loads have 32 bytes with AVX. Both cached and streaming stores are
 * tried. */
#include "engine/engine.h"
#include "member/member.h"
#include "tools/perf/perf.h"
#include <stdio.h>
#include <string.h>
#ifdef __x86_64__
#include <immintrin.h>
#endif

#if defined __OPTIMIZE__ && !defined __clang__
#pragma GCC optimize("O3") /* its -O2 does not unroll */
#endif

enum { LINE = 64, GRAIN = 512 /* lines: 8192 elements of f32, as a rule's */ };

static const double factor = 0.5;

struct sweep {
	char *from[TT_PERF_VECTORS], *to[TT_PERF_VECTORS];
	int reads, writes;
	size_t len;
	bool past, scaled;
};

#ifdef __x86_64__
#define AVX __attribute__((target("avx")))
typedef double v4 __attribute__((vector_size(32))); /* may not alias pointers, so these stay in registers */

static bool has_avx(void) { return __builtin_cpu_supports("avx"); }

AVX static inline __attribute__((always_inline)) void sweep_streams(const struct sweep *s, int reads, int writes)
{
	for (size_t i = 0; i < s->len; i += LINE)
		for (size_t at = i; at < i + LINE; at += sizeof(v4)) {
			v4 v = *(const v4 *)(const void *)(s->from[0] + at);
			for (int k = 1; k < reads; k++)
				v += s->scaled ? factor * *(const v4 *)(const void *)(s->from[k] + at)
				               : *(const v4 *)(const void *)(s->from[k] + at);
			for (int k = 0; k < writes; k++)
				if (s->past)
					_mm256_stream_pd((double *)(void *)(s->to[k] + at), (__m256d)v);
				else
					*(v4 *)(void *)(s->to[k] + at) = v;
		}
	_mm_sfence();
}

/* Lets the compiler specialize the usual numbers of streams. */
AVX static void sweep_avx(const struct sweep *s)
{
	switch (s->reads * 16 + s->writes) {
	case 0x11: sweep_streams(s, 1, 1); break;
	case 0x21: sweep_streams(s, 2, 1); break;
	case 0x22: sweep_streams(s, 2, 2); break;
	case 0x32: sweep_streams(s, 3, 2); break;
	case 0x41: sweep_streams(s, 4, 1); break;
	case 0x43: sweep_streams(s, 4, 3); break;
	case 0x44: sweep_streams(s, 4, 4); break;
	case 0x65: sweep_streams(s, 6, 5); break;
	default: sweep_streams(s, s->reads, s->writes);
	}
}
#else
static bool has_avx(void) { return false; }
static void sweep_avx(const struct sweep *s) { (void)s; }
#endif

static void sweep_plain(const struct sweep *s)
{
	for (size_t i = 0; i < s->len; i += LINE) {
		double v[LINE / sizeof(double)], x[LINE / sizeof(double)];
		memcpy(v, s->from[0] + i, LINE);
		for (int k = 1; k < s->reads; k++) {
			memcpy(x, s->from[k] + i, LINE);
			for (size_t e = 0; e < LINE / sizeof(double); e++)
				v[e] += s->scaled ? factor * x[e] : x[e];
		}
		for (int k = 0; k < s->writes; k++)
			memcpy(s->to[k] + i, v, LINE);
	}
}

static void sweep_some(void *arg, size_t first, size_t lines)
{
	struct sweep s = *(const struct sweep *)arg;

	s.len = lines * LINE;
	for (int k = 0; k < s.reads; k++)
		s.from[k] += first * LINE;
	for (int k = 0; k < s.writes; k++)
		s.to[k] += first * LINE;
	if (has_avx())
		sweep_avx(&s);
	else
		sweep_plain(&s);
}

int tt_perf_raw_stream(struct tt_perf *p)
{
	struct sweep s = { .reads = tt_perf_reads(p), .writes = tt_perf_writes(p), .past = p->order.way.past,
	                   .scaled = p->kernel->scaled };

	for (int k = 0; k < s.reads; k++)
		s.from[k] = p->vectors[k];
	for (int k = 0; k < s.writes; k++)
		s.to[k] = tt_perf_written(p, k);
	tt_pool_run(p->job->job->pool, sweep_some, &s, p->bytes / LINE, GRAIN);
	return 0;
}

int tt_perf_stream_ways(const struct tt_perf *p, struct tt_perf_way *ways)
{
	ways[0] = (struct tt_perf_way){ .past = p->kernel->past && has_avx() };
	ways[1] = (struct tt_perf_way){ .past = 1 };
	return has_avx() && !p->kernel->past ? 2 : 1;
}

void tt_perf_word_stream(const struct tt_perf *p, const struct tt_perf_way *way, char *text, size_t room)
{
	int reads = tt_perf_reads(p), writes = tt_perf_writes(p);
	const char *where = !p->kernel->apart ? " in place" : p->kernel->apart < writes ? ", one in place" : "";

	int n = snprintf(text, room, "STREAM %s: %d read, %d written%s; %d-byte loads, stored %s",
	                 reads == 1 ? "copy" : p->kernel->scaled ? "triad" : "add", reads, writes, where,
	                 has_avx() ? 32 : 16, way->past ? "past the caches" : "as usual");
	if (p->options.threads > 1)
		snprintf(text + n, room - (size_t)n, "; %d threads", p->options.threads);
}
