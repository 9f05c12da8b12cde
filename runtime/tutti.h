/* tutti.h - keep the copies of a model together while many processes train it.
 *
 * Each comment says what a function does, its arguments, what it returns, when it blocks, errors. The man pages have
 * more: tutti(3) is the overview, and `man tutti_put` finds the page of tutti_put.
 *
 * Units. Lengths and offsets are bytes, counts are elements, times are milliseconds.
 *
 * Returns. Every int function returns 0 (or what it counts) or a negative errno; tutti_why() has the sentence.
 *   -EINVAL        a bad argument or setting
 *   -EINPROGRESS   a wait for a started operation has ended before the operation
 *   -EINTR         tutti_on_wait: the program has interrupted the wait
 *   -ETIMEDOUT     given up, and nobody is gone: a rank that lives has not done its part in TUTTI_TIMEOUT
 *   -ECONNRESET    a rank went down or was evicted
 *   -ENOTCONN      a rank has left the job
 *   -ECANCELED     this rank has cancelled the operation
 *   -ECONNABORTED, -EBADMSG   a collective: another rank has cancelled it; or the ranks called different ones
 *   -EAGAIN        1,024 started collectives are under way in the group
 *   -ENOENT        a window or table that its owner did not open in time
 *   -ESTALE        a window or table that its owner has closed; a group that was shrunk or grown; another thread of
 *                  this process closes the window, table, ... of the call
 *   -EHOSTDOWN     too few ranks of a group are left
 *   -ERANGE        bytes outside a window
 *   -EMSGSIZE      a message is longer than the memory of its receive
 *   -EEXIST        a window or table of that name is open, or memory is registered
 *   -EMFILE        too many windows, groups or files are open
 *   -ENOMEM        no memory
 *   -ESHUTDOWN     this process has left the job, or leaves it: by tutti_leave, or by a signal
 *   -ECHILD        a fork's child calls, which may only leave or exec
 *   -ENODEV        no such GPU
 * Joining adds -EADDRINUSE, -EHOSTUNREACH, -EACCES (the secret), -EPROTO (version or job), -EPERM (refused by rank 0),
 * -ENOTSUP (not in this build) and what sockets and files may say. Further errors of groups and tables stand with their
 * functions.
 *
 * Death. A process that ends is known at once. A rank that gives no sign of life for TUTTI_SILENCE (10 s) is
 * evicted from the job: all ranks learn of that, and calls that need the rank end with -ECONNRESET. A rank that
 * computes or waits for its disk gives signs of life: a thread of the library answers for the rank. Two other things
 * evict a rank: tutti_group_evict; and memory of an operation that was given up, if the rank holds that memory and
 * neither gives the memory back nor moves bytes for TUTTI_SILENCE.
 *
 * Waiting. With a NULL `tutti_op *` a function waits until the operation has ended. With an op the function only starts
 * the operation: op and memory belong to the library until tutti_cancel returns, or tutti_wait or tutti_test anything
 * but -EINPROGRESS. An operation waits TUTTI_TIMEOUT (10 minutes) from its start (on a table: from the last progress of
 * a server), or as long as tutti_group_timeout says, for ranks that live. After TUTTI_SILENCE a line in the log says
 * which ranks it waits for. When its time has passed the operation ends with -ETIMEDOUT: nobody is evicted, and the
 * memory is the caller's again.
 *
 * Interrupting. A program that must react to something besides Tutti, as an interpreter to Ctrl-C, gives a thread a
 * hook, by tutti_on_wait. A call that waits for another process asks its thread's hook every 20 ms, and returns -EINTR
 * when the hook says so:
 *   - tutti_wait, tutti_wait_all, tutti_wait_any, tutti_wait_notify, and calls on a controller or a queue: nothing is
 *     lost or cancelled. The operation runs on, and the program may call again.
 *   - a function with a NULL `tutti_op *`: the operation is cancelled, as by tutti_cancel; the memory is the caller's
 *     again. If the operation ends well in that moment, the function returns 0.
 *   - tutti_group_shrink and tutti_group_grow: the program may call again.
 *   - tutti_leave: hangs up at once.
 *   - other functions say what holds after -EINTR.
 * tutti_cancel, the functions that close or free something, and threads of the library ask no hook.
 *
 * NULL. A NULL job, group, window, table or op, a NULL place for a result, and NULL memory of more than 0 bytes are
 * -EINVAL, and nothing has happened. Functions without a result ignore NULL.
 *
 * Growth. Structs end with words named `reserved`, which are 0: later releases make members of them, and 0 means what
 * the library did before. A function that takes such a struct returns -EINVAL for any other value there, and does
 * nothing. Programs take a struct from the function that returns its defaults, or zero it, and set members.
 *
 * Threads. Any thread may call with any job. Collectives must be started in the same order on every rank.
 *
 * Closing. The program closes or frees, once each, what a function has opened or given: groups, windows, tables,
 * gradients, elastic averages, centers, gossips, publishers, readers, controllers, queues and operations, in any order,
 * before tutti_leave or after it, also from atexit. tutti_leave ends the job pointer, and what tutti_job gave; other
 * handles keep a little memory until their own close. Calls with a handle whose job was left return -ESHUTDOWN.
 * Other threads may wait meanwhile. A close ends waits that are no operations on the handle (for a notify, a batch, a
 * request, an answer, a lock; on a group, for ranks that are to open or to split): they return -ESTALE. tutti_leave
 * ends such waits on all handles: they return -ESHUTDOWN. Operations go on, each in its own time. Close and leave
 * return when no other thread is inside a call on what they end. A function that the library calls may not close the
 * handle of that call, nor leave the job. In a fork's child closing does nothing. */
#ifndef TUTTI_H
#define TUTTI_H
#include <stddef.h>
#include <stdint.h>
#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

/* This number changes with each release that a program built with an older tutti.h cannot use. */
enum { TUTTI_ABI = 1 };

typedef struct tutti tutti;               /* this process's place in a group of ranks, all of a job or a part of it;
                                           * several jobs may live in one process */
typedef struct tutti_window tutti_window; /* named memory: mine, and everyone's of that name */
typedef struct tutti_op {
	uint64_t opaque[36];
} tutti_op;                               /* a started operation, in the caller's storage. Zeroed it is idle */

/* BOOL is a byte: 0 is false, all else is true; results are 0 or 1. I8, U8 and BOOL are for collectives, queues,
 * gossip and publications. */
typedef enum tutti_type {
	TUTTI_F32, TUTTI_F64, TUTTI_F16, TUTTI_BF16, TUTTI_I32, TUTTI_I64, TUTTI_I8, TUTTI_U8, TUTTI_BOOL,
} tutti_type;
/* BAND, BOR and BXOR combine the bits of integers. BOOL takes all rules but AVERAGE: SUM, MAX and BOR are "or";
 * PRODUCT, MIN and BAND are "and"; BXOR is true for an odd number of true values. */
typedef enum tutti_rule {
	TUTTI_SUM, TUTTI_AVERAGE, TUTTI_PRODUCT, TUTTI_MAX, TUTTI_MIN, TUTTI_BAND, TUTTI_BOR, TUTTI_BXOR,
} tutti_rule;

/* The config of a job. A member that is zero or NULL is taken from the environment, else it has the default. */
typedef struct tutti_config {
	const char *file;         /* a config file, see tutti.conf(5) */
	const char *node;         /* which of the file's nodes this process is */
	const char *transports;   /* "shm,verbs,tcp": which may be used, best first, separated by commas */
	const char *secret;       /* the job's shared secret, at least 16 bytes */
	int silence_ms;           /* after which a rank that gives no sign of life is evicted; or TUTTI_NEVER */
	int timeout_ms;           /* how long an operation waits for ranks that live; or TUTTI_NEVER */
	int rank, ranks;          /* with `boot`: this process's rank, or TUTTI_NEW_RANK, and with how many ranks the
	                           * job starts */
	const char *boot;         /* "HOST:PORT" where rank 0 listens, and behind commas where others do, for one that
	                           * joins when rank 0 is gone; NULL: rank and ranks are not looked at */
	const char *job;          /* the job's name, of 1 to 64 bytes: ranks with different names refuse each other.
	                           * NULL: TUTTI_JOB, else the name that the launcher gives, else none */
	int newcomers;            /* of rank 0: how many ranks may be in the job at a time beside those that it starts
	                           * with; TUTTI_NEVER: none, and a job of one then does not listen at `boot`; 0: half
	                           * as many, and at least 64 */
	uint64_t reserved[6];
} tutti_config;

enum {
	TUTTI_NEW_RANK = -1,      /* for `rank`: join a job under way; the job gives the number */
	TUTTI_NEVER = -1,         /* for times: no limit */
};
/* Returns the config of a program that sets nothing. The program sets the members that differ. */
tutti_config tutti_config_defaults(void);

/* ---- the job ---- */

/* Makes this process a rank of a job, and gives the group of all ranks. With a NULL config everything comes from the
 * launcher: TUTTI_RANK, TUTTI_SIZE and TUTTI_BOOT (as `tutti run` sets them), torchrun's variables, or TUTTI_CONFIG;
 * with none of these the process is a job of one, which nobody can join.
 * Blocks until every rank has joined (with a node list: not at all). -ETIMEDOUT after TUTTI_TIMEOUT. A connection that
 * ends without a word, as of a job that is about to leave, is made again until then. A refusal is final. If rank 0 goes
 * down after it has accepted this rank, this rank looks for a new rank 0 for TUTTI_SILENCE, then returns -ECONNRESET.
 * -EINTR: nothing is left; the program may call again, except under PMIx or PMI2, which serve a process once
 * (-ENOTSUP).
 * Raises this process's soft limit on open files to the hard limit, at most to 524,288.
 *
 * A job may begin with one rank: rank 0 of `ranks` 1 listens at `boot`, and returns -EADDRINUSE at once if another
 * process does. While a job runs, a rank that went down or has left may join again (rank 0 as a new one), and new
 * ranks too (TUTTI_RANK=new or TUTTI_NEW_RANK), as many at a time as tutti_config.newcomers says; not with a node
 * list. A new rank that finds no job, or no room, tries until TUTTI_TIMEOUT, and returns -ETIMEDOUT or -EPERM: it
 * never begins a job of its own. The number of a new rank that has left or died is given away again.
 *
 * A rank that joins a job under way can use all windows at once, with tutti_job. For collectives IT IS A GROUP OF ITS
 * OWN, of one rank, until the others call tutti_group_grow: a program that does not ask tutti_late goes on alone. */
int tutti_join(const tutti_config *, tutti **job); /* PMIx's own calls ask no hook */
/* Leaves the job, whichever of its groups is named: ends the waits of other threads (see "Closing" above) and receives
 * that no message has matched, finishes what else was started, tells the others, and frees the job. The job's own
 * handles, which tutti_join and tutti_job gave, end with this call, and no later call may take them. NULL is allowed,
 * and so is a group of the program's own (from tutti_group_split, say) whose job was left before. Blocks until what was
 * started has ended, each operation in its own time, and the others have hung up, for about TUTTI_SILENCE at most. */
void tutti_leave(tutti *); /* the thread's hook ends the wait: this rank hangs up at once */
/* From now on this signal (SIGTERM, say) makes this process leave the job in order, by itself. New calls end with
 * -ESHUTDOWN; what was started is finished, as far as it ends within TUTTI_SILENCE; the others are told; then the
 * signal does what it did before (by default it ends the process). A second signal does so at once. -EINVAL: no such
 * signal; -ENOTSUP on sim. */
int tutti_leave_on(tutti *, int signal);
/* 1: this signal (SIGTERM, say) has come since the first such call, and asks the program to save what it needs, and to
 * leave; 0. From the first call on that is its only effect; a second signal does what it did before. Each rank knows of
 * its own signals alone: ranks that save together agree first, by tutti_allreduce with TUTTI_MAX. Errors as above. */
int tutti_leave_asked(tutti *, int signal);
int tutti_rank(const tutti *);        /* 0 .. size - 1 in this group; of tutti_job: in the job, for a new rank more */
int tutti_size(const tutti *);        /* ranks of this group; of tutti_job: with how many the job was started */
int tutti_local_rank(const tutti *);  /* among the job's ranks on this host */
int tutti_local_size(const tutti *);
/* Returns the job's name: config.job, TUTTI_JOB, or the launcher's; "": none. Valid until the job is left. NULL of
 * NULL. */
const char *tutti_job_name(const tutti *);
int tutti_late(const tutti *);        /* 1: this rank has joined a job under way; 0 */
/* Pins the calling thread to the i-th of the cores that are this rank's, and to the first again after the last; with i
 * -1 to all of them. TUTTI_PIN says which cores a rank has. Under "none", and where there are more ranks than cores,
 * nothing is pinned. -EINVAL and others if the kernel refuses. */
int tutti_pin(tutti *, int i);

/* Gives page-aligned, zeroed memory that every transport uses without a copy, other ranks of this host too. gpu -1:
 * host memory; from 0 up: memory of that NVIDIA GPU of this process (CUDA's ordinal), in units of 2 MiB. -ENODEV: no
 * such GPU, or no driver. */
int tutti_alloc(tutti *, size_t bytes, int gpu, void **memory);
void tutti_free(tutti *, void *memory); /* also after the job was left, and with NULL for the job */
/* Says that memory of the program stays where it is until tutti_unregister: calls with any part of it pin it for the
 * adapter once, and not in each call. `memory`: `bytes` bytes of the host, from malloc or PyTorch say, or of a GPU.
 * tutti_unregister takes the address that was registered. Call it before the memory is freed. Calls under way keep
 * their pins until they end. tutti_leave unregisters all. Transports without pins (shm, tcp) only note the range. A
 * fork's child has no registered memory. Errors of tutti_register: -EEXIST: part of the memory is registered; -EINVAL:
 * no bytes, or memory of tutti_alloc, which needs no registering; -ENOMEM: the system lets this process lock no more
 * ("ulimit -l"). Of tutti_unregister: -ENOENT: no registered memory begins there. */
int tutti_register(tutti *, void *memory, size_t bytes);
int tutti_unregister(tutti *, void *memory);
/* The calling thread's work on a GPU is in `stream` (a CUstream or cudaStream_t) from now on: calls of this thread with
 * memory of the stream's GPU take the memory as it is once the stream has got so far. NULL, as at first: in the legacy
 * stream of the memory's GPU. What calls deliver is there when they or their wait return; no stream waits for it.
 * -EINVAL: a stream of a context that is not primary. -ENODEV: this process does not use CUDA. */
int tutti_stream(tutti *, void *stream);

/* ---- groups ----
 *
 * Calls with a `tutti *` take the ranks of that group, from 0 up: collectives, windows, tables, stats. Collectives of
 * one group do not wait for those of another one. Memory, event_fd, and the names of windows and tables are the whole
 * job's, whichever of its groups is named. Sentences, and tutti_change, name ranks by their numbers in the job. */

/* Returns the handle of the whole job, of any of its groups. Its ranks are the job's, also those that join late. For a
 * rank that the job was started with, it is what tutti_join gave, the job's first group. A rank that has joined late is
 * not in that group: windows, tables, tutti_group_... and tutti_stats take the handle, while collectives, split, shrink
 * and grow return -EINVAL. NULL of NULL. */
tutti *tutti_job(tutti *);
/* A collective. Ranks that give the same color, from 0 up, are a group, ordered by key, then by rank. A rank with a
 * negative color is in none, and gets NULL in *part. -EMFILE: 1024 groups are open here; -ECONNABORTED: on another
 * rank. */
