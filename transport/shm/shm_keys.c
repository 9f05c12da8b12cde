/* shm_keys.c - memory: keys and what they mean, mapped files of other processes, and who may store where
 *
 * A writer of mapped memory needs no help of the owner, so taking back a key needs a protocol. The writer announces the
 * region that it stores into, then checks whether it still may. The owner takes the key off its sheet, then checks
 * whether a writer stores there:
 *
 *      writer                                    owner
 *        writing = id                              entry.id = 0            (or lane.shut = 1, for all regions)
 *        fence                                     fence
 *        entry.id == id and not shut? store        until writing != id: wait
 *        writing = 0
 *
 * A store is cut into pieces of TT_SHM_BUDGET bytes, so the wait is short, unless the writer is frozen in the middle of
 * one.
 *
 * A store through a pointer of map() is not announced. When a side disconnects, or sees `shut`, the side makes its
 * pointers into the other's memory lead to copies of its own, then clears lane.mapped; the owner waits for that as for
 * a store. A side lets go before it waits, and while it waits it lets go of whatever others shut: no circle of owners
 * waits for ever.
 */
#include "transport/shm/shm_private.h"
#include "transport/breaks.h"
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { YIELD_NS = 200000, NAP_US = 50, STEP_MS = 5, MOMENT_MS = 30, SILENCE_MS = 200, DYING_MS = 1000 };

static struct tt_shm *net_of(struct tt_net *n) { return tt_container_of(n, struct tt_shm, base); }
static size_t slot_of(uint64_t id) { return id % TT_SHM_KEYS; }

void *tt_shm_make_file(const char *name, size_t len, int *out)
{
	int fd = tt_memory_file(name, len);
	void *at = fd < 0 ? MAP_FAILED : mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

	*out = fd;
	return at == MAP_FAILED ? NULL : at;
}

/* ---- my keys ---- */

static int take_slot(struct tt_shm *net, size_t *slot)
{
	if (net->free_count)
		*slot = net->free_slots[--net->free_count];
	else if (net->high < TT_SHM_KEYS)
		*slot = net->high++;
	else
		return tt_fail(-ENOMEM, "more than %d regions are open at once on %s", TT_SHM_KEYS, net->base.addr);
	return 0;
}

static int find_inode(const struct tt_mem *mem, uint64_t *inode)
{
	struct stat file = { .st_ino = (ino_t)mem->inode };

	if (mem->fd >= 0 && !mem->inode && fstat(mem->fd, &file))
		return tt_fail(-errno, "cannot look at the file of a region: %s", strerror(errno));
	*inode = (uint64_t)file.st_ino;
	return 0;
}

static int grant_key(struct tt_grant *r)
{
	struct tt_shm *net = net_of(r->base.net);
	const struct tt_mem *mem = &r->base.mem;
	uint64_t inode;
	size_t slot = 0;
	int err = find_inode(mem, &inode);

	if (err || (err = take_slot(net, &slot)))
		return err;
	struct tt_shm_entry *e = &net->sheet->entry[slot];
	r->id = ++net->generation << 16 | slot;
	net->mine[slot] = (struct tt_shm_mine){ r->id, mem->base, mem->len };
	atomic_store_explicit(&e->base, (uintptr_t)mem->base, memory_order_relaxed);
	atomic_store_explicit(&e->len, mem->len, memory_order_relaxed);
	atomic_store_explicit(&e->fd, mem->fd, memory_order_relaxed);
	atomic_store_explicit(&e->fd_offset, mem->fd_offset, memory_order_relaxed);
	atomic_store_explicit(&e->inode, inode, memory_order_relaxed);
	atomic_store_explicit(&e->id, r->id, memory_order_release);
	memcpy(r->base.key.raw, &r->id, sizeof r->id); /* both ends are on one host */
	r->base.key.len = mem->len;
	return 0;
}

int tt_shm_reg(struct tt_net *base, const struct tt_mem *mem, int remote, struct tt_pin *pin, struct tt_region **out)
{
	return tt_grant_new(base, mem, pin, &net_of(base)->regions, remote ? grant_key : NULL, out);
}

/* ---- the files of others ---- */

