/* member.h - the other ranks of the job: connections, messages, heartbeats, news of failures, groups */
#ifndef TT_MEMBER_H
#define TT_MEMBER_H
#include "base/pack.h"
#include "engine/engine.h"
#include "launch/launch.h"

enum { TT_MEMBER_SLOT = 0, TT_GROUPS = 1024, TT_FREED_GROUPS = 256 };

enum { TT_DOING = 200 }; /* bytes of the text in a PONG, with the zero */

enum { TT_SAYS_EVICTED, TT_SAYS_BOOT }; /* the others have evicted the rank, and why; a TUTTI_BOOT for newcomers */

struct tt_saying { /* what a rank tells `tutti run`: one write, which a pipe takes as a whole */
	int32_t rank, what; /* the rank that `tutti run` started the process as */
	char text[504];
};

struct tt_claim;
struct tt_forming;
struct tt_newcomer;
struct tt_watch;
extern const struct tt_module tt_member_module;

#define tt_each_group(g, job) tt_each_of(struct tutti, link, g, &tt_members(job)->groups)
#define tt_each_link(l, job) tt_each_of(struct tt_link, all, l, &tt_members(job)->links)

struct tt_reads { /* GETs and ADDs under way from memory that may be recalled */
	unsigned under_way;
	uint32_t recall;            /* the number to be answered when all have ended; 0: none */
};

struct tt_post { /* an op for a member, which may wait here until there is a connection */
	struct tt_op op;
	struct tt_member *member;
	struct tt_pinned *pinned;   /* of the call that it belongs to; NULL: the memory is scratch, or short */
	struct tt_reads *reads;     /* where a GET or an ADD is counted; NULL: nowhere */
	uint64_t since;             /* in ticks; 0: not timed */
	void (*done)(struct tt_post *, int err);
};

/* ---- members and their connections ---- */

enum tt_member_state {
	TT_AWAY,       /* not connected yet */
	TT_CONNECTING, /* posts wait */
	TT_PARTING,    /* connected, but posts wait: this rank has asked to close the connection */
	TT_UP,
	TT_LEFT,       /* said goodbye */
	TT_GONE,       /* went down or was evicted */
};

struct tt_heartbeat { /* what is known of the process at the other end of a connection */
	uint64_t received;          /* tt_peer.received at the last look */
	uint64_t since;             /* time of the look at which that had grown */
	uint64_t before;            /* tt_peer.received when the PING went out ... */
	bool asked;                 /* ... that has no PONG yet */
	uint64_t looked;            /* when it was last asked whether the net stalls */
};

struct tt_link { /* one connection; usually the only one to its member */
	struct tt_list all;         /* in tt_members.links */
	struct tt_list doom;        /* in tt_members.doomed once nobody needs it */
	struct tt_job *job;
	struct tt_peer *peer;
	struct tt_member *member;   /* NULL until the other side has said its rank */
	bool mine;                  /* this rank connected */
	struct tt_timer patience;   /* while the other side has not said its rank */
	struct tt_claim *claim;     /* of a newcomer there, about which this rank asks the others; or NULL */
	bool asked_where;           /* and has no answer yet */
	bool used;                  /* for more than the rendezvous, or made after it */
	bool parted;                /* belongs to no member any more: the other side disconnects */
	bool probe;                 /* of rank 0, which joins: is its job under way there? */
	struct tt_list loans;       /* keys that the other side holds */
	struct tt_timer recall;     /* while some of these loans are recalled ... */
	uint64_t recall_seen;       /* ... what had been received when it was started */
	bool doubted;               /* a later life of its member has come: this connection was sent a PING */
	struct tt_heartbeat heartbeat;
};

