/* serve.c - the controller: gives the program one request after another, sends its answers, keeps the lock.
 *
 *      worker's state    TT_ASKS_NOT --next--> TT_ASKS --answer--> TT_IS_ANSWERED --sent--> TT_ASKS_NOT
 *
 * One thread at a time is in tutti_controller_next, and any thread may answer meanwhile. A worker that asks belongs to
 * the thread that answers: next leaves the worker's answer and op alone. tutti_controller_serve is a loop of the two.
 *
 * The lock is here and no service of its own: the one who sees the queue sees deaths, too, so nothing has to be agreed
 * on. A worker's place in the queue is the number of its turn. */
#include "control/control_private.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct tt_worker *worker_at(tutti_controller *c, int i) { return &c->workers[i]; }
static uint64_t *word_at(tutti_controller *c, size_t at) { return (uint64_t *)(c->desk.memory + at); }

static struct tt_request *request_of(tutti_controller *c, int i)
{
	return (struct tt_request *)(c->desk.memory + tt_request_at(c->desk.n, i));
}

/* ---- answers ---- */

/* data is in the worker's answer already. A worker that cannot be reached is found out by what ended it. */
static int send_answer(tutti_controller *c, int i, int err, size_t bytes)
{
	struct tt_worker *w = worker_at(c, i);
	struct tt_answer *a = &c->answers[i];

	a->seq = w->seq;
	a->err = err;
	a->bytes = (uint32_t)bytes;
	return tutti_put_notify(c->desk.window, i, 0, a, offsetof(struct tt_answer, data) + bytes, TT_DESK_NOTIFY,
	                        &w->op);
}

/* Only a worker that has heard its last answer asks again: the op is about to end, if it has not. */
static void end_last_answer(tutti_controller *c, int i)
{
	struct tt_worker *w = worker_at(c, i);
	struct tt_hook hook = tt_hook_suspend();

	if (tutti_wait(&w->op, TT_LOOK_MS) == -EINPROGRESS)
		tutti_cancel(&w->op);
	tt_hook_resume(hook);
}

static void TT_FORMAT(4, 5) refuse(tutti_controller *c, int i, int err, const char *fmt, ...)
{
	struct tt_answer *a = &c->answers[i];
	va_list args;

	va_start(args, fmt);
	int n = vsnprintf(a->data, sizeof a->data, fmt, args);
	va_end(args);
	send_answer(c, i, err, n > 0 ? (size_t)n : 0);
}

/* ---- the lock ---- */

static int next_in_line(tutti_controller *c)
{
	int next = -1;

	for (int i = 0; i < c->desk.n; i++)
		if (worker_at(c, i)->turn && (next < 0 || worker_at(c, i)->turn < worker_at(c, next)->turn))
			next = i;
	return next;
}

static void pass_lock_on(tutti_controller *c)
{
	c->holder = next_in_line(c);
	if (c->holder < 0)
		return;
	worker_at(c, c->holder)->turn = 0;
	send_answer(c, c->holder, 0, 0);
}

static void free_lock_of(tutti_controller *c, int i)
{
	worker_at(c, i)->turn = 0;
	if (c->holder == i)
		pass_lock_on(c);
}

static void refuse_lock(tutti_controller *c, int i)
{
	worker_at(c, i)->turn = 0;
	refuse(c, i, -EBUSY, "%s has the lock", tt_desk_label(&c->desk, c->holder).text);
}

static void lock(tutti_controller *c, int i, uint64_t wait)
{
	struct tt_worker *w = worker_at(c, i);

	if (c->holder == i) {
		refuse(c, i, -EDEADLK, "this worker has the lock already");
		return;
	}
	w->turn = ++c->turns;
	w->until = tt_now() + tt_min(wait, TT_FOREVER);
	if (c->holder < 0)
		pass_lock_on(c);
	else if (!wait)
		refuse_lock(c, i);
}

