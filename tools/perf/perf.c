/* perf.c - `tutti perf` measures a job's operations, and beside each, in the same run, a baseline over bare sockets or
 * in memory
 *
 * Rank 0 broadcasts orders, and every rank carries them out: check once, find out how long an iteration takes, then
 * batch after batch, ours and the baseline in turn, so that both see the same machine. Rank 0's clock counts. */
#include "engine/engine.h"
#include "member/member.h"
#include "tools/perf/perf.h"
#include "topology/topology.h"
#include "transport/shm/shm.h"
#include "transport/tcp/tcp.h"
#ifdef HAVE_VERBS
#include "transport/verbs/verbs.h"
#endif
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { CHECK = 1, BATCH, END };
enum {
	WAYS_MAX = 32,
	FINALISTS = 4,
	FINAL_ROUNDS = 3,
	TRIAL_MS = 20,    /* the least time of the trial that sets the iterations of a batch */
	TRIALS_MAX = 1000000,
	SAMPLE_NS = 5000, /* shorter iterations are timed in groups, since the clock takes time, too */
	WARM_MAX = 100,
	WARM_BYTES = 16 << 20,
	PAGE = 4096,
};

/* One order. */

/* An iteration of milliseconds gains nothing from a warm-up. */
static long warm_iterations(const struct tt_perf *p)
{
	return p->bytes >= WARM_BYTES ? 0 : (long)tt_min(WARM_MAX, p->order.iterations / 20 + 1);
}

/* Over bare sockets a rank may run ahead, and then finds half of its next iteration done. So all begin together. */
static int meet(struct tt_perf *p, struct tt_perf_samples *s)
{
	int err = tutti_barrier(p->job, NULL);

	s->last = tt_perf_clock(s);
	return err;
}

static int repeat(struct tt_perf *p, int (*once)(struct tt_perf *), long warm, long iterations)
{
	struct tt_perf_samples *s = &p->samples[p->order.baseline];
	uint64_t begun;
	int err = 0;

	for (long i = 0; i < warm && !err; i++)
		err = once(p);
	s->cpu = tt_perf_has_readers(p);
	begun = tt_now();
	s->last = tt_perf_clock(s);
	s->done = 0;
	s->spent = 0;
	s->apart = p->test->collective || (p->test->table && tt_perf_workers(p) > 1 && !tt_perf_is_beside(p));
	for (long i = 0; i < iterations && !err; i++) {
		if (s->apart && (err = meet(p, s)))
			break;
		err = once(p);
		tt_perf_mark(s);
	}
	s->elapsed = (double)(tt_now() - begun) * 1e-9;
	return err;
}

static int (*baseline_of(const struct tt_perf *p))(struct tt_perf *)
{
	return p->bare ? p->bare->once : p->shared.part ? p->test->shared : p->test->baseline;
}

static int act(struct tt_perf *p, long warm, long iterations)
{
	const struct tt_perf_test *t = p->test;
	bool baseline = p->order.baseline, one_sided = t->one_sided && !baseline;
	bool read = tt_perf_has_readers(p) && !baseline;
	int err, end = 0;

	if (read && p->rank)
		return tt_perf_read_meanwhile(p);
	if (!t->collective && !t->table && p->rank > 1)
		return 0;
	if (one_sided && p->rank == 1)
		return tt_perf_be_target(p);
	err = repeat(p, baseline ? baseline_of(p) : t->ours, warm, iterations);
	if (!baseline)
		end = tt_perf_finish(p);
	if (one_sided && !err)
		err = read ? tt_perf_end_readers(p) : tt_perf_end_target(p);
	if (tt_perf_has_writer(p) && !p->rank && !err)
		err = tt_perf_end_writer(p);
	return err ? err : end;
}

/* Tells all ranks whether one has found an error; that rank has printed it. */
static int agree(struct tt_perf *p, int verdict)
{
	int8_t mine = verdict > 0, all[TT_PERF_RANKS];
	int err = tutti_gather(p->job, &mine, sizeof mine, all, -1, NULL);

	for (int r = 0; r < p->size && !err; r++)
		err = all[r];
	return err;
}