int tutti_group_split(tutti *, int color, int key, tutti **part);
/* Makes a group of n listed ranks. The listed ranks call it, and no other rank does. ranks: ranks of the group `at`, in
 * the order in which the new group numbers them; the same list on all of them. at may be what tutti_job gives, so that
 * ranks that have joined late can be listed, too. name: 1 to 200 bytes, names this call among others that go on at the
 * same time. Two calls that share a rank need different names, unless all listed ranks have ended the first call. The
 * new group begins with the timeout of `at`.
 * Blocks until all listed ranks have called it, for as long as an operation.
 *   -EBADMSG: two ranks gave different lists under one name; the sentence has both lists, and all ranks that hear of
 * each other get this error. -ETIMEDOUT: the sentence names the ranks that have not called; the call may be repeated.
 * -ECONNRESET, -ENOTCONN: a listed rank went down, or has left. -EINTR: tutti_on_wait; the call may be repeated.
 * -EINVAL: a rank is listed twice, is no rank of `at`, or this rank is not listed. -EALREADY: another thread makes a
 * group of that name. -EMFILE: 1024 groups are open here. */
int tutti_group_of(tutti *at, const int *ranks, int n, const char *name, tutti **group);
/* The way on after a collective has failed with -ECONNRESET, -ENOTCONN or -ETIMEDOUT. All ranks that are left of the
 * group call it. They agree on who they are, although some may die meanwhile, and go on in *left, in the old order. The
 * old group is of no more use but to be freed.
 * Blocks as long as an operation (of TUTTI_NEVER: 10 minutes) for ranks that live. Those that have not called by then
 * are left out, and live.
 *   -EHOSTDOWN: of the ranks that have not left in order fewer than half are here (or half, without the first of them),
 * and the others may go on elsewhere; TUTTI_MINORITY=yes lets these ranks go on. -ECONNRESET: the others went on
 * without this rank. -ETIMEDOUT: not enough ranks have called, and this rank may call again. -ESTALE: called before.
 * -EINTR: this rank may call again, and the others wait for it.
 * Source: Paxos, Lamport 1998. */
int tutti_group_shrink(tutti *, tutti **left);
/* Does the same, and takes in the ranks that have joined since (tutti_late), behind the others. These call it too, with
 * what tutti_join gave them, and are waited for like the others. -ETIMEDOUT on such a rank: the others have not called
 * it. */
int tutti_group_grow(tutti *, tutti **grown);
/* Sets how long operations of this rank in the group wait for ranks that live: ms from 10 up, TUTTI_NEVER, or 0: as the
 * job has it (TUTTI_TIMEOUT). Of a collective the shortest timeout among the ranks decides. Windows and tables keep the
 * timeout that the group has when they are opened; groups that come of it begin with the same. */
int tutti_group_timeout(tutti *, int ms);
/* Expels this rank of the group from the job, as if it had died: calls that need it end with -ECONNRESET, and the rank
 * learns by whom it was evicted, and why. Of two ranks that evict each other the lower one's word stands. Returns 0
 * also if the rank was gone. -EINVAL: no such rank, or this rank itself. */
int tutti_group_evict(tutti *, int rank, const char *why);
int tutti_group_member(const tutti *, int i);         /* the rank in the job of this group's rank i; -EINVAL */
int tutti_group_rank(const tutti *, int rank);        /* the rank in this group of the job's `rank`; -ENOENT */
/* Ends a group, after what was started there, and frees it. A window or table that was opened with the group keeps its
 * numbering; gradients and elastic averages of the group return -ESTALE until they are regrouped. Does nothing to what
 * tutti_join and tutti_job give; NULL is allowed. Blocks until the group's collectives have ended, each in its own
 * time. */
void tutti_group_free(tutti *);

/* Adds a node to this process's list of nodes, if the job was started from a config file with such a list. The node
 * is the process named `name`, and listens at host and port, as in the file; its own list has it. All processes add
 * the same nodes in the same order, each before it uses the node: the list's order is the numbering. (With
 * TUTTI_LISTS=own each process has its own list and numbering, and adds what it likes: tutti.conf(5).) A node that was
 * not in a process's first list has no seat in that process's first group, and takes part in windows, gossip and all
 * else that is no collective. A node that is in the list already, or was removed, keeps its number. Does not block.
 * Returns the node's rank. -EEXIST: that name has another address; -ENOSPC: as many as TUTTI_NEWCOMERS were added;
 * -EINVAL: the job has no list of nodes, or a bad argument. */
int tutti_node_add(tutti *, const char *name, const char *host, int port);
/* Removes a node from this process's list: its process is evicted from the job (as tutti_group_evict does), and refused
 * here until tutti_node_add names the node again. Does not block. -ENOENT: no such node; -EINVAL: as above, or this
 * process itself. */
int tutti_node_remove(tutti *, const char *name);

typedef enum tutti_what { TUTTI_JOINED, TUTTI_LEFT, TUTTI_GONE } tutti_what; /* GONE: went down, or was evicted */
typedef struct tutti_peer {
	int rank;            /* in the job */
	char host[96];       /* the name of its host; "": not known */
	char address[96];    /* where it listens for TCP, "10.0.0.7:4000"; "": it does not */
	char transport[16];  /* over which these two talk: "shm", "tcp"; "self": it is this rank; "": not used yet */
	char why_not[300];   /* the sentence why that is not the first of TUTTI_TRANSPORTS; "": it is */
	double alive_s;      /* seconds since it joined, by both hosts' clocks; 0: not known, or it is gone */
	tutti_what state;    /* JOINED: it is there, as far as is known */
	int local;           /* 1: it runs on this host; 0: on another host; -1: not known yet */
	uint64_t reserved[4];
} tutti_peer;
/* Gives what this rank knows of another rank of the group, of its present life. Connects to nobody. -EINVAL: no such
 * rank. */
int tutti_group_peer(tutti *, int rank, tutti_peer *);

typedef struct tutti_change {
	int rank;                                     /* in the job */
	tutti_what what;
	int err;                                      /* what calls that need it return from now on; JOINED: 0 */
	char why[200];                                /* the sentence */
	uint64_t reserved[4];
} tutti_change;
/* Notes who comes and goes, in the whole job. Returns a descriptor that is readable while there are changes that nobody
 * has taken, or -errno. The first changes, in the order of the ranks, are ranks that went before, and ranks that joined
 * the job under way and are in no group yet. Of more than 256 that nobody takes the oldest are lost. tutti_leave closes
 * the descriptor.
 * If `changed` is not NULL a thread of the library's own takes the changes, soon after: `changed` may make any call but
 * tutti_leave, and should not take long. A call of `changed` may go on when another watch has returned: arg stays until
 * the job is left. */
int tutti_group_watch(tutti *, void (*changed)(const tutti_change *, void *arg), void *arg);
/* Takes the oldest change. Returns 1; 0: there is none. -EINVAL: nobody watches. */
int tutti_group_next(tutti *, tutti_change *);

/* ---- windows ----
 *
 * Each rank opens a name with memory of its own, and reaches the memory of the others under the same name. The name is
 * the job's: ranks meet in a window also if they open it with different groups. `rank` is a rank of the group that this
 * rank has opened the window with. The first use of a rank's window waits until that rank has opened it. Bytes written
 * with put are visible to the owner after it has seen a notify sent later by the same rank. An aligned 8-byte put or
 * get is one store or load; anything longer may be seen in pieces. Memory of a GPU may be seen in pieces, whatever the
 * length. */

/* Opens a name of 1 to 200 bytes with `bytes` bytes at base, 0 too. Local: does not block. base may be memory of a GPU
 * that tutti_alloc gave. -EEXIST; -EMFILE: 2047 are open; -ENOTSUP: other memory of a GPU. */
int tutti_window_open(tutti *, const char *name, void *base, size_t bytes, tutti_window **window);
/* Ends a window: then the memory is the caller's, and later uses by others get -ESTALE. NULL is allowed. Blocks until
 * what this rank has started there has ended, and no other rank puts or gets there any more; evicts a rank that does
 * not stop. */
void tutti_window_close(tutti_window *);
/* Gives the length of a rank's window in *bytes. Blocks as a put does until that rank has opened the window; of this
 * rank's own window it does not block. -ENOENT, -ESTALE; *bytes is then left alone. */
int tutti_window_bytes(tutti_window *, int rank, size_t *bytes);
/* Returns that rank's bytes as a plain pointer, until the window is closed here or there: in shared memory, of memory
 * of tutti_alloc, after a first put or get. Else NULL, also for memory of a GPU. */
void *tutti_window_map(tutti_window *, int rank);
/* Copy to, and from, `offset` in that rank's window. src and dst may be any memory of a GPU. -ERANGE, -ENOENT, -ESTALE;
 * of a GPU also what has broken it. */
int tutti_put(tutti_window *, int rank, size_t offset, const void *src, size_t bytes, tutti_op *);
int tutti_get(tutti_window *, int rank, size_t offset, void *dst, size_t bytes, tutti_op *);
/* Adds to an aligned uint64_t, atomic with the owner's own atomics, and gives what was there before; old may be
 * NULL. -ENOTSUP: the window is memory of a GPU. */
int tutti_add(tutti_window *, int rank, size_t offset, uint64_t value, uint64_t *old, tutti_op *);
/* A put, after which the receiver counts one more notify in slot 0 .. 4095; bytes may be 0. */
int tutti_put_notify(tutti_window *, int rank, size_t offset, const void *src, size_t bytes, int slot, tutti_op *);
/* Blocks until at least `count` notifies have come in `slot` from `rank` (-1: from any of the job) since this window
 * was opened. timeout_ms -1: TUTTI_TIMEOUT, or the group's when the window was opened; 0: only look. -ETIMEDOUT;
 * -ECONNRESET or -ENOTCONN when that rank is gone. */
int tutti_wait_notify(tutti_window *, int rank, int slot, uint64_t count, int timeout_ms);

/* ---- started operations ----
 *
 * Zero a tutti_op before its first use: the op is idle then, and tutti_wait returns 0. Do not copy or move it while an
 * operation runs in it. Another operation may be started in it when the first has ended; before that the start is
 * refused: -EINVAL. An operation keeps its result until its job is left: from then on these functions return -EINVAL
 * for it. They also do so for NULL. timeout_ms bounds the wait alone, which cancels nothing; -1: until the operation
 * ends. */

/* Returns 0, the operation's error, or -EINPROGRESS: it has not ended, and op and memory stay the library's. */
int tutti_wait(tutti_op *, int timeout_ms);
int tutti_test(tutti_op *); /* as tutti_wait with 0 */
/* Returns what tutti_test would, and changes nothing: for a thread that reports an operation which another thread waits
 * for. text gets the error's sentence, cut to `room` bytes with its end; "" if there is no error. tutti_why() stays as
 * it was. Does not block. */
int tutti_op_why(tutti_op *, char *text, size_t room);
/* Gives the operation up. Afterwards nobody reads or writes its memory, which is the caller's and may be freed. Nobody
 * is evicted, but for a rank that holds memory as above. A collective ends on all ranks that have not finished it,
 * there with -ECONNABORTED, and the group goes on. A put or a push that was under way may have happened, in part or
 * whole. Returns 0, or the operation's own result if it had ended. Blocks until ranks that hold the memory have given
 * it back: what is under way to a rank that lives is finished first. */
int tutti_cancel(tutti_op *);
/* Blocks until all n operations have ended. Entries that are NULL or idle are passed over; the others are of one job.
 * Returns 0, or the first error in the order of the list; -EINPROGRESS: some have not ended, and stay the library's;
 * -ECANCELED also while another thread frees one of them. */
int tutti_wait_all(tutti_op *const ops[], int n, int timeout_ms);
/* Blocks until one of n operations has ended, and returns its index in ops: tutti_wait(ops[index], 0) has its result.
 * Entries are passed over that are NULL, idle, or of which one of these functions has returned the result or the index
 * before; the others are of one job. -ENOENT: all were passed over, so while ((i = tutti_wait_any(ops, n, -1)) >= 0)
 * takes each operation once; -EINPROGRESS: none has ended; -ECANCELED: another thread frees one of them. */
int tutti_wait_any(tutti_op *const ops[], int n, int timeout_ms);
/* Gives a new, idle op, for programs that have no storage of their own that stays in place. -ENOMEM. */
int tutti_op_new(tutti_op **op);
/* Frees what tutti_op_new gave. Cancels first, as tutti_cancel does, if an operation runs in the op, and ends the waits
 * of other threads for the op, also among others: -ECANCELED. NULL is allowed; harmless also after the job was left. */
void tutti_op_free(tutti_op *);
/* Returns a descriptor for a foreign event loop, or -errno: readable when a started operation may have ended. Read 8
 * bytes from it, then test. tutti_leave closes it. */
int tutti_event_fd(tutti *);

/* ---- interrupting waits ---- */

/* Gives this thread a hook. Each call of this thread that waits for another process, in any job, calls stop(arg) at
 * least every 50 ms while the call waits, at first when the call has looked once whether it need not wait. When stop
 * returns anything but 0, the call ends with -EINTR. stop runs on this thread, holds no lock of Tutti, and delays
 * this call alone. stop must return, and must not call Tutti: a wait inside stop is -EINVAL. A call may wait several
 * times, and one of its waits may end well in that moment: stop goes on returning anything but 0 until the call has
 * returned. The hook stays until the thread sets another one. NULL: no hook. A thread without a hook pays nothing. */
void tutti_on_wait(int (*stop)(void *arg), void *arg);
/* Does so by a flag, for languages whose functions cannot be called from inside a call: calls of this thread end with
 * -EINTR while *flag is not 0. Any thread, or a signal's handler, may set the flag. NULL: no hook. Replaces the hook of
 * tutti_on_wait, and that one replaces the flag. */
void tutti_on_wait_flag(const volatile int *flag);

/* ---- collectives ----
 *
 * Every rank calls the same collectives, in the same order, with the same count, type and rule. All ranks get
 * bit-identical results. When a collective fails, what it writes to holds nothing useful.
 *   -ETIMEDOUT: the time of some rank's call has passed, and all live. Ranks that had finished that call keep their 0;
 * all others, also those that come to it later, get -ETIMEDOUT and a sentence that says who had not come, and what it
 * does instead. The group goes on only after tutti_group_shrink: until then all later collectives on it say the same at
 * once. */

/* Combines the vectors of all ranks, and gives the result to all. in, out: count elements each; in == out reduces in
 * place, else they do not overlap (-EINVAL) and in is left alone. Integers wrap around on overflow; their average is
 * the sum, wrapped around, divided and rounded towards zero; f16 and bf16 are combined in f32 and rounded once, to
 * nearest even. Where the ranks do not all share memory, sums of some of the ranks travel as f32: up to 1.5 times the
 * bytes, and memory for all elements as f32; with TUTTI_PARTIALS=short neither, and each combination rounds. -EINVAL:
 * also a rule that the type does not take. */
int tutti_allreduce(tutti *, const void *in, void *out, size_t count, tutti_type, tutti_rule, tutti_op *);
typedef struct tutti_tensor {
	void *data;
	size_t count; /* elements; 0: data may be NULL */
	tutti_type type;
} tutti_tensor; /* never gets another member */
/* Does so in place with n tensors, from 1 up, as if they were one vector, one behind another: one call instead of n,
 * and nothing has to be packed. tensors: of one type and with the same counts on all ranks; they do not overlap. The
 * list is read before the call returns, also with an op. -ENOTSUP: they are of several types. */
int tutti_allreduce_tensors(tutti *, const tutti_tensor *tensors, int n, tutti_rule, tutti_op *);
/* Combines as tutti_allreduce does, and gives the result to the root alone. out: count elements on the root, in == out
 * or apart from in; elsewhere out is not looked at, and in is left alone. A rank that is not the root may return before
 * the others have called. */
