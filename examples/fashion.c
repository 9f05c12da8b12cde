/* fashion.c - a demo of Tutti: data-parallel training on Fashion-MNIST
 *
 * Every rank holds the data and a copy of the model. All shuffle alike, and of each batch of B samples rank r of n
 * takes B r/n .. B (r+1)/n, so that any number of ranks trains the same model. Gradients are summed over the ranks (or
 * go to parameter servers, see fashion_ps.c), layer by layer from the last to the first, while the next layer's are
 * still being computed:
 *
 *   compute   forward | back 2 | back 1   | back 0     |             | update
 *   network                    | reduce 2 | reduce 1   | reduce 0    |
 */
#include "fashion.h"
#include <errno.h>
#include <math.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sysexits.h>
#include <time.h>

static char sentence[480];

enum status complain(enum status status, const char *fmt, ...)
{
	va_list args;

	va_start(args, fmt);
	vsnprintf(sentence, sizeof sentence, fmt, args);
	va_end(args);
	return status;
}

double seconds_now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

enum status lost(void)
{
	fprintf(stderr, "fashion: %s\n", tutti_why());
	return LOST;
}

/* After a part that may fail on some ranks only: all go on, or all end with the worst status. Each sentence is said by
 * the first rank that has it, so that a typing error is told once. */
enum status agree(tutti *job, enum status mine)
{
	struct verdict {
		enum status status;
		char sentence[sizeof sentence];
	} my = { .status = mine }, *all;
	enum status worst = mine;
	int first = 1;

	if (mine == LOST)
		return LOST;
	if (mine)
		memcpy(my.sentence, sentence, sizeof sentence);
	all = calloc((size_t)tutti_size(job), sizeof *all);
	if (!all || tutti_gather(job, &my, sizeof my, all, -1, NULL)) {
		free(all);
		return lost();
	}
	for (int i = 0; i < tutti_size(job); i++) {
		worst = all[i].status > worst ? all[i].status : worst;
		first = first && (i >= tutti_rank(job) || strcmp(all[i].sentence, my.sentence));
	}
	if (mine && first)
		fprintf(stderr, "fashion: %s\n", my.sentence);
	free(all);
	return worst;
}

enum status give_up(struct training *t, int first, int last)
{
	enum status s = lost();

	for (int i = last; i >= first; i--)
		tutti_cancel(&t->op[i]);
	return s;
}

static enum status step_allreduce(struct training *t, struct batch *b)
{
	struct net *net = &t->net;
	double from;
	int err;

	net_forward(net, b->rows);
	b->loss = net_loss(net, b->rows, t->labels, 1.0f / (float)b->total);
	for (int i = LAYERS - 1; i >= 0; i--) {
		const struct layer *l = &net->layer[i];
		net_backward(net, i, b->rows);
		from = seconds_now();
		err = tutti_allreduce(t->job, net->gradients + l->at, net->gradients + l->at, l->size, TUTTI_F32,
		                      TUTTI_SUM, &t->op[i]);
		t->waiting += seconds_now() - from;
		if (err)
			return give_up(t, i + 1, LAYERS - 1);
	}
	for (int i = LAYERS - 1; i >= 0; i--) {
		from = seconds_now();
		err = tutti_wait(&t->op[i], -1);
		t->waiting += seconds_now() - from;
		if (err)
			return give_up(t, 0, i);
	}
	for (int i = LAYERS - 1; i >= 0; i--) /* whole steps alone, lest a rank that dies leave half of one */
		net_update(net, i, (float)b->rate, (float)t->options.momentum);
	return OK;
}

static enum status begin_allreduce(struct training *t)
{
	return tutti_broadcast(t->job, t->net.values, t->net.parameters * sizeof(float), 0, NULL) ? lost() : OK;
}

static const struct algorithm fashion_allreduce = { "allreduce", begin_allreduce, step_allreduce, NULL, NULL, NULL };
static const struct algorithm *const algorithms[] = { &fashion_allreduce, &fashion_ps, &fashion_ea, &fashion_easgd,
	                                              &fashion_asgd, &fashion_diloco, &fashion_gossip, &fashion_alone };
