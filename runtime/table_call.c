/* table_call.c - a worker's pushes and pulls
 *
 * A call has a part for each server. A pull's part is one GET. A push's part waits in the feed of its server, which sends its
 * pieces one after the other: so many as there are slots and answers outstanding. Parts of one feed go in the order of the calls.
 * A part ends when nothing holds its memory any more; the call ends with its last part. */
#include "table.h"
#include <stdlib.h>
#include <string.h>

struct part {
	struct tt_list link;         /* in its feed, while there are pieces to send */
	struct tt_table_call *call;
	struct tt_member *member;    /* its server's */
	int server;
	struct tt_range range;
	uint64_t sent;               /* elements of a push that are on their way or done */
	unsigned held;               /* answers and PUTs that are outstanding */
	int err;
	bool ended;
	struct tt_region *region;    /* its delta, if the server reads that in place */
	struct tt_post get;
};

struct tt_table_call {
	struct tt_list link;         /* in job->calls */
	struct tutti_table *table;
	struct tt_request *request;
	const char *delta;           /* NULL: a pull */
	char *values;                /* NULL: a push */
	unsigned flags;
	tutti_update options;
	uint32_t number;
	int left;                    /* parts that have not ended */
	uint64_t answers;            /* that came */
	struct part part[];
};

struct slot {
	struct tt_post put;
	struct part *part;           /* NULL: free */
	struct tt_feed *feed;
	bool putting, unanswered;
};

struct sent {
	struct part *part;
	int slot;                    /* -1: within the message */
};

struct tt_feed { /* to one server, for all tables */
	struct tt_member *member;
	struct tt_list parts;
	struct slot slots[TT_FEED_SLOTS];
	struct sent sent[TT_FEED_DEPTH]; /* a ring: */
	unsigned posted, answered;   /* how many in all */
	bool unmapped;               /* the server could not map a delta */
};

/* ---- ends ---- */

static void end_call(struct tt_table_call *c)
{
	struct tt_request *r = c->request;
	int err = 0;

	for (int i = 0; i < c->table->servers && !err; i++)
		if ((err = c->part[i].err))
			r->rank = c->part[i].member->rank; /* whom the sentence is about */
	tt_list_remove(&c->link);
	r->call = NULL;
	free(c);
	tt_request_end(r, err);
}

static void end_part(struct part *p)
{
	p->ended = true;
	if (!--p->call->left)
		end_call(p->call);
}

/* ---- pulls ---- */

static void got(struct tt_post *post, int err)
{
	struct part *p = tt_container_of(post, struct part, get);

	p->err = err;
	end_part(p);
}

static void pull_here(struct part *p)
{
	const struct tutti_table *t = p->call->table;
	size_t len = (size_t)p->range.count * t->width, at = (size_t)p->range.first * t->width;

	for (size_t done = 0, n; done < len; done += n) {
		n = tt_min(len - done, TT_PUSH_PIECE);
		memcpy(p->call->values + at + done, t->shard.values + done, n);
		if (done + n < len)
			tt_turn(t->job);
	}
	end_part(p);
}

static void pull(struct part *p)
{
	const struct tutti_table *t = p->call->table;
	struct tt_op *op = &p->get.op;

	if (p->server == t->mine) {
		pull_here(p);
		return;
	}
	op->kind = TT_GET;
	op->local = p->call->values + (size_t)p->range.first * t->width;
	op->len = (size_t)p->range.count * t->width;
	op->offset = TT_SHARD_HEAD;
	p->get.done = got;
	p->err = tt_window_post(t->window, p->member->rank, &p->get);
	if (p->err)
		end_part(p);
}

/* ---- pushes ---- */

/* After all. */
static void push_by_slots(struct part *p)
{
	p->region = NULL;
	p->err = 0;
	p->sent = 0;
	p->member->feed->unmapped = true;
	tt_list_append(&p->member->feed->parts, &p->link);
}

/* All pieces are out and nothing holds its memory, or it has failed. */
static void look_at(struct part *p)
{
	if (p->held || p->ended || (!p->err && p->sent < p->range.count))
		return;
	tt_list_remove(&p->link);
	if (p->region)
		p->region->net->transport->dereg(p->region);
	if (p->region && p->err == -EOPNOTSUPP && p->member->state < TT_LEFT) {
		push_by_slots(p);
		return;
	}
	p->region = NULL;
	if (!p->err && p->call->values)
		pull(p);
	else
		end_part(p);
}

