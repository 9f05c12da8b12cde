/* rounds.h - who has pushed how often to one shard of a table, and who may go on
 *
 * The rule. The pushes of a worker are numbered from 1 up (one that joins late goes on from the clock it finds), and its k-th push
 * belongs to round k. A shard has one clock.
 *
 *   ASYNC  Nothing is counted and nobody waits. The clock stands still.
 *   SSP    The clock is the number of pushes of the slowest worker. Every push is taken at once. A worker that has pushed k times
 *          may pull when the clock is at k - staleness or beyond: what it reads has all pushes of all workers up to there, and perhaps
 *          later ones. (Ho et al., NIPS 2013)
 *   BSP    The clock is the number of rounds that have closed, and the version of the values: pushes of the open round, clock + 1, are
 *          summed apart from them, and come to them all at once when it closes. A worker that has pushed k times may pull when version k
 *          is there; without backup workers it finds that very version, as k + 1 needs a push of its own. So the i-th pull of all
 *          workers that push and pull in the same order is identical. A push for a round that is not open yet waits, from its
 *          first chunk on; the worker does not.
 *          A round is full when no more than `backup` workers have yet to push to it, and somebody has. Then nobody else is let in,
 *          and it closes when the pushes that have begun are complete: an admitted push is never lost. Later pushes
 *          for it are dropped whole and counted, and leave their worker one round further. (Chen et al., arXiv 1604.00981)
 *
 * Who has finished or died is waited for no more. The pushes that it completed stay, of one that was under way those chunks do that had
 * been applied, and the round may close by its leaving. Who joins belongs to the round that is open then, and is waited for from there on.
 * The last one may die in a push that one shard has whole, another a half of and a third nothing: the first has closed that round then, and the others,
 * to which nobody pushes any more, catch up with it.
 *
 * The server asks, and does what the answers say:
 *
 *   tt_rounds_begin        at a push's first chunk. ADMIT: apply its chunks (in BSP: sum them up apart), then tt_rounds_complete.
 *                          WAIT: keep it, and begin it again when the clock has moved. DROP: it is over, take no chunk of it
 *   a call that is true    the clock has moved: in BSP the sum is applied and published as that version. Then workers are told of the
 *                          clock, and pushes that wait begin again
 *
 * All calls cost O(1), those that move the clock O(workers). They are for one thread at a time. */
#ifndef TT_ROUNDS_H
#define TT_ROUNDS_H
#include "base/base.h"

struct tt_rounds;
struct tt_rounds_counts {
	int live, pushing;          /* workers; pushes under way */
	uint64_t dropped;           /* pushes that came too late, or of a worker that had left */
	uint64_t broken;            /* pushes that were under way when their worker left */
};
enum tt_admission { TT_ADMIT, TT_WAIT, TT_DROP };

int tt_consistency_check(const tutti_consistency *);
uint64_t tt_clock_to_pull(const tutti_consistency *, uint64_t pushed); /* where it has to be; workers know it as well as servers */

int tt_rounds_open(const tutti_consistency *, int workers, struct tt_rounds **); /* room for so many; who is there at the start has to join,
                                                      * before anybody pushes. Checks too */
void tt_rounds_close(struct tt_rounds *);            /* NULL is allowed */
int tt_rounds_join(struct tt_rounds *, int worker, uint64_t *clock); /* makes room where there is none. clock: what its pushes are
                                                      * counted on from. -EEXIST */
bool tt_rounds_leave(struct tt_rounds *, int worker); /* finished or dead */
enum tt_admission tt_rounds_begin(struct tt_rounds *, int worker);
bool tt_rounds_complete(struct tt_rounds *, int worker);
void tt_rounds_start(struct tt_rounds *, uint64_t clock); /* of a shard that has been there before; nobody has joined yet */
/* A worker that has just joined has pushed so often to other shards, and counts on from there. True: the clock has moved. skipped: by rounds of
 * which nothing was pushed here. */
bool tt_rounds_resume(struct tt_rounds *, int worker, uint64_t pushed, bool *skipped);
bool tt_rounds_is_left(const struct tt_rounds *);     /* in BSP, by all: there is nobody to push here */
bool tt_rounds_catch_up(struct tt_rounds *, uint64_t clock); /* with another shard, which has come so far. True: by a shard that is left */
/* Between steps: -EBUSY while pushes are under way. All workers start level from where the first of them is, at the least from *clock, which
 * then tells it: each goes on from there. What BSP has summed up is to be applied, as if a round had closed. */
int tt_rounds_switch(struct tt_rounds *, const tutti_consistency *, uint64_t *clock);

uint64_t tt_rounds_clock(const struct tt_rounds *);
uint64_t tt_rounds_pushed(const struct tt_rounds *, int worker); /* how far it has come; 0: it is not there */
struct tt_rounds_counts tt_rounds_counts(const struct tt_rounds *);
#endif
