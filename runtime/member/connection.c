/* connection.c - the connections of this rank: made on first use, over the first net that leads to the other rank
 *
 * Each of this rank's nets, the best first, is tried in turn at each of the addresses that the other rank has there:
 * these are the *ways*, the first of which joins the nearest devices of both. The last one has TUTTI_SILENCE, the one
 * way of a better transport a quarter of that, several a bit less each. One that has failed is not tried again for this
 * life of the member, unless no other leads there; in a node list all are tried once more when the member answers. The
 * connection over which it has answered is a standby meanwhile, and is used if no better way leads there.
 *
 * A connection of the rendezvous is closed again (PART): when it is not part of the tree (endpoint_tree.c), or on
 * first use if the table of endpoints names a better net. One side asks. The other says yes if it has put nothing else
 * on the connection, and waits until the asker disconnects. So nothing is lost, and a first use may come at any time:
 * the asker lets posts wait for the answer; the side that said yes makes a new connection. If both ask at once, both
 * say yes.
 *
 *      rank 70 -- PART ask --> rank 0          rank 70 <-- PART yes, or no -- rank 0
 */
#include "engine/engine.h"
#include "member/member_private.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PART_ASK, PART_YES, PART_NO };

/* ---- links ---- */

static bool is_near(const struct tt_peer *p) { return p->net->host_only; }

static struct tt_link *new_link(struct tt_job *job, struct tt_peer *peer, struct tt_member *m)
{
	struct tt_link *l = calloc(1, sizeof *l);

	if (!l)
		return NULL;
	l->job = job;
	l->peer = peer;
	l->member = m;
	l->mine = m != NULL;
	peer->user = l;
	tt_list_append(&tt_members(job)->links, &l->all);
	job->engine.neighbours += is_near(peer);
	job->engine.afar += !is_near(peer);
	job->engine.cheap += peer->net->cheap_poll;
	tt_list_init(&l->doom);
	tt_list_init(&l->loans);
	return l;
}

void tt_link_doom(struct tt_link *l) { tt_list_append_once(&tt_members(l->job)->doomed, &l->doom); }

void tt_peer_settle(struct tt_job *job)
{
	struct tt_list *node;

	while ((node = tt_list_pop(&tt_members(job)->doomed))) {
		struct tt_link *l = tt_container_of(node, struct tt_link, doom);
		if (l->member && l->member->link == l)
			l->member->link = NULL;
		if (l->member && l->member->standby == l)
			l->member->standby = NULL;
		l->member = NULL;
		job->engine.neighbours -= is_near(l->peer);
		job->engine.afar -= !is_near(l->peer);
		job->engine.cheap -= l->peer->net->cheap_poll;
		tt_members(job)->probes -= l->probe;
		job->engine.news |= l->probe;
		tt_each_module(m, job, hangup)
			m->hangup(job, l->peer);
		tt_members(job)->hangups++;
		l->peer->net->transport->disconnect(l->peer);
		tt_loans_return(l);
		tt_sponsor_end(l);
		tt_timer_stop(&l->patience);
		tt_list_remove(&l->all);
		free(l);
		job->engine.news = true; /* a thread that leaves waits for the last link */
	}
}

/* ---- connecting ---- */

static struct tt_net *net_of(const struct tt_member *m, int way) { return m->job->engine.nets[way / TT_DEVICES]; }
_Static_assert(TT_NETS * TT_DEVICES <= 32, "a bit of failed_ways for each way");
static int count_ways(const struct tt_member *m) { return m->job->engine.count * TT_DEVICES; }

static bool may_lead(const struct tt_member *m, int way, char addr[96])
{
	const struct tt_net *n = net_of(m, way);

	return !n->lost && !(m->failed_ways >> way & 1) &&
	       tt_address_nth(m->addr, n->transport->name, way % TT_DEVICES, addr);
}

/* The net of the first way from m->way on that may lead to the member; NULL: none is left. */
static struct tt_net *next_net(struct tt_member *m, char addr[96])
{
	for (; m->way < count_ways(m); m->way++)
		if (may_lead(m, m->way, addr))
			return net_of(m, m->way);
	return NULL;
}

static bool is_on_this_host(const struct tt_member *m)
{
	return m->host && m->host == tt_member(m->job, m->job->rank)->host;
}

