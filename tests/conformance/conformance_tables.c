/* conformance_tables.c - Multiverso's recorded cases once more, through tables as programs use them: five ranks, all of
 * them servers, on sim, and as processes over TCP and shared memory. The events of a case come in their order, one rank
 * after the other. */
#include "member/member.h"
#include "table/table_private.h"
#include "tests/conformance/cases.h"
#include "tests/harness/cunit_main.h"
#include "tests/harness/ranks.h"
#include <math.h>
#include <signal.h>
#include <sys/wait.h>

enum { RANKS = 5, LENGTH = 128, EVENTS = 32 };

static const struct node *cases;
static int failures; /* of this process */

static void check(const struct node *c, bool good, const char *what)
{
	if (!good && failures++ < 8)
		printf("%s: %s (rank's last error: %s)\n", get(c, "id")->text, what, tutti_why());
}

#define WANT(condition) check(c, condition, #condition)

static bool is_near(double x, double expected, double tolerance)
{
	return fabs(x - expected) <= tolerance * fmax(1, fabs(expected));
}

static void meet(const struct node *c, tutti *job) { WANT(tutti_barrier(job, NULL) == 0); }

static tutti_table *open_table(const struct node *c, tutti *job, tutti_table_config config)
{
	tutti_table *t = NULL;

	WANT(tutti_table_open(job, get(c, "id")->text, &config, &t) == 0);
	meet(c, job);
	return t;
}

static void close_table(const struct node *c, tutti *job, tutti_table *t)
{
	meet(c, job);
	tutti_table_close(t);
	meet(c, job);
}

static bool are_numbers(const float *v, const struct node *expected, double tolerance)
{
	int i = 0;

	EACH(n, expected)
		if (!is_near((double)v[i++], n->number, tolerance))
			return false;
	return true;
}

static bool holds(tutti_table *t, const struct node *expected, double tolerance)
{
	float v[LENGTH];

	return !tutti_table_pull(t, v, NULL) && are_numbers(v, expected, tolerance);
}

/* ---- update rules ---- */

static const struct recipe *recipe_of(const struct node *in)
{
	for (size_t k = 0; k < TT_COUNT(recipes); k++)
		if (is_text(get(in, "updater"), recipes[k].name))
			return &recipes[k];
	return NULL;
}

static void run_updater(const struct node *c, tutti *job)
{
	const struct node *in = get(c, "input"), *after = get(get(c, "expected"), "data_after_each_add");
	const struct recipe *r = recipe_of(in);
	tutti_table_config config = tutti_table_f32((uint64_t)length(get(in, "data")), tutti_accumulate());
	bool mended = !strcmp(r->name, "adagrad_literal"); /* the recorded numbers are the defect's */
	float v[LENGTH];
	int step = 0;

	config.updater.rule = r->rule;
	config.updater.flags = r->flags;
	tutti_table *t = open_table(c, job, config);
	set_elements(v, get(in, "data"), TUTTI_F32);
	if (tutti_rank(job) == 0)
		WANT(tutti_table_assign(t, v, NULL) == 0);
	meet(c, job);
	EACH(add, get(in, "adds")) {
		tutti_update o = options_of(r, add);
		set_elements(v, get(add, "delta"), TUTTI_F32);
		if (tutti_rank(job) == whole(get(add, "worker")))
			WANT(tutti_table_push(t, v, &o, NULL) == 0);
		meet(c, job);
		WANT(mended ? !tutti_table_pull(t, v, NULL) && is_near((double)v[0], mended_adagrad[step], 1e-5)
		            : holds(t, at(after, step), 1e-5));
		step++;
		meet(c, job);
	}
	close_table(c, job, t);
}

/* ---- keys, arrays, matrices ---- */