enum { ALGORITHMS = sizeof algorithms / sizeof *algorithms };

static const char *algorithm_names(void)
{
	static char names[120];

	for (size_t i = 0, len = 0; i < ALGORITHMS && len < sizeof names; i++)
		len += (size_t)snprintf(names + len, sizeof names - len, "%s%s", i ? ", " : "", algorithms[i]->name);
	return names;
}

static enum status find_algorithm(struct training *t)
{
	for (size_t i = 0; i < ALGORITHMS; i++)
		if (!strcmp(algorithms[i]->name, t->options.algorithm))
			t->algorithm = algorithms[i];
	if (!t->algorithm)
		return complain(USAGE, "no algorithm '%s': there is %s", t->options.algorithm, algorithm_names());
	if (t->options.staleness >= 0 && t->algorithm != &fashion_ps)
		return complain(USAGE, "--staleness is for --algorithm ps: with %s no rank is ahead",
		                t->options.algorithm);
	if (t->options.every && (t->algorithm == &fashion_allreduce || t->algorithm == &fashion_ps))
		return complain(USAGE, "--every: with %s the ranks meet in each step", t->options.algorithm);
	if (t->options.every && t->algorithm == &fashion_alone)
		return complain(USAGE, "--every: alone the ranks never meet");
	if (!isnan(t->options.alpha) && t->algorithm != &fashion_ea && t->algorithm != &fashion_easgd)
		return complain(USAGE, "--alpha is for ea and easgd: %s moves no model by a part",
		                t->options.algorithm);
	if ((t->options.save || t->options.load) && t->algorithm != &fashion_allreduce)
		return complain(USAGE, "--save and --load are for allreduce: with %s more than one model is trained",
		                t->options.algorithm);
	if (t->options.keep_going && (t->algorithm != &fashion_allreduce || t->options.lack))
		return complain(
			USAGE,
			"--keep-going is for allreduce, and without --lack: others cannot do what a rank that dies "
			"was to do");
	return OK;
}

static enum status read_data(struct training *t)
{
	enum status s = find_data(t->options.data);

	if (!s)
		s = read_samples(t->options.data, "train", &t->train);
	if (!s)
		s = read_samples(t->options.data, "t10k", &t->test);
	return s;
}

/* Where the part of rank r starts when count things are split. */
static int part(const struct training *t, int count, int r) { return (int)((int64_t)count * r / t->ranks); }

/* Rank 0 lacks the first classes, rank 1 those behind them, and so on in a circle. */
static int is_lacking(const struct training *t, int class)
{
	int first = t->rank * t->options.lack % CLASSES;

	return (class - first + CLASSES) % CLASSES < t->options.lack;
}

static enum status build(struct training *t)
{
	int batch = t->options.batch < t->train.count ? t->options.batch : t->train.count;
	int rows = t->options.keep_going ? batch : batch / t->ranks + 1;
	enum status s;
	void *memory;

	if (batch < t->ranks)
		return complain(
			USAGE, "%d ranks are more than the %d samples of a batch: start fewer, or set a larger --batch",
			t->ranks, batch);
	s = net_open(&t->net, rows);
	t->steps = (t->train.count + batch - 1) / batch;
	t->options.batch = batch;
	t->random = t->options.seed;
	t->labels = malloc((size_t)rows);
	t->order = malloc((size_t)t->train.count * sizeof *t->order);
	t->epochs = calloc((size_t)t->options.epochs, sizeof *t->epochs);
	if (!s && (!t->labels || !t->order || !t->epochs))
		s = complain(FAILED, "not enough memory for %d epochs of %d samples", t->options.epochs,
		             t->train.count);
	if (!s && (t->options.save || t->options.load || t->options.keep_going) &&
	    !(t->block = calloc(1, save_size(t) + 1)))
		s = complain(FAILED, "not enough memory for a copy of the model");
	if (!s && tutti_alloc(t->job, 2 * t->net.parameters * sizeof(float), -1, &memory))
		s = complain(FAILED, "%s", tutti_why());
	if (s)
		return s;
	for (int i = 0; i < t->train.count; i++)
		if (!is_lacking(t, t->train.labels[i]))
			t->order[t->samples++] = i;
	if (!t->samples)
		return complain(FAILED, "rank %d has no samples: use a smaller --lack than %d", t->rank,
		                t->options.lack);
	t->net.values = memory;
	t->net.gradients = t->net.values + t->net.parameters;
	net_start(&t->net, &t->random);
	return OK;
}

