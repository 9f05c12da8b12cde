/* connection.c - the other ranks: which wire leads to each, connected on first use, and the messages between members.
 *
 * Each of my nets, the best first, is asked in turn for the way to a rank that has an address there, until one leads to it.
 *
 * Whoever connects says HELLO; the other answers WELCOME, and both post on that one connection. If both connect at
 * once, the lower rank's connection wins: it answers BUSY on the other one, which its maker then drops.
 *
 *      rank 1 -- HELLO 1 --> rank 4          rank 4 -- HELLO 4 --> rank 1     (at the same time)
 *      rank 1 <-- WELCOME -- rank 4          rank 4 <---- BUSY --- rank 1
 *
 * An epoch tells a rank's lives apart. It is in the greetings and in every frame; a rank's later life ends the earlier one.
 *
 * A connection of the rendezvous is given up again: when it is no part of the tree (endpoint_tree.c), or on first use, if the table
 * names a better wire. One of the two asks; if the other side has put nothing else on it, it says yes, forgets it, and waits
 * until the asker hangs up. So nothing is lost, and a first use may come at any time: who asked lets posts wait for the answer,
 * who said yes makes a new connection. If both ask at once, both say yes.
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
	tt_list_init(&l->doom);
	return l;
}

void tt_link_doom(struct tt_link *l)
{
	if (tt_list_empty(&l->doom))
		tt_list_append(&tt_members(l->job)->doomed, &l->doom);
}

void tt_peer_settle(struct tt_job *job)
{
	struct tt_list *node;

	while ((node = tt_list_pop(&tt_members(job)->doomed))) {
		struct tt_link *l = tt_container_of(node, struct tt_link, doom);
		if (l->member && l->member->link == l)
			l->member->link = NULL;
		l->member = NULL;
		job->engine.neighbours -= is_near(l->peer);
		job->engine.afar -= !is_near(l->peer);
		tt_each_module(m, job, hangup)
			m->hangup(job, l->peer);
		tt_members(job)->hangups++;
		l->peer->net->transport->disconnect(l->peer);
		tt_timer_stop(&l->patience);
		tt_list_remove(&l->all);
		free(l);
		job->engine.news = true; /* a leaving thread waits for the last link */
	}
}

/* ---- posting ---- */

void tt_post_count(struct tt_post *p, int err)
{
	tt_stats_ended(&p->member->stats, p->op.kind == TT_SEND ? TUTTI_STAT_MESSAGE : TUTTI_STAT_CHUNK, p->since, p->op.len, err);
}

void tt_member_hold(struct tt_member *m) { m->outstanding++; }

void tt_member_let_go(struct tt_member *m)
{
	if (m->outstanding && !--m->outstanding && m->state == TT_LEFT && m->link)
		tt_link_doom(m->link);
}

static void finish_post(struct tt_op *op)
{
	struct tt_post *p = tt_container_of(op, struct tt_post, op);
	struct tt_member *m = p->member;
	int err = op->err == -ECONNRESET && m->state == TT_GONE ? m->err : op->err; /* cut off by us, say */

	if (p->local)
		p->local->net->transport->dereg(p->local);
	p->local = NULL;
	tt_member_let_go(m);
	p->done(p, err);
}

static void finish_unposted(struct tt_op *op)
{
	struct tt_post *p = tt_container_of(op, struct tt_post, op);

	p->done(p, op->err);
}

static void end_later(struct tt_job *job, struct tt_post *p, int err)
{
	p->op.err = err;
	p->op.done = finish_unposted;
	tt_queue_push(&job->ended, &p->op);
}

/* Some wires read and write only registered memory: longer pieces that are not are registered for this one op. */
static int make_reachable(struct tt_net *net, struct tt_post *p)
{
	struct tt_mem mem;

	if (p->op.region || p->op.len <= net->copy_max)
		return 0;
	mem = tt_mem_of(p->op.local, p->op.len);
	int err = net->transport->reg(net, &mem, 0, &p->local);
	p->op.region = p->local;
	return err;
}

