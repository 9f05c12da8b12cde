/* conformance_average_sync.c - the recorded cases of all-reduce SGD and synchronous elastic averaging, through the
 * public functions: each with as many ranks as it has, on sim, over TCP and in shared memory. All is computed in
 * f64. */
#include "tests/conformance/cases.h"
#include "tests/harness/cunit_main.h"
#include "tests/harness/ranks.h"
#include <math.h>

static const struct node *the_case, *in, *out; /* of the run */

static bool is_near(double x, double expected)
{
	return fabs(x - expected) <= number(the_case, "tolerance") * fmax(1, fabs(expected));
}

static bool are_near(const double *v, const struct node *expected)
{
	int i = 0;

	EACH(n, expected)
		if (!is_near(v[i++], n->number))
			return false;
	return i > 0;
}

static double *vector_of(const struct node *list, size_t *n)
{
	double *v = calloc((size_t)length(list) + 1, sizeof *v);

	*n = (size_t)length(list);
	set_elements(v, list, TUTTI_F64);
	return v;
}

static tutti_tensor tensor_of(double *v, size_t n) { return (tutti_tensor){ v, n, TUTTI_F64 }; }

/* ---- all-reduce ---- */

static int rule_of(const struct node *op) /* as a binding finds it; -1: none */
{
	static const struct { const char *name; tutti_rule rule;
	} ops[] = {
		{ "+", TUTTI_SUM },       { "sum", TUTTI_SUM },      { "add", TUTTI_SUM },
		{ "*", TUTTI_PRODUCT },   { "prod", TUTTI_PRODUCT }, { "product", TUTTI_PRODUCT },
		{ "mul", TUTTI_PRODUCT }, { "max", TUTTI_MAX },      { "maximum", TUTTI_MAX },
		{ "min", TUTTI_MIN },     { "minimum", TUTTI_MIN },
	};

	for (size_t i = 0; i < TT_COUNT(ops); i++)
		if (is_text(op, ops[i].name))
			return (int)ops[i].rule;
	return -1;
}

static void run_allreduce(tutti *job)
{
	size_t n;
	const struct node *mine = at(get(in, "values"), tutti_rank(job));
	double *v = vector_of(mine, &n), *w = vector_of(mine, &n);
	tutti_tensor halves[2] = { tensor_of(w, n / 2), tensor_of(w + n / 2, n - n / 2) };
	tutti_rule rule = (tutti_rule)rule_of(get(in, "op"));

	CHECK(tutti_allreduce(job, v, v, n, TUTTI_F64, rule, NULL) == 0);
	CHECK(are_near(v, get(out, "result")));
	CHECK(tutti_allreduce_tensors(job, halves, 2, rule, NULL) == 0);
	CHECK(are_near(w, get(out, "result")));
	free(v);
	free(w);
}

/* ---- all-reduce SGD ---- */

/* A tree's all-reduce of numbers, with fewer steps on some ranks. */
static void run_uneven(tutti *job)
{
	const struct node *rounds = at(get(out, "per_node_rounds"), tutti_rank(job));
	int contributors, steps = whole(at(get(in, "steps"), tutti_rank(job)));
	double x, sum = 0;
	tutti_tensor t = tensor_of(&x, 1);
	tutti_gradients *g;

	CHECK(tutti_gradients_open(job, &t, 1, 0, &g) == 0);
	for (int i = 0; i < steps; i++) {
		x = at(get(in, "values"), tutti_rank(job))->number;
		CHECK(tutti_gradients_sum(g, &contributors) == 0);
		CHECK(is_near(x, at(at(rounds, i), 0)->number) && contributors == whole(at(at(rounds, i), 1)));
		sum += x;
	}
	CHECK(length(rounds) == steps);
	CHECK(is_near(sum, at(get(out, "per_node_accumulated"), tutti_rank(job))->number));
	CHECK(tutti_gradients_synchronize(g, &t, 1) == 0);
	tutti_gradients_close(g);
}

static void step_sgd(tutti_gradients *g, const struct node *round, double *p, const double *grad, size_t n)
{
	int contributors;

	CHECK(tutti_gradients_average(g, &contributors) == 0);
	CHECK(contributors == whole(get(round, "n")) && contributors == length(get(round, "contributors")));
	CHECK(are_near(grad, get(round, "grad_seen")));
	for (size_t i = 0; i < n; i++)
		p[i] -= number(in, "lr") * grad[i];
}

