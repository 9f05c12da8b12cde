/* sim_world.c - the simulated world itself: fibers, the clock, the functions of tt_world, and planned faults
 *
 * A fiber runs until it waits. A fiber that waits chooses the next one itself, on its own stack. While a fiber can run,
 * time stands still. When none can, the clock jumps to the next event. The order of fibers comes from the seed.
 */
#include "transport/sim/sim.h"
#include "transport/sim/sim_private.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>
#if defined __has_include
#if __has_include(<valgrind/valgrind.h>)
#include <valgrind/valgrind.h>
#endif
#endif
#ifndef VALGRIND_STACK_REGISTER
#define VALGRIND_STACK_REGISTER(from, to) ((void)(from), (void)(to), 0)
#define VALGRIND_STACK_DEREGISTER(id) ((void)(id))
#endif
#if TT_ASAN
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#else
#define ASAN_UNPOISON_MEMORY_REGION(from, size) ((void)(from), (void)(size))
#endif
#if TT_TSAN
#include <sanitizer/tsan_interface.h>
#endif

enum {
	STACK_BYTES = 256 << 10,
	GUARD_BYTES = 64 << 10, /* a multiple of all page sizes in use */
	IDLE_CALLS = 100,       /* calls of progress() by a spinning fiber before other fibers run */
	NUDGE_NS = 100,         /* the shortest wait, so that loops around waits end */
};
/* the waits of a killed rank grow up to this, those of a spinning one up to a hundredth of it */
#define STEP_MAX_NS (1000 * TT_MS)
#define HOUR_NS (3600 * 1000 * TT_MS)

struct tt_sim_fiber {
	ucontext_t context;
	struct tt_list node;   /* among the fibers that wait for events on the rank's nets */
	struct tt_sim_rank *rank;
	void (*fn)(void *);
	void *arg;
	char *stack;           /* with its guard; NULL: the stack of the runner */
	struct tt_sim_event timer;
	struct tt_sim_fiber *joiner, *older, *spare;
	char *why;             /* tt_why() while the fiber does not run, ... */
	struct tt_hook hook;   /* ... its tt_hook ... */
	const struct tt_speaker *speaker, *home_speaker; /* ... its tt_speaker, and its tt_home_speaker */
	unsigned idle, naps;   /* calls of progress() in vain; sleeps of a program that gets nowhere */
	bool runnable, ended, joined, late;
	int valgrind_id;
	void *fake_stack, *tsan;
	const void *bottom;    /* of the stack, for ASan */
	size_t size;
};

struct tt_sim_heap_slot {
	uint64_t time, sequence;
	struct tt_sim_event *event;
};

struct whole { /* the world, and the runner's context */
	struct tt_sim_world world;
	struct tt_sim_fiber origin;
};

static void jump(struct tt_sim_world *, struct tt_sim_fiber *);

/* The simulation stops where it stands. Only fibers call this. */
_Noreturn void tt_sim_end(int err, const char *why)
{
	struct tt_sim_world *w = tt_sim_here();

	w->err = err;
	snprintf(w->why, sizeof w->why, "%s", why);
	jump(w, w->origin);
	__builtin_unreachable(); /* nothing runs this fiber again */
}

void *tt_sim_need(void *p)
{
	if (!p)
		tt_sim_end(-ENOMEM, "no memory for the simulated world: simulate fewer ranks");
	return p;
}

void *tt_sim_make(size_t size) { return tt_sim_need(calloc(1, size)); }

/* ---- events: a binary heap by (time, sequence) ---- */

static bool sooner(const struct tt_sim_heap_slot *a, const struct tt_sim_heap_slot *b)
{
	return a->time != b->time ? a->time < b->time : a->sequence < b->sequence;
}

static void place(struct tt_sim_world *w, size_t i, struct tt_sim_heap_slot s)
{
	w->heap[i] = s;
	s.event->at = i + 1;
}

static void sift_up(struct tt_sim_world *w, size_t i, struct tt_sim_heap_slot s)
{
	while (i && sooner(&s, &w->heap[(i - 1) / 2])) {
		place(w, i, w->heap[(i - 1) / 2]);
		i = (i - 1) / 2;
	}
	place(w, i, s);
}

