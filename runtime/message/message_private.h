/* message_private.h - what the files of this room share
 *
 *      sender                                              receiver
 *      SEND {group, tag, bytes}                    -->     at most 16 KiB: into the memory of a receive, or kept
 *                              <-- CREDIT {bytes}          so many bytes of kept messages were received
 *
 *      OFFER {group, number, tag, length, key}     -->     longer, or without credit: kept without its bytes
 *                                        GET <-- -->       once a receive matches: the bytes, into its memory
 *                              <-- TAKEN {number}          the sender has its memory back
 *
 * All messages between two ranks travel in the order of the sends, so arrival decides what matches what. The key of an
 * OFFER is on loan (member/loan.c): a send that is cancelled or has no time left recalls it.
 *
 * What a receiver keeps is bounded, whatever its peers do: 1 MiB and 256 OFFERs of each. */
#ifndef TT_MESSAGE_PRIVATE_H
#define TT_MESSAGE_PRIVATE_H
#include "engine/engine.h"
#include "member/member.h"
#include "message/message.h"
#include <limits.h>

enum { TT_MSG_SEND = 45, TT_MSG_CREDIT, TT_MSG_OFFER, TT_MSG_TAKEN }; /* types of messages */
enum {
	TT_MSG_SHORT = 16384,       /* bytes of a message that is sent at once */
	TT_MSG_CREDIT_ALL = 1 << 20, /* what a receiver keeps of one sender: the costs of short messages */
	TT_MSG_OFFERS = 256,        /* of one sender, that were not taken yet */
	TT_MSG_BUCKETS = 256,
};
/* Empty messages need memory, too. */
static inline size_t tt_msg_cost(size_t len) { return len + 64; }

struct tt_msg_peer { /* a member's own */
	struct tt_member *member;
	struct tt_list waiting;     /* sends that wait for the connection, or for a place among the OFFERs */
	struct tt_list offered;     /* sends of which the member has an OFFER, ... */
	int offers;                 /* ... and how many */
	size_t used;                /* costs of what was sent and not credited yet */
	size_t kept, owed;          /* costs of what is kept of the member; and was received, but not credited yet */
	int announced;              /* OFFERs of the member, kept or being fetched */
	struct tt_list fetching;    /* the latter */
};

struct tt_messages { /* of a job */
	struct tt_list posted[TT_MSG_BUCKETS]; /* receives that nothing has matched yet, in the order of the calls */
	struct tt_list kept[TT_MSG_BUCKETS];   /* messages that no receive has matched yet, in the order of arrival */
	uint32_t number;            /* of the last OFFER */
};
static inline struct tt_messages *tt_messages(const struct tt_job *job) { return job->own[TT_MESSAGE_SLOT]; }

struct tt_msg_kept {
	struct tt_list link;        /* in tt_messages.kept, or in tt_msg_peer.fetching */
	struct tt_msg_peer *from;   /* NULL: its life has ended while the bytes were fetched */
	uint32_t group;             /* its uid; 0: the job */
	uint16_t slot;              /* of that group here */
	bool early;                 /* the group is not agreed on yet */
	int tag;
	size_t len;
	bool offer, lost;           /* lost: a message before it was, with its sender */
	uint32_t number, recall;    /* of the OFFER; of the sender's question, 0: none */
	struct tt_key key;
	uint64_t at;                /* where in the key's memory the bytes are */
	struct tt_operation *own;   /* this rank's own send, with its memory; NULL: else, or the bytes follow */
	const char *memory;
	char bytes[];
};

/* How a message of this group names it: the job's handle, which takes every rank, is 0. */
static inline bool tt_msg_is_job(const struct tutti *g) { return g == tt_members(g->job)->whole; }
static inline uint32_t tt_msg_group(const struct tutti *g) { return tt_msg_is_job(g) ? 0 : g->uid; }
static inline unsigned tt_msg_bucket(uint32_t group, int tag)
{
	return ((group * 31 + (uint32_t)tag) * 0x9e3779b1u) >> 24;
}
/* A member that has ended: what calls return. */
static inline int tt_msg_how_ended(const struct tt_member *m) { return m->err == -ENOTCONN ? -ENOTCONN : -ECONNRESET; }

/* ---- receive.c ---- */

struct tt_msg_peer *tt_msg_peer(struct tt_member *); /* NULL: no memory */
/* The group of a call, and the member of its rank, which may be NULL for -1. Without the lock: -EINVAL and others */
int tt_msg_check(const char *what, struct tutti *, int rank, int tag, const void *memory, size_t bytes);
/* With the lock: -ESTALE; the error of a seat whose rank is gone. *m: NULL for -1 */
int tt_msg_find(const char *what, struct tutti *, int rank, struct tt_member **m);
int tt_msg_fault(const struct tutti *, const struct tt_member *); /* what it, or its seat, has ended with; 0 */
/* This rank sends to itself. 1: the memory is the caller's again. 0: the operation ends later; NULL:
 * none was begun. -ENOMEM */
int tt_msg_deliver_own(struct tutti *, int tag, const void *memory, size_t len, struct tt_operation *);
void tt_msg_withdraw_own(struct tt_operation *);
void tt_msg_take_send(struct tt_member *, struct tt_pack *);
void tt_msg_take_offer(struct tt_member *, struct tt_pack *);
bool tt_msg_take_recall(struct tt_member *, struct tt_pack *, uint32_t number);
/* Events */
void tt_msg_begin_group(struct tutti *);
void tt_msg_end_receives(struct tutti *, int err); /* of the group, and drops what was kept for it */
void tt_msg_drop_early(const struct tutti *);
void tt_msg_sender_ended(struct tt_member *);      /* what has come whole stays */
void tt_msg_sender_unseated(struct tt_member *);
void tt_msg_forget_life(struct tt_member *);
void tt_msg_close_receives(struct tt_job *);

/* ---- send.c ---- */

void tt_msg_take_credit(struct tt_member *, struct tt_pack *);
void tt_msg_take_taken(struct tt_member *, struct tt_pack *);
void tt_msg_pump(struct tt_member *);              /* sends what waits, as far as it may */
/* Ends the sends to a member, with err; group: those of one group alone. */
void tt_msg_end_sends(struct tt_member *, const struct tutti *group, int err);
void tt_msg_end_waiting(struct tt_member *, int err); /* those of which the member knows nothing */
#endif
