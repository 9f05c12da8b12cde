/* unit_shm.c - what the transport contract cannot show of shared memory: what a peer can do to memory that both map */
#include "tests/harness/cunit_main.h"
#include "transport/shm/shm_private.h"
#include <stdlib.h>
#include <sys/mman.h>

struct end { /* one of two nets of this process, which are connected */
	struct tt_net *net;
	struct tt_peer *peer;
	const uint8_t *message; /* the last one: where it was handed over, ... */
	size_t len;             /* ... and its length */
	int messages, down;
};

static struct end *end_of(struct tt_peer *p) { return p->net->user; }

static void on_up(struct tt_peer *p) { end_of(p)->peer = p; }

static void on_message(struct tt_peer *p, const void *bytes, size_t len)
{
	end_of(p)->message = bytes;
	end_of(p)->len = len;
	end_of(p)->messages++;
}

static void on_down(struct tt_peer *p, int err) { end_of(p)->down = err; }

static const struct tt_events events = { .up = on_up, .message = on_message, .down = on_down };

static struct tt_shm_peer *shm(const struct end *e) { return tt_container_of(e->peer, struct tt_shm_peer, base); }

static void progress(struct end e[2])
{
	for (int i = 0; i < 2; i++)
		tt_shm.progress(e[i].net);
}

static void open_end(struct end *e)
{
	struct tt_net_config c = { .events = &events, .user = e, .listen_fd = -1, .job = 1, .timeout_ms = 10000 };

	*e = (struct end){ 0 };
	if (tt_shm.open(&c, &e->net))
		abort();
}

static void connect_ends(struct end e[2])
{
	struct tt_peer *p;

	open_end(&e[0]);
	open_end(&e[1]);
	CU_ASSERT_EQUAL_FATAL(tt_shm.connect(e[0].net, e[1].net->addr, &p), 0);
	while (!e[0].peer || !e[1].peer)
		progress(e);
}

static void close_ends(struct end e[2])
{
	tt_shm.close(e[0].net);
	tt_shm.close(e[1].net);
}

/* Writes the line of a message, as a peer that means harm may. */
static void write_line(struct end *e, size_t extra, size_t len)
{
	uint8_t *payload;
	struct tt_shm_line *line = tt_shm_line(shm(e), extra, &payload);

	CU_ASSERT_PTR_NOT_NULL_FATAL(line);
	line->kind = TT_FRAME_SEND;
	line->flags = 0;
	line->len = len;
	if (extra)
		memset(payload, 7, extra);
	tt_shm_publish(shm(e), line);
}

static bool is_shared(const struct end *e)
{
	const uint8_t *strip = (const uint8_t *)shm(e)->strip;

	return e->message >= strip && e->message < strip + sizeof *shm(e)->strip;
}

static void test_copied(void)
{
	struct end e[2];

	connect_ends(e);
	write_line(&e[0], 4096, 4096);
	progress(e);
	CU_ASSERT(e[1].messages == 1 && e[1].len == 4096 && !is_shared(&e[1]));
	write_line(&e[0], TT_MESSAGE_MAX, TT_MESSAGE_MAX);
	progress(e);
	CU_ASSERT(e[1].messages == 2 && e[1].len == TT_MESSAGE_MAX && is_shared(&e[1]));
	CU_ASSERT_EQUAL(e[1].down, 0);
	close_ends(e);
}

static void test_too_long(void)
{
	static const size_t extra[] = { TT_MESSAGE_MAX + 1, 0 }, len[] = { 8, TT_SHM_BODY + 1 };

	for (int i = 0; i < 2; i++) {
		struct end e[2];
		connect_ends(e);
		write_line(&e[0], extra[i], len[i]);
		progress(e);
		CU_ASSERT_EQUAL(e[1].messages, 0);
		CU_ASSERT_EQUAL(e[1].down, -ECONNRESET);
		close_ends(e);
	}
}

static CU_TestInfo tests[] = {
	{ "a message is copied before it is judged", test_copied },
	{ "a message is too long", test_too_long },
	CU_TEST_INFO_NULL,
};
static CU_SuiteInfo suites[] = {
	{ "shm", NULL, NULL, NULL, NULL, tests },
	CU_SUITE_INFO_NULL,
};

int main(int argc, char **argv) { return run_suites(suites, argc, argv); }
