/* launch.h - who am I, and where are the others: what the environment, a config file and the program say */
#ifndef TT_LAUNCH_H
#define TT_LAUNCH_H
#include "base/base.h"
#include "tutti.h"

/* ---- config.c, launch.c: who am I, and where are the others ---- */

struct tt_node {
	char name[64], address[80];
};
struct tt_launch { /* how this process finds its job */
	int rank, size;
	bool unnumbered;            /* a new rank of a job under way: `rank` is not known yet */
	char address[96];           /* where rank 0 listens; "" with a node list or alone */
	int listen_fd;
	struct tt_node *nodes;      /* `size` of them, or NULL */
};

int tt_config_load(struct tt_settings *, const char *file, struct tt_node **nodes, int *count); /* settings that are not set yet; no gate */
int tt_launch_read(struct tt_settings *, const tutti_config *, struct tt_launch *);   /* no gate */
void tt_launch_free(struct tt_launch *);
uint64_t tt_launch_job_id(const struct tt_launch *);
#endif