/* A file that could shrink would end this process with SIGBUS. */
static bool is_sound(int fd, uint64_t inode, uint64_t *len)
{
	struct stat file;
	int seals = fcntl(fd, F_GET_SEALS);

	if (seals < 0 || !(seals & F_SEAL_SHRINK) || fstat(fd, &file) || (uint64_t)file.st_ino != inode)
		return false;
	*len = (uint64_t)file.st_size;
	return true;
}

static int open_file(const struct tt_shm_peer *p, int number)
{
	char path[64];

	snprintf(path, sizeof path, "/proc/%d/fd/%d", (int)p->pid, number);
	return open(path, O_RDWR | O_CLOEXEC);
}

/* A pointer into the view may be in use: from here on it leads to memory that is nobody's. */
static bool replace_view(struct tt_shm_peer *p, struct tt_shm_view *v, int fd)
{
	int flags = MAP_PRIVATE | MAP_NORESERVE | MAP_FIXED | (fd < 0 ? MAP_ANONYMOUS : 0);

	v->inode = 0;
	if (mmap(v->at, v->len, PROT_READ | PROT_WRITE, flags, fd, 0) != MAP_FAILED)
		return true;
	tt_log(TT_DEBUG, "cannot let go of %zu bytes of process %d: %s", v->len, (int)p->pid, strerror(errno));
	return false;
}

static void empty(struct tt_shm_peer *p, struct tt_shm_view *v) { replace_view(p, v, -1); }

/* The same, with the bytes that are there now, if the file can still be had. */
static bool copy_view(struct tt_shm_peer *p, struct tt_shm_view *v)
{
	int fd = open_file(p, v->fd);
	uint64_t len;

	if (fd >= 0 && !is_sound(fd, v->inode, &len)) {
		close(fd);
		fd = -1;
	}
	bool done = replace_view(p, v, fd);
	if (fd >= 0)
		close(fd);
	return done;
}

/* ---- who stores into my memory ---- */

/* "R": it runs, "T" or "t": a signal or a debugger has stopped it, "Z" or "X": it has ended; see proc(5). 0: unknown */
static char state_of(const struct tt_shm_peer *p)
{
	char path[32], text[128] = "", *end;

	snprintf(path, sizeof path, "/proc/%d/stat", (int)p->pid);
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return errno == ENOENT && p->pid > 0 ? 'X' : 0;
	ssize_t n = read(fd, text, sizeof text - 1);
	close(fd);
	end = n > 0 ? strrchr(text, ')') : NULL; /* behind the process's name */
	return end && end[1] ? end[2] : 0;
}

static bool is_dead(const struct tt_shm_peer *p)
{
	struct pollfd f = { .fd = p->pid_fd, .events = POLLIN };

	if (p->pid_fd >= 0)
		return poll(&f, 1, 0) > 0;
	char state = state_of(p); /* a kernel without pidfd_open */
	return state == 'Z' || state == 'X';
}

/* id 0: into any region, now or later. A process does not store behind its own back. */
static bool stores(const struct tt_shm_peer *p, uint64_t id)
{
	uint64_t now = atomic_load(&p->in->writing);

	return id ? now == id : now != 0 || (!p->mine && atomic_load(&p->in->mapped));
}

/* Stopped by a signal or a debugger, the peer may take for ever to finish its store. */
static bool is_stopped(const struct tt_shm_peer *p)
{
	char state = state_of(p);

	return state == 'T' || state == 't';
}

/* While this rank waits it serves nobody, and it must not seem silent itself. A whole job that was stopped goes on
 * within a moment. A peer that is not stopped waits for a processor or for memory: it gets as long as silence has until
 * it counts as death, which is two heartbeats (member/heartbeat.c). */
static bool is_late(const struct tt_shm_peer *p, uint64_t waited)
{
	uint64_t timeout = p->net->door.timeout;

	return waited >= tt_min(timeout / 8, MOMENT_MS * TT_MS) &&
	       (is_stopped(p) || waited >= tt_max(timeout / 5, SILENCE_MS * TT_MS));
}

/* The pointers that map() has given into the peer's memory lead to copies from here on. */
static void let_go(struct tt_shm_peer *p)
{
	bool all = true;

	if (!atomic_load_explicit(&p->out->mapped, memory_order_relaxed))
		return;
	for (size_t i = 0; i < p->view_count; i++)
		if (p->views[i].given && p->views[i].inode)
			all &= copy_view(p, &p->views[i]);
	atomic_store_explicit(&p->out->mapped, !all, memory_order_release);
}

