/* model.c - chooses an all-reduce's algorithm from latency, bandwidth and the cost of adding, which are measured once
 *
 * The first all-reduce of a group that needs the model measures before it begins: rank 0 pings the last rank, which
 * is on another host if there are several, and sends it bursts. All ranks use what rank 0 found, so they choose
 * alike. Rank 0 also hears whether the ranks of each host share its memory, which each host decides for itself
 * (segment.c). A rank that does not know the model asks rank 0 for it, also in a later call if an earlier one has
 * failed.
 *
 *      rank 0                    rank n-1          others
 *      PING, round        -->
 *                         <--    PONG                          8 times; the shortest way there and back counts
 *      BURST, 4 of them   -->
 *                         <--    PONG                          twice
 *                         <--    HOST {shared?}    HOST        the first rank of each host with several
 *                         <--    ASK               ASK
 *      MODEL {3 numbers, by host?}  -->        -->
 */
#include "collective/collective_private.h"
#include "engine/engine.h"
#include "kernel/kernel.h"
#include "member/member.h"
#include <string.h>

enum {
	TAG_PING = 0x7ffe0000, TAG_PONG = 0x7ffe1000, TAG_BURST = 0x7ffe2000, TAG_ASK = 0x7ffe3000, TAG_MODEL, TAG_HOST,
	PINGS = 8, BURSTS = 2, BURST_PIECES = 4, ROUNDS = PINGS + BURSTS,
	ADDED = 64 * 1024, ADD_TRIES = 4, /* bytes added to measure the cost, and how often */
	MODEL_SIZE = 28, HOST_SIZE = 5,
	DOUBLED = 16320,          /* bytes: vectors of up to this length are doubled, without a model */
};

/* Used if nothing is measured, or if a clock shows nothing: a common network. */
static const struct tt_model assumed = { .latency_ns = 10000, .net_ps = 400, .add_ps = 100 };

struct tt_model tt_model_of(const struct tutti *group)
{
	const struct tt_model *m = &tt_coll_group(group)->model;

	return m->known ? *m : assumed;
}

bool tt_model_measures(const struct tt_settings *s) { return *tt_setting(s, TT_MEASURE) == 'y'; }

/* May it be hierarchical? Then the model must be known before the first byte. */
static bool may_span(const struct tt_layout *l) { return l->hosts > 1 && l->most > 1 && l->most <= TT_SEGMENT_RANKS; }

bool tt_model_needed(const struct tutti *group, size_t bytes)
{
	if (may_span(&tt_coll_group(group)->layout))
		return true;
	if (group->n == 1 || bytes <= tt_min(DOUBLED, TT_COLL_PIECE))
		return false;
	return tt_model_measures(&group->job->settings);
}

/* ---- choosing: in integers, so that no two processors round differently ---- */

static uint64_t of_bytes(size_t bytes, uint64_t ps) { return (uint64_t)((unsigned __int128)bytes * ps / 1000); }

uint64_t tt_model_predict(const struct tt_model *m, const struct tt_algorithm *is, int n, size_t bytes, size_t piece)
{
	uint64_t latency = m->latency_ns, segments = bytes / piece + 1;
	uint64_t net = of_bytes(bytes, m->net_ps), add = of_bytes(bytes, m->add_ps);
	unsigned p = (unsigned)tt_power_below(n), ranks = (unsigned)n;
	uint64_t rounds = (uint64_t)__builtin_ctz(p);
	bool folded = p < ranks;
	if (is == &tt_doubling) /* segments wait for each other */
		return (rounds + 2 * folded) * (segments * latency + net) + (rounds + folded) * add;
	if (is == &tt_rabenseifner)
		return (2 * rounds + 2 * folded) * latency + (2 * net + add) / p * (p - 1) + folded * (2 * net + add);
	return (2 * ranks - 1) * latency + (2 * net + add) / ranks * (ranks - 1); /* with one latency for READY */
}

const struct tt_algorithm *tt_model_choose(const struct tt_model *m, int n, size_t bytes, size_t piece)
{
	static const struct tt_algorithm *const candidates[] = { &tt_rabenseifner, &tt_ring };
	const struct tt_algorithm *best = &tt_doubling;
	uint64_t least = tt_model_predict(m, best, n, bytes, piece);

	for (size_t i = 0; i < TT_COUNT(candidates) && bytes > tt_min(DOUBLED, piece); i++) {
		uint64_t time = tt_model_predict(m, candidates[i], n, bytes, piece);
		if (time < least) {
			least = time;
			best = candidates[i];
		}
	}
	return best;
}

/* ---- measuring ---- */

