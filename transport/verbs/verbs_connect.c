/* verbs_connect.c - how two nets connect: the door over TCP, then the terms, then a first message by the adapters
 *
 *     TERMS     TERMS -->  <-- TERMS    number, PSN, LID, GID, MTU, limits: both take the smaller
 *     MEET      librdmacm connects, where it has to: see verbs_cm.c
 *     JOINED    READY -->  <-- READY    the queue pair takes what comes
 *     PROBE     a full message by the queue pair goes each way: the adapters, and all between, let it through
 *     UP        the socket stays open; its end tells that the process has gone
 *
 * A fabric that does not lead to the peer is found out before up(): the ranks then take the next transport.
 */
#include "transport/verbs/verbs_private.h"
#include <arpa/inet.h>

const struct tt_door_calls tt_verbs_door = { TT_DIAL_CALLS, .make = tt_verbs_make_peer };

int tt_verbs_connect(struct tt_net *base, const char *addr, struct tt_peer **out)
{
	struct tt_verbs *net = tt_verbs_of(base);

	return net->lost ? tt_fail(net->lost, "%s", net->loss.text) : tt_dial_connect(&net->door, addr, out);
}

/* Terms */

#define FIELD(name) { offsetof(struct tt_verbs_end, name), sizeof((struct tt_verbs_end *)0)->name }
static const struct { size_t at, size; } fields[] = { /* in the order of the wire; numbers are little endian */
	FIELD(refused), FIELD(number), FIELD(psn), FIELD(piece), FIELD(lid), FIELD(credits), FIELD(receive),
	FIELD(link), FIELD(gid_type), FIELD(mtu), FIELD(reads), FIELD(answers), FIELD(flags), FIELD(gid),
	FIELD(address), FIELD(cookie), FIELD(word.addr), FIELD(word.rkey),
	FIELD(pkeys[0]), FIELD(pkeys[1]), FIELD(pkeys[2]), FIELD(pkeys[3]), FIELD(pkeys[4]), FIELD(pkeys[5]),
	FIELD(pkeys[6]), FIELD(pkeys[7]),
};

static void copy_field(char *to, const char *from, size_t size)
{
	for (size_t i = 0; i < size; i++)
		to[i] = from[__BYTE_ORDER__ == __ORDER_BIG_ENDIAN__ && size <= 8 ? size - 1 - i : i];
}

static void pack_terms(const struct tt_verbs_end *e, char *to)
{
	for (size_t i = 0; i < TT_COUNT(fields); to += fields[i++].size)
		copy_field(to, (const char *)e + fields[i].at, fields[i].size);
}

static struct tt_verbs_end unpack_terms(const char *from)
{
	struct tt_verbs_end e = { 0 };

	for (size_t i = 0; i < TT_COUNT(fields); from += fields[i++].size)
		copy_field((char *)&e + fields[i].at, from, fields[i].size);
	e.address[sizeof e.address - 1] = 0;
	return e;
}

/* A few bytes, which a socket that has just been connected takes at once. */
static bool tell(struct tt_verbs_peer *p, const void *bytes, size_t n)
{
	if (send(p->dial.fd, bytes, n, MSG_NOSIGNAL) == (ssize_t)n)
		return true;
	tt_verbs_lose(p, -EHOSTUNREACH, "it closed the connection before all was agreed");
	return false;
}

static void say_full(const char *who, unsigned peers, unsigned kib, char *why, size_t size)
{
	int n = snprintf(why, size, "%s has room for %u peers and no more", who, peers);

	if (kib)
		snprintf(why + n, size - (size_t)n, ": its process may lock %u KiB (ulimit -l). " TT_VERBS_UNLIMITED,
		         kib);
}

/* A full net says so, and then waits for the other end's terms: a socket closed with bytes unread would swallow it. */
static void begin_terms(struct tt_verbs_peer *p)
{
	struct tt_verbs *net = p->net;
	char text[300];
	struct tt_verbs_end mine = { .refused = net->peer_max, .piece = net->lockable };
	char bytes[TT_VERBS_TERMS_SIZE];

	p->deadline = p->dial.shake.deadline;
	tt_list_append(&net->joining, &p->waits);
	bool full = tt_list_empty(&net->spare_shares) && net->share_count == net->peer_max;
	if (full && !net->told_full) {
		net->told_full = true;
		say_full(net->name, net->peer_max, net->lockable, text, sizeof text);
		tt_log(TT_WARN, "%s", text);
	}
	if (!full && tt_verbs_make_queue(p, &mine)) {
		struct tt_sentence why = tt_last_sentence();
		tt_log(net->told_poor ? TT_DEBUG : TT_WARN, "%s", why.text); /* the other end is not told */
		net->told_poor = true;
		tt_verbs_lose(p, -EHOSTUNREACH, why.text);
		return;
	}
	pack_terms(&mine, bytes);
	tell(p, bytes, sizeof bytes);
}

