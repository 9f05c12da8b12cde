/* dense.c - pushes and pulls of a whole table
 *
 * A part of a pull is one GET. A part of a push is sent piece by piece: each within a message, or through a slot. A
 * server that can map the delta reads the pieces in place, but for some short ones: is_offered() says which. */
#include "table/table_private.h"
#include <string.h>

enum { FEW = 16 }; /* ranks of this host that are connected */

/* ---- pulls ---- */

static void checked(struct tt_post *post, int err)
{
	struct tt_call_part *p = tt_container_of(post, struct tt_call_part, get);

	if (!err)
		tt_call_saw_head(p);
	if (!err && !tt_call_is_there(p))
		p->pull_gate = p->version + 1;
	tt_call_end_with(p, err ? err : tt_call_is_whole(p) ? 0 : -EAGAIN);
}

static void got(struct tt_post *post, int err)
{
	struct tt_call_part *p = tt_container_of(post, struct tt_call_part, get);

	p->err = err;
	if (!err && tt_served_in_rounds(p->call->table, p->server))
		tt_call_get(p, &p->head, sizeof p->head, 0, checked);
	else
		tt_call_end_part(p);
}

/* Rounds do not wait for a rank that is no worker, so it asks the server which version is the newest. */
static bool reads_alone(const struct tutti_table *t, int server) { return tt_served_in_rounds(t, server) && !t->works; }

static void pull_there(struct tt_call_part *p)
{
	const struct tutti_table *t = p->call->table;

	if (t->flags & TUTTI_TABLE_FRESH && !p->told) {
		tt_rows_tell(p); /* before the GET: rows that change between the two stay unseen */
		return;
	}
	if (reads_alone(t, p->server)) {
		tt_snapshot_pull(p);
		return;
	}
	tt_call_read_by(p, t->source[p->server].placed, p->head.uid != 0);
	tt_call_get(p, tt_call_values(p), tt_call_bytes(p), tt_table_at(t, p->server, p->placed, p->version), got);
}

/* ---- pushes ---- */

/* Does each answer bring what the rule returns for its piece? Then all pieces go within messages. */
static bool gives_back(const struct tt_call_part *p)
{
	return p->call->values && tt_updater_gives_back(&p->call->table->updater);
}

static bool is_large(const struct tt_call_part *p)
{
	return !gives_back(p) && tt_table_is_large(p->call->table, p->server);
}

/* Should the answer bring the values? That is one trip instead of two. Where memory is mapped, the GET is no trip. */
static bool wants_values(const struct tt_call_part *p)
{
	const struct tutti_table *t = p->call->table;

	if (gives_back(p))
		return true;
	return p->call->values && t->source[p->server].as.mode == TUTTI_ASYNC && !(t->flags & TUTTI_TABLE_FRESH) &&
	       !is_large(p) && !tt_window_is_mapped(t->window, p->member->rank);
}

static void say(struct tt_send_queue *f, struct tt_call_part *p, uint64_t count, struct tt_slot *s, const char *from)
{
	const struct tt_table_call *c = p->call;
	struct tutti_table *t = c->table;
	struct tt_elements e = { 0 };
	uint8_t head[TT_PUSH_HEAD];
	struct tt_pack h = tt_pack(head, sizeof head);
	unsigned flags = tt_call_push_flags(p, p->sent + count == p->range.count);
	int slot = s ? (int)(s - f->slots) : -1;

	if (from && t->flags & TUTTI_TABLE_BF16_DELTAS)
		e = (struct tt_elements){ .at = from, .bytes = (size_t)count * tt_delta_width(t, c->flags) };
	else if (from)
		tt_table_pack(t, from, (size_t)count, c->flags & TT_PUSH_ASSIGN ? 0 : t->limit, &e);
	flags |= (wants_values(p) ? TT_PUSH_PULL : 0) | (e.copy ? TT_SPARSE : 0);
	tt_call_put_head(&h, TT_PUSH, p, flags);
	tt_put8(&h, p->region ? TT_IN_PLACE : s ? (uint8_t)slot : TT_NO_SLOT);
	tt_put64(&h, p->range.first + p->sent);
	tt_put32(&h, (uint32_t)count);
	if (flags & TT_PUSH_OPTIONS)
		tt_table_put_options(&h, &c->options);
	if (p->region && flags & TT_PUSH_FIRST)
		tt_put_key(&h, &p->region->key);
	tt_lane_post(&f->pushes, (struct tt_sent){ p, slot, { p->sent, 1, 0, (uint32_t)count } });
	f->trial = p->region && flags & TT_PUSH_FIRST ? p : f->trial;
	if (s)
		s->unanswered = true;
	p->sent += count;
	tt_send(f->member, head, (size_t)(h.at - head), e.at, e.bytes);
	tt_elements_free(t, &e);
}

