/* composite.c - an operation that is made of others */
#include "operation/operation.h"
#include <stdio.h>
#include <string.h>

static bool never_waits_for(const struct tt_operation *r, int rank)
{
	(void)r, (void)rank;
	return false;
}

/* Another number at each beat, so a composite never times out. Its parts have time limits of their own. */
static uint64_t progress(const struct tt_operation *r) { return tt_operations(r->job)->clock; }

static bool is_part(const struct tt_composite *c, const struct tt_operation *r)
{
	return c->n && (const tutti_op *)r >= c->parts && (const tutti_op *)r < c->parts + c->n;
}

/* A collective that misses a rank fails by itself, on all ranks. After another error this rank gives the other parts
 * up, so that the other ranks need not wait for them. */
static bool ends_by_itself(int err) { return err == -ECONNRESET || err == -ENOTCONN || err == -ETIMEDOUT; }

void tt_composite_end(struct tt_composite *c, int err)
{
	struct tt_operation *r = c->op;

	if (!r)
		return;
	c->err = err;
	c->op = NULL;
	c->due = false;
	tt_timer_stop(&c->timer);
	tt_list_remove(&c->link);
	if (*c->why.text)
		tt_operation_word(r, c->why.text);
	tt_operation_end(r, err);
}

/* An errand that is due runs also if the composite is given up: others wait for the parts that the errand begins, and
 * only parts that have begun can tell them. */
static void go_on(struct tt_composite *c)
{
	if (c->running || c->due || c->busy || !c->op)
		return;
	if (c->err || !c->next)
		tt_composite_end(c, c->err);
	else
		c->next(c);
}

static void note_failure(struct tt_composite *c, const struct tt_operation *part)
{
	struct tt_sentence last = tt_last_sentence();

	if (!part->err || c->err)
		return;
	c->err = part->err;
	tt_operation_explain(part);
	c->why = tt_last_sentence();
	tt_remember(last.text);
}

static void give_parts_up(struct tt_composite *c, int err)
{
	for (int i = 0; i < c->n && c->running; i++) {
		struct tt_operation *part = (struct tt_operation *)&c->parts[i];
		if (!part->ended && !part->given_up)
			tt_operation_give_up(part, err);
	}
}

static void expire(struct tt_timer *t)
{
	struct tt_composite *c = tt_container_of(t, struct tt_composite, timer);

	if (c->err)
		give_parts_up(c, -ECANCELED);
	else
		go_on(c);
}

/* The others are given up later: the caller is in the middle of this part's end. */
static void end_part(struct tt_composite *c, const struct tt_operation *part)
{
	c->running--;
	note_failure(c, part);
	if (c->err && c->running && !ends_by_itself(c->err))
		tt_timer_start(c->job, &c->timer, tt_now(), expire);
	go_on(c);
}

void tt_composite_part_ended(struct tt_operation *part)
{
	tt_each_of(struct tt_composite, link, c, &tt_operations(part->job)->composites)
		if (is_part(c, part)) {
			end_part(c, part);
			return;
		}
}

static void give_up(struct tt_operation *r, int err)
{
	struct tt_composite *c = r->of;

	c->err = c->err ? c->err : err;
	give_parts_up(c, err);
	go_on(c);
}

static const struct tt_operation_kind composite = {
	.waits_for = never_waits_for, .progress = progress, .give_up = give_up,
};

static void count_parts(struct tt_composite *c, int n)
{
	c->n = n;
	c->running = 0;
	for (int i = 0; i < n; i++) {
		const struct tt_operation *part = (const struct tt_operation *)&c->parts[i];
		if (part->ended)
			note_failure(c, part);
		else
			c->running++;
	}
	if (c->err)
		give_parts_up(c, -ECANCELED);
}

