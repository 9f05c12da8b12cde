/* kernel.c - starts the kernels of runtime/kernel/kernels.cu, whose image the library carries
 *
 * All kernels have the same seven parameters of eight bytes. A grid fills the GPU, or is smaller for few elements; its
 * threads go on until all elements are done. */
#include "gpu/gpu_private.h"
#include <stdlib.h>

enum { TYPES = TUTTI_BOOL + 1 };
enum { THREADS = 256, BLOCKS_EACH = 3, TILE_BYTES = THREADS * 32 }; /* as in kernels.cu */

struct tt_gpu_kernels {
	CUfunction blend[TYPES], scale[TYPES]; /* NULL: kernels.cu has none for the type */
	unsigned blocks;                       /* that fill the GPU */
};

#ifdef HAVE_GPU_KERNELS
__asm__(".pushsection .rodata\n"
        ".balign 16\n"
        ".globl tt_gpu_image\n"
        ".hidden tt_gpu_image\n"
        "tt_gpu_image:\n"
        ".incbin \"gpu/kernels.image\"\n"
        ".byte 0\n" /* PTX is a string */
        ".popsection");
extern const char tt_gpu_image[] __attribute__((visibility("hidden")));

static int find_functions(int device, CUmodule module, struct tt_gpu_kernels *k)
{
	char name[32];
	int err = 0;

	for (int type = 0; !err && type < TUTTI_BOOL; type++) {
		snprintf(name, sizeof name, "scale_%s", tt_type_name((tutti_type)type));
		err = tt_gpu_function(device, module, name, &k->scale[type]);
		snprintf(name, sizeof name, "blend_%s", tt_type_name((tutti_type)type));
		if (!err && tt_type_is_float((tutti_type)type))
			err = tt_gpu_function(device, module, name, &k->blend[type]);
	}
	return err;
}

/* An image can be too new for a driver. */
static int load_image(int device, CUmodule *module)
{
	int err = tt_gpu_load(device, tt_gpu_image, module);
	struct tt_sentence last = tt_last_sentence();

	if (err != -EIO || tt_gpu_devices[device].broken)
		return err;
	return tt_fail(err, "%s: the driver does not take the kernels of this build: update the driver, or configure "
	                    "Tutti --with-cuda=clang", last.text);
}

static int fill(int device, struct tt_gpu_kernels *k)
{
	CUmodule module;
	int units = 1, err = load_image(device, &module);

	if (!err)
		err = TT_CU(device, cuDeviceGetAttribute, &units, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT,
		            tt_gpu_devices[device].handle);
	k->blocks = BLOCKS_EACH * (unsigned)units;
	return err ? err : find_functions(device, module, k);
}

int tt_gpu_kernels(int device)
{
	struct tt_gpu_kernels *k, *none = NULL;
	int err = tt_gpu_retain(device);

	if (err || tt_gpu_devices[device].kernels)
		return err;
	if (!(k = calloc(1, sizeof *k)))
		return tt_fail(-ENOMEM, "no memory for the kernels of GPU %d", device);
	err = fill(device, k);
	if (err || !atomic_compare_exchange_strong(&tt_gpu_devices[device].kernels, &none, k))
		free(k);
	return err;
}
#else
int tt_gpu_kernels(int device)
{
	(void)device;
	return tt_fail(-ENOTSUP, "this build of Tutti has no kernels for GPUs: install clang or nvcc, then configure "
	                         "and build it again");
}
#endif

struct arguments {
	const void *to, *a, *b;
	double by_a, by_b;
	uint64_t count, n;
};

static int launch(struct tt_gpu_queue *q, CUfunction kernel, struct arguments *x, size_t bytes)
{
	const struct tt_gpu_kernels *k = tt_gpu_devices[q->device].kernels;
	const unsigned blocks = (unsigned)tt_min(k->blocks, bytes / TILE_BYTES + 1);
	void *each[] = { &x->to, &x->a, &x->b, &x->by_a, &x->by_b, &x->count, &x->n };
	CUstreamCaptureMode before;
	int err = tt_gpu_enter(q->device, &before);

	if (err)
		return err;
	err = TT_CU(q->device, cuLaunchKernel, kernel, blocks, 1, 1, THREADS, 1, 1, 0, q->stream, each, NULL);
	tt_gpu_leave(before);
	q->fresh = true;
	return err;
}

/* The kernel of a type out of the loaded ones. */
static int choose(const struct tt_gpu_queue *q, int type, const char *what, bool blend, CUfunction *out)
{
	const struct tt_gpu_kernels *k = tt_gpu_devices[q->device].kernels;

	if (!k)
		return tt_fail(-EINVAL, "the kernels of GPU %d are not loaded", q->device);
	*out = type < 0 || type >= TYPES ? NULL : blend ? k->blend[type] : k->scale[type];
	if (!*out)
		return tt_fail(-ENOTSUP, "GPUs %s no elements of type %s: use host memory", what,
		               tt_type_name((tutti_type)type) ? tt_type_name((tutti_type)type) : "?");
	return 0;
}

int tt_gpu_blend(struct tt_gpu_queue *q, void *to, double by_a, const void *a, double by_b, const void *b, size_t count,
                 int type)
{
	struct arguments x = { .to = to, .a = a, .b = b, .by_a = by_a, .by_b = by_b, .count = count };
	CUfunction kernel;
	int err = choose(q, type, "blend", true, &kernel);

	return err || !count ? err : launch(q, kernel, &x, count * tt_type_size((tutti_type)type));
}

int tt_gpu_scale(struct tt_gpu_queue *q, void *acc, size_t count, int type, unsigned n)
{
	struct arguments x = { .to = acc, .count = count, .n = n };
	CUfunction kernel;
	int err = choose(q, type, "divide", false, &kernel);

	return err || !count ? err : launch(q, kernel, &x, count * tt_type_size((tutti_type)type));
}
