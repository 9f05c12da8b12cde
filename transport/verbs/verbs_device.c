/* verbs_device.c - which adapters there are, which port a net takes, and its address there */
#include "transport/verbs/verbs_private.h"
#include <arpa/inet.h>
#include <sched.h>
#include <stdlib.h>

enum { PORTS_MAX = 64 };

struct port { /* of any device */
	char device[IBV_SYSFS_NAME_MAX];
	char name[IBV_SYSFS_NAME_MAX + 8]; /* "mlx5_0", "mlx5_0:2" */
	uint8_t number;
	int numa;
	unsigned mbps;
	char why[160]; /* it cannot be used; empty: it can */
	char note[96]; /* its address */
};

/* The port's address */

static bool is_empty(const union ibv_gid *g) { return !g->global.subnet_prefix && !g->global.interface_id; }

static bool is_mapped(const union ibv_gid *g)
{
	static const uint8_t prefix[12] = { [10] = 0xff, [11] = 0xff };

	return !memcmp(g->raw, prefix, sizeof prefix);
}

static bool is_link_local(const union ibv_gid *g) { return g->raw[0] == 0xfe && (g->raw[1] & 0xc0) == 0x80; }

/* RoCE v2 by an IPv4 or global address is routed; a link-local one may stop at the next switch. */
static int rank_gid(const struct ibv_gid_entry *e)
{
	if (is_empty(&e->gid))
		return 0;
	if (e->gid_type != IBV_GID_TYPE_ROCE_V2)
		return 1;
	return is_mapped(&e->gid) ? 4 : is_link_local(&e->gid) ? 2 : 3;
}

static bool read_type(const struct ibv_context *device, unsigned port, int index, uint32_t *type)
{
	char text[16];

	if (!tt_read_text(text, sizeof text, "%s/ports/%u/gid_attrs/types/%d", device->device->ibdev_path, port, index))
		return false;
	*type = !strncmp(text, "RoCE v2", 7) ? IBV_GID_TYPE_ROCE_V2 : IBV_GID_TYPE_ROCE_V1;
	return true;
}

/* Older libraries tell the types in sysfs alone. Empty entries are errors. */
static bool read_gid(const struct tt_verbs_library *l, struct ibv_context *device, const struct tt_verbs_port *port,
                     int index, struct ibv_gid_entry *e)
{
	memset(e, 0, sizeof *e);
	if (l->query_gid_ex)
		return !l->query_gid_ex(device, port->number, (uint32_t)index, e, 0, sizeof *e);
	if (l->query_gid(device, port->number, index, &e->gid) || is_empty(&e->gid))
		return false;
	return port->attr.link_layer != IBV_LINK_LAYER_ETHERNET || read_type(device, port->number, index, &e->gid_type);
}

static int best_gid(const struct tt_verbs_library *l, struct ibv_context *device, const struct tt_verbs_port *port,
                    struct ibv_gid_entry *out)
{
	int best = -1, best_rank = 0;

	for (int i = 0; i < port->attr.gid_tbl_len; i++) {
		struct ibv_gid_entry e;
		int rank = read_gid(l, device, port, i, &e) ? rank_gid(&e) : 0;
		if (rank > best_rank) {
			best = i;
			best_rank = rank;
			*out = e;
		}
	}
	return best;
}

static int choose_gid(const struct tt_verbs_library *l, struct ibv_context *device, const char *name,
                      struct tt_verbs_port *port)
{
	const char *set = tt_env(TT_VERBS_GID_INDEX);
	struct ibv_gid_entry e = { 0 };
	int index = set ? atoi(set) : 0;

	if (set || port->attr.link_layer != IBV_LINK_LAYER_ETHERNET) {
		if (!read_gid(l, device, port, index, &e))
			return tt_fail(-ENODEV, "%s has no GID of index %d%s: show_gids lists them", name, index,
			               set ? " (TUTTI_VERBS_GID_INDEX)" : "");
	} else if ((index = best_gid(l, device, port, &e)) < 0) {
		return tt_fail(-ENODEV, "%s has no GID: does its network interface have an address?", name);
	}
	port->gid_index = index;
	port->gid = e.gid;
	port->gid_type = (enum ibv_gid_type)e.gid_type;
	return 0;
}

int tt_verbs_choose_gid(struct tt_verbs *net) { return choose_gid(net->library, net->device, net->name, &net->port); }

/* What there is */

static unsigned rate_of(const struct ibv_port_attr *a)
{
	static const struct { uint8_t code; unsigned value; }
		widths[] = { { 1, 1 }, { 2, 4 }, { 4, 8 }, { 8, 12 }, { 16, 2 } },
		speeds[] = { { 1, 2500 }, { 2, 5000 }, { 4, 10000 }, { 8, 10000 }, { 16, 14000 }, { 32, 25000 },
		             { 64, 50000 }, { 128, 100000 } };
	unsigned width = 0, speed = 0;

	for (size_t i = 0; i < TT_COUNT(widths); i++)
		width = widths[i].code == a->active_width ? widths[i].value : width;
	for (size_t i = 0; i < TT_COUNT(speeds); i++)
		speed = speeds[i].code == a->active_speed ? speeds[i].value : speed;
	return width * speed;
}

