/* library.c - whether this process uses CUDA; libcuda, which is loaded at run time; the driver's errors
 *
 * A program that does not use CUDA pays nothing: libcuda is looked for among the libraries that the process has already
 * loaded, and only when that list has grown. The driver is initialised by the program, or by a call that asks for a
 * GPU. */
#include "gpu/gpu_private.h"
#include <dlfcn.h>
#include <link.h>
#include <pthread.h>

struct tt_cuda tt_cuda;
_Atomic bool tt_gpu_here, tt_gpu_child;

static const struct tt_symbol wanted[] = {
#define SYMBOL(name, arguments) { #name, &tt_cuda.name },
	TT_CUDA_FUNCTIONS(SYMBOL)
#undef SYMBOL
};

static struct {
	pthread_mutex_t lock;
	_Atomic unsigned long long loads; /* how many libraries were ever loaded at the last decision */
	_Atomic bool off;                 /* TUTTI_GPU=no */
	bool forks;                       /* the fork handler is installed */
	_Atomic int count;                /* of devices; 0: the driver is not initialised */
	char why[400];
} state = { .lock = PTHREAD_MUTEX_INITIALIZER, .why = "this process does not use CUDA" };

/* ---- loading ---- */

static void become_child(void)
{
	tt_gpu_child = tt_gpu_here;
	tt_gpu_maps_unlock();
}

/* With state.lock. */
static void load(int flags)
{
	const char *lacks;

	if (tt_gpu_here || state.off)
		return;
	if (!tt_library_load("libcuda.so.1", RTLD_NOW | RTLD_LOCAL | flags, wanted, TT_COUNT(wanted), &lacks)) {
		if (lacks)
			snprintf(state.why, sizeof state.why, "libcuda.so.1 has no %s: "
			         "install NVIDIA's driver 515 or later", lacks);
		else if (!(flags & RTLD_NOLOAD))
			snprintf(state.why, sizeof state.why, "this host has no libcuda.so.1: install NVIDIA's driver");
		return;
	}
	state.forks = state.forks || !pthread_atfork(tt_gpu_maps_lock, tt_gpu_maps_unlock, become_child);
	tt_gpu_find_heap();
	if (state.forks)
		tt_gpu_here = true;
}

static int read_loads(struct dl_phdr_info *info, size_t size, void *loads)
{
	(void)size;
	*(unsigned long long *)loads = info->dlpi_adds;
	return 1;
}

static unsigned long long count_loads(void)
{
	unsigned long long loads = 0;

	dl_iterate_phdr(read_loads, &loads);
	return loads;
}

bool tt_gpu_look(void)
{
	unsigned long long loads;

	if (tt_gpu_here || state.off)
		return tt_gpu_here;
	loads = count_loads();
	if (loads == state.loads)
		return false;
	pthread_mutex_lock(&state.lock);
	load(RTLD_NOLOAD);
	state.loads = loads;
	pthread_mutex_unlock(&state.lock);
	return tt_gpu_here;
}

void tt_gpu_open(const char *setting)
{
	pthread_mutex_lock(&state.lock);
	if (!strcmp(setting, "no")) {
		state.off = true;
		tt_gpu_here = false;
		snprintf(state.why, sizeof state.why, "TUTTI_GPU is no");
	} else if (!strcmp(setting, "yes")) {
		load(0);
	}
	pthread_mutex_unlock(&state.lock);
	tt_gpu_look();
}

/* ---- the driver ---- */

/* With state.lock. */
static int initialise(void)
{
	int err = TT_CU(-1, cuInit, 0), count = 0;

	if (!err)
		err = TT_CU(-1, cuDeviceGetCount, &count);
	if (!err && !count)
		err = tt_fail(-ENODEV, "CUDA shows no GPU to this process: look at CUDA_VISIBLE_DEVICES");
	for (int i = 0; !err && i < count && i < TT_GPUS; i++)
		err = TT_CU(-1, cuDeviceGet, &tt_gpu_devices[i].handle, i);
	if (err)
		snprintf(state.why, sizeof state.why, "%s", tt_why());
	else
		state.count = (int)tt_min((size_t)count, TT_GPUS);
	return err;
}

