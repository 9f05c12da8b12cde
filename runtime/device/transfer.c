/* transfer.c - a run of bytes on its way from one side to the other, in pieces
 *
 *      side "from"  -- fill -->  chunk  -- drain -->  side "to"
 *      HOST: memcpy                                   HOST: memcpy
 *      DEVICE: a copy of its queue                    DEVICE: a copy of its queue
 *      KEY: a GET                                     KEY: a PUT
 *      PEER: a GET of the peer's chunk                PEER: READY, and the peer's FREE
 *
 * Where both sides can be reached at once there is no chunk, and nothing to drain. A transfer begins when the caller's
 * stream has reached it: a stream that stands still holds back what depends on it, and nothing else.
 *
 * A device may stop in the middle of a copy. A transfer that has failed, or that its caller has given up, waits for its
 * copies for a while, the patience. Then its op ends, and the transfer is left: it keeps its chunks, and the mapping
 * that it reads, until the device has ended the copies. Meanwhile no other transfer begins on that device. */
#include "device/device_private.h"
#include <stdio.h>
#include <stdlib.h>

enum { PATIENCE_MS = 1000 };

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
	t->moved_at = tt_now();
	for (int i = 0; i < TT_PIECES; i++)
		t->pieces[i].of = t;
	tt_list_append(&tt_devices(job)->moving, &t->link);
	tt_devices(job)->fresh = true;
	return t;
}

static void keep_words(struct tt_transfer *t, const char *why)
{
	if (!why)
		return;
	free(t->why);
	t->why = strdup(why);
}

void tt_transfer_fail(struct tt_transfer *t, int err, const char *why)
{
	if (t->err)
		return;
	t->err = err;
	keep_words(t, why);
	if (!t->giving_up) /* else the patience has passed, or the transfer has not begun */
		t->moved_at = tt_now();
	tt_devices(t->job)->fresh = true;
}

/* The sentence is this thread's last one. */
static void fail_here(struct tt_transfer *t, int err) { tt_transfer_fail(t, err, tt_why()); }

static int passed(const struct tt_transfer *t, const struct tt_side *s)
{
	struct tt_devices *d = tt_devices(t->job);
	int is;

	for (int i = 0; s->fence && i < d->streams; i++)
		if (tt_gpu_fence_is_behind(s->fence, d->not_passed[i]))
			return 0;
	is = s->fence ? tt_gpu_fence_passed(s->fence) : 1;
	if (!is && d->streams < TT_STREAMS)
		d->not_passed[d->streams++] = s->fence;
	return is;
}

