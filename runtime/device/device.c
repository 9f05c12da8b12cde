/* device.c - the room's module: which ops it moves, and when they end */
#include "device/device_private.h"
#include <stdlib.h>
#include <unistd.h>

enum { COPY_NS = 10000, FENCE_NS = 100000, LEFT_NS = 10000000 }; /* between two looks, where nothing wakes a sleeper */

struct tt_device_peer *tt_device_peer(struct tt_member *m)
{
	struct tt_device_peer *p = tt_member_make_own(m, TT_DEVICE_SLOT, sizeof *p);

	if (p && !p->puts.next) {
		tt_list_init(&p->puts);
		tt_list_init(&p->landed);
	}
	return p;
}

const char *tt_device_why(const struct tt_job *job) { return tt_devices(job)->why; }

/* ---- the end ---- */

static void free_transfer(struct tt_transfer *t)
{
	free(t->why);
	free(t);
}

static void finish(struct tt_transfer *t)
{
	struct tt_devices *d = tt_devices(t->job);
	struct tt_post *p = t->post;
	bool runs = tt_transfer_runs(t);

	if (runs)
		tt_transfer_leave(t);
	d->why = t->why;
	if (p)
		tt_op_finish(&p->op, t->err);
	d->why = NULL;
	if (!runs)
		free_transfer(t);
}

void tt_device_notified(struct tt_post *notify, int err)
{
	struct tt_transfer *t = tt_container_of(notify, struct tt_transfer, notify);

	tt_list_remove(&t->link);
	t->err = err;
	finish(t);
}

static void end_transfer(struct tt_transfer *t)
{
	struct tt_device_peer *peer = t->member ? tt_device_peer(t->member) : NULL;
	bool notifies = t->notify.done != NULL;

	if (!tt_transfer_runs(t))
		tt_import_done(t);
	if (t->left) {
		free_transfer(t);
		return;
	}
	tt_staged_done(t);
	if (peer && tt_transfer_has_peer(t)) {
		tt_say_end(t);
		peer->served -= t->serves;
		peer->asked -= !t->serves && t->started;
	}
	if (notifies && t->err)
		tt_order_withdraw(t->member, &t->notify);
	else if (notifies)
		tt_list_append(&peer->landed, &t->link);
	bool put = !tt_list_empty(&t->put);
	if (put && notifies && !t->err) {
		tt_order_landed(t); /* the notify may go */
		return;
	}
	if (put)
		tt_order_landed(t);
	finish(t);
}

static int end_all(struct tt_devices *d)
{
	struct tt_list *node;
	int n = 0;

	for (; (node = tt_list_pop(&d->ending)); n++)
		end_transfer(tt_container_of(node, struct tt_transfer, link));
	return n;
}

/* ---- ops ---- */

static struct tt_side local_side(const struct tt_post *p)
{
	const struct tt_pinned *pinned = p->pinned;

	if (!tt_post_is_device(p))
		return (struct tt_side){ .kind = TT_SIDE_HOST, .at = p->op.local };
	return (struct tt_side){ .kind = TT_SIDE_DEVICE, .at = p->op.local, .gpu = pinned->mem.gpu,
		                 .fence = pinned->fence };
}

/* The op's own NOTIFY follows in an empty PUT. */
static void begin_put(struct tt_transfer *t)
{
	const struct tt_op *op = &t->post->op;

	tt_order_begin(t);
	if (!(op->flags & TT_NOTIFY))
		return;
	t->notify.done = tt_device_notified;
	t->notify.member = t->member;
	t->notify.op.kind = TT_PUT;
	t->notify.op.flags = op->flags;
	t->notify.op.notify = op->notify;
	tt_order_hold(t->member, &t->notify);
}

static void end_op(struct tt_job *job, struct tt_post *p, int err)
{
	p->op.err = err;
	tt_queue_push(&job->ended, &p->op);
}

static void move(struct tt_member *m, struct tt_post *p)
{
	struct tt_op *op = &p->op;
	struct tt_side here = local_side(p);
	struct tt_side there = { .kind = tt_key_is_staged(op->key) ? TT_SIDE_PEER : TT_SIDE_KEY, .key = op->key,
		                 .offset = op->offset };
	bool put = op->kind == TT_PUT;
	struct tt_transfer *t;

	if (op->kind == TT_ADD) {
		end_op(m->job, p, -ENOTSUP);
		return;
	}
	if (!tt_device_peer(m) ||
	    !(t = tt_transfer_new(m->job, m, put ? &there : &here, put ? &here : &there, op->len))) {
		end_op(m->job, p, -ENOMEM);
		return;
	}
	t->post = p;
	if (put)
		begin_put(t);
}

