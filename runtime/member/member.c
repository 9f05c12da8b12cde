/* member.c - joining and leaving, and this room as a module */
#include "engine/engine.h"
#include "launch/launch.h"
#include "member/member_private.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { ALL = 1 /* the uid of the group of all ranks */ };

void tt_member_tell_run(const struct tt_job *job, int what, const char *text)
{
	const char *pipe = tt_setting(&job->settings, TT_RUN_PIPE);
	struct tt_saying s = { .what = what };
	unsigned long long inode;
	struct stat is;
	int fd;

	snprintf(s.text, sizeof s.text, "%s", text);
	if (pipe && sscanf(pipe, "%d:%llu:%d", &fd, &inode, &s.rank) == 3 && !fstat(fd, &is) && is.st_ino == inode)
		(void)!write(fd, &s, sizeof s); /* else the file was closed on the way, and is another one */
}

/* ---- joining ---- */

/* The time of day in 64ths of a second, so that a later life has a later epoch, on any host. Never 0. */
uint32_t tt_epoch_now(void)
{
	uint32_t epoch = (uint32_t)(tt_calendar() / (1000000000u / 64));

	return epoch ? epoch : 1;
}

static int make_members(struct tt_job *job, const struct tt_launch *launch)
{
	struct tt_members *all = tt_members(job);
	char addr[96];
	int size = job->size;

	const char *name = tt_setting(&job->settings, TT_JOB);
	snprintf(all->name, sizeof all->name, "%s", name ? name : launch->name);
	tt_settings_agreed(&job->settings, all->agreed, sizeof all->agreed);
	all->endpoints = all->launched;
	job->size = 0;
	all->of = calloc((size_t)all->launched, sizeof *all->of);
	all->more = calloc((size_t)tt_max(1, all->capacity - all->launched), sizeof *all->more);
	if (!all->of || !all->more)
		return tt_fail(-ENOMEM, "no memory for %d ranks", all->capacity);
	all->over = launch->over;
	int err = tt_nodes_open(job, launch);
	if (err)
		return err;
	tt_late_join_grow(job, size);
	struct tt_member *me = tt_member(job, job->rank); /* may lie beyond those that are known */
	me->job = job;
	me->addr = me->why = "";
	me->rank = job->rank;
	me->epoch = job->epoch;
	for (int i = 0; launch->nodes && i < job->size; i++) {
		snprintf(addr, sizeof addr, "%s:%s", launch->over, launch->nodes[i].address);
		tt_address_set(tt_member(job, i), addr);
	}
	return 0;
}

/* The group of all ranks has the same slot everywhere: it is the first one of each. */
static int make_group(struct tt_job *job)
{
	struct tutti *g;
	int err = tt_group_new(job, job->size, &g);

	if (err)
		return err;
	tt_members(job)->all = tt_members(job)->whole = g;
	g->uid = ALL;
	g->lineage = true;
	for (int i = 0; i < job->size; i++)
		tt_group_seat(g, i, i, tt_member(job, i)->epoch, g->slot);
	return 0;
}

int tt_members_open(struct tt_job *job, const struct tt_launch *launch)
{
	int err = make_members(job, launch);

	if (!err)
		err = tt_form_open(job);
	return err ? err : make_group(job);
}

int tt_members_settle(struct tt_job *job)
{
	int err = tt_late_join_settle(job);

	job->joined = !err;
	if (err)
		return err;
	tt_heartbeat_start(job);
	if (job->rank == 0 || tt_members(job)->late)
		tt_late_join_say_where(job, TT_INFO);
	for (int i = 0; !tt_members(job)->late && i < job->size; i++) /* ranks that were lost while joining */
		if (tt_member(job, i)->state == TT_GONE)
			tt_news_tell(tt_member(job, i));
	return 0;
}

void *tt_member_make_own(struct tt_member *m, int slot, size_t size)
{
	if (!m->own)
		m->own = calloc(TT_MODULES, sizeof *m->own);
	if (m->own && !m->own[slot])
		m->own[slot] = calloc(1, size);
	return tt_member_own(m, slot);
}

/* ---- leaving ---- */

/* Connections of strangers do not count. */
bool tt_members_are_alone(void *arg)
{
	struct tt_job *job = arg;

	tt_each_link(l, job)
		if (l->parted || (l->member && l->member->link == l))
			return false;
	return true;
}

