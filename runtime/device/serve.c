/* serve.c - what the two rooms of a transfer say to each other, and what an owner does for the asker
 *
 * Numbers are the asker's. A READY, FREE or END of a transfer that has ended meanwhile is dropped. */
#include "device/device_private.h"
#include <stdio.h>

enum { SERVED = 4 * TT_ASKED }; /* an owner may be slower to end a transfer than its asker */

/* ---- out ---- */

/* The id is the sender's, or the receiver's. */
static struct tt_pack put_head(uint8_t *bytes, size_t room, uint8_t type, const struct tt_transfer *t)
{
	struct tt_pack p = tt_pack(bytes, room);

	tt_put8(&p, type);
	tt_put8(&p, !t->serves);
	tt_put32(&p, t->id);
	return p;
}

void tt_say_begin(struct tt_transfer *t)
{
	bool get = t->from.kind == TT_SIDE_PEER;
	const struct tt_side *there = get ? &t->from : &t->to;
	uint8_t bytes[32];
	struct tt_pack p = tt_pack(bytes, sizeof bytes);

	tt_put8(&p, get ? TT_GIVE : TT_TAKE);
	tt_put32(&p, t->id);
	tt_put32(&p, tt_staged_id(there->key));
	tt_put64(&p, there->offset);
	tt_put64(&p, t->len);
	tt_send(t->member, bytes, (size_t)(p.at - bytes), NULL, 0);
}

void tt_say_ready(struct tt_piece *piece)
{
	const struct tt_devices *d = tt_devices(piece->of->job);
	struct tt_member *m = piece->of->member;
	const struct tt_region *r = NULL;
	uint8_t bytes[24 + TT_KEY_SIZE];
	struct tt_pack p = put_head(bytes, sizeof bytes, TT_READY, piece->of);

	if (m->state != TT_UP)
		return; /* it has ended: the piece is let go with the transfer */
	for (int i = 0; i < TT_NETS && d->chunks[i]; i++)
		if (d->chunks[i]->net == tt_member_net(m))
			r = d->chunks[i];
	tt_put32(&p, piece->ready.number);
	tt_put_key(&p, &r->key);
	tt_put64(&p, (uint64_t)piece->chunk * TT_CHUNK);
	tt_send(m, bytes, (size_t)(p.at - bytes), NULL, 0);
}

void tt_say_free(struct tt_transfer *t, uint32_t number)
{
	uint8_t bytes[10];
	struct tt_pack p = put_head(bytes, sizeof bytes, TT_FREE, t);

	tt_put32(&p, number);
	if (t->member->state == TT_UP)
		tt_send(t->member, bytes, sizeof bytes, NULL, 0);
}

static void send_end(struct tt_member *m, bool asker, uint32_t id, int err, const char *why)
{
	uint8_t bytes[10];
	struct tt_pack p = tt_pack(bytes, sizeof bytes);

	tt_put8(&p, TT_END);
	tt_put8(&p, asker);
	tt_put32(&p, id);
	tt_put32(&p, (uint32_t)-err);
	tt_send(m, bytes, sizeof bytes, why, why ? strlen(why) : 0);
}

/* An owner that gives says nothing if all went well: the asker has counted the bytes. */
void tt_say_end(struct tt_transfer *t)
{
	bool taken = t->serves && t->from.kind == TT_SIDE_PEER;
	char why[200] = "";
	bool unasked = !t->serves && !t->started; /* the owner knows nothing of the transfer */

	if (unasked || t->told || !tt_transfer_has_peer(t) || t->member->state != TT_UP || (!t->err && !taken))
		return;
	if (t->why)
		snprintf(why, sizeof why, "rank %d: %s", t->job->rank, t->why);
	send_end(t->member, !t->serves, t->id, t->err, why);
}

/* ---- an owner begins ---- */

static struct tt_staged *find_memory(struct tt_member *from, uint32_t region, uint64_t offset, uint64_t len, int *err)
{
	struct tt_staged *s = tt_staged_find(from->job, region);

	*err = !s ? -ESTALE : offset > s->base.mem.len || len > s->base.mem.len - offset ? -ERANGE : 0;
	return *err ? NULL : s;
}

