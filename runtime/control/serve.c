/* serve.c - the controller: takes requests one by one, calls the program's function, keeps the lock.
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
static void send_answer(tutti_controller *c, int i, int err, size_t bytes)
{
	struct tt_worker *w = worker_at(c, i);

	w->answer->seq = w->seq;
	w->answer->err = err;
	w->answer->bytes = (uint32_t)bytes;
	tutti_put_notify(c->desk.window, i, 0, w->answer, offsetof(struct tt_answer, data) + bytes, TT_DESK_NOTIFY,
	                 &w->op);
}

/* Only a worker that has heard its last answer asks again: the op is about to end, if it has not. */
static bool may_answer(tutti_controller *c, int i)
{
	struct tt_worker *w = worker_at(c, i);

	if (!w->answer)
		w->answer = malloc(sizeof *w->answer);
	if (!w->answer) {
		tt_log(TT_ERROR, "controller \"%s\": no memory to answer %s", c->desk.name,
		       tt_desk_label(&c->desk, i).text);
		return false;
	}
	if (tutti_wait(&w->op, TT_LOOK_MS) == -EINPROGRESS)
		tutti_cancel(&w->op);
	return true;
}

static void TT_FORMAT(4, 5) refuse(tutti_controller *c, int i, int err, const char *fmt, ...)
{
	struct tt_worker *w = worker_at(c, i);
	va_list args;

	va_start(args, fmt);
	int n = vsnprintf(w->answer->data, sizeof w->answer->data, fmt, args);
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

static void end_waits_for_lock(tutti_controller *c)
{
	uint64_t now = tt_now();

	for (int i = 0; i < c->desk.n; i++)
		if (worker_at(c, i)->turn && now >= worker_at(c, i)->until)
			refuse_lock(c, i);
}

/* ---- requests ---- */

static int call_program(tutti_controller *c, int i, tutti_what what, const void *data, size_t bytes, void *answer,
                        size_t room)
{
	tutti_request r = { .worker = i, .what = what, .data = data, .bytes = bytes };

	return c->function(&r, answer, room, c->arg);
}

static void ask_program(tutti_controller *c, int i, const struct tt_request *r)
{
	struct tt_answer *a = worker_at(c, i)->answer;
	size_t bytes = r->bytes; /* of another process's making */

	a->data[0] = 0;
	int n = call_program(c, i, TUTTI_JOINED, r->data, tt_min(bytes, sizeof r->data), a->data, sizeof a->data);
	if (n > (int)sizeof a->data)
		refuse(c, i, -EMSGSIZE, "its function returned %d bytes, and an answer has up to %zu", n,
		       sizeof a->data);
	else if (n >= 0)
		send_answer(c, i, 0, (size_t)n);
	else if (!a->data[0])
		refuse(c, i, n, "its function returned %d (%s)", n, strerror(-n));
	else
		send_answer(c, i, n, strnlen(a->data, sizeof a->data));
}

/* Its end, as the program and the lock see it. */
static void end_worker(tutti_controller *c, int i, tutti_what what)
{
	struct tt_worker *w = worker_at(c, i);

	if (w->over)
		return;
	w->over = true;
	free_lock_of(c, i);
	call_program(c, i, what, NULL, 0, NULL, 0);
}

/* Each worker's k-th call, for each k. One that came later, or again, goes on with the others' k. */
static bool is_first(tutti_controller *c, struct tt_worker *w)
{
	bool first = w->firsts == c->firsts;

	w->firsts++;
	c->firsts += first;
	return first;
}

static void begin_life(tutti_controller *c, int i, uint64_t life)
{
	struct tt_worker *w = worker_at(c, i);

	if (w->life) {
		end_worker(c, i, TUTTI_GONE);
		w->firsts = c->firsts;
	}
	w->life = life;
	w->over = w->done = false;
}

static void take_request(tutti_controller *c, int i)
{
	struct tt_worker *w = worker_at(c, i);
	const struct tt_request *r = request_of(c, i);

	if (r->life != w->life)
		begin_life(c, i, r->life);
	if (r->gave_up)
		free_lock_of(c, i);
	if (w->done) {
		refuse(c, i, -EINVAL, "this worker has said that it is done");
		return;
	}
	switch (r->ask) {
	case TT_ASK_PROGRAM: ask_program(c, i, r); break;
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
}

static bool has_request(tutti_controller *c, int i, uint64_t *seq)
{
	*seq = tt_desk_load(word_at(c, tt_seq_at(i)));
	return *seq != worker_at(c, i)->seq && tt_desk_state(&c->desk, i) == TUTTI_JOINED && may_answer(c, i);
}

static void take_requests(tutti_controller *c)
{
	uint64_t seq;

	for (int i = 0; i < c->desk.n && !atomic_load(&c->stop); i++)
		if (has_request(c, i, &seq)) {
			worker_at(c, i)->seq = seq;
			take_request(c, i);
		}
}

static void refuse_requests(tutti_controller *c)
{
	uint64_t seq;

	for (int i = 0; i < c->desk.n; i++) {
		bool waits = worker_at(c, i)->turn != 0;
		worker_at(c, i)->turn = 0;
		if (has_request(c, i, &seq)) {
			worker_at(c, i)->seq = seq;
			waits = true;
		}
		if (waits)
			refuse(c, i, -ESHUTDOWN, "it serves no more");
	}
}

/* ---- serving ---- */

/* How the last put to a worker has ended. A worker that has not asked gets one at each look: nobody else says here that
 * the worker leaves, or closes the handle. */
static int touch(tutti_controller *c, int i)
{
	struct tt_worker *w = worker_at(c, i);
	int err = tutti_test(&w->op);

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

static int serve(tutti_controller *c)
{
	int err = 0;

	while ((!err || err == -ETIMEDOUT) && !atomic_load(&c->stop)) {
		take_requests(c);
		end_waits_for_lock(c);
		if (tt_desk_wants_look(&c->desk))
			look_who_is_gone(c);
		if (are_all_over(c))
			return 0;
		err = tt_desk_hear(&c->desk, -1, TT_FOREVER);
	}
	return err == -ETIMEDOUT ? 0 : err;
}

/* What was answered is there before workers can see that this is the end. One that has never asked may not have opened
 * the controller, and is not waited for. */
static void stop_serving(tutti_controller *c)
{
	struct tt_sentence last = tt_last_sentence();

	for (int i = 0; i < c->desk.n; i++)
		worker_at(c, i)->life ? tutti_wait(&worker_at(c, i)->op, -1) : tutti_cancel(&worker_at(c, i)->op);
	__atomic_store_n(word_at(c, 0), TT_SERVES_NO_MORE, __ATOMIC_RELEASE);
	refuse_requests(c);
	for (int i = 0; i < c->desk.n; i++)
		tutti_wait(&worker_at(c, i)->op, -1);
	c->holder = -1;
	atomic_store(&c->stop, false);
	tt_remember(last.text);
}

int tutti_controller_serve(tutti_controller *c, int (*function)(const tutti_request *, void *, size_t, void *),
                           void *arg)
{
	int err = c ? tt_given(function, "tutti_controller_serve: function") : tt_refuse_null("controller");

	if (err || (err = tt_desk_enter(&c->desk, "tutti_controller_serve", true)))
		return err;
	c->function = function;
	c->arg = arg;
	__atomic_store_n(word_at(c, 0), TT_SERVES, __ATOMIC_RELEASE);
	err = serve(c);
	stop_serving(c);
	tt_desk_leave(&c->desk);
	return err;
}

void tutti_controller_stop(tutti_controller *c)
{
	if (c && c->workers)
		atomic_store(&c->stop, true);
}