/* The rendezvous and a goodbye: for these any connection will do. */
static bool may_pass(uint8_t type) { return type == TT_ENDPOINT || type == TT_ENDPOINTS || type == TT_LATE || type == TT_BYE || type == TT_PART; }

static bool is_passing(const struct tt_op *op) { return op->kind == TT_SEND && op->len && may_pass(*(const uint8_t *)op->local); }

static void hand_to_net(struct tt_member *m, struct tt_post *p)
{
	struct tt_peer *peer = m->link->peer;
	int err = make_reachable(peer->net, p);

	if (err) {
		end_later(m->job, p, err);
		return;
	}
	p->op.done = finish_post;
	tt_member_hold(m);
	m->link->used |= !is_passing(&p->op);
	peer->net->transport->post(peer, &p->op);
}

/* The wire within one host leads to no other one. */
static bool has_better_net(const struct tt_member *m)
{
	const struct tt_job *job = m->job;
	char addr[96];

	for (int i = 0; job->engine.nets[i] != m->link->peer->net; i++) {
		const struct tt_net *n = job->engine.nets[i];
		bool leads_there = !n->host_only || m->host == tt_member(job, job->rank)->host;
		if (leads_there && tt_address_find(m->addr, n->transport->name, addr))
			return true;
	}
	return false;
}

/* A connection of the rendezvous is not used for anything else where there is a better wire. */
static void leave_rendezvous(struct tt_member *m)
{
	if (m->state == TT_UP && !m->link->used && has_better_net(m))
		tt_member_part(m);
}

void tt_post(struct tt_member *m, struct tt_post *p)
{
	p->member = m;
	p->local = NULL;
	if (!is_passing(&p->op))
		leave_rendezvous(m);
	if (m->state == TT_UP) {
		hand_to_net(m, p);
	} else if (m->state == TT_LEFT || m->state == TT_GONE) {
		end_later(m->job, p, m->err);
	} else {
		tt_queue_push(&m->waiting, &p->op);
		tt_member_connect(m);
	}
}

static void flush_waiting(struct tt_member *m)
{
	struct tt_op_queue q = m->waiting;
	struct tt_op *op;

	m->waiting = (struct tt_op_queue){ 0 };
	while ((op = tt_queue_pop(&q)))
		tt_post(m, tt_container_of(op, struct tt_post, op));
}

static void give_up(struct tt_timer *t)
{
	struct tt_member *m = tt_container_of(t, struct tt_member, retry);

	m->untold = m->err == -ECONNRESET; /* it was there, and hung up on me */
	tt_member_gone(m, m->err, "%s", m->why);
}

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
	free(m->bye);
	m->bye = NULL;
}

