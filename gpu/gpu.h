/* gpu.h - memory of CUDA devices: what a pointer is, copies that are started and polled, memory that others map
 *
 * libcuda is loaded with dlopen, and only in a process that uses CUDA by itself, or asks for a GPU. Devices are the
 * driver's ordinals of this process; other processes know them by UUID. All functions but those of slow.c, and those
 * that say so, may be called with a job's lock: they start work, look, and never wait for a device. No function needs a
 * current context, and none changes the caller's. After fork() a child makes no call of the driver. Errors are -errno
 * with a sentence; -EIO: the device is broken until this process ends.
 *
 * Order. A queue does its work in the order in which the work was started. Between two queues the caller makes the
 * order: it starts the second copy when the mark of the first one is reached. Between a stream of the program and a
 * queue it starts the copy when a fence in the stream has passed.
 */
#ifndef TT_GPU_H
#define TT_GPU_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { TT_GPUS = 64, TT_GPU_UUID = 16 };

/* ---- library.c: is CUDA here? ---- */

/* True: this process uses CUDA, so a pointer may be a device's. `look`: decides anew if libraries were loaded since the
 * last decision (20 ns); otherwise one load. setting: TUTTI_GPU; "no" is for good. */
extern _Atomic bool tt_gpu_here;
bool tt_gpu_look(void);
void tt_gpu_open(const char *setting); /* "auto", "yes" or "no": at join */
int tt_gpu_count(void);                /* devices; 0: none, or CUDA is not used here */
const char *tt_gpu_why_not(void);      /* the sentence why it is not used; "" */

/* ---- memory.c: what a pointer is ---- */

struct tt_gpu_range { /* an allocation on a device */
	int device;         /* -1: host memory, also pinned one */
	char *base;         /* of the allocation ... */
	size_t len;
	uint64_t buffer;    /* ... and its number, which no later allocation of this process has; 0: it is not known */
	bool ours;          /* of tt_gpu_alloc: other processes can map it */
};
/* Looks up the range [at, at + len). 0, also for host memory. -ENOTSUP: managed memory, memory of a context that is not
 * primary, a range over two devices, any device memory in a child of fork(). -EINVAL: the range leaves its allocation.
 * The first memory of a device retains the device's context, so call it without the lock. Memory of tt_gpu_alloc costs
 * no call of the driver, all other memory one. */
int tt_gpu_find(const void *at, size_t len, struct tt_gpu_range *out);
bool tt_gpu_is_there(const void *base, uint64_t buffer); /* the allocation was not freed. Call it without the lock */

/* ---- device.c: devices, their health ---- */

struct tt_gpu_facts {
	uint8_t uuid[TT_GPU_UUID];
	char name[96];
	int numa;           /* NUMA node; -1: unknown */
	size_t memory;      /* bytes */
	bool mig;
	bool vmm_fd;        /* its memory can be exported as a descriptor (attribute 103) */
	bool dma_buf, rdma; /* attributes 124, 110: a network adapter may reach its memory */
	int flush;          /* attribute 118: writes of others that need no flush */
};
int tt_gpu_facts(int device, struct tt_gpu_facts *); /* initialises the driver; makes no context */
int tt_gpu_of_uuid(const uint8_t uuid[TT_GPU_UUID]); /* -1: no such device in this process */
/* 0; or the error that has broken the device for this process, with its sentence: "GPU 0: CUDA error 700 ...; restart
 * this process". One load, but for tt_gpu_check, which asks the driver. */
int tt_gpu_broken(int device);
int tt_gpu_check(int device);
/* Device reads memory of peer in place. One load if the device is in use; else call it without the lock. */
bool tt_gpu_can_reach(int device, int peer);
bool tt_gpu_can_read(int device, int peer, const void *at); /* likewise, and this memory of peer, too */
/* What network adapters have written to the device is visible to all work that starts after it. A few microseconds. */
int tt_gpu_flush(int device);

/* ---- queue.c: work in order ---- */

struct tt_gpu_queue;     /* a stream of ours on one device */
/* Starts a copy. Each end is memory of the queue's device, memory that the device can reach, or host memory that
 * tt_gpu_register holds. */
