/* device.c - what tests/gpu/device.sh runs on a machine with a GPU: device PART [BYTES [SECONDS]]
 *
 * Each finding is a line of JSON. Exit status: 0; 1: something is wrong; 77: no GPU here. BYTES is the size of large
 * copies. SECONDS is how long `right` and `torn` go on, and how long `streams` pauses between two frees (0: not).
 * `torn`, `streams` and `faults` need `tutti run -n 2`. */
#include "gpu/gpu_private.h"
#include "kernel/kernel.h"
#include "tests/kernel/formats.h"
#include <dlfcn.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

enum { NO_GPU = 77, ROUNDS = 1000, ROOM = 1 << 20, SLICES = 64 };

static const char *part;
static size_t large = 64 << 20;
static double seconds = 10;
static int wrong; /* findings that are not as they must be */
static struct tt_random dice;

/* ---- findings ---- */

static void note(const char *what, double value, const char *unit)
{
	printf("{\"part\": \"%s\", \"what\": \"%s\", \"value\": %.6g, \"unit\": \"%s\"}\n", part, what, value, unit);
	fflush(stdout);
}

static void note_text(const char *what, const char *text)
{
	printf("{\"part\": \"%s\", \"what\": \"%s\", \"value\": \"", part, what);
	for (; *text; text++)
		putchar(*text == '"' || *text == '\\' || (unsigned char)*text < ' ' ? '\'' : *text);
	printf("\"}\n");
	fflush(stdout);
}

/* A value that must be `right`. */
static void must(const char *what, double value, double right)
{
	note(what, value, value == right ? "as it must be" : "WRONG");
	wrong += value != right;
}

static void check(int err)
{
	if (err >= 0)
		return;
	note_text("failed", tutti_why());
	exit(err == -ENODEV && !strcmp(part, "facts") ? NO_GPU : 1);
}

static double now(void) { return (double)tt_now() * 1e-9; }

/* ---- a GPU and its queue ---- */

static struct tt_gpu_queue *open_queue(void)
{
	struct tt_gpu_queue *q;

	check(tt_gpu_queue_open(0, &q));
	return q;
}

static void finish(struct tt_gpu_queue *q)
{
	const uint64_t mark = tt_gpu_mark(q), end = tt_now() + 60000 * TT_MS;
	uint64_t next = tt_now() + TT_MS;
	int done;

	while (!(done = tt_gpu_reached(q, mark))) {
		if (tt_now() > end)
			check(tt_fail(-ETIMEDOUT, "the GPU has not finished a copy or a kernel within 60 s"));
		if (tt_now() < next)
			continue;
		check(tt_gpu_check(q->device)); /* the mark of a kernel that has failed never comes */
		next = tt_now() + TT_MS;
	}
	check(done);
}

static void copy(struct tt_gpu_queue *q, void *to, const void *from, size_t n)
{
	check(tt_gpu_copy(q, to, from, n));
	finish(q);
}

static void *device_memory(size_t bytes)
{
	void *at;

	check(tt_gpu_alloc(0, bytes, &at));
	return at;
}

static void *pinned(size_t bytes)
{
	void *at = aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);

	if (!at)
		check(tt_fail(-ENOMEM, "no memory for %zu bytes", bytes));
	memset(at, 0, bytes);
	check(tt_gpu_register(at, bytes));
	return at;
}

static void unpin(void *at)
{
	tt_gpu_unregister(at);
	free(at);
}

/* ---- facts ---- */

static void describe(int device)
{
	struct tt_gpu_facts f;
	char uuid[2 * TT_GPU_UUID + 1];

	check(tt_gpu_facts(device, &f));
	for (int i = 0; i < TT_GPU_UUID; i++)
		snprintf(uuid + 2 * i, 3, "%02x", f.uuid[i]);
	note_text("name", f.name);
	note_text("UUID", uuid);
	note("memory", (double)f.memory, "bytes");
	note("NUMA node", f.numa, "");
	note("MIG", f.mig, "");
	note("memory is exported as a descriptor", f.vmm_fd, "");
	note("dma-buf", f.dma_buf, "");
	note("RDMA of exported memory", f.rdma, "");
	note("writes of others need no flush from", f.flush, "");
	for (int peer = 0; peer < tt_gpu_count(); peer++)
		if (peer != device)
			note("reads another device in place", tt_gpu_can_reach(device, peer), "");
}

