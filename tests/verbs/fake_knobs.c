/* fake_knobs.c - what tests plug in, break and count */
#include "tests/verbs/fake_private.h"
#include <arpa/inet.h>
#include <stdlib.h>
#include <sys/stat.h>

static struct fake_all *const all = &fake_all;

#define LIMITS(inline_bytes, message, reads) \
	.max_inline = inline_bytes, .max_message = message, .max_wr = 16384, .max_cqe = 4 << 20, .max_srq_wr = 32768, \
	.max_rd_atomic = reads, .max_sge = 6, .max_sge_rd = 6
#define LINE .mtu = IBV_MTU_4096, .width = 2, .speed = 32, .pkeys = { 0xffff }

const struct fake_device fake_devices[FAKE_DEVICES] = {
	{ .name = "fake_ib0", .kind = FAKE_IB, .ports = 2, .numa = 0, LIMITS(220, 1 << 30, 16), .port = {
		{ LINE, .state = IBV_PORT_ACTIVE, .lid = 7, .ip = "10.9.0.1", .gids = {
			{ "fe80::2:c903:0:1", IBV_GID_TYPE_IB } } },
		{ LINE, .state = IBV_PORT_DOWN, .gids = { { "fe80::2:c903:0:2", IBV_GID_TYPE_IB } } } } },
	{ .name = "fake_roce0", .kind = FAKE_ROCE, .ports = 2, .numa = 1, LIMITS(512, 8 << 20, 128), .port = {
		{ LINE, .state = IBV_PORT_ACTIVE, .ip = "10.9.0.2", .gids = {
			{ "fe80::ff:fe00:2", IBV_GID_TYPE_ROCE_V2 }, { "::ffff:10.9.0.2", IBV_GID_TYPE_ROCE_V2 },
			{ "fe80::ff:fe00:2", IBV_GID_TYPE_ROCE_V1 } } },
		{ LINE, .state = IBV_PORT_DOWN, .gids = { { "fe80::ff:fe00:12", IBV_GID_TYPE_ROCE_V2 } } } } },
	{ .name = "fake_iwarp0", .kind = FAKE_IWARP, .ports = 1, .numa = -1, LIMITS(80, 1 << 30, 128), .port = {
		{ LINE, .state = IBV_PORT_ACTIVE, .ip = "10.9.0.3", .gids = {
			{ "200:5eff:fe00:3::", IBV_GID_TYPE_IB } } } } },
	{ .name = "fake_efa0", .kind = FAKE_EFA, .ports = 1, .numa = 0, LIMITS(32, 8 << 10, 0), .port = {
		{ LINE, .state = IBV_PORT_ACTIVE, .gids = { { "fe80::ff:fe00:4", IBV_GID_TYPE_IB } } } } },
};

const struct fake_device fake_vpi = {
	.name = "fake_vpi0", .kind = FAKE_IB, .ports = 2, .numa = 0, .vectors = 1, LIMITS(0, 1 << 30, 16),
	.port = {
		{ LINE, .state = IBV_PORT_ACTIVE, .lid = 8, .ip = "10.9.0.5", .gids = {
			{ "fe80::2:c903:0:51", IBV_GID_TYPE_IB } } },
		{ LINE, .state = IBV_PORT_ACTIVE, .ethernet = true, .gids = {
			{ "fe80::ff:fe00:52", IBV_GID_TYPE_ROCE_V2 },
			{ "::ffff:10.9.0.52", IBV_GID_TYPE_ROCE_V2 } } } },
};

/* ---- the world ---- */

static void take_gid(struct fake_adapter *a, int port, int index)
{
	const char *text = a->is.port[port - 1].gids[index].text;
	union ibv_gid *gid = &a->gids[port - 1][index];

	memset(gid, 0, sizeof *gid);
	if (text && inet_pton(AF_INET6, text, gid) != 1)
		abort();
}

