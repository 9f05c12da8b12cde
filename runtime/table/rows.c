/* rows.c - a worker's pushes and pulls of rows and keys
 *
 * The call deals the list out to the servers. Each server gets its entries in the order of the list, in pieces that fit
 * into a message:
 *
 *      rows 7 2 9 2   server 0 has 0 .. 4   order 1 3   PUSH_ROWS { 2 2 | deltas }   PULL_ROWS { 2 2 } --> values
 *                     server 1 has 5 .. 9         0 2   PUSH_ROWS { 7 9 | deltas }   PULL_ROWS { 7 9 } --> values
 *
 * A pull copies rows straight from a shard that is mapped here. Nothing of this rank's own shard becomes a message. */
#include "table/table_private.h"
#include <stdlib.h>
#include <string.h>

enum {
	COPY_AT_ONCE = 256 << 10, /* bytes that are copied from a mapped shard while the program waits for the lock */
	COPY_AGAIN = 16,          /* how often a copy begins anew because values were set meanwhile */
};

/* ---- pieces ---- */

static size_t entry(const struct tt_call_part *p, uint64_t i) { return p->order ? p->order[i] : p->base + (size_t)i; }

static uint64_t row_of(const struct tt_call_part *p, uint64_t i)
{
	const struct tt_row_list *l = p->call->list;

	return (l->fresh ? l->fresh : l->rows)[entry(p, i)];
}

/* A message takes as many of the next rows as fit, or the next elements of a row that does not fit. Where the server
 * reads the delta in place, a message takes as many rows as stay in the server's cache and whose names fit. */
static struct tt_stretch next_stretch(const struct tt_call_part *p)
{
	const struct tutti_table *t = p->call->table;
	size_t most = p->region ? TT_PUSH_PIECE : TT_PUSH_MESSAGE, row = tt_table_row_bytes(t);
	uint64_t first = p->sent / t->row, left = (p->range.count - p->sent) / t->row, at = p->sent % t->row;

	left = tt_min(left, TT_PUSH_MESSAGE / TT_ROW_NAME);
	if (row + TT_ROW_NAME <= most)
		return (struct tt_stretch){ first, (uint32_t)tt_min(left, most / (row + TT_ROW_NAME)), 0,
		                            (uint32_t)t->row };
	return (struct tt_stretch){ first, p->sent < p->range.count, (uint32_t)at,
	                            (uint32_t)tt_min(t->row - at, (most - TT_ROW_NAME) / t->width) };
}

static size_t elements_in(const struct tt_stretch *s) { return (size_t)s->n * s->count; }

/* Are the elements contiguous in the program's memory? A part's entries increase. */
static bool is_straight(const struct tt_call_part *p, const struct tt_stretch *s)
{
	return s->n == 1 || (s->n && s->count == p->call->table->row &&
	                     entry(p, s->first + s->n - 1) - entry(p, s->first) == s->n - 1);
}

/* Of the elements of the stretch's i-th row, in the program's memory. */
static size_t offset_of(const struct tt_call_part *p, const struct tt_stretch *s, uint32_t i)
{
	return entry(p, s->first + i) * tt_table_row_bytes(p->call->table) + s->at * p->call->table->width;
}

static const char *gather(const struct tt_call_part *p, const struct tt_stretch *s, char *room)
{
	size_t len = s->count * p->call->table->width;

	if (is_straight(p, s))
		return p->call->delta + offset_of(p, s, 0);
	for (uint32_t i = 0; i < s->n; i++)
		memcpy(room + i * len, p->call->delta + offset_of(p, s, i), len);
	return room;
}

/* some: of a refresh, the rows that came. The program's memory of the others stays as it is. */
static void scatter(const struct tt_call_part *p, const struct tt_stretch *s, const struct tt_unseen *some,
                    const char *values)
{
	size_t len = s->count * p->call->table->width;

	if (some)
		p->call->list->found += some->n;
	else if (is_straight(p, s)) {
		memcpy(p->call->values + offset_of(p, s, 0), values, s->n * len);
		return;
	}
	for (uint32_t i = 0; i < s->n; i++)
		if (!some || some->which[i / 8] >> i % 8 & 1) {
			memcpy(p->call->values + offset_of(p, s, i), values, len);
			values += len;
		}
}

