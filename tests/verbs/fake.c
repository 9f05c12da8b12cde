/* fake.c - fake.h: the table, the lock, devices and memory */
#include "tests/gpu/fake.h"
#include "tests/verbs/fake_private.h"
#include <arpa/inet.h>
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

struct fake_all fake_all = {
#define LIST(name) .name = { &fake_all.name, &fake_all.name }
	LIST(contexts), LIST(qps), LIST(active), LIST(fresh), LIST(ids), LIST(news),
#undef LIST
	.gpus = FAKE_DMABUF | FAKE_PEERMEM,
};
static struct fake_all *const all = &fake_all;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

void fake_lock(void) { pthread_mutex_lock(&lock); }
void fake_unlock(void) { pthread_mutex_unlock(&lock); }

uint64_t fake_below(uint64_t n)
{
	if (!all->random.s[0] && !all->random.s[1]) /* nobody has called fake_seed() */
		tt_random_seed(&all->random, 0);
	return tt_random_below(&all->random, n);
}

int fake_enter(enum fake_call call, struct fake_context *c)
{
	fake_lock();
	all->calls[call]++;
	if (all->fails[call].left && !--all->fails[call].left)
		return all->fails[call].err;
	return c && (c->killed || c->adapter->removed) ? EIO : 0;
}

int fake_leave(int err)
{
	fake_unlock();
	return err;
}

void *fake_leave_with(int err, void *p)
{
	fake_unlock();
	if (!err)
		return p;
	errno = err;
	return NULL;
}

void *fake_make(size_t size)
{
	void *p = calloc(1, size);

	if (!p)
		abort();
	all->objects++;
	return p;
}

void fake_drop(void *p)
{
	free(p);
	all->objects--;
}

int fake_bug(const char *sentence)
{
	all->bugs++;
	if (!all->lenient) {
		fprintf(stderr, "fake verbs: %s\n", sentence);
		abort();
	}
	return EBUSY;
}

/* ---- file descriptors that count events ---- */

int fake_open_fd(void) { return eventfd(0, EFD_CLOEXEC | EFD_SEMAPHORE); }

void fake_ring(int fd)
{
	all->rings++;
	if (eventfd_write(fd, 1))
		abort();
}

bool fake_take(int fd)
{
	eventfd_t one;

	return !eventfd_read(fd, &one);
}

void fake_unring(int fd)
{
	struct pollfd p = { .fd = fd, .events = POLLIN };
	eventfd_t one;

	if (poll(&p, 1, 0) == 1 && eventfd_read(fd, &one))
		abort();
}

/* ---- devices ---- */

struct fake_adapter *fake_adapter(const char *name)
{
	for (int i = 0; i < all->adapter_count; i++)
		if (!strcmp(all->adapters[i].is.name, name))
			return &all->adapters[i];
	return NULL;
}

const struct fake_port *fake_port(const struct fake_adapter *a, int number)
{
	return number >= 1 && number <= a->is.ports ? &a->is.port[number - 1] : NULL;
}

static struct fake_context *context_of(struct ibv_context *c) { return tt_container_of(c, struct fake_context, base); }

static struct ibv_device **get_device_list(int *count)
{
	int err = fake_enter(FAKE_get_device_list, NULL), n = 0;
	struct ibv_device **list = NULL;

	fake_plug_in();
	if (!err)
		list = fake_make(((size_t)all->adapter_count + 1) * sizeof *list);
	for (int i = 0; !err && i < all->adapter_count; i++)
		if (!all->adapters[i].removed)
			list[n++] = &all->adapters[i].base;
	if (count)
		*count = n;
	return fake_leave_with(err, list);
}

static void free_device_list(struct ibv_device **list)
{
	fake_enter(FAKE_free_device_list, NULL);
	fake_drop(list);
	fake_unlock();
}

static const char *get_device_name(struct ibv_device *d) { return d->name; }

static struct ibv_context *open_device(struct ibv_device *d)
{
	struct fake_adapter *a = tt_container_of(d, struct fake_adapter, base);
	int err = fake_enter(FAKE_open_device, &a->cm);
	struct fake_context *c;

