/* heartbeat.c - finds silent ranks; and every time that derives from TUTTI_SILENCE
 *
 * Each rank looks at its connections several times a second. It sends a PING where nothing has come for a heartbeat,
 * and evicts a rank of which nothing has come for TUTTI_SILENCE.
 *
 *      |--- heartbeat ---|-------------------------------------|
 *      the last byte     PING                                  evicted: TUTTI_SILENCE after the last byte
 *
 * Each rank is connected to the next one that is there, in a ring of all ranks. So two others watch each rank, whoever
 * else is connected to it, and the news of its death goes to all (news.c).
 *
 * The same timer gives the modules their beat. The time that it tells them is not the clock's: a time in which this
 * process was stopped, or got no core, counts as one look. */
#include "engine/engine.h"
#include "member/member_private.h"

/* A fraction of the silence, and bounds in milliseconds; most: 0: none. */
static const struct {
	uint16_t share, least, most;
} times[] = {
	[TT_TIME_HEARTBEAT] = { 4, 25, 500 },
	[TT_TIME_LOOK] = { 16, 2, 200 },
	[TT_TIME_GRACE] = { 8, 0, 30 },
	[TT_TIME_STALE] = { 1, 0, 1000 },
	[TT_TIME_NET] = { 4, 0, 2500 },
	[TT_TIME_RETRY_MIN] = { 100, 0, 10 },
	[TT_TIME_RETRY_MAX] = { 20, 0, 300 },
	[TT_TIME_FAREWELL] = { 20, 0, 500 },
};

/* Where a host has too few cores, a turn of the progress loop comes late. In the grace this rank must have a turn. In
 * the stale time it must hear what news.c keeps to itself for a grace. */
static uint64_t stretched(const struct tt_job *job, enum tt_time t, uint64_t most)
{
	if (t == TT_TIME_GRACE)
		return tt_max(most, 4 * tt_members(job)->lateness);
	if (t == TT_TIME_STALE)
		return tt_max(most, tt_time(job, TT_TIME_HEARTBEAT) + tt_time(job, TT_TIME_LOOK) +
		                    3 * tt_time(job, TT_TIME_GRACE));
	return most;
}

uint64_t tt_time(const struct tt_job *job, enum tt_time t)
{
	uint64_t ns = job->silence / times[t].share;

	if (times[t].most)
		ns = tt_min(ns, stretched(job, t, times[t].most * TT_MS));
	return tt_max(ns, times[t].least * TT_MS);
}

/* A timeout that is shorter than the silence makes for shorter looks. */
static uint64_t time_of_look(const struct tt_job *job)
{
	uint64_t shortest = job->timeout;

	tt_each_group(g, job)
		shortest = tt_min(shortest, tt_group_timeout(g));
	return tt_max(tt_min(tt_time(job, TT_TIME_LOOK), shortest / 8), TT_MS);
}

void tt_heartbeat_begin(struct tt_link *l)
{
	l->heartbeat = (struct tt_heartbeat){ .received = l->peer->received, .since = tt_now() };
}

void tt_heartbeat_answered(struct tt_link *l) { l->heartbeat.asked = false; }

void tt_heartbeat_asked(struct tt_link *l)
{
	if (!l->heartbeat.asked)
		l->heartbeat.before = l->peer->received;
	l->heartbeat.asked = true;
}

void tt_heartbeat_ask(struct tt_link *l)
{
	if (l->heartbeat.asked)
		return; /* the PONG may queue behind other bytes */
	tt_heartbeat_asked(l);
	tt_member_ping(l->member);
}

bool tt_heartbeat_is_frozen(const struct tt_link *l)
{
	return l->heartbeat.asked && l->peer->received == l->heartbeat.before;
}

/* The connection carries the signs of life of its member; or the member has said goodbye and still holds memory. */
static bool counts(const struct tt_link *l)
{
	const struct tt_member *m = l->member;

	return m && m->link == l &&
	       (m->state == TT_UP || m->state == TT_PARTING || (m->state == TT_LEFT && m->outstanding));
}

