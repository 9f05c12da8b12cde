/* greeting.c - the first messages on a connection: each side learns which rank, and which life of it, the other one is
 *
 * The rank that connects sends HELLO; the other answers WELCOME, and both post on that connection. If both connect at
 * once, the lower rank's connection wins: that rank answers BUSY on the other one, which its maker then drops.
 *
 * Before HELLO a rank with a node list may ask WHERE else the other one listens, and connect there instead.
 *
 *      rank 1 -- HELLO 1 --> rank 4          rank 4 -- HELLO 4 --> rank 1     (at the same time)
 *      rank 1 <-- WELCOME -- rank 4          rank 4 <---- BUSY --- rank 1
 *
 * An epoch tells a rank's lives apart. It is in the greetings and in every frame; a later life ends the earlier one.
 */
#include "engine/engine.h"
#include "member/member_private.h"
#include <stdio.h>

enum { NEWCOMERS_MAX = 65535 };

/* The other side has proven that it knows the secret, and then falls silent. */
static void end_silent(struct tt_timer *t)
{
	struct tt_link *l = tt_container_of(t, struct tt_link, patience);
	struct tt_member *m = l->member;

	if (m && m->link == l && m->state == TT_CONNECTING && !m->job->joined &&
	    tt_rendezvous_retry(m, m->job->timeout))
		m->link = NULL;
	else if (m && m->link == l && m->state == TT_CONNECTING)
		tt_member_gone(m, -ETIMEDOUT, "%s was evicted: it did not answer a greeting within %llu ms",
		               tt_member_label(m).text, (unsigned long long)(l->job->silence / TT_MS));
	tt_link_doom(l);
}

/* A process that rank 0 probes, and that says nothing, is not to hold the whole start up. */
static uint64_t time_to_answer(const struct tt_link *l)
{
	return l->probe ? tt_time(l->job, TT_TIME_NET) : l->job->silence;
}

/* News may send a newcomer to other ranks than its sponsor before the table is there: one that is in no group would
 * refuse it if it asked to be let in, and be taken for dead. */
void tt_greeting_start(struct tt_link *l)
{
	uint8_t bytes[24 + TT_JOB_NAME + 3 + TT_AGREED + sizeof(struct tt_node)];
	struct tt_pack p = tt_pack(bytes, sizeof bytes);
	const struct tt_members *all = tt_members(l->job);
	bool joining = tt_is_joining(l->job) &&
	               (all->node_list || l->probe || l->member == tt_member(l->job, all->sponsor));

	tt_put8(&p, TT_HELLO);
	tt_put32(&p, all->unnumbered ? TT_NEW_RANK : tt_member_number(tt_member(l->job, l->job->rank)));
	tt_put32(&p, (uint32_t)all->launched);
	tt_put32(&p, l->job->epoch);
	tt_put8(&p, joining | all->returned << 1);
	tt_put_text(&p, all->name);
	tt_put_text(&p, all->own_list ? "" : all->agreed); /* with own lists each process is for itself */
	if (all->node_list)
		tt_put64(&p, tt_nodes_hash(l->job, all->launched));
	if (all->own_list)
		tt_nodes_present(l->job, &p);
	l->used = !joining;
	if (tt_send_raw(l, bytes, (size_t)(p.at - bytes)))
		tt_timer_start(l->job, &l->patience, tt_now() + time_to_answer(l), end_silent);
}

void tt_greeting_ask_where(struct tt_link *l)
{
	const uint8_t where = TT_WHERE;

	l->asked_where = true;
	if (tt_send_raw(l, &where, 1))
		tt_timer_start(l->job, &l->patience, tt_now() + l->job->silence, end_silent);
}

