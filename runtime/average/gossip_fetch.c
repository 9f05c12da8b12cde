/* gossip_fetch.c - reads another rank's buffer, and averages it
 *
 * Where the window is mapped here, mix averages out of the other rank's memory in place, in one pass. Else GETs bring
 * the buffer while the program computes: each that has ended starts the next one. mix averages what has come, and what
 * comes, out of the cache.
 *
 *      ASK --> MAPPED
 *      ASK --> HEAD --> DATA, piece by piece --> the buffer's stamp again; a gift: ADD --> DONE
 *               ^------------- overtaken ---------------'
 *
 * The first GET of a fetch lands in memory of its peer. So a fetch that is dropped before the peer has answered is free
 * at once, and peers that are stopped hold none. */
#include "average/gossip.h"
#include "device/device.h"
#include <math.h>
#include <stdlib.h>

/* ---- the average ---- */

/* All of one side by a copy: 0 times an infinity would be a NaN. */
static void average(char *to, const char *own, const char *peer, double f, size_t bytes, tutti_type type, bool stream)
{
	if (f == 0 || f == 1 || !tt_type_is_float(type))
		memmove(to, f > 0.5 ? peer : own, bytes);
	else
		tt_blend_part(to, 1 - f, own, f, peer, bytes / tt_type_size(type), type, stream);
}

/* The move of a copy, f (peer - copy), on what the model is today. f = 1 and no step since: the peer's bits. */
static void follow(char *to, const char *own, const char *copy, const char *peer, double f, size_t bytes,
                   tutti_type type)
{
	size_t count = bytes / tt_type_size(type);

	if (f == 0 || !tt_type_is_float(type)) {
		memmove(to, f > 0.5 ? peer : own, bytes);
		return;
	}
	tt_blend(to, 1, own, -f, copy, count, type);
	tt_blend(to, 1, to, f, peer, count, type);
}

/* Bytes `first` to `last` of the model, which are of tensor i. */
static void blend_tensor(const struct tt_model *m, const struct tt_blend *b, const char *peer, int i, size_t first,
                         size_t last)
{
	const tutti_tensor *t = &m->tensors[i];
	size_t inside = first - m->at[i], bytes = last - first;
	const char *own = b->own ? b->own + first : (const char *)t->data + inside;

	if (b->list)
		memcpy((char *)b->list[i].data + inside, peer + first, bytes);
	else if (b->copy)
		follow(b->to + first, own, b->copy + first, peer + first, b->factor, bytes, t->type);
	else
		average(b->to + first, own, peer + first, b->factor, bytes, t->type, m->bytes >= TT_STREAM_FROM);
}

void tt_gossip_blend(const struct tutti_gossip *g, const struct tt_blend *b, const char *peer, size_t from, size_t end)
{
	const struct tt_model *m = &g->model;

	for (int i = 0; i < m->n; i++) {
		const tutti_tensor *t = &m->tensors[i];
		size_t first = tt_max(from, m->at[i]), last = tt_min(end, m->at[i] + t->count * tt_type_size(t->type));
		if (first < last)
			blend_tensor(m, b, peer, i, first, last);
	}
}

/* ---- GETs ---- */

static void end(struct tt_fetch *f, int err)
{
	f->err = err;
	f->state = f->dropped ? TT_FETCH_IDLE : TT_FETCH_DONE;
	f->claimed = f->claimed && !f->dropped;
	if (!err)
		tt_pace_note(&f->g->fetches, tt_now() - f->since, f->dropped);
	f->g->job->engine.news = true;
	tt_gossip_look(f->g);
}

static void posted(struct tt_fetch *f, int err)
{
	f->under_way += !err;
	f->err = f->err ? f->err : err;
	if (err && !f->under_way)
		end(f, f->err);
}

static size_t stamp_at(int buffer)
{
	return offsetof(struct tt_gossip_head, stamp) + (size_t)buffer * sizeof(struct tt_stamp);
}

