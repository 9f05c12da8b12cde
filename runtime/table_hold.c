/* table_hold.c - a shard between two pushes
 *
 * Several workers push to a shard at once, piece by piece, so there may never be a moment at which no push is half done. Who needs one
 * holds the shard: pushes that are under way go on to their end, others wait before their first piece, and their workers do not notice
 * but for the time. Answers to a worker's PUSH messages come in the order of these, so whatever it pushes after one that waits, to
 * other tables too, waits behind it. That cannot close a ring: the pieces of one push come one after another, before those of the next.
 *
 *      push A  ======|--- hold ---|======>          push B  ...=======| (its end)
 *                    waits           begins                            at_rest() ... release
 */
#include "table.h"
#include <stdlib.h>
#include <string.h>

struct held { /* a message */
	struct tt_list link;         /* in job->held, in the order they came */
	struct tt_member *from;
	enum tt_message_type type;   /* PUSH, PUSH_ROWS or FINISH */
	size_t len;
	uint8_t bytes[];
};

void tt_shard_look(struct tutti_table *t)
{
	void (*at_rest)(struct tutti_table *) = t->shard.at_rest;

	if (!at_rest || t->shard.half || t->shard.next.busy)
		return;
	t->shard.at_rest = NULL;
	at_rest(t);
}

void tt_shard_hold(struct tutti_table *t, void (*at_rest)(struct tutti_table *))
{
	t->shard.held = true;
	t->shard.at_rest = at_rest;
	tt_shard_look(t);
}

static bool has_to_wait(const struct tt_member *from)
{
	tt_list_each(node, &from->job->held)
		if (tt_container_of(node, struct held, link)->from == from)
			return true;
	return false;
}

bool tt_shard_wait(struct tt_member *from, struct tutti_table *t, enum tt_message_type type, bool begins, const struct tt_pack *message)
{
	size_t len = tt_pack_left(message);
	struct held *h;

	if (begins && t && t->shard.held)
		tt_table_end_given_up(t, from->rank); /* or nothing would ever be at rest */
	if (!(begins && t && t->shard.held) && !has_to_wait(from))
		return false;
	if (!(h = malloc(sizeof *h + len))) {
		tt_member_gone(from, -ENOMEM, "no memory for a push of rank %d that has to wait", from->rank);
		return true;
	}
	h->from = from;
	h->type = type;
	h->len = len;
	memcpy(h->bytes, message->at, len);
	tt_list_append(&from->job->held, &h->link);
	return true;
}

/* As if it came now: it may have to wait again. */
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
		tt_member_gone(h->from, -EPROTO, "rank %d sent a push that makes no sense", h->from->rank);
}

void tt_shard_release(struct tutti_table *t)
{
	struct tt_list *node, again;

	t->shard.held = false;
	t->shard.at_rest = NULL;
	tt_list_init(&again);
	while ((node = tt_list_pop(&t->job->held)))
		tt_list_append(&again, node);
	while ((node = tt_list_pop(&again))) {
		struct held *h = tt_container_of(node, struct held, link);
		take_again(h);
		free(h);
	}
	tt_table_own_go_on(t);
	tt_version_look(t);
}

void tt_shard_forget(struct tt_member *from)
{
	tt_list_each(node, &from->job->held) {
		struct held *h = tt_container_of(node, struct held, link);
		if (h->from != from)
			continue;
		tt_list_remove(node);
		free(h);
	}
}
