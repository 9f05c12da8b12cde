/* allreduce.c - recursive doubling for small vectors, a ring for large ones.
 *
 * Both combine in an order that depends on the position in the vector alone, never on the rank or on timing, and each
 * sum is made once and copied: all ranks get the same bits.
 */
#include "runtime.h"
#include <stdlib.h>
#include <string.h>

enum {
	CHUNK = 256 * 1024,       /* bytes a put; stays in the cache while it is added */
	SLOTS = 4,                /* chunks that may lie in a landing slot, not yet added */
};

struct allreduce {
	struct tt_coll coll;
	char *buf;
	size_t count, width;        /* elements, bytes each */
	tutti_type type;
	tutti_rule rule;
};

static void finish_average(struct allreduce *a)
{
	if (a->rule == TUTTI_AVERAGE)
		tt_scale(a->buf, a->count, a->type, (unsigned)a->coll.n);
}

/* ---- recursive doubling: in round k I swap with the rank that differs from me in bit k (Thakur, Rabenseifner, Gropp
 * 2005). Where the number of ranks is no power of two, odd ones of the first few hand theirs to their left neighbour and
 * get the result back. A vector longer than a message goes segment by segment. ---- */

enum stage { FOLD, SWAP, UNFOLD };

struct doubling {
	struct allreduce a;
	enum stage stage;
	int round, extra, power;    /* power: of two, <= size; extra: ranks beyond it */
	bool sent;
	uint32_t segment;
};

static uint32_t tag_of(const struct doubling *d) { return d->segment * 64 + (uint32_t)(d->stage == SWAP ? 2 + d->round : d->stage == FOLD ? 0 : 1); }

/* Sends (once) and takes the same segment; 1: both happened. from or to -1: only the other. */
static int exchange(struct doubling *d, int to, int from, bool combine)
{
	struct allreduce *a = &d->a;
	size_t piece = tt_coll_piece(a->coll.job), at = d->segment * piece, len = tt_min(piece, a->count * a->width - at);
	const void *in;

	if (to >= 0 && !d->sent)
		tt_coll_send(&a->coll, to, tag_of(d), a->buf + at, len);
	d->sent = true;
	if (from >= 0) {
		if (!(in = tt_coll_take(&a->coll, from, tag_of(d), len)))
			return 0;
		if (combine)
			tt_reduce(a->buf + at, in, len / a->width, a->type, a->rule);
		else
			memcpy(a->buf + at, in, len);
	}
	d->sent = false;
	return 1;
}

static int fold(struct doubling *d, int me)
{
	if (me < 2 * d->extra && !exchange(d, me % 2 ? me - 1 : -1, me % 2 ? -1 : me + 1, true))
		return 0;
	d->stage = me < 2 * d->extra && me % 2 ? UNFOLD : SWAP;
	d->round = 0;
	return 1;
}

static int swap_rounds(struct doubling *d, int me)
{
	int id = me < 2 * d->extra ? me / 2 : me - d->extra;

	for (; 1 << d->round < d->power; d->round++) {
		int other = id ^ 1 << d->round, rank = other < d->extra ? 2 * other : other + d->extra;
		if (!exchange(d, rank, rank, true))
			return 0;
	}
	d->stage = UNFOLD;
	return 1;
}

static int unfold(struct doubling *d, int me)
{
	if (me < 2 * d->extra && !exchange(d, me % 2 ? -1 : me + 1, me % 2 ? me - 1 : -1, false))
		return 0;
	d->stage = FOLD;
	d->segment++;
	return 1;
}

static int advance_doubling(struct tt_coll *c)
{
	struct doubling *d = (struct doubling *)c;
	size_t piece = tt_coll_piece(c->job), total = d->a.count * d->a.width;
	int more = 1;

	while (more && d->segment * piece < total)
		more = d->stage == FOLD ? fold(d, c->me) : d->stage == SWAP ? swap_rounds(d, c->me) : unfold(d, c->me);
	if (more)
		finish_average(&d->a);
	return more;
}

static struct allreduce *new_doubling(struct tutti *group, size_t count, uint64_t kind)
{
	struct doubling *d = (struct doubling *)tt_coll_new(group, sizeof *d, "all-reduce", count, kind);