/* False: no other way may lead to the member. A lack of files says nothing about this one. */
static bool turn_to_next_way(struct tt_member *m, int err, const char *why)
{
	int failed = m->way++;
	char addr[96], text[300];
	const struct tt_net *next = next_net(m, addr), *net = net_of(m, failed);

	if (!next) {
		m->way = (uint8_t)failed;
		return false;
	}
	if (err != -EMFILE)
		m->failed_ways |= 1u << failed;
	m->late |= err == -ETIMEDOUT && net->host_only;
	snprintf(text, sizeof text, "%s is not reached over %s: %s", tt_member_label(m).text, net->transport->name,
	         why);
	tt_log(TT_DEBUG, "%s", text);
	bool other_host = net->host_only && m->host && !is_on_this_host(m);
	if (err != -EMFILE && !m->why_not && !other_host && next->transport != net->transport)
		m->why_not = strdup(text);
	return true;
}

/* Once a job: it lives, and is reached over a slower net. */
static void warn_of_detour(const struct tt_member *m)
{
	struct tt_members *all = tt_members(m->job);

	if (!m->why_not || is_near(m->link->peer) || all->warned ||
	    (m->link->peer->net->cheap_poll && !is_on_this_host(m)))
		return;
	if (is_on_this_host(m))
		tt_log(TT_WARN, "%s. Both ranks are on one host, and connected over %s", m->why_not,
		       m->link->peer->net->transport->name);
	else
		tt_log(TT_WARN, "%s. It is reached over %s", m->why_not, m->link->peer->net->transport->name);
	all->warned = true;
}

static void lack_files(struct tt_timer *t)
{
	struct tt_member *m = tt_container_of(t, struct tt_member, retry);

	tt_fail_waiting(m, -EMFILE);
	tt_each_module(module, m->job, unreached)
		module->unreached(m, -EMFILE);
}

static int ask_nets(struct tt_member *);

/* Is there another way after the one that is being tried? */
static bool has_next_way(const struct tt_member *m)
{
	char addr[96];

	for (int i = m->way + 1; i < count_ways(m); i++)
		if (may_lead(m, i, addr))
			return true;
	return false;
}

/* So long may the way take that is tried. All ways over one transport take half of TUTTI_SILENCE at most: a rank that
 * was told BUSY waits for this one meanwhile. */
static uint64_t patience_of(const struct tt_member *m)
{
	const struct tt_transport *t = net_of(m, m->way)->transport;
	char addr[96];
	unsigned n = 0;

	for (int i = 0; i < count_ways(m); i++)
		n += net_of(m, i)->transport == t && tt_address_nth(m->addr, t->name, i % TT_DEVICES, addr);
	return 2 * tt_time(m->job, TT_TIME_NET) / (n + 1);
}

static void pass_over(struct tt_timer *t)
{
	struct tt_link *l = tt_container_of(t, struct tt_link, patience);
	struct tt_member *m = l->member;

	if (!m || m->link != l || m->state != TT_CONNECTING)
		return;
	if (turn_to_next_way(m, -ETIMEDOUT, l->peer->lacks ? l->peer->lacks : "it does not answer")) {
		tt_link_forget(m);
		ask_nets(m);
	} else if (tt_rendezvous_has_more(m) && tt_rendezvous_retry(m, m->job->timeout)) {
		tt_link_forget(m);
	}
}

static void drop_standby(struct tt_member *m)
{
	if (m->standby)
		tt_link_doom(m->standby);
	m->standby = NULL;
}

static void end_waiting(struct tt_timer *t) { tt_link_doom(tt_container_of(t, struct tt_link, patience)); }

static void stand_by(struct tt_member *m)
{
	m->standby = m->link;
	m->link = NULL;
	tt_timer_start(m->job, &m->standby->patience, tt_now() + m->job->silence, end_waiting);
}

/* The standby may have broken, which progress() has told a moment ago. */
static bool use_standby(struct tt_member *m, const struct tt_net *net)
{
	if (!m->standby || m->standby->peer->net != net || !tt_list_empty(&m->standby->doom))
		return false;
	m->link = m->standby;
	m->standby = NULL;
	tt_greeting_start(m->link);
	return true;
}

