/* request.c - what a started operation is: tested, waited for, cancelled; and the end of every blocking call */
#include "runtime.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

enum {
	REAP_ROUNDS = 10, /* after so many looks for another silent rank, a call that is being given up asks all again */
	SLICES = 8,       /* of half a deadline */
};

struct tt_request *tt_request_begin(struct tt_job *job, tutti_op *op, tutti_op *stack, const char *what, int rank)
{
	struct tt_request *r = (struct tt_request *)(op ? op : stack);

	memset(r, 0, sizeof *r);
	r->job = job;
	r->what = what;
	r->rank = rank;
	r->post.since = rank < 0 ? tt_ticks() : tt_stats_start(job); /* collectives take so long that all can be timed */
	tt_list_append(&job->requests, &r->link);
	tt_list_init(&r->unanswered);
	return r;
}

void tt_request_end(struct tt_request *r, int err)
{
	struct tt_job *job = r->job;
	uint64_t one = 1;

	tt_list_remove(&r->link);
	tt_list_remove(&r->unanswered);
	if (r->window)
		tt_stats_request(r, err);
	r->err = err;
	r->ended = true;
	job->engine.news = true;
	if (job->event_fd >= 0)
		(void)!write(job->event_fd, &one, sizeof one);
}

static bool has_ended(void *arg) { return ((struct tt_request *)arg)->ended; }

