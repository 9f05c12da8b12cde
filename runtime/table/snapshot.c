/* snapshot.c - pulls of a version that does not change
 *
 * A part reads its shard's head, the version that the head names, and the head again. If the server has begun to
 * overwrite that version meanwhile, the part reads again. A small shard that is not mapped takes one message and its
 * answer instead of three GETs: the server itself reads a whole version.
 *
 *      mapped, or large    GET head   GET version   GET head: overwritten?
 *      else                PULL_VERSION --> PULLED { version, values }
 *
 * In rounds all parts must be of the same version. */
#include "table/table_private.h"
#include <string.h>

static void read_again(struct tt_post *post, int err)
{
	struct tt_call_part *p = tt_container_of(post, struct tt_call_part, get);

	if (!err)
		tt_call_saw_head(p);
	tt_call_end_with(p, err ? err : tt_call_is_whole(p) ? 0 : -EAGAIN);
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

static void read_version(struct tt_call_part *p)
{
	struct tutti_table *t = p->call->table;
	size_t offset = tt_table_version_at(t, p->server, t->source[p->server].placed, p->version);

	tt_call_read_by(p, t->source[p->server].placed, p->head.uid != 0);
	tt_call_get(p, tt_call_values(p), tt_call_bytes(p), offset, read_values);
}

static void read_head(struct tt_post *post, int err)
{
	struct tt_call_part *p = tt_container_of(post, struct tt_call_part, get);

	p->err = err;
	p->version = p->head.version;
	if (err) {
		tt_call_end_part(p);
		return;
	}
	tt_call_saw_head(p);
	read_version(p);
}

/* ---- by message ---- */

static bool goes_by_message(const struct tt_call_part *p)
{
	const struct tutti_table *t = p->call->table;

	return p->call->versions && !tt_table_is_large(t, p->server) &&
	       !tt_window_is_mapped(t->window, p->member->rank);
}

void tt_snapshot_ask(struct tt_send_queue *f, struct tt_call_part *p)
{
	uint8_t bytes[16];
	struct tt_pack h = tt_pack(bytes, sizeof bytes);

	p->asks = false;
	tt_call_put_head(&h, TT_PULL_VERSION, p, 0);
	tt_lane_post(&f->pulls, (struct tt_sent){ .part = p, .slot = -1 });
	tt_send(f->member, bytes, (size_t)(h.at - bytes), NULL, 0);
}

void tt_table_pull_version(struct tt_member *from, struct tt_pack *p)
{
	struct tutti_table *t = tt_table_find(from->job, tt_get64(p));
	const struct tt_shard_head *head = t ? (const void *)t->shard.memory : NULL;
	uint32_t number = tt_get32(p);
	struct tt_elements e = { 0 };
	uint8_t bytes[32];
	struct tt_pack h = tt_pack(bytes, sizeof bytes);
	int err = !t ? -ESTALE : tt_version_is_kept(t) ? 0 : -EINVAL;

	tt_get8(p);
	p->bad |= t && (t->flags & TUTTI_TABLE_KEYS || tt_table_is_large(t, t->mine));
	if (p->bad)
		return;
	if (!err)
		tt_table_pack(t, t->shard.memory + tt_table_version_at(t, t->mine, head->placed, head->version),
		              (size_t)tt_table_range(t, t->mine).count, 0, &e);
	tt_put8(&h, TT_PULLED);
	tt_put32(&h, number);
	tt_put32(&h, (uint32_t)err);
	tt_put8(&h, e.copy ? TT_SPARSE : 0);
	tt_put64(&h, err ? 0 : head->version);
	tt_put64(&h, err ? 0 : head->born[head->version & 1]);
	tt_send(from, bytes, (size_t)(h.at - bytes), e.at, e.bytes);
	if (t)
		tt_elements_free(t, &e);
}

int tt_snapshot_take(struct tt_call_part *p, struct tt_pack *pack, bool sparse)
{
	struct tutti_table *t = p->call->table;
	uint64_t version = tt_get64(pack), born = tt_get64(pack);
	struct tt_elements e;
	int err = tt_table_unpack(t, pack, (size_t)p->range.count, sparse, &e);

	if (!err && !pack->bad) {
		memcpy(tt_call_values(p), e.at, tt_call_bytes(p));
		p->version = version;
		p->head.born[version & 1] = born;
	}
	tt_elements_free(t, &e);
	return err;
}

void tt_snapshot_pull(struct tt_call_part *p)
{
	if (p->keeps)
		read_version(p);
	else if (!goes_by_message(p))
		tt_call_get(p, &p->head, sizeof p->head, 0, read_head);
	else {
		p->sent = p->range.count;
		tt_send_queue_add(p, true);
	}
}

/* ---- all parts ---- */

/* Has a server an older version than another? Then its part pulls again. */
static bool read_older(struct tt_table_call *c)
{
	int n = c->table->servers;
	uint64_t newest = 0;
	bool again = false;

	for (int i = 0; i < n; i++)
		newest = tt_max(newest, c->part[i].version);
	for (int i = 0; i < n; i++) {
		struct tt_call_part *p = &c->part[i];
		if (!p->range.count || p->version == newest)
			continue;
		again = true;
		p->pull_gate = newest;
		p->err = -EAGAIN;
	}
	return again;
}

static void tell_versions(const struct tt_table_call *c)
{
	tutti_versions v = { .oldest = UINT64_MAX };
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

bool tt_table_in_rounds(const struct tutti_table *t)
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
	if (tt_table_in_rounds(c->table) && read_older(c))
		return false;
	tell_versions(c);
	return true;
}

static const struct tt_call_kind of_version = {
	NULL, NULL, tt_snapshot_pull, tt_call_end_part, tt_dense_serve, has_ended,
};

int tutti_table_snapshot(tutti_table *t, void *values, tutti_versions *versions, tutti_op *op)
{
	int err = tt_operation_may_begin(tt_job_of(t), op);

	if (err || (err = tt_dense_check(t, "table snapshot", values)))
		return err;
	if (!(t->flags & TUTTI_TABLE_SNAPSHOTS) && !tt_table_in_rounds(t))
		return tt_fail(-EINVAL, "table snapshot: the table \"%s\" keeps no versions: open it with "
		               "TUTTI_TABLE_SNAPSHOTS, or in rounds", t->name);
	struct tt_table_call *c = tt_call_new(t, &of_version, NULL, values, NULL);
	if (!c)
		return tt_fail(-ENOMEM, "table snapshot: no memory for a call to %d servers", t->servers);
	c->versions = versions ? versions : &c->unwanted;
	return tt_call_start(c, "table snapshot", op);
}
