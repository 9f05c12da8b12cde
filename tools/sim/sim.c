/* sim.c - `tutti sim`: the ranks of a simulated world, each of which computes for a while, then does the method's round
 *
 * A rank's step ends at a tick. The next step begins there, unless the round made the rank wait: that time comes on
 * top. So ranks that are equally fast, and do not wait, keep the same ticks: they mix what was published in the same
 * round. Samples are taken between ticks. */
#include "tools/sim/sim.h"
#include "transport/sim/sim.h"
#include <math.h>
#include <stdlib.h>
#include <time.h>

enum { SLOW_ONE_IN = 10, QUIET_S = 2 };
/* Where one message in ten is lost, one in a million comes after 12.6 s: its sender is not to be taken for dead. */
enum { LOSSY_SILENCE_MS = 60000 };

void tt_study_age(struct tt_studied *me, uint64_t published)
{
	me->study->age += (double)(tt_now() - published) * 1e-6;
	me->study->mixings++;
}

/* ---- samples ---- */

/* The mean of the models of the ranks that work; how many these are. */
static int find_mean(struct tt_study *s)
{
	double weight = 0, *mean = s->mean;
	int n = 0;

	memset(mean, 0, s->count * sizeof *mean);
	for (int i = 0; i < s->options.ranks; i++) {
		const struct tt_studied *r = &s->of[i];
		if (!r->working)
			continue;
		n++;
		weight += r->weight;
		for (size_t k = 0; k < s->count; k++)
			mean[k] += r->weight * r->x[k];
	}
	for (size_t k = 0; k < s->count; k++)
		mean[k] /= weight;
	return n;
}

static double square_between(const double *a, const double *b, size_t count)
{
	double sum = 0;

	for (size_t k = 0; k < count; k++)
		sum += (a[k] - b[k]) * (a[k] - b[k]);
	return sum;
}

static int sample(struct tt_study *s)
{
	struct tt_sim_row r = { .seconds = (double)(tt_now() - s->start) * 1e-9, .alive = find_mean(s) };
	double square = 0;

	for (int i = 0; i < s->options.ranks; i++)
		if (s->of[i].working) {
			square += square_between(s->of[i].x, s->mean, s->count);
			r.round += (double)s->of[i].rounds / r.alive;
		}
	if (!s->row_count)
		memcpy(s->first, s->mean, s->count * sizeof *s->first);
	r.consensus = sqrt(square / ((double)s->count * r.alive));
	r.shift = sqrt(square_between(s->mean, s->first, s->count) / (double)s->count);
	r.staleness = s->mixings ? s->age / (double)s->mixings : 0;
	r.bytes = tt_sim_counted().bytes - s->sent;
	s->age = 0;
	s->mixings = 0;
	if (s->row_count == s->row_max) {
		int most = s->row_max * 2 + 128;
		struct tt_sim_row *more = realloc(s->rows, (size_t)most * sizeof *more);
		if (!more)
			return tt_fail(-ENOMEM, "no memory for %d samples", most);
		s->rows = more;
		s->row_max = most;
	}
	s->rows[s->row_count++] = r;
	return 0;
}

static void show_progress(const struct tt_study *s, double done)
{
	static time_t begun;
	time_t now = time(NULL);
	char text[64];

	if (!begun)
		begun = now;
	snprintf(text, sizeof text, "sim %s, %d ranks", s->options.method->name, s->options.ranks);
	if (now - begun > QUIET_S)
		tt_tool_show_bar(text, done);
}

static bool is_over(const struct tt_study *s) { return !s->to_go || s->err; }

/* The first error ends the study. */
static void give_up(const struct tt_studied *me, int err)
{
	struct tt_study *s = me->study;

	if (s->err || tt_sim_killed(me->rank))
		return;
	s->err = err;
	snprintf(s->why, sizeof s->why, "rank %d: %s", me->rank, tutti_why());
}

static void sleep_until(uint64_t at)
{
	if (at > tt_now())
		tt_sim_sleep(at - tt_now());
}

/* On a fiber of rank 0: a sample in the middle of each step. */
static void take_samples(void *arg)
{
	struct tt_study *s = arg;
	uint64_t step = s->options.step;
	int err;

	sleep_until(s->start);
	s->sent = tt_sim_counted().bytes;
	for (uint64_t at = s->start + step / 2; !is_over(s); at += step) {
		sleep_until(at);
		if ((err = sample(s)))
			give_up(&s->of[0], err);
		show_progress(s, tt_min(s->of[0].rounds, s->options.rounds) / (double)s->options.rounds);
	}
	show_progress(s, 1);
	s->sampled = true;
}

