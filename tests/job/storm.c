/* storm.c - random patterns and faults on the simulated wire. From each seed come the number of ranks, a schedule that
 * all of them follow, and for half the seeds a fault. What a call says it did is checked exactly; whom it blames must
 * be guilty; nothing may hang; memory is the caller's again once a call has returned.
 *
 *      storm [--seed S] [--seeds N] [--ranks N] [--verbose]        --seed alone: that one; with --seeds: N from S on
 */
#include "member/member.h"
#include "transport/sim/sim.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
	RANKS_MAX = 16,
	STEPS_MAX = 14,
	FLIGHT_MAX = 4,
	OPS_MAX = 8,        /* one-sided operations of a rank in a session */
	PAYLOAD = 2048,     /* bytes of the largest */
	COUNTERS = 4,
	FIXED = 256,        /* bytes of a session's window that its owner never changes */
	DEADLINE_MS = 1000, /* the timeout of all calls */
	SILENCE_MS = 300,
	TWICE = 8,          /* every so many seeds run twice, for the trace */
	KEEP_MAX = 4 << 20, /* bytes of memory per run that are looked at again at the end */
	SCRIBBLE = 0xa5,
};
#define DEADLINE (DEADLINE_MS * TT_MS)
#define SLACK (600 * TT_MS) /* the rounds in which a call that is given up looks for more silent ranks */

/* ---- the plan: all that a seed decides before the ranks run ---- */

enum kind { ALLREDUCE, BARRIER, BROADCAST, GATHER, SCATTER, REDUCE_SCATTER, ALLGATHER, ALLTOALL, ALLTOALLV, KINDS };
static const char *const kind_names[] = { "all-reduce",     "barrier",    "broadcast",  "gather",    "scatter",
	                                  "reduce-scatter", "all-gather", "all-to-all", "all-to-all of any sizes" };

struct collective {
	enum kind kind;
	tutti_type type;
	tutti_rule rule;
	size_t count; /* elements, or bytes a rank */
	int root;
};

/* collectives; a window that all use; messages; a window that its owner closes early */
enum step_kind { FLIGHT, SESSION, LETTERS, EARLY };

struct step {
	enum step_kind kind;
	int n;
	bool blocking;
	struct collective of[FLIGHT_MAX];
	int owner; /* EARLY */
};

enum fault { NONE, KILL, KILL_TWO, STOP_LONG, STOP_SHORT, CUT, SLOW, ABSENT, CANCEL, FAULTS };
static const char *const fault_names[] = { "no fault", "kill", "kill two", "long stop", "short stop",
	                                   "cut",      "slow", "absence",  "cancels" };

struct plan {
	uint64_t seed;
	int ranks, steps;
	const char *algorithm;
	struct step step[STEPS_MAX];
	enum fault fault;
	int a, b;                       /* who is hit; b: the second one, or the other end of the link */
	int trigger_rank, trigger_step; /* the fault is ordered when that rank begins that step. -1: before it
	                                 * joins; the one behind the last: when it leaves */
	uint64_t delay[2], ns;
	unsigned factor;
	bool leave_early;               /* an all-reduce is left to tutti_leave */
};

static uint64_t below(struct tt_random *r, uint64_t n) { return tt_random_below(r, n); }
static bool one_in(struct tt_random *r, uint64_t n) { return !below(r, n); }

/* From 1 up to most, each order of magnitude as likely as another. */
static uint64_t any_scale(struct tt_random *r, uint64_t most)
{
	uint64_t top = 1;

	while (top < most && !one_in(r, 6))
		top *= 4;
	return 1 + below(r, top < most ? top : most);
}

/* Around the sizes where algorithms change: messages hold 16320 bytes on this wire. */
static size_t draw_count(struct tt_random *r, size_t width, int ranks)
{
	const size_t border[] = { 16320 / width, 2 * 16320 / width, (size_t)ranks, 8 * (size_t)ranks, 2, 4096 };

	switch (below(r, 8)) {
	case 0: return border[below(r, TT_COUNT(border))] + below(r, 3) - 1;
	case 1: return 1 + below(r, 4000);
	case 2: return 1 + below(r, one_in(r, 4) ? 40000 : 10000);
	default: return 1 + below(r, 64);
	}
}

static size_t draw_bytes(struct tt_random *r)
{
	const size_t border[] = { 0, 1, 16319, 16320, 16321, 65536, 262143, 262144, 262145, 1 << 20 };

	return one_in(r, 4) ? border[below(r, TT_COUNT(border))] : one_in(r, 40) ? below(r, 1 << 20) : below(r, 300);
}

static void draw_collective(struct tt_random *r, int ranks, struct collective *c)
{
	static const tutti_type types[] = { TUTTI_F32, TUTTI_F64, TUTTI_I32, TUTTI_I64 };

	c->kind = one_in(r, 2) ? ALLREDUCE : (enum kind)below(r, KINDS);
	c->type = types[below(r, TT_COUNT(types))];
	c->rule = one_in(r, 3) ? TUTTI_MAX : one_in(r, 4) ? TUTTI_AVERAGE : TUTTI_SUM;
	c->root = (int)below(r, (uint64_t)ranks);
	c->count = c->kind == ALLREDUCE        ? draw_count(r, tt_type_size(c->type), ranks)
	           : c->kind == BROADCAST      ? draw_bytes(r)
	           : c->kind == REDUCE_SCATTER ? draw_count(r, tt_type_size(c->type), 1)
	           : c->kind >= ALLGATHER      ? draw_bytes(r) / (one_in(r, 8) ? 1 : 8)
	           : one_in(r, 4)              ? 1 + draw_bytes(r) / (one_in(r, 8) ? 1 : 8)
	                                       : 1 + below(r, 60);
	if (c->kind == GATHER && one_in(r, 2))
		c->root = -1;
}

static void draw_step(struct tt_random *r, int ranks, struct step *s)
{
	uint64_t dice = below(r, 10);

	s->kind = dice < 5 ? FLIGHT : dice < 7 ? SESSION : dice < 9 ? LETTERS : EARLY;
	s->n = one_in(r, 2) ? 1 : 1 + (int)below(r, FLIGHT_MAX);
	s->blocking = s->n == 1 && !one_in(r, 4);
	for (int i = 0; i < s->n; i++)
		draw_collective(r, ranks, &s->of[i]);
	s->owner = (int)below(r, (uint64_t)ranks);
}

static void draw_fault(struct tt_random *r, struct plan *p)
{
	p->fault = one_in(r, 2) ? NONE : (enum fault)(1 + below(r, FAULTS - 1));
	p->a = (int)below(r, (uint64_t)p->ranks);
	p->b = (p->a + 1 + (int)below(r, (uint64_t)p->ranks - 1)) % p->ranks;
	p->trigger_rank = (int)below(r, (uint64_t)p->ranks);
	p->trigger_step = (int)below(r, (uint64_t)p->steps + 2) - 1;
	p->delay[0] = any_scale(r, 20 * TT_MS);
	p->delay[1] = p->delay[0] + (one_in(r, 2) ? any_scale(r, 20 * TT_MS) : below(r, 2 * DEADLINE));
	p->ns = p->fault == STOP_LONG ? DEADLINE * 3 / 2 + below(r, 2 * DEADLINE)
	                              : any_scale(r, DEADLINE / 6); /* below the silence: nobody may be evicted */
	if (p->fault == ABSENT)
		p->ns = DEADLINE + below(r, 3 * DEADLINE);
	p->factor = 10 + (unsigned)below(r, 91);
	p->leave_early = one_in(r, 3);
}

