/* stats.c - what this rank did with each peer, how often, how long it took, and what became of the peers.
 *
 *      tt_member -> tt_stats -> tally of puts      job -> tt_stats -> tally of barriers
 *                            -> tally of gets                      -> tally of all-reduces
 *                            -> ...                                -> ...
 *
 * Everything is made on first use, so a peer that is not used costs a pointer. Times are kept in ticks and become
 * microseconds when somebody asks. Every operation is counted, but reading even the processor's counter twice costs more
 * than all the rest: after a job's first thousand only every 16th is timed.
 */
#include "runtime.h"
#include <stdlib.h>
#include <string.h>

enum { FIRST = 1000, EVERY_16TH = 28, EVERY_ONE = 32 };

enum what { TIMED, COUNTED };

static const struct kind {
	const char *name;
	enum what what;
	bool ours; /* the job's and not a peer's */
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
	[TUTTI_STAT_CUT] = { "cut", COUNTED, false },
	[TUTTI_STAT_REFUSED] = { "refused", COUNTED, true },
	[TUTTI_STAT_BARRIER] = { "barrier", TIMED, true },
	[TUTTI_STAT_BROADCAST] = { "broadcast", TIMED, true },
	[TUTTI_STAT_GATHER] = { "gather", TIMED, true },
	[TUTTI_STAT_ALLREDUCE] = { "all-reduce", TIMED, true },
	[TUTTI_STAT_REDUCE_SCATTER] = { "reduce-scatter", TIMED, true },
	[TUTTI_STAT_ALLGATHER] = { "all-gather", TIMED, true },
	[TUTTI_STAT_ALLTOALL] = { "all-to-all", TIMED, true },
	[TUTTI_STAT_PUSH] = { "push", TIMED, true },
	[TUTTI_STAT_PULL] = { "pull", TIMED, true },
	[TUTTI_STAT_PUSH_PULL] = { "push-pull", TIMED, true },
	[TUTTI_STAT_SNAPSHOT] = { "snapshot", TIMED, true },
	[TUTTI_STAT_RETRY] = { "retry", COUNTED, true },
	[TUTTI_STAT_PUSH_IN] = { "push-in", COUNTED, true },
	[TUTTI_STAT_DROPPED] = { "dropped", COUNTED, true },
	[TUTTI_STAT_BROKEN] = { "broken", COUNTED, true },
};

const char *tt_stats_name(tutti_stat_kind kind) { return kinds[kind].name; }

/* ---- counting ---- */

static struct tt_tally *make_tally(struct tt_stats **at, tutti_stat_kind kind)
{
	size_t size = kinds[kind].what == TIMED ? sizeof(struct tt_tally) : offsetof(struct tt_tally, times);

	if (!*at)
		*at = calloc(1, sizeof **at);
	if (*at)
		(*at)->of[kind] = calloc(1, size);
	return *at ? (*at)->of[kind] : NULL; /* NULL: no memory, and this one goes uncounted */
}

static struct tt_tally *tally(struct tt_stats **at, tutti_stat_kind kind)
{
	return *at && (*at)->of[kind] ? (*at)->of[kind] : make_tally(at, kind);
}

/* Which of them, a multiple of the golden ratio says: evenly, and not in step with a program that does things in turn. */
uint64_t tt_stats_start(struct tt_job *job)
{
	struct tt_book *b = &job->stats;
	uint64_t turn = b->turn++;

	return turn >= FIRST && (turn * 0x9e3779b9u & UINT32_MAX) >> b->shift ? 0 : tt_ticks();
}

static void ended(struct tt_stats **at, tutti_stat_kind kind, uint64_t since, size_t bytes, int err)
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
	tt_hist_add(&t->times, now > since ? now - since : 0); /* another core's counter may be a few ticks behind */
}

void tt_stats_timed(struct tt_stats **at, tutti_stat_kind kind, uint64_t since, size_t bytes) { ended(at, kind, since, bytes, 0); }

void tt_stats_count(struct tt_stats **at, tutti_stat_kind kind, size_t bytes)
{
	struct tt_tally *t = tally(at, kind);

	if (!t)
		return;
	t->ops++;
	t->bytes += bytes;
}

