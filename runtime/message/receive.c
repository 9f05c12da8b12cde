/* receive.c - messages that come: kept until a receive matches, or put into the memory of a posted receive */
#include "message/message_private.h"
#include "operation/operation.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { OWED_MAX = TT_MSG_CREDIT_ALL / 4 }; /* a CREDIT stands for so many bytes */

struct receive {
	struct tt_list link;        /* in tt_messages.posted */
	struct tt_operation *op;
	struct tutti *group;        /* only while the receive is posted: a receive ends with its group */
	uint32_t uid;
	struct tt_member *from;     /* NULL: any */
	int tag;
	char *memory;
	size_t room;
	tutti_message *info;
	struct tt_pinned *pinned;
	struct tt_msg_kept *fetched; /* the OFFER whose bytes come, ... */
	struct tt_post get;
	char *copy;                 /* ... here, if the net does not reach the memory; scratch */
};

struct tt_msg_peer *tt_msg_peer(struct tt_member *m)
{
	struct tt_msg_peer *p = tt_member_make_own(m, TT_MESSAGE_SLOT, sizeof *p);

	if (!p || p->member)
		return p;
	p->member = m;
	tt_list_init(&p->waiting);
	tt_list_init(&p->offered);
	tt_list_init(&p->fetching);
	return p;
}

/* ---- arguments ---- */

int tt_msg_check(const char *what, struct tutti *g, int rank, int tag, const void *memory, size_t bytes)
{
	if (tag < 0)
		return tt_fail(-EINVAL, "%s: tag %d must be from 0 up", what, tag);
	if (!memory && bytes)
		return tt_fail(-EINVAL, "%s: %zu bytes at NULL", what, bytes);
	if (rank != -1 && tt_group_to_job(g, rank) < 0)
		return tt_fail(-EINVAL, "%s: rank %d must be from 0 to %d", what, rank, tt_group_count(g) - 1);
	return 0;
}

int tt_msg_find(const char *what, struct tutti *g, int rank, struct tt_member **m)
{
	*m = rank < 0 ? NULL : tt_member(g->job, tt_group_to_job(g, rank));
	if (g->retired && !tt_msg_is_job(g))
		return tt_fail(-ESTALE, "%s: this group has been shrunk or grown: go on with the group that came of it",
		               what);
	return 0;
}

/* 0; or what the seat, or the rank of the job, has ended with. */
int tt_msg_fault(const struct tutti *g, const struct tt_member *m)
{
	const struct tt_seat *s = tt_msg_is_job(g) ? NULL : tt_group_find(g, m);

	if (m->rank == g->job->rank)
		return 0;
	if (m->state >= TT_LEFT)
		return tt_msg_how_ended(m);
	if (tt_msg_is_job(g))
		return 0;
	return !s ? -ECONNRESET : s->out ? s->err : 0;
}

/* All other ranks of a group have ended. In the job's handle no rank is ever alone, as others may join. */
static bool is_alone(const struct tutti *g)
{
	if (tt_msg_is_job(g) || g->n == 1)
		return false;
	for (int i = 0; i < g->n; i++)
		if (i != g->me && !tt_msg_fault(g, tt_group_member(g, i)))
			return false;
	return true;
}

/* ---- the end of a receive ---- */

static void end_receive(struct receive *r, int err, size_t bytes)
{
	struct tt_operation *op = r->op;
	struct tt_job *job = op->job;

	tt_list_remove(&r->link);
	if (op->rank >= 0)
		tt_stats_ended(&tt_member(job, op->rank)->stats, TUTTI_STAT_RECV, op->post.since, bytes, err);
	tt_unpin(job, r->pinned);
	op->of = NULL;
	op->group = NULL;
	free(r);
	tt_operation_end(op, err);
}

static int number_in(const struct tutti *g, const struct tt_member *m)
{
	return tt_msg_is_job(g) ? m->rank : g->seat_of[m->rank];
}