static void run_keys(const struct node *c, tutti *job)
{
	const struct node *in = get(c, "input"), *owners = get(get(c, "expected"), "server_of_key");
	tutti_table_config config = tutti_table_keys(TUTTI_F32, 1, tutti_accumulate());
	config.servers = whole(get(in, "servers"));
	config.server = (const int[]){ 0, 1, 2, 3, 4 };
	tutti_table *t = open_table(c, job, config);
	int gets = 0, turn = 0;

	EACH(op, get(in, "ops")) {
		uint64_t key = (uint64_t)whole(at(op, 1));
		float x = (float)at(op, 2)->number;
		bool mine = turn++ % RANKS == tutti_rank(job);
		if (is_text(at(op, 0), "add"))
			WANT(!mine || tutti_table_push_rows(t, &key, 1, &x, NULL, NULL) == 0);
		else
			WANT(tutti_table_pull_rows(t, &key, 1, &x, NULL) == 0 &&
			     (double)x == at(get(get(c, "expected"), "gets"), gets++)->number);
		meet(c, job);
	}
	EACH(n, owners)
		WANT(tt_shards_of_key((uint64_t)atoi(n->key), config.servers) == whole(n));
	close_table(c, job, t);
}

static void run_array(const struct node *c, tutti *job)
{
	const struct node *in = get(c, "input");
	int n = whole(get(in, "size"));
	tutti_table *t = open_table(c, job, tutti_table_f32((uint64_t)n, tutti_accumulate()));
	float d[LENGTH];

	for (int i = 0; i < n; i++)
		d[i] = (float)(i + 1);
	for (int k = 0; k < 2 * whole(get(in, "iterations")) && tutti_rank(job) < whole(get(in, "workers")); k++)
		WANT(tutti_table_push(t, d, NULL, NULL) == 0);
	meet(c, job);
	WANT(holds(t, get(get(c, "expected"), "array"), 0));
	close_table(c, job, t);
}

static void push_matrix(const struct node *c, tutti_table *t, int rows, int row)
{
	const struct node *in = get(c, "input"), *ids = get(in, "row_ids");
	float d[LENGTH], some[LENGTH];
	uint64_t list[16];
	size_t n = 0;

	for (int i = 0; i < rows * row; i++)
		d[i] = (float)(i + whole(get(in, "base")));
	EACH(id, ids) {
		memcpy(some + n * (size_t)row, d + whole(id) * row, (size_t)row * sizeof *d);
		list[n++] = (uint64_t)whole(id);
	}
	WANT(tutti_table_push(t, d, NULL, NULL) == 0);
	WANT(tutti_table_push_rows(t, list, n, some, NULL, NULL) == 0);
}

static void run_matrix(const struct node *c, tutti *job)
{
	const struct node *in = get(c, "input");
	int rows = whole(get(in, "rows")), row = whole(get(in, "cols"));
	tutti_table *t =
		open_table(c, job, tutti_table_rows(TUTTI_F32, (uint64_t)rows, (uint64_t)row, tutti_accumulate()));
	float v[LENGTH];

	for (int k = 0; k < whole(get(in, "iterations")) && tutti_rank(job) < whole(get(in, "workers")); k++)
		push_matrix(c, t, rows, row);
	meet(c, job);
	WANT(tutti_table_pull(t, v, NULL) == 0);
	for (int i = 0; i < rows * row; i++)
		WANT((double)v[i] == at(at(get(get(c, "expected"), "full"), i / row), i % row)->number);
	close_table(c, job, t);
}

/* Where each row lies, and that all of them are found there. */
static void run_cut(const struct node *c, tutti *job)
{
	const struct node *in = get(c, "input"), *offsets = get(get(c, "expected"), "offsets"),
			  *owners = get(get(c, "expected"), "row_to_server");
	bool array = get(in, "size")->kind == NUMBER;
	int rows = whole(get(in, array ? "size" : "rows")), row = array ? 1 : 3, i = 0;
	const int servers[] = { 0, 1, 2, 3, 4 };
	tutti_table *t = open_table(c, job,
	                            WITH(tutti_table_rows(TUTTI_F32, (uint64_t)rows, (uint64_t)row, tutti_accumulate()),
	                                 it.flags = TUTTI_TABLE_CUT_MULTIVERSO, it.servers = whole(get(in, "servers")),
	                                 it.server = servers));
	float d[LENGTH], v[LENGTH];
	uint64_t list[LENGTH];
	uint32_t server;

	EACH(n, offsets) /* mended: of one element there are none */
		WANT(tt_shards_first(&t->shards, i++) == (uint64_t)n->number);
	for (int k = 1; k < i; k++)
		WANT(tt_table_range(t, k - 1).count ==
		     (uint64_t)row * (tt_shards_first(&t->shards, k) - tt_shards_first(&t->shards, k - 1)));
	list[0] = 0;
	EACH(n, owners) {
		tt_shards_find(&t->shards, list, 1, &server);
		WANT((int)server == whole(n));
		list[0]++;
	}
	for (int k = 0; k < rows * row; k++)
		d[k] = (float)(k + 1);
	for (int k = 0; k < rows; k++)
		list[k] = (uint64_t)k;
	WANT(tutti_table_push(t, d, NULL, NULL) == 0 &&
	     tutti_table_push_rows(t, list, (size_t)rows, d, NULL, NULL) == 0);
	meet(c, job);
	WANT(tutti_table_pull(t, v, NULL) == 0);
	for (int k = 0; k < rows * row; k++)
		WANT(v[k] == 2 * RANKS * d[k]);
	close_table(c, job, t);
}

