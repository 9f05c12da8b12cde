/* sim.h - what the files of `tutti sim` share
 *
 *   sim.c      the ranks: each computes for a while, then does the method's round; deaths and returns; the samples
 *   methods.c  a round of each method, through tutti.h alone
 *   graph.c    who mixes with whom in which round; the mixing matrix
 *   options.c  the command line
 *   output.c   the lines of CSV, the picture */
#ifndef TT_TOOL_SIM_H
#define TT_TOOL_SIM_H
#include "tools/tools.h"

struct tt_study;
struct tt_studied;

struct tt_sim_method {
	const char *name, *sentence;
	bool together;                     /* all ranks do the same rounds; else each goes on at its own pace */
	bool overlaps;                     /* it communicates during the step: a rank that is less than a tenth of a
	                                    * step late is on time */
	int (*open)(struct tt_studied *);  /* these: 0 or -errno */
	int (*begin)(struct tt_studied *); /* when the first step begins; may be NULL */
	int (*round)(struct tt_studied *);
	void (*close)(struct tt_studied *);
};

struct tt_sim_graph {
	const char *name, *sentence;
	/* The peer of a rank in a round, and after how many rounds the same peers come; NULL: by chance. Period 0:
	 * there is no such graph of so many ranks. */
	int (*peer)(int rank, int ranks, int round);
	int (*period)(int ranks);
	tutti_gossip_choice choice;        /* the library's own; OWN: it knows no such graph */
};

struct tt_sim_options {
	const struct tt_sim_method *method;
	const struct tt_sim_graph *graph;
	tutti_gossip_way way;
	int ranks, rounds;
	size_t bytes;
	uint64_t latency, bandwidth, step, seed; /* nanoseconds, bytes a second */
	double loss, churn, straggler, factor;
	bool matrix;
	const char *plot, *of_gossip;            /* of_gossip: the last option that only gossip takes; or NULL */
};

struct tt_sim_row { /* at a moment */
	double seconds;     /* since the first rounds began */
	double round;       /* how many the ranks have done, on average */
	double consensus;   /* distance of the ranks from their mean: root of the mean square, over all elements */
	double shift;       /* of the mean from the one at the start, likewise */
	double staleness;   /* milliseconds from the publication of what was mixed to its mixing, on average */
	uint64_t bytes;     /* that were sent since */
	int alive;
};

struct tt_studied { /* a rank */
	struct tt_study *study;
	int rank, rounds;        /* done in all lives */
	bool slow, mortal;
	bool working;            /* its model counts in the samples */
	bool newcomers;          /* others have joined, and are in no group of this rank's */
	tutti *job, *group;      /* group: of all-reduces, as deaths and returns leave it */
	tutti_gossip *gossip;
	struct {                 /* the last publications, by the clocks that they had */
		double clock;
		uint64_t at;
	} published[8];
	uint64_t publications;   /* of this life */
	double weight;           /* in the mean of all; push-sum: with what is on its way */
	tutti_center *center;
	double *x;               /* the model, and room for another one and two numbers */
};

struct tt_study {
	struct tt_sim_options options;
	struct tt_studied *of;   /* by rank */
	size_t count;            /* elements of the model */
	uint64_t start, sent;    /* when the rounds began; what had been sent by then */
	int ready;               /* to begin */
	int to_go;               /* ranks that decide when it ends, and have not done their rounds */
	int working, err;        /* ranks that do rounds; the first error, and ... */
	bool sampled;            /* the last row has been made */
	char why[512];           /* ... its sentence */
	double age;              /* since the last row: milliseconds, and of how many mixings */
	uint64_t mixings;
	double *mean, *first;    /* the mean now, and at the start */
	struct tt_sim_row *rows;
	int row_count, row_max;
	/* For tests: this rank has done a round, and this is its model now. */
	void (*done)(void *arg, int rank, int round, const double *x);
	void *arg;
};

/* sim.c: 0 or -errno, and tutti_why. */
int tt_study_run(struct tt_study *);
void tt_study_free(struct tt_study *);
void tt_study_start(const struct tt_study *, int rank, double *x, size_t count); /* what it begins with: -1 to 1 */
void tt_study_age(struct tt_studied *, uint64_t published); /* something was mixed that is as old as that */

/* methods.c, graph.c: the lists end with a NULL name */
extern const struct tt_sim_method tt_sim_methods[];
extern const struct tt_sim_graph tt_sim_graphs[];
int tt_sim_servers(const struct tt_sim_options *); /* the first ranks, which do not die; 0: none */
/* Of one period: x after it is matrix times x before. In row order; the caller frees it. NULL: no memory. */
double *tt_sim_matrix(const struct tt_sim_options *);

/* options.c, output.c */
int tt_sim_read_options(int argc, char **argv, struct tt_sim_options *); /* < 0: continue; else the exit status */
void tt_sim_print_matrix(const double *, int ranks);
void tt_sim_print_rows(const struct tt_study *);
int tt_sim_plot(const struct tt_study *); /* exit status */
#endif
