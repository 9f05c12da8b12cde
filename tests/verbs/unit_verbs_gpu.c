/* unit_verbs_gpu.c - memory of devices over adapters: by dma-buf, by peer memory, or not, as trials say; flushes */
#include "gpu/gpu.h"
#include "tests/gpu/fake.h"
#include "tests/verbs/nets.h"
#include "tools/gpus.h"

enum { LEN = 40 << 10, NEEDS_FLUSH = 118 };

static struct tt_mem there[2]; /* on device 0: of net 0 and net 1 */
static struct tt_pin *pins[2];
static struct tt_region *regions[2];

static void open_gpus(uint64_t seed)
{
	void *at;

	tt_verbs_instead = &tt_fake_verbs;
	fake_cuda_seed(seed);
	tt_gpu_open("auto");
	open_nets(seed);
	for (int i = 0; i < 2; i++) {
		CU_ASSERT_FATAL(tt_gpu_alloc(0, LEN, &at) == 0);
		there[i] = (struct tt_mem){ .base = at, .len = LEN, .gpu = 0, .fd = -1 };
		memset(fake_cuda_bytes(at), 'x' + i, LEN);
	}
}

static void ask(void)
{
	for (int i = 0; i < 2; i++)
		tt_verbs.ask_gpu(nets[i].net, 0);
}

static void register_all(void)
{
	for (int i = 0; i < 2; i++) {
		CU_ASSERT_FATAL(tt_verbs.pin(nets[i].net, &there[i], 1, &pins[i]) == 0);
		CU_ASSERT_FATAL(tt_verbs.reg(nets[i].net, &there[i], 1, pins[i], &regions[i]) == 0);
	}
}

static void close_gpus(void)
{
	for (int i = 0; i < 2; i++) {
		if (regions[i])
			tt_verbs.dereg(regions[i]);
		if (pins[i])
			tt_verbs.unpin(pins[i]);
		regions[i] = NULL;
		pins[i] = NULL;
		tt_gpu_free(there[i].base);
	}
	close_nets();
	tt_gpu_close();
	fake_gpus(FAKE_DMABUF | FAKE_PEERMEM);
	CU_ASSERT_EQUAL(fake_cuda_left(), 0);
}

static int run(struct op *o, enum tt_kind kind, struct tt_region *local, struct tt_region *remote, size_t len,
               int notify)
{
	*o = (struct op){ .op = { .kind = kind, .flags = notify ? TT_NOTIFY : 0, .notify = (uint32_t)notify,
		                  .region = local, .local = local->mem.base, .len = len, .key = &remote->key,
		                  .done = done } };
	tt_verbs.post(nets[0].peer[1], &o->op);
	UNTIL(o->dones);
	return o->op.err;
}

static char byte_at(const struct tt_mem *mem, size_t i)
{
	return mem->gpu < 0 ? ((char *)mem->base)[i] : ((char *)fake_cuda_bytes(mem->base))[i];
}

/* Each kind of op, with memory of a device here, there, and at both ends; short ones, too, which are not inlined. */
static void move_all(void)
{
	const size_t lens[] = { 8, 200, LEN };
	struct op o;

	for (size_t i = 0; i < TT_COUNT(lens); i++) {
		size_t last = lens[i] - 1;
		memset(nets[0].memory, 'a', LEN);
		CU_ASSERT_EQUAL(run(&o, TT_PUT, nets[0].region, regions[1], lens[i], 0), 0);
		CU_ASSERT_EQUAL(byte_at(&there[1], last), 'a');
		memset(nets[0].memory, 'b', LEN);
		CU_ASSERT_EQUAL(run(&o, TT_GET, nets[0].region, regions[1], lens[i], 0), 0);
		CU_ASSERT_EQUAL(nets[0].memory[last], 'a');
		memset(fake_cuda_bytes(there[0].base), 'c', LEN);
		CU_ASSERT_EQUAL(run(&o, TT_PUT, regions[0], regions[1], lens[i], 0), 0);
		CU_ASSERT_EQUAL(byte_at(&there[1], last), 'c');
		CU_ASSERT_EQUAL(run(&o, TT_PUT, regions[0], nets[1].region, lens[i], 0), 0);
		CU_ASSERT_EQUAL(nets[1].memory[last], 'c');
		memset(nets[1].memory, 'd', LEN);
		CU_ASSERT_EQUAL(run(&o, TT_GET, regions[0], nets[1].region, lens[i], 0), 0);
		CU_ASSERT_EQUAL(byte_at(&there[0], last), 'd');
	}
}

