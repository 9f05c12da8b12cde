/* fake_dma_buf.h - what a dma-buf of the fake libcuda is, for adapters that are not there */
#ifndef TESTS_GPU_FAKE_DMA_BUF_H
#define TESTS_GPU_FAKE_DMA_BUF_H
#include <stddef.h>
#include <stdint.h>

/* What a descriptor of cuMemGetHandleForAddressRange holds, for adapters that are not there (tests/verbs/fake.c): the
 * bytes lie at `offset` in the file `fd` of this process, which stays open at least as long as the memory lives. */
struct fake_dma_buf {
	uint64_t magic, offset, len;
	int fd;
};
#define FAKE_DMA_BUF 0x66756264656b6166u
#endif