int tutti_reduce(tutti *, const void *in, void *out, size_t count, tutti_type, tutti_rule, int root, tutti_op *);
/* Copies buf of the root to all ranks. The root may return before the others have called: of up to 4 KiB it mostly
 * does, of more it may wait for them. */
int tutti_broadcast(tutti *, void *buf, size_t bytes, int root, tutti_op *);
/* Collects values of the same size, from 1 byte up. all: size x bytes in rank order, on the root alone, or on every
 * rank with root -1. value may be at its place in all, else they do not overlap. A rank that is not the root
 * may return before the others have called. */
int tutti_gather(tutti *, const void *value, size_t bytes, void *all, int root, tutti_op *);
/* Does the opposite. Copies block r of the root's `all` to value on rank r. all: size x bytes, from 1 byte a block up;
 * only the root's is looked at. value: bytes. On the root value may be the root's own block of all, else they do not
 * overlap (-EINVAL). The root may return before the others have called: of up to 64 KiB it mostly does. */
int tutti_scatter(tutti *, const void *all, size_t bytes, void *value, int root, tutti_op *);
int tutti_barrier(tutti *, tutti_op *); /* ends when every rank has called it */
/* Combines, and gives each rank its block. in: size x count elements, block r is for rank r. out: count elements, all
 * ranks' blocks for this rank combined. out may be this rank's own block of in, else they do not overlap. */
int tutti_reduce_scatter(tutti *, const void *in, void *out, size_t count, tutti_type, tutti_rule, tutti_op *);
/* Collects. in: the same number of bytes on each rank. out: size x bytes in rank order, on every rank. in may be at its
 * place in out, else they do not overlap. */
int tutti_allgather(tutti *, const void *in, size_t bytes, void *out, tutti_op *);
/* The same with a size and a place (in bytes from out) for each rank: rank r gives bytes[r], which come to out + at[r]
 * on every rank. in_bytes: bytes[rank]. bytes, at: the same on all ranks, else all get -EBADMSG or -ECONNABORTED; they
 * are read before the call returns, also with an op. in may be at its place in out; else it overlaps no place, and no
 * place another. */
int tutti_allgatherv(tutti *, const void *in, size_t in_bytes, void *out, const size_t bytes[], const size_t at[],
                     tutti_op *);
/* Exchanges blocks. in, out: size x bytes. Block r of in goes to rank r, where it is block `rank` of out. They do not
 * overlap. */
int tutti_alltoall(tutti *, const void *in, size_t bytes, void *out, tutti_op *);
/* The same with sizes and places (in bytes from in and out) for each rank. What rank a has for b, b must expect from a,
 * else all get -EBADMSG or -ECONNABORTED. The four arrays are read before the call returns, also with an op. */
int tutti_alltoallv(tutti *, const void *in, const size_t in_bytes[], const size_t in_at[], void *out,
                    const size_t out_bytes[], const size_t out_at[], tutti_op *);

/* ---- messages ----
 *
 * A message goes from one rank to another, with a tag. Messages of one sender with one tag in one group arrive in the
 * order of the sends, and receives take them in the order of the calls. What has arrived before its sender died is
 * received first, also when the sender's number has come again. tutti_job names all ranks of the job, also those that
 * join late, and goes on when the job's first group is shrunk or grown. In another group that was shrunk or grown, all
 * sends and receives end with -ESTALE.
 *
 * A short message, of up to 16 KiB, is sent at once, as long as the receiver has received all but 1 MiB of what this
 * rank has sent there (each message counts 64 bytes more). All other messages are announced, and the receiver reads
 * the bytes from the sender's memory once a receive matches. A rank has at most 256 announcements at each receiver;
 * further messages wait at the sender. */

typedef struct tutti_message { /* a message that has arrived */
	int rank;             /* the sender's, in the group of the call */
	int tag;
	size_t bytes;
	uint64_t reserved[4]; /* 0 */
} tutti_message;

/* Sends a message to a rank of the group, which may be this rank. tag: from 0 up. memory: `bytes` bytes, 0 too. The
 * memory is the caller's again when the operation has ended. Blocks until a short message is on its way, or until the
 * receiver has read the bytes. tutti_cancel takes back a message that no receive has matched. -ETIMEDOUT: the rank
 * lives and has not received the message within TUTTI_TIMEOUT, or the group's timeout; the message never arrives.
 * -ECONNRESET, -ENOTCONN: the rank is gone or has left; a short message may be lost without an error. */
int tutti_send(tutti *, int rank, int tag, const void *memory, size_t bytes, tutti_op *);
/* Receives the next message with this tag from a rank of the group; with rank -1 the first one to arrive from any rank.
 * memory: room for `bytes` bytes; the message may be shorter. info: gets the sender, the tag and the length; belongs to
 * the library until the operation has ended; NULL is allowed. Blocks until a message is there: -ETIMEDOUT after
 * TUTTI_TIMEOUT, or the group's timeout. -EMSGSIZE: the message is longer than the memory; *info has its length, and
 * the message stays for the next receive that matches. So a receive of 0 bytes asks for the length of the next message.
 * -ECONNRESET, -ENOTCONN: the rank is gone or has left, and no message of the rank is left. With rank -1 these errors
 * mean that all other ranks of the group are gone; the job's handle never returns these errors for rank -1. -ESHUTDOWN:
 * tutti_leave ended the receive, as no message had matched. -EINVAL: no such rank, a negative tag. */
int tutti_recv(tutti *, int rank, int tag, void *memory, size_t bytes, tutti_message *info, tutti_op *);

/* ---- stats ----
 *
 * Counters of this rank's work so far. An operation is timed from the call to its end, in microseconds; the times of
 * operations that failed are left out, and so are their bytes. Quantiles have a relative error of at most
 * 1/16. Of many one-sided operations and messages only every 16th is timed; all are counted. */
typedef enum tutti_stat_kind { /* later releases append to it */
	TUTTI_STAT_PUT, TUTTI_STAT_GET, TUTTI_STAT_ADD, TUTTI_STAT_NOTIFY, /* tutti_put_notify */
	/* Traffic that the library sends: messages, and the large pieces of collectives. */
	TUTTI_STAT_MESSAGE, TUTTI_STAT_CHUNK,
	/* Traffic that came; only counted, like the five that follow. */
	TUTTI_STAT_NOTIFY_IN, TUTTI_STAT_MESSAGE_IN, TUTTI_STAT_CHUNK_IN,
	TUTTI_STAT_CONNECT, TUTTI_STAT_PING,        /* connections made, pings sent */
	TUTTI_STAT_GONE, TUTTI_STAT_EVICTED,        /* ranks that went down; that this rank evicted */
	TUTTI_STAT_REFUSED,                         /* processes that were no rank of the job; from here on for
	                                             * rank -1 only */
	/* Bytes: this rank's own. */
	TUTTI_STAT_BARRIER, TUTTI_STAT_BROADCAST, TUTTI_STAT_GATHER, TUTTI_STAT_ALLREDUCE,
	/* Bytes: what this rank gave; of both kinds. */
	TUTTI_STAT_REDUCE_SCATTER, TUTTI_STAT_ALLGATHER, TUTTI_STAT_ALLTOALL,
	TUTTI_STAT_REDUCE,                          /* bytes: this rank's own */
	/* Calls on tables: of all, of rows and keys. assign is a push, a snapshot that was refused an error. */
	TUTTI_STAT_PUSH, TUTTI_STAT_PULL, TUTTI_STAT_PUSH_PULL, TUTTI_STAT_SNAPSHOT,
	TUTTI_STAT_RETRY,                           /* of a snapshot: a version that had to be read anew; only counted,
	                                             * like the three that follow */
	/* Pushes at this rank's ranges: that ended; that came too late for their round; that ended in the middle, with
	 * their worker. */
	TUTTI_STAT_PUSH_IN, TUTTI_STAT_DROPPED, TUTTI_STAT_BROKEN,
	/* Only bytes, without short ones: that this rank's transports have copied though the wire could have moved
	 * them, as they came together with other frames (tcp) or their memory was not registered (verbs). */
	TUTTI_STAT_COPIED,
	TUTTI_STAT_SCATTER,                         /* a collective. Bytes: of a block */
	TUTTI_STAT_SEND, TUTTI_STAT_RECV,           /* messages of the program, for each peer */
} tutti_stat_kind;
typedef struct tutti_stat {
	uint64_t ops, bytes, errors;  /* ops: that have ended, well or not */
	double p50_us, p99_us, max_us, mean_us; /* 0 where nothing was timed */
	uint64_t reserved[4];
} tutti_stat;
/* Gives what was done with this rank of the group; rank -1: with all of the job. -EINVAL. */
int tutti_stats(tutti *, int rank, tutti_stat_kind, tutti_stat *);
/* Writes all of it to fd, as a table. Blocks for a slow reader, TUTTI_SILENCE at most: -ETIMEDOUT. SIGUSR1 does the
 * same to stderr, unless the program has its own handler (TUTTI_STATS_SIGNAL). */
int tutti_stats_dump(tutti *, int fd);

/* ---- update rules ----
 *
 * An update rule says how the servers of a table change the values w by a delta d that is pushed. In these equations
 * each line is for every element; g = scale d + weight_decay w is the gradient (without weight_decay where the rule
 * does not take it); lr is learning_rate; t counts the pushes to this shard, this one too: rows that were not in a push
 * are not moved by it, but their bias correction goes on. d has the table's type (or see BF16_DELTAS), and a number for
 * each element that is pushed.
 *
 * m, G, v, b, s, z and n are state, which the server keeps: one number for each element of the table, of G, b and s for
 * each worker too; f64 in a table of f64, else f32; at first 0, where nothing else is said. f16 and bf16 are computed
 * in f32 and rounded once; i32 and i64 know only ADD, ASSIGN and OWN. Nothing is approximated or contracted: the bits
 * do not depend on the processor. A NaN or an infinity in d gets into w and into the state, as the equations have it.
 *
 *   -EINVAL, when a table is opened or a push begins, before anything has changed: no such rule, or none for the
 * table's type; an option that the rule does not have, or a number out of its range; no such worker.
 *
 *   rule      equation; options and their defaults; source
 *   ADD       w += scale d
 *             scale 1
 *   ASSIGN    w = d
 *   SGD       w -= lr g
 *             lr 1, weight_decay 0
 *   MOMENTUM  m = momentum m + g; w -= lr m
 *             lr 1, momentum 0.9, weight_decay 0. Polyak 1964, as PyTorch writes it
 *   SMOOTHED  m = momentum m + (1 - momentum) g; w -= lr m
 *             lr 1, momentum 0, weight_decay 0. Multiverso's momentum_sgd
 *   NESTEROV  m = momentum m + g; w -= lr (g + momentum m)
 *             lr 1, momentum 0.9, weight_decay 0. Sutskever et al., ICML 2013, as PyTorch writes it; DiLoCo's outer
 *             step (arXiv 2311.08105)
 *   ADAGRAD   G = G + g^2; w -= lr g / sqrt(G + epsilon)
 *             lr 0.01, epsilon 1e-6, weight_decay 0. Duchi et al., JMLR 2011, epsilon under the root. A G for each
 *             worker, unless TUTTI_SHARED_STATE
 *   RMSPROP   v = rho v + (1 - rho) g^2; w -= lr g / (sqrt(v) + epsilon)
 *             lr 0.01, rho 0.99, epsilon 1e-8, weight_decay 0. Tieleman and Hinton, Neural Networks for Machine
 *             Learning, lecture 6.5, 2012
 *   ADAM      m = beta1 m + (1 - beta1) g; v = beta2 v + (1 - beta2) g^2;
 *             w -= lr (m / (1 - beta1^t)) / (sqrt(v / (1 - beta2^t)) + epsilon)
 *             lr 0.001, beta1 0.9, beta2 0.999, epsilon 1e-8, weight_decay 0. Kingma and Ba, arXiv 1412.6980
 *   ADAMW     the same with g = scale d, after w -= lr weight_decay w
 *             as ADAM, but weight_decay 0.01. Loshchilov and Hutter, arXiv 1711.05101
 *   DCASGD    w -= lr (g + compensation g^2 (w - b)); b = w
 *             lr 0.01, compensation 0.1. Zheng et al., arXiv 1609.08326, where compensation is lambda. b is for each
 *             worker the model that it has, which is the one that it found by its last push, or at first what the
 *             table was assigned (0 under TUTTI_BACKUP_FROM_ZERO)
 *   DCASGDA   s = momentum s + (1 - momentum) g^2; compensation / sqrt(s + epsilon) instead of compensation
 *             lr 0.01, compensation 0.1, momentum 0.95, epsilon 1e-7. Likewise; s for each worker
 *   FTRL      z = z + g - w (sqrt(n + g^2) - sqrt(n)) / alpha; n = n + g^2;
 *             w = 0 where |z| <= l1, else -(z - sign(z) l1) / ((beta + sqrt(n)) / alpha + l2)
 *             alpha 0.005, beta 1, l1 0, l2 0. McMahan et al., KDD 2013. To assign w sets z to what gives w under the
 *             table's options, with n as it is, for any w and l1. But z has 24 bits (53 in a table of f64): of
 *             l1 + |w| ((beta + sqrt(n)) / alpha + l2) they may keep only l1, and then the next push finds w = 0. A
 *             push with an l1, l2, alpha or beta of its own makes of z what these give
 *   ELASTIC   e = alpha (x - w); w += e, where x is what was pushed; a push_pull gives e back, for x -= e. Of f16 and
 *             bf16 the server keeps w in f32, too: moves that are too small to show add up there
 *             alpha 0.5. Zhang et al., arXiv 1412.6651
 *   OWN       a function of the program's; all options, any number, by default 0
 *
 * Deltas that hold the learning rate already, as Multiverso's workers push them, need lr 1 (SGD, SMOOTHED) or scale 1 /
 * lr (DCASGD, DCASGDA). Its adagrad is ADAGRAD with scale 1 / its learning_rate, and its rho as lr. */
typedef enum tutti_update_rule { /* later releases append to it */
	TUTTI_UPDATE_ADD, TUTTI_UPDATE_ASSIGN, TUTTI_UPDATE_SGD, TUTTI_UPDATE_MOMENTUM, TUTTI_UPDATE_SMOOTHED,
	TUTTI_UPDATE_NESTEROV, TUTTI_UPDATE_ADAGRAD, TUTTI_UPDATE_RMSPROP, TUTTI_UPDATE_ADAM, TUTTI_UPDATE_ADAMW,
	TUTTI_UPDATE_DCASGD, TUTTI_UPDATE_DCASGDA, TUTTI_UPDATE_FTRL, TUTTI_UPDATE_ELASTIC, TUTTI_UPDATE_OWN,
} tutti_update_rule;

/* Options of a push, or of a table for all pushes. NaN, even one that came of a computation, or -1 for the worker,
 * leaves an option as the table has it, then as in the list above. A number for an option that the rule does not have
 * is refused. */
typedef struct tutti_update {
	int worker;              /* whose state, where each worker has its own: 0 .. workers - 1; -1: of the worker that
	                          * pushes. Of a table always -1 */
	double scale;            /* any number: what each delta is multiplied by, 1 / N where it is a sum of N
	                          * gradients */
	double learning_rate, weight_decay; /* from 0 up */
	double momentum, rho;    /* from 0, below 1 */
	double compensation;     /* from 0 up */
	double beta1, beta2;     /* from 0, below 1 */
	double epsilon;          /* from 0 up; at 0 a gradient of 0 gives NaN */
	double alpha;            /* above 0 */
	double beta, l1, l2;     /* from 0 up */
	uint64_t reserved[4];
} tutti_update;
/* Returns options that leave everything as the table has it. The program sets those that differ for a push. */
tutti_update tutti_update_defaults(void);