static int check(struct tt_perf *p)
{
	const char *whose = p->order.baseline ? " of the baseline" : "";
	int err, verdict;

	if ((err = tt_perf_fill(p)) || (err = tutti_barrier(p->job, NULL)) || (err = act(p, 0, 1)) ||
	    (err = tutti_barrier(p->job, NULL)))
		return err;
	if ((verdict = tt_perf_check(p)) < 0)
		return verdict;
	if (verdict > 0)
		tt_tool_refuse("perf", "rank %d, %s%s: %s", p->rank, p->options.name, whose, tt_why());
	err = agree(p, verdict);
	if (p->test->collective || p->test->table)
		tt_perf_clear(p); /* sums of sums would soon be infinite */
	return err;
}

static bool has_kernels(const struct tt_perf_test *t) { return t->local || t->table || t->gpu || t->publishes; }

/* A broadcast does not wait for its receivers: the barrier keeps ranks from the next order until all have ended.
 * Readers send their figures after rank 0 has ended: the other barrier brings them before the row is printed. */
static int obey(struct tt_perf *p)
{
	int err = tutti_barrier(p->job, NULL);

	p->bytes = p->order.bytes;
	p->flight = (int)tt_max(2, tt_min(TT_PERF_WINDOW, TT_PERF_FLIGHT / p->bytes));
	if (err)
		return err;
	if (has_kernels(p->test) && p->order.what == CHECK && !p->order.baseline && (err = tt_perf_take_kernel(p)))
		return err;
	p->checking = p->order.what == CHECK;
	if (p->checking)
		return check(p);
	err = act(p, warm_iterations(p), (long)p->order.iterations);
	return err || p->order.baseline || !tt_perf_has_readers(p) ? err : tutti_barrier(p->job, NULL);
}

/* Rank 0 to all, itself included. */
static int give(struct tt_perf *p, uint32_t what, bool baseline, long iterations)
{
	int err;

	p->order.what = what;
	p->order.baseline = baseline;
	p->order.iterations = (uint64_t)iterations;
	p->order.serial++;
	err = tutti_broadcast(p->job, &p->order, sizeof p->order, 0, NULL);
	return err || what == END ? err : obey(p);
}

static int serve(struct tt_perf *p)
{
	int err = 0;

	while (!err) {
		err = tutti_broadcast(p->job, &p->order, sizeof p->order, 0, NULL);
		if (!err && p->order.what == END)
			break;
		if (!err)
			err = obey(p);
	}
	return err;
}

/* One row, as rank 0. */

static int compare(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return x < y ? -1 : x > y;
}

static double batch_seconds(const struct tt_perf *p)
{
	return p->options.seconds / (p->has_baseline ? 2 : 1) / TT_PERF_BATCHES;
}

/* Seconds an iteration. */
static int try_out(struct tt_perf *p, bool baseline, double *each)
{
	long most = p->options.iters ? p->options.iters / TT_PERF_BATCHES : TRIALS_MAX;
	double enough = fmin(TRIAL_MS * 1e-3, batch_seconds(p));
	int err = 0;

	p->samples[baseline].per = INT32_MAX; /* no sample: only the whole */
	for (long n = 1; !err; n *= 4) {
		err = give(p, BATCH, baseline, n);
		*each = p->samples[baseline].elapsed / (double)n;
		if (p->samples[baseline].elapsed >= enough || n >= most)
			break;
	}
	return err;
}

struct trial {
	struct tt_perf_way way;
	double each[FINAL_ROUNDS]; /* seconds an iteration */
};

static int by_first(const void *a, const void *b)
{
	return compare(((const struct trial *)a)->each, ((const struct trial *)b)->each);
}

static int by_median(const void *a, const void *b)
{
	return compare(&((const struct trial *)a)->each[FINAL_ROUNDS / 2],
	               &((const struct trial *)b)->each[FINAL_ROUNDS / 2]);
}

