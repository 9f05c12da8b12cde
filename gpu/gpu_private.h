/* gpu_private.h - what the files of this room share: the functions of libcuda, devices, queues, fences, mappings */
#ifndef TT_GPU_PRIVATE_H
#define TT_GPU_PRIVATE_H
#include "base/base.h"
#include "gpu/driver.h"
#include "gpu/gpu.h"

/* ---- library.c ---- */

struct tt_cuda {
#define TT_CUDA_POINTER(name, arguments) CUresult (*name) arguments;
	TT_CUDA_FUNCTIONS(TT_CUDA_POINTER)
#undef TT_CUDA_POINTER
};
extern struct tt_cuda tt_cuda; /* valid once tt_gpu_here is true */

/* Calls a function of the driver. 0 or -errno with the sentence. device: which one the sentence names, and which one is
 * broken if the error says so; -1: none. */
#define TT_CU(device, name, ...) tt_gpu_result(device, tt_cuda.name(__VA_ARGS__), #name)
int tt_gpu_fail(int device, CUresult, const char *name);
static inline int tt_gpu_result(int device, CUresult result, const char *name)
{
	return result == CUDA_SUCCESS ? 0 : tt_gpu_fail(device, result, name);
}
extern _Atomic bool tt_gpu_child; /* this process is a child of fork(): it makes no call of the driver */
int tt_gpu_refuse_child(void);
/* Initialises the driver. load: loads libcuda if no one has, unless TUTTI_GPU is "no". -ENODEV; -ENOTSUP: a child. */
int tt_gpu_start(bool load);

/* ---- device.c ---- */

struct tt_gpu_device {
	CUdevice handle;
	_Atomic(CUcontext) context;   /* the primary one, retained; NULL: not in use. Constant then ... */
	CUstream pulse;               /* ... as are this stream, which tells whether the device is broken, ... */
	uint64_t reach;               /* ... and a bit for each device whose memory it reaches */
	_Atomic unsigned broken;      /* by which CUDA error; 0: it is not */
	struct tt_gpu_fence *fences;  /* that can be used again */
	_Atomic(struct tt_gpu_kernels *) kernels; /* NULL: not loaded */
};
extern struct tt_gpu_device tt_gpu_devices[TT_GPUS];
int tt_gpu_number(int device);    /* -ENODEV: no such device */
uint64_t tt_gpu_ask_reach(int device);
/* Around calls of the driver: the device's context is the current one, and the thread captures in relaxed mode, so that
 * no call breaks a capture of another thread. On an error, -errno, both are as before. */
int tt_gpu_enter(int device, CUstreamCaptureMode *before);
void tt_gpu_leave(CUstreamCaptureMode before);
int tt_gpu_any(void);             /* a device that is in use and whole; -1: none is */

/* ---- memory.c: what is mapped by us; the heap ---- */

void tt_gpu_find_heap(void); /* before tt_gpu_here is true */

struct tt_gpu_map {
	char *base;
	size_t len;
	int device;
	bool imported;
	uint64_t serial;
	uint64_t readers; /* a bit for each device that has access */
	CUmemGenericAllocationHandle handle;
};
int tt_gpu_map_add(const struct tt_gpu_map *);                   /* gives it its serial number; -ENOMEM */
bool tt_gpu_map_remove(const void *base, struct tt_gpu_map *out); /* false: no mapping of ours begins there */
bool tt_gpu_map_of(const void *at, struct tt_gpu_map *out);
void tt_gpu_maps_lock(void);                                     /* around fork() */
void tt_gpu_maps_unlock(void);

/* ---- queue.c ---- */

struct tt_gpu_queue {
	struct tt_gpu_queue *next; /* of those that were abandoned */
	int device;
	CUstream stream;
	_Atomic uint32_t *word;  /* pinned: the low half of the last mark that the device has reached */
	bool words;              /* the device can write it; else a function on the driver's thread does */
	bool fresh;              /* something was started since the last mark */
	uint64_t marked, done;
	int err;                 /* a mark could not be set, so the driver is asked */
};

struct tt_gpu_fence {
	struct tt_gpu_fence *next; /* in the device's list */
	int device;
	bool passed;
	CUevent event;
	void *stream;              /* NULL: the legacy one */
	uint64_t number;           /* in the order in which fences were noted */
};

/* ---- slow.c ---- */

int tt_gpu_retain(int device);                       /* does nothing if the context is retained */
int tt_gpu_fence_make(int device, struct tt_gpu_fence **);
int tt_gpu_function(int device, CUmodule, const char *name, CUfunction *);
int tt_gpu_load(int device, const void *image, CUmodule *); /* stays loaded until tt_gpu_close() */
#endif
