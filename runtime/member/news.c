/* news.c - who is alive. A rank that sees another go down tells all; a rank that waits for long sends a PING, so that
 * it can name the silent rank. */
#include "engine/engine.h"
#include "member/member_private.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool tt_member_is_there(const struct tt_job *job, int rank)
{
	return rank != job->rank && tt_member(job, rank)->state < TT_LEFT && !tt_member(job, rank)->sought;
}

/* Connects where there is no connection: a call on a collective must end everywhere. */
static void say_down(struct tt_member *to, const struct tt_member *gone, int err, const char *why)
{
	uint8_t bytes[256];
	struct tt_pack p = tt_pack(bytes, sizeof bytes);
	char cut[200];

	snprintf(cut, sizeof cut, "%s", why);
	tt_put8(&p, TT_DOWN);
	tt_put32(&p, tt_member_number(gone));
	tt_put32(&p, gone->epoch);
	tt_put32(&p, (uint32_t)-err);
	tt_put_text(&p, cut);
	tt_send(to, bytes, (size_t)(p.at - bytes), NULL, 0);
}

static void say_of(struct tt_member *to, uint8_t type, const struct tt_member *of, const void *more, size_t len)
{
	const uint32_t words[] = { tt_member_number(of), of->epoch };

	tt_send_words(to, type, words, 2, more, len);
}

static void say_left(struct tt_member *to, const struct tt_member *left)
{
	say_of(to, TT_FAREWELL, left, left->bye, left->bye_len);
}

static void tell(struct tt_member *to, const struct tt_member *gone)
{
	unsigned telling = tt_members(to->job)->tellings;

	if (to->telling == telling)
		return;
	to->telling = telling;
	if (gone->state == TT_LEFT)
		say_left(to, gone);
	else
		say_down(to, gone, gone->silent ? -ETIMEDOUT : gone->err, gone->why);
}

/* The nearest rank that is there at a distance of at least 2^k, up or down. Powers of two make all paths short; the
 * nearest rank on either side makes a ring of all that are left. */
struct tt_member *tt_news_finger(struct tt_job *job, int i)
{
	for (int d = 1 << i / 2; d < job->size; d++) {
		int rank = (job->rank + (i % 2 ? d : job->size - d)) % job->size;
		struct tt_member *m = tt_member(job, rank);
		if (tt_member_is_there(job, rank) && (m->link || *m->addr)) /* a new number may have no process yet */
			return m;
	}
	return NULL;
}

/* A finger replaces one that has gone, which may not have passed on all that it had heard. What had gone before this
 * rank joined late is news to nobody; without an epoch it would be taken for a life that has begun since. */
static void feed(struct tt_member *to)
{
	struct tt_job *job = to->job;
	bool late = tt_members(job)->late;

	for (int i = 0; i < job->size; i++) {
		const struct tt_member *gone = tt_member(job, i);
		if (gone->state != TT_GONE || gone->untold || gone->quiet || (late && !gone->epoch))
			continue;
		tt_members(job)->tellings++;
		tell(to, gone);
	}
	to->fed = true;
}

static void tell_fingers(struct tt_job *job, const struct tt_member *gone)
{
	struct tt_member *m;

	for (int i = 0; gone && 1 << i / 2 < job->size; i++)
		if ((m = tt_news_finger(job, i)) && (m->fed || gone->state == TT_LEFT))
			tell(m, gone);
	for (int i = 0; 1 << i / 2 < job->size; i++)
		if ((m = tt_news_finger(job, i)) && !m->fed)
			feed(m);
}

void tt_news_mend(struct tt_job *job)
{
	if (tt_members(job)->tellings)
		tell_fingers(job, NULL);
}

/* Connected ranks hear it from here, the others through the fingers. */
static void tell_all(struct tt_member *gone)
{
	struct tt_job *job = gone->job;

	tt_members(job)->tellings++;
	gone->untold = false;
	tt_each_link(l, job)
		if (l->member && l->member->link == l && tt_member_linked(l->member))
			tell(l->member, gone);
	tell_fingers(job, gone);
	job->engine.news = true;
}

