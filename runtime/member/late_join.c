/* late_join.c - ranks that join a job under way: one that was started again under its old rank, or a new one
 *
 * They come in at rank 0, which gives new ones the next number. It sends them the table of all, and the news the way that
 * news of a death go (news.c): who hears it first passes it on.
 *
 *      newcomer -- HELLO, joining --> rank 0          newcomer <-- WELCOME, LATE, TABLE -- rank 0
 *      newcomer -- CARD ------------> rank 0          some others <-- NEWS {rank, card} -- rank 0
 *
 * From then on it can use everyone's windows. It is in no group until those in one let it in: agreement.c.
 */
#include "engine/engine.h"
#include "member/member_private.h"
#include <string.h>

/* Ranks up to there are known from now on; nobody is more than the room that was made when the job began. */
void tt_late_join_grow(struct tt_job *job, int size)
{
	for (; job->size < size; job->size++) {
		struct tt_member *m = tt_member(job, job->size);
		m->job = job;
		m->rank = job->size;
		m->addr = m->why = "";
	}
}

struct tt_member *tt_late_join_number(struct tt_job *job)
{
	if (job->rank != 0 || !job->joined || job->size == tt_members(job)->capacity)
		return NULL;
	tt_late_join_grow(job, job->size + 1);
	return tt_member(job, job->size - 1);
}

/* Mine: until now I stood at the end of the room, which may be my place. */
void tt_late_join_take_number(struct tt_job *job, int rank)
{
	struct tt_member *to = tt_member(job, rank), me = *tt_member(job, job->rank);

	memset(tt_member(job, job->rank), 0, sizeof me);
	tt_late_join_grow(job, rank + 1);
	to->host = me.host;
	to->cpus = me.cpus;
	to->addr = me.addr;
	to->epoch = me.epoch;
	job->rank = rank;
	tt_members(job)->unnumbered = false;
}

static void say_news(struct tt_member *to, const struct tt_member *of)
{
	uint8_t bytes[5 + TT_ENDPOINT_MAX];
	struct tt_pack p = tt_pack(bytes, sizeof bytes);

	tt_put8(&p, TT_NEWS);
	tt_put32(&p, (uint32_t)of->rank);
	tt_endpoint_put(&p, of);
	tt_send(to, bytes, (size_t)(p.at - bytes), NULL, 0);
}

static void spread_news(const struct tt_member *of)
{
	struct tt_job *job = of->job;

	for (int i = 0; 1 << i / 2 < job->size; i++) {
		struct tt_member *to = tt_news_finger(job, i);
		if (to && to != of)
			say_news(to, of);
	}
}

/* It has been welcomed, and its card is in. */
void tt_late_join_admit(struct tt_member *m)
{
	struct tt_job *job = m->job;
	uint8_t bytes[5];
	struct tt_pack p = tt_pack(bytes, sizeof bytes);

	tt_put8(&p, TT_LATE);
	tt_put32(&p, (uint32_t)job->size);
	tt_send(m, bytes, sizeof bytes, NULL, 0);
	tt_tree_send_to(m);
	spread_news(m);
	for (int i = 1; i < job->size; i++) /* of these not all others may have heard */
		if (i != m->rank && tt_member(job, i)->outside && tt_member(job, i)->state < TT_LEFT)
			say_news(tt_member(job, i), m);
	m->outside = true;
	tt_watch_tell(job, m, TUTTI_JOINED);
}

void tt_late_join_told(struct tt_member *from, struct tt_pack *p)
{
	struct tt_job *job = from->job;
	uint32_t size = tt_get32(p);

	p->bad |= from->rank != 0 || job->joined || size < (uint32_t)job->size || size > (uint32_t)tt_members(job)->capacity;
	if (p->bad)
		return;
	tt_members(job)->late = true;
	tt_late_join_grow(job, (int)size);
}

/* Whoever let it in may have been faster than the news. */
static bool is_seated(const struct tt_member *m)
{
	tt_list_each(node, &tt_members(m->job)->groups) {
		const struct tutti *g = tt_container_of(node, struct tutti, link);
		if (g->lineage && tt_group_find(g, m))
			return true;
	}
	return false;
}

void tt_late_join_news(struct tt_member *from, struct tt_pack *p)
{
	struct tt_job *job = from->job;
	uint32_t rank = tt_get32(p), epoch;
	struct tt_pack card = *p;
	struct tt_member *m;

	tt_get64(&card);
	epoch = tt_get32(&card);
	p->bad |= card.bad || rank >= (uint32_t)tt_members(job)->capacity || !epoch;
	if (p->bad || rank == (uint32_t)job->rank)
		return;
	tt_late_join_grow(job, (int)rank + 1);
	m = tt_member(job, rank);
	if (tt_is_new_life(m, epoch))
		tt_member_reborn(m, epoch);
	if (m->state >= TT_LEFT || (m->epoch && (m->epoch != epoch || *m->addr)))
		return; /* no news, or of an earlier life */
	tt_endpoint_take(p, m);
	if (p->bad || !*m->addr)
		return;
	m->outside = !is_seated(m);
	if (m->waiting.head)
		tt_member_connect(m);
	tt_tell_up(m);
	spread_news(m);
	if (job->joined)
		tt_watch_tell(job, m, TUTTI_JOINED);
}

/* The group of all is not mine: alone, until I am let into one. */
int tt_late_join_settle(struct tt_job *job)
{
	int err;

	if (!tt_members(job)->late)
		return 0;
	tt_group_free(tt_members(job)->all);
	if ((err = tt_group_new(job, 1, &tt_members(job)->all)))
		return err;
	tt_members(job)->all->uid = job->epoch;
	tt_group_seat(tt_members(job)->all, 0, job->rank, job->epoch, tt_members(job)->all->slot);
	return 0;
}

int tutti_late(const tutti *group) { return tt_members(group->job)->late; }
