/* topology_hwloc.c - reads a machine with hwloc 2
 *
 * hwloc is loaded on first use: linked, it would add 0.4 ms to the start of every rank. Components that start a GPU's
 * driver or contact an X server are disabled: GPUs show on the PCI bus as well. */
#include "topology/topology.h"
#ifdef HAVE_HWLOC
#include <dlfcn.h>
#include <hwloc.h>
#include <stdlib.h>
#include <unistd.h>

#define FUNCTIONS(F) \
	F(topology_init) F(topology_destroy) F(topology_load) F(topology_set_xml) F(topology_set_synthetic) \
	F(topology_set_flags) F(topology_set_components) F(topology_set_io_types_filter) \
	F(get_obj_by_depth) F(bitmap_first)

struct hwloc { /* the loaded library */
	void *handle;
#define MEMBER(name) __typeof__(hwloc_##name) *name;
	FUNCTIONS(MEMBER)
#undef MEMBER
};

struct reader {
	const struct hwloc *hw;
	struct tt_topology *t;
	struct tt_pu labels; /* of the object being read */
	bool failed;
};

static bool open_library(struct hwloc *hw)
{
	bool all = true;

	hw->handle = dlopen("libhwloc.so.15", RTLD_NOW | RTLD_LOCAL); /* of hwloc 2 */
	if (!hw->handle)
		return false;
#define FIND(name) all = all && (*(void **)&hw->name = dlsym(hw->handle, "hwloc_" #name));
	FUNCTIONS(FIND)
#undef FIND
	if (!all)
		dlclose(hw->handle);
	return all;
}

static const char *info_of(const struct hwloc_obj *o, const char *name)
{
	for (unsigned i = 0; i < o->infos_count; i++)
		if (!strcmp(o->infos[i].name, name))
			return o->infos[i].value;
	return "";
}

static int add(struct reader *r, enum tt_thing kind, int parent, int number, uint64_t bytes)
{
	struct tt_object *o = tt_topology_add(r->t, kind, parent);

	if (!o) {
		r->failed = true;
		return parent;
	}
	o->number = number;
	o->bytes = bytes;
	o->first = r->t->n;
	return r->t->count - 1;
}

/* ---- devices ---- */

static bool is_nic(const struct hwloc_obj *o)
{
	return o->type == HWLOC_OBJ_OS_DEVICE &&
	       (o->attr->osdev.type == HWLOC_OBJ_OSDEV_NETWORK || o->attr->osdev.type == HWLOC_OBJ_OSDEV_OPENFABRICS);
}

/* The display adapter of a server's remote console does not count. */
static bool is_gpu(const struct hwloc_obj *o)
{
	const struct hwloc_pcidev_attr_s *pci = &o->attr->pcidev;
	bool computes = pci->vendor_id == 0x10de || pci->vendor_id == 0x1002 || pci->vendor_id == 0x8086;

	return pci->class_id == 0x0302 || pci->class_id == 0x1200 || (pci->class_id >> 8 == 3 && computes);
}

static void append_name(char *to, size_t size, const char *name)
{
	size_t len = strlen(to);

	if (len + strlen(name) + 2 < size)
		snprintf(to + len, size - len, "%s%s", len ? " " : "", name);
}

/* A device has the system's name; without a driver, the vendor's. */
static void read_pci(struct reader *r, hwloc_obj_t o, int parent)
{
	enum tt_thing kind = is_gpu(o) ? TT_GPU : o->attr->pcidev.class_id >> 8 == 2 ? TT_NIC : TT_MACHINE;
	const struct hwloc_pcidev_attr_s *pci = &o->attr->pcidev;
	char name[64] = "";

	for (hwloc_obj_t c = o->io_first_child; c; c = c->next_sibling)
		if (c->type == HWLOC_OBJ_OS_DEVICE && c->name && (is_nic(c) || kind == TT_GPU)) {
			kind = is_nic(c) ? TT_NIC : kind;
			append_name(name, sizeof name, c->name);
		}
	if (kind == TT_MACHINE) /* neither GPU nor NIC */
		return;
	int me = add(r, kind, parent, -1, 0);
	if (r->failed)
		return;
	struct tt_object *d = &r->t->objects[me];
	if (!*name)
		append_name(name, sizeof name, info_of(o, "PCIDevice"));
	snprintf(d->at, sizeof d->at, "%04x:%02x:%02x.%01x", pci->domain & 0xffff, pci->bus, pci->dev, pci->func);
	snprintf(d->name, sizeof d->name, "%s", *name ? name : "without a driver");
}