/* The sentence for this thread, made where the error is returned and not where some other thread met it. */
static int explain(const struct tt_request *r)
{
	const struct tt_member *m = r->rank >= 0 ? &r->job->members[r->rank] : NULL;

	if (r->told && r->err == -ETIMEDOUT)
		return tt_fail(r->err, "%s", r->what);
	if (m && m->why[0] && (r->err == m->err || r->err == -ECONNRESET || r->err == -ENOTCONN || r->err == -ETIMEDOUT))
		return tt_fail(r->err, "%s: %s", r->what, m->why);
	if (r->window && r->err == -ENOENT)
		return tt_fail(r->err, "%s: rank %d did not open a window named \"%s\" within %llu ms", r->what, r->rank, tt_window_name(r->job, r->window),
		               (unsigned long long)(r->job->deadline / TT_MS));
	if (r->window && r->err == -ESTALE)
		return tt_fail(r->err, "%s: rank %d has closed its window \"%s\": close yours and open it again", r->what, r->rank,
		               tt_window_name(r->job, r->window));
	if (m && r->err == -EINVAL)
		return tt_fail(r->err, "%s: rank %d refuses these options: there is no such worker, or not with this type", r->what, r->rank);
	if (m && r->err == -EAGAIN)
		return tt_fail(r->err, "%s: the versions of rank %d come faster than they can be read: make fewer (tutti_table_config.publish_ms), or try again", r->what, r->rank);
	if (m && r->err == -EPERM)
		return tt_fail(r->err, "%s: rank %d takes no push of this rank: it has finished, or is no worker of the table", r->what, r->rank);
	if (m && r->err == -ESTALE)
		return tt_fail(r->err, "%s: rank %d has closed the table, or was started anew: tutti_table_reopen goes on when it has opened it again", r->what, r->rank);
	if (r->window && r->err == -ECANCELED)
		return tt_fail(r->err, "%s: given up before rank %d had opened a window of that name", r->what, r->rank);
	if (r->window && r->err == -ERANGE)
		return tt_fail(r->err, "%s: %zu bytes at offset %llu are outside the window \"%s\" of rank %d", r->what, r->post.op.len,
		               (unsigned long long)r->post.op.offset, tt_window_name(r->job, r->window), r->rank);
	if (m && r->err == -EBADMSG)
		return tt_fail(r->err, "%s: rank %d called another collective, or with another count, type or rule", r->what, r->rank);
	if (m && r->err == -ECONNABORTED)
		return tt_fail(r->err, "%s: rank %d gave it up: it has no memory, or not all ranks called the same", r->what, r->rank);
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

static int result(const struct tt_request *r) { return r->err ? explain(r) : 0; }

static void give_up_on(struct tt_member *m, uint64_t since, int err)
{
	unsigned long long ms = m->job->deadline / TT_MS;
	uint64_t held;

	if (err == -ETIMEDOUT && m->state == TT_CONNECTING)
		tt_group_cut(m, err, "rank %d could not be reached within %llu ms: does it run?", m->rank, ms);
	else if (err == -ETIMEDOUT && tt_table_holds_too_long(m, &held))
		tt_group_cut(m, err, "rank %d was cut off: it has let no push begin for %llu ms, as a save or a load does, of a deadline of %llu ms",
		             m->rank, (unsigned long long)(held / TT_MS), ms);
	else if (err == -ETIMEDOUT)
		tt_group_cut(m, err, "rank %d was cut off: %s within %llu ms", m->rank,
		             tt_group_is_alive(m, since) ? "it is alive but did not take part" : "it gave no sign of life", ms);
	else
		tt_group_cut(m, err, "rank %d was cut off: a call that waited for it was cancelled", m->rank);
}

/* Of a call on a table: servers that live are not to blame for one that does not, and their parts go on. */
static bool cut_silent(struct tt_request *r, uint64_t since)
{
	struct tt_member *m;
	bool some = false;

	for (; !r->ended && (m = tt_group_silent(r->job, r, since)); some = true)
		give_up_on(m, since, -ETIMEDOUT);
	return some;
}

/* After this the request has ended: nobody holds its memory, however many ranks that costs. since: of the last ping. */
static void reap(struct tt_request *r, uint64_t since, int err)
{
	struct tt_job *job = r->job;

	for (int round = 1; !r->ended; round++) {
		bool waits = r->coll ? !r->coll->failed : !r->call && r->rank >= 0;
		bool unreached = waits && err == -ETIMEDOUT && tt_group_unreached(job, r, since);
		struct tt_member *m = tt_group_silent(job, r, since);
		if (unreached && r->coll)
			tt_coll_give_up(r->coll, -EMFILE);
		else if (unreached)
			tt_request_end(r, -EMFILE); /* no wire holds it */
		else if (m)
			give_up_on(m, since, err);
		else if (r->call)
			tt_call_give_up(r->call, err);
		else if (r->coll && !r->coll->failed)
			tt_coll_give_up(r->coll, err);
		tt_wait_until(job, has_ended, r, tt_now() + tt_time(job, TT_TIME_REAP));
		if (round % REAP_ROUNDS == 0) { /* one more may have fallen silent meanwhile */
			since = tt_now();
			tt_group_ping(job, r);
			tt_wait_until(job, has_ended, r, since + job->deadline / 4);
		}
	}
}

/* For half the deadline, as far as this process ran: if it was stopped, that says nothing about the others. */
static int wait_half(struct tt_request *r)
{
	struct tt_job *job = r->job;
	uint64_t done = 0, before = 0;
	int err = -ETIMEDOUT;

	for (int i = 0; err && i < SLICES; i++) {
		err = tt_wait_until(job, has_ended, r, tt_now() + job->deadline / (2 * SLICES));
		done = err && r->call ? tt_call_progress(r->call) : 0;
		i = done == before ? i : 0; /* servers that go on with a large push are no silent ones */
		before = done;
	}
	return err;
}

/* The whole deadline; *asked: when they were pinged last. 0, or -ETIMEDOUT. */
static int wait_and_ask(struct tt_request *r, uint64_t *asked)
{
	int err = wait_half(r);

	if (!err)
		return 0;
	do {
		*asked = tt_now();
		tt_group_ping(r->job, r); /* so that the one named is the silent one and not a neighbour */
		err = wait_half(r);
	} while (err && tt_group_is_busy(r->job, r, *asked)); /* the wire has not come to the ping yet */
	return err;
}

static void wait_or_give_up(struct tt_request *r)
{
	struct tt_job *job = r->job;
	uint64_t half = 0;

	do
		if (!wait_and_ask(r, &half))
			return;
	while (r->call && cut_silent(r, half));
	if (r->rank >= 0 && tt_group_is_alive(&job->members[r->rank], half)) {
		if (tt_window_unanswered(r))
			tt_request_end(r, -ENOENT);
		else if (!wait_half(r)) /* it lives, and may have opened its window only now */
			return;
	}
	reap(r, half, -ETIMEDOUT);
}

/* A call that was waiting when a rank was cut off for its silence, here or elsewhere, met its deadline. Only blocking
 * calls say so: of a started operation -ETIMEDOUT means that it has not ended. */
static void wait_blocking(struct tt_request *r)
{
	wait_or_give_up(r);
	if (r->err == -ECONNRESET && r->rank >= 0 && r->job->members[r->rank].silent)
		r->err = -ETIMEDOUT;
}

int tt_request_return(struct tt_request *r, bool blocking)
{
	struct tt_job *job = r->job;
	int err = 0;

	if (blocking && !r->ended && r->rank >= 0 && job->members[r->rank].state == TT_UP)
		tt_look(job, tt_member_net(&job->members[r->rank]));
	if (blocking && !r->ended)
		wait_blocking(r);
	if (blocking)
		err = result(r);
	tt_exit(job);
	return err;
}

/* Somebody waits now for a put that was posted without urgency: an urgent one behind it brings the acknowledgement. */
static void hurry(struct tt_request *r)
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
	struct tt_request *r = (struct tt_request *)op;
	struct tt_job *job = r->job;
	uint64_t patience = timeout_ms < 0 ? job->deadline : (uint64_t)timeout_ms * TT_MS;
	int err;

	if ((err = tt_is_mine(job)))
		return err;
	tt_enter(job);
	hurry(r);
	if (!patience && !r->ended)
		tt_turn(job);
	if (tt_wait_until(job, has_ended, r, tt_now() + patience))
		err = tt_fail(-ETIMEDOUT, "%s has not ended after %llu ms: wait again, or cancel it", r->what, (unsigned long long)(patience / TT_MS));
	else
		err = result(r);
	tt_exit(job);
	return err;
}