/* A message has met a receive, whose memory may be too small. */
static void note_match(struct receive *r, struct tt_member *from, size_t len)
{
	r->op->rank = from->rank;
	if (r->info)
		*r->info = (tutti_message){ .rank = number_in(r->group, from), .tag = r->tag, .bytes = len };
	r->op->post.op.offset = len; /* for the sentence */
}

static bool receive_matches(const struct receive *r, uint32_t group, int tag, const struct tt_member *from)
{
	return r->uid == group && r->tag == tag && (!r->from || r->from == from);
}

/* Finds the first receive that takes the message. Earlier receives whose memory is too small end. */
static struct receive *find_receive(struct tt_job *job, uint32_t group, int tag, struct tt_member *from, size_t len)
{
	tt_each_of(struct receive, link, r, &tt_messages(job)->posted[tt_msg_bucket(group, tag)]) {
		if (!receive_matches(r, group, tag, from))
			continue;
		note_match(r, from, len);
		if (r->room >= len)
			return r;
		end_receive(r, -EMSGSIZE, 0);
	}
	return NULL;
}

/* ---- what is kept ---- */

static struct tt_msg_kept *new_kept(struct tt_msg_peer *from, uint32_t group, int tag, size_t len, size_t bytes)
{
	struct tt_msg_kept *k = calloc(1, sizeof *k + bytes);

	if (!k)
		return NULL;
	tt_list_init(&k->link);
	tt_list_init(&k->same_sender);
	k->from = from;
	k->group = group;
	k->tag = tag;
	k->len = len;
	return k;
}

static struct tt_list *kept_of_sender(const struct tt_member *m, uint32_t group, int tag)
{
	return &tt_messages(m->job)->kept_of_sender[tt_msg_sender_bucket(group, tag, m->rank)];
}

static void keep_message(struct tt_msg_kept *k)
{
	const struct tt_member *m = k->from->member;

	tt_list_append(&tt_messages(m->job)->kept[tt_msg_bucket(k->group, k->tag)], &k->link);
	tt_list_append(kept_of_sender(m, k->group, k->tag), &k->same_sender);
}

static void unlink_message(struct tt_msg_kept *k)
{
	tt_list_remove(&k->link);
	tt_list_remove(&k->same_sender);
}

static void give_credit(struct tt_msg_peer *p, size_t cost)
{
	struct tt_member *m = p->member;
	uint32_t owed;

	if (m->rank == m->job->rank)
		return;
	owed = (uint32_t)(p->owed += cost);
	if (owed < OWED_MAX || m->state >= TT_LEFT)
		return;
	p->owed = 0;
	tt_send_words(m, TT_MSG_CREDIT, &owed, 1, NULL, 0);
}

static void say_taken(struct tt_member *m, uint32_t number, bool taken)
{
	const uint32_t words[] = { number, taken };

	if (m->state < TT_LEFT)
		tt_send_words(m, TT_MSG_TAKEN, words, 2, NULL, 0);
}

/* The receiver keeps the bytes of a SEND no longer. */
static void settle(struct tt_msg_kept *k)
{
	struct tt_msg_peer *p = k->from;

	if (k->own || k->offer) {
		return;
	} else if (k->former) {
		p->former -= tt_msg_cost(k->len); /* the sender's new process knows nothing of the message */
	} else if (p) {
		p->kept -= tt_msg_cost(k->len);
		give_credit(p, tt_msg_cost(k->len));
	}
}

/* The message has been received, or is dropped with an error. */
static void let_go(struct tt_msg_kept *k, int err)
{
	struct tt_msg_peer *p = k->from;

	unlink_message(k);
	if (k->own) {
		tt_operation_end(k->own, err);
	} else if (k->offer && p) {
		p->announced--;
		say_taken(p->member, k->number, !err);
		if (k->recall)
			tt_loan_stopped(p->member, k->recall);
	} else {
		settle(k);
	}
	free(k);
}

/* ---- a match ---- */

