/* perf.h - what the files of `tutti perf` share
 *
 *   perf.c     the ranks: rank 0 gives orders, all carry them out; one row a size
 *   options.c  the command line
 *   tests.c    the tests, through the public API alone
 *   check.c    are the bytes and the sums right?
 *   baseline*.c   the same shapes over bare sockets, between the same ranks and in the same buffers;
 *                 baseline_shared.c: in bare memory, for the shared-memory transport;
 *                 baseline_verbs.c: by bare queue pairs, for verbs
 *   table.c    a table's pushes and pulls; rows.c: of rows; beside.c: beside another worker's pushes
 *   average.c  gossip; exchanges with a center
 *   publish.c  publishes, fetches and deltas of a publication
 *   gpu.c      memory of GPUs
 *   memory.c   kernels in each rank's own memory; update.c: update rules; stream.c: their baseline
 *   explain.c  the output of --explain
 *   output.c   the table, the JSON lines, the progress bar; plot.c: the picture */
#ifndef TT_PERF_H
#define TT_PERF_H
#include "engine/engine.h"
#include "tools/tools.h"
#include "transport/copy.h"
#include <sys/types.h>
#include <time.h>

enum {
	TT_PERF_WINDOW = 16,          /* operations in flight in a stream ... */
	TT_PERF_FLIGHT = 256 << 20,   /* ... and bytes, if that is less */
	TT_PERF_BATCHES = 10,         /* ours, baseline, ours, baseline ... */
	TT_PERF_SAMPLES = 1 << 20,
	TT_PERF_BY_RATE = 64 << 10,   /* puts and gets of more bytes are compared by rate */
	TT_PERF_TICK_US = 1000,       /* how late the background thread may poll while the program computes */
	TT_PERF_RANKS = 4096,
	TT_PERF_TABLE_RANKS = 4,      /* the largest ring in which each worker is next to each server */
	TT_PERF_PUBLISH_RANKS = 4,    /* a publisher and three readers */
	TT_PERF_VERSIONS = 3,         /* buffers of a publisher */
	TT_PERF_VECTORS = 17,         /* of a kernel in memory: --inputs, and the output */
	TT_PERF_THREADS = 65,         /* a pool's, and the caller */
	TT_PERF_LINE = 64,
};

struct tt_perf;

struct tt_perf_test {
	const char *name, *sentence;
	size_t first, last;           /* the sizes without --size */
	bool one_sided;               /* rank 0 acts on rank 1, which waits in a call or computes */
	bool collective;              /* all ranks take part; else 0 and 1 */
	bool streams;                 /* an iteration is a window of operations; always compared by rate */
	int (*ours)(struct tt_perf *);   /* this rank's part of one iteration; 0 or -errno */
	int (*baseline)(struct tt_perf *);  /* the baseline, over bare sockets, and ... */
	int (*shared)(struct tt_perf *); /* ... in bare memory; NULL: local */
	bool local;                   /* a kernel in each rank's own memory; one rank is enough */
	bool table;                   /* the ranks are workers and servers of a table; a kernel is a call */
	bool gossips;                 /* rank 0 averages rank 1's model into its own */
	bool gpu;                     /* rank 0 acts on a GPU's memory; a kernel is what it does */
	bool publishes;               /* rank 0 publishes or fetches versions; a kernel is which call */
};

enum {
	TT_PERF_PUSH = 1, TT_PERF_PULL = 2,
	TT_PERF_AT_ONCE = 4,   /* both, in one call */
	TT_PERF_BESIDE = 8,    /* while another worker pushes */
	TT_PERF_SNAPSHOT = 16, /* instead of a pull, which is the baseline */
	TT_PERF_ROWS = 32,     /* of a list of rows */
	TT_PERF_CENTER = 64,   /* a worker's exchange with a center, beside a push and pull in one call */
	/* of `gpu`: one of these */
	TT_PERF_GPU_COPY = 0x100, TT_PERF_GPU_BLEND = 0x200, TT_PERF_GPU_SCALE = 0x400, TT_PERF_GPU_DOWN = 0x800,
	TT_PERF_GPU_UP = 0x1000, TT_PERF_GPU_PUT = 0x2000, TT_PERF_GPU_GET = 0x4000, TT_PERF_GPU_FETCH = 0x8000,
	TT_PERF_GPU_GOSSIP = 0x10000,
	/* of `publish` */
	TT_PERF_VERSION = 0x20000, TT_PERF_COMMIT = 0x40000, TT_PERF_FETCH = 0x80000,
	TT_PERF_READERS = 0x100000,   /* a publish while others fetch */
	TT_PERF_DELTA = 0x200000,     /* a commit that keeps a delta */
};

