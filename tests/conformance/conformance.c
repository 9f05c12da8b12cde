/* conformance.c - the recorded numbers of the systems whose work Tutti takes over, and of the papers behind them
 *
 * conformance.json has the cases, conformance.list says of each one what becomes of it:
 *
 *   exact    this result comes out
 *   compat   it comes out where a switch asks for the old behaviour: the reason begins with its name in tutti.h
 *   mended   the recorded one is a defect; what should come out is asserted instead
 *   later    what it needs is not there yet
 *   binding  it is about a language binding or a wire of the old system's own
 *
 * A case that is not listed fails, and so does a listed one that is not in the file, or was promised and not run. */
#include "kernel/kernel.h"
#include "table/parts.h"
#include "table/rounds.h"
#include "tests/conformance/cases.h"
#include "tests/harness/cunit_main.h"
#include <math.h>
#include <stdlib.h>

enum { WORKERS = 8, LENGTH = 64, REPLIES = 64 };

/* The cases that are run. Each gets its input and what is expected, and prints what is wrong. */

struct a_case {
	const char *id;
	const struct node *in, *out;
	double tolerance;
	bool mended;
};

static bool differs(const struct a_case *c, const char *what, int i, double x, double expected, double tolerance)
{
	if (fabs(x - expected) <= tolerance * fmax(1, fabs(expected)))
		return false;
	printf("%s: %s %d is %.12g instead of %.12g\n", c->id, what, i, x, expected);
	return true;
}

static bool is_row(const struct a_case *c, const char *what, const struct node *expected, const double *x, int n)
{
	bool good = length(expected) == n;

	if (!good)
		printf("%s: %d of %s instead of %d\n", c->id, n, what, length(expected));
	for (int i = 0; good && i < n; i++)
		good = !differs(c, what, i, x[i], at(expected, i)->number, c->tolerance);
	return good;
}

static bool update_in(const struct a_case *c, const struct recipe *r, tutti_type type)
{
	const tutti_updater as = WITH(tutti_accumulate(), it.rule = r->rule, it.flags = r->flags);
	int n = length(get(c->in, "data")), step = 0;
	char w[LENGTH * 8], d[LENGTH * 8];
	double tolerance = type == TUTTI_F64 ? 1e-12 : 1e-6;
	struct tt_updater *u;
	struct tt_push push;
	bool good = true;

	if (tt_updater_open(&as, type, (size_t)n, whole(get(c->in, "num_workers")), &u))
		return false;
	set_elements(w, get(c->in, "data"), type);
	tt_updater_assigned(u, -1, w, 0, (size_t)n);
	EACH(add, get(c->in, "adds")) {
		tutti_update o = options_of(r, add);
		set_elements(d, get(add, "delta"), type);
		good = good && !tt_updater_begin(u, whole(get(add, "worker")), &o, &push);
		if (!good)
			break;
		tt_updater_apply(&push, 0, (size_t)n, &(struct tt_piece){ w, w, d, NULL });
		const struct node *expected = at(get(c->out, "data_after_each_add"), step);
		for (int i = 0; i < n; i++)
			good = !differs(c, "element", i, get_element(w, i, type),
			                c->mended ? mended_adagrad[step] : at(expected, i)->number, tolerance) &&
			       good;
		step++;
	}
	tt_updater_close(u);
	return good && step == length(get(c->out, "data_after_each_add"));
}

static bool run_updater(const struct a_case *c)
{
	for (size_t k = 0; k < TT_COUNT(recipes); k++)
		if (is_text(get(c->in, "updater"), recipes[k].name))
			return update_in(c, &recipes[k], TUTTI_F32) && update_in(c, &recipes[k], TUTTI_F64);
	return false;
}

/* Cuts. */

static bool run_array_cut(const struct a_case *c)
{
	int servers = whole(get(c->in, "servers"));
	uint64_t size = (uint64_t)number(c->in, "size");
	double first[LENGTH], sizes[LENGTH];
	struct tt_shards s;

	if (tt_shards_cut(&s, size, servers, 1, TT_CUT_MULTIVERSO))
		return false;
	for (int k = 0; k <= servers; k++)
		first[k] = (double)tt_shards_first(&s, k);
	for (int k = 0; k < servers; k++)
		sizes[k] = first[k + 1] - first[k];
	if (c->mended) /* a table of one element is a table */
		return first[0] == 0 && first[1] == 1;
	return is_row(c, "offsets", get(c->out, "offsets"), first, servers + 1) &&
	       is_row(c, "sizes", get(c->out, "sizes"), sizes, servers);
}

