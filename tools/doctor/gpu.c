/* gpu.c - whether CUDA's driver works here, and what reaches a GPU's memory */
#include "tools/doctor/doctor.h"
#include "tools/gpus.h"
#include <unistd.h>

/* Without a card there is nothing to say, and a program may hide the cards from itself. */
static void judge_none(struct tt_doctor *d)
{
	const char *visible = tt_env(TT_CUDA_GPUS);

	if (access("/dev/nvidiactl", F_OK))
		tt_doctor_say(d, TT_FINE, "gpu", "no NVIDIA GPU on this host");
	else if (visible || tt_setting_is(&d->settings, TT_USE_GPU, "no"))
		tt_doctor_say(d, TT_NOTE, "gpu", "this host has NVIDIA GPUs, and this process uses none: %s",
		              tt_gpu_why_not());
	else
		tt_doctor_say(d, TT_FINDING, "gpu",
		              "this host has NVIDIA GPUs, and their driver does not work (%s): compare with nvidia-smi",
		              tt_gpu_why_not());
}

static void judge(struct tt_doctor *d, const struct tt_tool_gpu *g)
{
	const char *unmapped = tt_tool_gpu_unmapped(g), *unwired = tt_tool_gpu_unwired(g);
	char uuid[TT_TOOL_UUID];

	tt_doctor_say(d, unmapped || unwired ? TT_NOTE : TT_FINE, "gpu",
	              "%d, %s (%s): ranks of this host %s%s; RDMA adapters %s%s", g->number,
	              tt_tool_gpu_uuid(g, uuid), g->facts.name,
	              unmapped ? "copy through the host's memory: " : "map what is of tutti_alloc",
	              unmapped ? unmapped : "",
	              unwired ? "may need the host's memory: " : "may reach it by dma-buf (not yet run on hardware)",
	              unwired ? unwired : "");
}

void tt_doctor_gpu(struct tt_doctor *d)
{
	struct tt_tool_gpu list[TT_GPUS];
	int n = tt_tool_gpus(&d->settings, list);

	for (int i = 0; i < n; i++)
		judge(d, &list[i]);
	if (!n)
		judge_none(d);
}
