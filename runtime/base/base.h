/* base.h - errors, settings, time, threads, hashes and small containers; depends on nothing else of the project */
#ifndef TT_BASE_H
#define TT_BASE_H
#include "tutti.h"
#include <errno.h>
#include <locale.h>
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
#define TT_NEVER UINT64_MAX /* a deadline that never expires */
#define TT_FOREVER (UINT64_MAX / 8) /* 73 years: a duration that may be added to the time, and doubled */
#define TT_MS 1000000ull    /* nanoseconds in a millisecond */
enum { TT_CACHE_LINE = 64 };

/* The sanitizer of this build: gcc defines macros, clang has features. */
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

static inline size_t tt_min(size_t a, size_t b) { return a < b ? a : b; }
static inline size_t tt_max(size_t a, size_t b) { return a > b ? a : b; }
static inline uint64_t tt_rotate(uint64_t x, int by) { return x << by | x >> (64 - by); }
static inline bool tt_aligned(uintptr_t at) { return at % 8 == 0; }

/* memmove, except that 8 bytes aligned at both ends are one load and one store. */
static inline void tt_copy_word(void *to, const void *from, size_t n)
{
	if (n == 8 && tt_aligned((uintptr_t)to | (uintptr_t)from))
		__atomic_store_n((uint64_t *)to, __atomic_load_n((const uint64_t *)from, __ATOMIC_ACQUIRE),
		                 __ATOMIC_RELEASE);
	else if (n)
		memmove(to, from, n);
}

/* Compares numbers that wrap around and are less than 2^31 apart. */
static inline bool tt_before(uint32_t a, uint32_t b) { return (int32_t)(b - a) > 0; }

static inline bool tt_type_is_float(tutti_type type)
{
	return type == TUTTI_F32 || type == TUTTI_F64 || type == TUTTI_F16 || type == TUTTI_BF16;
}

static inline size_t tt_type_size(tutti_type type) /* bytes of an element; 0: no such type */
{
	static const uint8_t size[] = { [TUTTI_F32] = 4, [TUTTI_F64] = 8, [TUTTI_F16] = 2,
		                        [TUTTI_BF16] = 2, [TUTTI_I32] = 4, [TUTTI_I64] = 8,
		                        [TUTTI_I8] = 1, [TUTTI_U8] = 1, [TUTTI_BOOL] = 1 };

	return (size_t)type < TT_COUNT(size) ? size[type] : 0;
}

/* Are its elements single bytes? Such types are for collectives and queues alone. */
static inline bool tt_type_is_small(tutti_type type) { return type >= TUTTI_I8 && type <= TUTTI_BOOL; }

#define TT_HASH 0x811c9dc5u /* the hash of no bytes */
static inline uint32_t tt_hash(uint32_t h, const void *bytes, size_t n) /* 32-bit FNV-1a; continues from h */
{
	for (size_t i = 0; i < n; i++)
		h = (h ^ ((const uint8_t *)bytes)[i]) * 0x01000193u;
	return h;
}

#define TT_HASH64 0xcbf29ce484222325u
#define TT_PRIME64 0x100000001b3u
static inline uint64_t tt_hash64(uint64_t h, const void *bytes, size_t n) /* 64-bit FNV-1a; continues from h */
{
	for (size_t i = 0; i < n; i++)
		h = (h ^ ((const uint8_t *)bytes)[i]) * TT_PRIME64;
	return h;
}

static inline uint64_t tt_hash_text(uint64_t h, const char *text) /* includes the end, so "ab","c" is not "a","bc" */
{
	return tt_hash64(tt_hash64(h, text, strlen(text)), "\xff", 1);
}

/* checksum.c: XXH64 of long data, in pieces of any length or at once */
struct tt_sum {
	uint64_t lane[4], len;
	uint8_t rest[32];
};
void tt_sum_begin(struct tt_sum *);
void tt_sum_add(struct tt_sum *, const void *bytes, size_t len);
uint64_t tt_sum_end(const struct tt_sum *);
uint64_t tt_sum64(const void *bytes, size_t len);

