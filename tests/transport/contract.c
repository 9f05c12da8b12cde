/* contract.c - every sentence of transport.h as a test: on the simulated wire over many seeds, on tcp, on shm, and on
 * verbs over adapters that are not there (tests/verbs/). Then each way of breaking the contract (breaks.h) must be
 * caught by one of them, on all but verbs.
 *
 * contract [--transport sim|tcp|shm|fake-...|verbs|all] [--devices A,B] [--seeds N] [--seed S]
 *          [--breaks | --no-breaks] [-v] [TEST ...]
 *
 * Each test drives two or three nets in one thread; where a sentence is about the owner's own loads and atomics, on tcp
 * a second thread does those. On sim it runs inside a world of one rank, once a seed; on tcp over 127.0.0.1 a few
 * times and over ::1 once. In every second pair of seeds the reader is strict. With no arguments: all transports, then
 * the breaks, after a run through the same path with none of them, which must succeed. */
#include "tests/harness/amount.h"
#include "transport/breaks.h"
#include "transport/frame.h"
#include "transport/shm/shm_private.h"
#include "transport/sim/sim.h"
#include "transport/tcp/tcp.h"
#ifdef HAVE_VERBS
#include "tests/verbs/fake.h"
#include "transport/verbs/verbs.h"
#endif
#include <CUnit/CUnit.h>
#include <CUnit/TestDB.h>
#include <CUnit/TestRun.h>
#include <arpa/inet.h>
#include <fcntl.h>
#include <limits.h>
#include <netdb.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

_Thread_local enum tt_break tt_break;
_Thread_local bool tt_strict;

enum { GUARD = 4096, BIG = (3 << 20) + 1, MANY = 64, TCP_RUNS = 4, BREAK_SEEDS = 40, SEEDS_A_FAKE = 1000 };
enum what { UP, MESSAGE, NOTIFY, DOWN, DONE };

struct bench;
struct call;

struct record { /* something the transport told us */
	enum what what;
	struct side *side;
	struct tt_peer *peer;
	struct call *call;
	int value; /* notify, or err */
	size_t len;
};

struct side { /* one net, its two blocks of memory, its peer */
	struct bench *bench;
	struct tt_net *net;
	struct tt_peer *peer; /* the last one that came up, or was connected */
	char *window, *local; /* both of bench->size bytes, between guards */
	int fd;               /* of the window; -1: it is private memory */
	struct tt_region *window_region, *local_region;
	struct tt_key key;    /* of the window */
	void (*hook)(struct side *, struct tt_peer *, enum what, const char *bytes, size_t len);
	int left;             /* for hooks that count */
	bool asleep;          /* not to be progressed */
};

struct call { /* an op and what became of it */
	struct tt_op op;
	struct side *side;
	int err, dones;
	uint64_t result;
	bool posted, scribble; /* scribble: overwrite the source as soon as it is ours again */
	char *local;
	size_t len;
	void (*then)(struct call *);
	struct call *older;
};

struct wire {
	const char *name;
	const struct tt_transport *t;
	const char *devices; /* of the nets, in turn: "A,B"; NULL: the best */
	const struct fake_device *plug; /* the only one that is there; NULL: those of fake_devices */
	bool fake, cm;       /* the adapters are not there; librdmacm connects */
};

struct bench {
	const struct wire *wire;
	const struct tt_transport *t;
	uint64_t seed;
	struct tt_random random;
	struct tt_sleeper sleeper;
	struct side side[3];
	struct call *calls;
	struct record *log;
	int logged, logged_max, posting;
	const struct tt_net *inside; /* whose progress() or disconnect() we are in */
	size_t size;
	const char *listen;
	unsigned timeout_ms;
	const char *secret[3];
	uint64_t job[3];
	bool failed, never_arm;
	bool files; /* windows can be mapped */
	bool strict; /* a bad key is the end of its peer */
};

struct test {
	const char *name, *sentence;
	void (*run)(struct bench *);
	int only; /* 0, or one of: */
};
enum { ONLY_TCP = 1, ONLY_SHM, OWN_WORLD };

static bool is_verbs(const struct tt_transport *t) { return !strcmp(t->name, "verbs"); }

/* ---- reporting ---- */

static const struct test *current;
static bool quiet; /* a break is on: a failure is what we want */

static void check(struct bench *s, bool good, int line, const char *condition)
{
	if (good || s->failed)
		return;
	s->failed = true; /* the first tells the story; what waits now need not wait long */
	if (quiet)
		return;
	printf("FAILED %s on %s: line %d: %s\n  \"%s\"\n", current->name, s->wire->name, line, condition,
	       current->sentence);
	printf("  replay: tests/transport/contract --transport %s --seed %llu %s\n", s->wire->name,
	       (unsigned long long)s->seed, current->name);
	fflush(stdout);
	CU_assertImplementation(CU_FALSE, (unsigned)line, condition, __FILE__, current->name, CU_FALSE);
}
#define CHECK(condition) check(s, (condition), __LINE__, #condition)

/* ---- memory whose every byte is known ---- */

enum { PERIOD = 65536 };

/* Bytes that repeat only after PERIOD; each pattern begins at another place in them. */
static const char *pattern_bytes(unsigned pattern)
{
	static char bytes[2 * PERIOD];

	for (size_t i = 0; !bytes[0] && i < sizeof bytes; i++)
		bytes[sizeof bytes - 1 - i] = (char)(i * 31 + (i >> 8) * 7 + 2);
	return bytes + pattern % 256 * 259 % PERIOD;
}

static void fill(char *at, size_t len, unsigned pattern)
{
	for (size_t i = 0; i < len; i += PERIOD)
		memcpy(at + i, pattern_bytes(pattern), tt_min(PERIOD, len - i));
}

static bool holds(const char *at, size_t len, unsigned pattern)
{
	for (size_t i = 0; i < len; i += PERIOD)
		if (memcmp(at + i, pattern_bytes(pattern), tt_min(PERIOD, len - i)))
			return false;
	return true;
}

static bool all(const char *at, size_t len, int value)
{
	return !len || (at[0] == (char)value && !memcmp(at, at + 1, len - 1));
}

static char *guarded(size_t size)
{
	char *block = malloc(size + 2 * GUARD);

	memset(block, 0x77, GUARD);
	memset(block + GUARD, 0, size);
	memset(block + GUARD + size, 0x77, GUARD);
	return block + GUARD;
}

/* In a file that others can map. */
static char *guarded_file(size_t size, int *fd)
{
	size_t len = size + 2 * GUARD;
	char *block = MAP_FAILED;

	*fd = memfd_create("contract", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	if (*fd >= 0 && !ftruncate(*fd, (off_t)len) && !fcntl(*fd, F_ADD_SEALS, F_SEAL_GROW | F_SEAL_SHRINK))
		block = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_SHARED, *fd, 0);
	if (block == MAP_FAILED)
		abort();
	memset(block, 0x77, GUARD);
	memset(block + GUARD + size, 0x77, GUARD);
	return block + GUARD;
}

static bool guards_hold(const char *at, size_t size)
{
	return all(at - GUARD, GUARD, 0x77) && all(at + size, GUARD, 0x77);
}

static const size_t sizes[] = { 0, 1, 7, 8, 9, 64, 4095, 4096, 65537, BIG };

/* The largest costs most: on sim only some seeds try it. */
static int size_count(const struct bench *s) { return (int)TT_COUNT(sizes) - (s->t == &tt_sim && s->seed % 64 != 3); }

static size_t largest(const struct bench *s) { return sizes[size_count(s) - 1]; }

static uint64_t chance(struct bench *s, uint64_t n) { return tt_random_below(&s->random, n); }

/* ---- events ---- */

static void note(struct bench *s, struct record r)
{
	if (s->logged == s->logged_max) {
		s->logged_max = s->logged_max * 2 + 64;
		s->log = realloc(s->log, (size_t)s->logged_max * sizeof *s->log);
	}
	s->log[s->logged++] = r;
}

static void note_event(struct tt_peer *p, enum what what, int value, const void *bytes, size_t len)
{
	struct side *side = p->net->user;
	struct bench *s = side->bench;

	CHECK(s->inside == p->net);
	CHECK(!s->posting);
	note(s, (struct record){ what, side, p, NULL, value, len });
	if (what == UP)
		side->peer = p;
	if (side->hook)
		side->hook(side, p, what, bytes, what == NOTIFY ? (size_t)value : len);
}

static void on_up(struct tt_peer *p) { note_event(p, UP, 0, NULL, 0); }
static void on_message(struct tt_peer *p, const void *bytes, size_t len) { note_event(p, MESSAGE, 0, bytes, len); }
static void on_notify(struct tt_peer *p, uint32_t value) { note_event(p, NOTIFY, (int)value, NULL, 0); }
static void on_down(struct tt_peer *p, int err) { note_event(p, DOWN, err, NULL, 0); }
static const struct tt_events events = { on_up, on_message, on_notify, on_down };

static int count(const struct bench *s, enum what what, const struct side *side)
{
	int n = 0;

	for (int i = 0; i < s->logged; i++)
		n += s->log[i].what == what && s->log[i].side == side;
	return n;
}

static const struct record *nth(const struct bench *s, enum what what, const struct side *side, int n)
{
	static const struct record none;

	for (int i = 0; i < s->logged; i++)
		if (s->log[i].what == what && s->log[i].side == side && !n--)
			return &s->log[i];
	return &none;
}

/* ---- turning the crank ---- */

struct patience {
	uint64_t until;
};

static unsigned slowness = 1; /* of soft adapters in a guest on a busy machine: 6 */

static struct patience wait_ms(const struct bench *s, unsigned tcp_ms)
{
	return (struct patience){ tt_now() + (s->t == &tt_sim ? 10000 : slowness * tcp_ms) * TT_MS };
}

static void progress(struct bench *s, struct side *side, int *handled)
{
	const struct tt_net *before = s->inside;

	s->inside = side->net;
	int n = s->t->progress(side->net);
	s->inside = before;
	CHECK(n >= 0);
	*handled += n;
}

/* Progresses every net once; when nothing happened, arms them and sleeps. false: the time is over, or all is lost. */
static bool turn(struct bench *s, struct patience *p)
{
	int handled = 0, fds[3], n = 0, busy = 0;

	for (int i = 0; i < 3; i++)
		if (s->side[i].net && !s->side[i].asleep)
			progress(s, &s->side[i], &handled);
	if (s->failed || tt_now() >= p->until)
		return false;
	if (handled || s->never_arm)
		return true;
	for (int i = 0; i < 3; i++)
		if (s->side[i].net && !s->side[i].asleep) {
			busy |= s->t->arm(s->side[i].net);
			fds[n++] = s->side[i].net->fd;
		}
	/* progress() sees to a real wire's timeouts */
	uint64_t soon = s->t == &tt_sim ? TT_NEVER : tt_now() + 10 * TT_MS;
	if (!busy)
		tt_sleep(&s->sleeper, fds, n, tt_min(soon, p->until));
	return true;
}

#define UNTIL(condition) \
	do { \
		struct patience patience_ = wait_ms(s, 5000); \
		while (!(condition) && turn(s, &patience_)) \
			; \
		CHECK(condition); \
	} while (0)

/* Long enough for whatever was going to happen. */
static void settle(struct bench *s)
{
	struct patience p = { tt_now() + (s->t == &tt_sim ? 50 : 4) * TT_MS };

	while (turn(s, &p))
		;
}

static void some_turns(struct bench *s, unsigned most)
{
	struct patience p = wait_ms(s, 5);

	for (uint64_t n = chance(s, most + 1); n && turn(s, &p); n--)
		;
}

/* ---- sides ---- */

static struct tt_region *enroll(struct bench *s, struct side *side, char *at, size_t len, int remote)
{
	bool file = side->fd >= 0 && at == side->window;
	struct tt_mem mem = { .base = at, .len = len, .gpu = -1, .fd = file ? side->fd : -1,
		               .fd_offset = file ? GUARD : 0 };
	struct tt_region *r = NULL;

	struct tt_pin *pin = NULL;

	if (side->net->transport->pin) /* until the net is closed */
		CHECK(side->net->transport->pin(side->net, &mem, remote, &pin) == 0);
	CHECK(s->t->reg(side->net, &mem, remote, pin, &r) == 0);
	return r;
}

/* The memory is ours alone again. */
static void withdraw(struct tt_region *r)
{
	const struct tt_transport *t = r->net->transport;
	struct tt_pin *pin = r->pin;

	t->dereg(r);
	if (pin)
		t->unpin(pin);
}

/* The device of the ith net. */
static const char *choose_device(const struct bench *s, int i, char *room, size_t size)
{
	const char *at = s->wire->devices;
	int n = 1;

	if (!at)
		return NULL;
	for (const char *c = at; *c; c++)
		n += *c == ',';
	for (i %= n; i; i--)
		at = strchr(at, ',') + 1;
	snprintf(room, size, "%.*s", (int)strcspn(at, ","), at);
	return room;
}

static bool open_side(struct bench *s, int i)
{
	struct side *side = &s->side[i];
	struct tt_net_config config = {
		.events = &events, .listen = s->listen, .listen_fd = -1, .secret = s->secret[i], .user = side,
		.secret_len = s->secret[i] ? strlen(s->secret[i]) : 0, .job = s->job[i], .epoch = 1,
		.timeout_ms = s->timeout_ms,
	};
	char device[64];

	config.device = choose_device(s, i, device, sizeof device);
	side->bench = s;
	if (s->t->open(&config, &side->net)) {
		side->net = NULL;
		return false;
	}
	side->fd = -1;
	side->window = s->files ? guarded_file(s->size, &side->fd) : guarded(s->size);
	side->local = guarded(s->size);
	side->window_region = enroll(s, side, side->window, s->size, 1);
	side->local_region = enroll(s, side, side->local, s->size, 0);
	if (side->window_region)
		side->key = side->window_region->key;
	return true;
}

static void close_side(struct bench *s, struct side *side)
{
	if (!side->net)
		return;
	s->inside = side->net;
	s->t->close(side->net);
	s->inside = NULL;
	side->net = NULL;
	side->peer = NULL;
}

static void disconnect(struct bench *s, struct side *side)
{
	s->inside = side->net;
	s->t->disconnect(side->peer);
	s->inside = NULL;
	side->peer = NULL;
}

static void connect_side(struct bench *s, struct side *from, const char *addr)
{
	from->peer = NULL;
	CHECK(s->t->connect(from->net, addr, &from->peer) == 0);
}

static bool prepare(struct bench *s, size_t size)
{
	s->size = size;
	CHECK(open_side(s, 0));
	CHECK(s->failed || open_side(s, 1));
	return !s->failed;
}

/* Two nets, connected. */
static bool begin(struct bench *s, size_t size)
{
	if (!prepare(s, size))
		return false;
	connect_side(s, &s->side[0], s->side[1].net->addr);
	UNTIL(count(s, UP, &s->side[0]) && count(s, UP, &s->side[1]));
	CHECK(s->failed || s->side[0].peer == nth(s, UP, &s->side[0], 0)->peer);
	return !s->failed;
}

/* A third one, connected to the second; the second's `peer` stays what it was. */
static bool join_third(struct bench *s)
{
	struct tt_peer *kept = s->side[1].peer;
	int before = count(s, UP, &s->side[1]);

	CHECK(open_side(s, 2));
	if (s->failed)
		return false;
	connect_side(s, &s->side[2], s->side[1].net->addr);
	UNTIL(count(s, UP, &s->side[2]) && count(s, UP, &s->side[1]) > before);
	s->side[1].peer = kept;
	return !s->failed;
}

static void drop_file(struct side *side, size_t size)
{
	munmap(side->window - GUARD, size + 2 * GUARD);
	close(side->fd);
}

static void end(struct bench *s)
{
	for (int i = 0; i < 3; i++)
		close_side(s, &s->side[i]);
	for (int i = 0; i < 3; i++)
		if (s->side[i].window) {
			CHECK(guards_hold(s->side[i].window, s->size) && guards_hold(s->side[i].local, s->size));
			if (s->side[i].fd >= 0)
				drop_file(&s->side[i], s->size);
			else
				free(s->side[i].window - GUARD);
			free(s->side[i].local - GUARD);
		}
	for (struct call *c = s->calls, *older; c; c = older) {
		older = c->older;
		CHECK(c->dones == c->posted); /* exactly one done for each op */
		free(c);
	}
	free(s->log);
}

/* ---- calls ---- */

static void call_done(struct tt_op *op)
{
	struct call *c = (struct call *)op;
	struct bench *s = c->side->bench;

	CHECK(!s->posting);
	CHECK(s->inside == c->side->net);
	CHECK(++c->dones == 1);
	if (c->dones != 1)
		return;
	c->err = op->err;
	c->result = op->operand;
	CHECK(c->err <= 0);
	memset(op, 0x5a, sizeof *op); /* ours again: the transport must not look at it */
	op->done = call_done;
	if (c->scribble)
		memset(c->local, 0xdb, c->len);
	note(s, (struct record){ DONE, c->side, NULL, c, c->err, c->len });
	if (c->then)
		c->then(c);
}

/* To or from `at` in the window of side 1 (for side 1: of side 0). Memory is named by its region where it must be, else
 * by chance. */
static struct call *make_call(struct side *side, enum tt_kind kind, uint32_t flags, size_t at, char *local, size_t len)
{
	struct bench *s = side->bench;
	struct call *c = calloc(1, sizeof *c);
	struct side *target = &s->side[side == &s->side[1] ? 0 : 1];

	c->side = side;
	c->local = local;
	c->len = len;
	c->err = 1;
	c->op = (struct tt_op){ .kind = kind, .flags = flags, .local = local, .len = len, .key = &target->key,
	                        .offset = at, .done = call_done };
	if (kind != TT_ADD && (len > side->net->copy_max || chance(s, 2)))
		c->op.region = side->local_region;
	c->older = s->calls;
	s->calls = c;
	return c;
}

static struct call *post(struct call *c)
{
	struct bench *s = c->side->bench;

	c->posted = true;
	s->posting++;
	s->t->post(c->side->peer, &c->op);
	s->posting--;
	return c;
}

static void post_all(struct call **calls, int n)
{
	for (int i = 0; i < n; i++)
		post(calls[i]);
}

static struct call *put(struct side *side, uint32_t flags, size_t at, char *local, size_t len)
{
	return post(make_call(side, TT_PUT, flags, at, local, len));
}

static struct call *get(struct side *side, uint32_t flags, size_t at, char *local, size_t len)
{
	return post(make_call(side, TT_GET, flags, at, local, len));
}

static struct call *send_bytes(struct side *side, char *local, size_t len)
{
	return post(make_call(side, TT_SEND, 0, 0, local, len));
}

static struct call *make_notify(struct side *side, size_t at, char *local, size_t len, uint32_t value)
{
	struct call *c = make_call(side, TT_PUT, TT_NOTIFY, at, local, len);

	c->op.notify = value;
	return c;
}

static struct call *make_add(struct side *side, size_t at, uint64_t operand)
{
	struct call *c = make_call(side, TT_ADD, 0, at, NULL, 8);

	c->op.operand = operand;
	return c;
}

static bool ended(const struct bench *s)
{
	for (const struct call *c = s->calls; c; c = c->older)
		if (c->posted && !c->dones)
			return false;
	return true;
}

#define ENDED_WELL(which) \
	do { \
		struct call *call_ = (which); \
		UNTIL(call_->dones); \
		CHECK(call_->err == 0); \
	} while (0)

/* ---- completion ---- */

