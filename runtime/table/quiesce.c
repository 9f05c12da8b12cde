/* quiesce.c - brings a shard to a moment between two pushes
 *
 * Several workers push to a shard at once, piece by piece, so there may never be a moment at which no push is half
 * done. Quiescing makes one. Pushes under way go on to their end; other pushes wait before their first piece. Their
 * workers are told now and then that they wait. A push without progress for TUTTI_SILENCE no longer blocks the others.
 *
 * A worker's PUSH messages are answered in their order, so all that it pushes after one that waits, to other tables
 * too, waits behind that one. This cannot deadlock: all pieces of one push come before those of the next.
 *
 *      push A  ======|-- quiesced --|======>        push B  ...=======| (its end)
 *                    waits          begins                            at_rest() ... tt_shard_resume()
 */
#include "engine/engine.h"
#include "member/member.h"
#include "table/table_private.h"
#include <stdlib.h>
#include <string.h>

struct held { /* a message that waits */
	struct tt_list link;         /* in tt_tables(job)->held, in the order of arrival */
	struct tt_member *from;
	uint8_t type;   /* PUSH, PUSH_ROWS or FINISH */
	size_t len;
	uint8_t bytes[];
};

static bool has_to_wait(const struct tt_member *from)
{
	tt_list_each(node, &tt_tables(from->job)->held)
		if (tt_container_of(node, struct held, link)->from == from)
			return true;
	return false;
}

/* Workers that wait for an answer must not take this rank for one that is stuck. */
static void tell_waiting(struct tt_job *job)
{
	const uint8_t held = TT_HELD;

	for (int i = 0; i < job->size; i++)
		if (tt_member(job, i)->state < TT_LEFT && has_to_wait(tt_member(job, i)))
			tt_send(tt_member(job, i), &held, sizeof held, NULL, 0);
	tt_call_held(job, job->rank);
}

int tt_shard_half_done(const struct tt_shard *s)
{
	for (int rank = 0; rank < tt_members(s->table->job)->capacity; rank++)
		if (s->pushers[rank] && s->pushers[rank]->half)
			return rank;
	return -1;
}

/* Has some push or version that is half done made progress? */
static bool makes_progress(struct tt_shard *s)
{
	uint64_t now = tt_now();

	if (s->pieces != s->seen || s->next.busy) {
		s->seen = s->pieces;
		s->since = now;
	}
	return now - s->since < s->patience;
}

static void look_around(struct tt_timer *turn)
{
	struct tt_shard *s = tt_container_of(turn, struct tt_shard, hold_turn);
	void (*at_rest)(struct tutti_table *, int err);
	struct tt_job *job = s->table->job;

	tell_waiting(job);
	if (!s->held)
		return; /* telling a worker has shown that it is gone, and ended its push */
	tt_timer_start(job, &s->hold_turn, tt_now() + s->patience / 4, look_around);
	if (!(at_rest = s->at_rest) || makes_progress(s))
		return;
	s->at_rest = NULL;
	at_rest(s->table, tt_fail(-ETIMEDOUT, "%s is in the middle of a push, and has sent no more of it for %llu ms",
	                          tt_member_label(tt_member(job, tt_shard_half_done(s))).text,
	                          (unsigned long long)(s->patience / TT_MS)));
}

void tt_shard_look(struct tutti_table *t)
{
	void (*at_rest)(struct tutti_table *, int err) = t->shard.at_rest;

	if (!at_rest || t->shard.half || t->shard.next.busy)
		return;
	t->shard.at_rest = NULL;
	at_rest(t, 0);
}

void tt_shard_quiesce(struct tutti_table *t, uint64_t patience, void (*at_rest)(struct tutti_table *, int err))
{
	struct tt_shard *s = &t->shard;

	s->held = true;
	s->at_rest = at_rest;
	s->patience = patience;
	s->seen = s->pieces;
	s->since = tt_now();
	tt_timer_start(t->job, &s->hold_turn, s->since + patience / 4, look_around);
	tt_shard_look(t);
}

bool tt_shard_wait(struct tt_member *from, struct tutti_table *t, uint8_t type, bool begins, const struct tt_pack *m)
{
	size_t len = tt_pack_left(m);
	struct held *h;

	if (begins && t && t->shard.held)
		tt_table_end_given_up(t, from->rank); /* its last push was half done, and no more of that comes */
	if (!(begins && t && t->shard.held) && !has_to_wait(from))
		return false;
	if (!(h = malloc(sizeof *h + len))) {
		tt_member_gone(from, -ENOMEM, "no memory for a push of %s that has to wait",
		               tt_member_label(from).text);
		return true;
	}
	h->from = from;
	h->type = type;
	h->len = len;
	memcpy(h->bytes, m->at, len);
	tt_list_append(&tt_tables(from->job)->held, &h->link);
	return true;
}

/* Handles the message as if it came now: it may have to wait again. */
static void take_again(struct held *h)
{
	struct tt_pack p = tt_unpack(h->bytes, h->len);

	if (h->from->state >= TT_LEFT)
		return;
	if (h->type == TT_PUSH)
		tt_table_push(h->from, &p);
	else if (h->type == TT_PUSH_ROWS)
		tt_table_push_rows(h->from, &p);
	else
		tt_table_take_finish(h->from, &p);
	if (p.bad)
		tt_member_gone(h->from, -EPROTO, "%s sent a push that makes no sense", tt_member_label(h->from).text);
}

void tt_shard_resume(struct tutti_table *t)
{
	struct tt_list *node, again;

	t->shard.held = false;
	t->shard.at_rest = NULL;
	tt_timer_stop(&t->shard.hold_turn);
	tt_list_init(&again);
	while ((node = tt_list_pop(&tt_tables(t->job)->held)))
		tt_list_append(&again, node);
	while ((node = tt_list_pop(&again))) {
		struct held *h = tt_container_of(node, struct held, link);
		take_again(h);
		free(h);
	}
	tt_table_own_go_on(t);
	tt_version_look(t);
	tt_table_catch_up(t);
}

void tt_shard_forget(struct tt_member *from)
{
	tt_each_of(struct held, link, h, &tt_tables(from->job)->held) {
		if (h->from != from)
			continue;
		tt_list_remove(&h->link);
		free(h);
	}
}
