/* operation.c - started operations: waited for, tested, cancelled; and the end of every blocking call
 *
 * Time passes alike for all operations, whether a thread waits or not. After TUTTI_SILENCE the ranks that an
 * operation waits for are asked what they do, and a line in the log says who they are. After TUTTI_TIMEOUT, or the
 * group's own timeout, the operation is given up. Nobody is evicted for that: silent ranks are the heartbeat's. */
#include "engine/engine.h"
#include "member/member.h"
#include "operation/inquiry.h"
#include "operation/operation.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

enum { HEARSAY = 16 }; /* beats in which the word of a late rank goes round */

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
	r->timeout = job->timeout;
	r->since = tt_operations(job)->clock;
	r->post.since = rank < 0 ? tt_ticks() : tt_stats_start(job); /* each collective is timed */
	tt_operation_note(job, what);
	tt_list_append(&tt_operations(job)->running, &r->link);
	tt_list_init(&r->unanswered);
	return r;
}

void tt_operation_word(struct tt_operation *r, const char *why)
{
	struct tt_operations *all = tt_operations(r->job);
	struct tt_words *w;

	if (!all->words && !(all->words = calloc(TT_WORDS, sizeof *all->words)))
		return;
	w = &all->words[all->worded++ % TT_WORDS];
	w->of = r;
	snprintf(w->why.text, sizeof w->why.text, "%s", why);
	r->why = w->why.text;
}

static const char *words_of(const struct tt_operation *r) /* NULL: none, or later words took their place */
{
	const struct tt_words *words = tt_operations(r->job)->words;

	for (int i = 0; words && r->why && i < TT_WORDS; i++)
		if (r->why == words[i].why.text)
			return words[i].of == r ? r->why : NULL;
	return r->why;
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
	if (!tt_list_empty(&tt_operations(job)->composites))
		tt_composite_part_ended(r);
	if (tt_operations(job)->event_fd >= 0)
		(void)!write(tt_operations(job)->event_fd, &one, sizeof one);
}

