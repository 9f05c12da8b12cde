/* word2vec.c - a demo of Tutti: skip-gram with negative sampling, on parameter tables of which a step touches few rows
 *
 * Rank 0 reads the text and gives it to all; each learns from a part of it. The values of the words are rows of two
 * tables, spread over all ranks. A minibatch pulls the rows that it needs, and pushes their gradients; nobody waits for
 * anybody.
 *
 *   words    ... the [bytes] that are (read) from the ...       pull 2 rows of "in" and "out", and some of other words;
 *                 from          to                              push their gradients
 */
#include "word2vec.h"
#include "tutti.h"
#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { NEAREST = 5, SHOWN = 8 };

struct training {
	tutti *job;
	int rank, ranks;
	struct options options;
	char *text;
	size_t len;
	struct words words;
	struct sampler sampler;
	struct batch batch;
	tutti_table *in, *out;
};

struct epoch { /* what all ranks add up */
	double loss, pairs, tokens, steps, touched, bytes;
};

int complain(const char *fmt, ...)
{
	va_list args;

	fputs("word2vec: ", stderr);
	va_start(args, fmt);
	vfprintf(stderr, fmt, args);
	va_end(args);
	fputc('\n', stderr);
	return FAILED;
}

static void check(int err)
{
	if (err < 0) {
		complain("%s", tutti_why());
		exit(1);
	}
}

static void *need(void *memory) /* NULL: it ends here */
{
	if (!memory) {
		complain("not enough memory");
		exit(1);
	}
	return memory;
}

uint64_t draw(uint64_t *random) /* splitmix64, Steele et al. 2014 */
{
	uint64_t z = *random += 0x9e3779b97f4a7c15;

	z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
	z = (z ^ z >> 27) * 0x94d049bb133111eb;
	return z ^ z >> 31;
}

static double seconds_now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* ---- tables ---- */

static tutti_table *open_table(struct training *t, const char *name)
{
	tutti_table_config c = tutti_table_rows(TUTTI_F32, (uint64_t)t->words.vocabulary,
	                                        (uint64_t)t->options.dim, tutti_sgd(NAN)); /* pushes set the rate */
	tutti_table *table;

	check(tutti_table_open(t->job, name, &c, &table));
	return table;
}

/* "out" begins with zeros, as all tables do. */
static void assign_values(struct training *t)
{
	size_t n = (size_t)t->words.vocabulary * (size_t)t->options.dim;
	uint64_t random = t->options.seed;
	float *v = need(malloc(n * sizeof *v));

	for (size_t i = 0; i < n; i++)
		v[i] = ((float)(draw(&random) >> 40) * 0x1p-24f - 0.5f) / (float)t->options.dim;
	check(tutti_table_assign(t->in, v, NULL));
	free(v);
}

/* ---- training ---- */

static void pull_rows(struct training *t)
{
	struct batch *b = &t->batch;
	tutti_op op = { 0 };

	check(tutti_table_pull_rows(t->in, b->in.row, (size_t)b->in.count, b->in.value, &op));
	check(tutti_table_pull_rows(t->out, b->out.row, (size_t)b->out.count, b->out.value, NULL));
	check(tutti_wait(&op, -1));
}

static void push_rows(struct training *t, double rate)
{
	tutti_update u = tutti_update_defaults();
	struct batch *b = &t->batch;
	tutti_op op = { 0 };

	u.learning_rate = rate;
	check(tutti_table_push_rows(t->in, b->in.row, (size_t)b->in.count, b->in.gradient, &u, &op));
	check(tutti_table_push_rows(t->out, b->out.row, (size_t)b->out.count, b->out.gradient, &u, NULL));
	check(tutti_wait(&op, -1));
}

static double bytes_moved(struct training *t)
{
	static const tutti_stat_kind kinds[] = { TUTTI_STAT_PUT, TUTTI_STAT_GET, TUTTI_STAT_MESSAGE, TUTTI_STAT_CHUNK };
	tutti_stat s;
	double n = 0;

	for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
		check(tutti_stats(t->job, -1, kinds[i], &s));
		n += (double)s.bytes;
	}
	return n;
}

