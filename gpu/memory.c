/* memory.c - what a pointer is; the mappings of this room
 *
 * The driver says what a pointer is, but for the heap, and for memory that this room has allocated or imported. Such
 * mappings have serial numbers above all of the driver's. Where the driver cannot be asked (a child of fork(), a broken
 * device), the kernel says whether memory is the processor's: it cannot read a device's. */
#include "gpu/gpu_private.h"
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

#define OURS (1ull << 63)

static struct {
	pthread_mutex_t lock;
	struct tt_gpu_map *at;
	int room;
	_Atomic int count;
	uint64_t serial;
} maps = { .lock = PTHREAD_MUTEX_INITIALIZER };

/* ---- mappings ---- */

void tt_gpu_maps_lock(void) { pthread_mutex_lock(&maps.lock); }
void tt_gpu_maps_unlock(void) { pthread_mutex_unlock(&maps.lock); }

int tt_gpu_map_add(const struct tt_gpu_map *map)
{
	int err = 0;

	tt_gpu_maps_lock();
	if (maps.count == maps.room) {
		struct tt_gpu_map *more = realloc(maps.at, (size_t)(2 * maps.room + 8) * sizeof *more);
		if (more) {
			maps.at = more;
			maps.room = 2 * maps.room + 8;
		}
	}
	if (maps.count < maps.room) {
		maps.at[maps.count] = *map;
		maps.at[maps.count++].serial = OURS | ++maps.serial;
	} else {
		err = tt_fail(-ENOMEM, "no memory to note an allocation on GPU %d", map->device);
	}
	tt_gpu_maps_unlock();
	return err;
}

/* The mapping that holds the byte; NULL. With maps.lock. */
static struct tt_gpu_map *holder_of(const char *at)
{
	for (int i = 0; i < maps.count; i++)
		if ((uintptr_t)at - (uintptr_t)maps.at[i].base < maps.at[i].len)
			return &maps.at[i];
	return NULL;
}

bool tt_gpu_map_of(const void *at, struct tt_gpu_map *out)
{
	struct tt_gpu_map *m;

	if (!maps.count)
		return false;
	tt_gpu_maps_lock();
	m = holder_of(at);
	if (m)
		*out = *m;
	tt_gpu_maps_unlock();
	return m != NULL;
}

bool tt_gpu_map_remove(const void *base, struct tt_gpu_map *out)
{
	struct tt_gpu_map *m;

	tt_gpu_maps_lock();
	m = holder_of(base);
	if (m && m->base != base)
		m = NULL;
	if (m) {
		*out = *m;
		*m = maps.at[--maps.count];
	}
	if (!maps.count) {
		free(maps.at);
		maps.at = NULL;
		maps.room = 0;
	}
	tt_gpu_maps_unlock();
	return m != NULL;
}

/* ---- the heap ---- */

static _Atomic uintptr_t heap; /* where the memory of brk() begins; 0: not known */

/* Field 47 of proc_pid_stat(5). The name of the program, which is field 2, may have spaces and parentheses. */
void tt_gpu_find_heap(void)
{
	char text[1024];
	const char *at;

	if (!tt_read_text(text, sizeof text, "/proc/self/stat") || !(at = strrchr(text, ')')))
		return;
	for (int field = 2; at && field < 47; field++)
		at = strchr(at + 1, ' ');
	heap = at ? strtoull(at, NULL, 10) : 0;
}

/* No driver maps memory of a GPU into the heap. malloc() takes small blocks from the heap, and the answer of the driver
 * takes 0.18 us (H200, `device times`). */
static bool is_in_heap(const void *at, size_t len)
{
	const uintptr_t begin = heap, end = (uintptr_t)sbrk(0), first = (uintptr_t)at;

	return begin && first >= begin && first < end && len <= end - first;
}

/* ---- asking the driver ---- */

struct answer { /* wide enough for every attribute */
	uint64_t type, device, managed, buffer;
	CUcontext context;
	char *base, *mapping;
	size_t len, mapping_len;
};

/* A range of addresses that was reserved may hold several mappings and holes. */
static void cut_to_mapping(struct answer *a)
{
	char *end, *mapping_end;

	if (!a->mapping_len)
		return;
	end = a->base + a->len;
	mapping_end = a->mapping + a->mapping_len;
	a->base = a->mapping > a->base ? a->mapping : a->base;
	a->len = (size_t)((mapping_end < end ? mapping_end : end) - a->base);
}

static bool is_device(const struct answer *a) { return a->type == CU_MEMORYTYPE_DEVICE || a->managed; }