static void find_facts(void)
{
	int version = 0;

	if (!tt_gpu_count())
		check(tt_fail(-ENODEV, "%s", tt_gpu_why_not()));
	note("devices", tt_gpu_count(), "");
	check(TT_CU(-1, cuDriverGetVersion, &version));
	note("driver interface", version, "");
	for (int i = 0; i < tt_gpu_count(); i++)
		describe(i);
}

/* ---- times ---- */

#define TIME(what, unit, scale, rounds, ...) \
	do { \
		double begun = now(); \
		for (int i = 0; i < (rounds); i++) { \
			__VA_ARGS__; \
		} \
		note(what, (now() - begun) / (rounds) * (scale), unit); \
	} while (0)

static void take_times(void)
{
	struct tt_gpu_queue *q = NULL; /* -Og does not see that each round of TIME sets these */
	struct tt_gpu_range range;
	struct tt_gpu_fence *fence;
	void *at = NULL, *host = NULL;

	TIME("first queue, with the context", "ms", 1e3, 1, q = open_queue());
	TIME("load of the kernels", "ms", 1e3, 1, check(tt_gpu_kernels(0)));
	TIME("tutti_alloc of a GPU's memory", "ms", 1e3, 1, at = device_memory(large));
	TIME("register host memory", "ms", 1e3, 1, host = pinned(large));
	TIME("look whether CUDA is here", "ns", 1e9, ROUNDS, tt_gpu_look());
	TIME("kind of a pointer of the host", "ns", 1e9, ROUNDS, check(tt_gpu_find(&range, 1, &range)));
	TIME("kind of a pointer of the GPU", "ns", 1e9, ROUNDS, check(tt_gpu_find(at, 1, &range)));
	TIME("fence: note, look, give back", "us", 1e6, ROUNDS, check(tt_gpu_fence_note(0, NULL, &fence));
	     check(tt_gpu_fence_passed(fence)); tt_gpu_fence_free(fence));
	TIME("copy of 8 bytes to the host, with its end", "us", 1e6, ROUNDS, copy(q, host, at, 8));
	TIME("copy of 8 bytes to the GPU, with its end", "us", 1e6, ROUNDS, copy(q, at, host, 8));
	TIME("kernel of one element, with its end", "us", 1e6, ROUNDS, check(tt_gpu_scale(q, at, 1, TUTTI_F32, 1));
	     finish(q));
	TIME("is the device well?", "us", 1e6, ROUNDS, check(tt_gpu_check(0)));
	unpin(host);
	tt_gpu_free(at);
	tt_gpu_queue_close(q);
}

/* ---- right: the bits of the processor's kernels ---- */

static void fill(char *at, size_t count, tutti_type type)
{
	for (size_t i = 0; i < count; i++) {
		uint64_t bits = tt_random_next(&dice);
		if (!is_integer(type) && bits % 2)
			bits = nearest((long double)(1 + bits / 2 % 1000) / 300, type);
		set_element(at, i, type, bits);
	}
}

struct right {
	struct tt_gpu_queue *q;
	char *gpu[2], *host[2], *back; /* of ROOM bytes each */
};

/* Does the GPU's memory have the bits of the processor's? The first difference of each type is noted. */
static bool is_right(struct right *r, const char *what, tutti_type type, size_t first)
{
	static bool noted[TUTTI_BOOL];
	const size_t size = tt_type_size(type);
	size_t at = 0;
	char text[100];

	copy(r->q, r->back, r->gpu[0], ROOM);
	if (!memcmp(r->back, r->host[0], ROOM))
		return true;
	while (r->back[at] == r->host[0][at])
		at++;
	at -= at < first ? 0 : (at - first) % size;
	snprintf(text, sizeof text, "%s of %s: %#" PRIx64 ", not %#" PRIx64 ", at byte %zu", what, type_names[type],
	         element(r->back + at, 0, type), element(r->host[0] + at, 0, type), at);
	if (!noted[type])
		note_text("differs", text);
	noted[type] = true;
	return false;
}

