/* faults_table.c - parameter tables when processes are killed or stopped: workers in the middle of a push, and
 * servers */
#include "member/member.h"
#include "table/parts.h"
#include "table/table_private.h"
#include "tests/harness/crew.h"
#include "tests/harness/folders.h"

enum { LARGE = (8 << 20) / SLOW, SMALL = 100000, PIECE = (256 << 10) / sizeof(float), DEADLINE = 4000 * SLOW };

static int victim;     /* children inherit these */
static bool in_place;  /* what is pushed lies where the servers may map it */

static tutti_table *open_table(tutti *job, const char *name, uint64_t count, int servers, const int *server)
{
	tutti_table_config c = tutti_table_f32(count, tutti_accumulate());
	tutti_table *t = NULL;

	c.servers = servers;
	c.server = server;
	EXPECT(tutti_table_open(tutti_job(job), name, &c, &t) == 0);
	return t;
}

static float *ones(tutti *job, size_t n)
{
	float *v = NULL;

	if (in_place)
		EXPECT(tutti_alloc(job, n * sizeof *v, -1, (void **)&v) == 0);
	else
		v = malloc(n * sizeof *v);
	for (size_t i = 0; i < n; i++)
		v[i] = 1;
	return v;
}

static void give_back(tutti *job, float *v)
{
	if (in_place)
		tutti_free(job, v);
	else
		free(v);
}

/* How often the victim has pushed: of the last time each piece is there or not, and none is that comes behind one that
 * is not. */
static bool are_whole_pieces(const float *v, size_t count, int servers, float pushes)
{
	struct tt_shards shards;

	EXPECT(tt_shards_cut(&shards, count, servers, 64 / sizeof *v, TT_CUT_EVEN) == 0);
	for (int s = 0; s < servers; s++)
		for (uint64_t first = tt_shards_first(&shards, s), i = first; i < tt_shards_first(&shards, s + 1); i++)
			if (v[i] < pushes || v[i] > pushes + 1 ||
			    ((i - first) % PIECE ? v[i] != v[i - 1] : i > first && v[i] > v[i - 1]))
				return false;
	return true;
}

static uint64_t rounds_but(int rank)
{
	uint64_t n = 0;

	for (int i = 0; i < crew.size; i++)
		n += i == rank ? 0 : (uint64_t)board->of[i].rounds;
	return n;
}

/* ---- a worker ---- */

static void push_on(tutti *job, tutti_table *t)
{
	float *v = ones(job, LARGE);
	uint64_t started;
	int err;

	do {
		started = tt_now();
		err = tutti_table_push(t, v, NULL, NULL);
		mine->rounds += !err;
	} while (!err);
	record(err, started); /* it was stopped, and is evicted */
	give_back(job, v);
}

/* Until the parent says so. The longest call is noted: nobody ever waits for the victim. */
static void use_other(tutti_table *t, float *v)
{
	while (board->go < 1) {
		uint64_t started = tt_now();
		EXPECT(tutti_table_push(t, v, NULL, NULL) == 0);
		EXPECT(tutti_table_pull(t, v + SMALL, NULL) == 0);
		if (tt_now() - started > mine->ended - mine->started)
			record(0, started);
		mine->rounds++;
		sleep_ms(1); /* rather often than all the time: others want the cores */
	}
}

/* A server says whether a push ended in its middle. */
static void look_at_count(tutti_table *large, const float *v)
{
	tutti_table_info info = { 0 };
	struct tt_shards shards;

	EXPECT(tutti_table_look(large, &info) == 0 && info.server == (my_rank < 2 ? my_rank : -1));
	if (info.server < 0 || tt_shards_cut(&shards, LARGE, 2, 64 / sizeof *v, TT_CUT_EVEN))
		return;
	bool cut = v[tt_shards_first(&shards, my_rank)] != v[tt_shards_first(&shards, my_rank + 1) - 1];
	EXPECT(info.broken == cut);
}

