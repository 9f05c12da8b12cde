/* queue.c - queues of copies, their marks; fences: points in the streams of the program
 *
 * A mark is a number that the device writes into pinned memory behind what was started before, so that a look at the
 * queue is a load:
 *
 *      copy  copy  write 1  copy  write 2         word = 1: the first two copies are done
 */
#include "gpu/gpu_private.h"
#include <pthread.h>

enum { EACH_THREADS = 2 }; /* the driver's name of each thread's own stream; 1: the legacy stream */
static _Thread_local void *streams[TT_GPUS]; /* of the calling thread */
static pthread_mutex_t fences_lock = PTHREAD_MUTEX_INITIALIZER;
static _Atomic uint64_t fences_noted;

/* ---- queues ---- */

int tt_gpu_copy(struct tt_gpu_queue *q, void *to, const void *from, size_t n)
{
	CUstreamCaptureMode before;
	int err = n ? tt_gpu_enter(q->device, &before) : 0;

	if (err || !n)
		return err;
	err = TT_CU(q->device, cuMemcpyAsync, (CUdeviceptr)(uintptr_t)to, (CUdeviceptr)(uintptr_t)from, n, q->stream);
	tt_gpu_leave(before);
	q->fresh = true;
	return err;
}

static void count_up(void *word) { (*(_Atomic uint32_t *)word)++; }

static int write_mark(struct tt_gpu_queue *q, uint32_t mark)
{
	CUstreamCaptureMode before;
	int err = tt_gpu_enter(q->device, &before);

	if (err)
		return err;
	err = q->words ? TT_CU(q->device, cuStreamWriteValue32_v2, q->stream, (CUdeviceptr)(uintptr_t)q->word, mark,
	                       CU_STREAM_WRITE_VALUE_DEFAULT) :
	                 TT_CU(q->device, cuLaunchHostFunc, q->stream, count_up, (void *)q->word);
	tt_gpu_leave(before);
	return err;
}

uint64_t tt_gpu_mark(struct tt_gpu_queue *q)
{
	if (!q->fresh)
		return q->marked;
	q->fresh = false;
	q->marked++;
	if (!q->err)
		q->err = write_mark(q, (uint32_t)q->marked);
	return q->marked;
}

/* What a queue without marks costs: a call of the driver for each look. 1: all that was started is done */
static int ask_driver(struct tt_gpu_queue *q)
{
	CUstreamCaptureMode before;
	CUresult result;
	int err = tt_gpu_enter(q->device, &before);

	if (err)
		return err;
	result = tt_cuda.cuStreamQuery(q->stream);
	tt_gpu_leave(before);
	if (result == CUDA_ERROR_NOT_READY)
		return 0;
	return result == CUDA_SUCCESS ? 1 : tt_gpu_fail(q->device, result, "cuStreamQuery");
}

int tt_gpu_reached(struct tt_gpu_queue *q, uint64_t mark)
{
	int err;

	q->done += (uint32_t)(atomic_load_explicit(q->word, memory_order_acquire) - (uint32_t)q->done);
	if (mark <= q->done)
		return 1;
	if ((err = tt_gpu_child ? tt_gpu_refuse_child() : tt_gpu_broken(q->device)))
		return err;
	return q->err ? ask_driver(q) : 0;
}

/* ---- streams of the program ---- */

void *tt_gpu_stream(int device) { return streams[device]; }

static void set_all(void *stream)
{
	for (int i = 0; i < TT_GPUS; i++)
		streams[i] = stream;
}

/* The number of the device that has the context; -1: none has. */
static int device_of(CUcontext context)
{
	CUcontext popped;
	CUdevice handle = -1;
	int err = tt_cuda.cuCtxPushCurrent_v2(context) != CUDA_SUCCESS;

	if (!err) {
		err = tt_cuda.cuCtxGetDevice(&handle) != CUDA_SUCCESS;
		tt_cuda.cuCtxPopCurrent_v2(&popped);
	}
	for (int i = 0, n = tt_gpu_count(); !err && i < n; i++)
		if (tt_gpu_devices[i].handle == handle && !tt_gpu_retain(i))
			return tt_gpu_devices[i].context == context ? i : -1;
	return -1;
}

