/* recover.c - ranks that are killed, stopped, cut off or slow while they compute together; those that are left shrink
 * their group and go on. On the simulated wire, over seeds.
 *
 *      recover [--seed S] [--seeds N] [--verbose]        --seed alone: that one; with --seeds: N from S on
 *
 * What must hold: nothing hangs; every sum is that of the group that made it; of two groups that computed something,
 * one is part of the other, so that no two halves ever go on side by side; and where only a minority was killed, all
 * the rest get to the end.
 */
#include "member/member.h"
#include "transport/sim/sim.h"
#include "tests/harness/amount.h"
#include "tests/harness/complaint.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { RANKS_MAX = 9, FAULTS_MAX = 4, DEADLINE_MS = 1000, TRIES_MAX = 40 };

enum kind { KILL, STOP, CUT, PARTITION, SLOW, KINDS };
static const char *const kind_names[] = { "kill", "stop", "cut", "partition", "slow" };

struct fault {
	enum kind kind;
	int a, b;
	uint64_t at, ns;
};

struct plan {
	uint64_t seed;
	int ranks, rounds, faults;
	struct fault fault[FAULTS_MAX];
	size_t large;               /* elements of the vectors of some rounds */
};

static struct run {
	const struct plan *plan;
	char complaint[400];
	unsigned groups[256];       /* that made a sum: bits of ranks */
	int count;
	int done[RANKS_MAX];        /* rounds */
	bool out[RANKS_MAX];        /* was told that the others went on without it, or that it is in a minority */
	bool ended[RANKS_MAX];
	int shrinks;
} run;

static bool verbose;

/* ---- the plan ---- */

static struct fault draw_fault(struct tt_random *r, int ranks)
{
	struct fault f = { .kind = tt_random_below(r, 2) ? KILL : (enum kind)tt_random_below(r, KINDS) };

	f.a = (int)tt_random_below(r, (uint64_t)ranks);
	f.b = (f.a + 1 + (int)tt_random_below(r, (uint64_t)ranks - 1)) % ranks;
	f.at = TT_MS / 4 + tt_random_below(r, tt_random_below(r, 2) ? 3 * TT_MS : 200 * TT_MS);
	f.ns = tt_random_below(r, 2) ? tt_random_below(r, 80) * TT_MS
	                             : (2 * DEADLINE_MS + tt_random_below(r, 1000)) * TT_MS;
	return f;
}

static struct plan draw_plan(uint64_t seed)
{
	struct plan p = { .seed = seed };
	struct tt_random r;

	tt_random_seed(&r, seed ^ 0x7265636f766572);
	p.ranks = 3 + (int)tt_random_below(&r, RANKS_MAX - 2);
	p.rounds = 4 + (int)tt_random_below(&r, 30);
	p.faults = (int)tt_random_below(&r, FAULTS_MAX + 1);
	p.large = 1 + tt_random_below(&r, 60000);
	for (int i = 0; i < p.faults; i++)
		p.fault[i] = draw_fault(&r, p.ranks);
	return p;
}

static void order_faults(void)
{
	const struct plan *p = run.plan;

	for (int i = 0; i < p->faults; i++) {
		const struct fault *f = &p->fault[i];
		if (f->kind == KILL)
			tt_sim_kill(f->a, f->at);
		else if (f->kind == STOP)
			tt_sim_stop(f->a, f->at, f->ns);
		else if (f->kind == CUT)
			tt_sim_cut(f->a, f->b, f->at);
		else if (f->kind == SLOW)
			tt_sim_slow(f->a, 20);
		for (int k = 0; f->kind == PARTITION && k < p->ranks * p->ranks; k++)
			if (k / p->ranks <= f->a && k % p->ranks > f->a)
				tt_sim_cut(k / p->ranks, k % p->ranks, f->at);
	}
}

/* ---- the ranks ---- */

static unsigned bits_of(const tutti *g)
{
	unsigned bits = 0;

	for (int i = 0; i < tutti_size(g); i++)
		bits |= 1u << tutti_group_member(g, i);
	return bits;
}

static void note_group(int rank, unsigned bits)
{
	for (int i = 0; i < run.count; i++) {
		unsigned other = run.groups[i];
		if (other == bits)
			return;
		if ((other & bits) != other && (other & bits) != bits)
			complain(rank, "the groups %x and %x both made a sum, and neither is part of the other", other,
			         bits);
	}
	if (run.count < 256)
		run.groups[run.count++] = bits;
}

static int sum_up(int rank, tutti *g, size_t count)
{
	float *v = malloc(count * sizeof *v);
	unsigned bits = bits_of(g);
	int err;

	for (size_t i = 0; i < count; i++)
		v[i] = (float)(1u << rank);
	err = tutti_allreduce(g, v, v, count, TUTTI_F32, TUTTI_SUM, NULL);
	for (size_t i = 0; !err && i < count; i++)
		if (v[i] != (float)bits) {
			complain(rank, "element %zu is %g in the group %x", i, (double)v[i], bits);
			break;
		}
	if (!err)
		note_group(rank, bits);
	free(v);
	return err;
}

/* Some have got further than others before they noticed: the least of them counts. */
static int agree_on_round(int rank, tutti *g, int *round)
{
	int32_t least = *round;
	int err = tutti_allreduce(g, &least, &least, 1, TUTTI_I32, TUTTI_MIN, NULL);

	if (err)
		return err;
	note_group(rank, bits_of(g));
	if (least > *round || least < *round - 1)
		complain(rank, "it is at round %d, another at %d", *round, least);
	*round = least;
	return 0;
}

