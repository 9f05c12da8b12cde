/* unit_study.c - `tutti sim`: gossip on a static graph is a matrix, and converges as fast as the matrix says; ranks
 * that die and come again; push-sum keeps the mean */
#include "tests/harness/cunit_main.h"
#include "tools/sim/sim.h"
#include <math.h>
#include <stdlib.h>

static const struct tt_sim_graph *graph(const char *name)
{
	const struct tt_sim_graph *g = tt_sim_graphs;

	while (strcmp(g->name, name))
		g++;
	return g;
}

static struct tt_sim_options gossip(int ranks, int rounds, const char *on)
{
	return (struct tt_sim_options){ .method = tt_sim_methods, .graph = graph(on), .ranks = ranks, .rounds = rounds,
		                        .bytes = 64, .latency = 50000, .bandwidth = 10000000000, .step = 10 * TT_MS,
		                        .straggler = 1, .factor = 0.5, .seed = 7 };
}

static bool run_study(struct tt_study *s)
{
	int err = tt_study_run(s);

	if (err)
		printf("%s\n", tutti_why());
	CU_ASSERT(!err && s->row_count > 0);
	return !err && s->row_count > 0;
}

/* ---- against the matrix ---- */

struct path { /* of one element on all ranks, at the end of each period */
	int ranks, period, most;
	double *x;
};

static void note(void *arg, int rank, int round, const double *x)
{
	struct path *p = arg;
	int k = (round + 1) / p->period;

	if ((round + 1) % p->period == 0 && k <= p->most)
		p->x[(size_t)k * p->ranks + rank] = *x;
}

static double distance(const double *x, int n)
{
	double mean = 0, square = 0;

	for (int i = 0; i < n; i++)
		mean += x[i] / n;
	for (int i = 0; i < n; i++)
		square += (x[i] - mean) * (x[i] - mean) / n;
	return sqrt(square);
}

static double *start_of(const struct tt_study *s)
{
	double *x = calloc((size_t)s->options.ranks, sizeof *x);

	for (int i = 0; i < s->options.ranks; i++)
		tt_study_start(s, i, &x[i], 1);
	return x;
}

/* How far the path is from M^k x0, at most; the slope of the log of its distance is in *slope. */
static double follow(struct tt_sim_options o, double *slope)
{
	int n = o.ranks, period = o.graph->period(n), most = o.rounds / period;
	struct path p = { n, period, most, calloc((size_t)(most + 1) * n, sizeof(double)) };
	struct tt_study s = { .options = o, .done = note, .arg = &p };
	double *m = tt_sim_matrix(&o), *want = start_of(&s), *next = calloc((size_t)n, sizeof *next), worst = 0;
	double begin = distance(want, n), sum[4] = { 0 };
	int points = 0;

	if (run_study(&s))
		for (int k = 1; k <= most; k++) {
			const double *is = p.x + (size_t)k * n;
			for (int i = 0; i < n; i++) {
				next[i] = 0;
				for (int j = 0; j < n; j++)
					next[i] += m[(size_t)i * n + j] * want[j];
				worst = fmax(worst, fabs(next[i] - is[i]));
			}
			memcpy(want, next, (size_t)n * sizeof *want);
			double d = distance(is, n) / begin;
			if (d > 0.1 || d < 1e-10)
				continue;
			points++;
			sum[0] += k, sum[1] += log(d), sum[2] += (double)k * k, sum[3] += k * log(d);
		}
	*slope = (points * sum[3] - sum[0] * sum[1]) / (points * sum[2] - sum[0] * sum[0]);
	CU_ASSERT(points >= 5);
	tt_study_free(&s);
	free(p.x);
	free(m);
	free(want);
	free(next);
	return worst;
}

static void check_graph(const char *name, int ranks, int rounds, double factor, double lambda2)
{
	struct tt_sim_options o = gossip(ranks, rounds, name);
	double slope, worst;

	o.factor = factor;
	worst = follow(o, &slope);
	printf("%s %d: at most %.2g from M^t x0; slope %.5f a period, ln|lambda2| %.5f\n", name, ranks, worst, slope,
	       log(lambda2));
	CU_ASSERT(worst < 1e-6);
	CU_ASSERT(fabs(slope - log(lambda2)) < 0.05 * fabs(log(lambda2)));
}

