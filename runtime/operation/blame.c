/* blame.c - an operation that waits for too long: for whom? */
#include "engine/engine.h"
#include "member/member.h"
#include "operation/operation.h"

bool tt_operation_concerns(const struct tt_operation *r, int rank)
{
	if (!tt_member_is_there(r->job, rank))
		return false;
	if (r->words && r->words->waits_for)
		return r->words->waits_for(r, rank);
	return r->rank >= 0 ? r->rank == rank : !r->group || tt_group_find(r->group, tt_member(r->job, rank));
}

void tt_operation_ping(const struct tt_operation *r)
{
	const struct tutti *group = r->group ? r->group : tt_members(r->job)->all;

	for (int i = 0; i < r->job->size; i++)
		if (tt_operation_concerns(r, i))
			tt_member_ping_for(tt_member(r->job, i), group->uid);
}

bool tt_operation_unreached(const struct tt_operation *r, uint64_t since)
{
	for (int i = 0; i < r->job->size; i++)
		if (tt_operation_concerns(r, i) && tt_member(r->job, i)->unreached >= since)
			return true;
	return false;
}

bool tt_operation_is_busy(const struct tt_operation *r, uint64_t since)
{
	for (int i = 0; i < r->job->size; i++)
		if (tt_operation_concerns(r, i) && tt_member(r->job, i)->heard < since && tt_member_sends_bytes(tt_member(r->job, i)))
			return true;
	return false;
}

/* It said goodbye, and then fell silent with something of mine in its hands. */
static bool has_left_late(const struct tt_member *m) { return m->state == TT_LEFT && m->link && m->outstanding; }

/* First who said nothing at all, then whom the operation's own words blame. Else nobody: they wait for each other. */
struct tt_member *tt_operation_silent(const struct tt_operation *r, uint64_t since)
{
	struct tt_job *job = r->job;

	if (r->rank >= 0)
		return tt_member_is_there(job, r->rank) || has_left_late(tt_member(job, r->rank)) ? tt_member(job, r->rank) : NULL;
	for (int i = 0; i < job->size; i++) {
		struct tt_member *m = tt_member(job, i);
		if ((tt_operation_concerns(r, i) && !tt_member_is_alive(m, since)) || has_left_late(m))
			return m;
	}
	return r->words && r->words->blame ? r->words->blame(r, since) : NULL;
}
