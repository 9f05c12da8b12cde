/* unit_verbs_hostile.c - others that mean harm, over adapters that are not there: strangers that know the port and no
 * more, and peers that have proven themselves and then say what no Tutti says. Whoever it is loses its own connection,
 * a warning says so once, and the others go on. */
#include "tests/verbs/nets.h"
#include "transport/verbs/verbs_private.h"
#include <arpa/inet.h>
#include <sys/epoll.h>
#include <sys/socket.h>

/* ---- the log ---- */

static FILE *log_file;
static int log_before;

static void catch_log(void)
{
	log_file = tmpfile();
	CU_ASSERT_FATAL(log_file != NULL);
	fflush(stderr);
	log_before = dup(STDERR_FILENO);
	dup2(fileno(log_file), STDERR_FILENO);
}

/* Lines that say that somebody was refused. */
static int count_warnings(void)
{
	char line[700];
	int n = 0;

	fflush(stderr);
	dup2(log_before, STDERR_FILENO);
	close(log_before);
	rewind(log_file);
	while (fgets(line, sizeof line, log_file))
		n += strstr(line, "warn: refused the connection") != NULL;
	fclose(log_file);
	return n;
}

/* ---- strangers ---- */

enum { STRANGERS = 50 };
enum opening { SILENCE, GARBAGE, OLDER, OTHER_JOB, BAD_PROOF, TERMS_AT_ONCE, OPENINGS };

static int call_a(void)
{
	struct sockaddr_in at = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK),
		                  .sin_port = htons((uint16_t)atoi(strrchr(nets[0].net->addr, ':') + 1)) };
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	CU_ASSERT_FATAL(fd >= 0 && connect(fd, (struct sockaddr *)&at, sizeof at) == 0);
	return fd;
}

static size_t make_opening(enum opening o, uint8_t bytes[512])
{
	struct tt_hello h = { .version = TT_FRAME_VERSION, .flags = TT_HELLO_SECRET, .epoch = 1, .job = 5 };

	memset(bytes, 0xa5, 512);
	if (o == SILENCE || o == GARBAGE)
		return o == SILENCE ? 0 : 512;
#ifndef HAVE_LIBSODIUM
	h.flags = 0;
#endif
	h.version -= o == OLDER;
	h.job += o == OTHER_JOB;
	tt_hello_pack(&h, bytes);
	return TT_HELLO_SIZE + (o == BAD_PROOF ? TT_PROOF_SIZE : o == TERMS_AT_ONCE ? TT_VERBS_TERMS_SIZE : 0);
}

/* It says that, and hears what a has to say until a closes the connection. With the right HELLO it hears a's alone. */
static void come(enum opening o)
{
	uint8_t bytes[512];
	size_t n = make_opening(o, bytes), heard = 0;
	int fd = call_a();
	ssize_t got = 1;

	CU_ASSERT(n == 0 || send(fd, bytes, n, MSG_NOSIGNAL) == (ssize_t)n);
	if (o == SILENCE)
		shutdown(fd, SHUT_WR);
	for (uint64_t end = tt_now() + PATIENCE; got && tt_now() < end; heard += got > 0 ? (size_t)got : 0) {
		turn();
		got = recv(fd, bytes, sizeof bytes, MSG_DONTWAIT);
		if (got < 0 && errno == ECONNRESET)
			got = 0;
	}
	CU_ASSERT(got == 0 && heard <= TT_HELLO_SIZE + TT_PROOF_SIZE);
	close(fd);
}

static void receive_strangers(void)
{
	row_name = "strangers";
	for (int o = 0; o < OPENINGS; o++) {
		open_nets((uint64_t)o);
		uint64_t queues = fake_calls("create_qp"), rights = fake_calls("modify_qp");
		catch_log();
		for (int i = 0; i < STRANGERS; i++)
			come((enum opening)o);
		CU_ASSERT_EQUAL(count_warnings(), o != SILENCE);
		CU_ASSERT(fake_calls("create_qp") == queues && fake_calls("modify_qp") == rights);
		CU_ASSERT(nets[0].ups == 2 && nets[0].downs == 0);
		check_others();
		close_nets();
	}
}

static void test_strangers(void) { each_way(receive_strangers); }

/* Whoever cannot be waited for goes, and has its place at the door no more. */
int __real_epoll_ctl(int epoll, int op, int fd, struct epoll_event *event);
int __wrap_epoll_ctl(int epoll, int op, int fd, struct epoll_event *event);
static bool watches_none;

