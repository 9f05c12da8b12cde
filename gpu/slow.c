/* slow.c - calls of the driver that may wait for a device: contexts, queues, memory, descriptors, modules
 *
 * The driver may finish running kernels first, so no caller may hold a job's lock. tests/house.sh checks that no other
 * file names such calls. What fails half way gives back what it had. */
#include "gpu/gpu_private.h"
#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* of retaining, and of modules */

/* ---- contexts ---- */

/* With the lock. */
static int retain(struct tt_gpu_device *d, int device)
{
	CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
	CUcontext context, popped;
	int err = TT_CU(device, cuThreadExchangeStreamCaptureMode, &mode);

	if (err)
		return err;
	if (!(err = TT_CU(device, cuDevicePrimaryCtxRetain, &context, d->handle))) {
		if (!(err = TT_CU(device, cuCtxPushCurrent_v2, context))) {
			err = TT_CU(device, cuStreamCreate, &d->pulse, CU_STREAM_NON_BLOCKING);
			tt_cuda.cuCtxPopCurrent_v2(&popped);
		}
		d->reach = tt_gpu_ask_reach(device);
		if (err)
			tt_cuda.cuDevicePrimaryCtxRelease_v2(d->handle);
		else
			d->context = context;
	}
	tt_cuda.cuThreadExchangeStreamCaptureMode(&mode);
	return err;
}

int tt_gpu_retain(int device)
{
	struct tt_gpu_device *d = &tt_gpu_devices[device < 0 || device >= TT_GPUS ? 0 : device];
	int err = 0;

	if (tt_gpu_child)
		return tt_gpu_refuse_child();
	if (d->context && d == &tt_gpu_devices[device])
		return 0;
	if ((err = tt_gpu_start(false)) || (err = tt_gpu_number(device)))
		return err;
	pthread_mutex_lock(&lock);
	if (!d->context)
		err = retain(d, device);
	pthread_mutex_unlock(&lock);
	return err;
}

/* As tt_gpu_enter(), for a device that may not be in use yet. */
static int enter(int device, CUstreamCaptureMode *before)
{
	int err = tt_gpu_retain(device);

	return err ? err : tt_gpu_enter(device, before);
}

/* ---- queues and fences ---- */

/* With the context. */
static int fill_queue(struct tt_gpu_queue *q)
{
	void *word;
	CUresult result;
	int err = TT_CU(q->device, cuStreamCreate, &q->stream, CU_STREAM_NON_BLOCKING);

	if (err || (err = TT_CU(q->device, cuMemHostAlloc, &word, TT_CACHE_LINE, CU_MEMHOSTALLOC_PORTABLE)))
		return err;
	q->word = word;
	*q->word = 0;
	result = tt_cuda.cuStreamWriteValue32_v2(q->stream, (CUdeviceptr)(uintptr_t)word, 0,
	                                         CU_STREAM_WRITE_VALUE_DEFAULT);
	q->words = result != CUDA_ERROR_NOT_SUPPORTED;
	return q->words ? tt_gpu_result(q->device, result, "cuStreamWriteValue32_v2") : 0;
}

static void empty_queue(struct tt_gpu_queue *q)
{
	if (q->stream) {
		tt_cuda.cuStreamSynchronize(q->stream);
		tt_cuda.cuStreamDestroy_v2(q->stream);
	}
	if (q->word)
		tt_cuda.cuMemFreeHost((void *)q->word);
}

int tt_gpu_queue_open(int device, struct tt_gpu_queue **out)
{
	struct tt_gpu_queue *q;
	CUstreamCaptureMode before;
	int err = enter(device, &before);

	if (err)
		return err;
	q = calloc(1, sizeof *q);
	if (q) {
		q->device = device;
		if ((err = fill_queue(q)))
			empty_queue(q);
	} else {
		err = tt_fail(-ENOMEM, "no memory for a queue of GPU %d", device);
	}
	tt_gpu_leave(before);
	if (err)
		free(q);
	else
		*out = q;
	return err;
}