static struct plan draw_plan(uint64_t seed, int ranks)
{
	static const char *const algorithms[] = { "auto", "doubling", "rabenseifner", "ring" };
	struct plan p = { .seed = seed };
	struct tt_random r;

	tt_random_seed(&r, seed ^ 0x73746f726d);
	p.ranks = 2 + (int)below(&r, 8);
	if (ranks)
		p.ranks = ranks;
	p.steps = 3 + (int)below(&r, STEPS_MAX - 2);
	p.algorithm = algorithms[below(&r, TT_COUNT(algorithms))];
	for (int i = 0; i < p.steps; i++)
		draw_step(&r, p.ranks, &p.step[i]);
	draw_fault(&r, &p);
	return p;
}

/* ---- the run: what all ranks' programs write down ---- */

struct kept {
	struct kept *next;
	size_t len;
	const char *what;
	int rank;
	unsigned char bytes[];
};

static struct run {
	const struct plan *plan;
	uint64_t hash;              /* of all that was seen, and when */
	char complaint[700];        /* the first */
	bool ordered;               /* the fault */
	bool drift;                 /* a rank has spent a deadline on another, which was not evicted for it */
	bool left[RANKS_MAX];       /* has called tutti_leave, or never came in */
	bool came[RANKS_MAX];       /* tutti_join has returned 0 */
	bool blamed[RANKS_MAX];     /* before that: then it must not come in any more */
	bool common[RANKS_MAX];     /* has its common window open */
	bool ok[STEPS_MAX][RANKS_MAX][OPS_MAX]; /* operations of sessions that returned 0 */
	uint64_t added[RANKS_MAX][RANKS_MAX], tried[RANKS_MAX][RANKS_MAX]; /* [to][from]: in the common window */
	struct kept *kept;
	size_t kept_bytes;
} run;

static bool verbose;

struct me {
	int rank, size, step;
	tutti *job;
	struct tt_random random;
	uint64_t since;             /* when the call under way began */
	bool trouble;               /* a call has failed */
	bool second, over;          /* this is the rank's second fiber; its program wants it to end */
	tutti_window *common;
	uint64_t *common_memory;
};

static void complain(const struct me *me, const char *fmt, ...) TT_FORMAT(2, 3);
static void complain(const struct me *me, const char *fmt, ...)
{
	char text[560];
	va_list args;

	va_start(args, fmt);
	vsnprintf(text, sizeof text, fmt, args);
	va_end(args);
	if (!*run.complaint)
		snprintf(run.complaint, sizeof run.complaint, "rank %d of %d, step %d, at %.6f s: %s", me->rank,
		         run.plan->ranks, me->step, (double)tt_now() / 1e9, text);
}

static void trace(const void *bytes, size_t len) { run.hash = tt_hash64(run.hash, bytes, len); }

static bool is_guilty(int rank)
{
	const struct plan *p = run.plan;

	if (!run.ordered)
		return false;
	return p->fault != NONE && (rank == p->a || (rank == p->b && (p->fault == KILL_TWO || p->fault == CUT)));
}

/* These are so short, or only slow, that nobody may notice but by the time it takes. */
static bool may_fail(void)
{
	return run.plan->fault != NONE && run.plan->fault != STOP_SHORT && run.plan->fault != SLOW;
}

/* All live: whatever runs out of time or is cancelled, nobody is expelled. */
static bool all_live(void) { return run.plan->fault == ABSENT || run.plan->fault == CANCEL; }

static bool is_documented(int err)
{
	static const int known[] = { ETIMEDOUT, ECONNRESET, ENOTCONN, ENOENT, ESTALE };

	if (all_live() && (err == -ECONNRESET || err == -ECONNABORTED))
		return err == -ECONNABORTED; /* a rank has cancelled it, perhaps since it had waited for long */

	for (size_t i = 0; i < TT_COUNT(known); i++)
		if (err == -known[i])
			return true;
	return false;
}

/* Whoever lost rank 0 while it joined has lost its place in the job, too, and looks for a new rank 0 for a while. */
static bool may_stay_away(int rank)
{
	run.blamed[rank] |= !run.came[rank];
	return !run.came[rank];
}

/* Does the sentence name ranks, and none that is innocent? Who has left may be named, too: one cannot talk to him. */
static bool is_just(const struct me *me, const char *why)
{
	int rank, named = 0;

	for (const char *at = why; (at = strstr(at, "rank ")); at++)
		if (sscanf(at, "rank %d", &rank) == 1) {
			named++;
			if (rank != me->rank && !is_guilty(rank) && !run.left[rank] && !may_stay_away(rank))
				return false;
		}
	return named > 0;
}

/* Calls that met their deadline, but cut nobody off (a notify that did not come, a window not opened), make their ranks
 * late: others may lose patience with these. */
static bool was_late(const char *why)
{
	return run.drift && (strstr(why, "did not take part") || strstr(why, "was cancelled"));
}

/* Where the time of a call may be long, it is its own fault. */
static bool is_hit(const struct me *me) { return is_guilty(me->rank) && run.plan->fault != CUT; }

static void begin(struct me *me) { me->since = tt_now(); }

static void check_time(const struct me *me, const char *what, uint64_t most)
{
	uint64_t took = tt_now() - me->since;

	if (took > most && !is_hit(me))
		complain(me, "%s took %.0f ms, the deadline is %d ms", what, (double)took / 1e6, DEADLINE_MS);
}

static void check_error(const struct me *me, const char *what, int err)
{
	bool names = err == -ECONNRESET || err == -ENOTCONN || strstr(tutti_why(), "evicted");

	if (!may_fail())
		complain(me, "%s failed with %s (%s), and there is no reason: %s", what, strerror(-err), tutti_why(),
		         fault_names[run.plan->fault]);
	else if (!is_documented(err))
		complain(me, "%s failed with %s, which is not documented: %s", what, strerror(-err), tutti_why());
	else if (names && !is_guilty(me->rank) && !was_late(tutti_why()) && !is_just(me, tutti_why()))
		complain(me, "%s blames an innocent rank: %s", what, tutti_why());
}

/* Every call that may wait ends here. */
static int returned(struct me *me, const char *what, int err)
{
	uint64_t now = tt_now();

	trace(&me->rank, sizeof me->rank);
	trace(&err, sizeof err);
	trace(&now, sizeof now);
	if (err)
		trace(tutti_why(), strlen(tutti_why()));
	if (verbose && err)
		printf("  %.6f rank %d step %d %s: %d %s\n", (double)now / 1e9, me->rank, me->step, what, err,
		       tutti_why());
	check_time(me, what, 2 * DEADLINE + SLACK);
	run.drift |= err == -ENOENT || err == -ETIMEDOUT;
	if (err)
		check_error(me, what, err);
	me->trouble |= err != 0;
	return err;
}

/* ---- memory that must not change any more ---- */

static void *must(void *p)
{
	if (!p)
		abort();
	return p;
}

static void *new_bytes(size_t len) { return must(malloc(len ? len : 1)); }

