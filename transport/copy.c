/* copy.c - the ways of copying, and the choice among them */
#include "transport/copy.h"
#include <string.h>
#ifdef __x86_64__
#include <immintrin.h>
#endif

/* The ways */

enum {
	LINE = 64,
	PAGE = 4096,
	SHORT = 2048, /* bytes up to which the C library's copy is the fastest; beyond, it may use rep movsb */
	AHEAD = 1024, /* bytes to prefetch: beyond the caches the processor alone prefetches too little */
};

const char *const tt_copy_name[] = {
	[TT_COPY_PLAIN] = "plain", [TT_COPY_STRING] = "rep movsb", [TT_COPY_STREAM] = "stream"
};

#ifdef __x86_64__
#define AVX __attribute__((target("avx")))
typedef int64_t vec __attribute__((vector_size(LINE / 2), may_alias)),
	loose __attribute__((vector_size(LINE / 2), may_alias, aligned(1)));

static bool has_avx(void) { return __builtin_cpu_supports("avx"); }

/* Not past the end, where the other process may be writing. */
static inline void look_ahead(const char *at, size_t i, size_t n)
{
	__builtin_prefetch(at + tt_min(i + AHEAD, n - LINE));
}

/* Copies whole lines, from byte i of the destination on, where a line begins. Returns the byte where it stopped. */
AVX static size_t plain_lines(char *to, const char *from, size_t i, size_t n)
{
	for (; i + LINE <= n; i += LINE) {
		const loose *in = (const void *)(from + i);
		vec *out = (void *)(to + i), a = in[0], b = in[1];
		look_ahead(from, i, n);
		look_ahead(to, i, n);
		out[0] = a;
		out[1] = b;
	}
	return i;
}

struct line { __m256i low, high; };

AVX static inline struct line load_line(const char *from)
{
	const loose *in = (const void *)from;

	return (struct line){ (__m256i)in[0], (__m256i)in[1] };
}

/* Both halves, before any other line: half a line goes to memory by itself, and takes longer. */
AVX static inline void stream_line(char *to, struct line l)
{
	_mm256_stream_si256((void *)to, l.low);
	_mm256_stream_si256((void *)(to + LINE / 2), l.high);
	__asm__ volatile("" : : : "memory");
}

/* A line of each of four pages in turn: the processor fetches ahead within each page, and memory serves four pages at
 * once. */
AVX static size_t stream_pages(char *to, const char *from, size_t i, size_t n)
{
	for (; i + 4 * PAGE <= n; i += 4 * PAGE)
		for (size_t at = i; at < i + PAGE; at += LINE) {
			struct line a = load_line(from + at), b = load_line(from + at + PAGE),
				    c = load_line(from + at + 2 * PAGE), d = load_line(from + at + 3 * PAGE);
			stream_line(to + at, a);
			stream_line(to + at + PAGE, b);
			stream_line(to + at + 2 * PAGE, c);
			stream_line(to + at + 3 * PAGE, d);
		}
	return i;
}

AVX static size_t stream_lines(char *to, const char *from, size_t i, size_t n)
{
	for (i = stream_pages(to, from, i, n); i + LINE <= n; i += LINE) {
		look_ahead(from, i, n);
		stream_line(to + i, load_line(from + i));
	}
	_mm_sfence(); /* streaming stores pass later stores, such as a notify or a flag */
	return i;
}

static void copy_vectors(char *to, const char *from, size_t n, size_t (*lines)(char *, const char *, size_t, size_t))
{
	size_t lead = tt_min(-(uintptr_t)to % LINE, n), done;

	memcpy(to, from, lead);
	done = lines(to, from, lead, n);
	memcpy(to + done, from + done, n - done);
}

static void copy_plain(char *to, const char *from, size_t n)
{
	if (n <= SHORT)
		memcpy(to, from, n);
	else
		copy_vectors(to, from, n, plain_lines);
}

/* Some processors fall to a tenth of their rate if the destination lies a few bytes past the source within a page. */
static void copy_string(char *to, const char *from, size_t n)
{
	size_t past = ((uintptr_t)to - (uintptr_t)from) % PAGE;

	if (past && past < LINE)
		copy_plain(to, from, n);
	else
		__asm__ volatile("rep movsb" : "+D"(to), "+S"(from), "+c"(n) : : "memory");
}

void tt_copy_by(enum tt_copy_way way, void *to, const void *from, size_t n)
{
	switch (way) {
	case TT_COPY_STRING: copy_string(to, from, n); break;
	case TT_COPY_STREAM: copy_vectors(to, from, n, stream_lines); break;
	default: copy_plain(to, from, n);
	}
}

int tt_copy_ways(void) { return has_avx() ? TT_COPY_WAYS : 1; }
#else
void tt_copy_by(enum tt_copy_way way, void *to, const void *from, size_t n) { (void)way, memcpy(to, from, n); }
int tt_copy_ways(void) { return 1; }
#endif

#ifdef __x86_64__
/* A vector of which no word lies in two lines is loaded word by word, at least. */
AVX static size_t load_vectors(char *to, const char *from, size_t i, size_t n)
{
	for (; i + sizeof(vec) <= n; i += sizeof(vec))
		*(loose *)(void *)(to + i) = *(const volatile loose *)(const void *)(from + i);
	return i;
}
#endif