static void unlock(tutti_controller *c, int i)
{
	if (c->holder != i) {
		refuse(c, i, -EPERM, "this worker has no lock to free");
		return;
	}
	send_answer(c, i, 0, 0);
	pass_lock_on(c);
}

/* When the first of those that wait for the lock gives up. */
static uint64_t end_of_patience(tutti_controller *c)
{
	uint64_t first = TT_NEVER;

	for (int i = 0; i < c->desk.n; i++)
		if (worker_at(c, i)->turn)
			first = tt_min(first, worker_at(c, i)->until);
	return first;
}

static void end_waits_for_lock(tutti_controller *c)
{
	uint64_t now = tt_now();

	for (int i = 0; i < c->desk.n; i++)
		if (worker_at(c, i)->turn && now >= worker_at(c, i)->until)
			refuse_lock(c, i);
}

/* ---- a request that the program has ---- */

static bool is_not_being_answered(void *w) { return ((struct tt_worker *)w)->asks != TT_IS_ANSWERED; }

/* From now on an answer to the worker's request is refused. True: the program had the request. */
static bool withdraw_request(tutti_controller *c, int i)
{
	struct tt_worker *w = worker_at(c, i);

	tt_lock(c->desk.job);
	tt_wait_until(c->desk.job, is_not_being_answered, w, TT_NEVER);
	bool asked = w->asks == TT_ASKS;
	w->asks = TT_ASKS_NOT;
	tt_unlock(c->desk.job);
	return asked;
}

static void set_asks(tutti_controller *c, int i, enum tt_asking asks)
{
	tt_lock(c->desk.job);
	worker_at(c, i)->asks = asks;
	c->desk.job->engine.news = true;
	tt_unlock(c->desk.job);
}

static enum tt_asking state_of(const tutti_controller *c, int i)
{
	tt_lock(c->desk.job);
	enum tt_asking asks = c->workers[i].asks;
	tt_unlock(c->desk.job);
	return asks;
}

/* ---- requests ---- */

static void ask_program(tutti_controller *c, int i, tutti_request *out)
{
	const struct tt_request *r = request_of(c, i);
	size_t bytes = r->bytes; /* of another process's making */

	set_asks(c, i, TT_ASKS);
	*out = (tutti_request){ .worker = i, .what = TUTTI_JOINED, .data = r->data,
		                .bytes = tt_min(bytes, sizeof r->data) };
}

/* Its end, as the lock and the program see it. */
static void end_worker(tutti_controller *c, int i, tutti_what what)
{
	struct tt_worker *w = worker_at(c, i);

	if (w->over)
		return;
	withdraw_request(c, i);
	w->over = w->untold = true;
	w->end = what;
	free_lock_of(c, i);
}

static bool tell_end(tutti_controller *c, tutti_request *out)
{
	for (int i = 0; i < c->desk.n; i++) {
		struct tt_worker *w = worker_at(c, i);
		if (!w->untold)
			continue;
		w->untold = false;
		*out = (tutti_request){ .worker = i, .what = w->end };
		return true;
	}
	return false;
}

/* Each worker's k-th call, for each k. One that came later, or again, goes on with the others' k. */
static bool is_first(tutti_controller *c, struct tt_worker *w)
{
	bool first = w->firsts == c->firsts;

	w->firsts++;
	c->firsts += first;
	return first;
}

static void begin_life(struct tt_worker *w, const tutti_controller *c, uint64_t life)
{
	if (w->life)
		w->firsts = c->firsts;
	w->life = life;
	w->over = w->done = false;
}