/* The other end evicts this rank, of which nothing arrives, and cannot know why. */
static void look_if_stalled(struct tt_link *l, uint64_t now)
{
	const struct tt_transport *t = l->peer->net->transport;
	struct tt_heartbeat *b = &l->heartbeat;
	char text[300];

	if (!t->stalls || now < b->looked + TT_MS * 500)
		return;
	b->looked = now;
	if (!t->stalls(l->peer, text, sizeof text))
		return;
	tt_log(TT_WARN, "%s: %s", tt_member_label(l->member).text, text);
	b->looked = TT_FOREVER; /* once */
}

static void look_at(struct tt_link *l, uint64_t now)
{
	struct tt_heartbeat *b = &l->heartbeat;

	look_if_stalled(l, now);

	if (b->received != l->peer->received) {
		b->received = l->peer->received;
		b->since = now;
	} else if (now - b->since >= tt_time(l->job, TT_TIME_HEARTBEAT) && l->member->state != TT_LEFT) {
		tt_heartbeat_ask(l);
	}
}

/* This process was stopped, or got no core: that time says nothing about the other ranks. */
static void leave_out(struct tt_job *job, uint64_t lost, uint64_t now)
{
	tt_each_link(l, job) {
		l->heartbeat.since = tt_min(l->heartbeat.since + lost, now);
		l->heartbeat.asked = l->doubted = false;
		l->recall.at += lost;
	}
}

static struct tt_link *find_silent(struct tt_job *job, uint64_t now)
{
	tt_each_link(l, job)
		if (counts(l) && now - l->heartbeat.since >= job->silence)
			return l;
	return NULL;
}

static void evict_silent(struct tt_job *job, uint64_t now)
{
	struct tt_link *l;

	while ((l = find_silent(job, now)))
		tt_member_evict(l->member, -ETIMEDOUT, "%s was evicted: it gave no sign of life within %llu ms",
		                tt_member_label(l->member).text,
		                (unsigned long long)((now - l->heartbeat.since) / TT_MS));
}

/* The next rank does the same, so connections hardly ever cross. One that was not reached may have left unheard. */
static void join_ring(struct tt_job *job, uint64_t now)
{
	for (int d = 1; d < job->size; d++) {
		struct tt_member *m = tt_member(job, (job->rank + d) % job->size);
		if (!tt_member_is_there(job, m->rank) || !*m->addr ||
		    (m->state == TT_AWAY && m->unreached && now - m->unreached < job->silence))
			continue;
		if (m->state == TT_AWAY)
			tt_member_connect_ring(m);
		return;
	}
}

/* The largest one counts, and is forgotten slowly. More than this lengthens no grace: a process that was stopped for
 * long is to forget that as soon as any other. */
static void note_lateness(struct tt_job *job, uint64_t late)
{
	struct tt_members *all = tt_members(job);

	late = tt_min(late, job->silence / 32);
	all->lateness = tt_max(late, all->lateness - all->lateness / 64);
}

static void look(struct tt_timer *t)
{
	struct tt_job *job = tt_container_of(t, struct tt_members, heartbeat)->job;
	uint64_t now = tt_now(), every = time_of_look(job), late = now - t->at;

	note_lateness(job, late);
	if (late > tt_time(job, TT_TIME_HEARTBEAT))
		leave_out(job, late, now);
	if (!job->leaving) {
		tt_each_link(l, job)
			if (counts(l))
				look_at(l, now);
		evict_silent(job, now);
		join_ring(job, now);
		tt_nodes_seek(job);
	}
	tt_each_module(m, job, beat)
		m->beat(job, every + tt_min(late, every));
	tt_timer_start(job, t, now + every, look);
}

void tt_heartbeat_start(struct tt_job *job)
{
	struct tt_timer *t = &tt_members(job)->heartbeat;
	uint64_t at = tt_now() + time_of_look(job);

	if (!tt_timer_runs(t) || at < t->at)
		tt_timer_start(job, t, at, look);
}
