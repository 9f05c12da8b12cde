/* operation.c - started operations: waited for, tested, cancelled; and the end of every blocking call */
#include "engine/engine.h"
#include "member/member.h"
#include "operation/operation.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

enum {
	REAP_ROUNDS = 10, /* looks for a silent rank, while a call is given up, between two PINGs to all */
	SLICES = 8,       /* of half a deadline */
};

static const struct tt_operation_kind plain;

struct tt_operation *tt_operation_begin(struct tt_job *job, tutti_op *op, tutti_op *stack, const char *what, int rank)
{
	struct tt_operation *r = (struct tt_operation *)(op ? op : stack);

	memset(r, 0, sizeof *r);
	r->serial = job->serial;
	r->job = job;
	r->what = what;
	r->words = &plain;
	r->rank = rank;
	r->post.since = rank < 0 ? tt_ticks() : tt_stats_start(job); /* each collective is timed */
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
	if (r->words->ended)
		r->words->ended(r, err);
	r->err = err;
	r->ended = true;
	job->engine.news = true;
	if (tt_operations(job)->event_fd >= 0)
		(void)!write(tt_operations(job)->event_fd, &one, sizeof one);
}

static bool has_ended(void *arg) { return ((struct tt_operation *)arg)->ended; }

/* ---- for whom an operation waits ---- */

bool tt_operation_concerns(const struct tt_operation *r, int rank)
{
	if (!tt_member_is_there(r->job, rank))
		return false;
	if (r->words->waits_for)
		return r->words->waits_for(r, rank);
	return r->rank >= 0 ? r->rank == rank : !r->group || tt_group_find(r->group, tt_member(r->job, rank));
}

static void ping_all(const struct tt_operation *r)
{
	const struct tutti *group = r->group ? r->group : tt_members(r->job)->all;

	for (int i = 0; i < r->job->size; i++)
		if (tt_operation_concerns(r, i))
			tt_member_ping_for(tt_member(r->job, i), group->uid);
}

/* There was no file to ask a rank that it waits for. */
static bool is_unreached(const struct tt_operation *r, uint64_t since)
{
	for (int i = 0; i < r->job->size; i++)
		if (tt_operation_concerns(r, i) && tt_member(r->job, i)->unreached >= since)
			return true;
	return false;
}

/* Bytes come from a rank that it waits for, but no PONG yet. */
static bool is_busy(const struct tt_operation *r, uint64_t since)
{
	for (int i = 0; i < r->job->size; i++) {
		const struct tt_member *m = tt_member(r->job, i);
		if (tt_operation_concerns(r, i) && m->heard < since && tt_member_sends_bytes(m))
			return true;
	}
	return false;
}

/* It said goodbye, and then fell silent while it held memory of this rank. */
static bool has_left_late(const struct tt_member *m) { return m->state == TT_LEFT && m->link && m->outstanding; }

/* The rank to evict: a silent one, else the one that the kind blames. NULL: the ranks wait for each other. */
static struct tt_member *find_silent(const struct tt_operation *r, uint64_t since)
{
	struct tt_job *job = r->job;

	if (r->rank >= 0) {
		struct tt_member *m = tt_member(job, r->rank);
		return tt_member_is_there(job, r->rank) || has_left_late(m) ? m : NULL;
	}
	for (int i = 0; i < job->size; i++) {
		struct tt_member *m = tt_member(job, i);
		if ((tt_operation_concerns(r, i) && !tt_member_is_alive(m, since)) || has_left_late(m))
			return m;
	}
	return r->words->blame ? r->words->blame(r, since) : NULL;
}

/* ---- the end of a wait ---- */

