/* table.c - parameter tables: opening and closing them
 *
 * Tables open like windows: each server makes its shard, then each rank reads the heads of the other servers' shards
 * and compares the configuration. So no rank must be the first, and a rank that joins the job later opens the table by
 * its name. */
#include "table/saving.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NAME_MAX_LEN = 160, PUBLISH_MS = 100 };
static const uint64_t most_bytes = PTRDIFF_MAX / 4; /* of the values: a server may have three copies of them */
static const char opening[] = "table open";

/* ---- the configuration ---- */

static bool is_whole(const tutti *at) { return at == tt_members(at->job)->whole; }

/* Lists of ranks that are not there come of a program that was started by itself. */
static const char *launch_hint(const tutti *at) { return at->job->size == 1 ? ": is it started by tutti run?" : ""; }

/* Workers that are to come may be listed of the whole job. Servers must be there: the opening reads their shards. */
static int check_ranks(const tutti *at, const char *name, const char *role, const int *rank, int n)
{
	int ranks = is_whole(at) ? at->job->size : at->n, most = ranks;

	if (is_whole(at) && *role == 'w')
		most = tt_members(at->job)->capacity;
	if (n < 0 || !n != !rank)
		return tt_fail(-EINVAL, "table \"%s\": %d %ss, and their list is %s: name all of them, or none for all "
		               "ranks", name, n, role, rank ? "given" : "NULL");
	if (n > most)
		return tt_fail(-EINVAL, "table \"%s\": %d %ss are named, and the group has %d rank%s%s", name, n, role,
		               ranks, ranks == 1 ? "" : "s", launch_hint(at));
	for (int i = 0; i < n; i++) {
		if (rank[i] < 0 || rank[i] >= most)
			return tt_fail(-EINVAL, "table \"%s\": %s %d is rank %d, which is no rank of the group: it has "
			               "ranks 0 to %d%s", name, role, i, rank[i], ranks - 1, launch_hint(at));
		for (int j = 0; j < i; j++)
			if (rank[j] == rank[i])
				return tt_fail(-EINVAL, "table \"%s\": rank %d is named twice, as %s %d and as %s %d",
				               name, rank[i], role, j, role, i);
	}
	return 0;
}

/* The job's rank of the i-th of a list of the group's, or of the group. */
static int list_rank(const tutti *at, const int *list, int i)
{
	int rank = list ? list[i] : i;

	return is_whole(at) ? rank : at->seats[rank].rank;
}

static bool takes_values(tutti_update_rule rule)
{
	return rule == TUTTI_UPDATE_ASSIGN || rule == TUTTI_UPDATE_ELASTIC;
}

static int check_clip(const char *name, const tutti_table_config *c)
{
	if (!(c->clip >= 0) || (c->clip > 0 && !(c->flags & TUTTI_TABLE_FILTER)))
		return tt_fail(-EINVAL, "table \"%s\": clip is %g: it must be 0 or more, and 0 without "
		               "TUTTI_TABLE_FILTER", name, c->clip);
	if (c->clip > 0 && takes_values(c->updater.rule))
		return tt_fail(-EINVAL, "table \"%s\": clip is %g, and the rule %s takes values, not deltas: "
		               "small values would become 0. Set clip to 0", name, c->clip,
		               tt_update_name(c->updater.rule));
	return 0;
}