static bool run_matrix_cut(const struct a_case *c)
{
	int rows = whole(get(c->in, "rows"));
	double first[LENGTH], owner[LENGTH];
	struct tt_shards s;

	if (tt_shards_cut(&s, (uint64_t)rows, whole(get(c->in, "servers")), 1, TT_CUT_MULTIVERSO))
		return false;
	for (int k = 0; k <= s.used; k++)
		first[k] = (double)tt_shards_first(&s, k);
	for (int i = 0; i < rows; i++) {
		const uint64_t at = (uint64_t)i;
		uint32_t server;
		tt_shards_find(&s, &at, 1, &server);
		owner[i] = server;
	}
	return s.used == number(c->out, "active_servers") &&
	       is_row(c, "offsets", get(c->out, "offsets"), first, s.used + 1) &&
	       is_row(c, "owners", get(c->out, "row_to_server"), owner, rows);
}

/* Sparse pulls. */

static size_t rows_of(const struct node *list, uint64_t *rows) /* -1: all, which has no list */
{
	size_t n = 0;

	EACH(row, list)
		rows[n++] = (uint64_t)row->number;
	return list->first && list->first->number < 0 ? 0 : n;
}

/* Where no row is stale Multiverso replies with row 0. */
static bool pull_fresh(const struct a_case *c, struct tt_changed_rows *f, int worker, const struct node *list,
                       const struct node *expected)
{
	uint64_t asked[LENGTH], rows[LENGTH], from = 0;
	double got[LENGTH];
	size_t n = rows_of(list, asked), m = n ? tt_changed_rows_take_of(f, worker, asked, n, rows)
	                                       : tt_changed_rows_take(f, worker, &from, rows, LENGTH);

	for (size_t i = 0; i < m; i++)
		got[i] = (double)rows[i];
	if (!m)
		got[m++] = 0;
	return is_row(c, "rows", expected, got, (int)m);
}

static bool run_sparse_pulls(const struct a_case *c)
{
	unsigned flags = is_true(get(c->in, "own_add_marks_self_stale")) ? TT_FRESH_OWN : 0;
	struct tt_changed_rows *f;
	uint64_t rows[LENGTH];
	bool good = true;
	int pulls = 0;

	if (tt_changed_rows_open((uint64_t)number(c->in, "rows"), flags, &f))
		return false;
	for (int w = 0; w < whole(get(c->in, "workers")); w++)
		good = !tt_changed_rows_join(f, w) && good;
	EACH(op, get(c->in, "ops")) {
		int worker = whole(at(op, 1));
		size_t n = rows_of(at(op, 2), rows);
		if (is_text(at(op, 0), "add"))
			tt_changed_rows_pushed(f, worker, n ? rows : NULL, n);
		else
			good = pull_fresh(c, f, worker, at(op, 2), at(get(c->out, "rows_returned_per_get"), pulls++)) &&
			       good;
	}
	tt_changed_rows_close(f);
	return good && pulls == length(get(c->out, "rows_returned_per_get"));
}

/* The filter: of f32, as all of Multiverso's bindings have it. */

static bool are_pairs(const struct node *expected, const char *packed, size_t bytes)
{
	int m = (int)(bytes / 8), k = 0;
	uint32_t index;
	float value;

	EACH(pair, expected) {
		if (k == m)
			return false;
		memcpy(&index, packed + 4 * k, 4);
		memcpy(&value, packed + 4 * (m + k), 4);
		if (index != at(pair, 0)->number || value != (float)at(pair, 1)->number)
			return false;
		k++;
	}
	return k == m;
}

static bool run_filter(const struct a_case *c)
{
	const struct node *values = get(c->in, "values"), *restored = get(c->out, "restored");
	float v[LENGTH], expected[LENGTH];
	char packed[sizeof v];
	size_t n = (size_t)length(values);

	set_elements(v, values, TUTTI_F32);
	set_elements(expected, restored, TUTTI_F32);
	size_t bytes = tt_filter_pack(packed, v, n, TUTTI_F32, tt_filter_limit(TUTTI_F32, number(c->in, "clip")));
	if ((bytes != 0) != is_true(get(c->out, "compressed")) || !are_pairs(get(c->out, "pairs"), packed, bytes))
		return false;
	if (bytes && tt_filter_unpack(v, n, TUTTI_F32, packed, bytes))
		return false;
	return !memcmp(v, expected, n * sizeof *v);
}

/* Rounds. A server of one number. What waits is asked again, first come first served, when the clock has moved. */