/* The sentence for this thread: another thread may have met the error. */
static int explain(const struct tt_operation *r)
{
	const struct tt_member *m = r->rank >= 0 ? tt_member(r->job, r->rank) : NULL;
	unsigned long long ms = r->job->deadline / TT_MS;
	int err;

	if (r->told && r->err == -ETIMEDOUT)
		return tt_fail(r->err, "%s", r->what);
	if (m && *m->why && (r->err == m->err || r->err == -ECONNRESET || r->err == -ENOTCONN || r->err == -ETIMEDOUT))
		return tt_fail(r->err, "%s: %s", r->what, m->why);
	if (r->words->explain && (err = r->words->explain(r)))
		return err;
	if (r->err == -EMFILE)
		return tt_fail(r->err, "%s: this process has no file left for a connection that it needs: "
		               "raise its limit with ulimit -n", r->what);
	if (m && r->err == -ETIMEDOUT)
		return tt_fail(r->err, "%s: given up after %llu ms: %s lives, but has not done its part", r->what,
		               ms, tt_member_label(m).text);
	if (!m && r->err == -ETIMEDOUT)
		return tt_fail(r->err, "%s: given up after %llu ms, and all ranks live: they wait for each other, "
		               "since not all called the same", r->what, ms);
	if (m)
		return tt_fail(r->err, "%s: rank %d: %s", r->what, r->rank, strerror(-r->err));
	return tt_fail(r->err, "%s: %s", r->what, strerror(-r->err));
}

static int take_result(struct tt_operation *r)
{
	r->taken = true;
	return r->err ? explain(r) : 0;
}

static void evict(const struct tt_operation *r, struct tt_member *m, uint64_t since, int err)
{
	bool alive = tt_member_is_alive(m, since);
	unsigned long long ms = m->job->deadline / TT_MS;
	struct tt_label label = tt_member_label(m);
	char why[200] = "";

	tt_each_module(module, r->job, reproach)
		module->reproach(m, why, sizeof why);
	if (err == -ETIMEDOUT && m->state == TT_CONNECTING)
		tt_member_evict(m, err, "%s could not be reached within %llu ms: does it run?", label.text, ms);
	else if (err == -ETIMEDOUT && *why)
		tt_member_evict(m, err, "%s was cut off: %s", label.text, why);
	else if (err == -ETIMEDOUT)
		tt_member_evict(m, err, "%s was cut off: %s within %llu ms", label.text,
		                alive ? "it is alive but did not take part" : "it gave no sign of life", ms);
	else
		tt_member_evict(m, err, "%s was cut off: a call that waited for it was cancelled", label.text);
}

/* Where each part goes on by itself, silent ranks do not end the parts of the others. */
static bool evict_silent(struct tt_operation *r, uint64_t since)
{
	struct tt_member *m;
	bool some = false;

	for (; !r->ended && (m = find_silent(r, since)); some = true)
		evict(r, m, since, -ETIMEDOUT);
	return some;
}

static bool needs_others(const struct tt_operation *r) { return r->words->needs ? r->words->needs(r) : r->rank >= 0; }
static uint64_t progress(const struct tt_operation *r) { return r->words->progress ? r->words->progress(r) : 0; }

/* Ends it: no rank holds its memory afterwards, however many are evicted for that. since: of the last PING. */
static void reap(struct tt_operation *r, uint64_t since, int err)
{
	struct tt_job *job = r->job;

	for (int round = 1; !r->ended; round++) {
		bool unreached = needs_others(r) && err == -ETIMEDOUT && is_unreached(r, since);
		struct tt_member *m = find_silent(r, since);
		if (unreached && !r->words->give_up)
			tt_operation_end(r, -EMFILE); /* no transport holds it */
		else if (unreached)
			r->words->give_up(r, -EMFILE);
		else if (m)
			evict(r, m, since, err);
		else if (r->words->give_up)
			r->words->give_up(r, err);
		tt_wait_until(job, has_ended, r, tt_now() + tt_time(job, TT_TIME_REAP));
		if (!r->ended && round % REAP_ROUNDS == 0) { /* another rank may have fallen silent */
			since = tt_now();
			ping_all(r);
			tt_wait_until(job, has_ended, r, since + job->deadline / 4);
		}
	}
}

