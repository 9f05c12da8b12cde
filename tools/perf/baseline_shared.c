/* baseline_shared.c - the baseline in shared memory: the ranks map each other's memory, and run no more than the loop
 *
 *   pingpong    the bytes and a count behind them, in one cache line; longer ones are copied, then the count is stored
 *   put, get    one copy; the other rank takes no part
 *   stream      as many copies
 *   table       see baseline_table.c
 *   allreduce   each rank sums its slice of all vectors and stores it into all of them; then they meet
 *   ... of vectors that are not mapped (--brought): piece by piece copied into slots, summed there, copied back; or
 *               each rank reads its slice of the others by process_vm_readv, sums it, and reads their sums
 *
 * A part is a rank's memory, mapped by all: its counts, two slots for pieces, and the vectors. */
#include "kernel/kernel.h"
#include "member/member.h"
#include "tools/perf/perf.h"
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <unistd.h>

enum { HEAD = 4096, SLOT = 256 << 10, PATIENT = 1 << 14 /* polls between reads of the clock */ };

struct tt_perf_part { /* its head */
	_Alignas(TT_PERF_LINE) _Atomic uint64_t told; /* messages received */
	uint8_t letter[TT_PERF_LINE - sizeof(uint64_t)];
	_Alignas(TT_PERF_LINE) _Atomic uint64_t met;  /* arrivals of this rank at the meeting point */
};

/* The memory. */

size_t tt_perf_part_size(size_t most) { return HEAD + 2 * SLOT + 2 * ((most + HEAD - 1) / HEAD * HEAD); }

static uint8_t *slot(const struct tt_perf *p, int rank, size_t half)
{
	return (uint8_t *)p->shared.part[rank] + HEAD + half * SLOT;
}

uint8_t *tt_perf_local_of(const struct tt_perf *p, int rank) { return slot(p, rank, 2); }

uint8_t *tt_perf_open_of(const struct tt_perf *p, int rank)
{
	return tt_perf_local_of(p, rank) + (tt_perf_part_size(p->most) - HEAD - 2 * SLOT) / 2;
}

uint8_t *tt_perf_local(const struct tt_perf *p)
{
	return p->order.baseline && p->shared.part && !p->options.brought ? tt_perf_local_of(p, p->rank) : p->local;
}

uint8_t *tt_perf_open(const struct tt_perf *p)
{
	return p->order.baseline && p->shared.part ? tt_perf_open_of(p, p->rank) : p->open;
}

static int map_part(struct tt_perf *p, int rank, int fd)
{
	size_t size = tt_perf_part_size(p->most);
	void *at = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

	if (at == MAP_FAILED)
		return tt_fail(-errno, "cannot map the %zu bytes of rank %d for the baseline: %s", size, rank,
		               strerror(errno));
	madvise(at, size, MADV_HUGEPAGE);
	p->shared.part[rank] = at;
	return 0;
}

struct place { /* of a rank's part, and of its vector */
	pid_t pid;
	int fd;
	uint8_t *local;
};

static int map_all(struct tt_perf *p, const struct place *all)
{
	char path[64];
	int err = 0;

	for (int r = 0; r < p->size && !err; r++) {
		snprintf(path, sizeof path, "/proc/%d/fd/%d", all[r].pid, all[r].fd);
		int fd = open(path, O_RDWR | O_CLOEXEC);
		if (fd < 0)
			return tt_fail(-errno, "cannot open rank %d's memory for the baseline, %s: %s", r, path,
			               strerror(errno));
		err = map_part(p, r, fd);
		close(fd);
	}
	return err;
}

/* Bytes of a rank's vector. */
static bool read_from(const struct tt_perf *p, int rank, size_t at, void *to, size_t len)
{
	const struct tt_perf_reach *from = &p->shared.reach[rank];
	struct iovec here = { to, len }, there = { from->local + at, len };

	return !len || process_vm_readv(from->pid, &here, 1, &there, 1, 0) == (ssize_t)len;
}

