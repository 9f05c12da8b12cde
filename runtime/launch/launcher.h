/* launcher.h - what the files of this room share: one struct for each launcher that Tutti knows */
#ifndef TT_LAUNCHER_H
#define TT_LAUNCHER_H
#include "launch/launch.h"

struct tt_launcher {
	const char *name;
	bool once; /* a process can use its channel once */
	/* Has it started this process? `why` is the reason; or, of one that has and cannot be asked, why not. */
	bool (*detect)(const struct tt_settings *, char why[TT_LAUNCH_WHY]);
	/* Rank, size, local rank and size; the address of rank 0, or `exchanges`. */
	int (*place)(struct tt_settings *, struct tt_launch *);
	/* Carries rank 0's blob, a text without ';', '|' and blanks at its ends, to all. NULL: it has no channel. */
	int (*exchange)(const struct tt_settings *, const struct tt_launch *, char blob[TT_LAUNCH_BLOB],
	                uint64_t timeout);
	void (*end)(void); /* closes what place has opened; may be called again. NULL: nothing */
};
extern const struct tt_launcher tt_launcher_pmix, tt_launcher_pmi2, tt_launcher_pmi1, tt_launcher_slurm;

/* launch.c */
int tt_place_from(const struct tt_settings *, enum tt_setting rank, enum tt_setting size, struct tt_launch *);
int tt_place_local(const struct tt_settings *, enum tt_setting rank, enum tt_setting size, struct tt_launch *);
/* Makes tt_launch's name of the launcher's and of what it says of the job, with dashes between. NULL and "" are passed
 * over. Each part must be the same on all ranks. */
void tt_name_from(struct tt_launch *, const char *by, const char *job, const char *step, const char *restarts);
unsigned tt_port_from(const char *name); /* one that a job's ranks agree on without talking */
/* Of a warning that all ranks have: two of them give it, far from each other, since one may be missing. */
static inline enum tt_level tt_launch_level(int rank, int size)
{
	return rank == 0 || rank == size - 1 ? TT_WARN : TT_INFO;
}

/* When a rank says for whom it waits: after TUTTI_SILENCE, or not before `end`. */
static inline uint64_t tt_launch_doubt(uint64_t silence, uint64_t end)
{
	uint64_t now = tt_now();

	return silence < end - now ? now + silence : end;
}

int tt_slurm_local(const struct tt_settings *, struct tt_launch *); /* slurm.c: 0 also where Slurm says nothing */

/* munge.c: what only processes of this user can read, on hosts that share a key. -ENOENT: no MUNGE here */
int tt_munge_seal(const char *text, char *sealed, size_t size);
int tt_munge_open(const char *sealed, char *text, size_t size);
struct tt_meeting {
	int rank, size;
	const char *host, *job;     /* rank 0's; the step's number */
	unsigned port;
	uint64_t timeout, silence;  /* nanoseconds; when a rank says for whom it waits */
};
/* Rank 0 answers all others at `port`, once all have asked. */
int tt_munge_exchange(const struct tt_meeting *, char blob[TT_LAUNCH_BLOB]);
#endif
