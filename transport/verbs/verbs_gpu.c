/* verbs_gpu.c - memory of devices: which the adapter reaches, by which way, and when the device sees what has landed
 *
 *     dma-buf        the CUDA driver exports pages, the adapter's driver maps them: any kernel since 5.12
 *     peer memory    the module nvidia_peermem lets reg_mr() take a device's address
 *
 * A registration may pass where transfers fail: an IOMMU, access control on PCIe bridges, a small BAR. So the first
 * memory of a device is preceded by a trial. A queue pair that is connected to another one of this port writes into the
 * device and reads from there. What no way reaches is staged through host memory, above the transports.
 */
#include "gpu/gpu.h"
#include "transport/verbs/verbs_private.h"
#include <stdlib.h>
#include <unistd.h>

enum { LEN = 4096, ORDERED = 100 /* flush: the device sees writes of adapters without one */ };
#define PATIENCE (1000 * TT_MS)

struct trial {
	struct tt_verbs *net;
	int device;
	struct tt_gpu_queue *queue;
	char *host, *there;       /* a page here, and one on the device */
	struct ibv_mr *host_mr, *mr;
	struct ibv_cq *cq;
	struct tt_verbs_peer *ends[2];
	bool stuck;               /* the device has not ended a copy */
};

/* ---- registration ---- */

static int register_dma_buf(const struct tt_verbs *net, const struct tt_mem *mem, int access, struct ibv_mr **mr)
{
	uint64_t offset;
	int fd, err = tt_gpu_dma_buf(mem->base, mem->len, &fd, &offset);

	if (err)
		return err;
	*mr = net->library->reg_dmabuf_mr(net->pd, offset, mem->len, (uintptr_t)mem->base, fd, access);
	err = errno;
	close(fd); /* the registration holds the pages */
	return *mr ? 0 : tt_fail(-err, "the adapter's driver takes no dma-buf (%s)", strerror(err));
}

static int register_peer_memory(const struct tt_verbs *net, const struct tt_mem *mem, int access, struct ibv_mr **mr)
{
	if ((*mr = net->library->reg_mr(net->pd, mem->base, mem->len, access)))
		return 0;
	return tt_fail(-errno, "reg_mr() takes no memory of a GPU (%s): is the module nvidia_peermem loaded?",
	               strerror(errno));
}

int tt_verbs_register_gpu(struct tt_verbs *net, const struct tt_mem *mem, int access, struct ibv_mr **mr)
{
	return net->gpu_ways[mem->gpu] == TT_VERBS_DMA_BUF ? register_dma_buf(net, mem, access, mr) :
	                                                     register_peer_memory(net, mem, access, mr);
}

/* ---- the trial ---- */

static void end_trial(struct trial *t)
{
	const struct tt_verbs_library *l = t->net->library;

	for (int i = 0; i < 2; i++) {
		if (t->ends[i] && t->ends[i]->qp)
			l->destroy_qp(t->ends[i]->qp);
		free(t->ends[i]);
	}
	if (t->cq)
		l->destroy_cq(t->cq);
	if (t->mr)
		l->dereg_mr(t->mr);
	if (t->host_mr)
		l->dereg_mr(t->host_mr);
	if (t->stuck) {
		tt_gpu_queue_abandon(t->queue); /* and its memory */
		return;
	}
	tt_gpu_queue_close(t->queue);
	tt_gpu_free(t->there);
	if (t->host)
		tt_gpu_unregister(t->host);
	tt_pages_unmap(t->host, LEN);
}

static int make_end(struct trial *t, int i, struct tt_verbs_end *mine)
{
	struct ibv_qp_init_attr attr = { .send_cq = t->cq, .recv_cq = t->cq, .qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = 4, .max_send_sge = 1, .max_recv_wr = 1, .max_recv_sge = 1 } };
	struct tt_verbs_peer *p = t->ends[i] = calloc(1, sizeof *p);

	if (!p)
		return tt_fail(-ENOMEM, "no memory for a trial");
	p->net = t->net;
	p->reads = p->serves = 1;
	if (!(p->qp = t->net->library->create_qp(t->net->pd, &attr)))
		return tt_fail(-errno, "%s cannot make a queue pair: %s", t->net->name, strerror(errno));
	return tt_verbs_init_queue(p, mine);
}