/* Waits for half the deadline, in slices: a time in which this process was stopped counts as one slice. */
static int wait_half(struct tt_operation *r)
{
	struct tt_job *job = r->job;
	uint64_t done = 0, before = 0;
	int err = -ETIMEDOUT;

	for (int i = 0; err && i < SLICES; i++) {
		err = tt_wait_until(job, has_ended, r, tt_now() + job->deadline / (2 * SLICES));
		done = err ? progress(r) : 0;
		i = done == before ? i : 0; /* servers that go on with a large push are not silent */
		before = done;
	}
	return err;
}

/* Waits for the whole deadline; *asked: the time of the last PING. 0, or -ETIMEDOUT. */
static int wait_and_ask(struct tt_operation *r, uint64_t *asked)
{
	int err = wait_half(r);

	if (!err)
		return 0;
	do {
		*asked = tt_now();
		ping_all(r); /* tells the silent rank from those that wait for it */
		err = wait_half(r);
	} while (err && is_busy(r, *asked)); /* the PING may still queue behind other bytes */
	return err;
}

static bool withdraw(struct tt_operation *r) { return r->words->withdraw && r->words->withdraw(r); }

static void wait_or_give_up(struct tt_operation *r)
{
	struct tt_job *job = r->job;
	uint64_t half = 0;

	do
		if (!wait_and_ask(r, &half))
			return;
	while (r->words->progress && evict_silent(r, half));
	if (r->rank >= 0 && tt_member_is_alive(tt_member(job, r->rank), half)) {
		if (withdraw(r))
			tt_operation_end(r, -ENOENT);
		else if (!wait_half(r)) /* it may have opened its window only now */
			return;
	}
	reap(r, half, -ETIMEDOUT);
}

/* Often it has ended after one poll, which costs less than to read the clock. */
static void look(struct tt_operation *r)
{
	struct tt_member *m = r->rank >= 0 ? tt_member(r->job, r->rank) : NULL;

	if (!r->ended && m && m->state == TT_UP)
		tt_look(r->job, tt_member_net(m));
}

/* A blocking call that waits for a rank that is evicted for its silence has met its deadline. For a started operation
 * -ETIMEDOUT means that it has not ended, so the error stays. */
int tt_operation_return(struct tt_operation *r, bool blocking)
{
	struct tt_job *job = r->job;
	int err = 0;

	if (blocking)
		look(r);
	if (blocking && !r->ended) {
		wait_or_give_up(r);
		if (r->err == -ECONNRESET && r->rank >= 0 && tt_member(job, r->rank)->silent)
			r->err = -ETIMEDOUT;
	}
	if (blocking)
		err = take_result(r);
	tt_unlock(job);
	return err;
}

/* ---- the calls on started operations ---- */

/* The job of an operation; NULL: the operation is idle. The job's memory is not touched unless the job lives. */
static int find_job(const tutti_op *op, struct tt_job **job)
{
	const struct tt_operation *r = (const struct tt_operation *)op;
	int err = tt_given(op, "the operation");

	*job = err ? NULL : tt_job_find(r->serial);
	if (err || !r->serial)
		return err;
	if (!*job)
		return tt_fail(-EINVAL, "the operation's job has been left, or its tutti_op was neither zeroed nor "
		               "started");
	return tt_is_mine(*job);
}

int tt_operation_look_up(const tutti_op *op)
{
	const struct tt_operation *r = (const struct tt_operation *)op;
	struct tt_job *job = tt_job_find(r->serial);
	int err = 0;

	if (!job || !*job->here)
		return 0;
	tt_lock(job);
	tt_each_of(const struct tt_operation, link, q, &tt_operations(job)->running)
		if (q == r)
			err = tt_fail(-EINVAL, "%s runs in this tutti_op: wait for it or cancel it, or use another one",
			              r->what);
	tt_unlock(job);
	return err;
}

/* A thread waits for a put that was posted as lazy: a put that is not lazy, behind it, brings the acknowledgement.
 * nudged: the member that was sent one already. */