static int check_flags(const char *name, const tutti_table_config *c)
{
	const unsigned of_rows = TUTTI_TABLE_SNAPSHOTS | TUTTI_TABLE_FRESH | TUTTI_TABLE_CUT_MULTIVERSO;
	const unsigned all = of_rows | TUTTI_TABLE_KEYS | TUTTI_TABLE_FRESH_OWN | TUTTI_TABLE_FILTER |
	                     TUTTI_TABLE_BF16_DELTAS | TUTTI_TABLE_MEAN;

	if (c->flags & ~all)
		return tt_fail(-EINVAL, "table \"%s\": there are no flags %#x", name, c->flags & ~all);
	if (c->flags & TUTTI_TABLE_KEYS && c->flags & of_rows)
		return tt_fail(-EINVAL, "table \"%s\": flags %#x are for rows, and this one has keys: leave them out",
		               name, c->flags & of_rows);
	if (c->flags & TUTTI_TABLE_FRESH_OWN && !(c->flags & TUTTI_TABLE_FRESH))
		return tt_fail(-EINVAL, "table \"%s\": TUTTI_TABLE_FRESH_OWN is nothing without TUTTI_TABLE_FRESH",
		               name);
	if (c->flags & TUTTI_TABLE_BF16_DELTAS &&
	    (c->type != TUTTI_F32 || c->flags & (TUTTI_TABLE_KEYS | TUTTI_TABLE_FILTER) ||
	     takes_values(c->updater.rule)))
		return tt_fail(-EINVAL, "table \"%s\": TUTTI_TABLE_BF16_DELTAS is for rows of f32, without "
		               "TUTTI_TABLE_FILTER, and rules that take deltas, not values", name);
	if (c->flags & TUTTI_TABLE_MEAN && (!tt_type_is_float(c->type) || takes_values(c->updater.rule)))
		return tt_fail(-EINVAL, "table \"%s\": TUTTI_TABLE_MEAN is for floats, and for rules that take deltas, "
		               "not values", name);
	return check_clip(name, c);
}

static int check_config(const tutti *at, const char *name, const tutti_table_config *c)
{
	int err;

	if (at == tt_members(at->job)->all && !is_whole(at))
		return tt_fail(-EINVAL, "this rank has joined the job under way, and what tutti_join gave it is a "
		               "group of its own: open tables with tutti_job, or with the group of tutti_group_grow");
	if (!name || !*name || strlen(name) > NAME_MAX_LEN)
		return tt_fail(-EINVAL, "a table's name has 1 to %d bytes", NAME_MAX_LEN);
	if (!c || !c->row)
		return tt_fail(-EINVAL, "table \"%s\": %s: begin with tutti_table_f32(), tutti_table_rows() or "
		               "tutti_table_keys()", name, c ? "rows of 0 elements" : "no config");
	if ((err = TT_RESERVED(tutti_table_config, c)))
		return err;
	if (!tt_type_size(c->type))
		return tt_fail(-EINVAL, "table \"%s\": there is no type %d", name, (int)c->type);
	if (tt_type_is_small(c->type))
		return tt_fail(-EINVAL, "table \"%s\": the type %s is for collectives and queues: take f32, f64, f16, "
		               "bf16, i32 or i64", name, tt_type_name(c->type));
	if (c->row > UINT32_MAX)
		return tt_fail(-EINVAL, "table \"%s\": row is %llu elements, and may be up to 2^32 - 1", name,
		               (unsigned long long)c->row);
	if ((!c->count && !(c->flags & TUTTI_TABLE_KEYS)) ||
	    c->count > most_bytes / tt_type_size(c->type) / c->row)
		return tt_fail(-EINVAL, "table \"%s\": count is %llu, of rows of %llu elements: it is from 1 to what "
		               "memory can be", name, (unsigned long long)c->count, (unsigned long long)c->row);
	if (c->publish_ms < 0 || (!(c->flags & TUTTI_TABLE_SNAPSHOTS) && (c->publish_ms || c->publish_pushes)))
		return tt_fail(-EINVAL, "table \"%s\": publish_ms is %d, publish_pushes %llu: 0 or more, and with "
		               "TUTTI_TABLE_SNAPSHOTS only", name, c->publish_ms,
		               (unsigned long long)c->publish_pushes);
	if ((err = check_ranks(at, name, "server", c->server, c->servers)) || (err = check_flags(name, c)) ||
	    (err = tt_init_check(name, &c->init, c->type)))
		return err;
	return check_ranks(at, name, "worker", c->worker, c->workers);
}

