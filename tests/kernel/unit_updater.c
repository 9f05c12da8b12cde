/* unit_updater.c - a table's update rules, with each set of instructions, against the equations of tutti.h in double */
#include "kernel/kernel.h"
#include "tests/harness/cunit_main.h"
#include "tests/harness/with.h"
#include "tests/kernel/formats.h"
#include <math.h>
#include <stdlib.h>
#ifdef __x86_64__
#include <xmmintrin.h>
#endif

enum { MOST = 261, PAD = 64, STEPS = 4, STATES = 2 };

static const tutti_type reals[] = { TUTTI_F32, TUTTI_F64, TUTTI_F16, TUTTI_BF16 };
static struct tt_random dice;

static double draw(void) { return (double)(tt_random_next(&dice) >> 32) / 2147483648.0 - 1; }
static double get(const void *base, size_t i, tutti_type type) { return (double)meaning(element(base, i, type), type); }
static void set(void *base, size_t i, tutti_type type, double x)
{
	set_element(base, i, type, nearest((long double)x, type));
}
static tutti_type state_type(tutti_type type) { return type == TUTTI_F64 ? TUTTI_F64 : TUTTI_F32; }

/* The equations, one element at a time. s: m, G, v, (m, v), b, (b, s), (z, n). e: what goes back. */

static double reference(tutti_update_rule rule, const tutti_update *o, double t, double w, double d, double *s,
                        double *e)
{
	double g = o->scale * d + o->weight_decay * w, lr = o->learning_rate, root, lambda = o->compensation;

	switch (rule) {
	case TUTTI_UPDATE_ADD: return w + o->scale * d;
	case TUTTI_UPDATE_ASSIGN: return d;
	case TUTTI_UPDATE_SGD: return w - lr * g;
	case TUTTI_UPDATE_MOMENTUM: return w - lr * (s[0] = o->momentum * s[0] + g);
	case TUTTI_UPDATE_SMOOTHED: return w - lr * (s[0] = o->momentum * s[0] + (1 - o->momentum) * g);
	case TUTTI_UPDATE_NESTEROV: s[0] = o->momentum * s[0] + g; return w - lr * (g + o->momentum * s[0]);
	case TUTTI_UPDATE_ADAGRAD: s[0] += g * g; return w - lr * g / sqrt(s[0] + o->epsilon);
	case TUTTI_UPDATE_RMSPROP:
		s[0] = o->rho * s[0] + (1 - o->rho) * g * g;
		return w - lr * g / (sqrt(s[0]) + o->epsilon);
	case TUTTI_UPDATE_ADAMW: g = o->scale * d; w -= lr * o->weight_decay * w; /* fall through */
	case TUTTI_UPDATE_ADAM:
		s[0] = o->beta1 * s[0] + (1 - o->beta1) * g;
		s[1] = o->beta2 * s[1] + (1 - o->beta2) * g * g;
		return w - lr * (s[0] / (1 - pow(o->beta1, t))) / (sqrt(s[1] / (1 - pow(o->beta2, t))) + o->epsilon);
	case TUTTI_UPDATE_DCASGDA:
		s[1] = o->momentum * s[1] + (1 - o->momentum) * g * g;
		lambda /= sqrt(s[1] + o->epsilon);
		/* fall through */
	case TUTTI_UPDATE_DCASGD: return s[0] = w - lr * (g + lambda * g * g * (w - s[0]));
	case TUTTI_UPDATE_FTRL:
		s[0] += g - (sqrt(s[1] + g * g) - sqrt(s[1])) / o->alpha * w;
		root = sqrt(s[1] += g * g);
		return fabs(s[0]) <= o->l1 ? 0
		                           : -(s[0] - copysign(o->l1, s[0])) / ((o->beta + root) / o->alpha + o->l2);
	case TUTTI_UPDATE_ELASTIC: *e = o->alpha * (d - w); return w + *e;
	default: return NAN;
	}
}

/* What each rule is tried with: all that it takes, and far enough from the defaults to be noticed. 0: it takes none. */
#define GRADIENT_OPTIONS .scale = 0.75, .learning_rate = 0.125, .weight_decay = 0.25
static const tutti_update tried[] = {
	[TUTTI_UPDATE_ADD] = { .scale = -0.75 },
	[TUTTI_UPDATE_ASSIGN] = { 0 },
	[TUTTI_UPDATE_SGD] = { GRADIENT_OPTIONS },
	[TUTTI_UPDATE_MOMENTUM] = { GRADIENT_OPTIONS, .momentum = 0.7 },
	[TUTTI_UPDATE_SMOOTHED] = { GRADIENT_OPTIONS, .momentum = 0.7 },
	[TUTTI_UPDATE_NESTEROV] = { GRADIENT_OPTIONS, .momentum = 0.7 },
	[TUTTI_UPDATE_ADAGRAD] = { GRADIENT_OPTIONS, .epsilon = 0.02 },
	[TUTTI_UPDATE_RMSPROP] = { GRADIENT_OPTIONS, .rho = 0.6, .epsilon = 0.02 },
	[TUTTI_UPDATE_ADAM] = { GRADIENT_OPTIONS, .beta1 = 0.6, .beta2 = 0.8, .epsilon = 0.02 },
	[TUTTI_UPDATE_ADAMW] = { GRADIENT_OPTIONS, .beta1 = 0.6, .beta2 = 0.8, .epsilon = 0.02 },
	[TUTTI_UPDATE_DCASGD] = { .scale = 2, .learning_rate = 0.125, .compensation = 0.7 },
	[TUTTI_UPDATE_DCASGDA] = { .scale = 2, .learning_rate = 0.125,
		.compensation = 0.7, .momentum = 0.6, .epsilon = 0.02 },
	[TUTTI_UPDATE_FTRL] = { .scale = 2, .alpha = 0.25,
		.beta = 0.5, .l1 = 0.6, .l2 = 0.3 },
	[TUTTI_UPDATE_ELASTIC] = { .alpha = 0.3 },
};
enum { RULES = TT_COUNT(tried) };

static tutti_update options_of(tutti_update_rule rule)
{
	tutti_update o = tried[rule];

	o.worker = -1;
	for (double *x = &o.scale; x <= &o.l2; x++)
		*x = *x == 0 ? NAN : *x;
	return o;
}

static tutti_updater updater_of(tutti_update_rule rule) { return WITH(tutti_accumulate(), it.rule = rule); }

static struct tt_updater *open_rule(tutti_update_rule rule, tutti_type type, size_t count, int workers)
{
	const tutti_updater as = updater_of(rule);
	struct tt_updater *u = NULL;

	CU_ASSERT_EQUAL(tt_updater_open(&as, type, count, workers, &u), 0);
	return u;
}

