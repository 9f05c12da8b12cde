/* collective.c - what all collectives share
 *
 * A collective is a state machine, the same on every rank of its group. The group numbers its collectives in the
 * order of the calls. Small pieces travel as messages {DATA, group, number, call, tag, bytes}, which are kept here
 * if they come before this rank takes them. Large pieces are put straight into memory that the receiver has opened
 * for this call, each with a notify. Notifies of one sender come in the order of its puts, so counting them is
 * enough.
 *
 * Each message says what its sender has called, and with which arguments. Ranks that disagree notice at the first
 * message. Whichever notices sends ABORT to those that are connected, and to those at powers of two, and says which
 * rank has called what:
 *
 *      ABORT {that rank's seat} {its call}, or nothing: the sender gave the call up for another reason
 *
 * When the time of a call has passed although all ranks live, its rank gives the group up: that call and all later ones
 * fail on all ranks that have not finished them, until tutti_group_shrink. The GAVE_UP of that rank goes round: each
 * rank passes it on once. It is the answer to whatever comes later for such a call.
 *
 *      GAVE_UP {number of the call} {words}
 */
#include "collective/collective_private.h"
#include "engine/engine.h"
#include "member/member.h"
#include "operation/operation.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
	IN_FLIGHT_MAX = 1024,
	AHEAD_MAX = 4 * IN_FLIGHT_MAX, /* how far another rank may be ahead of this one */
	TAG_ABORT = 0x7fff0001,
	TAG_GAVE_UP = 0x7fff0004,
	TAG_STOP = 0x7fff0003, /* in a recall alone */
};

struct kept { /* a message that no collective has taken yet */
	struct tt_list link; /* in tt_collectives.unexpected */
	struct tt_member *member;
	int from;            /* the member's seat; -1: the group is not agreed on yet */
	unsigned slot;       /* the group's slot here, ... */
	uint32_t uid;        /* ... and its id on all ranks */
	uint32_t seq, tag;
	struct tt_coll_call call;
	size_t len;
	const void *bytes;   /* behind this struct, or inside the message that is being delivered */
};

/* ---- life ---- */

struct tt_coll *tt_coll_new(struct tutti *group, size_t size, tutti_stat_kind kind, uint64_t x, uint64_t y)
{
	struct tt_coll *c = calloc(1, size);

	if (!c) {
		tt_fail(-ENOMEM, "no memory for a collective");
		return NULL;
	}
	c->job = group->job;
	c->group = group;
	c->n = group->n;
	c->me = group->me;
	c->kind = kind;
	c->call = tt_coll_call_of(kind, x, y);
	c->culprit = -1;
	return c;
}

static void release(struct tt_coll *c)
{
	free(c->taken);
	c->taken = NULL;
	if (c->release && !c->released)
		c->release(c);
	c->released = true;
}

static void unpin(struct tt_coll *c)
{
	for (size_t i = 0; i < TT_COUNT(c->memory); i++)
		tt_unpin(c->job, c->memory[i].pinned);
}

static enum tt_pin_for use_of(size_t i) { return i ? TT_PIN_READ : TT_PIN_RECEIVE; }

/* Bytes that fit a message travel by message. */
static bool needs_pin(const struct tt_coll *c, size_t i)
{
	return c->memory[i].len > TT_COLL_SHORT && c->n > 1 && tt_pins(c->job, c->memory[i].len, use_of(i));
}

static bool needs_pins(const struct tt_coll *c)
{
	for (size_t i = 0; i < TT_COUNT(c->memory); i++)
		if (needs_pin(c, i))
			return true;
	return false;
}

static int pin(struct tt_coll *c)
{
	int err = 0;

	for (size_t i = 0; !err && i < TT_COUNT(c->memory); i++)
		if (needs_pin(c, i))
			err = tt_pin(c->job, c->memory[i].base, c->memory[i].len, use_of(i), &c->memory[i].pinned);
	return err;
}

static struct tt_pinned *find_pinned(const struct tt_coll *c, const void *at, size_t len) /* NULL: perhaps scratch */
{
	for (size_t i = 0; i < TT_COUNT(c->memory); i++)
		if (c->memory[i].pinned && tt_pinned_holds(c->memory[i].pinned, at, len))
			return c->memory[i].pinned;
	return NULL;
}

static void forget_kept(struct tt_job *job, uint32_t uid, const uint32_t *seq) /* NULL: all of the group */
{
	tt_each_of(struct kept, link, k, &tt_collectives(job)->unexpected) {
		if (k->uid != uid || (seq && k->seq != *seq))
			continue;
		tt_list_remove(&k->link);
		if (k->bytes == k + 1)
			free(k);
	}
}

/* Where a call has failed here, its ABORT or the death of a rank says so to the others. */
static void remember_call(const struct tt_coll *c)
{
	if (!c->failed && c->group->started - c->seq <= TT_CALLS)
		tt_coll_group(c->group)->ended[c->seq % TT_CALLS] = c->call;
}

static void end(struct tt_coll *c)
{
	struct tt_operation *r = c->request;

	remember_call(c);
	release(c);
	tt_timer_stop(&c->stale);
	tt_list_remove(&c->link);
	if (c->failed || c->may_leave_messages)
		forget_kept(c->job, c->group->uid, &c->seq); /* else all messages were taken */
	tt_stats_ended(&c->job->stats.own, c->kind, c->request->post.since, c->bytes, c->err);
	if (c->err == -ETIMEDOUT)
		r->why = tt_coll_group(c->group)->why;
	if (c->shadow.why && c->err == c->shadow.err)
		tt_operation_word(r, c->shadow.why);
	r->of = NULL;
	r->rank = c->culprit;
	unpin(c);
	tt_shadow_close(&c->shadow);
	tt_operation_end(r, c->err);
	if (c->room)
		tt_scratch_give_room(&c->job->scratch, c->room);
	free(c->notified_by);
	free(c);
}

