/* shm.c - the wire between processes of one host: shared memory. So far only its place: it leads nowhere. */
#include "base.h"
#include "list.h"
#include "transport.h"
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

struct net {
	struct tt_net base;
	struct tt_list lost;
};
struct peer {
	struct tt_peer base;
	struct tt_list link;
};

void tt_shm_address(uint64_t job, const char *listen, char addr[96])
{
	snprintf(addr, 96, "shm:0:%llx-%x", (unsigned long long)job, tt_hash(TT_HASH, listen, strlen(listen)));
}

static int list_devices(struct tt_device *d, int max)
{
	if (max > 0)
		d[0] = (struct tt_device){ "memory", -1, 0 };
	return 1;
}

static int open_net(const struct tt_net_config *c, struct tt_net **out)
{
	struct net *n = calloc(1, sizeof *n);

	if (!n)
		return tt_fail(-ENOMEM, "no memory for a net");
	n->base = (struct tt_net){ .transport = &tt_shm, .events = c->events, .user = c->user, .copy_max = SIZE_MAX, .send_max = 65664 };
	tt_shm_address(c->job, c->listen ? c->listen : "", n->base.addr);
	n->base.fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	tt_list_init(&n->lost);
	*out = &n->base;
	return 0;
}

static void disconnect(struct tt_peer *p)
{
	struct peer *x = (struct peer *)p;

	tt_list_remove(&x->link);
	free(x);
}

static void close_net(struct tt_net *net)
{
	close(net->fd);
	free(net);
}

static int reg(struct tt_net *net, const struct tt_mem *mem, int remote, struct tt_region **out)
{
	(void)remote;
	if (!(*out = calloc(1, sizeof **out)))
		return tt_fail(-ENOMEM, "no memory for a region");
	**out = (struct tt_region){ .net = net, .mem = *mem, .key.len = mem->len };
	return 0;
}

static void dereg(struct tt_region *r) { free(r); }

static int connect_net(struct tt_net *net, const char *addr, struct tt_peer **out)
{
	struct peer *p = calloc(1, sizeof *p);

	if (!p)
		return tt_fail(-ENOMEM, "no memory for a peer");
	p->base.net = net;
	snprintf(p->base.addr, sizeof p->base.addr, "%.95s", addr);
	tt_list_append(&((struct net *)net)->lost, &p->link);
	*out = &p->base;
	return 0;
}

static void post(struct tt_peer *p, struct tt_op *op) { (void)p, (void)op; }
static void *map(struct tt_peer *p, const struct tt_key *k) { return (void)p, (void)k, NULL; }

static int progress(struct tt_net *net)
{
	struct tt_list *node = tt_list_pop(&((struct net *)net)->lost);

	if (!node)
		return 0;
	tt_fail(-EHOSTUNREACH, "not on this host");
	net->events->down(&tt_container_of(node, struct peer, link)->base, -EHOSTUNREACH);
	return 1;
}

static int arm(struct tt_net *net) { return !tt_list_empty(&((struct net *)net)->lost); }

const struct tt_transport tt_shm = { "shm", list_devices, open_net, close_net, reg, dereg, connect_net, disconnect, post, map, progress, arm };