static bool is_sane(const struct tt_verbs_end *e)
{
	return e->number && e->number < 1 << 24 && e->psn < 1 << 24 && e->credits > 1 && e->piece >= 1024 &&
	       e->receive >= 256 && e->mtu >= IBV_MTU_256 && e->mtu <= IBV_MTU_4096;
}

/* Of two partition keys: 0, the ends may not talk in this partition, or it is not the same; else the more, the worse.
 * The other end, which has the lists the other way round, finds the same. */
static unsigned rate_partition(uint16_t a, uint16_t b, int places)
{
	if (!a || (a ^ b) & TT_VERBS_PARTITION || !((a | b) & TT_VERBS_FULL))
		return 0;
	bool both = a & b & TT_VERBS_FULL;
	return (both ? 1u : 2u) << 24 | (unsigned)places << 16 | (a & TT_VERBS_PARTITION);
}

static void name_pkeys(const uint16_t *keys, char text[80])
{
	*text = 0;
	for (int i = 0; i < TT_VERBS_PKEYS && keys[i]; i++)
		sprintf(text + strlen(text), "%s0x%04x", i ? ", " : "", keys[i]);
}

/* NULL: there is a partition in which both ends may talk, and *index is that of its key. Else why not. */
static const char *choose_partition(const struct tt_verbs *net, const struct tt_verbs_end *e, uint16_t *index,
                                    char *why, size_t size)
{
	const uint16_t *ours = net->port.pkeys, *theirs = e->pkeys;
	char our_names[80], their_names[80];
	unsigned best = 0;

	*index = net->port.pkey_at[0];
	if (net->cm || !*ours || !*theirs) /* librdmacm has its own; who knows of no partition finds out by the probe */
		return NULL;
	for (int i = 0; i < TT_VERBS_PKEYS; i++)
		for (int k = 0; k < TT_VERBS_PKEYS; k++) {
			unsigned rate = rate_partition(ours[i], theirs[k], i + k);
			if (!rate || (best && best < rate))
				continue;
			best = rate;
			*index = net->port.pkey_at[i];
		}
	if (best)
		return NULL;
	name_pkeys(ours, our_names);
	name_pkeys(theirs, their_names);
	snprintf(why, size, "its port has the partition keys %s, and this side's, %s, has %s: two ports talk in a "
	         "partition that both have, one of them as a full member (0x8000 is set). Look at the subnet manager "
	         "and at TUTTI_VERBS_PKEY", their_names, net->name, our_names);
	return why;
}

/* NULL: the two ends suit each other. Else why not. */
static const char *judge(struct tt_verbs_peer *p, const struct tt_verbs_end *e, char *why, size_t size)
{
	const struct tt_verbs_port *port = &p->net->port;

	if (e->refused)
		say_full("it", e->refused, e->piece, why, size);
	else if (!p->qp)
		say_full(p->net->name, p->net->peer_max, p->net->lockable, why, size);
	else if (!is_sane(e))
		snprintf(why, size, "what it says of its queue pair is nonsense");
	else if (e->link != tt_verbs_link(p->net))
		snprintf(why, size, "its port is %s and this side's, %s, is %s: name the devices in "
		         "TUTTI_VERBS_DEVICES", tt_verbs_link_name(e->link), p->net->name,
		         tt_verbs_link_name(tt_verbs_link(p->net)));
	else if (!*e->address != !p->net->cm)
		snprintf(why, size, "librdmacm connects on one side alone: set TUTTI_VERBS_CONNECT to the same on all "
		         "hosts");
	else if (e->link == IBV_LINK_LAYER_ETHERNET && e->gid_type != port->gid_type)
		snprintf(why, size, "its GID is of another version of RoCE than this side's, %s, GID index %d: set "
		         "TUTTI_VERBS_GID_INDEX", p->net->name, port->gid_index);
	else if (!e->answers || !e->reads)
		snprintf(why, size, "its adapter serves no RDMA READ");
	else
		return choose_partition(p->net, e, &p->pkey_index, why, size);
	return why;
}

