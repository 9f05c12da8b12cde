/* peer.c - what this rank knows of another one, for the program */
#include "engine/engine.h"
#include "member/member_private.h"
#include <stdio.h>
#include <string.h>

static tutti_what state_of(const struct tt_member *m)
{
	if (m->sought)
		return m->err == -ENOTCONN ? TUTTI_LEFT : TUTTI_GONE;
	return m->state == TT_GONE ? TUTTI_GONE : m->state == TT_LEFT ? TUTTI_LEFT : TUTTI_JOINED;
}

/* Clocks of two hosts may differ. */
static double seconds_since(uint32_t epoch)
{
	int32_t age = (int32_t)(tt_epoch_now() - epoch);

	return age > 0 ? age / 64.0 : 0;
}

static void describe(const struct tt_member *m, tutti_peer *p)
{
	bool self = m->rank == m->job->rank;
	const struct tt_net *over = tt_member_talks_over(m);
	char text[96];

	uint64_t here = tt_member(m->job, m->job->rank)->host;

	*p = (tutti_peer){ .rank = m->rank, .state = state_of(m) };
	p->local = self || (m->host && m->host == here) ? 1 : m->host ? 0 : -1;
	if (tt_address_find(m->addr, "host", text))
		snprintf(p->host, sizeof p->host, "%s", text + strlen("host:"));
	if (tt_address_find(m->addr, "tcp", text))
		snprintf(p->address, sizeof p->address, "%s", text + strlen("tcp:"));
	snprintf(p->transport, sizeof p->transport, "%s", self ? "self" : over ? over->transport->name : "");
	tt_member_why_not(m, p->why_not, sizeof p->why_not);
	if (m->epoch && p->state == TUTTI_JOINED)
		p->alive_s = seconds_since(m->epoch);
}

int tutti_group_peer(tutti *group, int i, tutti_peer *out)
{
	struct tt_job *job = tt_job_of(group);
	int rank, err = tt_usable(job);

	if (err || (err = tt_given(out, "tutti_group_peer: peer")))
		return err;
	if ((rank = tt_group_to_job(group, i)) < 0)
		return tt_fail(-EINVAL, "peer: rank %d must be from 0 to %d", i, tt_group_count(group) - 1);
	if ((err = tt_begin(job)))
		return err;
	describe(tt_member(job, rank), out);
	tt_unlock(job);
	return 0;
}
