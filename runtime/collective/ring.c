/* ring.c - all-reduce in a ring: the vector is cut into as many blocks as there are ranks. First each block goes once around, collecting;
 * then once more, copying (Patarasuk and Yuan 2009). Blocks travel in chunks, so that wire and adding overlap.
 *
 *      step t of 2(n-1):   I put block (me - t) to the right, and block (me - t - 1) comes from the left
 *      t <  n-1  collect:  it lands in a slot of mine, I add it; then the slot's credit goes back to the left
 *      t >= n-1  copy:     it lands in my vector. That place is free: what I sent from it has been around
 *
 * A chunk of step t+1 goes out when the same chunk of step t has been taken in, whatever its neighbours do.
 *
 * Order of additions: block b is collected by rank b+1, which adds its own to rank b's, then by b+2, ..., b+n-1.
 */
#include "collective/collective_private.h"
#include "engine/engine.h"
#include "kernel/kernel.h"
#include "member/member.h"
#include <stdlib.h>

enum {
	CHUNK = 256 * 1024,       /* bytes a put; stays in the cache while it is added */
	SLOTS = 4,                /* chunks that may lie in a landing slot, not yet added */
};

enum { READY_SIZE = 2 * TT_KEY_SIZE }; /* what a rank tells its left neighbour: where to put */

struct ring {
	struct tt_exchange *x;
	int left, right, steps;
	size_t chunk;               /* elements */
	char *slots;
	struct tt_region *slots_region, *vector_region;
	bool opened, connected;     /* the left one knows where; I know where to the right */
	struct tt_key slots_there, vector_there;
	struct cursor { /* walks over all chunks of all steps */
		int step;
		size_t index;           /* chunk within the step's block */
		uint32_t collected;     /* chunks of collecting steps passed */
	} out, in;
	uint32_t seen;              /* notifies taken in */
	uint32_t to_collect;        /* chunks that will come into slots */
};

static size_t block_start(const struct ring *r, int block)
{
	return (size_t)((unsigned __int128)r->x->count * (unsigned)block / (unsigned)r->x->n);
}

struct span { /* elements */
	size_t at, count;
};

/* The next chunk of a walk; incoming blocks are those that the left neighbour puts. Steps with empty blocks are passed over. */
static bool next_chunk(const struct ring *r, struct cursor *c, bool incoming, struct span *s)
{
	int n = r->x->n, me = r->x->me;

	for (; c->step < r->steps; c->step++, c->index = 0) {
		int block = ((me - c->step - incoming) % n + 2 * n) % n;
		size_t from = block_start(r, block), to = block_start(r, block + 1);
		s->at = from + c->index * r->chunk;
		if (s->at < to) {
			s->count = tt_min(r->chunk, to - s->at);
			return true;
		}
	}
	return false;
}

static bool is_collecting(const struct ring *r, const struct cursor *c) { return c->step < r->steps / 2; }

static void pass_chunk(const struct ring *r, struct cursor *c)
{
	c->collected += is_collecting(r, c);
	c->index++;
}

static void say_ready(struct ring *r)
{
	uint8_t bytes[READY_SIZE];
	struct tt_pack p = tt_pack(bytes, sizeof bytes);

	tt_put_key(&p, &r->slots_region->key);
	tt_put_key(&p, &r->vector_region->key);
	tt_coll_send(r->x->coll, r->left, TT_TAG_READY, bytes, sizeof bytes);
}

static size_t slots_size(const struct ring *r) { return SLOTS * r->chunk * r->x->width; }

static int open_to_left(struct ring *r)
{
	struct tt_coll *c = r->x->coll;
	int err = 0;

	if (r->opened)
		return 0;
	if (!r->slots && !(r->slots = tt_scratch_take(&c->job->scratch, slots_size(r))))
		return -ENOMEM;
	if (!r->slots_region && (err = tt_coll_open(c, r->left, r->slots, slots_size(r), &r->slots_region)))
		return err < 0 ? err : 0;
	if ((err = tt_coll_open(c, r->left, r->x->buf, r->x->count * r->x->width, &r->vector_region)))
		return err < 0 ? err : 0;
	say_ready(r);
	r->opened = true;
	return 0;
}

static void find_right(struct ring *r)
{
	const void *bytes;

	if (r->connected || !(bytes = tt_coll_take(r->x->coll, r->right, TT_TAG_READY, READY_SIZE)))
		return;
	struct tt_pack p = tt_unpack(bytes, READY_SIZE);
	tt_get_key(&p, &r->slots_there);
	tt_get_key(&p, &r->vector_there);
	r->connected = true;
}

