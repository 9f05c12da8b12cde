/* door.c - accepting strangers, and judging them: version, job, and a proof of the secret */
#include "transport/door.h"
#include "transport/fork.h"
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>
#ifdef HAVE_LIBSODIUM
#include <sodium.h>
#endif

/* The secret */

static int take_secret(struct tt_door *d, const struct tt_net_config *c)
{
	if (!c->secret)
		return 0;
	if (!c->secret_len)
		return tt_fail(-EINVAL, "the job's secret is empty: set TUTTI_SECRET to 16 bytes or more");
#ifdef HAVE_LIBSODIUM
	if (sodium_init() < 0)
		return tt_fail(-EIO, "libsodium does not start: is /dev/urandom there?");
	crypto_generichash(d->secret, sizeof d->secret, c->secret, c->secret_len, NULL, 0);
	d->has_secret = true;
	return 0;
#else
	(void)d;
	return tt_fail(-ENOTSUP, "this Tutti was built without libsodium and cannot keep the job's secret: install "
	               "libsodium and rebuild, or unset TUTTI_SECRET and stay on one host");
#endif
}

/* Without a secret the proof is zeros: there is nothing to prove. */
static void make_proof(const struct tt_shake *h, bool of_acceptor, uint8_t out[TT_PROOF_SIZE])
{
	memset(out, 0, TT_PROOF_SIZE);
#ifdef HAVE_LIBSODIUM
	if (h->door->has_secret) {
		const uint8_t whose = of_acceptor ? 'A' : 'I';
		crypto_generichash_state s;
		crypto_generichash_init(&s, h->door->secret, sizeof h->door->secret, TT_PROOF_SIZE);
		crypto_generichash_update(&s, &whose, 1);
		crypto_generichash_update(&s, h->accepted ? h->theirs : h->mine, TT_HELLO_SIZE);
		crypto_generichash_update(&s, h->accepted ? h->mine : h->theirs, TT_HELLO_SIZE);
		crypto_generichash_final(&s, out, TT_PROOF_SIZE);
	}
#else
	(void)h;
	(void)of_acceptor;
#endif
}

/* Takes a time that does not depend on where the two differ. */
static bool is_same(const uint8_t *a, const uint8_t *b)
{
#ifdef HAVE_LIBSODIUM
	return sodium_memcmp(a, b, TT_PROOF_SIZE) == 0;
#else
	return memcmp(a, b, TT_PROOF_SIZE) == 0; /* both are zeros: the time tells nothing */
#endif
}

/* Listening */

#define PAUSE (250 * TT_MS) /* of accepting, when there is no file or memory left */

int tt_door_open(struct tt_door *d, struct tt_net *net, const struct tt_net_config *c,
                 const struct tt_door_calls *calls)
{
	d->net = net;
	d->calls = calls;
	d->job = c->job;
	d->epoch = c->epoch;
	d->timeout_ms = c->timeout_ms ? c->timeout_ms : 30000;
	d->timeout = d->timeout_ms * TT_MS;
	d->listen_fd = -1;
	tt_list_init(&d->shakes);
	return take_secret(d, c);
}

/* An initiator speaks first. Over TCP the kernel keeps connections that say nothing for itself, so that a crowd of them
 * takes no place in the house, and makes nobody wait behind it. Other sockets refuse the option. */
static void leave_out_silent(const struct tt_door *d, int fd)
{
	int seconds = (int)tt_max(d->timeout_ms / 1000, 1);

	setsockopt(fd, IPPROTO_TCP, TCP_DEFER_ACCEPT, &seconds, sizeof seconds);
}

int tt_door_listen(struct tt_door *d, int fd)
{
	struct epoll_event event = { .events = EPOLLIN, .data.ptr = d };

	leave_out_silent(d, fd);
	if (epoll_ctl(d->net->fd, EPOLL_CTL_ADD, fd, &event))
		return tt_fail(-errno, "cannot wait on a listening socket: %s", strerror(errno));
	d->listen_fd = fd;
	tt_fork_hold(fd);
	return 0;
}

void tt_door_close(struct tt_door *d)
{
	if (d->listen_fd >= 0)
		tt_fork_close(d->listen_fd);
	d->listen_fd = -1;
	explicit_bzero(d->secret, sizeof d->secret);
}

static void pause_accepting(struct tt_door *d, uint64_t until)
{
	struct epoll_event event = { .events = until ? 0 : EPOLLIN, .data.ptr = d };

	if (!until == !d->listen_again)
		return;
	d->listen_again = until;
	epoll_ctl(d->net->fd, EPOLL_CTL_MOD, d->listen_fd, &event);
}