/* Messages behind one whose bytes are lost, of the same sender, group and tag, must not take its place: they end with
 * their sender. first: the first message that may be behind. */
static void mark_followers(const struct tt_msg_kept *lost, const struct tt_list *first)
{
	const struct tt_list *bucket = kept_of_sender(lost->from->member, lost->group, lost->tag);

	for (const struct tt_list *at = first ? first : bucket->next; at != bucket; at = at->next) {
		struct tt_msg_kept *k = tt_container_of(at, struct tt_msg_kept, same_sender);
		k->lost |= k->from == lost->from && k->group == lost->group && k->tag == lost->tag;
	}
}

static void end_fetch(struct tt_post *get, int err)
{
	struct receive *r = tt_container_of(get, struct receive, get);
	struct tt_scratch *scratch = &r->op->job->scratch;
	struct tt_msg_kept *k = r->fetched;
	size_t len = k->len;

	if (err && tt_device_why(r->op->job))
		tt_operation_word(r->op, tt_device_why(r->op->job));
	if (r->copy && !err)
		memcpy(r->memory, r->copy, len);
	tt_scratch_give(scratch, r->copy, len);
	if (err && k->from)
		mark_followers(k, NULL); /* all that is kept with this tag came later */
	let_go(k, err);
	end_receive(r, err, len);
}

/* Once posted the GET ends by itself: the sender lives, or is evicted. */
static void fetch_offer(struct receive *r, struct tt_msg_kept *k)
{
	struct tt_job *job = r->op->job;
	struct tt_op *op = &r->get.op;

	unlink_message(k);
	tt_list_append(&k->from->fetching, &k->link);
	r->fetched = k;
	if (k->len > job->engine.look_above && !r->pinned && !(r->copy = tt_scratch_take(&job->scratch, k->len))) {
		end_fetch(&r->get, -ENOMEM);
		return;
	}
	if (!k->len) {
		end_fetch(&r->get, 0);
		return;
	}
	op->kind = TT_GET;
	op->local = r->copy ? r->copy : r->memory;
	op->len = k->len;
	op->key = &k->key;
	op->offset = k->at;
	r->get.pinned = r->copy ? NULL : r->pinned;
	r->get.done = end_fetch;
	tt_post(k->from->member, &r->get);
}

/* The bytes are here, and the receive's memory is a device's, or that of this rank's own send is. */
static void land(struct receive *r, struct tt_msg_kept *k)
{
	struct tt_device_end to = { r->memory, tt_pinned_on_device(r->pinned) ? r->pinned : NULL };
	struct tt_device_end from = { k->own ? (char *)(uintptr_t)k->memory : k->bytes, k->pinned };

	unlink_message(k);
	settle(k); /* its sender may end meanwhile */
	k->from = NULL;
	k->former = false;
	r->fetched = k;
	r->get.done = end_fetch;
	tt_device_copy(r->op->job, &r->get, to, from, k->len);
}

static void receive_kept(struct receive *r, struct tt_msg_kept *k)
{
	size_t len = k->len;

	tt_list_remove(&r->link);
	r->group = NULL;
	r->op->group = NULL;
	if (k->offer && !k->own) {
		fetch_offer(r, k);
		return;
	}
	if (len && (k->pinned || tt_pinned_on_device(r->pinned))) {
		land(r, k);
		return;
	}
	if (len)
		memcpy(r->memory, k->own ? k->memory : k->bytes, len);
	let_go(k, 0);
	end_receive(r, 0, len);
}

static struct tt_msg_kept *find_kept(const struct receive *r)
{
	if (r->from)
		tt_each_of(struct tt_msg_kept, same_sender, k, kept_of_sender(r->from, r->uid, r->tag))
			if (!k->early && receive_matches(r, k->group, k->tag, k->from->member))
				return k;
	if (!r->from)
		tt_each_of(struct tt_msg_kept, link, k, &tt_messages(r->op->job)->kept[tt_msg_bucket(r->uid, r->tag)])
			if (!k->early && receive_matches(r, k->group, k->tag, k->from->member))
				return k;
	return NULL;
}