/* The caller's own again: some is freed at once, so that ASan sees who still writes; some is looked at in the end. */
static void hand_back(struct me *me, const char *what, void *bytes, size_t len)
{
	struct kept *k;

	if (!len || one_in(&me->random, 2) || run.kept_bytes + len > KEEP_MAX) {
		tutti_free(NULL, bytes);
		return;
	}
	memset(bytes, SCRIBBLE, len);
	k = new_bytes(sizeof *k + sizeof bytes);
	*k = (struct kept){ run.kept, len, what, me->rank };
	memcpy(k->bytes, &bytes, sizeof bytes);
	run.kept = k;
	run.kept_bytes += len;
}

static void check_kept(void)
{
	for (struct kept *k; (k = run.kept); free(k)) {
		unsigned char *bytes;
		size_t i = 0;
		memcpy(&bytes, k->bytes, sizeof bytes);
		while (i < k->len && bytes[i] == SCRIBBLE)
			i++;
		if (i < k->len && !*run.complaint)
			snprintf(run.complaint, sizeof run.complaint,
			         "byte %zu of %zu of rank %d's %s was written after it was handed back", i, k->len,
			         k->rank, k->what);
		tutti_free(NULL, bytes);
		run.kept = k->next;
	}
	run.kept_bytes = 0;
}

/* ---- collectives ---- */

struct started {
	const struct collective *c;
	tutti_op op;
	void *buf, *value;
	size_t len, value_len;
	bool running;
	int err;
};

/* Small integers, so that sums are exact in every type; the average of them is too, with these numbers: the sum over
 * all ranks is made a multiple of their number by rank 0. */
static int base_value(int rank, size_t id) { return (int)((size_t)(rank * rank + 3 * rank) + id) % 17; }

static int total_value(int size, size_t id, tutti_rule rule)
{
	int sum = 0, most = 0;

	for (int r = 0; r < size; r++) {
		sum += base_value(r, id);
		most = base_value(r, id) > most ? base_value(r, id) : most;
	}
	return rule == TUTTI_MAX ? most : sum;
}

static int my_value(const struct me *me, size_t id, tutti_rule rule)
{
	int rest = total_value(me->size, id, TUTTI_SUM) % me->size;

	return base_value(me->rank, id) + (rule == TUTTI_AVERAGE && me->rank == 0 && rest ? me->size - rest : 0);
}

static int expected_value(int size, size_t id, tutti_rule rule, size_t i)
{
	int total = total_value(size, id, rule), wave = (int)(i % 64);

	if (rule == TUTTI_MAX)
		return total + wave;
	return rule == TUTTI_SUM ? total + size * wave : (total + size - 1) / size + wave;
}

static void store(void *buf, size_t i, tutti_type type, int v)
{
	switch (type) {
	case TUTTI_F32: ((float *)buf)[i] = (float)v; break;
	case TUTTI_F64: ((double *)buf)[i] = v; break;
	case TUTTI_I32: ((int32_t *)buf)[i] = v; break;
	default: ((int64_t *)buf)[i] = v; break;
	}
}

static bool holds(const void *buf, size_t i, tutti_type type, int v)
{
	switch (type) {
	case TUTTI_F32: return ((const float *)buf)[i] == (float)v;
	case TUTTI_F64: return ((const double *)buf)[i] == v;
	case TUTTI_I32: return ((const int32_t *)buf)[i] == v;
	default: return ((const int64_t *)buf)[i] == v;
	}
}

static uint8_t pattern(size_t i, int a, size_t b) { return (uint8_t)(i * 31 + i / 251 + (size_t)a * 7 + b * 13 + 1); }

static void fill(void *bytes, size_t len, int a, size_t b)
{
	for (size_t i = 0; i < len; i++)
		((uint8_t *)bytes)[i] = pattern(i, a, b);
}

static bool is_filled(const void *bytes, size_t len, int a, size_t b)
{
	for (size_t i = 0; i < len; i++)
		if (((const uint8_t *)bytes)[i] != pattern(i, a, b))
			return false;
	return true;
}

/* Vectors that others can map: all of them, or those of every second rank; or none. */
static void *new_vector(const struct me *me, size_t id, size_t len)
{
	void *p;

	if (id % 3 == 0 || (id % 3 == 1 && me->rank % 2))
		return new_bytes(len);
	return tutti_alloc(me->job, len, -1, &p) ? new_bytes(len) : p;
}

/* In place, to another vector, of tensors (of two, and their second half is the first one), or to a root alone. */
enum way { IN_PLACE, TO_OTHER, TENSORS, TO_ROOT, WAYS };
static enum way way_of(size_t id) { return id / 3 % WAYS; }
static int root_of(const struct me *me, size_t id) { return (int)(id % (size_t)me->size); }

static int begin_allreduce(struct me *me, struct started *s, size_t id, tutti_op *op)
{
	const struct collective *c = s->c;
	int mine = my_value(me, id, c->rule), root = root_of(me, id);
	bool apart = way_of(id) == TO_OTHER || way_of(id) == TO_ROOT;
	size_t half = c->count / 2;

	s->len = c->count * tt_type_size(c->type);
	s->buf = new_vector(me, id, s->len);
	if (apart) {
		s->value_len = s->len;
		s->value = new_vector(me, id, s->value_len);
	}
	for (size_t i = 0; i < c->count; i++)
		store(apart ? s->value : s->buf, i, c->type, mine + (int)(i % 64));
	tutti_tensor t[] = { { (char *)s->buf + half * tt_type_size(c->type), c->count - half, c->type },
		             { s->buf, half, c->type } };
	switch (way_of(id)) {
	case TENSORS: return tutti_allreduce_tensors(me->job, t, 2, c->rule, op);
	case TO_ROOT:
		return tutti_reduce(me->job, s->value, root == me->rank ? s->buf : NULL, c->count, c->type, c->rule,
		                    root, op);
	default: return tutti_allreduce(me->job, apart ? s->value : s->buf, s->buf, c->count, c->type, c->rule, op);
	}
}

static bool has_sum(const struct me *me, size_t id) { return way_of(id) != TO_ROOT || root_of(me, id) == me->rank; }

static int begin_broadcast(struct me *me, struct started *s, size_t id, tutti_op *op)
{
	s->len = s->c->count;
	s->buf = new_bytes(s->len);
	if (me->rank == s->c->root)
		fill(s->buf, s->len, s->c->root, id);
	return tutti_broadcast(me->job, s->buf, s->len, s->c->root, op);
}

static int begin_gather(struct me *me, struct started *s, size_t id, tutti_op *op)
{
	bool all = s->c->root < 0 || s->c->root == me->rank;

	s->value_len = s->c->count;
	s->value = new_bytes(s->value_len);
	fill(s->value, s->value_len, me->rank, id);
	if (all) {
		s->len = s->c->count * (size_t)me->size;
		s->buf = new_bytes(s->len);
	}
	return tutti_gather(me->job, s->value, s->value_len, s->buf, s->c->root, op);
}

static int begin_scatter(struct me *me, struct started *s, size_t id, tutti_op *op)
{
	bool root = s->c->root == me->rank;

	s->len = s->c->count;
	s->buf = new_bytes(s->len);
	s->value_len = root ? s->len * (size_t)me->size : 0;
	s->value = root ? new_vector(me, id, s->value_len) : NULL;
	for (int r = 0; root && r < me->size; r++)
		fill((char *)s->value + (size_t)r * s->len, s->len, r, id);
	return tutti_scatter(me->job, s->value, s->len, s->buf, s->c->root, op);
}