struct tt_perf_kernel {
	const char *test, *name, *sentence;
	int reads, writes;            /* vectors, without a rule's state; 0: --inputs */
	int apart;                    /* so many outputs follow the inputs; the others are the first inputs */
	bool scaled;                  /* with factors: not for integers */
	void (*run)(struct tt_perf *);
	bool past;                    /* the baseline's stores bypass the caches, too */
	tutti_update_rule rule;       /* of an update */
	unsigned calls;               /* of a table: TT_PERF_PUSH, ...; of `gpu` */
};

struct tt_perf_options {
	const struct tt_perf_test *test;
	const char *name;             /* of the test, in a row */
	int ranks;                    /* 0: -n was not given */
	size_t first, last;           /* sizes in bytes, doubled from one to the other */
	long iters;                   /* 0: as many as fit into `seconds` */
	double seconds;
	tutti_type type;
	tutti_rule rule;
	const char *type_name, *rule_name;
	bool compute, explain, json, no_baseline;
	bool brought;                 /* allreduce: vectors from malloc, not tutti_alloc */
	const char *transport, *plot, *peer;
	const struct tt_perf_kernel *kernel; /* of local tests; NULL: all of them */
	bool any_type;                /* local tests: all types, without --type */
	int inputs;                   /* of kernels that take any number */
	int threads;                  /* of update */
	double changed;               /* of publish-delta: percent of the elements */
};

struct tt_perf_samples {
	double *at;                   /* microseconds an iteration; NULL: not wanted */
	size_t count;
	bool apart;                   /* untimed work lies between iterations */
	bool cpu;                     /* processor time of this thread, not time that passes */
	long per, done;               /* iterations in a sample; those since the last sample */
	uint64_t last, spent;         /* the last read of the clock; nanoseconds of those done */
	double elapsed;               /* seconds of the last batch */
};

struct tt_perf_way { /* one way to run the baseline; the best one counts */
	uint64_t chunk;               /* bytes a call */
	uint32_t large;               /* socket buffers of 4 MiB; else the system's default */
	uint32_t block;               /* sleep in the calls; else poll */
	uint32_t past;                /* STREAM, sums in bare memory: stores bypass the caches */
	uint32_t copy;                /* in bare memory: 0: memcpy; else tt_copy_way + 1 */
	uint32_t reads;               /* in bare memory: of others' memory that is not mapped, by process_vm_readv */
};

struct tt_perf_order { /* what all ranks do next, from rank 0 */
	uint32_t what;
	uint32_t baseline;               /* the baseline; else ours */
	uint64_t bytes, iterations;
	struct tt_perf_way way;
	uint32_t kernel, type;        /* of local tests: the index of the kernel, and the type */
	uint64_t serial;              /* a computing target ends when its word is at least this */
};

struct tt_perf_beside { /* of snapshots, since the row began */
	uint64_t retries, refused;
	uint64_t torn;                /* pulls of the baseline */
};

struct tt_perf_writer { /* [0]: beside ours, [1]: beside the baseline */
	uint64_t pushes[2], spent[2]; /* nanoseconds */
};

struct tt_perf_publication { /* of a row */
	tutti_publisher *publisher;   /* NULL: this rank reads, or does nothing */
	tutti_reader *reader;
	tutti_fetched got;
	uint64_t version;             /* the newest */
	size_t changed;               /* elements, from each version to the next */
	void *copy[TT_PERF_VERSIONS]; /* the baseline's buffers ... */
	int newest;                   /* ... and which of them was written last */
};

struct tt_perf_reads { /* of a reader, since the row began */
	uint64_t fetches, overtaken, spent; /* overtaken: how often fetches began anew; spent: nanoseconds */
};

struct tt_perf_delta {
	size_t changed, bytes;        /* elements; 0 bytes: the version has none */
	double ideal;                 /* bytes of the elements, and the entropy of the gaps between them */
};