/* ---- sparse matrices, the filter ---- */

/* The recorded reply where no row is stale is row 0 (`conformance` adds it); a table's is no row. */
static bool are_fresh(const struct node *expected, const uint64_t *rows, size_t n)
{
	size_t i = 0;

	if (!n)
		return length(expected) == 1 && at(expected, 0)->number == 0;
	EACH(row, expected)
		if (i == n || rows[i++] != (uint64_t)row->number)
			return false;
	return i == n;
}

/* Rows of each server come in their order, the servers' as they answer. */
static void sort(uint64_t *rows, float *values, size_t n)
{
	for (size_t i = 0; i < n; i++)
		for (size_t k = i; k > 0 && rows[k - 1] > rows[k]; k--) {
			uint64_t row = rows[k];
			float value = values[k];
			rows[k] = rows[k - 1];
			values[k] = values[k - 1];
			rows[k - 1] = row;
			values[k - 1] = value;
		}
}

/* A pull of a list brings the whole list, and not what is stale of it alone; it counts as seen all the same. */
static void pull_sparse(const struct node *c, tutti_table *t, const struct node *list, size_t rows,
                        const struct node *expected, const float *all)
{
	uint64_t got[LENGTH];
	float v[LENGTH];
	size_t n = 0;

	if (at(list, 0)->number >= 0) {
		EACH(row, list)
			got[n++] = (uint64_t)row->number;
		WANT(tutti_table_pull_rows(t, got, n, v, NULL) == 0);
	} else {
		WANT(tutti_table_pull_fresh(t, got, v, rows, &n, NULL) == 0);
		sort(got, v, n);
		WANT(are_fresh(expected, got, n));
	}
	for (size_t i = 0; i < n; i++)
		WANT(v[i] == all[got[i]]);
}

static void run_sparse_pulls(const struct node *c, tutti *job)
{
	const struct node *in = get(c, "input"), *replies = get(get(c, "expected"), "rows_returned_per_get");
	unsigned flags = TUTTI_TABLE_FRESH | (is_true(get(in, "own_add_marks_self_stale")) ? TUTTI_TABLE_FRESH_OWN : 0);
	size_t rows = (size_t)whole(get(in, "rows"));
	tutti_table *t = open_table(c, job, WITH(tutti_table_f32(rows, tutti_accumulate()), it.flags = flags));
	float d[LENGTH], v[LENGTH], all[LENGTH] = { 0 };
	uint64_t list[LENGTH];
	int pulls = 0, turn = 0;

	EACH(op, get(in, "ops")) {
		int worker = whole(at(op, 1));
		bool whole_table = at(at(op, 2), 0)->number < 0;
		size_t n = 0;
		EACH(row, at(op, 2))
			list[n++] = (uint64_t)row->number;
		for (size_t i = 0; whole_table && i < rows; i++)
			list[i] = i;
		n = whole_table ? rows : n;
		for (size_t i = 0; i < n; i++)
			d[i] = (float)++turn;
		bool adds = is_text(at(op, 0), "add");
		for (size_t i = 0; adds && i < n; i++)
			all[list[i]] += d[i];
		if (adds && worker == tutti_rank(job))
			WANT((whole_table ? tutti_table_push(t, d, NULL, NULL)
			                  : tutti_table_push_rows(t, list, n, d, NULL, NULL)) == 0);
		else if (!adds && worker == tutti_rank(job))
			pull_sparse(c, t, at(op, 2), rows, at(replies, pulls), all);
		else if (!adds && worker < 0 && tutti_rank(job) == RANKS - 1) /* nobody's: all of it */
			WANT(tutti_table_pull(t, v, NULL) == 0 && !memcmp(v, all, rows * sizeof *v));
		pulls += !adds;
		meet(c, job);
	}
	close_table(c, job, t);
}