/* Containers and yama may forbid it; only a try tells. */
static int reach_all(struct tt_perf *p, const struct place *all)
{
	uint8_t can = p->size > 1 && p->options.brought, others[TT_PERF_RANKS], byte;
	struct tt_perf_reach *reach = calloc(TT_PERF_RANKS, sizeof *reach);
	int err;

	p->shared.reach = reach;
	for (int r = 0; r < p->size && (can &= reach != NULL); r++) {
		reach[r] = (struct tt_perf_reach){ all[r].pid, all[r].local };
		can = read_from(p, r, 0, &byte, 1);
	}
	if ((err = tutti_gather(p->job, &can, 1, others, -1, NULL)))
		return err;
	if (memchr(others, 0, (size_t)p->size)) {
		free(reach);
		p->shared.reach = NULL;
	}
	return 0;
}

static int meet_all(struct tt_perf *p, int mine)
{
	struct place here = { getpid(), mine, p->local }, all[TT_PERF_RANKS];
	int err = tutti_gather(p->job, &here, sizeof here, all, -1, NULL);

	if (!err)
		err = map_all(p, all);
	return err ? err : reach_all(p, all);
}

int tt_perf_open_shared(struct tt_perf *p)
{
	int fd = memfd_create("tutti perf", MFD_CLOEXEC), err = 0;

	p->shared.patience = p->job->job->silence;
	p->shared.part = calloc((size_t)p->size, sizeof *p->shared.part);
	if (fd < 0 || !p->shared.part || ftruncate(fd, (off_t)tt_perf_part_size(p->most)))
		err = tt_fail(-errno, "no memory for the baseline: %s", strerror(errno));
	if (!err)
		err = meet_all(p, fd); /* at its end all have opened it */
	if (fd >= 0)
		close(fd);
	p->has_baseline = !err;
	return err;
}

void tt_perf_close_shared(struct tt_perf *p)
{
	for (int r = 0; p->shared.part && r < p->size; r++)
		if (p->shared.part[r])
			munmap(p->shared.part[r], tt_perf_part_size(p->most));
	free(p->shared.part);
	free(p->shared.reach);
	p->shared.part = NULL;
	p->shared.reach = NULL;
}

/* Waits until a count in memory is so much. */

static void pause_briefly(const struct tt_perf *p)
{
	if (p->crowded)
		sched_yield();
#ifdef __x86_64__
	else
		__builtin_ia32_pause();
#endif
}

static int await(const struct tt_perf *p, const _Atomic uint64_t *count, uint64_t enough, int rank)
{
	uint64_t end = 0;

	for (uint64_t i = 1; atomic_load_explicit(count, memory_order_acquire) < enough; i++) {
		pause_briefly(p);
		if (i % PATIENT == 0 && !end)
			end = tt_now() + p->shared.patience;
		if (i % PATIENT == 0 && tt_now() > end)
			return tt_fail(-ETIMEDOUT, "the baseline: rank %d has not come within TUTTI_SILENCE", rank);
	}
	return 0;
}

void tt_perf_arrive(struct tt_perf *p)
{
	atomic_store_explicit(&p->shared.part[p->rank]->met, ++p->shared.met, memory_order_release);
}

int tt_perf_await(const struct tt_perf *p, int rank, uint64_t times)
{
	return await(p, &p->shared.part[rank]->met, times, rank);
}

static int meet(struct tt_perf *p)
{
	int err = 0;

	tt_perf_arrive(p);
	for (int r = 0; r < p->size && !err; r++)
		err = tt_perf_await(p, r, p->shared.met);
	return err;
}

/* Between rank 0 and rank 1. */

void tt_perf_copy(const struct tt_perf *p, void *to, const void *from, size_t n)
{
	if (p->order.way.copy)
		tt_copy_by((enum tt_copy_way)(p->order.way.copy - 1), to, from, n);
	else
		memcpy(to, from, n);
}

