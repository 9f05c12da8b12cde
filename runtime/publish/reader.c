/* reader.c - reads the newest version that another rank has published
 *
 *      LOOK front --> COPY the buffer --> LOOK the buffer's stamp: the same? whole
 *        ^-------------- overtaken ----------------' three times: a hold on the next version that is looked at
 */
#include "engine/engine.h"
#include "member/member.h"
#include "publish/publish_private.h"
#include "transport/copy.h"
#include <stdio.h>
#include <stdlib.h>

enum {
	HOPEFUL = 3,       /* tries without a hold */
	TRIES = 16,        /* at least */
	PIECE = 1 << 20,   /* bytes of a GET ... */
	DEPTH = 8,         /* ... and how many are under way */
	IN_PLACE = 256 << 10, /* bytes that are copied at once out of mapped memory: the lock is held for so long */
};

struct tutti_reader {
	struct tt_handle handle;
	struct tt_job *job;
	tutti_window *window;
	char *what;                 /* "reader "NAME"", for sentences */
	int rank, member;           /* the publisher: in the group; in the job */
	uint64_t timeout;
	struct tt_publish_head head; /* of the opening that the reader knows; zeros: none. Without stamps */
	struct tt_publish_layout at;
	uint8_t *bytes;             /* the list as it came; all openings must have the same */
	tutti_weight *list;
	int n;
	struct tt_model model;      /* without memory */
	uint64_t generation;        /* of the last fetch: versions are compared within it */
	char meta[TT_PUBLISH_META];
	uint8_t *deltas;            /* deltas that came, and how many bytes have place there */
	size_t room;
	uint64_t mismatched;
	struct tt_copier copier;
	tutti_op op[DEPTH];
};

/* ---- small things of the publisher's window ---- */

static int get(tutti_reader *r, size_t at, void *to, size_t bytes)
{
	return tt_window_get(r->window, r->what, r->rank, at, to, bytes, NULL);
}

static size_t place_at(const tutti_reader *r, size_t inside)
{
	return sizeof(struct tt_publish_head) + (size_t)r->job->rank * sizeof(struct tt_reader_place) + inside;
}

static int put_word(tutti_reader *r, size_t inside, uint64_t word)
{
	return tutti_put(r->window, r->rank, place_at(r, inside), &word, sizeof word, NULL);
}

/* Zeroes words of this rank's place, and waits for nothing: a publisher that has gone does not take them. */
static void clear_words(tutti_reader *r, size_t inside, size_t bytes)
{
	static const struct tt_reader_place none;
	struct tt_sentence last = tt_last_sentence();

	if (!tutti_put(r->window, r->rank, place_at(r, inside), &none, bytes, &r->op[0]))
		tutti_cancel(&r->op[0]);
	tt_remember(last.text);
}

static size_t stamp_at(int buffer)
{
	return offsetof(struct tt_publish_head, stamp) + (size_t)buffer * sizeof(struct tt_stamp);
}

static struct tt_label publisher_of(const tutti_reader *r) { return tt_member_label(tt_member(r->job, r->member)); }

/* The publisher has closed its window: the next use asks for the next one. */
static int lose(tutti_reader *r, int err)
{
	if (err != -ESTALE)
		return err;
	tt_lock(r->job);
	tt_window_again(r->window, r->member);
	tt_unlock(r->job);
	return r->handle.users.err ? err : tt_fail(err, "%s: %s has closed the publication: the next fetch waits until "
	                                           "it is open again", r->what, publisher_of(r).text);
}

/* ---- what the publisher says of itself ---- */

static int refuse(const tutti_reader *r, const char *why)
{
	return tt_fail(-EBADMSG, "%s: %s %s", r->what, publisher_of(r).text, why);
}