	if (err)
		return fake_leave_with(err, NULL);
	c = fake_make(sizeof *c);
	c->base = a->cm.base;
	c->base.async_fd = fake_open_fd();
	c->adapter = a;
	a->opened++;
	tt_list_init(&c->events);
	tt_list_append(&all->contexts, &c->node);
	return fake_leave_with(0, &c->base);
}

static int close_device(struct ibv_context *base)
{
	struct fake_context *c = context_of(base);
	int err = fake_enter(FAKE_close_device, NULL);

	if (!err && c->objects)
		err = fake_bug("close_device: there are objects of the device that nobody has destroyed");
	if (err)
		return fake_leave(err);
	fake_forget_events(c, NULL);
	close(c->base.async_fd);
	c->adapter->opened--;
	tt_list_remove(&c->node);
	fake_drop(c);
	return fake_leave(0);
}

static int query_device(struct ibv_context *c, struct ibv_device_attr *out)
{
	int err = fake_enter(FAKE_query_device, context_of(c));
	const struct fake_device *d = &context_of(c)->adapter->is;

	memset(out, 0, sizeof *out);
	snprintf(out->fw_ver, sizeof out->fw_ver, "1.2.3");
	out->node_guid = htobe64(0x0200000000000000 | (uint64_t)(context_of(c)->adapter - all->adapters + 1));
	out->max_mr_size = UINT64_MAX;
	out->page_size_cap = 4096;
	out->vendor_id = 0xfa4e;
	out->max_qp = out->max_cq = out->max_mr = out->max_pd = out->max_srq = 65536;
	out->max_qp_wr = (int)d->max_wr;
	out->max_sge = out->max_srq_sge = d->max_sge;
	out->max_sge_rd = d->max_sge_rd;
	out->max_cqe = (int)d->max_cqe;
	out->max_qp_rd_atom = out->max_qp_init_rd_atom = d->max_rd_atomic;
	out->max_srq_wr = (int)d->max_srq_wr;
	out->max_pkeys = FAKE_PKEYS;
	out->local_ca_ack_delay = 15;
	out->phys_port_cnt = (uint8_t)d->ports;
	return fake_leave(err);
}

static int query_port(struct ibv_context *c, uint8_t number, struct ibv_port_attr *out)
{
	int err = fake_enter(FAKE_query_port, context_of(c));
	const struct fake_device *d = &context_of(c)->adapter->is;
	const struct fake_port *p = fake_port(context_of(c)->adapter, number);

	if (err || !p)
		return fake_leave(err ? err : EINVAL);
	memset(out, 0, sizeof *out);
	out->state = p->state;
	out->max_mtu = IBV_MTU_4096;
	out->active_mtu = p->mtu;
	out->gid_tbl_len = FAKE_GIDS;
	out->max_msg_sz = d->max_message;
	out->lid = p->lid;
	out->sm_lid = p->lid ? 1 : 0;
	out->active_width = p->width;
	out->active_speed = p->speed;
	out->phys_state = p->state == IBV_PORT_ACTIVE ? 5 : 3; /* LinkUp, Disabled */
	out->link_layer = fake_is_ethernet(context_of(c)->adapter, number) ? IBV_LINK_LAYER_ETHERNET :
	                                                                     IBV_LINK_LAYER_INFINIBAND;
	out->flags = p->grh ? IBV_QPF_GRH_REQUIRED : 0;
	while (out->pkey_tbl_len < FAKE_PKEYS && p->pkeys[out->pkey_tbl_len])
		out->pkey_tbl_len++;
	return fake_leave(0);
}

static int query_gid_ex(struct ibv_context *c, uint32_t port, uint32_t index, struct ibv_gid_entry *out, uint32_t flags,
                        size_t size)
{
	int err = fake_enter(FAKE_query_gid_ex, context_of(c));
	const struct fake_port *p = fake_port(context_of(c)->adapter, (int)port);

	if (!err && (!p || index >= FAKE_GIDS || flags || size != sizeof *out))
		err = EINVAL;
	if (!err && !p->gids[index].text)
		err = ENODATA;
	if (!err)
		*out = (struct ibv_gid_entry){ context_of(c)->adapter->gids[port - 1][index], index, port,
			                       p->gids[index].type, 0 };
	return fake_leave(err);
}