static void remember_failed(struct tutti *group, uint32_t seq)
{
	struct tt_coll_group *own = tt_coll_group(group);

	if (!own->any_failed || tt_before(seq, own->failed))
		own->failed = seq;
	own->any_failed = true;
}

/* Gives up the collective's memory at once. Operations under way end by themselves, or with their peer. */
static void fail(struct tt_coll *c, int err, int culprit)
{
	if (c->failed)
		return;
	c->failed = true;
	if (c->undecided)
		tt_coll_wake_soon(c->job); /* later calls wait for its choice */
	if (err == -ENOTCONN && culprit >= 0)
		tt_news_farewell(tt_member(c->job, culprit));
	if (err == -ECONNRESET || err == -ENOTCONN) /* others may still wait for this rank; abandon() tells them */
		remember_failed(c->group, c->seq);
	c->err = err;
	c->culprit = culprit;
	tt_shadow_give_up(&c->shadow, err);
	if (!c->busy)
		release(c); /* else push() does, after advance has returned */
}

/* ---- which call ---- */

enum { REASON = 4 + 17 }; /* bytes of an ABORT that says who has called what */

static void put_call(struct tt_pack *p, const struct tt_coll_call *c)
{
	tt_put8(p, c->kind);
	tt_put64(p, c->x);
	tt_put64(p, c->y);
}

static struct tt_coll_call get_call(struct tt_pack *p)
{
	struct tt_coll_call c = { .kind = tt_get8(p) };

	c.x = tt_get64(p);
	c.y = tt_get64(p);
	return c;
}

/* ---- giving a group up ---- */

static void say_gave_up(struct tutti *g, int to)
{
	const struct tt_coll_group *own = tt_coll_group(g);

	tt_coll_answer(g, to, own->given_up_at, &(struct tt_coll_call){ 0 }, TAG_GAVE_UP, own->why, strlen(own->why));
}

/* To whom this rank passes on that a call has failed: who is connected, and those at powers of two, so that it comes to
 * all. */
static bool is_to_hear(const struct tutti *g, int to)
{
	int d = (to - g->me + g->n) % g->n, back = g->n - d;

	return d && !g->seats[to].out && tt_group_member(g, to)->state < TT_LEFT &&
	       (!(d & (d - 1)) || !(back & (back - 1)) || tt_member_linked(tt_group_member(g, to)));
}

static bool push(struct tt_coll *);

static bool is_given_up(const struct tutti *g, uint32_t seq)
{
	const struct tt_coll_group *own = tt_coll_group(g);

	return own->why && !tt_before(seq, own->given_up_at);
}

/* A call that a rank has finished keeps its result. */
static void give_up_group(struct tutti *g, uint32_t at, const char *why)
{
	struct tt_coll_group *own = tt_coll_group(g);

	if (g->retired || is_given_up(g, at))
		return;
	own->why = own->why ? own->why : tt_text_keep(g->job, why);
	own->given_up_at = at;
	remember_failed(g, at);
	for (int i = 0; i < g->n; i++)
		if (is_to_hear(g, i))
			say_gave_up(g, i);
	tt_each_of(struct tt_coll, link, c, &tt_collectives(g->job)->running) {
		if (c->group != g || c->over || tt_before(c->seq, at))
			continue;
		fail(c, -ETIMEDOUT, -1);
		tt_coll_wake_soon(g->job);
	}
}

/* Takes a GAVE_UP, and answers what comes for a call that was given up. False: the call goes on, or may still do. */
static bool settle(struct tutti *g, const struct kept *k)
{
	char why[400];

	if (k->tag == TAG_GAVE_UP) {
		snprintf(why, sizeof why, "%.*s", (int)tt_min(k->len, sizeof why - 1), (const char *)k->bytes);
		give_up_group(g, k->seq, why);
		return true;
	}
	if (!is_given_up(g, k->seq) || k->tag == TAG_STOP)
		return false;
	if (k->tag != TAG_ABORT)
		say_gave_up(g, k->from); /* the sender does not know */
	return true;
}

/* Fails for a reason that others cannot see, and tells them, so that none waits for this rank. */
static void abandon(struct tt_coll *c, int err, int culprit)
{
	uint8_t reason[REASON];
	struct tt_pack p = tt_pack(reason, sizeof reason);

	if (c->failed)
		return;
	tt_put32(&p, (uint32_t)c->odd_rank);
	put_call(&p, &c->odd);
	fail(c, err, culprit);
	for (int i = 0; i < c->n; i++)
		if (is_to_hear(c->group, i))
			tt_coll_answer(c->group, i, c->seq, &c->call, TAG_ABORT, reason, c->odd.kind ? REASON : 0);
}

int tt_coll_differs(struct tt_coll *c, int rank, const struct tt_coll_call *theirs)
{
	const struct tt_member *m = tt_group_member(c->group, rank);
	char text[400];

	if (c->failed)
		return -EBADMSG;
	c->odd = *theirs;
	c->odd_rank = rank;
	c->culprit = m->rank;
	tt_coll_compare(tt_member_label(m).text, theirs, &c->call, text, sizeof text);
	tt_operation_word(c->request, text);
	return -EBADMSG;
}