/* The arguments of a rule of the program's own, which sets to[i] from w[i] and d[i], for `count` elements. The function
 * is called for ranges that do not overlap by several threads at once, and for a push in as many pieces, in
 * any order. It must not call tutti. */
typedef struct tutti_update_piece {
	tutti_type type;         /* of to, w and d */
	size_t first, count;     /* element `first` of this server's shard is number 0 of all arrays here */
	void *to;                /* may be w */
	const void *w, *d;
	void *const *state;      /* own_states arrays of f64 for f64, else of f32, at first all 0 */
	uint64_t t;              /* as above */
	const tutti_update *options; /* the push's, else the table's; 0 where neither has set it */
	void *arg;               /* own_arg */
	uint64_t reserved[4];
} tutti_update_piece;

enum {
	TUTTI_SHARED_STATE = 1,     /* ADAGRAD, OWN: one state for all workers */
	TUTTI_BACKUP_FROM_ZERO = 2, /* DCASGD, DCASGDA: b is 0 at first, as Multiverso's was */
};
typedef struct tutti_updater { /* a table's rule, from one of the functions below */
	tutti_update_rule rule;
	unsigned flags;          /* TUTTI_SHARED_STATE, TUTTI_BACKUP_FROM_ZERO, or-ed */
	tutti_update defaults;   /* for pushes */
	void (*own)(const tutti_update_piece *); /* OWN */
	void *own_arg;
	int own_states;          /* arrays of state for each worker or, under TUTTI_SHARED_STATE, for all of them; at
	                          * most 4 */
	uint64_t reserved[4];
} tutti_updater;
/* Each returns a rule of the list above, with these options. An argument of NaN, and all other options, are as in the
 * list; options that are no argument are set in the result: updater.defaults.epsilon = 1e-6. */
tutti_updater tutti_accumulate(void); /* ADD */
tutti_updater tutti_assign(void);
tutti_updater tutti_sgd(double learning_rate);
tutti_updater tutti_momentum(double learning_rate, double momentum);
tutti_updater tutti_smoothed(double learning_rate, double momentum);
tutti_updater tutti_nesterov(double learning_rate, double momentum);
tutti_updater tutti_adagrad(double learning_rate);
tutti_updater tutti_rmsprop(double learning_rate);
tutti_updater tutti_adam(double learning_rate);
tutti_updater tutti_adamw(double learning_rate, double weight_decay);
tutti_updater tutti_dcasgd(double learning_rate, double compensation);
tutti_updater tutti_dcasgda(double learning_rate, double compensation);
tutti_updater tutti_ftrl(double alpha);
tutti_updater tutti_elastic(double alpha);
tutti_updater tutti_own(void (*own)(const tutti_update_piece *), void *arg, int states);

/* ---- tables ----
 *
 * Values that are spread over servers. Workers push deltas, to which the servers apply the table's rule, and pull
 * values, of all or of some rows. A table is `count` rows of `row` elements of one type, numbered from 0; each server
 * holds a contiguous range of the rows, its shard, all of about the same size. All of a table is count x row elements
 * in the order of the rows; n listed rows are n x row elements in the order of the list. Servers and workers are the
 * ranks that the config lists; others may open the table too, pull and assign.
 *
 * Each element is read and written whole, always. A push is applied in pieces of up to 256 KiB, each of them whole:
 * pushes of one worker to a server in the order of its calls, those of several workers as they come. A pull sees each
 * server's values as they are at that moment, also while others push: some elements of a push perhaps, and others not.
 *
 * Consistency says how far workers may be apart. A worker's pushes are counted, at each server:
 *   ASYNC  nobody waits for anybody, as above
 *   SSP    a worker that has pushed k times pulls when all others have pushed k - staleness times or more: it sees all
 *          of those pushes, and perhaps later ones. Ho et al., NIPS 2013
 *   BSP    rounds: the k-th pushes of all workers are summed up (with their scales), and the rule is applied once to
 *          the sum, as a push of worker 0. That makes version k, whole. A worker that has pushed k times pulls version
 *          k, so that the i-th pull of all is identical, also of a list of rows, and of calls that are started one
 *          behind the other. A push waits, at its worker, until the round before it has closed.
 *          The sum is made in the order in which the pushes come, so that of floats is rounded differently from run to
 *          run. It is the same of integers, and of the f32 and f64 of up to two workers. It is of the table's type: of
 *          f16 and bf16 it is rounded with each push.
 *          The other options of a round are those of the push that came first, at each server. Give all pushes of a
 *          round the same: else one server may apply the round with the learning rate of one push, another with that of
 *          another.
 *          With backup > 0 a round closes without the last so many workers: their pushes for it are dropped (and
 *          counted as theirs), by each server those that are late there. Chen et al., arXiv 1604.00981.
 *          Not with the rules ASSIGN and ELASTIC, nor with backup workers if fresh rows are tracked
 * A worker that finishes, closes the table, leaves or dies no longer blocks others, nor a server that is started again.
 *
 * Memory of a server: its range of the values, three times in BSP or with SNAPSHOTS (keys: twice in BSP), and in BSP
 * once more after an assign or load, and once for each assign that is on its way in pieces; the rule's state for it; a
 * bit for each row and worker that pulls with FRESH; in BSP with FRESH 8 bytes a row, with keys 4, and 8 to 16 for each
 * one that is pushed to in a round; 1 MiB for each worker whose ranges are larger than 32 KiB. A save or a load takes
 * up to as much again as range and state have, while it lasts.
 *
 * Blocks. A call without an op returns when all servers have done their part. Its timeout, which the group had when the
 * table was opened, begins anew whenever a server has done something for the call.
 *
 * Errors. After each of them the memory is the caller's; a delta may be freed.
 *   -ETIMEDOUT: a server that lives has done nothing for the call, or another worker has not pushed what the call waits
 * for; nobody is evicted. -ECONNRESET: a server is gone; the other servers' parts are done. -ESTALE: a server has
 * closed the table, or was started anew (tutti_table_reopen). -EPERM: a push by a rank that is no worker, or has
 * finished. -ENOMEM. -EINVAL, before anything has changed: NULL memory, no such row, options that the rule does not
 * have.
 *   A push that has failed or was cancelled stays applied as far as its pieces were sent, on each server from the first
 * piece on; the rest is not sent any more. In SSP and BSP it counts at all servers, as a push of less, or at none, if
 * nothing was sent. tutti_cancel ends a push behind the last piece that is on its way, and a push_pull without its
 * pull. A server that lives is not evicted, unless it does nothing for TUTTI_SILENCE after that. */
typedef struct tutti_table tutti_table;
typedef enum tutti_mode { TUTTI_ASYNC, TUTTI_SSP, TUTTI_BSP } tutti_mode;
typedef struct tutti_consistency {
	tutti_mode mode;
	int staleness;           /* SSP: pushes, from 0 up; else 0 */
	int backup;              /* BSP: workers that a round does not wait for; else 0 */
	uint64_t reserved[4];
} tutti_consistency;
/* The values that a table begins with, instead of 0: element j of row (or key) r is a function of seed, r and j alone.
 * Any number of servers makes the same values, and so does a server that is started again. The bits are the same on all
 * processors, where the thread that opens the table rounds to nearest; values are computed in f64, then rounded to f32,
 * from there to f16 or bf16. Random numbers: Philox4x32-10, Salmon et al., SC 2011; normal ones by Box-Muller. */
typedef enum tutti_init_kind { TUTTI_INIT_ZERO, TUTTI_INIT_UNIFORM, TUTTI_INIT_NORMAL } tutti_init_kind;
typedef struct tutti_init { /* from one of the functions below; zeroed: ZERO */
	tutti_init_kind kind;
	double a, b;             /* UNIFORM: from a to b, finite, a <= b; the type's rounding may give b itself */
	double sigma;            /* NORMAL: the standard deviation, from 0 up; the mean is 0 */
	uint64_t seed;
	uint64_t reserved[4];
} tutti_init;
tutti_init tutti_init_uniform(double a, double b, uint64_t seed);
tutti_init tutti_init_normal(double sigma, uint64_t seed);
typedef struct tutti_table_config { /* the same on all ranks */
	tutti_type type;
	uint64_t count;          /* rows, from 1 up; some servers have none where there are fewer rows than servers. An
	                          * array's rows are its elements. With KEYS: for so many keys there is room at once, 0:
	                          * it grows */
	tutti_updater updater;   /* the rule */
	int servers;             /* how many there are, 0: all of the group; of tutti_job: that the job was started
	                          * with */
	const int *server;       /* their ranks in the group; NULL with 0 */
	int workers;             /* how many ranks push, 0: all of the group; of tutti_job also those that come late */
	const int *worker;       /* which; NULL with 0 */
	tutti_consistency consistency; /* zeroed: ASYNC */
	unsigned flags;          /* TUTTI_TABLE_..., or-ed */
	uint64_t publish_pushes; /* SNAPSHOTS, not in BSP: a version is made after so many pushes to a server, 0: of no
	                          * account; ... */
	int publish_ms;          /* ... at most once in so many milliseconds, 0: of no account. Both 0: 100 ms */
	uint64_t row;            /* elements of a row, or of the values under a key, from 1 up to 2^32 - 1 */
	double clip;             /* with FILTER: elements of deltas up to this are left out, too, and lost; 0: zeros
	                          * alone, as the rules ASSIGN and ELASTIC need it, which take values */
	const char *load;        /* this rank's alone. A folder: as a server this rank begins with what the last save
	                          * there has for its range, before anybody can use it: for a server that was started
	                          * again. Where there is no save yet, as at the first start, -ENOENT. NULL: with
	                          * `init` */
	tutti_init init;         /* the values at first; not for integers. For rules they count as assigned */
	uint64_t reserved[8];
} tutti_table_config;
enum {
	/* Values under 64-bit keys instead of rows 0 .. count - 1. A key's values are those of `init` until it is first
	 * pushed to; it lives on server (key mod servers) of the list. Not with SNAPSHOTS, FRESH or CUT_MULTIVERSO. */
	TUTTI_TABLE_KEYS = 1,
	/* Servers keep versions for tutti_table_snapshot. Of rows. */
	TUTTI_TABLE_SNAPSHOTS = 2,
	/* Servers keep track of which rows each worker has not seen, for tutti_table_pull_fresh. Of rows; in BSP for
	 * workers alone, and not with backup workers. */
	TUTTI_TABLE_FRESH = 4,
	/* ... and a push makes rows fresh for its own worker, too, as in Multiverso's newer matrix. */
	TUTTI_TABLE_FRESH_OWN = 8,
	/* Data within messages (rows, keys, shards of up to 32 KiB) goes without its zeros, where that is shorter; -0
	 * becomes 0. */
	TUTTI_TABLE_FILTER = 16,
	/* Each server has count / servers rows, rounded down, and the last one the rest as well, as Multiverso has it;
	 * with fewer rows than servers the first ones have one each. */
	TUTTI_TABLE_CUT_MULTIVERSO = 32,
	/* Of f32: the delta that tutti_table_push and tutti_table_push_pull are given is bf16, half the bytes; values,
	 * rule and state stay f32. Rows are not pushed by number. Not with KEYS, FILTER and the rules ASSIGN and
	 * ELASTIC. */
	TUTTI_TABLE_BF16_DELTAS = 64,
	/* The rule gets the mean of what workers push: in BSP each server divides the sum of a round by the pushes in
	 * that sum (one that a death broke off counts, too), elsewhere it divides each push by the workers that it
	 * counts. Of floats, and not with the rules ASSIGN and ELASTIC. OWN: the function gets the scale divided. */
	TUTTI_TABLE_MEAN = 128,
};
/* Each returns the config of a table on all ranks, ASYNC and without flags; the program sets the members that differ:
 * `c = tutti_table_f32(n, tutti_adam(0.001)); c.consistency.mode = TUTTI_BSP;`. f32: an array of n; rows: `rows` rows
 * of `row` elements; keys: `row` elements under each key. */
tutti_table_config tutti_table_f32(uint64_t n, tutti_updater);
tutti_table_config tutti_table_rows(tutti_type, uint64_t rows, uint64_t row, tutti_updater);
tutti_table_config tutti_table_keys(tutti_type, uint64_t row, tutti_updater);
/* Opens a table under a name of 1 to 160 bytes. The config's ranks are the group's. The name is the job's, but groups
 * that share no rank may each have a table of one name. A rank that has joined late opens a table with tutti_job, and
 * with the lists that the others have, as ranks of the job. Values begin with config.init. Blocks until all servers
 * have opened it, too, and a server until the group's lowest living rank has compared its config with those of all
 * others. -EINVAL: also if another rank has opened it with another config; -EEXIST: it is open here;
 * -ENOENT: a server has not opened it within the group's timeout. */
int tutti_table_open(tutti *, const char *name, const tutti_table_config *, tutti_table **);
/* Ends this rank's part. A server's range is gone, and others get -ESTALE: a barrier before it, and one before the name
 * is used again. NULL is allowed. Blocks until this rank's own calls, and saves and loads of other threads, have
 * ended. */
void tutti_table_close(tutti_table *);

/* Of all of a table; of keys -ENOTSUP. delta, values: count x row elements. delta is left alone until the end; the
 * options are copied, NULL: as the table has them. */
int tutti_table_push(tutti_table *, const void *delta, const tutti_update *, tutti_op *);
/* -EAGAIN: as of a snapshot, of a rank that rounds do not wait for. */
int tutti_table_pull(tutti_table *, void *values, tutti_op *);
/* Gives each server's values after this push, or what its rule gives back. delta and values are one vector or apart. */
int tutti_table_push_pull(tutti_table *, const void *delta, const tutti_update *, void *values, tutti_op *);
/* Sets the values, past the rule; its state stays, but for what the list of rules says. In BSP a pull or a snapshot
 * beside it has all values of a server's range as they were, or all as they are set, and so beside a load. */
int tutti_table_assign(tutti_table *, const void *values, tutti_op *);

typedef struct tutti_versions {
	uint64_t oldest, newest; /* of the servers' ranges: how many were made before; 0: the table as it was opened (in
	                          * rounds: as it was assigned) */
	double age_ms;           /* of the oldest, by the clocks of its server and of this rank; 0 of version 0 */
	uint64_t retries;        /* versions that had to be read anew */
	uint64_t reserved[4];
} tutti_versions;
/* Reads one version of each server's range: all pushes that a server had when the version was made, each whole. In
 * rounds it is the same version of all ranges. A pull is faster, but sees the values as they change. values: count x
 * row elements; values and *versions, which may be NULL, are set at the end. -EINVAL: the table keeps no versions.
 * A worker that pushes never waits for it, but where several push without a pause: for pushes that have begun then.
 * Versions may come faster than they can be read: after three tries servers keep one for this rank, 5 seconds at most;
 * rounds wait meanwhile. -EAGAIN: 16 tries were too slow all the same. */
int tutti_table_snapshot(tutti_table *, void *values, tutti_versions *, tutti_op *);

/* Of n rows, or keys, alone. rows: n numbers or keys; deltas, values: n x row elements; all are read until the end. n
 * may be 0. A row that is listed twice is pushed to twice, in the order of the list; a key that nobody has pushed to
 * has the values of init. A push of rows advances the worker's clock on every server, including servers without a
 * listed row. In BSP the rule runs over all rows when a round closes (of keys, and with FRESH, over those that were
 * pushed to in the round), and a list is pulled of one version of all servers, by other ranks than workers too.
 * -EINVAL: also a number that is no row; -EAGAIN: as of a snapshot, of a rank that rounds do not wait for. */
