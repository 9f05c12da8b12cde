/* runtime.h - what floors 2 and 3 share. Unless said otherwise a function is called with the job's gate held. */
#ifndef TT_RUNTIME_H
#define TT_RUNTIME_H
#include "base/base.h"
#include "base/list.h"
#include "base/pack.h"
#include "transport/transport.h"
#include "tutti.h"
#include <stdio.h>

enum {
	TT_NETS = 4, TT_WINDOWS = 2048, TT_SLOTS = 4096, TT_GROUPS = 1024, TT_BYE_GROUPS = 2 * TT_GROUPS, TT_HOST_BITS = 40,
	TT_NOTIFY_COLLECTIVE = 1 << 23,
};

struct tt_job;
struct tt_member;
struct tt_coll;
struct tt_board;

enum { TT_CACHE_LINE = 64 };

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
	_Atomic bool listening;     /* to the signal; these two are read outside of the gate, too */
	_Atomic unsigned seen;      /* how many signals were answered */
	int ear;                    /* its place among those that the handler kicks, from 1 up; 0: none */
};

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
	struct tt_gate gate;        /* the holder may touch everything of the job, the nets too */
	struct tt_net *nets[TT_NETS];
	int count;
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
	unsigned yields;            /* since something happened; the last one began */
	uint64_t yielded;
	struct tt_list timers;
};

int tt_engine_open(struct tt_job *);   /* starts the background thread; without the gate, like the next two */
void tt_engine_stop(struct tt_job *);  /* ends it: the caller is alone from then on */
void tt_engine_close(struct tt_job *); /* closes the nets */
void tt_enter(struct tt_job *);       /* takes the gate */
void tt_exit(struct tt_job *);
int tt_turn(struct tt_job *);         /* polls every net once, runs what is due; how much happened */
void tt_look(struct tt_job *, struct tt_net *); /* at this one, if it costs no system call: what was posted may have ended already */
int tt_wait_until(struct tt_job *, bool (*ready)(void *), void *arg, uint64_t deadline); /* 0 or -ETIMEDOUT; lets go of the gate meanwhile */
void tt_timer_start(struct tt_job *, struct tt_timer *, uint64_t at, void (*expire)(struct tt_timer *));
void tt_timer_stop(struct tt_timer *);

/* ---- model.c: what the choice of an all-reduce's algorithm rests on; the same on all ranks of a group ---- */

struct tt_model {
	bool known;
	uint64_t latency_ns;        /* of a small message, one way */
	uint64_t wire_ps, add_ps;   /* picoseconds a byte, on the wire and for adding */
	bool by_host;               /* the group is on several hosts, and the ranks of each share its memory */
};
struct tt_tune { /* of one all-reduce: how far this rank is with getting to know it */
	bool asked;                 /* rank 0: the last ping or burst is out */
	int host;                   /* rank 0: of those before this one it knows whether their ranks share memory ... */
	bool some_cannot;           /* ... and that some do not */
	uint32_t round;
	uint64_t since, trip, burst;
};

/* ---- place.c, cpus.c: which threads run where; topology*.c: on what machine. No gate needed ---- */

enum { TT_CPUS = 4096 };
struct tt_cpus { uint64_t word[TT_CPUS / 64]; }; /* a set of processors, by the kernel's numbers; zeroed is empty */
struct tt_pu { /* a processor: one hardware thread of a core */
	int cpu, core, package;     /* cpu: the kernel's number; core, package: the lowest such number in the same one */
	int node;                   /* NUMA node; -1: not known */
};

static inline bool tt_cpus_has(const struct tt_cpus *s, int cpu)
{
	return cpu >= 0 && cpu < TT_CPUS && s->word[cpu / 64] >> cpu % 64 & 1;
}
void tt_cpus_add(struct tt_cpus *, int cpu);
void tt_cpus_keep(struct tt_cpus *, const struct tt_cpus *these); /* and no others */
int tt_cpus_count(const struct tt_cpus *);
bool tt_cpus_within(const struct tt_cpus *, const struct tt_cpus *outer);
bool tt_cpus_parse(struct tt_cpus *, const char *list);    /* "0-3,8,16-30:2", as taskset, Slurm and the kernel write it; false: it is none */
const char *tt_cpus_text(const struct tt_cpus *, char *room, size_t size); /* the same way back; cut short with "..." */
int tt_cpus_allowed(struct tt_cpus *);                      /* those that the calling thread may run on. How many; 0: not known */

enum tt_pin { TT_PIN_AUTO, TT_PIN_COMPACT, TT_PIN_SPREAD, TT_PIN_NONE, TT_PIN_LIST };
struct tt_rule { /* TUTTI_PIN, understood */
	enum tt_pin pin;
	struct tt_cpus list;
};
struct tt_share { /* what one rank of a host gets */
	struct tt_cpus cpus;        /* for its threads; in the order of the machine, core by core */
	struct tt_cpus background;  /* for the background thread */
	int cores;                  /* in cpus; 0: more ranks than cores, nobody gets one of its own */
	int node;                   /* where all of cpus are; -1: on several nodes, or not known */
};

int tt_pin_read(const struct tt_settings *, struct tt_rule *);
int tt_pin_check(const struct tt_settings *, const struct tt_rule *, const struct tt_cpus *allowed, const struct tt_cpus *there); /* does the
                                                      * list keep to what is allowed? there: all that the machine has */
void tt_share_out(const struct tt_pu *, int n, const struct tt_rule *, const struct tt_cpus *allowed, int rank, int ranks, struct tt_share *);
bool tt_share_core(const struct tt_pu *, int n, const struct tt_share *, int i, struct tt_cpus *core); /* its i-th core, round and round */