static bool blend_is_right(struct right *r, tutti_type type, size_t at, size_t from, size_t count)
{
	for (int i = 0; i < 2; i++) {
		fill(r->host[i] + (i ? from : at), count, type);
		check(tt_gpu_copy(r->q, r->gpu[i], r->host[i], ROOM));
	}
	check(tt_gpu_blend(r->q, r->gpu[0] + at, 0.3, r->gpu[0] + at, 0.7, r->gpu[1] + from, count, type));
	finish(r->q);
	tt_blend(r->host[0] + at, 0.3, r->host[0] + at, 0.7, r->host[1] + from, count, type);
	return is_right(r, "blend", type, at);
}

static bool scale_is_right(struct right *r, tutti_type type, size_t at, size_t count)
{
	fill(r->host[0] + at, count, type);
	check(tt_gpu_copy(r->q, r->gpu[0], r->host[0], ROOM));
	check(tt_gpu_scale(r->q, r->gpu[0] + at, count, type, 3));
	finish(r->q);
	tt_scale(r->host[0] + at, count, type, 3);
	return is_right(r, "scale", type, at);
}

static void compare_bits(void)
{
	struct right r = { .q = open_queue(), .back = pinned(ROOM) };
	double end = now() + seconds, runs = 0, differ = 0;

	check(tt_gpu_kernels(0));
	for (int i = 0; i < 2; i++) {
		r.gpu[i] = device_memory(ROOM);
		r.host[i] = pinned(ROOM);
	}
	for (int type = 0; now() < end || runs < 16; type = (type + 1) % TUTTI_BOOL, runs++) {
		size_t at = tt_random_below(&dice, 17);
		size_t from = tt_random_below(&dice, 3) ? at : tt_random_below(&dice, 17);
		size_t most = tt_random_below(&dice, 4) ? 1000 : (ROOM - 64) / tt_type_size((tutti_type)type);
		size_t count = tt_random_below(&dice, most + 1);
		if (tt_type_is_float((tutti_type)type))
			differ += !blend_is_right(&r, (tutti_type)type, at, from, count);
		differ += !scale_is_right(&r, (tutti_type)type, at, count);
	}
	note("vectors of all types compared", runs, "");
	must("of these differ from the processor's", differ, 0);
	for (int i = 0; i < 2; i++) {
		tt_gpu_free(r.gpu[i]);
		unpin(r.host[i]);
	}
	unpin(r.back);
	tt_gpu_queue_close(r.q);
}

/* ---- order: a copy starts when a fence has passed ---- */

/* The "program's" stream copies large memory and then a new number behind it; our queue fetches the number. */
static double stale(struct tt_gpu_queue *program, struct tt_gpu_queue *ours, char *gpu, uint64_t *host, bool fenced)
{
	struct tt_gpu_fence *fence = NULL;
	double found = 0;

	for (uint64_t n = 1; n <= 50; n++) {
		host[0] = n;
		check(tt_gpu_copy(program, gpu + large, gpu, large));
		check(tt_gpu_copy(program, gpu, host, sizeof *host));
		if (fenced) {
			check(tt_gpu_fence_note(0, program->stream, &fence));
			while (!tt_gpu_fence_passed(fence))
				check(tt_gpu_check(0));
		}
		copy(ours, host + 1, gpu, sizeof *host);
		found += host[1] != n;
		finish(program);
		tt_gpu_fence_free(fence);
		fence = NULL;
	}
	return found;
}

static void look_at_order(void)
{
	struct tt_gpu_queue *program = open_queue(), *ours = open_queue();
	char *gpu = device_memory(2 * large);
	uint64_t *host = pinned(4096);

	must("stale reads behind a fence", stale(program, ours, gpu, host, true), 0);
	note("stale reads without one (not 0, else the test shows nothing)", stale(program, ours, gpu, host, false),
	     "");
	unpin(host);
	tt_gpu_free(gpu);
	tt_gpu_queue_close(ours);
	tt_gpu_queue_close(program);
}

/* ---- ipc: another process maps the memory ---- */

union control { /* one descriptor */
	struct cmsghdr head;
	char room[CMSG_SPACE(sizeof(int))];
};