int tt_table_can_be(tutti_update_rule rule, unsigned flags, const tutti_consistency *c)
{
	if (c->mode == TUTTI_BSP && c->backup > 0 && flags & TUTTI_TABLE_FRESH)
		return tt_fail(-EINVAL, "rounds with backup workers do not wait for who pulls fresh rows: leave out "
		               "TUTTI_TABLE_FRESH, or the backup workers");
	if (c->mode == TUTTI_BSP && takes_values(rule))
		return tt_fail(-EINVAL, "the rule %s takes values, and a round can sum up deltas alone",
		               tt_update_name(rule));
	return tt_consistency_check(c);
}

static int index_of(const int *ranks, int n, int rank)
{
	for (int i = 0; i < n; i++)
		if (ranks[i] == rank)
			return i;
	return -1;
}

static void clear_table(struct tutti_table *t)
{
	tt_list_remove(&t->link);
	if (t->source)
		tt_served_forget_all(t);
	tt_window_close(t->window);
	tt_table_unserve(t);
	free(t->trace);
}

static void release_table(struct tt_handle *h)
{
	struct tutti_table *t = tt_container_of(h, struct tutti_table, handle);

	free(t->name);
	free(t->server);
	free(t->worker);
	free(t->source);
	free(t);
}

static void free_table(struct tutti_table *t)
{
	clear_table(t);
	release_table(&t->handle);
}

/* NULL: no memory. */
static struct tutti_table *new_table(const tutti *at, const char *name, const tutti_table_config *c)
{
	struct tt_job *job = at->job;
	struct tutti_table *t = calloc(1, sizeof *t);

	if (!t)
		return NULL;
	tt_list_init(&t->link);
	tt_list_init(&t->gated);
	tt_list_init(&t->own);
	t->job = job;
	t->as = c->consistency;
	t->reported_to = -1;
	t->name = strdup(name);
	t->trace = calloc(1, sizeof *t->trace + strlen(name) + 1);
	t->type = c->type;
	t->width = tt_type_size(c->type);
	t->count = c->count;
	t->row = c->row;
	t->limit = tt_filter_limit(c->type, c->clip);
	t->updater = c->updater;
	t->init = c->init;
	t->timeout = tt_group_timeout(at);
	t->servers = c->servers ? c->servers : at->n;
	t->server = calloc((size_t)t->servers, sizeof *t->server);
	t->source = calloc((size_t)t->servers, sizeof *t->source);
	for (int i = 0; t->source && i < t->servers; i++)
		tt_served_make(t, i);
	t->workers = c->workers || is_whole(at) ? c->workers : at->n;
	t->worker = calloc((size_t)t->workers + 1, sizeof *t->worker);
	t->flags = c->flags;
	t->publish_pushes = c->publish_pushes;
	t->publish_ms = c->publish_pushes || c->publish_ms ? c->publish_ms : PUBLISH_MS;
	t->mine = -1;
	if (!t->name || !t->trace || !t->server || !t->source || !t->worker) {
		free_table(t);
		return NULL;
	}
	strcpy(t->trace->name, name);
	for (int i = 0; i < t->servers; i++) {
		t->server[i] = list_rank(at, c->server, i);
		t->mine = t->server[i] == job->rank ? i : t->mine;
	}
	for (int i = 0; i < t->workers; i++)
		t->worker[i] = list_rank(at, c->worker, i);
	t->works = tt_table_worker(t, job->rank) >= 0;
	tt_terms_make(t, c->clip);
	return t;
}

int tt_table_worker(const struct tutti_table *t, int rank)
{
	return t->workers ? index_of(t->worker, t->workers, rank) : rank;
}

/* The fewest rows that fill whole cache lines: no two servers share a line. */
static uint64_t rows_in_lines(const struct tutti_table *t)
{
	uint64_t bytes = t->row * t->width, power = bytes & -bytes;

	return TT_CACHE_LINE / tt_min(power, TT_CACHE_LINE);
}