static int check_head(const tutti_reader *r, const struct tt_publish_head *h)
{
	if (h->what != TT_PUBLISH_WHAT)
		return refuse(r, "publishes nothing under this name");
	if (h->places > TT_PUBLISH_PLACES || h->places <= (uint64_t)r->job->rank || h->list_bytes > TT_PUBLISH_LIST ||
	    h->list_bytes < 4 || h->buffers < 3 || h->buffers > TT_PUBLISH_MOST || h->bytes > TT_PUBLISH_BYTES ||
	    h->deltas > TT_PUBLISH_MOST * TT_PUBLISH_BYTES)
		return tt_fail(-EBADMSG, "%s: %s says that it has %llu buffers of %llu bytes, %llu readers at most, "
		               "a list of %llu bytes, and %llu bytes of deltas: this makes no sense", r->what,
		               publisher_of(r).text,
		               (unsigned long long)h->buffers, (unsigned long long)h->bytes,
		               (unsigned long long)h->places, (unsigned long long)h->list_bytes,
		               (unsigned long long)h->deltas);
	return 0;
}

static int take_list(tutti_reader *r, const struct tt_publish_head *h, uint8_t *bytes)
{
	bool held;
	int err;

	if (tt_hash64(TT_HASH64, bytes, h->list_bytes) != h->list_hash)
		return refuse(r, "gave a list of tensors that is damaged");
	if (r->bytes && (r->head.list_bytes != h->list_bytes || memcmp(r->bytes, bytes, h->list_bytes)))
		return refuse(r, "publishes other tensors now: close the reader and open it again");
	if (!r->bytes && ((err = tt_publish_unpack(bytes, h->list_bytes, &r->list, &r->n)) ||
	                  (err = tt_publish_model(r->list, r->n, &r->model, &held))))
		return err;
	return r->model.bytes == h->bytes ? 0 : refuse(r, "gave a list of tensors that does not fit its buffers");
}

/* -EAGAIN: the name was opened again since the head was read. */
static int get_list(tutti_reader *r, const struct tt_publish_head *h, uint8_t *bytes)
{
	uint64_t hash;
	int err = get(r, tt_publish_layout(h).list, bytes, h->list_bytes);
	int anew = err && err != -ERANGE ? err : get(r, 0, &hash, sizeof hash);

	if (anew)
		return anew;
	if (hash != h->front.hash)
		return -EAGAIN;
	return err ? refuse(r, "has no list of tensors in its window") : take_list(r, h, bytes);
}

/* The first contact with an opening: its head, its list, and this rank's place there. -EAGAIN: it is a newer one now */
static int meet(tutti_reader *r)
{
	struct tt_reader_place mine = { .reader = tt_member(r->job, r->job->rank)->epoch };
	struct tt_publish_head h;
	int err = get(r, 0, &h, offsetof(struct tt_publish_head, stamp));

	if (err == -ERANGE)
		return refuse(r, "publishes nothing under this name");
	if (err || (err = check_head(r, &h)))
		return err;
	uint8_t *bytes = malloc(h.list_bytes);
	if (!bytes)
		return tt_fail(-ENOMEM, "%s: no memory for a list of tensors", r->what);
	if ((err = get_list(r, &h, bytes))) {
		free(bytes);
		return err;
	}
	free(r->bytes);
	r->bytes = bytes;
	r->head = h;
	r->at = tt_publish_layout(&h);
	return tutti_put(r->window, r->rank, place_at(r, 0), &mine, TT_PLACE_USED, NULL);
}

/* 0: the publication is open, as far as is known; -EINPROGRESS: not yet; -ESTALE: it was closed. A get would wait. */
static int ask(tutti_reader *r)
{
	tt_lock(r->job);
	int err = tt_window_ask(r->window, r->member);
	tt_unlock(r->job);
	return err == -EINPROGRESS || err == -ESTALE ? err : 0; /* the get has the sentence */
}

/* Finds the newest version. Returns 0, with the version's stamp and buffer. -EAGAIN: the version changes just now;
 * -ENODATA: the publisher has shown none yet; -EINPROGRESS: the name is not open. */