struct tt_member { /* n ranks together have n * n of it, hence few holes */
	struct tt_job *job;
	int rank;
	enum tt_member_state state;
	const char *addr;           /* one address for each of its nets, see address.c; "" until known. Its own copy */
	uint8_t way;                /* that is tried, or was last: TT_DEVICES for each net, one for each address */
	uint8_t listed;             /* node list: bytes of addr before it said WHERE; 0: it has not */
	uint32_t failed_ways;       /* a bit for each that did not lead there, while another did */
	unsigned outstanding;       /* ops that the transport holds, and calls that use its memory */
	unsigned staged;            /* PUTs to it that move in pieces, and what waits behind them (runtime/device/) */
	uint64_t host;              /* equal on one host, 40 bits; 0: not known */
	uint32_t cpus;              /* equal if they may run on the same processors, 24 bits; 0: not known */
	uint32_t epoch;             /* tells its lives apart; 0: not known */
	struct tt_link *link;       /* carries posts, or is being connected */
	struct tt_link *standby;    /* is up; stays until the better net that is tried leads there, or does not */
	struct tt_op_queue waiting; /* posted before it is up */
	uint64_t unreached;         /* when connecting failed for lack of files, which says nothing about it */
	uint32_t started, started_in; /* collectives that it has started, as last heard, and in which group (uid) ... */
	uint64_t heard;             /* ... and when the member itself has said that */
	uint64_t told;              /* when this rank has told others last that it is behind ... */
	uint32_t told_in;           /* ... and in which group (uid) */
	int err;                    /* LEFT, GONE: what later uses return ... */
	const char *why;            /* ... and why, "" until then */
	char *why_not;              /* the sentence about the first net that failed, or NULL */
	char *doing;                /* what its program does, as last heard, or NULL */
	uint32_t promised;          /* this rank has consented to this life of it; 0: to none ... */
	int promised_to;            /* ... which that rank wants to let in */
	uint8_t *bye;               /* LEFT: its goodbye, from the number of ranks on ... */
	size_t bye_len;
	bool passed_on;             /* ... and the others have been told */
	bool settled;               /* has the table of endpoints: it has used a connection for more */
	bool nets_again;            /* the better nets were tried a second time */
	bool late;                  /* a net of this host was given up since nothing had come over it in time */
	bool outside;               /* joined a job under way, and is in no group yet */
	bool sponsored;             /* this rank has let it in */
	bool removed;               /* node list: the program has taken it out */
	bool returned;              /* node list: this life of it is not its first one */
	bool guest;                 /* its list has this process, and this process's list does not have it */
	bool sought;                /* own list: it has ended, and this process tries to meet its next life */
	bool quiet;                 /* GONE for this rank alone: the others are not told */
	bool silent;                /* GONE, because it gave no sign of life */
	bool untold;                /* the others are to hear soon that it is gone, or has left */
	bool courtesy;              /* is being connected for the ring alone: it may have left unheard */
	bool accuser;               /* has told this rank that it evicts it */
	bool fed;                   /* has heard from here of everyone who is gone */
	unsigned telling;           /* the last of tt_members.tellings that it heard */
	unsigned tries;             /* to connect for the first time ... */
	uint64_t patience;          /* ... which go on until then. LEFT, GONE: the rank is not met again until then */
	struct tt_timer retry;      /* of connecting while joining; of telling others */
	void **own;                 /* structs of higher rooms, by slot; NULL: none yet */
	struct tt_stats *stats;     /* NULL: nothing was counted yet */
};

struct tt_freed_group { /* what the goodbye of this rank says of it */
	uint32_t uid, finished;
	bool voted;
};