static int query_pkey(struct ibv_context *c, uint8_t port, int index, __be16 *out)
{
	int err = fake_enter(FAKE_query_pkey, context_of(c));
	const struct fake_port *p = fake_port(context_of(c)->adapter, port);

	if (!err && (!p || index < 0 || index >= FAKE_PKEYS))
		err = EINVAL;
	if (!err)
		*out = htobe16(p->pkeys[index]);
	return fake_leave(err ? -1 : 0);
}

/* ---- memory ---- */

static struct ibv_pd *alloc_pd(struct ibv_context *c)
{
	int err = fake_enter(FAKE_alloc_pd, context_of(c));
	struct fake_pd *pd = NULL;

	if (!err) {
		pd = fake_make(sizeof *pd);
		pd->base.context = c;
		context_of(c)->objects++;
	}
	return fake_leave_with(err, pd);
}

static int dealloc_pd(struct ibv_pd *base)
{
	struct fake_pd *pd = tt_container_of(base, struct fake_pd, base);
	int err = fake_enter(FAKE_dealloc_pd, NULL);

	if (!err && pd->users)
		err = EBUSY;
	if (!err) {
		context_of(base->context)->objects--;
		fake_drop(pd);
	}
	return fake_leave(err);
}

/* As the kernel: pages that are to be written are asked for as such. */
static bool may_write(const void *addr, size_t len)
{
	FILE *maps = fopen("/proc/self/maps", "r");
	uintptr_t at = (uintptr_t)addr, end = at + len, first, last;
	char line[256], w;

	while (maps && at < end && fgets(line, sizeof line, maps)) {
		bool begins = sscanf(line, "%lx-%lx %*c%c", &first, &last, &w) == 3; /* or is the rest of a long line */
		if (begins && first <= at && at < last)
			at = w == 'w' ? last : end + 1;
	}
	if (maps)
		fclose(maps);
	return at != end + 1;
}

static int judge_mr(const void *addr, size_t len, int access)
{
	int known = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
	            IBV_ACCESS_REMOTE_ATOMIC | IBV_ACCESS_RELAXED_ORDERING;
	bool is_written = access & (IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC);

	if (!len || access & ~known || (uintptr_t)addr + len < (uintptr_t)addr ||
	    (is_written && !(access & IBV_ACCESS_LOCAL_WRITE)))
		return EINVAL;
	return addr ? 0 : EFAULT;
}

static struct fake_mr *make_mr(struct ibv_pd *pd, void *addr, size_t len, int access)
{
	struct fake_mr *m;

	all->mr_count += !all->mr_count; /* no key is 0 */
	if (!(all->mr_count & (all->mr_count - 1)))
		all->mr_of = realloc(all->mr_of, 2 * (size_t)all->mr_count * sizeof *all->mr_of);
	if (!all->mr_of)
		abort();
	all->mr_of[0] = NULL;
	uint32_t low = (uint32_t)fake_below(256), key = all->mr_count << 8;
	m = fake_make(sizeof *m);
	m->is = (struct ibv_mr){ pd->context, pd, addr, len, all->mr_count, key | low, key | (low ^ (1 + low / 2)) };
	m->base = m->is;
	m->access = access;
	all->mr_of[all->mr_count++] = m;
	tt_container_of(pd, struct fake_pd, base)->users++;
	return m;
}

/* Of the fake libcuda, in a program that has it. */
void *fake_cuda_bytes(const void *) __attribute__((weak));

static struct ibv_mr *reg_mr(struct ibv_pd *pd, void *addr, size_t len, int access)
{
	int err = fake_enter(FAKE_reg_mr, context_of(pd->context));
	char *bytes = fake_cuda_bytes ? fake_cuda_bytes(addr) : NULL;
	struct fake_mr *m;

