/* tcp.h - the transport over TCP sockets */
#ifndef TT_TCP_H
#define TT_TCP_H
#include "transport/transport.h"

extern const struct tt_transport tt_tcp;
#endif