void tt_composite_begin(struct tt_composite *c, struct tt_job *job, tutti_op *op, const char *what, tutti_op *parts,
                        int n)
{
	tt_lock(job);
	c->job = job;
	c->serial = job->serial;
	c->what = what;
	c->parts = parts;
	c->err = 0;
	*c->why.text = 0;
	c->started = true;
	c->op = tt_operation_begin(job, op, NULL, what, -1);
	c->op->words = &composite;
	c->op->of = c;
	c->op->timeout = TT_FOREVER;
	tt_list_append(&tt_operations(job)->composites, &c->link);
	count_parts(c, n);
	go_on(c);
	tt_unlock(job);
}

int tt_composite_idle(struct tt_composite *c, const char *call)
{
	int err = 0;

	if (!c->started)
		return 0;
	tt_lock(c->job);
	if (c->op || !c->err)
		err = tt_fail(-EALREADY, "%s: a started %s %s", call, c->what,
		              c->op ? "runs: wait for its tutti_op, then apply it" : "has ended: apply it first");
	else
		c->started = false;
	tt_unlock(c->job);
	return err;
}

int tt_composite_take(struct tt_composite *c, const char *call)
{
	if (!c->started)
		return tt_fail(-EINVAL, "%s: nothing was started", call);
	tt_lock(c->job);
	int err = c->op ? -EINPROGRESS : c->err;
	c->started = c->op != NULL;
	tt_unlock(c->job);
	if (err == -EINPROGRESS)
		return tt_fail(err, "%s: the started %s runs: wait for its tutti_op first", call, c->what);
	return err ? tt_fail(err, "%s: %s", c->what, *c->why.text ? c->why.text : strerror(-err)) : 0;
}

static bool is_not_busy(void *c) { return !((struct tt_composite *)c)->busy; }

void tt_composite_close(struct tt_composite *c)
{
	if (!c->started || !tt_job_find(c->serial)) /* a job ends what runs before it is left */
		return;
	tt_lock(c->job);
	if (c->op)
		tt_operation_cancel(c->op);
	tt_wait_until(c->job, is_not_busy, c, TT_NEVER);
	tt_unlock(c->job);
	c->started = false;
}

/* This rank leaves, and the background thread, which runs errands, ends. A composite whose errand runs ends behind the
 * errand. */
static void stop_composite(struct tt_composite *c)
{
	c->due = false;
	if (!c->err) {
		c->err = -ESHUTDOWN;
		snprintf(c->why.text, sizeof c->why.text, "this process leaves the job");
	}
	if (!c->busy)
		tt_composite_end(c, c->err);
}

static struct tt_composite *find_running(struct tt_job *job) /* NULL: all have ended, or run an errand */
{
	tt_each_of(struct tt_composite, link, c, &tt_operations(job)->composites)
		if (!c->busy || !c->err)
			return c;
	return NULL;
}

void tt_composites_stop(struct tt_job *job)
{
	struct tt_composite *c;

	tt_lock(job);
	while ((c = find_running(job)))
		stop_composite(c);
	tt_unlock(job);
}

/* ---- errands ---- */

void tt_composite_pause(struct tt_composite *c)
{
	tt_lock(c->job);
	tt_progress(c->job);
	tt_unlock(c->job);
}

void tt_composite_errand(struct tt_composite *c)
{
	c->due = true;
	tt_errand(c->job);
}

static void run_errand(struct tt_composite *c)
{
	struct tt_job *job = c->job;
	int n;

	c->due = false;
	c->busy = true;
	c->n = 0; /* count_parts() counts the parts that the errand begins */
	tt_unlock(job);
	n = c->errand(c);
	tt_lock(job);
	c->busy = false;
	job->engine.news = true;
	if (n < 0 && !c->err) {
		c->err = n;
		c->why = tt_last_sentence();
	}
	count_parts(c, n > 0 ? n : 0);
	if (n > 0)
		go_on(c);
	else
		tt_composite_end(c, n ? c->err : 0);
}

void tt_composites_run(struct tt_job *job)
{
	bool some;

	do {
		some = false;
		tt_each_of(struct tt_composite, link, c, &tt_operations(job)->composites)
			if (c->due) {
				run_errand(c);
				some = true;
				break; /* the list may be another one */
			}
	} while (some);
}
