/* fake_vmm.c - fake.h: memory that is made, mapped and exported in steps */
#include "tests/gpu/fake_private.h"
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static struct reservation {
	char *base;
	size_t len;
	struct reservation *next;
} *reservations;

static struct reservation *find_reservation(const char *at, size_t len)
{
	for (struct reservation *r = reservations; r; r = r->next)
		if (at >= r->base && at < r->base + r->len && len <= (size_t)(r->base + r->len - at))
			return r;
	return NULL;
}

CUdeviceptr reservation_of(const char *at, size_t *len)
{
	struct reservation *r = find_reservation(at, 1);

	*len = r->len;
	return (CUdeviceptr)r->base;
}

/* ---- handles ---- */

static int judge(const CUmemAllocationProp *p)
{
	const int *attribute;

	if (!p || p->type != 1 || p->location.type != 1 || p->location.id < 0 || p->location.id >= device_count)
		return 1;
	attribute = devices[p->location.id].attribute;
	if (p->requestedHandleTypes & ~1u || !attribute[102])
		return 801;
	return (!p->requestedHandleTypes || attribute[103]) && (!p->allocFlags.gpuDirectRDMACapable || attribute[110]) ?
	               0 : 801;
}

SHOW CUresult cuMemGetAllocationGranularity(size_t *out, const CUmemAllocationProp *prop, unsigned option)
{
	ENTER(NEEDS_INIT);
	err = option > 1 ? 1 : judge(prop);
	if (!err)
		*out = GRANULE;
	return leave(err);
}

static struct handle *new_handle(int fd, int device, size_t len)
{
	struct handle *h = make(OF_HANDLE, sizeof *h);

	*h = (struct handle){ .fd = fd, .device = device, .len = len, .refs = 1 };
	return h;
}

static void release(struct handle *h)
{
	if (--h->refs)
		return;
	close(h->fd);
	drop(OF_HANDLE, h);
}

SHOW CUresult cuMemCreate(CUmemGenericAllocationHandle *out, size_t len, const CUmemAllocationProp *prop,
                          unsigned long long flags)
{
	ENTER(NEEDS_INIT | IS_SLOW);
	char name[32];
	struct handle *h;
	int fd;

	err = flags || !len || len % GRANULE ? 1 : judge(prop);
	if (!err && len > (size_t)8 << 30)
		err = 2;
	if (!err && devices[prop->location.id].err)
		err = devices[prop->location.id].err;
	if (err)
		return leave(err);
	snprintf(name, sizeof name, "fake-cuda-device-%d", devices[prop->location.id].number);
	fd = memfd_create(name, MFD_CLOEXEC);
	if (fd < 0 || ftruncate(fd, (off_t)len))
		bug("there is no memory for %zu bytes of a device", len);
	h = new_handle(fd, prop->location.id, len);
	h->fresh = true;
	h->exports = prop->requestedHandleTypes;
	*out = (CUmemGenericAllocationHandle)(uintptr_t)h;
	return leave(0);
}

SHOW CUresult cuMemRelease(CUmemGenericAllocationHandle handle)
{
	ENTER(NEEDS_INIT | IS_SLOW);
	if (!handle)
		return leave(1);
	release((struct handle *)handle);
	return leave(0);
}

SHOW CUresult cuMemExportToShareableHandle(void *out, CUmemGenericAllocationHandle handle, unsigned type,
                                           unsigned long long flags)
{
	ENTER(NEEDS_INIT | IS_SLOW);
	struct handle *h = (struct handle *)handle;

	if (flags || type != 1 || !h || !h->exports)
		return leave(1);
	*(int *)out = fcntl(h->fd, F_DUPFD_CLOEXEC, 0);
	return leave(*(int *)out < 0 ? 304 : 0);
}

