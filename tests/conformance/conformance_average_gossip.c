/* conformance_average_gossip.c - the recorded cases of dpwa, Gossip SGD and GoSGD, by ranks that gossip: on sim, tcp
 * and shm. A case has as many ranks, and arrays as long, as it needs. */
#include "average/gossip.h"
#include "tests/conformance/cases.h"
#include "tests/harness/cunit_main.h"
#include "tests/harness/ranks.h"
#include <math.h>

static const struct node *in, *out; /* of the case that runs */
static double tolerance;
static bool is_mended;

static bool is_near(double x, double expected) { return fabs(x - expected) <= tolerance * fmax(1, fabs(expected)); }

static void meet(tutti *job) { CHECK(tutti_barrier(job, NULL) == 0); }

/* A model of one tensor of f64 that lies in memory of the test. */
struct part {
	tutti *job;
	tutti_gossip *g;
	int n, peer;
	double *x;
};

/* In step: all have published before one of them reads. */
static int choose(void *arg)
{
	const struct part *p = arg;

	if (p->g->config.way == TUTTI_GOSSIP_PULL)
		meet(p->job);
	return p->peer;
}

static void open_part(struct part *p, tutti *job, const struct node *x, tutti_gossip_config c)
{
	*p = (struct part){ .job = job, .n = length(x), .peer = 1 - tutti_rank(job),
		.x = malloc((size_t)length(x) * sizeof *p->x) };
	tutti_tensor model = { p->x, (size_t)p->n, TUTTI_F64 };

	set_elements(p->x, x, TUTTI_F64);
	c.timeout_ms = 60000;
	c.choice = TUTTI_CHOICE_OWN;
	c.choose = choose;
	c.arg = p;
	CHECK(tutti_gossip_open(job, "case", &model, 1, &c, &p->g) == 0);
	meet(job);
}

static void close_part(struct part *p)
{
	meet(p->job);
	tutti_gossip_close(p->g);
	meet(p->job);
	free(p->x);
}

static void step(struct part *p, const struct node *update)
{
	int i = 0;

	EACH(n, update)
		p->x[i++] += n->number;
}

static bool has(const struct part *p, const struct node *expected)
{
	int i = 0;

	EACH(n, expected)
		if (!is_near(p->x[i++], n->number))
			return false;
	return i == p->n;
}

static tutti_gossip_config config_of(void)
{
	const struct node *method = get(in, "method");
	tutti_gossip_config c = tutti_gossip_defaults();

	c.divergence_threshold = number(in, "divergence_threshold");
	c.value = get(in, "value")->kind == NUMBER ? number(in, "value") : c.value;
	c.method = is_text(method, "clock") ? TUTTI_GOSSIP_CLOCK : is_text(method, "loss") ? TUTTI_GOSSIP_LOSS :
	                                                           TUTTI_GOSSIP_CONSTANT;
	return c;
}

/* ---- dpwa: the factor ---- */

static void run_factor(tutti *job)
{
	bool me = tutti_rank(job) == 0;
	tutti_gossip_result r = { 0 };
	struct part p;

	open_part(&p, job, get(in, me ? "params" : "peer_params"),
	          WITH(config_of(), it.clock = number(in, me ? "clock" : "peer_clock") - 1));
	CHECK(tutti_gossip_publish(p.g, number(in, me ? "loss" : "peer_loss")) == 0);
	if (me) {
		CHECK(tutti_gossip_mix(p.g, number(in, "loss"), &r) == 0 && r.peer == 1);
		CHECK(is_near(r.factor, is_mended ? 0 : number(out, "factor")));
		CHECK(is_near(r.clock, is_mended ? number(in, "clock") : number(out, "new_clock")));
		CHECK(has(&p, is_mended ? get(in, "params") : get(out, "new_params")));
	}
	close_part(&p);
}

