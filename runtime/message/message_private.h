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
 * A device's memory is announced, however short. Within this process, and where a SEND goes to a device, the room
 * runtime/device/ copies the bytes.
 *
 * What a receiver keeps is bounded, whatever its peers do: 1 MiB and 256 OFFERs of each, and 1 MiB of the former lives
 * of each rank that was started anew. */
#ifndef TT_MESSAGE_PRIVATE_H
#define TT_MESSAGE_PRIVATE_H
#include "device/device.h"
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
	struct tt_list offered;     /* sends whose OFFER the member has */
	int offers;                 /* the length of `offered` */
	size_t used;                /* costs of the messages to the member that the member has not credited yet */
	size_t kept;                /* costs of the short messages of the member's life that are kept */
	size_t owed;                /* costs of the messages of the member that were received, but not credited yet */
	size_t former;              /* costs of the kept messages of the member's former lives */
	int announced;              /* OFFERs of the member, kept or being fetched */
	struct tt_list fetching;    /* OFFERs of the member that are being fetched */
};

struct tt_messages { /* of a job */
	struct tt_list posted[TT_MSG_BUCKETS]; /* receives that nothing has matched yet, in the order of the calls */
	/* messages that no receive has matched yet, in the order of arrival: for receives from any rank, and once more
	 * for receives from one rank, which must not pass the messages of all others */
	struct tt_list kept[TT_MSG_BUCKETS], kept_of_sender[TT_MSG_BUCKETS];
	uint32_t number;            /* of the last OFFER */
};
static inline struct tt_messages *tt_messages(const struct tt_job *job) { return job->own[TT_MESSAGE_SLOT]; }

struct tt_msg_kept {
	struct tt_list link;        /* in tt_messages.kept, or in tt_msg_peer.fetching */
	struct tt_list same_sender; /* in tt_messages.kept_of_sender */
	struct tt_msg_peer *from;   /* NULL: the sender's life has ended while the bytes were fetched */
	uint32_t group;             /* the group's uid; 0: the job */
	uint16_t slot;              /* of that group here */
	bool early;                 /* the group is not agreed on yet */
	int tag;
	size_t len;
	bool offer;
	bool lost;                  /* an earlier message was lost with the sender, so this message is lost, too */
	bool former;                /* a former life of the sender's rank has sent the message */
	uint32_t number;            /* the OFFER's */
	uint32_t recall;            /* the number of the sender's recall; 0: none */
	struct tt_key key;
	uint64_t at;                /* where in the key's memory the bytes are */
	struct tt_operation *own;   /* this rank's send to itself, which waits; NULL: none */
	const char *memory;         /* the memory of that send ... */
	struct tt_pinned *pinned;   /* ... if it is a device's; the operation unpins it */
	char bytes[];
};

/* How a message names its group: 0 is the job's handle, which takes every rank. */
static inline bool tt_msg_is_job(const struct tutti *g) { return g == tt_members(g->job)->whole; }
static inline uint32_t tt_msg_group(const struct tutti *g) { return tt_msg_is_job(g) ? 0 : g->uid; }
static inline unsigned tt_msg_bucket(uint32_t group, int tag)
{
	return ((group * 31 + (uint32_t)tag) * 0x9e3779b1u) >> 24;
}
static inline unsigned tt_msg_sender_bucket(uint32_t group, int tag, int rank)
{
	return (((uint32_t)rank * 8191 + group * 31 + (uint32_t)tag) * 0x9e3779b1u) >> 24;
}
/* What calls return for a member that has ended. */
static inline int tt_msg_how_ended(const struct tt_member *m) { return m->err == -ENOTCONN ? -ENOTCONN : -ECONNRESET; }

/* ---- receive.c ---- */

struct tt_msg_peer *tt_msg_peer(struct tt_member *); /* NULL: no memory */
/* Checks a call's arguments, without the lock: 0, or -EINVAL with a sentence */
int tt_msg_check(const char *what, struct tutti *, int rank, int tag, const void *memory, size_t bytes);
/* Finds the member of a call's rank, with the lock. *m: NULL for -1. -ESTALE: the group was shrunk or grown */
int tt_msg_find(const char *what, struct tutti *, int rank, struct tt_member **m);
int tt_msg_fault(const struct tutti *, const struct tt_member *); /* what the member, or its seat, ended with; or 0 */
/* This rank sends to itself. 1: the memory is the caller's again. 0: the operation ends later. -ENOMEM. pinned: the
 * memory is a device's; else NULL */
int tt_msg_deliver_own(struct tutti *, int tag, const void *memory, size_t len, struct tt_pinned *pinned,
                       struct tt_operation *);
bool tt_msg_withdraw_own(struct tt_operation *); /* false: its bytes are on their way to a receive */
void tt_msg_take_send(struct tt_member *, struct tt_pack *);
void tt_msg_take_offer(struct tt_member *, struct tt_pack *);
bool tt_msg_take_recall(struct tt_member *, struct tt_pack *, uint32_t number);
/* Events */
void tt_msg_begin_group(struct tutti *);
void tt_msg_end_receives(struct tutti *, int err); /* also drops the messages that are kept for the group */
void tt_msg_drop_early(const struct tutti *);
void tt_msg_sender_ended(struct tt_member *);      /* messages that have come whole stay */
void tt_msg_sender_unseated(struct tt_member *);
void tt_msg_forget_life(struct tt_member *);       /* messages of the former life stay, too */
void tt_msg_close_receives(struct tt_job *);

/* ---- send.c ---- */

void tt_msg_take_credit(struct tt_member *, struct tt_pack *);
void tt_msg_take_taken(struct tt_member *, struct tt_pack *);
void tt_msg_pump(struct tt_member *);              /* sends the messages that wait, as far as credit goes */
/* Ends the sends to a member, with err. group: only the sends of this group; NULL: all. */
void tt_msg_end_sends(struct tt_member *, const struct tutti *group, int err);
void tt_msg_end_waiting(struct tt_member *, int err); /* ends the sends of which the member knows nothing */
#endif
