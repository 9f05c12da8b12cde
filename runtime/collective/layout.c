/* layout.c - which ranks of a group share a host's memory
 *
 *      ranks         0 1 2 3 4 5
 *      on host       A B A C B A        seats  0 2 5 | 1 4 | 3
 *                                       start  0       3     5   6
 *
 * All ranks of a group have the same endpoint records, so they come to the same layout. A host is what shared memory
 * can span: one machine, and on it the same namespaces and user, which shm addresses show. With a node list no rank
 * knows the shm addresses of other hosts. Then only the machine counts, and the vote on the segment (segment.c)
 * settles the rest.
 */
#include "collective/collective_private.h"
#include "member/member.h"
#include <stdlib.h>
#include <string.h>

/* Length of shm:REACH, without the name behind it. */
static size_t reach_len(const char *addr) { return 4 + strcspn(addr + 4, ":"); }

static bool reach_each_other(const char *a, const char *b)
{
	char one[96], other[96];

	if (tt_address_find(a, "sim", one))
		return true;
	if (!tt_address_find(a, "shm", one) || !tt_address_find(b, "shm", other))
		return false;
	return reach_len(one) == reach_len(other) && !memcmp(one, other, reach_len(one));
}

static bool share_memory(const struct tt_member *a, const struct tt_member *b)
{
	if (!a->host || a->host != b->host)
		return false;
	return tt_members(a->job)->node_list || reach_each_other(a->addr, b->addr);
}

/* Equal for two members that share memory. */
static uint32_t hash_of(const struct tt_member *m)
{
	uint32_t h = tt_hash(TT_HASH, &m->host, sizeof m->host);
	char addr[96];

	if (tt_members(m->job)->node_list || tt_address_find(m->addr, "sim", addr))
		return h;
	return tt_address_find(m->addr, "shm", addr) ? tt_hash(h, addr, reach_len(addr)) : h;
}

/* The first seat of each host stands for the host. A hash table finds it, since a group may have thousands of hosts. */
struct search {
	int *of, *firsts; /* the host of each seat; the first seat of each host */
	int *table;       /* 1 + the host; 0: free */
	uint32_t mask;
	int hosts;
};

static int *find_place(const struct tutti *g, const struct search *s, const struct tt_member *m)
{
	uint32_t at = hash_of(m) & s->mask;

	while (s->table[at] && !share_memory(tt_group_member(g, s->firsts[s->table[at] - 1]), m))
		at = (at + 1) & s->mask;
	return &s->table[at];
}

/* A seat that shares memory with no seat, not even with itself, stays out of the table: many may have the same hash. */
static void find_host(const struct tutti *g, struct search *s, int seat)
{
	const struct tt_member *m = tt_group_member(g, seat);
	int none = 0, *place = share_memory(m, m) ? find_place(g, s, m) : &none;

	if (!*place) {
		s->firsts[s->hosts++] = seat;
		*place = s->hosts;
	}
	s->of[seat] = *place - 1;
}

static int begin_search(struct search *s, int n)
{
	size_t size = 4 * (size_t)tt_power_below(n); /* more than 2 * n */

	*s = (struct search){ .mask = (uint32_t)size - 1 };
	s->of = calloc(2 * (size_t)n + size, sizeof *s->of);
	if (!s->of)
		return -ENOMEM;
	s->firsts = s->of + n;
	s->table = s->firsts + n;
	return 0;
}

/* Counts the seats of each host, which gives where each begins. */
static void count_seats(struct tt_layout *l, const int *of, int n)
{
	for (int i = 0; i < n; i++)
		l->start[of[i] + 1]++;
	l->fewest = n;
	for (int h = 0; h < l->hosts; h++) {
		l->fewest = tt_min(l->fewest, l->start[h + 1]);
		l->most = tt_max(l->most, l->start[h + 1]);
		l->start[h + 1] += l->start[h];
	}
}

static int fill_in(struct tt_layout *l, const struct search *s, int n)
{
	int *next = s->firsts; /* where the next seat of each host goes */

	l->seats = calloc((size_t)n + (size_t)s->hosts + 1, sizeof *l->seats);
	if (!l->seats)
		return -ENOMEM;
	l->start = l->seats + n;
	l->hosts = s->hosts;
	count_seats(l, s->of, n);
	memcpy(next, l->start, (size_t)l->hosts * sizeof *next);
	for (int i = 0; i < n; i++)
		l->seats[next[s->of[i]]++] = i;
	l->print = tt_hash(TT_HASH, s->of, (size_t)n * sizeof *s->of) | 1; /* never 0 */
	return 0;
}

int tt_layout_find(struct tutti *g)
{
	struct tt_layout *l = &tt_coll_group(g)->layout;
	struct search s;
	int err;

	if (l->hosts)
		return 0;
	err = begin_search(&s, g->n);
	for (int i = 0; !err && i < g->n; i++)
		find_host(g, &s, i);
	if (!err && !(err = fill_in(l, &s, g->n)))
		l->here = s.of[g->me];
	free(s.of);
	return err ? tt_fail(err, "no memory for which of %d ranks share a host", g->n) : 0;
}

void tt_layout_free(struct tutti *g)
{
	free(tt_coll_group(g)->layout.seats);
	tt_coll_group(g)->layout = (struct tt_layout){ 0 };
}