static void run_sgd(tutti *job)
{
	size_t n;
	int round = 0, rank = tutti_rank(job);
	double *p = vector_of(at(get(in, "params"), rank), &n), *grad = calloc(n, sizeof *grad);
	tutti_tensor params = tensor_of(p, n), grads = tensor_of(grad, n);
	tutti_gradients *g;

	CHECK(tutti_gradients_open(job, &grads, 1, 0, &g) == 0);
	EACH(step, at(get(in, "grads"), rank)) {
		set_elements(grad, step, TUTTI_F64);
		CHECK(round % 2 == 0 || tutti_gradients_ready(g, 0) == 0);
		step_sgd(g, at(get(out, "rounds"), round++), p, grad, n);
	}
	CHECK(are_near(p, at(get(out, "params_before_sync"), rank)));
	CHECK(tutti_gradients_synchronize(g, &params, 1) == 0);
	CHECK(are_near(p, at(get(out, "params_after_sync"), rank)));
	double *winner = calloc(n, sizeof *winner);
	memcpy(winner, p, n * sizeof *p);
	CHECK(tutti_broadcast(job, winner, n * sizeof *p, whole(get(out, "winner_node_1based")) - 1, NULL) == 0);
	CHECK(!memcmp(winner, p, n * sizeof *p));
	tutti_gradients_close(g);
	free(winner);
	free(p);
	free(grad);
}

static void run_sync_sgd(tutti *job)
{
	size_t n;
	double *v = vector_of(at(get(in, "updates"), tutti_rank(job)), &n);
	tutti_tensor t = tensor_of(v, n);
	tutti_gradients *g;
	int contributors;

	CHECK(tutti_gradients_open(job, &t, 1, 0, &g) == 0);
	CHECK((is_true(get(in, "average")) ? tutti_gradients_average(g, &contributors)
	                                   : tutti_gradients_sum(g, &contributors)) == 0);
	CHECK(contributors == tutti_size(job) && are_near(v, at(get(out, "updates"), tutti_rank(job))));
	tutti_gradients_close(g);
	free(v);
}

/* ---- elastic averaging ---- */

static tutti_ea *open_ea(tutti *job, double *p, size_t n, double alpha, unsigned flags)
{
	const struct node *tau = get(in, "tau");
	tutti_tensor t = tensor_of(p, n);
	tutti_ea *ea = NULL;

	CHECK(tutti_ea_open(job, &t, 1, tau->kind == NUMBER ? whole(tau) : 1, alpha, flags, &ea) == 0);
	return ea;
}

static double *center_of(tutti_ea *ea)
{
	tutti_tensor t = { 0 };

	CHECK(tutti_ea_center(ea, &t) == 0);
	return t.data;
}

static void run_ea(tutti *job)
{
	size_t n;
	int round = 0, step = 0, rank = tutti_rank(job), tau = whole(get(in, "tau"));
	const struct node *after = get(out, "after_synchronizeCenter"),
			  *then = get(out, "then_synchronizeParameters_with_no_new_steps");
	double *p = vector_of(at(get(in, "params"), rank), &n);
	tutti_ea *ea = open_ea(job, p, n, number(in, "alpha"), TUTTI_EA_DISTLEARN);

	EACH(update, at(get(in, "local"), rank)) {
		if (!step)
			center_of(ea); /* begins as a clone of the parameters here */
		for (size_t i = 0; i < n; i++)
			p[i] += at(update, (int)i)->number;
		bool averages = ++step % tau == 0;
		CHECK(tutti_ea_step(ea, NULL) == averages);
		if (!averages)
			continue;
		const struct node *r = at(get(out, "rounds"), round++);
		CHECK(are_near(p, at(get(r, "params"), rank)));
		CHECK((step / tau) % 2 == 0 || are_near(center_of(ea), at(get(r, "centers"), rank)));
	}
	CHECK(tutti_ea_synchronize_center(ea) == 0);
	CHECK(are_near(p, at(get(after, "params"), rank)) && are_near(center_of(ea), get(after, "center")));
	CHECK(tutti_ea_synchronize(ea) == 0);
	CHECK(are_near(p, at(get(then, "params"), rank)) && are_near(center_of(ea), get(then, "center")));
	tutti_ea_close(ea);
	free(p);
}

/* One element of what should come out: no sum is lost, and nothing moves without one. x, c: of each rank. */
static void mend_element(int ranks, int i, double *x, double *c)
{
	int tau = whole(get(in, "tau")), left, step[64] = { 0 };
	double alpha = number(in, "alpha");

	do {
		double sum = 0;
		left = 0;
		for (int k = 0; k < ranks; k++) { /* to the next averaging, or the last step */
			const struct node *local = at(get(in, "local"), k);
			bool averages = false;
			while (step[k] < length(local) && !averages) {
				x[k] += at(at(local, step[k]), i)->number;
				averages = ++step[k] % tau == 0;
			}
			left += averages;
		}
		for (int k = 0; k < ranks && left; k++) {
			double d = alpha * (x[k] - c[k]);
			x[k] -= d;
			sum += d;
		}
		for (int k = 0; k < ranks; k++)
			c[k] += sum;
	} while (left);
}

