/* conformance_average_center.c - recorded cases of centers on servers: torch-distlearn's AsyncEA, Platoon's
 * parameter synchronisation and Downpour, asynchronous EASGD and EAMSGD of the paper. Each with real ranks, one a
 * worker and one more, which only serves; in f64. The events of a case come in their order, one rank after the
 * other. */
#include "tests/conformance/cases.h"
#include "tests/harness/cunit_main.h"
#include "tests/harness/ranks.h"
#include <math.h>

static const struct node *cases, *now; /* now: the case that runs */

static const struct node *in(const char *key) { return get(get(now, "input"), key); }
static const struct node *out(const char *key) { return get(get(now, "expected"), key); }
static void meet(tutti *job) { CHECK(tutti_barrier(job, NULL) == 0); }

/* A list, or one number. */
static int length_of(const struct node *values) { return values->kind == LIST ? length(values) : 1; }
static double value_of(const struct node *values, int i)
{
	return values->kind == LIST ? at(values, i)->number : values->number;
}

static void set(double *v, const struct node *values)
{
	for (int i = 0; i < length_of(values); i++)
		v[i] = value_of(values, i);
}

static void add(double *v, const struct node *values)
{
	for (int i = 0; i < length(values); i++)
		v[i] += at(values, i)->number;
}

static bool is_near(double x, double expected)
{
	return fabs(x - expected) <= number(now, "tolerance") * fmax(1, fabs(expected));
}

static bool are(const double *v, const struct node *expected)
{
	bool good = expected->kind == NUMBER || expected->kind == LIST;

	for (int i = 0; good && i < length_of(expected); i++)
		good = is_near(v[i], value_of(expected, i));
	if (!good)
		printf("%s: differs, %.17g and so on\n", get(now, "id")->text, v[0]);
	return good;
}

struct one { /* a rank's model and its center */
	tutti *job;
	tutti_center *center;
	double *x, *other; /* of n elements; other: for what the servers have, or is expected */
	int n, rank, workers;
};

/* All but the last rank work; the center begins with `first`. */
static struct one begin(tutti *job, tutti_center_config config, const struct node *first)
{
	struct one o = { .job = job, .n = length_of(first), .rank = tutti_rank(job), .workers = tutti_size(job) - 1 };
	int *workers = calloc((size_t)o.workers, sizeof *workers);

	for (int i = 0; i < o.workers; i++)
		workers[i] = i;
	config.workers = o.workers;
	config.worker = workers;
	o.x = calloc((size_t)o.n, sizeof *o.x);
	o.other = calloc((size_t)o.n, sizeof *o.other);
	if (o.rank == 0)
		set(o.x, first);
	const tutti_tensor params = { o.x, (size_t)o.n, TUTTI_F64 };
	CHECK(tutti_center_open(job, "model", &params, 1, &config, &o.center) == 0);
	free(workers);
	return o;
}

static void end(struct one *o)
{
	meet(o->job);
	tutti_center_close(o->center);
	meet(o->job);
	free(o->x);
	free(o->other);
}

static bool has_center(struct one *o, const struct node *expected)
{
	return tutti_table_pull(tutti_center_table(o->center), o->other, NULL) == 0 && are(o->other, expected);
}

/* ---- torch-distlearn ---- */

static int workers_async(void) { return whole(in("num_clients")); }

static void run_async(tutti *job)
{
	struct one o = begin(job, tutti_center_easgd(whole(in("tau")), in("alpha")->number), in("center"));
	int *steps = calloc((size_t)o.workers, sizeof *steps), syncs = 0;

	EACH(event, in("order")) {
		int client = whole(at(event, 0));
		bool syncs_now = ++steps[client] % whole(in("tau")) == 0;
		const struct node *sync = at(out("syncs"), syncs);
		if (client == o.rank) {
			add(o.x, at(event, 1));
			memcpy(o.other, o.x, (size_t)o.n * sizeof *o.x);
			CHECK(tutti_center_step(o.center, NULL) == syncs_now);
			for (int i = 0; i < o.n; i++)
				o.other[i] -= o.x[i];
			CHECK(!syncs_now || (whole(get(sync, "client")) == client &&
			                     are(o.x, get(sync, "client_params")) && are(o.other, get(sync, "delta"))));
		}
		meet(job);
		CHECK(!syncs_now || has_center(&o, get(sync, "center")));
		meet(job);
		syncs += syncs_now;
	}
	CHECK(syncs == length(out("syncs")) && has_center(&o, out("final_center")));
	CHECK(o.rank == o.workers || are(o.x, at(out("final_params"), o.rank)));
	free(steps);
	end(&o);
}