static void let_go(struct part *p, int err)
{
	p->held--;
	p->err = p->err ? p->err : err;
	look_at(p);
}

static void settle(struct slot *s)
{
	if (!s->putting && !s->unanswered)
		s->part = NULL;
}

static struct slot *free_slot(struct tt_feed *f)
{
	for (int i = 0; i < TT_FEED_SLOTS; i++)
		if (!f->slots[i].part)
			return &f->slots[i];
	return NULL;
}

static void put_done(struct tt_post *post, int err)
{
	struct slot *s = tt_container_of(post, struct slot, put);
	struct part *p = s->part;

	s->putting = false;
	settle(s);
	let_go(p, err);
	tt_feed_go_on(s->feed);
}

static int put(struct tt_feed *f, struct slot *s, struct part *p, const char *from, size_t len)
{
	struct tt_op *op = &s->put.op;
	int err;

	s->put = (struct tt_post){ .done = put_done };
	op->kind = TT_PUT;
	op->flags = TT_LAZY; /* the answer says more */
	op->local = (char *)(uintptr_t)from;
	op->len = len;
	op->offset = (uint64_t)(s - f->slots) * TT_PUSH_PIECE;
	err = tt_window_post(p->call->table->job->outbox, f->member->rank, &s->put);
	if (err)
		return err;
	s->part = p;
	s->feed = f;
	s->putting = s->unanswered = true;
	p->held++;
	return 0;
}

static void say(struct tt_feed *f, struct part *p, uint64_t count, const struct slot *s, const char *from)
{
	const struct tt_table_call *c = p->call;
	const struct tutti_table *t = c->table;
	uint8_t head[TT_PUSH_HEAD];
	struct tt_pack h = tt_pack(head, sizeof head);
	unsigned flags = c->flags | (p->sent ? 0 : TT_PUSH_FIRST) | (p->sent + count == p->range.count ? TT_PUSH_LAST : 0);

	if (!(flags & TT_PUSH_FIRST))
		flags &= ~(unsigned)TT_PUSH_OPTIONS;
	tt_put8(&h, TT_PUSH);
	tt_put64(&h, t->uid[p->server]);
	tt_put32(&h, c->number);
	tt_put8(&h, (uint8_t)flags);
	tt_put8(&h, p->region ? TT_IN_PLACE : s ? (uint8_t)(s - f->slots) : TT_NO_SLOT);
	tt_put64(&h, p->range.first + p->sent);
	tt_put32(&h, (uint32_t)count);
	if (flags & TT_PUSH_OPTIONS)
		tt_table_put_options(&h, &c->options);
	if (p->region && flags & TT_PUSH_FIRST)
		tt_put_key(&h, &p->region->key);
	f->sent[f->posted++ % TT_FEED_DEPTH] = (struct sent){ p, s ? (int)(s - f->slots) : -1 };
	p->held++;
	p->sent += count;
	tt_send(f->member, head, (size_t)(h.at - head), from, from ? (size_t)count * t->width : 0);
}

static bool is_large(const struct part *p) { return tt_table_is_large(p->call->table, p->server); }

/* False: not now. */
static bool send_piece(struct tt_feed *f, struct part *p)
{
	const struct tutti_table *t = p->call->table;
	bool by_slots = is_large(p) && !p->region;
	struct slot *s = by_slots ? free_slot(f) : NULL;
	uint64_t n = tt_min(p->range.count - p->sent, TT_PUSH_PIECE / t->width);
	const char *from = p->call->delta + (size_t)(p->range.first + p->sent) * t->width;

	if (f->posted - f->answered == TT_FEED_DEPTH || (by_slots && !s))
		return false;
	if (s)
		p->err = put(f, s, p, from, (size_t)n * t->width);
	if (p->err)
		look_at(p);
	else
		say(f, p, n, s, is_large(p) ? NULL : from);
	return true;
}

void tt_feed_go_on(struct tt_feed *f)
{
	while (!tt_list_empty(&f->parts)) {
		struct part *p = tt_container_of(f->parts.next, struct part, link);
		if (p->err || p->sent == p->range.count) /* it ends when it is answered */
			tt_list_remove(&p->link);
		else if (!send_piece(f, p))
			return;
	}
}

