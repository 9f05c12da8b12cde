/* waiting.c - how a call waits for what another rank writes: it looks again and again, less often each time */
#include "engine/engine.h"
#include "publish/publish_private.h"

static bool never(void *arg) { return arg; }

int tt_publish_pause(struct tt_job *job, struct tt_users *users, uint64_t *ns, uint64_t deadline)
{
	uint64_t now = tt_now();

	tt_lock(job);
	int err = tt_wait_for(job, users, never, NULL, tt_min(now + *ns, deadline));
	tt_unlock(job);
	*ns = tt_min(2 * *ns, 5 * TT_MS);
	return err == -ETIMEDOUT ? 0 : err;
}

uint64_t tt_publish_deadline(uint64_t timeout, int timeout_ms)
{
	uint64_t now = tt_now(), wait = timeout_ms < 0 ? timeout : (uint64_t)timeout_ms * TT_MS;

	return wait < TT_FOREVER - now ? now + wait : TT_FOREVER;
}
