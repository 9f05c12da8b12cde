/* interrupt.c - the hook with which a program ends a thread's waits: tutti_on_wait */
#include "base/base.h"
#include <limits.h>
#include <poll.h>

enum { HOOK_NS = 20000000 }; /* between two polls of a hook: a wait ends at most 50 ms after the program wants it to */

_Thread_local struct tt_hook tt_hook;

void tutti_on_wait(int (*stop)(void *), void *arg)
{
	tt_hook = (struct tt_hook){ .stop = stop, .arg = arg, .running = tt_hook.running };
}

void tutti_on_wait_flag(const volatile int *flag)
{
	tt_hook = (struct tt_hook){ .flag = flag, .running = tt_hook.running };
}

static bool says_stop(struct tt_hook *hook)
{
	bool stop;

	if (hook->flag)
		return *hook->flag;
	hook->running = true;
	stop = hook->stop(hook->arg);
	hook->running = false;
	return stop;
}

int tt_hook_poll(void)
{
	struct tt_hook *hook = &tt_hook;
	uint64_t now;

	if (!tt_hook_is_set() || (now = tt_now()) < hook->next)
		return 0;
	hook->next = now + HOOK_NS;
	if (!says_stop(hook))
		return 0;
	hook->next = 0; /* the next wait asks again, at once */
	return tt_fail(-EINTR, "the wait was interrupted: %s of this thread says so",
	               hook->flag ? "the flag of tutti_on_wait_flag" : "the function of tutti_on_wait");
}

int tt_hook_poll_files(struct pollfd *p, int n, uint64_t deadline)
{
	uint64_t now;
	int err, ready = 0;

	while (!ready && (now = tt_now()) < deadline) {
		uint64_t due = tt_hook_due(deadline), left = due > now ? (due - now) / TT_MS + 1 : 0;
		ready = poll(p, (nfds_t)n, (int)tt_min(left, INT_MAX));
		ready = ready >= 0 ? ready : errno == EINTR ? 0 : -errno;
		if (!ready && (err = tt_hook_poll()))
			return err;
	}
	return ready;
}
