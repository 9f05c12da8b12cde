/* newcomers.c - ranks join a job whose ranks die, rank 0 too, or are cut from each other for a while. On the simulated
 * wire, over seeds.
 *
 *      newcomers [--seed S] [--seeds N] [--verbose]      --seed alone: that one; with --seeds: N from S on
 *
 * And more processes than there are numbers for newcomers come and go, some killed, so that numbers are used again.
 *
 * What must hold: no two processes get one number; of two groups that computed something, each has a rank of the
 * other; ranks that are cut from the majority let nobody in, and are out when the network is healed; the group takes
 * every other newcomer in, in time; and where a rank calls late, again and again, that uses up no numbers.
 */
#include "member/member.h"
#include "transport/sim/sim.h"
#include "tests/harness/amount.h"
#include "tests/harness/complaint.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LAUNCHED_MAX = 6, NEWCOMERS_MAX = 3, ALL_MAX = LAUNCHED_MAX + NEWCOMERS_MAX, NUMBERS = LAUNCHED_MAX + 64,
       SILENCE_MS = 100, TIMEOUT_MS = 1000, CUT_MS = 20, HEAL_MS = 1200, END_MS = 4000, EARLY_MS = 2500,
       LATE_MS = 800 };

static struct run {
	uint64_t seed;
	int launched, newcomers;
	unsigned killed, cut;       /* bits of launched ranks, fewer than half; cut: from all others, for a time */
	bool back;                  /* the first of the killed ranks is started again */
	bool listed;                /* the first ranks have the list of addresses, too */
	int late;                   /* a rank that grows the group late, the first time; or -1 */
	unsigned groups[256];       /* that made a sum: a bit for each process; a rank's second life has its own */
	int count, joins, refusals;
	int lives[ALL_MAX];
	int holder[NUMBERS];        /* 1 + the process that got that number last as a new rank; it may have ended ... */
	int life_of[NUMBERS];       /* ... this life of it */
	bool seated[ALL_MAX];
	char complaint[400];
} run;

static bool verbose;

static uint64_t begun; /* when the world began */
static bool is_past(int ms) { return tt_now() - begun >= (uint64_t)ms * TT_MS; }

/* ---- the plan ---- */

static int count_bits(unsigned bits)
{
	int n = 0;

	for (; bits; bits &= bits - 1)
		n++;
	return n;
}

static struct run draw(uint64_t seed)
{
	struct run p = { .seed = seed };
	struct tt_random r;
	int failing;

	tt_random_seed(&r, seed ^ 0x6e6577636f6d65);
	p.launched = 3 + (int)tt_random_below(&r, LAUNCHED_MAX - 2);
	p.newcomers = 1 + (int)tt_random_below(&r, NEWCOMERS_MAX);
	failing = (int)tt_random_below(&r, (uint64_t)(p.launched - 1) / 2 + 1);
	unsigned bits = failing && tt_random_below(&r, 4) ? 1 : 0; /* mostly rank 0 is one of them */
	while (count_bits(bits) < failing)
		bits |= 1u << tt_random_below(&r, (uint64_t)p.launched);
	if (tt_random_below(&r, 3))
		p.killed = bits;
	else
		p.cut = bits;
	p.back = p.killed && tt_random_below(&r, 2);
	p.late = p.killed == 1 && tt_random_below(&r, 2) ? p.launched - 1 : -1; /* newcomers come to it, too */
	p.listed = !p.cut && tt_random_below(&r, 2);
	return p;
}

static void order_faults(void)
{
	bool back = run.back;

	for (int i = 0; i < run.launched; i++) {
		if (run.killed >> i & 1) {
			/* all have joined */
			tt_sim_kill(i, (run.listed ? 500 : 1) * TT_MS + tt_sim_chance(200 * TT_MS));
			if (back)
				tt_sim_restart(i, (run.listed ? 800 : 300) * TT_MS + tt_sim_chance(1000 * TT_MS));
			back = false;
		}
		for (int k = 0; run.cut >> i & 1 && k < run.launched + run.newcomers; k++)
			if (!(run.cut >> k & 1) && (k != run.launched || !(run.cut & 1))) { /* one newcomer asks both */
				tt_sim_cut(i, k, CUT_MS * TT_MS);
				tt_sim_heal(i, k, HEAL_MS * TT_MS);
			}
	}
}