static void put_names(struct tt_pack *to, const struct tt_call_part *p, const struct tt_stretch *s)
{
	struct tt_pack names = *to; /* a copy, which no store can change */

	for (uint32_t i = 0; i < s->n; i++)
		tt_put64(&names, row_of(p, s->first + i));
	*to = names;
}

/* ---- pushes ---- */

static unsigned flags_of_push(const struct tt_call_part *p, const struct tt_stretch *s)
{
	return tt_call_push_flags(p, p->sent + elements_in(s) == p->range.count);
}

unsigned tt_rows_pull_flags(struct tt_call_part *p)
{
	struct tutti_table *t = p->call->table;
	unsigned flags = t->flags & TUTTI_TABLE_FRESH && t->source[p->server].blank ? TT_PULL_NEW : 0;

	t->source[p->server].blank = false;
	return flags;
}

/* The message's head, and the names of its rows. Returns where its flags stand. */
static uint8_t *put_front(struct tt_pack *h, const struct tt_call_part *p, const struct tt_stretch *s, uint8_t type,
                          unsigned flags)
{
	uint8_t *at;

	tt_call_put_head(h, type, p, flags);
	at = h->at - 1;
	if (type == TT_PULL_ROWS)
		tt_put64(h, p->version);
	tt_put32(h, s->n);
	tt_put32(h, s->at);
	tt_put32(h, s->count);
	if (type == TT_PUSH_ROWS && flags & TT_PUSH_OPTIONS)
		tt_table_put_options(h, &p->call->options);
	put_names(h, p, s);
	return at;
}

/* Begins a message to the part's server. NULL: the part has ended. */
static char *begin_message(struct tt_call_part *p, size_t room)
{
	char *bytes = tt_send_begin(p->member, room);

	if (bytes)
		return bytes;
	p->err = -ENOMEM;
	tt_call_look_at(p);
	return NULL;
}

/* The elements behind the names. The filter packs them from where they lie, or were gathered. Returns their bytes. */
static size_t put_elements(char *to, const struct tt_call_part *p, const struct tt_stretch *s, uint8_t *flags)
{
	struct tutti_table *t = p->call->table;
	size_t count = elements_in(s), len = count * t->width, packed = 0;
	char *room = t->flags & TUTTI_TABLE_FILTER ? tt_scratch_take(&t->job->scratch, len) : NULL;
	const char *from = gather(p, s, room ? room : to);

	if (room)
		packed = tt_filter_pack(to, from, count, t->type, p->call->flags & TT_PUSH_ASSIGN ? 0 : t->limit);
	if (!packed && from != to)
		memcpy(to, from, len);
	*flags |= packed ? TT_SPARSE : 0;
	tt_scratch_give(&t->job->scratch, room, len);
	return packed ? packed : len;
}

/* Where the elements lie in the memory that the server maps. */
static size_t put_place(struct tt_pack *h, const struct tt_call_part *p, const struct tt_stretch *s)
{
	const uint8_t *from = h->at;

	if (!p->sent)
		tt_put_key(h, &p->region->key);
	tt_put64(h, s->first);
	return (size_t)(h->at - from);
}

static bool send_piece(struct tt_send_queue *f, struct tt_call_part *p)
{
	struct tt_stretch s = next_stretch(p);
	size_t count = elements_in(&s), names = TT_PUSH_HEAD + s.n * TT_ROW_NAME;
	size_t room = names + (p->region ? 0 : count * p->call->table->width), len;
	unsigned flags = flags_of_push(p, &s) | (p->region ? TT_PUSH_MAPPED : 0);
	char *bytes = begin_message(p, room);
	struct tt_pack h = tt_pack(bytes, room);
	uint8_t *at;

	if (!bytes)
		return true;
	at = put_front(&h, p, &s, TT_PUSH_ROWS, flags);
	len = (size_t)((char *)h.at - bytes);
	len += p->region ? put_place(&h, p, &s) : put_elements((char *)h.at, p, &s, at);
	tt_lane_post(&f->pushes, (struct tt_sent){ .part = p, .slot = -1 });
	f->trial = p->region && !p->sent ? p : f->trial;
	p->sent += count;
	tt_send_commit(f->member, bytes, len);
	return true;
}

static void go_by_messages(struct tt_call_part *p) { tt_send_queue_add(p, false); }