static uint64_t measure_adding(struct tt_job *job)
{
	char *v = tt_scratch_take(&job->scratch, 2 * ADDED);
	uint64_t best = UINT64_MAX;

	if (!v)
		return 0;
	memset(v, 0, 2 * ADDED);
	for (int i = 0; i < ADD_TRIES; i++) {
		uint64_t since = tt_now();
		tt_reduce(v, v + ADDED, ADDED / sizeof(float), TUTTI_F32, TUTTI_SUM);
		best = tt_min(best, tt_now() - since);
	}
	tt_scratch_give(&job->scratch, v, 2 * ADDED);
	return best * 1000 / ADDED;
}

static void know(struct tutti *group, struct tt_model m)
{
	m.known = true;
	tt_coll_group(group)->model = m;
	tt_coll_wake_soon(group->job);
}

static struct tt_model found(const struct tt_allreduce *a)
{
	const struct tt_tune *t = &a->tune;
	size_t bytes = BURST_PIECES * TT_COLL_PIECE;
	uint64_t burst = t->burst > t->trip ? t->burst - t->trip : 0;
	uint64_t add = measure_adding(a->coll.job); /* 0: a virtual clock stands still */

	return (struct tt_model){ .latency_ns = tt_max(1, t->trip / 2), .net_ps = tt_max(1, burst * 1000 / bytes),
	                          .add_ps = add ? add : assumed.add_ps };
}

static void conclude(struct tt_allreduce *a)
{
	struct tutti *group = a->coll.group;
	const struct tt_layout *l = &tt_coll_group(group)->layout;
	struct tt_model m = tt_model_measures(&group->job->settings) ? found(a) : assumed;

	m.by_host = may_span(l) && !a->tune.some_cannot;
	know(group, m);
	if (may_span(l))
		tt_log(TT_INFO, "all-reduce: over %d hosts, %s", l->hosts,
		       m.by_host ? "within each through its memory"
		                 : "as if each rank had its own: not all can share memory");
	tt_log(TT_INFO, "all-reduce: a message takes %llu ns, the wire %llu ps and adding %llu ps a byte",
	       (unsigned long long)m.latency_ns, (unsigned long long)m.net_ps, (unsigned long long)m.add_ps);
}

static int send_burst(struct tt_allreduce *a)
{
	struct tt_job *job = a->coll.job;
	size_t piece = TT_COLL_PIECE;
	void *zeros = tt_scratch_take(&job->scratch, piece);

	if (!zeros)
		return -ENOMEM;
	memset(zeros, 0, piece);
	for (uint32_t i = 0; i < BURST_PIECES; i++)
		tt_coll_send(&a->coll, a->coll.n - 1, TAG_BURST + a->tune.round * BURST_PIECES + i, zeros, piece);
	tt_scratch_give(&job->scratch, zeros, piece);
	return 0;
}

static int ask_round(struct tt_allreduce *a)
{
	struct tt_tune *t = &a->tune;
	int err = 0;

	t->asked = true;
	t->since = tt_now();
	if (t->round < PINGS)
		tt_coll_send(&a->coll, a->coll.n - 1, TAG_PING + t->round, NULL, 0);
	else
		err = send_burst(a);
	return err;
}

/* ---- hosts ---- */

static bool is_first_of_some(const struct tt_layout *l, int host, int seat)
{
	return l->seats[l->start[host]] == seat && tt_layout_ranks(l, host) > 1;
}

static bool shares(const struct tutti *group)
{
	const struct tt_segment *s = tt_coll_group(group)->segment;

	return s && s->open;
}

static int compare_layout(struct tt_allreduce *a, int seat, uint32_t print)
{
	if (print == tt_coll_group(a->coll.group)->layout.print)
		return 0;
	a->coll.culprit = a->coll.group->seats[seat].rank;
	return tt_fail(-EPROTO, "all-reduce: %s and this one do not agree on which ranks share a host",
	               tt_member_label(tt_member(a->coll.job, a->coll.culprit)).text);
}

static void tell_host(struct tt_allreduce *a)
{
	const struct tutti *group = a->coll.group;
	const struct tt_layout *l = &tt_coll_group(group)->layout;
	uint8_t bytes[HOST_SIZE];
	struct tt_pack p = tt_pack(bytes, sizeof bytes);

	tt_put8(&p, shares(group));
	tt_put32(&p, l->print);
	if (may_span(l) && is_first_of_some(l, l->here, a->coll.me))
		tt_coll_send(&a->coll, 0, TAG_HOST, bytes, sizeof bytes);
}

