/* topology.h - processors, NUMA nodes, devices, and the partition of a host's cores among its ranks. No lock needed */
#ifndef TT_TOPOLOGY_H
#define TT_TOPOLOGY_H
#include "base/base.h"

/* ---- cpus.c: sets of processors ---- */

enum { TT_CPUS = 4096 };
struct tt_cpus { uint64_t word[TT_CPUS / 64]; }; /* a set of processors, by the kernel's numbers; zeroed is empty */

static inline bool tt_cpus_has(const struct tt_cpus *s, int cpu)
{
	return cpu >= 0 && cpu < TT_CPUS && s->word[cpu / 64] >> cpu % 64 & 1;
}
void tt_cpus_add(struct tt_cpus *, int cpu);
void tt_cpus_keep(struct tt_cpus *, const struct tt_cpus *these); /* removes all others */
int tt_cpus_count(const struct tt_cpus *);
bool tt_cpus_within(const struct tt_cpus *, const struct tt_cpus *outer);
bool tt_cpus_parse(struct tt_cpus *, const char *list); /* "0-3,8,16-30:2", as in taskset and Slurm; false: malformed */
const char *tt_cpus_text(const struct tt_cpus *, char *room, size_t size); /* the reverse; too long ends in "..." */
int tt_cpus_allowed(struct tt_cpus *); /* where the calling thread may run. Returns how many; 0: unknown */

/* ---- cgroup.c: the cgroups of this process, of version 2 and of version 1 ---- */

#define TT_CGROUPS "/sys/fs/cgroup"
#define TT_NO_QUOTA 1e9
struct tt_cgroup {
	const char *root, *own; /* TT_CGROUPS; the rest of the text of /proc/self/cgroup */
	char folder[480];
	size_t top; /* the length of the part of `folder` that is the controller's root */
};
const char *tt_cgroup_own(char *room, size_t size); /* that text */
bool tt_cgroup_next(struct tt_cgroup *, const char *controller); /* each group that may limit it ("cpu", "memory") */
bool tt_cgroup_up(struct tt_cgroup *); /* to the group around it; false: it was the root */
double tt_cgroup_number(const struct tt_cgroup *, const char *file, double otherwise);
double tt_cgroup_cores(const char *root, const char *own); /* how many processors' time all of them leave */

/* ---- partition.c: TUTTI_PIN and the partition of cores ---- */

struct tt_pu { /* a processor: one hardware thread of a core */
	int cpu, core, package; /* cpu: the kernel's number; core, package: the lowest such number in it */
	int node;               /* NUMA node; -1: unknown */
};

enum tt_pin_kind { TT_PIN_AUTO, TT_PIN_COMPACT, TT_PIN_SPREAD, TT_PIN_NONE, TT_PIN_LIST };
struct tt_pin_rule { /* the value of TUTTI_PIN */
	enum tt_pin_kind pin;
	struct tt_cpus list;
};
struct tt_partition { /* one rank's part of a host */
	struct tt_cpus cpus;       /* for its threads */
	struct tt_cpus background; /* for the background thread */
	int cores;                 /* in cpus; 0: more ranks than cores, so no rank has a core of its own */
	int node;                  /* of all cpus; -1: several nodes, or unknown */
};

int tt_pin_read(const struct tt_settings *, struct tt_pin_rule *); /* 0 or -EINVAL */
int tt_pin_check(const struct tt_settings *, const struct tt_pin_rule *, const struct tt_cpus *allowed,
                 const struct tt_cpus *there); /* is the list within `allowed`? there: the machine's. 0 or -EINVAL */
void tt_partition_cores(const struct tt_pu *, int n, const struct tt_pin_rule *, const struct tt_cpus *allowed,
                        int rank, int ranks, struct tt_partition *);
/* The processors of core number i, modulo the partition's cores. False: it has no core of its own. */
bool tt_partition_core(const struct tt_pu *, int n, const struct tt_partition *, int i, struct tt_cpus *core);

/* ---- topology.c, topology_hwloc.c: the machine as a tree ---- */

enum tt_thing { TT_MACHINE, TT_PACKAGE, TT_NUMA, TT_CACHE, TT_CORE, TT_PU, TT_SWITCH, TT_NIC, TT_GPU };
struct tt_object {
	enum tt_thing kind;
	int parent, depth;     /* the machine: -1, 0 */
	int first, pus;        /* its range of processors; of a device, the range that it is attached to */
	int number;            /* the kernel's number of a package, node, core or PU; the level of a cache; else -1 */
	uint64_t bytes;        /* of a node or a cache; 0: unknown */
	char name[64], at[16]; /* of a device: "mlx5_0 ib0", "0000:41:00.0"; of a machine or package: its model */
};
struct tt_topology {
	struct tt_object *objects; /* parents first */
	int count;
	struct tt_pu *pus;
	int n;
	struct tt_cpus there;      /* of all pus */
	bool devices;              /* hwloc has searched for devices */
};
enum tt_source { TT_THIS_HOST, TT_XML, TT_SYNTHETIC };
int tt_topology_load(struct tt_topology *, enum tt_source, const char *what); /* what: a file; a description; NULL */
void tt_topology_free(struct tt_topology *);
int tt_topology_kernel(const char *sys, struct tt_pu **, int *n); /* from the kernel's files; sys: "/sys" */
bool tt_topology_node(const char *sys, int node, struct tt_cpus *); /* likewise; false: no such node */
int tt_topology_cover(const struct tt_topology *, const struct tt_cpus *); /* the deepest object with all of them */
int tt_topology_meet(const struct tt_topology *, int a, int b);            /* the deepest common ancestor */
/* All objects of a kind into order[], the nearest first: those with the deepest common ancestor with `from`. Equally
 * near ones rotate by `turn`, so that ranks side by side use different devices. Returns how many. */
int tt_topology_near(const struct tt_topology *, int from, enum tt_thing, int turn, int *order, int max);

/* For these files: */
int tt_pu_run(const struct tt_pu *, int n, enum tt_thing level); /* the length of the first package, node ... */
int tt_topology_hwloc(struct tt_topology *, enum tt_source, const char *what); /* -ENOSYS: no hwloc on this machine */
struct tt_object *tt_topology_add(struct tt_topology *, enum tt_thing, int parent); /* NULL: no memory */
int tt_topology_from(struct tt_topology *, struct tt_pu *, int n); /* a tree of these; takes the array */
#endif