static void let_go_of_shut(struct tt_shm *net)
{
	tt_each_of(struct tt_shm_peer, ops.all, p, &net->ops.peers)
		if (p->out && p->ops.stage == TT_STAGE_UP && atomic_load(&p->out->shut))
			let_go(p);
}

struct wait { /* for all writers that were refused at its start */
	uint64_t start, last;
	/* the time that this process ran: a time in which it was frozen too says nothing about the peers */
	uint64_t waited;
};

static struct wait begin_wait(void)
{
	uint64_t now = tt_now();

	return (struct wait){ now, now, 0 };
}

/* True: the writer has ended its store, and has let go. False: it has not after so long, and is alive. */
static bool wait_for_writer(const struct tt_shm_peer *p, uint64_t id, struct wait *w)
{
	while (stores(p, id)) {
		uint64_t now = tt_now();
		w->waited += tt_min(now - w->last, STEP_MS * TT_MS);
		w->last = now;
		if (now - w->start < YIELD_NS) {
			/* the writer may wait for this very processor, which then may run others for long */
			sched_yield();
			continue;
		}
		if (is_dead(p))
			break;
		if (is_late(p, w->waited))
			return false;
		let_go_of_shut(p->net);
		usleep(NAP_US);
	}
	return true;
}

/* The peer is frozen. What it stores when it goes on would land in memory that its owner has taken back. */
static void evict(struct tt_shm_peer *p)
{
	struct pollfd f = { .fd = p->pid_fd, .events = POLLIN };

	p->evicted = true;
	if (p->net->keep || p->pid_fd < 0) {
		tt_log(TT_WARN, "process %d is frozen and can still write this rank's memory when it goes on%s",
		       (int)p->pid, p->net->keep ? " (it is not killed since TUTTI_EVICT says so)" : "");
		return;
	}
	tt_log(TT_WARN,
	       "killed process %d: it is frozen, and would write this rank's memory when it goes on "
	       "(TUTTI_EVICT=no lets it be)", (int)p->pid);
	if (!syscall(SYS_pidfd_send_signal, p->pid_fd, SIGKILL, NULL, 0))
		poll(&f, 1, DYING_MS);
}

static bool has_keys(const struct tt_shm_peer *p)
{
	return p->in && p->ops.stage >= TT_STAGE_READY && p->ops.stage != TT_STAGE_DOWN;
}

static void shut(struct tt_shm_peer *p)
{
	if (!has_keys(p))
		return;
	let_go(p);
	atomic_store(&p->in->shut, 1);
	atomic_thread_fence(memory_order_seq_cst);
	shutdown(p->fd, SHUT_RDWR); /* the peer learns that it is to let go */
}

static void wait_or_evict(struct tt_shm_peer *p, struct wait *w)
{
	if (has_keys(p) && !p->evicted &&
	    (p->base.frozen ? !is_dead(p) && stores(p, 0) : !wait_for_writer(p, 0, w)))
		evict(p);
}

void tt_shm_fence_off(struct tt_shm_peer *p)
{
	struct wait w = begin_wait();

	shut(p);
	wait_or_evict(p, &w);
}

void tt_shm_fence_off_all(struct tt_shm *net)
{
	struct wait w = begin_wait();

	tt_each_of(struct tt_shm_peer, ops.all, p, &net->ops.peers)
		shut(p);
	tt_each_of(struct tt_shm_peer, ops.all, p, &net->ops.peers)
		wait_or_evict(p, &w);
}

void tt_shm_dereg(struct tt_region *base)
{
	struct tt_grant *r = tt_container_of(base, struct tt_grant, base);
	struct tt_shm *net = net_of(base->net);

	if (r->id) {
		size_t slot = slot_of(r->id);
		struct wait w = begin_wait();
		net->mine[slot].id = 0;
		atomic_store(&net->sheet->entry[slot].id, 0);
		atomic_thread_fence(memory_order_seq_cst);
		tt_each_of(struct tt_shm_peer, ops.all, p, &net->ops.peers) {
			if (p->ops.stage < TT_STAGE_READY || p->ops.stage == TT_STAGE_DOWN || p->evicted ||
			    wait_for_writer(p, r->id, &w))
				continue;
			evict(p);
			tt_flight_lose(&p->ops, "it is frozen in the middle of writing memory that is taken back");
		}
		net->free_slots[net->free_count++] = (uint32_t)slot;
	}
	tt_grant_free(r);
}