static int shrink(int rank, tutti **g)
{
	tutti *left;
	int err = tutti_group_shrink(*g, &left);

	if (verbose)
		printf("  %.6f rank %d shrinks %x: %d %s\n", (double)tt_now() / 1e9, rank, bits_of(*g), err,
		       err ? tutti_why() : "");
	if (err)
		return err;
	run.shrinks++;
	if ((bits_of(left) | bits_of(*g)) != bits_of(*g))
		complain(rank, "%x shrank to %x", bits_of(*g), bits_of(left));
	tutti_group_free(*g);
	*g = left;
	return 0;
}

static bool is_documented(int err)
{
	return err == -ECONNRESET || err == -ENOTCONN || err == -ETIMEDOUT || err == -ECONNABORTED || err == -EHOSTDOWN;
}

static void compute(int rank, tutti *job)
{
	tutti *g = job;
	int round = 0, err = 0;

	for (int tries = 0; round < run.plan->rounds && tries < TRIES_MAX;) {
		tt_sim_sleep(tt_sim_chance(5 * TT_MS));
		err = sum_up(rank, g, round % 3 == 2 ? run.plan->large : 1);
		if (!err) {
			run.done[rank] = ++round;
			continue;
		}
		if (verbose)
			printf("  %.6f rank %d round %d: %d %s\n", (double)tt_now() / 1e9, rank, round, err,
			       tutti_why());
		if (!is_documented(err))
			complain(rank, "an undocumented error %d: %s", err, tutti_why());
		while (++tries < TRIES_MAX && !(err = shrink(rank, &g)) && agree_on_round(rank, g, &round))
			;
		if (err)
			break;
	}
	run.out[rank] = err != 0;
	if (err && !is_documented(err))
		complain(rank, "an undocumented error %d: %s", err, tutti_why());
}

static void program(int rank, void *arg)
{
	tutti *job;
	int err = tutti_join(NULL, &job);

	(void)arg;
	if (!err) {
		if (rank == 0)
			order_faults();
		compute(rank, job);
		tutti_leave(job);
	} else if (!tt_sim_killed(rank)) {
		complain(rank, "cannot join: %s", tutti_why());
	}
	run.ended[rank] = true;
}

/* ---- the verdict ---- */

static bool only_kills(const struct plan *p, unsigned *killed)
{
	*killed = 0;
	for (int i = 0; i < p->faults; i++) {
		if (p->fault[i].kind != KILL)
			return false;
		*killed |= 1u << p->fault[i].a;
	}
	return true;
}

static void check_survivors(const struct plan *p)
{
	unsigned killed;
	int n = 0;

	if (!only_kills(p, &killed))
		return;
	for (int i = 0; i < p->ranks; i++)
		n += killed >> i & 1;
	for (int i = 0; 2 * n < p->ranks && i < p->ranks; i++)
		/* while it makes up for the last one, the others leave */
		if (!(killed >> i & 1) && run.done[i] < p->rounds - 1)
			complain(i, "did %d of %d rounds, and only ranks %x of %d were killed", run.done[i], p->rounds,
			         killed, p->ranks);
}

static bool try_seed(uint64_t seed)
{
	struct plan p = draw_plan(seed);
	struct tt_sim_config c = { .seed = seed, .strict = 1, .ranks = p.ranks, .program = program,
	                           .timeout_ms = DEADLINE_MS, .hosts = (int)(seed % 3) };
	int err;

	run = (struct run){ .plan = &p };
	if (verbose)
		for (int i = 0; i < p.faults; i++)
			printf("%s %d %d at %.6f for %.3f\n", kind_names[p.fault[i].kind], p.fault[i].a, p.fault[i].b,
			       (double)p.fault[i].at / 1e9, (double)p.fault[i].ns / 1e9);
	err = tt_sim_run(&c);
	if (err)
		snprintf(run.complaint, sizeof run.complaint, "the run ended with %d: %s", err, tt_why());
	else
		check_survivors(&p);
	if (!*run.complaint)
		return true;
	printf("seed %llu, %d ranks, %d rounds: %s\n  replay: recover --seed %llu --verbose\n",
	       (unsigned long long)seed, p.ranks, p.rounds, run.complaint, (unsigned long long)seed);
	return false;
}

int main(int argc, char **argv)
{
	uint64_t first = 0, seeds = 0;
	int failed = 0, shrinks = 0;

	for (int i = 1; i < argc; i++) {
		if (!strcmp(argv[i], "--seed") && i + 1 < argc)
			first = strtoull(argv[++i], NULL, 10), seeds = seeds ? seeds : 1;
		else if (!strcmp(argv[i], "--seeds") && i + 1 < argc)
			seeds = strtoull(argv[++i], NULL, 10);
		else if (!strcmp(argv[i], "--verbose"))
			verbose = true;
		else
			return fprintf(stderr, "usage: recover [--seed S] [--seeds N] [--verbose]\n"), 2;
	}
	seeds = seeds ? seeds : (uint64_t)all_or(TT_ASAN ? 200 : 1000, 250); /* more of them: make check-long */
	for (uint64_t s = first; s < first + seeds && failed < 5; s++) {
		failed += !try_seed(s);
		shrinks += run.shrinks;
	}
	if (!failed && seeds > 100 && !shrinks)
		return printf("recover: nobody ever shrank a group: this tests nothing\n"), 1;
	printf("recover: %llu seeds, %s\n", (unsigned long long)seeds, failed ? "FAILED" : "passed");
	return failed != 0;
}