static void send_fd(int socket, int fd, size_t len)
{
	union control control = { .head = { .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS } };
	struct iovec one = { &len, sizeof len };
	struct msghdr m = { .msg_iov = &one, .msg_iovlen = 1, .msg_control = &control };

	m.msg_controllen = sizeof control;
	control.head.cmsg_len = CMSG_LEN(sizeof fd);
	memcpy(CMSG_DATA(&control.head), &fd, sizeof fd);
	if (sendmsg(socket, &m, 0) != sizeof len)
		check(tt_fail(-errno, "cannot send a descriptor: %s", strerror(errno)));
}

static int receive_fd(int socket, size_t *len)
{
	union control control;
	struct iovec one = { len, sizeof *len };
	struct msghdr m = { .msg_iov = &one, .msg_iovlen = 1, .msg_control = &control };
	int fd;

	m.msg_controllen = sizeof control;
	if (recvmsg(socket, &m, 0) != sizeof *len)
		check(tt_fail(-EIO, "no descriptor came"));
	memcpy(&fd, CMSG_DATA(&control.head), sizeof fd);
	return fd;
}

static bool is_full_of(const char *at, char byte) { return *at == byte && !memcmp(at, at + 1, large - 1); }

/* The other process: maps, reads, waits until the owner has freed, reads again. Standard input is the socket. */
static void map_memory(void)
{
	struct tt_gpu_queue *q = open_queue();
	char *host = pinned(large);
	void *theirs;
	char byte = 0;
	size_t len;
	int fd = receive_fd(0, &len);

	TIME("map another process's memory", "ms", 1e3, 1, check(tt_gpu_import(0, fd, len, &theirs)));
	copy(q, host, theirs, large);
	must("bytes read in another process are wrong", !is_full_of(host, 7), 0);
	TIME("copy out of it", "ms", 1e3, 1, copy(q, host, theirs, large));
	if (write(0, &byte, 1) != 1 || read(0, &byte, 1) != 1)
		check(tt_fail(-EIO, "the owner is gone"));
	memset(host, 0, large);
	copy(q, host, theirs, large);
	must("bytes are wrong after the owner has freed them", !is_full_of(host, 7), 0);
	tt_gpu_unimport(theirs);
	unpin(host);
	tt_gpu_queue_close(q);
}

static void share_memory(char **argv)
{
	int ends[2], fd, status = 0;
	struct tt_gpu_queue *q;
	struct tt_gpu_range range;
	char *gpu, *host, byte, size[32];
	pid_t child = -1;

	snprintf(size, sizeof size, "%zu", large);
	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) || (child = fork()) < 0)
		check(tt_fail(-errno, "cannot start another process: %s", strerror(errno)));
	if (!child) { /* before this process uses CUDA */
		dup2(ends[1], 0);
		execl("/proc/self/exe", argv[0], "mapping", size, (char *)NULL);
		_exit(127);
	}
	close(ends[1]);
	q = open_queue();
	host = pinned(large);
	gpu = device_memory(large);
	memset(host, 7, large);
	copy(q, gpu, host, large);
	TIME("export", "ms", 1e3, 1, check(tt_gpu_export(gpu, &fd)));
	check(tt_gpu_find(gpu, large, &range));
	send_fd(ends[0], fd, range.len);
	close(fd);
	if (read(ends[0], &byte, 1) != 1)
		check(tt_fail(-EIO, "the other process is gone"));
	tt_gpu_free(gpu);
	if (write(ends[0], &byte, 1) != 1 || waitpid(child, &status, 0) != child || status)
		check(tt_fail(-EIO, "the other process ended with status %#x", (unsigned)status));
	unpin(host);
	tt_gpu_queue_close(q);
}

/* ---- torn: rank 1 fetches from memory that rank 0 changes ---- */

/* The owner: stamp 0, a copy, then the new stamp. The vector is all 1s or all 2s. */
static uint64_t change(_Atomic uint64_t *stamp, const _Atomic uint64_t *over, struct tt_gpu_queue *q, char *gpu)
{
	uint64_t n = 0;

	while (!*over) {
		*stamp = 0;
		copy(q, gpu, gpu + (1 + n % 2) * large, large);
		*stamp = ++n;
		usleep(1000);
	}
	return n;
}