/* So far may a result be from the reference: it is rounded to its type, and computed in f32, or in f64. */
static bool is_near(double x, double expected, tutti_type type)
{
	static const double last_place[] = {
		[TUTTI_F32] = 0x1p-23, [TUTTI_F64] = 0x1p-52, [TUTTI_F16] = 0x1p-11, [TUTTI_BF16] = 0x1p-8
	};
	double rounding = type == TUTTI_F64 ? 0 : last_place[type] * fabs(expected),
	       computing = (type == TUTTI_F64 ? 0x1p-52 : 0x1p-23) * 24;

	return fabs(x - expected) <= rounding + computing * (1 + fabs(expected)) + (type == TUTTI_F16 ? 0x1p-24 : 0);
}

struct trial {
	tutti_update_rule rule;
	tutti_type type;
	size_t count, shift;
	bool in_place;
	char w[PAD + MOST * 8 + PAD], d[PAD + MOST * 8 + PAD], to[PAD + MOST * 8 + PAD], out[PAD + MOST * 8 + PAD];
	double s[MOST][STATES];
};

static bool compare_states(struct trial *t, struct tt_updater *u)
{
	for (int k = 0; k < tt_updater_states(u); k++)
		for (size_t i = 0; i < t->count; i++)
			if (!is_near(get(tt_updater_state(u, k).at, i, state_type(t->type)), t->s[i][k],
			             state_type(t->type)) &&
			    t->type != TUTTI_F16 && t->type != TUTTI_BF16) /* there a backup is of the rounded value */
				return false;
	return true;
}

/* Is a center of 16 bits what the rule's state rounds to? Then the rule goes on with the state. */
static bool center_counts(const void *wide, const void *w, size_t i, tutti_type type)
{
	return nearest((long double)get(wide, i, TUTTI_F32), type) == element(w, i, type);
}

static bool step_and_compare(struct trial *t, struct tt_updater *u, int step)
{
	size_t width = tt_type_size(t->type);
	char *w = t->w + PAD / 2 + t->shift, *d = t->d + PAD / 2 + 1, *out = t->out + PAD / 2,
	     *to = t->in_place ? w : t->to + PAD / 2 + 3;
	bool good = true, gives = t->rule == TUTTI_UPDATE_ELASTIC;
	double was[MOST], e = 0;
	const tutti_update options = options_of(t->rule);
	struct tt_push push;

	for (size_t i = 0; i < t->count; i++) {
		if (step > 1 && i % 3) /* others have pushed */
			set(w, i, t->type, get(w, i, t->type) + draw());
		was[i] = get(w, i, t->type);
		if (gives && width < 4 && center_counts(tt_updater_state(u, 0).at, w, i, t->type))
			was[i] = get(tt_updater_state(u, 0).at, i, TUTTI_F32);
		set(d, i, t->type, draw());
		/* of what is rounded on the way each step is compared alone */
		for (int k = 0; k < tt_updater_states(u); k++)
			if (width < 4)
				t->s[i][k] = get(tt_updater_state(u, k).at, i, TUTTI_F32);
	}
	CU_ASSERT_EQUAL(tt_updater_begin(u, 0, &options, &push), 0);
	tt_updater_apply(&push, 0, t->count, &(struct tt_piece){ to, w, d, gives ? out : NULL });
	for (size_t i = 0; i < t->count && good; i++) {
		double expected = reference(t->rule, &tried[t->rule], step, was[i], get(d, i, t->type), t->s[i], &e);
		good = is_near(get(to, i, t->type), expected, t->type) &&
		       (!gives || is_near(get(out, i, t->type), e, t->type));
		if (!good)
			printf("%s of %s, step %d, element %zu of %zu: %.9g instead of %.9g\n", tt_update_name(t->rule),
			       type_names[t->type], step, i, t->count, get(to, i, t->type), expected);
	}
	for (size_t i = 0; i < 8; i++) { /* nothing beside it */
		good = good && to[-1 - (int)i] == 0x5a && to[t->count * width + i] == 0x5a;
		good = good && out[-1 - (int)i] == 0x5a && out[(gives ? t->count * width : 0) + i] == 0x5a;
	}
	memcpy(w, to, t->in_place ? 0 : t->count * width);
	return good && compare_states(t, u);
}

/* What goes back may come over what was pushed. */
static void test_over_delta(void)
{
	enum { N = 1000 };
	static char w[N * 8], d[N * 8], to[N * 8], out[N * 8];

	for (int type = TUTTI_F32; type <= TUTTI_BF16; type++) {
		struct tt_updater *u = open_rule(TUTTI_UPDATE_ELASTIC, (tutti_type)type, N, 1),
				  *v = open_rule(TUTTI_UPDATE_ELASTIC, (tutti_type)type, N, 1);
		size_t width = tt_type_size((tutti_type)type);
		struct tt_push push, again;

		for (size_t i = 0; i < N; i++) {
			set(w, i, (tutti_type)type, draw());
			set(d, i, (tutti_type)type, draw());
		}
		CU_ASSERT_EQUAL(tt_updater_begin(u, 0, NULL, &push), 0);
		CU_ASSERT_EQUAL(tt_updater_begin(v, 0, NULL, &again), 0);
		tt_updater_apply(&push, 0, N, &(struct tt_piece){ to, w, d, out });
		tt_updater_apply(&again, 0, N, &(struct tt_piece){ w, w, d, d });
		CU_ASSERT(!memcmp(w, to, N * width) && !memcmp(d, out, N * width) && memcmp(w, d, N * width) != 0);
		tt_updater_close(u);
		tt_updater_close(v);
	}
}

/* 2,000 moves that are each less than half of the center's last place: they add up, and an assign starts anew. */
static void test_small_moves(void)
{
	for (int type = TUTTI_F16; type <= TUTTI_BF16; type++) {
		struct tt_updater *u = open_rule(TUTTI_UPDATE_ELASTIC, (tutti_type)type, 1, 1);
		const tutti_update options = WITH(tutti_update_defaults(), it.alpha = 0.9 / 512);
		struct tt_push push;
		char w[2], d[2];

		for (int time = 0; time < 2; time++) {
			set(w, 0, (tutti_type)type, 1);
			set(d, 0, (tutti_type)type, 1.25);
			for (int i = 0; i < 2000; i++) {
				CU_ASSERT_EQUAL(tt_updater_begin(u, 0, &options, &push), 0);
				tt_updater_apply(&push, 0, 1, &(struct tt_piece){ w, w, d, NULL });
				CU_ASSERT(i || get(w, 0, (tutti_type)type) == 1);
			}
			double expected = 1.25 - 0.25 * pow(1 - options.alpha, 2000);
			CU_ASSERT_DOUBLE_EQUAL(get(w, 0, (tutti_type)type), expected, 0.004);
		}
		tt_updater_close(u);
	}
}

static bool try_rule(tutti_update_rule rule, tutti_type type, size_t count, size_t shift, bool in_place)
{
	static struct trial t;
	struct tt_updater *u = open_rule(rule, type, count, 1);
	char *w = t.w + PAD / 2 + shift;
	bool good = true;

	memset(&t, 0x5a, sizeof t);
	memset(t.s, 0, sizeof t.s);
	t.rule = rule, t.type = type, t.count = count, t.shift = shift, t.in_place = in_place;
	for (size_t i = 0; i < count; i++)
		set(w, i, type, draw());
	tt_updater_assigned(u, -1, w, 0, count);
	for (size_t i = 0; i < count; i++)
		if (rule == TUTTI_UPDATE_DCASGD || rule == TUTTI_UPDATE_DCASGDA)
			t.s[i][0] = get(w, i, type);
		else if (rule == TUTTI_UPDATE_FTRL)
			t.s[i][0] = get(w, i, type) * -(1 / 0.005);
	for (int step = 1; step <= STEPS && good; step++)
		good = step_and_compare(&t, u, step);
	tt_updater_close(u);
	return good;
}