static void run_pair(tutti *job)
{
	int me = tutti_rank(job), k = 0;
	tutti_gossip_result r;
	struct part p;

	open_part(&p, job, at(get(in, "params"), me), config_of());
	EACH(it, get(in, "iterations")) {
		const struct node *then = at(get(out, "iterations"), k++);
		CHECK(tutti_gossip_publish(p.g, at(get(it, "loss_send"), me)->number) == 0);
		step(&p, at(get(it, "local_update"), me));
		CHECK(tutti_gossip_mix(p.g, at(get(it, "loss_wait"), me)->number, &r) == 0 && r.peer == 1 - me);
		CHECK(is_near(r.factor, at(get(then, "factors"), me)->number));
		CHECK(is_near(r.clock, at(get(then, "clocks"), me)->number));
		CHECK(has(&p, at(get(then, "params"), me)));
		meet(job);
	}
	CHECK(k == length(get(out, "iterations")));
	close_part(&p);
}

/* ---- dpwa: the choice ---- */

/* The peer of rank 0 has opened and published, or not, or has another model. */
static void play_peer(tutti *job, const struct node *event, tutti_gossip **g)
{
	double x[2] = { 0 };
	bool nonsense = is_text(event, "error"), there = nonsense || is_text(event, "ok");
	tutti_tensor model = { x, nonsense ? 2 : 1, TUTTI_F64 };
	tutti_gossip_config c = WITH(tutti_gossip_defaults(), it.fetch_probability = 0);

	if (*g && (!there || nonsense)) {
		tutti_gossip_close(*g);
		*g = NULL;
	}
	if (!*g && there)
		CHECK(tutti_gossip_open(job, "case", &model, 1, &c, g) == 0);
	if (*g)
		CHECK(tutti_gossip_publish(*g, 1) == 0);
}

static void fetch_once(tutti_gossip *g, const struct node *event, const struct node *expected)
{
	tutti_gossip_result r;
	int score;

	g->config.timeout_ms = is_text(event, "timeout") ? 30 : 60000;
	CHECK(tutti_gossip_publish(g, 1) == 0 && tutti_gossip_mix(g, 1, &r) == 0);
	CHECK((r.peer == 1) == is_text(event, "ok"));
	score = tutti_gossip_score(g, "1");
	CHECK(is_text(expected, "removed") ? score == -ENOENT : (double)score == expected->number);
}

static void run_flow(tutti *job)
{
	double x = 0;
	tutti_tensor model = { &x, 1, TUTTI_F64 };
	tutti_gossip_config c = WITH(tutti_gossip_defaults(), it.choice = TUTTI_CHOICE_DPWA);
	tutti_gossip *g = NULL;
	int k = 0;

	if (tutti_rank(job) == 0)
		CHECK(tutti_gossip_open(job, "case", &model, 1, &c, &g) == 0);
	EACH(expected, get(out, "scores")) {
		const struct node *event = at(get(in, "events"), k++);
		if (tutti_rank(job) == 1)
			play_peer(job, event, &g);
		meet(job);
		if (tutti_rank(job) == 0)
			fetch_once(g, event, expected);
		meet(job);
	}
	tutti_gossip_close(g);
	meet(job);
}

/* The chance that j has the highest score + noise. of[k]: that k others have as much, and the rest less. */
static double chance_of(const int *scores, int n, int j)
{
	double noises = TT_GOSSIP_NOISE_MAX - TT_GOSSIP_NOISE_MIN + 1, sum = 0, *of = calloc((size_t)n + 1, sizeof *of);

	for (int u = TT_GOSSIP_NOISE_MIN; u <= TT_GOSSIP_NOISE_MAX; u++) {
		memset(of, 0, ((size_t)n + 1) * sizeof *of);
		of[0] = 1;
		for (int i = 0; i < n; i++) {
			int v = scores[j] + u - scores[i]; /* i's noise for a tie */
			double less = fmin(fmax(v - TT_GOSSIP_NOISE_MIN, 0), noises) / noises;
			double same = v >= TT_GOSSIP_NOISE_MIN && v <= TT_GOSSIP_NOISE_MAX ? 1 / noises : 0;
			for (int k = n; i != j && k >= 0; k--)
				of[k] = of[k] * less + (k ? of[k - 1] * same : 0);
		}
		for (int k = 0; k < n; k++)
			sum += of[k] / (k + 1);
	}
	free(of);
	return sum / noises;
}