static uint32_t finished(const struct tutti *g)
{
	tt_each_module(m, g->job, group_finished)
		return m->group_finished(g);
	return g->started;
}

static uint16_t put_group(struct tt_pack *p, uint32_t uid, uint32_t finished, bool voted)
{
	tt_put32(p, uid);
	tt_put32(p, finished);
	tt_put8(p, voted);
	return 1;
}

/* The same for the group that g came of, which may be closed here already. */
static uint32_t finished_before(const struct tutti *g)
{
	tt_each_group(old, g->job)
		if (old->retired && old->uid == g->origin.uid)
			return finished(old);
	return 0;
}

/* Packs the groups in use, or those that have been shrunk or grown. Returns how many had no room. */
static int put_groups(struct tt_pack *p, const struct tt_job *job, bool retired, uint16_t *n)
{
	int left = 0;

	tt_each_group(g, job) {
		if (!g->uid || g->retired != retired)
			continue;
		if (tt_pack_left(p) < 18) {
			left++;
			continue;
		}
		*n += put_group(p, g->uid, finished(g), tt_agree_voted(g));
		if (g->origin.view)
			*n += put_group(p, g->origin.uid, finished_before(g), true);
	}
	return left;
}

/* Others may have still to call what this rank has finished there. */
void tt_bye_remember(const struct tutti *g)
{
	struct tt_members *all = tt_members(g->job);

	all->freed[all->freed_count++ % TT_FREED_GROUPS] =
		(struct tt_freed_group){ .uid = g->uid, .finished = finished(g), .voted = tt_agree_voted(g) };
}

/* The i-th group, from the one that was freed last on. NULL: no more are remembered. */
static const struct tt_freed_group *freed(const struct tt_members *all, unsigned i)
{
	bool is_kept = i < tt_min(all->freed_count, (unsigned)TT_FREED_GROUPS);

	return is_kept ? &all->freed[(all->freed_count - 1 - i) % TT_FREED_GROUPS] : NULL;
}

static void put_freed(struct tt_pack *p, const struct tt_members *all, uint16_t *n)
{
	const struct tt_freed_group *f;

	for (unsigned i = 0; (f = freed(all, i)) && tt_pack_left(p) >= 9; i++)
		*n += put_group(p, f->uid, f->finished, f->voted);
}

/* Leaves 8 bytes: a FAREWELL with all of it must fit into a message, too. */
void tt_say_bye(struct tt_member *m)
{
	uint8_t bye[7 + 9 * TT_BYE_GROUPS];
	struct tt_pack p = tt_pack(bye, tt_min(sizeof bye, TT_MESSAGE_MAX - 8));
	uint16_t n = 0;
	int left;

	tt_put8(&p, TT_BYE);
	tt_put32(&p, (uint32_t)m->job->size);
	tt_put16(&p, 0);
	left = put_groups(&p, m->job, false, &n);
	left += put_groups(&p, m->job, true, &n);
	put_freed(&p, tt_members(m->job), &n);
	if (left)
		tt_log(TT_WARN, "%s hears nothing of %d groups that this rank has not left: operations there may run "
		       "out of time", tt_member_label(m).text, left);
	struct tt_pack count = tt_pack(bye + 5, 2);
	tt_put16(&count, n);
	tt_send(m, bye, (size_t)(p.at - bye), NULL, 0);
}

void tt_members_say_bye(struct tt_job *job)
{
	tt_rendezvous_leave(job);
	for (int i = 0; i < job->size && !job->leaving; i++)
		if (tt_member(job, i)->state == TT_UP)
			tt_say_bye(tt_member(job, i));
	job->leaving = true;
}

static void drop_links(struct tt_job *job)
{
	tt_each_link(l, job)
		tt_link_doom(l);
	tt_peer_settle(job);
}

void tt_members_end(struct tt_job *job, bool idle)
{
	struct tt_members *all = tt_members(job);

	job->leaving = true;
	for (int i = 0; all->of && i < job->size; i++) {
		struct tt_member *m = tt_member(job, i);
		tt_timer_stop(&m->retry);
		if (i != job->rank && !(idle && m->state == TT_AWAY && !m->waiting.head)) /* most have nothing to end */
			tt_member_gone(m, -ENOTCONN, "this rank has left the job");
	}
	drop_links(job);
	while (job->ended.head)
		tt_progress(job);
	drop_links(job); /* another process may have connected meanwhile */
	while (!tt_list_empty(&all->groups))
		tt_group_free(tt_container_of(all->groups.next, struct tutti, link));
}