/* log.c: one line per event on stderr or for the program, and the sentence behind each thread's last error */
struct tt_sentence { char text[512]; };
enum tt_level {
	TT_ERROR = TUTTI_LOG_ERROR, TT_WARN = TUTTI_LOG_WARN, TT_INFO = TUTTI_LOG_INFO, TT_DEBUG = TUTTI_LOG_DEBUG,
};
void tt_log(enum tt_level, const char *fmt, ...) TT_FORMAT(2, 3); /* never blocks */
void tt_log_flush(uint64_t now); /* writes the lines that stderr did not take before; never blocks */
void tt_log_read_level(void);    /* reads TUTTI_LOG. Without a call the first line does it */
struct tt_speaker { /* a job; its lines carry its rank */
	struct tt_speaker *next;
	_Atomic int rank; /* -1: not known yet */
};
void tt_speaker_add(struct tt_speaker *);
void tt_speaker_remove(struct tt_speaker *);
/* The job that this thread, or fiber, has locked or joins. NULL: none; then a line carries the rank of the only job */
extern _Thread_local const struct tt_speaker *tt_speaker __attribute__((tls_model("initial-exec")));
/* The job that this thread joins, or whose background thread it is: tt_unlock() returns to that. NULL: none */
extern _Thread_local const struct tt_speaker *tt_home_speaker __attribute__((tls_model("initial-exec")));
static inline void tt_speak_for(const struct tt_speaker *s) { tt_speaker = tt_home_speaker = s; }
int tt_fail(int err, const char *fmt, ...) TT_FORMAT(2, 3); /* stores this thread's sentence; returns err */
void tt_remember(const char *sentence); /* stores a sentence that another thread has made */
const char *tt_why(void);               /* this thread's last sentence; "": none */
/* For a function without a result, which leaves the caller's sentence as it was: tt_remember(last.text) at its end. */
struct tt_sentence tt_last_sentence(void);
void tt_make_plain(char *text); /* replaces control characters, as of a line that ends with \r\n, by '?' */
/* Between the two calls this thread prints numbers as C does, whatever locale the program has set. */
locale_t tt_numbers_plain(void);
void tt_numbers_as(locale_t before); /* what tt_numbers_plain() has returned */
const char *tt_nearest(const char *word, const char *const *known, int n); /* closest spelling; NULL: none is close */

/* interface.c: what the whole public interface shares */
const char *tt_type_name(tutti_type); /* "f32"; NULL: no such type */
int tt_reserved(const char *type, const uint64_t *words, size_t n); /* 0; -EINVAL: one of the words is not 0 */
#define TT_RESERVED(type, from) tt_reserved(#type, (from)->reserved, TT_COUNT((from)->reserved))

/* settings.c: all settings of Tutti, which settings.def lists */
enum tt_setting {
#define TT_SETTING(id, variable, key, fallback, values, sentence) TT_##id,
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
	const char *variable, *key, *fallback, *values, *sentence; /* key: its name in a config file, or NULL */
	bool agreed; /* all ranks of a job must have the same value */
};
extern const struct tt_setting_info tt_setting_info[TT_SETTINGS];
const char *tt_env(enum tt_setting);        /* directly from the environment; NULL if unset or empty */
int tt_settings_load(struct tt_settings *); /* environment, then defaults; warns of unknown TUTTI_ variables */
int tt_settings_set(struct tt_settings *, enum tt_setting, const char *value, const char *origin);
void tt_settings_free(struct tt_settings *);
const char *tt_setting(const struct tt_settings *, enum tt_setting);      /* the value or NULL */
const char *tt_setting_name(const struct tt_settings *, enum tt_setting); /* key if a file set it, else variable */
/* These two are for settings with a default, whose values have been judged: */
bool tt_setting_is(const struct tt_settings *, enum tt_setting, const char *word);
long tt_setting_number(const struct tt_settings *, enum tt_setting);
uint64_t tt_setting_time(const struct tt_settings *, enum tt_setting); /* nanoseconds; never: TT_FOREVER */
/* 0, and *out is left alone if the setting is unset; or -EINVAL. */
int tt_setting_int(const struct tt_settings *, enum tt_setting, long min, long max, long *out);
int tt_setting_judge(const struct tt_settings *, enum tt_setting); /* 0; -EINVAL: none of settings.def's values */
enum { TT_AGREED = 96 }; /* bytes of these values, with the zero */
/* The values that all ranks must have alike, in the order of settings.def, with a space between two. */
void tt_settings_agreed(const struct tt_settings *, char *text, size_t size);
struct tt_setting_difference {
	const char *name;
	char ours[24], its[24];
};
/* Compares two such texts: true: *d is the first difference. */
bool tt_settings_differ(const char *ours, const char *its, struct tt_setting_difference *d);

/* clock.c: the only sources of time, entropy, threads and waiting. A simulated world replaces all of them. */
struct tt_parking { /* where one thread (or fiber) waits for a wake; zeroed is ready */
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
	/* nets: an event on any net of this rank ends the wait, too */
	void (*park)(struct tt_world *, struct tt_parking *, uint64_t deadline, bool nets);
	void (*wake)(struct tt_world *, struct tt_parking *);
	int hosts; /* ranks are dealt out to so many, round robin; 0: each rank has its own */
};
/* NULL: the real world. Every call reads it, so it has a fixed offset; dlopen keeps room for that. */
extern _Thread_local struct tt_world *tt_world __attribute__((tls_model("initial-exec")));