static int try_ways(struct tt_perf *p, struct trial *trials, int n, int round)
{
	int err = 0;

	for (int i = 0; i < n && !err; i++) {
		p->order.way = trials[i].way;
		err = try_out(p, true, &trials[i].each[round]);
	}
	return err;
}

/* Finds the best way for this size: tries all once, and the best ones some more times, in turn. */
static int choose_way(struct tt_perf *p)
{
	struct tt_perf_way ways[WAYS_MAX];
	struct trial trials[WAYS_MAX] = { 0 };
	int n = tt_perf_ways(p, ways, WAYS_MAX), finalists = n < FINALISTS ? n : FINALISTS, err = 0;

	for (int i = 0; i < n; i++)
		trials[i].way = ways[i];
	if (n > 1 && !(err = try_ways(p, trials, n, 0))) {
		qsort(trials, (size_t)n, sizeof *trials, by_first);
		for (int round = 0; round < FINAL_ROUNDS && !err; round++)
			err = try_ways(p, trials, finalists, round);
		for (int i = 0; i < finalists; i++)
			qsort(trials[i].each, FINAL_ROUNDS, sizeof(double), compare);
		qsort(trials, (size_t)finalists, sizeof *trials, by_median);
	}
	p->order.way = trials[0].way;
	return err;
}

static long batch_size(const struct tt_perf *p, double each)
{
	double n = p->options.iters ? (double)(p->options.iters + TT_PERF_BATCHES - 1) / TT_PERF_BATCHES
		                          : batch_seconds(p) / each;

	return n < 1 ? 1 : n > 1e8 ? (long)1e8 : (long)n;
}

/* Into how many parts a batch is cut: ranks without a part in it, or that end early, wait in a single call. */
static long count_parts(const struct tt_perf *p, const long batch[2], const double each[2], int sides)
{
	double longest = fmin(1, tt_perf_silence(p) / 8), parts = 1;

	for (int side = 0; side < sides; side++)
		parts = fmax(parts, ceil((double)batch[side] * each[side] / longest));
	for (int side = 0; side < sides; side++)
		parts = fmin(parts, (double)batch[side]);
	return (long)parts;
}

/* There is room for the samples of all batches, so that all count alike. */
static void prepare_samples(struct tt_perf_samples *s, double each, long batch, long batches, bool singly)
{
	double per = singly || s->apart || each * 1e9 >= SAMPLE_NS ? 1 : ceil(2 * SAMPLE_NS / (each * 1e9));

	per = fmax(per, ceil((double)batch * (double)batches / TT_PERF_SAMPLES));
	s->count = 0;
	s->per = (long)(per < 1 ? 1 : per > (double)batch ? (double)batch : per);
}

static int measure(struct tt_perf *p, struct tt_perf_row *row, double done, double share)
{
	double each[2] = { 0 };
	long batch[2] = { 0 }, batches = TT_PERF_BATCHES, parts;
	int sides = p->has_baseline ? 2 : 1, err = 0;

	if (p->options.iters && p->options.iters < batches)
		batches = p->options.iters;
	for (int side = 0; side < sides && !err; side++) {
		if ((err = try_out(p, side, &each[side])))
			return err;
		batch[side] = batch_size(p, each[side]);
	}
	parts = count_parts(p, batch, each, sides);
	batches *= parts;
	for (int side = 0; side < sides; side++) {
		batch[side] = (batch[side] + parts - 1) / parts;
		prepare_samples(&p->samples[side], each[side], batch[side], batches, tt_perf_is_beside(p));
	}
	for (long b = 0; b < batches && !err; b++) {
		tt_perf_show_progress(p, done + share * (double)b / (double)batches);
		for (int side = 0; side < sides && !err; side++)
			err = give(p, BATCH, side, batch[side]);
	}
	row->iters = batch[0] * batches;
	return err;
}

static double quantile(const struct tt_perf_samples *s, double q)
{
	return s->count ? s->at[(size_t)(q * (double)(s->count - 1) + 0.5)] : 0;
}

static double mean(const struct tt_perf_samples *s)
{
	double sum = 0;

	for (size_t i = 0; i < s->count; i++)
		sum += s->at[i];
	return s->count ? sum / (double)s->count : 0;
}