struct tt_members { /* the room's own struct in a job */
	struct tt_job *job;
	struct tt_member *of;       /* by rank: those that the job was started with ... */
	struct tt_member *more;     /* ... and room for newcomers, capacity - launched. Of all, job->size are known */
	struct tt_list links, doomed, groups;
	struct tutti *group_at[TT_GROUPS]; /* by the slot that peers use */
	struct tutti *all;          /* what tutti_join gives: the group of all ranks, or a late joiner's own */
	struct tutti *whole;        /* the handle of the whole job: its first group. A late joiner has no seat there */
	unsigned next_group;
	struct tt_freed_group freed[TT_FREED_GROUPS]; /* the last ones, in turn, ... */
	unsigned freed_count;       /* ... of all that were freed */
	uint32_t hangups;           /* connections that have ended so far; what was mapped through them has gone, too */
	uint32_t loans;             /* the number of the last one */
	unsigned tellings;          /* how often this rank has told others of a failure */
	int endpoints;              /* the table that this rank joins by: of the ranks below this number ... */
	int endpoints_known;        /* ... so many records are known */
	uint64_t endpoints_sent;    /* when this rank began to pass the table of endpoints on; 0: not yet */
	struct tt_text *texts;      /* see tt_text_keep */
	struct tt_timer heartbeat;
	uint64_t lateness;          /* of this rank's looks at its connections, in nanoseconds */
	bool node_list;
	bool own_list;              /* ... of this process alone: ranks are numbered otherwise elsewhere */
	_Atomic bool returned;      /* node list: others know an earlier life of this rank, so it has no seat */
	bool met;                   /* another rank has been connected since this one has joined */
	struct tt_node *node;       /* the list: a node for each rank that is known */
	bool minority;              /* a minority of a group may go on */
	const char *evicted;        /* why the others have evicted this rank; NULL: they have not */
	bool warned;                /* that a rank of this host is reached over a slower net */
	char name[TT_JOB_NAME + 1]; /* the job's: TUTTI_JOB, or the launcher's; "": none. Constant after the join */
	char agreed[TT_AGREED];     /* settings that all ranks must have alike, as this rank joined with them */
	int launched;               /* ranks that the job was started with: all ranks must say the same */
	int capacity;               /* ranks that may be known. Rank 0 decides; a guess until its WELCOME */
	bool unnumbered;            /* this rank is new and has no number yet: its place is the last one */
	const char *boots, *boot;   /* TUTTI_BOOT's list of addresses; the one in it that is asked now */
	const char *over;           /* the transport of these addresses */
	const char *root;           /* HOST:PORT of rank 0, or NULL; the job keeps it */
	uint64_t refused_at;        /* a bit for each of them: a rank there has refused this one for good, ... */
	char refusal[256];          /* ... why, ... */
	bool may_come;              /* ... and since the first one a rank that has not said: ask again */
	int probes;                 /* of rank 0: ranks in that list that it asks whether the job is under way */
	int sponsor;                /* the rank that lets this one in */
	uint32_t voters;            /* late: the uid of the group whose ranks have let this one in */
	uint32_t claims;            /* the number of the last one that this rank has made */
	int next_number;            /* newcomers get numbers in turn: one is used again as late as possible */
	_Atomic bool warned_of_solo; /* a collective in its group of one */
	bool late;                  /* joined a job under way, and is in none of its groups until one grows */
	struct tutti *arriving;     /* late: the group that this rank will be in, ... */
	uint32_t welcome_uid;       /* ... its uid, ... */
	int welcomed;               /* ... how many of its seats are known, ... */
	bool arrived;               /* ... and whether all of them are */
	struct tt_newcomer *newcomer; /* ranks that wait to be taken into a group */
	int newcomers;
	unsigned call_from;         /* late: the next rank to be told that this one waits */
	struct tt_watch *watch;     /* NULL: the program does not watch the job */
	struct tt_forming *forming; /* groups that their members are making */
	uint64_t begin_again;       /* the job that was found has ended: tutti_join tries until then. 0: it does not */
	int join_err;
	char join_why[420], last_try[240]; /* why joining fails; how the last try to connect ended */
	const struct tt_message *message[256]; /* by type: what the modules have registered ... */
	bool passing[256];          /* ... and which of it may overtake PUTs of devices' memory */
	const struct tt_module *notified[TT_MODULES]; /* the modules that take notifies */
	int notified_count;
};
static inline struct tt_members *tt_members(const struct tt_job *job) { return job->own[TT_MEMBER_SLOT]; }
static inline struct tt_member *tt_member_at(const struct tt_members *all, int rank)
{
	return rank < all->launched ? &all->of[rank] : &all->more[rank - all->launched];
}
static inline struct tt_member *tt_member(const struct tt_job *job, int rank)
{
	return tt_member_at(tt_members(job), rank);
}

/* Makes a higher room's struct in a member, zeroed, unless it exists. NULL: no memory. */
void *tt_member_make_own(struct tt_member *, int slot, size_t size);
static inline void *tt_member_own(const struct tt_member *m, int slot) { return m->own ? m->own[slot] : NULL; }

