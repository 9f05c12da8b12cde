/* fake_private.h - what the files of the fake libcuda share */
#ifndef TESTS_GPU_FAKE_PRIVATE_H
#define TESTS_GPU_FAKE_PRIVATE_H
#include "tests/gpu/fake.h"
#include <pthread.h>
#include <sys/types.h>

#define SHOW __attribute__((visibility("default")))

enum { NOT_READY = 600, GRANULE = 2 << 20, PAGE = 4096, ATTRIBUTES = 160 };

/* ---- fake.c: how a call begins and ends ---- */

enum needs {
	NEEDS_NOTHING = 0,
	NEEDS_INIT = 1,
	NEEDS_CONTEXT = 2 | NEEDS_INIT, /* a current one, whose device is whole */
	IS_UNSAFE = 4,                  /* ends a capture in global mode */
	IS_SLOW = 8 | IS_UNSAFE,        /* may synchronise */
};
struct call { /* a function, once it was called */
	const char *name;
	uint64_t calls;
	struct call *next;
};
/* Takes the lock; the call that follows must end with leave(), whatever enter() says. */
int enter(struct call *, unsigned needs);
CUresult leave(int err);
/* The body of a function that tells one thing. */
#define TELL(enters, ...) \
	{ \
		enters; \
		*out = (__VA_ARGS__); \
		return leave(0); \
	}
#define ENTER(needs) \
	static struct call this_call = { .name = __func__ }; \
	int err = enter(&this_call, needs); \
	if (err) \
		return leave(err)

void bug(const char *format, ...) __attribute__((noreturn, format(printf, 1, 2)));
uint64_t below(uint64_t n); /* by the seed */
void check_slow(const char *what); /* aborts if the thread holds a job's lock */

enum kind { OF_RANGE, OF_HANDLE, OF_RESERVATION, OF_STREAM, OF_EVENT, OF_MODULE, OF_CONTEXT, KINDS };
void *make(enum kind, size_t size); /* zeroed, counted */
void drop(enum kind, void *);
void uncount(enum kind);

#define UNLINK(list, item) \
	do { \
		__typeof__(item) *link_ = &(list), item_ = (item); \
		while (*link_ != item_) \
			link_ = &(*link_)->next; \
		*link_ = item_->next; \
	} while (0)

/* ---- fake_device.c ---- */

struct CUctx_st {
	int device, uses;
	bool primary;
	struct CUstream_st *legacy;
};
struct device {
	int number, err; /* of the machine; CUDA_VISIBLE_DEVICES orders them. err: broken */
	int attribute[ATTRIBUTES];
	struct CUctx_st primary;
};
extern struct device devices[FAKE_CUDA_DEVICES];
extern int device_count;
extern bool initialized, can_reach;
CUcontext current(void); /* NULL: none */
int error_of(CUcontext); /* of its device */
int ordinal_of(int number); /* -1: not visible */

/* ---- fake_memory.c ---- */

enum memory { OF_DEVICE, MAPPED, MANAGED, PINNED, REGISTERED };
struct handle { /* physical memory: cuMemCreate */
	int fd, device, refs;
	size_t len;
	bool exports, fresh; /* fresh: nobody has mapped it yet */
};
struct range {
	enum memory is;
	char *base;
	size_t len;
	int device; /* where it lies, or was registered */
	unsigned flags, access[FAKE_CUDA_DEVICES];
	CUcontext ctx; /* NULL: memory that was mapped belongs to none */
	uint64_t id;
	struct handle *handle;
	int uses; /* work that was started and is not done */
	struct range *next;
};
struct range *range_of(const void *at, size_t len); /* the live range that holds all of it; NULL: none */
char *reachable(const struct range *, const void *at); /* where the CPU has the byte */
bool is_in_window(const void *at);
void settle(struct range *, const char *call); /* bug, if work uses it */
struct range *add_range(enum memory, void *base, size_t len, int device, CUcontext);
void remove_range(struct range *);
bool overlaps(const char *at, size_t len); /* a live range */
char *take_addresses(size_t len, size_t alignment);
void show_bytes(char *at, size_t len, int fd, off_t offset);
void hide_bytes(char *at, size_t len);
void make_garbage(char *bytes, size_t len);
CUdeviceptr reservation_of(const char *at, size_t *len); /* of fake_vmm.c */

/* ---- fake_stream.c ---- */

bool run_one(void);
void run_some(void);
/* Runs work until it is done. 0, or the error that has broken the context's device. */
int wait_for(CUcontext, bool (*is_done)(const void *), const void *);
int wait_for_context(CUcontext);
bool capture_refuses(void); /* a call that is unsafe while streams capture; ends their captures */
extern uint64_t captured; /* what fake_cuda_captured() says */
extern bool thread_runs;
struct CUstream_st *new_legacy(CUcontext);
void unlink_stream(struct CUstream_st *); /* and frees it */
extern pthread_mutex_t fake_lock;
extern _Thread_local bool in_host_function;

/* ---- fake_kernels.c: the kernels of runtime/kernel/kernels.cu, compiled for the processor ---- */

enum { FAKE_KERNEL_WORDS = 7 }; /* parameters of each kernel, of 8 bytes: three pointers, two doubles, two integers */
typedef void fake_kernel(const uint64_t *words);
fake_kernel *fake_kernel_find(const char *name); /* NULL: kernels.cu has no such kernel */
void fake_kernel_run(fake_kernel *, unsigned blocks, unsigned threads, const uint64_t words[FAKE_KERNEL_WORDS]);

/* ---- fake_kernel.c ---- */

struct launch;
int run_kernel(struct launch *, CUcontext); /* 0, or the error that breaks the device */
int start_kernel(CUstream, struct launch *, struct range **uses, int count); /* of fake_stream.c; takes the launch */
#endif
