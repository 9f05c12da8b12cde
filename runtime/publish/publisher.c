/* publisher.c - publishes versions of a list of tensors, and waits for no reader */
#include "device/device.h"
#include "engine/engine.h"
#include "member/member.h"
#include "publish/publish_private.h"
#include "transport/copy.h"
#include <stdio.h>
#include <stdlib.h>

struct hold { /* as the publisher has seen it */
	uint64_t word, since;
};

struct tutti_publisher {
	struct tt_handle handle;
	struct tt_job *job;
	tutti_window *window;
	char *memory;
	struct tt_publish_head *head;
	struct tt_reader_place *place;
	struct tt_publish_layout at;
	struct tt_buffers shown;
	struct tt_model model;
	struct tt_copier copier;    /* from the tensors into buffers */
	struct tt_delta_ring deltas; /* room 0: none */
	bool held;                  /* the tensors have no memory of the program's */
	bool registered;            /* with CUDA */
	int writing;                /* the buffer that the program writes into; -1: none */
	int places;
	struct hold *holds;         /* one a place */
	uint64_t hold_ns, timeout;
	uint64_t published, reused, delta_bytes; /* other threads read these, and shown.number */
	struct tt_shards *shards;   /* NULL: this publisher has all tensors */
};

/* ---- opening and closing ---- */

static void close_shards(tutti_publisher *p)
{
	if (p->shards)
		tt_shards_close(p->shards);
	free(p->shards);
	p->shards = NULL;
}

static void release_publisher(struct tt_handle *h)
{
	tutti_publisher *p = tt_container_of(h, tutti_publisher, handle);

	close_shards(p);
	tutti_window_close(p->window);
	if (p->registered)
		tt_gpu_unregister(p->memory);
	tt_memory_free(p->memory);
	tt_model_close(&p->model);
	tt_delta_ring_close(&p->deltas);
	free(p->holds);
	free(p);
}

static uint64_t draw(void)
{
	uint64_t number;

	tt_entropy(&number, sizeof number);
	return number | 1;
}

static void fill_head(tutti_publisher *p, const struct tt_publish_head *head, const uint8_t *list)
{
	p->head = (struct tt_publish_head *)(void *)p->memory;
	p->place = (struct tt_reader_place *)(void *)(p->memory + p->at.places);
	*p->head = *head;
	memcpy(p->memory + p->at.list, list, head->list_bytes);
	p->shown = (struct tt_buffers){ .front = &p->head->front, .stamp = p->head->stamp, .n = (int)head->buffers,
		.most = TT_PUBLISH_MOST, .newest = -1 };
}

/* A program that copies its model from a GPU into a version then needs no other pinned memory. */
static void register_memory(tutti_publisher *p)
{
	struct tt_sentence last = tt_last_sentence();

	if (!tt_gpu_look())
		return;
	p->registered = !tt_gpu_register(p->memory, p->at.all);
	if (!p->registered)
		tt_log(TT_INFO, "publisher: copies from a GPU take longer: CUDA does not pin its %zu bytes: %s",
		       p->at.all, tt_last_sentence().text);
	tt_remember(last.text);
}

static int open_deltas(tutti_publisher *p)
{
	return tt_delta_ring_open(&p->deltas, (struct tt_delta_entry *)(void *)(p->memory + p->at.entries),
	                          (uint8_t *)p->memory + p->at.ring, tt_publish_ring(p->head), p->model.bytes);
}

