/* partition.c - the partition of a host's cores among its ranks; a pure function of its arguments
 *
 *      package 0                package 1                 8 cores, 4 ranks
 *      +-----+-----+-----+----+ +----+-----+-----+----+
 *      |  0  |  0  |  1  | 1  | | 2  |  2  |  3  | 3  |   spread: all cores, consecutive ranks side by side
 *      +-----+-----+-----+----+ +----+-----+-----+----+
 *
 * spread divides from the top: packages among the ranks, then nodes, then cores. So a partition has several nodes only
 * if the rank has each of them for itself. compact gives each rank a core or two, from the first core on, and leaves
 * the rest free. These are OpenMP's `spread` and `close`. The hardware threads of a core stay together. */
#include "topology/topology.h"

enum { THREADS = 2 }; /* of a rank that need a core: the caller and the background thread */

/* ---- TUTTI_PIN ---- */

int tt_pin_read(const struct tt_settings *settings, struct tt_pin_rule *out)
{
	static const char *const names[] = { "auto", "compact", "spread", "none" };
	const char *text = tt_setting(settings, TT_PIN);

	memset(out, 0, sizeof *out);
	for (size_t i = 0; i < TT_COUNT(names); i++)
		if (!strcmp(text, names[i])) {
			out->pin = (enum tt_pin_kind)i;
			return 0;
		}
	out->pin = TT_PIN_LIST;
	if (tt_cpus_parse(&out->list, text))
		return 0;
	if (strspn(text, "0123456789"))
		return tt_fail(-EINVAL, "%s=%s is no list of CPUs: write it like 0-3,8 with numbers below %d",
		               tt_setting_name(settings, TT_PIN), text, TT_CPUS);
	return tt_fail(-EINVAL, "%s=%s is none of auto, compact, spread, none and a list of CPUs like 0-3,8",
	               tt_setting_name(settings, TT_PIN), text);
}

int tt_pin_check(const struct tt_settings *settings, const struct tt_pin_rule *rule, const struct tt_cpus *allowed,
                 const struct tt_cpus *there)
{
	const char *name = tt_setting_name(settings, TT_PIN), *text = tt_setting(settings, TT_PIN);
	char room[80];
	int cpu = 0;

	if (rule->pin != TT_PIN_LIST || tt_cpus_within(&rule->list, allowed))
		return 0;
	while (!tt_cpus_has(&rule->list, cpu) || tt_cpus_has(allowed, cpu))
		cpu++;
	if (!tt_cpus_has(there, cpu))
		return tt_fail(-EINVAL, "%s=%s: there is no CPU %d, this machine has %s; `tutti info --topology` draws "
		               "them", name, text, cpu, tt_cpus_text(there, room, sizeof room));
	return tt_fail(-EINVAL, "%s=%s: CPU %d is outside of what a launcher, taskset or a cgroup lets this process "
	               "use: name some of %s", name, text, cpu, tt_cpus_text(allowed, room, sizeof room));
}

/* ---- cores ---- */

static int label(const struct tt_pu *p, enum tt_thing level)
{
	return level == TT_PACKAGE ? p->package : level == TT_NUMA ? p->node : level == TT_CORE ? p->core : p->cpu;
}

int tt_pu_run(const struct tt_pu *p, int n, enum tt_thing level)
{
	int i = 1;

	while (i < n && label(&p[i], level) == label(p, level))
		i++;
	return i;
}

static int count_runs(const struct tt_pu *p, int n, enum tt_thing level)
{
	int runs = 0;

	for (int i = 0; i < n; i += tt_pu_run(p + i, n - i, level))
		runs++;
	return runs;
}

struct slice {
	const struct tt_pu *p;
	int n;
};

/* Runs `first` to `last` - 1 of a slice. */
static struct slice take_runs(struct slice of, enum tt_thing level, int first, int last)
{
	struct slice out = { of.p, 0 };

	for (int i = 0; i < last; i++) {
		int len = tt_pu_run(out.p + out.n, of.n - (int)(out.p + out.n - of.p), level);
		if (i < first)
			out.p += len;
		else
			out.n += len;
	}
	return out;
}

