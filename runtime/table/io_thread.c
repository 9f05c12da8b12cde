/* io_thread.c - who asks a table's servers to write or read their shards, and how they do so
 *
 *      me -- FILE {table, number, what, folder} --> each server: a thread reads or writes --> FILED {number, errno, sentence} -- me
 *                                                                                        --> FILED {number, -EINPROGRESS} now and then
 *      one has failed: I want it no more ---> FILE ---> the others: their threads leave off
 *
 * Disks are slow, and nobody waits for them with the gate held. How long one takes nobody knows beforehand: who asks waits as long as each
 * server says that it gets on. One that lives and says nothing, as its disk hangs, is given up after some deadlines. */
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

enum { WHY = 400, SILENCE = 4 /* deadlines: long enough for what a disk does at once */ };

struct enquiry { /* of one call, on its thread's stack */
	struct tt_list link;         /* in tt_tables(job)->enquiries */
	struct tutti_table *table;
	uint32_t number;
	bool called_off;             /* one has failed, and all were told that it is not worth its end; or it would be too late for that */
	struct {
		bool due;            /* it has not answered, ... */
		uint64_t heard;      /* ... and said last that it gets on */
	} *server;
	int left;                    /* so many have not answered */
	int rank, err;               /* the first who refused */
	char why[WHY];
	uint32_t workers;            /* most of those that some server has state of, and has refused therefore */
	uint32_t least, most;        /* of what the others say: which save they have read, or ... */
	uint64_t sum;                /* ... how often they were loaded, with their numbers: one that was started anew has another */
};

/* ---- who asks ---- */

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
	tt_list_each(node, &tt_tables(from->job)->enquiries) {
		struct enquiry *q = tt_container_of(node, struct enquiry, link);
		if (q->number == number && server_of(q->table, from->rank) < q->table->servers)
			return q;
	}
	return NULL;
}

static void hear(struct enquiry *q, int server, uint32_t which)
{
	q->least = tt_min(q->least, which);
	q->most = tt_max(q->most, which);
	q->sum += q->table->source[server].uid + which;
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
	else if (!err)
		hear(q, server, which);
	answered(q, server, err, why);
}

