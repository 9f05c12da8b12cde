/* io_thread.c - orders to a table's servers to write or read their shards, and the thread of a server that does so
 *
 *      caller -- FILE {table, number, what, folder} --> each server: its I/O thread reads or writes
 *             <-- FILED {number, -EINPROGRESS} --       ... now and then
 *             <-- FILED {number, errno, sentence} --    ... when it is done
 *             -- FILE {drop} --> all servers, if one has failed: their I/O threads stop
 *
 * Disks are slow, so no I/O happens with the lock held. Nobody knows beforehand how long a disk takes, so the caller
 * waits as long as each server reports progress. It gives up a server that lives but reports none for
 * TUTTI_TIMEOUT. */
#include "engine/engine.h"
#include "file/file.h"
#include "kernel/kernel.h"
#include "member/member.h"
#include "table/table_private.h"
#include "table/saving.h"
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WHY = 400, LEAVE_MS = 50 };

struct enquiry { /* one order of a caller to all servers; on the caller's stack */
	struct tt_list link;         /* in tt_tables(job)->enquiries */
	struct tutti_table *table;
	uint32_t number;
	bool called_off;             /* the servers know that it has failed, or it cannot be called off */
	struct {
		bool due;            /* the server has not answered, ... */
		uint64_t heard;      /* ... and last reported progress then */
	} *server;
	int left;                    /* servers that have not answered */
	int rank, err;               /* the first server that failed */
	char why[WHY];
	uint32_t workers;            /* the most workers that a server has state of, if it has refused for that */
	uint32_t least, most;        /* over the other answers: which save a server has read, or its loads */
	uint64_t sum;                /* of all loads and uids: a server that was restarted has another uid */
};

/* ---- the caller ---- */

static void answered(struct enquiry *q, int server, int err, const char *why)
{
	if (!q->server[server].due)
		return;
	q->server[server].due = false;
	q->left--;
	if (err && !q->err) {
		q->err = err;
		q->rank = q->table->server[server];
		snprintf(q->why, sizeof q->why, "%s", why);
	}
	q->table->job->engine.news = true;
}

static int server_of(const struct tutti_table *t, int rank)
{
	int i = 0;

	while (i < t->servers && t->server[i] != rank)
		i++;
	return i;
}

static struct enquiry *find(const struct tt_member *from, uint32_t number)
{
	tt_each_of(struct enquiry, link, q, &tt_tables(from->job)->enquiries)
		if (q->number == number && server_of(q->table, from->rank) < q->table->servers)
			return q;
	return NULL;
}

void tt_table_filed(struct tt_member *from, struct tt_pack *p)
{
	struct enquiry *q = find(from, tt_get32(p));
	int err = (int)tt_get32(p);
	uint32_t which = tt_get32(p);
	char why[WHY];
	int server;

	p->bad |= err > 0 || err < -4095;
	if (p->bad || !q)
		return;
	server = server_of(q->table, from->rank);
	snprintf(why, sizeof why, "%.*s", (int)tt_min(tt_pack_left(p), sizeof why - 1), (const char *)p->at);
	if (err == -EINPROGRESS) {
		q->server[server].heard = tt_now();
		return;
	}
	if (err == -EAGAIN)
		q->workers = tt_max(q->workers, which);
	if (!err) {
		q->least = tt_min(q->least, which);
		q->most = tt_max(q->most, which);
		q->sum += q->table->source[server].uid + which;
	}
	answered(q, server, err, why);
}

void tt_table_filer_down(struct tt_member *m, int err)
{
	tt_each_of(struct enquiry, link, q, &tt_tables(m->job)->enquiries) {
		int i = server_of(q->table, m->rank);
		if (i < q->table->servers)
			answered(q, i, err, m->why);
	}
}

static void take_order(struct tutti_table *, struct tt_member *from, uint32_t number, const struct tt_order *);

