/* prototypes.c - compiled behind NVIDIA's own header: what gpu/driver.h declares is what the header declares */
#include <cuda.h>
#include "gpu/driver.h"

#define NUMBER(name, number) _Static_assert(name == number, #name);
TT_CUDA_NUMBERS(NUMBER)
TT_CUDA_MACROS(NUMBER)
#define SIZE(type, size) _Static_assert(sizeof(type) == size, #type);
TT_CUDA_SIZES(SIZE)
_Static_assert(offsetof(CUmemAllocationProp, location) == 8, "location");
_Static_assert(offsetof(CUmemAllocationProp, allocFlags.gpuDirectRDMACapable) == 25, "gpuDirectRDMACapable");
#define FUNCTION(name, arguments) CUresult name arguments;
TT_CUDA_FUNCTIONS(FUNCTION)
