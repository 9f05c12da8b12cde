/* fake_kernels.h - the kernels of runtime/kernel/kernels.cu, compiled for the processor */
#ifndef TT_FAKE_KERNELS_H
#define TT_FAKE_KERNELS_H
#include <stdint.h>

enum { FAKE_KERNEL_WORDS = 7 }; /* parameters of each kernel, of 8 bytes: three pointers, two doubles, two integers */

typedef void fake_kernel(const uint64_t *words);

fake_kernel *fake_kernel_find(const char *name); /* NULL: kernels.cu has no such kernel */
void fake_kernel_run(fake_kernel *, unsigned blocks, unsigned threads, const uint64_t words[FAKE_KERNEL_WORDS]);
#endif
