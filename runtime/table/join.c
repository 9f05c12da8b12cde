/* join.c - which ranks take part in a table, and the clocks of its shards
 *
 * A rank that opens a table joins each of its servers. The answer says from which number on the rank's pushes count.
 * From then on the server tells the rank about its clock.
 *
 *      JOIN {uid, slots, 0}       -->
 *                                 <--  JOINED {uid, errno, clock, pushed}
 *                                 <--  CLOCK {uid, clock}, whenever the clock moves
 *      JOIN {uid, slots, pushed}  -->  if pushes count from a higher number at another server
 *      FINISH {uid}               -->
 *                                 <--  EXPECT {uid, name}, from a server that came again: FINISH, if you have
 *
 * Servers do not know each other's clocks: one may have closed a round that is still open at another, or may have been
 * loaded from a save. So a rank that has joined all servers sends a second JOIN to those whose number is too low. */
#include "table/saving.h"
#include <string.h>

bool tt_table_is_other(const struct tutti_table *t, int i) { return i != t->mine && tt_table_has_any(t, i); }

/* ---- a server's side ---- */

static void send_clock(struct tt_member *to, uint64_t uid, uint64_t clock)
{
	uint8_t bytes[17];
	struct tt_pack p = tt_pack(bytes, sizeof bytes);

	tt_put8(&p, TT_CLOCK);
	tt_put64(&p, uid);
	tt_put64(&p, clock);
	tt_send(to, bytes, sizeof bytes, NULL, 0);
}

static void tell(struct tutti_table *t, uint64_t clock)
{
	struct tt_job *job = t->job;

	for (int i = 0; i < job->size; i++)
		if (t->shard.pushers[i] && t->shard.pushers[i]->met && i != job->rank &&
		    tt_member(job, i)->state < TT_LEFT)
			send_clock(tt_member(job, i), t->source[t->mine].uid, clock);
	tt_table_clock(t, t->mine, clock);
}

void tt_table_tell(struct tutti_table *t) { tell(t, tt_version_clock(t)); }

void tt_table_tell_closed(struct tutti_table *t)
{
	if (t->shard.rounds)
		tell(t, UINT64_MAX);
}

/* ---- slots for large pushes of a rank, which serve all tables ---- */

enum { INBOX = TT_SEND_QUEUE_SLOTS * TT_PUSH_PIECE };

/* With the lock or without it: pinning is slow. */
static int make_inbox(struct tt_job *job, struct tt_table_peer *inbox)
{
	int err = tt_memory_alloc(job, INBOX, -1, (void **)&inbox->inbox);

	if (err || !job->engine.pins)
		return err;
	struct tt_mem mem = tt_mem_of(inbox->inbox, INBOX);
	if ((err = tt_pin_mem(job, &mem, 1, &inbox->pinned))) {
		tt_memory_free(inbox->inbox);
		inbox->inbox = NULL;
	}
	return err;
}

void tt_table_free_inbox(struct tt_table_peer *inbox)
{
	tt_unpin_now(inbox->pinned);
	tt_memory_free(inbox->inbox);
}

/* Leaves in `made` what it did not keep: another thread was faster, or there is no memory. */
static int keep_inbox(struct tt_member *of, struct tt_table_peer *made)
{
	struct tt_table_peer *peer = tt_member_make_own(of, TT_TABLE_SLOT, sizeof *peer);

	if (peer && !peer->inbox) {
		peer->inbox = made->inbox;
		peer->pinned = made->pinned;
		*made = (struct tt_table_peer){ 0 };
	}
	return peer ? 0 : tt_fail(-ENOMEM, "no memory for pushes of %s", tt_member_label(of).text);
}

static bool has_inbox(const struct tt_member *of)
{
	tt_lock(of->job);
	const struct tt_table_peer *peer = tt_member_own(of, TT_TABLE_SLOT);
	bool has = peer && peer->inbox;
	tt_unlock(of->job);
	return has;
}