static void train_epoch(struct training *t, int epoch, struct epoch *e)
{
	struct sampler *s = &t->sampler;
	struct batch *b = &t->batch;
	double before = bytes_moved(t);
	int part = t->words.tokens / t->ranks, begin = t->rank * part;

	s->at = begin;
	s->end = t->rank + 1 < t->ranks ? begin + part : t->words.tokens;
	for (int n; (n = batch_fill(b, s, &t->options)) > 0; e->tokens += n, e->steps++) {
		double done = (epoch + (double)(s->at - begin) / (s->end - begin)) / t->options.epochs;
		pull_rows(t);
		e->loss += batch_learn(b, &s->random);
		e->pairs += b->pairs;
		e->touched += b->in.count + b->out.count;
		push_rows(t, t->options.rate * (1 - 0.999 * done));
	}
	e->bytes = bytes_moved(t) - before;
}

static void report(const struct training *t, int epoch, const struct epoch *e, double seconds)
{
	double loss = e->loss / e->pairs, untouched = 1 - e->touched / e->steps / (2.0 * t->words.vocabulary);

	if (t->rank)
		return;
	if (t->options.json)
		printf("{\"epoch\": %d, \"loss\": %.6f, \"words_per_second\": %.0f, \"untouched\": %.6f, \"bytes\": "
		       "%.0f, \"seconds\": %.3f}\n",
		       epoch + 1, loss, e->tokens / seconds, untouched, e->bytes, seconds);
	else
		printf("epoch %2d   loss %.4f   %8.0f words/s   %6.2f %% of the rows untouched by a step   %8.1f MB "
		       "moved   %6.2f s\n",
		       epoch + 1, loss, e->tokens / seconds, 100 * untouched, e->bytes / 1e6, seconds);
	fflush(stdout);
}

static int train(struct training *t)
{
	for (int i = 0; i < t->options.epochs; i++) {
		struct epoch e = { 0 };
		double from = seconds_now();
		train_epoch(t, i, &e);
		/* after it all have done the same */
		check(tutti_allreduce(t->job, &e, &e, sizeof e / sizeof(double), TUTTI_F64, TUTTI_SUM, NULL));
		if (e.pairs == 0) /* frequent words are thinned out, and these were all */
			return t->rank ? FAILED
			               : complain(
						 "%d words of text are too few: no pair of them came up; give more "
						 "with --text",
						 t->words.tokens);
		report(t, i, &e, seconds_now() - from);
	}
	return 0;
}

/* ---- which words are alike ---- */

static void normalize(float *v, int rows, int dim)
{
	for (int r = 0; r < rows; r++, v += dim) {
		float sum = 1e-20f;
		for (int i = 0; i < dim; i++)
			sum += v[i] * v[i];
		for (int i = 0; i < dim; i++)
			v[i] /= sqrtf(sum);
	}
}

static float dot(const float *a, const float *b, int dim)
{
	float sum = 0;

	for (int i = 0; i < dim; i++)
		sum += a[i] * b[i];
	return sum;
}

struct near {
	float cosine;
	int word;
};

static void keep_best(struct near *best, struct near x)
{
	int k = NEAREST - 1;

	if (x.cosine <= best[k].cosine)
		return;
	for (; k > 0 && best[k - 1].cosine < x.cosine; k--)
		best[k] = best[k - 1];
	best[k] = x;
}

static void show_nearest(const struct words *w, const float *v, int dim, int word, FILE *out)
{
	struct near best[NEAREST];

	for (int k = 0; k < NEAREST; k++)
		best[k] = (struct near){ -2, -1 };
	for (int i = 0; i < w->vocabulary; i++)
		if (i != word)
			keep_best(best,
			          (struct near){ dot(v + (size_t)i * (size_t)dim, v + (size_t)word * (size_t)dim, dim),
			                         i });
	fprintf(out, "  %-12s", w->name[word]);
	for (int k = 0; k < NEAREST && best[k].word >= 0; k++)
		fprintf(out, "  %s %.2f", w->name[best[k].word], (double)best[k].cosine);
	fputc('\n', out);
}