static void look_at_both(tutti *job, tutti_table *large, tutti_table *other)
{
	float *v = malloc(LARGE * sizeof *v);

	await_gone(job, victim); /* what it had sent before has been applied */
	EXPECT(tutti_table_pull(large, v, NULL) == 0 && are_whole_pieces(v, LARGE, 2, (float)board->of[victim].rounds));
	look_at_count(large, v);
	EXPECT(tutti_table_pull(other, v, NULL) == 0 && v[0] == (float)rounds_but(victim) && v[SMALL - 1] == v[0]);
	free(v);
}

/* Servers are 0 and 1. The victim pushes to one table, the others to another. */
static void program_worker(tutti *job)
{
	const int servers[] = { 0, 1 };
	tutti_table *large = open_table(job, "large", LARGE, 2, servers),
		    *other = open_table(job, "other", SMALL, 2, servers);
	float *v = ones(job, 2 * SMALL);

	EXPECT(tutti_barrier(job, NULL) == 0);
	reach(1);
	if (my_rank == victim) {
		push_on(job, large);
	} else {
		use_other(other, v);
		reach(2);
		await_go(2);
		look_at_both(job, large, other);
		reach(3);
		await_go(3);
	}
	give_back(job, v);
	tutti_table_close(large);
	tutti_table_close(other);
}

/* A kill is known at once. So the survivors get time: a rank that shares two cores with other tests is not silent. */
static int deadline_for(int signal_number) { return signal_number == SIGKILL ? 5 * DEADLINE : 3 * DEADLINE / 2; }

static void strike_worker(int signal_number, int delay_ms)
{
	bool stopped = signal_number == SIGSTOP;

	victim = 3;
	start((struct crew){ .size = 4, .timeout_ms = deadline_for(signal_number), .program = program_worker });
	await(2, 1, NOBODY);
	sleep_ms(delay_ms);
	strike(victim, signal_number);
	sleep_ms(stopped ? deadline_for(SIGSTOP) / 2 : 0);
	await(board->of[0].rounds + 5, 0, victim);
	board->go = 1;
	await(0, 2, victim);
	if (stopped)
		strike(victim, SIGCONT); /* what it still does hurts nobody */
	board->go = 2;
	await(0, 3, victim);
	board->go = 3;
	finish(stopped ? NOBODY : victim);
	for (int i = 0; i < crew.size; i++) {
		const struct report *r = &board->of[i];
		if (i != victim)
			/* before the silence of the victim is known */
			WANT(r->ended - r->started < (uint64_t)deadline_for(signal_number) / 6 * TT_MS,
			     "rank %d waited %llu ms for a push and a pull", i,
			     (unsigned long long)((r->ended - r->started) / TT_MS));
	}
	WANT(!stopped || (board->of[victim].err < 0 && *board->of[victim].why), "the victim got %d",
	     board->of[victim].err);
}

static void strike_workers(int signal_number)
{
	for (int i = 0; i < all_or(4, 2); i++) {
		in_place = i % 2;
		strike_worker(signal_number, 7 * i);
	}
}

static void test_kill_worker(void) { strike_workers(SIGKILL); }
static void test_stop_worker(void) { strike_workers(SIGSTOP); }

/* ---- a server ---- */

enum { MIDDLE = LARGE / 4 };

/* Pushes and pulls to all three fail by the victim's name; the others' shards have every push of everybody. */
static void do_without(tutti *job, tutti_table *all, tutti_table *rest, float *v)
{
	float *got = malloc(MIDDLE * sizeof *got), sum;
	uint64_t started;
	int err;

	do {
		started = tt_now();
		err = tutti_table_push(all, v, NULL, NULL);
		mine->rounds++; /* with the one that fails: the others' parts are done */
	} while (!err);
	record(err, started);
	for (int i = 0; i < 3; i++)
		EXPECT(tutti_table_push(rest, v, NULL, NULL) == 0);
	reach(2);
	await_go(1);
	await_gone(job, victim);
	err = tutti_table_pull(all, got, NULL);
	EXPECT((err == -ECONNRESET || err == -ETIMEDOUT) && names(tutti_why(), victim));
	sum = (float)rounds_but(victim);
	EXPECT(got[0] == sum && got[MIDDLE / 3 - 100] == sum && got[MIDDLE - MIDDLE / 3 + 100] == sum &&
	       got[MIDDLE - 1] == sum);
	EXPECT(tutti_table_pull(rest, got, NULL) == 0 && got[0] == 9 && got[SMALL - 1] == 9);
	free(got);
}