static int look(tutti_reader *r, struct tt_stamp *stamp, int *buffer)
{
	struct tt_front f;
	int err = ask(r);

	if (!err && !(err = get(r, 0, &f, sizeof f)) && f.hash != r->head.front.hash) {
		r->head.front.hash = 0; /* if this fails, the next look tries again */
		if (!(err = meet(r)))
			err = get(r, 0, &f, sizeof f);
	}
	if (err)
		return err == -ERANGE ? refuse(r, "publishes nothing under this name") : err;
	*stamp = f.last;
	return f.hash == r->head.front.hash ? tt_front_read(f.newest, &f.last, TT_PUBLISH_MOST, buffer) : -EAGAIN;
}

/* ---- opening and closing ---- */

static void release_reader(struct tt_handle *h)
{
	tutti_reader *r = tt_container_of(h, tutti_reader, handle);

	tutti_window_close(r->window);
	tt_model_close(&r->model);
	free(r->deltas);
	free(r->list);
	free(r->bytes);
	free(r->what);
	free(r);
}

static int open_reader(tutti *at, const char *name, int rank, tutti_reader **out)
{
	static const struct tt_handle_kind kind = { .release = release_reader, .noun = "reader" };
	char full[TT_PUBLISH_NAME + 32];
	tutti_reader *r = calloc(1, sizeof *r);
	int err = 0;

	if (!r || asprintf(&r->what, "reader \"%s\"", name) < 0) {
		free(r);
		return tt_fail(-ENOMEM, "no memory for a reader");
	}
	r->job = at->job;
	r->rank = rank;
	r->timeout = tt_group_timeout(at);
	snprintf(full, sizeof full, "publication %s", name);
	r->member = tutti_group_member(at, rank);
	if (r->member < 0)
		err = r->member;
	else if (r->member == r->job->rank)
		err = tt_fail(-EINVAL, "%s: rank %d of the group is this rank: a rank that has joined late names the "
		              "publisher with tutti_job", r->what, rank);
	if (!err && !(err = tutti_window_open(at, full, NULL, 0, &r->window)))
		for (int i = 0; i < TRIES && (!i || err == -EAGAIN || err == -ESTALE); i++)
			err = lose(r, meet(r)); /* again, where the name is closed and opened in the middle */
	if (err) {
		release_reader(&r->handle);
		return err;
	}
	r->generation = r->head.generation;
	tt_lock(r->job);
	tt_handle_hold(&r->handle, r->job, &kind);
	tt_unlock(r->job);
	*out = r;
	return 0;
}

int tutti_reader_open(tutti *at, const char *name, int rank, tutti_reader **out)
{
	struct tt_job *job = tt_job_of(at);
	struct tt_users *outer;
	int err = tt_usable(job);

	if (err || (err = tt_given(out, "tutti_reader_open: reader")))
		return err;
	if (!name || !*name || strlen(name) > TT_PUBLISH_NAME)
		return tt_fail(-EINVAL, "a publication's name has 1 to %d bytes", TT_PUBLISH_NAME);
	if ((err = tt_opening_enter(job, &at->handle.users, &outer)))
		return err;
	err = open_reader(at, name, rank, out);
	tt_opening_exit(job, &at->handle.users, outer);
	return err;
}

void tutti_reader_close(tutti_reader *r)
{
	struct tt_sentence last = tt_last_sentence();

	if (!r || !tt_handle_close(&r->handle))
		return;
	tt_unlock(r->job);
	clear_words(r, 0, TT_PLACE_USED); /* the publisher counts its readers */
	tutti_window_close(r->window);
	r->window = NULL;
	tt_handle_free(&r->handle);
	tt_remember(last.text);
}

/* A call begins. Neither close nor leave frees anything before it has ended. */
static int enter(tutti_reader *r) { return r ? tt_users_enter(r->job, &r->handle.users) : tt_refuse_job(NULL); }
static void leave(tutti_reader *r) { tt_users_exit(r->job, &r->handle.users); }

