/* gossip_fetch.c - reads another rank's buffer, and averages it
 *
 * Where the window is mapped here, mix averages out of the other rank's memory in place, in one pass. Else GETs bring
 * the buffer while the program computes: each that has ended starts the next one. mix averages what has come, and what
 * comes, out of the cache.
 *
 *      ASK --> MAPPED
 *      ASK --> HEAD --> DATA, piece by piece --> the head again --> DONE
 *               ^------------- overtaken ---------------'           */
#include "average/gossip.h"
#include "device/device.h"
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
	f->g->job->engine.news = true;
	tt_gossip_look(f->g);
}

static bool post(struct tt_fetch *f, struct tt_post *p, void *to, size_t bytes, size_t offset,
                 void (*done)(struct tt_post *, int))
{
	const struct tt_gossip_device *d = &f->g->device;
	bool data = p != &f->post;

	*p = (struct tt_post){ .pinned = data && d->queue ? f->staged : f->pinned, .done = done,
		.op = { .kind = TT_GET, .local = to, .len = bytes, .offset = offset } };
	int err = tt_window_post(data && d->apart ? d->window : f->g->window, f->rank, p);

	f->under_way += !err;
	f->err = f->err ? f->err : err;
	if (err && !f->under_way)
		end(f, f->err);
	return !err;
}

static void get_head(struct tt_fetch *f);

/* The owner has written there meanwhile. */
static void try_again(struct tt_fetch *f)
{
	f->g->info.retries++;
	if (++f->tries == TT_GOSSIP_TRIES)
		end(f, -EAGAIN);
	else
		get_head(f);
}

static void checked(struct tt_post *p, int err)
{
	struct tt_fetch *f = tt_container_of(p, struct tt_fetch, post);

	f->under_way--;
	f->born = f->head->born[f->buffer];
	if (err || f->dropped || f->head->stamp[f->buffer] == f->number)
		end(f, err);
	else if (f->gift)
		end(f, -ESTALE); /* its giver has closed, and opened again: this is other memory */
	else
		try_again(f);
}

static void piece_came(struct tt_post *p, int err);

static bool get_piece(struct tt_fetch *f, struct tt_fetch_piece *piece)
{
	size_t bytes = tt_min(TT_GOSSIP_PIECE, f->g->model.bytes - f->sent), at = f->sent;

	piece->landed = false;
	f->sent += bytes;
	return bytes && post(f, &piece->post, f->staging + at, bytes, tt_gossip_offset(f->g, f->buffer) + at,
	                     piece_came);
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
	while (f->have < all && (piece = &f->piece[f->have / TT_GOSSIP_PIECE % TT_GOSSIP_DEPTH])->landed) {
		f->have += piece->post.op.len;
		get_piece(f, piece);
	}
	f->g->job->engine.news = true;
	if (f->have == all)
		post(f, &f->post, f->head, sizeof *f->head, 0, checked);
}

static void get_data(struct tt_fetch *f)
{
	f->state = TT_FETCH_DATA;
	f->sent = f->have = 0;
	for (int i = 0; i < TT_GOSSIP_DEPTH && get_piece(f, &f->piece[i]); i++)
		continue;
}

/* What is published now. 0; -EAGAIN: the head changes. */
static int read_head(struct tt_fetch *f, const struct tt_gossip_head *h)
{
	uint64_t published = __atomic_load_n(&h->published, __ATOMIC_ACQUIRE);

	if (__atomic_load_n(&h->hash, __ATOMIC_RELAXED) != f->g->model.hash)
		return tt_fail(-EINVAL, "rank %d gossips about another model under this name, or has its buffers in "
		               "another place", f->rank);
	if (!published)
		return -ENODATA;
	f->buffer = published % TT_GOSSIP_BUFFERS;
	f->number = published / TT_GOSSIP_BUFFERS;
	f->clock = h->clock[f->buffer];
	f->loss = h->loss[f->buffer];
	f->born = h->born[f->buffer];
	return __atomic_load_n(&h->stamp[f->buffer], __ATOMIC_ACQUIRE) == f->number ? 0 : -EAGAIN;
}

static void head_came(struct tt_post *p, int err)
{
	struct tt_fetch *f = tt_container_of(p, struct tt_fetch, post);

	f->under_way--;
	if (!err && !f->dropped)
		err = read_head(f, f->head);
	if (err == -EAGAIN)
		try_again(f);
	else if (err || f->dropped)
		end(f, err);
	else
		get_data(f);
}

static void get_head(struct tt_fetch *f)
{
	f->state = TT_FETCH_HEAD;
	post(f, &f->post, f->head, sizeof *f->head, 0, head_came);
}

