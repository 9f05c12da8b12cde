/* attack.h - a simulated job of three ranks, one of which does what the input says: it speaks raw bytes on its own
 * connections and on new ones, spoils what its own library sends, and takes part in the job or not. The others are
 * honest.
 *
 * Nothing in here makes a member message: the linker puts a wire of ours (__wrap_tt_sim) between the library and the
 * simulated one, which sees each rank's net and connections through the contract of transport.h alone. Only note()
 * looks into them. */
#ifndef TT_FUZZ_ATTACK_H
#define TT_FUZZ_ATTACK_H
#include "member/member_private.h"
#include "tests/fuzz/fuzz.h"
#include "transport/sim/sim.h"

enum { RANKS = 3, MOUTHS = 12, EVENTS_MAX = 96 };

extern const struct tt_transport __real_tt_sim, __wrap_tt_sim;

struct mouth { /* a connection on which the attacker can speak */
	struct tt_peer *peer;
	bool raw; /* not of its library, but of a net of its own */
};

static struct attack {
	struct fuzz_input in;
	int rank;                                 /* the attacker's */
	const struct tt_events *events[RANKS];    /* of each rank's library */
	uint64_t job;
	uint32_t epoch;
	bool opened;                              /* somebody has opened a net: job and epoch are known */
	struct mouth mouths[MOUTHS];
	int count;
	struct tt_net *net;                       /* the attacker's own */
	bool has_twist;
	/* of a coming message: passed over, place, what is xored, bytes dropped */
	uint8_t twist_skip, twist_at, twist_with, twist_cut;
	/* it has said of somebody that he is gone: then that may be believed */
	bool accused;
	void (*call)(struct attack *, unsigned);  /* something that its library does; NULL: it is not in the job */
	void (*join)(struct attack *);
} attack;

static inline bool is_attacker(void) { return tt_sim_rank() == attack.rank; }

/* ---- mouths ---- */

static inline void gain(struct tt_peer *peer, bool raw)
{
	if (attack.count < MOUTHS)
		attack.mouths[attack.count++] = (struct mouth){ peer, raw };
}

static inline void lose(const struct tt_peer *peer)
{
	for (int i = 0; i < attack.count; i++)
		if (attack.mouths[i].peer == peer)
			attack.mouths[i--] = attack.mouths[--attack.count];
}

static inline void lose_net(const struct tt_net *net)
{
	for (int i = 0; i < attack.count; i++)
		if (attack.mouths[i].peer->net == net)
			attack.mouths[i--] = attack.mouths[--attack.count];
}

/* ---- the wire between the library and the simulated one ---- */

static inline const struct tt_events *theirs(void) { return attack.events[tt_sim_rank()]; }

static void wrap_up(struct tt_peer *p)
{
	if (is_attacker())
		gain(p, false);
	theirs()->up(p);
}

static void wrap_message(struct tt_peer *p, const void *bytes, size_t len) { theirs()->message(p, bytes, len); }
static void wrap_notify(struct tt_peer *p, uint32_t value) { theirs()->notify(p, value); }

static void wrap_down(struct tt_peer *p, int err)
{
	if (is_attacker())
		lose(p);
	theirs()->down(p, err);
}

static const struct tt_events wrap_events = { wrap_up, wrap_message, wrap_notify, wrap_down };

static int wrap_open(const struct tt_net_config *c, struct tt_net **out)
{
	struct tt_net_config mine = *c;
	int err;

	attack.events[tt_sim_rank()] = c->events;
	attack.job = c->job;
	attack.epoch = c->epoch;
	attack.opened = true;
	mine.events = &wrap_events;
	if ((err = __real_tt_sim.open(&mine, out)))
		return err;
	(*out)->transport = &__wrap_tt_sim;
	return 0;
}

static void wrap_close(struct tt_net *net)
{
	if (is_attacker())
		lose_net(net);
	__real_tt_sim.close(net);
}

static void wrap_disconnect(struct tt_peer *p)
{
	if (is_attacker())
		lose(p);
	__real_tt_sim.disconnect(p);
}

/* What an honest rank may believe of others: that they have gone, that they have started anew, that a group is without
 * them. */
static inline void note(const void *bytes, size_t len)
{
	const uint8_t *b = bytes;
	bool down = len && (b[0] == TT_DOWN || b[0] == TT_FAREWELL);
	bool life = len >= 14 && b[0] == TT_HELLO && b[1] != attack.rank && !b[13];
	/* says who stays, or keeps the others from agreeing until one gives up the other */
	bool roll = len > 1 && b[0] == TT_AGREE && b[1] >= 2;

	attack.accused |= down || life || roll;
}

