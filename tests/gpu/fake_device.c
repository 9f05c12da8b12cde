/* fake_device.c - fake.h: the driver, devices, contexts */
#include "tests/gpu/fake_private.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { STACK = 32 };

struct device devices[FAKE_CUDA_DEVICES];
int device_count;
bool initialized, can_reach = true;
static _Thread_local CUcontext stack[STACK];
static _Thread_local int depth;

CUcontext current(void) { return depth ? stack[depth - 1] : NULL; }
int error_of(CUcontext ctx) { return devices[ctx->device].err; }

int ordinal_of(int number)
{
	for (int i = 0; i < device_count; i++)
		if (devices[i].number == number)
			return i;
	return -1;
}

/* ---- what a device says of itself ---- */

static const struct {
	int attribute, value;
} facts[] = {
	{ 16, 4 },    /* multiprocessors */
	{ 92, 1 },    /* stream memory operations */
	{ 102, 1 },   /* virtual memory management */
	{ 103, 1 },   /* exports by POSIX descriptor */
	{ 110, 1 },   /* gpuDirectRDMACapable */
	{ 118, 0 },   /* writes of others need a flush */
	{ 124, 1 },   /* dma-buf */
};

/* "1,0": the devices of the machine that this process sees, in this order. */
static int choose_devices(int *numbers)
{
	const char *visible = getenv("CUDA_VISIBLE_DEVICES");
	int n = 0;

	for (visible = visible ? visible : "0,1"; n < FAKE_CUDA_DEVICES && (*visible == '0' || *visible == '1');
	     visible += visible[1] == ',' ? 2 : 1)
		numbers[n++] = *visible - '0';
	return n;
}

static void set_up(void) /* also before cuInit, for the knobs */
{
	int numbers[FAKE_CUDA_DEVICES];

	if (device_count)
		return;
	device_count = choose_devices(numbers);
	for (int i = 0; i < device_count; i++) {
		devices[i].number = numbers[i];
		devices[i].primary = (struct CUctx_st){ .device = i, .primary = true };
		for (size_t f = 0; f < sizeof facts / sizeof *facts; f++)
			devices[i].attribute[facts[f].attribute] = facts[f].value;
	}
}

SHOW void fake_cuda_attribute(int device, int attribute, int value)
{
	pthread_mutex_lock(&fake_lock);
	set_up();
	devices[device].attribute[attribute] = value;
	pthread_mutex_unlock(&fake_lock);
}

SHOW void fake_cuda_peer(bool can) { can_reach = can; }

/* ---- the driver ---- */

SHOW CUresult cuInit(unsigned flags)
{
	ENTER(NEEDS_NOTHING);
	set_up();
	if (!flags && device_count)
		initialized = true;
	return leave(flags ? 1 : device_count ? 0 : 100);
}

SHOW CUresult cuDriverGetVersion(int *out) TELL(ENTER(NEEDS_NOTHING), 12090)

SHOW CUresult cuGetErrorString(CUresult err, const char **out)
{
	static _Thread_local char text[32];

	snprintf(text, sizeof text, err == 700 ? "an illegal memory access" : "fake error %u", err);
	*out = text;
	return 0;
}

/* ---- devices ---- */

#define ENTER_DEVICE(needs) \
	ENTER(needs); \
	if (device < 0 || device >= device_count) \
		return leave(101)

SHOW CUresult cuDeviceGetCount(int *out) TELL(ENTER(NEEDS_INIT), device_count)
SHOW CUresult cuDeviceGet(CUdevice *out, int device) TELL(ENTER_DEVICE(NEEDS_INIT), device)
SHOW CUresult cuDeviceTotalMem_v2(size_t *out, CUdevice device) TELL(ENTER_DEVICE(NEEDS_INIT), (size_t)8 << 30)
SHOW CUresult cuDeviceCanAccessPeer(int *out, CUdevice device, CUdevice peer)
	TELL(ENTER_DEVICE(NEEDS_INIT | IS_SLOW), can_reach && device != peer)
SHOW CUresult cuDeviceGetUuid_v2(CUuuid *out, CUdevice device) TELL(ENTER_DEVICE(NEEDS_INIT),
	(CUuuid){ { 'f', 'a', 'k', 'e', 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, (char)devices[device].number } })

SHOW CUresult cuDeviceGetName(char *out, int len, CUdevice device)
{
	ENTER_DEVICE(NEEDS_INIT);
	snprintf(out, (size_t)len, "Fake GPU %d", devices[device].number);
	return leave(0);
}

SHOW CUresult cuDeviceGetAttribute(int *out, unsigned attribute, CUdevice device)
{
	ENTER_DEVICE(NEEDS_INIT);
	if (!attribute || attribute >= ATTRIBUTES)
		return leave(1);
	*out = devices[device].attribute[attribute];
	return leave(0);
}

/* ---- contexts ---- */

SHOW CUresult cuDevicePrimaryCtxRetain(CUcontext *out, CUdevice device)
{
	ENTER_DEVICE(NEEDS_INIT | IS_SLOW);
	if (devices[device].err)
		return leave(devices[device].err);
	*out = &devices[device].primary;
	if (!(*out)->uses++) {
		free(make(OF_CONTEXT, 1));
		if (!(*out)->legacy)
			(*out)->legacy = new_legacy(*out);
	}
	return leave(0);
}

SHOW CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device)
{
	ENTER_DEVICE(NEEDS_INIT | IS_SLOW);
	if (!devices[device].primary.uses)
		return leave(201);
	if (!--devices[device].primary.uses) {
		wait_for_context(&devices[device].primary);
		uncount(OF_CONTEXT);
	}
	return leave(0);
}

SHOW CUresult cuCtxCreate_v2(CUcontext *out, unsigned flags, CUdevice device)
{
	ENTER_DEVICE(NEEDS_INIT | IS_SLOW);
	if (flags || depth == STACK)
		return leave(1);
	*out = make(OF_CONTEXT, sizeof **out);
	**out = (struct CUctx_st){ .device = device, .uses = 1 };
	(*out)->legacy = new_legacy(*out);
	stack[depth++] = *out;
	return leave(0);
}

SHOW CUresult cuCtxDestroy_v2(CUcontext ctx)
{
	ENTER(NEEDS_INIT | IS_SLOW);
	if (!ctx || ctx->primary)
		return leave(201);
	wait_for_context(ctx);
	if (current() == ctx)
		depth--;
	unlink_stream(ctx->legacy);
	drop(OF_CONTEXT, ctx);
	return leave(0);
}

SHOW CUresult cuCtxPushCurrent_v2(CUcontext ctx)
{
	ENTER(NEEDS_INIT);
	if (!ctx || !ctx->uses || depth == STACK)
		return leave(201);
	stack[depth++] = ctx;
	return leave(0);
}

SHOW CUresult cuCtxPopCurrent_v2(CUcontext *out)
{
	ENTER(NEEDS_INIT);
	if (!depth)
		return leave(201);
	depth--;
	if (out)
		*out = stack[depth];
	return leave(0);
}

SHOW CUresult cuCtxGetDevice(CUdevice *out)
{
	ENTER(NEEDS_INIT);
	if (!depth)
		return leave(201);
	*out = ordinal_of(current()->device);
	return leave(0);
}