static void finish_copy(struct tt_op *op)
{
	struct tt_post *p = tt_container_of(op, struct tt_post, op);

	p->done(p, op->err);
}

void tt_device_copy(struct tt_job *job, struct tt_post *p, struct tt_device_end to, struct tt_device_end from,
                    size_t len)
{
	struct tt_post end = { .pinned = to.pinned, .op.local = to.at, .op.len = len };
	struct tt_side into = local_side(&end);
	struct tt_transfer *t;

	end.pinned = from.pinned;
	end.op.local = from.at;
	struct tt_side out = local_side(&end);
	p->op.done = finish_copy;
	t = tt_transfer_new(job, NULL, &into, &out, len);
	if (t)
		t->post = p;
	else
		end_op(job, p, -ENOMEM);
}

bool tt_device_copies(const struct tt_job *job)
{
	tt_each_of(struct tt_transfer, link, t, &tt_devices(job)->moving)
		if (!t->member && !t->left)
			return true;
	return false;
}

bool tt_device_stands_still(const struct tt_job *job, int gpu) { return tt_devices(job)->stuck[gpu]; }

static struct tt_transfer *find_moving(struct tt_job *job, const struct tt_post *p)
{
	tt_each_of(struct tt_transfer, link, t, &tt_devices(job)->moving)
		if (t->post == p)
			return t;
	return NULL;
}

static struct tt_transfer *find_landed(struct tt_member *m, const struct tt_post *p)
{
	struct tt_device_peer *peer = tt_member_own(m, TT_DEVICE_SLOT);

	if (peer)
		tt_each_of(struct tt_transfer, link, t, &peer->landed)
			if (t->post == p)
				return t;
	return NULL;
}

bool tt_device_give_up(struct tt_job *job, struct tt_post *p, int err)
{
	struct tt_transfer *t = find_moving(job, p);

	if (t) {
		tt_transfer_give_up(t, err, NULL);
		return true;
	}
	if (!p->member)
		return false;
	t = find_landed(p->member, p);
	struct tt_post *held = t ? &t->notify : p;
	if (!tt_order_withdraw(p->member, held))
		return false;
	tt_post_fail(job, held, err);
	return true;
}

/* No byte has moved: it waits for a stream, here or at the owner. */
static bool is_idle(const struct tt_transfer *t) { return !tt_transfer_runs(t) && !t->moved && !t->readies; }

static void recall(struct tt_transfer *t, const char *why)
{
	if (is_idle(t))
		tt_transfer_fail(t, -ESTALE, why);
	else
		tt_transfer_give_up(t, -ESTALE, why);
}

void tt_device_recalled(struct tt_member *owner, const struct tt_key *key, const char *why)
{
	tt_each_of(struct tt_transfer, link, t, &tt_devices(owner->job)->moving)
		if (t->member == owner && !t->left && (t->to.key == key || t->from.key == key))
			recall(t, why);
	tt_order_fail(owner, key, -ESTALE);
	tt_device_forget(owner, key);
}

static const struct tt_staging stage = { .move = move, .hold = tt_order_hold };

/* ---- the module ---- */

static void make(struct tt_job *job)
{
	struct tt_devices *d = tt_devices(job);

	tt_list_init(&d->moving);
	tt_list_init(&d->ending);
	tt_list_init(&d->regions);
	tt_list_init(&d->imports);
	tt_list_init(&d->unmapped);
	job->engine.stage = &stage;
}

static int poll(struct tt_job *job)
{
	struct tt_devices *d = tt_devices(job);
	int n = 0;

	d->fresh = false;
	if (tt_list_empty(&d->moving) && tt_list_empty(&d->ending))
		return 0;
	tt_each_of(struct tt_transfer, link, t, &d->moving)
		n += tt_transfer_advance(t);
	d->streams = 0; /* fences may be freed from now on */
	tt_device_try_again(d);
	return n + end_all(d);
}

static void look_again(struct tt_timer *t) { (void)t; }