/* Deltas in the order of the list that are many lie in one piece, which a server on this host may read in place. */
static void push_there(struct tt_call_part *p)
{
	const struct tutti_table *t = p->call->table;
	size_t bytes = (size_t)p->range.count * t->width;
	struct tt_send_queue *f = tt_send_queue_to(p);

	if (!f)
		return;
	if (!p->closing && !p->order && bytes > TT_PUSH_INLINE && !(t->flags & TUTTI_TABLE_FILTER))
		tt_send_queue_offer(f, p, p->call->delta + p->base * tt_table_row_bytes(t), bytes);
	go_by_messages(p);
}

/* ---- pulls ---- */

/* Copies the next whole rows; values: the shard's first. */
static void copy_rows(struct tt_call_part *p, const char *values)
{
	const struct tutti_table *t = p->call->table;
	uint64_t first = tt_table_range(t, p->server).first / t->row, i = p->sent / t->row, n = p->range.count / t->row;
	size_t row = tt_table_row_bytes(t);

	n = tt_min(n, i + tt_max(COPY_AT_ONCE / row, 1));
	for (; i < n; i++) {
		if (i + TT_ROWS_AHEAD < n)
			tt_look_at(values + (size_t)(row_of(p, i + TT_ROWS_AHEAD) - first) * row, row, false);
		memcpy(p->call->values + entry(p, i) * row, values + (size_t)(row_of(p, i) - first) * row, row);
	}
	p->sent = n * t->row;
}

/* Rounds go on without a rank that has finished, and may have written over the version that it has copied from. */
static int look_at_copy(struct tt_call_part *p, const char *memory)
{
	const struct tt_shard_head *head = (const void *)memory;

	if (!tt_served_in_rounds(p->call->table, p->server))
		return 0;
	__atomic_thread_fence(__ATOMIC_ACQUIRE); /* behind the copy */
	p->head.writing = __atomic_load_n(&head->writing, __ATOMIC_RELAXED);
	p->head.placed = __atomic_load_n(&head->placed, __ATOMIC_RELAXED);
	if (tt_call_is_whole(p))
		return 0;
	if (!tt_call_is_there(p) || p->retries++ >= COPY_AGAIN)
		return -EAGAIN;
	p->sent = 0; /* values were set meanwhile */
	return 0;
}

static bool copy_some(struct tt_call_part *p)
{
	struct tutti_table *t = p->call->table;
	bool mine = p->server == t->mine;
	const char *memory = mine ? t->shard.memory : tt_window_hold(t->window, p->member->rank);

	if (!memory)
		return false;
	if (!p->sent)
		tt_call_read_by(p, __atomic_load_n(&((const struct tt_shard_head *)(const void *)memory)->placed,
		                                   __ATOMIC_ACQUIRE), true);
	copy_rows(p, memory + tt_table_at(t, p->server, p->placed, p->version));
	p->err = look_at_copy(p, memory);
	if (!mine)
		tt_window_let_go(t->window, p->member->rank);
	return true;
}

bool tt_rows_copy(struct tt_call_part *p)
{
	while (!p->err && p->sent < p->range.count)
		if (!copy_some(p))
			return false;
	return true;
}

/* Only the values are mapped, not the keys or the changed rows. In rounds the server may overwrite the version that
 * another rank reads. */
static bool may_copy(const struct tutti_table *t, int server)
{
	return !(t->flags & (TUTTI_TABLE_KEYS | TUTTI_TABLE_FRESH)) && !tt_served_in_rounds(t, server);
}

static void pull(struct tt_call_part *p)
{
	struct tutti_table *t = p->call->table;

	p->sent = 0;
	if (!may_copy(t, p->server) || !tt_window_is_mapped(t->window, p->member->rank))
		go_by_messages(p);
	else if (p->range.count * t->width > COPY_AT_ONCE)
		tt_call_queue_own(p);
	else if (copy_some(p))
		tt_call_look_at(p);
	else
		go_by_messages(p);
}

/* A list of rows that takes several messages is of one version, between which no values were set. Of rows that are
 * asked for because they have changed, each is whole by itself. */
static int compare_placed(struct tt_call_part *p, uint64_t placed)
{
	const struct tt_row_list *l = p->call->list;

	if (!tt_served_in_rounds(p->call->table, p->server) || l->fresh || l->unseen)
		return 0;
	p->placed = p->placed ? p->placed : placed;
	return p->placed == placed ? 0 : -EAGAIN;
}