static void tell_now(struct tt_timer *t) { tell_all(tt_container_of(t, struct tt_member, retry)); }

/* A broken connection may mean that this rank was evicted: with a moment's grace the others hear of that first, and no
 * longer listen to this rank. Where the path between two ranks breaks, both accuse each other: of a broken connection
 * at once, of silence up to a heartbeat apart. So the higher rank waits for so much longer, and a rank that was
 * told of its eviction waits longest. Otherwise some ranks would believe the one and some the other, and both would be
 * lost. */
static uint64_t grace(const struct tt_member *gone)
{
	uint64_t moment = tt_time(gone->job, TT_TIME_GRACE);
	uint64_t apart = tt_time(gone->job, TT_TIME_HEARTBEAT) + tt_time(gone->job, TT_TIME_LOOK);

	if (gone->accuser)
		return apart + 2 * moment;
	if (gone->silent)
		return apart + moment;
	return tt_comes_after(gone) ? moment : 2 * moment;
}

void tt_news_tell(struct tt_member *gone)
{
	struct tt_job *job = gone->job;

	if (gone->untold)
		tt_timer_start(job, &gone->retry, tt_now() + grace(gone), tell_now);
	else
		tell_all(gone);
}

/* Not at each goodbye: at the end of a job all ranks leave. */
void tt_news_farewell(struct tt_member *left)
{
	if (left->state != TT_LEFT || left->passed_on || !left->bye || left->job->leaving)
		return;
	left->passed_on = left->untold = true;
	tt_timer_start(left->job, &left->retry, tt_now(), tell_now); /* not now: the caller may be posting */
}

/* Whose news have not come yet. They would bring it to life after its end. */
static void know_later_life(struct tt_member *m, uint32_t epoch)
{
	if (m->rank == m->job->rank || !m->epoch || !epoch || !tt_before(m->epoch, epoch))
		return;
	tt_member_reborn(m, epoch);
	if (m->job->joined)
		tt_watch_tell(m->job, m, TUTTI_JOINED);
}

/* A connected rank hears the goodbye itself, behind all else that was sent; so does one that waits for rank 0's
 * table. */
void tt_news_take_farewell(struct tt_member *from, struct tt_pack *p)
{
	struct tt_job *job = from->job;
	uint32_t rank = tt_take_number(job, p), epoch = tt_get32(p);
	struct tt_pack list;

	p->bad |= !epoch;
	if (!tt_member_take_bye(p, &list) || rank >= (uint32_t)job->size || rank == (uint32_t)job->rank)
		return;
	struct tt_member *m = tt_member(job, rank);
	know_later_life(m, epoch);
	if (!tt_member_epoch(m, epoch) || m->state == TT_UP || m->state == TT_PARTING ||
	    (rank == (uint32_t)tt_members(job)->sponsor && tt_is_joining(job)))
		return;
	tt_member_left(m, &list);
	tt_news_farewell(m);
}

/* A rank that has heard its goodbye has done so before it stopped listening. */
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
	uint32_t rank = tt_take_number(from->job, p), epoch = tt_get32(p);
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

/* Also to `tutti run`, which ends a process whose program does not notice, and to `tutti doctor`, which asks. */
static void say_evicted(struct tt_job *job, const char *why)
{
	if (tt_members(job)->evicted)
		return;
	tt_members(job)->evicted = tt_text_keep(job, why);
	tt_log(TT_WARN, "the other ranks go on without this one: %s", why);
	tt_member_tell_run(job, TT_SAYS_EVICTED, why);
}