int tutti_reader_weight(tutti_reader *r, int i, tutti_weight *weight)
{
	int err = tt_given(weight, "tutti_reader_weight: weight");

	if (err || (err = enter(r)))
		return err;
	if (i < 0 || i >= r->n)
		err = tt_fail(-EINVAL, "%s: tensor %d must be from 0 to %d", r->what, i, r->n - 1);
	else
		*weight = r->list[i];
	leave(r);
	return err;
}

int tutti_reader_weights(tutti_reader *r)
{
	int err = enter(r), n;

	if (err)
		return err;
	n = r->n;
	leave(r);
	return n;
}

int tutti_reader_newest(tutti_reader *r, uint64_t *version)
{
	int err = tt_given(version, "tutti_reader_newest: version");
	uint64_t word;

	if (err || (err = enter(r)))
		return err;
	err = ask(r) ? -ESTALE : get(r, offsetof(struct tt_front, newest), &word, sizeof word);
	if (!err)
		*version = word / TT_PUBLISH_MOST;
	err = lose(r, err);
	leave(r);
	return err;
}

/* ---- the bytes ---- */

struct fetch {
	tutti_reader *r;
	const tutti_tensor *to;
	struct tt_stamp stamp;
	int buffer;
	bool mapped, held;          /* held: this fetch has put a hold */
	unsigned begun, ended;      /* GETs; those between are under way */
	uint64_t from;              /* the version that the tensors have; 0: none, or parts of several */
	uint64_t bytes;             /* that came */
	struct tt_delta_chain chain;
};

static int read_stamp(const struct fetch *f)
{
	struct tt_stamp now;
	int err = get(f->r, stamp_at(f->buffer), &now, sizeof now);

	return err ? err : memcmp(&now, &f->stamp, sizeof now) ? -EAGAIN : 0;
}

/* One piece of memory that is mapped here. -EAGAIN: overtaken; -ENOTSUP: it is not mapped. */
static int copy_piece(struct fetch *f, size_t at, char *to, size_t bytes)
{
	tutti_reader *r = f->r;
	int err = -ENOTSUP;
	char *theirs;

	tt_lock(r->job);
	if ((theirs = tt_window_hold(r->window, r->member))) {
		if (at + bytes <= tt_window_bytes(r->window, r->member)) {
			const uint64_t *number = (const uint64_t *)(void *)(theirs + stamp_at(f->buffer));
			tt_copy(&r->copier, to, theirs + at, bytes);
			__atomic_thread_fence(__ATOMIC_ACQUIRE);
			err = __atomic_load_n(number, __ATOMIC_RELAXED) == f->stamp.number ? 0 : -EAGAIN;
		}
		tt_window_let_go(r->window, r->member);
	}
	tt_unlock(r->job);
	return err;
}

static int end_oldest(struct fetch *f, bool give_up)
{
	tutti_op *op = &f->r->op[f->ended % DEPTH];
	int err = give_up ? tutti_cancel(op) : tutti_wait(op, -1);

	f->ended += give_up || err != -EINTR; /* it runs on */
	return err;
}

static int get_piece(struct fetch *f, size_t at, char *to, size_t bytes)
{
	tutti_reader *r = f->r;
	int err = f->begun - f->ended == DEPTH ? end_oldest(f, false) : 0;

	if (!err && !(err = tt_window_get(r->window, r->what, r->rank, at, to, bytes, &r->op[f->begun % DEPTH])))
		f->begun++;
	return err;
}

/* Another thread closes the reader, or leaves the job. */
static int ends(tutti_reader *r) { return r->handle.users.err ? tt_users_enter(r->job, &r->handle.users) : 0; }