int __wrap_epoll_ctl(int epoll, int op, int fd, struct epoll_event *event)
{
	if (!watches_none || op != EPOLL_CTL_ADD)
		return __real_epoll_ctl(epoll, op, fd, event);
	errno = ENOSPC;
	return -1;
}

static void test_place_given_back(void)
{
	row_name = "a place at the door";
	open_nets(1);
	watches_none = true;
	come(TERMS_AT_ONCE);
	watches_none = false;
	CU_ASSERT_EQUAL(tt_container_of(nets[0].net, struct tt_verbs, base)->door.unproven, 0);
	check_others();
	close_nets();
}

/* A net of another secret, from either side. */
static void test_secret(void)
{
#ifdef HAVE_LIBSODIUM
	row_name = "secret";
	fake_seed(1);
	secret = "another";
	CU_ASSERT_FATAL(open_one(1) == 0);
	secret = "a secret";
	CU_ASSERT_FATAL(open_one(0) == 0 && open_one(2) == 0);
	connect_to(2);
	UNTIL(nets[0].ups == 1 && nets[2].ups == 1);
	uint64_t queues = fake_calls("create_qp");
	CU_ASSERT(tt_verbs.connect(nets[1].net, nets[0].net->addr, &nets[1].peer[0]) == 0);
	UNTIL(nets[1].downs == 1);
	CU_ASSERT(nets[1].err == -EACCES && says(nets[1].why, "TUTTI_SECRET"));
	connect_to(1);
	UNTIL(nets[0].downs == 1);
	CU_ASSERT(nets[0].err == -EACCES && says(nets[0].why, "TUTTI_SECRET") && nets[1].ups == 0);
	CU_ASSERT_EQUAL(fake_calls("create_qp"), queues);
	check_others();
	close_nets();
#endif
}

/* The number of a's queue pair is known to somebody who sends to it, and is not who a has named. */
static void send_unproven(uint64_t seed)
{
	struct tt_verbs *b;
	struct ibv_qp *q;

	open_nets(seed);
	b = tt_container_of(nets[1].net, struct tt_verbs, base);
	struct ibv_qp_init_attr init = { .send_cq = b->cq, .recv_cq = b->cq, .srq = b->srq, .qp_type = IBV_QPT_RC,
		                         .cap = { .max_send_wr = 4, .max_send_sge = 1, .max_inline_data = 64 } };
	CU_ASSERT_FATAL((q = tt_fake_verbs.create_qp(b->pd, &init)) != NULL);
	struct tt_verbs_peer liar = { .net = b, .qp = q, .serves = 1, .reads = 1 };
	struct tt_verbs_end at = { .number = qp_of(fake_context(0))->qp_num, .mtu = IBV_MTU_1024,
		.link = IBV_LINK_LAYER_ETHERNET,
		                   .gid = b->port.gid };
	CU_ASSERT_EQUAL(tt_fake_verbs.modify_qp(q, &(struct ibv_qp_attr){ .qp_state = IBV_QPS_INIT, .port_num = 1 },
	                IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS), 0);
	CU_ASSERT_EQUAL(tt_verbs_join_queue(&liar, &at), 0);
	struct tt_verbs_head h = { .kind = TT_VERBS_MESSAGE };
	struct ibv_sge sge = { (uintptr_t)&h, sizeof h, 0 };
	struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1, .send_flags = IBV_SEND_INLINE,
		.opcode = IBV_WR_SEND }, *bad;
	CU_ASSERT_EQUAL(ibv_post_send(q, &wr, &bad), 0);
	settle();
	CU_ASSERT(nets[0].messages == 0 && nets[0].downs == 0);
	check_others();
	tt_fake_verbs.destroy_qp(q);
	close_nets();
}

static void test_unproven(void)
{
	for (uint64_t seed = 0; seed < SEEDS; seed++)
		send_unproven(seed);
}

/* ---- b connects to a, and what it says is spoilt on its way ---- */

ssize_t __real_send(int fd, const void *bytes, size_t n, int flags);
ssize_t __wrap_send(int fd, const void *bytes, size_t n, int flags);