static int ask_nets(struct tt_member *m)
{
	struct tt_job *job = m->job;
	struct tt_peer *peer;
	struct tt_net *net;
	char addr[96];
	int err;

	do {
		if (!(net = next_net(m, addr))) {
			tt_member_fail_soon(m, 0, -EHOSTUNREACH, "no transport of mine leads to %s at \"%s\"",
			                    tt_member_label(m).text, m->addr);
			return 0;
		}
		if (use_standby(m, net))
			return 0;
		err = net->transport->connect(net, addr, &peer);
	} while (err && turn_to_next_way(m, err, tt_why())); /* also on EMFILE: another net may need fewer files */
	if (err == -EMFILE && job->joined) { /* the member may be reached later */
		m->state = TT_AWAY;
		m->unreached = tt_now();
		tt_timer_start(job, &m->retry, m->unreached, lack_files); /* not now: the caller may be posting */
		return err;
	}
	if (err && tt_rendezvous_has_more(m) && tt_rendezvous_retry(m, job->timeout))
		return 0;
	if (err) {
		tt_member_fail_soon(m, 0, err, "cannot connect to %s: %s", tt_member_label(m).text, tt_why());
		return 0;
	}
	m->link = new_link(job, peer, m);
	if (!m->link) {
		net->transport->disconnect(peer);
		tt_member_fail_soon(m, 0, -ENOMEM, "no memory to connect to %s", tt_member_label(m).text);
	} else if (has_next_way(m) || tt_rendezvous_has_more(m)) {
		tt_timer_start(job, &m->link->patience, tt_now() + patience_of(m), pass_over);
	}
	return 0;
}

void tt_member_forget_where(struct tt_member *m)
{
	char listed[TT_ADDRESSES];

	m->nets_again = m->late = false;
	if (!m->listed)
		return;
	snprintf(listed, sizeof listed, "%.*s", m->listed, m->addr);
	tt_address_set(m, listed);
	m->listed = 0;
}

int tt_member_connect(struct tt_member *m)
{
	if (m->state != TT_AWAY)
		return 0;
	if (!*m->addr && m->job->joined) { /* a newcomer, whose endpoint record will come */
		if (!tt_timer_runs(&m->retry))
			tt_member_fail_soon(m, m->job->silence, -EHOSTUNREACH,
			                    "%s cannot be reached: its address has not come", tt_member_label(m).text);
		return 0;
	}
	tt_timer_stop(&m->retry);
	tt_member_forget_where(m); /* an earlier life may have said it */
	drop_standby(m);
	m->state = TT_CONNECTING;
	m->way = 0;
	return ask_nets(m);
}

int tt_member_reach(struct tt_member *m)
{
	int err;

	tt_member_leave_rendezvous(m);
	if (m->state == TT_UP)
		return 0;
	err = tt_member_connect(m);
	return err ? err : 1;
}

void tt_member_up(struct tt_member *m, struct tt_link *l)
{
	l->member = m;
	m->link = l;
	tt_timer_stop(&l->patience);
	drop_standby(m);
	m->state = TT_UP;
	m->courtesy = m->sought = false;
	tt_members(m->job)->met |= m->job->joined;
	tt_heartbeat_begin(l);
	warn_of_detour(m);
	tt_log(TT_DEBUG, "%s is connected over %s", tt_member_label(m).text, l->peer->net->transport->name);
	tt_stats_count(&m->stats, TUTTI_STAT_CONNECT, 0);
	tt_post_waiting(m);
	if (m->job->leaving) {
		tt_rendezvous_leave_late(m);
		tt_say_bye(m);
	}
	tt_tell_up(m);
}

void tt_link_probe(struct tt_job *job, const char *addr)
{
	struct tt_peer *peer;
	struct tt_link *l;
	int i = 0;

	while (strcmp(job->engine.nets[i]->transport->name, tt_members(job)->over)) /* check_meeting has found it */
		i++;
	if (job->engine.nets[i]->transport->connect(job->engine.nets[i], addr, &peer))
		return;
	if (!(l = new_link(job, peer, NULL))) {
		peer->net->transport->disconnect(peer);
		return;
	}
	l->mine = l->probe = true;
	tt_members(job)->probes++;
	tt_timer_start(job, &l->patience, tt_now() + tt_time(job, TT_TIME_NET), end_waiting);
}

