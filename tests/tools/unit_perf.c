/* unit_perf.c - the baselines of `tutti perf` in bare memory do what they are the baseline of, each rank a process */
#include "tests/harness/cunit_main.h"
#include "tools/perf/perf.h"
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <sys/wait.h>

enum { RANKS = 3, MOST = 600000, ROUNDS = 5 };

static struct tt_perf_part *part[RANKS];
static _Atomic int *arrived; /* all ranks' */
static struct tt_perf_reach *reach;

static void map_parts(void)
{
	arrived = mmap(NULL, sizeof *arrived, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	CU_ASSERT_FATAL(arrived != MAP_FAILED);
	reach = mmap(NULL, RANKS * sizeof *reach, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	CU_ASSERT_FATAL(reach != MAP_FAILED);
	for (int r = 0; r < RANKS; r++) {
		part[r] =
			mmap(NULL, tt_perf_part_size(MOST), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
		CU_ASSERT_FATAL(part[r] != MAP_FAILED);
	}
}

static void unmap_parts(void)
{
	munmap((void *)arrived, sizeof *arrived);
	munmap(reach, RANKS * sizeof *reach);
	for (int r = 0; r < RANKS; r++)
		munmap(part[r], tt_perf_part_size(MOST));
}

/* As tt_perf_open_shared leaves it, without a job. */
static struct tt_perf limit_of(int size, size_t bytes)
{
	return (struct tt_perf){ .size = size,
		                 .bytes = bytes,
		                 .most = MOST,
		                 .flight = 2,
		                 .crowded = true,
		                 .order.baseline = 1,
		                 .options = { .type = TUTTI_F32, .rule = TUTTI_SUM },
		                 .shared = { .part = part, .patience = 20000 * TT_MS } };
}

static void meet(struct tt_perf *p) /* not the baseline's own */
{
	static int met;

	atomic_fetch_add(arrived, 1);
	met += p->size;
	while (atomic_load(arrived) < met)
		usleep(10);
}

/* Every rank in a process of its own, which says whether all was right. */
static bool run_ranks(struct tt_perf p, bool (*rank)(struct tt_perf *))
{
	bool right = true;
	int status;

	map_parts();
	for (p.rank = 0; p.rank < p.size; p.rank++)
		if (!fork())
			_exit(!rank(&p));
	while (wait(&status) > 0)
		right &= status == 0;
	unmap_parts();
	return right;
}

static float value(int rank, size_t i) { return (float)((i + (size_t)rank) % 7); }

static bool is_sum(const float *v, size_t count, int ranks)
{
	for (size_t i = 0; i < count; i++) {
		float sum = 0;
		for (int r = 0; r < ranks; r++)
			sum += value(r, i);
		if (v[i] != sum)
			return false;
	}
	return true;
}

/* Children of one process may read each other, unless the system forbids it. */
static bool reach_others(struct tt_perf *p)
{
	uint8_t byte;

	p->shared.reach = reach;
	reach[p->rank] = (struct tt_perf_reach){ getpid(), p->local };
	meet(p);
	for (int r = 0; r < p->size; r++) {
		struct iovec here = { &byte, 1 }, there = { reach[r].local, 1 };
		if (process_vm_readv(reach[r].pid, &here, 1, &there, 1, 0) != 1)
			return false;
	}
	return true;
}

static bool reduce_often(struct tt_perf *p)
{
	size_t count = p->bytes / sizeof(float);
	float *v;

	p->local = malloc(p->bytes);
	if (p->order.way.reads && !reach_others(p))
		p->order.way.reads = 0; /* all ranks alike */
	v = (float *)(void *)tt_perf_local(p);
	for (int round = 0; round < ROUNDS; round++) {
		for (size_t i = 0; i < count; i++)
			v[i] = value(p->rank, i);
		meet(p);
		if (tt_perf_shared_allreduce(p) || !is_sum(v, count, p->size))
			return false;
		meet(p);
	}
	return true;
}

static void test_allreduce(void)
{
	static const size_t bytes[] = { 4, 4096, 262144, 599996 };

	for (int ranks = 2; ranks <= RANKS; ranks++)
		for (size_t i = 0; i < TT_COUNT(bytes); i++)
			for (unsigned way = 0; way < 5; way++) {
				struct tt_perf p = limit_of(ranks, bytes[i]);
				p.options.brought = way == 1 || way > 2;
				p.order.way = (struct tt_perf_way){ .past = way == 2, .copy = way == 3,
				                                    .reads = way == 4 };
				CU_ASSERT(run_ranks(p, reduce_often));
			}
}

static bool play(struct tt_perf *p)
{
	for (int round = 1; round <= ROUNDS; round++) {
		memset(tt_perf_local(p), 10 * round + p->rank, p->bytes);
		meet(p);
		if (tt_perf_shared_pingpong(p))
			return false;
		meet(p);
		for (size_t i = 0; i < p->bytes; i++)
			if (tt_perf_open(p)[i] != 10 * round + 1 - p->rank)
				return false;
	}
	return true;
}

static void test_pingpong(void)
{
	static const size_t bytes[] = { 1, 8, 56, 57, 4096, MOST };

	for (size_t i = 0; i < TT_COUNT(bytes); i++)
		CU_ASSERT(run_ranks(limit_of(2, bytes[i]), play));
}

static bool fetch_and_bring(struct tt_perf *p)
{
	memset(tt_perf_local(p), 3, p->bytes);
	memset(tt_perf_open(p), 5 + p->rank, p->bytes);
	meet(p);
	for (p->order.way.copy = 0; p->order.way.copy <= (unsigned)tt_copy_ways(); p->order.way.copy++) {
		if (tt_perf_shared_get(p) || (!p->rank && tt_perf_local(p)[p->bytes - 1] != 6))
			return false;
		memset(tt_perf_local(p), 3, p->bytes);
	}
	if (tt_perf_shared_stream_puts(p))
		return false;
	meet(p);
	return tt_perf_open(p)[p->bytes - 1] == (p->rank ? 3 : 5);
}

static void test_copies(void)
{
	CU_ASSERT(run_ranks(limit_of(2, 8), fetch_and_bring));
	CU_ASSERT(run_ranks(limit_of(2, MOST), fetch_and_bring));
}

static bool wait_in_vain(struct tt_perf *p)
{
	if (p->rank)
		return true; /* and it is gone */
	p->shared.patience = 50 * TT_MS;
	return tt_perf_shared_pingpong(p) == -ETIMEDOUT && strstr(tt_why(), "rank 1");
}

static void test_patience(void) { CU_ASSERT(run_ranks(limit_of(2, 8), wait_in_vain)); }

static CU_TestInfo tests[] = {
	{ "allreduce", test_allreduce },
	{ "pingpong", test_pingpong },
	{ "copies", test_copies },
	{ "patience", test_patience },
	CU_TEST_INFO_NULL,
};
static CU_SuiteInfo suites[] = { { "bare memory", NULL, NULL, NULL, NULL, tests }, CU_SUITE_INFO_NULL };

int main(int argc, char **argv) { return run_suites(suites, argc, argv); }
