/* fuzz_frames.c - a real tcp net, on loopback, whose only peer says what the input says: the handshake, on either side
 * of it, then frames, while operations of the net's own are under way.
 * Input: flags (enum below); without GREET the bytes of a handshake; then events until it ends, see take_event(). */
#include "tests/fuzz/fuzz.h"
#include "transport/frame.h"
#include "transport/tcp/tcp.h"
#include <arpa/inet.h>
#include <linux/sockios.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

/* the net connects to us; the greeting is right; we do not read */
enum { CONNECTS = 1, SECRET = 2, GREET = 4, POSTS = 8, DEAF = 16 };
enum { JOB = 0x1122334455667788 % 0x7fffffff, EPOCH = 3, REGIONS = 4, OPS = 8, EVENTS_MAX = 200, TIMEOUT_MS = 1000 };

static const size_t region_size[REGIONS] = { 8, 64, 5000, 100000 };
static const size_t op_size[OPS] = { 8, 100000, 8, 3000, 8, 100, 0, 200000 };
static const enum tt_kind op_kind[OPS] = { TT_PUT, TT_PUT, TT_GET, TT_GET, TT_ADD, TT_SEND, TT_PUT, TT_GET };

struct frames {
	struct fuzz_input in;
	unsigned flags;
	struct tt_net *net;
	struct tt_peer *peer;       /* NULL: not up, or down */
	struct tt_peer *gone;       /* down, to be disconnected */
	bool was_up, down;
	int listener, fd;           /* ours */
	uint8_t *memory[REGIONS], *local[OPS];
	struct tt_region *region[REGIONS];
	struct tt_op op[OPS];
	struct tt_key far;          /* what the net believes to be a key of ours */
	int posted, ended[OPS];
	unsigned heard;             /* so that every byte of a message is looked at */
};

/* ---- what the net says ---- */

static struct frames *now; /* ops and events have nobody else to ask */

static void op_done(struct tt_op *op)
{
	now->ended[op - now->op]++;
	FUZZ_CHECK(op->err <= 0, "an op ends with 0 or an error");
}

static void post_one(struct frames *f)
{
	int i = f->posted;

	if (!f->peer || i == OPS)
		return;
	f->op[i] = (struct tt_op){ .kind = op_kind[i],
		                   .flags = op_kind[i] == TT_PUT ? TT_NOTIFY : 0,
		                   .notify = (uint32_t)i,
		                   .local = f->local[i],
		                   .len = op_size[i],
		                   .key = &f->far,
		                   .operand = 5,
		                   .done = op_done };
	f->posted++;
	f->net->transport->post(f->peer, &f->op[i]);
}

static void up(struct tt_peer *p)
{
	now->peer = p;
	now->was_up = true;
	for (int i = 0; now->flags & POSTS && i < OPS - 2; i++)
		post_one(now);
}

static void message(struct tt_peer *p, const void *bytes, size_t len)
{
	FUZZ_CHECK(p == now->peer && len <= TT_MESSAGE_MAX,
	           "messages come from a peer that is up, and are not too long");
	for (size_t i = 0; i < len; i++)
		now->heard += ((const uint8_t *)bytes)[i];
}

static void notify(struct tt_peer *p, uint32_t value)
{
	FUZZ_CHECK(p == now->peer && value < 1u << 24, "notify values have 24 bits");
}

static void down(struct tt_peer *p, int err)
{
	FUZZ_CHECK(!now->down && err < 0 && (!now->was_up || (p == now->peer && err == -ECONNRESET)),
	           "down comes once, with a reason");
	for (int i = 0; i < now->posted; i++)
		FUZZ_CHECK(now->ended[i] == 1, "every op has ended, once, before its peer goes down");
	now->down = true;
	now->gone = p;
	now->peer = NULL;
}

static const struct tt_events events = { up, message, notify, down };

/* ---- our side of the socket ---- */

static void drain(struct frames *f)
{
	static char bytes[65536];

	while (!(f->flags & DEAF) && f->fd >= 0 && recv(f->fd, bytes, sizeof bytes, MSG_DONTWAIT) == sizeof bytes)
		;
}

/* Have bytes of ours not been sent yet, though there is another end? Loopback delivers what is sent at once; waiting
 * for its acknowledgement would take 40 ms. */
static bool is_under_way(int fd)
{
	struct pollfd p = { .fd = fd };
	int bytes = 0;

	return fd >= 0 && !ioctl(fd, SIOCOUTQNSD, &bytes) && bytes && !poll(&p, 1, 0);
}

