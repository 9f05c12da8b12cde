/* ways.c - collectives and dense pushes of malloc's memory as they are, and the same results made of one-sided gets
 * from the owner's memory between two barriers, in turn. Over shm such a get is process_vm_readv (strace -f -c shows
 * it).
 *
 * A size is that of the whole vector: of n ranks each has the n-th part as its block. Even ranks push, odd ranks serve,
 * and add what they get in pieces of 256 KiB. A call takes as long as its slowest rank. A row has the median and the
 * least time of the calls and of the gets with their barriers, and call / gets of both: above 1 the gets are faster.
 * Two ranks are pinned, or beside other load the kernel may put both on one core.
 *
 *      cc -O3 -march=native -Iruntime tests/bench/ways.c -o ways $(pkg-config --cflags --libs tutti)
 *      export TUTTI_TRANSPORTS=shm,tcp
 *      TUTTI_PIN=spread TUTTI_PIN_CALLER=yes tutti run -n 2 ./ways [CASE or all [MiB at most [SECONDS a row]]]
 *      tutti run -n 4 ./ways */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <tutti.h>

enum { PIECE = 256 << 10, MOST_ROUNDS = 2000, LEAST_ROUNDS = 15 };

struct bench {
	tutti *job;
	int me, n;
	size_t bytes;            /* of the whole vector */
	float *in, *out, *piece;
	tutti_window *window;    /* over in */
	tutti_table *table;      /* while pushes are measured */
};

struct test {
	const char *name;
	void (*call)(struct bench *), (*gets)(struct bench *);
};