/* What stays within a host its ranks find out by themselves. */
static void say_where(struct tt_link *l)
{
	const struct tt_engine *e = &l->job->engine;
	char text[TT_ADDRESSES] = "";
	uint8_t bytes[1 + 1 + TT_ADDRESSES];
	struct tt_pack p = tt_pack(bytes, sizeof bytes);

	for (int i = 0; i < e->count; i++)
		if (!e->nets[i]->host_only && strlen(text) + 1 + strlen(e->nets[i]->addr) < sizeof text)
			sprintf(text + strlen(text), "%s%s", *text ? " " : "", e->nets[i]->addr);
	tt_put8(&p, TT_WHERE);
	tt_put_text(&p, text);
	tt_send_raw(l, bytes, (size_t)(p.at - bytes));
}

static void take_where(struct tt_link *l, struct tt_pack *p)
{
	char text[TT_ADDRESSES];

	tt_get_text(p, text, sizeof text);
	l->asked_where = false;
	if (p->bad)
		tt_member_gone(l->member, -EPROTO, "%s answered a greeting with nonsense",
		               tt_member_label(l->member).text);
	else
		tt_link_is_at(l, text);
}

static bool say_welcome(struct tt_link *l, const struct tt_member *to)
{
	const struct tt_members *all = tt_members(l->job);
	uint8_t bytes[18];
	struct tt_pack p = tt_pack(bytes, sizeof bytes);

	tt_put8(&p, TT_WELCOME);
	tt_put32(&p, l->job->epoch);
	tt_put32(&p, tt_member_number(to));
	tt_put32(&p, tt_member_number(tt_member(l->job, l->job->rank)));
	tt_put32(&p, (uint32_t)(all->capacity - all->launched));
	tt_put8(&p, to->returned);
	return tt_send_raw(l, bytes, sizeof bytes);
}

/* The other side knows the secret but sends no HELLO, or was refused and does not disconnect. */
static void end_stranger(struct tt_timer *t)
{
	struct tt_link *l = tt_container_of(t, struct tt_link, patience);

	tt_log(TT_INFO, "closed the connection from %s: it has not become a rank's in time", l->peer->addr);
	tt_link_doom(l);
}

void tt_greeting_await(struct tt_link *l)
{
	tt_timer_start(l->job, &l->patience, tt_now() + l->job->silence, end_stranger);
}

/* ---- refusing ---- */

/* again: the process may be accepted in a moment. known: the epoch of the last life of its rank; 0: none is known. */
enum again { NEVER, AGAIN, UNDER_WAY }; /* in REFUSED; UNDER_WAY: the job has lost rank 0, and runs */

static void refuse_life(struct tt_link *l, enum tt_level level, enum again again, uint32_t known, const char *why)
{
	uint8_t bytes[7 + TT_REFUSED_WHY];
	struct tt_pack p = tt_pack(bytes, sizeof bytes);

	tt_log(again == AGAIN ? TT_DEBUG : level, "refused a process at %s: %s", l->peer->addr, why);
	if (again != AGAIN)
		tt_stats_count(&l->job->stats.own, TUTTI_STAT_REFUSED, 0);
	tt_put8(&p, TT_REFUSED);
	tt_put8(&p, (uint8_t)again);
	tt_put_text(&p, why);
	tt_put32(&p, known);
	tt_send_raw(l, bytes, (size_t)(p.at - bytes));
}

static void refuse(struct tt_link *l, enum tt_level level, bool again, const char *why)
{
	refuse_life(l, level, again, 0, why);
}

void tt_greeting_refuse(struct tt_link *l, const char *why) { refuse(l, TT_WARN, false, why); }

void tt_greeting_put_off(struct tt_link *l, uint32_t known, const char *why)
{
	refuse_life(l, TT_INFO, true, known, why);
}

void tt_member_refuse(struct tt_member *m, const char *why)
{
	refuse(m->link, TT_WARN, false, why);
	m->link->member = NULL;
	tt_greeting_await(m->link);
	m->link = NULL;
	m->state = TT_AWAY;
}

