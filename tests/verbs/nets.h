/* nets.h - three nets of the transport verbs over adapters that are not there (fake.h), in one process: what tests of
 * failures share. a and b fail, a and c stay connected. */
#ifndef TESTS_VERBS_NETS_H
#define TESTS_VERBS_NETS_H
#include "base/base.h"
#include "tests/harness/cunit_main.h"
#include "tests/verbs/fake.h"
#include "transport/transport.h"
#include "transport/verbs/verbs.h"
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

enum { NETS = 3, SIZE = 64 << 10, SEEDS = 5 };
#define PATIENCE (60000 * TT_MS)

/* ---- three nets ---- */

struct net {
	struct tt_net *net;
	struct tt_peer *peer[NETS]; /* by the other's index */
	int ups, downs, messages, err;
	bool lost;
	char why[512];              /* the sentence of the last down(), or of progress() */
	char *memory;
	struct tt_pin *pin;
	struct tt_region *region;
};

struct op {
	struct tt_op op;
	int dones;
	char text[8];
};

static struct net nets[NETS];
static unsigned timeout_ms = 20000, peers; /* a loaded machine may stand still for seconds */
static int ports[2];                          /* of TUTTI_PORTS; the doors take others */
static const char *secret = "a secret";
static const char *devices[NETS] = { "fake_roce0", "fake_roce0", "fake_roce0" };

static inline struct net *owner(const struct tt_peer *p) { return p->net->user; }
static inline void note(char why[512]) { snprintf(why, 512, "%s", tt_why()); }

/* A hello has the index of the net that connects. */
static inline void up(struct tt_peer *p)
{
	owner(p)->ups++;
	if (!p->user)
		p->user = &nets[0]; /* a is the one that connects */
	owner(p)->peer[(struct net *)p->user - nets] = p;
}

static inline void message(struct tt_peer *p, const void *bytes, size_t len)
{
	(void)bytes, (void)len, owner(p)->messages++;
}
static inline void notify(struct tt_peer *p, uint32_t value) { (void)value, owner(p)->messages++; }

static inline void down(struct tt_peer *p, int err)
{
	owner(p)->downs++;
	owner(p)->err = err;
	note(owner(p)->why);
}

static const struct tt_events events = { .up = up, .message = message, .notify = notify, .down = down };

static inline int open_one(int i)
{
	struct tt_net_config c = { .events = &events, .device = devices[i], .listen = "127.0.0.1:0", .listen_fd = -1,
		                   .job = 5, .epoch = 1, .timeout_ms = timeout_ms, .peers = peers, .user = &nets[i],
		                   .secret = secret, .secret_len = strlen(secret),
		                   .ports = { ports[0], ports[1] } };
	struct net *n = &nets[i];
	int err;

#ifndef HAVE_LIBSODIUM
	c.secret = NULL, c.secret_len = 0;
#endif
	memset(n, 0, sizeof *n);
	err = tt_verbs.open(&c, &n->net);
	if (err) {
		note(n->why);
		n->net = NULL;
		return err;
	}
	struct tt_mem mem = { .base = n->memory = aligned_alloc(4096, SIZE), .len = SIZE, .gpu = -1, .fd = -1 };
	memset(n->memory, 'a' + i, SIZE);
	err = tt_verbs.pin(n->net, &mem, 1, &n->pin);
	return err ? err : tt_verbs.reg(n->net, &mem, 1, n->pin, &n->region);
}

static inline void turn(void)
{
	for (int i = 0; i < NETS; i++)
		if (nets[i].net && !nets[i].lost && tt_verbs.progress(nets[i].net) < 0) {
			nets[i].lost = true;
			note(nets[i].why);
		}
}