/* True: the program has an answer to give. */
static bool take_request(tutti_controller *c, int i, tutti_request *out)
{
	struct tt_worker *w = worker_at(c, i);
	const struct tt_request *r = request_of(c, i);

	if (r->gave_up)
		free_lock_of(c, i);
	if (w->done) {
		refuse(c, i, -EINVAL, "this worker has said that it is done");
		return false;
	}
	switch (r->ask) {
	case TT_ASK_PROGRAM: ask_program(c, i, out); return true;
	case TT_ASK_LOCK: lock(c, i, r->wait); break;
	case TT_ASK_UNLOCK: unlock(c, i); break;
	case TT_ASK_FIRST: send_answer(c, i, is_first(c, w), 0); break;
	case TT_ASK_DONE:
		send_answer(c, i, 0, 0);
		w->done = true;
		end_worker(c, i, TUTTI_LEFT);
		break;
	default: refuse(c, i, -EINVAL, "request %u is unknown", (unsigned)r->ask);
	}
	return false;
}

static bool has_request(tutti_controller *c, int i, uint64_t *seq)
{
	*seq = tt_desk_load(word_at(c, tt_seq_at(i)));
	if (*seq == worker_at(c, i)->seq || state_of(c, i) != TT_ASKS_NOT || tt_desk_state(&c->desk, i) != TUTTI_JOINED)
		return false;
	end_last_answer(c, i);
	return true;
}

static bool begins_life(tutti_controller *c, int i)
{
	uint64_t seq = tt_desk_load(word_at(c, tt_seq_at(i)));

	return seq != worker_at(c, i)->seq && request_of(c, i)->life != worker_at(c, i)->life;
}

/* The program hears of the end of a worker's life before it gets a request of the next one. */
static bool take_request_of(tutti_controller *c, int i, tutti_request *out)
{
	struct tt_worker *w = worker_at(c, i);
	uint64_t seq;

	if (w->life && begins_life(c, i))
		end_worker(c, i, TUTTI_GONE);
	if (w->untold || !has_request(c, i, &seq))
		return false;
	if (begins_life(c, i))
		begin_life(w, c, request_of(c, i)->life);
	w->seq = seq;
	return take_request(c, i, out);
}

static bool take_requests(tutti_controller *c, tutti_request *out)
{
	for (int k = 0; k < c->desk.n; k++) {
		int i = c->at;
		c->at = (c->at + 1) % c->desk.n;
		if (take_request_of(c, i, out))
			return true;
	}
	return false;
}

static void refuse_requests(tutti_controller *c)
{
	uint64_t seq;

	for (int i = 0; i < c->desk.n; i++) {
		bool waits = worker_at(c, i)->turn != 0 || worker_at(c, i)->withdrawn;
		worker_at(c, i)->turn = 0;
		if (has_request(c, i, &seq)) {
			worker_at(c, i)->seq = seq;
			waits = true;
		}
		worker_at(c, i)->withdrawn = false;
		if (waits)
			refuse(c, i, -ESHUTDOWN, "it serves no more");
	}
}

/* ---- serving ---- */

/* How the last put to a worker has ended. A worker that has not asked gets one at each look: nobody else says here that
 * the worker leaves, or closes the handle. The op of a worker whose request the program has is the answer's. */
static int touch(tutti_controller *c, int i)
{
	struct tt_worker *w = worker_at(c, i);
	int err = state_of(c, i) == TT_ASKS_NOT ? tutti_test(&w->op) : -EINPROGRESS;

	return err || w->life || w->over ? err : tutti_put(c->desk.window, i, 0, NULL, 0, &w->op);
}

static void look_who_is_gone(tutti_controller *c)
{
	for (int i = 0; i < c->desk.n; i++) {
		if (i == c->desk.me)
			continue;
		tutti_what what = tt_desk_state(&c->desk, i);
		int err = touch(c, i);
		if (err == -ESTALE || err == -ENOENT)
			what = TUTTI_LEFT; /* it has closed the handle, or not opened it in time */
		if (what != TUTTI_JOINED)
			end_worker(c, i, what);
	}
}

static bool are_all_over(tutti_controller *c)
{
	for (int i = 0; i < c->desk.n; i++)
		if (i != c->desk.me && !worker_at(c, i)->over)
			return false;
	return true;
}