static void hurry(struct tt_operation *r, struct tt_member **nudged)
{
	struct tt_member *m = r->post.member;

	if (r->ended || r->hurried || !(r->post.op.flags & TT_LAZY))
		return;
	r->hurried = true;
	if (m && m->state == TT_UP && m != *nudged)
		tt_member_nudge(*nudged = m);
	else if (!m || m->state < TT_UP)
		r->post.op.flags &= ~(uint32_t)TT_LAZY; /* no transport has it yet */
}

static uint64_t patience_of(const struct tt_job *job, int timeout_ms)
{
	return timeout_ms < 0 ? job->deadline : (uint64_t)timeout_ms * TT_MS;
}

static int wait_until(struct tt_job *job, bool (*ready)(void *), void *arg, uint64_t patience)
{
	if (!patience)
		tt_progress(job);
	return tt_wait_until(job, ready, arg, tt_now() + patience);
}

static int say_late(const struct tt_operation *r, uint64_t patience)
{
	return tt_fail(-ETIMEDOUT, "%s has not ended after %llu ms: wait again, or cancel it", r->what,
	               (unsigned long long)(patience / TT_MS));
}

int tutti_wait(tutti_op *op, int timeout_ms)
{
	struct tt_operation *r = (struct tt_operation *)op;
	struct tt_member *nudged = NULL;
	struct tt_job *job;
	int err = find_job(op, &job);

	if (err || !job)
		return err;
	uint64_t patience = patience_of(job, timeout_ms);
	tt_lock(job);
	hurry(r, &nudged);
	look(r);
	if (!r->ended && wait_until(job, has_ended, r, patience))
		err = say_late(r, patience);
	else
		err = take_result(r);
	tt_unlock(job);
	return err;
}

int tutti_test(tutti_op *op)
{
	struct tt_operation *r = (struct tt_operation *)op;
	struct tt_job *job;
	int err = find_job(op, &job);

	if (err || !job)
		return err;
	tt_lock(job);
	if (!r->ended)
		tt_progress(job);
	err = r->ended ? take_result(r) : -EINPROGRESS;
	tt_unlock(job);
	return err;
}

int tt_operation_give_up(struct tt_operation *r)
{
	struct tt_job *job = r->job;
	uint64_t asked = tt_now();
	int err;

	ping_all(r);
	if (r->words->progress)
		r->words->give_up(r, -ECANCELED);
	tt_wait_until(job, has_ended, r, asked + (r->words->progress ? job->deadline / 4 : tt_time(job, TT_TIME_REAP)));
	err = r->ended && r->err != -ECANCELED ? take_result(r) : 0;
	reap(r, asked, -ECANCELED);
	return err;
}

int tutti_cancel(tutti_op *op)
{
	struct tt_operation *r = (struct tt_operation *)op;
	struct tt_job *job;
	int err = find_job(op, &job);

	if (err || !job)
		return err;
	tt_lock(job);
	if (r->ended)
		err = take_result(r);
	else if (withdraw(r))
		tt_operation_end(r, -ECANCELED);
	else
		err = tt_operation_give_up(r);
	r->taken = true;
	tt_unlock(job);
	return err;
}

int tutti_event_fd(tutti *at)
{
	struct tt_job *job = tt_job_of(at);
	int fd;

	if ((fd = tt_is_mine(job)))
		return fd;
	tt_lock(job);
	if (tt_operations(job)->event_fd < 0)
		tt_operations(job)->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if ((fd = tt_operations(job)->event_fd) < 0)
		fd = tt_fail(-errno, "cannot make an eventfd: is the limit on open files (ulimit -n) reached?");
	tt_unlock(job);
	return fd;
}

/* ---- waiting for several operations ---- */

struct set {
	tutti_op *const *ops;       /* NULL, or idle: passed over */
	int n, at;                  /* at: those before it have ended; or the one that has */
	struct tt_job *job;         /* NULL: all are passed over */
};

static struct tt_operation *operation(const struct set *s, int i) /* NULL: passed over */
{
	struct tt_operation *r = (struct tt_operation *)s->ops[i];

