/* late_join.c - ranks that join a job under way: one that was started again under its old rank, or a new one
 *
 * They come in at rank 0, which gives a new rank the next number. Rank 0 sends the newcomer the table of endpoint
 * records. News of the newcomer spread as news of a death do (news.c): a rank that hears them first passes them on.
 *
 *      newcomer -- HELLO, joining --> rank 0          newcomer <-- WELCOME, LATE, ENDPOINTS -- rank 0
 *      newcomer -- ENDPOINT --------> rank 0          some others <-- NEWS {rank, record} ---- rank 0
 *
 * From then on the newcomer can use all windows. It is in no group until one lets it in: agreement.c.
 */
#include "engine/engine.h"
#include "member/member_private.h"
#include <string.h>

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

/* Until now this rank used the last of `capacity` places, which may be its own. */
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
	struct tt_member *to;

	for (int i = 0; 1 << i / 2 < job->size; i++)
		if ((to = tt_news_finger(job, i)) && to != of)
			say_news(to, of);
}

void tt_late_join_admit(struct tt_member *m)
{
	struct tt_job *job = m->job;
	const uint32_t size = (uint32_t)job->size;

	tt_send_words(m, TT_LATE, &size, 1, NULL, 0);
	tt_tree_send_to(m);
	spread_news(m);
	for (int i = 1; i < job->size; i++) { /* earlier newcomers may not be known to all that spread the news */
		struct tt_member *to = tt_member(job, i);
		if (to != m && to->outside && to->state < TT_LEFT)
			say_news(to, m);
	}
	m->outside = true;
	tt_watch_tell(job, m, TUTTI_JOINED);
}

void tt_late_join_told(struct tt_member *from, struct tt_pack *p)
{
	struct tt_job *job = from->job;
	struct tt_members *all = tt_members(job);
	uint32_t size = tt_get32(p);

	p->bad |= from->rank != 0 || job->joined || size < (uint32_t)job->size || size > (uint32_t)all->capacity;
	if (p->bad)
		return;
	all->late = true;
	tt_late_join_grow(job, (int)size);
}

static bool is_seated(const struct tt_member *m)
{
	tt_each_group(g, m->job)
		if (g->lineage && tt_group_find(g, m))
			return true; /* the group grew before the news came */
	return false;
}

void tt_late_join_news(struct tt_member *from, struct tt_pack *p)
{
	struct tt_job *job = from->job;
	uint32_t rank = tt_get32(p), epoch;
	struct tt_pack record = *p;
	struct tt_member *m;

	tt_get64(&record);
	epoch = tt_get32(&record);
	p->bad |= record.bad || rank >= (uint32_t)tt_members(job)->capacity || !epoch;
	if (p->bad || rank == (uint32_t)job->rank)
		return;
	tt_late_join_grow(job, (int)rank + 1);
	m = tt_member(job, rank);
	if (tt_is_new_life(m, epoch))
		tt_member_reborn(m, epoch);
	if (m->state >= TT_LEFT || (m->epoch && (m->epoch != epoch || *m->addr)))
		return; /* known already, or of an earlier life */
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

/* A late joiner is not in the group of all, and names only the job with it: its own group is itself alone, until one
 * grows. */
static void give_up_seat(struct tutti *g)
{
	tt_members(g->job)->group_at[g->slot] = NULL; /* what others send there is for the rank's earlier life */
	g->uid = 0;
	g->lineage = false;
	g->me = g->job->rank;
}

int tt_late_join_settle(struct tt_job *job)
{
	struct tt_members *all = tt_members(job);
	int err;

	if (!all->late)
		return 0;
	give_up_seat(all->whole);
	if ((err = tt_group_new(job, 1, &all->all)))
		return err;
	all->all->uid = job->epoch;
	tt_group_seat(all->all, 0, job->rank, job->epoch, all->all->slot);
	return 0;
}

int tutti_late(const tutti *group) { return group ? tt_members(group->job)->late : tt_refuse_job(NULL); }
