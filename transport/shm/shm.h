/* shm.h - the transport between processes of one host, through shared memory */
#ifndef TT_SHM_H
#define TT_SHM_H
#include "transport/transport.h"

extern const struct tt_transport tt_shm;
#endif