static void run_mended_ea(tutti *job)
{
	size_t n;
	int rank = tutti_rank(job), ranks = tutti_size(job);
	double x[64], c[64], *p = vector_of(at(get(in, "params"), rank), &n);
	double *roots = calloc(n, sizeof *roots);
	tutti_ea *ea = open_ea(job, p, n, number(in, "alpha"), 0);

	center_of(ea);
	EACH(update, at(get(in, "local"), rank)) {
		for (size_t i = 0; i < n; i++)
			p[i] += at(update, (int)i)->number;
		CHECK(tutti_ea_step(ea, NULL) >= 0);
	}
	CHECK(tutti_ea_synchronize_center(ea) == 0);
	for (size_t i = 0; i < n; i++) {
		for (int k = 0; k < ranks; k++)
			x[k] = c[k] = at(at(get(in, "params"), k), (int)i)->number;
		mend_element(ranks, (int)i, x, c);
		CHECK(is_near(p[i], x[rank]) && is_near(center_of(ea)[i], c[0]));
		roots[i] = x[0];
	}
	CHECK(tutti_ea_synchronize(ea) == 0);
	for (size_t i = 0; i < n; i++)
		CHECK(is_near(p[i], roots[i]) && p[i] == center_of(ea)[i]);
	tutti_ea_close(ea);
	free(roots);
	free(p);
}

static void run_easgd(tutti *job)
{
	size_t n;
	double *p = vector_of(at(get(in, "local"), tutti_rank(job)), &n);
	tutti_ea *ea = open_ea(job, p, n, number(in, "alpha"), 0);

	set_elements(center_of(ea), at(get(in, "central"), tutti_rank(job)), TUTTI_F64);
	CHECK(tutti_ea_step(ea, NULL) == 1);
	CHECK(are_near(p, at(get(out, "local"), tutti_rank(job))));
	CHECK(are_near(center_of(ea), at(get(out, "central"), tutti_rank(job))));
	tutti_ea_close(ea);
	free(p);
}

/* The gradient is taken before the elastic move. */
static void run_paper(tutti *job)
{
	double x = at(get(in, "x"), tutti_rank(job))->number;
	tutti_ea *ea = open_ea(job, &x, 1, number(in, "alpha"), 0);

	*center_of(ea) = number(in, "center");
	EACH(after, get(out, "trace")) {
		double step = number(in, "eta") * number(in, "h") * x;
		CHECK(tutti_ea_step(ea, NULL) == 1);
		x -= step;
		CHECK(is_near(x, at(get(after, "x"), tutti_rank(job))->number));
		CHECK(is_near(*center_of(ea), number(after, "center")));
	}
	tutti_ea_close(ea);
}

/* ---- all of them ---- */

static const struct {
	const char *ref, *per_rank; /* the list that has an entry for each rank */
	void (*run)(tutti *);
} runners[] = {
	{ "allreduce_uneven_numbers", "values", run_uneven }, { "platoon_allreduce", "values", run_allreduce },
	{ "allreduce_sgd", "params", run_sgd }, { "platoon_sync_sgd", "updates", run_sync_sgd },
	{ "allreduce_ea", "params", run_ea }, { "platoon_sync_easgd", "local", run_easgd },
	{ "paper_easgd_sync", "x", run_paper },
};

static int on_all_wires(int size, void (*program)(tutti *))
{
	int failed = 0;

	for (uint64_t seed = 0; seed < count_seeds(3); seed++)
		failed += run_ranks((struct ranks){ .size = size, .wire = "sim", .seed = seed, .program = program });
	return failed + run_real_ranks((struct ranks){ .size = size, .program = program });
}

static int run_case(void)
{
	for (size_t k = 0; k < TT_COUNT(runners); k++) {
		if (!is_text(get(the_case, "ref"), runners[k].ref))
			continue;
		int size = length(get(in, runners[k].per_rank)), failed = on_all_wires(size, runners[k].run);
		if (runners[k].run == run_ea)
			failed += on_all_wires(size, run_mended_ea);
		if (failed)
			printf("%s: %d checks failed\n", get(the_case, "id")->text, failed);
		return failed;
	}
	printf("%s: nothing runs it\n", get(the_case, "id")->text);
	return 1;
}

static bool is_ours(const char *id)
{
	static const char *const begins[] = { "ipc-",      "dl-sgd-",   "dl-ea-",        "pl-easgd-unit",
		                              "pl-sumsgd", "pl-avgsgd", "pl-allreduce-", "paper-easgd-sync" };

	for (size_t i = 0; i < TT_COUNT(begins); i++)
		if (!strncmp(id, begins[i], strlen(begins[i])))
			return true;
	return false;
}

static void test_cases(void)
{
	const struct node *cases = load_cases();
	int ran = 0;

	EACH(c, cases) {
		the_case = c;
		in = get(c, "input");
		out = get(c, "expected");
		/* an operation that only a binding can name */
		if (!is_ours(get(c, "id")->text) || get(out, "error")->kind == TEXT)
			continue;
		CU_ASSERT_EQUAL(run_case(), 0);
		ran++;
	}
	CU_ASSERT(ran >= 20);
	free_cases();
}

static CU_TestInfo tests[] = { { "cases", test_cases }, CU_TEST_INFO_NULL };
static CU_SuiteInfo suites[] = { { "conformance of synchronous averaging", NULL, NULL, NULL, NULL, tests },
	                         CU_SUITE_INFO_NULL };

int main(int argc, char **argv) { return run_suites(suites, argc, argv); }