static void test_one_done(struct bench *s)
{
	struct call *calls[2][40], *c;
	int n[2] = { 0 };

	if (!begin(s, 65536))
		return;
	for (int i = 0; i < 40; i++) {
		size_t who = chance(s, 2), len = chance(s, 1024);
		struct side *from = &s->side[who];
		switch (chance(s, 4)) {
		case 0:
			c = make_call(from, TT_PUT, (uint32_t)chance(s, 8), chance(s, 1000), from->local, len);
			break;
		case 1:
			c = make_call(from, TT_GET, (uint32_t)chance(s, 2) * TT_LAZY, chance(s, 1000),
			              from->local + 2048, len);
			break;
		case 2:
			c = make_call(from, TT_SEND, (uint32_t)chance(s, 2) * TT_LAZY, 0, from->local, len);
			break;
		default:
			c = make_add(from, 8 * chance(s, 100), 1);
		}
		calls[who][n[who]++] = c;
	}
	for (int k = 0; k < 2; k++)
		if (n[k])
			post_all(calls[k], n[k]);
	UNTIL(ended(s));
	settle(s);
	for (c = s->calls; c; c = c->older)
		CHECK(c->err == 0 && c->dones == 1);
}

/* call_done() itself checks where it is called from: here every way in which an op can end. */
static void test_done_outside_post(struct bench *s)
{
	if (!begin(s, 4096))
		return;
	struct side *a = &s->side[0];
	put(a, 0, 0, a->local, 0);
	put(a, 0, 0, a->local, 8);
	put(a, TT_LAZY, 0, a->local, 8);
	send_bytes(a, a->local, 0);
	send_bytes(a, a->local, 100);
	get(a, 0, 0, a->local, 8);
	post(make_add(a, 0, 1));
	post(make_add(a, 4, 1));
	put(a, 0, 5000, a->local, 8);
	post(make_notify(a, 0, a->local, 8, 1 << 24));
	UNTIL(ended(s));
	close_side(s, &s->side[1]);
	UNTIL(count(s, DOWN, a));
	put(a, 0, 0, a->local, 8);
	UNTIL(ended(s));
}

static uint32_t any_end(struct bench *s) /* of a PUT */
{
	static const uint32_t flags[] = { 0, TT_LAZY, TT_LOCAL };

	return flags[chance(s, 3)];
}

static void test_source_untouched(struct bench *s)
{
	if (!begin(s, largest(s) + 8))
		return;
	struct side *a = &s->side[0], *b = &s->side[1];
	for (int i = 0; i < size_count(s); i++) {
		size_t len = sizes[i];
		fill(a->local, len, (unsigned)i);
		struct call *c = make_call(a, TT_PUT, any_end(s), 8, a->local, len);
		c->scribble = true;
		post(c);
		ENDED_WELL(c);
		post(make_notify(a, 0, a->local, 0, (uint32_t)i + 1));
		UNTIL(count(s, NOTIFY, b) == i + 1);
		CHECK(holds(b->window + 8, len, (unsigned)i));
		CHECK(all(a->local, len, 0xdb));
	}
}

static void check_pattern(struct side *b, struct tt_peer *p, enum what what, const char *bytes, size_t len)
{
	struct bench *s = b->bench;

	(void)p;
	if (what == MESSAGE)
		CHECK(holds(bytes, len, (unsigned)b->left++));
}

static void test_message_source_untouched(struct bench *s)
{
	if (!begin(s, 4096))
		return;
	struct side *a = &s->side[0], *b = &s->side[1];
	b->hook = check_pattern;
	for (int i = 0; i < 8; i++) {
		struct call *c = make_call(a, TT_SEND, chance(s, 2) ? TT_LAZY : 0, 0, a->local, 1 + chance(s, 1000));
		fill(a->local, c->len, (unsigned)i);
		c->scribble = true;
		post(c);
		ENDED_WELL(c);
	}
	UNTIL(count(s, MESSAGE, b) == 8);
}

static void test_message_bytes(struct bench *s)
{
	if (!begin(s, TT_MESSAGE_MAX))
		return;
	struct side *a = &s->side[0], *b = &s->side[1];
	b->hook = check_pattern;
	const size_t max = TT_MESSAGE_MAX, lens[] = { 0, 1, 7, 8, 63, 64, 65, 1023, 1024, max / 2, max - 1, max };
	for (size_t i = 0; i < TT_COUNT(lens); i++) {
		fill(a->local, lens[i], (unsigned)b->left);
		struct call *c = make_call(a, TT_SEND, chance(s, 2) ? TT_LAZY : 0, 0, a->local, lens[i]);
		c->scribble = true;
		post(c);
		UNTIL(c->dones && count(s, MESSAGE, b) == (int)i + 1);
		CHECK(c->err == 0 && nth(s, MESSAGE, b, (int)i)->len == lens[i]);
	}
}

static void test_destination_untouched(struct bench *s)
{
	if (!begin(s, largest(s) + 8))
		return;
	struct side *a = &s->side[0], *b = &s->side[1];
	for (int i = 0; i < size_count(s); i++) {
		fill(b->window + 3, sizes[i], (unsigned)i);
		struct call *c = get(a, 0, 3, a->local, sizes[i]);
		ENDED_WELL(c);
		CHECK(holds(a->local, sizes[i], (unsigned)i));
		memset(a->local, 0x11, sizes[i]);
		some_turns(s, 3);
		CHECK(all(a->local, sizes[i], 0x11));
	}
	settle(s);
	CHECK(all(a->local, largest(s), 0x11));
}

static void overwrite(struct call *c) { memset(c->local, 0x22, c->len); }

static void test_untouched_after_error(struct bench *s)
{
	if (!begin(s, 1 << 20))
		return;
	struct side *a = &s->side[0], *b = &s->side[1];
	for (size_t i = 0; i < 4; i++) {
		struct call *c = make_call(a, TT_GET, 0, 0, a->local + i * 200000, 200000);
		c->then = overwrite;
		post(c);
	}
	some_turns(s, 4);
	if (chance(s, 2))
		disconnect(s, a);
	else
		close_side(s, b);
	UNTIL(ended(s));
	settle(s);
	CHECK(all(a->local, 800000, 0x22));
}

static bool word_is(const char *at, uint64_t value) { return !memcmp(at, &value, 8); }

static void test_done_then_notify(struct bench *s)
{
	if (!begin(s, TT_MESSAGE_MAX + 8))
		return;
	struct side *a = &s->side[0], *b = &s->side[1];
	for (int i = 0; i < 8; i++) {
		size_t len = 1 + chance(s, 65536);
		fill(a->local, len, (unsigned)i);
		struct call *c = put(a, 0, 5, a->local, len);
		ENDED_WELL(c);
		if (i % 2)
			post(make_notify(a, 0, a->local, 0, 7));
		else
			send_bytes(a, a->local, 0);
		UNTIL(count(s, NOTIFY, b) + count(s, MESSAGE, b) == i + 1);
		CHECK(holds(b->window + 5, len, (unsigned)i));
	}
}

static void test_done_then_get(struct bench *s)
{
	if (!begin(s, 2 * 65536))
		return;
	struct side *a = &s->side[0];
	for (int i = 0; i < 8; i++) {
		size_t len = 1 + chance(s, 65536);
		fill(a->local, len, (unsigned)i);
		memset(a->local + 65536, 0, len);
		struct call *c = put(a, chance(s, 2) ? TT_LAZY : 0, 9, a->local, len);
		ENDED_WELL(c);
		memset(a->local, 0xee, len);
		c = get(a, 0, 9, a->local + 65536, len);
		ENDED_WELL(c);
		CHECK(holds(a->local + 65536, len, (unsigned)i));
	}
}

static void test_done_then_add(struct bench *s)
{
	if (!begin(s, 4096))
		return;
	struct side *a = &s->side[0];
	for (uint64_t i = 1; i < 8; i++) {
		memcpy(a->local, &i, 8);
		struct call *c = put(a, 0, 16, a->local, 8);
		ENDED_WELL(c);
		c = post(make_add(a, 16, 100));
		ENDED_WELL(c);
		CHECK(c->result == i);
	}
}

/* The thread of done() itself posts what must see the bytes. */
static void notify_next(struct call *c) { post(make_notify(c->side, 0, c->local, 0, (uint32_t)c->len)); }

static void check_window(struct side *b, struct tt_peer *p, enum what what, const char *bytes, size_t len)
{
	struct bench *s = b->bench;

	(void)p, (void)bytes;
	if (what == NOTIFY)
		CHECK(holds(b->window, len, 3));
}

static void test_done_then_notify_at_once(struct bench *s)
{
	if (!begin(s, 65536))
		return;
	struct side *a = &s->side[0], *b = &s->side[1];
	b->hook = check_window;
	fill(a->local, 65536, 3);
	for (int i = 0; i < 4; i++) {
		memset(b->window, 0, 65536);
		struct call *c = make_call(a, TT_PUT, 0, 0, a->local, 1 + chance(s, 65535));
		c->then = notify_next;
		post(c);
		UNTIL(count(s, NOTIFY, b) == i + 1 && ended(s));
	}
}

/* ---- ordering ---- */

static void check_slots(struct side *b, struct tt_peer *p, enum what what, const char *bytes, size_t len)
{
	struct bench *s = b->bench;
	size_t slot = what == NOTIFY ? len : what == MESSAGE ? (uint8_t)*bytes : 0;

	(void)p;
	for (size_t i = 0; i < slot; i++)
		CHECK(holds(b->window + i * 8192, 8000, (unsigned)i));
}

static void announce_puts(struct bench *s, bool by_message)
{
	struct call *calls[16];

	if (!begin(s, 8 * 8192 + 64))
		return;
	struct side *a = &s->side[0], *b = &s->side[1];
	b->hook = check_slots;
	for (int i = 0; i < 8; i++) {
		char *local = a->local + i * 8192, *name = a->local + 8 * 8192 + i;
		fill(local, 8000, (unsigned)i);
		*name = (char)(i + 1);
		calls[2 * i] = make_call(a, TT_PUT, any_end(s), (size_t)i * 8192, local, 8000);
		calls[2 * i + 1] = by_message ? make_call(a, TT_SEND, 0, 0, name, 1) :
		                   make_notify(a, 0, local, 0, (uint32_t)i + 1);
	}
	post_all(calls, 16);
	UNTIL(count(s, by_message ? MESSAGE : NOTIFY, b) == 8 && ended(s));
}

static void test_message_after_puts(struct bench *s) { announce_puts(s, true); }
static void test_notify_after_puts(struct bench *s) { announce_puts(s, false); }

static void check_own_data(struct side *b, struct tt_peer *p, enum what what, const char *bytes, size_t len)
{
	struct bench *s = b->bench;

	(void)p, (void)bytes;
	if (what == NOTIFY && len < TT_COUNT(sizes))
		CHECK(holds(b->window, sizes[len], 40 + (unsigned)len));
}

static void test_notify_after_own_data(struct bench *s)
{
	if (!begin(s, largest(s)))
		return;
	struct side *a = &s->side[0], *b = &s->side[1];
	b->hook = check_own_data;
	for (int i = 0; i < size_count(s); i++) {
		fill(a->local, sizes[i], 40 + (unsigned)i);
		post(make_notify(a, 0, a->local, sizes[i], (uint32_t)i));
		UNTIL(count(s, NOTIFY, b) == i + 1 && ended(s));
		CHECK(nth(s, NOTIFY, b, i)->value == i);
	}
}

static void check_turn(struct side *b, struct tt_peer *p, enum what what, const char *bytes, size_t len)
{
	struct bench *s = b->bench;

	(void)p;
	if (what == MESSAGE)
		CHECK(len == 4 && !memcmp(bytes, &b->left, 4));
	else if (what == NOTIFY)
		CHECK((int)len == b->left);
	b->left++;
}

static void test_posted_order(struct bench *s)
{
	struct call *calls[100];
	int numbers[100];

	if (!begin(s, 4096))
		return;
	struct side *a = &s->side[0], *b = &s->side[1];
	b->hook = check_turn;
	for (int i = 0; i < 100; i++) {
		numbers[i] = i;
		calls[i] = chance(s, 2) ? make_call(a, TT_SEND, 0, 0, (char *)&numbers[i], 4) :
		                          make_notify(a, chance(s, 2000), a->local, chance(s, 2000), (uint32_t)i);
		if (calls[i]->op.kind == TT_SEND)
			calls[i]->op.region = NULL;
	}
	for (int i = 0; i < 100; i += 20) {
		post_all(calls + i, 20);
		some_turns(s, 2);
	}
	UNTIL(b->left == 100 && ended(s));
}

static void check_numbered(struct side *b, struct tt_peer *p, enum what what, const char *bytes, size_t len)
{
	struct bench *s = b->bench;

	(void)p;
	if (what == MESSAGE)
		CHECK(len >= 4 && !memcmp(bytes, &b->left, 4) && holds(bytes + 4, len - 4, (unsigned)b->left));
	else if (what == NOTIFY)
		CHECK((int)len == b->left);
	b->left++;
}

/* A message or a notify with that number, at once or posted. Returns whether the net would not take it at once. */
static bool say_number(struct bench *s, struct side *a, int i, char *bytes)
{
	static const size_t lengths[] = { 4, 40, 41, 5000 };
	size_t len = lengths[chance(s, TT_COUNT(lengths))], head = chance(s, len + 1);
	bool at_once = chance(s, 4);

	memcpy(bytes, &i, 4);
	fill(bytes + 4, len - 4, (unsigned)i);
	if (chance(s, 4) == 0) {
		if (at_once && s->t->notify(a->peer, (uint32_t)i))
			return false;
		post(make_notify(a, 0, a->local, 0, (uint32_t)i));
	} else if (!at_once || !s->t->send(a->peer, bytes, head, bytes + head, len - head)) {
		struct call *c = make_call(a, TT_SEND, 0, 0, bytes, len);
		c->op.region = NULL;
		post(c);
	} else {
		memset(bytes, 0, len);
		return false;
	}
	return at_once;
}

static void hear_peer(struct bench *s, struct side *side)
{
	s->inside = side->net;
	s->t->hear(side->peer);
	s->inside = NULL;
}

/* Until the lane is full, and then in its order behind what was posted; b reads nothing but what hear() finds. */
static void test_send_at_once(struct bench *s)
{
	enum { NUMBERS = 900, ROOM = 5000 };
	char *bytes = malloc(NUMBERS * ROOM);
	int full = 0;

	if (begin(s, 65536)) {
		struct side *a = &s->side[0], *b = &s->side[1];
		b->hook = check_numbered;
		b->asleep = true;
		for (int i = 0; i < NUMBERS && !s->failed; i++) {
			full += say_number(s, a, i, bytes + i * ROOM);
			for (int k = 0; i > NUMBERS / 2 && k < 3; k++) {
				hear_peer(s, b);
				some_turns(s, 1);
			}
		}
		CHECK(full > 0);
		UNTIL((hear_peer(s, b), b->left == NUMBERS));
		b->asleep = false;
		UNTIL(ended(s));
	}
	free(bytes);
}

/* A net that has armed itself does not miss what is sent at once. */
static void test_send_wakes(struct bench *s)
{
	if (!begin(s, 4096))
		return;
	struct side *a = &s->side[0], *b = &s->side[1];
	struct pollfd f = { .fd = b->net->fd, .events = POLLIN };
	settle(s);
	for (int i = 0, none = 0; i < 20 && !s->failed; i++) {
		UNTIL(!s->t->arm(b->net) && poll(&f, 1, 0) == 0);
		CHECK(s->t->send(a->peer, &i, sizeof i, &none, sizeof none));
		CHECK(poll(&f, 1, 5000) == 1);
		UNTIL(count(s, MESSAGE, b) == i + 1);
	}
}

/* Both ways at once: neither direction waits for the other. */
static void test_both_ways(struct bench *s)
{
	if (!begin(s, 65536))
		return;
	struct side *a = &s->side[0], *b = &s->side[1];
	for (int i = 0; i < 8; i++)
		for (int k = 0; k < 2; k++) {
			struct side *from = &s->side[k];
			fill(from->local, 60000, (unsigned)k);
			put(from, 0, 0, from->local, 60000);
			post(make_notify(from, 0, from->local, 0, (uint32_t)i));
		}
	UNTIL(count(s, NOTIFY, a) == 8 && count(s, NOTIFY, b) == 8 && ended(s));
	CHECK(holds(a->window, 60000, 1) && holds(b->window, 60000, 0));
}

/* ---- the owner's other thread: real ones, so on tcp alone ---- */

enum { THREAD_ADDS = 10000, THREAD_WORDS = 4000 };
static const uint64_t halves[] = { 0x1111111111111111, 0xeeeeeeeeeeeeeeee };

struct owner {
	pthread_t thread;
	uint64_t *flips, *watched; /* what it writes, or NULL, and what it reads */
	uint64_t *flips_all;
	size_t words;
	uint64_t adds, torn;       /* what it did and saw: to be looked at when it has ended */
	bool runs, stop;
};

static bool goes_on(struct owner *o)
{
	__atomic_store_n(&o->runs, true, __ATOMIC_RELEASE);
	return !__atomic_load_n(&o->stop, __ATOMIC_ACQUIRE);
}

static void *add_and_add(void *arg)
{
	struct owner *o = arg;

	for (; goes_on(o); o->adds++)
		__atomic_fetch_add(o->watched, 1, __ATOMIC_RELAXED);
	return NULL;
}

static void *flip_all(void *arg)
{
	struct owner *o = arg;

	for (unsigned k = 0; goes_on(o); k++)
		for (size_t i = 0; i < o->words; i++)
			__atomic_store_n(&o->flips_all[i], halves[k % 2], __ATOMIC_RELAXED);
	return NULL;
}

static void *flip_and_watch(void *arg)
{
	struct owner *o = arg;

	for (unsigned i = 0; goes_on(o); i++) {
		uint64_t now = __atomic_load_n(o->watched, __ATOMIC_RELAXED);
		o->torn += now != halves[0] && now != halves[1];
		if (o->flips && i % 8 == 0)
			__atomic_store_n(o->flips, halves[i / 8 % 2], __ATOMIC_RELAXED);
	}
	return NULL;
}

/* Gives the thread a CPU of its own, if there are two: left alone, they often share one, and never meet. */
static void part_from(pthread_t thread, const cpu_set_t *allowed)
{
	int cpu = 0, here = sched_getcpu();
	cpu_set_t own, rest = *allowed;

	while (cpu < CPU_SETSIZE && (cpu == here || !CPU_ISSET(cpu, allowed)))
		cpu++;
	if (cpu == CPU_SETSIZE)
		return;
	CPU_ZERO(&own);
	CPU_SET(cpu, &own);
	CPU_CLR(cpu, &rest);
	pthread_setaffinity_np(thread, sizeof own, &own);
	if (CPU_COUNT(&rest))
		pthread_setaffinity_np(pthread_self(), sizeof rest, &rest);
}

/* Posts the ops while the thread runs, and ends it when they have ended. */
static void post_beside(struct bench *s, struct owner *o, void *(*body)(void *), struct call **calls, int n)
{
	bool started = !pthread_create(&o->thread, NULL, body, o), never_arm = s->never_arm;
	cpu_set_t allowed;

	CHECK(started);
	CPU_ZERO(&allowed);
	pthread_getaffinity_np(pthread_self(), sizeof allowed, &allowed);
	if (started)
		part_from(o->thread, &allowed);
	while (started && !__atomic_load_n(&o->runs, __ATOMIC_ACQUIRE))
		;
	s->never_arm = true;
	post_all(calls, n);
	UNTIL(ended(s));
	s->never_arm = never_arm;
	__atomic_store_n(&o->stop, true, __ATOMIC_RELEASE);
	if (started)
		pthread_join(o->thread, NULL);
	if (CPU_COUNT(&allowed))
		pthread_setaffinity_np(pthread_self(), sizeof allowed, &allowed);
}