static void tell_order(struct tutti_table *t, int i, uint32_t number, const struct tt_order *o)
{
	struct tt_member *m = tt_member(t->job, t->server[i]);
	uint8_t head[32];
	struct tt_pack p = tt_pack(head, sizeof head);

	if (i == t->mine) {
		take_order(t, m, number, o);
		return;
	}
	tt_put8(&p, TT_FILE);
	tt_put64(&p, t->source[i].uid);
	tt_put32(&p, number);
	tt_put8(&p, (uint8_t)o->what);
	tt_put64(&p, o->generation);
	tt_put32(&p, o->workers);
	tt_send(m, head, (size_t)(p.at - head), o->folder, strlen(o->folder));
}

/* This rank's own server comes last, since its answer may come at once. */
static void ask_all(struct enquiry *q, const struct tt_order *o)
{
	struct tutti_table *t = q->table;

	for (int i = 0; i < t->servers; i++) {
		const struct tt_member *m = tt_member(t->job, t->server[i]);
		if (q->server[i].due && m->state >= TT_LEFT)
			answered(q, i, m->err, m->why);
		else if (q->server[i].due && i != t->mine)
			tell_order(t, i, q->number, o);
	}
	if (t->mine >= 0 && q->server[t->mine].due)
		tell_order(t, t->mine, q->number, o);
}

/* The drop has a number of its own: nobody waits for the answers to it. */
static void call_off(struct enquiry *q)
{
	struct tutti_table *t = q->table;
	const struct tt_order drop = { .what = TT_FILE_DROP, .generation = q->number, .folder = "" };
	uint32_t number = ++tt_tables(t->job)->generation;

	q->called_off = true;
	for (int i = 0; i < t->servers; i++)
		if (tt_table_has_any(t, i) && tt_member(t->job, t->server[i])->state < TT_LEFT)
			tell_order(t, i, number, &drop);
}

static bool is_failed(const struct enquiry *q) { return q->err && !q->called_off; }
static bool has_news(void *arg) { return !((const struct enquiry *)arg)->left || is_failed(arg); }

static uint64_t oldest_progress(const struct enquiry *q)
{
	uint64_t when = TT_NEVER;

	for (int i = 0; i < q->table->servers; i++)
		if (q->server[i].due)
			when = tt_min(when, q->server[i].heard);
	return when;
}

/* Servers tell of their progress with each heartbeat. */
static uint64_t patience_of(const struct tutti_table *t)
{
	return tt_max(t->timeout, 4 * tt_time(t->job, TT_TIME_HEARTBEAT));
}

static void give_up(struct enquiry *q)
{
	uint64_t now = tt_now(), timeout = patience_of(q->table);
	char why[WHY];

	snprintf(why, sizeof why, "it lives, and has got no further with this for %llu ms: does its disk hang?",
	         (unsigned long long)(timeout / TT_MS));
	for (int i = 0; i < q->table->servers; i++)
		if (q->server[i].due && now - q->server[i].heard >= timeout)
			answered(q, i, -ETIMEDOUT, why);
}

static bool is_answered(void *arg) { return !((const struct enquiry *)arg)->left; }

/* Servers that can be called off soon are; nobody waits for the others. */
static void leave(struct enquiry *q)
{
	struct tt_sentence why = tt_last_sentence();

	if (!q->called_off)
		call_off(q);
	tt_wait_until(q->table->job, is_answered, q, tt_now() + TT_MS * LEAVE_MS);
	tt_remember(why.text);
}

/* The second wait is for a process that was stopped itself: it finds the answers that have come meanwhile. -EINTR: the
 * caller's hook ended the wait. */
static int await(struct enquiry *q)
{
	struct tt_job *job = q->table->job;
	int err = 0;

	while (!err && (q->left || is_failed(q))) {
		if (is_failed(q)) {
			call_off(q);
			continue;
		}
		err = tt_wait_for(job, NULL, has_news, q, oldest_progress(q) + patience_of(q->table));
		if (err == -ETIMEDOUT)
			err = tt_wait_for(job, NULL, has_news, q, tt_now() + tt_time(job, TT_TIME_HEARTBEAT));
		if (err != -ETIMEDOUT)
			continue;
		give_up(q);
		err = 0;
	}
	if (err)
		leave(q);
	return err;
}