/* As long as others will pass it on. */
static void set_why(struct tt_member *m, const char *fmt, va_list args)
{
	char text[200], *copy;

	vsnprintf(text, sizeof text, fmt, args); /* it may quote the old one */
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

/* Not at once: whoever just posted to it is in the middle of something. */
static void fail_soon(struct tt_member *m, uint64_t wait, int err, const char *fmt, ...) TT_FORMAT(4, 5);
static void fail_soon(struct tt_member *m, uint64_t wait, int err, const char *fmt, ...)
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

struct message {
	struct tt_post post;
	uint8_t bytes[];
};

static void free_message(struct tt_post *p, int err)
{
	tt_post_count(p, err);
	tt_scratch_give(&p->member->job->scratch, tt_container_of(p, struct message, post), sizeof(struct message) + p->op.len);
}

/* scratch: NULL for a message that comes back as an op alone. */
static struct message *make_message(struct tt_scratch *scratch, const void *head, size_t len, const void *body, size_t body_len)
{
	size_t room = sizeof(struct message) + len + body_len;
	struct message *msg = scratch ? tt_scratch_take(scratch, room) : malloc(room);

	if (!msg)
		return NULL;
	*msg = (struct message){ .post.done = free_message };
	memcpy(msg->bytes, head, len);
	if (body_len)
		memcpy(msg->bytes + len, body, body_len);
	msg->post.op.kind = TT_SEND;
	msg->post.op.local = msg->bytes;
	msg->post.op.len = len + body_len;
	return msg;
}

void tt_send(struct tt_member *m, const void *head, size_t len, const void *body, size_t body_len)
{
	struct message *msg = make_message(&m->job->scratch, head, len, body, body_len);

	if (!msg) {
		fail_soon(m, 0, -ENOMEM, "no memory for a message to rank %d", m->rank);
		return;
	}
	msg->post.since = tt_stats_start(m->job);
	tt_post(m, &msg->post);
}

/* An empty PUT that is not lazy. Without memory for one, the traffic of the next moments does it. */
void tt_member_nudge(struct tt_member *m)
{
	struct message *msg = make_message(&m->job->scratch, "", 0, NULL, 0);

	if (!msg)
		return;
	msg->post.op.kind = TT_PUT;
	tt_post(m, &msg->post);
}

/* Straight to a connection, also before it is known to belong to a member. */
static void finish_raw(struct tt_op *op) { free(tt_container_of(op, struct message, post.op)); }

static bool send_raw(struct tt_link *l, const void *bytes, size_t len) /* len: at most 64, so no wire wants it registered */
{
	struct message *msg = make_message(NULL, bytes, len, NULL, 0);

	if (!msg && l->member && l->member->link == l)
		tt_member_gone(l->member, -ENOMEM, "no memory for a message to rank %d", l->member->rank);
	if (!msg) {
		tt_link_doom(l);
		return false;
	}
	msg->post.op.done = finish_raw;
	l->peer->net->transport->post(l->peer, &msg->post.op);
	return true;
}

struct tt_net *tt_member_net(struct tt_member *m) { return m->link->peer->net; }

/* ---- connecting ---- */

/* The next of my nets, the one asked last included, on which it has an address; NULL: none is left. */
static struct tt_net *next_net(struct tt_member *m, char addr[96])
{
	struct tt_engine *e = &m->job->engine;

	for (; m->net_index < e->count; m->net_index++)
		if (tt_address_find(m->addr, e->nets[m->net_index]->transport->name, addr))
			return e->nets[m->net_index];
	return NULL;
}

/* This one does not lead there, and another one may. */
static bool turn_to_next_net(struct tt_member *m, const char *why)
{
	int failed = m->net_index++;
	char addr[96];

	if (!next_net(m, addr)) {
		m->net_index = failed;
		return false;
	}
	tt_log(TT_DEBUG, "rank %d is not reached over %s: %s", m->rank, m->job->engine.nets[failed]->transport->name, why);
	return true;
}

static void fail_waiting(struct tt_member *m, int err)
{
	struct tt_op *op;

	while ((op = tt_queue_pop(&m->waiting)))
		end_later(m->job, tt_container_of(op, struct tt_post, op), err);
}

static void lack_files(struct tt_timer *t)
{
	struct tt_member *m = tt_container_of(t, struct tt_member, retry);

	fail_waiting(m, -EMFILE);
	tt_each_module(module, m->job, unreached)
		module->unreached(m, -EMFILE);
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
			fail_soon(m, 0, -EHOSTUNREACH, "no transport of mine leads to rank %d at \"%s\"", m->rank, m->addr);
			return 0;
		}
		err = net->transport->connect(net, addr, &peer);
	} while (err && turn_to_next_net(m, tt_why())); /* also for lack of files: another one may need fewer */
	if (err == -EMFILE && job->joined) { /* not its fault: it may be reached later */
		m->state = TT_AWAY;
		m->unreached = tt_now();
		tt_timer_start(job, &m->retry, m->unreached, lack_files); /* whoever just posted is in the middle of something */
		return err;
	}
	if (err) {
		fail_soon(m, 0, err, "cannot connect to rank %d: %s", m->rank, tt_why());
		return 0;
	}
	m->link = new_link(job, peer, m);
	if (!m->link) {
		net->transport->disconnect(peer);
		fail_soon(m, 0, -ENOMEM, "no memory to connect to rank %d", m->rank);
	}
	return 0;
}

