/* fuzz_verbs.c - three nets of the transport verbs over adapters that are not there: a, whose peer b says what the
 * input says, and c, which is a's peer, too. What b says is its TERMS and READY, spoilt; then messages and immediates
 * of its queue pair, while operations of a's are under way.
 * Input: flags (enum below), the seed of the adapters; for TERMS a number of bytes to change, each with its place; what
 * READY is; then events until it ends, see take_event(). */
#include "tests/fuzz/fuzz.h"
#include "tests/verbs/fake.h"
#include "transport/verbs/verbs_private.h"
#include <sys/socket.h>

enum { CALLED = 4, GREETED = 8 }; /* a connects to b; what b says first is right. Below: which adapter */
enum { NETS = 3, SIZE = 8192, OPS = 8, EVENTS_MAX = 60, TURNS = 300, TIMEOUT_MS = 1000 };

static const struct { const char *device; bool cm; } wires[] = {
	{ "fake_roce0", false }, { "fake_ib0", true }, { "fake_iwarp0", true }, { "fake_ib0", false },
};
static const enum tt_kind op_kind[OPS] = { TT_PUT, TT_GET, TT_ADD, TT_SEND, TT_PUT, TT_ADD, TT_GET, TT_SEND };
static const size_t op_size[OPS] = { 8, 4000, 8, 100, SIZE, 8, SIZE, SIZE };

struct net {
	struct tt_net *net;
	struct tt_peer *peers[NETS]; /* of a the first is c, the second b */
	int count, ups, downs, messages;
	unsigned heard;
	uint8_t *memory;
	struct tt_pin *pin;
	struct tt_region *region;
};

static struct {
	struct fuzz_input in;
	unsigned wire;
	struct net nets[NETS], *speaks; /* whose progress() it is */
	bool frozen;                    /* b's library */
	bool spoils;
	uint8_t ready, change[2 * 8], changes;
	struct tt_op op[OPS];
	int posted, ended[OPS];
	struct fuzz_world world;
} all;

#define A (&all.nets[0])
#define B (&all.nets[1])
#define C (&all.nets[2])

/* ---- what the nets say ---- */

static struct net *owner(const struct tt_peer *p) { return p->net->user; }
static void message(struct tt_peer *p, const void *bytes, size_t len)
{
	for (size_t i = 0; i < len; i += 64)
		owner(p)->heard += ((const uint8_t *)bytes)[i]; /* it can be read */
	owner(p)->messages++;
}
static void notify(struct tt_peer *p, uint32_t value) { owner(p)->messages += value < 1 << 24; }
static void down(struct tt_peer *p, int err) { owner(p)->downs += err < 0; }

static void up(struct tt_peer *p)
{
	struct net *n = owner(p);
	int i = 0;

	n->ups++;
	while (i < n->count && n->peers[i] != p)
		i++;
	if (i == n->count && n->count < NETS)
		n->peers[n->count++] = p;
}

static const struct tt_events events = { .up = up, .message = message, .notify = notify, .down = down };

static void turn(void)
{
	for (int i = 0; i < NETS; i++) {
		if (all.frozen && i == 1)
			continue;
		all.speaks = &all.nets[i];
		all.nets[i].net->transport->arm(all.nets[i].net); /* then it looks at its sockets */
		FUZZ_CHECK(all.nets[i].net->transport->progress(all.nets[i].net) >= 0, "no peer breaks a net");
	}
	all.speaks = NULL;
}

static void settle(int turns)
{
	for (int i = 0; i < turns; i++)
		turn();
}

ssize_t __real_send(int fd, const void *bytes, size_t n, int flags);
ssize_t __wrap_send(int fd, const void *bytes, size_t n, int flags);

ssize_t __wrap_send(int fd, const void *bytes, size_t n, int flags)
{
	uint8_t word[TT_VERBS_TERMS_SIZE];

	if (!all.spoils || all.speaks != B || (n != sizeof word && n != 1))
		return __real_send(fd, bytes, n, flags);
	memcpy(word, bytes, n);
	for (int i = 0; n > 1 && i < all.changes; i++)
		word[all.change[2 * i] % sizeof word] = all.change[2 * i + 1];
	if (n == 1)
		*word = all.ready;
	return __real_send(fd, word, n, flags);
}

/* ---- what b's queue pair says ---- */

static struct ibv_qp *queue_of_b(void)
{
	struct ibv_qp *q = NULL;

	for (int i = 0; (q = fake_qp(i)) && q->context != tt_container_of(B->net, struct tt_verbs, base)->device; i++)
		;
	return q;
}

static void say(struct ibv_send_wr *wr)
{
	struct ibv_qp *q = queue_of_b();
	struct ibv_send_wr *bad;
	struct ibv_wc wc[16];

	if (q)
		ibv_post_send(q, wr, &bad);
	settle(4);
	while (q && ibv_poll_cq(q->send_cq, 16, wc) > 0)
		;
}

enum { MEND = 8 }; /* the head names a word that is a's */

static void say_message(unsigned how)
{
	struct tt_pack key = tt_unpack(A->region->key.raw, sizeof A->region->key.raw);
	struct tt_verbs_head h = { 0 };
	size_t len = fuzz_number(&all.in, how & 16 ? 2 : 0) % TT_VERBS_RECEIVE, got;
	const uint8_t *given = fuzz_take(&all.in, sizeof h, &got);

	if (got)
		memcpy(&h, given, got);
	if (how & MEND) {
		h.addr = htole64(tt_get64(&key) + le64toh(h.addr) % SIZE);
		h.rkey = htole32(tt_get32(&key));
	}
	memset(B->memory, 0x5a, SIZE);
	memcpy(B->memory, &h, sizeof h);
	struct ibv_sge sge = { (uintptr_t)B->memory, (uint32_t)(how & 16 ? len : sizeof h), tt_verbs_lkey(B->region) };
	say(&(struct ibv_send_wr){ .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND,
	                           .send_flags = IBV_SEND_SIGNALED });
}

