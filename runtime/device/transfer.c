/* transfer.c - a run of bytes on its way from one side to the other, in pieces
 *
 *      side "from"  -- fill -->  chunk  -- drain -->  side "to"
 *      HOST: memcpy                                   HOST: memcpy
 *      DEVICE: a copy of its queue                    DEVICE: a copy of its queue
 *      KEY: a GET                                     KEY: a PUT
 *      PEER: a GET of the peer's chunk                PEER: READY, and the peer's FREE
 *
 * Where both sides can be reached at once there is no chunk, and nothing to drain. A transfer begins when the caller's
 * stream has reached it: a stream that stands still holds back what depends on it, and nothing else. */
#include "device/device_private.h"
#include <stdlib.h>

/* ---- the beginning and the end ---- */

static bool is_remote(const struct tt_side *s) { return s->kind == TT_SIDE_KEY || s->kind == TT_SIDE_PEER; }

static bool is_direct(const struct tt_side *to, const struct tt_side *from)
{
	if (to->kind == TT_SIDE_DEVICE && from->kind == TT_SIDE_DEVICE)
		return to->gpu == from->gpu || tt_gpu_can_read(to->gpu, from->gpu, from->at);
	return to->kind == TT_SIDE_HOST && is_remote(from);
}

struct tt_transfer *tt_transfer_new(struct tt_job *job, struct tt_member *m, const struct tt_side *to,
                                    const struct tt_side *from, size_t len)
{
	struct tt_transfer *t = calloc(1, sizeof *t);

	if (!t)
		return NULL;
	tt_list_init(&t->put);
	t->job = job;
	t->member = m;
	t->to = *to;
	t->from = *from;
	t->len = len;
	t->direct = !len || is_direct(to, from);
	t->unit = t->direct && !m ? TT_DIRECT : TT_CHUNK;
	for (int i = 0; i < TT_PIECES; i++)
		t->pieces[i].of = t;
	tt_list_append(&tt_devices(job)->moving, &t->link);
	tt_devices(job)->fresh = true;
	return t;
}

void tt_transfer_fail(struct tt_transfer *t, int err, const char *why)
{
	if (t->err)
		return;
	t->err = err;
	t->why = why ? strdup(why) : NULL;
	tt_devices(t->job)->fresh = true;
}

/* The sentence is this thread's last one. */
static void fail_here(struct tt_transfer *t, int err) { tt_transfer_fail(t, err, tt_why()); }

static int passed(const struct tt_side *s) { return s->fence ? tt_gpu_fence_passed(s->fence) : 1; }

static int prepared(struct tt_transfer *t, const struct tt_side *s)
{
	return s->kind == TT_SIDE_DEVICE ? tt_device_prepared(t->job, s->gpu) :
	       t->direct                 ? 1 : tt_device_prepared(t->job, -1);
}

/* The net does what is left: it takes the memory, and waits for no stream. A PUT waits for its turn before. */
static bool leave_to_net(struct tt_transfer *t)
{
	struct tt_member *m = t->member;
	struct tt_post *p = t->post;

	if (!m || !p || tt_transfer_has_peer(t) || !tt_pinned_on(p->pinned, tt_member_net(m)) || !tt_order_is_next(t))
		return false;
	tt_list_remove(&t->link);
	if (p->op.flags & TT_NOTIFY)
		tt_order_withdraw(m, &t->notify);
	tt_post_to_net(m, p);
	tt_order_landed(t);
	free(t);
	return true;
}

/* 1: it may begin; 0: it has to wait; -errno */
static int may_start(struct tt_transfer *t)
{
	struct tt_device_peer *peer = t->post && t->member ? tt_device_peer(t->member) : NULL;
	int can;

	if ((can = passed(&t->from)) < 1 || (can = passed(&t->to)) < 1 || (can = prepared(t, &t->from)) < 1 ||
	    (can = prepared(t, &t->to)) < 1)
		return can;
	return !peer || !tt_transfer_has_peer(t) || peer->asked < TT_ASKED;
}

static int start(struct tt_transfer *t)
{
	struct tt_devices *d = tt_devices(t->job);
	int can = t->err ? t->err : may_start(t);

	if (can < 0 && !t->err)
		fail_here(t, can);
	if (can < 1)
		return can < 0;
	if (!tt_import_use(t))
		return 0;
	t->started = true;
	if (t->post && tt_transfer_has_peer(t)) {
		t->id = ++d->ids;
		tt_device_peer(t->member)->asked++;
		tt_say_begin(t);
	}
	return 1;
}

/* ---- one piece ---- */

static char *memory_of(const struct tt_piece *p)
{
	return p->chunk >= 0 ? tt_chunk_at(tt_devices(p->of->job), p->chunk) : p->of->to.at + p->offset;
}

static void end_post(struct tt_post *post, int err)
{
	struct tt_piece *p = tt_container_of(post, struct tt_piece, post);

	p->posted = false;
	if (err)
		tt_transfer_fail(p->of, err, NULL);
	tt_devices(p->of->job)->fresh = true;
}

static void post_piece(struct tt_piece *p, enum tt_kind kind, const struct tt_key *key, uint64_t offset)
{
	struct tt_transfer *t = p->of;

	p->post = (struct tt_post){ .pinned = p->chunk >= 0 ? tt_devices(t->job)->pinned : t->post->pinned,
		                    .done = end_post };
	p->post.op.kind = kind;
	p->post.op.local = memory_of(p);
	p->post.op.len = p->len;
	p->post.op.key = key;
	p->post.op.offset = offset;
	p->posted = true;
	tt_post(t->member, &p->post);
}

