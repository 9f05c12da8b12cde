/* fake_memory.c - fake.h: ranges of memory, what a pointer is, allocation
 *
 *   window                                shadow = window + SPAN
 *   | hole | device memory | hole ...     | hole | the same bytes | hole ...
 *     every page PROT_NONE                  pages of a memfd: the heap's, or that of a handle
 */
#include "base/base.h"
#include "tests/gpu/fake_private.h"
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static const size_t span = (size_t)1 << 37;
static char *window, *next_address; /* no address is given out twice */
static int heap = -1;               /* of cuMemAlloc: offset in it = offset in the window */
static struct range *ranges;
static uint64_t ids;

/* ---- the window ---- */

static void open_window(void)
{
	/* ASan leaves the one free, TSan the other one. */
	void *place = (void *)(TT_TSAN ? 0x1000000000 : 0x200000000000);
	int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE;

	window = mmap(place, 2 * span, PROT_NONE, flags, -1, 0);
	heap = memfd_create("fake-cuda-heap", MFD_CLOEXEC);
	if (window != place || heap < 0 || ftruncate(heap, (off_t)span))
		bug("there is no room for the window of device memory");
	next_address = window + GRANULE;
}

char *take_addresses(size_t len, size_t alignment)
{
	char *at;

	if (!window)
		open_window();
	at = window + ((size_t)(next_address - window) + alignment - 1) / alignment * alignment;
	if ((size_t)(at - window) + len + GRANULE > span)
		bug("device memory has no addresses left");
	next_address = at + len + PAGE; /* a hole follows */
	return at;
}

bool is_in_window(const void *at)
{
	return window && (const char *)at >= window && (const char *)at < window + span;
}

void show_bytes(char *at, size_t len, int fd, off_t offset)
{
	if (mmap(at + span, len, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, offset) == MAP_FAILED)
		bug("the bytes of %zu bytes of device memory cannot be mapped: %s", len, strerror(errno));
}

void hide_bytes(char *at, size_t len)
{
	int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED;

	if (mmap(at + span, len, PROT_NONE, flags, -1, 0) == MAP_FAILED)
		bug("device memory cannot be unmapped: %s", strerror(errno));
}

void make_garbage(char *bytes, size_t len)
{
	size_t some = len < 65536 ? len : 65536;

	memset(bytes, 0xa5, some);
	memset(bytes + len - some, 0xa5, some);
}

/* ---- ranges ---- */

struct range *range_of(const void *at, size_t len)
{
	for (struct range *r = ranges; r; r = r->next) {
		size_t from = (size_t)((const char *)at - r->base);
		if ((const char *)at >= r->base && from < r->len && len <= r->len - from)
			return r;
	}
	return NULL;
}

bool overlaps(const char *at, size_t len)
{
	for (struct range *r = ranges; r; r = r->next)
		if (at < r->base + r->len && r->base < at + len)
			return true;
	return false;
}

char *reachable(const struct range *r, const void *at)
{
	return (char *)(uintptr_t)at + (r->is == OF_DEVICE || r->is == MAPPED ? span : 0);
}

SHOW void *fake_cuda_bytes(const void *at)
{
	struct range *r;

	pthread_mutex_lock(&fake_lock);
	r = range_of(at, 1);
	pthread_mutex_unlock(&fake_lock);
	return r ? reachable(r, at) : NULL;
}

struct range *add_range(enum memory is, void *base, size_t len, int device, CUcontext ctx)
{
	struct range *r = make(OF_RANGE, sizeof *r);

	*r = (struct range){ .is = is, .base = base, .len = len, .device = device, .ctx = ctx, .id = ++ids };
	r->next = ranges;
	return ranges = r;
}

void remove_range(struct range *r)
{
	UNLINK(ranges, r);
	drop(OF_RANGE, r);
}

void settle(struct range *r, const char *call)
{
	if (r->uses)
		bug("%s: work that was started uses the memory", call);
}

static struct range *range_at(const void *base, enum memory is)
{
	for (struct range *r = ranges; r; r = r->next)
		if (r->base == base && r->is == is)
			return r;
	return NULL;
}

/* ---- memory of a device ---- */

static size_t round_up(size_t len) { return (len + PAGE - 1) / PAGE * PAGE; }

/* The range begins anywhere in a page, at a multiple of 512 bytes. pool: nobody can export it. */
static int allocate(CUdeviceptr *out, size_t len, bool pool)
{
	size_t into = below(PAGE / 512) * 512;
	struct range *r;
	char *at;

	if (!len || len > (size_t)8 << 30)
		return len ? 2 : 1;
	at = take_addresses(round_up(into + len), PAGE);
	show_bytes(at, round_up(into + len), heap, at - window);
	r = add_range(OF_DEVICE, at + into, len, current()->device, current());
	r->flags = pool;
	make_garbage(reachable(r, r->base), len);
	*out = (CUdeviceptr)r->base;
	return 0;
}

SHOW CUresult cuMemAlloc_v2(CUdeviceptr *out, size_t len)
{
	ENTER(NEEDS_CONTEXT | IS_SLOW);
	return leave(allocate(out, len, false));
}

SHOW CUresult cuMemAllocAsync(CUdeviceptr *out, size_t len, CUstream stream)
{
	ENTER(NEEDS_CONTEXT);
	(void)stream; /* here the memory is there at once */
	return leave(allocate(out, len, true));
}

static bool is_unused(const void *r) { return !((const struct range *)r)->uses; }

