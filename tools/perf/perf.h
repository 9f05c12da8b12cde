/* perf.h - what the files of `tutti perf` share
 *
 *   perf.c          the ranks: rank 0 gives orders, all carry them out; one row a size
 *   options.c  the command line
 *   tests.c    the tests, through the public API alone
 *   check.c    whether the bytes and the sums are right
 *   perf_limit*.c   the same shapes over bare sockets, between the same ranks and in the same buffers; limit_shared.c: in bare
 *                   memory, where the wire is that
 *   table.c    a table's pushes and pulls; rows.c: of rows; beside.c: what is called while another worker pushes
 *   memory.c   the kernels that need no wire; update.c: those that are update rules; stream.c: their limit
 *   explain.c  what --explain says
 *   output.c   the table, the JSON lines, the progress bar; plot.c: the picture
 */
#ifndef TT_PERF_H
#define TT_PERF_H
#include "engine/engine.h"
#include "tools/tools.h"
#include "transport/copy.h"
#include <sys/types.h>

enum {
	TT_PERF_WINDOW = 16,          /* operations under way at once in a stream ... */
	TT_PERF_FLIGHT = 256 << 20,   /* ... and bytes, if that is less */
	TT_PERF_BATCHES = 10,         /* ours, limit, ours, limit ... */
	TT_PERF_SAMPLES = 1 << 20,
	TT_PERF_BY_RATE = 64 << 10,   /* puts and gets of more bytes are compared by rate */
	TT_PERF_TICK_US = 1000,       /* how late the background thread may look while the program computes */
	TT_PERF_RANKS = 4096,
	TT_PERF_TABLE_RANKS = 4,      /* of a ring in which each worker is beside each server */
	TT_PERF_VECTORS = 17,         /* of a kernel in memory: --inputs, and one more */
	TT_PERF_THREADS = 65,         /* of a pool, and the one that has the work */
	TT_PERF_LINE = 64,
};

struct tt_perf;

struct tt_perf_test {
	const char *name, *sentence;
	size_t first, last;           /* the sizes without --size */
	bool one_sided;               /* rank 0 acts on rank 1, which waits or computes */
	bool collective;              /* all ranks take part; else 0 and 1 */
	bool streams;                 /* an iteration is a window of operations; always compared by rate */
	int (*ours)(struct tt_perf *);  /* one iteration, as this rank; 0 or -errno */
	int (*limit)(struct tt_perf *); /* over bare sockets, and ... */
	int (*shared)(struct tt_perf *); /* ... in bare memory; NULL: local */
	bool local;                   /* a kernel in each rank's own memory: no wire, and one rank is enough */
	bool table;                   /* the ranks are workers and servers of a table; its kernels are calls */
};

enum { TT_PERF_PUSH = 1, TT_PERF_PULL = 2, TT_PERF_AT_ONCE = 4 /* both, in one call */, TT_PERF_BESIDE = 8 /* while another worker pushes */,
       TT_PERF_SNAPSHOT = 16 /* instead of a pull, which is the limit */, TT_PERF_ROWS = 32 /* of a list of rows */ };

struct tt_perf_kernel {
	const char *test, *name, *sentence;
	int reads, writes;            /* vectors; 0: as many as --inputs says. A rule's state comes on top: it is read and written */
	int apart;                    /* so many of those it writes come after those it reads; the others are the first of these */
	bool scaled;                  /* with factors: not for integers */
	void (*run)(struct tt_perf *);
	bool past;                    /* beside stores past the caches alone */
	tutti_update_rule rule;       /* of an update */
	unsigned calls;               /* of a table: TT_PERF_PUSH, ... */
};

struct tt_perf_options {
	const struct tt_perf_test *test;
	const char *name;             /* of the test, in a row */
	int ranks;                    /* 0: -n was not given */
	size_t first, last;           /* sizes in bytes, doubled from one to the other */
	long iters;                   /* 0: as many as fit in `seconds` */
	double seconds;
	tutti_type type;
	tutti_rule rule;
	const char *type_name, *rule_name;
	bool compute, explain, json;
	bool brought;                 /* allreduce: the vectors are malloc's, not tutti_alloc's */
	const char *transport, *plot, *peer;
	const struct tt_perf_kernel *kernel; /* of local tests; NULL: all of them */
	bool any_type;                /* local tests: --type was not given, so all */
	int inputs;                   /* of kernels that take any number */
	int threads;                  /* update: by so many */
};

