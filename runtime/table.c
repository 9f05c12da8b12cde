/* table.c - parameter tables: opening and closing them
 *
 * Opening is like a window's: each server makes its shard, then everybody asks the others for theirs, and compares what the table
 * is said to be. So no rank has to be the first, and one that comes later opens the table under its name. */
#include "table.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NAME_MAX_LEN = 160 };

/* ---- what it is ---- */

static int check_config(const struct tt_job *job, const char *name, const tutti_table_config *c)
{
	if (!name || !*name || strlen(name) > NAME_MAX_LEN)
		return tt_fail(-EINVAL, "a table's name has 1 to %d bytes", NAME_MAX_LEN);
	if (!c || c->size != sizeof *c)
		return tt_fail(-EINVAL, "table \"%s\": tutti_table_config.size is %zu, and must be sizeof(tutti_table_config), %zu", name,
		               c ? c->size : 0, sizeof *c);
	if (!tt_type_size(c->type))
		return tt_fail(-EINVAL, "table \"%s\": there is no type %d", name, (int)c->type);
	if (!c->count || c->count > PTRDIFF_MAX / tt_type_size(c->type))
		return tt_fail(-EINVAL, "table \"%s\": %llu elements, and it must be from 1 up to what memory can be", name, (unsigned long long)c->count);
	if (c->servers < 0 || c->servers > job->capacity || (!c->servers != !c->server))
		return tt_fail(-EINVAL, "table \"%s\": %d servers, and a list of them that is %s: name all of them, or none for all ranks", name, c->servers,
		               c->server ? "there" : "NULL");
	for (int i = 0; i < c->servers; i++)
		for (int j = 0; j <= i; j++)
			if (c->server[i] < 0 || c->server[i] >= job->capacity || (j < i && c->server[j] == c->server[i]))
				return tt_fail(-EINVAL, "table \"%s\": server %d is rank %d, which is no rank or is named twice", name, i, c->server[i]);
	return 0;
}

/* What all ranks must agree on; a function of the program's cannot be compared. */
static uint64_t print_of(const struct tutti_table *t)
{
	struct tt_sum sum;
	uint64_t numbers[] = { 1, (uint64_t)t->type, t->count, (uint64_t)t->updater.rule, t->updater.flags, (uint64_t)t->updater.own_states,
		               (uint64_t)t->servers };
	uint8_t defaults[128];
	struct tt_pack p = tt_pack(defaults, sizeof defaults);

	tt_table_put_options(&p, &t->updater.defaults);
	tt_sum_begin(&sum);
	tt_sum_add(&sum, numbers, sizeof numbers);
	tt_sum_add(&sum, defaults, (size_t)(p.at - defaults));
	tt_sum_add(&sum, t->server, (size_t)t->servers * sizeof *t->server);
	return tt_sum_end(&sum);
}

static struct tutti_table *new_table(struct tt_job *job, const char *name, const tutti_table_config *c)
{
	struct tutti_table *t = calloc(1, sizeof *t);

	if (!t)
		return NULL;
	tt_list_init(&t->link);
	t->job = job;
	t->name = strdup(name);
	t->type = c->type;
	t->width = tt_type_size(c->type);
	t->count = c->count;
	t->updater = c->updater;
	t->servers = c->servers ? c->servers : job->launched;
	t->server = calloc((size_t)t->servers, sizeof *t->server);
	t->uid = calloc((size_t)t->servers, sizeof *t->uid);
	t->mine = -1;
	for (int i = 0; t->server && i < t->servers; i++) {
		t->server[i] = c->servers ? c->server[i] : i;
		t->mine = t->server[i] == job->rank ? i : t->mine;
	}
	if (t->server)
		t->print = print_of(t);
	return t;
}

static void free_table(struct tutti_table *t)
{
	tt_list_remove(&t->link);
	tutti_window_close(t->window);
	tt_table_unserve(t);
	free(t->name);
	free(t->server);
	free(t->uid);
	free(t);
}

/* ---- meeting the others ---- */

static void name_window(char *room, size_t size, const struct tutti_table *t) { snprintf(room, size, "tutti:table:%s", t->name); }
void tt_table_inbox_name(char *room, size_t size, int worker) { snprintf(room, size, "tutti:inbox:%d", worker); }