int tutti_table_push_rows(tutti_table *, const uint64_t *rows, size_t n, const void *deltas, const tutti_update *,
                          tutti_op *);
int tutti_table_pull_rows(tutti_table *, const uint64_t *rows, size_t n, void *values, tutti_op *);
/* Sets n rows, or the values under n keys, past the rule; the state stays as of tutti_table_assign. Of a row that is
 * listed twice the last values stay. Counts for no clock: any rank may call it. In BSP the values are in the newest
 * version at once: call it where no worker pushes or pulls, with a barrier before and after. */
int tutti_table_assign_rows(tutti_table *, const uint64_t *rows, size_t n, const void *values, tutti_op *);
/* Pulls the rows that were pushed to since this worker last pulled them, by whichever pull; all of them, if it has
 * opened the table since. rows (room numbers) gets which, in growing order for each server, values (room x row
 * elements) their values, *n how many, at most `room`; the others stay fresh, for the next call. After a pull that has
 * failed all rows are fresh. -EAGAIN: in rounds this rank has finished meanwhile, and what it read was written over. */
int tutti_table_pull_fresh(tutti_table *, uint64_t *rows, void *values, size_t room, size_t *n, tutti_op *);
/* Pulls those rows of a list that are fresh in this sense, to their places in `values`; the other places are left as
 * they are, as this worker has pulled them before. *fresh: how many came; NULL is allowed. Of a row that is listed
 * twice one place may be left, too. -ENOTSUP: of rows of more than 61,432 bytes. */
int tutti_table_refresh_rows(tutti_table *, const uint64_t *rows, size_t n, void *values, size_t *fresh, tutti_op *);

typedef struct tutti_table_info {
	int servers, workers;    /* how many */
	int server, worker;      /* which of them this rank is, from 0 up, in the order of the lists, else of the group;
	                          * -1: none */
	uint64_t clock;          /* the lowest of its servers', as last heard: of SSP and BSP, else 0 */
	uint64_t dropped, broken; /* of this rank's shard: pushes that came too late for their round; that ended in the
	                           * middle, with their worker */
	tutti_type type;         /* these four as the config has them */
	tutti_update_rule rule;
	uint64_t count, row;
	uint64_t reserved[4];
} tutti_table_info;
int tutti_table_look(tutti_table *, tutti_table_info *); /* does not block */
/* Sets another consistency, or the same: called by all workers, between their steps. Ranks that are no workers, or have
 * finished, should not read meanwhile: values move, and what they get may be of two versions. Blocks until the
 * consistency holds everywhere, and all workers and servers are at the same clock. -EBUSY: calls of this rank are under
 * way; -ETIMEDOUT: some worker did not call it within the timeout. Then nothing has changed, all who called it are told
 * so, and it may be called again; -EINVAL: they asked for different ones, or it is none for this table. -EINTR: the
 * request stands; a call for the same consistency goes on with it, and a push or another consistency withdraws it. */
int tutti_table_switch(tutti_table *, const tutti_consistency *);
/* This worker pushes no more: nobody waits for it, and its pulls wait for nobody. Blocks until this rank's own pushes
 * have ended; -EBUSY: they have not within the timeout. */
int tutti_table_finish(tutti_table *);

/* ---- saves ----
 *
 * Any rank calls for the whole table, and one is enough; the servers write and read, each its own range, in a folder
 * that all of them see. docs/saves.md has the files. */

/* Saves each server's values and state (and how often it was pushed to) as they are at one moment between two pushes.
 * Nobody has to stop for a save: a push waits only until those that have begun before it are done. Two servers' moments
 * are not the same one: for that, a barrier before it. While a server writes, what pushes change before it is written
 * is kept as well. The files are safetensors, NAME-..., and an index, which makes the save and is put in place last: a
 * failure before that leaves the last save as it was, and a new save then removes it. Blocks as long as the disks take.
 *   -EINVAL: such a name cannot be a file's; no such folder (also -ENOENT, ...). -EBUSY, -EEXIST, -ENOENT: another rank
 * saves or loads it at the same time. -ETIMEDOUT: a worker lives, and has sent no more of a push that it began for
 * TUTTI_SILENCE, or a server lives, and has written nothing for the timeout. -ENOSPC and others of files; as above, if
 * a server is gone. The sentence names the server and the file. -EINTR: the save is called off; another
 * one may get -EBUSY until the servers have heard so. */
int tutti_table_save(tutti_table *, const char *folder);
/* Sets values and state on all servers from the last save, be they as many as wrote it or not. Keys that are not in the
 * save are gone. With files without state, by others (NAME.safetensors, or with an index), the state is as at the
 * start, and those values were assigned. All servers read and check everything first, into as much memory again; if one
 * of them refuses, the table is as it was. Not between two halves of a training step: a barrier before it and after; a
 * push that has begun, and does not go on for TUTTI_SILENCE, ends there. Blocks as long as the disks take.
 *   -ENOENT: there is no such save. -EBADMSG: it is damaged, cut off or something else, and the sentence says where.
 * -EINVAL: of another type, count or rule, or of rows and not of keys. -EBUSY: another rank saves or loads it at the
 * same time, try again when it is done. -EAGAIN: saves took each other's places faster than all servers could read one.
 * -ETIMEDOUT: a server lives, and has got no further with it for the timeout. -ENOMEM. -EINTR: the load is called
 * off; servers that were told to take what they all had read load it all the same. If the caller goes in the middle of
 * it, or a server does, some servers may have loaded. Closing the table, or leaving, waits for the one piece that this
 * rank's disk is in the middle of, even if it hangs. */
int tutti_table_load(tutti_table *, const char *folder);
/* Goes on after -ECONNRESET, -ETIMEDOUT or -ESTALE with servers that were started again under their ranks, and have
 * opened the table again (with config.load: they are back at the last save, but not their clock, which is where the
 * workers are). Others are as they were. In SSP and BSP workers may have come back from different steps:
 * tutti_table_switch makes them level; a worker that has finished need not call it. Blocks until the servers have
 * opened it, as opening does: -ENOENT. -ECONNRESET or -ENOTCONN, at once, while a server is gone, -ESTALE while one
 * closes the table. */
int tutti_table_reopen(tutti_table *);

/* ---- averaging ----
 *
 * The copies of a model, one on each rank, are kept together. A model is a list of tensors; a flat buffer is a list of
 * one. All ranks give lists of the same counts and types. The list is copied at opening; the tensors' memory stays the
 * program's. Of memory of tutti_alloc nothing is copied on the way. */

typedef struct tutti_average_result {
	double distance;          /* |x - c|: the Euclidean distance of this rank's parameters, before they move, from
	                           * the center; of a center of deltas: from the center that the servers give back */
	uint64_t reserved[4];
} tutti_average_result;

/* ---- averaging: a job that goes on ----
 *
 * Each rank saves what it holds beside its parameters into a file of its own, and after a restart loads that file and
 * goes on, bit for bit. The program saves the parameters itself. All ranks save at the same step; a restart has as many
 * ranks. The file is safetensors (docs/saves.md), and is replaced when the new one is whole. The functions block as
 * long as the disk takes. path: of the file. -EINVAL: the file has the state of something else, or the call comes at
 * another time than the function says; -ENOENT and others of files; -EBADMSG: the file is damaged; -ENOMEM. A load that
 * fails changes nothing. */

/* ---- averaging: all-reduce SGD ----
 *
 * Each rank computes gradients from samples of its own, all ranks take the same step with their sum or average, and so
 * keep the same parameters. Ranks may have different numbers of steps: one that is out of them calls
 * tutti_gradients_synchronize, gives zeros from then on, and is not counted. Source: torch-distlearn's AllReduceSGD;
 * here a rank without any step works, too. One thread at a time uses a tutti_gradients.
 *
 *   tutti_gradients_synchronize(g, params, n);              all begin with rank 0's parameters
 *   for each step:
 *           compute the gradients, from the last layer to the first: tutti_gradients_ready(g, i) after each
 *           tutti_gradients_average(g, NULL);               params -= rate * gradients
 *   tutti_gradients_synchronize(g, params, n);
 *
 * open, sum, average, synchronize and regroup are collective, with what is started. Errors are those of collectives.
 * After one of them the gradients hold nothing useful, and all calls return the same, until tutti_gradients_regroup.
 *
 * -EINTR is no such error. tutti_gradients_sum, _average and _synchronize go on where they were when the program calls
 * them again, and the program makes no other call on the gradients before that; close and regroup cancel.
 * tutti_gradients_synchronize ends with collectives that choose and spread the parameters. If the hook ends one of
 * these, the collective is cancelled: the other ranks in it get -ECONNABORTED, and all ranks call
 * tutti_gradients_synchronize again. */
typedef struct tutti_gradients tutti_gradients;
/* Takes the list of the gradients' tensors, in the order of the layers: of f32, f64, f16 or bf16, several types too,
 * the same on all ranks. They are summed in place, in buckets of up to bucket_bytes (a larger tensor has one for
 * itself) and of one type; 0: 16 MiB. Blocks until all ranks have called it. -EINVAL: other types; as of a model; or
 * the ranks' lists or bucket_bytes differ: the sentence names the tensor and both values. -ECONNABORTED: the call has
 * failed on another rank, which the sentence names, or a hook has ended it there: -EINTR. */
int tutti_gradients_open(tutti *, const tutti_tensor *grads, int n, size_t bucket_bytes, tutti_gradients **);
/* Says that gradient i of this step is computed: it is the library's until the step's end. As soon as all of a bucket
 * are ready, and those of the buckets behind it, its sum begins, in the background. A program need not call it:
 * gradients of which it has said nothing begin with the step's end. Since nobody knows yet how a step will end, it is
 * taken to end as the step before, by a sum or an average; of a rank's first step nothing begins early. Does not block.
 * -EINVAL: it is ready already; or the end of the step was interrupted. */
int tutti_gradients_ready(tutti_gradients *, int i);
/* Ends a step: the gradients are the sum over all ranks that have one; or that divided by their number. *contributors:
 * how many, NULL is allowed. Blocks until all ranks have come. -EINVAL: a step that has begun early ends as the step
 * before. -EINTR: call the same function again. */
int tutti_gradients_sum(tutti_gradients *, int *contributors);
int tutti_gradients_average(tutti_gradients *, int *contributors);
/* Start the end of a step, and return: the program goes on with what needs no gradients, data of the next step say. The
 * gradients are the library's until tutti_gradients_apply, which the program calls when tutti_wait(op) has returned.
 * Until then other calls on the gradients are -EALREADY. tutti_cancel(op) gives the step up, on all ranks. Block only
 * while a step of more than 1,023 buckets waits for its first ones. Errors of the operation: as above. */
int tutti_gradients_sum_start(tutti_gradients *, tutti_op *op);
int tutti_gradients_average_start(tutti_gradients *, tutti_op *op);
/* Ends the step that was started: from now on the gradients are the sum or average, and the program's. *contributors as
 * above. Does not block. -EINPROGRESS: the operation runs; -EINVAL: nothing was started; or the operation's error. */
int tutti_gradients_apply(tutti_gradients *, int *contributors);
/* Waits for the next bucket of the end that was started, and gives it to the program: gradients *first to
 * *first + *n - 1 are the sum or average, so an optimizer can move their parameters while later buckets are on their
 * way. The last gradients come first. *n is 0 when all have come; then tutti_wait(op) and tutti_gradients_apply end the
 * step, as they do at any time. Blocks. -EINVAL: nothing was started; -EINTR: call it again; or the operation's error.
 */
int tutti_gradients_next(tutti_gradients *, int *first, int *n);
/* Between steps. The L2 norm of all gradients together: the root of the sum of their squares, in f64, in an order that
 * depends on the list alone: behind a step the same bits on all ranks. It is finite only if all gradients are (and, of
 * f64, the sum of their squares is), so one pass serves clipping and loss scaling. -EINVAL: gradients are ready. */
int tutti_gradients_norm(tutti_gradients *, double *norm);
/* Between steps. From now on the gradients are these n tensors, of the same counts and types: where a backward pass
 * puts them elsewhere in each step. Local. -EINVAL: other counts or types; gradients are ready. */
int tutti_gradients_move(tutti_gradients *, const tutti_tensor *grads, int n);
/* Between steps. on: from the next step on gradients of f32 travel as bf16, half the bytes, with error feedback; 0: as
 * f32, as at first. All ranks must have the same in a step. For a rank's gradient g and its residual e, 0 at first:
 *
 *   q = bf16(g + e);  e = g + e - q;  all ranks get bf16(sum of q), or bf16(sum of q / contributors)
 *
 * so what rounding takes away from a rank's gradient is given in later steps. Source: Seide et al., "1-bit stochastic
 * gradient descent", Interspeech 2014; Karimireddy et al., arXiv 1901.09847. The rounding of the result is not fed
 * back. Where g + e is not finite, e is 0. Takes 6 bytes an element. -ENOMEM. -EINVAL: gradients are ready. */
int tutti_gradients_bf16(tutti_gradients *, int on);
/* This rank has no steps left: takes part with zeros in those of the others (for which its gradients' memory is used)
 * until all ranks call it. Then the parameters of the rank with most steps since the last time (of several, the lowest;
 * of none, rank 0) become everybody's, bit for bit. params: n tensors, of any types, the same on all ranks. Blocks
 * until all ranks have called it. -EINVAL: gradients of a step are ready, or the end of a step was interrupted.
 * -ENODATA: the ranks that had whole parameters went in the middle of it; the program takes them from a save, and calls
 * it again. -EINTR: call it again. */
int tutti_gradients_synchronize(tutti_gradients *, const tutti_tensor *params, int n);
/* Goes on in another group, after tutti_group_shrink or tutti_group_grow: counted steps stay, the one under way is
 * forgotten. Ranks that are new open one of their own meanwhile. Then all call tutti_gradients_synchronize, since one
 * may have had a step that another has not. Blocks while the old group's calls end, and until all ranks of the new
 * group have called it or tutti_gradients_open. Errors as of that one: the gradients then stay in their group.
 * -EALREADY: a step that was started is not applied; the other ranks get -ECONNABORTED. */
int tutti_gradients_regroup(tutti_gradients *, tutti *group);
/* Save and load how many steps this rank has had since the last synchronization, between two steps; and, with
 * tutti_gradients_bf16, its e: the program calls that before the load. */
int tutti_gradients_save(tutti_gradients *, const char *path);
int tutti_gradients_load(tutti_gradients *, const char *path);
/* NULL is allowed. Blocks until what is under way has ended. */
void tutti_gradients_close(tutti_gradients *);

/* ---- averaging: elastic, synchronous ----
 *
 * Each rank trains parameters x of its own. Every tau steps these and a center c draw each other together:
 *
 *   d = alpha (x - c);  x = x - d;  c = c + the sum of all ranks' d
 *
 * Each rank has a copy of the center, at first its own parameters. A rank that is out of steps calls one of the two
 * tutti_ea_synchronize, and is drawn to the center like the others until they are, too. The sum is made while the
 * program takes its next steps: it is in the center before anybody sees it. Source: Zhang et al., arXiv 1412.6651;
 * torch-distlearn's AllReduceEA. One thread at a time uses a tutti_ea.
 *
 *   tutti_ea_synchronize(ea);                               all begin with rank 0's parameters
 *   for each step:
 *           params -= rate * gradients;  tutti_ea_step(ea, NULL);
 *   tutti_ea_synchronize_center(ea);                        tutti_ea_center says where the result lies
 *
 * Calls are collective, but for close. Errors are those of collectives. After one of them those that need the others
 * return the same, until tutti_ea_regroup.
 *
 * -EINTR is no such error. tutti_ea_step, tutti_ea_center and the two tutti_ea_synchronize go on where they were when
 * the program calls them again; a step counts once. The broadcast at the end of tutti_ea_synchronize, tutti_ea_open,
 * tutti_ea_set and tutti_ea_regroup are collectives. If the hook ends one of these, the collective is cancelled: the
 * other ranks in it get -ECONNABORTED, and all ranks make the call again. */
