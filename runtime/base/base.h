/* base.h - floor 0: errors, settings, time, chance and waiting; knows nothing of the project */
#ifndef TT_BASE_H
#define TT_BASE_H
#include "tutti.h"
#include <errno.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#define tt_container_of(ptr, type, member) ((type *)((char *)(ptr)-offsetof(type, member)))
#define TT_COUNT(array) (sizeof(array) / sizeof((array)[0]))
#define TT_FORMAT(fmt, args) __attribute__((format(printf, fmt, args)))
#define TT_NEVER UINT64_MAX /* a deadline that does not come */
#define TT_MS 1000000ull    /* nanoseconds in a millisecond */

/* Which sanitizer this is built with: gcc says so by names, clang by features. */
#ifdef __has_feature
#define TT_FEATURE(name) __has_feature(name)
#else
#define TT_FEATURE(name) 0
#endif
#ifdef __SANITIZE_ADDRESS__
#define TT_ASAN 1
#else
#define TT_ASAN TT_FEATURE(address_sanitizer)
#endif
#ifdef __SANITIZE_THREAD__
#define TT_TSAN 1
#else
#define TT_TSAN TT_FEATURE(thread_sanitizer)
#endif
#define TT_MSAN TT_FEATURE(memory_sanitizer)

static inline size_t tt_min(size_t a, size_t b) { return a < b ? a : b; }
static inline size_t tt_max(size_t a, size_t b) { return a > b ? a : b; }

static inline bool tt_aligned(uintptr_t at) { return at % 8 == 0; }

/* As memmove; but 8 bytes that are aligned at both ends are one load and one store. */
static inline void tt_copy_word(void *to, const void *from, size_t n)
{
	if (n == 8 && tt_aligned((uintptr_t)to | (uintptr_t)from))
		__atomic_store_n((uint64_t *)to, __atomic_load_n((const uint64_t *)from, __ATOMIC_ACQUIRE), __ATOMIC_RELEASE);
	else if (n)
		memmove(to, from, n);
}

/* Of numbers that wrap around: compares any two that are less than 2^31 apart. */
static inline bool tt_before(uint32_t a, uint32_t b) { return (int32_t)(b - a) > 0; }

static inline size_t tt_type_size(tutti_type type) /* bytes of an element; 0: no such type */
{
	static const uint8_t size[] = { [TUTTI_F32] = 4, [TUTTI_F64] = 8, [TUTTI_F16] = 2, [TUTTI_BF16] = 2, [TUTTI_I32] = 4, [TUTTI_I64] = 8 };

	return (size_t)type < TT_COUNT(size) ? size[type] : 0;
}

#define TT_HASH 0x811c9dc5u /* of nothing */
static inline uint32_t tt_hash(uint32_t h, const void *bytes, size_t n) /* 32-bit FNV-1a, goes on from h */
{
	for (size_t i = 0; i < n; i++)
		h = (h ^ ((const uint8_t *)bytes)[i]) * 0x01000193u;
	return h;
}

#define TT_HASH64 0xcbf29ce484222325u
#define TT_PRIME64 0x100000001b3u
static inline uint64_t tt_hash64(uint64_t h, const void *bytes, size_t n) /* 64-bit FNV-1a, likewise */
{
	for (size_t i = 0; i < n; i++)
		h = (h ^ ((const uint8_t *)bytes)[i]) * TT_PRIME64;
	return h;
}

static inline uint64_t tt_hash_text(uint64_t h, const char *text) /* with its end: no text goes on in the next one */
{
	for (; *text; text++)
		h = (h ^ (uint8_t)*text) * TT_PRIME64;
	return (h ^ 0xff) * TT_PRIME64;
}

/* checksum.c: a checksum of long data, XXH64; in pieces of any length, or at once */
struct tt_sum {
	uint64_t lane[4], len;
	uint8_t rest[32];
};
void tt_sum_begin(struct tt_sum *);
void tt_sum_add(struct tt_sum *, const void *bytes, size_t len);
uint64_t tt_sum_end(const struct tt_sum *);
uint64_t tt_sum64(const void *bytes, size_t len);

/* log.c: one line per event on stderr, never on stdout */
enum tt_level { TT_ERROR, TT_WARN, TT_INFO, TT_DEBUG };
void tt_log(enum tt_level, const char *fmt, ...) TT_FORMAT(2, 3);
int tt_fail(int err, const char *fmt, ...) TT_FORMAT(2, 3); /* whoever first meets an error: remembers the sentence, returns err */
void tt_remember(const char *sentence); /* an error met elsewhere (another thread) becomes this thread's last */
const char *tt_why(void);               /* the sentence behind this thread's last error, "" if none */
const char *tt_nearest(const char *word, const char *const *known, int n); /* the known word closest in spelling, or NULL */