static bool send_piece(struct tt_send_queue *f, struct tt_call_part *p)
{
	const struct tutti_table *t = p->call->table;
	bool by_slots = is_large(p) && !p->region;
	struct tt_slot *s = by_slots ? tt_send_queue_slot(f) : NULL;
	size_t most = gives_back(p) ? TT_PUSH_MESSAGE : TT_PUSH_PIECE;
	uint64_t n = tt_min(p->range.count - p->sent, most / t->width);
	size_t width = tt_delta_width(t, p->call->flags);
	const char *from = p->call->delta + (size_t)(p->range.first + p->sent) * width;

	if (by_slots && !s)
		return false;
	if (s)
		p->err = tt_send_queue_put(f, s, p, from, (size_t)n * width);
	if (p->err)
		tt_call_look_at(p);
	else
		say(f, p, n, s, s || p->region ? NULL : from);
	return true;
}

/* Should the server read the delta in place, if it can? A delta of some KiB is then not copied into the lane and out of
 * it. Later pushes wait for the answer, which a program that computes may see late: so short deltas of started calls,
 * and those behind other pushes, go within their messages. So they do among many ranks of a host: the end of a key's
 * use looks at each of them. */
static bool is_offered(const struct tt_send_queue *f, const struct tt_call_part *p, size_t bytes)
{
	if (is_large(p))
		return true;
	return bytes >= TT_PUSH_OFFERED && p->call->blocks && p->call->table->job->engine.neighbours <= FEW &&
	       f->pushes.posted == f->pushes.answered && tt_list_empty(&f->pushes.parts) && !gives_back(p) &&
	       !(p->call->table->flags & TUTTI_TABLE_FILTER);
}

static void push_there(struct tt_call_part *p)
{
	struct tt_send_queue *f = tt_send_queue_to(p);
	size_t width = tt_delta_width(p->call->table, p->call->flags), bytes = (size_t)p->range.count * width;

	if (!f)
		return;
	if (!p->closing && is_offered(f, p, bytes))
		tt_send_queue_offer(f, p, p->call->delta + (size_t)p->range.first * width, bytes);
	tt_list_append(&f->pushes.parts, &p->link);
	tt_send_queue_go_on(f);
}

/* ---- this rank's own shard ---- */

static uint64_t push_piece_here(struct tt_call_part *p)
{
	const struct tt_table_call *c = p->call;
	struct tutti_table *t = c->table;
	uint64_t n = tt_min(p->range.count - p->sent, TT_PUSH_PIECE / t->width);
	unsigned flags = tt_call_push_flags(p, p->sent + n == p->range.count);
	size_t first = (size_t)(p->range.first + p->sent);

	p->pulled = gives_back(p);
	p->err = tt_table_apply(t, t->job->rank, flags, c->flags & TT_PUSH_OPTIONS ? &c->options : NULL,
	                        (struct tt_range){ first, n }, c->delta + first * tt_delta_width(t, c->flags),
	                        p->pulled ? c->values + first * t->width : NULL);
	return n;
}

static uint64_t pull_piece_here(struct tt_call_part *p)
{
	const struct tutti_table *t = p->call->table;
	uint64_t n = tt_min(p->range.count - p->sent, TT_PUSH_PIECE / t->width);
	size_t at = (size_t)p->sent * t->width, version = p->version;

	if (!p->sent)
		tt_call_read_by(p, tt_table_placed(t), true);
	version = p->call->versions ? tt_table_version_at(t, t->mine, p->placed, version) :
	                              tt_table_at(t, t->mine, p->placed, version);
	memcpy(tt_call_values(p) + at, t->shard.memory + version + at, (size_t)n * t->width);
	return n;
}

/* Like another server's, this rank's own version may have been overwritten between two pieces. */
static void look_at_own_pull(struct tt_call_part *p)
{
	const struct tutti_table *t = p->call->table;

	if (p->sent < p->range.count)
		return;
	tt_list_remove(&p->link);
	p->head = *(const struct tt_shard_head *)(const void *)t->shard.memory;
	tt_call_end_with(p, (!tt_shard_in_rounds(t) && !p->call->versions) || tt_call_is_whole(p) ? 0 : -EAGAIN);
}

/* Marks all rows as seen before the first is read, as pull_there() does. */
static void tell_own(struct tt_call_part *p)
{
	struct tutti_table *t = p->call->table;

	if (p->pulls && !p->sent && t->shard.fresh && !p->call->versions)
		p->err = tt_table_find_fresh(t, t->job->rank, tt_rows_pull_flags(p) | TT_PULL_ALL, &p->cursor, NULL, 0,
		                             &(size_t){ 0 });
}

void tt_dense_serve(struct tt_call_part *p)
{
	tell_own(p);
	p->sent += p->pulls ? pull_piece_here(p) : push_piece_here(p);
	p->call->answers++; /* progress */
	if (p->pulls)
		look_at_own_pull(p);
	else
		tt_call_look_at(p);
}