/* The rate of delivered bytes: repeated reads cost time. */
static void evaluate_goodput(const struct tt_perf *p, struct tt_perf_row *row)
{
	row->baseline = mean(&p->samples[1]);
	row->ratio = row->baseline / mean(&p->samples[0]);
}

static void evaluate(struct tt_perf *p, struct tt_perf_row *row)
{
	bool one_way = p->test->one_sided || p->test->collective || p->test->table;
	double half = one_way ? 1 : 0.5; /* a ping-pong is a round trip */
	double part = p->test->streams ? 1.0 / p->flight : half;
	bool tail = tt_perf_has_tail(p);
	double tick = p->options.compute && !p->shared.part ? TT_PERF_TICK_US : 0; /* memory needs no target */

	for (int side = 0; side < 2; side++)
		qsort(p->samples[side].at, p->samples[side].count, sizeof(double), compare);
	row->p50 = quantile(&p->samples[0], 0.5) * part;
	row->least = quantile(&p->samples[0], 0) * part;
	row->p99 = quantile(&p->samples[0], 0.99) * part;
	row->moved = p->test->local ? row->bytes * (size_t)(tt_perf_reads(p) + tt_perf_writes(p)) :
	             p->test->gpu   ? tt_perf_moved_gpu(p) :
	             p->test->publishes && !tt_perf_is_beside_publication(p->kernel) ? 0 : /* a commit moves no bytes */
	                              tt_perf_moved(p);
	if (p->has_baseline) {
		row->baseline = (quantile(&p->samples[1], tail ? 0.99 : 0.5) + tick) * part;
		row->baseline_least = quantile(&p->samples[1], 0) * part;
		row->ratio = row->baseline / (tail ? row->p99 : row->p50);
		if (tt_perf_is_snapshot(p))
			evaluate_goodput(p, row);
		tt_perf_word_baseline(p, &p->order.way, row->words, sizeof row->words);
	} else {
		snprintf(row->words, sizeof row->words, "not measured%s", p->lacks ? p->lacks : "");
	}
}

static int run_row(struct tt_perf *p, struct tt_perf_row *row, double done, double share)
{
	int err;

	p->order.bytes = row->bytes;
	p->order.way = (struct tt_perf_way){ .chunk = TT_PERF_BY_RATE, .block = p->crowded || p->options.compute };
	tt_perf_show_progress(p, done);
	if ((err = give(p, CHECK, false, 1)) || (p->has_baseline && (err = give(p, CHECK, true, 1))))
		return err;
	if (p->has_baseline && (err = choose_way(p)))
		return err;
	if ((err = measure(p, row, done, share)))
		return err;
	evaluate(p, row);
	tt_perf_show_progress(p, 1);
	tt_perf_print_row(p, row);
	return 0;
}

/* All rows: sizes are doubled up to the last one. Local tests have rows for each kernel and type. */

static int count_rows(const struct tt_perf_options *o)
{
	int n = 1;

	for (size_t bytes = o->first; bytes < o->last; bytes *= 2)
		n++;
	return n;
}

static bool is_wanted(const struct tt_perf *p, const struct tt_perf_options *o, const struct tt_perf_kernel *k,
                      tutti_type type)
{
	if (k->calls & TT_PERF_BESIDE && p->size < 3)
		return false; /* no other worker */
	if (k->calls & TT_PERF_SNAPSHOT && tt_perf_type_size(type) == 2)
		return false; /* they cannot count all pushes */
	if (tt_perf_is_small(type) && (o->test->gpu || (o->rule == TUTTI_AVERAGE && type == TUTTI_BOOL)))
		return false;
	if (o->test->gpu && !tt_perf_computes_on_gpu(k))
		return (!o->kernel || o->kernel == k) && type == TUTTI_F32; /* it moves bytes */
	return (!o->kernel || o->kernel == k) && (o->any_type || o->type == type) &&
	       !(tt_perf_is_whole(type) && k->scaled);
}

