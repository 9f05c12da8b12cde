/* kernels.cu - blends and scalings of memory of a GPU, with the bits of the processor's kernels (reduce_kernels.h)
 *
 * The same text compiles
 *   for a GPU, by nvcc or by clang, without headers of CUDA. No product and sum may be fused (-fmad=false,
 *     -ffp-contract=off);
 *   as plain C, so that the stand-in for libcuda in tests/gpu runs the kernels on the processor, thread by thread.
 *
 * All kernels have the same seven parameters of eight bytes, so whoever starts one needs no list of them. The grid is
 * persistent: a thread goes on until all elements are done. Bytes in flight decide the speed: 3 blocks of 256 threads
 * on each multiprocessor, each thread with 2 packs of 16 bytes of each stream. */
#include <stdint.h>

#if defined __CUDA__ || defined __CUDACC__
#define ON_GPU
#ifndef __CUDACC__ /* clang */
#define __global__ __attribute__((global))
#define __device__ __attribute__((device))
#define __launch_bounds__(...) __attribute__((launch_bounds(__VA_ARGS__)))
#endif
#define INLINE static __device__ __attribute__((always_inline)) inline
#define KERNEL extern "C" __global__ __launch_bounds__(256, 3) void
#define UNROLL _Pragma("unroll")
#define ALIGNED(at, size) (void)(at)

#define REGISTER(name, reg) \
	INLINE uint32_t name(void) \
	{ \
		uint32_t v; \
		asm("mov.u32 %0, %%" reg ";" : "=r"(v)); \
		return v; \
	}
REGISTER(thread_in_block, "tid.x")
REGISTER(block_threads, "ntid.x")
REGISTER(block, "ctaid.x")
REGISTER(blocks, "nctaid.x")
#else
#define INLINE static inline
#define KERNEL static void
#define UNROLL
#define ALIGNED(at, size) ((uint64_t)(at) % (size) ? __builtin_trap() : (void)0) /* a GPU faults, too */
static _Thread_local struct {
	uint32_t thread, threads, block, blocks;
} here; /* the includer sets it before each call */

INLINE uint32_t thread_in_block(void) { return here.thread; }
INLINE uint32_t block_threads(void) { return here.threads; }
INLINE uint32_t block(void) { return here.block; }
INLINE uint32_t blocks(void) { return here.blocks; }
#endif

enum {
	PACK = 16,     /* bytes of the widest access */
	FLIGHT = 2,    /* packs of a stream in flight */
	SINGLES = 8,   /* elements in flight, where streams have no packs in common */
};

struct pack {
	uint32_t word[PACK / 4];
};

/* Each byte is used once: .cs keeps it out of the way of what the caches hold. */
INLINE struct pack load_pack(const char *at)
{
	struct pack p;

	ALIGNED(at, PACK);
#ifdef ON_GPU
	asm volatile("ld.global.cs.v4.u32 {%0, %1, %2, %3}, [%4];"
	             : "=r"(p.word[0]), "=r"(p.word[1]), "=r"(p.word[2]), "=r"(p.word[3]) : "l"(at) : "memory");
#else
	__builtin_memcpy(&p, at, sizeof p);
#endif
	return p;
}

INLINE void store_pack(char *to, struct pack p)
{
	ALIGNED(to, PACK);
#ifdef ON_GPU
	asm volatile("st.global.cs.v4.u32 [%0], {%1, %2, %3, %4};"
	             :: "l"(to), "r"(p.word[0]), "r"(p.word[1]), "r"(p.word[2]), "r"(p.word[3]) : "memory");
#else
	__builtin_memcpy(to, &p, sizeof p);
#endif
}

/* What half.h and rules.h need: here a vector is one number. */
typedef float vf32;
typedef double vf64;
typedef int32_t vi32;
typedef uint32_t vu32;
typedef int64_t vi64;

#define SAME_BITS(name, to, from) \
	INLINE to name(from x) \
	{ \
		to y; \
		__builtin_memcpy(&y, &x, sizeof y); \
		return y; \
	}
SAME_BITS(as_vf32, vf32, uint32_t)
SAME_BITS(as_vu32, vu32, float)
SAME_BITS(as_vf64, vf64, int64_t)
SAME_BITS(as_vi32, vi32, uint32_t)

#define JOIN_(a, b) a##_##b
#define JOIN(a, b) JOIN_(a, b)
#define ON(name) JOIN(name, TYPE)
#define AS(type, x) JOIN(as, type)(x)
#define ALL(type, x) ((type)(x))
#define PICK(mask, a, b) ((mask) ? (a) : (b))
#include "kernel/half.h"

#ifdef ON_GPU /* has instructions for f16 */
INLINE void widen_f16(vf32 *v, vu32 word)
{
	asm("{ .reg .b16 even, odd; mov.b32 {even, odd}, %2; cvt.f32.f16 %0, even; cvt.f32.f16 %1, odd; }"
	    : "=f"(v[0]), "=f"(v[1]) : "r"(word));
}

/* The instruction has a NaN of its own, 0x7fff. */
INLINE vu32 narrow_f16(const vf32 *v)
{
	const vu32 clean = 0x7e00;
	vu32 word;

	asm("{ .reg .b16 even, odd; cvt.rn.f16.f32 even, %1; cvt.rn.f16.f32 odd, %2; mov.b32 %0, {even, odd}; }"
	    : "=r"(word) : "f"(v[0]), "f"(v[1]));
	word = v[0] == v[0] ? word : (word & 0xffff0000) | clean;
	return v[1] == v[1] ? word : (word & 0xffff) | clean << 16;
}
#else
#define widen_f16 f16_to_f32
#define narrow_f16 f32_to_f16
#endif

#define TYPE f32
#define ELEMENT float
#define NUMBER float
#define VEC vf32
#define MASK vi32
#define CLEAN_NAN 0x7fc00000
#include "kernel/device_loops.h"
#define TYPE f64
#define ELEMENT double
#define NUMBER double
#define VEC vf64
#define MASK vi64
#define CLEAN_NAN 0x7ff8000000000000
#include "kernel/device_loops.h"
#define TYPE f16
#define ELEMENT uint16_t
#define NUMBER float
#define VEC vf32
#define MASK vi32
#define CLEAN_NAN 0x7fc00000
#define WIDEN widen_f16
#define NARROW narrow_f16
#include "kernel/device_loops.h"
#define TYPE bf16
#define ELEMENT uint16_t
#define NUMBER float
#define VEC vf32
#define MASK vi32
#define CLEAN_NAN 0x7fc00000
#define WIDEN bf16_to_f32
#define NARROW f32_to_bf16
#include "kernel/device_loops.h"
#define TYPE i32
#define ELEMENT int32_t
#define NUMBER int32_t
#include "kernel/device_loops.h"
#define TYPE i64
#define ELEMENT int64_t
#define NUMBER int64_t
#include "kernel/device_loops.h"
#define TYPE i8
#define ELEMENT int8_t
#define NUMBER int8_t
#include "kernel/device_loops.h"
#define TYPE u8
#define ELEMENT uint8_t
#define NUMBER uint8_t
#include "kernel/device_loops.h"
