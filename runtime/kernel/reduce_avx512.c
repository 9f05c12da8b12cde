/* reduce_avx512.c - the kernels for x86-64 with AVX-512. No FMA, and not its bf16 instructions, which flush subnormals:
 * ranks with different processors must compute the same bits. */
#include "kernel/kernel_private.h"
#ifdef __x86_64__
#include <immintrin.h>

#define WIDTH 64
#define KERNELS tt_kernels_avx512
#define KERNELS_NAME "AVX-512"
TT_TARGET("avx512f,avx512bw,avx512dq,avx512vl")
#include "kernel/reduce_kernels.h"
TT_TARGET_END
#endif
