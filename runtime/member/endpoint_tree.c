/* endpoint_tree.c - the table of endpoint records goes out down a tree of ranks, so that no rank sends more than a few
 * copies
 *
 *      rank 0 --> ranks 1 .. 8          rank 1 --> ranks 9 .. 16          rank 2 --> ranks 17 .. 24     ...
 *
 * Rank 0 alone is connected to all ranks while they join. So it also sends the table to the children of a rank that
 * dies, and to a rank that has waited for long and asks. A rank that has passed the table on closes its connection to
 * rank 0, unless it is a child of rank 0.
 */
#include "engine/engine.h"
#include "member/member_private.h"
#include <stdlib.h>
#include <string.h>

enum { FAN = 8, PIECE = 16384 };

int tt_tree_parent(int rank) { return (rank - 1) / FAN; }

/* ---- texts that live as long as the job ---- */

struct tt_text { /* a block of texts */
	struct tt_text *older;
	size_t used;
	char bytes[1000];
};

const char *tt_text_keep(struct tt_job *job, const char *text)
{
	size_t len = strlen(text) + 1;
	struct tt_text *t = tt_members(job)->texts;

	if (!t || len > sizeof t->bytes - t->used) {
		t = len > sizeof t->bytes ? NULL : malloc(sizeof *t);
		if (!t)
			return "";
		t->used = 0;
		t->older = tt_members(job)->texts;
		tt_members(job)->texts = t;
	}
	t->used += len;
	return memcpy(t->bytes + t->used - len, text, len);
}

void tt_text_free(struct tt_job *job)
{
	for (struct tt_text *t = tt_members(job)->texts, *older; t; t = older) {
		older = t->older;
		free(t);
	}
}

/* ---- endpoint records ---- */

void tt_endpoint_put(struct tt_pack *p, const struct tt_member *m)
{
	bool out = m->job->joined && m->state >= TT_LEFT; /* for late joiners: a record without an address */

	tt_put64(p, (m->host ? m->host : 1) | (uint64_t)m->cpus << TT_HOST_BITS);
	tt_put32(p, out ? 0 : m->epoch);
	tt_put_text(p, out ? "" : m->addr);
}

static void take_empty_record(struct tt_member *m)
{
	if (m->state == TT_AWAY)
		tt_member_gone(m, -ENOTCONN, "%s had gone before this rank joined", tt_member_label(m).text);
}

void tt_endpoint_take(struct tt_pack *p, struct tt_member *m)
{
	struct tt_job *job = m->job;
	uint64_t word = tt_get64(p), host = word & ((1ull << TT_HOST_BITS) - 1);
	uint32_t epoch = tt_get32(p);
	char addr[TT_ADDRESSES];

	tt_get_text(p, addr, sizeof addr);
	p->bad |= !host;
	/* the end of the earlier life was heard first */
	if (!p->bad && epoch && m->rank != job->rank && tt_is_new_life(m, epoch))
		tt_member_reborn(m, epoch);
	if (p->bad || (m->host && *m->addr))
		return;
	if (epoch)
		tt_member_epoch(m, epoch);
	else
		take_empty_record(m);
	tt_members(job)->endpoints_known += !m->host && m->rank < tt_members(job)->endpoints;
	m->host = host;
	m->cpus = (uint32_t)(word >> TT_HOST_BITS);
	tt_address_add(m, addr); /* rank 0's rendezvous address stays */
	job->engine.news = true;
}

/* ---- sending the table ---- */

struct deal {
	struct tt_job *job;
	unsigned copies; /* of pieces, under way; and one while copies are made */
	int pieces;
	struct piece { /* one TABLE message */
		size_t len;
		uint8_t *bytes; /* scratch memory */
	} piece[];
};

struct copy { /* of one piece, to one rank */
	struct tt_post post;
	struct deal *deal;
};

/* Writes as many records as surely fit; returns their number. */
static int write_piece(const struct tt_job *job, int first, struct piece *to)
{
	struct tt_pack p = tt_pack(to->bytes, PIECE), head = p;
	int n = 0;

	tt_pack_take(&p, 9);
	for (; first + n < job->size && tt_pack_left(&p) >= TT_ENDPOINT_MAX; n++)
		tt_endpoint_put(&p, tt_member(job, first + n));
	tt_put8(&head, TT_ENDPOINTS);
	tt_put32(&head, (uint32_t)first);
	tt_put32(&head, (uint32_t)n);
	to->len = (size_t)(p.at - to->bytes);
	return n;
}

