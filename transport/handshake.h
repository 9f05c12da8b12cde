/* handshake.h - what tcp and shm say to each other before anything is believed: frame.h has the bytes */
#ifndef TT_HANDSHAKE_H
#define TT_HANDSHAKE_H
#include "base/base.h"
#include "transport/frame.h"
#include "transport/transport.h"

struct tt_secret {
	bool set;
	uint8_t key[32]; /* hash of the job's secret */
};

int tt_secret_take(struct tt_secret *, const struct tt_net_config *); /* none is allowed, an empty one is not */
void tt_secret_forget(struct tt_secret *);
int tt_hello_judge(const struct tt_hello *, uint64_t job, const struct tt_secret *, char *why, size_t size); /* does it suit this side?
                                                      * 0, or -EPROTO or -EACCES with a sentence in `why` */
void tt_proof_make(const struct tt_secret *, bool of_acceptor, const uint8_t initiator[TT_HELLO_SIZE], const uint8_t acceptor[TT_HELLO_SIZE],
                   uint8_t out[TT_PROOF_SIZE]); /* zeros without a secret: there is nothing to prove */
bool tt_proof_same(const uint8_t *, const uint8_t *); /* in a time that does not depend on where they differ */
#endif
