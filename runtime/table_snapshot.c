/* table_snapshot.c - pulls of a version that stays as it is
 *
 * A part reads its shard's head, the version that it names, and the head again: by then another may have been written over it, and all
 * begins anew. In rounds the parts have to be of the same version. */
#include "table.h"

static void read_head(struct tt_post *, int err);

bool tt_snapshot_may_retry(struct tt_call_part *p)
{
	tt_stats_count(&p->call->table->job->stats.own, TUTTI_STAT_RETRY, 0);
	return ++p->retries < TT_SNAPSHOT_TRIES;
}

static void read_again(struct tt_post *post, int err)
{
	struct tt_call_part *p = tt_container_of(post, struct tt_call_part, get);

	p->err = err;
	if (err || tt_call_is_whole(p))
		tt_call_end_part(p);
	else if (tt_snapshot_may_retry(p))
		tt_snapshot_pull(p);
	else
		tt_call_end_with(p, -EAGAIN);
}

static void read_values(struct tt_post *post, int err)
{
	struct tt_call_part *p = tt_container_of(post, struct tt_call_part, get);

	p->err = err;
	if (err)
		tt_call_end_part(p);
	else
		tt_call_get(p, &p->head, sizeof p->head, 0, read_again);
}

static void read_head(struct tt_post *post, int err)
{
	struct tt_call_part *p = tt_container_of(post, struct tt_call_part, get);

	p->err = err;
	p->version = p->head.version;
	if (err)
		tt_call_end_part(p);
	else
		tt_call_get(p, tt_call_values(p), tt_call_bytes(p), tt_table_version_at(p->call->table, p->server, p->version), read_values);
}

void tt_snapshot_pull(struct tt_call_part *p) { tt_call_get(p, &p->head, sizeof p->head, 0, read_head); }

/* In rounds: of which version are all? Servers that are behind are asked again. False: all agree. */
static bool read_older(struct tt_table_call *c)
{
	int n = c->table->servers;
	uint64_t newest = 0;
	bool again = false;

	for (int i = 0; i < n; i++)
		newest = c->part[i].version > newest ? c->part[i].version : newest;
	for (int i = 0; i < n; i++) {
		struct tt_call_part *p = &c->part[i];
		if (!p->range.count || p->version == newest)
			continue;
		again = true;
		c->left++;
		p->ended = false;
		p->pull_gate = newest; /* it is told when it has come so far */
		if (tt_snapshot_may_retry(p))
			tt_call_pull(p);
		else
			tt_call_end_with(p, -EAGAIN);
	}
	return again;
}

static void tell_versions(const struct tt_table_call *c)
{
	tutti_versions v = { .size = sizeof v, .oldest = UINT64_MAX };
	uint64_t now = tt_calendar(), born = UINT64_MAX;

	for (int i = 0; i < c->table->servers; i++) {
		const struct tt_call_part *p = &c->part[i];
		if (!p->range.count)
			continue;
		v.oldest = p->version < v.oldest ? p->version : v.oldest;
		v.newest = p->version > v.newest ? p->version : v.newest;
		v.retries += p->retries;
		if (p->version && p->head.born[p->version & 1] < born)
			born = p->head.born[p->version & 1];
	}
	v.age_ms = born < now ? (double)(now - born) / TT_MS : 0;
	*c->versions = v;
}

static bool are_in_rounds(const struct tutti_table *t)
{
	for (int i = 0; i < t->servers; i++)
		if (tt_table_has_any(t, i) && !tt_served_in_rounds(t, i))
			return false;
	return true;
}

static bool has_ended(struct tt_table_call *c, int err)
{
	if (err)
		return true;
	if (are_in_rounds(c->table) && read_older(c))
		return false;
	tell_versions(c);
	return true;
}

static const struct tt_call_kind of_version = { NULL, NULL, tt_snapshot_pull, NULL, tt_whole_serve, has_ended };

int tutti_table_snapshot(tutti_table *t, void *values, tutti_versions *versions, tutti_op *op)
{
	int err = tt_whole_check(t, "table snapshot", values);

	if (err || (err = tt_usable(t->job)))
		return err;
	if (!(t->flags & TUTTI_TABLE_SNAPSHOTS) && !are_in_rounds(t))
		return tt_fail(-EINVAL, "table snapshot: the table \"%s\" keeps no versions: open it with TUTTI_TABLE_SNAPSHOTS, or in rounds", t->name);
	if (versions && versions->size != sizeof *versions)
		return tt_fail(-EINVAL, "tutti_versions.size is %zu, and must be sizeof(tutti_versions), %zu", versions->size, sizeof *versions);
	struct tt_table_call *c = tt_call_new(t, &of_version, NULL, values, NULL);
	if (!c)
		return tt_fail(-ENOMEM, "table snapshot: no memory for a call to %d servers", t->servers);
	c->versions = versions ? versions : &c->unwanted;
	return tt_call_start(c, "table snapshot", op);
}