static void push_shadowed(struct tt_shadow *s) { push(tt_container_of(s, struct tt_coll, shadow)); }

static int lift_and_advance(struct tt_coll *c)
{
	int k = tt_shadow_lift(&c->shadow, push_shadowed);

	return k > 0 ? c->advance(c) : k;
}

/* Is all of it over, also for this rank's device? Others keep their results if it fails here. */
static bool is_at_end(struct tt_coll *c)
{
	int k = 1;

	if (c->pending || c->lent || !(c->over || c->failed))
		return false;
	if (!c->failed)
		k = tt_shadow_land(&c->shadow, push_shadowed);
	c->err = k < 0 ? k : c->err;
	return k && !c->shadow.moving;
}

/* True: the call has ended, and is no more. */
static bool push(struct tt_coll *c)
{
	int k = 0;

	if (c->busy)
		return false;
	c->busy = true;
	if (!c->failed && !c->over && !c->stopped)
		k = lift_and_advance(c);
	free(c->taken);
	c->taken = NULL;
	c->busy = false;
	if (k < 0)
		abandon(c, k, c->culprit);
	if (c->failed)
		release(c);
	c->over |= k > 0;
	bool ends = is_at_end(c);
	if (ends)
		end(c);
	return ends;
}

/* Goes on with a call that polls shared memory. True: the call has ended, and is no more. */
static bool look_at_memory(struct tt_coll *c) { return c->poll && c->poll(c, false) && push(c); }

void tt_coll_poll(struct tt_coll *c, bool (*how)(struct tt_coll *, bool asleep))
{
	c->job->engine.in_memory += (how != NULL) - (c->poll != NULL);
	c->poll = how;
}

static int poll(struct tt_job *job)
{
	int n = 0;

	if (!job->engine.in_memory)
		return 0;
	tt_each_of(struct tt_coll, link, c, &tt_collectives(job)->running) {
		if (!c->poll || !c->poll(c, false))
			continue;
		push(c);
		n++;
	}
	return n;
}

static int arm(struct tt_job *job)
{
	if (!job->engine.in_memory)
		return 0;
	tt_each_of(struct tt_coll, link, c, &tt_collectives(job)->running)
		if (c->poll && c->poll(c, true))
			return 1;
	return 0;
}

/* Continues all in the order of the calls, so that older ones are not starved. */
static void wake(struct tt_job *job)
{
	tt_list_each(node, &tt_collectives(job)->running)
		push(tt_container_of(node, struct tt_coll, link));
}

static void wake_late(struct tt_timer *t) { wake(tt_container_of(t, struct tt_collectives, wake)->job); }
static void wake_for(struct tt_member *m) { wake(m->job); }
void tt_coll_wake_soon(struct tt_job *job) { tt_timer_start(job, &tt_collectives(job)->wake, tt_now(), wake_late); }

static struct tt_coll *find(const struct tutti *group, uint32_t seq)
{
	tt_each_of(struct tt_coll, link, c, &tt_collectives(group->job)->running)
		if (c->group == group && c->seq == seq)
			return c;
	return NULL;
}

bool tt_coll_is_next(const struct tt_coll *c)
{
	tt_each_of(const struct tt_coll, link, other, &tt_collectives(c->job)->running) {
		if (other == c)
			return true;
		if (other->group == c->group && other->undecided && !other->failed)
			return false;
	}
	return true;
}

static uint32_t count_finished(const struct tutti *group)
{
	uint32_t first = group->started;

	tt_each_of(struct tt_coll, link, c, &tt_collectives(group->job)->running) {
		if (c->group != group || c->failed) /* one that has failed only waits for its posts to end */
			continue;
		first = c->seq;
		break;
	}
	const struct tt_coll_group *own = tt_coll_group(group);
	return own->any_failed && tt_before(own->failed, first) ? own->failed : first;
}

static int count_running(const struct tutti *group)
{
	int n = 0;

	tt_list_each(node, &tt_collectives(group->job)->running)
		n += tt_container_of(node, struct tt_coll, link)->group == group;
	return n;
}

bool tt_coll_is_idle(void *group) { return !count_running(group); }

static bool has_room(void *group) { return count_running(group) < IN_FLIGHT_MAX; }

static int check_start(struct tutti *group, bool blocking)
{
	bool full = !has_room(group);
	int err = 0;

	if (full && blocking) /* each of them has its own bound */
		err = tt_wait_for(group->job, &group->handle.users, has_room, group, TT_NEVER);
	else if (full)
		err = tt_fail(-EAGAIN, "%d collectives are under way: wait for some before starting more",
		              IN_FLIGHT_MAX);
	if (err)
		return err;
	if (group->retired)
		return tt_fail(-ESTALE, "this group has been shrunk or grown: go on with the group that came of it");
	if (is_given_up(group, group->started))
		return tt_fail(-ETIMEDOUT, "a collective of this group was given up: %s. tutti_group_shrink makes a "
		               "group that goes on", tt_coll_group(group)->why);
	return 0;
}

/* A rank that is gone takes no part in calls that it had not finished. The rank that failed first is named, rather than
 * those that left because of it or became unreachable. */