/* ---- meeting the other ranks ---- */

void tt_table_inbox_name(char *room, size_t size, int worker) { snprintf(room, size, "tutti:inbox:%d", worker); }

static int open_windows(struct tutti_table *t)
{
	struct tt_job *job = t->job;
	struct tt_pinned *pinned;
	char name[NAME_MAX_LEN + 16];
	int err = tt_pin(job, t->shard.memory, tt_version_bytes(t), TT_PIN_WINDOW, &pinned);

	if (err)
		return err;
	snprintf(name, sizeof name, "tutti:table:%s", t->name);
	tt_lock(job);
	tt_list_each(node, &tt_tables(job)->tables)
		if (!strcmp(tt_container_of(node, struct tutti_table, link)->name, t->name))
			err = tt_fail(-EEXIST, "a table named \"%s\" is open already", t->name);
	if (!err && t->shard.memory) {
		tt_served_name(t, t->mine, (uint64_t)job->epoch << 32 | ++tt_tables(job)->generation);
		((struct tt_shard_head *)t->shard.memory)->uid = t->source[t->mine].uid;
		err = tt_table_expect(t);
	}
	if (!err)
		err = tt_window_open(job, name, t->shard.memory, tt_version_bytes(t), pinned, &t->window);
	if (!err)
		tt_window_set_timeout(t->window, t->timeout);
	tt_table_inbox_name(name, sizeof name, job->rank);
	if (!err && !tt_tables(job)->outbox)
		err = tt_window_open(job, name, NULL, 0, NULL, &tt_tables(job)->outbox);
	if (!err)
		tt_list_append(&tt_tables(job)->tables, &t->link);
	if (!err && t->shard.memory && tt_members(job)->late)
		tt_table_ask_who_finished(t);
	tt_unlock(job);
	if (!t->window)
		tt_unpin_now(pinned);
	return err;
}

static struct tt_label name_server(const struct tutti_table *t, int i)
{
	tt_lock(t->job);
	struct tt_label label = tt_member_label(tt_member(t->job, t->server[i]));
	tt_unlock(t->job);
	return label;
}

static int refuse_terms(struct tutti_table *t, int i)
{
	uint64_t theirs[TT_TERMS];
	int err = tt_window_get(t->window, opening, t->server[i], TT_SHARD_TERMS, theirs, sizeof theirs, NULL);

	return err ? err : tt_terms_refuse(t, name_server(t, i).text, theirs);
}

static int meet(struct tutti_table *t, int i)
{
	struct tt_shard_head head;
	int err = tt_window_get(t->window, opening, t->server[i], 0, &head, sizeof head, NULL);

	if (err == -ENOENT)
		return tt_fail(err, "table \"%s\": %s, a server of it, did not open it within %llu ms", t->name,
		               name_server(t, i).text, tt_timeout_ms(t));
	if (err)
		return err;
	if (head.print != t->print) /* also of a server that has closed it since: what differs may be the reason */
		return refuse_terms(t, i);
	if (!head.uid)
		return tt_fail(-ESTALE, "table \"%s\": %s has just closed it", t->name, name_server(t, i).text);
	tt_lock(t->job);
	if (t->source[i].uid != head.uid) {
		tt_list_remove(&t->source[i].link);
		tt_served_make(t, i);
		tt_served_name(t, i, head.uid);
		tt_call_uncount_all(t, i);
	}
	tt_unlock(t->job);
	return 0;
}

/* Makes the windows with the servers' slots known here: afterwards pieces can be put into them. */
static int find_slots(struct tutti_table *t)
{
	struct tutti_window *outbox = tt_tables(t->job)->outbox;
	uint64_t word;
	int err = 0;

	for (int i = 0; !err && i < t->servers; i++)
		if (i != t->mine && tt_table_is_large(t, i))
			err = tt_window_get(outbox, opening, t->server[i], 0, &word, sizeof word, NULL);
	return err;
}