static size_t my_offer_at(const struct tutti_gossip *g)
{
	return sizeof(struct tt_gossip_head) + (size_t)g->job->rank * sizeof(struct tt_offer);
}

static void look_up(struct tt_fetch *f);

/* The owner has written there meanwhile. */
static void try_again(struct tt_fetch *f)
{
	f->g->info.retries++;
	if (++f->tries == TT_GOSSIP_TRIES)
		end(f, -EAGAIN);
	else
		look_up(f);
}

static void checked(struct tt_post *p, int err)
{
	struct tt_fetch *f = tt_container_of(p, struct tt_fetch, post);

	f->under_way--;
	if (err || f->dropped || !memcmp(&f->again, &f->stamp, sizeof f->stamp))
		end(f, err);
	else
		try_again(f);
}

static void check_stamp(struct tt_fetch *f)
{
	f->post = (struct tt_post){ .done = checked, .op = { .kind = TT_GET, .local = &f->again,
		.len = sizeof f->again, .offset = stamp_at(f->buffer) } };
	posted(f, tt_window_post(f->g->window, f->rank, &f->post));
}

/* ---- gifts: the answer ---- */

/* The word of my offer was that before I have added to it. 0: the gift is mine. */
static int hear_verdict(struct tt_fetch *f, uint64_t word)
{
	if (f->verdict || word != f->word)
		return f->verdict ? f->verdict : -ECANCELED;
	f->g->peers[f->rank].taken += f->weight;
	f->claimed = true;
	return 0;
}

static uint64_t answer_of(const struct tt_fetch *f)
{
	return f->verdict == -EINVAL ? TT_OFFER_REFUSED : TT_OFFER_TAKEN;
}

static void answered(struct tt_post *p, int err)
{
	struct tt_fetch *f = tt_container_of(p, struct tt_fetch, post);

	f->under_way--;
	end(f, err ? err : hear_verdict(f, p->op.operand));
}

static void answer(struct tt_fetch *f, int verdict)
{
	f->state = TT_FETCH_DATA;
	f->verdict = verdict;
	f->post = (struct tt_post){ .done = answered, .op = { .kind = TT_ADD, .len = 8, .operand = answer_of(f),
		.offset = my_offer_at(f->g) + offsetof(struct tt_offer, word) } };
	posted(f, tt_window_post(f->g->window, f->rank, &f->post));
}

/* ---- the bytes ---- */

static void piece_came(struct tt_post *p, int err);

/* A GET from GPU to GPU takes tens of us, however short it is. Where the bytes pass through the host's memory, long
 * GETs would take all chunks of both ranks, and short puts and gets of the program would wait. */
static size_t piece_of(const struct tt_fetch *f)
{
	struct tt_member *m = tt_member(f->g->job, f->rank);

	return f->g->device.apart && m->state == TT_UP && tt_member_net(m)->host_only ? f->g->device.piece
	                                                                               : TT_GOSSIP_PIECE;
}

static bool get_piece(struct tt_fetch *f, struct tt_fetch_piece *piece)
{
	const struct tt_gossip_device *d = &f->g->device;
	size_t bytes = tt_min(f->unit, f->g->model.bytes - f->sent), at = f->sent;

	piece->landed = false;
	f->sent += bytes;
	if (!bytes)
		return false;
	piece->post = (struct tt_post){ .pinned = f->pinned, .done = piece_came, .op = { .kind = TT_GET,
		.local = f->staging + at, .len = bytes, .offset = tt_gossip_offset(f->g, f->buffer) + at } };
	int err = tt_window_post(d->apart ? d->window : f->g->window, f->rank, &piece->post);
	posted(f, err);
	return !err;
}