static bool takes_no_disk(enum tt_file_what what) { return what == TT_FILE_DROP || what == TT_FILE_COUNT; }

static int fail(const struct enquiry *q, const char *what)
{
	const char *why = *q->why ? q->why : strerror(-q->err);

	return q->err ? tt_fail(q->err, "%s: table \"%s\", %s: %s", what, q->table->name,
	                        tt_member_label(tt_member(q->table->job, q->rank)).text, why) : 0;
}

static bool may_end_early(enum tt_file_what what) { return what == TT_FILE_SAVE || what == TT_FILE_READ; }

int tt_table_io_order(struct tutti_table *t, const char *what, struct tt_order *o, uint32_t *number)
{
	struct tt_job *job = t->job;
	struct enquiry q = { .table = t, .least = UINT32_MAX, .called_off = !may_end_early(o->what) };
	int err;

	if (!(q.server = calloc((size_t)t->servers, sizeof *q.server)))
		return tt_fail(-ENOMEM, "%s: no memory to ask %d servers", what, t->servers);
	tt_lock(job);
	tt_operation_note(job, what);
	q.number = ++tt_tables(job)->generation;
	tt_list_append(&tt_tables(job)->enquiries, &q.link);
	for (int i = 0; i < t->servers; i++) {
		q.left += q.server[i].due = tt_table_has_any(t, i);
		q.server[i].heard = tt_now();
	}
	ask_all(&q, o);
	err = await(&q);
	tt_list_remove(&q.link);
	tt_unlock(job);
	free(q.server);
	o->workers = tt_max(o->workers, q.workers);
	o->differ = q.least < q.most;
	o->loads = q.sum;
	if (number)
		*number = q.number;
	return err ? err : fail(&q, what);
}

int tt_table_io_call(struct tutti_table *t, const char *what, const char *folder,
                     int (*act)(struct tutti_table *, const char *what, const char *folder))
{
	char path[PATH_MAX];
	int err = tt_usable(tt_job_of(t));

	if (err || (err = tt_save_check_name(t->name)))
		return err;
	err = !folder ? EINVAL : realpath(folder, path) ? 0 : errno; /* servers may have other working directories */
	if (err)
		return tt_fail(-err, "%s: no folder %s: %s", what, folder ? folder : "was given", strerror(err));
	if ((err = tt_users_enter(t->job, &t->handle.users)))
		return err;
	err = act(t, what, path);
	tt_users_exit(t->job, &t->handle.users);
	return err;
}

/* ---- the server ---- */

static void answer(struct tt_member *to, uint32_t number, int err, const char *why, uint32_t which)
{
	uint8_t bytes[16 + WHY];
	struct tt_pack p = tt_pack(bytes, sizeof bytes);

	tt_put8(&p, TT_FILED);
	tt_put32(&p, number);
	tt_put32(&p, (uint32_t)err);
	tt_put32(&p, which);
	tt_put_bytes(&p, why, tt_min(strlen(why), WHY - 1));
	if (to->rank != to->job->rank) {
		tt_send(to, bytes, (size_t)(p.at - bytes), NULL, 0);
		return;
	}
	struct tt_pack own = tt_unpack(bytes + 1, (size_t)(p.at - bytes) - 1);
	tt_table_filed(to, &own);
}

/* The loads that were taken, and the one that was read and may be taken. */
static uint32_t loads_of(const struct tutti_table *t)
{
	const struct tt_table_io *c = t->shard.io;

	return c ? c->loads + (c->staged && !c->busy) : 0;
}

/* The number in the answer: struct enquiry says what it means. */
static uint32_t which(const struct tt_table_io *c, int err)
{
	if (err == -EAGAIN)
		return tt_saving_workers(c->table);
	return c->order.what == TT_FILE_READ && c->staged ? tt_staged_print(c->staged) : loads_of(c->table);
}