struct tt_perf_samples {
	double *at;                   /* microseconds an iteration; NULL: nobody wants them */
	size_t count;
	bool apart;                   /* something that does not count lies between iterations */
	long per, done;               /* iterations a sample is the mean of; those since the last one */
	uint64_t last, spent;         /* when the clock was read; nanoseconds of those done */
	double elapsed;               /* seconds of the last batch */
};

struct tt_perf_way { /* how the limit is done */
	uint64_t chunk;               /* bytes a call */
	uint32_t large;               /* socket buffers of 4 MiB; else the system's own */
	uint32_t block;               /* sleep in the calls; else poll */
	uint32_t past;                /* STREAM, sums in bare memory: stored past the caches */
	uint32_t copy;                /* in bare memory: 0: memcpy; else one more than the tt_copy_way */
};

struct tt_perf_order { /* what rank 0 lets all ranks do next */
	uint32_t what;
	uint32_t limit;               /* the limit; else ours */
	uint64_t bytes, iterations;
	struct tt_perf_way way;
	uint32_t kernel, type;        /* of local tests: which of the test's, of what */
	uint64_t serial;              /* a computing target ends when it finds this, or more, in its memory */
};

struct tt_perf_beside { /* of snapshots, since the row began */
	uint64_t retries, refused;
	uint64_t torn;                /* pulls that were: the limit */
};

struct tt_perf_writer { /* beside ours, beside the limit */
	uint64_t pushes[2], spent[2]; /* nanoseconds */
};

struct tt_perf_row {
	size_t bytes;
	size_t moved;                 /* bytes, by which a rate is counted: a kernel moves several vectors */
	long iters;
	double p50, least, p99;       /* microseconds */
	double limit;                 /* microseconds; 0: not measured */
	double ratio;
	char words[256];              /* what the limit is, or why there is none */
	bool by_rate;
};

struct tt_perf_wire { /* bare sockets to the neighbours in the ring of ranks */
	int right, left;
};

struct tt_perf_shared { /* bare memory */
	struct tt_perf_part **part;   /* each rank's, mapped here; NULL: the wire is another one */
	uint64_t told, heard, met;    /* how often */
	uint64_t patience;            /* nanoseconds */
};

struct tt_perf {
	struct tt_perf_options options;
	const struct tt_perf_test *test;
	tutti *job;
	int rank, size;
	bool crowded;                 /* fewer cores than ranks: nobody may poll */
	bool has_limit;
	const struct tt_perf_kernel *kernel; /* of local tests */
	void *memory[TT_PERF_VECTORS]; /* theirs, `most` bytes each */
	void *vectors[TT_PERF_VECTORS]; /* `bytes` each: first those that the kernel reads */
	struct tt_updater *updater;   /* of a kernel that is a rule: a new one for each row */
	struct tt_copier copier;
	size_t bytes;                 /* of this row */
	size_t most;                  /* of any row */
	int flight;                   /* operations under way at once */
	uint8_t *local, *open;        /* `most` bytes each: the source, and the memory that the window opens */
	_Atomic uint64_t *told;       /* behind those of the window: a word for a computing target ... */
	struct tt_perf_writer *writer; /* ... and what rank 2 says of its pushes */
	tutti_window *window;
	tutti_table *table, *others;  /* others: where another worker pushes meanwhile; NULL: to the same ... */
	void *heap;                   /* ... this delta */
	struct tt_perf_beside beside;
	uint64_t *rows;               /* those of the list, in growing order ... */
	size_t listed;                /* ... so many */
	uint64_t notified[2];         /* by slot */
	tutti_op ops[TT_PERF_WINDOW];
	int started;                  /* of ops */
	struct tt_perf_order order;
	struct tt_perf_samples samples[2]; /* ours, limit */
	struct tt_perf_wire wire[2];  /* with the system's socket buffers, with large ones */
	struct tt_perf_shared shared;
	char transport[16];           /* the wire between rank 0 and rank 1 */
	volatile double sink;         /* what a computing target has computed: nobody wants it, and it is not left out */
};

