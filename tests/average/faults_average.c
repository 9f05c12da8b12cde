/* faults_average.c - averaging when processes are killed. A peer of gossip and a worker of a center: nobody waits for
 * it. A rank of a synchronous method and a server of a center: the others get the error that names it, and go on in a
 * group without it, a center with its last save or with what they have. */
#include "tests/harness/crew.h"
#include "tests/harness/folders.h"
#include <math.h>

enum { RANKS = 4, MODEL = 200000, PATIENCE_MS = 20000 * SLOW, KILLS = 5 };
/* What issue and page promise is 100 ms and 2 s, and a machine that others use may keep a process from its core. */
enum { PAUSE_MS = 1000 * SLOW, GO_ON_MS = 6000 * SLOW };

static int victim; /* children inherit these */
static bool saved;
static char folder[] = "/tmp/tutti-center-XXXXXX";

static float *make_model(tutti *job)
{
	float *x = NULL;

	EXPECT(tutti_alloc(job, MODEL * sizeof *x, -1, (void **)&x) == 0);
	return x;
}

static tutti_center *open_center(tutti *group, float *x, int servers)
{
	static const int server[] = { 0, 1 };
	tutti_center_config config = tutti_center_easgd(1, NAN);
	tutti_center *c = NULL;

	config.servers = servers;
	config.server = servers ? server : NULL;
	EXPECT(tutti_center_open(group, "model", &(tutti_tensor){ x, MODEL, TUTTI_F32 }, 1, &config, &c) == 0);
	return c;
}

static void set(float *x, float value)
{
	for (int i = 0; i < MODEL; i++)
		x[i] = value;
}

/* The longest exchange is noted. */
static int exchange(tutti_center *c)
{
	uint64_t started = tt_now();
	int err = tutti_center_step(c, NULL);

	if (err == 1 && tt_now() - started > mine->ended - mine->started)
		record(0, started);
	mine->rounds += err == 1;
	return err;
}

static void program_worker(tutti *job)
{
	float *x = make_model(job);
	tutti_center *c = open_center(job, x, 2);

	reach(1);
	while (board->go < 1) {
		x[0] += 1;
		EXPECT(exchange(c) == 1);
	}
	reach(2);
	await_go(2);
	tutti_center_close(c);
	tutti_free(job, x);
}

/* Of any rank: no model is further away from where all began. */
static int most_rounds(void)
{
	int most = 0;

	for (int i = 0; i < crew.size; i++)
		most = board->of[i].rounds > most ? board->of[i].rounds : most;
	return most;
}

/* As tutti.h and tutti_center(3) say. */
static void go_on(tutti *job, tutti_center *c, float *x)
{
	const tutti_tensor list = { x, MODEL, TUTTI_F32 };
	tutti *left = NULL;

	tutti_center_close(c);
	EXPECT(tutti_group_shrink(job, &left) == 0);
	EXPECT(tutti_allreduce_tensors(left, &list, 1, TUTTI_AVERAGE, NULL) == 0);
	c = open_center(left, x, 0);
	if (saved) {
		if (tutti_rank(left) == 0)
			EXPECT(tutti_table_load(tutti_center_table(c), folder) == 0);
		EXPECT(tutti_barrier(left, NULL) == 0);
		EXPECT(tutti_center_pull(c) == 0 && x[0] == 7 && x[MODEL - 1] == 7);
	}
	EXPECT(tutti_center_step(c, NULL) == 1 && x[0] > 0 && x[MODEL - 1] < 8 + (float)most_rounds());
	mine->ended = tt_now();
	EXPECT(tutti_barrier(left, NULL) == 0);
	tutti_center_close(c);
	tutti_group_free(left);
}