/* All blocks of a rank's vector are alike but for the wave, which goes on. */
static int begin_reduce_scatter(struct me *me, struct started *s, size_t id, tutti_op *op)
{
	const struct collective *c = s->c;
	int mine = my_value(me, id, c->rule);

	s->len = c->count * tt_type_size(c->type);
	s->buf = new_bytes(s->len);
	s->value_len = s->len * (size_t)me->size;
	s->value = new_vector(me, id, s->value_len);
	for (size_t i = 0; i < c->count * (size_t)me->size; i++)
		store(s->value, i, c->type, mine + (int)(i % 64));
	return tutti_reduce_scatter(me->job, s->value, s->buf, c->count, c->type, c->rule, op);
}

/* What one rank sends another: of its own size only in one kind. */
static size_t block_len(const struct collective *c, int from, int to)
{
	return c->kind == ALLTOALLV ? c->count * (size_t)((from * 3 + to) % 4) / 3 : c->count;
}
static int block_mark(const struct collective *c, int from, int to)
{
	return c->kind == ALLGATHER ? from : from * 16 + to;
}

static void place_blocks(const struct collective *c, int me, int size, bool in, size_t *len, size_t *at)
{
	for (int r = 0; r < size; r++) {
		len[r] = in ? block_len(c, me, r) : block_len(c, r, me);
		at[r] = r ? at[r - 1] + len[r - 1] : 0;
	}
}

static int begin_blocks(struct me *me, struct started *s, size_t id, tutti_op *op)
{
	size_t in_len[RANKS_MAX], in_at[RANKS_MAX], out_len[RANKS_MAX], out_at[RANKS_MAX];
	const struct collective *c = s->c;
	int last = me->size - 1;

	place_blocks(c, me->rank, me->size, true, in_len, in_at);
	place_blocks(c, me->rank, me->size, false, out_len, out_at);
	s->len = out_at[last] + out_len[last];
	s->value_len = c->kind == ALLGATHER ? c->count : in_at[last] + in_len[last];
	s->buf = c->kind == ALLGATHER ? new_vector(me, id, s->len) : new_bytes(s->len);
	s->value = new_bytes(s->value_len);
	for (int r = 0; r <= (c->kind == ALLGATHER ? 0 : last); r++)
		fill((char *)s->value + in_at[r], in_len[r], block_mark(c, me->rank, r), id);
	if (c->kind == ALLGATHER)
		return tutti_allgather(me->job, s->value, c->count, s->buf, op);
	if (c->kind == ALLTOALL)
		return tutti_alltoall(me->job, s->value, c->count, s->buf, op);
	return tutti_alltoallv(me->job, s->value, in_len, in_at, s->buf, out_len, out_at, op);
}

static bool has_blocks(const struct me *me, const struct started *s, size_t id)
{
	size_t len[RANKS_MAX], at[RANKS_MAX];
	bool right = true;

	place_blocks(s->c, me->rank, me->size, false, len, at);
	for (int r = 0; right && r < me->size; r++)
		right = is_filled((char *)s->buf + at[r], len[r], block_mark(s->c, r, me->rank), id);
	return right;
}

static int begin_collective(struct me *me, struct started *s, size_t id, tutti_op *op)
{
	switch (s->c->kind) {
	case ALLREDUCE: return begin_allreduce(me, s, id, op);
	case BROADCAST: return begin_broadcast(me, s, id, op);
	case GATHER: return begin_gather(me, s, id, op);
	case SCATTER: return begin_scatter(me, s, id, op);
	case REDUCE_SCATTER: return begin_reduce_scatter(me, s, id, op);
	case ALLGATHER:
	case ALLTOALL:
	case ALLTOALLV: return begin_blocks(me, s, id, op);
	default: return tutti_barrier(me->job, op);
	}
}

static void check_collective(struct me *me, const struct started *s, size_t id)
{
	const struct collective *c = s->c;
	bool right = true;
	size_t at = 0;

	if (c->kind == ALLREDUCE)
		for (; right && at < c->count && has_sum(me, id); at++)
			right = holds(s->buf, at, c->type, expected_value(me->size, id, c->rule, at));
	else if (c->kind == REDUCE_SCATTER)
		for (; right && at < c->count; at++)
			right = holds(s->buf, at, c->type,
			              expected_value(me->size, id, c->rule, (size_t)me->rank * c->count + at));
	else if (c->kind >= ALLGATHER)
		right = has_blocks(me, s, id);
	else if (c->kind == SCATTER)
		right = is_filled(s->buf, s->len, me->rank, id);
	else if (c->kind == BROADCAST)
		right = is_filled(s->buf, s->len, c->root, id);
	else if (c->kind == GATHER && s->buf)
		for (; right && at < (size_t)me->size; at++)
			right = is_filled((char *)s->buf + at * c->count, c->count, (int)at, id);
	if (!right)
		complain(me, "%s number %zu of %zu (type %d, rule %d, root %d) said 0 and is wrong at %zu",
		         kind_names[c->kind], id, c->count, (int)c->type, (int)c->rule, c->root, at - 1);
}

static bool cancels(const struct me *me) { return run.plan->fault == CANCEL && run.ordered && me->rank == run.plan->a; }

/* By tests or by waits, until it has ended; by cancelling, once the deadline has passed. The memory is ours after
 * it. */
static int finish_op(struct me *me, const char *what, tutti_op *op)
{
	bool testing = one_in(&me->random, 3), cancelled = false;
	uint64_t start = tt_now();
	int err;

	do {
		begin(me);
		err = testing ? tutti_test(op)
		              : tutti_wait(op, one_in(&me->random, 2) ? -1 : (int)below(&me->random, 20));
		check_time(me, what, DEADLINE + SLACK);
		if (testing && err == -EINPROGRESS)
			tt_sim_sleep(1000 + below(&me->random, tt_now() - start + 1000));
	} while (err == -EINPROGRESS && tt_now() - start <= DEADLINE && !(cancels(me) && one_in(&me->random, 2)));
	if (err == -EINPROGRESS) {
		begin(me);
		err = tutti_cancel(op);
		cancelled = !err;
		trace(&cancelled, sizeof cancelled);
	}
	if (cancelled && !may_fail())
		complain(me, "%s did not end within its deadline, and there is no reason: %s", what,
		         fault_names[run.plan->fault]);
	me->trouble |= cancelled;
	returned(me, what, err);
	return cancelled ? -ECANCELED : err;
}

static void end_started(struct me *me, struct started *s, size_t id)
{
	if (s->running)
		s->err = finish_op(me, kind_names[s->c->kind], &s->op);
	s->running = false;
	if (!s->err)
		check_collective(me, s, id);
	hand_back(me, kind_names[s->c->kind], s->buf, s->buf ? s->len : 0);
	hand_back(me, "what was given", s->value, s->value_len);
}

static void shuffle(struct me *me, int *order, int n)
{
	for (int i = 0; i < n; i++) {
		int j = (int)below(&me->random, (uint64_t)i + 1);
		order[i] = order[j];
		order[j] = i;
	}
}