static const struct spoilt {
	size_t size;            /* which of b's words: TERMS, or READY */
	size_t at, len;
	uint8_t with;
	bool again;             /* the word comes twice */
	const char *words;      /* of a's warning; NULL: a may believe it, and reach nobody, or have no use for it */
} spoilts[] = {
	{ TT_VERBS_TERMS_SIZE, 0, TT_VERBS_TERMS_SIZE, 0xff, false, NULL }, /* "refused", in its first word */
	{ TT_VERBS_TERMS_SIZE, 4, TT_VERBS_TERMS_SIZE - 4, 0xff, false, "nonsense" },
	{ TT_VERBS_TERMS_SIZE, 4, 4, 0, false, "nonsense" },     /* number */
	{ TT_VERBS_TERMS_SIZE, 7, 1, 1, false, "nonsense" },
	{ TT_VERBS_TERMS_SIZE, 11, 1, 1, false, "nonsense" },    /* PSN */
	{ TT_VERBS_TERMS_SIZE, 12, 4, 0, false, "nonsense" },    /* piece */
	{ TT_VERBS_TERMS_SIZE, 18, 2, 0, false, "nonsense" },    /* credits */
	{ TT_VERBS_TERMS_SIZE, 20, 2, 0, false, "nonsense" },    /* receive */
	{ TT_VERBS_TERMS_SIZE, 24, 1, 0, false, "nonsense" },    /* mtu */
	{ TT_VERBS_TERMS_SIZE, 24, 1, 9, false, "nonsense" },
	{ TT_VERBS_TERMS_SIZE, 22, 1, 77, false, NULL },         /* link */
	{ TT_VERBS_TERMS_SIZE, 25, 2, 0, false, NULL },          /* READs */
	{ TT_VERBS_TERMS_SIZE, 4, 2, 0xee, false, NULL },        /* another's queue pair, */
	{ TT_VERBS_TERMS_SIZE, 16, 2, 0xee, false, NULL },       /* LID, */
	{ TT_VERBS_TERMS_SIZE, 28, 16, 0xee, false, NULL },      /* GID, */
	{ TT_VERBS_TERMS_SIZE, 44, 64, 'x', false, NULL },       /* address, without an end, */
	{ TT_VERBS_TERMS_SIZE, 108, 16, 0xee, false, NULL },     /* cookie */
	{ 1, 0, 1, 7, false, "no part of the handshake" },
	{ 1, 0, 0, 0, true, "no part of the handshake" },
};
static const struct spoilt *spoilt;
static uint64_t noise; /* not 0: TERMS of any bytes */
static in_port_t port_of_a;

static bool leads_to_a(int fd)
{
	struct sockaddr_in to;
	socklen_t size = sizeof to;

	return !getpeername(fd, (struct sockaddr *)&to, &size) && to.sin_port == port_of_a;
}

ssize_t __wrap_send(int fd, const void *bytes, size_t n, int flags)
{
	uint8_t word[TT_VERBS_TERMS_SIZE];

	if (!spoilt || n != spoilt->size || !leads_to_a(fd))
		return __real_send(fd, bytes, n, flags);
	memcpy(word, bytes, n);
	memset(word + spoilt->at, spoilt->with, spoilt->len);
	if (noise) {
		struct tt_random r;
		tt_random_seed(&r, noise);
		for (size_t i = 0; i < n; i++)
			word[i] = (uint8_t)tt_random_below(&r, 256);
	}
	ssize_t said = __real_send(fd, word, n, flags);
	return spoilt->again ? __real_send(fd, word, n, flags) : said;
}

static void spoil(const struct spoilt *s, uint64_t seed)
{
	row_name = s->words ? s->words : "spoilt words";
	fake_seed(seed);
	CU_ASSERT_FATAL(open_one(0) == 0 && open_one(2) == 0);
	timeout_ms = s->words ? 20000 : 300; /* what reaches nobody ends so */
	CU_ASSERT_FATAL(open_one(1) == 0);
	timeout_ms = 20000;
	connect_to(2);
	UNTIL(nets[0].ups == 1 && nets[2].ups == 1);
	port_of_a = htons((uint16_t)atoi(strrchr(nets[0].net->addr, ':') + 1));
	catch_log();
	spoilt = s;
	CU_ASSERT(tt_verbs.connect(nets[1].net, nets[0].net->addr, &nets[1].peer[0]) == 0);
	UNTIL(nets[1].downs || (!s->words && nets[1].ups));
	settle();
	spoilt = NULL;
	int warnings = count_warnings();
	CU_ASSERT(s->words ? warnings == 1 && nets[0].ups == nets[0].downs + 1 : warnings <= 1);
	check_others();
	close_nets();
}

static void spoil_all(void)
{
	static const struct spoilt any = { TT_VERBS_TERMS_SIZE, 0, 0, 0, false, NULL };

	for (size_t i = 0; i < TT_COUNT(spoilts); i++)
		spoil(&spoilts[i], i);
	for (noise = 1; noise < 20; noise++)
		spoil(&any, noise);
	noise = 0;
}