static void test_every_rule(void)
{
	static const size_t counts[] = { 0, 1, 3, 7, 8, 9, 15, 16, 17, 31, 33, 63, 64, 65, 130, MOST };

	for (int rule = 0; rule < RULES; rule++)
		for (size_t k = 0; k < TT_COUNT(reals); k++)
			for (size_t c = 0; c < TT_COUNT(counts); c++)
				for (size_t shift = 0; shift < 8; shift += counts[c] > 9 ? 3 : 1)
					CU_ASSERT(try_rule((tutti_update_rule)rule, reals[k], counts[c], shift,
					                   (c + shift) % 2) ||
					          is_emulated());
}

/* Integers wrap, and are assigned. */
static void test_integers(void)
{
	int32_t a[] = { INT32_MAX, 5, -7 }, d[] = { 1, -6, 7 };
	int64_t b[] = { INT64_MIN, 1ll << 40 }, e[] = { -1, 1 };
	struct tt_updater *add = open_rule(TUTTI_UPDATE_ADD, TUTTI_I32, 3, 1),
			  *wide = open_rule(TUTTI_UPDATE_ADD, TUTTI_I64, 2, 1),
			  *assign = open_rule(TUTTI_UPDATE_ASSIGN, TUTTI_I64, 2, 1);
	struct tt_push push;

	CU_ASSERT_EQUAL(tt_updater_begin(add, 0, NULL, &push), 0);
	tt_updater_apply(&push, 0, 3, &(struct tt_piece){ a, a, d, NULL });
	CU_ASSERT(a[0] == INT32_MIN && a[1] == -1 && a[2] == 0);
	CU_ASSERT_EQUAL(tt_updater_begin(wide, 0, NULL, &push), 0);
	tt_updater_apply(&push, 0, 2, &(struct tt_piece){ b, b, e, NULL });
	CU_ASSERT(b[0] == INT64_MAX && b[1] == (1ll << 40) + 1);
	CU_ASSERT_EQUAL(tt_updater_begin(assign, 0, NULL, &push), 0);
	tt_updater_apply(&push, 0, 2, &(struct tt_piece){ b, b, e, NULL });
	CU_ASSERT(b[0] == -1 && b[1] == 1);
	tt_updater_close(add);
	tt_updater_close(wide);
	tt_updater_close(assign);
}

/* Ranges of any size in any order come to the same bits as the whole, and the state too. */
static void push_in_ranges(struct tt_updater *u, const tutti_update *o, char *w, const char *d, char *out, size_t width)
{
	size_t cuts[] = { 0, 0, 0, 0, 0, MOST }, order[] = { 3, 0, 4, 2, 1 };
	struct tt_push push;

	for (int k = 1; k < 5; k++)
		cuts[k] = cuts[k - 1] + tt_random_below(&dice, MOST / 4);
	CU_ASSERT_EQUAL(tt_updater_begin(u, 0, o, &push), 0);
	for (int k = 0; k < 5; k++) {
		size_t first = cuts[order[k]], at = first * width;
		tt_updater_apply(&push, first, cuts[order[k] + 1] - first,
		                 &(struct tt_piece){ w + at, w + at, d + at, out + at });
	}
}

static void try_ranges(tutti_update_rule rule, tutti_type type)
{
	static char w[2][MOST * 8], d[MOST * 8], out[2][MOST * 8];
	size_t width = tt_type_size(type);
	struct tt_updater *whole = open_rule(rule, type, MOST, 1), *parts = open_rule(rule, type, MOST, 1);
	const tutti_update options = options_of(rule);
	struct tt_push push;

	memset(out, 0, sizeof out);
	for (size_t i = 0; i < MOST; i++)
		set(w[0], i, type, draw());
	memcpy(w[1], w[0], sizeof w[0]);
	for (int step = 0; step < STEPS; step++) {
		for (size_t i = 0; i < MOST; i++)
			set(d, i, type, draw());
		CU_ASSERT_EQUAL(tt_updater_begin(whole, 0, &options, &push), 0);
		tt_updater_apply(&push, 0, MOST, &(struct tt_piece){ w[0], w[0], d, out[0] });
		push_in_ranges(parts, &options, w[1], d, out[1], width);
	}
	CU_ASSERT(!memcmp(w[0], w[1], MOST * width));
	CU_ASSERT(!memcmp(out[0], out[1], MOST * width));
	for (int k = 0; k < tt_updater_states(whole); k++)
		CU_ASSERT(!memcmp(tt_updater_state(whole, k).at, tt_updater_state(parts, k).at,
		                  tt_updater_state(whole, k).bytes));
	tt_updater_close(whole);
	tt_updater_close(parts);
}

static void test_ranges_in_any_order(void)
{
	for (int rule = 0; rule < RULES; rule++)
		for (size_t k = 0; k < TT_COUNT(reals); k++)
			try_ranges((tutti_update_rule)rule, reals[k]);
}

#define OPTIONS(...) WITH(tutti_update_defaults(), __VA_ARGS__)

/* Options: a push's, else the table's, else the rule's own; 0 counts where it is set. */

static double push_one(struct tt_updater *u, int worker, const tutti_update *o, double w, double d)
{
	struct tt_push push;

	if (tt_updater_begin(u, worker, o, &push))
		return NAN;
	tt_updater_apply(&push, 0, 1, &(struct tt_piece){ &w, &w, &d, NULL });
	return w;
}

static void test_whose_options(void)
{
	const tutti_updater as = tutti_sgd(0.5);
	const tutti_update none = tutti_update_defaults(), zero = OPTIONS(it.learning_rate = 0),
	                   tenth = OPTIONS(it.learning_rate = 0.125),
	                   decay = OPTIONS(it.weight_decay = 0.25);
	struct tt_updater *u, *plain = open_rule(TUTTI_UPDATE_SGD, TUTTI_F64, 1, 1);

	CU_ASSERT_EQUAL_FATAL(tt_updater_open(&as, TUTTI_F64, 1, 1, &u), 0);
	CU_ASSERT_EQUAL(push_one(u, 0, NULL, 1, 1), 0.5);
	CU_ASSERT_EQUAL(push_one(u, 0, &none, 1, 1), 0.5);
	CU_ASSERT_EQUAL(push_one(u, 0, &zero, 1, 1), 1);
	CU_ASSERT_EQUAL(push_one(u, 0, &tenth, 1, 1), 0.875);
	CU_ASSERT_EQUAL(push_one(u, 0, &decay, 2, 1), 1.25);
	CU_ASSERT_EQUAL(push_one(u, 0, NULL, 1, 1), 0.5); /* a push's are its own */
	CU_ASSERT_EQUAL(push_one(plain, 0, NULL, 1, 0.25), 0.75);
	tt_updater_close(u);
	tt_updater_close(plain);
}

