/* news.c - who is alive. Whoever sees a rank go down tells all; a late waiter pings, so that it names the silent one. */
#include "engine/engine.h"
#include "member/member_private.h"
#include <stdio.h>
#include <string.h>

bool tt_member_is_there(const struct tt_job *job, int rank)
{
	return rank != job->rank && tt_member(job, rank)->state < TT_LEFT;
}

/* Connections are made for it where there are none: a call on a collective must end everywhere. */
static void say_down(struct tt_member *to, const struct tt_member *gone, int err, const char *why)
{
	uint8_t bytes[256];
	struct tt_pack p = tt_pack(bytes, sizeof bytes);

	tt_put8(&p, TT_DOWN);
	tt_put32(&p, (uint32_t)gone->rank);
	tt_put32(&p, gone->epoch);
	tt_put32(&p, (uint32_t)-err);
	tt_put_text(&p, why);
	tt_send(to, bytes, (size_t)(p.at - bytes), NULL, 0);
}

static void say_of(struct tt_member *to, uint8_t type, const struct tt_member *of, const void *more, size_t len)
{
	uint8_t bytes[9];
	struct tt_pack p = tt_pack(bytes, sizeof bytes);

	tt_put8(&p, type);
	tt_put32(&p, (uint32_t)of->rank);
	tt_put32(&p, of->epoch);
	tt_send(to, bytes, sizeof bytes, more, len);
}

static void say_left(struct tt_member *to, const struct tt_member *left) { say_of(to, TT_FAREWELL, left, left->bye, left->bye_len); }

static void tell(struct tt_member *to, const struct tt_member *gone)
{
	if (to->telling == tt_members(to->job)->tellings)
		return;
	to->telling = tt_members(to->job)->tellings;
	if (gone->state == TT_LEFT)
		say_left(to, gone);
	else
		say_down(to, gone, gone->silent ? -ETIMEDOUT : gone->err, gone->why);
}

/* The first of those who are there at a distance of at least 2^k, up or down: a power of two makes the way to everybody
 * short, and the nearest on either side make a ring of all who are left, whoever else has gone. */
struct tt_member *tt_news_finger(struct tt_job *job, int i)
{
	for (int d = 1 << i / 2; d < job->size; d++) {
		int rank = (job->rank + (i % 2 ? d : job->size - d)) % job->size;
		if (tt_member_is_there(job, rank) && (tt_member(job, rank)->link || *tt_member(job, rank)->addr)) /* and not a number that nobody came for */
			return tt_member(job, rank);
	}
	return NULL;
}

/* It takes the place of one who went, and may have taken with him what he should have passed on. */
static void feed(struct tt_member *to)
{
	struct tt_job *job = to->job;

	for (int i = 0; i < job->size; i++)
		if (tt_member(job, i)->state == TT_GONE && !tt_member(job, i)->untold) {
			tt_members(job)->tellings++;
			tell(to, tt_member(job, i));
		}
	to->fed = true;
}

static void tell_fingers(struct tt_job *job, const struct tt_member *gone)
{
	for (int i = 0; 1 << i / 2 < job->size; i++) {
		struct tt_member *m = tt_news_finger(job, i);
		if (m && gone && (m->fed || gone->state == TT_LEFT))
			tell(m, gone);
	}
	for (int i = 0; 1 << i / 2 < job->size; i++) {
		struct tt_member *m = tt_news_finger(job, i);
		if (m && !m->fed)
			feed(m);
	}
}

void tt_news_mend(struct tt_job *job)
{
	if (tt_members(job)->tellings)
		tell_fingers(job, NULL);
}

/* Those to whom there is a connection hear it at once, the others from those to whom I make one. */
static void tell_all(struct tt_member *gone)
{
	struct tt_job *job = gone->job;

	tt_members(job)->tellings++;
	gone->untold = false;
	tt_list_each(node, &tt_members(job)->links) {
		struct tt_link *l = tt_container_of(node, struct tt_link, all);
		if (l->member && l->member->link == l && tt_member_linked(l->member))
			tell(l->member, gone);
	}
	tell_fingers(job, gone);
	job->engine.news = true;
}