static void test_spoilt(void) { each_way(spoil_all); }

/* ---- a peer that has proven itself, and then talks nonsense ---- */

static const struct nonsense {
	const char *words;
	uint8_t head[24]; /* kind, credits, slot, bad, rkey (4), addr (8), word (8) */
	uint32_t len;
	bool immediate;
} nonsenses[] = {
	{ "no known kind", { 0 }, 24, false },
	{ "no known kind", { 99 }, 24, false },
	{ "no known kind", { 2 }, 5, false }, /* shorter than a head */
	{ "no known kind", { 0 }, 0, false },
	{ "more credits", { 5, 255 }, 24, false },
	{ "more credits", { 255 }, 8, true },
	{ "not registered", { 3, 0, 0, 0, 1, 2, 3, 4 }, 24, false },
	{ "not registered", { 7, 0, 0, 0, 1, 2, 3, 4, [16] = 8 }, 24, false },
	{ "was not asked", { 4, 0, 200 }, 24, false },
	{ "was not asked", { 8, 0, 200 }, 24, false },
	{ "than it can have", { 5, [22] = 1 }, 24, false }, /* 2^48 bytes */
};

/* b's own queue pair says it, from inline data, which needs no key. */
static void talk_nonsense(const struct nonsense *n)
{
	struct ibv_sge sge = { (uintptr_t)n->head, n->len, 0 };
	struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1, .send_flags = IBV_SEND_INLINE,
		                  .opcode = n->immediate ? IBV_WR_RDMA_WRITE_WITH_IMM : IBV_WR_SEND }, *bad;

	if (n->immediate) {
		wr.num_sge = 0;
		memcpy(&wr.imm_data, n->head, sizeof wr.imm_data);
	}
	CU_ASSERT(ibv_post_send(qp_of(fake_context(1)), &wr, &bad) == 0);
}

static void talk_any_nonsense(void)
{
	for (size_t i = 0; i < TT_COUNT(nonsenses); i++)
		for (uint64_t seed = 0; seed < SEEDS; seed++) {
			if (nonsenses[i].immediate && !strcmp(devices[0], "fake_iwarp0"))
				continue;
			row_name = nonsenses[i].words;
			open_nets(seed);
			talk_nonsense(&nonsenses[i]);
			UNTIL(nets[0].downs == 1 && nets[1].downs == 1);
			CU_ASSERT(says(nets[0].why, nonsenses[i].words) && nets[0].messages == 0);
			check_others();
			close_nets();
		}
}

static void test_nonsense(void) { each_way(talk_any_nonsense); }

/* ---- ... answers a GET of iWARP's with too much, or too little ---- */

static void answer_with(uint32_t bytes)
{
	uint8_t answer[24 + 24] = { TT_VERBS_BYTES };
	struct ibv_sge sge = { (uintptr_t)answer, 24 + bytes, 0 };
	struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1, .send_flags = IBV_SEND_INLINE, .opcode = IBV_WR_SEND };
	struct ibv_send_wr *bad;
	struct op get = { .op = { .kind = TT_GET, .region = nets[0].region, .local = nets[0].memory, .len = 16,
		                  .key = &nets[1].region->key, .done = done } };

	tt_verbs.post(nets[0].peer[1], &get.op);
	for (int i = 0; i < 300; i++) /* b is not asked */
		tt_verbs.progress(nets[0].net);
	while (tt_container_of(nets[0].peer[1], struct tt_verbs_peer, base)->ops.slots[answer[2]] != &get.op)
		answer[2]++;
	CU_ASSERT(ibv_post_send(qp_of(fake_context(1)), &wr, &bad) == 0);
	UNTIL(get.dones == 1 && nets[0].downs == 1 && nets[1].downs == 1);
	CU_ASSERT(says(nets[0].why, "was not asked")); /* b's own answer may have come as well */
}

static void test_lengths(void)
{
	static const uint32_t lengths[] = { 0, 8, 24 };

	row_name = "lengths";
	use_cm("fake_iwarp0");
	for (size_t i = 0; i < TT_COUNT(lengths); i++)
		for (uint64_t seed = 0; seed < SEEDS; seed++) {
			open_nets(seed);
			answer_with(lengths[i]);
			check_others();
			close_nets();
		}
	use_tcp();
}

/* ---- ... guesses keys ---- */

static struct tt_verbs_place place_of_a(void)
{
	struct tt_pack key = tt_unpack(nets[0].region->key.raw, sizeof nets[0].region->key.raw);
	uint64_t addr = tt_get64(&key);