/* ibv_modify_qp looks at the address, too. */
static void take_terms(struct tt_verbs_peer *p)
{
	struct tt_verbs_end e = unpack_terms((const char *)p->terms);
	char text[430], gid[INET6_ADDRSTRLEN];
	const char *why = judge(p, &e, text, sizeof text);

	if (why) {
		tt_verbs_lose(p, !e.refused && !is_sane(&e) ? -EPROTO : -EHOSTUNREACH, why);
		return;
	}
	p->piece = (uint32_t)tt_min(e.piece, tt_min(p->net->port.attr.max_msg_sz, TT_VERBS_PIECE));
	p->message = (uint32_t)tt_min(e.receive, p->net->receive);
	p->credits = p->credit_max = (unsigned)tt_min(e.credits, TT_VERBS_CREDITS);
	p->reads = (uint8_t)tt_min((size_t)p->net->attr.max_qp_init_rd_atom, e.answers);
	p->serves = (uint8_t)tt_min((size_t)p->net->attr.max_qp_rd_atom, e.reads);
	p->word = e.word;
	if (p->net->cm) {
		tt_verbs_meet(p, &e);
		return;
	}
	int err = tt_verbs_join_queue(p, &e);
	if (!err) {
		tt_verbs_ready(p);
		return;
	}
	inet_ntop(AF_INET6, e.gid.raw, gid, sizeof gid);
	snprintf(text, sizeof text, "%s cannot be connected to its GID %s, LID %u: %s", p->net->name, gid, e.lid,
	         strerror(err));
	tt_verbs_lose(p, -EHOSTUNREACH, text);
}

static void probe(struct tt_verbs_peer *p)
{
	p->ops.stage = TT_STAGE_PROBE;
	p->base.lacks = "no full packet went through both ways: " TT_VERBS_BETWEEN;
	tt_verbs_probe(p);
}

void tt_verbs_ready(struct tt_verbs_peer *p)
{
	p->ops.stage = TT_STAGE_JOINED;
	p->fetching = true;
	if (tell(p, "", 1) && p->ready)
		probe(p);
}

/* On iWARP the answer to the first message is one of the other end's. */
void tt_verbs_prove(struct tt_verbs_peer *p, bool *way)
{
	*way = true;
	if (p->ops.stage == TT_STAGE_PROBE && !p->ops.broken && p->told && (p->heard || p->net->iwarp))
		tt_verbs_come_up(p);
}

void tt_verbs_come_up(struct tt_verbs_peer *p)
{
	tt_list_remove(&p->waits);
	tt_flight_up(&p->ops);
}

/* What the peer has sent before its end is looked at before the queue pair stops. */
void tt_verbs_hang_up(struct tt_verbs_peer *p, int err, const char *why)
{
	tt_verbs_set_aside(p->net);
	tt_verbs_lose(p, err, why);
}

/* READY may be read after the first message of the adapter, which has brought this end up. */
static void take_word(struct tt_verbs_peer *p)
{
	p->got = 0;
	if (p->ops.stage == TT_STAGE_TERMS) {
		take_terms(p);
	} else if (p->terms[0] || p->ready) {
		tt_verbs_hang_up(p, -EPROTO, "it said something that is no part of the handshake");
	} else {
		p->ready = true;
		if (p->ops.stage == TT_STAGE_JOINED)
			probe(p);
	}
}

static const char *word_end(enum tt_stage stage)
{
	if (stage == TT_STAGE_PROBE)
		return "it closed the connection before a full packet had gone through both ways: " TT_VERBS_BETWEEN
		       "; and at its log";
	return stage < TT_STAGE_UP ? "it closed the connection before all was agreed: its log says why" :
	                             "it has ended, or closed the connection";
}

void tt_verbs_hear(struct tt_verbs_peer *p)
{
	if (p->ops.broken || p->ops.stage == TT_STAGE_DOWN)
		return;
	if (p->ops.stage <= TT_STAGE_READY) {
		if (!tt_dial_step(&p->dial))
			return; /* p may be gone */
		begin_terms(p);
	}
	while (!p->ops.broken) {
		size_t size = p->ops.stage == TT_STAGE_TERMS ? sizeof p->terms : 1;
		ssize_t n = recv(p->dial.fd, p->terms + p->got, size - p->got, 0);
		if (n < 0 && (errno == EAGAIN || errno == EINTR))
			return;
		if (n <= 0) {
			tt_verbs_hang_up(p, -ECONNRESET, word_end(p->ops.stage));
			return;
		}
		p->got += (size_t)n;
		if (p->got == size)
			take_word(p);
	}
}
