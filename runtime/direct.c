/* direct.c - all-reduce on one host, straight through memory: each rank combines its slice of all vectors, in the order of
 * ranks, and all get the result. Who is how far stands on the group's board (board.c).
 *
 *      short     each puts its vector on its panel, and combines all of them itself: one flag
 *
 *      mapped    vectors that all can map: each combines its slice of them into all of them
 *
 *                rank 0's   | a0 | b0 |        rank 0: a0 + a1 -> both a       no byte is copied
 *                rank 1's   | a1 | b1 |        rank 1: b0 + b1 -> both b
 *
 *      passed    other vectors, chunk by chunk, over panels that stay in the caches:
 *
 *                rank 0     b0 -> panel         a0 + a1 -> a0, panel            b <- panel of 1
 *                rank 1     a1 -> panel         b0 + b1 -> b1, panel            a <- panel of 0
 *
 * Order of additions: ((0 + 1) + 2) + ..., each element once; f16 and bf16 in f32, rounded once at the end.
 *
 * A rank that gives up marks its note QUIT, and takes the key of its vector back. The wire lets nobody store there from then on, and
 * returns when nobody does (transport.h, Mapping): it is the caller's again.
 */
#include "runtime.h"
#include <string.h>

enum {
	SMALL = 12 * 1024,        /* bytes to read from others: with more of them mapped vectors are better shared out, ... */
	SHORT = 32 * 1024,        /* ... and with more than this others */
	PIECE = 256 * 1024,       /* of a slice: between two of them a rank looks whether it still may store ... */
	PIECES = 4,               /* ... and after so many it leaves the engine to others */
	LOOKS = 400,              /* at flags, before it does: a turn of the engine takes longer than most ranks are late */
	STEP_HERE = 1, STEP_JUDGED,
};

enum phase { TURN, HERE, JUDGE, STORE, STORED, IN, COMBINE, OUT, DONE };

static struct tt_board *board_of(const struct tt_allreduce *a) { return a->coll.group->board; }

/* ---- who has what ---- */

struct slice { size_t at, len; }; /* bytes */

/* In whole lines, so that no two ranks write into one. */
static struct slice slice_of(size_t bytes, int n, int i)
{
	size_t lines = (bytes + TT_CACHE_LINE - 1) / TT_CACHE_LINE, from = lines * (size_t)i / (size_t)n, to = lines * ((size_t)i + 1) / (size_t)n;
	size_t at = tt_min(from * TT_CACHE_LINE, bytes);

	return (struct slice){ at, tt_min(to * TT_CACHE_LINE, bytes) - at };
}

static struct slice mine(const struct tt_allreduce *a, size_t bytes) { return slice_of(bytes, a->coll.n, a->coll.me); }
static size_t bytes_of(const struct tt_allreduce *a) { return a->count * a->width; }
static bool is_up_to(const struct tt_allreduce *a, size_t read) { return bytes_of(a) <= read / (size_t)(a->coll.n - 1); }
static size_t chunk_len(const struct tt_allreduce *a) { return tt_min(TT_BOARD_CHUNK, bytes_of(a) - a->direct.at); }

/* The room that a rank uses for what it passes now. */
static char *room_of(const struct tt_allreduce *a, int i)
{
	const struct tt_fellow *f = &board_of(a)->fellows[i];

	return f->panel->half[(f->note->half + a->direct.chunk) % 2];
}

static void combine(const struct tt_allreduce *a, const void *const *from, void *const *to, int outputs, size_t bytes)
{
	struct tt_many many = { .from = from, .to = to, .inputs = a->coll.n, .outputs = outputs };

	tt_reduce_many(&many, bytes / a->width, a->type, a->rule);
}

/* ---- flags ---- */

static void set_step(struct tt_allreduce *a, uint32_t step)
{
	a->direct.step = step;
	a->direct.seen = 0;
	tt_board_step(board_of(a), a->direct.note, a->coll.seq, step);
}

