/* segment_call.c - a call that uses its host's segment: in its turn, and step by step with the same call of the other
 * ranks
 *
 *      turn        calls use the segment one after another, in the order in which they have chosen to
 *      meet        a header says what I call, has my vector's key, or bytes are in my slot; all ranks are here
 *      judged      if all needed vectors have keys: could I map them? If all ranks could, they are used mapped
 *      step ...    as the algorithm counts
 *
 * A rank that gives up marks its header QUIT, and takes back its keys (standing.c). From then on the transport lets
 * no rank store there, and it returns when none does (transport.h, Mapping): the vector is the caller's again. Others
 * learn from the header that the rank gave up, and from messages why.
 */
#include "collective/collective_private.h"
#include "engine/engine.h"
#include "member/member.h"

enum {
	STEP_HERE = 1,
	LOOKS = 40,               /* at flags before the call returns to the progress loop: some 2 us */
};

static int rank_of(const struct tt_segment_call *v, int i) { return v->coll->group->seats[v->segment->seats[i]].rank; }
static void gave_up(struct tt_segment_call *v, int i) { tt_coll_gave_up(v->coll, rank_of(v, i)); }

/* Has another rank given up? Then the call fails, but the reason is not known yet. */
static bool is_given_up(const struct tt_segment_call *v) { return v->coll->culprit >= 0; }

int tt_segment_call_check(struct tt_segment_call *v)
{
	v->until = v->chunk + TT_SEGMENT_CALL_PIECES;
	if (is_given_up(v))
		return 0;
	if (!v->segment->lost)
		return 1;
	v->coll->culprit = v->segment->lost - 1;
	return -ECONNRESET;
}

bool tt_segment_call_may_go_on(const struct tt_segment_call *v) { return v->chunk != v->until; }

/* ---- steps ---- */

void tt_segment_call_step(struct tt_segment_call *v)
{
	v->seen = 0;
	tt_segment_step(v->segment, v->header, v->coll->seq, ++v->step);
}

void tt_segment_call_await(struct tt_segment_call *v, uint32_t earlier)
{
	v->seen = 0;
	v->earlier = earlier;
}

static int look(struct tt_segment_call *v)
{
	uint32_t step = v->step - v->earlier;
	int k = 1;

	for (; k > 0 && v->seen < v->segment->n; v->seen += k > 0)
		k = v->seen == v->segment->me ? 1 : tt_segment_reached(v->segment, v->seen, v->coll->seq, step);
	return k;
}

/* After a rank has given up, the call waits for the reason. */
static int answer(struct tt_segment_call *v, int k)
{
	if (k >= 0)
		return k;
	gave_up(v, v->seen);
	return 0;
}

int tt_segment_call_all(struct tt_segment_call *v)
{
	int k = look(v), looks = k || tt_world || !tt_may_spin(v->coll->job) ? 0 : LOOKS;

	for (int i = 0; !k && i < looks; i++) {
		tt_pause();
		k = look(v);
	}
	return answer(v, k);
}

int tt_segment_call_still(struct tt_segment_call *v)
{
	atomic_thread_fence(memory_order_acquire);
	v->seen = 0;
	return answer(v, look(v));
}

/* ---- the beginning ---- */

static bool is_my_turn(const struct tt_segment_call *v)
{
	return v->segment->queue.next == &v->turn && tt_segment_may_begin(v->segment);
}

int tt_segment_call_turn(struct tt_segment_call *v)
{
	struct tt_segment *b = v->segment;

	if (!is_my_turn(v))
		return 0;
	v->header = tt_segment_begin(b);
	v->header->call = v->coll->call;
	v->header->half = b->half;
	v->header->mapped = false;
	return 1;
}

void tt_segment_call_go_on(struct tt_segment_call *v, struct tt_call_header *header, const void *vector)
{
	v->header = header;
	v->step = STEP_HERE;
	if (header->mapped)
		v->standing = tt_standing_of(v->segment, vector, v->bytes);
}

void tt_segment_call_stored(struct tt_segment_call *v)
{
	v->step = STEP_HERE + 1;
	v->met = v->mapped = true;
}

void tt_segment_call_offer(struct tt_segment_call *v, const void *vector)
{
	v->standing = tt_standing_of(v->segment, vector, v->bytes);
	if (v->standing)
		tt_standing_offer(v->standing, vector, v->header);
}

/* A header with another call may be that of a later call: a rank that gave up the next call reuses it for the one
 * behind. */
static int compare(struct tt_segment_call *v)
{
	const struct tt_segment *b = v->segment;

	for (int i = 0; i < b->n; i++) {
		struct tt_coll_call theirs = b->peers[i].header->call;
		if (tt_coll_same(&theirs, &v->coll->call))
			continue;
		return tt_segment_call_still(v) <= 0 ? 0 : tt_coll_differs(v->coll, b->seats[i], &theirs);
	}
	return 1;
}

static bool map_vectors(struct tt_segment_call *v)
{
	struct tt_segment *b = v->segment;

	for (int i = 0; i < b->n; i++) {
		struct tt_segment_peer *f = &b->peers[i];
		if (i == b->me || !f->header->mapped)
			continue;
		f->key = f->header->key;
		if (!tt_standing_holds(f->header, &f->key, v->bytes))
			return false;
		char *base = f->peer->net->transport->map(f->peer, &f->key, 0);
		if (!base)
			return false;
		f->vector = base + f->header->at;
	}
	return true;
}