/* ---- the module ---- */

static void make(struct tt_job *job)
{
	struct tt_members *all = tt_members(job);

	all->job = job;
	tt_list_init(&all->links);
	tt_list_init(&all->doomed);
	tt_list_init(&all->groups);
	tt_each_module(m, job, messages)
		for (int i = 0; i < m->message_count; i++) {
			all->message[m->messages[i].type] = &m->messages[i];
			all->passing[m->messages[i].type] = i < m->passing;
		}
	tt_each_module(m, job, notify)
		all->notified[all->notified_count++] = m;
}

static void close_members(struct tt_job *job)
{
	struct tt_members *all = tt_members(job);

	tt_watch_free(job);
	tt_form_close(job);
	for (int i = 0; all->of && i < job->size; i++) {
		struct tt_member *m = tt_member(job, i);
		tt_member_free(m);
		tt_address_set(m, "");
		tt_stats_free(m->stats);
		for (int k = 0; m->own && k < TT_MODULES; k++)
			free(m->own[k]);
		free(m->own);
	}
	if (all->of && all->unnumbered)
		tt_address_set(tt_member(job, job->rank), ""); /* its place is none of those */
	free(all->of);
	free(all->more);
	free(all->node);
	free(all->newcomer);
	tt_text_free(job);
}

static int has_doomed(struct tt_job *job) { return !tt_list_empty(&tt_members(job)->doomed); }

/* Settling counts as progress: it may end what the driver waits for. */
static int settle(struct tt_job *job)
{
	int n = has_doomed(job);

	tt_peer_settle(job);
	return n;
}

static void lose_net(struct tt_job *job, struct tt_net *net)
{
	for (int i = 0; i < job->size; i++) {
		struct tt_member *m = tt_member(job, i);
		if (m->link && m->link->peer->net == net)
			tt_member_gone(m, -ECONNRESET, "%s cannot be reached any more: %s",
			               tt_member_label(m).text, tt_why());
	}
}

/* It comes before the member is up, or not at all. */
static void refuse_greeting(struct tt_member *from, struct tt_pack *p)
{
	(void)from;
	p->bad = true;
}

static const struct tt_message messages[] = {
	{ TT_HELLO, "hello", refuse_greeting },
	{ TT_WELCOME, "welcome", refuse_greeting },
	{ TT_BUSY, "busy", refuse_greeting },
	{ TT_REFUSED, "refused", tt_take_refused },
	{ TT_ENDPOINT, "endpoint", tt_rendezvous_endpoint },
	{ TT_ENDPOINTS, "endpoints", tt_rendezvous_endpoints },
	{ TT_PING, "ping", tt_member_take_ping },
	{ TT_PONG, "pong", tt_member_take_pong },
	{ TT_DOWN, "down", tt_news_take_down },
	{ TT_REVOKE, "revoke", tt_group_revoked },
	{ TT_AGREE, "agree", tt_agree_message },
	{ TT_PART, "part", tt_take_part },
	{ TT_LATE, "late", tt_late_join_told },
	{ TT_NEWS, "news", tt_late_join_news },
	{ TT_FAREWELL, "farewell", tt_news_take_farewell },
	{ TT_MISSED, "missed", tt_news_take_missed },
	{ TT_RECALL, "recall", tt_loan_take_recall },
	{ TT_STOPPED, "stopped", tt_loan_take_stopped },
	{ TT_CLAIM, "claim", tt_sponsor_take_claim },
	{ TT_CONSENT, "consent", tt_sponsor_take_consent },
	{ TT_WHERE, "where", refuse_greeting },
	{ TT_FORM, "form", tt_form_message },
	{ TT_BYE, "bye", tt_take_bye },
};

const struct tt_module tt_member_module = {
	.name = "member",
	.slot = TT_MEMBER_SLOT,
	.job_size = sizeof(struct tt_members),
	.lasting = true,
	.make = make,
	.close = close_members,
	.poll = settle,
	.arm = has_doomed,
	.errand = tt_watch_call,
	.messages = messages,
	.message_count = TT_COUNT(messages),
	.passing = TT_COUNT(messages) - 1,
	.net_lost = lose_net,
};
