/* fuzz_members.c - a job of three in which rank 2 goes bad: it has joined honestly, takes part in windows and
 * collectives or not, and sends what the input says. Nothing of that may end rank 0 or 1, hang them, or write where it
 * has no key. Input: which collectives are called, which change of the group or whether each process has a list of
 * nodes of its own, the world's seed, then events (attack.h). */
#include "device/device.h"
#include "member/member_private.h"
#include "tests/fuzz/attack.h"
#include "transport/sim/sim.h"

enum { BAD = 2, COLLECTIVES = 8, WINDOW = 256, LONG = 20000, ATTACK_MS = 300, REST_MS = 20, DEADLINE_MS = 1200 };

struct part { /* one rank's share of it all */
	tutti *job, *group;         /* group: what came of the job's */
	bool changed;               /* or it was tried */
	tutti_window *window;
	uint8_t *memory;
	tutti_op ops[COLLECTIVES], one_sided;
	bool started[COLLECTIVES], puts;
	float *vectors[COLLECTIVES];
	struct tt_pinned device;    /* as if it were memory of a device, which this process does not have */
	struct tt_region *staged;   /* a key of it */
	tutti_op receive;           /* of a message from any rank */
	uint8_t *letter;
	bool checked;               /* an honest one has got on with the other honest one */
	int count;
};
static struct part parts[RANKS];
static uint8_t plan; /* with which collective to begin, and in which steps to go on */
/* how the group changes, after how many collectives, which kind of these, and by which algorithm */
static uint8_t deed;

/* Short legs and long ones, and such as come by a plan of each rank. */
static int call_pairwise(struct part *p, int i)
{
	static const size_t sizes[] = { 100, 4 * LONG, 0 }, at[] = { 0, 4 * LONG, 8 * LONG };
	float *v = p->vectors[i] = calloc(6 * LONG, sizeof *v), *out = v + 3 * LONG;
	tutti_op *op = &p->ops[i];
	size_t bytes[RANKS];

	for (int r = 0; r < RANKS; r++) /* from one to another as many as back */
		bytes[r] = sizes[(tutti_rank(p->group) + r) % RANKS];
	switch ((plan + i * (1 + (plan >> 6))) % 7) {
	case 0: return tutti_reduce_scatter(p->group, v, out, 100, TUTTI_F32, TUTTI_SUM, op);
	case 1: return tutti_reduce_scatter(p->group, v, out, LONG, TUTTI_F32, TUTTI_AVERAGE, op);
	case 2: return tutti_allgather(p->group, v, LONG, out, op);
	case 3: return tutti_allgather(p->group, v, LONG * sizeof *v, out, op);
	case 4: return tutti_alltoall(p->group, v, 100, out, op);
	case 5: return tutti_alltoallv(p->group, v, bytes, at, out, bytes, at, op);
	default: return tutti_allreduce(p->group, v, v, 3 * LONG, TUTTI_F32, TUTTI_SUM, op);
	}
}

static int call(struct part *p, int i)
{
	if (deed & 16)
		return call_pairwise(p, i);
	float *v = p->vectors[i] = calloc(LONG, sizeof *v);
	tutti_op *op = &p->ops[i];

	switch ((plan + i * (1 + (plan >> 6))) % 7) {
	case 0: return tutti_barrier(p->group, op);
	case 1: return tutti_gather(p->group, v, 100, v, -1, op);
	case 2: return tutti_broadcast(p->group, v, 300, i % RANKS, op);
	case 3: return tutti_broadcast(p->group, v, LONG * sizeof *v, i % RANKS, op);
	case 4: return tutti_allreduce(p->group, v, v, 10, TUTTI_F32, TUTTI_SUM, op);
	case 5: return tutti_allreduce(p->group, v, v, LONG, TUTTI_F32, TUTTI_AVERAGE, op);
	default: return tutti_gather(p->group, v, 4000, v, 0, op);
	}
}

static void receive(struct part *p)
{
	if (tutti_test(&p->receive) != -EINPROGRESS)
		tutti_recv(p->job, -1, 0, p->letter, LONG, NULL, &p->receive);
}

static void start_next(struct part *p)
{
	receive(p);
	if (p->count < COLLECTIVES) {
		p->started[p->count] = !call(p, p->count);
		p->count++;
	}
}

/* Blocks, and may fail: who is bad may be in it, or not come. */
static void change_group(struct part *p)
{
	tutti *next = NULL;
	int err = -1;

	if (p->changed)
		return;
	p->changed = true;
	switch (deed & 3) {
	case 1:
		err = tutti_group_split(p->group, deed & 32 ? tt_sim_rank() & 1 : 0, deed & 64 ? -tt_sim_rank() : 0,
		                        &next);
		break;
	case 2: err = tutti_group_shrink(p->group, &next); break;
	case 3: err = tutti_group_grow(p->group, &next); break;
	default: break;
	}
	if (!err && next)
		p->group = next;
}

/* Others may ask for it: they get as far as to the device that is not there. */
static void stage_memory(struct part *p)
{
	struct tt_mem mem = { .base = p->memory, .len = 3 << 20, .gpu = 0, .fd = -1 };

	tt_lock(p->job->job);
	FUZZ_CHECK(!tt_device_reg(p->job->job->engine.nets[0], &mem, &p->device, false, &p->staged), "a key is made");
	tt_unlock(p->job->job);
}

static bool has_own_lists(void) { return (deed & 3) != 1 && deed & 32; } /* not a split, which uses the bit */

/* From now on this rank takes processes in that its list of nodes lacks, as many as newcomers may be there. The world
 * knows no HOST:PORT, so all have joined without a list. */