/* Connected, or being connected. */
static inline bool tt_member_linked(const struct tt_member *m) { return m->state > TT_AWAY && m->state < TT_LEFT; }

/* ---- address.c ---- */

/* Copies the nth address of that transport out of a member's list of addresses. False: the list has fewer. */
bool tt_address_nth(const char *list, const char *transport, int nth, char addr[96]);
static inline bool tt_address_find(const char *list, const char *transport, char addr[96])
{
	return tt_address_nth(list, transport, 0, addr);
}

const char *tt_text_keep(struct tt_job *, const char *); /* a copy that lives as long as the job; "": no memory */

/* ---- connection.c ---- */

extern const struct tt_events tt_peer_events; /* for the nets of a job */

/* Connects to a member over the net that stays. 0: connected; 1: not yet, the module's `up` tells; -EMFILE. */
int tt_member_reach(struct tt_member *);
struct tt_net *tt_member_net(struct tt_member *); /* the net of its connection; only while it is up */

/* ---- post.c ---- */

/* Posts an op, and connects first if needed. done() is called in any case, from a later turn of the progress loop. */
void tt_post(struct tt_member *, struct tt_post *);
/* Takes back the first such post that waits for a connection, and done() is not called. NULL: none waits. */
struct tt_post *tt_post_withdraw(struct tt_member *, bool (*is)(const struct tt_post *, const void *), const void *arg);
/* For the room that moves memory of devices (struct tt_staging): */
void tt_post_unheld(struct tt_member *, struct tt_post *);       /* an op that was held goes on */
void tt_post_fail(struct tt_job *, struct tt_post *, int err);   /* ends an op that was held, in a later turn */
void tt_post_to_net(struct tt_member *, struct tt_post *);       /* an op that it was to move: the net can do it */
/* Does a device's memory stand at this end of the op? */
static inline bool tt_post_is_device(const struct tt_post *p)
{
	return tt_pinned_on_device(p->pinned) && tt_pinned_holds(p->pinned, p->op.local, p->op.len);
}
/* A key of memory that no net can reach: only the room runtime/device/ of its owner knows it. */
static inline bool tt_key_is_staged(const struct tt_key *key) { return key->raw[sizeof key->raw - 1]; }
/* Sends a message, whose bytes are copied. It returns no error: where a message is lost, its member is gone. */
void tt_send(struct tt_member *, const void *head, size_t len, const void *body, size_t body_len);
/* The same of a message that the caller writes where it is sent from. NULL: no memory. Each that is begun is sent, with
 * as many of its bytes as the caller says. */
void *tt_send_begin(struct tt_member *, size_t room);
void tt_send_commit(struct tt_member *, void *begun, size_t len);
/* tt_send of a type, n words (8 at most) and `more` bytes. */
void tt_send_words(struct tt_member *, uint8_t type, const uint32_t *words, int n, const void *more, size_t len);
void tt_post_count(struct tt_post *, int err); /* counts an op of the library's own that has ended */
void tt_member_hold(struct tt_member *);       /* its memory is in use: if it leaves, the connection stays until ... */
void tt_member_let_go(struct tt_member *);     /* ... this was called as often */
void tt_member_nudge(struct tt_member *);      /* makes it acknowledge at once what was posted to it */

enum { TT_KEY_SIZE = 64 }; /* bytes of a packed key */
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

/* ---- node_list.c ---- */

int tt_nodes_find(const struct tt_job *, const char *name); /* a rank; -ENOENT: also of a job without a list. Locked */
int tt_need_same_lists(const struct tt_job *, const char *what); /* -ENOTSUP: each process numbers the ranks itself */

/* ---- loan.c: memory that other ranks hold a key of ---- */

struct tt_loan { /* a key that one rank holds; part of its owner's struct. Zeroed: ended */
	struct tt_list link;        /* in of->loans */
	struct tt_link *of;         /* the holder's connection; NULL: disconnected, or ended */
	uint32_t number;
	bool recalled;
	void (*back)(struct tt_loan *); /* after a recall: nobody uses the key any more. It may free the loan */
};