void tt_stats_request(struct tt_request *r, int err)
{
	const struct tt_op *op = &r->post.op;
	tutti_stat_kind kind = op->kind == TT_GET ? TUTTI_STAT_GET : op->kind == TT_ADD ? TUTTI_STAT_ADD :
	                       op->flags & TT_NOTIFY ? TUTTI_STAT_NOTIFY : TUTTI_STAT_PUT;

	ended(&r->job->members[r->rank].stats, kind, r->post.since, op->len, err);
}

void tt_stats_post(struct tt_post *p, int err)
{
	ended(&p->member->stats, p->op.kind == TT_SEND ? TUTTI_STAT_MESSAGE : TUTTI_STAT_CHUNK, p->since, p->op.len, err);
}

void tt_stats_call(struct tt_request *r, tutti_stat_kind kind, size_t bytes, int err) { ended(&r->job->stats.own, kind, r->post.since, bytes, err); }

void tt_stats_coll(struct tt_coll *c)
{
	ended(&c->job->stats.own, c->kind, c->request->post.since, c->bytes, c->err);
}

/* ---- life ---- */

int tt_stats_open(struct tt_job *job)
{
	struct tt_book *b = &job->stats;

	tt_enter(job);
	b->shift = tt_world ? EVERY_ONE : EVERY_16TH;
	b->joined = tt_now();
	tt_ticker_start(&b->ticker);
	tt_exit(job);
	return tt_stats_listen(job);
}

static void free_stats(struct tt_stats *s)
{
	for (int k = 0; s && k < TT_STAT_KINDS; k++)
		free(s->of[k]);
	free(s);
}

void tt_stats_close(struct tt_job *job)
{
	tt_stats_deafen(job);
	for (int i = 0; job->members && i < job->size; i++)
		free_stats(job->members[i].stats);
	free_stats(job->stats.own);
}

/* ---- reading ---- */

static void add_up(struct tt_tally *sum, const struct tt_stats *s, tutti_stat_kind kind)
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

void tt_stats_read(struct tt_job *job, int rank, tutti_stat_kind kind, double tick_ns, tutti_stat *out)
{
	struct tt_tally sum = { 0 };

	if (kinds[kind].ours && rank < 0)
		add_up(&sum, job->stats.own, kind);
	for (int i = rank < 0 ? 0 : rank; i < (rank < 0 ? job->size : rank + 1); i++)
		add_up(&sum, job->members[i].stats, kind);
	*out = (tutti_stat){ .size = sizeof *out, .ops = sum.ops, .bytes = sum.bytes, .errors = sum.errors,
		.p50_us = tt_hist_quantile(&sum.times, 0.5) * tick_ns / 1000, .p99_us = tt_hist_quantile(&sum.times, 0.99) * tick_ns / 1000,
		.max_us = (double)sum.times.max * tick_ns / 1000, .mean_us = tt_hist_mean(&sum.times) * tick_ns / 1000 };
}

int tutti_stats(tutti *at, int rank, tutti_stat_kind kind, tutti_stat *out)
{
	struct tt_job *job = at->job;
	size_t room = out->size;
	tutti_stat all;
	int err = tt_usable(job);

	if (err)
		return err;
	if ((unsigned)kind >= TT_STAT_KINDS)
		return tt_fail(-EINVAL, "stats: kind %d is unknown", (int)kind);
	if (rank < -1 || rank >= job->size)
		return tt_fail(-EINVAL, "stats: rank %d must be from -1 to %d", rank, job->size - 1);
	if (rank >= 0 && kinds[kind].ours)
		return tt_fail(-EINVAL, "stats: %s is counted for the whole job: use rank -1", kinds[kind].name);
	if (room < sizeof all)
		return tt_fail(-EINVAL, "tutti_stat.size is %zu: set it to sizeof(tutti_stat)", room);
	double tick_ns = tt_ticker_ns(&job->stats.ticker);
	tt_enter(job);
	tt_stats_read(job, rank, kind, tick_ns, &all);
	tt_exit(job);
	memset(out, 0, room); /* of a later header's members nothing is known */
	*out = all;
	out->size = room;
	return 0;
}
