/* round.c - one round of averaging: how many ranks contribute, and what is summed meanwhile */
#include "average/average_private.h"
#include "member/member.h"
#include <stdlib.h>

enum { AVERAGES = 1 << 16 }; /* in the count, of a rank that contributes to an average; 2^15 ranks can */

int tt_round_open(struct tt_round *r, tutti *group, int sums, const char *what)
{
	int err = tt_group_usable(group);

	if (err)
		return err;
	*r = (struct tt_round){ .group = group, .ops = calloc((size_t)sums + 1, sizeof *r->ops) };
	return r->ops ? 0 : tt_fail(-ENOMEM, "%s: no memory for %d sums", what, sums);
}

void tt_round_hold(struct tt_round *r, struct tt_handle *of, struct tt_job *job, const struct tt_handle_kind *kind)
{
	tt_lock(job);
	tt_handle_hold(of, job, kind);
	of->group = &r->group;
	tt_unlock(job);
}

int tt_round_enter(struct tt_round *r, struct tt_handle *of)
{
	int err = tt_users_enter(of->job, &of->users);

	if (err)
		return err;
	tt_lock(of->job);
	struct tutti *g = r->entries ? r->entered : r->group; /* an errand may be inside beside the program */
	if (g) {
		r->entered = g;
		r->entries++;
		g->handle.users.count++; /* who frees the group waits */
	}
	tt_unlock(of->job);
	if (g)
		return 0;
	tt_users_exit(of->job, &of->users);
	return tt_fail(-ESTALE, "the group in which this averages was freed: regroup gives it another one");
}

int tt_round_exit(struct tt_round *r, struct tt_handle *of, int err)
{
	tt_lock(of->job);
	r->entered->handle.users.count--;
	r->entries--;
	of->job->engine.news = true;
	tt_unlock(of->job);
	tt_users_exit(of->job, &of->users);
	return err;
}

/* A round of which a rank is missing fails by itself, on all ranks. What else fails is given up, so that others need
 * not wait for it. */
static bool ends_by_itself(int err) { return err == -ECONNRESET || err == -ENOTCONN || err == -ETIMEDOUT; }

int tt_round_fail(struct tt_round *r, int err)
{
	struct tt_hook hook = tt_hook_suspend(); /* the sums use the caller's memory until they have ended */

	r->err = err;
	snprintf(r->why, sizeof r->why, "%s", tt_why());
	for (int i = 0; i < r->begun; i++)
		ends_by_itself(err) ? tutti_wait(&r->ops[i], -1) : tutti_cancel(&r->ops[i]);
	r->begun = 0;
	r->interrupted = false;
	tt_hook_resume(hook);
	return tt_fail(err, "%s", r->why);
}

static int has_failed(const struct tt_round *r) { return r->err ? tt_fail(r->err, "%s", r->why) : 0; }

static int begun(struct tt_round *r, int err)
{
	if (err)
		return tt_round_fail(r, err);
	r->begun++;
	return 0;
}

int tt_round_count(struct tt_round *r, bool contributes)
{
	if (r->err)
		return has_failed(r);
	r->count = contributes ? 1 + (r->rule == TUTTI_AVERAGE ? AVERAGES : 0) : 0;
	return begun(r, tutti_allreduce(r->group, &r->count, &r->count, 1, TUTTI_I32, TUTTI_SUM, r->ops));
}

int tt_round_sum_now(struct tt_round *r, const tutti_tensor *list, int n)
{
	int err = has_failed(r);

	if (err)
		return err;
	err = tutti_allreduce_tensors(r->group, list, n, r->rule, &r->ops[r->begun]);
	return err == -EAGAIN ? err : begun(r, err);
}

/* -1: none of this round runs. */
static int find_oldest(struct tt_round *r)
{
	for (int i = 0; i < r->begun; i++)
		if (tutti_test(&r->ops[i]) == -EINPROGRESS)
			return i;
	return -1;
}

int tt_round_sum(struct tt_round *r, const tutti_tensor *list, int n)
{
	int err = tt_round_sum_now(r, list, n);

	while (err == -EAGAIN) {
		int oldest = find_oldest(r);
		if (oldest >= 0 && (err = tt_round_wait(r, oldest)))
			return err;
		err = tt_round_sum_now(r, list, n);
		if (err == -EAGAIN && oldest < 0)
			return begun(r, err); /* all that run are the program's */
	}
	return err;
}

int tt_round_wait(struct tt_round *r, int i)
{
	int err = has_failed(r);

	if (err || !(err = tutti_wait(&r->ops[i], -1)))
		return err;
	r->interrupted |= err == -EINTR;
	return err == -EINTR ? err : tt_round_fail(r, err);
}

int tt_round_contributors(struct tt_round *r, int *contributors)
{
	int err = tt_round_wait(r, 0);

	if (err)
		return err;
	*contributors = r->count % AVERAGES;
	r->rule = r->count >= AVERAGES ? TUTTI_AVERAGE : TUTTI_SUM;
	return 0;
}

int tt_round_end(struct tt_round *r)
{
	int err = has_failed(r);

	for (int i = 0; !err && i < r->begun; i++)
		err = tt_round_wait(r, i);
	if (err == -EINTR)
		return err;
	r->begun = 0;
	r->interrupted = false;
	return err;
}

/* Others may never come to what an interrupted call has left. */
int tt_round_settle(struct tt_round *r)
{
	struct tt_hook hook = tt_hook_suspend();
	int err = r->interrupted ? -ECANCELED : tt_round_end(r);

	for (int i = 0; r->interrupted && i < r->begun; i++)
		tutti_cancel(&r->ops[i]);
	r->begun = 0;
	r->interrupted = false;
	tt_hook_resume(hook);
	return err;
}

int tt_round_may_move(const struct tt_handle *of, const tutti *group)
{
	return group->job == of->job ? 0 :
	       tt_fail(-EINVAL, "regroup: the group is of another job: close this one, and open another there");
}

void tt_round_move(struct tt_round *r, struct tt_handle *of, tutti *group)
{
	tt_lock(of->job);
	r->group = group;
	tt_unlock(of->job);
	r->err = 0;
}

void tt_round_close(struct tt_round *r)
{
	tt_round_settle(r);
	free(r->ops);
}
