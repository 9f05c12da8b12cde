/* topology.c - a machine as a tree, and which devices are near which cores
 *
 * hwloc knows caches, devices and other machines. Ranks only need cores, packages and nodes, which the kernel's files
 * show in a fraction of the time. Without hwloc the tree is made of these files alone. */
#include "topology/topology.h"
#include <stdlib.h>
#include <unistd.h>

/* ---- the kernel's files ---- */

static bool read_list(struct tt_cpus *out, const char *sys, const char *fmt, ...) TT_FORMAT(3, 4);
static bool read_list(struct tt_cpus *out, const char *sys, const char *fmt, ...)
{
	char name[64], text[4097];
	va_list args;

	va_start(args, fmt);
	vsnprintf(name, sizeof name, fmt, args);
	va_end(args);
	tt_read_text(text, sizeof text, "%s/devices/system/%s", sys, name);
	return tt_cpus_parse(out, text);
}

bool tt_topology_node(const char *sys, int node, struct tt_cpus *out)
{
	return read_list(out, sys, "node/node%d/cpulist", node);
}

static int lowest(const struct tt_cpus *s)
{
	int cpu = 0;

	while (cpu < TT_CPUS && !tt_cpus_has(s, cpu))
		cpu++;
	return cpu;
}

/* Reads one file for each core, package and node, which lists all of its processors. */
static void label_processors(const char *sys, const struct tt_cpus *online, struct tt_pu of[TT_CPUS])
{
	struct tt_cpus nodes, s;
	int end = TT_CPUS;

	while (end > 0 && !tt_cpus_has(online, end - 1))
		end--;
	for (int cpu = 0; cpu < end; cpu++)
		of[cpu] = (struct tt_pu){ .cpu = cpu, .core = -1, .package = -1, .node = -1 };
	if (!read_list(&nodes, sys, "node/online"))
		memset(&nodes, 0, sizeof nodes);
	for (int node = 0; node < TT_CPUS; node++)
		if (tt_cpus_has(&nodes, node) && tt_topology_node(sys, node, &s))
			for (int cpu = 0; cpu < end; cpu++)
				of[cpu].node = tt_cpus_has(&s, cpu) ? node : of[cpu].node;
	for (int cpu = 0; cpu < end; cpu++) {
		if (!tt_cpus_has(online, cpu))
			continue;
		if (of[cpu].core < 0 && read_list(&s, sys, "cpu/cpu%d/topology/thread_siblings_list", cpu))
			for (int k = 0, first = lowest(&s); k < end; k++)
				of[k].core = tt_cpus_has(&s, k) ? first : of[k].core;
		if (of[cpu].package < 0 && read_list(&s, sys, "cpu/cpu%d/topology/core_siblings_list", cpu))
			for (int k = 0, first = lowest(&s); k < end; k++)
				of[k].package = tt_cpus_has(&s, k) ? first : of[k].package;
		of[cpu].core = of[cpu].core < 0 ? cpu : of[cpu].core;
		of[cpu].package = of[cpu].package < 0 ? 0 : of[cpu].package;
	}
}

static int by_place(const void *a, const void *b)
{
	const struct tt_pu *x = a, *y = b;

	return x->package != y->package ? x->package - y->package
	       : x->node != y->node     ? x->node - y->node
	       : x->core != y->core     ? x->core - y->core
	                                : x->cpu - y->cpu;
}

int tt_topology_kernel(const char *sys, struct tt_pu **out, int *count)
{
	struct tt_cpus online;
	struct tt_pu *pus;
	int n = 0;

	if (!read_list(&online, sys, "cpu/online"))
		return -ENOENT;
	pus = calloc(TT_CPUS, sizeof *pus);
	if (!pus)
		return tt_fail(-ENOMEM, "no memory for a list of processors");
	label_processors(sys, &online, pus);
	for (int cpu = 0; cpu < TT_CPUS; cpu++)
		if (tt_cpus_has(&online, cpu))
			pus[n++] = pus[cpu];
	qsort(pus, (size_t)n, sizeof *pus, by_place);
	*out = pus;
	*count = n;
	return 0;
}

/* ---- the tree ---- */

struct tt_object *tt_topology_add(struct tt_topology *t, enum tt_thing kind, int parent)
{
	struct tt_object *o;

	if (t->count % 64 == 0) {
		o = realloc(t->objects, (size_t)(t->count + 64) * sizeof *o);
		if (!o)
			return NULL;
		t->objects = o;
	}
	o = &t->objects[t->count++];
	memset(o, 0, sizeof *o);
	o->kind = kind;
	o->parent = parent;
	o->depth = parent < 0 ? 0 : t->objects[parent].depth + 1;
	o->number = -1;
	return o;
}