static const char *state_name(enum ibv_port_state state)
{
	return state == IBV_PORT_DOWN ? "down" : state == IBV_PORT_INIT ? "waiting for a subnet manager" : "not active";
}

static void judge_device(const struct ibv_device *d, const struct ibv_device_attr *a, char *why, size_t size)
{
	if (d->transport_type == IBV_TRANSPORT_IWARP)
		snprintf(why, size, "it speaks iWARP, which this Tutti does not");
	else if (d->transport_type != IBV_TRANSPORT_IB)
		snprintf(why, size, "it has no reliable connections (RC queue pairs), as EFA has none");
	else if (a->max_srq < 1 || a->max_srq_wr < TT_VERBS_CREDITS)
		snprintf(why, size, "it has no shared receive queues");
	else if (a->max_qp_rd_atom < 1 || a->max_qp_init_rd_atom < 1)
		snprintf(why, size, "it does not serve RDMA READ");
}

static void describe_address(const struct tt_verbs_port *port, char *note, size_t size)
{
	char gid[INET6_ADDRSTRLEN] = "";
	const char *what = port->attr.link_layer != IBV_LINK_LAYER_ETHERNET ? "InfiniBand" :
	                   port->gid_type == IBV_GID_TYPE_ROCE_V2 ? "RoCE v2" : "RoCE v1";

	inet_ntop(AF_INET6, port->gid.raw, gid, sizeof gid);
	snprintf(note, size, "%s, GID %d %s, MTU %u", what, port->gid_index, gid, 128u << port->attr.active_mtu);
}

static void describe_port(const struct tt_verbs_library *l, struct ibv_context *device, struct port *p)
{
	struct tt_verbs_port port = { .number = p->number };

	if (l->query_port(device, p->number, &port.attr)) {
		snprintf(p->why, sizeof p->why, "its port %u cannot be asked", p->number);
		return;
	}
	p->mbps = rate_of(&port.attr);
	if (*p->why)
		return;
	if (port.attr.state != IBV_PORT_ACTIVE)
		snprintf(p->why, sizeof p->why, "its port %u is %s", p->number, state_name(port.attr.state));
	else if (choose_gid(l, device, p->name, &port))
		snprintf(p->why, sizeof p->why, "%.150s", tt_last_sentence().text);
	else
		describe_address(&port, p->note, sizeof p->note);
}

static int describe_ports(const struct tt_verbs_library *l, struct ibv_device *d, struct port *out, int max)
{
	struct ibv_context *context = l->open_device(d);
	struct ibv_device_attr attr = { 0 };
	struct port p = { .numa = -1 };
	char text[32];
	int n = 0;

	if (tt_read_text(text, sizeof text, "%s/device/numa_node", d->ibdev_path))
		p.numa = atoi(text);
	snprintf(p.device, sizeof p.device, "%s", l->get_device_name(d));
	if (!context || l->query_device(context, &attr))
		snprintf(p.why, sizeof p.why, "it cannot be opened: %s", strerror(errno));
	else
		judge_device(d, &attr, p.why, sizeof p.why);
	for (unsigned i = 1; i <= tt_max(attr.phys_port_cnt, 1) && n < max; i++) {
		out[n] = p;
		out[n].number = (uint8_t)i;
		snprintf(out[n].name, sizeof out->name, attr.phys_port_cnt > 1 ? "%s:%u" : "%s", p.device, i);
		if (context)
			describe_port(l, context, &out[n]);
		n++;
	}
	if (context)
		l->close_device(context);
	return n;
}

static int find_ports(const struct tt_verbs_library *l, struct port *out, int max)
{
	int devices = 0, n = 0;
	struct ibv_device **list = l->get_device_list(&devices);

	for (int i = 0; list && i < devices; i++)
		n += describe_ports(l, list[i], out + n, max - n);
	if (list)
		l->free_device_list(list);
	return n;
}

/* Why none can be used. */
static void tell_why_none(const struct port *ports, int n)
{
	char text[400] = "";
	size_t used = 0;

	for (int i = 0; i < n && used < sizeof text - 1; i++)
		used += (size_t)snprintf(text + used, sizeof text - used, "%s%s: %s", i ? "; " : "", ports[i].name,
		                         ports[i].why);
	if (n)
		tt_fail(-ENODEV, "no adapter can be used: %s", text);
	else
		tt_fail(-ENODEV, "this host has no RDMA adapter (ibv_devices lists them), or /dev/infiniband is not in "
		        "this container");
}