static void check_members(struct tt_coll *c)
{
	const struct tt_seat *seats = c->group->seats, *first = NULL;

	if (!c->group->outs)
		return;
	for (int i = 0; i < c->n; i++)
		if (seats[i].out && seats[i].err != -ENOTCONN && (!first || seats[i].out < first->out))
			first = &seats[i];
	if (first)
		fail(c, first->err, first->rank);
	for (int i = 0; i < c->n; i++)
		if (seats[i].out && !tt_before(c->seq, seats[i].finished))
			fail(c, -ENOTCONN, seats[i].rank);
}

/* That rank has given up, and takes its memory back: nothing may be put there any more. Why follows: a rank is gone, or
 * an ABORT comes. */
static void stop(struct tt_coll *c, int rank)
{
	if (c->over)
		return;
	c->stopped = true;
	tt_coll_gave_up(c, rank);
}

/* The sender has called the same, and fails for a third rank, or for a reason of its own. */
static void take_abort(struct tt_coll *c, const struct kept *k)
{
	struct tt_pack p = tt_unpack(k->bytes, k->len);
	uint32_t rank = tt_get32(&p);
	struct tt_coll_call odd = get_call(&p);

	if (!p.bad && rank < (uint32_t)c->n && !tt_coll_same(&odd, &c->call))
		abandon(c, tt_coll_differs(c, (int)rank, &odd), c->group->seats[rank].rank);
	else
		abandon(c, -ECONNABORTED, c->group->seats[k->from].rank);
}

/* An ABORT is passed on, because its sender may not be connected to all ranks. */
static void compare(struct tt_coll *c, const struct kept *k)
{
	int rank = c->group->seats[k->from].rank;

	if (k->tag == TAG_GAVE_UP)
		settle(c->group, k);
	else if (k->tag == TAG_STOP)
		stop(c, rank);
	else if (!tt_coll_same(&k->call, &c->call))
		abandon(c, tt_coll_differs(c, k->from, &k->call), rank);
	else if (k->tag == TAG_ABORT)
		take_abort(c, k);
}

static void compare_kept(struct tt_coll *c)
{
	tt_each_of(const struct kept, link, k, &tt_collectives(c->job)->unexpected)
		if (k->uid == c->group->uid && k->seq == c->seq)
			compare(c, k);
}

/* As it has said, to this rank or others, since the call began; or it is not reached. */
static bool is_late(const struct tt_operation *r, const struct tt_member *m)
{
	const struct tt_coll *c = r->of;

	return tt_operation_has_heard(r, m) ? !tt_before(c->seq, m->started) : m->state == TT_CONNECTING;
}

static bool is_unheard(const struct tt_operation *r, const struct tt_member *m)
{
	return !tt_operation_has_heard(r, m);
}

static void run_out_of_time(struct tt_operation *r)
{
	struct tt_coll *c = r->of;
	struct tt_label me = tt_member_label(tt_member(c->job, c->job->rank));
	char late[240], unheard[240], why[500];
	int n = tt_operation_name(r, is_late, late, sizeof late);
	bool all = !tt_operation_name(r, is_unheard, unheard, sizeof unheard);

	snprintf(why, sizeof why, "%s gave it up after %llu ms: %s%s", me.text,
	         (unsigned long long)(r->timeout / TT_MS),
	         n ? "it had not been called by " :
	         all ? "all ranks live and have called it, and wait for each other" :
	               "all ranks live, and none that it has heard of is late", n ? late : "");
	give_up_group(c->group, c->seq, why);
}

static void posted(struct tt_post *, int err);
static bool is_of(const struct tt_post *, const void *coll);

/* Nothing of a call that is given up waits for a connection any more. */
static void withdraw(struct tt_coll *c)
{
	struct tt_post *p;

	for (int i = 0; i < c->n; i++)
		while ((p = tt_post_withdraw(tt_group_member(c->group, i), is_of, c)))
			posted(p, -ECANCELED);
}

/* Tells all ranks, and evicts none. A call that has failed already waits for its memory. */
static void give_up(struct tt_operation *r, int err)
{
	struct tt_coll *c = r->of;

	if (c->over)
		return;
	if (!c->failed && err == -ETIMEDOUT)
		run_out_of_time(r);
	else
		abandon(c, err, -1);
	c->busy = true; /* what is withdrawn does not end it meanwhile */
	withdraw(c);
	c->busy = false;
	push(c);
}

static int explain(const struct tt_operation *r)
{
	if (r->rank >= 0 && r->err == -EBADMSG)
		return tt_fail(r->err, "%s: %s called another collective, or gives or expects another number of bytes",
		               r->what, tt_member_label(tt_member(r->job, r->rank)).text);
	if (r->err == -ECANCELED)
		return tt_fail(r->err, "%s: given up", r->what);
	if (r->rank >= 0 && r->err == -ECONNABORTED)
		return tt_fail(r->err, "%s: %s gave it up: it cancelled it, has no memory, or called another one",
		               r->what, tt_member_label(tt_member(r->job, r->rank)).text);
	return 0;
}

static const struct tt_operation_kind words = {
	.late = is_late, .give_up = give_up, .explain = explain,
};

static struct tt_operation *start(struct tt_coll *c, tutti_op *op, tutti_op *stack)
{
	struct tt_job *job = c->job;
	struct tt_operation *r = tt_operation_begin(job, op, stack, tt_stats_name(c->kind), -1);