static void program_server(tutti *job)
{
	float *x = make_model(job);
	tutti_center *c;
	int err;

	set(x, 7);
	c = open_center(job, x, 0);
	if (saved && my_rank == 0)
		EXPECT(tutti_table_save(tutti_center_table(c), folder) == 0);
	EXPECT(tutti_barrier(job, NULL) == 0);
	reach(1);
	do {
		x[0] += 1;
		x[MODEL - 1] += 1;
		mine->rounds++;
	} while ((err = tutti_center_step(c, NULL)) == 1);
	EXPECT(err == -ECONNRESET || err == -ESTALE);
	EXPECT(err == -ESTALE || names(tutti_why(), victim));
	go_on(job, c, x);
	tutti_free(job, x);
	reach(2);
}

/* ---- gossip ---- */

static tutti_gossip_way way; /* children inherit it */

/* As centers do, the longest of the calls is noted. */
static void gossip_once(tutti_gossip *g)
{
	uint64_t started = tt_now();
	int err = tutti_gossip_publish(g, 1);

	if (!err)
		err = tutti_gossip_mix(g, 1, NULL);
	EXPECT(err == 0);
	if (tt_now() - started > mine->ended - mine->started)
		record(err, started);
	mine->rounds++;
}

/* Models are level at first, and stay so: a part of one that is given up never gets into another. */
static void program_gossip(tutti *job)
{
	float *x = make_model(job);
	tutti_gossip_config config = tutti_gossip_defaults();
	tutti_gossip_info info;
	tutti_gossip *g = NULL;

	config.way = way;
	config.timeout_ms = PATIENCE_MS;
	set(x, (float)my_rank);
	EXPECT(tutti_gossip_open(job, "model", &(tutti_tensor){ x, MODEL, TUTTI_F32 }, 1, &config, &g) == 0);
	EXPECT(tutti_barrier(job, NULL) == 0);
	reach(1);
	while (board->go < 1) {
		gossip_once(g);
		for (int i = 0; i < MODEL; i += MODEL / 8 - 1)
			EXPECT(x[i] == x[0] && x[i] >= 0 && x[i] < RANKS);
	}
	await_gone(job, victim);
	EXPECT(tutti_gossip_look(g, &info) == 0 && info.peers == RANKS - 2);
	reach(2);
	await_go(2);
	tutti_gossip_close(g);
	tutti_free(job, x);
}

/* ---- synchronous ones ---- */

static tutti *shrink_after(tutti *job, int err)
{
	tutti *left = NULL;

	EXPECT(err == -ECONNRESET && names_only(tutti_why(), victim));
	EXPECT(tutti_group_shrink(job, &left) == 0 && tutti_size(left) == RANKS - 1);
	return left;
}

static void stay_in(tutti *left)
{
	mine->ended = tt_now();
	EXPECT(tutti_barrier(left, NULL) == 0);
	reach(2);
}

static int step_gradients(tutti_gradients *g, float *x, int ranks)
{
	int err, n;

	set(x, (float)my_rank);
	if (!(err = tutti_gradients_average(g, &n)))
		EXPECT(n == ranks && x[0] == x[MODEL - 1] && x[0] > 0 && x[0] < RANKS - 1);
	mine->rounds += !err;
	return err;
}

static void program_gradients(tutti *job)
{
	float *x = make_model(job), params[] = { 3, 5 };
	const tutti_tensor list = { params, 2, TUTTI_F32 };
	tutti_gradients *g = NULL;
	tutti *left;
	int err;

	EXPECT(tutti_gradients_open(job, &(tutti_tensor){ x, MODEL, TUTTI_F32 }, 1, 0, &g) == 0);
	EXPECT(tutti_gradients_synchronize(g, &list, 1) == 0);
	reach(1);
	while (!(err = step_gradients(g, x, RANKS)))
		continue;
	left = shrink_after(job, err);
	EXPECT(tutti_gradients_regroup(g, left) == 0 && tutti_gradients_synchronize(g, &list, 1) == 0);
	EXPECT(step_gradients(g, x, RANKS - 1) == 0 && params[1] == 5);
	stay_in(left);
	tutti_gradients_close(g);
	tutti_group_free(left);
	tutti_free(job, x);
}

