/* fake.c - fake.h: how a call begins and ends, faults, counts */
#include "tests/gpu/fake_private.h"
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/lsan_interface.h>
#endif

enum { FAULTS = 16 };

pthread_mutex_t fake_lock = PTHREAD_MUTEX_INITIALIZER;
static struct call *calls, **calls_end = &calls;
static struct fault {
	const char *function;
	int left, err;
} faults[FAULTS];
static int fault_count, objects[KINDS];
static uint64_t state = 88172645463325252;
static bool (*holds_lock)(void);
static bool forked;

void bug(const char *format, ...)
{
	va_list args;

	va_start(args, format);
	fputs("fake libcuda: ", stderr);
	vfprintf(stderr, format, args);
	fputc('\n', stderr);
	va_end(args);
	abort();
}

uint64_t below(uint64_t n) /* xorshift64* */
{
	state ^= state >> 12;
	state ^= state << 25;
	state ^= state >> 27;
	return (state * 2685821657736338717u >> 32) % n;
}

void check_slow(const char *what)
{
	if (holds_lock && holds_lock())
		bug("%s may synchronise, and this thread holds a job's lock", what);
}

static int next_fault(const char *function)
{
	for (struct fault *f = faults; f < faults + fault_count; f++)
		if (f->left > 0 && !strcmp(f->function, function) && !--f->left)
			return f->err;
	return 0;
}

static void note_call(struct call *call)
{
	call->calls++;
	if (call->next || calls_end == &call->next)
		return; /* it is in the list */
	*calls_end = call;
	calls_end = &call->next;
}

int enter(struct call *call, unsigned needs)
{
	int err;

	if (forked)
		bug("%s is called in a child of fork()", call->name);
	if (in_host_function)
		bug("%s is called in a host function", call->name);
	if ((needs & IS_SLOW) == IS_SLOW)
		check_slow(call->name);
	pthread_mutex_lock(&fake_lock);
	note_call(call);
	err = next_fault(call->name);
	if (err)
		return err;
	if ((needs & NEEDS_INIT) && !initialized)
		return 3;
	run_some();
	if ((needs & NEEDS_CONTEXT) == NEEDS_CONTEXT)
		err = current() ? error_of(current()) : 201;
	if (!err && (needs & IS_UNSAFE) && capture_refuses())
		err = 900;
	return err;
}

CUresult leave(int err)
{
	pthread_mutex_unlock(&fake_lock);
	return err == FAKE_CUDA_LOST ? 0 : (CUresult)err;
}

void *make(enum kind kind, size_t size)
{
	void *p = calloc(1, size);

	if (!p)
		abort();
#ifdef __SANITIZE_ADDRESS__
	__lsan_ignore_object(p); /* fake_cuda_left() counts it; a device that is broken gives nothing back */
#endif
	objects[kind]++;
	return p;
}

void drop(enum kind kind, void *p)
{
	free(p);
	objects[kind]--;
}

void uncount(enum kind kind) { objects[kind]--; }

static void after_fork(void)
{
	forked = initialized;
	pthread_mutex_init(&fake_lock, NULL);
	thread_runs = false;
}

static void before_fork(void) { pthread_mutex_lock(&fake_lock); }
static void in_parent(void) { pthread_mutex_unlock(&fake_lock); }

static __attribute__((constructor)) void begin(void) { pthread_atfork(before_fork, in_parent, after_fork); }

/* ---- knobs ---- */

SHOW void fake_cuda_seed(uint64_t seed)
{
	pthread_mutex_lock(&fake_lock);
	state = (seed + 1) * 0x9e3779b97f4a7c15;
	fault_count = 0;
	for (struct call *c = calls; c; c = c->next)
		c->calls = 0;
	captured = 0;
	pthread_mutex_unlock(&fake_lock);
}

SHOW int fake_cuda_run(int n)
{
	int ran = 0;

	pthread_mutex_lock(&fake_lock);
	while (ran < n && run_one())
		ran++;
	pthread_mutex_unlock(&fake_lock);
	return ran;
}

SHOW void fake_cuda_watch(bool (*holds)(void)) { holds_lock = holds; }

SHOW void fake_cuda_fail(const char *function, int nth, int err)
{
	pthread_mutex_lock(&fake_lock);
	if (fault_count == FAULTS)
		fault_count = 0; /* the oldest have happened, or are lost */
	faults[fault_count++] = (struct fault){ function, nth, err };
	pthread_mutex_unlock(&fake_lock);
}

SHOW int fake_cuda_left(void)
{
	int sum = 0;

	pthread_mutex_lock(&fake_lock);
	for (int kind = 0; kind < KINDS; kind++)
		sum += objects[kind];
	pthread_mutex_unlock(&fake_lock);
	return sum;
}

SHOW void fake_cuda_list_left(void)
{
	static const char *const names[KINDS] = { "ranges of memory", "handles of memory", "reservations", "streams",
		                                  "events", "modules", "retained contexts" };

	for (int kind = 0; kind < KINDS; kind++)
		if (objects[kind])
			fprintf(stderr, "fake libcuda: %d %s are left\n", objects[kind], names[kind]);
}

SHOW uint64_t fake_cuda_calls(const char *function)
{
	uint64_t sum = 0;

	pthread_mutex_lock(&fake_lock);
	for (struct call *c = calls; c; c = c->next)
		if (!function || !strcmp(c->name, function))
			sum += c->calls;
	pthread_mutex_unlock(&fake_lock);
	return sum;
}

SHOW const char *fake_cuda_called(int n)
{
	struct call *c;

	pthread_mutex_lock(&fake_lock);
	for (c = calls; c && n; n--)
		c = c->next;
	pthread_mutex_unlock(&fake_lock);
	return c ? c->name : NULL;
}