	c->request = r;
	r->words = &words;
	r->of = c;
	r->group = c->group;
	r->timeout = tt_group_timeout(c->group);
	c->seq = c->group->started++;
	tt_coll_group(c->group)->ended[c->seq % TT_CALLS].kind = 0;
	tt_list_append(&tt_collectives(job)->running, &c->link);
	check_members(c);
	compare_kept(c);
	push(c);
	return r;
}

void tt_coll_free(struct tt_coll *c)
{
	release(c);
	tt_shadow_drop(&c->shadow);
	free(c->notified_by);
	free(c);
}

/* Pinning may take seconds. A thread that frees the group meanwhile waits. With the lock, on success. */
static int pin_and_lock(struct tt_coll *c)
{
	struct tt_users *users = &c->group->handle.users;
	int err, ends;

	if (!needs_pins(c))
		return tt_begin(c->job);
	if ((err = tt_users_enter(c->job, users)))
		return err;
	err = pin(c);
	if (!(ends = tt_users_lock(c->job, users)) && !err)
		return 0;
	unpin(c);
	tt_unlock(c->job);
	return ends ? ends : err;
}

/* With the lock, on success. */
static int pin_and_check(struct tt_coll *c, bool blocking)
{
	int err = pin_and_lock(c);

	if (err || !(err = check_start(c->group, blocking)))
		return err;
	unpin(c);
	tt_unlock(c->job);
	return err;
}

/* Without the lock, on failure. */
static int prepare(struct tt_coll *c)
{
	int err = c->prepare ? c->prepare(c) : 0;

	if (err) {
		unpin(c);
		tt_unlock(c->job);
	}
	return err;
}

int tt_coll_run(struct tt_coll *c, tutti_op *op)
{
	int err = tt_operation_may_begin(c->job, op);
	tutti_op stack;

	if (!err && !(err = pin_and_check(c, !op)) && !(err = prepare(c)))
		return tt_operation_return(start(c, op, &stack), !op);
	tt_coll_free(c);
	return err;
}

bool tt_coll_is_quiet(const struct tutti *g)
{
	const struct tt_collectives *all = tt_collectives(g->job);

	return tt_list_empty(&all->running) && tt_list_empty(&all->unexpected) && !g->outs && !g->retired &&
	       !tt_coll_group(g)->why;
}

void tt_coll_count_at_once(struct tutti *g, tutti_stat_kind kind, const struct tt_coll_call *call, size_t bytes,
                         uint64_t since)
{
	tt_coll_group(g)->ended[g->started++ % TT_CALLS] = *call;
	tt_operation_note(g->job, tt_stats_name(kind));
	tt_stats_ended(&g->job->stats.own, kind, since, bytes, 0);
}

int tt_coll_go_on(struct tt_coll *c)
{
	tutti_op stack;

	return tt_operation_return(start(c, NULL, &stack), true);
}

/* Messages of a rank that has left may still be taken. One that lives has lost its seat in some groups alone. */
static bool is_in_vain(const struct kept *k, const struct tt_member *m)
{
	const struct tutti *g = m->state < TT_LEFT ? tt_group_named(m->job, k->uid) : NULL;
	const struct tt_seat *s = g ? tt_group_find(g, m) : NULL;

	return m->state < TT_LEFT ? s && s->out : m->state != TT_LEFT;
}

static void end_for(struct tt_member *m)
{
	struct tt_job *job = m->job;

	tt_each_of(struct tt_coll, link, c, &tt_collectives(job)->running) {
		const struct tt_seat *s = tt_group_find(c->group, m);
		if (!s || !s->out || (tt_before(c->seq, s->finished) && !c->undecided))
			continue;
		if (look_at_memory(c)) /* in shared memory the member had done its part */
			continue;
		if (!tt_before(c->seq, s->finished))
			fail(c, s->err, m->rank);
		push(c); /* an undecided one may have waited for that member */
	}
	tt_each_of(struct kept, link, k, &tt_collectives(job)->unexpected) {
		if (k->member != m || k->bytes != k + 1 || !is_in_vain(k, m))
			continue;
		tt_list_remove(&k->link);
		free(k);
	}
}

void tt_coll_end_group(struct tutti *group)
{
	tt_each_of(struct tt_coll, link, c, &tt_collectives(group->job)->running) {
		if (c->group != group)
			continue;
		abandon(c, -ECANCELED, -1);
		push(c);
	}
	forget_kept(group->job, group->uid, NULL);
}

/* ---- messages ---- */

struct coll_post {
	struct tt_post post;
	struct tt_coll *coll;
	size_t size;                /* of this struct with its bytes */
	struct tt_key key;          /* of a put: the algorithm's copy may be freed before the transport is done */
	uint8_t bytes[];
};

static void stay_stale(struct tt_timer *t)
{
	struct tt_coll *c = tt_container_of(t, struct tt_coll, stale);

	fail(c, -ECONNABORTED, c->culprit);
	push(c);
}

void tt_coll_gave_up(struct tt_coll *c, int i)
{
	if (c->failed || c->culprit >= 0)
		return;
	c->culprit = i;
	tt_timer_start(c->job, &c->stale, tt_now() + tt_time(c->job, TT_TIME_STALE), stay_stale);
}

/* A rank that has finished the call and left needs nothing more of it. */
static bool is_done_with(const struct tt_coll *c, const struct tt_member *m)
{
	const struct tt_seat *s = m->state == TT_LEFT ? tt_group_find(c->group, m) : NULL;

	return s && s->out && tt_before(c->seq, s->finished);
}