static void add_beside_owner(struct bench *s)
{
	struct call *calls[THREAD_ADDS];
	uint64_t *word = (uint64_t *)(void *)(s->side[1].window + 512);
	struct owner o = { .watched = word };

	for (int i = 0; i < THREAD_ADDS; i++)
		calls[i] = make_add(&s->side[0], 512, 1);
	post_beside(s, &o, add_and_add, calls, THREAD_ADDS);
	CHECK(*word == THREAD_ADDS + o.adds);
	for (int i = 1; i < THREAD_ADDS; i++)
		CHECK(calls[i - 1]->result < calls[i]->result); /* old values only grow */
}

/* PUTs of two steady words, or of one that flips; GETs of one that flips. Nobody ever sees a third value. */
static void words_beside_owner(struct bench *s, enum tt_kind kind, bool flips)
{
	struct call *calls[THREAD_WORDS];
	struct side *a = &s->side[0], *b = &s->side[1];
	uint64_t *mine = (uint64_t *)(void *)(a->local + 1024), *theirs = (uint64_t *)(void *)(b->window + 1024);
	struct owner o = { .watched = kind == TT_PUT ? theirs : mine };

	mine[0] = theirs[0] = halves[0];
	mine[1] = halves[1];
	if (flips)
		o.flips = kind == TT_PUT ? mine : theirs;
	for (int i = 0; i < THREAD_WORDS; i++)
		calls[i] = make_call(a, kind, 0, 1024, (char *)&mine[flips ? 0 : i % 2], 8);
	post_beside(s, &o, flip_and_watch, calls, THREAD_WORDS);
	for (int i = 0; i < THREAD_WORDS; i++)
		CHECK(calls[i]->err == 0);
	CHECK(o.torn == 0);
}

/* ---- tearing ---- */

static void test_word_is_whole(struct bench *s)
{
	struct patience p = wait_ms(s, 5000);

	if (!begin(s, 4096))
		return;
	struct side *a = &s->side[0], *b = &s->side[1];
	uint64_t *sources = (uint64_t *)(void *)a->local, *results = sources + 64;
	uint64_t *word = (uint64_t *)(void *)(b->window + 128);
	*word = halves[0];
	for (int i = 0; i < 32; i++) {
		sources[i] = halves[i % 2];
		results[i] = 0;
		put(a, 0, 128, (char *)&sources[i], 8);
		get(a, 0, 128, (char *)&results[i], 8);
	}
	while (!ended(s) && turn(s, &p)) {
		uint64_t now = __atomic_load_n(word, __ATOMIC_RELAXED);
		CHECK(now == halves[0] || now == halves[1]);
	}
	for (int i = 0; i < 32; i++)
		CHECK(results[i] == halves[0] || results[i] == halves[1]);
	CHECK(ended(s));
	if (s->t == &tt_sim)
		return;
	words_beside_owner(s, TT_PUT, false);
	words_beside_owner(s, TT_PUT, true);
	words_beside_owner(s, TT_GET, true);
}

/* To where no word begins, while another thread of the owner changes them. Its other bytes belong to nobody. */
static void words_to_odd_places(struct bench *s)
{
	enum { WORDS = 4096 / 8 + 1, GETS = 300 };
	struct side *a = &s->side[0], *b = &s->side[1];
	struct owner o = { .flips_all = (uint64_t *)(void *)b->window, .words = WORDS };
	struct call *calls[GETS];
	uint64_t got;

	for (int i = 0; i < WORDS; i++)
		o.flips_all[i] = halves[0];
	for (int i = 0; i < GETS; i++)
		calls[i] = make_call(a, TT_GET, 0, 0, a->local + (size_t)i * 8 * (WORDS + 2) + 3, 8 * WORDS);
	post_beside(s, &o, flip_all, calls, GETS);
	for (int i = 0; i < GETS; i++)
		for (size_t k = 0; k < WORDS; k++) {
			memcpy(&got, a->local + (size_t)i * 8 * (WORDS + 2) + 3 + 8 * k, 8);
			CHECK(got == halves[0] || got == halves[1]);
		}
}

/* The owner goes on changing all of them. */
static void test_get_of_words(struct bench *s)
{
	size_t words = s->t == &tt_sim ? 500 : BIG / 8;
	struct patience p = wait_ms(s, 20000);

	if (!begin(s, words * 8))
		return;
	struct side *a = &s->side[0], *b = &s->side[1];
	uint64_t *owned = (uint64_t *)(void *)b->window, *got = (uint64_t *)(void *)a->local;
	for (int round = 0; round < 4; round++) {
		get(a, 0, 0, a->local, words * 8);
		for (int k = 0; !ended(s) && turn(s, &p); k++)
			for (size_t i = 0; i < words; i++)
				owned[i] = halves[k % 2];
		CHECK(ended(s));
		for (size_t i = 0; i < words; i++)
			CHECK(got[i] == halves[0] || got[i] == halves[1] || !got[i]);
	}
	s->never_arm = true; /* the owner computes: it changes them while a piece is here and the next one is not */
	for (size_t first = 1; first < 8; first += 3) { /* from within a word to within another */
		get(a, 0, first, a->local + first, words * 8 - 9);
		for (int k = 0; !ended(s) && turn(s, &p); k++)
			for (size_t i = 0; i < words; i++)
				owned[i] = halves[k % 2];
		CHECK(ended(s));
		for (size_t i = 1; i < words - 2; i++)
			CHECK(got[i] == halves[0] || got[i] == halves[1]);
	}
	s->never_arm = false;
	if (s->t == &tt_shm)
		words_to_odd_places(s);
}

static void test_sizes(struct bench *s)
{
	if (!begin(s, largest(s) + 64))
		return;
	struct side *a = &s->side[0], *b = &s->side[1];
	for (int i = 0; i < size_count(s); i++) {
		size_t len = sizes[i], at = chance(s, 64);
		memset(b->window, 0, len + 64);
		fill(a->local, len, 50);
		ENDED_WELL(put(a, 0, at, a->local, len));
		post(make_notify(a, 0, a->local, 0, 1));
		UNTIL(count(s, NOTIFY, b) == i + 1);
		CHECK(holds(b->window + at, len, 50) && all(b->window, at, 0) && all(b->window + at + len, 64 - at, 0));
		memset(a->local, 0, len + 1);
		ENDED_WELL(get(a, 0, at, a->local, len));
		CHECK(holds(a->local, len, 50) && a->local[len] == 0);
	}
}

/* ---- ADD ---- */

static void test_add(struct bench *s)
{
	if (!begin(s, 4096))
		return;
	struct side *a = &s->side[0], *b = &s->side[1];
	uint64_t start = UINT64_MAX - 2;
	memcpy(b->window + 8, &start, 8);
	struct call *c = post(make_add(a, 8, 5));
	ENDED_WELL(c);
	CHECK(c->result == start);
	CHECK(word_is(b->window + 8, 2)); /* it wraps */
	c = post(make_add(a, 8, (uint64_t)-1));
	ENDED_WELL(c);
	CHECK(c->result == 2 && word_is(b->window + 8, 1));
	CHECK(word_is(b->window, 0) && word_is(b->window + 16, 0));
}

static void test_add_is_atomic(struct bench *s)
{
	struct call *calls[2][MANY];
	bool seen[3 * MANY] = { 0 };
	struct patience p = wait_ms(s, 5000);

	if (!begin(s, 4096) || !join_third(s))
		return;
	uint64_t *word = (uint64_t *)(void *)(s->side[1].window + 256);
	for (int k = 0; k < 2; k++)
		for (int i = 0; i < MANY; i++)
			calls[k][i] = make_add(&s->side[2 * k], 256, 1);
	post_all(calls[0], MANY);
	post_all(calls[1], MANY);
	s->never_arm = true; /* the owner computes */
	for (int mine = 0; (!ended(s) || mine < MANY) && turn(s, &p);)
		for (uint64_t n = mine < MANY ? 1 + chance(s, (uint64_t)(MANY - mine)) : 0; n; n--, mine++)
			seen[__atomic_fetch_add(word, 1, __ATOMIC_RELAXED)] = true;
	CHECK(*word == 3 * MANY);
	for (int i = 0; i < 2 * MANY && !s->failed; i++) {
		struct call *c = calls[i / MANY][i % MANY];
		CHECK(c->err == 0 && c->result < 3 * MANY && !seen[c->result]);
		seen[c->result % (3 * MANY)] = true;
	}
	s->never_arm = false;
	if (s->t != &tt_sim)
		add_beside_owner(s);
}

/* ---- bad arguments ---- */

static void fails_with(struct bench *s, struct call *c, int err)
{
	int peers_down = count(s, DOWN, &s->side[0]) + count(s, DOWN, &s->side[1]);

	put(c->side, 0, 2048, c->side->local, 8);
	post(c);
	put(c->side, 0, 2048, c->side->local, 8);
	UNTIL(ended(s));
	CHECK(c->err == err);
	for (struct call *o = s->calls; o; o = o->older)
		CHECK(o->err == 0 || o->err == err); /* the others are not hurt */
	CHECK(count(s, DOWN, &s->side[0]) + count(s, DOWN, &s->side[1]) == peers_down);
}

static void reconnect(struct bench *s)
{
	struct side *a = &s->side[0], *b = &s->side[1];
	int ups[] = { count(s, UP, a), count(s, UP, b) };

	if (s->failed)
		return;
	disconnect(s, a);
	disconnect(s, b);
	connect_side(s, a, b->net->addr);
	UNTIL(count(s, UP, a) > ups[0] && count(s, UP, b) > ups[1]);
}

/* The op names what is not registered. Either it gets `err` and hurts nobody; or the connection ends, and then all of
 * it. A strict reader has no choice. */
static void misuses(struct bench *s, struct call *c, int err)
{
	struct side *a = &s->side[0], *b = &s->side[1];
	int downs[] = { count(s, DOWN, a), count(s, DOWN, b) };

	struct call *before = put(a, 0, 2048, a->local, 8);
	post(c);
	struct call *behind = put(a, 0, 2048, a->local, 8);
	UNTIL(ended(s));
	if (c->err == err && !s->strict) {
		CHECK(before->err == 0 && behind->err == 0);
		CHECK(count(s, DOWN, a) == downs[0] && count(s, DOWN, b) == downs[1]);
		return;
	}
	CHECK(c->err == -ECONNRESET);
	UNTIL(count(s, DOWN, a) > downs[0] && count(s, DOWN, b) > downs[1]);
	settle(s);
	CHECK(count(s, DOWN, a) == downs[0] + 1 && count(s, DOWN, b) == downs[1] + 1);
	CHECK(before->err == 0 || before->err == -ECONNRESET);
	CHECK(behind->err == 0 || behind->err == -ECONNRESET);
	reconnect(s);
}

static void test_misaligned_add(struct bench *s)
{
	if (!begin(s, 4096))
		return;
	struct side *a = &s->side[0];
	for (size_t i = 1; i < 8; i++)
		fails_with(s, make_add(a, 64 + i, 1), -EINVAL);
	struct call *c = make_add(a, 64, 1);
	c->op.len = 4;
	fails_with(s, c, -EINVAL);
	CHECK(all(s->side[1].window, 2048, 0));
}

static void test_range(struct bench *s)
{
	const struct { uint64_t at; size_t len; } bad[] = {
		{ 4096, 1 }, { 4095, 2 }, { 4089, 8 }, { 0, 4097 }, { UINT64_MAX, 8 }, { UINT64_MAX - 7, 8 },
		{ UINT64_MAX - 4095, 4096 }, { 1ull << 63, 64 }, { 4000, 100 },
	};

	if (!begin(s, 4096))
		return;
	struct side *a = &s->side[0], *b = &s->side[1];
	s->size = 4096;
	char *big = guarded(8192);
	struct tt_region *r = enroll(s, a, big, 8192, 0);
	for (size_t i = 0; i < TT_COUNT(bad); i++)
		for (int kind = TT_PUT; kind <= TT_GET; kind++) {
			struct call *c = make_call(a, (enum tt_kind)kind, 0, bad[i].at, big, bad[i].len);
			c->op.region = r;
			fails_with(s, c, -ERANGE);
		}
	fails_with(s, make_add(a, 4096, 1), -ERANGE);
	fails_with(s, make_add(a, UINT64_MAX - 7, 1), -ERANGE);
	CHECK(all(b->window, 2048, 0) && all(b->window + 2056, 4096 - 2056, 0));
	CHECK(all(big, 8192, 0) && guards_hold(b->window, 4096));
	withdraw(r);
	free(big - GUARD);
}

/* A key that lies about its length: what counts is the owner's own table. */
static void test_forged_length(struct bench *s)
{
	if (!begin(s, 4096))
		return;
	struct side *a = &s->side[0], *b = &s->side[1];
	struct tt_key forged = b->key;
	forged.len = 1 << 20;
	const size_t at[] = { 4096, 4089, 65536 };
	for (size_t i = 0; i < TT_COUNT(at); i++) {
		struct call *c = make_call(a, TT_PUT, 0, at[i], a->local + 64, 8);
		memset(a->local + 64, 0x33, 8);
		c->op.key = &forged;
		misuses(s, c, -ERANGE);
	}
	CHECK(guards_hold(b->window, 4096) && all(b->window + 2056, 4096 - 2056, 0));
}

static void test_garbage_key(struct bench *s)
{
	if (!begin(s, 4096))
		return;
	struct side *a = &s->side[0], *b = &s->side[1];
	for (int i = 0; i < 8; i++) {
		struct tt_key k = b->key;
		for (size_t j = 0; j < sizeof k.raw; j++)
			k.raw[j] = (uint8_t)chance(s, 256);
		struct call *c = make_call(a, chance(s, 2) ? TT_PUT : TT_GET, 0, 0, a->local + 64, 8);
		memset(a->local + 64, 0x33, 8);
		c->op.key = &k;
		misuses(s, c, -ESTALE);
		CHECK(all(b->window, 4096, 0) && all(a->local + 64, 8, 0x33));
	}
	ENDED_WELL(put(a, 0, 0, a->local, 8));
}

static void test_stale_key(struct bench *s)
{
	if (!begin(s, 8192))
		return;
	struct side *a = &s->side[0], *b = &s->side[1];
	struct tt_region *r = enroll(s, b, b->window + 4096, 1024, 1), *again = NULL;
	struct tt_key key = r->key;
	withdraw(r);
	if (chance(s, 2)) /* its place in some table taken again */
		again = enroll(s, b, b->window + 4096, 1024, 1);
	for (int kind = TT_PUT; kind <= TT_ADD; kind++) {
		struct call *c = kind == TT_ADD ? make_add(a, 0, 1) :
		                 make_call(a, (enum tt_kind)kind, 0, 0, a->local + 64, 8);
		memset(a->local + 64, 0x33, 8);
		c->op.key = &key;
		misuses(s, c, -ESTALE);
	}
	CHECK(all(b->window + 4096, 1024, 0) && all(a->local + 64, 8, 0x33));
	if (again)
		withdraw(again);
}

/* The notify of a PUT that fails so is not heard, nor is a message behind it, if the connection ends. */
static void test_stale_put_is_silent(struct bench *s)
{
	if (!begin(s, 4096))
		return;
	struct side *a = &s->side[0], *b = &s->side[1];
	withdraw(b->window_region);
	post(make_notify(a, 0, a->local, 1 + chance(s, 2000), 1));
	struct call *behind = send_bytes(a, a->local, 8);
	UNTIL(ended(s) && (count(s, MESSAGE, b) || count(s, DOWN, b)));
	settle(s);
	CHECK(count(s, NOTIFY, b) == 0 && (!count(s, DOWN, b) || !count(s, MESSAGE, b)));
	CHECK(behind->err == 0 || count(s, DOWN, a));
	CHECK(all(b->window, 4096, 0));
}

/* An op that fails announces nothing. */
static void test_failed_put_is_silent(struct bench *s)
{
	if (!begin(s, 4096))
		return;
	struct side *a = &s->side[0], *b = &s->side[1];
	fails_with(s, make_notify(a, 4090, a->local, 8, 1), -ERANGE);
	post(make_notify(a, 0, a->local, 8, 2));
	UNTIL(count(s, NOTIFY, b) && ended(s));
	CHECK(count(s, NOTIFY, b) == 1 && nth(s, NOTIFY, b, 0)->value == 2);
}

static void test_malformed(struct bench *s)
{
	if (!begin(s, TT_MESSAGE_MAX + 8))
		return;
	struct side *a = &s->side[0], *b = &s->side[1];
	fails_with(s, make_notify(a, 0, a->local, 8, 1 << 24), -EINVAL);
	fails_with(s, make_notify(a, 0, a->local, 0, UINT32_MAX), -EINVAL);
	struct call *c = make_call(a, TT_PUT, 0, 0, a->local, 8);
	c->op.kind = (enum tt_kind)17;
	fails_with(s, c, -EINVAL);
	fails_with(s, make_call(a, TT_PUT, 8, 0, a->local, 8), -EINVAL);
	for (int kind = TT_PUT; kind <= TT_GET; kind++)
		if (a->net->copy_max < 65536) {
			c = make_call(a, (enum tt_kind)kind, 0, 0, a->local, a->net->copy_max + 1);
			c->op.region = NULL;
			fails_with(s, c, -EINVAL);
		}
	fails_with(s, make_call(a, TT_SEND, 0, 0, a->local, TT_MESSAGE_MAX + 1), -EINVAL);
	CHECK(count(s, NOTIFY, b) == 0 && count(s, MESSAGE, b) == 0 && all(b->window, 2048, 0));
}

static void test_notify_values(struct bench *s)
{
	const uint32_t values[] = { 0, 1, 255, 256, 65535, 65536, (1 << 24) - 1 };

	if (!begin(s, 4096))
		return;
	struct side *a = &s->side[0], *b = &s->side[1];
	for (size_t i = 0; i < TT_COUNT(values); i++) {
		struct call *c = make_notify(a, 0, NULL, 0, values[i]);
		c->op.key = NULL; /* unused by a PUT of 0 bytes */
		c->op.region = NULL;
		post(c);
	}
	UNTIL(count(s, NOTIFY, b) == (int)TT_COUNT(values) && ended(s));
	for (size_t i = 0; i < TT_COUNT(values); i++)
		CHECK(nth(s, NOTIFY, b, (int)i)->value == (int)values[i]);
}

static void test_unregistered(struct bench *s)
{
	char stack[64];

	if (!begin(s, 4096))
		return;
	struct side *a = &s->side[0], *b = &s->side[1];
	CHECK(a->net->copy_max >= 64);
	fill(stack, 64, 5);
	struct call *c = make_call(a, TT_PUT, 0, 64, stack, 64);
	c->op.region = NULL;
	post(c);
	ENDED_WELL(c);
	memset(stack, 0, 64);
	c = make_call(a, TT_GET, 0, 64, stack, 64);
	c->op.region = NULL;
	post(c);
	ENDED_WELL(c);
	CHECK(holds(stack, 64, 5) && holds(b->window + 64, 64, 5));
}

