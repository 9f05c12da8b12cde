/* fashion_net.c - a small multilayer perceptron: ReLU, softmax, momentum, and one fast matrix product for all of it */
#include "fashion.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

#ifdef __x86_64__
enum { LANES = 8 }; /* floats in a vector */
#else
enum { LANES = 4 };
#endif
enum { ROWS = 4, COLUMNS = 2 * LANES }; /* of the tile that the product keeps in registers */
enum { FIRST = 128, SECOND = 64, LAST = (CLASSES + COLUMNS - 1) / COLUMNS * COLUMNS };

typedef float vec __attribute__((vector_size(4 * LANES), aligned(4), may_alias));

/* Gradients are sums over samples, and the ranks' parts of a batch change the order of summation. So each product goes
 * to a grid before it is added: between 8 and 16 floats lie 2^-20 apart, x + 12 - 12 is x rounded to that. Sums of such
 * numbers are exact in any order (up to 16 in size, which no gradient here comes near), and any number of ranks trains
 * the same model to the last bit. Otherwise, about once in an epoch one sample lands on the other side of a ReLU's
 * corner, and from that step on the runs drift visibly apart. */
static const float grid = 12;

/* c = first + a b: a is m x k and lies with any strides, so it may be transposed; b is k x n; every row of c begins
 * with the row `first`, or with zeros where that is NULL. m is a multiple of ROWS and n of COLUMNS. Tile by tile:
 *
 *         b  |  . [b0 b1] .        c0 .. c7 stay in registers while p walks down b and along a
 *      a     |
 *    [ x0 ]  |  . [c0 c1] .
 *    [ .. ]  |  . [.. ..] .
 */
struct product {
	int m, n, k;
	const float *a;
	size_t down, along; /* from an element of a to the one below, to the one on its right */
	const float *b, *first;
	float *c;
	int on_grid; /* round each product, as above */
};

#define ADD(c, x, b) ((c) += on_grid ? (x) * (b) + base - base : (x) * (b))

static inline __attribute__((always_inline)) void tile(const struct product *p, int i, int j, int on_grid)
{
	const float *x = p->a + (size_t)i * p->down, *y = p->b + j;
	const size_t down = p->down, along = p->along, n = (size_t)p->n;
	float *c = p->c + (size_t)i * n + (size_t)j;
	vec zero = { 0 }, base = zero + grid, c0 = zero, c1 = zero, c2, c3, c4, c5, c6, c7;

	if (p->first) {
		c0 = *(const vec *)(p->first + j);
		c1 = *(const vec *)(p->first + j + LANES);
	}
	c2 = c4 = c6 = c0;
	c3 = c5 = c7 = c1;
	for (int k = p->k; k > 0; k--, x += along, y += n) {
		vec b0 = *(const vec *)y, b1 = *(const vec *)(y + LANES);
		float x0 = x[0], x1 = x[down], x2 = x[2 * down], x3 = x[3 * down];
		ADD(c0, x0, b0), ADD(c1, x0, b1);
		ADD(c2, x1, b0), ADD(c3, x1, b1);
		ADD(c4, x2, b0), ADD(c5, x2, b1);
		ADD(c6, x3, b0), ADD(c7, x3, b1);
	}
	*(vec *)c = c0, *(vec *)(c + LANES) = c1, c += n;
	*(vec *)c = c2, *(vec *)(c + LANES) = c3, c += n;
	*(vec *)c = c4, *(vec *)(c + LANES) = c5, c += n;
	*(vec *)c = c6, *(vec *)(c + LANES) = c7;
}

static inline __attribute__((always_inline)) void tiles(const struct product *p)
{
	for (int j = 0; j < p->n; j += COLUMNS)
		for (int i = 0; i < p->m; i += ROWS)
			p->on_grid ? tile(p, i, j, 1) : tile(p, i, j, 0); /* two loops, without a branch inside */
}

#ifdef __x86_64__ /* one binary for old and new ones: with FMA it is many times as fast */
__attribute__((target("fma"))) static void multiply_fma(const struct product *p) { tiles(p); }

static void multiply(const struct product *p)
{
	if (__builtin_cpu_supports("fma"))
		multiply_fma(p);
	else
		tiles(p);
}
#else
static void multiply(const struct product *p) { tiles(p); }
#endif

static int round_rows(int rows) { return (rows + ROWS - 1) / ROWS * ROWS; }

static float *zeros(size_t count) { return calloc(count, sizeof(float)); }

enum status net_open(struct net *net, int rows)
{
	static const int widths[LAYERS + 1] = { PIXELS, FIRST, SECOND, LAST };
	int whole = net->rows = round_rows(rows);
	int complete;

	for (int i = 0; i < LAYERS; i++) {
		struct layer *l = &net->layer[i];
		l->in = widths[i];
		l->out = widths[i + 1];
		l->at = net->parameters;
		l->size = (size_t)(l->in + 1) * (size_t)l->out;
		net->parameters += l->size;
		l->output = zeros((size_t)whole * (size_t)l->out);
		l->delta = zeros((size_t)whole * (size_t)l->out);
	}
	net->velocity = zeros(net->parameters);
	net->transposed = zeros(FIRST * SECOND); /* the larger one of the weights that the way back goes through */
	net->input = zeros((size_t)whole * PIXELS);
	complete = net->velocity && net->transposed && net->input;
	for (int i = 0; i < LAYERS; i++)
		complete = complete && net->layer[i].output && net->layer[i].delta;
	return complete ? OK
	                : complain(FAILED, "not enough memory for a batch of %d samples: use a smaller --batch", rows);
}

