/* driver.h - the part of libcuda that this room calls: types, numbers and functions with the driver's own names
 *
 * No CUDA header is needed to build. A test compiles this file behind <cuda.h>, where there is one: then the types are
 * the header's, and the compiler compares the rest. The names are the ones that libcuda exports: some end with _v2. */
#ifndef TT_GPU_DRIVER_H
#define TT_GPU_DRIVER_H
#include <stddef.h>

#ifndef CUDA_VERSION /* of <cuda.h> */
typedef unsigned CUresult, CUdevice_attribute, CUpointer_attribute, CUstreamCaptureStatus, CUstreamCaptureMode;
typedef unsigned CUmemAllocationType, CUmemAllocationHandleType, CUmemLocationType, CUmemAccess_flags;
typedef unsigned CUmemAllocationGranularity_flags, CUmemRangeHandleType;
typedef unsigned CUflushGPUDirectRDMAWritesTarget, CUflushGPUDirectRDMAWritesScope;
typedef int CUdevice;
typedef unsigned long long CUdeviceptr, CUmemGenericAllocationHandle;
typedef struct CUctx_st *CUcontext;
typedef struct CUstream_st *CUstream;
typedef struct CUevent_st *CUevent;
typedef struct CUmod_st *CUmodule;
typedef struct CUfunc_st *CUfunction;
typedef void (*CUhostFn)(void *);
typedef struct { char bytes[16]; } CUuuid;
typedef struct { CUmemLocationType type; int id; } CUmemLocation;
typedef struct { CUmemLocation location; CUmemAccess_flags flags; } CUmemAccessDesc;
typedef struct {
	CUmemAllocationType type;
	CUmemAllocationHandleType requestedHandleTypes;
	CUmemLocation location;
	void *win32HandleMetaData;
	struct {
		unsigned char compressionType, gpuDirectRDMACapable;
		unsigned short usage;
		unsigned char reserved[4];
	} allocFlags;
} CUmemAllocationProp;
#endif