	if (!d)
		return NULL;
	for (d->power = 1; 2 * d->power <= d->a.coll.n; d->power *= 2)
		;
	d->extra = d->a.coll.n - d->power;
	d->a.coll.advance = advance_doubling;
	return &d->a;
}

/* ---- ring: the vector is cut into as many blocks as there are ranks. First each block goes once around, collecting;
 * then once more, copying (Patarasuk and Yuan 2009). Blocks travel in chunks, so that wire and adding overlap.
 *
 *      step t of 2(n-1):   I put block (me - t) to the right, and block (me - t - 1) comes from the left
 *      t <  n-1  collect:  it lands in a slot of mine, I add it; then the slot's credit goes back to the left
 *      t >= n-1  copy:     it lands in my vector. That place is free: what I sent from it has been around
 *
 * A chunk of step t+1 goes out when the same chunk of step t has been taken in, whatever its neighbours do. ---- */

enum { READY_SIZE = 2 * TT_KEY_SIZE }; /* what a rank tells its left neighbour: where to put */

struct ring {
	struct allreduce a;
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
	return (size_t)((unsigned __int128)r->a.count * (unsigned)block / (unsigned)r->a.coll.n);
}

struct span { /* elements */
	size_t at, count;
};

/* The next chunk of a walk; incoming blocks are those that the left neighbour puts. Steps with empty blocks are passed over. */
static bool next_chunk(const struct ring *r, struct cursor *c, bool incoming, struct span *s)
{
	int n = r->a.coll.n, me = r->a.coll.me;

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
	tt_coll_send(&r->a.coll, r->left, TT_TAG_READY, bytes, sizeof bytes);
}

static size_t slots_size(const struct ring *r) { return SLOTS * r->chunk * r->a.width; }

static int open_to_left(struct ring *r)
{
	struct tt_coll *c = &r->a.coll;
	int err = 0;

	if (r->opened)
		return 0;
	if (!r->slots && !(r->slots = tt_scratch_take(&c->job->scratch, slots_size(r))))
		return -ENOMEM;
	if (!r->slots_region && (err = tt_coll_open(c, r->left, r->slots, slots_size(r), &r->slots_region)))
		return err < 0 ? err : 0;
	if ((err = tt_coll_open(c, r->left, r->a.buf, r->a.count * r->a.width, &r->vector_region)))
		return err < 0 ? err : 0;
	say_ready(r);
	r->opened = true;
	return 0;
}

static void find_right(struct ring *r)
{
	const void *bytes;

	if (r->connected || !(bytes = tt_coll_take(&r->a.coll, r->right, TT_TAG_READY, READY_SIZE)))
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
	return !is_collecting(r, o) || o->collected - r->a.coll.notified[TT_LANE_CREDIT] < SLOTS;
}

static int send_chunks(struct ring *r)
{
	struct allreduce *a = &r->a;
	struct span s;
	int err = 0;

	while (!err && r->connected && next_chunk(r, &r->out, false, &s) && may_send(r)) {
		bool collecting = is_collecting(r, &r->out);
		uint64_t at = collecting ? r->out.collected % SLOTS * r->chunk : s.at;
		const char *from = a->buf + s.at * a->width;
		struct span next;
		pass_chunk(r, &r->out);
		err = tt_coll_put(&a->coll, r->right, collecting ? &r->slots_there : &r->vector_there, at * a->width, from, s.count * a->width,
		                  TT_LANE_DATA, !next_chunk(r, &r->out, false, &next));
	}
	return err;
}

/* Adds a chunk from its slot, which is free again then. The last SLOTS credits would find nobody who needs them. */
static int collect(struct ring *r, const struct span *s)
{
	struct allreduce *a = &r->a;
	char *sum = a->buf + s->at * a->width;

	tt_reduce(sum, r->slots + r->in.collected % SLOTS * r->chunk * a->width, s->count, a->type, a->rule);
	if (r->in.step == r->steps / 2 - 1 && a->rule == TUTTI_AVERAGE)
		tt_scale(sum, s->count, a->type, (unsigned)a->coll.n);
	if (r->in.collected + SLOTS >= r->to_collect)
		return 0;
	return tt_coll_put(&a->coll, r->left, NULL, 0, NULL, 0, TT_LANE_CREDIT, false);
}

