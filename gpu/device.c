/* device.c - devices: what they can do, whether they are broken, their contexts around calls of the driver */
#include "gpu/gpu_private.h"
#include <stdlib.h>

struct tt_gpu_device tt_gpu_devices[TT_GPUS];

/* ---- facts ---- */

static int attribute(int device, CUdevice_attribute which) /* 0: the driver does not know it */
{
	int value = 0;

	return tt_cuda.cuDeviceGetAttribute(&value, which, tt_gpu_devices[device].handle) == CUDA_SUCCESS ? value : 0;
}

static int numa_of(int device)
{
	char text[16], *end;
	long node;

	if (!tt_read_text(text, sizeof text, "/sys/bus/pci/devices/%04x:%02x:%02x.0/numa_node",
	                  (unsigned)attribute(device, CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID),
	                  (unsigned)attribute(device, CU_DEVICE_ATTRIBUTE_PCI_BUS_ID),
	                  (unsigned)attribute(device, CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID)))
		return -1;
	node = strtol(text, &end, 10);
	return end == text || node < 0 ? -1 : (int)node;
}

int tt_gpu_facts(int device, struct tt_gpu_facts *out)
{
	struct tt_gpu_facts f = { .numa = -1 };
	CUuuid uuid;
	int err = tt_gpu_start(false);

	if (err || (err = tt_gpu_number(device)))
		return err;
	CUdevice handle = tt_gpu_devices[device].handle;
	if ((err = TT_CU(device, cuDeviceGetUuid_v2, &uuid, handle)) ||
	    (err = TT_CU(device, cuDeviceGetName, f.name, sizeof f.name, handle)) ||
	    (err = TT_CU(device, cuDeviceTotalMem_v2, &f.memory, handle)))
		return err;
	memcpy(f.uuid, uuid.bytes, sizeof f.uuid);
	f.numa = numa_of(device);
	f.mig = strstr(f.name, " MIG ") != NULL;
	f.vmm_fd = attribute(device, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED) &&
	           attribute(device, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED);
	f.dma_buf = attribute(device, CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED);
	f.rdma = attribute(device, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED);
	f.flush = attribute(device, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING);
	*out = f;
	return 0;
}

int tt_gpu_of_uuid(const uint8_t uuid[TT_GPU_UUID])
{
	for (int i = 0, n = tt_gpu_count(); i < n; i++) {
		CUuuid its;
		if (tt_cuda.cuDeviceGetUuid_v2(&its, tt_gpu_devices[i].handle) == CUDA_SUCCESS &&
		    !memcmp(its.bytes, uuid, TT_GPU_UUID))
			return i;
	}
	return -1;
}

uint64_t tt_gpu_ask_reach(int device)
{
	uint64_t reach = (uint64_t)1 << device;

	for (int peer = 0, count = tt_gpu_count(), can; peer < count; peer++)
		if (peer != device && tt_cuda.cuDeviceCanAccessPeer(&can, tt_gpu_devices[device].handle,
		                                                    tt_gpu_devices[peer].handle) == CUDA_SUCCESS && can)
			reach |= (uint64_t)1 << peer;
	return reach;
}

bool tt_gpu_can_reach(int device, int peer)
{
	int count = tt_gpu_count();
	const struct tt_gpu_device *d = &tt_gpu_devices[device];

	if (device < 0 || peer < 0 || device >= count || peer >= count)
		return false;
	return (d->context ? d->reach : tt_gpu_ask_reach(device)) >> peer & 1;
}

bool tt_gpu_can_read(int device, int peer, const void *at)
{
	struct tt_gpu_map map;

	return tt_gpu_map_of(at, &map) ? map.readers >> device & 1 : tt_gpu_can_reach(device, peer);
}

/* ---- calls of the driver ---- */

int tt_gpu_enter(int device, CUstreamCaptureMode *before)
{
	CUcontext context = tt_gpu_devices[device].context;
	CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
	int err;

	if (tt_gpu_child)
		return tt_gpu_refuse_child();
	if ((err = tt_gpu_broken(device)))
		return err;
	if (!context)
		return tt_fail(-EINVAL, "GPU %d is not in use by this process", device);
	if ((err = TT_CU(device, cuThreadExchangeStreamCaptureMode, &mode)))
		return err;
	if ((err = TT_CU(device, cuCtxPushCurrent_v2, context)))
		tt_cuda.cuThreadExchangeStreamCaptureMode(&mode);
	*before = mode;
	return err;
}

void tt_gpu_leave(CUstreamCaptureMode before)
{
	CUcontext popped;

	tt_cuda.cuCtxPopCurrent_v2(&popped);
	tt_cuda.cuThreadExchangeStreamCaptureMode(&before);
}

int tt_gpu_any(void)
{
	for (int i = 0; i < TT_GPUS; i++)
		if (tt_gpu_devices[i].context && !tt_gpu_devices[i].broken)
			return i;
	return -1;
}

int tt_gpu_check(int device)
{
	CUstreamCaptureMode before;
	CUresult result;
	int err = tt_gpu_enter(device, &before);

	if (err)
		return err;
	result = tt_cuda.cuStreamQuery(tt_gpu_devices[device].pulse);
	tt_gpu_leave(before);
	return result == CUDA_ERROR_NOT_READY ? 0 : tt_gpu_result(device, result, "cuStreamQuery");
}

int tt_gpu_flush(int device)
{
	CUstreamCaptureMode before;
	int err = tt_gpu_enter(device, &before);

	if (err)
		return err;
	err = TT_CU(device, cuFlushGPUDirectRDMAWrites, CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TARGET_CURRENT_CTX,
	            CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TO_OWNER);
	tt_gpu_leave(before);
	return err;
}
