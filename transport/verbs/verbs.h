/* verbs.h - InfiniBand, RoCE and iWARP by libibverbs and librdmacm, which are loaded at run time */
#ifndef TT_VERBS_H
#define TT_VERBS_H
#include "transport/transport.h"

extern const struct tt_transport tt_verbs;
#endif