static void program_server(tutti *job)
{
	const int three[] = { 0, 1, 2 }, two[] = { 2, 0 };
	tutti_table *all = open_table(job, "all", MIDDLE, 3, three), *rest = open_table(job, "rest", SMALL, 2, two);
	float *v = ones(job, MIDDLE);

	EXPECT(tutti_barrier(job, NULL) == 0);
	reach(1);
	while (my_rank == victim)
		pause();
	do_without(job, all, rest, v);
	reach(3);
	await_go(2);
	give_back(job, v);
	tutti_table_close(all);
	tutti_table_close(rest);
}

static void look_at_failures(bool stopped, uint64_t then)
{
	for (int i = 0; i < crew.size; i++) {
		const struct report *r = &board->of[i];
		if (i == victim)
			continue;
		WANT(r->err == -ECONNRESET || (stopped && r->err == -ETIMEDOUT), "rank %d got %d: %s", i, r->err,
		     r->why);
		WANT(names_only(r->why, victim) && (!stopped || strstr(r->why, "no sign of life")), "rank %d says: %s",
		     i, r->why);
		WANT(r->ended - then < (stopped ? 3 * DEADLINE : 4000 * SLOW) * TT_MS, "rank %d took %llu ms", i,
		     (unsigned long long)((r->ended - then) / TT_MS));
	}
}

static void strike_server(int signal_number, int delay_ms)
{
	bool stopped = signal_number == SIGSTOP;

	victim = 1;
	start((struct crew){ .size = 4, .timeout_ms = deadline_for(signal_number), .program = program_server });
	await(0, 1, NOBODY);
	await(3, 1, victim);
	sleep_ms(delay_ms);
	uint64_t then = tt_now();
	strike(victim, signal_number);
	await(0, 2, victim);
	if (stopped) {
		strike(victim, SIGCONT); /* what it still does hurts nobody */
		sleep_ms(50);
	}
	board->go = 1;
	await(0, 3, victim);
	board->go = 2;
	if (stopped)
		strike(victim, SIGKILL);
	finish(victim);
	look_at_failures(stopped, then);
}

static void strike_servers(int signal_number)
{
	for (int i = 0; i < all_or(4, 2); i++) {
		in_place = i % 2;
		strike_server(signal_number, 5 * i);
	}
}

static void test_kill_server(void) { strike_servers(SIGKILL); }
static void test_stop_server(void) { strike_servers(SIGSTOP); }

/* ---- a server that is started again ---- */

enum { ELEMENTS = 300000, BEFORE = 10, BETWEEN = 5, AFTER = 7 };
static char save_folder[] = "/tmp/tutti-save-XXXXXX";

static void make_folder(void)
{
	strcpy(save_folder + strlen(save_folder) - 6, "XXXXXX");
	if (!mkdtemp(save_folder)) {
		perror(save_folder);
		exit(1);
	}
}

static void remove_folder(void)
{
	clear_folder(save_folder);
	rmdir(save_folder);
}

static tutti_table *open_saved(tutti *job)
{
	tutti_table_config c = tutti_table_f32(ELEMENTS, tutti_accumulate());
	tutti_table *t = NULL;

	c.load = tutti_late(job) ? save_folder : NULL;
	EXPECT(tutti_table_open(tutti_job(job), "w", &c, &t) == 0);
	return t;
}

/* How many went well; each adds one to each element. */
static int push_ones(tutti_table *t, const float *v, int n)
{
	int done = 0;

	while (done < n && tutti_table_push(t, v, NULL, NULL) == 0)
		done++;
	return done;
}