void tt_loan_begin(struct tt_loan *, struct tt_member *holder); /* one that is connected and is about to get the key */
void tt_loan_end(struct tt_loan *);                    /* the holder has done all for which it got the key */
/* Asks the holder to stop; what: for `recalled` of the module in that slot. True: nobody holds it, and back() is not
 * called. Else back() follows, at the latest when the holder has been evicted. */
bool tt_loan_recall(struct tt_loan *, int slot, const void *what, size_t len);
void tt_loan_stopped(struct tt_member *owner, uint32_t number); /* answers a recall */

/* ---- life.c, news.c: who is alive ---- */

/* Ends a member and all that waits for it. fmt is the reason that users read. No effect on one that is gone. */
void tt_member_gone(struct tt_member *, int err, const char *fmt, ...) TT_FORMAT(3, 4);
/* The same after `wait` nanoseconds: the caller may be in the middle of a post to it, or walk a list of what ends. */
void tt_member_fail_soon(struct tt_member *, uint64_t wait, int err, const char *fmt, ...) TT_FORMAT(4, 5);
/* The same of one that may be alive: it hears why first. err -ETIMEDOUT: it is silent, and hears nothing. */
void tt_member_expel(struct tt_member *, int err, const char *why);
/* As tt_member_gone, and tells the member. Nothing from it lands after the return. Not from a callback of a net. */
void tt_member_evict(struct tt_member *, int err, const char *fmt, ...) TT_FORMAT(3, 4);
bool tt_member_is_there(const struct tt_job *, int rank); /* another rank, neither gone nor left */
/* Asks how far the member has come in the group of that uid, and whom it knows to be late there. */
void tt_member_ping_for(struct tt_member *, uint32_t uid);
/* "rank 2"; in a job on several hosts "rank 2 (node-b, 10.0.0.7)" */
struct tt_label { char text[112]; };
struct tt_label tt_member_label(const struct tt_member *);
/* Somebody waits for a member that may have left: tells those that were not connected to it. */
void tt_news_farewell(struct tt_member *left);
bool tt_news_all_told(void *job);

/* ---- heartbeat.c: every time that derives from TUTTI_SILENCE ---- */

enum tt_time {
	TT_TIME_HEARTBEAT, /* a rank of which nothing has come for so long gets a PING */
	TT_TIME_LOOK,      /* between two looks at the connections, at most */
	TT_TIME_GRACE,     /* from a broken connection to the news of it: this rank may be the one that was evicted */
	TT_TIME_STALE,     /* how long a rank that gave up a collective may take to name the rank to blame */
	TT_TIME_NET,       /* how long a transport may take to connect while there is another one */
	TT_TIME_RETRY_MIN, TT_TIME_RETRY_MAX, /* between two attempts to connect to a rank that may not listen yet */
	TT_TIME_FAREWELL,  /* so long a rank that has left is not let in again: the others may leave, too */
};
uint64_t tt_time(const struct tt_job *, enum tt_time); /* nanoseconds */
bool tt_heartbeat_is_frozen(const struct tt_link *);    /* a PING has no answer, and nothing else has come since */

/* ---- group.c ---- */

struct tt_seat { /* a rank's place in a group's membership view */
	int rank;                   /* in the job */
	uint32_t epoch;             /* which life of the rank: a later one has no seat here. 0: not known yet */
	uint16_t slot;              /* how the rank calls this group in notify values */
	bool resigned;              /* the rank will not be in the group that comes of this one */
	bool voted;                 /* the rank had accepted the next membership view before it left */
	int out;                    /* left or gone for good: 1 is the first such seat, 2 the next. 0: it is in */
	int err;                    /* ... -ENOTCONN or what calls return ... */
	uint32_t finished;          /* ... and in all collectives before this one it has done its part */
};

