/* json.c - `tutti info --topology --json`: the tree as a list, parents first, then the ranks */
#include "tools/topology/topology.h"
#include "topology/topology.h"
#include <stdio.h>

static void print_cpus(const char *name, const struct tt_cpus *s)
{
	char room[16384];

	printf("\"%s\": \"%s\"", name, tt_cpus_text(s, room, sizeof room));
}

static void print_object(const struct tt_view *v, int i)
{
	static const char *const kinds[] = { "machine", "package", "node", "cache", "core", "processor", "switch",
	                                     "nic", "gpu" };
	const struct tt_object *o = &v->machine.objects[i];
	struct tt_cpus s = { { 0 } };

	for (int k = o->first; k < o->first + o->pus; k++)
		tt_cpus_add(&s, v->machine.pus[k].cpu);
	printf("%s\n    { \"kind\": \"%s\", \"parent\": %d, \"number\": %d, \"bytes\": %llu, ", i ? "," : "",
	       kinds[o->kind], o->parent, o->number, (unsigned long long)o->bytes);
	print_cpus("processors", &s);
	printf(", \"name\": ");
	tt_tool_json_text(*o->name ? o->name : NULL);
	printf(", \"at\": ");
	tt_tool_json_text(*o->at ? o->at : NULL);
	printf(" }");
}

static void print_devices(const char *name, const int *order, int n)
{
	printf(", \"%s\": [", name);
	for (int i = 0; i < n; i++)
		printf("%s%d", i ? ", " : "", order[i]);
	printf("]");
}

static void print_seat(const struct tt_view *v, int rank)
{
	const struct tt_spot *s = &v->seats[rank];

	printf("%s\n    { \"local_rank\": %d, \"cores\": %d, ", rank ? "," : "", rank, s->share.cores);
	print_cpus("processors", &s->share.cpus);
	printf(", ");
	print_cpus("background", &s->share.background);
	printf(", \"node\": ");
	printf(s->share.node < 0 ? "null" : "%d", s->share.node);
	print_devices("nics", s->nics, s->nic_count);
	print_devices("gpus", s->gpus, s->gpu_count);
	printf(" }");
}

void tt_topology_json(const struct tt_view *v)
{
	char room[4096];

	printf("{\n  \"source\": ");
	tt_tool_json_text(v->source);
	printf(",\n  \"pin\": ");
	tt_tool_json_text(v->pin);
	printf(",\n  \"hwloc\": %s,\n  ", v->machine.devices ? "true" : "false");
	print_cpus("allowed", &v->allowed);
	printf(",\n  \"objects\": [");
	for (int i = 0; i < v->machine.count; i++)
		print_object(v, i);
	printf("\n  ],\n  \"ranks\": [");
	for (int r = 0; r < v->ranks; r++)
		print_seat(v, r);
	printf("\n  ],\n  \"remarks\": [");
	for (int i = 0; i < v->remark_count; i++) {
		printf("%s\n    { \"ranks\": \"%s\", \"text\": ", i ? "," : "",
		       tt_cpus_text(&v->remarks[i].ranks, room, sizeof room));
		tt_tool_json_text(v->remarks[i].text);
		printf(" }");
	}
	printf("%s]\n}\n", v->remark_count ? "\n  " : "");
}
