/* engine.h - the job: its lock, its progress loop, its threads and memory, its counters, and the modules that have
 * registered. Unless a comment says otherwise, the caller of a function holds the job's lock (the gate). */
#ifndef TT_ENGINE_H
#define TT_ENGINE_H
#include "base/list.h"
#include "base/pack.h"
#include "topology/topology.h"
#include "transport/transport.h"
#include "tutti.h"

enum { TT_NETS = 4, TT_CACHE_LINE = 64, TT_MODULES = 8 };

struct tt_job;
struct tt_member;

/* ---- module.c: how a lower room reaches a higher one: the higher one has registered ---- */

struct tt_message { /* one type of message between members: docs/wire.md has all of them */
	uint8_t type;               /* the first byte of the message; no two modules have the same */
	const char *name;
	void (*take)(struct tt_member *from, struct tt_pack *); /* sets bad where the message makes no sense */
};

struct tt_module { /* a room that lower rooms call. Constant; each function may be NULL, and is called with the lock unless it says otherwise */
	const char *name;
	int slot;                   /* where its own structs are, below TT_MODULES; no two modules have the same */
	size_t job_size, group_size; /* bytes of its own struct in a job and in a group; 0: none. Zeroed when they are made */

	/* its life. Without the lock */
	void (*make)(struct tt_job *);  /* its struct is there, nothing else is */
	int (*open)(struct tt_job *);   /* the settings are read, the threads run, nobody is met yet */
	void (*stop)(struct tt_job *);  /* this rank leaves: threads of the module's own end */
	void (*close)(struct tt_job *); /* no connection is left; also after an open that failed, or never was */

	/* progress */
	int (*poll)(struct tt_job *);   /* on each turn: how much happened */
	int (*arm)(struct tt_job *);    /* before a sleep. 0: sleep; 1: poll again */
	bool (*wanted)(const struct tt_job *); /* without the lock: has it an errand that nobody has kicked the background thread for? */
	void (*errand)(struct tt_job *); /* on the background thread; may let go of the lock for a while */

	/* messages of other members, and values of their notifies, from first to last */
	const struct tt_message *messages;
	int message_count;
	uint32_t notify_first, notify_last;
	void (*notify)(struct tt_member *from, uint32_t value);

	/* events of nets and members */
	void (*net_lost)(struct tt_job *, struct tt_net *); /* its progress() has failed */
	void (*hangup)(struct tt_job *, const struct tt_peer *); /* a connection is about to be disconnected */
	void (*up)(struct tt_member *); /* connected, or free to be connected to anew: what waits for that goes on */
	void (*unreached)(struct tt_member *, int err); /* no file was left for a connection to it: what waits for one ends with err */
	void (*reborn)(struct tt_member *); /* a later life of it is known, which has sent nothing yet */
	void (*ended)(struct tt_member *); /* left or gone: what waits for it ends */
	void (*unseated)(struct tt_member *); /* it has lost a seat in some group */

	/* events of groups */
	void (*group_begun)(struct tutti *); /* all its ranks have agreed on it */
	void (*group_over)(struct tutti *);  /* another group has come of it, or it is about to be freed: what is under way there ends */
	void (*group_freed)(struct tutti *); /* before its struct is */
	uint32_t (*group_finished)(const struct tutti *); /* this rank has done its part in so many collectives: for its goodbye */
};

int tt_modules_make(struct tt_job *, const struct tt_module *const *list); /* the structs of all modules; list ends with NULL. -ENOMEM; -EEXIST:
                                                      * two have one slot. Without the lock, like the next three */