/* ---- what comes ---- */

struct head {
	uint16_t slot;
	uint32_t group, tag;
	bool early;                 /* the group is not agreed on yet */
};

/* False: the group is closed here. */
static bool take_head(struct tt_member *from, struct tt_pack *p, struct head *h)
{
	struct tt_seat *seat = NULL;
	const struct tutti *g;

	h->slot = tt_get16(p);
	h->group = tt_get32(p);
	h->tag = tt_get32(p);
	p->bad |= h->tag > INT_MAX;
	if (p->bad || !h->group)
		return !p->bad;
	g = tt_group_meant(from, h->slot, h->group, &seat);
	h->early = g && !seat;
	return g;
}

static struct tt_msg_peer *peer_of(struct tt_member *from)
{
	struct tt_msg_peer *p = tt_msg_peer(from);

	if (!p)
		tt_member_gone(from, -ENOMEM, "no memory for a message of %s", tt_member_label(from).text);
	return p;
}

static void store_message(struct tt_msg_peer *from, const struct head *h, struct tt_msg_kept *k)
{
	struct tt_member *m = from->member;

	if (!k) {
		tt_member_gone(m, -ENOMEM, "no memory for a message of %s", tt_member_label(m).text);
		return;
	}
	k->slot = h->slot;
	k->early = h->early;
	from->announced += k->offer;
	from->kept += k->offer ? 0 : tt_msg_cost(k->len);
	keep_message(k);
}

void tt_msg_take_send(struct tt_member *from, struct tt_pack *p)
{
	struct tt_msg_peer *peer = peer_of(from);
	struct head h = { 0 };
	bool open = peer && take_head(from, p, &h);
	size_t len = tt_pack_left(p), cost = tt_msg_cost(len);
	struct tt_msg_kept *k;
	struct receive *r;

	p->bad |= len > TT_MSG_SHORT || (peer && peer->kept + peer->owed + cost > TT_MSG_CREDIT_ALL);
	if (p->bad || !peer)
		return;
	r = open && !h.early ? find_receive(from->job, h.group, (int)h.tag, from, len) : NULL;
	if (open && (!r || tt_pinned_on_device(r->pinned))) {
		k = new_kept(peer, h.group, (int)h.tag, len, len);
		if (k)
			memcpy(k->bytes, p->at, len);
		store_message(peer, &h, k);
		if (k && r)
			receive_kept(r, k);
		return;
	}
	if (r && len)
		memcpy(r->memory, p->at, len);
	give_credit(peer, cost);
	if (r)
		end_receive(r, 0, len);
}

void tt_msg_take_offer(struct tt_member *from, struct tt_pack *p)
{
	struct tt_msg_peer *peer = peer_of(from);
	struct head h = { 0 };
	bool open = peer && take_head(from, p, &h);
	uint32_t number = tt_get32(p);
	uint64_t len = tt_get64(p), at = tt_get64(p);
	struct tt_key key;

	tt_get_key(p, &key);
	p->bad |= at > key.len || len > key.len - at || (peer && peer->announced >= TT_MSG_OFFERS);
	if (p->bad || !peer)
		return;
	if (!open) {
		say_taken(from, number, false);
		return;
	}
	struct receive *r = h.early ? NULL : find_receive(from->job, h.group, (int)h.tag, from, len);
	struct tt_msg_kept *k = new_kept(peer, h.group, (int)h.tag, len, 0);
	if (k) {
		k->offer = true;
		k->number = number;
		k->key = key;
		k->at = at;
	}
	store_message(peer, &h, k);
	if (k && r)
		receive_kept(r, k);
}

