/* gpus.c - the GPUs of this process, for `tutti info` and `tutti doctor`: what reaches their memory, and why not */
#include "tools/gpus.h"
#include "tools/topology/topology.h"

int tt_tool_gpus(const struct tt_settings *all, struct tt_tool_gpu *list)
{
	int n = 0;

	tt_gpu_open(tt_setting_is(all, TT_USE_GPU, "no") ? "no" : "yes");
	for (int i = 0, count = tt_gpu_count(); i < count; i++)
		if (!tt_gpu_facts(i, &list[n].facts))
			list[n++].number = i;
	return n;
}

const char *tt_tool_gpu_uuid(const struct tt_tool_gpu *g, char text[TT_TOOL_UUID])
{
	const uint8_t *u = g->facts.uuid;
	int at = snprintf(text, TT_TOOL_UUID, "%s-", g->facts.mig ? "MIG" : "GPU");

	for (int i = 0; i < TT_GPU_UUID; i++)
		at += snprintf(text + at, (size_t)(TT_TOOL_UUID - at), "%s%02x",
		               i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "", u[i]);
	return text;
}

const char *tt_tool_gpu_unmapped(const struct tt_tool_gpu *g)
{
	return g->facts.mig ? "a MIG instance cannot be mapped" : !g->facts.vmm_fd ? "it exports no memory" : NULL;
}

const char *tt_tool_gpu_unwired(const struct tt_tool_gpu *g)
{
	return g->facts.dma_buf ? NULL : "the driver offers no dma-buf; `tutti info` tries nvidia_peermem";
}

/* What a trial says; without an adapter, what the driver says. */
static void print_adapters(const struct tt_tool_gpu *g)
{
	const char *unwired = tt_tool_gpu_unwired(g);
	struct tt_tool_adapter list[TT_DEVICES];
	int n = tt_tool_gpu_adapters(g, list);

	for (int i = 0; i < n; i++)
		printf("  %-10s %s: %s\n", "", list[i].name, list[i].why);
	if (!n)
		printf("  %-10s %s%s\n", "", unwired ? "RDMA adapters may need the host's memory: " :
		                                      "RDMA adapters may reach it by dma-buf",
		       unwired ? unwired : "");
}

static void print_gpu(const struct tt_tool_gpu *g)
{
	const char *unmapped = tt_tool_gpu_unmapped(g);
	char uuid[TT_TOOL_UUID];

	printf("  %-10d %s  %s  %.1f GiB", g->number, tt_tool_gpu_uuid(g, uuid), g->facts.name,
	       (double)g->facts.memory / (1 << 30));
	if (g->facts.numa >= 0)
		printf("  NUMA node %d", g->facts.numa);
	printf("\n  %-10s %s%s\n", "", unmapped ? "ranks of this host copy through its memory: " :
	                                         "ranks of this host map what is of tutti_alloc",
	       unmapped ? unmapped : "");
	print_adapters(g);
	for (int i = 0, n = tt_gpu_count(); i < n; i++)
		if (i != g->number)
			printf("  %-10s GPU %d: %s\n", "", i, tt_gpu_can_reach(g->number, i) ?
			       "reads it in place" : "copies through the host's memory");
}

void tt_tool_print_gpus(const struct tt_settings *all)
{
	struct tt_tool_gpu list[TT_GPUS];
	int n = tt_tool_gpus(all, list);

	printf("\nGPUs%s\n", n ? " (not yet run on hardware: RDMA to their memory, several GPUs in a host)" : "");
	for (int i = 0; i < n; i++)
		print_gpu(&list[i]);
	if (!n)
		printf("  %-10s %s\n", "none", tt_gpu_why_not());
}

static void json_text(const char *name, const char *text, const char *behind)
{
	printf("\"%s\": ", name);
	tt_tool_json_text(text);
	printf("%s", behind);
}

static void json_adapters(const struct tt_tool_gpu *g)
{
	struct tt_tool_adapter list[TT_DEVICES];
	int n = tt_tool_gpu_adapters(g, list);

	printf("\"adapters\": [");
	for (int i = 0; i < n; i++) {
		printf("%s{ \"reaches\": %s, ", i ? ", " : "", list[i].reaches ? "true" : "false");
		json_text("name", list[i].name, ", ");
		json_text("why", list[i].why, " }");
	}
	printf("], ");
}

static void json_gpu(const struct tt_tool_gpu *g)
{
	char uuid[TT_TOOL_UUID];
	bool any = false;

	printf("\n    { \"number\": %d, ", g->number);
	json_text("uuid", tt_tool_gpu_uuid(g, uuid), ", ");
	json_text("name", g->facts.name, ", ");
	printf("\"bytes\": %zu, \"numa\": ", g->facts.memory);
	if (g->facts.numa >= 0)
		printf("%d, ", g->facts.numa);
	else
		printf("null, ");
	json_text("unmapped", tt_tool_gpu_unmapped(g), ", ");
	json_text("no_rdma", tt_tool_gpu_unwired(g), ", ");
	json_adapters(g);
	printf("\"reads\": [");
	for (int i = 0, n = tt_gpu_count(); i < n; i++)
		if (i != g->number && tt_gpu_can_reach(g->number, i)) {
			printf("%s%d", any ? ", " : "", i);
			any = true;
		}
	printf("] }");
}

void tt_tool_json_gpus(const struct tt_settings *all)
{
	struct tt_tool_gpu list[TT_GPUS];
	int n = tt_tool_gpus(all, list);

	json_text("no_gpus", n ? NULL : tt_gpu_why_not(), ",\n  \"gpus\": [");
	for (int i = 0; i < n; i++) {
		printf("%s", i ? "," : "");
		json_gpu(&list[i]);
	}
	printf("%s]", n ? "\n  " : "");
}