uint64_t tt_now(void);             /* nanoseconds, monotonic */
uint64_t tt_calendar(void);        /* nanoseconds since 1970 on this host's clock; tt_now in a simulated world */
bool tt_ticks_are_cheap(void);     /* ticks come from the processor's counter, without a system call */
uint64_t tt_ticks(void);           /* the time in a unit of its own; for code that must cost next to nothing */
struct tt_ticker { /* the same moment on both clocks, to measure the unit */
	uint64_t ticks, now;
};
void tt_ticker_start(struct tt_ticker *);
double tt_ticker_ns(const struct tt_ticker *); /* nanoseconds in a tick; blocks up to 1 ms after start */
bool tt_entropy(void *, size_t);   /* unpredictable bytes; false: the system has none, and these can be guessed */
int tt_spawn(void (*fn)(void *), void *arg, struct tt_task **);
void tt_join(struct tt_task *);
void tt_detach(struct tt_task *); /* nobody waits for its end; not in a simulated world */
int tt_task_bind(struct tt_task *, const void *cpus, size_t bytes); /* sched_setaffinity; NULL: the calling thread */
int tt_numa_node(void);            /* of the processor on which the calling thread runs now; -1: unknown */
void tt_park(struct tt_parking *, uint64_t deadline); /* until a wake (consumed), the deadline, or spuriously */
void tt_wake(struct tt_parking *); /* a wake before the park is not lost */
bool tt_yield(void);               /* gives the core to other threads; false: a simulated world has no cores */
static inline void tt_pause(void)  /* between two polls of memory that another core writes */
{
#if defined __x86_64__ || defined __i386__
	__builtin_ia32_pause();
#elif defined __aarch64__
	__asm__ volatile("yield");
#endif
}

struct tt_ticket_lock { /* fair: a spinning holder that releases lets in whoever asked first; zeroed is open */
	_Atomic uint32_t next, serving;
};
void tt_ticket_lock_take(struct tt_ticket_lock *);
void tt_ticket_lock_release(struct tt_ticket_lock *);
static inline bool tt_ticket_lock_is_wanted(struct tt_ticket_lock *l) /* for the holder: does another thread wait? */
{
	return atomic_load(&l->next) != atomic_load(&l->serving) + 1;
}

static inline bool tt_ticket_lock_is_held(const struct tt_ticket_lock *l) /* by any thread */
{
	return atomic_load(&l->next) != atomic_load(&l->serving);
}

struct tt_sleeper { /* a parking that also ends when a file descriptor becomes readable */
	int fd; /* an eventfd; -1 in a simulated world */
	struct tt_parking parking;
};
int tt_sleeper_open(struct tt_sleeper *);
void tt_sleeper_close(struct tt_sleeper *);
void tt_sleep(struct tt_sleeper *, const int *fds, int n, uint64_t deadline); /* or n <= 8 fds, one readable */
void tt_kick(struct tt_sleeper *); /* tt_wake */

/* interrupt.c: the hook of this thread (or fiber), by which the program ends the thread's waits */
struct tt_users;
struct tt_hook {
	int (*stop)(void *);       /* NULL: none, or ... */
	void *arg;
	const volatile int *flag;  /* ... this one */
	uint64_t next;             /* the hook is not polled before this time */
	bool running;              /* stop() is: the thread must not wait inside */
	struct tt_users *opening;  /* who frees this group, or leaves, ends the waits, too; NULL: none. See handle.c */
};
/* Every wait reads the hook, so it has a fixed offset, as tt_world has. */
extern _Thread_local struct tt_hook tt_hook __attribute__((tls_model("initial-exec")));
static inline bool tt_hook_is_set(void) { return tt_hook.stop || tt_hook.flag; }
/* Polls the hook, unless it was polled a moment ago or none is set. Call it without a lock, as stop() may block. 0; or
 * -EINTR, with a sentence: the wait must end. */
int tt_hook_poll(void);
static inline uint64_t tt_hook_due(uint64_t deadline) /* when a wait must pause for tt_hook_poll(), or the deadline */
{
	return tt_hook_is_set() && tt_hook.next < deadline ? tt_hook.next : deadline;
}

/* For closes that consist of public calls: waits ask no hook from suspend to resume. */
static inline struct tt_hook tt_hook_suspend(void)
{
	struct tt_hook hook = tt_hook;

	tt_hook = (struct tt_hook){ 0 };
	return hook;
}
static inline void tt_hook_resume(struct tt_hook hook) { tt_hook = hook; }
struct pollfd;
/* poll(), with pauses for the hook. How many are ready; 0: the deadline is over; -EINTR as above, or poll()'s error. */
int tt_hook_poll_files(struct pollfd *, int n, uint64_t deadline);

/* library.c: a library that is loaded at run time. NULL: the file cannot be loaded, or lacks a function, which is then
 * *lacks (else NULL). flags: dlopen's */