static void pause_a_little(struct me *me)
{
	if (one_in(&me->random, 4))
		tt_sim_sleep(any_scale(&me->random, 2 * TT_MS));
}

static void run_flight(struct me *me, const struct step *step)
{
	struct started s[FLIGHT_MAX] = { 0 };
	int order[FLIGHT_MAX];
	size_t id = (size_t)me->step * FLIGHT_MAX;

	for (int i = 0; i < step->n; i++) {
		s[i].c = &step->of[i];
		pause_a_little(me);
		begin(me);
		s[i].err = begin_collective(me, &s[i], id + (size_t)i, step->blocking ? NULL : &s[i].op);
		returned(me, kind_names[s[i].c->kind], s[i].err);
		s[i].running = !step->blocking && !s[i].err;
	}
	shuffle(me, order, step->n);
	for (int i = 0; i < step->n; i++)
		end_started(me, &s[order[i]], id + (size_t)order[i]);
}

/* ---- sessions: a window of which every rank uses every other's. Each says FIN to all when it has done its own ---- */

enum { FIN, SLOT, SLOTS = 3 };
enum op_kind { PUT, PUT_NOTIFY, GET, ADD, OP_KINDS };
static const char *const op_names[] = { "put", "put with notify", "get", "add" };

struct one_sided { /* any rank can draw those of any other */
	enum op_kind kind;
	int to, slot, counter;
	size_t len, at;
	uint64_t value;
};

static size_t fixed_at(void) { return COUNTERS * sizeof(uint64_t); }
static size_t payload_at(int from, int k) { return fixed_at() + FIXED + (size_t)(from * OPS_MAX + k) * PAYLOAD; }

static int draw_ops(const struct plan *p, int step, int from, struct one_sided *ops)
{
	struct tt_random r;
	int n;

	tt_random_seed(&r, p->seed * 1000003 + (uint64_t)step * 101 + (uint64_t)from);
	n = (int)below(&r, OPS_MAX + 1);
	for (int k = 0; k < n; k++) {
		struct one_sided *o = &ops[k];
		o->kind = (enum op_kind)below(&r, OP_KINDS);
		o->to = (int)below(&r, (uint64_t)p->ranks);
		o->slot = SLOT + (int)below(&r, SLOTS);
		o->counter = (int)below(&r, COUNTERS);
		o->len = one_in(&r, 3) ? 8 : one_in(&r, 8) ? 0 : 1 + below(&r, one_in(&r, 3) ? PAYLOAD : 100);
		if (o->kind == GET)
			o->len = 1 + below(&r, FIXED);
		o->at = o->kind == GET ? below(&r, FIXED - o->len + 1) : 0;
		o->value = 1 + below(&r, 1000);
	}
	return n;
}

struct session {
	tutti_window *window;
	char *memory;
	size_t len;
	struct one_sided ops[OPS_MAX];
	struct started_op {
		tutti_op op;
		void *buf;
		size_t len;
		uint64_t old;
		bool running, ended;
		int err;
	} started[OPS_MAX];
	int n;
};

static int start_one_sided(struct me *me, struct session *s, int k, tutti_op *op)
{
	const struct one_sided *o = &s->ops[k];
	struct started_op *d = &s->started[k];

	d->len = o->kind == ADD ? 0 : o->len;
	d->buf = new_bytes(d->len);
	fill(d->buf, d->len, me->rank, (size_t)(me->step * OPS_MAX + k));
	switch (o->kind) {
	case PUT: return tutti_put(s->window, o->to, payload_at(me->rank, k), d->buf, d->len, op);
	case PUT_NOTIFY:
		return tutti_put_notify(s->window, o->to, payload_at(me->rank, k), d->buf, d->len, o->slot, op);
	case GET: return tutti_get(s->window, o->to, fixed_at() + o->at, d->buf, d->len, op);
	default: return tutti_add(s->window, o->to, (size_t)o->counter * 8, o->value, k % 2 ? &d->old : NULL, op);
	}
}

static void end_one_sided(struct me *me, struct session *s, int k)
{
	const struct one_sided *o = &s->ops[k];
	struct started_op *d = &s->started[k];

	if (d->ended)
		return;
	d->ended = true;
	if (d->running)
		d->err = finish_op(me, op_names[o->kind], &d->op);
	run.ok[me->step][me->rank][k] = !d->err;
	for (size_t i = 0; !d->err && o->kind == GET && i < d->len; i++)
		if (((uint8_t *)d->buf)[i] != pattern(o->at + i, o->to, (size_t)me->step)) {
			complain(me, "a get of %zu bytes from rank %d said 0 and is wrong at %zu", d->len, o->to, i);
			break;
		}
	hand_back(me, op_names[o->kind], d->buf, d->len);
}

static void do_ops(struct me *me, struct session *s)
{
	int order[OPS_MAX];

	s->n = draw_ops(run.plan, me->step, me->rank, s->ops);
	for (int k = 0; k < s->n; k++) {
		bool blocking = one_in(&me->random, 2);
		pause_a_little(me);
		begin(me);
		s->started[k].err = start_one_sided(me, s, k, blocking ? NULL : &s->started[k].op);
		returned(me, op_names[s->ops[k].kind], s->started[k].err);
		s->started[k].running = !blocking && !s->started[k].err;
	}
	shuffle(me, order, s->n);
	for (int k = 0; k < s->n; k++) /* once there is trouble, some are left to the window's end */
		if (!me->trouble || one_in(&me->random, 2))
			end_one_sided(me, s, order[k]);
}

/* A closed window has nothing under way; what is told of its operations is told all the same. */
static void end_the_rest(struct me *me, struct session *s)
{
	for (int k = 0; k < s->n; k++) {
		struct started_op *d = &s->started[k];
		if (d->running && !d->ended && tutti_test(&d->op) == -EINPROGRESS)
			complain(me, "a %s is under way after its window was closed", op_names[s->ops[k].kind]);
		end_one_sided(me, s, k);
	}
}

/* `notified`: those alone that came with a notify, else all of them. */
static void check_payloads(struct me *me, const struct session *s, int from, bool notified)
{
	struct one_sided ops[OPS_MAX];
	int n = draw_ops(run.plan, me->step, from, ops);

	for (int k = 0; k < n; k++) {
		const struct one_sided *o = &ops[k];
		if (o->to != me->rank || !(o->kind == PUT_NOTIFY || (o->kind == PUT && !notified)))
			continue;
		if (!notified && !run.ok[me->step][from][k])
			continue;
		if (!is_filled(s->memory + payload_at(from, k), o->len, from, (size_t)(me->step * OPS_MAX + k)))
			complain(me, "a %s of %zu bytes from rank %d is not there%s", op_names[o->kind], o->len, from,
			         notified ? " after its notify" : "");
	}
}

/* All notifies of one rank, then what they announced. */
static int await_notifies(struct me *me, struct session *s, int from)
{
	struct one_sided ops[OPS_MAX];
	uint64_t count[SLOT + SLOTS] = { 0 };
	int n = draw_ops(run.plan, me->step, from, ops), err = 0;

	for (int k = 0; k < n; k++)
		if (ops[k].to == me->rank && ops[k].kind == PUT_NOTIFY)
			count[ops[k].slot]++;
	for (int slot = SLOT; !err && slot < SLOT + SLOTS; slot++) {
		begin(me);
		err = returned(me, "wait for notify", tutti_wait_notify(s->window, from, slot, count[slot], -1));
	}
	if (!err)
		check_payloads(me, s, from, true);
	return err;
}

