/* controller.c - a controller stops the training when the error on samples that nobody learns from has been rising, and
 * keeps the best model. Rank 0 is the controller, and has the parameters; the others train or validate, as it says:
 * `tutti run -n 4 controller` */
#include <tutti.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { WEIGHTS = 32, SAMPLES = 12, VALID = 500, STEPS = 24, VALID_FREQ = 100, PATIENCE = 10, MOST = 100000 };
enum word { NEXT, DONE, ERROR, TRAIN, VALIDATE, STOP, BEST, FINE }; /* of a worker; then of the controller */
struct message { enum word word; double number; }; /* DONE: steps; ERROR: of a validation */

static void check(int err)
{
	if (err < 0) {
		fprintf(stderr, "controller: %s\n", tutti_why());
		exit(1);
	}
}

/* ---- the controller ---- */

struct training { int steps, validated, bad, validate; double best; };

/* Runs inside tutti_controller_serve: once for each request, one at a time. */
static int answer(const tutti_request *r, void *out, size_t room, void *arg)
{
	struct training *t = arg;
	const struct message *m = r->data;
	enum word *word = out;

	if (r->what != TUTTI_JOINED || r->bytes != sizeof *m || room < sizeof *word)
		return 0;
	*word = FINE;
	if (m->word == DONE) {
		t->validate |= (t->steps + (int)m->number) / VALID_FREQ > t->steps / VALID_FREQ;
		t->steps += (int)m->number;
	} else if (m->word == ERROR) {
		t->validated++;
		t->bad = m->number < t->best ? 0 : t->bad + 1;
		*word = t->bad ? FINE : BEST;
		t->best = t->bad ? t->best : m->number;
	} else if (t->bad > PATIENCE || t->steps >= MOST) {
		*word = STOP;
	} else {
		*word = t->validate ? VALIDATE : TRAIN;
		t->validate = 0;
	}
	return sizeof *word;
}

/* ---- a worker: least squares on a few noisy samples of its own, which it learns by heart if nobody stops it ---- */

static float draw(unsigned *seed) { return 2 * (float)rand_r(seed) / (float)RAND_MAX - 1; }

/* Of sample i: x, and by how much w misses its y. */
static float miss(unsigned i, float *x, const float *w)
{
	float error = 2 * draw(&i); /* noise */

	for (int k = 0; k < WEIGHTS; k++)
		error += (w[k] - (k % 4 == 0)) * (x[k] = draw(&i)); /* each fourth weight is 1, in truth */
	return error;
}

static double validate(const float *w)
{
	double sum = 0;
	float x[WEIGHTS];

	for (unsigned i = 0; i < VALID; i++)
		sum += pow((double)miss(1000000 + i, x, w), 2) / VALID;
	return sum;
}

static void train(tutti_table *table, unsigned rank)
{
	float w[WEIGHTS], x[WEIGHTS];

	check(tutti_table_pull(table, w, NULL));
	for (unsigned step = 0; step < STEPS; step++) {
		float error = miss(rank * SAMPLES + step % SAMPLES, x, w);
		for (int k = 0; k < WEIGHTS; k++)
			x[k] *= error; /* the gradient */
		check(tutti_table_push_pull(table, x, NULL, w, NULL)); /* w has what others did meanwhile, too */
	}
}

static enum word say(tutti_controller *c, enum word word, double number)
{
	struct message m = { word, number };
	enum word reply;

	check(tutti_controller_ask(c, &m, sizeof m, &reply, sizeof reply, NULL, -1));
	return reply;
}

static void work(tutti_controller *c, tutti_table *table, tutti_table *best, unsigned rank)
{
	float w[WEIGHTS];
	enum word todo;

	while ((todo = say(c, NEXT, 0)) != STOP) {
		if (todo == TRAIN) {
			train(table, rank);
			say(c, DONE, STEPS);
			continue;
		}
		check(tutti_controller_lock(c, -1)); /* no two keep a best model at once */
		check(tutti_table_pull(table, w, NULL));
		if (say(c, ERROR, validate(w)) == BEST)
			check(tutti_table_assign(best, w, NULL));
		check(tutti_controller_unlock(c));
	}
	check(tutti_controller_done(c));
}

int main(void)
{
	tutti_table_config config = tutti_table_f32(WEIGHTS, tutti_sgd(0.01));
	struct training t = { .best = INFINITY };
	float last[WEIGHTS], w[WEIGHTS];
	tutti_table *table, *best;
	tutti_controller *c;
	tutti *job;

	config.servers = 1;
	config.server = (const int[]){ 0 };
	check(tutti_join(NULL, &job));
	check(tutti_table_open(job, "weights", &config, &table));
	check(tutti_table_open(job, "best", &config, &best));
	check(tutti_controller_open(job, "training", 0, &c));
	if (tutti_rank(job) > 0) {
		work(c, table, best, (unsigned)tutti_rank(job));
	} else {
		check(tutti_controller_serve(c, answer, &t)); /* until all workers are done, or gone */
		check(tutti_table_pull(table, last, NULL));
		check(tutti_table_pull(best, w, NULL));
		printf("stopped after %d steps and %d validations: error %.3f; the best was %.3f, and of the model "
		       "kept %.3f\n",
		       t.steps, t.validated, validate(last), t.best, validate(w));
	}
	tutti_controller_close(c);
	tutti_table_close(best);
	tutti_table_close(table);
	tutti_leave(job);
	return 0;
}