/* A stranger in TT_STAGE_READY does not count: its other end is up already. */
static struct tt_shake *oldest_stranger(struct tt_door *d)
{
	tt_each_of(struct tt_shake, node, h, &d->shakes)
		if (h->accepted && h->ops->stage != TT_STAGE_READY)
			return h;
	return NULL;
}

/* Of an honest process a HELLO comes whole. */
static struct tt_shake *oldest_with_part(struct tt_door *d)
{
	tt_each_of(struct tt_shake, node, h, &d->shakes)
		if (h->accepted && h->ops->stage == TT_STAGE_HELLO && h->got)
			return h;
	return NULL;
}

/* At the limit a stranger with a part of a HELLO loses its place at once, and else the oldest stranger when it has had
 * its place for TT_DOOR_GRACE. Until then the others wait in the socket's queue: they may be a whole honest job that
 * starts at once. */
static bool make_room(struct tt_door *d)
{
	bool full = d->unproven >= TT_DOOR_UNPROVEN;
	struct tt_shake *part = full ? oldest_with_part(d) : NULL, *oldest = part ? part : oldest_stranger(d);
	uint64_t now = tt_now(), leaves = (oldest ? oldest->deadline - d->timeout : now) + TT_DOOR_GRACE;

	if (!full)
		return true;
	if (!part && now < leaves) {
		pause_accepting(d, leaves);
		return false;
	}
	tt_shake_refuse(oldest, "too many others wait in the handshake");
	return true;
}

void tt_door_accept(struct tt_door *d)
{
	for (int i = 0; i < 16 && make_room(d); i++) {
		struct sockaddr_storage from = { 0 };
		socklen_t size = sizeof from;
		int fd = tt_fork_accept(d->listen_fd, (struct sockaddr *)&from, &size);
		if (fd >= 0) {
			d->calls->greet(d, fd, (const struct sockaddr *)&from);
			continue;
		}
		if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
			bool warn = !d->lacks++;
			tt_log(warn ? TT_WARN : TT_DEBUG, "cannot accept a connection on %s: %s%s%s", d->net->addr,
			       strerror(errno), tt_files_hint(errno),
			       warn ? " (further ones are logged at TUTTI_LOG=debug)" : "");
			pause_accepting(d, tt_now() + PAUSE);
			return;
		}
		if (errno != EINTR && errno != ECONNABORTED)
			return;
	}
}

bool tt_door_waits(const struct tt_door *d) { return d->listen_again || !tt_list_empty(&d->shakes); }

void tt_door_expire(struct tt_door *d)
{
	uint64_t now = tt_now();
	char why[80];

	if (d->listen_again && now >= d->listen_again)
		pause_accepting(d, 0);
	snprintf(why, sizeof why, "it did not finish the handshake within %u ms", d->timeout_ms);
	tt_each_of(struct tt_shake, node, h, &d->shakes) {
		if (h->deadline > now)
			break;
		tt_shake_give_up(h, -ETIMEDOUT, why);
	}
}

/* How a handshake fails */

static void let_go(struct tt_shake *h)
{
	h->door->unproven--;
	pause_accepting(h->door, 0);
	tt_flight_free(h->ops);
}

void tt_door_refused(struct tt_door *d, const char *who, const char *why)
{
	bool warn = !d->refused++ && !d->calls->quiet;

	tt_log(warn ? TT_WARN : TT_DEBUG, "refused the connection from %s: %s%s", who, why,
	       warn ? " (further refusals are logged at TUTTI_LOG=debug)" : "");
}

void tt_shake_refuse(struct tt_shake *h, const char *why)
{
	tt_door_refused(h->door, h->ops->peer->addr, why);
	let_go(h);
}

void tt_shake_fail(struct tt_shake *h, int err)
{
	if (h->accepted && h->ops->stage <= TT_STAGE_READY) {
		struct tt_sentence why = tt_last_sentence(); /* not tt_why(), which the log may write anew */
		tt_shake_refuse(h, why.text);
		return;
	}
	tt_list_remove(&h->node);
	tt_flight_break(h->ops, err);
}

/* An initiator learns why. */
bool tt_shake_give_up(struct tt_shake *h, int err, const char *why)
{
	if (h->accepted)
		tt_shake_refuse(h, why);
	else
		tt_shake_fail(h, tt_fail(err, "cannot connect to %s: %s", h->ops->peer->addr, why));
	return false;
}