struct hello {
	uint32_t rank, launched, epoch;
	bool joining; /* the sender connects for the table of endpoints */
	bool returned; /* node list: the sender's rank has had an earlier life */
	uint64_t list; /* of nodes: a hash of the sender's first one */
};

static bool is_another_life(const struct tt_member *m, const struct hello *h) { return tt_is_new_life(m, h->epoch); }

/* A connection may outlive its process for a while: asks whether the process lives. */
static void doubt(struct tt_member *m)
{
	if (!m->link->doubted)
		tt_heartbeat_ask(m->link);
	m->link->doubted = true;
}

static bool surely_lives(const struct tt_member *m)
{
	return m->state == TT_UP && m->link->doubted && !m->link->heartbeat.asked;
}

/* It may be accepted once the earlier life has not answered a PING; or under a later epoch than that life had, which
 * may have begun on a host whose clock is ahead. */
static bool may_come_again(const struct tt_job *job, const struct tt_member *m, const struct hello *h)
{
	if (!m || m->rank == job->rank || !job->joined || !(h->joining || tt_members(job)->node_list))
		return false;
	if (m->epoch && tt_before(h->epoch, m->epoch))
		return true;
	return h->joining &&
	       ((is_another_life(m, h) && !surely_lives(m)) || (m->state >= TT_LEFT && m->epoch == h->epoch));
}

/* It looks for ranks that have joined, and this one has not. Its address is in the list, and may be its own. */
static bool is_early(const struct tt_job *job, const struct hello *h)
{
	return !job->joined && job->rank && h->joining && !tt_members(job)->node_list;
}

/* A newcomer that came before the ranks that the job starts with. */
static bool is_waiting_for_job(const struct tt_job *job, const struct hello *h)
{
	return !job->joined && h->rank == TT_NEW_RANK && h->launched == (uint32_t)tt_members(job)->launched;
}

/* Until a newcomer has a number, job->rank is a place that it keeps. */
const char *tt_own_name(const struct tt_job *job, char text[24])
{
	snprintf(text, 24, tt_members(job)->unnumbered ? "a newcomer" : "rank %d", job->rank);
	return text;
}

/* Of one job: started with as many ranks; or one list of nodes begins with the other. */
static bool is_alike(const struct tt_job *job, const struct hello *h)
{
	return tt_members(job)->node_list ? tt_nodes_agree(job, h->launched, h->list)
	                                  : h->launched == (uint32_t)tt_members(job)->launched;
}

/* Nobody has the table of this job yet, and a rank without it connects to rank 0 as one that joins. */
static bool is_of_another_job(const struct tt_job *job, const struct hello *h)
{
	return job->rank == 0 && tt_is_joining(job) && !h->joining && !tt_members(job)->node_list;
}

/* The others may be about to leave, too, and begin another job at this address, which the rank belongs to. */
static bool has_just_left(const struct tt_job *job, const struct tt_member *m)
{
	return job->joined && m && m->rank < tt_members(job)->launched && m->state == TT_LEFT && tt_now() < m->patience;
}