struct tt_place { /* of a job's threads */
	struct tt_rule rule;
	struct tt_cpus allowed;     /* when it joined */
	int rank, ranks;            /* among those of this host that may run on the same processors */
	struct tt_pu *pus;          /* NULL: nobody has asked yet */
	int n;
	struct tt_share share;
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

enum tt_thing { TT_MACHINE, TT_PACKAGE, TT_NUMA, TT_CACHE, TT_CORE, TT_PU, TT_SWITCH, TT_NIC, TT_GPU };
struct tt_object { /* of a machine: a tree, parents first */
	enum tt_thing kind;
	int parent, depth;          /* the machine: -1, 0 */
	int first, pus;             /* its processors; of what hangs on the I/O side, those that it hangs on */
	int number;                 /* the kernel's, of a package, node, core or PU; of a cache its level; else -1 */
	uint64_t bytes;             /* of a node or a cache; 0: not known */
	char name[64], at[16];      /* of a device: "mlx5_0 ib0", "0000:41:00.0"; of a machine or package: its model */
};
struct tt_topology {
	struct tt_object *objects;
	int count;
	struct tt_pu *pus;
	int n;
	struct tt_cpus there;       /* the kernel's numbers of all pus */
	bool devices;               /* hwloc has looked for them */
};
enum tt_source { TT_THIS_HOST, TT_XML, TT_SYNTHETIC };
int tt_topology_load(struct tt_topology *, enum tt_source, const char *what); /* milliseconds. what: a file, a description; NULL */
void tt_topology_free(struct tt_topology *);
int tt_topology_kernel(const char *sys, struct tt_pu **, int *n); /* from the kernel's own files, in a fraction of a millisecond. sys: "/sys" */
int tt_topology_cover(const struct tt_topology *, const struct tt_cpus *); /* the deepest object that has all of them */
int tt_topology_meet(const struct tt_topology *, int a, int b);            /* their deepest common ancestor */
int tt_topology_near(const struct tt_topology *, int from, enum tt_thing, int turn, int *order, int max); /* all of that kind, the nearest first:
                                                      * those whose common ancestor with `from` is deepest. Of equally near ones the
                                                      * turn-th leads, so that ranks that sit together take different ones. How many */
#ifdef HAVE_HWLOC
int tt_topology_hwloc(struct tt_topology *, enum tt_source, const char *what); /* -ENOSYS: there is no such library here */
#endif
/* for both: */
struct tt_object *tt_topology_add(struct tt_topology *, enum tt_thing, int parent); /* NULL: no memory */
int tt_topology_from(struct tt_topology *, struct tt_pu *, int n);  /* a plain tree of those; takes the array */

/* ---- arena.c: memory that other processes can map. It belongs to the process and not to a job; no gate needed ---- */

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

/* ---- job.c, request.c: joining, and the requests that users wait for ---- */

struct tt_post { /* an op on its way to a member, also before there is a connection */
	struct tt_op op;
	struct tt_member *member;
	struct tt_region *local;    /* registered for this op alone */
	uint64_t since;             /* in ticks; 0: not timed */
	void (*done)(struct tt_post *, int err);
};

struct tt_request { /* what a tutti_op holds; blocking calls have it on their stack */
	struct tt_job *job;
	struct tt_list link;        /* in job->requests while it runs */
	struct tt_list unanswered;  /* and here while the owner of the window has not answered */
	const char *what;           /* "put", "all-reduce", for sentences */
	int rank;                   /* the one it waits for; -1: a collective */
	int err;
	bool ended, hurried;        /* hurried: a wait has asked for the acknowledgement */
	bool told;                  /* what: the whole sentence for who has waited in vain */
	struct tt_coll *coll;
	struct tt_table_call *call;
	struct tt_post post;        /* one-sided operations */
	struct tutti_window *window;
	uint64_t *old;
};
_Static_assert(sizeof(struct tt_request) <= sizeof(tutti_op), "tutti_op is too small for a request");

struct tt_request *tt_request_begin(struct tt_job *, tutti_op *, tutti_op *stack, const char *what, int rank);
void tt_request_end(struct tt_request *, int err);  /* once; waiters learn of it when the gate is let go */
int tt_request_return(struct tt_request *, bool blocking); /* the end of every call that begins a request: leaves the gate; blocking:
                                                     * waits, and at the deadline cuts off who is silent */
void tt_say_bye(struct tt_member *);                /* to one that is up, while leaving */
int tt_request_give_up(struct tt_request *);         /* it has ended then, also if that costs silent ranks */
int tt_is_mine(const struct tt_job *);               /* 0, or -ECHILD in a fork's child; no gate needed, nor for the next */
int tt_usable(struct tt_job *);                      /* for what starts something: -ESHUTDOWN, too, while a signal makes this rank leave */
void tt_job_goodbye(struct tt_job *);                /* finishes what was started, and tells the others; without the gate */

struct tt_job {
	struct tt_engine engine;
	struct tt_timer beat;       /* looks whether the others live */
	struct tt_settings settings;
	int rank, size, local_rank, local_size;
	uint64_t deadline;          /* nanoseconds a blocking call waits */
	uint64_t id;                /* the job's, on the wire */
	uint8_t *here;              /* one page that a fork's child finds zeroed */
	int event_fd;
	struct tt_list requests, links, doomed, asks, windows, collectives, stash, groups, boards, tables, calls, held, enquiries; /* calls: pushes and pulls of tables.
                                    * held: what came in for tables and has to wait; enquiries: who waits for servers to save or load */
	struct tutti_window *outbox; /* where the servers of tables have slots for what this rank pushes; NULL: no table was opened */
	int visits;                 /* of boards, under way */
	struct tt_timer coll_wake;  /* those that wait for another one of this rank are to go on */
	struct tt_scratch scratch;
	struct tt_place place;
	struct tt_pool *pool;       /* NULL: none */
	struct tt_op_queue ended;   /* ops that failed before any wire saw them */
	struct tt_member *members;
	struct tutti_window *window_at[TT_WINDOWS]; /* by the index that peers use */
	struct tutti *group_at[TT_GROUPS]; /* by the slot that peers use */
	struct tutti *all;          /* the group of all ranks: what tutti_join gives */
	unsigned next_window, next_group, generation;
	uint32_t hangups;           /* how many connections have gone, and with each what was mapped there */
	unsigned tellings;          /* how often this rank has told others that somebody is gone */
	int carded;                 /* how many ranks' addresses are known */
	uint64_t dealt;             /* when this rank began to pass the table on; 0: not yet */
	struct tt_text *texts;      /* kept ones */
	struct tt_book stats;
	bool joined, leaving, node_list;
	bool minority;              /* a minority of a group may go on */
	int launched;               /* how many ranks it was started with: all must agree */
	int capacity;               /* how many members there is room for: `size` of them are known */
	uint32_t epoch;             /* which life of this rank */
	bool unnumbered;            /* it wants to be a new rank, and has no number yet */
	bool late;                  /* it has joined a job that was under way, and is in no group of it until that grows */
	struct tutti *arriving;     /* late: the group that it will be in, ... */
	uint32_t welcome_uid;       /* ... what it is called, ... */
	int welcomed;               /* ... how many of its seats are known, ... */
	bool arrived;               /* ... and all of them are */
	struct tt_newcomer *newcomer; /* who waits to be taken into a group */
	int newcomers;
	unsigned call_from;         /* late: whom I tell next that I wait */
	struct tt_watch *watch;     /* NULL: nobody wants to hear of changes */
	struct tt_list quits;       /* signal.c's list of jobs that leave on a signal ... */
	uint64_t quit_on;           /* ... and which: bit 0 is signal 1 */
	_Atomic int quitting;       /* the signal that came */
	int join_err;
	char join_why[256];
};

/* ---- config.c, boot.c: who am I, and where are the others ---- */

struct tt_node {
	char name[64], address[80];
};
struct tt_newcomer { /* a rank that has joined a job under way */
	uint32_t rank, epoch;
	uint16_t slot;              /* how it will call its group */
};
struct tt_boot { /* how this process finds its job */
	int rank, size;
	bool unnumbered;            /* a new rank of a job under way: `rank` is not known yet */
	char address[96];           /* where rank 0 listens; "" with a node list or alone */
	int listen_fd;
	struct tt_node *nodes;      /* `size` of them, or NULL */
};

int tt_config_load(struct tt_settings *, const char *file, struct tt_node **nodes, int *count); /* settings that are not set yet; no gate */
int tt_boot_read(struct tt_settings *, const tutti_config *, struct tt_boot *);   /* no gate */
void tt_boot_free(struct tt_boot *);
uint64_t tt_boot_job_id(const struct tt_boot *);
int tt_boot_meet(struct tt_job *, const struct tt_boot *);  /* exchanges addresses; takes and leaves the gate itself */
void tt_boot_card(struct tt_member *, struct tt_pack *);   /* messages of the rendezvous */
void tt_boot_table(struct tt_member *, struct tt_pack *);
void tt_boot_gone(struct tt_member *);                     /* it may have owed others the table */
void tt_boot_leave(struct tt_job *);                       /* I go: those connected hear my goodbye next */
void tt_boot_leave_late(struct tt_member *);               /* it came when I was about to go */
bool tt_boot_retry(struct tt_member *, uint64_t patience);  /* it was not reached: will it be tried again in a moment? patience: for how long in all */

/* ---- address.c: where a rank can be reached: an address of each of its nets, a space between two ---- */

enum { TT_ADDRESSES = 256 }; /* room for all of them, with the zero */
bool tt_address_find(const char *list, const char *transport, char addr[96]); /* of that transport; false: none */
const char *tt_address_add(struct tt_job *, const char *known, const char *more); /* those of other transports than are known, as far as there
                                                      * is room; kept like any text */

/* ---- boot_tree.c: how the table of addresses goes out ---- */

enum { TT_CARD_HEAD = 8 + 4 + 1, TT_CARD_MAX = TT_CARD_HEAD + TT_ADDRESSES - 1 }; /* bytes of one: without its addresses, and at most */
void tt_card_put(struct tt_pack *, const struct tt_member *);
void tt_card_take(struct tt_pack *, struct tt_member *);   /* a known one stays as it is */
void tt_tree_deal(struct tt_job *);                        /* all cards are here: to those below me */
void tt_tree_deal_to(struct tt_member *);                  /* to one that asks for itself */
int tt_tree_parent(int rank);
const char *tt_text_keep(struct tt_job *, const char *);   /* a copy that lives as long as the job; "": no memory */
void tt_text_free(struct tt_job *);

/* ---- peer.c: which wire to which rank, connected on first use ---- */

enum tt_message_type { /* the first byte of every message between members; docs/wire.md has the rest */
	TT_HELLO = 1, TT_WELCOME, TT_BUSY, TT_REFUSED, TT_CARD, TT_TABLE, TT_BYE,
	TT_PING, TT_PONG, TT_DOWN, TT_ASK, TT_ANSWER, TT_CLOSED, TT_DATA, TT_REVOKE, TT_AGREE, TT_PART, TT_LATE, TT_NEWS, TT_FAREWELL, TT_MISSED,
	TT_WAKE, TT_JOIN, TT_PUSH, TT_PUSHED, TT_JOINED, TT_CLOCK, TT_FINISH, TT_CHANGE, TT_CHANGED,
	TT_PUSH_ROWS, TT_PULL_ROWS, TT_PULL_FRESH, TT_PULLED, TT_FILE, TT_FILED, TT_HELD, TT_PULL_VERSION,
};

enum tt_member_state {
	TT_AWAY,       /* not connected yet */
	TT_CONNECTING, /* posts wait */
	TT_PARTING,    /* connected, but posts wait: I have asked whether this connection may go */
	TT_UP,
	TT_LEFT,       /* said goodbye */
	TT_GONE,       /* went down or was cut off */
};

enum { TT_ANSWERS = 16 };
struct tt_beat { /* what is known of the life at the other end of a connection */
	uint64_t received;          /* tt_peer.received at the last look */
	uint64_t silent;            /* the look at which it was pinged since nothing had come; 0: something has */
	uint64_t asked;             /* when a ping went out that has no pong yet; 0: none */
	unsigned answers;           /* how many pongs came in all ... */
	uint32_t took[TT_ANSWERS];  /* ... and after how many microseconds the last ones did */
};

struct tt_link { /* one connection; usually the only one to its member */
	struct tt_list all;         /* in job->links */
	struct tt_list doom;        /* in job->doomed once nobody needs it */
	struct tt_job *job;
	struct tt_peer *peer;
	struct tt_member *member;   /* NULL until the other side has said who it is */
	bool mine;                  /* I connected */
	struct tt_timer patience;   /* while nobody has said who it is */
	bool used;                  /* for more than the rendezvous, or made when that was over */
	bool parted;                /* it stands for nobody any more: the other side hangs up */
	bool doubted;               /* a later life of its member has come: this one was asked whether it lives */
	struct tt_beat beat;
};

struct tt_member {
	struct tt_job *job;
	int rank;
	enum tt_member_state state;
	const char *addr;           /* one for each of its nets, see address.c; "" until known */
	int wire;                   /* which of my nets it is asked through, or was last */
	bool settled;               /* it has the table: it has used a connection for more than to get it */
	bool wires_again;           /* a node list's: the better ones were asked a second time */
	uint64_t host;              /* equal on one host, 40 bits; 0: not known */
	uint32_t cpus;              /* equal if they may run on the same processors, 24 bits; 0: not known */
	uint32_t epoch;             /* which life of it; 0: not known */
	struct tt_link *link;       /* the one I post on, or am connecting on */
	struct tt_op_queue waiting; /* posted before it is up */
	unsigned outstanding;       /* ops that the wire holds, and calls that use its memory */
	uint64_t heard;             /* when it last said how far it is: a ping or a pong */
	uint64_t unreached;         /* when no file was left to connect to it: that says nothing about it */
	uint64_t received;          /* tt_peer.received when it was last pinged: more is a sign of life, too */
	uint32_t started, started_in; /* how many collectives it has started, as last heard, and in which group (its uid) */
	int err;                    /* LEFT, GONE: what later uses return ... */
	const char *why;            /* ... and why: "" until then */
	bool outside;               /* it has joined a job under way, and no group has let it in */
	bool silent;                /* GONE, because it met a deadline */
	bool untold;                /* the others are to hear soon that it is gone, or has left */
	uint8_t *bye;               /* LEFT: what it said of its groups, from `n` on, ... */
	size_t bye_len;
	bool passed_on;             /* ... and the others have been told */
	bool accuser;               /* it has told me that it cut me off */
	bool fed;                   /* has heard from here of everyone who is gone */
	unsigned telling;           /* the last of job->tellings in which it was told something */
	struct tt_timer retry;      /* of connecting while joining; of telling */
	unsigned tries;             /* of connecting for the first time, to one that may not listen yet ... */
	uint64_t patience;          /* ... until then */
	struct tt_feed *feed;       /* pushes on their way to it; NULL: none yet */
	struct tutti_window *inbox_window; /* slots for what it pushes, ... */
	char *inbox;                /* ... their memory; NULL: it has not asked for any */
	struct tt_stats *stats;     /* NULL: nothing was counted yet */
};

static inline bool tt_member_linked(const struct tt_member *m) { return m->state > TT_AWAY && m->state < TT_LEFT; } /* or about to be */

extern const struct tt_events tt_peer_events;
int tt_member_reach(struct tt_member *);             /* 0: connected, over the wire that stays; 1: not yet, wait for tt_coll_wake; -EMFILE */
int tt_member_connect(struct tt_member *);           /* unless it is connected or gone. -EMFILE: no file is left, what waits for it ends so */
void tt_post(struct tt_member *, struct tt_post *);  /* connects if needed; done() follows in any case, from a later turn */
void tt_send(struct tt_member *, const void *head, size_t len, const void *body, size_t body_len); /* a message; bytes are copied. A lost one
                                                      * is no error: its member is gone then */
bool tt_member_epoch(struct tt_member *, uint32_t epoch); /* whoever has it speaks; false: it is another life of it */
void tt_member_reborn(struct tt_member *, uint32_t epoch); /* a later life of it: ends the one known, if that has not ended yet */
void tt_member_hold(struct tt_member *);             /* its memory is in use: if it leaves, the connection stays until ... */
void tt_member_let_go(struct tt_member *);           /* ... so often this has been called */
void tt_member_nudge(struct tt_member *);            /* what it has been sent is acknowledged at once */
void tt_member_gone(struct tt_member *, int err, const char *fmt, ...) TT_FORMAT(3, 4); /* ends everything that waits for it */
void tt_member_part(struct tt_member *);             /* the connection has served the rendezvous alone: let go of it */
void tt_member_refuse(struct tt_member *, const char *why); /* another process has come as this rank */
void tt_member_free(struct tt_member *);
void tt_member_left(struct tt_member *, const struct tt_pack *bye); /* NULL: it hung up because I leave */
bool tt_member_take_bye(struct tt_pack *, struct tt_pack *list); /* false: it makes no sense */
void tt_link_doom(struct tt_link *);
void tt_peer_settle(struct tt_job *);                 /* disconnects what is doomed; not from a callback */
struct tt_net *tt_member_net(struct tt_member *);    /* once up */

enum { TT_KEY_SIZE = 64 }; /* on the wire */
static inline void tt_put_key(struct tt_pack *p, const struct tt_key *key)
{
	tt_put64(p, key->len);
	tt_put_bytes(p, key->raw, sizeof key->raw);
}
static inline void tt_get_key(struct tt_pack *p, struct tt_key *key)
{
	key->len = tt_get64(p);
	tt_get_bytes(p, key->raw, sizeof key->raw);
}

/* ---- beat.c: heartbeats, and every time that derives from the deadline ---- */

enum tt_time {
	TT_TIME_HEARTBEAT, /* silence is known within three of them */
	TT_TIME_GRACE,     /* a broken connection is told of after so long: it may be me who was cut off */
	TT_TIME_STALE,     /* how long a rank that gave up a collective may take to say because of whom */
	TT_TIME_REAP,      /* how often a call that is being given up looks for another silent rank */
	TT_TIME_RETRY_MIN, TT_TIME_RETRY_MAX, /* between two tries to connect to one that may not listen yet */
};
uint64_t tt_time(const struct tt_job *, enum tt_time); /* nanoseconds */
void tt_beat_start(struct tt_job *);                   /* once it is joined; they end when it leaves */
void tt_beat_answered(struct tt_link *);               /* a pong */
void tt_beat_ask(struct tt_link *);                    /* whether it lives, unless it owes an answer */
uint64_t tt_beat_patience(const struct tt_link *);     /* how long it may leave a ping unanswered */

/* ---- group.c: who is alive ---- */

void tt_group_tell(struct tt_member *gone);          /* to everybody who is left */
struct tt_member *tt_group_finger(struct tt_job *, int i); /* through whom news reach everybody, while 1 << i / 2 < job->size; or NULL */
void tt_group_farewell(struct tt_member *left);      /* somebody needs one who may have left: those hear of it, too, who were not connected to it */
void tt_group_left(struct tt_member *from, struct tt_pack *); /* so it has */
bool tt_group_miss(struct tt_member *);              /* nobody listens there: asks who knows whether it has left; false: there is nobody to ask */
void tt_group_missed(struct tt_member *from, struct tt_pack *); /* somebody asks that */
void tt_group_mend(struct tt_job *);                 /* somebody has left through whom others would have heard who is gone */
void tt_group_ask(struct tt_member *);               /* for a sign of life */
bool tt_group_all_told(void *job);
void tt_group_down(struct tt_member *from, struct tt_pack *);
void tt_group_ping(struct tt_job *, const struct tt_request *); /* whoever it may wait for */
void tt_group_life(struct tt_member *from, struct tt_pack *, bool answer);  /* a ping, or the pong */
bool tt_group_is_alive(const struct tt_member *, uint64_t since); /* since: of the last ping */
bool tt_group_is_busy(struct tt_job *, const struct tt_request *, uint64_t since); /* bytes come from one that it waits for, but no pong yet */
bool tt_group_unreached(struct tt_job *, const struct tt_request *, uint64_t since); /* no file was left to ask one that it waits for */
struct tt_member *tt_group_silent(struct tt_job *, const struct tt_request *, uint64_t since); /* whom a late request waits for */
void tt_group_cut(struct tt_member *, int err, const char *fmt, ...) TT_FORMAT(3, 4); /* not from a callback: nothing of it lands afterwards */

/* ---- watch.c, signal.c: what the program is told, and what it is spared ---- */

void tt_watch_tell(struct tt_job *, const struct tt_member *, tutti_what); /* the one place for it */
void tt_watch_call(struct tt_job *);  /* on the background thread: makes the callbacks that are due, lets go of the gate for them */
void tt_watch_free(struct tt_job *);
void tt_signal_forget(struct tt_job *); /* it leaves by itself; without the gate */

/* ---- window.c ---- */

void tt_window_notify(struct tt_member *from, uint32_t value);
void tt_window_ask(struct tt_member *from, struct tt_pack *);
void tt_window_answer(struct tt_member *from, struct tt_pack *);
void tt_window_closed(struct tt_member *from, struct tt_pack *);
void tt_window_reborn(struct tt_member *);           /* it has opened nothing yet, and has sent no notify */
void tt_window_gone(struct tt_member *);             /* ends what waits for its answers */
void tt_window_unreached(struct tt_member *, int err); /* so does this; a later use asks again */
bool tt_window_unanswered(struct tt_request *);      /* does it wait for an owner to open? Then it is taken back, to be ended */
int tt_window_open(struct tt_job *, const char *name, void *base, size_t bytes, struct tutti_window **); /* as tutti_window_open, also under names
                                                      * that begin with "tutti:" */
int tt_window_get(struct tutti_window *, const char *what, int rank, size_t offset, void *dst, size_t bytes, tutti_op *); /* as tutti_get, not under
                                                      * the gate; what: with which sentences begin */
int tt_window_post(struct tutti_window *, int rank, struct tt_post *); /* a PUT or GET, of which kind, flags, local, len and offset are set; where this
                                                      * rank knows the other's window already. An error: it was not posted */
void tt_window_again(struct tutti_window *, int rank); /* if that rank has closed its own, the next use waits for another one of that name */
bool tt_window_is_mapped(struct tutti_window *, int rank); /* is that rank's memory mapped here, as far as is known? */
char *tt_window_hold(struct tutti_window *, int rank); /* it is mapped and still open, and stays so until let go of, microseconds later. NULL: no */
void tt_window_let_go(struct tutti_window *, int rank);
const char *tt_window_name(struct tt_job *, const struct tutti_window *); /* also of one that was closed meanwhile */

/* ---- collective.c: what all collectives share; barrier, broadcast, gather. allreduce.c is written in the same terms ---- */

struct tt_coll { /* one collective on its way: a state machine that messages and notifies push on */
	struct tt_list link;        /* in job->collectives, in the order started */
	struct tt_job *job;
	struct tutti *group;
	int n, me;                  /* how many take part, and which of them I am: all ranks in here count so */
	uint32_t seq;               /* the same on every rank */
	tutti_stat_kind kind;
	size_t bytes;               /* of this rank, to be counted */
	uint32_t print;             /* a hash of what was called with which arguments; the same on every rank */
	struct tt_request *request;
	int (*advance)(struct tt_coll *);  /* as far as it can go: 0 there is more to come, 1 ended, -errno */
	struct tt_visit *visit;     /* its stay on the board: what others write there pushes it on, too. NULL: only messages do */
	void (*release)(struct tt_coll *); /* deregisters and frees what is its own, once it is over: nothing lands afterwards */
	unsigned pending;           /* my ops that the wire still holds */
	bool over, failed, busy, released; /* over: advance has said so */
	bool undecided;             /* it has not chosen yet whether it visits a board, and may make one */
	bool untidy;                /* it may end while messages for it have not been taken */
	int err, culprit;           /* culprit: the member to name, or -1 */
	int notifier[2];            /* by lane: whose notifies count; 0 where none are expected */
	uint32_t notified[2];       /* how many came */
	uint32_t *heard;            /* instead of these two, where notifies may come from any rank: [2 * seat + lane] */
	void *taken;                /* what the last take gave, if it is to be freed */
	struct tt_timer stale;      /* a rank has given up and has not said yet because of whom */
};

enum { TT_LANE_DATA, TT_LANE_CREDIT };

enum { TT_TAG_OFFER = 0x7ffd0000, TT_TAG_VOTE, TT_TAG_READY = 0x7fff0000, TT_TAG_HERE = 0x7fff0002 }; /* tags below are the collective's own. HERE: all that it says is its print */

struct tt_coll *tt_coll_new(struct tutti *, size_t size, tutti_stat_kind, uint64_t x, uint64_t y); /* zeroed, struct tt_coll first; x, y:
                                                      * what all ranks must agree on. NULL: no memory */
bool tt_coll_is_next(const struct tt_coll *);  /* to decide: all before it have. So calls have their turns on a board in the order of their calls */
void tt_coll_gave_up(struct tt_coll *, int rank); /* that rank of the job has: because of whom is about to be told */
void tt_coll_give_up(struct tt_coll *, int err); /* all are told, and nobody is cut off for it */
void tt_coll_free(struct tt_coll *);           /* one that was never run */
int tt_coll_run(struct tt_coll *, tutti_op *); /* takes the gate, starts it, and waits if there is no op; frees it in the end */
void tt_coll_send(struct tt_coll *, int to, uint32_t tag, const void *, size_t); /* bytes are copied; at most tt_coll_piece() of them */
void tt_coll_send_parts(struct tt_coll *, int to, uint32_t tag, const void *, size_t, const void *, size_t); /* one message of two parts */
void tt_coll_answer(struct tutti *, int to, uint32_t seq, uint32_t print, uint32_t tag, const void *, size_t); /* for a call that is over here, to one
                                                      * that still waits in it; at most 128 bytes */
const void *tt_coll_take(struct tt_coll *, int from, uint32_t tag, size_t len); /* the bytes, until the next take or return from advance; NULL: not
                                                      * here yet. Another length than `len` fails the collective */
const void *tt_coll_take_any(struct tt_coll *, int *from, uint32_t tag, size_t *len); /* likewise, of any length; *from -1: of any rank */
int tt_coll_put(struct tt_coll *, int to, const struct tt_key *, uint64_t offset, const void *, size_t, unsigned lane, bool last);
int tt_coll_open(struct tt_coll *, int rank, void *base, size_t len, struct tt_region **); /* memory that this rank may put into. 1: not connected
                                                      * yet, ask again when pushed on; 0; -errno */
size_t tt_coll_piece(const struct tt_job *);
void tt_coll_message(struct tt_member *from, struct tt_pack *);
void tt_coll_notify(struct tt_member *from, uint32_t value);
uint32_t tt_coll_finished(const struct tutti *); /* in all before this number this rank has done its part */
void tt_coll_visit(struct tt_coll *, struct tt_visit *); /* NULL: no more */
int tt_coll_poll(struct tt_job *);             /* on every turn: how many went on */
int tt_coll_doze(struct tt_job *);             /* before a sleep: 1: not now */
void tt_coll_wake(struct tt_job *);             /* a member is up: whoever waited for that goes on */
void tt_coll_wake_soon(struct tt_job *);        /* from a later turn */
void tt_coll_member_down(struct tt_member *);  /* gone, or left: collectives that need it fail */
void tt_coll_begin_group(struct tutti *);      /* it is agreed on: what came early counts */
void tt_coll_end_group(struct tutti *);        /* ends those under way, forgets what came early */

/* ---- split.c: groups of ranks ---- */

struct tt_seat { /* a rank's place in a group */
	int rank;                   /* in the job */
	uint32_t epoch;             /* which life of it; a later one has no seat here. 0: not known yet */
	uint16_t slot;              /* how it calls this group in notify values */
	bool resigned;              /* it will not be in what comes of this group */
	bool voted;                 /* it had accepted what shall come of this group before it left */
	int out;                    /* it has left, or is gone, and will not sit here again: the first such seat is 1, the next 2. 0: it sits */
	int err;                    /* ... -ENOTCONN or what calls return ... */
	uint32_t finished;          /* ... but in all collectives before this one it has done its part */
};

/* ---- layout.c: which ranks of a group share a host's memory ---- */

struct tt_layout {
	int hosts, here;            /* how many, and on which of them I am. 0: not known yet */
	int *seats, *start;         /* seats of the group, host by host, each in their order: those of host h from start[h] to start[h + 1] */
	int fewest, most;           /* ranks on a host */
	uint32_t print;             /* differs where this does; not 0 */
};
int tt_layout_find(struct tutti *);            /* once. -ENOMEM */
void tt_layout_free(struct tutti *);
static inline int tt_layout_ranks(const struct tt_layout *l, int host) { return l->start[host + 1] - l->start[host]; }

struct tutti { /* what users hold: this process's place in a group of ranks, all of the job or a part */
	struct tt_list link;        /* in job->groups; first, see tutti_leave */
	struct tt_job *job;
	uint32_t uid;               /* names the group, the same on every rank; 0: not agreed on yet */
	uint16_t slot;              /* in job->group_at */
	int n, me;
	struct tt_seat *seats;      /* n of them */
	int *seat_of;               /* by rank in the job; -1: none */
	int outs;                   /* how many seats are out */
	uint32_t started;           /* how many collectives this rank has started here */
	bool any_failed;
	uint32_t failed;            /* ... the first of them */
	struct tt_model model;
	struct tt_layout layout;
	struct tt_board *board;     /* NULL: none, or nobody has asked yet */
	uint32_t splits;            /* how often this group was split: the same on every rank */
	uint32_t parent, birth;     /* the group that it was split from, and at which of its splits; 0: shrunk or grown */
	bool lineage;               /* all ranks of the job, or what shrinking and growing made of them: takes newcomers in */
	bool revoked;               /* not agreed on yet, and some rank's part in it has failed */
	bool retired;               /* another group has come of it */
	struct tt_agreement *agreement; /* on that one, while it is not there yet */
	struct { /* what this one came of, for those who have not heard yet */
		uint32_t uid;
		int n;
		struct tt_roll *roll;
	} origin;
};

int tt_group_new(struct tt_job *, int n, struct tutti **); /* with a slot, no uid, and empty seats */
int tt_group_make_seats(struct tutti *, int n);
void tt_group_clear_seats(struct tutti *);
int tt_group_heir(struct tutti *, int n, struct tutti **); /* takes its slot over, and retires it */
void tt_group_seat(struct tutti *, int i, int rank, uint32_t epoch, uint16_t slot);
void tt_group_resign(struct tutti *, int i);
void tt_group_free(struct tutti *);
struct tt_seat *tt_group_find(const struct tutti *, const struct tt_member *); /* NULL: none, or an earlier life's */
struct tt_member *tt_group_member(const struct tutti *, int i);
void tt_group_epoch(struct tt_member *, uint32_t epoch); /* it is known now whose seats its seats are */
void tt_group_seats_out(struct tt_member *, const struct tt_pack *bye); /* of one that is gone (NULL) or leaves: who counts on it ... */
void tt_group_revoke(const struct tutti *parent, uint32_t birth); /* my part in it has failed: nobody shall wait for me there */
void tt_group_revoked(struct tt_member *from, struct tt_pack *);

/* ---- agree.c: who is in the group from now on ---- */

void tt_agree_message(struct tt_member *from, struct tt_pack *);
void tt_agree_member_down(struct tt_member *);
void tt_agree_free(struct tutti *);
bool tt_agree_voted(const struct tutti *); /* has this rank accepted what shall come of it? */

/* ---- stats.c ---- */

int tt_stats_open(struct tt_job *);                   /* also listens to the signal. Without the gate, like close */
void tt_stats_close(struct tt_job *);
uint64_t tt_stats_start(struct tt_job *);             /* when something small begins, for tt_post.since; 0: it is not timed */
void tt_stats_request(struct tt_request *, int err); /* a one-sided operation has ended */
void tt_stats_post(struct tt_post *, int err);       /* something that the library sent has */
void tt_stats_call(struct tt_request *, tutti_stat_kind, size_t bytes, int err); /* a call on a table has */
void tt_stats_coll(struct tt_coll *);                /* a collective has; its `what` is the name of its kind */
void tt_stats_timed(struct tt_stats **, tutti_stat_kind, uint64_t since, size_t bytes); /* something that needed no request has ended */
void tt_stats_count(struct tt_stats **, tutti_stat_kind, size_t bytes); /* something that takes no time */
void tt_stats_read(struct tt_job *, int rank, tutti_stat_kind, double tick_ns, tutti_stat *);
const char *tt_stats_name(tutti_stat_kind);          /* one word */

/* ---- stats_dump.c ---- */

int tt_stats_listen(struct tt_job *);                 /* to the signal; without the gate, like deafen */
void tt_stats_deafen(struct tt_job *);                /* before the background thread's eventfd is closed */
bool tt_stats_asked(const struct tt_job *);          /* has a signal come that is not answered? No gate */
void tt_stats_look(struct tt_job *);                  /* the background thread: has a signal come? Lets go of the gate to write */

/* ---- late.c: ranks that join a job under way ---- */

#define TT_NEW_RANK UINT32_MAX /* in a HELLO: give me a number */
uint32_t tt_epoch_now(void); /* what a life that begins now is called: tt_before() orders them */

static inline bool tt_is_new_life(const struct tt_member *m, uint32_t epoch) /* of one that is known, or was gone when I came */
{
	return m->epoch ? tt_before(m->epoch, epoch) : m->state >= TT_LEFT && !m->job->node_list;
}

/* Until the table is here. Then others may have it, too, and use me, however far my joining thread has got. */
static inline bool tt_is_joining(const struct tt_job *job) { return !job->joined && !job->dealt; }

void tt_late_grow(struct tt_job *, int size);        /* so many ranks are known, at most job->capacity */
struct tt_member *tt_late_number(struct tt_job *);   /* the next rank, for a new one; NULL: not here, not yet, or no room */
void tt_late_take_number(struct tt_job *, int rank); /* mine */
void tt_late_admit(struct tt_member *);
void tt_late_told(struct tt_member *from, struct tt_pack *);
void tt_late_news(struct tt_member *from, struct tt_pack *);
int tt_late_settle(struct tt_job *);                 /* once all addresses are known */

/* ---- legs.c: runs of bytes between ranks, of which the larger collectives consist ---- */

struct tt_leg { /* its first four members are the collective's, and for the length of combined ones: whole elements */
	int other;                  /* the rank at the other end */
	uint32_t id;                /* the same at both ends; different from those of other legs between the two */
	char *at;                   /* what is sent; where it goes, or what it is combined with */
	size_t len;
	bool combine;               /* at both ends */
	bool scale;                 /* in: the end of an average */
	int after;                  /* out: so many legs in may bring what it sends */