static int meet_all(struct tutti_table *t)
{
	int err = 0;

	for (int i = 0; !err && i < t->servers; i++)
		if (i != t->mine)
			err = meet(t, i);
	if (!err)
		err = tt_table_join(t);
	return err ? err : find_slots(t);
}

static void stop_timers(struct tutti_table *t);
static void close_unheld(struct tutti_table *t);

static void orphan_table(struct tt_handle *h)
{
	struct tutti_table *t = tt_container_of(h, struct tutti_table, handle);

	stop_timers(t);
	clear_table(t);
}

static void hold(struct tutti_table *t)
{
	static const struct tt_handle_kind kind = { orphan_table, release_table, "table" };

	tt_lock(t->job);
	tt_handle_hold(&t->handle, t->job, &kind);
	tt_unlock(t->job);
}

static int open_table(tutti *at, const char *name, const tutti_table_config *config, tutti_table **out)
{
	struct tutti_table *t;
	int err = check_config(at, name, config);

	if (err || (err = tt_table_can_be(config->updater.rule, config->flags, &config->consistency)) ||
	    (err = tt_updater_check(&config->updater, config->type)))
		return err;
	if (!(t = new_table(at, name, config)))
		return tt_fail(-ENOMEM, "no memory for the table \"%s\"", name);
	if (!(t->flags & TUTTI_TABLE_KEYS))
		err = tt_shards_cut(&t->shards, t->count, t->servers, rows_in_lines(t),
		                    t->flags & TUTTI_TABLE_CUT_MULTIVERSO ? TT_CUT_MULTIVERSO : TT_CUT_EVEN);
	if (!err && t->mine >= 0)
		err = tt_table_serve(t);
	if (!err && t->mine >= 0)
		err = tt_table_make_inboxes(t);
	if (!err && t->mine >= 0 && config->load)
		err = tt_load_open(t, config->load);
	if (!err && !(err = open_windows(t)))
		err = meet_all(t);
	if (!err && t->mine >= 0)
		err = tt_table_report(t, at);
	if (err)
		close_unheld(t);
	else
		hold(*out = t);
	return err;
}

int tutti_table_open(tutti *at, const char *name, const tutti_table_config *config, tutti_table **out)
{
	struct tt_job *job = tt_job_of(at);
	struct tt_users *outer;
	int err = tt_usable(job);

	if (err || (err = tt_given(out, "tutti_table_open: table")) || (err = tt_need_same_lists(job, "a table")) ||
	    (err = tt_opening_enter(job, &at->handle.users, &outer)))
		return err;
	tt_gpu_look(); /* a later push may be too short for that */
	err = open_table(at, name, config, out);
	tt_opening_exit(job, &at->handle.users, outer);
	return err;
}

int tutti_table_reopen(tutti_table *t)
{
	struct tt_users *outer;
	int err = tt_usable(tt_job_of(t));

	if (err || (err = tt_opening_enter(t->job, &t->handle.users, &outer)))
		return err;
	tt_lock(t->job);
	for (int i = 0; i < t->servers; i++)
		tt_window_again(t->window, t->server[i]);
	tt_unlock(t->job);
	err = meet_all(t);
	if (!err && t->finished)
		err = tutti_table_finish(t);
	tt_opening_exit(t->job, &t->handle.users, outer);
	return err;
}

/* ---- the end ---- */

static uint64_t lowest_clock(const struct tutti_table *t)
{
	uint64_t lowest = UINT64_MAX;

	for (int i = 0; i < t->servers; i++)
		if (tt_table_has_any(t, i) && t->source[i].as.mode != TUTTI_ASYNC && t->source[i].clock < lowest)
			lowest = t->source[i].clock;
	return lowest == UINT64_MAX ? 0 : lowest; /* no shard has a clock, or all are closed */
}