static int connect_ends(struct trial *t)
{
	struct tt_verbs_end said[2];
	int err;

	if (!(t->cq = t->net->library->create_cq(t->net->device, 16, NULL, NULL, 0)))
		return tt_fail(-errno, "%s cannot make a completion queue: %s", t->net->name, strerror(errno));
	for (int i = 0; i < 2; i++)
		if ((err = make_end(t, i, &said[i])))
			return err;
	for (int i = 0; i < 2; i++)
		if ((err = tt_verbs_join_queue(t->ends[i], &said[!i])))
			return tt_fail(-err, "%s cannot connect to itself: %s", t->net->name, strerror(err));
	return 0;
}

/* Host memory that both the adapter and the device reach, and memory on the device that only the device does so far. */
static int begin_trial(struct trial *t)
{
	void *there;
	int err;

	if (!(t->host = tt_pages_map(LEN)))
		return tt_fail(-ENOMEM, "no memory for a trial");
	if ((err = tt_gpu_queue_open(t->device, &t->queue)) || (err = tt_gpu_alloc(t->device, LEN, &there)))
		return err;
	t->there = there;
	if ((err = tt_gpu_register(t->host, LEN)))
		return err;
	if (!(t->host_mr = t->net->library->reg_mr(t->net->pd, t->host, LEN, IBV_ACCESS_LOCAL_WRITE)))
		return tt_verbs_locked_too_much(t->net, "a page", LEN, errno);
	return connect_ends(t);
}

/* One WRITE into the device, or READ from there, and its end. */
static int move_page(const struct trial *t, enum ibv_wr_opcode opcode)
{
	struct ibv_sge sge = { (uintptr_t)t->host, LEN, t->host_mr->lkey };
	struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1, .opcode = opcode, .send_flags = IBV_SEND_SIGNALED,
		.wr.rdma = { (uintptr_t)t->there, t->mr->rkey } }, *bad;
	uint64_t end = tt_now() + PATIENCE;
	struct ibv_wc wc;
	int n, err = ibv_post_send(t->ends[0]->qp, &wr, &bad);

	if (err)
		return tt_fail(-abs(err), "%s takes no request: %s", t->net->name, strerror(abs(err)));
	while (!(n = ibv_poll_cq(t->cq, 1, &wc)) && tt_now() < end)
		usleep(20);
	if (n == 1 && wc.status == IBV_WC_SUCCESS)
		return 0;
	return tt_fail(-EIO, "%s its memory fails: %s", opcode == IBV_WR_RDMA_READ ? "reading" : "writing",
	               n == 1 ? t->net->library->wc_status_str(wc.status) : "no answer within 1 s");
}

static int copy_page(struct trial *t, void *to, const void *from)
{
	uint64_t end = tt_now() + PATIENCE, mark;
	int done, err = tt_gpu_copy(t->queue, to, from, LEN);

	if (err)
		return err;
	mark = tt_gpu_mark(t->queue);
	while (!(done = tt_gpu_reached(t->queue, mark)) && tt_now() < end)
		usleep(20);
	t->stuck = !done;
	return done > 0 ? 0 : done ? done : tt_fail(-ETIMEDOUT, "GPU %d copies nothing within 1 s", t->device);
}

static void fill(char *page, unsigned seed)
{
	for (size_t i = 0; i < LEN; i++)
		page[i] = (char)(seed += 97 + i % 7);
}

static int expect(const struct trial *t, unsigned seed, const char *what)
{
	char page[LEN];

	fill(page, seed);
	return memcmp(page, t->host, LEN) ? tt_fail(-EIO, "%s its memory brings wrong bytes", what) : 0;
}