static inline void twist(struct tt_op *op)
{
	if (op->kind != TT_SEND || !op->len)
		return;
	if (attack.has_twist && !attack.twist_skip--) {
		attack.has_twist = false;
		((uint8_t *)op->local)[attack.twist_at % op->len] ^= attack.twist_with;
		op->len -= tt_min(attack.twist_cut, op->len);
		note(op->local, op->len);
	} else if (*(const uint8_t *)op->local == TT_DOWN) {
		attack.accused = true; /* what else the library says of itself is right */
	}
}

static void wrap_post(struct tt_peer *p, struct tt_op *op)
{
	if (is_attacker())
		twist(op);
	__real_tt_sim.post(p, op);
}

static int wrap_list(struct tt_device *d, int max) { return __real_tt_sim.list(d, max); }
static int wrap_reg(struct tt_net *n, const struct tt_mem *m, int remote, struct tt_pin *pin, struct tt_region **r)
{
	return __real_tt_sim.reg(n, m, remote, pin, r);
}

static void wrap_dereg(struct tt_region *r) { __real_tt_sim.dereg(r); }
static int wrap_connect(struct tt_net *n, const char *addr, struct tt_peer **p)
{
	return __real_tt_sim.connect(n, addr, p);
}
static void *wrap_map(struct tt_peer *p, const struct tt_key *k, int anytime)
{
	return __real_tt_sim.map(p, k, anytime);
}
static int wrap_store_begin(struct tt_peer *p, const struct tt_key *k) { return __real_tt_sim.store_begin(p, k); }
static void wrap_store_end(struct tt_peer *p) { __real_tt_sim.store_end(p); }
static int wrap_tell(struct tt_peer *p, uint32_t value) { return __real_tt_sim.notify(p, value); }

/* The attacker's own net goes along, else it would hold up the library's sleep with what nobody takes. */
static int wrap_progress(struct tt_net *n)
{
	int mine = is_attacker() && attack.net ? __real_tt_sim.progress(attack.net) : 0;

	return mine + __real_tt_sim.progress(n);
}

static int wrap_arm(struct tt_net *n) { return __real_tt_sim.arm(n); }

const struct tt_transport __wrap_tt_sim = {
	.name = "sim", .list = wrap_list, .open = wrap_open, .close = wrap_close, .reg = wrap_reg, .dereg = wrap_dereg,
	.connect = wrap_connect, .disconnect = wrap_disconnect, .post = wrap_post, .map = wrap_map,
	.store_begin = wrap_store_begin, .store_end = wrap_store_end, .notify = wrap_tell, .progress = wrap_progress,
	.arm = wrap_arm,
};

/* ---- the attacker's own net ---- */

static void raw_up(struct tt_peer *p) { gain(p, true); }
static void raw_message(struct tt_peer *p, const void *bytes, size_t len) { (void)p, (void)bytes, (void)len; }
static void raw_notify(struct tt_peer *p, uint32_t value) { (void)p, (void)value; }
static void raw_down(struct tt_peer *p, int err) { (void)err, lose(p); } /* it goes with its net */

static const struct tt_events raw_events = { raw_up, raw_message, raw_notify, raw_down };

static inline void open_raw(void)
{
	while (!attack.opened)
		tt_sim_sleep(1000);
	struct tt_net_config c = { .events = &raw_events, .listen_fd = -1, .job = attack.job, .epoch = attack.epoch };
	FUZZ_CHECK(!__real_tt_sim.open(&c, &attack.net), "a net opens");
}

static inline void close_raw(void)
{
	if (!attack.net)
		return;
	lose_net(attack.net);
	__real_tt_sim.close(attack.net);
	attack.net = NULL;
}

/* ---- what the input can say ---- */

struct word { /* bytes on their way, said raw */
	struct tt_op op;
	struct tt_region *region;
	uint8_t bytes[];
};

static void said(struct tt_op *op)
{
	struct word *w = tt_container_of(op, struct word, op);

	if (w->region)
		__real_tt_sim.dereg(w->region);
	free(w);
}

static inline struct mouth *choose_mouth(void)
{
	unsigned i = fuzz_number(&attack.in, 1);

	return attack.count ? &attack.mouths[i % (unsigned)attack.count] : NULL;
}

static inline void say(const struct mouth *m, const void *bytes, size_t len, uint32_t value, enum tt_kind kind)
{
	struct word *w = calloc(1, sizeof *w + len);

	if (!w)
		abort();
	if (len)
		memcpy(w->bytes, bytes, len);
	w->op = (struct tt_op){ .kind = kind,
		                .flags = kind == TT_PUT ? TT_NOTIFY : 0,
		                .notify = value,
		                .local = w->bytes,
		                .len = len,
		                .done = said };
	if (len > m->peer->net->copy_max) {
		struct tt_mem mem = { .base = w->bytes, .len = len, .gpu = -1, .fd = -1 };
		const struct tt_transport *t = m->peer->net->transport;
		struct tt_pin *pin = NULL;
		FUZZ_CHECK(!t->pin || !t->pin(m->peer->net, &mem, 0, &pin), "memory is pinned");
		FUZZ_CHECK(!__real_tt_sim.reg(m->peer->net, &mem, 0, pin, &w->region), "memory is registered");
		w->op.region = w->region;
	}
	if (kind == TT_SEND)
		note(bytes, len);
	__real_tt_sim.post(m->peer, &w->op);
}