/* ---- Platoon ---- */

static int workers_sync(void) { return length(in("workers")); }

/* What it should have come to: the center, and what the workers have done. */
static void be_mended(double *sum, int n, double *undone, const struct node *event)
{
	if (get(event, "local_update")->kind == LIST)
		add(undone, get(event, "local_update"));
	for (int i = 0; i < n && is_true(get(event, "sync")); i++) {
		sum[i] += undone[i];
		undone[i] = 0;
	}
}

static bool are_equal(const double *v, const double *expected, int n)
{
	for (int i = 0; i < n; i++)
		if (!is_near(v[i], expected[i]))
			return false;
	return true;
}

static void run_events(struct one *o, bool mended)
{
	double *sum = calloc((size_t)o->n, sizeof *sum), *undone = calloc((size_t)(o->n * o->workers), sizeof *undone);
	int syncs = 0;

	set(sum, in("master"));
	EACH(event, in("events")) {
		int worker = whole(get(event, "worker"));
		const struct node *sync = at(out("syncs"), syncs);
		be_mended(sum, o->n, undone + worker * o->n, event);
		if (worker == o->rank && get(event, "local_update")->kind == LIST)
			add(o->x, get(event, "local_update"));
		if (is_true(get(event, "sync"))) {
			if (worker == o->rank) {
				CHECK(tutti_center_step(o->center, NULL) == 1 && whole(get(sync, "worker")) == worker);
				CHECK(mended ? are_equal(o->x, sum, o->n) : are(o->x, get(sync, "local")));
			}
			meet(o->job);
			if (mended)
				CHECK(tutti_table_pull(tutti_center_table(o->center), o->other, NULL) == 0 &&
				      are_equal(o->other, sum, o->n));
			else
				CHECK(has_center(o, get(sync, "master")));
			syncs++;
		}
		meet(o->job);
	}
	CHECK(syncs == length(out("syncs")));
	CHECK(mended ||
	      (has_center(o, out("master")) && (o->rank == o->workers || are(o->x, at(out("workers"), o->rank)))));
	free(sum);
	free(undone);
}

static void run_easgd(tutti *job)
{
	struct one o = begin(job, tutti_center_easgd(1, in("alpha")->number), in("master"));

	if (o.rank < o.workers)
		set(o.x, at(in("workers"), o.rank));
	run_events(&o, false);
	end(&o);
}

/* Mended: a worker that began elsewhere pulls the center, and what it had before counts for nothing. */
static void run_asgd(tutti *job)
{
	bool copies = is_true(in("copy_to_local_after_init"));
	struct one o = begin(job, tutti_center_asgd(1), in("master"));

	if (copies && o.rank < o.workers) {
		set(o.x, at(in("workers"), o.rank));
		CHECK(tutti_center_pull(o.center) == 0);
	}
	run_events(&o, copies);
	end(&o);
}

static int workers_downpour(void) { return length(in("acc")); }

static void run_downpour(tutti *job)
{
	struct one o = begin(job, tutti_center_downpour(1, is_true(in("average"))), in("global"));

	if (o.rank < o.workers) {
		add(o.x, at(in("acc"), o.rank));
		CHECK(tutti_center_step(o.center, NULL) == 1 && are(o.x, at(out("local"), o.rank)));
	}
	meet(job);
	CHECK(has_center(&o, out("global")));
	meet(job);
	if (o.rank < o.workers) /* the accumulators are 0 again */
		CHECK(tutti_center_step(o.center, NULL) == 1 && are(o.x, at(out("local"), o.rank)));
	end(&o);
}