static int prepared(struct tt_transfer *t, const struct tt_side *s)
{
	if (s->kind == TT_SIDE_DEVICE && tt_devices(t->job)->stuck[s->gpu])
		return 0;
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
	struct tt_device_peer *peer = !t->serves && t->member ? tt_device_peer(t->member) : NULL;
	int can;

	if ((can = passed(t, &t->from)) < 1 || (can = passed(t, &t->to)) < 1 || (can = prepared(t, &t->from)) < 1 ||
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
	if (!t->serves && tt_transfer_has_peer(t)) {
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

/* The device whose copy is under way. */
static int gpu_of(const struct tt_piece *p)
{
	const struct tt_transfer *t = p->of;

	return p->step == TT_STEP_FILL && !t->direct ? t->from.gpu : t->to.gpu;
}

/* Is the step still under way? A chunk that the other rank is to fetch stays until that rank reads it no more. */
static bool is_busy(struct tt_piece *p)
{
	struct tt_transfer *t = p->of;
	int reached = p->queue ? tt_gpu_reached(p->queue, p->mark) : 1;

	if (!reached)
		return true;
	if (p->queue && t->left)
		tt_devices(t->job)->stuck[gpu_of(p)]--;
	p->queue = NULL;
	if (reached < 0)
		fail_here(t, reached);
	return p->posted || (p->awaited && !t->told);
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
	if (p->step == TT_STEP_FILL && t->from.kind == TT_SIDE_PEER && (!t->err || t->serves))
		tt_say_free(t, p->ready.number);
	if (p->step == TT_STEP_FILL && !t->err) {
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
	return t->started && !t->err && !t->giving_up &&
	       (t->from.kind == TT_SIDE_PEER ? t->readies > 0 : t->begun < t->len);
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
	for (const struct tt_list *at = t->link.prev; at != first; at = at->prev) {
		const struct tt_transfer *before = tt_container_of(at, struct tt_transfer, link);
		if (!before->member && !before->left)
			return true;
	}
	return false;
}

bool tt_transfer_runs(const struct tt_transfer *t)
{
	for (int i = 0; i < TT_PIECES; i++)
		if (t->pieces[i].step != TT_STEP_NONE)
			return true;
	return false;
}

static bool is_over(const struct tt_transfer *t)
{
	if (tt_transfer_runs(t))
		return false;
	bool moved = t->moved == t->len && (t->to.kind != TT_SIDE_PEER || t->serves || t->told);
	return t->err || (moved && !waits_for_turn(t));
}

/* ---- what does not end ---- */

static bool has_posted(const struct tt_transfer *t)
{
	for (int i = 0; i < TT_PIECES; i++)
		if (t->pieces[i].posted)
			return true;
	return false;
}

/* The device that holds the transfer up; -1: none does. */
static int who_holds(const struct tt_transfer *t)
{
	const struct tt_side *sides[] = { &t->from, &t->to };

	for (int i = 0; i < TT_PIECES; i++)
		if (t->pieces[i].queue)
			return gpu_of(&t->pieces[i]);
	for (int i = 0; i < 2 && !t->started; i++)
		if (sides[i]->kind == TT_SIDE_DEVICE && tt_devices(t->job)->stuck[sides[i]->gpu])
			return sides[i]->gpu;
	return -1;
}

static void fail_held(struct tt_transfer *t)
{
	char text[200];
	int gpu = who_holds(t);

	snprintf(text, sizeof text, "GPU %d stands still: it has begun a copy, and does not end it. Until it goes on, "
	         "leave alone the memory on it that the call was given", gpu);
	tt_transfer_fail(t, t->giving_up, gpu < 0 ? NULL : text);
}

void tt_transfer_give_up(struct tt_transfer *t, int err, const char *why)
{
	bool waits_here = !t->started || (!t->member && t->moved == t->len); /* for a stream, or for its turn */

	if (t->err || t->giving_up)
		return;
	t->giving_up = err;
	keep_words(t, why);
	tt_devices(t->job)->fresh = true;
	if (waits_here)
		fail_held(t);
}

bool tt_transfer_is_held(const struct tt_transfer *t) { return who_holds(t) >= 0; }

/* It was given up, its last pieces have ended, and bytes are missing. */
static bool was_cut_short(const struct tt_transfer *t)
{
	return t->giving_up && t->started && t->moved < t->len && !tt_transfer_runs(t);
}

/* A rank that closes a window waits for an answer for TUTTI_SILENCE. */
uint64_t tt_device_patience(const struct tt_job *job) { return tt_min(PATIENCE_MS * TT_MS, job->silence / 4); }

/* A net ends its ops by itself: the other rank lives, or is evicted. */
static bool has_no_patience(const struct tt_transfer *t)
{
	return (t->err || t->giving_up) && !t->left && !has_posted(t) &&
	       tt_now() - t->moved_at >= tt_device_patience(t->job);
}

uint64_t tt_transfer_copying(struct tt_transfer *t)
{
	uint64_t devices = 0;

	for (int i = 0; i < TT_PIECES; i++)
		if (is_busy(&t->pieces[i]) && t->pieces[i].queue)
			devices |= (uint64_t)1 << gpu_of(&t->pieces[i]);
	return devices;
}

void tt_transfer_leave(struct tt_transfer *t)
{
	t->left = true;
	t->post = NULL;
	for (int i = 0; i < TT_PIECES; i++)
		if (t->pieces[i].queue)
			tt_devices(t->job)->stuck[gpu_of(&t->pieces[i])]++;
	tt_list_append(&tt_devices(t->job)->moving, &t->link);
}

int tt_transfer_advance(struct tt_transfer *t)
{
	int n = 0;

	if (!t->started && (!t->err && passed(t, &t->from) > 0 && passed(t, &t->to) > 0) && leave_to_net(t))
		return 1;
	if (!t->started)
		n += start(t);
	for (int i = 0; i < TT_PIECES; i++)
		n += advance_piece(&t->pieces[i]);
	while (begin_piece(t))
		n++;
	t->moved_at = n ? tt_now() : t->moved_at;
	if (!is_over(t)) {
		if (!was_cut_short(t) && !has_no_patience(t))
			return n;
		if (!t->err)
			fail_held(t);
	}
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