static void free_deal(struct deal *d)
{
	for (int i = 0; i < d->pieces; i++)
		tt_scratch_give(&d->job->scratch, d->piece[i].bytes, PIECE);
	free(d);
}

static struct deal *new_deal(struct tt_job *job)
{
	size_t size = 0;

	for (int i = 0; i < job->size; i++)
		size += TT_ENDPOINT_HEAD + strlen(tt_member(job, i)->addr);
	struct deal *d = malloc(sizeof *d + (1 + size / (PIECE - 9 - TT_ENDPOINT_MAX)) * sizeof d->piece[0]);
	if (!d)
		return NULL;
	d->job = job;
	d->copies = 1;
	d->pieces = 0;
	for (int first = 0; first < job->size; d->pieces++) {
		struct piece *p = &d->piece[d->pieces];
		if (!(p->bytes = tt_scratch_take(&job->scratch, PIECE))) {
			free_deal(d);
			return NULL;
		}
		first += write_piece(job, first, p);
	}
	return d;
}

/* At the last copy rank 0 has this rank's record and the children have the table: the connection to rank 0 may go. */
static void let_go(struct deal *d)
{
	struct tt_job *job = d->job;

	if (--d->copies)
		return;
	free_deal(d);
	if (job->rank > FAN)
		tt_member_part(tt_member(job, 0));
}

static void end_copy(struct tt_post *p, int err)
{
	struct copy *c = tt_container_of(p, struct copy, post);
	struct deal *d = c->deal;

	(void)err; /* a rank that does not get it asks rank 0 */
	free(c);
	let_go(d);
}

static void send_copies(struct deal *d, struct tt_member *to)
{
	for (int i = 0; i < d->pieces; i++) {
		struct copy *c = calloc(1, sizeof *c);
		if (!c)
			return;
		c->deal = d;
		c->post.done = end_copy;
		c->post.op.kind = TT_SEND;
		c->post.op.local = d->piece[i].bytes;
		c->post.op.len = d->piece[i].len;
		d->copies++;
		tt_post(to, &c->post);
	}
}

/* Rank 0 makes no connection for it: each rank that lacks the table is connected to rank 0, or about to be. */
static bool may_be_sent_to(const struct tt_member *m)
{
	return m->state < TT_LEFT && !m->settled && (m->job->rank || m->state != TT_AWAY);
}

static void send_to_children(struct deal *d, int of)
{
	const struct tt_job *job = d->job;

	for (int i = of * FAN + 1; i <= of * FAN + FAN && i < job->size; i++)
		if (may_be_sent_to(tt_member(job, i)))
			send_copies(d, tt_member(job, i));
}

void tt_tree_send(struct tt_job *job)
{
	struct deal *d = new_deal(job);

	tt_members(job)->endpoints_sent = tt_now();
	if (!d)
		return;
	send_to_children(d, job->rank);
	for (int i = 1; job->rank == 0 && i < job->size; i++)
		if (tt_member(job, i)->state == TT_GONE)
			send_to_children(d, i);
	let_go(d);
}

void tt_tree_send_to(struct tt_member *m)
{
	struct deal *d = new_deal(m->job);

	if (!d)
		return;
	send_copies(d, m);
	let_go(d);
}

/* Some rank may lack the table, until TUTTI_TIMEOUT has passed and joining is over everywhere. */
static bool may_lack_table(const struct tt_job *job)
{
	uint64_t sent = tt_members(job)->endpoints_sent;

	return job->rank == 0 && sent && tt_now() - sent <= job->timeout;
}

void tt_rendezvous_gone(struct tt_member *m)
{
	struct tt_job *job = m->job;
	struct deal *d;

	if (!may_lack_table(job) || job->leaving || m->rank > (job->size - 2) / FAN || !(d = new_deal(job)))
		return;
	send_to_children(d, m->rank);
	let_go(d);
}

/* Afterwards no rank can ask for the table, and one that owes it to others may have died unknown to this rank. */
void tt_rendezvous_leave(struct tt_job *job)
{
	struct deal *d;

	if (!may_lack_table(job) || !(d = new_deal(job)))
		return;
	for (int i = FAN + 1; i < job->size; i++)
		if (tt_member(job, i)->state == TT_UP && !tt_member(job, i)->settled)
			send_copies(d, tt_member(job, i));
	let_go(d);
}

void tt_rendezvous_leave_late(struct tt_member *m)
{
	if (m->rank > FAN && !m->settled && may_lack_table(m->job))
		tt_tree_send_to(m);
}