static void take_request(struct tt_member *from, struct tt_pack *p, bool give)
{
	uint32_t id = tt_get32(p), region = tt_get32(p);
	uint64_t offset = tt_get64(p), len = tt_get64(p);
	struct tt_device_peer *peer = tt_device_peer(from);
	struct tt_transfer *t = NULL;
	int err;

	p->bad |= !len || (peer && peer->served >= SERVED);
	if (p->bad)
		return;
	struct tt_staged *s = find_memory(from, region, offset, len, &err);
	if (s && peer) {
		struct tt_side here = { .kind = TT_SIDE_DEVICE, .at = (char *)s->base.mem.base + offset,
			                .gpu = s->base.mem.gpu, .fence = s->fence };
		struct tt_side there = { .kind = TT_SIDE_PEER };
		t = tt_transfer_new(from->job, from, give ? &there : &here, give ? &here : &there, len);
	}
	if (!t) {
		send_end(from, false, id, err ? err : -ENOMEM, NULL);
		return;
	}
	t->serves = true;
	t->id = id;
	t->region = &s->base;
	peer->served++;
}

void tt_device_take_give(struct tt_member *from, struct tt_pack *p) { take_request(from, p, true); }
void tt_device_take_take(struct tt_member *from, struct tt_pack *p) { take_request(from, p, false); }

/* ---- in ---- */

static struct tt_transfer *take_head(struct tt_member *from, struct tt_pack *p)
{
	bool theirs = tt_get8(p);
	uint32_t id = tt_get32(p);

	tt_devices(from->job)->fresh = true;
	tt_each_of(struct tt_transfer, link, t, &tt_devices(from->job)->moving)
		if (t->member == from && t->id == id && t->serves == theirs && tt_transfer_has_peer(t))
			return t;
	return NULL;
}

/* A giver has TT_PIECES pieces on their way, so one that is further behind the first that is missing has come before,
 * or makes no sense. False: it has not come in its turn. */
static bool comes_once(struct tt_transfer *t, uint32_t number)
{
	uint32_t nth = number - t->first;

	if (nth >= TT_PIECES || t->came >> nth & 1)
		return false;
	for (t->came |= 1u << nth; t->came & 1; t->came >>= 1)
		t->first++;
	return true;
}

void tt_device_take_ready(struct tt_member *from, struct tt_pack *p)
{
	struct tt_transfer *t = take_head(from, p);
	struct tt_ready r = { .number = tt_get32(p) };

	tt_get_key(p, &r.key);
	r.at = tt_get64(p);
	p->bad |= tt_key_is_staged(&r.key);
	if (p->bad || !t || t->err)
		return;
	p->bad |= t->from.kind != TT_SIDE_PEER || r.number >= (t->len + t->unit - 1) / t->unit ||
	          t->readies == TT_PIECES || !comes_once(t, r.number);
	if (!p->bad)
		t->ready[t->readies++] = r;
}

void tt_device_take_free(struct tt_member *from, struct tt_pack *p)
{
	struct tt_transfer *t = take_head(from, p);
	uint32_t number = tt_get32(p);

	for (int i = 0; t && !p->bad && i < TT_PIECES; i++)
		if (t->pieces[i].awaited && t->pieces[i].ready.number == number)
			t->pieces[i].awaited = false;
}

void tt_device_take_end(struct tt_member *from, struct tt_pack *p)
{
	struct tt_transfer *t = take_head(from, p);
	uint32_t err = tt_get32(p);
	char why[200];

	if (p->bad || !t)
		return;
	p->bad |= err > 4095;
	snprintf(why, sizeof why, "%.*s", (int)tt_min(tt_pack_left(p), sizeof why - 1), (const char *)p->at);
	t->told = true;
	for (; err && t->serves && t->readies; t->readies--) /* the asker keeps the chunks until then */
		tt_say_free(t, t->ready[t->readies - 1].number);
	if (err)
		tt_transfer_fail(t, -(int)err, *why ? why : NULL);
	else if (t->moved < t->len && t->begun < t->len)
		p->bad = true; /* it cannot have taken what it was not told of */
}