static int run_kernel(struct tt_perf *p, const struct tt_perf_options *o, uint32_t kernel, tutti_type type)
{
	const struct tt_perf_kernel *k = tt_perf_kernel_of(o->test->name, (int)kernel);
	struct tt_perf_row row = { .bytes = 0 };
	size_t bytes = o->first;
	char name[64];
	int err = 0;

	snprintf(name, sizeof name, "%s-%s", o->test->name, k->name);
	p->options.name = name;
	if (o->any_type)
		p->options.type_name = o->test->gpu && !tt_perf_computes_on_gpu(k) ? "byte" : tt_perf_type_name(type);
	if (o->test->gpu)
		p->has_baseline = !o->no_baseline && tt_perf_is_beside_gpu(k);
	if (o->test->publishes)
		p->has_baseline = !o->no_baseline && tt_perf_is_beside_publication(k);
	p->order.kernel = kernel;
	p->order.type = type;
	for (int i = 0; i < count_rows(o) && !err && !tt_perf_write_error(); i++, bytes *= 2) {
		row.bytes = tt_min(bytes, o->last);
		err = run_row(p, &row, 0, 1);
	}
	p->options.name = o->name;
	return err;
}

static int conduct_kernels(struct tt_perf *p)
{
	const struct tt_perf_options o = p->options;
	const struct tt_perf_kernel *k;
	int err = 0;

	tt_perf_print_head(p);
	for (int i = 0; (k = tt_perf_kernel_of(o.test->name, i)); i++)
		for (tutti_type type = TUTTI_F32; type <= TUTTI_BOOL && !err && !tt_perf_write_error(); type++)
			if (is_wanted(p, &o, k, type))
				err = run_kernel(p, &o, (uint32_t)i, type);
	return err ? err : give(p, END, false, 0);
}

static int conduct(struct tt_perf *p)
{
	int n = count_rows(&p->options), err = 0, status = 0;
	struct tt_perf_row *rows = calloc((size_t)n, sizeof *rows);
	size_t bytes = p->options.first;

	if (!rows)
		return tt_fail(-ENOMEM, "no memory for %d rows", n);
	tt_perf_print_head(p);
	for (int i = 0; i < n && !err && !tt_perf_write_error(); i++, bytes *= 2) {
		rows[i].bytes = tt_min(bytes, p->options.last);
		err = run_row(p, &rows[i], (double)i / n, 1.0 / n);
	}
	if (!err)
		err = give(p, END, false, 0);
	if (!err && p->options.plot)
		status = tt_perf_plot(p, rows, n);
	free(rows);
	return err ? err : status;
}

/* The rank. */

/* Pins each rank to a core if there are enough, or as TUTTI_PIN says. */
static int pin(struct tt_perf *p)
{
	struct tt_job *job = p->job->job;
	int err;

	p->crowded = tt_cpus_count(&job->place.allowed) < job->place.ranks;
	tt_lock(job);
	err = tt_place_thread(job, TT_PIN_COMPACT, 0);
	tt_unlock(job);
	return err;
}

static int open_buffers(struct tt_perf *p)
{
	void *local, *open;
	size_t room;
	int err;

	p->most = p->options.last;
	if (!p->rank)
		for (int side = 0; side < 2; side++)
			if (!(p->samples[side].at = malloc(TT_PERF_SAMPLES * sizeof(double))))
				return tt_fail(-ENOMEM, "no memory for %d samples", TT_PERF_SAMPLES);
	if (p->test->local)
		return tt_perf_open_memory(p);
	room = (p->most + PAGE - 1) / PAGE * PAGE;
	if (p->options.brought && !(local = malloc(p->most)))
		return tt_fail(-ENOMEM, "no memory for %zu bytes", p->most);
	if (!p->options.brought && (err = tutti_alloc(p->job, p->most, -1, &local)))
		return err;
	p->local = local;
	if ((err = tutti_alloc(p->job, room + PAGE, -1, &open)))
		return err;
	p->open = open;
	p->told = (_Atomic uint64_t *)(void *)(p->open + room);
	p->writer = (struct tt_perf_writer *)(void *)(p->open + room + TT_PERF_LINE);
	p->reads = (struct tt_perf_reads *)(void *)(p->open + room + 2 * TT_PERF_LINE);
	err = tutti_window_open(p->job, "tutti perf", p->open, room + PAGE, &p->window);
	return err || !p->test->gpu ? err : tt_perf_open_gpu(p);
}

