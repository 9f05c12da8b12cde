/* tcp.h - the transport over TCP sockets */
#ifndef TT_TCP_H
#define TT_TCP_H
#include "transport/transport.h"

extern const struct tt_transport tt_tcp;

/* Payload bytes that this net has copied in user space, of frames of 4 KiB and more. */
uint64_t tt_tcp_copied(const struct tt_net *);
#endif
