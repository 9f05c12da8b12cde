/* engine.c - the progress loop. A thread in a blocking call drives it: the thread polls the nets itself, so no message
 * waits for a thread switch. The background thread runs the loop while the application computes. */
#include "engine/engine.h"
#include <sys/resource.h>

enum {
	SPIN_NS = 1000000,      /* how long a driver polls after the last event before it sleeps */
	PREEMPTED_NS = 500000,  /* a spinning driver that sees no clock for so long may have lost its core ... */
	CROWDED_MIN_NS = 100000000, /* ... to another process; then drivers sleep at once, for so long at first */
	CROWDED_MAX_NS = 1600000000,
	TICK_MIN_NS = 100000,   /* how often the background thread checks whether there is a driver */
	TICK_MAX_NS = 1000000,
	YIELDS = 8,             /* of a driver without its own core but with shared-memory peers, before it sleeps */
	HOUSEKEEPING_MS = 1000, /* the longest sleep: nets check their timeouts in progress() */
	YIELD_MAX_NS = 500000,  /* after a longer yield the core is busy: a sleeper gets it back sooner */
	FAR_EVERY = 16,         /* turns of a spinning driver between polls of nets that need a system call */
	LOOK_NS = 200000,       /* and time between these, where those nets have no peers */
	LOOK_EVERY = 4,         /* calls of tt_look between reads of the clock */
	UNSEEN_NS = 400000,     /* how long nobody may poll them before the background thread does */
	CLOCK_EVERY = 8,        /* turns without an event between reads of the clock */
	LOOKS = 400,            /* of tt_watch */
	SPINS_FROM = 64,        /* turns without an event before a driver asks how often it lost its core so far */
};

static bool may_end(const struct tt_waiter *w) { return w->ready(w->arg) || (w->users && w->users->err); }

static void wake_the_ready(struct tt_engine *e)
{
	e->news = false;
	tt_each_of(struct tt_waiter, link, w, &e->waiters)
		if (may_end(w))
			tt_wake(&w->parking);
	if (e->driver_asleep && may_end(e->driver))
		tt_kick(&e->sleeper);
}

static int arm_all(struct tt_engine *e)
{
	struct tt_job *job = tt_container_of(e, struct tt_job, engine);

	for (int i = 0; i < e->arms; i++)
		if (e->arm[i](job))
			return 1;
	for (int i = 0; i < e->count; i++)
		if (!e->nets[i]->lost && e->nets[i]->transport->arm(e->nets[i]))
			return 1;
	return 0;
}

/* The caller may have posted something while another thread sleeps on the nets. If no file descriptor tells the
 * sleeper, a kick must. */
static void alert_sleepers(struct tt_job *job)
{
	struct tt_engine *e = &job->engine;

	if (!e->driver_asleep && !e->backstage_asleep)
		return;
	if (!job->ended.head && !arm_all(e))
		return;
	tt_kick(e->driver_asleep ? &e->sleeper : &e->backstage);
}

/* The lock's holder is the only writer, so this needs no atomic addition. */
static void count(_Atomic uint32_t *counter, uint32_t n)
{
	n += atomic_load_explicit(counter, memory_order_relaxed);
	atomic_store_explicit(counter, n, memory_order_relaxed);
}

void tt_visit(struct tt_job *job)
{
	count(&job->engine.visits, 2);
	tt_speaker = &job->speaker;
}

void tt_lock(struct tt_job *job)
{
	tt_ticket_lock_take(&job->engine.lock);
	tt_visit(job);
}

void tt_unlock(struct tt_job *job)
{
	if (job->engine.news)
		wake_the_ready(&job->engine);
	alert_sleepers(job);
	tt_speaker = tt_home_speaker;
	tt_ticket_lock_release(&job->engine.lock);
}

/* The list is walked only when a timer may have run out. */
static int run_timers(struct tt_engine *e, uint64_t now)
{
	if (now < e->timer_due)
		return 0;
	e->timer_due = TT_NEVER;
	tt_each_of(struct tt_timer, link, t, &e->timers) {
		if (t->at > now) {
			e->timer_due = tt_min(e->timer_due, t->at);
			continue;
		}
		e->timer_due = 0; /* not all were looked at: others that are due run in the next turn */
		tt_list_remove(&t->link);
		t->expire(t); /* may remove other timers from the list */
		return 1;
	}
	return 0;
}

