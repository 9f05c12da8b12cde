/* sim_private.h - what the two halves of a simulated world share: the transport sim.c, and sim_world.c */
#ifndef TT_SIM_PRIVATE_H
#define TT_SIM_PRIVATE_H
#include "base/base.h"
#include "base/list.h"
#include "transport/sim/sim.h"
#include "transport/transport.h"

struct tt_sim_fiber;
struct tt_sim_world;

struct tt_sim_event { /* happens at a time; embedded in what it happens to */
	void (*fire)(struct tt_sim_world *, struct tt_sim_event *);
	size_t at;  /* 1 + its place in the heap; 0: not scheduled */
	bool owned; /* allocated by itself: freed with the world */
};

struct tt_sim_work { /* waits for the progress() of a net */
	struct tt_list node;
	void (*run)(struct tt_sim_world *, struct tt_sim_work *);
};

struct tt_sim_rank {
	int number, living;            /* fibers */
	struct tt_list nets, watchers; /* watchers: fibers that any net's work wakes */
	/* may not run now: the rank is stopped, or another fiber spins in the engine's lock */
	struct tt_sim_fiber **held;
	struct tt_sim_fiber *spinner;
	int holding, held_max, nets_made;
	uint64_t stopped_until, step;
	uint64_t out_free, in_free;    /* when the two directions of its link are done with what is known of */
	unsigned slow;
	bool killed, gone;             /* gone: all its fibers have ended */
	char text[12];
};

struct tt_sim_world {
	struct tt_world base;
	const struct tt_sim_config *config;
	struct tt_random random;
	uint64_t now, sequence, limit;
	struct tt_sim_counts counts;
	struct tt_sim_rank *ranks;
	struct tt_sim_fiber *origin, *current, *all, *spare;
	struct tt_sim_fiber **runnable;
	int running, running_max, living;
	struct tt_sim_heap_slot *heap;
	size_t events, events_max;
	int (*cuts)[2];
	int cut;
	void *flights; /* free ones of sim.c */
	int err;       /* why the run was given up */
	char why[256], size_text[12], silence_text[16], timeout_text[16];
};

static inline struct tt_sim_world *tt_sim_here(void) { return (struct tt_sim_world *)tt_world; }

static inline uint64_t tt_sim_below(struct tt_sim_world *w, uint64_t n)
{
	return n ? tt_random_below(&w->random, n) : 0;
}

static inline bool tt_sim_one_in(struct tt_sim_world *w, unsigned n) { return !tt_sim_below(w, n); }

static inline bool tt_sim_is_cut(const struct tt_sim_world *w, int i, int a, int b) /* cut i is between these */
{
	return (w->cuts[i][0] == a && w->cuts[i][1] == b) || (w->cuts[i][0] == b && w->cuts[i][1] == a);
}

/* sim_world.c */
_Noreturn void tt_sim_end(int err, const char *why); /* of the run, which has no true result */
void *tt_sim_need(void *p); /* returns p; NULL ends the run: there is no memory */
void *tt_sim_make(size_t size);
void tt_sim_schedule(struct tt_sim_world *, struct tt_sim_event *, uint64_t time,
                     void (*fire)(struct tt_sim_world *, struct tt_sim_event *));
void tt_sim_cancel(struct tt_sim_world *, struct tt_sim_event *);
void tt_sim_rouse_watchers(struct tt_sim_world *, struct tt_sim_rank *); /* one of its nets has work */
/* progress() has handled so many; a spinning fiber yields here */
void tt_sim_polled(struct tt_sim_world *, int events);
/* This fiber computes for so long, and may hold the engine's lock: the other fibers of its rank stay out. */
void tt_sim_stall(struct tt_sim_world *, uint64_t ns);

/* sim.c */
bool tt_sim_has_work(struct tt_sim_rank *); /* does work wait for a progress() of its nets? */
void tt_sim_break_links(struct tt_sim_world *, struct tt_sim_rank *, int other); /* those to one rank; -1: all */
void tt_sim_leave_world(struct tt_sim_world *, struct tt_sim_rank *);
void tt_sim_free_flights(struct tt_sim_world *);
#endif