int tt_member_connect(struct tt_member *m)
{
	if (m->state != TT_AWAY || (!*m->addr && m->job->joined))
		return 0; /* a newcomer: news of where it is are on their way */
	tt_timer_stop(&m->retry);
	m->state = TT_CONNECTING;
	m->net_index = 0;
	return ask_nets(m);
}

int tt_member_reach(struct tt_member *m)
{
	int err;

	leave_rendezvous(m);
	if (m->state == TT_UP)
		return 0;
	err = tt_member_connect(m);
	return err ? err : 1;
}

static void member_up(struct tt_member *m, struct tt_link *l)
{
	l->member = m;
	m->link = l;
	tt_timer_stop(&l->patience);
	m->state = TT_UP;
	tt_log(TT_DEBUG, "rank %d is connected over %s", m->rank, l->peer->net->transport->name);
	tt_stats_count(&m->stats, TUTTI_STAT_CONNECT, 0);
	flush_waiting(m);
	if (m->job->leaving) {
		tt_rendezvous_leave_late(m);
		tt_say_bye(m);
	}
	tt_tell_up(m);
}

/* ---- letting go of a connection ---- */

void tt_member_part(struct tt_member *m)
{
	const uint8_t ask[2] = { TT_PART, PART_ASK };

	if (m->state == TT_UP && !m->link->used && !m->job->leaving && send_raw(m->link, ask, sizeof ask))
		m->state = TT_PARTING;
}

static void forget_link(struct tt_member *m)
{
	m->link->member = NULL;
	tt_link_doom(m->link);
	m->link = NULL;
}

/* The tree keeps all together: word of what has ended goes from one to the next. */
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
	tt_tell_up(m); /* who waited for the connection makes a new one */
}

static void answer_part(struct tt_member *m)
{
	struct tt_link *l = m->link;
	bool yes = m->state < TT_LEFT && !l->used && !m->job->leaving;
	const uint8_t answer[2] = { TT_PART, yes ? PART_YES : PART_NO };

	if (!send_raw(l, answer, sizeof answer) || !yes)
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
		forget_link(m);
		stand_apart(m);
	} else if (m->state == TT_PARTING) {
		m->link->used = true; /* by the other side: it stays */
		member_up(m, m->link);
	}
}

/* ---- greetings ---- */

static void say_hello(struct tt_link *l)
{
	uint8_t bytes[32];
	struct tt_pack p = tt_pack(bytes, sizeof bytes);

	tt_put8(&p, TT_HELLO);
	tt_put32(&p, tt_members(l->job)->unnumbered ? TT_NEW_RANK : (uint32_t)l->job->rank);
	tt_put32(&p, (uint32_t)tt_members(l->job)->launched);
	tt_put32(&p, l->job->epoch);
	tt_put8(&p, tt_is_joining(l->job));
	l->used = !tt_is_joining(l->job);
	send_raw(l, bytes, (size_t)(p.at - bytes));
}

static bool say_welcome(struct tt_link *l, const struct tt_member *to)
{
	uint8_t bytes[9];
	struct tt_pack p = tt_pack(bytes, sizeof bytes);

	tt_put8(&p, TT_WELCOME);
	tt_put32(&p, l->job->epoch);
	tt_put32(&p, (uint32_t)to->rank);
	return send_raw(l, bytes, sizeof bytes);
}

/* Who of an older life is heard of now has no say any more. False: the epoch is an earlier life's. */
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
	tt_member_gone(m, -ECONNRESET, "rank %d has started anew", m->rank);
	tt_timer_stop(&m->retry);
	m->untold = m->silent = m->accuser = m->passed_on = m->nets_again = m->settled = false;
	m->link = NULL; /* the old one is doomed */
	m->state = TT_AWAY;
	m->epoch = epoch;
	m->err = 0;
	tt_member_free(m);
	m->heard = m->patience = 0;
	m->tries = 0;
	if (!tt_members(m->job)->node_list) { /* where it is now comes with its card */
		m->addr = "";
		tt_members(m->job)->endpoints_known -= m->host != 0;
		m->host = 0;
	}
	m->fed = false;
	m->telling = 0;
	tt_each_module(module, m->job, reborn)
		module->reborn(m);
}