static int bring(struct fetch *f, size_t at, char *to, size_t bytes)
{
	int err = ends(f->r);

	for (size_t done = 0, n; done < bytes && !err; done += n) {
		n = tt_min(bytes - done, f->mapped ? IN_PLACE : PIECE);
		if (!f->mapped) {
			err = get_piece(f, at + done, to + done, n);
		} else if ((err = copy_piece(f, at + done, to + done, n)) == -ENOTSUP) {
			f->mapped = false;
			n = 0;
			err = 0;
		}
		f->bytes += n;
		err = err ? err : ends(f->r);
	}
	return err;
}

static int bring_meta(struct fetch *f)
{
	size_t meta = f->r->at.meta + (size_t)f->buffer * TT_PUBLISH_META;

	return bring(f, meta, f->r->meta, tt_min(f->stamp.about[0], TT_PUBLISH_META));
}

static int bring_tensors(struct fetch *f)
{
	tutti_reader *r = f->r;
	size_t buffer = r->at.buffers + (size_t)f->buffer * r->at.stride;
	int err = 0;

	for (int i = 0; !err && i < r->n; i++)
		if (f->to[i].data)
			err = bring(f, buffer + r->model.at[i], f->to[i].data,
			            f->to[i].count * tt_type_size(f->to[i].type));
	return err;
}

/* Brings the meta data, and what the function brings. 0: all is here, and whole. -EAGAIN: overtaken. */
static int copy_version(struct fetch *f, int (*bring_rest)(struct fetch *))
{
	int err;

	tt_lock(f->r->job);
	f->mapped = tt_window_is_mapped(f->r->window, f->r->member);
	tt_unlock(f->r->job);
	f->begun = f->ended = 0;
	if (!(err = bring_meta(f)))
		err = bring_rest(f);
	while (!err && f->ended < f->begun)
		err = end_oldest(f, false);
	struct tt_sentence first = tt_last_sentence();
	while (f->ended < f->begun) /* after an error */
		end_oldest(f, true);
	if (err)
		tt_remember(first.text);
	__atomic_thread_fence(__ATOMIC_ACQUIRE);
	return err ? err : read_stamp(f);
}

/* ---- deltas ---- */

static int bring_deltas(struct fetch *f)
{
	uint8_t *to = f->r->deltas;
	int err = 0;

	for (int i = 0; !err && i < f->chain.n; i++) {
		err = bring(f, f->r->at.ring + f->chain.link[i].at, (char *)to, f->chain.link[i].bytes);
		to += f->chain.link[i].bytes;
	}
	return err;
}

static int get_entries(struct fetch *f, struct tt_delta_entry all[TT_DELTAS])
{
	f->bytes += TT_DELTAS * sizeof *all;
	return get(f->r, f->r->at.entries, all, TT_DELTAS * sizeof *all);
}

static int make_room(tutti_reader *r, size_t bytes)
{
	if (bytes > r->room) {
		free(r->deltas);
		r->deltas = malloc(bytes);
		r->room = r->deltas ? bytes : 0;
	}
	return r->deltas ? 0 : tt_fail(-ENOMEM, "%s: no memory for deltas of %zu bytes", r->what, bytes);
}

/* Do the deltas that came lead from what the program has to the version that was looked at? */
static bool apply_deltas(const struct fetch *f)
{
	const uint8_t *from = f->r->deltas;

	for (int i = 0; i < f->chain.n; from += f->chain.link[i++].bytes)
		if (!tt_delta_apply(from, f->chain.link[i].bytes, f->to, f->r->n))
			return false;
	return tt_delta_sum(f->to, f->r->n) == f->chain.link[f->chain.n - 1].sum;
}