/* The driver answers each question about the host's memory, too: with zeros. */
static CUresult ask(const void *at, struct answer *a)
{
	CUpointer_attribute questions[] = {
		CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_IS_MANAGED, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
		CU_POINTER_ATTRIBUTE_BUFFER_ID, CU_POINTER_ATTRIBUTE_CONTEXT, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR,
		CU_POINTER_ATTRIBUTE_RANGE_SIZE, CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR,
		CU_POINTER_ATTRIBUTE_MAPPING_SIZE,
	};
	void *answers[] = { &a->type, &a->managed, &a->device, &a->buffer, &a->context, &a->base, &a->len, &a->mapping,
		            &a->mapping_len };
	CUresult result;

	*a = (struct answer){ 0 };
	result = tt_cuda.cuPointerGetAttributes(TT_COUNT(questions), questions, answers, (CUdeviceptr)(uintptr_t)at);
	cut_to_mapping(a);
	return result;
}

static bool is_readable(const void *at)
{
	char byte;
	struct iovec to = { &byte, 1 }, from = { (void *)(uintptr_t)at, 1 };

	return process_vm_readv(getpid(), &to, 1, &from, 1, 0) == 1 || errno != EFAULT;
}

static int ask_kernel(const char *at, size_t len, int device)
{
	if (!len || (is_readable(at) && is_readable(at + len - 1)))
		return 0;
	if (tt_gpu_child)
		return tt_gpu_refuse_child();
	return device < 0 ? tt_fail(-EFAULT, "the process cannot read its memory at %p", (const void *)at) :
	                    tt_gpu_broken(device);
}

static int any_broken(void)
{
	for (int i = 0; i < TT_GPUS; i++)
		if (tt_gpu_devices[i].broken)
			return i;
	return -1;
}

static int judge(const struct answer *a, const void *at)
{
	int device = (int)a->device, err;

	if (a->managed)
		return tt_fail(-ENOTSUP, "%p is managed memory: use tutti_alloc(gpu), or cudaMalloc", at);
	if ((err = tt_gpu_retain(device)))
		return err;
	if (a->context && a->context != tt_gpu_devices[device].context)
		return tt_fail(-ENOTSUP, "%p belongs to a context of GPU %d that is not the primary one: use the CUDA "
		                         "runtime's, or cuDevicePrimaryCtxRetain", at, device);
	return 0;
}

/* Some allocators map many allocations side by side: all of them must be the same device's. */
static int judge_rest(const struct tt_gpu_range *first, const char *at, size_t len)
{
	const char *next = first->base + first->len;

	while (next < at + len) {
		struct answer a;
		bool is_there = ask(next, &a) == CUDA_SUCCESS && a.type == CU_MEMORYTYPE_DEVICE;
		if (!is_there || a.base > next || a.base + a.len <= next)
			return tt_fail(-EINVAL, "%zu bytes at %p leave their allocation, which ends at %p", len,
			               (const void *)at, (const void *)next);
		if ((int)a.device != first->device)
			return tt_fail(-ENOTSUP, "%zu bytes at %p lie on GPU %d and GPU %d: pass them one by one", len,
			               (const void *)at, first->device, (int)a.device);
		if (a.managed)
			return judge(&a, next);
		next = a.base + a.len;
	}
	return 0;
}

static int find_ours(const struct tt_gpu_map *m, const char *at, size_t len, struct tt_gpu_range *out)
{
	if (len > m->len - (size_t)(at - m->base))
		return tt_fail(-EINVAL, "%zu bytes at %p leave their allocation, which ends at %p", len,
		               (const void *)at, (void *)(m->base + m->len));
	*out = (struct tt_gpu_range){ m->device, m->base, m->len, m->serial, !m->imported };
	return 0;
}

/* Memory that was mapped step by step belongs to no context, and the driver promises nothing about its number. */
static uint64_t number_of(const struct answer *a) { return a->context ? a->buffer : 0; }

bool tt_gpu_is_there(const void *base, uint64_t buffer)
{
	struct tt_gpu_map map;
	struct answer a;

	if (tt_gpu_child || tt_gpu_map_of(base, &map))
		return tt_gpu_child || map.serial == buffer;
	return ask(base, &a) == CUDA_SUCCESS && number_of(&a) == buffer;
}

int tt_gpu_find(const void *at, size_t len, struct tt_gpu_range *out)
{
	struct tt_gpu_range range = { .device = -1 };
	struct tt_gpu_map map;
	struct answer a;
	CUresult result;
	int err;

	*out = range;
	if (tt_gpu_child)
		return ask_kernel(at, len, -1);
	if (!tt_gpu_here || !len || !at || is_in_heap(at, len))
		return 0;
	if (tt_gpu_map_of(at, &map))
		return find_ours(&map, at, len, out);
	result = ask(at, &a);
	if (result == CUDA_ERROR_NOT_INITIALIZED)
		return 0;
	if (result != CUDA_SUCCESS)
		return ask_kernel(at, len, any_broken());
	if (!is_device(&a))
		return 0;
	if ((err = judge(&a, at)))
		return err;
	range = (struct tt_gpu_range){ (int)a.device, a.base, a.len, number_of(&a), false };
	if ((err = judge_rest(&range, at, len)))
		return err;
	*out = range;
	return 0;
}