/* It knows the secret and says nothing more, or was refused and does not go. */
static void end_stranger(struct tt_timer *t)
{
	struct tt_link *l = tt_container_of(t, struct tt_link, patience);

	tt_log(TT_INFO, "closed the connection from %s: it has not become a rank's within a deadline", l->peer->addr);
	tt_link_doom(l);
}

/* again: it may be right in a moment. */
static void refuse(struct tt_link *l, enum tt_level level, bool again, const char *why)
{
	uint8_t bytes[64];
	struct tt_pack p = tt_pack(bytes, sizeof bytes);

	tt_log(again ? TT_DEBUG : level, "refused a process at %s: %s", l->peer->addr, why);
	if (!again)
		tt_stats_count(&l->job->stats.own, TUTTI_STAT_REFUSED, 0);
	tt_put8(&p, TT_REFUSED);
	tt_put8(&p, again);
	tt_put_text(&p, why);
	send_raw(l, bytes, (size_t)(p.at - bytes));
}

void tt_member_refuse(struct tt_member *m, const char *why)
{
	refuse(m->link, TT_WARN, false, why);
	m->link->member = NULL;
	tt_timer_start(m->job, &m->link->patience, tt_now() + m->job->deadline, end_stranger);
	m->link = NULL;
	m->state = TT_AWAY;
}

struct hello {
	uint32_t rank, launched, epoch;
	bool joining; /* to get the table, and not to use a member for the first time */
};

/* Than the one known, and a later one. */
static bool is_another_life(const struct tt_member *m, const struct hello *h) { return tt_is_new_life(m, h->epoch); }

/* A connection may stand for a while after its process has ended. */
static void doubt(struct tt_member *m)
{
	if (!m->link->doubted)
		tt_heartbeat_ask(m->link);
	m->link->doubted = true;
}

static bool surely_lives(const struct tt_member *m) { return m->state == TT_UP && m->link->doubted && !m->link->heartbeat.asked; }

/* It may come in a moment: when the earlier life has been looked after; or by another epoch than that one had. */
static bool may_come_again(const struct tt_job *job, const struct tt_member *m, const struct hello *h)
{
	return m && job->joined && h->joining && ((is_another_life(m, h) && !surely_lives(m)) || (m->state >= TT_LEFT && m->epoch == h->epoch));
}

