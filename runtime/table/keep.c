/* keep.c - pulls that begin anew, since what they read was written over; servers keep a version for a slow reader
 *
 * Rounds do not wait for a rank that is no worker; with backup workers they wait for no reader; nothing waits for a
 * snapshot. What such a rank reads may be written over while it reads, and it begins anew. Where versions come faster
 * than the rank reads one, that would never end. So after a few tries the rank asks its servers to keep a version.
 *
 *      KEEP --> PULLED { version }        the rank reads that version        KEEP, no more -->
 *
 * A server keeps its newest version, or the newer one that it is asked for: version.c begins the version that would be
 * written over the kept one later, by some seconds at most. In between the server makes one more version,
 * so a reader that is done within a round delays nobody. Where all parts have to be of one version, the reader asks
 * again, for the newest version that any server keeps: the others reach it, since each push goes to all servers.
 *
 * A version waits only for readers that asked before the version in front of it was there. So each round waits for the
 * time of one keep at most, however many ranks read. */
#include "table/table_private.h"

enum {
	TRIES = 16,
	LOST = 2, /* a part may be written over so often before a version is kept for it */
};

/* Do all parts have to be of one version? */
static bool is_of_one(const struct tt_table_call *c)
{
	return c->list || (c->versions && tt_table_in_rounds(c->table));
}

static void pull(struct tt_call_part *p)
{
	p->call->left++;
	p->err = 0;
	p->ended = false;
	tt_call_pull(p);
}

/* Of rows, what some servers have answered is of no use without the rest of that version. */
static void pull_anew(struct tt_table_call *c)
{
	if (c->list)
		tt_call_agree(c);
	for (int i = 0; i < c->table->servers; i++)
		if (c->part[i].range.count && (c->list || c->part[i].err == -EAGAIN))
			pull(&c->part[i]);
}

/* ---- which version is kept? ---- */

static void ask(struct tt_call_part *p)
{
	struct tutti_table *t = p->call->table;
	struct tt_send_queue *f;

	p->call->left++;
	p->err = 0;
	p->ended = false;
	p->keeps = true;
	p->sent = p->range.count; /* nothing of it goes this way */
	if (p->server == t->mine) {
		p->kept = tt_version_keep(t, t->job->rank, p->call->number, p->pull_gate);
		tt_call_end_part(p);
	} else if ((f = tt_send_queue_to(p))) {
		p->asks = true;
		tt_list_append(&f->pulls.parts, &p->link);
		tt_send_queue_go_on(f);
	}
}

static void put_keep(struct tt_call_part *p, unsigned flags)
{
	uint8_t bytes[24];
	struct tt_pack h = tt_pack(bytes, sizeof bytes);

	tt_call_put_head(&h, TT_KEEP, p, flags);
	tt_put64(&h, p->pull_gate);
	tt_send(p->member, bytes, (size_t)(h.at - bytes), NULL, 0);
}

static void let_go(struct tt_call_part *p)
{
	struct tutti_table *t = p->call->table;

	if (!p->keeps)
		return;
	p->keeps = false;
	if (p->server == t->mine)
		tt_version_let_go(t, t->job->rank, p->call->number);
	else if (p->member->state < TT_LEFT)
		put_keep(p, TT_KEEP_NO_MORE);
}

void tt_keep_ask(struct tt_send_queue *f, struct tt_call_part *p)
{
	p->asks = false;
	tt_lane_post(&f->pulls, (struct tt_sent){ .part = p, .slot = -1 });
	put_keep(p, 0);
}

void tt_keep_take(struct tt_call_part *p, struct tt_pack *pack) { p->kept = tt_get64(pack); }

void tt_keep_end(struct tt_table_call *c)
{
	c->keeping = false;
	for (int i = 0; i < c->table->servers; i++)
		let_go(&c->part[i]);
}

static void ask_all(struct tt_table_call *c)
{
	c->keeping = true;
	for (int i = 0; i < c->table->servers; i++)
		if (c->part[i].range.count && (is_of_one(c) || c->part[i].err == -EAGAIN))
			ask(&c->part[i]);
		else
			let_go(&c->part[i]); /* it is read */
}

/* All have answered. Do they keep what is to be read? Else they come to it. */
static bool agree(struct tt_table_call *c)
{
	uint64_t newest = 0;
	bool all = true;

	for (int i = 0; i < c->table->servers; i++)
		if (c->part[i].keeps && tt_served_in_rounds(c->table, i))
			newest = tt_max(newest, c->part[i].kept);
	for (int i = 0; i < c->table->servers; i++) {
		struct tt_call_part *p = &c->part[i];
		if (!p->keeps || !tt_served_in_rounds(c->table, i))
			continue; /* no clock counts the versions of a snapshot */
		p->pull_gate = is_of_one(c) ? newest : p->kept;
		p->err = p->pull_gate == p->kept ? 0 : -EAGAIN;
		all &= !p->err;
	}
	return all;
}

static void pull_kept(struct tt_table_call *c)
{
	for (int i = 0; i < c->table->servers; i++)
		if (c->part[i].keeps)
			pull(&c->part[i]);
}

/* ---- once more ---- */

/* How often was one of its parts written over? */
static unsigned count_tries(struct tt_table_call *c)
{
	unsigned most = 0;

	for (int i = 0; i < c->table->servers; i++) {
		struct tt_call_part *p = &c->part[i];
		if (p->err == -EAGAIN)
			tt_stats_count(&c->table->job->stats.own, TUTTI_STAT_RETRY, 0);
		/* Rounds wait for a kept version, so values were set while it was read, and it is still there. */
		p->retries += p->err == -EAGAIN && !(tt_call_is_kept(p) && tt_call_is_there(p));
		most = p->retries > most ? p->retries : most;
	}
	return most;
}

bool tt_call_again(struct tt_table_call *c, int *err)
{
	bool kept = c->keeping && !*err;
	unsigned tries;

	c->keeping = false;
	if (kept && agree(c)) {
		pull_kept(c);
		return true;
	}
	*err = kept ? -EAGAIN : *err;
	if (*err != -EAGAIN || !c->values || (c->list && c->list->fresh) || (tries = count_tries(c)) >= TRIES)
		return false;
	if (tries > LOST)
		ask_all(c);
	else
		pull_anew(c);
	return true;
}

/* ---- at the server ---- */

void tt_table_keep(struct tt_member *from, struct tt_pack *p)
{
	struct tutti_table *t = tt_table_find(from->job, tt_get64(p));
	uint32_t call = tt_get32(p);
	unsigned flags = tt_get8(p);
	uint64_t version = tt_get64(p);
	uint8_t bytes[24];
	struct tt_pack h = tt_pack(bytes, sizeof bytes);

	if (t && !p->bad && flags & TT_KEEP_NO_MORE)
		tt_version_let_go(t, from->rank, call);
	if (p->bad || flags & TT_KEEP_NO_MORE)
		return;
	tt_put8(&h, TT_PULLED);
	tt_put32(&h, call);
	tt_put32(&h, (uint32_t)(t ? 0 : -ESTALE));
	tt_put8(&h, 0);
	tt_put64(&h, t ? tt_version_keep(t, from->rank, call, version) : 0);
	tt_send(from, bytes, (size_t)(h.at - bytes), NULL, 0);
}