typedef struct tutti_ea tutti_ea;
enum {
	/* tutti_ea_synchronize and tutti_ea_synchronize_center end with one elastic move more, whose sum never gets
	 * into the center, on each rank that has taken a step since the last of them. */
	TUTTI_EA_DISTLEARN = 1,
};
/* params: f32, f64, f16 or bf16. tau: steps, from 1 up. alpha: 0 to 1; NaN: always tutti_elastic_alpha(ranks of the
 * group). Each averaging multiplies the distance of the center from the ranks' mean by 1 - alpha (ranks + 1): it grows
 * with an alpha above 2 / (ranks + 1), of which rank 0 warns once, and again in a larger group. The tensors' counts and
 * types, tau, alpha and flags are the same on all ranks, else -EINVAL. Blocks until all ranks have called it.
 * -ECONNABORTED: the call has failed on another rank, which the sentence names. */
int tutti_ea_open(tutti *, const tutti_tensor *params, int n, int tau, double alpha, unsigned flags, tutti_ea **);
/* Counts a step of the program's. Returns 1: that was the tau-th, and it has averaged; 0: it was one of the others, for
 * which nobody is waited for. result: set if it has averaged, at the price of one read of the parameters; NULL: not
 * wanted. Blocks until all ranks have begun the averaging before this one. */
int tutti_ea_step(tutti_ea *, tutti_average_result *result);
/* Changes tau (from 1 up) and alpha (as of tutti_ea_open), from the next averaging on. The next averaging comes after
 * tau more steps. A collective: all ranks call it between the same two averagings, with the same values. Blocks until
 * all ranks have called it, also where one gives values out of range. -EINVAL: values out of range; or other ranks give
 * other values. Nothing has changed then. */
int tutti_ea_set(tutti_ea *, int tau, double alpha);
int tutti_ea_get(const tutti_ea *, int *tau, double *alpha); /* both as they were set; NULL: not wanted */
/* Both end this rank's steps and wait for those of the others. Then the center of rank 0 becomes everybody's; or rank
 * 0's parameters do, and the center is these. Both bit for bit. Block until all ranks have called them. */
int tutti_ea_synchronize_center(tutti_ea *);
int tutti_ea_synchronize(tutti_ea *);
/* Start the same, and return: the program takes more steps meanwhile, and the library does not touch its parameters. A
 * copy of the parameters takes part. When tutti_wait(op) has returned, tutti_ea_synchronize_apply adds to today's
 * parameters what the copy has moved; parameters that took no step since become rank 0's bit for bit (of
 * tutti_ea_synchronize_start). The steps taken meanwhile count for no averaging. Until then other calls on the ea are
 * -EALREADY. tutti_cancel(op) gives the synchronization up; other ranks may be in the middle of theirs, so all go on by
 * tutti_group_shrink and tutti_ea_regroup. They take two more copies of the parameters. Do not block. -ENOMEM; errors
 * of the operation: as above. */
int tutti_ea_synchronize_center_start(tutti_ea *, tutti_op *op);
int tutti_ea_synchronize_start(tutti_ea *, tutti_op *op);
/* Does not block. -EINPROGRESS: the operation runs; -EINVAL: nothing was started; or the operation's error, and the
 * parameters stay as they are. */
int tutti_ea_synchronize_apply(tutti_ea *);
/* Says where this rank's center lies: list gets as many tensors as there are parameters. The program may read and set
 * it until its next step. A center of f16 or bf16 is rounded: the library adds moves up in f32, also those that are too
 * small to show; an element that the program sets to another value goes on from that value. Blocks until all ranks have
 * begun the last averaging. */
int tutti_ea_center(tutti_ea *, tutti_tensor *list);
/* Save and load this rank's center, its steps since the last synchronization, and its steps since the last averaging.
 * Schedule and flags are the program's: it opens with the same ones. To save blocks until all ranks have begun the last
 * averaging; -EINTR: call it again. A load comes before the first step, with the parameters as they were. */
int tutti_ea_save(tutti_ea *, const char *path);
int tutti_ea_load(tutti_ea *, const char *path);
/* Goes on in another group, after tutti_group_shrink or tutti_group_grow; there, new ranks call tutti_ea_open
 * meanwhile. A sum that is not complete is lost, on some ranks perhaps: all call tutti_ea_synchronize_center next, or
 * tutti_ea_synchronize. Blocks until all ranks have called it. */
int tutti_ea_regroup(tutti_ea *, tutti *group);
/* NULL is allowed. Blocks until what is under way has ended. The memory that tutti_ea_center names ends with it. */
void tutti_ea_close(tutti_ea *);
/* Return the alpha that the paper recommends, 0.9 / ranks: each averaging moves the center by 0.9 of its distance from
 * the ranks' mean; NaN of no ranks. And the largest alpha with which asynchronous averaging in turns is stable, of a
 * quadratic whose curvature times learning rate is eta: (4 - 2 eta) / (4 - eta); NaN where eta is not from 0 to 2. */
double tutti_elastic_alpha(int ranks);
double tutti_elastic_alpha_max(double eta);

/* ---- averaging: a center on servers ----
 *
 * A center is a model that the servers of a table hold, a part each; the others' copies and the center draw each other
 * together. A worker takes `tau` steps by itself, then exchanges with the servers, in one call:
 *
 *   elastic   e = alpha (x - center); center += e; x -= e. Zhang et al., arXiv 1412.6651 (EASGD), Platoon's EASGD,
 *             torch-distlearn's AsyncEA. The worker pushes x, the server moves the center and gives e back: one trip,
 *             and one pass over x. Nobody waits for anybody
 *   delta     the worker pushes d = x - old, the server's rule makes of d a new center, and x = old = that center;
 *             old is what this worker had of the center last. Platoon's ASGD; in rounds its Downpour, and DiLoCo's
 *             outer optimizer (arXiv 2311.08105)
 *   own       the worker pushes x; the server has a rule of the program's own (tutti_own) or any other; a function of
 *             the program merges what comes back into x. Platoon's ParamSyncRule
 *
 * Without a lock (Platoon's synchronous=False, "hogwild"): that is how ASYNC is. Each element is read and written
 * whole, no push is lost, and each of a push's pieces of up to 256 KiB is applied whole; between two pieces other
 * workers' pushes may come.
 *
 * Tensors are of one type, f32, f64, f16 or bf16, and so are the center and what travels. One tensor, or tensors that
 * lie one behind another, are pushed where they lie; others are packed first. A worker has once more the model's memory
 * for what the servers give, once more for `old`, and once more for a velocity (`momentum`).
 *
 * Calls with a center block as those on tables do (servers: until they have done their part; in rounds: until the round
 * has closed), by one thread at a time, and end with the errors of table calls. After an error the params are as they
 * were; a push may have been applied in part. A worker that dies holds up nobody, in rounds until that is known. When a
 * server has died the survivors go on with the center of a last save, or with the mean of what they have:
 *
 *   tutti_center_close(center);
 *   tutti_group_shrink(group, &left);
 *   tutti_allreduce_tensors(left, params, n, TUTTI_AVERAGE, NULL);
 *   tutti_center_open(left, "model", params, n, &config, &center);
 *   and where the last save is wanted: tutti_table_load(tutti_center_table(center), folder) by one rank, a barrier, and
 *   tutti_center_pull(center) by each worker */
typedef struct tutti_center tutti_center;
typedef enum tutti_center_kind { TUTTI_CENTER_ELASTIC, TUTTI_CENTER_DELTA, TUTTI_CENTER_OWN } tutti_center_kind;
/* Merges `given`, what the servers gave for a push of `local`, into local; count elements each, a part of the model. */
typedef void (*tutti_center_merge)(tutti_type, void *local, const void *given, size_t count, void *arg);
typedef struct tutti_center_config { /* the same on all ranks; from one of the functions below */
	tutti_center_kind kind;
	int tau;                 /* steps from one exchange to the next, from 1 up */
	tutti_updater updater;   /* the servers' rule */
	int average;             /* 1: the rule gets the mean of the deltas: TUTTI_TABLE_MEAN */
	int bf16;                /* 1: DELTA, of f32: what is pushed is rounded to bf16, half the bytes; the center, its
	                          * rule and what comes back stay f32 */
	double momentum;         /* delta of EAMSGD, from 0, below 1: for tutti_center_ahead and tutti_center_move; 0:
	                          * without */
	tutti_center_merge merge; /* OWN. NULL: what is given becomes the params */
	void *merge_arg;
	tutti_consistency consistency; /* of ELASTIC: ASYNC */
	int snapshots;           /* 1: the servers keep versions, for tutti_center_read; in rounds they always do */
	int servers;             /* these as of tutti_table_config: how many there are, 0: all of the group; */
	const int *server;       /* their ranks in the group, */
	int workers;             /* how many ranks exchange, 0: all of the group, */
	const int *worker;       /* which, */
	const char *load;        /* and what a server that was started again begins with */
	uint64_t reserved[8];
} tutti_center_config;
/* Each returns a config; the program sets the members that differ. alpha NaN: 0.9 / p, where p workers are there, at
 * each exchange anew. Zhang et al. take 0.9 / p, and tau 10. */
tutti_center_config tutti_center_easgd(int tau, double alpha);
/* center += x - old. */
tutti_center_config tutti_center_asgd(int tau);
/* Rounds: center += sum of all workers' x - old, or with average 1 their mean. All go on with the same params. */
tutti_center_config tutti_center_downpour(int tau, int average);
/* Rounds: after `steps` local steps the mean of old - x is the gradient of NESTEROV. NaN: learning_rate 0.7, momentum
 * 0.9, as DiLoCo has them; it takes 50 to 1000 steps. */
tutti_center_config tutti_center_outer(int steps, double learning_rate, double momentum);
tutti_center_config tutti_center_own(int tau, tutti_updater, tutti_center_merge, void *merge_arg);

/* Opens a center: a table of this name, and what a worker has beside it. A collective. The center is at first what the
 * first worker has in params, and all workers' params become that. A rank that has joined late opens with tutti_job,
 * alone, and begins with the center as it is; its lists are the others', of ranks of the job. Servers and testers that
 * are no workers give params, too, which say how large the model is, and are left alone.
 *   -ENOTSUP: params are of several types, or of integers; -EINVAL: a config that makes no sense, or another than other
 * ranks have; -ECONNABORTED: another rank could not open it; and as of tutti_table_open. -EINTR: nothing was opened;
 * the other ranks get -ECONNABORTED, and all ranks call it again. */
int tutti_center_open(tutti *, const char *name, const tutti_tensor *params, int n, const tutti_center_config *,
                      tutti_center **);
/* Ends this rank's part, as tutti_table_close does: a barrier before it. NULL is allowed. */
void tutti_center_close(tutti_center *);
/* After each step of the worker: every tau steps it exchanges. Returns 1: it has exchanged; 0: not yet. result: set if
 * it has exchanged, at the price of one more read of the params; NULL: not wanted. -EINTR, also of exchange, pull,
 * assign and read: the call on the table is cancelled, as far as a push can be; the params stay as they are, and the
 * program may call again. */
int tutti_center_step(tutti_center *, tutti_average_result *result);
/* Exchanges now. After an error params are as they were. A center of deltas counts each delta once all the same: if the
 * servers may have something of a push that failed, the next exchange takes the center alone (in rounds it ends that
 * round), and what x has moved since the push counts in the exchange after that. */
int tutti_center_exchange(tutti_center *, tutti_average_result *result);
/* Starts an exchange with a copy of the params, and returns: the program takes more steps meanwhile, and the library
 * does not touch the params. When tutti_wait(op) has returned, tutti_center_exchange_apply moves today's params:
 *   elastic   x -= e, of the copy
 *   delta     x += center - copy, old = center: what x has moved since the start counts in the next exchange, once
 * Until then exchange, pull, assign, read and set are -EALREADY, and so is a step that would exchange. tutti_cancel(op)
 * withdraws the exchange as far as a push can be; the params stay as they are. A center of deltas takes one more copy
 * of the params. Does not block. -ENOTSUP: OWN; -ENOMEM; errors of the operation: as of tutti_center_exchange. */
int tutti_center_exchange_start(tutti_center *, tutti_op *op);
/* Does not block. -EINPROGRESS: the operation runs; -EINVAL: nothing was started; or the operation's error, and the
 * params stay as they are. */
int tutti_center_exchange_apply(tutti_center *, tutti_average_result *result);
typedef struct tutti_center_schedule { /* what may change while the center is open */
	int tau;                 /* from 1 up */
	double alpha, learning_rate, momentum; /* options of the servers' rule, for the exchanges of this worker. NaN:
	                          * as the rule has them; of an elastic center: 0.9 / p. Others than the rule's: NaN */
	uint64_t reserved[4];
} tutti_center_schedule;
/* Changes the schedule, from the next exchange on; tau is counted anew. Begin with tutti_center_get.
 * In rounds a collective of `group`, in which all workers of the center are: all call it between the same two rounds,
 * with the same values. Blocks until all have called it. Elsewhere each worker has a schedule of its own, group may be
 * NULL, and the call does not block.
 * -EINVAL: values out of range; an option that the rule does not have; or other ranks give other values. -ECONNABORTED:
 * in rounds: the call has failed on another rank. -EINTR: in rounds: the collective is cancelled; the other ranks get
 * -ECONNABORTED, and all ranks call it again. Nothing has changed then. */
int tutti_center_set(tutti_center *, tutti *group, const tutti_center_schedule *);
int tutti_center_get(const tutti_center *, tutti_center_schedule *);
/* params = center (and `old` too: a worker that began elsewhere counts nothing twice). */
int tutti_center_pull(tutti_center *);
/* center = params, past the rule; by one rank, which need not be a worker. The others pull. */
int tutti_center_assign(tutti_center *);
/* Reads a consistent center, each server's part of one moment between two pushes, as tutti_table_snapshot does, and
 * stops nobody: for a rank that tests. to: tensors as params were, or params. *versions may be NULL. -EINVAL: also if
 * the servers keep no versions. */
int tutti_center_read(tutti_center *, const tutti_tensor *to, tutti_versions *versions);
/* EAMSGD: to = x + momentum v, where the gradient is to be taken (to: as of tutti_center_read, and not params), and the
 * step with it, v = momentum v - learning_rate gradient; x += v. v is 0 at first. Does not block. Zhang et al.,
 * Algorithm 2, which exchanges between the two. -EINVAL: config.momentum is 0. */
int tutti_center_ahead(tutti_center *, const tutti_tensor *to);
int tutti_center_move(tutti_center *, const tutti_tensor *gradient, double learning_rate);
/* Save and load what a worker has beside its params: `old` of deltas, v of EAMSGD, its steps since the last exchange.
 * tutti_table_save of tutti_center_table saves the center. After a restart ranks open the center, one rank calls
 * tutti_table_load, and behind a barrier each rank sets its params as they were, and loads. Schedules are not saved.
 * -EINVAL: also after an exchange that has failed, until it is made again. */
int tutti_center_save(tutti_center *, const char *path);
int tutti_center_load(tutti_center *, const char *path);
/* Returns its table, to save, load, look at, reopen and finish; tutti_center_close closes it. */
tutti_table *tutti_center_table(tutti_center *);