/* A stranger that closes has said nothing wrong, so it is not refused: it may have checked that the port is open. */
static bool end_closed(struct tt_shake *h)
{
	if (h->accepted) {
		tt_log(TT_DEBUG, "the connection from %s went away in the handshake", h->ops->peer->addr);
		let_go(h);
		return false;
	}
	if (h->door->calls->last_word || h->ops->stage == TT_STAGE_PROOF)
		return tt_shake_give_up(h, h->door->calls->last_word ? -EHOSTUNREACH : -ECONNRESET,
		                        "it closed the connection in the handshake: is it alive, and has "
		                        "it room for more?");
	return tt_shake_give_up(h, -EHOSTUNREACH,
	                        "it closed the connection before it said hello: is it a Tutti process, "
	                        "and alive?");
}

void tt_shake_closed(struct tt_shake *h) { end_closed(h); }

/* The handshake */

void tt_shake_begin(struct tt_shake *h, struct tt_door *d, struct tt_flight *ops, bool accepted)
{
	h->door = d;
	h->ops = ops;
	h->accepted = accepted;
	ops->stage = accepted ? TT_STAGE_HELLO : TT_STAGE_CONNECTING;
	h->deadline = tt_now() + d->timeout;
	d->unproven += accepted;
	tt_list_append(&d->shakes, &h->node);
}

/* A new socket takes the few bytes of a handshake at once; a socket that does not is broken. */
static bool say(struct tt_shake *h, const void *bytes, size_t n)
{
	return h->door->calls->say(h, bytes, n) == (ssize_t)n;
}

static bool say_hello(struct tt_shake *h)
{
	const struct tt_door *d = h->door;
	struct tt_hello hello = { .version = TT_FRAME_VERSION, .flags = d->has_secret ? TT_HELLO_SECRET : 0,
	                          .epoch = d->epoch, .job = d->job };

	if (h->strange) {
		hello.flags |= TT_HELLO_STRANGER;
		hello.user = geteuid();
	}

	tt_entropy(hello.nonce, sizeof hello.nonce);
	tt_hello_pack(&hello, h->mine);
	return say(h, h->mine, sizeof h->mine);
}

static bool say_proof(struct tt_shake *h)
{
	uint8_t proof[TT_PROOF_SIZE];

	make_proof(h, h->accepted, proof);
	return say(h, proof, sizeof proof);
}

/* The initiator is to know that it was refused, and that this process does not just end. Zeros prove no secret. */
static void say_no(struct tt_shake *h)
{
	static const uint8_t no[TT_PROOF_SIZE];

	say(h, no, sizeof no);
}

bool tt_shake_connected(struct tt_shake *h)
{
	h->ops->stage = TT_STAGE_HELLO;
	return say_hello(h) || tt_shake_give_up(h, -EHOSTUNREACH, "it closed the connection at once");
}

/* Does the HELLO suit this side? 0, or -EPROTO or -EACCES and why not. */
static int judge_hello(const struct tt_hello *h, const struct tt_door *d, char *why, size_t size)
{
	bool secret = h->flags & TT_HELLO_SECRET;

	if (h->version != TT_FRAME_VERSION) {
		snprintf(why, size, "it speaks version %u of the wire and this side version %u: use the same Tutti on "
		         "both", h->version, TT_FRAME_VERSION);
		return -EPROTO;
	}
	if (h->job != d->job) {
		snprintf(why, size, "it belongs to job %016llx and this side to job %016llx",
		         (unsigned long long)h->job, (unsigned long long)d->job);
		return -EPROTO;
	}
	if (secret == d->has_secret)
		return 0;
	snprintf(why, size, "%s has a secret and %s has none: set the same TUTTI_SECRET on both",
	         secret ? "it" : "this side", secret ? "this side" : "it");
	return -EACCES;
}

/* Without a secret the user is all that tells a rank from a stranger. -ENOENT: the other end is closed. Another error:
 * the user is not known now, so the other end may be a stranger. */
static int know_user(struct tt_shake *h)
{
	static _Atomic bool told;
	bool asks = !h->door->has_secret && h->door->calls->user;
	int err = asks ? h->door->calls->user(h, &h->user) : 0;

	h->strange = asks && !err && h->user != geteuid();
	if (err != -EOPNOTSUPP)
		return err;
	if (!atomic_exchange(&told, true))
		tt_log(TT_WARN, "the kernel does not say which users local connections belong to: without "
		       "TUTTI_SECRET processes of other users may join");
	return 0;
}

/* The initiator may try again. */
static bool end_unknown(struct tt_shake *h, int err)
{
	char why[160] = "it closed the connection in the handshake";

	if (err == -ENOENT && h->accepted)
		return end_closed(h);
	if (err != -ENOENT)
		snprintf(why, sizeof why, "this process cannot ask the kernel for the user at the other end: %s%s",
		         strerror(-err), tt_files_hint(-err));
	return tt_shake_give_up(h, -EHOSTUNREACH, why);
}