static void close_rank(struct tt_perf *p)
{
	if (p->bare)
		p->bare->close(p);
	tt_perf_close_wires(p);
	tt_perf_close_shared(p);
	tt_perf_close_memory(p);
	tt_perf_close_table(p);
	tt_perf_close_gossip(p);
	tt_perf_close_publication(p);
	tt_perf_close_gpu(p);
	tutti_window_close(p->window);
	for (int side = 0; side < 2; side++)
		free(p->samples[side].at);
	if (p->options.brought)
		free(p->local);
	else
		tutti_free(p->job, p->local);
	tutti_free(p->job, p->open);
}

static void read_wire(struct tt_perf *p)
{
	struct tt_job *job = p->job->job;

	tt_lock(job);
	if (tt_member(job, 1)->state == TT_UP)
		snprintf(p->transport, sizeof p->transport, "%s", tt_member_net(tt_member(job, 1))->transport->name);
	tt_unlock(job);
}

/* Finds the transport between rank 0 and rank 1, which the first use decides, and tells all ranks. */
static int find_wire(struct tt_perf *p)
{
	uint64_t nothing = 0;
	int err = 0;

	if (p->test->local) {
		snprintf(p->transport, sizeof p->transport, "memory");
		return 0;
	}
	if (!p->rank && !(err = tutti_put(p->window, 1, (size_t)((uint8_t *)p->told - p->open), &nothing,
	                                  sizeof nothing, NULL)))
		read_wire(p);
	if (err || (err = tutti_broadcast(p->job, p->transport, sizeof p->transport, 0, NULL)))
		return err;
	if (p->options.transport && strcmp(p->options.transport, p->transport))
		return tt_fail(-ENODEV, "--transport %s: it does not lead from rank 0 to rank 1, %s does",
		               p->options.transport, p->transport);
	return 0;
}

static int open_baseline(struct tt_perf *p)
{
	p->has_baseline = p->test->local && !p->options.no_baseline;
	if (p->test->gpu)
		return 0;
#ifdef HAVE_VERBS
	int err = strcmp(p->transport, tt_verbs.name) ? 0 : tt_perf_open_verbs(p);
	if (err || p->bare || p->lacks)
		return err;
#endif
	if (p->test->local || p->options.no_baseline)
		return 0;
	return strcmp(p->transport, tt_shm.name) ? tt_perf_open_wires(p) : tt_perf_open_shared(p);
}

/* Only rank 0 draws: the others need neither the file nor gnuplot. */
static int check_plot(struct tt_perf *p)
{
	int8_t verdict = p->rank ? 0 : (int8_t)tt_perf_can_plot(&p->options);
	int err = tutti_broadcast(p->job, &verdict, sizeof verdict, 0, NULL);

	return err ? err : verdict;
}

static int say_if_unwritten(void)
{
	int err = tt_perf_write_error();

	if (!err || err == EPIPE)
		return 0;
	tt_tool_refuse("perf", "cannot write the rows: %s", strerror(err));
	return 1;
}

/* Returns 0; 1 or 2, the exit status of a reported error; or -errno. */
static int run_rank(struct tt_perf *p)
{
	int err, status;

	if ((err = pin(p)))
		return err;
	if (p->options.plot && (err = check_plot(p)))
		return err;
	if ((err = open_buffers(p)) || (err = find_wire(p)) || (err = open_baseline(p)))
		return err;
	status = p->rank ? serve(p) : has_kernels(p->test) ? conduct_kernels(p) : conduct(p);
	if (status < 0)
		return status;
	err = tutti_barrier(p->job, NULL); /* no rank closes while another may still read */
	return err ? err : status ? status : say_if_unwritten();
}