/* NULL: none. Sentences are short, since they travel. */
static const char *fault_of_hello(const struct tt_job *job, const struct hello *h, char *text, size_t room)
{
	char name[24];
	const struct tt_member *m = h->rank < (uint32_t)job->size ? tt_member(job, h->rank) : NULL;
	int launched = tt_members(job)->launched;

	if (tt_nodes_are_more(job, h->launched))
		snprintf(text, room, "its list has %u nodes, that of rank %d %d: tutti_node_add", h->launched,
		         job->rank, job->size);
	else if (!is_alike(job, h) && tt_members(job)->node_list)
		snprintf(text, room, "its list of nodes differs from that of rank %d", job->rank);
	else if (m && m->removed)
		snprintf(text, room, "rank %d has removed it from the list of nodes", job->rank);
	else if (h->launched != (uint32_t)launched && !tt_members(job)->node_list)
		snprintf(text, room, "it counts %u ranks, %s counts %d", h->launched, tt_own_name(job, name), launched);
	else if (h->rank == TT_NEW_RANK)
		snprintf(text, room, "not all ranks have joined");
	else if (is_of_another_job(job, h))
		snprintf(text, room, "it is of an earlier job at this address");
	else if (is_early(job, h))
		snprintf(text, room, "%s has not joined itself", tt_own_name(job, name));
	else if (!m && tt_members(job)->own_list)
		snprintf(text, room, "the list here has no room: set TUTTI_NEWCOMERS there");
	else if (!m)
		snprintf(text, room, "its rank %u is not below %d", h->rank, job->size);
	else if (m->rank == job->rank || (m->state == TT_UP && (m->epoch == h->epoch || !job->joined)) ||
	         (job->joined && h->joining && m->epoch != h->epoch && (m->host || is_another_life(m, h))))
		snprintf(text, room, "rank %u is already taken", h->rank);
	else if (m->epoch && tt_before(h->epoch, m->epoch))
		snprintf(text, room, "rank %u has a later life", h->rank);
	else if (m->state >= TT_LEFT)
		snprintf(text, room, "rank %u is gone for good", h->rank);
	else
		return NULL;
	return text;
}

/* The member that a HELLO is about; NULL: no such rank. A later life ends the earlier one. But where the earlier one
 * may be alive and the later one is joining, the earlier one gets a PING first. */
static struct tt_member *who_comes(struct tt_job *job, const struct hello *h, bool consented)
{
	bool alike = is_alike(job, h), listed = tt_members(job)->node_list;
	struct tt_member *m;

	if (h->rank == TT_NEW_RANK)
		return NULL;
	if (!alike || h->rank >= (uint32_t)tt_members(job)->capacity)
		return h->rank < (uint32_t)job->size ? tt_member(job, h->rank) : NULL;
	if (!h->joining && !listed && !tt_members(job)->unnumbered)
		tt_late_join_grow(job, (int)h->rank + 1); /* its news has not come yet */
	if (h->rank >= (uint32_t)job->size)
		return NULL;
	m = tt_member(job, h->rank);
	if (listed && h->returned && !m->epoch) {
		m->quiet = m->returned = true; /* its first life had the seat; who knew it has told of its end */
		tt_member_reborn(m, h->epoch);
	}
	if (tt_members(job)->own_list && m->state == TT_GONE && m->epoch == h->epoch && !m->removed)
		tt_member_reborn(m, h->epoch); /* it has missed nothing: each process is for itself */
	if (!job->joined || m->rank == job->rank || !is_another_life(m, h) || m->removed)
		return m;
	if (h->joining && m->state == TT_UP)
		doubt(m);
	else if (h->joining && m->state < TT_LEFT)
		tt_member_connect(m);
	else if (!h->joining || consented || listed)
		tt_member_reborn(m, h->epoch);
	return m;
}

/* ---- taking greetings ---- */

static void welcomed(struct tt_member *m, struct tt_link *l)
{
	tt_member_up(m, l);
	if (m->rank && m->rank == tt_members(l->job)->sponsor && tt_is_joining(l->job))
		tt_rendezvous_present(l->job);
}