static void sift_down(struct tt_sim_world *w, size_t i, struct tt_sim_heap_slot s)
{
	for (size_t child; (child = 2 * i + 1) < w->events; i = child) {
		if (child + 1 < w->events && sooner(&w->heap[child + 1], &w->heap[child]))
			child++;
		if (!sooner(&w->heap[child], &s))
			break;
		place(w, i, w->heap[child]);
	}
	place(w, i, s);
}

void tt_sim_cancel(struct tt_sim_world *w, struct tt_sim_event *e)
{
	size_t i = e->at - 1;
	struct tt_sim_heap_slot last;

	if (!e->at)
		return;
	e->at = 0;
	last = w->heap[--w->events];
	if (i == w->events)
		return;
	if (i && sooner(&last, &w->heap[(i - 1) / 2]))
		sift_up(w, i, last);
	else
		sift_down(w, i, last);
}

void tt_sim_schedule(struct tt_sim_world *w, struct tt_sim_event *e, uint64_t time,
                     void (*fire)(struct tt_sim_world *, struct tt_sim_event *))
{
	tt_sim_cancel(w, e);
	e->fire = fire;
	if (w->events == w->events_max) {
		w->events_max = w->events_max * 2 + 64;
		w->heap = tt_sim_need(realloc(w->heap, w->events_max * sizeof *w->heap));
	}
	w->events++;
	sift_up(w, w->events - 1, (struct tt_sim_heap_slot){ time < w->now ? w->now : time, w->sequence++, e });
}

/* ---- fibers ---- */

static void announce_start(struct tt_sim_fiber *from, struct tt_sim_fiber *to, bool last)
{
#if TT_ASAN
	__sanitizer_start_switch_fiber(last ? NULL : &from->fake_stack, to->bottom, to->size);
#endif
#if TT_TSAN
	__tsan_switch_to_fiber(to->tsan, 0);
#endif
	(void)from, (void)to, (void)last;
}

/* On the new stack. The first fiber that arrives learns where the runner's stack is. */
static void announce_finish(struct tt_sim_world *w, struct tt_sim_fiber *me)
{
#if TT_ASAN
	const void *bottom;
	size_t size;
	__sanitizer_finish_switch_fiber(me->fake_stack, &bottom, &size);
	if (!w->origin->bottom) {
		w->origin->bottom = bottom;
		w->origin->size = size;
	}
#endif
	(void)w, (void)me;
}

/* tt_why(), tt_hook and tt_speaker belong to a thread, and each fiber keeps its own. Without memory a fiber loses its
 * sentence, no more. */
static void keep_own(struct tt_sim_fiber *f)
{
	const char *why = tt_why();

	f->hook = tt_hook;
	f->speaker = tt_speaker;
	f->home_speaker = tt_home_speaker;
	if (!*why || (f->why && !strcmp(f->why, why)))
		return;
	free(f->why);
	f->why = strdup(why);
}

static void restore_own(struct tt_sim_fiber *f)
{
	const char *mine = f->why ? f->why : "";

	tt_hook = f->hook;
	tt_speaker = f->speaker;
	tt_home_speaker = f->home_speaker;
	if (strcmp(mine, tt_why()))
		tt_remember(mine);
}

static void jump(struct tt_sim_world *w, struct tt_sim_fiber *to)
{
	struct tt_sim_fiber *from = w->current;

	if (from == to)
		return;
	keep_own(from);
	w->current = to;
	announce_start(from, to, from->ended);
	swapcontext(&from->context, &to->context);
	announce_finish(w, from);
	restore_own(from);
}

static void make_runnable(struct tt_sim_world *w, struct tt_sim_fiber *f)
{
	if (f->runnable || f->ended)
		return;
	f->runnable = true;
	tt_sim_cancel(w, &f->timer);
	tt_list_remove(&f->node);
	w->runnable[w->running++] = f;
}

static void timer_fired(struct tt_sim_world *w, struct tt_sim_event *e)
{
	make_runnable(w, tt_container_of(e, struct tt_sim_fiber, timer));
}

/* An operating system does not always run at once what could run. */
static void rouse(struct tt_sim_world *w, struct tt_sim_fiber *f)
{
	if (f->runnable || f->ended || f->late)
		return;
	f->late = tt_sim_one_in(w, 16);
	if (f->late)
		tt_sim_schedule(w, &f->timer, w->now + tt_sim_below(w, 20000), timer_fired);
	else
		make_runnable(w, f);
}