void tt_gpu_queue_close(struct tt_gpu_queue *q)
{
	struct tt_sentence last = tt_last_sentence();
	CUstreamCaptureMode before;

	if (!q)
		return;
	if (!tt_gpu_enter(q->device, &before)) {
		empty_queue(q);
		tt_gpu_leave(before);
	}
	free(q);
	tt_remember(last.text);
}

static struct tt_gpu_queue *abandoned; /* for checkers of leaks */

void tt_gpu_queue_abandon(struct tt_gpu_queue *q)
{
	if (!q)
		return;
	pthread_mutex_lock(&lock);
	q->next = abandoned;
	abandoned = q;
	pthread_mutex_unlock(&lock);
}

int tt_gpu_fence_make(int device, struct tt_gpu_fence **out)
{
	struct tt_gpu_fence *f = calloc(1, sizeof *f);
	CUstreamCaptureMode before;
	int err = f ? tt_gpu_enter(device, &before) : tt_fail(-ENOMEM, "no memory for a fence of GPU %d", device);

	if (!err) {
		f->device = device;
		err = TT_CU(device, cuEventCreate, &f->event, CU_EVENT_DISABLE_TIMING);
		tt_gpu_leave(before);
	}
	if (err)
		free(f);
	else
		*out = f;
	return err;
}

/* ---- memory that other processes can map ---- */

static CUresult allow(struct tt_gpu_map *m, int device)
{
	CUmemAccessDesc access = { .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE };
	CUresult result;

	access.location = (CUmemLocation){ .type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device };
	result = tt_cuda.cuMemSetAccess((CUdeviceptr)(uintptr_t)m->base, m->len, &access, 1);
	m->readers |= (uint64_t)(result == CUDA_SUCCESS) << device;
	return result;
}

/* Gives this device access, and of our own memory each other device that can have it. */
static int give_access(struct tt_gpu_map *m)
{
	int err = tt_gpu_result(m->device, allow(m, m->device), "cuMemSetAccess");

	for (int i = 0, count = err || m->imported ? 0 : tt_gpu_count(); i < count; i++)
		if (i != m->device && tt_gpu_can_reach(i, m->device))
			(void)allow(m, i); /* else copies to that device go through the host */
	return err;
}

/* Maps m->handle, which it releases on an error. With the context. */
static int map_handle(struct tt_gpu_map *m)
{
	CUdeviceptr at = 0;
	bool mapped = false;
	int err = TT_CU(m->device, cuMemAddressReserve, &at, m->len, 0, 0, 0);

	if (!err) {
		m->base = (char *)(uintptr_t)at;
		err = TT_CU(m->device, cuMemMap, at, m->len, 0, m->handle, 0);
		mapped = !err;
	}
	if (!err)
		err = give_access(m);
	if (!err)
		err = tt_gpu_map_add(m);
	if (!err)
		return 0;
	if (mapped)
		tt_cuda.cuMemUnmap(at, m->len);
	if (at)
		tt_cuda.cuMemAddressFree(at, m->len);
	tt_cuda.cuMemRelease(m->handle);
	return err;
}

static bool unmap(void *base)
{
	struct tt_sentence last = tt_last_sentence();
	struct tt_gpu_map m;
	CUstreamCaptureMode before;

	if (!tt_gpu_map_remove(base, &m))
		return false;
	if (!tt_gpu_enter(m.device, &before)) {
		CUdeviceptr at = (CUdeviceptr)(uintptr_t)m.base;
		tt_cuda.cuMemUnmap(at, m.len);
		tt_cuda.cuMemAddressFree(at, m.len);
		tt_cuda.cuMemRelease(m.handle);
		tt_gpu_leave(before);
	}
	tt_remember(last.text);
	return true;
}

/* Kernels of the program may be using the memory, in streams that this room does not know. Freeing memory of cudaMalloc
 * waits for them; unmapping does not. */