static void own_nothing(const tutti_update_piece *p) { (void)p; }

/* The functions of rules set what they are given, and nothing else. */
static void test_functions(void)
{
	const struct {
		tutti_updater as;
		tutti_update_rule rule;
		tutti_update options;
	} all[] = {
		{ tutti_accumulate(), TUTTI_UPDATE_ADD, tutti_update_defaults() },
		{ tutti_assign(), TUTTI_UPDATE_ASSIGN, tutti_update_defaults() },
		{ tutti_sgd(0.5), TUTTI_UPDATE_SGD, OPTIONS(it.learning_rate = 0.5) },
		{ tutti_momentum(0.5, 0.25), TUTTI_UPDATE_MOMENTUM,
		  OPTIONS(it.learning_rate = 0.5, it.momentum = 0.25) },
		{ tutti_smoothed(0.5, 0.25), TUTTI_UPDATE_SMOOTHED,
		  OPTIONS(it.learning_rate = 0.5, it.momentum = 0.25) },
		{ tutti_nesterov(0.5, 0.25), TUTTI_UPDATE_NESTEROV,
		  OPTIONS(it.learning_rate = 0.5, it.momentum = 0.25) },
		{ tutti_adagrad(0.5), TUTTI_UPDATE_ADAGRAD, OPTIONS(it.learning_rate = 0.5) },
		{ tutti_rmsprop(0.5), TUTTI_UPDATE_RMSPROP, OPTIONS(it.learning_rate = 0.5) },
		{ tutti_adam(0.5), TUTTI_UPDATE_ADAM, OPTIONS(it.learning_rate = 0.5) },
		{ tutti_adamw(0.5, 0.25), TUTTI_UPDATE_ADAMW, OPTIONS(it.learning_rate = 0.5, it.weight_decay = 0.25) },
		{ tutti_dcasgd(0.5, 0.25), TUTTI_UPDATE_DCASGD,
		  OPTIONS(it.learning_rate = 0.5, it.compensation = 0.25) },
		{ tutti_dcasgda(0.5, 0.25), TUTTI_UPDATE_DCASGDA,
		  OPTIONS(it.learning_rate = 0.5, it.compensation = 0.25) },
		{ tutti_ftrl(0.5), TUTTI_UPDATE_FTRL, OPTIONS(it.alpha = 0.5) },
		{ tutti_elastic(0.5), TUTTI_UPDATE_ELASTIC, OPTIONS(it.alpha = 0.5) },
		{ tutti_own(own_nothing, NULL, 1), TUTTI_UPDATE_OWN, tutti_update_defaults() },
	};

	CU_ASSERT_EQUAL(TT_COUNT(all), TUTTI_UPDATE_OWN + 1);
	for (size_t k = 0; k < TT_COUNT(all); k++) {
		CU_ASSERT(all[k].as.rule == all[k].rule && !all[k].as.flags && all[k].as.defaults.worker == -1);
		for (size_t i = 0; i < 13; i++) {
			double x = (&all[k].as.defaults.scale)[i], y = (&all[k].options.scale)[i];
			CU_ASSERT(isnan(y) ? isnan(x) : x == y);
		}
		CU_ASSERT_EQUAL(tt_updater_check(&all[k].as, TUTTI_F32), 0);
	}
}

static void expect(int err, const char *word)
{
	CU_ASSERT_EQUAL(err, -EINVAL);
	CU_ASSERT(err && strstr(tutti_why(), word));
	if (err && !strstr(tutti_why(), word))
		printf("\"%s\" is not about \"%s\"\n", tutti_why(), word);
}

static void test_bad_tables(void)
{
	const struct {
		tutti_updater as;
		tutti_type type;
		const char *word;
	} bad[] = {
		{ { .rule = TUTTI_UPDATE_ADD }, TUTTI_F32, "add has no learning_rate, which is 0: leave it NaN" },
		{ updater_of((tutti_update_rule)99), TUTTI_F32, "no update rule 99" },
		{ updater_of((tutti_update_rule)-1), TUTTI_F32, "no update rule -1" },
		{ tutti_accumulate(), (tutti_type)17, "no type 17" },
		{ tutti_adam(0.1), TUTTI_I32, "adam is not for integers" },
		{ WITH(tutti_adam(0.1), it.flags = TUTTI_SHARED_STATE), TUTTI_F32, "adam takes no flags" },
		{ WITH(tutti_adagrad(0.1), it.flags = TUTTI_BACKUP_FROM_ZERO), TUTTI_F32, "no flags" },
		{ tutti_own(NULL, NULL, 0), TUTTI_F32, "needs a function" },
		{ tutti_own(own_nothing, NULL, 5), TUTTI_F32, "own_states is 5" },
		{ WITH(tutti_sgd(0.1), it.own = own_nothing), TUTTI_F32, "TUTTI_UPDATE_OWN" },
		{ WITH(tutti_accumulate(), it.defaults.scale = 2), TUTTI_I64, "no scale" },
		{ WITH(tutti_accumulate(), it.defaults.worker = 2), TUTTI_F32, "of a push" },
		{ WITH(tutti_adam(0.1), it.defaults.epsilon = -1e-8), TUTTI_F32,
		  "epsilon is -1e-08: it must be 0 or more" },
		{ tutti_adam(-1), TUTTI_F32, "learning_rate is -1" },
	};
	struct tt_updater *u = NULL;

	for (size_t k = 0; k < TT_COUNT(bad); k++)
		expect(tt_updater_open(&bad[k].as, bad[k].type, 8, 1, &u), bad[k].word);
	CU_ASSERT_PTR_NULL(u);
}

static void test_bad_pushes(void)
{
	const struct {
		tutti_update o;
		const char *word;
	} bad[] = {
		{ { .learning_rate = 0.1 },
		  "adam has no momentum, which is 0: leave it NaN, as tutti_update_defaults()" },
		{ OPTIONS(it.compensation = 0.1), "adam has no compensation" },
		{ OPTIONS(it.beta1 = 1), "beta1 is 1: it must be from 0 to below 1" },
		{ OPTIONS(it.learning_rate = -1), "learning_rate is -1: it must be 0 or more" },
		{ OPTIONS(it.scale = -INFINITY), "it must be a number" },
		{ OPTIONS(it.epsilon = INFINITY), "epsilon is inf" },
		{ OPTIONS(it.worker = 2), "the workers 0 to 1" },
		{ OPTIONS(it.worker = -2), "worker is -2" },
	};
	const tutti_updater as = tutti_adam(0.1), ftrl = tutti_ftrl(0.1);
	const tutti_update zero = OPTIONS(it.alpha = 0), scale = OPTIONS(it.scale = 1);
	struct tt_updater *u = open_rule(TUTTI_UPDATE_ADAM, TUTTI_F32, 8, 2),
			  *counts = open_rule(TUTTI_UPDATE_ADD, TUTTI_I32, 8, 1);
	struct tt_push push;

	for (size_t k = 0; k < TT_COUNT(bad); k++) {
		expect(tt_updater_begin(u, 0, &bad[k].o, &push), bad[k].word);
		if (bad[k].o.worker <= 0) /* how many workers there are, only the server knows */
			expect(tt_update_check(&as, &bad[k].o), bad[k].word);
	}
	CU_ASSERT_EQUAL(tt_updater_pushes(u), 0); /* what is refused is no push */
	expect(tt_update_check(&ftrl, &zero), "alpha is 0: it must be above 0");
	expect(tt_updater_begin(counts, 0, &scale, &push), "no scale");
	CU_ASSERT_EQUAL(tt_update_check(&as, NULL), 0);
	tt_updater_close(u);
	tt_updater_close(counts);
}

