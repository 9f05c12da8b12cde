/* arena.c - memory that the other processes of this host can map: tutti_alloc. A GPU's memory is gpu/'s
 *
 * An arena is a memfd, sealed so that no process can remove pages that another one has mapped. Each arena costs an open
 * file, so small allocations share slabs of 2 MiB, in whole pages.
 *
 *      slab    | run of 3 pages | free | run of 1 | free ...     run[] holds the length at the first page of each run
 *
 * Memory may outlive the job that allocated it, so arenas belong to the process. Without a memfd, or when open files
 * become scarce, memory is private: other ranks then reach it by a copy. */
#include "engine/engine.h"
#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { PAGE = 4096, HUGE_PAGE = 2 << 20, SLAB = 2 << 20, SLAB_PAGES = SLAB / PAGE, SMALL_MAX = SLAB / 2 };

struct arena {
	char *base;
	size_t len;
	int fd;
	uint64_t inode;  /* of fd: a collective registers memory for each call, and does not ask the kernel each time */
	uint64_t serial; /* never used twice */
	bool slab;
	uint16_t run[SLAB_PAGES];
};

static struct { /* by address */
	pthread_mutex_t lock;
	struct arena **at;
	int count, room;
	struct arena *empty; /* one empty slab is kept, for programs that allocate and free in turns; NULL: none */
	uint64_t made;
	_Atomic uint64_t freed;
	uint64_t gone[TT_ARENAS_GONE]; /* serial numbers of those freed last; that of the nth at n, modulo the size */
	bool forks;          /* the fork handlers are installed */
} arenas = { .lock = PTHREAD_MUTEX_INITIALIZER };

/* ---- the list ---- */

/* The index of the first arena that ends behind p. */
static int index_of(const char *p)
{
	int low = 0, high = arenas.count;

	while (low < high) {
		int middle = (low + high) / 2;
		if (arenas.at[middle]->base + arenas.at[middle]->len > p)
			high = middle;
		else
			low = middle + 1;
	}
	return low;
}

static struct arena *find(const char *p)
{
	int i = index_of(p);

	return i < arenas.count && arenas.at[i]->base <= p ? arenas.at[i] : NULL;
}

static bool insert(struct arena *a)
{
	int i = index_of(a->base);

	if (arenas.count == arenas.room) {
		struct arena **more = realloc(arenas.at, (size_t)(2 * arenas.room + 16) * sizeof *more);
		if (!more)
			return false;
		arenas.at = more;
		arenas.room = 2 * arenas.room + 16;
	}
	memmove(arenas.at + i + 1, arenas.at + i, (size_t)(arenas.count - i) * sizeof *arenas.at);
	arenas.at[i] = a;
	arenas.count++;
	return true;
}

static void take_out(const struct arena *a)
{
	int i = index_of(a->base);

	memmove(arenas.at + i, arenas.at + i + 1, (size_t)(arenas.count - i - 1) * sizeof *arenas.at);
	arenas.count--;
}

/* ---- a child of fork() gets a private copy ---- */

static void lock(void) { pthread_mutex_lock(&arenas.lock); }
static void unlock(void) { pthread_mutex_unlock(&arenas.lock); }

/* What the child allocates for a job of its own comes from new arenas: others would not see it in the file of these. */
static void make_private(void)
{
	for (int i = 0; i < arenas.count; i++) {
		struct arena *a = arenas.at[i];
		if (a->fd < 0)
			continue; /* private in the parent already */
		if (mmap(a->base, a->len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED, a->fd, 0) == MAP_FAILED)
			mprotect(a->base, a->len, PROT_READ);
		close(a->fd);
		a->fd = -1;
	}
	arenas.empty = NULL;
	unlock();
}

/* ---- one arena ---- */

static int make_file(size_t len, uint64_t *inode)
{
	int fd = tt_memory_file("tutti", len);
	struct stat file;

	if (fd < 0)
		return fd;
	if (tt_files_scarce(fd) || fstat(fd, &file)) {
		close(fd);
		return -1;
	}
	*inode = (uint64_t)file.st_ino;
	return fd;
}

/* Maps private memory first, so that the kernel refuses at once what it can never provide; then the file over it. */
static char *map_file(int fd, size_t len)
{
	size_t unit = len < HUGE_PAGE ? PAGE : HUGE_PAGE, all = len + unit - PAGE;
	char *from = mmap(NULL, all, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), *base;

	if (from == MAP_FAILED)
		return NULL;
	base = from + (-(uintptr_t)from & (unit - 1));
	if (base > from)
		munmap(from, (size_t)(base - from));
	if (base + len < from + all)
		munmap(base + len, (size_t)(from + all - base - len));
	if (mmap(base, len, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0) == MAP_FAILED) {
		munmap(base, len);
		return NULL;
	}
	return base;
}

static void drop(struct arena *a)
{
	if (a->base)
		munmap(a->base, a->len);
	if (a->fd >= 0)
		close(a->fd);
	free(a);
}

static struct arena *make(size_t len, bool slab)
{
	struct arena *a = calloc(1, sizeof *a);

	if (!a)
		return NULL;
	a->len = len;
	a->slab = slab;
	a->serial = ++arenas.made;
	a->fd = make_file(len, &a->inode);
	a->base = a->fd >= 0 ? map_file(a->fd, len) : NULL;
	if (!arenas.forks)
		arenas.forks = !pthread_atfork(lock, unlock, make_private);
	if (!a->base || !arenas.forks || !insert(a)) {
		drop(a);
		return NULL;
	}
	if (!slab && len >= HUGE_PAGE)
		madvise(a->base, len, MADV_HUGEPAGE);
	return a;
}