int tt_verbs_list(struct tt_device *list, int max)
{
	const struct tt_verbs_library *l = tt_verbs_load();
	struct port ports[PORTS_MAX];
	int n = l ? find_ports(l, ports, PORTS_MAX) : 0, usable = 0;

	if (!l)
		return -ENODEV;
	for (int i = 0; i < n; i++) {
		usable += !*ports[i].why;
		if (i >= max)
			continue;
		list[i] = (struct tt_device){ .numa = ports[i].numa, .mbps = ports[i].mbps };
		snprintf(list[i].name, sizeof list->name, "%.31s", ports[i].name);
		snprintf(list[i].note, sizeof list->note, "%s%s", *ports[i].why ? "not used: " : ports[i].note,
		         ports[i].why);
	}
	if (!usable)
		tell_why_none(ports, n);
	return usable ? n : -ENODEV;
}

/* Which one */

/* "mlx5_0" is any port of it, "mlx5_0:2" one. */
static bool is_named(const struct port *p, const char *text, size_t len)
{
	size_t base = strlen(p->device);

	if (len < base || strncmp(p->device, text, base) != 0)
		return false;
	return len == base || (text[base] == ':' && atoi(text + base + 1) == p->number);
}

static bool is_wanted(const struct port *p, const char *names)
{
	for (size_t len; names && *names; names += len + (names[len] == ',')) {
		len = strcspn(names, ",");
		if (is_named(p, names, len))
			return true;
	}
	return false;
}

/* The nearest, then the fastest. */
static int rank_of(const struct port *p)
{
	unsigned cpu, node;
	bool near = !getcpu(&cpu, &node) && p->numa == (int)node;

	return (near ? 1 << 24 : 0) + (int)(p->mbps / 100);
}

static const struct port *choose_port(const struct port *ports, int n, const char *names)
{
	const struct port *best = NULL, *refused = NULL;

	for (int i = 0; i < n; i++) {
		if (names && !is_wanted(&ports[i], names))
			continue;
		if (*ports[i].why)
			refused = refused ? refused : &ports[i];
		else if (!best || rank_of(&ports[i]) > rank_of(best))
			best = &ports[i];
	}
	if (!best && names && refused)
		tt_fail(-ENODEV, "the adapter %s cannot be used: %s", names, refused->why);
	else if (!best && names)
		tt_fail(-ENODEV, "there is no RDMA adapter '%s': `tutti info` lists those that can be used", names);
	else if (!best)
		tell_why_none(ports, n);
	return best;
}

static int choose_pkey(struct tt_verbs *net)
{
	const char *set = tt_env(TT_VERBS_PKEY);
	long wanted = set ? strtol(set, NULL, 0) : 0;
	__be16 pkey;

	for (int i = 0; set && i < net->port.attr.pkey_tbl_len; i++)
		if (!net->library->query_pkey(net->device, net->port.number, i, &pkey) &&
		    (be16toh(pkey) & 0x7fff) == (wanted & 0x7fff)) {
			net->port.pkey_index = i;
			return 0;
		}
	return set ? tt_fail(-ENODEV, "%s has no partition key %s (TUTTI_VERBS_PKEY)", net->name, set) : 0;
}

static int read_port(struct tt_verbs *net)
{
	const char *sl = tt_env(TT_VERBS_SL), *class = tt_env(TT_VERBS_TC);
	int err;

	if (net->library->query_device(net->device, &net->attr) ||
	    net->library->query_port(net->device, net->port.number, &net->port.attr))
		return tt_fail(-EIO, "%s does not say what it can", net->name);
	net->port.sl = (uint8_t)(sl ? atoi(sl) : 0);
	net->port.traffic_class = (uint8_t)(class ? atoi(class) : 0);
	err = choose_pkey(net);
	return err ? err : tt_verbs_choose_gid(net);
}

static struct ibv_context *open_named(const struct tt_verbs_library *l, const char *name)
{
	struct ibv_device **list = l->get_device_list(NULL);
	struct ibv_context *context = NULL;

	for (int i = 0; list && list[i] && !context; i++)
		if (!strcmp(l->get_device_name(list[i]), name))
			context = l->open_device(list[i]);
	if (list)
		l->free_device_list(list);
	return context;
}

int tt_verbs_open_device(struct tt_verbs *net, const char *device)
{
	const char *names = device ? device : tt_env(TT_VERBS_DEVICES);
	struct port ports[PORTS_MAX];
	const struct port *p = choose_port(ports, find_ports(net->library, ports, PORTS_MAX), names);

	if (!p)
		return -ENODEV;
	snprintf(net->name, sizeof net->name, "%.50s:%u", p->device, p->number);
	net->port.number = p->number;
	if (!(net->device = open_named(net->library, p->device)))
		return tt_fail(-ENODEV, "%s cannot be opened: %s", net->name, strerror(errno));
	return read_port(net);
}
