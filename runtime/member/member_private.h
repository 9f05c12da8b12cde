/* member_private.h - what the files of this room share */
#ifndef TT_MEMBER_PRIVATE_H
#define TT_MEMBER_PRIVATE_H
#include "member/member.h"

enum { /* the first byte of a message of this room; docs/wire.md has those of all rooms */
	TT_HELLO = 1, TT_WELCOME, TT_BUSY, TT_REFUSED, TT_ENDPOINT, TT_ENDPOINTS, TT_BYE, TT_PING, TT_PONG, TT_DOWN,
	TT_RECALL = 13, TT_REVOKE = 15, TT_AGREE, TT_PART, TT_LATE, TT_NEWS, TT_FAREWELL, TT_MISSED, TT_STOPPED = 40,
	TT_CLAIM = 42, TT_CONSENT, TT_WHERE, TT_FORM = 60,
};

enum { TT_REFUSED_WHY = 256 }; /* bytes of the longest reason in a REFUSED, with the zero */
enum { TT_BYE_GROUPS = 2 * TT_GROUPS, TT_HOST_BITS = 40 };

struct tt_newcomer { /* a rank that has joined a job under way */
	uint32_t rank, epoch;
	uint16_t slot;              /* how it will call its group */
};

/* A set of seats is a bit for each. */
static inline bool tt_bits_has(const uint8_t *bits, int i) { return bits[i / 8] >> i % 8 & 1; }
static inline void tt_bits_set(uint8_t *bits, int i) { bits[i / 8] |= (uint8_t)(1 << i % 8); }
static inline void tt_bits_clear(uint8_t *bits, int i) { bits[i / 8] &= (uint8_t)~(1 << i % 8); }
static inline size_t tt_bits_size(int n) { return ((size_t)n + 7) / 8; } /* in bytes */

/* ---- address.c: a list of addresses is a text with a space between two ---- */

enum { TT_ADDRESSES = 256 }; /* bytes of the longest list, with the zero */
void tt_address_set(struct tt_member *, const char *list); /* no memory: it has none */
/* Adds what `more` has of a transport beyond as many as are known, as far as there is room. */
void tt_address_add(struct tt_member *, const char *more);

/* ---- connection.c ---- */

void tt_member_connect_ring(struct tt_member *);     /* one that is AWAY; where nobody listens it stays that */
const struct tt_net *tt_member_talks_over(const struct tt_member *); /* NULL: not connected, or to be once more */
void tt_member_why_not(const struct tt_member *, char *why, size_t size); /* ... over the best net; "": it is that */
int tt_member_connect(struct tt_member *);           /* no effect unless it is AWAY. 0, or -EMFILE: no file is left */
void tt_member_up(struct tt_member *, struct tt_link *); /* the connection is the member's: posts what has waited */
void tt_member_part(struct tt_member *);             /* asks to close a connection that served the rendezvous alone */
void tt_member_leave_rendezvous(struct tt_member *); /* the same, if there is a better net */
void tt_take_part(struct tt_member *, struct tt_pack *); /* a message */
void tt_member_forget_where(struct tt_member *);     /* what the answer to WHERE has added to its addresses */
void tt_link_is_at(struct tt_link *, const char *addresses); /* answers WHERE: dials a better net, or says HELLO */
void tt_link_forget(struct tt_member *);             /* closes its connection; the member stays */
void tt_link_part(struct tt_link *);                 /* is no member's now; the other side has a moment to close it */
void tt_link_doom(struct tt_link *);                 /* tt_peer_settle will disconnect it */
void tt_link_probe(struct tt_job *, const char *addr); /* rank 0 joins: asks there whether its job is under way */
void tt_peer_settle(struct tt_job *);                /* not from a callback of a net */

/* ---- greeting.c ---- */