int tutti_table_look(tutti_table *t, tutti_table_info *info)
{
	struct tt_job *job = tt_job_of(t);
	int err = tt_is_mine(job);

	if (err || (err = tt_given(info, "tutti_table_look: info")) || (err = tt_begin(job)))
		return err;
	*info = (tutti_table_info){
		.servers = t->servers, .workers = t->workers ? t->workers : job->size,
		.server = t->mine, .worker = tt_table_worker(t, job->rank),
		.clock = lowest_clock(t),
		.type = t->type, .rule = t->updater.rule, .count = t->count, .row = t->row,
	};
	if (t->shard.rounds) {
		struct tt_rounds_counts counts = tt_rounds_counts(t->shard.rounds);
		info->dropped = counts.dropped;
		info->broken = counts.broken;
	}
	tt_unlock(job);
	return 0;
}

static bool has_pushed(void *arg) { return !tt_table_is_pushed(arg); }

int tutti_table_finish(tutti_table *t)
{
	int err = tt_usable(tt_job_of(t));

	if (err || (err = tt_begin(t->job)))
		return err;
	if ((err = tt_wait_for(t->job, &t->handle.users, has_pushed, t, tt_now() + t->timeout)) == -ETIMEDOUT)
		err = tt_fail(-EBUSY, "table \"%s\": pushes of this rank are still under way after %llu ms", t->name,
		              tt_timeout_ms(t));
	else if (!err)
		tt_table_finish(t);
	tt_unlock(t->job);
	return err;
}

static void stop_timers(struct tutti_table *t)
{
	tt_timer_stop(&t->own_turn);
	tt_timer_stop(&t->gate_turn);
	tt_timer_stop(&t->shard.next.turn);
	tt_timer_stop(&t->shard.hold_turn);
}

static bool is_idle(void *arg) { return !tt_table_is_called(arg) && !tt_table_is_pushed(arg); }

static bool has_joined(const struct tutti_table *t)
{
	for (int i = 0; i < t->servers; i++)
		if (t->source[i].joined)
			return true;
	return false;
}

/* A server that comes again later may ask for it. */
static void leave_trace(struct tutti_table *t)
{
	if (!has_joined(t) || tt_table_was_closed(t->job, t->name))
		return;
	tt_list_append(&tt_tables(t->job)->closed, &t->trace->link);
	t->trace = NULL;
}

/* The window outlives the table for a moment: a rank that reads the head then finds the table closed. */
static void close_head(struct tt_shard *s)
{
	if (s->memory)
		__atomic_store_n(&((struct tt_shard_head *)s->memory)->uid, 0, __ATOMIC_RELEASE);
}

/* With the lock. */
static void end_table(struct tutti_table *t)
{
	struct tt_job *job = t->job;

	if (tt_wait_until(job, is_idle, t, tt_now() + t->timeout))
		tt_table_give_up(t);
	tt_table_finish(t);
	leave_trace(t);
	tt_table_take_back_report(t);
	close_head(&t->shard);
	tt_served_forget_all(t);
	tt_table_tell_closed(t);
	tt_list_remove(&t->link);
	tt_table_io_stop(t);
	if (t->shard.held)
		tt_shard_resume(t); /* tells workers whose pushes wait that the table is closed */
	stop_timers(t);
}

static void close_unheld(struct tutti_table *t)
{
	struct tt_sentence last = tt_last_sentence();

	tt_lock(t->job);
	end_table(t);
	tt_unlock(t->job);
	free_table(t);
	tt_remember(last.text);
}

void tutti_table_close(tutti_table *t)
{
	struct tt_sentence last = tt_last_sentence();

	if (!t || !tt_handle_close(&t->handle))
		return;
	end_table(t);
	tt_unlock(t->job);
	clear_table(t);
	tt_handle_free(&t->handle);
	tt_remember(last.text);
}

static void stop_tables(struct tt_job *job)
{
	tt_each_of(struct tutti_table, link, t, &tt_tables(job)->tables) {
		tt_lock(job);
		tt_table_io_stop(t);
		tt_unlock(job);
		tt_table_io_free(t);
	}
}