/* Looks at slices all over the memory: a whole one takes longer to bring here than to fetch. */
static bool is_mixed(struct tt_gpu_queue *q, const char *gpu, char *host)
{
	const size_t slice = tt_min(large / SLICES, 16384);

	for (size_t i = 0; i < SLICES; i++)
		check(tt_gpu_copy(q, host + i * slice, gpu + large / SLICES * i, slice));
	finish(q);
	return memcmp(host, host + 1, SLICES * slice - 1) != 0;
}

static void fetch(tutti_window *words, tutti_window *data, struct tt_gpu_queue *q, char *gpu, char *host)
{
	double end = now() + seconds, whole = 0, torn = 0, refused = 0, seen = 0;

	while (now() < end) {
		uint64_t before, after;
		check(tutti_get(words, 0, 0, &before, sizeof before, NULL));
		check(tutti_get(data, 0, 0, gpu, large, NULL));
		check(tutti_get(words, 0, 0, &after, sizeof after, NULL));
		bool mixed = is_mixed(q, gpu, host), refuse = !before || before != after;
		refused += refuse;
		seen += refuse && mixed;
		whole += !refuse && !mixed;
		torn += !refuse && mixed;
	}
	note("fetches that were whole", whole, "");
	note("fetches that the stamp refused", refused, "");
	note("of these were torn (not 0, else the test shows nothing)", seen, "");
	must("fetches that were torn", torn, 0);
}

static void look_for_tears(void)
{
	_Atomic uint64_t *word;
	tutti_window *words, *data;
	struct tt_gpu_queue *q;
	void *gpu, *stamps;
	char *host;
	tutti *job;

	check(tutti_join(NULL, &job));
	check(tutti_alloc(job, 4096, -1, &stamps));
	check(tutti_alloc(job, 3 * large, 0, &gpu));
	word = stamps;
	q = open_queue();
	host = pinned(large);
	for (int i = 1; i <= 2; i++) {
		memset(host, i, large);
		copy(q, (char *)gpu + (size_t)i * large, host, large);
	}
	check(tutti_window_open(job, "words", stamps, 4096, &words));
	check(tutti_window_open(job, "data", gpu, 3 * large, &data));
	check(tutti_barrier(job, NULL));
	if (tutti_rank(job) == 1) {
		const uint64_t over = 1;
		fetch(words, data, q, gpu, host);
		check(tutti_put(words, 0, sizeof over, &over, sizeof over, NULL));
	} else {
		note("changes meanwhile", (double)change(word, word + 1, q, gpu), "");
	}
	check(tutti_barrier(job, NULL));
	tutti_window_close(data);
	tutti_window_close(words);
	unpin(host);
	tt_gpu_queue_close(q);
	tutti_free(job, gpu);
	tutti_free(job, stamps);
	tutti_leave(job);
}

/* ---- streams: puts behind the program's streams, beside a thread that frees memory with cuMemFree ---- */

enum { COPIES = 50 };
static CUresult (*alloc_memory)(CUdeviceptr *, size_t), (*free_memory)(CUdeviceptr);
static _Atomic bool over;
static double freed;

/* cuMemFree waits for the GPU, and holds what locks the driver has meanwhile. The pause lets others have the locks. */
static void *free_much(void *unused)
{
	CUstreamCaptureMode before;
	CUdeviceptr at;

	check(tt_gpu_enter(0, &before));
	for (; !over; freed++) {
		if (alloc_memory(&at, 1 << 20) || free_memory(at))
			check(tt_fail(-EIO, "cuMemAlloc or cuMemFree fails"));
		if (seconds > 0)
			usleep((useconds_t)(seconds * 1e6));
	}
	tt_gpu_leave(before);
	return unused;
}

static void find_free(void)
{
	void *cuda = dlopen("libcuda.so.1", RTLD_NOW);

	*(void **)&alloc_memory = cuda ? dlsym(cuda, "cuMemAlloc_v2") : NULL;
	*(void **)&free_memory = cuda ? dlsym(cuda, "cuMemFree_v2") : NULL;
	if (!alloc_memory || !free_memory)
		check(tt_fail(-ENODEV, "libcuda has no cuMemAlloc_v2 or cuMemFree_v2"));
}

/* The stream is busy for COPIES copies, which leave the bytes of `host` in gpu. The legacy stream waits for a stream
 * that blocks. */