const char *tt_own_name(const struct tt_job *, char text[24]); /* "rank 2", or "a newcomer" */
void tt_greeting_start(struct tt_link *); /* sends HELLO */
void tt_greeting_ask_where(struct tt_link *); /* sends WHERE, before HELLO */
void tt_greeting_await(struct tt_link *); /* closes the connection unless a HELLO comes in time */
void tt_greeting_take(struct tt_link *, uint8_t type, struct tt_pack *); /* a message before the member is up */
void tt_member_refuse(struct tt_member *, const char *why); /* another process has come as this rank */
void tt_greeting_let_in(struct tt_link *, uint32_t rank, uint32_t epoch); /* a newcomer, as that rank ... */
void tt_greeting_refuse(struct tt_link *, const char *why);               /* ... or not at all ... */
void tt_greeting_put_off(struct tt_link *, uint32_t known, const char *why); /* ... or not now; known: see greeting.c */
void tt_take_refused(struct tt_member *, struct tt_pack *); /* a message */

/* ---- post.c ---- */

/* Any connection will do for the messages of the rendezvous and a goodbye. */
static inline bool tt_may_pass(uint8_t type)
{
	return type == TT_ENDPOINT || type == TT_ENDPOINTS || type == TT_LATE || type == TT_BYE || type == TT_PART;
}

/* At most 64 bytes, or what copy_max of its net allows. False: no memory, link doomed */
bool tt_send_raw(struct tt_link *, const void *bytes, size_t len);
void tt_post_waiting(struct tt_member *);          /* posts what has waited for the connection ... */
void tt_fail_waiting(struct tt_member *, int err); /* ... or ends it */

/* ---- loan.c ---- */

void tt_loans_return(struct tt_link *); /* it is disconnected */
void tt_loan_take_recall(struct tt_member *from, struct tt_pack *); /* messages */
void tt_loan_take_stopped(struct tt_member *from, struct tt_pack *);

/* ---- life.c ---- */

/* Everyone who hears of a member's epoch says so here. False: the member known has another epoch. */
bool tt_member_epoch(struct tt_member *, uint32_t epoch);
void tt_member_reborn(struct tt_member *, uint32_t epoch); /* a later life: ends the one known first */
void tt_member_left(struct tt_member *, const struct tt_pack *bye); /* NULL: it disconnected because this rank leaves */
bool tt_member_take_bye(struct tt_pack *, struct tt_pack *list); /* false: the bytes make no sense */
void tt_take_bye(struct tt_member *, struct tt_pack *); /* a message */
bool tt_member_is_last(const struct tt_member *);
void tt_member_free(struct tt_member *);
void tt_tell_up(struct tt_member *); /* the modules, like the next */
void tt_tell_unseated(struct tt_member *);
void tt_say_bye(struct tt_member *); /* to one that is up, while this rank leaves */
void tt_bye_remember(const struct tutti *); /* a group that is about to be freed: a goodbye names it, too */

/* ---- rendezvous.c ---- */

void tt_rendezvous_endpoint(struct tt_member *, struct tt_pack *);   /* messages */
void tt_rendezvous_endpoints(struct tt_member *, struct tt_pack *);
/* A member was not reached: connects again in a moment, for up to `patience` in all. False: it does not. */
bool tt_rendezvous_retry(struct tt_member *, uint64_t patience);
void tt_rendezvous_refused(struct tt_job *, bool again, const char *why); /* the rank that was asked has said so */
bool tt_rendezvous_has_more(const struct tt_member *); /* is being asked to let this process in, and so may others be */
void tt_rendezvous_present(struct tt_job *); /* says to the rank that has let this one in where this one listens */
struct tt_member *tt_rendezvous_found(struct tt_member *, int rank); /* the rank that answered there */

void tt_rendezvous_locate(struct tt_member *, const char *listen); /* node list: its host, and addresses within one */

/* ---- node_list.c ---- */

