/* controller.c - a worker's side: one request at a time, and the answer to it; opening and closing of both */
#include "control/control_private.h"
#include <stdlib.h>
#include <string.h>

static struct tt_answer *answer_of(tutti_controller *c) { return (struct tt_answer *)c->desk.memory; }

static int make_parts(tutti_controller *c)
{
	const struct tt_desk *d = &c->desk;

	c->holder = -1;
	c->seq = c->life = tt_calendar(); /* other numbers than those of an earlier life of this rank */
	if (d->me != d->master) {
		c->request = calloc(1, sizeof *c->request);
		return c->request ? 0 : -ENOMEM;
	}
	c->workers = calloc((size_t)d->n, sizeof *c->workers);
	c->answers = calloc((size_t)d->n, sizeof *c->answers); /* pages that nobody touches cost nothing */
	return c->workers && c->answers ? 0 : -ENOMEM;
}

static void release_controller(struct tt_handle *);

static int open_controller(tutti *group, const char *name, int controller, tutti_controller **out)
{
	static const struct tt_handle_kind kind = { .release = release_controller, .noun = "controller" };
	tutti_controller *c = calloc(1, sizeof *c);
	int err;

	if (!c)
		return tt_fail(-ENOMEM, "controller: no memory");
	bool serves = group->me == controller;
	size_t bytes = serves ? tt_request_at(group->n, group->n) : sizeof(struct tt_answer);
	if ((err = tt_desk_open(&c->desk, group, "controller", name, controller, bytes))) {
		free(c);
		return err;
	}
	if (make_parts(c)) {
		release_controller(&c->desk.handle);
		return tt_fail(-ENOMEM, "controller \"%s\": no memory for its requests", name);
	}
	tt_desk_hold(&c->desk, &kind);
	*out = c;
	return 0;
}

int tutti_controller_open(tutti *group, const char *name, int controller, tutti_controller **out)
{
	int err = tt_usable(tt_job_of(group));

	if (err || (err = tt_given(out, "tutti_controller_open: controller")) ||
	    (err = tt_users_enter(group->job, &group->handle.users)))
		return err;
	err = open_controller(group, name, controller, out);
	tt_users_exit(group->job, &group->handle.users);
	return err;
}

static void free_workers(tutti_controller *c)
{
	for (int i = 0; i < c->desk.n; i++)
		tutti_cancel(&c->workers[i].op);
	free(c->workers);
}

/* ---- a request ---- */

/* A notify that came says that an answer is whole; to this request, or to one of an earlier life of this rank. */
static bool hears_answer(tutti_controller *c, uint64_t deadline, int *err)
{
	*err = tt_desk_hear(&c->desk, c->desk.master, deadline);
	c->pending = *err || answer_of(c)->seq != c->seq;
	return !c->pending;
}

/* What it answered before it stopped is here by then. */
static int look_at_controller(tutti_controller *c, uint64_t deadline)
{
	struct tt_desk *d = &c->desk;
	int err = tt_desk_get(d, d->master, 0, &c->state, sizeof c->state, deadline);

	if (err || c->state != TT_SERVES_NO_MORE)
		return err;
	do {
		if (hears_answer(c, 0, &err))
			return 0;
	} while (!err);
	return tt_fail(-ESHUTDOWN, "controller \"%s\": %s serves no more", d->name, tt_desk_label(d, d->master).text);
}

static int await_answer(tutti_controller *c, uint64_t deadline)
{
	struct tt_desk *d = &c->desk;
	int err;

	while (!hears_answer(c, deadline, &err)) {
		if (err == -ETIMEDOUT && tt_desk_wants_look(d))
			err = look_at_controller(c, deadline);
		if (err && err != -ETIMEDOUT)
			return err;
		if (!c->pending)
			return 0;
		if (tt_now() >= deadline)
			return tt_fail(-ETIMEDOUT, "controller \"%s\": %s lives, and has not answered; it does so in "
			               "tutti_controller_serve", d->name, tt_desk_label(d, d->master).text);
	}
	return 0;
}