/* settings.c: every setting that Tutti knows. settings.def is the list, settings.c has the only getenv in the tree */
enum tt_setting {
#define TT_SETTING(id, variable, key, fallback, sentence) TT_##id,
#include "base/settings.def"
#undef TT_SETTING
	TT_SETTINGS
};
struct tt_settings { /* one job's settings, resolved */
	struct {
		char *value;        /* NULL: not set and no default */
		const char *origin; /* "environment", "file", "program", "default" */
	} of[TT_SETTINGS];
};
struct tt_setting_info {
	const char *variable, *key, *fallback, *sentence; /* key: its name in a config file, or NULL */
};
extern const struct tt_setting_info tt_setting_info[TT_SETTINGS];
const char *tt_env(enum tt_setting);                 /* straight from the environment; NULL if unset or empty */
int tt_settings_load(struct tt_settings *);          /* environment, then defaults; warns of unknown TUTTI_ variables */
int tt_settings_set(struct tt_settings *, enum tt_setting, const char *value, const char *origin);
void tt_settings_free(struct tt_settings *);
const char *tt_setting(const struct tt_settings *, enum tt_setting); /* its value or NULL */
const char *tt_setting_name(const struct tt_settings *, enum tt_setting); /* as whoever set it wrote it: variable, or key in a file */
int tt_setting_int(const struct tt_settings *, enum tt_setting, long min, long max, long *out); /* -EINVAL with a sentence; *out kept if unset */
int tt_setting_switch(const struct tt_settings *, enum tt_setting, bool *on); /* yes or no, 1 or 0, of one that has a default; else -EINVAL with a sentence */

/* clock.c: the only sources of time, chance, threads and waiting. A simulated world replaces all of them at once. */
struct tt_parking { /* where one thread (or fiber) waits for one wake; zeroed is ready */
	_Atomic uint32_t token;
	void *fiber;
};
struct tt_task; /* a thread, or a fiber */
struct tt_world {
	uint64_t (*now)(struct tt_world *);
	void (*entropy)(struct tt_world *, void *, size_t);
	const char *(*env)(struct tt_world *, const char *variable);
	int (*spawn)(struct tt_world *, void (*)(void *), void *, struct tt_task **);
	void (*join)(struct tt_world *, struct tt_task *);
	void (*park)(struct tt_world *, struct tt_parking *, uint64_t deadline, bool nets); /* nets: an event on any net of this rank wakes too */
	void (*wake)(struct tt_world *, struct tt_parking *);
	int hosts;          /* ranks are dealt out to so many, one by one; 0: each is on one of its own */
};
extern _Thread_local struct tt_world *tt_world __attribute__((tls_model("initial-exec"))); /* NULL: the real one. Looked at by every call, so
                                                      * found without one: the few bytes are there for a library that is loaded later, too */

uint64_t tt_now(void);               /* nanoseconds, monotonic */
bool tt_ticks_are_cheap(void);       /* a processor's counter that runs evenly, and not the kernel's clock */
uint64_t tt_ticks(void);             /* the same time in a unit of its own, for what must cost next to nothing */
struct tt_ticker { /* one moment in both clocks: from there on their ratio is measured */
	uint64_t ticks, now;
};
void tt_ticker_start(struct tt_ticker *);
double tt_ticker_ns(const struct tt_ticker *); /* nanoseconds in a tick */
uint64_t tt_calendar(void);          /* nanoseconds since 1970, as this host's clock is set; in a simulated world like tt_now */
void tt_entropy(void *, size_t);     /* unpredictable bytes */
int tt_spawn(void (*fn)(void *), void *arg, struct tt_task **);
void tt_join(struct tt_task *);
int tt_task_bind(struct tt_task *, const void *cpus, size_t bytes); /* to processors, as sched_setaffinity takes them; NULL: the calling thread. 0 or -errno */
void tt_park(struct tt_parking *, uint64_t deadline); /* returns after a wake (consumed), or at the deadline, or for no reason */
void tt_wake(struct tt_parking *);   /* sticky: a wake before the park is not lost */
static inline void tt_pause(void)    /* between two looks at memory that another core is to change */
{
#if defined __x86_64__ || defined __i386__
	__builtin_ia32_pause();
#elif defined __aarch64__
	__asm__ volatile("yield");
#endif
}
bool tt_yield(void);                 /* lets others of this core run first; false: in a simulated world nobody waits for a core */

