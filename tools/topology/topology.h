/* topology.h - `tutti info --topology`: a machine, and where the ranks of a job run on it */
#ifndef TT_TOOLS_TOPOLOGY_H
#define TT_TOOLS_TOPOLOGY_H
#include "tools/tools.h"
#include "topology/topology.h"

enum { TT_RANKS_MAX = TT_CPUS, TT_DEVICES_MAX = 256 };

struct tt_spot { /* one rank's place */
	struct tt_partition share;
	int nic, gpu;                        /* the objects to use; -1: none */
	int nics[TT_DEVICES_MAX], nic_count; /* all, the nearest first */
	int gpus[TT_DEVICES_MAX], gpu_count;
};
struct tt_remark {
	char text[160];
	struct tt_cpus ranks; /* rank numbers instead of CPUs */
};
struct tt_view {
	struct tt_topology machine;
	struct tt_pin_rule rule;
	const char *pin, *source; /* TUTTI_PIN; a file, or NULL: this host */
	struct tt_cpus allowed;
	int ranks;
	struct tt_spot *seats;
	int *owner; /* of each processor of the machine: a rank, FREE, FORBIDDEN or SHARED */
	struct tt_remark remarks[16];
	int remark_count;
};
enum { TT_FREE = -1, TT_FORBIDDEN = -2, TT_SHARED = -3 };

int tt_tool_topology(const struct tt_settings *, const char *file, int ranks, bool json); /* the exit status */
void tt_topology_draw(const struct tt_view *);
void tt_topology_json(const struct tt_view *);
int tt_topology_count(const struct tt_topology *, enum tt_thing);
void tt_topology_size(uint64_t bytes, char *room, size_t size); /* "32 MiB" */
void tt_tool_json_text(const char *);                           /* quoted; NULL: null */
void tt_tool_print_plain(const char *, int width);              /* without control codes, padded */
#endif
