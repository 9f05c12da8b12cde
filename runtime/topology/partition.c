/* partition.c - how the ranks of one host share its cores out. Nothing here looks at the machine: it is told.
 *
 *      package 0                package 1                 8 cores, 4 ranks
 *      +-----+-----+-----+----+ +----+-----+-----+----+
 *      |  0  |  0  |  1  | 1  | | 2  |  2  |  3  | 3  |   spread: all cores, ranks with consecutive numbers side by side
 *      +-----+-----+-----+----+ +----+-----+-----+----+
 *
 * spread divides from above: packages among the ranks, then their nodes, then the cores of each, so that a share has more than
 * one node only where a rank has more than one for itself. compact packs: a core or two for each, from the first one on; what
 * is left stays free. These are OpenMP's `spread` and `close`. A core is never shared: its hardware threads go together. */
#include "topology/topology.h"
#include <stdlib.h>
#include <string.h>

enum { THREADS = 2 }; /* of a rank that want a core: the caller and the background thread */

/* ---- TUTTI_PIN ---- */

int tt_pin_read(const struct tt_settings *settings, struct tt_pin_rule *out)
{
	static const char *const names[] = { "auto", "compact", "spread", "none" };
	const char *text = tt_setting(settings, TT_PIN);

	memset(out, 0, sizeof *out);
	for (size_t i = 0; i < TT_COUNT(names); i++)
		if (!strcmp(text, names[i])) {
			out->pin = (enum tt_pin)i;
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

int tt_pin_check(const struct tt_settings *settings, const struct tt_pin_rule *rule, const struct tt_cpus *allowed, const struct tt_cpus *there)
{
	const char *name = tt_setting_name(settings, TT_PIN), *text = tt_setting(settings, TT_PIN);
	char room[80];
	int cpu = 0;

	if (rule->pin != TT_PIN_LIST || tt_cpus_within(&rule->list, allowed))
		return 0;
	while (!tt_cpus_has(&rule->list, cpu) || tt_cpus_has(allowed, cpu))
		cpu++;
	if (!tt_cpus_has(there, cpu))
		return tt_fail(-EINVAL, "%s=%s: there is no CPU %d, this machine has %s; `tutti info --topology` draws them", name, text,
		               cpu, tt_cpus_text(there, room, sizeof room));
	return tt_fail(-EINVAL, "%s=%s: CPU %d is outside of what a launcher, taskset or a cgroup lets this process use: name some of %s",
	               name, text, cpu, tt_cpus_text(allowed, room, sizeof room));
}

/* ---- cores ---- */

enum level { PACKAGE, NODE, CORE };

static int label(const struct tt_pu *p, enum level level) { return level == PACKAGE ? p->package : level == NODE ? p->node : p->core; }

/* How many processors at the beginning are in one package, node or core. */
static int run_length(const struct tt_pu *p, int n, enum level level)
{
	int i = 1;

	while (i < n && label(&p[i], level) == label(p, level))
		i++;
	return i;
}

static int count_runs(const struct tt_pu *p, int n, enum level level)
{
	int runs = 0;

	for (int i = 0; i < n; i += run_length(p + i, n - i, level))
		runs++;
	return runs;
}

struct slice {
	const struct tt_pu *p;
	int n;
};

/* Runs `first` to `last` - 1 of it. */
static struct slice take_runs(struct slice of, enum level level, int first, int last)
{
	struct slice out = { of.p, 0 };

	for (int i = 0; i < last; i++) {
		int len = run_length(out.p + out.n, of.n - (int)(out.p + out.n - of.p), level);
		if (i < first)
			out.p += len;
		else
			out.n += len;
	}
	return out;
}

/* `ranks` are at most as many as cores. */
static struct slice divide(struct slice s, enum level level, int rank, int ranks)
{
	int runs = count_runs(s.p, s.n, level), cores = count_runs(s.p, s.n, CORE), before = 0;

	if (ranks == 1)
		return s;
	if (ranks < runs || level == CORE)
		return take_runs(s, level, rank * runs / ranks, (rank + 1) * runs / ranks);
	for (int i = 0; i < runs; i++) { /* as many ranks to each as it has of the cores; the running sum leaves none out */
		struct slice part = take_runs(s, level, i, i + 1);
		int mine = count_runs(part.p, part.n, CORE), from = ranks * before / cores, to = ranks * (before + mine) / cores;
		if (rank < to)
			return divide(part, level + 1, rank - from, to - from);
		before += mine;
	}
	return s;
}

static struct slice pack(struct slice s, int rank, int ranks)
{
	int width = (int)tt_min(THREADS, (size_t)(count_runs(s.p, s.n, CORE) / ranks));

	return take_runs(s, CORE, rank * width, (rank + 1) * width);
}

/* ---- a share ---- */

static void add_all(struct tt_cpus *to, struct slice s)
{
	for (int i = 0; i < s.n; i++)
		tt_cpus_add(to, s.p[i].cpu);
}

/* The last core of its first node; of a single core the last hardware thread. */
static void seat_background(struct slice s, struct tt_cpus *out)
{
	struct slice node = take_runs(s, NODE, 0, 1);
	int cores = count_runs(node.p, node.n, CORE);

	if (cores > 1)
		add_all(out, take_runs(node, CORE, cores - 1, cores));
	else
		tt_cpus_add(out, node.p[node.n - 1].cpu);
}

static void add_whole_nodes(struct tt_cpus *out, struct slice all, struct slice share)
{
	for (int i = 0; i < all.n; i++)
		for (int k = 0; k < share.n && !tt_cpus_has(out, all.p[i].cpu); k += run_length(share.p + k, share.n - k, NODE))
			if (all.p[i].node == share.p[k].node)
				tt_cpus_add(out, all.p[i].cpu);
}

void tt_partition_cores(const struct tt_pu *pus, int n, const struct tt_pin_rule *rule, const struct tt_cpus *allowed, int rank, int ranks,
                  struct tt_partition *out)
{
	struct tt_pu usable[n + 1];
	struct slice all = { usable, 0 }, mine;

	memset(out, 0, sizeof *out);
	out->node = -1;
	for (int i = 0; i < n; i++)
		if (tt_cpus_has(allowed, pus[i].cpu) && (rule->pin != TT_PIN_LIST || tt_cpus_has(&rule->list, pus[i].cpu)))
			usable[all.n++] = pus[i];
	if (!all.n)
		return;
	if (rule->pin == TT_PIN_NONE || count_runs(all.p, all.n, CORE) < ranks) {
		add_all(&out->cpus, all);
		out->background = out->cpus;
		mine = all;
	} else {
		mine = rule->pin == TT_PIN_COMPACT ? pack(all, rank, ranks) : divide(all, PACKAGE, rank, ranks);
		add_all(&out->cpus, mine);
		out->cores = count_runs(mine.p, mine.n, CORE);
		if (rule->pin == TT_PIN_AUTO)
			add_whole_nodes(&out->background, all, mine);
		else
			seat_background(mine, &out->background);
	}
	if (count_runs(mine.p, mine.n, NODE) == 1)
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
