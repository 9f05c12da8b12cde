/* heartbeat.c - finds silent ranks that no operation waits for; and every time that derives from the deadline
 *
 * Each rank looks at its connections twice a heartbeat (h). It sends a PING where nothing has come since the last
 * look. A rank that has not answered two heartbeats later is evicted: silence is detected within 3 h, and takes at
 * least 2 h.
 *
 *      look    look    look    look    look    look    look
 *       |   the | last  |       |       |       |       |
 *       |    byte       |       |       |       |       |
 *       |------x|-------|-------|-------|-------|-------|
 *               some-   nothing                         nothing: evicted, 2.5 h to 3 h after the last byte
 *               thing   since: PING
 *
 * A rank that usually answers late gets longer: the median of its last answer times plus 8 times their median absolute
 * deviation (MAD), if that is more than two heartbeats, and as long as all of it stays within the deadline.
 */
#include "engine/engine.h"
#include "member/member_private.h"
#include <string.h>

enum { DEVIATIONS = 8 };

/* A fraction of the deadline, and its bounds in milliseconds; 0: none. */
static const struct {
	uint16_t share, least, most;
} times[] = {
	[TT_TIME_HEARTBEAT] = { 10, 100, 0 }, /* a process may wait 100 ms for a core */
	[TT_TIME_GRACE] = { 8, 0, 30 },
	[TT_TIME_STALE] = { 4, 0, 500 },
	[TT_TIME_REAP] = { 20, 0, 50 },
	[TT_TIME_NET] = { 8, 0, 0 },
	[TT_TIME_RETRY_MIN] = { 100, 0, 10 },
	[TT_TIME_RETRY_MAX] = { 20, 0, 300 },
};

uint64_t tt_time(const struct tt_job *job, enum tt_time t)
{
	uint64_t ns = job->deadline / times[t].share;

	if (times[t].most && ns > times[t].most * TT_MS)
		ns = times[t].most * TT_MS;
	return ns < times[t].least * TT_MS ? times[t].least * TT_MS : ns;
}

/* Sorts v. */
static uint32_t median(uint32_t *v, unsigned n)
{
	for (unsigned i = 1; i < n; i++)
		for (unsigned k = i; k && v[k] < v[k - 1]; k--) {
			uint32_t x = v[k];
			v[k] = v[k - 1];
			v[k - 1] = x;
		}
	return v[n / 2];
}

uint64_t tt_heartbeat_patience(const struct tt_link *l)
{
	uint64_t beat = tt_time(l->job, TT_TIME_HEARTBEAT), least = 2 * beat, most = l->job->deadline, usual;
	unsigned n = (unsigned)tt_min(l->heartbeat.answers, TT_ANSWERS);
	uint32_t v[TT_ANSWERS], middle;

	most = most > 3 * beat ? most - beat : least;
	if (!n)
		return least;
	memcpy(v, l->heartbeat.took, sizeof v);
	middle = median(v, n);
	for (unsigned i = 0; i < n; i++)
		v[i] = v[i] > middle ? v[i] - middle : middle - v[i];
	usual = (middle + (uint64_t)DEVIATIONS * median(v, n)) * 1000;
	return usual < least ? least : usual > most ? most : usual;
}

void tt_heartbeat_answered(struct tt_link *l)
{
	struct tt_heartbeat *b = &l->heartbeat;
	uint64_t took = (tt_now() - b->asked) / 1000;

	if (!b->asked)
		return;
	b->took[b->answers++ % TT_ANSWERS] = took < UINT32_MAX ? (uint32_t)took : UINT32_MAX;
	b->asked = 0;
}

bool tt_heartbeat_asked(struct tt_link *l)
{
	struct tt_heartbeat *b = &l->heartbeat;

	if (b->asked)
		return false;
	b->asked = tt_now();
	b->before = l->peer->received;
	return true;
}

void tt_heartbeat_ask(struct tt_link *l)
{
	if (tt_heartbeat_asked(l)) /* else the PONG may queue behind other bytes */
		tt_member_ping(l->member);
}

bool tt_heartbeat_is_frozen(const struct tt_link *l)
{
	const struct tt_heartbeat *b = &l->heartbeat;

	return b->asked && l->peer->received == (b->silent ? b->received : b->before);
}

/* The connection carries the signs of life of its member. */
static bool counts(const struct tt_link *l)
{
	const struct tt_member *m = l->member;

	return m && m->link == l && (m->state == TT_UP || m->state == TT_PARTING);
}

static void look_at(struct tt_link *l, uint64_t now)
{
	struct tt_heartbeat *b = &l->heartbeat;

	if (b->received != l->peer->received) {
		b->received = l->peer->received;
		b->silent = 0;
		return;
	}
	if (b->silent)
		return;
	b->silent = now;
	tt_heartbeat_ask(l);
}

/* This process was stopped, or got no core: the silence says nothing about the other ranks. */
static void begin_anew(struct tt_job *job)
{
	tt_each_link(l, job) {
		l->heartbeat.received = l->peer->received - 1;
		l->heartbeat.asked = 0;
		l->doubted = false;
	}
}

static struct tt_link *find_silent(struct tt_job *job, uint64_t now)
{
	tt_each_link(l, job)
		if (counts(l) && l->heartbeat.silent && now - l->heartbeat.silent >= tt_heartbeat_patience(l))
			return l;
	return NULL;
}

static void look(struct tt_timer *t)
{
	struct tt_job *job = tt_container_of(t, struct tt_members, heartbeat)->job;
	uint64_t now = tt_now(), beat = tt_time(job, TT_TIME_HEARTBEAT);
	struct tt_link *silent;

	if (job->leaving)
		return;
	if (now > t->at + beat)
		begin_anew(job);
	tt_each_link(l, job)
		if (counts(l))
			look_at(l, now);
	while ((silent = find_silent(job, now)))
		tt_member_evict(silent->member, -ETIMEDOUT,
		                "%s was cut off: it gave no sign of life within %llu ms",
		                tt_member_label(silent->member).text,
		                (unsigned long long)((now - silent->heartbeat.silent + beat / 2) / TT_MS));
	tt_timer_start(job, t, now + beat / 2, look);
}

void tt_heartbeat_start(struct tt_job *job)
{
	tt_timer_start(job, &tt_members(job)->heartbeat, tt_now() + tt_time(job, TT_TIME_HEARTBEAT) / 2, look);
}