/* Workers. */

static void test_state_of_each_worker(void)
{
	const tutti_updater shared = WITH(tutti_adagrad(NAN), it.flags = TUTTI_SHARED_STATE);
	const tutti_update as_1 = OPTIONS(it.worker = 1);
	struct tt_updater *each = open_rule(TUTTI_UPDATE_ADAGRAD, TUTTI_F64, 1, 2), *one;
	double first;

	CU_ASSERT_EQUAL_FATAL(tt_updater_open(&shared, TUTTI_F64, 1, 2, &one), 0);
	first = push_one(each, 0, NULL, 0, 1);
	CU_ASSERT(push_one(each, 0, NULL, 0, 1) > first);
	CU_ASSERT_EQUAL(push_one(each, 0, &as_1, 0, 1), first);
	CU_ASSERT(push_one(each, 1, NULL, 0, 1) > first);
	CU_ASSERT_EQUAL(push_one(one, 0, NULL, 0, 1), first);
	CU_ASSERT(push_one(one, 1, NULL, 0, 1) > first);
	CU_ASSERT(isnan(push_one(each, 2, NULL, 0, 1)));
	CU_ASSERT(isnan(push_one(one, 2, NULL, 0, 1)));
	CU_ASSERT_EQUAL(tt_updater_join(each, 3), 0);
	CU_ASSERT_EQUAL(tt_updater_join(one, 3), 0);
	CU_ASSERT_EQUAL(push_one(each, 2, NULL, 0, 1), first);
	CU_ASSERT(push_one(one, 2, NULL, 0, 1) > first);
	CU_ASSERT_EQUAL(tt_updater_states(each), 3);
	CU_ASSERT_EQUAL(tt_updater_state(each, 2).worker, 2);
	CU_ASSERT_STRING_EQUAL(tt_updater_state(each, 2).name, "G");
	CU_ASSERT_EQUAL(tt_updater_states(one), 1);
	CU_ASSERT_EQUAL(tt_updater_state(one, 0).worker, -1);
	tt_updater_close(each);
	tt_updater_close(one);
}

/* The model that was assigned is what each worker has, in every type; a late one has what there is then. */
static void test_backups(void)
{
	for (size_t k = 0; k < TT_COUNT(reals); k++) {
		tutti_type type = reals[k];
		char w[37 * 8];
		struct tt_updater *u = open_rule(TUTTI_UPDATE_DCASGDA, type, 40, 2);
		int wrong = 0;
		for (size_t i = 0; i < 37; i++)
			set(w, i, type, draw());
		tt_updater_assigned(u, -1, w, 3, 37);
		CU_ASSERT_EQUAL(tt_updater_join(u, 3), 0);
		CU_ASSERT_EQUAL(get(tt_updater_state(u, 4).at, 3, state_type(type)), 0);
		tt_updater_assigned(u, 2, w, 3, 37);
		for (int worker = 0; worker < 3; worker++)
			for (size_t i = 0; i < 37; i++)
				wrong += get(tt_updater_state(u, 2 * worker).at, 3 + i, state_type(type)) !=
				         get(w, i, type);
		CU_ASSERT_EQUAL(wrong, 0);
		CU_ASSERT_EQUAL(get(tt_updater_state(u, 0).at, 2, state_type(type)), 0);
		tt_updater_close(u);
	}
}

/* FTRL: a value that was assigned is there after a push of nothing, whatever was pushed before, and goes on from
 * there. */

enum { GIVEN = 37, ASIDE = 3 };

static struct tt_updater *open_ftrl(tutti_type type, double l1)
{
	tutti_updater as = WITH(updater_of(TUTTI_UPDATE_FTRL), it.defaults = options_of(TUTTI_UPDATE_FTRL));
	struct tt_updater *u = NULL;

	as.defaults.l1 = l1;
	CU_ASSERT_EQUAL(tt_updater_open(&as, type, ASIDE + GIVEN, 2, &u), 0);
	return u;
}

static void push_given(struct tt_updater *u, char *w, const char *d)
{
	struct tt_push push;

	CU_ASSERT_EQUAL(tt_updater_begin(u, 0, NULL, &push), 0);
	tt_updater_apply(&push, ASIDE, GIVEN, &(struct tt_piece){ w, w, d, NULL });
}

static int count_wrong(const char *w, const double *expected, tutti_type type)
{
	int wrong = 0;

	for (size_t i = 0; i < GIVEN; i++)
		wrong += expected[i] == 0 ? get(w, i, type) != 0 : !is_near(get(w, i, type), expected[i], type);
	return wrong;
}

static void assign_and_push(tutti_type type, double l1, bool pushed)
{
	struct tt_updater *u = open_ftrl(type, l1);
	const void *n = tt_updater_state(u, 1).at;
	char w[GIVEN * 8] = { 0 }, d[GIVEN * 8], nothing[GIVEN * 8] = { 0 };
	tutti_update o = tried[TUTTI_UPDATE_FTRL];
	double given[GIVEN], next[GIVEN], e;

	o.l1 = l1;
	for (size_t i = 0; i < GIVEN; i++)
		set(d, i, type, draw());
	if (pushed)
		push_given(u, w, d);
	for (size_t i = 0; i < GIVEN; i++) {
		double root = sqrt(get(n, ASIDE + i, state_type(type))), s[STATES];
		set(w, i, type, i % 5 ? draw() : 0);
		given[i] = get(w, i, type);
		s[0] = given[i] == 0 ? 0 : -(given[i] * ((o.beta + root) / o.alpha + o.l2) + copysign(l1, given[i]));
		s[1] = root * root;
		next[i] = reference(TUTTI_UPDATE_FTRL, &o, 0, given[i], get(d, i, type), s, &e);
	}
	tt_updater_assigned(u, -1, w, ASIDE, GIVEN);
	tt_updater_assigned(u, 1, d, ASIDE, GIVEN); /* what one worker has is nothing to the others */
	push_given(u, w, nothing);
	CU_ASSERT_EQUAL(count_wrong(w, given, type), 0);
	push_given(u, w, d);
	CU_ASSERT_EQUAL(count_wrong(w, next, type), 0);
	CU_ASSERT_EQUAL(get(tt_updater_state(u, 0).at, ASIDE - 1, state_type(type)), 0);
	tt_updater_close(u);
}