static int end_unsent(struct tt_job *job)
{
	struct tt_op *op;
	int n = 0;

	while ((op = tt_queue_pop(&job->ended))) {
		tt_op_finish(op, op->err);
		n++;
	}
	return n;
}

static int poll_net(struct tt_job *job, struct tt_net *net)
{
	int n = net->lost ? 0 : net->transport->progress(net);

	if (n >= 0)
		return n;
	net->lost = 1;
	tt_log(TT_ERROR, "%s is lost, and all that was connected over it: %s", net->addr, tt_why());
	tt_each_module(m, job, net_lost)
		m->net_lost(job, net);
	return 0;
}

/* near: polls only the nets that need no system call. */
static int turn(struct tt_job *job, uint64_t now, bool near)
{
	struct tt_engine *e = &job->engine;
	int n = end_unsent(job);

	for (int i = 0; i < e->count; i++)
		if (!near || e->nets[i]->cheap_poll)
			n += poll_net(job, e->nets[i]);
	if (!near) {
		atomic_store_explicit(&e->looked, now, memory_order_relaxed);
		tt_log_flush(now);
	}
	n += run_timers(e, now);
	for (int i = 0; i < e->polls; i++)
		n += e->poll[i](job);
	if (e->news)
		wake_the_ready(e);
	return n;
}

int tt_progress(struct tt_job *job) { return turn(job, tt_now(), false); }

/* Another thread may have looked after `now` was read. */
static bool is_unseen(const struct tt_engine *e, uint64_t now, uint64_t for_ns)
{
	uint64_t looked = atomic_load_explicit(&e->looked, memory_order_relaxed);

	return now > looked && now - looked >= for_ns;
}

/* A program of calls that never wait must not starve timers and the other nets. */
void tt_look(struct tt_job *job, struct tt_net *net)
{
	struct tt_engine *e = &job->engine;

	if (net->cheap_poll && ++e->turns % LOOK_EVERY == 0 && is_unseen(e, tt_now(), LOOK_NS))
		tt_progress(job);
	else if (net->cheap_poll)
		poll_net(job, net);
}

bool tt_watch(struct tt_job *job, struct tt_peer *peer)
{
	int (*hear)(struct tt_peer *) = peer->net->transport->hear;
	int looks = hear && tt_may_spin(job) ? LOOKS : 0;

	while (looks && !hear(peer))
		looks--;
	return looks;
}

static uint64_t next_wake(struct tt_engine *e, uint64_t deadline)
{
	uint64_t at = tt_now() + HOUSEKEEPING_MS * TT_MS;

	tt_each_of(struct tt_timer, link, t, &e->timers)
		if (t->at < at)
			at = t->at;
	return at < deadline ? at : deadline;
}

/* Releases the lock and sleeps until a net has an event; the caller takes the lock again. */
static void sleep_on_nets(struct tt_engine *e, struct tt_sleeper *s, _Atomic bool *asleep, uint64_t deadline)
{
	int fds[TT_NETS], n = 0;

	for (int i = 0; i < e->count; i++)
		if (!e->nets[i]->lost)
			fds[n++] = e->nets[i]->fd;
	deadline = next_wake(e, deadline);
	*asleep = true;
	tt_ticket_lock_release(&e->lock);
	tt_sleep(s, fds, n, deadline);
	*asleep = false;
}

/* False: no other thread wanted the lock. */
static bool let_others_in(struct tt_engine *e)
{
	if (!tt_ticket_lock_is_wanted(&e->lock))
		return false;
	tt_ticket_lock_release(&e->lock);
	tt_ticket_lock_take(&e->lock);
	return true;
}

/* How often the kernel gave this thread's core to another thread. Yields count, too. */
static long count_preemptions(void)
{
	struct rusage r;

	return getrusage(RUSAGE_THREAD, &r) ? -1 : r.ru_nivcsw;
}

/* A thread that spins where other processes want the core uses up its share, and then waits for the core when it has
 * work. A sleeper keeps its share, and gets the core at once. Pauses grow if spinning fails again behind one. */
