/* watch.h - tells the fake libcuda whether a thread holds a job's lock. The program is linked with $(LINK_WATCH).
 *
 *   fake_cuda_watch(holds_lock);
 *
 * Base's ticket lock is the lock of a job and that of the log, which makes no call of a driver. */
#ifndef TESTS_GPU_WATCH_H
#define TESTS_GPU_WATCH_H
#include "base/base.h"
#include "tests/gpu/fake.h"

void __real_tt_ticket_lock_take(struct tt_ticket_lock *);
void __real_tt_ticket_lock_release(struct tt_ticket_lock *);
void __wrap_tt_ticket_lock_take(struct tt_ticket_lock *);
void __wrap_tt_ticket_lock_release(struct tt_ticket_lock *);

static _Thread_local int locks_held;

void __wrap_tt_ticket_lock_take(struct tt_ticket_lock *lock)
{
	__real_tt_ticket_lock_take(lock);
	locks_held++;
}

void __wrap_tt_ticket_lock_release(struct tt_ticket_lock *lock)
{
	locks_held--;
	__real_tt_ticket_lock_release(lock);
}

static inline bool holds_lock(void) { return locks_held > 0; }
#endif