static void test_ftrl_keeps_what_was_assigned(void)
{
	for (size_t k = 0; k < TT_COUNT(reals); k++)
		for (int l1 = 0; l1 < 2; l1++) {
			assign_and_push(reals[k], l1 * 0.6, false);
			assign_and_push(reals[k], l1 * 0.6, true);
		}
}

/* Where l1 swallows it: a z of f32 is l1 alone. */
static void test_ftrl_beyond_its_bits(void)
{
	struct tt_updater *narrow = open_ftrl(TUTTI_F32, 1e6), *wide = open_ftrl(TUTTI_F64, 1e6);
	char w[GIVEN * 8], v[GIVEN * 8], nothing[GIVEN * 8] = { 0 };

	for (size_t i = 0; i < GIVEN; i++) {
		set(w, i, TUTTI_F32, 1e-3);
		set(v, i, TUTTI_F64, 1e-3);
	}
	tt_updater_assigned(narrow, -1, w, ASIDE, GIVEN);
	tt_updater_assigned(wide, -1, v, ASIDE, GIVEN);
	push_given(narrow, w, nothing);
	push_given(wide, v, nothing);
	for (size_t i = 0; i < GIVEN; i++) {
		CU_ASSERT_EQUAL(get(w, i, TUTTI_F32), 0);
		CU_ASSERT(fabs(get(v, i, TUTTI_F64) - 1e-3) < 1e-9);
	}
	tt_updater_close(narrow);
	tt_updater_close(wide);
}

/* What there is no memory for is refused, and what there was goes on. */
static void test_no_memory(void)
{
	static const size_t counts[] = { (size_t)1 << 60, (size_t)20 << 40 }; /* no array; one, but not two */
	const tutti_updater adam = tutti_adam(0.1), adagrad = tutti_adagrad(0.1);
	struct tt_updater *u = NULL, *each;

	for (size_t k = 0; k < TT_COUNT(counts); k++) {
		CU_ASSERT_EQUAL(tt_updater_open(&adam, TUTTI_F32, counts[k], 1, &u), -ENOMEM);
		CU_ASSERT_PTR_NOT_NULL(strstr(tutti_why(), "no memory for the state of adam"));
	}
	CU_ASSERT_PTR_NULL(u);
	u = open_rule(TUTTI_UPDATE_MOMENTUM, TUTTI_F64, 1, 1);
	push_one(u, 0, NULL, 0, 1);
	CU_ASSERT_EQUAL(tt_updater_resize(u, counts[0]), -ENOMEM);
	CU_ASSERT_EQUAL(*(double *)tt_updater_state(u, 0).at, 1);
	CU_ASSERT_EQUAL(push_one(u, 0, NULL, 0, 0), -0.9);
	tt_updater_close(u);
	tt_updater_close(NULL);
	if (tt_updater_open(&adagrad, TUTTI_F32, (size_t)1 << 42, 1, &each))
		return; /* a sanitizer needs the room for itself */
	CU_ASSERT_EQUAL(tt_updater_join(each, 100), -ENOMEM);
	CU_ASSERT_EQUAL(tt_updater_states(each), 1);
	CU_ASSERT_EQUAL(tt_updater_join(each, 2), 0);
	CU_ASSERT_EQUAL(tt_updater_states(each), 2);
	CU_ASSERT_EQUAL(tt_updater_join(each, 1), 0); /* nobody leaves so */
	CU_ASSERT_EQUAL(tt_updater_states(each), 2);
	tt_updater_close(each);
}

/* From 2 MiB on state asks for large pages, and begins with zeros all the same. */
static void test_large_state(void)
{
	enum { MANY = (2 << 20) / 4 + 5 };
	struct tt_updater *u = open_rule(TUTTI_UPDATE_MOMENTUM, TUTTI_F32, MANY, 1);
	float w[5] = { 0 }, d[5] = { 1, 2, 3, 4, 5 };
	struct tt_push push;

	CU_ASSERT_EQUAL(tt_updater_begin(u, 0, NULL, &push), 0);
	tt_updater_apply(&push, MANY - 5, 5, &(struct tt_piece){ w, w, d, NULL });
	const float *m = tt_updater_state(u, 0).at;
	CU_ASSERT(m[0] == 0 && m[MANY - 6] == 0 && m[MANY - 5] == 1 && m[MANY - 1] == 5 && w[4] == -5);
	tt_updater_close(u);
}

static void test_what_goes_back(void)
{
	for (int rule = 0; rule < RULES; rule++)
		CU_ASSERT_EQUAL(tt_updater_gives_back(&(tutti_updater){ .rule = (tutti_update_rule)rule }),
		                rule == TUTTI_UPDATE_ELASTIC);
}

static void test_resize_keeps_state(void)
{
	struct tt_updater *u = open_rule(TUTTI_UPDATE_MOMENTUM, TUTTI_F64, 3, 1);
	double w[5] = { 0 }, d[5] = { 1, 2, 3, 4, 5 };
	struct tt_push push;

	CU_ASSERT_EQUAL(tt_updater_begin(u, 0, NULL, &push), 0);
	tt_updater_apply(&push, 0, 3, &(struct tt_piece){ w, w, d, NULL });
	CU_ASSERT_EQUAL(tt_updater_resize(u, 5), 0);
	const double *m = tt_updater_state(u, 0).at;
	CU_ASSERT(m[0] == 1 && m[1] == 2 && m[2] == 3 && m[3] == 0 && m[4] == 0);
	CU_ASSERT_EQUAL(tt_updater_state(u, 0).bytes, sizeof w);
	CU_ASSERT_EQUAL(tt_updater_begin(u, 0, NULL, &push), 0);
	tt_updater_apply(&push, 3, 2, &(struct tt_piece){ w + 3, w + 3, d + 3, NULL });
	CU_ASSERT(m[3] == 4 && m[4] == 5);
	CU_ASSERT_EQUAL(tt_updater_resize(u, 2), 0);
	CU_ASSERT_EQUAL(tt_updater_resize(u, 5), 0);
	m = tt_updater_state(u, 0).at;
	CU_ASSERT(m[0] != 0 && m[1] != 0 && m[2] == 0 && m[3] == 0 && m[4] == 0);
	tt_updater_close(u);
}

/* A push goes on where its state has moved to, that of its own worker. */
static void test_push_follows(void)
{
	enum { MANY = 3 << 20 };
	struct tt_updater *u = open_rule(TUTTI_UPDATE_ADAGRAD, TUTTI_F64, 2, 3);
	double w[2] = { 0 }, d[2] = { 1, 2 };
	struct tt_push push;

	CU_ASSERT_EQUAL(tt_updater_begin(u, 2, NULL, &push), 0);
	tt_updater_apply(&push, 0, 1, &(struct tt_piece){ w, w, d, NULL });
	CU_ASSERT_EQUAL(tt_updater_resize(u, MANY), 0);
	tt_updater_follow(&push);
	tt_updater_apply(&push, MANY - 1, 1, &(struct tt_piece){ w + 1, w + 1, d + 1, NULL });
	const double *g = tt_updater_state(u, 2).at;
	CU_ASSERT(g[0] == 1 && g[1] == 0 && g[MANY - 1] == 4);
	g = tt_updater_state(u, 1).at;
	CU_ASSERT(g[0] == 0 && g[MANY - 1] == 0);
	tt_updater_close(u);
}

