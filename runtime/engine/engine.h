/* engine.h - the job: its modules, lock, progress loop, threads, memory and counters
 *
 * A function's caller holds the job's lock, unless the comment of the function or of its section says otherwise. */
#ifndef TT_ENGINE_H
#define TT_ENGINE_H
#include "base/list.h"
#include "base/pack.h"
#include "gpu/gpu.h"
#include "topology/topology.h"
#include "transport/transport.h"
#include "tutti.h"

enum { TT_NETS = 8, TT_MODULES = 12, TT_KEPT_BUCKETS = 1024 };

struct tt_job;
struct tt_member;
struct tt_post;

/* ---- module.c: how a lower room reaches a higher one ----
 *
 * A room is a module: one constant struct, listed in runtime/job/modules.c. Lower rooms call its functions. */

struct tt_message { /* one type of message between members; docs/wire.md lists all of them */
	uint8_t type; /* the first byte of the message; unique over all modules */
	const char *name;
	void (*take)(struct tt_member *from, struct tt_pack *); /* sets `bad` if the message is malformed */
};

struct tt_module { /* any function may be NULL; its caller holds the lock unless a comment says otherwise */
	const char *name;
	int slot;                    /* index of its structs, 0 to TT_MODULES - 1; unique */
	size_t job_size, group_size; /* bytes of its struct in each job and in each group, zeroed at first; 0: none */
	bool lasting;                /* calls of the program look into its struct in the job without the lock */

	/* Life, in this order; called without the lock. make and open run up the list, stop and close run down it. */
	void (*make)(struct tt_job *);  /* only the module's struct exists */
	int (*open)(struct tt_job *);   /* settings are read, nets listen; nothing is polled yet. 0 or -errno */
	void (*stop)(struct tt_job *);  /* this rank leaves: the module ends its threads. Also after a failed open */
	void (*close)(struct tt_job *); /* no connection is left. Also after an open that failed or never ran */

	/* Progress */
	int (*poll)(struct tt_job *);          /* in each turn of the progress loop; returns the number of events */
	int (*arm)(struct tt_job *);           /* before a sleep. 0: may sleep; 1: poll again */
	bool (*wanted)(const struct tt_job *); /* without the lock: has errand work that did not call tt_errand */
	void (*beat)(struct tt_job *, uint64_t passed); /* some times a second: nanoseconds since the last one, but for
	                                                 * those in which this process was stopped */
	void (*errand)(struct tt_job *);       /* slow work on the background thread; may release the lock meanwhile */

	/* What other members send: messages, and notify values from first to last */
	const struct tt_message *messages;
	int message_count;
	int passing; /* the first ones of them, which may overtake PUTs that a device's memory makes late */
	uint32_t notify_first, notify_last;
	void (*notify)(struct tt_member *from, uint32_t value);

	/* Another rank takes back memory that this rank has a key of: stops using it. True: nothing here uses it any
	 * more. False: tt_loan_stopped(from, number) follows. */
	bool (*recalled)(struct tt_member *from, struct tt_pack *what, uint32_t number);

	/* Events of nets and members */
	void (*net_lost)(struct tt_job *, struct tt_net *);      /* its progress() failed: once a net */
	/* This connection is about to close. The function may end calls; it must not disconnect nor evict. */
	void (*hangup)(struct tt_job *, const struct tt_peer *);
	void (*up)(struct tt_member *);                 /* connected, or may be connected again: resume what waits */
	void (*unreached)(struct tt_member *, int err); /* out of file descriptors: end with err what waits */
	void (*reborn)(struct tt_member *);             /* restarted; the new process has sent nothing yet */
	void (*ended)(struct tt_member *);              /* left or dead: end what waits for it */
	void (*unseated)(struct tt_member *);           /* lost its seat in some group */

