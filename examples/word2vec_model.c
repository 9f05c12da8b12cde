/* word2vec_model.c - minibatches of pairs of words, and their gradients */
#include "word2vec.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { NOISES = 1 << 20 };
static const double often = 1e-3; /* words that are more frequent are thinned out */

/* ---- rows ---- */

static int rows_open(struct rows *r, int vocabulary, int most, int dim)
{
	r->most = most < vocabulary ? most : vocabulary;
	r->row = malloc((size_t)r->most * sizeof *r->row);
	r->place = malloc((size_t)vocabulary * sizeof *r->place);
	r->value = malloc((size_t)r->most * (size_t)dim * sizeof(float));
	r->gradient = malloc((size_t)r->most * (size_t)dim * sizeof(float));
	if (!r->row || !r->place || !r->value || !r->gradient)
		return -1;
	for (int i = 0; i < vocabulary; i++)
		r->place[i] = -1;
	return 0;
}

static void rows_close(struct rows *r)
{
	free(r->row);
	free(r->place);
	free(r->value);
	free(r->gradient);
}

static void rows_clear(struct rows *r)
{
	for (int i = 0; i < r->count; i++)
		r->place[r->row[i]] = -1;
	r->count = 0;
}

static int place_of(struct rows *r, int word)
{
	if (r->place[word] < 0) {
		r->place[word] = r->count;
		r->row[r->count++] = (uint64_t)word;
	}
	return r->place[word];
}

int batch_open(struct batch *b, const struct options *o, const struct words *w)
{
	b->dim = o->dim;
	b->most = 2 * o->window * o->batch;
	b->pair = malloc((size_t)b->most * sizeof *b->pair);
	if (!b->pair || rows_open(&b->in, w->vocabulary, o->batch, o->dim) ||
	    rows_open(&b->out, w->vocabulary, b->most + NOISE, o->dim))
		return -1;
	return 0;
}

void batch_close(struct batch *b)
{
	rows_close(&b->in);
	rows_close(&b->out);
	free(b->pair);
}

/* ---- which pairs ---- */

/* Words fill places in proportion to their weight, so that drawing a place is drawing a word. */
static void fill_noise(struct sampler *s)
{
	const struct words *w = s->words;
	double all = 0, sum = 0;

	for (int i = 0; i < w->vocabulary; i++)
		all += pow(w->occurs[i], 0.75);
	for (int i = 0, at = 0; i < w->vocabulary; i++) {
		sum += pow(w->occurs[i], 0.75);
		for (; at < NOISES && at <= sum / all * NOISES; at++)
			s->noise[at] = i;
	}
}

int sampler_open(struct sampler *s, const struct words *w, uint64_t seed)
{
	*s = (struct sampler){ .words = w, .random = seed, .noises = NOISES };
	s->keep = malloc((size_t)w->vocabulary * sizeof *s->keep);
	s->noise = calloc(NOISES, sizeof *s->noise);
	if (!s->keep || !s->noise)
		return -1;
	for (int i = 0; i < w->vocabulary; i++)
		s->keep[i] = (float)sqrt(often * w->tokens / w->occurs[i]);
	fill_noise(s);
	return 0;
}

void sampler_close(struct sampler *s)
{
	free(s->keep);
	free(s->noise);
}

static float chance(uint64_t *random) { return (float)(draw(random) >> 40) * 0x1p-24f; }

/* The words around it, within a window whose width is drawn: near ones count more. */
static void add_pairs(struct batch *b, struct sampler *s, int at, int window)
{
	const int *token = s->words->token;
	int reach = 1 + (int)(draw(&s->random) % (uint64_t)window), from = place_of(&b->in, token[at]);

	for (int i = at - reach; i <= at + reach; i++)
		if (i != at && i >= 0 && i < s->words->tokens && chance(&s->random) < s->keep[token[i]])
			b->pair[b->pairs++] = (struct pair){ from, place_of(&b->out, token[i]) };
}

int batch_fill(struct batch *b, struct sampler *s, const struct options *o)
{
	int begin = s->at;

	rows_clear(&b->in);
	rows_clear(&b->out);
	b->pairs = 0;
	for (int n = 0; n < o->batch && s->at < s->end; s->at++) {
		if (chance(&s->random) >= s->keep[s->words->token[s->at]])
			continue;
		add_pairs(b, s, s->at, o->window);
		n++;
	}
	for (int i = 0; i < NOISE; i++)
		b->noise[i] = place_of(&b->out, s->noise[draw(&s->random) % (uint64_t)s->noises]);
	return s->at - begin;
}

/* ---- their gradients ---- */

/* Of -log sigmoid(u v), or of -log sigmoid(-u v) where v is noise: what it adds to the gradients of u and v. The
 * loss. */
static double learn(int dim, const float *u, const float *v, int real, float *gu, float *gv)
{
	float dot = 0, g;

	for (int i = 0; i < dim; i++)
		dot += u[i] * v[i];
	g = 1 / (1 + expf(-dot)) - (float)real;
	for (int i = 0; i < dim; i++) {
		gu[i] += g * v[i];
		gv[i] += g * u[i];
	}
	dot = real ? dot : -dot;
	return dot > 0 ? log1p(exp(-dot)) : log1p(exp(dot)) - dot;
}

double batch_learn(struct batch *b, uint64_t *random)
{
	struct rows *in = &b->in, *out = &b->out;
	size_t dim = (size_t)b->dim;
	double loss = 0;

	memset(in->gradient, 0, (size_t)in->count * dim * sizeof(float));
	memset(out->gradient, 0, (size_t)out->count * dim * sizeof(float));
	for (int p = 0; p < b->pairs; p++) {
		size_t from = (size_t)b->pair[p].from * dim;
		for (int k = 0; k <= NEGATIVES; k++) {
			int place = k ? b->noise[draw(random) % NOISE] : b->pair[p].to;
			size_t to = (size_t)place * dim;
			if (!k || place != b->pair[p].to)
				loss += learn(b->dim, in->value + from, out->value + to, !k, in->gradient + from,
				              out->gradient + to);
		}
	}
	return loss;
}
