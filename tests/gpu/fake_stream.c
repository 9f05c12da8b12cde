/* fake_stream.c - fake.h: streams and events: what runs when, and what capturing forbids
 *
 * Work is a queue a stream. Among the streams whose first work may run, the seed chooses; a copy runs in pieces, so
 * that work of other streams comes between them. The thread of the fake, each call, and calls that wait run work. */
#include "tests/gpu/fake_private.h"
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum what { COPY, FILL, RECORD, WRITE, CALL, LAUNCH };
enum { HOLDS = 16, PIECE = 256 << 10, PATIENCE = 20 };

struct work {
	enum what what;
	uint64_t number; /* in the order started */
	char *to;
	const char *from;
	size_t len, done;
	struct range *holds[HOLDS];
	struct CUevent_st *event;
	uint64_t target; /* which record of the event */
	uint32_t value;
	CUhostFn fn;
	void *arg;
	struct launch *launch;
	struct work *next;
};
struct CUstream_st {
	CUcontext ctx;
	unsigned flags, capture, mode; /* capture: 0 no, 1 yes, 2 invalidated */
	pthread_t capturer;
	bool legacy, held, busy, dying;
	struct work *head, **end;
	struct CUstream_st *next;
};
struct CUevent_st {
	CUcontext ctx;
	uint64_t recorded, done;
	int refs; /* of work, and one of the caller */
	bool captured;
};

static struct CUstream_st *streams;
static uint64_t number;
uint64_t captured;
static pthread_cond_t moved = PTHREAD_COND_INITIALIZER; /* work has come, or was done */
static bool thread_stopped;
bool thread_runs;
static _Thread_local bool is_the_thread;
static _Thread_local unsigned capture_mode;
_Thread_local bool in_host_function;

/* ---- what may run ---- */

static bool is_blocking(const struct CUstream_st *s) { return !s->legacy && !(s->flags & CU_STREAM_NON_BLOCKING); }

/* The legacy stream and the blocking streams of its context wait for each other. */
static bool waits_for(const struct CUstream_st *s, const struct CUstream_st *other)
{
	return s->ctx == other->ctx && ((s->legacy && is_blocking(other)) || (other->legacy && is_blocking(s))) &&
	       other->head && other->head->number < s->head->number;
}

static bool is_ready(const struct CUstream_st *s)
{
	if (!s->head || s->held || s->busy || error_of(s->ctx))
		return false;
	if (s->head->what == CALL && !is_the_thread && !thread_stopped)
		return false;
	for (struct CUstream_st *other = streams; other; other = other->next)
		if (waits_for(s, other))
			return false;
	return true;
}

static struct CUstream_st *choose(void)
{
	struct CUstream_st *chosen = NULL;
	uint64_t n = 0;

	for (struct CUstream_st *s = streams; s; s = s->next)
		if (is_ready(s) && !below(++n))
			chosen = s;
	return chosen;
}

/* ---- running it ---- */

static void unref(struct CUevent_st *e)
{
	if (!--e->refs)
		free(e);
}

static void forget_work(struct work *w)
{
	for (int i = 0; i < HOLDS; i++)
		if (w->holds[i])
			w->holds[i]->uses--;
	if (w->event)
		unref(w->event);
	free(w->launch);
	free(w);
}

void unlink_stream(struct CUstream_st *s)
{
	UNLINK(streams, s);
	free(s);
}

static void finish(struct CUstream_st *s)
{
	struct work *w = s->head;

	s->head = w->next;
	if (!s->head)
		s->end = &s->head;
	forget_work(w);
	if (!s->head && s->dying)
		unlink_stream(s);
	pthread_cond_broadcast(&moved);
}

/* True: the whole is done. */
static bool move_piece(struct work *w)
{
	size_t left = w->len - w->done, n = 1 + below(PIECE);

	if (n > left)
		n = left;
	if (w->what == COPY)
		memmove(w->to + w->done, w->from + w->done, n);
	else
		memset(w->to + w->done, (int)w->value, n);
	w->done += n;
	return w->done == w->len;
}