/* Short sentences: they travel. */
static const char *fault_of_hello(const struct tt_job *job, const struct hello *h, char *text, size_t room)
{
	const struct tt_member *m = h->rank < (uint32_t)job->size ? tt_member(job, h->rank) : NULL;

	if (h->launched != (uint32_t)tt_members(job)->launched)
		snprintf(text, room, "it counts %u ranks, rank %d counts %d", h->launched, job->rank, tt_members(job)->launched);
	else if (h->rank == TT_NEW_RANK)
		snprintf(text, room, job->rank ? "new ranks come in at rank 0" : job->joined ? "there is no room for more ranks" : "not all ranks have joined");
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

/* A later life of it ends the earlier one, unless that may be alive and this one is about to join: then it is looked after. */
static struct tt_member *who_comes(struct tt_job *job, struct hello *h)
{
	struct tt_member *m = h->rank == TT_NEW_RANK && h->launched == (uint32_t)tt_members(job)->launched ? tt_late_join_number(job) : NULL;

	if (h->rank == TT_NEW_RANK && !m)
		return NULL;
	if (m)
		h->rank = (uint32_t)m->rank;
	if (h->launched != (uint32_t)tt_members(job)->launched || h->rank >= (uint32_t)tt_members(job)->capacity)
		return h->rank < (uint32_t)job->size ? tt_member(job, h->rank) : NULL;
	if (job->joined && !h->joining)
		tt_late_join_grow(job, (int)h->rank + 1); /* news of it are on their way */
	if (h->rank >= (uint32_t)job->size)
		return NULL;
	m = tt_member(job, h->rank);
	if (!job->joined || m->rank == job->rank || !is_another_life(m, h))
		return m;
	if (h->joining && m->state == TT_UP)
		doubt(m);
	else if (h->joining && m->state < TT_LEFT)
		tt_member_connect(m);
	else
		tt_member_reborn(m, h->epoch);
	return m;
}

static void take_welcome(struct tt_link *l, struct tt_pack *p)
{
	struct tt_member *m = l->member;
	uint32_t epoch = tt_get32(p), rank = tt_get32(p);

	if (!p->bad && tt_members(l->job)->unnumbered && rank >= (uint32_t)tt_members(l->job)->launched && rank < (uint32_t)tt_members(l->job)->capacity)
		tt_late_join_take_number(l->job, (int)rank);
	p->bad |= tt_members(l->job)->unnumbered || rank != (uint32_t)l->job->rank;
	if (p->bad || !epoch)
		tt_member_gone(m, -EPROTO, "rank %d answered a greeting with nonsense", m->rank);
	else if (!tt_member_epoch(m, epoch) && !tt_before(m->epoch, epoch))
		tt_member_gone(m, -ECONNRESET, "rank %d answered as an earlier life of itself", m->rank);
	else if (m->epoch != epoch) {
		tt_member_gone(m, -ECONNRESET, "rank %d has started anew", m->rank); /* its own greeting comes, or news of it */
	} else {
		member_up(m, l);
	}
}

static void take_hello(struct tt_link *l, struct tt_pack *p)
{
	struct tt_job *job = l->job;
	struct hello h = { .rank = tt_get32(p), .launched = tt_get32(p), .epoch = tt_get32(p), .joining = tt_get8(p) };
	const uint8_t busy = TT_BUSY;
	char text[56];

	if (p->bad || l->mine || l->member || !h.epoch) {
		refuse(l, TT_WARN, false, "its greeting makes no sense");
		return;
	}
	struct tt_member *m = who_comes(job, &h);
	bool late = job->joined && h.joining; /* no connection of mine can have crossed its */
	if (m && m->state == TT_UP && m->link->mine && job->rank < m->rank && !late && !is_another_life(m, &h)) {
		send_raw(l, &busy, 1); /* we crossed, and mine was there first */
		return;
	}
	if (fault_of_hello(job, &h, text, sizeof text)) {
		bool again = may_come_again(job, m, &h);
		refuse(l, m && m->state >= TT_LEFT ? TT_INFO : TT_WARN, again, text); /* a greeting may come later than the goodbye */
		if (m && m->link && !again)
			m->link->doubted = false; /* the next one's turn to ask */
		return;
	}
	if (m->state == TT_CONNECTING && m->link && job->rank < m->rank) {
		if (late) { /* a process of that very moment? My own connection would not reach it */
			snprintf(text, sizeof text, "rank %u is already taken", h.rank);
			refuse(l, TT_INFO, true, text);
		} else {
			send_raw(l, &busy, 1);
		}
		return;
	}
	if (!say_welcome(l, m))
		return;
	tt_member_epoch(m, h.epoch);
	tt_timer_stop(&m->retry);
	if (m->state == TT_PARTING)
		forget_link(m);
	l->used = !h.joining;
	m->settled |= !h.joining;
	member_up(m, l);
}

static void take_refusal(struct tt_link *l, struct tt_pack *p)
{
	bool again = tt_get8(p);
	char text[64];

	tt_get_text(p, text, sizeof text);
	if (!l->job->joined && !tt_members(l->job)->join_err)
		snprintf(tt_members(l->job)->join_why, sizeof tt_members(l->job)->join_why, "%s refused this process as rank %d: %s", l->peer->addr, l->job->rank, text);
	if (again && !l->job->joined && l->member && l->member->link == l && tt_rendezvous_retry(l->member, l->job->deadline / 2)) {
		l->job->epoch = tt_member(l->job, l->job->rank)->epoch = tt_epoch_now();
		l->member->link = NULL;
		tt_link_doom(l);
		return;
	}
	if (!l->job->joined && !tt_members(l->job)->join_err)
		tt_members(l->job)->join_err = -EPERM;
	if (l->member && l->member->link == l) { /* and not one that lost a crossing long ago */
		l->member->untold = true; /* if I was cut off, that is no news to be spread by me */
		tt_member_gone(l->member, -EPERM, "rank %d refused this process: %s", l->member->rank, text);
	}
	tt_link_doom(l);
}

/* ---- events ---- */

/* One of a node list may have come up just after a better wire was asked. Who answers over any has all of them, so once more is enough. */
static bool ask_better_nets(struct tt_link *l)
{
	struct tt_member *m = l->member;

	if (!tt_members(l->job)->node_list || !m || m->link != l || m->nets_again || !has_better_net(m))
		return false;
	m->nets_again = true;
	forget_link(m);
	m->net_index = 0;
	ask_nets(m);
	return true;
}

static void on_up(struct tt_peer *peer)
{
	struct tt_job *job = peer->net->user;
	struct tt_link *l = peer->user;

	if (l && ask_better_nets(l))
		return;
	if (l)
		say_hello(l);
	else if (!(l = new_link(job, peer, NULL)))
		tt_log(TT_ERROR, "no memory for a connection from %s", peer->addr);
	else
		tt_timer_start(job, &l->patience, tt_now() + job->deadline, end_stranger);
}

bool tt_member_take_bye(struct tt_pack *p, struct tt_pack *list)
{
	unsigned n;

	*list = *p;
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

void tt_take_refused(struct tt_member *m, struct tt_pack *p) { take_refusal(m->link, p); }

static void member_message(struct tt_member *m, uint8_t type, struct tt_pack *p)
{
	const struct tt_message *message = tt_members(m->job)->message[type];

	tt_stats_count(&m->stats, TUTTI_STAT_MESSAGE_IN, tt_pack_left(p) + 1);
	m->link->used |= !may_pass(type);
	m->settled |= !may_pass(type);
	if (message)
		message->take(m, p);
	p->bad |= !message;
	if (p->bad)
		tt_member_gone(m, -EPROTO, "rank %d sent a message that makes no sense (type %d)", m->rank, type);
}

/* The other side's own connection stands, or is about to. */
static void take_busy(struct tt_link *l)
{
	struct tt_member *m = l->member;

	if (m && m->link == l && m->state == TT_CONNECTING) {
		m->link = NULL;
		fail_soon(m, m->job->deadline, -ETIMEDOUT, "rank %d wanted to connect itself, and did not within a deadline", m->rank);
	}
	tt_link_doom(l);
}

/* Before a member is known, only greetings are listened to. */
static void greeting(struct tt_link *l, uint8_t type, struct tt_pack *p)
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
	else if (m && m->link == l)
		tt_member_gone(m, -EPROTO, "rank %d answered a greeting with something else (type %d)", m->rank, type);
	else
		tt_link_doom(l);
}

static void on_message(struct tt_peer *peer, const void *bytes, size_t len)
{
	struct tt_link *l = peer->user;
	struct tt_pack p = tt_unpack(bytes, len);
	uint8_t type = tt_get8(&p);

	if (!l || !tt_list_empty(&l->doom))
		return;
	if (l->member && l->member->link == l && l->member->state >= TT_PARTING)
		member_message(l->member, type, &p);
	else
		greeting(l, type, &p);
}

static void on_notify(struct tt_peer *peer, uint32_t value)
{
	struct tt_link *l = peer->user;

	if (!l || !l->member || !tt_list_empty(&l->doom))
		return;
	tt_each_module(m, l->job, notify)
		if (value >= m->notify_first && value <= m->notify_last)
			m->notify(l->member, value);
}

/* The wire's own sentence; but tt_why() may still be about something else. */
static const char *reason(const struct tt_link *l, const char *otherwise)
{
	return strstr(tt_why(), l->peer->addr) ? tt_why() : otherwise;
}

/* Nobody listens there any more; or it hung up, perhaps in the middle of the handshake, where that looks like a wrong secret. */
static bool may_have_left(int err) { return err == -EHOSTUNREACH || err == -ECONNRESET || err == -EACCES; }

static void lost(struct tt_member *m, struct tt_link *l, int err)
{
	bool connected = m->state == TT_UP || m->state == TT_PARTING;
	char at[96] = "";

	tt_address_find(m->addr, l->peer->net->transport->name, at);

	if (m->state == TT_LEFT)
		m->link = NULL;
	else if (connected && m->job->leaving)
		tt_member_left(m, NULL);
	else if (connected) {
		m->untold = true;
		tt_member_gone(m, -ECONNRESET, "rank %d (%s) went down: %s", m->rank, l->peer->addr, reason(l, "its connection broke"));
	} else if (m->state == TT_CONNECTING && err == -EHOSTUNREACH && turn_to_next_net(m, reason(l, strerror(-err)))) {
		m->link = NULL;
		ask_nets(m);
	} else if (m->state == TT_CONNECTING && err == -EHOSTUNREACH && tt_rendezvous_retry(m, m->job->deadline))
		m->link = NULL;
	else if (m->state == TT_CONNECTING && may_have_left(err) && tt_news_ask_missed(m)) {
		m->link = NULL;
		fail_soon(m, tt_time(m->job, TT_TIME_GRACE), err, "rank %d cannot be reached at %s: %s", m->rank, at, reason(l, strerror(-err)));
	} else if (m->state == TT_CONNECTING) {
		m->untold = err == -ECONNRESET; /* it was there, and hung up on me */
		tt_member_gone(m, err, "rank %d cannot be reached at %s: %s", m->rank, at, reason(l, strerror(-err)));
	}
}

static void on_down(struct tt_peer *peer, int err)
{
	struct tt_link *l = peer->user;

	if (!l)
		return; /* there was no memory for it */
	if (l->member && l->member->link == l)
		lost(l->member, l, err);
	tt_link_doom(l);
}

const struct tt_events tt_peer_events = { .up = on_up, .message = on_message, .notify = on_notify, .down = on_down };

/* ---- ends ---- */

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
	fail_waiting(m, m->err);
	tt_each_module(module, m->job, ended)
		module->ended(m);
	tt_agree_member_down(m);
	m->job->engine.news = true; /* who waits for its notifies looks again */
}