int tt_gpu_start(bool may_load)
{
	int err = 0;

	if (tt_gpu_child)
		return tt_gpu_refuse_child();
	tt_gpu_look();
	pthread_mutex_lock(&state.lock);
	if (may_load)
		load(0);
	if (!tt_gpu_here || state.off)
		err = tt_fail(-ENODEV, "%s", state.why);
	else if (!state.count)
		err = initialise();
	pthread_mutex_unlock(&state.lock);
	return err;
}

int tt_gpu_count(void) { return tt_gpu_start(false) ? 0 : state.count; }

const char *tt_gpu_why_not(void) { return tt_gpu_count() ? "" : state.why; }

int tt_gpu_number(int device)
{
	if (device < 0 || device >= state.count)
		return tt_fail(-ENODEV, "there is no GPU %d: this process has %d, from 0 up", device, state.count);
	return 0;
}

int tt_gpu_refuse_child(void)
{
	return tt_fail(-ENOTSUP, "this is a child of fork(), where CUDA does not work: use GPUs in the parent, "
	                         "or start the child with exec()");
}

/* ---- errors ---- */

/* After such an error every call for the device fails until the process ends. */
static bool is_sticky(CUresult e)
{
	return e == CUDA_ERROR_DEINITIALIZED || e == CUDA_ERROR_DEVICE_UNAVAILABLE ||
	       e == CUDA_ERROR_ECC_UNCORRECTABLE || e == CUDA_ERROR_NVLINK_UNCORRECTABLE ||
	       e == CUDA_ERROR_CONTAINED || e == CUDA_ERROR_ILLEGAL_ADDRESS || e == CUDA_ERROR_LAUNCH_TIMEOUT ||
	       e == CUDA_ERROR_CONTEXT_IS_DESTROYED || e == CUDA_ERROR_ASSERT ||
	       (e >= CUDA_ERROR_HARDWARE_STACK_ERROR && e <= CUDA_ERROR_LAUNCH_FAILED);
}

static int errno_of(CUresult e)
{
	switch (e) {
	case CUDA_ERROR_OUT_OF_MEMORY: return -ENOMEM;
	case CUDA_ERROR_NO_DEVICE: return -ENODEV;
	case CUDA_ERROR_INVALID_DEVICE: return -ENODEV;
	case CUDA_ERROR_INVALID_VALUE: return -EINVAL;
	case CUDA_ERROR_INVALID_HANDLE: return -EINVAL;
	case CUDA_ERROR_INVALID_CONTEXT: return -EINVAL;
	case CUDA_ERROR_NOT_PERMITTED: return -ENOTSUP;
	case CUDA_ERROR_NOT_SUPPORTED: return -ENOTSUP;
	default: break;
	}
	return e >= CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED && e <= CUDA_ERROR_CAPTURED_EVENT ? -ENOTSUP : -EIO;
}

static const char *text_of(CUresult e)
{
	const char *text = NULL;

	return tt_cuda.cuGetErrorString(e, &text) == CUDA_SUCCESS && text ? text : "of an unknown kind";
}

int tt_gpu_broken(int device)
{
	unsigned e = tt_gpu_devices[device].broken;

	if (!e)
		return 0;
	return tt_fail(-EIO, "GPU %d: CUDA error %u (%s): restart this process", device, e,
	               tt_gpu_child ? "in the parent" : text_of(e));
}

int tt_gpu_fail(int device, CUresult e, const char *name)
{
	if (device < 0)
		return tt_fail(errno_of(e), "%s: CUDA error %u (%s)", name, (unsigned)e, text_of(e));
	if (!is_sticky(e))
		return tt_fail(errno_of(e), "GPU %d: %s: CUDA error %u (%s)", device, name, (unsigned)e, text_of(e));
	tt_gpu_devices[device].broken = e;
	return tt_gpu_broken(device);
}