	bool started, open;         /* START sent or taken; READY sent or taken */
	size_t done, said;          /* bytes sent or taken in; of these by message */
	uint32_t pieces, chunks, credits;
	struct tt_key key;
	struct tt_region *region;
	char *slots;
};
struct tt_legs {
	struct tt_coll *coll;
	size_t width;               /* of an element of legs that combine */
	tutti_type type;
	tutti_rule rule;
	struct tt_leg *in, *out;    /* taken in strictly in this order; sent in this order, as far as they may */
	int ins, outs, ins_done, outs_done;
	int ahead;                  /* how many legs may be under way, and how far sending may be ahead of what has come in */
	bool always;                /* empty legs travel too: only one end may think that it is empty */
};
int tt_legs_new(struct tt_legs *, struct tt_coll *, int max, int ahead); /* room for `max` in and out */
int tt_legs_advance(struct tt_legs *); /* like a collective's advance */
void tt_legs_free(struct tt_legs *);   /* on release */
size_t tt_legs_chunk(size_t len);      /* how a leg of that length is cut */

/* ---- board.c: what the ranks of a group on one host share; each host has one ---- */

enum {
	TT_BOARD_RANKS = 128,         /* at most: each maps each */
	TT_BOARD_FEW = 16,            /* for calls that do with rounds of messages: of more ranks, rounds are fewer than flags, and a job that needs no
	                               * more does not connect all to all */
	TT_BOARD_CHUNK = 256 * 1024,  /* bytes that are passed over it at once: they stay in the caches */
};
#define TT_STEP_QUIT UINT32_MAX

struct tt_note { /* of one call of one rank */
	_Atomic uint64_t flag;      /* the call, and how far this rank is in it */
	uint32_t print;
	uint8_t half;               /* where on its panel it begins */
	bool mapped, can;           /* others may map its vector; it has mapped theirs */
	struct tt_key key;          /* mapped: of the vector */
} __attribute__((aligned(2 * TT_CACHE_LINE)));
struct tt_panel { /* of one rank, in memory that the others map; it alone writes it */
	struct tt_note note[2];
	_Atomic uint32_t asleep __attribute__((aligned(2 * TT_CACHE_LINE))); /* a WAKE, please, with each step */
	_Atomic uint32_t done __attribute__((aligned(2 * TT_CACHE_LINE))); /* with all calls before this one */
	char half[2][2 * TT_BOARD_CHUNK] __attribute__((aligned(4096))); /* each: what others combine; what they take */
};
struct tt_fellow { /* of another rank */
	struct tt_panel *panel;     /* NULL: not mapped, or no more */
	struct tt_peer *peer;       /* through which it was mapped */
	const struct tt_note *note; /* of this call; NULL: not seen yet */
	struct tt_key key;          /* of its vector in this call ... */
	char *vector;               /* ... and where that is here */
	bool offered, voted;        /* while the board is made */
};
struct tt_board {
	struct tt_list link;        /* in job->boards */
	struct tutti *group;        /* NULL: closed */
	int n, me;
	const int *seats;               /* n of them, in the group */
	struct tt_fellow *fellows;      /* n of them; mine has the panel alone */
	void *memory;               /* my panel ... */
	struct tt_region *region;   /* ... registered with the net that leads to all others */
	uint32_t met_in;            /* in which call it is being made */
	bool meeting, offered, voted, able;
	bool known, open;           /* how that ended */
	bool dozing;                /* my panel says that I am asleep */
	unsigned turn, half;        /* which note is next, and which half */
	uint32_t last;              /* what `done` is to be once all others have seen my last call */
	int lost;                   /* 1 + a rank (of the job) whose panel is not there any more; 0: none */
	struct tt_list queue;       /* calls, in their order: the first has the board */
};
int tt_board_meet(struct tt_coll *);       /* like advance: 1 once it is known whether there is one */
struct tt_member *tt_board_member(const struct tt_board *, int i);
int tt_board_decide(struct tt_coll *, bool *visits); /* likewise: 1 once a call that uses boards of one host alone knows whether it visits one */
void tt_board_answer(struct tutti *, int seat, uint32_t call, uint32_t print); /* to an OFFER in a call that is over here */
void tt_board_tell(struct tt_coll *);      /* whoever asks how the making of it ended */
bool tt_board_open(const struct tutti *);  /* it is known, there is, and all ranks of the group are on it */
void tt_board_close(struct tutti *);
void tt_board_sweep(struct tt_job *, bool all); /* frees what was closed and nobody reads; all: once no link is left */
void tt_board_lost(struct tt_job *, const struct tt_peer *); /* it is about to be disconnected */

struct tt_note *tt_board_begin(struct tt_board *); /* my note for the next call: to be filled in before its first step */
void tt_board_step(struct tt_board *, struct tt_note *, uint32_t call, uint32_t step); /* I am so far; wakes who sleeps */
int tt_board_reached(struct tt_board *, int i, uint32_t call, uint32_t step); /* is that rank? 1, 0; -ECONNABORTED: it has given up */
void tt_board_done(struct tt_board *, uint32_t call); /* I read nothing of it any more */
void tt_board_doze(struct tt_board *, bool dozing);

/* ---- visit.c: a call on its host's board ---- */

enum {
	TT_VISIT_PIECE = 256 * 1024,  /* bytes that are read or stored at once: between two of them a rank looks whether it still may ... */
	TT_VISIT_PIECES = 4,          /* ... and after so many it leaves the engine to others */
};
struct tt_visit {
	struct tt_coll *coll;
	struct tt_board *board;
	struct tt_list turn;        /* in board->queue */
	struct tt_note *note;       /* NULL: its turn has not come */
	uint32_t step;
	int seen;                   /* ranks that have come to it */
	size_t bytes;               /* of a vector */
	int offers;                 /* so many ranks' vectors are to be mapped */
	bool met, some_offer, all_offer; /* all are here; some of these, all of these have given keys of their vectors */
	bool mapped;                /* all have mapped them all: fellows[].vector */
	bool busy;                  /* the call has more to do, and waits for nobody ... */
	bool away;                  /* ... or for others than the ranks here */
	unsigned chunk;             /* how often the halves of the panels were changed */
	struct tt_region *region;   /* my vector, for others to map; NULL: they cannot */
	struct tt_timer hail;
};
void tt_visit_begin(struct tt_visit *, struct tt_coll *, size_t bytes, int offers);
void tt_visit_end(struct tt_visit *, bool done); /* on release. done: else the others learn that I have given up */
bool tt_visit_poll(struct tt_visit *, bool dozing); /* may it go on, by what others have written? On every turn; dozing: and before a sleep, which
                                        * it has to tell them of first */
int tt_visit_check(struct tt_visit *); /* first, whenever pushed on: 1: go on; 0: some rank has given up; -ECONNRESET */
/* 1: yes, 0: wait; -errno */
int tt_visit_turn(struct tt_visit *);  /* is it my turn? Then offer, or fill my room, and go to the first step */
int tt_visit_meet(struct tt_visit *);  /* are all here, and is it known whether vectors are mapped? */
int tt_visit_all(struct tt_visit *);   /* have all come to my step? What they wrote before that can be read */
int tt_visit_still(struct tt_visit *); /* ... and nobody has given up since: what was read was meant for this call */

void tt_visit_offer(struct tt_visit *, void *vector); /* may others map it? By those whose vectors they are to reach */
void tt_visit_step(struct tt_visit *); /* I am one step further */
char *tt_visit_room(const struct tt_visit *, int i); /* the half of that rank's panel that it uses now */
void tt_visit_next_room(struct tt_visit *);          /* the other one from now on; all do so at the same step */
int tt_visit_store_begin(struct tt_visit *); /* may I store into all mapped vectors? 0: into none */
void tt_visit_store_end(struct tt_visit *);

struct tt_span { size_t at, len; }; /* bytes */
static inline struct tt_span tt_span_of(size_t bytes, int n, int i) /* the i-th of n, in whole lines: no two ranks write into one */
{
	size_t lines = (bytes + TT_CACHE_LINE - 1) / TT_CACHE_LINE, from = lines * (size_t)i / (size_t)n, to = lines * ((size_t)i + 1) / (size_t)n;
	size_t at = tt_min(from * TT_CACHE_LINE, bytes);

	return (struct tt_span){ at, tt_min(to * TT_CACHE_LINE, bytes) - at };
}

/* ---- blocks.c: blocks of a vector, combined each by its owner, brought from the owners to all; on one host ---- */

enum tt_blocks_stage { TT_BLOCKS_NONE,
	TT_BLOCKS_REDUCE,           /* my block is combined */
	TT_BLOCKS_EXCHANGE,         /* my block of each rank's vector is here; instead of the one before */
	TT_BLOCKS_GATHER,           /* all owners' blocks are here */
	TT_BLOCKS_LEAVE,            /* nobody reads my vector any more */
};
struct tt_blocks { /* zeroed, then the first part is the caller's: the same on all ranks of the host but for the places */
	char *vector;               /* all blocks, of `bytes` together: my share in each; or where each comes, mine is there */
	size_t bytes;
	int first, owners;          /* so many ranks of the host, from that one on, have a block each */
	size_t each;                /* bytes of a block; 0: shared out in whole lines (tt_span_of) */
	char *to;                   /* an owner: where its combined block goes, in place or apart from the vector; or the blocks of all ranks, in their order */
	size_t width;               /* of an element, ... */
	tutti_type type;
	tutti_rule rule;            /* ... and how they are combined. AVERAGE: of the ranks of this host */