static bool leads_to_device(const struct hwloc_obj *o)
{
	if (o->type == HWLOC_OBJ_OS_DEVICE)
		return is_nic(o);
	if (o->type == HWLOC_OBJ_PCI_DEVICE && (is_gpu(o) || o->attr->pcidev.class_id >> 8 == 2))
		return true;
	for (hwloc_obj_t c = o->io_first_child; c; c = c->next_sibling)
		if (leads_to_device(c))
			return true;
	return false;
}

static void read_io(struct reader *r, hwloc_obj_t o, int parent)
{
	if (r->failed || !leads_to_device(o))
		return;
	if (o->type == HWLOC_OBJ_PCI_DEVICE) {
		read_pci(r, o, parent);
	} else if (o->type == HWLOC_OBJ_OS_DEVICE) {
		int me = add(r, TT_NIC, parent, -1, 0);
		snprintf(r->t->objects[me].name, sizeof r->t->objects[me].name, "%s", o->name ? o->name : "");
	} else {
		int me = add(r, TT_SWITCH, parent, -1, 0);
		for (hwloc_obj_t c = o->io_first_child; c; c = c->next_sibling)
			read_io(r, c, me);
	}
}

/* ---- processors, caches, memory ---- */

static int read_kind(struct reader *r, hwloc_obj_t o, int parent)
{
	int lowest = r->hw->bitmap_first(o->cpuset), me = parent;

	switch ((int)o->type) {
	case HWLOC_OBJ_MACHINE:
		return add(r, TT_MACHINE, -1, -1, 0);
	case HWLOC_OBJ_PACKAGE:
		r->labels.package = lowest;
		me = add(r, TT_PACKAGE, parent, (int)o->os_index, 0);
		snprintf(r->t->objects[me].name, sizeof r->t->objects[me].name, "%s", info_of(o, "CPUModel"));
		return me;
	case HWLOC_OBJ_L1CACHE ... HWLOC_OBJ_L5CACHE:
		return add(r, TT_CACHE, parent, (int)o->attr->cache.depth, o->attr->cache.size);
	case HWLOC_OBJ_CORE:
		r->labels.core = lowest;
		return add(r, TT_CORE, parent, (int)o->logical_index, 0);
	case HWLOC_OBJ_PU:
		return add(r, TT_PU, parent, (int)o->os_index, 0);
	default: /* groups and dies are not shown, only what is in them */
		return me;
	}
}

/* hwloc attaches memory beside the tree. Here the first node of an object becomes a level of the tree, and any other
 * (memory of another kind) a leaf. */
static int read_memory(struct reader *r, hwloc_obj_t o, int parent, bool is_first)
{
	int me = parent;

	for (hwloc_obj_t m = o->memory_first_child; m; m = m->next_sibling) {
		if (m->type != HWLOC_OBJ_NUMANODE) {
			me = read_memory(r, m, me, is_first);
		} else {
			uint64_t bytes = m->attr->numanode.local_memory;
			int node = add(r, TT_NUMA, is_first ? parent : me, (int)m->os_index, bytes);
			if (is_first) {
				me = node;
				r->labels.node = (int)m->os_index;
			}
		}
		is_first = false;
	}
	return me;
}

static void read_processor(struct reader *r)
{
	struct tt_topology *t = r->t;
	struct tt_pu *p;

	if (t->n % 64 == 0) {
		p = realloc(t->pus, (size_t)(t->n + 64) * sizeof *p);
		if (!p) {
			r->failed = true;
			return;
		}
		t->pus = p;
	}
	t->pus[t->n] = r->labels;
	tt_cpus_add(&t->there, r->labels.cpu);
	t->n++;
}