int tt_nodes_open(struct tt_job *, const struct tt_launch *); /* copies the list, if there is one */
uint64_t tt_nodes_hash(const struct tt_job *, int n);        /* of the first n nodes */
bool tt_nodes_are_more(const struct tt_job *, uint32_t n);   /* than this rank knows */
bool tt_nodes_agree(const struct tt_job *, uint32_t n, uint64_t hash); /* about the first n nodes */

/* What a member is called in messages: its rank; in own lists a hash of its name. */
uint32_t tt_member_number(const struct tt_member *);
uint32_t tt_take_number(const struct tt_job *, struct tt_pack *); /* a rank; job->size or more: of nobody known here */
bool tt_comes_after(const struct tt_member *); /* this rank, in an order that all ranks agree on */
/* Own lists, in a HELLO: who this process is. The rank of the process that says so, which becomes a guest if it is not
 * known; job->size: there is no room for it. */
void tt_nodes_present(const struct tt_job *, struct tt_pack *);
void tt_nodes_take(struct tt_pack *, struct tt_node *);
uint32_t tt_nodes_seat_guest(struct tt_job *, const struct tt_node *);
void tt_nodes_seek(struct tt_job *); /* now and then: connects to those of the own list that have ended */

/* ---- endpoint_tree.c: how the table of endpoint records goes out ---- */

/* Bytes of an endpoint record without its addresses, and at most. */
enum { TT_ENDPOINT_HEAD = 8 + 4 + 1, TT_ENDPOINT_MAX = TT_ENDPOINT_HEAD + TT_ADDRESSES - 1 };
void tt_endpoint_put(struct tt_pack *, const struct tt_member *);
void tt_endpoint_take(struct tt_pack *, struct tt_member *); /* a record that is known stays as it is */
void tt_tree_send(struct tt_job *);                 /* the table is complete: sends it to the children */
void tt_tree_send_to(struct tt_member *);           /* to one that has asked */
int tt_tree_parent(int rank);
void tt_rendezvous_gone(struct tt_member *);        /* sends the table to its children */
void tt_rendezvous_leave(struct tt_job *);          /* to whom this rank may owe the table, before its goodbye */
void tt_rendezvous_leave_late(struct tt_member *);  /* the same for one that came up while this rank leaves */
void tt_text_free(struct tt_job *);

/* ---- agreement.c: shrinking and growing a group ---- */

void tt_agree_message(struct tt_member *from, struct tt_pack *);
void tt_agree_member_down(struct tt_member *);
void tt_agree_free(struct tutti *);
bool tt_agree_voted(const struct tutti *); /* this rank has accepted the next membership view */
bool tt_agree_is_over(const struct tutti *);      /* the next view is decided */
bool tt_agree_is_enough(const struct tutti *, const uint8_t *seats); /* a bit for each; NULL: all that are in */

/* ---- group_of.c: groups that their members make ---- */

int tt_form_open(struct tt_job *);
void tt_form_close(struct tt_job *);
void tt_form_message(struct tt_member *from, struct tt_pack *);
void tt_form_member_down(struct tt_member *);
void tt_form_revoked(struct tt_member *from, uint32_t uid, uint32_t birth);

/* ---- sponsor.c: newcomers that have come to this rank ---- */

void tt_sponsor_ask(struct tt_link *, uint32_t rank, uint32_t epoch); /* lets it in, or refuses it, soon */
void tt_sponsor_end(struct tt_link *);                       /* its connection goes */
void tt_sponsor_member_down(const struct tt_member *);
uint32_t tt_sponsor_voters(const struct tt_job *);           /* the uid of the group that takes newcomers in; or 0 */
bool tt_sponsor_has_most(const struct tt_job *);              /* ... and more than half of it are there */
void tt_sponsor_take_claim(struct tt_member *, struct tt_pack *); /* messages */
void tt_sponsor_take_consent(struct tt_member *, struct tt_pack *);

/* ---- news.c ---- */