static void take_welcome(struct tt_link *l, struct tt_pack *p)
{
	struct tt_members *all = tt_members(l->job);
	struct tt_member *m = l->member;
	uint32_t epoch = tt_get32(p), rank = tt_get32(p), its = tt_get32(p), newcomers = tt_get32(p);
	bool returned = tt_get8(p);

	p->bad |= newcomers > NEWCOMERS_MAX;
	if (!p->bad && returned && all->node_list)
		all->returned = true;
	if (!p->bad && tt_is_joining(l->job) && !all->node_list && !tt_late_join_make_room(l->job, (int)newcomers)) {
		tt_member_gone(m, -ENOMEM, "no memory for %u newcomers", newcomers);
		return;
	}
	if (!p->bad && all->unnumbered && rank >= (uint32_t)all->launched && rank < (uint32_t)all->capacity)
		tt_late_join_take_number(l->job, (int)rank);
	p->bad |= all->unnumbered || rank != tt_member_number(tt_member(l->job, l->job->rank));
	if (!p->bad && its != tt_member_number(m) && !(m = tt_rendezvous_found(m, (int)its)))
		return;
	if (p->bad || !epoch)
		tt_member_gone(m, -EPROTO, "%s answered a greeting with nonsense", tt_member_label(m).text);
	else if (!tt_member_epoch(m, epoch) && !tt_before(m->epoch, epoch))
		tt_member_gone(m, -ECONNRESET, "%s answered as an earlier life of itself",
		               tt_member_label(m).text);
	else if (m->epoch != epoch) /* the later life's HELLO comes, or news of it */
		tt_member_gone(m, -ECONNRESET, "%s has started anew", tt_member_label(m).text);
	else
		welcomed(m, l);
}

/* Fewer than all may let it in: the others are asked first. */
static bool must_ask(const struct tt_job *job, const struct tt_member *m, const struct hello *h)
{
	char text[56];

	if (!job->joined || !h->joining || tt_members(job)->node_list ||
	    h->launched != (uint32_t)tt_members(job)->launched)
		return false;
	return h->rank == TT_NEW_RANK || (m && m->rank != job->rank && m->state >= TT_LEFT && is_another_life(m, h)) ||
	       !fault_of_hello(job, h, text, sizeof text);
}

static void meet(struct tt_link *l, const struct hello *h, bool consented)
{
	struct tt_job *job = l->job;
	const uint8_t busy = TT_BUSY;
	char text[56];
	struct tt_member *m = who_comes(job, h, consented);
	bool late = job->joined && h->joining; /* no connection of this rank can have crossed it */
	bool soon = late && !tt_members(job)->node_list && (job->leaving || has_just_left(job, m));

	if (m && m->state == TT_UP && m->link->mine && tt_comes_after(m) && !late && !is_another_life(m, h)) {
		tt_send_raw(l, &busy, 1); /* both connected at once, and this rank is the lower one */
		return;
	}
	if (soon) {
		snprintf(text, sizeof text, job->leaving ? "rank %d is leaving the job" : "rank %d has just left",
		         job->leaving ? job->rank : m->rank);
		refuse(l, TT_INFO, true, text);
		return;
	}
	if (late && h->rank == 0 && m && !tt_members(job)->node_list && is_alike(job, h)) {
		refuse_life(l, TT_WARN, UNDER_WAY, 0, "this job is under way, and rank 0 does not come back: come "
		            "as a new rank (TUTTI_RANK=new)");
		return;
	}
	if (!consented && must_ask(job, m, h)) {
		tt_sponsor_ask(l, h->rank, h->epoch);
		return;
	}
	if (fault_of_hello(job, h, text, sizeof text)) {
		bool again = may_come_again(job, m, h) || is_early(job, h) || is_waiting_for_job(job, h) ||
		             tt_nodes_are_more(job, h->launched);
		bool expected = m && (m->state >= TT_LEFT || /* a HELLO may come later than the goodbye */
		                      (m->rank == job->rank && h->epoch == job->epoch)); /* by another address */
		refuse_life(l, expected ? TT_INFO : TT_WARN, again, m ? m->epoch : 0, text);
		if (m && m->link && !again)
			m->link->doubted = false; /* the next HELLO asks again */
		return;
	}
	if (m->state == TT_CONNECTING && m->link && tt_comes_after(m)) {
		if (late) { /* it has just started: the connection under way leads to its earlier life */
			snprintf(text, sizeof text, "rank %u is already taken", h->rank);
			refuse(l, TT_INFO, true, text);
		} else {
			tt_send_raw(l, &busy, 1);
		}
		return;
	}
	if (!say_welcome(l, m))
		return;
	tt_member_epoch(m, h->epoch);
	tt_timer_stop(&m->retry);
	if (m->state == TT_PARTING)
		tt_link_forget(m);
	l->used = !h->joining;
	m->settled |= !h->joining;
	m->sponsored = consented;
	tt_member_up(m, l);
}