/* Nanoseconds until the next look; UINT64_MAX: something wakes the sleeper. */
static uint64_t look_in(const struct tt_transfer *t)
{
	if (!t->left && tt_transfer_waits(t))
		return tt_now() - t->moved_at < LEFT_NS ? COPY_NS : FENCE_NS;
	if (!t->started)
		return tt_transfer_is_held(t) ? LEFT_NS : FENCE_NS;
	return t->err || t->giving_up ? LEFT_NS : UINT64_MAX;
}

static int arm(struct tt_job *job)
{
	struct tt_devices *d = tt_devices(job);
	uint64_t next = UINT64_MAX;

	if (d->fresh)
		return 1;
	tt_each_of(struct tt_transfer, link, t, &d->moving)
		next = tt_min(next, look_in(t));
	if (next == UINT64_MAX)
		return 0;
	next += tt_now();
	if (!tt_timer_runs(&d->timer) || d->timer.at > next)
		tt_timer_start(job, &d->timer, next, look_again);
	return 0;
}

/* A broken device is found out although nothing is started on it. */
static void check_devices(struct tt_job *job, uint64_t passed)
{
	struct tt_devices *d = tt_devices(job);

	(void)passed;
	for (int i = 0; i < TT_GPUS; i++)
		if (d->in[i])
			d->checks |= (uint64_t)1 << i;
	if (d->checks)
		tt_errand(job);
}

static void end_member(struct tt_member *m)
{
	tt_each_of(struct tt_transfer, link, t, &tt_devices(m->job)->moving)
		if (t->member == m) {
			t->told = true;
			tt_transfer_fail(t, m->err, NULL);
		}
	tt_order_fail(m, NULL, m->err);
	tt_imports_end(m);
}

/* A bit for each device whose copies are under way. */
static uint64_t copying(struct tt_job *job)
{
	uint64_t devices = 0;

	tt_lock(job);
	tt_each_of(struct tt_transfer, link, t, &tt_devices(job)->moving)
		devices |= tt_transfer_copying(t);
	tt_unlock(job);
	return devices;
}

/* Waits for copies, with patience. Returns the devices that stand still. */
static uint64_t await_copies(struct tt_job *job)
{
	uint64_t devices = copying(job);

	for (uint64_t left = tt_device_patience(job) / FENCE_NS; devices && left; left--) {
		usleep(FENCE_NS / 1000);
		devices = copying(job);
	}
	return devices;
}

/* The connections have ended, and with them all posts of pieces. Copies may run: their queues end first. */
static void close_devices(struct tt_job *job)
{
	struct tt_devices *d = tt_devices(job);
	struct tt_list *node;
	uint64_t stuck = await_copies(job);

	tt_device_close_queues(job, stuck);
	tt_lock(job);
	tt_each_of(struct tt_transfer, link, t, &d->moving) {
		tt_transfer_fail(t, -ENOTCONN, NULL);
		tt_list_remove(&t->link);
		tt_list_append(&d->ending, &t->link);
	}
	end_all(d);
	while ((node = tt_list_pop(&d->moving))) /* those that are left */
		free_transfer(tt_container_of(node, struct tt_transfer, link));
	tt_timer_stop(&d->timer);
	while ((node = tt_list_pop(&d->regions)))
		free(tt_container_of(node, struct tt_staged, link));
	tt_unlock(job);
	tt_imports_close(d, stuck);
	tt_memory_free(d->shadow);
	tt_device_close_resources(job, stuck);
}

static const struct tt_message messages[] = {
	{ TT_GIVE, "give", tt_device_take_give },
	{ TT_TAKE, "take", tt_device_take_take },
	{ TT_READY, "ready", tt_device_take_ready },
	{ TT_FREE, "free", tt_device_take_free },
	{ TT_END, "end", tt_device_take_end },
	{ TT_EXPORT, "export", tt_import_take_export },
	{ TT_EXPORTED, "exported", tt_import_take_exported },
};

const struct tt_module tt_device_module = {
	.name = "device",
	.slot = TT_DEVICE_SLOT,
	.job_size = sizeof(struct tt_devices),
	.make = make,
	.close = close_devices,
	.poll = poll,
	.arm = arm,
	.beat = check_devices,
	.errand = tt_device_prepare,
	.messages = messages,
	.message_count = TT_COUNT(messages),
	.passing = TT_COUNT(messages),
	.ended = end_member,
};
