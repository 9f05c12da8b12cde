/* life.c - the lives of a member: epochs tell them apart; a life ends with a goodbye (left) or without one (gone) */
#include "engine/engine.h"
#include "member/member_private.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- why it ended ---- */

static const char no_memory[] = "there was no memory to say why";

static void forget_why(struct tt_member *m)
{
	if (m->why != no_memory && *m->why)
		free((char *)(uintptr_t)m->why);
	m->why = "";
}

void tt_member_free(struct tt_member *m)
{
	forget_why(m);
	free(m->doing);
	free(m->bye);
	free(m->why_not);
	m->doing = NULL;
	m->bye = NULL;
	m->why_not = NULL;
}

static void set_why(struct tt_member *m, const char *fmt, va_list args)
{
	char text[200], *copy;

	vsnprintf(text, sizeof text, fmt, args); /* the arguments may contain the old one */
	copy = *text ? strdup(text) : NULL;
	forget_why(m);
	m->why = copy ? copy : no_memory;
}

static void say_why(struct tt_member *m, const char *fmt, ...) TT_FORMAT(2, 3);
static void say_why(struct tt_member *m, const char *fmt, ...)
{
	va_list args;

	va_start(args, fmt);
	set_why(m, fmt, args);
	va_end(args);
}

/* All others have left, and nobody is there who could say whether this one has, too. */
bool tt_member_is_last(const struct tt_member *m)
{
	bool some_left = false;

	for (int i = 0; i < m->job->size; i++) {
		some_left |= tt_member(m->job, i)->state == TT_LEFT;
		if (i != m->rank && tt_member_is_there(m->job, i))
			return false;
	}
	return some_left;
}

static void give_up(struct tt_timer *t)
{
	struct tt_member *m = tt_container_of(t, struct tt_member, retry);

	if ((m->err == -ECONNRESET || m->err == -EHOSTUNREACH) && tt_member_is_last(m)) {
		tt_member_left(m, NULL);
		return;
	}
	m->untold = m->err == -ECONNRESET; /* it was there, and disconnected */
	tt_member_gone(m, m->err, "%s", m->why);
}

void tt_member_fail_soon(struct tt_member *m, uint64_t wait, int err, const char *fmt, ...)
{
	va_list args;

	if (m->state >= TT_LEFT)
		return;
	va_start(args, fmt);
	set_why(m, fmt, args);
	va_end(args);
	m->err = err;
	tt_timer_start(m->job, &m->retry, tt_now() + wait, give_up);
}

/* ---- epochs ---- */

bool tt_member_epoch(struct tt_member *m, uint32_t epoch)
{
	if (!m->epoch) {
		tt_group_epoch(m, epoch);
		m->epoch = epoch;
	}
	return m->epoch == epoch;
}

void tt_member_reborn(struct tt_member *m, uint32_t epoch)
{
	m->returned |= m->epoch && tt_members(m->job)->node_list && !tt_members(m->job)->own_list;
	tt_member_gone(m, -ECONNRESET, "%s has started anew", tt_member_label(m).text);
	tt_timer_stop(&m->retry);
	m->untold = m->silent = m->accuser = m->passed_on = m->fed = false;
	m->sponsored = m->quiet = false;
	m->settled = true; /* its sponsor sends the table, and rank 0 does not */
	m->link = NULL; /* doomed already */
	m->state = TT_AWAY;
	m->epoch = epoch;
	m->err = 0;
	tt_member_free(m);
	m->patience = 0;
	m->failed_ways = 0;
	m->tries = m->telling = 0;
	m->started = m->started_in = 0;
	m->heard = 0;
	m->unreached = 0;
	if (m->rank >= tt_members(m->job)->launched) /* another process has the number now */
		tt_stats_retire(&m->job->stats, &m->stats);
	tt_member_forget_where(m);
	if (!tt_members(m->job)->node_list) { /* the new address comes with its endpoint record */
		tt_address_set(m, "");
		tt_members(m->job)->endpoints_known -= m->host && m->rank < tt_members(m->job)->endpoints;
		m->host = 0;
	}
	tt_each_module(module, m->job, reborn)
		module->reborn(m);
}

/* ---- what the modules are told ---- */

void tt_tell_up(struct tt_member *m)
{
	tt_each_module(module, m->job, up)
		module->up(m);
}