int tt_shm_place(struct tt_shm *net, uint64_t id, uint64_t offset, uint64_t len, uint8_t **out)
{
	const struct tt_shm_mine *k = &net->mine[slot_of(id)];

	if (!id || (k->id != id && !(tt_broken(STALE_KEY) && slot_of(id) < net->high)))
		return TT_NAK_STALE;
	if ((offset > k->len || len > k->len - offset) && !tt_broken(KEY_PAST_END))
		return TT_NAK_RANGE;
	*out = k->base + offset;
	return 0;
}

/* ---- their memory ---- */

static struct tt_shm_view *add_view(struct tt_shm_peer *p)
{
	struct tt_shm_view *views = realloc(p->views, (p->view_count + 1) * sizeof *views);

	if (!views)
		return NULL;
	p->views = views;
	return &views[p->view_count++];
}

static struct tt_shm_view *open_view(struct tt_shm_peer *p, int number, uint64_t inode)
{
	struct tt_shm_view *v = NULL;
	uint64_t len;
	void *at = MAP_FAILED;
	int fd = open_file(p, number);

	if (fd >= 0 && is_sound(fd, inode, &len))
		at = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (at == MAP_FAILED && !p->unmappable) {
		p->unmappable = true;
		tt_log(TT_DEBUG, "cannot map memory of process %d (%s): it is asked instead", (int)p->pid,
		       strerror(errno));
	}
	if (fd >= 0)
		close(fd);
	if (at == MAP_FAILED)
		return NULL;
	if (!(v = add_view(p))) {
		munmap(at, len);
		return NULL;
	}
	*v = (struct tt_shm_view){ inode, number, at, len, false };
	return v;
}

static struct tt_shm_view *view_of(struct tt_shm_peer *p, int fd, uint64_t inode)
{
	for (size_t i = 0; i < p->view_count; i++)
		if (p->views[i].inode == inode)
			return &p->views[i];
	return open_view(p, fd, inode);
}

bool tt_shm_valid(const struct tt_shm_peer *p, uint64_t id)
{
	return atomic_load_explicit(&p->sheet->entry[slot_of(id)].id, memory_order_acquire) == id ||
	       tt_broken(STALE_KEY);
}

/* The fields of an entry are valid only if the key has not changed meanwhile. */
static int look_up(struct tt_shm_peer *p, uint64_t id, struct tt_shm_found *f, bool give)
{
	const struct tt_shm_entry *e = &p->sheet->entry[slot_of(id)];
	int fd;
	uint64_t inode, start;
	struct tt_shm_view *v;

	*f = (struct tt_shm_found){ .id = id };
	if (!id || !tt_shm_valid(p, id))
		return -ESTALE;
	f->base = atomic_load_explicit(&e->base, memory_order_relaxed);
	f->len = atomic_load_explicit(&e->len, memory_order_relaxed);
	start = atomic_load_explicit(&e->fd_offset, memory_order_relaxed);
	inode = atomic_load_explicit(&e->inode, memory_order_relaxed);
	fd = atomic_load_explicit(&e->fd, memory_order_relaxed);
	atomic_thread_fence(memory_order_acquire);
	if (!tt_shm_valid(p, id))
		return -ESTALE;
	v = fd >= 0 ? view_of(p, fd, inode) : NULL;
	if (v && start <= v->len && f->len <= v->len - start) {
		f->at = v->at + start;
		v->given |= give;
	}
	return 0;
}

uint64_t tt_shm_id(const struct tt_key *key)
{
	uint64_t id;

	memcpy(&id, key->raw, sizeof id);
	return id;
}