static void call_host(struct CUstream_st *s)
{
	s->busy = true;
	pthread_mutex_unlock(&fake_lock);
	in_host_function = true;
	s->head->fn(s->head->arg);
	in_host_function = false;
	pthread_mutex_lock(&fake_lock);
	s->busy = false;
}

static void discard(int device)
{
	for (struct CUstream_st *s = streams, *next; s; s = next) {
		bool more = s->ctx->device == device && s->head && !s->busy;
		next = s->next;
		while (more) {
			more = s->head->next != NULL;
			finish(s);
		}
	}
}

static void break_device(int device, int err)
{
	devices[device].err = err;
	if (err)
		discard(device);
	pthread_cond_broadcast(&moved);
}

bool run_one(void)
{
	struct CUstream_st *s = choose();
	struct work *w = s ? s->head : NULL;

	if (!s)
		return false;
	switch (w->what) {
	case COPY:
	case FILL:
		if (!move_piece(w))
			return true;
		break;
	case RECORD:
		if (w->event->done < w->target)
			w->event->done = w->target;
		break;
	case WRITE: atomic_store_explicit((_Atomic uint32_t *)(void *)w->to, w->value, memory_order_release); break;
	case CALL: call_host(s); break;
	case LAUNCH: {
		int err = run_kernel(w->launch, s->ctx);
		if (err) {
			break_device(s->ctx->device, err);
			return true;
		}
		break;
	}
	}
	finish(s);
	return true;
}

void run_some(void)
{
	if (!below(8)) /* our own calls come by the dozen */
		run_one();
}

static void *run_thread(void *unused)
{
	is_the_thread = true;
	pthread_mutex_lock(&fake_lock);
	for (;;) {
		if (thread_stopped || !run_one()) {
			pthread_cond_wait(&moved, &fake_lock);
			continue;
		}
		useconds_t nap = below(8) ? 0 : (useconds_t)below(50);
		pthread_mutex_unlock(&fake_lock);
		if (nap)
			usleep(nap);
		pthread_mutex_lock(&fake_lock);
	}
	return unused;
}

static void start_thread(void)
{
	sigset_t all, before;
	pthread_t thread;

	if (thread_runs || thread_stopped)
		return;
	thread_runs = true;
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	if (pthread_create(&thread, NULL, run_thread, NULL) || pthread_detach(thread))
		bug("there is no thread for the devices' work");
	pthread_sigmask(SIG_SETMASK, &before, NULL);
}

SHOW void fake_cuda_thread(bool runs)
{
	pthread_mutex_lock(&fake_lock);
	thread_stopped = !runs;
	start_thread();
	pthread_cond_broadcast(&moved);
	pthread_mutex_unlock(&fake_lock);
}

/* ---- waiting ---- */

int wait_for(CUcontext ctx, bool (*is_done)(const void *), const void *what)
{
	struct timespec until;

	clock_gettime(CLOCK_REALTIME, &until);
	until.tv_sec += PATIENCE;
	while (!error_of(ctx) && !is_done(what))
		if (!run_one() && pthread_cond_timedwait(&moved, &fake_lock, &until))
			bug("a call waits %d s for work that nothing runs", PATIENCE);
	return error_of(ctx);
}

static bool is_idle(const void *stream) { return !((const struct CUstream_st *)stream)->head; }

static bool is_context_idle(const void *ctx)
{
	for (struct CUstream_st *s = streams; s; s = s->next)
		if (s->ctx == ctx && s->head)
			return false;
	return true;
}

int wait_for_context(CUcontext ctx) { return wait_for(ctx, is_context_idle, ctx); }

/* ---- starting work ---- */

static struct CUstream_st *find_stream(CUstream stream)
{
	if ((uintptr_t)stream <= 2) /* the legacy stream; a thread's own one is the same here */
		return current() ? current()->legacy : NULL;
	for (struct CUstream_st *s = streams; s; s = s->next)
		if (s == stream)
			return s->dying ? NULL : s;
	return NULL;
}

