/* split.c - tutti_group_split: one gather of {color, key, slot}, from which all ranks compute the same parts */
#include "engine/engine.h"
#include "member/member.h"
#include <stdlib.h>
#include <string.h>

enum {
	VALUE = 10,           /* bytes that each rank gives to a split */
	NO_SLOT = UINT16_MAX, /* the rank has none left */
};

struct wish { /* what one rank of the parent gave */
	int32_t color, key;
	uint16_t slot;
	int at;                     /* the rank's seat in the parent */
};

static struct wish read_wish(const uint8_t *value, int at)
{
	struct tt_pack p = tt_unpack(value, VALUE);
	struct wish w = { .at = at, .color = (int32_t)tt_get32(&p), .key = (int32_t)tt_get32(&p) };

	w.slot = tt_get16(&p);
	return w;
}

static int compare_wishes(const void *a, const void *b)
{
	const struct wish *x = a, *y = b;

	return x->key != y->key ? (x->key < y->key ? -1 : 1) : x->at - y->at;
}

static int pick_wishes(const struct tutti *parent, const uint8_t *values, int color, struct wish *picked)
{
	int n = 0;

	for (int i = 0; i < parent->n; i++) {
		struct wish w = read_wish(values + (size_t)i * VALUE, i);
		if (w.color == color)
			picked[n++] = w;
	}
	qsort(picked, (size_t)n, sizeof *picked, compare_wishes);
	return n;
}

static uint32_t name_part(const struct tutti *parent, uint32_t birth, int color)
{
	uint8_t bytes[12];
	struct tt_pack p = tt_pack(bytes, sizeof bytes);
	uint32_t uid;

	tt_put32(&p, parent->uid);
	tt_put32(&p, birth);
	tt_put32(&p, (uint32_t)color);
	uid = tt_hash(TT_HASH, bytes, sizeof bytes);
	return uid ? uid : 1;
}

static int fill_part(struct tutti *part, struct tutti *parent, const uint8_t *values, int color)
{
	struct wish *picked = calloc((size_t)parent->n, sizeof *picked);
	int n, err;

	if (!picked)
		return tt_fail(-ENOMEM, "no memory for a group of %d ranks", parent->n);
	n = pick_wishes(parent, values, color, picked);
	err = tt_group_make_seats(part, n);
	for (int i = 0; !err && i < n; i++) {
		const struct tt_seat *s = &parent->seats[picked[i].at];
		if (picked[i].slot >= TT_GROUPS)
			err = tt_fail(-ECONNABORTED, "split: %s gave it up: it has too many groups open",
			              tt_member_label(tt_member(parent->job, s->rank)).text);
		tt_group_seat(part, i, s->rank, s->epoch, picked[i].slot);
	}
	free(picked);
	if (err)
		return err;
	if (part->revoked)
		return tt_fail(-ECONNABORTED, "split: another rank gave it up");
	part->uid = name_part(parent, part->birth, color);
	tt_group_begun(part);
	return 0;
}

static int split(struct tutti *parent, struct tutti *part, uint32_t birth, int color, int key)
{
	uint8_t mine[VALUE], *values = malloc((size_t)parent->n * VALUE);
	struct tt_pack p = tt_pack(mine, sizeof mine);
	int err;

	if (!values)
		return tt_fail(-ENOMEM, "no memory to split a group of %d ranks", parent->n);
	tt_put32(&p, (uint32_t)color);
	tt_put32(&p, (uint32_t)key);
	tt_put16(&p, part ? part->slot : NO_SLOT);
	err = tutti_gather(parent, mine, sizeof mine, values, -1, NULL);
	tt_lock(parent->job);
	if (!err && part && color >= 0)
		err = fill_part(part, parent, values, color);
	if (err || !part)
		tt_group_revoke(parent, birth);
	tt_unlock(parent->job);
	free(values);
	return err;
}

int tutti_group_split(tutti *parent, int color, int key, tutti **out)
{
	struct tt_job *job = tt_job_of(parent);
	struct tt_users *outer;
	struct tutti *part = NULL;
	uint32_t birth;
	int full, err = tt_group_usable(parent);

	if (err || (err = tt_given(out, "tutti_group_split: part")) ||
	    (err = tt_opening_enter(job, &parent->handle.users, &outer)))
		return err;
	tt_lock(job);
	full = tt_group_new(job, 0, &part);
	birth = ++parent->splits;
	if (part) {
		part->birth = birth;
		part->parent = parent->uid;
		part->timeout = parent->timeout;
	}
	tt_unlock(job);
	err = split(parent, part, birth, color, key); /* even without a slot, so that the others do not wait */
	bool good = !err && !full && color >= 0;
	tt_lock(job);
	if (good)
		tt_group_hold(*out = part);
	else if (part)
		tt_group_free(part);
	tt_unlock(job);
	tt_opening_exit(job, &parent->handle.users, outer);
	if (good)
		return 0;
	if (!err && !full)
		*out = NULL;
	return full ? full : err;
}