int tt_modules_open(struct tt_job *);  /* in the order of the list ... */
void tt_modules_stop(struct tt_job *); /* ... and against it */
void tt_modules_close(struct tt_job *); /* frees the structs, too */
#define tt_each_module(m, job, has) \
	for (const struct tt_module *const *m##_at = (job)->modules, *m; (m = *m##_at); m##_at++) \
		if (m->has)

/* ---- stats.c: the counters ---- */

enum { TT_STAT_KINDS = TUTTI_STAT_BROKEN + 1 };

struct tt_tally {
	uint64_t ops, bytes, errors;
	struct tt_hist times;       /* in ticks; only of kinds that are timed, the others are cut short here */
};
struct tt_stats { /* of one peer, or of the job itself; made on first use */
	struct tt_tally *of[TT_STAT_KINDS];
};
struct tt_book { /* what a job knows of its own counters */
	struct tt_stats *own;       /* collectives, and what concerns tables */
	struct tt_ticker ticker;
	uint64_t joined;            /* when */
	uint64_t turn;              /* how many operations have begun ... */
	unsigned shift;             /* ... and how many of them are timed: one of 2^(32 - shift) */
};

void tt_stats_open(struct tt_job *);
void tt_stats_free(struct tt_stats *);                /* NULL is allowed */
uint64_t tt_stats_start(struct tt_job *);             /* when something small begins; 0: it is not timed */
void tt_stats_ended(struct tt_stats **, tutti_stat_kind, uint64_t since, size_t bytes, int err); /* what began then has ended; 0: not timed */
void tt_stats_count(struct tt_stats **, tutti_stat_kind, size_t bytes); /* something that takes no time */
void tt_stats_sum(struct tt_tally *sum, const struct tt_stats *, tutti_stat_kind); /* adds those to it; NULL: nothing was counted */
const char *tt_stats_name(tutti_stat_kind);           /* one word */
bool tt_stats_is_own(tutti_stat_kind);                /* is it counted for the job, and not for each peer? */

/* ---- engine.c: whoever waits, drives ---- */

struct tt_timer { /* zeroed is off */
	struct tt_list link;
	uint64_t at;
	void (*expire)(struct tt_timer *);
};

struct tt_waiter {
	struct tt_list link;
	bool (*ready)(void *);
	void *arg;
	struct tt_parking parking;
};

struct tt_engine {
	struct tt_ticket_lock lock;        /* the holder may touch everything of the job, the nets too */
	struct tt_net *nets[TT_NETS];
	int count;
	int (*poll[TT_MODULES])(struct tt_job *); /* those of the modules that have any */
	int (*arm[TT_MODULES])(struct tt_job *);
	int polls, arms;
	struct tt_waiter *driver;   /* the waiting thread that polls the nets, if any */
	_Atomic uint32_t visits;    /* grows with every call; odd while there is a driver. Written under the gate, read without */
	struct tt_list waiters;     /* the other waiting threads, first come first */
	struct tt_sleeper sleeper;  /* where the driver sleeps ... */
	_Atomic bool driver_asleep;
	struct tt_sleeper backstage; /* ... and where the background thread does: */
	_Atomic bool backstage_asleep; /* on the nets; */
	_Atomic bool backstage_off; /* until the driver, who sleeps on the nets himself, has left; else on its tick */
	struct tt_task *background;
	_Atomic bool stopping;
	_Atomic bool errand;        /* the background thread has something to do besides the nets */
	bool spin, news;            /* news: a request has ended since waiters were last looked at */
	uint64_t spin_until;
	unsigned turns;             /* of spinning drivers */
	int neighbours, afar;       /* links over shared memory, and others */
	int in_memory;              /* calls under way that other ranks push on by writing into shared memory */
	unsigned yields;            /* since something happened; the last one began */
	uint64_t yielded;
	struct tt_list timers;
};

int tt_engine_open(struct tt_job *);   /* starts the background thread; without the gate, like the next two */
void tt_engine_stop(struct tt_job *);  /* ends it: the caller is alone from then on */
void tt_engine_close(struct tt_job *); /* closes the nets */
void tt_lock(struct tt_job *);       /* takes the gate */
void tt_unlock(struct tt_job *);
int tt_progress(struct tt_job *);         /* polls every net once, runs what is due; how much happened */
void tt_look(struct tt_job *, struct tt_net *); /* at this one, if it costs no system call: what was posted may have ended already */
int tt_wait_until(struct tt_job *, bool (*ready)(void *), void *arg, uint64_t deadline); /* 0 or -ETIMEDOUT; lets go of the gate meanwhile */
void tt_errand(struct tt_job *);      /* a module has one: wakes the background thread for it */
void tt_timer_start(struct tt_job *, struct tt_timer *, uint64_t at, void (*expire)(struct tt_timer *));
void tt_timer_stop(struct tt_timer *);
size_t tt_message_max(const struct tt_job *); /* bytes of a message that every net takes */

/* ---- place.c: which threads run where. No gate needed ---- */

struct tt_place { /* of a job's threads */
	struct tt_pin_rule rule;
	struct tt_cpus allowed;     /* when it joined */
	int rank, ranks;            /* among those of this host that may run on the same processors */
	struct tt_pu *pus;          /* NULL: nobody has asked yet */
	int n;
	struct tt_partition share;
	int memory_node;            /* where the job's memory is to be; -1: where it is first touched. Fixed once joined */
};
int tt_place_begin(struct tt_job *);                  /* reads the settings and looks where this thread may run */
uint32_t tt_place_print(const struct tt_job *);       /* 24 bits that differ where the allowed processors do; 0: not known */
int tt_place_open(struct tt_job *);                   /* once rank and ranks are known: pins what is to be pinned */
void tt_place_close(struct tt_job *);
void tt_place_widen(struct tt_job *, struct tt_task *);        /* a new thread of the library's: to where the process may run */
int tt_place_helper(struct tt_job *, struct tt_task *, int i); /* a thread of the library's: its i-th core, round and round; under auto, its node */
int tt_place_thread(struct tt_job *, enum tt_pin if_auto, int i); /* tutti_pin, where if_auto stands for auto */
void tt_place_memory(const struct tt_job *, void *, size_t); /* untouched pages of this job: near its threads, if that is asked for */

/* ---- pool.c: threads that help whoever has much to compute. In a simulated world there are none ---- */

struct tt_pool;
int tt_pool_read(const struct tt_settings *);         /* -EINVAL with a sentence: TUTTI_POOL is none of what it may be */
int tt_pool_open(struct tt_job *);                    /* unless it is open; -ENOMEM, -EAGAIN */
void tt_pool_close(struct tt_job *);
void tt_pool_run(struct tt_pool *, void (*run)(void *arg, size_t first, size_t count), void *arg, size_t count, size_t grain); /* 0 .. count, in
                                                      * parts of whole grains, at once; one caller at a time: with the gate. NULL: all at once, here */

/* ---- arena.c: memory that other processes can map. It belongs to the process and not to a job; no gate needed ---- */

int tt_memory_alloc(const struct tt_job *, size_t bytes, int gpu, void **memory); /* tutti_alloc */
void tt_memory_free(void *);                     /* NULL is allowed */
struct tt_mem tt_mem_of(void *base, size_t len); /* with the file that it lies in, if all of it lies in one */

/* ---- scratch.c: buffers for a moment, kept for the next ---- */

enum { TT_SCRATCH_CLASSES = 13 };
struct tt_scratch { /* zeroed is empty */
	void *free[TT_SCRATCH_CLASSES];
	size_t held[TT_SCRATCH_CLASSES], all; /* bytes in each, and in all of them */
};
void *tt_scratch_take(struct tt_scratch *, size_t bytes); /* NULL: no memory. Page-aligned from a page on, else to a cache line; not zeroed */
void tt_scratch_give(struct tt_scratch *, void *, size_t bytes); /* the same number; NULL is allowed */
void tt_scratch_free(struct tt_scratch *);

/* ---- the job ---- */

struct tt_job {
	struct tt_engine engine;
	const struct tt_module *const *modules;
	void *own[TT_MODULES];      /* each module's own struct */
	struct tt_settings settings;
	int rank, size, local_rank, local_size;
	uint64_t deadline;          /* nanoseconds a blocking call waits */
	uint64_t id;                /* the job's, on the wire */
	uint32_t epoch;             /* which life of this rank */
	uint8_t *here;              /* one page that a fork's child finds zeroed */
	struct tt_scratch scratch;
	struct tt_place place;
	struct tt_pool *pool;       /* NULL: none */
	struct tt_op_queue ended;   /* ops that failed before any wire saw them */
	struct tt_book stats;
	bool joined, leaving;
	_Atomic int quitting;       /* the signal that makes this rank leave; 0: none came */
};

int tt_mark_owner(struct tt_job *);                  /* this process is; a fork's child is none. -ENOMEM */
int tt_is_mine(const struct tt_job *);               /* 0, or -ECHILD in a fork's child; no gate needed, nor for the next */
int tt_usable(struct tt_job *);                      /* for what starts something: -ESHUTDOWN, too, while a signal makes this rank leave */
#endif