int tt_table_make_inboxes(struct tutti_table *t)
{
	struct tt_job *job = t->job;
	int err = 0;

	for (int rank = 0; !err && job->engine.pins && tt_table_is_large(t, t->mine) && rank < job->size; rank++) {
		struct tt_table_peer made = { 0 };
		if (rank == job->rank || tt_table_worker(t, rank) < 0 || has_inbox(tt_member(job, rank)) ||
		    (err = make_inbox(job, &made)))
			continue;
		tt_lock(job);
		err = keep_inbox(tt_member(job, rank), &made);
		tt_unlock(job);
		tt_table_free_inbox(&made);
	}
	return err;
}

/* Pins under the lock for a rank that joined the job since the table was opened. */
static int give_slots(struct tt_member *to)
{
	struct tt_table_peer *peer = tt_member_make_own(to, TT_TABLE_SLOT, sizeof *peer);
	struct tt_job *job = to->job;
	char name[32];
	int err = 0;

	if (!peer)
		return tt_fail(-ENOMEM, "no memory for pushes of %s", tt_member_label(to).text);
	if (peer->inbox_window || (!peer->inbox && (err = make_inbox(job, peer))))
		return err;
	tt_table_inbox_name(name, sizeof name, to->rank);
	err = tt_window_open(job, name, peer->inbox, INBOX, peer->pinned, &peer->inbox_window);
	if (!err)
		peer->pinned = NULL; /* the window's now */
	return err;
}

/* ---- joining ---- */

void tt_table_take_join(struct tt_member *from, struct tt_pack *p)
{
	uint64_t uid = tt_get64(p), pushed = 0;
	bool slots = tt_get8(p);
	uint64_t elsewhere = tt_get64(p);
	struct tutti_table *t = tt_table_find(from->job, uid);
	uint8_t answer[38];
	struct tt_pack a = tt_pack(answer, sizeof answer);
	int err = t ? 0 : -ESTALE;

	p->bad |= elsewhere > INT64_MAX;
	if (p->bad)
		return;
	if (!err && slots)
		err = give_slots(from);
	if (!err)
		err = tt_table_admit(t, from->rank, &pushed);
	if (!err)
		tt_table_resume(t, from->rank, elsewhere);
	tt_put8(&a, TT_JOINED);
	tt_put64(&a, uid);
	tt_put32(&a, (uint32_t)err);
	tt_put64(&a, err ? 0 : tt_version_clock(t));
	tt_put64(&a, pushed);
	tt_table_put_consistency(&a, t ? &t->shard.as : &(tutti_consistency){ 0 });
	tt_send(from, answer, sizeof answer, NULL, 0);
}

void tt_table_take_finish(struct tt_member *from, struct tt_pack *p)
{
	const struct tt_pack message = *p;
	struct tutti_table *t = tt_table_find(from->job, tt_get64(p));

	if (t && !p->bad && !tt_shard_wait(from, t, TT_FINISH, false, &message)) /* after the pushes that wait */
		tt_table_dismiss(t, from->rank);
}

void tt_table_ask_who_finished(struct tutti_table *t)
{
	struct tt_job *job = t->job;
	uint8_t bytes[9 + 256];
	struct tt_pack p = tt_pack(bytes, sizeof bytes);

	tt_put8(&p, TT_EXPECT);
	tt_put64(&p, t->source[t->mine].uid);
	tt_put_text(&p, t->name);
	for (int i = 0; i < job->size; i++)
		if (i != job->rank && t->shard.pushers[i] && t->shard.pushers[i]->counted)
			tt_send(tt_member(job, i), bytes, (size_t)(p.at - bytes), NULL, 0);
}

static void lose_worker(struct tutti_table *t, int rank)
{
	if (!t->shard.memory || !t->shard.pushers[rank])
		return;
	if (t->shard.fresh)
		tt_changed_rows_leave(t->shard.fresh, rank);
	t->shard.pushers[rank]->met = false;
	tt_version_let_go(t, rank, t->shard.pushers[rank]->keep.call);
	tt_table_dismiss(t, rank);
}