void tt_copy_words(void *to, const void *from, size_t n)
{
	const char *in = from;
	size_t i = tt_min(-(uintptr_t)in % 8, n);
	char *out = to;

	memcpy(out, in, i);
#ifdef __x86_64__
	if (has_avx())
		i = load_vectors(out, in, i, n);
#endif
	for (; i + 8 <= n; i += 8) {
		uint64_t word = *(const volatile uint64_t *)(const void *)(in + i);
		memcpy(out + i, &word, sizeof word);
	}
	memcpy(out + i, in + i, n - i);
}

/* The choice
 *
 * A trial is a series of copies in one way. Its first copy does not count: a way that stores past the caches leaves
 * them empty for the way after it, and the other way round. One short copy is no trial: what it leaves to be stored
 * later costs the next one. */

enum {
	RUN = 256 << 10, /* bytes of a trial, at least */
	/* bytes: the longest copies are tried in pieces, so that slow ways take a small part of a copy */
	PIECE = 4 << 20,
	WATCH = 1 << 20, /* bytes between two looks at the clock, which take as long as copying a page */
};
#define AGAIN (1000 * TT_MS)

/* Threads that meet in a class may spoil a trial, and nothing else. */
#define GET(x) atomic_load_explicit(&(x), memory_order_relaxed)
#define SET(x, value) atomic_store_explicit(&(x), value, memory_order_relaxed)

static size_t class_of(size_t n)
{
	size_t i = 0;

	for (n /= 4 * TT_COPY_FROM; n && i < TT_COPY_CLASSES - 1; n /= 4)
		i++;
	return i;
}

static unsigned ways_of(const struct tt_copier *c) { return c->without ? TT_COPY_WAYS - 1 : TT_COPY_WAYS; }
static unsigned nth_way(const struct tt_copier *c, unsigned i) { return c->without && i >= c->without ? i + 1 : i; }
static unsigned trials_of(const struct tt_copier *c) { return TT_COPY_ROUNDS * ways_of(c); }

/* Of a way's trials the second best counts: not the one that was lucky, nor those that were preempted or touched fresh
 * pages. */
static uint64_t cost_of(const struct tt_copy_class *c, unsigned way)
{
	uint64_t best = UINT64_MAX, second = UINT64_MAX;

	for (int i = 0; i < TT_COPY_ROUNDS; i++) {
		uint64_t cost = GET(c->cost[way][i]);
		if (cost < best) {
			second = best;
			best = cost;
		} else if (cost < second) {
			second = cost;
		}
	}
	return second;
}

static void settle(const struct tt_copier *of, struct tt_copy_class *c)
{
	unsigned best = 0;

	for (unsigned i = 1; i < ways_of(of); i++)
		if (cost_of(c, nth_way(of, i)) < cost_of(c, best))
			best = nth_way(of, i);
	SET(c->way, (uint8_t)best);
	SET(c->settled, tt_now());
}

static void begin_trial(const struct tt_copier *of, struct tt_copy_class *c, unsigned trial)
{
	SET(c->trial, (uint8_t)trial);
	SET(c->warm, 0);
	SET(c->bytes, 0);
	SET(c->spent, 0);
	if (trial == trials_of(of))
		settle(of, c);
}

static void try_copy(const struct tt_copier *of, struct tt_copy_class *c, unsigned trial, void *to, const void *from,
                     size_t n)
{
	unsigned way = nth_way(of, trial % ways_of(of)), round = trial / ways_of(of);
	uint64_t start = tt_now(), spent, bytes;

	tt_copy_by((enum tt_copy_way)way, to, from, n);
	if (!GET(c->warm)) {
		SET(c->warm, 1);
		return;
	}
	spent = GET(c->spent) + (tt_now() - start);
	bytes = GET(c->bytes) + n;
	SET(c->spent, spent);
	SET(c->bytes, bytes);
	if (bytes >= RUN) {
		SET(c->cost[way][round], (spent << 20) / bytes);
		begin_trial(of, c, trial + 1);
	}
}

static void watch(const struct tt_copier *of, struct tt_copy_class *c, size_t n)
{
	uint64_t bytes = GET(c->bytes) + n;

	SET(c->bytes, bytes < WATCH ? bytes : 0);
	if (bytes >= WATCH && tt_now() - GET(c->settled) >= AGAIN)
		begin_trial(of, c, 0);
}

static void copy_watched(struct tt_copier *of, size_t class, char *to, const char *from, size_t n)
{
	struct tt_copy_class *c = &of->of[class];
	unsigned trial;

	if (GET(c->trial) == trials_of(of))
		watch(of, c, n);
	while (n && (trial = GET(c->trial)) < trials_of(of)) {
		size_t piece = class == TT_COPY_CLASSES - 1 && n >= 2 * PIECE ? PIECE : n;
		try_copy(of, c, trial, to, from, piece);
		to += piece;
		from += piece;
		n -= piece;
	}
	tt_copy_by((enum tt_copy_way)GET(c->way), to, from, n);
}

void tt_copy(struct tt_copier *c, void *to, const void *from, size_t n)
{
	size_t class = class_of(n);

	if (n < TT_COPY_FROM || tt_copy_ways() == 1)
		tt_copy_by(TT_COPY_PLAIN, to, from, n);
	else
		copy_watched(c, class, to, from, n);
}

enum tt_copy_way tt_copy_way(const struct tt_copier *c, size_t n)
{
	return (enum tt_copy_way)GET(c->of[class_of(n)].way);
}