static inline void tt_perf_mark(struct tt_perf_samples *s) /* an iteration has ended */
{
	uint64_t now;

	if (!s->at || (++s->done < s->per && !s->apart))
		return;
	now = tt_now();
	s->spent += now - s->last;
	s->last = now;
	if (s->done < s->per)
		return;
	if (s->count < TT_PERF_SAMPLES)
		s->at[s->count++] = (double)s->spent * 1e-3 / (double)s->per;
	s->spent = 0;
	s->done = 0;
}

/* options.c */
extern const struct tt_perf_test tt_perf_tests[];
const char *tt_perf_type_name(tutti_type);
int tt_perf_read_options(int argc, char **argv, struct tt_perf_options *); /* < 0: go on; else the exit status */
size_t tt_perf_type_size(tutti_type);
void tt_perf_write_size(char *text, size_t room, size_t bytes); /* "64 MiB" */

/* tests.c: one iteration of each test; the target of one-sided tests; what a batch leaves behind */
int tt_perf_pingpong(struct tt_perf *);
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
int tt_perf_open_table(struct tt_perf *);       /* that of the order, which begins a row; the last row's is closed */
void tt_perf_close_table(struct tt_perf *);
int tt_perf_table(struct tt_perf *);
int tt_perf_fill_table(struct tt_perf *);
int tt_perf_pull_all(struct tt_perf *);         /* what all pushes have come to, where the call itself may not have brought it */

/* rows.c. What is pushed and pulled is a vector of the listed rows, one after the other */
static inline bool tt_perf_is_of_rows(const struct tt_perf *p) { return p->kernel && p->kernel->calls & TT_PERF_ROWS; }
size_t tt_perf_row_bytes(const struct tt_perf *);
size_t tt_perf_moved(const struct tt_perf *);   /* bytes of a call in one direction, of whatever kind */
int tt_perf_list_rows(struct tt_perf *, tutti_table_config *);
size_t tt_perf_place_of(const struct tt_perf *, size_t k); /* where in the table the k-th begins, in bytes */
int tt_perf_call_rows(struct tt_perf *);
void tt_perf_add_rows(const struct tt_perf *, size_t at, const uint8_t *from, size_t len); /* `at`: in the vector; into a table in tt_perf_open() */
void tt_perf_copy_rows(const struct tt_perf *, uint8_t *to, const uint8_t *table, size_t at, size_t len);

/* beside.c */
bool tt_perf_is_beside(const struct tt_perf *); /* is it a call beside another worker's? The limit is then a call, too */
bool tt_perf_is_snapshot(const struct tt_perf *);
bool tt_perf_has_tail(const struct tt_perf *);  /* its slowest count */
bool tt_perf_has_writer(const struct tt_perf *); /* does rank 2 push meanwhile? */
void tt_perf_publish(const struct tt_perf *, tutti_table_config *); /* versions that live longer than a pull of them */
int tt_perf_open_writer(struct tt_perf *, tutti_table_config *); /* what rank 2 pushes, and where; the config: the other table's */
void tt_perf_close_writer(struct tt_perf *);
int tt_perf_beside(struct tt_perf *);
int tt_perf_end_writer(struct tt_perf *);       /* rank 0: it need not push any more */

/* memory.c */
const struct tt_perf_kernel *tt_perf_kernel_of(const char *test, int i); /* NULL: there are fewer */
int tt_perf_reads(const struct tt_perf *); /* vectors of its kernel */
int tt_perf_writes(const struct tt_perf *);
int tt_perf_vectors(const struct tt_perf *); /* all of them */
void *tt_perf_written(const struct tt_perf *, int k); /* the k-th that it writes */
int tt_perf_open_memory(struct tt_perf *);
void tt_perf_close_memory(struct tt_perf *);
int tt_perf_take_kernel(struct tt_perf *); /* that of the order, which begins a row */
int tt_perf_run_kernel(struct tt_perf *);
int tt_perf_open_update(struct tt_perf *); /* from here on update.c */
int tt_perf_states(const struct tt_perf *); /* vectors of state: two for an array that is twice as long as the values */
void tt_perf_run_update(struct tt_perf *);
int tt_perf_check_update(const struct tt_perf *);
void tt_perf_explain_update(const struct tt_perf *, char *text, size_t room);
int tt_perf_raw_stream(struct tt_perf *); /* from here on stream.c */
int tt_perf_stream_ways(const struct tt_perf *, struct tt_perf_way *);
void tt_perf_word_stream(const struct tt_perf *, const struct tt_perf_way *, char *text, size_t room);

