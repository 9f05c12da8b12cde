/* transfer.c - runs of bytes between ranks, of which the larger collectives consist
 *
 * A transfer moves a run of bytes from one rank to another, in order. A collective says which transfers come in and
 * which go out, in which order, and for what an outgoing one waits. This file moves them.
 *
 *      sender                                             receiver
 *      START {length, how many bytes are here}, bytes        -->   compares the length; adds or copies
 *                                <--   READY {key, where in it}    if long: memory is open, the bytes' own place,
 *      PUT, with a notify for each chunk                     -->   or, if they are to be added, a few slots
 *                                <--   credit                      a slot is free again
 *
 * Before READY has come, the sender sends the first bytes in START, so no transfer waits for a round trip. If READY
 * comes first, the sender needs no START, unless the ends might not agree on the length (`always`). A READY may leave
 * together with the next message: several READYs and a START are one packet.
 */
#include "collective/collective_private.h"
#include "engine/engine.h"
#include "kernel/kernel.h"
#include "member/member.h"
#include <stdlib.h>
#include <string.h>

enum {
	CHUNK = 256 * 1024,       /* bytes of a put, at most: a chunk stays in the cache while it is added */
	CHUNK_LEAST = 128 * 1024, /* ... and at least; in between half a transfer, so that sending and adding overlap */
	SLOTS = 4,                /* chunks that may have landed and are not added yet */
	AHEAD_ADDING = 3,         /* transfers that may have slots at the same time */
	SEGMENT = 1024 * 1024,    /* bytes of a block of a long all-reduce in a segment, at least; twice that at most */
	FIRST = 16 * 1024,        /* bytes of a long transfer that do not wait for READY: what can be sent meanwhile */
	TAGS = 64,                /* for each transfer: START, ... */
	TAG_READY = 63,           /* ... and this */
	WIDER = 2,                /* how often an f16 or bf16 fits into an f32 */
	TILE = 1024,              /* elements that are combined at a time */
};

static size_t short_len(const struct tt_transfers *l) { return l->rendezvous ? 0 : TT_COLL_SHORT; }
static bool is_void(const struct tt_transfers *l, const struct tt_transfer *t) { return !t->len && !l->always; }

/* Does it come into slots? So does what is combined, or goes to memory in parts. The same at both ends. */
static bool has_slots(const struct tt_transfers *l, const struct tt_transfer *t)
{
	return t->combine || l->vector.parts;
}

static bool is_over(const struct tt_transfers *l, const struct tt_transfer *t)
{
	return is_void(l, t) || (t->started && t->done == t->len);
}

size_t tt_transfers_chunk(size_t len)
{
	return tt_max(CHUNK_LEAST, tt_min(CHUNK, (len / 2 + 63) & ~(size_t)63));
}

static size_t chunk_of(const struct tt_transfer *t) { return tt_transfers_chunk(t->len); }
static size_t slots_size(const struct tt_transfer *t) { return SLOTS * chunk_of(t); }

static size_t chunks_after(const struct tt_transfer *t, size_t from)
{
	return (t->len - from + chunk_of(t) - 1) / chunk_of(t);
}

/* ---- in ---- */

static int open_transfer(struct tt_transfers *l, struct tt_transfer *in)
{
	struct tt_coll *c = l->coll;
	uint8_t ready[TT_COLL_KEY];
	int err;

	if (in->open || in->len <= short_len(l))
		return 0;
	if (has_slots(l, in) && !in->slots && !(in->slots = tt_scratch_take(&c->job->scratch, slots_size(in))))
		return -ENOMEM;
	char *room = in->slots ? in->slots : l->vector.out + in->at;
	err = tt_coll_lend(c, in->other, room, in->slots ? slots_size(in) : in->len, &in->loan);
	if (err)
		return err < 0 ? err : 0;
	struct tt_pack p = tt_pack(ready, sizeof ready);
	tt_coll_put_key(&p, in->loan, room);
	tt_coll_send_lazily(c, in->other, in->id * TAGS + TAG_READY, ready, sizeof ready);
	in->open = true;
	return 0;
}

static void close_transfer(struct tt_transfers *l, struct tt_transfer *in)
{
	if (in->loan)
		tt_coll_take_back(l->coll, in->loan, is_over(l, in), in->slots ? slots_size(in) : 0);
	else
		tt_scratch_give(&l->coll->job->scratch, in->slots, slots_size(in));
	in->loan = NULL;
	in->slots = NULL;
}

static void combine_run(const struct tt_transfers *l, const struct tt_transfer *in, struct tt_run r, const void *bytes)
{
	size_t count = r.len / l->width;

	tt_reduce_to(r.out, in->given ? r.in : r.out, bytes, count, l->type, l->rule);
	if (in->last && l->rule == TUTTI_AVERAGE)
		tt_scale(r.out, count, l->type, (unsigned)l->coll->n);
}