/* ---- the paper: the gradient of h x^2 / 2 is taken before the elastic move ---- */

static int workers_paper(void) { return length_of(in("x")); }

static void run_paper(tutti *job)
{
	struct one o = begin(job, tutti_center_easgd(whole(in("tau")), in("alpha")->number), in("center"));
	int ticks = 0;

	if (o.rank < o.workers)
		o.x[0] = value_of(in("x"), o.rank);
	EACH(tick, out("trace")) {
		int worker = ticks % o.workers, step = ticks / o.workers;
		if (worker == o.rank) {
			double gradient = in("h")->number * o.x[0];
			CHECK(step % whole(in("tau")) || tutti_center_exchange(o.center, NULL) == 0);
			o.x[0] -= in("eta")->number * gradient;
			CHECK(whole(get(tick, "worker")) == worker && are(o.x, get(tick, "x")));
		}
		meet(job);
		CHECK(has_center(&o, get(tick, "center")));
		meet(job);
		ticks++;
	}
	CHECK(ticks == whole(in("ticks")));
	end(&o);
}

static void run_momentum(tutti *job)
{
	tutti_center_config config = tutti_center_easgd(whole(in("tau")), in("alpha")->number);
	config.momentum = in("delta")->number;
	struct one o = begin(job, config, in("center"));
	double gradient, before;
	const tutti_tensor g = { &gradient, 1, TUTTI_F64 };
	int steps = 0;

	o.x[0] = o.rank < o.workers ? value_of(in("x"), 0) : 0;
	EACH(step, out("trace")) {
		if (o.rank < o.workers) {
			CHECK(tutti_center_ahead(o.center, &g) == 0);
			gradient *= in("h")->number;
			CHECK(steps % whole(in("tau")) || tutti_center_exchange(o.center, NULL) == 0);
			before = o.x[0];
			CHECK(tutti_center_move(o.center, &g, in("eta")->number) == 0);
			CHECK(are(o.x, get(step, "x")) && is_near(o.x[0] - before, get(step, "v")->number));
		}
		meet(job);
		CHECK(has_center(&o, get(step, "center")));
		meet(job);
		steps++;
	}
	CHECK(steps == whole(in("steps")));
	end(&o);
}

/* ---- all of them ---- */

static const struct {
	const char *ref;
	int (*workers)(void);
	void (*run)(tutti *);
} runners[] = {
	{ "async_ea", workers_async, run_async },
	{ "platoon_easgd", workers_sync, run_easgd },
	{ "platoon_asgd", workers_sync, run_asgd },
	{ "platoon_downpour", workers_downpour, run_downpour },
	{ "paper_easgd_async_rr", workers_paper, run_paper },
	{ "paper_eamsgd", workers_paper, run_momentum },
};

static void run_on_wires(size_t k)
{
	struct ranks run = { .size = runners[k].workers() + 1, .wire = "sim", .program = runners[k].run };
	int failed = 0;

	for (; run.seed < count_seeds(5); run.seed++)
		failed += run_ranks(run);
	failed += run_real_ranks(run);
	if (failed)
		printf("%s: does not come out\n", get(now, "id")->text);
	CU_ASSERT_EQUAL(failed, 0);
}

static void test_cases(void)
{
	int ran = 0;

	cases = load_cases();
	EACH(c, cases)
		for (size_t k = 0; k < TT_COUNT(runners); k++)
			if (is_text(get(c, "ref"), runners[k].ref)) {
				now = c;
				run_on_wires(k);
				ran++;
			}
	CU_ASSERT(ran > 0);
	free_cases();
}

static CU_TestInfo tests[] = { { "cases", test_cases }, CU_TEST_INFO_NULL };
static CU_SuiteInfo suites[] = { { "conformance of centers", NULL, NULL, NULL, NULL, tests }, CU_SUITE_INFO_NULL };

int main(int argc, char **argv) { return run_suites(suites, argc, argv); }