static void say_immediate(void)
{
	uint32_t value = fuzz_number(&all.in, 4);

	say(&(struct ibv_send_wr){ .opcode = IBV_WR_RDMA_WRITE_WITH_IMM, .imm_data = htobe32(value),
	                           .send_flags = IBV_SEND_SIGNALED });
}

static void op_done(struct tt_op *op)
{
	all.ended[op - all.op]++;
	FUZZ_CHECK(op->err <= 0, "an op ends with 0 or an error");
}

static void post_one(void)
{
	int i = all.posted;

	if (i == OPS || !A->peers[1])
		return;
	all.op[i] = (struct tt_op){ .kind = op_kind[i], .flags = i == 4 ? TT_NOTIFY : 0, .local = A->memory,
		.region = i % 2 ? A->region : NULL, .len = op_size[i], .key = &B->region->key, .operand = 5,
		.done = op_done };
	all.posted++;
	A->net->transport->post(A->peers[1], &all.op[i]);
	settle(4);
}

static void take_event(void)
{
	unsigned event = fuzz_number(&all.in, 1);

	if (event % 8 < 4)
		say_message(event);
	else if (event % 8 == 4 && !wires[all.wire].cm)
		say_immediate();
	else if (event % 8 < 7)
		post_one();
	else
		settle(20);
}

/* ---- the run ---- */

static const char *env(const char *variable)
{
	return !strcmp(variable, "TUTTI_VERBS_CONNECT") && wires[all.wire].cm ? "cm" : NULL;
}

static void open_one(struct net *n)
{
	struct tt_net_config c = { .events = &events, .device = wires[all.wire].device, .listen = "127.0.0.1:0",
		.listen_fd = -1, .job = 5, .epoch = 1, .timeout_ms = TIMEOUT_MS, .peers = 4, .user = n };
	struct tt_mem mem = { .base = n->memory = fuzz_fenced(SIZE), .len = SIZE, .gpu = -1, .fd = -1 };

	FUZZ_CHECK(!tt_verbs.open(&c, &n->net), "a net opens");
	FUZZ_CHECK(!tt_verbs.pin(n->net, &mem, 1, &n->pin), "memory is pinned");
	FUZZ_CHECK(!tt_verbs.reg(n->net, &mem, 1, n->pin, &n->region), "memory is registered");
}

static void call(struct net *from, struct net *to)
{
	FUZZ_CHECK(!tt_verbs.connect(from->net, to->net->addr, &from->peers[from->count]), "an address that is right");
	from->count++;
}

static void set_up(void)
{
	for (int i = 0; i < NETS; i++)
		open_one(&all.nets[i]);
	call(A, C);
	for (int i = 0; i < 40 * TURNS && (!A->ups || !C->ups); i++)
		turn();
	FUZZ_CHECK(A->ups == 1 && C->ups == 1, "honest nets meet");
}

/* a and b meet, or it takes too long. */
static void meet(unsigned flags)
{
	size_t n;
	const uint8_t *given;

	if (!(flags & GREETED)) {
		all.spoils = true;
		all.changes = (uint8_t)(fuzz_number(&all.in, 1) % 9);
		given = fuzz_take(&all.in, 2 * (size_t)all.changes, &n);
		if (n)
			memcpy(all.change, given, n);
		all.ready = (uint8_t)fuzz_number(&all.in, 1);
	}
	call(flags & CALLED ? A : B, flags & CALLED ? B : A);
	for (int i = 0; i < 2 * TURNS && !B->downs && (A->ups + A->downs < 2 || !B->ups); i++) {
		turn();
		all.world.now += i > TURNS ? TT_MS : 0;
	}
	all.spoils = false;
}

static void tear_down(void)
{
	for (int i = 0; i < NETS; i++) {
		struct net *n = &all.nets[i];
		for (int k = 0; k < n->count; k++)
			tt_verbs.disconnect(n->peers[k]);
		tt_verbs.dereg(n->region);
		tt_verbs.unpin(n->pin);
		tt_verbs.close(n->net);
		fuzz_free_fenced(n->memory, SIZE);
	}
	for (int i = 0; i < all.posted; i++)
		FUZZ_CHECK(all.ended[i] == 1, "every op ends, and once");
	FUZZ_CHECK(!fake_left(), "nothing is left of the adapters");
}

/* Whatever b says, a and c go on. */
static int others_done;
static void other_done(struct tt_op *op) { others_done += !op->err; }

static void check_others(void)
{
	struct tt_op op = { .kind = TT_SEND, .local = "hello", .len = 6, .done = other_done };
	int before = C->messages;

	others_done = 0;
	tt_verbs.post(A->peers[0], &op);
	for (int i = 0; i < 40 * TURNS && (!others_done || C->messages == before); i++)
		turn();
	FUZZ_CHECK(others_done == 1 && C->messages == before + 1 && !C->downs, "others go on");
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len)
{
	memset(&all, 0, sizeof all);
	all.in = (struct fuzz_input){ bytes, len };
	all.world = fuzz_world(env);
	tt_world = &all.world.base;
	tt_verbs_instead = &tt_fake_verbs;
	unsigned flags = fuzz_number(&all.in, 1);
	all.wire = flags % TT_COUNT(wires);
	fake_seed(fuzz_number(&all.in, 1));
	set_up();
	meet(flags);
	all.frozen = true;
	for (int i = 0; i < EVENTS_MAX && all.in.left && A->ups == 2; i++)
		take_event();
	all.frozen = false;
	check_others();
	tear_down();
	tt_world = NULL;
	return 0;
}
