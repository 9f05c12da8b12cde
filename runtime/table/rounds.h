/* rounds.h - how often each worker has pushed to one shard of a table, and who may go on
 *
 * The pushes of a worker are numbered from 1 up. A worker that joins late counts on from the clock that it finds. Its
 * k-th push belongs to round k. A shard has one clock.
 *
 *   ASYNC  Nothing is counted, and nobody waits. The clock stands still.
 *   SSP    The clock is the number of pushes of the slowest worker. Every push is applied at once. A worker that has
 *          pushed k times may pull when the clock is at k - staleness or higher: it reads all pushes of all workers up
 *          to there, and perhaps later ones. (Ho et al., NIPS 2013)
 *   BSP    The clock is the number of closed rounds, and the version of the values. Pushes of the open round, clock +
 *          1, are summed up separately, and applied when the round closes. A worker that has pushed k times may pull
 *          when version k is complete. Without backup workers it reads exactly version k, since round k + 1 needs its
 *          own push. So the i-th pulls of all workers that push and pull in the same order are identical. A push for a
 *          round that is not open yet waits from its first piece on; its worker does not. A round is full when
 *          somebody has pushed to it and at most `backup` workers have yet to. Then no other push is admitted, and the
 *          round closes when the pushes that have begun are complete: an admitted push is never lost. Later pushes for
 *          that round are dropped as a whole and counted, and move their worker one round on. (Chen et al., arXiv
 *          1604.00981)
 *
 * A worker that finishes or dies no longer blocks others. Its complete pushes stay. Of an incomplete push the applied
 * pieces stay. Its leaving may close the round. A worker that joins belongs to the open round, and the round waits for
 * it. When the last worker dies in a push, one shard may have all of that push, another a part, a third nothing. The
 * first has then closed the round, and the others, to which nobody pushes any more, catch up with it.
 *
 * The server calls tt_rounds_begin at a push's first piece, and does what the answer says:
 *
 *   ADMIT  apply the pieces (in BSP: sum them up), then call tt_rounds_complete
 *   WAIT   the push came too early: a worker waits until the clock has moved
 *   DROP   the push is over: apply none of its pieces
 *
 * A call that returns true has moved the clock. Then the server, in BSP, applies the sum and publishes the version; it
 * tells the clock to the workers, and begins the pushes that wait.
 *
 * All calls cost O(1), those that move the clock O(workers). Callers serialize them. */
#ifndef TT_ROUNDS_H
#define TT_ROUNDS_H
#include "base/base.h"

struct tt_rounds;
struct tt_rounds_counts {
	int live, pushing;          /* workers; pushes under way */
	uint64_t dropped;           /* pushes that came too late, or from a worker that had left */
	uint64_t broken;            /* pushes that were under way when their worker left */
};
enum tt_admission { TT_ADMIT, TT_WAIT, TT_DROP };

int tt_consistency_check(const tutti_consistency *);
uint64_t tt_clock_to_pull(const tutti_consistency *, uint64_t pushed); /* that the worker's next pull needs */

int tt_rounds_open(const tutti_consistency *, int workers, struct tt_rounds **); /* checks; nobody has joined yet */
void tt_rounds_close(struct tt_rounds *);            /* NULL is allowed */
int tt_rounds_join(struct tt_rounds *, int worker, uint64_t *clock); /* its pushes count from there. -EEXIST */
bool tt_rounds_leave(struct tt_rounds *, int worker); /* it has finished, or is dead */
enum tt_admission tt_rounds_begin(struct tt_rounds *, int worker);
bool tt_rounds_complete(struct tt_rounds *, int worker);
void tt_rounds_start(struct tt_rounds *, uint64_t clock); /* of a shard that was loaded, before anybody joins */
/* The worker has just joined, and pushes elsewhere count up to `pushed`: it goes on from there. *skipped: the clock
 * passed rounds to which nobody has pushed here. */
bool tt_rounds_resume(struct tt_rounds *, int worker, uint64_t pushed, bool *skipped);
bool tt_rounds_skip(struct tt_rounds *);              /* likewise, when a worker has left: did the clock pass rounds? */
bool tt_rounds_is_left(const struct tt_rounds *);     /* has BSP no worker left? */
bool tt_rounds_catch_up(struct tt_rounds *, uint64_t clock); /* with another shard's clock, if no worker is left here */
/* Changes the consistency between two steps. All workers go on from *clock, or from where the first of them is,
 * whichever is higher; *clock is set to it. The caller applies what BSP has summed up. -EBUSY: pushes are under
 * way. */
int tt_rounds_switch(struct tt_rounds *, const tutti_consistency *, uint64_t *clock);

uint64_t tt_rounds_clock(const struct tt_rounds *);
int tt_rounds_summed(const struct tt_rounds *);      /* BSP: pushes to the round closed last, broken ones, too */
int tt_rounds_slowest(const struct tt_rounds *);     /* the worker for which others wait here; -1: none does */
uint64_t tt_rounds_pushed(const struct tt_rounds *, int worker); /* 0: it has not joined */
struct tt_rounds_counts tt_rounds_counts(const struct tt_rounds *);
#endif