/* ---- what this rank does itself ---- */

/* Serves a piece of this rank's own shard as if it had come in a message. */
static int serve_own(struct tt_call_part *p, const struct tt_stretch *s)
{
	struct tt_table_call *c = p->call;
	struct tutti_table *t = c->table;
	size_t names = s->n * TT_ROW_NAME, room = names + elements_in(s) * t->width;
	unsigned flags = flags_of_push(p, s);
	const tutti_update *options = flags & TT_PUSH_OPTIONS ? &c->options : NULL;
	char *bytes = tt_scratch_take(&t->job->scratch, room);
	struct tt_pack h = tt_pack(bytes, bytes ? names : 0);
	struct tt_rows r = { h.at, s->n, s->at, s->count };
	struct tt_unseen unseen, *some = c->list->unseen ? &unseen : NULL;
	int err;

	if (!bytes)
		return c->delta ? tt_table_refuse(t, t->job->rank, flags, options, -ENOMEM) : -ENOMEM;
	put_names(&h, p, s);
	if (c->delta)
		err = tt_table_apply_rows(t, t->job->rank, flags, options, &r, gather(p, s, bytes + names));
	else
		err = tt_table_read_rows(t, t->job->rank, tt_rows_pull_flags(p), p->version, &r, bytes + names, some);
	if (!err && !c->delta && !(err = compare_placed(p, tt_table_placed(t))))
		scatter(p, s, some, bytes + names);
	tt_scratch_give(&t->job->scratch, bytes, room);
	return err;
}

static void serve(struct tt_call_part *p)
{
	struct tutti_table *t = p->call->table;
	struct tt_stretch s = next_stretch(p);

	if (p->pulls && may_copy(t, p->server) && !copy_some(p)) { /* the shard is not mapped any more */
		tt_list_remove(&p->link);
		go_by_messages(p);
		return;
	}
	if (!p->pulls || !may_copy(t, p->server)) {
		p->err = serve_own(p, &s);
		p->sent += elements_in(&s);
	}
	p->call->answers++;
	tt_call_look_at(p);
}

/* ---- messages ---- */

static void ask_for_values(struct tt_send_queue *f, struct tt_call_part *p)
{
	struct tt_stretch s = next_stretch(p);
	size_t room = TT_PUSH_HEAD + s.n * TT_ROW_NAME;
	char *bytes = begin_message(p, room);
	struct tt_pack h = tt_pack(bytes, room);

	if (!bytes)
		return;
	put_front(&h, p, &s, TT_PULL_ROWS, tt_rows_pull_flags(p) | (p->call->list->unseen ? TT_PULL_UNSEEN : 0));
	tt_lane_post(&f->pulls, (struct tt_sent){ .part = p, .slot = -1, .asked = s });
	p->sent += elements_in(&s);
	tt_send_commit(f->member, bytes, (size_t)((char *)h.at - bytes));
}

void tt_rows_ask(struct tt_send_queue *f, struct tt_call_part *p)
{
	if (p->call->keeping)
		tt_keep_ask(f, p);
	else if (p->call->versions)
		tt_snapshot_ask(f, p);
	else if (p->asks)
		tt_rows_ask_for_fresh(f, p);
	else
		ask_for_values(f, p);
}

static void get_unseen(struct tt_pack *pack, uint32_t rows, struct tt_unseen *u)
{
	*u = (struct tt_unseen){ 0 };
	tt_get_bytes(pack, u->which, (rows + 7) / 8);
	for (size_t i = 0; i < sizeof u->which; i++)
		u->n += (uint32_t)__builtin_popcount(u->which[i]);
	pack->bad |= rows % 8 && u->which[rows / 8] >> rows % 8; /* a bit beyond the last row */
}

static int take_values(struct tt_call_part *p, const struct tt_stretch *s, struct tt_pack *pack, bool sparse)
{
	struct tutti_table *t = p->call->table;
	struct tt_unseen u, *some = p->call->list->unseen ? &u : NULL;
	struct tt_elements e = { 0 };
	int err = compare_placed(p, tt_get64(pack));

	if (err)
		return err;
	if (some)
		get_unseen(pack, s->n, some);
	if (!pack->bad && (!some || some->n))
		err = tt_table_unpack(t, pack, (size_t)(some ? some->n : s->n) * s->count, sparse, &e);
	if (!err && !pack->bad)
		scatter(p, s, some, e.at);
	tt_elements_free(t, &e);
	return err;
}