static int make_memory(tutti_publisher *p, const tutti_publisher_config *c, const uint8_t *list, size_t bytes)
{
	struct tt_publish_head head = {
		.front.hash = draw(),
		.what = TT_PUBLISH_WHAT,
		.generation = c->generation ? c->generation : tt_calendar(),
		.places = (uint64_t)p->places,
		.list_bytes = bytes,
		.buffers = c->buffers ? (uint64_t)c->buffers : 3,
		.bytes = p->model.bytes,
		.list_hash = tt_hash64(TT_HASH64, list, bytes),
		.shard = (uint16_t)c->shard,
		.shards = c->shards > 1 ? (uint16_t)c->shards : 0,
	};
	uint64_t pages = ((uint64_t)((double)head.bytes * c->deltas) + 4095) / 4096;
	void *memory;
	int err;

	if (head.bytes > TT_PUBLISH_BYTES)
		return tt_fail(-EINVAL, "publisher: the tensors have %zu bytes, more than memory has", p->model.bytes);
	if (pages > UINT32_MAX)
		return tt_fail(-EINVAL, "publisher: deltas is %g, and the tensors have %zu bytes: deltas may have less "
		               "than 16 TiB", c->deltas, p->model.bytes);
	head.deltas = (uint32_t)pages;
	p->at = tt_publish_layout(&head);
	if (!(p->holds = calloc((size_t)p->places, sizeof *p->holds)))
		return tt_fail(-ENOMEM, "publisher: no memory for %d ranks", p->places);
	if ((err = tt_memory_alloc(p->job, p->at.all, -1, &memory)))
		return err;
	p->memory = memory;
	register_memory(p);
	fill_head(p, &head, list);
	return head.deltas ? open_deltas(p) : 0;
}

static int check_config(const tutti_publisher_config *c, const char *name)
{
	int err = TT_RESERVED(tutti_publisher_config, c);

	if (err)
		return err;
	if (!name || !*name || strlen(name) > TT_PUBLISH_NAME)
		return tt_fail(-EINVAL, "a publication's name has 1 to %d bytes", TT_PUBLISH_NAME);
	if (c->buffers && (c->buffers < 3 || c->buffers > TT_PUBLISH_MOST))
		return tt_fail(-EINVAL, "publisher \"%s\": %d buffers, and there may be 3 to %d", name, c->buffers,
		               TT_PUBLISH_MOST);
	if (c->hold_ms < 0)
		return tt_fail(-EINVAL, "publisher \"%s\": hold_ms is %d, and must not be negative", name, c->hold_ms);
	if (!(c->deltas >= 0 && c->deltas <= 16))
		return tt_fail(-EINVAL, "publisher \"%s\": deltas is %g, and must be from 0 to 16", name, c->deltas);
	if (c->deltas > 0 && c->shards)
		return tt_fail(-ENOTSUP, "publisher \"%s\": a publication in shards has no deltas: set deltas to 0",
		               name);
	return 0;
}

static int fill_publisher(tutti_publisher *p, const tutti_weight *list, int n, const tutti_publisher_config *c)
{
	uint8_t *bytes = NULL;
	size_t len;
	int err;

	p->places = tt_members(p->job)->capacity;
	p->writing = -1;
	p->hold_ns = (c->hold_ms ? (uint64_t)c->hold_ms : 5000) * TT_MS;
	if ((err = tt_publish_pack(list, n, &bytes, &len)) || (err = tt_publish_model(list, n, &p->model, &p->held)))
		goto out;
	if (!p->held && (err = tt_tensors_host_only("publisher", p->model.tensors, n)))
		goto out;
	err = make_memory(p, c, bytes, len);
out:
	free(bytes);
	return err;
}

/* Waits for shard 0, if this is another one. */
static int open_shards(tutti_publisher *p, tutti *at, const tutti_publisher_config *c)
{
	struct tt_shard_word *own = (struct tt_shard_word *)(void *)(p->memory + sizeof *p->head);

	if (c->shards < 2)
		return 0;
	if (!(p->shards = calloc(1, sizeof *p->shards)))
		return tt_fail(-ENOMEM, "no memory for a publisher");
	return tt_shards_open(p->shards, at, p->window, c, p->head, c->shard ? NULL : own, &at->handle.users);
}

static int open_publisher(tutti *at, const char *name, const tutti_weight *list, int n, const tutti_publisher_config *c,
                          tutti_publisher **out)
{
	static const struct tt_handle_kind kind = { .release = release_publisher, .noun = "publisher" };
	char full[TT_PUBLISH_NAME + 32];
	tutti_publisher *p = calloc(1, sizeof *p);
	int err;

	if (!p)
		return tt_fail(-ENOMEM, "no memory for a publisher");
	p->job = at->job;
	p->timeout = tt_group_timeout(at);
	snprintf(full, sizeof full, "publication %s", name);
	if ((err = fill_publisher(p, list, n, c)) ||
	    (err = tutti_window_open(tutti_job(at), full, p->memory, p->at.all, &p->window)) ||
	    (err = open_shards(p, at, c))) {
		release_publisher(&p->handle);
		return err;
	}
	tt_lock(p->job);
	tt_handle_hold(&p->handle, p->job, &kind);
	tt_unlock(p->job);
	*out = p;
	return 0;
}