/* X(name, number) */
#define TT_CUDA_NUMBERS(X) \
	X(CUDA_SUCCESS, 0) X(CUDA_ERROR_INVALID_VALUE, 1) X(CUDA_ERROR_OUT_OF_MEMORY, 2) \
	X(CUDA_ERROR_NOT_INITIALIZED, 3) X(CUDA_ERROR_DEINITIALIZED, 4) X(CUDA_ERROR_DEVICE_UNAVAILABLE, 46) \
	X(CUDA_ERROR_NO_DEVICE, 100) X(CUDA_ERROR_INVALID_DEVICE, 101) X(CUDA_ERROR_INVALID_CONTEXT, 201) \
	X(CUDA_ERROR_ECC_UNCORRECTABLE, 214) X(CUDA_ERROR_NVLINK_UNCORRECTABLE, 220) X(CUDA_ERROR_CONTAINED, 226) \
	X(CUDA_ERROR_INVALID_HANDLE, 400) X(CUDA_ERROR_NOT_READY, 600) X(CUDA_ERROR_ILLEGAL_ADDRESS, 700) \
	X(CUDA_ERROR_LAUNCH_TIMEOUT, 702) X(CUDA_ERROR_CONTEXT_IS_DESTROYED, 709) X(CUDA_ERROR_ASSERT, 710) \
	X(CUDA_ERROR_HARDWARE_STACK_ERROR, 714) X(CUDA_ERROR_ILLEGAL_INSTRUCTION, 715) \
	X(CUDA_ERROR_MISALIGNED_ADDRESS, 716) X(CUDA_ERROR_INVALID_ADDRESS_SPACE, 717) X(CUDA_ERROR_INVALID_PC, 718) \
	X(CUDA_ERROR_LAUNCH_FAILED, 719) X(CUDA_ERROR_NOT_PERMITTED, 800) X(CUDA_ERROR_NOT_SUPPORTED, 801) \
	X(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, 900) X(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, 906) \
	X(CUDA_ERROR_CAPTURED_EVENT, 907) \
	X(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 16) X(CU_DEVICE_ATTRIBUTE_PCI_BUS_ID, 33) \
	X(CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID, 34) X(CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID, 50) \
	X(CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED, 103) \
	X(CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, 102) \
	X(CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED, 110) \
	X(CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING, 118) X(CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED, 124) \
	X(CU_POINTER_ATTRIBUTE_CONTEXT, 1) X(CU_POINTER_ATTRIBUTE_MEMORY_TYPE, 2) X(CU_POINTER_ATTRIBUTE_BUFFER_ID, 7) \
	X(CU_POINTER_ATTRIBUTE_IS_MANAGED, 8) X(CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, 9) \
	X(CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, 11) X(CU_POINTER_ATTRIBUTE_RANGE_SIZE, 12) \
	X(CU_POINTER_ATTRIBUTE_MAPPING_SIZE, 18) X(CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR, 19) \
	X(CU_MEMORYTYPE_HOST, 1) X(CU_MEMORYTYPE_DEVICE, 2) \
	X(CU_STREAM_NON_BLOCKING, 1) X(CU_STREAM_CAPTURE_STATUS_NONE, 0) X(CU_STREAM_CAPTURE_MODE_RELAXED, 2) \
	X(CU_STREAM_WRITE_VALUE_DEFAULT, 0) X(CU_EVENT_DISABLE_TIMING, 2) \
	X(CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 1) X(CU_MEM_ACCESS_FLAGS_PROT_READWRITE, 3) \
	X(CU_MEM_LOCATION_TYPE_DEVICE, 1) X(CU_MEM_ALLOCATION_TYPE_PINNED, 1) X(CU_MEM_ALLOC_GRANULARITY_MINIMUM, 0) \
	X(CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 1) \
	X(CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TARGET_CURRENT_CTX, 0) X(CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TO_OWNER, 100)
#ifndef CUDA_VERSION
enum {
#define TT_CUDA_NUMBER(name, number) name = number,
	TT_CUDA_NUMBERS(TT_CUDA_NUMBER)
#undef TT_CUDA_NUMBER
};
#endif
/* These are macros in <cuda.h>: */
#define TT_CUDA_MACROS(X) X(CU_MEMHOSTALLOC_PORTABLE, 1) X(CU_MEMHOSTREGISTER_PORTABLE, 1)
#ifndef CU_MEMHOSTALLOC_PORTABLE
enum { CU_MEMHOSTALLOC_PORTABLE = 1, CU_MEMHOSTREGISTER_PORTABLE = 1 };
#endif

/* X(type, its size) */
#define TT_CUDA_SIZES(X) \
	X(CUresult, 4) X(CUuuid, 16) X(CUmemLocation, 8) X(CUmemAccessDesc, 12) X(CUmemAllocationProp, 32)