/* ---- closing a connection of the rendezvous ---- */

static bool has_better_net(const struct tt_member *m)
{
	char addr[96];

	for (int i = 0; net_of(m, i)->transport != m->link->peer->net->transport; i++)
		if ((!net_of(m, i)->host_only || m->host == tt_member(m->job, m->job->rank)->host) &&
		    may_lead(m, i, addr))
			return true;
	return false;
}

const struct tt_net *tt_member_talks_over(const struct tt_member *m)
{
	return m->state == TT_UP && (m->link->used || !has_better_net(m)) ? m->link->peer->net : NULL;
}

void tt_member_why_not(const struct tt_member *m, char *why, size_t size)
{
	const struct tt_net *over = tt_member_talks_over(m), *best = m->job->engine.nets[0];
	const char *better = over ? best->transport->name : NULL;
	struct tt_label who = tt_member_label(m);
	char addr[96];

	if (!over || over->transport == best->transport)
		*why = 0;
	else if (best->host_only && m->host && !is_on_this_host(m))
		snprintf(why, size, "%s is on another host, and %s stays within one", who.text, better);
	else if (m->why_not)
		snprintf(why, size, "%s", m->why_not);
	else if (!tt_address_find(m->addr, better, addr))
		snprintf(why, size, "%s has no address for %s: its TUTTI_TRANSPORTS may lack that", who.text, better);
	else
		snprintf(why, size, "%s and this rank were first connected over %s, and stay with that: its own "
		         "tutti_group_peer may say why", who.text, over->transport->name);
}

void tt_member_part(struct tt_member *m)
{
	const uint8_t ask[2] = { TT_PART, PART_ASK };

	if (m->state == TT_UP && !m->link->used && !m->job->leaving && tt_send_raw(m->link, ask, sizeof ask))
		m->state = TT_PARTING;
}

void tt_member_leave_rendezvous(struct tt_member *m)
{
	if (m->state == TT_UP && !m->link->used && has_better_net(m))
		tt_member_part(m);
}

void tt_link_forget(struct tt_member *m)
{
	m->link->member = NULL;
	tt_link_doom(m->link);
	m->link = NULL;
}

void tt_link_part(struct tt_link *l)
{
	l->member = NULL;
	l->parted = true;
	tt_timer_start(l->job, &l->patience, tt_now() + tt_time(l->job, TT_TIME_GRACE), end_waiting);
}

/* Neighbours in the tree stay connected: so each rank hears of deaths. */
static bool is_beside_in_tree(const struct tt_member *m)
{
	int other = m->rank, me = m->job->rank;

	return (other && tt_tree_parent(other) == me) || (me && tt_tree_parent(me) == other);
}

static void stand_apart(struct tt_member *m)
{
	m->state = TT_AWAY;
	if (m->waiting.head || is_beside_in_tree(m))
		tt_member_connect(m);
	tt_tell_up(m); /* what waited for the connection makes a new one */
}

static void answer_part(struct tt_member *m)
{
	struct tt_link *l = m->link;
	bool yes = m->state < TT_LEFT && !l->used && !m->job->leaving;
	const uint8_t answer[2] = { TT_PART, yes ? PART_YES : PART_NO };

	if (!tt_send_raw(l, answer, sizeof answer) || !yes)
		return;
	l->member = NULL;
	l->parted = true;
	m->link = NULL;
	stand_apart(m);
}

void tt_take_part(struct tt_member *m, struct tt_pack *p)
{
	uint8_t what = tt_get8(p);

	p->bad |= what > PART_NO;
	if (p->bad) {
		return;
	} else if (what == PART_ASK) {
		answer_part(m);
	} else if (m->state == TT_PARTING && what == PART_YES) {
		tt_link_forget(m);
		stand_apart(m);
	} else if (m->state == TT_PARTING) {
		m->link->used = true; /* by the other side */
		tt_member_up(m, m->link);
	}
}

/* ---- events ---- */

/* Forgets why some nets did not lead to the member, and tries them again, if one of them is better than the net of its
 * connection. */