struct waiting {
	bool pushes;
	int worker;
	uint64_t pushed;            /* pulls: how often it had, when it asked */
	double delta;
};
struct server {
	tutti_consistency as;
	struct tt_rounds *rounds;
	double value, sum;
	uint64_t pushed[WORKERS];
	struct waiting queue[REPLIES];
	int waiting, replies;
	struct reply {
		bool pushes;
		int worker;
		double value;
	} reply[REPLIES];
};

static void settle(struct server *s);

static bool may_pull(const struct server *s, uint64_t pushed)
{
	return tt_rounds_clock(s->rounds) >= tt_clock_to_pull(&s->as, pushed);
}

static void answer(struct server *s, bool pushes, int worker)
{
	s->reply[s->replies++] = (struct reply){ pushes, worker, s->value };
}

static void moved(struct server *s, bool moved)
{
	if (!moved)
		return;
	s->value += s->sum;
	s->sum = 0;
	settle(s);
}

static bool serve(struct server *s, const struct waiting *w) /* false: it has to wait */
{
	if (!w->pushes) {
		if (!may_pull(s, w->pushed))
			return false;
		answer(s, false, w->worker);
		return true;
	}
	if (tt_rounds_begin(s->rounds, w->worker) == TT_WAIT)
		return false;
	s->sum += w->delta;
	answer(s, true, w->worker);
	moved(s, tt_rounds_complete(s->rounds, w->worker));
	return true;
}

static void settle(struct server *s)
{
	for (int i = 0; i < s->waiting;) {
		struct waiting w = s->queue[i];
		memmove(&s->queue[i], &s->queue[i + 1], (size_t)(--s->waiting - i) * sizeof w);
		if (serve(s, &w))
			continue;
		memmove(&s->queue[i + 1], &s->queue[i], (size_t)(s->waiting++ - i) * sizeof w);
		s->queue[i++] = w;
	}
}

static void arrive(struct server *s, const struct node *event)
{
	struct waiting w = { .pushes = is_text(at(event, 0), "add"),
		             .worker = whole(at(event, 1)),
		             .delta = at(event, 2)->number };

	if (is_text(at(event, 0), "finish")) {
		moved(s, tt_rounds_leave(s->rounds, w.worker));
		return;
	}
	s->pushed[w.worker] += w.pushes;
	w.pushed = s->pushed[w.worker];
	if (!serve(s, &w))
		s->queue[s->waiting++] = w;
}

static bool open_server(struct server *s, const struct a_case *c, tutti_consistency as)
{
	int workers = whole(get(c->in, "workers"));
	uint64_t clock;

	*s = (struct server){ .as = as, .value = number(c->in, "initial") };
	if (tt_rounds_open(&as, workers, &s->rounds))
		return false;
	for (int w = 0; w < workers; w++)
		if (tt_rounds_join(s->rounds, w, &clock) || clock)
			return false;
	return true;
}

/* Pulls and pushes are each answered in the recorded order. But a push may be answered earlier: upstream keeps one
 * while others have pulled less often than its worker, so that their pulls do not see it; here they do not, as the
 * round is summed apart. */
static bool are_answered(const struct server *s, const struct node *expected, bool pushes)
{
	int k = 0, place = 0;

	EACH(reply, expected) {
		if (is_text(at(reply, 0), "add") == pushes) {
			while (k < s->replies && s->reply[k].pushes != pushes)
				k++;
			if (k == s->replies || s->reply[k].worker != whole(at(reply, 1)) || (pushes && k > place) ||
			    (!pushes && s->reply[k].value != at(reply, 2)->number))
				return false;
			k++;
		}
		place++;
	}
	return true;
}

static bool run_rounds(const struct a_case *c)
{
	const struct node *replies = get(c->out, "replies");
	struct server s;
	bool good = open_server(&s, c, (tutti_consistency){ .mode = TUTTI_BSP });

	EACH(event, get(c->in, "arrivals"))
		arrive(&s, event);
	good = good && s.replies == length(replies) && s.waiting == length(get(c->out, "still_blocked"));
	good = good && are_answered(&s, replies, true) && are_answered(&s, replies, false);
	tt_rounds_close(s.rounds);
	return good && !differs(c, "value", 0, s.value, number(c->out, "final"), 0);
}