static int say_no_request(const tutti_controller *c)
{
	return tt_fail(-ETIMEDOUT, "controller \"%s\": no worker has asked in time", c->desk.name);
}

/* 1: a request; 0: serving is over; -ETIMEDOUT; -EINTR; else the error that ends serving. */
static int next_request(tutti_controller *c, tutti_request *out, uint64_t deadline)
{
	int err;

	while (!atomic_load(&c->stop)) {
		if (tt_desk_wants_look(&c->desk))
			look_who_is_gone(c);
		end_waits_for_lock(c);
		if (tell_end(c, out) || take_requests(c, out) || tell_end(c, out))
			return 1;
		if (are_all_over(c))
			return 0;
		err = tt_desk_hear(&c->desk, -1, tt_min(deadline, end_of_patience(c)));
		if (err == -ETIMEDOUT && tt_now() >= deadline)
			return say_no_request(c);
		if (err && err != -ETIMEDOUT)
			return err;
	}
	return 0;
}

/* -EINTR: some answers have not come to their workers. */
static int finish_answers(tutti_controller *c)
{
	for (int i = 0; i < c->desk.n; i++)
		if (tutti_wait(&worker_at(c, i)->op, -1) == -EINTR)
			return -EINTR;
	return 0;
}

/* What was answered is there before workers can see that this is the end. A worker that has never asked may not have
 * opened the controller, and is not waited for. After -EINTR it may be called again. */
static int stop_serving(tutti_controller *c)
{
	struct tt_sentence last = tt_last_sentence();
	int err;

	for (int i = 0; i < c->desk.n; i++)
		worker_at(c, i)->withdrawn |= withdraw_request(c, i);
	for (int i = 0; i < c->desk.n; i++)
		if (!worker_at(c, i)->life)
			tutti_cancel(&worker_at(c, i)->op);
	if ((err = finish_answers(c)))
		return err;
	__atomic_store_n(word_at(c, 0), TT_SERVES_NO_MORE, __ATOMIC_RELEASE);
	refuse_requests(c);
	if ((err = finish_answers(c)))
		return err;
	c->holder = -1;
	atomic_store(&c->stop, false);
	tt_remember(last.text);
	return 0;
}

static int next_or_end(tutti_controller *c, tutti_request *out, uint64_t deadline)
{
	__atomic_store_n(word_at(c, 0), TT_SERVES, __ATOMIC_RELEASE);
	int err = next_request(c, out, deadline);

	if (err != 1 && err != -ETIMEDOUT && err != -EINTR && stop_serving(c))
		err = -EINTR;
	return err;
}

int tutti_controller_next(tutti_controller *c, tutti_request *request, int timeout_ms)
{
	int err = c ? tt_given(request, "tutti_controller_next: request") : tt_refuse_null("controller");

	if (err || (err = tt_desk_enter(&c->desk, "tutti_controller_next", true)))
		return err;
	err = next_or_end(c, request, timeout_ms < 0 ? TT_FOREVER : tt_desk_deadline(&c->desk, timeout_ms));
	tt_desk_leave(&c->desk);
	return err;
}

/* ---- answering ---- */

static int check_answer(const tutti_controller *c, int worker, int err, const void *answer, size_t bytes)
{
	static const char call[] = "tutti_controller_answer";

	if (c->desk.me != c->desk.master)
		return tt_fail(-EINVAL, "%s: rank %d of the group does not serve the controller \"%s\"", call,
		               c->desk.me, c->desk.name);
	if (worker < 0 || worker >= c->desk.n || worker == c->desk.me)
		return tt_fail(-EINVAL, "%s: rank %d is no worker of the controller \"%s\"", call, worker,
		               c->desk.name);
	if (err > 0 || (bytes && !answer))
		return tt_fail(-EINVAL, err > 0 ? "%s: err is %d, and must be 0 or a negative errno" :
		               "%s: the answer is NULL", call, err);
	if (bytes > TUTTI_REQUEST_MAX)
		return tt_fail(-EMSGSIZE, "%s: an answer has up to %d bytes, and this one %zu", call,
		               TUTTI_REQUEST_MAX, bytes);
	return tt_host_only(call, "answer", answer, bytes);
}