	struct tt_visit visit;
	enum tt_blocks_stage stage;
	int phase, owner;
	size_t at;                  /* bytes of each block, or of the owner's, that are done */
};
void tt_blocks_begin(struct tt_blocks *, struct tt_coll *, enum tt_blocks_stage first); /* to gather alone, only the owners' vectors need be mapped */
void tt_blocks_end(struct tt_blocks *);   /* on release */
int tt_blocks_run(struct tt_blocks *, enum tt_blocks_stage); /* some of them, in their order, the last one always. Like advance: 1 once it is done */

/* ---- blockwise.c: a collective that goes through memory where its ranks share a host, and there is another way ---- */

struct tt_blockwise {
	struct tt_coll coll;
	struct tt_blocks blocks;
	enum tt_blocks_stage stage; /* what it does with them before it leaves */
	int (*begin)(struct tt_coll *);    /* the other way, when that is chosen; NULL: nothing is to be done */
	int (*advance)(struct tt_coll *);  /* ... like the collective's own */
	void (*release)(struct tt_coll *); /* ... also where it was never begun; NULL */
	bool chosen, visits;
};
struct tt_blockwise *tt_blockwise_new(struct tutti *, size_t size, tutti_stat_kind, uint64_t x, uint64_t y, const struct tt_blocks *,
                                      bool may_visit); /* like tt_coll_new; the rest is the caller's */

/* ---- allreduce.c; direct.c, hierarchical.c, doubling.c, rabenseifner.c and ring.c: the algorithms; model.c: which of them ---- */

struct tt_exchange { /* what an algorithm does: all-reduce among some ranks of a group */
	struct tt_coll *coll;
	const struct tt_algorithm *is;
	int n, me;
	const int *seats;           /* n of them, in the group; NULL: all ranks */
	char *buf;
	size_t count, width;        /* elements, bytes each */
	tutti_type type;
	tutti_rule rule;            /* AVERAGE: of all ranks in the group */
	void *state;                /* the algorithm's own, from begin() to release() */
};
static inline int tt_exchange_seat(const struct tt_exchange *x, int i) { return x->seats ? x->seats[i] : i; }

struct tt_direct { /* direct.c's own */
	struct tt_visit visit;
	int phase;
	size_t at;                  /* bytes of the vector, or of my slice, that are done */
};

struct tt_hierarchy { /* hierarchical.c's own */
	struct tt_blocks blocks;
	struct tt_exchange between; /* hosts; is NULL: others do that */
	int *seats, phase;
	bool begun;
};

struct tt_allreduce {
	struct tt_coll coll;
	struct tt_exchange all;     /* all.is NULL: not chosen yet */
	const struct tt_algorithm *forced; /* as set; NULL: auto */
	union {
		struct tt_direct direct;
		struct tt_hierarchy hierarchy;
	};
	struct tt_tune tune;
};
struct tt_algorithm {
	const char *name;
	int (*begin)(struct tt_exchange *);   /* 0 or -errno */
	int (*advance)(struct tt_exchange *); /* like a collective's */
	void (*release)(struct tt_exchange *); /* also after a begin that failed */
	size_t (*chunk)(size_t bytes, size_t width, int n, size_t piece); /* bytes that travel at once. NULL: in memory nothing does */
};
extern const struct tt_algorithm tt_direct, tt_hierarchical, tt_doubling, tt_rabenseifner, tt_ring;
int tt_hierarchical_leaders(const struct tt_layout *, size_t bytes); /* of each host: so many slices are exchanged between hosts */
int tt_power_below(int n); /* the largest power of two that is not above n, which is 1 or more */
int tt_allreduce_check(const struct tt_settings *);    /* is the setting one that there is? */
int tt_allreduce_explain(struct tutti *, size_t bytes, tutti_type, tutti_rule, char *text, size_t room); /* which algorithm and chunk, on which
                                                      * grounds, and the time that is expected; takes the gate itself */

bool tt_model_measures(const struct tt_settings *);
struct tt_model tt_model_of(const struct tutti *); /* as measured, or as assumed */
bool tt_model_needed(const struct tutti *, size_t bytes); /* once the layout is known */
int tt_model_learn(struct tt_allreduce *);  /* like advance: 1 once this rank knows the model */
void tt_model_tell(struct tt_allreduce *);  /* on each advance: rank 0 answers those who do not know it yet */
const struct tt_algorithm *tt_model_choose(const struct tt_model *, int n, size_t bytes, size_t piece);
uint64_t tt_model_predict(const struct tt_model *, const struct tt_algorithm *, int n, size_t bytes, size_t piece); /* nanoseconds */

/* ---- reduce.c: element-wise kernels. Any alignment; an output is the very same vector as an input, or apart from all ---- */

enum { TT_STREAM_FROM = 4 << 20 };     /* a vector of so many bytes, that is not an input, is better stored past the caches */

struct tt_many { /* of vectors, of the same count each */
	const void *const *from;    /* one or more; each is read once */
	void *const *to;            /* one or more; the result goes into all of them */
	int inputs, outputs;
	bool stream;                /* store past the caches, where all outputs lie alike within a line; else as usual */
};

size_t tt_type_size(tutti_type); /* 0: no such type */
/* Collectives, chunk by chunk in the cache: acc = acc op in; or to = a op b. AVERAGE adds. */
void tt_reduce(void *acc, const void *in, size_t count, tutti_type, tutti_rule);
void tt_reduce_to(void *to, const void *a, const void *b, size_t count, tutti_type, tutti_rule);
void tt_scale(void *acc, size_t count, tutti_type, unsigned n); /* the end of an AVERAGE: acc / n, of integers towards zero */
/* All-reduce on one host, where each rank sums its slice of all mapped vectors into all of them: ((in0 op in1) op in2) op ...,
 * computed in f32 for f16 and bf16, and rounded once at the end. AVERAGE divides by the number of inputs. */
void tt_reduce_many(const struct tt_many *, size_t count, tutti_type, tutti_rule);
/* For f32, f64, f16, bf16; numbers are rounded to the type, of f16 and bf16 to f32, before they are used.
 * to = by_a a + by_b b. Gossip: x = (1 - w) x + w y, in place or into the next buffer. A table's rule: y = 1 y + a x (axpy). */
void tt_blend(void *to, double by_a, const void *a, double by_b, const void *b, size_t count, tutti_type);
/* Elastic averaging, both sides in one pass: d = alpha (x - center); x = x - d; center = center + d. */
void tt_elastic(void *x, void *center, double alpha, size_t count, tutti_type);
const char *tt_reduce_use(int level); /* for tests: only these instructions, 0 the plainest. Their name; NULL: not on this processor */

/* ---- table*.c: parameter tables; table.h is what these files share ---- */

struct tt_feed;
struct tt_table_call;
void tt_table_take_join(struct tt_member *, struct tt_pack *); /* messages */
void tt_table_take_joined(struct tt_member *, struct tt_pack *);
void tt_table_take_clock(struct tt_member *, struct tt_pack *);
void tt_table_take_finish(struct tt_member *, struct tt_pack *);
void tt_table_take_switch(struct tt_member *, struct tt_pack *);
void tt_table_take_switched(struct tt_member *, struct tt_pack *);
void tt_table_push(struct tt_member *, struct tt_pack *);
void tt_table_pushed(struct tt_member *, struct tt_pack *);
void tt_table_push_rows(struct tt_member *, struct tt_pack *);
void tt_table_pull_rows(struct tt_member *, struct tt_pack *);
void tt_table_pull_fresh(struct tt_member *, struct tt_pack *);
void tt_table_pull_version(struct tt_member *, struct tt_pack *);
void tt_table_pulled(struct tt_member *, struct tt_pack *);
void tt_table_member_down(struct tt_member *, int err);    /* what waits for it ends */
void tt_table_held(struct tt_member *);                    /* a message */
bool tt_table_holds_too_long(const struct tt_member *, uint64_t *how_long); /* pushes of mine, for a save or a load */
void tt_table_file(struct tt_member *, struct tt_pack *);  /* messages of saving and loading */
void tt_table_filed(struct tt_member *, struct tt_pack *);
void tt_table_filer_down(struct tt_member *, int err);     /* who waits for it to save or load */
void tt_table_stop_all(struct tt_job *);                   /* nobody writes or reads files any more; without the gate */
void tt_table_member_gone(struct tt_member *);             /* nobody waits for its clock, or for what it would have pushed */
uint64_t tt_call_progress(const struct tt_table_call *);   /* another number whenever its servers have done something */
bool tt_call_waits_for(const struct tt_table_call *, int rank);
void tt_call_give_up(struct tt_table_call *, int err);     /* what has not been sent stays here; what is on its way comes back from servers that live */
bool tt_call_is_overdue(struct tt_table_call *);           /* it was given up, and nothing of it came back for a whole deadline */
void tt_table_free_all(struct tt_job *);                   /* without the gate, when no wire is left */

/* ---- draft.c: a file that others see whole or not at all ---- */

#define TT_DRAFT_MARK ".part-"         /* and 16 letters by chance, behind the name while it is being written */
struct tt_draft { /* fd -1, else zeroed: none */
	char *path, *part;
	int fd;
	uint64_t front, given, end; /* what was written last from front to back, without a gap: the disk has begun with it as far as `given` */
};
int tt_draft_begin(struct tt_draft *, const char *path, uint64_t size); /* size: bytes that it will have, for which room is made */
int tt_draft_write(struct tt_draft *, const void *bytes, size_t len, uint64_t at);
int tt_draft_publish(struct tt_draft *); /* synced, under its name, and the folder synced; it ends the draft, also when it fails */
void tt_draft_drop(struct tt_draft *);   /* without a trace; after the end it does nothing */

/* ---- tensors.c, tensors_write.c: safetensors files. No gate needed; several threads may read an open one ---- */

enum { TT_TENSOR_DIMS = 8, TT_TENSOR_BLOCK = 4 << 20 /* bytes of an array that have a checksum of their own */, TT_SUM_DIGITS = 16 };

struct tt_tensor { /* an array in a file. Who writes gives name, type and shape */
	const char *name;
	tutti_type type;
	int dims;
	uint64_t shape[TT_TENSOR_DIMS];
	uint64_t count;             /* elements */
	uint64_t at;                /* its first byte in the file */
	uint64_t block;             /* the number of its first checksum */
};
struct tt_metadata { const char *key, *value; }; /* a text about the file; keys that begin with tutti_ are Tutti's own */
struct tt_tensors { /* an open file */
	char *path, *text;          /* text: the header, which all names point into */
	int fd;
	uint64_t data;              /* where that begins in the file */
	struct tt_tensor *of;       /* by name, like the notes */
	size_t count;
	struct tt_metadata *notes;
	size_t note_count;
	const char *seal, *sums;    /* NULL: written by others, and not checked */
};
/* -EBADMSG: damaged, cut off or something else, and the sentence says where; -ENOTSUP: of a type that Tutti does not have. The header is
 * checked when a file is opened; the data when it is read. */
int tt_tensors_open(const char *path, struct tt_tensors **);
void tt_tensors_close(struct tt_tensors *); /* NULL is allowed */
const struct tt_tensor *tt_tensors_find(const struct tt_tensors *, const char *name);
const char *tt_tensors_note(const struct tt_tensors *, const char *key);
int tt_tensors_read(const struct tt_tensors *, const struct tt_tensor *, uint64_t first, uint64_t count, void *to); /* elements */

struct tt_tensors_writer {
	struct tt_draft draft;
	char *text;                 /* the header, to be written when all sums are known */
	size_t len;
	struct tt_tensor *of;
	size_t count, next;         /* next: is being written ... */
	uint64_t done;              /* ... and so many of its bytes are; */
	struct tt_sum sum;          /* of those of its last block */
};
int tt_tensors_begin(struct tt_tensors_writer *, const char *path, const struct tt_tensor *, size_t n, const struct tt_metadata *, size_t notes);
int tt_tensors_put(struct tt_tensors_writer *, const void *bytes, size_t len); /* the next ones: array by array as given, in pieces of any length */
int tt_tensors_end(struct tt_tensors_writer *);   /* the file is there and safe, or there is none */
void tt_tensors_drop(struct tt_tensors_writer *); /* when a put failed, or no end is wanted */

/* A text that says its own checksum, in 16 digits behind its opening: of itself with zeros there. */
bool tt_seal_put(char *text, size_t len, const char *opening);   /* false: it does not begin so */
bool tt_seal_holds(char *text, size_t len, const char *opening); /* true too where it does not begin so: it says nothing. The digits may be changed */
void *tt_grown(void *array, size_t n, size_t width); /* n elements, with room for another; doubles. NULL: no memory, and it is as it was */

/* ---- save.c, save_write.c: files of several writers that are one save, and their index. No gate needed ----
 *
 *   one rank: tt_save_next --> its number to all --> each: tt_save_shard, tt_tensors_begin .. end --> when all have: one rank: tt_save_commit */

struct tt_part { /* of an array: what one file has of it */
	char *name;                 /* of the whole */
	bool slice;                 /* else it is the whole */
	uint64_t from, to, rows;    /* rows from..to of so many: along the first dimension; or */
	bool share;                 /* ... share `from` of so many, of whatever length: what is `from` modulo their number */
	const struct tt_tensors *file;
	const struct tt_tensor *tensor;
};
struct tt_saved { /* an array of a save, put together */
	struct tt_tensor is;        /* name, type, shape and count of the whole; at and block say nothing */
	size_t first, parts;        /* its parts, in their order */
};
struct tt_save { /* an open save: stays readable when another one takes its place */
	char *path;                 /* of its index */
	struct tt_tensors **files;  /* all open: a descriptor each */
	size_t file_count;
	struct tt_part *parts;
	size_t part_count;
	struct tt_saved *of;        /* by name */
	size_t count;
};
int tt_save_next(const char *folder, const char *name, uint64_t *generation); /* one that no file there has */
int tt_save_shard(const char *folder, const char *name, uint64_t generation, int i, int shards, char **path); /* of the i-th of so many; malloc'd */
void tt_slice_name(char *room, size_t size, const char *name, uint64_t from, uint64_t to, uint64_t rows); /* under which a part is written */
void tt_share_name(char *room, size_t size, const char *name, uint64_t i, uint64_t shares);
int tt_save_commit(const char *folder, const char *name, uint64_t generation, int shards); /* are all there and do they make whole arrays? Then
                                                      * the index names them, and the files of earlier saves are removed. Else the save before it stays */
int tt_save_open(const char *folder, const char *name, struct tt_save **); /* by its index; or NAME.safetensors alone, by others */
void tt_save_close(struct tt_save *);               /* NULL is allowed */
const struct tt_saved *tt_save_find(const struct tt_save *, const char *name);
const char *tt_save_note(const struct tt_save *, const char *key); /* of the first file that has it */
int tt_save_read(const struct tt_save *, const struct tt_saved *, uint64_t first, uint64_t count, void *to); /* elements of the whole */
uint64_t tt_save_block_end(const struct tt_save *, const struct tt_saved *, uint64_t at); /* of the block with that element, which is read as a whole */

/* ---- updater.c: a table's rule and its state, for one shard ----
 *
 * The server opens an updater for each shard, begins each push once, and applies it range by range, as the chunks come:
 *
 *   tt_updater_begin(u, worker, options, &push)       checks the options, counts t
 *   tt_updater_apply(&push, first, count, &piece)     for each range, while it is in the cache
 *
 * apply is for any thread, on ranges that do not overlap those of other threads, and may not fail. All else is for one thread at a
 * time: the server's with the table's gate held. A push under way outlasts a join, and a resize if it is made to follow.
 * State is planar: each array holds one number (f64 of f64, else f32) for each element of the shard. */

enum { TT_UPDATE_STATES = 4 };         /* arrays of state at most, of one worker */

/* What a rule's equation is made of, worked out once a push: see the rules in updater.c. */
#define TT_FACTORS(X) \
	X(scale) X(decay) X(shrink) X(rate) X(keep) X(fresh) X(keep2) X(fresh2) X(root) X(epsilon) X(lambda) X(per_alpha) X(beta) X(l1) X(l2)
#define TT_FACTOR(name) double name;
struct tt_factors {
	TT_FACTORS(TT_FACTOR)
};
#undef TT_FACTOR

struct tt_updater;
struct tt_push {                       /* one push to this shard, from begin to its last range */
	const struct tt_updater *updater;
	tutti_update options;           /* as they hold for this push */
	uint64_t t;
	struct tt_factors factors;
	void *state[TT_UPDATE_STATES];
};
struct tt_piece {                      /* all of them at element `first` already; any alignment */
	void *to;                       /* where the new values go: w itself, or the other copy of the shard */
	const void *w, *d;              /* to and w are one vector or apart, and d is apart from both */
	void *out;                      /* what goes back to the worker, of a rule that has that; NULL: nothing wants it */
};
struct tt_state {
	const char *name;               /* "m", say; for files, so it stays as it is */
	int worker;                     /* -1: of all workers */
	void *at;
	size_t bytes;
};

int tt_updater_check(const tutti_updater *, tutti_type); /* is there such a rule, for this type, with such defaults? */
int tt_update_check(const tutti_updater *, const tutti_update *); /* a worker's check of a push before it travels; NULL: all as the table has it */
int tt_updater_open(const tutti_updater *, tutti_type, size_t count, int workers, struct tt_updater **); /* checks too; all state is 0 */
void tt_updater_close(struct tt_updater *);  /* NULL is allowed */
int tt_updater_join(struct tt_updater *, int workers); /* there are so many workers now, if that is more; then `assigned` for each new one */
int tt_updater_resize(struct tt_updater *, size_t count); /* the shard has so many elements now; state of new ones is 0. Nothing is copied */
void tt_updater_follow(struct tt_push *);    /* a push under way, after a resize */
void tt_updater_assigned(struct tt_updater *, int worker, const void *w, size_t first, size_t count); /* values were set (worker -1), or that worker
                                                      * has these values now: state that follows from values, DCASGD's b and FTRL's z, does. w is that of
                                                      * element `first`. Not for values that were loaded with their state */
int tt_updater_begin(struct tt_updater *, int worker, const tutti_update *, struct tt_push *); /* -EINVAL: such options; no such worker */
void tt_updater_apply(const struct tt_push *, size_t first, size_t count, const struct tt_piece *);
void tt_updater_spread(struct tt_pool *, const struct tt_push *, size_t first, size_t count, const struct tt_piece *); /* the same, by its
                                                      * threads, too */
bool tt_updater_gives_back(const tutti_updater *); /* has the rule something for `out`? */
/* To save and to load: the arrays there are, in an order that joins do not change but add to, and t. */
int tt_updater_states(const struct tt_updater *);
struct tt_state tt_updater_state(const struct tt_updater *, int i);
uint64_t tt_updater_pushes(const struct tt_updater *);
void tt_updater_set_pushes(struct tt_updater *, uint64_t t);
const char *tt_update_name(tutti_update_rule); /* "adam"; NULL: no such rule */
#endif