static void pause_spinning(struct tt_engine *e, uint64_t now)
{
	bool again = now < e->crowded_until + e->crowded_ns;

	e->crowded_ns = again ? tt_min(4 * e->crowded_ns, CROWDED_MAX_NS) : CROWDED_MIN_NS;
	e->crowded_until = now + e->crowded_ns;
	e->spin_until = 0;
}

static bool may_spin(const struct tt_engine *e, uint64_t now) { return e->spin && now >= e->crowded_until; }

bool tt_may_spin(const struct tt_job *job) { return may_spin(&job->engine, job->engine.crowded_until ? tt_now() : 0); }

/* True: nothing happened, no other thread was let in, and next to no time has passed. */
static bool drive(struct tt_job *job, uint64_t now, uint64_t deadline)
{
	struct tt_engine *e = &job->engine;
	bool elsewhere = e->yields && now - e->yielded > YIELD_MAX_NS; /* the core was, during the last yield */
	bool may_yield = !elsewhere && !may_spin(e, now) && e->yields < YIELDS;
	bool yields = may_yield && (e->yields || !e->afar); /* the last turn before a sleep must poll all nets */
	bool due = e->cheap < e->neighbours + e->afar ? ++e->turns % FAR_EVERY == 0 : is_unseen(e, now, LOOK_NS);
	bool near = e->cheap && (now < e->spin_until || yields) && !due;

	if (turn(job, now, near)) {
		e->spin_until = may_spin(e, now) ? now + SPIN_NS : 0;
		e->yields = 0;
		let_others_in(e);
	} else if (now < e->spin_until) {
		return !let_others_in(e);
	} else if ((e->in_memory || e->neighbours) && may_yield && tt_yield()) {
		e->yields++;
		e->yielded = now;
		let_others_in(e);
	} else if (!arm_all(e)) {
		sleep_on_nets(e, &e->sleeper, &e->driver_asleep, deadline);
		tt_ticket_lock_take(&e->lock);
	}
	return false;
}

static void park(struct tt_engine *e, struct tt_waiter *me, uint64_t deadline)
{
	tt_list_append(&e->waiters, &me->link);
	tt_ticket_lock_release(&e->lock);
	tt_park(&me->parking, deadline);
	tt_ticket_lock_take(&e->lock);
	tt_list_remove(&me->link);
}

static void take_over(struct tt_engine *e, struct tt_waiter *me, uint64_t now)
{
	if (e->driver)
		return;
	e->driver = me;
	count(&e->visits, 1);
	e->spin_until = may_spin(e, now) && !me->resumed ? now + SPIN_NS : 0;
}

/* A leaving driver makes the next waiter the driver. It wakes the background thread only if that has no tick. */
static void hand_over(struct tt_engine *e, struct tt_waiter *me)
{
	struct tt_list *next;

	if (e->driver != me)
		return;
	next = tt_list_pop(&e->waiters);
	e->driver = next ? tt_container_of(next, struct tt_waiter, link) : NULL;
	if (e->driver) {
		tt_wake(&e->driver->parking);
		return;
	}
	count(&e->visits, 1);
	if (atomic_load(&e->backstage_off))
		tt_kick(&e->backstage);
}

static int wait(struct tt_job *job, struct tt_waiter *me, uint64_t deadline)
{
	struct tt_engine *e = &job->engine;
	unsigned vain = 0; /* spinning turns without an event, in a row */
	long preempted = 0; /* when these were SPINS_FROM */
	uint64_t now = 0;
	int err = 0;

	tt_list_init(&me->link);
	while (!me->ready(me->arg)) {
		if (me->users && (err = me->users->err))
			break;
		if (vain % CLOCK_EVERY == 0) {
			uint64_t before = now;
			now = tt_now();
			if (vain == SPINS_FROM && e->adapts)
				preempted = count_preemptions();
			else if (vain > SPINS_FROM && now - before >= PREEMPTED_NS && e->adapts &&
			         count_preemptions() > preempted)
				pause_spinning(e, now);
		}
		if (now >= deadline) {
			err = -ETIMEDOUT;
			break;
		}
		if (e->driver && e->driver != me) {
			if (e->news)
				wake_the_ready(e);
			alert_sleepers(job);
			park(e, me, deadline);
			vain = 0;
		} else {
			take_over(e, me, now);
			vain = drive(job, now, deadline) ? vain + 1 : 0;
		}
	}
	hand_over(e, me);
	return err;
}