static bool ask_better_nets(struct tt_member *m, uint32_t forgotten)
{
	uint32_t failed = m->failed_ways;

	m->failed_ways &= ~forgotten;
	if (!has_better_net(m)) {
		m->failed_ways = failed;
		return false;
	}
	free(m->why_not);
	m->why_not = NULL;
	stand_by(m);
	m->way = 0;
	ask_nets(m);
	return true;
}

void tt_link_is_at(struct tt_link *l, const char *addresses)
{
	struct tt_member *m = l->member;

	m->listed = (uint8_t)strlen(m->addr);
	tt_address_add(m, addresses);
	if (!ask_better_nets(m, UINT32_MAX))
		tt_greeting_start(l);
}

static bool has_unknown_net(const struct tt_member *m)
{
	for (int i = 0; net_of(m, i)->transport != m->link->peer->net->transport; i++)
		if (!net_of(m, i)->host_only && !net_of(m, i)->lost)
			return true;
	return false;
}

/* A node list has one address of each rank, and a rank may have started after a better net was tried. When it answers,
 * all of its nets are open: it is asked where, and they are tried once more. */
static bool ask_listed(struct tt_link *l)
{
	struct tt_member *m = l->member;

	m->nets_again = true;
	if (!has_unknown_net(m))
		return ask_better_nets(m, UINT32_MAX);
	tt_greeting_ask_where(l);
	return true;
}

static uint32_t host_ways(const struct tt_member *m)
{
	uint32_t ways = 0;

	for (int i = 0; i < count_ways(m); i++)
		ways |= (uint32_t)net_of(m, i)->host_only << i;
	return ways;
}

/* The nets of this host are also tried again if a process here answered too late. They lose nothing, so that process
 * was stopped or had no core. */
static bool ask_late(struct tt_link *l)
{
	struct tt_member *m = l->member;

	m->nets_again = true;
	if (!ask_better_nets(m, host_ways(m)))
		return false;
	tt_log(TT_INFO, "%s answers late, and over %s: this rank tries what is better once more",
	       tt_member_label(m).text, l->peer->net->transport->name);
	return true;
}

static bool look_further(struct tt_link *l)
{
	struct tt_member *m = l->member;

	if (!m || m->link != l || m->nets_again || m->state != TT_CONNECTING)
		return false;
	return tt_members(l->job)->node_list ? ask_listed(l) : m->late && ask_late(l);
}

static void on_up(struct tt_peer *peer)
{
	struct tt_job *job = peer->net->user;
	struct tt_link *l = peer->user;

	if (l)
		tt_timer_stop(&l->patience);
	if (l && look_further(l))
		return;
	if (l)
		tt_greeting_start(l);
	else if (!(l = new_link(job, peer, NULL)))
		tt_log(TT_ERROR, "no memory for a connection from %s", peer->addr);
	else
		tt_greeting_await(l);
}

static void member_message(struct tt_member *m, uint8_t type, struct tt_pack *p)
{
	const struct tt_message *message = tt_members(m->job)->message[type];

	tt_stats_count(&m->stats, TUTTI_STAT_MESSAGE_IN, tt_pack_left(p) + 1);
	m->link->used |= !tt_may_pass(type);
	m->settled |= !tt_may_pass(type);
	if (message)
		message->take(m, p);
	p->bad |= !message;
	if (p->bad)
		tt_member_gone(m, -EPROTO, "%s sent a message that makes no sense (type %d, %s)",
		               tt_member_label(m).text, type, message ? message->name : "unknown");
}

static void on_message(struct tt_peer *peer, const void *bytes, size_t len)
{
	struct tt_link *l = peer->user;
	struct tt_pack p = tt_unpack(bytes, len);
	uint8_t type = tt_get8(&p);

	if (!l || !tt_list_empty(&l->doom) || (l->parted && tt_timer_runs(&l->patience)))
		return; /* doomed, or of a member that was expelled */
	if (l->member && l->member->link == l && l->member->state >= TT_PARTING)
		member_message(l->member, type, &p);
	else
		tt_greeting_take(l, type, &p);
}

static void on_notify(struct tt_peer *peer, uint32_t value)
{
	struct tt_link *l = peer->user;

	if (!l || !l->member || !tt_list_empty(&l->doom))
		return;
	const struct tt_members *all = tt_members(l->job);
	for (int i = 0; i < all->notified_count; i++) {
		const struct tt_module *m = all->notified[i];
		if (value < m->notify_first || value > m->notify_last)
			continue;
		m->notify(l->member, value);
		return;
	}
}

