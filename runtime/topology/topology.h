/* topology.h - processors, nodes, devices: which there are, and how the ranks of a host share them out */
#ifndef TT_TOPOLOGY_H
#define TT_TOPOLOGY_H
#include "base/base.h"

/* ---- cpus.c, partition.c: sets of processors, and how ranks share them out. No gate needed ---- */

enum { TT_CPUS = 4096 };
struct tt_cpus { uint64_t word[TT_CPUS / 64]; }; /* a set of processors, by the kernel's numbers; zeroed is empty */
struct tt_pu { /* a processor: one hardware thread of a core */
	int cpu, core, package;     /* cpu: the kernel's number; core, package: the lowest such number in the same one */
	int node;                   /* NUMA node; -1: not known */
};

static inline bool tt_cpus_has(const struct tt_cpus *s, int cpu)
{
	return cpu >= 0 && cpu < TT_CPUS && s->word[cpu / 64] >> cpu % 64 & 1;
}
void tt_cpus_add(struct tt_cpus *, int cpu);
void tt_cpus_keep(struct tt_cpus *, const struct tt_cpus *these); /* and no others */
int tt_cpus_count(const struct tt_cpus *);
bool tt_cpus_within(const struct tt_cpus *, const struct tt_cpus *outer);
bool tt_cpus_parse(struct tt_cpus *, const char *list);    /* "0-3,8,16-30:2", as taskset, Slurm and the kernel write it; false: it is none */
const char *tt_cpus_text(const struct tt_cpus *, char *room, size_t size); /* the same way back; cut short with "..." */
int tt_cpus_allowed(struct tt_cpus *);                      /* those that the calling thread may run on. How many; 0: not known */

enum tt_pin { TT_PIN_AUTO, TT_PIN_COMPACT, TT_PIN_SPREAD, TT_PIN_NONE, TT_PIN_LIST };
struct tt_pin_rule { /* TUTTI_PIN, understood */
	enum tt_pin pin;
	struct tt_cpus list;
};
struct tt_partition { /* what one rank of a host gets */
	struct tt_cpus cpus;        /* for its threads; in the order of the machine, core by core */
	struct tt_cpus background;  /* for the background thread */
	int cores;                  /* in cpus; 0: more ranks than cores, nobody gets one of its own */
	int node;                   /* where all of cpus are; -1: on several nodes, or not known */
};

int tt_pin_read(const struct tt_settings *, struct tt_pin_rule *);
int tt_pin_check(const struct tt_settings *, const struct tt_pin_rule *, const struct tt_cpus *allowed, const struct tt_cpus *there); /* does the
                                                      * list keep to what is allowed? there: all that the machine has */
void tt_partition_cores(const struct tt_pu *, int n, const struct tt_pin_rule *, const struct tt_cpus *allowed, int rank, int ranks, struct tt_partition *);
bool tt_partition_core(const struct tt_pu *, int n, const struct tt_partition *, int i, struct tt_cpus *core); /* its i-th core, round and round */

/* ---- topology.c, topology_hwloc.c: on what machine ---- */

enum tt_thing { TT_MACHINE, TT_PACKAGE, TT_NUMA, TT_CACHE, TT_CORE, TT_PU, TT_SWITCH, TT_NIC, TT_GPU };
struct tt_object { /* of a machine: a tree, parents first */
	enum tt_thing kind;
	int parent, depth;          /* the machine: -1, 0 */
	int first, pus;             /* its processors; of what hangs on the I/O side, those that it hangs on */
	int number;                 /* the kernel's, of a package, node, core or PU; of a cache its level; else -1 */
	uint64_t bytes;             /* of a node or a cache; 0: not known */
	char name[64], at[16];      /* of a device: "mlx5_0 ib0", "0000:41:00.0"; of a machine or package: its model */
};
struct tt_topology {
	struct tt_object *objects;
	int count;
	struct tt_pu *pus;
	int n;
	struct tt_cpus there;       /* the kernel's numbers of all pus */
	bool devices;               /* hwloc has looked for them */
};
enum tt_source { TT_THIS_HOST, TT_XML, TT_SYNTHETIC };
int tt_topology_load(struct tt_topology *, enum tt_source, const char *what); /* milliseconds. what: a file, a description; NULL */
void tt_topology_free(struct tt_topology *);
int tt_topology_kernel(const char *sys, struct tt_pu **, int *n); /* from the kernel's own files, in a fraction of a millisecond. sys: "/sys" */
int tt_topology_cover(const struct tt_topology *, const struct tt_cpus *); /* the deepest object that has all of them */
int tt_topology_meet(const struct tt_topology *, int a, int b);            /* their deepest common ancestor */
int tt_topology_near(const struct tt_topology *, int from, enum tt_thing, int turn, int *order, int max); /* all of that kind, the nearest first:
                                                      * those whose common ancestor with `from` is deepest. Of equally near ones the
                                                      * turn-th leads, so that ranks that sit together take different ones. How many */
#ifdef HAVE_HWLOC
int tt_topology_hwloc(struct tt_topology *, enum tt_source, const char *what); /* -ENOSYS: there is no such library here */
#endif
/* for both: */
struct tt_object *tt_topology_add(struct tt_topology *, enum tt_thing, int parent); /* NULL: no memory */
int tt_topology_from(struct tt_topology *, struct tt_pu *, int n);  /* a plain tree of those; takes the array */
#endif