static void make_own_list(struct tt_job *job)
{
	struct tt_members *all = tt_members(job);

	tt_lock(job);
	all->node = calloc((size_t)all->capacity, sizeof *all->node);
	FUZZ_CHECK(all->node, "there is memory");
	for (int i = 0; i < job->size; i++) {
		snprintf(all->node[i].name, sizeof all->node[i].name, "n%d", i);
		snprintf(all->node[i].address, sizeof all->node[i].address, "sim:%d", i);
	}
	all->over = "sim";
	all->node_list = all->own_list = true;
	tt_unlock(job);
}

static void open_part(struct part *p)
{
	FUZZ_CHECK(!tutti_join(NULL, &p->job), "all join");
	if (has_own_lists())
		make_own_list(p->job->job);
	if (deed & 128)
		tt_settings_set(&p->job->job->settings, TT_ALLREDUCE, deed & 16 ? "rabenseifner" : "ring", "test");
	p->group = p->job;
	p->memory = fuzz_fenced(WINDOW);
	p->letter = fuzz_fenced(LONG);
	FUZZ_CHECK(!tutti_window_open(p->job, "w", p->memory, WINDOW, &p->window), "a window opens");
	stage_memory(p);
}

static void close_part(struct part *p)
{
	for (int i = 0; i < p->count; i++)
		if (p->started[i] && tutti_wait(&p->ops[i], 1) == -ETIMEDOUT)
			tutti_cancel(&p->ops[i]);
	if (p->puts && tutti_wait(&p->one_sided, 1) == -ETIMEDOUT)
		tutti_cancel(&p->one_sided);
	tutti_cancel(&p->receive);
	tt_lock(p->job->job);
	FUZZ_CHECK(tt_device_dereg(p->staged, NULL, NULL), "no device copies it");
	tt_unlock(p->job->job);
	tutti_window_close(p->window);
	tutti_leave(p->job);
	for (int i = 0; i < p->count; i++)
		free(p->vectors[i]);
	fuzz_free_fenced(p->memory, WINDOW);
	fuzz_free_fenced(p->letter, LONG);
}

/* ---- rank 2's library at work ---- */

static void use_window(struct part *p, unsigned what) /* or send a message, a short one or one that is fetched */
{
	static uint64_t word;
	static uint8_t letter[LONG];
	int to = what & 1;

	if (!p->window || (p->puts && tutti_test(&p->one_sided) == -EINPROGRESS))
		return;
	if (what & 8) {
		p->puts = !tutti_send(p->job, to, 0, letter, what & 16 ? LONG : 40, &p->one_sided);
		return;
	}
	switch (what >> 1 & 3) {
	case 0: p->puts = !tutti_put_notify(p->window, to, 8, &word, 8, 3, &p->one_sided); break;
	case 1: p->puts = !tutti_get(p->window, to, 16, &word, 8, &p->one_sided); break;
	case 2: p->puts = !tutti_add(p->window, to, 24, 1, &word, &p->one_sided); break;
	default: p->puts = !tutti_put(p->window, to, WINDOW - 4, &word, 4, &p->one_sided);
	}
}

static void call_something(struct attack *a, unsigned what)
{
	struct part *p = &parts[a->rank];

	if (what % 4 < 2) {
		start_next(p);
	} else if (what % 4 == 2) {
		use_window(p, what >> 2);
	} else if (what & 16) {
		change_group(p);
	} else if (p->window) {
		tutti_window_close(p->window);
		p->window = NULL;
		if (what & 4)
			tutti_window_open(p->job, what & 8 ? "w" : "late", p->memory, WINDOW, &p->window);
	}
}

static void bad(struct part *p)
{
	open_part(p);
	attack.call = call_something;
	open_raw();
	run_attack();
	attack.has_twist = false;
	close_raw();
	if (plan & 32)
		tt_sim_kill(BAD, 0);
	close_part(p);
}

/* ---- the honest ones ---- */

/* The two of them get on together, whatever the third has said. */
static void check_pair(struct part *p, int rank)
{
	uint64_t mine = (uint64_t)rank + 1, got = 0;
	int other = 1 - rank, err;

	if ((err = tutti_put_notify(p->window, other, 32, &mine, 8, 7, NULL)) ||
	    (err = tutti_wait_notify(p->window, other, 7, 1, deed & 3 ? 2 * DEADLINE_MS : 100)) ||
	    (err = tutti_get(p->window, other, 32, &got, 8, NULL)))
		FUZZ_CHECK(attack.accused, "an honest rank was ended by another's nonsense");
}

static void honest(struct part *p, int rank)
{
	open_part(p);
	if (plan & 16)
		tutti_window_open(p->job, rank ? "late" : "other", p->memory, 8, &(tutti_window *){ NULL });
	for (int i = 0; i < 4; i++) {
		start_next(p);
		if (i == (deed >> 2 & 3))
			change_group(p);
		tt_sim_sleep(ATTACK_MS * TT_MS / 4);
	}
	check_pair(p, rank);
	p->checked = true;
	while (!parts[1 - rank].checked) /* both have seen that, before either ends anything */
		tt_sim_sleep(REST_MS * TT_MS);
	close_part(p);
}

static void program(int rank, void *arg)
{
	(void)arg;
	if (rank == BAD)
		bad(&parts[rank]);
	else
		honest(&parts[rank], rank);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len)
{
	struct fuzz_input in = { bytes, len };

	plan = (uint8_t)fuzz_number(&in, 1);
	deed = (uint8_t)fuzz_number(&in, 1);
	memset(parts, 0, sizeof parts);
	run_world(in, BAD, DEADLINE_MS, program);
	return 0;
}