struct tt_perf_row {
	size_t bytes;
	size_t moved;                 /* bytes for the rate: a kernel moves several vectors */
	long iters;
	double p50, least, p99;       /* microseconds */
	double baseline, baseline_least; /* microseconds; 0: not measured */
	double ratio;
	char words[256];              /* describes the baseline, or why there is none */
};

struct tt_perf_wire { /* bare sockets to the neighbours in the ring */
	int right, left;
};

struct tt_perf_shared { /* bare memory */
	struct tt_perf_part **part;   /* each rank's, mapped here; NULL: another transport is measured */
	uint64_t told, heard, met;    /* counts */
	uint64_t patience;            /* nanoseconds */
	struct tt_perf_reach {
		pid_t pid;
		uint8_t *local;           /* there */
	} *reach;                     /* each rank's `local`, if all may read all; else NULL */
};

struct tt_perf_bare { /* a baseline of another kind, where a transport has one */
	int (*once)(struct tt_perf *);
	int (*ways)(const struct tt_perf *, struct tt_perf_way *);
	void (*word)(const struct tt_perf *, const struct tt_perf_way *, char *text, size_t room);
	void (*close)(struct tt_perf *);
};

struct tt_perf_port { /* of an adapter */
	char name[64], gid[48];       /* "mlx5_0:1"; empty: none is used */
	int gid_index, mtu;
	bool cm; /* librdmacm connects */
};

struct tt_perf {
	struct tt_perf_options options;
	const struct tt_perf_test *test;
	tutti *job;
	int rank, size;
	bool crowded;                 /* fewer cores than ranks: no rank may poll */
	bool has_baseline;
	const struct tt_perf_kernel *kernel; /* of local tests */
	void *memory[TT_PERF_VECTORS]; /* of kernels, `most` bytes each */
	void *vectors[TT_PERF_VECTORS]; /* `bytes` each: first those that the kernel reads */
	struct tt_updater *updater;   /* of an update rule: a new one for each row */
	struct tt_copier copier;
	size_t bytes;                 /* of this row */
	size_t most;                  /* of any row */
	int flight;                   /* operations in flight */
	uint8_t *local, *open;        /* `most` bytes each: the source, and the window */
	_Atomic uint64_t *told;       /* in the window, behind the bytes: a word for a computing target ... */
	struct tt_perf_writer *writer; /* ... rank 2's figures ... */
	struct tt_perf_reads *reads;  /* ... and each reader's */
	tutti_window *window;
	tutti_table *table, *others;  /* others: the table of the other worker's pushes; NULL: the same */
	tutti_gossip *gossip;
	struct tt_perf_gpu *gpu;
	struct tt_perf_publication publication;
	bool checking;                /* this iteration is not timed, but checked */
	tutti_center *center;
	void *heap;                   /* the other worker's delta */
	struct tt_perf_beside beside;
	uint64_t *rows;               /* the list, in ascending order ... */
	size_t listed;                /* ... and its length */
	uint64_t notified[2];         /* by slot */
	tutti_op ops[TT_PERF_WINDOW];
	int started;                  /* of ops */
	struct tt_perf_order order;
	struct tt_perf_samples samples[2]; /* ours, baseline */
	struct tt_perf_wire wire[2];  /* with default socket buffers, with large ones */
	struct tt_perf_shared shared;
	const struct tt_perf_bare *bare; /* NULL: sockets or memory */
	struct tt_perf_queue *queue;  /* verbs */
	struct tt_perf_port ports[2]; /* rank 0's and rank 1's */
	const char *lacks;            /* why it has no baseline, or NULL */
	char transport[16];           /* between rank 0 and rank 1 */
	volatile double sink;         /* keeps the compiler from removing a computing target's work */
};

static inline uint64_t tt_perf_clock(const struct tt_perf_samples *s)
{
	struct timespec t;

	if (!s->cpu)
		return tt_now();
	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
	return (uint64_t)t.tv_sec * 1000 * TT_MS + (uint64_t)t.tv_nsec;
}

