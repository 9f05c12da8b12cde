/* layout.c - which ranks of a group share a host's memory
 *
 *      ranks         0 1 2 3 4 5
 *      on host       A B A C B A        seats  0 2 5 | 1 4 | 3
 *                                       start  0       3     5   6
 *
 * All ranks of a group have the same cards, and come to the same answer. A host here is what shared memory can span: the same host, and
 * there the same namespaces and user, as shm's addresses say. In a node list nobody knows those of other hosts: there the host
 * alone counts, and the board's vote (board.c) tells the rest.
 */
#include "collective/collective_private.h"
#include "member/member.h"
#include <stdlib.h>
#include <string.h>

static size_t reach_len(const char *addr) { return 4 + strcspn(addr + 4, ":"); } /* of shm:REACH, without the name */

static bool reach_each_other(const char *a, const char *b)
{
	char one[96], other[96];

	if (tt_address_find(a, "sim", one))
		return true;
	return tt_address_find(a, "shm", one) && tt_address_find(b, "shm", other) && reach_len(one) == reach_len(other) && !memcmp(one, other, reach_len(one));
}

static bool share_memory(const struct tt_member *a, const struct tt_member *b)
{
	return a->host && a->host == b->host && (tt_members(a->job)->node_list || reach_each_other(a->addr, b->addr));
}

/* The first seat of each host stands for it. */
static int host_of(const struct tutti *g, const int *firsts, int hosts, int seat)
{
	int h = 0;

	while (h < hosts && !share_memory(tt_group_member(g, firsts[h]), tt_group_member(g, seat)))
		h++;
	return h;
}

static int find_hosts(const struct tutti *g, int *of, int *firsts) /* how many */
{
	int hosts = 0;

	for (int i = 0; i < g->n; i++) {
		of[i] = host_of(g, firsts, hosts, i);
		if (of[i] == hosts)
			firsts[hosts++] = i;
	}
	return hosts;
}

static void fill_in(struct tt_layout *l, const int *of, int n)
{
	int at = 0;

	l->fewest = n;
	for (int h = 0; h < l->hosts; h++) {
		l->start[h] = at;
		for (int i = 0; i < n; i++)
			if (of[i] == h)
				l->seats[at++] = i;
		l->fewest = tt_min(l->fewest, at - l->start[h]);
		l->most = tt_max(l->most, at - l->start[h]);
	}
	l->start[l->hosts] = n;
	l->print = tt_hash(TT_HASH, of, (size_t)n * sizeof *of) | 1; /* never 0 */
}

int tt_layout_find(struct tutti *g)
{
	struct tt_layout *l = &tt_coll_group(g)->layout;
	int n = g->n, *of;

	if (l->hosts)
		return 0;
	l->seats = calloc((size_t)(4 * n + 1), sizeof *l->seats);
	if (!l->seats)
		return tt_fail(-ENOMEM, "no memory for which of %d ranks share a host", n);
	l->start = l->seats + n;
	of = l->start + n + 1;
	l->hosts = find_hosts(g, of, of + n);
	l->here = of[g->me];
	fill_in(l, of, n);
	return 0;
}

void tt_layout_free(struct tutti *g)
{
	free(tt_coll_group(g)->layout.seats);
	tt_coll_group(g)->layout = (struct tt_layout){ 0 };
}