/* The sender takes an OFFER back. */
bool tt_msg_take_recall(struct tt_member *from, struct tt_pack *p, uint32_t recall)
{
	struct tt_msg_peer *peer = tt_member_own(from, TT_MESSAGE_SLOT);
	uint32_t number = tt_get32(p);

	if (p->bad || !peer)
		return true;
	tt_each_of(struct tt_msg_kept, link, k, &peer->fetching)
		if (k->number == number) {
			k->recall = recall; /* STOPPED follows TAKEN */
			/* a stream that stands still, here or there, holds nothing up */
			tt_device_recalled(from, &k->key, "the sender has taken the message back: its stream, or that "
			                   "of this rank, had not come to the call in time");
			return false;
		}
	for (int i = 0; i < TT_MSG_BUCKETS; i++)
		tt_each_of(struct tt_msg_kept, link, k, &tt_messages(from->job)->kept[i])
			if (k->from == peer && k->offer && k->number == number) {
				unlink_message(k);
				free(k);
				peer->announced--;
				return true;
			}
	return true;
}

/* ---- this rank's own ---- */

int tt_msg_deliver_own(struct tutti *g, int tag, const void *memory, size_t len, struct tt_pinned *pinned,
                       struct tt_operation *op)
{
	struct tt_job *job = g->job;
	struct tt_msg_peer *self = tt_msg_peer(tt_member(job, job->rank));
	bool small = len <= TT_MSG_SHORT && self && self->kept + tt_msg_cost(len) <= TT_MSG_CREDIT_ALL;
	struct receive *r = self ? find_receive(job, tt_msg_group(g), tag, self->member, len) : NULL;
	bool device = pinned || (r && tt_pinned_on_device(r->pinned)), copied = small && !device;
	struct tt_msg_kept *k;

	if (r && !device) {
		if (len)
			memcpy(r->memory, memory, len);
		end_receive(r, 0, len);
		return 1;
	}
	if (!copied && job->ending)
		return -ESHUTDOWN; /* after tt_messages_shut */
	if (!self || !(k = new_kept(self, tt_msg_group(g), tag, len, copied ? len : 0)))
		return tt_fail(-ENOMEM, "send: no memory for a message of %zu bytes to this rank itself", len);
	if (copied && len)
		memcpy(k->bytes, memory, len);
	self->kept += copied ? tt_msg_cost(len) : 0;
	k->offer = !copied;
	k->own = copied ? NULL : op;
	k->memory = memory;
	k->pinned = pinned;
	if (!copied)
		op->of = k;
	keep_message(k);
	if (r)
		receive_kept(r, k);
	return copied;
}

bool tt_msg_withdraw_own(struct tt_operation *op)
{
	struct tt_msg_kept *k = op->of;

	if (!k->from)
		return false;
	unlink_message(k);
	free(k);
	return true;
}

/* ---- tutti_recv ---- */

static void give_up_receive(struct tt_operation *op, int err)
{
	struct receive *r = op->of;

	if (r->group)
		end_receive(r, err, 0);
	else /* the bytes are on their way, unless they wait for the caller's stream */
		tt_device_give_up(op->job, &r->get, err);
}

static int explain_receive(const struct tt_operation *op)
{
	struct tt_label sender = { "any rank" };
	const char *from = sender.text;
	int tag = (int)op->post.op.operand;

	if (op->rank >= 0)
		sender = tt_member_label(tt_member(op->job, op->rank));

	if (op->err == -EMSGSIZE)
		return tt_fail(op->err, "recv: the message with tag %d from %s has %llu bytes, and the memory has %zu: "
		               "the message stays, call again with memory for all of it", tag, from,
		               (unsigned long long)op->post.op.offset, op->post.op.len);
	if (op->err == -ETIMEDOUT)
		return tt_fail(op->err, "recv: no message with tag %d has come from %s within %llu ms", tag, from,
		               (unsigned long long)(op->timeout / TT_MS));
	if (op->err == -ESTALE)
		return tt_fail(op->err, "recv: this group was shrunk or grown before a message with tag %d had come "
		               "from %s: go on with the group that came of it", tag, from);
	if (op->err == -ECANCELED)
		return tt_fail(op->err, "recv: it was cancelled, or its group was freed, before a message with tag %d "
		               "came from %s", tag, from);
	if (op->err == -ESHUTDOWN)
		return tt_fail(op->err, "recv: this process has left the job (tutti_leave) before a message with tag "
		               "%d came from %s", tag, from);
	if (op->rank < 0 && op->err == -ECONNRESET)
		return tt_fail(op->err, "recv: all other ranks of the group are gone or have left, and no message with "
		               "tag %d is left of them", tag);
	return 0;
}