/* Needs at least a core for each rank. */
static struct slice divide(struct slice s, enum tt_thing level, int rank, int ranks)
{
	int runs = count_runs(s.p, s.n, level), cores = count_runs(s.p, s.n, TT_CORE), before = 0;

	if (ranks == 1)
		return s;
	if (ranks < runs || level == TT_CORE)
		return take_runs(s, level, rank * runs / ranks, (rank + 1) * runs / ranks);
	for (int i = 0, from = 0, to; i < runs; i++, from = to) { /* ranks in proportion to cores; none is left out */
		struct slice part = take_runs(s, level, i, i + 1);
		before += count_runs(part.p, part.n, TT_CORE);
		to = ranks * before / cores;
		if (rank < to)
			return divide(part, level == TT_PACKAGE ? TT_NUMA : TT_CORE, rank - from, to - from);
	}
	return s;
}

static struct slice pack(struct slice s, int rank, int ranks)
{
	int width = (int)tt_min(THREADS, (size_t)(count_runs(s.p, s.n, TT_CORE) / ranks));

	return take_runs(s, TT_CORE, rank * width, (rank + 1) * width);
}

/* ---- a partition ---- */

static void add_all(struct tt_cpus *to, struct slice s)
{
	for (int i = 0; i < s.n; i++)
		tt_cpus_add(to, s.p[i].cpu);
}

/* The last core of the first node; of a single core, the last hardware thread. */
static void choose_background(struct slice s, struct tt_cpus *out)
{
	struct slice node = take_runs(s, TT_NUMA, 0, 1);
	int cores = count_runs(node.p, node.n, TT_CORE);

	if (cores > 1)
		add_all(out, take_runs(node, TT_CORE, cores - 1, cores));
	else
		tt_cpus_add(out, node.p[node.n - 1].cpu);
}

static void add_whole_nodes(struct tt_cpus *out, struct slice all, struct slice mine)
{
	for (int k = 0; k < mine.n; k += tt_pu_run(mine.p + k, mine.n - k, TT_NUMA))
		for (int i = 0; i < all.n; i++)
			if (all.p[i].node == mine.p[k].node)
				tt_cpus_add(out, all.p[i].cpu);
}

void tt_partition_cores(const struct tt_pu *pus, int n, const struct tt_pin_rule *rule, const struct tt_cpus *allowed,
                        int rank, int ranks, struct tt_partition *out)
{
	struct tt_pu usable[n + 1];
	struct slice all = { usable, 0 }, mine;

	memset(out, 0, sizeof *out);
	out->node = -1;
	for (int i = 0; i < n; i++)
		if (tt_cpus_has(allowed, pus[i].cpu) &&
		    (rule->pin != TT_PIN_LIST || tt_cpus_has(&rule->list, pus[i].cpu)))
			usable[all.n++] = pus[i];
	if (!all.n)
		return;
	if (rule->pin == TT_PIN_NONE || count_runs(all.p, all.n, TT_CORE) < ranks) {
		add_all(&out->cpus, all);
		out->background = out->cpus;
		mine = all;
	} else {
		mine = rule->pin == TT_PIN_COMPACT ? pack(all, rank, ranks) : divide(all, TT_PACKAGE, rank, ranks);
		add_all(&out->cpus, mine);
		out->cores = count_runs(mine.p, mine.n, TT_CORE);
		if (rule->pin == TT_PIN_AUTO)
			add_whole_nodes(&out->background, all, mine);
		else
			choose_background(mine, &out->background);
	}
	if (count_runs(mine.p, mine.n, TT_NUMA) == 1)
		out->node = mine.p->node;
}

bool tt_partition_core(const struct tt_pu *pus, int n, const struct tt_partition *share, int i, struct tt_cpus *core)
{
	int last = -1;

	memset(core, 0, sizeof *core);
	if (!share->cores)
		return false;
	i %= share->cores;
	for (int k = 0; k < n; k++) {
		if (!tt_cpus_has(&share->cpus, pus[k].cpu))
			continue;
		i -= pus[k].core != last && last >= 0;
		last = pus[k].core;
		if (i == 0)
			tt_cpus_add(core, pus[k].cpu);
	}
	return true;
}