/* A saved state goes on where it was: t too. */
static void test_state_is_all_there_is(void)
{
	struct tt_updater *u = open_rule(TUTTI_UPDATE_ADAM, TUTTI_F64, 1, 1),
			  *copy = open_rule(TUTTI_UPDATE_ADAM, TUTTI_F64, 1, 1);

	for (int k = 0; k < 3; k++)
		push_one(u, 0, NULL, 0, 0.5 + k);
	for (int k = 0; k < tt_updater_states(u); k++)
		memcpy(tt_updater_state(copy, k).at, tt_updater_state(u, k).at, tt_updater_state(u, k).bytes);
	tt_updater_set_pushes(copy, tt_updater_pushes(u));
	CU_ASSERT_EQUAL(push_one(copy, 0, NULL, 0.3, 0.2), push_one(u, 0, NULL, 0.3, 0.2));
	tt_updater_close(u);
	tt_updater_close(copy);
}

/* A rule of one's own. */

static void own_rule(const tutti_update_piece *p)
{
	const float *w = p->w, *d = p->d;
	float *to = p->to, *m = p->state[0];

	CU_ASSERT_EQUAL(p->type, TUTTI_F32);
	*(uint64_t *)p->arg += p->count;
	for (size_t i = 0; i < p->count; i++) {
		m[i] += d[i];
		to[i] = w[i] + (float)p->options->compensation * m[i] + (float)(p->first + i) + 100 * (float)p->t +
		        1000 * (float)p->options->worker;
	}
}

static void test_own_rule(void)
{
	uint64_t seen = 0;
	const tutti_updater as = WITH(tutti_own(own_rule, &seen, 1), it.defaults.compensation = 0.5);
	float w[4] = { 0 }, to[4] = { 0 }, d[4] = { 2, 2, 2, 2 };
	struct tt_updater *u;
	struct tt_push push;

	CU_ASSERT_EQUAL_FATAL(tt_updater_open(&as, TUTTI_F32, 4, 2, &u), 0);
	CU_ASSERT_EQUAL(tt_updater_begin(u, 0, NULL, &push), 0);
	tt_updater_apply(&push, 2, 2, &(struct tt_piece){ to + 2, w + 2, d + 2, NULL });
	CU_ASSERT(to[1] == 0 && to[2] == 103 && to[3] == 104 && w[2] == 0);
	CU_ASSERT_EQUAL(tt_updater_begin(u, 1, NULL, &push), 0);
	tt_updater_apply(&push, 2, 2, &(struct tt_piece){ to + 2, w + 2, d + 2, NULL });
	CU_ASSERT(to[2] == 1203 && to[3] == 1204);
	CU_ASSERT_EQUAL(tt_updater_begin(u, 0, NULL, &push), 0);
	tt_updater_apply(&push, 2, 2, &(struct tt_piece){ to + 2, w + 2, d + 2, NULL });
	CU_ASSERT(to[2] == 304 && to[3] == 305 && seen == 6);
	tt_updater_close(u);
}

/* Rows in one call come to the bits of ranges one by one, and the state too: all of each row, and a part of each. */

enum { ROW = 11, ROWS = MOST / ROW };

static const uint64_t places[] = { 20, 3, 4, 5, 3, 0, 22, 4, 21, 22, 7, 20 }; /* some are neighbours, some come twice */

static unsigned change_modes(unsigned to)
{
#ifdef __x86_64__
	unsigned had = _mm_getcsr();
	_mm_setcsr(to ? to : had | 0x8040 | 0x6000); /* no subnormals, towards zero */
	return had;
#else
	return to;
#endif
}

static struct tt_updater *open_any(tutti_update_rule rule, tutti_type type)
{
	static uint64_t seen;
	const tutti_updater own = WITH(tutti_own(own_rule, &seen, 1), it.defaults.compensation = 0.5);
	struct tt_updater *u = NULL;

	if (rule != TUTTI_UPDATE_OWN)
		return open_rule(rule, type, ROWS * ROW, 1);
	CU_ASSERT_EQUAL(tt_updater_open(&own, type, ROWS * ROW, 1, &u), 0);
	return u;
}

static void try_rows(tutti_update_rule rule, tutti_type type, const tutti_update *o, size_t at, size_t count)
{
	static _Alignas(8) char w[2][8 + ROWS * ROW * 8], d[8 + TT_COUNT(places) * ROW * 8];
	struct tt_updater *one = open_any(rule, type), *many = open_any(rule, type);
	size_t width = tt_type_size(type), off = rule != TUTTI_UPDATE_OWN; /* a function wants its type's alignment */
	struct tt_rows_piece rows = { w[1] + off, d + off, places, TT_COUNT(places), ROW, at, count };
	struct tt_push push, push_many;

	for (size_t i = 0; i < sizeof w[0]; i++)
		w[0][i] = w[1][i] = (char)(tt_random_next(&dice) & 0x3f);
	for (int step = 0; step < STEPS; step++) {
		for (size_t i = 0; i < sizeof d; i++)
			d[i] = (char)(tt_random_next(&dice) & (i % 8 ? 0x1f : 0x80));
		CU_ASSERT_EQUAL(tt_updater_begin(one, 0, o, &push), 0);
		CU_ASSERT_EQUAL(tt_updater_begin(many, 0, o, &push_many), 0);
		for (size_t i = 0; i < TT_COUNT(places); i++) {
			size_t first = (size_t)places[i] * ROW + at;
			char *to = w[0] + off + first * width;
			tt_updater_apply(&push, first, count,
			                 &(struct tt_piece){ to, to, d + off + i * count * width, NULL });
		}
		unsigned had = change_modes(0), wanted = change_modes(had);
		change_modes(rule == TUTTI_UPDATE_OWN ? had : wanted); /* a function computes in the caller's */
		tt_updater_apply_rows(&push_many, &rows);
		unsigned left = change_modes(had);
		CU_ASSERT(rule == TUTTI_UPDATE_OWN || !((left ^ wanted) & ~0x3fu) || is_emulated());
	}
	CU_ASSERT(!memcmp(w[0], w[1], sizeof w[0]));
	for (int k = 0; k < tt_updater_states(one); k++)
		CU_ASSERT(!memcmp(tt_updater_state(one, k).at, tt_updater_state(many, k).at,
		                  tt_updater_state(one, k).bytes));
	tt_updater_close(one);
	tt_updater_close(many);
}

