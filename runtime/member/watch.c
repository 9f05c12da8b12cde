/* watch.c - tells programs which ranks have joined, left and gone: a queue of changes, a descriptor that is readable
 * while the queue holds any, and a callback, which the background thread makes without the lock. */
#include "engine/engine.h"
#include "member/member_private.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

enum { CHANGES_MAX = 256 };

struct tt_watch {
	int fd;
	unsigned first, count;
	bool lossy;            /* some were dropped since it was last empty */
	void (*changed)(const tutti_change *, void *);
	void *arg;
	tutti_change changes[CHANGES_MAX];
};

static void drop_oldest(struct tt_watch *w)
{
	if (!w->lossy)
		tt_log(TT_WARN, "more than %d changes of the job were not taken: the oldest are dropped", CHANGES_MAX);
	w->lossy = true;
	w->first = (w->first + 1) % CHANGES_MAX;
	w->count--;
}

void tt_watch_tell(struct tt_job *job, const struct tt_member *m, tutti_what what)
{
	struct tt_watch *w = tt_members(job)->watch;
	uint64_t one = 1;
	tutti_change *c;

	if (!w)
		return;
	if (w->count == CHANGES_MAX)
		drop_oldest(w);
	c = &w->changes[(w->first + w->count) % CHANGES_MAX];
	*c = (tutti_change){ .rank = m->rank, .what = what };
	if (what != TUTTI_JOINED) {
		c->err = m->err;
		snprintf(c->why, sizeof c->why, "%s", m->why);
	}
	if (!w->count++)
		(void)!write(w->fd, &one, sizeof one);
	if (w->changed)
		tt_errand(job);
}

static bool take(struct tt_watch *w, tutti_change *to)
{
	uint64_t drain;

	if (!w->count)
		return false;
	*to = w->changes[w->first];
	w->first = (w->first + 1) % CHANGES_MAX;
	if (!--w->count) {
		w->lossy = false;
		(void)!read(w->fd, &drain, sizeof drain);
	}
	return true;
}

void tt_watch_call(struct tt_job *job)
{
	struct tt_watch *w = tt_members(job)->watch;
	tutti_change c;

	while (w && w->changed && !job->engine.stopping && take(w, &c)) {
		void (*changed)(const tutti_change *, void *) = w->changed;
		void *arg = w->arg;
		tt_unlock(job);
		changed(&c, arg);
		tt_lock(job);
	}
}

void tt_watch_free(struct tt_job *job)
{
	struct tt_watch *w = tt_members(job)->watch;

	if (!w)
		return;
	close(w->fd);
	free(w);
	tt_members(job)->watch = NULL;
}

/* Ranks that ended earlier are changes, too, and so are those that have joined since and are in no group: none is
 * missed between joining and watching. */
static void tell_earlier(struct tt_job *job, const struct tt_member *m)
{
	if (m->state >= TT_LEFT)
		tt_watch_tell(job, m, m->state == TT_LEFT ? TUTTI_LEFT : TUTTI_GONE);
	else if (m->outside && *m->addr) /* else its news come later */
		tt_watch_tell(job, m, TUTTI_JOINED);
}

static int open_watch(struct tt_job *job)
{
	struct tt_watch *w = calloc(1, sizeof *w);

	if (!w)
		return tt_fail(-ENOMEM, "no memory to watch a job");
	int fd = w->fd = tt_eventfd("a watch");
	if (fd < 0) {
		free(w);
		return fd;
	}
	tt_members(job)->watch = w;
	for (int i = 0; i < job->size; i++)
		tell_earlier(job, tt_member(job, i));
	return 0;
}

int tutti_group_watch(tutti *at, void (*changed)(const tutti_change *, void *), void *arg)
{
	struct tt_job *job = tt_job_of(at);
	int err;

	if ((err = tt_usable(job)) || (err = tt_begin(job)))
		return err;
	if (!tt_members(job)->watch)
		err = open_watch(job);
	if (!err) {
		tt_members(job)->watch->changed = changed;
		tt_members(job)->watch->arg = arg;
		tt_errand(job); /* for changes that were there before */
		err = tt_members(job)->watch->fd;
	}
	tt_unlock(job);
	return err;
}

int tutti_group_next(tutti *at, tutti_change *change)
{
	struct tt_job *job = tt_job_of(at);
	int n;

	if ((n = tt_is_mine(job)) || (n = tt_given(change, "tutti_group_next: change")) || (n = tt_begin(job)))
		return n;
	if (!tt_members(job)->watch)
		n = tt_fail(-EINVAL, "nobody watches this job: call tutti_group_watch first");
	else
		n = take(tt_members(job)->watch, change);
	tt_unlock(job);
	return n;
}