static int open_windows(struct tutti_table *t)
{
	struct tt_job *job = t->job;
	size_t bytes = t->mine < 0 ? 0 : TT_SHARD_HEAD + (size_t)tt_table_range(t, t->mine).count * t->width;
	char name[NAME_MAX_LEN + 16];
	int err = 0;

	name_window(name, sizeof name, t);
	tt_enter(job);
	tt_list_each(node, &job->tables)
		if (!strcmp(tt_container_of(node, struct tutti_table, link)->name, t->name))
			err = tt_fail(-EEXIST, "a table named \"%s\" is open already", t->name);
	if (!err && t->shard.memory)
		((struct tt_shard_head *)t->shard.memory)->uid = (uint64_t)job->epoch << 32 | ++job->generation;
	if (!err)
		err = tt_window_open(job, name, t->shard.memory, bytes, &t->window);
	tt_table_inbox_name(name, sizeof name, job->rank);
	if (!err && !job->outbox)
		err = tt_window_open(job, name, NULL, 0, &job->outbox);
	if (!err)
		tt_list_append(&job->tables, &t->link);
	tt_exit(job);
	return err;
}

/* To a server that gets pieces by slots. Its answer comes when it has made them. */
static int ask_for_slots(struct tutti_table *t, int rank)
{
	uint8_t ask = TT_FEED;
	uint64_t word;

	tt_enter(t->job);
	tt_send(&t->job->members[rank], &ask, 1, NULL, 0);
	tt_exit(t->job);
	return tutti_get(t->job->outbox, rank, 0, &word, sizeof word, NULL);
}

static int meet(struct tutti_table *t, int i)
{
	struct tt_shard_head head;
	int err = tutti_get(t->window, t->server[i], 0, &head, sizeof head, NULL);

	if (err == -ENOENT)
		return tt_fail(err, "table \"%s\": rank %d, a server of it, did not open it within %llu ms", t->name, t->server[i],
		               (unsigned long long)(t->job->deadline / TT_MS));
	if (err)
		return err;
	if (head.print != t->print)
		return tt_fail(-EINVAL, "table \"%s\": rank %d opened it with another type, count, rule or list of servers than rank %d", t->name, t->server[i],
		               t->job->rank);
	t->uid[i] = head.uid;
	return tt_table_is_large(t, i) ? ask_for_slots(t, t->server[i]) : 0;
}

static int meet_all(struct tutti_table *t)
{
	int err = 0;

	for (int i = 0; !err && i < t->servers; i++)
		if (i != t->mine)
			err = meet(t, i);
	return err;
}

int tutti_table_open(tutti *at, const char *name, const tutti_table_config *config, tutti_table **out)
{
	struct tt_job *job = at->job;
	struct tutti_table *t;
	int err = tt_usable(job);

	if (err || (err = check_config(job, name, config)))
		return err;
	tutti_table_config c = *config;
	if (!c.updater.size && !c.updater.rule)
		c.updater.size = sizeof c.updater; /* zeroed */
	if ((err = tt_updater_check(&c.updater, c.type)))
		return err;
	t = new_table(job, name, &c);
	if (!t || !t->name || !t->server || !t->uid)
		err = tt_fail(-ENOMEM, "no memory for the table \"%s\"", name);
	if (!err)
		err = tt_shards_cut(&t->shards, t->count, t->servers, TT_CACHE_LINE / t->width, TT_CUT_EVEN);
	if (!err && t->mine >= 0)
		err = tt_table_serve(t);
	if (!err && !(err = open_windows(t)))
		err = meet_all(t);
	if (err && t)
		tutti_table_close(t);
	if (!err)
		*out = t;
	return err;
}

/* ---- the end ---- */

static bool is_idle(void *arg) { return !tt_table_is_called(arg); }

void tutti_table_close(tutti_table *t)
{
	struct tt_job *job;

	if (!t || !*t->job->here)
		return;
	job = t->job;
	tt_enter(job);
	if (tt_wait_until(job, is_idle, t, tt_now() + job->deadline))
		tt_table_cut_off(t);
	tt_list_remove(&t->link);
	tt_exit(job);
	free_table(t);
}

void tt_table_free_all(struct tt_job *job)
{
	while (!tt_list_empty(&job->tables))
		free_table(tt_container_of(job->tables.next, struct tutti_table, link));
	for (int i = 0; job->members && i < job->size; i++) {
		tutti_window_close(job->members[i].inbox_window);
		tutti_free(job->all, job->members[i].inbox);
		free(job->members[i].feed);
	}
}
