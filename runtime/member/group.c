/* group.c - groups of ranks: the group of all, and the groups that come of it
 *
 * A group has a uid, the same on all its ranks, and on each rank a slot of that rank's own choice, by which the others
 * name it. collective/split.c makes parts of a group; agreement.c shrinks and grows it.
 */
#include "engine/engine.h"
#include "member/member_private.h"
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TIMEOUT_MIN_MS = 10 };

/* ---- life ---- */

/* Round-robin, so that a slot is used again as late as possible. */
static int take_slot(struct tutti *g)
{
	struct tt_job *job = g->job;

	for (int i = 0; i < TT_GROUPS; i++) {
		unsigned slot = tt_members(job)->next_group++ % TT_GROUPS;
		if (tt_members(job)->group_at[slot])
			continue;
		g->slot = (uint16_t)slot;
		tt_members(job)->group_at[slot] = g;
		return 0;
	}
	return tt_fail(-EMFILE, "%d groups are open: leave some", TT_GROUPS);
}

/* For ranks that are more than the group was made for. */
int tt_group_widen(struct tutti *g, int from, int to)
{
	int *more = realloc(g->seat_of, (size_t)to * sizeof *more);

	if (!more)
		return tt_fail(-ENOMEM, "no memory for %d ranks", to);
	g->seat_of = more;
	for (int i = from; i < to; i++)
		more[i] = -1;
	return 0;
}

int tt_group_make_seats(struct tutti *g, int n)
{
	g->seats = calloc((size_t)n, sizeof *g->seats);
	g->seat_of = malloc((size_t)tt_members(g->job)->capacity * sizeof *g->seat_of);
	if (!g->seats || !g->seat_of) {
		tt_group_clear_seats(g);
		return tt_fail(-ENOMEM, "no memory for a group of %d ranks", n);
	}
	memset(g->seat_of, -1, (size_t)tt_members(g->job)->capacity * sizeof *g->seat_of);
	g->n = n;
	return 0;
}

/* Another thread may just be about to begin a call in the group, which then finds that the job was left. */
static void release_group(struct tt_handle *h)
{
	struct tutti *g = tt_container_of(h, struct tutti, handle);

	for (int i = 0; i < TT_MODULES; i++)
		free(g->own[i]);
	tt_group_clear_seats(g);
	free(g);
}

void tt_group_hold(struct tutti *g)
{
	static const struct tt_handle_kind kind = { .release = release_group, .noun = "group" };

	tt_handle_hold(&g->handle, g->job, &kind);
}

static struct tutti *make_group(struct tt_job *job)
{
	struct tutti *g = calloc(1, sizeof *g);

	if (!g)
		return NULL;
	tt_each_module(m, job, group_size)
		if (!(g->own[m->slot] = calloc(1, m->group_size))) {
			release_group(&g->handle);
			return NULL;
		}
	g->job = job;
	tt_list_append(&tt_members(job)->groups, &g->link);
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

static void tell_over(struct tutti *g)
{
	tt_each_module(m, g->job, group_over)
		m->group_over(g);
}

/* How far a rank that leaves has come in a group. False: it does not say. */
static bool read_bye(const struct tutti *g, struct tt_pack bye, struct tt_seat *s)
{
	tt_get32(&bye);
	unsigned n = tt_get16(&bye);

	while (n-- && !bye.bad) {
		uint32_t uid = tt_get32(&bye), finished = tt_get32(&bye), voted = tt_get8(&bye);
		if (uid != g->uid)
			continue;
		s->finished = finished;
		s->voted = voted;
		return true;
	}
	return false;
}

/* A rank that was quicker may have done its part in the first calls, and have left since. */
void tt_group_begun(struct tutti *g)
{
	for (int i = 0; i < g->n; i++) {
		const struct tt_member *m = tt_group_member(g, i);
		if (m->state == TT_LEFT && m->epoch == g->seats[i].epoch && m->bye)
			read_bye(g, tt_unpack(m->bye, m->bye_len), &g->seats[i]);
	}
	tt_each_module(m, g->job, group_begun)
		m->group_begun(g);
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
	g->timeout = old->timeout;
	tell_over(old);
	g->slot = old->slot;
	tt_members(g->job)->group_at[g->slot] = g;
	*out = g;
	return 0;
}

/* `finished` lies before all collectives that may be under way: the rank has done its part in none of them. */
static void take_out(struct tutti *g, struct tt_seat *s, int err)
{
	if (!s->out)
		s->out = ++g->outs;
	s->err = err;
	s->finished = g->started - (1u << 30);
}

void tt_group_seat(struct tutti *g, int i, int rank, uint32_t epoch, uint16_t slot)
{
	const struct tt_member *m = tt_member(g->job, rank);

	g->seats[i] = (struct tt_seat){ .rank = rank, .epoch = epoch, .slot = slot };
	g->seat_of[rank] = i;
	if (rank == g->job->rank)
		g->me = i;
	if (m->state < TT_LEFT && m->epoch == epoch)
		return;
	take_out(g, &g->seats[i], m->state == TT_LEFT ? -ENOTCONN : -ECONNRESET); /* since the agreement */
}

void tt_group_resign(struct tutti *g, int i) { take_out(g, &g->seats[i], -ECONNABORTED); }

void tt_group_free(struct tutti *g)
{
	if (g->uid) {
		tt_bye_remember(g);
		tell_over(g);
	}
	tt_each_module(m, g->job, group_freed)
		m->group_freed(g);
	tt_agree_free(g);
	free(g->origin.view);
	tt_list_remove(&g->link);
	if (tt_members(g->job)->group_at[g->slot] == g)
		tt_members(g->job)->group_at[g->slot] = NULL;
	if (!g->handle.job)
		release_group(&g->handle);
}

struct tutti *tt_group_named(const struct tt_job *job, uint32_t uid)
{
	tt_each_group(g, job)
		if (g->uid == uid)
			return g;
	return NULL;
}

struct tt_member *tt_group_member(const struct tutti *g, int i) { return tt_member(g->job, g->seats[i].rank); }

struct tt_seat *tt_group_find(const struct tutti *g, const struct tt_member *m)
{
	int i = g->seats ? g->seat_of[m->rank] : -1;

