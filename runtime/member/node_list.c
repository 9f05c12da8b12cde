/* node_list.c - the list of nodes of a job that has no rank 0 to ask: who is in it, and what a program adds to it;
 * jobs in which each process has a list of its own
 *
 * Each process has its own copy. A node's place in the list is its rank, so all processes add the same nodes in the
 * same order. A HELLO has the length of its sender's first list and a hash of it, and each list must begin with the
 * shorter one of the two:
 *
 *      D: a b c d -- HELLO 4, hash(a b c d) --> A: a b c          REFUSED, again: A's program may add d in a moment
 *      A: a b c   -- HELLO 3, hash(a b c) ----> D: a b c d        WELCOME
 */
#include "engine/engine.h"
#include "launch/launch.h"
#include "member/member_private.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int tt_nodes_open(struct tt_job *job, const struct tt_launch *b)
{
	struct tt_members *all = tt_members(job);

	if (!b->nodes)
		return 0;
	all->node = calloc((size_t)all->capacity, sizeof *all->node);
	if (!all->node)
		return tt_fail(-ENOMEM, "no memory for a list of %d nodes", all->capacity);
	memcpy(all->node, b->nodes, (size_t)b->size * sizeof *all->node);
	return 0;
}

uint64_t tt_nodes_hash(const struct tt_job *job, int n)
{
	const struct tt_members *all = tt_members(job);
	uint64_t h = TT_HASH64;

	for (int i = 0; i < n; i++)
		h = tt_hash_text(tt_hash_text(h, all->node[i].name), all->node[i].address);
	return h;
}

bool tt_nodes_are_more(const struct tt_job *job, uint32_t n)
{
	return tt_members(job)->node_list && !tt_members(job)->own_list && n > (uint32_t)job->size;
}

bool tt_nodes_agree(const struct tt_job *job, uint32_t n, uint64_t hash)
{
	return tt_members(job)->own_list ||
	       (n && n <= (uint32_t)job->size && tt_nodes_hash(job, (int)n) == hash);
}

int tt_nodes_find(const struct tt_job *job, const char *name)
{
	for (int i = 0; tt_members(job)->node && i < job->size; i++)
		if (!strcmp(tt_members(job)->node[i].name, name))
			return i;
	return -ENOENT;
}

static int check_node(const char *name, const char *host, int port, struct tt_node *node)
{
	if (!name || !*name || strlen(name) >= sizeof node->name)
		return tt_fail(-EINVAL, "a node's name has 1 to %zu bytes", sizeof node->name - 1);
	if (!host || !*host || port < 1 || port > 65535)
		return tt_fail(-EINVAL, "node \"%s\": a host, and a port from 1 to 65535, say where it listens", name);
	snprintf(node->name, sizeof node->name, "%s", name);
	if (snprintf(node->address, sizeof node->address, strchr(host, ':') ? "[%s]:%d" : "%s:%d", host, port) >=
	    (int)sizeof node->address)
		return tt_fail(-ENAMETOOLONG, "node \"%s\": the host \"%.40s...\" is too long", name, host);
	return tt_address_check(node->address);
}

static int check_list(struct tt_job *job)
{
	int err = tt_usable(job);

	if (err || tt_members(job)->node_list)
		return err;
	return tt_fail(-EINVAL, "this job has no list of nodes (TUTTI_CONFIG): processes join it with TUTTI_NEW_RANK");
}

static void place(struct tt_member *m, const struct tt_node *node)
{
	struct tt_members *all = tt_members(m->job);
	char addr[96];

	all->node[m->rank] = *node;
	m->listed = 0; /* the addresses that it said are of the old place */
	snprintf(addr, sizeof addr, "%s:%s", all->over, node->address);
	tt_address_set(m, addr);
	tt_rendezvous_locate(m, node->address);
}

/* Behind the others. With the lock. */
static int append(struct tt_job *job, const struct tt_node *node)
{
	struct tt_members *all = tt_members(job);
	int rank = job->size;

	if (rank == all->capacity)
		return tt_fail(-ENOSPC, "the list has %d nodes more than the job was started with, and no room for "
		               "\"%s\": set TUTTI_NEWCOMERS", rank - all->launched, node->name);
	tt_late_join_grow(job, rank + 1);
	place(tt_member(job, rank), node);
	return rank;
}

static int add_again(struct tt_job *job, int rank, const struct tt_node *node)
{
	struct tt_member *m = tt_member(job, rank);

	if (strcmp(tt_members(job)->node[rank].address, node->address) != 0 && !m->guest)
		return tt_fail(-EEXIST, "node \"%s\" is in the list already, at %s", node->name,
		               tt_members(job)->node[rank].address);
	if (m->removed && !m->epoch) /* nobody has ever met it */
		tt_member_reborn(m, 0);
	if (m->guest) /* the guest said another address, perhaps one that is right on its own host alone */
		place(m, node);
	m->guest = false;
	m->removed = false; /* else a process that starts now may come as that node */
	return rank;
}