static void save_and_push_on(tutti *job, tutti_table *t, const float *v)
{
	EXPECT(push_ones(t, v, BEFORE) == BEFORE);
	EXPECT(tutti_barrier(job, NULL) == 0);
	if (my_rank == 0)
		EXPECT(tutti_table_save(t, save_folder) == 0);
	EXPECT(tutti_barrier(job, NULL) == 0);
	EXPECT(push_ones(t, v, BETWEEN) == BETWEEN);
	EXPECT(tutti_barrier(job, NULL) == 0);
	reach(1);
}

static void lose_server(tutti_table *t, const float *v)
{
	int tries = push_ones(t, v, INT32_MAX) + 1, err; /* the last one came to the others alone, ... */

	record(tutti_table_push(t, v, NULL, NULL), tt_now()); /* ... and so does this */
	EXPECT(mine->err == -ECONNRESET || mine->err == -ESTALE);
	EXPECT(names(tutti_why(), victim));
	mine->rounds = tries + 1;
	while ((err = tutti_table_reopen(t)) == -ECONNRESET)
		sleep_ms(1);
	EXPECT(err == 0);
}

static bool are(const float *v, size_t n, int value)
{
	for (size_t i = 0; i < n; i++)
		if (v[i] != (float)value)
			return false;
	return true;
}

/* The shard in the middle is the victim's: what was saved, and what has come since. The others have had every push. */
static void check_shards(tutti_table *t, float *v)
{
	int all = 3 * BEFORE + 3 * BETWEEN + board->of[0].rounds + board->of[2].rounds + 3 * AFTER;
	struct tt_shards s;

	EXPECT(tt_shards_cut(&s, ELEMENTS, 3, 64 / sizeof *v, TT_CUT_EVEN) == 0);
	size_t first = (size_t)tt_shards_first(&s, victim), next = (size_t)tt_shards_first(&s, victim + 1);
	EXPECT(tutti_table_pull(t, v, NULL) == 0);
	EXPECT(are(v, first, all) && are(v + first, next - first, 3 * BEFORE + 3 * AFTER) &&
	       are(v + next, ELEMENTS - next, all));
}

static void program_again(tutti *job)
{
	tutti_table *t = open_saved(job);
	float *v = ones(job, ELEMENTS);

	if (!tutti_late(job)) {
		save_and_push_on(job, t, v);
		if (my_rank == victim)
			pause();
		lose_server(t, v);
	}
	EXPECT(push_ones(t, v, AFTER) == AFTER);
	reach(2);
	await_go(1);
	check_shards(t, v);
	reach(3);
	await_go(2);
	tutti_table_close(t);
	give_back(job, v);
}

static void kill_and_start(int delay_ms)
{
	victim = 1;
	make_folder();
	start((struct crew){ .size = 3, .timeout_ms = 10000 * SLOW, .program = program_again });
	await(0, 1, NOBODY);
	sleep_ms(delay_ms); /* the others push */
	strike(victim, SIGKILL);
	waitpid(crew.pid[victim], &crew.status[victim], 0);
	sleep_ms(50);
	board->of[victim].stage = 0;
	crew.pid[victim] = fork_child();
	if (crew.pid[victim] == 0)
		run_child(victim);
	for (int stage = 2; stage <= 3; stage++) {
		await(0, stage, NOBODY);
		board->go = stage - 1;
	}
	finish(NOBODY);
	remove_folder();
}

/* It goes on from its last save, and whoever is told so pushes on: what there was at the save and what came since is
 * there once. */
static void test_start_server(void)
{
	for (int i = 0; i < all_or(4, 2); i++) {
		in_place = i % 2;
		kill_and_start(5 * i);
	}
}

static CU_TestInfo table_tests[] = {
	{ "a worker is killed", test_kill_worker },
	{ "a worker is stopped", test_stop_worker },
	{ "a server is killed", test_kill_server },
	{ "a server is stopped", test_stop_server },
	{ "a server is killed, and started again", test_start_server },
	CU_TEST_INFO_NULL,
};
static CU_SuiteInfo suites[] = { { "tables", NULL, NULL, NULL, NULL, table_tests }, CU_SUITE_INFO_NULL };

int main(int argc, char **argv) { return run_over_wires(suites, argc, argv); }
