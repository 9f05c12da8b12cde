/* clock.c - the only sources of time, entropy, threads and waiting; a simulated world replaces all of them */
#include "base/base.h"
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/auxv.h>
#include <sys/random.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
#if defined(__x86_64__)
#include <cpuid.h>
#include <x86intrin.h>
#endif

_Thread_local struct tt_world *tt_world;

static uint64_t read_clock(clockid_t clock)
{
	struct timespec t;

	clock_gettime(clock, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

uint64_t tt_now(void) { return tt_world ? tt_world->now(tt_world) : read_clock(CLOCK_MONOTONIC); }
uint64_t tt_calendar(void) { return tt_world ? tt_now() : read_clock(CLOCK_REALTIME); }

/* ---- ticks: clock_gettime would double the cost of counting an event ---- */

#if defined(__x86_64__)
static uint64_t read_counter(void) { return __rdtsc(); }

static bool counter_is_even(void) /* "invariant TSC": at all clock speeds and in all sleep states */
{
	unsigned a, b, c, d;

	return __get_cpuid(0x80000007, &a, &b, &c, &d) && d >> 8 & 1;
}
#else
static uint64_t read_counter(void) { return tt_now(); }
static bool counter_is_even(void) { return false; }
#endif

bool tt_ticks_are_cheap(void)
{
	static _Atomic int known; /* 1: no, 2: yes. CPUID may trap in a virtual machine, so it runs once */

	if (!atomic_load_explicit(&known, memory_order_relaxed))
		atomic_store_explicit(&known, 1 + counter_is_even(), memory_order_relaxed);
	return !tt_world && atomic_load_explicit(&known, memory_order_relaxed) == 2;
}

uint64_t tt_ticks(void) { return tt_ticks_are_cheap() ? read_counter() : tt_now(); }

/* The scheduler may preempt the thread between the two reads, so this takes the closest of a few pairs. */
void tt_ticker_start(struct tt_ticker *t)
{
	uint64_t least = UINT64_MAX;

	for (int i = 0; i < 5; i++) {
		uint64_t before = tt_ticks(), now = tt_now(), gap = tt_ticks() - before;
		if (gap < least)
			*t = (struct tt_ticker){ before + gap / 2, now };
		least = tt_min(least, gap);
	}
}

double tt_ticker_ns(const struct tt_ticker *t)
{
	struct tt_ticker end;

	if (!tt_ticks_are_cheap())
		return 1;
	do /* a pair is exact to about 50 ns, which does not matter after a millisecond */
		tt_ticker_start(&end);
	while (end.now - t->now < TT_MS);
	return (double)(end.now - t->now) / (double)(end.ticks - t->ticks);
}

/* Some containers deny getrandom(). Returns how many bytes /dev/urandom has given. */
static size_t read_entropy(char *at, size_t len)
{
	int fd = open("/dev/urandom", O_RDONLY | O_CLOEXEC);
	size_t done = 0;
	ssize_t n = 1;

	while (fd >= 0 && done < len && (n > 0 || (n < 0 && errno == EINTR))) {
		n = read(fd, at + done, len - done);
		done += n > 0 ? (size_t)n : 0;
	}
	if (fd >= 0)
		close(fd);
	return done;
}

/* The kernel gives each program 16 random bytes when it starts. Names and keys of two processes must differ. */
static void make_entropy(char *at, size_t len)
{
	static _Atomic uint64_t calls;
	const void *start = (const void *)getauxval(AT_RANDOM);
	struct { uint64_t start[2], now, call, pid; } seed = {
		.now = read_clock(CLOCK_REALTIME), .call = atomic_fetch_add(&calls, 1), .pid = (uint64_t)getpid() };
	struct tt_random random;

	if (!seed.call)
		tt_log(TT_WARN, "this system denies getrandom() and has no /dev/urandom: no secret is drawn, "
		       "and keys come from few random bytes; let the container have one of them");
	if (start)
		memcpy(seed.start, start, sizeof seed.start);
	tt_random_seed(&random, tt_sum64(&seed, sizeof seed));
	for (size_t n; len; at += n, len -= n) {
		uint64_t word = tt_random_next(&random);
		n = tt_min(len, sizeof word);
		memcpy(at, &word, n);
	}
}

bool tt_entropy(void *to, size_t len)
{
	char *at = to;

	if (tt_world) {
		tt_world->entropy(tt_world, to, len);
		return true;
	}
	while (len) { /* once the kernel's pool is ready only a signal interrupts this */
		ssize_t n = getrandom(at, len, 0);
		if (n < 0 && errno != EINTR) {
			size_t read = read_entropy(at, len);
			if (read < len)
				make_entropy(at + read, len - read);
			return read == len;
		}
		at += n > 0 ? n : 0;
		len -= n > 0 ? (size_t)n : 0;
	}
	return true;
}

struct tt_task { /* of the real world */
	pthread_t thread;
	void (*fn)(void *);
	void *arg;
	_Atomic bool left; /* by the thread, or by whoever detached it: the second one frees it */
};

static void leave_task(struct tt_task *t)
{
	if (atomic_exchange(&t->left, true))
		free(t);
}

static void *run_task(void *arg)
{
	struct tt_task *t = arg;

	t->fn(t->arg);
	leave_task(t);
	return NULL;
}

int tt_spawn(void (*fn)(void *), void *arg, struct tt_task **out)
{
	if (tt_world)
		return tt_world->spawn(tt_world, fn, arg, out);
	struct tt_task *t = calloc(1, sizeof *t);
	if (!t)
		return tt_fail(-ENOMEM, "no memory for a thread");
	t->fn = fn;
	t->arg = arg;
	sigset_t all, old; /* only the application's own threads take signals */
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	int err = pthread_create(&t->thread, NULL, run_task, t);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	if (err) {
		free(t);
		return tt_fail(-err, "cannot start a thread: %s%s", strerror(err), tt_process_hint(err));
	}
	*out = t;
	return 0;
}

void tt_join(struct tt_task *t)
{
	if (tt_world) {
		tt_world->join(tt_world, t);
		return;
	}
	pthread_join(t->thread, NULL);
	free(t);
}

void tt_detach(struct tt_task *t)
{
	pthread_detach(t->thread);
	leave_task(t);
}

int tt_task_bind(struct tt_task *t, const void *cpus, size_t bytes)
{
	return tt_world ? 0 : -pthread_setaffinity_np(t ? t->thread : pthread_self(), bytes, cpus);
}

/* getcpu() came with glibc 2.29, and musl has none. */
int tt_numa_node(void)
{
	unsigned node;

	return syscall(SYS_getcpu, NULL, &node, NULL) ? -1 : (int)node;
}

static struct timespec time_until(uint64_t deadline)
{
	uint64_t now = tt_now(), left = deadline > now ? deadline - now : 0;

	return (struct timespec){ (time_t)(left / 1000000000u), (long)(left % 1000000000u) };
}

static void futex(_Atomic uint32_t *word, int what, uint32_t value, const struct timespec *timeout, uint32_t bits)
{
	syscall(SYS_futex, word, what, value, timeout, NULL, bits);
}

/* A release wakes only the thread with the next ticket. Tickets 32 apart share a bit, which is harmless. */
static uint32_t bit_of(uint32_t ticket) { return 1u << ticket % 32; }

/* In a simulated world no fiber parks with a lock held, so none waits here. */
void tt_ticket_lock_take(struct tt_ticket_lock *l)
{
	uint32_t mine = atomic_fetch_add(&l->next, 1), now;

	while ((now = atomic_load(&l->serving)) != mine)
		futex(&l->serving, FUTEX_WAIT_BITSET_PRIVATE, now, NULL, bit_of(mine));
}

void tt_ticket_lock_release(struct tt_ticket_lock *l)
{
	uint32_t now = atomic_load(&l->serving) + 1;

	atomic_store(&l->serving, now);
	if (atomic_load(&l->next) != now)
		futex(&l->serving, FUTEX_WAKE_BITSET_PRIVATE, INT_MAX, NULL, bit_of(now));
}

void tt_park(struct tt_parking *p, uint64_t deadline)
{
	if (tt_world) {
		tt_world->park(tt_world, p, deadline, false);
		return;
	}
	struct timespec left = time_until(deadline);
	if (!atomic_exchange(&p->token, 0))
		futex(&p->token, FUTEX_WAIT_PRIVATE, 0, deadline == TT_NEVER ? NULL : &left, 0);
	atomic_store(&p->token, 0);
}

void tt_wake(struct tt_parking *p)
{
	if (tt_world) {
		tt_world->wake(tt_world, p);
		return;
	}
	atomic_store(&p->token, 1);
	futex(&p->token, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, 0);
}

bool tt_yield(void)
{
	if (tt_world)
		return false;
	sched_yield();
	return true;
}

int tt_sleeper_open(struct tt_sleeper *s)
{
	int fd = tt_world ? -1 : tt_eventfd("a thread that waits");

	*s = (struct tt_sleeper){ .fd = tt_world || fd >= 0 ? fd : -1 };
	return tt_world || fd >= 0 ? 0 : fd;
}

void tt_sleeper_close(struct tt_sleeper *s)
{
	if (s->fd >= 0)
		close(s->fd);
	s->fd = -1;
}

void tt_sleep(struct tt_sleeper *s, const int *fds, int n, uint64_t deadline)
{
	struct pollfd p[9] = { { .fd = s->fd, .events = POLLIN } };
	uint64_t drain;

	if (tt_world) {
		tt_world->park(tt_world, &s->parking, deadline, n > 0);
		return;
	}
	for (int i = 0; i < n && i < 8; i++)
		p[i + 1] = (struct pollfd){ .fd = fds[i], .events = POLLIN };
	struct timespec left = time_until(deadline);
	if (ppoll(p, (nfds_t)n + 1, deadline == TT_NEVER ? NULL : &left, NULL) > 0 && p[0].revents)
		(void)!read(s->fd, &drain, sizeof drain);
}

void tt_kick(struct tt_sleeper *s)
{
	uint64_t one = 1;

	if (tt_world)
		tt_world->wake(tt_world, &s->parking);
	else
		(void)!write(s->fd, &one, sizeof one);
}

void tt_random_seed(struct tt_random *r, uint64_t seed)
{
	for (int i = 0; i < 4; i++) { /* splitmix64 (Steele, Lea, Flood 2014), which xoshiro's authors recommend */
		uint64_t z = seed += 0x9e3779b97f4a7c15u;
		z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
		z = (z ^ z >> 27) * 0x94d049bb133111ebu;
		r->s[i] = z ^ z >> 31;
	}
}

uint64_t tt_random_next(struct tt_random *r) /* xoshiro256** (Blackman, Vigna 2018) */
{
	uint64_t *s = r->s, result = tt_rotate(s[1] * 5, 7) * 9, t = s[1] << 17;

	s[2] ^= s[0];
	s[3] ^= s[1];
	s[1] ^= s[2];
	s[0] ^= s[3];
	s[2] ^= t;
	s[3] = tt_rotate(s[3], 45);
	return result;
}

uint64_t tt_random_below(struct tt_random *r, uint64_t n)
{
	return (uint64_t)((unsigned __int128)tt_random_next(r) * n >> 64);
}