void tt_sim_rouse_watchers(struct tt_sim_world *w, struct tt_sim_rank *r)
{
	tt_list_each(node, &r->watchers)
		rouse(w, tt_container_of(node, struct tt_sim_fiber, node));
}

static void hold(struct tt_sim_rank *r, struct tt_sim_fiber *f)
{
	if (r->holding == r->held_max) {
		r->held_max = r->held_max * 2 + 4;
		r->held = tt_sim_need(realloc(r->held, (size_t)r->held_max * sizeof *r->held));
	}
	r->held[r->holding++] = f;
}

static void release_held(struct tt_sim_world *w, struct tt_sim_rank *r)
{
	for (int i = 0; i < r->holding; i++)
		w->runnable[w->running++] = r->held[i];
	r->holding = 0;
}

static struct tt_sim_fiber *pick_runnable(struct tt_sim_world *w)
{
	while (w->running) {
		int i = (int)tt_sim_below(w, (uint64_t)w->running);
		struct tt_sim_fiber *f = w->runnable[i];
		struct tt_sim_rank *r = f->rank;
		w->runnable[i] = w->runnable[--w->running];
		if (r->stopped_until <= w->now && (!r->spinner || r->spinner == f)) {
			f->runnable = f->late = false;
			w->counts.turns++;
			return f;
		}
		hold(r, f);
	}
	return NULL;
}

static void kill_rank(struct tt_sim_world *, struct tt_sim_rank *);

/* The run cannot end well any more. Names the ranks that hang and kills all, so that their programs return and free
 * their memory. */
static void give_up(struct tt_sim_world *w, int err)
{
	char *at = w->why, *end = w->why + sizeof w->why;
	int named = 0;

	w->err = err;
	w->limit = w->now + HOUR_NS;
	at += snprintf(at, (size_t)(end - at), "%s", err == -EDEADLK ? "waiting for what can never happen: rank" :
	               "still running at the end of simulated time: rank");
	for (int r = 0; r < w->config->ranks; r++)
		if (w->ranks[r].living && ++named <= 8)
			at += snprintf(at, (size_t)(end - at), "%s %d", named > 1 ? "," : "", r);
	snprintf(at, (size_t)(end - at), "%s; seed %llu replays it", named > 8 ? " and more" : "",
	         (unsigned long long)w->config->seed);
	for (int r = 0; r < w->config->ranks; r++)
		kill_rank(w, &w->ranks[r]);
}

/* The scheduler. A fiber that stops running calls it and jumps to what it returns: the origin when all has ended. */
static struct tt_sim_fiber *choose_next(struct tt_sim_world *w)
{
	struct tt_sim_fiber *f;

	while (w->living) {
		if ((f = pick_runnable(w)))
			return f;
		if (w->events && w->heap[0].time <= w->limit) {
			struct tt_sim_event *e = w->heap[0].event;
			w->now = w->heap[0].time;
			w->counts.events++;
			tt_sim_cancel(w, e);
			e->fire(w, e);
		} else if (w->err) {
			break; /* killed and still waiting: its memory is lost */
		} else {
			give_up(w, w->events ? -ETIMEDOUT : -EDEADLK);
		}
	}
	return w->origin;
}

static void wait_until(struct tt_sim_world *w, uint64_t deadline)
{
	if (deadline != TT_NEVER)
		tt_sim_schedule(w, &w->current->timer, deadline, timer_fired);
	jump(w, choose_next(w));
}

static void run_fiber(void)
{
	struct tt_sim_world *w = tt_sim_here();
	struct tt_sim_fiber *me = w->current;

	announce_finish(w, me);
	restore_own(me);
	me->fn(me->arg);
	me->ended = true;
	w->living--;
	if (!--me->rank->living)
		tt_sim_leave_world(w, me->rank);
	if (me->joiner)
		make_runnable(w, me->joiner);
	tt_remember("");
	jump(w, choose_next(w));
	__builtin_unreachable(); /* a dead fiber does not run */
}