static inline void tt_perf_mark(struct tt_perf_samples *s) /* an iteration has ended */
{
	uint64_t now;

	if (!s->at || (++s->done < s->per && !s->apart))
		return;
	now = tt_perf_clock(s);
	s->spent += now - s->last;
	s->last = now;
	if (s->done < s->per)
		return;
	if (s->count < TT_PERF_SAMPLES)
		s->at[s->count++] = (double)s->spent * 1e-3 / (double)s->per;
	s->spent = 0;
	s->done = 0;
}

/* perf.c */
int tt_perf_measure(const struct tt_perf_options *, tutti *job); /* every rank calls it; the exit status */

/* options.c */
extern const struct tt_perf_test tt_perf_tests[];
const char *tt_perf_type_name(tutti_type);
int tt_perf_read_options(int argc, char **argv, struct tt_perf_options *); /* < 0: continue; else the exit status */
size_t tt_perf_type_size(tutti_type);
bool tt_perf_is_whole(tutti_type);
bool tt_perf_is_small(tutti_type); /* of one byte: for collectives alone */
void tt_perf_write_size(char *text, size_t room, size_t bytes); /* "64 MiB" */

/* tests.c: one iteration of each test; the target of one-sided tests; the end of a batch */
int tt_perf_pingpong(struct tt_perf *);
int tt_perf_message(struct tt_perf *);
int tt_perf_put(struct tt_perf *);
int tt_perf_get(struct tt_perf *);
int tt_perf_stream_puts(struct tt_perf *);
int tt_perf_stream_gets(struct tt_perf *);
int tt_perf_allreduce(struct tt_perf *);
int tt_perf_be_target(struct tt_perf *);
int tt_perf_end_target(struct tt_perf *);
int tt_perf_finish(struct tt_perf *);

/* table.c */
bool tt_perf_is_server(const struct tt_perf *); /* this rank */
int tt_perf_servers(const struct tt_perf *);    /* how many there are */
int tt_perf_workers(const struct tt_perf *);
int tt_perf_open_table(struct tt_perf *);       /* at the begin of a row; closes the last row's table */
void tt_perf_close_table(struct tt_perf *);
int tt_perf_table(struct tt_perf *);
int tt_perf_fill_table(struct tt_perf *);
int tt_perf_pull_all(struct tt_perf *);         /* the sum of all pushes, for the check */

/* rows.c. A call moves a vector of the listed rows, one after the other */
static inline bool tt_perf_is_of_rows(const struct tt_perf *p) { return p->kernel && p->kernel->calls & TT_PERF_ROWS; }
size_t tt_perf_row_bytes(const struct tt_perf *);
size_t tt_perf_moved(const struct tt_perf *);   /* bytes of any call in one direction */
int tt_perf_list_rows(struct tt_perf *, tutti_table_config *);
size_t tt_perf_place_of(const struct tt_perf *, size_t k); /* offset of the k-th row in the table, in bytes */
int tt_perf_call_rows(struct tt_perf *);
/* Adds rows, from offset `at` of the vector on, to the table in tt_perf_open(); and copies them out of it. */
void tt_perf_add_rows(const struct tt_perf *, size_t at, const uint8_t *from, size_t len);
void tt_perf_copy_rows(const struct tt_perf *, uint8_t *to, const uint8_t *table, size_t at, size_t len);

/* beside.c */
bool tt_perf_is_beside(const struct tt_perf *); /* a call beside another worker's; the baseline is a call, too */
bool tt_perf_is_snapshot(const struct tt_perf *);
bool tt_perf_has_tail(const struct tt_perf *);  /* its slowest iterations count */
bool tt_perf_has_writer(const struct tt_perf *); /* does rank 2 push meanwhile? */
void tt_perf_publish(const struct tt_perf *, tutti_table_config *); /* versions that live longer than a pull */
int tt_perf_open_writer(struct tt_perf *, tutti_table_config *); /* rank 2's delta and table, which has this config */
void tt_perf_close_writer(struct tt_perf *);
int tt_perf_beside(struct tt_perf *);
int tt_perf_end_writer(struct tt_perf *);       /* rank 0 tells rank 2 to stop */