/* Of two ranks: what they give is the result, rounded once. */
static void combine_two(const struct tt_transfers *l, struct tt_run r, const void *bytes)
{
	const struct tt_many two = { .from = (const void *[]){ r.in, bytes }, .to = (void *[]){ r.out }, .inputs = 2,
		                     .outputs = 1 };

	tt_reduce_many(&two, r.len / l->width, l->type, l->rule);
}

/* Element by element, in the caches. A complete sum need not go to `wide`. */
static void combine_some(const struct tt_transfers *l, const struct tt_transfer *in, struct tt_run r, float *wide,
                         const void *bytes)
{
	float theirs[TILE], mine[TILE], *sum = in->last ? mine : wide;
	size_t count = r.len / l->width;

	if (in->given)
		tt_to_f32(mine, r.in, count, l->type);
	if (!in->partial)
		tt_to_f32(theirs, bytes, count, l->type);
	tt_reduce_to(sum, in->given ? mine : wide, in->partial ? bytes : theirs, count, TUTTI_F32, l->rule);
	if (in->last && l->rule == TUTTI_AVERAGE)
		tt_scale(sum, count, TUTTI_F32, (unsigned)l->coll->n);
	if (in->last)
		tt_from_f32(r.out, sum, count, l->type);
}

/* `at` counts bytes of the vector, of which `n` are combined. */
static void combine_wide(const struct tt_transfers *l, const struct tt_transfer *in, size_t at, const char *bytes,
                         size_t n)
{
	bool two = in->given && in->last && !in->partial && l->coll->n == 2;
	struct tt_run r;

	for (; n; at += r.len, n -= r.len) {
		r = tt_vector_run(&l->vector, at, two ? n : tt_min(n, TILE * l->width));
		if (two)
			combine_two(l, r, bytes);
		else
			combine_some(l, in, r, l->wide + at / l->width, bytes);
		bytes += in->partial ? r.len / l->width * sizeof(float) : r.len;
	}
}

static void take_bytes(struct tt_transfers *l, struct tt_transfer *in, const char *bytes, size_t n)
{
	size_t at = in->at + in->done;
	struct tt_run r;

	in->done += n;
	if (!in->combine)
		tt_vector_write(&l->vector, at, bytes, n);
	if (in->combine && l->wide) {
		combine_wide(l, in, in->partial ? at / WIDER : at, bytes, in->partial ? n / WIDER : n);
		return;
	}
	for (; in->combine && n; at += r.len, bytes += r.len, n -= r.len) {
		r = tt_vector_run(&l->vector, at, n);
		combine_run(l, in, r, bytes);
	}
}

static int disagree(struct tt_transfers *l, const struct tt_transfer *transfer)
{
	l->coll->culprit = l->coll->group->seats[transfer->other].rank;
	return -EBADMSG;
}

/* A short transfer is sent all by message. */
static bool may_go_by_message(const struct tt_transfers *l, uint64_t len, uint64_t by_message)
{
	return len <= short_len(l) ? by_message == len : by_message % 64 == 0;
}

/* 1: START is here, 0: not yet */
static int take_start(struct tt_transfers *l, struct tt_transfer *in)
{
	size_t n;
	int from = in->other;
	const uint8_t *bytes = tt_coll_take_any(l->coll, &from, in->id * TAGS, &n);

	if (!bytes)
		return 0;
	struct tt_pack p = tt_unpack(bytes, n);
	uint64_t len = tt_get64(&p), by_message = tt_get64(&p);
	if (p.bad || len != in->len || tt_pack_left(&p) != by_message || by_message > len ||
	    !may_go_by_message(l, len, by_message))
		return disagree(l, in);
	in->started = true;
	in->by_message = by_message;
	take_bytes(l, in, (const char *)p.at, by_message);
	return 1;
}

/* Takes a chunk that was put. The sender has no use for the last SLOTS credits. */
static int take_chunk(struct tt_transfers *l, struct tt_transfer *in)
{
	size_t chunk = chunk_of(in), n = tt_min(chunk, in->len - in->done);

	take_bytes(l, in, in->slots ? in->slots + in->chunks % SLOTS * chunk : l->vector.out + in->at + in->done, n);
	in->chunks++;
	if (!in->slots || in->chunks + SLOTS > chunks_after(in, in->by_message))
		return 0;
	return tt_coll_put(l->coll, in->other, NULL, 0, NULL, 0, 0, TT_LANE_CREDIT);
}

/* Takes what has come. 1: something, 0: nothing */
static int pull_transfer(struct tt_transfers *l, struct tt_transfer *in)
{
	uint32_t *notified = &l->coll->notified_by[2 * in->other + TT_LANE_DATA];
	int err;

	if (!in->started) {
		int k = take_start(l, in);
		if (k || l->always || !in->open || !*notified)
			return k;
		in->started = true; /* a chunk without START before it */
	}
	if (in->done == in->len || !in->open || !*notified) /* nothing can have been put before it was open */
		return 0;
	--*notified;
	err = take_chunk(l, in);
	return err ? err : 1;
}

