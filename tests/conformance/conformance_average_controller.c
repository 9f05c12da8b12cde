/* conformance_average_controller.c - Platoon's recorded cases of a controller, with a controller and workers that are
 * ranks: on sim, over TCP and in shared memory. The events of a case come in their order, one after another. */
#include "tests/conformance/cases.h"
#include "tests/harness/cunit_main.h"
#include "tests/harness/ranks.h"
#include <math.h>

static const struct node *the_case;
static int cases_run;

static int workers_of(const struct node *in)
{
	return get(in, "local_size")->kind == NUMBER ? whole(get(in, "local_size")) : 2;
}

static tutti_controller *open_controller(tutti *job)
{
	tutti_controller *c = NULL;

	CHECK(tutti_controller_open(job, "platoon", 0, &c) == 0);
	return c;
}

/* One event after another: the lock's owner has the turn, which it takes from a number that all see. */
static atomic_int turn;

static void await_turn(int i)
{
	while (turn < i)
		pass_time(50000);
}

/* ---- which worker is the first ---- */

static int answer_nothing(const tutti_request *r, void *answer, size_t room, void *arg)
{
	(void)r, (void)answer, (void)room, (void)arg;
	return 0;
}

static void be_first(tutti *job)
{
	const struct node *expected = get(get(the_case, "expected"), "first");
	tutti_controller *c = open_controller(job);
	int workers = tutti_size(job) - 1, i = 0;

	if (tutti_rank(job) == 0)
		CHECK(tutti_controller_serve(c, answer_nothing, NULL) == 0);
	EACH(n, expected) {
		if (i % workers == tutti_rank(job) - 1) {
			await_turn(i);
			CHECK(tutti_controller_first(c) == is_true(n));
			turn++;
		}
		i++;
	}
	CHECK(i == whole(get(get(the_case, "input"), "requests")));
	tutti_controller_close(c);
}

/* ---- a controller that stops early ---- */

struct training { /* the example's: patience over the best of the errors before the last ones */
	int patience, freq, bad, seen, room;
	double most, updates, *errors;
	bool validate, stop;
};

static double least(const double *x, int n)
{
	double min = INFINITY;

	for (int i = 0; i < n; i++)
		min = fmin(min, x[i]);
	return min;
}

static const char *take_error(struct training *t, double error)
{
	if (t->seen < t->room)
		t->errors[t->seen++] = error;
	if (error <= least(t->errors, t->seen)) {
		t->bad = 0;
		return "best";
	}
	t->bad += t->seen > t->patience && error >= least(t->errors, t->seen - t->patience);
	return "";
}

/* A request is a word and a number. */
static int answer_worker(const tutti_request *r, void *answer, size_t room, void *arg)
{
	struct training *t = arg;
	const char *says = "";
	char word[32];
	double x;

	if (r->what != TUTTI_JOINED)
		return 0;
	CHECK(r->bytes == sizeof word + sizeof x);
	memcpy(word, r->data, sizeof word);
	memcpy(&x, (const char *)r->data + sizeof word, sizeof x);
	if (!strcmp(word, "next")) {
		says = t->stop ? "stop" : t->validate ? "valid" : "train";
		t->validate = t->validate && t->stop;
	} else if (!strcmp(word, "done")) {
		t->updates += x;
		t->validate |= fmod(t->updates, t->freq) == 0;
	} else if (!strcmp(word, "pred_errors")) {
		says = take_error(t, x);
	} else {
		return -EINVAL;
	}
	t->stop |= t->updates > t->most || t->bad > t->patience;
	return snprintf(answer, room, "%s", says);
}

static void ask(tutti_controller *c, const struct node *event, const struct node *expected)
{
	char request[32 + sizeof(double)] = { 0 }, answer[32];
	double x = at(event, 1)->number;
	size_t n = 0;

	snprintf(request, 32, "%s", at(event, 0)->text);
	memcpy(request + 32, &x, sizeof x);
	CHECK(tutti_controller_ask(c, request, sizeof request, answer, sizeof answer, &n, -1) == 0);
	CHECK(n == strlen(expected->text) && !memcmp(answer, expected->text, n));
}

static void stop_early(tutti *job)
{
	const struct node *in = get(the_case, "input"), *events = get(in, "requests");
	struct training t = { .patience = whole(get(in, "patience")), .freq = whole(get(in, "valid_freq")),
		              .most = number(in, "max_mb"), .room = length(events) };
	tutti_controller *c = open_controller(job);
	int workers = tutti_size(job) - 1, i = 0;

	t.errors = calloc((size_t)t.room, sizeof *t.errors);
	if (tutti_rank(job) == 0)
		CHECK(tutti_controller_serve(c, answer_worker, &t) == 0);
	EACH(event, events) {
		if (i % workers == tutti_rank(job) - 1) {
			await_turn(i);
			ask(c, event, at(get(get(the_case, "expected"), "responses"), i));
			turn++;
		}
		i++;
	}
	tutti_controller_close(c);
	free(t.errors);
}

/* ---- all of them ---- */

static const struct {
	const char *ref;
	void (*run)(tutti *);
} runners[] = { { "platoon_first", be_first }, { "platoon_lstm_controller", stop_early } };

static void run_on(const char *wire, void (*run)(tutti *))
{
	turn = 0;
	CU_ASSERT_EQUAL(run_ranks((struct ranks){
				.size = 1 + workers_of(get(the_case, "input")), .wire = wire, .program = run }),
	                0);
}

static void run_case(void)
{
	for (size_t k = 0; k < TT_COUNT(runners); k++)
		if (is_text(get(the_case, "ref"), runners[k].ref)) {
			run_on("sim", runners[k].run);
			run_on("tcp", runners[k].run);
			run_on("shm", runners[k].run);
			cases_run++;
		}
}

static void test_cases(void)
{
	const struct node *cases = load_cases();

	EACH(c, cases) {
		the_case = c;
		run_case();
	}
	CU_ASSERT(cases_run >= (int)TT_COUNT(runners));
	free_cases();
}

static CU_TestInfo tests[] = { { "cases", test_cases }, CU_TEST_INFO_NULL };
static CU_SuiteInfo suites[] = { { "conformance", NULL, NULL, NULL, NULL, tests }, CU_SUITE_INFO_NULL };

int main(int argc, char **argv) { return run_suites(suites, argc, argv); }