/* The driver asks for some context, and any will do. A thread that has a stream mostly has one. */
static CUresult context_of(CUstream stream, CUcontext *context)
{
	CUstreamCaptureMode before;
	int device = tt_gpu_any();
	bool entered = device >= 0 && !tt_gpu_enter(device, &before);
	CUresult result = tt_cuda.cuStreamGetCtx(stream, context);

	if (entered)
		tt_gpu_leave(before);
	return result;
}

int tt_gpu_set_stream(void *stream)
{
	CUcontext context;
	int err, device;

	if ((uintptr_t)stream <= EACH_THREADS) { /* of every device */
		set_all(stream);
		return 0;
	}
	if ((err = tt_gpu_start(false)))
		return err;
	if (context_of(stream, &context) != CUDA_SUCCESS || (device = device_of(context)) < 0)
		return tt_fail(-EINVAL, "%p is not a stream of a GPU's primary context", stream);
	streams[device] = stream;
	return 0;
}

/* ---- fences ---- */

static struct tt_gpu_fence *take_fence(int device)
{
	struct tt_gpu_fence **list = &tt_gpu_devices[device].fences, *f;

	pthread_mutex_lock(&fences_lock);
	f = *list;
	if (f)
		*list = f->next;
	pthread_mutex_unlock(&fences_lock);
	return f;
}

void tt_gpu_fence_free(struct tt_gpu_fence *f)
{
	if (!f || tt_gpu_child)
		return;
	pthread_mutex_lock(&fences_lock);
	f->next = tt_gpu_devices[f->device].fences;
	tt_gpu_devices[f->device].fences = f;
	pthread_mutex_unlock(&fences_lock);
}

/* With the device's context. */
static int judge_stream(int device, CUstream stream)
{
	CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
	CUresult result = tt_cuda.cuStreamIsCapturing(stream, &status);
	CUcontext context;
	int err;

	if (result == CUDA_ERROR_STREAM_CAPTURE_IMPLICIT || (!result && status != CU_STREAM_CAPTURE_STATUS_NONE))
		return tt_fail(-ENOTSUP, "a stream of GPU %d is being captured: call Tutti outside of the capture",
		               device);
	if ((err = tt_gpu_result(device, result, "cuStreamIsCapturing")) ||
	    (err = TT_CU(device, cuStreamGetCtx, stream, &context)))
		return err;
	if (context == tt_gpu_devices[device].context)
		return 0;
	return tt_fail(-EINVAL, "the stream of tutti_stream() is not one of GPU %d, where the memory is", device);
}

int tt_gpu_fence_note(int device, void *stream, struct tt_gpu_fence **out)
{
	struct tt_gpu_fence *f;
	CUstreamCaptureMode before;
	int err = tt_gpu_retain(device);

	if (err || (!(f = take_fence(device)) && (err = tt_gpu_fence_make(device, &f))))
		return err;
	f->passed = false;
	f->stream = stream;
	f->number = ++fences_noted;
	if (!(err = tt_gpu_enter(device, &before))) {
		if (!(err = judge_stream(device, stream)))
			err = TT_CU(device, cuEventRecord, f->event, stream);
		tt_gpu_leave(before);
	}
	if (err)
		tt_gpu_fence_free(f);
	else
		*out = f;
	return err;
}

bool tt_gpu_fence_is_behind(const struct tt_gpu_fence *f, const struct tt_gpu_fence *other)
{
	return f->device == other->device && f->stream == other->stream && (uintptr_t)f->stream != EACH_THREADS &&
	       f->number >= other->number;
}

int tt_gpu_fence_passed(struct tt_gpu_fence *f)
{
	CUstreamCaptureMode before;
	CUresult result;
	int err;

	if (f->passed)
		return 1;
	if ((err = tt_gpu_enter(f->device, &before)))
		return err;
	result = tt_cuda.cuEventQuery(f->event);
	tt_gpu_leave(before);
	if (result == CUDA_ERROR_NOT_READY)
		return 0;
	f->passed = result == CUDA_SUCCESS;
	return f->passed ? 1 : tt_gpu_fail(f->device, result, "cuEventQuery");
}
