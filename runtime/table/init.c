/* init.c - the values that a table begins with: each element is a function of the seed, the row (or key) and the
 * column, so that any number of servers, and a server that is started again, makes the same values
 *
 *      Philox4x32-10 { key: seed; counter: row, column / 2 }  -->  two words of 64 bits, for columns 2k and 2k + 1
 *
 *      uniform    a + (b - a) u, with the upper 53 bits of a word as u in [0, 1)
 *      normal     Box-Muller: of the words' u and v sigma sqrt(-2 log(1 - u)) times cos(2 pi v) and sin(2 pi v)
 *
 * log, cos and sin are sums written here: those of C libraries differ in their last bits. What is left are additions,
 * multiplications, divisions and square roots of f64, which are the same everywhere. */
#include "kernel/kernel.h"
#include "table/table_private.h"
#include <math.h>
#include <string.h>

/* ---- Philox4x32-10: Salmon et al., SC 2011 ---- */

struct words { uint64_t at[2]; };

static struct words philox(uint64_t key, uint64_t row, uint64_t block)
{
	uint32_t x[4] = { (uint32_t)row, (uint32_t)(row >> 32), (uint32_t)block, (uint32_t)(block >> 32) };
	uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);

	for (int round = 0; round < 10; round++, k0 += 0x9e3779b9, k1 += 0xbb67ae85) {
		uint64_t a = (uint64_t)0xd2511f53 * x[0], b = (uint64_t)0xcd9e8d57 * x[2];
		x[0] = (uint32_t)(b >> 32) ^ x[1] ^ k0;
		x[1] = (uint32_t)b;
		x[2] = (uint32_t)(a >> 32) ^ x[3] ^ k1;
		x[3] = (uint32_t)a;
	}
	return (struct words){ { (uint64_t)x[1] << 32 | x[0], (uint64_t)x[3] << 32 | x[2] } };
}

static double fraction(uint64_t word) { return (double)(word >> 11) * 0x1p-53; }

/* ---- log, cos and sin ---- */

static double sum_up(const double *of, int n, double x)
{
	double sum = of[n - 1];

	for (int i = n - 2; i >= 0; i--)
		sum = sum * x + of[i];
	return sum;
}

/* log m = 2 (s + s^3 / 3 + s^5 / 5 + ...), s = (m - 1) / (m + 1), for m from sqrt(1/2) to sqrt(2). */
static double log_of(double x)
{
	static const double of[] = { 1, 1.0 / 3, 1.0 / 5, 1.0 / 7, 1.0 / 9, 1.0 / 11, 1.0 / 13, 1.0 / 15, 1.0 / 17,
		                     1.0 / 19, 1.0 / 21 };
	const double log2 = 0x1.62e42fefa39efp-1;
	int power;
	double m = frexp(x, &power);

	if (m < 0x1.6a09e667f3bcdp-1) {
		m *= 2;
		power--;
	}
	double s = (m - 1) / (m + 1);
	return power * log2 + 2 * s * sum_up(of, TT_COUNT(of), s * s);
}

/* Of 2 pi turn, for turn from 0 to 1: from the nearest quarter on. */
static void turn_by(double turn, double *cosine, double *sine)
{
	static const double of_cos[] = { 1, -1.0 / 2, 1.0 / 24, -1.0 / 720, 1.0 / 40320, -1.0 / 3628800,
		                         1.0 / 479001600, -1.0 / 87178291200, 1.0 / 20922789888000 };
	static const double of_sin[] = { 1, -1.0 / 6, 1.0 / 120, -1.0 / 5040, 1.0 / 362880, -1.0 / 39916800,
		                         1.0 / 6227020800, -1.0 / 1307674368000, 1.0 / 355687428096000 };
	int quarter = (int)(turn * 4 + 0.5);
	double angle = (turn - quarter * 0.25) * 0x1.921fb54442d18p+2;
	double c = sum_up(of_cos, TT_COUNT(of_cos), angle * angle);
	double s = angle * sum_up(of_sin, TT_COUNT(of_sin), angle * angle);

	*cosine = quarter % 4 == 0 ? c : quarter % 4 == 1 ? -s : quarter % 4 == 2 ? -c : s;
	*sine = quarter % 4 == 0 ? s : quarter % 4 == 1 ? c : quarter % 4 == 2 ? -s : -c;
}

/* ---- values ---- */

