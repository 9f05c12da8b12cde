/* rounds.c - the clock of one shard, and the round that a push belongs to; rounds.h states the rule */
#include "table/rounds.h"
#include <limits.h>
#include <stdlib.h>

struct worker {
	uint64_t pushed;            /* pushes completed or dropped: the next push belongs to round pushed + 1 */
	int pushing;                /* pushes admitted and not complete; in BSP one at most */
	bool live;
};

struct tt_rounds {
	tutti_consistency as;
	uint64_t clock;
	int behind;                 /* live workers that hold the clock back: pushed <= clock */
	int summed;                 /* BSP: complete pushes of the open round, also of workers that have left; ... */
	int parts;                  /* ... pushes to it whose workers left before the push was complete; ... */
	int closed;                 /* ... and both, of the round before */
	struct tt_rounds_counts counts;
	int room;
	struct worker *of;
};

int tt_consistency_check(const tutti_consistency *c)
{
	int err = TT_RESERVED(tutti_consistency, c);

	if (err)
		return err;
	if (c->mode != TUTTI_ASYNC && c->mode != TUTTI_SSP && c->mode != TUTTI_BSP)
		return tt_fail(-EINVAL, "there is no consistency %d", (int)c->mode);
	if (c->staleness < 0 || (c->staleness && c->mode != TUTTI_SSP))
		return tt_fail(-EINVAL, "staleness is %d, and must be 0 or more; only bounded staleness has one",
		               c->staleness);
	if (c->backup < 0 || (c->backup && c->mode != TUTTI_BSP))
		return tt_fail(-EINVAL, "backup is %d, and must be 0 or more; only rounds have backups", c->backup);
	return 0;
}

uint64_t tt_clock_to_pull(const tutti_consistency *c, uint64_t pushed)
{
	uint64_t staleness = (uint64_t)c->staleness;

	return c->mode == TUTTI_ASYNC || pushed < staleness ? 0 : pushed - staleness;
}

static bool is_behind(const struct tt_rounds *r, const struct worker *w) { return w->pushed <= r->clock; }

static int count_up_to(const struct tt_rounds *r, uint64_t pushed)
{
	int n = 0;

	for (int i = 0; i < r->room; i++)
		n += r->of[i].live && r->of[i].pushed <= pushed;
	return n;
}

static void set_clock(struct tt_rounds *r, uint64_t clock)
{
	r->clock = clock;
	r->behind = count_up_to(r, clock);
}

/* The least number of pushes of a live worker, from `least` up. UINT64_MAX: there is none. */
static uint64_t slowest(const struct tt_rounds *r, uint64_t least)
{
	uint64_t pushed = UINT64_MAX;

	for (int i = 0; i < r->room; i++)
		if (r->of[i].live && r->of[i].pushed >= least && r->of[i].pushed < pushed)
			pushed = r->of[i].pushed;
	return pushed;
}

static bool is_full(const struct tt_rounds *r)
{
	return r->as.mode == TUTTI_BSP && r->summed && r->behind <= r->as.backup;
}

static void close_sum(struct tt_rounds *r)
{
	r->closed = r->summed + r->parts;
	r->summed = r->parts = 0;
}

static bool move_clock(struct tt_rounds *r)
{
	bool ssp = r->as.mode == TUTTI_SSP, may = ssp ? r->counts.live && !r->behind : is_full(r) && !r->counts.pushing;

	if (may) {
		close_sum(r);
		set_clock(r, ssp ? slowest(r, 0) : r->clock + 1);
	}
	return may;
}

static void count_push(struct tt_rounds *r, struct worker *w)
{
	r->behind -= is_behind(r, w);
	w->pushed++;
	r->behind += is_behind(r, w);
}

static struct worker *find(struct tt_rounds *r, int worker)
{
	return worker >= 0 && worker < r->room && r->of[worker].live ? &r->of[worker] : NULL;
}

static int make_room(struct tt_rounds *r, int workers)
{
	struct worker *grown;

	if (workers <= r->room)
		return 0;
	if (!(grown = realloc(r->of, (size_t)workers * sizeof *grown)))
		return tt_fail(-ENOMEM, "no memory for the clocks of %d workers", workers);
	for (int i = r->room; i < workers; i++)
		grown[i] = (struct worker){ 0 };
	r->of = grown;
	r->room = workers;
	return 0;
}

int tt_rounds_open(const tutti_consistency *as, int workers, struct tt_rounds **rounds)
{
	int err = tt_consistency_check(as);
	struct tt_rounds *r;

	if (err)
		return err;
	if (!(r = calloc(1, sizeof *r)))
		return tt_fail(-ENOMEM, "no memory for the clock of a shard");
	r->as = *as;
	if ((err = make_room(r, workers)))
		tt_rounds_close(r);
	else
		*rounds = r;
	return err;
}

void tt_rounds_close(struct tt_rounds *r)
{
	if (r)
		free(r->of);
	free(r);
}

int tt_rounds_join(struct tt_rounds *r, int worker, uint64_t *clock)
{
	int err;

	if (worker < 0 || worker == INT_MAX)
		return tt_fail(-EINVAL, "there can be no worker %d", worker);
	if (find(r, worker))
		return tt_fail(-EEXIST, "worker %d has joined this table already", worker);
	if ((err = make_room(r, worker + 1)))
		return err;
	r->of[worker] = (struct worker){ .pushed = r->clock + is_full(r), .live = true };
	r->behind += is_behind(r, &r->of[worker]);
	r->counts.live++;
	*clock = r->of[worker].pushed;
	return 0;
}

