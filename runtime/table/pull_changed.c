/* pull_changed.c - a worker's pulls of the rows that changed since its last pull
 *
 * The worker asks all servers at once which rows have changed, a range of their shards at a time. Then it pulls the
 * named rows like any others. A row that is pushed to between the two is named again by the next call. The worker
 * reserves room for what it asks for, and gives back what the server does not use:
 *
 *      worker -- PULL_FRESH { from row 0, at most 4096 } --> server       4096 reserved
 *             <-- PULLED { 900, 3 8 ... (17 rows) } --                   4079 given back
 *             -- PULL_ROWS { 3 8 ... }, or a copy from a mapped shard
 *             -- PULL_FRESH { from row 900 ... */
#include "table/table_private.h"

enum { FOUND = 1 << 20 }; /* A server names rows of about so many bytes at once. */

static void look(struct tt_call_part *p);

/* There is room again: parts that had none go on. */
static void wake_idle(struct tt_table_call *c)
{
	if (c->given_up)
		return;
	for (int i = 0; i < c->table->servers; i++) {
		struct tt_call_part *p = &c->part[i];
		if (!p->idle)
			continue;
		p->idle = p->ended = false;
		c->left++;
		look(p);
	}
}

/* Reserves room for the rows that the server names next. Without room the part ends until another gives some back. */
static bool reserve(struct tt_call_part *p)
{
	const struct tutti_table *t = p->call->table;
	size_t most = tt_min(TT_PUSH_MESSAGE / TT_ROW_NAME, tt_max(FOUND / tt_table_row_bytes(t), 1));

	p->most = (uint32_t)tt_min(most, p->call->list->room);
	p->idle = !p->most;
	p->call->list->room -= p->most;
	return p->most;
}

/* The server has named n rows, which follow those that were found before. Gives the rest of the room back. */
static void note_found(struct tt_call_part *p, size_t n)
{
	struct tt_row_list *l = p->call->list;

	p->base = l->found;
	p->range.count = n * p->call->table->row;
	p->sent = 0;
	p->looked = n < p->most;
	l->found += n;
	l->room += p->most - n;
	if (n < p->most)
		wake_idle(p->call);
}

static void look_here(struct tt_call_part *p)
{
	struct tt_row_list *l = p->call->list;
	struct tutti_table *t = p->call->table;
	size_t n;

	if (reserve(p))
		p->err = tt_table_find_fresh(t, t->job->rank, tt_rows_pull_flags(p), &p->cursor, l->fresh + l->found,
		                             p->most, &n);
	if (!p->idle && !p->err) {
		note_found(p, n);
		tt_rows_copy(p);
	}
	if (!p->err && !p->idle && !p->looked)
		return;
	tt_list_remove(&p->link);
	tt_call_end_part(p);
}

static void look_there(struct tt_call_part *p)
{
	if (reserve(p))
		tt_send_queue_add(p, true);
	else
		tt_call_end_part(p);
}

static void look(struct tt_call_part *p)
{
	if (p->server == p->call->table->mine)
		tt_call_queue_own(p);
	else
		look_there(p);
}

static void begin_to_look(struct tt_call_part *p)
{
	p->range.count = 0;
	look_there(p);
}

static void look_on(struct tt_call_part *p)
{
	if (p->looked)
		tt_call_end_part(p);
	else
		look(p);
}

static bool is_of_server(const struct tt_call_part *p, uint64_t row)
{
	struct tt_range r = tt_table_range(p->call->table, p->server);
	uint64_t each = p->call->table->row;

	return row >= r.first / each && row - r.first / each < r.count / each;
}

/* The answer to a pull of a whole table (tt_rows_tell) names no rows: that part has no list. */
void tt_rows_take_found(struct tt_call_part *p, struct tt_pack *pack)
{
	struct tt_row_list *l = p->call->list;
	size_t n;

	p->cursor = tt_get64(pack);
	n = tt_pack_left(pack) / TT_ROW_NAME;
	pack->bad |= tt_pack_left(pack) % TT_ROW_NAME || n > p->most;
	for (size_t i = 0; !pack->bad && i < n; i++) {
		l->fresh[l->found + i] = tt_get64(pack);
		pack->bad |= !is_of_server(p, l->fresh[l->found + i]);
	}
	if (!l || pack->bad)
		return;
	note_found(p, n);
	if (!tt_rows_copy(p))
		tt_list_append(&tt_send_queue_of(p->member)->pulls.parts, &p->link);
}

void tt_rows_tell(struct tt_call_part *p)
{
	p->told = true;
	p->sent = p->range.count; /* the lane sends the question alone: the values come by GET */
	tt_send_queue_add(p, true);
}

void tt_rows_ask_for_fresh(struct tt_send_queue *f, struct tt_call_part *p)
{
	uint8_t bytes[32];
	struct tt_pack h = tt_pack(bytes, sizeof bytes);

	p->asks = false;
	tt_call_put_head(&h, TT_PULL_FRESH, p, tt_rows_pull_flags(p) | (p->call->list ? 0 : TT_PULL_ALL));
	tt_put64(&h, p->cursor);
	tt_put32(&h, p->most);
	tt_lane_post(&f->pulls, (struct tt_sent){ .part = p, .slot = -1 });
	tt_send(f->member, bytes, (size_t)(h.at - bytes), NULL, 0);
}

bool tt_changed_rows_ended(struct tt_table_call *c, int err)
{
	if (!err && c->list && c->list->how_many)
		*c->list->how_many = c->list->found;
	for (int i = 0; err && c->values && i < c->table->servers; i++)
		c->table->source[i].blank = true; /* the server may count rows as seen that did not arrive */
	return true;
}

int tt_changed_rows_check(const struct tutti_table *t, const char *what)
{
	if (!(t->flags & TUTTI_TABLE_FRESH))
		return tt_fail(-EINVAL, "%s: table \"%s\" does not keep track of them: open it with TUTTI_TABLE_FRESH",
		               what, t->name);
	if (!t->works && tt_table_in_rounds(t))
		return tt_fail(-EPERM, "%s: rounds of the table \"%s\" do not wait for this rank, which is no worker "
		               "or has finished: pull rows, or all", what, t->name);
	return 0;
}

static const struct tt_call_kind of_changed = { NULL, NULL, begin_to_look, look_on, look_here, tt_changed_rows_ended };

int tutti_table_pull_fresh(tutti_table *t, uint64_t *rows, void *values, size_t room, size_t *n, tutti_op *op)
{
	static const char what[] = "table pull of fresh rows";
	int err = tt_operation_may_begin(tt_job_of(t), op);
	struct tt_table_call *c;

	if (err || (err = tt_given(n, "tutti_table_pull_fresh: n")) ||
	    (err = tt_rows_check(t, what, rows, room, values)) || (err = tt_changed_rows_check(t, what)) ||
	    (err = tt_rows_call(t, what, &of_changed, NULL, values, NULL, 0, &c)))
		return err;
	c->list->fresh = rows;
	c->list->room = room;
	c->list->how_many = n;
	return tt_call_start(c, what, op);
}