/* Memory has a key only by the pin that holds it, and a range may have several pins. */
static void test_pin(struct bench *s)
{
	if (!begin(s, 8192))
		return;
	struct side *a = &s->side[0], *b = &s->side[1];
	const struct tt_transport *t = b->net->transport; /* of sim's nets some pin */
	if (!t->pin)
		return;
	struct tt_mem mem = { .base = b->window + 4096, .len = 1024, .gpu = -1, .fd = -1 };
	struct tt_region *r;
	struct tt_mem less = mem, beyond = mem;
	struct tt_pin *pin[2], *local;
	less.len = 512;
	beyond.len = 1025;
	CHECK(t->reg(b->net, &mem, 1, NULL, &r) < 0);
	CHECK(t->pin(b->net, &mem, 0, &local) == 0);
	CHECK(t->reg(b->net, &mem, 1, local, &r) < 0 && t->reg(b->net, &beyond, 0, local, &r) < 0);
	CHECK(t->reg(b->net, &less, 0, local, &r) == 0 && r->pin == local);
	if (s->failed)
		return;
	withdraw(r);
	for (int i = 0; i < 2; i++)
		CHECK(t->pin(b->net, &mem, 1, &pin[i]) == 0);
	CHECK(t->reg(b->net, &less, 1, pin[1], &r) < 0 && t->reg(a->net, &mem, 1, pin[1], &r) < 0);
	CHECK(t->reg(b->net, &mem, 1, pin[1], &r) == 0);
	t->unpin(pin[0]);
	if (s->failed)
		return;
	struct tt_key key = r->key;
	struct call *c = make_call(a, TT_PUT, 0, 0, a->local, 1024);
	c->op.key = &key;
	fill(a->local, 1024, 4);
	ENDED_WELL(post(c));
	CHECK(holds(b->window + 4096, 1024, 4) && all(b->window, 4096, 0));
	withdraw(r);
}

static void dereg_in_landing(struct bench *s, enum tt_kind kind)
{
	size_t len = s->t == &tt_sim ? 65536 : BIG;

	if (!begin(s, len))
		return;
	struct side *a = &s->side[0], *b = &s->side[1];
	char *second = guarded(64);
	struct tt_region *other = enroll(s, b, second, 64, 1);
	struct tt_key key = other->key;
	struct call *c = post(make_call(a, kind, 0, 0, a->local, len));
	some_turns(s, 6);
	withdraw(b->window_region);
	memset(b->window, 0x44, len); /* ours again at once */
	struct call *hurt = make_call(a, TT_PUT, 0, 0, a->local, 8);
	hurt->op.key = &key;
	post(hurt);
	UNTIL(ended(s));
	CHECK(c->err == 0 || c->err == -ECONNRESET || (c->err == -ESTALE && !s->strict));
	settle(s);
	CHECK(count(s, DOWN, a) == (c->err == -ECONNRESET));
	UNTIL(count(s, DOWN, b) == count(s, DOWN, a)); /* b may hear of it later */
	CHECK(hurt->err == 0 || (hurt->err == -ECONNRESET && count(s, DOWN, a)));
	CHECK(all(b->window, len, 0x44));
	withdraw(other);
	free(second - GUARD);
}

static void test_dereg_in_put(struct bench *s) { dereg_in_landing(s, TT_PUT); }
static void test_dereg_in_get(struct bench *s) { dereg_in_landing(s, TT_GET); }

/* ---- failure ---- */

static void load_with_ops(struct bench *s, struct side *a)
{
	struct call *calls[24];

	for (int i = 0; i < 24; i++) {
		size_t len = 1 + chance(s, i % 5 ? 200 : 60000);
		switch (chance(s, 5)) {
		case 0: calls[i] = make_call(a, TT_GET, 0, 0, a->local + 65536, len); break;
		case 1: calls[i] = make_add(a, 64, 1); break;
		case 2: calls[i] = make_call(a, TT_SEND, 0, 0, a->local, len % 1000); break;
		case 3: calls[i] = make_notify(a, 0, a->local, len, 3); break;
		default: calls[i] = make_call(a, TT_PUT, chance(s, 4) ? TT_LAZY : 0, 0, a->local, len);
		}
	}
	post_all(calls, 24);
}

/* Of ops posted in the order of s->calls (newest first), those that failed were finished in that order. */
static void check_fail_order(struct bench *s, const struct side *a)
{
	const struct call *last = NULL;

	for (int i = 0; i < s->logged; i++) {
		const struct record *r = &s->log[i];
		if (r->what != DONE || r->side != a || r->value != -ECONNRESET)
			continue;
		for (const struct call *c = last; c; c = c->older)
			CHECK(c != r->call); /* posted before the one finished before it */
		last = r->call;
	}
}

static void test_peer_fails(struct bench *s)
{
	if (!begin(s, 2 * 65536))
		return;
	struct side *a = &s->side[0];
	s->side[1].asleep = s->seed % 2 == 0; /* what it is asked for stays unanswered */
	load_with_ops(s, a);
	some_turns(s, 6);
	load_with_ops(s, a); /* that nobody has looked at */
	close_side(s, &s->side[1]);
	UNTIL(count(s, DOWN, a) && ended(s));
	settle(s);
	CHECK(count(s, DOWN, a) == 1 && nth(s, DOWN, a, 0)->value == -ECONNRESET);
	CHECK(s->log[s->logged - 1].what == DOWN); /* the last word on this peer */
	check_fail_order(s, a);
	for (struct call *c = s->calls; c; c = c->older)
		CHECK(c->err == 0 || c->err == -ECONNRESET);
	struct call *late[] = { make_add(a, 0, 1), make_call(a, TT_PUT, 0, 0, a->local, 8),
	                        make_call(a, TT_SEND, 0, 0, a->local, 8) };
	post_all(late, 3);
	UNTIL(ended(s));
	CHECK(late[0]->err == -ENOTCONN && late[1]->err == -ENOTCONN && late[2]->err == -ENOTCONN);
	CHECK(a->peer->net == a->net && a->peer->addr[0]); /* valid until disconnect */
	struct call *last = put(a, 0, 0, a->local, 8);
	disconnect(s, a);
	CHECK(last->dones == 1);
	settle(s);
	CHECK(count(s, DOWN, a) == 1);
}

static void post_again(struct call *c)
{
	if (c->err == -ECONNRESET)
		put(c->side, 0, 0, c->local, 8);
}

/* What done() posts while its peer is failing: finished too. */
static void test_post_while_failing(struct bench *s)
{
	if (!begin(s, 65536))
		return;
	struct side *a = &s->side[0];
	for (int i = 0; i < 6; i++) {
		struct call *c = make_call(a, TT_GET, 0, 0, a->local, 60000);
		c->then = post_again;
		post(c);
	}
	if (chance(s, 2)) {
		close_side(s, &s->side[1]);
		UNTIL(count(s, DOWN, a) && ended(s));
		CHECK(count(s, DOWN, a) == 1);
	} else {
		disconnect(s, a);
		CHECK(ended(s));
	}
	for (struct call *c = s->calls; c; c = c->older)
		CHECK(c->err == 0 || c->err == -ECONNRESET || (c->err == -ENOTCONN && c->len == 8));
}

static void test_nothing_lands_after_down(struct bench *s)
{
	size_t len = s->t == &tt_sim ? 60000 : BIG;

	if (!begin(s, len))
		return;
	struct side *a = &s->side[0], *b = &s->side[1];
	for (int i = 0; i < 4; i++)
		put(a, 0, 0, a->local, len);
	some_turns(s, 5);
	disconnect(s, a);
	UNTIL(count(s, DOWN, b));
	memset(b->window, 0x66, len);
	int messages = count(s, MESSAGE, b) + count(s, NOTIFY, b);
	settle(s);
	CHECK(all(b->window, len, 0x66));
	CHECK(count(s, MESSAGE, b) + count(s, NOTIFY, b) == messages && count(s, DOWN, b) == 1);
}

static void test_disconnect(struct bench *s)
{
	if (!begin(s, 2 * 65536))
		return;
	struct side *a = &s->side[0], *b = &s->side[1];
	load_with_ops(s, a);
	some_turns(s, 4);
	disconnect(s, a);
	CHECK(ended(s));
	check_fail_order(s, a);
	for (struct call *c = s->calls; c; c = c->older)
		CHECK(c->err == 0 || c->err == -ECONNRESET);
	UNTIL(count(s, DOWN, b));
	CHECK(nth(s, DOWN, b, 0)->value == -ECONNRESET);
	CHECK(count(s, DOWN, a) == 0);
	disconnect(s, b);
	connect_side(s, a, b->net->addr); /* and once more */
	UNTIL(count(s, UP, a) == 2 && count(s, UP, b) == 2);
	ENDED_WELL(put(a, 0, 0, a->local, 100));
}

static void test_close(struct bench *s)
{
	if (!begin(s, 2 * 65536))
		return;
	struct side *a = &s->side[0];
	load_with_ops(s, a);
	enroll(s, a, a->local, 100, 1); /* nobody deregisters it but close */
	some_turns(s, 3);
	close_side(s, a);
	CHECK(ended(s));
	CHECK(count(s, DOWN, a) == 0);
	UNTIL(count(s, DOWN, &s->side[1]));
	settle(s);
	CHECK(count(s, DOWN, &s->side[1]) == 1);
}

/* One peer's end is no other's. */
static void test_others_unharmed(struct bench *s)
{
	if (!begin(s, 2 * 65536) || !join_third(s))
		return;
	struct side *a = &s->side[0], *c = &s->side[2];
	load_with_ops(s, a);
	struct call *mine[8];
	for (int i = 0; i < 8; i++)
		mine[i] = put(c, 0, 65536, c->local, 5000);
	some_turns(s, 3);
	close_side(s, a);
	for (int i = 0; i < 8; i++)
		ENDED_WELL(mine[i]);
	UNTIL(count(s, DOWN, &s->side[1]) == 1);
	ENDED_WELL(get(c, 0, 0, c->local, 5000));
	CHECK(count(s, DOWN, c) == 0);
}

/* ---- reaching ---- */

static void test_unreachable(struct bench *s)
{
	char addr[96];

	if (!prepare(s, 4096))
		return;
	struct side *a = &s->side[0];
	snprintf(addr, sizeof addr, "%s", s->side[1].net->addr);
	close_side(s, &s->side[1]);
	connect_side(s, a, addr);
	UNTIL(count(s, DOWN, a));
	CHECK(nth(s, DOWN, a, 0)->value == -EHOSTUNREACH && count(s, UP, a) == 0);
	put(a, 0, 0, a->local, 8);
	UNTIL(ended(s));
	CHECK(s->calls->err == -ENOTCONN);
	settle(s);
	CHECK(count(s, DOWN, a) == 1);
	disconnect(s, a);
}

static void refused_with(struct bench *s, int err)
{
	struct side *a = &s->side[0], *b = &s->side[1];

	connect_side(s, a, b->net->addr);
	UNTIL(count(s, DOWN, a));
	settle(s);
	CHECK(count(s, DOWN, a) == 1 && nth(s, DOWN, a, 0)->value == err);
	CHECK(count(s, UP, a) == 0 && count(s, UP, b) == 0 && count(s, DOWN, b) == 0);
}

/* Two nets with a secret each; false: they cannot be had. Only real wires built without libsodium may refuse to keep
 * one. */
static bool prepare_secrets(struct bench *s, const char *first, const char *second)
{
	bool keeps = true;

#ifndef HAVE_LIBSODIUM
	keeps = s->t == &tt_sim;
#endif
	s->secret[0] = first;
	s->secret[1] = second;
	if (keeps)
		return prepare(s, 4096);
	static const struct test *told;
	if (told != current && !quiet)
		printf("%s on %s: not tested: no libsodium\n", current->name, s->wire->name);
	told = current;
	s->size = 4096;
	CHECK(!open_side(s, 0));
	return false;
}

static void test_wrong_secret(struct bench *s)
{
	if (prepare_secrets(s, "0123456789abcdef", "0123456789abcdeX"))
		refused_with(s, -EACCES);
}

static void test_right_secret(struct bench *s)
{
	if (!prepare_secrets(s, "0123456789abcdef", "0123456789abcdef"))
		return;
	connect_side(s, &s->side[0], s->side[1].net->addr);
	UNTIL(count(s, UP, &s->side[0]) && count(s, UP, &s->side[1]));
	ENDED_WELL(put(&s->side[0], 0, 0, s->side[0].local, 4096));
}

/* A name server that does not answer, until `ask` is open again. */
static pthread_mutex_t ask = PTHREAD_MUTEX_INITIALIZER;
int __real_getaddrinfo(const char *, const char *, const struct addrinfo *, struct addrinfo **);
int __wrap_getaddrinfo(const char *, const char *, const struct addrinfo *, struct addrinfo **);
int __wrap_getaddrinfo(const char *host, const char *port, const struct addrinfo *hints, struct addrinfo **out)
{
	int err;

	if (!(hints->ai_flags & AI_NUMERICHOST)) {
		pthread_mutex_lock(&ask);
		pthread_mutex_unlock(&ask);
	}
	if (host && !strcmp(host, "two.addresses")) {
		if (hints->ai_flags & AI_NUMERICHOST)
			return EAI_NONAME;
		err = __real_getaddrinfo("127.0.0.3", port, hints, out);
		return err ? err : __real_getaddrinfo("127.0.0.4", port, hints, &(*out)->ai_next);
	}
	return __real_getaddrinfo(host, port, hints, out);
}

static void test_silent_name_server(struct bench *s)
{
	s->timeout_ms = 400;
	if (!begin(s, 4096))
		return;
	struct side *a = &s->side[0];
	struct tt_peer *b = a->peer, *silent[2];
	pthread_mutex_lock(&ask);
	uint64_t start = tt_now();
	for (int i = 0; i < 2; i++) {
		connect_side(s, a, "tcp:silent.invalid:4000");
		silent[i] = a->peer;
	}
	CHECK(tt_now() - start < s->timeout_ms * TT_MS);
	a->peer = b;
	ENDED_WELL(get(a, 0, 0, a->local, 4096)); /* others are served meanwhile */
	CHECK(count(s, DOWN, a) == 0);
	a->peer = silent[0];
	disconnect(s, a);
	UNTIL(count(s, DOWN, a));
	CHECK(nth(s, DOWN, a, 0)->peer == silent[1] && nth(s, DOWN, a, 0)->value == -ETIMEDOUT);
	connect_side(s, a, "tcp:silent.invalid:4000");
	close_side(s, a);
	CHECK(tt_now() - start < 4000 * TT_MS);
	pthread_mutex_unlock(&ask);
}

static void test_names_of_hosts(struct bench *s)
{
	char addr[96];

	if (!prepare(s, 4096))
		return;
	struct side *a = &s->side[0], *b = &s->side[1];
	connect_side(s, a, "tcp:no-such-host.invalid:4000");
	UNTIL(count(s, DOWN, a));
	CHECK(nth(s, DOWN, a, 0)->value == -ENXIO && strstr(tt_why(), "no-such-host.invalid:4000"));
	connect_side(s, a, "tcp:two.addresses:1"); /* where nobody listens */
	UNTIL(count(s, DOWN, a) > 1);
	CHECK(strstr(tt_why(), "two.addresses:1: tried 127.0.0.3:1 (Connection refused), 127.0.0.4:1 (Connection ref"));
	snprintf(addr, sizeof addr, "tcp:localhost%s", strrchr(b->net->addr, ':'));
	connect_side(s, a, addr);
	UNTIL(count(s, UP, a) || count(s, DOWN, a) > 2);
	CHECK(count(s, UP, a) || strstr(b->net->addr, "[::1]")); /* localhost may have no IPv6 */
}

static void test_other_job(struct bench *s)
{
	s->job[0] = 7;
	s->job[1] = 8;
	if (prepare(s, 4096))
		refused_with(s, -EPROTO);
}

static void test_connect_times_out(struct bench *s)
{
	s->timeout_ms = 60;
	if (!prepare(s, 4096))
		return;
	s->side[1].asleep = true;
	connect_side(s, &s->side[0], s->side[1].net->addr);
	UNTIL(count(s, DOWN, &s->side[0]));
	CHECK(nth(s, DOWN, &s->side[0], 0)->value == -ETIMEDOUT);
}

static void test_never_up_is_not_reported(struct bench *s)
{
	if (!prepare(s, 4096))
		return;
	struct side *a = &s->side[0], *b = &s->side[1];
	for (int i = 0; i < 4; i++) {
		connect_side(s, a, b->net->addr);
		some_turns(s, 3);
		disconnect(s, a);
	}
	settle(s);
	CHECK(count(s, DOWN, a) == 0);
	UNTIL(count(s, DOWN, b) == count(s, UP, b)); /* down only after up */
}

static void greet(struct side *side, struct tt_peer *p, enum what what, const char *bytes, size_t len)
{
	(void)p, (void)bytes, (void)len;
	if (what == UP)
		for (int i = 0; i < 3; i++)
			send_bytes(side, side->local, 10);
}

static void test_up_comes_first(struct bench *s)
{
	if (!prepare(s, 4096))
		return;
	struct side *a = &s->side[0], *b = &s->side[1];
	a->hook = b->hook = greet;
	connect_side(s, a, b->net->addr);
	UNTIL(count(s, MESSAGE, a) == 3 && count(s, MESSAGE, b) == 3 && ended(s));
	for (int k = 0; k < 2; k++)
		for (int i = 0; i < s->logged; i++)
			if (s->log[i].side == &s->side[k]) {
				CHECK(s->log[i].what == UP);
				break;
			}
	CHECK(count(s, UP, a) == 1 && count(s, UP, b) == 1);
}

static void test_many_connections(struct bench *s)
{
	if (!prepare(s, 4096))
		return;
	struct side *a = &s->side[0], *b = &s->side[1];
	for (int i = 0; i < 10; i++)
		connect_side(s, i % 2 ? a : b, (i % 2 ? b : a)->net->addr);
	UNTIL(count(s, UP, a) == 10 && count(s, UP, b) == 10);
	for (int i = 0; i < 10; i++) {
		a->peer = nth(s, UP, a, i)->peer;
		send_bytes(a, a->local, 10);
	}
	UNTIL(count(s, MESSAGE, b) == 10 && ended(s));
	for (int i = 0; i < 10; i++)
		for (int k = 0; k < i; k++)
			CHECK(nth(s, MESSAGE, b, i)->peer != nth(s, MESSAGE, b, k)->peer);
}

/* ---- callbacks ---- */

static void return_message(struct side *side, struct tt_peer *p, enum what what, const char *bytes, size_t len)
{
	(void)bytes, (void)len;
	side->peer = p;
	if (what == MESSAGE && side->left-- > 0)
		send_bytes(side, side->local, 33);
	else if (what == NOTIFY && side->left-- > 0)
		post(make_notify(side, 0, side->local, 2000, 5));
}

static void test_ping_pong(struct bench *s)
{
	if (!begin(s, 4096))
		return;
	struct side *a = &s->side[0], *b = &s->side[1];
	for (int round = 0; round < 2; round++) {
		enum what what = round ? NOTIFY : MESSAGE;
		a->hook = b->hook = return_message;
		a->left = b->left = 20;
		if (round)
			post(make_notify(a, 0, a->local, 100, 5));
		else
			send_bytes(a, a->local, 33);
		UNTIL(count(s, what, a) == 20 && count(s, what, b) == 21 && ended(s));
	}
}

static void register_and_go_on(struct call *c)
{
	struct bench *s = c->side->bench;
	struct tt_region *r = enroll(s, c->side, c->side->local, 4096, 1);

	withdraw(r);
	if (c->side->left-- > 0) {
		struct call *next = make_call(c->side, c->side->left % 2 ? TT_GET : TT_PUT, 0, 0, c->side->local, 3000);
		next->then = register_and_go_on;
		post(next);
	}
}