/* Ends what waits for the clock of a server that is gone. */
static void lose_server(struct tutti_table *t, int rank)
{
	for (int i = 0; i < t->servers; i++)
		if (t->server[i] == rank)
			tt_table_clock(t, i, UINT64_MAX);
}

void tt_table_member_gone(struct tt_member *m)
{
	tt_shard_forget(m);
	tt_each_of(struct tutti_table, link, t, &tt_tables(m->job)->tables) {
		lose_worker(t, m->rank);
		lose_server(t, m->rank);
		tt_table_io_forget_dead(t);
	}
}

/* ---- everybody's side ---- */

void tt_table_take_joined(struct tt_member *from, struct tt_pack *p)
{
	int i, err;
	struct tutti_table *t = tt_table_find_served(from, tt_get64(p), &i);
	uint64_t clock, pushed;
	tutti_consistency as;

	err = (int)tt_get32(p);
	clock = tt_get64(p);
	pushed = tt_get64(p);
	as = tt_table_get_consistency(p);
	p->bad |= err > 0 || err < -4095 || pushed > INT64_MAX || (clock > INT64_MAX && clock != UINT64_MAX);
	if (p->bad || !t || t->source[i].joined)
		return;
	t->source[i].joined = t->job->engine.news = true;
	t->source[i].err = err;
	t->source[i].clock = clock > t->source[i].clock ? clock : t->source[i].clock;
	t->source[i].pushed = pushed;
	if (!err)
		t->source[i].as = as; /* workers may have switched it since */
}

void tt_table_take_clock(struct tt_member *from, struct tt_pack *p)
{
	int i;
	struct tutti_table *t = tt_table_find_served(from, tt_get64(p), &i);
	uint64_t clock = tt_get64(p);

	p->bad |= clock > INT64_MAX && clock != UINT64_MAX;
	if (!t || p->bad)
		return;
	tt_table_clock(t, i, clock);
	tt_table_catch_up(t);
}

static void say_join(struct tutti_table *t, int i)
{
	uint8_t bytes[18];
	struct tt_pack p = tt_pack(bytes, sizeof bytes);

	tt_put8(&p, TT_JOIN);
	tt_put64(&p, t->source[i].uid);
	tt_put8(&p, tt_table_is_large(t, i));
	tt_put64(&p, t->source[i].joined ? t->source[i].pushed : 0);
	tt_send(tt_member(t->job, t->server[i]), bytes, (size_t)(p.at - bytes), NULL, 0);
}

static bool have_answered(void *arg)
{
	const struct tutti_table *t = arg;

	for (int i = 0; i < t->servers; i++)
		if (tt_table_is_other(t, i) && !t->source[i].joined && tt_member(t->job, t->server[i])->state < TT_LEFT)
			return false;
	return true;
}

static void say_awaited(void *arg)
{
	const struct tutti_table *t = arg;

	for (int i = 0; i < t->servers; i++)
		if (tt_table_is_other(t, i) && !t->source[i].joined)
			tt_log(TT_WARN, "table \"%s\" waits for %s, a server of it", t->name,
			       tt_member_label(tt_member(t->job, t->server[i])).text);
}

static int judge(const struct tutti_table *t, int i)
{
	const struct tt_served *s = &t->source[i];
	const struct tt_member *m = tt_member(t->job, t->server[i]);

	if (!s->joined && m->state >= TT_LEFT)
		return tt_fail(m->err, "table \"%s\": %s", t->name, m->why);
	if (!s->joined)
		return tt_fail(-ETIMEDOUT, "table \"%s\": %s, a server of it, did not answer within %llu ms",
		               t->name, tt_member_label(m).text, tt_timeout_ms(t));
	if (s->err == -ESTALE)
		return tt_fail(s->err, "table \"%s\": %s has closed it again", t->name, tt_member_label(m).text);
	if (s->err)
		return tt_fail(s->err, "table \"%s\": %s cannot take this rank in: %s", t->name,
		               tt_member_label(m).text, strerror(-s->err));
	return 0;
}

