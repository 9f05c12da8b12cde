/* member.h - the other ranks: connections, messages, news, groups */
#ifndef TT_MEMBER_H
#define TT_MEMBER_H
#include "base/pack.h"
#include "engine/engine.h"
#include "launch/launch.h"

enum { TT_MEMBER_SLOT = 0, TT_GROUPS = 1024, TT_BYE_GROUPS = 2 * TT_GROUPS, TT_HOST_BITS = 40 };

struct tt_link;
struct tt_watch;
extern const struct tt_module tt_member_module;

struct tt_post { /* an op on its way to a member, also before there is a connection */
	struct tt_op op;
	struct tt_member *member;
	struct tt_region *local;    /* registered for this op alone */
	uint64_t since;             /* in ticks; 0: not timed */
	void (*done)(struct tt_post *, int err);
};

struct tt_newcomer { /* a rank that has joined a job under way */
	uint32_t rank, epoch;
	uint16_t slot;              /* how it will call its group */
};

/* ---- address.c: where a rank can be reached: an address of each of its nets, a space between two ---- */

enum { TT_ADDRESSES = 256 }; /* room for all of them, with the zero */
bool tt_address_find(const char *list, const char *transport, char addr[96]); /* of that transport; false: none */
const char *tt_address_add(struct tt_job *, const char *known, const char *more); /* those of other transports than are known, as far as there
                                                      * is room; kept like any text */

/* ---- connection.c: which wire to which rank, connected on first use ---- */