/* ---- calls ---- */

static const struct tt_call_kind of_all = {
	push_there, send_piece, pull_there, pull_there, tt_dense_serve, tt_changed_rows_ended,
};

static int call(struct tutti_table *t, const char *what, const void *delta, void *values, unsigned flags,
                const tutti_update *options, tutti_op *op)
{
	struct tt_table_call *c = tt_call_new(t, &of_all, delta, values, options);

	if (!c)
		return tt_fail(-ENOMEM, "%s: no memory for a call to %d servers", what, t->servers);
	c->flags |= flags;
	return tt_call_start(c, what, op);
}

static bool copy_shard(struct tutti_table *t, int i, char *values)
{
	struct tt_range r = tt_table_range(t, i);
	const char *memory;

	if (t->source[i].as.mode != TUTTI_ASYNC) /* the pull may have to wait */
		return false;
	if (!(memory = i == t->mine ? t->shard.values : tt_window_hold(t->window, t->server[i])))
		return false;
	memory += i == t->mine ? 0 : TT_SHARD_HEAD;
	memcpy(values + (size_t)r.first * t->width, memory, (size_t)r.count * t->width);
	if (i != t->mine)
		tt_window_let_go(t->window, t->server[i]);
	return true;
}

/* Copies a small table whose shards are all mapped, if no server has to be told: a call costs several times as much.
 * False: it takes a call. Takes the ticket lock, not tt_lock(): nobody polls here, so the background thread should. */
static bool pull_at_once(struct tutti_table *t, char *values)
{
	struct tt_range last = tt_table_range(t, t->servers - 1);
	struct tt_ticket_lock *lock = &t->job->engine.lock;
	size_t bytes = (size_t)(last.first + last.count) * t->width;
	struct tt_gpu_range range;
	uint64_t since;
	bool done;

	if (bytes > TT_PUSH_INLINE || t->flags & TUTTI_TABLE_FRESH || tt_find_device(values, bytes, &range) ||
	    range.device >= 0)
		return false;
	tt_ticket_lock_take(lock);
	if (t->job->left) {
		tt_ticket_lock_release(lock);
		return false;
	}
	since = tt_stats_start(t->job);
	done = tt_list_empty(&tt_tables(t->job)->calls);
	for (int i = 0; i < t->servers && done; i++)
		done = !tt_table_range(t, i).count || copy_shard(t, i, values);
	if (done)
		tt_stats_ended(&t->job->stats.own, TUTTI_STAT_PULL, since, bytes, 0);
	tt_ticket_lock_release(lock);
	return done;
}

int tt_dense_check(const struct tutti_table *t, const char *what, const void *memory)
{
	if (t->flags & TUTTI_TABLE_KEYS)
		return tt_fail(-ENOTSUP, "%s: table \"%s\" has keys, not a fixed number of elements: push and pull "
		               "those that you mean", what, t->name);
	if (memory)
		return 0;
	return tt_fail(-EINVAL, "%s: table \"%s\" has %llu elements, and the memory given for them is NULL", what,
	               t->name, (unsigned long long)(t->count * t->row));
}

static int check_push(const struct tutti_table *t, const char *what, const void *delta)
{
	int err = tt_call_may_push(t, what);

	return err ? err : tt_dense_check(t, what, delta);
}

int tutti_table_push(tutti_table *t, const void *delta, const tutti_update *options, tutti_op *op)
{
	int err = tt_operation_may_begin(tt_job_of(t), op);

	if (err || (err = check_push(t, "table push", delta)) ||
	    (err = tt_call_check_options(t, "table push", options)))
		return err;
	return call(t, "table push", delta, NULL, 0, options, op);
}

int tutti_table_pull(tutti_table *t, void *values, tutti_op *op)
{
	int err = tt_operation_may_begin(tt_job_of(t), op);

	if (err || (err = tt_dense_check(t, "table pull", values)))
		return err;
	return !op && pull_at_once(t, values) ? 0 : call(t, "table pull", NULL, values, 0, NULL, op);
}

int tutti_table_push_pull(tutti_table *t, const void *delta, const tutti_update *options, void *values, tutti_op *op)
{
	int err = tt_operation_may_begin(tt_job_of(t), op);

	if (err || (err = check_push(t, "table push and pull", delta && values ? values : NULL)) ||
	    (err = tt_dense_check(t, "table push and pull", delta)) ||
	    (err = tt_call_check_options(t, "table push and pull", options)))
		return err;
	return call(t, "table push and pull", delta, values, 0, options, op);
}

int tutti_table_assign(tutti_table *t, const void *values, tutti_op *op)
{
	int err = tt_operation_may_begin(tt_job_of(t), op);

	if (err || (err = tt_dense_check(t, "table assign", values)))
		return err;
	return call(t, "table assign", values, NULL, TT_PUSH_ASSIGN, NULL, op);
}