static int await_fin(struct me *me, struct session *s, int from)
{
	int err = 0;

	if (one_in(&me->random, 2) && (err = await_notifies(me, s, from)))
		return err;
	begin(me);
	err = returned(me, "wait for notify", tutti_wait_notify(s->window, from, FIN, 1, -1));
	if (!err)
		check_payloads(me, s, from, false);
	return err;
}

static void check_counters(struct me *me, const struct session *s, bool all)
{
	uint64_t least[COUNTERS] = { 0 }, most[COUNTERS] = { 0 }, is;

	for (int from = 0; from < me->size; from++) {
		struct one_sided ops[OPS_MAX];
		int n = draw_ops(run.plan, me->step, from, ops);
		for (int k = 0; k < n; k++) {
			if (ops[k].to != me->rank || ops[k].kind != ADD)
				continue;
			most[ops[k].counter] += ops[k].value;
			least[ops[k].counter] += run.ok[me->step][from][k] ? ops[k].value : 0;
		}
	}
	for (int c = 0; c < COUNTERS; c++) {
		memcpy(&is, s->memory + c * sizeof is, sizeof is);
		if (is > most[c] || is < least[c] || (all && !may_fail() && is != most[c]))
			complain(me, "counter %d is %llu, it should be %llu to %llu", c, (unsigned long long)is,
			         (unsigned long long)least[c], (unsigned long long)most[c]);
	}
}

static void say_fin(struct me *me, struct session *s)
{
	for (int i = 0; i < me->size; i++) {
		begin(me);
		returned(me, "put with notify",
		         tutti_put_notify(s->window, (me->rank + i) % me->size, 0, NULL, 0, FIN, NULL));
	}
}

static void open_session(struct me *me, struct session *s)
{
	char name[16];
	int err;

	snprintf(name, sizeof name, "session %d", me->step);
	s->len = payload_at(me->size, 0);
	s->memory = must(aligned_alloc(64, (s->len + 63) & ~(size_t)63));
	memset(s->memory, 0, s->len);
	fill(s->memory + fixed_at(), FIXED, me->rank, (size_t)me->step);
	if ((err = tutti_window_open(me->job, name, s->memory, s->len, &s->window)))
		complain(me, "cannot open a window: %s", tutti_why());
}

static void close_window(struct me *me, tutti_window *w)
{
	begin(me);
	tutti_window_close(w);
	returned(me, "closing a window", 0);
}

static void run_session(struct me *me)
{
	struct session *s = must(calloc(1, sizeof *s));
	int order[RANKS_MAX];
	bool all = true;

	pause_a_little(me);
	open_session(me, s);
	if (s->window) {
		do_ops(me, s);
		say_fin(me, s);
		shuffle(me, order, me->size);
		for (int i = 0; i < me->size; i++)
			all = !await_fin(me, s, order[i]) && all;
		check_counters(me, s, all);
		pause_a_little(me);
		close_window(me, s->window);
		end_the_rest(me, s);
	}
	hand_back(me, "closed window", s->memory, s->len);
	free(s);
}

/* ---- messages: every rank knows what all others send ---- */

enum { LETTERS_MAX = 8, TAGS = 3 }; /* of a rank in a step */

struct letter {
	int to, tag;
	size_t len;
};

struct in_hand { /* a message that is sent, or a receive */
	tutti_op op;
	tutti_message info;
	int tag, err;
	void *buf;
	size_t len;
	bool running;
};

static int draw_letters(const struct plan *p, int step, int from, struct letter *l)
{
	struct tt_random r;
	int n;

	tt_random_seed(&r, p->seed * 1000033 + (uint64_t)step * 103 + (uint64_t)from);
	n = (int)below(&r, LETTERS_MAX + 1);
	for (int k = 0; k < n; k++) {
		l[k].to = (int)below(&r, (uint64_t)p->ranks);
		l[k].tag = (int)below(&r, TAGS);
		l[k].len = one_in(&r, 6) ? below(&r, 2) * 16384 + below(&r, 2) : any_scale(&r, 100000);
	}
	return n;
}

static size_t letter_id(const struct me *me, int k) { return (size_t)(me->step * LETTERS_MAX + k); }
static int tag_of(const struct me *me, int tag) { return me->step * TAGS + tag; } /* none is left for a later step */

static int send_letters(struct me *me, struct in_hand *out)
{
	struct letter l[LETTERS_MAX];
	int n = draw_letters(run.plan, me->step, me->rank, l);

	for (int k = 0; k < n; k++) {
		struct in_hand *h = &out[k];
		h->len = l[k].len;
		h->buf = new_vector(me, letter_id(me, k), h->len + 1);
		fill(h->buf, h->len, me->rank * 16 + l[k].to, letter_id(me, k));
		pause_a_little(me);
		begin(me);
		h->err = tutti_send(me->job, l[k].to, tag_of(me, l[k].tag), h->buf, h->len, &h->op);
		returned(me, "send", h->err);
		h->running = !h->err;
	}
	return n;
}

static void receive_letter(struct me *me, struct in_hand *h, int from, int tag, bool blocking)
{
	h->tag = tag;
	h->len = 100000;
	h->buf = new_bytes(h->len);
	h->info.rank = -1;
	begin(me);
	h->err = tutti_recv(me->job, from, tag_of(me, tag), h->buf, h->len, &h->info, blocking ? NULL : &h->op);
	returned(me, "recv", h->err);
	h->running = !h->err && !blocking;
}

/* As many receives with each tag as others send here: from each of them, or from any. */
static int receive_letters(struct me *me, struct in_hand *in, bool may_block)
{
	bool any = one_in(&me->random, 3);
	struct letter l[LETTERS_MAX];
	int order[RANKS_MAX], n = 0;

	shuffle(me, order, me->size);
	for (int tag = TAGS; tag--;)
		for (int i = 0; i < me->size; i++) {
			int letters = draw_letters(run.plan, me->step, order[i], l);
			for (int k = 0; k < letters; k++)
				if (l[k].to == me->rank && l[k].tag == tag && !(me->trouble && may_block))
					receive_letter(me, &in[n++], any ? -1 : order[i], tag,
					               may_block && one_in(&me->random, 3));
		}
	return n;
}

/* The one that has come is the next one of its sender with its tag. Those that were given up are left out. */
static void check_letter(struct me *me, const struct in_hand *h, int next[RANKS_MAX][TAGS])
{
	struct letter l[LETTERS_MAX];
	int from = h->info.rank, *k;

	if (from < 0)
		return;
	k = &next[from][h->tag];
	for (int n = draw_letters(run.plan, me->step, from, l); *k < n; ++*k) {
		if (l[*k].to != me->rank || l[*k].tag != h->tag)
			continue;
		if (l[*k].len == h->info.bytes &&
		    (h->err || is_filled(h->buf, l[*k].len, from * 16 + me->rank, letter_id(me, *k)))) {
			++*k;
			return;
		}
		if (!may_fail())
			break;
	}
	complain(me, "a message of %zu bytes from rank %d with tag %d is none that was to come now", h->info.bytes,
	         from, h->tag);
}