static bool map_stack(struct tt_sim_fiber *f)
{
	f->stack = mmap(NULL, GUARD_BYTES + STACK_BYTES, PROT_READ | PROT_WRITE,
	                MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (f->stack == MAP_FAILED)
		return false;
	f->bottom = f->stack + GUARD_BYTES;
	f->size = STACK_BYTES;
	if (!mprotect(f->stack, GUARD_BYTES, PROT_NONE))
		return true;
	munmap(f->stack, GUARD_BYTES + STACK_BYTES);
	return false;
}

static bool make_room_to_run(struct tt_sim_world *w)
{
	struct tt_sim_fiber **more;

	if (w->running_max % 64) /* room for every fiber there is; it grows by 64 */
		return true;
	more = realloc(w->runnable, (size_t)(w->running_max + 64) * sizeof *more);
	if (more)
		w->runnable = more;
	return more;
}

static struct tt_sim_fiber *new_fiber(struct tt_sim_world *w)
{
	struct tt_sim_fiber *f = w->spare;

	if (f) {
		w->spare = f->spare;
		return f;
	}
	f = calloc(1, sizeof *f);
	if (!f || !make_room_to_run(w) || !map_stack(f)) {
		free(f);
		return NULL;
	}
	w->running_max++;
	f->valgrind_id = VALGRIND_STACK_REGISTER(f->stack + GUARD_BYTES, f->stack + GUARD_BYTES + STACK_BYTES);
	f->older = w->all;
	w->all = f;
	return f;
}

/* Not inlined: to the compiler getcontext() returns twice. */
static __attribute__((noinline)) void prepare_context(ucontext_t *context, char *stack)
{
	getcontext(context);
	context->uc_stack.ss_sp = stack;
	context->uc_stack.ss_size = STACK_BYTES;
	context->uc_link = NULL;
	makecontext(context, run_fiber, 0);
}

static struct tt_sim_fiber *start_fiber(struct tt_sim_world *w, struct tt_sim_rank *r, void (*fn)(void *), void *arg)
{
	struct tt_sim_fiber *f = new_fiber(w);

	if (!f)
		return NULL;
	f->rank = r;
	f->fn = fn;
	f->arg = arg;
	f->joiner = NULL;
	f->ended = f->joined = f->late = false;
	f->idle = f->naps = 0;
	f->hook = (struct tt_hook){ 0 };
	f->speaker = f->home_speaker = NULL;
	f->fake_stack = NULL;
	tt_list_init(&f->node);
	free(f->why);
	f->why = NULL;
	/* the last fiber on this stack never returned */
	ASAN_UNPOISON_MEMORY_REGION(f->stack + GUARD_BYTES, STACK_BYTES);
	prepare_context(&f->context, f->stack + GUARD_BYTES);
#if TT_TSAN
	f->tsan = f->tsan ? f->tsan : __tsan_create_fiber(0);
#endif
	r->living++;
	w->living++;
	make_runnable(w, f);
	return f;
}

static void free_fiber(struct tt_sim_fiber *f)
{
#if TT_TSAN
	__tsan_destroy_fiber(f->tsan);
#endif
	VALGRIND_STACK_DEREGISTER(f->valgrind_id);
	ASAN_UNPOISON_MEMORY_REGION(f->stack + GUARD_BYTES, STACK_BYTES);
	munmap(f->stack, GUARD_BYTES + STACK_BYTES);
	free(f->why);
	free(f);
}

/* A program that polls and never sleeps must not stop the world. Other fibers of its rank stay out: it may hold the
 * engine's lock. */
static void yield_spinner(struct tt_sim_world *w)
{
	struct tt_sim_fiber *me = w->current;
	struct tt_sim_rank *r = me->rank;
	uint64_t step = 1000ull << tt_min(me->naps, 14);

	if (++me->idle < IDLE_CALLS)
		return;
	me->idle = 0;
	me->naps++;
	r->spinner = me;
	tt_list_append(&r->watchers, &me->node);
	wait_until(w, w->now + tt_min(step, STEP_MAX_NS / 100));
	r->spinner = NULL;
	release_held(w, r);
}

void tt_sim_polled(struct tt_sim_world *w, int events)
{
	if (events)
		w->current->idle = w->current->naps = 0;
	else
		yield_spinner(w);
}

/* ---- struct tt_world ---- */

static uint64_t world_now(struct tt_world *base) { return ((struct tt_sim_world *)base)->now; }

static void world_entropy(struct tt_world *base, void *to, size_t len)
{
	char *at = to;

	for (size_t i = 0; i < len; i++)
		at[i] = (char)tt_sim_below((struct tt_sim_world *)base, 256);
}

static const char *world_env(struct tt_world *base, const char *variable)
{
	struct tt_sim_world *w = (struct tt_sim_world *)base;
	const char *rank = w->current->rank ? w->current->rank->text : NULL;
	const struct { const char *name, *value; } known[] = {
		{ "TUTTI_RANK", rank }, { "TUTTI_SIZE", w->size_text }, { "TUTTI_LOCAL_RANK", rank },
		{ "TUTTI_LOCAL_SIZE", w->size_text }, { "TUTTI_BOOT", "sim:0" }, { "TUTTI_TRANSPORTS", "sim" },
		{ "TUTTI_SILENCE", w->config->silence_ms ? w->silence_text : NULL },
		{ "TUTTI_TIMEOUT", w->config->timeout_ms ? w->timeout_text : NULL },
		{ "TUTTI_LOG", w->config->log },
	};

	for (size_t i = 0; i < TT_COUNT(known); i++)
		if (!strcmp(known[i].name, variable))
			return known[i].value;
	return NULL;
}

static int world_spawn(struct tt_world *base, void (*fn)(void *), void *arg, struct tt_task **out)
{
	struct tt_sim_world *w = (struct tt_sim_world *)base;

	struct tt_sim_fiber *f = start_fiber(w, w->current->rank, fn, arg);

	if (!f)
		return tt_fail(-ENOMEM, "no memory for another fiber: simulate fewer ranks");
	*out = (struct tt_task *)f;
	return 0;
}

static void world_join(struct tt_world *base, struct tt_task *task)
{
	struct tt_sim_world *w = (struct tt_sim_world *)base;
	struct tt_sim_fiber *f = (struct tt_sim_fiber *)task;

	f->joiner = w->current;
	while (!f->ended)
		wait_until(w, TT_NEVER);
	f->spare = w->spare;
	w->spare = f;
}

/* Every wait of a killed rank ends at once. Each takes longer than the one before, so that no loop goes on for ever. */
static uint64_t wait_end(struct tt_sim_world *w, uint64_t deadline)
{
	struct tt_sim_rank *r = w->current->rank;
	uint64_t least = w->now + NUDGE_NS;

	if (r->killed) {
		r->step = tt_min(r->step * 2 + 1000, STEP_MAX_NS);
		least = w->now + r->step;
		return deadline < least ? tt_max(deadline, w->now + NUDGE_NS) : least;
	}
	if (tt_sim_one_in(w, 32) && deadline > w->now + 20000) /* the contract of tt_park: "or for no reason" */
		deadline = w->now + tt_sim_below(w, 20000);
	return tt_max(deadline, least);
}

static void world_park(struct tt_world *base, struct tt_parking *p, uint64_t deadline, bool nets)
{
	struct tt_sim_world *w = (struct tt_sim_world *)base;
	struct tt_sim_fiber *me = w->current;

	me->idle = 0;
	if (atomic_exchange(&p->token, 0))
		return;
	/* a file descriptor would be readable, but the program may ignore it for long */
	if (nets && tt_sim_has_work(me->rank))
		deadline = tt_min(deadline, w->now + (NUDGE_NS << tt_min(me->naps++, 16)));
	else if (nets)
		tt_list_append(&me->rank->watchers, &me->node);
	p->fiber = me;
	wait_until(w, wait_end(w, deadline));
	p->fiber = NULL;
	atomic_store(&p->token, 0);
}

static void world_wake(struct tt_world *base, struct tt_parking *p)
{
	atomic_store(&p->token, 1);
	if (p->fiber)
		rouse((struct tt_sim_world *)base, p->fiber);
}

/* ---- faults ---- */

static void kill_rank(struct tt_sim_world *w, struct tt_sim_rank *r)
{
	if (r->killed || r->gone)
		return;
	r->killed = true;
	r->stopped_until = 0;
	release_held(w, r);
	tt_sim_break_links(w, r, -1);
	for (struct tt_sim_fiber *f = w->all; f; f = f->older) /* kills are rare */
		if (f->rank == r)
			make_runnable(w, f);
}

struct order { /* a fault that the program has planned */
	struct tt_sim_event event;
	int a, b;
	uint64_t ns;
};

static void give_order(uint64_t at, struct order order, void (*fire)(struct tt_sim_world *, struct tt_sim_event *))
{
	struct tt_sim_world *w = tt_sim_here();
	struct order *o = tt_sim_make(sizeof *o);

	*o = order;
	o->event.owned = true;
	tt_sim_schedule(w, &o->event, w->now + at, fire);
}

static void kill_fired(struct tt_sim_world *w, struct tt_sim_event *e)
{
	kill_rank(w, &w->ranks[((struct order *)e)->a]);
	free(e);
}

static void resume_fired(struct tt_sim_world *w, struct tt_sim_event *e)
{
	release_held(w, &w->ranks[((struct order *)e)->a]);
	free(e);
}

static void stop_fired(struct tt_sim_world *w, struct tt_sim_event *e)
{
	struct order *o = (struct order *)e;
	struct tt_sim_rank *r = &w->ranks[o->a];

	if (!r->killed)
		r->stopped_until = tt_max(r->stopped_until, w->now + o->ns);
	tt_sim_schedule(w, e, w->now + o->ns, resume_fired);
}

static void cut_fired(struct tt_sim_world *w, struct tt_sim_event *e)
{
	struct order *o = (struct order *)e;

	w->cuts = tt_sim_need(realloc(w->cuts, (size_t)(w->cut + 1) * sizeof *w->cuts));
	w->cuts[w->cut][0] = o->a;
	w->cuts[w->cut++][1] = o->b;
	tt_sim_break_links(w, &w->ranks[o->a], o->b);
	free(e);
}

static void heal_fired(struct tt_sim_world *w, struct tt_sim_event *e)
{
	const struct order *o = (struct order *)e;

	for (int i = w->cut; i-- > 0;)
		if (tt_sim_is_cut(w, i, o->a, o->b))
			memcpy(w->cuts[i], w->cuts[--w->cut], sizeof *w->cuts);
	free(e);
}

static void run_program(void *);

static void restart_fired(struct tt_sim_world *w, struct tt_sim_event *e)
{
	struct tt_sim_rank *r = &w->ranks[((struct order *)e)->a];

	if (r->killed && r->living) { /* it is still ending */
		tt_sim_schedule(w, e, w->now + TT_MS, restart_fired);
		return;
	}
	if (r->killed) {
		r->killed = r->gone = false;
		r->step = 0;
		tt_list_init(&r->nets); /* those of the old life, which it may have left open */
		tt_sim_need(start_fiber(w, r, run_program, r));
	}
	free(e);
}

int tt_sim_rank(void) { return tt_world && tt_sim_here()->current->rank ? tt_sim_here()->current->rank->number : -1; }

void tt_sim_sleep(uint64_t ns)
{
	struct tt_sim_world *w = tt_sim_here();
	struct tt_sim_rank *r = w->current->rank;

	w->current->idle = w->current->naps = 0;
	wait_until(w, r->killed ? wait_end(w, w->now + ns) : w->now + ns);
}

void tt_sim_stall(struct tt_sim_world *w, uint64_t ns)
{
	struct tt_sim_rank *r = w->current->rank;

	r->spinner = w->current;
	tt_sim_sleep(ns);
	r->spinner = NULL;
	release_held(w, r);
}

uint64_t tt_sim_chance(uint64_t n) { return tt_sim_below(tt_sim_here(), n); }

void tt_sim_kill(int rank, uint64_t at) { give_order(at, (struct order){ .a = rank }, kill_fired); }

void tt_sim_restart(int rank, uint64_t at) { give_order(at, (struct order){ .a = rank }, restart_fired); }

struct tt_sim_counts tt_sim_counted(void) { return tt_sim_here()->counts; }

bool tt_sim_killed(int rank) { return tt_sim_here()->ranks[rank].killed; }

void tt_sim_stop(int rank, uint64_t at, uint64_t ns)
{
	give_order(at, (struct order){ .a = rank, .ns = ns }, stop_fired);
}

void tt_sim_cut(int a, int b, uint64_t at) { give_order(at, (struct order){ .a = a, .b = b }, cut_fired); }

void tt_sim_heal(int a, int b, uint64_t at) { give_order(at, (struct order){ .a = a, .b = b }, heal_fired); }

void tt_sim_slow(int rank, unsigned factor) { tt_sim_here()->ranks[rank].slow = factor ? factor : 1; }

/* ---- the run ---- */

static void run_program(void *arg)
{
	const struct tt_sim_config *config = tt_sim_here()->config;

	config->program(((struct tt_sim_rank *)arg)->number, config->arg);
}

/* Rank 0's fiber: it starts the others; then each has the same chance to run first. */
static void run_founder(void *arg)
{
	struct tt_sim_world *w = tt_sim_here();

	for (int i = 1; i < w->config->ranks; i++)
		tt_sim_need(start_fiber(w, &w->ranks[i], run_program, &w->ranks[i]));
	make_runnable(w, w->current);
	jump(w, choose_next(w));
	run_program(arg);
}

static void make_rank(struct tt_sim_rank *r, int number)
{
	r->number = number;
	r->slow = 1;
	snprintf(r->text, sizeof r->text, "%d", number);
	tt_list_init(&r->nets);
	tt_list_init(&r->watchers);
}

static struct tt_sim_world *make_world(const struct tt_sim_config *config)
{
	struct whole *whole = calloc(1, sizeof *whole);
	struct tt_sim_rank *ranks = calloc((size_t)config->ranks, sizeof *ranks);

	if (!whole || !ranks) {
		free(whole);
		free(ranks);
		return NULL;
	}
	struct tt_sim_world *w = &whole->world;
	w->base = (struct tt_world){ world_now, world_entropy, world_env, world_spawn,
	                             world_join, world_park, world_wake, config->hosts };
	w->config = config;
	w->now = 1000 * TT_MS; /* not 0: programs use that for "never yet" */
	w->limit = w->now + (config->limit_ns ? config->limit_ns : HOUR_NS);
	w->current = w->origin = &whole->origin;
	tt_random_seed(&w->random, config->seed);
	snprintf(w->size_text, sizeof w->size_text, "%d", config->ranks);
	snprintf(w->silence_text, sizeof w->silence_text, "%d", config->silence_ms);
	snprintf(w->timeout_text, sizeof w->timeout_text, "%d", config->timeout_ms);
	w->ranks = ranks;
	for (int i = 0; i < config->ranks; i++)
		make_rank(&ranks[i], i);
	return w;
}

static void free_world(struct tt_sim_world *w)
{
	for (struct tt_sim_fiber *f = w->all, *older; f; f = older) {
		older = f->older;
		free_fiber(f);
	}
	for (size_t i = 0; i < w->events; i++)
		if (w->heap[i].event->owned)
			free(w->heap[i].event);
	tt_sim_free_flights(w);
	for (int i = 0; i < w->config->ranks; i++)
		free(w->ranks[i].held);
	free(w->origin->why);
	free(w->ranks);
	free(w->runnable);
	free(w->heap);
	free(w->cuts);
	free(w); /* the world is the first member of struct whole */
}

int tt_sim_run(const struct tt_sim_config *config)
{
	struct tt_world *outside = tt_world;
	struct tt_sim_world *w;
	char why[sizeof w->why];
	int err;

	if (config->ranks < 1)
		return tt_fail(-EINVAL, "a simulated world of %d ranks: it needs at least one", config->ranks);
	w = make_world(config);
	if (!w || !start_fiber(w, w->ranks, run_founder, w->ranks)) {
		if (w)
			free_world(w);
		return tt_fail(-ENOMEM, "no memory for a simulated world of %d ranks: simulate fewer", config->ranks);
	}
	tt_world = &w->base;
#if TT_TSAN
	w->origin->tsan = __tsan_get_current_fiber();
#endif
	jump(w, choose_next(w));
	tt_world = outside;
	err = w->err;
	if (config->counts)
		*config->counts = w->counts;
	memcpy(why, w->why, sizeof why);
	if (!w->living) /* else fibers still stand on their stacks, and their memory is lost */
		free_world(w);
	return err ? tt_fail(err, "%s", why) : 0;
}
