/* fuzz_boot.c - the rendezvous: two honest ranks of three join, and the third place is an attacker's, that of rank 0
 * too. Input: its place, and whether its library has the first of its addresses, which is rank 0's known one;
 * the world's seed; with it, whether to spoil a message first, and which; then events (attack.h). */
#include "member/member.h"
#include "tests/fuzz/attack.h"
#include "transport/sim/sim.h"

enum { DEADLINE_MS = 400 }; /* a blocking call costs time by the simulated millisecond */

static tutti *attackers;

static void join_too(struct attack *a)
{
	(void)a;
	if (!attackers)
		tutti_join(NULL, &attackers);
}

static void attacker(void)
{
	attack.join = join_too;
	attackers = NULL;
	if (cast.library_first) {
		plan_first_twist();
		join_too(&attack);
	}
	open_raw();
	run_attack();
	close_raw();
	tutti_leave(attackers);
}

static void honest(void)
{
	uint64_t start = tt_now();
	tutti *job;
	tutti_op op;
	int err = tutti_join(NULL, &job);

	FUZZ_CHECK(tt_now() - start <= 2 * DEADLINE_MS * TT_MS, "joining ends by the deadline");
	FUZZ_CHECK(err <= 0 && (!err || *tt_why()), "it says why not");
	if (err)
		return;
	FUZZ_CHECK(tutti_size(job) == RANKS && tutti_rank(job) == tt_sim_rank(), "everyone has its own place");
	if (!tutti_barrier(job, &op) && tutti_wait(&op, DEADLINE_MS / 4))
		tutti_cancel(&op);
	tutti_leave(job);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len)
{
	run_anywhere((struct fuzz_input){ bytes, len }, DEADLINE_MS, attacker, honest);
	return 0;
}