/* The adapter's bytes reach the device, and the device's bytes the adapter. */
static int move_both_ways(struct trial *t)
{
	int err;

	fill(t->host, 1);
	if ((err = move_page(t, IBV_WR_RDMA_WRITE)) ||
	    (t->net->gpu_flushes >> t->device & 1 && (err = tt_gpu_flush(t->device))))
		return err;
	memset(t->host, 0, LEN);
	if ((err = copy_page(t, t->host, t->there)) || (err = expect(t, 1, "writing")))
		return err;
	fill(t->host, 2);
	if ((err = copy_page(t, t->there, t->host)))
		return err;
	memset(t->host, 0, LEN);
	err = move_page(t, IBV_WR_RDMA_READ);
	return err ? err : expect(t, 2, "reading");
}

static int try_way(struct tt_verbs *net, int device, enum tt_verbs_way way)
{
	struct trial t = { .net = net, .device = device };
	struct tt_sentence why;
	int err = begin_trial(&t);

	net->gpu_ways[device] = way;
	if (!err) {
		struct tt_mem mem = { .base = t.there, .len = LEN, .gpu = device, .fd = -1 };
		if (!(err = tt_verbs_register_gpu(net, &mem, TT_VERBS_ALL_RIGHTS, &t.mr)))
			err = move_both_ways(&t);
	}
	why = tt_last_sentence();
	end_trial(&t);
	tt_remember(why.text);
	return err;
}

/* The first way that works. 0, or -errno with the reasons. */
static int find_way(struct tt_verbs *net, int device)
{
	struct tt_gpu_facts facts;
	struct tt_sentence dma_buf = { "the CUDA driver exports no dma-buf" };
	int err = net->iwarp ? tt_fail(-ENOTSUP, "iWARP copies a READ through host memory") :
	                       tt_gpu_facts(device, &facts);

	if (err)
		return err;
	if (facts.flush < ORDERED)
		net->gpu_flushes |= 1ull << device;
	if (facts.dma_buf && !net->library->reg_dmabuf_mr)
		snprintf(dma_buf.text, sizeof dma_buf.text, "libibverbs has no ibv_reg_dmabuf_mr()");
	else if (facts.dma_buf && !try_way(net, device, TT_VERBS_DMA_BUF))
		return 0;
	else if (facts.dma_buf)
		dma_buf = tt_last_sentence();
	if (!try_way(net, device, TT_VERBS_PEER_MEMORY))
		return 0;
	net->gpu_ways[device] = TT_VERBS_NO_WAY;
	net->gpu_flushes &= ~(1ull << device);
	return tt_fail(-ENOTSUP, "by dma-buf: %.200s; by nvidia_peermem: %.200s", dma_buf.text,
	               tt_last_sentence().text);
}

void tt_verbs_ask_gpu(struct tt_net *base, int device)
{
	struct tt_verbs *net = tt_verbs_of(base);
	const uint64_t bit = 1ull << device;

	pthread_rwlock_rdlock(&net->open);
	pthread_mutex_lock(&net->gpu_lock);
	if (!net->closing && !(base->asked_gpu & bit)) {
		if (!find_way(net, device)) {
			base->takes_gpu |= bit;
			snprintf(net->gpu_why, sizeof net->gpu_why, "it reaches GPU %d by %s%s", device,
			         net->gpu_ways[device] == TT_VERBS_DMA_BUF ? "dma-buf" : "nvidia_peermem",
			         net->gpu_flushes & bit ? ", and flushes before each notify" : "");
		} else {
			snprintf(net->gpu_why, sizeof net->gpu_why, "it does not reach GPU %d (%.420s): the GPU's "
			         "memory goes through host memory", device, tt_why());
		}
		tt_log(TT_INFO, "%s: %s", net->name, net->gpu_why);
		base->asked_gpu |= bit;
	}
	tt_remember(net->gpu_why);
	pthread_mutex_unlock(&net->gpu_lock);
	tt_verbs_leave_open(net);
}

/* ---- what has landed ---- */

void tt_verbs_flush(const struct tt_verbs *net)
{
	uint64_t devices = net->gpu_flushes & net->base.takes_gpu;

	for (int device = 0; devices; device++, devices >>= 1)
		if (devices & 1)
			tt_gpu_flush(device); /* a broken device ends its ops by itself */
}