static bool counts(const struct tutti_table *t, int i)
{
	return tt_table_has_any(t, i) && t->source[i].joined && t->source[i].as.mode != TUTTI_ASYNC &&
	       tt_member(t->job, t->server[i])->state < TT_LEFT;
}

/* Makes this rank's pushes count from the same number, the highest, at all servers. */
static void count_alike(struct tutti_table *t)
{
	uint64_t pushed = 0;

	for (int i = 0; i < t->servers; i++)
		if (counts(t, i))
			pushed = tt_max(pushed, t->source[i].pushed);
	for (int i = 0; i < t->servers; i++) {
		if (!counts(t, i) || t->source[i].pushed == pushed)
			continue;
		t->source[i].pushed = pushed;
		if (i == t->mine)
			tt_table_resume(t, t->job->rank, pushed);
		else
			say_join(t, i);
	}
}

int tt_table_join(struct tutti_table *t)
{
	struct tt_job *job = t->job;
	int err = 0;

	tt_lock(job);
	for (int i = 0; i < t->servers; i++)
		if (tt_table_is_other(t, i) && !t->source[i].joined)
			say_join(t, i);
	if (t->shard.memory && !t->source[t->mine].joined)
		err = tt_table_admit(t, job->rank, &t->source[t->mine].pushed);
	if (t->shard.memory)
		t->source[t->mine].joined = !err;
	int waited = tt_await(job, tt_hook.opening, have_answered, t, t->timeout, say_awaited);
	if (!err && waited != -ETIMEDOUT)
		err = waited;
	for (int i = 0; !err && i < t->servers; i++)
		if (tt_table_is_other(t, i))
			err = judge(t, i);
	if (!err && t->works)
		count_alike(t);
	tt_unlock(job);
	return err;
}

/* ---- finishing ---- */

static void say_finish(struct tt_member *server, uint64_t uid)
{
	uint8_t bytes[9];
	struct tt_pack p = tt_pack(bytes, sizeof bytes);

	tt_put8(&p, TT_FINISH);
	tt_put64(&p, uid);
	tt_send(server, bytes, sizeof bytes, NULL, 0);
}

bool tt_table_was_closed(const struct tt_job *job, const char *name)
{
	tt_each_of(const struct tt_closed, link, c, &tt_tables(job)->closed)
		if (!strcmp(c->name, name))
			return true;
	return false;
}

static struct tutti_table *find_named(const struct tt_job *job, const char *name)
{
	tt_each_of(struct tutti_table, link, t, &tt_tables(job)->tables)
		if (!strcmp(t->name, name))
			return t;
	return NULL;
}

/* This rank may not join the server's new shard before it finishes, if it does at all. */
void tt_table_take_expect(struct tt_member *from, struct tt_pack *p)
{
	uint64_t uid = tt_get64(p);
	char name[256];
	struct tutti_table *t;

	tt_get_text(p, name, sizeof name);
	if (p->bad)
		return;
	t = find_named(from->job, name);
	for (int i = 0; t && i < t->servers; i++)
		if (t->server[i] == from->rank)
			t->source[i].expects = uid;
	if (t ? t->finished : tt_table_was_closed(from->job, name))
		say_finish(from, uid);
}

void tt_table_finish(struct tutti_table *t)
{
	t->finished = true;
	t->works = false;
	for (int i = 0; i < t->servers; i++) {
		const struct tt_served *s = &t->source[i];
		struct tt_member *m = tt_member(t->job, t->server[i]);
		if (!tt_table_is_other(t, i) || m->state >= TT_LEFT)
			continue;
		if (s->joined)
			say_finish(m, s->uid);
		if (s->expects && s->expects != s->uid)
			say_finish(m, s->expects);
	}
	if (t->shard.memory)
		tt_table_dismiss(t, t->job->rank);
}
