/* node_list.c - the list of nodes of a job that has no rank 0 to ask: who is in it, and what a program adds to it
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
	return tt_members(job)->node_list && n > (uint32_t)job->size;
}

bool tt_nodes_agree(const struct tt_job *job, uint32_t n, uint64_t hash)
{
	return n && n <= (uint32_t)job->size && tt_nodes_hash(job, (int)n) == hash;
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

/* Behind the others. With the lock. */
static int append(struct tt_job *job, const struct tt_node *node)
{
	struct tt_members *all = tt_members(job);
	char addr[96];
	int rank = job->size;

	if (rank == all->capacity)
		return tt_fail(-ENOSPC, "the list has %d nodes more than the job was started with, and no room for "
		               "\"%s\": set TUTTI_NEWCOMERS", rank - all->launched, node->name);
	all->node[rank] = *node;
	tt_late_join_grow(job, rank + 1);
	snprintf(addr, sizeof addr, "%s:%s", all->over, node->address);
	tt_address_set(tt_member(job, rank), addr);
	tt_rendezvous_locate(tt_member(job, rank), node->address);
	return rank;
}

static int add_again(struct tt_job *job, int rank, const struct tt_node *node)
{
	struct tt_member *m = tt_member(job, rank);

	if (strcmp(tt_members(job)->node[rank].address, node->address) != 0)
		return tt_fail(-EEXIST, "node \"%s\" is in the list already, at %s", node->name,
		               tt_members(job)->node[rank].address);
	if (m->removed && !m->epoch) /* nobody has ever met it */
		tt_member_reborn(m, 0);
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