static void test_done_may_post(struct bench *s)
{
	if (!begin(s, 4096))
		return;
	struct side *a = &s->side[0];
	a->left = 20;
	struct call *c = make_call(a, TT_PUT, 0, 0, a->local, 8);
	c->then = register_and_go_on;
	post(c);
	UNTIL(a->left < 0 && ended(s));
	for (c = s->calls; c; c = c->older)
		CHECK(c->err == 0);
}

static void connect_back(struct side *side, struct tt_peer *p, enum what what, const char *bytes, size_t len)
{
	struct bench *s = side->bench;
	struct tt_peer *another;

	(void)p, (void)bytes, (void)len;
	if (what == MESSAGE)
		CHECK(s->t->connect(side->net, s->side[0].net->addr, &another) == 0);
}

static void test_events_may_connect(struct bench *s)
{
	if (!begin(s, 4096))
		return;
	s->side[1].hook = connect_back;
	send_bytes(&s->side[0], s->side[0].local, 5);
	UNTIL(count(s, UP, &s->side[0]) == 2 && count(s, UP, &s->side[1]) == 2 && ended(s));
}

/* A done() that frees its op, the last thing a transport may notice. */
static void free_op(struct tt_op *op) { free(op); }

static void test_done_may_free(struct bench *s)
{
	if (!begin(s, 4096))
		return;
	struct side *a = &s->side[0];
	for (int i = 0; i < 20; i++) {
		struct tt_op *op = calloc(1, sizeof *op);
		*op = (struct tt_op){ .kind = TT_PUT, .local = a->local, .len = 8, .key = &s->side[1].key,
		                      .done = free_op };
		s->posting++;
		s->t->post(a->peer, op);
		s->posting--;
	}
	ENDED_WELL(put(a, 0, 0, a->local, 8));
	settle(s);
}

/* ---- sleeping ---- */

static void test_lazy_done_comes(struct bench *s)
{
	if (!begin(s, 65536))
		return;
	struct side *a = &s->side[0];
	for (int i = 0; i < 10; i++)
		put(a, TT_LAZY, 0, a->local, 1 + chance(s, 5000));
	UNTIL(ended(s)); /* UNTIL lets the target go to sleep */
}

static void test_lazy_done_while_polling(struct bench *s)
{
	if (!begin(s, 65536))
		return;
	struct side *a = &s->side[0];
	s->never_arm = true;
	put(a, TT_LAZY, 0, a->local, 8);
	UNTIL(ended(s));
	for (int i = 0; i < 20; i++) /* nor do messages behind it hold it up */
		put(a, TT_LAZY, 0, a->local, 1 + chance(s, 5000)), send_bytes(a, a->local, 10);
	UNTIL(ended(s));
	s->never_arm = false;
}

/* More than may be unanswered, and some in pieces, for a target that handles nothing. */
static void test_local_done_alone(struct bench *s)
{
	enum { PUTS = 600, LONG = 5000, LONGEST = 3 << 19 };

	if (!begin(s, LONGEST))
		return;
	struct side *a = &s->side[0], *b = &s->side[1];
	b->asleep = true;
	for (int i = 0; i < PUTS; i++) {
		put(a, TT_LOCAL, (size_t)i, a->local, chance(s, 16));
		if (i % 60 == 0)
			put(a, TT_LOCAL | TT_LAZY, 0, a->local, LONG);
	}
	UNTIL(ended(s));
	b->asleep = false;
	fill(a->local, LONGEST, 7);
	put(a, TT_LOCAL, 0, a->local, LONGEST);
	post(make_notify(a, 0, a->local, 0, 1));
	UNTIL(ended(s) && count(s, NOTIFY, b) == 1);
	CHECK(holds(b->window, LONGEST, 7));
}

static void test_local_refused(struct bench *s)
{
	if (!begin(s, 4096))
		return;
	struct side *a = &s->side[0], *b = &s->side[1];
	withdraw(b->window_region);
	struct call *c = make_notify(a, 0, a->local, 1 + chance(s, 2000), 1);
	c->op.flags |= TT_LOCAL;
	post(c);
	send_bytes(a, a->local, 8);
	UNTIL(ended(s) && (count(s, MESSAGE, b) || count(s, DOWN, b)));
	settle(s);
	CHECK(count(s, NOTIFY, b) == 0 && (!count(s, DOWN, b) || !count(s, MESSAGE, b)));
	CHECK(all(b->window, 4096, 0));
}

static void test_done_without_sleep(struct bench *s)
{
	if (!begin(s, 65536))
		return;
	struct side *a = &s->side[0];
	s->never_arm = true; /* the target spins: without LAZY the acknowledgement goes at once all the same */
	for (int i = 0; i < 6; i++) {
		put(a, 0, 0, a->local, 1 + chance(s, 5000));
		get(a, 0, 0, a->local + 8192, 1 + chance(s, 5000));
		send_bytes(a, a->local, 10);
		post(make_add(a, 0, 1));
	}
	UNTIL(ended(s));
	s->never_arm = false;
}

/* Only memory in a file, on a wire within one host, can be mapped. */
static void test_map(struct bench *s)
{
	if (!begin(s, 65536))
		return;
	struct side *a = &s->side[0], *b = &s->side[1];
	struct tt_key none = { .len = 65536 };
	char *at = s->t->map(a->peer, &b->key, 1);
	CHECK((at != NULL) == s->files);
	CHECK(s->t->map(a->peer, &none, 1) == NULL);
	ENDED_WELL(put(a, 0, 0, a->local, 65536)); /* and asking did no harm */
	if (at) {
		fill(b->window, 65536, 9);
		CHECK(holds(at, 65536, 9));
		fill(at, 65536, 8);
		CHECK(holds(b->window, 65536, 8));
	}
	close_side(s, b);
	UNTIL(count(s, DOWN, a));
	CHECK(s->t->map(a->peer, &b->key, 1) == NULL);
	CHECK(!at || holds(at, 65536, 8)); /* frozen, until disconnect */
	disconnect(s, a);
	if (at)
		fill(at, 65536, 7); /* harms nobody */
}

/* The net takes the caller's word for the file, even where no file has that number, and asks the kernel nothing. The
 * peer maps no other file than that one. */
static void test_inode_told(struct bench *s)
{
	enum { RIGHT, WRONG, CLOSED, REGIONS };
	struct tt_region *r[REGIONS];
	struct stat file;

	if (!begin(s, 4096) || !s->files)
		return;
	struct side *a = &s->side[0], *b = &s->side[1];
	CHECK(fstat(b->fd, &file) == 0);
	struct tt_mem mem[REGIONS];
	for (int i = 0; i < REGIONS; i++) {
		mem[i] = (struct tt_mem){ .base = b->window, .len = 4096, .gpu = -1, .fd = b->fd, .fd_offset = GUARD,
			                  .inode = (uint64_t)file.st_ino };
	}
	mem[WRONG].inode++;
	mem[CLOSED].fd = INT_MAX;
	for (int i = 0; i < REGIONS; i++)
		CHECK(s->t->reg(b->net, &mem[i], 1, NULL, &r[i]) == 0);
	if (s->failed)
		return;
	for (int i = 0; i < REGIONS; i++) {
		CHECK((s->t->map(a->peer, &r[i]->key, 0) != NULL) == (i != WRONG)); /* that file is mapped once */
		struct call *c = make_call(a, TT_PUT, 0, 0, a->local, 4096);
		c->op.key = &r[i]->key;
		fill(a->local, 4096, 10 + (unsigned)i);
		ENDED_WELL(post(c));
		CHECK(holds(b->window, 4096, 10 + (unsigned)i));
	}
}

/* The owner has taken the key back, or is gone: what is stored would land in memory that it has given to somebody
 * else. */
static void test_store(struct bench *s)
{
	if (!begin(s, 8192))
		return;
	struct side *a = &s->side[0], *b = &s->side[1];
	char *at = s->t->map(a->peer, &b->key, 0);
	if (!at)
		return;
	struct tt_region *r = enroll(s, b, b->window, 4096, 1);
	struct tt_key key = r->key;
	CHECK(s->t->store_begin(a->peer, &key));
	fill(at, 100, 5);
	s->t->store_end(a->peer);
	CHECK(holds(b->window, 100, 5));
	withdraw(r);
	CHECK(!s->t->store_begin(a->peer, &key));
	CHECK(s->t->store_begin(a->peer, &b->key)); /* that is another one; and to ask is not to use */
	s->t->store_end(a->peer);
	ENDED_WELL(put(a, 0, 4096, a->local, 8));
	close_side(s, b);
	UNTIL(count(s, DOWN, a));
	CHECK(!s->t->store_begin(a->peer, &b->key));
}

/* ---- shm: lines that are none, and processes that die or freeze in the middle of things ---- */

/* Whatever a proven peer writes into its lane: the connection may end, but nothing outside of the window is touched. */
static void test_nonsense_lines(struct bench *s)
{
	if (!begin(s, 4096))
		return;
	struct side *a = &s->side[0], *b = &s->side[1];
	struct tt_shm_peer *liar = tt_container_of(a->peer, struct tt_shm_peer, base);
	for (int i = 0; i < 300 && !count(s, DOWN, b); i++) {
		uint8_t *payload = NULL;
		struct tt_shm_line *line = tt_shm_line(liar, chance(s, 2) ? chance(s, 70000) : 0, &payload);
		if (line) {
			uint64_t end = line->extra_end;
			line->kind = (uint8_t)chance(s, 10);
			line->flags = (uint8_t)chance(s, 16);
			line->slot = (uint16_t)chance(s, chance(s, 4) ? 4 : 65536);
			line->notify = (uint32_t)tt_random_next(&s->random);
			line->len = chance(s, 2) ? chance(s, 5000) : tt_random_next(&s->random);
			line->key = chance(s, 2) ? tt_shm_id(&b->key) : tt_random_next(&s->random);
			line->offset = chance(s, 2) ? chance(s, 5000) : tt_random_next(&s->random);
			line->word = tt_random_next(&s->random);
			if (line->extra && chance(s, 8))
				line->extra = (uint32_t)tt_random_next(&s->random);
			line->extra_end = line->extra && chance(s, 8) ? tt_random_next(&s->random) : end;
			tt_shm_publish(liar, line);
		}
		some_turns(s, 3);
	}
	settle(s);
}

struct remote { /* a process of its own with a net */
	pid_t pid;
	int orders, replies;
};

static struct tt_peer *met;
static struct tt_key told;
static bool knows;

static void met_one(struct tt_peer *p) { met = p; }
static void told_key(struct tt_peer *p, const void *bytes, size_t len)
{
	(void)p;
	memcpy(&told, bytes, tt_min(len, sizeof told));
	knows = true;
}
static void nothing(struct tt_peer *p, int err) { (void)p, (void)err; }
static void counted(struct tt_op *op) { op->priv[0] = 1; }

enum way { BY_PUTS, BY_POINTER, BY_POINTER_AWAKE, IN_ONE_STORE };

/* One store in which the process has to wait: for memory, or for a processor. */
static void store_slowly(struct tt_net *net, int replies)
{
	if (!tt_shm.store_begin(met, &told) || write(replies, "", 1) != 1)
		_exit(1);
	usleep(150000);
	tt_shm.store_end(met);
	for (;;)
		tt_shm.progress(net);
}

/* Stores into the parent's window without end: by PUTs, or by a pointer; then only AWAKE sees what else happens. */
static void write_and_write(enum way way, size_t len, int replies)
{
	const struct tt_events quiet_events = { met_one, told_key, NULL, nothing };
	struct tt_net_config c = { .events = &quiet_events, .listen_fd = -1, .job = 1, .epoch = 1, .timeout_ms = 5000 };
	char *bytes = malloc(len);
	struct tt_net *net;

	if (tt_shm.open(&c, &net) || write(replies, net->addr, sizeof net->addr) != sizeof net->addr)
		_exit(1);
	while (!knows)
		tt_shm.progress(net);
	if (way == IN_ONE_STORE)
		store_slowly(net, replies);
	char *at = way != BY_PUTS ? tt_shm.map(met, &told, 1) : NULL;
	for (unsigned i = 0;; i++) {
		memset(bytes, (int)i, len);
		struct tt_op op = { .kind = TT_PUT, .local = bytes, .len = len, .key = &told, .done = counted };
		if (at)
			memcpy(at, bytes, len);
		else
			tt_shm.post(met, &op);
		while (!at && !op.priv[0])
			tt_shm.progress(net);
		if (way == BY_POINTER_AWAKE) /* what is far is looked at in one turn of many */
			for (int k = 0; k < 1100; k++)
				tt_shm.progress(net);
		if (i == 20 && write(replies, "", 1) != 1)
			_exit(1);
	}
}

static bool start_writer(struct bench *s, struct remote *r, enum way way)
{
	struct side *a = &s->side[0];
	char addr[96], byte;
	int fds[2];

	CHECK(open_side(s, 0));
	if (s->failed || pipe(fds))
		return false;
	fflush(stdout);
	r->pid = fork();
	if (!r->pid) {
		close(fds[0]);
		alarm(30);
		write_and_write(way, s->size, fds[1]);
	}
	close(fds[1]);
	r->replies = fds[0];
	CHECK(read(fds[0], addr, sizeof addr) == sizeof addr);
	connect_side(s, a, addr);
	UNTIL(count(s, UP, a));
	memcpy(a->local, &a->key, sizeof a->key);
	ENDED_WELL(send_bytes(a, a->local, sizeof a->key));
	CHECK(read(fds[0], &byte, 1) == 1); /* it writes */
	usleep((useconds_t)chance(s, 2000));
	return !s->failed;
}

/* 0: it is gone; else it is not. */
static int end_writer(struct remote *r, bool must_be_dead)
{
	int alive = waitpid(r->pid, NULL, WNOHANG) == 0;

	if (alive && !must_be_dead) {
		kill(r->pid, SIGKILL);
		waitpid(r->pid, NULL, 0);
	}
	close(r->replies);
	return alive;
}

static bool stays(struct bench *s, char *at, size_t len)
{
	char *copy = malloc(len);
	bool same;

	(void)s;
	memcpy(copy, at, len);
	usleep(3000);
	same = !memcmp(copy, at, len);
	free(copy);
	return same;
}

static void await_end(pid_t pid)
{
	siginfo_t what;

	waitid(P_PID, (id_t)pid, &what, WEXITED | WNOWAIT);
}

static void test_killed_while_writing(struct bench *s)
{
	struct remote r;

	s->size = BIG;
	s->timeout_ms = 2000;
	if (!start_writer(s, &r, BY_PUTS))
		return;
	kill(r.pid, SIGKILL);
	await_end(r.pid); /* the kernel takes its memory apart first */
	uint64_t start = tt_now();
	UNTIL(count(s, DOWN, &s->side[0]));
	CHECK(tt_now() - start < s->timeout_ms * TT_MS);
	CHECK(stays(s, s->side[0].window, BIG));
	s->t->dereg(s->side[0].window_region);
	CHECK(tt_now() - start < s->timeout_ms * TT_MS);
	end_writer(&r, false);
}

/* Memory that was taken back stays as it is, also when the writer thaws. */
static void test_stopped_while_writing(struct bench *s)
{
	struct remote r;

	s->size = BIG;
	s->timeout_ms = 2000;
	if (!start_writer(s, &r, BY_PUTS))
		return;
	uint64_t start = tt_now();
	kill(r.pid, SIGSTOP);
	usleep(1000);
	s->t->dereg(s->side[0].window_region);
	CHECK(tt_now() - start < s->timeout_ms * TT_MS); /* nobody is served meanwhile */
	memset(s->side[0].window, 0x44, BIG);
	kill(r.pid, SIGCONT);
	usleep(3000);
	CHECK(all(s->side[0].window, BIG, 0x44));
	end_writer(&r, false);
}

/* Who stores by a pointer says so to nobody: frozen, he has to go. */
static void test_evicted(struct bench *s)
{
	struct remote r;

	s->size = BIG;
	s->timeout_ms = 400;
	if (!s->files || !start_writer(s, &r, BY_POINTER))
		return;
	kill(r.pid, SIGSTOP);
	usleep(1000);
	s->side[0].peer->frozen = 1;
	disconnect(s, &s->side[0]);
	CHECK(stays(s, s->side[0].window, BIG));
	CHECK(!end_writer(&r, true));
}

/* A living process that stores by a pointer lets go of the pointer. A process that has not let go within the silence
 * that counts as death is killed. */
static void test_disconnect_mapped(struct bench *s)
{
	bool awake = s->seed % 4 == 1; /* files: in odd seeds */
	struct remote r;

	s->size = BIG;
	s->timeout_ms = 2000;
	if (!s->files || !start_writer(s, &r, awake ? BY_POINTER_AWAKE : BY_POINTER))
		return;
	uint64_t start = tt_now();
	disconnect(s, &s->side[0]);
	CHECK(tt_now() - start < s->timeout_ms * TT_MS + (awake ? 0 : 1000 * TT_MS));
	CHECK(stays(s, s->side[0].window, BIG));
	if (!awake)
		await_end(r.pid);
	CHECK(end_writer(&r, !awake) == awake);
}

/* A store may take as long as a process may be silent. */
static void test_slow_store(struct bench *s)
{
	struct remote r;

	s->size = 4096;
	s->timeout_ms = 400;
	if (!s->files || !start_writer(s, &r, IN_ONE_STORE))
		return;
	s->t->dereg(s->side[0].window_region);
	settle(s);
	CHECK(count(s, DOWN, &s->side[0]) == 0);
	CHECK(end_writer(&r, false) == 1);
}

/* How much `received` grows at that side in one op, which begins some milliseconds after the one before. */
static uint64_t grows_in(struct bench *s, struct call *(*start)(struct side *, uint32_t, size_t, char *, size_t),
                         const struct side *side)
{
	struct patience p = wait_ms(s, 5000);
	uint64_t before = side->peer->received;
	struct side *a = &s->side[0];

	if (s->t == &tt_tcp)
		usleep(10000);
	struct call *c = start(a, 0, 0, a->local, BIG);
	while (!c->dones && turn(s, &p))
		;
	CHECK(c->dones && c->err == 0);
	some_turns(s, 6);
	return side->peer->received - before;
}

/* Also by bytes that the other side moves without any help. Over TCP, whose `received` counts bytes, the end that sends
 * the megabytes hears of their landing meanwhile: a frame more than the op itself takes. */
static void test_received(struct bench *s)
{
	if (!begin(s, BIG))
		return;
	struct side *a = &s->side[0], *b = &s->side[1];
	bool tcp = s->t == &tt_tcp;
	if (is_verbs(s->t)) { /* one sign for both: they take less than its time */
		CHECK(grows_in(s, s->seed % 2 ? get : put, b) >= BIG >> 20);
		return;
	}
	CHECK(grows_in(s, put, b) >= (tcp ? BIG : BIG >> 20));
	CHECK(grows_in(s, get, b) >= (tcp ? 2 * TT_FRAME_SIZE : s->t == &tt_sim ? 1 : BIG >> 20));
	if (!tcp)
		return; /* the first side moves them alone */
	CHECK(grows_in(s, put, a) >= 2 * TT_FRAME_SIZE);
	CHECK(grows_in(s, get, a) >= BIG);
}