/* ---- the processes ---- */

static const char *(*worlds_env)(struct tt_world *, const char *);

/* The world counts more ranks than the job begins with. */
static const char *env(struct tt_world *w, const char *variable)
{
	return strstr(variable, "LOCAL_") ? NULL : worlds_env(w, variable);
}

static void note_group(int me, unsigned bits)
{
	for (int i = 0; i < run.count; i++) {
		if (run.groups[i] == bits)
			return;
		if (!(run.groups[i] & bits))
			complain(me, "the groups %x and %x both made a sum, and have no rank in common", run.groups[i],
			         bits);
	}
	if (run.count < 256)
		run.groups[run.count++] = bits;
}

/* One round. 1 or more: the round is over; else an error. With the sum comes whether the others grow, or end. */
static int sum_up(int me, tutti *job, tutti *g, int32_t *grow, int32_t *end)
{
	int32_t v[NUMBERS + ALL_MAX + LAUNCHED_MAX + 2] = { 0 }, *process = v + NUMBERS;
	int at = run.lives[me] > 1 ? ALL_MAX + me : me, err;
	unsigned bits = 0;

	v[tutti_group_member(g, tutti_rank(g))] = 1;
	process[at] = 1;
	v[TT_COUNT(v) - 2] = *grow;
	v[TT_COUNT(v) - 1] = *end;
	err = tutti_allreduce(g, v, v, TT_COUNT(v), TUTTI_I32, TUTTI_SUM, NULL);
	if (err)
		return err;
	for (int i = 0; i < NUMBERS; i++)
		if (v[i] > 1)
			complain(me, "%d processes have the number %d", v[i], i);
	for (int i = 0; i < ALL_MAX + LAUNCHED_MAX; i++)
		bits |= process[i] ? 1u << i : 0;
	note_group(me, bits);
	*grow = v[TT_COUNT(v) - 2];
	*end = v[TT_COUNT(v) - 1];
	(void)job;
	return 0;
}

static int go_on(tutti **g, bool grow)
{
	tutti *next;
	int err = grow ? tutti_group_grow(*g, &next) : tutti_group_shrink(*g, &next);

	if (err)
		return err;
	tutti_group_free(*g);
	*g = next;
	return 0;
}

static int take_seat(tutti *job, tutti **g)
{
	int err;

	do
		err = tutti_group_grow(job, g);
	while (err == -ETIMEDOUT && !is_past(END_MS));
	return err;
}

/* A cut rank, which the others have evicted, does not come in again when it could reach them. */
static void stay_out(int me, tutti *job)
{
	tutti *g;

	while (!is_past(HEAL_MS + 2 * SILENCE_MS))
		tt_sim_sleep(10 * TT_MS);
	if (!tutti_barrier(job, NULL) || !tutti_group_grow(job, &g))
		complain(me, "was cut off, and goes on with the others");
}

static void live(int me, tutti *job)
{
	int32_t joined = 0, grow, end;
	tutti *g = job;
	tutti_change c;
	int err = tutti_group_watch(job, NULL, NULL) < 0;

	if (!err && tutti_late(job) && (err = take_seat(job, &g)) == 0)
		run.seated[me] = true;
	while (!err) {
		tt_sim_sleep(tt_sim_chance(20 * TT_MS));
		while (tutti_group_next(job, &c) == 1)
			joined |= c.what == TUTTI_JOINED;
		grow = joined;
		end = is_past(END_MS);
		if ((err = sum_up(me, job, g, &grow, &end)) == 0 && end)
			return;
		if (err || grow) {
			joined |= !err;
			if (run.late == me) /* more than 16 rounds of a claim meanwhile: all spare numbers */
				tt_sim_sleep(LATE_MS * TT_MS);
			run.late = run.late == me ? -1 : run.late;
			if ((err = go_on(&g, joined)) == 0)
				joined = 0;
		}
	}
	if (verbose)
		printf("  %.6f process %d is out: %d %s\n", (double)tt_now() / 1e9, me, err, tutti_why());
	if (run.cut >> me & 1)
		stay_out(me, job);
	if (!tt_sim_killed(me) && !(run.cut >> me & 1) && !is_past(END_MS))
		complain(me, "is out: %d %s", err, tutti_why());
}