/* A thread that closes or leaves waits until all others are out. They hold the lock from here to their own last look at
 * the job or the handle. */
static void go_out(struct tt_job *job, struct tt_users *users)
{
	job->inside--;
	if (users)
		users->count--;
	if (job->ending || (users && users->err))
		job->engine.news = true;
}

int tt_wait_until(struct tt_job *job, bool (*ready)(void *), void *arg, uint64_t deadline)
{
	struct tt_waiter me = { .ready = ready, .arg = arg };
	int err;

	job->inside++;
	err = wait(job, &me, deadline);
	go_out(job, NULL);
	return err;
}

/* The hook may block (in Python it asks for the interpreter's lock), so it runs without the lock, and another thread
 * may drive meanwhile. */
static int poll_hook(struct tt_job *job)
{
	int err;

	tt_unlock(job);
	err = tt_hook_poll();
	tt_lock(job);
	return err;
}

static int wait_in_slices(struct tt_job *job, struct tt_waiter *me, uint64_t deadline)
{
	uint64_t now = tt_now();
	int err;

	if (tt_hook.running)
		return tt_fail(-EINVAL, "the function of tutti_on_wait waits: it must not call Tutti");
	if (now < deadline && now >= tt_hook.next) /* so that what has come already is seen before the hook is asked */
		tt_progress(job);
	while ((err = wait(job, me, tt_hook_due(deadline))) == -ETIMEDOUT) {
		if (tt_now() >= deadline || (err = poll_hook(job)))
			break;
		me->resumed = true;
	}
	return err == -EINTR && me->ready(me->arg) ? 0 : err;
}

static int say_ended(const struct tt_users *users)
{
	int err = users->err;

	if (err == -ESTALE)
		return tt_fail(err, "this process closes the %s on which the call waits",
		               users->noun ? users->noun : "handle");
	return tt_fail(err, "this process leaves the job while the call waits");
}

int tt_wait_for(struct tt_job *job, struct tt_users *users, bool (*ready)(void *), void *arg, uint64_t deadline)
{
	struct tt_waiter me = { .ready = ready, .arg = arg, .users = users };
	int err;

	job->inside++;
	if (users)
		users->count++;
	err = tt_hook_is_set() ? wait_in_slices(job, &me, deadline) : wait(job, &me, deadline);
	go_out(job, users);
	return users && users->err && err == users->err ? say_ended(users) : err;
}

int tt_await(struct tt_job *job, struct tt_users *users, bool (*ready)(void *), void *arg, uint64_t timeout,
             void (*say)(void *arg))
{
	uint64_t begun = tt_now();
	int err = tt_wait_for(job, users, ready, arg, begun + tt_min(timeout, job->silence));

	if (err != -ETIMEDOUT)
		return err;
	if (timeout > job->silence)
		say(arg);
	return tt_wait_for(job, users, ready, arg, begun + timeout);
}

/* Sleeps for a tick, or until the driver leaves if the driver sleeps on the nets. The flag is set before the second
 * check: either this thread sees that the driver is awake, or the leaving driver sees the flag. */
static void doze(struct tt_engine *e, uint64_t tick, bool may_stay)
{
	uint64_t until = tt_now() + tick;

	if (may_stay && atomic_load(&e->driver_asleep)) {
		atomic_store(&e->backstage_off, true);
		if (atomic_load(&e->driver_asleep))
			until = TT_NEVER;
	}
	tt_sleep(&e->backstage, NULL, 0, until);
	atomic_store(&e->backstage_off, false);
}

static bool is_visited(struct tt_engine *e) { return atomic_load(&e->visits) % 2 || tt_ticket_lock_is_held(&e->lock); }

static bool is_wanted(const struct tt_job *job)
{
	tt_each_module(m, job, wanted)
		if (m->wanted(job))
			return true;
	return false;
}

static void turn_for_visitors(struct tt_job *job)
{
	tt_ticket_lock_take(&job->engine.lock);
	tt_progress(job);
	tt_ticket_lock_release(&job->engine.lock);
}