static void test_names(struct bench *s)
{
	struct tt_device devices[4];
	size_t scheme = strlen(s->t->name);

	if (!begin(s, 4096))
		return;
	CHECK(s->t->list(devices, 4) >= 1);
	CHECK(s->t->list(NULL, 0) >= 1);
	for (int i = 0; i < 2; i++) {
		CHECK(!strncmp(s->side[i].net->addr, s->t->name, scheme) && s->side[i].net->addr[scheme] == ':');
		CHECK(!strcmp(s->side[i].net->transport->name, s->t->name) && s->side[i].net->user == &s->side[i]);
		CHECK(s->side[i].peer->net == s->side[i].net);
	}
	CHECK((s->side[0].net->fd < 0) == (s->t == &tt_sim));
	CHECK(s->side[0].net->host_only == (s->t == &tt_shm));
	CHECK(s->side[0].net->cheap_poll == (s->t == &tt_shm || is_verbs(s->t)));
}

/* Everything at once, with the sum of it known. */
static void test_mixture(struct bench *s)
{
	if (!begin(s, 1 << 17) || !join_third(s))
		return;
	uint64_t sum[3] = { 0 };
	for (int i = 0; i < 60; i++) {
		struct side *from = &s->side[chance(s, 3)];
		size_t len = 1 + chance(s, chance(s, 8) ? 300 : 60000), k = (size_t)(from - s->side);
		switch (chance(s, 4)) {
		case 0: put(from, (uint32_t)chance(s, 2) * TT_LAZY, 1024, from->local, len); break;
		case 1: get(from, (uint32_t)chance(s, 2) * TT_LAZY, 0, from->local + 65536, len); break;
		case 2: send_bytes(from, from->local, len % 1024); break;
		default: post(make_add(from, 8 * k, (uint64_t)i)); sum[k] += (uint64_t)i;
		}
		if (!chance(s, 8))
			some_turns(s, 2);
	}
	UNTIL(ended(s));
	for (struct call *c = s->calls; c; c = c->older)
		CHECK(c->err == 0);
	CHECK(word_is(s->side[1].window, sum[0]) && word_is(s->side[1].window + 16, sum[2]) &&
	      word_is(s->side[0].window + 8, sum[1]));
}

/* ---- tcp alone ---- */

static void test_no_copies(struct bench *s)
{
	if (!begin(s, BIG))
		return;
	struct side *a = &s->side[0], *b = &s->side[1];
	fill(a->local, BIG, 1);
	for (int i = 6; i < size_count(s); i++) {
		if (sizes[i] < 4096)
			continue;
		struct call *calls[] = { make_call(a, TT_PUT, 0, 0, a->local, sizes[i]),
		                         make_notify(a, 0, a->local, sizes[i], 3) };
		post_all(calls, 2);
		UNTIL(ended(s));
		get(a, 0, 0, a->local, sizes[i]);
		UNTIL(ended(s));
		CHECK(holds(a->local, sizes[i], 1) && holds(b->window, sizes[i], 1));
	}
	CHECK(a->net->copied == 0);
	CHECK(b->net->copied == 0);
}

static int dial(const char *addr)
{
	struct sockaddr_in in = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	struct sockaddr_in6 in6 = { .sin6_family = AF_INET6, .sin6_addr = in6addr_loopback };
	bool six = strchr(addr, '[');
	int fd = socket(six ? AF_INET6 : AF_INET, SOCK_STREAM, 0);

	in.sin_port = in6.sin6_port = htons((uint16_t)atoi(strrchr(addr, ':') + 1));
	if (six ? connect(fd, (struct sockaddr *)&in6, sizeof in6) : connect(fd, (struct sockaddr *)&in, sizeof in)) {
		close(fd);
		return -1;
	}
	return fd;
}

static void test_garbage_on_the_port(struct bench *s)
{
	char noise[5000];
	int fds[4];

	if (!begin(s, 65536))
		return;
	struct side *a = &s->side[0], *b = &s->side[1];
	for (int i = 0; i < 4; i++) {
		fds[i] = dial(b->net->addr);
		CHECK(fds[i] >= 0);
		for (size_t j = 0; j < sizeof noise; j++)
			noise[j] = (char)chance(s, 256);
		size_t len = i == 3 ? 0 : 1 + chance(s, sizeof noise);
		CHECK(send(fds[i], noise, len, MSG_NOSIGNAL | MSG_DONTWAIT) == (ssize_t)len);
		ENDED_WELL(put(a, 0, 0, a->local, 60000));
	}
	settle(s);
	ENDED_WELL(get(a, 0, 0, a->local, 60000));
	CHECK(count(s, UP, b) == 1 && count(s, DOWN, b) == 0 && count(s, DOWN, a) == 0);
	for (int i = 0; i < 4; i++)
		close(fds[i]);
	settle(s);
	CHECK(count(s, UP, b) == 1 && count(s, DOWN, b) == 0);
}

/* epoll takes no more: it has as many watches as this user may have. */
static bool watches_none;
int __real_epoll_ctl(int epoll, int op, int fd, struct epoll_event *event);
int __wrap_epoll_ctl(int epoll, int op, int fd, struct epoll_event *event);
int __wrap_epoll_ctl(int epoll, int op, int fd, struct epoll_event *event)
{
	if (!watches_none || op != EPOLL_CTL_ADD)
		return __real_epoll_ctl(epoll, op, fd, event);
	errno = ENOSPC;
	return -1;
}

static bool is_closed(int fd)
{
	char c;
	ssize_t n = recv(fd, &c, 1, MSG_DONTWAIT);

	return n == 0 || (n < 0 && errno != EAGAIN);
}

static void test_no_watch_for_a_stranger(struct bench *s)
{
	if (!prepare(s, 4096))
		return;
	struct side *a = &s->side[0], *b = &s->side[1];
	int fd = dial(b->net->addr);
	CHECK(fd >= 0);
	CHECK(send(fd, "T", 1, MSG_NOSIGNAL) == 1); /* the kernel keeps those that are silent for itself */
	watches_none = true;
	UNTIL(is_closed(fd)); /* the net accepts the stranger, cannot wait for it, closes it */
	watches_none = false;
	connect_side(s, a, b->net->addr);
	UNTIL(count(s, UP, a) && count(s, UP, b));
	ENDED_WELL(put(a, 0, 0, a->local, 4096));
	close(fd);
}

/* The least processor time of some rounds in which memory gets a key and loses it again. */
static uint64_t time_keys(struct bench *s)
{
	struct tt_net *net = s->side[0].net;
	struct tt_mem mem = { .base = s->side[0].local, .len = 64, .gpu = -1, .fd = -1 };
	uint64_t least = UINT64_MAX;

	for (int round = 0; round < 20; round++) {
		struct timespec from, to;
		clock_gettime(CLOCK_THREAD_CPUTIME_ID, &from);
		for (int i = 0; i < 20; i++) {
			struct tt_region *r;
			CHECK(s->t->reg(net, &mem, 1, NULL, &r) == 0);
			s->t->dereg(r);
		}
		clock_gettime(CLOCK_THREAD_CPUTIME_ID, &to);
		least = tt_min(least, (uint64_t)((to.tv_sec - from.tv_sec) * 1000000000 + to.tv_nsec - from.tv_nsec));
	}
	return least;
}

static void test_many_keys(struct bench *s)
{
	enum { MANY_KEYS = 5000 };
	static struct tt_region *regions[MANY_KEYS];

	if (!begin(s, 4096))
		return;
	struct tt_mem mem = { .base = s->side[0].local, .len = 64, .gpu = -1, .fd = -1 };
	uint64_t few = time_keys(s);
	for (int i = 0; i < MANY_KEYS; i++)
		CHECK(s->t->reg(s->side[0].net, &mem, 1, NULL, &regions[i]) == 0);
	CHECK(time_keys(s) < 4 * few);
	for (int i = 0; i < MANY_KEYS; i++)
		s->t->dereg(regions[i]);
}

/* ---- tcp alone: a peer that is proven, and then talks nonsense to side 1; side 0 is honest ---- */

enum { ROGUE_EPOCH = 7, ROGUE_SIZE = 65536, HONEST_AT = 32768, LOOSE_AT = 40000, TAIL = 64 };

struct rogue {
	int fd;
	struct tt_peer *peer; /* what side 1 calls it */
	int downs;            /* of side 1, before */
};

static void say(struct bench *s, const struct rogue *r, const void *bytes, size_t len)
{
	CHECK(send(r->fd, bytes, len, MSG_NOSIGNAL) == (ssize_t)len);
}

/* Turns the crank until so many bytes have come; false: they do not. */
static bool hear(struct bench *s, const struct rogue *r, void *to, size_t len)
{
	struct patience p = wait_ms(s, 5000);
	size_t n = 0;

	do {
		ssize_t got = recv(r->fd, (char *)to + n, len - n, MSG_DONTWAIT);
		if (got == 0 || (got < 0 && errno != EAGAIN))
			return false;
		n += got > 0 ? (size_t)got : 0;
	} while (n < len && turn(s, &p));
	return n == len;
}

/* Nothing is sent back: the next that comes is the end. */
static bool hears_the_end(struct bench *s, const struct rogue *r)
{
	char byte;

	if (hear(s, r, &byte, 1))
		return false;
	ssize_t n = recv(r->fd, &byte, 1, MSG_DONTWAIT); /* a reset is told once, then it is the end */
	return n == 0 || (n < 0 && errno != EAGAIN);
}

static struct rogue come_in(struct bench *s)
{
	struct side *b = &s->side[1];
	struct tt_hello h = { .version = TT_FRAME_VERSION, .epoch = ROGUE_EPOCH, .job = s->job[1] }, theirs;
	struct tt_peer *honest = b->peer;
	struct rogue r = { .fd = dial(b->net->addr), .downs = count(s, DOWN, b) };
	uint8_t hello[TT_HELLO_SIZE], proof[TT_PROOF_SIZE] = { 0 };
	int ups = count(s, UP, b);

	CHECK(r.fd >= 0);
	tt_hello_pack(&h, hello);
	say(s, &r, hello, sizeof hello);
	CHECK(hear(s, &r, hello, sizeof hello));
	CHECK(tt_hello_unpack(hello, sizeof hello, &theirs) && theirs.job == h.job && theirs.epoch == 1);
	say(s, &r, proof, sizeof proof);
	CHECK(hear(s, &r, proof, sizeof proof) && all((char *)proof, sizeof proof, 0));
	UNTIL(count(s, UP, b) == ups + 1);
	r.peer = b->peer;
	b->peer = honest;
	return r;
}

static void check_unharmed(struct bench *s)
{
	struct side *a = &s->side[0], *b = &s->side[1];

	ENDED_WELL(put(a, 0, HONEST_AT, a->local, 64));
	ENDED_WELL(get(a, 0, HONEST_AT, a->local + 64, 64));
	CHECK(holds(a->local + 64, 64, 5) && holds(b->window + HONEST_AT, 64, 5));
	CHECK(all(b->window, HONEST_AT, 0) && all(b->window + LOOSE_AT + 4096, ROGUE_SIZE - LOOSE_AT - 4096, 0));
	CHECK(all(b->local, ROGUE_SIZE, 0));
	CHECK(guards_hold(b->window, ROGUE_SIZE) && guards_hold(b->local, ROGUE_SIZE));
	CHECK(count(s, NOTIFY, b) == 0 && count(s, MESSAGE, b) == 0 && count(s, DOWN, a) == 0);
}

/* It is down at side 1, and nobody else is. */
static void see_it_lost(struct bench *s, const struct rogue *r)
{
	struct side *b = &s->side[1];
	struct tt_peer *honest = b->peer;

	UNTIL(count(s, DOWN, b) > r->downs);
	CHECK(count(s, DOWN, b) == r->downs + 1);
	CHECK(nth(s, DOWN, b, r->downs)->peer == r->peer && nth(s, DOWN, b, r->downs)->value == -ECONNRESET);
	if (!s->failed) {
		b->peer = r->peer;
		disconnect(s, b);
		b->peer = honest;
	}
	check_unharmed(s);
}

static bool begin_with_rogues(struct bench *s)
{
	if (!begin(s, ROGUE_SIZE))
		return false;
	s->never_arm = true; /* the rogue's socket is not among those that would wake us */
	fill(s->side[0].local, 64, 5);
	return true;
}

/* What the tables below say in job, epoch, key and slot is what is wrong with them. The length with as much of the
 * payload as is sent: no more, for what follows a frame is the next one, and would be nonsense too. */
static size_t pack_wrong(struct bench *s, struct tt_frame f, unsigned slot, uint8_t to[TT_FRAME_SIZE + TAIL])
{
	uint64_t key;

	memcpy(&key, s->side[1].key.raw, 8);
	f.job ^= tt_frame_fold(s->job[1]);
	f.epoch ^= ROGUE_EPOCH;
	f.key ^= key;
	f.slot ^= (uint16_t)slot;
	tt_frame_pack(&f, to);
	memset(to + TT_FRAME_SIZE, 0x99, TAIL);
	return TT_FRAME_SIZE + tt_min(tt_frame_payload(&f), TAIL);
}

struct wrong {
	const char *what;
	struct tt_frame frame;
	uint32_t why; /* of the NAK */
};
#define WRONG(what, ...) { what, { __VA_ARGS__ }, 0 }
#define NAKED(nak, what, ...) { what, { __VA_ARGS__ }, nak }
enum { WHOLE = TT_FRAME_INLINE | TT_FRAME_LAST };

static void tell_which(const struct bench *s, const struct wrong *w)
{
	if (s->failed && !quiet)
		printf("  with %s\n", w->what);
}

static void test_nonsense(struct bench *s)
{
	static const struct wrong wrongs[] = {
		WRONG("another job", .kind = TT_FRAME_ACK, .job = 1),
		WRONG("a PUT of another job", .kind = TT_FRAME_PUT, .flags = WHOLE, .len = 8, .word = 1,
		      .job = 1u << 31),
		WRONG("another life", .kind = TT_FRAME_ACK, .epoch = 1),
		WRONG("a PUT of another life", .kind = TT_FRAME_PUT, .flags = WHOLE, .len = 8, .word = 1, .epoch = 8),
		WRONG("kind 0", .kind = 0),
		WRONG("kind 9", .kind = TT_FRAME_ACK + 1),
		WRONG("kind 255", .kind = 255),
		WRONG("a PUT with NOTIFY that is not the last", .kind = TT_FRAME_PUT, .flags = TT_FRAME_NOTIFY,
		      .len = 8),
		WRONG("a PUT inline that is not the last", .kind = TT_FRAME_PUT, .flags = TT_FRAME_INLINE, .len = 8,
		      .word = 1),
		WRONG("a PUT with flag 32", .kind = TT_FRAME_PUT, .flags = TT_FRAME_LAST | 32, .len = TAIL),
		WRONG("a PUT with LOCAL that is not the last", .kind = TT_FRAME_PUT, .flags = TT_FRAME_LOCAL,
		      .len = TAIL, .word = 8),
		WRONG("a PUT with LOCAL and a bad key", .kind = TT_FRAME_PUT, .flags = TT_FRAME_LAST | TT_FRAME_LOCAL,
		      .len = TAIL, .key = 1 << 24),
		WRONG("a PUT with a notify of 25 bits", .kind = TT_FRAME_PUT, .flags = WHOLE | TT_FRAME_NOTIFY,
		      .len = 8, .notify = 1 << 24, .word = 1),
		WRONG("a GET with NOTIFY", .kind = TT_FRAME_GET, .flags = TT_FRAME_NOTIFY, .len = 8),
		WRONG("an ADD with LAST", .kind = TT_FRAME_ADD, .flags = TT_FRAME_LAST, .word = 1),
		WRONG("a SEND with LAST", .kind = TT_FRAME_SEND, .flags = TT_FRAME_LAST, .len = 8),
		WRONG("a SEND inline", .kind = TT_FRAME_SEND, .flags = TT_FRAME_INLINE, .len = 8),
		WRONG("an ACK with LAZY", .kind = TT_FRAME_ACK, .flags = TT_FRAME_LAZY),
		WRONG("a NAK without a reason", .kind = TT_FRAME_NAK),
		WRONG("a NAK with reason 4", .kind = TT_FRAME_NAK, .notify = TT_NAK_INVALID + 1),
		WRONG("a PUT inline of 9", .kind = TT_FRAME_PUT, .flags = WHOLE, .len = 9, .word = 1),
		WRONG("a PUT longer than a piece", .kind = TT_FRAME_PUT, .flags = TT_FRAME_LAST,
		      .len = TT_FRAME_PIECE_MAX + 1),
		WRONG("a PUT of 2^64 - 1", .kind = TT_FRAME_PUT, .flags = TT_FRAME_LAST, .len = UINT64_MAX),
		WRONG("a SEND that is too long", .kind = TT_FRAME_SEND, .len = TT_MESSAGE_MAX + 1),
		WRONG("a SEND of 2^64 - 1", .kind = TT_FRAME_SEND, .len = UINT64_MAX),
		WRONG("an ADD with a length", .kind = TT_FRAME_ADD, .len = 8, .word = 1),
		WRONG("an ACK with a length", .kind = TT_FRAME_ACK, .len = 1),
		WRONG("slot 256", .kind = TT_FRAME_PUT, .flags = WHOLE, .len = 8, .word = 1, .slot = TT_FRAME_SLOTS),
		WRONG("slot 65535", .kind = TT_FRAME_ADD, .word = 1, .slot = 65535),
		WRONG("a NAK of slot 256", .kind = TT_FRAME_NAK, .notify = TT_NAK_STALE, .slot = TT_FRAME_SLOTS),
		WRONG("an ack of what was not sent", .kind = TT_FRAME_ACK, .ack = 1),
		WRONG("an ack that runs backwards", .kind = TT_FRAME_ACK, .ack = UINT32_MAX),
		WRONG("a PUT with such an ack", .kind = TT_FRAME_PUT, .flags = WHOLE, .len = 8, .word = 1, .ack = 1),
		WRONG("a NAK of nothing", .kind = TT_FRAME_NAK, .notify = TT_NAK_STALE, .slot = 3),
		WRONG("a REPLY to nothing", .kind = TT_FRAME_REPLY, .flags = TT_FRAME_LAST, .len = TAIL, .slot = 3),
		WRONG("a REPLY inline to nothing", .kind = TT_FRAME_REPLY, .flags = WHOLE, .len = 8, .word = 1,
		      .slot = 3),
		WRONG("a SUM for nothing", .kind = TT_FRAME_SUM, .word = 1, .slot = 3),
	};
	uint8_t bytes[TT_FRAME_SIZE + TAIL];

	if (!begin_with_rogues(s))
		return;
	for (size_t i = 0; i < TT_COUNT(wrongs) && !s->failed; i++) {
		struct rogue r = come_in(s);
		say(s, &r, bytes, pack_wrong(s, wrongs[i].frame, 0, bytes));
		CHECK(hears_the_end(s, &r));
		see_it_lost(s, &r);
		close(r.fd);
		tell_which(s, &wrongs[i]);
	}
}