struct script { /* the chances that a function draws, given out one by one; or a real source */
	uint64_t next[3];
	int at;
	struct tt_random random;
};

static uint64_t draw_script(void *arg, uint64_t n)
{
	struct script *s = arg;

	CHECK(s->next[s->at] < n);
	return s->next[s->at++];
}

static uint64_t draw(void *arg, uint64_t n) { return tt_random_below(&((struct script *)arg)->random, n); }

/* Of two all noises and both ways of a tie: exactly the function's own chance. */
static double count_pairs(const int *scores)
{
	uint64_t noises = TT_GOSSIP_NOISE_MAX - TT_GOSSIP_NOISE_MIN + 1, won = 0;

	for (uint64_t u = 0; u < noises; u++)
		for (uint64_t v = 0; v < noises; v++)
			for (uint64_t tie = 0; tie < 2; tie++)
				won += tt_gossip_pick(scores, 2, draw_script,
				                      &(struct script){ .next = { u, v, tie } }) == 0;
	return (double)won / (double)(2 * noises * noises);
}

static void run_pick(tutti *job)
{
	enum { DRAWS = 200000 };
	int n = length(get(in, "scores")), *scores = calloc((size_t)n, sizeof *scores), k = 0;
	double *times = calloc((size_t)n, sizeof *times);
	struct script s = { .at = 0 };

	(void)job;
	EACH(score, get(in, "scores"))
		scores[k++] = whole(score);
	tt_random_seed(&s.random, 7);
	for (int i = 0; i < DRAWS; i++)
		times[tt_gossip_pick(scores, n, draw, &s)]++;
	for (int i = 0; i < n; i++) {
		double p = chance_of(scores, n, i);
		CHECK(is_near(p, at(get(out, "p"), i)->number));
		CHECK(fabs(times[i] - DRAWS * p) <= 6 * sqrt(DRAWS * p * (1 - p)) + 1);
	}
	if (n == 2)
		CHECK(fabs(count_pairs(scores) - at(get(out, "p"), 0)->number) <= 1e-9);
	free(scores);
	free(times);
}

/* ---- Gossip SGD, GoSGD ---- */

static void run_pull(tutti *job)
{
	int me = tutti_rank(job), k = 0;
	struct part p;

	open_part(&p, job, at(get(in, "x"), me), tutti_gossip_defaults());
	EACH(round, get(in, "rounds")) {
		p.peer = whole(at(get(round, "peer"), me));
		CHECK(tutti_gossip_publish(p.g, 1) == 0);
		CHECK(tutti_gossip_mix(p.g, 1, NULL) == 0);
		step(&p, at(get(round, "local_update"), me));
		CHECK(has(&p, at(at(get(out, "trace"), k++), me)));
		meet(job);
	}
	close_part(&p);
}

/* Gifts come when they come: waits for so many, and takes them all at once. */
static void take_gifts(struct part *p, int n)
{
	tutti_gossip_info info = { 0 };
	tutti_gossip_result r = { 0 };
	uint64_t deadline = tt_now() + 60000 * TT_MS;

	while (info.offers < n && tt_now() < deadline) {
		CHECK(tutti_gossip_look(p->g, &info) == 0);
		pass_time(100000);
	}
	CHECK(tutti_gossip_mix(p->g, 1, &r) == 0 && r.gifts == n);
}

static void run_push(tutti *job)
{
	int me = tutti_rank(job), k = 0;
	struct part p;

	open_part(&p, job, at(get(in, "x"), me), WITH(tutti_gossip_defaults(), it.way = TUTTI_GOSSIP_PUSH));
	EACH(round, get(in, "rounds")) {
		int from = -1, gifts = 0;
		EACH(to, get(round, "peer"))
			gifts += ++from != me && whole(to) == me;
		p.peer = whole(at(get(round, "peer"), me));
		CHECK(tutti_gossip_publish(p.g, 1) == 0);
		take_gifts(&p, gifts);
		step(&p, at(get(round, "local_update"), me));
		CHECK(has(&p, at(at(get(out, "trace"), k++), me)));
		meet(job);
	}
	close_part(&p);
}