/* Rank 0's place in the list tells the job by its port. Of the others, whose order differs: only some, or all. */
static void list_addresses(char *list, size_t size, unsigned whom)
{
	int n = run.launched, first = (int)tt_sim_chance((uint64_t)n);

	snprintf(list, size, "sim:0");
	for (int i = 0; i < n; i++) {
		int rank = (first + i) % n;
		if (rank && whom >> rank & 1)
			snprintf(list + strlen(list), size - strlen(list), ",sim:%d", rank);
	}
}

static int come(int me, int rank, unsigned whom, tutti **job)
{
	char list[80];

	list_addresses(list, sizeof list, whom);
	tutti_config c = { .rank = rank, .ranks = run.launched, .boot = list, .timeout_ms = TIMEOUT_MS };
	int err = tutti_join(&c, job);

	if (verbose)
		printf("  %.6f process %d comes by %s: %d, rank %d %s\n", (double)tt_now() / 1e9, me, list, err,
		       err ? -1 : tutti_rank(tutti_job(*job)), err ? tutti_why() : "");
	return err;
}

/* Those that are cut off have noticed, and are not healed yet. */
static void ask_the_cut(int me)
{
	tutti *job;

	if (!(run.cut & 1))
		return;
	tt_sim_sleep((CUT_MS + 4 * SILENCE_MS) * TT_MS);
	int err = come(me, TUTTI_NEW_RANK, run.cut, &job);
	if (err) {
		run.refusals++;
		if (err != -EPERM || !strstr(tutti_why(), " this process as a newcomer: ") ||
		    !strstr(tutti_why(), "no majority"))
			complain(me, "the cut ranks said %d: %s", err, tutti_why());
		return;
	}
	complain(me, "the ranks %x, a minority, have let it in", run.cut);
	tutti_leave(job);
}

/* Of a process that lives nobody else gets the number. */
static void hold_number(int me, int number)
{
	int other = number >= 0 && number < NUMBERS ? run.holder[number] - 1 : -1;

	if (number < run.launched || number >= NUMBERS)
		complain(me, "has the number %d", number);
	else if (other >= 0 && other != me && !tt_sim_killed(other) && run.lives[other] == run.life_of[number])
		complain(me, "has the number %d, which is that of process %d", number, other);
	run.holder[number] = me + 1;
	run.life_of[number] = run.lives[me];
}

static void newcomer(int me, int rank)
{
	tutti *job;
	int err;

	if (me == run.launched)
		ask_the_cut(me);
	tt_sim_sleep((10 + tt_sim_chance(300)) * TT_MS);
	while ((err = come(me, rank, ~0u, &job)) && !is_past(END_MS))
		tt_sim_sleep(10 * TT_MS);
	if (err || is_past(EARLY_MS)) {
		complain(me, "did not join in time: %d %s", err, err ? tutti_why() : "");
		if (err)
			return;
	}
	int number = job->job->rank;
	run.joins++;
	if (!tutti_late(job))
		complain(me, "is not late");
	if (rank == TUTTI_NEW_RANK)
		hold_number(me, number);
	live(me, job);
	tutti_leave(job);
}

/* All may have the list from the beginning. Then they ask ranks that have not joined either, while rank 0 is late. */
static void launched(int me)
{
	char list[80] = "sim:0";
	tutti_config c = { .rank = me, .ranks = run.launched, .boot = list, .timeout_ms = TIMEOUT_MS };
	tutti *job;

	if (run.listed)
		list_addresses(list, sizeof list, ~0u);
	if (run.listed && !me)
		tt_sim_sleep(tt_sim_chance(40) * TT_MS);
	if (tutti_join(&c, &job)) {
		if (!tt_sim_killed(me))
			complain(me, "cannot join: %s", tutti_why());
		return;
	}
	live(me, job);
	tutti_leave(job);
}