void tt_table_pulled(struct tt_member *from, struct tt_pack *pack)
{
	struct tt_sent s;
	bool sparse;
	int err;

	if (!tt_send_queue_answered(from, true, pack, &err, &s))
		return;
	sparse = tt_get8(pack) & TT_SPARSE;
	if (!err && s.part->call->keeping)
		tt_keep_take(s.part, pack);
	else if (!err && s.part->call->versions)
		err = tt_snapshot_take(s.part, pack, sparse);
	else if (!err && s.asked.n)
		err = take_values(s.part, &s.asked, pack, sparse);
	else if (!err)
		tt_rows_take_found(s.part, pack);
	tt_call_let_go(s.part, pack->bad ? -EPROTO : err);
	tt_send_queue_go_on(tt_send_queue_of(from));
}

/* ---- calls ---- */

static const struct tt_call_kind of_rows = {
	push_there, send_piece, pull, tt_call_end_part, serve, tt_changed_rows_ended,
};

int tt_rows_check(const struct tutti_table *t, const char *what, const uint64_t *rows, size_t n, const void *memory)
{
	int err;

	if (n && (!rows || !memory))
		return tt_fail(-EINVAL, "%s: table \"%s\": for %zu rows %s is NULL", what, t->name, n,
		               rows ? "the memory" : "the list");
	if (n > PTRDIFF_MAX / tt_max(tt_table_row_bytes(t), TT_ROW_NAME))
		return tt_fail(-EINVAL, "%s: table \"%s\": %zu rows of %llu elements are more than memory can be", what,
		               t->name, n, (unsigned long long)t->row);
	if ((err = tt_host_only(what, "the list of rows", rows, n * sizeof *rows)))
		return err;
	return tt_host_only(what, "the memory of the rows", memory, n * tt_table_row_bytes(t));
}

static int check_list(const struct tutti_table *t, const char *what, const uint64_t *rows, size_t n, const void *memory)
{
	int err = tt_rows_check(t, what, rows, n, memory);

	for (size_t i = 0; !err && !(t->flags & TUTTI_TABLE_KEYS) && i < n; i++)
		if (rows[i] >= t->count)
			return tt_fail(-EINVAL, "%s: row %llu, number %zu of the list, is none: table \"%s\" has %llu "
			               "rows, from 0 up", what, (unsigned long long)rows[i], i, t->name,
			               (unsigned long long)t->count);
	return err;
}

/* Which server has which entry? True: each server has the entries behind those of the server before it. */
static bool find_servers(const struct tutti_table *t, const struct tt_row_list *l, size_t n, uint32_t *server)
{
	bool sorted = true;

	if (t->flags & TUTTI_TABLE_KEYS)
		tt_shards_of_keys(l->rows, n, t->servers, server);
	else
		tt_shards_find(&t->shards, l->rows, n, server);
	for (size_t i = 1; i < n; i++)
		sorted &= server[i - 1] <= server[i];
	return sorted;
}

/* Gives each part its entries of the list, in their order. */
static void deal_out(struct tt_table_call *c, const uint64_t *rows, size_t n)
{
	const struct tutti_table *t = c->table;
	struct tt_row_list *l = c->list;
	uint32_t *server = (uint32_t *)(l->order + n); /* tt_rows_call() has made room */
	size_t at = 0;
	bool sorted;

	l->rows = rows;
	for (int i = 0; i < t->servers; i++)
		c->part[i].range = (struct tt_range){ .count = t->servers == 1 ? n * t->row : 0 };
	if (t->servers == 1)
		return;
	sorted = find_servers(t, l, n, server);
	for (size_t i = 0; i < n; i++)
		c->part[server[i]].range.count++;
	for (int i = 0; i < t->servers; i++) {
		struct tt_call_part *p = &c->part[i];
		p->base = at; /* of a list in another order: where its next entry goes */
		p->order = sorted ? NULL : l->order + at;
		at += p->range.count;
		p->range.count *= t->row;
	}
	for (size_t i = 0; !sorted && i < n; i++)
		l->order[c->part[server[i]].base++] = i;
}