static void start_copy(struct tt_piece *p, struct tt_gpu_queue *q, void *to, const void *from)
{
	int err = tt_gpu_copy(q, to, from, p->len);

	if (err) {
		fail_here(p->of, err);
		return;
	}
	p->queue = q;
	p->mark = tt_gpu_mark(q);
}

static void fill(struct tt_piece *p)
{
	struct tt_transfer *t = p->of;
	struct tt_devices *d = tt_devices(t->job);
	const char *from = t->from.at + p->offset;

	p->step = TT_STEP_FILL;
	if (t->from.kind == TT_SIDE_HOST)
		memcpy(memory_of(p), from, p->len);
	else if (t->from.kind == TT_SIDE_DEVICE)
		start_copy(p, t->direct ? d->in[t->to.gpu] : d->out[t->from.gpu], memory_of(p), from);
	else if (t->from.kind == TT_SIDE_KEY)
		post_piece(p, TT_GET, t->from.key, t->from.offset + p->offset);
	else
		post_piece(p, TT_GET, &p->ready.key, p->ready.at);
}

static void drain(struct tt_piece *p)
{
	struct tt_transfer *t = p->of;
	char *to = t->to.at + p->offset;

	p->step = TT_STEP_DRAIN;
	if (t->direct)
		return;
	if (t->to.kind == TT_SIDE_HOST)
		memcpy(to, memory_of(p), p->len);
	else if (t->to.kind == TT_SIDE_DEVICE)
		start_copy(p, tt_devices(t->job)->in[t->to.gpu], to, memory_of(p));
	else if (t->to.kind == TT_SIDE_KEY)
		post_piece(p, TT_PUT, t->to.key, t->to.offset + p->offset);
	else {
		p->awaited = true;
		tt_say_ready(p);
	}
}

/* Is the step still under way? */
static bool is_busy(struct tt_piece *p)
{
	int reached = p->queue ? tt_gpu_reached(p->queue, p->mark) : 1;

	if (!reached)
		return true;
	p->queue = NULL;
	if (reached < 0)
		fail_here(p->of, reached);
	return p->posted || (p->awaited && !p->of->err);
}

static void release(struct tt_piece *p)
{
	tt_chunk_give_back(tt_devices(p->of->job), p->chunk);
	p->step = TT_STEP_NONE;
	p->awaited = false;
}

static int advance_piece(struct tt_piece *p)
{
	struct tt_transfer *t = p->of;

	if (p->step == TT_STEP_NONE || is_busy(p))
		return 0;
	if (p->step == TT_STEP_FILL && !t->err) {
		if (t->from.kind == TT_SIDE_PEER)
			tt_say_free(p);
		drain(p);
		if (is_busy(p))
			return 1;
	}
	t->moved += t->err ? 0 : p->len;
	release(p);
	return 1;
}

/* ---- all of it ---- */

static struct tt_piece *idle_piece(struct tt_transfer *t)
{
	for (int i = 0; i < TT_PIECES; i++)
		if (t->pieces[i].step == TT_STEP_NONE)
			return &t->pieces[i];
	return NULL;
}

static bool has_next(const struct tt_transfer *t)
{
	return t->started && !t->err && (t->from.kind == TT_SIDE_PEER ? t->readies > 0 : t->begun < t->len);
}

static bool begin_piece(struct tt_transfer *t)
{
	struct tt_piece *p = has_next(t) ? idle_piece(t) : NULL;

	if (!p)
		return false;
	p->chunk = t->direct ? -1 : tt_chunk_take(tt_devices(t->job), is_remote(&t->to));
	if (p->chunk < 0 && !t->direct)
		return false;
	if (t->from.kind == TT_SIDE_PEER) {
		p->ready = t->ready[0];
		t->readies--;
		memmove(t->ready, t->ready + 1, (size_t)t->readies * sizeof *t->ready);
	} else {
		p->ready.number = (uint32_t)(t->begun / t->unit);
		t->begun += tt_min(t->unit, t->len - t->begun);
	}
	p->offset = p->ready.number * t->unit;
	p->len = tt_min(t->unit, t->len - p->offset);
	fill(p);
	return true;
}

/* Within this process, too, a notify comes behind what was put before. */
static bool waits_for_turn(const struct tt_transfer *t)
{
	const struct tt_list *first = &tt_devices(t->job)->moving;

	if (t->member || !(t->post->op.flags & TT_NOTIFY))
		return false;
	for (const struct tt_list *at = t->link.prev; at != first; at = at->prev)
		if (!tt_container_of(at, struct tt_transfer, link)->member)
			return true;
	return false;
}

static bool is_over(const struct tt_transfer *t)
{
	for (int i = 0; i < TT_PIECES; i++)
		if (t->pieces[i].step != TT_STEP_NONE)
			return false;
	bool moved = t->moved == t->len && (t->to.kind != TT_SIDE_PEER || !t->post || t->told);
	return t->err || (moved && !waits_for_turn(t));
}

int tt_transfer_advance(struct tt_transfer *t)
{
	int n = 0;

	if (!t->started && (!t->err && passed(&t->from) > 0 && passed(&t->to) > 0) && leave_to_net(t))
		return 1;
	if (!t->started)
		n += start(t);
	for (int i = 0; i < TT_PIECES; i++)
		n += advance_piece(&t->pieces[i]);
	while (begin_piece(t))
		n++;
	if (!is_over(t))
		return n;
	tt_list_remove(&t->link);
	tt_list_append(&tt_devices(t->job)->ending, &t->link);
	return n + 1;
}

bool tt_transfer_waits(const struct tt_transfer *t)
{
	for (int i = 0; i < TT_PIECES; i++)
		if (t->pieces[i].queue)
			return true;
	return false;
}