struct tutti { /* this process's place in a group of ranks: what users hold */
	struct tt_handle handle;    /* of a group that the program frees, by tutti_group_free */
	struct tt_list link;        /* in tt_members.groups */
	struct tt_job *job;
	uint32_t uid;               /* names the group, the same on every rank; 0: not agreed on yet */
	uint16_t slot;              /* in tt_members.group_at */
	int n, me;
	struct tt_seat *seats;      /* n of them */
	int *seat_of;               /* by rank in the job; -1: none */
	int outs;                   /* how many seats are out */
	uint64_t timeout;           /* of its operations, in nanoseconds; 0: TUTTI_TIMEOUT */
	uint32_t started;           /* collectives that this rank has started here */
	void *own[TT_MODULES];      /* structs of higher rooms, by slot */
	uint32_t splits;            /* how often this group was split: the same on every rank */
	uint32_t parent, birth;     /* the group before (uid), and at which of its splits; 0: shrunk or grown */
	bool lineage;               /* all ranks of the job, or shrunk or grown from that group: takes newcomers in */
	bool revoked;               /* not agreed on yet, and some rank has failed to make it */
	bool retired;               /* another group has come of it */
	struct tt_agreement *agreement; /* on that next group, while there is none */
	struct { /* the group that this one came of, for ranks that have not heard of it yet */
		uint32_t uid;
		int n;
		struct tt_membership *view;
	} origin;
};

static inline uint64_t tt_group_timeout(const struct tutti *g) { return g->timeout ? g->timeout : g->job->timeout; }
int tt_group_new(struct tt_job *, int n, struct tutti **); /* with a slot, no uid, and n empty seats */
int tt_group_make_seats(struct tutti *, int n);
void tt_group_seat(struct tutti *, int i, int rank, uint32_t epoch, uint16_t slot);
void tt_group_begun(struct tutti *); /* all its ranks have agreed on it: tells the modules */
/* This rank cannot make its part of the group: tells the parent's ranks not to wait for it. */
void tt_group_revoke(const struct tutti *parent, uint32_t birth);
void tt_group_hold(struct tutti *); /* the program gets it, and frees it */
void tt_group_free(struct tutti *); /* of one that is held the numbering stays, until the program frees it */
struct tt_seat *tt_group_find(const struct tutti *, const struct tt_member *); /* NULL: none, or an earlier life's */
/* The group that a message of this member means by a slot and a uid; NULL: it is closed here, or the sender has no seat
 * in it. *seat: the sender's; NULL: the group is not agreed on yet, and its first messages come early. */
struct tutti *tt_group_meant(const struct tt_member *from, unsigned slot, uint32_t uid, struct tt_seat **seat);
struct tutti *tt_group_named(const struct tt_job *, uint32_t uid); /* NULL: there is none */
struct tt_member *tt_group_member(const struct tutti *, int i);
/* As tt_usable(); -EINVAL: this rank has no seat there. Without the lock. The first is for collectives, and warns a
 * rank that joined late and calls one in its group of one. */
int tt_group_usable(const struct tutti *);
int tt_group_is_mine(const struct tutti *);
/* A group's numbering: its seats'. The handle of the whole job names each rank of the job, newcomers too. */
int tt_group_count(const struct tutti *);
int tt_group_to_job(const struct tutti *, int i); /* the job's rank; -1: i is none of the group's */
int tt_group_lives(const struct tutti *, uint32_t **epochs); /* of its seats, malloc'd. -ENOMEM */
int tt_group_list(const struct tutti *, int **ranks); /* the job's ranks, malloc'd; NULL: of the whole job. -ENOMEM */

/* ---- member.c, rendezvous.c: joining and leaving. Without the lock, unless it says otherwise ---- */

uint32_t tt_epoch_now(void); /* the epoch of a life that begins now; compare epochs with tt_before() */
int tt_members_open(struct tt_job *, const struct tt_launch *); /* makes the members and the group of all */
int tt_rendezvous_meet(struct tt_job *, const struct tt_launch *); /* exchanges addresses; blocks */
int tt_members_settle(struct tt_job *);     /* all addresses are known: this rank has joined. With the lock */
void tt_members_say_bye(struct tt_job *);   /* to all members that are up. With the lock */
bool tt_members_are_alone(void *job);       /* no connection to a member is left. With the lock */
/* Ends all connections and groups: nothing lands afterwards. idle: no operation was under way. */
void tt_members_end(struct tt_job *, bool idle);
#endif
