/* chaos.h - the network of the chaos test: each rank in a network namespace of its own, with wires that can be cut and
 * made slow. Nothing of it outlives the processes that hold it. */
#ifndef TT_TEST_CHAOS_H
#define TT_TEST_CHAOS_H

enum { NET_MAX = 8 };

const char *net_build(void);           /* once a process; NULL, or what is missing */
void net_enter(int rank);              /* this process lives there from now on */
const char *net_addr(int rank);
void net_cut(int rank, unsigned from); /* these and no others, a bit for each; in both directions, and nobody is told */
void net_slow(int rank, bool slow);    /* in both directions */
void net_reset(void);
#endif