static bool run_backup(const struct a_case *c)
{
	int workers = whole(get(c->in, "workers")), backup = (int)(number(c->in, "ratio_percent") / 100 * workers),
	    k = 0;
	struct server s;
	bool good = open_server(&s, c, (tutti_consistency){ .mode = TUTTI_BSP, .backup = backup }) &&
	            workers - backup == number(c->out, "num_sync_workers");

	EACH(add, get(c->in, "adds")) {
		const struct node *expected = at(get(c->out, "trace_worker_applied_value_globalclock"), k++);
		bool applied = tt_rounds_begin(s.rounds, whole(at(add, 0))) == TT_ADMIT;
		if (applied) {
			s.sum += at(add, 1)->number;
			moved(&s, tt_rounds_complete(s.rounds, whole(at(add, 0))));
		}
		good = good && whole(at(add, 0)) == whole(at(expected, 0)) && applied == is_true(at(expected, 1)) &&
		       s.value + s.sum == at(expected, 2)->number &&
		       tt_rounds_clock(s.rounds) == at(expected, 3)->number;
	}
	tt_rounds_close(s.rounds);
	return good;
}

/* A worker that has pushed is released when it may pull. */
static bool are_released(const struct server *s, bool *pending, const struct node *expected)
{
	for (int w = 0; w < WORKERS; w++) {
		bool released = pending[w] && may_pull(s, s->pushed[w]), listed = false;
		EACH(n, expected)
			listed = listed || whole(n) == w;
		if (released != listed)
			return false;
		pending[w] = pending[w] && !released;
	}
	return true;
}

static bool run_staleness(const struct a_case *c)
{
	int delay = whole(get(c->in, "max_delay")), k = 0;
	tutti_consistency as = { .mode = delay < 0 ? TUTTI_ASYNC : TUTTI_SSP, .staleness = delay < 0 ? 0 : delay };
	bool pending[WORKERS] = { false }, left[WORKERS] = { false }, good;
	struct server s;

	good = open_server(&s, c, as);
	EACH(clock, get(c->in, "clocks")) {
		int w = clock->kind == LIST ? whole(at(clock, 1)) : whole(clock);
		if (clock->kind == LIST) {
			tt_rounds_leave(s.rounds, w);
			left[w] = true;
		} else {
			good = good && tt_rounds_begin(s.rounds, w) == TT_ADMIT;
			tt_rounds_complete(s.rounds, w);
			s.pushed[w] += as.mode != TUTTI_ASYNC; /* which counts nothing */
			pending[w] = true;
		}
		good = good && are_released(&s, pending, at(get(c->out, "released_after_each"), k++));
	}
	for (int w = 0; w < length(get(c->out, "clocks")); w++) {
		const struct node *clock = at(get(c->out, "clocks"), w);
		good = good && (left[w] ? is_text(clock, "end") : (double)s.pushed[w] == clock->number);
	}
	tt_rounds_close(s.rounds);
	return good;
}

/* conformance_tables.c or a conformance_average_... runs it */
static bool run_elsewhere(const struct a_case *c) { return c->in; }

static const struct {
	const char *ref;
	bool (*run)(const struct a_case *);
} runners[] = {
	{ "mv_updater", run_updater },
	{ "mv_array_partition", run_array_cut },
	{ "mv_matrix_partition", run_matrix_cut },
	{ "mv_sparse_fresh", run_sparse_pulls },
	{ "mv_sparse_filter", run_filter },
	{ "mv_sync_server", run_rounds },
	{ "mv_backup_add", run_backup },
	{ "mv_ssp", run_staleness },
	{ "mv_kv", run_elsewhere },
	{ "mv_array_binding_test", run_elsewhere },
	{ "mv_matrix_binding_test", run_elsewhere },
	{ "platoon_allreduce", run_elsewhere },
	{ "mv_delta_sync", run_elsewhere },
	{ "async_ea", run_elsewhere },
	{ "platoon_easgd", run_elsewhere },
	{ "platoon_asgd", run_elsewhere },
	{ "platoon_downpour", run_elsewhere },
	{ "paper_easgd_async_rr", run_elsewhere },
	{ "paper_eamsgd", run_elsewhere },
	/* conformance_average_sync.c */
	{ "allreduce_uneven_numbers", run_elsewhere },
	{ "allreduce_sgd", run_elsewhere },
	{ "allreduce_ea", run_elsewhere },
	{ "platoon_sync_easgd", run_elsewhere },
	{ "platoon_sync_sgd", run_elsewhere },
	{ "paper_easgd_sync", run_elsewhere },
	/* conformance_average_controller.c */
	{ "platoon_first", run_elsewhere },
	{ "platoon_lstm_controller", run_elsewhere },
	{ "dpwa_interp", run_elsewhere },
	{ "dpwa_pair_lockstep", run_elsewhere },
	{ "dpwa_flow", run_elsewhere },
	{ "dpwa_pick", run_elsewhere },
	{ "paper_gossip_pull", run_elsewhere },
	{ "paper_gossip_push", run_elsewhere },
	{ "paper_gosgd", run_elsewhere },
};