static int await_idle(int device)
{
	CUstreamCaptureMode before;
	int err = tt_gpu_enter(device, &before);

	if (err)
		return err;
	err = TT_CU(device, cuCtxSynchronize);
	tt_gpu_leave(before);
	return err;
}

static int zero(const struct tt_gpu_map *m)
{
	CUstream pulse = tt_gpu_devices[m->device].pulse;
	int err = TT_CU(m->device, cuMemsetD8Async, (CUdeviceptr)(uintptr_t)m->base, 0, m->len, pulse);

	return err ? err : TT_CU(m->device, cuStreamSynchronize, pulse);
}

/* With the context. */
static int make(const struct tt_gpu_facts *facts, size_t bytes, struct tt_gpu_map *m)
{
	CUmemAllocationProp prop = { .type = CU_MEM_ALLOCATION_TYPE_PINNED };
	size_t unit;
	int err;

	prop.location = (CUmemLocation){ .type = CU_MEM_LOCATION_TYPE_DEVICE, .id = m->device };
	prop.requestedHandleTypes = facts->vmm_fd ? CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR : 0;
	prop.allocFlags.gpuDirectRDMACapable = facts->rdma;
	if ((err = TT_CU(m->device, cuMemGetAllocationGranularity, &unit, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM)))
		return err;
	m->len = (tt_max(bytes, 1) + unit - 1) / unit * unit;
	err = TT_CU(m->device, cuMemCreate, &m->handle, m->len, &prop, 0);
	return err ? err : map_handle(m);
}

int tt_gpu_alloc(int device, size_t bytes, void **out)
{
	struct tt_gpu_map m = { .device = device };
	struct tt_gpu_facts facts;
	CUstreamCaptureMode before;
	int err = tt_gpu_start(true);

	if (err || (err = tt_gpu_facts(device, &facts)))
		return err;
	if (bytes > facts.memory)
		return tt_fail(-ENOMEM, "%zu bytes are more than GPU %d has: %zu", bytes, device, facts.memory);
	if ((err = enter(device, &before)))
		return err;
	err = make(&facts, bytes, &m);
	if (!err && (err = zero(&m)))
		unmap(m.base);
	tt_gpu_leave(before);
	if (!err)
		*out = m.base;
	return err;
}

bool tt_gpu_free(void *base) { return unmap(base); }

bool tt_gpu_free_idle(void *base)
{
	struct tt_sentence last = tt_last_sentence();
	struct tt_gpu_map m;
	bool ours = tt_gpu_map_of(base, &m) && m.base == base && !m.imported;

	if (ours && !await_idle(m.device))
		unmap(base);
	tt_remember(last.text);
	return ours;
}

void tt_gpu_unimport(void *base) { unmap(base); }