void tt_news_take_down(struct tt_member *from, struct tt_pack *p)
{
	struct tt_job *job = from->job;
	uint32_t rank = tt_take_number(job, p), epoch = tt_get32(p), err = tt_get32(p);
	char why[256]; /* any text: one that is too long says nothing against its sender */

	tt_get_text(p, why, sizeof why);
	p->bad |= err == 0 || err > 4095;
	if (p->bad || rank >= (uint32_t)job->size)
		return;
	struct tt_member *m = tt_member(job, rank);
	know_later_life(m, epoch);
	if (epoch && !tt_member_epoch(m, epoch))
		return; /* of another life of it */
	if (rank == (uint32_t)job->rank) { /* the others go on without this rank */
		say_evicted(job, why);
		from->untold = from->accuser = true;
		tt_member_gone(from, -ECONNRESET, "this process was evicted, says %s: %s",
		               tt_member_label(from).text, why);
	} else if (m->state != TT_LEFT) {
		tt_member_expel(m, -(int)err, why);
	} else { /* others may lack its part; it may still finish operations of this rank */
		tt_group_seats_out(m, NULL);
		tt_tell_unseated(m);
	}
}

enum { BEHIND = 3, BEHIND_MAX = 16 + 1 + TT_DOING }; /* late ranks in a PING or PONG, and the bytes of one */

static const char unreached[] = "it could not be reached so far: does it run?";

/* A node of a list that has not started cannot say how far it has come. */
static bool is_unreached(const struct tt_member *m) { return m->state == TT_CONNECTING && m->tries; }

static bool is_lately(const struct tt_job *job, uint64_t at) { return tt_now() - at < 2 * job->silence; }

/* It has begun fewer collectives of the group than this rank, as far as this rank has heard lately. */
static bool is_behind(const struct tt_member *m, const struct tutti *g)
{
	bool heard = m->started_in == g->uid && is_lately(g->job, m->heard);

	return m->rank != g->job->rank && m->state < TT_LEFT &&
	       (is_unreached(m) || (heard && tt_before(m->started, g->started)));
}

/* This rank has told others lately that it is behind: nobody else may tell them that this is over. */
static bool has_caught_up(const struct tt_member *m, const struct tutti *g)
{
	return m->told_in == g->uid && is_lately(g->job, m->told) && m->state < TT_LEFT && m->started_in == g->uid &&
	       !is_behind(m, g) && !tt_before(m->started, g->started);
}

/* Older by a look at each rank that passes it on: so nothing goes round for ever. */
static uint64_t age_of(const struct tt_member *m)
{
	uint64_t age = is_unreached(m) ? 0 : tt_now() - m->heard;

	return tt_min((age + tt_time(m->job, TT_TIME_LOOK)) / TT_MS, UINT32_MAX);
}

static void put_one_behind(struct tt_pack *p, const struct tt_member *m, const struct tutti *g)
{
	tt_put32(p, tt_member_number(m));
	tt_put32(p, m->epoch);
	tt_put32(p, is_unreached(m) ? g->started - (1u << 30) : m->started);
	tt_put32(p, (uint32_t)age_of(m));
	tt_put_text(p, is_unreached(m) ? unreached : m->doing ? m->doing : "");
}

/* The ranks of the group that this one knows to be late; and those that it has told to be late, and that are not. */
static void put_behind(struct tt_pack *p, const struct tutti *g)
{
	uint8_t *count = p->at, n = 0;

	tt_put8(p, 0);
	for (int i = 0; g && i < g->n && n < BEHIND; i++) {
		struct tt_member *m = tt_group_member(g, i);
		if (is_behind(m, g)) {
			put_one_behind(p, m, g);
			m->told_in = g->uid;
			m->told = tt_now();
			n++;
		}
	}
	for (int i = 0; g && i < g->n && n < BEHIND; i++)
		if (has_caught_up(tt_group_member(g, i), g)) {
			put_one_behind(p, tt_group_member(g, i), g);
			n++;
		}
	*count = n;
}

/* PING and PONG carry how far the sender has come in a group, which tells a late rank from those that wait for it, what
 * its program does, and which ranks it knows to be late: few ranks are connected to those. A heartbeat has group 0,
 * which is none. */