/* Says that request `seq` is there. Doing so twice does no harm. */
static int announce(tutti_controller *c, uint64_t deadline)
{
	struct tt_desk *d = &c->desk;

	c->pending = true;
	return tt_desk_put(d, d->master, tt_seq_at(d->me), &c->seq, sizeof c->seq, true, deadline);
}

/* A request that was given up is the controller's until it has answered it. */
static int await_earlier(tutti_controller *c, uint64_t deadline)
{
	int err = c->pending ? announce(c, deadline) : 0;

	return err || !c->pending ? err : await_answer(c, deadline);
}

/* Puts a request before the controller. */
static int place(tutti_controller *c, enum tt_ask ask, const void *data, size_t bytes, uint64_t wait, uint64_t deadline)
{
	struct tt_desk *d = &c->desk;
	struct tt_request *r = c->request;
	int err = tt_desk_settle(d, d->master, deadline);

	if (err)
		return err;
	*r = (struct tt_request){ .life = c->life, .wait = wait, .ask = ask, .bytes = (uint32_t)bytes,
		                  .gave_up = c->gave_up };
	if (bytes)
		memcpy(r->data, data, bytes);
	err = tt_desk_put(d, d->master, tt_request_at(d->n, d->me), r, offsetof(struct tt_request, data) + bytes, false,
	                  deadline);
	if (err)
		return err;
	c->seq++;
	c->gave_up = ask == TT_ASK_LOCK; /* until its answer is here */
	return announce(c, deadline);
}

/* Is it the request whose wait was interrupted? */
static bool goes_on(const tutti_controller *c, enum tt_ask ask, const void *data, size_t bytes)
{
	const struct tt_request *r = c->request;

	return c->interrupted && r->ask == ask && r->bytes == bytes && (!bytes || !memcmp(r->data, data, bytes));
}

static int send_new(tutti_controller *c, enum tt_ask ask, const void *data, size_t bytes, uint64_t wait,
                    uint64_t deadline)
{
	int err;

	c->interrupted = false;
	if ((err = await_earlier(c, deadline)))
		return err;
	err = place(c, ask, data, bytes, wait, deadline);
	c->interrupted = c->pending;
	return err ? err : await_answer(c, deadline);
}

static int send_request(tutti_controller *c, enum tt_ask ask, const void *data, size_t bytes, uint64_t wait,
                        uint64_t deadline)
{
	int err;

	if (c->finished)
		return tt_fail(-EINVAL, "controller \"%s\": this worker has said that it is done", c->desk.name);
	if (goes_on(c, ask, data, bytes))
		err = await_earlier(c, deadline);
	else
		err = send_new(c, ask, data, bytes, wait, deadline);
	c->interrupted &= err == -EINTR;
	if (!err)
		c->gave_up = false;
	return err;
}

static int read_answer(const tutti_controller *c, const struct tt_answer *a, void *to, size_t room, size_t *bytes)
{
	const struct tt_desk *d = &c->desk;
	size_t n = tt_min(a->bytes, sizeof a->data);

	if (a->err < 0)
		return tt_fail(a->err, "controller \"%s\" on %s: %.*s", d->name, tt_desk_label(d, d->master).text,
		               (int)n, a->data);
	if (n > room)
		return tt_fail(-EMSGSIZE, "controller \"%s\": its answer has %zu bytes, and there is room for %zu",
		               d->name, n, room);
	if (n)
		memcpy(to, a->data, n);
	if (bytes)
		*bytes = n;
	return a->err;
}