#define ENTER_STREAM(needs) \
	ENTER(needs); \
	struct CUstream_st *s = find_stream(stream); \
	if (!s) \
		return leave(400)

static struct CUstream_st *capturing_beside(const struct CUstream_st *s)
{
	for (struct CUstream_st *other = streams; s->legacy && other; other = other->next)
		if (other->ctx == s->ctx && is_blocking(other) && other->capture)
			return other;
	return NULL;
}

/* Takes the work, also when it fails. */
static int start(struct CUstream_st *s, struct work *work)
{
	struct CUstream_st *beside = capturing_beside(s);
	int err = error_of(s->ctx);

	if (!err && beside) {
		beside->capture = 2;
		err = 906;
	}
	if (!err && s->capture == 2)
		err = 901;
	if (err || s->capture) {
		captured += !err;
		forget_work(work);
		return err;
	}
	work->number = ++number;
	*s->end = work;
	s->end = &work->next;
	start_thread();
	pthread_cond_broadcast(&moved);
	return 0;
}

static struct work *new_work(enum what what)
{
	struct work *w = calloc(1, sizeof *w);

	if (!w)
		abort();
	w->what = what;
	return w;
}

static void hold(struct work *w, struct range *r)
{
	int i = 0;

	while (i < HOLDS && w->holds[i])
		i++;
	if (i == HOLDS)
		bug("work uses more than %d ranges of memory", HOLDS);
	w->holds[i] = r;
	r->uses++;
}

static bool may(const struct range *r, bool write)
{
	return r->is != MAPPED || r->access[current()->device] == 3 || (!write && r->access[current()->device]);
}

/* Where the CPU has the memory. *pinned: the copy is truly asynchronous. */
static int find_side(struct work *w, uintptr_t at, size_t len, bool write, char **out, bool *pinned)
{
	struct range *r = range_of((void *)at, len), *first = range_of((void *)at, 1);
	size_t in = first ? (size_t)(first->base + first->len - (char *)at) : 0;

	if (!r && first && first->is == MAPPED) { /* the next mapping follows at once */
		int err = find_side(w, at, in, write, out, pinned);
		char *rest;
		return err ? err : find_side(w, at + in, len - in, write, &rest, pinned);
	}
	if (!r) {
		*out = (char *)at;
		*pinned = false;
		return is_in_window((void *)at) ? 1 : 0;
	}
	if (!may(r, write))
		return 1;
	if (((r->is == PINNED || r->is == REGISTERED) && !(r->flags & 1) && r->ctx != current()) || /* not portable */
	    (r->is == OF_DEVICE && r->device != current()->device && !can_reach)) /* it goes through the host */
		*pinned = false;
	hold(w, r);
	*out = reachable(r, (void *)at);
	return 0;
}

/* A copy, or a fill (from: 0). Takes the work. */
static int start_move(CUstream stream, struct work *w, uintptr_t to, uintptr_t from, size_t len, const char *call)
{
	struct CUstream_st *s = find_stream(stream);
	bool pinned = true;
	char *source = NULL;
	int err = !s || s->ctx != current() ? 400 : !len ? 0 : find_side(w, to, len, true, &w->to, &pinned);

	if (!err && len && w->what == COPY)
		err = find_side(w, from, len, false, &source, &pinned);
	else if (!err && len && !w->holds[0])
		err = 1;
	if (err || !len) {
		forget_work(w);
		return err;
	}
	if (!pinned)
		check_slow(call);
	w->from = source;
	w->len = len;
	return start(s, w);
}

SHOW CUresult cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, size_t len, CUstream stream)
{
	ENTER(NEEDS_CONTEXT);
	return leave(start_move(stream, new_work(COPY), to, from, len, __func__));
}