static void test_rows(void)
{
	const tutti_update options = options_of(TUTTI_UPDATE_ADD);

	for (int type = TUTTI_F32; type <= TUTTI_BOOL; type++) {
		try_rows(TUTTI_UPDATE_ADD, (tutti_type)type, NULL, 0, ROW);
		try_rows(TUTTI_UPDATE_ASSIGN, (tutti_type)type, NULL, 2, 5);
	}
	for (int rule = 0; rule < RULES; rule++)
		for (size_t k = 0; k < TT_COUNT(reals); k++) {
			const tutti_update o = options_of((tutti_update_rule)rule);
			try_rows((tutti_update_rule)rule, reals[k], &o, 0, ROW);
			try_rows((tutti_update_rule)rule, reals[k], &o, 2, 9);
		}
	try_rows(TUTTI_UPDATE_ADD, TUTTI_F32, &options, 10, 1);
	try_rows(TUTTI_UPDATE_OWN, TUTTI_F32, NULL, 0, ROW);
	try_rows(TUTTI_UPDATE_OWN, TUTTI_F32, NULL, 3, 1);
}

/* Subnormal state is state, whatever the thread's modes, which are its own again. */
static void test_the_callers_modes_do_not_count(void)
{
#ifdef __x86_64__
	struct tt_updater *u = open_rule(TUTTI_UPDATE_MOMENTUM, TUTTI_F32, 9, 1);
	uint32_t d[9], w[9] = { 0 };
	const uint32_t *m = tt_updater_state(u, 0).at;
	unsigned had = _mm_getcsr(), wanted = had | 0x8040 | 0x6000;
	struct tt_push push;

	for (int i = 0; i < 9; i++)
		d[i] = 5;
	CU_ASSERT_EQUAL(tt_updater_begin(u, 0, NULL, &push), 0);
	_mm_setcsr(wanted);
	tt_updater_apply(&push, 0, 9, &(struct tt_piece){ w, w, d, NULL });
	unsigned left = _mm_getcsr();
	_mm_setcsr(had);
	CU_ASSERT(((left ^ wanted) & ~0x3fu) == 0 || is_emulated());
	for (int i = 0; i < 9; i++)
		CU_ASSERT(m[i] == 5 && w[i] == 0x80000005);
	tt_updater_close(u);
#endif
}

/* A NaN is one NaN also in 16 bits; what is infinite and does not decay stays so. */
static void test_nan_and_infinity(void)
{
	for (size_t k = 0; k < TT_COUNT(reals); k++) {
		tutti_type type = reals[k];
		char w[33 * 8], d[33 * 8];
		struct tt_updater *u = open_rule(TUTTI_UPDATE_NESTEROV, type, 33, 1);
		struct tt_push push;
		for (size_t i = 0; i < 33; i++) {
			set(w, i, type, i % 2 ? -INFINITY : 1);
			set(d, i, type, i % 2 ? 1 : NAN);
			set_element(d, i, type, element(d, i, type) | !(i % 2)); /* with a payload */
		}
		CU_ASSERT_EQUAL(tt_updater_begin(u, 0, NULL, &push), 0);
		tt_updater_apply(&push, 0, 33, &(struct tt_piece){ w, w, d, NULL });
		for (size_t i = 0; i < 33; i++)
			CU_ASSERT((i % 2 ? get(w, i, type) == -INFINITY : element(w, i, type) == nan_of(type)) ||
			          is_emulated());
		tt_updater_close(u);
	}
}

/* The same bits whatever the instructions. */

static void run_on(int level, tutti_update_rule rule, tutti_type type, char *w)
{
	struct tt_updater *u = open_rule(rule, type, MOST, 1);
	const tutti_update options = options_of(rule);
	char d[MOST * 8];
	struct tt_push push;

	tt_reduce_use(level);
	tt_random_seed(&dice, 42);
	for (size_t i = 0; i < MOST; i++)
		set(w, i, type, draw());
	for (int step = 0; step < STEPS; step++) {
		for (size_t i = 0; i < MOST; i++)
			set(d, i, type, draw());
		CU_ASSERT_EQUAL(tt_updater_begin(u, 0, &options, &push), 0);
		tt_updater_apply(&push, 0, MOST, &(struct tt_piece){ w, w, d, NULL });
	}
	tt_updater_close(u);
}

static void test_same_bits(void)
{
	static char w[2][MOST * 8];

	for (int level = 1; level < 3; level++)
		for (int rule = 0; tt_reduce_use(level) && rule < RULES; rule++)
			for (size_t k = 0; k < TT_COUNT(reals); k++) {
				run_on(0, (tutti_update_rule)rule, reals[k], w[0]);
				run_on(level, (tutti_update_rule)rule, reals[k], w[1]);
				CU_ASSERT(!memcmp(w[0], w[1], MOST * tt_type_size(reals[k])));
			}
}

static CU_TestInfo alike_tests[] = { { "same bits", test_same_bits }, CU_TEST_INFO_NULL };

static CU_TestInfo updater_tests[] = {
	{ "what goes back comes over the delta", test_over_delta },
	{ "small moves of a center of 16 bits", test_small_moves },
	{ "every rule", test_every_rule },
	{ "integers", test_integers },
	{ "ranges in any order", test_ranges_in_any_order },
	{ "whose options", test_whose_options },
	{ "functions of rules", test_functions },
	{ "bad tables", test_bad_tables },
	{ "bad pushes", test_bad_pushes },
	{ "state of each worker", test_state_of_each_worker },
	{ "backups", test_backups },
	{ "FTRL keeps what was assigned", test_ftrl_keeps_what_was_assigned },
	{ "FTRL beyond its bits", test_ftrl_beyond_its_bits },
	{ "no memory", test_no_memory },
	{ "large state", test_large_state },
	{ "what goes back", test_what_goes_back },
	{ "resize", test_resize_keeps_state },
	{ "a push follows", test_push_follows },
	{ "saved state", test_state_is_all_there_is },
	{ "own rule", test_own_rule },
	{ "rows", test_rows },
	{ "floating-point modes", test_the_callers_modes_do_not_count },
	{ "NaN and infinity", test_nan_and_infinity },
	CU_TEST_INFO_NULL,
};

/* Each set of instructions that this processor has. */

static int use_plain(void) { return !tt_reduce_use(0); }
static int use_avx2(void) { return !tt_reduce_use(1); }
static int use_avx512(void) { return !tt_reduce_use(2); }

int main(int argc, char **argv)
{
	CU_SuiteInfo suites[] = { { "updater alike", NULL, NULL, NULL, NULL, alike_tests },
		                  { "updater plain", use_plain, NULL, NULL, NULL, updater_tests },
		                  { "updater AVX2", use_avx2, NULL, NULL, NULL, updater_tests },
		                  { "updater AVX-512", use_avx512, NULL, NULL, NULL, updater_tests },
		                  CU_SUITE_INFO_NULL };

	for (int level = 0; level < 3; level++)
		if (!tt_reduce_use(level)) {
			printf("not on this processor: %s\n", suites[1 + level].pName);
			suites[1 + level] = (CU_SuiteInfo)CU_SUITE_INFO_NULL;
		}
	tt_random_seed(&dice, 20240607);
	return run_suites(suites, argc, argv);
}