static int ranks_max(const struct tt_perf_options *o)
{
	return o->test->table ? TT_PERF_TABLE_RANKS : o->test->publishes ? TT_PERF_PUBLISH_RANKS : TT_PERF_RANKS;
}

static int ranks_min(const struct tt_perf_options *o)
{
	bool beside = o->kernel && o->kernel->calls & TT_PERF_BESIDE; /* rank 2 pushes */

	return o->test->local ? 1 : beside ? 3 : 2;
}

/* Without -n. */
static int ranks_usual(const struct tt_perf_options *o)
{
	bool readers = o->test->publishes && (!o->kernel || o->kernel->calls & TT_PERF_READERS);

	return readers ? TT_PERF_PUBLISH_RANKS : ranks_min(o);
}

int tt_perf_measure(const struct tt_perf_options *o, tutti *job)
{
	struct tt_perf p = { .options = *o, .test = o->test, .wire = { { -1, -1 }, { -1, -1 } }, .job = job,
		.rank = tutti_rank(job), .size = tutti_size(job) };

	if (p.size < ranks_min(o) || p.size > ranks_max(o))
		return tt_tool_refuse("perf", "the job has %d rank%s: %d to %d are needed", p.size,
		                      p.size == 1 ? "" : "s", ranks_min(o), ranks_max(o));
	if (o->ranks && o->ranks != p.size)
		return tt_tool_refuse("perf", "-n %d: a launcher has started a job of %d ranks already; leave -n out",
		                      o->ranks, p.size);
	int err = run_rank(&p);
	if (err < 0)
		tt_tool_refuse("perf", "%s", tutti_why());
	close_rank(&p);
	return err < 0 ? 1 : err;
}

static int be_rank(const struct tt_perf_options *o)
{
	char wires[32];
	tutti_config config = tutti_config_defaults();
	tutti *job;
	int err;

	signal(SIGPIPE, SIG_IGN); /* see tt_perf_write_error() */
	/* Ranks meet over tcp, whatever they use later. */
	snprintf(wires, sizeof wires, "%s%s", o->transport ? o->transport : "",
	         o->transport && strcmp(o->transport, tt_tcp.name) ? ",tcp" : "");
	config.transports = o->transport ? wires : NULL;
	err = tutti_join(&config, &job);

	if (err) {
		tt_tool_refuse("perf", "%s", tutti_why());
		return err == -EINVAL ? TT_TOOL_REFUSED : 1;
	}
	err = tt_perf_measure(o, job);
	tutti_leave(job);
	return err;
}

/* `tutti run` starts the ranks. */

static bool has_launcher(void)
{
	return tt_env(TT_RANK) || tt_env(TT_NODE) || (tt_env(TT_TORCH_RANK) && tt_env(TT_TORCH_SIZE));
}

static int start_ranks(int argc, char **argv, int ranks)
{
	char self[4096], number[16], *run[argc + 5];
	ssize_t len = readlink("/proc/self/exe", self, sizeof self - 1);
	int n = 0;

	if (len < 0)
		return tt_tool_refuse("perf", "cannot find this program: %s", strerror(errno));
	self[len] = 0;
	snprintf(number, sizeof number, "%d", ranks);
	run[n++] = (char[]){ "run" };
	run[n++] = (char[]){ "-n" };
	run[n++] = number;
	run[n++] = self;
	for (int i = 0; i < argc; i++)
		run[n++] = argv[i];
	run[n] = NULL;
	optind = 0; /* resets getopt */
	return tt_tool_run(n, run);
}

int tt_tool_perf(int argc, char **argv)
{
	struct tt_perf_options options;
	int status = tt_perf_read_options(argc, argv, &options);

	if (status >= 0)
		return status;
	if (has_launcher() || (options.test->local && options.ranks < 2))
		return be_rank(&options); /* without a launcher: a job of one */
	if ((status = tt_perf_can_plot(&options)))
		return status;
	return start_ranks(argc, argv, options.ranks ? options.ranks : ranks_usual(&options));
}