static void put_late(tutti *job, tutti_window *w, bool blocks, char *gpu, char *host)
{
	const double begun = now();
	CUstreamCaptureMode before;
	CUstream stream;
	tutti_op op = { 0 };
	uint64_t word = 1;

	check(tt_gpu_enter(0, &before));
	check(TT_CU(0, cuStreamCreate, &stream, blocks ? 0 : CU_STREAM_NON_BLOCKING));
	check(tutti_stream(job, blocks ? NULL : stream));
	for (int i = 0; i < COPIES; i++)
		check(TT_CU(0, cuMemcpyAsync, (CUdeviceptr)(uintptr_t)gpu, (CUdeviceptr)(uintptr_t)host, large,
		            stream));
	check(tutti_put(w, 1, 0, gpu, large, &op));
	note("a put behind a busy stream returns after", (now() - begun) * 1e3, "ms");
	check(tutti_put(w, 1, large, &word, sizeof word, NULL));
	note("... a put of host memory beside it ends after", (now() - begun) * 1e3, "ms");
	check(tutti_wait(&op, -1));
	note("... and the put itself after", (now() - begun) * 1e3, "ms");
	check(tutti_stream(job, NULL));
	check(TT_CU(0, cuStreamSynchronize, stream));
	check(TT_CU(0, cuStreamDestroy_v2, stream));
	tt_gpu_leave(before);
}

static void act_in_streams(tutti *job, tutti_window *w)
{
	struct tt_gpu_queue *q = open_queue();
	char *gpu = device_memory(large), *host = pinned(large);
	pthread_t thread;

	find_free();
	if (pthread_create(&thread, NULL, free_much, NULL))
		check(tt_fail(-EAGAIN, "there is no second thread"));
	for (int turn = 1; turn <= 2; turn++) {
		memset(host, turn, large);
		put_late(job, w, turn == 2, gpu, host);
		check(tutti_barrier(job, NULL));
		check(tutti_barrier(job, NULL));
	}
	over = true;
	pthread_join(thread, NULL);
	note("cuMemFree meanwhile", freed, "");
	unpin(host);
	tt_gpu_free(gpu);
	tt_gpu_queue_close(q);
}

/* Gets are answered by the thread that answers heartbeats. */
static void *watch(void *window)
{
	double longest = 0;
	uint64_t word;

	while (!over) {
		const double begun = now();
		check(tutti_get(window, 0, 0, &word, sizeof word, NULL));
		longest = now() - begun > longest ? now() - begun : longest;
		usleep(200);
	}
	note("longest get of 8 bytes of the host's memory meanwhile", longest * 1e3, "ms");
	return NULL;
}

static void look_at_streams(void)
{
	tutti_window *w;
	pthread_t thread;
	void *memory;
	tutti *job;

	check(tutti_join(NULL, &job));
	check(tutti_alloc(job, large + 8, -1, &memory));
	check(tutti_window_open(job, "w", memory, large + 8, &w));
	if (!tutti_rank(job)) {
		act_in_streams(job, w);
	} else {
		if (pthread_create(&thread, NULL, watch, w))
			check(tt_fail(-EAGAIN, "there is no second thread"));
		for (int turn = 1; turn <= 2; turn++) {
			check(tutti_barrier(job, NULL));
			must("bytes are older than the stream's work", !is_full_of(memory, (char)turn), 0);
			check(tutti_barrier(job, NULL));
		}
		over = true;
		pthread_join(thread, NULL);
	}
	check(tutti_barrier(job, NULL));
	tutti_window_close(w);
	tutti_free(job, memory);
	tutti_leave(job);
}

/* ---- faults: a kernel of rank 0 uses memory that was freed ---- */

static int break_gpu(struct tt_gpu_queue *q)
{
	const double end = now() + 5;
	void *gone = device_memory(ROOM);
	int err;

	tt_gpu_free(gone);
	err = tt_gpu_scale(q, gone, 1024, TUTTI_F32, 3);
	while (!err && now() < end)
		err = tt_gpu_check(0);
	return err;
}