void tt_greeting_let_in(struct tt_link *l, uint32_t rank, uint32_t epoch)
{
	const struct hello h = { .rank = rank,
		                 .launched = (uint32_t)tt_members(l->job)->launched,
		                 .epoch = epoch,
		                 .joining = true };

	meet(l, &h, true);
}

/* Calls of ranks that differ there would fail, hang, or go on in two halves. */
static bool find_disagreement(const struct tt_job *job, const struct hello *h, const char *its,
                              char why[TT_REFUSED_WHY])
{
	struct tt_setting_difference d;
	char me[24], it[24] = "the newcomer";

	if (!*its || !tt_settings_differ(tt_members(job)->agreed, its, &d))
		return false;
	if (h->rank != TT_NEW_RANK)
		snprintf(it, sizeof it, "rank %u", h->rank);
	snprintf(why, TT_REFUSED_WHY, "%s is %s on %s and %s on %s: all ranks must have the same value", d.name, d.its,
	         it, d.ours, tt_own_name(job, me));
	return true;
}

/* Two jobs of one user may have the same secret, the same size, and, by mistake, the same port. A rank without a name
 * suits any job. */
static void take_hello(struct tt_link *l, struct tt_pack *p)
{
	const char *ours = tt_members(l->job)->name;
	struct hello h = { .rank = tt_get32(p), .launched = tt_get32(p), .epoch = tt_get32(p) };
	uint8_t how = tt_get8(p);
	char its[TT_JOB_NAME + 1] = "", agreed[TT_AGREED] = "", why[TT_REFUSED_WHY];
	struct tt_node node = { .name = "" };

	h.joining = how & 1;
	h.returned = how & 2;
	if (!p->bad && tt_pack_left(p))
		tt_get_text(p, its, sizeof its);
	if (!p->bad && tt_pack_left(p))
		tt_get_text(p, agreed, sizeof agreed);
	if (!p->bad && tt_pack_left(p))
		h.list = tt_get64(p);
	if (!p->bad && tt_members(l->job)->own_list)
		tt_nodes_take(p, &node);
	if (p->bad || l->mine || l->member || l->claim || !h.epoch || (*its && !tt_launch_is_name(its))) {
		refuse(l, TT_WARN, false, "its greeting makes no sense");
	} else if (*its && *ours && strcmp(its, ours) != 0) {
		snprintf(why, sizeof why, "this port is another job's: it has the job \"%s\", and the process is of "
		         "\"%s\": set another TUTTI_BOOT, or the same TUTTI_JOB", ours, its);
		refuse(l, TT_WARN, l->job->leaving && h.joining, why); /* it may be that which begins here next */
	} else if (find_disagreement(l->job, &h, agreed, why)) {
		refuse(l, TT_WARN, false, why);
	} else {
		if (*node.name) /* not before: a place in the list is for ever */
			h.rank = tt_nodes_seat_guest(l->job, &node);
		meet(l, &h, false);
	}
}

/* A later life than that which was refused, and than the one that is known there; in its groups, too. */
static void renew_epoch(struct tt_job *job, uint32_t known)
{
	struct tt_member *me = tt_member(job, job->rank);
	uint32_t now = tt_epoch_now(), next = known + 1 ? known + 1 : 1;

	job->epoch = known && tt_before(now, next) ? next : now;
	tt_group_epoch(me, job->epoch);
	me->epoch = job->epoch;
}

