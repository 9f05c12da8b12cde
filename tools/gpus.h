/* gpus.h - what tools say about the GPUs of this process */
#ifndef TT_GPUS_H
#define TT_GPUS_H
#include "base/base.h"
#include "gpu/gpu.h"
#include "transport/transport.h"

enum { TT_TOOL_UUID = 41 };

struct tt_tool_gpu {
	int number; /* the driver's ordinal */
	struct tt_gpu_facts facts;
};
/* Loads CUDA's driver, unless TUTTI_GPU is no. list has room for TT_GPUS. Returns how many there are; 0:
 * tt_gpu_why_not() says why. */
int tt_tool_gpus(const struct tt_settings *, struct tt_tool_gpu *list);
const char *tt_tool_gpu_uuid(const struct tt_tool_gpu *, char text[TT_TOOL_UUID]); /* as nvidia-smi writes it */
/* Why other ranks of this host, and RDMA adapters, get copies by way of the host's memory. NULL: they reach it. */
const char *tt_tool_gpu_unmapped(const struct tt_tool_gpu *);
const char *tt_tool_gpu_unwired(const struct tt_tool_gpu *);
/* The adapters that a rank near the GPU uses, each after a trial. It makes memory on the GPU. */
struct tt_tool_adapter {
	char name[TT_DEVICE_NAME];
	bool reaches;
	char why[512]; /* by which way, or why not */
};
int tt_tool_gpu_adapters(const struct tt_tool_gpu *, struct tt_tool_adapter list[TT_DEVICES]); /* adapters.c */
void tt_tool_print_gpus(const struct tt_settings *);
void tt_tool_json_gpus(const struct tt_settings *); /* two members of an object */
#endif