static void plug(struct fake_adapter *a, const struct fake_device *d)
{
	static const enum ibv_node_type nodes[] = { IBV_NODE_CA, IBV_NODE_CA, IBV_NODE_RNIC, IBV_NODE_UNSPECIFIED };
	static const enum ibv_transport_type transports[] = { IBV_TRANSPORT_IB, IBV_TRANSPORT_IB, IBV_TRANSPORT_IWARP,
		                                              IBV_TRANSPORT_UNSPECIFIED };

	a->is = *d;
	a->base.node_type = nodes[d->kind];
	a->base.transport_type = transports[d->kind];
	snprintf(a->base.name, sizeof a->base.name, "%s", d->name);
	snprintf(a->base.dev_name, sizeof a->base.dev_name, "uverbs%d", (int)(a - all->adapters));
	snprintf(a->base.dev_path, sizeof a->base.dev_path, "/sys/class/infiniband_verbs/%s", a->base.dev_name);
	snprintf(a->base.ibdev_path, sizeof a->base.ibdev_path, "/sys/class/infiniband/%s", d->name);
	for (int port = 1; port <= d->ports; port++)
		for (int i = 0; i < FAKE_GIDS; i++)
			take_gid(a, port, i);
	a->cm.adapter = a;
	a->cm.base = (struct ibv_context){ .device = &a->base, .async_fd = -1, .cmd_fd = -1,
		.num_comp_vectors = d->vectors ? d->vectors : 4 };
	a->cm.base.ops.poll_cq = fake_poll_cq;
	a->cm.base.ops.req_notify_cq = fake_req_notify_cq;
	a->cm.base.ops.post_send = fake_post_send;
	a->cm.base.ops.post_recv = fake_post_recv;
	a->cm.base.ops.post_srq_recv = fake_post_srq_recv;
	tt_list_init(&a->cm.events);
}

static void replace(const struct fake_device *list, int n)
{
	if (!tt_list_empty(&all->contexts) || !tt_list_empty(&all->ids)) {
		fake_bug("fake_plug: a device is open");
		return;
	}
	free(all->adapters);
	all->adapters = calloc((size_t)n + 1, sizeof *all->adapters);
	if (!all->adapters)
		abort();
	all->adapter_count = n;
	all->routes++;
	for (int i = 0; i < n; i++)
		plug(&all->adapters[i], &list[i]);
}

void fake_plug_in(void)
{
	if (!all->adapters)
		replace(fake_devices, FAKE_DEVICES);
}

void fake_plug(const struct fake_device *list, int n)
{
	fake_lock();
	replace(list, n);
	fake_unlock();
}

void fake_seed(uint64_t seed)
{
	fake_lock();
	tt_random_seed(&all->random, seed);
	memset(all->calls, 0, sizeof all->calls);
	memset(all->fails, 0, sizeof all->fails);
	memset(&all->send_fault, 0, sizeof all->send_fault);
	memset(&all->receive_fault, 0, sizeof all->receive_fault);
	all->cm_next.set = all->lenient = false;
	all->requests = all->bugs = all->rnrs = 0;
	all->pin_ms = all->make_ms = 0;
	for (int i = 0; i < all->adapter_count; i++) {
		memset(all->adapters[i].lost, 0, sizeof all->adapters[i].lost);
		memset(all->adapters[i].dark, 0, sizeof all->adapters[i].dark);
		memset(all->adapters[i].path_mtu, 0, sizeof all->adapters[i].path_mtu);
	}
	fake_unlock();
}

static void write_file(const char *folder, const char *name, const char *text)
{
	char path[512];
	FILE *f;

	snprintf(path, sizeof path, "%s/%s", folder, name);
	for (char *slash = path + 1; (slash = strchr(slash, '/')); *slash++ = '/') {
		*slash = 0;
		mkdir(path, 0777);
	}
	f = fopen(path, "w");
	if (!f || fprintf(f, "%s\n", text) < 0 || fclose(f))
		abort();
}

static void write_device(struct fake_adapter *a)
{
	char text[32];

	snprintf(text, sizeof text, "%d", a->is.numa);
	write_file(a->base.ibdev_path, "device/numa_node", text);
}