/* Other refusals say nothing about this job: the address may lead to another job, or back to this rank. */
static void take_probed(struct tt_link *l, enum again again, const char *why)
{
	struct tt_members *all = tt_members(l->job);

	if (again == UNDER_WAY && !l->job->joined && !all->join_err) {
		all->join_err = -EPERM;
		snprintf(all->join_why, sizeof all->join_why, "%.95s refused this process as rank 0: %s", l->peer->addr,
		         why);
		l->job->engine.news = true;
	}
	tt_link_doom(l);
}

static void take_refusal(struct tt_link *l, struct tt_pack *p)
{
	struct tt_job *job = l->job;
	struct tt_members *all = tt_members(job);
	struct tt_member *m = l->member && l->member->link == l ? l->member : NULL; /* not after a BUSY */
	enum again how = (enum again)tt_get8(p);
	bool again = how == AGAIN, first = !job->joined && !all->join_err;
	char text[TT_REFUSED_WHY], name[24];
	uint32_t known;

	tt_get_text(p, text, sizeof text);
	known = tt_pack_left(p) ? tt_get32(p) : 0;
	bool is_behind = known && !tt_before(known, job->epoch);
	again &= !(is_behind && all->met); /* a node of a list that has met others has had its life: another one came */
	if (l->probe) {
		take_probed(l, how, text);
		return;
	}
	if (first)
		snprintf(all->join_why, sizeof all->join_why, "%.95s refused this process as %s: %.200s%s",
		         l->peer->addr, tt_own_name(job, name), text, strstr(text, "already taken") ?
		         " (a program that a rank starts gets its own job by `tutti run`)" : "");
	bool more = m && tt_rendezvous_has_more(m);
	if (more)
		tt_rendezvous_refused(job, again, text);
	uint64_t patience = more || all->unnumbered ? job->timeout : job->timeout / 2;
	if (again && (!job->joined || all->node_list) && m && tt_rendezvous_retry(m, patience)) {
		if (!job->joined || is_behind)
			renew_epoch(job, known);
		m->link = NULL;
		tt_link_doom(l);
		return;
	}
	if (!again && first && more && tt_rendezvous_retry(m, job->timeout)) {
		m->link = NULL;
		tt_link_doom(l);
		return;
	}
	if (first)
		all->join_err = -EPERM;
	if (m) {
		m->untold = true; /* this rank may be the one that was evicted */
		m->quiet = all->node_list; /* each rank has a list of its own */
		tt_member_gone(m, -EPERM, "%s refused this process: %s", tt_member_label(m).text, text);
	}
	tt_link_doom(l);
}

void tt_take_refused(struct tt_member *m, struct tt_pack *p) { take_refusal(m->link, p); }

/* The other side's own connection is up, or comes up soon. */
static void take_busy(struct tt_link *l)
{
	struct tt_member *m = l->member;

	if (m && m->link == l && m->state == TT_CONNECTING) {
		m->link = NULL;
		tt_member_fail_soon(m, m->job->silence, -ETIMEDOUT, "%s wanted to connect itself, and did not",
		                    tt_member_label(m).text);
	}
	tt_link_doom(l);
}

void tt_greeting_take(struct tt_link *l, uint8_t type, struct tt_pack *p)
{
	struct tt_member *m = l->member;

	if (type == TT_HELLO)
		take_hello(l, p);
	else if (type == TT_WELCOME && m && m->link == l && m->state == TT_CONNECTING)
		take_welcome(l, p);
	else if (type == TT_REFUSED)
		take_refusal(l, p);
	else if (type == TT_BUSY)
		take_busy(l);
	else if (type == TT_WHERE && !l->mine && !l->claim)
		say_where(l);
	else if (type == TT_WHERE && l->asked_where && m && m->link == l && m->state == TT_CONNECTING)
		take_where(l, p);
	else if (m && m->link == l)
		tt_member_gone(m, -EPROTO, "%s answered a greeting with something else (type %d)",
		               tt_member_label(m).text, type);
	else
		tt_link_doom(l);
}