void tt_table_filer_down(struct tt_member *m, int err)
{
	tt_list_each(node, &tt_tables(m->job)->enquiries) {
		struct enquiry *q = tt_container_of(node, struct enquiry, link);
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

/* This rank's own server comes last: it may begin at once. */
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

/* Under a number for which nobody waits. */
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

static uint64_t longest_ago(const struct enquiry *q) /* that one who is due was heard of */
{
	uint64_t when = TT_NEVER;

	for (int i = 0; i < q->table->servers; i++)
		if (q->server[i].due)
			when = tt_min(when, q->server[i].heard);
	return when;
}

static void give_up(struct enquiry *q, uint64_t patience)
{
	uint64_t now = tt_now();
	char why[WHY];

	snprintf(why, sizeof why, "it lives, and has got no further with this for %llu ms%s", (unsigned long long)(patience / TT_MS),
	         patience > q->table->job->deadline ? ": does its disk hang?" : "");
	for (int i = 0; i < q->table->servers; i++)
		if (q->server[i].due && now - q->server[i].heard >= patience)
			answered(q, i, -ETIMEDOUT, why);
}

/* Who was stopped himself finds now what has come meanwhile. */
static void await(struct enquiry *q, uint64_t patience)
{
	struct tt_job *job = q->table->job;

	while (q->left || is_failed(q))
		if (is_failed(q)) {
			call_off(q);
		} else if (tt_wait_until(job, has_news, q, longest_ago(q) + patience) && tt_wait_until(job, has_news, q, tt_now() + job->deadline / 8)) {
			give_up(q, patience);
		}
}

static int fail(const struct enquiry *q, const char *what)
{
	if (!q->err)
		return 0;
	return tt_fail(q->err, "%s: table \"%s\", rank %d: %s", what, q->table->name, q->rank, *q->why ? q->why : strerror(-q->err));
}

static bool may_end_early(enum tt_file_what what) { return what == TT_FILE_SAVE || what == TT_FILE_READ; }
static bool takes_no_disk(enum tt_file_what what) { return what == TT_FILE_DROP || what == TT_FILE_COUNT; }

int tt_table_io_order(struct tutti_table *t, const char *what, struct tt_order *o, uint32_t *number)
{
	struct tt_job *job = t->job;
	struct enquiry q = { .table = t, .least = UINT32_MAX, .called_off = !may_end_early(o->what), .server = calloc((size_t)t->servers, sizeof *q.server) };

	if (!q.server)
		return tt_fail(-ENOMEM, "%s: no memory to ask %d servers", what, t->servers);
	tt_lock(job);
	q.number = ++tt_tables(job)->generation;
	tt_list_append(&tt_tables(job)->enquiries, &q.link);
	for (int i = 0; i < t->servers; i++) {
		q.left += q.server[i].due = tt_table_has_any(t, i);
		q.server[i].heard = tt_now();
	}
	ask_all(&q, o);
	await(&q, (takes_no_disk(o->what) ? 1 : SILENCE) * job->deadline);
	tt_list_remove(&q.link);
	tt_unlock(job);
	free(q.server);
	o->workers = tt_max(o->workers, q.workers);
	o->differ = q.least < q.most;
	o->loads = q.sum;
	if (number)
		*number = q.number;
	return fail(&q, what);
}

int tt_table_io_call(struct tutti_table *t, const char *what, const char *folder, int (*act)(struct tutti_table *, const char *what, const char *folder))
{
	char path[PATH_MAX];
	int err = tt_usable(t->job);

	if (err || (err = tt_save_check_name(t->name)))
		return err;
	if (!folder || !realpath(folder, path)) /* the servers' own working directories may be others */
		return tt_fail(folder ? -errno : -EINVAL, "%s: no folder %s: %s", what, folder ? folder : "was given", strerror(folder ? errno : EINVAL));
	tt_lock(t->job);
	t->filing++;
	tt_unlock(t->job);
	err = act(t, what, path);
	tt_lock(t->job);
	t->filing--;
	t->job->engine.news = true; /* one who closes it may wait for this */
	tt_unlock(t->job);
	return err;
}

/* ---- who is asked ---- */

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

/* Whose state there is, where each worker has its own. */
static uint32_t workers_of(const struct tutti_table *t)
{
	int n = tt_updater_states(t->shard.updater);

	return n ? (uint32_t)(tt_updater_state(t->shard.updater, n - 1).worker + 1) : 0;
}

/* With the one that was read, and is to be taken. */
static uint32_t loads_of(const struct tutti_table *t)
{
	const struct tt_table_io *c = t->shard.clerk;

	return c ? c->loads + (c->staged && !c->busy) : 0;
}

/* What an answer says beside that. */
static uint32_t which(const struct tt_table_io *c, int err)
{
	if (err == -EAGAIN)
		return workers_of(c->table);
	return c->order.what == TT_FILE_READ && c->staged ? tt_staged_print(c->staged) : loads_of(c->table);
}

void tt_table_io_done(struct tt_table_io *c, int err)
{
	struct tutti_table *t = c->table;

	c->busy = false;
	tt_timer_stop(&c->turn);
	if (tt_asker_lives(t, &c->asker)) /* a later life of his may ask under the same number */
		answer(tt_member(t->job, c->asker.rank), c->asker.number, err, err ? tt_why() : "", which(c, err));
}

/* While it waits for its moment that is the pushes' affair: quiesce.c does not wait for one that does not go on. */
static bool gets_on(struct tt_table_io *c)
{
	uint64_t steps = c->steps;
	bool more = steps != c->told || c->table->shard.at_rest;

	c->told = steps;
	return more;
}

static void tell(struct tt_timer *turn)
{
	struct tt_table_io *c = tt_container_of(turn, struct tt_table_io, turn);
	struct tt_job *job = c->table->job;

	tt_timer_start(job, turn, tt_now() + job->deadline / 4, tell);
	if (gets_on(c) && tt_asker_lives(c->table, &c->asker))
		answer(tt_member(job, c->asker.rank), c->asker.number, -EINPROGRESS, "", 0);
}

bool tt_asker_lives(const struct tutti_table *t, const struct tt_asker *a)
{
	const struct tt_member *m = tt_member(t->job, a->rank);

	return m->state < TT_LEFT && m->epoch == a->epoch;
}

bool tt_asker_is(const struct tt_asker *a, const struct tt_asker *b) { return a->rank == b->rank && a->epoch == b->epoch && a->number == b->number; }

int tt_table_io_step(struct tt_table_io *c)
{
	c->steps++;
	if (c->stop)
		return tt_fail(-ESTALE, "it has closed the table");
	return c->unwanted ? tt_fail(-ECANCELED, "it was called off, for another server's sake") : 0;
}

/* What he waits for, or what was read for him and is to be taken; one that is being taken goes on to its end. */
static const struct tt_asker *whose(const struct tt_table_io *c)
{
	if (c->busy)
		return may_end_early(c->order.what) ? &c->asker : NULL;
	return c->staged ? tt_staged_asker(c->staged) : NULL;
}

static void forget_it(struct tt_table_io *c)
{
	if (c->busy) {
		c->unwanted = true;
		return;
	}
	tt_load_forget(c);
}

static void forget(struct tutti_table *t, const struct tt_asker *asker)
{
	struct tt_table_io *c = t->shard.clerk;

	if (c && whose(c) && tt_asker_is(whose(c), asker))
		forget_it(c);
}

void tt_table_io_forget_dead(struct tutti_table *t)
{
	struct tt_table_io *c = t->shard.clerk;

	if (c && whose(c) && !tt_asker_lives(t, whose(c)))
		forget_it(c);
}

static struct tt_table_io *clerk_of(struct tutti_table *t)
{
	if (!t->shard.clerk && (t->shard.clerk = calloc(1, sizeof *t->shard.clerk)))
		t->shard.clerk->table = t;
	return t->shard.clerk;
}

/* Between a READ and its TAKE there is nothing that could make the TAKE fail: else other servers would have taken theirs. */
static int check_free(const struct tt_table_io *c, const struct tt_order *o)
{
	if (c->busy)
		return tt_fail(-EBUSY, "it is being saved or loaded already, for rank %d", c->asker.rank);
	if (c->staged && o->what != TT_FILE_TAKE)
		return tt_fail(-EBUSY, "it is being loaded already, for rank %d", c->asker.rank);
	return 0;
}

static int check_folder(const struct tt_order *o)
{
	return o->what == TT_FILE_TAKE || *o->folder == '/' ? 0 : tt_fail(-EINVAL, "\"%s\" is no absolute path of a folder", o->folder);
}

static int begin(struct tutti_table *t, const struct tt_member *from, uint32_t number, const struct tt_order *o)
{
	struct tt_table_io *c = clerk_of(t);
	char *folder = strdup(o->folder);
	int err = c && folder ? check_free(c, o) : tt_fail(-ENOMEM, "no memory to save or load it");

	if (err || (err = check_folder(o))) {
		free(folder);
		return err;
	}
	free((char *)(uintptr_t)c->order.folder);
	c->order = *o;
	c->order.folder = folder;
	c->asker = (struct tt_asker){ from->rank, from->epoch, number };
	c->busy = true;
	c->unwanted = false;
	tt_timer_start(t->job, &c->turn, tt_now() + t->job->deadline / 4, tell);
	return 0;
}

static void take_order(struct tutti_table *t, struct tt_member *from, uint32_t number, const struct tt_order *o)
{
	static void (*const acts[])(struct tt_table_io *) = { tt_save_begin, tt_load_read, tt_load_take };
	int err = t && !t->job->leaving ? 0 : tt_fail(-ESTALE, "it has closed the table, or was started anew");

	if (!err && o->what == TT_FILE_DROP)
		forget(t, &(struct tt_asker){ from->rank, from->epoch, (uint32_t)o->generation });
	else if (!err && o->what != TT_FILE_COUNT)
		err = begin(t, from, number, o);
	if (err || takes_no_disk(o->what))
		answer(from, number, err, err ? tt_why() : "", err ? 0 : loads_of(t));
	else
		acts[o->what](t->shard.clerk);
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
	if (c->after)
		c->after(c, err);
	tt_table_io_done(c, err);
	tt_unlock(job);
}

/* The one before has said that it is done, and ends by itself. */
static void join(struct tt_table_io *c)
{
	if (c->thread)
		tt_join(c->thread);
	c->thread = NULL;
}

void tt_table_io_work(struct tt_table_io *c, int (*work)(struct tt_table_io *), void (*after)(struct tt_table_io *, int err))
{
	int err;

	join(c);
	c->work = work;
	c->after = after;
	err = tt_spawn(run, c, &c->thread);
	if (!err) {
		tt_place_widen(c->table->job, c->thread);
		return;
	}
	if (after)
		after(c, err);
	tt_table_io_done(c, err);
}

/* One that waits for its moment has no thread yet. */
void tt_table_io_stop(struct tutti_table *t)
{
	struct tt_table_io *c = t->shard.clerk;

	if (!c)
		return;
	c->stop = true;
	if (t->shard.at_rest)
		tt_table_io_done(c, tt_fail(-ESTALE, "it has closed the table"));
	t->shard.at_rest = NULL;
}

void tt_table_io_free(struct tutti_table *t)
{
	struct tt_table_io *c = t->shard.clerk;

	if (!c)
		return;
	join(c);
	tt_lock(t->job);
	t->shard.clerk = NULL; /* who goes now does not find it */
	tt_unlock(t->job);
	tt_saving_free(c->saving);
	tt_staged_free(c->staged);
	free((char *)(uintptr_t)c->order.folder);
	free(c);
}