static double seconds(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void check(int err)
{
	if (err) {
		fprintf(stderr, "ways: %s\n", tutti_why());
		exit(1);
	}
}

static size_t block_bytes(const struct bench *b) { return b->bytes / (size_t)b->n; }
static void meet(const struct bench *b) { check(tutti_barrier(b->job, NULL)); }

static void add(float *restrict to, const float *restrict x, const float *restrict y, size_t n)
{
	for (size_t i = 0; i < n; i++)
		to[i] = x[i] + y[i];
}

static void add_to(float *restrict to, const float *restrict x, size_t n)
{
	for (size_t i = 0; i < n; i++)
		to[i] += x[i];
}

/* ---- broadcast, gather, all-gather ---- */

static void broadcast(struct bench *b) { check(tutti_broadcast(b->job, b->me ? b->out : b->in, b->bytes, 0, NULL)); }

static void get_broadcast(struct bench *b)
{
	if (b->me)
		check(tutti_get(b->window, 0, 0, b->out, b->bytes, NULL));
}

static void gather(struct bench *b) { check(tutti_gather(b->job, b->in, block_bytes(b), b->out, 0, NULL)); }
static void allgather(struct bench *b) { check(tutti_allgather(b->job, b->in, block_bytes(b), b->out, NULL)); }

static void get_allgather(struct bench *b)
{
	size_t len = block_bytes(b);

	memcpy((char *)b->out + (size_t)b->me * len, b->in, len);
	for (int k = 1; k < b->n; k++) {
		int r = (b->me + k) % b->n;
		check(tutti_get(b->window, r, 0, (char *)b->out + (size_t)r * len, len, NULL));
	}
}

static void get_gather(struct bench *b)
{
	if (!b->me)
		get_allgather(b);
}

/* ---- reduce-scatter, push ---- */

static void reduce_scatter(struct bench *b)
{
	check(tutti_reduce_scatter(b->job, b->in, b->out, block_bytes(b) / sizeof *b->in, TUTTI_F32, TUTTI_SUM, NULL));
}

static void get_reduce_scatter(struct bench *b)
{
	size_t begin = (size_t)b->me * block_bytes(b), end = begin + block_bytes(b), len;

	for (size_t at = begin; at < end; at += len) {
		float *to = b->out + (at - begin) / sizeof *to;
		len = end - at < PIECE ? end - at : PIECE;
		for (int k = 1; k < b->n; k++) {
			check(tutti_get(b->window, (b->me + k) % b->n, at, b->piece, len, NULL));
			add(to, k == 1 ? b->in + at / sizeof *to : to, b->piece, len / sizeof *to);
		}
	}
}

static void push(struct bench *b)
{
	if (b->me % 2 == 0)
		check(tutti_table_push(b->table, b->in, NULL, NULL));
}

/* The bytes of a table or of `out` that this rank serves. */
static size_t served(const struct bench *b, size_t *end)
{
	size_t range = b->bytes / (size_t)(b->n / 2), begin = (size_t)(b->me / 2) * range;

	*end = begin + (b->me % 2 ? range : 0);
	return begin;
}

static void get_push(struct bench *b)
{
	size_t end, len, at = served(b, &end);

	for (; at < end; at += len) {
		len = end - at < PIECE ? end - at : PIECE;
		for (int worker = 0; worker < b->n; worker += 2) {
			check(tutti_get(b->window, worker, at, b->piece, len, NULL));
			add_to(b->out + at / sizeof *b->out, b->piece, len / sizeof *b->out);
		}
	}
}

static const struct test tests[] = {
	{ "broadcast", broadcast, get_broadcast }, { "gather", gather, get_gather },
	{ "allgather", allgather, get_allgather }, { "reduce-scatter", reduce_scatter, get_reduce_scatter },
	{ "push", push, get_push },
};

/* ---- measuring ---- */

/* Programs compute what they give. Else the reader's cache would have it still, from the round before. */
static void write_anew(const struct bench *b)
{
	volatile float *in = b->in;

	for (size_t i = 0; i < b->bytes / sizeof *in; i += 64 / sizeof *in)
		in[i] = in[i];
}

static double timed(struct bench *b, const struct test *t, int gets)
{
	double begun;

	write_anew(b);
	meet(b);
	begun = seconds();
	if (!gets) {
		t->call(b);
		return seconds() - begun;
	}
	meet(b); /* all vectors are ready */
	t->gets(b);
	meet(b); /* nobody reads them any more */
	return seconds() - begun;
}

/* The call and the gets leave the same in `out`, or of a push in the table. */
static void compare(struct bench *b, const struct test *t)
{
	size_t at = 0, end = b->bytes;
	char *kept = malloc(b->bytes);

	if (!kept)
		exit(1);
	memset(b->out, 0, b->bytes);
	timed(b, t, 0);
	if (b->table) {
		meet(b);
		check(tutti_table_pull(b->table, b->out, NULL));
		at = served(b, &end);
	}
	memcpy(kept, b->out, b->bytes);
	memset(b->out, 0, b->bytes);
	timed(b, t, 1);
	if (memcmp(kept + at, (char *)b->out + at, end - at)) {
		fprintf(stderr, "ways: rank %d: %s of %zu bytes and the gets differ\n", b->me, t->name, b->bytes);
		exit(1);
	}
	free(kept);
}

static int by_value(const void *x, const void *y)
{
	double a = *(const double *)x, b = *(const double *)y;

	return (a > b) - (a < b);
}

static void row(struct bench *b, const struct test *t, double limit)
{
	static double took[2][MOST_ROUNDS];
	double spent = 0;
	uint64_t rounds;

	compare(b, t);
	for (int i = 0; i < 4; i++)
		spent += timed(b, t, i % 2) / 2;
	rounds = (uint64_t)(limit / spent);
	rounds = rounds < LEAST_ROUNDS ? LEAST_ROUNDS : rounds > MOST_ROUNDS ? MOST_ROUNDS : rounds;
	check(tutti_broadcast(b->job, &rounds, sizeof rounds, 0, NULL));
	for (uint64_t i = 0; i < 2 * rounds; i++) {
		int gets = (int)((i + i / 2) % 2); /* either is first in turn */
		took[gets][i / 2] = timed(b, t, gets);
	}
	for (int i = 0; i < 2; i++) {
		check(tutti_allreduce(b->job, took[i], took[i], rounds, TUTTI_F64, TUTTI_MAX, NULL));
		qsort(took[i], rounds, sizeof(double), by_value);
	}
	if (b->me)
		return;
	double call = 1e6 * took[0][rounds / 2], gets = 1e6 * took[1][rounds / 2];
	double least_call = 1e6 * took[0][0], least_gets = 1e6 * took[1][0];
	printf("%-14s %d ranks %6zu KiB %5d rounds  call %9.1f (%9.1f) us  gets %9.1f (%9.1f) us  ratio %.2f (%.2f)\n",
	       t->name, b->n, b->bytes >> 10, (int)rounds, call, least_call, gets, least_gets, call / gets,
	       least_call / least_gets);
	fflush(stdout);
}

static void open_table(struct bench *b)
{
	static const int workers[] = { 0, 2 }, servers[] = { 1, 3 };
	tutti_table_config c = tutti_table_f32(b->bytes / sizeof *b->in, tutti_accumulate());

	c.workers = c.servers = b->n / 2;
	c.worker = workers;
	c.server = servers;
	check(tutti_table_open(b->job, "pushed", &c, &b->table));
}

static void run(struct bench *b, const struct test *t, double limit)
{
	if (t->call == push)
		open_table(b);
	row(b, t, limit);
	meet(b);
	tutti_table_close(b->table);
	b->table = NULL;
	meet(b);
}

static float *vector(size_t bytes, int rank)
{
	float *v = malloc(bytes);

	if (!v)
		exit(1);
	for (size_t i = 0; i < bytes / sizeof *v; i++)
		v[i] = (float)((i + 7 * (size_t)rank) % 64);
	return v;
}

int main(int argc, char **argv)
{
	const char *only = argc > 1 ? argv[1] : "all";
	size_t most = (size_t)(argc > 2 ? atol(argv[2]) : 64) << 20;
	double limit = argc > 3 ? atof(argv[3]) : 1;
	struct bench b = { 0 };

	check(tutti_join(NULL, &b.job));
	b.me = tutti_rank(b.job);
	b.n = tutti_size(b.job);
	if (b.n != 2 && b.n != 4) {
		fprintf(stderr, "ways: takes 2 or 4 ranks\n");
		return 2;
	}
	b.in = vector(most, b.me);
	b.out = vector(most, b.me);
	b.piece = vector(PIECE, b.me);
	check(tutti_window_open(b.job, "in", b.in, most, &b.window));
	for (size_t i = 0; i < sizeof tests / sizeof *tests; i++)
		for (b.bytes = 64 << 10; b.bytes <= most; b.bytes *= 4)
			if (!strcmp(only, "all") || !strcmp(only, tests[i].name))
				run(&b, &tests[i], limit);
	meet(&b);
	tutti_window_close(b.window);
	tutti_leave(b.job);
	free(b.in);
	free(b.out);
	free(b.piece);
	return 0;
}
