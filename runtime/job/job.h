/* transports.h - the transports that this library has */
#ifndef TT_TRANSPORTS_H
#define TT_TRANSPORTS_H
#include "transport/transport.h"

const struct tt_transport *tt_transport_find(const char *name); /* by name or by the scheme of an address, or NULL */
const struct tt_transport *tt_transport_at(int i);              /* the i-th, or NULL past the last */
#endif