int tutti_publisher_open(tutti *at, const char *name, const tutti_weight *weights, int n,
                         const tutti_publisher_config *config, tutti_publisher **out)
{
	static const tutti_publisher_config none;
	struct tt_users *outer;
	int err = tt_usable(tt_job_of(at));

	config = config ? config : &none;
	if (err || (err = tt_given(out, "tutti_publisher_open: publisher")) || (err = check_config(config, name)) ||
	    (err = tt_shards_check(config, name, at)) || (err = tt_opening_enter(at->job, &at->handle.users, &outer)))
		return err;
	err = open_publisher(at, name, weights, n, config, out);
	tt_opening_exit(at->job, &at->handle.users, outer);
	return err;
}

void tutti_publisher_close(tutti_publisher *p)
{
	struct tt_sentence last = tt_last_sentence();

	if (!p || !tt_handle_close(&p->handle))
		return;
	tt_unlock(p->job);
	close_shards(p);
	tutti_window_close(p->window);
	p->window = NULL;
	tt_handle_free(&p->handle);
	tt_remember(last.text);
}

/* A call begins. Neither close nor leave frees anything before it has ended. */
static int enter(tutti_publisher *p) { return p ? tt_users_enter(p->job, &p->handle.users) : tt_refuse_job(NULL); }
static void leave(tutti_publisher *p) { tt_users_exit(p->job, &p->handle.users); }

/* ---- which buffer is written next ---- */

static bool has_reader(const tutti_publisher *p, int rank)
{
	uint64_t reader = __atomic_load_n(&p->place[rank].reader, __ATOMIC_RELAXED);

	if (!reader || rank >= p->job->size)
		return false;
	const struct tt_member *m = tt_member(p->job, rank);
	return m->state < TT_LEFT && m->epoch == reader;
}

/* Does that rank's hold count? It ends with the rank, and some time after it was seen first. */
static bool counts(tutti_publisher *p, int rank, uint64_t word)
{
	struct hold *h = &p->holds[rank];
	uint64_t now = tt_now();

	if (h->word != word)
		*h = (struct hold){ word, now };
	if (now - h->since > p->hold_ns)
		return false;
	tt_lock(p->job);
	bool there = has_reader(p, rank);
	tt_unlock(p->job);
	return there;
}

static bool is_held(tutti_publisher *p, int buffer, uint64_t number)
{
	uint64_t word = number * TT_PUBLISH_MOST + (uint64_t)buffer;

	for (int i = 0; i < p->places; i++)
		if (__atomic_load_n(&p->place[i].hold, __ATOMIC_ACQUIRE) == word && counts(p, i, word))
			return true;
	return false;
}

/* Spoils the buffer, unless a reader holds it. The second look is for a hold that comes meanwhile: a fence is between
 * the store of the stamp and that look. */
static bool take_buffer(tutti_publisher *p, int i)
{
	uint64_t number = p->shown.stamp[i].number;

	if (number && is_held(p, i, number)) /* its reader must not meet a 0 there */
		return false;
	tt_buffers_spoil(&p->shown, i);
	if (!number || !is_held(p, i, number))
		return true;
	__atomic_store_n(&p->shown.stamp[i].number, number, __ATOMIC_RELEASE); /* nothing was written there */
	return false;
}

/* The oldest one that no reader holds. -1: there is none. */
static int take_unheld(tutti_publisher *p, unsigned kept)
{
	int i;

	while ((i = tt_buffers_oldest(&p->shown, kept)) >= 0 && !take_buffer(p, i))
		kept |= 1u << i;
	return i;
}

static int break_hold(tutti_publisher *p, unsigned kept)
{
	int i = tt_buffers_oldest(&p->shown, kept);

	if (i >= 0)
		tt_buffers_spoil(&p->shown, i);
	return i;
}

/* The newest buffer is the last choice: until the commit there is no newest version then. If that is held, too, the
 * oldest hold is broken: the publisher waits for nobody. */