	return (struct tt_verbs_place){ addr, tt_get32(&key) };
}

static const struct guess { uint32_t key; int64_t at; } guesses[] = {
	{ 1, 0 }, { 2, 0 }, { 0x80, 0 }, { 0x100, 0 }, { 0x300, 0 }, { 0x10000, 0 }, { 0xffffffff, 0 }, /* a key, */
	{ 0, -8 }, { 0, SIZE - 4 }, { 0, SIZE }, { 0, INT64_MIN },                                      /* or place */
};

/* b's own queue pair asks. What a has is as before, and b has got nothing. */
static void guess(const struct guess *g, enum ibv_wr_opcode opcode, uint64_t seed)
{
	struct tt_verbs_place at;
	char mine[8] = "mine...", *before = malloc(SIZE);

	open_nets(seed);
	at = place_of_a();
	memcpy(before, nets[0].memory, SIZE);
	memset(nets[1].memory, 'm', 8);
	struct ibv_sge sge = { (uintptr_t)nets[1].memory, sizeof mine, tt_verbs_lkey(nets[1].region) };
	struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1, .opcode = opcode }, *bad;
	wr.wr.rdma.remote_addr = at.addr + (uint64_t)g->at;
	wr.wr.rdma.rkey = at.rkey ^ g->key;
	CU_ASSERT_EQUAL(ibv_post_send(qp_of(fake_context(1)), &wr, &bad), 0);
	UNTIL(nets[0].downs == 1 && nets[1].downs == 1);
	CU_ASSERT(!memcmp(before, nets[0].memory, SIZE) && !memcmp(nets[1].memory, "mmmmmmmm", 8));
	check_others();
	close_nets();
	free(before);
}

static void guess_all(void)
{
	row_name = "guesses";
	for (size_t i = 0; i < TT_COUNT(guesses); i++)
		for (uint64_t seed = 0; seed < SEEDS; seed++) {
			guess(&guesses[i], IBV_WR_RDMA_WRITE, seed);
			guess(&guesses[i], IBV_WR_RDMA_READ, seed);
		}
}

static void test_guesses(void) { each_way(guess_all); }

/* ---- ... and sends more than it may ---- */

/* b's library stands still; its queue pair alone says the same again and again, and gives no credits back. */
static void flood(enum tt_verbs_kind kind, uint64_t seed)
{
	struct tt_verbs_place at;
	struct ibv_wc wc[16];

	open_nets(seed);
	at = place_of_a();
	struct ibv_qp *q = qp_of(fake_context(1));
	struct tt_verbs_head h = { .kind = (uint8_t)kind, .rkey = htole32(at.rkey), .addr = htole64(at.addr) };
	struct ibv_sge sge = { (uintptr_t)&h, sizeof h, 0 };
	struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND,
		                  .send_flags = IBV_SEND_INLINE | IBV_SEND_SIGNALED }, *bad;
	nets[1].lost = true;
	catch_log();
	for (uint64_t end = tt_now() + PATIENCE; !nets[0].downs && tt_now() < end; turn()) {
		ibv_post_send(q, &wr, &bad);
		ibv_poll_cq(q->send_cq, 16, wc);
	}
	CU_ASSERT_EQUAL(count_warnings(), 1);
	CU_ASSERT(nets[0].downs == 1 && says(nets[0].why, "more than it"));
	nets[1].lost = false;
	UNTIL(nets[1].downs == 1);
	check_others();
	close_nets();
}

static void flood_all(void)
{
	row_name = "floods";
	for (uint64_t seed = 0; seed < 2 * SEEDS; seed++) {
		flood(TT_VERBS_ASK, seed);
		flood(TT_VERBS_WORD, seed);
	}
}

static void test_floods(void) { each_way(flood_all); }

static CU_TestInfo hostile_tests[] = {
	{ "strangers", test_strangers }, { "secret", test_secret }, { "unproven", test_unproven },
	{ "place given back", test_place_given_back },
	{ "spoilt", test_spoilt }, { "nonsense", test_nonsense }, { "lengths", test_lengths },
	{ "guesses", test_guesses },
	{ "floods", test_floods }, CU_TEST_INFO_NULL,
};
static CU_SuiteInfo suites[] = { { "hostile", NULL, NULL, NULL, NULL, hostile_tests }, CU_SUITE_INFO_NULL };

int main(int argc, char **argv)
{
	tt_verbs_instead = &tt_fake_verbs;
	return run_suites(suites, argc, argv);
}