/* While application threads take the lock, the background thread only ticks: no event wakes it that another thread
 * polls for, and it leaves the lock to them. But calls that take the lock and poll nothing may follow each other for
 * ever: when nobody has polled all nets for a while, this thread does. Returns when no thread has held the lock for a
 * short tick. */
static void watch_visitors(struct tt_job *job)
{
	struct tt_engine *e = &job->engine;
	uint32_t now = atomic_load(&e->visits), before = now - 1;
	uint64_t tick = TICK_MIN_NS;

	while (!e->stopping && !e->errand && !is_wanted(job) && (now != before || is_visited(e))) {
		bool may_stay = now == before;
		before = now;
		doze(e, tick, may_stay);
		now = atomic_load(&e->visits);
		if (now % 2 == 0 && now != before && is_unseen(e, tt_now(), UNSEEN_NS))
			turn_for_visitors(job);
		tick = now % 2 ? tt_min(2 * tick, TICK_MAX_NS) : TICK_MIN_NS;
	}
}

static void unpin(struct tt_job *job)
{
	struct tt_engine *e = &job->engine;

	if (tt_list_empty(&e->unpinned) && (!e->kept_count || e->arenas_freed == tt_arenas_freed()))
		return;
	tt_ticket_lock_release(&e->lock);
	tt_unpin_waiting(job);
	tt_ticket_lock_take(&e->lock);
}

static void run_background(void *arg)
{
	struct tt_job *job = arg;
	struct tt_engine *e = &job->engine;

	tt_speak_for(&job->speaker);
	tt_ticket_lock_take(&e->lock);
	while (!e->stopping) {
		e->errand = false;
		tt_each_module(m, job, errand)
			m->errand(job);
		tt_scratch_fill(job);
		unpin(job);
		if (!e->driver && (tt_progress(job) || arm_all(e))) {
			let_others_in(e);
			continue;
		}
		if (e->driver)
			tt_ticket_lock_release(&e->lock);
		else
			sleep_on_nets(e, &e->backstage, &e->backstage_asleep, TT_NEVER);
		if (is_visited(e))
			watch_visitors(job);
		tt_ticket_lock_take(&e->lock);
	}
	tt_ticket_lock_release(&e->lock);
}

int tt_engine_open(struct tt_job *job)
{
	struct tt_engine *e = &job->engine;
	int err;

	tt_pins_open(job);
	if ((err = tt_sleeper_open(&e->sleeper)) || (err = tt_sleeper_open(&e->backstage)) ||
	    (err = tt_modules_open(job)))
		return err;
	if (e->pin_above < SIZE_MAX)
		tt_scratch_give(&job->scratch, tt_scratch_take(&job->scratch, 1), 1); /* the first slab */
	return tt_spawn(run_background, job, &e->background);
}

void tt_engine_stop(struct tt_job *job)
{
	struct tt_engine *e = &job->engine;

	if (!e->background)
		return;
	tt_ticket_lock_take(&e->lock);
	e->stopping = true;
	tt_kick(&e->backstage);
	tt_ticket_lock_release(&e->lock);
	tt_join(e->background);
	e->background = NULL;
}

void tt_engine_close(struct tt_job *job)
{
	struct tt_engine *e = &job->engine;

	tt_pins_close(job);
	for (int i = 0; i < e->count; i++)
		e->nets[i]->transport->close(e->nets[i]);
	tt_sleeper_close(&e->sleeper);
	tt_sleeper_close(&e->backstage);
}

void tt_timer_start(struct tt_job *job, struct tt_timer *t, uint64_t at, void (*expire)(struct tt_timer *))
{
	struct tt_engine *e = &job->engine;

	tt_timer_stop(t);
	t->at = at;
	t->expire = expire;
	e->timer_due = tt_min(e->timer_due, at);
	tt_list_append(&e->timers, &t->link);
	if (e->driver_asleep)
		tt_kick(&e->sleeper); /* this timer may be the first to expire */
	if (e->backstage_asleep)
		tt_kick(&e->backstage);
}

void tt_timer_stop(struct tt_timer *t)
{
	if (t->link.next)
		tt_list_remove(&t->link);
}

void tt_errand(struct tt_job *job)
{
	atomic_store(&job->engine.errand, true);
	tt_kick(&job->engine.backstage);
}
