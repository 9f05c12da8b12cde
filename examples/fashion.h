/* fashion.h - what the files of the demo share: options, data, the network, the report, and the ways to train it */
#ifndef FASHION_H
#define FASHION_H
#include "tutti.h"

enum status { OK, FAILED, USAGE, SAVED, LOST }; /* SAVED: asked to leave. LOST: the job broke, or a rank of it, and that
                                                  * has been said already */

/* fashion.c */
/* keeps the sentence, returns the status */
enum status complain(enum status, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
double seconds_now(void);

/* fashion_options.c */
struct options {
	const char *algorithm, *data, *plot, *save, *load;
	/* staleness -1: any; every 0: as the algorithm has it */
	int epochs, batch, lack, every, staleness, keep_going, json, help;
	double alpha; /* NaN: by the number of ranks */
	double rate, momentum;
	uint64_t seed;
};
enum status read_options(int argc, char **argv, struct options *);
void show_help(const char *algorithms);

/* fashion_data.c */
enum { SIDE = 28, PIXELS = SIDE * SIDE, CLASSES = 10 };
struct samples {
	int count;
	uint8_t *pixels; /* count x PIXELS */
	uint8_t *labels; /* count, each below CLASSES */
};
enum status read_samples(const char *dir, const char *prefix, struct samples *); /* prefix: "train" or "t10k" */
enum status find_data(const char *dir);
void free_samples(struct samples *);
/* bytes to floats of about zero mean and unit variance */
void scale_pixels(const struct samples *, int sample, float *x);

/* fashion_net.c: a multilayer perceptron. The rows of a batch are its samples. */
enum { LAYERS = 3 };
struct layer {
	int in, out;           /* out: rounded up to whole vectors; the columns too many stay zero */
	size_t at, size;       /* where its parameters start among all, and how many they are */
	float *output, *delta; /* rows x out; delta: the gradient of the loss by the layer's sums */
};
struct net {
	struct layer layer[LAYERS];
	size_t parameters;
	float *values, *gradients; /* the caller's, `parameters` each; by layer: in x out weights, then out biases */
	float *velocity, *transposed, *input;
	int rows; /* the most that a batch may have */
};
enum status net_open(struct net *, int rows); /* values and gradients are then for the caller to set */
void net_close(struct net *);
void net_start(struct net *, uint64_t *random);
void net_forward(struct net *, int rows);
/* the sum over rows; starts the way back */
double net_loss(struct net *, int rows, const uint8_t *labels, float scale);
int net_correct(const struct net *, int rows, const uint8_t *labels);
/* from the last layer to the first: completes gradients of that layer */
void net_backward(struct net *, int layer, int rows);
void net_update(struct net *, int layer, float rate, float momentum);
uint64_t draw(uint64_t *random); /* the next of a seeded row of 64-bit numbers */

/* fashion_report.c: all that rank 0 says about a run that goes well */
enum { POINTS = 8, SUMS = 2 * POINTS + 1 }; /* of the loss curve, per epoch */
struct epoch {
	double loss, accuracy, seconds;
	double curve[POINTS];
};
struct totals {
	double samples, training, waiting, total; /* seconds: training, of that in communication, everything */
};
struct report {
	const struct options *options;
	int quiet, ranks;
	double started, drawn, first; /* first: the part of the run that was loaded */
	int here;                     /* ranks of this host */
};
void report_progress(struct report *, int epoch, double done); /* done: 0 .. 1 of the run */
void report_epoch(struct report *, int epoch, const struct epoch *);
void report_end(const struct report *, const struct epoch *, const struct totals *);

/* fashion.c: what all ways to train have in common */
struct training {
	tutti *job;      /* the ranks that train: all, or those that are left */
	int rank, ranks, steps; /* steps: per epoch */
	struct options options;
	const struct algorithm *algorithm;
	struct samples train, test;
	struct net net;
	tutti_op op[LAYERS];       /* what is under way for each layer */
	tutti_table *table[LAYERS]; /* where the servers have them; NULL: without servers */
	int *order;      /* the training samples that are for this rank, shuffled */
	int samples;     /* how many these are */
	uint8_t *labels; /* of my part of the batch */
	uint64_t random;
	int epoch, step;      /* which comes next */
	double sums[SUMS];    /* by point of this epoch's curve: the losses, then the samples; last, the test's count */
	int shuffles;         /* how often the order has been shuffled: once for each epoch */
	char *block;          /* what is saved, loaded, or sent to others that go on; NULL: nothing is */
	int reported;         /* how many epochs rank 0 has reported, as far as this rank knows */
	double began;         /* when this epoch did; 0: it has not */
	double training, waiting; /* seconds so far; waiting: of those, in calls of the library */
	struct epoch *epochs;
	struct report report;
};

struct batch {
	int rows, total; /* mine, of all ranks */
	double rate, loss; /* loss: the sum over my rows */
};

/* From equal first values on all ranks, and from my part of each batch, in net.input and labels, to new values. */
struct algorithm {
	const char *name;
	enum status (*begin)(struct training *);                /* net.values are set on rank 0 */
	enum status (*step)(struct training *, struct batch *);
	enum status (*meet)(struct training *); /* all ranks have the same values then, for the test. NULL:
	                                                         * they always do */
	/* after the test: each has its own again. NULL: it has */
	void (*part)(struct training *);
	void (*end)(struct training *);                         /* NULL: nothing is left */
};
enum status agree(tutti *, enum status mine); /* all go on, or all end with the worst status */
void start_epoch(struct training *, int epoch);
enum status lost(void); /* an error of the library's: every rank may have another one to tell */
/* after one: what is under way for these layers is cut short, and their memory ours again */
enum status give_up(struct training *, int first, int last);

/* fashion_save.c: allreduce alone */
size_t save_size(const struct training *);
enum status save(struct training *);
enum status save_if_asked(struct training *); /* SAVED: the run ends */
enum status load_file(struct training *);     /* on rank 0 */
enum status take_loaded(struct training *);   /* on all ranks, after it */
/* after LOST, on the ranks that are left: all are where one of them was */
enum status go_on(struct training *);

/* fashion_ps.c: with parameter servers */
extern const struct algorithm fashion_ps;

/* fashion_average.c: each rank takes steps of its own, and the models are averaged now and then */
extern const struct algorithm fashion_alone, fashion_ea, fashion_easgd, fashion_asgd, fashion_diloco, fashion_gossip;
#endif