int tutti_test(tutti_op *op)
{
	struct tt_request *r = (struct tt_request *)op;
	struct tt_job *job = r->job;
	int err;

	if ((err = tt_is_mine(job)))
		return err;
	tt_enter(job);
	if (!r->ended)
		tt_turn(job);
	err = r->ended ? result(r) : -EINPROGRESS;
	tt_exit(job);
	return err;
}

/* 0, or its own result if it ends by itself. */
int tt_request_give_up(struct tt_request *r)
{
	struct tt_job *job = r->job;
	uint64_t asked = tt_now();
	int err;

	tt_group_ping(job, r);
	if (r->call)
		tt_call_give_up(r->call, -ECANCELED);
	tt_wait_until(job, has_ended, r, asked + (r->call ? job->deadline / 4 : tt_time(job, TT_TIME_REAP)));
	err = r->ended && r->err != -ECANCELED ? result(r) : 0;
	reap(r, asked, -ECANCELED);
	return err;
}

int tutti_cancel(tutti_op *op)
{
	struct tt_request *r = (struct tt_request *)op;
	struct tt_job *job = r->job;
	int err;

	if ((err = tt_is_mine(job)))
		return err;
	tt_enter(job);
	if (r->ended)
		err = result(r);
	else if (tt_window_unanswered(r))
		tt_request_end(r, -ECANCELED);
	else
		err = tt_request_give_up(r);
	tt_exit(job);
	return err;
}

int tutti_event_fd(tutti *at)
{
	struct tt_job *job = at->job;
	int fd;

	if ((fd = tt_is_mine(job)))
		return fd;
	tt_enter(job);
	if (job->event_fd < 0)
		job->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	fd = job->event_fd >= 0 ? job->event_fd : tt_fail(-errno, "cannot make an eventfd: is the limit on open files (ulimit -n) reached?");
	tt_exit(job);
	return fd;
}