static int look(struct tt_allreduce *a)
{
	struct tt_board *b = board_of(a);
	struct tt_direct *d = &a->direct;
	int k = 1;

	for (; k > 0 && d->seen < b->n; d->seen += k > 0)
		k = d->seen == b->me ? 1 : tt_board_reached(b, d->seen, a->coll.seq, d->step);
	return k;
}

/* Have all come as far as I have? What they said before that can be read. */
static int all_here(struct tt_allreduce *a)
{
	int k = look(a);

	for (int i = 0; !k && a->coll.job->engine.spin && !tt_world && i < LOOKS; i++)
		k = look(a);
	return k;
}

/* Is what was read what they had put there for this call? */
static int still_here(struct tt_allreduce *a)
{
	atomic_thread_fence(memory_order_acquire);
	a->direct.seen = 0;
	return look(a);
}

/* ---- vectors that others can map ---- */

/* For this call alone: what the caller does with its memory afterwards is no business of others. */
static void offer_vector(struct tt_allreduce *a)
{
	struct tt_net *net = board_of(a)->region->net;
	struct tt_mem mem = tt_mem_of(a->buf, bytes_of(a));

	if (mem.fd < 0 || net->transport->reg(net, &mem, 1, &a->direct.region))
		return;
	a->direct.note->key = a->direct.region->key;
	a->direct.note->mapped = true;
}

static bool map_vectors(struct tt_allreduce *a)
{
	struct tt_board *b = board_of(a);

	for (int i = 0; i < b->n; i++) {
		struct tt_fellow *f = &b->fellows[i];
		if (i == b->me)
			continue;
		f->key = f->note->key;
		f->vector = f->key.len == bytes_of(a) ? f->peer->net->transport->map(f->peer, &f->key, 0) : NULL;
		if (!f->vector)
			return false;
	}
	return true;
}

static void end_stores(const struct tt_board *b, int upto)
{
	for (int i = 0; i < upto; i++)
		if (i != b->me)
			b->fellows[i].peer->net->transport->store_end(b->fellows[i].peer);
}

/* Into all vectors, or none. -ECONNABORTED: one has been taken back */
static int begin_stores(struct tt_allreduce *a)
{
	const struct tt_board *b = board_of(a);

	for (int i = 0; i < b->n; i++) {
		const struct tt_fellow *f = &b->fellows[i];
		if (i == b->me || f->peer->net->transport->store_begin(f->peer, &f->key))
			continue;
		end_stores(b, i);
		a->direct.seen = i;
		return -ECONNABORTED;
	}
	return 0;
}

/* ---- the steps: 1: go on; 0: wait; -errno ---- */

/* Each gets from me what it will combine: of a short vector all of it, of a chunk its slice. */
static void copy_in(struct tt_allreduce *a)
{
	size_t at = a->direct.at, len = chunk_len(a);
	struct slice s = is_up_to(a, SHORT) ? (struct slice){ len, 0 } : mine(a, len);
	char *room = room_of(a, a->coll.me);

	memcpy(room, a->buf + at, s.at);
	memcpy(room + s.at + s.len, a->buf + at + s.at + s.len, len - s.at - s.len);
}

static int take_turn(struct tt_allreduce *a)
{
	struct tt_direct *d = &a->direct;
	struct tt_board *b = board_of(a);

	if (b->queue.next != &d->turn)
		return 0;
	d->note = tt_board_begin(b);
	d->note->print = a->coll.print;
	d->note->half = b->half;
	d->note->mapped = false;
	if (!is_up_to(a, SMALL))
		offer_vector(a);
	if (!d->note->mapped)
		copy_in(a);
	set_step(a, STEP_HERE);
	d->phase = HERE;
	return 1;
}

static int compare(struct tt_allreduce *a)
{
	const struct tt_board *b = board_of(a);

	for (int i = 0; i < b->n; i++) {
		if (b->fellows[i].note->print == a->coll.print)
			continue;
		a->coll.culprit = a->coll.group->seats[i].rank;
		return -EBADMSG;
	}
	return 0;
}

static int go_on_if(struct tt_allreduce *a, int k, enum phase then)
{
	if (k > 0)
		a->direct.phase = then;
	return k;
}