void net_close(struct net *net)
{
	for (int i = 0; i < LAYERS; i++) {
		free(net->layer[i].output);
		free(net->layer[i].delta);
	}
	free(net->velocity);
	free(net->transposed);
	free(net->input);
}

/* splitmix64 (Steele, Lea and Flood 2014) */
uint64_t draw(uint64_t *random)
{
	uint64_t z = *random += 0x9e3779b97f4a7c15;

	z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
	z = (z ^ z >> 27) * 0x94d049bb133111eb;
	return z ^ z >> 31;
}

static double uniform(uint64_t *random) { return ((double)(draw(random) >> 11) + 0.5) * 0x1p-53; }

static double normal(uint64_t *random) /* Box and Muller 1958 */
{
	double radius = sqrt(-2 * log(uniform(random)));

	return radius * cos(2 * 3.14159265358979323846 * uniform(random));
}

/* He et al. 2015: weights of variance 2/in, biases of zero */
void net_start(struct net *net, uint64_t *random)
{
	memset(net->values, 0, net->parameters * sizeof(float));
	for (int n = 0; n < LAYERS; n++) {
		const struct layer *l = &net->layer[n];
		float *w = net->values + l->at;
		int used = n == LAYERS - 1 ? CLASSES : l->out;

		for (int i = 0; i < l->in; i++)
			for (int j = 0; j < used; j++)
				w[(size_t)i * (size_t)l->out + (size_t)j] = (float)(sqrt(2.0 / l->in) * normal(random));
	}
}

static const float *input_of(const struct net *net, int layer)
{
	return layer ? net->layer[layer - 1].output : net->input;
}

void net_forward(struct net *net, int rows)
{
	for (int n = 0; n < LAYERS; n++) {
		const struct layer *l = &net->layer[n];
		const float *w = net->values + l->at, *bias = w + (size_t)l->in * (size_t)l->out;
		size_t outputs = (size_t)rows * (size_t)l->out;

		struct product sums = { round_rows(rows), l->out, l->in, input_of(net, n), (size_t)l->in, 1, w, bias,
			                l->output,        0 };
		multiply(&sums);
		for (size_t i = 0; n < LAYERS - 1 && i < outputs; i++)
			l->output[i] = l->output[i] > 0 ? l->output[i] : 0;
	}
}

/* Softmax and cross-entropy of one sample. delta = (softmax - one-hot) x scale: the loss by the outputs. */
static double row_loss(const float *out, float *delta, int label, float scale)
{
	float most = out[0], sum = 0;

	for (int i = 1; i < CLASSES; i++)
		most = out[i] > most ? out[i] : most;
	for (int i = 0; i < CLASSES; i++)
		sum += delta[i] = expf(out[i] - most);
	for (int i = 0; i < CLASSES; i++)
		delta[i] = (delta[i] / sum - (float)(i == label)) * scale;
	return log((double)sum) + (double)most - (double)out[label];
}

double net_loss(struct net *net, int rows, const uint8_t *labels, float scale)
{
	const struct layer *l = &net->layer[LAYERS - 1];
	double sum = 0;

	for (int i = 0; i < rows; i++)
		sum += row_loss(l->output + i * LAST, l->delta + i * LAST, labels[i], scale);
	return sum;
}

int net_correct(const struct net *net, int rows, const uint8_t *labels)
{
	const float *out = net->layer[LAYERS - 1].output;
	int correct = 0;

	for (int i = 0; i < rows; i++, out += LAST) {
		int best = 0;
		for (int j = 1; j < CLASSES; j++)
			best = out[j] > out[best] ? j : best;
		correct += best == labels[i];
	}
	return correct;
}

/* delta of layer n = (delta of layer n + 1 x its weights, transposed), where layer n let its sum through */
static void pass_back(struct net *net, int n, int rows)
{
	const struct layer *l = &net->layer[n], *above = l + 1;
	const float *w = net->values + above->at;
	size_t count = (size_t)rows * (size_t)l->out;
	struct product back = { round_rows(rows),   l->out, above->out,      above->delta,
		                (size_t)above->out, 1,      net->transposed, NULL,
		                l->delta,           0 };

	for (int i = 0; i < above->in; i++)
		for (int j = 0; j < above->out; j++)
			net->transposed[j * above->in + i] = w[i * above->out + j];
	multiply(&back);
	for (size_t i = 0; i < count; i++)
		l->delta[i] = l->output[i] > 0 ? l->delta[i] : 0;
}

void net_backward(struct net *net, int n, int rows)
{
	const struct layer *l = &net->layer[n];
	float *gradient = net->gradients + l->at, *bias = gradient + (size_t)l->in * (size_t)l->out;

	struct product weights = {
		l->in, l->out, rows, input_of(net, n), 1, (size_t)l->in, l->delta, NULL, gradient, 1
	};

	if (n < LAYERS - 1)
		pass_back(net, n, rows);
	multiply(&weights);
	memset(bias, 0, (size_t)l->out * sizeof(float));
	for (int i = 0; i < rows; i++)
		for (int j = 0; j < l->out; j++)
			bias[j] += l->delta[(size_t)i * (size_t)l->out + (size_t)j] + grid - grid;
}

/* Momentum (Polyak 1964): v = momentum v - rate g, then w += v */
void net_update(struct net *net, int layer, float rate, float momentum)
{
	const struct layer *l = &net->layer[layer];
	vec *v = (vec *)(net->velocity + l->at), *w = (vec *)(net->values + l->at);
	const vec *g = (const vec *)(net->gradients + l->at);

	for (size_t i = 0; i < l->size / LANES; i++) { /* a layer's size is a multiple of COLUMNS */
		v[i] = momentum * v[i] - rate * g[i];
		w[i] += v[i];
	}
}
