/* shm.h - the transport between processes of one host, through shared memory */
#ifndef TT_SHM_H
#define TT_SHM_H
#include "transport/transport.h"

extern const struct tt_transport tt_shm;

/* Writes the address of the net that a process of this host opens for job `job` with this text as `listen`. */
void tt_shm_address(uint64_t job, const char *listen, char addr[96]);
#endif