static int request_alone(tutti_controller *c, const char *call, enum tt_ask ask, uint64_t wait)
{
	int err = c ? tt_desk_enter(&c->desk, call, false) : tt_refuse_null("controller");

	if (err)
		return err;
	uint64_t own = tt_desk_deadline(&c->desk, -1);
	err = send_request(c, ask, NULL, 0, wait, wait < TT_FOREVER - own ? own + wait : TT_FOREVER);
	if (!err)
		err = read_answer(c, answer_of(c), NULL, 0, NULL);
	if (ask == TT_ASK_DONE && !err)
		c->finished = true;
	tt_desk_leave(&c->desk);
	return err;
}

int tutti_controller_done(tutti_controller *c)
{
	return request_alone(c, "tutti_controller_done", TT_ASK_DONE, 0);
}

int tutti_controller_first(tutti_controller *c)
{
	return request_alone(c, "tutti_controller_first", TT_ASK_FIRST, 0);
}

int tutti_controller_lock(tutti_controller *c, int timeout_ms)
{
	uint64_t wait = timeout_ms >= 0 ? (uint64_t)timeout_ms * TT_MS : c ? c->desk.timeout : 0;

	return request_alone(c, "tutti_controller_lock", TT_ASK_LOCK, wait);
}

int tutti_controller_unlock(tutti_controller *c)
{
	return request_alone(c, "tutti_controller_unlock", TT_ASK_UNLOCK, 0);
}

static int check_ask(const void *data, size_t bytes, const void *answer, size_t room)
{
	if ((bytes && !data) || (room && !answer))
		return tt_fail(-EINVAL, "tutti_controller_ask: %s is NULL", bytes && !data ? "request" : "answer");
	if (bytes > TUTTI_REQUEST_MAX)
		return tt_fail(-EMSGSIZE, "tutti_controller_ask: a request has up to %d bytes, and this one %zu",
		               TUTTI_REQUEST_MAX, bytes);
	int err = tt_host_only("tutti_controller_ask", "request", data, bytes);
	return err ? err : tt_host_only("tutti_controller_ask", "answer", answer, room);
}

int tutti_controller_ask(tutti_controller *c, const void *data, size_t bytes, void *answer, size_t room,
                         size_t *answer_bytes, int timeout_ms)
{
	int err = c ? tt_desk_enter(&c->desk, "tutti_controller_ask", false) : tt_refuse_null("controller");

	if (err)
		return err;
	if (!(err = check_ask(data, bytes, answer, room)) &&
	    !(err = send_request(c, TT_ASK_PROGRAM, data, bytes, 0, tt_desk_deadline(&c->desk, timeout_ms))))
		err = read_answer(c, answer_of(c), answer, room, answer_bytes);
	tt_desk_leave(&c->desk);
	return err;
}

/* Not while the controller may read a request that was given up: it hears then that its answer finds no handle. */
static void say_done(tutti_controller *c)
{
	int err = 0;

	while (c->pending && !err)
		hears_answer(c, 0, &err);
	if (!c->pending)
		place(c, TT_ASK_DONE, NULL, 0, 0, tt_desk_deadline(&c->desk, -1));
}

static void release_controller(struct tt_handle *h)
{
	tutti_controller *c = tt_container_of(h, tutti_controller, desk.handle);

	if (c->workers)
		free_workers(c);
	tt_desk_close(&c->desk);
	free(c->answers);
	free(c->request);
	free(c);
}

void tutti_controller_close(tutti_controller *c)
{
	struct tt_sentence last = tt_last_sentence();

	if (!c || !tt_handle_close(&c->desk.handle))
		return;
	tt_unlock(c->desk.job);
	struct tt_hook hook = tt_hook_suspend();
	if (c->request && c->seq > c->life && !c->finished)
		say_done(c);
	for (int i = 0; c->workers && i < c->desk.n; i++)
		tutti_cancel(&c->workers[i].op);
	tutti_cancel(&c->desk.op);
	tutti_window_close(c->desk.window);
	c->desk.window = NULL;
	tt_handle_free(&c->desk.handle);
	tt_hook_resume(hook);
	tt_remember(last.text);
}