static int combine_all(struct tt_allreduce *a)
{
	const void *from[TT_BOARD_RANKS];
	void *to = a->buf;

	for (int i = 0; i < a->coll.n; i++)
		from[i] = i == a->coll.me ? a->buf : room_of(a, i);
	combine(a, from, &to, 1, bytes_of(a));
	board_of(a)->half ^= 1;
	return go_on_if(a, still_here(a), DONE);
}

static int meet(struct tt_allreduce *a)
{
	const struct tt_board *b = board_of(a);
	struct tt_direct *d = &a->direct;
	int k = all_here(a), mapped = 0;

	if (k <= 0 || (k = compare(a)))
		return k;
	for (int i = 0; i < b->n; i++)
		mapped += b->fellows[i].note->mapped;
	if (!mapped && is_up_to(a, SHORT))
		return combine_all(a);
	d->phase = !mapped ? COMBINE : mapped < b->n ? IN : JUDGE;
	if (d->phase == JUDGE) {
		d->note->can = map_vectors(a);
		set_step(a, STEP_JUDGED);
	}
	return 1;
}

/* All of them, or none. */
static int judge(struct tt_allreduce *a)
{
	const struct tt_board *b = board_of(a);
	struct tt_direct *d = &a->direct;
	int k = all_here(a), can = 1;

	if (k <= 0)
		return k;
	for (int i = 0; i < b->n; i++)
		can &= b->fellows[i].note->can;
	d->phase = can ? STORE : IN;
	d->at = 0;
	return 1;
}

static void store_piece(struct tt_allreduce *a, size_t at, size_t len)
{
	const struct tt_board *b = board_of(a);
	const void *from[TT_BOARD_RANKS];
	void *to[TT_BOARD_RANKS];

	for (int i = 0; i < b->n; i++)
		from[i] = to[i] = (i == b->me ? a->buf : b->fellows[i].vector) + at;
	combine(a, from, to, b->n, len);
}

static int store(struct tt_allreduce *a)
{
	struct tt_direct *d = &a->direct;
	struct slice s = mine(a, bytes_of(a));
	int err = 0;

	for (int i = 0; i < PIECES && d->at < s.len; i++) {
		size_t len = tt_min(PIECE, s.len - d->at);
		if ((err = begin_stores(a)))
			return err;
		store_piece(a, s.at + d->at, len);
		end_stores(board_of(a), a->coll.n);
		d->at += len;
	}
	if (d->at < s.len)
		return 0;
	set_step(a, d->step + 1);
	d->phase = STORED;
	return 1;
}

static int end_stored(struct tt_allreduce *a)
{
	return go_on_if(a, all_here(a), DONE);
}

static int pass_in(struct tt_allreduce *a)
{
	copy_in(a);
	set_step(a, a->direct.step + 1);
	a->direct.phase = COMBINE;
	return 1;
}

static int combine_chunk(struct tt_allreduce *a)
{
	struct tt_direct *d = &a->direct;
	struct slice s = mine(a, chunk_len(a));
	const void *from[TT_BOARD_RANKS];
	void *to[2] = { a->buf + d->at + s.at, room_of(a, a->coll.me) + TT_BOARD_CHUNK + s.at };
	int k = all_here(a);

	if (k <= 0)
		return k;
	for (int i = 0; i < a->coll.n; i++)
		from[i] = i == a->coll.me ? to[0] : room_of(a, i) + s.at;
	combine(a, from, to, 2, s.len);
	set_step(a, d->step + 1);
	d->phase = OUT;
	return 1;
}

static int take_out(struct tt_allreduce *a)
{
	struct tt_direct *d = &a->direct;
	size_t len = chunk_len(a);
	int k = all_here(a);

	if (k <= 0)
		return k;
	for (int i = 0; i < a->coll.n; i++) {
		struct slice s = slice_of(len, a->coll.n, i);
		if (i != a->coll.me)
			memcpy(a->buf + d->at + s.at, room_of(a, i) + TT_BOARD_CHUNK + s.at, s.len);
	}
	d->at += len;
	d->chunk++;
	board_of(a)->half ^= 1;
	return go_on_if(a, still_here(a), d->at < bytes_of(a) ? IN : DONE);
}