static void say_alive(struct tt_member *to, uint8_t type, uint32_t uid)
{
	const struct tutti *g = uid ? tt_group_named(to->job, uid) : NULL;
	const uint32_t words[] = { uid, g ? g->started : 0 };
	uint8_t bytes[TT_DOING + 1 + BEHIND * BEHIND_MAX];
	struct tt_pack p = tt_pack(bytes, sizeof bytes);
	char text[TT_DOING] = "";

	if (uid)
		tt_each_module(m, to->job, doing)
			m->doing(to->job, text, sizeof text);
	tt_put_text(&p, text);
	if (uid)
		put_behind(&p, g);
	tt_send_words(to, type, words, 2, bytes, (size_t)(p.at - bytes));
}

static void keep_life(struct tt_member *m, uint32_t uid, uint32_t started, uint64_t heard, const char *doing)
{
	m->started_in = uid;
	m->started = started;
	m->heard = heard;
	free(m->doing);
	m->doing = strdup(doing); /* NULL: not known */
}

/* What the member has said itself, or what is newer, stays. */
static bool is_news_of(const struct tt_member *m, uint32_t uid, uint32_t started, uint64_t heard)
{
	if (m->started_in != uid)
		return heard > m->heard;
	return tt_before(m->started, started) || (m->started == started && heard > m->heard);
}

static void take_one_behind(struct tt_job *job, uint32_t uid, struct tt_pack *p)
{
	uint32_t rank = tt_take_number(job, p), epoch = tt_get32(p), started = tt_get32(p);
	uint64_t now = tt_now(), age = tt_get32(p) * TT_MS;
	char doing[TT_DOING];

	tt_get_text(p, doing, sizeof doing);
	if (p->bad || rank >= (uint32_t)job->size || rank == (uint32_t)job->rank || age >= now)
		return;
	struct tt_member *m = tt_member(job, rank);
	if (m->state < TT_LEFT && m->epoch == epoch && is_news_of(m, uid, started, now - age))
		keep_life(m, uid, started, now - age, doing);
}

static void take_group_life(struct tt_member *from, uint32_t uid, uint32_t started, struct tt_pack *p)
{
	char doing[TT_DOING];
	uint8_t n;

	tt_get_text(p, doing, sizeof doing);
	n = tt_get8(p);
	p->bad |= n > BEHIND;
	if (!p->bad)
		keep_life(from, uid, started, tt_now(), doing);
	for (; !p->bad && n; n--)
		take_one_behind(from->job, uid, p);
}

static void take_life(struct tt_member *from, struct tt_pack *p, bool answer)
{
	uint32_t uid = tt_get32(p), started = tt_get32(p);

	if (!p->bad && uid)
		take_group_life(from, uid, started, p);
	if (p->bad)
		return;
	if (answer)
		say_alive(from, TT_PONG, uid);
	else
		tt_heartbeat_answered(from->link);
}

void tt_member_take_ping(struct tt_member *from, struct tt_pack *p) { take_life(from, p, true); }
void tt_member_take_pong(struct tt_member *from, struct tt_pack *p) { take_life(from, p, false); }
void tt_member_ping(struct tt_member *m) { say_alive(m, TT_PING, 0); }

void tt_member_ping_for(struct tt_member *m, uint32_t uid)
{
	if (m->link && m->state == TT_UP)
		tt_heartbeat_asked(m->link);
	tt_stats_count(&m->stats, TUTTI_STAT_PING, 0);
	say_alive(m, TT_PING, uid);
}

void tt_member_expel(struct tt_member *m, int err, const char *why)
{
	struct tt_link *l = m->state == TT_UP && err != -ETIMEDOUT ? m->link : NULL;

	if (l) {
		say_down(m, m, err, why);
		tt_link_part(l);
		m->link = NULL;
	}
	tt_member_gone(m, err, "%s", why);
}

void tt_member_evict(struct tt_member *m, int err, const char *fmt, ...)
{
	char why[200];
	va_list args;

	va_start(args, fmt);
	vsnprintf(why, sizeof why, fmt, args);
	va_end(args);
	tt_stats_count(&m->stats, TUTTI_STAT_EVICTED, 0);
	if (m->state == TT_UP)
		say_down(m, m, err, why); /* the last message on the connection */
	m->untold |= !tt_comes_after(m);
	tt_member_gone(m, err, "%s", why);
	tt_peer_settle(m->job);
}
