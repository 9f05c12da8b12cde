/* place.c - pins the job's threads and keeps its memory near them
 *
 * `auto`, the default, must not slow down an unknown program. So it pins no thread to a core and leaves the caller's
 * threads alone: other jobs on this host would start at the same first core, and the threads of a pinned caller
 * (OpenMP's, a data loader's) inherit its one core. It only keeps the background thread on the NUMA node where the rank
 * joined, whose memory that thread copies. With a single node, or less than one for this rank, it does nothing. */
#include "engine/engine.h"
#include <sched.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { NODES = 1024, PREFERRED = 1 /* MPOL_PREFERRED: falls back to other nodes */, BIND_FROM = 65536 };

int tt_place_begin(struct tt_job *job)
{
	struct tt_place *p = &job->place;
	struct tt_cpus there;
	int err = tt_pin_read(&job->settings, &p->rule);

	p->memory_node = -1;
	if (err || tt_world || !tt_cpus_allowed(&p->allowed))
		return err;
	there = p->allowed;
	if (p->rule.pin == TT_PIN_LIST && !tt_topology_kernel("/sys", &p->pus, &p->n))
		for (int i = 0; i < p->n; i++)
			tt_cpus_add(&there, p->pus[i].cpu);
	return tt_pin_check(&job->settings, &p->rule, &p->allowed, &there);
}

void tt_place_close(struct tt_job *job) { free(job->place.pus); }

uint32_t tt_place_print(const struct tt_job *job)
{
	const struct tt_cpus *c = &job->place.allowed;

	return tt_cpus_count(c) ? tt_hash(TT_HASH, c->word, sizeof c->word) >> 8 | 1 : 0;
}

/* Some containers hide the kernel's files or show those of another machine: then each processor counts as a core. */
static int assume_plain(struct tt_place *p)
{
	free(p->pus);
	p->n = 0;
	p->pus = calloc((size_t)tt_cpus_count(&p->allowed) + 1, sizeof *p->pus);
	if (!p->pus)
		return tt_fail(-ENOMEM, "no memory for a list of processors");
	for (int cpu = 0; cpu < TT_CPUS; cpu++)
		if (tt_cpus_has(&p->allowed, cpu))
			p->pus[p->n++] = (struct tt_pu){ .cpu = cpu, .core = cpu, .node = -1 };
	return 0;
}

static bool knows_allowed(const struct tt_place *p)
{
	struct tt_cpus there = { { 0 } };

	for (int i = 0; i < p->n; i++)
		tt_cpus_add(&there, p->pus[i].cpu);
	return tt_cpus_within(&p->allowed, &there);
}

static int share_out(struct tt_place *p, const struct tt_pin_rule *rule)
{
	int err = 0;

	if (!p->pus)
		tt_topology_kernel("/sys", &p->pus, &p->n);
	if (!knows_allowed(p))
		err = assume_plain(p);
	if (!err)
		tt_partition_cores(p->pus, p->n, rule, &p->allowed, p->rank, p->ranks, &p->share);
	return err;
}

static bool has_nodes(const struct tt_place *p)
{
	for (int i = 1; i < p->n; i++)
		if (p->pus[i].node != p->pus[0].node)
			return true;
	return false;
}

static int bind_task(struct tt_task *task, const struct tt_cpus *cpus, const char *whose)
{
	char room[80];
	int err = tt_task_bind(task, cpus, sizeof *cpus);

	tt_cpus_text(cpus, room, sizeof room);
	if (err)
		return tt_fail(err, "cannot pin %s to CPU %s: %s; TUTTI_PIN=none does without", whose, room,
		               strerror(-err));
	tt_log(TT_DEBUG, "pinned %s to CPU %s", whose, room);
	return 0;
}

static int keep_on_node(struct tt_job *job, struct tt_task *task, const char *whose)
{
	struct tt_cpus node;
	int number = tt_numa_node();

	if (job->size == 1 || number < 0 || !tt_topology_node("/sys", number, &node) ||
	    tt_cpus_within(&job->place.allowed, &node))
		return 0;
	tt_cpus_keep(&node, &job->place.allowed);
	return tt_cpus_count(&node) ? bind_task(task, &node, whose) : 0;
}

static int pin_by_rule(struct tt_job *job)
{
	struct tt_place *p = &job->place;
	int err = share_out(p, &p->rule);

	if (err)
		return err;
	if (!p->share.cores && p->rule.pin != TT_PIN_LIST) {
		if (p->rank == 0)
			tt_log(TT_WARN, "%s=%s pins nothing: %d ranks share fewer cores",
			       tt_setting_name(&job->settings, TT_PIN), tt_setting(&job->settings, TT_PIN), p->ranks);
		return 0;
	}
	if (has_nodes(p))
		p->memory_node = p->share.node;
	return bind_task(job->engine.background, &p->share.background, "the background thread");
}