static void go_by(int ways, const char *says)
{
	open_gpus(1);
	fake_gpus(ways);
	ask();
	CU_ASSERT_PTR_NOT_NULL(strstr(tt_why(), says));
	CU_ASSERT_TRUE(tt_net_takes(nets[0].net, 0) && tt_net_takes(nets[1].net, 0) && !tt_net_takes(nets[0].net, 1));
	CU_ASSERT_TRUE(!tt_net_takes(nets[0].net, -1));
	register_all();
	move_all();
	close_gpus();
}

static void test_dma_buf(void) { go_by(FAKE_DMABUF | FAKE_PEERMEM, "reaches GPU 0 by dma-buf"); }
static void test_peer_memory(void) { go_by(FAKE_PEERMEM, "reaches GPU 0 by nvidia_peermem"); }

static void refuse(int ways, const char *says)
{
	open_gpus(2);
	fake_gpus(ways);
	ask();
	CU_ASSERT_PTR_NOT_NULL(strstr(tt_why(), says));
	CU_ASSERT_FALSE(tt_net_takes(nets[0].net, 0));
	CU_ASSERT_EQUAL(tt_verbs.pin(nets[0].net, &there[0], 0, &pins[0]), -ENOTSUP);
	fake_gpus(FAKE_DMABUF);
	ask(); /* once */
	CU_ASSERT_FALSE(tt_net_takes(nets[0].net, 0));
	check_others();
	close_gpus();
}

/* A registration that passes proves nothing. */
static void test_refused(void)
{
	refuse(0, "nvidia_peermem loaded?");
	refuse(FAKE_DMABUF | FAKE_NO_BAR, "by dma-buf: writing its memory fails");
}

/* Who hears of a PUT, or asks for bytes, can use them on the device. */
static void test_flush(void)
{
	struct op o;
	uint64_t flushes;

	open_gpus(3);
	ask();
	register_all();
	flushes = fake_cuda_calls("cuFlushGPUDirectRDMAWrites");
	CU_ASSERT_EQUAL(run(&o, TT_PUT, nets[0].region, regions[1], LEN, 5), 0);
	UNTIL(nets[1].messages);
	CU_ASSERT_EQUAL(fake_cuda_calls("cuFlushGPUDirectRDMAWrites"), flushes + 1);
	send_to(0, 1, &o);
	UNTIL(o.dones && nets[1].messages == 2);
	CU_ASSERT_EQUAL(fake_cuda_calls("cuFlushGPUDirectRDMAWrites"), flushes + 2);
	CU_ASSERT_EQUAL(run(&o, TT_GET, regions[0], nets[1].region, LEN, 0), 0);
	CU_ASSERT_EQUAL(fake_cuda_calls("cuFlushGPUDirectRDMAWrites"), flushes + 3);
	close_gpus();

	fake_cuda_attribute(0, NEEDS_FLUSH, 100); /* the device's own order will do */
	open_gpus(4);
	ask();
	register_all();
	CU_ASSERT_EQUAL(run(&o, TT_PUT, nets[0].region, regions[1], LEN, 5), 0);
	UNTIL(nets[1].messages);
	CU_ASSERT_EQUAL(fake_cuda_calls("cuFlushGPUDirectRDMAWrites"), 0);
	close_gpus();
	fake_cuda_attribute(0, NEEDS_FLUSH, 0);
}

