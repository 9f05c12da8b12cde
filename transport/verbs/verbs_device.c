/* verbs_device.c - which adapters there are, which ports the nets take, and their addresses there */
#include "transport/verbs/verbs_private.h"
#include <arpa/inet.h>
#include <sched.h>
#include <stdlib.h>
#include <unistd.h>

enum { PORTS_MAX = 64 };

struct port { /* of any device */
	char device[IBV_SYSFS_NAME_MAX], name[IBV_SYSFS_NAME_MAX + 8]; /* "mlx5_0", "mlx5_0:2" */
	uint8_t number; /* 0: unknown, as the device cannot be asked */
	bool wanted;    /* TUTTI_VERBS_DEVICES names it, or is not set */
	int numa, distance; /* distance: of its NUMA node from the rank's */
	uint8_t link;   /* 1 InfiniBand, 2 Ethernet, 3 iWARP: ports of another link do not reach it */
	unsigned mbps;
	bool slow;      /* another one of its link is more than twice as fast */
	uint64_t network; /* ports of another one do not reach it; the same: they may */
	char why[200]; /* it cannot be used; empty: it can */
	char note[160]; /* its address, and why it is taken */
	struct ibv_context *context; /* of the device, for all its ports; NULL: it is closed */
};

static bool is_iwarp(const struct ibv_context *c) { return c->device->transport_type == IBV_TRANSPORT_IWARP; }

const char *tt_verbs_link_name(uint8_t link)
{
	return link == TT_VERBS_IWARP ? "iWARP" : link == IBV_LINK_LAYER_ETHERNET ? "RoCE" : "InfiniBand";
}

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

