/* verbs_memory.c - memory that the adapter reaches: pins and keys of the caller's, receives, and the arena for the rest
 *
 * A key is an address and an rkey, which the adapter knows until unpin(). The receives of all peers lie in one shared
 * queue: a peer brings its share when it comes, and leaves it to the next one when it goes. */
#include "transport/fork.h"
#include "transport/verbs/verbs_private.h"
#include <stdlib.h>
#include <sys/resource.h>

struct pin {
	struct tt_pin base;
	struct tt_list node;
	struct ibv_mr *mr;
};

static struct ibv_mr *mr_of(const struct tt_pin *p) { return tt_container_of(p, const struct pin, base)->mr; }
uint32_t tt_verbs_lkey(const struct tt_region *r) { return mr_of(r->pin)->lkey; }

int tt_verbs_locked_too_much(const struct tt_verbs *net, const char *what, size_t bytes, int err)
{
	struct rlimit limit = { RLIM_INFINITY, RLIM_INFINITY };

	getrlimit(RLIMIT_MEMLOCK, &limit);
	if (err != ENOMEM || limit.rlim_cur == RLIM_INFINITY)
		return tt_fail(-err, "%s cannot make %s of %zu bytes: %s", net->name, what, bytes, strerror(err));
	return tt_fail(-ENOMEM, "%s cannot lock %zu bytes for %s: this process may lock %llu bytes (ulimit -l). "
	               TT_VERBS_UNLIMITED, net->name, bytes, what, (unsigned long long)limit.rlim_cur);
}

/* The host's bridges may let writes pass each other: no order within a PUT or GET is promised, and a completion comes
 * behind all of them. Where the kernel does not know that right, the library leaves it out. */
static struct ibv_mr *ask_for_memory(struct tt_verbs *net, const struct tt_mem *mem, int access)
{
	return net->library->reg_mr_iova2(net->pd, mem->base, mem->len, (uintptr_t)mem->base,
	                                  (unsigned)access | IBV_ACCESS_RELAXED_ORDERING);
}

static int register_memory(struct tt_verbs *net, int access, struct tt_pin *pin, struct ibv_mr **mr)
{
	const struct tt_mem *mem = &pin->mem;
	int err;

	if (mem->gpu >= 0) {
		err = tt_verbs_register_gpu(net, mem, access, mr);
		return err ? tt_fail(-EIO, "%s cannot register %zu bytes of GPU %d any more: %s", net->name, mem->len,
		                     mem->gpu, tt_last_sentence().text) : 0;
	}
	*mr = ask_for_memory(net, mem, access);
	if (!*mr && errno == EFAULT && !pin->remote) { /* a mapped file, say */
		*mr = ask_for_memory(net, mem, 0);
		pin->source = 1;
	}
	return *mr ? 0 : tt_verbs_locked_too_much(net, "registered memory", mem->len, errno);
}

/* Pins. Those of a net that is lost hold nothing: the job goes on over other nets, and pins on each. */

int tt_verbs_pin(struct tt_net *base, const struct tt_mem *mem, int remote, struct tt_pin **out)
{
	struct tt_verbs *net = tt_verbs_of(base);
	int access = remote ? TT_VERBS_ALL_RIGHTS : IBV_ACCESS_LOCAL_WRITE;
	struct pin *p;

	if (mem->gpu >= 0 && !tt_net_takes(base, mem->gpu))
		return tt_fail(-ENOTSUP, "verbs cannot pin memory of GPU %d: stage it through host memory", mem->gpu);
	if (!(p = calloc(1, sizeof *p)))
		return tt_fail(-ENOMEM, "no memory to pin %zu bytes", mem->len);
	p->base = (struct tt_pin){ .net = base, .mem = *mem, .remote = remote };
	pthread_rwlock_rdlock(&net->open);
	int err = net->closing ? 0 : register_memory(net, access, &p->base, &p->mr);
	err = net->closing ? 0 : err; /* it may have been lost meanwhile */
	if (!err) {
		pthread_mutex_lock(&net->lock);
		tt_list_append(&net->pins, &p->node);
		pthread_mutex_unlock(&net->lock);
	}
	tt_verbs_leave_open(net);
	if (err) {
		free(p);
		return err;
	}
	*out = &p->base;
	return 0;
}

/* While the domain stays open, or by who closes it. */
static void forget(const struct tt_verbs *net, struct pin *p)
{
	if (p->mr)
		net->library->dereg_mr(p->mr);
	p->mr = NULL;
}

