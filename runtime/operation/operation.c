/* operation.c - what a started operation is: tested, waited for, cancelled; and the end of every blocking call */
#include "engine/engine.h"
#include "member/member.h"
#include "operation/operation.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

enum {
	REAP_ROUNDS = 10, /* after so many looks for another silent rank, a call that is being given up asks all again */
	SLICES = 8,       /* of half a deadline */
};

struct tt_operation *tt_operation_begin(struct tt_job *job, tutti_op *op, tutti_op *stack, const char *what, int rank)
{
	struct tt_operation *r = (struct tt_operation *)(op ? op : stack);

	memset(r, 0, sizeof *r);
	r->job = job;
	r->what = what;
	r->rank = rank;
	r->post.since = rank < 0 ? tt_ticks() : tt_stats_start(job); /* collectives take so long that all can be timed */
	tt_list_append(&tt_operations(job)->running, &r->link);
	tt_list_init(&r->unanswered);
	return r;
}

void tt_operation_end(struct tt_operation *r, int err)
{
	struct tt_job *job = r->job;
	uint64_t one = 1;

	tt_list_remove(&r->link);
	tt_list_remove(&r->unanswered);
	if (r->words && r->words->ended)
		r->words->ended(r, err);
	r->err = err;
	r->ended = true;
	job->engine.news = true;
	if (tt_operations(job)->event_fd >= 0)
		(void)!write(tt_operations(job)->event_fd, &one, sizeof one);
}

static bool has_ended(void *arg) { return ((struct tt_operation *)arg)->ended; }

/* The sentence for this thread, made where the error is returned and not where some other thread met it. */
static int explain(const struct tt_operation *r)
{
	const struct tt_member *m = r->rank >= 0 ? tt_member(r->job, r->rank) : NULL;
	int err;

	if (r->told && r->err == -ETIMEDOUT)
		return tt_fail(r->err, "%s", r->what);
	if (m && m->why[0] && (r->err == m->err || r->err == -ECONNRESET || r->err == -ENOTCONN || r->err == -ETIMEDOUT))
		return tt_fail(r->err, "%s: %s", r->what, m->why);
	if (r->words && r->words->explain && (err = r->words->explain(r)))
		return err;
	if (r->err == -EMFILE)
		return tt_fail(r->err, "%s: this process has no file left for a connection that it needs: raise its limit with ulimit -n", r->what);
	if (m && r->err == -ETIMEDOUT)
		return tt_fail(r->err, "%s: given up after %llu ms: rank %d lives, but has not done its part", r->what,
		               (unsigned long long)(r->job->deadline / TT_MS), r->rank);
	if (!m && r->err == -ETIMEDOUT)
		return tt_fail(r->err, "%s: given up after %llu ms, and all ranks live: they wait for each other, since not all called the same", r->what,
		               (unsigned long long)(r->job->deadline / TT_MS));
	if (m)
		return tt_fail(r->err, "%s: rank %d: %s", r->what, r->rank, strerror(-r->err));
	return tt_fail(r->err, "%s: %s", r->what, strerror(-r->err));
}

static int result(const struct tt_operation *r) { return r->err ? explain(r) : 0; }

static void give_up_on(const struct tt_operation *r, struct tt_member *m, uint64_t since, int err)
{
	unsigned long long ms = m->job->deadline / TT_MS;
	char why[200] = "";

	if (r->words && r->words->reproach)
		r->words->reproach(m, why, sizeof why);

	if (err == -ETIMEDOUT && m->state == TT_CONNECTING)
		tt_member_evict(m, err, "rank %d could not be reached within %llu ms: does it run?", m->rank, ms);
	else if (err == -ETIMEDOUT && *why)
		tt_member_evict(m, err, "rank %d was cut off: %s", m->rank, why);
	else if (err == -ETIMEDOUT)
		tt_member_evict(m, err, "rank %d was cut off: %s within %llu ms", m->rank,
		             tt_member_is_alive(m, since) ? "it is alive but did not take part" : "it gave no sign of life", ms);
	else
		tt_member_evict(m, err, "rank %d was cut off: a call that waited for it was cancelled", m->rank);
}