	if (!err)
		err = judge_mr(addr, len, access);
	if (!err && bytes && bytes != addr && !(all->gpus & FAKE_PEERMEM))
		err = EFAULT;
	if (!err && !bytes && access & IBV_ACCESS_LOCAL_WRITE && !may_write(addr, len))
		err = EFAULT;
	if (err)
		return fake_leave_with(err, NULL);
	m = make_mr(pd, addr, len, access);
	m->map = bytes != addr ? bytes : NULL;
	return fake_leave_with(0, &m->base);
}

/* The kernel gets and locks each page. */
static void pin_pages(void)
{
	all->pinning++;
	for (uint64_t from = tt_now(); tt_now() < from + all->pin_ms * TT_MS;)
		usleep(1000);
	all->pinning--;
}

/* Which also takes optional rights. */
static struct ibv_mr *reg_mr_iova2(struct ibv_pd *pd, void *addr, size_t len, uint64_t iova, unsigned access)
{
	unsigned optional = access & IBV_ACCESS_OPTIONAL_RANGE;

	pin_pages();
	struct ibv_mr *mr = reg_mr(pd, addr, len, (int)(access & ~optional));
	if (iova != (uintptr_t)addr)
		fake_bug("reg_mr_iova2: keys of the fake are addresses");
	if (mr)
		tt_container_of(mr, struct fake_mr, base)->relaxed = optional & IBV_ACCESS_RELAXED_ORDERING;
	return mr;
}

bool fake_is_relaxed(uint32_t lkey)
{
	const struct fake_mr *m = lkey >> 8 < all->mr_count ? all->mr_of[lkey >> 8] : NULL;

	return m && m->relaxed;
}

/* The pages stay as long as the registration, as those of a real dma-buf do. */
static int map_dma_buf(int fd, uint64_t offset, size_t len, struct fake_mr *m)
{
	struct fake_dma_buf buf;
	uint64_t from, page = 4096;

	if (fd < 0)
		return EBADF;
	if (!(all->gpus & FAKE_DMABUF) || pread(fd, &buf, sizeof buf, 0) != sizeof buf || buf.magic != FAKE_DMA_BUF)
		return EOPNOTSUPP;
	if (offset > buf.len || len > buf.len - offset)
		return EINVAL;
	from = (buf.offset + offset) / page * page;
	m->mapped = buf.offset + offset + len - from;
	m->map = mmap(NULL, m->mapped, PROT_READ | PROT_WRITE, MAP_SHARED, buf.fd, (off_t)from);
	if (m->map == MAP_FAILED)
		abort();
	m->map += buf.offset + offset - from;
	return 0;
}

static struct ibv_mr *reg_dmabuf_mr(struct ibv_pd *pd, uint64_t offset, size_t len, uint64_t iova, int fd, int access)
{
	int err = fake_enter(FAKE_reg_dmabuf_mr, context_of(pd->context));
	struct fake_mr map = { 0 }, *m;

	if (!err)
		err = judge_mr((void *)iova, len, access);
	if (!err)
		err = map_dma_buf(fd, offset, len, &map);
	if (err)
		return fake_leave_with(err, NULL);
	m = make_mr(pd, (void *)iova, len, access);
	m->map = map.map;
	m->mapped = map.mapped;
	return fake_leave_with(0, &m->base);
}

static void unmap(struct fake_mr *m)
{
	if (m->mapped)
		munmap(m->map - (uintptr_t)m->map % 4096, m->mapped);
}

static int dereg_mr(struct ibv_mr *m)
{
	int err = fake_enter(FAKE_dereg_mr, NULL);

	if (!err) {
		all->mr_of[m->handle] = NULL; /* keys are not used again */
		tt_container_of(m->pd, struct fake_pd, base)->users--;
		unmap(tt_container_of(m, struct fake_mr, base));
		fake_drop(tt_container_of(m, struct fake_mr, base));
	}
	return fake_leave(err);
}