void tt_operation_at_once(struct tt_job *job, tutti_op *op, const char *what, int rank)
{
	tt_operation_end(tt_operation_begin(job, op, NULL, what, rank), 0);
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

static bool waits_for_group(const struct tt_operation *r) { return r->rank < 0 && !r->words->waits_for; }

/* The first rank of the group at that distance or beyond which is there; NULL: there is none. */
static struct tt_member *finger(const struct tt_operation *r, const struct tutti *group, int distance)
{
	for (int d = distance; d < group->n; d++) {
		struct tt_member *m = tt_group_member(group, (group->me + d) % group->n);
		if (tt_operation_concerns(r, m->rank))
			return m;
	}
	return NULL;
}

/* A PONG also says whom its sender knows to be late. So it is enough that some ranks are connected to a late one, and
 * that the others are connected to each other by few steps: the fingers at 1, 4, 16 ... see to both. If each rank
 * asked all others, one late rank would leave a connection between any two. */
void tt_operation_ping(const struct tt_operation *r)
{
	const struct tutti *group = r->group ? r->group : tt_members(r->job)->all;
	bool of_group = waits_for_group(r);
	struct tt_member *m;

	for (int i = 0; i < r->job->size; i++)
		if (tt_operation_concerns(r, i) && (!of_group || tt_member(r->job, i)->state == TT_UP))
			tt_member_ping_for(tt_member(r->job, i), group->uid);
	for (int d = 1; of_group && r->words->late && d < group->n; d *= 4)
		if ((m = finger(r, group, d)) && m->state != TT_UP)
			tt_member_ping_for(m, group->uid);
}

bool tt_operation_has_heard(const struct tt_operation *r, const struct tt_member *m)
{
	return m->started_in == r->group->uid && tt_now() - m->heard <= tt_operations(r->job)->clock - r->since;
}

static bool knows_late(const struct tt_operation *r)
{
	for (int i = 0; i < r->job->size; i++)
		if (tt_operation_concerns(r, i) && r->words->late(r, tt_member(r->job, i)))
			return true;
	return false;
}

/* There was no file to ask a rank that it waits for. */
static bool is_unreached(const struct tt_operation *r)
{
	uint64_t now = tt_now();

	for (int i = 0; i < r->job->size; i++) {
		const struct tt_member *m = tt_member(r->job, i);
		if (tt_operation_concerns(r, i) && m->unreached && now - m->unreached < 2 * r->job->silence)
			return true;
	}
	return false;
}

enum { NAMED = 3 };

int tt_operation_name(const struct tt_operation *r, bool (*is)(const struct tt_operation *, const struct tt_member *),
                      char *text, size_t size)
{
	const char *doing = NULL;
	int n = 0, at = 0;

	*text = 0;
	for (int i = 0; i < r->job->size; i++) {
		const struct tt_member *m = tt_member(r->job, i);
		if (!tt_operation_concerns(r, i) || (is && !is(r, m)))
			continue;
		if (n < NAMED && at < (int)size)
			at += snprintf(text + at, size - (size_t)at, "%s%s", n ? ", " : "", tt_member_label(m).text);
		if (!n)
			doing = m->state == TT_CONNECTING ? "it could not be reached so far: does it run?" : m->doing;
		n++;
	}
	if (n > NAMED && at < (int)size)
		at += snprintf(text + at, size - (size_t)at, " and %d more", n - NAMED);
	if (doing && *doing && at < (int)size)
		snprintf(text + at, size - (size_t)at, "%s: %s", n > 1 ? "; the first" : "", doing);
	return n;
}

void tt_operation_describe(const struct tt_operation *r, char *text, size_t size)
{
	if (r->words->describe)
		r->words->describe(r, text, size);
	else
		snprintf(text, size, "this rank's own part");
}

/* ---- the end of a wait ---- */

/* The sentence for this thread: another thread may have met the error. */
int tt_operation_explain(const struct tt_operation *r)
{
	const struct tt_member *m = r->rank >= 0 ? tt_member(r->job, r->rank) : NULL;
	const char *why = words_of(r);
	int err;

	if (why)
		return tt_fail(r->err, "%s: %s", r->what, why);
	if (m && m->state >= TT_LEFT && (r->err == m->err || r->err == -ECONNRESET || r->err == -ENOTCONN))
		return tt_fail(r->err, "%s: %s", r->what, m->why);
	if (r->words->explain && (err = r->words->explain(r)))
		return err;
	if (r->err == -EMFILE)
		return tt_fail(r->err, "%s: this process has no file left for a connection that it needs: "
		               "raise its limit with ulimit -n", r->what);
	if (m && r->err == -ETIMEDOUT)
		return tt_fail(r->err, "%s: given up: %s lives, but has not done its part in time", r->what,
		               tt_member_label(m).text);
	if (m && (r->err == -ECONNRESET || r->err == -ENOTCONN)) /* its number has a later life */
		return tt_fail(r->err, "%s: %s %s while the call ran, and has joined again since", r->what,
		               tt_member_label(m).text, r->err == -ENOTCONN ? "left" : "went down");
	if (m)
		return tt_fail(r->err, "%s: %s: %s", r->what, tt_member_label(m).text, strerror(-r->err));
	return tt_fail(r->err, "%s: %s", r->what, strerror(-r->err));
}

static int take_result(struct tt_operation *r)
{
	r->taken = true;
	return r->err ? tt_operation_explain(r) : 0;
}

void tt_operation_give_up(struct tt_operation *r, int err)
{
	r->given_up = true;
	if (err == -ETIMEDOUT && is_unreached(r))
		err = -EMFILE;
	if (r->words->give_up)
		r->words->give_up(r, err);
	else
		tt_operation_end(r, err);
}

/* Often it has ended after one poll, which costs less than to read the clock. */
static void look(struct tt_operation *r)
{
	struct tt_member *m = r->rank >= 0 ? tt_member(r->job, r->rank) : NULL;

	if (!r->ended && m && m->state == TT_UP)
		tt_look(r->job, tt_member_net(m));
}

/* The caller's hook ends the wait, or a thread that leaves ends the opening that waits: the memory is the caller's
 * again when the operation has ended. */
static int interrupt(struct tt_operation *r, int why)
{
	int err = tt_operation_cancel(r);

	r->taken = true;
	if (r->err != -ECANCELED)
		return err;
	return why == -EINTR ? tt_fail(why, "%s: interrupted by this thread's hook (tutti_on_wait), and cancelled",
	                               r->what) : why;
}

static int wait_and_take(struct tt_operation *r)
{
	int err = 0;

	look(r);
	if (!r->ended) /* beat() ends it when its time has passed */
		err = tt_wait_for(r->job, tt_hook.opening, has_ended, r, TT_NEVER);
	return err ? interrupt(r, err) : take_result(r);
}

int tt_operation_return(struct tt_operation *r, bool blocking)
{
	struct tt_job *job = r->job;
	int err = blocking ? wait_and_take(r) : 0;

	tt_unlock(job);
	return err;
}

/* ---- the beat: what happens to operations as time passes ---- */

/* Servers that go on with a large push are waited for longer. */
static void look_for_progress(struct tt_operation *r)
{
	uint64_t seen = r->words->progress ? r->words->progress(r) : 0;

	if (seen == r->seen)
		return;
	r->seen = seen;
	r->since = tt_operations(r->job)->clock;
	r->asked = 0;
}

static void say_awaited(struct tt_operation *r, uint64_t waited)
{
	char text[400];

	r->said = true;
	if (!tt_operation_name(r, r->words->late, text, sizeof text) && r->words->late)
		snprintf(text, sizeof text, "other ranks: none that this rank has heard of is late");
	else if (!*text)
		tt_operation_describe(r, text, sizeof text);
	tt_log(TT_WARN, "%s has waited %llu ms for %s", r->what, (unsigned long long)(waited / TT_MS), text);
}

static bool evict_holder(struct tt_operation *r)
{
	struct tt_member *m = r->given_up && r->words->holder ? r->words->holder(r) : NULL;

	if (m)
		tt_member_evict(m, -ETIMEDOUT, "%s was evicted: a %s was given up, and it neither gave back what it "
		                "held of it nor moved bytes within %llu ms", tt_member_label(m).text, r->what,
		                (unsigned long long)(m->job->silence / TT_MS));
	return m;
}

/* How often ranks that wait are asked what they do. */
static uint64_t period_of(const struct tt_operation *r) { return tt_min(r->job->silence, r->timeout / 2); }

static uint64_t time_waited(const struct tt_operation *r) { return tt_operations(r->job)->clock - r->since; }

/* The late ranks are named some steps from here: those between need a beat each. Half of each period is quiet, however
 * long a beat is: if nobody is late, the wait is to be told all the same. */
static bool seeks(const struct tt_operation *r)
{
	uint64_t period = period_of(r), open = tt_min(HEARSAY * tt_operations(r->job)->step, period / 2);

	return r->asked && !r->given_up && waits_for_group(r) && r->words->late &&
	       time_waited(r) < r->asked * period + open && !knows_late(r);
}

/* True: this did something, which may have ended operations. */
static bool attend(struct tt_operation *r)
{
	uint64_t step = tt_operations(r->job)->step, every = period_of(r), waited;

	look_for_progress(r);
	waited = time_waited(r);
	if (r->given_up)
		return evict_holder(r);
	if (waited >= r->timeout + step) { /* `since` may lie a beat before its start */
		tt_operation_give_up(r, -ETIMEDOUT);
		return true;
	}
	if ((uint32_t)(waited / every) != r->asked) {
		r->asked = (uint32_t)(waited / every);
		tt_operation_ping(r);
		return true;
	}
	if (r->asked && !r->said && waited >= r->job->silence + 2 * step && !seeks(r)) /* the answers have come */
		say_awaited(r, waited);
	return false;
}

static bool attend_one(struct tt_job *job)
{
	tt_each_of(struct tt_operation, link, r, &tt_operations(job)->running)
		if (attend(r))
			return true;
	return false;
}

static void beat(struct tt_job *job, uint64_t passed)
{
	tt_operations(job)->clock += passed;
	tt_operations(job)->step = passed;
	tt_each_of(const struct tt_operation, link, r, &tt_operations(job)->running)
		if (seeks(r))
			tt_operation_ping(r);
	while (attend_one(job))
		continue;
	tt_inquiry_beat(job);
}

static void say_doing(const struct tt_job *job, char *text, size_t size)
{
	const struct tt_operations *all = tt_operations(job);
	unsigned long long ago = (all->clock - all->last_at) / (1000 * TT_MS);

	if (!tt_list_empty(&all->running))
		snprintf(text, size, "it is in a call, %s, for %llu s", all->last, ago);
	else if (all->last)
		snprintf(text, size, "its last call was %s, %llu s ago", all->last, ago);
}

/* ---- the calls on started operations ---- */

static int say_left(void)
{
	return tt_fail(-EINVAL, "the operation's job has been left, or its tutti_op was neither zeroed nor started");
}

/* Takes the lock of an operation's job, which may have been left since find_job(). */
static int enter(struct tt_job *job, uint32_t serial)
{
	tt_lock(job);
	if (job->serial == serial && !job->left)
		return 0;
	tt_unlock(job);
	return say_left();
}

/* The job of an operation; NULL: the operation is idle. */
static int find_job(const tutti_op *op, struct tt_job **job)
{
	const struct tt_operation *r = (const struct tt_operation *)op;
	int err = tt_given(op, "the operation");

	*job = err ? NULL : tt_job_find(r->serial);
	if (err || !r->serial)
		return err;
	return *job ? tt_is_mine(*job) : say_left();
}

int tt_operation_look_up(const tutti_op *op)
{
	const struct tt_operation *r = (const struct tt_operation *)op;
	struct tt_job *job = tt_job_find(r->serial);
	int err = 0;

	if (!job || !*job->here || enter(job, r->serial))
		return 0;
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

static int wait_for(struct tt_job *job, bool (*ready)(void *), void *arg, int timeout_ms)
{
	if (!timeout_ms)
		tt_progress(job);
	return tt_wait_for(job, NULL, ready, arg,
	                   timeout_ms < 0 ? TT_NEVER : tt_now() + (uint64_t)timeout_ms * TT_MS);
}

/* err: of wait_for(). The operation runs on. */
static int say_late(const struct tt_operation *r, int err, int timeout_ms)
{
	if (err != -ETIMEDOUT)
		return err;
	return tt_fail(-EINPROGRESS, "%s has not ended after %d ms: wait again, or cancel it", r->what, timeout_ms);
}

/* A thread that frees the op waits for this. */
static void stop_waiting(struct tt_operation *r)
{
	r->waiting--;
	r->job->engine.news = true;
}

int tutti_wait(tutti_op *op, int timeout_ms)
{
	struct tt_operation *r = (struct tt_operation *)op;
	struct tt_member *nudged = NULL;
	struct tt_job *job;
	int err = find_job(op, &job);

	if (err || !job || (err = enter(job, r->serial)))
		return err;
	r->waiting++;
	hurry(r, &nudged);
	look(r);
	if (!r->ended)
		err = wait_for(job, has_ended, r, timeout_ms);
	err = err ? say_late(r, err, timeout_ms) : take_result(r);
	stop_waiting(r);
	tt_unlock(job);
	return err;
}

int tutti_test(tutti_op *op)
{
	struct tt_operation *r = (struct tt_operation *)op;
	struct tt_job *job;
	int err = find_job(op, &job);

	if (err || !job || (err = enter(job, r->serial)))
		return err;
	if (!r->ended)
		tt_progress(job);
	err = r->ended ? take_result(r) : -EINPROGRESS;
	tt_unlock(job);
	return err;
}

int tutti_op_why(tutti_op *op, char *text, size_t room)
{
	struct tt_operation *r = (struct tt_operation *)op;
	struct tt_sentence last = tt_last_sentence();
	struct tt_job *job;
	int err = !text && room ? tt_refuse_null("text") : find_job(op, &job);

	if (err)
		return err;
	if (room)
		*text = 0;
	if (!job || (err = enter(job, r->serial)))
		return err;
	err = r->ended ? r->err : -EINPROGRESS;
	if (r->ended && r->err)
		tt_operation_explain(r);
	tt_unlock(job);
	if (err && err != -EINPROGRESS)
		snprintf(text, room, "%s", tt_why());
	tt_remember(last.text);
	return err;
}

int tt_operation_cancel(struct tt_operation *r)
{
	if (!r->given_up)
		tt_operation_give_up(r, -ECANCELED);
	tt_wait_until(r->job, has_ended, r, TT_NEVER); /* all others live, or are evicted */
	return r->err != -ECANCELED ? take_result(r) : 0;
}

int tutti_cancel(tutti_op *op)
{
	struct tt_operation *r = (struct tt_operation *)op;
	struct tt_job *job;
	int err = find_job(op, &job);

	if (err || !job || (err = enter(job, r->serial)))
		return err;
	err = r->ended ? take_result(r) : tt_operation_cancel(r);
	r->taken = true;
	tt_unlock(job);
	return err;
}

int tutti_op_new(tutti_op **out)
{
	int err = tt_given(out, "tutti_op_new: op");
	tutti_op *op = err ? NULL : calloc(1, sizeof *op);

	if (err || !op)
		return err ? err : tt_fail(-ENOMEM, "no memory for an operation");
	*out = op;
	return 0;
}

static bool is_unwatched(void *arg) { return !((struct tt_operation *)arg)->waiting; }

/* Other threads may wait for the operation, perhaps among others: `freed` ends their waits. */
static void cancel_and_clear(struct tt_job *job, struct tt_operation *r)
{
	if (enter(job, r->serial))
		return;
	r->freed = true;
	tt_operations(job)->freeing++;
	job->engine.news = true;
	if (!r->ended)
		tt_operation_cancel(r);
	tt_wait_until(job, is_unwatched, r, TT_NEVER);
	tt_operations(job)->freeing--;
	tt_unlock(job);
}

void tutti_op_free(tutti_op *op)
{
	struct tt_operation *r = (struct tt_operation *)op;
	struct tt_job *job = r && r->serial ? tt_job_find(r->serial) : NULL;
	struct tt_sentence last = tt_last_sentence();

	if (job && *job->here) /* else the job was left, or this is a fork's child, and nobody uses the op */
		cancel_and_clear(job, r);
	free(op);
	tt_remember(last.text);
}

int tutti_event_fd(tutti *at)
{
	struct tt_job *job = tt_job_of(at);
	int fd;

	if ((fd = tt_is_mine(job)) || (fd = tt_begin(job)))
		return fd;
	if (tt_operations(job)->event_fd < 0)
		tt_operations(job)->event_fd = tt_eventfd("the ends of operations");
	fd = tt_operations(job)->event_fd;
	tt_unlock(job);
	return fd;
}

/* ---- waiting for several operations ---- */

struct set {
	tutti_op *const *ops;       /* NULL, or idle: passed over */
	int n, at;                  /* at: those before it have ended; or the one that has */
	struct tt_job *job;         /* NULL: all are passed over */
	uint32_t serial;            /* the job's */
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
		return tt_fail(-EINVAL, "the list has %d operations, and is %s", n, ops ? "there" : "NULL");
	for (int i = 0; i < n; i++) {
		struct tt_job *job = NULL;
		int err = ops[i] ? find_job(ops[i], &job) : 0;
		if (err)
			return err;
		if (job && s->job && job != s->job)
			return tt_fail(-EINVAL, "operation %d of the list is of another job than those before it: wait "
			               "for each job's by themselves", i);
		s->job = job ? job : s->job;
		s->serial = job ? ((const struct tt_operation *)ops[i])->serial : s->serial;
	}
	return 0;
}

static int find_freed(const struct set *s) /* -1: none */
{
	for (int i = 0; tt_operations(s->job)->freeing && i < s->n; i++)
		if (operation(s, i) && operation(s, i)->freed)
			return i;
	return -1;
}

static int say_freed(const struct set *s)
{
	int at = find_freed(s);

	return at < 0 ? 0 : tt_fail(-ECANCELED, "another thread frees operation %d of the list (tutti_op_free)", at);
}

/* Or one of them is being freed: `at` is below n then. */
static bool have_all_ended(void *arg)
{
	struct set *s = arg;

	for (; s->at < s->n; s->at++)
		if (operation(s, s->at) && !operation(s, s->at)->ended)
			return find_freed(s) >= 0;
	return true;
}

/* True also if one is being freed; and if no operation runs, and the program has the results of all: `at` is n then. */
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
	return !some_run || find_freed(s) >= 0;
}

static int wait_for_set(struct set *s, bool (*ready)(void *), int timeout_ms)
{
	struct tt_member *nudged = NULL;

	if (ready(s))
		return 0;
	for (int i = 0; i < s->n; i++)
		if (operation(s, i))
			hurry(operation(s, i), &nudged);
	return wait_for(s->job, ready, s, timeout_ms);
}

static void watch_set(struct set *s, int change)
{
	for (int i = 0; i < s->n; i++)
		if (operation(s, i))
			operation(s, i)->waiting += (uint16_t)change;
	s->job->engine.news |= change < 0;
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

	if (err || !s.job || (err = enter(s.job, s.serial)))
		return err;
	watch_set(&s, 1);
	err = wait_for_set(&s, have_all_ended, timeout_ms);
	if (!err && s.at < n)
		err = say_freed(&s);
	else
		err = err ? say_late(operation(&s, s.at), err, timeout_ms) : take_results(&s);
	watch_set(&s, -1);
	tt_unlock(s.job);
	return err;
}

static int say_none(int n)
{
	return tt_fail(-ENOENT, "wait for any: none of %d operations is left: none was started, or the results of all "
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
	if ((which = enter(s.job, s.serial)))
		return which;
	watch_set(&s, 1);
	if ((which = wait_for_set(&s, has_any_ended, timeout_ms)) == -ETIMEDOUT)
		which = tt_fail(-EINPROGRESS, "none of %d operations has ended after %d ms: wait again, or cancel "
		                "them", n, timeout_ms);
	else if (!which && (which = say_freed(&s)))
		; /* its index would name memory that is about to go */
	else if (!which && s.at == n)
		which = say_none(n);
	else if (!which)
		operation(&s, which = s.at)->taken = true;
	watch_set(&s, -1);
	tt_unlock(s.job);
	return which;
}

/* ---- the module ---- */

static void make(struct tt_job *job)
{
	tt_list_init(&tt_operations(job)->running);
	tt_list_init(&tt_operations(job)->composites);
	tt_operations(job)->event_fd = -1;
}

static void close_operations(struct tt_job *job)
{
	tt_inquiry_close(job);
	free(tt_operations(job)->words);
	if (tt_operations(job)->event_fd >= 0)
		close(tt_operations(job)->event_fd);
}

const struct tt_module tt_operation_module = {
	.name = "operation",
	.slot = TT_OPERATION_SLOT,
	.job_size = sizeof(struct tt_operations),
	.make = make,
	.open = tt_inquiry_open,
	.stop = tt_composites_stop,
	.close = close_operations,
	.beat = beat,
	.errand = tt_composites_run,
	.doing = say_doing,
};