static void shuffle(struct training *t) /* Fisher and Yates 1938 */
{
	for (int i = t->samples - 1; i > 0; i--) {
		int j = (int)(draw(&t->random) % (uint64_t)(i + 1)), other = t->order[j];
		t->order[j] = t->order[i];
		t->order[i] = other;
	}
}

/* Row i of my part of a batch. With --lack the ranks' data differ, and each goes through its own. */
static int sample_at(const struct training *t, int from, int first, int i)
{
	return t->order[t->options.lack ? (from / t->ranks + i) % t->samples : from + first + i];
}

/* My part of the next step, to where the network reads it. */
static struct batch load(struct training *t)
{
	int from = t->step * t->options.batch, left = t->train.count - from;
	struct batch b = { .total = left < t->options.batch ? left : t->options.batch };
	int first = part(t, b.total, t->rank);

	b.rows = part(t, b.total, t->rank + 1) - first;
	b.rate = t->options.rate * (1 - (t->epoch + (double)t->step / t->steps) / t->options.epochs);
	for (int i = 0; i < b.rows; i++) {
		int sample = sample_at(t, from, first, i);
		scale_pixels(&t->train, sample, t->net.input + (size_t)i * PIXELS);
		t->labels[i] = t->train.labels[sample];
	}
	return b;
}

/* Counts, in my part of the test set, what the network gets right. */
static double test(struct training *t)
{
	int first = part(t, t->test.count, t->rank), end = part(t, t->test.count, t->rank + 1), correct = 0;

	while (first < end) {
		int rows = end - first < t->net.rows ? end - first : t->net.rows;
		for (int i = 0; i < rows; i++)
			scale_pixels(&t->test, first + i, t->net.input + (size_t)i * PIXELS);
		net_forward(&t->net, rows);
		correct += net_correct(&t->net, rows, t->test.labels + first);
		first += rows;
	}
	return correct;
}

static int point_of(const struct training *t, int step) { return (int)((int64_t)step * POINTS / t->steps); }

/* sums: over the ranks. What a rank that died has summed is missing among the losses and among the samples. */
static void evaluate(const struct training *t, const double *sums, struct epoch *e)
{
	const double *samples = sums + POINTS;
	double all = 0;

	*e = (struct epoch){ 0 };
	for (int i = 0; i < POINTS; i++) {
		e->loss += sums[i];
		all += samples[i];
		e->curve[i] = samples[i] > 0 ? sums[i] / samples[i] : 0;
	}
	if (all > 0) /* else those that had samples of this epoch have died */
		e->loss /= all;
	e->accuracy = sums[SUMS - 1] / t->test.count;
}

void start_epoch(struct training *t, int epoch)
{
	t->epoch = epoch;
	t->step = 0;
	t->began = 0;
	memset(t->sums, 0, sizeof t->sums);
}

static enum status take_step(struct training *t)
{
	double from = seconds_now();
	struct batch b = load(t);
	int point = point_of(t, t->step);
	enum status s = t->options.save ? save_if_asked(t) : OK;

	s = s ? s : t->algorithm->step(t, &b);
	t->training += seconds_now() - from; /* also of a step that is lost: waiting has it, too */
	if (s)
		return s;
	t->sums[point] += b.loss;
	t->sums[POINTS + point] += b.rows;
	t->step++;
	report_progress(&t->report, t->epoch, (t->epoch + (double)t->step / t->steps) / t->options.epochs);
	return OK;
}

static enum status train_epoch(struct training *t)
{
	struct epoch *e = &t->epochs[t->epoch];
	double sums[SUMS], from;
	enum status s;