void fake_sysfs(const char *folder)
{
	fake_lock();
	fake_plug_in();
	for (int i = 0; i < all->adapter_count; i++) {
		struct fake_adapter *a = &all->adapters[i];
		snprintf(a->base.ibdev_path, sizeof a->base.ibdev_path, "%.150s/%s", folder, a->base.name);
		snprintf(a->base.dev_path, sizeof a->base.dev_path, "%.150s/%s", folder, a->base.dev_name);
		write_device(a);
		write_file(folder, a->base.dev_name, "");
	}
	fake_unlock();
}

void fake_gpus(int ways)
{
	fake_lock();
	all->gpus = ways;
	fake_unlock();
}

void fake_lenient(int lenient)
{
	fake_lock();
	all->lenient = lenient;
	fake_unlock();
}

/* ---- faults ---- */

static enum fake_call call_of(const char *function)
{
	static const char *const names[] = {
#define X(name) #name,
		FAKE_VERBS(X) FAKE_CM(X)
#undef X
	};

	for (size_t i = 0; i < TT_COUNT(names); i++)
		if (!strcmp(names[i], function))
			return (enum fake_call)i;
	fprintf(stderr, "fake verbs: there is no function %s\n", function);
	abort();
}

void fake_fail(const char *function, int nth, int err)
{
	fake_lock();
	all->fails[call_of(function)].left = nth;
	all->fails[call_of(function)].err = err;
	fake_unlock();
}

void fake_pin_slowly(unsigned ms) { all->pin_ms = ms; }
void fake_make_slowly(unsigned ms) { all->make_ms = ms; }
unsigned fake_pinning(void) { return all->pinning; }

static void set_fault(struct fake_fault *f, int nth, enum ibv_wc_status status, uint32_t vendor)
{
	fake_lock();
	*f = (struct fake_fault){ nth, status, vendor };
	fake_unlock();
}

void fake_fail_send(int nth, enum ibv_wc_status status, uint32_t vendor)
{
	set_fault(&all->send_fault, nth, status, vendor);
}

void fake_fail_receive(int nth, enum ibv_wc_status status, uint32_t vendor)
{
	set_fault(&all->receive_fault, nth, status, vendor);
}

/* Locked from here on, until fake_unlock(). */
static struct fake_adapter *lock_adapter(const char *name)
{
	struct fake_adapter *a;

	fake_lock();
	fake_plug_in();
	a = fake_adapter(name);
	if (a)
		return a;
	fprintf(stderr, "fake verbs: there is no device %s\n", name);
	abort();
}

void fake_lose(const char *device, int port, int tries)
{
	lock_adapter(device)->lost[port - 1] = tries;
	fake_unlock();
}

void fake_cut(const char *device, int port, unsigned ms)
{
	lock_adapter(device)->dark[port - 1] = tt_now() + ms * TT_MS;
	fake_unlock();
}

void fake_path_mtu(const char *device, int port, unsigned bytes)
{
	lock_adapter(device)->path_mtu[port - 1] = bytes;
	fake_unlock();
}

static void tell_all(const struct fake_adapter *a, enum ibv_event_type type, int port)
{
	tt_each_of(struct fake_context, node, c, &all->contexts)
		if (c->adapter == a)
			fake_raise_event(c, type, NULL, port);
}

void fake_port_state(const char *device, int port, enum ibv_port_state state)
{
	struct fake_adapter *a = lock_adapter(device);
	enum ibv_port_state before = a->is.port[port - 1].state;

	a->is.port[port - 1].state = state;
	if ((state == IBV_PORT_ACTIVE) != (before == IBV_PORT_ACTIVE))
		tell_all(a, state == IBV_PORT_ACTIVE ? IBV_EVENT_PORT_ACTIVE : IBV_EVENT_PORT_ERR, port);
	fake_unlock();
}

void fake_set_gid(const char *device, int port, int index, const char *text, enum ibv_gid_type type)
{
	struct fake_adapter *a = lock_adapter(device);

	a->is.port[port - 1].gids[index] = (struct fake_gid){ text, type };
	take_gid(a, port, index);
	all->routes++;
	tell_all(a, IBV_EVENT_GID_CHANGE, port);
	fake_unlock();
}

void fake_set_lid(const char *device, int port, uint16_t lid, enum ibv_event_type type)
{
	struct fake_adapter *a = lock_adapter(device);

	a->is.port[port - 1].lid = lid;
	all->routes++;
	tell_all(a, type, port);
	fake_unlock();
}