/* Of an operation whose parts go on by themselves: those that live are not to blame for one that does not. */
static bool cut_silent(struct tt_operation *r, uint64_t since)
{
	struct tt_member *m;
	bool some = false;

	for (; !r->ended && (m = tt_operation_silent(r, since)); some = true)
		give_up_on(r, m, since, -ETIMEDOUT);
	return some;
}

static bool gives_up(const struct tt_operation *r) { return r->words && r->words->give_up; }
static bool needs_others(const struct tt_operation *r) { return r->words && r->words->needs ? r->words->needs(r) : r->rank >= 0; }
static uint64_t progress(const struct tt_operation *r) { return r->words && r->words->progress ? r->words->progress(r) : 0; }
static bool has_parts(const struct tt_operation *r) { return r->words && r->words->progress; }

/* After this the request has ended: nobody holds its memory, however many ranks that costs. since: of the last ping. */
static void reap(struct tt_operation *r, uint64_t since, int err)
{
	struct tt_job *job = r->job;

	for (int round = 1; !r->ended; round++) {
		bool unreached = needs_others(r) && err == -ETIMEDOUT && tt_operation_unreached(r, since);
		struct tt_member *m = tt_operation_silent(r, since);
		if (unreached && !gives_up(r))
			tt_operation_end(r, -EMFILE); /* no wire holds it */
		else if (unreached)
			r->words->give_up(r, -EMFILE);
		else if (m)
			give_up_on(r, m, since, err);
		else if (gives_up(r))
			r->words->give_up(r, err);
		tt_wait_until(job, has_ended, r, tt_now() + tt_time(job, TT_TIME_REAP));
		if (round % REAP_ROUNDS == 0) { /* one more may have fallen silent meanwhile */
			since = tt_now();
			tt_operation_ping(r);
			tt_wait_until(job, has_ended, r, since + job->deadline / 4);
		}
	}
}

/* For half the deadline, as far as this process ran: if it was stopped, that says nothing about the others. */
static int wait_half(struct tt_operation *r)
{
	struct tt_job *job = r->job;
	uint64_t done = 0, before = 0;
	int err = -ETIMEDOUT;

	for (int i = 0; err && i < SLICES; i++) {
		err = tt_wait_until(job, has_ended, r, tt_now() + job->deadline / (2 * SLICES));
		done = err ? progress(r) : 0;
		i = done == before ? i : 0; /* servers that go on with a large push are no silent ones */
		before = done;
	}
	return err;
}

/* The whole deadline; *asked: when they were pinged last. 0, or -ETIMEDOUT. */
static int wait_and_ask(struct tt_operation *r, uint64_t *asked)
{
	int err = wait_half(r);

	if (!err)
		return 0;
	do {
		*asked = tt_now();
		tt_operation_ping(r); /* so that the one named is the silent one and not a neighbour */
		err = wait_half(r);
	} while (err && tt_operation_is_busy(r, *asked)); /* the wire has not come to the ping yet */
	return err;
}

static bool withdraw(struct tt_operation *r) { return r->words && r->words->withdraw && r->words->withdraw(r); }

static void wait_or_give_up(struct tt_operation *r)
{
	struct tt_job *job = r->job;
	uint64_t half = 0;

	do
		if (!wait_and_ask(r, &half))
			return;
	while (has_parts(r) && cut_silent(r, half));
	if (r->rank >= 0 && tt_member_is_alive(tt_member(job, r->rank), half)) {
		if (withdraw(r))
			tt_operation_end(r, -ENOENT);
		else if (!wait_half(r)) /* it lives, and may have opened its window only now */
			return;
	}
	reap(r, half, -ETIMEDOUT);
}

/* A call that was waiting when a rank was cut off for its silence, here or elsewhere, met its deadline. Only blocking
 * calls say so: of a started operation -ETIMEDOUT means that it has not ended. */
static void wait_blocking(struct tt_operation *r)
{
	wait_or_give_up(r);
	if (r->err == -ECONNRESET && r->rank >= 0 && tt_member(r->job, r->rank)->silent)
		r->err = -ETIMEDOUT;
}