static void tell_now(struct tt_timer *t) { tell_all(tt_container_of(t, struct tt_member, retry)); }

/* A broken connection may mean that it is me who was cut off. Then the others hear of that first, and will not listen
 * when I accuse the one who did it: hence a moment's grace. Where the way between two breaks, both accuse each other, of
 * a broken connection at once, of silence up to half a heartbeat apart: the higher rank waits for so much longer, and who
 * was told that it is cut off waits for longest. Else some would believe the one and some the other, and both would be
 * lost, or the whole job. */
static uint64_t grace(const struct tt_member *gone)
{
	uint64_t moment = tt_time(gone->job, TT_TIME_GRACE), apart = tt_time(gone->job, TT_TIME_HEARTBEAT) / 2;

	if (gone->accuser)
		return apart + 2 * moment;
	if (gone->silent)
		return apart + moment;
	return gone->rank < gone->job->rank ? 2 * moment : moment;
}

void tt_news_tell(struct tt_member *gone)
{
	struct tt_job *job = gone->job;

	if (gone->untold)
		tt_timer_start(job, &gone->retry, tt_now() + grace(gone), tell_now);
	else
		tell_all(gone);
}

/* Not before: at the end of a job all leave, and nobody has to hear of it. */
void tt_news_farewell(struct tt_member *left)
{
	if (left->state != TT_LEFT || left->passed_on || !left->bye || left->job->leaving)
		return;
	left->passed_on = left->untold = true;
	tt_timer_start(left->job, &left->retry, tt_now(), tell_now); /* whoever needs it is in the middle of something */
}

/* To whom there is a connection its own word comes, behind all else that it has sent; so does rank 0's to who waits for its table. */
void tt_news_take_farewell(struct tt_member *from, struct tt_pack *p)
{
	struct tt_job *job = from->job;
	uint32_t rank = tt_get32(p), epoch = tt_get32(p);
	struct tt_pack list;

	p->bad |= rank >= (uint32_t)tt_members(job)->capacity || !epoch;
	if (!tt_member_take_bye(p, &list) || rank >= (uint32_t)job->size || rank == (uint32_t)job->rank)
		return;
	struct tt_member *m = tt_member(job, rank);
	if (!tt_member_epoch(m, epoch) || m->state == TT_UP || m->state == TT_PARTING || (rank == 0 && tt_is_joining(job)))
		return;
	tt_member_left(m, &list);
	tt_news_farewell(m);
}

/* Those who have heard its goodbye have done so before it stopped listening. */
bool tt_news_ask_missed(struct tt_member *m)
{
	struct tt_job *job = m->job;
	int asked = 0;

	if (!job->joined || job->leaving || !m->epoch)
		return false;
	for (int i = 0; i < job->size; i++)
		if (tt_member(job, i)->state == TT_UP) {
			say_of(tt_member(job, i), TT_MISSED, m, NULL, 0);
			asked++;
		}
	return asked > 0;
}

void tt_news_take_missed(struct tt_member *from, struct tt_pack *p)
{
	uint32_t rank = tt_get32(p), epoch = tt_get32(p);
	const struct tt_member *m = rank < (uint32_t)from->job->size ? tt_member(from->job, rank) : NULL;

	if (!p->bad && m && m->state == TT_LEFT && m->epoch == epoch && m->bye)
		say_left(from, m);
}

bool tt_news_all_told(void *arg)
{
	struct tt_job *job = arg;

	for (int i = 0; i < job->size; i++)
		if (tt_member(job, i)->untold)
			return false;
	return true;
}