/* Pieces are asked for in their order, and may come in another. */
static void piece_came(struct tt_post *p, int err)
{
	struct tt_fetch_piece *piece = tt_container_of(p, struct tt_fetch_piece, post);
	struct tt_fetch *f = piece->fetch;
	size_t all = f->g->model.bytes;

	piece->landed = true;
	f->under_way--;
	f->err = f->err ? f->err : err;
	if (f->err || f->dropped) {
		if (!f->under_way)
			end(f, f->err);
		return;
	}
	while (f->have < all && (piece = &f->piece[f->have / f->unit % TT_GOSSIP_DEPTH])->landed) {
		f->have += piece->post.op.len;
		get_piece(f, piece);
	}
	f->g->job->engine.news = true;
	if (f->have == all && f->gift)
		answer(f, 0);
	else if (f->have == all)
		check_stamp(f);
}

static void get_data(struct tt_fetch *f)
{
	f->state = TT_FETCH_DATA;
	f->sent = f->have = 0;
	f->unit = piece_of(f);
	for (int i = 0; i < TT_GOSSIP_DEPTH && get_piece(f, &f->piece[i]); i++)
		continue;
}

/* ---- what the owner says first ---- */

static int refuse_model(const struct tt_fetch *f)
{
	return tt_fail(-EINVAL, "rank %d gossips about another model under this name, or has its buffers in another "
	               "place", f->rank);
}

/* Reads which model the peer has published. Returns 0; -EAGAIN: the peer publishes just now; -ENODATA: no model yet. */
static int read_front(struct tt_fetch *f, uint64_t hash, uint64_t newest, const struct tt_stamp *last)
{
	if (hash != f->g->model.hash)
		return refuse_model(f);
	f->stamp = *last;
	return tt_front_read(newest, last, TT_GOSSIP_BUFFERS, &f->buffer);
}

/* Reads the peer's offer to this rank. Returns 0; -EAGAIN: the offer changes just now; -EINVAL: this rank refuses the
 * offer; -ECANCELED: the giver has withdrawn the offer, and this rank answers; -ENODATA: there is no offer. */
static int read_offer(struct tt_fetch *f, const struct tt_offer *o)
{
	f->word = o->word;
	f->weight = o->weight;
	f->stamp.born = o->born;
	f->buffer = o->word / (TT_OFFER_STATE + 1) % TT_GOSSIP_BUFFERS;
	f->stamp.number = o->word / (TT_OFFER_STATE + 1) / TT_GOSSIP_BUFFERS;
	if (!o->word || o->word & TT_OFFER_ANSWERED)
		return -ENODATA;
	if (o->seal != tt_offer_seal(f->g, o))
		return f->tries + 1 < TT_GOSSIP_TRIES ? -EAGAIN : refuse_model(f);
	if (!(o->weight > 0 && isfinite(o->weight)))
		return tt_fail(-EINVAL, "rank %d gives a weight of %g away", f->rank, o->weight);
	return o->word & TT_OFFER_WITHDRAWN ? -ECANCELED : 0;
}

static int read_first(struct tt_fetch *f, const struct tt_gossip_peer *p)
{
	if (f->gift)
		return read_offer(f, &p->offer);
	return read_front(f, p->front.hash, p->front.newest, &p->front.last);
}

static void said(struct tt_post *post, int err)
{
	struct tt_gossip_peer *p = tt_container_of(post, struct tt_gossip_peer, post);
	struct tt_fetch *f = p->fetch;

	p->probing = false;
	p->g->probes--;
	p->fetch = NULL;
	p->g->job->engine.news = true;
	if (!f && !err)
		tt_pace_note(&p->g->fetches, tt_now() - p->since, true);
	if (!f)
		return;
	err = err ? err : read_first(f, p);
	if (err == -EAGAIN)
		try_again(f);
	else if (f->gift && (err == -EINVAL || err == -ECANCELED))
		answer(f, err);
	else if (err)
		end(f, err);
	else
		get_data(f);
}