static void program(int me, void *arg)
{
	(void)arg;
	if (tt_world->env != env)
		worlds_env = tt_world->env;
	tt_world->env = env;
	if (!begun)
		begun = tt_now();
	if (me == 0 && !run.lives[0])
		order_faults();
	if (run.lives[me]++)
		newcomer(me, me ? me : TUTTI_NEW_RANK);
	else if (me < run.launched)
		launched(me);
	else
		newcomer(me, TUTTI_NEW_RANK);
}

/* ---- the verdict ---- */

static bool try_seed(uint64_t seed, int *joins, int *refusals)
{
	run = draw(seed);
	begun = 0;
	struct tt_sim_config c = { .seed = seed, .strict = 1, .ranks = run.launched + run.newcomers, .program = program,
		                   .timeout_ms = TIMEOUT_MS, .silence_ms = SILENCE_MS,
		                   .log = verbose ? "debug" : NULL, .hosts = (int)(seed % 3) };
	if (verbose)
		printf("%d ranks, %d newcomers, killed %x%s, cut %x\n", run.launched, run.newcomers, run.killed,
		       run.back ? " (one comes back)" : "", run.cut);
	int err = tt_sim_run(&c);
	if (err)
		snprintf(run.complaint, sizeof run.complaint, "the run ended with %d: %s", err, tt_why());
	for (int i = run.launched; !err && i < c.ranks; i++)
		if (!run.seated[i])
			complain(i, "was never taken in");
	*joins += run.joins;
	*refusals += run.refusals;
	if (!*run.complaint)
		return true;
	printf("seed %llu: %s\n  replay: newcomers --seed %llu --verbose\n", (unsigned long long)seed, run.complaint,
	       (unsigned long long)seed);
	return false;
}

/* ---- visitors: more of them than numbers. They come, use a window and leave, or are killed and started again ---- */

enum { VISITORS = 5, VISITS_END_MS = 3000 };

static int visits, reuses; /* of all seeds */

static void host_visits(int me)
{
	uint64_t memory[NUMBERS] = { 0 };
	int state[NUMBERS] = { 0 }; /* 1: the rank has joined, and this rank has not heard of its end */
	tutti_config c = { .rank = me, .ranks = run.launched, .boot = "sim:0", .timeout_ms = TIMEOUT_MS,
		           .newcomers = run.newcomers };
	tutti_window *w;
	tutti_change change;
	tutti *job;

	if (tutti_join(&c, &job) || tutti_group_watch(job, NULL, NULL) < 0 ||
	    tutti_window_open(job, "visits", memory, sizeof memory, &w)) {
		complain(me, "cannot begin: %s", tutti_why());
		return;
	}
	for (int i = 0; i < run.launched; i++)
		state[i] = 1;
	while (!is_past(VISITS_END_MS)) {
		tt_sim_sleep(5 * TT_MS);
		while (tutti_group_next(job, &change) == 1) {
			int joined = change.what == TUTTI_JOINED;
			if (joined && state[change.rank]) /* an end without one is of a life whose news were late */
				complain(me, "hears of a new rank %d and of no end of the old one", change.rank);
			state[change.rank] = joined;
		}
	}
	tutti_window_close(w);
	tutti_leave(job);
}

static void visit_once(int me, tutti *job)
{
	uint64_t mine = ((uint64_t)me << 32) + (uint64_t)tt_now(), seen = 0;
	int number = job->job->rank, err;
	tutti_window *w;

	reuses += run.holder[number] != 0;
	hold_number(me, number);
	visits++;
	if (!(err = tutti_window_open(tutti_job(job), "visits", NULL, 0, &w))) {
		err = tutti_put(w, 0, 8 * (size_t)number, &mine, 8, NULL);
		tt_sim_sleep(tt_sim_chance(60 * TT_MS));
		if (!err && !is_past(VISITS_END_MS - 100))
			err = tutti_get(w, 0, 8 * (size_t)number, &seen, 8, NULL);
		if (!err && seen && seen != mine)
			complain(me, "another process writes as rank %d", number);
		tutti_window_close(w);
	}
	if (err && !tt_sim_killed(me) && !is_past(VISITS_END_MS - 100))
		complain(me, "as rank %d: %d %s", number, err, tutti_why());
	run.holder[number] = -1; /* used, and free */
}