/* The CPU cannot add there. */
static void test_add(void)
{
	struct op o = { .op = { .kind = TT_ADD, .len = 8, .operand = 1, .done = done } };

	open_gpus(5);
	ask();
	register_all();
	o.op.key = &regions[1]->key;
	tt_verbs.post(nets[0].peer[1], &o.op);
	UNTIL(o.dones);
	CU_ASSERT_EQUAL(o.op.err, -ENOTSUP);
	check_others();
	close_gpus();
}

/* Each call of a trial fails once: the net goes on without memory of devices, and nothing is left. */
static void test_failing_trials(void)
{
	const char *const names[] = { "reg_mr",    "reg_dmabuf_mr", "create_cq", "create_qp",
		                      "modify_qp", "post_send",     "poll_cq" };

	for (size_t i = 0; i < TT_COUNT(names); i++) {
		open_gpus(6);
		fake_gpus(FAKE_DMABUF);
		fake_fail(names[i], 1, EINVAL);
		tt_verbs.ask_gpu(nets[0].net, 0);
		CU_ASSERT_FALSE(tt_net_takes(nets[0].net, 0));
		CU_ASSERT_TRUE(strlen(tt_why()) > 20);
		check_others();
		close_gpus();
	}
}

/* A pin may fail although the trial has passed; the next one is made. */
static void test_failing_pins(void)
{
	static const struct { int ways; const char *call; } by[] = {
		{ FAKE_DMABUF, "cuMemGetHandleForAddressRange" }, { FAKE_DMABUF, NULL }, { FAKE_PEERMEM, NULL },
	};

	for (size_t i = 0; i < TT_COUNT(by); i++) {
		open_gpus(8);
		fake_gpus(by[i].ways);
		ask();
		if (by[i].call)
			fake_cuda_fail(by[i].call, 1, 1);
		else
			fake_fail(by[i].ways == FAKE_DMABUF ? "reg_dmabuf_mr" : "reg_mr", 1, EINVAL);
		errno = 0; /* which no call of CUDA sets */
		CU_ASSERT_EQUAL(tt_verbs.pin(nets[0].net, &there[0], 1, &pins[0]), -EIO);
		CU_ASSERT_PTR_NOT_NULL(strstr(tt_why(), "cannot register"));
		pins[0] = NULL;
		register_all();
		move_all();
		close_gpus();
	}
}

/* As `tutti info` says it. */
static void test_info(void)
{
	struct tt_tool_gpu gpu = { .number = 0, .facts = { .numa = -1 } };
	struct tt_tool_adapter list[TT_DEVICES];

	tt_verbs_instead = &tt_fake_verbs;
	fake_seed(7);
	tt_gpu_open("auto");
	setenv("TUTTI_VERBS_DEVICES", "fake_roce0,fake_iwarp0", 1);
	CU_ASSERT_EQUAL_FATAL(tt_tool_gpu_adapters(&gpu, list), 2);
	for (int i = 0; i < 2; i++) {
		bool iwarp = strstr(list[i].name, "iwarp");
		CU_ASSERT_EQUAL(list[i].reaches, !iwarp);
		CU_ASSERT_PTR_NOT_NULL(strstr(list[i].why, iwarp ? "iWARP" : "reaches GPU 0 by dma-buf"));
	}
	unsetenv("TUTTI_VERBS_DEVICES");
	CU_ASSERT_EQUAL(fake_left(), 0);
	tt_gpu_close();
	CU_ASSERT_EQUAL(fake_cuda_left(), 0);
}

static CU_TestInfo tests[] = { { "dma-buf", test_dma_buf },      { "peer memory", test_peer_memory },
	                       { "refused", test_refused },      { "flushes", test_flush },
	                       { "adds", test_add },             { "failing trials", test_failing_trials },
	                       { "failing pins", test_failing_pins },
	                       { "info", test_info },
	                       CU_TEST_INFO_NULL };
static CU_SuiteInfo suites[] = { { "verbs and devices", NULL, NULL, NULL, NULL, tests }, CU_SUITE_INFO_NULL };

int main(int argc, char **argv) { return run_suites(suites, argc, argv); }
