/* member_private.h - what the files of this room share */
#ifndef TT_MEMBER_PRIVATE_H
#define TT_MEMBER_PRIVATE_H
#include "member/member.h"

/* ---- rendezvous.c ---- */

void tt_rendezvous_endpoint(struct tt_member *, struct tt_pack *);   /* messages of the rendezvous */
void tt_rendezvous_endpoints(struct tt_member *, struct tt_pack *);
void tt_rendezvous_gone(struct tt_member *);                     /* it may have owed others the table */
void tt_rendezvous_leave(struct tt_job *);                       /* I go: those connected hear my goodbye next */
void tt_rendezvous_leave_late(struct tt_member *);               /* it came when I was about to go */
bool tt_rendezvous_retry(struct tt_member *, uint64_t patience);  /* it was not reached: will it be tried again in a moment? patience: for how long in all */

/* ---- endpoint_tree.c: how the table of addresses goes out ---- */

enum { TT_ENDPOINT_HEAD = 8 + 4 + 1, TT_ENDPOINT_MAX = TT_ENDPOINT_HEAD + TT_ADDRESSES - 1 }; /* bytes of one: without its addresses, and at most */
void tt_endpoint_put(struct tt_pack *, const struct tt_member *);
void tt_endpoint_take(struct tt_pack *, struct tt_member *);   /* a known one stays as it is */
void tt_tree_send(struct tt_job *);                        /* all cards are here: to those below me */
void tt_tree_send_to(struct tt_member *);                  /* to one that asks for itself */
int tt_tree_parent(int rank);
const char *tt_text_keep(struct tt_job *, const char *);   /* a copy that lives as long as the job; "": no memory */
void tt_text_free(struct tt_job *);

/* ---- agreement.c: who is in the group from now on ---- */

void tt_agree_message(struct tt_member *from, struct tt_pack *);
void tt_agree_member_down(struct tt_member *);
void tt_agree_free(struct tutti *);
bool tt_agree_voted(const struct tutti *); /* has this rank accepted what shall come of it? */
/* ---- news.c ---- */

void tt_news_tell(struct tt_member *gone);          /* to everybody who is left */
struct tt_member *tt_news_finger(struct tt_job *, int i); /* through whom news reach everybody, while 1 << i / 2 < job->size; or NULL */
bool tt_news_ask_missed(struct tt_member *);              /* nobody listens there: asks who knows whether it has left; false: there is nobody to ask */
void tt_news_mend(struct tt_job *);                 /* somebody has left through whom others would have heard who is gone */
void tt_member_ping(struct tt_member *);               /* for a sign of life */
void tt_news_take_farewell(struct tt_member *from, struct tt_pack *); /* messages */
void tt_news_take_missed(struct tt_member *from, struct tt_pack *);
void tt_news_take_down(struct tt_member *from, struct tt_pack *);
void tt_member_take_ping(struct tt_member *from, struct tt_pack *);
void tt_member_take_pong(struct tt_member *from, struct tt_pack *);

/* ---- group.c ---- */

void tt_group_seats_out(struct tt_member *, const struct tt_pack *bye); /* of one that is gone (NULL) or leaves: who counts on it ... */
void tt_group_revoked(struct tt_member *from, struct tt_pack *); /* a message */

/* ---- connection.c ---- */

void tt_take_refused(struct tt_member *, struct tt_pack *); /* messages */
void tt_take_part(struct tt_member *, struct tt_pack *);
void tt_take_bye(struct tt_member *, struct tt_pack *);
void tt_tell_up(struct tt_member *);                 /* the modules */
void tt_tell_unseated(struct tt_member *);
void tt_say_bye(struct tt_member *);                 /* to one that is up, while leaving */
void tt_member_reborn(struct tt_member *, uint32_t epoch); /* a later life of it: ends the one known, if that has not ended yet */

/* ---- heartbeat.c ---- */

void tt_heartbeat_start(struct tt_job *);                   /* once it is joined; they end when it leaves */
void tt_heartbeat_answered(struct tt_link *);               /* a pong */
void tt_heartbeat_ask(struct tt_link *);                    /* whether it lives, unless it owes an answer */
uint64_t tt_heartbeat_patience(const struct tt_link *);     /* how long it may leave a ping unanswered */

/* ---- late_join.c: ranks that join a job under way ---- */

#define TT_NEW_RANK UINT32_MAX /* in a HELLO: give me a number */

static inline bool tt_is_new_life(const struct tt_member *m, uint32_t epoch) /* of one that is known, or was gone when I came */
{
	return m->epoch ? tt_before(m->epoch, epoch) : m->state >= TT_LEFT && !tt_members(m->job)->node_list;
}

/* Until the table is here. Then others may have it, too, and use me, however far my joining thread has got. */
static inline bool tt_is_joining(const struct tt_job *job) { return !job->joined && !tt_members(job)->endpoints_sent; }

void tt_late_join_grow(struct tt_job *, int size);        /* so many ranks are known, at most tt_members.capacity */
struct tt_member *tt_late_join_number(struct tt_job *);   /* the next rank, for a new one; NULL: not here, not yet, or no room */
void tt_late_join_take_number(struct tt_job *, int rank); /* mine */
void tt_late_join_admit(struct tt_member *);
void tt_late_join_told(struct tt_member *from, struct tt_pack *);
void tt_late_join_news(struct tt_member *from, struct tt_pack *);
int tt_late_join_settle(struct tt_job *);                 /* once all addresses are known */

/* ---- watch.c ---- */

void tt_watch_tell(struct tt_job *, const struct tt_member *, tutti_what); /* the one place for it */
void tt_watch_call(struct tt_job *);  /* on the background thread: makes the callbacks that are due, lets go of the gate for them */
void tt_watch_free(struct tt_job *);
#endif