/* average.c */
bool tt_perf_is_elastic(const struct tt_perf *); /* an exchange with a center, and not its baseline */
int tt_perf_open_center(struct tt_perf *, const tutti_table_config *); /* with these servers */
void tt_perf_close_center(struct tt_perf *);
int tt_perf_fill_center(struct tt_perf *);
int tt_perf_exchange(struct tt_perf *);
static inline bool tt_perf_is_gossip(const struct tt_perf *p) { return p->test->gossips; }
int tt_perf_open_gossip(struct tt_perf *);      /* at the begin of a row; closes the last row's */
int tt_perf_open_gossip_of(struct tt_perf *, const tutti_tensor *model); /* likewise, of a model of the caller's */
void tt_perf_close_gossip(struct tt_perf *);
int tt_perf_gossip(struct tt_perf *);
const void *tt_perf_averaged(const struct tt_perf *);
int tt_perf_raw_gossip(struct tt_perf *);
int tt_perf_shared_gossip(struct tt_perf *);

/* gpu.c */
int tt_perf_open_gpu(struct tt_perf *);
void tt_perf_close_gpu(struct tt_perf *);
int tt_perf_gpu(struct tt_perf *);
int tt_perf_raw_gpu(struct tt_perf *);
bool tt_perf_computes_on_gpu(const struct tt_perf_kernel *); /* on elements; else it moves bytes */
bool tt_perf_is_beside_gpu(const struct tt_perf_kernel *); /* has it a baseline? */
size_t tt_perf_moved_gpu(const struct tt_perf *);          /* bytes read and written */
void tt_perf_word_gpu(const struct tt_perf *, char *text, size_t room);
int tt_perf_fill_gpu(struct tt_perf *);
int tt_perf_check_gpu(struct tt_perf *);

/* publish.c */
bool tt_perf_is_fetch(const struct tt_perf *);  /* a row of publish-fetch, and so on */
bool tt_perf_has_readers(const struct tt_perf *);
bool tt_perf_has_deltas(const struct tt_perf *);
bool tt_perf_is_beside_publication(const struct tt_perf_kernel *); /* has it a baseline? */
int tt_perf_open_publication(struct tt_perf *); /* at the begin of a row; closes the last row's */
void tt_perf_close_publication(struct tt_perf *);
int tt_perf_publication(struct tt_perf *);
int tt_perf_raw_publication(struct tt_perf *);
int tt_perf_shared_publication(struct tt_perf *);
int tt_perf_read_meanwhile(struct tt_perf *);   /* a reader, until rank 0 has published enough ... */
int tt_perf_end_readers(struct tt_perf *);      /* ... and says so */
int tt_perf_check_publication(struct tt_perf *);
void tt_perf_word_publication(const struct tt_perf *, const struct tt_perf_way *, char *text, size_t room);
struct tt_perf_reads tt_perf_all_reads(const struct tt_perf *); /* of all readers; the time of the slowest */
struct tt_perf_delta tt_perf_last_delta(const struct tt_perf *);

/* memory.c */
const struct tt_perf_kernel *tt_perf_kernel_of(const char *test, int i); /* the i-th; NULL: none */
int tt_perf_reads(const struct tt_perf *); /* vectors of its kernel */
int tt_perf_writes(const struct tt_perf *);
int tt_perf_vectors(const struct tt_perf *); /* all of them */
void *tt_perf_written(const struct tt_perf *, int k); /* the k-th output */
int tt_perf_open_memory(struct tt_perf *);
void tt_perf_close_memory(struct tt_perf *);
int tt_perf_take_kernel(struct tt_perf *); /* at the begin of a row */
int tt_perf_run_kernel(struct tt_perf *);
int tt_perf_open_update(struct tt_perf *); /* from here on update.c */
int tt_perf_states(const struct tt_perf *); /* in vectors: f32 state of 16-bit values counts twice */
void tt_perf_run_update(struct tt_perf *);
int tt_perf_check_update(const struct tt_perf *);
void tt_perf_explain_update(const struct tt_perf *, char *text, size_t room);
int tt_perf_raw_stream(struct tt_perf *); /* from here on stream.c */
int tt_perf_stream_ways(const struct tt_perf *, struct tt_perf_way *);
void tt_perf_word_stream(const struct tt_perf *, const struct tt_perf_way *, char *text, size_t room);