static void posted(struct tt_post *p, int err)
{
	struct coll_post *cp = tt_container_of(p, struct coll_post, post);
	struct tt_coll *c = cp->coll;
	const struct tt_member *to = p->member;

	tt_post_count(p, err);
	tt_scratch_give(&c->job->scratch, cp, cp->size);
	c->pending--;
	if (err == -EMFILE)
		abandon(c, err, to->rank);
	else if (err && !is_done_with(c, to))
		fail(c, err, to->rank);
	push(c);
}

static bool is_of(const struct tt_post *p, const void *coll)
{
	return p->done == posted && tt_container_of(p, struct coll_post, post)->coll == coll;
}

static struct coll_post *new_post(struct tt_coll *c, size_t bytes)
{
	size_t size = sizeof(struct coll_post) + bytes;
	struct coll_post *cp = tt_scratch_take(&c->job->scratch, size);

	if (!cp) {
		abandon(c, -ENOMEM, -1);
		return NULL;
	}
	memset(cp, 0, sizeof *cp);
	cp->size = size;
	cp->coll = c;
	cp->post.done = posted;
	cp->post.since = tt_stats_start(c->job);
	c->pending++;
	return cp;
}

static void put_head(struct tt_pack *p, const struct tutti *g, int to, uint32_t seq, const struct tt_coll_call *call,
                     uint32_t tag)
{
	tt_put8(p, TT_DATA);
	tt_put16(p, g->seats[to].slot);
	tt_put32(p, g->uid);
	tt_put32(p, seq);
	put_call(p, call);
	tt_put32(p, tag);
}

static void send(struct tt_coll *c, int to, uint32_t flags, uint32_t tag, const void *head, size_t head_len,
                 const struct tt_vector *v, size_t at, size_t len)
{
	size_t all = TT_COLL_HEAD + head_len + len;
	struct coll_post *cp = new_post(c, all);

	if (!cp)
		return;
	struct tt_pack p = tt_pack(cp->bytes, all);
	put_head(&p, c->group, to, c->seq, &c->call, tag);
	tt_put_bytes(&p, head, head_len);
	tt_vector_read(v, at, p.at, len);
	cp->post.op.kind = TT_SEND;
	cp->post.op.flags = flags;
	cp->post.op.local = cp->bytes;
	cp->post.op.len = all;
	tt_post(tt_group_member(c->group, to), &cp->post);
}

void tt_coll_send_run(struct tt_coll *c, int to, uint32_t tag, const void *head, size_t head_len,
                      const struct tt_vector *v, size_t at, size_t len)
{
	send(c, to, 0, tag, head, head_len, v, at, len);
}

void tt_coll_send(struct tt_coll *c, int to, uint32_t tag, const void *bytes, size_t len)
{
	send(c, to, 0, tag, bytes, len, NULL, 0, 0);
}

void tt_coll_send_lazily(struct tt_coll *c, int to, uint32_t tag, const void *bytes, size_t len)
{
	send(c, to, TT_LAZY, tag, bytes, len, NULL, 0, 0);
}

void tt_coll_answer(struct tutti *g, int to, uint32_t seq, const struct tt_coll_call *call, uint32_t tag,
                    const void *bytes, size_t len)
{
	uint8_t head[TT_COLL_HEAD];
	struct tt_pack p = tt_pack(head, sizeof head);

	put_head(&p, g, to, seq, call, tag);
	tt_send(tt_group_member(g, to), head, sizeof head, bytes, len);
}

static struct kept *find_kept(const struct tt_coll *c, int from, uint32_t tag)
{
	tt_each_of(struct kept, link, k, &tt_collectives(c->job)->unexpected) {
		bool fits = from < 0 ? k->from >= 0 : k->from == from;
		if (fits && k->uid == c->group->uid && k->seq == c->seq && k->tag == tag)
			return k;
	}
	return NULL;
}

static const void *take(struct tt_coll *c, struct kept *k)
{
	const void *bytes = k->bytes;

	tt_list_remove(&k->link);
	free(c->taken);
	c->taken = bytes == k + 1 ? k : NULL;
	return bytes;
}

const void *tt_coll_take(struct tt_coll *c, int from, uint32_t tag, size_t len)
{
	struct kept *k = find_kept(c, from, tag);

	if (k && k->len != len)
		abandon(c, -EBADMSG, c->group->seats[from].rank);
	return k && k->len == len ? take(c, k) : NULL;
}

const void *tt_coll_take_any(struct tt_coll *c, int *from, uint32_t tag, size_t *len)
{
	struct kept *k = find_kept(c, *from, tag);

	if (!k)
		return NULL;
	*from = k->from;
	*len = k->len;
	return take(c, k);
}

/* Gives the group's early messages their seats, and frees messages of an older group in the same slot. */
static void begin_group(struct tutti *g)
{
	tt_each_of(struct kept, link, k, &tt_collectives(g->job)->unexpected) {
		const struct tt_seat *s = k->from < 0 && k->uid == g->uid ? tt_group_find(g, k->member) : NULL;
		if (s)
			k->from = (int)(s - g->seats);
		else if (k->from < 0 && k->slot == g->slot) {
			tt_list_remove(&k->link);
			free(k);
		}
	}
}

/* A call that meets nobody, as one without elements, may be over here when a rank comes to another call under its
 * number. That rank would wait for this one. */