int tt_gpu_export(void *base, int *fd)
{
	struct tt_gpu_map m;
	CUstreamCaptureMode before;
	int err, made;

	if (!tt_gpu_map_of(base, &m) || m.base != base || m.imported)
		return tt_fail(-EINVAL, "%p is not the beginning of memory of tutti_alloc(gpu)", base);
	if ((err = enter(m.device, &before)))
		return err;
	err = TT_CU(m.device, cuMemExportToShareableHandle, &made, m.handle,
	            CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
	tt_gpu_leave(before);
	if (!err)
		*fd = made;
	return err;
}

int tt_gpu_import(int device, int fd, size_t len, void **out)
{
	struct tt_gpu_map m = { .device = device, .len = len, .imported = true };
	CUstreamCaptureMode before;
	int err = enter(device, &before);

	if (!err) {
		err = TT_CU(device, cuMemImportFromShareableHandle, &m.handle, (void *)(uintptr_t)fd,
		            CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
		if (!err)
			err = map_handle(&m);
		tt_gpu_leave(before);
	}
	close(fd);
	if (!err)
		*out = m.base;
	return err;
}

/* ---- host memory, adapters ---- */

static int refuse_no_device(void) { return tt_fail(-ENODEV, "no GPU is in use by this process"); }

int tt_gpu_register(void *host, size_t len)
{
	CUstreamCaptureMode before;
	int device = tt_gpu_any(), err = device < 0 ? refuse_no_device() : tt_gpu_enter(device, &before);

	if (err)
		return err;
	err = TT_CU(device, cuMemHostRegister_v2, host, len, CU_MEMHOSTREGISTER_PORTABLE);
	tt_gpu_leave(before);
	return err;
}

void tt_gpu_unregister(void *host)
{
	struct tt_sentence last = tt_last_sentence();
	CUstreamCaptureMode before;
	int device = tt_gpu_child ? -1 : tt_gpu_any();

	if (device >= 0 && !tt_gpu_enter(device, &before)) {
		tt_cuda.cuMemHostUnregister(host);
		tt_gpu_leave(before);
	}
	tt_remember(last.text);
}

int tt_gpu_dma_buf(const void *at, size_t len, int *fd, uint64_t *offset)
{
	uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), from = (uintptr_t)at / page * page;
	uintptr_t to = ((uintptr_t)at + len + page - 1) / page * page;
	struct tt_gpu_range range;
	CUstreamCaptureMode before;
	int err = tt_gpu_find(at, len, &range), made;

	if (!err && range.device < 0)
		err = tt_fail(-EINVAL, "%p is not a GPU's memory", at);
	if (err || (err = enter(range.device, &before)))
		return err;
	err = TT_CU(range.device, cuMemGetHandleForAddressRange, &made, from, to - from,
	            CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0);
	tt_gpu_leave(before);
	if (err)
		return err;
	*fd = made;
	*offset = (uintptr_t)at - from;
	return 0;
}

/* ---- modules ---- */

static struct module {
	struct module *next;
	CUmodule module;
	int device;
} *modules;

int tt_gpu_load(int device, const void *image, CUmodule *out)
{
	struct module *m = calloc(1, sizeof *m);
	CUstreamCaptureMode before;
	int err = m ? enter(device, &before) : tt_fail(-ENOMEM, "no memory for a module of GPU %d", device);

	if (!err) {
		err = TT_CU(device, cuModuleLoadData, &m->module, image);
		tt_gpu_leave(before);
	}
	if (err) {
		free(m);
		return err;
	}
	m->device = device;
	pthread_mutex_lock(&lock);
	m->next = modules;
	modules = m;
	pthread_mutex_unlock(&lock);
	*out = m->module;
	return 0;
}

int tt_gpu_function(int device, CUmodule module, const char *name, CUfunction *out)
{
	CUstreamCaptureMode before;
	int err = tt_gpu_enter(device, &before);

	if (err)
		return err;
	err = TT_CU(device, cuModuleGetFunction, out, module, name);
	tt_gpu_leave(before);
	return err;
}

/* ---- the end ---- */

static void close_device(int device, struct tt_gpu_device *d)
{
	CUstreamCaptureMode before;
	bool entered = !tt_gpu_enter(device, &before);

	for (struct tt_gpu_fence *f; (f = d->fences); free(f)) {
		d->fences = f->next;
		if (entered)
			tt_cuda.cuEventDestroy_v2(f->event);
	}
	for (struct module **at = &modules, *m; (m = *at);) {
		if (m->device != device) {
			at = &m->next;
			continue;
		}
		if (entered)
			tt_cuda.cuModuleUnload(m->module);
		*at = m->next;
		free(m);
	}
	if (entered) {
		tt_cuda.cuStreamDestroy_v2(d->pulse);
		tt_gpu_leave(before);
	}
	tt_cuda.cuDevicePrimaryCtxRelease_v2(d->handle);
	free(d->kernels);
	d->kernels = NULL;
	d->context = NULL;
	d->broken = 0;
}

void tt_gpu_close(void)
{
	if (tt_gpu_child)
		return;
	for (int i = 0; i < TT_GPUS; i++)
		if (tt_gpu_devices[i].context)
			close_device(i, &tt_gpu_devices[i]);
}