static int take_host(struct tt_allreduce *a, int seat)
{
	const void *bytes = tt_coll_take(&a->coll, seat, TAG_HOST, HOST_SIZE);

	if (!bytes)
		return 0;
	struct tt_pack p = tt_unpack(bytes, HOST_SIZE);
	a->tune.some_cannot |= !tt_get8(&p);
	int err = compare_layout(a, seat, tt_get32(&p));
	return err ? err : 1;
}

/* 1: all hosts have answered. */
static int take_hosts(struct tt_allreduce *a)
{
	const struct tt_layout *l = &tt_coll_group(a->coll.group)->layout;
	struct tt_tune *t = &a->tune;
	int k = 1;

	t->some_cannot |= tt_layout_ranks(l, l->here) > 1 && !shares(a->coll.group);
	for (; may_span(l) && t->host < l->hosts; t->host++) {
		int seat = l->seats[l->start[t->host]];
		if (seat != a->coll.me && is_first_of_some(l, t->host, seat) && (k = take_host(a, seat)) <= 0)
			break;
	}
	return k;
}

/* ---- rank 0 measures, the others answer and ask ---- */

static int measure(struct tt_allreduce *a)
{
	struct tt_tune *t = &a->tune;
	int err = 0;

	for (; tt_model_measures(&a->coll.job->settings) && t->round < ROUNDS; t->round++, t->asked = false) {
		if (!t->asked && (err = ask_round(a)))
			return err;
		if (!tt_coll_take(&a->coll, a->coll.n - 1, TAG_PONG + t->round, 0))
			return 0;
		uint64_t took = tt_now() - t->since, *best = t->round < PINGS ? &t->trip : &t->burst;
		*best = *best ? tt_min(*best, took) : took;
	}
	if ((err = take_hosts(a)) <= 0)
		return err;
	conclude(a);
	return 1;
}

/* The last rank answers all rounds in order. */
static void answer(struct tt_allreduce *a)
{
	struct tt_tune *t = &a->tune;
	size_t piece = TT_COLL_PIECE;

	while (t->round < ROUNDS) {
		bool ping = t->round < PINGS;
		uint32_t tag = ping ? TAG_PING + t->round : TAG_BURST + t->round * BURST_PIECES + (uint32_t)t->trip;
		if (!tt_coll_take(&a->coll, 0, tag, ping ? 0 : piece))
			return;
		if (!ping && ++t->trip < BURST_PIECES)
			continue;
		t->trip = 0;
		tt_coll_send(&a->coll, 0, TAG_PONG + t->round++, NULL, 0);
	}
}

static int hear(struct tt_allreduce *a)
{
	const void *bytes;

	if (!a->tune.asked) {
		tell_host(a);
		tt_coll_send(&a->coll, 0, TAG_ASK, NULL, 0);
	}
	a->tune.asked = true;
	if (a->coll.me == a->coll.n - 1)
		answer(a);
	if (!(bytes = tt_coll_take(&a->coll, 0, TAG_MODEL, MODEL_SIZE)))
		return 0;
	struct tt_pack p = tt_unpack(bytes, MODEL_SIZE);
	struct tt_model m = { .latency_ns = tt_get64(&p) };
	m.net_ps = tt_get64(&p);
	m.add_ps = tt_get64(&p);
	uint32_t layout = tt_get32(&p);
	int err = layout ? compare_layout(a, 0, layout) : 0;
	if (err)
		return err;
	m.by_host = layout;
	know(a->coll.group, m);
	return 1;
}

/* Several all-reduces may measure at once. As soon as one of them has the model, the others stop. */
int tt_model_learn(struct tt_allreduce *a)
{
	if (tt_coll_group(a->coll.group)->model.known)
		return 1;
	a->coll.may_leave_messages = true;
	return a->coll.me == 0 ? measure(a) : hear(a);
}

void tt_model_tell(struct tt_allreduce *a)
{
	const struct tt_model *m = &tt_coll_group(a->coll.group)->model;
	const struct tt_layout *l = &tt_coll_group(a->coll.group)->layout;
	uint8_t bytes[MODEL_SIZE];
	struct tt_pack p = tt_pack(bytes, sizeof bytes);
	int from = -1;
	size_t len;

	a->coll.may_leave_messages |= may_span(l); /* a rank that does not know the model sends a HOST first */
	tt_put64(&p, m->latency_ns);
	tt_put64(&p, m->net_ps);
	tt_put64(&p, m->add_ps);
	tt_put32(&p, m->by_host ? l->print : 0);
	for (; m->known && tt_coll_take_any(&a->coll, &from, TAG_ASK, &len); from = -1)
		tt_coll_send(&a->coll, from, TAG_MODEL, bytes, sizeof bytes);
}