struct tt_symbol {
	const char *name;
	void *to;                   /* where the pointer to the function goes */
};
void *tt_library_load(const char *file, int flags, const struct tt_symbol *wanted, size_t n, const char **lacks);

/* files.c
 *
 * A program may run with its standard files closed, and writes to what has their numbers then. So each descriptor that
 * the library keeps is 3 or higher. */
int tt_high_file(int fd); /* fd, moved to a number from 3 on if need be; -1: as errno says, and fd is closed */
int tt_eventfd(const char *what); /* closed on exec, not blocking; "log lines". -errno, with a sentence */
int tt_epoll(const char *what);
/* What to do about an error, to put behind its strerror(); "": nothing is known. The first is about descriptors, the
 * second about threads and processes. */
const char *tt_files_hint(int err);
const char *tt_process_hint(int err);
int tt_memory_file(const char *name, size_t len); /* a memfd of sealed length; -1: see errno */
/* Reads a small file, of the kernel's in /proc or /sys. False, and "": there is none, or it is empty. */
bool tt_read_text(char *text, size_t size, const char *path_fmt, ...) TT_FORMAT(3, 4);
/* Calls fn for each open file of process `pid`, or of all processes (0) of which this user may know: with its path in
 * /proc, and what it is, "socket:[71]" say. fn returns 0 to go on, -errno to leave that process, 1 to end. Returns 1
 * if fn has, or of that one process what fn has returned, or -errno: it is not there, or another user's. Else 0. */
int tt_each_file(int pid, int (*fn)(void *arg, int pid, const char *path, const char *is), void *arg);
uint64_t tt_lockable(void);    /* bytes of memory that this process may lock; UINT64_MAX: any number */
enum { TT_FILES_MOST = 524288 };
uint64_t tt_files_most(void);  /* how many files may be open after tt_files_raise() */
void tt_files_raise(void);     /* raises the soft limit to the hard limit, at most to TT_FILES_MOST; never lowers it */
bool tt_files_scarce(int fd); /* fd, just opened, is in the upper half of the limit: optional uses do without */

/* address.c: addresses as text, without looking names up. 0, or -EINVAL */
int tt_address_split(const char *text, char *host, size_t size, char port[6]); /* of HOST:PORT */
int tt_address_check(const char *text); /* a HOST:PORT to which others could connect */

/* histogram.c: how long things took */
enum { TT_HIST_BUCKETS = 368 }; /* up to 2^48: three days in nanoseconds; the last bucket takes all larger values */
struct tt_hist { /* zeroed is empty; the unit is the caller's */
	uint64_t count, sum, max;
	uint32_t bucket[TT_HIST_BUCKETS];
};
void tt_hist_add(struct tt_hist *, uint64_t value);
void tt_hist_merge(struct tt_hist *to, const struct tt_hist *from);
double tt_hist_quantile(const struct tt_hist *, double p); /* p from 0 to 1; relative error at most 1/16; 0 if empty */
double tt_hist_mean(const struct tt_hist *);

/* clock.c: xoshiro256**, random numbers that a seed replays */
struct tt_random { uint64_t s[4]; };
void tt_random_seed(struct tt_random *, uint64_t seed);
uint64_t tt_random_next(struct tt_random *);
uint64_t tt_random_below(struct tt_random *, uint64_t n); /* 0 .. n-1; n > 0 */

/* growable_pages.c: page-aligned memory that is zero at first, and costs nothing until it is written */
char *tt_pages_map(size_t bytes); /* NULL: no memory */
char *tt_pages_resize(char *, size_t bytes, size_t now); /* copies nothing. NULL: no memory, nothing changed */
void tt_pages_unmap(char *, size_t bytes); /* NULL is allowed */

/* json.c: a cursor over a text, which it changes. After the first fault all results are empty: check at the end */
struct tt_json {
	char *text, *at, *end;
	bool fresh;        /* directly behind a bracket: no comma yet */
	const char *fault; /* a sentence; NULL: no fault so far */
	size_t fault_at;   /* bytes from the beginning */
};
struct tt_json tt_json(char *text, size_t len);
bool tt_json_enter(struct tt_json *, char bracket); /* { or [ */
bool tt_json_more(struct tt_json *, char bracket);  /* } or ]: is there another member? If not, leaves the value */
const char *tt_json_key(struct tt_json *);          /* of an object's member, whose value comes next */
const char *tt_json_text(struct tt_json *);         /* points into the text; ends with a zero */
uint64_t tt_json_number(struct tt_json *);          /* an integer, at most 2^63 - 1 */
void tt_json_skip(struct tt_json *);                /* any value */
void tt_json_end(struct tt_json *);                 /* anything that follows is a fault */
bool tt_json_is_text(const char *);                 /* is this UTF-8? */
void tt_json_print(FILE *, const char *);           /* in quotes */
#endif
