/* split.c - groups of ranks: the job's own, and the parts into which users split it
 *
 * A group has a uid, the same on all its ranks, and on each of them a slot of that rank's own choice, by which the others
 * name it. Splitting is one gather of {color, key, slot}: from it every rank works out the same parts.
 */
#include "runtime.h"
#include <stdlib.h>
#include <string.h>

enum {
	VALUE = 10,           /* bytes that each rank gives to a split */
	NO_SLOT = UINT16_MAX, /* it has none left */
};

/* ---- what a group is ---- */

/* Round and round, so that a slot comes back as late as can be. */
static int take_slot(struct tutti *g)
{
	struct tt_job *job = g->job;

	for (int i = 0; i < TT_GROUPS; i++) {
		unsigned slot = job->next_group++ % TT_GROUPS;
		if (job->group_at[slot])
			continue;
		g->slot = (uint16_t)slot;
		job->group_at[slot] = g;
		return 0;
	}
	return tt_fail(-EMFILE, "%d groups are open: leave some", TT_GROUPS);
}

int tt_group_make_seats(struct tutti *g, int n)
{
	g->seats = calloc((size_t)n, sizeof *g->seats);
	g->seat_of = malloc((size_t)g->job->capacity * sizeof *g->seat_of);
	if (!g->seats || !g->seat_of) {
		tt_group_clear_seats(g);
		return tt_fail(-ENOMEM, "no memory for a group of %d ranks", n);
	}
	memset(g->seat_of, -1, (size_t)g->job->capacity * sizeof *g->seat_of);
	g->n = n;
	return 0;
}

static struct tutti *make_group(struct tt_job *job)
{
	struct tutti *g = calloc(1, sizeof *g);

	if (!g)
		return NULL;
	g->job = job;
	tt_list_append(&job->groups, &g->link);
	return g;
}

void tt_group_clear_seats(struct tutti *g)
{
	free(g->seats);
	free(g->seat_of);
	g->seats = NULL;
	g->seat_of = NULL;
	g->n = g->outs = 0;
}

int tt_group_new(struct tt_job *job, int n, struct tutti **out)
{
	struct tutti *g = make_group(job);
	int err = 0;

	if (!g)
		return tt_fail(-ENOMEM, "no memory for a group");
	if ((n && (err = tt_group_make_seats(g, n))) || (err = take_slot(g))) {
		tt_group_free(g);
		return err;
	}
	*out = g;
	return 0;
}

int tt_group_heir(struct tutti *old, int n, struct tutti **out)
{
	struct tutti *g = make_group(old->job);
	int err = g ? tt_group_make_seats(g, n) : tt_fail(-ENOMEM, "no memory for a group");

	if (err) {
		if (g)
			tt_group_free(g);
		return err;
	}
	old->retired = true;
	tt_coll_end_group(old);
	g->slot = old->slot;
	g->job->group_at[g->slot] = g;
	*out = g;
	return 0;
}

/* Before all that may be under way: it has done its part in none of these. */
static void take_out(struct tutti *g, struct tt_seat *s, int err)
{
	if (!s->out)
		s->out = ++g->outs;
	s->err = err;
	s->finished = g->started - (1u << 30);
}

void tt_group_seat(struct tutti *g, int i, int rank, uint32_t epoch, uint16_t slot)
{
	const struct tt_member *m = &g->job->members[rank];

	g->seats[i] = (struct tt_seat){ .rank = rank, .epoch = epoch, .slot = slot };
	g->seat_of[rank] = i;
	if (rank == g->job->rank)
		g->me = i;
	if (m->state < TT_LEFT && m->epoch == epoch)
		return;
	take_out(g, &g->seats[i], m->state == TT_LEFT ? -ENOTCONN : -ECONNRESET); /* between the agreement and now */
}

void tt_group_resign(struct tutti *g, int i) { take_out(g, &g->seats[i], -ECONNABORTED); }

void tt_group_free(struct tutti *g)
{
	if (g->uid)
		tt_coll_end_group(g);
	tt_board_close(g);
	tt_layout_free(g);
	tt_agree_free(g);
	free(g->origin.roll);
	tt_list_remove(&g->link);
	if (g->job->group_at[g->slot] == g)
		g->job->group_at[g->slot] = NULL;
	free(g->seats);
	free(g->seat_of);
	free(g);
}

struct tt_member *tt_group_member(const struct tutti *g, int i) { return &g->job->members[g->seats[i].rank]; }

struct tt_seat *tt_group_find(const struct tutti *g, const struct tt_member *m)
{
	int i = g->seats ? g->seat_of[m->rank] : -1;

	return i >= 0 && g->seats[i].epoch == m->epoch ? &g->seats[i] : NULL;
}

