/* adapters.c - which network adapters reach a GPU's memory, and by which way: a trial moves bytes */
#include "job/job.h"
#include "tools/gpus.h"
#include "transport/transport.h"

static int open_adapter(const struct tt_transport *t, const char *device, struct tt_net **out)
{
	static const struct tt_events nobody;
	uint64_t secret[4];
	struct tt_net_config c = { .events = &nobody, .device = device, .listen = "127.0.0.1:0", .listen_fd = -1,
		                   .peers = 1, .timeout_ms = 1000 };

	tt_entropy(secret, sizeof secret);
	c.job = secret[0];
#ifdef HAVE_LIBSODIUM
	c.secret = secret;
	c.secret_len = sizeof secret;
#endif
	return t->open(&c, out);
}

static void try_adapter(const struct tt_transport *t, const char *device, int gpu, struct tt_tool_adapter *out)
{
	struct tt_net *net;
	int err = open_adapter(t, device, &net);

	snprintf(out->name, sizeof out->name, "%s", device);
	out->reaches = false;
	if (!err) {
		t->ask_gpu(net, gpu);
		out->reaches = tt_net_takes(net, gpu);
	}
	snprintf(out->why, sizeof out->why, "%s", tt_why());
	if (!err)
		t->close(net);
}

int tt_tool_gpu_adapters(const struct tt_tool_gpu *g, struct tt_tool_adapter list[TT_DEVICES])
{
	char names[TT_DEVICES][TT_DEVICE_NAME];
	int n = 0;

	for (int i = 0; tt_transport_at(i); i++) {
		const struct tt_transport *t = tt_transport_at(i);
		int count = t->ask_gpu && t->choose ? t->choose(g->facts.numa, 0, names) : 0;
		for (int k = 0; k < count && n < TT_DEVICES; k++)
			try_adapter(t, names[k], g->number, &list[n++]);
	}
	return n;
}