/* Does the other end belong to this end's user? The acceptor tells the initiator, which may be too late to ask. */
static int judge_user(const struct tt_shake *h, const struct tt_hello *hello, char *why, size_t size)
{
	bool told = hello->flags & TT_HELLO_STRANGER;

	if (!h->strange && !told)
		return 0;
	snprintf(why, size, "the process at %s runs as user %u, this process as user %u: set the same TUTTI_SECRET on "
	         "both, or use one user", h->ops->peer->addr, told ? hello->user : h->user, geteuid());
	return -EACCES;
}

static bool hear_hello(struct tt_shake *h)
{
	const struct tt_door_calls *calls = h->door->calls;
	struct tt_hello hello;
	char why[256];

	if (h->got < sizeof h->theirs || !tt_hello_unpack(h->theirs, sizeof h->theirs, &hello))
		return tt_shake_give_up(h, -EPROTO, "it does not speak Tutti");
	if (!h->accepted && !memcmp(h->theirs, h->mine, sizeof h->mine))
		return tt_shake_give_up(h, -EHOSTUNREACH,
		                        "the kernel connected the socket to itself, so nobody listens there");
	const char *problem = calls->agree ? calls->agree(h) : NULL;
	if (problem)
		return tt_shake_give_up(h, -EHOSTUNREACH, problem);
	int unknown = know_user(h);
	if (h->accepted && !say_hello(h)) /* an initiator that does not suit learns why, too */
		return end_closed(h);
	int err = judge_hello(&hello, h->door, why, sizeof why);
	if (!err)
		err = judge_user(h, &hello, why, sizeof why);
	if (err)
		return tt_shake_give_up(h, err, why);
	if (unknown)
		return end_unknown(h, unknown);
	h->epoch = hello.epoch;
	h->ops->stage = TT_STAGE_PROOF;
	return h->accepted || say_proof(h) || end_closed(h);
}

static bool end_handshake(struct tt_shake *h)
{
	h->ops->stage = TT_STAGE_TERMS;
	h->door->unproven -= h->accepted;
	tt_list_remove(&h->node);
	pause_accepting(h->door, 0);
	return true;
}

static bool hear_proof(struct tt_shake *h)
{
	const struct tt_door_calls *calls = h->door->calls;
	uint8_t right[TT_PROOF_SIZE];

	make_proof(h, !h->accepted, right);
	if (h->got < sizeof right || !is_same(right, h->proof)) {
		if (h->accepted)
			say_no(h);
		return tt_shake_give_up(h, -EACCES, "its proof is wrong: do both sides have the same TUTTI_SECRET?");
	}
	if (calls->proven)
		calls->proven(h);
	if (h->accepted && calls->last_word)
		h->ops->stage = TT_STAGE_READY;
	if (h->accepted ? !say_proof(h) : calls->last_word && !say(h, "", 1))
		return end_closed(h);
	return h->ops->stage == TT_STAGE_READY || end_handshake(h);
}

/* Where the awaited message goes. */
static uint8_t *room_of(struct tt_shake *h, size_t *size)
{
	enum tt_stage stage = h->ops->stage;

	*size = stage == TT_STAGE_HELLO ? sizeof h->theirs : stage == TT_STAGE_PROOF ? sizeof h->proof : 1;
	return stage == TT_STAGE_HELLO ? h->theirs : h->proof;
}

static bool hear_message(struct tt_shake *h)
{
	enum tt_stage stage = h->ops->stage;
	bool good = stage == TT_STAGE_HELLO ? hear_hello(h) :
	            stage == TT_STAGE_PROOF ? hear_proof(h) : end_handshake(h);

	if (good)
		h->got = 0;
	return good;
}

/* Receives exactly the bytes of the handshake, and not one byte beyond. */
bool tt_shake_step(struct tt_shake *h)
{
	while (h->ops->stage <= TT_STAGE_READY) {
		size_t size;
		uint8_t *room = room_of(h, &size);
		ssize_t n = h->door->calls->hear(h, room + h->got, size - h->got);

		if (n <= 0)
			return n < 0 && (errno == EAGAIN || errno == EINTR) ? false : end_closed(h);
		h->got += (size_t)n;
		if (h->ops->stage == TT_STAGE_HELLO && !tt_hello_begins(room, h->got))
			return tt_shake_give_up(h, -EPROTO, "it does not speak Tutti");
		if ((h->got == size || h->door->calls->packets) && !hear_message(h))
			return false;
	}
	return true;
}