static void tell(struct tt_perf *p)
{
	struct tt_perf_part *to = p->shared.part[1 - p->rank];

	if (p->bytes <= sizeof to->letter)
		memcpy(to->letter, tt_perf_local_of(p, p->rank), p->bytes);
	else
		tt_perf_copy(p, tt_perf_open_of(p, 1 - p->rank), tt_perf_local_of(p, p->rank), p->bytes);
	atomic_store_explicit(&to->told, ++p->shared.told, memory_order_release);
}

static int hear(struct tt_perf *p)
{
	const struct tt_perf_part *me = p->shared.part[p->rank];
	int err = await(p, &me->told, ++p->shared.heard, 1 - p->rank);

	if (!err && p->bytes <= sizeof me->letter)
		memcpy(tt_perf_open_of(p, p->rank), me->letter, p->bytes);
	return err;
}

int tt_perf_shared_pingpong(struct tt_perf *p)
{
	int err;

	if (!p->rank)
		tell(p);
	err = hear(p);
	if (p->rank)
		tell(p);
	return err;
}

static int copy_often(struct tt_perf *p, bool get, int count)
{
	for (int i = 0; i < count && !p->rank; i++)
		if (get)
			tt_perf_copy(p, tt_perf_local_of(p, 0), tt_perf_open_of(p, 1), p->bytes);
		else
			tt_perf_copy(p, tt_perf_open_of(p, 1), tt_perf_local_of(p, 0), p->bytes);
	return 0;
}

int tt_perf_shared_put(struct tt_perf *p) { return copy_often(p, false, 1); }
int tt_perf_shared_get(struct tt_perf *p) { return copy_often(p, true, 1); }
int tt_perf_shared_stream_puts(struct tt_perf *p) { return copy_often(p, false, p->flight); }
int tt_perf_shared_stream_gets(struct tt_perf *p) { return copy_often(p, true, p->flight); }

/* Among all. */

/* This rank's slice of `bytes` at `from` of each rank, into all of `to`. */
static void sum_slice(const struct tt_perf *p, uint8_t *const *from, int outputs, size_t bytes)
{
	size_t width = tt_type_size(p->options.type), count = bytes / width, n = (size_t)p->size, r = (size_t)p->rank;
	size_t first = count * r / n, last = count * (r + 1) / n;
	void *at[n];

	for (size_t k = 0; k < n; k++)
		at[k] = from[k] + first * width;
	tt_reduce_many(&(struct tt_many){ (const void *const *)at, at, (int)n, outputs, p->order.way.past },
	               last - first, p->options.type, p->options.rule);
}

static int reduce_mapped(struct tt_perf *p)
{
	uint8_t *vector[p->size];

	for (int r = 0; r < p->size; r++)
		vector[r] = tt_perf_local_of(p, r);
	sum_slice(p, vector, p->size, p->bytes);
	return meet(p);
}

/* The sums of a piece are in rank 0's slot. A rank fills a slot again only after two meetings since others read it. */
static int reduce_piece(struct tt_perf *p, size_t at, size_t half, size_t bytes)
{
	uint8_t *piece[p->size];
	int err;

	for (int r = 0; r < p->size; r++)
		piece[r] = slot(p, r, half);
	tt_perf_copy(p, piece[p->rank], p->local + at, bytes);
	if ((err = meet(p)))
		return err;
	sum_slice(p, piece, 1, bytes);
	if ((err = meet(p)))
		return err;
	tt_perf_copy(p, p->local + at, piece[0], bytes);
	return 0;
}

static int reduce_brought(struct tt_perf *p)
{
	size_t half = 0;
	int err = 0;

	for (size_t at = 0; at < p->bytes && !err; at += SLOT, half ^= 1)
		err = reduce_piece(p, at, half, tt_min(SLOT, p->bytes - at));
	return err ? err : meet(p);
}

struct slice {
	size_t at, end; /* bytes */
};

static struct slice slice_of(const struct tt_perf *p, int rank)
{
	size_t width = tt_type_size(p->options.type), count = p->bytes / width, n = (size_t)p->size, r = (size_t)rank;