int tt_gpu_copy(struct tt_gpu_queue *, void *to, const void *from, size_t n);
/* The number of all that has been started so far, and: is all up to a number done? 1, 0, or -errno: the device is
 * broken. A look costs a load. Thread safe with one caller a queue at a time. */
uint64_t tt_gpu_mark(struct tt_gpu_queue *);
int tt_gpu_reached(struct tt_gpu_queue *, uint64_t mark);

/* Fences: a point in a stream of the caller's. */
struct tt_gpu_fence;
/* From now on the calling thread's work is in `stream` (a CUstream), on the device of that stream. NULL: in the legacy
 * streams of all devices. -EINVAL: the stream is of a context that is not primary. The driver follows the
 * pointer, so a pointer to no stream makes the process crash. Call this function without the lock. */
int tt_gpu_set_stream(void *stream);
void *tt_gpu_stream(int device); /* of the calling thread; NULL: the legacy stream */
/* Notes the point that `stream` (a CUstream; NULL: the legacy stream of `device`) has now. -EINVAL: the stream is
 * another device's. -ENOTSUP: the stream is capturing. May create an event, so call it without the lock. */
int tt_gpu_fence_note(int device, void *stream, struct tt_gpu_fence **out);
int tt_gpu_fence_passed(struct tt_gpu_fence *);          /* 1, 0, or -errno: the device is broken */
/* Both are points of one stream, and the first one is not before the other one: it has passed only if that has. */
bool tt_gpu_fence_is_behind(const struct tt_gpu_fence *, const struct tt_gpu_fence *other);
void tt_gpu_fence_free(struct tt_gpu_fence *);           /* at any time; NULL is allowed */

/* ---- slow.c: may synchronise with a device: never with a job's lock ---- */

/* The first queue of a device retains its primary context, until the process ends. -ENODEV: no such device. */
int tt_gpu_queue_open(int device, struct tt_gpu_queue **out);
void tt_gpu_queue_close(struct tt_gpu_queue *);          /* waits for its work; NULL is allowed */
void tt_gpu_queue_abandon(struct tt_gpu_queue *);        /* of a device that stands still: waits for nothing */
/* Zeroed memory that other processes can map, and network adapters reach where the device allows it. */
int tt_gpu_alloc(int device, size_t bytes, void **out);
/* Nothing on the device may be using it. An importer's mapping keeps the pages. False: it is not of tt_gpu_alloc. */
bool tt_gpu_free(void *);
/* Likewise for memory that the program's kernels may be using: waits first until all work on the device has ended. The
 * memory stays if the device is broken, or if a stream is being captured: nobody can wait for such a device. */
bool tt_gpu_free_idle(void *);
/* Descriptor of the whole allocation of tt_gpu_alloc that begins at base; the caller closes it. */
int tt_gpu_export(void *base, int *fd);
/* Maps an allocation of another process (len bytes, as tt_gpu_range says) for `device` of this process. Takes fd. */
int tt_gpu_import(int device, int fd, size_t len, void **out);
void tt_gpu_unimport(void *);
/* Makes host memory reachable for copies of all devices. */
int tt_gpu_register(void *host, size_t len);
void tt_gpu_unregister(void *host);
/* Descriptor for ibv_reg_dmabuf_mr of the pages that hold the range; *offset is where the range begins in it. */
int tt_gpu_dma_buf(const void *at, size_t len, int *fd, uint64_t *offset);
void tt_gpu_close(void); /* of tests: gives back all that is kept for the process, once all else is given back */

/* ---- kernel.c: what runtime/kernel/kernels.cu has ----
 *
 * Starts it in a queue; memory as for tt_gpu_copy, at any address. type: a tutti_type. The results have the bits of the
 * functions of runtime/kernel/ with the same names. -ENOTSUP: there is no kernel for the type. */

/* Loads the kernels for a device, once: before the first of the calls below, and as those of slow.c never with a job's
 * lock. -ENOTSUP: this build has no kernels. */
int tt_gpu_kernels(int device);
/* to = by_a * a + by_b * b, as tt_blend; to may be a or b. */
int tt_gpu_blend(struct tt_gpu_queue *, void *to, double by_a, const void *a, double by_b, const void *b, size_t count,
                 int type);
/* acc = acc / n, as tt_scale */
int tt_gpu_scale(struct tt_gpu_queue *, void *acc, size_t count, int type, unsigned n);
#endif