int tt_rows_call(struct tutti_table *t, const char *what, const struct tt_call_kind *kind, const void *delta,
                 void *values, const tutti_update *options, size_t n, struct tt_table_call **call)
{
	struct tt_table_call *c = tt_call_new(t, kind, delta, values, options);
	size_t each = sizeof *c->list->order + sizeof(uint32_t); /* its place, and its server */

	if (c && (c->list = malloc(sizeof *c->list + (t->servers > 1 ? n * each : 0)))) {
		*c->list = (struct tt_row_list){ 0 };
		*call = c;
		return 0;
	}
	free(c);
	return tt_fail(-ENOMEM, "%s: no memory for a call about %zu rows on %d servers", what, n, t->servers);
}

static int check_push(const struct tutti_table *t, const char *what)
{
	int err = tt_call_may_push(t, what);

	if (err || !(t->flags & TUTTI_TABLE_BF16_DELTAS))
		return err;
	return tt_fail(-ENOTSUP, "%s: table \"%s\" has TUTTI_TABLE_BF16_DELTAS: push all of it", what, t->name);
}

int tutti_table_push_rows(tutti_table *t, const uint64_t *rows, size_t n, const void *deltas,
                          const tutti_update *options, tutti_op *op)
{
	static const char what[] = "table push of rows";
	int err = tt_operation_may_begin(tt_job_of(t), op);
	struct tt_table_call *c;

	if (err || (err = check_push(t, what)) || (err = check_list(t, what, rows, n, deltas)) ||
	    (err = tt_call_check_options(t, what, options)) ||
	    (err = tt_rows_call(t, what, &of_rows, deltas ? deltas : "", NULL, options, n, &c)))
		return err;
	deal_out(c, rows, n);
	return tt_call_start(c, what, op);
}

int tutti_table_assign_rows(tutti_table *t, const uint64_t *rows, size_t n, const void *values, tutti_op *op)
{
	static const char what[] = "table assign of rows";
	int err = tt_operation_may_begin(tt_job_of(t), op);
	struct tt_table_call *c;

	if (err || (err = check_list(t, what, rows, n, values)) ||
	    (err = tt_rows_call(t, what, &of_rows, values ? values : "", NULL, NULL, n, &c)))
		return err;
	c->flags |= TT_PUSH_ASSIGN;
	deal_out(c, rows, n);
	return tt_call_start(c, what, op);
}

/* A refresh asks for whole rows, each within one message. */
static int check_refresh(const struct tutti_table *t, const char *what)
{
	int err = tt_changed_rows_check(t, what);

	if (err || tt_table_row_bytes(t) + TT_ROW_NAME <= TT_PUSH_MESSAGE)
		return err;
	return tt_fail(-ENOTSUP, "%s: a row of the table \"%s\" has %zu bytes, and at most %d go into a message here: "
	               "pull rows, or the fresh ones of all", what, t->name, tt_table_row_bytes(t),
	               TT_PUSH_MESSAGE - TT_ROW_NAME);
}

int tutti_table_refresh_rows(tutti_table *t, const uint64_t *rows, size_t n, void *values, size_t *fresh, tutti_op *op)
{
	static const char what[] = "table refresh of rows";
	int err = tt_operation_may_begin(tt_job_of(t), op);
	struct tt_table_call *c;

	if (err || (err = check_list(t, what, rows, n, values)) || (err = check_refresh(t, what)) ||
	    (err = tt_rows_call(t, what, &of_rows, NULL, values, NULL, n, &c)))
		return err;
	c->list->unseen = true;
	c->list->how_many = fresh;
	deal_out(c, rows, n);
	return tt_call_start(c, what, op);
}

int tutti_table_pull_rows(tutti_table *t, const uint64_t *rows, size_t n, void *values, tutti_op *op)
{
	static const char what[] = "table pull of rows";
	int err = tt_operation_may_begin(tt_job_of(t), op);
	struct tt_table_call *c;

	if (err || (err = check_list(t, what, rows, n, values)) ||
	    (err = tt_rows_call(t, what, &of_rows, NULL, values, NULL, n, &c)))
		return err;
	deal_out(c, rows, n);
	return tt_call_start(c, what, op);
}