	return (struct slice){ count * r / n * width, count * (r + 1) / n * width };
}

static int lost_reach(int rank)
{
	return tt_fail(-EIO, "the baseline: cannot read rank %d's memory: %s", rank, strerror(errno));
}

/* The pieces of all other ranks fit into one slot, which stays in the caches. */
static int sum_read(struct tt_perf *p)
{
	struct slice mine = slice_of(p, p->rank);
	size_t most = SLOT / (size_t)(p->size - 1) / TT_PERF_LINE * TT_PERF_LINE, n;
	const void *from[p->size];
	void *to;

	for (size_t at = mine.at; at < mine.end; at += n) {
		uint8_t *room = slot(p, p->rank, 0);
		n = tt_min(most, mine.end - at);
		from[p->rank] = to = p->local + at;
		for (int r = 0; r < p->size; r++) {
			if (r == p->rank)
				continue;
			if (!read_from(p, r, at, room, n))
				return lost_reach(r);
			from[r] = room;
			room += most;
		}
		tt_reduce_many(&(struct tt_many){ from, &to, p->size, 1, false }, n / tt_type_size(p->options.type),
		               p->options.type, p->options.rule);
	}
	return 0;
}

static int reduce_read(struct tt_perf *p)
{
	int err = meet(p); /* all vectors are there */

	if (err || (err = sum_read(p)) || (err = meet(p)))
		return err;
	for (int r = 0; r < p->size; r++) {
		struct slice s = slice_of(p, r);
		if (r != p->rank && !read_from(p, r, s.at, p->local + s.at, s.end - s.at))
			return lost_reach(r);
	}
	return meet(p);
}

int tt_perf_shared_allreduce(struct tt_perf *p)
{
	if (!p->options.brought)
		return reduce_mapped(p);
	return p->order.way.reads ? reduce_read(p) : reduce_brought(p);
}

/* Ways. */

int tt_perf_shared_ways(const struct tt_perf *p, struct tt_perf_way *ways)
{
	bool stores = p->test->collective && !p->options.brought; /* else it copies */
	bool plain = p->test->table && (tt_perf_is_of_rows(p) || !(p->kernel->calls & TT_PERF_PULL));
	plain |= tt_perf_is_gossip(p);
	int n = plain || p->bytes < TT_COPY_FROM ? 1 : stores ? 2 : 1 + tt_copy_ways();

	for (int i = 0; i < n; i++)
		ways[i] = (struct tt_perf_way){ .past = stores && i, .copy = stores ? 0 : (uint32_t)i };
	if (p->shared.reach)
		ways[n++] = (struct tt_perf_way){ .reads = 1 };
	return n;
}

void tt_perf_word_shared(const struct tt_perf *p, const struct tt_perf_way *way, char *text, size_t room)
{
	const char *how = way->copy ? tt_copy_name[way->copy - 1] : "memcpy";

	if (way->reads)
		snprintf(text, room, "bare memory: each rank reads its slice of the others by process_vm_readv, "
		                     "sums it, and reads their sums; slower: pieces copied into slots");
	else if (p->test->collective && p->options.brought)
		snprintf(text, room, "bare memory: pieces of 256 KiB into slots that all map, "
		                     "each rank sums its slice, copied back; %s%s", how,
		         p->shared.reach ? "; slower: process_vm_readv" : "");
	else if (p->test->collective)
		snprintf(text, room, "bare memory: each rank sums its slice of all vectors into all, stored %s",
		         way->past ? "past the caches" : "as usual");
	else if (tt_perf_is_gossip(p))
		snprintf(text, room, "bare memory: an average out of the other rank's memory, in place");
	else if (p->test->one_sided)
		snprintf(text, room, "bare memory: %s; %s", p->test->streams ? "copies" : "one copy", how);
	else if (p->bytes <= sizeof((struct tt_perf_part *)0)->letter)
		snprintf(text, room, "bare memory: one line each way, half a round trip");
	else
		snprintf(text, room, "bare memory: a copy and a count each way, half a round trip; %s", how);
}
