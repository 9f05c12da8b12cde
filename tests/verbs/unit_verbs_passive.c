/* unit_verbs_passive.c - puts into and gets from a rank that does nothing: its adapter alone serves them. a reads and
 * writes, b sleeps. */
#include "tests/verbs/nets.h"
#include "transport/verbs/verbs_private.h"
#include <poll.h>

enum { LARGE = 64 << 20, MIB = 1 << 20 };

static struct tt_pin *pins[2];
static struct tt_region *regions[2];
static char *memory[2];

static void add_large(int i, int remote)
{
	struct tt_mem mem = { .base = memory[i] = aligned_alloc(4096, LARGE), .len = LARGE, .gpu = -1, .fd = -1 };

	CU_ASSERT_FATAL(memory[i] && tt_verbs.pin(nets[i].net, &mem, remote, &pins[i]) == 0);
	CU_ASSERT_FATAL(tt_verbs.reg(nets[i].net, &mem, remote, pins[i], &regions[i]) == 0);
	memset(memory[i], 'a' + i, LARGE);
}

static void begin(void)
{
	open_nets(1);
	add_large(0, 0);
	add_large(1, 1);
}

static void end(void)
{
	for (int i = 0; i < 2; i++) {
		tt_verbs.dereg(regions[i]);
		tt_verbs.unpin(pins[i]);
		free(memory[i]);
	}
	close_nets();
}

static void move(struct op *o, enum tt_kind kind, size_t len)
{
	*o = (struct op){ .op = { .kind = kind, .region = regions[0], .local = memory[0], .len = len,
		                  .key = &regions[1]->key, .done = done } };
	tt_verbs.post(nets[0].peer[1], &o->op);
}

/* a alone turns. False: it takes too long. */
static bool ends(const struct op *o)
{
	for (uint64_t until = tt_now() + PATIENCE; !o->dones && tt_now() < until;)
		tt_verbs.progress(nets[0].net);
	return o->dones;
}

static bool is_iwarp(void) { return strstr(devices[0], "iwarp"); }

/* More than the credits of all its messages are worth, whatever is a message. */
static void move_much(void)
{
	struct op o;

	row_name = devices[0];
	begin();
	move(&o, TT_PUT, LARGE);
	CU_ASSERT(ends(&o) && o.op.err == 0);
	CU_ASSERT(memory[1][0] == 'a' && memory[1][LARGE - 1] == 'a');
	memset(memory[0], 'x', LARGE);
	if (!is_iwarp()) { /* there the owner's processor copies */
		move(&o, TT_GET, LARGE);
		CU_ASSERT(ends(&o) && o.op.err == 0);
		CU_ASSERT(memory[0][0] == 'a' && memory[0][LARGE - 1] == 'a');
	}
	end();
}

static void test_moves(void) { each_way(move_much); }

/* b is not asked for credits for the signs of life, however long the stream lasts: messages still have some. */
static void test_messages(void)
{
	enum { FEW = 8 };
	struct op o, sends[FEW];
	struct tt_verbs_peer *p;

	row_name = "messages";
	timeout_ms = 200;
	begin();
	p = tt_container_of(nets[0].peer[1], struct tt_verbs_peer, base);
	for (int i = 0; i < 4 * TT_VERBS_CREDITS; i++) {
		move(&o, TT_PUT, MIB);
		CU_ASSERT(ends(&o));
		usleep(200000 / TT_VERBS_SIGNS);
	}
	CU_ASSERT(p->credits < p->credit_max && p->credits >= FEW + 2);
	for (int i = 0; i < FEW; i++)
		send_to(0, 1, &sends[i]);
	CU_ASSERT(ends(&sends[FEW - 1]) && nets[1].messages == 0);
	UNTIL(nets[1].messages == FEW);
	timeout_ms = 20000;
	end();
}

/* Both ends hear of each other while a stream lasts; b of so many bytes as have moved. */
static void test_signs(void)
{
	struct op o;
	uint64_t a, b, moved = 0;

	row_name = "signs of life";
	timeout_ms = 200;
	begin();
	a = nets[0].peer[1]->received;
	b = nets[1].peer[0]->received;
	for (int i = 0; i < 2 * TT_VERBS_CREDITS; i++, moved += MIB) {
		move(&o, i % 2 ? TT_PUT : TT_GET, MIB);
		UNTIL(o.dones);
		usleep(200000 / TT_VERBS_SIGNS);
	}
	CU_ASSERT(nets[0].peer[1]->received > a);
	CU_ASSERT(nets[1].peer[0]->received - b >= moved - MIB);
	timeout_ms = 20000;
	end();
}

/* Turns b until it may sleep. */
static void lull(void)
{
	do {
		CU_ASSERT(tt_verbs.progress(nets[1].net) >= 0);
	} while (tt_verbs.arm(nets[1].net));
}

static int count_wakes(enum tt_kind kind)
{
	struct pollfd b = { .fd = nets[1].net->fd, .events = POLLIN };
	struct op o;
	int wakes = 0;

	for (size_t moved = 0; moved < 100u << 20; moved += LARGE / 2) {
		move(&o, kind, LARGE / 2);
		while (!o.dones) {
			tt_verbs.progress(nets[0].net);
			if (poll(&b, 1, 0) == 1) {
				wakes++;
				lull();
			}
		}
	}
	return wakes;
}

static void test_wakes(void)
{
	begin();
	lull();
	CU_ASSERT(count_wakes(TT_GET) <= 3);
	CU_ASSERT(count_wakes(TT_PUT) <= 3);
	end();
}

/* That b does not answer says nothing; that its adapter does not, ends it. */
static void test_death(void)
{
	struct tt_verbs *b;
	struct op o;

	row_name = "death";
	begin();
	b = tt_container_of(nets[1].net, struct tt_verbs, base);
	move(&o, TT_PUT, LARGE);
	for (int i = 0; i < 4; i++)
		tt_verbs.progress(nets[0].net);
	CU_ASSERT(!o.dones);
	fake_kill(b->device);
	CU_ASSERT(ends(&o) && o.op.err == -ECONNRESET);
	for (int i = 0; i < 1000 && !nets[0].downs; i++)
		tt_verbs.progress(nets[0].net);
	CU_ASSERT(nets[0].downs == 1 && nets[0].err == -ECONNRESET);
	end();
}

static CU_TestInfo passive_tests[] = {
	{ "more bytes than its credits are worth", test_moves },
	{ "messages have credits all the same", test_messages },
	{ "each end hears of the other", test_signs },
	{ "an owner that sleeps is woken three times for 100 MiB", test_wakes },
	{ "a dead one is noticed", test_death },
	CU_TEST_INFO_NULL,
};
static CU_SuiteInfo suites[] = { { "passive", NULL, NULL, NULL, NULL, passive_tests }, CU_SUITE_INFO_NULL };

int main(int argc, char **argv)
{
	tt_verbs_instead = &tt_fake_verbs;
	return run_suites(suites, argc, argv);
}