void fake_set_pkey(const char *device, int port, int index, uint16_t pkey)
{
	struct fake_adapter *a = lock_adapter(device);

	a->is.port[port - 1].pkeys[index] = pkey;
	tell_all(a, IBV_EVENT_PKEY_CHANGE, port);
	fake_unlock();
}

void fake_remove(const char *device)
{
	struct fake_adapter *a = lock_adapter(device);

	a->removed = true;
	tell_all(a, IBV_EVENT_DEVICE_FATAL, 0);
	tt_each_of(struct fake_qp, node, q, &all->qps)
		if (q->context->adapter == a)
			fake_flush(q, true);
	fake_cm_remove(a);
	fake_unlock();
}

void fake_kill(struct ibv_context *base)
{
	struct fake_context *c = tt_container_of(base, struct fake_context, base);

	fake_lock();
	c->killed = true;
	fake_cm_kill(c);
	tt_each_of(struct fake_qp, node, q, &all->qps)
		if (q->context == c) {
			fake_flush(q, true);
			fake_end_connection(q);
		}
	fake_unlock();
}

void fake_raise(struct ibv_context *base, enum ibv_event_type type, void *element, int port)
{
	fake_lock();
	fake_raise_event(tt_container_of(base, struct fake_context, base), type, element, port);
	fake_unlock();
}

void fake_cm_raise(struct rdma_cm_id *id, enum rdma_cm_event_type type, int status)
{
	fake_lock();
	fake_announce(tt_container_of(id, struct fake_id, base), type, status, NULL, 0);
	fake_unlock();
}

void fake_cm_next(enum rdma_cm_event_type event, int status)
{
	fake_lock();
	all->cm_next.set = true;
	all->cm_next.event = event;
	all->cm_next.status = status;
	fake_unlock();
}

/* ---- what there is ---- */

static struct tt_list *nth(struct tt_list *list, int n)
{
	struct tt_list *found = NULL;

	fake_lock();
	tt_list_each(node, list)
		if (!n--)
			found = node;
	fake_unlock();
	return found;
}

struct ibv_context *fake_context(int n)
{
	struct tt_list *node = nth(&all->contexts, n);

	return node ? &tt_container_of(node, struct fake_context, node)->base : NULL;
}

struct ibv_qp *fake_qp(int n)
{
	struct tt_list *node = nth(&all->qps, n);

	return node ? &tt_container_of(node, struct fake_qp, node)->base : NULL;
}

struct rdma_cm_id *fake_id(int n)
{
	struct tt_list *node = nth(&all->ids, n);

	return node ? &tt_container_of(node, struct fake_id, node)->base : NULL;
}

struct ibv_qp_attr fake_attr(const struct ibv_qp *base)
{
	const struct fake_qp *q = tt_container_of(base, const struct fake_qp, base);
	struct ibv_qp_attr attr;

	fake_lock();
	attr = q->attr;
	attr.qp_state = q->state;
	attr.cap = q->cap;
	fake_unlock();
	return attr;
}

/* ---- counts ---- */

static uint64_t read_locked(const uint64_t *count)
{
	uint64_t n;

	fake_lock();
	n = *count;
	fake_unlock();
	return n;
}

int fake_left(void)
{
	int n;

	fake_lock();
	n = all->objects;
	fake_unlock();
	return n;
}

uint64_t fake_calls(const char *function) { return read_locked(&all->calls[call_of(function)]); }
uint64_t fake_requests(void) { return read_locked(&all->requests); }
uint64_t fake_bugs(void) { return read_locked(&all->bugs); }
uint64_t fake_rnrs(void) { return read_locked(&all->rnrs); }

uint32_t fake_waiting(const struct ibv_srq *base)
{
	fake_lock();
	uint32_t n = tt_container_of(base, const struct fake_srq, base)->waiting;
	fake_unlock();
	return n;
}

bool fake_is_open(const char *device)
{
	const struct fake_adapter *a = lock_adapter(device);
	bool open = a->opened || a->cm_opened;

	fake_unlock();
	return open;
}