void tt_group_epoch(struct tt_member *m, uint32_t epoch)
{
	tt_list_each(node, &m->job->groups) {
		struct tt_seat *s = tt_group_find(tt_container_of(node, struct tutti, link), m);
		if (s)
			s->epoch = epoch;
	}
}

/* How far one that leaves has come in a group. One that it has left before is not in its list: what I have started there
 * has all its parts, what I will start has none, and it may have voted. */
static void read_bye(const struct tutti *g, const struct tt_pack *bye, struct tt_seat *s)
{
	struct tt_pack p = *bye;
	unsigned n = tt_get16(&p);

	s->finished = g->started;
	s->voted = true;
	while (n-- && !p.bad) {
		uint32_t uid = tt_get32(&p), finished = tt_get32(&p), voted = tt_get8(&p);
		if (uid != g->uid)
			continue;
		s->finished = finished;
		s->voted = voted;
		return;
	}
}

void tt_group_seats_out(struct tt_member *m, const struct tt_pack *bye)
{
	tt_list_each(node, &m->job->groups) {
		struct tutti *g = tt_container_of(node, struct tutti, link);
		struct tt_seat *s = tt_group_find(g, m);
		if (!s)
			continue;
		take_out(g, s, m->err);
		if (bye)
			read_bye(g, bye, s);
	}
}

/* ---- splitting ---- */

struct wish { /* what one rank of the parent gave */
	int32_t color, key;
	uint16_t slot;
	int at;                     /* its seat in the parent */
};

static struct wish read_wish(const uint8_t *value, int at)
{
	struct tt_pack p = tt_unpack(value, VALUE);
	struct wish w = { .color = (int32_t)tt_get32(&p), .key = (int32_t)tt_get32(&p), .slot = tt_get16(&p), .at = at };

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
			err = tt_fail(-ECONNABORTED, "split: rank %d gave it up: it has too many groups open", s->rank);
		tt_group_seat(part, i, s->rank, s->epoch, picked[i].slot);
	}
	free(picked);
	if (err)
		return err;
	if (part->revoked)
		return tt_fail(-ECONNABORTED, "split: another rank gave it up");
	part->uid = name_part(parent, part->birth, color);
	tt_coll_begin_group(part);
	return 0;
}

void tt_group_revoke(const struct tutti *parent, uint32_t birth)
{
	uint8_t bytes[9];
	struct tt_pack p = tt_pack(bytes, sizeof bytes);

	tt_put8(&p, TT_REVOKE);
	tt_put32(&p, parent->uid);
	tt_put32(&p, birth);
	for (int i = 0; i < parent->n; i++)
		if (i != parent->me && tt_group_member(parent, i)->state < TT_LEFT)
			tt_send(tt_group_member(parent, i), bytes, sizeof bytes, NULL, 0);
}

void tt_group_revoked(struct tt_member *from, struct tt_pack *p)
{
	uint32_t parent = tt_get32(p), birth = tt_get32(p);

	tt_list_each(node, &from->job->groups) {
		struct tutti *g = tt_container_of(node, struct tutti, link);
		struct tt_seat *s = tt_group_find(g, from);
		if (s && g->uid == parent && !birth)
			s->resigned = true; /* that group may not be there yet */
		if (p->bad || !parent || g->parent != parent || g->birth != birth)
			continue;
		g->revoked |= !g->uid;
		if (!s || s->out)
			continue;
		take_out(g, s, -ECONNABORTED);
		tt_coll_member_down(from);
	}
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
	tt_enter(parent->job);
	if (!err && part && color >= 0)
		err = fill_part(part, parent, values, color);
	if (err || !part)
		tt_group_revoke(parent, birth);
	tt_exit(parent->job);
	free(values);
	return err;
}

int tutti_group_split(tutti *parent, int color, int key, tutti **out)
{
	struct tt_job *job = parent->job;
	struct tutti *part = NULL;
	uint32_t birth;
	int full, err = tt_usable(job);

	if (err)
		return err;
	tt_enter(job);
	full = tt_group_new(job, 0, &part);
	birth = ++parent->splits;
	if (part) {
		part->birth = birth;
		part->parent = parent->uid;
	}
	tt_exit(job);
	err = split(parent, part, birth, color, key); /* without a slot too: the others shall not wait */
	if (!err && !full && color >= 0) {
		*out = part;
		return 0;
	}
	tt_enter(job);
	if (part)
		tt_group_free(part);
	tt_exit(job);
	if (!err && !full)
		*out = NULL;
	return full ? full : err;
}

int tutti_group_member(const tutti *g, int i)
{
	if (i < 0 || i >= g->n)
		return tt_fail(-EINVAL, "group member %d must be from 0 to %d", i, g->n - 1);
	return g->seats[i].rank;
}