SHOW CUresult cuMemsetD8Async(CUdeviceptr to, unsigned char value, size_t len, CUstream stream)
{
	ENTER(NEEDS_CONTEXT);
	struct work *w = new_work(FILL);

	w->value = value;
	return leave(start_move(stream, w, to, 0, len, __func__));
}

SHOW CUresult cuStreamWriteValue32_v2(CUstream stream, CUdeviceptr at, unsigned value, unsigned flags)
{
	ENTER_STREAM(NEEDS_CONTEXT);
	struct work *w;
	bool pinned = true;

	if (s->ctx != current() || !devices[s->ctx->device].attribute[92])
		return leave(s->ctx != current() ? 400 : 801);
	w = new_work(WRITE);
	if (flags || at % 4 || find_side(w, at, 4, true, &w->to, &pinned) || !pinned) {
		forget_work(w);
		return leave(1);
	}
	w->value = value;
	return leave(start(s, w));
}

SHOW CUresult cuLaunchHostFunc(CUstream stream, CUhostFn fn, void *arg)
{
	ENTER_STREAM(NEEDS_CONTEXT);
	struct work *w;

	if (s->ctx != current())
		return leave(400);
	w = new_work(CALL);
	w->fn = fn;
	w->arg = arg;
	return leave(start(s, w));
}

int start_kernel(CUstream stream, struct launch *launch, struct range **uses, int count)
{
	struct CUstream_st *s = find_stream(stream);
	struct work *w;

	if (!s || s->ctx != current()) {
		free(launch);
		return 400;
	}
	w = new_work(LAUNCH);
	w->launch = launch;
	for (int i = 0; i < count; i++)
		hold(w, uses[i]);
	return start(s, w);
}

/* ---- streams ---- */

static struct CUstream_st *add_stream(CUcontext ctx, struct CUstream_st *s)
{
	s->ctx = ctx;
	s->end = &s->head;
	s->next = streams;
	return streams = s;
}

struct CUstream_st *new_legacy(CUcontext ctx)
{
	struct CUstream_st *s = calloc(1, sizeof *s);

	if (!s)
		abort();
	s->legacy = true;
	return add_stream(ctx, s);
}

SHOW CUresult cuStreamCreate(CUstream *out, unsigned flags)
{
	ENTER(NEEDS_CONTEXT | IS_SLOW);
	if (flags > 1)
		return leave(1);
	*out = add_stream(current(), make(OF_STREAM, sizeof **out));
	(*out)->flags = flags;
	return leave(0);
}

/* Work that was started goes on. */
SHOW CUresult cuStreamDestroy_v2(CUstream stream)
{
	ENTER_STREAM(NEEDS_INIT | IS_SLOW);
	if (s->legacy)
		return leave(400);
	uncount(OF_STREAM);
	s->dying = true;
	if (!s->head)
		unlink_stream(s);
	return leave(0);
}

SHOW CUresult cuStreamQuery(CUstream stream)
{
	ENTER_STREAM(NEEDS_CONTEXT | IS_UNSAFE);
	return leave(error_of(s->ctx) ? error_of(s->ctx) : s->head ? NOT_READY : 0);
}

/* A failure that a test has asked for comes when the work has ended, as those of a device do. */
SHOW CUresult cuStreamSynchronize(CUstream stream)
{
	static struct call this_call = { .name = __func__ };
	int err = enter(&this_call, NEEDS_CONTEXT | IS_SLOW);
	struct CUstream_st *s = find_stream(stream);
	int waited = s ? wait_for(s->ctx, is_idle, s) : 400;

	return leave(err ? err : waited);
}

static bool is_capturing(CUcontext ctx)
{
	bool any = false;

	for (struct CUstream_st *s = streams; s; s = s->next)
		if (s->ctx == ctx && s->capture) {
			s->capture = 2; /* a context cannot be waited for meanwhile, whatever the thread's mode */
			any = true;
		}
	return any;
}