/* check.c: 0, or 1 and a sentence in tutti_why if a result is wrong */
int tt_perf_fill(struct tt_perf *); /* 0 or -errno */
/* The vector of a rank: 1s and 2s, with a period of three. */
void tt_perf_fill_numbers(const struct tt_perf *, tutti_type, void *at, size_t bytes, int rank);
void tt_perf_fill_ones(tutti_type, void *at, size_t bytes);
void tt_perf_clear(struct tt_perf *); /* zeros the vectors of numbers */
int tt_perf_check(struct tt_perf *);

/* baseline.c, baseline_reduce.c, baseline_table.c */
int tt_perf_open_wires(struct tt_perf *);
void tt_perf_close_wires(struct tt_perf *);
int tt_perf_ways(const struct tt_perf *, struct tt_perf_way *, int room); /* all worth trying for this size */
void tt_perf_word_baseline(const struct tt_perf *, const struct tt_perf_way *, char *text, size_t room);
int tt_perf_raw_pingpong(struct tt_perf *);
int tt_perf_raw_put(struct tt_perf *);
int tt_perf_raw_get(struct tt_perf *);
int tt_perf_raw_stream_puts(struct tt_perf *);
int tt_perf_raw_stream_gets(struct tt_perf *);
int tt_perf_raw_allreduce(struct tt_perf *);
int tt_perf_raw_table(struct tt_perf *);
int tt_perf_shared_table(struct tt_perf *); /* in bare memory */
void tt_perf_add(const struct tt_perf *, uint8_t *sum, const uint8_t *in, size_t len);
size_t tt_perf_range(const struct tt_perf *, int server); /* offset of that server's range, in bytes */
void tt_perf_word_table(const struct tt_perf *, const struct tt_perf_way *, char *text, size_t room);
const struct tt_perf_wire *tt_perf_wire(const struct tt_perf *);
int tt_perf_lost(int rank, ssize_t result); /* reports a failed socket; -errno */

/* baseline_shared.c */
size_t tt_perf_part_size(size_t most);
int tt_perf_open_shared(struct tt_perf *);
void tt_perf_close_shared(struct tt_perf *);
int tt_perf_shared_ways(const struct tt_perf *, struct tt_perf_way *);
void tt_perf_word_shared(const struct tt_perf *, const struct tt_perf_way *, char *text, size_t room);
uint8_t *tt_perf_local(const struct tt_perf *); /* of the order: ours or the baseline's */
uint8_t *tt_perf_open(const struct tt_perf *);
uint8_t *tt_perf_local_of(const struct tt_perf *, int rank); /* another rank's, of the baseline */
uint8_t *tt_perf_open_of(const struct tt_perf *, int rank);
void tt_perf_copy(const struct tt_perf *, void *to, const void *from, size_t); /* in the order's way */
void tt_perf_arrive(struct tt_perf *);                       /* counts an arrival at the meeting point */
int tt_perf_await(const struct tt_perf *, int rank, uint64_t times); /* until that rank has arrived so often */
int tt_perf_shared_pingpong(struct tt_perf *);
int tt_perf_shared_put(struct tt_perf *);
int tt_perf_shared_get(struct tt_perf *);
int tt_perf_shared_stream_puts(struct tt_perf *);
int tt_perf_shared_stream_gets(struct tt_perf *);
int tt_perf_shared_allreduce(struct tt_perf *);

/* baseline_verbs.c */
int tt_perf_open_verbs(struct tt_perf *); /* finds the ports; a baseline for tests that move bytes one by one */

/* explain.c */
double tt_perf_silence(const struct tt_perf *); /* the job's, in seconds */
void tt_perf_explain(const struct tt_perf *, const struct tt_perf_row *);

/* output.c, plot.c */
bool tt_perf_has_busbw(const struct tt_perf *);
void tt_perf_print_head(const struct tt_perf *);
int tt_perf_write_error(void); /* an errno if rows could not be written; EPIPE: the reader has left */
void tt_perf_print_row(const struct tt_perf *, const struct tt_perf_row *);
void tt_perf_show_progress(const struct tt_perf *, double done); /* 0 to 1; on a terminal only */
int tt_perf_can_plot(const struct tt_perf_options *);  /* checked before measuring: 0, or an exit status */
int tt_perf_plot(const struct tt_perf *, const struct tt_perf_row *, int count); /* the exit status */
#endif