static void describe_receive(const struct tt_operation *op, char *text, size_t size)
{
	snprintf(text, size, "a message with tag %d from %s", (int)op->post.op.operand,
	         op->rank < 0 ? "any rank" : "this rank itself");
}

static const struct tt_operation_kind receive_kind = {
	.give_up = give_up_receive,
	.explain = explain_receive,
	.describe = describe_receive,
};

static int fault_of_senders(const struct receive *r)
{
	return r->from ? tt_msg_fault(r->group, r->from) : is_alone(r->group) ? -ECONNRESET : 0;
}

static void start_receive(struct receive *r)
{
	struct tt_msg_kept *k = find_kept(r);
	int err;

	if (k) {
		note_match(r, k->from->member, k->len);
		if (k->len > r->room)
			end_receive(r, -EMSGSIZE, 0);
		else
			receive_kept(r, k);
		return;
	}
	err = r->op->job->ending ? -ESHUTDOWN : fault_of_senders(r);
	if (err) {
		end_receive(r, err, 0);
		return;
	}
	tt_list_append(&tt_messages(r->op->job)->posted[tt_msg_bucket(r->uid, r->tag)], &r->link);
	if (r->from && r->from->rank != r->from->job->rank && r->from->state == TT_AWAY)
		tt_member_reach(r->from); /* a rank that is not connected would not say goodbye */
}

static struct tt_operation *begin_receive(struct receive *r, tutti_op *op, tutti_op *stack)
{
	struct tutti *g = r->group;
	struct tt_operation *o = tt_operation_begin(g->job, op, stack, "recv", r->from ? r->from->rank : -1);

	r->op = o;
	o->words = &receive_kind;
	o->of = r;
	o->group = tt_msg_is_job(g) ? NULL : g;
	o->timeout = tt_group_timeout(g);
	o->post.op.operand = (uint64_t)r->tag;
	o->post.op.len = r->room;
	start_receive(r);
	return o;
}

int tutti_recv(tutti *group, int rank, int tag, void *memory, size_t bytes, tutti_message *info, tutti_op *op)
{
	struct tt_job *job = tt_job_of(group);
	struct tt_pinned *pinned;
	struct receive *r;
	tutti_op stack;
	int err = tt_operation_may_begin(job, op);

	if (err || (err = tt_msg_check("recv", group, rank, tag, memory, bytes)))
		return err;
	if ((err = tt_begin_pinned(job, &group->handle.users, memory, bytes,
	                           bytes > TT_MSG_SHORT ? TT_PIN_READ : TT_PIN_DEVICE, NULL, &pinned)))
		return err;
	r = calloc(1, sizeof *r);
	err = r ? tt_msg_find("recv", group, rank, &r->from) : tt_fail(-ENOMEM, "no memory for a receive");
	if (err) {
		tt_unpin(job, pinned);
		tt_unlock(job);
		free(r);
		return err;
	}
	tt_list_init(&r->link);
	r->group = group;
	r->uid = tt_msg_group(group);
	r->tag = tag;
	r->memory = memory;
	r->room = bytes;
	r->info = info;
	r->pinned = pinned;
	return tt_operation_return(begin_receive(r, op, &stack), !op);
}

/* ---- events ---- */

#define each_posted(r, job) \
	for (int i_ = 0; i_ < TT_MSG_BUCKETS; i_++) \
		tt_each_of(struct receive, link, r, &tt_messages(job)->posted[i_])
