/* job.h - the transports that this library has. Joining and leaving are in tutti.h */
#ifndef TT_JOB_H
#define TT_JOB_H
#include "transport/transport.h"

const struct tt_transport *tt_transport_at(int i); /* the i-th, or NULL past the last */
#endif