/* ---- runs of pages in slabs ---- */

static int room_in(const struct arena *a, int pages) /* the first page; -1: it has no room */
{
	for (int i = 0, room = 0; i < SLAB_PAGES;) {
		room = a->run[i] ? 0 : room + 1;
		i += a->run[i] ? a->run[i] : 1;
		if (room == pages)
			return i - pages;
	}
	return -1;
}

static char *cut(struct arena *a, int pages)
{
	int at = room_in(a, pages);

	if (a == arenas.empty)
		arenas.empty = NULL;
	a->run[at] = (uint16_t)pages;
	return a->base + (size_t)at * PAGE;
}

static bool is_empty(const struct arena *a)
{
	for (int i = 0; i < SLAB_PAGES; i++)
		if (a->run[i])
			return false;
	return true;
}

/* From the oldest slab with room: which one that is does not depend on addresses, and so a simulated run can be
 * replayed. */
static char *take_run(size_t bytes)
{
	int pages = (int)(bytes / PAGE);
	struct arena *oldest = NULL;

	for (int i = 0; i < arenas.count; i++) {
		struct arena *a = arenas.at[i];
		if (a->slab && a->fd >= 0 && (!oldest || a->serial < oldest->serial) && room_in(a, pages) >= 0)
			oldest = a;
	}
	if (!oldest)
		oldest = make(SLAB, true);
	return oldest ? cut(oldest, pages) : NULL;
}

/* ---- allocations ---- */

static char *take(size_t bytes)
{
	struct arena *a;
	char *p;

	lock();
	if (bytes <= SMALL_MAX)
		p = take_run(bytes);
	else
		p = (a = make(bytes, false)) ? a->base : NULL;
	unlock();
	return p;
}

static void give_arena(struct arena *a)
{
	if (a->slab && a->fd >= 0 && !arenas.empty)
		arenas.empty = a;
	if (a == arenas.empty)
		return;
	take_out(a);
	arenas.gone[arenas.freed % TT_ARENAS_GONE] = a->serial;
	drop(a);
	arenas.freed++;
}

static bool give(char *p)
{
	struct arena *a;

	lock();
	a = find(p);
	if (a)
		a->run[(p - a->base) / PAGE % SLAB_PAGES] = 0;
	if (a && is_empty(a))
		give_arena(a);
	unlock();
	return a;
}

struct tt_mem tt_mem_of(void *base, size_t len)
{
	struct tt_mem mem = { .base = base, .len = len, .gpu = -1, .fd = -1 };
	const struct arena *a;

	lock();
	a = find(base);
	if (a && len <= (size_t)(a->base + a->len - (char *)base)) {
		mem.fd = a->fd;
		mem.fd_offset = (uint64_t)((char *)base - a->base);
		mem.inode = a->inode;
	}
	unlock();
	return mem;
}

uint64_t tt_arena_of(const void *base, size_t len, struct tt_mem *arena)
{
	const struct arena *a;
	uint64_t serial = 0;

	lock();
	a = find(base);
	if (a && len <= (size_t)(a->base + a->len - (const char *)base)) {
		serial = a->serial;
		*arena = (struct tt_mem){ .base = a->base, .len = a->len, .gpu = -1, .fd = a->fd,
		                          .inode = a->inode };
	}
	unlock();
	return serial;
}

bool tt_arena_is_there(uint64_t serial, const void *at)
{
	const struct arena *a;

	lock();
	a = find(at);
	bool there = a && a->serial == serial;
	unlock();
	return there;
}

int tt_arenas_gone(uint64_t *seen, uint64_t gone[TT_ARENAS_GONE])
{
	int n = 0;

	if (arenas.freed == *seen)
		return 0;
	lock();
	bool few = arenas.freed - *seen <= TT_ARENAS_GONE;
	for (uint64_t i = *seen; few && i < arenas.freed; i++)
		gone[n++] = arenas.gone[i % TT_ARENAS_GONE];
	*seen = arenas.freed;
	unlock();
	return few ? n : -1;
}

uint64_t tt_arenas_freed(void) { return arenas.freed; }

static int alloc_on(int gpu, size_t bytes, void **memory)
{
	int err = tt_gpu_alloc(gpu, bytes, memory);
	struct tt_sentence why = tt_last_sentence();

	return err == -ENODEV ? tt_fail(err, "%s; or use -1 for host memory", why.text) : err;
}

int tt_memory_alloc(const struct tt_job *job, size_t bytes, int gpu, void **memory)
{
	void *p;

	if (gpu != -1)
		return alloc_on(gpu, bytes, memory);
	if (bytes > PTRDIFF_MAX - HUGE_PAGE)
		return tt_fail(-ENOMEM, "%zu bytes are more than there can be", bytes);
	bytes = (tt_max(bytes, 1) + PAGE - 1) & ~(size_t)(PAGE - 1);
	p = take(bytes);
	if (!p)
		p = aligned_alloc(PAGE, bytes);
	if (!p)
		return tt_fail(-ENOMEM, "no memory for %zu bytes", bytes);
	tt_place_memory(job, p, bytes);
	memset(p, 0, bytes);
	*memory = p;
	return 0;
}

void tt_memory_free(void *memory)
{
	if (!give(memory) && !(tt_gpu_here && tt_gpu_free_idle(memory)))
		free(memory);
}