/* ---- averaging: gossip ----
 *
 * Each rank publishes its copy of the model now and then, and averages what it has with the published copy of one other
 * rank: x = (1 - f) x + f y. Nobody is asked and nobody locks: the reader takes the bytes by itself, out of a buffer
 * that the owner leaves alone, and drops what it read if the owner has begun to write there meanwhile. A rank that is
 * slow, stopped or dead delays nobody. The ranks of all functions here are the job's (tutti_job). Peers are all ranks
 * of the job, or the other ranks of the group that the gossip was opened with.
 *
 * A round:   publish(loss)    from now on others may read this model; a peer is chosen, and its model comes meanwhile
 *            one step of training
 *            mix(loss)        averages the model after the step with the peer's published one
 *
 * The model lies in memory of the program: publish copies it into a buffer, and mix writes the result back. Or the
 * library holds it (all data NULL): tutti_gossip_model says where, and nothing is copied.
 *
 * Sources: dpwa; Gossip SGD (Jin et al., arXiv 1611.04581); GoSGD (Blot et al., arXiv 1611.09726); push-sum (Kempe et
 * al., FOCS 2003); the one-peer exponential graph (Ying et al., NeurIPS 2021). */
typedef enum tutti_gossip_way {
	TUTTI_GOSSIP_PULL,       /* reads what another rank has published */
	TUTTI_GOSSIP_PUSH,       /* gives it to another rank, which averages its own with all that came, each as much */
	TUTTI_GOSSIP_PUSH_SUM,   /* gives it with half of this rank's weight w; the receiver's
	                          * x = (w_r x_r + w_s x_s) / (w_r + w_s): the mean of all stays as it is (GoSGD) */
} tutti_gossip_way;
typedef enum tutti_gossip_choice { /* of the peer of a round, among those that are there */
	TUTTI_CHOICE_UNIFORM,
	TUTTI_CHOICE_EXPONENTIAL, /* rank + 1, 2, 4, ... in turn */
	TUTTI_CHOICE_RING,        /* the next rank, the one before, in turn */
	TUTTI_CHOICE_HOSTS,       /* one of this host, and every fourth time one of another host */
	TUTTI_CHOICE_DPWA,        /* the highest score + a chance number from 10 to 1000. A score begins at 1000, gets
	                           * 10 more with each fetch and 100 less where it is late or refused, and stays from 10
	                           * to 1000; a peer that answers nonsense is removed until it has started anew */
	TUTTI_CHOICE_OWN,         /* `choose` */
} tutti_gossip_choice;
typedef enum tutti_gossip_method { /* f; then, if loss < divergence_threshold, f = f loss / divergence_threshold */
	TUTTI_GOSSIP_CONSTANT,    /* value */
	TUTTI_GOSSIP_CLOCK,       /* peer's clock / (own clock + peer's clock) */
	TUTTI_GOSSIP_LOSS,        /* own loss / (own loss + peer's loss): the better one counts more */
} tutti_gossip_method;
typedef enum tutti_gossip_place { /* of the buffers of a model on a GPU; other models have them in host memory */
	TUTTI_PLACE_MODEL,        /* on that GPU: all ranks must have them there */
	TUTTI_PLACE_HOST,         /* in host memory: takes no more of the GPU's than a copy of a peer's model */
} tutti_gossip_place;
typedef struct tutti_gossip_config {
	tutti_gossip_way way;
	tutti_gossip_choice choice;
	tutti_gossip_method method; /* of pull */
	double value;             /* from 0 to 1; 0.5 */
	double divergence_threshold; /* 0: none */
	double fetch_probability; /* of a round to have a peer at all; 1 */
	int buffers;              /* of the model's size, 2 to 4; push: 3 or 4; one more with a model that the library
	                           * holds. 0: 3, push 4. More of them: readers are overtaken less often */
	int timeout_ms;           /* how long mix waits. 0: four times as long as the slowest of the recent fetches
	                           * took, at least 50 ms; 1000 ms before the first fetch has ended */
	uint64_t seed;            /* of the choices, together with the rank; 0: another one each time */
	double clock;             /* at the start; 0. Of a rank that goes on from a save: as it was */
	double weight;            /* push-sum: at the start, above 0; NaN: 1 / ranks that the job was started with, or
	                           * of the group */
	int (*choose)(void *arg); /* OWN: publish calls it once others may read this model; returns a rank, or
	                           * -1: none */
	void *arg;
	tutti_gossip_place place;
	uint64_t reserved[7];
} tutti_gossip_config;
/* Returns a config: pull from a uniform peer, f = 0.5. The program sets the members that differ. */
tutti_gossip_config tutti_gossip_defaults(void);
/* Sets those members that the section `gossip` of the job's config file has: tutti.conf(5). 0 also if there is no file
 * or no section. -EINVAL: an unknown key, a value out of range. */
int tutti_gossip_configure(tutti *, tutti_gossip_config *);

typedef struct tutti_gossip tutti_gossip;
/* Opens a gossip under a name of 1 to 160 bytes, with the same model on all ranks. A list with data NULL everywhere:
 * the library holds the model. Local: does not wait for others, which may come late. One thread at a time uses it.
 * With a group of tutti_group_split or tutti_group_of, the peers are the other ranks of the group. With every other
 * group, they are all ranks of the job, also ranks that come late.
 * A model may lie on one GPU, with TUTTI_GOSSIP_PULL. -EINVAL: also a config whose parts contradict each other;
 * -EEXIST: the name is open here; -ENOMEM; -ENOTSUP: such a model with another way, or in two places, or this build
 * has no kernels for GPUs. */
int tutti_gossip_open(tutti *, const char *name, const tutti_tensor *model, int n, const tutti_gossip_config *,
                      tutti_gossip **);
/* Ends this rank's part. Its weight goes with it, and the other ranks count that as lost. NULL is allowed. Blocks until
 * what is under way has ended, for TUTTI_SILENCE at most. The memory of tutti_gossip_model ends with it. */
void tutti_gossip_close(tutti_gossip *);
/* Gives the places of the n tensors in the library's buffers, until the next publish or mix: *now* the published model,
 * which must not be changed, *next* where the program writes the model after its step, all of it. Before the first
 * publish the program writes the model that it begins with into `next`, and `now` has no use. Either may be NULL.
 * -EINVAL: the program holds the model. */
int tutti_gossip_model(tutti_gossip *, tutti_tensor *now, tutti_tensor *next);
/* Publishes the model: the program's tensors, by a copy, or `next`, at no cost. The clock grows by 1. With
 * fetch_probability chooses a peer, and starts to read its model, or gives it this one. Does not block; but with a
 * model on a GPU it waits for the thread's stream, and for the copy: -EIO; -EINTR: call it again. -ECONNRESET: the
 * other ranks have told this one that they go on without it: leave the job, join it again, open again. */
int tutti_gossip_publish(tutti_gossip *, double loss);
typedef struct tutti_gossip_result {
	int peer;                 /* with whom; -1: with nobody. Push: who came last */
	double factor;            /* f; push: what all others together have in the result */
	double clock;             /* f peer's clock + (1 - f) own; push: as it was */
	unsigned retries;         /* reads that the owner has overtaken */
	int gifts;                /* push: how many were taken in */
	int peer_not_finite;      /* pull: 1: the peer's loss is infinite or NaN, and f is 0 */
	double peer_clock, peer_loss; /* pull: of the model that the peer has published */
	double age_ms;            /* milliseconds since the peer has published that model, by the calendars of both
	                           * hosts; 0 where they disagree */
	char why[200];            /* with nobody: the sentence why; else "" */
	uint64_t reserved[4];
} tutti_gossip_result;
/* Averages: pull: waits for the peer's model, timeout_ms at most. Push: takes in what has come. result: NULL is
 * allowed. The result goes into the program's tensors, or into `next`. Integers are not averaged: they are taken over
 * from the side with more than half. A peer whose clock (or loss) does not make a factor together with mine (0 / 0)
 * gets 0.5; a factor below 0 is 0, above 1 is 1. A loss that is infinite or NaN says that the model is spoiled, under
 * every method: f is 0 if it is the peer's loss, and 1 if it is mine alone. A program without losses gives 0. That
 * there is no peer in a round is no error. -ECONNRESET as above. -EINTR: the peer's model goes on coming, and the next
 * mix, of this round, averages with it. */
int tutti_gossip_mix(tutti_gossip *, double loss, tutti_gossip_result *);
/* Pull: starts a mix with a copy of the model, and returns: the program takes more steps meanwhile, and the library
 * does not touch the model. The operation ends when the peer's model can be read, when the round has no peer, or after
 * timeout_ms. Then tutti_gossip_mix_apply adds the move of the copy to today's model: x += f (y - copy); with a library
 * that holds the model into `next`, which is elsewhere afterwards: tutti_gossip_model. If this rank's loss is not
 * finite, x is the peer's model. Until then publish, mix and fetch are -EALREADY. tutti_cancel(op) ends the mix alone:
 * the round goes on, and another mix may end it. Takes one more copy of the model. Does not block. -ENOTSUP: the way is
 * push, or the model is on a GPU; -ENOMEM; -ECONNRESET as above. */
int tutti_gossip_mix_start(tutti_gossip *, double loss, tutti_op *op);
/* As tutti_gossip_mix, but next to never waits. -EINPROGRESS: the operation runs; -EINVAL: nothing was started; -EINTR:
 * call it again. */
int tutti_gossip_mix_apply(tutti_gossip *, tutti_gossip_result *);
/* Pull: ends the round without averaging: waits for the peer's model as tutti_gossip_mix does, and copies the model
 * into `to`, n tensors with the counts and types of the model. result: as of tutti_gossip_mix. factor is the f with
 * which tutti_gossip_mix would average, and the clock is set as if the program averages with that f. With no peer (-1)
 * `to` holds nothing useful. -EINVAL: other tensors; -ENOTSUP: the way is push; -ECONNRESET as above; -EINTR: call it
 * again. */
int tutti_gossip_fetch(tutti_gossip *, double loss, const tutti_tensor *to, tutti_gossip_result *result);
/* Sets `value` of TUTTI_GOSSIP_CONSTANT, from 0 to 1: f from the next tutti_gossip_mix on, of this rank alone. Does not
 * block. -EINVAL: another value. */
int tutti_gossip_set_value(tutti_gossip *, double value);
/* Returns `value` as it is set now; NaN if the gossip is NULL. Does not block. */
double tutti_gossip_value(const tutti_gossip *);
typedef struct tutti_gossip_info {
	double clock;
	double weight;            /* push-sum: mine; ... */
	double in_flight;         /* ... given and not taken yet, or taken and not mixed yet; ... */
	double lost;              /* ... given to ranks that have gone or closed since, less what came from them. Of all
	                           * that are left together, and what the others began with: exactly what is missing */
	int offers;               /* push: ranks that have offered a gift, which waits for mix or was withdrawn since */
	int peers;                /* how many are there. 0: all have gone; or this rank was silent for too long, and
	                           * they go on without it: then it leaves the job, and joins it again */
	uint64_t published, mixed, retries;
	uint64_t reserved[4];
} tutti_gossip_info;
int tutti_gossip_look(tutti_gossip *, tutti_gossip_info *); /* does not block */
/* Save and load clock, weight, and what chooses the next peers. Scores of TUTTI_CHOICE_DPWA begin anew: they are of
 * processes that have ended. Weight that is in flight is not in the file: a program of push-sum saves when all ranks
 * have mixed, and info.in_flight is 0. A load comes before the first publish. */
int tutti_gossip_save(tutti_gossip *, const char *path);
int tutti_gossip_load(tutti_gossip *, const char *path);
/* At first all ranks of the job are peers, also those that come late; or all of the gossip's group. Removes one, adds
 * it again: by the name of its node in the node list, the number of its rank, or the name of its host if only one other
 * rank is there. This rank takes nothing new from a removed peer, and gives it nothing: a gift that the peer has not
 * taken comes back, and a model whose bytes are arriving is mixed. -ENOENT: also a rank that is not in the group. */
int tutti_gossip_add_peer(tutti_gossip *, const char *name);
int tutti_gossip_remove_peer(tutti_gossip *, const char *name);
int tutti_gossip_score(tutti_gossip *, const char *name); /* 10 to 1000; -ENOENT: also one that was removed */

/* ---- publication: versions of a model for many readers ----
 *
 * A publisher shows versions of a list of tensors, under a name: the weights of a training job, say, for processes that
 * infer, evaluate or roll out. Readers take the newest whole version out of the publisher's memory by themselves. They
 * never see a version in part. The publisher never waits for a reader, and a reader that is slow, stopped or dead
 * costs the publisher nothing.
 *
 * The publisher has 3 to 16 buffers, each as large as the model, and writes into the one whose version is the oldest.
 * A reader looks afterwards whether what it has read was overwritten meanwhile. A reader that was overtaken three times
 * holds the next version it reads: the publisher takes other buffers, until the reader has read, is gone, or hold_ms
 * have passed. With all buffers but the newest held, the publisher writes over the newest.
 *
 * Readers are ranks of the publisher's job. So that readers cannot disturb a training job, the publisher's process
 * joins a second job beside it, as rank 0 of 1 with a `boot` of its own. Readers join that job as new ranks.
 *
 * One thread at a time calls publish, begin and commit of a publisher, or fetch and update of a reader; the other
 * functions may be called meanwhile. Memory of a GPU is -ENOTSUP.
 * Source: a sequence lock (Lameter 2005; Boehm, MSPC 2012); holds are hazard pointers (Michael 2004) with an end. */
typedef struct tutti_publisher tutti_publisher;
typedef struct tutti_reader tutti_reader;
typedef struct tutti_weight {
	const char *name;         /* 1 to 255 bytes */
	tutti_type type;
	int dims;                 /* 0 to 8; 0: one element */
	size_t shape[8];
	void *data;               /* of a reader's list: NULL */
	int shard;                /* of a reader's list: which shard has it; else 0 */
	uint64_t reserved[3];
} tutti_weight;
typedef struct tutti_publisher_config { /* zeros are the defaults */
	int buffers;              /* 3 to 16; 0: 3. More of them: readers are overtaken less often */
	int hold_ms;              /* how long a reader may hold a version, from the time when the publisher first wants
	                           * its buffer: longer than a fetch takes; 0: 5000 */
	uint64_t generation;      /* readers compare versions within one generation; 0: the time of the opening. A
	                           * process that publishes under the name after another one has another one */
	double deltas;            /* memory for deltas, which tutti_reader_update takes, as a part of the tensors'
	                           * bytes, up to 16: 0.5 is half of these bytes. 0: no deltas */
	/* A publication in shards: several ranks publish under one name, each its own part of the tensors. */
	int shards;               /* how many there are: 2 to 1024; 0: this publisher has all tensors */
	int shard;                /* which one this is, from 0 up */
	int shard_0;              /* the rank in the group that has shard 0, where readers begin */
	int shard_wait_ms;        /* how long begin and publish wait for slower shards; 0: not; -1: the group's
	                           * timeout */
	uint64_t reserved[3];
} tutti_publisher_config;
/* Opens a publication under a name of 1 to 160 bytes, of n tensors. Names, types and shapes are copied, and stay as
 * they are. data: where publish takes a tensor from; with data NULL in all of them, the program writes versions in
 * place alone. config NULL: the defaults. Does not block, unless it is a shard. -EINVAL; -EEXIST: the name is open
 * here; -ENOMEM.
 *   A shard names the generation, the same one as all shards, and publishes the same versions as they do. Shards other
 * than shard 0 wait for shard 0 to open that generation. -ETIMEDOUT: it did not; -ESTALE: it has a later one. */
int tutti_publisher_open(tutti *, const char *name, const tutti_weight *weights, int n,
                         const tutti_publisher_config *config, tutti_publisher **publisher);