/* Turns until all is well, or it takes too long. */
#define UNTIL(condition) \
	do { \
		uint64_t end_ = tt_now() + PATIENCE; \
		while (!(condition) && tt_now() < end_) \
			turn(); \
		if (!(condition)) \
			printf("%s: waits in vain for %s\n", row_name, #condition); \
		CU_ASSERT(condition); \
	} while (0)

static const char *row_name = "";

static inline void settle(void)
{
	for (int i = 0; i < 300; i++)
		turn();
}

static inline void connect_to(int i)
{
	CU_ASSERT_FATAL(tt_verbs.connect(nets[0].net, nets[i].net->addr, &nets[0].peer[i]) == 0);
	nets[0].peer[i]->user = &nets[i];
}

static inline void open_nets(uint64_t seed)
{
	fake_seed(seed);
	for (int i = 0; i < NETS; i++)
		CU_ASSERT_FATAL(open_one(i) == 0);
	connect_to(1);
	connect_to(2);
	UNTIL(nets[0].ups == 2 && nets[1].ups == 1 && nets[2].ups == 1);
	settle();
}

static inline void close_one(struct net *n)
{
	if (!n->net)
		return;
	for (int i = 0; i < NETS; i++)
		if (n->peer[i])
			tt_verbs.disconnect(n->peer[i]);
	if (n->region)
		tt_verbs.dereg(n->region);
	if (n->pin)
		tt_verbs.unpin(n->pin);
	tt_verbs.close(n->net);
	free(n->memory);
}

static inline void close_nets(void)
{
	for (int i = 0; i < NETS; i++)
		close_one(&nets[i]);
	memset(nets, 0, sizeof nets);
	CU_ASSERT_EQUAL(fake_left(), 0);
}

/* ---- ops ---- */

static inline void done(struct tt_op *op) { tt_container_of(op, struct op, op)->dones++; }

static inline void send_to(int from, int to, struct op *o)
{
	*o = (struct op){ .op = { .kind = TT_SEND, .local = o->text, .len = sizeof o->text, .done = done },
		          .text = "hello" };
	tt_verbs.post(nets[from].peer[to], &o->op);
}

static inline void put_to(int from, int to, struct op *o)
{
	*o = (struct op){ .op = { .kind = TT_PUT, .region = nets[from].region, .local = nets[from].memory, .len = SIZE,
		                  .key = &nets[to].region->key, .done = done } };
	tt_verbs.post(nets[from].peer[to], &o->op);
}

/* a and c go on, whatever happened between a and b. */
static inline void check_others(void)
{
	struct op there, back;
	int before[] = { nets[2].messages, nets[0].messages };

	CU_ASSERT_EQUAL(nets[2].downs, 0);
	send_to(0, 2, &there);
	send_to(2, 0, &back);
	UNTIL(there.dones && back.dones && nets[2].messages > before[0] && nets[0].messages > before[1]);
	CU_ASSERT(there.op.err == 0 && back.op.err == 0);
}

/* a and b have lost each other, once. Each op has ended, once. */
static inline void check_ended(struct op *ops, int n)
{
	UNTIL(nets[0].downs == 1 && nets[1].downs == 1);
	settle();
	CU_ASSERT(nets[0].downs == 1 && nets[1].downs == 1);
	CU_ASSERT(nets[0].err == -ECONNRESET && nets[1].err == -ECONNRESET);
	for (int i = 0; i < n; i++)
		CU_ASSERT(ops[i].dones == 1 && ops[i].op.err == -ECONNRESET);
}

static inline bool says(const char *why, const char *words)
{
	bool good = strstr(why, words) != NULL;

	if (!good)
		printf("%s: \"%s\" does not say \"%s\"\n", row_name, why, words);
	return good;
}

/* The first that is there. */
static inline struct ibv_qp *qp_of(const struct ibv_context *c)
{
	struct ibv_qp *q = NULL;

	for (int i = 0; (q = fake_qp(i)) && q->context != c; i++)
		;
	return q;
}

/* ---- ways of connecting ---- */

static inline void use_cm(const char *device)
{
	setenv("TUTTI_VERBS_CONNECT", "cm", 1);
	devices[0] = devices[1] = devices[2] = device;
}

static inline void use_tcp(void)
{
	unsetenv("TUTTI_VERBS_CONNECT");
	devices[0] = devices[1] = devices[2] = "fake_roce0";
}

static inline void each_way(void (*test)(void))
{
	test();
	use_cm("fake_ib0");
	test();
	use_cm("fake_iwarp0");
	test();
	use_tcp();
}
#endif