enum { /* the first byte of every message between members; docs/wire.md has them all, those of higher rooms too */
	TT_HELLO = 1, TT_WELCOME, TT_BUSY, TT_REFUSED, TT_ENDPOINT, TT_ENDPOINTS, TT_BYE, TT_PING, TT_PONG, TT_DOWN,
	TT_REVOKE = 15, TT_AGREE, TT_PART, TT_LATE, TT_NEWS, TT_FAREWELL, TT_MISSED,
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
struct tt_heartbeat { /* what is known of the life at the other end of a connection */
	uint64_t received;          /* tt_peer.received at the last look */
	uint64_t silent;            /* the look at which it was pinged since nothing had come; 0: something has */
	uint64_t asked;             /* when a ping went out that has no pong yet; 0: none */
	unsigned answers;           /* how many pongs came in all ... */
	uint32_t took[TT_ANSWERS];  /* ... and after how many microseconds the last ones did */
};

struct tt_link { /* one connection; usually the only one to its member */
	struct tt_list all;         /* in tt_members.links */
	struct tt_list doom;        /* in tt_members.doomed once nobody needs it */
	struct tt_job *job;
	struct tt_peer *peer;
	struct tt_member *member;   /* NULL until the other side has said who it is */
	bool mine;                  /* I connected */
	struct tt_timer patience;   /* while nobody has said who it is */
	bool used;                  /* for more than the rendezvous, or made when that was over */
	bool parted;                /* it stands for nobody any more: the other side hangs up */
	bool doubted;               /* a later life of its member has come: this one was asked whether it lives */
	struct tt_heartbeat heartbeat;
};

struct tt_member { /* n ranks together have n * n of it, hence few holes */
	struct tt_job *job;
	int rank;
	enum tt_member_state state;
	const char *addr;           /* one for each of its nets, see address.c; "" until known */
	int net_index;                   /* which of my nets it is asked through, or was last */
	unsigned outstanding;       /* ops that the wire holds, and calls that use its memory */
	uint64_t host;              /* equal on one host, 40 bits; 0: not known */
	uint32_t cpus;              /* equal if they may run on the same processors, 24 bits; 0: not known */
	uint32_t epoch;             /* which life of it; 0: not known */
	struct tt_link *link;       /* the one I post on, or am connecting on */
	struct tt_op_queue waiting; /* posted before it is up */
	uint64_t heard;             /* when it last said how far it is: a ping or a pong */
	uint64_t unreached;         /* when no file was left to connect to it: that says nothing about it */
	uint64_t received;          /* tt_peer.received when it was last pinged: more is a sign of life, too */
	uint32_t started, started_in; /* how many collectives it has started, as last heard, and in which group (its uid) */
	int err;                    /* LEFT, GONE: what later uses return ... */
	const char *why;            /* ... and why: "" until then */
	uint8_t *bye;               /* LEFT: what it said of its groups, from `n` on, ... */
	size_t bye_len;
	bool passed_on;             /* ... and the others have been told */
	bool settled;               /* it has the table: it has used a connection for more than to get it */
	bool nets_again;           /* a node list's: the better ones were asked a second time */
	bool outside;               /* it has joined a job under way, and no group has let it in */
	bool silent;                /* GONE, because it met a deadline */
	bool untold;                /* the others are to hear soon that it is gone, or has left */
	bool accuser;               /* it has told me that it cut me off */
	bool fed;                   /* has heard from here of everyone who is gone */
	unsigned telling;           /* the last of tt_members.tellings in which it was told something */
	unsigned tries;             /* of connecting for the first time, to one that may not listen yet ... */
	uint64_t patience;          /* ... until then */
	struct tt_timer retry;      /* of connecting while joining; of telling */
	void **own;                 /* of higher rooms, by their slots; NULL: none has needed one */
	struct tt_stats *stats;     /* NULL: nothing was counted yet */
};

struct tt_members { /* this room's own of a job */
	struct tt_job *job;
	struct tt_member *of;       /* by rank; there is room for `capacity`, and job->size of them are known */
	struct tt_list links, doomed, groups;
	struct tutti *group_at[TT_GROUPS]; /* by the slot that peers use */
	struct tutti *all;          /* the group of all ranks: what tutti_join gives */
	unsigned next_group;
	uint32_t hangups;           /* how many connections have gone, and with each what was mapped there */
	unsigned tellings;          /* how often this rank has told others that somebody is gone */
	int endpoints_known;                 /* how many ranks' addresses are known */
	uint64_t endpoints_sent;             /* when this rank began to pass the table on; 0: not yet */
	struct tt_text *texts;      /* kept ones */
	struct tt_timer heartbeat;       /* looks whether the others live */
	bool node_list;
	bool minority;              /* a minority of a group may go on */
	int launched;               /* how many ranks the job was started with: all must agree */
	int capacity;
	bool unnumbered;            /* this rank wants to be a new one, and has no number yet */
	bool late;                  /* it has joined a job that was under way, and is in no group of it until that grows */
	struct tutti *arriving;     /* late: the group that it will be in, ... */
	uint32_t welcome_uid;       /* ... what it is called, ... */
	int welcomed;               /* ... how many of its seats are known, ... */
	bool arrived;               /* ... and all of them are */
	struct tt_newcomer *newcomer; /* who waits to be taken into a group */
	int newcomers;
	unsigned call_from;         /* late: whom I tell next that I wait */
	struct tt_watch *watch;     /* NULL: nobody wants to hear of changes */
	int join_err;
	char join_why[256];
	const struct tt_message *message[256]; /* by type: what the modules have registered */
};
static inline struct tt_members *tt_members(const struct tt_job *job) { return job->own[TT_MEMBER_SLOT]; }
static inline struct tt_member *tt_member(const struct tt_job *job, int rank) { return &tt_members(job)->of[rank]; }

void *tt_member_make_own(struct tt_member *, int slot, size_t size); /* a higher room's own struct, zeroed, unless it is there; NULL: no memory */
static inline void *tt_member_own(const struct tt_member *m, int slot) { return m->own ? m->own[slot] : NULL; }

static inline bool tt_member_linked(const struct tt_member *m) { return m->state > TT_AWAY && m->state < TT_LEFT; } /* or about to be */

extern const struct tt_events tt_peer_events;
int tt_member_reach(struct tt_member *);             /* 0: connected, over the wire that stays; 1: not yet, wait for tt_coll_wake; -EMFILE */
int tt_member_connect(struct tt_member *);           /* unless it is connected or gone. -EMFILE: no file is left, what waits for it ends so */
void tt_post_count(struct tt_post *, int err); /* something that the library sent has ended: into the stats */
void tt_post(struct tt_member *, struct tt_post *);  /* connects if needed; done() follows in any case, from a later turn */
void tt_send(struct tt_member *, const void *head, size_t len, const void *body, size_t body_len); /* a message; bytes are copied. A lost one
                                                      * is no error: its member is gone then */
bool tt_member_epoch(struct tt_member *, uint32_t epoch); /* whoever has it speaks; false: it is another life of it */
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

/* ---- heartbeat.c: heartbeats, and every time that derives from the deadline ---- */

enum tt_time {
	TT_TIME_HEARTBEAT, /* silence is known within three of them */
	TT_TIME_GRACE,     /* a broken connection is told of after so long: it may be me who was cut off */
	TT_TIME_STALE,     /* how long a rank that gave up a collective may take to say because of whom */
	TT_TIME_REAP,      /* how often a call that is being given up looks for another silent rank */
	TT_TIME_RETRY_MIN, TT_TIME_RETRY_MAX, /* between two tries to connect to one that may not listen yet */
};
uint64_t tt_time(const struct tt_job *, enum tt_time); /* nanoseconds */
/* ---- news.c: who is alive ---- */

void tt_news_farewell(struct tt_member *left);      /* somebody needs one who may have left: those hear of it, too, who were not connected to it */
bool tt_news_all_told(void *job);
bool tt_member_is_there(const struct tt_job *, int rank); /* another rank, neither gone nor left */
void tt_member_ping_for(struct tt_member *, uint32_t uid); /* asks for a sign of life, and how far it is in the group of that uid */
bool tt_member_is_alive(const struct tt_member *, uint64_t since); /* since: of the last ping */
bool tt_member_sends_bytes(const struct tt_member *); /* something has come from it since then */
void tt_member_evict(struct tt_member *, int err, const char *fmt, ...) TT_FORMAT(3, 4); /* not from a callback: nothing of it lands afterwards */

/* ---- group.c: groups of ranks ---- */

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

struct tutti { /* what users hold: this process's place in a group of ranks, all of the job or a part */
	struct tt_list link;        /* in tt_members.groups; first, see tutti_leave */
	struct tt_job *job;
	uint32_t uid;               /* names the group, the same on every rank; 0: not agreed on yet */
	uint16_t slot;              /* in tt_members.group_at */
	int n, me;
	struct tt_seat *seats;      /* n of them */
	int *seat_of;               /* by rank in the job; -1: none */
	int outs;                   /* how many seats are out */
	uint32_t started;           /* how many collectives this rank has started here */
	void *own[TT_MODULES];      /* of higher rooms */
	uint32_t splits;            /* how often this group was split: the same on every rank */
	uint32_t parent, birth;     /* the group that it was split from, and at which of its splits; 0: shrunk or grown */
	bool lineage;               /* all ranks of the job, or what shrinking and growing made of them: takes newcomers in */
	bool revoked;               /* not agreed on yet, and some rank's part in it has failed */
	bool retired;               /* another group has come of it */
	struct tt_agreement *agreement; /* on that one, while it is not there yet */
	struct { /* what this one came of, for those who have not heard yet */
		uint32_t uid;
		int n;
		struct tt_membership *roll;
	} origin;
};

int tt_group_new(struct tt_job *, int n, struct tutti **); /* with a slot, no uid, and empty seats */
int tt_group_make_seats(struct tutti *, int n);
void tt_group_begun(struct tutti *);           /* all its ranks have agreed on it */
void tt_group_clear_seats(struct tutti *);
int tt_group_heir(struct tutti *, int n, struct tutti **); /* takes its slot over, and retires it */
void tt_group_seat(struct tutti *, int i, int rank, uint32_t epoch, uint16_t slot);
void tt_group_resign(struct tutti *, int i);
void tt_group_free(struct tutti *);
struct tt_seat *tt_group_find(const struct tutti *, const struct tt_member *); /* NULL: none, or an earlier life's */
struct tt_member *tt_group_member(const struct tutti *, int i);
void tt_group_epoch(struct tt_member *, uint32_t epoch); /* it is known now whose seats its seats are */
void tt_group_revoke(const struct tutti *parent, uint32_t birth); /* my part in it has failed: nobody shall wait for me there */

/* ---- member.c: joining and leaving ---- */

uint32_t tt_epoch_now(void); /* what a life that begins now is called: tt_before() orders them */
int tt_members_open(struct tt_job *, const struct tt_launch *); /* the members and the group of all, before anybody is met */
int tt_rendezvous_meet(struct tt_job *, const struct tt_launch *);  /* exchanges addresses; takes and leaves the gate itself */
int tt_members_settle(struct tt_job *);        /* all addresses are known: from now on this rank has joined */
void tt_members_say_bye(struct tt_job *);      /* to all to whom there is a connection */
bool tt_members_are_alone(void *job);          /* all connections have gone */
void tt_members_end(struct tt_job *, bool idle); /* nothing lands any more, and no group is left. idle: nothing was under way. Without the gate */
#endif