static void close_device(struct tt_verbs *net)
{
	tt_each_of(struct pin, node, p, &net->pins)
		forget(net, p);
	if (net->pd)
		net->library->dealloc_pd(net->pd);
	if (net->device) {
		tt_fork_release(net->device->async_fd); /* libibverbs closes these files */
		tt_fork_release(net->device->cmd_fd);
		net->library->close_device(net->device);
	}
	net->pd = NULL;
	net->device = NULL;
	pthread_rwlock_unlock(&net->open);
}

void tt_verbs_leave_open(struct tt_verbs *net)
{
	pthread_rwlock_unlock(&net->open);
	if (net->closing && !pthread_rwlock_trywrlock(&net->open))
		close_device(net);
}

void tt_verbs_unpin(struct tt_pin *base)
{
	struct tt_verbs *net = tt_verbs_of(base->net);
	struct pin *p = tt_container_of(base, struct pin, base);

	pthread_rwlock_rdlock(&net->open);
	pthread_mutex_lock(&net->lock);
	tt_list_remove(&p->node);
	pthread_mutex_unlock(&net->lock);
	forget(net, p);
	tt_verbs_leave_open(net);
	free(p);
}

/* Keys */

static int grant_key(struct tt_grant *g)
{
	const struct ibv_mr *mr = mr_of(g->base.pin);
	struct tt_pack pack = tt_pack(g->base.key.raw, sizeof g->base.key.raw);

	tt_put64(&pack, (uintptr_t)g->base.mem.base);
	tt_put32(&pack, mr ? mr->rkey : 0);
	g->base.key.len = g->base.mem.len;
	return 0;
}

/* Adapters count some bits of an rkey, and draw others: all of them choose the bucket. */
static struct tt_list *bucket(struct tt_verbs *net, uint32_t rkey)
{
	return &net->by_rkey[rkey * 0x9e3779b1u >> 16 & (TT_VERBS_KEYS - 1)];
}

int tt_verbs_reg(struct tt_net *base, const struct tt_mem *mem, int remote, struct tt_pin *pin, struct tt_region **out)
{
	struct tt_verbs *net = tt_verbs_of(base);
	const struct ibv_mr *mr = remote && pin ? mr_of(pin) : NULL;

	return tt_grant_new(base, mem, pin, mr ? bucket(net, mr->rkey) : &net->regions, remote ? grant_key : NULL, out);
}

void tt_verbs_dereg(struct tt_region *base) { tt_grant_free(tt_container_of(base, struct tt_grant, base)); }

void *tt_verbs_find_memory(struct tt_verbs *net, uint32_t rkey, uint64_t addr, size_t n, bool *device)
{
	tt_each_of(struct tt_grant, node, g, bucket(net, rkey)) {
		uint64_t at = addr - (uintptr_t)g->base.mem.base;
		if (mr_of(g->base.pin)->rkey == rkey && at < g->base.mem.len &&
		    g->base.mem.len - at >= n) {
			*device = g->base.mem.gpu >= 0;
			return (void *)(uintptr_t)addr;
		}
	}
	return NULL;
}

/* The net's own memory */

/* Whole pages of their own: what is registered is not there in a forked child. */
static char *make_block(struct tt_verbs *net, const char *what, size_t bytes, int more_rights, struct ibv_mr **mr)
{
	char *block = tt_pages_map(bytes);

	if (!block) {
		tt_fail(-ENOMEM, "no memory for %s of %zu bytes on %s", what, bytes, net->name);
		return NULL;
	}
	if (!(*mr = net->library->reg_mr(net->pd, block, bytes, IBV_ACCESS_LOCAL_WRITE | more_rights))) {
		tt_verbs_locked_too_much(net, what, bytes, errno);
		tt_pages_unmap(block, bytes);
		return NULL;
	}
	return block;
}

static void free_block(const struct tt_verbs *net, struct ibv_mr *mr)
{
	char *block = mr ? mr->addr : NULL;
	size_t bytes = mr ? mr->length : 0;

	if (!mr)
		return;
	net->library->dereg_mr(mr);
	tt_pages_unmap(block, bytes);
}

int tt_verbs_open_arena(struct tt_verbs *net)
{
	/* zeros behind the arena fill the message that tries a new connection */
	net->arena = make_block(net, "an arena", TT_VERBS_BOUNCES * TT_VERBS_BOUNCE + TT_VERBS_RECEIVE, 0,
	                        &net->arena_mr);
	/* on iWARP the answer to a READ is a write of the other end's, to a key that this end has told it */
	if (net->iwarp && !make_block(net, "two words", 16, IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE,
	                              &net->words))
		return -ENOMEM;
	while (net->arena && net->bounce_count < TT_VERBS_BOUNCES) {
		net->bounces[net->bounce_count] = (uint16_t)net->bounce_count;
		net->bounce_count++;
	}
	return net->arena ? 0 : -ENOMEM;
}