void tt_news_take_down(struct tt_member *from, struct tt_pack *p)
{
	struct tt_job *job = from->job;
	uint32_t rank = tt_get32(p), epoch = tt_get32(p), err = tt_get32(p);
	char why[200];

	tt_get_text(p, why, sizeof why);
	p->bad |= rank >= (uint32_t)tt_members(job)->capacity || err == 0 || err > 4095;
	if (p->bad || rank >= (uint32_t)job->size)
		return;
	if (tt_member(job, rank)->epoch && epoch && epoch != tt_member(job, rank)->epoch)
		return; /* of another life of it */
	if (rank == (uint32_t)job->rank) { /* the others go on without me: nobody needs to hear it from here */
		from->untold = from->accuser = true;
		tt_member_gone(from, -ECONNRESET, "rank %d has cut off this process: %s", from->rank, why);
	} else if (tt_member(job, rank)->state != TT_LEFT) {
		tt_member_gone(tt_member(job, rank), -(int)err, "%s", why);
	} else { /* whoever lost it as it left may lack its part, and I theirs; operations of mine it may still finish */
		tt_group_seats_out(tt_member(job, rank), NULL);
		tt_tell_unseated(tt_member(job, rank));
	}
}

static struct tutti *group_of(struct tt_job *job, uint32_t uid)
{
	tt_list_each(node, &tt_members(job)->groups)
		if (((struct tutti *)node)->uid == uid)
			return (struct tutti *)node;
	return NULL;
}

/* Both carry how far the sender has come in a group, so that who is late can be told from who waits for him. Group 0 is
 * none: a heartbeat must not stand in for what a waiter has asked about. */
static void say_alive(struct tt_member *to, uint8_t type, uint32_t uid)
{
	const struct tutti *g = uid ? group_of(to->job, uid) : NULL;
	uint8_t bytes[9];
	struct tt_pack p = tt_pack(bytes, sizeof bytes);

	tt_put8(&p, type);
	tt_put32(&p, uid);
	tt_put32(&p, g ? g->started : 0);
	tt_send(to, bytes, sizeof bytes, NULL, 0);
}

static void take_life(struct tt_member *from, struct tt_pack *p, bool answer)
{
	uint32_t uid = tt_get32(p), started = tt_get32(p);

	if (p->bad)
		return;
	if (uid) {
		from->started_in = uid;
		from->started = started;
		from->heard = tt_now();
	}
	if (answer)
		say_alive(from, TT_PONG, uid);
	else if (!uid)
		tt_heartbeat_answered(from->link);
}

void tt_member_take_ping(struct tt_member *from, struct tt_pack *p) { take_life(from, p, true); }
void tt_member_take_pong(struct tt_member *from, struct tt_pack *p) { take_life(from, p, false); }
void tt_member_ping(struct tt_member *m) { say_alive(m, TT_PING, 0); }

void tt_member_ping_for(struct tt_member *m, uint32_t uid)
{
	m->received = m->link ? m->link->peer->received : 0;
	tt_stats_count(&m->stats, TUTTI_STAT_PING, 0);
	say_alive(m, TT_PING, uid);
}

/* A pong may queue behind gigabytes: whatever else came from there counts as well. */
bool tt_member_sends_bytes(const struct tt_member *m) { return m->link && m->link->peer->received != m->received; }

bool tt_member_is_alive(const struct tt_member *m, uint64_t since)
{
	return m->heard >= since || m->unreached >= since || tt_member_sends_bytes(m);
}

void tt_member_evict(struct tt_member *m, int err, const char *fmt, ...)
{
	char why[200];
	va_list args;

	va_start(args, fmt);
	vsnprintf(why, sizeof why, fmt, args);
	va_end(args);
	tt_stats_count(&m->stats, TUTTI_STAT_CUT, 0);
	if (m->state == TT_UP)
		say_down(m, m, err, why); /* the last thing it hears of me, if it still listens */
	m->untold |= err == -ETIMEDOUT && m->rank < m->job->rank;
	tt_member_gone(m, err, "%s", why);
	tt_peer_settle(m->job);
}
