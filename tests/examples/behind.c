/* behind.c - the demo fashion, and two ranks that die so that rank 1, the next rank 0, is behind the others: rank 0
 * when all have done the third step of the second epoch, rank 2 when those that are left have ended the last epoch. At
 * the end each rank compares its model with that of rank 1. For fashion.sh. */
#include "examples/fashion.h"
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

/* err: of a collective. Where it is the one, all have done it, then the victim dies, and rank 1 takes it for lost. */
static int fall_behind(struct training *t, int is_it, int victim, int err)
{
	int rank = tutti_rank(tutti_job(t->job));

	if (!is_it)
		return err;
	tutti_barrier(t->job, NULL);
	if (rank == victim)
		raise(SIGKILL);
	return rank == 1 ? -ECONNRESET : err;
}

static int wait_for(struct training *t, tutti_op *op)
{
	return fall_behind(t, t->epoch == 1 && t->step == 2 && op == &t->op[0], 0, tutti_wait(op, -1));
}

static int reduce(struct training *t, const void *in, void *out, size_t n, tutti_type type, tutti_rule rule,
                  tutti_op *op)
{
	int err = tutti_allreduce(t->job, in, out, n, type, rule, op);
	size_t size = t->net.parameters * sizeof *t->net.values;

	if (rule == TUTTI_AVERAGE) { /* of the times, when all is done */
		memcpy(t->net.gradients, t->net.values, size);
		if (!tutti_broadcast(t->job, t->net.gradients, size, 0, NULL) &&
		    memcmp(t->net.gradients, t->net.values, size) != 0)
			fputs("behind: the models differ\n", stderr);
	}
	return fall_behind(t, n == SUMS && t->epoch == t->options.epochs - 1, 2, err);
}

#define tutti_wait(op, ms) wait_for(t, op)
#define tutti_allreduce(job, ...) reduce(t, __VA_ARGS__)
#include "examples/fashion.c"
