/* conformance_tables.c - Multiverso's recorded cases once more, through tables as programs use them: five ranks, all of them servers, on sim,
 * and as processes over TCP and shared memory. The events of a case come in their order, one rank after the other. */
#include "cases.h"
#include "cunit_main.h"
#include "ranks.h"
#include "table.h"
#include <math.h>
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

static bool is_near(double x, double expected, double tolerance) { return fabs(x - expected) <= tolerance * fmax(1, fabs(expected)); }

static void meet(const struct node *c, tutti *job) { WANT(tutti_barrier(job, NULL) == 0); }

static tutti_table *open_table(const struct node *c, tutti *job, tutti_table_config config)
{
	tutti_table *t = NULL;

	config.size = sizeof config;
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

static bool holds(tutti_table *t, const struct node *expected, double tolerance)
{
	float v[LENGTH];
	int i = 0;

	if (tutti_table_pull(t, v, NULL))
		return false;
	EACH(n, expected)
		if (!is_near((double)v[i++], n->number, tolerance))
			return false;
	return true;
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
	tutti_table_config config = { .type = TUTTI_F32, .count = (uint64_t)length(get(in, "data")),
		                      .updater = { .size = sizeof config.updater, .rule = r->rule, .flags = r->flags } };
	float v[LENGTH];
	int step = 0;

	if (!strcmp(r->name, "adagrad_literal"))
		return; /* mended: the recorded numbers are the defect's */
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
		WANT(holds(t, at(after, step++), 1e-5));
		meet(c, job);
	}
	close_table(c, job, t);
}

/* ---- keys, arrays, matrices ---- */

