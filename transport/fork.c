/* fork.c - which descriptors a child of fork() closes at once */
#include "transport/fork.h"
#include "base/base.h"
#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <unistd.h>

enum { FILES = 1 << 20, WORD = 64 };

/* The lock is held from the call that opens or closes a descriptor to the note of that, and during fork(): so a child
 * never closes a file of the program's that has the same number. */
static struct {
	pthread_mutex_t lock;
	uint64_t held[FILES / WORD];
	int words; /* no later word has a bit */
} all = { .lock = PTHREAD_MUTEX_INITIALIZER };

static void lock(void) { pthread_mutex_lock(&all.lock); }
static void unlock(void) { pthread_mutex_unlock(&all.lock); }

/* In the child, whose other threads are gone: only what is safe in a signal handler. */
static void close_held(void)
{
	for (int i = 0; i < all.words; i++)
		for (; all.held[i]; all.held[i] &= all.held[i] - 1)
			close(i * WORD + __builtin_ctzll(all.held[i]));
	all.words = 0;
	unlock();
}

/* Before the first descriptor, so that no fork() misses the lock. Without a handler, for want of memory, a child keeps
 * the descriptors: heartbeats then tell of the parent's end. */
__attribute__((constructor)) static void watch_forks(void) { pthread_atfork(lock, unlock, close_held); }

static void note(int fd, bool held)
{
	if (fd < 0 || fd >= FILES)
		return;
	uint64_t bit = (uint64_t)1 << fd % WORD;
	all.held[fd / WORD] = held ? all.held[fd / WORD] | bit : all.held[fd / WORD] & ~bit;
	if (held && all.words <= fd / WORD)
		all.words = fd / WORD + 1;
}

int tt_fork_socket(int family, int type)
{
	lock();
	int fd = tt_high_file(socket(family, type | SOCK_CLOEXEC, 0));
	note(fd, true);
	unlock();
	return fd;
}

int tt_fork_accept(int listener, struct sockaddr *from, socklen_t *size)
{
	lock();
	int fd = tt_high_file(accept4(listener, from, size, SOCK_NONBLOCK | SOCK_CLOEXEC));
	note(fd, true);
	unlock();
	return fd;
}

void tt_fork_hold(int fd)
{
	lock();
	note(fd, true);
	unlock();
}

void tt_fork_release(int fd)
{
	lock();
	note(fd, false);
	unlock();
}

void tt_fork_close(int fd)
{
	lock();
	note(fd, false);
	close(fd);
	unlock();
}