void tt_news_tell(struct tt_member *gone); /* to everybody who is left */
struct tt_member *tt_news_finger(struct tt_job *, int i); /* i-th that spreads news; 1 << i / 2 < job->size */
bool tt_news_ask_missed(struct tt_member *); /* asks the others whether it has left. False: there is nobody to ask */
void tt_news_mend(struct tt_job *);          /* a member that would have passed news on has left */
void tt_member_ping(struct tt_member *);
void tt_news_take_farewell(struct tt_member *from, struct tt_pack *); /* messages */
void tt_news_take_missed(struct tt_member *from, struct tt_pack *);
void tt_news_take_down(struct tt_member *from, struct tt_pack *);
void tt_member_take_ping(struct tt_member *from, struct tt_pack *);
void tt_member_take_pong(struct tt_member *from, struct tt_pack *);

/* ---- group.c ---- */

int tt_group_heir(struct tutti *, int n, struct tutti **); /* takes the old one's slot over, and retires it */
int tt_group_widen(struct tutti *, int from, int to); /* ranks that it can tell apart: of `from` places make `to` */
void tt_group_clear_seats(struct tutti *);
void tt_group_resign(struct tutti *, int i);
void tt_group_epoch(struct tt_member *, uint32_t epoch); /* seats whose epoch was not known get this one */
void tt_group_seats_out(struct tt_member *, const struct tt_pack *bye); /* bye: as in its goodbye; NULL: it is gone */
void tt_group_revoked(struct tt_member *from, struct tt_pack *); /* a message */

/* ---- heartbeat.c ---- */

void tt_heartbeat_start(struct tt_job *);               /* until this rank leaves; or hastens the next look */
void tt_heartbeat_begin(struct tt_link *);              /* it is up: the silence counts from now on */
void tt_heartbeat_ask(struct tt_link *);                /* sends a PING, unless one has no answer yet */
void tt_heartbeat_asked(struct tt_link *);              /* a PING goes out */
void tt_heartbeat_answered(struct tt_link *);           /* a PONG has come */

/* ---- late_join.c: ranks that join a job under way ---- */

#define TT_NEW_RANK UINT32_MAX /* in a HELLO: the sender asks for a number */

/* The epoch is of a later life than the one known, or than the one that was gone when this rank came. */
static inline bool tt_is_new_life(const struct tt_member *m, uint32_t epoch)
{
	return m->epoch ? tt_before(m->epoch, epoch) : m->state >= TT_LEFT && !tt_members(m->job)->node_list;
}

/* Until the table is here. Then others may have it, too, and use this rank before its joining thread goes on. */
static inline bool tt_is_joining(const struct tt_job *job) { return !job->joined && !tt_members(job)->endpoints_sent; }

void tt_member_tell_run(const struct tt_job *, int what, const char *text); /* member.c: a struct tt_saying */
void tt_late_join_grow(struct tt_job *, int size);        /* so many ranks are known, at most tt_members.capacity */
bool tt_late_join_make_room(struct tt_job *, int newcomers); /* rank 0 decided. False: no memory */
void tt_late_join_take_number(struct tt_job *, int rank); /* this rank's own */
void tt_late_join_admit(struct tt_member *);              /* sends it the table, and others the news */
void tt_late_join_told(struct tt_member *from, struct tt_pack *); /* messages */
void tt_late_join_news(struct tt_member *from, struct tt_pack *);
void tt_late_join_say_where(const struct tt_job *, enum tt_level); /* by which TUTTI_BOOT newcomers come */
void tt_late_join_without_root(const struct tt_job *);    /* rank 0 is gone */
int tt_late_join_settle(struct tt_job *);                 /* once all addresses are known */

/* ---- watch.c ---- */

void tt_watch_tell(struct tt_job *, const struct tt_member *, tutti_what); /* queues a change for the program */
void tt_watch_call(struct tt_job *); /* on the background thread: makes the callbacks that are due, without the lock */
void tt_watch_free(struct tt_job *);
#endif