int tt_operation_return(struct tt_operation *r, bool blocking)
{
	struct tt_job *job = r->job;
	int err = 0;

	if (blocking && !r->ended && r->rank >= 0 && tt_member(job, r->rank)->state == TT_UP)
		tt_look(job, tt_member_net(tt_member(job, r->rank)));
	if (blocking && !r->ended)
		wait_blocking(r);
	if (blocking)
		err = result(r);
	tt_unlock(job);
	return err;
}

/* Somebody waits now for a put that was posted without urgency: an urgent one behind it brings the acknowledgement. */
static void hurry(struct tt_operation *r)
{
	struct tt_member *m = r->post.member;

	if (r->ended || r->hurried || !(r->post.op.flags & TT_LAZY))
		return;
	r->hurried = true;
	if (m && m->state == TT_UP)
		tt_member_nudge(m);
	else if (!m || m->state < TT_UP)
		r->post.op.flags &= ~(uint32_t)TT_LAZY; /* no wire has it yet */
}

int tutti_wait(tutti_op *op, int timeout_ms)
{
	struct tt_operation *r = (struct tt_operation *)op;
	struct tt_job *job = r->job;
	uint64_t patience = timeout_ms < 0 ? job->deadline : (uint64_t)timeout_ms * TT_MS;
	int err;

	if ((err = tt_is_mine(job)))
		return err;
	tt_lock(job);
	hurry(r);
	if (!patience && !r->ended)
		tt_progress(job);
	if (tt_wait_until(job, has_ended, r, tt_now() + patience))
		err = tt_fail(-ETIMEDOUT, "%s has not ended after %llu ms: wait again, or cancel it", r->what, (unsigned long long)(patience / TT_MS));
	else
		err = result(r);
	tt_unlock(job);
	return err;
}

int tutti_test(tutti_op *op)
{
	struct tt_operation *r = (struct tt_operation *)op;
	struct tt_job *job = r->job;
	int err;

	if ((err = tt_is_mine(job)))
		return err;
	tt_lock(job);
	if (!r->ended)
		tt_progress(job);
	err = r->ended ? result(r) : -EINPROGRESS;
	tt_unlock(job);
	return err;
}

/* 0, or its own result if it ends by itself. */
int tt_operation_give_up(struct tt_operation *r)
{
	struct tt_job *job = r->job;
	uint64_t asked = tt_now();
	int err;

	tt_operation_ping(r);
	if (has_parts(r))
		r->words->give_up(r, -ECANCELED);
	tt_wait_until(job, has_ended, r, asked + (has_parts(r) ? job->deadline / 4 : tt_time(job, TT_TIME_REAP)));
	err = r->ended && r->err != -ECANCELED ? result(r) : 0;
	reap(r, asked, -ECANCELED);
	return err;
}

int tutti_cancel(tutti_op *op)
{
	struct tt_operation *r = (struct tt_operation *)op;
	struct tt_job *job = r->job;
	int err;

	if ((err = tt_is_mine(job)))
		return err;
	tt_lock(job);
	if (r->ended)
		err = result(r);
	else if (withdraw(r))
		tt_operation_end(r, -ECANCELED);
	else
		err = tt_operation_give_up(r);
	tt_unlock(job);
	return err;
}

int tutti_event_fd(tutti *at)
{
	struct tt_job *job = at->job;
	int fd;

	if ((fd = tt_is_mine(job)))
		return fd;
	tt_lock(job);
	if (tt_operations(job)->event_fd < 0)
		tt_operations(job)->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	fd = tt_operations(job)->event_fd >= 0 ? tt_operations(job)->event_fd : tt_fail(-errno, "cannot make an eventfd: is the limit on open files (ulimit -n) reached?");
	tt_unlock(job);
	return fd;
}


/* ---- the module ---- */

static void make(struct tt_job *job)
{
	tt_list_init(&tt_operations(job)->running);
	tt_operations(job)->event_fd = -1;
}

static void close_requests(struct tt_job *job)
{
	if (tt_operations(job)->event_fd >= 0)
		close(tt_operations(job)->event_fd);
}

const struct tt_module tt_operation_module = {
	.name = "operation",
	.slot = TT_OPERATION_SLOT,
	.job_size = sizeof(struct tt_operations),
	.make = make,
	.close = close_requests,
};
