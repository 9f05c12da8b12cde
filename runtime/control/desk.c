/* desk.c - a name under which one rank of a group serves the others through a window */
#include "control/desk.h"
#include "window/window.h"
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NAME_MAX_BYTES = 160 };

static int check(tutti *group, const struct tt_desk *d, const char *name)
{
	size_t len = name ? strlen(name) : 0;

	if (len < 1 || len > NAME_MAX_BYTES)
		return tt_fail(-EINVAL, "%s: a name has 1 to %d bytes", d->what, NAME_MAX_BYTES);
	if (d->master < 0 || d->master >= d->n)
		return tt_fail(-EINVAL, "%s \"%s\": rank %d must be from 0 to %d", d->what, name, d->master, d->n - 1);
	if (group->me >= d->n || d->n < 2)
		return tt_fail(-EINVAL, "%s \"%s\": needs a group of two ranks or more, this one among them", d->what,
		               name);
	return 0;
}

static int open_window(struct tt_desk *d, tutti *group, const char *name, size_t bytes)
{
	int err;

	d->name = strdup(name);
	d->rank_of = calloc((size_t)d->n, sizeof *d->rank_of);
	if (!d->name || !d->rank_of)
		return tt_fail(-ENOMEM, "%s \"%s\": no memory for %d ranks", d->what, name, d->n);
	for (int i = 0; i < d->n; i++)
		d->rank_of[i] = tt_group_to_job(group, i);
	if ((err = tt_memory_alloc(group->job, bytes, -1, (void **)&d->memory)))
		return err;
	char text[NAME_MAX_BYTES + 32];
	snprintf(text, sizeof text, "%s %s", d->what, name);
	return tutti_window_open(group, text, d->memory, bytes, &d->window);
}

int tt_desk_open(struct tt_desk *d, tutti *group, const char *what, const char *name, int master, size_t bytes)
{
	int err = tt_usable(tt_job_of(group));

	*d = (struct tt_desk){ .what = what, .master = master };
	if (err)
		return err;
	d->job = group->job;
	d->n = group->n;
	d->me = group->me;
	d->timeout = tt_group_timeout(group);
	if ((err = check(group, d, name)))
		return err;
	if ((err = open_window(d, group, name, bytes)))
		tt_desk_close(d);
	return err;
}

void tt_desk_hold(struct tt_desk *d, const struct tt_handle_kind *kind)
{
	tt_lock(d->job);
	tt_handle_hold(&d->handle, d->job, kind);
	tt_unlock(d->job);
}

void tt_desk_close(struct tt_desk *d)
{
	tutti_cancel(&d->op);
	tutti_window_close(d->window);
	tt_memory_free(d->memory);
	free(d->rank_of);
	free(d->name);
}

int tt_desk_enter(struct tt_desk *d, const char *call, bool as_master)
{
	int err = tt_usable(d->job);

	if (err)
		return err;
	if (as_master != (d->me == d->master))
		return tt_fail(-EINVAL, "%s: rank %d of the group %s the %s \"%s\"", call, d->me,
		               as_master ? "does not serve" : "serves", d->what, d->name);
	if (atomic_exchange(&d->inside, true))
		return tt_fail(-EALREADY, "%s: another thread is in a call on the %s \"%s\", which takes one at a time",
		               call, d->what, d->name);
	if ((err = tt_users_enter(d->job, &d->handle.users)))
		atomic_store(&d->inside, false);
	return err;
}

void tt_desk_leave(struct tt_desk *d)
{
	atomic_store(&d->inside, false);
	tt_users_exit(d->job, &d->handle.users);
}

static int look_if_closed(const struct tt_desk *d)
{
	int err = atomic_load(&d->inside) ? d->handle.users.err : 0; /* the close itself hears, too */

	if (err == -ESTALE)
		return tt_fail(err, "another thread of this process closes the %s \"%s\"", d->what, d->name);
	return err ? tt_fail(err, "%s \"%s\": this process leaves the job", d->what, d->name) : 0;
}