/* From another rank than the server, so that it travels. */
static void run_filter(const struct node *c, tutti *job)
{
	const struct node *in = get(c, "input"), *values = get(in, "values");
	const int servers[] = { 0 };
	tutti_table *t = open_table(c, job,
	                            WITH(tutti_table_rows(TUTTI_F32, 1, (uint64_t)length(values), tutti_accumulate()),
	                                 it.flags = TUTTI_TABLE_FILTER, it.clip = get(in, "clip")->number,
	                                 it.servers = 1, it.server = servers));
	const uint64_t row = 0;
	float v[LENGTH];

	set_elements(v, values, TUTTI_F32);
	if (tutti_rank(job) == 1)
		WANT(tutti_table_push(t, v, NULL, NULL) == 0);
	meet(c, job);
	WANT(holds(t, get(get(c, "expected"), "restored"), 1e-7));
	meet(c, job);
	set_elements(v, values, TUTTI_F32);
	for (int i = 0; i < length(values); i++)
		v[i] = -v[i]; /* clipped alike */
	if (tutti_rank(job) == 2)
		WANT(tutti_table_push_rows(t, &row, 1, v, NULL, NULL) == 0);
	meet(c, job);
	WANT(tutti_table_pull_rows(t, &row, 1, v, NULL) == 0);
	for (int i = 0; i < length(values); i++)
		WANT(v[i] == 0);
	close_table(c, job, t);
}

static void run_aggregate(const struct node *c, tutti *job)
{
	float x = (float)at(at(get(get(c, "input"), "values"), tutti_rank(job)), 0)->number;

	WANT(tutti_allreduce(job, &x, &x, 1, TUTTI_F32, TUTTI_SUM, NULL) == 0);
	WANT((double)x == at(get(get(c, "expected"), "result"), 0)->number);
}

/* Each worker pushes what it has changed since it pulled last, and takes what comes back. */
static void run_delta_sync(const struct node *c, tutti *job)
{
	const struct node *in = get(c, "input"), *init = get(in, "init");
	int n = length(init), syncs = 0;
	float last[LENGTH], now[LENGTH], d[LENGTH];
	tutti_table *t = open_table(c, job, tutti_table_f32((uint64_t)n, tutti_accumulate()));

	set_elements(now, init, TUTTI_F32);
	set_elements(last, init, TUTTI_F32);
	if (tutti_rank(job) == 0)
		WANT(tutti_table_assign(t, now, NULL) == 0);
	meet(c, job);
	EACH(event, get(in, "events")) {
		bool mine = whole(get(event, "worker")) == tutti_rank(job);
		for (int i = 0; mine && i < n; i++) {
			now[i] += (float)at(get(event, "local_update"), i)->number;
			d[i] = now[i] - last[i];
		}
		if (mine)
			WANT(tutti_table_push_pull(t, d, NULL, now, NULL) == 0);
		memcpy(last, now, sizeof now);
		meet(c, job);
		WANT(holds(t, get(at(get(get(c, "expected"), "syncs"), syncs++), "server"), 1e-6));
		meet(c, job);
	}
	close_table(c, job, t);
}

/* ---- rounds ---- */

struct asked { /* of one worker */
	tutti_op op[EVENTS];
	float value[EVENTS], one[EVENTS];
	int n;
};

static tutti_table *open_in_rounds(const struct node *c, tutti *job, int workers, tutti_consistency as)
{
	static const int all[RANKS] = { 0, 1, 2, 3, 4 };

	return open_table(c, job,
	                  WITH(tutti_table_f32(1, tutti_accumulate()), it.workers = workers, it.worker = all,
	                       it.consistency = as));
}