/* The list. */

static const char *const statuses[] = { "exact", "compat", "mended", "later", "binding" };
static const char *const defects[] = {
	"mv-adagrad-literal", "mv-array-part-small",   "mv-bsp-finish-cached",
	"mv-flags-dash",      "pl-psync-asgd-pitfall", "dpwa-negative-loss",
};
struct entry {
	char *id, *status, *reason;
	bool seen;
};
static struct entry list[256];
static int listed;
static char *list_text;

static bool is_one_of(const char *word, const char *const *words, size_t n)
{
	for (size_t i = 0; i < n; i++)
		if (!strcmp(word, words[i]))
			return true;
	return false;
}

static struct entry *find_entry(const char *id)
{
	for (int i = 0; i < listed; i++)
		if (!strcmp(list[i].id, id))
			return &list[i];
	return NULL;
}

static bool take_line(char *line)
{
	struct entry *e = &list[listed];
	char *rest;

	if (!*line || *line == '#')
		return true;
	e->id = strtok_r(line, " \t", &rest);
	e->status = strtok_r(NULL, " \t", &rest);
	e->reason = strtok_r(NULL, "", &rest);
	if (!e->id || !e->status || !e->reason || !is_one_of(e->status, statuses, TT_COUNT(statuses)) ||
	    find_entry(e->id)) {
		printf("%s: listed twice, with an unknown status, or without a reason\n", e->id ? e->id : "a line");
		return false;
	}
	if (!strcmp(e->status, "mended") && !is_one_of(e->id, defects, TT_COUNT(defects))) {
		printf("%s: is no known defect, and so it cannot be mended\n", e->id);
		return false;
	}
	if (!strcmp(e->status, "compat") && strncmp(e->reason, "TUTTI_", 6)) {
		printf("%s: the reason does not begin with the switch that a program has for it\n", e->id);
		return false;
	}
	return ++listed < (int)TT_COUNT(list);
}

static void test_list(void)
{
	size_t len;
	char *rest;

	list_text = read_beside("conformance.list", &len);
	for (char *line = strtok_r(list_text, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest))
		CU_ASSERT_TRUE(take_line(line));
	CU_ASSERT(listed > 0);
}

static bool run_case(const struct a_case *c, const char *ref)
{
	for (size_t k = 0; k < TT_COUNT(runners); k++)
		if (!strcmp(runners[k].ref, ref))
			return runners[k].run(c);
	printf("%s: is promised, and nothing runs it\n", c->id);
	return false;
}

static bool keep_promise(const struct node *n)
{
	struct a_case c = { get(n, "id")->text, get(n, "input"), get(n, "expected"), number(n, "tolerance"), false };
	struct entry *e = find_entry(c.id);

	if (!e || e->seen) {
		printf("%s: %s\n", c.id, e ? "is there twice" : "is not listed");
		return false;
	}
	e->seen = true;
	if (!strcmp(e->status, "later") || !strcmp(e->status, "binding"))
		return true;
	c.mended = !strcmp(e->status, "mended");
	bool good = run_case(&c, get(n, "ref")->text);
	if (!good)
		printf("%s: does not come out as promised (%s)\n", c.id, e->status);
	return good;
}

static void test_cases(void) /* the kernels of update rules with each set of instructions */
{
	const struct node *cases = load_cases();

	for (int level = 0; level < 3; level++) {
		if (!tt_reduce_use(level))
			continue;
		for (int i = 0; i < listed; i++)
			list[i].seen = false;
		EACH(n, cases)
			CU_ASSERT_TRUE(keep_promise(n));
	}
	for (int i = 0; i < listed; i++)
		if (!list[i].seen) {
			printf("%s: is listed, but there is no such case\n", list[i].id);
			CU_ASSERT_TRUE(list[i].seen);
		}
	free_cases();
	free(list_text);
}

static CU_TestInfo tests[] = { { "list", test_list }, { "cases", test_cases }, CU_TEST_INFO_NULL };
static CU_SuiteInfo suites[] = { { "conformance", NULL, NULL, NULL, NULL, tests }, CU_SUITE_INFO_NULL };

int main(int argc, char **argv) { return run_suites(suites, argc, argv); }