bool fake_may(const struct ibv_pd *pd, uint32_t key, bool remote, uint64_t addr, uint64_t len, int access)
{
	const struct fake_mr *m = key >> 8 && key >> 8 < all->mr_count ? all->mr_of[key >> 8] : NULL;
	uint64_t start = m ? (uintptr_t)m->is.addr : 0;

	return m && m->is.pd == pd && key == (remote ? m->is.rkey : m->is.lkey) && addr >= start &&
	       addr - start <= m->is.length && len <= m->is.length - (addr - start) &&
	       (m->access & access) == access && !(m->map && all->gpus & FAKE_NO_BAR);
}

char *fake_bytes(uint32_t key, uint64_t addr)
{
	const struct fake_mr *m = all->mr_of[key >> 8];

	return m && m->map ? m->map + (addr - (uintptr_t)m->is.addr) : (char *)(uintptr_t)addr;
}

static int fork_init(void)
{
	int err = fake_enter(FAKE_fork_init, NULL);

	for (uint32_t i = 1; !err && i < all->mr_count; i++)
		if (all->mr_of[i])
			err = EINVAL;
	return fake_leave(err);
}

static const char *wc_status_str(enum ibv_wc_status status)
{
	static const char *const names[] = {
		"success", "local length", "local QP operation", "local EE operation", "local protection", "flushed",
		"memory bind", "bad response", "local access", "remote invalid request", "remote access",
		"remote operation", "retries exceeded", "RNR retries exceeded", "local RDD violation",
		"remote invalid RD request", "remote abort", "invalid EE number", "invalid EE state", "fatal",
		"response timeout", "general", "tag matching", "tag matching, rendezvous incomplete",
	};

	return (size_t)status < TT_COUNT(names) ? names[status] : "unknown";
}

static struct ibv_context **get_cm_devices(int *n)
{
	struct ibv_context **list = calloc(1, sizeof *list);

	if (n)
		*n = 0; /* nobody asks which */
	fake_lock();
	for (int i = 0; i < all->adapter_count; i++)
		all->adapters[i].cm_opened &= !all->adapters[i].removed;
	fake_unlock();
	return list;
}

static void free_cm_devices(struct ibv_context **list) { free(list); }

const struct tt_verbs_library tt_fake_verbs = {
	.get_device_list = get_device_list, .free_device_list = free_device_list, .get_device_name = get_device_name,
	.open_device = open_device, .close_device = close_device, .query_device = query_device,
	.query_port = query_port, .query_gid_ex = query_gid_ex, .query_pkey = query_pkey,
	.get_async_event = fake_get_async_event, .ack_async_event = fake_ack_async_event, .alloc_pd = alloc_pd,
	.dealloc_pd = dealloc_pd, .reg_mr = reg_mr, .reg_mr_iova2 = reg_mr_iova2,
	.reg_dmabuf_mr = reg_dmabuf_mr, .dereg_mr = dereg_mr,
	.create_comp_channel = fake_create_comp_channel, .destroy_comp_channel = fake_destroy_comp_channel,
	.create_cq = fake_create_cq, .destroy_cq = fake_destroy_cq, .get_cq_event = fake_get_cq_event,
	.ack_cq_events = fake_ack_cq_events, .create_srq = fake_create_srq,
	.destroy_srq = fake_destroy_srq, .create_qp = fake_create_qp, .modify_qp = fake_modify_qp,
	.destroy_qp = fake_destroy_qp, .fork_init = fork_init, .wc_status_str = wc_status_str,
	.getifaddrs = fake_getifaddrs,
	.freeifaddrs = fake_freeifaddrs,
	.create_event_channel = fake_create_event_channel, .destroy_event_channel = fake_destroy_event_channel,
	.create_id = fake_create_id, .destroy_id = fake_destroy_id, .bind_addr = fake_bind_addr,
	.resolve_addr = fake_resolve_addr, .resolve_route = fake_resolve_route, .listen = fake_listen,
	.connect = fake_connect, .accept = fake_accept, .reject = fake_reject,
	.establish = fake_establish, .init_qp_attr = fake_init_qp_attr, .get_cm_event = fake_get_cm_event,
	.ack_cm_event = fake_ack_cm_event, .event_str = fake_event_str,
	.get_devices = get_cm_devices, .free_devices = free_cm_devices,
};
