/* handle.c - what the program holds of a job, and closes by itself: groups, windows, tables, gossips, controllers, ...
 *
 *      open ---- tutti_..._close ----> freed          waits for the calls of other threads that are inside
 *        \
 *         `---- tutti_leave -> orphaned ---- tutti_..._close ----> freed
 *
 * An orphaned handle has nothing of the job any more: calls with the handle end with -ESHUTDOWN. The memory of the
 * job's own struct stays as long as one of its handles, so calls look there without a lock. */
#include "engine/engine.h"

int tt_begin(struct tt_job *job)
{
	tt_lock(job);
	if (!job->left)
		return 0;
	tt_unlock(job);
	return tt_refuse_job(job);
}

void tt_handle_hold(struct tt_handle *h, struct tt_job *job, const struct tt_handle_kind *kind)
{
	*h = (struct tt_handle){ .job = job, .kind = kind, .users.noun = kind->noun };
	tt_list_append(&job->handles, &h->link);
	job->held++;
}

static int say_ended(const struct tt_users *users)
{
	if (users->err != -ESTALE)
		return tt_fail(users->err, "another thread of this process leaves the job of this call");
	return tt_fail(users->err, "another thread of this process closes the %s of this call",
	               users->noun ? users->noun : "handle");
}

int tt_users_enter(struct tt_job *job, struct tt_users *users)
{
	int err = tt_usable(job);

	if (err || (err = tt_begin(job)))
		return err;
	if (users->err) {
		err = say_ended(users);
	} else {
		users->count++;
		job->inside++;
	}
	tt_unlock(job);
	return err;
}

int tt_users_lock(struct tt_job *job, struct tt_users *users)
{
	tt_lock(job);
	users->count--;
	job->inside--;
	job->engine.news |= users->err || job->ending;
	return users->err ? say_ended(users) : 0;
}

void tt_users_exit(struct tt_job *job, struct tt_users *users)
{
	tt_lock(job);
	users->count--;
	job->inside--;
	job->engine.news |= users->err || job->ending;
	tt_unlock(job);
}

/* A center opens a table inside. */
int tt_opening_enter(struct tt_job *job, struct tt_users *users, struct tt_users **outer)
{
	int err = tt_users_enter(job, users);

	if (err)
		return err;
	*outer = tt_hook.opening;
	tt_hook.opening = users;
	return 0;
}

void tt_opening_exit(struct tt_job *job, struct tt_users *users, struct tt_users *outer)
{
	tt_hook.opening = outer;
	tt_users_exit(job, users);
}

int tt_begin_pinned(struct tt_job *job, struct tt_users *users, const void *base, size_t len, enum tt_pin_for use,
                    const struct tt_gpu_range *known, struct tt_pinned **out)
{
	int err, ends;

	*out = NULL;
	if (!tt_pins(job, len, use))
		return tt_begin(job);
	if ((err = tt_users_enter(job, users)))
		return err;
	err = tt_pin_user(job, base, len, use, known, out);
	if (!(ends = tt_users_lock(job, users)) && !err)
		return 0;
	tt_unpin(job, *out);
	tt_unlock(job);
	return ends ? ends : err;
}

/* With the lock. True: the job was left, and this was the last that the program held of it. */
static bool take_out(struct tt_handle *h)
{
	tt_list_remove(&h->link);
	return !--h->job->held && h->job->gone;
}

static void free_orphan(struct tt_handle *h)
{
	struct tt_job *job = h->job;

	tt_lock(job);
	bool last = take_out(h);
	tt_unlock(job);
	h->kind->release(h);
	if (last)
		tt_job_retire(job);
}

static bool is_alone(void *h) { return !((struct tt_handle *)h)->users.count; }

bool tt_handle_close(struct tt_handle *h)
{
	struct tt_job *job = h->job;

	if (!*job->here) { /* the job was left, or this is a fork's child, to which nothing of the job belongs */
		if (atomic_load(&h->orphaned))
			free_orphan(h);
		return false;
	}
	tt_lock(job);
	if (job->left) {
		h->closed = true;
		bool orphaned = atomic_load(&h->orphaned);
		tt_unlock(job);
		if (orphaned)
			free_orphan(h);
		return false;
	}
	job->inside++;
	h->users.err = -ESTALE;
	job->engine.news = true;
	tt_wait_until(job, is_alone, h, TT_NEVER); /* what waits there is woken; operations have bounds of their own */
	return true;
}

void tt_handle_free(struct tt_handle *h)
{
	struct tt_job *job = h->job;

	tt_lock(job);
	job->inside--;
	job->engine.news |= job->ending;
	take_out(h);
	tt_unlock(job);
	h->kind->release(h);
}

void tt_handles_lose_group(const struct tutti *group, struct tt_job *job)
{
	tt_each_of(struct tt_handle, link, h, &job->handles)
		if (h->group && *h->group == group)
			*h->group = NULL;
}

void tt_handles_shut(struct tt_job *job)
{
	tt_each_of(struct tt_handle, link, h, &job->handles)
		if (!h->users.err)
			h->users.err = -ESHUTDOWN;
	job->engine.news = true;
}

static struct tt_handle *newest(struct tt_job *job) /* that is not orphaned. With the lock */
{
	struct tt_list *node = job->handles.prev;

	for (; node != &job->handles; node = node->prev)
		if (!tt_container_of(node, struct tt_handle, link)->orphaned)
			return tt_container_of(node, struct tt_handle, link);
	return NULL;
}

/* The newest first: a controller before its window. */
void tt_handles_orphan(struct tt_job *job)
{
	struct tt_handle *h;

	tt_lock(job);
	while ((h = newest(job))) {
		tt_unlock(job);
		if (h->kind->orphan)
			h->kind->orphan(h);
		tt_lock(job);
		atomic_store(&h->orphaned, true);
		if (!h->closed)
			continue;
		tt_unlock(job);
		free_orphan(h);
		tt_lock(job);
	}
	tt_unlock(job);
}