/* May it go? What came in at the step before must have been taken in, and a collecting chunk needs a free slot. */
static bool may_send(const struct ring *r)
{
	const struct cursor *o = &r->out, *i = &r->in;

	if (o->step > 0 && !(i->step > o->step - 1 || (i->step == o->step - 1 && i->index > o->index)))
		return false;
	return !is_collecting(r, o) || o->collected - r->x->coll->notified[TT_LANE_CREDIT] < SLOTS;
}

static int send_chunks(struct ring *r)
{
	struct tt_exchange *x = r->x;
	struct span s;
	int err = 0;

	while (!err && r->connected && next_chunk(r, &r->out, false, &s) && may_send(r)) {
		bool collecting = is_collecting(r, &r->out);
		uint64_t at = collecting ? r->out.collected % SLOTS * r->chunk : s.at;
		const char *from = x->buf + s.at * x->width;
		struct span next;
		pass_chunk(r, &r->out);
		err = tt_coll_put(x->coll, r->right, collecting ? &r->slots_there : &r->vector_there, at * x->width, from, s.count * x->width,
		                  TT_LANE_DATA, !next_chunk(r, &r->out, false, &next));
	}
	return err;
}

/* Adds a chunk from its slot, which is free again then. The last SLOTS credits would find nobody who needs them. */
static int collect(struct ring *r, const struct span *s)
{
	struct tt_exchange *x = r->x;
	char *sum = x->buf + s->at * x->width;

	tt_reduce(sum, r->slots + r->in.collected % SLOTS * r->chunk * x->width, s->count, x->type, x->rule);
	if (r->in.step == r->steps / 2 - 1 && x->rule == TUTTI_AVERAGE)
		tt_scale(sum, s->count, x->type, (unsigned)x->coll->n);
	if (r->in.collected + SLOTS >= r->to_collect)
		return 0;
	return tt_coll_put(x->coll, r->left, NULL, 0, NULL, 0, TT_LANE_CREDIT, false);
}

static int take_chunks(struct ring *r)
{
	struct span s;
	int err = 0;

	while (!err && r->seen < r->x->coll->notified[TT_LANE_DATA] && next_chunk(r, &r->in, true, &s)) {
		if (is_collecting(r, &r->in))
			err = collect(r, &s);
		r->seen++;
		pass_chunk(r, &r->in);
		if (!err)
			err = send_chunks(r); /* while the chunk is in the cache */
	}
	return err;
}

static int advance(struct tt_exchange *x)
{
	struct ring *r = x->state;
	struct span s;
	int err;

	if ((err = open_to_left(r)))
		return err;
	find_right(r);
	if ((err = send_chunks(r)) || (err = take_chunks(r)))
		return err;
	return !next_chunk(r, &r->in, true, &s) && !next_chunk(r, &r->out, false, &s);
}

static void release(struct tt_exchange *x)
{
	struct ring *r = x->state;

	if (!r)
		return;
	if (r->slots_region)
		r->slots_region->net->transport->dereg(r->slots_region);
	if (r->vector_region)
		r->vector_region->net->transport->dereg(r->vector_region);
	tt_scratch_give(&x->coll->job->scratch, r->slots, slots_size(r));
	free(r);
}

static void count_collecting(struct ring *r)
{
	struct cursor c = { 0 };
	struct span s;

	for (; next_chunk(r, &c, true, &s) && is_collecting(r, &c); pass_chunk(r, &c))
		;
	r->to_collect = c.collected;
}

/* In elements: at least two chunks a block, so that wire and adding overlap. */
static size_t chunk_elements(size_t count, size_t width, int n)
{
	return tt_max(1, tt_min(CHUNK / width, (count / (size_t)n + 2) / 2));
}

static size_t chunk_of(size_t bytes, size_t width, int n, size_t piece)
{
	(void)piece;
	return chunk_elements(bytes / width, width, n) * width;
}

static int begin(struct tt_exchange *x)
{
	struct ring *r = calloc(1, sizeof *r);
	int n = x->n, me = x->me;

	if (!r)
		return tt_fail(-ENOMEM, "no memory for an all-reduce");
	x->state = r;
	r->x = x;
	r->left = tt_exchange_seat(x, (me - 1 + n) % n);
	r->right = tt_exchange_seat(x, (me + 1) % n);
	x->coll->notifier[TT_LANE_DATA] = r->left;
	x->coll->notifier[TT_LANE_CREDIT] = r->right;
	r->steps = 2 * (n - 1);
	r->chunk = chunk_elements(x->count, x->width, n);
	count_collecting(r);
	return 0;
}

const struct tt_algorithm tt_ring = { "ring", begin, advance, release, chunk_of };