	/* Events of groups */
	void (*group_begun)(struct tutti *); /* all ranks have agreed on the group */
	void (*group_over)(struct tutti *);  /* replaced by another group, or about to be freed: end its operations */
	void (*group_freed)(struct tutti *); /* about to be freed */
	uint32_t (*group_finished)(const struct tutti *); /* the number of collectives this rank has finished in it */

	/* For others, which wait for this rank: what its program does, in words that follow "; ". "": not known. */
	void (*doing)(const struct tt_job *, char *text, size_t size);
};

/* These four run without the lock. list ends with NULL. */
int tt_modules_make(struct tt_job *, const struct tt_module *const *list); /* -ENOMEM; -EEXIST: two modules collide */
int tt_modules_open(struct tt_job *);
void tt_modules_stop(struct tt_job *);
void tt_modules_close(struct tt_job *); /* frees the modules' structs, too, but lasting ones */
void tt_modules_free(struct tt_job *);  /* frees these */
#define tt_each_module(m, job, has) \
	for (const struct tt_module *const *m##_at = (job)->modules, *m; (m = *m##_at); m##_at++) \
		if (m->has)

/* ---- stats.c: counters ---- */

enum { TT_STAT_KINDS = TUTTI_STAT_RECV + 1 };

struct tt_tally {
	uint64_t ops, bytes, errors;
	struct tt_hist times; /* in ticks. Kinds that are not timed are allocated without it */
};
struct tt_stats { /* of one peer or of the job; allocated on first use */
	struct tt_tally *of[TT_STAT_KINDS];
};
struct tt_book { /* the job's counters */
	struct tt_stats *own; /* of collectives and tables */
	struct tt_stats *former; /* of newcomers whose numbers were used again */
	struct tt_ticker ticker;
	uint64_t joined; /* the time */
	uint64_t turn;   /* operations begun; after the first thousand ... */
	unsigned shift;  /* ... one of 2^(32 - shift) is timed */
};

void tt_stats_open(struct tt_job *);
void tt_stats_free(struct tt_stats *);    /* NULL is allowed */
uint64_t tt_stats_start(struct tt_job *); /* a small operation begins. Returns the ticks; 0: do not time it */
void tt_stats_ended(struct tt_stats **, tutti_stat_kind, uint64_t since, size_t bytes, int err); /* since: of start */
void tt_stats_count(struct tt_stats **, tutti_stat_kind, size_t bytes); /* an event without a duration */
void tt_stats_set_bytes(struct tt_stats **, tutti_stat_kind, uint64_t bytes); /* of what is counted elsewhere */
void tt_stats_retire(struct tt_book *, struct tt_stats **); /* of a peer that has ended for good */
void tt_stats_sum(struct tt_tally *sum, const struct tt_stats *, tutti_stat_kind); /* adds to sum; NULL adds nothing */
const char *tt_stats_name(tutti_stat_kind); /* one word */
bool tt_stats_is_own(tutti_stat_kind);      /* counted for the job, not for each peer */

/* ---- engine.c: the progress loop, which a waiting thread drives ---- */

struct tt_timer { /* zeroed is off */
	struct tt_list link;
	uint64_t at;
	void (*expire)(struct tt_timer *);
};

static inline bool tt_timer_runs(const struct tt_timer *t) { return t->link.next && !tt_list_empty(&t->link); }

struct tt_users { /* of a handle: the calls inside it. A call that ends or frees the handle wakes them and waits */
	unsigned count;
	/* What their waits return from now on: -ESHUTDOWN, -ESTALE; 0: the handle lives. Read without the lock, too. */
	_Atomic int err;
	const char *noun;           /* what the handle is, for sentences; NULL: "handle" */
};

struct tt_waiter { /* a thread in tt_wait_until or tt_wait_for */
	struct tt_list link;
	bool (*ready)(void *);
	void *arg;
	struct tt_users *users;     /* of the handle on which it waits; NULL: of none */
	bool resumed;               /* the wait goes on after a pause for the hook: it does not spin anew */
	struct tt_parking parking;
};

struct tt_staging { /* of the room runtime/device/: what a net cannot do alone */
	void (*move)(struct tt_member *, struct tt_post *); /* an op whose bytes are a device's, here or there */
	void (*hold)(struct tt_member *, struct tt_post *); /* a NOTIFY or SEND, behind such PUTs */
};

struct tt_engine {
	struct tt_ticket_lock lock; /* guards the whole job and its nets */
	struct tt_net *nets[TT_NETS];
	int count;
	int (*poll[TT_MODULES])(struct tt_job *); /* of the modules that have one */
	int (*arm[TT_MODULES])(struct tt_job *);
	int polls, arms;
	struct tt_waiter *driver;      /* the waiter that runs the progress loop; NULL: none */
	_Atomic uint32_t visits;       /* 2 for each take of the lock; odd: there is a driver. Read without the lock */
	_Atomic uint64_t looked;       /* when all nets were polled last. Read without the lock */
	struct tt_list waiters;        /* the other waiters, first come first */
	struct tt_sleeper sleeper;     /* of the driver */
	_Atomic bool driver_asleep;
	struct tt_sleeper backstage;   /* of the background thread */
	_Atomic bool backstage_asleep; /* it sleeps on the nets */
	_Atomic bool backstage_off;    /* it sleeps until the driver, asleep on the nets, leaves; else on a tick */
	struct tt_task *background;
	_Atomic bool stopping;
	_Atomic bool errand;           /* some module's errand() has work */
	bool spin, news;               /* news: an operation has ended since the waiters were last checked */
	bool adapts;                   /* spinning pauses while others want the core, ... */
	uint64_t crowded_until;        /* ... until then, ... */
	uint64_t crowded_ns;           /* ... after a pause of that length */
	uint64_t spin_until;
	unsigned turns;                /* of spinning drivers */
	int neighbours, afar;          /* connections over shared memory, and others */
	int cheap;                     /* those of them that are polled without a system call */
	int in_memory;                 /* calls that other ranks advance by writing into shared memory */
	unsigned yields;               /* of the core since the last event ... */
	uint64_t yielded;              /* ... and the time of the last one */
	struct tt_list timers;
	uint64_t timer_due;            /* no timer runs out before */
	size_t pin_above;              /* longer ops need a region; SIZE_MAX: no net asks for one */
	size_t look_above;             /* longer ops get a region if their memory has one; SIZE_MAX likewise */
	bool pins;                     /* some net reaches pinned memory alone */
	struct tt_pinned *kept[TT_KEPT_BUCKETS]; /* what stays pinned from call to call, by serial number */
	size_t kept_count;
	struct tt_pinned *last_kept;   /* that tt_use_kept() found; NULL: none */
	struct tt_list recent;         /* what of that makes room for others; the last used is the last */
	int recent_count;
	struct tt_list unpinned;       /* let go under the lock */
	struct tt_registered *registered; /* what the program has registered, by address */
	size_t registered_count, registered_room;
	uint64_t registered_made;      /* ever */
	uint64_t arenas_freed;         /* tt_arenas_freed() when it was last looked for kept ones that are gone */
	const struct tt_staging *stage;
};

/* Without the lock: */
int tt_engine_open(struct tt_job *);   /* opens the modules, then starts the background thread */
void tt_engine_stop(struct tt_job *);  /* ends it: the caller is alone from then on */
void tt_engine_close(struct tt_job *); /* closes the nets */
void tt_lock(struct tt_job *);
void tt_unlock(struct tt_job *);
/* With the lock: */
void tt_visit(struct tt_job *);   /* makes a tt_lock() of engine.lock that was taken alone */
int tt_progress(struct tt_job *); /* one turn: polls nets and modules, runs timers; returns the number of events */
void tt_look(struct tt_job *, struct tt_net *); /* polls this net, if a poll costs no system call */
/* Spins for a microsecond at most, until something has come from this peer, and handles it. False: nothing has come, or
 * this rank may not spin now, or the peer is far. The background thread polls all nets meanwhile. */
bool tt_watch(struct tt_job *, struct tt_peer *);
bool tt_may_spin(const struct tt_job *); /* may a thread that waits for another rank poll now? */
/* These three release the lock while they wait until ready(arg), and return 0 or, after the deadline, -ETIMEDOUT.
 *
 * tt_wait_until is for closes, cancels and threads of the library, whose waits nothing interrupts. tt_wait_for is for
 * waits of the program. It also ends with the error of `users` (NULL: nothing ends the handle), and with -EINTR when
 * this thread's hook says so; then it has a sentence. tt_await is tt_wait_for, for `timeout` nanoseconds; after
 * TUTTI_SILENCE `say` logs a line: who is waited for. */
int tt_wait_until(struct tt_job *, bool (*ready)(void *), void *arg, uint64_t deadline);
int tt_wait_for(struct tt_job *, struct tt_users *users, bool (*ready)(void *), void *arg, uint64_t deadline);
int tt_await(struct tt_job *, struct tt_users *users, bool (*ready)(void *), void *arg, uint64_t timeout,
             void (*say)(void *arg));
void tt_errand(struct tt_job *); /* wakes the background thread for a module's errand() */
void tt_timer_start(struct tt_job *, struct tt_timer *, uint64_t at, void (*expire)(struct tt_timer *));
void tt_timer_stop(struct tt_timer *);

/* ---- place.c: on which cores threads run. No lock needed ---- */

struct tt_place { /* of a job's threads */
	struct tt_pin_rule rule;
	struct tt_cpus allowed; /* when the job began */
	int rank, ranks;        /* among the ranks of this host that may use the same processors */
	struct tt_pu *pus;      /* NULL: not read yet */
	int n;
	struct tt_partition share;
	int memory_node;        /* NUMA node of the job's memory; -1: of the first touch. Constant after the join */
};
int tt_place_begin(struct tt_job *);            /* reads the settings and the caller's affinity */
uint32_t tt_place_print(const struct tt_job *); /* a 24-bit hash of the allowed processors; 0: unknown */
/* The NUMA node where this rank runs, or will if it is one of `ranks` on this host (0: not known yet); -1: unknown. */
int tt_place_node(struct tt_job *, int rank, int ranks);
int tt_place_open(struct tt_job *);             /* pins, once rank and ranks are known */
void tt_place_close(struct tt_job *);
void tt_place_widen(struct tt_job *, struct tt_task *);        /* lets a new thread run on all allowed processors */
int tt_place_helper(struct tt_job *, struct tt_task *, int i); /* pins to core i, modulo; under auto to the node */
int tt_place_thread(struct tt_job *, enum tt_pin_kind if_auto, int i); /* tutti_pin; if_auto replaces auto */
void tt_place_memory(const struct tt_job *, void *, size_t);   /* binds untouched pages to memory_node */

/* ---- pool.c: threads that share large computations. A simulated world has none ---- */

struct tt_pool;
int tt_pool_open(struct tt_job *);            /* does nothing if it is open; -ENOMEM, -EAGAIN */
void tt_pool_close(struct tt_job *);
/* Runs 0 .. count in pieces of whole grains on the pool's threads and the caller's; returns when all are done. One
 * caller at a time: hold the lock. NULL: the caller runs all of it as one piece. */
void tt_pool_run(struct tt_pool *, void (*run)(void *arg, size_t first, size_t count), void *arg, size_t count,
                 size_t grain);

/* ---- arena.c: memory that other processes can map. It belongs to the process, not to a job. No lock needed ---- */

int tt_memory_alloc(const struct tt_job *, size_t bytes, int gpu, void **memory); /* tutti_alloc */
void tt_memory_free(void *);                     /* NULL is allowed */
struct tt_mem tt_mem_of(void *base, size_t len); /* with the memfd, if one arena holds all of it */
uint64_t tt_arena_of(const void *base, size_t len, struct tt_mem *arena); /* its serial number; 0: none holds all */
bool tt_arena_is_there(uint64_t serial, const void *at); /* not freed yet; at: an address in it */
uint64_t tt_arenas_freed(void);                  /* how many arenas of this process were freed */
enum { TT_ARENAS_GONE = 64 };
/* The serial numbers of arenas that were freed since *seen were; sets *seen. How many; or -1: more than
 * TT_ARENAS_GONE, so that not all are known. */
int tt_arenas_gone(uint64_t *seen, uint64_t gone[TT_ARENAS_GONE]);

/* ---- pin.c: memory that all nets may reach ---- */

struct tt_pinned {
	struct tt_list link;        /* in engine.recent or engine.unpinned */
	struct tt_pinned *next;     /* in the bucket of engine.kept */
	struct tt_mem mem;
	int remote;
	struct tt_pin *pins[TT_NETS]; /* one of each net that pins; NULL: no more */
	unsigned uses;
	uint64_t arena;             /* serial number, or the number of a device's allocation; 0: it is not kept */
	bool stays;                 /* all of a registered range: until it is unregistered */
	struct tt_region *local[TT_NETS]; /* made at the first use, one a net; NULL: none */
	/* Memory of a device (mem.gpu >= 0): one of these for each call, whatever its length */
	struct tt_pinned *kept;     /* whose pins and regions it uses; NULL: it has its own */
	struct tt_gpu_range range;
	int fd;                     /* of a window: names the allocation to processes of this host; 0: none */
	struct tt_gpu_fence *fence; /* the point that the caller's stream had reached; NULL: nothing to wait for */
};

/* Without the lock: */
void tt_pins_open(struct tt_job *);
void tt_pins_close(struct tt_job *);
enum tt_pin_for {
	TT_PIN_READ,    /* the nets of this process alone read and write it */
	TT_PIN_RECEIVE, /* others write it while a call lasts */
	TT_PIN_WINDOW,  /* others reach it, and nobody does once it is unpinned */
	TT_PIN_DEVICE,  /* host memory needs no pin; a device's is pinned for all of these */
	TT_PIN_COPY,    /* likewise; copies within this process alone read and write a device's: no net pins it */
};
/* known: where the memory lies; NULL: it is looked up */
int tt_pin_user(struct tt_job *, const void *base, size_t len, enum tt_pin_for, const struct tt_gpu_range *known,
                struct tt_pinned **);
/* Pins memory for a call that is about to begin, or for a window. May take seconds. *out gets NULL if no net needs it:
 * never for a device's memory. 0 or -errno: -ENOMEM, with a sentence that names the net; what tt_gpu_find() and
 * tt_gpu_fence_note() return. */
static inline int tt_pin(struct tt_job *, const void *base, size_t len, enum tt_pin_for, struct tt_pinned **out);
void tt_unpin_waiting(struct tt_job *);
void tt_unpin_now(struct tt_pinned *); /* for memory of one user without local regions; NULL is allowed */
/* Where the memory lies: range->device is -1 if it is the host's, or has no bytes. 0, or what tt_gpu_find() returns. */
static inline int tt_find_device(const void *base, size_t len, struct tt_gpu_range *range);
int tt_look_for_device(const void *base, size_t len, struct tt_gpu_range *);
/* For calls that take memory of the host alone. 0; -ENOTSUP: it is a GPU's. what, name: of the call, "scatter", and of
 * its argument, "all". */
static inline int tt_host_only(const char *what, const char *name, const void *memory, size_t len);
int tt_tensors_host_only(const char *what, const tutti_tensor *, int n); /* likewise, for a list */
int tt_refuse_device(const char *what, const char *name, const void *memory, size_t len);
/* With the lock or without it: pins memory of the library's own. */
int tt_pin_mem(struct tt_job *, const struct tt_mem *, int remote, struct tt_pinned **);
/* With the lock: */
void tt_unpin(struct tt_job *, struct tt_pinned *); /* later, without the lock; NULL is allowed */
int tt_pinned_region(struct tt_pinned *, struct tt_net *, struct tt_region **); /* all of it, for local use */
/* Takes another use of the kept pin for local use whose arena or registered range holds all of this host memory. NULL:
 * no pin is kept. */
struct tt_pinned *tt_use_kept(struct tt_job *, const void *base, size_t len);
/* Unpins a registered range, or a device's allocation, at once, or when the last call that uses the pins has ended. */
void tt_pins_drop(struct tt_job *, uint64_t serial);

static inline bool tt_pinned_on_device(const struct tt_pinned *p) { return p && p->mem.gpu >= 0; }

/* NULL: the net does not pin, or nothing is pinned. */
static inline struct tt_pin *tt_pinned_on(const struct tt_pinned *p, const struct tt_net *net)
{
	p = p && p->kept ? p->kept : p;
	for (int i = 0; p && i < TT_NETS && p->pins[i]; i++)
		if (p->pins[i]->net == net)
			return p->pins[i];
	return NULL;
}

static inline bool tt_pinned_holds(const struct tt_pinned *p, const void *at, size_t len)
{
	size_t offset = (uintptr_t)at - (uintptr_t)p->mem.base;

	return offset <= p->mem.len && len <= p->mem.len - offset;
}

/* ---- registered.c: memory that the program registers ---- */

#define TT_REGISTERED (1ull << 63) /* in the serial numbers of registered ranges; arenas have lower ones */
/* With the lock: */
/* The serial number of the host's range that holds all of this, and the range; 0: none does. */
uint64_t tt_registered_of(const struct tt_job *, const void *base, size_t len, struct tt_mem *all);
bool tt_registered_is(const struct tt_job *, const struct tt_mem *, uint64_t serial); /* is it in it? */
/* Without: */
int tt_register(struct tt_job *, void *memory, size_t bytes); /* tutti_register */
int tt_unregister(struct tt_job *, void *memory);             /* tutti_unregister */
void tt_registered_close(struct tt_job *);

/* ---- scratch.c: a cache of temporary buffers ---- */

enum { TT_SCRATCH_CLASSES = 13 };
struct tt_scratch { /* zeroed is empty */
	void *free[TT_SCRATCH_CLASSES];
	size_t held[TT_SCRATCH_CLASSES], all; /* bytes in each class, and in all */
	struct tt_slab *slabs;      /* where an op's memory must be in a region: what all buffers lie in */
	size_t wanted;              /* bytes of the slab to be made next; 0: none */
	struct tt_room *rooms;
	struct tt_pinned **pinned;  /* slabs and rooms that are pinned, by address */
	size_t pinned_count, pinned_room;
};
void *tt_scratch_take(struct tt_scratch *, size_t bytes); /* page- or line-aligned; NULL: no memory */
void tt_scratch_give(struct tt_scratch *, void *, size_t bytes); /* bytes as for take; NULL is allowed */
/* The same of a room, a buffer of any size that other ranks may write. Where nets pin, a room is pinned alone, and
 * stays until the job is left. */
void *tt_scratch_take_room(struct tt_scratch *, size_t bytes);
void tt_scratch_give_room(struct tt_scratch *, void *);
struct tt_pinned *tt_scratch_pinned(const struct tt_scratch *, const void *); /* that holds the byte; NULL */
void tt_scratch_fill(struct tt_job *);  /* makes what is wanted. Releases the lock meanwhile */
void tt_scratch_free(struct tt_scratch *);

/* ---- the job ---- */

struct tt_job {
	_Atomic uint8_t *here;        /* a page that fork() zeroes in the child; 0 also once the job was left */
	struct tt_job *next;   /* of this process's, see owner.c */
	_Atomic bool spare;    /* another job may take this memory */
	struct tt_engine engine; /* the lock is its first member. What is behind the lock begins as zeros */
	const struct tt_module *const *modules;
	void *own[TT_MODULES]; /* each module's struct */
	struct tt_settings settings;
	int rank, size, local_rank, local_size;
	uint64_t silence, timeout; /* TUTTI_SILENCE and TUTTI_TIMEOUT, in nanoseconds */
	uint64_t id;           /* the job's, in all messages */
	uint32_t epoch;        /* the number of this rank's current life */
	struct tt_speaker speaker; /* whose rank the log's lines carry */
	struct tt_scratch scratch;
	struct tt_place place;
	struct tt_pool *pool;  /* NULL: none */
	struct tt_op_queue ended; /* ops that failed before a transport took them */
	struct tt_book stats;
	uint32_t serial;       /* tells the jobs apart that this process has been in; 0: it has not joined */
	bool joined, leaving;
	_Atomic int quitting;  /* the signal that makes this rank leave; TT_LEAVES: tutti_leave was called; 0: none */
	struct tt_list handles; /* what the program holds of this job, see handle.c ... */
	unsigned held;         /* ... and how many; those too of which only the memory is left */
	unsigned inside;       /* threads that wait, or are in calls of several steps */
	_Atomic bool ending;   /* tutti_leave waits until they are out. Written with the lock */
	bool left;             /* no call begins any more. With the lock */
	bool gone;             /* all of it was given back. With the lock */
};
enum { TT_LEAVES = -1 };

/* May memory be a device's? A process may begin to use CUDA later: longer calls look again, and so do opens. */
static inline bool tt_gpu_is_used(size_t len)
{
	return len && (atomic_load_explicit(&tt_gpu_here, memory_order_relaxed) || (len > TT_SHORT && tt_gpu_look()));
}
static inline int tt_find_device(const void *base, size_t len, struct tt_gpu_range *range)
{
	range->device = -1;
	return tt_gpu_is_used(len) ? tt_look_for_device(base, len, range) : 0;
}

static inline int tt_host_only(const char *what, const char *name, const void *memory, size_t len)
{
	return tt_gpu_is_used(len) ? tt_refuse_device(what, name, memory, len) : 0;
}

static inline bool tt_pins_host(const struct tt_job *job, size_t len, enum tt_pin_for use)
{
	return use < TT_PIN_DEVICE &&
	       (len > job->engine.look_above || (use != TT_PIN_READ && len && job->engine.pins));
}
static inline bool tt_pins(const struct tt_job *job, size_t len, enum tt_pin_for use)
{
	return tt_pins_host(job, len, use) || tt_gpu_is_used(len);
}
static inline int tt_pin(struct tt_job *job, const void *base, size_t len, enum tt_pin_for use, struct tt_pinned **out)
{
	*out = NULL;
	return tt_pins(job, len, use) ? tt_pin_user(job, base, len, use, NULL, out) : 0;
}

/* ---- owner.c: may this process use the job? Without the lock ---- */

/* The memory of a job that was left is never freed, but used again for another job: a thread that comes too late takes
 * the lock, and finds there that the job was left. */
struct tt_job *tt_job_new(void);     /* zeroed; NULL: no memory */
void tt_job_retire(struct tt_job *); /* it was left, and the program holds nothing of it */
int tt_mark_owner(struct tt_job *);    /* makes this process the owner, and the job one that lives. -ENOMEM, -EMFILE */
void tt_unmark_owner(struct tt_job *); /* the job is about to be freed */
struct tt_job *tt_job_find(uint32_t serial); /* NULL: no job of this process that lives has that number */

/* The job of a group, window or table. NULL: the caller was given none, which the next two refuse. */
#define tt_job_of(handle) ((handle) ? (handle)->job : NULL)
int tt_refuse_job(const struct tt_job *); /* -EINVAL: NULL; -ECHILD: a child of fork() calls; else -ESHUTDOWN */
static inline int tt_is_mine(const struct tt_job *job) { return job && *job->here ? 0 : tt_refuse_job(job); }
static inline int tt_usable(struct tt_job *job) /* as tt_is_mine; -ESHUTDOWN while a signal ends this rank */
{
	return job && *job->here && !atomic_load(&job->quitting) ? 0 : tt_refuse_job(job);
}
int tt_refuse_null(const char *name);  /* -EINVAL. name: of what is NULL, "tutti_join: job" */
static inline int tt_given(const void *p, const char *name) { return p ? 0 : tt_refuse_null(name); }
/* Takes the lock for a call of the program, which has asked one of the two above before. -ESHUTDOWN: the job was left
 * meanwhile, and the lock is not taken. */
int tt_begin(struct tt_job *);

/* ---- handle.c: what the program holds of a job, and closes by itself: groups, windows, tables, ... ----
 *
 * Handles are closed in any order, before and after tutti_leave, and while other threads wait. tutti_leave gives back
 * what a handle has of the job ("orphan"); the rest stays until the program closes the handle. All functions are called
 * without the lock, unless their comment says otherwise. */

struct tt_handle;
struct tt_handle_kind {
	void (*orphan)(struct tt_handle *);   /* the job ends: gives back what is the job's. NULL: nothing is */
	void (*release)(struct tt_handle *);  /* frees what is left, the handle too */
	const char *noun;                     /* "window" */
};
struct tt_handle { /* part of what the program holds */
	struct tt_list link;         /* in job->handles */
	struct tt_job *job;          /* its memory stays as long as the handle. NULL: the program does not hold it */
	const struct tt_handle_kind *kind;
	struct tt_users users;
	struct tutti **group;        /* where it notes its group, which may be freed first; NULL: nowhere */
	bool closed;                 /* by the program, while another thread leaves the job: that thread frees it */
	_Atomic bool orphaned;       /* the job was left */
};
void tt_handle_hold(struct tt_handle *, struct tt_job *, const struct tt_handle_kind *); /* with the lock */
/* A call of several steps begins and ends: neither closing nor leaving frees anything meanwhile. */
int tt_users_enter(struct tt_job *, struct tt_users *); /* as tt_usable(); -ESTALE: another thread closes the handle */
void tt_users_exit(struct tt_job *, struct tt_users *);
/* As tt_users_exit(), but takes the lock and keeps it. 0; or -ESTALE, -ESHUTDOWN: the handle ends. */
int tt_users_lock(struct tt_job *, struct tt_users *);
/* The same around an opening, which waits for other ranks in operations, too: closing and leaving end these waits. */
int tt_opening_enter(struct tt_job *, struct tt_users *, struct tt_users **outer);
void tt_opening_exit(struct tt_job *, struct tt_users *, struct tt_users *outer);
/* As tt_begin(), for a call on the handle that needs this memory pinned; known as for tt_pin_user(). A thread
 * that closes the handle meanwhile waits. On an error nothing is pinned. -ESTALE: the handle was closed; else as
 * tt_pin(). */
int tt_begin_pinned(struct tt_job *, struct tt_users *, const void *base, size_t len, enum tt_pin_for,
                    const struct tt_gpu_range *known, struct tt_pinned **);
/* Each close begins with the first. True: the handle is the caller's alone, and the lock is taken: the caller gives
 * back what is the job's, releases the lock, and calls the second, which frees the handle. False: nothing is left to
 * do: the job was left, or a fork's child calls. */
bool tt_handle_close(struct tt_handle *);
void tt_handle_free(struct tt_handle *);
void tt_handles_lose_group(const struct tutti *, struct tt_job *); /* with the lock: it is about to be freed */
void tt_handles_shut(struct tt_job *);   /* with the lock: this rank leaves: wakes all that wait on handles */
void tt_handles_orphan(struct tt_job *); /* no call is under way */
#endif
