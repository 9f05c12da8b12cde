/* message.c - the room's module: what its files are told of ranks and groups */
#include "message/message_private.h"

static void make_lists(struct tt_job *job)
{
	for (int i = 0; i < TT_MSG_BUCKETS; i++) {
		tt_list_init(&tt_messages(job)->posted[i]);
		tt_list_init(&tt_messages(job)->kept[i]);
		tt_list_init(&tt_messages(job)->kept_of_sender[i]);
	}
}

static void end_unreached(struct tt_member *m, int err)
{
	if (tt_member_own(m, TT_MESSAGE_SLOT))
		tt_msg_end_waiting(m, err);
}

static void end_member(struct tt_member *m)
{
	tt_msg_end_sends(m, NULL, tt_msg_how_ended(m));
	tt_msg_sender_ended(m);
}

static void unseat_member(struct tt_member *m)
{
	tt_each_group(g, m->job) {
		const struct tt_seat *s = tt_msg_is_job(g) ? NULL : tt_group_find(g, m);
		if (s && s->out)
			tt_msg_end_sends(m, g, s->err);
	}
	tt_msg_sender_unseated(m);
}

static void end_group(struct tutti *g)
{
	int err = g->retired ? -ESTALE : -ECANCELED;

	if (tt_msg_is_job(g) && !g->job->leaving)
		return; /* the job's handle stays, whatever becomes of the first group */
	for (int i = 0; i < g->job->size; i++)
		tt_msg_end_sends(tt_member(g->job, i), g, err);
	tt_msg_end_receives(g, err);
}

/* An heir has the slot of the group that was shrunk or grown. */
static void free_group(struct tutti *g)
{
	if (tt_members(g->job)->group_at[g->slot] == g)
		tt_msg_drop_early(g);
}

static const struct tt_message messages[] = {
	{ TT_MSG_CREDIT, "credit", tt_msg_take_credit },
	{ TT_MSG_TAKEN, "taken", tt_msg_take_taken },
	{ TT_MSG_SEND, "send", tt_msg_take_send },
	{ TT_MSG_OFFER, "offer", tt_msg_take_offer },
};

const struct tt_module tt_message_module = {
	.name = "message",
	.slot = TT_MESSAGE_SLOT,
	.job_size = sizeof(struct tt_messages),
	.make = make_lists,
	.close = tt_msg_close_receives,
	.messages = messages,
	.message_count = TT_COUNT(messages),
	.passing = 2,
	.recalled = tt_msg_take_recall,
	.up = tt_msg_pump,
	.unreached = end_unreached,
	.reborn = tt_msg_forget_life,
	.ended = end_member,
	.unseated = unseat_member,
	.group_begun = tt_msg_begin_group,
	.group_over = end_group,
	.group_freed = free_group,
};