struct tt_ticket_lock { /* a fair lock: whoever asks while a spinning holder is inside gets in at its next turn; zeroed is open */
	_Atomic uint32_t next, serving;
};
void tt_ticket_lock_take(struct tt_ticket_lock *);
void tt_ticket_lock_release(struct tt_ticket_lock *);
static inline bool tt_ticket_lock_is_wanted(struct tt_ticket_lock *g) /* by the holder: does somebody wait outside? */
{
	return atomic_load(&g->next) != atomic_load(&g->serving) + 1;
}

static inline bool tt_ticket_lock_is_held(const struct tt_ticket_lock *g) /* by anyone: is somebody inside? */
{
	return atomic_load(&g->next) != atomic_load(&g->serving);
}

struct tt_sleeper { /* a parking that also wakes when a file descriptor becomes readable */
	int fd;             /* an eventfd; -1 in a simulated world */
	struct tt_parking parking;
};
int tt_sleeper_open(struct tt_sleeper *);
void tt_sleeper_close(struct tt_sleeper *);
void tt_sleep(struct tt_sleeper *, const int *fds, int n, uint64_t deadline); /* like tt_park, or until one of n <= 8 fds is readable */
void tt_kick(struct tt_sleeper *);

/* files.c: memory for others to map; and what can do without an open file leaves half of those that this process may have to the rest */
int tt_memory_file(const char *name, size_t len); /* a memfd whose length is sealed; -1: errno says why */
bool tt_files_scarce(int fd);        /* one that was just opened: is its number beyond that half? */

/* address.c: addresses as text. No name is looked up */
int tt_address_split(const char *text, char *host, size_t size, char port[6]); /* HOST:PORT: 0, or -EINVAL with a sentence */
int tt_address_check(const char *text);                                        /* likewise; and others could connect there */

/* histogram.c: how long things took */
enum { TT_HIST_BUCKETS = 368 };      /* up to 2^48, three days in nanoseconds; above it all count as the longest */
struct tt_hist { /* zeroed is empty; the unit is the caller's */
	uint64_t count, sum, max;
	uint32_t bucket[TT_HIST_BUCKETS];
};
void tt_hist_add(struct tt_hist *, uint64_t value);
void tt_hist_merge(struct tt_hist *to, const struct tt_hist *from);
double tt_hist_quantile(const struct tt_hist *, double p); /* p of all values, 0 to 1, are at most this: within a sixteenth. 0: empty */
double tt_hist_mean(const struct tt_hist *);

struct tt_random { uint64_t s[4]; };                  /* xoshiro256**, for what must be replayable from a seed */
void tt_random_seed(struct tt_random *, uint64_t seed);
uint64_t tt_random_next(struct tt_random *);
uint64_t tt_random_below(struct tt_random *, uint64_t n); /* 0 .. n-1; n > 0 */

/* growable_pages.c: memory that begins with zeros and costs nothing until it is written to. No gate needed */

char *tt_pages_map(size_t bytes);                    /* page-aligned; NULL: no memory */
char *tt_pages_resize(char *, size_t bytes, size_t now); /* to `now`, elsewhere perhaps: pages move, nothing is copied. NULL: no memory, and all is as it was */
void tt_pages_unmap(char *, size_t bytes);           /* NULL is allowed */

/* json.c: a cursor over a text, which it changes. After the first fault all is empty, so nobody has to check each step */

struct tt_json {
	char *text, *at, *end;
	bool fresh;                 /* behind a bracket: no comma yet */
	const char *fault;          /* a sentence; NULL: none so far */
	size_t fault_at;            /* bytes from the beginning */
};
struct tt_json tt_json(char *text, size_t len);
bool tt_json_enter(struct tt_json *, char bracket); /* { or [ */
bool tt_json_more(struct tt_json *, char bracket);  /* } or ]: is there another member? If not, it was left */
const char *tt_json_key(struct tt_json *);          /* of the member of an object; its value comes next */
const char *tt_json_text(struct tt_json *);         /* within the text, and with a zero at its end */
uint64_t tt_json_number(struct tt_json *);          /* whole, at most 2^63 - 1 */
void tt_json_skip(struct tt_json *);                /* any value */
void tt_json_end(struct tt_json *);                 /* nothing may follow */
bool tt_json_is_text(const char *);                 /* UTF-8? */
void tt_json_print(FILE *, const char *);           /* in quotes */
#endif