static bool asker_lives(const struct tutti_table *t, const struct tt_asker *a)
{
	const struct tt_member *m = tt_member(t->job, a->rank);

	return m->state < TT_LEFT && m->epoch == a->epoch;
}

void tt_table_io_done(struct tt_table_io *c, int err)
{
	struct tutti_table *t = c->table;

	c->busy = false;
	tt_timer_stop(&c->turn);
	if (asker_lives(t, &c->asker)) /* a later process of that rank may use the same number */
		answer(tt_member(t->job, c->asker.rank), c->asker.number, err, err ? tt_why() : "", which(c, err));
}

/* While the shard is being quiesced, quiesce.c looks after progress. */
static bool makes_progress(struct tt_table_io *c)
{
	uint64_t before = c->told;

	c->told = c->steps;
	return c->told != before || c->table->shard.at_rest;
}

static void tell(struct tt_timer *turn)
{
	struct tt_table_io *c = tt_container_of(turn, struct tt_table_io, turn);
	struct tt_job *job = c->table->job;

	tt_timer_start(job, turn, tt_now() + tt_time(job, TT_TIME_HEARTBEAT), tell);
	if (makes_progress(c) && asker_lives(c->table, &c->asker))
		answer(tt_member(job, c->asker.rank), c->asker.number, -EINPROGRESS, "", 0);
}

bool tt_asker_is(const struct tt_asker *a, const struct tt_asker *b)
{
	return a->rank == b->rank && a->epoch == b->epoch && a->number == b->number;
}

int tt_table_io_step(struct tt_table_io *c)
{
	c->steps++;
	if (c->stop)
		return tt_fail(-ESTALE, "it has closed the table");
	return c->unwanted ? tt_fail(-ECANCELED, "it was called off, for another server's sake") : 0;
}

/* For whom a file is being written or read, or a shard was read and not taken yet. NULL: nobody; a TAKE always ends. */
static const struct tt_asker *whose(const struct tt_table_io *c)
{
	if (c && c->busy)
		return may_end_early(c->order.what) ? &c->asker : NULL;
	return c && c->staged ? tt_staged_asker(c->staged) : NULL;
}

static void forget(struct tt_table_io *c)
{
	if (c->busy)
		c->unwanted = true;
	else
		tt_load_forget(c);
}

void tt_table_io_forget_dead(struct tutti_table *t)
{
	const struct tt_asker *asker = whose(t->shard.io);

	if (asker && !asker_lives(t, asker))
		forget(t->shard.io);
}

static struct tt_table_io *thread_of(struct tutti_table *t)
{
	if (!t->shard.io && (t->shard.io = calloc(1, sizeof *t->shard.io)))
		t->shard.io->table = t;
	return t->shard.io;
}

/* Nothing may come between a READ and its TAKE, or the TAKE could fail while other servers take theirs. */
static int check(const struct tt_table_io *c, const struct tt_order *o)
{
	struct tt_label who = tt_member_label(tt_member(c->table->job, c->asker.rank));

	if (c->busy)
		return tt_fail(-EBUSY, "it is being saved or loaded already, for %s", who.text);
	if (c->staged && o->what != TT_FILE_TAKE)
		return tt_fail(-EBUSY, "it is being loaded already, for %s", who.text);
	if (o->what != TT_FILE_TAKE && *o->folder != '/')
		return tt_fail(-EINVAL, "\"%s\" is no absolute path of a folder", o->folder);
	return 0;
}