/* ---- out ---- */

/* The same place, in bytes of what `out` sends. */
static size_t place_in(const struct tt_transfer *out, const struct tt_transfer *in, size_t at)
{
	return in->partial == out->partial ? at : out->partial ? at * WIDER : at / WIDER;
}

/* How many of its bytes may be sent: those that no earlier transfer in has still to bring. */
static size_t ready_bytes(const struct tt_transfers *l, const struct tt_transfer *out)
{
	size_t from = out->at, to = out->at + out->len;

	for (int k = l->ins_done; k < out->after; k++) {
		const struct tt_transfer *in = &l->in[k];
		size_t missing = place_in(out, in, in->at + in->done), end = place_in(out, in, in->at + in->len);
		if (missing < to && end > from)
			to = missing > from ? missing : from;
	}
	return to - from;
}

static void take_key(struct tt_transfers *l, struct tt_transfer *out)
{
	const void *ready;

	if (out->open || out->len <= short_len(l))
		return;
	if (!(ready = tt_coll_take(l->coll, out->other, out->id * TAGS + TAG_READY, TT_COLL_KEY)))
		return;
	struct tt_pack p = tt_unpack(ready, TT_COLL_KEY);
	tt_get_key(&p, &out->key);
	out->key_at = tt_get64(&p);
	out->open = true;
}

static struct tt_vector source_of(const struct tt_transfers *l, const struct tt_transfer *out)
{
	struct tt_vector v = out->partial ? tt_vector_at((char *)l->wide) : l->vector;

	v.in = out->given ? v.in : v.out;
	return v;
}

static void send_start(struct tt_transfers *l, struct tt_transfer *out)
{
	uint8_t head[TT_COLL_START];
	struct tt_vector v = source_of(l, out);
	struct tt_pack p = tt_pack(head, sizeof head);

	tt_put64(&p, out->len);
	tt_put64(&p, out->by_message);
	tt_coll_send_run(l->coll, out->other, out->id * TAGS, head, sizeof head, &v, out->at, out->by_message);
	out->done = out->by_message;
}

/* Sends all of a short transfer, or the first bytes of a long one that is not open yet. */
static int begin_transfer(struct tt_transfers *l, struct tt_transfer *out)
{
	size_t ready = ready_bytes(l, out);

	bool is_short = out->len <= short_len(l);

	if (ready < out->len && (is_short || ready < CHUNK_LEAST))
		return 0;
	out->started = true;
	if (out->open && !l->always)
		return 1;
	if (is_short)
		out->by_message = out->len;
	else if (!out->open) /* never all */
		out->by_message = tt_min(tt_min(ready, out->len - 1), FIRST) & ~(size_t)63;
	send_start(l, out);
	return 1;
}

static int put_chunk(struct tt_transfers *l, struct tt_transfer *out, size_t n)
{
	uint64_t to = out->key_at + (has_slots(l, out) ? out->chunks % SLOTS * chunk_of(out) : out->done);
	struct tt_vector v = source_of(l, out);
	int err = tt_coll_put(l->coll, out->other, &out->key, to, &v, out->at + out->done, n, TT_LANE_DATA);

	out->chunks++;
	out->done += n;
	return err ? err : 1;
}

static int push_transfer(struct tt_transfers *l, struct tt_transfer *out)
{
	uint32_t *credits = &l->coll->notified_by[2 * out->other + TT_LANE_CREDIT];
	size_t n;

	take_key(l, out);
	if (!out->started)
		return begin_transfer(l, out);
	n = tt_min(chunk_of(out), out->len - out->done);
	if (!n || !out->open || ready_bytes(l, out) < out->done + n)
		return 0;
	if (has_slots(l, out) && out->chunks >= SLOTS + out->credits) {
		out->credits += *credits;
		*credits = 0;
		if (out->chunks >= SLOTS + out->credits)
			return 0;
	}
	return put_chunk(l, out, n);
}

/* Chunks of two transfers to one rank must not be mixed, because the receiver counts notifies. */
static bool is_behind(const struct tt_transfers *l, int k)
{
	for (int i = l->outs_done; i < k; i++)
		if (l->out[i].other == l->out[k].other && !is_over(l, &l->out[i]))
			return true;
	return false;
}

/* ---- all of them ---- */