static void run_letters(struct me *me)
{
	struct in_hand *out = must(calloc(LETTERS_MAX, sizeof *out)),
	               *in = must(calloc((size_t)me->size * LETTERS_MAX, sizeof *in));
	int next[RANKS_MAX][TAGS] = { 0 }, received = 0, sent, order[RANKS_MAX * LETTERS_MAX];
	bool first = one_in(&me->random, 2); /* to receive */

	if (first)
		received = receive_letters(me, in, false);
	sent = send_letters(me, out);
	if (!first)
		received = receive_letters(me, in, true);
	shuffle(me, order, sent + received);
	for (int i = 0; i < sent + received; i++) {
		struct in_hand *h = order[i] < sent ? &out[order[i]] : &in[order[i] - sent];
		if (h->running)
			h->err = finish_op(me, order[i] < sent ? "send" : "recv", &h->op);
	}
	for (int i = 0; i < received; i++) {
		check_letter(me, &in[i], next);
		hand_back(me, "received message", in[i].buf, in[i].len);
	}
	for (int i = 0; i < sent; i++)
		hand_back(me, "sent message", out[i].buf, out[i].len + 1);
	free(in);
	free(out);
}

/* ---- a window that its owner closes while others still put into it ---- */

static void own_early(struct me *me, const char *name)
{
	size_t len = PAYLOAD;
	char *memory = new_bytes(len);
	tutti_window *w;

	if (tutti_window_open(me->job, name, memory, len, &w)) {
		complain(me, "cannot open a window: %s", tutti_why());
		free(memory);
		return;
	}
	begin(me);
	returned(me, "wait for notify", tutti_wait_notify(w, -1, 0, (uint64_t)me->size - 1, -1));
	tt_sim_sleep(any_scale(&me->random, 300000));
	close_window(me, w);
	hand_back(me, "window closed early", memory, len);
}

/* Once the owner has heard from all, it may close. */
static void use_early(struct me *me, const char *name, int owner)
{
	tutti_window *w;
	char *bytes;
	int err, n = 1 + (int)below(&me->random, 6);

	if (tutti_window_open(me->job, name, NULL, 0, &w)) {
		complain(me, "cannot open a window: %s", tutti_why());
		return;
	}
	begin(me);
	err = returned(me, "put with notify", tutti_put_notify(w, owner, 0, "!", 1, 0, NULL));
	while (!err && n--) {
		size_t len = 1 + below(&me->random, PAYLOAD);
		bytes = new_bytes(len);
		memset(bytes, 1, len);
		begin(me);
		err = tutti_put(w, owner, below(&me->random, PAYLOAD - len + 1), bytes, len, NULL);
		if (err != -ESTALE && !(err == -ENOTCONN && run.left[owner]))
			returned(me, "put", err);
		hand_back(me, "put", bytes, len);
	}
	close_window(me, w);
}

static void run_early(struct me *me, const struct step *step)
{
	char name[16];

	snprintf(name, sizeof name, "early %d", me->step);
	if (me->rank == step->owner)
		own_early(me, name);
	else
		use_early(me, name, step->owner);
}

/* ---- the common window: open from beginning to end. After a fault, those who are left still reach each other ---- */

/* To each rank of each other one: how often it has added here, and a word of its program, and of its second fiber. */
enum { COMMON = 3 * sizeof(uint64_t) };

static void open_common(struct me *me)
{
	size_t len = (size_t)me->size * COMMON;

	me->common_memory = must(calloc(1, len));
	if (tutti_window_open(me->job, "common", me->common_memory, len, &me->common))
		complain(me, "cannot open a window: %s", tutti_why());
	run.common[me->rank] = me->common != NULL;
}

static bool is_reachable(const struct me *me, int rank)
{
	return rank != me->rank && !is_guilty(me->rank) && !is_guilty(rank) && !run.left[rank] && run.common[rank];
}

static void check_reached(struct me *me, const char *what, int rank, int err)
{
	if (err == -ENOTCONN && run.left[rank])
		return;
	returned(me, what, err);
	if (err && is_reachable(me, rank) && !was_late(tutti_why()))
		complain(me, "%s does not reach rank %d, which is alive: %s", what, rank, tutti_why());
}

static void reach(struct me *me, int rank)
{
	size_t at = (size_t)me->rank * COMMON, mine = at + (me->second ? 16 : 8);
	uint64_t word = tt_now(), back = 0;
	int err;

	run.tried[rank][me->rank]++;
	begin(me);
	check_reached(me, "add", rank, err = tutti_add(me->common, rank, at, 1, NULL, NULL));
	run.added[rank][me->rank] += !err;
	begin(me);
	check_reached(me, "put", rank, err = tutti_put(me->common, rank, mine, &word, sizeof word, NULL));
	if (err)
		return;
	begin(me);
	check_reached(me, "get", rank, err = tutti_get(me->common, rank, mine, &back, sizeof back, NULL));
	if (!err && back != word)
		complain(me, "what was put to rank %d does not come back", rank);
}

static void reach_survivors(struct me *me)
{
	for (int i = 1; i < me->size; i++) {
		int rank = (me->rank + i) % me->size;
		if (is_reachable(me, rank))
			reach(me, rank);
	}
}

static void check_common(const struct me *me)
{
	for (int from = 0; from < me->size; from++) {
		uint64_t is = me->common_memory[from * 3];
		if (is < run.added[me->rank][from] || is > run.tried[me->rank][from])
			complain(me, "rank %d added %llu times, and %llu arrived", from,
			         (unsigned long long)run.added[me->rank][from], (unsigned long long)is);
	}
}

/* ---- the program of every rank ---- */

static void order_fault(const struct plan *p)
{
	if (run.ordered)
		return;
	run.ordered = true;
	switch (p->fault) {
	case KILL_TWO: tt_sim_kill(p->b, p->delay[1]); /* fall through */
	case KILL: tt_sim_kill(p->a, p->delay[0]); break;
	case STOP_LONG:
	case STOP_SHORT: tt_sim_stop(p->a, p->delay[0], p->ns); break;
	case CUT: tt_sim_cut(p->a, p->b, p->delay[0]); break;
	case SLOW: tt_sim_slow(p->a, p->factor); break;
	default: break;
	}
}

static void run_step(struct me *me, const struct step *step)
{
	switch (step->kind) {
	case FLIGHT: run_flight(me, step); break;
	case SESSION: run_session(me); break;
	case LETTERS: run_letters(me); break;
	case EARLY: run_early(me, step); break;
	}
}

/* After the first failure only a few more, for what they say. */
static void run_steps(struct me *me)
{
	const struct plan *p = run.plan;
	int more = 2;

	for (me->step = 0; me->step < p->steps && more; me->step++) {
		if (me->rank == p->trigger_rank && me->step == p->trigger_step)
			order_fault(p);
		if (tt_sim_killed(me->rank))
			return;
		if (p->fault == ABSENT && me->rank == p->a && me->step == p->trigger_step) {
			run.ordered = true;
			tt_sim_sleep(p->ns);
		}
		run_step(me, &p->step[me->step]);
		more -= me->trouble;
	}
	if (me->trouble && !tt_sim_killed(me->rank))
		reach_survivors(me);
}

