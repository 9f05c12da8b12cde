/* model.c - which all-reduce: latency, bandwidth and the cost of adding, measured once and the same on all ranks
 *
 * A group's first all-reduce that needs them measures, before it begins: rank 0 pings the last rank, which is on another
 * host if any is (where hosts are not mixed), and sends it bursts. What it finds is the truth from then on, so ranks cannot choose differently. A rank that does
 * not know it asks rank 0 for it; that may happen in a later call as well, where an earlier one had failed.
 *
 *      rank 0                    rank n-1          others
 *      PING, round        -->
 *                         <--    PONG                          8 times; the shortest way there and back counts
 *      BURST, 4 of them   -->
 *                         <--    PONG                          twice
 *                         <--    ASK               ASK
 *      MODEL {3 numbers}  -->                  -->
 */
#include "runtime.h"
#include <string.h>

enum {
	TAG_PING = 0x7ffe0000, TAG_PONG = 0x7ffe1000, TAG_BURST = 0x7ffe2000, TAG_ASK = 0x7ffe3000, TAG_MODEL,
	PINGS = 8, BURSTS = 2, BURST_PIECES = 4, ROUNDS = PINGS + BURSTS,
	ADDED = 64 * 1024,        /* bytes of the vector that is added to see how long it takes ... */
	ADD_TRIES = 4,
	MODEL_SIZE = 24,
	DOUBLED = 16320,          /* bytes: so many are doubled in any case. Who sums little is not made to measure */
};

/* Where nothing is measured, and where a clock shows nothing: a plain network of today. */
static const struct tt_model assumed = { .latency_ns = 10000, .wire_ps = 400, .add_ps = 100 };

struct tt_model tt_model_of(const struct tutti *group) { return group->model.known ? group->model : assumed; }

bool tt_model_measures(const struct tt_settings *s) { return *tt_setting(s, TT_MEASURE) == 'y'; }

bool tt_model_needed(const struct tutti *group, size_t bytes)
{
	return group->n > 1 && bytes > tt_min(DOUBLED, tt_coll_piece(group->job)) && tt_model_measures(&group->job->settings);
}

/* ---- choosing. In whole numbers, so that no two processors round differently ---- */

static uint64_t of_bytes(size_t bytes, uint64_t ps) { return (uint64_t)((unsigned __int128)bytes * ps / 1000); }

uint64_t tt_model_predict(const struct tt_model *m, const struct tt_algorithm *is, int n, size_t bytes, size_t piece)
{
	uint64_t latency = m->latency_ns, segments = bytes / piece + 1;
	uint64_t wire = of_bytes(bytes, m->wire_ps), add = of_bytes(bytes, m->add_ps);
	unsigned p = (unsigned)tt_power_below(n), ranks = (unsigned)n;
	uint64_t rounds = (uint64_t)__builtin_ctz(p);
	bool folded = p < ranks;
	if (is == &tt_doubling) /* segments wait for each other */
		return (rounds + 2 * folded) * (segments * latency + wire) + (rounds + folded) * add;
	if (is == &tt_rabenseifner)
		return (2 * rounds + 2 * folded) * latency + (2 * wire + add) / p * (p - 1) + folded * (2 * wire + add);
	return (2 * ranks - 1) * latency + (2 * wire + add) / ranks * (ranks - 1); /* one for READY */
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

static void wake_others(struct tt_timer *t) { tt_coll_wake(tt_container_of(t, struct tutti, model.told)->job); }

static void know(struct tutti *group, uint64_t latency_ns, uint64_t wire_ps, uint64_t add_ps)
{
	group->model.latency_ns = latency_ns;
	group->model.wire_ps = wire_ps;
	group->model.add_ps = add_ps;
	group->model.known = true;
	tt_timer_start(group->job, &group->model.told, tt_now(), wake_others);
}

static void conclude(struct tt_allreduce *a)
{
	const struct tt_tune *t = &a->tune;
	const struct tt_model *m = &a->coll.group->model;
	size_t bytes = BURST_PIECES * tt_coll_piece(a->coll.job);
	uint64_t burst = t->burst > t->trip ? t->burst - t->trip : 0, add = measure_adding(a->coll.job);

	know(a->coll.group, tt_max(1, t->trip / 2), tt_max(1, burst * 1000 / bytes), add ? add : assumed.add_ps); /* a virtual clock stands still */
	tt_log(TT_INFO, "all-reduce: a message takes %llu ns, the wire %llu ps and adding %llu ps a byte", (unsigned long long)m->latency_ns,
	       (unsigned long long)m->wire_ps, (unsigned long long)m->add_ps);
}

static int send_burst(struct tt_allreduce *a)
{
	struct tt_job *job = a->coll.job;
	size_t piece = tt_coll_piece(job);
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

static int measure(struct tt_allreduce *a)
{
	struct tt_tune *t = &a->tune;
	int err = 0;

	for (; t->round < ROUNDS; t->round++, t->asked = false) {
		if (!t->asked && (err = ask_round(a)))
			return err;
		if (!tt_coll_take(&a->coll, a->coll.n - 1, TAG_PONG + t->round, 0))
			return 0;
		uint64_t took = tt_now() - t->since, *best = t->round < PINGS ? &t->trip : &t->burst;
		*best = *best ? tt_min(*best, took) : took;
	}
	conclude(a);
	return 1;
}

/* The last rank answers all rounds, in their order. */
static void answer(struct tt_allreduce *a)
{
	struct tt_tune *t = &a->tune;
	size_t piece = tt_coll_piece(a->coll.job);

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

	if (!a->tune.asked)
		tt_coll_send(&a->coll, 0, TAG_ASK, NULL, 0);
	a->tune.asked = true;
	if (a->coll.me == a->coll.n - 1)
		answer(a);
	if (!(bytes = tt_coll_take(&a->coll, 0, TAG_MODEL, MODEL_SIZE)))
		return 0;
	struct tt_pack p = tt_unpack(bytes, MODEL_SIZE);
	uint64_t latency_ns = tt_get64(&p), wire_ps = tt_get64(&p), add_ps = tt_get64(&p);
	know(a->coll.group, latency_ns, wire_ps, add_ps);
	return 1;
}

/* Several all-reduces may be at it at once. When one of them has brought the numbers, the others leave it at that. */
int tt_model_learn(struct tt_allreduce *a)
{
	if (a->coll.group->model.known)
		return 1;
	a->coll.untidy = true;
	return a->coll.me == 0 ? measure(a) : hear(a);
}

void tt_model_tell(struct tt_allreduce *a)
{
	const struct tt_model *m = &a->coll.group->model;
	uint8_t bytes[MODEL_SIZE];
	struct tt_pack p = tt_pack(bytes, sizeof bytes);
	int from = -1;
	size_t len;

	tt_put64(&p, m->latency_ns);
	tt_put64(&p, m->wire_ps);
	tt_put64(&p, m->add_ps);
	for (; m->known && tt_coll_take_any(&a->coll, &from, TAG_ASK, &len); from = -1)
		tt_coll_send(&a->coll, from, TAG_MODEL, bytes, sizeof bytes);
}