static void look_up(struct tt_fetch *f)
{
	struct tutti_gossip *g = f->g;
	struct tt_gossip_peer *p = &g->peers[f->rank];

	f->state = TT_FETCH_HEAD;
	p->since = f->since;
	p->post = (struct tt_post){ .done = said, .op = { .kind = TT_GET,
		.local = f->gift ? (void *)&p->offer : (void *)&p->front,
		.len = f->gift ? sizeof p->offer : sizeof p->front, .offset = f->gift ? my_offer_at(g) : 0 } };
	int err = tt_window_post(g->window, f->rank, &p->post);
	if (err) {
		end(f, err);
		return;
	}
	p->fetch = f;
	p->probing = true;
	g->probes++;
}

/* Nothing has to come. Other fetches do, and their times stay as they are. */
static void begin_in_place(struct tt_fetch *f)
{
	f->state = TT_FETCH_MAPPED;
	if (!f->g->fetches.slowest)
		tt_pace_note(&f->g->fetches, tt_now() - f->since, false);
}

/* Is its window known by now? One that is not there yet has no part in this round. A gift is of one life's memory. */
static void ask(struct tt_fetch *f)
{
	const struct tt_member *m = tt_member(f->g->job, f->rank);
	const struct tt_gossip_device *d = &f->g->device;
	bool over = f->gift && (f->epoch != m->epoch || tt_window_is_closed(f->g->window, f->rank));
	int err = over ? -ECONNRESET : tt_window_ask(f->g->window, f->rank);

	if (!err && d->apart)
		err = tt_window_ask(d->window, f->rank);
	if (err == -EINPROGRESS && m->tries && m->state != TT_UP)
		err = -EHOSTUNREACH;
	if (err == -EINPROGRESS)
		return;
	if (err)
		end(f, err);
	else if (!d->queue && tt_window_is_mapped(f->g->window, f->rank))
		begin_in_place(f);
	else
		look_up(f);
}

/* ---- from begin to end ---- */

static int make_staging(struct tt_fetch *f)
{
	size_t bytes = (f->g->model.bytes + TT_MODEL_ALIGN - 1) / TT_MODEL_ALIGN * TT_MODEL_ALIGN;

	if (f->staging)
		return 0;
	if (f->g->device.queue)
		return tt_gossip_make_staging(f);
	if (!(f->staging = aligned_alloc(TT_MODEL_ALIGN, bytes)))
		return -ENOMEM;
	if (!tt_pin(f->g->job, f->staging, bytes, TT_PIN_READ, &f->pinned))
		return 0;
	free(f->staging);
	f->staging = NULL;
	return -ENOMEM;
}

struct tt_fetch *tt_fetch_begin(struct tutti_gossip *g, int rank, bool gift)
{
	struct tt_fetch *f = g->fetch, *last = f + TT_GOSSIP_FETCHES;

	tt_lock(g->job);
	while (f < last && f->state != TT_FETCH_IDLE)
		f++;
	tt_unlock(g->job);
	if (f == last || make_staging(f))
		return NULL;
	tt_lock(g->job);
	f->rank = rank;
	f->epoch = tt_member(g->job, rank)->epoch;
	f->err = f->verdict = 0;
	f->late = f->claimed = f->dropped = false;
	f->tries = 0;
	f->have = 0;
	f->gift = gift;
	f->heard = gift ? tt_window_notified(g->window, rank, 0) : 0;
	f->since = tt_now();
	f->state = TT_FETCH_ASK;
	ask(f);
	tt_unlock(g->job);
	return f;
}

/* With the lock. */
static void drop(struct tt_fetch *f)
{
	f->dropped = true;
	f->claimed = false;
	if (f->state == TT_FETCH_HEAD)
		f->g->peers[f->rank].fetch = NULL;
	for (int i = 0; i < TT_GOSSIP_DEPTH && f->under_way && f->g->device.queue; i++)
		tt_device_give_up(f->g->job, &f->piece[i].post, -ECANCELED);
	if (!f->under_way)
		f->state = TT_FETCH_IDLE;
}

void tt_fetch_drop(struct tt_fetch *f)
{
	if (!f)
		return;
	tt_lock(f->g->job);
	drop(f);
	tt_unlock(f->g->job);
}