/* ---- deaths and returns ---- */

static uint64_t some_time(struct tt_random *random, double from, double to, double span)
{
	return (uint64_t)(span * (from + (to - from) * (double)tt_random_below(random, 1 << 20) / (1 << 20)));
}

/* All are back when three quarters of the time are over, so that the rest shows what becomes of it. */
static void plan_churn(struct tt_study *s)
{
	const struct tt_sim_options *o = &s->options;
	double span = (double)o->rounds * (double)o->step * (o->method->together ? o->straggler : 1);
	struct tt_random random;

	tt_random_seed(&random, o->seed ^ 0xdead);
	for (int i = 0; i < o->ranks; i++)
		if (s->of[i].mortal) {
			uint64_t death = s->start - tt_now() + some_time(&random, 0.05, 0.5, span);
			tt_sim_kill(i, death);
			tt_sim_restart(i, death + some_time(&random, 0.02, 0.2, span));
		}
}

/* Draws `n` ranks, but not those that have it, and not the first `spared`. */
static void draw_ranks(struct tt_study *s, struct tt_random *random, int n, int spared, bool mortal)
{
	while (n > 0) {
		int i = spared + (int)tt_random_below(random, (uint64_t)(s->options.ranks - spared));
		bool *it = mortal ? &s->of[i].mortal : &s->of[i].slow;
		n -= !*it;
		*it = true;
	}
}

static void choose_ranks(struct tt_study *s)
{
	const struct tt_sim_options *o = &s->options;
	int spared = (int)tt_max(1, (size_t)tt_sim_servers(o));
	int slow = o->straggler > 1 ? (o->ranks + SLOW_ONE_IN - 1) / SLOW_ONE_IN : 0;
	struct tt_random random;

	tt_random_seed(&random, o->seed ^ 0x510);
	draw_ranks(s, &random, slow, 1, false);
	draw_ranks(s, &random, (int)tt_min((size_t)(o->churn * o->ranks + 0.5), (size_t)(o->ranks - spared)), spared,
	           true);
	for (int i = 0; i < o->ranks; i++)
		s->to_go += !s->of[i].slow && !s->of[i].mortal;
}

/* ---- a rank ---- */

void tt_study_start(const struct tt_study *s, int rank, double *x, size_t count)
{
	struct tt_random random;

	tt_random_seed(&random, s->options.seed * 1000003 + (uint64_t)rank);
	for (size_t k = 0; k < count; k++)
		x[k] = (double)tt_random_below(&random, 1ull << 53) / 0x1p52 - 1;
}

/* Rounds begin at one moment, when all have joined. Where messages are lost the barrier ends for some of them seconds
 * before it does for others; nobody may die till then. */
static int start_together(struct tt_studied *me)
{
	struct tt_study *s = me->study;
	int err = tutti_barrier(me->job, NULL);

	if (err)
		return err;
	s->ready++;
	s->start = tt_now() + 1000 * TT_MS; /* as the last one has it */
	while (s->ready < s->options.ranks && !s->err)
		tt_sim_sleep(TT_MS);
	return 0;
}

static bool has_finished(const struct tt_studied *me)
{
	const struct tt_study *s = me->study;

	if (tt_sim_killed(me->rank))
		return true;
	return s->options.method->together ? me->rounds >= s->options.rounds || s->err : is_over(s);
}

static void count_round(struct tt_studied *me)
{
	struct tt_study *s = me->study;

	if (s->done)
		s->done(s->arg, me->rank, me->rounds, me->x);
	if (++me->rounds == s->options.rounds)
		s->to_go -= !me->slow && !me->mortal;
}

static int work(struct tt_studied *me)
{
	struct tt_study *s = me->study;
	uint64_t step = (uint64_t)((double)s->options.step * (me->slow ? s->options.straggler : 1));
	uint64_t tick = tt_max(s->start, tt_now());
	int err = 0;

	sleep_until(tick);
	if (s->options.method->begin)
		err = s->options.method->begin(me);
	while (!err && !has_finished(me)) {
		sleep_until(tick += step);
		if (has_finished(me))
			break;
		if (!(err = s->options.method->round(me)))
			count_round(me);
		if (tt_now() > tick + step / (s->options.method->overlaps ? 10 : 1000))
			tick = tt_now();
	}
	return err;
}