	return i >= 0 && g->seats[i].epoch == m->epoch ? &g->seats[i] : NULL;
}

struct tutti *tt_group_meant(const struct tt_member *from, unsigned slot, uint32_t uid, struct tt_seat **seat)
{
	struct tutti *g = slot < TT_GROUPS ? tt_members(from->job)->group_at[slot] : NULL;

	*seat = NULL;
	if (!g || !g->uid || (g->uid != uid && g->agreement))
		return g;
	*seat = g->uid == uid ? tt_group_find(g, from) : NULL;
	return *seat ? g : NULL;
}

void tt_group_epoch(struct tt_member *m, uint32_t epoch)
{
	tt_each_group(g, m->job) {
		struct tt_seat *s = tt_group_find(g, m);
		if (s)
			s->epoch = epoch;
	}
}

void tt_group_seats_out(struct tt_member *m, const struct tt_pack *bye)
{
	tt_each_group(g, m->job) {
		struct tt_seat *s = tt_group_find(g, m);
		if (!s)
			continue;
		take_out(g, s, m->err);
		if (!bye || read_bye(g, *bye, s))
			continue;
		s->finished = g->started; /* the rank freed the group long ago: later calls lack its part */
		s->voted = true;          /* it may have */
	}
}

void tt_group_revoke(const struct tutti *parent, uint32_t birth)
{
	const uint32_t words[] = { parent->uid, birth };

	for (int i = 0; i < parent->n; i++)
		if (i != parent->me && tt_group_member(parent, i)->state < TT_LEFT)
			tt_send_words(tt_group_member(parent, i), TT_REVOKE, words, 2, NULL, 0);
}

void tt_group_revoked(struct tt_member *from, struct tt_pack *p)
{
	uint32_t parent = tt_get32(p), birth = tt_get32(p);

	tt_each_group(g, from->job) {
		struct tt_seat *s = tt_group_find(g, from);
		if (s && g->uid == parent && !birth)
			s->resigned = true; /* the next group may not exist yet */
		if (p->bad || !parent || g->parent != parent || g->birth != birth)
			continue;
		g->revoked |= !g->uid;
		if (!s || s->out)
			continue;
		take_out(g, s, -ECONNABORTED);
		tt_tell_unseated(from);
	}
	if (!p->bad)
		tt_form_revoked(from, parent, birth);
}

int tutti_group_timeout(tutti *g, int ms)
{
	struct tt_job *job = tt_job_of(g);
	int err = tt_is_mine(job);

	if (err)
		return err;
	if (ms < TUTTI_NEVER || (ms > 0 && ms < TIMEOUT_MIN_MS))
		return tt_fail(-EINVAL, "the timeout is %d ms: write TUTTI_NEVER, 0 for the job's, or %d and above", ms,
		               TIMEOUT_MIN_MS);
	if ((err = tt_begin(job)))
		return err;
	g->timeout = ms == TUTTI_NEVER ? TT_FOREVER : (uint64_t)ms * TT_MS;
	tt_heartbeat_start(job); /* a short timeout makes for short looks */
	tt_unlock(job);
	return 0;
}

/* ---- the numbering ---- */

static bool is_whole(const struct tutti *g) { return g == tt_members(g->job)->whole; }

int tt_group_count(const struct tutti *g) { return is_whole(g) ? g->job->size : g->n; }

int tt_group_to_job(const struct tutti *g, int i)
{
	if (i < 0 || i >= tt_group_count(g))
		return -1;
	return is_whole(g) ? i : g->seats[i].rank;
}

int tt_group_list(const struct tutti *g, int **ranks)
{
	*ranks = is_whole(g) ? NULL : malloc((size_t)g->n * sizeof **ranks);
	if (is_whole(g))
		return 0;
	if (!*ranks)
		return tt_fail(-ENOMEM, "no memory for the ranks of a group of %d", g->n);
	for (int i = 0; i < g->n; i++)
		(*ranks)[i] = g->seats[i].rank;
	return 0;
}

int tt_group_lives(const struct tutti *g, uint32_t **epochs)
{
	*epochs = malloc((size_t)g->n * sizeof **epochs);
	if (!*epochs)
		return tt_fail(-ENOMEM, "no memory for the ranks of a group of %d", g->n);
	for (int i = 0; i < g->n; i++)
		(*epochs)[i] = g->seats[i].epoch;
	return 0;
}

/* A program that does not know tutti_late would train alone, and save over what the others save. */
static void warn_of_solo(const struct tutti *g)
{
	struct tt_members *all = tt_members(g->job);

	if (all->late && g == all->all && !atomic_exchange(&all->warned_of_solo, true))
		tt_log(TT_WARN, "rank %d has joined a job under way, and calls a collective in a group of itself "
		       "alone: join the others with tutti_group_grow where tutti_late says 1", g->job->rank);
}

int tt_group_usable(const struct tutti *g)
{
	int err = tt_group_is_mine(g);

	if (!err)
		warn_of_solo(g);
	return err;
}

int tt_group_is_mine(const struct tutti *g)
{
	int err = tt_usable(tt_job_of(g));

	if (!err && tt_members(g->job)->returned)
		return tt_fail(-EINVAL, "this node was started again while its job ran: it reaches windows, and is in "
		               "no group");
	if (err || (err = tt_need_same_lists(g->job, "a collective")) || !is_whole(g) || g == tt_members(g->job)->all)
		return err;
	return tt_fail(-EINVAL, "this rank has joined the job under way, and is not in its first group: call "
	               "collectives in the group that tutti_group_grow gives it");
}

tutti *tutti_job(tutti *group) { return group && !group->job->left ? tt_members(group->job)->whole : NULL; }

int tutti_group_member(const tutti *g, int i)
{
	int rank = tt_is_mine(tt_job_of(g));

	if (rank)
		return rank;
	rank = tt_group_to_job(g, i);
	return rank == -1 ? tt_fail(-EINVAL, "group member %d must be from 0 to %d", i, tt_group_count(g) - 1) : rank;
}

int tutti_group_rank(const tutti *g, int rank)
{
	int i = -1, err = tt_is_mine(tt_job_of(g));

	if (err)
		return err;
	if (rank >= 0 && rank < g->job->size)
		i = is_whole(g) ? rank : g->seat_of[rank];
	return i < 0 ? tt_fail(-ENOENT, "rank %d of the job is not in this group", rank) : i;
}

/* ---- expelling ---- */

/* Of two that evict each other the lower one's word stands: the higher one waits before it tells others. */
static void expel(struct tt_member *m, const char *why)
{
	struct tt_label by = tt_member_label(tt_member(m->job, m->job->rank));
	char text[330];

	snprintf(text, sizeof text, "%s was evicted by %s: %.80s", tt_member_label(m).text, by.text, why);
	tt_stats_count(&m->stats, TUTTI_STAT_EVICTED, 0);
	m->untold = !tt_comes_after(m);
	tt_member_expel(m, -ECONNRESET, text);
}

int tutti_group_evict(tutti *g, int i, const char *why)
{
	struct tt_job *job = tt_job_of(g);
	int rank, err = tt_usable(job);

	if (err)
		return err;
	rank = tt_group_to_job(g, i);
	if (rank < 0 || rank == job->rank)
		return tt_fail(-EINVAL, "evict: rank %d must be from 0 to %d, and another rank", i,
		               tt_group_count(g) - 1);
	if ((err = tt_begin(job)))
		return err;
	struct tt_member *m = tt_member(job, rank);
	if (m->state < TT_LEFT && (is_whole(g) || tt_group_find(g, m))) /* else that life of it has ended */
		expel(m, why && *why ? why : "no reason given");
	tt_unlock(job);
	return 0;
}