SHOW CUresult cuCtxSynchronize(void)
{
	ENTER(NEEDS_CONTEXT | IS_SLOW);
	return leave(is_capturing(current()) ? 900 : wait_for_context(current()));
}

SHOW CUresult cuStreamGetCtx(CUstream stream, CUcontext *out) TELL(ENTER_STREAM(NEEDS_CONTEXT), s->ctx)

SHOW void fake_cuda_hold(CUstream stream, bool hold)
{
	pthread_mutex_lock(&fake_lock);
	find_stream(stream)->held = hold;
	pthread_cond_broadcast(&moved);
	pthread_mutex_unlock(&fake_lock);
}

SHOW void fake_cuda_break(int device, int err)
{
	pthread_mutex_lock(&fake_lock);
	break_device(device, err);
	pthread_mutex_unlock(&fake_lock);
}

/* ---- events ---- */

SHOW CUresult cuEventCreate(CUevent *out, unsigned flags)
{
	ENTER(NEEDS_CONTEXT | IS_SLOW);
	(void)flags;
	*out = make(OF_EVENT, sizeof **out);
	(*out)->ctx = current();
	(*out)->refs = 1;
	return leave(0);
}

SHOW CUresult cuEventDestroy_v2(CUevent event)
{
	ENTER(NEEDS_INIT | IS_SLOW);
	uncount(OF_EVENT);
	unref(event);
	return leave(0);
}

SHOW CUresult cuEventRecord(CUevent event, CUstream stream)
{
	ENTER_STREAM(NEEDS_CONTEXT);
	struct work *w;

	if (s->ctx != event->ctx)
		return leave(400);
	w = new_work(RECORD);
	w->event = event;
	event->refs++;
	w->target = event->recorded + 1;
	event->captured = s->capture;
	err = start(s, w);
	event->recorded += !err && !s->capture;
	return leave(err);
}

SHOW CUresult cuEventQuery(CUevent event)
{
	ENTER(NEEDS_INIT | IS_UNSAFE);
	err = error_of(event->ctx);
	return leave(err ? err : event->captured ? 907 : event->done < event->recorded ? NOT_READY : 0);
}

/* ---- capturing ---- */

bool capture_refuses(void)
{
	bool refuses = false;

	for (struct CUstream_st *s = streams; s; s = s->next) {
		bool mine = s->capture && pthread_equal(s->capturer, pthread_self());
		if (s->capture && capture_mode != CU_STREAM_CAPTURE_MODE_RELAXED &&
		    (mine ? s->mode != CU_STREAM_CAPTURE_MODE_RELAXED : !s->mode && !capture_mode)) {
			s->capture = 2;
			refuses = true;
		}
	}
	return refuses;
}

SHOW CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode *mode)
{
	ENTER(NEEDS_NOTHING);
	unsigned before = capture_mode;

	if (*mode > 2)
		return leave(1);
	capture_mode = *mode;
	*mode = before;
	return leave(0);
}

SHOW CUresult cuStreamIsCapturing(CUstream stream, CUstreamCaptureStatus *out)
{
	ENTER_STREAM(NEEDS_CONTEXT);
	*out = s->capture;
	return leave(capturing_beside(s) ? 906 : 0);
}

SHOW CUresult cuStreamBeginCapture_v2(CUstream stream, CUstreamCaptureMode mode)
{
	ENTER_STREAM(NEEDS_CONTEXT);
	if (s->legacy || s->capture || mode > 2)
		return leave(mode > 2 ? 1 : 900);
	s->capture = 1;
	s->mode = mode;
	s->capturer = pthread_self();
	return leave(0);
}

SHOW CUresult cuStreamEndCapture(CUstream stream, void **graph)
{
	ENTER_STREAM(NEEDS_CONTEXT);
	if (!s->capture)
		return leave(401);
	err = s->capture == 2 ? 901 : 0;
	s->capture = 0;
	*graph = err ? NULL : s;
	return leave(err);
}

SHOW uint64_t fake_cuda_captured(void) { return captured; }