void tt_tell_unseated(struct tt_member *m)
{
	tt_each_module(module, m->job, unseated)
		module->unseated(m);
}

static void member_ended(struct tt_member *m)
{
	tt_fail_waiting(m, m->err);
	tt_each_module(module, m->job, ended)
		module->ended(m);
	tt_agree_member_down(m);
	tt_form_member_down(m);
	m->job->engine.news = true; /* threads that wait for its notifies look again */
}

/* ---- ends ---- */

void tt_member_gone(struct tt_member *m, int err, const char *fmt, ...)
{
	va_list args;

	if (m->state == TT_GONE)
		return;
	if (m->link) /* not if it answers, but was evicted for something else */
		m->link->peer->frozen = err == -ETIMEDOUT && tt_heartbeat_is_frozen(m->link);
	m->untold &= m->state < TT_LEFT && m->job->joined && !m->job->leaving; /* else nobody is told */
	if (m->state == TT_LEFT && !m->job->leaving) { /* ends the ops that it still holds */
		if (m->link)
			tt_link_doom(m->link);
		return;
	}
	tt_timer_stop(&m->retry);
	m->patience = tt_now() + tt_time(m->job, TT_TIME_FAREWELL);
	if (m->state != TT_LEFT) {
		va_start(args, fmt);
		set_why(m, fmt, args);
		va_end(args);
		tt_log(m->sought ? TT_DEBUG : TT_INFO, "%s", m->why);
		if (!m->job->leaving && !m->sought) /* then all ranks go */
			tt_stats_count(&m->stats, TUTTI_STAT_GONE, 0);
		m->silent = err == -ETIMEDOUT;
		bool sponsor = !m->job->joined && m->rank == tt_members(m->job)->sponsor;
		bool as_is = err == -ENOTCONN || sponsor; /* tutti_join returns the cause */
		m->err = as_is ? err : -ECONNRESET;
	}
	if (m->state != TT_LEFT)
		tt_group_seats_out(m, NULL);
	m->state = TT_GONE;
	if (m->link)
		tt_link_doom(m->link);
	member_ended(m);
	tt_rendezvous_gone(m);
	if (m->job->joined && !m->job->leaving && !m->sought) { /* else all of them know */
		tt_watch_tell(m->job, m, TUTTI_GONE);
		if (!m->quiet)
			tt_news_tell(m);
		if (m->rank == 0)
			tt_late_join_without_root(m->job);
	}
}

/* For ranks that are not connected to it. */
static void keep_bye(struct tt_member *m, const struct tt_pack *bye)
{
	size_t len = tt_pack_left(bye);

	m->bye = malloc(len);
	if (m->bye)
		memcpy(m->bye, bye->at, m->bye_len = len);
}

void tt_member_left(struct tt_member *m, const struct tt_pack *bye)
{
	if (m->state >= TT_LEFT)
		return;
	tt_timer_stop(&m->retry);
	m->state = TT_LEFT;
	m->patience = tt_now() + tt_time(m->job, TT_TIME_FAREWELL);
	m->err = -ENOTCONN;
	say_why(m, "%s has left the job", tt_member_label(m).text);
	if (m->link && !m->outstanding)
		tt_link_doom(m->link);
	if (bye) {
		struct tt_pack size = *bye; /* a number that it has consented to is taken, although it counts no more */
		tt_late_join_grow(m->job, (int)tt_min(tt_get32(&size), tt_members(m->job)->capacity));
		keep_bye(m, bye);
		tt_group_seats_out(m, bye);
	}
	member_ended(m);
	if (m->job->joined && !m->job->leaving && !m->sought) {
		tt_watch_tell(m->job, m, TUTTI_LEFT);
		tt_news_mend(m->job);
	}
}

bool tt_member_take_bye(struct tt_pack *p, struct tt_pack *list)
{
	unsigned n;

	*list = *p;
	tt_get32(p);
	n = tt_get16(p);
	p->bad |= n > TT_BYE_GROUPS;
	tt_pack_take(p, 9 * (size_t)n);
	list->end = p->at;
	return !p->bad;
}

void tt_take_bye(struct tt_member *m, struct tt_pack *p)
{
	struct tt_pack list;

	if (tt_member_take_bye(p, &list))
		tt_member_left(m, &list);
}