void tt_topology_free(struct tt_topology *t)
{
	free(t->objects);
	free(t->pus);
	memset(t, 0, sizeof *t);
}

/* Adds an object for a run of processors with one label, and the levels below. */
static int grow(struct tt_topology *t, enum tt_thing kind, int parent, int first, int n)
{
	static const enum tt_thing below[] = { [TT_MACHINE] = TT_PACKAGE, [TT_PACKAGE] = TT_NUMA, [TT_NUMA] = TT_CORE,
		                               [TT_CORE] = TT_PU };
	struct tt_object *o = tt_topology_add(t, kind, parent);
	const struct tt_pu *p = &t->pus[first];
	int me = t->count - 1, err = 0;

	if (!o)
		return tt_fail(-ENOMEM, "no memory for a picture of this machine");
	o->first = first;
	o->pus = n;
	o->number = kind == TT_PU ? p->cpu : kind == TT_NUMA ? p->node : kind == TT_MACHINE ? -1 : 0;
	for (int i = parent < 0 ? 0 : parent; (kind == TT_PACKAGE || kind == TT_CORE) && i < me; i++)
		o->number += t->objects[i].kind == kind && t->objects[i].parent == parent;
	for (int i = 0, len; kind != TT_PU && i < n && !err; i += len) {
		len = tt_pu_run(&p[i], n - i, below[kind]);
		err = grow(t, below[kind], me, first + i, len);
	}
	return err;
}

int tt_topology_from(struct tt_topology *t, struct tt_pu *pus, int n)
{
	memset(t, 0, sizeof *t);
	t->pus = pus;
	t->n = n;
	for (int i = 0; i < n; i++)
		tt_cpus_add(&t->there, pus[i].cpu);
	return grow(t, TT_MACHINE, -1, 0, n);
}

int tt_topology_load(struct tt_topology *t, enum tt_source source, const char *what)
{
	struct tt_pu *pus;
	int n, err = -ENOSYS;

	memset(t, 0, sizeof *t);
#ifdef HAVE_HWLOC
	err = tt_topology_hwloc(t, source, what);
#endif
	if (err == -ENOSYS && source != TT_THIS_HOST)
		return tt_fail(err, "%s cannot be read without hwloc: install libhwloc-dev, "
		                    "then configure and build Tutti again", what);
	if (err == -ENOSYS) {
		if ((err = tt_topology_kernel("/sys", &pus, &n)))
			return tt_fail(err, "neither hwloc nor /sys/devices/system/cpu tells "
			                    "what this machine is made of");
		err = tt_topology_from(t, pus, n);
	}
	if (err)
		tt_topology_free(t);
	return err;
}

/* ---- near and far ---- */

static bool holds(const struct tt_topology *t, const struct tt_object *o, const struct tt_cpus *cpus)
{
	for (int i = 0; i < t->n; i++)
		if (tt_cpus_has(cpus, t->pus[i].cpu) && (i < o->first || i >= o->first + o->pus))
			return false;
	return o->kind <= TT_PU;
}

int tt_topology_cover(const struct tt_topology *t, const struct tt_cpus *cpus)
{
	struct tt_cpus here = *cpus;
	int at = 0;

	tt_cpus_keep(&here, &t->there);
	for (int i = 1; i < t->count && tt_cpus_count(&here); i++) /* parents come first, so one pass suffices */
		if (t->objects[i].parent == at && holds(t, &t->objects[i], &here))
			at = i;
	return at;
}

int tt_topology_meet(const struct tt_topology *t, int a, int b)
{
	while (a != b) {
		int *deeper = t->objects[a].depth > t->objects[b].depth ? &a : &b;
		*deeper = t->objects[*deeper].parent;
	}
	return a;
}

int tt_topology_near(const struct tt_topology *t, int from, enum tt_thing kind, int turn, int *order, int max)
{
	int depths[max > 0 ? max : 1], sorted[max > 0 ? max : 1], n = 0;

	for (int i = 0; i < t->count && n < max; i++) {
		if (t->objects[i].kind != kind)
			continue;
		int depth = t->objects[tt_topology_meet(t, from, i)].depth, k = n++;
		for (; k > 0 && depths[k - 1] < depth; k--) {
			depths[k] = depths[k - 1];
			sorted[k] = sorted[k - 1];
		}
		depths[k] = depth;
		sorted[k] = i;
	}
	for (int i = 0, k; i < n; i = k) {
		for (k = i + 1; k < n && depths[k] == depths[i];)
			k++;
		for (int j = i; j < k; j++)
			order[j] = sorted[i + (j - i + turn) % (k - i)];
	}
	return n;
}