static void answer_finished(struct tutti *g, const struct kept *k)
{
	const struct tt_coll_call *call = &tt_coll_group(g)->ended[k->seq % TT_CALLS];
	bool known = call->kind && g->started - k->seq <= TT_CALLS;

	if (known && !tt_coll_same(&k->call, call) && k->tag != TAG_ABORT && k->tag != TAG_STOP)
		tt_coll_answer(g, k->from, k->seq, call, TAG_ABORT, NULL, 0);
	else if (k->tag == TT_TAG_OFFER)
		tt_segment_answer(g, k->from, k->seq, &k->call);
	else if (k->tag == TT_TAG_HUB)
		tt_hub_answer(g, k->from, k->seq, &k->call);
}

/* Offers the message where it lies in the transport's memory. A message that is not taken at once is kept as a copy. */
static void take_message(struct tt_member *from, struct tt_pack *p)
{
	struct tt_job *job = from->job;
	struct kept *copy, k = { .member = from, .from = -1, .slot = tt_get16(p), .uid = tt_get32(p) };
	struct tt_seat *seat = NULL;

	k.seq = tt_get32(p);
	k.call = get_call(p);
	k.tag = tt_get32(p);
	struct tutti *g = p->bad ? NULL : tt_group_meant(from, k.slot, k.uid, &seat);

	if (!g)
		return;
	k.from = seat ? (int)(seat - g->seats) : -1;
	struct tt_coll *c = k.from < 0 ? NULL : find(g, k.seq);
	int32_t ahead = (int32_t)(k.seq - (k.from < 0 ? 0 : g->started));
	k.len = tt_pack_left(p);
	k.bytes = p->at;
	p->bad |= ahead > AHEAD_MAX;
	if (!p->bad && k.from >= 0 && settle(g, &k))
		return;
	if (!p->bad && !c && ahead < 0 && k.from >= 0)
		answer_finished(g, &k);
	if (p->bad || (!c && ahead < 0))
		return; /* the collective is over here */
	tt_list_append(&tt_collectives(job)->unexpected, &k.link);
	if (c) {
		compare(c, &k);
		push(c); /* may end the collective and free its messages */
	}
	if (tt_list_empty(&k.link))
		return;
	tt_list_remove(&k.link);
	if (c)
		c = find(g, k.seq);
	if ((!c && ahead < 0) || (c && k.tag == TAG_STOP))
		return;
	copy = malloc(sizeof *copy + k.len);
	if (!copy) {
		tt_member_gone(from, -ENOMEM, "no memory for a message of %s", tt_member_label(from).text);
		return;
	}
	*copy = k;
	copy->bytes = copy + 1;
	memcpy(copy + 1, k.bytes, k.len);
	tt_list_append(&tt_collectives(job)->unexpected, &copy->link);
}

/* ---- puts ---- */

struct tt_coll_loan {
	struct tt_loan loan;
	struct tt_coll *coll;       /* waits for it; NULL: nobody does */
	int rank;                   /* the holder */
	struct tt_region *region;
	size_t scratch;             /* bytes of scratch memory to give back; 0: none */
};

int tt_coll_lend(struct tt_coll *c, int rank, void *base, size_t len, struct tt_coll_loan **out)
{
	struct tt_member *m = tt_group_member(c->group, rank);
	struct tt_pinned *pinned = NULL;
	struct tt_net *net;
	int err = tt_member_reach(m);

	if (err)
		return err;
	net = tt_member_net(m);
	if (net->transport->pin && !(pinned = find_pinned(c, base, len)))
		pinned = tt_scratch_pinned(&c->job->scratch, base);
	struct tt_mem mem = pinned ? pinned->mem : tt_mem_of(base, len);
	struct tt_coll_loan *l = calloc(1, sizeof *l);
	if (!l)
		return tt_fail(-ENOMEM, "no memory for a collective");
	err = net->transport->reg(net, &mem, 1, tt_pinned_on(pinned, net), &l->region);
	if (err) {
		free(l);
		return err;
	}
	l->rank = rank;
	tt_loan_begin(&l->loan, m);
	*out = l;
	return 0;
}

void tt_coll_put_key(struct tt_pack *p, const struct tt_coll_loan *l, const void *at)
{
	tt_put_key(p, &l->region->key);
	tt_put64(p, (uintptr_t)at - (uintptr_t)l->region->mem.base);
}

static void end_loan(struct tt_coll_loan *l)
{
	struct tt_job *job = l->region->net->user;
	void *base = l->region->mem.base;

	l->region->net->transport->dereg(l->region);
	if (l->scratch)
		tt_scratch_give(&job->scratch, base, l->scratch);
	free(l);
}

static void come_back(struct tt_loan *loan)
{
	struct tt_coll_loan *l = tt_container_of(loan, struct tt_coll_loan, loan);
	struct tt_coll *c = l->coll;

	end_loan(l);
	if (!c)
		return;
	c->lent--;
	push(c);
}

/* A recall carries a message of the collective without bytes, so the recall reaches the call in any state. */
static bool recall(struct tt_coll *c, struct tt_coll_loan *l)
{
	uint8_t head[TT_COLL_HEAD];
	struct tt_pack p = tt_pack(head, sizeof head);

	put_head(&p, c->group, l->rank, c->seq, &c->call, TAG_STOP);
	l->loan.back = come_back;
	return tt_loan_recall(&l->loan, TT_COLLECTIVE_SLOT, head + 1, sizeof head - 1);
}

void tt_coll_take_back(struct tt_coll *c, struct tt_coll_loan *l, bool all, size_t scratch)
{
	l->scratch = scratch;
	if (all)
		tt_loan_end(&l->loan);
	if (all || recall(c, l)) {
		end_loan(l);
		return;
	}
	l->coll = scratch ? NULL : c;
	c->lent += !scratch;
}