/* Empty entries are errors. */
static bool read_gid(const struct tt_verbs_library *l, struct ibv_context *device, const struct tt_verbs_port *port,
                     int index, struct ibv_gid_entry *e)
{
	return !l->query_gid_ex(device, port->number, (uint32_t)index, e, 0, sizeof *e);
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

static int choose_gid(const struct tt_verbs_library *l, struct ibv_context *device, struct tt_verbs_port *port)
{
	const char *set = tt_env(TT_VERBS_GID_INDEX);
	struct ibv_gid_entry e = { 0 };
	int index = set ? atoi(set) : 0;

	if (is_iwarp(device)) /* only librdmacm connects, by IP addresses */
		return 0;
	if (set || port->attr.link_layer != IBV_LINK_LAYER_ETHERNET) {
		if (!read_gid(l, device, port, index, &e))
			return tt_fail(-ENODEV, "it has no GID of index %d%s: show_gids lists them", index,
			               set ? " (TUTTI_VERBS_GID_INDEX)" : "");
	} else if ((index = best_gid(l, device, port, &e)) < 0) {
		return tt_fail(-ENODEV, "it has no GID: does its network interface have an address?");
	}
	port->gid_index = index;
	port->gid = e.gid;
	port->gid_type = (enum ibv_gid_type)e.gid_type;
	return 0;
}

/* The port */

/* Those of full members first: two limited members do not talk. false: the port's list has the partition, or is full */
static bool add_pkey(struct tt_verbs_port *port, int n, uint16_t key, int index)
{
	for (int i = 0; i < n; i++)
		if (!((port->pkeys[i] ^ key) & TT_VERBS_PARTITION))
			return false;
	if (n == TT_VERBS_PKEYS)
		return false;
	port->pkeys[n] = key;
	port->pkey_at[n] = (uint16_t)index;
	return true;
}

/* The upper bit tells a full member of a partition from a limited one. Two ports may be in several partitions, and in
 * some of them both as limited members: so the two ends choose. */
static int list_pkeys(const struct tt_verbs_library *l, struct ibv_context *device, struct tt_verbs_port *port)
{
	const char *set = tt_env(TT_VERBS_PKEY);
	long wanted = set ? strtol(set, NULL, 0) & TT_VERBS_PARTITION : 0;
	char table[80] = "";
	__be16 entry;
	int n = 0;

	memset(port->pkeys, 0, sizeof port->pkeys);
	memset(port->pkey_at, 0, sizeof port->pkey_at);
	for (int i = 0; i < 2 * port->attr.pkey_tbl_len; i++) {
		int at = i % port->attr.pkey_tbl_len;
		bool first = i == at;
		size_t used = strlen(table);
		uint16_t key = l->query_pkey(device, port->number, at, &entry) ? 0 : be16toh(entry);
		if (!(key & TT_VERBS_PARTITION))
			continue;
		if (first)
			snprintf(table + used, sizeof table - used, "%s0x%04x", used ? ", " : "", key);
		if (first == !!(key & TT_VERBS_FULL) && (!set || (key & TT_VERBS_PARTITION) == wanted))
			n += add_pkey(port, n, key, at);
	}
	return set && !n ?
	       tt_fail(-ENODEV, "it has no partition key %s (TUTTI_VERBS_PKEY); it has %s", set, table) : 0;
}

static const char *state_name(enum ibv_port_state state)
{
	return state == IBV_PORT_DOWN ? "down" : state == IBV_PORT_INIT ? "waiting for a subnet manager" : "not active";
}

/* -errno, and a sentence about "it": the port cannot be used, by these settings. */
static int read_port(const struct tt_verbs_library *l, struct ibv_context *device, struct tt_verbs_port *port)
{
	int err;

	if (l->query_port(device, port->number, &port->attr))
		return tt_fail(-EIO, "its port %u cannot be asked", port->number);
	if (port->attr.state != IBV_PORT_ACTIVE)
		return tt_fail(-ENODEV, "its port %u is %s", port->number, state_name(port->attr.state));
	err = list_pkeys(l, device, port);
	return err ? err : choose_gid(l, device, port);
}

static void describe_address(const struct ibv_context *c, const struct tt_verbs_port *port, char *note, size_t size)
{
	char gid[INET6_ADDRSTRLEN] = "";
	const char *what = port->attr.link_layer != IBV_LINK_LAYER_ETHERNET ? "InfiniBand" :
	                   port->gid_type == IBV_GID_TYPE_ROCE_V2 ? "RoCE v2" : "RoCE v1";

	inet_ntop(AF_INET6, port->gid.raw, gid, sizeof gid);
	if (is_iwarp(c))
		snprintf(note, size, "iWARP");
	else
		snprintf(note, size, "%s, GID %d %s, MTU %u", what, port->gid_index, gid,
		         128u << port->attr.active_mtu);
}

bool tt_verbs_read_anew(struct tt_verbs *net, char *note, size_t size)
{
	net->unfit = (struct tt_sentence){ "" };
	if (read_port(net->library, net->device, &net->port)) {
		net->unfit = tt_last_sentence();
		snprintf(note, size, "%s", net->unfit.text);
	} else {
		describe_address(net->device, &net->port, note, size);
	}
	return !*net->unfit.text;
}

/* A driver may remove a device without a word, and wait for those who have it open. */
bool tt_verbs_is_shown(const struct tt_verbs *net)
{
	return !access(net->device->device->dev_path, F_OK) || errno != ENOENT;
}

/* What there is */

static unsigned rate_of(const struct ibv_port_attr *a)
{
	static const uint8_t lanes[256] = { [1] = 1, [2] = 4, [4] = 8, [8] = 12, [16] = 2 };
	static const unsigned of_lane[256] = { [1] = 2500, [2] = 5000, [4] = 10000, [8] = 10000, [16] = 14000,
		[32] = 25000, [64] = 50000, [128] = 100000 };

	return lanes[a->active_width] * of_lane[a->active_speed];
}

static void judge_device(const struct ibv_device *d, const struct ibv_device_attr *a, char *why, size_t size)
{
	if (d->transport_type == IBV_TRANSPORT_IWARP && tt_verbs_load_cm())
		snprintf(why, size, "it speaks iWARP: %.140s", tt_last_sentence().text);
	else if (d->transport_type != IBV_TRANSPORT_IB && d->transport_type != IBV_TRANSPORT_IWARP)
		snprintf(why, size, "it has no reliable connections (RC queue pairs), as EFA has none");
	else if (a->max_srq < 1 || a->max_srq_wr < TT_VERBS_CREDITS)
		snprintf(why, size, "it has no shared receive queues");
	else if (a->max_qp_rd_atom < 1 || a->max_qp_init_rd_atom < 1)
		snprintf(why, size, "it does not serve RDMA READ");
}

static void describe_port(const struct tt_verbs_library *l, struct ibv_context *device, struct port *p)
{
	struct tt_verbs_port port = { .number = p->number };
	int err = read_port(l, device, &port);

	p->mbps = rate_of(&port.attr);
	p->link = is_iwarp(device) ? TT_VERBS_IWARP : port.attr.link_layer;
	p->network = port.attr.link_layer != IBV_LINK_LAYER_ETHERNET ? port.gid.global.subnet_prefix :
	             is_iwarp(device) ? TT_VERBS_IWARP : IBV_LINK_LAYER_ETHERNET;
	if (*p->why)
		return;
	if (err)
		snprintf(p->why, sizeof p->why, "%.190s", tt_last_sentence().text);
	else
		describe_address(device, &port, p->note, sizeof p->note);
}

static int describe_device(const struct tt_verbs_library *l, struct ibv_device *d, struct port *out, int max)
{
	struct ibv_context *context = l->open_device(d);
	struct ibv_device_attr attr = { 0 };
	struct port p = { .numa = -1 };
	bool asked = context && !l->query_device(context, &attr);
	char text[32];
	int n = 0;

	if (tt_read_text(text, sizeof text, "%s/device/numa_node", d->ibdev_path))
		p.numa = atoi(text);
	snprintf(p.device, sizeof p.device, "%s", l->get_device_name(d));
	p.context = context;
	if (!asked)
		snprintf(p.why, sizeof p.why, "it cannot be opened: %s", strerror(errno));
	else
		judge_device(d, &attr, p.why, sizeof p.why);
	for (unsigned i = asked ? 1 : 0; i <= attr.phys_port_cnt && n < max; i++) {
		out[n] = p;
		out[n].number = (uint8_t)i;
		snprintf(out[n].name, sizeof out->name, asked ? "%s:%u" : "%s", p.device, i);
		if (asked)
			describe_port(l, context, &out[n]);
		n++;
	}
	if (context && !n)
		l->close_device(context);
	return n;
}

static void close_ports(const struct tt_verbs_library *l, struct port *ports, int n, const struct ibv_context *keep)
{
	for (int i = 0; i < n; i++) {
		struct ibv_context *context = ports[i].context;
		if (!context || context == keep)
			continue;
		for (int k = i; k < n; k++)
			if (ports[k].context == context)
				ports[k].context = NULL;
		l->close_device(context);
	}
}

/* "mlx5_0" names any port of the device, "mlx5_0:2" one. */
static bool is_named(const char *name, const char *entry, size_t len)
{
	return len && !strncmp(name, entry, len) && (!name[len] || name[len] == ':');
}

static bool has_device(const char *names, const char *device)
{
	for (; *names; names += names[strcspn(names, ",")] ? strcspn(names, ",") + 1 : strlen(names))
		if (is_named(device, names, strcspn(names, ",:")))
			return true;
	return false;
}

/* Opens no device that is not named. names: NULL, all */
static int find_ports(const struct tt_verbs_library *l, const char *names, struct port *out, int max)
{
	int devices = 0, n = 0;
	struct ibv_device **list = l->get_device_list(&devices);

	for (int i = 0; list && i < devices; i++)
		if (!names || has_device(names, l->get_device_name(list[i])))
			n += describe_device(l, list[i], out + n, max - n);
	if (list)
		l->free_device_list(list);
	return n;
}

static int refuse_name(const struct tt_verbs_library *l, const char *name, size_t len)
{
	struct ibv_device **list = l->get_device_list(NULL);
	char there[200] = "none at all";

	for (size_t i = 0, used = 0; list && list[i] && used < sizeof there; i++)
		used += (size_t)snprintf(there + used, sizeof there - used, "%s%s", i ? ", " : "",
		                         l->get_device_name(list[i]));
	if (list)
		l->free_device_list(list);
	return tt_fail(-EINVAL, "this host has no RDMA adapter or port '%.*s' (TUTTI_VERBS_DEVICES), but %s", (int)len,
	               name, there);
}

/* A name that no port has would be an adapter that is missed in silence. */
static int mark_wanted(const struct tt_verbs_library *l, const char *names, struct port *ports, int n)
{
	bool found = true;

	for (int i = 0; i < n; i++)
		ports[i].wanted = !names;
	for (size_t len; found && names && *names; names += len + (names[len] == ',')) {
		len = strcspn(names, ",");
		found = false;
		for (int i = 0; i < n; i++)
			if (is_named(ports[i].name, names, ports[i].number ? len : strcspn(names, ",:")))
				ports[i].wanted = found = true;
		if (!found)
			return refuse_name(l, names, len);
	}
	return 0;
}

/* Why none can be used. */
static void tell_why_none(const struct port *ports, int n)
{
	char text[400] = "";
	size_t used = 0;

	for (int i = 0; i < n && used < sizeof text - 1; i++)
		if (ports[i].wanted)
			used += (size_t)snprintf(text + used, sizeof text - used, "%s%s: %s", used ? "; " : "",
			                         ports[i].name, ports[i].why);
	if (used)
		tt_fail(-ENODEV, "no adapter can be used: %s", text);
	else
		tt_fail(-ENODEV, "this host has no RDMA adapter (ibv_devices lists them), or /dev/infiniband is not in "
		        "this container");
}

/* Which ones */

/* 10: it is the same node, or none is known of both; 20: the distance is not known. */
static int distance_of(int node, int from)
{
	char text[512] = "", *at = text;
	int distance = node == from ? 10 : 0;

	if (node != from && node >= 0 && from >= 0)
		tt_read_text(text, sizeof text, "/sys/devices/system/node/node%d/distance", from);
	for (int i = 0; node != from && i <= node; i++)
		distance = (int)strtol(at, &at, 10);
	return distance ? distance : 20;
}

/* Those that can be used first. Of these first what all ranks of a job see alike, on whatever core: InfiniBand before
 * RoCE before iWARP, for they do not reach each other, and what is half as fast as the fastest or more, for a slow port
 * is there to manage the host. Only then what is near, then what is fast. 0: they are alike */
static int compare(const struct port *a, const struct port *b)
{
	if (!*a->why != !*b->why)
		return *a->why ? 1 : -1;
	if (a->link != b->link)
		return a->link - b->link;
	if (a->slow != b->slow)
		return a->slow - b->slow;
	return a->distance != b->distance ? a->distance - b->distance : (int)(b->mbps / 100) - (int)(a->mbps / 100);
}

static void find_slow(struct port *ports, int n)
{
	for (int i = 0; i < n; i++)
		for (int k = 0; k < n; k++)
			ports[i].slow |= !*ports[k].why && ports[k].link == ports[i].link &&
			                 ports[i].mbps && ports[i].mbps < ports[k].mbps / 2; /* 0: unknown */
}

/* All ports of the devices (opened: of those alone), the best first; `usable` of them can be used. keep: the device of
 * the first one stays open, all others are closed. -EINVAL: `names` has none, so its lack is worth a warning. -ENODEV:
 * most hosts have none. */
static int find_best(const struct tt_verbs_library *l, const char *opened, const char *names, int node,
                     struct port *ports, int *usable, bool keep)
{
	int n = find_ports(l, opened, ports, PORTS_MAX), err = mark_wanted(l, names, ports, n);

	*usable = 0;
	for (int i = 0; !err && i < n; i++)
		if (!ports[i].wanted && !*ports[i].why)
			snprintf(ports[i].why, sizeof ports[i].why, "TUTTI_VERBS_DEVICES does not name it");
	find_slow(ports, n);
	for (int i = 0, j; !err && i < n; i++) {
		struct port p = ports[i];
		p.distance = distance_of(p.numa, node);
		*usable += !*p.why;
		for (j = i; j && compare(&p, &ports[j - 1]) < 0; j--)
			ports[j] = ports[j - 1];
		ports[j] = p;
	}
	close_ports(l, ports, n, keep && !err && *usable ? ports->context : NULL);
	if (err || *usable)
		return err ? err : n;
	tell_why_none(ports, n);
	return names ? -EINVAL : -ENODEV;
}

/* A pair of ranks uses one port of each side, and each net pins all windows: so several are a matter of asking. */
static int nets_of(const char *names, int usable) { return (int)tt_min(names ? TT_DEVICES : 1, (size_t)usable); }

int tt_verbs_choose(int node, int turn, char (*out)[TT_DEVICE_NAME])
{
	const struct tt_verbs_library *l = tt_verbs_load();
	const char *names = tt_env(TT_VERBS_DEVICES);
	struct port ports[PORTS_MAX];
	int usable = 0, err = l ? find_best(l, names, names, node, ports, &usable, false) : -ENODEV;
	int n = nets_of(names, usable);

	for (int i = 0, j; i < n; i = j) {
		for (j = i + 1; j < usable && !compare(&ports[i], &ports[j]); j++)
			if (ports[i].network != ports[j].network)
				break;
		for (int k = i; k < j && k < n; k++)
			snprintf(out[k], sizeof *out, "%.63s", ports[i + (k - i + turn) % (j - i)].name);
	}
	return err < 0 ? err : n;
}

/* Why ranks on this process's cores take this one, and not the next one. */
static const char *say_why(const struct port *p, const struct port *next, bool only)
{
	if (only)
		return "no other one can be used";
	if (!compare(p, next))
		return "or one that is alike, in turn";
	return p->link != next->link ? "its kind comes first" : p->slow != next->slow ? "it is the fastest" :
	       p->distance != next->distance ? "it is the nearest" : "it is the fastest of the nearest";
}

/* Why ranks on this process's cores take the other one. */
static void say_why_not(struct port *p, const struct port *taken)
{
	if (p->link != taken->link)
		snprintf(p->why, sizeof p->why, "all ranks take %s, as %.60s, before %s",
		         tt_verbs_link_name(taken->link), taken->name, tt_verbs_link_name(p->link));
	else if (p->slow != taken->slow)
		snprintf(p->why, sizeof p->why, "%.60s is more than twice as fast", taken->name);
	else
		snprintf(p->why, sizeof p->why, "to ranks on these cores %.60s is %s", taken->name,
		         p->distance > taken->distance ? "nearer" : "as near, and faster");
}

int tt_verbs_list(struct tt_device *list, int max)
{
	const struct tt_verbs_library *l = tt_verbs_load();
	const char *names = tt_env(TT_VERBS_DEVICES);
	struct port ports[PORTS_MAX];
	int usable = 0, n = l ? find_best(l, NULL, names, tt_numa_node(), ports, &usable, false) : -ENODEV;

	for (int i = 0; i < n && i < max; i++) {
		struct port *p = &ports[i], *last = &ports[nets_of(names, usable) - 1];
		if (!*p->why && compare(p, last) > 0)
			say_why_not(p, last);
		size_t used = strlen(p->note);
		if (!*p->why && !names && !compare(p, last))
			snprintf(p->note + used, sizeof p->note - used, "; ranks on these cores take it: %s",
			         say_why(p, &ports[i ? 0 : usable > 1], usable == 1));
		list[i] = (struct tt_device){ .numa = p->numa, .mbps = p->mbps };
		snprintf(list[i].name, sizeof list->name, "%.31s", p->name);
		snprintf(list[i].note, sizeof list->note, "%s%.140s", *p->why ? "not used: " : p->note, p->why);
	}
	return n;
}

int tt_verbs_open_device(struct tt_verbs *net, const char *device)
{
	const char *names = device ? device : tt_env(TT_VERBS_DEVICES), *sl = tt_env(TT_VERBS_SL),
	           *class = tt_env(TT_VERBS_TC);
	struct port ports[PORTS_MAX], *p = ports;
	int usable, n = find_best(net->library, names, names, tt_numa_node(), ports, &usable, true);
	char note[96];

	if (n < 0)
		return n;
	snprintf(net->name, sizeof net->name, "%.60s", p->name);
	snprintf(net->base.device, sizeof net->base.device, "%.50s (%s, %u Gbit/s)", p->name,
	         tt_verbs_link_name(p->link), p->mbps / 1000);
	net->port = (struct tt_verbs_port){ .number = p->number, .sl = (uint8_t)(sl ? atoi(sl) : 0),
		.traffic_class = (uint8_t)(class ? atoi(class) : 0) };
	net->device = p->context;
	net->iwarp = is_iwarp(net->device);
	net->shown = tt_verbs_is_shown(net);
	if (net->library->query_device(net->device, &net->attr))
		return tt_fail(-EIO, "%s does not say what it can", net->name);
	return tt_verbs_read_anew(net, note, sizeof note) ? 0 : tt_fail(-EIO, "%s: %s", net->name, net->unfit.text);
}