static int find_word(const struct words *w, const char *name)
{
	for (int i = 0; i < w->vocabulary; i++)
		if (!strcmp(w->name[i], name))
			return i;
	return -1;
}

/* Of words that such texts have; of other texts, the most frequent ones. */
static void show_words(struct training *t)
{
	static const char *const wanted[] = { "file",    "directory", "license", "network",
		                              "process", "string",    "server",  "first" };
	FILE *out = t->options.json ? stderr : stdout;
	int dim = t->options.dim, shown = 0;
	float *v = need(malloc((size_t)t->words.vocabulary * (size_t)dim * sizeof *v));

	check(tutti_table_pull(t->in, v, NULL));
	normalize(v, t->words.vocabulary, dim);
	fprintf(out, "\nnearest of %d words, by their cosine:\n", t->words.vocabulary);
	for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++)
		if (find_word(&t->words, wanted[i]) >= 0) {
			show_nearest(&t->words, v, dim, find_word(&t->words, wanted[i]), out);
			shown++;
		}
	for (int i = 0; !shown && i < SHOWN && i < t->words.vocabulary; i++)
		show_nearest(&t->words, v, dim, i, out);
	free(v);
}

/* ---- the whole ---- */

/* Of options and of the text rank 0 alone complains; the others hear that it has. What it has cut up are the same
 * words. */
static int read_first(struct training *t, int argc, char **argv)
{
	int err = read_options(argc, argv, &t->options);

	if (err || t->options.help || (err = read_text(&t->options, &t->text, &t->len)))
		return err;
	return find_words(&t->words, t->text, t->len, t->options.least);
}

static int read_all(struct training *t, int argc, char **argv)
{
	int err = t->rank == 0 ? read_first(t, argc, argv) : 0;
	int64_t got = err ? err : (int64_t)t->len;

	check(tutti_broadcast(t->job, &got, sizeof got, 0, NULL));
	if (got <= 0)
		return (int)got;
	if (t->rank > 0) {
		read_options(argc, argv, &t->options);
		t->len = (size_t)got;
		t->text = need(malloc(t->len));
	}
	check(tutti_broadcast(t->job, t->text, t->len, 0, NULL));
	return t->rank > 0 ? find_words(&t->words, t->text, t->len, t->options.least) : 0;
}

static void prepare(struct training *t)
{
	if (sampler_open(&t->sampler, &t->words, t->options.seed * 1000 + (uint64_t)t->rank) ||
	    batch_open(&t->batch, &t->options, &t->words))
		need(NULL);
	t->in = open_table(t, "in");
	t->out = open_table(t, "out");
	if (t->rank == 0)
		assign_values(t);
	check(tutti_barrier(t->job, NULL));
	if (t->rank == 0 && !t->options.json)
		printf("%.1f MB of text, %d words, %d of them different; %d rank%s\n", (double)t->len / 1e6,
		       t->words.tokens, t->words.vocabulary, t->ranks, t->ranks > 1 ? "s" : "");
}

static void release(struct training *t)
{
	tutti_table_close(t->in);
	tutti_table_close(t->out);
	batch_close(&t->batch);
	sampler_close(&t->sampler);
	free_words(&t->words);
	free(t->text);
}

int main(int argc, char **argv)
{
	static struct training t; /* outlives whatever the library may still hold of it */
	int err;

	check(tutti_join(NULL, &t.job));
	t.rank = tutti_rank(t.job);
	t.ranks = tutti_size(t.job);
	err = read_all(&t, argc, argv);
	if (!err && !t.len && t.rank == 0)
		show_help();
	if (!err && t.len) {
		prepare(&t);
		err = train(&t);
		if (!err && t.rank == 0)
			show_words(&t);
		check(tutti_barrier(t.job, NULL)); /* nobody closes while another may still look */
	}
	release(&t);
	tutti_leave(t.job);
	return -err; /* FAILED: 1, USAGE: 2 */
}
