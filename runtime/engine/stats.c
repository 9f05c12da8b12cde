/* stats.c - counters and times of this rank's operations, by peer or for the job
 *
 *      tt_member -> tt_stats -> tally of puts      job -> tt_stats -> tally of barriers
 *                            -> tally of gets                      -> tally of all-reduces
 *                            -> ...                                -> ...
 *
 * All are allocated on first use, so an unused peer costs a pointer. Times are in ticks, which a reader converts. Every
 * operation is counted; but two reads of the processor's counter cost more than all the rest, so after the first
 * thousand of a job only every 16th operation is timed. */
#include "engine/engine.h"
#include <stdlib.h>

enum { FIRST = 1000, EVERY_16TH = 28, EVERY_ONE = 32 };

static const struct kind {
	const char *name;
	enum { TIMED, COUNTED } what;
	bool own; /* of the job, not of a peer */
} kinds[TT_STAT_KINDS] = {
	[TUTTI_STAT_PUT] = { "put", TIMED, false },
	[TUTTI_STAT_GET] = { "get", TIMED, false },
	[TUTTI_STAT_ADD] = { "add", TIMED, false },
	[TUTTI_STAT_NOTIFY] = { "notify", TIMED, false },
	[TUTTI_STAT_MESSAGE] = { "message", TIMED, false },
	[TUTTI_STAT_CHUNK] = { "chunk", TIMED, false },
	[TUTTI_STAT_NOTIFY_IN] = { "notify-in", COUNTED, false },
	[TUTTI_STAT_MESSAGE_IN] = { "message-in", COUNTED, false },
	[TUTTI_STAT_CHUNK_IN] = { "chunk-in", COUNTED, false },
	[TUTTI_STAT_CONNECT] = { "connect", COUNTED, false },
	[TUTTI_STAT_PING] = { "ping", COUNTED, false },
	[TUTTI_STAT_GONE] = { "gone", COUNTED, false },
	[TUTTI_STAT_EVICTED] = { "evicted", COUNTED, false },
	[TUTTI_STAT_REFUSED] = { "refused", COUNTED, true },
	[TUTTI_STAT_BARRIER] = { "barrier", TIMED, true },
	[TUTTI_STAT_BROADCAST] = { "broadcast", TIMED, true },
	[TUTTI_STAT_GATHER] = { "gather", TIMED, true },
	[TUTTI_STAT_ALLREDUCE] = { "all-reduce", TIMED, true },
	[TUTTI_STAT_REDUCE_SCATTER] = { "reduce-scatter", TIMED, true },
	[TUTTI_STAT_ALLGATHER] = { "all-gather", TIMED, true },
	[TUTTI_STAT_ALLTOALL] = { "all-to-all", TIMED, true },
	[TUTTI_STAT_REDUCE] = { "reduce", TIMED, true },
	[TUTTI_STAT_PUSH] = { "push", TIMED, true },
	[TUTTI_STAT_PULL] = { "pull", TIMED, true },
	[TUTTI_STAT_PUSH_PULL] = { "push-pull", TIMED, true },
	[TUTTI_STAT_SNAPSHOT] = { "snapshot", TIMED, true },
	[TUTTI_STAT_RETRY] = { "retry", COUNTED, true },
	[TUTTI_STAT_PUSH_IN] = { "push-in", COUNTED, true },
	[TUTTI_STAT_DROPPED] = { "dropped", COUNTED, true },
	[TUTTI_STAT_BROKEN] = { "broken", COUNTED, true },
	[TUTTI_STAT_COPIED] = { "copied", COUNTED, true },
	[TUTTI_STAT_SCATTER] = { "scatter", TIMED, true },
	[TUTTI_STAT_SEND] = { "send", TIMED, false },
	[TUTTI_STAT_RECV] = { "recv", TIMED, false },
};

const char *tt_stats_name(tutti_stat_kind kind) { return kinds[kind].name; }
bool tt_stats_is_own(tutti_stat_kind kind) { return kinds[kind].own; }

/* ---- counting ---- */

static struct tt_tally *make_tally(struct tt_stats **at, tutti_stat_kind kind)
{
	size_t size = kinds[kind].what == TIMED ? sizeof(struct tt_tally) : offsetof(struct tt_tally, times);

	if (!*at)
		*at = calloc(1, sizeof **at);
	if (*at)
		(*at)->of[kind] = calloc(1, size);
	return *at ? (*at)->of[kind] : NULL; /* NULL: no memory, so the event is not counted */
}

static struct tt_tally *tally(struct tt_stats **at, tutti_stat_kind kind)
{
	return *at && (*at)->of[kind] ? (*at)->of[kind] : make_tally(at, kind);
}

/* Multiples of the golden ratio choose evenly, and out of step with a program that repeats a cycle. */
uint64_t tt_stats_start(struct tt_job *job)
{
	struct tt_book *b = &job->stats;
	uint64_t turn = b->turn++;

	return turn >= FIRST && (turn * 0x9e3779b9u & UINT32_MAX) >> b->shift ? 0 : tt_ticks();
}

void tt_stats_ended(struct tt_stats **at, tutti_stat_kind kind, uint64_t since, size_t bytes, int err)
{
	struct tt_tally *t = tally(at, kind);
	uint64_t now;

	if (!t)
		return;
	t->ops++;
	if (err) {
		t->errors++;
		return;
	}
	t->bytes += bytes;
	if (!since)
		return;
	now = tt_ticks();
	tt_hist_add(&t->times, now > since ? now - since : 0); /* this core's counter may be a few ticks behind */
}

void tt_stats_count(struct tt_stats **at, tutti_stat_kind kind, size_t bytes)
{
	tt_stats_ended(at, kind, 0, bytes, 0);
}

void tt_stats_set_bytes(struct tt_stats **at, tutti_stat_kind kind, uint64_t bytes)
{
	struct tt_tally *t = bytes ? tally(at, kind) : NULL; /* no line of zeros */

	if (t)
		t->bytes = bytes;
}

void tt_stats_open(struct tt_job *job)
{
	struct tt_book *b = &job->stats;

	b->shift = tt_world ? EVERY_ONE : EVERY_16TH;
	b->joined = tt_now();
	tt_ticker_start(&b->ticker);
}

void tt_stats_free(struct tt_stats *s)
{
	for (int k = 0; s && k < TT_STAT_KINDS; k++)
		free(s->of[k]);
	free(s);
}

/* Without memory they are lost. */
void tt_stats_retire(struct tt_book *b, struct tt_stats **of)
{
	for (int k = 0; *of && k < TT_STAT_KINDS; k++) {
		struct tt_tally *to = (*of)->of[k] ? tally(&b->former, (tutti_stat_kind)k) : NULL;
		if (to)
			tt_stats_sum(to, *of, (tutti_stat_kind)k);
	}
	tt_stats_free(*of);
	*of = NULL;
}

void tt_stats_sum(struct tt_tally *sum, const struct tt_stats *s, tutti_stat_kind kind)
{
	const struct tt_tally *t = s ? s->of[kind] : NULL;

	if (!t)
		return;
	sum->ops += t->ops;
	sum->bytes += t->bytes;
	sum->errors += t->errors;
	if (kinds[kind].what == TIMED)
		tt_hist_merge(&sum->times, &t->times);
}