/* X(name, arguments): all functions. Each returns a CUresult. */
#define TT_CUDA_FUNCTIONS(X) \
	X(cuInit, (unsigned flags)) \
	X(cuDriverGetVersion, (int *version)) \
	X(cuGetErrorString, (CUresult, const char **text)) \
	X(cuDeviceGetCount, (int *count)) \
	X(cuDeviceGet, (CUdevice *, int ordinal)) \
	X(cuDeviceGetName, (char *name, int size, CUdevice)) \
	X(cuDeviceTotalMem_v2, (size_t *bytes, CUdevice)) \
	X(cuDeviceGetAttribute, (int *value, CUdevice_attribute, CUdevice)) \
	X(cuDeviceGetUuid_v2, (CUuuid *, CUdevice)) \
	X(cuDeviceCanAccessPeer, (int *can, CUdevice, CUdevice peer)) \
	X(cuDevicePrimaryCtxRetain, (CUcontext *, CUdevice)) \
	X(cuDevicePrimaryCtxRelease_v2, (CUdevice)) \
	X(cuCtxPushCurrent_v2, (CUcontext)) \
	X(cuCtxPopCurrent_v2, (CUcontext *)) \
	X(cuCtxGetDevice, (CUdevice *)) \
	X(cuCtxSynchronize, (void)) \
	X(cuPointerGetAttributes, (unsigned count, CUpointer_attribute *which, void **values, CUdeviceptr)) \
	X(cuStreamCreate, (CUstream *, unsigned flags)) \
	X(cuStreamDestroy_v2, (CUstream)) \
	X(cuStreamQuery, (CUstream)) \
	X(cuStreamSynchronize, (CUstream)) \
	X(cuStreamWriteValue32_v2, (CUstream, CUdeviceptr, unsigned value, unsigned flags)) \
	X(cuStreamIsCapturing, (CUstream, CUstreamCaptureStatus *)) \
	X(cuStreamGetCtx, (CUstream, CUcontext *)) \
	X(cuLaunchHostFunc, (CUstream, CUhostFn, void *arg)) \
	X(cuThreadExchangeStreamCaptureMode, (CUstreamCaptureMode *)) \
	X(cuEventCreate, (CUevent *, unsigned flags)) \
	X(cuEventDestroy_v2, (CUevent)) \
	X(cuEventRecord, (CUevent, CUstream)) \
	X(cuEventQuery, (CUevent)) \
	X(cuMemcpyAsync, (CUdeviceptr to, CUdeviceptr from, size_t, CUstream)) \
	X(cuMemsetD8Async, (CUdeviceptr, unsigned char value, size_t, CUstream)) \
	X(cuMemHostAlloc, (void **, size_t, unsigned flags)) \
	X(cuMemFreeHost, (void *)) \
	X(cuMemHostRegister_v2, (void *, size_t, unsigned flags)) \
	X(cuMemHostUnregister, (void *)) \
	X(cuMemGetAllocationGranularity, (size_t *, const CUmemAllocationProp *, CUmemAllocationGranularity_flags)) \
	X(cuMemCreate, (CUmemGenericAllocationHandle *, size_t, const CUmemAllocationProp *, \
	                unsigned long long flags)) \
	X(cuMemRelease, (CUmemGenericAllocationHandle)) \
	X(cuMemAddressReserve, (CUdeviceptr *, size_t, size_t align, CUdeviceptr hint, unsigned long long flags)) \
	X(cuMemAddressFree, (CUdeviceptr, size_t)) \
	X(cuMemMap, (CUdeviceptr, size_t, size_t offset, CUmemGenericAllocationHandle, unsigned long long flags)) \
	X(cuMemUnmap, (CUdeviceptr, size_t)) \
	X(cuMemSetAccess, (CUdeviceptr, size_t, const CUmemAccessDesc *, size_t count)) \
	X(cuMemExportToShareableHandle, (void *fd, CUmemGenericAllocationHandle, CUmemAllocationHandleType, \
	                                 unsigned long long flags)) \
	X(cuMemImportFromShareableHandle, (CUmemGenericAllocationHandle *, void *fd, CUmemAllocationHandleType)) \
	X(cuMemGetHandleForAddressRange, (void *fd, CUdeviceptr, size_t, CUmemRangeHandleType, \
	                                  unsigned long long flags)) \
	X(cuFlushGPUDirectRDMAWrites, (CUflushGPUDirectRDMAWritesTarget, CUflushGPUDirectRDMAWritesScope)) \
	X(cuModuleLoadData, (CUmodule *, const void *image)) \
	X(cuModuleUnload, (CUmodule)) \
	X(cuModuleGetFunction, (CUfunction *, CUmodule, const char *name)) \
	X(cuLaunchKernel, (CUfunction, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x, \
	                   unsigned block_y, unsigned block_z, unsigned shared, CUstream, void **arguments, \
	                   void **extra))
#endif