/* To which server's message it is the answer needs no saying: they come in the order of the messages. */
void tt_table_pushed(struct tt_member *from, struct tt_pack *pack)
{
	uint32_t number = tt_get32(pack);
	int err = (int)tt_get32(pack);
	struct tt_feed *f = from->feed;

	if (from->state >= TT_LEFT)
		return; /* it was told so already */
	pack->bad |= !f || f->posted == f->answered || err > 0 || err < -4095;
	if (pack->bad)
		return;
	struct sent *s = &f->sent[f->answered % TT_FEED_DEPTH];
	if (s->part->call->number != number) {
		pack->bad = true;
		return;
	}
	f->answered++;
	s->part->call->answers++;
	if (s->slot >= 0) {
		f->slots[s->slot].unanswered = false;
		settle(&f->slots[s->slot]);
	}
	let_go(s->part, err);
	tt_feed_go_on(f);
}

static void push_here(struct part *p)
{
	struct tt_table_call *c = p->call;
	struct tutti_table *t = c->table;
	struct tt_job *job = t->job;

	for (uint64_t n; !p->err && p->sent < p->range.count; p->sent += n) {
		n = tt_min(p->range.count - p->sent, TT_PUSH_PIECE / t->width);
		p->err = tt_table_apply(t, job->rank, c->flags | (p->sent ? 0 : TT_PUSH_FIRST), c->flags & TT_PUSH_OPTIONS ? &c->options : NULL,
		                        (struct tt_range){ p->range.first + p->sent, n }, c->delta + (size_t)(p->range.first + p->sent) * t->width);
		if (p->sent + n < p->range.count)
			tt_turn(job); /* the others' pieces go on, and their pings are answered */
	}
	look_at(p);
}

static struct tt_feed *feed_of(struct tt_member *m)
{
	if (m->feed || !(m->feed = calloc(1, sizeof *m->feed)))
		return m->feed;
	m->feed->member = m;
	tt_list_init(&m->feed->parts);
	return m->feed;
}

/* On one host, if the delta lies in memory that others can map. */
static void offer_in_place(struct tt_feed *f, struct part *p)
{
	const struct tutti_table *t = p->call->table;
	struct tt_member *m = p->member;
	struct tt_mem mem = tt_mem_of((char *)(uintptr_t)p->call->delta + (size_t)p->range.first * t->width, (size_t)p->range.count * t->width);

	if (!is_large(p) || f->unmapped || mem.fd < 0 || !tt_window_is_mapped(t->window, m->rank))
		return; /* where I can map its memory, it can map mine */
	if (tt_member_net(m)->transport->reg(tt_member_net(m), &mem, 1, &p->region))
		p->region = NULL; /* by slots, then */
}

static void push(struct part *p)
{
	struct tt_feed *f;

	if (p->server == p->call->table->mine) {
		push_here(p);
		return;
	}
	f = feed_of(p->member);
	p->err = !f ? -ENOMEM : p->member->state >= TT_LEFT ? p->member->err : 0;
	if (p->err) {
		end_part(p);
		return;
	}
	offer_in_place(f, p);
	tt_list_append(&f->parts, &p->link);
	tt_feed_go_on(f);
}

/* Its answers do not come any more. PUTs end by themselves. */
void tt_table_member_down(struct tt_member *m, int err)
{
	struct tt_feed *f = m->feed;
	struct tt_list *node;

	if (!f)
		return;
	while ((node = tt_list_pop(&f->parts))) {
		struct part *p = tt_container_of(node, struct part, link);
		p->err = p->err ? p->err : err;
		look_at(p);
	}
	while (f->answered != f->posted) {
		struct sent s = f->sent[f->answered++ % TT_FEED_DEPTH];
		if (s.slot >= 0) {
			f->slots[s.slot].unanswered = false;
			settle(&f->slots[s.slot]);
		}
		let_go(s.part, err);
	}
}

/* ---- calls ---- */

uint64_t tt_call_progress(const struct tt_table_call *c)
{
	uint64_t n = c->answers;

	for (int i = 0; i < c->table->servers; i++)
		n += c->part[i].ended;
	return n;
}

bool tt_call_waits_for(const struct tt_table_call *c, int rank)
{
	for (int i = 0; i < c->table->servers; i++)
		if (!c->part[i].ended && c->part[i].member->rank == rank && i != c->table->mine)
			return true;
	return false;
}

static bool is_waited_for(const struct tutti_table *t, int rank)
{
	tt_list_each(node, &t->job->calls) {
		const struct tt_table_call *c = tt_container_of(node, struct tt_table_call, link);
		if (c->table == t && tt_call_waits_for(c, rank))
			return true;
	}
	return false;
}

bool tt_table_is_called(const struct tutti_table *t)
{
	tt_list_each(node, &t->job->calls)
		if (tt_container_of(node, struct tt_table_call, link)->table == t)
			return true;
	return false;
}

