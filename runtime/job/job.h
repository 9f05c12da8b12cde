/* job.h - the transports that this library has, and which settings it accepts. Joining and leaving are in tutti.h */
#ifndef TT_JOB_H
#define TT_JOB_H
#include "base/base.h"
#include "transport/transport.h"

const struct tt_transport *tt_transport_at(int i); /* the i-th, or NULL past the last */
int tt_judge_setting(const struct tt_settings *, enum tt_setting); /* 0; -EINVAL: it may not have its value */
int tt_judge_settings(const struct tt_settings *);                 /* likewise, of all */
#endif