int tt_shm_find(struct tt_shm_peer *p, const struct tt_op *op, struct tt_shm_found *out)
{
	struct tt_shm_found *f = &p->found[out->id % TT_COUNT(p->found)];
	int err = 0;

	if (f->id != out->id || !tt_shm_valid(p, out->id))
		err = look_up(p, out->id, f, false);
	if (err) {
		f->id = 0;
		return err;
	}
	*out = *f;
	return (op->offset > out->len || op->len > out->len - op->offset) && !tt_broken(KEY_PAST_END) ? -ERANGE : 0;
}

bool tt_shm_begin_write(struct tt_shm_peer *p, uint64_t id)
{
	atomic_store_explicit(&p->out->writing, id, memory_order_relaxed);
	atomic_thread_fence(memory_order_seq_cst);
	if (tt_shm_valid(p, id) && !atomic_load_explicit(&p->out->shut, memory_order_relaxed))
		return true;
	tt_shm_end_write(p);
	return false;
}

void tt_shm_end_write(struct tt_shm_peer *p) { atomic_store_explicit(&p->out->writing, 0, memory_order_release); }

void *tt_shm_map(struct tt_peer *base, const struct tt_key *key, int anytime)
{
	struct tt_shm_peer *p = tt_container_of(base, struct tt_shm_peer, base);
	struct tt_shm_found f;

	if (p->ops.stage != TT_STAGE_UP)
		return NULL;
	if (anytime)
		atomic_store_explicit(&p->out->mapped, 1, memory_order_relaxed);
	/* the other side first shuts, then looks whether this side has pointers */
	atomic_thread_fence(memory_order_seq_cst);
	if (atomic_load_explicit(&p->out->shut, memory_order_relaxed)) {
		let_go(p);
		return NULL;
	}
	return look_up(p, tt_shm_id(key), &f, true) || !f.at || key->len > f.len ? NULL : f.at;
}

int tt_shm_store_begin(struct tt_peer *base, const struct tt_key *key)
{
	struct tt_shm_peer *p = tt_container_of(base, struct tt_shm_peer, base);

	return tt_flight_alive(&p->ops) && tt_shm_begin_write(p, tt_shm_id(key));
}

void tt_shm_store_end(struct tt_peer *base) { tt_shm_end_write(tt_container_of(base, struct tt_shm_peer, base)); }

/* True only if it is certain: a process may also forbid others to look at its files. */
static bool is_freed(const struct tt_shm_peer *p, const struct tt_shm_view *v)
{
	struct stat file;
	char path[64];

	snprintf(path, sizeof path, "/proc/%d/fd/%d", (int)p->pid, v->fd);
	return stat(path, &file) ? errno == ENOENT && !is_dead(p) : (uint64_t)file.st_ino != v->inode;
}

static void drop(struct tt_shm_peer *p, size_t i)
{
	munmap(p->views[i].at, p->views[i].len);
	p->views[i] = p->views[--p->view_count];
}

/* Memory that its owner has freed still costs memory as long as it is mapped here. */
void tt_shm_review_views(struct tt_shm_peer *p)
{
	for (size_t i = tt_flight_alive(&p->ops) && !is_dead(p) ? p->view_count : 0; i-- > 0;) {
		struct tt_shm_view *v = &p->views[i];
		if (!v->inode || !is_freed(p, v))
			continue;
		memset(p->found, 0, sizeof p->found);
		if (v->given)
			empty(p, v);
		else
			drop(p, i);
	}
}

/* Without memory for the list a view is never unmapped. */
static void leave_behind(struct tt_shm_peer *p, struct tt_shm_view *v)
{
	struct tt_shm *net = p->net;
	struct tt_shm_view *all = realloc(net->left, (net->left_count + 1) * sizeof *all);

	empty(p, v);
	if (!all)
		return;
	net->left = all;
	net->left[net->left_count++] = *v;
}

void tt_shm_drop_views(struct tt_shm_peer *p)
{
	for (; p->view_count; p->view_count--) {
		struct tt_shm_view *v = &p->views[p->view_count - 1];
		if (v->given)
			leave_behind(p, v);
		else
			munmap(v->at, v->len);
	}
	free(p->views);
	p->views = NULL;
}

void tt_shm_drop_left(struct tt_shm *net)
{
	while (net->left_count--)
		munmap(net->left[net->left_count].at, net->left[net->left_count].len);
	free(net->left);
}