/* Is its window known by now? One that is not there yet has no part in this round. A gift is of one life's memory. */
static void ask(struct tt_fetch *f)
{
	const struct tt_member *m = tt_member(f->g->job, f->rank);
	const struct tt_gossip_device *d = &f->g->device;
	int err = f->gift && f->epoch != m->epoch ? -ECONNRESET : tt_window_ask(f->g->window, f->rank);

	if (!err && d->apart)
		err = tt_window_ask(d->window, f->rank);
	if (err == -EINPROGRESS && m->tries && m->state != TT_UP)
		err = -EHOSTUNREACH;
	if (err == -EINPROGRESS)
		return;
	if (err)
		end(f, err);
	else if (!d->queue && tt_window_is_mapped(f->g->window, f->rank))
		f->state = TT_FETCH_MAPPED;
	else if (f->gift)
		get_data(f);
	else
		get_head(f);
}

/* ---- from begin to end ---- */

static int make_staging(struct tt_fetch *f)
{
	size_t head = (sizeof *f->head + TT_MODEL_ALIGN - 1) / TT_MODEL_ALIGN * TT_MODEL_ALIGN;
	bool apart = f->g->device.queue;
	size_t bytes = head + (apart ? 0 : f->g->model.bytes);

	if (apart && !f->staging && tt_gossip_make_staging(f))
		return -ENOMEM;
	if (f->head)
		return 0;
	if (!(f->head = aligned_alloc(TT_MODEL_ALIGN, bytes)))
		return -ENOMEM;
	if (!apart)
		f->staging = (char *)f->head + head;
	if (!tt_pin(f->g->job, f->head, bytes, TT_PIN_READ, &f->pinned))
		return 0;
	free(f->head);
	f->head = NULL;
	return -ENOMEM;
}

struct tt_fetch *tt_fetch_begin(struct tutti_gossip *g, int rank, const struct tt_mail *gift)
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
	f->err = 0;
	f->late = false;
	f->tries = 0;
	f->have = 0;
	f->gift = gift != NULL;
	f->dropped = false;
	f->state = TT_FETCH_ASK;
	if (gift) {
		f->buffer = (int)gift->buffer;
		f->number = gift->number;
		f->weight = gift->weight;
	}
	ask(f);
	tt_unlock(g->job);
	return f;
}

void tt_fetch_drop(struct tt_fetch *f)
{
	if (!f)
		return;
	tt_lock(f->g->job);
	f->dropped = true;
	for (int i = 0; i < TT_GOSSIP_DEPTH && f->under_way && f->g->device.queue; i++)
		tt_device_give_up(f->g->job, &f->piece[i].post, -ECANCELED);
	if (!f->under_way)
		f->state = TT_FETCH_IDLE;
	tt_unlock(f->g->job);
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

	return now > f->born ? (double)(now - f->born) / TT_MS : 0;
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

	if (g->answers)
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

static int look_in_place(struct tt_fetch *f)
{
	const struct tt_gossip_head *h = (const void *)hold(f);
	int err = 0;

	if (!h)
		return -ECONNRESET;
	uint64_t bytes = tt_window_bytes(f->g->window, f->rank);
	if (bytes < sizeof *h)
		err = -EINVAL;
	else if (!f->gift)
		err = read_head(f, h);
	else if (__atomic_load_n(&h->stamp[f->buffer], __ATOMIC_ACQUIRE) != f->number)
		err = -ESTALE;
	else
		f->born = h->born[f->buffer];
	if (!err && bytes < tt_gossip_offset(f->g, f->buffer) + f->g->model.bytes)
		err = -EINVAL;
	let_go(f);
	return err;
}

static bool is_whole(const struct tt_fetch *f, const struct tt_gossip_head *h)
{
	__atomic_thread_fence(__ATOMIC_ACQUIRE);
	return __atomic_load_n(&h->stamp[f->buffer], __ATOMIC_RELAXED) == f->number;
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
	return whole ? 0 : -EAGAIN;
}

static void set_factor(const struct tt_fetch *f, double loss, double *factor)
{
	const struct tutti_gossip *g = f->g;

	if (!f->gift)
		*factor = tt_gossip_factor(&g->config, g->info.clock, f->clock, loss, f->loss);
}

static int mix_mapped(struct tt_fetch *f, struct tt_blend *b, double loss)
{
	int err;

	for (;;) {
		if (!(err = look_in_place(f))) {
			set_factor(f, loss, &b->factor);
			err = mix_in_place(f, b);
		}
		if (err != -EAGAIN)
			return err;
		tt_lock(f->g->job); /* other fetches count, too */
		f->g->info.retries++;
		tt_unlock(f->g->job);
		if (++f->tries == TT_GOSSIP_TRIES)
			return err;
	}
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
	a->have = f->state == TT_FETCH_HEAD ? 0 : tt_min(f->have, a->done + TT_GOSSIP_PIECE);
	return err ? err : f->state == TT_FETCH_DONE ? f->err : 0;
}

int tt_fetch_mix(struct tt_fetch *f, struct tt_blend *b, double loss, uint64_t deadline)
{
	struct arrival a = { .f = f };
	int err;

	do {
		tt_lock(f->g->job);
		err = await(&a, deadline);
		set_factor(f, loss, &b->factor);
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