static void test_static(void)
{
	double turn = 2 * acos(-1);

	/* Of a ring's period: (1 + P) / 2 times (1 + P^-1) / 2. A torus is the product of two rings. */
	check_graph("ring", 16, 1400, 0.5, (1 + cos(turn / 16)) / 2);
	check_graph("torus", 64, 800, 0.5, (1 + cos(turn / 8)) / 2);
	/* With a half, 1, 2, 4, 8 make the exact mean of 16. Else what turns sign at the distance 1 is left. */
	check_graph("exponential", 16, 160, 0.25, 0.5);
}

static void test_exact(void)
{
	struct tt_study s = { .options = gossip(16, 6, "exponential") };

	if (run_study(&s)) {
		CU_ASSERT(s.rows[3].consensus > 1e-3 && s.rows[4].consensus < 1e-15);
		CU_ASSERT(s.rows[s.row_count - 1].shift < 1e-15 && s.rows[s.row_count - 1].round == 6);
	}
	tt_study_free(&s);
}

/* The mean stays where it is, if each rank mixes what was published in the same round. */
static void test_many_ranks(void)
{
	int ranks = all_or(1000, 250);
	struct tt_study s = { .options = gossip(ranks, 30, "exponential") };

	if (run_study(&s)) {
		const struct tt_sim_row *r = &s.rows[s.row_count - 1];
		CU_ASSERT(r->shift < 1e-15 && r->consensus < 1e-4 && r->alive == ranks);
	}
	tt_study_free(&s);
}

/* ---- deaths, loss, push-sum ---- */

static void test_churn(void)
{
	for (uint64_t seed = (uint64_t)all_or(1, 3); seed <= 4; seed++) {
		struct tt_study s = { .options = gossip(100, 100, "uniform") };
		int fewest = 100, last;
		s.options.seed = seed;
		s.options.churn = 0.1;
		s.options.loss = seed == 4 ? 0.001 : 0;
		if (!run_study(&s))
			return;
		last = s.row_count - 1;
		for (int i = 0; i <= last; i++) {
			CU_ASSERT(isfinite(s.rows[i].consensus));
			fewest = s.rows[i].alive < fewest ? s.rows[i].alive : fewest;
		}
		CU_ASSERT(fewest < 100 && s.rows[last].alive == 100);
		/* the last event is over by three quarters */
		bool falls = s.rows[last].consensus < 0.1 * s.rows[last * 4 / 5].consensus;
		if (!falls)
			printf("seed %d: %g, then %g\n", (int)seed, s.rows[last * 4 / 5].consensus,
			       s.rows[last].consensus);
		CU_ASSERT(falls);
		tt_study_free(&s);
	}
}

static void test_push_sum(void)
{
	struct tt_study s = { .options = gossip(100, 200, "uniform") };

	s.options.way = TUTTI_GOSSIP_PUSH_SUM;
	if (run_study(&s)) {
		const struct tt_sim_row *r = &s.rows[s.row_count - 1];
		printf("push-sum: the mean has moved by %.2g, the distance is %.2g\n", r->shift, r->consensus);
		CU_ASSERT(r->shift < 1e-12 && r->consensus < 1e-12);
	}
	tt_study_free(&s);
}

static void test_all_reduce(void)
{
	struct tt_study s = { .options = gossip(20, 30, "uniform") };

	s.options.method = tt_sim_methods + 2;
	s.options.churn = 0.2;
	if (run_study(&s)) {
		const struct tt_sim_row *r = &s.rows[s.row_count - 1];
		CU_ASSERT(r->alive == 20 && r->round == 30 && r->consensus < 1e-14);
	}
	tt_study_free(&s);
}

static CU_TestInfo tests[] = {
	{ "static graphs", test_static },
	{ "an exact mean", test_exact },
	{ "many ranks", test_many_ranks },
	{ "deaths and returns", test_churn },
	{ "push-sum", test_push_sum },
	{ "all-reduce", test_all_reduce },
	CU_TEST_INFO_NULL,
};
static CU_SuiteInfo suites[] = { { "study", NULL, NULL, NULL, NULL, tests }, CU_SUITE_INFO_NULL };

int main(int argc, char **argv) { return run_suites(suites, argc, argv); }