static int choose_buffer(tutti_publisher *p)
{
	int i = take_unheld(p, 0);

	if (i >= 0)
		return i;
	__atomic_add_fetch(&p->reused, 1, __ATOMIC_RELAXED);
	if (take_buffer(p, p->shown.newest)) {
		__atomic_store_n(&p->head->front.last.number, 0, __ATOMIC_RELAXED);
		return p->shown.newest;
	}
	return break_hold(p, 0);
}

/* The buffers with versions that all shards may have as their newest are kept, and the newest one is among them. Where
 * readers hold all the others, a shard that is ahead waits: slower shards will free a buffer. The slowest shard breaks
 * the oldest hold. -1: it is to wait. */
static int choose_unkept(tutti_publisher *p)
{
	unsigned kept = tt_shards_kept(p->shards, &p->shown);
	int i = take_unheld(p, kept);

	if (i >= 0 || kept & (kept - 1))
		return i;
	__atomic_add_fetch(&p->reused, 1, __ATOMIC_RELAXED);
	return break_hold(p, kept);
}

/* Of a shard, which waits for the others, and for no reader. */
static int choose_of_shard(tutti_publisher *p, int *buffer)
{
	uint64_t pause = TT_PUBLISH_PAUSE, deadline = tt_publish_deadline(p->shards->wait, -1);
	int err;

	if ((*buffer = take_unheld(p, tt_shards_kept(p->shards, &p->shown))) >= 0)
		return 0;
	for (;;) {
		if ((err = tt_shards_look(p->shards)) || (*buffer = choose_unkept(p)) >= 0)
			return err;
		if ((err = tt_shards_missing(p->shards)) != -EAGAIN || tt_now() >= deadline)
			return err;
		if ((err = tt_publish_pause(p->job, &p->handle.users, &pause, deadline)))
			return err;
	}
}

static char *buffer_at(const tutti_publisher *p, int i) { return p->memory + p->at.buffers + (size_t)i * p->at.stride; }

static int begin_writing(tutti_publisher *p, char **to)
{
	int i = p->writing, err = 0;

	if (i < 0 && p->shards)
		err = choose_of_shard(p, &i);
	else if (i < 0)
		i = choose_buffer(p);
	if (err)
		return err;
	p->writing = i;
	*to = buffer_at(p, i);
	return 0;
}

/* ---- publishing ---- */

static int check_version(const tutti_publisher *p, uint64_t version, const void *meta, size_t bytes)
{
	if (!version)
		return tt_fail(-EINVAL, "publish: version 0: versions begin at 1");
	if (version <= p->shown.number || version >= TT_PUBLISH_VERSIONS)
		return tt_fail(-EINVAL, "publish: version %llu must be above %llu, the newest, and less than 2^60",
		               (unsigned long long)version, (unsigned long long)p->shown.number);
	if (bytes > TT_PUBLISH_META || (bytes && !meta))
		return tt_fail(-EINVAL, "publish: meta data of %zu bytes%s: up to %d bytes are allowed", bytes,
		               meta ? "" : " at NULL", TT_PUBLISH_META);
	return tt_host_only("publish", "meta", meta, bytes);
}

/* Keeps what changed since the newest version, unless this version is written over that. */
static void keep_delta(tutti_publisher *p, uint64_t version)
{
	int before = p->shown.newest;
	size_t bytes = 0;

	if (p->deltas.room && before >= 0 && p->shown.stamp[before].number == p->shown.number)
		bytes = tt_delta_keep(&p->deltas, &p->model, buffer_at(p, before), buffer_at(p, p->writing),
		                      p->shown.number, version);
	__atomic_store_n(&p->delta_bytes, bytes, __ATOMIC_RELAXED);
}

static int commit(tutti_publisher *p, uint64_t version, const void *meta, size_t bytes)
{
	int i = p->writing, err = p->shards ? tt_shards_settle(p->shards) : 0;

	if (err)
		return err;
	if (bytes)
		memcpy(p->memory + p->at.meta + (size_t)i * TT_PUBLISH_META, meta, bytes);
	keep_delta(p, version);
	tt_buffers_show(&p->shown, i, version, bytes, 0);
	p->writing = -1;
	__atomic_add_fetch(&p->published, 1, __ATOMIC_RELAXED);
	return p->shards ? tt_shards_tell(p->shards, version) : 0;
}

