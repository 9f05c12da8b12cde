/* unit_tcp.c - what the transport contract cannot show of TCP: the memory that many connections take */
#include "base/base.h"
#include "tests/harness/cunit_main.h"
#include "transport/tcp/tcp.h"
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { PEERS = 200, PATIENCE_MS = 60000 };

static int ups, downs, messages;

static void on_up(struct tt_peer *p) { (void)p, ups++; }
static void on_down(struct tt_peer *p, int err) { (void)p, (void)err, downs++; }
static void on_message(struct tt_peer *p, const void *bytes, size_t len)
{
	(void)p, (void)bytes, (void)len, messages++;
}
static void on_done(struct tt_op *op) { (void)op; }

static const struct tt_events events = { .up = on_up, .message = on_message, .down = on_down };

static void open_end(struct tt_net **net)
{
	struct tt_net_config c = { .events = &events, .listen = "127.0.0.1:0", .listen_fd = -1, .job = 1,
		.timeout_ms = PATIENCE_MS };

	CU_ASSERT_EQUAL_FATAL(tt_tcp.open(&c, net), 0);
}

static long resident(void) /* KiB */
{
	long all = 0, pages = 0;
	FILE *f = fopen("/proc/self/statm", "r");

	CU_ASSERT(f && fscanf(f, "%ld %ld", &all, &pages) == 2);
	if (f)
		fclose(f);
	return pages * (sysconf(_SC_PAGESIZE) / 1024);
}

/* Until there are enough of them. */
static bool await(struct tt_net *net[2], const int *count, int enough)
{
	uint64_t end = tt_now() + PATIENCE_MS * TT_MS;

	while (*count < enough && !downs && tt_now() < end)
		for (int k = 0; k < 2; k++)
			tt_tcp.progress(net[k]);
	return *count >= enough && !downs;
}

/* Most of the ranks that are connected to rank 0 of thousands say little. */
static void test_memory(void)
{
	static struct tt_peer *peers[PEERS];
	static struct tt_op ops[PEERS];
	struct tt_net *net[2];

	open_end(&net[0]);
	open_end(&net[1]);
	long before = resident();
	for (int i = 0; i < PEERS; i++) {
		CU_ASSERT_EQUAL_FATAL(tt_tcp.connect(net[0], net[1]->addr, &peers[i]), 0);
		CU_ASSERT_FATAL(await(net, &ups, 2 * (i + 1)));
		ops[i] = (struct tt_op){ .kind = TT_SEND, .local = "x", .len = 1, .done = on_done };
		tt_tcp.post(peers[i], &ops[i]);
	}
	CU_ASSERT_FATAL(await(net, &messages, PEERS));
	long each = (resident() - before) / (2 * PEERS);
	printf("a connection that says little: %ld KiB\n", each);
	CU_ASSERT(TT_ASAN || TT_TSAN || each < 32); /* a sanitizer's own memory counts, too */
	tt_tcp.close(net[0]);
	tt_tcp.close(net[1]);
}

static CU_TestInfo tests[] = {
	{ "many connections that say little", test_memory },
	CU_TEST_INFO_NULL,
};
static CU_SuiteInfo suites[] = {
	{ "tcp", NULL, NULL, NULL, NULL, tests },
	CU_SUITE_INFO_NULL,
};

int main(int argc, char **argv) { return run_suites(suites, argc, argv); }