static int (*const steps[])(struct tt_allreduce *) = {
	[TURN] = take_turn, [HERE] = meet, [JUDGE] = judge, [STORE] = store, [STORED] = end_stored, [IN] = pass_in, [COMBINE] = combine_chunk,
	[OUT] = take_out,
};

/* By another rank: nothing more can come of it, but why is not known yet. */
static bool is_given_up(const struct tt_allreduce *a) { return a->coll.culprit >= 0; }

static int advance(struct tt_allreduce *a)
{
	struct tt_direct *d = &a->direct;
	int k = 1;

	if (is_given_up(a))
		return 0;
	while (k > 0 && d->phase != DONE) {
		if (board_of(a)->lost) {
			a->coll.culprit = board_of(a)->lost - 1;
			return -ECONNRESET;
		}
		k = steps[d->phase](a);
	}
	if (k != -ECONNABORTED)
		return k < 0 ? k : d->phase == DONE;
	tt_coll_gave_up(&a->coll, a->coll.group->seats[d->seen].rank);
	return 0;
}

/* ---- what no message tells ---- */

static void hail(struct tt_timer *t)
{
	struct tt_allreduce *a = tt_container_of(t, struct tt_allreduce, direct.hail);

	for (int i = 0; i < a->coll.n; i++)
		if (i != a->coll.me && !board_of(a)->fellows[i].note)
			tt_coll_send(&a->coll, i, TT_TAG_HERE, NULL, 0);
}

/* Who waits for others that call something else, and not on the board, would not learn of it: they are told what is called. */
static void doze(struct tt_allreduce *a)
{
	struct tt_direct *d = &a->direct;

	tt_board_doze(board_of(a), true);
	if (d->phase == HERE && !d->hail.expire)
		tt_timer_start(a->coll.job, &d->hail, tt_now() + tt_time(a->coll.job, TT_TIME_HEARTBEAT), hail);
}

static bool poll(struct tt_coll *c, bool dozing)
{
	struct tt_allreduce *a = (struct tt_allreduce *)c;
	struct tt_board *b = board_of(a);
	struct tt_direct *d = &a->direct;

	if (dozing)
		doze(a);
	else
		tt_board_doze(b, false);
	if (is_given_up(a))
		return false;
	return b->lost || d->phase == STORE || (d->phase == TURN ? b->queue.next == &d->turn : look(a) != 0);
}

/* ---- life ---- */

static int begin(struct tt_allreduce *a)
{
	struct tt_direct *d = &a->direct;

	tt_list_append(&board_of(a)->queue, &d->turn);
	for (int i = 0; i < a->coll.n; i++)
		if (i != a->coll.me)
			tt_member_hold(tt_group_member(a->coll.group, i));
	tt_coll_poll_with(&a->coll, poll);
	a->coll.untidy = true;
	return 0;
}

static void let_go(struct tt_allreduce *a)
{
	for (int i = 0; i < a->coll.n; i++)
		if (i != a->coll.me)
			tt_member_let_go(tt_group_member(a->coll.group, i));
}

static void release(struct tt_allreduce *a)
{
	struct tt_board *b = board_of(a);
	struct tt_direct *d = &a->direct;

	tt_timer_stop(&d->hail);
	tt_board_doze(b, false);
	tt_list_remove(&d->turn);
	if (d->note && d->phase != DONE)
		tt_board_step(b, d->note, a->coll.seq, TT_STEP_QUIT);
	if (d->region)
		d->region->net->transport->dereg(d->region);
	if (d->note)
		tt_board_done(b, a->coll.seq);
	tt_coll_poll_with(&a->coll, NULL);
	let_go(a);
}

static size_t chunk(size_t bytes, size_t width, int n, size_t piece)
{
	(void)width, (void)n, (void)piece;
	return tt_min(bytes, TT_BOARD_CHUNK);
}

const struct tt_algorithm tt_direct = { "direct", begin, advance, release, chunk };