static void copy_tensors(tutti_publisher *p, char *to)
{
	for (int i = 0; i < p->model.n; i++) {
		const tutti_tensor *t = &p->model.tensors[i];
		if (t->count)
			tt_copy(&p->copier, to + p->model.at[i], t->data, t->count * tt_type_size(t->type));
	}
}

static int publish(tutti_publisher *p, uint64_t version, const void *meta, size_t bytes)
{
	int err = check_version(p, version, meta, bytes);
	char *to;

	if (err)
		return err;
	if (p->held)
		return tt_fail(-EINVAL, "publish: the tensors have no memory of the program's: write between "
		               "tutti_publisher_begin and tutti_publisher_commit");
	if ((err = begin_writing(p, &to)))
		return err;
	copy_tensors(p, to);
	return commit(p, version, meta, bytes);
}

int tutti_publisher_publish(tutti_publisher *p, uint64_t version, const void *meta, size_t meta_bytes)
{
	int err = enter(p);

	if (err)
		return err;
	err = publish(p, version, meta, meta_bytes);
	leave(p);
	return err;
}

int tutti_publisher_begin(tutti_publisher *p, tutti_tensor *to)
{
	int err = tt_given(to, "tutti_publisher_begin: to");
	char *buffer;

	if (err || (err = enter(p)))
		return err;
	if (!(err = begin_writing(p, &buffer)))
		tt_model_place(&p->model, buffer, to);
	leave(p);
	return err;
}

int tutti_publisher_commit(tutti_publisher *p, uint64_t version, const void *meta, size_t meta_bytes)
{
	int err = enter(p);

	if (err)
		return err;
	err = check_version(p, version, meta, meta_bytes);
	if (!err && p->writing < 0)
		err = tt_fail(-EINVAL, "tutti_publisher_commit: nothing was begun: call tutti_publisher_begin first");
	if (!err)
		err = commit(p, version, meta, meta_bytes);
	leave(p);
	return err;
}

/* ---- readers ---- */

/* How many readers are there that have taken a version, this one or a newer one; 0: all readers. */
static int count_readers(tutti_publisher *p, uint64_t version)
{
	int n = 0;

	tt_lock(p->job);
	for (int i = 0; i < p->places; i++)
		n += has_reader(p, i) && __atomic_load_n(&p->place[i].taken, __ATOMIC_RELAXED) >= version;
	tt_unlock(p->job);
	return n;
}

static int wait_readers(tutti_publisher *p, uint64_t version, int readers, int timeout_ms)
{
	uint64_t deadline = tt_publish_deadline(p->timeout, timeout_ms), pause = TT_PUBLISH_PAUSE;
	int err = 0, n;

	while ((n = count_readers(p, version)) < readers && !err) {
		if (tt_now() >= deadline)
			return tt_fail(-ETIMEDOUT, "publisher: %d of %d readers have taken version %llu", n, readers,
			               (unsigned long long)version);
		err = tt_publish_pause(p->job, &p->handle.users, &pause, deadline);
	}
	return err;
}

int tutti_publisher_wait(tutti_publisher *p, uint64_t version, int readers, int timeout_ms)
{
	int err = enter(p);

	if (err)
		return err;
	err = wait_readers(p, version, readers, timeout_ms);
	leave(p);
	return err;
}

int tutti_publisher_look(tutti_publisher *p, tutti_publisher_info *info)
{
	int err = tt_given(info, "tutti_publisher_look: info");

	if (err || (err = enter(p)))
		return err;
	*info = (tutti_publisher_info){ .version = __atomic_load_n(&p->shown.number, __ATOMIC_RELAXED),
		.generation = p->head->generation, .published = __atomic_load_n(&p->published, __ATOMIC_RELAXED),
		.reused = __atomic_load_n(&p->reused, __ATOMIC_RELAXED), .readers = count_readers(p, 0),
		.delta_bytes = __atomic_load_n(&p->delta_bytes, __ATOMIC_RELAXED) };
	leave(p);
	return 0;
}