/* Which device of the machine the memory of a descriptor lies on; -1: the descriptor is no memory of a device. */
static int device_of_fd(int fd)
{
	static const char begin[] = "/memfd:fake-cuda-device-";
	char path[64], name[128];
	ssize_t n;

	snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
	n = readlink(path, name, sizeof name - 1);
	if (n < (ssize_t)sizeof begin || memcmp(name, begin, sizeof begin - 1) != 0)
		return -1;
	return name[sizeof begin - 1] - '0';
}

SHOW CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *out, void *descriptor, unsigned type)
{
	ENTER(NEEDS_INIT | IS_SLOW);
	int fd = (int)(intptr_t)descriptor, number = device_of_fd(fd), device = ordinal_of(number);
	struct stat is;
	struct handle *h;

	if (type != 1 || number < 0)
		return leave(1);
	if (device < 0)
		return leave(101); /* this process cannot see the device */
	fd = fcntl(fd, F_DUPFD_CLOEXEC, 0);
	if (fd < 0 || fstat(fd, &is))
		return leave(304);
	h = new_handle(fd, device, (size_t)is.st_size);
	h->exports = true;
	*out = (CUmemGenericAllocationHandle)(uintptr_t)h;
	return leave(0);
}

/* ---- addresses ---- */

SHOW CUresult cuMemAddressReserve(CUdeviceptr *out, size_t len, size_t alignment, CUdeviceptr hint,
                                  unsigned long long flags)
{
	ENTER(NEEDS_INIT | IS_SLOW);
	struct reservation *r;

	(void)hint;
	if (flags || !len || len % GRANULE || alignment)
		return leave(1);
	r = make(OF_RESERVATION, sizeof *r);
	r->base = take_addresses(len, GRANULE);
	r->len = len;
	r->next = reservations;
	reservations = r;
	*out = (CUdeviceptr)r->base;
	return leave(0);
}

SHOW CUresult cuMemAddressFree(CUdeviceptr at, size_t len)
{
	ENTER(NEEDS_INIT | IS_SLOW);
	struct reservation *r = find_reservation((char *)at, len);

	if (!r || r->base != (char *)at || r->len != len)
		return leave(1);
	if (overlaps(r->base, r->len))
		bug("cuMemAddressFree: memory is mapped there");
	UNLINK(reservations, r);
	drop(OF_RESERVATION, r);
	return leave(0);
}

SHOW CUresult cuMemMap(CUdeviceptr at, size_t len, size_t offset, CUmemGenericAllocationHandle handle,
                       unsigned long long flags)
{
	ENTER(NEEDS_INIT | IS_SLOW);
	struct handle *h = (struct handle *)handle;
	char *base = (char *)at;
	struct range *r;

	if (flags || offset || !h || !len || len != h->len || at % GRANULE || !find_reservation(base, len) ||
	    overlaps(base, len))
		return leave(1);
	show_bytes(base, len, h->fd, 0);
	r = add_range(MAPPED, base, len, h->device, NULL);
	r->handle = h;
	h->refs++;
	if (h->fresh)
		make_garbage(reachable(r, base), len);
	h->fresh = false;
	return leave(0);
}

SHOW CUresult cuMemUnmap(CUdeviceptr at, size_t len)
{
	ENTER(NEEDS_INIT | IS_SLOW);
	struct range *r = range_of((void *)at, len);

	if (!r || r->is != MAPPED || r->base != (char *)at || r->len != len)
		return leave(1);
	settle(r, "cuMemUnmap");
	hide_bytes(r->base, r->len);
	release(r->handle);
	remove_range(r);
	return leave(0);
}

SHOW CUresult cuMemSetAccess(CUdeviceptr at, size_t len, const CUmemAccessDesc *desc, size_t count)
{
	ENTER(NEEDS_INIT | IS_SLOW);
	struct range *r = range_of((void *)at, len);

	if (!r || r->is != MAPPED || !count)
		return leave(1);
	for (size_t i = 0; i < count; i++) {
		int device = desc[i].location.id;
		if (desc[i].location.type != 1 || device < 0 || device >= device_count)
			return leave(1);
		if (device != r->device && !can_reach)
			return leave(217);
		r->access[device] = desc[i].flags;
	}
	return leave(0);
}