/* Receives */

void tt_verbs_post_receives(struct tt_verbs *net)
{
	struct ibv_recv_wr *bad = NULL;

	if (!net->again_count)
		return;
	net->again[net->again_count - 1].next = NULL;
	net->again_count = 0;
	int err = ibv_post_srq_recv(net->srq, net->again, &bad);
	if (err || bad)
		tt_verbs_lose_net(net, "it takes no receives any more");
}

void tt_verbs_receive_again(struct tt_verbs *net, uint64_t wr_id)
{
	const struct tt_verbs_share *share = net->shares[wr_id >> 16];
	unsigned i = net->again_count++;

	net->again_sge[i] = (struct ibv_sge){ (uintptr_t)share->receives + (wr_id >> 1 & 0x7fff) * net->receive,
	                                      net->receive, share->mr->lkey };
	net->again[i] = (struct ibv_recv_wr){ .wr_id = wr_id, .next = &net->again[i + 1],
	                                      .sg_list = &net->again_sge[i], .num_sge = 1 };
	if (net->again_count == TT_VERBS_BATCH)
		tt_verbs_post_receives(net);
}

/* Registering takes far longer than what else a peer needs. So each slab is as large as all before, up to a size. */
static int make_slab(struct tt_verbs *net)
{
	size_t n = tt_min(tt_min(tt_max(net->share_count, 1), TT_VERBS_SLAB), net->peer_max - net->share_count);

	while (!make_block(net, "peers' receives", n * tt_verbs_share_bytes(net), 0, &net->slab))
		if (!(n /= 2)) /* where little memory may be locked, a part of it is left */
			return -ENOMEM;
	net->slab_left = net->slab_size = (unsigned)n;
	return 0;
}

static int make_share(struct tt_verbs *net, struct tt_verbs_share **out)
{
	struct tt_verbs_share *s;
	int err = net->slab_left ? 0 : make_slab(net);

	if (err)
		return err;
	if (!(s = calloc(1, sizeof *s)))
		return tt_fail(-ENOMEM, "no memory for a peer on %s", net->name);
	s->mr = net->slab;
	s->first = net->slab_left == net->slab_size;
	s->receives = (char *)net->slab->addr + (net->slab_size - net->slab_left--) * tt_verbs_share_bytes(net);
	s->heads = (struct tt_verbs_head *)(void *)(s->receives + (size_t)TT_VERBS_CREDITS * net->receive);
	tt_list_init(&s->node);
	net->shares[net->share_count] = s;
	for (unsigned i = 0; i < TT_VERBS_CREDITS; i++) /* even, and a request's wr_id is odd */
		tt_verbs_receive_again(net, (uint64_t)net->share_count << 16 | i << 1);
	net->share_count++;
	tt_verbs_post_receives(net);
	*out = s;
	return 0;
}

int tt_verbs_take_share(struct tt_verbs *net, struct tt_verbs_share **out)
{
	struct tt_list *node = tt_list_pop(&net->spare_shares);

	if (!node)
		return make_share(net, out);
	*out = tt_container_of(node, struct tt_verbs_share, node);
	return 0;
}

void tt_verbs_give_share(struct tt_verbs_peer *p)
{
	tt_verbs_forget_requests(p);
	if (p->share)
		tt_list_append(&p->net->spare_shares, &p->share->node);
	p->share = NULL;
}

/* When the queues are gone. */
void tt_verbs_close_memory(struct tt_verbs *net, bool wait)
{
	net->closing = true;
	while (net->share_count) {
		struct tt_verbs_share *s = net->shares[--net->share_count];
		if (s->first)
			free_block(net, s->mr);
		free(s);
	}
	if (net->slab_left && net->slab_left == net->slab_size)
		free_block(net, net->slab); /* nobody had a share of it */
	net->slab_left = 0;
	free_block(net, net->arena_mr);
	free_block(net, net->words);
	net->arena_mr = net->words = NULL;
	if (!(wait ? pthread_rwlock_wrlock(&net->open) : pthread_rwlock_trywrlock(&net->open)))
		close_device(net);
}

static void free_regions(struct tt_list *regions)
{
	tt_each_of(struct tt_grant, node, g, regions)
		tt_grant_free(g);
}

void tt_verbs_close_pins(struct tt_verbs *net)
{
	free_regions(&net->regions);
	for (size_t i = 0; i < TT_VERBS_KEYS; i++)
		free_regions(&net->by_rkey[i]);
	while (!tt_list_empty(&net->pins))
		tt_verbs_unpin(&tt_container_of(net->pins.next, struct pin, node)->base);
	free(net->shares);
}