/* Side 1 asks the rogue for 64 bytes, and is answered so. */
static void test_false_answers(struct bench *s)
{
	static const struct wrong wrongs[] = {
		WRONG("one byte more", .kind = TT_FRAME_REPLY, .flags = TT_FRAME_LAST, .len = 65),
		WRONG("much more", .kind = TT_FRAME_REPLY, .len = TT_FRAME_PIECE),
		WRONG("the last of it, but less", .kind = TT_FRAME_REPLY, .flags = TT_FRAME_LAST, .len = 63),
		WRONG("all of it, but not the last", .kind = TT_FRAME_REPLY, .len = 64),
		WRONG("the second half first", .kind = TT_FRAME_REPLY, .flags = TT_FRAME_LAST, .len = 32, .offset = 32),
		WRONG("a piece from beyond", .kind = TT_FRAME_REPLY, .flags = TT_FRAME_LAST, .len = 64, .offset = 64),
		WRONG("a piece from before", .kind = TT_FRAME_REPLY, .flags = TT_FRAME_LAST, .len = 64,
		      .offset = UINT64_MAX - 31),
		WRONG("8 bytes inline", .kind = TT_FRAME_REPLY, .flags = WHOLE, .len = 8, .word = UINT64_MAX),
		WRONG("another slot", .kind = TT_FRAME_REPLY, .flags = TT_FRAME_LAST, .len = 64, .slot = 1),
		WRONG("a NAK of another slot", .kind = TT_FRAME_NAK, .notify = TT_NAK_RANGE, .slot = 1),
		WRONG("a SUM", .kind = TT_FRAME_SUM, .word = 1),
		WRONG("an ack", .kind = TT_FRAME_ACK, .ack = 1),
	};
	uint8_t bytes[TT_FRAME_SIZE + TAIL];
	struct tt_frame asked = { 0 };

	if (!begin_with_rogues(s))
		return;
	struct side *b = &s->side[1];
	for (size_t i = 0; i < TT_COUNT(wrongs) && !s->failed; i++) {
		struct rogue r = come_in(s);
		struct call *c = make_call(b, TT_GET, 0, 0, b->local, 64);
		struct tt_peer *honest = b->peer;
		b->peer = r.peer;
		post(c);
		b->peer = honest;
		CHECK(hear(s, &r, bytes, TT_FRAME_SIZE) && tt_frame_unpack(bytes, TT_FRAME_SIZE, &asked));
		CHECK(asked.kind == TT_FRAME_GET && asked.len == 64);
		say(s, &r, bytes, pack_wrong(s, wrongs[i].frame, asked.slot, bytes));
		CHECK(hears_the_end(s, &r));
		UNTIL(c->dones);
		CHECK(c->err == -ECONNRESET);
		see_it_lost(s, &r);
		close(r.fd);
		tell_which(s, &wrongs[i]);
	}
}

static void test_cut_short(struct bench *s)
{
	static const struct wrong wrongs[] = { /* the one of them that may leave bytes behind lands in a loose place */
		WRONG("a SEND", .kind = TT_FRAME_SEND, .len = 1000),
		WRONG("a PUT", .kind = TT_FRAME_PUT, .flags = TT_FRAME_LAST | TT_FRAME_NOTIFY, .notify = 9,
		      .offset = LOOSE_AT, .len = 1000),
		WRONG("a first piece", .kind = TT_FRAME_PUT, .offset = LOOSE_AT, .len = TAIL, .word = 1000),
		WRONG("an ACK", .kind = TT_FRAME_ACK),
	};
	uint8_t bytes[TT_FRAME_SIZE + TAIL];

	if (!begin_with_rogues(s))
		return;
	for (size_t i = 0; i < TT_COUNT(wrongs) && !s->failed; i++) {
		const size_t lens[] = { 1, 30, TT_FRAME_SIZE - 1, TT_FRAME_SIZE + TAIL };
		for (size_t k = 0; k < TT_COUNT(lens); k++) {
			struct rogue r = come_in(s);
			pack_wrong(s, wrongs[i].frame, 0, bytes);
			say(s, &r, bytes, wrongs[i].frame.kind == TT_FRAME_ACK && k == 3 ? 40 : lens[k]);
			some_turns(s, 3);
			close(r.fd);
			see_it_lost(s, &r);
			tell_which(s, &wrongs[i]);
		}
	}
}

/* All on one connection, which lives on. */
static void test_refused_frames(struct bench *s)
{
	static const struct wrong wrongs[] = {
		NAKED(TT_NAK_STALE, "a PUT inline with a bad key", .kind = TT_FRAME_PUT, .flags = WHOLE, .len = 8,
		      .word = 1, .key = 1 << 24),
		NAKED(TT_NAK_STALE, "a PUT with a bad key", .kind = TT_FRAME_PUT, .flags = TT_FRAME_LAST, .len = TAIL,
		      .key = UINT64_MAX),
		NAKED(TT_NAK_STALE, "a notify with a bad key", .kind = TT_FRAME_PUT, .flags = WHOLE | TT_FRAME_NOTIFY,
		      .len = 8, .key = 1),
		NAKED(TT_NAK_STALE, "a PUT with a place beyond the table", .kind = TT_FRAME_PUT, .flags = WHOLE,
		      .len = 8, .key = 0xffff00),
		NAKED(TT_NAK_RANGE, "a PUT across the end", .kind = TT_FRAME_PUT, .flags = WHOLE, .len = 8,
		      .offset = ROGUE_SIZE - 7, .word = UINT64_MAX),
		NAKED(TT_NAK_RANGE, "a PUT behind the end", .kind = TT_FRAME_PUT, .flags = TT_FRAME_LAST, .len = TAIL,
		      .offset = ROGUE_SIZE),
		NAKED(TT_NAK_RANGE, "a PUT before the start", .kind = TT_FRAME_PUT, .flags = TT_FRAME_LAST, .len = TAIL,
		      .offset = UINT64_MAX - TAIL + 1),
		NAKED(TT_NAK_RANGE, "a PUT with 2^64 - 1 to follow", .kind = TT_FRAME_PUT, .flags = TT_FRAME_LAST,
		      .len = TAIL, .word = UINT64_MAX),
		NAKED(TT_NAK_RANGE, "a PUT with too much to follow", .kind = TT_FRAME_PUT, .flags = TT_FRAME_LAST,
		      .len = TAIL, .word = ROGUE_SIZE - TAIL + 1),
		NAKED(TT_NAK_STALE, "a GET with a bad key", .kind = TT_FRAME_GET, .len = 8, .key = 1 << 24),
		NAKED(TT_NAK_RANGE, "a GET of too much", .kind = TT_FRAME_GET, .len = ROGUE_SIZE + 1),
		NAKED(TT_NAK_RANGE, "a GET of 2^64 - 1", .kind = TT_FRAME_GET, .len = UINT64_MAX, .offset = 2),
		NAKED(TT_NAK_STALE, "an ADD with a bad key", .kind = TT_FRAME_ADD, .word = 1, .key = 1 << 24),
		NAKED(TT_NAK_RANGE, "an ADD behind the end", .kind = TT_FRAME_ADD, .word = 1, .offset = ROGUE_SIZE),
		NAKED(TT_NAK_INVALID, "an ADD that is not aligned", .kind = TT_FRAME_ADD, .word = 1, .offset = 4),
	};
	const struct tt_frame pieces[] = {
		{ .kind = TT_FRAME_PUT, .len = TAIL, .word = ROGUE_SIZE, .slot = 77 }, /* the whole does not fit */
		{ .kind = TT_FRAME_PUT,
		  .flags = TT_FRAME_LAST | TT_FRAME_NOTIFY,
		  .offset = TAIL,
		  .len = TAIL,
		  .slot = 77 },
	};
	uint8_t bytes[TT_FRAME_SIZE + TAIL];
	struct tt_frame f = { 0 };
	uint32_t puts = 0;

	if (s->strict || !begin_with_rogues(s))
		return;
	struct side *b = &s->side[1];
	struct rogue r = come_in(s);
	for (size_t i = 0; i < TT_COUNT(wrongs) && !s->failed; i++) {
		const struct tt_frame *w = &wrongs[i].frame;
		say(s, &r, bytes, pack_wrong(s, *w, 10 + (unsigned)i, bytes));
		puts += w->kind == TT_FRAME_PUT;
		CHECK(hear(s, &r, bytes, TT_FRAME_SIZE) && tt_frame_unpack(bytes, TT_FRAME_SIZE, &f));
		CHECK(f.kind == TT_FRAME_NAK && f.slot == 10 + i && f.notify == wrongs[i].why && f.ack == puts);
		CHECK(f.job == tt_frame_fold(s->job[1]) && f.epoch == 1);
		check_unharmed(s);
		tell_which(s, &wrongs[i]);
	}
	for (int i = 0; i < 2; i++)
		say(s, &r, bytes, pack_wrong(s, pieces[i], 0, bytes));
	CHECK(hear(s, &r, bytes, TT_FRAME_SIZE) && tt_frame_unpack(bytes, TT_FRAME_SIZE, &f));
	CHECK(f.kind == TT_FRAME_NAK && f.slot == 77 && f.notify == TT_NAK_RANGE && f.ack == puts + 1);
	check_unharmed(s);
	f = (struct tt_frame){ .kind = TT_FRAME_PUT, .flags = TT_FRAME_LAST, .len = TAIL, .offset = LOOSE_AT };
	say(s, &r, bytes, pack_wrong(s, f, 0, bytes)); /* nothing is wrong with this one */
	CHECK(hear(s, &r, bytes, TT_FRAME_SIZE) && tt_frame_unpack(bytes, TT_FRAME_SIZE, &f));
	CHECK(f.kind == TT_FRAME_ACK && f.ack == puts + 2 && all(b->window + LOOSE_AT, TAIL, 0x99));
	CHECK(count(s, DOWN, b) == 0);
	close(r.fd);
	see_it_lost(s, &r);
}

/* It asks and asks, and never reads. */
static void test_too_many_requests(struct bench *s)
{
	enum { ASKED = 1000 };
	static uint8_t bytes[ASKED * TT_FRAME_SIZE + TAIL];
	struct tt_frame f = { .kind = TT_FRAME_GET, .len = ROGUE_SIZE };
	int small = 4096;

	if (!begin_with_rogues(s))
		return;
	struct rogue r = come_in(s);
	setsockopt(r.fd, SOL_SOCKET, SO_RCVBUF, &small, sizeof small);
	for (unsigned i = 0; i < ASKED; i++)
		pack_wrong(s, f, i % TT_FRAME_SLOTS, bytes + i * TT_FRAME_SIZE);
	say(s, &r, bytes, ASKED * TT_FRAME_SIZE);
	see_it_lost(s, &r);
	close(r.fd);
}

/* ---- sim alone: worlds of several ranks, each with a bench of its own ---- */

struct town {
	struct bench *outer;
	int ranks;
	struct tt_key keys[3];
	char addr[3][96];
	bool ready[3];
	uint64_t trace; /* of all that happened, with its time */
	int downs[3], notified, refused, healed;
	uint64_t woke;
};

static void mark(struct town *t, uint64_t x) { t->trace = (t->trace ^ (x + tt_now())) * 0x100000001b3; }

static bool settle_in(struct town *t, struct bench *s, int rank)
{
	*s = (struct bench){ .wire = t->outer->wire, .t = &tt_sim, .seed = t->outer->seed,
	                     .timeout_ms = 5000, .size = 65536 };
	tt_random_seed(&s->random, tt_sim_chance(UINT64_MAX));
	tt_sleeper_open(&s->sleeper);
	CHECK(open_side(s, 0));
	t->keys[rank] = s->side[0].key;
	snprintf(t->addr[rank], sizeof t->addr[rank], "%s", s->side[0].net->addr);
	t->ready[rank] = true;
	for (int i = 0; i < t->ranks; i++)
		while (!t->ready[i])
			tt_sim_sleep(1000);
	return !s->failed;
}

static void move_out(struct town *t, struct bench *s, int rank)
{
	t->downs[rank] = count(s, DOWN, &s->side[0]);
	mark(t, (uint64_t)s->logged);
	if (s->failed)
		t->outer->failed = true;
	end(s);
}

/* One slot to a notify: data and its notify never come apart, whoever dies when. */
static void check_slot(struct side *side, struct tt_peer *p, enum what what, const char *bytes, size_t len)
{
	struct bench *s = side->bench;

	(void)p, (void)bytes;
	if (what == NOTIFY)
		CHECK(holds(side->window + len * 4096, 4000, (unsigned)len));
}

static void write_until_down(struct town *t, struct bench *s)
{
	struct side *a = &s->side[0];

	connect_side(s, a, t->addr[1]);
	for (uint32_t i = 0; i < 16 && !count(s, DOWN, a); i++) {
		struct patience p = wait_ms(s, 0);
		while (!count(s, UP, a) && !count(s, DOWN, a) && turn(s, &p))
			;
		if (count(s, DOWN, a))
			break;
		fill(a->local + i * 4096, 4000, i);
		struct call *calls[] = { make_call(a, TT_PUT, 0, i * 4096, a->local + i * 4096, 4000),
		                         make_notify(a, 0, a->local, 0, i) };
		calls[0]->op.key = calls[1]->op.key = &t->keys[1];
		post_all(calls, 2);
		some_turns(s, 3);
	}
	UNTIL(ended(s));
	check_fail_order(s, a);
}

static void kill_program(int rank, void *arg)
{
	struct town *t = arg;
	struct bench bench, *s = &bench;

	if (!settle_in(t, s, rank))
		return;
	if (rank == 0) {
		tt_sim_kill(0, tt_sim_chance(300000));
		write_until_down(t, s);
		UNTIL(count(s, DOWN, &s->side[0]) == 1);
		CHECK(tt_sim_killed(0));
	} else {
		s->side[0].hook = check_slot;
		UNTIL(tt_sim_killed(0));
		settle(s);
		CHECK(count(s, DOWN, &s->side[0]) == count(s, UP, &s->side[0]));
		t->notified = count(s, NOTIFY, &s->side[0]);
		connect_side(s, &s->side[0], t->addr[0]);
		int before = count(s, DOWN, &s->side[0]);
		UNTIL(count(s, DOWN, &s->side[0]) > before);
		CHECK(nth(s, DOWN, &s->side[0], before)->value == -EHOSTUNREACH);
	}
	move_out(t, s, rank);
}

static struct town run_town(struct bench *s, int ranks, void (*program)(int, void *), int want)
{
	struct town t = { .outer = s, .ranks = ranks };
	struct tt_sim_config config = { .seed = s->seed, .ranks = ranks, .program = program, .arg = &t,
	                                .limit_ns = 60000 * TT_MS, .strict = s->strict };
	int err = tt_sim_run(&config);

	CHECK(err == want);
	return t;
}

static void test_kill(struct bench *s) { run_town(s, 2, kill_program, 0); }

static void test_replay(struct bench *s)
{
	struct town first = run_town(s, 2, kill_program, 0), second = run_town(s, 2, kill_program, 0);

	CHECK(first.trace == second.trace && first.notified == second.notified);
}

static void cut_program(int rank, void *arg)
{
	struct town *t = arg;
	struct bench bench, *s = &bench;

	if (!settle_in(t, s, rank))
		return;
	struct side *a = &s->side[0];
	if (rank < 2) {
		if (rank == 0)
			connect_side(s, a, t->addr[1]);
		UNTIL(count(s, UP, a));
		t->notified++; /* an end that is not up yet would not hear of it */
		while (t->notified < 2)
			tt_sim_sleep(1000);
		if (rank == 0)
			tt_sim_cut(0, 1, tt_sim_chance(50000));
		UNTIL(count(s, DOWN, a));
		CHECK(nth(s, DOWN, a, 0)->value == -ECONNRESET);
		connect_side(s, a, t->addr[1 - rank]);
		UNTIL(count(s, DOWN, a) == 2);
		CHECK(nth(s, DOWN, a, 1)->value == -EHOSTUNREACH);
		int downs = ++t->healed; /* of both ends, before anyone heals it */
		while (t->healed < 2)
			tt_sim_sleep(1000);
		if (downs == 2)
			tt_sim_heal(1, 0, 0);
		tt_sim_sleep(1000);
		if (rank == 0)
			connect_side(s, a, t->addr[1]);
		UNTIL(count(s, UP, a) == 2);
		connect_side(s, a, t->addr[2]); /* the others are as near as ever */
		UNTIL(count(s, UP, a) == 3);
		t->refused++;
		send_bytes(a, a->local, 1);
		UNTIL(ended(s));
		while (t->refused < 3)
			tt_sim_sleep(1000);
	} else {
		UNTIL(count(s, MESSAGE, a) == 2);
		t->refused++;
	}
	move_out(t, s, rank);
}

static void test_cut(struct bench *s) { run_town(s, 3, cut_program, 0); }

static void stop_program(int rank, void *arg)
{
	struct town *t = arg;

	if (rank == 0) {
		tt_sim_stop(1, 0, 1000 * TT_MS);
		tt_sim_sleep(1000);
		uint64_t start = tt_now();
		for (int i = 0; i < 20; i++)
			tt_sim_sleep(1000);
		t->woke = tt_now() - start;
	} else {
		uint64_t start = tt_now();
		for (int i = 0; i < 20; i++)
			tt_sim_sleep(1000);
		t->downs[1] = (int)((tt_now() - start) / TT_MS);
	}
}

static void test_stop(struct bench *s)
{
	struct town t = run_town(s, 2, stop_program, 0);

	CHECK(t.woke < TT_MS && t.downs[1] >= 999 && t.downs[1] < 1100);
}

static void deadlock_program(int rank, void *arg)
{
	struct tt_parking never = { 0 };

	(void)arg;
	while (rank && !tt_sim_killed(rank))
		tt_park(&never, TT_NEVER);
}

static void test_deadlock(struct bench *s)
{
	run_town(s, 3, deadlock_program, -EDEADLK);
	CHECK(strstr(tt_why(), "rank 1, 2;") != NULL);
}

static void spin_program(int rank, void *arg)
{
	struct town *t = arg;
	struct bench bench, *s = &bench;

	settle_in(t, s, rank);
	while (!tt_sim_killed(rank)) { /* it polls and never sleeps: the world goes on all the same */
		int n = 0;
		progress(s, &s->side[0], &n);
	}
	move_out(t, s, rank);
}

static void test_time_limit(struct bench *s)
{
	if (s->seed % 100 == 0)
		run_town(s, 2, spin_program, -ETIMEDOUT);
}

static void test_no_world(struct bench *s)
{
	struct tt_net_config config = { .events = &events };
	struct tt_net *net;

	CHECK(tt_sim.open(&config, &net) == -ENODEV);
}

/* ---- the table ---- */