static bool is_quiet(struct frames *f)
{
	struct pollfd p = { .fd = f->net->fd, .events = POLLIN };

	return !is_under_way(f->fd) && !f->net->transport->arm(f->net) && !poll(&p, 1, 0);
}

static void settle(struct frames *f)
{
	for (int i = 0; i < 100000; i++) {
		int n = f->net->transport->progress(f->net);
		FUZZ_CHECK(n >= 0, "the net is not lost");
		drain(f);
		if (f->gone)
			f->net->transport->disconnect(f->gone);
		f->gone = NULL;
		if (!n && is_quiet(f))
			return;
	}
	FUZZ_CHECK(false, "the net comes to rest");
}

static void give(struct frames *f, const void *bytes, size_t len)
{
	for (size_t at = 0; at < len && f->fd >= 0;) {
		ssize_t n = send(f->fd, (const char *)bytes + at, len - at, MSG_DONTWAIT | MSG_NOSIGNAL);
		if (n < 0 && errno != EAGAIN)
			return; /* it has hung up */
		if (n > 0)
			at += (size_t)n;
		else
			settle(f);
	}
}

static int listen_here(struct sockaddr_in *a)
{
	socklen_t len = sizeof *a;
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	*a = (struct sockaddr_in){ .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	if (fd < 0 || bind(fd, (struct sockaddr *)a, len) || listen(fd, 4) ||
	    getsockname(fd, (struct sockaddr *)a, &len))
		abort();
	return fd;
}

static void meet(struct frames *f)
{
	static int ours = -1;
	static struct sockaddr_in a;
	struct sockaddr_in to = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	char text[40];
	int on = 1;

	if (f->flags & CONNECTS) {
		struct tt_peer *p;
		if (ours < 0)
			ours = listen_here(&a);
		snprintf(text, sizeof text, "127.0.0.1:%d", ntohs(a.sin_port));
		FUZZ_CHECK(!f->net->transport->connect(f->net, text, &p), "connecting begins");
		f->fd = accept4(ours, NULL, NULL, SOCK_CLOEXEC);
	} else {
		to.sin_port = htons((uint16_t)atoi(strrchr(f->net->addr, ':') + 1));
		f->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
		if (connect(f->fd, (struct sockaddr *)&to, sizeof to))
			abort();
	}
	setsockopt(f->fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on); /* nothing waits for its neighbours */
	settle(f);
}

static void greet(struct frames *f)
{
	struct tt_hello h = { .version = TT_FRAME_VERSION, .epoch = EPOCH, .job = JOB };
	uint8_t bytes[TT_HELLO_SIZE + TT_PROOF_SIZE] = { 0 };
	size_t len;
	const uint8_t *given;

	if (f->flags & GREET) {
		tt_hello_pack(&h, bytes);
		give(f, bytes, sizeof bytes);
	} else { /* its first bytes make it a HELLO of this job, unless the input says otherwise */
		unsigned spoil = fuzz_number(&f->in, 1);
		given = fuzz_take(&f->in, sizeof bytes, &len);
		tt_hello_pack(&h, bytes);
		for (size_t i = 0; i < len; i++)
			bytes[i] = spoil & 1 ? given[i] : bytes[i] ^ given[i];
		give(f, bytes, tt_min(spoil >> 1, sizeof bytes));
		settle(f);
		if (spoil >> 1 < sizeof bytes)
			give(f, bytes + (spoil >> 1), sizeof bytes - (spoil >> 1));
	}
	settle(f);
}

/* ---- frames ---- */

enum { RIGHT_JOB = 1, RIGHT_KEY = 2, PAYLOAD = 4, IN_TWO = 8 }; /* what is put right in a frame of the input */

static void mend(struct frames *f, uint8_t bytes[TT_FRAME_SIZE], unsigned how)
{
	struct tt_pack p = tt_pack(bytes + 8, 16);
	struct tt_region *r = f->region[bytes[16] % REGIONS];

	if (how & RIGHT_JOB) {
		tt_put32(&p, tt_frame_fold(JOB));
		tt_put32(&p, EPOCH);
	}
	if (how & RIGHT_KEY && r)
		memcpy(bytes + 16, r->key.raw, 8);
}

static size_t payload_of(const uint8_t bytes[TT_FRAME_SIZE])
{
	struct tt_frame frame;

	return tt_frame_unpack(bytes, TT_FRAME_SIZE, &frame) ? tt_min(tt_frame_payload(&frame), 120000) : 0;
}

static void send_frame(struct frames *f)
{
	static uint8_t bytes[TT_FRAME_SIZE + 120000];
	unsigned how = fuzz_number(&f->in, 1);
	size_t len;
	const uint8_t *given = fuzz_take(&f->in, TT_FRAME_SIZE, &len);

	memset(bytes, 0, TT_FRAME_SIZE);
	if (len)
		memcpy(bytes, given, len);
	mend(f, bytes, how);
	len = TT_FRAME_SIZE + (how & PAYLOAD ? payload_of(bytes) : 0);
	memset(bytes + TT_FRAME_SIZE, 0x5a, len - TT_FRAME_SIZE);
	size_t first = how & IN_TWO ? tt_min(how >> 4 << 2, len) : len;
	give(f, bytes, first);
	if (first < len) {
		settle(f);
		give(f, bytes + first, len - first);
	}
}

static void send_raw(struct frames *f)
{
	size_t len = fuzz_number(&f->in, 1);
	const uint8_t *given = fuzz_take(&f->in, len, &len);

	give(f, given, len);
}

static void forget_region(struct frames *f)
{
	struct tt_region **r = &f->region[fuzz_number(&f->in, 1) % REGIONS];

	if (*r)
		f->net->transport->dereg(*r);
	*r = NULL;
}

static void take_event(struct frames *f)
{
	unsigned event = fuzz_number(&f->in, 1) % 8;

	if (event < 4)
		send_frame(f);
	else if (event == 4)
		send_raw(f);
	else if (event == 5)
		forget_region(f);
	else if (event == 6)
		post_one(f);
	else if (f->in.left % 4)
		((struct fuzz_world *)tt_world)->now += TIMEOUT_MS * TT_MS / 2 + 1;
	else
		shutdown(f->fd, SHUT_WR);
	if (event != 3) /* else more follows in the same breath */
		settle(f);
}

/* ---- the run ---- */

static void set_up(struct frames *f)
{
	struct tt_net_config c = { .events = &events,
		                   .listen = "127.0.0.1:0",
		                   .listen_fd = -1,
		                   .job = JOB,
		                   .epoch = EPOCH,
		                   .timeout_ms = TIMEOUT_MS };

	if (f->flags & SECRET) {
		c.secret = "a secret of some length";
		c.secret_len = strlen(c.secret);
	}
	if (tt_tcp.open(&c, &f->net)) { /* no libsodium: then there are no secrets */
		c.secret = NULL;
		FUZZ_CHECK(!tt_tcp.open(&c, &f->net), "a net opens");
	}
	for (int i = 0; i < REGIONS; i++) {
		struct tt_mem mem = {
			.base = f->memory[i] = fuzz_fenced(region_size[i]), .len = region_size[i], .gpu = -1, .fd = -1
		};
		FUZZ_CHECK(!tt_tcp.reg(f->net, &mem, 1, NULL, &f->region[i]), "memory is registered");
	}
	for (int i = 0; i < OPS; i++)
		f->local[i] = fuzz_fenced(op_size[i]);
	f->far.len = 1 << 20;
}

static void tear_down(struct frames *f)
{
	struct linger reset = { 1, 0 }; /* no port waits for a minute */

	setsockopt(f->fd, SOL_SOCKET, SO_LINGER, &reset, sizeof reset);
	if (f->posted % 2 && f->peer) { /* one of the two ways for a peer to end */
		f->net->transport->disconnect(f->peer);
		f->peer = NULL;
	}
	close(f->fd);
	f->fd = -1;
	settle(f);
	f->net->transport->close(f->net);
	for (int i = 0; i < f->posted; i++)
		FUZZ_CHECK(f->ended[i] == 1, "every op ends, and once");
	for (int i = 0; i < REGIONS; i++)
		fuzz_free_fenced(f->memory[i], region_size[i]);
	for (int i = 0; i < OPS; i++)
		fuzz_free_fenced(f->local[i], op_size[i]);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len)
{
	struct fuzz_world world = fuzz_world(NULL);
	struct frames f = { .in = { bytes, len }, .fd = -1 };

	tt_world = &world.base;
	now = &f;
	f.flags = fuzz_number(&f.in, 1);
	set_up(&f);
	meet(&f);
	greet(&f);
	for (int i = 0; i < EVENTS_MAX && f.in.left && f.fd >= 0; i++)
		take_event(&f);
	tear_down(&f);
	tt_world = NULL;
	return 0;
}
