/* doctor.h - what the files of `tutti doctor` share */
#ifndef TT_DOCTOR_H
#define TT_DOCTOR_H
#include "tools/tools.h"

enum tt_verdict { TT_FINE, TT_NOTE, TT_FINDING }; /* a note is worth knowing, and no fault */

struct tt_doctor_line {
	enum tt_verdict verdict;
	char check[16], text[600]; /* a finding is a sentence with the mend behind the last colon */
};

struct tt_doctor {
	bool json, rdma; /* rdma: memlock counts although there is no adapter */
	bool nodes;      /* the config file has a list of nodes */
	bool ports_are_held; /* by the ranks of this job */
	size_t memory;   /* bytes that a rank needs */
	int ranks;       /* of this host */
	struct tt_settings settings;
	struct tt_doctor_line *lines;
	int n, room;
};

/* fmt of a finding ends with what to do. */
void tt_doctor_say(struct tt_doctor *, enum tt_verdict, const char *check, const char *fmt, ...) TT_FORMAT(4, 5);
char *tt_doctor_read(const char *path, char *text, size_t size); /* the file's first line; NULL: none */

void tt_doctor_limits(struct tt_doctor *);  /* limits.c: what the kernel, cgroups and a batch system let a rank use */
void tt_doctor_gpu(struct tt_doctor *);     /* gpu.c: whether the driver works, what reaches a GPU's memory */
void tt_doctor_network(struct tt_doctor *); /* network.c: interfaces, ports, the names of this host */
struct tt_doctor_rank {
	char label[112];
	const char *adapter; /* tt_net.device; empty: the rank has none */
};
/* adapters.c: which port each rank of a job has taken, and ranks that differ from most */
void tt_doctor_adapters(struct tt_doctor *, const struct tt_doctor_rank *, int n);
/* pairs.c: joins, and tries each pair of ranks. 0, or TT_ALONE: it is the only rank, or TT_APART: it cannot join */
enum { TT_ALONE = -1, TT_APART = -2 };
int tt_doctor_pairs(struct tt_doctor *);
int tt_doctor_running(struct tt_doctor *, char **pids, int n); /* running.c: ranks under way. Returns 0 or 2 */
int tt_doctor_connect(const char *address);  /* a bare connection to "10.0.0.7:4000", at once closed. 0 or an errno */
unsigned tt_doctor_mtu(const char *address); /* of the interface with that address, "10.0.0.7:4000"; 0: not known */
#endif
