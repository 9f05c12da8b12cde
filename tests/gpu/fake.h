/* fake.h - a libcuda for machines without a GPU: two devices whose memory the CPU cannot touch, by a seed
 *
 * The library has the real soname, libcuda.so.1, so that the dlopen of gpu/library.c finds it in a program that links
 * it, or along LD_LIBRARY_PATH. What the real driver leaves free the fake decides by its seed. What would hang, corrupt
 * or slow a real program is a bug of the caller: the fake says so and aborts.
 *
 * - A load or store by the CPU in device memory faults, and write(2) says EFAULT: its pages have no rights. The same
 *   bytes lie elsewhere, on a memfd, which another process imports by its descriptor. The bytes of new memory are
 *   garbage. Freed memory is a hole for good, and no address comes twice.
 * - Work in a stream runs late, a copy in pieces. Streams have no order, but that the legacy stream
 *   and blocking streams wait for each other. A thread of the fake runs the work, as a device would.
 *   Each call runs a little of what is due, too; after fake_cuda_thread(false) nothing else does, and a seed repeats a
 *   test of one thread.
 * - Calls that may synchronise run all that they may have to wait for. Such a call, and an asynchronous copy from or
 *   to memory that is not pinned, by a thread that holds a job's lock is a bug (fake_cuda_watch). So are: a call in a
 *   child of fork() or in a host function; unmapping or unregistering memory that started work uses.
 * - A broken device (fake_cuda_break, or a kernel that leaves its memory) runs nothing any more and answers every call
 *   that needs its context with the same error.
 * - While a stream is capturing in global mode, a call that may synchronise, or that asks for an event, ends the
 *   capture, unless the calling thread has exchanged its mode for the relaxed one.
 *
 * Kernels are those of runtime/kernel/kernels.cu (fake_kernels.c), whatever the image. CUDA_VISIBLE_DEVICES is honoured
 * (ordinals). All functions may be called from any thread. */
#ifndef TESTS_GPU_FAKE_H
#define TESTS_GPU_FAKE_H
#include "gpu/driver.h"
#include <stdbool.h>
#include <stdint.h>

enum { FAKE_CUDA_DEVICES = 2 };

/* Functions beside those of gpu/driver.h, for tests that play PyTorch. */
#define FAKE_CUDA_FUNCTIONS(X) \
	X(cuCtxCreate_v2, (CUcontext *, unsigned flags, CUdevice)) \
	X(cuCtxDestroy_v2, (CUcontext)) \
	X(cuMemAlloc_v2, (CUdeviceptr *, size_t len)) \
	X(cuMemAllocAsync, (CUdeviceptr *, size_t len, CUstream)) \
	X(cuMemFree_v2, (CUdeviceptr)) \
	X(cuMemAllocManaged, (CUdeviceptr *, size_t len, unsigned flags)) \
	X(cuStreamBeginCapture_v2, (CUstream, CUstreamCaptureMode)) \
	X(cuStreamEndCapture, (CUstream, void **graph))
#define FAKE_CUDA_DECLARE(name, args) CUresult name args;
TT_CUDA_FUNCTIONS(FAKE_CUDA_DECLARE)
FAKE_CUDA_FUNCTIONS(FAKE_CUDA_DECLARE)
#undef FAKE_CUDA_DECLARE

/* ---- the world ---- */
void fake_cuda_seed(uint64_t seed);              /* of all that follows; no fault is set, every count is 0 */
void fake_cuda_thread(bool runs);                /* at first: yes */
int fake_cuda_run(int n);                        /* runs at most n pieces of work. Returns how many were due */
void fake_cuda_attribute(int device, int attribute, int value); /* what cuDeviceGetAttribute says, and what follows */
void fake_cuda_peer(bool can);                   /* can one device reach the other's memory? At first: yes */
void fake_cuda_hold(CUstream, bool hold);        /* runs nothing of the stream meanwhile, as behind a long kernel */
void fake_cuda_watch(bool (*holds_lock)(void));  /* does the calling thread hold a job's lock? tests/gpu/watch.h */

/* ---- faults ---- */
/* The nth call of the function from now on (1: the next) fails with err; "cuMemCreate", "cuMemAlloc_v2" ... */
void fake_cuda_fail(const char *function, int nth, int err);
enum { FAKE_CUDA_LOST = -1 };                    /* as err: the call says that it has succeeded, and does nothing */
void fake_cuda_break(int device, int err);       /* sticky: 700 ...; 0: the device is whole again */

/* ---- counts since fake_cuda_seed() ---- */
int fake_cuda_left(void);                        /* objects that nobody has given back; not since fake_cuda_seed() */
void fake_cuda_list_left(void);                  /* says on stderr what they are */
uint64_t fake_cuda_calls(const char *function);  /* NULL: of all functions */
const char *fake_cuda_called(int n);             /* the nth function that was ever called; NULL: fewer were */
uint64_t fake_cuda_captured(void);               /* what was put into capturing streams */

/* What a descriptor of cuMemGetHandleForAddressRange holds, for adapters that are not there (tests/verbs/fake.c): the
 * bytes lie at `offset` in the file `fd` of this process, which stays open at least as long as the memory lives. */
struct fake_dma_buf {
	uint64_t magic, offset, len;
	int fd;
};
#define FAKE_DMA_BUF 0x66756264656b6166u

/* The bytes of device memory as the CPU can reach them; NULL: there is no such memory. Work that is under way may be
 * reading or writing them. */
void *fake_cuda_bytes(const void *device_memory);
#endif