#define T(name, sentence) { #name, sentence, test_##name, 0 }
#define ONLY(which, name, sentence) { #name, sentence, test_##name, which }
static const struct test tests[] = {
	T(one_done, "Each posted op gets exactly one done()"),
	T(done_outside_post,
	  "progress() or disconnect() calls it, post() never does; a bad argument takes the same path"),
	T(source_untouched, "After it the net touches `local` no more: a PUT's source"),
	T(message_source_untouched, "After it the net touches `local` no more: a SEND's source"),
	T(message_bytes, "SEND: any length up to TT_MESSAGE_MAX arrives whole; the bytes live until message() returns"),
	T(destination_untouched, "After it the net touches `local` no more: a GET's destination"),
	T(untouched_after_error, "whether err is 0 or not"),
	T(done_then_notify, "With err 0, every NOTIFY or SEND that I post afterwards sees the bytes"),
	T(done_then_notify_at_once, "The target's own loads see the bytes after such a notify"),
	T(done_then_get, "every GET that I start afterwards sees the bytes"),
	T(done_then_add, "every ADD that I start afterwards sees the bytes"),
	T(message_after_puts, "A SEND arrives after all PUTs posted earlier to that peer have landed"),
	T(notify_after_puts, "A NOTIFY arrives after all PUTs posted earlier to that peer have landed"),
	T(notify_after_own_data, "once the bytes have landed, tell the target"),
	T(posted_order, "SENDs and NOTIFYs arrive in the order posted"),
	T(both_ways, "each direction of a peer stands for itself"),
	T(word_is_whole, "A PUT or GET of exactly 8 bytes, aligned at both ends, is one load and one store"),
	T(get_of_words, "a GET takes each aligned word of 8 bytes as it is at one moment"),
	T(sizes, "any size; the transport splits"),
	T(add, "ADD: in, the addend; out, the old value; it wraps"),
	T(add_is_atomic, "it is atomic with the owner's own such atomics"),
	T(misaligned_add, "ADD: a multiple of 8, of 8 bytes; else -EINVAL"),
	T(range, "a range outside the key's -ERANGE: such an op touches no memory and hurts no other op"),
	T(forged_length, "a key that lies about its length reaches no more than its region"),
	T(garbage_key, "a key that is none touches no memory"),
	T(stale_key, "A peer that uses a key afterwards touches no memory, and may lose its connection for it. Where a "
	             "transport can tell, the op gets -ESTALE"),
	T(stale_put_is_silent, "... and notifies nobody"),
	T(failed_put_is_silent, "such an op touches no memory, and notifies nobody"),
	T(malformed, "a malformed argument -EINVAL"),
	T(notify_values, "the value the target sees, < 2^24; PUT of any length, 0 too, and then without a key"),
	T(unregistered, "NULL: host memory that is not registered, len <= net->copy_max, at least 64"),
	T(pin, "a region is registered with the pin that holds it; one for remote use is all of a pin for remote use"),
	T(dereg_in_put, "A landing in progress is cut off: PUT"),
	T(dereg_in_get, "A landing in progress is cut off: GET"),
	T(peer_fails, "every outstanding op gets done(-ECONNRESET) in post order, then down() comes once; later posts "
	              "get done(-ENOTCONN)"),
	T(post_while_failing, "what done() posts on a failing peer gets its done() too"),
	T(nothing_lands_after_down, "After down() that peer reaches none of my memory"),
	T(disconnect, "Finishes what is outstanding with -ECONNRESET and frees the peer. No down() follows"),
	T(close, "disconnects every peer, deregisters every region"),
	T(others_unharmed, "When a peer fails, others do not"),
	T(unreachable, "down(-EHOSTUNREACH) after a connect() means that this transport does not lead to the peer"),
	T(wrong_secret, "-EACCES (secret); an accepted peer that never came up is not reported"),
	T(right_secret, "the peer is connected or accepted, and has proven that it knows the secret"),
	T(other_job, "-EPROTO (version or job)"),
	T(connect_times_out, "-ETIMEDOUT before up"),
	T(never_up_is_not_reported, "An accepted peer that never came up is not reported"),
	T(up_comes_first, "Nothing is posted before up(), and anything is from then on"),
	T(many_connections, "a reliable channel to one remote net: each its own"),
	T(ping_pong, "The events may call post"),
	T(done_may_post, "done() may call post, reg and dereg"),
	T(events_may_connect, "The events may call connect"),
	T(done_may_free, "The op is the caller's again from done() on"),
	T(lazy_done_comes, "TT_LAZY: done() may wait until the target goes to sleep, and no longer"),
	T(lazy_done_while_polling, "TT_LAZY: ... or has polled in vain for some microseconds"),
	T(local_refused, "TT_LOCAL: a target that refuses the bytes may end the connection; nothing lands"),
	ONLY(ONLY_TCP, local_done_alone, "TT_LOCAL: done() comes as soon as the net needs `local` and `key` no more"),
	T(done_without_sleep, "without it the acknowledgement goes at once"),
	T(map, "the peer's region in my address space, or NULL. After down() the memory stays valid, frozen, until "
	       "disconnect(); until close() it is still memory, but nobody's"),
	T(store,
	  "Called around each piece that is stored ... 0: the key has been taken back, so store nothing and do not "
	  "call store_end()"),
	T(received, "received: grows with whatever comes from the peer, also in pieces: a sign of life"),
	T(names, "the text that connect() of another net takes"),
	T(mixture, "all of it at once"),
	ONLY(ONLY_SHM, send_at_once, "send: as a SEND behind all that was posted does; hear: as progress()"),
	ONLY(ONLY_SHM, send_wakes, "send: fd is readable when something has come after arm() returned 0"),
	ONLY(ONLY_SHM, inode_told, "inode: of that file, if the caller knows it"),
	ONLY(ONLY_SHM, nonsense_lines, "a line that is none breaks that connection at most"),
	ONLY(ONLY_SHM, killed_while_writing,
	     "When a peer fails ... down() comes; after it that peer reaches none of my memory"),
	ONLY(ONLY_SHM, stopped_while_writing, "dereg: The key stops working. A landing in progress is cut off"),
	ONLY(ONLY_SHM, disconnect_mapped,
	     "After down() that peer reaches none of my memory; and a healthy one is not killed"),
	ONLY(ONLY_SHM, slow_store, "dereg() waits for store_end()"),
	ONLY(ONLY_SHM, evicted,
	     "keep: what becomes of a process that can still store into memory which disconnect() takes back"),
	ONLY(ONLY_TCP, silent_name_server, "connect() waits for no name server; nor do disconnect() and close()"),
	ONLY(ONLY_TCP, names_of_hosts, "-ENXIO (no such host)"),
	ONLY(ONLY_TCP, many_keys, "a key takes no longer where there are many"),
	ONLY(ONLY_TCP, no_copies, "payload of 4 KiB and more is not copied in user space"),
	ONLY(ONLY_TCP, garbage_on_the_port, "strangers on the port disturb nobody"),
	ONLY(ONLY_TCP, no_watch_for_a_stranger, "a stranger that cannot be waited for leaves its place at the door"),
	ONLY(ONLY_TCP, nonsense, "a frame that is none, from a proven peer, breaks that connection and nothing else"),
	ONLY(ONLY_TCP, false_answers, "an answer that does not fit the question breaks the connection; nothing lands"),
	ONLY(ONLY_TCP, cut_short, "a frame that ends in the middle breaks the connection, and is told to nobody"),
	ONLY(ONLY_TCP, refused_frames, "a request that cannot be is answered with a NAK, and hurts no other"),
	ONLY(ONLY_TCP, too_many_requests, "at most 256 requests without an answer"),
	ONLY(OWN_WORLD, kill, "killed between data and notify; every wait of its fibers returns"),
	ONLY(OWN_WORLD, replay, "from one seed, one run"),
	ONLY(OWN_WORLD, cut, "the link breaks for good: both see down; connecting gives -EHOSTUNREACH"),
	ONLY(OWN_WORLD, stop, "none of its fibers runs for ns"),
	ONLY(OWN_WORLD, deadlock, "-EDEADLK: nothing can ever happen again; tt_why() names the ranks that hang"),
	ONLY(OWN_WORLD, time_limit, "-ETIMEDOUT: limit_ns passed"),
	ONLY(OWN_WORLD, no_world, "sim exists only inside a run"),
};

/* ---- running them ---- */

enum { SEEDS = TT_ASAN || TT_TSAN ? 200 : 2000 }; /* some ten times slower */

static struct {
	struct wire *only;
	uint64_t seeds, seed;
	bool one_seed, breaks, no_breaks, verbose;
	char **words;
	int word_count;
} options;

static void run_body(int rank, void *arg)
{
	struct bench *s = arg;

	(void)rank;
	tt_sleeper_open(&s->sleeper);
	current->run(s);
	end(s);
	tt_sleeper_close(&s->sleeper);
}

/* true: it passed. */
static bool run_once(const struct wire *w, const struct test *test, uint64_t seed, const char *listen)
{
	struct bench bench = { .wire = w, .t = w->t, .seed = seed, .listen = listen,
	                       .timeout_ms = is_verbs(w->t) ? 2000 : 5000,
	                       .job = { 1, 1, 1 }, .files = w->t == &tt_shm && seed % 2,
	                       .strict = seed / 2 % 2 || is_verbs(w->t) };
	struct bench *s = &bench;
	struct tt_sim_config config = { .seed = seed, .ranks = 1, .program = run_body, .arg = s, .strict = s->strict };

	current = test;
	tt_strict = s->strict;
#ifdef HAVE_VERBS
	tt_verbs_instead = w->fake ? &tt_fake_verbs : NULL;
	slowness = w->t == &tt_verbs && !w->fake ? 6 : 1;
	if (w->fake) {
		fake_plug(w->plug ? w->plug : fake_devices, w->plug ? 1 : FAKE_DEVICES);
		setenv("TUTTI_VERBS_CONNECT", w->cm ? "cm" : "tcp", 1);
		fake_seed(seed);
	}
#endif
	tt_random_seed(&s->random, seed);
	if (w->t == &tt_sim && test->only != OWN_WORLD)
		CHECK(tt_sim_run(&config) == 0);
	else
		run_body(0, s);
#ifdef HAVE_VERBS
	CHECK(s->failed || fake_left() == 0);
#endif
	return !s->failed;
}

static bool applies(const struct wire *w, const struct test *test)
{
	return !test->only ||
	       w->t == (test->only == ONLY_TCP ? &tt_tcp : test->only == ONLY_SHM ? &tt_shm : &tt_sim);
}

static bool has_ipv6(void)
{
	struct sockaddr_in6 a = { .sin6_family = AF_INET6, .sin6_addr = in6addr_loopback };
	int fd = socket(AF_INET6, SOCK_STREAM, 0);
	bool yes = fd >= 0 && !bind(fd, (struct sockaddr *)&a, sizeof a);

	if (fd >= 0)
		close(fd);
	return yes;
}

static void run_test(const struct wire *w, const struct test *test)
{
	uint64_t first = options.one_seed ? options.seed : 0;
	uint64_t runs = options.one_seed ? 1 : w->t == &tt_sim ? options.seeds :
	                w->fake ? 1 + options.seeds / SEEDS_A_FAKE : tt_min(TCP_RUNS, options.seeds);

	for (uint64_t seed = first; seed < first + runs; seed++)
		if (!run_once(w, test, seed, NULL))
			return;
	if (w->t == &tt_tcp && has_ipv6())
		run_once(w, test, first, "[::1]:0");
}

static struct wire wires[] = {
	{ .name = "sim", .t = &tt_sim }, { .name = "tcp", .t = &tt_tcp }, { .name = "shm", .t = &tt_shm },
#ifdef HAVE_VERBS
	{ .name = "fake-ib", .t = &tt_verbs, .devices = "fake_ib0", .fake = true },
	{ .name = "fake-roce", .t = &tt_verbs, .devices = "fake_roce0", .fake = true },
	{ .name = "fake-ib-cm", .t = &tt_verbs, .devices = "fake_ib0", .fake = true, .cm = true },
	{ .name = "fake-roce-cm", .t = &tt_verbs, .devices = "fake_roce0", .fake = true, .cm = true },
	{ .name = "fake-iwarp", .t = &tt_verbs, .devices = "fake_iwarp0", .fake = true },
	{ .name = "fake-vpi-ib", .t = &tt_verbs, .devices = "fake_vpi0:1", .fake = true, .plug = &fake_vpi },
	{ .name = "fake-vpi-roce", .t = &tt_verbs, .devices = "fake_vpi0:2", .fake = true, .plug = &fake_vpi },
	{ .name = "verbs", .t = &tt_verbs }, /* real adapters: only by name */
#endif
};

static struct wire *find_wire(const char *name)
{
	for (size_t i = 0; i < TT_COUNT(wires); i++)
		if (!strcmp(wires[i].name, name))
			return &wires[i];
	return NULL;
}

static bool is_chosen(const struct wire *w)
{
	return options.only ? options.only == w : !is_verbs(w->t) || w->fake;
}

/* CUnit's test functions have no argument: the names say which one it is. */
static void run_current(void)
{
	const struct wire *w = find_wire(CU_get_current_suite()->pName);

	for (size_t i = 0; i < TT_COUNT(tests); i++)
		if (!strcmp(tests[i].name, CU_get_current_test()->pName)) {
			uint64_t start = tt_now();
			run_test(w, &tests[i]);
			if (options.verbose)
				printf("%s: %s: %.1f ms\n", w->name, tests[i].name, (double)(tt_now() - start) / TT_MS);
			CU_PASS("");
		}
}

static bool is_wanted(const char *name)
{
	for (int i = 0; i < options.word_count; i++)
		if (strstr(name, options.words[i]))
			return true;
	return !options.word_count;
}

static void add_suites(void)
{
	for (size_t k = 0; k < TT_COUNT(wires); k++) {
		if (!is_chosen(&wires[k]))
			continue;
		CU_pSuite suite = CU_add_suite(wires[k].name, NULL, NULL);
		for (size_t i = 0; i < TT_COUNT(tests); i++)
			if (applies(&wires[k], &tests[i]) && is_wanted(tests[i].name))
				CU_add_test(suite, tests[i].name, run_current);
	}
}

/* ---- the ways of breaking it ---- */

static const struct { const char *name, *sentence; } breaks[] = {
	{ "none", "" },
#define X(name, sentence) { #name, sentence },
	TT_BREAK_LIST(X)
#undef X
};

enum { TEST_SECONDS = 30 }; /* a test that takes longer hangs, if without a break none comes near it */
enum { ENDED_CLEAN, ENDED_CAUGHT, ENDED_LOST }; /* LOST: for a reason that says nothing about the wire */

struct trial {
	int status;
	size_t last;      /* the test it ended in */
	uint64_t longest; /* how long a test took at most */
};

/* In a child: writes the number of each test before it runs; ends with CAUGHT as soon as one fails. */
static void run_broken(const struct wire *w, enum tt_break which, int out)
{
	uint64_t seeds = w->t == &tt_sim ? BREAK_SEEDS : TCP_RUNS; /* some of them strict */
	int null = open("/dev/null", O_WRONLY);

	dup2(null, 2);
	quiet = true;
	tt_break = which;
	for (uint64_t seed = 0; seed < seeds; seed++)
		for (size_t i = 0; i < TT_COUNT(tests); i++) {
			if (!applies(w, &tests[i]))
				continue;
			alarm(TEST_SECONDS);
			if (write(out, &i, sizeof i) != sizeof i)
				_exit(ENDED_LOST);
			if (!run_once(w, &tests[i], seed, NULL))
				_exit(ENDED_CAUGHT);
		}
	_exit(ENDED_CLEAN);
}

/* Some breaks need a net that pins. */
static bool can_break(const struct wire *w, enum tt_break which)
{
	return which != TT_BREAK_PIN_SPARED || w->t == &tt_sim;
}

static struct trial try_break(const struct wire *w, enum tt_break which)
{
	struct trial r = { .status = ENDED_LOST << 8 }; /* as if it had ended so */
	int fds[2];
	size_t i;

	if (pipe(fds))
		return r;
	fflush(stdout);
	pid_t child = fork();
	if (!child) {
		close(fds[0]);
		run_broken(w, which, fds[1]);
	}
	close(fds[1]);
	uint64_t start = tt_now();
	for (bool more = true; more; start = tt_now()) {
		more = read(fds[0], &i, sizeof i) == sizeof i;
		r.longest = tt_max(r.longest, tt_now() - start);
		if (more)
			r.last = i;
	}
	close(fds[0]);
	if (child > 0)
		waitpid(child, &r.status, 0);
	return r;
}

/* How the break was caught; NULL: it was not. */
static const char *judge(const struct trial *r, const struct trial *clean)
{
	static const int crashes[] = { SIGSEGV, SIGBUS, SIGABRT, SIGFPE, SIGILL, SIGTRAP };

	if (WIFEXITED(r->status)) /* sanitizers have numbers of their own */
		return WEXITSTATUS(r->status) != ENDED_CLEAN && WEXITSTATUS(r->status) != ENDED_LOST ? "" : NULL;
	if (WTERMSIG(r->status) == SIGALRM)
		return clean->longest < TEST_SECONDS * 1000 * TT_MS / 4 ? ", by hanging" : NULL;
	for (size_t i = 0; i < TT_COUNT(crashes); i++)
		if (WTERMSIG(r->status) == crashes[i])
			return ", by a crash";
	return NULL;
}

static bool catch_break(const struct wire *w, enum tt_break which, const struct trial *clean)
{
	struct trial r = try_break(w, which);
	const char *how = judge(&r, clean);

	if (how)
		printf("%s: break %s caught by %s%s\n", w->name, breaks[which].name, tests[r.last].name, how);
	else
		printf("FAILED %s: nothing catches the break %s: %s (wait status %#x in %s)\n", w->name,
		       breaks[which].name, breaks[which].sentence, (unsigned)r.status, tests[r.last].name);
	return how != NULL;
}

/* Without a break all must be well on the same path, or to catch one means nothing. */
static int count_uncaught(void)
{
	int uncaught = 0;

	for (size_t k = 0; k < TT_COUNT(wires); k++) {
		if (is_verbs(wires[k].t) || !is_chosen(&wires[k]))
			continue;
		struct trial clean = try_break(&wires[k], TT_BREAK_NONE);
		if (clean.status) {
			printf("FAILED %s: without any break %s fails too (wait status %#x): no break is tried\n",
			       wires[k].name, tests[clean.last].name, (unsigned)clean.status);
			uncaught += TT_BREAKS_END - 1;
			continue;
		}
		printf("%s: no break: all well\n", wires[k].name);
		for (int b = 1; b < TT_BREAKS_END; b++)
			uncaught += can_break(&wires[k], (enum tt_break)b) &&
			            !catch_break(&wires[k], (enum tt_break)b, &clean);
	}
	return uncaught;
}

/* ---- main ---- */

static int usage(void)
{
	printf("contract [--transport sim|tcp|shm|fake-...|verbs|all] [--devices A,B] [--seeds N] [--seed S] "
	       "[--breaks | --no-breaks] [-v] [TEST ...]\n");
	return 2;
}

static bool read_options(int argc, char **argv)
{
	int i = 1;

	for (; i < argc && argv[i][0] == '-'; i++) {
		bool more = i + 1 < argc;
		if (!strcmp(argv[i], "-v"))
			options.verbose = true;
		else if (!strcmp(argv[i], "--breaks"))
			options.breaks = true;
		else if (!strcmp(argv[i], "--no-breaks"))
			options.no_breaks = true;
		else if (!strcmp(argv[i], "--seeds") && more)
			options.seeds = strtoull(argv[++i], NULL, 10);
		else if (!strcmp(argv[i], "--seed") && more) {
			options.seed = strtoull(argv[++i], NULL, 10);
			options.one_seed = true;
		} else if (!strcmp(argv[i], "--devices") && more && find_wire("verbs")) {
			find_wire("verbs")->devices = argv[++i];
		} else if (!strcmp(argv[i], "--transport") && more) {
			options.only = find_wire(argv[++i]);
			if (!options.only && strcmp(argv[i], "all"))
				return false;
		} else
			return false;
	}
	options.words = argv + i;
	options.word_count = argc - i;
	return true;
}

static int run_all(void)
{
	if (CU_initialize_registry())
		return 1;
	add_suites();
	CU_run_all_tests();
	unsigned failed = CU_get_number_of_tests_failed(), run = CU_get_number_of_tests_run();
	printf("%u tests, %u failed\n", run, failed);
	CU_cleanup_registry();
	return failed || !run;
}

int main(int argc, char **argv)
{
	int bad = 0, uncaught = 0;

	options.seeds = (uint64_t)all_or(SEEDS, SEEDS / 8);
	if (!read_options(argc, argv))
		return usage();
	signal(SIGPIPE, SIG_IGN);
	if (!options.breaks)
		bad = run_all();
	if (options.breaks || (!options.no_breaks && !options.one_seed && !options.word_count)) {
		uncaught = count_uncaught();
		printf("%d breaks uncaught\n", uncaught);
	}
	return bad || uncaught;
}