static int meet(struct tt_segment_call *v)
{
	const struct tt_segment *b = v->segment;
	int k = tt_segment_call_all(v), mapped = 0;

	if (k <= 0 || (k = compare(v)) <= 0)
		return k;
	for (int i = 0; i < b->n; i++)
		mapped += b->peers[i].header->mapped;
	v->all_offer = mapped == v->offers;
	v->some_offer = mapped > 0;
	v->met = true;
	if (!v->all_offer)
		return 1;
	if (v->standing && (k = tt_standing_use(v->segment, v->standing, v->bytes)) < 0)
		return k;
	v->mapped = v->standing && k > 0;
	if (!v->mapped) {
		v->header->can = map_vectors(v);
		tt_segment_call_step(v);
	}
	return 1;
}

int tt_segment_call_meet(struct tt_segment_call *v)
{
	struct tt_segment *b = v->segment;
	int k = v->met ? 1 : meet(v), can = 1;

	if (k <= 0 || !v->all_offer || v->mapped)
		return k;
	if ((k = tt_segment_call_all(v)) <= 0)
		return k;
	for (int i = 0; i < b->n; i++)
		can &= b->peers[i].header->can;
	v->mapped = can;
	if (can && v->offers == b->n)
		tt_standing_agree(b, v->standing, v->coll->seq);
	return 1;
}

/* ---- buffers in the slots ---- */

static char *buffer_of(const struct tt_segment_call *v, int i, unsigned chunk)
{
	const struct tt_segment_peer *f = &v->segment->peers[i];

	return f->slot->half[(f->header->half + chunk) % 2];
}

char *tt_segment_call_buffer(const struct tt_segment_call *v, int i) { return buffer_of(v, i, v->chunk); }

const char *tt_segment_call_last_buffer(const struct tt_segment_call *v, int i)
{
	return buffer_of(v, i, v->chunk - 1);
}

void tt_segment_call_next_buffer(struct tt_segment_call *v)
{
	v->chunk++;
	v->segment->half ^= 1;
}

/* ---- mapped vectors ---- */

int tt_segment_call_store_begin(struct tt_segment_call *v)
{
	int i = tt_segment_store_begin(v->segment);

	if (i >= 0)
		gave_up(v, i);
	return i < 0;
}

void tt_segment_call_store_end(struct tt_segment_call *v) { tt_segment_store_end(v->segment); }

/* ---- polling ---- */

static void announce(struct tt_timer *t)
{
	struct tt_segment_call *v = tt_container_of(t, struct tt_segment_call, announce);

	for (int i = 0; i < v->segment->n; i++)
		if (i != v->segment->me && !v->segment->peers[i].header)
			tt_coll_send(v->coll, v->segment->seats[i], TT_TAG_HERE, NULL, 0);
}

static void look_again(struct tt_timer *t) { (void)t; }

/* Ranks that call something else, without the segment, never look here. A message tells them what this rank calls.
 * `done` wakes nobody: a call that waits for it looks each millisecond. */
static void arm(struct tt_segment_call *v)
{
	struct tt_job *job = v->coll->job;

	tt_segment_set_asleep(v->segment, true);
	if (!v->header && v->segment->queue.next == &v->turn && !tt_timer_runs(&v->slower))
		tt_timer_start(job, &v->slower, tt_now() + TT_MS, look_again);
	if (v->header && !v->met && !v->announce.expire)
		tt_timer_start(job, &v->announce, tt_now() + tt_time(job, TT_TIME_HEARTBEAT), announce);
}

static bool poll(struct tt_coll *c, bool asleep)
{
	struct tt_segment_call *v = c->segment_call;

	if (asleep)
		arm(v);
	else
		tt_segment_set_asleep(v->segment, false);
	if (is_given_up(v))
		return false;
	if (v->segment->lost || v->busy)
		return true;
	if (v->paused)
		return false;
	return v->header ? look(v) != 0 : is_my_turn(v);
}

/* ---- life ---- */

void tt_segment_call_begin(struct tt_segment_call *v, struct tt_coll *c, size_t bytes, int offers)
{
	struct tt_segment *b = tt_coll_group(c->group)->segment;

	v->coll = c;
	v->segment = b;
	v->bytes = bytes;
	v->offers = offers;
	tt_list_append(&b->queue, &v->turn);
	for (int i = 0; i < b->n; i++)
		if (i != b->me)
			tt_member_hold(tt_segment_member(b, i));
	c->segment_call = v;
	tt_coll_poll(c, poll);
	c->may_leave_messages = true;
}

void tt_segment_call_end(struct tt_segment_call *v, bool done)
{
	struct tt_segment *b = v->segment;

	tt_timer_stop(&v->announce);
	tt_timer_stop(&v->slower);
	tt_segment_set_asleep(b, false);
	tt_list_remove(&v->turn);
	if (v->header && !done)
		tt_segment_step(b, v->header, v->coll->seq, TT_STEP_QUIT);
	if (v->standing && !done)
		tt_standing_drop_all(b);
	if (v->header && done)
		tt_segment_complete(b, v->coll->seq);
	else if (v->header)
		tt_segment_done(b, v->coll->seq);
	v->coll->segment_call = NULL;
	tt_coll_poll(v->coll, NULL);
	for (int i = 0; i < b->n; i++)
		if (i != b->me)
			tt_member_let_go(tt_segment_member(b, i));
}