static int begin(struct tutti_table *t, const struct tt_member *from, uint32_t number, const struct tt_order *o)
{
	struct tt_table_io *c = thread_of(t);
	char *folder = strdup(o->folder);
	int err = c && folder ? check(c, o) : tt_fail(-ENOMEM, "no memory to save or load it");

	if (err) {
		free(folder);
		return err;
	}
	free((char *)(uintptr_t)c->order.folder);
	c->order = *o;
	c->order.folder = folder;
	c->asker = (struct tt_asker){ from->rank, from->epoch, number };
	c->busy = true;
	c->unwanted = false;
	tt_timer_start(t->job, &c->turn, tt_now() + tt_time(t->job, TT_TIME_HEARTBEAT), tell);
	return 0;
}

static void take_order(struct tutti_table *t, struct tt_member *from, uint32_t number, const struct tt_order *o)
{
	static void (*const acts[])(struct tt_table_io *) = { tt_save_begin, tt_load_read, tt_load_take };
	const struct tt_asker dropped = { from->rank, from->epoch, (uint32_t)o->generation };
	const struct tt_asker *asker = t ? whose(t->shard.io) : NULL;
	int err = t && !t->job->leaving ? 0 : tt_fail(-ESTALE, "it has closed the table, or was started anew");

	if (!err && !takes_no_disk(o->what))
		err = begin(t, from, number, o);
	else if (!err && o->what == TT_FILE_DROP && asker && tt_asker_is(asker, &dropped))
		forget(t->shard.io);
	if (err || takes_no_disk(o->what))
		answer(from, number, err, err ? tt_why() : "", err ? 0 : loads_of(t));
	else
		acts[o->what](t->shard.io);
}

void tt_table_file(struct tt_member *from, struct tt_pack *p)
{
	struct tutti_table *t = tt_table_find(from->job, tt_get64(p));
	uint32_t number = tt_get32(p);
	struct tt_order o = { .what = tt_get8(p), .generation = tt_get64(p), .workers = tt_get32(p) };
	size_t len = tt_pack_left(p);
	char folder[PATH_MAX];

	p->bad |= o.what > TT_FILE_COUNT || len >= sizeof folder || memchr(p->at, 0, len);
	if (p->bad)
		return;
	memcpy(folder, p->at, len);
	folder[len] = 0;
	o.folder = folder;
	take_order(t, from, number, &o);
}

/* ---- the thread ---- */

static void run(void *arg)
{
	struct tt_table_io *c = arg;
	struct tt_job *job = c->table->job;
	int err = c->work(c);

	tt_lock(job);
	c->after(c, err);
	tt_table_io_done(c, err);
	tt_unlock(job);
}

static void join(struct tt_task **thread)
{
	if (*thread)
		tt_join(*thread);
	*thread = NULL;
}

void tt_table_io_work(struct tt_table_io *c, int (*work)(struct tt_table_io *),
                      void (*after)(struct tt_table_io *, int err))
{
	int err;

	/* The last thread has called tt_table_io_done(), and may not have ended yet: nobody waits for it under the
	 * lock. The thread before has ended while the last one worked. */
	join(&c->ended);
	c->ended = c->thread;
	c->thread = NULL;
	c->work = work;
	c->after = after;
	if (!(err = tt_spawn(run, c, &c->thread))) {
		tt_place_widen(c->table->job, c->thread);
		return;
	}
	after(c, err);
	tt_table_io_done(c, err);
}

/* An order that waits for the shard to be quiesced has no thread yet. */
void tt_table_io_stop(struct tutti_table *t)
{
	struct tt_table_io *c = t->shard.io;

	if (!c)
		return;
	c->stop = true;
	if (t->shard.at_rest)
		tt_table_io_done(c, tt_fail(-ESTALE, "it has closed the table"));
	t->shard.at_rest = NULL;
}

void tt_table_io_free(struct tutti_table *t)
{
	struct tt_table_io *c = t->shard.io;

	if (!c)
		return;
	join(&c->ended);
	join(&c->thread);
	tt_lock(t->job);
	t->shard.io = NULL; /* tt_table_io_forget_dead() must not find it any more */
	tt_unlock(t->job);
	tt_saving_free(c->saving);
	tt_staged_free(c->staged);
	free((char *)(uintptr_t)c->order.folder);
	free(c);
}
