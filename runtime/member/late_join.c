/* late_join.c - ranks that join a job under way: one that was started again under its old rank, or a new one
 *
 * They come in at any rank, their sponsor, once most ranks consent (sponsor.c). The sponsor sends the newcomer the
 * table of endpoint records. News of the newcomer spread as news of a death do (news.c): a rank that hears them first
 * passes them on.
 *
 *      newcomer -- HELLO, joining --> sponsor         newcomer <-- WELCOME, LATE, ENDPOINTS -- sponsor
 *      newcomer -- ENDPOINT --------> sponsor         some others <-- NEWS {rank, record} ---- sponsor
 *
 * From then on the newcomer can use all windows. It is in no group until one lets it in: agreement.c.
 */
#include "engine/engine.h"
#include "member/member_private.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NAMED = 8 }; /* addresses in a line of the log */

void tt_late_join_grow(struct tt_job *job, int size)
{
	for (; job->size < size; job->size++) {
		struct tt_member *m = tt_member(job, job->size);
		m->job = job;
		m->rank = job->size;
		m->addr = m->why = "";
		m->settled = m->rank >= tt_members(job)->launched; /* its sponsor sends the table */
	}
}

/* Until now this process guessed how many there may be, and nobody but itself may have a place there. */
bool tt_late_join_make_room(struct tt_job *job, int newcomers)
{
	struct tt_members *all = tt_members(job);
	int capacity = all->launched + (int)tt_max(newcomers, all->unnumbered);
	struct tt_member *more;

	if (capacity == all->capacity || job->size > all->launched)
		return true;
	more = calloc((size_t)(capacity - all->launched) + 1, sizeof *more);
	if (!more || tt_group_widen(all->whole, tt_min(capacity, all->capacity), capacity)) {
		free(more);
		return false;
	}
	if (all->unnumbered) {
		more[capacity - 1 - all->launched] = *tt_member(job, job->rank);
		job->rank = capacity - 1;
	}
	free(all->more);
	all->more = more;
	all->capacity = capacity;
	return true;
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
	atomic_store(&job->speaker.rank, rank);
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
	const uint32_t words[] = { (uint32_t)job->size, tt_sponsor_voters(job) };

	tt_send_words(m, TT_LATE, words, 2, NULL, 0);
	tt_tree_send_to(m);
	spread_news(m);
	for (int i = 0; i < job->size; i++) { /* earlier newcomers may not be known to all that spread the news */
		struct tt_member *to = tt_member(job, i);
		if (to != m && to->outside && to->state < TT_LEFT)
			say_news(to, m);
	}
	m->outside = true;
	tt_watch_tell(job, m, TUTTI_JOINED);
}

/* For who starts newcomers, a person or `tutti run`: rank 0's address, which names the job, and those of other ranks.
 * All of them fit in what `tutti run` takes. */
void tt_late_join_say_where(const struct tt_job *job, enum tt_level level)
{
	const struct tt_members *all = tt_members(job);
	char list[sizeof ((struct tt_saying *)0)->text], addr[96];
	size_t len;
	int n = 0;

	if (!all->root || all->node_list)
		return;
	len = (size_t)snprintf(list, sizeof list, "%s", all->root);
	for (int i = 1; i < job->size && n < NAMED && len + sizeof addr < sizeof list; i++) {
		const struct tt_member *m = tt_member(job, i);
		if (m->state >= TT_LEFT || !tt_address_find(m->addr, all->over, addr))
			continue;
		len += (size_t)sprintf(list + len, ",%s", addr + strlen(all->over) + 1);
		n++;
	}
	if (!n)
		return;
	tt_log(level, "newcomers find this job by TUTTI_BOOT=%s", list);
	tt_member_tell_run(job, TT_SAYS_BOOT, list);
}

/* The lowest rank that is left says how they come in from now on. */
void tt_late_join_without_root(const struct tt_job *job)
{
	for (int i = 0; i < job->rank; i++)
		if (tt_member(job, i)->state < TT_LEFT)
			return;
	if (!tt_sponsor_has_most(job))
		return;
	tt_late_join_say_where(job, TT_WARN);
}

void tt_late_join_told(struct tt_member *from, struct tt_pack *p)
{
	struct tt_job *job = from->job;
	struct tt_members *all = tt_members(job);
	uint32_t size = tt_get32(p), voters = tt_get32(p);

	p->bad |= from->rank != all->sponsor || job->joined;
	p->bad |= size <= (uint32_t)job->rank || size < (uint32_t)all->launched || size > (uint32_t)all->capacity;
	if (p->bad)
		return;
	all->late = true;
	all->voters = voters;
	tt_late_join_grow(job, (int)size); /* perhaps a rank that has come since was heard of already */
	all->endpoints = (int)size;
	all->endpoints_known = 0;
	for (int i = 0; i < all->endpoints; i++)
		all->endpoints_known += tt_member(job, i)->host != 0;
}

/* Two newcomers that came in at two ranks at once are in no table but their own. */
static void tell_sponsored(const struct tt_member *of)
{
	for (int i = 0; i < of->job->size; i++) {
		struct tt_member *to = tt_member(of->job, i);
		if (to != of && to->sponsored && to->outside && to->state < TT_LEFT)
			say_news(to, of);
	}
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
	tell_sponsored(m);
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

int tutti_late(const tutti *group)
{
	return group && !group->job->left ? tt_members(group->job)->late : tt_refuse_job(tt_job_of(group));
}