/* 0: the version is here. -EAGAIN: overtaken; the tensors are as they were. -ENODATA: the version must come whole. */
static int update(struct fetch *f)
{
	tutti_reader *r = f->r;
	struct tt_delta_entry all[TT_DELTAS];
	uint64_t from = f->from;
	int err;

	if (!from || !r->head.deltas || r->generation != r->head.generation || r->model.bytes <= 2 * sizeof all)
		return -ENODATA;
	if ((err = get_entries(f, all)))
		return err;
	if (!tt_delta_find(all, from, f->stamp.number, r->head.deltas, r->model.bytes - 2 * sizeof all, &f->chain))
		return -ENODATA;
	if ((err = make_room(r, f->chain.bytes)) || (err = copy_version(f, bring_deltas)) ||
	    (err = get_entries(f, all)))
		return err;
	if (!tt_delta_is_there(all, &f->chain))
		return -EAGAIN;
	f->from = 0;
	if (apply_deltas(f))
		return 0;
	r->mismatched++;
	return -ENODATA;
}

/* A reader that was overtaken often does not try deltas again: a hold does not keep them. */
static int take_version(struct fetch *f, unsigned overtaken)
{
	int err = overtaken < HOPEFUL ? update(f) : -ENODATA;

	if (err != -ENODATA)
		return err;
	f->from = 0;
	f->chain.n = 0;
	return copy_version(f, bring_tensors);
}

/* publish_private.h says why the fence is there. Over a connection, the GET sees the PUT that has ended. */
static int take_hold(struct fetch *f)
{
	uint64_t word = f->stamp.number * TT_PUBLISH_MOST + (uint64_t)f->buffer;
	int err = put_word(f->r, offsetof(struct tt_reader_place, hold), word);

	f->held = true;
	__atomic_thread_fence(__ATOMIC_SEQ_CST);
	return err ? err : read_stamp(f);
}

/* ---- fetching ---- */

static int say_late(const tutti_reader *r, int why, uint64_t newer_than, int timeout_ms)
{
	uint64_t ms = timeout_ms < 0 ? r->timeout / TT_MS : (uint64_t)timeout_ms;
	struct tt_label who = publisher_of(r);

	if (why == -EINPROGRESS)
		return tt_fail(-ETIMEDOUT, "%s: %s has not opened the publication again within %llu ms", r->what,
		               who.text, (unsigned long long)ms);
	if (why == -EAGAIN)
		return tt_fail(-ETIMEDOUT, "%s: %s has been writing over its newest version for %llu ms: readers hold "
		               "the other buffers, so give the publisher more of them", r->what, who.text,
		               (unsigned long long)ms);
	return tt_fail(-ETIMEDOUT, "%s: %s has published no version newer than %llu within %llu ms", r->what, who.text,
	               (unsigned long long)newer_than, (unsigned long long)ms);
}

/* Waits for a version that is whole and newer. The last look is after the deadline; where a version changes just
 * now, not the first one. */
static int find_version(struct fetch *f, uint64_t newer_than, int timeout_ms, uint64_t deadline)
{
	tutti_reader *r = f->r;
	uint64_t pause = TT_PUBLISH_PAUSE, end = tt_max(deadline, tt_now() + pause);
	int err, ended;

	for (bool late = false;; late = tt_now() >= deadline) {
		err = look(r, &f->stamp, &f->buffer);
		if (!err && (f->stamp.number > newer_than || r->generation != r->head.generation))
			return 0;
		if (err && err != -EAGAIN && err != -ENODATA && err != -EINPROGRESS)
			return err;
		if (late || (err != -EAGAIN && tt_now() >= deadline))
			return say_late(r, err, newer_than, timeout_ms);
		if ((ended = tt_publish_pause(r->job, &r->handle.users, &pause, end)))
			return ended;
	}
}

static int check_list(const tutti_reader *r, const tutti_tensor *to)
{
	for (int i = 0; i < r->n; i++) {
		const tutti_tensor *theirs = &r->model.tensors[i];
		if (to[i].data && (to[i].count != theirs->count || to[i].type != theirs->type))
			return tt_fail(-EINVAL, "%s: tensor \"%s\" has %zu elements here%s, and %zu at %s", r->what,
			               r->list[i].name, to[i].count,
			               to[i].type != theirs->type ? " of another type" : "", theirs->count,
			               publisher_of(r).text);
	}
	return tt_tensors_host_only("fetch", to, r->n);
}