#define each_kept(k, job) \
	for (int i_ = 0; i_ < TT_MSG_BUCKETS; i_++) \
		tt_each_of(struct tt_msg_kept, link, k, &tt_messages(job)->kept[i_])

/* Early messages get their group. Early messages of an older group in the same slot are dropped. */
void tt_msg_begin_group(struct tutti *g)
{
	each_kept(k, g->job) {
		if (!k->early || k->slot != g->slot)
			continue;
		if (k->group == g->uid && tt_group_find(g, k->from->member))
			k->early = false;
		else
			let_go(k, -ESTALE);
	}
}

void tt_msg_drop_early(const struct tutti *g)
{
	each_kept(k, g->job)
		if (k->early && k->slot == g->slot)
			let_go(k, -ESTALE);
}

void tt_msg_end_receives(struct tutti *g, int err)
{
	uint32_t uid = tt_msg_group(g);

	each_posted(r, g->job)
		if (r->uid == uid)
			end_receive(r, err, 0);
	each_kept(k, g->job)
		if (k->group == uid && !k->early)
			let_go(k, err);
}

static void drop_unfetched(struct tt_msg_peer *p)
{
	struct tt_job *job = p->member->job;

	each_kept(k, job)
		if (k->from == p && k->offer && !k->lost)
			mark_followers(k, k->same_sender.next);
	tt_each_of(struct tt_msg_kept, link, k, &p->fetching)
		mark_followers(k, NULL);
	each_kept(k, job)
		if (k->from == p && (k->offer || k->lost))
			let_go(k, -ECONNRESET);
	tt_each_of(struct tt_msg_kept, link, k, &p->fetching) {
		k->from = NULL; /* the GET ends with the connection */
		tt_list_remove(&k->link);
		p->announced--;
	}
}

/* Ends the receives that no rank can serve any more. */
static void end_orphans(struct tt_job *job, const struct tt_member *m)
{
	each_posted(r, job) {
		int err = r->from == m ? tt_msg_fault(r->group, m) : 0;
		if (!r->from && is_alone(r->group))
			err = -ECONNRESET;
		if (err)
			end_receive(r, err, 0);
	}
}

void tt_msg_sender_ended(struct tt_member *m)
{
	struct tt_msg_peer *p = tt_member_own(m, TT_MESSAGE_SLOT);

	if (p)
		drop_unfetched(p);
	end_orphans(m->job, m);
}

void tt_msg_sender_unseated(struct tt_member *m) { end_orphans(m->job, m); }

/* False: the former lives and this one have sent more than is kept of one rank. */
static bool keep_former(struct tt_msg_peer *p)
{
	bool fits = p->former + p->kept <= TT_MSG_CREDIT_ALL;

	if (fits)
		p->former += p->kept;
	else
		tt_log(TT_WARN, "%zu bytes of messages of %s are dropped: the rank has started anew more than once, "
		       "and this rank has not received its earlier messages", p->kept, tt_member_label(p->member).text);
	return fits;
}

/* Messages that have come whole stay, but hold no credit of the new life. */
void tt_msg_forget_life(struct tt_member *m)
{
	struct tt_msg_peer *p = tt_member_own(m, TT_MESSAGE_SLOT);

	if (!p)
		return;
	bool fits = keep_former(p);
	each_kept(k, m->job) {
		if (k->from != p || k->former)
			continue;
		k->former = fits;
		if (fits)
			continue;
		unlink_message(k);
		free(k);
	}
	p->used = p->owed = p->kept = 0;
}

void tt_messages_shut(struct tt_job *job)
{
	each_posted(r, job)
		end_receive(r, -ESHUTDOWN, 0);
	each_kept(k, job)
		if (k->own)
			let_go(k, -ESHUTDOWN);
}

void tt_msg_close_receives(struct tt_job *job)
{
	each_posted(r, job)
		end_receive(r, -ENOTCONN, 0);
	each_kept(k, job)
		let_go(k, -ESTALE);
}
