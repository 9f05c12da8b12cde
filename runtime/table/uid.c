/* uid.c - which table a message means: finds a shard by its server's rank and the uid of its opening
 *
 * A hash table of all shards that this rank knows, its own included, so that a job of many tables finds the last one as
 * fast as the first. Uids of one server count up, so they spread evenly. */
#include "table/table_private.h"

static struct tt_list *place_of(struct tt_job *job, int rank, uint64_t uid)
{
	return &tt_tables(job)->by_uid[(uid + 31 * (unsigned)rank) % TT_COUNT(tt_tables(job)->by_uid)];
}

static struct tt_served *find(struct tt_job *job, int rank, uint64_t uid)
{
	tt_each_of(struct tt_served, link, s, place_of(job, rank, uid))
		if (s->uid == uid && s->table->server[s - s->table->source] == rank)
			return s;
	return NULL;
}

void tt_served_name(struct tutti_table *t, int server, uint64_t uid)
{
	struct tt_served *s = &t->source[server];

	tt_list_remove(&s->link);
	s->uid = uid;
	tt_list_append(place_of(t->job, t->server[server], uid), &s->link);
}

void tt_served_make(struct tutti_table *t, int server)
{
	struct tt_served *s = &t->source[server];

	*s = (struct tt_served){ .table = t, .blank = true, .as = t->as,
	                         .placed = TT_PLACED_AT_FIRST };
	tt_list_init(&s->link);
}

void tt_served_forget_all(struct tutti_table *t)
{
	for (int i = 0; i < t->servers; i++)
		tt_list_remove(&t->source[i].link);
}

struct tutti_table *tt_table_find(struct tt_job *job, uint64_t uid)
{
	const struct tt_served *s = find(job, job->rank, uid);

	return s && s->table->shard.memory ? s->table : NULL;
}

struct tutti_table *tt_table_find_served(struct tt_member *from, uint64_t uid, int *server)
{
	const struct tt_served *s = find(from->job, from->rank, uid);

	if (!s)
		return NULL;
	*server = (int)(s - s->table->source);
	return s->table;
}