static double age_of(uint64_t born)
{
	uint64_t now = tt_calendar();

	return now > born ? (double)(now - born) / TT_MS : 0;
}

/* Tries until a version is here, whole. A hold that came too late means that the publisher is about to show the next
 * version: it may need this core. */
static int fetch_newest(struct fetch *f, uint64_t newer_than, int timeout_ms, unsigned *overtaken)
{
	tutti_reader *r = f->r;
	uint64_t deadline = tt_publish_deadline(r->timeout, timeout_ms), pause = TT_PUBLISH_PAUSE;
	int err;

	for (;;) {
		if ((err = find_version(f, newer_than, timeout_ms, deadline)))
			return err;
		bool late = *overtaken >= HOPEFUL && (err = take_hold(f));
		if (!late)
			err = take_version(f, *overtaken);
		if (err == -ERANGE) /* the name was opened again, with a smaller window */
			err = -EAGAIN;
		if (err != -EAGAIN || (++*overtaken >= TRIES && tt_now() >= deadline))
			return err;
		if (late && (err = tt_publish_pause(r->job, &r->handle.users, &pause, TT_NEVER)))
			return err;
	}
}

/* Errors are not the fetch's: the version is here. */
static void tell_taken(const struct fetch *f)
{
	struct tt_sentence last = tt_last_sentence();

	put_word(f->r, offsetof(struct tt_reader_place, taken), f->stamp.number);
	tt_remember(last.text);
}

static bool gives_all(const tutti_reader *r, const tutti_tensor *to)
{
	for (int i = 0; i < r->n; i++)
		if (!to[i].data && r->model.tensors[i].count)
			return false;
	return true;
}

static int fetch(tutti_reader *r, uint64_t newer_than, uint64_t held, const tutti_tensor *to, int timeout_ms,
                 tutti_fetched *got)
{
	struct fetch f = { .r = r, .to = to, .from = gives_all(r, to) ? held : 0 };
	unsigned overtaken = 0;
	int err = check_list(r, to);

	if (err)
		return err;
	err = fetch_newest(&f, newer_than, timeout_ms, &overtaken);
	if (f.held) /* also after an error: the publisher would do without the buffer for hold_ms */
		clear_words(r, offsetof(struct tt_reader_place, hold), sizeof(uint64_t));
	if (err == -EAGAIN)
		return tt_fail(err, "%s: %s has published faster than this rank could read, %u times: give the "
		               "publisher more buffers, or a hold_ms that is longer than a fetch", r->what,
		               publisher_of(r).text, overtaken);
	if (err)
		return lose(r, err);
	tell_taken(&f);
	r->generation = r->head.generation;
	*got = (tutti_fetched){ .version = f.stamp.number, .generation = r->generation, .age_ms = age_of(f.stamp.born),
		.meta_bytes = tt_min(f.stamp.about[0], TT_PUBLISH_META), .overtaken = overtaken,
		.deltas = (unsigned)f.chain.n, .bytes = f.bytes, .mismatched = r->mismatched };
	memcpy(got->meta, r->meta, got->meta_bytes);
	return 0;
}

int tutti_reader_update(tutti_reader *r, uint64_t newer_than, uint64_t held, const tutti_tensor *to, int timeout_ms,
                        tutti_fetched *fetched)
{
	int err = tt_given(to, "tutti_reader_fetch: to");

	if (err || (err = tt_given(fetched, "tutti_reader_fetch: fetched")) || (err = enter(r)))
		return err;
	err = fetch(r, newer_than, held, to, timeout_ms, fetched);
	leave(r);
	return err;
}

int tutti_reader_fetch(tutti_reader *r, uint64_t newer_than, const tutti_tensor *to, int timeout_ms,
                       tutti_fetched *fetched)
{
	return tutti_reader_update(r, newer_than, 0, to, timeout_ms, fetched);
}