static void close_tables(struct tt_job *job)
{
	while (!tt_list_empty(&tt_tables(job)->tables)) {
		struct tutti_table *t = tt_container_of(tt_tables(job)->tables.next, struct tutti_table, link);
		stop_timers(t);
		free_table(t);
	}
	tt_call_free_all(job);
	tt_each_of(struct tt_closed, link, c, &tt_tables(job)->closed)
		free(c);
	tt_table_free_reports(job);
	for (int i = 0; tt_members(job)->of && i < job->size; i++) {
		struct tt_table_peer *peer = tt_member_own(tt_member(job, i), TT_TABLE_SLOT);
		if (!peer)
			continue;
		tt_window_close(peer->inbox_window);
		tt_table_free_inbox(peer);
		free(peer->queue);
	}
}

/* ---- the module ---- */

static void make(struct tt_job *job)
{
	struct tt_tables *all = tt_tables(job);

	tt_list_init(&all->tables);
	tt_list_init(&all->calls);
	tt_list_init(&all->held);
	tt_list_init(&all->enquiries);
	tt_list_init(&all->closed);
	tt_list_init(&all->reports);
	tt_list_init(&all->questions);
	for (size_t i = 0; i < TT_COUNT(all->by_uid); i++)
		tt_list_init(&all->by_uid[i]);
}

static void lose_member(struct tt_member *m)
{
	tt_table_member_down(m, m->err);
	tt_table_member_gone(m);
	tt_table_forget_reports(m);
}

static const struct tt_message messages[] = {
	{ TT_JOIN, "join", tt_table_take_join },
	{ TT_JOINED, "joined", tt_table_take_joined },
	{ TT_CLOCK, "clock", tt_table_take_clock },
	{ TT_FINISH, "finish", tt_table_take_finish },
	{ TT_CHANGE, "change", tt_table_take_switch },
	{ TT_CHANGED, "changed", tt_table_take_switched },
	{ TT_PUSH, "push", tt_table_push },
	{ TT_PUSHED, "pushed", tt_table_pushed },
	{ TT_PUSH_ROWS, "push rows", tt_table_push_rows },
	{ TT_PULL_ROWS, "pull rows", tt_table_pull_rows },
	{ TT_PULL_FRESH, "pull fresh", tt_table_pull_fresh },
	{ TT_PULL_VERSION, "pull version", tt_table_pull_version },
	{ TT_KEEP, "keep", tt_table_keep },
	{ TT_PULLED, "pulled", tt_table_pulled },
	{ TT_FILE, "file", tt_table_file },
	{ TT_FILED, "filed", tt_table_filed },
	{ TT_HELD, "held", tt_table_held },
	{ TT_EXPECT, "expect", tt_table_take_expect },
	{ TT_REPORT, "report", tt_table_take_report },
	{ TT_REPORTED, "reported", tt_table_take_reported },
};

/* The worker that others wait for, so that nobody blames this server. */
void tt_table_doing(const struct tt_job *job, char *text, size_t size)
{
	tt_list_each(node, &tt_tables(job)->tables) {
		const struct tutti_table *t = tt_container_of(node, struct tutti_table, link);
		int slow = t->shard.rounds ? tt_rounds_slowest(t->shard.rounds) : -1;
		if (slow >= 0)
			snprintf(text, size, "its table \"%.40s\" waits for a push of %s", t->name,
			         tt_member_label(tt_member(job, slow)).text);
	}
}

const struct tt_module tt_table_module = {
	.name = "table",
	.slot = TT_TABLE_SLOT,
	.job_size = sizeof(struct tt_tables),
	.make = make,
	.stop = stop_tables,
	.close = close_tables,
	.messages = messages,
	.message_count = TT_COUNT(messages),
	.doing = tt_table_doing,
	.unreached = tt_table_member_down,
	.ended = lose_member,
};
