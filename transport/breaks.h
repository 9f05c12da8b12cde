/* breaks.h - twelve ways of breaking the contract. The test build of the transports (-DTT_BREAKS) switches one on at
 * a time, and contract.c must catch it. In the library they are constant 0 and vanish.
 *
 * So does the strict reader: a net that ends a peer for the use of a bad key, as a queue pair dies of it. sim has its
 * own switch for that, in tt_sim_config. */
#ifndef TT_BREAKS_H
#define TT_BREAKS_H
#include <stdbool.h>
#define TT_BREAK_LIST(X) \
	X(NOTIFY_FIRST, "a notify arrives before the bytes it announces") \
	X(DONE_TWICE, "an op is finished twice") \
	X(DONE_IN_POST, "done is called from inside post") \
	X(DONE_EARLY, "done comes with err 0 before the bytes have landed") \
	X(GET_EARLY, "a GET is done before its bytes have come") \
	X(KEY_PAST_END, "a range past the end of its key is accepted") \
	X(STALE_KEY, "a deregistered key still works") \
	X(STALE_SPARED, "the strict reader does not end a peer that uses a deregistered key") \
	X(PIN_SPARED, "memory that is not pinned is registered on a net that pins") \
	X(MESSAGES_SWAPPED, "two messages arrive in the wrong order") \
	X(FAIL_OUT_OF_ORDER, "a failed peer's ops are finished in another order than posted") \
	X(DOWN_TWICE, "down is called twice for one peer")
enum tt_break {
	TT_BREAK_NONE,
#define X(name, sentence) TT_BREAK_##name,
	TT_BREAK_LIST(X)
#undef X
	TT_BREAKS_END
};
#ifdef TT_BREAKS
extern _Thread_local enum tt_break tt_break; /* defined by the test */
extern _Thread_local bool tt_strict;
#define tt_broken(name) (tt_break == TT_BREAK_##name)
#else
#define tt_strict false
#define tt_broken(name) 0
#endif
#endif