int tt_place_node(struct tt_job *job, int rank, int ranks)
{
	struct tt_place *p = &job->place;
	int node = tt_world ? -1 : tt_numa_node();
	bool pins = p->rule.pin != TT_PIN_NONE && p->rule.pin != TT_PIN_AUTO;

	if (node >= 0 && ranks && pins && tt_cpus_count(&p->allowed)) {
		p->rank = rank;
		p->ranks = ranks;
		if (!share_out(p, &p->rule) && p->share.node >= 0)
			node = p->share.node;
		p->rank = p->ranks = 0; /* they are counted when all have met */
	}
	return node;
}

int tt_place_open(struct tt_job *job)
{
	struct tt_place *p = &job->place;
	int err = 0;

	if (tt_world || p->rule.pin == TT_PIN_NONE || !tt_cpus_count(&p->allowed))
		return 0;
	err = p->rule.pin != TT_PIN_AUTO ? pin_by_rule(job)
	                                 : keep_on_node(job, job->engine.background, "the background thread");
	if (!err && tt_setting_is(&job->settings, TT_PIN_CALLER, "yes"))
		err = tt_place_thread(job, TT_PIN_AUTO, -1);
	return err;
}

/* A new thread inherits its creator's processors, perhaps a single core. A failure leaves it there. */
void tt_place_widen(struct tt_job *job, struct tt_task *task)
{
	const struct tt_place *p = &job->place;
	bool binds = !tt_world && p->rule.pin != TT_PIN_NONE && tt_cpus_count(&p->allowed);
	int err = !binds ? 0 : tt_task_bind(task, &p->allowed, sizeof p->allowed);

	if (err)
		tt_log(TT_DEBUG, "a thread stays where its maker may run: %s", strerror(-err));
}

int tt_place_helper(struct tt_job *job, struct tt_task *task, int i)
{
	struct tt_place *p = &job->place;
	struct tt_cpus core;

	if (tt_world || p->rule.pin == TT_PIN_NONE || !tt_cpus_count(&p->allowed))
		return 0;
	if (p->rule.pin != TT_PIN_AUTO && tt_partition_core(p->pus, p->n, &p->share, i, &core))
		return bind_task(task, &core, "a helper");
	tt_place_widen(job, task);
	return p->rule.pin == TT_PIN_AUTO ? keep_on_node(job, task, "a helper") : 0;
}

/* Under auto this pins the calling thread to its partition of all cores, and the background thread to the same node. */
int tt_place_thread(struct tt_job *job, enum tt_pin_kind if_auto, int i)
{
	struct tt_place *p = &job->place;
	struct tt_pin_rule rule = p->rule;
	struct tt_cpus core;
	int err;

	if (tt_world || rule.pin == TT_PIN_NONE || !tt_cpus_count(&p->allowed))
		return 0;
	if (rule.pin == TT_PIN_AUTO)
		rule.pin = if_auto;
	if ((err = share_out(p, &rule)) || (!p->share.cores && rule.pin != TT_PIN_LIST))
		return err;
	if (rule.pin == TT_PIN_AUTO && has_nodes(p))
		err = bind_task(job->engine.background, &p->share.background, "the background thread");
	if (err || i < 0)
		return err ? err : bind_task(NULL, &p->share.cpus, "this thread");
	return tt_partition_core(p->pus, p->n, &p->share, i, &core) ? bind_task(NULL, &core, "this thread") : 0;
}

/* Some containers forbid mbind(); then pages come from the node that first touches them, as usual. */
void tt_place_memory(const struct tt_job *job, void *at, size_t bytes)
{
	const struct tt_place *p = &job->place;
	unsigned long nodes[NODES / (8 * sizeof(long))] = { 0 };

	if (p->memory_node < 0 || p->memory_node >= NODES || bytes < BIND_FROM)
		return;
	nodes[(size_t)p->memory_node / (8 * sizeof(long))] |= 1ul << (size_t)p->memory_node % (8 * sizeof(long));
	if (syscall(SYS_mbind, at, bytes, PREFERRED, nodes, NODES, 0))
		tt_log(TT_DEBUG, "%zu bytes are not bound to NUMA node %d: %s", bytes, p->memory_node, strerror(errno));
}