/* Pulls that have to wait are started, and have ended when all is over; what each gets is in the recorded replies. */
static void run_rounds(const struct node *c, tutti *job)
{
	const struct node *in = get(c, "input");
	tutti_table *t = open_in_rounds(c, job, whole(get(in, "workers")), (tutti_consistency){ .mode = TUTTI_BSP });
	struct asked mine = { .n = 0 };
	int me = tutti_rank(job), nth = 0;

	EACH(event, get(in, "arrivals")) {
		if (whole(at(event, 1)) == me && is_text(at(event, 0), "finish"))
			WANT(tutti_table_finish(t) == 0);
		else if (whole(at(event, 1)) == me && is_text(at(event, 0), "add")) {
			mine.one[mine.n] = (float)at(event, 2)->number;
			WANT(tutti_table_push(t, &mine.one[mine.n], NULL, &mine.op[mine.n]) == 0);
			mine.n++;
		} else if (whole(at(event, 1)) == me) {
			WANT(tutti_table_pull(t, &mine.value[mine.n], &mine.op[mine.n]) == 0);
			mine.n++;
		}
		meet(c, job);
	}
	for (int i = 0; i < mine.n; i++)
		WANT(tutti_wait(&mine.op[i], -1) == 0);
	EACH(reply, get(get(c, "expected"), "replies")) { /* this worker's, in the order of its calls */
		if (whole(at(reply, 1)) != me)
			continue;
		if (is_text(at(reply, 0), "get"))
			WANT((double)mine.value[nth] == at(reply, 2)->number);
		nth++;
	}
	close_table(c, job, t);
}

/* What Multiverso's server adds at once is here when its round has closed: a reader finds the value that it had
 * then. */
static void run_backup(const struct node *c, tutti *job)
{
	const struct node *in = get(c, "input"),
			  *trace = get(get(c, "expected"), "trace_worker_applied_value_globalclock");
	int workers = whole(get(in, "workers")), i = 0, clock = 0;
	tutti_table *t = open_in_rounds(
		c, job, workers,
		(tutti_consistency){ .mode = TUTTI_BSP,
	                             .backup = workers - whole(get(get(c, "expected"), "num_sync_workers")) });
	tutti_table_info info = { 0 };
	double closed = get(in, "initial")->number;
	uint64_t dropped = 0;
	float x;

	EACH(add, get(in, "adds")) {
		const struct node *then = at(trace, i++);
		x = (float)at(add, 1)->number;
		if (tutti_rank(job) == whole(at(add, 0)))
			WANT(tutti_table_push(t, &x, NULL, NULL) == 0);
		meet(c, job);
		dropped += !is_true(at(then, 1));
		closed = whole(at(then, 3)) > clock ? at(then, 2)->number : closed;
		clock = whole(at(then, 3));
		if (tutti_rank(job) == RANKS - 1)
			WANT(tutti_table_pull(t, &x, NULL) == 0 && (double)x == closed);
		if (tt_table_range(t, 0).count && tutti_rank(job) == 0) /* its server */
			WANT(tutti_table_look(t, &info) == 0 && info.clock == (uint64_t)clock &&
			     info.dropped == dropped);
		meet(c, job);
	}
	close_table(c, job, t);
}

/* A worker's last pull stands for its clock: it is held back until the others are near enough. */
static void run_staleness(const struct node *c, tutti *job)
{
	const struct node *in = get(c, "input");
	int delay = whole(get(in, "max_delay")), me = tutti_rank(job), k = 0;
	tutti_table *t = open_in_rounds(
		c, job, whole(get(in, "workers")),
		(tutti_consistency){ .mode = delay < 0 ? TUTTI_ASYNC : TUTTI_SSP, .staleness = delay < 0 ? 0 : delay });
	struct asked mine = { .n = 0 };
	bool waits[EVENTS] = { false };

	EACH(clock, get(in, "clocks")) {
		bool ends = clock->kind == LIST;
		if ((ends ? whole(at(clock, 1)) : whole(clock)) == me && ends)
			WANT(tutti_table_finish(t) == 0);
		else if (!ends && whole(clock) == me) {
			mine.one[mine.n] = 1;
			WANT(tutti_table_push(t, &mine.one[mine.n], NULL, NULL) == 0);
			WANT(tutti_table_pull(t, &mine.value[mine.n], &mine.op[mine.n]) == 0);
			waits[mine.n++] = true;
		}
		meet(c, job);
		bool released = false;
		EACH(w, at(get(get(c, "expected"), "released_after_each"), k++))
			released |= whole(w) == me;
		for (int i = 0; i < mine.n && released; i++) {
			WANT(!waits[i] || tutti_wait(&mine.op[i], -1) == 0);
			waits[i] = false;
		}
		WANT(!mine.n || !waits[mine.n - 1] || tutti_test(&mine.op[mine.n - 1]) == -EINPROGRESS);
		meet(c, job);
	}
	WANT(tutti_table_finish(t) == 0);
	for (int i = 0; i < mine.n; i++)
		WANT(!waits[i] || tutti_wait(&mine.op[i], -1) == 0);
	close_table(c, job, t);
}