static void give_back(struct range *r)
{
	char *page = r->base - (uintptr_t)r->base % PAGE;
	size_t len = round_up((size_t)(r->base - page) + r->len);

	if (r->is != OF_DEVICE) {
		munmap(page, len);
	} else {
		hide_bytes(page, len);
		if (fallocate(heap, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, page - window, (off_t)len))
			bug("device memory cannot be given back: %s", strerror(errno));
	}
	remove_range(r);
}

SHOW CUresult cuMemFree_v2(CUdeviceptr at)
{
	ENTER(NEEDS_CONTEXT | IS_SLOW);
	struct range *r = range_at((void *)at, OF_DEVICE);

	if (!r && !(r = range_at((void *)at, MANAGED)))
		return leave(at != 0);
	if (!(err = wait_for(r->ctx, is_unused, r)))
		give_back(r);
	return leave(err);
}

static int map_host(void **out, size_t len, enum memory is, unsigned flags)
{
	void *at = len ? mmap(NULL, round_up(len), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) : NULL;

	if (!len || at == MAP_FAILED)
		return len ? 2 : 1;
	add_range(is, at, len, current()->device, current())->flags = flags;
	*out = at;
	return 0;
}

SHOW CUresult cuMemAllocManaged(CUdeviceptr *out, size_t len, unsigned flags)
{
	ENTER(NEEDS_CONTEXT | IS_SLOW);
	return leave(flags ? map_host((void **)out, len, MANAGED, 0) : 1);
}

/* ---- pinned memory of the host ---- */

SHOW CUresult cuMemHostAlloc(void **out, size_t len, unsigned flags)
{
	ENTER(NEEDS_CONTEXT | IS_SLOW);
	return leave(map_host(out, len, PINNED, flags));
}

static int end_host(void *at, enum memory is, int unknown, const char *call)
{
	struct range *r = range_at(at, is);

	if (!r)
		return unknown;
	settle(r, call);
	if (is == PINNED)
		give_back(r);
	else
		remove_range(r);
	return 0;
}

SHOW CUresult cuMemFreeHost(void *at)
{
	ENTER(NEEDS_CONTEXT | IS_SLOW);
	return leave(end_host(at, PINNED, 1, __func__));
}

SHOW CUresult cuMemHostRegister_v2(void *at, size_t len, unsigned flags)
{
	ENTER(NEEDS_CONTEXT | IS_SLOW);
	if (!at || !len || is_in_window(at))
		return leave(1);
	if (overlaps(at, len))
		return leave(712);
	add_range(REGISTERED, at, len, current()->device, current())->flags = flags;
	return leave(0);
}

SHOW CUresult cuMemHostUnregister(void *at)
{
	ENTER(NEEDS_CONTEXT | IS_SLOW);
	return leave(end_host(at, REGISTERED, 713, __func__));
}

/* ---- what a pointer is ---- */

/* Every attribute of the list can be asked of every pointer; of one that is none of ours they are all 0 or NULL. */
static int tell(void *out, unsigned attribute, const struct range *r, char *at)
{
	char *base = r ? r->base : NULL;
	size_t len = r ? r->len : 0, reserved = len;
	CUdeviceptr start = r && r->is == MAPPED ? reservation_of(at, &reserved) : (CUdeviceptr)base;

	switch (attribute) {
	case 1: *(CUcontext *)out = r ? r->ctx : NULL; break;
	case 2: *(unsigned *)out = !r ? 0 : r->is == PINNED || r->is == REGISTERED ? 1 : 2; break;
	case 7: *(uint64_t *)out = r ? r->id : 0; break;
	case 8: *(unsigned *)out = r && r->is == MANAGED; break;
	case 9: *(int *)out = r ? r->device : -2; break;
	case 11: *(CUdeviceptr *)out = start; break;
	case 12: *(size_t *)out = reserved; break;
	case 18: *(size_t *)out = len; break;
	case 19: *(CUdeviceptr *)out = (CUdeviceptr)base; break;
	default: return 1;
	}
	return 0;
}

SHOW CUresult cuPointerGetAttributes(unsigned n, unsigned *attributes, void **out, CUdeviceptr at)
{
	ENTER(NEEDS_INIT);
	struct range *r = range_of((void *)at, 1);

	if (current() && error_of(current()))
		return leave(error_of(current()));
	for (unsigned i = 0; !err && i < n; i++)
		err = tell(out[i], attributes[i], r, (char *)at);
	return leave(err);
}

/* ---- for network adapters ---- */

SHOW CUresult cuMemGetHandleForAddressRange(void *out, CUdeviceptr at, size_t len, unsigned type,
                                            unsigned long long flags)
{
	ENTER(NEEDS_CONTEXT | IS_SLOW);
	struct range *r = range_of((void *)(at + PAGE - 1), 1); /* a range may begin behind the page's begin */
	struct fake_dma_buf buf = { .magic = FAKE_DMA_BUF, .len = len };
	int fd;

	if (type != 1 || flags || !len || at % PAGE || len % PAGE || !r ||
	    at + len >= (CUdeviceptr)r->base + r->len + PAGE)
		return leave(1);
	if (!devices[r->device].attribute[124] || (r->is != OF_DEVICE && r->is != MAPPED) || r->flags)
		return leave(801);
	buf.fd = r->is == MAPPED ? r->handle->fd : heap;
	buf.offset = (uint64_t)((char *)at - (r->is == MAPPED ? r->base : window));
	fd = memfd_create("fake-dma-buf", MFD_CLOEXEC);
	if (fd < 0 || write(fd, &buf, sizeof buf) != sizeof buf)
		return leave(304);
	*(int *)out = fd;
	return leave(0);
}

SHOW CUresult cuFlushGPUDirectRDMAWrites(unsigned target, unsigned scope)
{
	ENTER(NEEDS_CONTEXT);
	return leave(target || (scope != 100 && scope != 200));
}