static void run_keys(const struct node *c, tutti *job)
{
	const struct node *in = get(c, "input"), *owners = get(get(c, "expected"), "server_of_key");
	tutti_table_config config = { .type = TUTTI_F32, .flags = TUTTI_TABLE_KEYS, .servers = whole(get(in, "servers")), .server = (const int[]){ 0, 1, 2, 3, 4 } };
	tutti_table *t = open_table(c, job, config);
	int gets = 0, turn = 0;

	EACH(op, get(in, "ops")) {
		uint64_t key = (uint64_t)whole(at(op, 1));
		float x = (float)at(op, 2)->number;
		bool mine = turn++ % RANKS == tutti_rank(job);
		if (is_text(at(op, 0), "add"))
			WANT(!mine || tutti_table_push_rows(t, &key, 1, &x, NULL, NULL) == 0);
		else
			WANT(tutti_table_pull_rows(t, &key, 1, &x, NULL) == 0 && (double)x == at(get(get(c, "expected"), "gets"), gets++)->number);
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
	tutti_table *t = open_table(c, job, (tutti_table_config){ .type = TUTTI_F32, .count = (uint64_t)n });
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
	tutti_table *t = open_table(c, job, (tutti_table_config){ .type = TUTTI_F32, .count = (uint64_t)rows, .row = (uint64_t)row });
	float v[LENGTH];

	for (int k = 0; k < whole(get(in, "iterations")) && tutti_rank(job) < whole(get(in, "workers")); k++)
		push_matrix(c, t, rows, row);
	meet(c, job);
	WANT(tutti_table_pull(t, v, NULL) == 0);
	for (int i = 0; i < rows * row; i++)
		WANT((double)v[i] == at(at(get(get(c, "expected"), "full"), i / row), i % row)->number);
	close_table(c, job, t);
}

static void run_aggregate(const struct node *c, tutti *job)
{
	float x = (float)at(at(get(get(c, "input"), "values"), tutti_rank(job)), 0)->number;

	WANT(tutti_allreduce(job, &x, 1, TUTTI_F32, TUTTI_SUM, NULL) == 0);
	WANT((double)x == at(get(get(c, "expected"), "result"), 0)->number);
}

/* Each worker pushes what it has changed since it pulled last, and takes what comes back. */
static void run_delta_sync(const struct node *c, tutti *job)
{
	const struct node *in = get(c, "input"), *init = get(in, "init");
	int n = length(init), syncs = 0;
	float last[LENGTH], now[LENGTH], d[LENGTH];
	tutti_table *t = open_table(c, job, (tutti_table_config){ .type = TUTTI_F32, .count = (uint64_t)n });

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

	return open_table(c, job, (tutti_table_config){ .type = TUTTI_F32, .count = 1, .workers = workers, .worker = all, .consistency = as });
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

static void run_backup(const struct node *c, tutti *job)
{
	const struct node *in = get(c, "input"), *trace = get(get(c, "expected"), "trace_worker_applied_value_globalclock");
	int workers = whole(get(in, "workers")), i = 0;
	tutti_table *t = open_in_rounds(c, job, workers, (tutti_consistency){ .mode = TUTTI_BSP, .backup = workers - whole(get(get(c, "expected"), "num_sync_workers")) });
	float x;

	EACH(add, get(in, "adds")) {
		x = (float)at(add, 1)->number;
		if (tutti_rank(job) == whole(at(add, 0)))
			WANT(tutti_table_push(t, &x, NULL, NULL) == 0);
		meet(c, job);
		const struct node *then = at(trace, i++);
		const struct node *next = at(trace, i);
		bool closes = !next->first || whole(at(next, 3)) == whole(at(then, 3));
		if (tutti_rank(job) == RANKS - 1 && is_true(at(then, 1)) && closes && whole(at(then, 3)) > 0) /* a reader finds the round that has closed */
			WANT(tutti_table_pull(t, &x, NULL) == 0 && (double)x <= at(then, 2)->number);
		meet(c, job);
	}
	if (tutti_rank(job) == RANKS - 1)
		WANT(tutti_table_pull(t, &x, NULL) == 0 && (double)x == at(at(trace, i - 1), 2)->number);
	close_table(c, job, t);
}

/* A worker's last pull stands for its clock: it is held back until the others are near enough. */
static void run_staleness(const struct node *c, tutti *job)
{
	const struct node *in = get(c, "input");
	int delay = whole(get(in, "max_delay")), me = tutti_rank(job), k = 0;
	tutti_table *t = open_in_rounds(c, job, whole(get(in, "workers")), (tutti_consistency){ .mode = delay < 0 ? TUTTI_ASYNC : TUTTI_SSP, .staleness = delay < 0 ? 0 : delay });
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

static const struct {
	const char *ref;
	void (*run)(const struct node *, tutti *);
} runners[] = {
	{ "mv_updater", run_updater }, { "mv_kv", run_keys }, { "mv_array_binding_test", run_array }, { "mv_matrix_binding_test", run_matrix },
	{ "platoon_allreduce", run_aggregate }, { "mv_delta_sync", run_delta_sync }, { "mv_sync_server", run_rounds }, { "mv_backup_add", run_backup },
	{ "mv_ssp", run_staleness },
};

static void run_all(tutti *job)
{
	EACH(c, cases)
		for (size_t k = 0; k < TT_COUNT(runners); k++)
			if (!strncmp(get(c, "id")->text, "mv-", 3) && is_text(get(c, "ref"), runners[k].ref))
				runners[k].run(c, job);
}

static void load_cases(void)
{
	size_t len;

	json_text = read_beside("conformance.json", &len);
	struct tt_json j = tt_json(json_text, len);
	nodes = calloc(len + 1, sizeof *nodes); /* each takes a character at least */
	node_count = 0;
	CU_ASSERT_PTR_NOT_NULL_FATAL(nodes);
	cases = get(parse(&j, ""), "cases");
	CU_ASSERT_PTR_NULL_FATAL(j.fault);
}

static void test_sim(void)
{
	load_cases();
	for (uint64_t seed = 0; seed < 5; seed++)
		CU_ASSERT_EQUAL(run_ranks((struct ranks){ .size = RANKS, .wire = "sim", .seed = seed, .program = run_all }), 0);
	CU_ASSERT_EQUAL(failures, 0);
	free(nodes);
	free(json_text);
}

static int be_rank(int rank, const char *boot, const char *transports)
{
	tutti_config config = { .size = sizeof config, .rank = rank, .ranks = RANKS, .boot = boot, .transports = transports };
	tutti *job;

	if (tutti_join(&config, &job)) {
		printf("rank %d: %s\n", rank, tutti_why());
		return 1;
	}
	load_cases();
	run_all(job);
	tutti_leave(job);
	fflush(stdout);
	return failures;
}

static void run_processes(const char *transports)
{
	pid_t pid[RANKS];
	char boot[32];
	int status;

	snprintf(boot, sizeof boot, "127.0.0.1:%d", free_port());
	fflush(stdout);
	for (int i = 0; i < RANKS; i++)
		if (!(pid[i] = fork())) {
			failures = 0;
			_exit(be_rank(i, boot, transports) != 0);
		}
	for (int i = 0; i < RANKS; i++) {
		CU_ASSERT_FATAL(pid[i] > 0);
		CU_ASSERT(waitpid(pid[i], &status, 0) == pid[i] && status == 0);
	}
}

static void test_processes(void)
{
	run_processes("tcp");
	run_processes("shm,tcp");
}

static CU_TestInfo tests[] = { { "processes", test_processes }, { "on sim", test_sim }, CU_TEST_INFO_NULL }; /* no forks once the library was used */
static CU_SuiteInfo suites[] = { { "conformance of tables", NULL, NULL, NULL, NULL, tests }, CU_SUITE_INFO_NULL };

int main(int argc, char **argv) { return run_suites(suites, argc, argv); }