/* Makes this thread the one that answers the worker. */
static int claim_request(tutti_controller *c, int i)
{
	struct tt_worker *w = worker_at(c, i);

	tt_lock(c->desk.job);
	bool asks = w->asks == TT_ASKS;
	if (asks)
		w->asks = TT_IS_ANSWERED;
	tt_unlock(c->desk.job);
	if (!asks)
		return tt_fail(-EINVAL, "controller \"%s\": %s has no open request: the request was answered, or the "
		               "worker is gone, or serving has ended", c->desk.name, tt_desk_label(&c->desk, i).text);
	return 0;
}

static int answer_claimed(tutti_controller *c, int i, int err, const void *answer, size_t bytes)
{
	char *to = c->answers[i].data;

	if (tt_desk_state(&c->desk, i) != TUTTI_JOINED)
		return tt_fail(-ECONNRESET, "controller \"%s\": %s is gone, and gets no answer", c->desk.name,
		               tt_desk_label(&c->desk, i).text);
	if (bytes)
		memmove(to, answer, bytes);
	else if (err)
		bytes = (size_t)snprintf(to, TUTTI_REQUEST_MAX, "the program returned %d (%s)", err, strerror(-err));
	return send_answer(c, i, err, bytes);
}

static int answer(tutti_controller *c, int i, int err, const void *data, size_t bytes)
{
	int bad = claim_request(c, i);

	if (bad)
		return bad;
	bad = answer_claimed(c, i, err, data, bytes);
	set_asks(c, i, TT_ASKS_NOT);
	return bad;
}

int tutti_controller_answer(tutti_controller *c, int worker, int err, const void *data, size_t bytes)
{
	int bad = c ? tt_users_enter(c->desk.job, &c->desk.handle.users) : tt_refuse_null("controller");

	if (bad)
		return bad;
	if (!(bad = check_answer(c, worker, err, data, bytes)))
		bad = answer(c, worker, err, data, bytes);
	tt_users_exit(c->desk.job, &c->desk.handle.users);
	return bad;
}

/* ---- a function that answers ---- */

struct server {
	int (*function)(const tutti_request *, void *answer, size_t room, void *arg);
	void *arg;
};

static void call_function(tutti_controller *c, const struct server *s, const tutti_request *r)
{
	char *room = c->answers[r->worker].data, why[100];

	if (r->what != TUTTI_JOINED) {
		s->function(r, NULL, 0, s->arg);
		return;
	}
	room[0] = 0;
	int n = s->function(r, room, TUTTI_REQUEST_MAX, s->arg);
	if (n > TUTTI_REQUEST_MAX) {
		snprintf(why, sizeof why, "its function returned %d bytes, and an answer has up to %d", n,
		         TUTTI_REQUEST_MAX);
		answer(c, r->worker, -EMSGSIZE, why, strlen(why));
	} else if (n >= 0) {
		answer(c, r->worker, 0, room, (size_t)n);
	} else {
		answer(c, r->worker, n, room, strnlen(room, TUTTI_REQUEST_MAX));
	}
}

int tutti_controller_serve(tutti_controller *c, int (*function)(const tutti_request *, void *, size_t, void *),
                           void *arg)
{
	int err = c ? tt_given(function, "tutti_controller_serve: function") : tt_refuse_null("controller");
	const struct server s = { function, arg };
	tutti_request r;

	if (err || (err = tt_desk_enter(&c->desk, "tutti_controller_serve", true)))
		return err;
	while ((err = next_or_end(c, &r, TT_FOREVER)) == 1)
		call_function(c, &s, &r);
	tt_desk_leave(&c->desk);
	return err;
}

void tutti_controller_stop(tutti_controller *c)
{
	if (c && c->workers)
		atomic_store(&c->stop, true);
}