/* They have had a whole deadline. */
void tt_table_cut_off(struct tutti_table *t)
{
	struct tt_job *job = t->job;

	while (tt_table_is_called(t)) {
		for (int i = 0; i < t->servers; i++)
			if (t->server[i] != job->rank && is_waited_for(t, t->server[i]))
				tt_group_cut(&job->members[t->server[i]], -ETIMEDOUT, "rank %d was cut off: it did not answer within %llu ms what was started on "
				             "the table \"%s\"", t->server[i], (unsigned long long)(job->deadline / TT_MS), t->name);
		tt_turn(job);
	}
}

static struct tt_table_call *new_call(struct tutti_table *t, const void *delta, void *values, unsigned flags, const tutti_update *options)
{
	struct tt_table_call *c = calloc(1, sizeof *c + (size_t)t->servers * sizeof *c->part);

	if (!c)
		return NULL;
	c->table = t;
	c->delta = delta;
	c->values = values;
	c->flags = flags | (options ? TT_PUSH_OPTIONS : 0);
	if (options)
		c->options = *options;
	c->left = t->servers;
	for (int i = 0; i < t->servers; i++) {
		c->part[i].call = c;
		c->part[i].server = i;
		c->part[i].member = &t->job->members[t->server[i]];
		c->part[i].range = tt_table_range(t, i);
		tt_list_init(&c->part[i].link);
	}
	return c;
}

/* The others' shares first: they travel while this rank's own is looked after. */
static void begin_parts(struct tt_table_call *c)
{
	const struct tutti_table *t = c->table;
	int n = t->servers, from = t->mine < 0 ? 0 : t->mine + 1;

	c->left++; /* or the last part would take the call along */
	for (int i = 0; i < n; i++) {
		struct part *p = &c->part[(from + i) % n];
		if (!p->range.count)
			end_part(p);
		else if (c->delta)
			push(p);
		else
			pull(p);
	}
	if (!--c->left)
		end_call(c);
}

static int start(struct tutti_table *t, const char *what, struct tt_table_call *c, tutti_op *op)
{
	struct tt_job *job = t->job;
	tutti_op stack;

	tt_enter(job);
	struct tt_request *r = tt_request_begin(job, op, &stack, what, -1);
	c->number = ++t->calls;
	c->request = r;
	r->call = c;
	tt_list_append(&job->calls, &c->link);
	begin_parts(c);
	return tt_request_return(r, !op);
}

static int call(struct tutti_table *t, const char *what, const void *delta, void *values, unsigned flags, const tutti_update *options, tutti_op *op)
{
	int err = tt_usable(t->job);

	if (err)
		return err;
	struct tt_table_call *c = new_call(t, delta, values, flags, options);
	if (!c)
		return tt_fail(-ENOMEM, "%s: no memory for a call to %d servers", what, t->servers);
	return start(t, what, c, op);
}

static int check(const struct tutti_table *t, const char *what, const void *memory)
{
	if (memory)
		return 0;
	return tt_fail(-EINVAL, "%s: table \"%s\" has %llu elements, and the memory given for them is NULL", what, t->name, (unsigned long long)t->count);
}

int tutti_table_push(tutti_table *t, const void *delta, const tutti_update *options, tutti_op *op)
{
	int err = check(t, "table push", delta);

	if (err || (err = tt_update_check(&t->updater, options)))
		return err;
	return call(t, "table push", delta, NULL, 0, options, op);
}

int tutti_table_pull(tutti_table *t, void *values, tutti_op *op)
{
	int err = check(t, "table pull", values);

	return err ? err : call(t, "table pull", NULL, values, 0, NULL, op);
}

int tutti_table_push_pull(tutti_table *t, const void *delta, const tutti_update *options, void *values, tutti_op *op)
{
	int err = check(t, "table push and pull", delta && values ? values : NULL);

	if (!err && tt_updater_gives_back(&t->updater))
		return tt_fail(-ENOTSUP, "table push and pull: not for the rule %s yet: push, then pull", tt_update_name(t->updater.rule));
	if (err || (err = tt_update_check(&t->updater, options)))
		return err;
	return call(t, "table push and pull", delta, values, 0, options, op);
}

int tutti_table_assign(tutti_table *t, const void *values, tutti_op *op)
{
	int err = check(t, "table assign", values);

	return err ? err : call(t, "table assign", values, NULL, TT_PUSH_ASSIGN, NULL, op);
}
