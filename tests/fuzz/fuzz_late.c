/* fuzz_late.c - two ranks make a job, a third joins it under way, and they take it into their group. One of the three
 * is an attacker. Input: its place, and whether its library has the first of its addresses, which is rank 0's known
 * one; the world's seed; with it, whether to spoil a message first, and which; then events (attack.h). */
#include "member/member.h"
#include "tests/fuzz/attack.h"
#include "transport/sim/sim.h"

enum { DEADLINE_MS = 300, LAUNCHED = 2, NEWCOMER = 2, LATE_MS = 5 };

static tutti *attackers, *attackers_group;

/* The world says that three ranks are on this host, which is more than the job begins with. */
static const char *(*worlds_env)(struct tt_world *, const char *);

static const char *env(struct tt_world *w, const char *variable)
{
	return strstr(variable, "LOCAL_") ? NULL : worlds_env(w, variable);
}

static void count_launched(void)
{
	if (tt_world->env != env)
		worlds_env = tt_world->env;
	tt_world->env = env;
}

static int join(tutti **job)
{
	tutti_config c = { .rank = tt_sim_rank() == NEWCOMER ? TUTTI_NEW_RANK : tt_sim_rank(),
		           .ranks = LAUNCHED,
		           .boot = tt_sim_rank() == NEWCOMER ? "sim:0,sim:1" : "sim:0" };

	count_launched();
	if (tt_sim_rank() == NEWCOMER)
		tt_sim_sleep(LATE_MS * TT_MS);
	return tutti_join(&c, job);
}

static void join_too(struct attack *a)
{
	(void)a;
	if (!attackers && !join(&attackers))
		attackers_group = attackers;
}

static void try_barrier(tutti *g, int patience)
{
	tutti_op op;

	if (!tutti_barrier(g, &op) && tutti_wait(&op, patience))
		tutti_cancel(&op);
}

static void call_something(struct attack *a, unsigned what)
{
	(void)a;
	if (!attackers)
		return;
	switch (what % 4) {
	case 0: tutti_group_grow(attackers_group, &attackers_group); break;
	case 1: tutti_group_shrink(attackers_group, &attackers_group); break;
	case 2: try_barrier(attackers_group, 20); break;
	default: tt_sim_sleep(2 * LATE_MS * TT_MS); /* until the newcomer is there */
	}
}

static void attacker(void)
{
	attack.join = join_too;
	attack.call = call_something;
	attackers = attackers_group = NULL;
	if (cast.library_first) {
		plan_first_twist();
		join_too(&attack);
	}
	open_raw();
	run_attack();
	attack.has_twist = false;
	close_raw();
	tutti_leave(attackers);
}

static void use(tutti *job)
{
	uint64_t start = tt_now();
	tutti *group = job;
	int err;

	if (tt_sim_rank() != NEWCOMER)
		try_barrier(group, DEADLINE_MS / 4);
	if (tt_sim_rank() != NEWCOMER)
		tt_sim_sleep(2 * LATE_MS * TT_MS);
	start = tt_now();
	err = tutti_group_grow(job, &group);
	FUZZ_CHECK(tt_now() - start <= 4 * DEADLINE_MS * TT_MS, "growing ends in time");
	FUZZ_CHECK(err <= 0 && (!err || *tt_why()), "it says why not");
	try_barrier(group, DEADLINE_MS / 4);
	if (!tutti_group_shrink(group, &group))
		try_barrier(group, DEADLINE_MS / 4);
}

static void honest(void)
{
	uint64_t start = tt_now();
	tutti *job;
	int err = join(&job);

	FUZZ_CHECK(tt_now() - start <= 2 * DEADLINE_MS * TT_MS, "joining ends by the deadline");
	FUZZ_CHECK(err <= 0 && (!err || *tt_why()), "it says why not");
	if (err)
		return;
	use(job);
	tutti_leave(job);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len)
{
	run_anywhere((struct fuzz_input){ bytes, len }, DEADLINE_MS, attacker, honest);
	return 0;
}