static void read_object(struct reader *r, hwloc_obj_t o, int parent)
{
	struct tt_pu outer = r->labels;
	int before = r->t->count, first = r->t->n, made, me;

	if (r->failed)
		return;
	if (o->type == HWLOC_OBJ_MACHINE || o->type == HWLOC_OBJ_PACKAGE)
		me = read_memory(r, o, read_kind(r, o, parent), true);
	else /* caches and groups are in nodes */
		me = read_kind(r, o, read_memory(r, o, parent, true));
	if (o->type == HWLOC_OBJ_PU) {
		r->labels.cpu = (int)o->os_index;
		if (r->labels.core < 0)
			r->labels.core = r->labels.cpu;
		read_processor(r);
	}
	made = r->t->count;
	for (hwloc_obj_t c = o->first_child; c && !r->failed; c = c->next_sibling)
		read_object(r, c, me);
	for (int i = before; i < made; i++)
		if (r->t->objects[i].kind != TT_NUMA || i == me || r->t->objects[me].parent == i)
			r->t->objects[i].pus = r->t->n - first;
	made = r->t->count;
	for (hwloc_obj_t c = o->io_first_child; c && !r->failed; c = c->next_sibling)
		read_io(r, c, me);
	for (; made < r->t->count; made++) {
		r->t->objects[made].first = first;
		r->t->objects[made].pus = r->t->n - first;
	}
	r->labels = outer;
}

/* ---- the whole ---- */

static int refuse_file(const char *what)
{
	return tt_fail(-EINVAL, "%s is no machine that hwloc can read: "
	                        "on that machine, make one with `lstopo FILE.xml`", what);
}

static int choose_source(const struct hwloc *hw, hwloc_topology_t topology, enum tt_source source, const char *what)
{
	static const char *const unwanted[] = { "x86", "gl", "opencl", "cuda", "nvml", "rsmi", "levelzero" };

	if (source == TT_XML && access(what, R_OK))
		return tt_fail(-errno, "cannot read %s: %s", what, strerror(errno));
	if (source == TT_XML && hw->topology_set_xml(topology, what))
		return refuse_file(what);
	if (source == TT_SYNTHETIC && hw->topology_set_synthetic(topology, what))
		return tt_fail(-EINVAL, "\"%s\" is no machine as lstopo describes them: "
		                        "write it like \"package:2 core:4 pu:2\"", what);
	for (size_t i = 0; source == TT_THIS_HOST && i < TT_COUNT(unwanted); i++)
		hw->topology_set_components(topology, HWLOC_TOPOLOGY_COMPONENTS_FLAG_BLACKLIST, unwanted[i]);
	return 0;
}

/* Names from a file are printed on terminals. */
static void clean_names(struct tt_topology *t)
{
	for (int i = 0; i < t->count; i++)
		for (char *c = t->objects[i].name; *c; c++)
			*c = (unsigned char)*c < ' ' || *c == 0x7f ? '?' : *c;
}

static int read_topology(const struct hwloc *hw, hwloc_topology_t topology, struct tt_topology *t,
                         enum tt_source source, const char *what)
{
	struct reader r = { .hw = hw, .t = t, .labels = { .core = -1, .node = -1 } };
	int err = choose_source(hw, topology, source, what);

	if (err)
		return err;
	hw->topology_set_flags(topology, HWLOC_TOPOLOGY_FLAG_INCLUDE_DISALLOWED);
	hw->topology_set_io_types_filter(topology, HWLOC_TYPE_FILTER_KEEP_IMPORTANT);
	if (hw->topology_load(topology))
		return source == TT_XML ? refuse_file(what)
		                        : tt_fail(-EINVAL, "hwloc cannot load a machine: %s", strerror(errno));
	read_object(&r, hw->get_obj_by_depth(topology, 0, 0), -1);
	t->devices = true;
	clean_names(t);
	return r.failed ? tt_fail(-ENOMEM, "no memory for a picture of a machine") : 0;
}

int tt_topology_hwloc(struct tt_topology *t, enum tt_source source, const char *what)
{
	hwloc_topology_t topology;
	struct hwloc hw;
	int err;

	if (!open_library(&hw))
		return -ENOSYS;
	if (hw.topology_init(&topology)) {
		err = tt_fail(-ENOMEM, "hwloc cannot begin: %s", strerror(errno));
	} else {
		err = read_topology(&hw, topology, t, source, what);
		hw.topology_destroy(topology);
	}
	dlclose(hw.handle);
	return err;
}
#endif
