/* reduce_avx2.c - the kernels for x86-64 with AVX2 and F16C. No FMA: all processors must round products alike. */
#include "kernel/kernel_private.h"
#ifdef __x86_64__
#include <immintrin.h>

#define WIDTH 32
#define KERNELS tt_kernels_avx2
#define KERNELS_NAME "AVX2"
TT_TARGET("avx2,f16c")
#include "kernel/reduce_kernels.h"
TT_TARGET_END
#endif