int tutti_node_add(tutti *at, const char *name, const char *host, int port)
{
	struct tt_job *job = tt_job_of(at);
	struct tt_node node = { .name = "" };
	int rank, err = check_list(job);

	if (err || (err = check_node(name, host, port, &node)) || (err = tt_begin(job)))
		return err;
	rank = tt_nodes_find(job, name);
	rank = rank < 0 ? append(job, &node) : add_again(job, rank, &node);
	tt_unlock(job);
	return rank;
}

/* ---- own lists ----
 *
 * A process is known by its name, and each rank numbers the others for itself. One that is not in the list is a guest:
 * it reads here, and nothing begins with it. */

int tt_need_same_lists(const struct tt_job *job, const char *what)
{
	if (!tt_members(job)->own_list)
		return 0;
	return tt_fail(-ENOTSUP, "%s needs one numbering of the ranks in all processes, and with TUTTI_LISTS=own each "
	               "process numbers them for itself", what);
}

uint32_t tt_member_number(const struct tt_member *m)
{
	const struct tt_members *all = tt_members(m->job);
	uint64_t h = all->own_list ? tt_hash_text(TT_HASH64, all->node[m->rank].name) : 0;

	return all->own_list ? (uint32_t)(h ^ h >> 32) : (uint32_t)m->rank;
}

uint32_t tt_take_number(const struct tt_job *job, struct tt_pack *p)
{
	uint32_t number = tt_get32(p), i = 0;

	if (!tt_members(job)->own_list) {
		p->bad |= number >= (uint32_t)tt_members(job)->capacity;
		return number;
	}
	while (i < (uint32_t)job->size && tt_member_number(tt_member(job, (int)i)) != number)
		i++;
	return i;
}

bool tt_comes_after(const struct tt_member *m)
{
	const struct tt_members *all = tt_members(m->job);

	return all->own_list ? strcmp(all->node[m->rank].name, all->node[m->job->rank].name) > 0
	                     : m->rank > m->job->rank;
}

void tt_nodes_present(const struct tt_job *job, struct tt_pack *p)
{
	const struct tt_node *me = &tt_members(job)->node[job->rank];

	tt_put_text(p, me->name);
	tt_put_text(p, me->address);
}

void tt_nodes_take(struct tt_pack *p, struct tt_node *node)
{
	tt_get_text(p, node->name, sizeof node->name);
	tt_get_text(p, node->address, sizeof node->address);
	p->bad |= !*node->name || tt_address_check(node->address);
}

uint32_t tt_nodes_seat_guest(struct tt_job *job, const struct tt_node *node)
{
	int rank = tt_nodes_find(job, node->name);

	if (rank < 0 && (rank = append(job, node)) >= 0)
		tt_member(job, rank)->guest = true;
	return rank < 0 ? (uint32_t)job->size : (uint32_t)rank;
}

static bool may_seek(const struct tt_member *m)
{
	if (m->rank == m->job->rank || m->guest || m->removed || m->link || tt_timer_runs(&m->retry))
		return false;
	return m->state == TT_AWAY ? m->sought : m->state >= TT_LEFT && tt_now() >= m->patience;
}

/* The list of its next life need not have this process: then that life does not connect here. Until it answers, uses
 * of it fail as before. */
static void seek(struct tt_member *m)
{
	int err = m->err;

	m->sought = true;
	if (m->state >= TT_LEFT)
		tt_member_reborn(m, 0);
	m->err = err;
	tt_member_connect(m);
}

void tt_nodes_seek(struct tt_job *job)
{
	for (int i = 0; tt_members(job)->own_list && i < job->size; i++)
		if (may_seek(tt_member(job, i)))
			seek(tt_member(job, i));
}

/* A process that was never met is no concern of the others. */
static void remove_node(struct tt_member *m)
{
	m->removed = true;
	if (m->state >= TT_LEFT || m->epoch)
		return;
	m->quiet = true;
	tt_member_gone(m, -ENOTCONN, "%s was removed from the list of nodes", tt_member_label(m).text);
}

int tutti_node_remove(tutti *at, const char *name)
{
	struct tt_job *job = tt_job_of(at);
	int rank, err = check_list(job);

	if (err || (err = tt_given(name, "tutti_node_remove: name")) || (err = tt_begin(job)))
		return err;
	rank = tt_nodes_find(job, name);
	if (rank < 0)
		err = tt_fail(-ENOENT, "no node is named \"%s\" in the list", name);
	else if (rank == job->rank)
		err = tt_fail(-EINVAL, "node \"%s\" is this process: tutti_leave leaves the job", name);
	else
		remove_node(tt_member(job, rank));
	tt_unlock(job);
	return err ? err : tutti_group_evict(tt_members(job)->whole, rank, "it was removed from the list of nodes");
}