/* Afterwards an answer may be on its way, and with it the weight. */
static bool has_begun(const struct tt_fetch *f) { return f->state == TT_FETCH_DATA || f->state == TT_FETCH_DONE; }

bool tt_fetch_forgo(struct tt_fetch *f)
{
	tt_lock(f->g->job);
	bool early = !has_begun(f);
	if (early)
		drop(f);
	tt_unlock(f->g->job);
	return early;
}

bool tt_fetch_is_settled(struct tt_fetch *f)
{
	if (f->state == TT_FETCH_ASK)
		ask(f);
	return f->state >= TT_FETCH_MAPPED;
}

double tt_fetch_age(const struct tt_fetch *f)
{
	uint64_t now = tt_calendar();

	return now > f->stamp.born ? (double)(now - f->stamp.born) / TT_MS : 0;
}

bool tt_fetch_is_wanted(struct tt_fetch *f)
{
	tt_lock(f->g->job);
	bool wanted = f->state != TT_FETCH_IDLE && !f->dropped;
	tt_unlock(f->g->job);
	return wanted;
}

bool tt_fetch_is_idle(void *arg)
{
	const struct tutti_gossip *g = arg;

	if (g->probes)
		return false;
	for (int i = 0; i < TT_GOSSIP_FETCHES; i++)
		if (g->fetch[i].under_way)
			return false;
	return true;
}

/* ---- mixing ---- */

/* One piece of memory that is mapped here. NULL: the window, or its rank, is gone. */
static char *hold(struct tt_fetch *f)
{
	char *at;

	tt_lock(f->g->job);
	if (!(at = tt_window_hold(f->g->window, f->rank)))
		tt_unlock(f->g->job);
	return at;
}

static void let_go(struct tt_fetch *f)
{
	tt_window_let_go(f->g->window, f->rank);
	tt_unlock(f->g->job);
}

static int read_in_place(struct tt_fetch *f, const char *theirs)
{
	const struct tt_gossip_head *h = (const void *)theirs;
	const struct tt_offer *o = (const void *)(theirs + my_offer_at(f->g));

	if (f->gift) {
		uint64_t word = __atomic_load_n(&o->word, __ATOMIC_ACQUIRE);
		return read_offer(f, &(struct tt_offer){ word, o->weight, o->born, o->seal });
	}
	uint64_t newest = __atomic_load_n(&h->front.newest, __ATOMIC_ACQUIRE);
	const struct tt_stamp *s = &h->stamp[newest % TT_GOSSIP_BUFFERS];
	uint64_t number = __atomic_load_n(&s->number, __ATOMIC_ACQUIRE);
	return read_front(f, h->front.hash, newest,
	                  &(struct tt_stamp){ number, { s->about[0], s->about[1] }, s->born });
}

static int look_in_place(struct tt_fetch *f)
{
	const char *theirs = hold(f);
	int err = -EINVAL;

	if (!theirs)
		return -ECONNRESET;
	uint64_t bytes = tt_window_bytes(f->g->window, f->rank);
	if (bytes >= my_offer_at(f->g) + sizeof(struct tt_offer))
		err = read_in_place(f, theirs);
	if (!err && bytes < tt_gossip_offset(f->g, f->buffer) + f->g->model.bytes)
		err = -ERANGE;
	let_go(f);
	return err;
}

static bool is_whole(const struct tt_fetch *f, const struct tt_gossip_head *h)
{
	__atomic_thread_fence(__ATOMIC_ACQUIRE);
	return __atomic_load_n(&h->stamp[f->buffer].number, __ATOMIC_RELAXED) == f->stamp.number;
}

static int mix_in_place(struct tt_fetch *f, const struct tt_blend *b)
{
	struct tutti_gossip *g = f->g;
	size_t all = g->model.bytes, start = tt_gossip_offset(g, f->buffer);
	bool whole = true;

	for (size_t at = 0; at < all && whole; at += TT_GOSSIP_BLEND) {
		const char *theirs = hold(f);
		if (!theirs)
			return -ECONNRESET;
		tt_gossip_blend(g, b, theirs + start, at, tt_min(at + TT_GOSSIP_BLEND, all));
		whole = is_whole(f, (const void *)theirs);
		let_go(f);
	}
	return whole ? 0 : f->gift ? -ECANCELED : -EAGAIN;
}