/* Readers that fetch afterwards get -ESTALE once, then wait for the name to be open again. NULL is allowed. Blocks as
 * tutti_window_close does. */
void tutti_publisher_close(tutti_publisher *);
/* Copies the tensors into a buffer and shows them as that version, with up to 4096 bytes of meta data. version: 1 or
 * more, above that of the last call, less than 2^60. Does not block, unless it is a shard. -EINVAL.
 *   Readers of shards see the newest version that all shards have, and no shard writes over that version. A shard waits
 * for the slowest one while it is ahead by half of its buffers (rounded up), shard_wait_ms at most. It never waits for
 * a reader. -EAGAIN: the shard is still ahead, and has published nothing. -ECONNRESET, -ENOTCONN: a shard is gone.
 * -ESTALE: shard 0 has closed the name; the version may have been published nevertheless. After -EAGAIN a shard calls
 * again. After the other errors all shards close, and open the name under a higher generation. */
int tutti_publisher_publish(tutti_publisher *, uint64_t version, const void *meta, size_t meta_bytes);
/* The same without a copy: the program writes all elements into a buffer, between these calls. to: gets the list of the
 * tensors, n of them, as they lie in the buffer; they hold an older version, or zeros. Until the commit another begin
 * gives the same buffer, and publish uses it. Neither blocks, unless it is a shard: then as publish. -EINVAL: commit
 * without begin. */
int tutti_publisher_begin(tutti_publisher *, tutti_tensor *to);
int tutti_publisher_commit(tutti_publisher *, uint64_t version, const void *meta, size_t meta_bytes);
/* Waits until `readers` readers that are there have taken this version or a newer one, or are there at all (0): only a
 * program that wants to be held back calls it. timeout_ms -1: the group's; 0: only look. -ETIMEDOUT. */
int tutti_publisher_wait(tutti_publisher *, uint64_t version, int readers, int timeout_ms);
typedef struct tutti_publisher_info {
	uint64_t version;         /* the newest; 0: none */
	uint64_t generation;
	uint64_t published;       /* how many versions */
	uint64_t reused;          /* how often all buffers but the newest were held */
	int readers;              /* that are there now */
	uint64_t delta_bytes;     /* of the newest version's delta; 0: it has none */
	uint64_t reserved[3];
} tutti_publisher_info;
int tutti_publisher_look(tutti_publisher *, tutti_publisher_info *); /* does not block */

/* Opens a reader of the publication that another rank of the group has under this name. Blocks, as a get does, until
 * that rank has opened it. If the publication has shards, the rank is shard 0's, and the list is that of shard 0, then
 * that of shard 1, and so on. One reader of a name in a process and job. -ENOENT: the rank, or a shard, did not open it
 * in time; -EBADMSG: the rank publishes nothing under this name; -EEXIST; -EINVAL: this rank itself. */
int tutti_reader_open(tutti *, const char *name, int rank, tutti_reader **reader);
void tutti_reader_close(tutti_reader *); /* NULL is allowed. Blocks as tutti_window_close does */
int tutti_reader_weights(tutti_reader *); /* returns how many tensors the publication has. Does not block */
/* Gives name, type and shape of tensor i, from 0 up; data is NULL. The name is valid until the close. Does not
 * block. */
int tutti_reader_weight(tutti_reader *, int i, tutti_weight *weight);
/* Gives the newest version; 0: there is none. One get of 8 bytes, with a get's errors. -ESTALE: the name is closed. */
int tutti_reader_newest(tutti_reader *, uint64_t *version);
typedef struct tutti_fetched {
	uint64_t version, generation;
	double age_ms;            /* since it was published, by both hosts' clocks */
	size_t meta_bytes;
	unsigned overtaken;       /* how often this fetch began anew */
	char meta[4096];
	unsigned deltas;          /* how many deltas were applied; 0: the version came whole */
	uint64_t bytes;           /* how many bytes came */
	uint64_t mismatched;      /* how often, since the reader was opened, deltas led to a wrong checksum */
	uint64_t reserved[2];
} tutti_fetched;
/* Reads the newest version, if it is above newer_than (0: any), or waits for one: it looks every 50 us at first, every
 * 5 ms later. to: a list of as many tensors as tutti_reader_weights says; those with data NULL are left out, the others
 * have the publication's types and counts. After an error their elements may be of several versions. timeout_ms: for
 * a newer version, -1: the group's; 0: only look; for bytes that come it waits as an operation. If the publisher has
 * opened the name again under another generation, all its versions are newer, and the reader goes on by itself.
 *   -ETIMEDOUT: there is no newer one. -EAGAIN: overtaken until then. -ESTALE: the publisher has closed the name; the
 * next call waits until it is open again. -ECONNRESET, -ENOTCONN: the publisher went down, or has left; if it comes
 * back under its rank, and opens the name, a later call succeeds. -EBADMSG: it publishes other tensors now. -EINTR: the
 * program may call again. */
int tutti_reader_fetch(tutti_reader *, uint64_t newer_than, const tutti_tensor *to, int timeout_ms,
                       tutti_fetched *fetched);
/* The same, into memory that has version `held` as this reader has fetched it; 0: as tutti_reader_fetch. If the
 * publisher keeps deltas, all tensors are given, and the deltas from `held` to the newest version are shorter than that
 * version, the reader fetches them, applies them, and compares a checksum of all elements. In all other cases, and
 * after a wrong checksum, the version comes whole. The reader needs memory for the deltas' bytes. -ENOMEM. */
int tutti_reader_update(tutti_reader *, uint64_t newer_than, uint64_t held, const tutti_tensor *to, int timeout_ms,
                        tutti_fetched *fetched);

/* ---- controller and workers ----
 *
 * One rank of a group, the controller, answers what the others, its workers, ask: what to do next, what a validation
 * means. The answers are the program's own function, which runs inside tutti_controller_serve and nowhere else.
 * Parameters that workers share are a center or a table, with this lock or without it; the controller has none.
 * A handle takes one call at a time, else -EALREADY; handles of other names are other controllers. What a worker calls
 * waits for an answer, and ends:
 *   -EINTR: the same call goes on with its request, which is not made twice. When tutti_controller_serve or
 * tutti_controller_next is interrupted, workers wait until the controller calls it again.
 *   -ETIMEDOUT: the controller lives, and has not answered in time. A request that was given up may be answered still:
 * the worker's next call waits for that first. -ECONNRESET, -ENOTCONN: the controller is gone. -ESHUTDOWN: it serves no
 * more. -ESTALE: it has closed the handle.
 * Source: Platoon's controller and workers, 2016. */
typedef struct tutti_controller tutti_controller;
enum { TUTTI_REQUEST_MAX = 16384 }; /* bytes of a request, and of its answer */
typedef struct tutti_request {
	int worker;              /* rank in the group */
	tutti_what what;         /* JOINED: it asks; LEFT: it is done, or has left the job; GONE: it went down */
	const void *data;        /* of a request: valid until the answer */
	size_t bytes;
	uint64_t reserved[4];
} tutti_request;

/* Opens a controller, under a name of 1 to 160 bytes, on all ranks of the group that take part. controller: its rank.
 * Does not block. Not for ranks that tutti_job has beyond its size. -EINVAL; -EEXIST; -EMFILE; -ENOMEM. */
int tutti_controller_open(tutti *, const char *name, int controller, tutti_controller **);
/* A worker that has asked, and has not said that it is done, says so without waiting for an answer. NULL is allowed. */
void tutti_controller_close(tutti_controller *);
/* On the controller: answers until each worker is done, or gone, or tutti_controller_stop was called. Blocks so long.
 * Afterwards requests get -ESHUTDOWN, until it is called again. -EINVAL: on a worker; else as a window's calls.
 * function: is called for one request at a time. It sets up to `room` bytes of `answer`, and returns how many it has
 * set; or a negative errno, which the worker's call returns then, and `answer` may have a sentence for it, as text: all
 * else goes on. It may make any call, but on this handle stop alone; others wait for their answers meanwhile. Where a
 * worker is done or gone, once each, there is nothing to answer. */
int tutti_controller_serve(tutti_controller *,
                           int (*function)(const tutti_request *, void *answer, size_t room, void *arg), void *arg);
/* The same without a callback. On the controller: waits for the next request, and serves locks and firsts meanwhile.
 * Returns 1, and *request is the request. JOINED: the worker asks, and waits for tutti_controller_answer; the program
 * may take the requests of other workers first. data stays valid until that answer, or until the worker is gone. LEFT,
 * GONE: the worker is done or gone, an open request of the worker has ended, and there is nothing to answer. Returns 0
 * where tutti_controller_serve would end: open requests get -ESHUTDOWN. The next call serves again. timeout_ms: -1:
 * without an end; 0: only look. -ETIMEDOUT: no worker has asked; the next call goes on. -EINVAL: on a worker. */
int tutti_controller_next(tutti_controller *, tutti_request *, int timeout_ms);
/* Answers the open request of a worker, from any thread, also while another thread is in tutti_controller_next. err 0:
 * the answer has `bytes` bytes, up to TUTTI_REQUEST_MAX. A negative errno is the result of the worker's call, and
 * `answer` is its sentence, as text. Does not block. -EINVAL: the worker has no open request. -ECONNRESET, -ENOTCONN,
 * -ESTALE: the worker is gone. -EMSGSIZE: the answer is too long, and the request stays open. */
int tutti_controller_answer(tutti_controller *, int worker, int err, const void *answer, size_t bytes);
/* On the controller, from the function that answers, or another thread: serving ends, after 160 ms at most. */
void tutti_controller_stop(tutti_controller *);
/* Asks. request: `bytes` bytes, 0 too. answer: room bytes; *answer_bytes, which may be NULL: how many came. timeout_ms
 * -1: the group's, as it was at opening. Blocks until the answer is there. -EMSGSIZE: the request or the answer is too
 * long. Also what the controller's function returned, with its sentence. */
int tutti_controller_ask(tutti_controller *, const void *request, size_t bytes, void *answer, size_t room,
                         size_t *answer_bytes, int timeout_ms);
/* This worker asks no more; -EINVAL if it calls again. Frees a lock. Blocks until the controller has heard it. */
int tutti_controller_done(tutti_controller *);
/* Returns 1 to the worker that is the first to make its k-th call, for each k, and 0 to the others: of n workers that
 * call in turn each n-th call gets 1. Deaths do not shift it. */
int tutti_controller_first(tutti_controller *);
/* The controller's one lock. Workers get it in the order in which they ask, and one that dies, leaves or is done frees
 * it, also one that was stopped and is evicted for its silence. It is granted while the controller serves, and is not
 * in the program's own function. timeout_ms: how long to wait in the queue; 0: only if it is free; -1: the group's.
 * Blocks for the controller's answer as well, in the group's timeout.
 *   -EBUSY: another worker has it, by then. -EDEADLK: this worker has it already. Of unlock -EPERM: it does not. */
int tutti_controller_lock(tutti_controller *, int timeout_ms);
int tutti_controller_unlock(tutti_controller *);

/* ---- queues of batches ----
 *
 * One rank of a group, the producer, sends batches, each to one of the others, its workers, who take them one after
 * another. A batch is a list of arrays. At most `depth` batches wait, besides one in the hands of each worker; they
 * wait in the producer's memory, each assigned to the worker that has the fewest. A worker has done with a batch when
 * it takes the next one, or closes the queue. What else it was assigned when it dies, leaves or closes goes to another
 * one, at the producer's next call, and is counted: no batch is lost, but the one that a worker had in its hands when
 * it died may be worked on twice. A handle takes one call at a time, else -EALREADY. After -EINTR a call may be made
 * again.
 * Source: Platoon's send_mb and recv_mb, 2016. */
typedef struct tutti_queue tutti_queue;
enum { TUTTI_QUEUE_ARRAYS = 16 }; /* in a batch, at most */
/* Opens a queue under a name of 1 to 160 bytes, on all ranks of the group that take part. producer: its rank. bytes:
 * the most that a batch has, and depth (0: 10): the same on all ranks. Does not block. A worker that comes back after
 * its death gets nothing more of a queue that others have open. Errors as tutti_controller_open. */
int tutti_queue_open(tutti *, const char *name, int producer, size_t bytes, int depth, tutti_queue **);
/* The producer ends the queue first, or workers wait for their timeout. NULL is allowed. */
void tutti_queue_close(tutti_queue *);
/* Sends a copy of n arrays, 1 to TUTTI_QUEUE_ARRAYS, of any types and counts. Blocks while the queue is full, and until
 * a worker hears of the batch, a second at most: for a second batches are left for workers that open the queue later.
 * Then, or at the timeout, workers that have opened it get all; where none has, each gets one, for when it opens the
 * queue, and others wait for the producer's next call.
 * timeout_ms -1: the group's; 0: only look. -ETIMEDOUT: it is full still; -EMSGSIZE: more than `bytes`; -ECONNRESET:
 * all workers are gone; -ESHUTDOWN: the queue has ended. */
int tutti_queue_send(tutti_queue *, const tutti_tensor *arrays, int n, int timeout_ms);
/* Takes the next batch. *arrays: its list, in memory of the queue's, until the next call. Blocks until there is one;
 * timeout_ms as above. Returns how many arrays there are; 0: the producer has ended the queue. -ETIMEDOUT: none came;
 * -ECONNRESET, -ENOTCONN: the producer is gone. */
int tutti_queue_receive(tutti_queue *, const tutti_tensor **arrays, int timeout_ms);
/* The producer has no more. Blocks until workers have done with all batches. Returns how many of them were given to
 * another worker, in all; after -ETIMEDOUT it may be called again. -ECONNRESET: all workers are gone, with batches
 * left. */
int tutti_queue_end(tutti_queue *, int timeout_ms);

/* Returns the sentence behind this thread's last error; valid until its next one. Functions without a result leave
 * it. */
const char *tutti_why(void);
const char *tutti_version(void); /* "0.1.0" */
/* Returns the name of an error, "ETIMEDOUT" of -ETIMEDOUT or ETIMEDOUT; NULL: no error that Tutti returns. */
const char *tutti_error_name(int err);
/* Returns the TUTTI_ABI of the library that runs. A program or a binding that loads the library by itself compares it
 * with the TUTTI_ABI that it was written for, and goes on only if they are equal. */
int tutti_abi(void);

/* ---- log lines ----
 *
 * The library writes lines about events to standard error, those that TUTTI_LOG asks for: "tutti: rank 3: warn: ...".
 * Lines belong to the process, not to a job. Logging never blocks: lines that standard error does not take wait in a
 * queue of 256 lines, and lines that find the queue full are counted; a line says later how many were lost. */
typedef enum tutti_log_level { TUTTI_LOG_ERROR, TUTTI_LOG_WARN, TUTTI_LOG_INFO, TUTTI_LOG_DEBUG } tutti_log_level;
typedef struct tutti_log_line {
	tutti_log_level level;
	int rank;             /* in the job; -1: the line is not about a job, or the rank is not known yet */
	double time_s;        /* seconds since 1970, by this host's clock */
	char text[512];
	uint64_t reserved[4]; /* 0 */
} tutti_log_line;
/* From now on the program takes the lines, and standard error gets none. Returns a descriptor that is readable while
 * lines wait, or -errno. Does not block. A child of fork() begins without it: its lines go to standard error.
 *   -EBUSY: the program takes the lines already. -EMFILE. */
int tutti_log_open(void);
/* Takes the oldest line. Returns 1; 0: no line waits. Does not block. -EINVAL: tutti_log_open was not called. */
int tutti_log_next(tutti_log_line *line);
/* Closes the descriptor. Lines that wait, and all later lines, go to standard error. The end of the process does the
 * same. */
void tutti_log_close(void);
#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
#endif