static void run_push_sum(tutti *job)
{
	int me = tutti_rank(job), k = 0;
	tutti_gossip_info info;
	struct part p;

	open_part(&p, job, at(get(in, "x"), me),
	          WITH(tutti_gossip_defaults(), it.way = TUTTI_GOSSIP_PUSH_SUM,
	               it.weight = at(get(in, "w"), me)->number));
	EACH(event, get(in, "events")) {
		const struct node *send = get(event, "send"), *then = at(get(out, "trace"), k++);
		if (whole(get(event, "node")) == me)
			step(&p, get(event, "local_update"));
		p.peer = whole(at(send, 1));
		if (send->kind == LIST && whole(at(send, 0)) == me)
			CHECK(tutti_gossip_publish(p.g, 1) == 0);
		if (send->kind == LIST && whole(at(send, 1)) == me)
			take_gifts(&p, 1);
		meet(job);
		CHECK(tutti_gossip_look(p.g, &info) == 0 && is_near(info.weight, at(get(then, "w"), me)->number));
		CHECK(has(&p, at(get(then, "x"), me)));
		meet(job);
	}
	CHECK(tutti_allreduce(job, &info.weight, &info.weight, 1, TUTTI_F64, TUTTI_SUM, NULL) == 0);
	CHECK(is_near(info.weight, number(out, "weight_sum")));
	CHECK(tutti_gossip_look(p.g, &info) == 0);
	for (int i = 0; i < p.n; i++)
		p.x[i] *= info.weight;
	CHECK(tutti_allreduce(job, p.x, p.x, (size_t)p.n, TUTTI_F64, TUTTI_SUM, NULL) == 0);
	CHECK(has(&p, get(out, "weighted_mean")));
	close_part(&p);
}

/* ---- all of them ---- */

static int two(void) { return 2; }
static int one(void) { return 1; }
static int all_of_x(void) { return length(get(in, "x")); }

static const struct {
	const char *ref;
	int (*ranks)(void);
	void (*run)(tutti *);
} runners[] = {
	{ "dpwa_interp", two, run_factor }, { "dpwa_pair_lockstep", two, run_pair }, { "dpwa_flow", two, run_flow },
	{ "dpwa_pick", one, run_pick }, { "paper_gossip_pull", all_of_x, run_pull },
	{ "paper_gossip_push", all_of_x, run_push }, { "paper_gosgd", all_of_x, run_push_sum },
};

static int run_case(const struct node *c, const char *wire)
{
	int failed = 0;

	in = get(c, "input");
	out = get(c, "expected");
	tolerance = number(c, "tolerance");
	is_mended = is_text(get(c, "id"), "dpwa-negative-loss");
	for (size_t k = 0; k < TT_COUNT(runners); k++)
		if (is_text(get(c, "ref"), runners[k].ref)) {
			failed = run_ranks((struct ranks){
				.size = runners[k].ranks(), .wire = wire, .seed = 1, .program = runners[k].run });
			if (failed)
				printf("%s: does not come out over %s\n", get(c, "id")->text, wire);
			return failed ? -1 : 1;
		}
	return 0;
}

static void run_all(const char *wire)
{
	const struct node *cases = load_cases();
	int ran = 0;

	EACH(c, cases) {
		int result = run_case(c, wire);
		CU_ASSERT(result >= 0);
		ran += result != 0;
	}
	CU_ASSERT(ran >= 24);
	free_cases();
}

static void test_sim(void) { run_all("sim"); }
static void test_tcp(void) { run_all("tcp"); }
static void test_shm(void) { run_all("shm"); }

static CU_TestInfo tests[] = {
	{ "on sim", test_sim }, { "over tcp", test_tcp }, { "over shm", test_shm }, CU_TEST_INFO_NULL
};
static CU_SuiteInfo suites[] = { { "conformance of gossip", NULL, NULL, NULL, NULL, tests }, CU_SUITE_INFO_NULL };

int main(int argc, char **argv) { return run_suites(suites, argc, argv); }