static int push_transfers(struct tt_transfers *l)
{
	int k, moved = 0;
	/* Sending stays near receiving, so that a late rank is not flooded. */
	for (k = l->outs_done; k < l->outs && k < l->outs_done + l->ahead && k < l->ins_done + l->ahead; k++)
		while (!is_over(l, &l->out[k]) && !is_behind(l, k) && (moved = push_transfer(l, &l->out[k])))
			if (moved < 0)
				return moved;
	for (k = l->outs_done; l->outs_done < l->outs && is_over(l, &l->out[l->outs_done]);)
		l->outs_done++;
	return l->outs_done > k;
}

static int pull_transfers(struct tt_transfers *l)
{
	int moved, err = 0;

	for (int k = l->ins_done; !err && k < l->ins && k < l->ins_done + l->ahead; k++)
		if (!has_slots(l, &l->in[k]) || k < l->ins_done + AHEAD_ADDING)
			err = open_transfer(l, &l->in[k]);
	if (err || l->ins_done == l->ins)
		return err;
	struct tt_transfer *in = &l->in[l->ins_done];
	moved = is_over(l, in) ? 0 : pull_transfer(l, in);
	if (moved < 0 || !is_over(l, in))
		return moved;
	close_transfer(l, in);
	l->ins_done++;
	return 1;
}

int tt_transfers_advance(struct tt_transfers *l)
{
	int in, out;

	do {
		if ((in = pull_transfers(l)) < 0)
			return in;
		if ((out = push_transfers(l)) < 0)
			return out;
	} while (in || out);
	return l->ins_done == l->ins && l->outs_done == l->outs;
}

int tt_transfers_new(struct tt_transfers *l, struct tt_coll *c, int max, int ahead)
{
	l->coll = c;
	l->ahead = ahead;
	l->in = calloc(2 * (size_t)tt_max(max, 1), sizeof *l->in);
	l->out = l->in + tt_max(max, 1);
	c->notified_by = calloc(2 * (size_t)c->n, sizeof *c->notified_by);
	if (l->in && c->notified_by)
		return 0;
	return tt_fail(-ENOMEM, "no memory for a collective of %d ranks", c->n);
}

void tt_transfers_free(struct tt_transfers *l)
{
	for (int k = l->ins_done; l->in && k < l->ins; k++)
		close_transfer(l, &l->in[k]);
	free(l->in);
	l->in = NULL;
}

/* ---- an all-reduce that consists of transfers ---- */

int tt_exchange_begin(struct tt_exchange *x, int max, int ahead)
{
	struct tt_transfers *l = x->state = calloc(1, sizeof *l);

	if (!l)
		return tt_fail(-ENOMEM, "no memory for an all-reduce");
	l->vector = x->vector;
	l->wide = x->wide;
	l->width = x->width;
	l->type = x->type;
	l->rule = x->rule;
	return tt_transfers_new(l, x->coll, max, ahead);
}

int tt_exchange_segments(const struct tt_exchange *x, int blocks)
{
	return (int)tt_max(x->count * x->width / ((size_t)blocks * SEGMENT), 1);
}

int tt_exchange_begin_segments(struct tt_exchange *x, int blocks, int max, int ahead,
                               void (*reduce)(struct tt_exchange *, int), void (*gather)(struct tt_exchange *, int))
{
	int segments = tt_exchange_segments(x, blocks), err = tt_exchange_begin(x, segments * max, ahead);

	for (int s = 0; !err && s <= segments; s++) {
		if (s < segments)
			reduce(x, s);
		if (s)
			gather(x, s - 1);
	}
	return err;
}

int tt_exchange_advance(struct tt_exchange *x) { return tt_transfers_advance(x->state); }

void tt_exchange_release(struct tt_exchange *x)
{
	if (x->state)
		tt_transfers_free(x->state);
	free(x->state);
}

/* Block b of n begins at element count * b / n. */
static size_t block_at(const struct tt_exchange *x, int blocks, int block)
{
	return x->at + (size_t)((unsigned __int128)x->count * (unsigned)block / (unsigned)blocks) * x->width;
}

struct tt_transfer tt_exchange_blocks(const struct tt_exchange *x, int other, uint32_t id, int blocks, int first, int n)
{
	size_t at = block_at(x, blocks, first), len = block_at(x, blocks, first + n) - at;

	return (struct tt_transfer){ .other = tt_exchange_seat(x, other), .id = id, .at = at, .len = len };
}

void tt_exchange_combine(const struct tt_exchange *x, struct tt_transfer *t, bool given)
{
	t->combine = true;
	t->partial = x->wide && (!given || x->summed);
	t->at *= t->partial ? WIDER : 1;
	t->len *= t->partial ? WIDER : 1;
}

void tt_exchange_send(struct tt_exchange *x, struct tt_transfer out)
{
	struct tt_transfers *l = x->state;

	out.after = l->ins;
	l->out[l->outs++] = out;
}

void tt_exchange_receive(struct tt_exchange *x, struct tt_transfer in)
{
	struct tt_transfers *l = x->state;

	in.given &= !x->summed;
	l->in[l->ins++] = in;
}