/* Others may need this rank until they have finished, too. */
static void stay(struct tt_studied *me)
{
	struct tt_study *s = me->study;

	s->working--;
	while ((s->working || !s->sampled) && !s->err && !tt_sim_killed(me->rank))
		tt_sim_sleep(s->options.step);
	me->working = false;
}

static int take_part(struct tt_studied *me)
{
	struct tt_study *s = me->study;
	struct tt_task *sampler = NULL;
	int err = s->options.method->open(me);

	if (err)
		return err;
	tt_study_start(s, me->rank, me->x, s->count);
	if (!tutti_late(me->job))
		err = start_together(me);
	if (!err && me->rank == 0) {
		plan_churn(s);
		err = tt_spawn(take_samples, s, &sampler);
	}
	s->working++;
	me->working = true;
	if (!err)
		err = work(me);
	if (err)
		give_up(me, err); /* before the others stay for this one */
	stay(me);
	if (sampler)
		tt_join(sampler);
	s->options.method->close(me);
	return err;
}

/* One that comes again is refused as long as others have not seen its death. */
static int join(struct tt_studied *me)
{
	const struct tt_study *s = me->study;
	int err = tutti_join(NULL, &me->job);

	while (err && s->start && !is_over(s) && !tt_sim_killed(me->rank)) {
		tt_sim_sleep(100 * TT_MS);
		err = tutti_join(NULL, &me->job);
	}
	return err;
}

static void be_rank(int rank, void *arg)
{
	struct tt_study *s = arg;
	struct tt_studied *me = &s->of[rank];
	void *memory = NULL;

	me->job = NULL;
	int err = join(me);

	if (!err)
		err = tutti_alloc(me->job, 2 * (s->count + 1) * sizeof(double), -1, &memory);
	if (!err) {
		me->x = memory;
		err = take_part(me);
	}
	if (err && !is_over(s))
		give_up(me, err);
	tutti_leave(me->job);
	tutti_free(NULL, memory);
}

/* ---- the run ---- */

int tt_study_run(struct tt_study *s)
{
	const struct tt_sim_options *o = &s->options;
	struct tt_sim_config c = { .seed = o->seed, .ranks = o->ranks, .program = be_rank, .arg = s, .log = "error",
		                   .silence_ms = o->loss > 0 ? LOSSY_SILENCE_MS : 0, .latency_ns = o->latency,
		                   .bandwidth = o->bandwidth, .loss = o->loss };

	s->count = o->bytes / sizeof(double);
	s->of = calloc((size_t)o->ranks, sizeof *s->of);
	s->mean = calloc(s->count, sizeof *s->mean);
	s->first = calloc(s->count, sizeof *s->first);
	if (!s->of || !s->mean || !s->first)
		return tt_fail(-ENOMEM, "no memory for %d ranks with %zu bytes each", o->ranks, o->bytes);
	for (int i = 0; i < o->ranks; i++) {
		s->of[i].study = s;
		s->of[i].rank = i;
		s->of[i].weight = 1;
	}
	choose_ranks(s);
	c.limit_ns = 10 * (uint64_t)((double)o->rounds * (double)o->step * o->straggler) + 3600 * 1000 * TT_MS;
	int err = tt_sim_run(&c);
	return s->err ? tt_fail(s->err, "%s", s->why) : err;
}

void tt_study_free(struct tt_study *s)
{
	free(s->of);
	free(s->mean);
	free(s->first);
	free(s->rows);
}

static int print_matrix(const struct tt_sim_options *o)
{
	double *m = tt_sim_matrix(o);

	if (!m)
		return tt_tool_refuse("sim", "--matrix: no memory for %d ranks", o->ranks);
	tt_sim_print_matrix(m, o->ranks);
	free(m);
	return 0;
}

int tt_tool_sim(int argc, char **argv)
{
	struct tt_study study = { 0 };
	int status = tt_sim_read_options(argc, argv, &study.options);

	if (status >= 0)
		return status;
	if (study.options.matrix)
		return print_matrix(&study.options);
	int err = tt_study_run(&study);
	if (err)
		fprintf(stderr, "tutti sim: %s\n", tutti_why());
	else
		tt_sim_print_rows(&study);
	status = err ? 1 : study.options.plot ? tt_sim_plot(&study) : 0;
	tt_study_free(&study);
	return status;
}