	if (!(t->began > 0)) /* else it goes on in an epoch */
		t->began = seconds_now();
	for (; t->shuffles <= t->epoch; t->shuffles++)
		shuffle(t);
	while (t->step < t->steps)
		if ((s = take_step(t)))
			return s;
	from = seconds_now();
	if (t->algorithm->meet && t->algorithm->meet(t))
		return LOST;
	t->training += seconds_now() - from;
	t->sums[SUMS - 1] = test(t);
	if (t->algorithm->part)
		t->algorithm->part(t);
	if (tutti_allreduce(t->job, t->sums, sums, SUMS, TUTTI_F64, TUTTI_SUM, NULL))
		return lost();
	evaluate(t, sums, e);
	e->seconds = seconds_now() - t->began;
	if (!isfinite(e->loss))
		return agree(t->job,
		             complain(FAILED,
		                      "the loss is no number any more in epoch %d: use a smaller --rate than %g",
		                      t->epoch + 1, t->options.rate));
	start_epoch(t, t->epoch + 1);
	return OK;
}

/* All ranks count, since rank 0 may die, or be behind the others when it goes on: it reports what it took from them. */
static enum status report_and_save(struct training *t)
{
	for (; t->reported < t->epoch; t->reported++)
		report_epoch(&t->report, t->reported, &t->epochs[t->reported]);
	return t->options.save && t->epoch && !t->step ? save(t) : OK;
}

/* times: training and waiting, the ranks' mean */
static enum status train_epochs(struct training *t, double *times)
{
	enum status s;

	while (!(s = report_and_save(t)) && t->epoch < t->options.epochs)
		if ((s = train_epoch(t)))
			break;
	if (s)
		return s;
	return tutti_allreduce(t->job, (double[]){ t->training, t->waiting }, times, 2, TUTTI_F64, TUTTI_AVERAGE, NULL)
		? lost() : OK;
}

static enum status train(struct training *t, double started)
{
	struct totals totals;
	double times[2], samples;
	enum status s;

	if (t->algorithm->begin(t) || (t->options.load && take_loaded(t)))
		return LOST;
	t->report = (struct report){ &t->options, t->rank != 0, t->ranks, seconds_now(), 0,
		                     (t->epoch + (double)t->step / t->steps) / t->options.epochs,
		                     tutti_local_size(t->job) };
	t->reported = t->epoch;
	samples = (double)(t->options.epochs - t->epoch) * t->train.count - (double)t->step * t->options.batch;
	do
		s = train_epochs(t, times);
	while (s == LOST && t->options.keep_going && !go_on(t));
	if (s)
		return s;
	totals = (struct totals){ samples, times[0], times[1], seconds_now() - started };
	report_end(&t->report, t->epochs, &totals);
	if (t->algorithm->end)
		t->algorithm->end(t);
	return OK;
}

static enum status prepare(struct training *t, int argc, char **argv)
{
	enum status s = agree(t->job, read_options(argc, argv, &t->options));

	if (s || t->options.help)
		return s;
	s = agree(t->job, find_algorithm(t));
	if (!s && t->options.save && tutti_leave_asked(t->job, SIGTERM) < 0) /* from now on it is noted */
		return lost();
	if (!s)
		s = agree(t->job, read_data(t));
	if (!s)
		s = agree(t->job, build(t));
	return s || !t->options.load ? s : agree(t->job, t->rank ? OK : load_file(t));
}

static void release(struct training *t)
{
	tutti_free(t->job, t->net.values);
	net_close(&t->net);
	free_samples(&t->train);
	free_samples(&t->test);
	free(t->order);
	free(t->labels);
	free(t->epochs);
	free(t->block);
}

int main(int argc, char **argv)
{
	static struct training t; /* outlives whatever the library may still hold of it */
	double started = seconds_now();
	enum status s;

	signal(SIGPIPE, SIG_IGN); /* a reader of our output, or gnuplot, may go first */
	if (tutti_join(NULL, &t.job)) {
		lost();
		return FAILED;
	}
	t.rank = tutti_rank(t.job);
	t.ranks = tutti_size(t.job);
	s = prepare(&t, argc, argv);
	if (!s && !t.options.help)
		s = train(&t, started);
	else if (!s && !t.rank)
		show_help(algorithm_names());
	release(&t);
	tutti_leave(tutti_job(t.job));
	return s == LOST ? FAILED : s == SAVED ? EX_TEMPFAIL : (int)s;
}