static bool take_recall(struct tt_member *from, struct tt_pack *p, uint32_t number)
{
	(void)number;
	take_message(from, p);
	return true; /* a collective only puts */
}

/* The range's bit, 10 bits of the receiver's slot for the group, 12 bits of the collective's number, which
 * distinguish all that can be under way at once, and the lane. */
static uint32_t notify_value(unsigned slot, uint32_t seq, unsigned lane)
{
	return TT_NOTIFY_COLLECTIVE | slot << 13 | (seq % (4 * IN_FLIGHT_MAX)) << 1 | lane;
}

/* Partial sums in the call's room: if a net pins, the room is pinned. */
static bool is_scratch(const struct tt_coll *c, const void *at)
{
	return c->room && at && tt_scratch_pinned(&c->job->scratch, at);
}

/* Bytes that lie apart are copied, and so are those that the net needs pinned and the call has not pinned. */
int tt_coll_put(struct tt_coll *c, int to, const struct tt_key *key, uint64_t offset, const struct tt_vector *v,
                size_t at, size_t len, unsigned lane)
{
	struct tt_run r = v ? tt_vector_run(v, at, len) : (struct tt_run){ 0 };
	struct tt_pinned *pinned = find_pinned(c, r.in, len);
	bool copy = r.len < len || (!pinned && !is_scratch(c, r.in) &&
	                            len > tt_member_net(tt_group_member(c->group, to))->copy_max);
	struct coll_post *cp = new_post(c, copy ? len : 0);

	if (!cp)
		return -ENOMEM;
	if (copy)
		tt_vector_read(v, at, cp->bytes, len);
	struct tt_op *op = &cp->post.op;
	op->kind = TT_PUT;
	op->flags = TT_NOTIFY | TT_LOCAL; /* the other rank waits for the notify; nobody waits for an acknowledgement */
	op->notify = notify_value(c->group->seats[to].slot, c->seq, lane);
	op->local = copy ? (void *)cp->bytes : (void *)(uintptr_t)r.in;
	op->len = len;
	cp->post.pinned = copy ? NULL : pinned;
	if (key)
		cp->key = *key;
	op->key = key ? &cp->key : NULL;
	op->offset = offset;
	tt_post(tt_group_member(c->group, to), &cp->post);
	return 0;
}

/* Ignores a notify of a collective that is not under way or expects none, or from a rank outside its group. */
static void take_notify(struct tt_member *from, uint32_t value)
{
	tt_stats_count(&from->stats, TUTTI_STAT_CHUNK_IN, 0);
	tt_each_of(struct tt_coll, link, c, &tt_collectives(from->job)->running) {
		if (notify_value(c->group->slot, c->seq, value & 1) != value)
			continue;
		const struct tt_seat *s = tt_group_find(c->group, from);
		if (!s || !c->notified_by)
			continue;
		c->notified_by[2 * (s - c->group->seats) + (value & 1)]++;
		push(c);
		return;
	}
}

/* ---- the module ---- */

static void make(struct tt_job *job)
{
	struct tt_collectives *all = tt_collectives(job);

	all->job = job;
	all->copiers.read.without = TT_COPY_STREAM; /* other ranks read slots, best from the caches */
	tt_list_init(&all->running);
	tt_list_init(&all->unexpected);
	tt_list_init(&all->segments);
	tt_list_init(&all->hubs);
}

static void close_collectives(struct tt_job *job)
{
	struct tt_list *node;

	tt_segment_sweep(job, true);
	tt_hub_sweep(job, true);
	while ((node = tt_list_pop(&tt_collectives(job)->unexpected)))
		free(tt_container_of(node, struct kept, link));
}

static void free_group(struct tutti *g)
{
	tt_segment_close(g);
	tt_hub_close(g);
	tt_layout_free(g);
}

static void hang_up(struct tt_job *job, const struct tt_peer *peer)
{
	/* The peer's rank may have finished its part of these calls, and its memory is about to be unmapped. */
	if (job->engine.in_memory)
		tt_each_of(struct tt_coll, link, c, &tt_collectives(job)->running)
			look_at_memory(c);
	tt_segment_lost(job, peer);
	tt_hub_lost(job, peer);
}

static void take_wake(struct tt_member *from, struct tt_pack *p) /* this turn of the progress loop polls the segments */
{
	(void)from;
	(void)p;
}

static const struct tt_message messages[] = {
	{ TT_DATA, "data", take_message },
	{ TT_WAKE, "wake", take_wake },
};

const struct tt_module tt_collective_module = {
	.name = "collective",
	.slot = TT_COLLECTIVE_SLOT,
	.job_size = sizeof(struct tt_collectives),
	.group_size = sizeof(struct tt_coll_group),
	.make = make,
	.close = close_collectives,
	.poll = poll,
	.arm = arm,
	.messages = messages,
	.message_count = TT_COUNT(messages),
	.notify_first = TT_NOTIFY_COLLECTIVE,
	.notify_last = 2 * TT_NOTIFY_COLLECTIVE - 1,
	.notify = take_notify,
	.recalled = take_recall,
	.hangup = hang_up,
	.up = wake_for,
	.ended = end_for,
	.unseated = end_for,
	.group_begun = begin_group,
	.group_over = tt_coll_end_group,
	.group_freed = free_group,
	.group_finished = count_finished,
};