static inline void say_bytes(void)
{
	const struct mouth *m = choose_mouth();
	size_t len = fuzz_number(&attack.in, 1);

	if (len == 255)
		len = fuzz_number(&attack.in, 2) & 0x3fff;
	const uint8_t *bytes = fuzz_take(&attack.in, len, &len);
	if (m)
		say(m, bytes, len, 0, TT_SEND);
}

static inline void say_notify(void)
{
	const struct mouth *m = choose_mouth();
	uint32_t value = fuzz_number(&attack.in, 3);

	if (m)
		say(m, NULL, 0, value, TT_PUT);
}

static inline void connect_raw(void)
{
	char addr[16];
	struct tt_peer *p;

	snprintf(addr, sizeof addr, "sim:%d", (int)(fuzz_number(&attack.in, 1) % RANKS));
	if (attack.net)
		__real_tt_sim.connect(attack.net, addr, &p);
	tt_sim_sleep(200000); /* so that what follows has a mouth to be said with */
}

static inline void hang_up(void)
{
	const struct mouth *m = choose_mouth();

	if (m && m->raw) {
		struct tt_peer *p = m->peer;
		lose(p);
		__real_tt_sim.disconnect(p);
	}
}

static inline void plan_twist(void)
{
	attack.twist_skip = (uint8_t)(fuzz_number(&attack.in, 1) % 32);
	attack.twist_at = (uint8_t)fuzz_number(&attack.in, 1);
	attack.twist_with = (uint8_t)fuzz_number(&attack.in, 1);
	attack.twist_cut = (uint8_t)fuzz_number(&attack.in, 1);
	attack.has_twist = true;
}

/* Says all that the input has to say, in less than a quarter of a second of simulated time beyond what calls take. */
static inline void run_attack(void)
{
	for (int i = 0; i < EVENTS_MAX && attack.in.left; i++) {
		unsigned event = fuzz_number(&attack.in, 1) % 8;
		if (event == 0)
			say_bytes();
		else if (event == 1)
			say_notify();
		else if (event == 2)
			connect_raw();
		else if (event == 3)
			hang_up();
		else if (event == 4)
			plan_twist();
		else if (event == 5)
			tt_sim_sleep(1ull << fuzz_number(&attack.in, 1) % 22);
		else if (event == 6 && attack.call)
			attack.call(&attack, fuzz_number(&attack.in, 1));
		else if (event == 7 && attack.join)
			attack.join(&attack);
		if (attack.net)
			__real_tt_sim.progress(attack.net);
		tt_sim_sleep(20000);
	}
	tt_sim_sleep(1000000);
	if (attack.net)
		__real_tt_sim.progress(attack.net);
}

/* A spoiled message before anything else, for one whose library begins. */
static inline void plan_first_twist(void)
{
	if (fuzz_number(&attack.in, 1) & 1)
		plan_twist();
}

/* Three ranks run `program`; what is left of the input begins with the world's seed. */
static inline void run_world(struct fuzz_input in, int attacker, int timeout_ms, void (*program)(int, void *))
{
	struct tt_sim_config c = { .seed = fuzz_number(&in, 1),
		                   .ranks = RANKS,
		                   .program = program,
		                   .timeout_ms = timeout_ms,
		                   .silence_ms = timeout_ms * 3 / 10 > 100 ? timeout_ms * 3 / 10 : 100,
		                   .limit_ns = 600000 * TT_MS };

	attack = (struct attack){ .in = in, .rank = attacker };
	int err = tt_sim_run(&c);
	FUZZ_CHECK(!err, "every program returns in time");
}

/* ---- an attacker in any place: the first byte says in which, and whether its library has the first of its addresses,
 * which is rank 0's known one ---- */

static struct {
	void (*attacker)(void), (*honest)(void);
	bool library_first;
} cast;

static void play(int rank, void *arg)
{
	(void)arg;
	if (rank == attack.rank)
		cast.attacker();
	else
		cast.honest();
}

static inline void run_anywhere(struct fuzz_input in, int timeout_ms, void (*attacker)(void), void (*honest)(void))
{
	uint32_t place = fuzz_number(&in, 1);

	cast.attacker = attacker;
	cast.honest = honest;
	cast.library_first = place & 128;
	run_world(in, (int)(place % 128 % RANKS), timeout_ms, play);
}
#endif
