/* sim.h - a simulated world of many ranks in one thread. Each rank's program, and each of its background tasks, is a
 * fiber; time is virtual; the network uses every freedom that transport.h grants, as the world's seed decides. */
#ifndef TT_SIM_H
#define TT_SIM_H
#include "transport/transport.h"
#include <stdbool.h>
#include <stdint.h>

extern const struct tt_transport tt_sim;

struct tt_sim_counts { /* what a run took: the same on any machine */
	uint64_t turns;  /* that fibers had */
	uint64_t events; /* that have happened */
	uint64_t ops;    /* that were posted: messages, puts, ... */
	uint64_t bytes;  /* of ops, with their frames, but not of the peers' acknowledgements */
};

struct tt_sim_config {
	uint64_t seed;
	int ranks;
	void (*program)(int rank, void *arg); /* each rank runs it, on a fiber of its own */
	void *arg;
	int silence_ms, timeout_ms;           /* TUTTI_SILENCE and TUTTI_TIMEOUT of the ranks; 0: the defaults */
	const char *log;                      /* their TUTTI_LOG; NULL: the default */
	/* a peer that uses a key which is not registered, or not any more, is ended, as a queue pair dies of it; and
	 * many a GET comes long after the SENDs that were posted behind it. 0: its op gets -ESTALE */
	int strict;
	/* ranks are dealt out to so many hosts, one by one; 0: each has its own */
	int hosts;
	/* A network that is like a real one, instead of the seed's. Each may be 0: as the seed has it. */
	uint64_t latency_ns;                  /* that every message takes */
	uint64_t bandwidth;                   /* bytes a second of each rank's link, out and in: messages queue */
	double loss;                          /* below 1: the chance that a message is lost, and comes so much later: */
	uint64_t retransmit_ns;               /* the second time twice that; 0: 200 ms, Linux' least */
	uint64_t limit_ns;                    /* virtual time after which the run is given up; 0: an hour */
	struct tt_sim_counts *counts;         /* filled in when the run ends; NULL: nobody asks */
};
/* Runs until every program has returned. -EDEADLK: nothing can ever happen again. -ETIMEDOUT: limit_ns have passed.
 * tt_why() names the ranks that hang. */
int tt_sim_run(const struct tt_sim_config *);

/* For programs and tests, inside a run. `at`: virtual nanoseconds from now. */
int tt_sim_rank(void);                /* the rank of this fiber */
void tt_sim_sleep(uint64_t ns);       /* computes for so long: this fiber does nothing else meanwhile */
uint64_t tt_sim_chance(uint64_t n);   /* 0 .. n-1, from the world's seed */
struct tt_sim_counts tt_sim_counted(void); /* so far */
bool tt_sim_killed(int rank);
/* Breaks the rank's links. Every wait of the rank's own fibers returns at once, so that its program ends. */
void tt_sim_kill(int rank, uint64_t at);
/* Starts the program of a killed rank anew, as a new process with the same rank would; not before the old one has
 * ended. Nothing happens to a rank that is not killed by then. */
void tt_sim_restart(int rank, uint64_t at);
/* SIGSTOP: none of the rank's fibers runs for ns. What others put still lands. */
void tt_sim_stop(int rank, uint64_t at, uint64_t ns);
/* Breaks the link between the two until it is healed. Both see down; connecting gives -EHOSTUNREACH. */
void tt_sim_cut(int a, int b, uint64_t at);
void tt_sim_heal(int a, int b, uint64_t at);
void tt_sim_slow(int rank, unsigned factor); /* everything from and to this rank takes `factor` times as long */
#endif
