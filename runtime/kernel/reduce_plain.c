/* reduce_plain.c - the kernels for any processor: vectors of 16 bytes, which are SSE2 on x86-64 and NEON on arm64 */
#include "kernel/kernel_private.h"
#ifdef __x86_64__
#include <immintrin.h>
#endif

#define WIDTH 16
#define KERNELS tt_kernels_plain
#define KERNELS_NAME "plain"
#include "kernel/reduce_kernels.h"