static int answer_in_place(struct tt_fetch *f, int verdict)
{
	char *theirs = hold(f);

	if (!theirs)
		return -ECONNRESET;
	uint64_t *word = &((struct tt_offer *)(void *)(theirs + my_offer_at(f->g)))->word;
	f->verdict = verdict;
	int err = hear_verdict(f, __atomic_fetch_add(word, answer_of(f), __ATOMIC_SEQ_CST));
	let_go(f);
	return err;
}

static void set_factor(const struct tt_fetch *f, double loss, struct tt_blend *b)
{
	const struct tutti_gossip *g = f->g;

	if (f->gift)
		b->factor = f->weight / (b->total + f->weight);
	else
		b->factor = tt_gossip_factor(&g->config, g->info.clock, tt_gossip_clock(&f->stamp), loss,
		                             tt_gossip_loss(&f->stamp));
}

static int mix_once(struct tt_fetch *f, struct tt_blend *b, double loss)
{
	int err = look_in_place(f);

	if (!err) {
		set_factor(f, loss, b);
		err = mix_in_place(f, b);
	}
	if (f->gift && (!err || err == -EINVAL || err == -ECANCELED))
		err = answer_in_place(f, err);
	return err;
}

static int mix_mapped(struct tt_fetch *f, struct tt_blend *b, double loss)
{
	int err;

	while ((err = mix_once(f, b, loss)) == -EAGAIN) {
		tt_lock(f->g->job); /* other fetches count, too */
		f->g->info.retries++;
		tt_unlock(f->g->job);
		if (++f->tries == TT_GOSSIP_TRIES)
			break;
	}
	return err;
}

struct arrival { /* what a thread that averages waits for */
	struct tt_fetch *f;
	size_t done, have;          /* bytes that were averaged; that may be */
	unsigned tries;
};

static bool has_more(void *arg)
{
	const struct arrival *a = arg;
	struct tt_fetch *f = a->f;

	if (f->state == TT_FETCH_ASK)
		ask(f);
	return f->state >= TT_FETCH_MAPPED ||
	       (f->state == TT_FETCH_DATA && (f->tries != a->tries || f->have > a->done));
}

/* A fetch that begins anew restarts the average. */
static int await(struct arrival *a, uint64_t deadline)
{
	struct tt_fetch *f = a->f;
	int err;

	tt_progress(f->g->job);
	err = tt_wait_for(f->g->job, &f->g->handle.users, has_more, a, deadline);
	if (a->tries != f->tries)
		a->done = 0;
	a->tries = f->tries;
	a->have = f->state == TT_FETCH_HEAD ? 0 : tt_min(f->have, a->done + f->unit);
	return err ? err : f->state == TT_FETCH_DONE ? f->err : 0;
}

int tt_fetch_mix(struct tt_fetch *f, struct tt_blend *b, double loss, uint64_t deadline)
{
	struct arrival a = { .f = f };
	int err;

	do {
		tt_lock(f->g->job);
		err = await(&a, deadline);
		set_factor(f, loss, b);
		bool mapped = f->state == TT_FETCH_MAPPED, came = f->state == TT_FETCH_DONE;
		tt_unlock(f->g->job);
		if (mapped)
			return mix_mapped(f, b, loss);
		for (size_t at = a.done; !err && !f->g->device.queue && at < a.have; at += TT_GOSSIP_BLEND)
			tt_gossip_blend(f->g, b, f->staging, at, tt_min(at + TT_GOSSIP_BLEND, a.have));
		a.done = tt_max(a.done, a.have);
		if (came && a.done == f->g->model.bytes)
			return err || !f->g->device.queue ? err : tt_gossip_blend_device(f, b);
	} while (!err);
	return err;
}