static void program_ea(tutti *job)
{
	float *x = make_model(job);
	tutti_ea *ea = NULL;
	tutti *left;
	int err;

	set(x, (float)my_rank);
	EXPECT(tutti_ea_open(job, &(tutti_tensor){ x, MODEL, TUTTI_F32 }, 1, 1, NAN, 0, &ea) == 0);
	EXPECT(tutti_ea_synchronize(ea) == 0 && x[0] == 0);
	reach(1);
	while ((err = tutti_ea_step(ea, NULL)) == 1) {
		x[0] += (float)my_rank;
		mine->rounds++;
	}
	left = shrink_after(job, err);
	EXPECT(tutti_ea_regroup(ea, left) == 0 && tutti_ea_synchronize_center(ea) == 0 && tutti_ea_step(ea, NULL) == 1);
	EXPECT(isfinite(x[0]) && x[MODEL - 1] == 0);
	stay_in(left);
	tutti_ea_close(ea);
	tutti_group_free(left);
	tutti_free(job, x);
}

/* ---- kills ---- */

/* Any of the ranks from `first` on. */
static void kill_unnoticed(void (*program)(tutti *), int first)
{
	for (int i = 0; i < KILLS; i++) {
		victim = first + i % (RANKS - first);
		start((struct crew){ .size = RANKS, .timeout_ms = PATIENCE_MS, .program = program });
		await(5, 1, NOBODY);
		sleep_ms(3 * i);
		strike(victim, SIGKILL);
		await(board->of[(victim + 1) % RANKS].rounds + 20, 1, victim);
		board->go = 1;
		await(0, 2, victim);
		board->go = 2;
		finish(victim);
		for (int k = 0; k < crew.size; k++) {
			uint64_t ms = (board->of[k].ended - board->of[k].started) / TT_MS;
			WANT(k == victim || ms < PAUSE_MS, "rank %d waited for %llu ms", k, (unsigned long long)ms);
		}
	}
}

static void kill_noticed(void (*program)(tutti *))
{
	for (int i = 0; i < KILLS; i++) {
		victim = i % RANKS;
		start((struct crew){ .size = RANKS, .timeout_ms = PATIENCE_MS, .program = program });
		await(3, 1, NOBODY);
		sleep_ms(3 * i);
		uint64_t then = tt_now();
		strike(victim, SIGKILL);
		await(0, 2, victim);
		finish(victim);
		for (int k = 0; k < crew.size; k++) {
			uint64_t ms = k == victim ? 0 : (board->of[k].ended - then) / TT_MS;
			WANT(ms < GO_ON_MS, "rank %d went on after %llu ms", k, (unsigned long long)ms);
		}
	}
}

static void test_worker(void) { kill_unnoticed(program_worker, 2); }

static void test_server(void)
{
	for (int i = 0; i < 2; i++) {
		saved = i;
		kill_noticed(program_server);
	}
}

static void test_gossip(void)
{
	for (way = TUTTI_GOSSIP_PULL; way <= TUTTI_GOSSIP_PUSH_SUM; way++)
		kill_unnoticed(program_gossip, 0);
}

static void test_gradients(void) { kill_noticed(program_gradients); }
static void test_ea(void) { kill_noticed(program_ea); }

static int make_folder(void) { return mkdtemp(strcpy(folder, "/tmp/tutti-center-XXXXXX")) ? 0 : -1; }

static int remove_folder(void)
{
	clear_folder(folder);
	return rmdir(folder);
}

static CU_TestInfo tests[] = {
	{ "a worker is killed", test_worker },
	{ "a server is killed", test_server },
	{ "a peer of gossip is killed", test_gossip },
	{ "a rank of all-reduce SGD is killed", test_gradients },
	{ "a rank of elastic averaging is killed", test_ea },
	CU_TEST_INFO_NULL
};
static CU_SuiteInfo suites[] = {
	{ "averaging that loses a process", make_folder, remove_folder, NULL, NULL, tests }, CU_SUITE_INFO_NULL
};

int main(int argc, char **argv) { return run_over_wires(suites, argc, argv); }