	return r && r->serial ? r : NULL;
}

static int make_set(tutti_op *const ops[], int n, struct set *s)
{
	*s = (struct set){ .ops = ops, .n = n };
	if (n < 0 || (n && !ops))
		return tt_fail(-EINVAL, "%d operations in a list that is %s", n, ops ? "there" : "NULL");
	for (int i = 0; i < n; i++) {
		struct tt_job *job = NULL;
		int err = ops[i] ? find_job(ops[i], &job) : 0;
		if (err)
			return err;
		if (job && s->job && job != s->job)
			return tt_fail(-EINVAL, "operation %d of the list is of another job than those before it: wait "
			               "for each job's by themselves", i);
		s->job = job ? job : s->job;
	}
	return 0;
}

static bool have_all_ended(void *arg)
{
	struct set *s = arg;

	for (; s->at < s->n; s->at++)
		if (operation(s, s->at) && !operation(s, s->at)->ended)
			return false;
	return true;
}

/* True also if no operation runs, and the program has the results of all: `at` is n then. */
static bool has_any_ended(void *arg)
{
	struct set *s = arg;
	bool some_run = false;

	for (s->at = 0; s->at < s->n; s->at++) {
		const struct tt_operation *r = operation(s, s->at);
		if (r && r->ended && !r->taken)
			return true;
		some_run |= r && !r->ended;
	}
	return !some_run;
}

static int wait_for_set(struct set *s, bool (*ready)(void *), uint64_t patience)
{
	struct tt_member *nudged = NULL;

	if (ready(s))
		return 0;
	for (int i = 0; i < s->n; i++)
		if (operation(s, i))
			hurry(operation(s, i), &nudged);
	return wait_until(s->job, ready, s, patience);
}

/* The first error in the order of the list. */
static int take_results(struct set *s)
{
	int err = 0;

	for (int i = 0; i < s->n; i++) {
		struct tt_operation *r = operation(s, i);
		if (r && !err)
			err = take_result(r);
		else if (r)
			r->taken = true;
	}
	return err;
}

int tutti_wait_all(tutti_op *const ops[], int n, int timeout_ms)
{
	struct set s;
	int err = make_set(ops, n, &s);

	if (err || !s.job)
		return err;
	uint64_t patience = patience_of(s.job, timeout_ms);
	tt_lock(s.job);
	if (wait_for_set(&s, have_all_ended, patience))
		err = say_late(operation(&s, s.at), patience);
	else
		err = take_results(&s);
	tt_unlock(s.job);
	return err;
}

static int say_none(int n)
{
	return tt_fail(-ENOENT, "wait for any: of %d operations none is left: none was started, or the results of all "
	               "were returned before", n);
}

int tutti_wait_any(tutti_op *const ops[], int n, int timeout_ms)
{
	struct set s;
	int which = make_set(ops, n, &s);

	if (which)
		return which;
	if (!s.job)
		return say_none(n);
	uint64_t patience = patience_of(s.job, timeout_ms);
	tt_lock(s.job);
	if (wait_for_set(&s, has_any_ended, patience))
		which = tt_fail(-ETIMEDOUT, "none of %d operations has ended after %llu ms: wait again, or cancel them",
		                n, (unsigned long long)(patience / TT_MS));
	else if (s.at == n)
		which = say_none(n);
	else
		operation(&s, which = s.at)->taken = true;
	tt_unlock(s.job);
	return which;
}

/* ---- the module ---- */

static void make(struct tt_job *job)
{
	tt_list_init(&tt_operations(job)->running);
	tt_operations(job)->event_fd = -1;
}

static void close_operations(struct tt_job *job)
{
	if (tt_operations(job)->event_fd >= 0)
		close(tt_operations(job)->event_fd);
}

const struct tt_module tt_operation_module = {
	.name = "operation",
	.slot = TT_OPERATION_SLOT,
	.job_size = sizeof(struct tt_operations),
	.make = make,
	.close = close_operations,
};