/* check.c: 0, or 1 and a sentence in tutti_why: something is wrong */
int tt_perf_fill(struct tt_perf *); /* 0 or -errno */
void tt_perf_fill_numbers(const struct tt_perf *, tutti_type, void *at, size_t bytes, int rank); /* what that rank's vector holds: 1s and 2s, again from the 4th on */
void tt_perf_fill_ones(tutti_type, void *at, size_t bytes);
void tt_perf_clear(struct tt_perf *); /* the vectors of numbers: zeros */
int tt_perf_check(struct tt_perf *);

/* limit.c, limit_reduce.c, limit_table.c */
int tt_perf_open_wires(struct tt_perf *);
void tt_perf_close_wires(struct tt_perf *);
int tt_perf_ways(const struct tt_perf *, struct tt_perf_way *, int room); /* those worth trying for this size */
void tt_perf_word_limit(const struct tt_perf *, const struct tt_perf_way *, char *text, size_t room);
int tt_perf_raw_pingpong(struct tt_perf *);
int tt_perf_raw_put(struct tt_perf *);
int tt_perf_raw_get(struct tt_perf *);
int tt_perf_raw_stream_puts(struct tt_perf *);
int tt_perf_raw_stream_gets(struct tt_perf *);
int tt_perf_raw_allreduce(struct tt_perf *);
int tt_perf_raw_table(struct tt_perf *);
int tt_perf_shared_table(struct tt_perf *); /* in bare memory */
void tt_perf_add(const struct tt_perf *, uint8_t *sum, const uint8_t *in, size_t len);
size_t tt_perf_range(const struct tt_perf *, int server); /* where that server's part of what is moved begins, in bytes */
void tt_perf_word_table(const struct tt_perf *, const struct tt_perf_way *, char *text, size_t room);
const struct tt_perf_wire *tt_perf_wire(const struct tt_perf *);
int tt_perf_lost(int rank, ssize_t result); /* the sentence for a socket to it that failed or ended, and -errno */

/* limit_shared.c */
size_t tt_perf_part_size(size_t most);
int tt_perf_open_shared(struct tt_perf *);
void tt_perf_close_shared(struct tt_perf *);
int tt_perf_shared_ways(const struct tt_perf *, struct tt_perf_way *);
void tt_perf_word_shared(const struct tt_perf *, const struct tt_perf_way *, char *text, size_t room);
uint8_t *tt_perf_local(const struct tt_perf *); /* those that the order works on: ours or the limit's */
uint8_t *tt_perf_open(const struct tt_perf *);
uint8_t *tt_perf_local_of(const struct tt_perf *, int rank); /* another rank's, of the limit */
uint8_t *tt_perf_open_of(const struct tt_perf *, int rank);
void tt_perf_copy(const struct tt_perf *, void *to, const void *from, size_t); /* as the order's way says */
void tt_perf_arrive(struct tt_perf *);                       /* this rank has come once more to where all meet */
int tt_perf_await(const struct tt_perf *, int rank, uint64_t times); /* until that rank has come so often */
int tt_perf_shared_pingpong(struct tt_perf *);
int tt_perf_shared_put(struct tt_perf *);
int tt_perf_shared_get(struct tt_perf *);
int tt_perf_shared_stream_puts(struct tt_perf *);
int tt_perf_shared_stream_gets(struct tt_perf *);
int tt_perf_shared_allreduce(struct tt_perf *);

/* explain.c */
double tt_perf_deadline(const struct tt_perf *); /* the job's, in seconds */
void tt_perf_explain(const struct tt_perf *, const struct tt_perf_row *);

/* output.c, plot.c */
void tt_perf_print_head(const struct tt_perf *);
void tt_perf_print_row(const struct tt_perf *, const struct tt_perf_row *);
void tt_perf_show_progress(const struct tt_perf *, double done); /* 0 to 1; on a terminal only */
int tt_perf_can_plot(const struct tt_perf_options *);  /* before anything is measured, where it will be drawn: 0, or the refusal's exit status */
int tt_perf_plot(const struct tt_perf *, const struct tt_perf_row *, int count); /* the exit status */
#endif
