/* message.h - messages between two ranks: tutti_send, tutti_recv */
#ifndef TT_MESSAGE_ROOM_H
#define TT_MESSAGE_ROOM_H
#include "operation/operation.h"

enum { TT_MESSAGE_SLOT = 6 };
extern const struct tt_module tt_message_module;
/* This process leaves the job, with the lock: ends the receives that no message has matched, and the sends to this rank
 * itself, with -ESHUTDOWN. */
void tt_messages_shut(struct tt_job *);
#endif