bool tt_rounds_leave(struct tt_rounds *r, int worker)
{
	struct worker *w = find(r, worker);

	if (!w)
		return false;
	r->behind -= is_behind(r, w);
	r->counts.live--;
	r->counts.pushing -= w->pushing;
	r->counts.broken += (uint64_t)w->pushing;
	r->parts += r->as.mode == TUTTI_BSP ? w->pushing : 0; /* what has come of them stays in the sum */
	*w = (struct worker){ 0 };
	return move_clock(r);
}

static enum tt_admission look_at(const struct tt_rounds *r, const struct worker *w)
{
	uint64_t round = w->pushed + (uint64_t)w->pushing + 1;

	if (r->as.mode != TUTTI_BSP)
		return TT_ADMIT;
	if (round > r->clock + 1)
		return TT_WAIT;
	return round <= r->clock || is_full(r) ? TT_DROP : TT_ADMIT;
}

enum tt_admission tt_rounds_begin(struct tt_rounds *r, int worker)
{
	struct worker *w = find(r, worker);
	enum tt_admission a = w ? look_at(r, w) : TT_DROP;

	if (a == TT_ADMIT) {
		w->pushing++;
		r->counts.pushing++;
	} else if (a == TT_DROP) {
		r->counts.dropped++;
		if (w)
			count_push(r, w);
	}
	return a;
}

bool tt_rounds_complete(struct tt_rounds *r, int worker)
{
	struct worker *w = find(r, worker);

	if (!w || !w->pushing)
		return false;
	w->pushing--;
	r->counts.pushing--;
	if (r->as.mode == TUTTI_ASYNC)
		return false;
	count_push(r, w);
	r->summed++;
	return move_clock(r);
}

/* How far all live workers but `few` have come. */
static uint64_t all_but(const struct tt_rounds *r, int few)
{
	uint64_t level = slowest(r, 0), next;

	while (count_up_to(r, level) <= few && (next = slowest(r, level + 1)) > level && next != UINT64_MAX)
		level = next;
	return level;
}

void tt_rounds_start(struct tt_rounds *r, uint64_t clock) { r->clock = r->as.mode == TUTTI_ASYNC ? 0 : clock; }

bool tt_rounds_skip(struct tt_rounds *r)
{
	uint64_t pushed;

	if (r->as.mode != TUTTI_BSP || r->summed || r->counts.pushing || !r->counts.live)
		return false;
	pushed = all_but(r, r->as.backup);
	if (pushed <= r->clock)
		return false;
	set_clock(r, pushed);
	return true;
}

bool tt_rounds_resume(struct tt_rounds *r, int worker, uint64_t pushed, bool *skipped)
{
	struct worker *w = find(r, worker);

	*skipped = false;
	if (!w || w->pushing || pushed <= w->pushed || r->as.mode == TUTTI_ASYNC)
		return false;
	w->pushed = pushed;
	r->behind = count_up_to(r, r->clock);
	if (r->as.mode == TUTTI_SSP || r->summed || r->counts.pushing)
		return move_clock(r);
	return *skipped = tt_rounds_skip(r);
}

bool tt_rounds_is_left(const struct tt_rounds *r) { return r->as.mode == TUTTI_BSP && !r->counts.live; }

bool tt_rounds_catch_up(struct tt_rounds *r, uint64_t clock)
{
	if (!tt_rounds_is_left(r) || clock <= r->clock)
		return false;
	r->clock = clock;
	close_sum(r);
	return true;
}

int tt_rounds_switch(struct tt_rounds *r, const tutti_consistency *to, uint64_t *clock)
{
	int err = tt_consistency_check(to);

	if (err)
		return err;
	if (r->counts.pushing)
		return tt_fail(-EBUSY, "%d pushes are under way: consistency can be switched between steps only",
		               r->counts.pushing);
	/* The sum of the open round counts as a round, also if all workers that pushed to it have left. */
	*clock = tt_max(*clock, r->clock + (r->as.mode == TUTTI_BSP && r->summed));
	for (int i = 0; i < r->room; i++)
		if (r->of[i].live)
			*clock = tt_max(*clock, r->of[i].pushed);
	for (int i = 0; i < r->room; i++)
		r->of[i].pushed = *clock;
	r->as = *to;
	close_sum(r);
	set_clock(r, *clock);
	return 0;
}

uint64_t tt_rounds_clock(const struct tt_rounds *r) { return r->clock; }
int tt_rounds_summed(const struct tt_rounds *r) { return r->closed; }

int tt_rounds_slowest(const struct tt_rounds *r)
{
	bool some_wait = false;
	int slow = -1;

	for (int i = 0; r->as.mode != TUTTI_ASYNC && i < r->room; i++) {
		const struct worker *w = &r->of[i];
		some_wait |= w->live && !is_behind(r, w);
		if (w->live && is_behind(r, w) && (slow < 0 || w->pushed < r->of[slow].pushed))
			slow = i;
	}
	return some_wait ? slow : -1;
}
struct tt_rounds_counts tt_rounds_counts(const struct tt_rounds *r) { return r->counts; }

uint64_t tt_rounds_pushed(const struct tt_rounds *r, int worker)
{
	return worker >= 0 && worker < r->room ? r->of[worker].pushed : 0;
}