/* ---- all of them ---- */

/* What conformance.list says is for bindings, has no table. */
static void run_nothing(const struct node *c, tutti *job) { (void)c, (void)job; }

static const struct {
	const char *ref;
	void (*run)(const struct node *, tutti *);
} runners[] = {
	{ "mv_updater", run_updater },
	{ "mv_kv", run_keys },
	{ "mv_array_binding_test", run_array },
	{ "mv_matrix_binding_test", run_matrix },
	{ "platoon_allreduce", run_aggregate },
	{ "mv_delta_sync", run_delta_sync },
	{ "mv_sync_server", run_rounds },
	{ "mv_backup_add", run_backup },
	{ "mv_ssp", run_staleness },
	{ "mv_array_partition", run_cut },
	{ "mv_matrix_partition", run_cut },
	{ "mv_sparse_fresh", run_sparse_pulls },
	{ "mv_sparse_filter", run_filter },
	{ "mv_flags", run_nothing },
};

static void run_all(tutti *job)
{
	int ran_here = 0;

	EACH(c, cases) {
		bool ran = strncmp(get(c, "id")->text, "mv-", 3) != 0;
		for (size_t k = 0; k < TT_COUNT(runners) && !ran; k++)
			if (is_text(get(c, "ref"), runners[k].ref)) {
				runners[k].run(c, job);
				ran_here += runners[k].run != run_nothing;
				ran = true;
			}
		check(c, ran, "no runner here, and it is not for bindings");
	}
	if (ran_here < 30 && ++failures)
		printf("only %d of Multiverso's cases have run\n", ran_here);
}

static void test_sim(void)
{
	cases = load_cases();
	for (uint64_t seed = 0; seed < count_seeds(5); seed++)
		CU_ASSERT_EQUAL(
			run_ranks((struct ranks){ .size = RANKS, .wire = "sim", .seed = seed, .program = run_all }), 0);
	CU_ASSERT_EQUAL(failures, 0);
	free_cases();
}

static int be_rank(int rank, const char *boot, const char *transports)
{
	tutti_config config = { .rank = rank, .ranks = RANKS, .boot = boot, .transports = transports };
	tutti *job;

	if (tutti_join(&config, &job)) {
		printf("rank %d: %s\n", rank, tutti_why());
		return 1;
	}
	cases = load_cases();
	run_all(job);
	tutti_leave(job);
	fflush(stdout);
	return failures;
}

/* None of them is waited for longer than all of it may take. */
static void end_process(pid_t pid, int *ms_left)
{
	int status = -1;

	CU_ASSERT_FATAL(pid > 0);
	for (; !waitpid(pid, &status, WNOHANG) && *ms_left > 0; --*ms_left)
		usleep(1000);
	if (status == -1) {
		kill(pid, SIGKILL);
		waitpid(pid, &status, 0);
	}
	CU_ASSERT(status == 0);
}

static void run_processes(const char *transports)
{
	pid_t pid[RANKS];
	char boot[32];
	int ms_left = TT_ASAN || TT_TSAN ? 480000 : 120000;

	snprintf(boot, sizeof boot, "127.0.0.1:%d", free_port());
	fflush(stdout);
	for (int i = 0; i < RANKS; i++)
		if (!(pid[i] = fork())) {
			failures = 0;
			_exit(be_rank(i, boot, transports) != 0);
		}
	for (int i = 0; i < RANKS; i++)
		end_process(pid[i], &ms_left);
}

static void test_processes(void)
{
	run_processes("tcp");
	run_processes("shm,tcp");
}

/* no forks once the library was used */
static CU_TestInfo tests[] = { { "processes", test_processes }, { "on sim", test_sim }, CU_TEST_INFO_NULL };
static CU_SuiteInfo suites[] = { { "conformance of tables", NULL, NULL, NULL, NULL, tests }, CU_SUITE_INFO_NULL };

int main(int argc, char **argv) { return run_suites(suites, argc, argv); }