bool tt_desk_wants_look(struct tt_desk *d)
{
	uint64_t now = tt_now();

	if (d->looked && now - d->looked < TT_LOOK_MS * TT_MS)
		return false;
	d->looked = now;
	return true;
}

tutti_what tt_desk_state(const struct tt_desk *d, int rank)
{
	tt_lock(d->job);
	const struct tt_member *m = tt_member(d->job, d->rank_of[rank]);
	tutti_what what = m->state == TT_GONE ? TUTTI_GONE : m->state == TT_LEFT ? TUTTI_LEFT : TUTTI_JOINED;
	tt_unlock(d->job);
	return what;
}

struct tt_label tt_desk_label(const struct tt_desk *d, int rank)
{
	tt_lock(d->job);
	struct tt_label label = tt_member_label(tt_member(d->job, d->rank_of[rank]));
	tt_unlock(d->job);
	return label;
}

uint64_t tt_desk_deadline(const struct tt_desk *d, int timeout_ms)
{
	uint64_t now = tt_now(), wait = timeout_ms < 0 ? d->timeout : (uint64_t)timeout_ms * TT_MS;

	return wait < TT_FOREVER - now ? now + wait : TT_FOREVER;
}

int tt_desk_left_ms(uint64_t deadline, int most)
{
	uint64_t now = tt_now(), left = now < deadline ? (deadline - now + TT_MS - 1) / TT_MS : 0;

	return (int)tt_min(left, (size_t)most);
}

int tt_desk_hear(struct tt_desk *d, int rank, uint64_t deadline)
{
	int most = (int)tt_max(d->look_ms, TT_LOOK_MS), err = look_if_closed(d);
	struct tt_users *users = atomic_load(&d->inside) ? &d->handle.users : NULL; /* NULL: of the close itself */

	if (err)
		return err;
	err = tt_window_await(d->window, users, rank, TT_DESK_NOTIFY, d->heard + 1, tt_desk_left_ms(deadline, most));
	d->look_ms = err == -ETIMEDOUT ? (int)tt_min(2 * most, TT_LOOK_MOST_MS) : TT_LOOK_MS;
	d->heard += !err;
	int closed = err == -ESTALE || err == -ESHUTDOWN ? look_if_closed(d) : 0;
	return closed ? closed : err;
}

static int wait_for_op(struct tt_desk *d, int rank, uint64_t deadline, bool *ended)
{
	int err = tutti_wait(&d->op, tt_desk_left_ms(deadline, INT_MAX));

	*ended = err != -EINPROGRESS && err != -EINTR;
	return err != -EINPROGRESS ? err : tt_fail(-ETIMEDOUT, "%s \"%s\": %s has not opened it, or does not answer",
	                                           d->what, d->name, tt_desk_label(d, rank).text);
}

int tt_desk_finish(struct tt_desk *d, int rank, uint64_t deadline)
{
	bool ended;

	return wait_for_op(d, rank, deadline, &ended);
}

int tt_desk_settle(struct tt_desk *d, int rank, uint64_t deadline)
{
	bool ended;
	int err = wait_for_op(d, rank, deadline, &ended);

	return ended ? 0 : err;
}

int tt_desk_put(struct tt_desk *d, int rank, size_t at, const void *src, size_t bytes, bool notify, uint64_t deadline)
{
	int err = tt_desk_settle(d, rank, deadline);

	if (err)
		return err;
	err = notify ? tutti_put_notify(d->window, rank, at, src, bytes, TT_DESK_NOTIFY, &d->op) :
	               tutti_put(d->window, rank, at, src, bytes, &d->op);
	return err ? err : tt_desk_finish(d, rank, deadline);
}

int tt_desk_get(struct tt_desk *d, int rank, size_t at, void *dst, size_t bytes, uint64_t deadline)
{
	int err = tt_desk_settle(d, rank, deadline);

	if (err || (err = tutti_get(d->window, rank, at, dst, bytes, &d->op)))
		return err;
	return tt_desk_finish(d, rank, deadline);
}
