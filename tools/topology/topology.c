/* topology.c - `tutti info --topology`: places the ranks of a job on this machine or a described one, as a job would */
#include "tools/topology/topology.h"
#include "topology/topology.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int tt_topology_count(const struct tt_topology *t, enum tt_thing kind)
{
	int n = 0;

	for (int i = 0; i < t->count; i++)
		n += t->objects[i].kind == kind;
	return n;
}

void tt_topology_size(uint64_t bytes, char *room, size_t size)
{
	static const char *const units[] = { "B", "KiB", "MiB", "GiB", "TiB" };
	double value = (double)bytes;
	size_t u = 0;

	for (; value >= 1024 && u + 1 < TT_COUNT(units); u++)
		value /= 1024;
	snprintf(room, size, value < 100 ? "%.3g %s" : "%.0f %s", value, units[u]);
}

static void remark(struct tt_view *v, int rank, const char *fmt, ...) TT_FORMAT(3, 4);
static void remark(struct tt_view *v, int rank, const char *fmt, ...)
{
	char text[sizeof v->remarks[0].text];
	va_list args;
	int i = 0;

	va_start(args, fmt);
	vsnprintf(text, sizeof text, fmt, args);
	va_end(args);
	while (i < v->remark_count && strcmp(v->remarks[i].text, text))
		i++;
	if (i == (int)TT_COUNT(v->remarks))
		return;
	if (i == v->remark_count) {
		v->remark_count++;
		strcpy(v->remarks[i].text, text);
	}
	tt_cpus_add(&v->remarks[i].ranks, rank);
}

/* Is the device attached away from all of the rank's cores? A device of the whole machine is near. */
static bool is_far(const struct tt_view *v, const struct tt_spot *s, int device)
{
	const struct tt_object *d = &v->machine.objects[device];

	for (int i = d->first; i < d->first + d->pus; i++)
		if (tt_cpus_has(&s->share.cpus, v->machine.pus[i].cpu))
			return false;
	return true;
}

static const char *place_of(const struct tt_topology *t, int device, char *room, size_t size)
{
	int at = t->objects[device].parent;

	while (t->objects[at].kind >= TT_SWITCH)
		at = t->objects[at].parent;
	while (t->objects[at].kind > TT_NUMA)
		at = t->objects[at].parent;
	snprintf(room, size, "%s %d", t->objects[at].kind == TT_NUMA ? "NUMA node" : "package", t->objects[at].number);
	return room;
}

static bool are_apart(const struct tt_object *a, const struct tt_object *b)
{
	return a->first + a->pus <= b->first || b->first + b->pus <= a->first;
}

static void judge(struct tt_view *v, int rank)
{
	const struct tt_topology *t = &v->machine;
	const struct tt_spot *s = &v->seats[rank];
	char where[32];

	if (s->share.cores && s->share.node < 0 && tt_topology_count(t, TT_NUMA) > 1)
		remark(v, rank,
		       "cores on several NUMA nodes: a thread may sit far from memory that another one touched first");
	if (s->nic >= 0 && is_far(v, s, s->nic))
		remark(v, rank, "far from the NIC %s, which is at %s", t->objects[s->nic].name,
		       place_of(t, s->nic, where, sizeof where));
	if (s->gpu >= 0 && is_far(v, s, s->gpu))
		remark(v, rank, "far from the GPU %s, which is at %s", t->objects[s->gpu].name,
		       place_of(t, s->gpu, where, sizeof where));
	if (s->gpu >= 0 && s->nic >= 0 && are_apart(&t->objects[s->gpu], &t->objects[s->nic]))
		remark(v, rank, "the NIC %s and the GPU %s are not at the same cores", t->objects[s->nic].name,
		       t->objects[s->gpu].name);
}

/* The GPU nearest to the cores; then the NIC nearest to the GPU, whose memory it accesses. */
static void seat(struct tt_view *v, int rank)
{
	const struct tt_topology *t = &v->machine;
	struct tt_spot *s = &v->seats[rank];
	int from;

	tt_partition_cores(t->pus, t->n, &v->rule, &v->allowed, rank, v->ranks, &s->share);
	from = tt_topology_cover(t, &s->share.cpus);
	s->gpu_count = tt_topology_near(t, from, TT_GPU, rank, s->gpus, TT_DEVICES_MAX);
	s->gpu = s->gpu_count ? s->gpus[0] : -1;
	s->nic_count = tt_topology_near(t, s->gpu_count ? s->gpu : from, TT_NIC, rank, s->nics, TT_DEVICES_MAX);
	s->nic = s->nic_count ? s->nics[0] : -1;
	for (int i = 0; i < t->n; i++)
		if (tt_cpus_has(&s->share.cpus, t->pus[i].cpu))
			v->owner[i] = s->share.cores || v->ranks == 1 ? rank : TT_SHARED;
	judge(v, rank);
}

static int seat_all(struct tt_view *v)
{
	v->seats = calloc((size_t)v->ranks, sizeof *v->seats);
	v->owner = calloc((size_t)v->machine.n, sizeof *v->owner);
	if (!v->seats || !v->owner)
		return tt_fail(-ENOMEM, "no memory for %d ranks", v->ranks);
	for (int i = 0; i < v->machine.n; i++)
		v->owner[i] = tt_cpus_has(&v->allowed, v->machine.pus[i].cpu) ? TT_FREE : TT_FORBIDDEN;
	for (int r = 0; r < v->ranks; r++)
		seat(v, r);
	return 0;
}

/* An existing file, or else hwloc's synthetic description. */
static enum tt_source kind_of_source(const char *what)
{
	bool described = what && strchr(what, ':') && !strchr(what, '/') && !strstr(what, ".xml");

	return !what ? TT_THIS_HOST : described ? TT_SYNTHETIC : TT_XML;
}

static int look(struct tt_view *v, const struct tt_settings *settings)
{
	int err = tt_topology_load(&v->machine, kind_of_source(v->source), v->source);

	if (err || (err = tt_pin_read(settings, &v->rule)))
		return err;
	if (v->source || !tt_cpus_allowed(&v->allowed))
		v->allowed = v->machine.there;
	err = tt_pin_check(settings, &v->rule, &v->allowed, &v->machine.there);
	return err ? err : seat_all(v);
}

static int choose_ranks(const struct tt_settings *settings, int asked, int *out)
{
	enum tt_setting own = tt_setting(settings, TT_LOCAL_SIZE) ? TT_LOCAL_SIZE : TT_TORCH_LOCAL_SIZE;
	long n = 1;
	int err = asked ? 0 : tt_setting_int(settings, own, 1, TT_RANKS_MAX, &n);

	*out = asked ? asked : (int)n;
	return err;
}

int tt_tool_topology(const struct tt_settings *settings, const char *file, int ranks, bool json)
{
	struct tt_view v = { .source = file, .pin = tt_setting(settings, TT_PIN) };
	int err = choose_ranks(settings, ranks, &v.ranks);

	if (!err)
		err = look(&v, settings);
	if (err)
		tt_tool_refuse("info", "%s", tt_why());
	else
		(json ? tt_topology_json : tt_topology_draw)(&v);
	free(v.seats);
	free(v.owner);
	tt_topology_free(&v.machine);
	return err ? 1 : 0;
}