/* The transport's own sentence, unless tt_why() is about something else. */
static const char *reason(const struct tt_link *l, const char *otherwise)
{
	return strstr(tt_why(), l->peer->addr) ? tt_why() : otherwise;
}

/* The handshake has said no: another secret, user, job or version. */
static bool is_refusal(int err) { return err == -EACCES || err == -EPROTO; }

static bool may_have_left(int err) { return err == -EHOSTUNREACH || err == -ECONNRESET; }

/* Under `tutti run` a connection to rank 0 comes about before that rank has started. A connection that ends without a
 * word may have met a process that leaves another job at this address. */
static bool may_start_late(const struct tt_member *m, int err)
{
	return err == -EHOSTUNREACH || err == -ECONNRESET || (err == -ETIMEDOUT && !m->job->joined) ||
	       tt_rendezvous_has_more(m);
}

/* Nobody waits for it, and nobody listens there. If it is dead, those that were connected to it say so. But one that
 * listens and does not answer is silent. */
static bool forgo(struct tt_member *m, int err)
{
	if (!m->courtesy || m->state != TT_CONNECTING || m->waiting.head || err == -ETIMEDOUT)
		return false;
	m->courtesy = false;
	m->link = NULL;
	m->state = TT_AWAY;
	m->unreached = tt_now();
	return true;
}

void tt_member_connect_ring(struct tt_member *m)
{
	m->courtesy = true;
	tt_member_connect(m);
}

static void lost(struct tt_member *m, struct tt_link *l, int err)
{
	bool connected = m->state == TT_UP || m->state == TT_PARTING;
	char at[96] = "";

	tt_address_nth(m->addr, l->peer->net->transport->name, m->way % TT_DEVICES, at);
	if (m->state == TT_CONNECTING && tt_rendezvous_has_more(m) && is_refusal(err))
		tt_rendezvous_refused(m->job, false, reason(l, strerror(-err)));
	if (m->state == TT_CONNECTING && !m->job->joined)
		snprintf(tt_members(m->job)->last_try, sizeof tt_members(m->job)->last_try, "%s", reason(l, ""));
	if (m->state == TT_LEFT)
		m->link = NULL;
	else if (connected && m->job->leaving)
		tt_member_left(m, NULL);
	else if (connected) {
		m->untold = true;
		tt_member_gone(m, -ECONNRESET, "%s went down: %s", tt_member_label(m).text,
		               reason(l, "its connection broke"));
	} else if (m->state == TT_CONNECTING && (err == -EHOSTUNREACH || err == -ENXIO || err == -ETIMEDOUT) &&
	           turn_to_next_way(m, err, reason(l, strerror(-err)))) {
		m->link = NULL;
		ask_nets(m);
	} else if (forgo(m, err))
		tt_log(TT_DEBUG, "%s is not there to be watched: %s", tt_member_label(m).text,
		       reason(l, strerror(-err)));
	else if (m->state == TT_CONNECTING && may_start_late(m, err) && tt_rendezvous_retry(m, m->job->timeout))
		m->link = NULL;
	else if (m->state == TT_CONNECTING && may_have_left(err) && (tt_news_ask_missed(m) || tt_member_is_last(m))) {
		m->link = NULL;
		tt_member_fail_soon(m, tt_time(m->job, TT_TIME_GRACE), err, "%s cannot be reached at %s: %s",
		                    tt_member_label(m).text, at, reason(l, strerror(-err)));
	} else if (m->state == TT_CONNECTING) {
		m->untold = err == -ECONNRESET; /* it was there, and disconnected */
		tt_member_gone(m, err == -ENXIO ? -EHOSTUNREACH : err, "%s cannot be reached at %s: %s",
		               tt_member_label(m).text, at, reason(l, strerror(-err)));
	}
}

static void on_down(struct tt_peer *peer, int err)
{
	struct tt_link *l = peer->user;

	if (!l)
		return; /* there was no memory for one */
	if (l->member && l->member->link == l)
		lost(l->member, l, err);
	tt_link_doom(l);
}

const struct tt_events tt_peer_events = { .up = on_up, .message = on_message, .notify = on_notify, .down = on_down };
