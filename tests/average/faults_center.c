/* faults_center.c - centers on servers when processes are killed: a worker, for which nobody waits; and a server, after
 * which the others go on with the last save, or with what they have */
#include "tests/harness/crew.h"
#include "tests/harness/folders.h"
#include <math.h>

enum { MODEL = 200000, PATIENCE_MS = 20000 * SLOW, KILLS = 5 };
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
	int err = tutti_center_step(c);

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
	EXPECT(tutti_center_step(c) == 1 && x[0] > 0 && x[MODEL - 1] < 8 + (float)mine->rounds);
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
	} while ((err = tutti_center_step(c)) == 1);
	EXPECT(err == -ECONNRESET || err == -ESTALE);
	EXPECT(err == -ESTALE || names(tutti_why(), victim));
	go_on(job, c, x);
	tutti_free(job, x);
	reach(2);
}

static void test_worker(void)
{
	for (int i = 0; i < KILLS; i++) {
		victim = 2 + i % 2;
		start((struct crew){ .size = 4, .timeout_ms = PATIENCE_MS, .program = program_worker });
		await(5, 1, NOBODY);
		sleep_ms(3 * i);
		strike(victim, SIGKILL);
		await(board->of[0].rounds + 20, 1, victim);
		board->go = 1;
		await(0, 2, victim);
		board->go = 2;
		finish(victim);
		for (int k = 0; k < crew.size; k++) {
			uint64_t ms = (board->of[k].ended - board->of[k].started) / TT_MS;
			WANT(k == victim || ms < PAUSE_MS, "rank %d waited %llu ms for an exchange", k, (unsigned long long)ms);
		}
	}
}

static void test_server(void)
{
	for (int i = 0; i < 2 * KILLS; i++) {
		victim = i % 4;
		saved = i % 2;
		start((struct crew){ .size = 4, .timeout_ms = PATIENCE_MS, .program = program_server });
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

static int make_folder(void) { return mkdtemp(strcpy(folder, "/tmp/tutti-center-XXXXXX")) ? 0 : -1; }

static int remove_folder(void)
{
	clear_folder(folder);
	return rmdir(folder);
}

static CU_TestInfo tests[] = { { "a worker is killed", test_worker }, { "a server is killed", test_server }, CU_TEST_INFO_NULL };
static CU_SuiteInfo suites[] = { { "centers that lose a process", make_folder, remove_folder, NULL, NULL, tests }, CU_SUITE_INFO_NULL };

int main(int argc, char **argv) { return run_over_wires(suites, argc, argv); }