static void look_at_faults(void)
{
	tutti_window *w, *h;
	void *gpu, *host;
	tutti *job;

	check(tutti_join(NULL, &job));
	check(tutti_alloc(job, ROOM, -1, &host));
	check(tutti_alloc(job, ROOM, 0, &gpu));
	check(tutti_window_open(job, "w", gpu, ROOM, &w));
	check(tutti_window_open(job, "h", host, ROOM, &h));
	check(tutti_barrier(job, NULL));
	if (!tutti_rank(job)) {
		struct tt_gpu_queue *q = open_queue();
		check(tt_gpu_kernels(0));
		must("a kernel that uses freed memory breaks the GPU", break_gpu(q), -EIO);
		note_text("sentence", tutti_why());
		must("its memory is refused", tutti_put(h, 1, 0, gpu, ROOM, NULL), -EIO);
		tt_gpu_queue_close(q);
	}
	check(tutti_barrier(job, NULL));
	if (tutti_rank(job)) {
		must("another rank's get of it", tutti_get(w, 0, 0, host, ROOM, NULL), -EIO);
		note_text("sentence of another rank", tutti_why());
		must("its own GPU works", tutti_put(h, 1, 0, gpu, ROOM, NULL), 0);
	}
	must("host memory works", tutti_put(h, 1 - tutti_rank(job), 0, host, ROOM, NULL), 0);
	check(tutti_barrier(job, NULL));
	tutti_window_close(w);
	tutti_window_close(h);
	tutti_free(job, gpu);
	tutti_free(job, host);
	tutti_leave(job);
}

/* ---- dma-buf: what adapters register ---- */

static void export_pages(const char *whose, char *at, size_t len)
{
	char what[100];
	uint64_t offset = 0;
	int fd = -1, err = tt_gpu_dma_buf(at, len, &fd, &offset);

	snprintf(what, sizeof what, "a dma-buf of memory of %s", whose);
	note_text(what, err ? tt_why() : "it is exported");
	if (err)
		return;
	must("it begins in the page of the memory", (double)offset, (double)((uintptr_t)at % 4096));
	note("its size", (double)lseek(fd, 0, SEEK_END), "bytes");
	close(fd);
}

static void export_dma_bufs(void)
{
	struct tt_gpu_queue *q = open_queue();
	struct tt_gpu_facts f;
	CUstreamCaptureMode before;
	CUdeviceptr foreign = 0;
	void *ours;

	check(tt_gpu_facts(0, &f));
	if (!f.dma_buf) {
		fprintf(stderr, "the driver exports no dma-buf\n");
		exit(NO_GPU);
	}
	find_free();
	check(tt_gpu_alloc(0, ROOM, &ours));
	check(tt_gpu_enter(0, &before));
	check(tt_gpu_result(0, alloc_memory(&foreign, ROOM), "cuMemAlloc_v2"));
	export_pages("tutti_alloc", ours, ROOM);
	export_pages("tutti_alloc, from within", (char *)ours + 5000, 70000);
	export_pages("cudaMalloc", (char *)foreign, ROOM);
	export_pages("cudaMalloc, from within", (char *)foreign + 5000, 70000);
	free_memory(foreign);
	tt_gpu_leave(before);
	tt_gpu_free(ours);
	tt_gpu_queue_close(q);
}

int main(int argc, char **argv)
{
	const char *no = getenv("TUTTI_GPU");

	part = argc > 1 ? argv[1] : "";
	if (argc > 2)
		large = strtoull(argv[2], NULL, 10);
	if (argc > 3)
		seconds = strtod(argv[3], NULL);
	tt_random_seed(&dice, (uint64_t)getpid());
	tt_gpu_open(no && !strcmp(no, "no") ? "no" : "yes");
	if (!strcmp(part, "facts"))
		find_facts();
	else if (!strcmp(part, "times"))
		take_times();
	else if (!strcmp(part, "right"))
		compare_bits();
	else if (!strcmp(part, "order"))
		look_at_order();
	else if (!strcmp(part, "ipc"))
		share_memory(argv);
	else if (!strcmp(part, "mapping"))
		map_memory();
	else if (!strcmp(part, "torn"))
		look_for_tears();
	else if (!strcmp(part, "streams"))
		look_at_streams();
	else if (!strcmp(part, "faults"))
		look_at_faults();
	else if (!strcmp(part, "dma_buf"))
		export_dma_bufs();
	else
		return fprintf(stderr, "device: no part is named \"%s\"\n", part), 2;
	return wrong != 0;
}