/* Beside the program of some ranks: two wait in one job, and drive it in turns. */
static void run_second(void *arg)
{
	struct me *me = arg;

	while (!me->over && !me->trouble && !tt_sim_killed(me->rank)) {
		int rank = (int)below(&me->random, (uint64_t)me->size);
		if (is_reachable(me, rank))
			reach(me, rank);
		tt_sim_sleep(any_scale(&me->random, 5 * TT_MS));
	}
}

static void run_both(struct me *me)
{
	struct me second = *me;
	struct tt_task *task;

	second.second = true;
	second.random.s[0] ^= 0x5ec0;
	must(tt_spawn(run_second, &second, &task) ? NULL : me);
	run_steps(me);
	second.over = true;
	tt_join(task);
}

/* The ranks may have come to different calls: after a shrink all of them go on together. */
static void go_on_together(struct me *me)
{
	double sum = me->rank, expected = me->size * (me->size - 1) / 2.0;
	tutti *group = NULL;
	int err;

	tutti_group_timeout(me->job, 60 * DEADLINE_MS);
	if ((err = tutti_group_shrink(me->job, &group)))
		complain(me, "shrinking a group of ranks that all live: %s (%s)", strerror(-err), tutti_why());
	else if (tutti_size(group) != me->size)
		complain(me, "%d of %d ranks are left, and all live", tutti_size(group), me->size);
	else if ((err = tutti_allreduce(group, &sum, &sum, 1, TUTTI_F64, TUTTI_SUM, NULL)) || sum != expected)
		complain(me, "after the shrink the sum is %g and not %g: %d (%s)", sum, expected, err, tutti_why());
	tutti_group_timeout(me->job, 0);
	tutti_group_free(group);
}

static void leave(struct me *me)
{
	static const struct collective last = { ALLREDUCE, TUTTI_F64, TUTTI_SUM, 3000, 0 };
	struct started s = { .c = &last };
	size_t id = STEPS_MAX * FLIGHT_MAX;
	bool early = run.plan->leave_early && !all_live() && !me->trouble && !tt_sim_killed(me->rank);

	if (me->rank == run.plan->trigger_rank && run.plan->trigger_step == run.plan->steps)
		order_fault(run.plan);
	if (early) /* it is the same one for all who have come so far */
		s.err = begin_collective(me, &s, id, &s.op);
	run.left[me->rank] = true;
	begin(me);
	tutti_leave(me->job);
	returned(me, "leaving", 0);
	if (early && !s.err && run.plan->fault == NONE)
		check_collective(me, &s, id);
	hand_back(me, "buffer after leaving", s.buf, s.len);
}

static void check_join(struct me *me, int err)
{
	run.left[me->rank] = true;
	if (!may_fail())
		complain(me, "joining failed with %s (%s), and there is no reason: %s", strerror(-err), tutti_why(),
		         fault_names[run.plan->fault]);
}

static void program(int rank, void *arg)
{
	const struct plan *p = arg;
	struct me me = { .rank = rank, .step = -1 };
	int err;

	tt_random_seed(&me.random, p->seed * 7919 + (uint64_t)rank);
	if (rank == p->trigger_rank && p->trigger_step < 0)
		order_fault(p);
	begin(&me);
	err = tutti_join(NULL, &me.job);
	check_time(&me, "joining", DEADLINE + SLACK);
	if (err) {
		check_join(&me, err);
		return;
	}
	run.came[rank] = true;
	if (run.blamed[rank])
		complain(&me, "another rank has blamed it while it joined, and it is innocent");
	me.size = tutti_size(me.job);
	tt_settings_set(&me.job->job->settings, TT_ALLREDUCE, p->algorithm, "storm");
	open_common(&me);
	if (one_in(&me.random, 3))
		run_both(&me);
	else
		run_steps(&me);
	me.step = p->steps;
	if (all_live())
		go_on_together(&me);
	leave(&me);
	check_common(&me);
	tutti_window_close(me.common);
	hand_back(&me, "common window", me.common_memory, (size_t)me.size * COMMON);
}

/* ---- seeds ---- */

static uint64_t run_plan(const struct plan *p)
{
	struct tt_sim_config config = { .seed = p->seed,
		                        .strict = 1,
		                        .ranks = p->ranks,
		                        .program = program,
		                        .arg = (void *)(uintptr_t)p,
		                        .timeout_ms = DEADLINE_MS,
		                        .silence_ms = SILENCE_MS,
		                        .hosts = (int)(p->seed % 4),
		                        .limit_ns = 200 * DEADLINE };
	int err;

	run = (struct run){ .plan = p, .hash = TT_HASH64 };
	err = tt_sim_run(&config);
	if (err && !*run.complaint)
		snprintf(run.complaint, sizeof run.complaint, "%s", tt_why());
	check_kept();
	return run.hash;
}

static int run_seed(uint64_t seed, int ranks, bool twice)
{
	struct plan p = draw_plan(seed, ranks);
	uint64_t hash;

	if (verbose)
		printf("seed %llu: %d ranks, %d steps, %s (rank %d, %d; in step %d)\n", (unsigned long long)seed,
		       p.ranks, p.steps, fault_names[p.fault], p.a, p.b, p.trigger_step);
	hash = run_plan(&p);
	if (twice && !*run.complaint && run_plan(&p) != hash)
		snprintf(run.complaint, sizeof run.complaint, "run twice, it does not do the same");
	if (!*run.complaint)
		return 0;
	printf("%s; %s", run.complaint, fault_names[p.fault]);
	if (p.fault != NONE)
		printf(" of rank %d, in step %d", p.a, p.trigger_step);
	if (p.fault == KILL_TWO || p.fault == CUT)
		printf(", and rank %d", p.b);
	printf("\nreplay: tests/job/storm --seed %llu", (unsigned long long)seed);
	if (ranks)
		printf(" --ranks %d", ranks);
	printf("\n");
	return 1;
}

static uint64_t number(const char *text)
{
	char *end;
	unsigned long long n = strtoull(text ? text : "", &end, 0);

	if (!text || !*text || *end) {
		fprintf(stderr, "usage: storm [--seeds N] [--seed S] [--ranks 2..%d] [--verbose]\n", RANKS_MAX);
		exit(2);
	}
	return n;
}

int main(int argc, char **argv)
{
	uint64_t first = 0, seeds = TT_ASAN ? 50 : 200, failed = 0; /* more of them: make check-long */
	int ranks = 0;

	for (int i = 1; i < argc; i++) {
		if (!strcmp(argv[i], "--seeds"))
			seeds = number(argv[++i]);
		else if (!strcmp(argv[i], "--seed")) {
			first = number(argv[++i]);
			seeds = 1;
		} else if (!strcmp(argv[i], "--ranks"))
			ranks = (int)tt_max(2, tt_min(number(argv[++i]), RANKS_MAX));
		else if (!strcmp(argv[i], "--verbose"))
			verbose = true;
		else
			number(NULL);
	}
	for (uint64_t seed = first; seed < first + seeds && failed < 5; seed++)
		failed += (uint64_t)run_seed(seed, ranks, seeds == 1 || seed % TWICE == 0);
	if (failed)
		printf("storm: %llu seeds failed\n", (unsigned long long)failed);
	else
		printf("storm: %llu seeds passed\n", (unsigned long long)seeds);
	return failed != 0;
}
