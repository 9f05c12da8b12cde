/* message.h - messages between two ranks: tutti_send, tutti_recv */
#ifndef TT_MESSAGE_ROOM_H
#define TT_MESSAGE_ROOM_H
#include "operation/operation.h"

enum { TT_MESSAGE_SLOT = 6 };
extern const struct tt_module tt_message_module;
#endif