static void visit(int me)
{
	tutti_config c = { .rank = TUTTI_NEW_RANK, .ranks = run.launched, .boot = "sim:0", .timeout_ms = TIMEOUT_MS };
	tutti *job;

	while (!is_past(VISITS_END_MS - 500)) {
		int err = tutti_join(&c, &job);
		if (err == -EPERM && strstr(tutti_why(), "newcomers are there"))
			continue; /* others were luckier for all that time */
		if (err && !tt_sim_killed(me) && !is_past(VISITS_END_MS - 500))
			complain(me, "cannot join: %d %s", err, tutti_why());
		if (err)
			return;
		visit_once(me, job);
		tutti_leave(job);
	}
}

static void visits_program(int me, void *arg)
{
	(void)arg;
	if (tt_world->env != env)
		worlds_env = tt_world->env;
	tt_world->env = env;
	if (!begun)
		begun = tt_now();
	for (int i = run.launched; me == 0 && i < run.launched + VISITORS; i++)
		if (tt_sim_chance(2)) {
			uint64_t at = tt_sim_chance(1500 * TT_MS);
			tt_sim_kill(i, at);
			tt_sim_restart(i, at + 50 * TT_MS + tt_sim_chance(300 * TT_MS));
		}
	run.lives[me]++;
	if (me < run.launched)
		host_visits(me);
	else
		visit(me);
}

static bool try_visits(uint64_t seed)
{
	run = (struct run){ .seed = seed, .launched = 1 + 2 * (int)(seed % 2), .newcomers = 2 + (int)(seed / 2 % 2) };
	begun = 0;
	struct tt_sim_config c = { .seed = seed, .strict = 1, .ranks = run.launched + VISITORS,
		                   .program = visits_program, .timeout_ms = TIMEOUT_MS, .silence_ms = SILENCE_MS,
		                   .log = verbose ? "debug" : "error", .hosts = (int)(seed % 3) };
	int err = tt_sim_run(&c);

	if (err)
		snprintf(run.complaint, sizeof run.complaint, "the run ended with %d: %s", err, tt_why());
	if (*run.complaint)
		printf("seed %llu, visits: %s\n  replay: newcomers --seed %llu --verbose\n", (unsigned long long)seed,
		       run.complaint, (unsigned long long)seed);
	return !*run.complaint;
}

int main(int argc, char **argv)
{
	uint64_t first = 0, seeds = 0;
	int failed = 0, joins = 0, refusals = 0;

	for (int i = 1; i < argc; i++) {
		if (!strcmp(argv[i], "--seed") && i + 1 < argc)
			first = strtoull(argv[++i], NULL, 10), seeds = seeds ? seeds : 1;
		else if (!strcmp(argv[i], "--seeds") && i + 1 < argc)
			seeds = strtoull(argv[++i], NULL, 10);
		else if (!strcmp(argv[i], "--verbose"))
			verbose = true;
		else
			return fprintf(stderr, "usage: newcomers [--seed S] [--seeds N] [--verbose]\n"), 2;
	}
	seeds = seeds ? seeds : (uint64_t)all_or(TT_ASAN ? 40 : 200, 25);
	for (uint64_t s = first; s < first + seeds && failed < 5; s++)
		failed += !try_seed(s, &joins, &refusals) + !try_visits(s);
	if (!failed && reuses < visits / 2)
		return printf("newcomers: of %d visits %d with a used number test nothing\n", visits, reuses), 1;
	printf("newcomers: %d visits, %d with a number that was used\n", visits, reuses);
	if (!failed && seeds > 30 && (!joins || !refusals))
		return printf("newcomers: nobody joined, or nobody was refused: this tests nothing\n"), 1;
	printf("newcomers: %llu seeds, %d joins, %d refusals, %s\n", (unsigned long long)seeds, joins, refusals,
	       failed ? "FAILED" : "passed");
	return failed != 0;
}