void tt_member_gone(struct tt_member *m, int err, const char *fmt, ...)
{
	va_list args;

	if (m->state == TT_GONE)
		return;
	if (m->link) /* who lives, but was cut off for something else, has answered */
		m->link->peer->frozen = err == -ETIMEDOUT && m->link->heartbeat.asked;
	m->untold &= m->state < TT_LEFT && m->job->joined && !m->job->leaving; /* else nobody is ever told, nor needs to be */
	if (m->state == TT_LEFT && !m->job->leaving) { /* all that needs it has ended; what it still holds of mine does now */
		if (m->link)
			tt_link_doom(m->link);
		return;
	}
	tt_timer_stop(&m->retry);
	if (m->state != TT_LEFT) {
		va_start(args, fmt);
		set_why(m, fmt, args);
		va_end(args);
		tt_log(TT_INFO, "%s", m->why);
		if (!m->job->leaving) /* then all go */
			tt_stats_count(&m->stats, TUTTI_STAT_GONE, 0);
		m->silent = err == -ETIMEDOUT;
		m->err = err == -ENOTCONN || (!m->job->joined && m->rank == 0) ? err : -ECONNRESET; /* joining says more */
	}
	if (m->state != TT_LEFT)
		tt_group_seats_out(m, NULL);
	m->state = TT_GONE;
	if (m->link)
		tt_link_doom(m->link);
	member_ended(m);
	tt_rendezvous_gone(m);
	if (m->job->joined && !m->job->leaving) {
		tt_watch_tell(m->job, m, TUTTI_GONE);
		tt_news_tell(m);
	}
}

/* For those who hear of it from here. Without memory they do at half their deadline, when they ask for it. */
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
	m->err = -ENOTCONN;
	say_why(m, "rank %d has left the job", m->rank);
	if (m->link && !m->outstanding)
		tt_link_doom(m->link);
	if (bye) {
		keep_bye(m, bye);
		tt_group_seats_out(m, bye);
	}
	member_ended(m);
	if (m->job->joined && !m->job->leaving) {
		tt_watch_tell(m->job, m, TUTTI_LEFT);
		tt_news_mend(m->job);
	}
}