static void draw(const tutti_init *init, uint64_t row, uint64_t block, double value[2])
{
	struct words w = philox(init->seed, row, block);
	double u = fraction(w.at[0]), v = fraction(w.at[1]);

	if (init->kind == TUTTI_INIT_UNIFORM) {
		value[0] = init->a + (init->b - init->a) * u;
		value[1] = init->a + (init->b - init->a) * v;
	} else {
		double radius = init->sigma * sqrt(-2 * log_of(1 - u));
		turn_by(v, &value[0], &value[1]);
		value[0] *= radius;
		value[1] *= radius;
	}
}

/* Rounds to nearest even. */
static uint16_t half_of(double x)
{
	uint16_t sign = signbit(x) ? 0x8000 : 0;
	double size = fabs(x);
	int power;

	if (size >= 65520)
		return sign | 0x7c00;
	frexp(size, &power);
	power = power < -13 ? -13 : power;
	/* In units of the last place. A carry runs on into the exponent. */
	return (uint16_t)(sign | ((unsigned)rint(ldexp(size, 11 - power)) + ((unsigned)(power + 13) << 10)));
}

static void store(void *to, double x, tutti_type type)
{
	float single = (float)x;
	uint16_t half;

	if (type == TUTTI_F64)
		memcpy(to, &x, sizeof x);
	else if (type == TUTTI_F32)
		memcpy(to, &single, sizeof single);
	else if (type == TUTTI_BF16)
		tt_from_f32(to, &single, 1, TUTTI_BF16);
	else {
		half = half_of((double)single);
		memcpy(to, &half, sizeof half);
	}
}

void tt_init_row(const struct tutti_table *t, uint64_t row, uint64_t first, uint64_t count, void *to)
{
	double value[2] = { 0 };
	char *at = to;

	if (t->init.kind == TUTTI_INIT_ZERO) {
		memset(to, 0, (size_t)count * t->width);
		return;
	}
	for (uint64_t i = first; i < first + count; i++, at += t->width) {
		if (i == first || i % 2 == 0)
			draw(&t->init, row, i / 2, value);
		store(at, value[i % 2], t->type);
	}
}

void tt_init_shard(struct tutti_table *t)
{
	struct tt_range r = tt_table_range(t, t->mine);
	uint64_t rows = r.count / t->row, first = r.first / t->row;
	char *values = t->shard.values;

	if (t->init.kind == TUTTI_INIT_ZERO || t->shard.keys || !rows)
		return;
	for (uint64_t i = 0; i < rows; i++)
		tt_init_row(t, first + i, 0, t->row, values + (size_t)i * tt_table_row_bytes(t));
	tt_updater_assigned(t->shard.updater, -1, values, 0, (size_t)r.count);
	tt_version_init(t);
}

void tt_init_key(struct tutti_table *t, uint64_t key, uint64_t place)
{
	size_t at = (size_t)(place * t->row);
	char *w = t->shard.values + at * t->width;

	if (t->init.kind == TUTTI_INIT_ZERO)
		return;
	tt_init_row(t, key, 0, t->row, w);
	tt_updater_assigned(t->shard.updater, -1, w, at, (size_t)t->row);
}

/* ---- the config ---- */

tutti_init tutti_init_uniform(double a, double b, uint64_t seed)
{
	return (tutti_init){ .kind = TUTTI_INIT_UNIFORM, .a = a, .b = b, .seed = seed };
}

tutti_init tutti_init_normal(double sigma, uint64_t seed)
{
	return (tutti_init){ .kind = TUTTI_INIT_NORMAL, .sigma = sigma, .seed = seed };
}

int tt_init_check(const char *name, const tutti_init *init, tutti_type type)
{
	int err = TT_RESERVED(tutti_init, init);

	if (err)
		return err;
	if ((unsigned)init->kind > TUTTI_INIT_NORMAL)
		return tt_fail(-EINVAL, "table \"%s\": there is no kind %d of init", name, (int)init->kind);
	if (init->kind != TUTTI_INIT_ZERO && !tt_type_is_float(type))
		return tt_fail(-EINVAL, "table \"%s\": values of %s begin at 0: init is for f32, f64, f16 and bf16",
		               name, tt_type_name(type));
	if (init->kind == TUTTI_INIT_UNIFORM && !(isfinite(init->a) && isfinite(init->b) && init->a <= init->b &&
	                                          isfinite(init->b - init->a)))
		return tt_fail(-EINVAL, "table \"%s\": init is uniform from %g to %g: both must be finite, and a not "
		               "above b", name, init->a, init->b);
	if (init->kind == TUTTI_INIT_NORMAL && !(isfinite(init->sigma) && init->sigma >= 0))
		return tt_fail(-EINVAL, "table \"%s\": init.sigma is %g, and must be finite and from 0 up", name,
		               init->sigma);
	return 0;
}