static int take_chunks(struct ring *r)
{
	struct span s;
	int err = 0;

	while (!err && r->seen < r->a.coll.notified[TT_LANE_DATA] && next_chunk(r, &r->in, true, &s)) {
		if (is_collecting(r, &r->in))
			err = collect(r, &s);
		r->seen++;
		pass_chunk(r, &r->in);
		if (!err)
			err = send_chunks(r); /* while the chunk is in the cache */
	}
	return err;
}

static int advance_ring(struct tt_coll *c)
{
	struct ring *r = (struct ring *)c;
	struct span s;
	int err;

	if ((err = open_to_left(r)))
		return err;
	find_right(r);
	if ((err = send_chunks(r)) || (err = take_chunks(r)))
		return err;
	return !next_chunk(r, &r->in, true, &s) && !next_chunk(r, &r->out, false, &s);
}

static void release_ring(struct tt_coll *c)
{
	struct ring *r = (struct ring *)c;

	if (r->slots_region)
		r->slots_region->net->transport->dereg(r->slots_region);
	if (r->vector_region)
		r->vector_region->net->transport->dereg(r->vector_region);
	tt_scratch_give(&r->a.coll.job->scratch, r->slots, slots_size(r));
}

static void count_collecting(struct ring *r)
{
	struct cursor c = { 0 };
	struct span s;

	for (; next_chunk(r, &c, true, &s) && is_collecting(r, &c); pass_chunk(r, &c))
		;
	r->to_collect = c.collected;
}

static struct allreduce *new_ring(struct tutti *group, size_t count, size_t width, uint64_t kind)
{
	struct ring *r = (struct ring *)tt_coll_new(group, sizeof *r, "all-reduce", count, kind);
	if (!r)
		return NULL;
	int n = r->a.coll.n;
	r->left = (r->a.coll.me - 1 + n) % n;
	r->right = (r->a.coll.me + 1) % n;
	r->a.coll.notifier[TT_LANE_DATA] = r->left;
	r->a.coll.notifier[TT_LANE_CREDIT] = r->right;
	r->steps = 2 * (n - 1);
	r->chunk = tt_max(1, tt_min(CHUNK / width, (count / (size_t)n + 2) / 2));
	r->a.count = count;
	count_collecting(r);
	r->a.coll.advance = advance_ring;
	r->a.coll.release = release_ring;
	return &r->a;
}

/* ---- the call ---- */

static int choose_ring(const struct tutti *group, size_t bytes, bool *ring)
{
	const struct tt_job *job = group->job;
	const char *s = tt_setting(&job->settings, TT_ALLREDUCE);

	if (strcmp(s, "auto") && strcmp(s, "ring") && strcmp(s, "doubling"))
		return tt_fail(-EINVAL, "%s=%s is none of auto, doubling and ring", tt_setting_name(&job->settings, TT_ALLREDUCE), s);
	*ring = group->n > 1 && bytes && (*s == 'r' || (*s == 'a' && bytes > tt_coll_piece(job)));
	return 0;
}

int tutti_allreduce(tutti *group, void *buf, size_t count, tutti_type type, tutti_rule rule, tutti_op *op)
{
	size_t width = tt_type_size(type);
	bool ring = false;
	int err;

	if (!width || (unsigned)rule > TUTTI_MIN)
		return tt_fail(-EINVAL, "all-reduce: type %d or rule %d is unknown", (int)type, (int)rule);
	if (!buf && count)
		return tt_fail(-EINVAL, "all-reduce: %zu elements at NULL", count);
	if (count > PTRDIFF_MAX / width)
		return tt_fail(-EINVAL, "all-reduce: %zu elements of %zu bytes are more than memory can hold", count, width);
	if ((err = choose_ring(group, count * width, &ring)))
		return err;
	uint64_t kind = (uint64_t)type << 16 | (uint64_t)rule << 8 | ring;
	struct allreduce *a = ring ? new_ring(group, count, width, kind) : new_doubling(group, count, kind);
	if (!a)
		return -ENOMEM;
	a->buf = buf;
	a->count = count;
	a->width = width;
	a->type = type;
	a->rule = rule;
	a->coll.bytes = count * width;
	return tt_coll_run(&a->coll, op);
}
